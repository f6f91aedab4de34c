/* Windows of attention in config.json of a checkpoint, for every family that has them; Gemma 2 and
 * 3, which have them in some layers only, with their soft caps and rotary positions. */
#include <math.h>

#include "tests/config/test_config_hf.h"

static const struct right_case right[] = {
    {"mistral 'num_key_value_heads': 4, 'sliding_window': 128",
     {FIELD(model.head_dim, 12), FIELD(model.seq_length, 1024), FIELD(model.window, 128),
      FIELD_IS_TEXT(model.window_pattern, "")}},
    {"mistral 'num_key_value_heads': 4", {FIELD(model.window, 4096)}},
    {"qwen2 'num_key_value_heads': null, 'use_sliding_window': true, 'sliding_window': 128, "
     "'max_window_layers': 3",
     {FIELD(model.num_kv_heads, 4), FIELD(model.window, 0)}},
    {"qwen2 'num_key_value_heads': 2, 'use_sliding_window': true, 'sliding_window': 128, "
     "'max_window_layers': 0",
     {FIELD(model.window, 128), FIELD_IS_TEXT(model.window_pattern, "")}},
    {"qwen3 'num_key_value_heads': 2, 'use_sliding_window': true, 'max_window_layers': 1",
     {FIELD(model.window, 4096), FIELD_IS_TEXT(model.window_pattern, "fww")}},
    {"qwen2 'num_key_value_heads': 2, 'use_sliding_window': true, 'sliding_window': 128, "
     "'layer_types': ['sliding_attention', 'full_attention', 'sliding_attention']",
     {FIELD(model.window, 128), FIELD_IS_TEXT(model.window_pattern, "wf")}},
    {"phi3 'sliding_window': 64", {FIELD(model.window, 64)}},
    {"smollm3 'num_key_value_heads': 2, 'no_rope_layers': [1, 1, 0], 'use_sliding_window': true, "
     "'sliding_window': 64",
     {FIELD(model.window, 64), FIELD_IS_TEXT(model.window_pattern, "ffw"),
      FIELD(model.nope_interval, 3)}},
    /* OLMo 3 as it was published, and as transformers writes it now. */
    {"olmo3 'sliding_window': 64, 'rope_theta': 500000, 'rope_scaling': {'rope_type': 'yarn', "
     "'factor': 8.0, 'original_max_position_embeddings': 512, 'attention_factor': 1.2}, "
     "'layer_types': ['sliding_attention', 'sliding_attention', 'full_attention']",
     {FIELD(model.family, MODEL_OLMO2), FIELD(model.window, 64),
      FIELD_IS_TEXT(model.window_pattern, "wwf"), FIELD(model.window_rope_theta, 500000),
      FIELD(model.rope_theta, 500000), FIELD(model.rope.scaling, ROPE_YARN),
      FIELD(model.rope.attention_factor, 1.2), FIELD(model.norm_epsilon, 1e-5),
      FIELD(model.tie_embeddings, false)}},
    {"olmo3 'rope_parameters': {'full_attention': {'rope_type': 'linear', 'rope_theta': 7e4, "
     "'factor': 4}, 'sliding_attention': {'rope_type': 'default', 'rope_theta': 6e3}}",
     {FIELD(model.window, 4096), FIELD_IS_TEXT(model.window_pattern, ""),
      FIELD(model.window_rope_theta, 6000), FIELD(model.rope_theta, 70000)}},
    /* transformers gives the first number to the layers without a window alone, and does not know
     * the second, which is Gemma 3's */
    {"olmo3 'rope_theta': 7e4, 'rope_local_base_freq': 6e3",
     {FIELD(model.window_rope_theta, 500000), FIELD(model.rope_theta, 70000)}},
    {"exaone4 'num_key_value_heads': 2, 'sliding_window': 64, 'sliding_window_pattern': 3",
     {FIELD(model.family, MODEL_EXAONE4), FIELD(model.window, 64),
      FIELD_IS_TEXT(model.window_pattern, "wwf"), FIELD(model.nope_interval, 3),
      FIELD(model.norm_epsilon, 1e-5), FIELD(model.rope_theta, 10000),
      FIELD(model.tie_embeddings, false)}},
    {"exaone4 'num_key_value_heads': 2, 'layer_types': ['full_attention', 'full_attention', "
     "'full_attention'], 'sliding_window': null",
     {FIELD(model.window, 0), FIELD(model.nope_interval, 0)}},
    {"exaone4 'num_key_value_heads': 2",
     {FIELD(model.window, 4096), FIELD_IS_TEXT(model.window_pattern, ""),
      FIELD(model.nope_interval, 0), FIELD(model.num_kv_heads, 2)}},
    {"gemma2 'num_key_value_heads': 2, 'head_dim': 16, 'query_pre_attn_scalar': 64",
     {FIELD(model.family, MODEL_GEMMA2), FIELD(model.qk_norm, false),
      FIELD(model.attention_multiplier, 0.125), FIELD(model.attention_soft_cap, 50),
      FIELD(model.logits_soft_cap, 30), FIELD(model.window, 4096),
      FIELD_IS_TEXT(model.window_pattern, "wf"), FIELD(model.embedding_multiplier, sqrt(48)),
      FIELD(model.tie_embeddings, true), FIELD(model.rope_theta, 10000)}},
    {"gemma2 'attn_logit_softcapping': null, 'final_logit_softcapping': 12.5, 'hidden_activation': "
     "'gelu', 'hidden_act': 'silu'",
     {FIELD(model.attention_soft_cap, 0), FIELD(model.logits_soft_cap, 12.5),
      FIELD(model.attention_multiplier, 0.0625), FIELD(model.activation, ACTIVATION_NAMED_GELU)}},
    /* Gemma 3 as it was published, and as transformers writes it now. */
    {"gemma3_text 'sliding_window': 512, 'sliding_window_pattern': 3, 'rope_local_base_freq': "
     "5000, 'rope_theta': 70000, 'rope_scaling': {'rope_type': 'linear', 'factor': 8.0}, "
     "'attn_logit_softcapping': null",
     {FIELD(model.family, MODEL_GEMMA2), FIELD(model.qk_norm, true), FIELD(model.window, 512),
      FIELD_IS_TEXT(model.window_pattern, "wwf"), FIELD(model.window_rope_theta, 5000),
      FIELD(model.rope_theta, 70000), FIELD(model.rope.scaling, ROPE_LINEAR),
      FIELD(model.rope.factor, 8), FIELD(model.attention_soft_cap, 0),
      FIELD(model.logits_soft_cap, 0), FIELD(model.num_kv_heads, 4), FIELD(model.head_dim, 256)}},
    {"gemma3_text 'layer_types': ['full_attention', 'sliding_attention', 'sliding_attention'], "
     "'rope_parameters': {'full_attention': {'rope_theta': 7e4, 'rope_type': 'linear', 'factor': "
     "4}, 'sliding_attention': {'rope_theta': 6e3, 'rope_type': 'default'}}",
     {FIELD_IS_TEXT(model.window_pattern, "fww"), FIELD(model.window_rope_theta, 6000),
      FIELD(model.rope_theta, 70000), FIELD(model.rope.factor, 4)}},
    {"gemma3_text 'rope_parameters': {'sliding_attention': {'rope_theta': 6e3}}",
     {FIELD(model.window_rope_theta, 6000), FIELD(model.rope_theta, 1000000)}},
    {"gemma3_text",
     {FIELD(model.window_rope_theta, 10000), FIELD(model.rope_theta, 1000000),
      FIELD(model.window, 4096), FIELD(model.attention_multiplier, 0.0625)}},
};

