# Errors, sizes, files, the choice of instruction set, failpoints.
sluice_test(test_base_basics LIBS sluice_base LABELS cpu)
sluice_test(test_base_file LIBS sluice_base LABELS cpu)
target_link_options(test_base_file PRIVATE -Wl,--wrap=fsync)
sluice_test(test_base_cpu LIBS sluice_base LABELS cpu debug)
