/* The families: each lists the tensors of one whole embedding, block and head, and notes their
 * offsets. The names are Hugging Face's. Pure. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "model/model_internal.h"

/* Adds a tensor and returns its offset. `name` may hold one %llu for the layer. with_previous puts
 * it directly after the tensor before, without alignment, so that both are rows of one matrix. */
static uint64_t add(modeli_lister *list, const char *name, uint64_t rows, uint64_t columns,
                    enum tensor_init init, bool with_previous)
{
    model_tensor *tensor = modeli_append(list, rows, columns, with_previous);
    snprintf(tensor->name, sizeof tensor->name, name, (unsigned long long)list->layer);
    tensor->init = init;
    return tensor->offset_elems;
}

/* ---- GPT-2 ----
 *
 * Learned positions, LayerNorm with biases, biases in every linear layer, GELU in its tanh form. In
 * Hugging Face's files the linear layers of a block (c_attn, c_proj, c_fc) are of class Conv1D and
 * stored [in, out]. Here every linear weight is stored [out, in], so import and export transpose
 * these four tensors of a block. */

/* A norm or linear layer with its bias: "<name>.weight", "<name>.bias". */
static modeli_pair add_pair(modeli_lister *list, const char *name, uint64_t rows, uint64_t columns,
                            enum tensor_init init)
{
    char full[MODEL_NAME_BYTES];
    modeli_pair pair;
    snprintf(full, sizeof full, "%s.weight", name);
    pair.weight = add(list, full, rows, columns, init, false);
    snprintf(full, sizeof full, "%s.bias", name);
    pair.bias =
        add(list, full, 1, init == TENSOR_INIT_ONE ? columns : rows, TENSOR_INIT_ZERO, false);
    return pair;
}

static void gpt2_embed(const model_spec *spec, modeli_lister *list, modeli_shape *shape)
{
    uint64_t channels = spec->hidden_size;
    shape->token_table =
        add(list, "wte.weight", spec->vocab_size, channels, TENSOR_INIT_NORMAL, false);
    shape->position_table =
        add(list, "wpe.weight", spec->position_count, channels, TENSOR_INIT_NORMAL, false);
}

static void gpt2_block(const model_spec *spec, modeli_lister *list, modeli_shape *shape)
{
    uint64_t channels = spec->hidden_size, ffn = spec->ffn_size;
    shape->q_norm = shape->k_norm = MODELI_ABSENT;
    shape->norm1 = add_pair(list, "h.%llu.ln_1", 1, channels, TENSOR_INIT_ONE);
    shape->qkv =
        add_pair(list, "h.%llu.attn.c_attn", shape->qkv_columns, channels, TENSOR_INIT_NORMAL);
    shape->proj =
        add_pair(list, "h.%llu.attn.c_proj", channels, channels, TENSOR_INIT_NORMAL_RESIDUAL);
    shape->norm2 = add_pair(list, "h.%llu.ln_2", 1, channels, TENSOR_INIT_ONE);
    shape->up = add_pair(list, "h.%llu.mlp.c_fc", ffn, channels, TENSOR_INIT_NORMAL);
    shape->down = add_pair(list, "h.%llu.mlp.c_proj", channels, ffn, TENSOR_INIT_NORMAL_RESIDUAL);
}

static void gpt2_head(const model_spec *spec, modeli_lister *list, modeli_shape *shape)
{
    shape->norm_final = add_pair(list, "ln_f", 1, spec->hidden_size, TENSOR_INIT_ONE);
}

/* ---- Llama ----
 *
 * RMSNorm, rotary positions, grouped key/value heads, SwiGLU. If the spec asks for them: biases of
 * q, k and v (Qwen2), norms of q's and k's heads (Qwen3); no other biases. Hugging Face's linear
 * weights are [out, in] as here.
 *
 * These groups lie without padding, so each is one matrix (or vector) for one product: q, k, v;
 * their biases; gate, up. The rotary form is Hugging Face's (pairs i and i + D/2), so their weights
 * need no reordering. */

#define ATTENTION "model.layers.%llu.self_attn."

