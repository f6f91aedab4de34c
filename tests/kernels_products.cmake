# Matrix products and attention of the CPU backend; they need the whole library for the ops table.
if(TARGET sluice_kernels)
    sluice_test(test_kernels_matmul LIBS sluice_kernels LABELS cpu)
    sluice_test(test_kernels_attention LIBS sluice_kernels LABELS cpu
                INSTANCES reference avx2 avx512)
endif()
