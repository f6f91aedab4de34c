/* Translates the job's model block for src/model, and makes the identity's lines for settings that
 * most models leave at their defaults. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "setup/setup_internal.h"

model_spec setup_model_spec(const struct job_model *from)
{
    return (model_spec){
        .family = strcmp(from->family, "llama") == 0 ? MODEL_LLAMA : MODEL_GPT2,
        .num_layers = from->num_layers,
        .hidden_size = from->hidden_size,
        .num_heads = from->num_heads,
        .num_kv_heads = from->num_kv_heads,
        .ffn_size = from->ffn_size,
        .vocab_size = from->vocab_size,
        .seq_length = from->seq_length,
        .head_dim = from->head_dim,
        .qkv_bias = from->qkv_bias,
        .qk_norm = from->qk_norm,
        .position_count = from->position_count,
        .rope_scaling = from->rope_scaling,
        .rope_factor = from->rope_factor,
        .rope_low_freq_factor = from->rope_low_freq_factor,
        .rope_high_freq_factor = from->rope_high_freq_factor,
        .rope_original_positions = from->rope_original_positions,
        .tie_embeddings = from->tie_embeddings,
        .rope_theta = from->rope_theta,
        .norm_epsilon = from->norm_epsilon,
        .init_std = from->init_std,
        .max_part_bytes = from->max_part_bytes,
    };
}

/* Appends text. Like snprintf, it leaves out text without room but counts it in *used. */
__attribute__((format(printf, 4, 5))) static void append(char *text, size_t capacity, int *used,
                                                         const char *format, ...)
{
    va_list args;
    size_t at = (size_t)*used < capacity ? (size_t)*used : capacity;
    va_start(args, format);
    int length = vsnprintf(text + at, capacity - at, format, args);
    va_end(args);
    *used += length > 0 ? length : 0;
}

int setupi_variant_identity(const model_spec *spec, char *text, size_t capacity)
{
    int used = 0;
    bool is_llama = spec->family == MODEL_LLAMA;
    if (is_llama && spec->head_dim * spec->num_heads != spec->hidden_size)
        append(text, capacity, &used, "model.head_dim=%" PRIu64 "\n", spec->head_dim);
    if (is_llama && spec->qkv_bias)
        append(text, capacity, &used, "model.qkv_bias=true\n");
    if (spec->qk_norm)
        append(text, capacity, &used, "model.qk_norm=true\n");
    if (!is_llama && spec->position_count != spec->seq_length)
        append(text, capacity, &used, "model.position_count=%" PRIu64 "\n", spec->position_count);
    if (spec->rope_scaling == ROPE_PLAIN)
        return used;
    append(text, capacity, &used, "model.rope_scaling.type=%s\nmodel.rope_scaling.factor=%.17g\n",
           rope_scaling_name(spec->rope_scaling), spec->rope_factor);
    if (spec->rope_scaling == ROPE_LLAMA3)
        append(text, capacity, &used,
               "model.rope_scaling.low_freq_factor=%.17g\n"
               "model.rope_scaling.high_freq_factor=%.17g\n"
               "model.rope_scaling.original_max_position_embeddings=%" PRIu64 "\n",
               spec->rope_low_freq_factor, spec->rope_high_freq_factor,
               spec->rope_original_positions);
    return used;
}
