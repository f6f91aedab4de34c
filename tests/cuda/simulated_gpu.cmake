# The simulated GPU (simulated_gpu/): the files of the CUDA backend, compiled by the host compiler and
# linked with a stand-in for CUDA's runtime that runs kernels on the CPU; and the tests that run on it
# and, where CUDA is found, on a real GPU.
#
#   sluice_gpu_test(NAME [INSTANCES ...] [PARTS ...] [LIBS ...] [SOURCES ...] [TIMEOUT n] [LABELS ...]
#                   [WHOLE] [SIMULATED_ONLY])
#
# builds NAME.c (or SOURCES) twice: NAME_simulated, in CTest NAME.simulated[.INSTANCE], label cpu; and
# NAME with the real backend, NAME[.INSTANCE], label gpu, which exits with 77 if there is no GPU.
# PARTS names the parts of the backend that the test needs (base rows update matmul attention backend
# device); without PARTS it gets all. WHOLE is for tests that link sluice_profile or another library that
# holds the backend itself: the simulated objects then stand on the link line, before any library.
# Where CUDA is found, the target gpu_programs builds all programs that run on a real GPU, and gpu_tests.txt
# in the build folder has a line "program argument" for each CTest line of label gpu: perf/gpu/gpu.sh runs them
# on machines that have a GPU and no CMake.
# Fibers and sanitizers do not mix: with SLUICE_SANITIZE nothing of this is built.

if(SLUICE_SANITIZE)
    function(sluice_gpu_test NAME)
    endfunction()
    return()
endif()

enable_language(CXX)
set(simulated_dir ${CMAKE_CURRENT_SOURCE_DIR}/simulated_gpu)
# Static memory is for tests alone. "#pragma unroll" is nvcc's; alignment is checked by trapping code.
add_library(simulated_options INTERFACE)
target_include_directories(simulated_options BEFORE INTERFACE
    ${simulated_dir}/include ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src)
target_compile_definitions(simulated_options INTERFACE SLUICE_SIMULATED_GPU)
target_compile_options(simulated_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-std=gnu++17 -O2 -Wall -Wextra -Wno-unknown-pragmas
    -Wno-unused-function -fno-exceptions -fno-rtti -ffp-contract=off -fno-math-errno
    -fno-trapping-math -ftls-model=initial-exec -U_FORTIFY_SOURCE
    -fsanitize=alignment -fsanitize-undefined-trap-on-error
    $<$<BOOL:${SLUICE_WERROR}>:-Werror>>)
target_link_libraries(simulated_options INTERFACE sluice_options)

# simulated_part(NAME KIND SOURCES... [DEPENDS ...]): .cu files are C++ here.
function(simulated_part NAME KIND)
    cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
    foreach(source ${ARG_SOURCES})
        if(source MATCHES "\\.cu$")
            set_source_files_properties(${source} PROPERTIES LANGUAGE CXX)
        endif()
    endforeach()
    add_library(${NAME} ${KIND} ${ARG_SOURCES})
    target_link_libraries(${NAME} PUBLIC simulated_options ${ARG_DEPENDS} sluice_base)
endfunction()

