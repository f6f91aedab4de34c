# The probe: what it chooses (pure), a tiny one of everything, and the command.
sluice_test(test_probe_choice LIBS sluice_probe LABELS cpu debug tsan)
sluice_test(test_probe_run LIBS sluice_probe LABELS cpu nvme debug)
set_tests_properties(test_probe_run PROPERTIES ENVIRONMENT OMP_WAIT_POLICY=passive)
if(TARGET sluice)
    add_test(NAME probe_command COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_probe.sh
             $<TARGET_FILE:sluice> stop)
    set_tests_properties(probe_command PROPERTIES LABELS "cpu;nvme" TIMEOUT 60)
    add_test(NAME slow.probe COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_probe.sh
             $<TARGET_FILE:sluice> quick)
    set_tests_properties(slow.probe PROPERTIES LABELS slow TIMEOUT 300 RUN_SERIAL TRUE)
endif()
