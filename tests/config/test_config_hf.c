/* config.json of a Hugging Face checkpoint as a model block: every family, the forms of rotary
 * positions, what is absent, and what is refused by its key. */
#include <math.h>

#include "tests/config/test_config_hf.h"

#define OPT                                                                                        \
    "\"model_type\": \"opt\", \"vocab_size\": 300, \"hidden_size\": 48, "                          \
    "\"num_hidden_layers\": 3, \"num_attention_heads\": 4, \"ffn_dim\": 80, "                      \
    "\"max_position_embeddings\": 96"

/* ---- what is read ---- */

static const struct right_case right[] = {
    {GPT2,
     {FIELD_IS_TEXT(model.family, "gpt2"), FIELD(model.num_layers, 3), FIELD(model.hidden_size, 48),
      FIELD(model.num_heads, 4), FIELD(model.num_kv_heads, 4), FIELD(model.ffn_size, 192),
      FIELD(model.vocab_size, 300), FIELD(model.position_count, 96), FIELD(model.seq_length, 96),
      FIELD(model.norm_epsilon, 1e-5), FIELD(model.tie_embeddings, true)}},
    {GPT2,
     {FIELD(model.hidden_dropout, 0.1), FIELD(model.embedding_dropout, 0.1),
      FIELD(model.attention_dropout, 0.1)}},
    {GPT2 ", \"resid_pdrop\": 0, \"embd_pdrop\": 0.0, \"attn_pdrop\": 0.25",
     {FIELD(model.hidden_dropout, 0), FIELD(model.embedding_dropout, 0),
      FIELD(model.attention_dropout, 0.25)}},
    {LLAMA ", \"attention_dropout\": 0.5",
     {FIELD(model.hidden_dropout, 0), FIELD(model.embedding_dropout, 0),
      FIELD(model.attention_dropout, 0.5)}},
    {"\"model_type\": \"starcoder2\", " SIZES
     ", \"residual_dropout\": 0.2, \"embedding_dropout\": 0.3, \"attention_dropout\": null",
     {FIELD(model.hidden_dropout, 0.2), FIELD(model.embedding_dropout, 0.3),
      FIELD(model.attention_dropout, 0)}},
    {"\"model_type\": \"phi3\", " SIZES ", \"resid_pdrop\": 0.2, \"embd_pdrop\": 0.3",
     {FIELD(model.hidden_dropout, 0.2), FIELD(model.embedding_dropout, 0)}},
    {GPT2 ", \"n_inner\": 72, \"layer_norm_epsilon\": 1e-6, \"tie_word_embeddings\": false, "
          "\"activation_function\": \"gelu_pytorch_tanh\", \"reorder_and_upcast_attn\": true",
     {FIELD(model.ffn_size, 72), FIELD(model.norm_epsilon, 1e-6),
      FIELD(model.tie_embeddings, false)}},
    {"\"model_type\": \"gpt2\", \"vocab_size\": 300, \"hidden_size\": 64, \"num_hidden_layers\": "
     "2, "
     "\"num_attention_heads\": 8, \"n_inner\": null",
     {FIELD(model.hidden_size, 64), FIELD(model.ffn_size, 256), FIELD(model.position_count, 1024),
      FIELD(model.seq_length, 1024)}},
    {LLAMA,
     {FIELD_IS_TEXT(model.family, "llama"), FIELD(model.num_kv_heads, 4), FIELD(model.head_dim, 12),
      FIELD(model.ffn_size, 80), FIELD(model.qkv_bias, false), FIELD(model.qk_norm, false),
      FIELD(model.norm_epsilon, 1e-6), FIELD(model.rope_theta, 10000),
      FIELD(model.rope.scaling, ROPE_PLAIN), FIELD(model.seq_length, 1024),
      FIELD(model.tie_embeddings, false)}},
    /* SmolLM, as it is published: an older form with null where nothing is scaled. */
    {LLAMA
     ", \"num_key_value_heads\": 2, \"rms_norm_eps\": 1e-05, \"rope_theta\": 100000, "
     "\"rope_scaling\": null, \"tie_word_embeddings\": true, \"attention_bias\": false, "
     "\"mlp_bias\": false, \"hidden_act\": \"silu\", \"use_cache\": true, \"bos_token_id\": 1",
     {FIELD(model.num_kv_heads, 2), FIELD(model.norm_epsilon, 1e-5),
      FIELD(model.rope_theta, 100000), FIELD(model.tie_embeddings, true)}},
    {LLAMA ", \"rope_theta\": 500000.0, \"rope_scaling\": {" LLAMA3 ", \"rope_type\": \"llama3\"}",
     {FIELD(model.rope_theta, 500000), FIELD(model.rope.scaling, ROPE_LLAMA3),
      FIELD(model.rope.factor, 8), FIELD(model.rope.low_freq_factor, 1),
      FIELD(model.rope.high_freq_factor, 4), FIELD(model.rope.original_positions, 8192)}},
    /* The newer form; what is in the block goes before what is outside. */
    {LLAMA ", \"rope_theta\": 7, \"rope_parameters\": {\"rope_theta\": 500000.0, " LLAMA3
           ", \"rope_type\": \"llama3\"}",
     {FIELD(model.rope_theta, 500000), FIELD(model.rope.scaling, ROPE_LLAMA3)}},
    {LLAMA ", \"rope_parameters\": {\"rope_type\": \"llama3\", \"factor\": 8, "
           "\"low_freq_factor\": 1, \"high_freq_factor\": 4}",
     {FIELD(model.rope.original_positions, 4096)}},
    {LLAMA ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.5}",
     {FIELD(model.rope.scaling, ROPE_LINEAR), FIELD(model.rope.factor, 2.5)}},
    {LLAMA ", \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 12345.5}",
     {FIELD(model.rope.scaling, ROPE_PLAIN), FIELD(model.rope_theta, 12345.5)}},
    /* max_position_embeddings is that of the first training, as where Qwen2 is stretched by hand */
    {LLAMA ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2.5, \"attention_factor\": null, "
           "\"original_max_position_embeddings\": 2048, \"finetuned\": true}",
     {FIELD(model.rope.scaling, ROPE_YARN), FIELD(model.rope.factor, 2.5),
      FIELD(model.rope.original_positions, 2048), FIELD(model.rope.attention_factor, 0),
      FIELD(model.rope.beta_fast, 0), FIELD(model.rope.truncates, true)}},
    {LLAMA
     ", \"rope_parameters\": {\"rope_type\": \"yarn\", \"rope_theta\": 5e4, \"beta_fast\": 16, "
     "\"beta_slow\": 2, \"mscale\": 0.7, \"mscale_all_dim\": 0.8, \"truncate\": false, "
     "\"attention_factor\": 1.2, \"factor\": null, \"low_freq_factor\": 3, "
     "\"original_max_position_embeddings\": 1024}",
     {FIELD(model.rope.factor, 4), FIELD(model.rope.beta_fast, 16), FIELD(model.rope.beta_slow, 2),
      FIELD(model.rope.mscale, 0.7), FIELD(model.rope.mscale_all_dim, 0.8),
      FIELD(model.rope.truncates, false), FIELD(model.rope.attention_factor, 1.2),
      FIELD(model.rope.low_freq_factor, 0), FIELD(model.rope_theta, 5e4)}},
    {LLAMA ", \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2, "
           "\"original_max_position_embeddings\": 7}",
     {FIELD(model.rope.scaling, ROPE_DYNAMIC), FIELD(model.rope.factor, 2),
      FIELD(model.rope.original_positions, 4096)}},
    {"\"model_type\": \"phi3\", " SIZES ", \"original_max_position_embeddings\": 512, "
     "\"partial_rotary_factor\": 0.75, \"rope_scaling\": {\"type\": \"su\", " LISTS "}",
     {FIELD(model.rope.scaling, ROPE_LONGROPE), FIELD(model.rope.factor, 8),
      FIELD(model.rope.original_positions, 512), FIELD(model.partial_rotary_factor, 0.75),
      FIELD(model.rope.pair_count, 4), FIELD(model.rope.short_factors[3], 1.5),
      FIELD(model.rope.long_factors[0], 2)}},
    /* Phi-3 has the number of first positions outside the block, even if it is only the default. */
    {"\"model_type\": \"phi3\", " SIZES ", \"rope_parameters\": {\"rope_type\": \"longrope\", "
     "\"attention_factor\": 1.25, \"original_max_position_embeddings\": 512, "
     "\"partial_rotary_factor\": 0.5, " LISTS "}",
     {FIELD(model.rope.original_positions, 4096), FIELD(model.rope.attention_factor, 1.25),
      FIELD(model.partial_rotary_factor, 0.5)}},
    {"\"model_type\": \"mistral\", " SIZES ", \"head_dim\": 16, \"num_key_value_heads\": 1, "
     "\"sliding_window\": null",
     {FIELD_IS_TEXT(model.family, "llama"), FIELD(model.head_dim, 16), FIELD(model.num_kv_heads, 1),
      FIELD(model.qkv_bias, false), FIELD(model.seq_length, 1024)}},
    {"\"model_type\": \"qwen2\", " SIZES ", \"num_key_value_heads\": 2, "
     "\"use_sliding_window\": false, \"sliding_window\": 128",
     {FIELD_IS_TEXT(model.family, "llama"), FIELD(model.qkv_bias, true),
      FIELD(model.qk_norm, false), FIELD(model.tie_embeddings, false), FIELD(model.window, 0)}},
    {GPT2 ", \"activation_function\": \"gelu\"", {FIELD(model.activation, ACTIVATION_NAMED_GELU)}},
    {LLAMA ", \"attention_bias\": true, \"mlp_bias\": true, \"hidden_act\": \"gelu\"",
     {FIELD(model.qkv_bias, true), FIELD(model.out_bias, true), FIELD(model.mlp_bias, true),
      FIELD(model.activation, ACTIVATION_NAMED_GELU)}},
    {"\"model_type\": \"starcoder2\", " SIZES ", \"sliding_window\": 64",
     {FIELD_IS_TEXT(model.family, "starcoder2"), FIELD(model.num_kv_heads, 2),
      FIELD(model.activation, ACTIVATION_OF_FAMILY), FIELD(model.norm_epsilon, 1e-5),
      FIELD(model.tie_embeddings, true), FIELD(model.window, 64)}},
    {"\"model_type\": \"phi3\", " SIZES,
     {FIELD_IS_TEXT(model.family, "phi3"), FIELD(model.num_kv_heads, 4),
      FIELD(model.norm_epsilon, 1e-5), FIELD(model.tie_embeddings, false)}},
    {"\"model_type\": \"gemma\", " SIZES ", \"num_key_value_heads\": 1, \"head_dim\": 12, "
     "\"hidden_act\": \"gelu\", \"hidden_activation\": \"gelu_pytorch_tanh\"",
     {FIELD_IS_TEXT(model.family, "gemma"), FIELD(model.activation, ACTIVATION_OF_FAMILY),
      FIELD(model.embedding_multiplier, sqrt(48)), FIELD(model.tie_embeddings, true)}},
    {"\"model_type\": \"gemma\", " SIZES ", \"hidden_act\": \"gelu\"",
     {FIELD(model.activation, ACTIVATION_OF_FAMILY)}},
    {"\"model_type\": \"bert\", " SIZES,
     {FIELD_IS_TEXT(model.family, "bert"), FIELD(model.num_kv_heads, 4), FIELD(model.head_dim, 0),
      FIELD(model.position_count, 4096), FIELD(model.type_count, 2), FIELD(model.qkv_bias, true),
      FIELD(model.activation, ACTIVATION_OF_FAMILY), FIELD(model.norm_epsilon, 1e-12),
      FIELD(model.hidden_dropout, 0.1), FIELD(model.attention_dropout, 0.1),
      FIELD(model.tie_embeddings, true), FIELD(model.seq_length, 1024)}},
    {"\"model_type\": \"bert\", \"vocab_size\": 300, \"type_vocab_size\": 1, \"hidden_act\": "
     "\"gelu_new\", \"layer_norm_eps\": 1e-5",
     {FIELD(model.num_layers, 12), FIELD(model.hidden_size, 768), FIELD(model.ffn_size, 3072),
      FIELD(model.type_count, 1), FIELD(model.activation, ACTIVATION_NAMED_GELU_TANH),
      FIELD(model.norm_epsilon, 1e-5), FIELD(model.seq_length, 512)}},
    {"\"model_type\": \"olmo2\", " SIZES,
     {FIELD_IS_TEXT(model.family, "olmo2"), FIELD(model.norm_epsilon, 1e-5)}},
    {"\"model_type\": \"glm4\", " SIZES,
     {FIELD_IS_TEXT(model.family, "glm4"), FIELD(model.num_kv_heads, 2), FIELD(model.head_dim, 128),
      FIELD(model.qkv_bias, true), FIELD(model.out_bias, false),
      FIELD(model.partial_rotary_factor, 0.5), FIELD(model.norm_epsilon, 1.5625e-7)}},
    {"\"model_type\": \"glm\", " SIZES ", \"head_dim\": 12, \"attention_bias\": false, "
     "\"rope_parameters\": {\"partial_rotary_factor\": 1.0}",
     {FIELD_IS_TEXT(model.family, "glm"), FIELD(model.qkv_bias, false),
      FIELD(model.partial_rotary_factor, 1)}},
    {"\"model_type\": \"deepseek_v3\", " SIZES,
     {FIELD_IS_TEXT(model.family, "deepseek"), FIELD(model.q_latent_size, 1536),
      FIELD(model.kv_latent_size, 512), FIELD(model.head_dim, 192), FIELD(model.rope_head_dim, 64),
      FIELD(model.value_head_dim, 128), FIELD(model.num_kv_heads, 4),
      FIELD(model.rope_halves, false), FIELD(model.qkv_bias, false),
      FIELD(model.norm_epsilon, 1e-6), FIELD(model.tie_embeddings, false)}},
    {"\"model_type\": \"deepseek_v3\", " SIZES ", \"q_lora_rank\": 20, \"kv_lora_rank\": 24, "
     "\"qk_nope_head_dim\": 12, \"qk_rope_head_dim\": 4, \"v_head_dim\": 10, \"head_dim\": 4, "
     "\"rope_interleave\": false, \"attention_bias\": true, \"num_key_value_heads\": 4",
     {FIELD(model.q_latent_size, 20), FIELD(model.kv_latent_size, 24), FIELD(model.head_dim, 16),
      FIELD(model.rope_head_dim, 4), FIELD(model.value_head_dim, 10),
      FIELD(model.rope_halves, true), FIELD(model.qkv_bias, true), FIELD(model.out_bias, true)}},
    {"\"model_type\": \"deepseek_v2\", " SIZES ", \"first_k_dense_replace\": 3, "
     "\"q_lora_rank\": null, \"mlp_bias\": true, \"rope_interleave\": false",
     {FIELD(model.q_latent_size, 0), FIELD(model.mlp_bias, true), FIELD(model.rope_halves, false),
      FIELD(model.out_bias, false)}},
    {"\"model_type\": \"deepseek_v3\", " SIZES ", \"first_k_dense_replace\": 1",
     {FIELD(model.num_experts, 256), FIELD(model.num_experts_per_tok, 8),
      FIELD(model.expert_ffn_size, 2048), FIELD(model.shared_ffn_size, 2048),
      FIELD(model.n_group, 8), FIELD(model.topk_group, 4), FIELD(model.scoring_func, JOB_SIGMOID),
      FIELD(model.norm_topk_prob, true), FIELD(model.routed_scaling_factor, 2.5),
      FIELD(model.first_k_dense_replace, 1)}},
    {"\"model_type\": \"deepseek_v2\", " SIZES ", \"num_experts_per_tok\": 6, "
     "\"n_group\": 8, \"topk_group\": 3, \"topk_method\": \"group_limited_greedy\"",
     {FIELD(model.num_experts, 64), FIELD(model.shared_ffn_size, 2 * 1407), FIELD(model.n_group, 8),
      FIELD(model.topk_group, 3), FIELD(model.scoring_func, JOB_SOFTMAX),
      FIELD(model.routed_scaling_factor, 0), FIELD(model.first_k_dense_replace, 0)}},
    {"\"model_type\": \"glm4_moe\", " SIZES ", \"use_qk_norm\": true, \"head_dim\": 12",
     {FIELD_IS_TEXT(model.family, "glm4_moe"), FIELD(model.num_experts, 128),
      FIELD(model.shared_ffn_size, 1408), FIELD(model.n_group, 0),
      FIELD(model.scoring_func, JOB_SIGMOID), FIELD(model.qk_norm, true),
      FIELD(model.partial_rotary_factor, 0.5), FIELD(model.first_k_dense_replace, 1)}},
    {"\"model_type\": \"gpt_neox\", " SIZES,
     {FIELD_IS_TEXT(model.family, "gpt_neox"), FIELD(model.activation, ACTIVATION_OF_FAMILY),
      FIELD(model.partial_rotary_factor, 0.25), FIELD(model.rope_theta, 10000),
      FIELD(model.parallel_residual, true), FIELD(model.norm_epsilon, 1e-5),
      FIELD(model.tie_embeddings, false)}},
    {"\"model_type\": \"gpt_neox\", " SIZES ", \"rotary_pct\": 1.0, \"rotary_emb_base\": 5000, "
     "\"use_parallel_residual\": false, \"hidden_act\": \"gelu_new\", \"layer_norm_eps\": 1e-6",
     {FIELD(model.partial_rotary_factor, 1), FIELD(model.rope_theta, 5000),
      FIELD(model.parallel_residual, false), FIELD(model.activation, ACTIVATION_NAMED_GELU_TANH),
      FIELD(model.norm_epsilon, 1e-6)}},
    {"\"model_type\": \"cohere\", " SIZES,
     {FIELD_IS_TEXT(model.family, "cohere"), FIELD(model.num_kv_heads, 4),
      FIELD(model.logits_scaling, 16), FIELD(model.qk_norm, false), FIELD(model.qkv_bias, false),
      FIELD(model.rope_theta, 500000), FIELD(model.norm_epsilon, 1e-5),
      FIELD(model.tie_embeddings, true)}},
    {"\"model_type\": \"cohere\", " SIZES ", \"logit_scale\": 0.5, \"use_qk_norm\": true, "
     "\"attention_bias\": true",
     {FIELD(model.logits_scaling, 2), FIELD(model.qk_norm, true), FIELD(model.qkv_bias, true),
      FIELD(model.out_bias, true)}},
    {"\"model_type\": \"stablelm\", " SIZES ", \"num_key_value_heads\": 4",
     {FIELD_IS_TEXT(model.family, "stablelm"), FIELD(model.partial_rotary_factor, 0.25),
      FIELD(model.parallel_residual, false), FIELD(model.qkv_bias, false),
      FIELD(model.norm_epsilon, 1e-5), FIELD(model.tie_embeddings, false)}},
    {"\"model_type\": \"stablelm\", " SIZES ", \"num_key_value_heads\": 2, "
     "\"partial_rotary_factor\": 0.5, \"use_qkv_bias\": true, \"use_parallel_residual\": true",
     {FIELD(model.partial_rotary_factor, 0.5), FIELD(model.parallel_residual, true),
      FIELD(model.qkv_bias, true), FIELD(model.num_kv_heads, 2)}},
    {OPT,
     {FIELD_IS_TEXT(model.family, "opt"), FIELD(model.num_kv_heads, 4), FIELD(model.ffn_size, 80),
      FIELD(model.position_count, 96), FIELD(model.seq_length, 96),
      FIELD(model.activation, ACTIVATION_OF_FAMILY), FIELD(model.norm_epsilon, 1e-5),
      FIELD(model.tie_embeddings, true)}},
    {OPT ", \"activation_function\": \"gelu\", \"word_embed_proj_dim\": 48, \"dropout\": 0.1",
     {FIELD(model.activation, ACTIVATION_NAMED_GELU)}},
    {"\"model_type\": \"mixtral\", " SIZES
     ", \"num_key_value_heads\": 2, \"num_local_experts\": 6, "
     "\"sliding_window\": 128",
     {FIELD_IS_TEXT(model.family, "mixtral"), FIELD(model.num_experts, 6),
      FIELD(model.num_experts_per_tok, 2), FIELD(model.expert_ffn_size, 80),
      FIELD(model.norm_topk_prob, true), FIELD(model.window, 128),
      FIELD(model.rope_theta, 1000000)}},
    {"\"model_type\": \"qwen2_moe\", " SIZES ", \"num_key_value_heads\": 4, "
     "\"moe_intermediate_size\": 32, \"mlp_only_layers\": []",
     {FIELD_IS_TEXT(model.family, "qwen2_moe"), FIELD(model.num_experts, 60),
      FIELD(model.expert_ffn_size, 32), FIELD(model.shared_ffn_size, 5632),
      FIELD(model.qkv_bias, true), FIELD(model.norm_topk_prob, false)}},
    {"\"model_type\": \"qwen3_moe\", " SIZES ", \"num_experts\": 16, \"norm_topk_prob\": true, "
     "\"head_dim\": 12",
     {FIELD(model.num_experts, 16), FIELD(model.num_experts_per_tok, 8),
      FIELD(model.expert_ffn_size, 768), FIELD(model.norm_topk_prob, true),
      FIELD(model.qk_norm, true)}},
    {"\"model_type\": \"qwen3_moe\", " SIZES ", \"num_local_experts\": 16",
     {FIELD(model.num_experts, 16)}},
    {"\"model_type\": \"olmoe\", " SIZES ", \"router_aux_loss_coef\": 0.02",
     {FIELD_IS_TEXT(model.family, "olmoe"), FIELD(model.num_experts, 64),
      FIELD(model.expert_ffn_size, 80), FIELD(model.norm_epsilon, 1e-5),
      FIELD(model.router_aux_loss_coef, 0)}},
    {"\"model_type\": \"olmoe\", " SIZES ", \"output_router_logits\": true",
     {FIELD(model.router_aux_loss_coef, 0.01), FIELD(model.router_z_loss_coef, 0)}},
    {"\"model_type\": \"mixtral\", " SIZES
     ", \"num_key_value_heads\": 2, \"output_router_logits\": true",
     {FIELD(model.router_aux_loss_coef, 0.001)}},
    {"\"model_type\": \"qwen3_moe\", " SIZES
     ", \"output_router_logits\": true, \"router_aux_loss_coef\": 0",
     {FIELD(model.router_aux_loss_coef, 0)}},
    {"\"model_type\": \"gpt_oss\", " SIZES ", \"num_local_experts\": 16, \"rope_scaling\": "
     "{\"rope_type\": \"yarn\", \"factor\": 32, \"truncate\": false}, \"rope_theta\": 150000",
     {FIELD_IS_TEXT(model.family, "gpt_oss"), FIELD(model.num_experts, 16),
      FIELD(model.num_experts_per_tok, 4), FIELD(model.expert_ffn_size, 80),
      FIELD(model.qkv_bias, true), FIELD(model.out_bias, true), FIELD(model.swiglu_limit, 7),
      FIELD(model.window, 128), FIELD_IS_TEXT(model.window_pattern, "wf"),
      FIELD(model.rope.truncates, false)}},
    {"\"model_type\": \"granite\", " SIZES
     ", \"embedding_multiplier\": 12, \"logits_scaling\": 8, \"residual_multiplier\": 1",
     {FIELD_IS_TEXT(model.family, "llama"), FIELD(model.embedding_multiplier, 12),
      FIELD(model.logits_scaling, 8), FIELD(model.residual_multiplier, 0),
      FIELD(model.attention_multiplier, 1)}},
    {"\"model_type\": \"smollm3\", " SIZES
     ", \"num_key_value_heads\": 2, \"no_rope_layers\": [1, 0, 1]",
     {FIELD_IS_TEXT(model.family, "llama"), FIELD(model.nope_interval, 2),
      FIELD(model.rope_theta, 2000000), FIELD(model.tie_embeddings, true)}},
    {"\"model_type\": \"qwen3\", " SIZES
     ", \"num_key_value_heads\": 2, \"tie_word_embeddings\": true, "
     "\"use_sliding_window\": true, \"sliding_window\": 128, "
     "\"layer_types\": [\"full_attention\", \"full_attention\", \"full_attention\"]",
     {FIELD(model.head_dim, 128), FIELD(model.qk_norm, true), FIELD(model.qkv_bias, false),
      FIELD(model.tie_embeddings, true), FIELD(model.window, 0)}},
};

