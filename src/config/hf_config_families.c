/* The families whose config.json is read, and what becomes of their keys. Numbers are what
 * transformers assumes if config.json does not say. See hf_config_internal.h. */
#include <string.h>

#include "config/hf_config_internal.h"

static const hfi_family families[] = {
    {"gpt2", "gpt2", "GPT2LMHeadModel", .has_table = true},
    {"bert", "bert", "BertForMaskedLM", .has_table = true},
    {"opt", "opt", "OPTForCausalLM", .has_table = true},
    {"llama", "llama", "LlamaForCausalLM", .positions = 2048},
    {"mistral", "llama", "MistralForCausalLM", .positions = 131072, .kv_heads = 8,
     .windows = {HFI_WINDOWS_EVERYWHERE, 4096, 0}},
    {"qwen2", "llama", "Qwen2ForCausalLM", .positions = 32768, .kv_heads = 32,
     .windows = {HFI_WINDOWS_FROM_ONE_ON, 4096, 28}},
    {"qwen3", "llama", "Qwen3ForCausalLM", .positions = 32768, .kv_heads = 32, .head_dim = 128,
     .windows = {HFI_WINDOWS_FROM_ONE_ON, 4096, 28}},
    {"granite", "llama", "GraniteForCausalLM", .positions = 2048},
    {"smollm3", "llama", "SmolLM3ForCausalLM", .positions = 32768, .kv_heads = 4,
     .rope.theta = 2000000, .has_nope = true, .windows = {HFI_WINDOWS_WITHOUT_ROPE, 0, 0}},
    {"olmo2", "olmo2", "Olmo2ForCausalLM", .positions = 2048},
    {"olmo3", "olmo2", "Olmo3ForCausalLM", .positions = 2048, .rope.theta = 500000,
     .window_theta = 500000, .windows = {HFI_WINDOWS_BUT_EVERY, 4096, 4}},
    {"exaone4", "exaone4", "Exaone4ForCausalLM", .positions = 2048, .kv_heads = 32,
     .windows = {HFI_WINDOWS_WITH_ROPE, 4096, 4}},
    {"phi", "phi", "PhiForCausalLM", .positions = 2048, .rope.share = 0.5},
    {"phi3", "phi3", "Phi3ForCausalLM", .positions = 4096, .rope = {.share = 1, .original = 4096},
     .windows = {HFI_WINDOWS_EVERYWHERE, 0, 0}},
    {"gemma", "gemma", "GemmaForCausalLM", .positions = 8192, .kv_heads = 16, .head_dim = 256,
     .has_scaled_rows = true},
    {"starcoder2", "starcoder2", "Starcoder2ForCausalLM", .positions = 4096, .kv_heads = 2,
     .windows = {HFI_WINDOWS_EVERYWHERE, 0, 0}},
    {"gpt_neox", "gpt_neox", "GPTNeoXForCausalLM", .positions = 2048, .has_plain_heads = true,
     .rope = {.share = 0.25, .theta_key = "rotary_emb_base", .share_key = "rotary_pct"}},
    {"cohere", "cohere", "CohereForCausalLM", .positions = 8192, .rope.theta = 500000},
    {"stablelm", "stablelm", "StableLmForCausalLM", .positions = 4096, .kv_heads = 32,
     .has_plain_heads = true, .rope.share = 0.25},
    {"glm", "glm", "GlmForCausalLM", .positions = 131072, .kv_heads = 2, .head_dim = 128,
     .rope.share = 0.5},
    {"glm4", "glm4", "Glm4ForCausalLM", .positions = 131072, .kv_heads = 2, .head_dim = 128,
     .rope.share = 0.5},
    {"gemma2", "gemma2", "Gemma2ForCausalLM", .positions = 8192, .kv_heads = 4, .head_dim = 256,
     .has_scaled_rows = true, .windows = {HFI_WINDOWS_BUT_EVERY, 4096, 2}},
    {"mixtral", "mixtral", "MixtralForCausalLM", .positions = 131072, .kv_heads = 8,
     .rope.theta = 1000000, .windows = {HFI_WINDOWS_EVERYWHERE, 0, 0}},
    {"qwen2_moe", "qwen2_moe", "Qwen2MoeForCausalLM", .positions = 32768, .kv_heads = 16},
    {"qwen3_moe", "qwen3_moe", "Qwen3MoeForCausalLM", .positions = 32768, .kv_heads = 4},
    {"olmoe", "olmoe", "OlmoeForCausalLM", .positions = 4096},
    {"gpt_oss", "gpt_oss", "GptOssForCausalLM", .positions = 131072, .kv_heads = 8, .head_dim = 64,
     .rope = {.theta = 150000, .is_needed = true}, .windows = {HFI_WINDOWS_BUT_EVERY, 128, 2}},
    {"gemma3_text", "gemma2", "Gemma3ForCausalLM", .positions = 131072, .kv_heads = 4,
     .head_dim = 256, .rope.theta = 1000000, .has_scaled_rows = true, .window_theta = 10000,
     .window_theta_key = "rope_local_base_freq", .windows = {HFI_WINDOWS_BUT_EVERY, 4096, 6}},
    {"deepseek_v3", "deepseek", "DeepseekV3ForCausalLM", .positions = 4096, .has_latents = true,
     .has_late_experts = true, .dense_blocks = 3, .shared_experts = 1, .groups = 8,
     .groups_chosen = 4},
    {"deepseek_v2", "deepseek", "DeepseekV2ForCausalLM", .positions = 2048, .has_latents = true,
     .has_late_experts = true, .shared_experts = 2, .has_softmax = true},
    {"glm4_moe", "glm4_moe", "Glm4MoeForCausalLM", .positions = 131072, .kv_heads = 8,
     .rope.share = 0.5, .has_late_experts = true, .dense_blocks = 1, .shared_experts = 1,
     .groups = 1, .groups_chosen = 1},
};

