/* config.json of the families with a table of learned positions: gpt2, bert and opt. Their keys
 * have names of their own. See hf_config_internal.h. */
#include <inttypes.h>
#include <string.h>

#include "config/hf_config_internal.h"

int hfi_fill_gpt2(hfi_config *self)
{
    uint64_t channels, layers, heads, ffn;
    TRY(hfi_put(self, "family", json_string("gpt2")));
    TRY(hfi_take_uint(self, "num_layers", "n_layer", "num_hidden_layers", HFI_REQUIRED, &layers));
    TRY(hfi_take_uint(self, "hidden_size", "n_embd", "hidden_size", HFI_REQUIRED, &channels));
    TRY(hfi_take_uint(self, "num_heads", "n_head", "num_attention_heads", HFI_REQUIRED, &heads));
    TRY(hfi_put(self, "num_kv_heads", json_integer((json_int_t)heads)));
    TRY(hfi_take_uint(self, "ffn_size", "n_inner", NULL, channels <= UINT32_MAX ? 4 * channels : 0,
                      &ffn));
    TRY(hfi_take_uint(self, "position_count", "n_positions", "max_position_embeddings", 1024,
                      &self->positions));
    TRY(hfi_put_activation(self, "activation_function", "gelu_new", "gelu_tanh", false));
    TRY(hfi_refuse(self, "scale_attn_by_inverse_layer_idx", false,
                   "scores are not divided by the "
                   "number of their layer"));
    TRY(hfi_refuse(self, "scale_attn_weights", true,
                   "scores are always divided by the square root "
                   "of the head's width"));
    TRY(hfi_refuse(self, "add_cross_attention", false, "there is no encoder to attend to"));
    /* reorder_and_upcast_attn asks for fp32 scores. Scores are always fp32 here. */
    TRY(hfi_put_dropout(self, "hidden_dropout", "resid_pdrop", 0.1));
    TRY(hfi_put_dropout(self, "embedding_dropout", "embd_pdrop", 0.1));
    TRY(hfi_put_dropout(self, "attention_dropout", "attn_pdrop", 0.1));
    TRY(hfi_put_real(self, "norm_epsilon", "layer_norm_epsilon", 1e-5));
    return hfi_put_bool(self, "tie_embeddings", "tie_word_embeddings", true);
}

int hfi_fill_bert(hfi_config *self)
{
    uint64_t channels, layers, heads, ffn, types;
    const json_t *positions = hfi_get(self, "position_embedding_type");
    TRY(hfi_put(self, "family", json_string("bert")));
    TRY(hfi_take_uint(self, "num_layers", "num_hidden_layers", NULL, 12, &layers));
    TRY(hfi_take_uint(self, "hidden_size", "hidden_size", NULL, 768, &channels));
    TRY(hfi_take_uint(self, "num_heads", "num_attention_heads", NULL, 12, &heads));
    TRY(hfi_take_uint(self, "ffn_size", "intermediate_size", NULL, 3072, &ffn));
    TRY(hfi_take_uint(self, "type_count", "type_vocab_size", NULL, 2, &types));
    TRY(hfi_take_uint(self, "position_count", "max_position_embeddings", NULL, 512,
                      &self->positions));
    TRY(hfi_put_activation(self, "hidden_act", "gelu", "gelu", false));
    if (positions &&
        (!json_is_string(positions) || strcmp(json_string_value(positions), "absolute") != 0))
        return hfi_error(self, "position_embedding_type", "only \"absolute\" is built");
    TRY(hfi_refuse(self, "is_decoder", false, "attention sees both sides"));
    TRY(hfi_refuse(self, "add_cross_attention", false, "there is no encoder to attend to"));
    TRY(hfi_refuse(self, "tie_word_embeddings", true, "the output matrix is the embedding"));
    TRY(hfi_put_dropout(self, "hidden_dropout", "hidden_dropout_prob", 0.1));
    TRY(hfi_put_dropout(self, "attention_dropout", "attention_probs_dropout_prob", 0.1));
    return hfi_put_real(self, "norm_epsilon", "layer_norm_eps", 1e-12);
}

int hfi_fill_opt(hfi_config *self)
{
    uint64_t channels, layers, heads, ffn, inner;
    TRY(hfi_put(self, "family", json_string("opt")));
    TRY(hfi_take_uint(self, "num_layers", "num_hidden_layers", NULL, HFI_REQUIRED, &layers));
    TRY(hfi_take_uint(self, "hidden_size", "hidden_size", NULL, HFI_REQUIRED, &channels));
    TRY(hfi_take_uint(self, "num_heads", "num_attention_heads", NULL, HFI_REQUIRED, &heads));
    TRY(hfi_put(self, "num_kv_heads", json_integer((json_int_t)heads)));
    TRY(hfi_take_uint(self, "ffn_size", "ffn_dim", NULL, HFI_REQUIRED, &ffn));
    TRY(hfi_take_uint(self, "position_count", "max_position_embeddings", NULL, 2048,
                      &self->positions));
    TRY(hfi_put_activation(self, "activation_function", "relu", "relu", false));
    TRY(hfi_uint(self, "word_embed_proj_dim", NULL, channels, &inner));
    if (inner != channels)
        return hfi_error(self, "word_embed_proj_dim",
                         "%" PRIu64 " is not built: embeddings are hidden_size %" PRIu64 " wide",
                         inner, channels);
    TRY(hfi_refuse(self, "do_layer_norm_before", true, "norms stand before the layers"));
    TRY(hfi_refuse(self, "_remove_final_layer_norm", false, "the last norm is always there"));
    TRY(hfi_refuse(self, "enable_bias", true, "models without these biases are not built"));
    TRY(hfi_refuse(self, "layer_norm_elementwise_affine", true, "norms always have weights"));
    TRY(hfi_put_dropout(self, "hidden_dropout", "dropout", 0.1));
    TRY(hfi_put_dropout(self, "attention_dropout", "attention_dropout", 0));
    const json_t *layerdrop = hfi_get(self, "layerdrop");
    if (layerdrop && (!json_is_number(layerdrop) || json_number_value(layerdrop) != 0))
        return hfi_error(self, "layerdrop", "no layer is left out in training; set it to 0");
    TRY(hfi_put(self, "norm_epsilon", json_real(1e-5))); /* PyTorch's; no key says it */
    return hfi_put_bool(self, "tie_embeddings", "tie_word_embeddings", true);
}
