/* The families: tables of rows for the embedding, for a block and for the head. The blocks of
 * mixtures are in families_experts.c. See families_internal.h. */
#include "model/families_internal.h"

/* ---- GPT-2 ----
 *
 * Learned positions, LayerNorm with biases, biases in every linear layer, GELU in its tanh form. In
 * Hugging Face's files the linear layers of a block (c_attn, c_proj, c_fc) are of class Conv1D and
 * stored [in, out]. Here every linear weight is stored [out, in], so import and export transpose
 * these four tensors of a block. */

#define GPT2 "h.%llu."

static const modeli_row gpt2_embed[] = {
    TABLE("table", "wte", VOCAB), TABLE("positions", "wpe", POSITIONS), {0}};

static const modeli_row gpt2_block[] = {
    NORM("norm1", "x", "a", GPT2 "ln_1", BIAS),
    LINEAR("qkv", "a", "qkv", GPT2 "attn.c_attn", QKV, BIAS),
    ATTEND,
    LINEAR("proj", "o", "p", GPT2 "attn.c_proj", HIDDEN, BIAS, RESIDUAL),
    DROP("drop1", "p"),
    ADD("add1", "x p", "m"),
    NORM("norm2", "m", "b", GPT2 "ln_2", BIAS),
    PLAIN_FFN(GPT2 "mlp.c_fc", GPT2 "mlp.c_proj", RESIDUAL),
    DROP("drop2", "d"),
    ADD("add2", "m d", "y"),
    {0},
};

static const modeli_row gpt2_head[] = {
    NORM("norm", "x", "a", "ln_f", BIAS), OUTPUT("lm_head"), {0}};

/* ---- Llama ----
 *
 * RMSNorm, rotary positions, grouped key/value heads, SwiGLU. If the spec asks for them: biases,
 * norms of q's and k's heads (Qwen3), factors of branches (Granite), sinks, blocks without rotary
 * positions (SmolLM3). The rotary form is Hugging Face's (pairs i and i + D/2), so their weights
 * need no reordering. */

static const modeli_row llama_embed[] = {TABLE("table", "model.embed_tokens", VOCAB), {0}};

static const modeli_row llama_block[] = {
    NORM("norm1", "x", "a", LAYER "input_layernorm"),
    LLAMA_QKV("a", BIAS_IF(QKV_BIAS)),
    LLAMA_HEAD_NORMS(HEAD, HEAD, IF(QK_NORM)),
    ROPE,
    ROW(attention, "attend", "qkv", "o", .is_there = MODELI_UNLESS_SINKS),
    ATTEND_WITH_SINKS(ATTN "sinks", IF(SINKS)),
    LLAMA_PROJ(BIAS_IF(OUT_BIAS)),
    ROW(scale, "scale1", "p", "p", IF(SCALED)),
    ADD("add1", "x p", "m"),
    NORM("norm2", "m", "b", LAYER "post_attention_layernorm"),
    LLAMA_UP("b", BIAS_IF(MLP_BIAS)),
    LLAMA_DOWN(BIAS_IF(MLP_BIAS)),
    ROW(scale, "scale2", "d", "d", IF(SCALED)),
    ADD("add2", "m d", "y"),
    {0},
};

static const modeli_row llama_head[] = {
    NORM("norm", "x", "a", "model.norm"), OUTPUT("lm_head"), {0}};

/* ---- Starcoder2: Llama's attention with the norms, biases and feed-forward part of GPT-2 ---- */

static const modeli_row starcoder2_block[] = {
    NORM("norm1", "x", "a", LAYER "input_layernorm", BIAS),
    LLAMA_QKV("a", BIAS),
    LLAMA_ATTEND(BIAS),
    DROP("drop1", "p"),
    ADD("add1", "x p", "m"),
    NORM("norm2", "m", "b", LAYER "post_attention_layernorm", BIAS),
    PLAIN_FFN(LAYER "mlp.c_fc", LAYER "mlp.c_proj", RESIDUAL),
    DROP("drop2", "d"),
    ADD("add2", "m d", "y"),
    {0},
};