static void families_are_read(void **state)
{
    check_right(right, sizeof right / sizeof right[0]);
}

/* ---- what comes quantized ---- */

#define QUANTIZED(METHOD) ", \"quantization_config\": {\"quant_method\": \"" METHOD "\""

#define SIX(N) "\"" N "0\", \"" N "1\", \"" N "2\", \"" N "3\", \"" N "4\", \"" N "5\""

static const struct right_case quantized[] = {
    {LLAMA QUANTIZED("bitsandbytes") ", \"load_in_4bit\": true, \"bnb_4bit_quant_type\": \"nf4\", "
                                     "\"bnb_4bit_use_double_quant\": true, "
                                     "\"llm_int8_skip_modules\": [\"lm_head\", "
                                     "\"model.layers.0.mlp\"]}",
     {FIELD(state.params, STORED_NF4_DOUBLE), FIELD(state.rule_count, 1),
      FIELD_IS_TEXT(state.rules[0].tensors, "model.layers.0.mlp"),
      FIELD(state.rules[0].format, STORED_WORKING), FIELD(state.is_of_checkpoint, true)}},
    {LLAMA QUANTIZED("bitsandbytes") ", \"load_in_4bit\": true}",
     {FIELD(state.params, STORED_FP4), FIELD(state.rule_count, 0)}},
    {LLAMA QUANTIZED("bitsandbytes") ", \"load_in_4bit\": true, \"bnb_4bit_quant_storage\": "
                                     "\"torch.bfloat16\"}",
     {FIELD(state.params, STORED_FP4)}},
    {LLAMA QUANTIZED("bitsandbytes") ", \"load_in_8bit\": true, \"load_in_4bit\": false}",
     {FIELD(state.params, STORED_INT8_ROWS)}},
    {LLAMA QUANTIZED("bitsandbytes") ", \"load_in_8bit\": true, \"llm_int8_skip_modules\": [" SIX(
         "a") ", " SIX("b") ", " SIX("c") ", " SIX("d") ", " SIX("e") ", " SIX("f") "]}",
     {FIELD(state.rule_count, 36)}},
    {LLAMA QUANTIZED("fp8") ", \"weight_block_size\": [128, 128], \"fmt\": \"e4m3\", "
                            "\"modules_to_not_convert\": [\"model.layers.0.input_layernorm\"]}",
     {FIELD(state.params, STORED_FP8_BLOCKS), FIELD(state.rule_count, 0)}},
    {LLAMA, {FIELD(state.params, STORED_WORKING), FIELD(state.is_of_checkpoint, false)}},
};

