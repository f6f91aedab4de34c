# One CTest line per variant of this processor's kind; a CPU without its instructions skips it.
set(adam_variants reference avx2 avx512)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
    set(adam_variants reference neon)
endif()
if(TARGET kernels_adam)
    sluice_test(test_kernels_adam LIBS kernels_adam LABELS cpu debug INSTANCES ${adam_variants})
    sluice_test(test_kernels_adam_state LIBS kernels_adam LABELS cpu debug INSTANCES ${adam_variants})
endif()
if(TARGET kernels_adam AND TARGET sluice_kernels_reference)
    sluice_test(test_kernels_adam_rounding LIBS kernels_adam sluice_kernels_reference
                LABELS cpu debug INSTANCES ${adam_variants})
    sluice_test(test_kernels_lion LIBS kernels_adam sluice_kernels_reference LABELS cpu debug
                INSTANCES ${adam_variants})
endif()
# The variant of the other kind of processor, by cross compiler and emulator where they are installed.
if(TARGET kernels_adam AND CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    add_test(NAME slow.neon_adam COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/neon_adam.sh ${PROJECT_SOURCE_DIR})
    set_tests_properties(slow.neon_adam PROPERTIES LABELS "cpu;slow" TIMEOUT 300 SKIP_RETURN_CODE 77)
endif()
