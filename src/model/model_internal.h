/* What the files of the model module share.
 *
 *   model.c    create, destroy, checks, FLOPs of a step
 *   units.c    the units and their tensors            init.c    initial weights
 *   learn.c    which units learn, and units split in two for it
 *   lora.c     adapters of a block's linear layers
 *   gpt2.c     the tensors of the GPT-2 family        llama.c   those of the Llama family
 *   parts.c    how units that are too large are cut
 *   shapes.c   layouts of `saved` and `temp`, bytes and flops of the stages
 *   passes.c   the passes of the stages               run.c     dispatch over stages and passes
 *   costs.c    what runs in a pass, kernel by kernel   fresh.c    how gradients begin
 *   products.c model_prepare: matrix products, attention, scratch sizes; part_products.c: of parts
 *   block.c    forward and backward of a block        block_parts.c  of a block in parts
 *   block_steps.c  what both share (block_internal.h)
 *   head.c     embedding, head, logits                head_parts.c   of both in parts
 *
 * Both families are the same block of two residual branches; what differs is said by modeli_shape.
 * Names that begin with modeli_ are shared by these files and by the tests of the module only. */
#ifndef SLUICE_MODEL_MODEL_INTERNAL_H
#define SLUICE_MODEL_MODEL_INTERNAL_H

#include <math.h>

#include "base/size.h"
#include "model/model.h"

enum {
    MODELI_ALIGN_BYTES = 256, /* of every piece of `saved` and `temp` */
    MODELI_TENSORS_MAX = 24,  /* of one unit */
    MODELI_RANK_STEP = 8,     /* elements, of rows of an adapter's inner activations: 16 bytes */
    MODELI_LAYER_ADAPTERS_MAX = 3, /* of one product: q, k, v */
    MODELI_ADAPTER_ORIGIN =
        64, /* adapters' tensors are numbered from here on in origins: initial weights */
};

#define MODELI_ABSENT UINT64_MAX /* the offset of a tensor that the family does not have */

/* One linear layer or norm: offsets in elements within the unit's flat vector. */
struct modeli_pair {
    uint64_t weight, bias; /* bias may be MODELI_ABSENT */
};
typedef struct modeli_pair modeli_pair;

/* What a family is, and where its parameters lie. Filled while units are listed; all blocks have
 * the same offsets. Names of dimensions: N rows, C hidden, A = H D, P = (H + 2G) D, E rows of the
 * ffn's first product (F, or 2F for SwiGLU). */
struct modeli_shape {
    enum norm_kind norm;
    enum activation_kind activation;
    bool has_rope;
    uint64_t rows;                                 /* N = B * T */
    uint64_t head_dim;                             /* D */
    uint64_t attention_columns;                    /* A = H * D: of attention's output */
    uint64_t qkv_columns;                          /* P */
    uint64_t ffn_columns;                          /* E */
    uint64_t token_table, position_table;          /* unit 0; position_table may be MODELI_ABSENT */
    modeli_pair norm1, qkv, proj, norm2, up, down; /* of a block */
    uint64_t q_norm, k_norm; /* [D] each; MODELI_ABSENT where heads have no norms */
    modeli_pair norm_final;  /* of the head's unit */
    /* 0 or 1: indices into stage.units */
    uint32_t norm_unit;       /* of a block's norms, those of heads too */
    uint32_t norm_final_unit; /* of the final norm */
    uint32_t output_unit;     /* of the output matrix */
    uint64_t output_matrix;   /* [V,C] within that unit */
};
typedef struct modeli_shape modeli_shape;

