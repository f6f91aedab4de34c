/* Declarations that the files of the model module share.
 *
 * Both families have the same block of two residual branches; modeli_shape says what differs. Names
 * that begin with modeli_ are for these files and for the module's tests only.
 *
 * Vocabulary:
 *   whole unit   a unit of the model that is neither cut nor split, as the family lists it
 *   part         rows of one layer of a whole unit that is too large; a unit of its own (parts.c)
 *   split unit   a whole unit in two, since only some of its tensors learn (learn.c)
 *   origin       the place of a unit's tensors in the whole unit; initial weights depend on it
 *   fresh        a gradient accumulator that holds nothing yet (fresh.c) */
#ifndef SLUICE_MODEL_INTERNAL_H
#define SLUICE_MODEL_INTERNAL_H

#include <math.h>

#include "base/size.h"
#include "model/model.h"

enum {
    MODELI_ALIGN_BYTES = 256, /* alignment of every piece of `saved` and `temp` */
    MODELI_TENSORS_MAX = 24,  /* of one unit */
    /* elements: rows of an adapter's inner activations begin on multiples of 16 bytes */
    MODELI_RANK_STEP = 8,
    MODELI_LAYER_ADAPTERS_MAX = 3, /* adapters of one product: q, k, v */
    /* Origins number the adapters' tensors from here on, for initial weights. */
    MODELI_ADAPTER_ORIGIN = 64,
};

#define MODELI_ABSENT UINT64_MAX /* the offset of a tensor that the family does not have */

/* One linear layer or norm: offsets in elements within the unit's flat vector. */
struct modeli_pair {
    uint64_t weight, bias; /* bias may be MODELI_ABSENT */
};
typedef struct modeli_pair modeli_pair;

/* The properties of a family, and the offsets of its parameters. Filled while units are listed; all
 * blocks have the same offsets. Dimensions: N rows, C hidden, A = H D, P = (H + 2G) D, E rows of
 * the ffn's first matrix (F, or 2F for SwiGLU). */
struct modeli_shape {
    enum norm_kind norm;
    enum activation_kind activation;
    bool has_rope;
    uint64_t rows;                                 /* N = B * T */
    uint64_t head_dim;                             /* D */
    uint64_t attention_columns;                    /* A = H * D: columns of attention's output */
    uint64_t qkv_columns;                          /* P */
    uint64_t ffn_columns;                          /* E */
    uint64_t token_table, position_table;          /* unit 0; position_table may be MODELI_ABSENT */
    modeli_pair norm1, qkv, proj, norm2, up, down; /* of a block */
    uint64_t q_norm, k_norm; /* [D] each; MODELI_ABSENT where heads have no norms */
    modeli_pair norm_final;  /* of the head's unit */
    /* norm_unit, norm_final_unit and output_unit are 0 or 1: indices into stage.units. */
    uint32_t norm_unit;       /* holds the norms of a block, those of heads too */
    uint32_t norm_final_unit; /* holds the final norm */
    uint32_t output_unit;     /* holds the output matrix */
    uint64_t output_matrix;   /* offset of [V,C] within that unit */
};
typedef struct modeli_shape modeli_shape;

/* `saved` of a block: offsets in bytes, each a multiple of MODELI_ALIGN_BYTES.
 *
 *   mean1, rstd1   [N] fp32          statistics of the first norm (mean: LayerNorm only)
 *   mean2, rstd2   [N] fp32          statistics of the second norm
 *   lse            [B,H,T] fp32      log-sum-exp of attention's scores
 *   normed1        [N,C]             first norm's output;    backward: then its gradient
 *   qkv            [N,P]             projections, q and k turned by rope
 *   qk_rstd        [N,H+G] fp32      statistics of the norms of heads, if there are any
 *   qk_before      [N,(H+G)D]        q and k before these norms: q's heads [N,H D], then k's
 *   attention      [N,A]             attention output
 *   middle         [N,C]             x + projection(attention): input of the second norm
 *   normed2        [N,C]             second norm's output
 *   adapters       [N,rank] each     inner activations of the adapters, scaled (lora.c)
 *   ffn_input      [N,E]             first ffn product;      backward: then its gradient
 *   ffn_output     [N,F]             its activation;         backward: then its gradient
 *
 * When the ffn's backward is done, the space from ffn_input on is free. Attention's backward puts
 * qkv_grad [N,P] and attention_grad [N,A] there, so the backward needs no further activations.
 *
 * A block in parts has the same layout, and these for what its passes leave for each other:
 *   projected      [N,C]             attention's projection, before the second norm; it shares its
 *                                    place with ffn_input, which is written later
 *   input_sum      [N,max(F,C,A)] fp32 backward: gradient of a layer's input, summed over its parts
 *   bias_sums      [max(P,E,C)] fp32 backward: column sums of a layer's output gradient */
