# The public C API, src/sluice.h.
if(TARGET sluice_profile)
    sluice_test(test_sluice_api LIBS train_fixture sluice_api LABELS cpu nvme debug)
    sluice_test(test_sluice_tasks LIBS train_fixture sluice_api PkgConfig::JANSSON LABELS cpu nvme debug)
    add_library(toy_module STATIC api/toy_module.c)
    target_link_libraries(toy_module PUBLIC train_fixture sluice_api sluice_options PkgConfig::CMOCKA m)
    sluice_test(test_module LIBS toy_module LABELS cpu nvme debug tsan)
endif()
