# Our fused attention against the definition, one line per operand type; and which attention a shape gets,
# with a made-up library in the place of cuDNN.
sluice_gpu_test(test_gpu_attention PARTS base attention INSTANCES fp32 bf16 fp16
                SOURCES test_gpu_attention.c gpu_attention_truth.c)
sluice_gpu_test(test_gpu_cached PARTS base attention LIBS sluice_kernels_reference)
sluice_gpu_test(test_gpu_attention_choice PARTS base attention SIMULATED_ONLY)
if(TARGET test_gpu_attention_choice_simulated)
    target_include_directories(test_gpu_attention_choice_simulated
                               PRIVATE ${CMAKE_CURRENT_LIST_DIR}/simulated_gpu)
endif()
