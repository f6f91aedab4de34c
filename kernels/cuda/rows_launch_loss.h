/* Launchers of the embedding's and the loss's kernels. Only rows_sparse.c calls them, and it has
 * checked the arguments: rows and channels (vocab, columns) are above 0. One exception:
 * softmax_part also takes a part without columns, and initializes its stats. Each launcher enqueues
 * one kernel on `stream` and returns CUDA's error of the launch, a cudaError_t. `sm_count` limits
 * the grids; it does not affect results. Valid as C and as C++. */
#ifndef SLUICE_KERNELS_CUDA_ROWS_LAUNCH_LOSS_H
#define SLUICE_KERNELS_CUDA_ROWS_LAUNCH_LOSS_H

#include "kernels/ops.h"

/* One block sorts the keys of CUDAI_SORT_KEYS rows in shared memory. Longer lists are merged, 4
 * runs at a time. */
enum { CUDAI_SORT_KEYS = 4096, CUDAI_MERGE_WAYS = 4 };

int cudai_launch_embedding_forward(const embedding_args *args, int sm_count, void *stream);

/* Writes keys[rows], one for each row of token_ids. The upper half of a key is the token's table
 * row within this part (all ones if the token lies in another part); the lower half is the row's
 * own number. Each run of CUDAI_SORT_KEYS keys is sorted. */
int cudai_launch_embedding_keys(const embedding_grad_args *args, uint64_t *keys, void *stream);

/* target[rows] = source[rows], with each CUDAI_MERGE_WAYS neighbouring sorted runs merged into one.
 * A run has `run_keys` keys, a power of two. All keys differ. */
int cudai_launch_embedding_merge(const uint64_t *source, uint64_t *target, uint64_t rows,
                                 uint64_t run_keys, int sm_count, void *stream);

/* token_table_grad += the rows of output_grad, token by token in the order of the sorted keys. */
int cudai_launch_embedding_tokens(const embedding_grad_args *args, const uint64_t *keys,
                                  int sm_count, void *stream);

/* position_table_grad += the rows of output_grad, in order of the batch. */
int cudai_launch_embedding_positions(const embedding_grad_args *args, int sm_count, void *stream);

int cudai_launch_cross_entropy(const cross_entropy_args *args, int sm_count, void *stream);
int cudai_launch_softmax_part(const softmax_part_args *args, int sm_count, void *stream);
int cudai_launch_softmax_losses(const softmax_part_args *args, int sm_count, void *stream);
int cudai_launch_cross_entropy_part(const softmax_part_args *args, int sm_count, void *stream);

#endif
