# Evaluation and generation.
sluice_test(test_infer_generate LIBS train_fixture LABELS cpu nvme TIMEOUT 120
            INSTANCES gpt2-bf16-unclipped llama-fp16 gpt2-fp32-untied-cut-unclipped
            llama-bf16-untied gpt2-fp16-cut llama-fp32-cut llama-fp32 mixtral-bf16-untied)
sluice_test(test_infer_sampling LIBS sluice_profile LABELS cpu debug)
sluice_test(test_infer_eval LIBS train_fixture LABELS cpu nvme debug)
sluice_test(test_infer_stream LIBS train_fixture LABELS cpu nvme debug)
