# The reference backend against finite differences, and the CPU's row ops against the reference: one
# CTest line per instruction set; a CPU without it skips the line.
if(TARGET sluice_kernels_reference)
    sluice_test(test_kernels_reference LIBS sluice_kernels_reference LABELS cpu)
endif()
if(TARGET kernels_rows AND TARGET sluice_kernels_reference)
    sluice_test(test_kernels_rows LIBS kernels_rows sluice_kernels_reference LABELS cpu
                INSTANCES baseline avx2 avx512)
    sluice_test(test_kernels_rows_exact LIBS kernels_rows LABELS cpu INSTANCES baseline avx2 avx512)
    sluice_test(test_kernels_parts LIBS kernels_rows sluice_kernels_reference LABELS cpu
                INSTANCES baseline avx2 avx512)
endif()
