/* The tensors of the GPT-2 family: learned positions, LayerNorm with biases, biases in every linear
 * layer, GELU in its tanh form. Pure.
 *
 * The names are Hugging Face's. There the linear layers of a block (c_attn, c_proj, c_fc) are of
 * class Conv1D and stored [in, out]. Here every linear weight is stored [out, in], so import and
 * export transpose these four tensors of a block. */
#include "model/model_internal.h"

static modeli_pair add_norm(modeli_lister *list, const char *weight_name, const char *bias_name,
                            uint64_t channels)
{
    modeli_row weight = {weight_name, 1, channels, TENSOR_INIT_ONE, false};
    modeli_row bias = {bias_name, 1, channels, TENSOR_INIT_ZERO, false};
    modeli_pair pair;
    pair.weight = modeli_add(list, &weight);
    pair.bias = modeli_add(list, &bias);
    return pair;
}

static modeli_pair add_linear(modeli_lister *list, const char *weight_name, const char *bias_name,
                              uint64_t rows, uint64_t columns, enum tensor_init init)
{
    modeli_row weight = {weight_name, rows, columns, init, false};
    modeli_row bias = {bias_name, 1, rows, TENSOR_INIT_ZERO, false};
    modeli_pair pair;
    pair.weight = modeli_add(list, &weight);
    pair.bias = modeli_add(list, &bias);
    return pair;
}

static void gpt2_embed(const model_spec *spec, modeli_lister *list, modeli_shape *shape)
{
    uint64_t channels = spec->hidden_size;
    modeli_row tokens = {"wte.weight", spec->vocab_size, channels, TENSOR_INIT_NORMAL, false};
    modeli_row positions = {"wpe.weight", spec->position_count, channels, TENSOR_INIT_NORMAL,
                            false};
    shape->token_table = modeli_add(list, &tokens);
    shape->position_table = modeli_add(list, &positions);
}

static void gpt2_block(const model_spec *spec, modeli_lister *list, modeli_shape *shape)
{
    uint64_t channels = spec->hidden_size, ffn = spec->ffn_size;
    shape->q_norm = shape->k_norm = MODELI_ABSENT;
    shape->norm1 = add_norm(list, "h.%llu.ln_1.weight", "h.%llu.ln_1.bias", channels);
    shape->qkv = add_linear(list, "h.%llu.attn.c_attn.weight", "h.%llu.attn.c_attn.bias",
                            shape->qkv_columns, channels, TENSOR_INIT_NORMAL);
    shape->proj = add_linear(list, "h.%llu.attn.c_proj.weight", "h.%llu.attn.c_proj.bias", channels,
                             channels, TENSOR_INIT_NORMAL_RESIDUAL);
    shape->norm2 = add_norm(list, "h.%llu.ln_2.weight", "h.%llu.ln_2.bias", channels);
    shape->up = add_linear(list, "h.%llu.mlp.c_fc.weight", "h.%llu.mlp.c_fc.bias", ffn, channels,
                           TENSOR_INIT_NORMAL);
    shape->down = add_linear(list, "h.%llu.mlp.c_proj.weight", "h.%llu.mlp.c_proj.bias", channels,
                             ffn, TENSOR_INIT_NORMAL_RESIDUAL);
}

static void gpt2_head(const model_spec *spec, modeli_lister *list, modeli_shape *shape)
{
    uint64_t channels = spec->hidden_size;
    shape->norm_final = add_norm(list, "ln_f.weight", "ln_f.bias", channels);
    if (spec->tie_embeddings)
        return;
    modeli_row output = {"lm_head.weight", spec->vocab_size, channels, TENSOR_INIT_NORMAL, false};
    shape->output_matrix = modeli_add(list, &output);
}

const modeli_family modeli_gpt2 = {"gpt2", gpt2_embed, gpt2_block, gpt2_head};
