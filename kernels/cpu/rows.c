/* The row ops of the CPU backend. This file chooses the table of an instruction set, checks the
 * values in a caller's data that could do harm (token ids, targets), and calls the table.
 * rows_variant.c has the arithmetic.
 *
 * Every op here gives the same bits on every instruction set and with every number of threads.
 * rope_table and cross-entropy (the loss and the gradient of the target) call libm in double and
 * round the result once; libm's last bit may differ between machines. The baseline calls libm's
 * fmaf, which is slow but exact, if the compiler has no instruction for it. Only the backward
 * passes of the norms and of the bias, and the sums of routers, use scratch. Nothing allocates. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/rows_internal.h"
#include "kernels/dropout_mask.h"
#include "kernels/head_norm_wide.h"
#include "kernels/rope_frequency.h"

const rows_table *rowsi_table(enum cpu_isa isa)
{
#if defined(__x86_64__)
    if (isa >= CPU_AVX512)
        return &rowsi_avx512;
    if (isa >= CPU_AVX2)
        return &rowsi_avx2;
#endif
    return &rowsi_baseline;
}

enum rows_function rowsi_function(enum activation_kind kind)
{
    static const enum rows_function functions[ACTIVATION_KIND_COUNT] = {
        [ACTIVATION_GELU] = ROWS_FUNCTION_GELU,
        [ACTIVATION_SWIGLU] = ROWS_FUNCTION_SILU,
        [ACTIVATION_GELU_ERF] = ROWS_FUNCTION_GELU_ERF,
        [ACTIVATION_RELU] = ROWS_FUNCTION_RELU,
        [ACTIVATION_GEGLU] = ROWS_FUNCTION_GELU,
        [ACTIVATION_GEGLU_ERF] = ROWS_FUNCTION_GELU_ERF,
        [ACTIVATION_SWIGLU_CLAMPED] = ROWS_FUNCTION_SILU_CLAMPED,
    };
    assert((unsigned)kind < ACTIVATION_KIND_COUNT);
    return functions[kind];
}

void cpui_rows_select(kernel_context *context)
{
    context->rows = rowsi_table(context->isa);
}

int cpui_norm_forward(kernel_context *context, void *stream, const norm_args *args)
{
    assert(args->kind == NORM_RMS ? !args->bias : args->mean != NULL);
    assert(!args->residual || (args->sum && !args->stride));
    context->rows->norm_forward(context->thread_count, args);
    return 0;
}

size_t cpui_norm_grad_scratch_bytes(kernel_context *context, uint64_t rows, uint64_t channels)
{
    return (size_t)(rowsi_block_count(rows) * 2 * channels) * sizeof(float);
}

int cpui_norm_backward(kernel_context *context, void *stream, const norm_grad_args *args)
{
    assert(args->kind == NORM_RMS ? !args->bias_grad : args->mean != NULL);
    assert(!args->residual_grad || !args->stride);
    context->rows->norm_backward(context->thread_count, args);
    return 0;
}

static int token_ids_check(const int32_t *token_ids, uint64_t rows, uint64_t vocab)
{
    for (uint64_t row = 0; row < rows; row++)
        if (token_ids[row] < 0 || (uint64_t)token_ids[row] >= vocab)
            return err_set(ERR_INPUT,
                           "embedding: token id %d in row %llu is outside the vocabulary of %llu; "
                           "were the tokens made with this model's tokenizer?",
                           token_ids[row], (unsigned long long)row, (unsigned long long)vocab);
    return 0;
}

int cpui_embedding_forward(kernel_context *context, void *stream, const embedding_args *args)
{
    assert(args->row_begin <= args->vocab && args->row_count <= args->vocab - args->row_begin);
    assert(args->row_count || args->row_begin == 0);
    assert(!args->token_table || !args->position_table || args->row_count == 0 ||
           args->row_count == args->vocab);
    TRY(token_ids_check(args->token_ids, args->batch * args->tokens, args->vocab));
    context->rows->embedding_forward(context->thread_count, args);
    return 0;
}

size_t cpui_embedding_grad_scratch_bytes(kernel_context *context, uint64_t rows, uint64_t vocab)
{
    return 0;
}

int cpui_embedding_backward(kernel_context *context, void *stream, const embedding_grad_args *args)
{
    assert(args->row_begin <= args->vocab && args->row_count <= args->vocab - args->row_begin);
    assert(args->row_count || args->row_begin == 0);
    TRY(token_ids_check(args->token_ids, args->batch * args->tokens, args->vocab));
    context->rows->embedding_backward(context->thread_count, args);
    return 0;
}

int cpui_head_norm_forward(kernel_context *context, void *stream, const head_norm_args *args)
{
    if (head_norm_is_wide(args->heads, args->head_dim)) {
        norm_args wide = head_norm_wide_forward(args);
        return cpui_norm_forward(context, stream, &wide);
    }
    context->rows->head_norm_forward(context->thread_count, args);
    return 0;
}

size_t cpui_head_norm_grad_scratch_bytes(kernel_context *context, uint64_t rows, uint64_t heads,
                                         uint64_t head_dim)
{
    if (head_norm_is_wide(heads, head_dim))
        return cpui_norm_grad_scratch_bytes(context, rows, head_dim);
    return (size_t)(rowsi_block_count(rows) * head_dim) * sizeof(float);
}

int cpui_head_norm_backward(kernel_context *context, void *stream, const head_norm_args *args)
{
    if (head_norm_is_wide(args->heads, args->head_dim)) {
        norm_grad_args wide = head_norm_wide_backward(args);
        return cpui_norm_backward(context, stream, &wide);
    }
    context->rows->head_norm_backward(context->thread_count, args);
    return 0;
}

int cpui_rope_table(kernel_context *context, void *stream, const rope_table_args *args)
{
    assert(args->head_dim % 2 == 0);
    uint64_t pairs = args->head_dim / 2, tokens = args->tokens;
    double factor = rope_attention_factor(args);
    float *table = args->table;
#pragma omp parallel for schedule(static) num_threads(context->thread_count)
    for (uint64_t i = 0; i < pairs; i++) {
        double frequency = rope_frequency(args, i);
        for (uint64_t t = 0; t < tokens; t++) {
            table[(t * pairs + i) * 2] = (float)(cos((double)t * frequency) * factor);
            table[(t * pairs + i) * 2 + 1] = (float)(sin((double)t * frequency) * factor);
        }
    }
    return 0;
}

int cpui_rope(kernel_context *context, void *stream, const rope_args *args)
{
    assert((args->rotated ? args->rotated : args->head_dim) % 2 == 0);
    assert(args->rotated <= args->head_dim);
    context->rows->rope(context->thread_count, args);
    return 0;
}

/* The tables for the activations of `args`; NULL if there are none. */
static const rows_lookup *lookup_of(const kernel_context *context, const activation_args *args)
{
    return args->type == DTYPE_BF16 ? context->lookup : NULL;
}

