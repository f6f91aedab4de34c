/* config.json of a Hugging Face checkpoint as a model block: every family, the forms of rotary
 * positions, what is absent, and what is refused by its key. */
#include <math.h>

#include "tests/config/test_config_hf.h"

#define OPT                                                                                        \
    "'model_type': 'opt', 'vocab_size': 300, 'hidden_size': 48, "                                  \
    "'num_hidden_layers': 3, 'num_attention_heads': 4, 'ffn_dim': 80, "                            \
    "'max_position_embeddings': 96"

/* ---- what is read ---- */

static const struct right_case right[] = {
    {GPT2,
     {FIELD(model.family, MODEL_GPT2), FIELD(model.num_layers, 3), FIELD(model.hidden_size, 48),
      FIELD(model.num_heads, 4), FIELD(model.num_kv_heads, 4), FIELD(model.ffn_size, 192),
      FIELD(model.vocab_size, 300), FIELD(model.position_count, 96), FIELD(model.seq_length, 96),
      FIELD(model.norm_epsilon, 1e-5), FIELD(model.tie_embeddings, true)}},
    {GPT2,
     {FIELD(model.hidden_dropout, 0.1), FIELD(model.embedding_dropout, 0.1),
      FIELD(model.attention_dropout, 0.1)}},
    {GPT2 ", 'resid_pdrop': 0, 'embd_pdrop': 0.0, 'attn_pdrop': 0.25",
     {FIELD(model.hidden_dropout, 0), FIELD(model.embedding_dropout, 0),
      FIELD(model.attention_dropout, 0.25)}},
    {"llama 'attention_dropout': 0.5",
     {FIELD(model.hidden_dropout, 0), FIELD(model.embedding_dropout, 0),
      FIELD(model.attention_dropout, 0.5)}},
    {"starcoder2 'residual_dropout': 0.2, 'embedding_dropout': 0.3, 'attention_dropout': null",
     {FIELD(model.hidden_dropout, 0.2), FIELD(model.embedding_dropout, 0.3),
      FIELD(model.attention_dropout, 0)}},
    {"phi3 'resid_pdrop': 0.2, 'embd_pdrop': 0.3",
     {FIELD(model.hidden_dropout, 0.2), FIELD(model.embedding_dropout, 0)}},
    {GPT2 ", 'n_inner': 72, 'layer_norm_epsilon': 1e-6, 'tie_word_embeddings': false, "
          "'activation_function': 'gelu_pytorch_tanh', 'reorder_and_upcast_attn': true",
     {FIELD(model.ffn_size, 72), FIELD(model.norm_epsilon, 1e-6),
      FIELD(model.tie_embeddings, false)}},
    {"'model_type': 'gpt2', 'vocab_size': 300, 'hidden_size': 64, 'num_hidden_layers': 2, "
     "'num_attention_heads': 8, 'n_inner': null",
     {FIELD(model.hidden_size, 64), FIELD(model.ffn_size, 256), FIELD(model.position_count, 1024),
      FIELD(model.seq_length, 1024)}},
    {"llama",
     {FIELD(model.family, MODEL_LLAMA), FIELD(model.num_kv_heads, 4), FIELD(model.head_dim, 12),
      FIELD(model.ffn_size, 80), FIELD(model.qkv_bias, false), FIELD(model.qk_norm, false),
      FIELD(model.norm_epsilon, 1e-6), FIELD(model.rope_theta, 10000),
      FIELD(model.rope.scaling, ROPE_PLAIN), FIELD(model.seq_length, 1024),
      FIELD(model.tie_embeddings, false)}},
    /* SmolLM, as it is published: an older form with null where nothing is scaled. */
    {"llama 'num_key_value_heads': 2, 'rms_norm_eps': 1e-05, 'rope_theta': 100000, 'rope_scaling': "
     "null, 'tie_word_embeddings': true, 'attention_bias': false, 'mlp_bias': false, 'hidden_act': "
     "'silu', 'use_cache': true, 'bos_token_id': 1",
     {FIELD(model.num_kv_heads, 2), FIELD(model.norm_epsilon, 1e-5),
      FIELD(model.rope_theta, 100000), FIELD(model.tie_embeddings, true)}},
    {"llama 'rope_theta': 500000.0, 'rope_scaling': {" LLAMA3 ", 'rope_type': 'llama3'}",
     {FIELD(model.rope_theta, 500000), FIELD(model.rope.scaling, ROPE_LLAMA3),
      FIELD(model.rope.factor, 8), FIELD(model.rope.low_freq_factor, 1),
      FIELD(model.rope.high_freq_factor, 4), FIELD(model.rope.original_positions, 8192)}},
    /* The newer form; what is in the block goes before what is outside. */
    {"llama 'rope_theta': 7, 'rope_parameters': {'rope_theta': 500000.0, " LLAMA3
     ", 'rope_type': 'llama3'}",
     {FIELD(model.rope_theta, 500000), FIELD(model.rope.scaling, ROPE_LLAMA3)}},
    {"llama 'rope_parameters': {'rope_type': 'llama3', 'factor': 8, 'low_freq_factor': 1, "
     "'high_freq_factor': 4}",
     {FIELD(model.rope.original_positions, 4096)}},
    {"llama 'rope_scaling': {'type': 'linear', 'factor': 2.5}",
     {FIELD(model.rope.scaling, ROPE_LINEAR), FIELD(model.rope.factor, 2.5)}},
    {"llama 'rope_parameters': {'rope_type': 'default', 'rope_theta': 12345.5}",
     {FIELD(model.rope.scaling, ROPE_PLAIN), FIELD(model.rope_theta, 12345.5)}},
    /* max_position_embeddings is that of the first training, as where Qwen2 is stretched by hand */
    {"llama 'rope_scaling': {'type': 'yarn', 'factor': 2.5, 'attention_factor': null, "
     "'original_max_position_embeddings': 2048, 'finetuned': true}",
     {FIELD(model.rope.scaling, ROPE_YARN), FIELD(model.rope.factor, 2.5),
      FIELD(model.rope.original_positions, 2048), FIELD(model.rope.attention_factor, 0),
      FIELD(model.rope.beta_fast, 0), FIELD(model.rope.truncates, true)}},
    {"llama 'rope_parameters': {'rope_type': 'yarn', 'rope_theta': 5e4, 'beta_fast': 16, "
     "'beta_slow': 2, 'mscale': 0.7, 'mscale_all_dim': 0.8, 'truncate': false, 'attention_factor': "
     "1.2, 'factor': null, 'low_freq_factor': 3, 'original_max_position_embeddings': 1024}",
     {FIELD(model.rope.factor, 4), FIELD(model.rope.beta_fast, 16), FIELD(model.rope.beta_slow, 2),
      FIELD(model.rope.mscale, 0.7), FIELD(model.rope.mscale_all_dim, 0.8),
      FIELD(model.rope.truncates, false), FIELD(model.rope.attention_factor, 1.2),
      FIELD(model.rope.low_freq_factor, 0), FIELD(model.rope_theta, 5e4)}},
    {"llama 'rope_scaling': {'type': 'dynamic', 'factor': 2, 'original_max_position_embeddings': "
     "7}",
     {FIELD(model.rope.scaling, ROPE_DYNAMIC), FIELD(model.rope.factor, 2),
      FIELD(model.rope.original_positions, 4096)}},
    {"phi3 'original_max_position_embeddings': 512, 'partial_rotary_factor': 0.75, 'rope_scaling': "
     "{'type': 'su', " LISTS "}",
     {FIELD(model.rope.scaling, ROPE_LONGROPE), FIELD(model.rope.factor, 8),
      FIELD(model.rope.original_positions, 512), FIELD(model.partial_rotary_factor, 0.75),
      FIELD(model.rope.pair_count, 4), FIELD(model.rope.short_factors[3], 1.5),
      FIELD(model.rope.long_factors[0], 2)}},
    /* Phi-3 has the number of first positions outside the block, even if it is only the default. */
    {"phi3 'rope_parameters': {'rope_type': 'longrope', 'attention_factor': 1.25, "
     "'original_max_position_embeddings': 512, 'partial_rotary_factor': 0.5, " LISTS "}",
     {FIELD(model.rope.original_positions, 4096), FIELD(model.rope.attention_factor, 1.25),
      FIELD(model.partial_rotary_factor, 0.5)}},
    {"mistral 'head_dim': 16, 'num_key_value_heads': 1, 'sliding_window': null",
     {FIELD(model.family, MODEL_LLAMA), FIELD(model.head_dim, 16), FIELD(model.num_kv_heads, 1),
      FIELD(model.qkv_bias, false), FIELD(model.seq_length, 1024)}},
    {"qwen2 'num_key_value_heads': 2, 'use_sliding_window': false, 'sliding_window': 128",
     {FIELD(model.family, MODEL_LLAMA), FIELD(model.qkv_bias, true), FIELD(model.qk_norm, false),
      FIELD(model.tie_embeddings, false), FIELD(model.window, 0)}},
    {GPT2 ", 'activation_function': 'gelu'", {FIELD(model.activation, ACTIVATION_NAMED_GELU)}},
    {"llama 'attention_bias': true, 'mlp_bias': true, 'hidden_act': 'gelu'",
     {FIELD(model.qkv_bias, true), FIELD(model.out_bias, true), FIELD(model.mlp_bias, true),
      FIELD(model.activation, ACTIVATION_NAMED_GELU)}},
    {"starcoder2 'sliding_window': 64",
     {FIELD(model.family, MODEL_STARCODER2), FIELD(model.num_kv_heads, 2),
      FIELD(model.activation, ACTIVATION_OF_FAMILY), FIELD(model.norm_epsilon, 1e-5),
      FIELD(model.tie_embeddings, true), FIELD(model.window, 64)}},
    {"phi3",
     {FIELD(model.family, MODEL_PHI3), FIELD(model.num_kv_heads, 4),
      FIELD(model.norm_epsilon, 1e-5), FIELD(model.tie_embeddings, false)}},
    {"gemma 'num_key_value_heads': 1, 'head_dim': 12, 'hidden_act': 'gelu', 'hidden_activation': "
     "'gelu_pytorch_tanh'",
     {FIELD(model.family, MODEL_GEMMA), FIELD(model.activation, ACTIVATION_OF_FAMILY),
      FIELD(model.embedding_multiplier, sqrt(48)), FIELD(model.tie_embeddings, true)}},
    {"gemma 'hidden_act': 'gelu'", {FIELD(model.activation, ACTIVATION_OF_FAMILY)}},
    {"bert",
     {FIELD(model.family, MODEL_BERT), FIELD(model.num_kv_heads, 4), FIELD(model.head_dim, 0),
      FIELD(model.position_count, 4096), FIELD(model.type_count, 2), FIELD(model.qkv_bias, true),
      FIELD(model.activation, ACTIVATION_OF_FAMILY), FIELD(model.norm_epsilon, 1e-12),
      FIELD(model.hidden_dropout, 0.1), FIELD(model.attention_dropout, 0.1),
      FIELD(model.tie_embeddings, true), FIELD(model.seq_length, 1024)}},
    {"'model_type': 'bert', 'vocab_size': 300, 'type_vocab_size': 1, 'hidden_act': 'gelu_new', "
     "'layer_norm_eps': 1e-5",
     {FIELD(model.num_layers, 12), FIELD(model.hidden_size, 768), FIELD(model.ffn_size, 3072),
      FIELD(model.type_count, 1), FIELD(model.activation, ACTIVATION_NAMED_GELU_TANH),
      FIELD(model.norm_epsilon, 1e-5), FIELD(model.seq_length, 512)}},
    {"olmo2", {FIELD(model.family, MODEL_OLMO2), FIELD(model.norm_epsilon, 1e-5)}},
    {"glm4",
     {FIELD(model.family, MODEL_GLM4), FIELD(model.num_kv_heads, 2), FIELD(model.head_dim, 128),
      FIELD(model.qkv_bias, true), FIELD(model.out_bias, false),
      FIELD(model.partial_rotary_factor, 0.5), FIELD(model.norm_epsilon, 1.5625e-7)}},
    {"glm 'head_dim': 12, 'attention_bias': false, 'rope_parameters': {'partial_rotary_factor': "
     "1.0}",
     {FIELD(model.family, MODEL_GLM), FIELD(model.qkv_bias, false),
      FIELD(model.partial_rotary_factor, 1)}},
    {"deepseek_v3",
     {FIELD(model.family, MODEL_DEEPSEEK), FIELD(model.q_latent_size, 1536),
      FIELD(model.kv_latent_size, 512), FIELD(model.head_dim, 192), FIELD(model.rope_head_dim, 64),
      FIELD(model.value_head_dim, 128), FIELD(model.num_kv_heads, 4),
      FIELD(model.rope_halves, false), FIELD(model.qkv_bias, false),
      FIELD(model.norm_epsilon, 1e-6), FIELD(model.tie_embeddings, false)}},
    {"deepseek_v3 'q_lora_rank': 20, 'kv_lora_rank': 24, 'qk_nope_head_dim': 12, "
     "'qk_rope_head_dim': 4, 'v_head_dim': 10, 'head_dim': 4, 'rope_interleave': false, "
     "'attention_bias': true, 'num_key_value_heads': 4",
     {FIELD(model.q_latent_size, 20), FIELD(model.kv_latent_size, 24), FIELD(model.head_dim, 16),
      FIELD(model.rope_head_dim, 4), FIELD(model.value_head_dim, 10),
      FIELD(model.rope_halves, true), FIELD(model.qkv_bias, true), FIELD(model.out_bias, true)}},
    {"deepseek_v2 'first_k_dense_replace': 3, 'q_lora_rank': null, 'mlp_bias': true, "
     "'rope_interleave': false",
     {FIELD(model.q_latent_size, 0), FIELD(model.mlp_bias, true), FIELD(model.rope_halves, false),
      FIELD(model.out_bias, false)}},
    {"deepseek_v3 'first_k_dense_replace': 1",
     {FIELD(model.expert_count, 256), FIELD(model.experts_per_token, 8),
      FIELD(model.expert_ffn_size, 2048), FIELD(model.shared_ffn_size, 2048),
      FIELD(model.expert_groups, 8), FIELD(model.groups_per_token, 4),
      FIELD(model.sigmoid_scores, true), FIELD(model.normalizes_experts, true),
      FIELD(model.routed_scaling, 2.5), FIELD(model.dense_blocks, 1)}},
    {"deepseek_v2 'num_experts_per_tok': 6, 'n_group': 8, 'topk_group': 3, 'topk_method': "
     "'group_limited_greedy'",
     {FIELD(model.expert_count, 64), FIELD(model.shared_ffn_size, 2 * 1407),
      FIELD(model.expert_groups, 8), FIELD(model.groups_per_token, 3),
      FIELD(model.sigmoid_scores, false), FIELD(model.routed_scaling, 0),
      FIELD(model.dense_blocks, 0)}},
    {"glm4_moe 'use_qk_norm': true, 'head_dim': 12",
     {FIELD(model.family, MODEL_GLM4_MOE), FIELD(model.expert_count, 128),
      FIELD(model.shared_ffn_size, 1408), FIELD(model.expert_groups, 0),
      FIELD(model.sigmoid_scores, true), FIELD(model.qk_norm, true),
      FIELD(model.partial_rotary_factor, 0.5), FIELD(model.dense_blocks, 1)}},
    {"gpt_neox",
     {FIELD(model.family, MODEL_GPT_NEOX), FIELD(model.activation, ACTIVATION_OF_FAMILY),
      FIELD(model.partial_rotary_factor, 0.25), FIELD(model.rope_theta, 10000),
      FIELD(model.parallel_residual, true), FIELD(model.norm_epsilon, 1e-5),
      FIELD(model.tie_embeddings, false)}},
    {"gpt_neox 'rotary_pct': 1.0, 'rotary_emb_base': 5000, 'use_parallel_residual': false, "
     "'hidden_act': 'gelu_new', 'layer_norm_eps': 1e-6",
     {FIELD(model.partial_rotary_factor, 1), FIELD(model.rope_theta, 5000),
      FIELD(model.parallel_residual, false), FIELD(model.activation, ACTIVATION_NAMED_GELU_TANH),
      FIELD(model.norm_epsilon, 1e-6)}},
    {"cohere",
     {FIELD(model.family, MODEL_COHERE), FIELD(model.num_kv_heads, 4),
      FIELD(model.logits_scaling, 16), FIELD(model.qk_norm, false), FIELD(model.qkv_bias, false),
      FIELD(model.rope_theta, 500000), FIELD(model.norm_epsilon, 1e-5),
      FIELD(model.tie_embeddings, true)}},
    {"cohere 'logit_scale': 0.5, 'use_qk_norm': true, 'attention_bias': true",
     {FIELD(model.logits_scaling, 2), FIELD(model.qk_norm, true), FIELD(model.qkv_bias, true),
      FIELD(model.out_bias, true)}},
    {"phi", /* with transformers' defaults */
     {FIELD(model.family, MODEL_PHI), FIELD(model.partial_rotary_factor, 0.5),
      FIELD(model.norm_epsilon, 1e-5), FIELD(model.num_kv_heads, 4),
      FIELD(model.activation, ACTIVATION_OF_FAMILY), FIELD(model.tie_embeddings, false),
      FIELD(model.hidden_dropout, 0), FIELD(model.embedding_dropout, 0)}},
    {"phi 'partial_rotary_factor': 0.25, 'hidden_act': 'gelu', 'resid_pdrop': 0.1, 'embd_pdrop': "
     "0.2, 'attention_dropout': 0.3, 'num_key_value_heads': 2, 'layer_norm_eps': 1e-6",
     {FIELD(model.partial_rotary_factor, 0.25), FIELD(model.activation, ACTIVATION_NAMED_GELU),
      FIELD(model.hidden_dropout, 0.1), FIELD(model.embedding_dropout, 0.2),
      FIELD(model.attention_dropout, 0.3), FIELD(model.num_kv_heads, 2),
      FIELD(model.norm_epsilon, 1e-6)}},
    {"stablelm 'num_key_value_heads': 4",
     {FIELD(model.family, MODEL_STABLELM), FIELD(model.partial_rotary_factor, 0.25),
      FIELD(model.parallel_residual, false), FIELD(model.qkv_bias, false),
      FIELD(model.norm_epsilon, 1e-5), FIELD(model.tie_embeddings, false)}},
    {"stablelm 'num_key_value_heads': 2, 'partial_rotary_factor': 0.5, 'use_qkv_bias': true, "
     "'use_parallel_residual': true",
     {FIELD(model.partial_rotary_factor, 0.5), FIELD(model.parallel_residual, true),
      FIELD(model.qkv_bias, true), FIELD(model.num_kv_heads, 2)}},
    {OPT,
     {FIELD(model.family, MODEL_OPT), FIELD(model.num_kv_heads, 4), FIELD(model.ffn_size, 80),
      FIELD(model.position_count, 96), FIELD(model.seq_length, 96),
      FIELD(model.activation, ACTIVATION_OF_FAMILY), FIELD(model.norm_epsilon, 1e-5),
      FIELD(model.tie_embeddings, true)}},
    {OPT ", 'activation_function': 'gelu', 'word_embed_proj_dim': 48, 'dropout': 0.1",
     {FIELD(model.activation, ACTIVATION_NAMED_GELU)}},
    {"mixtral 'num_key_value_heads': 2, 'num_local_experts': 6, 'sliding_window': 128",
     {FIELD(model.family, MODEL_MIXTRAL), FIELD(model.expert_count, 6),
      FIELD(model.experts_per_token, 2), FIELD(model.expert_ffn_size, 80),
      FIELD(model.normalizes_experts, true), FIELD(model.window, 128),
      FIELD(model.rope_theta, 1000000)}},
    {"qwen2_moe 'num_key_value_heads': 4, 'moe_intermediate_size': 32, 'mlp_only_layers': []",
     {FIELD(model.family, MODEL_QWEN2_MOE), FIELD(model.expert_count, 60),
      FIELD(model.expert_ffn_size, 32), FIELD(model.shared_ffn_size, 5632),
      FIELD(model.qkv_bias, true), FIELD(model.normalizes_experts, false)}},
    {"qwen3_moe 'num_experts': 16, 'norm_topk_prob': true, 'head_dim': 12",
     {FIELD(model.expert_count, 16), FIELD(model.experts_per_token, 8),
      FIELD(model.expert_ffn_size, 768), FIELD(model.normalizes_experts, true),
      FIELD(model.qk_norm, true)}},
    {"qwen3_moe 'num_local_experts': 16", {FIELD(model.expert_count, 16)}},
    {"olmoe 'router_aux_loss_coef': 0.02",
     {FIELD(model.family, MODEL_OLMOE), FIELD(model.expert_count, 64),
      FIELD(model.expert_ffn_size, 80), FIELD(model.norm_epsilon, 1e-5),
      FIELD(model.balance_coef, 0)}},
    {"olmoe 'output_router_logits': true",
     {FIELD(model.balance_coef, 0.01), FIELD(model.router_z_coef, 0)}},
    {"mixtral 'num_key_value_heads': 2, 'output_router_logits': true",
     {FIELD(model.balance_coef, 0.001)}},
    {"qwen3_moe 'output_router_logits': true, 'router_aux_loss_coef': 0",
     {FIELD(model.balance_coef, 0)}},
    {"gpt_oss 'num_local_experts': 16, 'rope_scaling': {'rope_type': 'yarn', 'factor': 32, "
     "'truncate': false}, 'rope_theta': 150000",
     {FIELD(model.family, MODEL_GPT_OSS), FIELD(model.expert_count, 16),
      FIELD(model.experts_per_token, 4), FIELD(model.expert_ffn_size, 80),
      FIELD(model.qkv_bias, true), FIELD(model.out_bias, true), FIELD(model.swiglu_limit, 7),
      FIELD(model.window, 128), FIELD_IS_TEXT(model.window_pattern, "wf"),
      FIELD(model.rope.truncates, false)}},
    {"granite 'embedding_multiplier': 12, 'logits_scaling': 8, 'residual_multiplier': 1",
     {FIELD(model.family, MODEL_LLAMA), FIELD(model.embedding_multiplier, 12),
      FIELD(model.logits_scaling, 8), FIELD(model.residual_multiplier, 0),
      FIELD(model.attention_multiplier, 1)}},
    {"smollm3 'num_key_value_heads': 2, 'no_rope_layers': [1, 0, 1]",
     {FIELD(model.family, MODEL_LLAMA), FIELD(model.nope_interval, 2),
      FIELD(model.rope_theta, 2000000), FIELD(model.tie_embeddings, true)}},
    {"qwen3 'num_key_value_heads': 2, 'tie_word_embeddings': true, 'use_sliding_window': true, "
     "'sliding_window': 128, 'layer_types': ['full_attention', 'full_attention', 'full_attention']",
     {FIELD(model.head_dim, 128), FIELD(model.qk_norm, true), FIELD(model.qkv_bias, false),
      FIELD(model.tie_embeddings, true), FIELD(model.window, 0)}},
};

