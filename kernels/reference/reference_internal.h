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

/* reference_products.c */
int refi_matmul_create(kernel_context *context, const matmul_desc *desc,
                       kernel_matmul **product) MUST_CHECK;
void refi_matmul_destroy(kernel_matmul *product);
size_t refi_matmul_scratch_bytes(const kernel_matmul *product);
int refi_matmul(kernel_matmul *product, void *stream, const void *a, const void *b,
                const void *bias, void *c, void *scratch) MUST_CHECK;
int refi_attention_create(kernel_context *context, const attention_desc *desc,
                          kernel_attention **attention) MUST_CHECK;
void refi_attention_destroy(kernel_attention *attention);
size_t refi_attention_forward_scratch_bytes(const kernel_attention *attention);
size_t refi_attention_backward_scratch_bytes(const kernel_attention *attention);
int refi_attention_forward(kernel_attention *attention, void *stream, const void *q, const void *k,
                           const void *v, void *output, float *lse, void *scratch) MUST_CHECK;
int refi_attention_backward(kernel_attention *attention, void *stream, const void *q, const void *k,
                            const void *v, const void *output, const float *lse,
                            const void *output_grad, void *q_grad, void *k_grad, void *v_grad,
                            void *scratch) MUST_CHECK;

int refi_attention_cached(kernel_context *context, void *stream,
                          const attention_cached_args *args) MUST_CHECK;

/* reference_rows.c */
int refi_norm_forward(kernel_context *context, void *stream, const norm_args *args) MUST_CHECK;
size_t refi_norm_grad_scratch_bytes(kernel_context *context, uint64_t rows, uint64_t channels);
int refi_norm_backward(kernel_context *context, void *stream,
                       const norm_grad_args *args) MUST_CHECK;
int refi_embedding_forward(kernel_context *context, void *stream,
                           const embedding_args *args) MUST_CHECK;
size_t refi_embedding_grad_scratch_bytes(kernel_context *context, uint64_t rows, uint64_t vocab);
int refi_embedding_backward(kernel_context *context, void *stream,
                            const embedding_grad_args *args) MUST_CHECK;
int refi_head_norm_forward(kernel_context *context, void *stream,
                           const head_norm_args *args) MUST_CHECK;
size_t refi_head_norm_grad_scratch_bytes(kernel_context *context, uint64_t rows, uint64_t heads,
                                         uint64_t head_dim);
int refi_head_norm_backward(kernel_context *context, void *stream,
                            const head_norm_args *args) MUST_CHECK;
int refi_rope_table(kernel_context *context, void *stream, const rope_table_args *args) MUST_CHECK;
int refi_rope(kernel_context *context, void *stream, const rope_args *args) MUST_CHECK;
int refi_activation_forward(kernel_context *context, void *stream,
                            const activation_args *args) MUST_CHECK;
int refi_activation_backward(kernel_context *context, void *stream,
                             const activation_args *args) MUST_CHECK;
int refi_scale_rows(kernel_context *context, void *stream, const scale_rows_args *args) MUST_CHECK;
int refi_add(kernel_context *context, void *stream, enum dtype type, uint64_t count, const void *a,
             const void *b, void *out) MUST_CHECK;
int refi_bias_backward(kernel_context *context, void *stream, enum dtype type, uint64_t rows,
                       uint64_t n, const void *output_grad, float *bias_grad,
                       void *scratch) MUST_CHECK;
size_t refi_bias_backward_scratch_bytes(kernel_context *context, uint64_t rows, uint64_t n);
int refi_cross_entropy(kernel_context *context, void *stream,
                       const cross_entropy_args *args) MUST_CHECK;
int refi_softmax_part(kernel_context *context, void *stream,
                      const softmax_part_args *args) MUST_CHECK;
int refi_softmax_losses(kernel_context *context, void *stream,
                        const softmax_part_args *args) MUST_CHECK;
int refi_cross_entropy_part(kernel_context *context, void *stream,
                            const softmax_part_args *args) MUST_CHECK;

/* reference_optimizer.c */
int refi_grad_close(kernel_context *context, void *stream, const grad_close_args *args) MUST_CHECK;
int refi_norm_reduce(kernel_context *context, void *stream, const double *sums, uint64_t count,
                     double *total) MUST_CHECK;
int refi_adam(kernel_context *context, void *stream, const adam_args *args) MUST_CHECK;
int refi_lion(kernel_context *context, void *stream, const lion_args *args) MUST_CHECK;
int refi_adagrad(kernel_context *context, void *stream, const adagrad_args *args) MUST_CHECK;
int refi_working_copy(kernel_context *context, void *stream, const float *master, void *params,
                      enum dtype param_type, uint64_t count) MUST_CHECK;

/* reference_state.c */
int refi_adam_packed(kernel_context *context, void *stream,
                     const adam_packed_args *args) MUST_CHECK;

#endif
