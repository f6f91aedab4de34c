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

# perf/bench_gpu has few checks of its own. On the simulated GPU it must get as far as its table.
if(TARGET sluice_profile AND NOT SLUICE_SANITIZE)
    add_executable(bench_gpu_simulated ${PROJECT_SOURCE_DIR}/perf/gpu/bench_gpu.c
                   $<TARGET_OBJECTS:gpu_simulated_objects>)
    target_link_libraries(bench_gpu_simulated PRIVATE sluice_profile simulated_options)
    target_include_directories(bench_gpu_simulated BEFORE
                               PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/simulated_gpu/include)
    set_target_properties(bench_gpu_simulated PROPERTIES LINKER_LANGUAGE CXX)
    add_test(NAME bench_gpu.simulated COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_perf.sh gpu
             $<TARGET_FILE:bench_gpu_simulated> ${PROJECT_SOURCE_DIR}/perf/gpu/quick.json)
    set_tests_properties(bench_gpu.simulated PROPERTIES LABELS cpu TIMEOUT 120
                         ENVIRONMENT "OMP_WAIT_POLICY=passive;SLUICE_SIMULATED_GPU_DELAY_US=10")
endif()

# Collectives of several ranks by NCCL: on the simulated GPU with a stand-in for NCCL (fake_nccl), on a real GPU
# with the installed NCCL. The stand-in is compiled with CUDA's own headers, like its caller.
if(SLUICE_NCCL_FOUND AND TARGET comm_fixture AND NOT SLUICE_SANITIZE)
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
if(TARGET sluice_kernels_reference)
    sluice_gpu_test(test_gpu_cudnn PARTS base attention LIBS sluice_kernels_reference)
endif()

get_property(cudnn_sources GLOBAL PROPERTY SLUICE_KERNELS_CUDNN_SOURCES)
if(cudnn_sources AND TARGET sluice_kernels_reference)
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
    add_test(NAME test_cudnn_graphs COMMAND test_cudnn_graphs)
    set_tests_properties(test_cudnn_graphs PROPERTIES LABELS cpu TIMEOUT 60)

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
            add_test(NAME test_cudnn_plans.${gpu} COMMAND test_cudnn_plans ${gpu})
            set_tests_properties(test_cudnn_plans.${gpu} PROPERTIES LABELS cpu TIMEOUT 120
                                 SKIP_RETURN_CODE 77)
        endforeach()
    endif()
endif()

# The GPU as a tier.
sluice_gpu_test(test_gpu_device PARTS device LIBS sluice_base TIMEOUT 60)

# The CUDA backend's embedding; test_gpu_embedding_large has more than 2^31 elements.
if(TARGET sluice_kernels_reference)
    sluice_gpu_test(test_gpu_embedding PARTS rows LIBS sluice_kernels_reference)
endif()
sluice_gpu_test(test_gpu_embedding_large PARTS rows)

# The lanes of a GPU, under the executor. The simulated runtime is linked after its callers and before CUDA's.
sluice_gpu_test(test_gpu_lanes SOURCES cuda/test_gpu_lanes.c cuda/gpu_lanes_rig.c PARTS device runtime
                LIBS swap_fixture sluice_swap sluice_executor sluice_program sluice_base
                INSTANCES order refusals clock faults TIMEOUT 60)
if(TARGET test_gpu_lanes)
    target_sources(test_gpu_lanes PRIVATE cuda/gpu_lanes_break.cu)
endif()
# The comm lane of a GPU: a watched stream, or a worker of the host.
sluice_gpu_test(test_gpu_lanes_comm SOURCES cuda/test_gpu_lanes_comm.c cuda/gpu_lanes_rig.c PARTS device runtime
                LIBS swap_fixture sluice_swap sluice_executor sluice_program sluice_base TIMEOUT 60)
if(TARGET test_gpu_lanes_comm) # gpu_rig_break, which this test does not call
    target_sources(test_gpu_lanes_comm PRIVATE cuda/gpu_lanes_break.cu)
endif()

# The CUDA backend's softmax cross-entropy.
if(TARGET sluice_kernels_reference)
    sluice_gpu_test(test_gpu_loss PARTS rows LIBS sluice_kernels_reference)
    sluice_gpu_test(test_gpu_loss_stride PARTS rows LIBS sluice_kernels_reference)
endif()

# Matrix products of the CUDA backend; the loading of libraries needs no GPU and no CUDA.
sluice_gpu_test(test_gpu_matmul PARTS matmul TIMEOUT 300)
sluice_gpu_test(test_gpu_matmul_library PARTS matmul SIMULATED_ONLY)
add_library(kernels_cuda_library OBJECT ${PROJECT_SOURCE_DIR}/kernels/cuda/library.c)
target_link_libraries(kernels_cuda_library PUBLIC sluice_options sluice_base ${CMAKE_DL_LIBS})
sluice_test(test_kernels_library LIBS kernels_cuda_library LABELS cpu)
# The program starts on a machine without CUDA: it needs none of CUDA's libraries.
if(TARGET sluice)
    add_test(NAME cuda_is_not_linked COMMAND sh -c
             "ldd $1 >/dev/null && ! ldd $1 | grep -E 'libcu|libnv|libnccl'" sh $<TARGET_FILE:sluice>)
    set_tests_properties(cuda_is_not_linked PROPERTIES LABELS cpu TIMEOUT 60)
endif()

# nvcc must not split accesses of whole packs. No result of a test can show this.
if(SLUICE_CUDA_FOUND)
    add_test(NAME cuda_packs COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_packs.sh
             ${CMAKE_CUDA_COMPILER} ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_BINARY_DIR})
    set_tests_properties(cuda_packs PROPERTIES LABELS cpu TIMEOUT 120)
endif()

