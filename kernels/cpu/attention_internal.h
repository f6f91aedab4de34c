/* Shared by attention.c and the files of its two passes: how a head is cut into blocks, the
 * prepared products of each block shape, and the scratch of one thread.
 *
 * The T query rows of a head are cut into blocks of query_rows, its keys into blocks of key_rows (a
 * multiple of query_rows). A query block is combined with the key blocks that it sees:
 *
 *   keys ->  0        key_rows            T
 *   queries  [S S \ . |      .      . ]       S full, \ on the diagonal (masked above it),
 *            [S S S S | S \  .      . ]       . never computed
 *
 * The keys of a query block begin and end at multiples of query_rows, or at the end of the
 * sequence; cpui_attention_keys says where. With a window or documents they need not begin at 0.
 *
 * Each thread holds the scores of one query block and one key block at a time. In the forward pass
 * adjacent query blocks whose keys begin at the same place form a team: a key block is prepared
 * once for all of them, and each of them is computed as if it were alone. The cut depends on T
 * alone, every product runs on one thread, and every sum has a fixed order, so results do not
 * depend on the number of threads. */
#ifndef SLUICE_KERNELS_CPU_ATTENTION_INTERNAL_H
#define SLUICE_KERNELS_CPU_ATTENTION_INTERNAL_H

#include "kernels/cpu/attention_dots.h"
#include "kernels/cpu/attention_rows.h"

/* A product over a block of r query rows and c key rows. A row of P or S belongs to a query. */
enum block_product {
    PRODUCT_SCORES,     /* S[r,c]  = Q K^T */
    PRODUCT_OUTPUT,     /* O[r,E] += P V */
    PRODUCT_PROB_GRAD,  /* dP[r,c] = dO V^T */
    PRODUCT_QUERY_GRAD, /* dQ[r,D] += dS K */
    PRODUCT_KEY_GRAD,   /* dK[c,D] += dS^T Q */
    PRODUCT_VALUE_GRAD, /* dV[c,E] += P^T dO */
    PRODUCT_COUNT
};

/* The products of one block shape. */
struct block_shape {
    uint64_t rows, cols;
    cpui_product *products[PRODUCT_COUNT];
};
typedef struct block_shape block_shape;

struct kernel_attention {
    kernel_context *context;
    attention_desc desc;        /* value_dim is set */
    int threads;                /* of a pass */
    const int32_t *begins;      /* [B,T] or NULL; see attention_set_documents */
    attention_dropout masks;    /* counter NULL: nothing is dropped */
    const attention_rows *rows; /* the table of the instruction set */
    /* attention_amx.h runs the passes; of the members below only the bytes are set */
    bool by_tiles;
    bool by_dots; /* attention_dots.h computes the blocks; there are no shapes */
    /* of the operands of the products: desc.type, or fp32 if they are widened */
    enum dtype product_type;
    uint64_t query_rows, key_rows, query_block_count;
    uint64_t team_blocks;  /* of a task of the forward pass, which has one team or more */
    uint64_t score_stride; /* distance between rows of scores, in floats */
    /* distance between rows of fp32 accumulators: the larger of D and E, in whole vectors */
    uint64_t head_stride;
    block_shape *shapes; /* [shape_count] */
    size_t shape_count;
    size_t product_scratch_bytes;         /* the largest scratch of a product */
    size_t forward_bytes, backward_bytes; /* scratch of one thread */
};

/* The scratch of one thread. Parts that a pass does not use are NULL. Strides: head_stride for the
 * output and the accumulators, score_stride for scores, D or E for dense operands. */