static void add_qkv(const model_spec *spec, modeli_lister *list, modeli_shape *shape)
{
    uint64_t channels = spec->hidden_size, q_rows = shape->attention_columns;
    uint64_t kv_rows = spec->num_kv_heads * shape->head_dim;
    shape->qkv.weight =
        add(list, ATTENTION "q_proj.weight", q_rows, channels, TENSOR_INIT_NORMAL, false);
    add(list, ATTENTION "k_proj.weight", kv_rows, channels, TENSOR_INIT_NORMAL, true);
    add(list, ATTENTION "v_proj.weight", kv_rows, channels, TENSOR_INIT_NORMAL, true);
    if (spec->qkv_bias) {
        shape->qkv.bias = add(list, ATTENTION "q_proj.bias", 1, q_rows, TENSOR_INIT_ZERO, false);
        add(list, ATTENTION "k_proj.bias", 1, kv_rows, TENSOR_INIT_ZERO, true);
        add(list, ATTENTION "v_proj.bias", 1, kv_rows, TENSOR_INIT_ZERO, true);
    }
    if (spec->qk_norm) {
        shape->q_norm =
            add(list, ATTENTION "q_norm.weight", 1, shape->head_dim, TENSOR_INIT_ONE, false);
        shape->k_norm =
            add(list, ATTENTION "k_norm.weight", 1, shape->head_dim, TENSOR_INIT_ONE, false);
    }
}

static void llama_embed(const model_spec *spec, modeli_lister *list, modeli_shape *shape)
{
    shape->token_table = add(list, "model.embed_tokens.weight", spec->vocab_size, spec->hidden_size,
                             TENSOR_INIT_NORMAL, false);
    shape->position_table = MODELI_ABSENT;
}

static void llama_block(const model_spec *spec, modeli_lister *list, modeli_shape *shape)
{
    uint64_t channels = spec->hidden_size, ffn = spec->ffn_size;
    const modeli_pair no_bias = {0, MODELI_ABSENT};
    shape->q_norm = shape->k_norm = MODELI_ABSENT;
    shape->norm1 = shape->qkv = shape->proj = shape->norm2 = shape->up = shape->down = no_bias;

    shape->norm1.weight =
        add(list, "model.layers.%llu.input_layernorm.weight", 1, channels, TENSOR_INIT_ONE, false);
    add_qkv(spec, list, shape);
    shape->proj.weight = add(list, ATTENTION "o_proj.weight", channels, shape->attention_columns,
                             TENSOR_INIT_NORMAL_RESIDUAL, false);
    shape->norm2.weight = add(list, "model.layers.%llu.post_attention_layernorm.weight", 1,
                              channels, TENSOR_INIT_ONE, false);
    shape->up.weight = add(list, "model.layers.%llu.mlp.gate_proj.weight", ffn, channels,
                           TENSOR_INIT_NORMAL, false);
    add(list, "model.layers.%llu.mlp.up_proj.weight", ffn, channels, TENSOR_INIT_NORMAL, true);
    shape->down.weight = add(list, "model.layers.%llu.mlp.down_proj.weight", channels, ffn,
                             TENSOR_INIT_NORMAL_RESIDUAL, false);
}

static void llama_head(const model_spec *spec, modeli_lister *list, modeli_shape *shape)
{
    uint64_t channels = spec->hidden_size;
    shape->norm_final.weight = add(list, "model.norm.weight", 1, channels, TENSOR_INIT_ONE, false);
    shape->norm_final.bias = MODELI_ABSENT;
}

void modeli_list_whole(model *self, uint64_t layer, modeli_whole *whole)
{
    const model_spec *spec = &self->spec;
    modeli_shape *shape = &self->products->shape;
    bool is_llama = spec->family == MODEL_LLAMA;
    memset(whole, 0, sizeof *whole);
    whole->embed.tensors = whole->tensors[0];
    whole->block.tensors = whole->tensors[1];
    whole->head.tensors = whole->tensors[2];
    modeli_lister embed = {.unit = &whole->embed}, block = {.unit = &whole->block, .layer = layer};
    modeli_lister head = {.unit = &whole->head};
    (is_llama ? llama_embed : gpt2_embed)(spec, &embed, shape);
    (is_llama ? llama_block : gpt2_block)(spec, &block, shape);
    (is_llama ? llama_head : gpt2_head)(spec, &head, shape);
    if (!spec->tie_embeddings)
        shape->output_matrix = add(&head, "lm_head.weight", spec->vocab_size, spec->hidden_size,
                                   TENSOR_INIT_NORMAL, false);
    assert(shape->token_table == 0);
}
