/* Launchers of the row kernels, for rows_ops.c, rows_sparse.c and rows_experts_ops.c. Each enqueues
 * kernels on `stream` (a cudaStream_t) and returns CUDA's error of the launch, 0 for success. The
 * caller has checked the arguments, and no count may be 0. Pointers may have any alignment that
 * their element types allow, without effect on the results; 16 bytes, and rows of whole packs, are
 * fast. Valid as C and as C++. */
#ifndef SLUICE_KERNELS_CUDA_ROWS_LAUNCH_H
#define SLUICE_KERNELS_CUDA_ROWS_LAUNCH_H

#include "kernels/ops.h"

/* The division of rows into blocks for sums of columns. Block i sums rows [i * rows_per_block, ...)
 * into its row of scratch; then the blocks are summed in order. The division depends only on the
 * shape, so the sums have the same bits on every GPU. count <= 65535. */
struct cudai_row_blocks {
    uint64_t rows_per_block, count;
};
typedef struct cudai_row_blocks cudai_row_blocks;

/* One block sorts the keys of CUDAI_SORT_KEYS rows in shared memory. Longer lists are merged, 4
 * runs at a time. */
enum { CUDAI_SORT_KEYS = 4096, CUDAI_MERGE_WAYS = 4 };

#ifdef __cplusplus
extern "C" {
#endif

/* Norms and bias gradients. Scratch of the norm: [blocks.count, 2 or 1 (NORM_RMS), C] fp32. Scratch
 * of the bias: [blocks.count, n] fp32. */
int cudai_launch_norm_forward(void *stream, const norm_args *args);
int cudai_launch_norm_backward(void *stream, const norm_grad_args *args, cudai_row_blocks blocks);
int cudai_launch_bias_backward(void *stream, enum dtype type, uint64_t rows, uint64_t n,
                               uint64_t stride, const void *output_grad, float *bias_grad,
                               float *scratch, cudai_row_blocks blocks);

/* target[c] += the sum over `blocks` rows of sums [blocks, channels], in order, in double. */
int cudai_launch_fold_sums(void *stream, const float *sums, uint64_t blocks, uint64_t channels,
                           float *target);

/* Norms of heads, D <= 256. Here a "row" of the blocks is a head, and scratch is [blocks.count, D]
 * fp32; with weight_per_head a "row" is a row, and scratch is [blocks.count, H * D]. */
int cudai_launch_head_norm_forward(void *stream, const head_norm_args *args);
int cudai_launch_head_norm_backward(void *stream, const head_norm_args *args,
                                    cudai_row_blocks blocks);

/* Pointwise kernels. Their geometry depends on sm_count, but their results do not. */
int cudai_launch_scale_rows(void *stream, const scale_rows_args *args);
int cudai_launch_dropout(void *stream, const dropout_args *args);
int cudai_launch_add(void *stream, int sm_count, enum dtype type, uint64_t count, const void *a,
                     const void *b, void *out);
/* source_type and target_type must differ. */
int cudai_launch_convert(void *stream, int sm_count, const void *source, enum dtype source_type,
                         void *target, enum dtype target_type, uint64_t count);
int cudai_launch_activation(void *stream, int sm_count, const activation_args *args,
                            bool is_backward);
int cudai_launch_rope(void *stream, const rope_args *args);
int cudai_launch_rope_table(void *stream, int sm_count, const rope_table_args *args);

/* Heads before and after attention. is_back: heads_split. */
int cudai_launch_attention_sinks(void *stream, int sm_count, const attention_sinks_args *args);
int cudai_launch_attention_sinks_backward(void *stream, const attention_sinks_args *args);
int cudai_launch_heads_join(void *stream, const heads_join_args *args, bool is_back);

/* `layout` is that of the arguments. */
int cudai_launch_stored_expand(void *stream, int sm_count, const stored_expand_args *args,
                               const stored_layout *layout);

/* The embedding and the loss, for rows_sparse.c. Rows and channels (vocab, columns) are above 0.
 * One exception: softmax_part also takes a part without columns, and initializes its stats. */
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

/* Mixtures of experts, for rows_experts_ops.c. The scratch of the sums is [blocks.count, 2 * E + 1]
 * fp64. `order` is filled with -1 before the sort. */
int cudai_launch_router_forward(void *stream, const router_args *args);
int cudai_launch_router_backward(void *stream, const router_args *args);
int cudai_launch_router_sums(void *stream, const router_sums_args *args, cudai_row_blocks blocks);
int cudai_launch_experts_sort(void *stream, const experts_sort_args *args);
int cudai_launch_experts_gather(void *stream, const experts_rows_args *args);
int cudai_launch_experts_combine(void *stream, const experts_rows_args *args);
int cudai_launch_experts_weights_backward(void *stream, const experts_rows_args *args);

#ifdef __cplusplus
}
#endif

#endif
