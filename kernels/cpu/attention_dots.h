/* Attention of bf16 blocks by the dot products of AVX-512 (VDPBF16PS), for the two passes of
 * attention: what they compute for one query block and one key block.
 *
 * The products of a library pack both operands each time that it is called. Here the operand whose
 * elements are broadcast is read as it lies, the other one is packed once for all the products that
 * read it, the probabilities are written in the layout of the next product, and what the mask hides
 * is left out, 8 rows by 32 columns at a time.
 *
 * Each element of a product is one chain of pairs in the order of k, begun at zero, and then added
 * to what is there. oneDNN 2.6 sums in the same order, so the two ways agree to the bit. Subnormal
 * operands count as zero, as always with this instruction. Nothing allocates. */
#ifndef SLUICE_KERNELS_CPU_ATTENTION_DOTS_H
#define SLUICE_KERNELS_CPU_ATTENTION_DOTS_H

#include "kernels/cpu/attention_rows.h"

/* The packed operands of one thread. A word is two bf16: elements 2i and 2i + 1 of the dimension
 * that a product sums over. `rows` and `keys` are the extents of the largest blocks; in the forward
 * pass `rows` is the sum over the query blocks that share packed keys. D is the head_dim, E the
 * value_dim. Panels are [columns / 32][words][32]; the last one is [words][16] if 16 or fewer
 * columns remain. Missing rows and columns are zero. */
struct attention_dots {
    uint64_t head_dim, value_dim;
    uint64_t keys;                      /* packed by cpui_attention_dots_keys */
    uint32_t *query_rows;               /* [rows][D/2] */
    uint32_t *key_columns;              /* panels of keys; words along D */
    uint32_t *value_pairs;              /* panels of E; words along keys; forward */
    uint32_t *grad_rows;                /* [rows][E/2] of dO; all that follow are backward */
    uint32_t *query_pairs, *grad_pairs; /* panels of D, of E; words along rows */
    uint32_t *key_pairs;                /* panels of D; words along keys */
    uint32_t *value_columns;            /* panels of keys; words along E */
    uint16_t *score_grads;              /* [rows][score_stride] dS */
};
typedef struct attention_dots attention_dots;

/* Rows of one head in the memory of the caller. */
struct dots_rows {
    const uint16_t *first;
    uint64_t stride; /* elements */
    uint64_t count;
};
typedef struct dots_rows dots_rows;

/* True if this build and desc can use these functions: bf16, heads of even sizes, a positive scale.
 * Call it, and all others, only if the isa of the context has AVX-512 with bf16. */
bool cpui_attention_dots_takes(const attention_desc *desc);

/* Lays out the operands from `base` on, which is aligned to 64 bytes, and returns their bytes. base
 * NULL: only computes the bytes. */
size_t cpui_attention_dots_layout(uint64_t head_dim, uint64_t value_dim, uint64_t rows,
                                  uint64_t keys, uint64_t score_stride, bool backward, char *base,
                                  attention_dots *dots);

/* Packs a query block, or adjacent ones; output_grad is NULL in the forward pass. */
void cpui_attention_dots_queries(const attention_dots *dots, const dots_rows *query,
                                 const dots_rows *output_grad);

/* Packs a key block for the pass of the layout. */
void cpui_attention_dots_keys(attention_dots *dots, const dots_rows *keys, const dots_rows *values);

/* block->rows of the packed queries from `query_offset` on, and the first block->cols of the packed
 * keys: updates `state`. block->scores is scratch; its types are bf16. */
void cpui_attention_dots_forward(const attention_dots *dots, const score_block *block,
                                 uint64_t query_offset, const softmax_state *state);

/* The sums that the backward pass adds to, fp32 with the same row stride. */
struct dots_sums {
    float *query, *keys, *values; /* [rows, stride], [cols, stride], [cols, stride] */
    uint64_t stride;
};
typedef struct dots_sums dots_sums;

/* The packed query block, and block->cols of the packed keys from `key_offset` on, which is a
 * multiple of 32. block->scores and prob_grads are scratch of the same layout; lse and delta have a
 * number for each row. */
void cpui_attention_dots_backward(const attention_dots *dots, const score_block *block,
                                  uint64_t key_offset, float *prob_grads, const float *lse,
                                  const float *delta, const dots_sums *sums);

#endif
