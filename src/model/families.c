/* The families: tables of rows for the embedding, for a block and for the head. The names are
 * Hugging Face's; layers_internal.h says what the members of a row mean. */
#include "model/model_internal.h"

#define ROW(kind_name, row_name, values_read, value_written, ...)                                  \
    {                                                                                              \
        .kind = &modeli_##kind_name, .name = row_name, .reads = values_read,                       \
        .writes = value_written, __VA_ARGS__                                                       \
    }
#define END                                                                                        \
    {                                                                                              \
        .kind = NULL                                                                               \
    }
#define W(weight_name, weight_width)                                                               \
    {                                                                                              \
        weight_name, MODELI_##weight_width                                                         \
    }
#define WEIGHTS(...)   .weights = {__VA_ARGS__}
#define BIAS           .has_bias = MODELI_ALWAYS
#define BIAS_IF(which) .has_bias = MODELI_IF_##which
#define IF(which)      .is_there = MODELI_IF_##which
#define SEQUENTIAL     .is_there = MODELI_UNLESS_PARALLEL
#define RESIDUAL       .is_residual = true

/* ---- GPT-2 ----
 *
 * Learned positions, LayerNorm with biases, biases in every linear layer, GELU in its tanh form. In
 * Hugging Face's files the linear layers of a block (c_attn, c_proj, c_fc) are of class Conv1D and
 * stored [in, out]. Here every linear weight is stored [out, in], so import and export transpose
 * these four tensors of a block. */

static const modeli_row gpt2_embed[] = {
    ROW(table, "table", "", "y", WEIGHTS(W("wte", VOCAB))),
    ROW(table, "positions", "", "y", WEIGHTS(W("wpe", POSITIONS))),
    END,
};

static const modeli_row gpt2_block[] = {
    ROW(norm, "norm1", "x", "a", WEIGHTS(W("h.%llu.ln_1", HIDDEN)), BIAS),
    ROW(linear, "qkv", "a", "qkv", WEIGHTS(W("h.%llu.attn.c_attn", QKV)), BIAS),
    ROW(attention, "attend", "qkv", "o"),
    ROW(linear, "proj", "o", "p", WEIGHTS(W("h.%llu.attn.c_proj", HIDDEN)), BIAS, RESIDUAL),
    ROW(dropout, "drop1", "p", "p", IF(DROPOUT)),
    ROW(add, "add1", "x p", "m"),
    ROW(norm, "norm2", "m", "b", WEIGHTS(W("h.%llu.ln_2", HIDDEN)), BIAS),
    ROW(linear, "up", "b", "f", WEIGHTS(W("h.%llu.mlp.c_fc", FFN)), BIAS),
    ROW(gate, "gate", "f", "g", .activation = ACTIVATION_GELU),
    ROW(linear, "down", "g", "d", WEIGHTS(W("h.%llu.mlp.c_proj", HIDDEN)), BIAS, RESIDUAL),
    ROW(dropout, "drop2", "d", "d", IF(DROPOUT)),
    ROW(add, "add2", "m d", "y"),
    END,
};

static const modeli_row gpt2_head[] = {
    ROW(norm, "norm", "x", "a", WEIGHTS(W("ln_f", HIDDEN)), BIAS),
    ROW(output, "output", "a", "logits", WEIGHTS(W("lm_head", VOCAB))),
    END,
};

/* ---- Llama ----
 *
 * RMSNorm, rotary positions, grouped key/value heads, SwiGLU. If the spec asks for them: biases,
 * norms of q's and k's heads (Qwen3), factors of branches (Granite), blocks without rotary
 * positions (SmolLM3). The rotary form is Hugging Face's (pairs i and i + D/2), so their weights
 * need no reordering. */

#define LAYER "model.layers.%llu."
#define ATTN  LAYER "self_attn."
#define RMS   .norm = NORM_RMS

static const modeli_row llama_embed[] = {
    ROW(table, "table", "", "y", WEIGHTS(W("model.embed_tokens", VOCAB))),
    END,
};

