/* The keys of attention in a new config.json: windows, soft caps, and the factor of scores of
 * Gemma 2 and 3. See hf_internal.h. */
#include <math.h>
#include <string.h>

#include "hf/hf_internal.h"

static bool is_one_of(const char *type, const char *names)
{
    const char *found = strstr(names, type);
    size_t length = strlen(type);
    return found && (found == names || found[-1] == ' ') &&
           (found[length] == ' ' || found[length] == '\0');
}

static bool has_list(const char *type)
{
    return is_one_of(type, "qwen2 qwen3 smollm3 gemma2 gemma3_text olmo3 exaone4 gpt_oss");
}

static bool is_gemma(const char *type)
{
    return is_one_of(type, "gemma2 gemma3_text");
}

static bool is_everywhere(const struct job_model *from)
{
    return strchr(from->window_pattern, 'f') == NULL;
}

static bool has_window(const struct job_model *from, uint64_t block)
{
    const char *pattern = from->window_pattern[0] ? from->window_pattern : "w";
    bool is_any = from->window != 0 || from->window_rope_theta != 0;
    return is_any && pattern[block % strlen(pattern)] == 'w';
}

/* The number that is written in place of the factor of scores: 1 / factor^2. */
static double query_scalar(const struct job_model *from)
{
    double head_dim =
        (double)(from->head_dim ? from->head_dim : from->hidden_size / from->num_heads);
    double factor = from->attention_multiplier;
    return factor != 0 ? 1 / (factor * factor) : head_dim;
}

/* True if all blocks have rotary positions and there is no window, or just those with one. */
static bool turns_in_windows(const struct job_model *from)
{
    uint64_t interval = from->nope_interval;
    for (uint64_t i = 0; i < from->num_layers; i++)
        if ((interval == 0 || (i + 1) % interval != 0) !=
            (from->window == 0 || has_window(from, i)))
            return false;
    return true;
}

bool hfi_is_other_attention(const struct job_model *from, const char *type)
{
    bool is_gemma3 = strcmp(type, "gemma3_text") == 0;
    bool has_own_rope = is_one_of(type, "gemma3_text olmo3"); /* blocks with a window */
    double scalar = query_scalar(from);
    if (from->window != 0 && !has_list(type) &&
        !(is_one_of(type, "mistral mixtral phi3 starcoder2") && is_everywhere(from)))
        return true;
    if (from->window_rope_theta != 0 && !has_own_rope)
        return true;
    if (from->attention_sinks || (from->kv_latent_size != 0 && from->qkv_bias != from->out_bias))
        return true;
    if (strcmp(type, "exaone4") == 0 && !turns_in_windows(from))
        return true;
    if (has_own_rope && from->window_rope_theta == 0 && from->window != 0 &&
        from->rope.scaling != ROPE_PLAIN)
        return true; /* theirs are plain */
    if (is_gemma(type))
        return fabs(scalar / round(scalar) - 1) > 1e-6 ||
               (is_gemma3 && from->attention_soft_cap != 0);
    return from->attention_soft_cap != 0 || from->logits_soft_cap != 0;
}

static json_t *real_or_null(double value)
{
    return value != 0 ? json_real(value) : json_null();
}

/* The kind of each block. */
static json_t *layer_types(const struct job_model *from)
{
    json_t *list = json_array();
    for (uint64_t i = 0; list && i < from->num_layers; i++)
        if (json_array_append_new(list, json_string(has_window(from, i) ? "sliding_attention"
                                                                        : "full_attention")) != 0) {
            json_decref(list);
            return NULL;
        }
    return list;
}

static json_t *gemma_keys(const struct job_model *from, const char *type)
{
    /* A model without windows needs a width all the same. */
    uint64_t width = from->window ? from->window : from->seq_length;
    double theta = from->window_rope_theta != 0 ? from->window_rope_theta : from->rope_theta;
    json_t *keys = json_pack("{s:I, s:I, s:o, s:o, s:o}", "sliding_window", (json_int_t)width,
                             "query_pre_attn_scalar", (json_int_t)llround(query_scalar(from)),
                             "final_logit_softcapping", real_or_null(from->logits_soft_cap),
                             "attn_logit_softcapping", real_or_null(from->attention_soft_cap),
                             "layer_types", layer_types(from));
    if (keys && strcmp(type, "gemma3_text") == 0 &&
        json_object_set_new(keys, "rope_local_base_freq", json_real(theta)) != 0) {
        json_decref(keys);
        return NULL;
    }
    return keys;
}

/* Latent attention. config.json calls the rotary part head_dim. */
static json_t *latent_keys(const struct job_model *from)
{
    uint64_t value = from->value_head_dim ? from->value_head_dim : from->head_dim;
    json_t *q = from->q_latent_size ? json_integer((json_int_t)from->q_latent_size) : json_null();
    return json_pack("{s:I, s:o, s:I, s:I, s:I, s:I, s:b}", "kv_lora_rank",
                     (json_int_t)from->kv_latent_size, "q_lora_rank", q, "qk_rope_head_dim",
                     (json_int_t)from->rope_head_dim, "qk_nope_head_dim",
                     (json_int_t)(from->head_dim - from->rope_head_dim), "head_dim",
                     (json_int_t)from->rope_head_dim, "v_head_dim", (json_int_t)value,
                     "rope_interleave", (int)!from->rope_halves);
}

json_t *hfi_attention_keys(const struct job_model *from, const char *type)
{
    uint64_t first = 0;
    while (first < from->num_layers && !has_window(from, first))
        first++;
    if (is_gemma(type))
        return gemma_keys(from, type);
    if (from->kv_latent_size != 0)
        return latent_keys(from);
    if (is_one_of(type, "gpt_oss olmo3")) /* they need a width even without windows */
        return json_pack("{s:I, s:o}", "sliding_window",
                         (json_int_t)(from->window ? from->window : from->seq_length),
                         "layer_types", layer_types(from));
    if (strcmp(type, "exaone4") == 0)
        return json_pack("{s:o, s:o}", "sliding_window",
                         from->window ? json_integer((json_int_t)from->window) : json_null(),
                         "layer_types", layer_types(from));
    if (has_list(type) && from->window != 0)
        return json_pack("{s:b, s:I, s:I, s:o}", "use_sliding_window", 1, "sliding_window",
                         (json_int_t)from->window, "max_window_layers", (json_int_t)first,
                         "layer_types", layer_types(from));
    if (has_list(type))
        return json_pack("{s:b}", "use_sliding_window", 0);
    if (!is_one_of(type, "mistral mixtral phi3 starcoder2"))
        return json_object();
    return json_pack("{s:o}", "sliding_window",
                     from->window ? json_integer((json_int_t)from->window) : json_null());
}
