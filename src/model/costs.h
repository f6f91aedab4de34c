/* The work of a pass, kernel by kernel, for callers that know the speed of each kind of work. Pure
 * functions of the model's shapes: nothing is prepared or allocated. */
#ifndef SLUICE_MODEL_COSTS_H
#define SLUICE_MODEL_COSTS_H

#include "model/model.h"

enum { MODEL_COST_PRODUCTS_MAX = 64 };

/* `count` products [m,k] x [k,n] of operands of `type`. */
struct model_cost_product {
    enum dtype type, result; /* result: type of the product's result */
    bool accumulates;        /* the result is added to what is there */
    bool b_transposed;       /* the second operand is stored [n,k] */
    uint64_t m, n, k, count;
};
typedef struct model_cost_product model_cost_product;

/* Row-wise kernels, grouped by how much they compute for each byte. */
enum model_row_kind {
    MODEL_ROWS_NORM,
    MODEL_ROWS_NORM_GRAD,
    MODEL_ROWS_GELU,
    MODEL_ROWS_GELU_GRAD,
    MODEL_ROWS_SWIGLU,
    MODEL_ROWS_SWIGLU_GRAD,
    MODEL_ROWS_PLAIN,      /* sums, rotary positions, conversions, gradients of biases */
    MODEL_ROWS_TABLE,      /* gathers rows of the embedding */
    MODEL_ROWS_TABLE_GRAD, /* adds rows of the embedding's gradient, in order */
    MODEL_ROWS_LOSS,       /* softmax and losses from logits, and their gradient */
    MODEL_ROWS_DROPOUT,
    MODEL_ROW_KIND_COUNT
};

struct model_costs {
    uint32_t product_count;
    model_cost_product products[MODEL_COST_PRODUCTS_MAX];
    double attention_forward_flops, attention_backward_flops;
    double row_bytes[MODEL_ROW_KIND_COUNT]; /* read and written together */
    uint64_t call_count;                    /* number of kernel calls */
};
typedef struct model_costs model_costs;

/* The work of one pass of one micro-batch. For the backward of an uncut block it includes the
 * recomputation. */
void model_pass_costs(const model *self, enum phase phase, uint32_t stage, uint32_t pass,
                      model_costs *out);

/* The part of an uncut block's backward that computes activations again where so much of `saved` is
 * kept. Empty for other stages. */
void model_recompute_costs(const model *self, uint32_t stage, enum kept kept, model_costs *out);

/* FLOPs of the products and of attention. */
double model_costs_flops(const model_costs *costs);

#endif
