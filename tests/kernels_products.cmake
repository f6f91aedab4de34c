# Matrix products and attention of the CPU backend; they need the whole library for the ops table.
# Idle OpenMP threads sleep here: on a machine that runs other tests beside, spinning costs up to 10x.
if(TARGET sluice_kernels)
    set(product_sets baseline avx2 avx512 avx512_bf16)
    sluice_test(test_kernels_matmul LIBS sluice_kernels LABELS cpu)
    sluice_test(test_kernels_product_fp32 LIBS sluice_kernels LABELS cpu debug)
    sluice_test(test_kernels_attention LIBS sluice_kernels LABELS cpu)
    sluice_test(test_kernels_cached LIBS sluice_kernels sluice_kernels_reference LABELS cpu debug
                INSTANCES cpu reference)
    sluice_test(test_kernels_fp16 LIBS sluice_kernels LABELS cpu)
    set_tests_properties(
        test_kernels_matmul test_kernels_product_fp32 test_kernels_attention
        test_kernels_cached.cpu test_kernels_cached.reference test_kernels_fp16
        PROPERTIES ENVIRONMENT OMP_WAIT_POLICY=passive)
    sluice_isa_test(test_kernels_matmul SETS ${product_sets} LABELS cpu)
    sluice_isa_test(test_kernels_product_fp32 SETS avx512 LABELS cpu debug)
    sluice_isa_test(test_kernels_attention SETS ${product_sets} LABELS cpu)
    sluice_isa_test(test_kernels_cached SETS baseline avx2 LABELS cpu debug INSTANCES cpu)
    sluice_isa_test(test_kernels_fp16 SETS baseline avx2 avx512 LABELS cpu)
endif()
