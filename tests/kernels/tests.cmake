# These run in the CPU's best set and in the sets below it that have other variants. The plain C of baseline is what
# the other sets are compared with, so ASan sees it in their lines.
set(adam_tests "")
foreach(name test_kernels_adam test_kernels_adam_state)
    sluice_test(${name} LIBS kernels_adam LABELS cpu debug)
    list(APPEND adam_tests ${name})
endforeach()
foreach(name test_kernels_adam_rounding test_kernels_lion)
    sluice_test(${name} LIBS kernels_adam sluice_kernels_reference LABELS cpu debug)
    list(APPEND adam_tests ${name})
endforeach()
foreach(name ${adam_tests})
    sluice_isa_test(${name} SETS baseline LABELS cpu)
    sluice_isa_test(${name} SETS avx2 LABELS cpu debug)
endforeach()
# The variant of the other kind of processor, by cross compiler and emulator where they are installed.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    test_line(slow.neon_adam COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/neon_adam.sh ${PROJECT_SOURCE_DIR}
              LABELS cpu slow TIMEOUT 300)
endif()

# Matrix products and attention of the CPU backend; they need the whole library for the ops table.
set(product_sets baseline avx2 avx512 avx512_bf16)
sluice_test(test_kernels_matmul LIBS sluice_kernels LABELS cpu)
sluice_test(test_kernels_product_fp32 LIBS sluice_kernels LABELS cpu debug)
add_library(attention_truth STATIC kernels/attention_truth.c)
target_link_libraries(attention_truth PUBLIC sluice_options sluice_base PkgConfig::CMOCKA)
# Most of the time of attention's tests is spent in it.
set_source_files_properties(kernels/attention_truth.c PROPERTIES COMPILE_OPTIONS -fopenmp-simd)
sluice_test(test_kernels_attention LIBS attention_truth sluice_kernels LABELS cpu)
sluice_test(test_kernels_cached LIBS sluice_kernels sluice_kernels_reference LABELS cpu debug
            INSTANCES cpu reference)
sluice_test(test_kernels_fp16 LIBS sluice_kernels LABELS cpu)
sluice_test(test_kernels_muon LIBS sluice_kernels sluice_kernels_reference LABELS cpu debug)
sluice_isa_test(test_kernels_matmul SETS ${product_sets} LABELS cpu)
sluice_isa_test(test_kernels_product_fp32 SETS avx512 LABELS cpu debug)
# The best set tests the way of avx512_bf16 too.
sluice_isa_test(test_kernels_attention SETS baseline avx2 avx512 LABELS cpu)
set_tests_properties(isa_baseline.test_kernels_attention PROPERTIES TIMEOUT 180 COST 180)
sluice_isa_test(test_kernels_muon SETS baseline avx2 LABELS cpu debug)
sluice_isa_test(test_kernels_cached SETS baseline avx2 LABELS cpu INSTANCES cpu)
sluice_isa_test(test_kernels_fp16 SETS baseline avx2 avx512 LABELS cpu)

# The reference backend is compared with finite differences, the CPU's row ops with the reference.
# The latter run in the CPU's best set and in the sets below it that have other variants.
sluice_test(test_kernels_reference LIBS sluice_kernels_reference LABELS cpu)
sluice_test(test_kernels_reference_attention LIBS sluice_kernels_reference LABELS cpu)
sluice_test(test_kernels_reference_experts LIBS sluice_kernels_reference LABELS cpu debug)
foreach(name test_kernels_rows test_kernels_rows_point test_kernels_rows_exact test_kernels_parts)
    sluice_test(${name} LIBS sluice_kernels sluice_kernels_reference LABELS cpu)
    sluice_isa_test(${name} SETS baseline avx2 LABELS cpu)
endforeach()
sluice_test(test_kernels_experts LIBS sluice_kernels sluice_kernels_reference LABELS cpu debug)
sluice_isa_test(test_kernels_experts SETS baseline avx2 LABELS cpu)
# Both against PyTorch's own operations, and stored formats against bitsandbytes.
sluice_test(test_kernels_pytorch LIBS sluice_kernels sluice_kernels_reference PkgConfig::JANSSON
            LABELS cpu debug)
sluice_test(test_kernels_stored LIBS sluice_kernels sluice_kernels_reference PkgConfig::JANSSON
            LABELS cpu debug)
sluice_isa_test(test_kernels_stored SETS baseline avx2 LABELS cpu)
foreach(name test_kernels_pytorch test_kernels_stored)
    target_compile_definitions(${name} PRIVATE
                               FIXTURE_DIR="${CMAKE_CURRENT_SOURCE_DIR}/reference")
endforeach()
