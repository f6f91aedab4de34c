/* Declarations that the files of the CUDA backend share. backend_ops.c fills the ops table. Each
 * group of ops has two parts: host code in .c files, which checks arguments and chooses launches,
 * and .cu files with kernels and their launchers. Only these files and their tests use names that
 * begin with cudai_.
 *
 * Rules for every op:
 *
 *   - It enqueues its work on `stream` and returns. It neither allocates nor synchronizes;
 *     read_back alone waits.
 *   - `stream` is a cudaStream_t; NULL is the legacy default stream.
 *   - Pointers are device memory. They may be pinned host memory if the op's comment in
 *     kernels/ops.h allows the host to read the result (norm_reduce's total, the logits of one
 *     row). With unified addressing the kernel writes there directly.
 *   - All CUDA calls of a context come from the thread that created it, or from a thread that chose
 *     the same device.
 *
 * Valid as C and as C++. */
#ifndef SLUICE_CUDA_INTERNAL_H
#define SLUICE_CUDA_INTERNAL_H

#include "kernels/ops.h"

struct cudai_cublas; /* the handle and entry points of cuBLASLt */
struct cudai_cudnn;  /* the handle and entry points of cuDNN */

struct kernel_context {
    int device_idx;
    int sm_count;
    int compute_major, compute_minor;
    uint64_t shared_bytes_max; /* limit of the dynamic shared memory of one block */
    struct cudai_cublas *cublas;
    struct cudai_cudnn *cudnn;
    const char *cudnn_absence;          /* the reason why cudnn is NULL; static storage */
    char description[512];              /* the attention ops append their choices */
    char choices[KERNEL_CHOICES_BYTES]; /* of matrix products; see matmul_choice.c */
    bool tries_products;                /* a product without a choice tries its candidates */
    void *numbers;                      /* [KERNEL_READ_BACK_BYTES] pinned, for read_back */
    int (*watch)(void *user);           /* of kernel_context_config */
    void *watch_user;
};

/* Chooses the GPU for this thread and fills the GPU's properties in *context. */
int cudai_context_fill(kernel_context *context, int device_idx) MUST_CHECK;

/* Converts a cudaError_t. Returns 0 for success. Otherwise returns ERR_BACKEND with `what` and
 * CUDA's own name and text of the error, and clears CUDA's last error. `what` is short: "the norm
 * kernel". */
int cudai_check(int cuda_error, const char *what) MUST_CHECK;

/* Open a library by its soname and look up a symbol. `sonames` are tried in order; NULL ends the
 * list. If none can be opened, cudai_library_open returns NULL and writes the reason to `why`.
 * cudai_library_symbol returns NULL if there is no such symbol. A library is never unloaded,
 * because its threads and handlers may outlive its users. */
void *cudai_library_open(const char *const *sonames, char *why, size_t why_bytes);
void *cudai_library_symbol(void *library, const char *name);

/* --- matrix products: cuBLASLt, or our own kernel for shapes that cuBLASLt refuses --- */
/* ERR_BACKEND if the library is absent */
int cudai_cublas_create(kernel_context *context) MUST_CHECK;
void cudai_cublas_destroy(kernel_context *context);
const char *cudai_cublas_version(const kernel_context *context); /* "cuBLASLt 13.1.0" */
KERNEL_OP(choose_products) cudai_choose_products MUST_CHECK;
KERNEL_OP(product_choices) cudai_product_choices;
KERNEL_OP(matmul_create) cudai_matmul_create MUST_CHECK;
KERNEL_OP(matmul_destroy) cudai_matmul_destroy;
KERNEL_OP(matmul_scratch_bytes) cudai_matmul_scratch_bytes;
KERNEL_OP(matmul) cudai_matmul MUST_CHECK;

/* Enqueues our own matrix product. It takes any shape, stride, type and alignment that
 * kernels/ops.h allows and needs no scratch, but it reaches only a small share of the tensor cores'
 * rate. The caller has checked the description. `bias` is read only if desc->has_bias. Each element
 * is one fp32 fma chain over k in ascending order, then + bias, then + C, then rounded once to C's
 * type, so its bits depend only on the operands. Returns the cudaError_t of the launch. */
