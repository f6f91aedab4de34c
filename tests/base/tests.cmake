# Errors, sizes, files, the choice of instruction set, random numbers, failpoints.
sluice_test(test_base_basics LIBS sluice_base LABELS cpu)
sluice_test(test_base_file LIBS sluice_base LABELS cpu)
target_link_options(test_base_file PRIVATE -Wl,--wrap=fsync)
sluice_test(test_base_backoff LIBS sluice_base LABELS cpu)
target_link_options(test_base_backoff PRIVATE -Wl,--wrap=clock_ns -Wl,--wrap=nanosleep -Wl,--wrap=sched_yield)
sluice_test(test_base_cpu LIBS sluice_base LABELS cpu debug)
sluice_test(test_base_normals LIBS sluice_base LABELS cpu)
sluice_isa_test(test_base_normals SETS baseline avx2 LABELS cpu)