static const modeli_row llama_block[] = {
    ROW(norm, "norm1", "x", "a", WEIGHTS(W(LAYER "input_layernorm", HIDDEN)), RMS),
    ROW(linear, "qkv", "a", "qkv",
        WEIGHTS(W(ATTN "q_proj", QUERIES), W(ATTN "k_proj", KEYS), W(ATTN "v_proj", KEYS)),
        BIAS_IF(QKV_BIAS)),
    ROW(head_norm, "heads", "qkv", "qkv", WEIGHTS(W(ATTN "q_norm", HEAD), W(ATTN "k_norm", HEAD)),
        RMS, IF(QK_NORM)),
    ROW(rope, "rope", "qkv", "qkv"),
    ROW(attention, "attend", "qkv", "o"),
    ROW(linear, "proj", "o", "p", WEIGHTS(W(ATTN "o_proj", HIDDEN)), BIAS_IF(OUT_BIAS), RESIDUAL),
    ROW(scale, "scale1", "p", "p", IF(SCALED)),
    ROW(add, "add1", "x p", "m"),
    ROW(norm, "norm2", "m", "b", WEIGHTS(W(LAYER "post_attention_layernorm", HIDDEN)), RMS),
    ROW(linear, "up", "b", "f", WEIGHTS(W(LAYER "mlp.gate_proj", FFN), W(LAYER "mlp.up_proj", FFN)),
        BIAS_IF(MLP_BIAS)),
    ROW(gate, "gate", "f", "g", .activation = ACTIVATION_SWIGLU),
    ROW(linear, "down", "g", "d", WEIGHTS(W(LAYER "mlp.down_proj", HIDDEN)), BIAS_IF(MLP_BIAS),
        RESIDUAL),
    ROW(scale, "scale2", "d", "d", IF(SCALED)),
    ROW(add, "add2", "m d", "y"),
    END,
};

static const modeli_row llama_head[] = {
    ROW(norm, "norm", "x", "a", WEIGHTS(W("model.norm", HIDDEN)), RMS),
    ROW(output, "output", "a", "logits", WEIGHTS(W("lm_head", VOCAB))),
    END,
};

/* ---- Starcoder2: Llama's attention with the norms, biases and feed-forward part of GPT-2 ---- */

static const modeli_row starcoder2_block[] = {
    ROW(norm, "norm1", "x", "a", WEIGHTS(W(LAYER "input_layernorm", HIDDEN)), BIAS),
    ROW(linear, "qkv", "a", "qkv",
        WEIGHTS(W(ATTN "q_proj", QUERIES), W(ATTN "k_proj", KEYS), W(ATTN "v_proj", KEYS)), BIAS),
    ROW(rope, "rope", "qkv", "qkv"),
    ROW(attention, "attend", "qkv", "o"),
    ROW(linear, "proj", "o", "p", WEIGHTS(W(ATTN "o_proj", HIDDEN)), BIAS, RESIDUAL),
    ROW(dropout, "drop1", "p", "p", IF(DROPOUT)),
    ROW(add, "add1", "x p", "m"),
    ROW(norm, "norm2", "m", "b", WEIGHTS(W(LAYER "post_attention_layernorm", HIDDEN)), BIAS),
    ROW(linear, "up", "b", "f", WEIGHTS(W(LAYER "mlp.c_fc", FFN)), BIAS),
    ROW(gate, "gate", "f", "g", .activation = ACTIVATION_GELU),
    ROW(linear, "down", "g", "d", WEIGHTS(W(LAYER "mlp.c_proj", HIDDEN)), BIAS, RESIDUAL),
    ROW(dropout, "drop2", "d", "d", IF(DROPOUT)),
    ROW(add, "add2", "m d", "y"),
    END,
};

static const modeli_row starcoder2_head[] = {
    ROW(norm, "norm", "x", "a", WEIGHTS(W("model.norm", HIDDEN)), BIAS),
    ROW(output, "output", "a", "logits", WEIGHTS(W("lm_head", VOCAB))),
    END,
};

