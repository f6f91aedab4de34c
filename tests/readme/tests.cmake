# README.md: the commands that it shows, run as a reader does.
add_test(NAME repo_readme_canary COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/readme/check_readme.sh --self-test)
set_tests_properties(repo_readme_canary PROPERTIES LABELS cpu TIMEOUT 60)
if(TARGET sluice)
    add_test(NAME repo_readme COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/readme/check_readme.sh ${PROJECT_SOURCE_DIR}
             ${PROJECT_BINARY_DIR})
    set_tests_properties(repo_readme PROPERTIES LABELS "cpu;nvme" TIMEOUT 240)
endif()
