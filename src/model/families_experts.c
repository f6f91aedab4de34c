/* Mixtures of experts. The first stage of a block is Llama's attention, the second the experts.
 * Matrices of all experts together have the names and shapes that transformers gives them in
 * memory; in files each expert may have tensors of its own (src/hf/layout.h). */
#include "model/families_internal.h"

#define ROUTER(weight, ...)                                                                        \
    ROW(router, "router", "b", "w", .weights = {{weight, MODELI_EXPERTS}}, __VA_ARGS__)
#define EXPERTS(prefix, ...)                                                                       \
    ROW(experts, "experts", "b w", "d",                                                            \
        .weights = {{prefix ".gate_up_proj", MODELI_EXPERTS_UP},                                   \
                    {prefix ".down_proj", MODELI_EXPERTS_DOWN}},                                   \
        RESIDUAL, __VA_ARGS__)

const modeli_row modeli_mixtral_block[] = {
    NORM("norm1", "x", "a", LAYER "input_layernorm"),
    LLAMA_QKV("a", BIAS_IF(QKV_BIAS)),
    LLAMA_HEAD_NORMS(HEAD, HEAD, IF(QK_NORM)),
    LLAMA_ATTEND(BIAS_IF(OUT_BIAS)),
    ADD("add1", "x p", "y"),
    {0},
};

const modeli_row modeli_mixtral_experts[] = {
    NORM("norm2", "x", "b", LAYER "post_attention_layernorm"),
    ROUTER(LAYER "mlp.gate"),
    EXPERTS(LAYER "mlp.experts"),
    ADD("add2", "x d", "y"),
    {0},
};

/* OLMoE has one norm of all of q and of k, as OLMo 2. */
const modeli_row modeli_olmoe_block[] = {
    NORM("norm1", "x", "a", LAYER "input_layernorm"),
    LLAMA_QKV("a", BIAS_IF(QKV_BIAS)),
    LLAMA_HEAD_NORMS(QUERIES, KEYS),
    LLAMA_ATTEND(BIAS_IF(OUT_BIAS)),
    ADD("add1", "x p", "y"),
    {0},
};

/* Qwen2's shared expert has a gate: it is a mixture of one expert, whose weight is the sigmoid of
 * one logit. */
const modeli_row modeli_qwen2_moe_experts[] = {
    NORM("norm2", "x", "b", LAYER "post_attention_layernorm"),
    ROW(router, "shared_router", "b", "v",
        .weights = {{LAYER "mlp.shared_expert_gate", MODELI_ONE}}, .is_shared = true),
    ROW(experts, "shared", "b v", "s",
        .weights = {{LAYER "mlp.shared_expert.gate_proj", MODELI_SHARED},
                    {LAYER "mlp.shared_expert.up_proj", MODELI_SHARED},
                    {LAYER "mlp.shared_expert.down_proj", MODELI_HIDDEN}},
        .is_shared = true, RESIDUAL),
    ROUTER(LAYER "mlp.gate"),
    EXPERTS(LAYER "mlp.experts"),
    ADD("add2", "s d", "e"),
    ADD("add3", "x e", "y"),
    {0},
};

/* ---- gpt-oss: sinks and biases in attention, a router and experts with biases, and a gate that is
 * limited ---- */

const modeli_row modeli_gpt_oss_block[] = {
    NORM("norm1", "x", "a", LAYER "input_layernorm"),
    LLAMA_QKV("a", BIAS_IF(QKV_BIAS)),
    ROPE,
    ATTEND_WITH_SINKS(ATTN "sinks"),
    LLAMA_PROJ(BIAS_IF(OUT_BIAS)),
    ADD("add1", "x p", "y"),
    {0},
};

const modeli_row modeli_gpt_oss_experts[] = {
    NORM("norm2", "x", "b", LAYER "post_attention_layernorm"),
    ROUTER(LAYER "mlp.router", BIAS),
    EXPERTS(LAYER "mlp.experts", BIAS),
    ADD("add2", "x d", "y"),
    {0},
};