static void formats_are_taken(void **state)
{
    check_right(quantized, sizeof quantized / sizeof quantized[0]);
    /* A job that gives a format needs no more of the block than its kind. */
    job *self = read_right(LLAMA QUANTIZED("bitsandbytes") ", \"load_in_4bit\": true, "
                                                           "\"bnb_4bit_use_double_quant\": 1, "
                                                           "\"llm_int8_skip_modules\": 5}",
                           "state.params=nf4");
    assert_int_equal(self->state.params, STORED_NF4);
    assert_int_equal(self->state.rule_count, 0);
    job_destroy(self);
}

/* ---- what is refused ---- */

static const struct wrong_case wrong[] = {
    {"\"vocab_size\": 5", NULL, {"config.json", "model_type", "missing"}},
    {"\"model_type\": \"bloom\", \"vocab_size\": 5", NULL, {"\"bloom\"", "qwen3"}},
    {"\"model_type\": \"gpt2\", \"vocab_size\": 5", NULL, {"n_layer", "missing"}},
    {GPT2 ", \"vocab_size\": -3", NULL, {"duplicate"}},
    {"\"model_type\": \"llama\", \"vocab_size\": 1.5", NULL, {"vocab_size", "1.5", "whole number"}},
    {GPT2 ", \"activation_function\": \"silu\"", NULL, {"activation_function", "\"silu\"", "relu"}},
    {GPT2 ", \"activation_function\": 7", NULL, {"activation_function", "7"}},
    {GPT2 ", \"scale_attn_by_inverse_layer_idx\": true", NULL, {"inverse_layer_idx", "not built"}},
    {GPT2 ", \"scale_attn_weights\": false", NULL, {"scale_attn_weights", "false", "not built"}},
    {GPT2 ", \"add_cross_attention\": true", NULL, {"add_cross_attention", "not built"}},
    {GPT2 ", \"layer_norm_epsilon\": 0", NULL, {"layer_norm_epsilon", "above 0"}},
    {GPT2 ", \"tie_word_embeddings\": 1", NULL, {"tie_word_embeddings", "true or false"}},
    {GPT2 ", \"resid_pdrop\": 1", NULL, {"resid_pdrop", "1", "below 1"}},
    {LLAMA ", \"attention_dropout\": \"0.1\"", NULL, {"attention_dropout", "no number"}},
    {"\"model_type\": \"gpt_neox\", " SIZES ", \"attention_bias\": false",
     NULL,
     {"attention_bias", "not built"}},
    {"\"model_type\": \"stablelm\", " SIZES ", \"num_key_value_heads\": 4, \"qk_layernorm\": true",
     NULL,
     {"qk_layernorm", "not built"}},
    {"\"model_type\": \"stablelm\", " SIZES
     ", \"num_key_value_heads\": 4, \"attention_bias\": true",
     NULL,
     {"attention_bias", "not built"}},
    {OPT ", \"do_layer_norm_before\": false", NULL, {"do_layer_norm_before", "not built"}},
    {OPT ", \"word_embed_proj_dim\": 24", NULL, {"word_embed_proj_dim", "24", "48"}},
    {OPT ", \"enable_bias\": false", NULL, {"enable_bias", "not built"}},
    {OPT ", \"_remove_final_layer_norm\": true", NULL, {"_remove_final_layer_norm"}},
    {OPT ", \"layer_norm_elementwise_affine\": false", NULL, {"layer_norm_elementwise_affine"}},
    {"\"model_type\": \"qwen2_moe\", " SIZES ", \"mlp_only_layers\": [1]",
     NULL,
     {"mlp_only_layers", "every block is a mixture"}},
    {"\"model_type\": \"qwen3_moe\", " SIZES ", \"use_sliding_window\": true",
     NULL,
     {"use_sliding_window", "mixtures"}},
    {"\"model_type\": \"olmoe\", " SIZES ", \"clip_qkv\": 8", NULL, {"clip_qkv", "not clipped"}},
    {"\"model_type\": \"olmoe\", " SIZES ", \"router_aux_loss_coef\": -1",
     NULL,
     {"router_aux_loss_coef", "no number from 0 on"}},
    {LLAMA ", \"hidden_act\": \"relu\"", NULL, {"hidden_act", "\"relu\"", "silu"}},
    {LLAMA ", \"attention_bias\": 1", NULL, {"attention_bias", "true or false"}},
    {LLAMA ", \"mlp_bias\": \"yes\"", NULL, {"mlp_bias", "true or false"}},
    {"\"model_type\": \"bert\", " SIZES ", \"position_embedding_type\": \"relative_key\"",
     NULL,
     {"position_embedding_type", "absolute"}},
    {"\"model_type\": \"bert\", " SIZES ", \"is_decoder\": true", NULL, {"is_decoder", "both"}},
    {"\"model_type\": \"bert\", " SIZES ", \"tie_word_embeddings\": false",
     NULL,
     {"tie_word_embeddings", "embedding"}},
    {"\"model_type\": \"olmo2\", " SIZES ", \"attention_bias\": true",
     NULL,
     {"attention_bias", "not built"}},
    {"\"model_type\": \"starcoder2\", " SIZES ", \"use_bias\": false",
     NULL,
     {"use_bias", "not built"}},
    {"\"model_type\": \"deepseek_v2\", " SIZES ", \"num_experts_per_tok\": 2, "
     "\"topk_method\": \"noaux_tc\"",
     NULL,
     {"topk_method", "noaux_tc", "group_limited_greedy"}},
    {"\"model_type\": \"deepseek_v2\", " SIZES ", \"num_experts_per_tok\": 2, "
     "\"norm_topk_prob\": true",
     NULL,
     {"norm_topk_prob", "not built"}},
    {"\"model_type\": \"deepseek_v3\", " SIZES ", \"first_k_dense_replace\": -1",
     NULL,
     {"first_k_dense_replace", "no whole number"}},
    {"\"model_type\": \"deepseek_v3\", " SIZES ", \"first_k_dense_replace\": 2, "
     "\"scoring_func\": \"softmax\"",
     NULL,
     {"scoring_func", "sigmoid"}},
    {"\"model_type\": \"glm4_moe\", " SIZES ", \"moe_layer_freq\": 2",
     NULL,
     {"moe_layer_freq", "mixture"}},
    {"\"model_type\": \"deepseek_v3\", " SIZES ", \"v_head_dim\": 257", NULL, {"value_head_dim"}},
    {LLAMA, "model.attention_sinks=true", {"model.attention_sinks", "leave the key out"}},
    {LLAMA, "model.kv_latent_size=8", {"model.kv_latent_size", "leave the key out"}},
    {"\"model_type\": \"phi3\", " SIZES ", \"rope_scaling\": {\"type\": \"longrope\"}",
     NULL,
     {"rope_scaling", "short_factor"}},
    {"\"model_type\": \"phi3\", " SIZES ", \"rope_scaling\": {\"type\": \"longrope\", "
     "\"short_factor\": [1, 0], \"long_factor\": [1, 2]}",
     NULL,
     {"rope_scaling.short_factor", "above 0"}},
    {"\"model_type\": \"phi3\", " SIZES ", \"rope_scaling\": {\"type\": \"longrope\", "
     "\"short_factor\": [1, 1], \"long_factor\": [1]}",
     NULL,
     {"rope_scaling.long_factor", "1 numbers"}},
    {"\"model_type\": \"phi3\", " SIZES ", \"partial_rotary_factor\": 1.5",
     NULL,
     {"partial_rotary_factor", "1.5"}},
    {"\"model_type\": \"gemma\", " SIZES ", \"use_bidirectional_attention\": true",
     NULL,
     {"use_bidirectional_attention", "causal"}},
    {"\"model_type\": \"granite\", " SIZES ", \"logits_scaling\": 0",
     NULL,
     {"logits_scaling", "above 0"}},
    {"\"model_type\": \"smollm3\", " SIZES ", \"no_rope_layers\": [0, 0, 1]",
     NULL,
     {"no_rope_layers", "rotary"}},
    {"\"model_type\": \"smollm3\", " SIZES ", \"no_rope_layers\": [1, 0]",
     NULL,
     {"no_rope_layers", "num_hidden_layers"}},
    {LLAMA ", \"partial_rotary_factor\": 0.5", NULL, {"partial_rotary_factor", "0.5"}},
    {LLAMA ", \"rope_parameters\": {\"partial_rotary_factor\": 0.25}", NULL, {"partial_rotary"}},
    {LLAMA ", \"rope_scaling\": {\"type\": \"mrope\", \"factor\": 2}", NULL, {"\"mrope\"", "yarn"}},
    {LLAMA ", \"rope_scaling\": {\"type\": \"dynamic\", \"alpha\": 2}",
     NULL,
     {"\"alpha\"", "built"}},
    {LLAMA ", \"rope_scaling\": {\"type\": \"dynamic\"}", NULL, {"factor", "missing"}},
    {LLAMA ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, \"beta_fast\": 0}",
     NULL,
     {"rope_scaling.beta_fast", "above 0"}},
    {LLAMA ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, \"truncate\": 1}",
     NULL,
     {"rope_scaling.truncate", "true or false"}},
    {LLAMA ", \"rope_scaling\": {\"type\": 3}", NULL, {"rope_scaling", "type"}},
    {LLAMA ", \"rope_scaling\": {\"type\": \"linear\"}", NULL, {"rope_scaling.factor", "missing"}},
    {LLAMA ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8}",
     NULL,
     {"rope_scaling.low_freq_factor", "missing"}},
    {LLAMA ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, "
           "\"high_freq_factor\": 4}",
     NULL,
     {"high_freq_factor", "not above"}},
    {LLAMA ", \"rope_scaling\": [1]", NULL, {"rope_scaling", "no object"}},
    {LLAMA ", \"rope_parameters\": {\"full_attention\": {\"rope_theta\": 5}}",
     NULL,
     {"rope_parameters", "full_attention", "between layers"}},
    {LLAMA ", \"rope_theta\": \"10000\"", NULL, {"rope_theta", "\"10000\""}},
    {LLAMA ", \"rope_theta\": -1", NULL, {"rope_theta", "-1"}},
    {LLAMA ", \"head_dim\": 512", NULL, {"config.json", "head_dim", "512"}},
    {LLAMA ", \"quantization_config\": {\"bits\": 4}", NULL, {"quantization_config", "missing"}},
    {LLAMA QUANTIZED("gptq") "}", NULL, {"config.json", "\"gptq\"", "bitsandbytes"}},
    {LLAMA QUANTIZED("awq") "}", NULL, {"\"awq\" is not read"}},
    {LLAMA QUANTIZED("compressed-tensors") "}", NULL, {"\"compressed-tensors\" is not read"}},
    {LLAMA QUANTIZED("bitsandbytes") "}", NULL, {"load_in_4bit", "load_in_8bit must be true"}},
    {LLAMA QUANTIZED("bitsandbytes") ", \"load_in_4bit\": true, \"bnb_4bit_quant_type\": \"int4\"}",
     NULL,
     {"bnb_4bit_quant_type", "\"int4\" is not nf4 or fp4"}},
    {LLAMA QUANTIZED("bitsandbytes") ", \"load_in_4bit\": true, \"bnb_4bit_quant_storage\": "
                                     "\"bfloat8\"}",
     NULL,
     {"bnb_4bit_quant_storage", "\"bfloat8\" is not uint8"}},
    {LLAMA QUANTIZED("bitsandbytes") ", \"load_in_4bit\": \"yes\"}",
     NULL,
     {"load_in_4bit", "neither true nor false"}},
    {LLAMA QUANTIZED("bitsandbytes") ", \"load_in_4bit\": true, \"bnb_4bit_quant_type\": 4}",
     NULL,
     {"bnb_4bit_quant_type", "no text"}},
    {LLAMA QUANTIZED("bitsandbytes") ", \"load_in_4bit\": true, \"bnb_4bit_use_double_quant\": 1}",
     NULL,
     {"bnb_4bit_use_double_quant", "neither true nor false"}},
    {LLAMA QUANTIZED("fp8") ", \"weight_block_size\": [64, 64]}",
     NULL,
     {"weight_block_size", "[128, 128]"}},
    {LLAMA QUANTIZED("fp8") "}", NULL, {"weight_block_size", "[128, 128]"}},
    {LLAMA QUANTIZED("fp8") ", \"weight_block_size\": 128}",
     NULL,
     {"weight_block_size", "no list"}},
    {LLAMA QUANTIZED("fp8") ", \"weight_block_size\": [128, 128], \"fmt\": \"e5m2\"}",
     NULL,
     {"fmt", "e4m3"}},
    {LLAMA QUANTIZED("fp8") ", \"weight_block_size\": [128, 128], \"modules_to_not_convert\": 5}",
     NULL,
     {"modules_to_not_convert", "no list"}},
    {"\"model_type\": \"llama\", \"vocab_size\": 300, \"hidden_size\": 50, \"num_hidden_layers\": "
     "3, "
     "\"num_attention_heads\": 4, \"intermediate_size\": 80",
     NULL,
     {"num_attention_heads", "4", "50"}},
    /* what the job says beside it */
    {GPT2, "model.seq_length=97", {"--set", "97", "96 positions"}},
    {LLAMA, "model.seq_length=5000", {"5000", "4096 positions"}},
    {LLAMA, "model.num_layers=4", {"model.num_layers", "4", "config.json", "says 3"}},
    {LLAMA, "model.family=gpt2", {"model.family", "\"gpt2\"", "\"llama\""}},
    {LLAMA, "model.qk_norm=true", {"model.qk_norm", "true", "says false"}},
    {LLAMA, "model.partial_rotary_factor=0.5", {"model.partial_rotary_factor", "0.5", "says 1"}},
    {LLAMA ", \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}",
     "model.seq_length=8193",
     {"8193", "8192 positions"}},
    {LLAMA, "model.rope_scaling={\"type\": \"linear\", \"factor\": 2}", {"rope_scaling", "leave"}},
    {LLAMA, "model.preset=gpt2-124m", {"model.preset", "model.hf"}},
    {LLAMA, "model.activation=gelu", {"model.activation", "\"gelu\"", "leave the key out"}},
    {LLAMA, "model.mlp_bias=true", {"model.mlp_bias", "leave the key out"}},
    {LLAMA, "model.nope_interval=2", {"model.nope_interval", "2", "leave the key out"}},
    {LLAMA, "model.attention_multiplier=0.05", {"model.attention_multiplier", "leave the key"}},
    {LLAMA, "model.embedding_multiplier=2", {"model.embedding_multiplier", "leave the key"}},
    {LLAMA, "model.residual_multiplier=2", {"model.residual_multiplier", "leave the key"}},
    {LLAMA, "model.logits_scaling=2", {"model.logits_scaling", "leave the key"}},
    {LLAMA, "model.out_bias=true", {"model.out_bias", "leave the key"}},
    {LLAMA, "model.hidden_dropout=0.1", {"model.hidden_dropout", "llama", "no such dropout"}},
    {LLAMA, "model.embedding_dropout=0.1", {"model.embedding_dropout", "llama"}},
    {LLAMA, "model.parallel_residual=true", {"model.parallel_residual", "leave the key"}},
};

static void wrong_is_refused(void **state)
{
    check_wrong(wrong, sizeof wrong / sizeof wrong[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_are_read),
        cmocka_unit_test(formats_are_taken),
        cmocka_unit_test(wrong_is_refused),
    };
    return cmocka_run_group_tests(tests, test_setup, test_teardown);
}