struct modeli_block_layout {
    uint64_t mean1, rstd1, mean2, rstd2, lse, normed1, qkv, qk_rstd, qk_before, attention;
    uint64_t middle, normed2;
    uint64_t ffn_input, ffn_output, qkv_grad, attention_grad;
    uint64_t adapters[MODEL_LORA_TARGETS_MAX];
    uint64_t projected, input_sum, bias_sums; /* 0 if the block is whole */
    uint64_t total_bytes;
};
typedef struct modeli_block_layout modeli_block_layout;

/* `saved` of the head: mean, rstd [N] fp32, normed [N,C]. A head in parts also has the statistics
 * of the softmax, [N] fp32 each, and the gradient of normed, [N,C] fp32, summed over the parts. In
 * parts, model_logits_pass puts its row at the beginning of mean, rstd and normed. */
struct modeli_head_layout {
    uint64_t mean, rstd, normed;
    uint64_t largest, sum, target_logit, normed_grad; /* 0 unless the head is in parts */
    uint64_t saved_total_bytes;
};
typedef struct modeli_head_layout modeli_head_layout;

/* `temp` of the head, for a chunk of logits of `columns` columns:
 *
 *   logits        [chunk,columns] fp32
 *   logits_grad   [chunk,columns]        backward; at the place of logits if the type is fp32
 *   scratch       of the backend's library
 *
 * model_logits_pass of a whole head puts its one row in temp instead: mean, rstd, normed [C],
 * scratch. */
struct modeli_chunk_layout {
    uint64_t logits, logits_grad, forward_scratch, backward_scratch;
    uint64_t row_mean, row_rstd, row_normed;
};
typedef struct modeli_chunk_layout modeli_chunk_layout;

/* The layers with a matrix, which may be cut by rows; and the final norm. */
enum modeli_layer {
    MODELI_LAYER_QKV, /* of a block, in the order of the forward */
    MODELI_LAYER_PROJ,
    MODELI_LAYER_UP,
    MODELI_LAYER_DOWN,
    MODELI_LAYER_TABLE, /* of the embedding */
    MODELI_LAYER_POSITIONS,
    MODELI_LAYER_NORM, /* of the head: the final norm, a part without rows */
    MODELI_LAYER_OUTPUT
};

enum modeli_product {
    MODELI_FORWARD, /* Y = X W^T + b; W is stored [out,in] */
    MODELI_INPUT,   /* dX = dY W */
    MODELI_WEIGHT,  /* dW += dY^T X, in fp32 */
    MODELI_FIRST,   /* dW = dY^T X: begins a fresh gradient */
    MODELI_PRODUCTS
};

/* A matrix at work: Y [rows,out] from X [rows,in]. */
struct modeli_linear {
    uint64_t rows, in, out;
    uint64_t in_stride, out_stride; /* elements from row to row of X and of Y */
    bool has_bias;
    /* dX of a part is summed in fp32: the layer's last part, which runs first in the backward,
     * writes it; the other parts add to it. */
    bool adds_in_grad;
    bool begins; /* false: another chunk of rows always begins a fresh gradient */
    enum dtype out_type, in_grad_type;
    kernel_matmul *matmul[MODELI_PRODUCTS]; /* after model_prepare; NULL if never needed */
};
typedef struct modeli_linear modeli_linear;

/* One part of a cut unit: rows [row_begin, row_begin + rows) of one layer. All blocks have the same
 * parts, with the same offsets. */