int cudai_matmul_plain_launch(const matmul_desc *desc, void *stream, const void *a, const void *b,
                              const void *bias, void *c);

/* --- attention: the ops of the table --- */
KERNEL_OP(attention_create) cudai_attention_create MUST_CHECK;
KERNEL_OP(attention_destroy) cudai_attention_destroy;
KERNEL_OP(attention_set_documents) cudai_attention_set_documents;
KERNEL_OP(attention_set_dropout) cudai_attention_set_dropout;
KERNEL_OP(attention_forward_scratch_bytes) cudai_attention_forward_scratch_bytes;
KERNEL_OP(attention_backward_scratch_bytes) cudai_attention_backward_scratch_bytes;
KERNEL_OP(attention_forward) cudai_attention_forward MUST_CHECK;
KERNEL_OP(attention_backward) cudai_attention_backward MUST_CHECK;

/* Our own fused attention kernels. They have the same contract and take every shape of
 * attention_desc. `begins` is that of attention_set_documents, `masks` (or NULL) that of
 * attention_set_dropout. Only the backward pass needs
 * scratch. The results are deterministic. */
int cudai_own_attention_check(const kernel_context *context, const attention_desc *desc) MUST_CHECK;
size_t cudai_own_attention_scratch_bytes(const attention_desc *desc);
int cudai_own_attention_forward(const kernel_context *context, const attention_desc *desc,
                                const int32_t *begins, const attention_dropout *masks, void *stream,
                                const void *q, const void *k, const void *v, void *output,
                                float *lse) MUST_CHECK;
int cudai_own_attention_backward(const kernel_context *context, const attention_desc *desc,
                                 const int32_t *begins, const attention_dropout *masks,
                                 void *stream, const void *q, const void *k, const void *v,
                                 const void *output, const float *lse, const void *output_grad,
                                 void *q_grad, void *k_grad, void *v_grad,
                                 void *scratch) MUST_CHECK;

KERNEL_OP(attention_cached) cudai_attention_cached MUST_CHECK;

/* cuDNN's fused attention. cudai_cudnn_create also returns 0 if cuDNN is absent: context->cudnn
 * stays NULL and cudnn_absence holds the reason. A plan covers the forward and backward pass of one
 * shape. cudai_cudnn_plan_create returns ERR_BACKEND if cuDNN refuses the shape or has no
 * deterministic backward pass for it; the caller then uses our own kernels. */
typedef struct cudai_cudnn_plan cudai_cudnn_plan;
int cudai_cudnn_create(kernel_context *context) MUST_CHECK;
void cudai_cudnn_destroy(kernel_context *context);
const char *cudai_cudnn_version(const kernel_context *context); /* "cuDNN 9.13.0"; NULL if absent */
int cudai_cudnn_plan_create(kernel_context *context, const attention_desc *desc,
                            cudai_cudnn_plan **plan) MUST_CHECK;
void cudai_cudnn_plan_destroy(cudai_cudnn_plan *plan);
/* Returns how the backward pass fixes the order of its sums: "parted" or "ordered". Plans of one
 * shape may differ in this between two versions of the library, and then their bits differ. Static
 * storage. */
const char *cudai_cudnn_plan_way(const cudai_cudnn_plan *plan);
size_t cudai_cudnn_plan_forward_scratch_bytes(const cudai_cudnn_plan *plan);
size_t cudai_cudnn_plan_backward_scratch_bytes(const cudai_cudnn_plan *plan);
int cudai_cudnn_forward(cudai_cudnn_plan *plan, void *stream, const void *q, const void *k,
                        const void *v, void *output, float *lse, void *scratch) MUST_CHECK;
