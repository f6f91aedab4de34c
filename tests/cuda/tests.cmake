# Our fused attention against the definition, one test for each operand type; and the choice of the attention
# for a shape, with a stand-in for cuDNN.
sluice_gpu_test(test_gpu_attention PARTS base attention INSTANCES fp32 bf16 fp16
                SOURCES cuda/test_gpu_attention.c kernels/attention_truth.c)
sluice_gpu_test(test_gpu_cached PARTS base attention LIBS sluice_kernels_reference)
sluice_gpu_test(test_gpu_attention_choice PARTS base attention SIMULATED_ONLY)
if(TARGET test_gpu_attention_choice_simulated)
    target_include_directories(test_gpu_attention_choice_simulated
                               PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/simulated_gpu)
endif()

# perf/gpu/bench_gpu.py makes its table with a sluice whose GPU is simulated.
if(NOT SLUICE_SANITIZE)
    get_target_property(cli_sources sluice SOURCES)
    list(TRANSFORM cli_sources PREPEND ${PROJECT_SOURCE_DIR}/src/cli/)
    add_executable(sluice_simulated ${cli_sources} ${simulated_objects})
    target_link_libraries(sluice_simulated PRIVATE $<TARGET_PROPERTY:sluice,LINK_LIBRARIES> simulated_options)
    set_target_properties(sluice_simulated PROPERTIES LINKER_LANGUAGE CXX)
    test_line(bench_gpu.simulated COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_perf.sh gpu
              ${PROJECT_SOURCE_DIR} $<TARGET_FILE:sluice_simulated>
              LABELS cpu TIMEOUT 120 ENVIRONMENT SLUICE_SIMULATED_GPU_DELAY_US=10)
endif()

# Collectives of several ranks by NCCL: on the simulated GPU with a stand-in for NCCL (fake_nccl), on a real GPU
# with the installed NCCL. The stand-in is compiled with CUDA's own headers, like its caller.
if(SLUICE_NCCL_FOUND AND NOT SLUICE_SANITIZE)
    add_library(fake_nccl OBJECT fake_nccl/fake_nccl.c)
    target_link_libraries(fake_nccl PUBLIC sluice_options)
    target_include_directories(fake_nccl SYSTEM PRIVATE ${NCCL_INCLUDE_DIR}
                               ${CUDAToolkit_INCLUDE_DIRS})
    sluice_gpu_test(test_comm_nccl WHOLE LIBS comm_fixture sluice_comm INSTANCES one ranks failures
                    TIMEOUT 60)
    target_sources(test_comm_nccl_simulated PRIVATE $<TARGET_OBJECTS:fake_nccl>)
endif()

# The installed NCCL loads with all entry points and its version, or the error says why not.
sluice_test(test_comm_nccl_library LIBS sluice_comm LABELS cpu)

# cuDNN's attention on a GPU, or its absence on the simulated one. If cuDNN's header is there, two tests need
# no GPU: its graphs on a stand-in that computes them, and its plans by the installed cuDNN.
sluice_gpu_test(test_gpu_cudnn PARTS base attention LIBS sluice_kernels_reference)

get_property(cudnn_sources GLOBAL PROPERTY SLUICE_KERNELS_CUDNN_SOURCES)
if(cudnn_sources)
    add_library(cudnn_under_test OBJECT ${cudnn_sources})
    target_link_libraries(cudnn_under_test PUBLIC sluice_options sluice_base)
    target_include_directories(cudnn_under_test PUBLIC ${CUDNN_INCLUDE_DIR}
                               ${CUDAToolkit_INCLUDE_DIRS})

    add_library(fake_cudnn OBJECT fake_cudnn/fake_library.c fake_cudnn/fake_run.c)
    target_link_libraries(fake_cudnn PUBLIC sluice_options cudnn_under_test)
    add_executable(test_cudnn_graphs cuda/test_cudnn_graphs.c $<TARGET_OBJECTS:fake_cudnn>
                   $<TARGET_OBJECTS:cudnn_under_test>)
    target_link_libraries(test_cudnn_graphs PRIVATE sluice_kernels_reference fake_cudnn
                          PkgConfig::CMOCKA)
    test_line(test_cudnn_graphs COMMAND test_cudnn_graphs LABELS cpu)

    if(NOT SLUICE_SANITIZE) # the library is not ours
        add_library(fake_driver MODULE fake_cudnn/fake_driver.c)
        target_link_libraries(fake_driver PRIVATE sluice_options)
        target_link_options(fake_driver PRIVATE -Wl,-soname,libcuda.so.1)
        add_executable(test_cudnn_plans cuda/test_cudnn_plans.c
                       ${PROJECT_SOURCE_DIR}/kernels/cuda/library.c
                       $<TARGET_OBJECTS:cudnn_under_test>)
        target_compile_definitions(test_cudnn_plans PRIVATE
                                   FAKE_DRIVER="$<TARGET_FILE:fake_driver>")
        target_link_libraries(test_cudnn_plans PRIVATE cudnn_under_test PkgConfig::CMOCKA
                              ${CMAKE_DL_LIBS})
        add_dependencies(test_cudnn_plans fake_driver)
        foreach(gpu sm80 sm90)
            test_line(test_cudnn_plans.${gpu} COMMAND test_cudnn_plans ${gpu} LABELS cpu TIMEOUT 120)
        endforeach()
    endif()
