# Metrics, traces and the page.
sluice_test(test_report_output LIBS sluice_report PkgConfig::JANSSON LABELS cpu debug)
sluice_test(test_report_tensorboard LIBS sluice_report LABELS cpu debug)
sluice_test(test_report_page LIBS sluice_report PkgConfig::JANSSON LABELS cpu debug)
foreach(part page browser) # the latter is skipped where there is no Chromium
    test_line(cli_report.${part} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_report.sh $<TARGET_FILE:sluice>
              ${part} LABELS cpu TIMEOUT 120)
endforeach()