static const modeli_row starcoder2_head[] = {
    NORM("norm", "x", "a", "model.norm", BIAS), OUTPUT("lm_head"), {0}};

/* ---- Phi: parallel branches of one norm, and biases everywhere ----
 *
 * The output matrix has one, too. It is with the embedding's rows if that matrix is theirs. */

static const modeli_row phi_embed[] = {
    TABLE("table", "model.embed_tokens", VOCAB, BIAS_IF(TIED), .bias_name = "lm_head.bias"), {0}};

static const modeli_row phi_block[] = {
    NORM("norm", "x", "b", LAYER "input_layernorm", BIAS),
    LLAMA_QKV("b", BIAS),
    ROPE,
    ATTEND,
    LINEAR("proj", "o", "p", ATTN "dense", HIDDEN, BIAS, RESIDUAL),
    DROP("drop1", "p"),
    PLAIN_FFN(LAYER "mlp.fc1", LAYER "mlp.fc2", RESIDUAL),
    DROP("drop2", "d"),
    ADD("branches", "p d", "m"),
    ADD("add", "x m", "y"),
    {0},
};

static const modeli_row phi_head[] = {
    NORM("norm", "x", "a", "model.final_layernorm", BIAS),
    OUTPUT("lm_head", BIAS_IF(UNTIED)),
    {0},
};

/* ---- Phi-3: Llama, with one stored matrix for q, k, v, and one for gate and up ---- */

static const modeli_row phi3_block[] = {
    NORM("norm1", "x", "a", LAYER "input_layernorm"),
    LINEAR("qkv", "a", "qkv", ATTN "qkv_proj", QKV),
    LLAMA_ATTEND(),
    DROP("drop1", "p"),
    ADD("add1", "x p", "m"),
    NORM("norm2", "m", "b", LAYER "post_attention_layernorm"),
    JOINT_UP("b"),
    LLAMA_DOWN(),
    DROP("drop2", "d"),
    ADD("add2", "m d", "y"),
    {0},
};

/* ---- Gemma 2 and 3: Llama, with norms before and after both branches; in Gemma 3 also norms of
 * q's and k's heads ---- */

static const modeli_row gemma2_block[] = {
    NORM("norm1", "x", "a", LAYER "input_layernorm"),
    LLAMA_QKV("a"),
    LLAMA_HEAD_NORMS(HEAD, HEAD, IF(QK_NORM)),
    LLAMA_ATTEND(),
    NORM("norm2", "p", "b", LAYER "post_attention_layernorm"),
    ADD("add1", "x b", "m"),
    NORM("norm3", "m", "c", LAYER "pre_feedforward_layernorm"),
    LLAMA_UP("c"),
    LLAMA_DOWN(),
    NORM("norm4", "d", "e", LAYER "post_feedforward_layernorm"),
    ADD("add2", "m e", "y"),
    {0},
};

/* ---- OLMo 2 and EXAONE 4: Llama, with the norms after the layers. OLMo 2 has one norm of all of q
 * and one of k, EXAONE 4 norms of q's and k's heads ---- */

#define NORMS_AFTER(q_width, k_width)                                                              \
    LLAMA_QKV("x"), LLAMA_HEAD_NORMS(q_width, k_width), LLAMA_ATTEND(),                            \
        NORM("norm1", "p", "b", LAYER "post_attention_layernorm"), ADD("add1", "x b", "m"),        \
        LLAMA_UP("m"), LLAMA_DOWN(), NORM("norm2", "d", "e", LAYER "post_feedforward_layernorm"),  \
        ADD("add2", "m e", "y")

static const modeli_row olmo2_block[] = {NORMS_AFTER(QUERIES, KEYS), {0}};
static const modeli_row exaone4_block[] = {NORMS_AFTER(HEAD, HEAD), {0}};

/* ---- GLM-4: Llama, with pairs of neighbours and one matrix for gate and up. The models of 0414
 * (GLM4) have norms after both branches, too ---- */

