# Memory, lanes and the norm.
sluice_test(test_engine_norm LIBS sluice_profile LABELS cpu debug)
sluice_test(test_engine_memory LIBS train_fixture LABELS cpu nvme debug)
sluice_test(test_engine_sealed LIBS train_fixture LABELS cpu nvme debug)
sluice_test(test_engine_overlap LIBS train_fixture LABELS cpu nvme)
