/* What the files of the CUDA backend share. The ops table is filled in backend.c; each group of ops
 * has host code in C, which checks arguments and chooses launches, and kernels with their launchers
 * in .cu:
 *   backend.c           table, description
 *   context.c           the GPU's properties, the conversion of CUDA's errors
 *   library.c           cuBLASLt and cuDNN, found and loaded at run time
 *   matmul.c            cuBLASLt products        matmul_cublas.c  cuBLASLt itself
 *   matmul_plain.cu     our own product, for what cuBLASLt refuses
 *   attention.c         which attention: cuDNN's where it agreed with ours, else ours
 *   attention_cudnn.c   cuDNN's fused attention through its backend API
 *   attention_own.c, attention_*.cu  our fused attention: attention_fp32.cu for fp32 operands, which
 *                       cuDNN does not take; the others for 16-bit ones
 *   tensor_core.cuh     the matrix instructions of the 16-bit ones
 *   rows.c, rows_sparse.c, rows_*.cu  norms, rope, activations, add, bias, convert, zero; embedding and
 *                       cross-entropy
 *   update.c, update_*.cu  Adam, Lion, Adagrad, working copies, gradient close, norm
 *   device.cuh          what every kernel file needs: types, conversions, warp sums, launching
 * Names that begin with cudai_ are shared by these files and their tests only.
 *
 * Every op enqueues on the stream given and returns; it neither allocates nor synchronizes.
 * `stream` is a cudaStream_t; NULL is the legacy default stream. Pointers are device memory, or
 * pinned host memory where an op's comment in kernels/ops.h allows the host to read the result
 * (norm_reduce's total, the logits of one row): with unified addressing a kernel writes there
 * directly. All CUDA calls are made by the thread that made the context, or one that chose the same
 * device. Valid as C and as C++. */
#ifndef SLUICE_KERNELS_CUDA_INTERNAL_H
#define SLUICE_KERNELS_CUDA_INTERNAL_H

#include "kernels/ops.h"

struct cudai_cublas; /* matmul_cublas.c: the handle and entry points of cuBLASLt */
struct cudai_cudnn;  /* attention_cudnn.c: those of cuDNN, or NULL where it is absent */

struct kernel_context {
    int device_idx;
    int sm_count;
    int compute_major, compute_minor;
    uint64_t shared_bytes_max; /* of dynamic shared memory that one block may ask for */
    struct cudai_cublas *cublas;
    struct cudai_cudnn *cudnn;
    const char *cudnn_absence; /* why cudnn is NULL; static storage */
    char description[512];     /* attention.c adds its choices */
};

/* context.c. Chooses the GPU for this thread and fills what the context says of it. */
int cudai_context_fill(kernel_context *context, int device_idx) MUST_CHECK;

/* context.c. Turns a cudaError_t that is not success into ERR_BACKEND with `what` and CUDA's own
 * name and text, and clears CUDA's last error; 0 for success. `what` is short: "the norm
 * kernel". */
int cudai_check(int cuda_error, const char *what) MUST_CHECK;

/* library.c. A library's handle by its soname (tried in order, NULL ends the list), or NULL with
 * the reason in `why`; a symbol, or NULL. Never unloaded: their threads and handlers may outlive
 * us. */
void *cudai_library_open(const char *const *sonames, char *why, size_t why_bytes);
void *cudai_library_symbol(void *library, const char *name);

/* matmul.c, matmul_cublas.c */
int cudai_cublas_create(kernel_context *context) MUST_CHECK; /* ERR_BACKEND where it is absent */
void cudai_cublas_destroy(kernel_context *context);
const char *cudai_cublas_version(const kernel_context *context); /* "cuBLASLt 13.1.0" */
int cudai_matmul_create(kernel_context *context, const matmul_desc *desc,
                        kernel_matmul **product) MUST_CHECK;
void cudai_matmul_destroy(kernel_matmul *product);
size_t cudai_matmul_scratch_bytes(const kernel_matmul *product);
int cudai_matmul(kernel_matmul *product, void *stream, const void *a, const void *b,
                 const void *bias, void *c, void *scratch) MUST_CHECK;

/* attention.c: the table's ops. */
int cudai_attention_create(kernel_context *context, const attention_desc *desc,
                           kernel_attention **attention) MUST_CHECK;
void cudai_attention_destroy(kernel_attention *attention);
size_t cudai_attention_forward_scratch_bytes(const kernel_attention *attention);
size_t cudai_attention_backward_scratch_bytes(const kernel_attention *attention);
int cudai_attention_forward(kernel_attention *attention, void *stream, const void *q, const void *k,
                            const void *v, void *output, float *lse, void *scratch) MUST_CHECK;
int cudai_attention_backward(kernel_attention *attention, void *stream, const void *q,
                             const void *k, const void *v, const void *output, const float *lse,
                             const void *output_grad, void *q_grad, void *k_grad, void *v_grad,
                             void *scratch) MUST_CHECK;

/* attention_own.c: our fused kernels, the same contract; they take every shape of attention_desc.
 * Scratch of the backward alone. Deterministic. */
int cudai_own_attention_check(const kernel_context *context, const attention_desc *desc) MUST_CHECK;
size_t cudai_own_attention_scratch_bytes(const attention_desc *desc);
int cudai_own_attention_forward(const kernel_context *context, const attention_desc *desc,
                                void *stream, const void *q, const void *k, const void *v,
                                void *output, float *lse) MUST_CHECK;
int cudai_own_attention_backward(const kernel_context *context, const attention_desc *desc,
                                 void *stream, const void *q, const void *k, const void *v,
                                 const void *output, const float *lse, const void *output_grad,
                                 void *q_grad, void *k_grad, void *v_grad,
                                 void *scratch) MUST_CHECK;

