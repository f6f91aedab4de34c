/* What update.c hands to the kernels of update_adam.cu, update_adam_state.cu and update_sums.cu: a
 * tile whose pointers it has looked at, the scalars as the CPU's loops use them, and the shapes of
 * the launches.
 *
 * A launcher enqueues one kernel and returns CUDA's error of the launch. Counts are above 0 (but
 * norm_reduce's). Element pointers are aligned to their elements at least; `is_wide` says that
 * every one of them is aligned to CUDAI_UPDATE_PACK elements, which lets a thread move a pack in
 * one access. Valid as C and as C++. */
#ifndef SLUICE_KERNELS_CUDA_UPDATE_LAUNCH_H
#define SLUICE_KERNELS_CUDA_UPDATE_LAUNCH_H

#include "kernels/cpu/optimizer/adam_state_internal.h"
#include "kernels/cuda/cuda_internal.h"

enum {
    CUDAI_UPDATE_PACK = 4, /* elements that a thread moves at once: 16 bytes of fp32 */

    CUDAI_NORM_WARP_LEAVES = 512,   /* sums that a warp adds in one round */
    CUDAI_NORM_BLOCK_MIN = 4096,    /* sums of a block: eight warps, one round each */
    CUDAI_NORM_BLOCK_MAX = 1 << 20, /* what its shared memory holds the rounds of */
    CUDAI_NORM_BLOCKS_MAX = 1024,   /* as many as the device has places for their results */
};

/* One tile of Adam (two streams of state), Lion or Adagrad (one). */
struct cudai_update_tile {
    uint64_t count;
    float *master;     /* [count] */
    float *state[2];   /* [count] each: m and v; m; v. The second is NULL where there is one */
    const void *grads; /* [count] grad_type */
    void *params;      /* [count] param_type; may be grads where the types have one width */
    enum dtype grad_type, param_type;
    bool is_wide;
};
typedef struct cudai_update_tile cudai_update_tile;

/* One tile of Adam on packed state, of one upper half of the elements' numbers. */
struct cudai_packed_tile {
    uint64_t count;
    void *streams[3]; /* master, m, v as their formats say */
    enum tile_format formats[3];
    const void *grads; /* [count] grad_type */
    void *params;      /* [count] param_type */
    enum dtype grad_type, param_type;
    adami_rounding rounding;
    bool is_wide;
};
typedef struct cudai_packed_tile cudai_packed_tile;

/* update_adam_state.cu */
int cudai_launch_adam_packed(const kernel_context *context, void *stream,
                             const cudai_packed_tile *tile, const adami_scalars *scalars);

/* update_adam.cu */
int cudai_launch_adam(const kernel_context *context, void *stream, const cudai_update_tile *tile,
                      const adami_scalars *scalars);
int cudai_launch_lion(const kernel_context *context, void *stream, const cudai_update_tile *tile,
                      const adami_lion_scalars *scalars);
int cudai_launch_adagrad(const kernel_context *context, void *stream, const cudai_update_tile *tile,
                         const adami_adagrad_scalars *scalars);
int cudai_launch_working_copy(const kernel_context *context, void *stream, const float *master,
                              void *params, enum dtype param_type, uint64_t count, bool is_wide);

/* update_sums.cu. block_leaves: a power of two in [CUDAI_NORM_BLOCK_MIN, CUDAI_NORM_BLOCK_MAX] of
 * which at most CUDAI_NORM_BLOCKS_MAX cover the count. `is_wide`: sums is aligned to 16 bytes. */
int cudai_launch_grad_close(const kernel_context *context, void *stream,
                            const grad_close_args *args, bool is_wide);
int cudai_launch_norm_reduce(void *stream, const double *sums, uint64_t count,
                             uint64_t block_leaves, bool is_wide, double *total);

#endif