/* A family has all rows that name it. Two of them may read one key. */
static const hfi_key keys[] = {
    {"rope opt", HFI_COUNT, "num_layers", "num_hidden_layers", 0},
    {"bert", HFI_COUNT, "num_layers", "num_hidden_layers", 12},
    {"gpt2", HFI_COUNT, "num_layers", "n_layer", 0},
    {"rope opt", HFI_COUNT, "hidden_size", "hidden_size", 0},
    {"bert", HFI_COUNT, "hidden_size", "hidden_size", 768},
    {"gpt2", HFI_COUNT, "hidden_size", "n_embd", 0},
    {"rope opt", HFI_COUNT, "num_heads", "num_attention_heads", 0},
    {"bert", HFI_COUNT, "num_heads", "num_attention_heads", 12},
    {"gpt2", HFI_COUNT, "num_heads", "n_head", 0},
    {"opt", HFI_COUNT, "num_kv_heads", "num_attention_heads", 0},
    {"gpt2", HFI_COUNT, "num_kv_heads", "n_head", 0},
    {"rope", HFI_COUNT, "ffn_size", "intermediate_size", 0},
    {"mixtral olmoe gpt_oss", HFI_COUNT, "expert_ffn_size", "intermediate_size", 0},
    {"qwen2_moe", HFI_COUNT, "expert_ffn_size", "moe_intermediate_size", 1408},
    {"qwen3_moe", HFI_COUNT, "expert_ffn_size", "moe_intermediate_size", 768},
    {"qwen2_moe", HFI_COUNT, "shared_ffn_size", "shared_expert_intermediate_size", 5632},
    {"bert", HFI_COUNT, "ffn_size", "intermediate_size", 3072},
    {"opt", HFI_COUNT, "ffn_size", "ffn_dim", 0},
    {"opt", HFI_ONLY_WIDTH, "embeddings are hidden_size wide", "word_embed_proj_dim", 1},
    {"gpt2", HFI_WIDTH, "ffn_size", "n_inner", 4},
    {"bert", HFI_COUNT, "type_count", "type_vocab_size", 2},
    {"bert", HFI_COUNT, "position_count", "max_position_embeddings", 512},
    {"opt", HFI_COUNT, "position_count", "max_position_embeddings", 2048},
    {"gpt2", HFI_COUNT, "position_count", "n_positions", 1024},

    /* Activations. */
    {"llama mistral qwen2 qwen3 granite smollm3 olmo2 olmo3 exaone4 phi3 cohere stablelm glm glm4 "
     "mixtral qwen2_moe qwen3_moe olmoe deepseek_v2 deepseek_v3 glm4_moe",
     HFI_GATED, "silu", "hidden_act", 0},
    {"gemma", HFI_GATED_GEMMA, "gelu_pytorch_tanh", "hidden_act", 0},
    {"gpt_oss", HFI_ONLY_WORD, "silu", "hidden_act", 0},
    {"gpt_oss", HFI_ONLY_NUMBER, "the gate has one slope", "swiglu_alpha", 1.702},
    {"gpt_oss", HFI_NUMBER, "swiglu_limit", "swiglu_limit", 7},
    {"gemma2 gemma3_text", HFI_GATED, "gelu_pytorch_tanh", "hidden_activation", 0},
    {"starcoder2 phi", HFI_PLAIN, "gelu_pytorch_tanh", "hidden_act", 0},
    {"gpt_neox bert", HFI_PLAIN, "gelu", "hidden_act", 0},
    {"gpt2", HFI_PLAIN, "gelu_new", "activation_function", 0},
    {"opt", HFI_PLAIN, "relu", "activation_function", 0},

    /* Biases. */
    {"llama qwen3 granite smollm3 cohere qwen3_moe olmoe deepseek_v2 deepseek_v3", HFI_SWITCH,
     "qkv_bias", "attention_bias", false},
    {"llama qwen3 granite smollm3 cohere qwen3_moe olmoe deepseek_v2 deepseek_v3", HFI_OPTION,
     "out_bias", "attention_bias", false},
    {"qwen2_moe", HFI_SWITCH, "qkv_bias", "qkv_bias", true},
    {"llama granite smollm3 deepseek_v2", HFI_OPTION, "mlp_bias", "mlp_bias", false},
    {"mistral", HFI_SWITCH, "qkv_bias", NULL, false},
    {"qwen2", HFI_SWITCH, "qkv_bias", NULL, true},
    {"glm glm4 gpt_oss", HFI_SWITCH, "qkv_bias", "attention_bias", true},
    {"gpt_oss", HFI_OPTION, "out_bias", "attention_bias", true},
    {"glm4_moe", HFI_SWITCH, "qkv_bias", "attention_bias", false},
    {"stablelm", HFI_SWITCH, "qkv_bias", "use_qkv_bias", false},
    {"olmo2 olmo3 phi3 gemma stablelm gemma2 gemma3_text", HFI_ONLY,
     "this family has no biases of attention", "attention_bias", false},
    {"starcoder2", HFI_ONLY, "these biases are always there", "use_bias", true},
    {"gpt_neox", HFI_ONLY, "these biases are always there", "attention_bias", true},
    {"opt", HFI_ONLY, "these biases are always there", "enable_bias", true},

    /* Norms. */
    {"llama mistral qwen2 granite smollm3", HFI_SWITCH, "qk_norm", NULL, false},
    {"qwen3 gemma3_text qwen3_moe", HFI_SWITCH, "qk_norm", NULL, true},
    {"cohere glm4_moe", HFI_SWITCH, "qk_norm", "use_qk_norm", false},
    {"stablelm phi", HFI_ONLY, "this family has no norms of heads here", "qk_layernorm", false},
    {"llama mistral qwen2 qwen3 granite smollm3 gemma gemma2 gemma3_text qwen2_moe qwen3_moe "
     "deepseek_v2 deepseek_v3",
     HFI_NUMBER, "norm_epsilon", "rms_norm_eps", 1e-6},
    {"olmo2 olmo3 exaone4 phi3 mixtral olmoe gpt_oss glm4_moe", HFI_NUMBER, "norm_epsilon",
     "rms_norm_eps", 1e-5},
    {"glm glm4", HFI_NUMBER, "norm_epsilon", "rms_norm_eps", 1.5625e-7},
    {"starcoder2", HFI_NUMBER, "norm_epsilon", "norm_epsilon", 1e-5},
    {"gpt_neox cohere stablelm phi", HFI_NUMBER, "norm_epsilon", "layer_norm_eps", 1e-5},
    {"bert", HFI_NUMBER, "norm_epsilon", "layer_norm_eps", 1e-12},
    {"gpt2", HFI_NUMBER, "norm_epsilon", "layer_norm_epsilon", 1e-5},
    {"opt", HFI_NUMBER, "norm_epsilon", NULL, 1e-5}, /* PyTorch's */
    {"opt", HFI_ONLY, "norms stand before the layers", "do_layer_norm_before", true},
    {"opt", HFI_ONLY, "the last norm is always there", "_remove_final_layer_norm", false},
    {"opt", HFI_ONLY, "norms always have weights", "layer_norm_elementwise_affine", true},

    /* Latents. hf_config.c reads q_lora_rank, which may be null, and the two parts of head_dim. */
    {"deepseek_v2 deepseek_v3", HFI_COUNT, "kv_latent_size", "kv_lora_rank", 512},
    {"deepseek_v2 deepseek_v3", HFI_COUNT, "rope_head_dim", "qk_rope_head_dim", 64},
    {"deepseek_v2 deepseek_v3", HFI_COUNT, "value_head_dim", "v_head_dim", 128},

    /* Branches, scores and logits. */
    {"gpt_neox", HFI_SWITCH, "parallel_residual", "use_parallel_residual", true},
    {"stablelm", HFI_SWITCH, "parallel_residual", "use_parallel_residual", false},
    {"granite", HFI_NUMBER, "attention_multiplier", "attention_multiplier", 1},
    {"granite", HFI_FACTOR, "embedding_multiplier", "embedding_multiplier", 1},
    {"granite", HFI_FACTOR, "residual_multiplier", "residual_multiplier", 1},
    {"granite", HFI_FACTOR, "logits_scaling", "logits_scaling", 1},
    {"cohere", HFI_INVERSE, "logits_scaling", "logit_scale", 0.0625},
    {"gemma2 gemma3_text", HFI_INVERSE_ROOT, "attention_multiplier", "query_pre_attn_scalar", 256},
    {"gemma2", HFI_CAP, "attention_soft_cap", "attn_logit_softcapping", 50},
    {"gemma2", HFI_CAP, "logits_soft_cap", "final_logit_softcapping", 30},
    {"gemma3_text", HFI_ONLY_NULL, "this family has no soft cap of scores",
     "attn_logit_softcapping", 0},
    {"gemma3_text", HFI_CAP, "logits_soft_cap", "final_logit_softcapping", 0},
    {"rope", HFI_ONLY, "attention is always causal", "use_bidirectional_attention", false},
    {"bert", HFI_ONLY, "attention sees both sides", "is_decoder", false},
    {"gpt2 bert", HFI_ONLY, "there is no encoder to attend to", "add_cross_attention", false},
    {"gpt2", HFI_ONLY, "scores are not divided by the number of their layer",
     "scale_attn_by_inverse_layer_idx", false},
    {"gpt2", HFI_ONLY, "scores are always divided by the square root of the head's width",
     "scale_attn_weights", true},
    /* gpt2's reorder_and_upcast_attn asks for fp32 scores. Scores are always fp32 here. */
    {"bert", HFI_ONLY_WORD, "absolute", "position_embedding_type", 0},
    {"smollm3 gemma starcoder2 cohere gemma2 gemma3_text gpt2 opt", HFI_SWITCH, "tie_embeddings",
     "tie_word_embeddings", true},
    {"llama mistral qwen2 qwen3 granite olmo2 olmo3 exaone4 phi phi3 gpt_neox stablelm glm glm4 "
     "mixtral qwen2_moe qwen3_moe olmoe gpt_oss deepseek_v2 deepseek_v3 glm4_moe",
     HFI_SWITCH, "tie_embeddings", "tie_word_embeddings", false},
    {"bert", HFI_ONLY, "the output matrix is the embedding", "tie_word_embeddings", true},

    /* Mixtures of experts. */
    {"mixtral", HFI_COUNT, "num_experts", "num_local_experts", 8},
    {"gpt_oss", HFI_COUNT, "num_experts", "num_local_experts", 128},
    {"qwen2_moe", HFI_COUNT, "num_experts", "num_experts", 60},
    {"qwen3_moe", HFI_COUNT, "num_experts", "num_experts", 128},
    {"olmoe", HFI_COUNT, "num_experts", "num_experts", 64},
    {"mixtral", HFI_COUNT, "num_experts_per_tok", "num_experts_per_tok", 2},
    {"qwen2_moe gpt_oss", HFI_COUNT, "num_experts_per_tok", "num_experts_per_tok", 4},
    {"qwen3_moe olmoe", HFI_COUNT, "num_experts_per_tok", "num_experts_per_tok", 8},
    {"mixtral gpt_oss", HFI_SWITCH, "norm_topk_prob", NULL, true},
    {"qwen2_moe qwen3_moe olmoe", HFI_SWITCH, "norm_topk_prob", "norm_topk_prob", false},
    {"mixtral qwen2_moe qwen3_moe gpt_oss", HFI_BALANCE, "router_aux_loss_coef",
     "router_aux_loss_coef", 0.001},
    {"olmoe", HFI_BALANCE, "router_aux_loss_coef", "router_aux_loss_coef", 0.01},
    {"qwen2_moe qwen3_moe", HFI_ONLY_EMPTY, "every block is a mixture", "mlp_only_layers", 0},
    {"qwen2_moe qwen3_moe", HFI_ONLY_NUMBER, "every block is a mixture", "decoder_sparse_step", 1},
    {"qwen2_moe qwen3_moe", HFI_ONLY, "windows are not built for mixtures of this family",
     "use_sliding_window", false},
    {"mixtral", HFI_ONLY_NUMBER, "routers have no noise in training", "router_jitter_noise", 0},
    {"olmoe", HFI_ONLY_NULL, "q, k and v are not clipped", "clip_qkv", 0},

    /* Dropouts. transformers reads embd_pdrop of phi3, but does not use it. */
    {"rope opt", HFI_DROPOUT, "attention_dropout", "attention_dropout", 0},
    {"gpt2", HFI_DROPOUT, "attention_dropout", "attn_pdrop", 0.1},
    {"bert", HFI_DROPOUT, "attention_dropout", "attention_probs_dropout_prob", 0.1},
    {"phi phi3", HFI_DROPOUT, "hidden_dropout", "resid_pdrop", 0},
    {"starcoder2", HFI_DROPOUT, "hidden_dropout", "residual_dropout", 0},
    {"gpt_neox stablelm", HFI_DROPOUT, "hidden_dropout", "hidden_dropout", 0},
    {"gpt2", HFI_DROPOUT, "hidden_dropout", "resid_pdrop", 0.1},
    {"bert", HFI_DROPOUT, "hidden_dropout", "hidden_dropout_prob", 0.1},
    {"opt", HFI_DROPOUT, "hidden_dropout", "dropout", 0.1},
    {"opt", HFI_ONLY_NUMBER, "no layer is left out in training", "layerdrop", 0},
    {"starcoder2", HFI_DROPOUT, "embedding_dropout", "embedding_dropout", 0},
    {"gpt_neox", HFI_DROPOUT, "embedding_dropout", "hidden_dropout", 0},
    {"phi", HFI_DROPOUT, "embedding_dropout", "embd_pdrop", 0},
    {"gpt2", HFI_DROPOUT, "embedding_dropout", "embd_pdrop", 0.1},
};