int cudai_cudnn_backward(cudai_cudnn_plan *plan, void *stream, const void *q, const void *k,
                         const void *v, const void *output, const float *lse,
                         const void *output_grad, void *q_grad, void *k_grad, void *v_grad,
                         void *scratch) MUST_CHECK;

/* --- ops on rows --- */
KERNEL_OP(norm_forward) cudai_norm_forward MUST_CHECK;
KERNEL_OP(norm_grad_scratch_bytes) cudai_norm_grad_scratch_bytes;
KERNEL_OP(norm_backward) cudai_norm_backward MUST_CHECK;
KERNEL_OP(embedding_forward) cudai_embedding_forward MUST_CHECK;
KERNEL_OP(embedding_grad_scratch_bytes) cudai_embedding_grad_scratch_bytes;
KERNEL_OP(embedding_backward) cudai_embedding_backward MUST_CHECK;
KERNEL_OP(head_norm_forward) cudai_head_norm_forward MUST_CHECK;
KERNEL_OP(head_norm_grad_scratch_bytes) cudai_head_norm_grad_scratch_bytes;
KERNEL_OP(head_norm_backward) cudai_head_norm_backward MUST_CHECK;
KERNEL_OP(rope_table) cudai_rope_table MUST_CHECK;
KERNEL_OP(rope) cudai_rope MUST_CHECK;
KERNEL_OP(activation_forward) cudai_activation_forward MUST_CHECK;
KERNEL_OP(activation_backward) cudai_activation_backward MUST_CHECK;
KERNEL_OP(attention_sinks) cudai_attention_sinks MUST_CHECK;
KERNEL_OP(attention_sinks_backward) cudai_attention_sinks_backward MUST_CHECK;
KERNEL_OP(heads_join) cudai_heads_join MUST_CHECK;
KERNEL_OP(heads_split) cudai_heads_split MUST_CHECK;
KERNEL_OP(scale_rows) cudai_scale_rows MUST_CHECK;
KERNEL_OP(dropout) cudai_dropout MUST_CHECK;
KERNEL_OP(add) cudai_add MUST_CHECK;
KERNEL_OP(bias_backward) cudai_bias_backward MUST_CHECK;
KERNEL_OP(bias_backward_scratch_bytes) cudai_bias_backward_scratch_bytes;
KERNEL_OP(cross_entropy) cudai_cross_entropy MUST_CHECK;
KERNEL_OP(softmax_part) cudai_softmax_part MUST_CHECK;
KERNEL_OP(softmax_losses) cudai_softmax_losses MUST_CHECK;
KERNEL_OP(cross_entropy_part) cudai_cross_entropy_part MUST_CHECK;
KERNEL_OP(router_forward) cudai_router_forward MUST_CHECK;
KERNEL_OP(router_backward) cudai_router_backward MUST_CHECK;
KERNEL_OP(router_sums) cudai_router_sums MUST_CHECK;
KERNEL_OP(router_sums_scratch_bytes) cudai_router_sums_scratch_bytes;
KERNEL_OP(experts_sort) cudai_experts_sort MUST_CHECK;
KERNEL_OP(experts_gather) cudai_experts_gather MUST_CHECK;
KERNEL_OP(experts_combine) cudai_experts_combine MUST_CHECK;
KERNEL_OP(experts_weights_backward) cudai_experts_weights_backward MUST_CHECK;
KERNEL_OP(stored_expand) cudai_stored_expand MUST_CHECK;
KERNEL_OP(zero) cudai_zero MUST_CHECK;
KERNEL_OP(read_back) cudai_read_back MUST_CHECK;
KERNEL_OP(convert) cudai_convert MUST_CHECK;

/* --- optimizers and gradients; the same bits as the CPU's variants --- */
KERNEL_OP(update) cudai_update MUST_CHECK;
KERNEL_OP(working_copy) cudai_working_copy MUST_CHECK;
KERNEL_OP(grad_close) cudai_grad_close MUST_CHECK;
KERNEL_OP(norm_reduce) cudai_norm_reduce MUST_CHECK;

#endif