struct modeli_part {
    enum modeli_layer layer;
    bool is_first, is_last; /* first or last part of its layer, in the order of rows */
    uint64_t row_begin, rows;
    uint32_t unit; /* for a block: counted from the block's first unit */
    /* Offsets within the part's unit. norm: only in first parts of qkv and up, and in the part
     * MODELI_LAYER_NORM. */
    modeli_pair norm, weights;
    uint64_t q_norm, k_norm; /* the same; only in the last part of qkv, if heads have norms */
    /* [0] over all rows. For OUTPUT: [0] over a chunk of rows, [1] over the last, shorter chunk. */
    modeli_linear products[2];
    modeli_linear row_logits; /* for OUTPUT: one row, for model_logits_pass */
    uint64_t forward_scratch_bytes, backward_scratch_bytes;
};
typedef struct modeli_part modeli_part;

/* The parts of the embedding, of a block or of the head, in the order of the forward. The output
 * parts of a tied head are the embedding's table parts. count 0: the unit is whole. */
struct modeli_parts {
    modeli_part *items;
    uint32_t count;
};
typedef struct modeli_parts modeli_parts;

/* The place of a unit's tensors in the model that is not cut. Initial weights depend on it. */
struct modeli_origin {
    uint32_t unit;
    uint32_t tensors[MODELI_TENSORS_MAX]; /* index within that unit */
};
typedef struct modeli_origin modeli_origin;

/* An adapter, the same in every block. */
struct modeli_adapter {
    enum modeli_layer layer;
    uint64_t in, out;
    uint64_t column;            /* its first column of the layer's output; it has `out` columns */
    uint64_t a, b;              /* offsets in the second unit: [rank,in], [out,rank] */
    modeli_linear inner, outer; /* u = x A^T, y = u B^T; after model_prepare */
};
typedef struct modeli_adapter modeli_adapter;

/* model.products. model_create fills shape, parts and origins; model_prepare makes products and
 * attention. */
struct model_products {
    modeli_shape shape;
    bool splits_block, splits_head; /* every block, or the head, has a second unit (learn.c) */
    modeli_parts embed, block, head;
    modeli_adapter adapters[MODEL_LORA_TARGETS_MAX];
    uint32_t adapter_count;
    modeli_origin *origins; /* [unit_count] */
    /* The products of a whole block by enum modeli_layer, of a whole head (a chunk of rows and
     * the last, shorter chunk), and of one row. */
    modeli_linear layers[MODELI_LAYER_DOWN + 1], logits[2], row_logits;
    kernel_attention *attention; /* NULL before model_prepare */
    /* All products, one for each shape. */
    matmul_desc *descs;      /* [matmul_count] */
    kernel_matmul **matmuls; /* [matmul_count] */
    uint32_t matmul_count;
    uint64_t embed_backward_scratch_bytes;
    uint64_t block_forward_scratch_bytes, block_backward_scratch_bytes;
    uint64_t head_forward_scratch_bytes, head_backward_scratch_bytes;
};

/* Lists tensors into one unit. */
struct modeli_lister {
    model_unit *unit;
    uint64_t end_elems;
    uint64_t layer;
};
typedef struct modeli_lister modeli_lister;

/* Appends a tensor. The caller fills in its name and its initial weights. */
model_tensor *modeli_append(modeli_lister *list, uint64_t rows, uint64_t columns,
                            bool with_previous);

/* The whole units, one of each kind. */
struct modeli_whole {
    model_unit embed, block, head; /* block: that of one layer */
    model_tensor tensors[3][MODELI_TENSORS_MAX];
};
typedef struct modeli_whole modeli_whole;

/* Begins a unit without tensors. */
int modeli_open_unit(model *self, uint32_t unit_idx, uint32_t whole_unit,
                     modeli_lister *list) MUST_CHECK;
/* The family's tensors, with those of one block. */
void modeli_list_whole(model *self, uint64_t layer, modeli_whole *whole);
/* Lists all units and their origins. Call after modeli_cut. */
int modeli_list_units(model *self) MUST_CHECK;
uint32_t modeli_stage_unit(const model *self, uint32_t stage); /* the first unit of a stage */

/* The gradients that a stage's backward makes; see modeli_work_of. */
struct modeli_work {
    bool weights; /* of the stage's own matrices: linear layers, output matrix, tables */
    bool norms;   /* of the stage's norms */
    bool input;   /* of the stage's input, for the stage before */
    bool inner;   /* of the first norm's output; needed for `input` or `norms` */
};
typedef struct modeli_work modeli_work;