int cpui_activation_forward(kernel_context *context, void *stream, const activation_args *args)
{
    context->rows->activation_forward(context->thread_count, args, lookup_of(context, args));
    return 0;
}

int cpui_activation_backward(kernel_context *context, void *stream, const activation_args *args)
{
    context->rows->activation_backward(context->thread_count, args, lookup_of(context, args));
    return 0;
}

int cpui_add(kernel_context *context, void *stream, enum dtype type, uint64_t count, const void *a,
             const void *b, void *out)
{
    context->rows->add(context->thread_count, type, count, a, b, out);
    return 0;
}

int cpui_attention_sinks(kernel_context *context, void *stream, const attention_sinks_args *args)
{
    context->rows->attention_sinks(context->thread_count, args);
    return 0;
}

int cpui_attention_sinks_backward(kernel_context *context, void *stream,
                                  const attention_sinks_args *args)
{
    context->rows->attention_sinks_backward(context->thread_count, args);
    return 0;
}

int cpui_heads_join(kernel_context *context, void *stream, const heads_join_args *args)
{
    assert(args->shared <= 256 && args->value > 0);
    context->rows->heads_join(context->thread_count, args);
    return 0;
}

int cpui_heads_split(kernel_context *context, void *stream, const heads_join_args *args)
{
    assert(args->shared <= 256 && args->value > 0);
    context->rows->heads_split(context->thread_count, args);
    return 0;
}

int cpui_scale_rows(kernel_context *context, void *stream, const scale_rows_args *args)
{
    assert(args->source_stride >= args->columns && args->target_stride >= args->columns);
    assert(args->source != args->target || args->source_stride == args->target_stride);
    context->rows->scale_rows(context->thread_count, args);
    return 0;
}

