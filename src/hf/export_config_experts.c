/* The keys of mixtures of experts in a new config.json. See hf_internal.h. */
#include <string.h>

#include "hf/hf_internal.h"

static bool is_type(const char *type, const char *name)
{
    return strcmp(type, name) == 0;
}

/* True for the types whose attention has biases everywhere or nowhere. */
static bool has_attention_bias(const char *type)
{
    return is_type(type, "qwen3_moe") || is_type(type, "olmoe") || is_type(type, "gpt_oss");
}

static bool is_late(const char *type)
{
    return is_type(type, "deepseek_v2") || is_type(type, "deepseek_v3") ||
           is_type(type, "glm4_moe");
}

/* True if a family whose first blocks have no experts differs from the type. */
static bool is_other_late(const struct job_model *from, const char *type)
{
    uint64_t ffn = from->expert_ffn_size ? from->expert_ffn_size : from->ffn_size;
    if (from->shared_ffn_size % ffn != 0) /* config.json has their number */
        return true;
    if (is_type(type, "deepseek_v2"))
        return from->norm_topk_prob || from->rope_halves;
    return from->mlp_bias || (from->num_experts > 0 && from->scoring_func == JOB_SOFTMAX);
}

bool hfi_is_other_mixture(const struct job_model *from, const char *type)
{
    if (is_late(type))
        return is_other_late(from, type);
    if (from->num_experts == 0)
        return false;
    return (from->routed_scaling_factor != 0 && from->routed_scaling_factor != 1) ||
           ((is_type(type, "mixtral") || is_type(type, "gpt_oss")) && !from->norm_topk_prob) ||
           (is_type(type, "qwen3_moe") && !from->qk_norm) ||
           (has_attention_bias(type) && from->qkv_bias != from->out_bias);
}

/* `keys` with those of the other two objects, which it releases; NULL: there is no memory. */
static json_t *joined(json_t *keys, json_t *more, json_t *own)
{
    bool is_whole = keys && more && own && json_object_update(keys, more) == 0 &&
                    json_object_update(keys, own) == 0;
    json_decref(more);
    json_decref(own);
    if (is_whole)
        return keys;
    json_decref(keys);
    return NULL;
}

/* The keys of families whose first blocks have no experts. There may be none at all. */
static json_t *late_keys(const struct job_model *from, const char *type)
{
    uint64_t ffn = from->expert_ffn_size ? from->expert_ffn_size : from->ffn_size;
    bool is_glm = is_type(type, "glm4_moe");
    json_t *keys =
        json_pack("{s:I, s:b, s:n}", "first_k_dense_replace",
                  (json_int_t)(from->num_experts ? from->first_k_dense_replace : from->num_layers),
                  "attention_bias", (int)from->qkv_bias, "pad_token_id");
    json_t *experts =
        from->num_experts == 0
            ? json_object()
            : json_pack("{s:I, s:I, s:I, s:I, s:b, s:f, s:I, s:I}", "n_routed_experts",
                        (json_int_t)from->num_experts, "num_experts_per_tok",
                        (json_int_t)from->num_experts_per_tok, "moe_intermediate_size",
                        (json_int_t)ffn, "n_shared_experts",
                        (json_int_t)(from->shared_ffn_size / ffn), "norm_topk_prob",
                        (int)from->norm_topk_prob, "routed_scaling_factor",
                        from->routed_scaling_factor != 0 ? from->routed_scaling_factor : 1,
                        "n_group", (json_int_t)(from->n_group ? from->n_group : 1), "topk_group",
                        (json_int_t)(from->n_group ? from->topk_group : 1));
    json_t *own = is_glm ? json_pack("{s:b}", "use_qk_norm", (int)from->qk_norm)
                  : is_type(type, "deepseek_v2")
                      ? json_pack("{s:b, s:s}", "mlp_bias", (int)from->mlp_bias, "topk_method",
                                  from->n_group ? "group_limited_greedy" : "greedy")
                      : json_object();
    return joined(keys, experts, own);
}

static json_t *own_keys(const struct job_model *from, const char *type)
{
    json_int_t experts = (json_int_t)from->num_experts, ffn = (json_int_t)from->expert_ffn_size;
    json_int_t each = (json_int_t)from->num_experts_per_tok;
    if (is_late(type))
        return late_keys(from, type);
    if (ffn == 0)
        ffn = (json_int_t)from->ffn_size;
    if (is_type(type, "mixtral"))
        return json_pack("{s:I, s:I, s:I, s:n}", "num_local_experts", experts,
                         "num_experts_per_tok", each, "intermediate_size", ffn, "pad_token_id");
    if (is_type(type, "gpt_oss"))
        return json_pack("{s:I, s:I, s:I, s:f, s:b, s:n}", "num_local_experts", experts,
                         "num_experts_per_tok", each, "intermediate_size", ffn, "swiglu_limit",
                         from->swiglu_limit != 0 ? from->swiglu_limit : 7, "attention_bias",
                         (int)from->out_bias, "pad_token_id");
    json_t *keys = json_pack("{s:I, s:I, s:b, s:n}", "num_experts", experts, "num_experts_per_tok",
                             each, "norm_topk_prob", (int)from->norm_topk_prob, "pad_token_id");
    json_t *more =
        is_type(type, "olmoe")
            ? json_pack("{s:I, s:n}", "intermediate_size", ffn, "clip_qkv")
            : json_pack("{s:I, s:i, s:[], s:b}", "moe_intermediate_size", ffn,
                        "decoder_sparse_step", 1, "mlp_only_layers", "use_sliding_window", 0);
    json_t *own =
        has_attention_bias(type)
            ? json_pack("{s:b}", "attention_bias", (int)from->out_bias)
            : json_pack("{s:b, s:I}", "qkv_bias", (int)from->qkv_bias,
                        "shared_expert_intermediate_size", (json_int_t)from->shared_ffn_size);
    return joined(keys, more, own);
}

json_t *hfi_mixture_keys(const struct job_model *from, const char *type)
{
    json_t *keys = own_keys(from, type);
    double coef = from->router_aux_loss_coef;
    if (!keys || coef == 0)
        return keys;
    if (json_object_set_new(keys, "output_router_logits", json_true()) == 0 &&
        json_object_set_new(keys, "router_aux_loss_coef", json_real(coef)) == 0)
        return keys;
    json_decref(keys);
    return NULL;
}
