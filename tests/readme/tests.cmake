# README.md: the commands that it shows, run as a reader does.
test_line(repo_readme_canary COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/readme/check_readme.sh --self-test LABELS cpu)
test_line(repo_readme COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/readme/check_readme.sh ${PROJECT_SOURCE_DIR}
          ${PROJECT_BINARY_DIR} LABELS cpu nvme TIMEOUT 240)