int cpui_dropout(kernel_context *context, void *stream, const dropout_args *args)
{
    assert(args->probability >= 0.0f && args->probability < 1.0f);
    assert(args->site >> DROPOUT_SITE_BITS == 0 && args->tokens > 0);
    assert(args->tokens * args->columns / 4 >> DROPOUT_QUAD_BITS == 0);
    context->rows->dropout(context->thread_count, args);
    return 0;
}

size_t cpui_bias_backward_scratch_bytes(kernel_context *context, uint64_t rows, uint64_t n)
{
    return (size_t)(rowsi_block_count(rows) * n) * sizeof(float);
}

int cpui_bias_backward(kernel_context *context, void *stream, enum dtype type, uint64_t rows,
                       uint64_t n, uint64_t stride, const void *output_grad, float *bias_grad,
                       void *scratch)
{
    assert(stride >= n);
    context->rows->bias_backward(context->thread_count, type, rows, n, stride, output_grad,
                                 bias_grad, scratch);
    return 0;
}

int cpui_cross_entropy(kernel_context *context, void *stream, const cross_entropy_args *args)
{
    assert(cross_entropy_stride(args) >= args->vocab);
    assert((const void *)args->logits != args->logits_grad || args->type == DTYPE_FP32);
    for (uint64_t row = 0; row < args->rows; row++)
        if (args->targets[row] < -1 ||
            (args->targets[row] >= 0 && (uint64_t)args->targets[row] >= args->vocab))
            return err_set(ERR_INPUT,
                           "cross-entropy: target %d in row %llu is neither -1 nor in the "
                           "vocabulary of %llu; were the tokens made with this model's tokenizer?",
                           args->targets[row], (unsigned long long)row,
                           (unsigned long long)args->vocab);
    context->rows->cross_entropy(context->thread_count, args);
    return 0;
}

/* A part does not know the size of the vocabulary: a target beyond it would look like a target of
 * another part. The embedding has already refused such tokens. */
static int part_targets_check(const softmax_part_args *args)
{
    for (uint64_t row = 0; row < args->rows; row++)
        if (args->targets[row] < -1)
            return err_set(ERR_INPUT,
                           "cross-entropy: target %d in row %llu is neither -1 nor in the "
                           "vocabulary; were the tokens made with this model's tokenizer?",
                           args->targets[row], (unsigned long long)row);
    return 0;
}

int cpui_softmax_part(kernel_context *context, void *stream, const softmax_part_args *args)
{
    assert(softmax_part_stride(args) >= args->columns);
    TRY(part_targets_check(args));
    context->rows->softmax_part(context->thread_count, args);
    return 0;
}

int cpui_softmax_losses(kernel_context *context, void *stream, const softmax_part_args *args)
{
    TRY(part_targets_check(args));
    for (uint64_t row = 0; row < args->rows; row++) {
        double distance = (double)args->largest[row] - (double)args->target_logit[row];
        double loss = log((double)args->sum[row]) + distance;
        args->losses[row] = args->targets[row] < 0 ? 0.0f
                            : isnan(loss)          ? fp32_from_bits(0x7fc00000u)
                                                   : (float)loss;
    }
    return 0;
}

int cpui_cross_entropy_part(kernel_context *context, void *stream, const softmax_part_args *args)
{
    assert(softmax_part_stride(args) >= args->columns);
    assert((const void *)args->logits != args->logits_grad || args->type == DTYPE_FP32);
    TRY(part_targets_check(args));
    context->rows->cross_entropy_part(context->thread_count, args);
    return 0;
}

int cpui_zero(kernel_context *context, void *stream, void *data, uint64_t bytes)
{
    enum { CHUNK_BYTES = 256 * 1024 }; /* the piece of one thread */
    int threads = bytes <= CHUNK_BYTES ? 1 : context->thread_count;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (uint64_t at = 0; at < bytes; at += CHUNK_BYTES)
        memset((char *)data + at, 0, bytes - at < CHUNK_BYTES ? bytes - at : CHUNK_BYTES);
    return 0;
}

int cpui_read_back(kernel_context *context, void *stream, const read_back_args *args)
{
    return read_back_host(args);
}

int cpui_convert(kernel_context *context, void *stream, const void *source, enum dtype source_type,
                 void *target, enum dtype target_type, uint64_t count)
{
    assert(source != target || source_type == target_type || count == 0);
    context->rows->convert(context->thread_count, source, source_type, target, target_type, count);
    return 0;
}
