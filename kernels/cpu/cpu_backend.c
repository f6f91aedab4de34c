/* The context and the ops table of the CPU backend.
 *
 * A context holds the instruction set, the variants of the kernels for it, and oneDNN's engine. One
 * thread at a time uses a context; it need not be the thread that created it. The ops start OpenMP
 * teams of thread_count threads. Only context_create and the *_create calls allocate. */
#include <errno.h>
#include <stdio.h>

#include "base/mem.h"
#include "kernels/cpu/attention_amx.h"
#include "kernels/cpu/cpu_internal.h"

static void context_destroy(kernel_context *context)
{
    if (!context)
        return;
    cpui_engine_destroy(context);
    cpui_rows_lookup_destroy(context);
    mem_free(context);
}

static int context_create(const kernel_context_config *config, kernel_context **out)
{
    *out = NULL;
    TRY(cpu_isa_check());
    if (config->thread_count <= 0)
        return err_set(ERR_CONFIG, "cpu backend: thread count %d is not positive",
                       config->thread_count);
    kernel_context *context = mem_alloc(1, sizeof *context, "cpu context");
    if (!context)
        return -ENOMEM;
    context->thread_count = config->thread_count;
    context->isa = cpu_isa();
    context->has_amx = context->isa >= CPU_AMX && cpui_amx_is_built();
    cpui_rows_select(context);
    cpui_adam_select(context);
    int rc;
    TRY_GOTO(rc, cpui_rows_lookup_create(context), failed);
    TRY_GOTO(rc, cpui_engine_create(context), failed);
    snprintf(context->description, sizeof context->description,
             "cpu: %d thread%s, %s, %s, bf16 products: %s", context->thread_count,
             context->thread_count == 1 ? "" : "s", cpu_isa_name(context->isa),
             cpui_engine_version(),
             !context->has_bf16_products ? "no (widened to fp32)"
             : context->has_amx          ? "AMX tiles"
                                         : "yes");
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

const kernel_ops kernels_cpu = {
    .name = "cpu",
    .context_create = context_create,
    .context_destroy = context_destroy,
    .describe = describe,
    .matmul_create = cpui_matmul_create,
    .matmul_destroy = cpui_matmul_destroy,
    .matmul_scratch_bytes = cpui_matmul_scratch_bytes,
    .matmul = cpui_matmul,
    .attention_create = cpui_attention_create,
    .attention_destroy = cpui_attention_destroy,
    .attention_set_documents = cpui_attention_set_documents,
    .attention_set_dropout = cpui_attention_set_dropout,
    .attention_forward_scratch_bytes = cpui_attention_forward_scratch_bytes,
    .attention_backward_scratch_bytes = cpui_attention_backward_scratch_bytes,
    .attention_forward = cpui_attention_forward,
    .attention_backward = cpui_attention_backward,
    .attention_cached = cpui_attention_cached,
    .attention_sinks = cpui_attention_sinks,
    .attention_sinks_backward = cpui_attention_sinks_backward,
    .heads_join = cpui_heads_join,
    .heads_split = cpui_heads_split,
    .norm_forward = cpui_norm_forward,
    .norm_grad_scratch_bytes = cpui_norm_grad_scratch_bytes,
    .norm_backward = cpui_norm_backward,
    .embedding_forward = cpui_embedding_forward,
    .embedding_grad_scratch_bytes = cpui_embedding_grad_scratch_bytes,
    .embedding_backward = cpui_embedding_backward,
    .head_norm_forward = cpui_head_norm_forward,
    .head_norm_grad_scratch_bytes = cpui_head_norm_grad_scratch_bytes,
    .head_norm_backward = cpui_head_norm_backward,
    .rope_table = cpui_rope_table,
    .rope = cpui_rope,
    .activation_forward = cpui_activation_forward,
    .activation_backward = cpui_activation_backward,
    .add = cpui_add,
    .scale_rows = cpui_scale_rows,
    .dropout = cpui_dropout,
    .bias_backward = cpui_bias_backward,
    .bias_backward_scratch_bytes = cpui_bias_backward_scratch_bytes,
    .cross_entropy = cpui_cross_entropy,
    .softmax_part = cpui_softmax_part,
    .softmax_losses = cpui_softmax_losses,
    .cross_entropy_part = cpui_cross_entropy_part,
    .router_forward = cpui_router_forward,
    .router_backward = cpui_router_backward,
    .router_sums = cpui_router_sums,
    .router_sums_scratch_bytes = cpui_router_sums_scratch_bytes,
    .experts_sort = cpui_experts_sort,
    .experts_gather = cpui_experts_gather,
    .experts_combine = cpui_experts_combine,
    .experts_weights_backward = cpui_experts_weights_backward,
    .stored_expand = cpui_stored_expand,
    .stored_quantize = cpui_stored_quantize,
    .stored_double = cpui_stored_double,
    .zero = cpui_zero,
    .read_back = cpui_read_back,
    .convert = cpui_convert,
    .grad_close = cpui_grad_close,
    .norm_reduce = cpui_norm_reduce,
    .update = cpui_update,
    .muon_direction = cpui_muon_direction,
    .muon = cpui_muon,
    .orthogonalize_scratch_bytes = cpui_orthogonalize_scratch_bytes,
    .orthogonalize = cpui_orthogonalize,
    .working_copy = cpui_working_copy,
};
