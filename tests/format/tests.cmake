# Stored formats: manifests and tensors.
add_library(format_fixture STATIC format/format_fixture.c)
target_link_libraries(format_fixture PUBLIC sluice_format sluice_options PkgConfig::XXHASH
                      PkgConfig::CMOCKA)
sluice_test(test_format_manifest LIBS format_fixture LABELS cpu debug)
sluice_test(test_format_slots LIBS format_fixture LABELS cpu debug)
sluice_test(test_format_ranks LIBS format_fixture LABELS cpu debug)
sluice_test(test_format_values LIBS format_fixture LABELS cpu debug)
sluice_test(test_format_safetensors LIBS hf_fixture LABELS cpu debug)