static const modeli_row glm_block[] = {
    NORM("norm1", "x", "a", LAYER "input_layernorm"),
    LLAMA_QKV("a", BIAS_IF(QKV_BIAS)),
    LLAMA_ATTEND(),
    ADD("add1", "x p", "m"),
    NORM("norm2", "m", "b", LAYER "post_attention_layernorm"),
    JOINT_UP("b"),
    LLAMA_DOWN(),
    ADD("add2", "m d", "y"),
    {0},
};

static const modeli_row glm4_block[] = {
    NORM("norm1", "x", "a", LAYER "input_layernorm"),
    LLAMA_QKV("a", BIAS_IF(QKV_BIAS)),
    LLAMA_ATTEND(),
    NORM("norm2", "p", "s", LAYER "post_self_attn_layernorm"),
    ADD("add1", "x s", "m"),
    NORM("norm3", "m", "b", LAYER "post_attention_layernorm"),
    JOINT_UP("b"),
    LLAMA_DOWN(),
    NORM("norm4", "d", "e", LAYER "post_mlp_layernorm"),
    ADD("add2", "m e", "y"),
    {0},
};

/* ---- Cohere (Command R): Llama with parallel branches of one LayerNorm without bias ---- */

static const modeli_row cohere_block[] = {
    NORM("norm", "x", "a", LAYER "input_layernorm"),
    LLAMA_QKV("a", BIAS_IF(QKV_BIAS)),
    LLAMA_HEAD_NORMS(QUERIES, KEYS, .by_heads = true, IF(QK_NORM)),
    LLAMA_ATTEND(BIAS_IF(OUT_BIAS)),
    ADD("add1", "x p", "m"),
    LLAMA_UP("a"),
    LLAMA_DOWN(),
    ADD("add2", "m d", "y"),
    {0},
};

/* ---- StableLM: Llama with LayerNorm; parallel branches, if there are any, have one norm ---- */

static const modeli_row stablelm_block[] = {
    NORM("norm1", "x", "a", LAYER "input_layernorm", BIAS),
    LLAMA_QKV("a", BIAS_IF(QKV_BIAS)),
    LLAMA_ATTEND(),
    ADD("add1", "x p", "m"),
    NORM("norm2", "m", "b", LAYER "post_attention_layernorm", BIAS, SEQUENTIAL),
    LLAMA_UP("b", .if_parallel = "a"),
    LLAMA_DOWN(),
    DROP("drop", "d"),
    ADD("add2", "m d", "y"),
    {0},
};

/* ---- BERT ----
 *
 * Norms follow the sums: y = norm(x + branch(x)). So that all blocks are alike, each block has the
 * norm before it and not the one after it: the first block has the embedding's norm, and the block
 * `last` has the norm of the last published block. Attention sees both sides. `last` is the dense
 * part of the head (BertPredictionHeadTransform), whose norm is the final norm. The pooler and the
 * prediction of the next sentence are not there: the loss does not read them. */

#define BERT       "bert.encoder.layer.%llu."
#define BERT_ATTN  BERT "attention."
#define BERT_EMBED "bert.embeddings."
#define BERT_HEAD  "cls.predictions."
/* The norm after the block before. */
#define BERT_NORM                                                                                  \
    NORM("norm1", "x", "a", BERT "output.LayerNorm", BIAS, .first_name = BERT_EMBED "LayerNorm")

static const modeli_row bert_embed[] = {
    TABLE("table", BERT_EMBED "word_embeddings", VOCAB, BIAS_IF(TIED),
          .bias_name = BERT_HEAD "bias"),
    TABLE("types", BERT_EMBED "token_type_embeddings", TYPES),
    TABLE("positions", BERT_EMBED "position_embeddings", POSITIONS),
    {0},
};

static const modeli_row bert_block[] = {
    BERT_NORM,
    ROW(dropout, "drop0", "a", "a", IF(DROPOUT), .only_first = true), /* the embedding's */
    QKV3("a", BERT_ATTN "self.query", BERT_ATTN "self.key", BERT_ATTN "self.value", BIAS),
    ATTEND,
    LINEAR("proj", "o", "p", BERT_ATTN "output.dense", HIDDEN, BIAS),
    DROP("drop1", "p"),
    ADD("add1", "a p", "m"),
    NORM("norm2", "m", "b", BERT_ATTN "output.LayerNorm", BIAS),
    PLAIN_FFN(BERT "intermediate.dense", BERT "output.dense"),
    DROP("drop2", "d"),
    ADD("add2", "b d", "y"),
    {0},
};

