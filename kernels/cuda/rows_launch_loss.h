/* Launchers of the embedding's and the loss's kernels (rows_embedding.cu, rows_loss.cu), called by
 * rows_sparse.c alone, which has checked the arguments: rows and channels (vocab, columns) are
 * above 0 (softmax_part begins the stats of a part without columns too). Each enqueues one kernel
 * on `stream` and returns CUDA's error of the launch, a cudaError_t. `sm_count` bounds the grids;
 * it never touches a result. Valid as C and as C++. */
#ifndef SLUICE_KERNELS_CUDA_ROWS_LAUNCH_LOSS_H
#define SLUICE_KERNELS_CUDA_ROWS_LAUNCH_LOSS_H

#include "kernels/ops.h"

/* Rows whose keys one block sorts in shared memory; longer lists are merged, 4 runs at a time. */
enum { CUDAI_SORT_KEYS = 4096, CUDAI_MERGE_WAYS = 4 };

int cudai_launch_embedding_forward(const embedding_args *args, int sm_count, void *stream);

/* keys[rows]: for each row of token_ids its table row within the part in the upper half (all ones
 * where the token lies elsewhere) and its own number in the lower one, sorted within each run of
 * CUDAI_SORT_KEYS. */
int cudai_launch_embedding_keys(const embedding_grad_args *args, uint64_t *keys, void *stream);

/* target[rows] = source[rows] with every CUDAI_MERGE_WAYS neighbouring sorted runs of `run_keys`
 * keys, a power of two, made one. All keys differ. */
int cudai_launch_embedding_merge(const uint64_t *source, uint64_t *target, uint64_t rows,
                                 uint64_t run_keys, int sm_count, void *stream);

/* token_table_grad += the rows of output_grad, token by token as the sorted keys say. */
int cudai_launch_embedding_tokens(const embedding_grad_args *args, const uint64_t *keys,
                                  int sm_count, void *stream);

/* position_table_grad += the rows of output_grad, in order of the batch. */
int cudai_launch_embedding_positions(const embedding_grad_args *args, int sm_count, void *stream);

int cudai_launch_cross_entropy(const cross_entropy_args *args, int sm_count, void *stream);
int cudai_launch_softmax_part(const softmax_part_args *args, int sm_count, void *stream);
int cudai_launch_softmax_losses(const softmax_part_args *args, int sm_count, void *stream);
int cudai_launch_cross_entropy_part(const softmax_part_args *args, int sm_count, void *stream);

#endif