/* `saved` of a block: offsets in bytes, each a multiple of MODELI_ALIGN_BYTES.
 *
 *   mean1, rstd1   [N] fp32          statistics of the first norm (mean: LayerNorm only)
 *   mean2, rstd2   [N] fp32          of the second
 *   lse            [B,H,T] fp32      of attention
 *   normed1        [N,C]             first norm's output;    backward: then its gradient
 *   qkv            [N,P]             projections, q and k turned by rope
 *   qk_rstd        [N,H+G] fp32      of the norms of heads, where there are any
 *   qk_before      [N,(H+G)D]        q and k before these norms: q's heads [N,H D], then k's
 *   attention      [N,A]             attention output
 *   middle         [N,C]             x + projection(attention): input of the second norm
 *   normed2        [N,C]             second norm's output
 *   adapters       [N,rank] each     inner activations of the adapters, scaled (lora.c)
 *   ffn_input      [N,E]             first ffn product;      backward: then its gradient
 *   ffn_output     [N,F]             its activation;         backward: then its gradient
 *
 * Once the ffn's backward is done the space from ffn_input on is free; attention's backward puts
 * qkv_grad [N,P] and attention_grad [N,A] there, so the backward needs no further activations.
 *
 * Of a block in parts the same, and for what its passes leave for each other:
 *   projected      [N,C]             attention's projection, before the second norm: the place of
 *                                    ffn_input, which begins after it
 *   input_sum      [N,max(F,C,A)] fp32 backward: gradient of a layer's input, summed over its parts
 *   bias_sums      [max(P,E,C)] fp32 backward: column sums of a layer's output gradient */
struct modeli_block_layout {
    uint64_t mean1, rstd1, mean2, rstd2, lse, normed1, qkv, qk_rstd, qk_before, attention;
    uint64_t middle, normed2;
    uint64_t ffn_input, ffn_output, qkv_grad, attention_grad;
    uint64_t adapters[MODEL_LORA_TARGETS_MAX];
    uint64_t projected, input_sum, bias_sums; /* 0 where the block is whole */
    uint64_t total_bytes;
};
typedef struct modeli_block_layout modeli_block_layout;

/* The head. saved: mean, rstd [N] fp32, normed [N,C]; of a head in parts also the statistics of the
 * softmax, [N] fp32 each, and the gradient of normed, [N,C] fp32, summed over the parts. In parts
 * model_logits keeps its row at the beginning of mean, rstd and normed. */
struct modeli_head_layout {
    uint64_t mean, rstd, normed;
    uint64_t largest, sum, target_logit, normed_grad; /* in parts; else 0 */
    uint64_t saved_total_bytes;
};
typedef struct modeli_head_layout modeli_head_layout;

/* temp of the head, for a chunk of logits of `columns` columns: logits [chunk,columns] fp32, then
 * in the backward their gradient [chunk,columns] (at the same place where the type is fp32), then
 * the scratch of the library. model_logits of a whole head lays its one row in temp: mean, rstd,
 * normed [C], scratch. */
struct modeli_chunk_layout {
    uint64_t logits, logits_grad, forward_scratch, backward_scratch;
    uint64_t row_mean, row_rstd, row_normed;
};
typedef struct modeli_chunk_layout modeli_chunk_layout;

enum modeli_product {
    MODELI_QKV,       /* [N,P] = normed1 Wqkv^T + b */
    MODELI_PROJ,      /* [N,C] = attention [N,A] Wproj^T + b */
    MODELI_UP,        /* [N,E] = normed2 Wup^T + b */
    MODELI_DOWN,      /* [N,C] = ffn_output Wdown^T + b */
    MODELI_QKV_INPUT, /* gradient of the input: [N,C] = dY Wqkv */
    MODELI_PROJ_INPUT,
    MODELI_UP_INPUT,
    MODELI_DOWN_INPUT,
    MODELI_QKV_WEIGHT, /* gradient of the weight: [P,C] += dY^T X */
    MODELI_PROJ_WEIGHT,
    MODELI_UP_WEIGHT,
    MODELI_DOWN_WEIGHT,
    MODELI_QKV_FIRST, /* the same where the gradient is fresh: [P,C] = dY^T X */
    MODELI_PROJ_FIRST,
    MODELI_UP_FIRST,
    MODELI_DOWN_FIRST,
    MODELI_LOGITS, /* [chunk,V] fp32 = normed Wout^T */
    MODELI_LOGITS_INPUT,
    MODELI_LOGITS_WEIGHT,
    MODELI_LOGITS_FIRST, /* the chunk that begins a fresh gradient of the weight */
    MODELI_LAST_LOGITS,  /* the same for the last, shorter chunk; absent where there is none */
    MODELI_LAST_LOGITS_INPUT,
    MODELI_LAST_LOGITS_WEIGHT,
    MODELI_ROW_LOGITS, /* one row, for model_logits */
    MODELI_PRODUCT_COUNT
};