/* ---- DeepSeek V2 and V3: latent attention, and experts, which GLM-4 MoE (GLM-4.5) has, too ----
 *
 * k and v of all heads are made from one latent of each token, to which belongs the rotary part of
 * k, one for all heads; q is made from a latent of its own, or as Llama's. The norms of latents
 * have an epsilon of their own. */

#define LATENT_NORM(name, reads, writes, weight, width, ...)                                       \
    ROW(norm, name, reads, writes, .weights = {{ATTN weight, MODELI_##width}}, .epsilon = 1e-6f,   \
        __VA_ARGS__)
#define LATENT_ATTENTION                                                                           \
    LINEAR("q", "a", "q", ATTN "q_proj", QUERIES, .is_there = MODELI_UNLESS_Q_LATENT),             \
        LINEAR("qa", "a", "l", ATTN "q_a_proj", Q_LATENT, BIAS_IF(QKV_BIAS), IF(Q_LATENT)),        \
        LATENT_NORM("qnorm", "l", "n", "q_a_layernorm", Q_LATENT, IF(Q_LATENT)),                   \
        LINEAR("qb", "n", "q", ATTN "q_b_proj", QUERIES, IF(Q_LATENT)),                            \
        LINEAR("kva", "a", "c", ATTN "kv_a_proj_with_mqa", KV_LATENT_ROPE, BIAS_IF(QKV_BIAS)),     \
        ROW(take, "take", "c", "k"), LATENT_NORM("kvnorm", "k", "h", "kv_a_layernorm", KV_LATENT), \
        LINEAR("kvb", "h", "kv", ATTN "kv_b_proj", KEYS_VALUES),                                   \
        ROW(join, "join", "q kv c", "qkv"), LLAMA_ATTEND(BIAS_IF(OUT_BIAS))

const modeli_row modeli_deepseek_block[] = {
    NORM("norm1", "x", "a", LAYER "input_layernorm"),
    LATENT_ATTENTION,
    ADD("add1", "x p", "y"),
    {0},
};

/* The first blocks have a feed-forward part, the others experts: one that all tokens have, and
 * those that the router chooses. */
const modeli_row modeli_deepseek_dense[] = {
    NORM("norm2", "x", "b", LAYER "post_attention_layernorm"),
    LLAMA_UP("b", BIAS_IF(MLP_BIAS)),
    LLAMA_DOWN(BIAS_IF(MLP_BIAS)),
    ADD("add2", "x d", "y"),
    {0},
};

#define SHARED LAYER "mlp.shared_experts."

const modeli_row modeli_deepseek_experts[] = {
    NORM("norm2", "x", "b", LAYER "post_attention_layernorm"),
    ROW(linear, "shared_up", "b", "f",
        .weights = {{SHARED "gate_proj", MODELI_SHARED}, {SHARED "up_proj", MODELI_SHARED}},
        BIAS_IF(MLP_BIAS)),
    GATE,
    LINEAR("shared_down", "g", "s", SHARED "down_proj", HIDDEN, RESIDUAL, BIAS_IF(MLP_BIAS)),
    ROW(correction, "correction", "", "c",
        .weights = {{LAYER "mlp.gate.e_score_correction_bias", MODELI_EXPERTS}}, IF(SIGMOID)),
    ROW(router, "router", "b c", "w", .weights = {{LAYER "mlp.gate", MODELI_EXPERTS}}, IF(SIGMOID)),
    ROW(router, "router", "b", "w", .weights = {{LAYER "mlp.gate", MODELI_EXPERTS}},
        .is_there = MODELI_UNLESS_SIGMOID),
    EXPERTS(LAYER "mlp.experts"),
    ADD("add2", "s d", "e"),
    ADD("add3", "x e", "y"),
    {0},
};
