/* Host side of our own attention kernels: checks and launches.
 *
 * It is one algorithm with two sets of kernels. bf16 and fp16 use the matrix units. fp32, which
 * neither the matrix units nor cuDNN's attention take, uses ordinary multiply-adds
 * (attention_fp32.cu). Both keep everything in fp32 except the probabilities and their gradients.
 * These are rounded to the operands' type before they enter a product, as in cuDNN and on the CPU.
 * Nothing of size T x T is stored: the backward pass recomputes the probabilities from lse. Rows
 * are moved 16 bytes at a time if the head dimension, the stride and the addresses allow it,
 * otherwise element by element, with the same bits.
 *
 * cudai_own_attention_check registers every kernel of a shape with CUDA, which loads it. After that
 * a launch loads and allocates nothing. All calls come from the thread that created the context. */
#include <math.h>

#include <cuda_runtime_api.h>

#include "base/size.h"
#include "kernels/cuda/attention/attention_launch.h"
#include "kernels/cuda/cuda_internal.h"

/* positions, and their sums with a tile, are 32-bit in the kernels */
enum { TOKENS_MAX = 1 << 30 };

/* Checks the number of blocks of the launch with the smallest tiles. CUDA numbers blocks in 31
 * bits. */
static int blocks_check(const attention_desc *desc)
{
    uint64_t blocks = size_div_up(desc->tokens, desc->type == DTYPE_FP32 ? 16 : 64);
    TRY(size_mul(blocks, desc->heads, &blocks));
    TRY(size_mul(blocks, desc->batch, &blocks));
    if (blocks > INT32_MAX)
        return err_set(ERR_BACKEND,
                       "attention B=%llu T=%llu H=%llu: more than 2^31 tiles; use a smaller batch",
                       (unsigned long long)desc->batch, (unsigned long long)desc->tokens,
                       (unsigned long long)desc->heads);
    return 0;
}

static int desc_check(const attention_desc *desc)
{
    if (desc->tokens > TOKENS_MAX)
        return err_set(ERR_BACKEND, "attention T=%llu: T must be at most 2^30",
                       (unsigned long long)desc->tokens);
    TRY(attention_desc_check(desc, CUDAI_HEAD_DIM_MAX));
    if (!(desc->scale > 0.0f) || !isfinite(desc->scale))
        return err_set(ERR_BACKEND, "attention: the scale of the scores is %g; it must be positive",
                       (double)desc->scale);
    return blocks_check(desc);
}

/* Converts the result of one *_allow function. */
static int allowed(const kernel_context *context, const attention_desc *desc, int cuda_error,
                   uint64_t shared_bytes, const char *what)
{
    if (shared_bytes > context->shared_bytes_max) {
        (void)cudaGetLastError(); /* clears the error of the attribute, which could not be set */
        return err_set(ERR_BACKEND,
                       "%s for D=%llu in %s asks for %llu bytes of shared memory per block; this "
                       "GPU (sm_%d%d) has %llu",
                       what, (unsigned long long)desc->head_dim, dtype_name(desc->type),
                       (unsigned long long)shared_bytes, context->compute_major,
                       context->compute_minor, (unsigned long long)context->shared_bytes_max);
    }
    return cudai_check(cuda_error, what);
}

int cudai_own_attention_check(const kernel_context *context, const attention_desc *desc)
{
    TRY(desc_check(desc));
    uint64_t bytes = 0, dim = cudai_attention_tile_dim(desc->head_dim, desc->value_dim);
    int error;
    TRY(cudai_check(cudai_attention_delta_allow(desc->type), "loading the attention's row sums"));
    if (desc->type == DTYPE_FP32) {
        error = cudai_attention_fp32_allow(dim, &bytes);
        TRY(allowed(context, desc, error, bytes, "attention"));
        error = cudai_attention_fp32_grad_allow(dim, &bytes);
        return allowed(context, desc, error, bytes, "attention's backward pass");
    }
    error = cudai_attention_forward_allow(desc->type, dim, &bytes);
    TRY(allowed(context, desc, error, bytes, "attention"));
    error = cudai_attention_key_grad_allow(desc->type, dim, &bytes);
    TRY(allowed(context, desc, error, bytes, "attention's gradient of the keys"));
    error = cudai_attention_query_grad_allow(desc->type, dim, &bytes);
    return allowed(context, desc, error, bytes, "attention's gradient of the queries");
}

size_t cudai_own_attention_scratch_bytes(const attention_desc *desc)
{
    return desc->batch * desc->heads * desc->tokens * sizeof(float);
}

