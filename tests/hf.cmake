# Checkpoints of Hugging Face: files, weights, import and export.
if(TARGET sluice_profile)
    add_library(hf_fixture STATIC hf_fixture.c)
    target_link_libraries(hf_fixture PUBLIC sluice_profile PkgConfig::XXHASH PkgConfig::CMOCKA)
    sluice_test(test_format_safetensors LIBS hf_fixture LABELS cpu debug)
    sluice_test(test_train_weights LIBS hf_fixture LABELS cpu debug)
    sluice_test(test_train_export LIBS hf_fixture LABELS cpu nvme debug)
    sluice_test(test_train_hf LIBS hf_fixture train_fixture LABELS cpu nvme debug)
    sluice_test(test_train_hf_ranks LIBS hf_fixture train_fixture comm_fixture LABELS cpu nvme)
    sluice_test(test_train_state LIBS hf_fixture train_fixture LABELS cpu nvme debug)
    target_link_options(test_train_state PRIVATE -Wl,--wrap=setupi_choose_backend)
    set_tests_properties(test_train_weights test_train_export test_train_hf
                         test_train_hf_ranks test_train_state PROPERTIES
                         ENVIRONMENT OMP_WAIT_POLICY=passive)
endif()
