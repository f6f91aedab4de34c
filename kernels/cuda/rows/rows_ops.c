/* The dense row ops of the CUDA backend: norms, bias gradients, rotary positions, activations,
 * addition, stored formats, conversion, zero. This file checks arguments, divides rows into blocks
 * for sums of columns, and names the kernels in errors. Nothing here allocates, and read_back alone
 * waits. */
#include <assert.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "base/thread.h"
#include "kernels/cuda/cuda_internal.h"
#include "kernels/cuda/rows/rows_launch.h"
#include "kernels/dropout_mask.h"
#include "kernels/head_norm_wide.h"

/* Blocks of rows for the norm's parameter gradients; one block of threads computes each. Their
 * number is limited so that scratch stays near 32 MiB (2 C floats per block) for any number of
 * rows. That is about twice the number that a large GPU runs at once. A block has at least 16 rows,
 * so that writing and reading its sums moves at most a sixth of the bytes of its rows. */
enum {
    NORM_BLOCK_ELEMS = 512 * 8192, /* upper limit of blocks * channels */
    NORM_BLOCKS_MIN = 256,         /* this many are allowed for any number of channels */
    NORM_BLOCKS_MAX = 8192,        /* upper limit: grid.y of the column sums ends at 65535 */
    NORM_ROWS_MIN = 16,
};

/* The same limits for a bias. Tiles of columns share the rows of a block, so fewer blocks are
 * enough. */
enum { BIAS_BLOCKS_MAX = 256, BIAS_ROWS_MIN = 64 };

/* The same limits for the weight of norms of heads, whose rows are heads. */
enum { HEAD_BLOCKS_MAX = 1024, HEADS_MIN = 128 };

static cudai_row_blocks row_blocks(uint64_t rows, uint64_t blocks_max, uint64_t rows_min)
{
    uint64_t even = (rows + blocks_max - 1) / blocks_max;
    cudai_row_blocks blocks = {.rows_per_block = even > rows_min ? even : rows_min};
    blocks.count = (rows + blocks.rows_per_block - 1) / blocks.rows_per_block;
    assert(blocks.count <= blocks_max);
    return blocks;
}

static cudai_row_blocks norm_blocks(uint64_t rows, uint64_t channels)
{
    uint64_t most = channels > 0 ? NORM_BLOCK_ELEMS / channels : NORM_BLOCKS_MAX;
    most = most < NORM_BLOCKS_MIN ? NORM_BLOCKS_MIN : most;
    return row_blocks(rows, most < NORM_BLOCKS_MAX ? most : NORM_BLOCKS_MAX, NORM_ROWS_MIN);
}

int cudai_norm_forward(kernel_context *context, void *stream, const norm_args *args)
{
    assert(args->kind == NORM_RMS ? !args->bias : args->mean != NULL);
    assert(!args->residual || (args->sum && !args->stride));
    if (args->rows == 0 || args->channels == 0)
        return 0;
    return cudai_check(cudai_launch_norm_forward(stream, args), "the norm kernel");
}

size_t cudai_norm_grad_scratch_bytes(kernel_context *context, uint64_t rows, uint64_t channels)
{
    return (size_t)(norm_blocks(rows, channels).count * 2 * channels) * sizeof(float);
}

int cudai_norm_backward(kernel_context *context, void *stream, const norm_grad_args *args)
{
    assert(args->kind == NORM_RMS ? !args->bias_grad : args->mean != NULL);
    assert(!args->residual_grad || !args->stride);
    if (args->rows == 0 || args->channels == 0)
        return 0;
    cudai_row_blocks blocks = norm_blocks(args->rows, args->channels);
    return cudai_check(cudai_launch_norm_backward(stream, args, blocks),
                       "the norm gradient kernel");
}

size_t cudai_bias_backward_scratch_bytes(kernel_context *context, uint64_t rows, uint64_t n)
{
    return (size_t)(row_blocks(rows, BIAS_BLOCKS_MAX, BIAS_ROWS_MIN).count * n) * sizeof(float);
}

int cudai_bias_backward(kernel_context *context, void *stream, enum dtype type, uint64_t rows,
                        uint64_t n, uint64_t stride, const void *output_grad, float *bias_grad,
                        void *scratch)
{
    assert(stride >= n);
    if (rows == 0 || n == 0)
        return 0;
    cudai_row_blocks blocks = row_blocks(rows, BIAS_BLOCKS_MAX, BIAS_ROWS_MIN);
    return cudai_check(cudai_launch_bias_backward(stream, type, rows, n, stride, output_grad,
                                                  bias_grad, scratch, blocks),
                       "the bias gradient kernel");
}