# cublaslt.c also finds cuBLASLt's stand-in, in the place of dlopen.
file(GLOB simulated_sources CONFIGURE_DEPENDS ${simulated_dir}/*.cc)
file(GLOB simulated_cublaslt CONFIGURE_DEPENDS ${simulated_dir}/*.c ${simulated_dir}/cublaslt*.cc)
list(FILTER simulated_sources EXCLUDE REGEX "/cublaslt[^/]*$")
simulated_part(gpu_simulated_runtime STATIC SOURCES ${simulated_sources})

# The backend's files by part: the beginning of a file's name. cuDNN is absent here.
get_property(cuda_sources GLOBAL PROPERTY SLUICE_KERNELS_CUDA_SOURCES)
list(FILTER cuda_sources EXCLUDE REGEX "/library\\.c$")
list(FILTER cuda_sources EXCLUDE REGEX "cudnn")
foreach(source ${PROJECT_SOURCE_DIR}/kernels/cuda/attention/attention_cudnn_absent.c
        ${PROJECT_SOURCE_DIR}/tiers/device_cuda.c ${PROJECT_SOURCE_DIR}/tiers/device_graph.c)
    if(EXISTS ${source})
        list(APPEND cuda_sources ${source})
    endif()
endforeach()
set(simulated_sources_matmul ${simulated_cublaslt})
foreach(source ${cuda_sources})
    get_filename_component(name ${source} NAME_WE)
    string(REGEX MATCH "^[a-z]+" part ${name})
    if(part STREQUAL "context")
        set(part base)
    elseif(part STREQUAL "cublas")
        set(part matmul)
    endif()
    list(APPEND simulated_sources_${part} ${source})
endforeach()
set(simulated_parts base rows update matmul attention device)
foreach(part ${simulated_parts})
    if(simulated_sources_${part})
        set(depends gpu_simulated_runtime)
        if(NOT part STREQUAL base)
            list(PREPEND depends gpu_simulated_base)
        endif()
        simulated_part(gpu_simulated_${part} STATIC SOURCES ${simulated_sources_${part}}
                       DEPENDS ${depends})
        list(APPEND simulated_libs gpu_simulated_${part})
    endif()
endforeach()
if(simulated_sources_backend)
    simulated_part(gpu_simulated_backend STATIC SOURCES ${simulated_sources_backend}
                   DEPENDS ${simulated_libs})
endif()
set(simulated_objects "") # for programs that link the real backend too
foreach(library gpu_simulated_runtime ${simulated_libs} gpu_simulated_backend)
    list(APPEND simulated_objects $<TARGET_OBJECTS:${library}>)
endforeach()

# The fixture, once for each kind of GPU.
simulated_part(gpu_fixture_simulated STATIC SOURCES cuda/gpu_fixture.c DEPENDS PkgConfig::CMOCKA)
if(SLUICE_CUDA_FOUND)
    add_library(gpu_fixture STATIC cuda/gpu_fixture.c)
    target_link_libraries(gpu_fixture PUBLIC sluice_options sluice_base PkgConfig::CMOCKA
                          CUDA::cudart_static)
endif()

if(SLUICE_CUDA_FOUND AND KERNELS_GPU STREQUAL "kernels_cuda")
    add_custom_target(gpu_programs)
    file(GENERATE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/gpu_tests.txt
         CONTENT "$<JOIN:$<TARGET_PROPERTY:gpu_programs,GPU_TEST_LINES>,\n>\n")
endif()

function(sluice_gpu_test NAME)
    cmake_parse_arguments(ARG "WHOLE;SIMULATED_ONLY" "TIMEOUT"
                          "INSTANCES;PARTS;LIBS;SOURCES;LABELS" ${ARGN})
    if(NOT ARG_TIMEOUT)
        set(ARG_TIMEOUT 120)
    endif()
    if(NOT ARG_SOURCES)
        find_test_source(ARG_SOURCES ${NAME})
    endif()
    if(ARG_WHOLE)
        add_executable(${NAME}_simulated ${ARG_SOURCES} ${simulated_objects})
        set(parts "")
    else()
        add_executable(${NAME}_simulated ${ARG_SOURCES})
        set(parts "")
        if(ARG_PARTS)
            foreach(part ${ARG_PARTS})
                list(APPEND parts gpu_simulated_${part})
            endforeach()
        else()
            list(APPEND parts gpu_simulated_backend)
        endif()
    endif()
    if(NOT ARG_WHOLE) # after all that calls it, LIBS too, and before CUDA's own
        list(APPEND parts gpu_simulated_runtime)
    endif()
    target_link_libraries(${NAME}_simulated PRIVATE gpu_fixture_simulated ${ARG_LIBS} ${parts}
                          simulated_options PkgConfig::CMOCKA)
    target_include_directories(${NAME}_simulated BEFORE PRIVATE ${simulated_dir}/include)
    set_target_properties(${NAME}_simulated PROPERTIES LINKER_LANGUAGE CXX)
    instance_lines(${NAME}.simulated COMMAND ${NAME}_simulated INSTANCES ${ARG_INSTANCES}
                   LABELS cpu ${ARG_LABELS} TIMEOUT ${ARG_TIMEOUT})
    if(TARGET gpu_programs AND NOT ARG_SIMULATED_ONLY)
        add_executable(${NAME} ${ARG_SOURCES})
        target_link_libraries(${NAME} PRIVATE gpu_fixture ${ARG_LIBS} sluice_tiers sluice_kernels
                              sluice_options PkgConfig::CMOCKA)
        instance_lines(${NAME} COMMAND ${NAME} INSTANCES ${ARG_INSTANCES} LABELS gpu ${ARG_LABELS} TIMEOUT ${ARG_TIMEOUT})
        set(lines ${NAME})
        if(ARG_INSTANCES)
            list(TRANSFORM ARG_INSTANCES PREPEND "${NAME} " OUTPUT_VARIABLE lines)
        endif()
        set_property(TARGET gpu_programs APPEND PROPERTY GPU_TEST_LINES ${lines})
        add_dependencies(gpu_programs ${NAME})
    endif()
endfunction()
