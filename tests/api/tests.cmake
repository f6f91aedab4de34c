# The public C API, src/sluice.h.
sluice_test(test_sluice_api LIBS train_fixture sluice_api LABELS cpu nvme debug)
sluice_test(test_sluice_tasks LIBS train_fixture sluice_api PkgConfig::JANSSON LABELS cpu nvme debug)
add_library(toy_module STATIC api/toy_module.c)
target_link_libraries(toy_module PUBLIC train_fixture sluice_api sluice_options PkgConfig::CMOCKA m)
add_executable(module_program api/module_program.c)
target_link_libraries(module_program PRIVATE toy_module)
test_line(api_module COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_module.sh $<TARGET_FILE:sluice>
          $<TARGET_FILE:module_program> LABELS cpu mpi nvme TIMEOUT 120)
sluice_test(test_module_pause LIBS toy_module LABELS cpu nvme debug TIMEOUT 180)
sluice_test(test_module_wrong LIBS toy_module LABELS cpu nvme debug TIMEOUT 60)
sluice_test(test_module LIBS toy_module LABELS cpu nvme debug TIMEOUT 180)