/* Further keys of mixtures of experts whose first blocks may have none (has_late_experts). */
static const hfi_key late_keys[] = {
    {"deepseek_v2", HFI_COUNT, "num_experts", "n_routed_experts", 64},
    {"deepseek_v3", HFI_COUNT, "num_experts", "n_routed_experts", 256},
    {"glm4_moe", HFI_COUNT, "num_experts", "n_routed_experts", 128},
    {"deepseek_v2", HFI_COUNT, "num_experts_per_tok", "num_experts_per_tok", 0},
    {"deepseek_v3 glm4_moe", HFI_COUNT, "num_experts_per_tok", "num_experts_per_tok", 8},
    {"deepseek_v2", HFI_COUNT, "expert_ffn_size", "moe_intermediate_size", 1407},
    {"deepseek_v3", HFI_COUNT, "expert_ffn_size", "moe_intermediate_size", 2048},
    {"glm4_moe", HFI_COUNT, "expert_ffn_size", "moe_intermediate_size", 1408},
    {"deepseek_v2 glm4_moe", HFI_FACTOR, "routed_scaling_factor", "routed_scaling_factor", 1},
    {"deepseek_v3", HFI_FACTOR, "routed_scaling_factor", "routed_scaling_factor", 2.5},
    {"deepseek_v2", HFI_ONLY, "transformers does not divide the weights of this family",
     "norm_topk_prob", false},
    {"deepseek_v3 glm4_moe", HFI_SWITCH, "norm_topk_prob", "norm_topk_prob", true},
    {"deepseek_v2", HFI_ONLY_WORD, "softmax", "scoring_func", 0},
    {"deepseek_v3 glm4_moe", HFI_ONLY_WORD, "sigmoid", "scoring_func", 0},
    {"deepseek_v3 glm4_moe", HFI_ONLY_WORD, "noaux_tc", "topk_method", 0},
    {"rope", HFI_ONLY_NUMBER, "every block from first_k_dense_replace on is a mixture",
     "moe_layer_freq", 1},
};