static void windows_are_read(void **state)
{
    check_right(right, sizeof right / sizeof right[0]);
    check_written(right, sizeof right / sizeof right[0]);
}

static const struct wrong_case wrong[] = {
    {"qwen2 'num_key_value_heads': 2, 'use_sliding_window': true, 'layer_types': "
     "['linear_attention']",
     {"layer_types", "entry 0"}},
    {"qwen2 'num_key_value_heads': 2, 'use_sliding_window': true, 'layer_types': "
     "['sliding_attention']",
     {"layer_types", "1 entries", "3"}},
    {"qwen2 'num_key_value_heads': 2, 'layer_types': ['sliding_attention', 'full_attention', "
     "'full_attention']",
     {"sliding_window", "no width"}},
    {"mistral 'num_key_value_heads': 2, 'sliding_window': 128, 'layer_types': "
     "['sliding_attention', 'full_attention', 'full_attention']",
     {"layer_types", "all blocks"}},
    {"mistral 'num_key_value_heads': 2, 'sliding_window': 128, 'layer_types': ['full_attention', "
     "'full_attention', 'full_attention']",
     {"layer_types", "all blocks"}},
    {"mistral 'num_key_value_heads': 2, 'sliding_window': 0",
     {"sliding_window", "0", "whole number"}},
    {"gemma2 'sliding_window': null", {"sliding_window", "no width"}},
    {"gemma2 'attention_bias': true", {"attention_bias", "not built"}},
    {"gemma2 'query_pre_attn_scalar': 0", {"query_pre_attn_scalar", "above 0"}},
    {"gemma3_text 'attn_logit_softcapping': 50.0", {"attn_logit_softcapping", "no soft cap"}},
    {"gemma3_text 'rope_parameters': {'sliding_attention': {'rope_type': 'linear'}}",
     {"rope_parameters", "sliding_attention", "not built"}},
    {"gemma3_text 'rope_parameters': {'sliding_attention': {'factor': 2}}",
     {"rope_parameters", "factor", "sliding_attention"}},
    {"gemma3_text 'rope_local_base_freq': 0.5", {"config.json: rope_local_base_freq: 0.5", "1"}},
    {"olmo3 'rope_parameters': {'sliding_attention': {'rope_theta': 1}}",
     {"config.json: rope_parameters.sliding_attention.rope_theta: 1 is not above 1"}},
    {"gemma3_text 'rope_parameters': {'rope_type': 'linear', 'factor': 2}",
     {"rope_parameters", "full_attention", "sliding_attention"}},
    {"olmo3 'attention_bias': true", {"attention_bias", "not built"}},
    {"olmo3 'sliding_window': null", {"sliding_window", "no width"}},
    {"exaone4 'num_key_value_heads': 2, 'layer_types': ['full_attention', 'sliding_attention', "
     "'sliding_attention']",
     {"layer_types", "equal intervals"}},
    {"exaone4 'num_key_value_heads': 2, 'layer_types': ['full_attention', 'full_attention', "
     "'full_attention']",
     {"layer_types", "no block"}},
    {"exaone4 'num_key_value_heads': 2, 'sliding_window_pattern': 'LLG'",
     {"sliding_window_pattern", "whole number"}},
    {"exaone4 'num_key_value_heads': 2, 'sliding_window': null", {"sliding_window", "no width"}},
    {"'model_type': 'gemma3', 'text_config': {'vocab_size': 300}",
     {"model_type", "images", "gemma3_text"}},
    /* what the job says beside it */
    {"mistral 'num_key_value_heads': 2, 'sliding_window': 128",
     {"model.window", "64", "says 128"},
     "model.window=64"},
    {"llama", {"model.window", "leave the key"}, "model.window=64"},
    {"llama", {"model.logits_soft_cap", "leave the key"}, "model.logits_soft_cap=30"},
};

static void wrong_is_refused(void **state)
{
    check_wrong(wrong, sizeof wrong / sizeof wrong[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_are_read),
        cmocka_unit_test(wrong_is_refused),
    };
    return cmocka_run_group_tests(tests, test_setup, test_teardown);
}
