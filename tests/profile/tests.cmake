# Steps measured against the plan.
sluice_test(test_profile_as_rank LIBS train_fixture comm_fixture LABELS cpu nvme)
sluice_test(test_profile_steps LIBS train_fixture LABELS cpu nvme debug)
