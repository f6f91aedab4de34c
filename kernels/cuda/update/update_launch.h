/* The interface between update.c and the kernels of the optimizers, gradients and sums: a tile
 * whose pointers update.c has checked, the scalars as the CPU's loops use them, and the shapes of
 * the launches.
 *
 * A launcher enqueues one kernel and returns CUDA's error of the launch. Counts are above 0, except
 * norm_reduce's. Pointers are aligned to their elements at least. `is_wide` is true if every
 * pointer is aligned to CUDAI_UPDATE_PACK elements; then a thread can move a pack in one access.
 * Valid as C and as C++. */
#ifndef SLUICE_KERNELS_CUDA_UPDATE_LAUNCH_H
#define SLUICE_KERNELS_CUDA_UPDATE_LAUNCH_H

#include "kernels/cpu/optimizer/adam_state_internal.h"
#include "kernels/cuda/cuda_internal.h"

enum {
    CUDAI_UPDATE_PACK = 4, /* elements that a thread moves in one access: 16 bytes of fp32 */

    CUDAI_NORM_WARP_LEAVES = 512,   /* sums that a warp adds in one round */
    CUDAI_NORM_BLOCK_MIN = 4096,    /* sums of a block: eight warps, one round each */
    CUDAI_NORM_BLOCK_MAX = 1 << 20, /* limit, since its shared memory holds the rounds */
    /* limit: the device has this many places for the blocks' results */
    CUDAI_NORM_BLOCKS_MAX = 1024,
};

/* One tile of Adam on packed state. All its elements' numbers have the same upper half. */
struct cudai_packed_tile {
    uint64_t count;
    void *streams[3]; /* master, m, v in their formats */
    enum tile_format formats[3];
    const void *grads; /* [count] grad_type */
    void *params;      /* [count] param_type */
    enum dtype grad_type, param_type;
    adami_rounding rounding;
    bool is_wide;
};
typedef struct cudai_packed_tile cudai_packed_tile;

int cudai_launch_adam_packed(const kernel_context *context, void *stream,
                             const cudai_packed_tile *tile, const adami_scalars *scalars);

int cudai_launch_update(const kernel_context *context, void *stream, enum update_rule rule,
                        const adami_work *work, bool is_wide);
int cudai_launch_working_copy(const kernel_context *context, void *stream, const float *master,
                              void *params, enum dtype param_type, uint64_t count, bool is_wide);

/* block_leaves is a power of two in [CUDAI_NORM_BLOCK_MIN, CUDAI_NORM_BLOCK_MAX], and at most
 * CUDAI_NORM_BLOCKS_MAX blocks of this size must cover `count`. `is_wide`: `sums` is aligned to 16
 * bytes. */
int cudai_launch_grad_close(const kernel_context *context, void *stream,
                            const grad_close_args *args, bool is_wide);
int cudai_launch_norm_reduce(void *stream, const double *sums, uint64_t count,
                             uint64_t block_leaves, bool is_wide, double *total);

#endif