int cudai_attention_cached(kernel_context *context, void *stream,
                           const attention_cached_args *args) MUST_CHECK;

/* attention_cudnn.c. create: 0 also where cuDNN is absent (context.cudnn stays NULL and
 * cudnn_absence says why). A plan covers forward and backward of one shape; ERR_BACKEND where cuDNN
 * refuses the shape or has no deterministic backward for it, which the caller answers with our own
 * kernels. */
typedef struct cudai_cudnn_plan cudai_cudnn_plan;
int cudai_cudnn_create(kernel_context *context) MUST_CHECK;
void cudai_cudnn_destroy(kernel_context *context);
const char *cudai_cudnn_version(const kernel_context *context); /* "cuDNN 9.13.0"; NULL: absent */
int cudai_cudnn_plan_create(kernel_context *context, const attention_desc *desc,
                            cudai_cudnn_plan **plan) MUST_CHECK;
void cudai_cudnn_plan_destroy(cudai_cudnn_plan *plan);
/* How its backward pass gets its order of sums, "parted" or "ordered": plans of one shape on two
 * versions of the library may differ in it, and so in bits. Static storage. */
const char *cudai_cudnn_plan_way(const cudai_cudnn_plan *plan);
size_t cudai_cudnn_plan_forward_scratch_bytes(const cudai_cudnn_plan *plan);
size_t cudai_cudnn_plan_backward_scratch_bytes(const cudai_cudnn_plan *plan);
int cudai_cudnn_forward(cudai_cudnn_plan *plan, void *stream, const void *q, const void *k,
                        const void *v, void *output, float *lse, void *scratch) MUST_CHECK;
int cudai_cudnn_backward(cudai_cudnn_plan *plan, void *stream, const void *q, const void *k,
                         const void *v, const void *output, const float *lse,
                         const void *output_grad, void *q_grad, void *k_grad, void *v_grad,
                         void *scratch) MUST_CHECK;

/* rows.c */
int cudai_norm_forward(kernel_context *context, void *stream, const norm_args *args) MUST_CHECK;
size_t cudai_norm_grad_scratch_bytes(kernel_context *context, uint64_t rows, uint64_t channels);
int cudai_norm_backward(kernel_context *context, void *stream,
                        const norm_grad_args *args) MUST_CHECK;
int cudai_embedding_forward(kernel_context *context, void *stream,
                            const embedding_args *args) MUST_CHECK;
size_t cudai_embedding_grad_scratch_bytes(kernel_context *context, uint64_t rows, uint64_t vocab);
int cudai_embedding_backward(kernel_context *context, void *stream,
                             const embedding_grad_args *args) MUST_CHECK;
int cudai_head_norm_forward(kernel_context *context, void *stream,
                            const head_norm_args *args) MUST_CHECK;
size_t cudai_head_norm_grad_scratch_bytes(kernel_context *context, uint64_t rows, uint64_t heads,
                                          uint64_t head_dim);
int cudai_head_norm_backward(kernel_context *context, void *stream,
                             const head_norm_args *args) MUST_CHECK;
int cudai_rope_table(kernel_context *context, void *stream, const rope_table_args *args) MUST_CHECK;
int cudai_rope(kernel_context *context, void *stream, const rope_args *args) MUST_CHECK;
int cudai_activation_forward(kernel_context *context, void *stream,
                             const activation_args *args) MUST_CHECK;
int cudai_activation_backward(kernel_context *context, void *stream,
                              const activation_args *args) MUST_CHECK;
int cudai_scale_rows(kernel_context *context, void *stream, const scale_rows_args *args) MUST_CHECK;
int cudai_add(kernel_context *context, void *stream, enum dtype type, uint64_t count, const void *a,
              const void *b, void *out) MUST_CHECK;
int cudai_bias_backward(kernel_context *context, void *stream, enum dtype type, uint64_t rows,
                        uint64_t n, const void *output_grad, float *bias_grad,
                        void *scratch) MUST_CHECK;
size_t cudai_bias_backward_scratch_bytes(kernel_context *context, uint64_t rows, uint64_t n);
int cudai_cross_entropy(kernel_context *context, void *stream,
                        const cross_entropy_args *args) MUST_CHECK;
int cudai_softmax_part(kernel_context *context, void *stream,
                       const softmax_part_args *args) MUST_CHECK;
int cudai_softmax_losses(kernel_context *context, void *stream,
                         const softmax_part_args *args) MUST_CHECK;
int cudai_cross_entropy_part(kernel_context *context, void *stream,
                             const softmax_part_args *args) MUST_CHECK;
int cudai_zero(kernel_context *context, void *stream, void *data, uint64_t bytes) MUST_CHECK;
int cudai_convert(kernel_context *context, void *stream, const void *source, enum dtype source_type,
                  void *target, enum dtype target_type, uint64_t count) MUST_CHECK;

/* update.c: the bits of the CPU's variants. */
int cudai_adam(kernel_context *context, void *stream, const adam_args *args) MUST_CHECK;
int cudai_adam_packed(kernel_context *context, void *stream,
                      const adam_packed_args *args) MUST_CHECK;
int cudai_lion(kernel_context *context, void *stream, const lion_args *args) MUST_CHECK;
int cudai_adagrad(kernel_context *context, void *stream, const adagrad_args *args) MUST_CHECK;
int cudai_working_copy(kernel_context *context, void *stream, const float *master, void *params,
                       enum dtype param_type, uint64_t count) MUST_CHECK;
int cudai_grad_close(kernel_context *context, void *stream, const grad_close_args *args) MUST_CHECK;
int cudai_norm_reduce(kernel_context *context, void *stream, const double *sums, uint64_t count,
                      double *total) MUST_CHECK;

#endif