/* ---- Phi-3: Llama, with one stored matrix for q, k, v, and one for gate and up ---- */

static const modeli_row phi3_block[] = {
    ROW(norm, "norm1", "x", "a", WEIGHTS(W(LAYER "input_layernorm", HIDDEN)), RMS),
    ROW(linear, "qkv", "a", "qkv", WEIGHTS(W(ATTN "qkv_proj", QKV))),
    ROW(rope, "rope", "qkv", "qkv"),
    ROW(attention, "attend", "qkv", "o"),
    ROW(linear, "proj", "o", "p", WEIGHTS(W(ATTN "o_proj", HIDDEN)), RESIDUAL),
    ROW(dropout, "drop1", "p", "p", IF(DROPOUT)),
    ROW(add, "add1", "x p", "m"),
    ROW(norm, "norm2", "m", "b", WEIGHTS(W(LAYER "post_attention_layernorm", HIDDEN)), RMS),
    ROW(linear, "up", "b", "f", WEIGHTS(W(LAYER "mlp.gate_up_proj", GATE_UP))),
    ROW(gate, "gate", "f", "g", .activation = ACTIVATION_SWIGLU),
    ROW(linear, "down", "g", "d", WEIGHTS(W(LAYER "mlp.down_proj", HIDDEN)), RESIDUAL),
    ROW(dropout, "drop2", "d", "d", IF(DROPOUT)),
    ROW(add, "add2", "m d", "y"),
    END,
};

/* ---- Gemma: Llama, with 1 + weight in norms, and the gate by GELU ---- */

#define RMS_ONE RMS, .adds_one = true

static const modeli_row gemma_block[] = {
    ROW(norm, "norm1", "x", "a", WEIGHTS(W(LAYER "input_layernorm", HIDDEN)), RMS_ONE),
    ROW(linear, "qkv", "a", "qkv",
        WEIGHTS(W(ATTN "q_proj", QUERIES), W(ATTN "k_proj", KEYS), W(ATTN "v_proj", KEYS))),
    ROW(rope, "rope", "qkv", "qkv"),
    ROW(attention, "attend", "qkv", "o"),
    ROW(linear, "proj", "o", "p", WEIGHTS(W(ATTN "o_proj", HIDDEN)), RESIDUAL),
    ROW(add, "add1", "x p", "m"),
    ROW(norm, "norm2", "m", "b", WEIGHTS(W(LAYER "post_attention_layernorm", HIDDEN)), RMS_ONE),
    ROW(linear, "up", "b", "f",
        WEIGHTS(W(LAYER "mlp.gate_proj", FFN), W(LAYER "mlp.up_proj", FFN))),
    ROW(gate, "gate", "f", "g", .activation = ACTIVATION_GEGLU),
    ROW(linear, "down", "g", "d", WEIGHTS(W(LAYER "mlp.down_proj", HIDDEN)), RESIDUAL),
    ROW(add, "add2", "m d", "y"),
    END,
};

static const modeli_row gemma_head[] = {
    ROW(norm, "norm", "x", "a", WEIGHTS(W("model.norm", HIDDEN)), RMS_ONE),
    ROW(output, "output", "a", "logits", WEIGHTS(W("lm_head", VOCAB))),
    END,
};

/* ---- OLMo 2: Llama, with the norms after the layers, and one norm of all of q and of k ---- */

