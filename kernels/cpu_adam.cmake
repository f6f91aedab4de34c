# Adam, working copies and gradient close: one loop body per instruction set, by flags per file.
add_library(kernels_adam OBJECT cpu/optimizer/adam.c cpu/optimizer/adam_reference.c
    cpu/optimizer/adam_state.c cpu/optimizer/adam_state_reference.c)
target_link_libraries(kernels_adam PUBLIC sluice_options sluice_base OpenMP::OpenMP_C)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    target_sources(kernels_adam PRIVATE cpu/optimizer/adam_avx2.c cpu/optimizer/adam_avx512.c)
    set_source_files_properties(cpu/optimizer/adam_avx2.c PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c")
    set_source_files_properties(cpu/optimizer/adam_avx512.c PROPERTIES COMPILE_OPTIONS
        "-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mfma;-mf16c")
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
    target_sources(kernels_adam PRIVATE cpu/optimizer/adam_neon.c)
endif()