/* The layers by whose rows a unit is cut. */
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

/* The products of one part. */
struct modeli_part_products {
    kernel_matmul *forward; /* its columns of the layer's output */
    kernel_matmul
        *input; /* gradient of the layer's input in fp32: written by the layer's last part,
                               which runs first in the backward, added to by the others */
    kernel_matmul *weight; /* gradient of its rows of the weight, added to what is there */
    kernel_matmul *first;  /* the same, written; NULL where another chunk always comes before */
};
typedef struct modeli_part_products modeli_part_products;

/* One part of a cut unit: rows [row_begin, row_begin + rows) of one layer. All blocks have the same
 * parts, with the same offsets. */
struct modeli_part {
    enum modeli_layer layer;
    bool is_first, is_last; /* of its layer, in the order of rows */
    uint64_t row_begin, rows;
    uint32_t unit; /* of a block: counted from the block's first unit */
    modeli_pair norm,
        weights;             /* within the part's unit. norm: first parts of qkv and up, and NORM */
    uint64_t q_norm, k_norm; /* the same: the last part of qkv, where heads have norms */
    /* of rows; OUTPUT: of a chunk, and of the last, shorter one */
    modeli_part_products products[2];
    kernel_matmul *row_logits; /* OUTPUT: one row, for model_logits */
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

/* Where the tensors of a unit lie in the model that is not cut; initial weights depend on it. */
struct modeli_origin {
    uint32_t unit;
    uint32_t tensors[MODELI_TENSORS_MAX]; /* index within that unit */
};
typedef struct modeli_origin modeli_origin;

enum modeli_lora_product {
    MODELI_LORA_A,        /* [N,rank] = x A^T */
    MODELI_LORA_B,        /* [N,out] = u B^T */
    MODELI_LORA_A_INPUT,  /* [N,in] = du A */
    MODELI_LORA_B_INPUT,  /* [N,rank] = dy B */
    MODELI_LORA_A_WEIGHT, /* [rank,in] += du^T x */
    MODELI_LORA_B_WEIGHT, /* [out,rank] += dy^T u */
    MODELI_LORA_A_FIRST,  /* both where the gradient is fresh: written */
    MODELI_LORA_B_FIRST,
    MODELI_LORA_PRODUCTS
};

/* An adapter, the same in every block. */
struct modeli_adapter {
    enum modeli_layer layer;
    uint64_t in, out;
    uint64_t column; /* the first of its `out` columns of the layer's output */
    uint64_t a, b;   /* offsets in the second unit: [rank,in], [out,rank] */
    kernel_matmul *matmul[MODELI_LORA_PRODUCTS]; /* after model_prepare */
};
typedef struct modeli_adapter modeli_adapter;

/* model.products: shape, parts and origins from model_create; products and attention from
 * model_prepare. */
struct model_products {
    modeli_shape shape;
    bool splits_block, splits_head; /* a second unit in every block, in the head (learn.c) */
    modeli_parts embed, block, head;
    modeli_adapter adapters[MODEL_LORA_TARGETS_MAX];
    uint32_t adapter_count;
    modeli_origin *origins;                      /* [unit_count] */
    kernel_matmul *matmul[MODELI_PRODUCT_COUNT]; /* NULL where absent or not prepared */
    kernel_attention *attention;
    matmul_desc *part_descs;      /* [part_matmul_count]: the parts' products, one per shape */
    kernel_matmul **part_matmuls; /* the same */
    uint32_t part_matmul_count;
    uint64_t embed_backward_scratch_bytes;
    uint64_t block_forward_scratch_bytes, block_backward_scratch_bytes;
    uint64_t head_forward_scratch_bytes, head_backward_scratch_bytes;
};

/* Lists tensors into one unit. add returns the offset of the tensor; `with_previous` puts it right
 * behind the tensor before, whatever the alignment, so that both are rows of one matrix. */
struct modeli_lister {
    model_unit *unit;
    uint64_t end_elems;
    uint64_t layer;
};
typedef struct modeli_lister modeli_lister;

struct modeli_row {
    const char *name; /* may hold one %llu for the layer */
    uint64_t rows, columns;
    enum tensor_init init;
    bool with_previous;
};
typedef struct modeli_row modeli_row;

uint64_t modeli_add(modeli_lister *list, const modeli_row *row);
/* Appends a tensor; its name and what it begins with are left to fill. */
model_tensor *modeli_append(modeli_lister *list, uint64_t rows, uint64_t columns,
                            bool with_previous);

/* The families: each lists the tensors of the three kinds of unit and notes their offsets. */
struct modeli_family {
    const char *name;
    void (*embed)(const model_spec *spec, modeli_lister *list, modeli_shape *shape);
    void (*block)(const model_spec *spec, modeli_lister *list, modeli_shape *shape);
    void (*head)(const model_spec *spec, modeli_lister *list, modeli_shape *shape);
};
typedef struct modeli_family modeli_family;

extern const modeli_family modeli_gpt2, modeli_llama;

/* The units of a model that is not cut, of each kind one. */
struct modeli_whole {
    model_unit embed, block, head; /* block: of one layer */
    model_tensor tensors[3][MODELI_TENSORS_MAX];
};
typedef struct modeli_whole modeli_whole;

/* A unit that begins, without tensors. */
int modeli_open_unit(model *self, uint32_t unit_idx, uint32_t whole_unit,
                     modeli_lister *list) MUST_CHECK;
/* units.c: the families' tensors of one layer, and the list of all units and origins. */
void modeli_list_whole(model *self, uint64_t layer, modeli_whole *whole);
int modeli_list_units(model *self) MUST_CHECK;                 /* after modeli_cut */
uint32_t modeli_stage_unit(const model *self, uint32_t stage); /* the first unit of a stage */

/* What a stage's backward makes: modeli_work_of. */
struct modeli_work {
    bool weights; /* gradients of the own unit's matrices, of the output matrix, of the tables */
    bool norms;   /* of the stage's norms */
    bool input;   /* of the stage's input, for the stage before */
    bool inner;   /* of what the first norm gives: input or norms */
};
typedef struct modeli_work modeli_work;

/* learn.c */
/* Checks spec.learn and spec.lora of a checked spec and brings them to one form for equal
 * selections. */
int modeli_check_learn(model_spec *spec) MUST_CHECK;
void modeli_choose_split(model *self);                /* before modeli_cut */
int modeli_check_split(const model *self) MUST_CHECK; /* after it */
/* A stage's unit of all tensors in two: the base, and behind it the second unit. */
int modeli_list_split(model *self, uint32_t stage, const model_unit *source,
                      const char *name) MUST_CHECK;
/* After all units are listed: the shape's offsets in split units, and which units learn. */
void modeli_note_split(model *self, const modeli_whole *whole);
void modeli_note_learning(model *self);
modeli_work modeli_work_of(const model *self, uint32_t stage);

/* lora.c */
uint64_t modeli_rank_stride(const model *self);      /* elements */
uint64_t modeli_lora_saved_bytes(const model *self); /* of one adapter's inner activations */
/* temp of a block's pass whose library's scratch is given. */
uint64_t modeli_lora_temp_bytes(const model *self, uint64_t scratch_bytes);
void modeli_lora_descs(const model *self, const modeli_adapter *adapter,
                       matmul_desc descs[MODELI_LORA_PRODUCTS]);
int modeli_make_lora(model *self) MUST_CHECK;
void modeli_release_lora(model *self);
/* Adds a block's adapters to the flops and DRAM bytes that shapes.c has found for the stage. */
void modeli_size_lora(const model *self, const modeli_work *work, model_stage *stage);
void modeli_lora_scratch(const model *self, uint64_t *forward, uint64_t *backward);

/* parts.c: decides which kinds of unit are cut and fills products.embed, block, head but for
 * offsets. ERR_CONFIG where a row does not fit into model.max_part_bytes. */
int modeli_cut(model *self, const modeli_whole *whole) MUST_CHECK;
const char *modeli_layer_name(enum modeli_layer layer);
modeli_pair modeli_layer_whole(const modeli_shape *shape, enum modeli_layer layer);
/* [rows, columns] of a layer's matrix; NORM has no rows. */
uint64_t modeli_layer_rows(const model *self, enum modeli_layer layer);
uint64_t modeli_layer_columns(const model *self, enum modeli_layer layer);

/* The parts of a stage: NULL where it is not cut. */
const modeli_parts *modeli_parts_of(const model *self, uint32_t stage);

/* Positions that a call may have tokens at: rows of the rotary tables. */
static inline uint64_t modeli_positions(const model *self)
{
    return self->cache_positions ? self->cache_positions : self->tokens;
}

/* Of attention's scores. */
static inline float modeli_score_scale(const model *self)
{
    return (float)(1.0 / sqrt((double)self->products->shape.head_dim));
}

/* Tokens of each sequence of a call that are none of the padding. */
static inline uint64_t modeli_call_tokens(const model *self, const model_call *call)
{
    return self->cache_positions ? call->count : self->tokens;
}

/* shapes.c: pure functions of the model. */
/* Elements from row to row of a chunk of logits: rows begin on multiples of 16 bytes in every
 * type, which products on a GPU ask for, and odd vocabularies such as GPT-2's do not give by
 * themselves. */
static inline uint64_t modeli_logits_stride(uint64_t columns)
{
    return size_round_up(columns, 8);
}

void modeli_block_layout_of(const model *self, modeli_block_layout *layout);
void modeli_head_layout_of(const model *self, modeli_head_layout *layout);
void modeli_chunk_layout_of(const model *self, uint64_t columns, modeli_chunk_layout *layout);
/* Where in the temp of an uncut backward whose input_grad nobody wants its place [N,C] is. */
uint64_t modeli_unwanted_grad(const model *self, enum stage_kind kind);
void modeli_size_stages(model *self); /* bytes and flops of all stages, from the known scratch */

/* Sets the rows of a logits chunk, for tests of the chunk boundary. Before model_prepare. */
void modeli_set_chunk_rows(model *self, uint64_t rows);

/* passes.c: the lists of passes of all stages, and what is in them. */
int modeli_create_passes(model *self) MUST_CHECK;
void modeli_size_passes(
    model *self); /* after the stages' bytes and flops; sums those of cut stages */
void modeli_destroy_passes(model *self);
/* The part that a pass of a cut stage is about, and whether the pass makes gradients: all of a
 * backward do but the head's first half. */
const modeli_part *modeli_pass_part(const model *self, enum phase phase, uint32_t stage,
                                    uint32_t pass, bool *backward);

/* products.c, part_products.c. The forward's has no bias; the caller asks for it. */
matmul_desc modeli_forward_desc(const model *self, uint64_t rows, uint64_t in, uint64_t out);
matmul_desc modeli_input_desc(const model *self, uint64_t rows, uint64_t in, uint64_t out);
/* Adds to what is there; with `accumulate` false it begins a fresh gradient. */
matmul_desc modeli_weight_desc(const model *self, uint64_t rows, uint64_t in, uint64_t out);
int modeli_make_part_products(model *self) MUST_CHECK;
void modeli_release_part_products(model *self);
void modeli_release_products(model *self);

/* fresh.c: zeros in the fresh accumulators of a call of a backward pass, but for the matrices,
 * which the products of the pass write. And how many bytes that is of the pass's unit i. */
int modeli_begin_grads(model *self, uint32_t stage, uint32_t pass, void *stream,
                       const model_call *call) MUST_CHECK;
uint64_t modeli_zeroed_bytes(const model *self, uint32_t stage, uint32_t pass, uint32_t i);

/* block.c, head.c: whole stages. */
/* What every call of the embedding has in common, for a whole table or a part: the tables are
 * absent. */
embedding_args modeli_embedding(const model *self, const model_call *call);
embedding_grad_args modeli_embedding_grad(const model *self, const model_call *call);
int modeli_embed_forward(model *self, void *stream, const model_call *call) MUST_CHECK;
int modeli_embed_backward(model *self, void *stream, const model_call *call) MUST_CHECK;
int modeli_block_forward(model *self, void *stream, const model_call *call) MUST_CHECK;
int modeli_block_backward(model *self, void *stream, const model_call *call,
                          bool saved_is_valid) MUST_CHECK;
int modeli_head_forward(model *self, void *stream, const model_call *call) MUST_CHECK;
int modeli_head_backward(model *self, void *stream, const model_call *call) MUST_CHECK;
int modeli_row_logits(model *self, void *stream, const model_call *call, uint64_t row,
                      float *logits) MUST_CHECK;

/* The final norm of `rows` rows, and its gradient in place on `grad` [N,C]. */
int modeli_final_norm(model *self, void *stream, const model_call *call, uint64_t rows,
                      const void *input, void *output, float *mean, float *rstd) MUST_CHECK;
int modeli_final_norm_grad(model *self, void *stream, const model_call *call, void *grad,
                           const float *mean, const float *rstd, void *scratch) MUST_CHECK;

/* block_parts.c, head_parts.c: one pass of a stage in parts. */
int modeli_embed_part(model *self, void *stream, const model_call *call, const modeli_part *part,
                      bool backward) MUST_CHECK;
int modeli_block_part(model *self, void *stream, const model_call *call, const modeli_part *part,
                      bool backward) MUST_CHECK;
int modeli_head_part(model *self, void *stream, const model_call *call, const modeli_part *part,
                     bool backward) MUST_CHECK;
int modeli_row_logits_part(model *self, void *stream, const model_call *call,
                           const modeli_part *part, uint64_t row, float *logits) MUST_CHECK;

/* Offset of the first row that a call needs of the position table at `table`, which may be
 * absent. */
static inline uint64_t modeli_position_row(const model *self, const model_call *call,
                                           uint64_t table)
{
    bool moves = self->cache_positions > 0 && table != MODELI_ABSENT;
    return moves ? table + call->position * self->spec.hidden_size : table;
}

/* Whether a layer has a bias; layers of the ends have none. */
static inline bool modeli_has_bias(const model *self, enum modeli_layer layer)
{
    return modeli_layer_whole(&self->products->shape, layer).bias != MODELI_ABSENT;
}

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

/* The same of an accumulator, NULL where it is. */
static inline float *modeli_grad(float *grads, uint64_t offset_elems)
{
    return grads == NULL || offset_elems == MODELI_ABSENT ? NULL : grads + offset_elems;
}

static inline void *modeli_at(void *base, uint64_t offset_bytes)
{
    return (char *)base + offset_bytes;
}

#endif
