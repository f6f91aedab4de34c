/* The launchers of our fused attention, as attention_own.c calls them. Valid as C and as C++.
 *
 * Each kernel has two functions: *_allow makes the kernels of a type and head dimension known to
 * CUDA with the shared memory they will ask for (so that nothing is loaded at the first launch) and
 * says how much that is; *_launch enqueues. Both return a cudaError_t.
 *
 *   type        forward              delta     keys' gradients       queries' gradients
 *   bf16, fp16  attention_forward.cu attention_query_grad.cu
 *                                              attention_key_grad.cu attention_query_grad.cu
 *   fp32        attention_fp32.cu    as above  attention_fp32.cu (both) */
#ifndef SLUICE_KERNELS_CUDA_ATTENTION_LAUNCH_H
#define SLUICE_KERNELS_CUDA_ATTENTION_LAUNCH_H

#include "kernels/ops.h"

/* The operands of every kernel; those that one does not use are NULL. */
struct cudai_attention_args {
    uint64_t batch, tokens, heads, kv_heads;
    uint64_t qkv_stride; /* elements */
    uint32_t head_dim;
    bool is_vector;                 /* rows of every tensor can be moved 16 bytes at a time */
    float scale;                    /* > 0 */
    const void *q, *k, *v;          /* rows of qkv_stride */
    void *output;                   /* [B,T,H,D]; written by the forward pass, read by delta */
    float *lse;                     /* [B,H,T]; written by the forward pass */
    const void *output_grad;        /* [B,T,H,D] */
    float *delta;                   /* [B,H,T]; written by delta, read by the gradients */
    void *q_grad, *k_grad, *v_grad; /* rows of qkv_stride */
};
typedef struct cudai_attention_args cudai_attention_args;

enum { CUDAI_HEAD_DIM_MAX = 256 };

/* attention_forward.cu: 16-bit types. Blocks and positions are numbered in 32 bits, which
 * attention_own.c checks. */
int cudai_attention_forward_allow(enum dtype type, uint64_t head_dim, uint64_t *shared_bytes);
int cudai_attention_forward_launch(enum dtype type, const cudai_attention_args *args, void *stream);

/* attention_cached.cu: all types. Fewer than 2^31 rows and heads together. */
int cudai_attention_cached_launch(const attention_cached_args *args, int sm_count, void *stream);

/* attention_key_grad.cu: dK and dV, 16-bit types. */
int cudai_attention_key_grad_allow(enum dtype type, uint64_t head_dim, uint64_t *shared_bytes);
int cudai_attention_key_grad_launch(enum dtype type, const cudai_attention_args *args,
                                    void *stream);

/* attention_query_grad.cu: dQ, 16-bit types; delta for all types. */
int cudai_attention_query_grad_allow(enum dtype type, uint64_t head_dim, uint64_t *shared_bytes);
int cudai_attention_query_grad_launch(enum dtype type, const cudai_attention_args *args,
                                      void *stream);
int cudai_attention_delta_allow(enum dtype type);
int cudai_attention_delta_launch(enum dtype type, const cudai_attention_args *args, void *stream);

/* attention_fp32.cu. */
int cudai_attention_fp32_allow(uint64_t head_dim, uint64_t *shared_bytes);
int cudai_attention_fp32_launch(const cudai_attention_args *args, void *stream);
int cudai_attention_fp32_grad_allow(uint64_t head_dim, uint64_t *shared_bytes);
int cudai_attention_fp32_grad_launch(const cudai_attention_args *args, void *stream);

/* attention_compare.cu, for the check of a library's attention against ours: values with a
 * bell-shaped distribution of standard deviation `amplitude`, the same for the same seed; and what
 * two tensors of `rows` rows of `columns` elements at a distance of `stride` elements differ by. */
int cudai_attention_fill_launch(enum dtype type, void *target, uint64_t count, float amplitude,
                                uint32_t seed, void *stream);

struct cudai_difference {
    double error_squares, value_squares; /* sums of squares: of ours less theirs, of ours */
    double error_max, value_max; /* an element that is not finite in either is an infinite error */
};
typedef struct cudai_difference cudai_difference;

enum { CUDAI_COMPARE_BLOCKS = 256 };

/* One difference per block: parts[CUDAI_COMPARE_BLOCKS]. */
int cudai_attention_compare_launch(enum dtype type, const void *ours, const void *theirs,
                                   uint64_t rows, uint64_t columns, uint64_t stride,
                                   cudai_difference *parts, void *stream);

#endif