/* ---- what learns: learn.c ---- */
/* Checks spec.learn and spec.lora of a checked spec. Equal selections get one form. */
int modeli_check_learn(model_spec *spec) MUST_CHECK;
void modeli_choose_split(model *self);                /* call before modeli_cut */
int modeli_check_split(const model *self) MUST_CHECK; /* call after modeli_cut */
/* Splits a stage's whole unit in two: the base, and after it the second unit `name`. */
int modeli_list_split(model *self, uint32_t stage, const model_unit *source,
                      const char *name) MUST_CHECK;
/* Both are called after all units are listed. The first corrects the shape's offsets for split
 * units; the second finds the units that learn. */
void modeli_note_split(model *self, const modeli_whole *whole);
void modeli_note_learning(model *self);
modeli_work modeli_work_of(const model *self, uint32_t stage);

/* ---- adapters: lora.c ---- */
uint64_t modeli_lora_saved_bytes(const model *self); /* of one adapter's inner activations */
/* Bytes of temp for a block's pass with adapters; scratch_bytes is the library's scratch. */
uint64_t modeli_lora_temp_bytes(const model *self, uint64_t scratch_bytes);
/* The shapes of an adapter's A and B. */
modeli_linear modeli_inner_linear(const model *self, const modeli_adapter *adapter);
modeli_linear modeli_outer_linear(const model *self, const modeli_adapter *adapter);
/* DRAM bytes that the adapters of a block add to a forward; a backward gets three times as many. */
uint64_t modeli_lora_dram_bytes(const model *self);

/* ---- parts: parts.c ----
 *
 * Decides which kinds of unit are cut, and fills products.embed, block and head except for offsets.
 * ERR_CONFIG if a row does not fit into max_part_bytes. */
int modeli_cut(model *self, const modeli_whole *whole) MUST_CHECK;
const char *modeli_layer_name(enum modeli_layer layer);
modeli_pair modeli_layer_whole(const modeli_shape *shape, enum modeli_layer layer);
/* [rows, columns] of a layer's matrix; NORM has no rows. */
uint64_t modeli_layer_rows(const model *self, enum modeli_layer layer);
uint64_t modeli_layer_columns(const model *self, enum modeli_layer layer);

/* The parts of a stage, or NULL if it is not cut. */
const modeli_parts *modeli_parts_of(const model *self, uint32_t stage);

/* Number of positions at which a call may have tokens: rows of the rotary tables. */
static inline uint64_t modeli_positions(const model *self)
{
    return self->cache_positions ? self->cache_positions : self->tokens;
}

/* The factor of attention's scores: 1 / sqrt(D). */
static inline float modeli_score_scale(const model *self)
{
    return (float)(1.0 / sqrt((double)self->products->shape.head_dim));
}

/* Tokens of each sequence of a call, without padding. */
static inline uint64_t modeli_call_tokens(const model *self, const model_call *call)
{
    return self->cache_positions ? call->count : self->tokens;
}

/* ---- shapes.c: pure functions of the model ---- */
/* Elements from row to row of a chunk of logits. In every type rows begin on multiples of 16
 * bytes, as products on a GPU require; vocabularies of odd size, such as GPT-2's, need padding
 * for that. */
static inline uint64_t modeli_logits_stride(uint64_t columns)
{
    return size_round_up(columns, 8);
}

void modeli_block_layout_of(const model *self, modeli_block_layout *layout);
void modeli_head_layout_of(const model *self, modeli_head_layout *layout);
void modeli_chunk_layout_of(const model *self, uint64_t columns, modeli_chunk_layout *layout);
/* If nobody wants input_grad, the backward of an uncut stage puts that gradient [N,C] into temp.
 * This is its offset there, in bytes. */
uint64_t modeli_unwanted_grad(const model *self, enum stage_kind kind);

/* Bytes of the passes of an uncut stage; the backward includes the recomputation. */
struct modeli_sizes {
    uint64_t forward_dram_bytes, backward_dram_bytes;
    uint64_t forward_temp_bytes, backward_temp_bytes; /* from the scratch sizes known so far */
};
typedef struct modeli_sizes modeli_sizes;

modeli_sizes modeli_uncut_sizes(const model *self, const struct stage *stage,
                                const modeli_work *work);

