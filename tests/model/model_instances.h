/* Small models by name, for the tests of src/model: each family, and its options under a name of
 * their own. */
#ifndef SLUICE_TESTS_MODEL_INSTANCES_H
#define SLUICE_TESTS_MODEL_INSTANCES_H

#include <stdio.h>
#include <string.h>

#include "model/model.h"
#include "model/model_internal.h"

/* The family of that name, or of the part before "-"; other instances are variants of Llama, and
 * Gemma 3 is one of Gemma 2. */
static inline enum model_family harness_family(const char *instance)
{
    for (int i = 0; i < MODEL_FAMILY_COUNT; i++) {
        const char *name = model_family_name((enum model_family)i);
        if (strncmp(instance, name, strcspn(instance, "-")) == 0 &&
            strlen(name) == strcspn(instance, "-"))
            return (enum model_family)i;
    }
    return strcmp(instance, "gemma3") == 0 ? MODEL_GEMMA2 : MODEL_LLAMA;
}

/* The block that a tensor's name is of; false: of embedding or head. */
static inline bool harness_block(const char *name, unsigned long long *block)
{
    const char *found = strstr(name, "layers.");
    return sscanf(name, "h.%llu.", block) == 1 ||
           (found != NULL && sscanf(found, "layers.%llu.", block) == 1);
}

static inline bool harness_is_output(const char *name)
{
    return strcmp(name, "lm_head.weight") == 0 || strcmp(name, "embed_out.weight") == 0;
}

/* All targets of adapters but those of experts, for model_lora.targets; for "deepseek" with those
 * of blocks without experts. "deepseek" has no q_proj, the first one. */
static inline uint32_t harness_targets(enum model_family family)
{
    uint32_t count = 0;
    while (model_lora_target(family, count) != NULL && !model_lora_is_expert(family, count))
        count++;
    uint32_t targets = (1u << count) - (family == MODEL_DEEPSEEK ? 2 : 1);
    for (; family == MODEL_DEEPSEEK && model_lora_target(family, count) != NULL; count++)
        if (strstr(model_lora_target(family, count), "experts") == NULL)
            targets |= 1u << count;
    return targets;
}

/* Completes the spec of a small model: two layers where none are given, four heads, and an
 * instance's features, all at once:
 *
 *   "gpt2-long"   more positions than a sequence has tokens
 *   "qwen2"       biases, and frequencies that are divided
 *   "qwen3"       norms of heads, heads that are wider together than the residual stream, and
 *                 frequencies stretched as Llama 3 does it, with frequencies of each kind
 *   "granite"     biases everywhere, and all multipliers
 *   "smollm3"     a block without rotary positions
 *   "gemma"       a factor of the embedding
 *   "phi3-long"   heads that are turned in part, and the list of frequencies for long sequences
 *   "llama-yarn"  frequencies that YaRN scales
 *   "llama-ntk"   a base that is raised for long sequences
 *   "glm", "glm4" heads that are turned in part, and biases of q, k and v
 *   "gpt_neox", "stablelm-parallel", "phi"    parallel branches, heads that are turned in part;
 *                 "gpt_neox-serial" and "stablelm" have neither
 *   "stablelm", "cohere"    biases of attention; "cohere" also norms of heads
 *   "opt"         more positions than a sequence has tokens; GELU, because finite differences find
 *                 no slope where ReLU bends
 *   "mistral"     a window in every block
 *   "gemma2"      a window in every other block, soft caps, a factor of the embedding and of scores
 *   "gemma3"      the same without soft caps; norms of heads; blocks with a window have rotary
 *                 positions of their own, and those of the others are divided
 *   "exaone4"     a window and rotary positions in every other block, the others with neither
 *   "mixtral", "qwen2_moe", "qwen3_moe", "olmoe"    five experts, two a token and two a unit, so
 *                 that the last unit has one. "olmoe" has other weights, "qwen2_moe" a shared
 *                 expert
 *   "gpt_oss"     the same with biases everywhere, sinks, a window in every other block
 *   "deepseek"    latents, heads of v of another size, frequencies that YaRN scales, with a factor
 *                 of the scores, no experts; "deepseek-direct" has no latent of q, but biases and
 *                 turned halves; "deepseek-moe" has experts in the second block, in groups
 *   "glm4_moe"    six experts in each block, without groups; heads that are turned in part
 *   "sinks"       sinks, and a window in every other block
 *   "gpt2-erf"    another activation
 *   "-dropout"    at the end: every dropout that the family has */
