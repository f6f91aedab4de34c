/* Attention over kept keys and values; see attention_cached_args in kernels/ops.h. Each row of each
 * head is one task, so results do not depend on the number of threads. Nothing allocates. */
#include <assert.h>
#include <string.h>

#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/cpu_internal.h"

/* Appends k and v of the new positions to the kept ones. */
static void keep_new(const attention_cached_args *args)
{
    size_t elem_bytes = dtype_bytes(args->type), row_bytes = args->head_dim * elem_bytes;
    for (uint64_t row = 0; row < args->rows; row++)
        for (uint64_t group = 0; group < args->kv_heads; group++) {
            uint64_t to = (group * args->capacity + args->begin + row) * row_bytes;
            uint64_t from = row * args->qkv_stride * elem_bytes + group * row_bytes;
            memcpy((char *)args->keys + to, (const char *)args->k + from, row_bytes);
            memcpy((char *)args->values + to, (const char *)args->v + from, row_bytes);
        }
}

int cpui_attention_cached(kernel_context *context, void *stream, const attention_cached_args *args)
{
    (void)stream;
    assert(args->head_dim <= ATTENTION_HEAD_DIM_MAX && args->heads % args->kv_heads == 0);
    assert(args->begin + args->rows <= args->capacity);
    const attention_rows *rows = cpui_attention_rows(context->isa);
    size_t elem_bytes = dtype_bytes(args->type), row_bytes = args->head_dim * elem_bytes;
    uint64_t shared_by = args->heads / args->kv_heads;
    keep_new(args);
#pragma omp parallel for schedule(static) num_threads(context->thread_count)
    for (uint64_t item = 0; item < args->rows * args->heads; item++) {
        uint64_t row = item / args->heads, head = item % args->heads, group = head / shared_by;
        const cached_row one = {
            .query = (const char *)args->q + row * args->qkv_stride * elem_bytes + head * row_bytes,
            .keys = (const char *)args->keys + group * args->capacity * row_bytes,
            .values = (const char *)args->values + group * args->capacity * row_bytes,
            .count = args->begin + row + 1,
            .head_dim = args->head_dim,
            .scale = args->scale,
            .type = args->type,
            .output = (char *)args->output + item * row_bytes,
        };
        rows->attend(&one);
    }
    return 0;
}
