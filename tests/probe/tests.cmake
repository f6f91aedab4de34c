# The probe: what it chooses (pure), a tiny one of everything, and the command.
sluice_test(test_probe_choice LIBS sluice_probe LABELS cpu debug tsan)
sluice_test(test_probe_run LIBS sluice_probe LABELS cpu nvme debug)
test_line(probe_command COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_probe.sh $<TARGET_FILE:sluice> stop
          LABELS cpu nvme)
test_line(slow.probe COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_probe.sh $<TARGET_FILE:sluice> quick
          LABELS slow TIMEOUT 300 SERIAL)
