# Metrics, traces and the page.
sluice_test(test_report_output LIBS sluice_report PkgConfig::JANSSON LABELS cpu debug)
sluice_test(test_report_tensorboard LIBS sluice_report LABELS cpu debug)
sluice_test(test_report_page LIBS sluice_report PkgConfig::JANSSON LABELS cpu debug)
if(TARGET sluice)
    foreach(part page browser) # the latter is skipped where there is no Chromium
        add_test(NAME cli_report.${part} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_report.sh
                 $<TARGET_FILE:sluice> ${part})
        set_tests_properties(cli_report.${part} PROPERTIES LABELS cpu TIMEOUT 120 SKIP_RETURN_CODE 77)
    endforeach()
endif()