static const modeli_row olmo2_block[] = {
    ROW(linear, "qkv", "x", "qkv",
        WEIGHTS(W(ATTN "q_proj", QUERIES), W(ATTN "k_proj", KEYS), W(ATTN "v_proj", KEYS))),
    ROW(head_norm, "heads", "qkv", "qkv",
        WEIGHTS(W(ATTN "q_norm", QUERIES), W(ATTN "k_norm", KEYS)), RMS),
    ROW(rope, "rope", "qkv", "qkv"),
    ROW(attention, "attend", "qkv", "o"),
    ROW(linear, "proj", "o", "p", WEIGHTS(W(ATTN "o_proj", HIDDEN)), RESIDUAL),
    ROW(norm, "norm1", "p", "b", WEIGHTS(W(LAYER "post_attention_layernorm", HIDDEN)), RMS),
    ROW(add, "add1", "x b", "m"),
    ROW(linear, "up", "m", "f",
        WEIGHTS(W(LAYER "mlp.gate_proj", FFN), W(LAYER "mlp.up_proj", FFN))),
    ROW(gate, "gate", "f", "g", .activation = ACTIVATION_SWIGLU),
    ROW(linear, "down", "g", "d", WEIGHTS(W(LAYER "mlp.down_proj", HIDDEN)), RESIDUAL),
    ROW(norm, "norm2", "d", "e", WEIGHTS(W(LAYER "post_feedforward_layernorm", HIDDEN)), RMS),
    ROW(add, "add2", "m e", "y"),
    END,
};

/* ---- GLM-4: Llama, with pairs of neighbours and one matrix for gate and up. The models of 0414
 * (GLM4) have norms after both branches, too ---- */

static const modeli_row glm_block[] = {
    ROW(norm, "norm1", "x", "a", WEIGHTS(W(LAYER "input_layernorm", HIDDEN)), RMS),
    ROW(linear, "qkv", "a", "qkv",
        WEIGHTS(W(ATTN "q_proj", QUERIES), W(ATTN "k_proj", KEYS), W(ATTN "v_proj", KEYS)),
        BIAS_IF(QKV_BIAS)),
    ROW(rope, "rope", "qkv", "qkv", .interleaved = true),
    ROW(attention, "attend", "qkv", "o"),
    ROW(linear, "proj", "o", "p", WEIGHTS(W(ATTN "o_proj", HIDDEN)), RESIDUAL),
    ROW(add, "add1", "x p", "m"),
    ROW(norm, "norm2", "m", "b", WEIGHTS(W(LAYER "post_attention_layernorm", HIDDEN)), RMS),
    ROW(linear, "up", "b", "f", WEIGHTS(W(LAYER "mlp.gate_up_proj", GATE_UP))),
    ROW(gate, "gate", "f", "g", .activation = ACTIVATION_SWIGLU),
    ROW(linear, "down", "g", "d", WEIGHTS(W(LAYER "mlp.down_proj", HIDDEN)), RESIDUAL),
    ROW(add, "add2", "m d", "y"),
    END,
};

static const modeli_row glm4_block[] = {
    ROW(norm, "norm1", "x", "a", WEIGHTS(W(LAYER "input_layernorm", HIDDEN)), RMS),
    ROW(linear, "qkv", "a", "qkv",
        WEIGHTS(W(ATTN "q_proj", QUERIES), W(ATTN "k_proj", KEYS), W(ATTN "v_proj", KEYS)),
        BIAS_IF(QKV_BIAS)),
    ROW(rope, "rope", "qkv", "qkv", .interleaved = true),
    ROW(attention, "attend", "qkv", "o"),
    ROW(linear, "proj", "o", "p", WEIGHTS(W(ATTN "o_proj", HIDDEN)), RESIDUAL),
    ROW(norm, "norm2", "p", "s", WEIGHTS(W(LAYER "post_self_attn_layernorm", HIDDEN)), RMS),
    ROW(add, "add1", "x s", "m"),
    ROW(norm, "norm3", "m", "b", WEIGHTS(W(LAYER "post_attention_layernorm", HIDDEN)), RMS),
    ROW(linear, "up", "b", "f", WEIGHTS(W(LAYER "mlp.gate_up_proj", GATE_UP))),
    ROW(gate, "gate", "f", "g", .activation = ACTIVATION_SWIGLU),
    ROW(linear, "down", "g", "d", WEIGHTS(W(LAYER "mlp.down_proj", HIDDEN)), RESIDUAL),
    ROW(norm, "norm4", "d", "e", WEIGHTS(W(LAYER "post_mlp_layernorm", HIDDEN)), RMS),
    ROW(add, "add2", "m e", "y"),
    END,
};