static const modeli_row bert_last[] = {
    BERT_NORM,
    LINEAR("dense", "a", "t", BERT_HEAD "transform.dense", HIDDEN, BIAS),
    ROW(gate, "gate", "t", "y"),
    {0},
};

static const modeli_row bert_head[] = {
    NORM("norm", "x", "a", BERT_HEAD "transform.LayerNorm", BIAS),
    OUTPUT(BERT_HEAD "decoder", BIAS_IF(UNTIED), .bias_name = BERT_HEAD "bias"),
    {0},
};

/* ---- GPT-NeoX: parallel branches with a norm each, of which only the norms' input is common; the
 * first part of each head is rotated ----
 *
 * In Hugging Face's files the rows of query_key_value are those of head 0 of q, of k and of v, then
 * of head 1, and so on. Here q, k and v are apart, so import and export reorder them. */

#define NEOX "gpt_neox.layers.%llu."

static const modeli_row gpt_neox_embed[] = {TABLE("table", "gpt_neox.embed_in", VOCAB), {0}};

static const modeli_row gpt_neox_block[] = {
    NORM("norm1", "x", "a", NEOX "input_layernorm", BIAS),
    LINEAR("qkv", "a", "qkv", NEOX "attention.query_key_value", QKV, BIAS),
    ROPE,
    ATTEND,
    LINEAR("proj", "o", "p", NEOX "attention.dense", HIDDEN, BIAS, RESIDUAL),
    DROP("drop1", "p"),
    ADD("add1", "x p", "m", SEQUENTIAL),
    NORM("norm2", "m", "b", NEOX "post_attention_layernorm", BIAS, .if_parallel = "x"),
    PLAIN_FFN(NEOX "mlp.dense_h_to_4h", NEOX "mlp.dense_4h_to_h", RESIDUAL),
    DROP("drop2", "d"),
    ADD("branches", "p d", "m", IF(PARALLEL)),
    ADD("add2", "m d", "y", .if_parallel = "x m"),
    {0},
};

static const modeli_row gpt_neox_head[] = {
    NORM("norm", "x", "a", "gpt_neox.final_layer_norm", BIAS), OUTPUT("embed_out"), {0}};

/* ---- OPT: GPT-2 with ReLU, and with two rows before the first position ---- */

#define OPT       "model.decoder."
#define OPT_LAYER OPT "layers.%llu."
#define OPT_ATTN  OPT_LAYER "self_attn."

static const modeli_row opt_embed[] = {TABLE("table", OPT "embed_tokens", VOCAB),
                                       TABLE("positions", OPT "embed_positions", POSITIONS_OF_OPT),
                                       {0}};

static const modeli_row opt_block[] = {
    NORM("norm1", "x", "a", OPT_LAYER "self_attn_layer_norm", BIAS),
    QKV3("a", OPT_ATTN "q_proj", OPT_ATTN "k_proj", OPT_ATTN "v_proj", BIAS),
    ATTEND,
    LINEAR("proj", "o", "p", OPT_ATTN "out_proj", HIDDEN, BIAS, RESIDUAL),
    DROP("drop1", "p"),
    ADD("add1", "x p", "m"),
    NORM("norm2", "m", "b", OPT_LAYER "final_layer_norm", BIAS),
    PLAIN_FFN(OPT_LAYER "fc1", OPT_LAYER "fc2", RESIDUAL),
    DROP("drop2", "d"),
    ADD("add2", "m d", "y"),
    {0},
};

static const modeli_row opt_head[] = {
    NORM("norm", "x", "a", OPT "final_layer_norm", BIAS), OUTPUT("lm_head"), {0}};

/* ---- the list ---- */

#define LLAMA_FORM .norm = NORM_RMS, .activation = ACTIVATION_SWIGLU
/* 1 + weight in norms, and the gate by GELU. */
#define GEMMA_FORM .norm = NORM_RMS, .activation = ACTIVATION_GEGLU, .adds_one = true

