# Jobs made into plans and figures.
sluice_test(test_setup_costs LIBS sluice_profile LABELS cpu debug)
sluice_test(test_setup_figures LIBS sluice_profile LABELS cpu debug)
sluice_test(test_setup_max_model LIBS sluice_profile LABELS cpu debug)
sluice_test(test_setup_names LIBS train_fixture LABELS cpu debug)
sluice_test(test_setup_fit LIBS train_fixture LABELS cpu nvme TIMEOUT 180)
sluice_test(test_setup_summary LIBS train_fixture LABELS cpu debug)
sluice_test(test_setup_loss_scale LIBS sluice_profile PkgConfig::JANSSON LABELS cpu debug)
target_compile_definitions(test_setup_loss_scale PRIVATE
                           FIXTURE_DIR="${CMAKE_CURRENT_SOURCE_DIR}/reference")