/* ---- BERT ----
 *
 * Norms follow the sums: y = norm(x + branch(x)). So that all blocks are alike, each block has the
 * norm before it and not the one after it: the first block has the embedding's norm, and the block
 * `last` has the norm of the last published block. Attention sees both sides. `last` is the dense
 * part of the head (BertPredictionHeadTransform), whose norm is the final norm. The pooler and the
 * prediction of the next sentence are not there: the loss does not read them. */

#define BERT      "bert.encoder.layer.%llu."
#define BERT_ATTN BERT "attention."
#define BERT_HEAD "cls.predictions."
/* The norm after the block before. */
#define BERT_NORM                                                                                  \
    WEIGHTS(W(BERT "output.LayerNorm", HIDDEN)), BIAS, .first_name = "bert.embeddings.LayerNorm"

static const modeli_row bert_embed[] = {
    ROW(table, "table", "", "y", WEIGHTS(W("bert.embeddings.word_embeddings", VOCAB)),
        BIAS_IF(TIED), .bias_name = BERT_HEAD "bias"),
    ROW(table, "types", "", "y", WEIGHTS(W("bert.embeddings.token_type_embeddings", TYPES))),
    ROW(table, "positions", "", "y", WEIGHTS(W("bert.embeddings.position_embeddings", POSITIONS))),
    END,
};

static const modeli_row bert_block[] = {
    ROW(norm, "norm1", "x", "a", BERT_NORM),
    ROW(dropout, "drop0", "a", "a", IF(DROPOUT), .only_first = true), /* the embedding's */
    ROW(linear, "qkv", "a", "qkv",
        WEIGHTS(W(BERT_ATTN "self.query", QUERIES), W(BERT_ATTN "self.key", KEYS),
                W(BERT_ATTN "self.value", KEYS)),
        BIAS),
    ROW(attention, "attend", "qkv", "o", .is_bidirectional = true),
    ROW(linear, "proj", "o", "p", WEIGHTS(W(BERT_ATTN "output.dense", HIDDEN)), BIAS),
    ROW(dropout, "drop1", "p", "p", IF(DROPOUT)),
    ROW(add, "add1", "a p", "m"),
    ROW(norm, "norm2", "m", "b", WEIGHTS(W(BERT_ATTN "output.LayerNorm", HIDDEN)), BIAS),
    ROW(linear, "up", "b", "f", WEIGHTS(W(BERT "intermediate.dense", FFN)), BIAS),
    ROW(gate, "gate", "f", "g", .activation = ACTIVATION_GELU_ERF),
    ROW(linear, "down", "g", "d", WEIGHTS(W(BERT "output.dense", HIDDEN)), BIAS),
    ROW(dropout, "drop2", "d", "d", IF(DROPOUT)),
    ROW(add, "add2", "b d", "y"),
    END,
};

static const modeli_row bert_last[] = {
    ROW(norm, "norm1", "x", "a", BERT_NORM),
    ROW(linear, "dense", "a", "t", WEIGHTS(W(BERT_HEAD "transform.dense", HIDDEN)), BIAS),
    ROW(gate, "gate", "t", "y", .activation = ACTIVATION_GELU_ERF),
    END,
};

static const modeli_row bert_head[] = {
    ROW(norm, "norm", "x", "a", WEIGHTS(W(BERT_HEAD "transform.LayerNorm", HIDDEN)), BIAS),
    ROW(output, "output", "a", "logits", WEIGHTS(W(BERT_HEAD "decoder", VOCAB)), BIAS_IF(UNTIED),
        .bias_name = BERT_HEAD "bias"),
    END,
};

/* ---- GPT-NeoX: parallel branches with a norm each, of which only the norms' input is common; the
 * first part of each head is rotated ----
 *
 * In Hugging Face's files the rows of query_key_value are those of head 0 of q, of k and of v, then
 * of head 1, and so on. Here q, k and v are apart, so import and export reorder them. */