endif()

# The CUDA backend's embedding; test_gpu_embedding_large has more than 2^31 elements.
sluice_gpu_test(test_gpu_embedding PARTS rows LIBS sluice_kernels_reference)
sluice_gpu_test(test_gpu_embedding_large PARTS rows)

# The CUDA backend's softmax cross-entropy.
sluice_gpu_test(test_gpu_loss PARTS rows LIBS sluice_kernels_reference)
sluice_gpu_test(test_gpu_loss_stride PARTS rows LIBS sluice_kernels_reference)

# Matrix products of the CUDA backend; the loading of libraries needs no GPU and no CUDA.
sluice_gpu_test(test_gpu_matmul PARTS matmul TIMEOUT 300)
sluice_gpu_test(test_gpu_matmul_library PARTS matmul SIMULATED_ONLY)
add_library(kernels_cuda_library OBJECT ${PROJECT_SOURCE_DIR}/kernels/cuda/library.c)
target_link_libraries(kernels_cuda_library PUBLIC sluice_options sluice_base ${CMAKE_DL_LIBS})
sluice_test(test_kernels_library LIBS kernels_cuda_library LABELS cpu)
# The program starts on a machine without CUDA: it needs none of CUDA's libraries.
test_line(cuda_is_not_linked COMMAND sh -c "ldd $1 >/dev/null && ! ldd $1 | grep -E 'libcu|libnv|libnccl'" sh
          $<TARGET_FILE:sluice> LABELS cpu)

# nvcc must not split accesses of whole packs. No result of a test can show this.
if(SLUICE_CUDA_FOUND)
    test_line(cuda_packs COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_packs.sh ${CMAKE_CUDA_COMPILER}
              ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_BINARY_DIR} LABELS cpu TIMEOUT 120)
endif()

# The dense row ops of the CUDA backend (norms, bias gradients, rope, activations, add, convert, zero)
# against the reference backend.
sluice_gpu_test(test_gpu_rows PARTS base rows LIBS sluice_kernels_reference
                INSTANCES norm_forward norm_backward head_norm sums)
sluice_gpu_test(test_gpu_rows_point PARTS base rows LIBS sluice_kernels_reference
                INSTANCES activation rope point heads)
sluice_gpu_test(test_gpu_experts PARTS base rows LIBS sluice_kernels_reference
                INSTANCES router sums sort rows)
sluice_gpu_test(test_gpu_read_back PARTS base rows)
sluice_gpu_test(test_gpu_stored PARTS base rows LIBS sluice_kernels_reference)
sluice_gpu_test(test_gpu_rows_large PARTS base rows LIBS sluice_kernels_reference
                INSTANCES norm sums activation rope point)

# The simulated GPU itself: kernels, matrix instructions, the runtime.
foreach(name test_gpu_simulation test_gpu_simulation_matrix)
    sluice_gpu_test(${name} SOURCES cuda/${name}.cc PARTS base SIMULATED_ONLY TIMEOUT 60)
endforeach()
sluice_gpu_test(test_gpu_simulation_runtime PARTS base SIMULATED_ONLY TIMEOUT 60)
# Shared by the tests of the GPU.
sluice_gpu_test(test_gpu_fixture PARTS base SIMULATED_ONLY TIMEOUT 60)

# The optimizers, gradient close and norm of the CUDA backend against the CPU's, to the bit.
sluice_gpu_test(test_gpu_update SOURCES cuda/test_gpu_update.c cuda/gpu_update_sums.c
                cuda/gpu_update_state.c cuda/gpu_update_cpu.c
                PARTS base update LIBS kernels_adam
                INSTANCES adam lion adagrad packed copy close norm)
