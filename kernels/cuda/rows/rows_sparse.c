/* The ops of the CUDA backend that depend on tokens: embedding, and softmax cross-entropy, whole
 * and in parts. This file checks what the host can see and chooses the launches. It allocates
 * nothing and never waits for the GPU.
 *
 * Token ids and targets are in device memory, so only the CPU's backend can refuse wrong ones; the
 * corpus has checked them before. No kernel reads or writes out of bounds because of them:
 *
 *   - An id outside the vocabulary makes its output row NaN and adds to no token's gradient.
 *   - A target below -1 makes its loss and its gradients NaN, which the step's check detects. A
 *     target beyond the vocabulary does the same if this part is the whole vocabulary.
 *
 * Scratch of the embedding's backward pass, K = rows keys of 8 bytes:
 *
 *   | keys [K], rounded up to 256 bytes | keys [K], for merging, only with more than one run | */
#include <assert.h>

#include "base/size.h"
#include "kernels/cuda/cuda_internal.h"
#include "kernels/cuda/rows/rows_launch.h"

enum { SCRATCH_ALIGNMENT = 256 };

static bool is_part_of(uint64_t row_begin, uint64_t row_count, uint64_t vocab)
{
    return row_begin <= vocab && row_count <= vocab - row_begin &&
           (row_count > 0 || row_begin == 0);
}

int cudai_embedding_forward(kernel_context *context, void *stream, const embedding_args *args)
{
    assert(is_part_of(args->row_begin, args->row_count, args->vocab));
    assert(!args->token_table || !args->position_table || args->row_count == 0 ||
           args->row_count == args->vocab);
    if (args->batch * args->tokens == 0 || args->channels == 0)
        return 0;
    if (!args->token_table && !args->position_table)
        return 0;
    return cudai_check(cudai_launch_embedding_forward(args, context->sm_count, stream),
                       "the embedding kernel");
}

static uint64_t keys_bytes(uint64_t rows)
{
    return size_round_up(rows * sizeof(uint64_t), SCRATCH_ALIGNMENT);
}

size_t cudai_embedding_grad_scratch_bytes(kernel_context *context, uint64_t rows, uint64_t vocab)
{
    return (size_t)(keys_bytes(rows) * (rows > CUDAI_SORT_KEYS ? 2 : 1));
}

/* Sorts the call's rows by token. *sorted points to the result in the scratch. */
static int sort_rows(const kernel_context *context, void *stream, const embedding_grad_args *args,
                     const uint64_t **sorted)
{
    uint64_t rows = args->batch * args->tokens;
    uint64_t *source = args->scratch;
    uint64_t *target = (uint64_t *)((char *)args->scratch + keys_bytes(rows));
    *sorted = NULL;
    TRY(cudai_check(cudai_launch_embedding_keys(args, source, stream),
                    "the embedding's sort kernel"));
    for (uint64_t run = CUDAI_SORT_KEYS; run < rows; run *= CUDAI_MERGE_WAYS) {
        TRY(cudai_check(
            cudai_launch_embedding_merge(source, target, rows, run, context->sm_count, stream),
            "the embedding's merge kernel"));
        uint64_t *merged = target;
        target = source;
        source = merged;
    }
    *sorted = source;
    return 0;
}

int cudai_embedding_backward(kernel_context *context, void *stream, const embedding_grad_args *args)
{
    uint64_t rows = args->batch * args->tokens;
    assert(is_part_of(args->row_begin, args->row_count, args->vocab));
    assert(rows <= (uint64_t)1 << 31); /* a row's number has half of a key */
    if (rows == 0 || args->channels == 0)
        return 0;
    if (args->token_table_grad) {
        const uint64_t *keys;
        TRY(sort_rows(context, stream, args, &keys));
        TRY(cudai_check(cudai_launch_embedding_tokens(args, keys, context->sm_count, stream),
                        "the kernel of the embedding's gradient"));
    }
    if (args->position_table_grad)
        TRY(cudai_check(cudai_launch_embedding_positions(args, context->sm_count, stream),
                        "the kernel of the positions' gradient"));
    return 0;
}

/* True if rows can be moved 4 elements at a time, or if their length is no multiple of 4. */
static bool is_aligned(const void *memory, uint64_t columns, size_t elem_bytes)
{
    return columns % 4 != 0 || (uintptr_t)memory % (4 * elem_bytes) == 0;
}

int cudai_cross_entropy(kernel_context *context, void *stream, const cross_entropy_args *args)
{
    assert((const void *)args->logits != args->logits_grad || args->type == DTYPE_FP32);
    assert(is_aligned(args->logits, cross_entropy_stride(args), sizeof(float)));
    assert(is_aligned(args->logits_grad, cross_entropy_stride(args), dtype_bytes(args->type)));
    if (args->rows == 0 || args->vocab == 0)
        return 0;
    return cudai_check(cudai_launch_cross_entropy(args, context->sm_count, stream),
                       "the cross-entropy kernel");
}

int cudai_softmax_part(kernel_context *context, void *stream, const softmax_part_args *args)
{
    assert(is_aligned(args->logits, softmax_part_stride(args), sizeof(float)));
    if (args->rows == 0)
        return 0;
    return cudai_check(cudai_launch_softmax_part(args, context->sm_count, stream),
                       "the softmax kernel");
}

int cudai_softmax_losses(kernel_context *context, void *stream, const softmax_part_args *args)
{
    if (args->rows == 0)
        return 0;
    return cudai_check(cudai_launch_softmax_losses(args, context->sm_count, stream),
                       "the kernel of the losses");
}

int cudai_cross_entropy_part(kernel_context *context, void *stream, const softmax_part_args *args)
{
    assert((const void *)args->logits != args->logits_grad || args->type == DTYPE_FP32);
    assert(is_aligned(args->logits, softmax_part_stride(args), sizeof(float)));
    assert(is_aligned(args->logits_grad, softmax_part_stride(args), dtype_bytes(args->type)));
    if (args->rows == 0 || args->columns == 0)
        return 0;
    return cudai_check(cudai_launch_cross_entropy_part(args, context->sm_count, stream),
                       "the kernel of the logits' gradient");
}