#define NEOX "gpt_neox.layers.%llu."

static const modeli_row gpt_neox_embed[] = {
    ROW(table, "table", "", "y", WEIGHTS(W("gpt_neox.embed_in", VOCAB))),
    END,
};

static const modeli_row gpt_neox_block[] = {
    ROW(norm, "norm1", "x", "a", WEIGHTS(W(NEOX "input_layernorm", HIDDEN)), BIAS),
    ROW(linear, "qkv", "a", "qkv", WEIGHTS(W(NEOX "attention.query_key_value", QKV)), BIAS),
    ROW(rope, "rope", "qkv", "qkv"),
    ROW(attention, "attend", "qkv", "o"),
    ROW(linear, "proj", "o", "p", WEIGHTS(W(NEOX "attention.dense", HIDDEN)), BIAS, RESIDUAL),
    ROW(dropout, "drop1", "p", "p", IF(DROPOUT)),
    ROW(add, "add1", "x p", "m", SEQUENTIAL),
    ROW(norm, "norm2", "m", "b", .if_parallel = "x",
        WEIGHTS(W(NEOX "post_attention_layernorm", HIDDEN)), BIAS),
    ROW(linear, "up", "b", "f", WEIGHTS(W(NEOX "mlp.dense_h_to_4h", FFN)), BIAS),
    ROW(gate, "gate", "f", "g", .activation = ACTIVATION_GELU_ERF),
    ROW(linear, "down", "g", "d", WEIGHTS(W(NEOX "mlp.dense_4h_to_h", HIDDEN)), BIAS, RESIDUAL),
    ROW(dropout, "drop2", "d", "d", IF(DROPOUT)),
    ROW(add, "branches", "p d", "m", IF(PARALLEL)),
    ROW(add, "add2", "m d", "y", .if_parallel = "x m"),
    END,
};

static const modeli_row gpt_neox_head[] = {
    ROW(norm, "norm", "x", "a", WEIGHTS(W("gpt_neox.final_layer_norm", HIDDEN)), BIAS),
    ROW(output, "output", "a", "logits", WEIGHTS(W("embed_out", VOCAB))),
    END,
};

/* ---- OPT: GPT-2 with ReLU, and with two rows before the first position ---- */

#define OPT "model.decoder.layers.%llu."

static const modeli_row opt_embed[] = {
    ROW(table, "table", "", "y", WEIGHTS(W("model.decoder.embed_tokens", VOCAB))),
    ROW(table, "positions", "", "y", WEIGHTS(W("model.decoder.embed_positions", POSITIONS_OF_OPT))),
    END,
};

static const modeli_row opt_block[] = {
    ROW(norm, "norm1", "x", "a", WEIGHTS(W(OPT "self_attn_layer_norm", HIDDEN)), BIAS),
    ROW(linear, "qkv", "a", "qkv",
        WEIGHTS(W(OPT "self_attn.q_proj", QUERIES), W(OPT "self_attn.k_proj", KEYS),
                W(OPT "self_attn.v_proj", KEYS)),
        BIAS),
    ROW(attention, "attend", "qkv", "o"),
    ROW(linear, "proj", "o", "p", WEIGHTS(W(OPT "self_attn.out_proj", HIDDEN)), BIAS, RESIDUAL),
    ROW(dropout, "drop1", "p", "p", IF(DROPOUT)),
    ROW(add, "add1", "x p", "m"),
    ROW(norm, "norm2", "m", "b", WEIGHTS(W(OPT "final_layer_norm", HIDDEN)), BIAS),
    ROW(linear, "up", "b", "f", WEIGHTS(W(OPT "fc1", FFN)), BIAS),
    ROW(gate, "gate", "f", "g", .activation = ACTIVATION_RELU),
    ROW(linear, "down", "g", "d", WEIGHTS(W(OPT "fc2", HIDDEN)), BIAS, RESIDUAL),
    ROW(dropout, "drop2", "d", "d", IF(DROPOUT)),
    ROW(add, "add2", "m d", "y"),
    END,
};

