# One CTest line per variant; a CPU without its instructions skips it.
if(TARGET kernels_adam)
    sluice_test(test_kernels_adam LIBS kernels_adam LABELS cpu debug INSTANCES reference avx2 avx512)
    sluice_test(test_kernels_adam_state LIBS kernels_adam LABELS cpu debug INSTANCES reference avx2 avx512)
endif()
if(TARGET kernels_adam AND TARGET sluice_kernels_reference)
    sluice_test(test_kernels_lion LIBS kernels_adam sluice_kernels_reference LABELS cpu debug
                INSTANCES reference avx2 avx512)
endif()
