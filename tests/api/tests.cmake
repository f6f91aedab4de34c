# The public C API, src/sluice.h.
if(TARGET sluice_profile)
    sluice_test(test_sluice_api LIBS train_fixture sluice_api LABELS cpu nvme debug)
    sluice_test(test_sluice_tasks LIBS train_fixture sluice_api PkgConfig::JANSSON LABELS cpu nvme debug)
endif()