static const modeli_row opt_head[] = {
    ROW(norm, "norm", "x", "a", WEIGHTS(W("model.decoder.final_layer_norm", HIDDEN)), BIAS),
    ROW(output, "output", "a", "logits", WEIGHTS(W("lm_head", VOCAB))),
    END,
};

/* ---- Cohere (Command R): Llama with parallel branches of one LayerNorm without bias ---- */

static const modeli_row cohere_block[] = {
    ROW(norm, "norm", "x", "a", WEIGHTS(W(LAYER "input_layernorm", HIDDEN))),
    ROW(linear, "qkv", "a", "qkv",
        WEIGHTS(W(ATTN "q_proj", QUERIES), W(ATTN "k_proj", KEYS), W(ATTN "v_proj", KEYS)),
        BIAS_IF(QKV_BIAS)),
    ROW(head_norm, "heads", "qkv", "qkv",
        WEIGHTS(W(ATTN "q_norm", QUERIES), W(ATTN "k_norm", KEYS)), .by_heads = true, IF(QK_NORM)),
    ROW(rope, "rope", "qkv", "qkv", .interleaved = true),
    ROW(attention, "attend", "qkv", "o"),
    ROW(linear, "proj", "o", "p", WEIGHTS(W(ATTN "o_proj", HIDDEN)), BIAS_IF(OUT_BIAS), RESIDUAL),
    ROW(add, "add1", "x p", "m"),
    ROW(linear, "up", "a", "f",
        WEIGHTS(W(LAYER "mlp.gate_proj", FFN), W(LAYER "mlp.up_proj", FFN))),
    ROW(gate, "gate", "f", "g", .activation = ACTIVATION_SWIGLU),
    ROW(linear, "down", "g", "d", WEIGHTS(W(LAYER "mlp.down_proj", HIDDEN)), RESIDUAL),
    ROW(add, "add2", "m d", "y"),
    END,
};

static const modeli_row cohere_head[] = {
    ROW(norm, "norm", "x", "a", WEIGHTS(W("model.norm", HIDDEN))),
    ROW(output, "output", "a", "logits", WEIGHTS(W("lm_head", VOCAB))),
    END,
};

/* ---- StableLM: Llama with LayerNorm; parallel branches, if there are any, have one norm ---- */

static const modeli_row stablelm_block[] = {
    ROW(norm, "norm1", "x", "a", WEIGHTS(W(LAYER "input_layernorm", HIDDEN)), BIAS),
    ROW(linear, "qkv", "a", "qkv",
        WEIGHTS(W(ATTN "q_proj", QUERIES), W(ATTN "k_proj", KEYS), W(ATTN "v_proj", KEYS)),
        BIAS_IF(QKV_BIAS)),
    ROW(rope, "rope", "qkv", "qkv"),
    ROW(attention, "attend", "qkv", "o"),
    ROW(linear, "proj", "o", "p", WEIGHTS(W(ATTN "o_proj", HIDDEN)), RESIDUAL),
    ROW(add, "add1", "x p", "m"),
    ROW(norm, "norm2", "m", "b", WEIGHTS(W(LAYER "post_attention_layernorm", HIDDEN)), BIAS,
        SEQUENTIAL),
    ROW(linear, "up", "b", "f", .if_parallel = "a",
        WEIGHTS(W(LAYER "mlp.gate_proj", FFN), W(LAYER "mlp.up_proj", FFN))),
    ROW(gate, "gate", "f", "g", .activation = ACTIVATION_SWIGLU),
    ROW(linear, "down", "g", "d", WEIGHTS(W(LAYER "mlp.down_proj", HIDDEN)), RESIDUAL),
    ROW(dropout, "drop", "d", "d", IF(DROPOUT)),
    ROW(add, "add2", "m d", "y"),
    END,
};

