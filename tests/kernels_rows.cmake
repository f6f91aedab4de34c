# The reference backend is compared with finite differences, the CPU's row ops with the reference.
# The latter run in the CPU's best set and in the sets below it that have other variants.
if(TARGET sluice_kernels_reference)
    sluice_test(test_kernels_reference LIBS sluice_kernels_reference LABELS cpu)
endif()
if(TARGET kernels_rows AND TARGET sluice_kernels_reference)
    foreach(name test_kernels_rows test_kernels_rows_exact test_kernels_parts)
        sluice_test(${name} LIBS kernels_rows sluice_kernels_reference LABELS cpu)
        sluice_isa_test(${name} SETS baseline avx2 LABELS cpu)
    endforeach()
endif()