/* ---- passes of all stages: passes.c ---- */
int modeli_create_passes(model *self) MUST_CHECK;
/* Fills all passes, from the scratch sizes known so far. */
void modeli_size_stages(model *self);
/* The part that a pass of a cut stage works on. *backward says whether the pass makes gradients:
 * all passes of a backward do, except the first half of the head's. */
const modeli_part *modeli_pass_part(const model *self, enum phase phase, uint32_t stage,
                                    uint32_t pass, bool *backward);

/* ---- products: products.c ---- */
/* The shape of a layer without bias, of a layer of a whole block, of a part of a layer, and of a
 * chunk of logits: of a whole head (`part` NULL) or of one part. is_last: the last, shorter chunk;
 * it has 0 rows if all chunks are equal. */
modeli_linear modeli_linear_of(const model *self, uint64_t rows, uint64_t in, uint64_t out);
modeli_linear modeli_layer_linear(const model *self, enum modeli_layer layer);
modeli_linear modeli_part_linear(const model *self, const modeli_part *part);
modeli_linear modeli_logits_linear(const model *self, const modeli_part *part, bool is_last);
matmul_desc modeli_product_desc(const model *self, const modeli_linear *of,
                                enum modeli_product which);
void modeli_release_products(model *self);

/* ---- how gradients begin: fresh.c ----
 *
 * Fills the fresh accumulators of a call of a backward pass with zeros, except the matrices, which
 * the products of the pass write. */
int modeli_begin_grads(model *self, uint32_t stage, uint32_t pass, void *stream,
                       const model_call *call) MUST_CHECK;
uint64_t modeli_zeroed_bytes(const model *self, uint32_t stage, uint32_t pass, uint32_t i);

/* ---- whole stages: block.c, head.c ---- */
/* The arguments that all calls of the embedding share, for a whole table or a part. The tables are
 * not set. */
embedding_args modeli_embedding(const model *self, const model_call *call);
embedding_grad_args modeli_embedding_grad(const model *self, const model_call *call);
int modeli_embed(model *self, void *stream, const model_call *call, bool backward) MUST_CHECK;
int modeli_block_forward(model *self, void *stream, const model_call *call) MUST_CHECK;
int modeli_block_backward(model *self, void *stream, const model_call *call,
                          bool saved_is_valid) MUST_CHECK;
int modeli_head(model *self, void *stream, const model_call *call, bool backward) MUST_CHECK;
int modeli_row_logits(model *self, void *stream, const model_call *call, uint64_t row,
                      float *logits) MUST_CHECK;

/* The final norm of `rows` rows; and its gradient, in place on `grad` [N,C]. */
int modeli_final_norm(model *self, void *stream, const model_call *call, uint64_t rows,
                      const void *input, void *output, float *mean, float *rstd) MUST_CHECK;
int modeli_final_norm_grad(model *self, void *stream, const model_call *call, void *grad,
                           const float *mean, const float *rstd, void *scratch) MUST_CHECK;

/* ---- one pass of a stage in parts: block_parts.c, head_parts.c ---- */
int modeli_embed_part(model *self, void *stream, const model_call *call, const modeli_part *part,
                      bool backward) MUST_CHECK;
int modeli_block_part(model *self, void *stream, const model_call *call, const modeli_part *part,
                      bool backward) MUST_CHECK;
int modeli_head_part(model *self, void *stream, const model_call *call, const modeli_part *part,
                     bool backward) MUST_CHECK;
int modeli_row_logits_part(model *self, void *stream, const model_call *call,
                           const modeli_part *part, uint64_t row, float *logits) MUST_CHECK;

static inline bool modeli_has_head_norms(const model *self)
{
    return self->products->shape.q_norm != MODELI_ABSENT;
}

/* Address of element `offset_elems` of a vector in the model's type; NULL for MODELI_ABSENT. */
static inline const void *modeli_param(const model *self, const void *params, uint64_t offset_elems)
{
    if (offset_elems == MODELI_ABSENT)
        return NULL;
    return (const char *)params + offset_elems * dtype_bytes(self->type);
}

/* The same for an accumulator; also NULL if `grads` is NULL. */
static inline float *modeli_grad(float *grads, uint64_t offset_elems)
{
    return grads == NULL || offset_elems == MODELI_ABSENT ? NULL : grads + offset_elems;
}

static inline void *modeli_at(void *base, uint64_t offset_bytes)
{
    return (char *)base + offset_bytes;
}

#endif
