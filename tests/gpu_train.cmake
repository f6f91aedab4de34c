# Whole runs on a GPU. Under simulation delays are short: a step has thousands of pieces of work.
if(TARGET train_fixture AND NOT SLUICE_SANITIZE)
    set(gpu_runs curve-gpt2-fp32 curve-gpt2-bf16 curve-llama-bf16-untied curve-llama-fp32
        curve-gpt2-fp16 curve-llama-bf16-cut-lion placed-gpt2-bf16 placed-llama-fp16-untied
        placed-gpt2-fp32-cut-adagrad rest-bf16)
    sluice_gpu_test(test_gpu_train WHOLE LIBS train_fixture TIMEOUT 300 INSTANCES ${gpu_runs})
    sluice_gpu_test(test_gpu_engine WHOLE SIMULATED_ONLY LIBS train_fixture)
    sluice_gpu_test(test_gpu_commit WHOLE LIBS train_fixture)

    # The CPU's test of every mode of a step, its jobs on the GPU.
    set(gpu_modes gpt2-fp16-cut llama-bf16 gpt2-bf16-unclipped llama-fp32-adagrad)
    sluice_gpu_test(test_gpu_modes WHOLE SOURCES test_train_modes.c LIBS train_fixture TIMEOUT 300
                    INSTANCES ${gpu_modes})
    # Of models of which some units do not learn, likewise.
    sluice_gpu_test(test_gpu_frozen WHOLE SOURCES test_train_frozen.c LIBS train_fixture comm_fixture
                    TIMEOUT 300)
    get_property(gpu_run_tests DIRECTORY PROPERTY TESTS)
    set(on_a_gpu ${gpu_run_tests})
    list(FILTER on_a_gpu INCLUDE REGEX "^test_gpu_(commit$|frozen|modes\\.)")
    list(FILTER gpu_run_tests INCLUDE REGEX "^test_gpu_(train|engine|commit|modes|frozen)\\.simulated")
    set_property(TEST ${on_a_gpu} APPEND PROPERTY ENVIRONMENT SLUICE_TEST_BACKEND=cuda)
    set_property(TEST ${gpu_run_tests} APPEND PROPERTY ENVIRONMENT SLUICE_SIMULATED_GPU_DELAY_US=10
                 SLUICE_TEST_FEW=1)
endif()