/* Blocks of heads for the gradient of their norm's weight. A short head is one of many in a block,
 * so that the sums of all blocks stay within 1 MiB. */
static cudai_row_blocks head_blocks(uint64_t rows, uint64_t heads, uint64_t head_dim)
{
    if (head_norm_is_wide(heads, head_dim))
        return norm_blocks(rows, head_dim);
    return row_blocks(rows * heads, HEAD_BLOCKS_MAX, HEADS_MIN);
}

int cudai_head_norm_forward(kernel_context *context, void *stream, const head_norm_args *args)
{
    if (args->rows * args->heads * args->head_dim == 0)
        return 0;
    if (head_norm_is_wide(args->heads, args->head_dim)) {
        norm_args wide = head_norm_wide_forward(args);
        return cudai_norm_forward(context, stream, &wide);
    }
    return cudai_check(cudai_launch_head_norm_forward(stream, args), "the kernel of heads' norms");
}

size_t cudai_head_norm_grad_scratch_bytes(kernel_context *context, uint64_t rows, uint64_t heads,
                                          uint64_t head_dim)
{
    uint64_t sums = head_norm_is_wide(heads, head_dim) ? 2 * head_dim : head_dim;
    return (size_t)(head_blocks(rows, heads, head_dim).count * sums) * sizeof(float);
}

int cudai_head_norm_backward(kernel_context *context, void *stream, const head_norm_args *args)
{
    if (args->rows * args->heads * args->head_dim == 0)
        return 0;
    if (head_norm_is_wide(args->heads, args->head_dim)) {
        norm_grad_args wide = head_norm_wide_backward(args);
        return cudai_norm_backward(context, stream, &wide);
    }
    cudai_row_blocks blocks = args->weight_per_head
                                  ? head_blocks(args->rows, 1, args->heads * args->head_dim)
                                  : head_blocks(args->rows, args->heads, args->head_dim);
    return cudai_check(cudai_launch_head_norm_backward(stream, args, blocks),
                       "the gradient kernel of heads' norms");
}

int cudai_rope_table(kernel_context *context, void *stream, const rope_table_args *args)
{
    assert(args->head_dim % 2 == 0);
    if (args->tokens == 0 || args->head_dim == 0)
        return 0;
    return cudai_check(cudai_launch_rope_table(stream, context->sm_count, args),
                       "the rotary table kernel");
}

int cudai_rope(kernel_context *context, void *stream, const rope_args *args)
{
    assert((args->rotated ? args->rotated : args->head_dim) % 2 == 0);
    assert(args->rotated <= args->head_dim);
    if (args->batch * args->tokens * args->heads * args->head_dim == 0)
        return 0;
    return cudai_check(cudai_launch_rope(stream, args), "the rotary kernel");
}

int cudai_activation_forward(kernel_context *context, void *stream, const activation_args *args)
{
    if (args->rows == 0 || args->features == 0)
        return 0;
    return cudai_check(cudai_launch_activation(stream, context->sm_count, args, false),
                       "the activation kernel");
}

int cudai_activation_backward(kernel_context *context, void *stream, const activation_args *args)
{
    if (args->rows == 0 || args->features == 0)
        return 0;
    return cudai_check(cudai_launch_activation(stream, context->sm_count, args, true),
                       "the activation gradient kernel");
}

int cudai_add(kernel_context *context, void *stream, enum dtype type, uint64_t count, const void *a,
              const void *b, void *out)
{
    if (count == 0)
        return 0;
    return cudai_check(cudai_launch_add(stream, context->sm_count, type, count, a, b, out),
                       "the addition kernel");
}

int cudai_attention_sinks(kernel_context *context, void *stream, const attention_sinks_args *args)
{
    if (args->batch == 0 || args->tokens == 0)
        return 0;
    return cudai_check(cudai_launch_attention_sinks(stream, context->sm_count, args),
                       "the kernel of attention's sinks");
}

int cudai_attention_sinks_backward(kernel_context *context, void *stream,
                                   const attention_sinks_args *args)
{
    if (args->batch == 0 || args->tokens == 0)
        return 0;
    return cudai_check(cudai_launch_attention_sinks_backward(stream, args),
                       "the gradient kernel of attention's sinks");
}

