/* Shared by families.c and families_experts.c: rows that several families have, as macros. Names of
 * tensors are Hugging Face's; layers_internal.h says what the members of a row mean. */
#ifndef SLUICE_MODEL_FAMILIES_INTERNAL_H
#define SLUICE_MODEL_FAMILIES_INTERNAL_H

#include "model/model_internal.h"

#define ROW(kind_name, row_name, values_read, value_written, ...)                                  \
    {                                                                                              \
        .kind = &modeli_##kind_name, .name = row_name, .reads = values_read,                       \
        .writes = value_written, __VA_ARGS__                                                       \
    }
#define BIAS           .has_bias = MODELI_ALWAYS
#define BIAS_IF(which) .has_bias = MODELI_IF_##which
#define IF(which)      .is_there = MODELI_IF_##which
#define SEQUENTIAL     .is_there = MODELI_UNLESS_PARALLEL
#define RESIDUAL       .is_residual = true

/* Rows of all families. */
#define TABLE(name, weight, rows, ...)                                                             \
    ROW(table, name, "", "y", .weights = {{weight, MODELI_##rows}}, __VA_ARGS__)
#define NORM(name, reads, writes, weight, ...)                                                     \
    ROW(norm, name, reads, writes, .weights = {{weight, MODELI_HIDDEN}}, __VA_ARGS__)
#define LINEAR(name, reads, writes, weight, width, ...)                                            \
    ROW(linear, name, reads, writes, .weights = {{weight, MODELI_##width}}, __VA_ARGS__)
#define OUTPUT(weight, ...)                                                                        \
    ROW(output, "output", "a", "logits", .weights = {{weight, MODELI_VOCAB}}, __VA_ARGS__)
#define ADD(name, reads, writes, ...) ROW(add, name, reads, writes, __VA_ARGS__)
#define DROP(name, value)             ROW(dropout, name, value, value, IF(DROPOUT))
#define ROPE                          ROW(rope, "rope", "qkv", "qkv")
#define ATTEND                        ROW(attention, "attend", "qkv", "o")
#define ATTEND_WITH_SINKS(name, ...)                                                               \
    ROW(attention, "attend", "qkv", "o", .weights = {{name, MODELI_HEADS}}, __VA_ARGS__)
#define GATE ROW(gate, "gate", "f", "g")
/* Three matrices for q, k and v. */
#define QKV3(reads, q, k, v, ...)                                                                  \
    ROW(linear, "qkv", reads, "qkv",                                                               \
        .weights = {{q, MODELI_QUERIES}, {k, MODELI_KEYS}, {v, MODELI_KEYS}}, __VA_ARGS__)
/* A feed-forward part without a gate. */
#define PLAIN_FFN(up, down, ...)                                                                   \
    LINEAR("up", "b", "f", up, FFN, BIAS), GATE,                                                   \
        LINEAR("down", "g", "d", down, HIDDEN, BIAS, __VA_ARGS__)

/* Rows of Llama and its relatives. */
#define LAYER "model.layers.%llu."
#define ATTN  LAYER "self_attn."

#define LLAMA_QKV(reads, ...) QKV3(reads, ATTN "q_proj", ATTN "k_proj", ATTN "v_proj", __VA_ARGS__)
#define LLAMA_HEAD_NORMS(q_width, k_width, ...)                                                    \
    ROW(head_norm, "heads", "qkv", "qkv",                                                          \
        .weights = {{ATTN "q_norm", MODELI_##q_width}, {ATTN "k_norm", MODELI_##k_width}},         \
        __VA_ARGS__)
#define LLAMA_PROJ(...)   LINEAR("proj", "o", "p", ATTN "o_proj", HIDDEN, RESIDUAL, __VA_ARGS__)
#define LLAMA_ATTEND(...) ROPE, ATTEND, LLAMA_PROJ(__VA_ARGS__)
#define LLAMA_UP(reads, ...)                                                                       \
    ROW(linear, "up", reads, "f",                                                                  \
        .weights = {{LAYER "mlp.gate_proj", MODELI_FFN}, {LAYER "mlp.up_proj", MODELI_FFN}},       \
        __VA_ARGS__)
#define JOINT_UP(reads) LINEAR("up", reads, "f", LAYER "mlp.gate_up_proj", GATE_UP)
#define LLAMA_DOWN(...)                                                                            \
    GATE, LINEAR("down", "g", "d", LAYER "mlp.down_proj", HIDDEN, RESIDUAL, __VA_ARGS__)

/* families_experts.c */
extern const modeli_row modeli_mixtral_block[], modeli_mixtral_experts[], modeli_olmoe_block[],
    modeli_qwen2_moe_experts[], modeli_gpt_oss_block[], modeli_gpt_oss_experts[],
    modeli_deepseek_block[], modeli_deepseek_dense[], modeli_deepseek_experts[];

#endif
