sluice_test(test_plan_compile LIBS sluice_plan sluice_program sluice_base LABELS "cpu;debug" TIMEOUT 180)
sluice_test(test_plan_scale LIBS sluice_plan sluice_program sluice_base LABELS cpu TIMEOUT 180)
sluice_test(test_plan_commit LIBS sluice_plan sluice_program sluice_base LABELS "cpu;debug" TIMEOUT 180)
sluice_test(test_plan_ranks LIBS sluice_plan sluice_program sluice_base LABELS "cpu;debug" TIMEOUT 180)
