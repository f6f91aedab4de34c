# Checkpoints of Hugging Face: files, weights, import and export.
if(TARGET sluice_profile)
    add_library(hf_fixture STATIC hf/hf_fixture.c)
    target_link_libraries(hf_fixture PUBLIC sluice_profile PkgConfig::XXHASH PkgConfig::CMOCKA)
    sluice_test(test_hf_weights LIBS hf_fixture LABELS cpu debug)
    sluice_test(test_hf_export LIBS hf_fixture LABELS cpu nvme debug)
    sluice_test(test_hf_import LIBS hf_fixture train_fixture LABELS cpu nvme debug)
    sluice_test(test_hf_import_ranks LIBS hf_fixture train_fixture comm_fixture LABELS cpu nvme)
endif()
