# The CPU backend: three parts, each a library that its tests can link alone. Contraction stays off (sluice_options).
# A loop body is compiled once for each instruction set, by the flags of the set. A part is an interface library that
# hands on the objects of its object libraries; the global property SLUICE_OBJECTS (CMakeLists.txt) lists them.
#
#   cpu_objects(PART NAME SOURCES ... [FLAGS ...])         adds an object library PART_NAME to PART
#   cpu_variant(PART SET TABLE SOURCE [FLAG...])           compiles SOURCE for the instruction set SET; its only
#                                                          external name is the table TABLE
set(cpu_is_x86 FALSE)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    set(cpu_is_x86 TRUE)
endif()
set(cpu_avx2 -mavx2 -mfma -mf16c)
set(cpu_avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma)

function(cpu_objects PART NAME)
    cmake_parse_arguments(ARG "" "" "SOURCES;FLAGS" ${ARGN})
    set(objects ${PART}_${NAME})
    add_library(${objects} OBJECT ${ARG_SOURCES})
    target_compile_options(${objects} PRIVATE ${ARG_FLAGS})
    target_link_libraries(${objects} PRIVATE sluice_options sluice_base OpenMP::OpenMP_C)
    if(NOT TARGET ${PART})
        add_library(${PART} INTERFACE)
        target_link_libraries(${PART} INTERFACE sluice_options sluice_base OpenMP::OpenMP_C)
    endif()
    target_sources(${PART} INTERFACE $<TARGET_OBJECTS:${objects}>)
    set_property(GLOBAL APPEND PROPERTY SLUICE_OBJECTS ${objects})
endfunction()

function(cpu_variant PART SET TABLE SOURCE)
    get_filename_component(name ${SOURCE} NAME_WE)
    cpu_objects(${PART} ${name}_${SET} SOURCES ${SOURCE} FLAGS ${ARGN})
    target_compile_definitions(${PART}_${name}_${SET} PRIVATE VARIANT_TABLE=${TABLE}
                               VARIANT_NAME="${SET}")
endfunction()

# Optimizers, working copies and gradient close: the plain C is in adam_reference.c.
cpu_objects(kernels_adam plain SOURCES cpu/optimizer/adam.c cpu/optimizer/adam_reference.c
            cpu/optimizer/adam_state.c)
set(source cpu/optimizer/adam_variant.c)
if(cpu_is_x86)
    cpu_variant(kernels_adam avx2 adami_avx2 ${source} ${cpu_avx2})
    cpu_variant(kernels_adam avx512 adami_avx512 ${source} ${cpu_avx512} -mf16c)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
    cpu_variant(kernels_adam neon adami_neon ${source})
endif()

# The row ops: what is fused is written so, and every set computes the same bits.
cpu_objects(kernels_rows plain SOURCES cpu/rows.c cpu/rows_lookup.c cpu/experts.c cpu/stored.c)
set(source cpu/rows_variant.c)
cpu_variant(kernels_rows baseline rowsi_baseline ${source})
if(cpu_is_x86)
    cpu_variant(kernels_rows avx2 rowsi_avx2 ${source} ${cpu_avx2})
    cpu_variant(kernels_rows avx512 rowsi_avx512 ${source} ${cpu_avx512} -mprefer-vector-width=512)
endif()

# oneDNN matrix products, our own products, attention, and the ops table.
cpu_objects(kernels_products plain SOURCES
    cpu/cpu_backend.c cpu/product.c cpu/matmul.c cpu/attention.c cpu/attention_forward_pass.c
    cpu/attention_backward.c cpu/attention_amx.c cpu/attention_dots.c cpu/product_amx.c cpu/product_fp32.c cpu/muon.c)
target_include_directories(kernels_products_plain PRIVATE ${DNNL_INCLUDE_DIR})
target_link_libraries(kernels_products INTERFACE ${DNNL_LIBRARY})
cpu_variant(kernels_products base cpui_plain_product_base cpu/plain_product.c)
if(cpu_is_x86)
    cpu_variant(kernels_products avx2 cpui_plain_product_avx2 cpu/plain_product.c ${cpu_avx2})
endif()
set(source cpu/attention_rows.c)
cpu_variant(kernels_products base cpui_attention_rows_base ${source})
if(cpu_is_x86)
    cpu_variant(kernels_products avx2 cpui_attention_rows_avx2 ${source} ${cpu_avx2})
    cpu_variant(kernels_products avx512 cpui_attention_rows_avx512 ${source} ${cpu_avx512})
    set_source_files_properties(cpu/product_fp32.c PROPERTIES COMPILE_OPTIONS "${cpu_avx512}")
    include(CheckCCompilerFlag)
    check_c_compiler_flag("-mavx512bf16" SLUICE_AVX512_BF16_FLAG)
    if(SLUICE_AVX512_BF16_FLAG)
        set_source_files_properties(cpu/attention_dots.c PROPERTIES COMPILE_OPTIONS
                                    "${cpu_avx512};-mavx512bf16")
    endif()
    check_c_compiler_flag("-mamx-bf16 -mavx512bf16" SLUICE_AMX_FLAGS)
    if(SLUICE_AMX_FLAGS)
        set(cpu_amx cpu/attention_amx_forward.c cpu/attention_amx_backward.c)
        target_sources(kernels_products_plain PRIVATE ${cpu_amx})
        set_source_files_properties(${cpu_amx} cpu/product_amx.c PROPERTIES COMPILE_OPTIONS
                                    "${cpu_avx512};-mavx512bf16;-mamx-tile;-mamx-bf16")
        set_source_files_properties(cpu/attention_amx.c PROPERTIES COMPILE_DEFINITIONS
                                    SLUICE_WITH_AMX)
    endif()
endif()

# What the backends are tested against. Plans of described machines ask it for sizes.
add_library(sluice_kernels_reference STATIC
    reference/reference.c reference/reference_rows.c reference/reference_loss.c reference/reference_experts.c
    reference/reference_heads.c
    reference/reference_stored.c
    reference/reference_products.c reference/reference_optimizer.c reference/reference_muon.c)
target_link_libraries(sluice_kernels_reference PUBLIC sluice_options sluice_base)
