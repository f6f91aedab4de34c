# Our fused attention against the definition, one line per operand type.
sluice_gpu_test(test_gpu_attention PARTS base attention INSTANCES fp32 bf16 fp16
                SOURCES test_gpu_attention.c gpu_attention_truth.c)