const modeli_family *modeli_family_of(enum model_family family)
{
    static const modeli_family families[MODEL_FAMILY_COUNT] = {
        [MODEL_GPT2] = {gpt2_embed, gpt2_block, gpt2_head, .activation = ACTIVATION_GELU,
                        .drops_rows = true, .has_plain_heads = true},
        [MODEL_LLAMA] = {llama_embed, llama_block, llama_head, LLAMA_FORM},
        [MODEL_STARCODER2] = {llama_embed, starcoder2_block, starcoder2_head,
                              .activation = ACTIVATION_GELU, .drops_rows = true},
        [MODEL_PHI] = {phi_embed, phi_block, phi_head, .activation = ACTIVATION_GELU,
                       .drops_rows = true},
        [MODEL_PHI3] = {llama_embed, phi3_block, llama_head, LLAMA_FORM},
        [MODEL_GEMMA] = {llama_embed, llama_block, llama_head, GEMMA_FORM},
        [MODEL_OLMO2] = {llama_embed, olmo2_block, llama_head, LLAMA_FORM},
        [MODEL_EXAONE4] = {llama_embed, exaone4_block, llama_head, LLAMA_FORM},
        [MODEL_GLM] = {llama_embed, glm_block, llama_head, LLAMA_FORM, .interleaved = true},
        [MODEL_GLM4] = {llama_embed, glm4_block, llama_head, LLAMA_FORM, .interleaved = true},
        [MODEL_BERT] = {bert_embed, bert_block, bert_head, .last = bert_last,
                        .activation = ACTIVATION_GELU_ERF, .is_bidirectional = true,
                        .has_plain_heads = true},
        [MODEL_GPT_NEOX] = {gpt_neox_embed, gpt_neox_block, gpt_neox_head,
                            .activation = ACTIVATION_GELU_ERF, .drops_rows = true,
                            .has_plain_heads = true},
        [MODEL_OPT] = {opt_embed, opt_block, opt_head, .activation = ACTIVATION_RELU,
                       .has_plain_heads = true},
        [MODEL_COHERE] = {llama_embed, cohere_block, llama_head, .activation = ACTIVATION_SWIGLU,
                          .interleaved = true},
        [MODEL_STABLELM] = {llama_embed, stablelm_block, starcoder2_head,
                            .activation = ACTIVATION_SWIGLU},
        [MODEL_GEMMA2] = {llama_embed, gemma2_block, llama_head, GEMMA_FORM},
        [MODEL_MIXTRAL] = {llama_embed, modeli_mixtral_block, llama_head, LLAMA_FORM,
                           .experts = modeli_mixtral_experts},
        [MODEL_QWEN2_MOE] = {llama_embed, modeli_mixtral_block, llama_head, LLAMA_FORM,
                             .experts = modeli_qwen2_moe_experts},
        [MODEL_QWEN3_MOE] = {llama_embed, modeli_mixtral_block, llama_head, LLAMA_FORM,
                             .experts = modeli_mixtral_experts},
        [MODEL_OLMOE] = {llama_embed, modeli_olmoe_block, llama_head, LLAMA_FORM,
                         .experts = modeli_mixtral_experts},
        [MODEL_GPT_OSS] = {llama_embed, modeli_gpt_oss_block, llama_head, .norm = NORM_RMS,
                           .activation = ACTIVATION_SWIGLU_CLAMPED,
                           .experts = modeli_gpt_oss_experts},
        [MODEL_DEEPSEEK] = {llama_embed, modeli_deepseek_block, llama_head, LLAMA_FORM,
                            .experts = modeli_deepseek_experts, .dense = modeli_deepseek_dense,
                            .interleaved = true},
        [MODEL_GLM4_MOE] = {llama_embed, modeli_mixtral_block, llama_head, LLAMA_FORM,
                            .experts = modeli_deepseek_experts, .dense = modeli_deepseek_dense},
    };
    return &families[family];
}

bool model_is_bidirectional(enum model_family family)
{
    return modeli_family_of(family)->is_bidirectional;
}
