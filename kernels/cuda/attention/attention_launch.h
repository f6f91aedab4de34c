/* The launchers of our fused attention kernels, for attention_own.c. Valid as C and as C++.
 *
 * Each kernel has two functions, which return a cudaError_t:
 *
 *   *_allow    registers the kernels of one type and head dimension with CUDA, with the shared
 *              memory that they need, so that the first launch loads nothing; returns that size
 *   *_launch   enqueues the kernel
 *
 * Tiles of all operands are as wide as the larger of D and E. The rest of the smaller one is zero,
 * so heads whose D and E differ cost as much as if both were the larger one. */
#ifndef SLUICE_KERNELS_CUDA_ATTENTION_LAUNCH_H
#define SLUICE_KERNELS_CUDA_ATTENTION_LAUNCH_H

#include "kernels/attention_range.h"

/* Dropout of a call; counter NULL: nothing is dropped. */
struct cudai_attention_drop {
    attention_dropout masks;
    uint32_t threshold;
    float scale; /* of what is kept */
};
typedef struct cudai_attention_drop cudai_attention_drop;

/* The operands of all kernels. Those that a kernel does not use are NULL. */
struct cudai_attention_args {
    uint64_t batch, tokens, heads, kv_heads;
    uint64_t qkv_stride; /* elements */
    uint32_t head_dim, value_dim;
    bool is_vector;      /* rows of every tensor can be moved in accesses of 16 bytes */
    float scale;         /* > 0 */
    float soft_cap;      /* 0: none */
    attention_mask mask; /* of sequence 0 */
    cudai_attention_drop drop;
    const void *q, *k, *v;          /* rows of qkv_stride */
    void *output;                   /* [B,T,H,E]; written by the forward pass, read by delta */
    float *lse;                     /* [B,H,T]; written by the forward pass */
    const void *output_grad;        /* [B,T,H,E] */
    float *delta;                   /* [B,H,T]; written by delta, read by the gradients */
    void *q_grad, *k_grad, *v_grad; /* rows of qkv_stride */
};
typedef struct cudai_attention_args cudai_attention_args;

enum { CUDAI_HEAD_DIM_MAX = 256 };

/* The head dimension of the tiles. */
static inline uint64_t cudai_attention_tile_dim(uint64_t head_dim, uint64_t value_dim)
{
    return head_dim > value_dim ? head_dim : value_dim;
}

/* Forward pass, 16-bit types. Blocks and positions have 32-bit numbers; attention_own.c checks this
 * limit. */
int cudai_attention_forward_allow(enum dtype type, uint64_t head_dim, uint64_t *shared_bytes);
int cudai_attention_forward_launch(enum dtype type, const cudai_attention_args *args, void *stream);

/* Attention over cached keys, all types. `rows` * `heads` must be below 2^31. */
int cudai_attention_cached_launch(const attention_cached_args *args, int sm_count, void *stream);

/* dK and dV, 16-bit types. */
int cudai_attention_key_grad_allow(enum dtype type, uint64_t head_dim, uint64_t *shared_bytes);
int cudai_attention_key_grad_launch(enum dtype type, const cudai_attention_args *args,
                                    void *stream);

/* dQ for 16-bit types; delta for all types. */
int cudai_attention_query_grad_allow(enum dtype type, uint64_t head_dim, uint64_t *shared_bytes);
int cudai_attention_query_grad_launch(enum dtype type, const cudai_attention_args *args,
                                      void *stream);
int cudai_attention_delta_allow(enum dtype type);
int cudai_attention_delta_launch(enum dtype type, const cudai_attention_args *args, void *stream);

/* Forward pass, and all gradients, of fp32 operands. */
int cudai_attention_fp32_allow(uint64_t head_dim, uint64_t *shared_bytes);
int cudai_attention_fp32_launch(const cudai_attention_args *args, void *stream);
int cudai_attention_fp32_grad_allow(uint64_t head_dim, uint64_t *shared_bytes);
int cudai_attention_fp32_grad_launch(const cudai_attention_args *args, void *stream);

/* For the check of a library's attention against ours. fill writes values with a bell-shaped
 * distribution of standard deviation `amplitude`, the same for the same seed. compare measures the
 * difference of two tensors of `rows` rows of `columns` elements, with rows `stride` elements
 * apart. */
int cudai_attention_fill_launch(enum dtype type, void *target, uint64_t count, float amplitude,
                                uint32_t seed, void *stream);

struct cudai_difference {
    double error_squares, value_squares; /* sums of squares: of (ours - theirs), and of ours */
    /* an element that is not finite in either tensor counts as an infinite error */
    double error_max, value_max;
};
typedef struct cudai_difference cudai_difference;

enum { CUDAI_COMPARE_BLOCKS = 256 };

/* Writes one difference per block: parts[CUDAI_COMPARE_BLOCKS]. */
int cudai_attention_compare_launch(enum dtype type, const void *ours, const void *theirs,
                                   uint64_t rows, uint64_t columns, uint64_t stride,
                                   cudai_difference *parts, void *stream);

#endif
