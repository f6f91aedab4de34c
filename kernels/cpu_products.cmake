# oneDNN matrix products, attention and the CPU backend's ops table. The row work of attention is one
# loop body per instruction set, by flags per file.
add_library(kernels_products OBJECT
    cpu/cpu_backend.c cpu/product.c cpu/matmul.c cpu/attention.c cpu/attention_backward.c
    cpu/attention_cached.c cpu/attention_rows_base.c cpu/attention_amx.c
    cpu/product_amx.c cpu/product_fp32.c)
target_link_libraries(kernels_products PUBLIC sluice_options sluice_base OpenMP::OpenMP_C
                      ${DNNL_LIBRARY})
target_include_directories(kernels_products PRIVATE ${DNNL_INCLUDE_DIR})
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    target_sources(kernels_products PRIVATE cpu/attention_rows_avx2.c cpu/attention_rows_avx512.c)
    set_source_files_properties(cpu/attention_rows_avx2.c PROPERTIES COMPILE_OPTIONS
        "-mavx2;-mfma;-mf16c")
    set_source_files_properties(cpu/attention_rows_avx512.c cpu/product_fp32.c
        PROPERTIES COMPILE_OPTIONS
        "-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mfma")
    include(CheckCCompilerFlag)
    check_c_compiler_flag("-mamx-bf16 -mavx512bf16" SLUICE_AMX_FLAGS)
    if(SLUICE_AMX_FLAGS)
        target_sources(kernels_products PRIVATE cpu/attention_amx_forward.c
                       cpu/attention_amx_backward.c)
        set_source_files_properties(cpu/attention_amx_forward.c cpu/attention_amx_backward.c
            cpu/product_amx.c PROPERTIES COMPILE_OPTIONS
            "-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mfma;-mavx512bf16;-mamx-tile;-mamx-bf16")
        set_source_files_properties(cpu/attention_amx.c PROPERTIES COMPILE_DEFINITIONS
                                    SLUICE_WITH_AMX)
    endif()
endif()
