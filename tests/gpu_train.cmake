# Whole runs on a GPU. Under simulation delays are short: a step has thousands of pieces of work.
if(TARGET train_fixture AND NOT SLUICE_SANITIZE)
    set(gpu_runs curve-gpt2-fp32 curve-gpt2-bf16 curve-llama-bf16-untied curve-llama-fp32
        curve-gpt2-fp16 curve-llama-bf16-cut-lion placed-gpt2-bf16 placed-llama-fp16-untied
        placed-gpt2-fp32-cut-adagrad rest-bf16)
    sluice_gpu_test(test_gpu_train WHOLE LIBS train_fixture TIMEOUT 300 INSTANCES ${gpu_runs})
    sluice_gpu_test(test_gpu_engine WHOLE SIMULATED_ONLY LIBS train_fixture)
    list(TRANSFORM gpu_runs PREPEND test_gpu_train.simulated. OUTPUT_VARIABLE gpu_run_tests)
    set_property(TEST ${gpu_run_tests} test_gpu_engine.simulated APPEND PROPERTY
                 ENVIRONMENT SLUICE_SIMULATED_GPU_DELAY_US=10)
endif()