struct attention_worker {
    float *scores;     /* [query_rows, score_stride] */
    float *prob_grads; /* like scores; backward */
    float *kept;       /* like scores; with dropout */
    /* forward, of a team: [team_blocks * query_rows, head_stride], and the largest score and the
     * sum of each row */
    float *output, *row_max, *row_sum;
    /* [T, head_stride] backward: sums of one query head, and of the group */
    float *query_grads, *key_grads, *value_grads;
    float *delta; /* [T] backward: rowsum(dO * O) */
    /* not by dots: operands row by row, in product_type: [query_rows, D] (forward: of a team),
     * [query_rows, E], [key_rows, D], [key_rows, E] */
    float *dense_q, *dense_output_grad, *dense_k, *dense_v;
    attention_dots dots; /* if by_dots */
    void *product_scratch;
    int slot;                    /* slot of this thread in the products */
    int status;                  /* the first dnnl status of this thread that is not 0 */
    const cpui_product *culprit; /* the product that returned it */
};
typedef struct attention_worker attention_worker;

/* Lays out the parts of a worker from `base` on and returns their bytes. base NULL: only computes
 * the bytes. */
size_t cpui_attention_worker_layout(const kernel_attention *attention, bool backward, char *base,
                                    attention_worker *worker);

/* A task of a pass. args: of the pass. A failure is noted in the worker. */
typedef void attention_task(const kernel_attention *attention, const void *args,
                            attention_worker *worker, uint64_t task);

/* Runs tasks [0, task_count). Each thread has a worker in `scratch` and takes the next task when it
 * is free. Returns the failure of the thread that reported last. */
int cpui_attention_run(const kernel_attention *attention, bool backward, void *scratch,
                       uint64_t task_count, attention_task *run, const void *args);

/* The prepared products of a shape. They exist for every block that the loops visit. */
const block_shape *cpui_attention_shape(const kernel_attention *attention, uint64_t rows,
                                        uint64_t cols);

/* The keys of the query block [first_row, first_row + rows), in whole units of query_rows. */
attention_range cpui_attention_keys(const kernel_attention *attention, const attention_mask *mask,
                                    uint64_t first_row, uint64_t rows);

/* The scores of a pair of blocks in the scratch of a worker, and what their dropout keeps. drop may
 * be NULL. */
score_block cpui_attention_scores(const kernel_attention *attention, const attention_mask *mask,
                                  const attention_drop *drop, const attention_worker *worker,
                                  attention_range rows, attention_range keys);

/* Runs one product, unless this worker has failed before. */
void cpui_attention_product(attention_worker *worker, const block_shape *shape,
                            enum block_product kind, const void *a, const void *b, void *c);

/* `rows` rows of a head from element `first` of a bf16 tensor on, for attention_dots.h. */
static inline dots_rows attention_dots_rows(const void *source, uint64_t first, uint64_t row_stride,
                                            uint64_t rows)
{
    return (dots_rows){(const uint16_t *)source + first, row_stride, rows};
}

/* Copies the operand of a product, `rows` rows of `dim` elements from element `first` of `source`
 * on, row by row into `dense`, and widens it if product_type is wider. On a Zen 3 core, passes that
 * read fp32 rows 24 KiB apart in place took 1.3 to 1.4 times as long. */
void cpui_attention_operand(const kernel_attention *attention, const void *source, uint64_t first,
                            uint64_t row_stride, uint64_t rows, uint64_t dim, float *dense);

/* Row `row` of such an operand. */
static inline const void *attention_dense_row(const kernel_attention *attention, const float *dense,
                                              uint64_t row, uint64_t dim)
{
    return (const char *)dense + row * dim * dtype_bytes(attention->product_type);
}

/* Prepares `count` keys and values, from these elements of k and v on, for the query blocks that
 * share them, in dense_k and dense_v or packed by dots. */
void cpui_attention_prepare_keys(const kernel_attention *attention, attention_worker *worker,
                                 const void *k, const void *v, uint64_t k_elem, uint64_t v_elem,
                                 uint64_t count);

/* The address of element `elem` of a tensor of the working type. */
static inline const void *attention_at(const kernel_attention *attention, const void *base,
                                       uint64_t elem)
{
    return (const char *)base + elem * dtype_bytes(attention->desc.type);
}

static inline uint64_t attention_block_rows(const kernel_attention *attention, uint64_t query_block)
{
    uint64_t left = attention->desc.tokens - query_block * attention->query_rows;
    return left < attention->query_rows ? left : attention->query_rows;
}

#endif
