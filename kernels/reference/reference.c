/* The reference backend: every op of kernels/ops.h written as its formula, in double, on one
 * thread. The other backends are tested against it, whole tiny models are checked with it, and
 * src/setup uses it for plans of described machines. It supports fp32, bf16 and fp16: an element is
 * widened to double when it is read and rounded once when it is stored. No op reads the context, so
 * a test may pass any context or NULL. Only the create functions allocate. */
#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/reference/reference_internal.h"

struct kernel_context {
    char unused; /* the ops need no state; the object only makes create and destroy a pair */
};

static int context_create(const kernel_context_config *config, kernel_context **context)
{
    *context = mem_alloc(1, sizeof **context, "reference context");
    return *context ? 0 : -ENOMEM;
}

static void context_destroy(kernel_context *context)
{
    mem_free(context);
}

static const char *describe(const kernel_context *context)
{
    return "reference: plain C in double, one thread";
}

static int zero(kernel_context *context, void *stream, void *data, uint64_t bytes)
{
    memset(data, 0, bytes);
    return 0;
}

static int read_back(kernel_context *context, void *stream, const read_back_args *args)
{
    return read_back_host(args);
}

static int convert(kernel_context *context, void *stream, const void *source,
                   enum dtype source_type, void *target, enum dtype target_type, uint64_t count)
{
    dtype_convert(source, source_type, target, target_type, count);
    return 0;
}

const kernel_ops kernels_reference = {
    .name = "reference",
    .context_create = context_create,
    .context_destroy = context_destroy,
    .describe = describe,
    .matmul_create = refi_matmul_create,
    .matmul_destroy = refi_matmul_destroy,
    .matmul_scratch_bytes = refi_matmul_scratch_bytes,
    .matmul = refi_matmul,
    .attention_create = refi_attention_create,
    .attention_destroy = refi_attention_destroy,
    .attention_forward_scratch_bytes = refi_attention_forward_scratch_bytes,
    .attention_backward_scratch_bytes = refi_attention_backward_scratch_bytes,
    .attention_set_documents = refi_attention_set_documents,
    .attention_set_dropout = refi_attention_set_dropout,
    .attention_forward = refi_attention_forward,
    .attention_backward = refi_attention_backward,
    .attention_cached = refi_attention_cached,
    .attention_sinks = refi_attention_sinks,
    .attention_sinks_backward = refi_attention_sinks_backward,
    .heads_join = refi_heads_join,
    .heads_split = refi_heads_split,
    .norm_forward = refi_norm_forward,
    .norm_grad_scratch_bytes = refi_norm_grad_scratch_bytes,
    .norm_backward = refi_norm_backward,
    .embedding_forward = refi_embedding_forward,
    .embedding_grad_scratch_bytes = refi_embedding_grad_scratch_bytes,
    .embedding_backward = refi_embedding_backward,
    .head_norm_forward = refi_head_norm_forward,
    .head_norm_grad_scratch_bytes = refi_head_norm_grad_scratch_bytes,
    .head_norm_backward = refi_head_norm_backward,
    .rope_table = refi_rope_table,
    .rope = refi_rope,
    .activation_forward = refi_activation_forward,
    .activation_backward = refi_activation_backward,
    .add = refi_add,
    .scale_rows = refi_scale_rows,
    .dropout = refi_dropout,
    .bias_backward = refi_bias_backward,
    .bias_backward_scratch_bytes = refi_bias_backward_scratch_bytes,
    .cross_entropy = refi_cross_entropy,
    .softmax_part = refi_softmax_part,
    .softmax_losses = refi_softmax_losses,
    .cross_entropy_part = refi_cross_entropy_part,
    .router_forward = refi_router_forward,
    .router_backward = refi_router_backward,
    .router_sums = refi_router_sums,
    .router_sums_scratch_bytes = refi_router_sums_scratch_bytes,
    .experts_sort = refi_experts_sort,
    .experts_gather = refi_experts_gather,
    .experts_combine = refi_experts_combine,
    .experts_weights_backward = refi_experts_weights_backward,
    .stored_expand = refi_stored_expand,
    .stored_quantize = refi_stored_quantize,
    .stored_double = refi_stored_double,
    .zero = zero,
    .read_back = read_back,
    .convert = convert,
    .grad_close = refi_grad_close,
    .norm_reduce = refi_norm_reduce,
    .update = refi_update,
    .muon_direction = refi_muon_direction,
    .muon = refi_muon,
    .orthogonalize_scratch_bytes = refi_orthogonalize_scratch_bytes,
    .orthogonalize = refi_orthogonalize,
    .working_copy = refi_working_copy,
};