const hfi_family *hfi_family_at(uint32_t idx)
{
    return idx < sizeof families / sizeof families[0] ? &families[idx] : NULL;
}

const hfi_family *hfi_find_family(const char *name)
{
    uint32_t idx = 0;
    while (hfi_family_at(idx) && strcmp(name, families[idx].name) != 0)
        idx++;
    return hfi_family_at(idx);
}

/* True if a name is one of those in a list. */
static bool is_named(const char *list, const char *name)
{
    size_t bytes = strlen(name);
    for (const char *at = list; *at; at += strcspn(at, " "), at += *at == ' ')
        if (strcspn(at, " ") == bytes && memcmp(at, name, bytes) == 0)
            return true;
    return false;
}

static const hfi_key *next_row(const hfi_family *of, const hfi_key *row, const hfi_key *end)
{
    while (row < end && !is_named(row->of, of->name) &&
           (of->has_table || !is_named(row->of, "rope")))
        row++;
    return row < end ? row : NULL;
}

const hfi_key *hfi_next_key(const hfi_family *of, const hfi_key *row)
{
    return next_row(of, row ? row + 1 : keys, keys + sizeof keys / sizeof keys[0]);
}

const hfi_key *hfi_next_late_key(const hfi_family *of, const hfi_key *row)
{
    return next_row(of, row ? row + 1 : late_keys,
                    late_keys + sizeof late_keys / sizeof late_keys[0]);
}
