# The row ops of the CPU backend: one body, compiled per instruction set by flags per file.
# Contraction stays off (sluice_options) and what is fused is written so: every set computes the same bits.
add_library(kernels_rows OBJECT cpu/rows.c cpu/rows_lookup.c cpu/rows_baseline.c)
target_link_libraries(kernels_rows PUBLIC sluice_options sluice_base OpenMP::OpenMP_C)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
    target_sources(kernels_rows PRIVATE cpu/rows_avx2.c cpu/rows_avx512.c)
    set_source_files_properties(cpu/rows_avx2.c PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c")
    set_source_files_properties(cpu/rows_avx512.c PROPERTIES COMPILE_OPTIONS
        "-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mfma;-mprefer-vector-width=512")
endif()

# What the backends are tested against. Linked into tests only.
add_library(sluice_kernels_reference STATIC
    reference/reference.c reference/reference_rows.c reference/reference_products.c
    reference/reference_optimizer.c reference/reference_state.c)
target_link_libraries(sluice_kernels_reference PUBLIC sluice_options sluice_base)