/* Returns the arguments that all kernels share, without the operands. */
static cudai_attention_args args_of(const attention_desc *desc, const int32_t *begins,
                                    const attention_dropout *masks)
{
    cudai_attention_drop drop = {.threshold = dropout_threshold(desc->dropout),
                                 .scale = dropout_scale(desc->dropout)};
    if (masks && desc->dropout > 0.0f)
        drop.masks = *masks;
    return (cudai_attention_args){.batch = desc->batch,
                                  .tokens = desc->tokens,
                                  .heads = desc->heads,
                                  .kv_heads = desc->kv_heads,
                                  .qkv_stride = desc->qkv_stride,
                                  .head_dim = (uint32_t)desc->head_dim,
                                  .value_dim = (uint32_t)attention_value_dim(desc),
                                  .scale = desc->scale,
                                  .soft_cap = desc->soft_cap,
                                  .mask = attention_mask_of(desc, begins, 0),
                                  .drop = drop};
}

/* True if rows at these addresses (NULL: not used) can be moved 16 bytes at a time. */
static bool is_vector(const attention_desc *desc, const cudai_attention_args *args)
{
    const void *const pointers[] = {args->q,           args->k,      args->v,      args->output,
                                    args->output_grad, args->q_grad, args->k_grad, args->v_grad};
    uint64_t unit = 16 / dtype_bytes(desc->type);
    uintptr_t bits = 0;
    for (size_t i = 0; i < sizeof pointers / sizeof *pointers; i++)
        bits |= (uintptr_t)pointers[i];
    return desc->head_dim % unit == 0 && args->value_dim % unit == 0 &&
           desc->qkv_stride % unit == 0 && bits % 16 == 0;
}

int cudai_own_attention_forward(const kernel_context *context, const attention_desc *desc,
                                const int32_t *begins, const attention_dropout *masks, void *stream,
                                const void *q, const void *k, const void *v, void *output,
                                float *lse)
{
    cudai_attention_args args = args_of(desc, begins, masks);
    args.q = q;
    args.k = k;
    args.v = v;
    args.output = output;
    args.lse = lse;
    args.is_vector = is_vector(desc, &args);
    int error = desc->type == DTYPE_FP32
                    ? cudai_attention_fp32_launch(&args, stream)
                    : cudai_attention_forward_launch(desc->type, &args, stream);
    return cudai_check(error, "attention");
}

int cudai_own_attention_backward(const kernel_context *context, const attention_desc *desc,
                                 const int32_t *begins, const attention_dropout *masks,
                                 void *stream, const void *q, const void *k, const void *v,
                                 const void *output, const float *lse, const void *output_grad,
                                 void *q_grad, void *k_grad, void *v_grad, void *scratch)
{
    cudai_attention_args args = args_of(desc, begins, masks);
    args.q = q;
    args.k = k;
    args.v = v;
    args.output = (void *)output; /* only read here; the struct serves both passes */
    args.lse = (float *)lse;
    args.output_grad = output_grad;
    args.q_grad = q_grad;
    args.k_grad = k_grad;
    args.v_grad = v_grad;
    args.delta = scratch;
    args.is_vector = is_vector(desc, &args);
    TRY(cudai_check(cudai_attention_delta_launch(desc->type, &args, stream),
                    "attention's row sums"));
    if (desc->type == DTYPE_FP32)
        return cudai_check(cudai_attention_fp32_grad_launch(&args, stream),
                           "attention's backward pass");
    TRY(cudai_check(cudai_attention_key_grad_launch(desc->type, &args, stream),
                    "attention's gradient of the keys"));
    return cudai_check(cudai_attention_query_grad_launch(desc->type, &args, stream),
                       "attention's gradient of the queries");
}

int cudai_attention_cached(kernel_context *context, void *stream, const attention_cached_args *args)
{
    if (args->rows == 0)
        return 0;
    uint64_t dim = cudai_attention_tile_dim(args->head_dim, args->value_dim);
    if (dim > CUDAI_HEAD_DIM_MAX || args->rows > INT32_MAX / args->heads)
        return err_set(
            ERR_BACKEND,
            "attention over kept keys: %llu rows of %llu heads of %llu, but heads have at "
            "most %d and rows times heads fewer than 2^31",
            (unsigned long long)args->rows, (unsigned long long)args->heads,
            (unsigned long long)dim, CUDAI_HEAD_DIM_MAX);
    return cudai_check(cudai_attention_cached_launch(args, context->sm_count, stream),
                       "attention over kept keys");
}
