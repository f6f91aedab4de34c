/* The tensors of the Llama family: RMSNorm, rotary positions, grouped key/value heads, SwiGLU. If
 * the spec asks for them: biases of q, k and v (Qwen2), norms of q's and k's heads (Qwen3); no
 * other biases. Pure. The names are Hugging Face's, whose linear weights are [out, in] as here.
 *
 * These groups lie without padding, so each is one matrix (or vector) for one product: q, k, v;
 * their biases; gate, up. The rotary form is Hugging Face's (pairs i and i + D/2), so their weights
 * need no reordering. */
#include "model/model_internal.h"

static uint64_t add(modeli_lister *list, const char *name, uint64_t rows, uint64_t columns,
                    enum tensor_init init, bool with_previous)
{
    modeli_row row = {name, rows, columns, init, with_previous};
    return modeli_add(list, &row);
}

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
    if (!spec->tie_embeddings)
        shape->output_matrix =
            add(list, "lm_head.weight", spec->vocab_size, channels, TENSOR_INIT_NORMAL, false);
}

const modeli_family modeli_llama = {"llama", llama_embed, llama_block, llama_head};