/* ---- Gemma 2 and 3: Gemma, with norms before and after both branches; in Gemma 3 also norms of
 * q's and k's heads ---- */

static const modeli_row gemma2_block[] = {
    ROW(norm, "norm1", "x", "a", WEIGHTS(W(LAYER "input_layernorm", HIDDEN)), RMS_ONE),
    ROW(linear, "qkv", "a", "qkv",
        WEIGHTS(W(ATTN "q_proj", QUERIES), W(ATTN "k_proj", KEYS), W(ATTN "v_proj", KEYS))),
    ROW(head_norm, "heads", "qkv", "qkv", WEIGHTS(W(ATTN "q_norm", HEAD), W(ATTN "k_norm", HEAD)),
        IF(QK_NORM), RMS_ONE),
    ROW(rope, "rope", "qkv", "qkv"),
    ROW(attention, "attend", "qkv", "o"),
    ROW(linear, "proj", "o", "p", WEIGHTS(W(ATTN "o_proj", HIDDEN)), RESIDUAL),
    ROW(norm, "norm2", "p", "b", WEIGHTS(W(LAYER "post_attention_layernorm", HIDDEN)), RMS_ONE),
    ROW(add, "add1", "x b", "m"),
    ROW(norm, "norm3", "m", "c", WEIGHTS(W(LAYER "pre_feedforward_layernorm", HIDDEN)), RMS_ONE),
    ROW(linear, "up", "c", "f",
        WEIGHTS(W(LAYER "mlp.gate_proj", FFN), W(LAYER "mlp.up_proj", FFN))),
    ROW(gate, "gate", "f", "g", .activation = ACTIVATION_GEGLU),
    ROW(linear, "down", "g", "d", WEIGHTS(W(LAYER "mlp.down_proj", HIDDEN)), RESIDUAL),
    ROW(norm, "norm4", "d", "e", WEIGHTS(W(LAYER "post_feedforward_layernorm", HIDDEN)), RMS_ONE),
    ROW(add, "add2", "m e", "y"),
    END,
};

const modeli_family *modeli_family_of(enum model_family family)
{
    static const modeli_family families[MODEL_FAMILY_COUNT] = {
        [MODEL_GPT2] = {"gpt2", gpt2_embed, gpt2_block, gpt2_head, .drops_rows = true,
                        .has_plain_heads = true},
        [MODEL_LLAMA] = {"llama", llama_embed, llama_block, llama_head},
        [MODEL_STARCODER2] = {"starcoder2", llama_embed, starcoder2_block, starcoder2_head,
                              .drops_rows = true},
        [MODEL_PHI3] = {"phi3", llama_embed, phi3_block, llama_head},
        [MODEL_GEMMA] = {"gemma", llama_embed, gemma_block, gemma_head},
        [MODEL_OLMO2] = {"olmo2", llama_embed, olmo2_block, llama_head},
        [MODEL_GLM] = {"glm", llama_embed, glm_block, llama_head},
        [MODEL_GLM4] = {"glm4", llama_embed, glm4_block, llama_head},
        [MODEL_BERT] = {"bert", bert_embed, bert_block, bert_head, .last = bert_last,
                        .has_plain_heads = true},
        [MODEL_GPT_NEOX] = {"gpt_neox", gpt_neox_embed, gpt_neox_block, gpt_neox_head,
                            .has_plain_heads = true, .drops_rows = true},
        [MODEL_OPT] = {"opt", opt_embed, opt_block, opt_head, .has_plain_heads = true},
        [MODEL_COHERE] = {"cohere", llama_embed, cohere_block, cohere_head},
        [MODEL_STABLELM] = {"stablelm", llama_embed, stablelm_block, starcoder2_head},
        [MODEL_GEMMA2] = {"gemma2", llama_embed, gemma2_block, gemma_head},
    };
    return &families[family];
}

const char *model_family_name(enum model_family family)
{
    return modeli_family_of(family)->name;
}
