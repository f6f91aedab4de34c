/* The row operations of attention between its matrix products: the softmax of a block of scores and
 * its gradient, in fp32, with our own exponential. attention_rows.c is compiled into one table for
 * each instruction set.
 *
 * The functions are pure, work on the scratch of the calling thread, and do not allocate. The
 * result of a table depends on its arguments alone. The tables agree with each other within
 * rounding, not to the bit. */
#ifndef SLUICE_KERNELS_CPU_ATTENTION_ROWS_H
#define SLUICE_KERNELS_CPU_ATTENTION_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "kernels/attention_range.h"
#include "kernels/cpu/cpu_internal.h"

/* Rows of blocks start at multiples of this many floats, so whole vectors may be read and
 * written. */
enum { ATTENTION_LANES_MAX = 16, ATTENTION_HEAD_DIM_MAX = 256, ATTENTION_KEYS_MAX = 512 };

/* A block of scores, which is replaced in place by the probabilities for the next product.
 *
 *   scores  [rows, stride] fp32 becomes [rows, 2*stride] bf16 or [rows, stride] fp32. Element c of
 *           a row is stored at the first byte of the row + c * dtype_bytes(store_type), so a store
 *           never overwrites a score that is not yet loaded.
 * A row's probabilities are 0 in the columns outside of block_columns. */
struct score_block {
    uint64_t rows, cols, stride; /* stride in floats, a multiple of ATTENTION_LANES_MAX, >= cols */
    uint64_t first_row, first_key; /* the positions of row 0 and of column 0 */
    const attention_mask *mask;
    float scale, soft_cap; /* of attention_desc */
    float *scores;
    enum dtype store_type; /* fp32 or bf16: the operand type of the products */
    enum dtype round_type; /* values are rounded to this type, even if they are stored as fp32 */
    /* [rows, stride] factors of the probabilities (attention_drop); NULL: nothing is dropped. They
     * are defined for whole vectors around the columns that a row sees. */
    const float *kept;
};
typedef struct score_block score_block;

/* The dropout of one head of one sequence; see attention_desc.dropout. */
struct attention_drop {
    dropout_place place;
    uint64_t first_quad, row_quads; /* of the head's first query; from query to query */
    uint32_t threshold;
    float scale; /* of what is kept */
};
typedef struct attention_drop attention_drop;

/* Writes the dropout of a head to *drop and returns it; NULL if nothing is dropped. */
static inline const attention_drop *attention_drop_of(const attention_desc *desc,
                                                      const attention_dropout *masks,
                                                      uint64_t batch, uint64_t head,
                                                      attention_drop *drop)
{
    if (desc->dropout == 0.0f || masks->counter == NULL)
        return NULL;
    *drop = (attention_drop){
        .place = {masks->seed, masks->counter[0], masks->counter[1] + (uint32_t)batch, masks->site},
        .first_quad = dropout_row_quad(desc->tokens, head, 0),
        .row_quads = dropout_row_quad(desc->tokens, 0, 1),
        .threshold = dropout_threshold(desc->dropout),
        .scale = dropout_scale(desc->dropout),
    };
    return drop;
}

/* The columns that row `row` sees. There may be none. Neither end falls from a row to the next. */
static inline attention_range block_columns(const score_block *block, uint64_t row)
{
    attention_range keys = attention_keys_of(block->mask, block->first_row + row);
    uint64_t first = block->first_key, last = first + block->cols;
    keys.begin = keys.begin < first ? first : keys.begin > last ? last : keys.begin;
    keys.end = keys.end < first ? first : keys.end > last ? last : keys.end;
    return (attention_range){keys.begin - first, keys.end - first};
}

/* The running state of a block of query rows over its key blocks. */
struct softmax_state {
    float *row_max;         /* [rows] largest scaled score so far; -inf before the first block */
    float *row_sum;         /* [rows] sum of exp(score - row_max) so far; 0 before */
    float *output;          /* [rows, output_stride] fp32, scaled down as row_max grows */
    uint64_t output_stride; /* a multiple of ATTENTION_LANES_MAX, >= value_dim */
};
typedef struct softmax_state softmax_state;

/* One query over the kept keys and values of its group, in `type`. */
struct cached_row {
    const void *query, *keys, *values; /* [head_dim], [count, head_dim], [count, value_dim] */
    uint64_t count;                    /* > 0 */
    uint64_t head_dim, value_dim;      /* <= ATTENTION_HEAD_DIM_MAX */
    float scale, soft_cap;             /* of attention_cached_args */
    float sink;                        /* the head's; -infinity: none */
    enum dtype type;
    void *output; /* [value_dim] type */
};
typedef struct cached_row cached_row;

struct attention_rows {
    const char *name;

    /* output = softmax(scores) values, in fp32, block by block from the first key on. The scores
     * are scale * query keys', capped. */
    void (*attend)(const cached_row *row);

    /* scores -> exp(scale * score - row_max), of capped scores, times what is kept; also updates
     * the state. */
    void (*softmax)(const score_block *block, const softmax_state *state);

    /* P = exp(scale * score - lse[r]), of capped scores. scores -> P times what is kept; prob_grads
     * (same layout), first multiplied by what is kept -> the gradient of the products, P *
     * (prob_grad - delta[r]) * scale * slope of the cap. */
    void (*softmax_grad)(const score_block *block, float *prob_grads, const float *lse,
                         const float *delta);

    /* Fills block->kept, given as `kept`: 0 or drop->scale. block->first_key is a multiple of 4. */
    void (*drop)(const score_block *block, const attention_drop *drop, float *kept);

    /* target[i] = source[i] * factor, rounded to type. */
    void (*store)(const float *source, float factor, void *target, enum dtype type, uint64_t count);

    /* target[i] = source[i] as fp32; type is bf16 or fp16. */
    void (*widen)(const void *source, enum dtype type, float *target, uint64_t count);

    /* The sum of a[i] * b[i] in fp32, in a fixed order. */
    float (*dot)(const void *a, const void *b, enum dtype type, uint64_t count);

    /* target[i] = e^source[i], for tests. Arguments are clamped to [-88, 88]. The result is within
     * 2 units in the last place from -87.3 to 88, and 0 below -87.7; NaN stays NaN. */
    void (*exponential)(const float *source, float *target, uint64_t count);
};
typedef struct attention_rows attention_rows;

extern const attention_rows cpui_attention_rows_base;
#if defined(__x86_64__)
extern const attention_rows cpui_attention_rows_avx2;
extern const attention_rows cpui_attention_rows_avx512;
#endif

/* attention.c. The table for an instruction set; the base table if the build has none for it. */
const attention_rows *cpui_attention_rows(enum cpu_isa isa);

#endif