int cudai_heads_join(kernel_context *context, void *stream, const heads_join_args *args)
{
    if (args->rows == 0)
        return 0;
    return cudai_check(cudai_launch_heads_join(stream, args, false), "the kernel that joins heads");
}

int cudai_heads_split(kernel_context *context, void *stream, const heads_join_args *args)
{
    if (args->rows == 0)
        return 0;
    return cudai_check(cudai_launch_heads_join(stream, args, true), "the kernel that splits heads");
}

int cudai_stored_expand(kernel_context *context, void *stream, const stored_expand_args *args)
{
    stored_layout layout = stored_layout_of(args->format, args->rows, args->columns);
    return cudai_check(cudai_launch_stored_expand(stream, context->sm_count, args, &layout),
                       "the kernel that expands a stored format");
}

int cudai_scale_rows(kernel_context *context, void *stream, const scale_rows_args *args)
{
    assert(args->source_stride >= args->columns && args->target_stride >= args->columns);
    if (args->rows == 0 || args->columns == 0)
        return 0;
    return cudai_check(cudai_launch_scale_rows(stream, args), "the kernel that scales rows");
}

int cudai_dropout(kernel_context *context, void *stream, const dropout_args *args)
{
    assert(args->probability >= 0.0f && args->probability < 1.0f);
    assert(args->site >> DROPOUT_SITE_BITS == 0 && args->tokens > 0);
    assert(args->tokens * args->columns / 4 >> DROPOUT_QUAD_BITS == 0);
    if (args->rows == 0 || args->columns == 0)
        return 0;
    return cudai_check(cudai_launch_dropout(stream, args), "the dropout kernel");
}

int cudai_zero(kernel_context *context, void *stream, void *data, uint64_t bytes)
{
    if (bytes == 0)
        return 0;
    return cudai_check(cudaMemsetAsync(data, 0, bytes, stream), "filling with zeros");
}

/* Does not block in CUDA, since a collective on the stream may wait for a rank that is gone. */
static int await(const kernel_context *context, void *stream)
{
    backoff wait = {0};
    for (;;) {
        cudaError_t code = cudaStreamQuery(stream);
        if (code != cudaErrorNotReady)
            return cudai_check(code, "reading numbers back");
        (void)cudaGetLastError(); /* it is an answer, but some versions keep it as an error */
        if (context->watch)
            TRY(context->watch(context->watch_user));
        backoff_pause(&wait);
    }
}

/* Enqueues the copies of the rows. CUDA's copy of rows refuses a pitch of 2 GiB or more
 * (cudaDeviceProp.memPitch), and the parcels of ranks may be that far apart. */
static int copy_rows(void *target, void *stream, const read_back_args *args)
{
    enum { PITCH_BYTES_MAX = INT32_MAX };
    uint64_t stride = read_back_stride(args);
    cudaError_t code = cudaSuccess;
    if (stride <= PITCH_BYTES_MAX)
        code = cudaMemcpy2DAsync(target, args->row_bytes, args->source, stride, args->row_bytes,
                                 args->rows, cudaMemcpyDeviceToHost, stream);
    else
        for (uint64_t i = 0; i < args->rows && code == cudaSuccess; i++)
            code = cudaMemcpyAsync((char *)target + i * args->row_bytes,
                                   (const char *)args->source + i * stride, args->row_bytes,
                                   cudaMemcpyDeviceToHost, stream);
    return cudai_check(code, "reading numbers back");
}

/* Through pinned memory: CUDA waits in a copy to other memory. */
int cudai_read_back(kernel_context *context, void *stream, const read_back_args *args)
{
    uint64_t bytes = args->rows * args->row_bytes;
    assert(bytes <= KERNEL_READ_BACK_BYTES && read_back_stride(args) >= args->row_bytes);
    TRY(copy_rows(context->numbers, stream, args));
    TRY(await(context, stream));
    memcpy(args->target, context->numbers, bytes);
    return 0;
}

int cudai_convert(kernel_context *context, void *stream, const void *source, enum dtype source_type,
                  void *target, enum dtype target_type, uint64_t count)
{
    assert(source != target || source_type == target_type || count == 0);
    if (count == 0 || source == target)
        return 0;
    if (source_type == target_type)
        return cudai_check(cudaMemcpyAsync(target, source, count * dtype_bytes(source_type),
                                           cudaMemcpyDeviceToDevice, stream),
                           "copying on the GPU");
    return cudai_check(cudai_launch_convert(stream, context->sm_count, source, source_type, target,
                                            target_type, count),
                       "the conversion kernel");
}