static inline void harness_complete(const char *instance, model_spec *spec)
{
    spec->family = harness_family(instance);
    spec->num_layers = spec->num_layers ? spec->num_layers : 2;
    spec->num_heads = 4;
    spec->num_kv_heads = modeli_family_of(spec->family)->has_plain_heads ? 4 : 2;
    spec->rope_theta = 10000;
    spec->norm_epsilon = 1e-5;
    if (strcmp(instance, "gpt2-long") == 0 || strcmp(instance, "opt") == 0)
        spec->position_count = spec->seq_length + 70;
    spec->parallel_residual = (spec->family == MODEL_GPT_NEOX && !strstr(instance, "-serial")) ||
                              strcmp(instance, "stablelm-parallel") == 0;
    if (spec->parallel_residual || spec->family == MODEL_PHI)
        spec->partial_rotary_factor = 0.67; /* 4 of 6, 8 of 12 or 10 of 16 elements */
    spec->qkv_bias = strcmp(instance, "stablelm") == 0 || strcmp(instance, "cohere") == 0;
    if (strcmp(instance, "cohere") == 0) {
        spec->out_bias = spec->qk_norm = true;
        spec->logits_scaling = 1.6;
    }
    if (strcmp(instance, "gpt2-erf") == 0 || strcmp(instance, "opt") == 0)
        spec->activation = ACTIVATION_NAMED_GELU;
    if (strstr(instance, "-dropout") != NULL) {
        spec->hidden_dropout = 0.2;
        spec->embedding_dropout = 0.1;
        spec->attention_dropout = 0.15;
    }
    if (strcmp(instance, "gemma") == 0)
        spec->embedding_multiplier = 3.3;
    if (strcmp(instance, "phi3-long") == 0) {
        spec->partial_rotary_factor = 0.75;
        spec->rope = (rope_form){.scaling = ROPE_LONGROPE,
                                 .factor = 4,
                                 .original_positions = spec->seq_length - 1,
                                 .attention_factor = 0.9,
                                 .pair_count = spec->hidden_size / spec->num_heads * 3 / 8};
        for (uint32_t i = 0; i < spec->rope.pair_count; i++) {
            spec->rope.short_factors[i] = 1 + 0.1 * i;
            spec->rope.long_factors[i] = 1.5 + 0.2 * i;
        }
    }
    if (spec->family == MODEL_GLM || spec->family == MODEL_GLM4 || spec->family == MODEL_GLM4_MOE) {
        spec->partial_rotary_factor = 0.5;
        spec->qkv_bias = true;
        spec->head_dim = spec->hidden_size / spec->num_heads / 4 * 4 + 4;
    }
    if (spec->family == MODEL_DEEPSEEK) {
        bool is_direct = strcmp(instance, "deepseek-direct") == 0;
        spec->num_kv_heads = 4;
        spec->q_latent_size = is_direct ? 0 : 10;
        spec->kv_latent_size = 14;
        spec->head_dim = spec->hidden_size / spec->num_heads / 2 * 2 + 4;
        spec->rope_head_dim = 4;
        spec->value_head_dim = spec->hidden_size / spec->num_heads / 2 * 2 + 2;
        spec->rope_halves = spec->qkv_bias = spec->out_bias = spec->mlp_bias = is_direct;
        if (!is_direct)
            spec->rope = (rope_form){.scaling = ROPE_YARN,
                                     .factor = 4,
                                     .original_positions = 64,
                                     .mscale = 0.7,
                                     .mscale_all_dim = 1.2};
    }
    if (strcmp(instance, "sinks") == 0) {
        spec->attention_sinks = true;
        spec->window = 4;
        strcpy(spec->window_pattern, "wf");
    }
    if (strcmp(instance, "llama-yarn") == 0)
        spec->rope = (rope_form){
            .scaling = ROPE_YARN, .factor = 4, .original_positions = 64, .attention_factor = 0.9};
    if (strcmp(instance, "llama-ntk") == 0)
        spec->rope = (rope_form){
            .scaling = ROPE_DYNAMIC, .factor = 4, .original_positions = spec->seq_length - 1};
    if (strcmp(instance, "mistral") == 0)
        spec->window = 4;
    if (spec->family == MODEL_EXAONE4) {
        spec->window = 4;
        strcpy(spec->window_pattern, "wf");
        spec->nope_interval = 2;
    }
    if (spec->family == MODEL_GEMMA2) {
        spec->embedding_multiplier = 3.3;
        spec->attention_multiplier = 0.3;
        spec->window = 5;
        strcpy(spec->window_pattern, "wf");
    }
    if (strcmp(instance, "gemma2") == 0) {
        spec->attention_soft_cap = 1.5;
        spec->logits_soft_cap = 2.5;
    }
    if (strcmp(instance, "gemma3") == 0) {
        spec->qk_norm = true;
        spec->window_rope_theta = 500;
        spec->rope = (rope_form){.scaling = ROPE_LINEAR, .factor = 2};
    }
    bool has_dense = modeli_family_of(spec->family)->dense != NULL;
    if (has_dense && strstr(instance, "moe") == NULL) {
        spec->dense_blocks = spec->num_layers;
    } else if (has_dense) {
        bool is_glm = spec->family == MODEL_GLM4_MOE;
        spec->dense_blocks = is_glm ? 0 : 1;
        spec->expert_count = 6;
        spec->experts_per_token = 2;
        spec->experts_per_unit = 4;
        spec->expert_ffn_size = 8;
        spec->shared_ffn_size = 12;
        spec->sigmoid_scores = true;
        spec->normalizes_experts = !is_glm;
        spec->routed_scaling = 1.7;
        spec->expert_groups = is_glm ? 0 : 3;
        spec->groups_per_token = is_glm ? 0 : 2;
        spec->qk_norm = is_glm;
    } else if (modeli_family_of(spec->family)->experts != NULL) {
        spec->expert_count = 5;
        spec->experts_per_token = 2;
        spec->experts_per_unit = 2;
        spec->expert_ffn_size = 8;
        spec->normalizes_experts = spec->family != MODEL_OLMOE;
        spec->routed_scaling = spec->family == MODEL_OLMOE ? 1.5 : 0;
        spec->qk_norm = spec->family == MODEL_QWEN3_MOE;
        spec->shared_ffn_size = spec->family == MODEL_QWEN2_MOE ? 12 : 0;
    }
    if (spec->family == MODEL_GPT_OSS) {
        spec->qkv_bias = spec->out_bias = true;
        spec->window = 4;
        strcpy(spec->window_pattern, "wf");
        spec->swiglu_limit = 5;
    }
    if (strcmp(instance, "smollm3") == 0)
        spec->nope_interval = 2;
    if (strcmp(instance, "granite") == 0) {
        spec->qkv_bias = spec->out_bias = spec->mlp_bias = true;
        spec->activation = ACTIVATION_NAMED_GELU;
        spec->embedding_multiplier = 1.7;
        spec->attention_multiplier = 0.3;
        spec->residual_multiplier = 0.6;
        spec->logits_scaling = 1.6;
    }
    if (strcmp(instance, "qwen2") == 0) {
        spec->qkv_bias = true;
        spec->rope.scaling = ROPE_LINEAR;
        spec->rope.factor = 2;
    }
    if (strcmp(instance, "qwen3") == 0) {
        spec->qk_norm = true;
        spec->head_dim = spec->hidden_size / spec->num_heads + 6;
        spec->rope = (rope_form){.scaling = ROPE_LLAMA3,
                                 .factor = 8,
                                 .low_freq_factor = 1,
                                 .high_freq_factor = 4,
                                 .original_positions = 64};
    }
}

/* Every token has every expert: then neither rounding nor a small change chooses others. */
static inline void harness_take_all_experts(model_spec *spec)
{
    spec->experts_per_token = spec->expert_count;
    spec->expert_groups = spec->groups_per_token = 0;
}

#endif
