# One CTest line per variant; a CPU without its instructions skips it.
if(TARGET kernels_adam)
    sluice_test(test_kernels_adam LIBS kernels_adam LABELS cpu debug INSTANCES reference avx2 avx512)
endif()
