# Matrix products and attention of the CPU backend; they need the whole library for the ops table.
# Idle OpenMP threads sleep here: on a machine that runs other tests beside, spinning costs up to 10x.
if(TARGET sluice_kernels)
    sluice_test(test_kernels_matmul LIBS sluice_kernels LABELS cpu)
    sluice_test(test_kernels_product_fp32 LIBS sluice_kernels LABELS cpu debug)
    sluice_test(test_kernels_attention LIBS sluice_kernels LABELS cpu
                INSTANCES reference avx2 avx512)
    sluice_test(test_kernels_cached LIBS sluice_kernels sluice_kernels_reference LABELS cpu debug
                INSTANCES reference avx2 avx512 backend)
    sluice_test(test_kernels_fp16 LIBS sluice_kernels LABELS cpu
                INSTANCES baseline avx2 avx512)
    set_tests_properties(
        test_kernels_fp16.baseline test_kernels_fp16.avx2 test_kernels_fp16.avx512
        test_kernels_matmul test_kernels_product_fp32 test_kernels_attention.reference test_kernels_attention.avx2
        test_kernels_attention.avx512 test_kernels_cached.reference test_kernels_cached.avx2
        test_kernels_cached.avx512
        PROPERTIES ENVIRONMENT OMP_WAIT_POLICY=passive)
endif()
