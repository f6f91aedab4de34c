# What runs on a GPU beside the kernels, which tests/cuda tests: the device tier, the lanes, ranks, whole runs.
# The GPU as a tier.
sluice_gpu_test(test_gpu_device PARTS device LIBS sluice_base TIMEOUT 60)

# The lanes of a GPU, under the executor. The simulated runtime is linked after its callers and before CUDA's.
sluice_gpu_test(test_gpu_lanes SOURCES gpu/test_gpu_lanes.c gpu/gpu_lanes_rig.c PARTS device runtime
                LIBS swap_fixture sluice_swap sluice_executor sluice_program sluice_base
                INSTANCES order refusals faults TIMEOUT 60)
# The comm lane: a watched stream, or a worker of the host. The times of ops.
foreach(name test_gpu_lanes_comm test_gpu_lanes_clock)
    sluice_gpu_test(${name} SOURCES gpu/${name}.c gpu/gpu_lanes_rig.c PARTS device runtime
                    LIBS swap_fixture sluice_swap sluice_executor sluice_program sluice_base TIMEOUT 60)
endforeach()
foreach(name test_gpu_lanes test_gpu_lanes_comm test_gpu_lanes_clock) # the rig calls it
    if(TARGET ${name})
        target_sources(${name} PRIVATE gpu/gpu_lanes_break.cu)
    endif()
endforeach()

# Several ranks on a GPU through the whole engine, as forked processes; on NCCL if it was compiled, with its
# stand-in on the simulated GPU. Several ranks on NCCL need one GPU each, so `nccl` runs on the simulated GPU
# alone.
if(NOT SLUICE_SANITIZE)
    sluice_gpu_test(test_gpu_ranks WHOLE SOURCES gpu/test_gpu_ranks.c gpu/gpu_ranks_owned.c gpu/gpu_ranks_rig.c
                    LIBS train_fixture comm_fixture TIMEOUT 300
                    INSTANCES stages owned placements one-on-nccl killed sampled memory)
    instance_lines(test_gpu_ranks.simulated COMMAND test_gpu_ranks_simulated INSTANCES broken LABELS cpu TIMEOUT 300)
    if(TARGET fake_nccl)
        target_sources(test_gpu_ranks_simulated PRIVATE $<TARGET_OBJECTS:fake_nccl>)
        target_compile_definitions(test_gpu_ranks_simulated PRIVATE GPU_RANKS_FAKE_NCCL)
        instance_lines(test_gpu_ranks.simulated COMMAND test_gpu_ranks_simulated INSTANCES nccl owned-nccl
                       LABELS cpu TIMEOUT 300)
    endif()
    get_property(gpu_ranks_tests DIRECTORY PROPERTY TESTS)
    list(FILTER gpu_ranks_tests INCLUDE REGEX "^test_gpu_ranks\\.simulated")
    set_property(TEST ${gpu_ranks_tests} APPEND PROPERTY ENVIRONMENT
                 SLUICE_SIMULATED_GPU_DELAY_US=10)
endif()

# Collectives of ranks that share a GPU, through host memory.
sluice_gpu_test(test_gpu_staged WHOLE LIBS comm_fixture TIMEOUT 60)

# Whole runs on a GPU. Under simulation delays are short: a step has thousands of pieces of work.
if(NOT SLUICE_SANITIZE)
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
