# The models: shapes, gradients, determinism, and the loss curve of PyTorch.
sluice_test(test_model_shapes LIBS sluice_model LABELS cpu debug)
sluice_test(test_model_parts LIBS sluice_model LABELS cpu debug TIMEOUT 120)

set(model_families gpt2 llama qwen2 qwen3 starcoder2 phi phi3 gemma olmo2 exaone4 granite smollm3 phi3-long
                   llama-yarn llama-ntk glm glm4 gpt_neox gpt_neox-serial opt cohere stablelm
                   stablelm-parallel mistral gemma2 gemma3 deepseek deepseek-direct sinks)
set(all_families ${model_families} bert)
set(model_mixtures mixtral qwen2_moe qwen3_moe olmoe gpt_oss deepseek-moe glm4_moe)
# Each form of a block once: what families differ in otherwise changes neither parts nor costs.
set(model_forms gpt2 llama qwen3 phi phi3 olmo2 granite glm4 gpt_neox opt cohere stablelm gemma2 gemma3
                bert gpt2-dropout llama-dropout bert-dropout sinks)
set(model_dropouts gpt2-dropout llama-dropout starcoder2-dropout phi3-dropout phi-dropout
                   gpt_neox-dropout bert-dropout)
sluice_test(test_model_gradients LIBS sluice_model sluice_kernels_reference LABELS cpu
            INSTANCES ${all_families} ${model_mixtures} gpt2-erf ${model_dropouts})
sluice_test(test_model_experts LIBS sluice_model sluice_kernels_reference LABELS cpu debug)
sluice_test(test_model_lora_experts LIBS sluice_model sluice_kernels_reference LABELS cpu debug)
sluice_test(test_model_costs LIBS sluice_model sluice_kernels_reference LABELS cpu
            INSTANCES ${model_forms} SLOW bert-dropout gemma2 gpt2-dropout granite opt phi3 qwen3 stablelm)
sluice_test(test_model_dropout LIBS sluice_model sluice_kernels_reference LABELS cpu debug
            INSTANCES ${model_dropouts})
sluice_test(test_model_learn LIBS sluice_model sluice_kernels_reference LABELS cpu
            INSTANCES gpt2 llama qwen3 olmo2 granite bert gpt_neox opt cohere gemma3 sinks
            SLOW qwen3 granite gpt_neox opt sinks)
# ASan looks at memory. It runs a family for each layout of tensors and each kind of attention.
sluice_test(test_model_lora LIBS sluice_model sluice_kernels_reference LABELS cpu
            INSTANCES gpt2 llama qwen3 olmo2 granite bert gpt_neox opt cohere gemma3 deepseek sinks
            DEBUG gpt2 llama gpt_neox deepseek)
sluice_test(test_model_packed LIBS sluice_model sluice_kernels_reference LABELS cpu
            INSTANCES llama bert qwen2_moe DEBUG qwen2_moe)
sluice_test(test_model_cut LIBS sluice_model sluice_kernels_reference LABELS cpu
            INSTANCES ${model_forms} deepseek mixtral qwen2_moe gpt_oss deepseek-moe gpt2-long
            # their rows are those of others in another order, or with other numbers
            SLOW bert-dropout deepseek gemma2 glm4 gpt2-long granite olmo2 opt phi3 qwen2_moe qwen3 sinks)
sluice_test(test_model_cache LIBS sluice_model sluice_kernels_reference LABELS cpu
            INSTANCES ${model_families} mixtral qwen2_moe gpt_oss deepseek-moe gpt2-long
            DEBUG gpt2 llama gpt_neox glm4 gemma3 deepseek-moe sinks qwen2_moe gpt2-long)
sluice_test(test_model_documents LIBS sluice_model sluice_kernels_reference LABELS cpu
            INSTANCES gpt2 llama gpt2-long qwen2 qwen3 gemma olmo2 llama-yarn glm4 bert gpt_neox
                      opt mistral gemma2 gemma3
            DEBUG gpt2-long llama bert gemma3)
sluice_test(test_model_window LIBS sluice_model sluice_kernels_reference LABELS cpu debug
            INSTANCES gpt2 llama)
sluice_test(test_model_pytorch
            LIBS sluice_model sluice_kernels_reference PkgConfig::JANSSON LABELS cpu
            INSTANCES gpt2-tied gpt2-untied llama-tied llama-untied)
target_compile_definitions(test_model_pytorch PRIVATE
                           FIXTURE_DIR="${CMAKE_CURRENT_SOURCE_DIR}/reference")
foreach(test test_model_gradients test_model_experts test_model_learn test_model_lora test_model_packed test_model_cut test_model_pytorch
        test_model_cache test_model_documents test_model_window)
    target_link_libraries(${test} PRIVATE sluice_kernels)
    target_compile_definitions(${test} PRIVATE HAVE_KERNELS_CPU)
endforeach()
# avx512 and avx512_bf16 differ from each other and from the best set in products and attention of 16 bits
# alone: what computes in fp32 runs in avx2, and what costs much in the two ends.
set(model_sets avx2 avx512 avx512_bf16)
sluice_isa_test(test_model_gradients SETS ${model_sets} LABELS cpu
                INSTANCES gpt2 llama)
sluice_isa_test(test_model_experts SETS ${model_sets} LABELS cpu)
sluice_isa_test(test_model_learn SETS ${model_sets} LABELS cpu INSTANCES llama)
sluice_isa_test(test_model_lora SETS ${model_sets} LABELS cpu INSTANCES llama)
sluice_isa_test(test_model_cut SETS avx2 avx512_bf16 LABELS cpu INSTANCES llama)
sluice_isa_test(test_model_cache SETS ${model_sets} LABELS cpu
                INSTANCES gpt2 llama gpt2-long)
sluice_isa_test(test_model_documents SETS avx2 LABELS cpu INSTANCES gpt2 qwen3)
sluice_isa_test(test_model_pytorch SETS avx2 avx512_bf16 LABELS cpu INSTANCES gpt2-tied)