static void families_are_read(void **state)
{
    check_right(right, sizeof right / sizeof right[0]);
}

static void what_is_read_is_written(void **state)
{
    check_written(right, sizeof right / sizeof right[0]);
}

/* Keys with one value that is built are written too: some readers demand them. */
static void keys_of_one_value_are_written(void **state)
{
    static const struct {
        const char *keys, *lines[2];
    } rows[] = {
        {"qwen2_moe", {"\"decoder_sparse_step\": 1,", "\"mlp_only_layers\": [],"}},
        {"qwen3_moe", {"\"decoder_sparse_step\": 1,", "\"mlp_only_layers\": [],"}},
        {"mixtral 'num_key_value_heads': 2", {"\"router_jitter_noise\": 0.0,", "\"silu\""}},
        {"olmoe", {"\"clip_qkv\": null,", "\"silu\""}},
        {"gpt_oss 'num_key_value_heads': 2, 'rope_scaling': {'type': 'default'}",
         {"\"swiglu_alpha\": 1.702,", "\"hidden_act\": \"silu\","}},
        {OPT, {"\"word_embed_proj_dim\": 48,", "\"layerdrop\": 0.0,"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        job *self = read_right(rows[i].keys, NULL);
        char *text;
        assert_int_equal(config_write_hf(self, "float32", NULL, &text), 0);
        for (int k = 0; k < 2; k++)
            if (!strstr(text, rows[i].lines[k]))
                fail_msg("no %s in: %s", rows[i].lines[k], text);
        mem_free(text);
        job_destroy(self);
    }
}

/* Models that no config.json can describe: the refusal names what each model_type cannot say. */
static void what_no_file_says_is_refused(void **state)
{
#define OF(family) "'family': '" family "', 'num_layers': 2, 'hidden_size': 32, 'num_heads': 4, "
    static const struct {
        const char *keys, *words;
    } rows[] = {
        {OF("llama") "'attention_sinks': true",
         "llama model.attention_sinks, mistral model.attention_sinks"},
        {OF("llama") "'mlp_bias': true, 'qk_norm': true", "qwen3 model.mlp_bias"},
        {OF("starcoder2") "'window': 8, 'window_pattern': 'wf'", "starcoder2 model.window_pattern"},
        {OF("stablelm") "'head_dim': 16", "stablelm model.head_dim"},
        {OF("phi3") "'rope_scaling': {'type': 'linear', 'factor': 2}",
         "phi3 (the new config.json: rope_scaling: the type"},
        {OF("gpt_neox") "'hidden_dropout': 0.1, 'embedding_dropout': 0.2",
         "gpt_neox model.hidden_dropout"},
        {OF("phi3") "'rope_scaling': {'type': 'longrope', 'factor': 1.7, "
                    "'original_max_position_embeddings': 33, " LISTS "}",
         "each model_type cannot express: phi3 model.rope_scaling.factor"},
        {OF("opt") "'norm_epsilon': 1.0000001e-5", "opt model.norm_epsilon"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[512], *config;
        job *self;
        snprintf(text, sizeof text,
                 "{'model': {%s, 'vocab_size': 300, 'seq_length': 64}, " SMALL_REST "}",
                 rows[i].keys);
        assert_int_equal(read_text(text, NULL, &self), 0);
        assert_error(config_write_hf(self, "float32", NULL, &config), ERR_CONFIG, rows[i].words);
        assert_null(config);
        job_destroy(self);
    }
}

/* ---- what comes quantized ---- */

#define BITSANDBYTES "llama 'quantization_config': {'quant_method': 'bitsandbytes', "
#define FP8          "llama 'quantization_config': {'quant_method': 'fp8', "
#define SIX(N)       "'" N "0', '" N "1', '" N "2', '" N "3', '" N "4', '" N "5'"

static const struct right_case quantized[] = {
    {BITSANDBYTES
     "'load_in_4bit': true, 'bnb_4bit_quant_type': 'nf4', 'bnb_4bit_use_double_quant': true, "
     "'llm_int8_skip_modules': ['lm_head', 'model.layers.0.mlp']}",
     {FIELD(model.stored.format, STORED_NF4_DOUBLE), FIELD(model.stored.rule_count, 1),
      FIELD_IS_TEXT(model.stored.rules[0].name, "model.layers.0.mlp"),
      FIELD(model.stored.rules[0].format, STORED_WORKING),
      FIELD(model.stored.is_of_checkpoint, true)}},
    {BITSANDBYTES "'load_in_4bit': true}",
     {FIELD(model.stored.format, STORED_FP4), FIELD(model.stored.rule_count, 0)}},
    {BITSANDBYTES "'load_in_4bit': true, 'bnb_4bit_quant_storage': 'torch.bfloat16'}",
     {FIELD(model.stored.format, STORED_FP4)}},
    {BITSANDBYTES "'load_in_8bit': true, 'load_in_4bit': false}",
     {FIELD(model.stored.format, STORED_INT8_ROWS)}},
    {BITSANDBYTES "'load_in_8bit': true, 'llm_int8_skip_modules': [" SIX("a") ", " SIX(
         "b") ", " SIX("c") ", " SIX("d") ", " SIX("e") ", " SIX("f") "]}",
     {FIELD(model.stored.rule_count, 36)}},
    {FP8 "'weight_block_size': [128, 128], 'fmt': 'e4m3', 'modules_to_not_convert': "
         "['model.layers.0.input_layernorm']}",
     {FIELD(model.stored.format, STORED_FP8_BLOCKS), FIELD(model.stored.rule_count, 0)}},
    {"llama",
     {FIELD(model.stored.format, STORED_WORKING), FIELD(model.stored.is_of_checkpoint, false)}},
};

static void formats_are_taken(void **state)
{
    check_right(quantized, sizeof quantized / sizeof quantized[0]);
    /* A job that gives a format needs no more of the block than its kind. */
    job *self = read_right(BITSANDBYTES "'load_in_4bit': true, 'bnb_4bit_use_double_quant': 1, "
                                        "'llm_int8_skip_modules': 5}",
                           "state.params=nf4");
    assert_int_equal(self->model.stored.format, STORED_NF4);
    assert_int_equal(self->model.stored.rule_count, 0);
    job_destroy(self);
}

/* ---- what is refused ---- */

static const struct wrong_case wrong[] = {
    {"'vocab_size': 5", {"config.json", "model_type", "missing"}},
    {"'model_type': 'bloom', 'text_config': {'vocab_size': 5}", {"\"bloom\"", "qwen3"}},
    {"'model_type': 'gpt2', 'vocab_size': 5", {"n_layer", "missing"}},
    {GPT2 ", 'vocab_size': -3", {"duplicate"}},
    {"'model_type': 'llama', 'vocab_size': 1.5", {"vocab_size", "1.5", "whole number"}},
    {GPT2 ", 'activation_function': 'silu'", {"activation_function", "\"silu\"", "relu"}},
    {GPT2 ", 'activation_function': 7", {"activation_function", "7"}},
    {GPT2 ", 'scale_attn_by_inverse_layer_idx': true", {"inverse_layer_idx", "not built"}},
    {GPT2 ", 'scale_attn_weights': false", {"scale_attn_weights", "false", "not built"}},
    {GPT2 ", 'add_cross_attention': true", {"add_cross_attention", "not built"}},
    {GPT2 ", 'layer_norm_epsilon': 0", {"layer_norm_epsilon", "above 0"}},
    {GPT2 ", 'tie_word_embeddings': 1", {"tie_word_embeddings", "true or false"}},
    {GPT2 ", 'resid_pdrop': 1", {"resid_pdrop", "1", "below 1"}},
    {"llama 'attention_dropout': '0.1'", {"attention_dropout", "no number"}},
    {"gpt_neox 'attention_bias': false", {"attention_bias", "not built"}},
    {"gpt_neox 'head_dim': 16", {"config.json: head_dim: 16", "not built"}},
    {"stablelm 'num_key_value_heads': 4, 'head_dim': 16", {"config.json: head_dim: 16"}},
    {"stablelm 'num_key_value_heads': 4, 'qk_layernorm': true", {"qk_layernorm", "not built"}},
    {"stablelm 'num_key_value_heads': 4, 'attention_bias': true", {"attention_bias", "not built"}},
    {OPT ", 'do_layer_norm_before': false", {"do_layer_norm_before", "not built"}},
    {OPT ", 'word_embed_proj_dim': 24", {"word_embed_proj_dim", "24", "only 48 is"}},
    {OPT ", 'layerdrop': 0.1", {"layerdrop", "0.1 is not built", "no layer is left out"}},
    {OPT ", 'enable_bias': false", {"enable_bias", "not built"}},
    {OPT ", 'enable_bias': []", {"enable_bias", "[] is not built, only true is"}},
    {GPT2 ", 'scale_attn_weights': 1", {"scale_attn_weights", "1 is not built, only true is"}},
    {OPT ", '_remove_final_layer_norm': true", {"_remove_final_layer_norm"}},
    {OPT ", 'layer_norm_elementwise_affine': false", {"layer_norm_elementwise_affine"}},
    {"qwen2_moe 'mlp_only_layers': [1]", {"mlp_only_layers", "every block is a mixture"}},
    {"qwen2_moe 'mlp_only_layers': 0", {"mlp_only_layers", "0 is not built, only [] is"}},
    {"qwen3_moe 'decoder_sparse_step': true", {"decoder_sparse_step", "true is not built, only 1"}},
    {"qwen3_moe 'use_sliding_window': true", {"use_sliding_window", "mixtures"}},
    {"olmoe 'clip_qkv': 8", {"clip_qkv", "not clipped"}},
    {"olmoe 'router_aux_loss_coef': -1", {"router_aux_loss_coef", "no number from 0 on"}},
    {"llama 'hidden_act': 'relu'", {"hidden_act", "\"relu\"", "silu"}},
    {"llama 'attention_bias': 1", {"attention_bias", "true or false"}},
    {"llama 'mlp_bias': 'yes'", {"mlp_bias", "true or false"}},
    {"bert 'position_embedding_type': 'relative_key'", {"position_embedding_type", "absolute"}},
    {"bert 'is_decoder': true", {"is_decoder", "both"}},
    {"bert 'tie_word_embeddings': false", {"tie_word_embeddings", "embedding"}},
    {"olmo2 'attention_bias': true", {"attention_bias", "not built"}},
    {"phi 'qk_layernorm': true", {"qk_layernorm", "not built"}},
    {"phi 'hidden_act': 'silu'", {"hidden_act", "\"silu\"", "relu"}},
    {"starcoder2 'use_bias': false", {"use_bias", "not built"}},
    {"deepseek_v2 'num_experts_per_tok': 2, 'topk_method': 'noaux_tc'",
     {"topk_method", "noaux_tc", "group_limited_greedy"}},
    {"deepseek_v2 'num_experts_per_tok': 2, 'norm_topk_prob': true",
     {"norm_topk_prob", "not built"}},
    {"deepseek_v3 'first_k_dense_replace': -1", {"first_k_dense_replace", "no whole number"}},
    {"deepseek_v3 'first_k_dense_replace': 2, 'scoring_func': 'softmax'",
     {"scoring_func", "sigmoid"}},
    {"glm4_moe 'moe_layer_freq': 2", {"moe_layer_freq", "mixture"}},
    {"deepseek_v3 'v_head_dim': 257", {"value_head_dim"}},
    {"llama", {"model.attention_sinks", "leave the key out"}, "model.attention_sinks=true"},
    {"llama", {"model.kv_latent_size", "leave the key out"}, "model.kv_latent_size=8"},
    {"phi3 'rope_scaling': {'type': 'longrope'}", {"rope_scaling", "short_factor"}},
    {"phi3 'rope_scaling': {'type': 'longrope', 'short_factor': [1, 0], 'long_factor': [1, 2]}",
     {"rope_scaling.short_factor", "above 0"}},
    {"phi3 'rope_scaling': {'type': 'longrope', 'short_factor': [1, 1], 'long_factor': [1]}",
     {"rope_scaling.long_factor", "1 numbers"}},
    {"phi3 'partial_rotary_factor': 1.5", {"partial_rotary_factor", "1.5"}},
    {"gemma 'use_bidirectional_attention': true", {"use_bidirectional_attention", "causal"}},
    {"granite 'logits_scaling': 0", {"logits_scaling", "above 0"}},
    {"smollm3 'no_rope_layers': [0, 0, 1]", {"no_rope_layers", "rotary"}},
    {"smollm3 'no_rope_layers': [1, 0]", {"no_rope_layers", "num_hidden_layers"}},
    {"llama 'partial_rotary_factor': 0.5", {"partial_rotary_factor", "0.5"}},
    {"llama 'rope_parameters': {'partial_rotary_factor': 0.25}", {"partial_rotary"}},
    {"llama 'rope_scaling': {'type': 'mrope', 'factor': 2}", {"\"mrope\"", "yarn"}},
    {"llama 'rope_scaling': {'type': 'dynamic', 'alpha': 2}", {"\"alpha\"", "built"}},
    {"llama 'rope_scaling': {'type': 'dynamic'}", {"factor", "missing"}},
    {"llama 'rope_scaling': {'type': 'yarn', 'factor': 2, 'beta_fast': 0}",
     {"rope_scaling.beta_fast", "above 0"}},
    {"llama 'rope_scaling': {'type': 'yarn', 'factor': 2, 'truncate': 1}",
     {"rope_scaling.truncate", "true or false"}},
    {"llama 'rope_scaling': {'type': 3}", {"rope_scaling", "type"}},
    {"llama 'rope_scaling': {'type': 'linear'}", {"rope_scaling.factor", "missing"}},
    {"llama 'rope_scaling': {'rope_type': 'llama3', 'factor': 8}",
     {"rope_scaling.low_freq_factor", "missing"}},
    {"llama 'rope_scaling': {'rope_type': 'llama3', 'factor': 8, 'low_freq_factor': 4, "
     "'high_freq_factor': 4}",
     {"high_freq_factor", "not above"}},
    {"llama 'rope_scaling': [1]", {"rope_scaling", "no object"}},
    {"llama 'rope_parameters': {'full_attention': {'rope_theta': 5}}",
     {"rope_parameters", "full_attention", "between layers"}},
    {"llama 'rope_theta': '10000'", {"rope_theta", "\"10000\""}},
    {"llama 'rope_theta': -1", {"rope_theta", "-1"}},
    {"llama 'head_dim': 512", {"config.json", "head_dim", "512"}},
    {"llama 'quantization_config': {'bits': 4}", {"quantization_config", "missing"}},
    {"llama 'quantization_config': {'quant_method': 'gptq'}",
     {"config.json", "\"gptq\"", "bitsandbytes"}},
    {"llama 'quantization_config': {'quant_method': 'awq'}", {"\"awq\" is not read"}},
    {"llama 'quantization_config': {'quant_method': 'compressed-tensors'}",
     {"\"compressed-tensors\" is not read"}},
    {"llama 'quantization_config': {'quant_method': 'bitsandbytes'}",
     {"load_in_4bit", "load_in_8bit must be true"}},
    {BITSANDBYTES "'load_in_4bit': true, 'bnb_4bit_quant_type': 'int4'}",
     {"bnb_4bit_quant_type", "\"int4\" is not nf4 or fp4"}},
    {BITSANDBYTES "'load_in_4bit': true, 'bnb_4bit_quant_storage': 'bfloat8'}",
     {"bnb_4bit_quant_storage", "\"bfloat8\" is not uint8"}},
    {BITSANDBYTES "'load_in_4bit': 'yes'}", {"load_in_4bit", "neither true nor false"}},
    {BITSANDBYTES "'load_in_4bit': true, 'bnb_4bit_quant_type': 4}",
     {"bnb_4bit_quant_type", "no text"}},
    {BITSANDBYTES "'load_in_4bit': true, 'bnb_4bit_use_double_quant': 1}",
     {"bnb_4bit_use_double_quant", "neither true nor false"}},
    {FP8 "'weight_block_size': [64, 64]}", {"weight_block_size", "[128, 128]"}},
    {"llama 'quantization_config': {'quant_method': 'fp8'}", {"weight_block_size", "[128, 128]"}},
    {FP8 "'weight_block_size': 128}", {"weight_block_size", "no list"}},
    {FP8 "'weight_block_size': [128, 128], 'fmt': 'e5m2'}", {"fmt", "e4m3"}},
    {FP8 "'weight_block_size': [128, 128], 'modules_to_not_convert': 5}",
     {"modules_to_not_convert", "no list"}},
    {"'model_type': 'llama', 'vocab_size': 300, 'hidden_size': 50, 'num_hidden_layers': 3, "
     "'num_attention_heads': 4, 'intermediate_size': 80",
     {"num_attention_heads", "4", "50"}},
    /* what the job says beside it */
    {GPT2, {"--set", "97", "96 positions"}, "model.seq_length=97"},
    {"llama", {"5000", "4096 positions"}, "model.seq_length=5000"},
    {"llama", {"model.num_layers", "4", "config.json", "says 3"}, "model.num_layers=4"},
    {"llama", {"model.family", "\"gpt2\"", "\"llama\""}, "model.family=gpt2"},
    {"llama", {"model.qk_norm", "true", "says false"}, "model.qk_norm=true"},
    {"llama", {"model.partial_rotary_factor", "0.5", "says 1"}, "model.partial_rotary_factor=0.5"},
    {"llama 'rope_scaling': {'type': 'dynamic', 'factor': 2}",
     {"8193", "8192 positions"},
     "model.seq_length=8193"},
    {"llama", {"rope_scaling", "leave"}, "model.rope_scaling={'type': 'linear', 'factor': 2}"},
    {"llama", {"model.preset", "model.hf"}, "model.preset=gpt2-124m"},
    {"llama", {"model.activation", "\"gelu\"", "leave the key out"}, "model.activation=gelu"},
    {"llama", {"model.mlp_bias", "leave the key out"}, "model.mlp_bias=true"},
    {"llama", {"model.nope_interval", "2", "leave the key out"}, "model.nope_interval=2"},
    {"llama", {"model.attention_multiplier", "leave the key"}, "model.attention_multiplier=0.05"},
    {"llama", {"model.embedding_multiplier", "leave the key"}, "model.embedding_multiplier=2"},
    {"llama", {"model.residual_multiplier", "leave the key"}, "model.residual_multiplier=2"},
    {"llama", {"model.logits_scaling", "leave the key"}, "model.logits_scaling=2"},
    {"llama", {"model.out_bias", "leave the key"}, "model.out_bias=true"},
    {"llama", {"model.hidden_dropout", "llama", "no such dropout"}, "model.hidden_dropout=0.1"},
    {"llama", {"model.embedding_dropout", "llama"}, "model.embedding_dropout=0.1"},
    {"llama", {"model.parallel_residual", "leave the key"}, "model.parallel_residual=true"},
};

static void wrong_is_refused(void **state)
{
    check_wrong(wrong, sizeof wrong / sizeof wrong[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_are_read),
        cmocka_unit_test(what_is_read_is_written),
        cmocka_unit_test(keys_of_one_value_are_written),
        cmocka_unit_test(what_no_file_says_is_refused),
        cmocka_unit_test(formats_are_taken),
        cmocka_unit_test(wrong_is_refused),
    };
    return cmocka_run_group_tests(tests, test_setup, test_teardown);
}
