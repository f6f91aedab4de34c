/* The CUDA backend's context and ops table.
 *
 * A context belongs to one GPU and to the thread that created it. Creation loads cuBLASLt, which is
 * required, and cuDNN if it is installed. Only context creation and the *_create calls allocate:
 * host memory, and GPU memory that the libraries keep. They also run each library's kernels once,
 * so that nothing is loaded later. */
#include <errno.h>
#include <stdio.h>

#include <cuda_runtime_api.h>

#include "base/mem.h"
#include "kernels/cuda/cuda_internal.h"

enum { MACHINE_CODE_MAJOR_MAX = 9 }; /* the build has machine code up to compute capability 9 */

static void context_destroy(kernel_context *context)
{
    if (!context)
        return;
    cudai_cudnn_destroy(context);
    cudai_cublas_destroy(context);
    (void)cudaFreeHost(context->numbers);
    mem_free(context);
}

/* The text is part of a run's numeric fingerprint, so it holds what decides bits:
 *
 * - The number of multiprocessors, since cuBLAS's bits depend on it. A GPU that processes share may
 *   have fewer than its name says.
 * - The driver's version only if the driver compiles our kernels from PTX. Drivers are updated at
 *   any time, and otherwise no bit depends on the version. */
static int describe_context(kernel_context *context)
{
    struct cudaDeviceProp properties;
    int driver = 0, runtime = 0;
    TRY(cudai_check(cudaGetDeviceProperties(&properties, context->device_idx),
                    "asking for the GPU"));
    TRY(cudai_check(cudaDriverGetVersion(&driver), "asking for the driver's version"));
    TRY(cudai_check(cudaRuntimeGetVersion(&runtime), "asking for the runtime's version"));
    const char *cudnn = cudai_cudnn_version(context);
    char compiler[64] = "";
    if (context->compute_major > MACHINE_CODE_MAJOR_MAX)
        snprintf(compiler, sizeof compiler, " (kernels by its driver for CUDA %d.%d)",
                 driver / 1000, driver % 1000 / 10);
    snprintf(context->description, sizeof context->description,
             "cuda: %.64s, sm_%d%d x %d%s, runtime %d.%d, %s, %s", properties.name,
             context->compute_major, context->compute_minor, context->sm_count, compiler,
             runtime / 1000, runtime % 1000 / 10, cudai_cublas_version(context),
             cudnn ? cudnn : "no cuDNN (our own attention)");
    return 0;
}

static int context_create(const kernel_context_config *config, kernel_context **out)
{
    *out = NULL;
    kernel_context *context = mem_alloc(1, sizeof *context, "cuda context");
    if (!context)
        return -ENOMEM;
    int rc;
    context->watch = config->watch;
    context->watch_user = config->watch_user;
    TRY_GOTO(rc, cudai_context_fill(context, (int)config->device_idx), failed);
    TRY_GOTO(
        rc,
        cudai_check(cudaHostAlloc(&context->numbers, KERNEL_READ_BACK_BYTES, cudaHostAllocDefault),
                    "pinning memory for numbers"),
        failed);
    TRY_GOTO(rc, cudai_cublas_create(context), failed);
    TRY_GOTO(rc, cudai_cudnn_create(context), failed);
    TRY_GOTO(rc, describe_context(context), failed);
    *out = context;
    return 0;
failed:
    context_destroy(context);
    return rc;
}

static const char *describe(const kernel_context *context)
{
    return context->description;
}

static const kernel_ops ops = {
    .name = "cuda",
    .context_create = context_create,
    .context_destroy = context_destroy,
    .describe = describe,
    .choose_products = cudai_choose_products,
    .product_choices = cudai_product_choices,
    .matmul_create = cudai_matmul_create,
    .matmul_destroy = cudai_matmul_destroy,
    .matmul_scratch_bytes = cudai_matmul_scratch_bytes,
    .matmul = cudai_matmul,
    .attention_create = cudai_attention_create,
    .attention_destroy = cudai_attention_destroy,
    .attention_set_documents = cudai_attention_set_documents,
    .attention_set_dropout = cudai_attention_set_dropout,
    .attention_forward_scratch_bytes = cudai_attention_forward_scratch_bytes,
    .attention_backward_scratch_bytes = cudai_attention_backward_scratch_bytes,
    .attention_forward = cudai_attention_forward,
    .attention_backward = cudai_attention_backward,
    .attention_cached = cudai_attention_cached,
    .attention_sinks = cudai_attention_sinks,
    .attention_sinks_backward = cudai_attention_sinks_backward,
    .heads_join = cudai_heads_join,
    .heads_split = cudai_heads_split,
    .norm_forward = cudai_norm_forward,
    .norm_grad_scratch_bytes = cudai_norm_grad_scratch_bytes,
    .norm_backward = cudai_norm_backward,
    .embedding_forward = cudai_embedding_forward,
    .embedding_grad_scratch_bytes = cudai_embedding_grad_scratch_bytes,
    .embedding_backward = cudai_embedding_backward,
    .head_norm_forward = cudai_head_norm_forward,
    .head_norm_grad_scratch_bytes = cudai_head_norm_grad_scratch_bytes,
    .head_norm_backward = cudai_head_norm_backward,
    .rope_table = cudai_rope_table,
    .rope = cudai_rope,
    .activation_forward = cudai_activation_forward,
    .activation_backward = cudai_activation_backward,
    .add = cudai_add,
    .scale_rows = cudai_scale_rows,
    .dropout = cudai_dropout,
    .bias_backward = cudai_bias_backward,
    .bias_backward_scratch_bytes = cudai_bias_backward_scratch_bytes,
    .cross_entropy = cudai_cross_entropy,
    .softmax_part = cudai_softmax_part,
    .softmax_losses = cudai_softmax_losses,
    .cross_entropy_part = cudai_cross_entropy_part,
    .router_forward = cudai_router_forward,
    .router_backward = cudai_router_backward,
    .router_sums = cudai_router_sums,
    .router_sums_scratch_bytes = cudai_router_sums_scratch_bytes,
    .experts_sort = cudai_experts_sort,
    .experts_gather = cudai_experts_gather,
    .experts_combine = cudai_experts_combine,
    .experts_weights_backward = cudai_experts_weights_backward,
    .stored_expand = cudai_stored_expand,
    .zero = cudai_zero,
    .read_back = cudai_read_back,
    .convert = cudai_convert,
    .grad_close = cudai_grad_close,
    .norm_reduce = cudai_norm_reduce,
    .update = cudai_update,
    .working_copy = cudai_working_copy,
};

const kernel_ops *kernels_cuda(void)
{
    return &ops;
}