# Several ranks on a GPU through the whole engine, as forked processes; on NCCL if it was compiled, with its
# stand-in on the simulated GPU. Several ranks on NCCL need one GPU each, so `nccl` runs on the simulated GPU
# alone.
if(TARGET train_fixture AND TARGET comm_fixture AND NOT SLUICE_SANITIZE)
    sluice_gpu_test(test_gpu_ranks WHOLE SOURCES cuda/test_gpu_ranks.c cuda/gpu_ranks_owned.c cuda/gpu_ranks_rig.c
                    LIBS train_fixture comm_fixture TIMEOUT 300
                    INSTANCES stages owned placements one-on-nccl killed sampled memory)
    gpu_test_lines(test_gpu_ranks_simulated test_gpu_ranks.simulated cpu 300 broken)
    if(TARGET fake_nccl)
        target_sources(test_gpu_ranks_simulated PRIVATE $<TARGET_OBJECTS:fake_nccl>)
        target_compile_definitions(test_gpu_ranks_simulated PRIVATE GPU_RANKS_FAKE_NCCL)
        gpu_test_lines(test_gpu_ranks_simulated test_gpu_ranks.simulated cpu 300 nccl owned-nccl)
    endif()
    get_property(gpu_ranks_tests DIRECTORY PROPERTY TESTS)
    list(FILTER gpu_ranks_tests INCLUDE REGEX "^test_gpu_ranks\\.simulated")
    set_property(TEST ${gpu_ranks_tests} APPEND PROPERTY ENVIRONMENT
                 SLUICE_SIMULATED_GPU_DELAY_US=10)
endif()

# The dense row ops of the CUDA backend (norms, bias gradients, rope, activations, add, convert, zero)
# against the reference backend.
if(TARGET sluice_kernels_reference)
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
endif()

# The simulated GPU itself: kernels, matrix instructions, the runtime.
foreach(name test_gpu_simulation test_gpu_simulation_matrix)
    sluice_gpu_test(${name} SOURCES cuda/${name}.cc PARTS base SIMULATED_ONLY TIMEOUT 60)
endforeach()
sluice_gpu_test(test_gpu_simulation_runtime PARTS base SIMULATED_ONLY TIMEOUT 60)
# Shared by the tests of the GPU.
sluice_gpu_test(test_gpu_fixture PARTS base SIMULATED_ONLY TIMEOUT 60)

# Collectives of ranks that share a GPU, through host memory.
if(TARGET comm_fixture)
    sluice_gpu_test(test_gpu_staged WHOLE LIBS comm_fixture TIMEOUT 60)
endif()

# Whole runs on a GPU. Under simulation delays are short: a step has thousands of pieces of work.
if(TARGET train_fixture AND NOT SLUICE_SANITIZE)
    set(gpu_runs curve-gpt2-fp32 curve-gpt2-bf16 curve-llama-bf16-untied curve-llama-fp32
        curve-gpt2-fp16 curve-llama-bf16-cut-lion placed-gpt2-bf16 placed-llama-fp16-untied
        placed-gpt2-fp32-cut-adagrad curve-moe-bf16 placed-moe-fp32 rest-bf16)
    sluice_gpu_test(test_gpu_train WHOLE LIBS train_fixture TIMEOUT 300 INSTANCES ${gpu_runs})
    sluice_gpu_test(test_gpu_engine WHOLE SIMULATED_ONLY LIBS train_fixture)
    sluice_gpu_test(test_gpu_commit WHOLE LIBS train_fixture)

    # The CPU's test of every mode of a step, its jobs on the GPU.
    set(gpu_modes gpt2-fp16-cut llama-bf16 gpt2-bf16-unclipped llama-fp32-adagrad bert-bf16-cut)
    sluice_gpu_test(test_gpu_modes WHOLE SOURCES train/test_train_modes.c LIBS train_fixture TIMEOUT 300
                    INSTANCES ${gpu_modes})
    # The same for models with units that do not learn.
    sluice_gpu_test(test_gpu_frozen WHOLE SOURCES train/test_train_frozen.c LIBS train_fixture comm_fixture
                    TIMEOUT 300)
    # More of the same: on a GPU they take seconds.
    set_property(TEST test_gpu_train.simulated.placed-gpt2-bf16 test_gpu_train.simulated.placed-gpt2-fp32-cut-adagrad
                 test_gpu_modes.simulated.gpt2-bf16-unclipped test_gpu_modes.simulated.llama-fp32-adagrad
                 test_gpu_modes.simulated.bert-bf16-cut APPEND PROPERTY LABELS slow)
    get_property(gpu_run_tests DIRECTORY PROPERTY TESTS)
    set(on_a_gpu ${gpu_run_tests})
    list(FILTER on_a_gpu INCLUDE REGEX "^test_gpu_(commit$|frozen|modes\\.)")
    list(FILTER gpu_run_tests INCLUDE REGEX "^test_gpu_(train|engine|commit|modes|frozen)\\.simulated")
    set_property(TEST ${on_a_gpu} APPEND PROPERTY ENVIRONMENT SLUICE_TEST_BACKEND=cuda)
    set_property(TEST ${gpu_run_tests} APPEND PROPERTY ENVIRONMENT SLUICE_SIMULATED_GPU_DELAY_US=10
                 SLUICE_TEST_FEW=1)
endif()

# The optimizers, gradient close and norm of the CUDA backend against the CPU's, to the bit.
if(TARGET kernels_adam)
    sluice_gpu_test(test_gpu_update SOURCES cuda/test_gpu_update.c cuda/gpu_update_sums.c
                    cuda/gpu_update_state.c cuda/gpu_update_cpu.c
                    PARTS base update LIBS kernels_adam
                    INSTANCES adam lion adagrad packed copy close norm)
endif()
