/* Shared by the files of the reference backend: access to elements in double, and the ops. Only
 * these files use names that begin with refi_. */
#ifndef SLUICE_REFERENCE_INTERNAL_H
#define SLUICE_REFERENCE_INTERNAL_H

#include "kernels/ops.h"

/* Element `at` of an array of `type`, widened to double. */
static inline double refi_load(enum dtype type, const void *source, uint64_t at)
{
    if (type == DTYPE_FP32)
        return (double)((const float *)source)[at];
    uint16_t half = ((const uint16_t *)source)[at];
    return (double)(type == DTYPE_BF16 ? fp32_from_bf16(half) : fp32_from_fp16(half));
}

/* Stores `value`, rounded to fp32 and then to `type`, both times to nearest even. */
static inline void refi_store(enum dtype type, void *target, uint64_t at, double value)
{
    if (type == DTYPE_FP32)
        ((float *)target)[at] = (float)value;
    else
        ((uint16_t *)target)[at] =
            type == DTYPE_BF16 ? bf16_from_fp32((float)value) : fp16_from_fp32((float)value);
}

/* ERR_INPUT if a token is below `lowest` or not below `vocab`. */
static inline int refi_index_check(int32_t idx, int32_t lowest, uint64_t vocab)
{
    if (idx >= lowest && (idx < 0 || (uint64_t)idx < vocab))
        return 0;
    return err_set(ERR_INPUT, "reference: token %d is outside the vocabulary of %llu", idx,
                   (unsigned long long)vocab);
}

/* reference_products.c */
KERNEL_OP(matmul_create) refi_matmul_create MUST_CHECK;
KERNEL_OP(matmul_destroy) refi_matmul_destroy;
KERNEL_OP(matmul_scratch_bytes) refi_matmul_scratch_bytes;
KERNEL_OP(matmul) refi_matmul MUST_CHECK;
KERNEL_OP(attention_create) refi_attention_create MUST_CHECK;
KERNEL_OP(attention_destroy) refi_attention_destroy;
KERNEL_OP(attention_forward_scratch_bytes) refi_attention_forward_scratch_bytes;
KERNEL_OP(attention_backward_scratch_bytes) refi_attention_backward_scratch_bytes;
KERNEL_OP(attention_set_documents) refi_attention_set_documents;
KERNEL_OP(attention_set_dropout) refi_attention_set_dropout;
KERNEL_OP(attention_forward) refi_attention_forward MUST_CHECK;
KERNEL_OP(attention_backward) refi_attention_backward MUST_CHECK;

KERNEL_OP(attention_cached) refi_attention_cached MUST_CHECK;

/* reference_rows.c */
KERNEL_OP(norm_forward) refi_norm_forward MUST_CHECK;
KERNEL_OP(norm_grad_scratch_bytes) refi_norm_grad_scratch_bytes;
KERNEL_OP(norm_backward) refi_norm_backward MUST_CHECK;
KERNEL_OP(embedding_forward) refi_embedding_forward MUST_CHECK;
KERNEL_OP(embedding_grad_scratch_bytes) refi_embedding_grad_scratch_bytes;
KERNEL_OP(embedding_backward) refi_embedding_backward MUST_CHECK;
KERNEL_OP(head_norm_forward) refi_head_norm_forward MUST_CHECK;
KERNEL_OP(head_norm_grad_scratch_bytes) refi_head_norm_grad_scratch_bytes;
KERNEL_OP(head_norm_backward) refi_head_norm_backward MUST_CHECK;
KERNEL_OP(rope_table) refi_rope_table MUST_CHECK;
KERNEL_OP(rope) refi_rope MUST_CHECK;
KERNEL_OP(activation_forward) refi_activation_forward MUST_CHECK;
KERNEL_OP(activation_backward) refi_activation_backward MUST_CHECK;
KERNEL_OP(scale_rows) refi_scale_rows MUST_CHECK;
KERNEL_OP(dropout) refi_dropout MUST_CHECK;
KERNEL_OP(add) refi_add MUST_CHECK;
KERNEL_OP(bias_backward) refi_bias_backward MUST_CHECK;
KERNEL_OP(bias_backward_scratch_bytes) refi_bias_backward_scratch_bytes;

/* reference_loss.c */
KERNEL_OP(cross_entropy) refi_cross_entropy MUST_CHECK;
KERNEL_OP(softmax_part) refi_softmax_part MUST_CHECK;
KERNEL_OP(softmax_losses) refi_softmax_losses MUST_CHECK;
KERNEL_OP(cross_entropy_part) refi_cross_entropy_part MUST_CHECK;

/* reference_heads.c */
KERNEL_OP(attention_sinks) refi_attention_sinks MUST_CHECK;
KERNEL_OP(attention_sinks_backward) refi_attention_sinks_backward MUST_CHECK;
KERNEL_OP(heads_join) refi_heads_join MUST_CHECK;
KERNEL_OP(heads_split) refi_heads_split MUST_CHECK;

/* reference_experts.c */
KERNEL_OP(router_forward) refi_router_forward MUST_CHECK;
KERNEL_OP(router_backward) refi_router_backward MUST_CHECK;
KERNEL_OP(router_sums) refi_router_sums MUST_CHECK;
KERNEL_OP(router_sums_scratch_bytes) refi_router_sums_scratch_bytes;
KERNEL_OP(experts_sort) refi_experts_sort MUST_CHECK;
KERNEL_OP(experts_gather) refi_experts_gather MUST_CHECK;
KERNEL_OP(experts_combine) refi_experts_combine MUST_CHECK;
KERNEL_OP(experts_weights_backward) refi_experts_weights_backward MUST_CHECK;

/* reference_stored.c */
KERNEL_OP(stored_expand) refi_stored_expand MUST_CHECK;
KERNEL_OP(stored_quantize) refi_stored_quantize MUST_CHECK;
KERNEL_OP(stored_double) refi_stored_double MUST_CHECK;

/* reference_optimizer.c */
KERNEL_OP(grad_close) refi_grad_close MUST_CHECK;
KERNEL_OP(norm_reduce) refi_norm_reduce MUST_CHECK;
KERNEL_OP(update) refi_update MUST_CHECK;
KERNEL_OP(working_copy) refi_working_copy MUST_CHECK;

/* reference_muon.c */
KERNEL_OP(muon_direction) refi_muon_direction MUST_CHECK;
KERNEL_OP(muon) refi_muon MUST_CHECK;
KERNEL_OP(orthogonalize_scratch_bytes) refi_orthogonalize_scratch_bytes;
KERNEL_OP(orthogonalize) refi_orthogonalize MUST_CHECK;

#endif
