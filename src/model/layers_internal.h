/* Layers: the rows of a family, the kinds of layers, and the lists that a model makes of them.
 *
 * HOW A BLOCK IS DESCRIBED. A block is a straight list of layers over named values, and a family
 * (families.c) is a table of such rows. Llama's, with C columns of the residual stream, A = H D, P
 * = (H + 2G) D, F of the ffn:
 *
 *   row        kind         reads   writes      columns   its backward needs
 *   norm1      NORM         x       a           C         x, statistics
 *   qkv        LINEAR       a       qkv         P         a
 *   heads      HEAD_NORM    qkv     qkv         P         q and k before it, statistics
 *   rope       ROPE         qkv     qkv         P         -
 *   attend     ATTENTION    qkv     o           A         qkv, o, statistics
 *   proj       LINEAR       o       p           C         o
 *   add1       ADD          x p     m           C         -
 *   norm2      NORM         m       b           C         m, statistics
 *   up         LINEAR       b       f           2F        b
 *   gate       GATE         f       g           F         f
 *   down       LINEAR       g       d           C         g
 *   add2       ADD          m d     y           C         -
 *
 * x is the block's input and y its output. Everything else follows from the rows, alike for every
 * family:
 *
 *   rows.c        the layers of a model: widths, offsets of tensors, and which layers share a part
 *   places.c      where each value and each gradient lies, and what a backward recomputes
 *   block.c       runs a pass: the layers forwards, or backwards
 *   layer_*.c     one kind of layer each (struct modeli_kind): arithmetic, scratch and costs
 *   parts.c       cuts units that are too large
 *   units.c, learn.c, fresh.c, lora.c, passes.c, costs.c    lists and sums over the layers
 *
 * The block of a mixture of experts ends after add1, and its second stage has these rows (E
 * experts of F features; modeli_family.experts):
 *
 *   norm2      NORM         x        b         C         x, statistics
 *   router     ROUTER       b        w         (bytes)   b, w
 *   experts    EXPERTS      b w      d         C         b, w
 *   add2       ADD          x d      y         C         -
 *
 * The first spec.dense_blocks blocks of a mixture have a feed-forward part in place of experts, in
 * a second stage with the rows of modeli_family.dense.
 *
 * A family may have one block of another kind after all others (modeli_family.last).
 *
 * Embedding and head are lists of layers too, with the same tensors, parts and costs; but embed.c
 * and head.c run them, because the head works by chunks of rows.
 *
 * Vocabulary:
 *   whole unit   a unit of the model that is neither cut nor split, as the rows list it
 *   part         rows of one layer's matrix in a whole unit that is too large; a unit of its own
 *   owner        the layer with a matrix in whose parts a layer without one runs (rows.c)
 *   split unit   a whole unit in two: its tensors do not learn alike (learn.c)
 *   origin       the place of a unit's tensors in the whole unit; initial weights depend on it
 *   fresh        a gradient accumulator that holds nothing yet (fresh.c)
 *   turn         forward, recomputation or backward; the backward pass of a block that is not cut
 *                begins with the turn recomputation (not with KEPT_ALL), then has its own */
#ifndef SLUICE_MODEL_LAYERS_INTERNAL_H
#define SLUICE_MODEL_LAYERS_INTERNAL_H

#include "base/size.h"
#include "model/costs.h"
#include "model/model.h"

enum {
    MODELI_ALIGN_BYTES = 256, /* alignment of every piece of `saved` and `temp` */
    MODELI_OPT_SKIPS = 2,     /* rows of OPT's table of positions before that of position 0 */
    MODELI_TENSORS_MAX = 24,  /* of one unit, or of one group of its experts */
    MODELI_GROUPED_MAX = 64,  /* of a unit of experts in groups */
    MODELI_LAYERS_MAX = 20,   /* of one list */
    MODELI_VALUES_MAX = 24,   /* of one list */
    MODELI_ROW_TENSORS_MAX = 3,
    MODELI_READS_MAX = 3,
    MODELI_GROUP_MAX = 8, /* layers of one owner, itself included */
    MODELI_KEPT_MAX = 2,
    MODELI_SIZES_MAX = 5, /* blocks of rows of experts (layer_experts.c) */
    /* elements: rows of an adapter's inner activations begin on multiples of 16 bytes */
    MODELI_RANK_STEP = 8,
    MODELI_LAYER_ADAPTERS_MAX = 3, /* adapters of one product: q, k, v */
    MODELI_LIST_ADAPTERS_MAX = 7,  /* of linear layers of one list: all of Llama's */
    /* Origins number the adapters' tensors from here on, for initial weights. */
    MODELI_ADAPTER_ORIGIN = 64,
};

/* Sites of dropouts (kernels/dropout_mask.h), which number the masks of a model:
 *
 *   0                     rows of the embedding
 *   64 (i + 1)            attention's probabilities in block i
 *   64 (i + 1) + 1 + k    DROPOUT row number k of block i, from 0 on
 *   64 (i + 1) + 32 + t   what the adapter of target t reads in block i */
enum { MODELI_BLOCK_SITES = 64, MODELI_ROW_SITE = 1, MODELI_ADAPTER_SITE = 32 };

enum { MODELI_NO_VALUE, MODELI_X };

#define MODELI_ABSENT UINT64_MAX /* the offset of a tensor that a layer does not have */

typedef struct modeli_kind modeli_kind;
typedef struct modeli_layer modeli_layer;
typedef struct modeli_part modeli_part;
typedef struct modeli_list modeli_list;
typedef struct modeli_run modeli_run;
typedef struct modeli_work modeli_work;
typedef struct modeli_costing modeli_costing;

/* ---- rows of a family's table: families.c ---- */

/* Numbers that a spec gives. */
enum modeli_width {
    MODELI_HIDDEN,    /* C */
    MODELI_QUERIES,   /* H D */
    MODELI_KEYS,      /* G D */
    MODELI_OUTPUTS,   /* H E: attention's output; E is the size of a head of v */
    MODELI_HEADS,     /* H */
    MODELI_Q_LATENT,  /* the latents of latent attention: of q; of k and v; */
    MODELI_KV_LATENT, /* with the rotary part of k that all heads have */
    MODELI_KV_LATENT_ROPE,
    MODELI_KEYS_VALUES,      /* H (D - R + E): of each head k's other part, and v */
    MODELI_QKV,              /* (H + 2G) D */
    MODELI_HEAD,             /* D */
    MODELI_FFN,              /* F */
    MODELI_GATE_UP,          /* 2F */
    MODELI_VOCAB,            /* V */
    MODELI_POSITIONS,        /* rows of the table of positions */
    MODELI_TYPES,            /* rows of the table of token types */
    MODELI_POSITIONS_OF_OPT, /* MODELI_OPT_SKIPS more, before position 0; nothing uses them */
    MODELI_EXPERTS,          /* E: rows of a router */
    MODELI_EXPERTS_UP,       /* E 2F': gate and up of each routed expert; F' is its width */
    MODELI_EXPERTS_DOWN,     /* E C */
    MODELI_ONE,              /* 1: the router of a shared expert behind a gate */
    MODELI_SHARED,           /* F of the shared expert */
};

/* Says in which models a row is there, or has biases. UNSET: it is there, without biases. */
enum modeli_when {
    MODELI_UNSET,
    MODELI_ALWAYS,
    MODELI_IF_QKV_BIAS,
    MODELI_IF_OUT_BIAS,
    MODELI_IF_MLP_BIAS,
    MODELI_IF_QK_NORM,
    MODELI_IF_SINKS, /* spec.attention_sinks */
    MODELI_UNLESS_SINKS,
    MODELI_IF_Q_LATENT, /* spec.q_latent_size */
    MODELI_UNLESS_Q_LATENT,
    MODELI_IF_SCALED,  /* spec.residual_multiplier */
    MODELI_IF_DROPOUT, /* spec.hidden_dropout */
    MODELI_IF_TIED,    /* spec.tie_embeddings */
    MODELI_IF_UNTIED,
    MODELI_IF_PARALLEL,
    MODELI_UNLESS_PARALLEL,
    MODELI_IF_SIGMOID, /* spec.sigmoid_scores */
    MODELI_UNLESS_SIGMOID
};

/* "<name>.weight" in Hugging Face's files; a %llu in it is the block's index. A vector [width], or
 * a matrix of `width` rows and as many columns as the layer reads. Several matrices of one row lie
 * one after the other without padding: for the layer they are one matrix. The last one of EXPERTS
 * is `down`, which is apart. Matrices of all routed experts together are named "<name>", as
 * transformers names them, and their biases "<name>_bias"; those of expert 1 follow those of expert
 * 0. The sinks of ATTENTION and the vector of a CORRECTION are named "<name>", too. */
struct modeli_weight {
    const char *name;
    enum modeli_width width;
};
typedef struct modeli_weight modeli_weight;

struct modeli_row {
    const modeli_kind *kind; /* NULL ends a table */
    const char *name;        /* names a part's unit, such as "block.0.qkv.1" */
    const char *reads;       /* names of one to three values, "x p" */
    const char *if_parallel; /* the values that it reads instead if spec.parallel_residual */
    const char *writes;
    modeli_weight weights[MODELI_ROW_TENSORS_MAX];
    enum modeli_when has_bias; /* "<name>.bias" for each weight */
    enum modeli_when is_there;
    const char *bias_name; /* in place of the weight's name */
    /* The name of its weights in block 0. In other blocks %llu is the index of the block before. */
    const char *first_name;
    bool is_residual; /* the last of a branch: its initial weights have std / sqrt(2L) */
    bool by_heads;    /* HEAD_NORM: layer_head_norm.c */
    bool is_shared;   /* ROUTER, EXPERTS: of the shared expert, which every token has */
    float epsilon;    /* NORM: instead of the spec's */
    bool only_first;  /* DROPOUT: of block 0 alone */
};
typedef struct modeli_row modeli_row;

struct modeli_family {
    const modeli_row *embed, *block, *head;
    const modeli_row *last; /* one more block, between the others and the head; NULL: none */
    /* A mixture's blocks are two stages: `block` up to the sum after attention, then these; or
     * `dense`, which may be NULL, in the first blocks (spec.dense_blocks). */
    const modeli_row *experts, *dense;
    enum norm_kind norm;             /* of all norms */
    bool adds_one;                   /* their weights are stored less 1 */
    enum activation_kind activation; /* of all gates, unless the spec names another */
    bool interleaved;      /* rotary positions turn neighbours (2i, 2i + 1), not (i, i + R/2) */
    bool is_bidirectional; /* a token also sees the tokens after it */
    bool drops_rows;       /* the rows of the embedding may have a dropout */
    bool has_plain_heads;  /* H heads of hidden_size / H columns, each with a k and v of its own */
};
typedef struct modeli_family modeli_family;

const modeli_family *modeli_family_of(enum model_family family);
bool modeli_has_rope(enum model_family family);  /* false: it has a table of positions */
uint64_t modeli_rotated(const model_spec *spec); /* R: the elements of each head that ROPE turns */
/* True if the embedding has a table of that many rows. */
bool modeli_has_table(enum model_family family, enum modeli_width rows);
/* True if the block has latent attention. */
bool modeli_has_latents(enum model_family family);
/* True if a row of a block asks for this option. */
bool modeli_has_option(enum model_family family, enum modeli_when option);
/* True if the spec fulfils the condition. */
bool modeli_is_there(const model_spec *spec, enum modeli_when when);

/* ---- layers: rows of one model ---- */

/* Offsets in elements of a layer's parameters within its unit; MODELI_ABSENT where it has none.
 * second: the weight of k's heads (HEAD_NORM), the matrices of `down` (EXPERTS) with second_bias,
 * their biases. */
struct modeli_params {
    uint64_t weight, second, bias, second_bias;
};
typedef struct modeli_params modeli_params;

static const modeli_params modeli_no_params = {MODELI_ABSENT, MODELI_ABSENT, MODELI_ABSENT,
                                               MODELI_ABSENT};

/* Where a value or a gradient lies. */
enum modeli_buffer {
    MODELI_NOWHERE, /* there is no such value */
    MODELI_SAVED,   /* call.saved and call.saved_rest, at offset_bytes of both */
    MODELI_INPUT,
    MODELI_OUTPUT,
    MODELI_OUTPUT_GRAD,
    MODELI_GRAD,    /* run.grad: call.input_grad, or a buffer of its size in temp */
    MODELI_SCRATCH, /* call.output in a forward, run.grad in a recomputation */
};

struct modeli_spot {
    enum modeli_buffer buffer;
    uint64_t offset_bytes;
};
typedef struct modeli_spot modeli_spot;

enum modeli_turn { MODELI_TURN_FORWARD, MODELI_TURN_RECOMPUTE, MODELI_TURN_BACKWARD };

enum modeli_product {
    MODELI_FORWARD,    /* Y = X W^T + b; W is stored [out,in] */
    MODELI_INPUT_GRAD, /* dX = dY W */
    MODELI_WEIGHT,     /* dW += dY^T X, in fp32 */
    MODELI_FIRST,      /* dW = dY^T X: begins a fresh gradient */
    MODELI_PRODUCTS
};

/* A matrix at work: Y [rows,out] from X [rows,in]. */
struct modeli_matrix {
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
typedef struct modeli_matrix modeli_matrix;

/* A named value between layers. */
struct modeli_value {
    const char *name; /* of name_bytes; not ended by 0 */
    size_t name_bytes;
    uint64_t columns;
    modeli_spot at;
};
typedef struct modeli_value modeli_value;

struct modeli_layer {
    const model *net; /* whose layer it is */
    const modeli_row *row;
    const modeli_kind *kind;
    uint64_t in, out;     /* columns of what it reads and writes */
    uint64_t matrix_rows; /* 0: it has no matrix. Its columns are `in`. EXPERTS: E, as one row has
                           * all parameters of an expert. Constants: 1, so that they own a part */
    modeli_params at;     /* in the whole or split unit; all blocks have the same offsets */
    uint32_t unit;        /* 0 or 1: index into stage.units; that of the bias is bias_unit */
    uint32_t bias_unit;
    uint32_t first_tensor; /* index in the whole unit */
    uint32_t site;         /* DROPOUT: in its block */
    /* By enum kept: whether a backward computes its output again, where so much is kept. */
    bool is_recomputed[KEPT_COUNT];
    bool sum_is_kept; /* NORM with a sum: KEPT_SELECTIVE keeps that sum */
    /* Only of owners: the layers [forward_begin, forward_end) that the first and the last part run
     * before and after the owner in a forward; and those of the backward. */
    uint32_t forward_begin, forward_end, backward_begin, backward_end;
    /* Indices into list.values; MODELI_NO_VALUE. sum: what the ADD in a NORM writes. */
    uint32_t reads[MODELI_READS_MAX], sum, writes;
    modeli_spot output_grad, input_grad;
    modeli_spot input_grads[MODELI_READS_MAX]; /* of MODELI_GRAD_COLUMNS, in place of input_grad */
    /* NORM, LINEAR: the gradient of the input that its other readers gave, to which its own is
     * added; own_grad: where a LINEAR makes that first */
    modeli_spot residual_grad, own_grad;
    modeli_spot kept[MODELI_KEPT_MAX]; /* of kind->kept_bytes */
    modeli_matrix matrix;              /* of a whole block */
};

/* A kind of layer. A function may be NULL only where its comment says it. In a whole unit `part` is
 * NULL. */
struct modeli_kind {
    bool has_matrix;  /* its weights are [width, in], else vectors [width] */
    bool has_experts; /* has_matrix, of rows that are experts (layer_experts.c) */
    bool is_one_part; /* has_matrix, which is never cut by rows */
    bool is_constant; /* a vector that is never learned, a part of its own; kept in fp32 */
    bool has_product; /* a layer without products is cheap to compute again */
    bool is_norm;     /* its weights begin as 1, and are the "norms" of train.only */
    /* Values that its backward reads besides the gradient; `saved` keeps them. */
    bool keeps_input, keeps_output;
    /* Where the gradient of its input goes. */
    enum {
        MODELI_GRAD_OWN,      /* to a place of its own */
        MODELI_GRAD_REPLACES, /* to the place of its input, if nothing needs that any more */
        MODELI_GRAD_IN_PLACE, /* the output's gradient is changed in place */
        MODELI_GRAD_PASSES,   /* it is the output's gradient, for each input */
        MODELI_GRAD_ADDS,     /* it is added to what the input's other readers gave */
        /* each input's gradient has a place of its own. If several such layers read one value,
         * each writes columns of its own. */
        MODELI_GRAD_COLUMNS,
    } gradient;
    uint64_t (*out)(const modeli_layer *layer); /* NULL: out = in */
    /* Bytes of the piece `idx` of `saved` that only this layer uses. May be NULL. */
    uint64_t (*kept_bytes)(const modeli_layer *layer, uint32_t idx);
    int (*forward)(const modeli_run *run, const modeli_layer *layer) MUST_CHECK;
    int (*backward)(const modeli_run *run, const modeli_layer *layer) MUST_CHECK; /* may be NULL */
    /* Makes what model_prepare makes for a whole block. May be NULL. */
    int (*prepare)(model *self, modeli_layer *layer) MUST_CHECK;
    /* The library's scratch in a forward [0] and in a backward [1]. May be NULL. */
    void (*scratch)(const modeli_layer *layer, const modeli_part *part, uint64_t bytes[2]);
    /* Columns of activations that it reads and writes. NULL: those of modeli_columns. */
    uint64_t (*columns)(const modeli_layer *layer, bool backward);
    /* Adds its work to of->costs. NULL: one call of row_kinds[backward] on these columns. */
    void (*costs)(const modeli_layer *layer, const modeli_costing *of);
    enum model_row_kind row_kinds[2];
};

extern const modeli_kind modeli_norm, modeli_linear, modeli_head_norm, modeli_rope,
    modeli_attention, modeli_gate, modeli_add, modeli_scale, modeli_dropout, modeli_router,
    modeli_correction, modeli_experts, modeli_take, modeli_join; /* layer_*.c */
extern const modeli_kind modeli_table, modeli_output; /* embed.c, head.c: output matrix */

/* One part of a cut unit: rows [row_begin, row_begin + rows) of the matrix of one owner. All blocks
 * have the same parts, with the same offsets. */
struct modeli_part {
    uint32_t owner;         /* index of the layer in its list */
    bool is_first, is_last; /* first or last part of its layer, in the order of rows */
    uint64_t row_begin, rows;
    uint32_t unit; /* for a block: counted from the block's first unit */
    /* Not of this part, but of the recompute pass with its number: the part that runs then. */
    uint32_t recomputed;
    /* Offsets within the part's unit, of the layers from the owner's forward_begin on. The layers
     * before the owner have them only in the first part, those after it only in the last. */
    modeli_params at[MODELI_GROUP_MAX];
    uint64_t group_elems; /* EXPERTS of ranks: from group to group; the offsets are of the first */
    /* The part has a second unit of adapters, which has the next number. EXPERTS, by number of the
     * matrix: offsets there of A [experts of a group,rank,in] and B [experts of a group,out,rank]
     * of the first group. */
    bool has_adapters;
    uint64_t adapter_group_elems; /* as group_elems */
    struct {
        uint64_t a, b;
    } adapters[MODELI_ROW_TENSORS_MAX];
    /* [0] over all rows. For the output matrix: [0] over a chunk of rows, [1] over the last,
     * shorter chunk. */
    modeli_matrix products[2];
    modeli_matrix row_logits;  /* output matrix: one row, for model_logits_pass */
    uint64_t scratch_bytes[2]; /* forward, backward */
};

/* An adapter of a linear layer, the same in every block. */
struct modeli_adapter {
    uint32_t layer; /* index in the list */
    uint64_t in, out;
    uint64_t column;            /* its first column of the layer's output; it has `out` columns */
    uint32_t target;            /* model_lora_target */
    uint64_t a, b;              /* offsets in the second unit: [rank,in], [out,rank] */
    modeli_spot inner_at;       /* of its inner activations u [N,rank], in `saved` */
    modeli_matrix inner, outer; /* u = x A^T, y = u B^T; after model_prepare */
};
typedef struct modeli_adapter modeli_adapter;

/* The layers of the embedding, of a block or of the head, and the parts in the order of the
 * forward. part_count 0: the unit is whole. The output parts of a tied head are the embedding's
 * table parts. */
struct modeli_list {
    modeli_layer layers[MODELI_LAYERS_MAX];
    uint32_t layer_count;
    modeli_value values[MODELI_VALUES_MAX]; /* [MODELI_NO_VALUE], the input x, and others */
    uint32_t value_count;
    modeli_part *parts;
    uint32_t part_count;
    uint32_t unit_count; /* experts: of all parts, their adapters' units included */
    bool is_split;       /* each of its stages has a second unit (learn.c) */
    modeli_adapter adapters[MODELI_LIST_ADAPTERS_MAX];
    uint32_t adapter_count;
    uint64_t saved_bytes;          /* of a block; places.c */
    uint64_t selective_bytes;      /* its first bytes, which KEPT_SELECTIVE keeps */
    uint64_t input_sum, bias_sums; /* offsets in `saved` of a block in parts */
    uint64_t scratch_bytes[2];     /* of a whole unit, forward and backward; after model_prepare */
};

static inline uint64_t modeli_rows(const model *self)
{
    return self->micro_batch * self->tokens;
}

/* ---- running a block: block.c ---- */
/* One pass. `part`: NULL for a whole block. */
int modeli_block(model *self, void *stream, const modeli_list *list, const model_call *call,
                 const modeli_part *part, enum phase phase, enum kept kept) MUST_CHECK;

/* A call with everything that its layers need. */
struct modeli_run {
    const model *self;
    void *stream;
    const model_call *call;
    const modeli_list *list;
    const modeli_part *part; /* NULL: the block is whole */
    enum modeli_turn turn;
    enum kept kept; /* recomputation, backward: what `saved` holds at the beginning */
    /* Backward: call->input_grad, or, if nobody wants that, a buffer of the same size in temp. */
    void *grad;
    bool wants_inner; /* as modeli_work.inner, for this call */
};

/* The address of a value or gradient; NULL for MODELI_NOWHERE. */
void *modeli_at_spot(const modeli_run *run, modeli_spot spot);

static inline void *modeli_value_at(const modeli_run *run, uint32_t value)
{
    return modeli_at_spot(run, run->list->values[value].at);
}

/* The first layer of a list that has a matrix. */
static inline const modeli_layer *modeli_first_owner(const modeli_list *list)
{
    const modeli_layer *layer = list->layers;
    while (layer->matrix_rows == 0)
        layer++;
    return layer;
}

static inline void *modeli_at(void *base, uint64_t offset_bytes)
{
    return (char *)base + offset_bytes;
}

/* Address of element `offset_elems` of a vector in the model's type; NULL for MODELI_ABSENT. */
static inline const void *modeli_param(const model *self, const void *params, uint64_t offset_elems)
{
    if (params == NULL || offset_elems == MODELI_ABSENT)
        return NULL;
    return (const char *)params + offset_elems * dtype_bytes(self->type);
}

/* The same for an accumulator; also NULL if `grads` is NULL. */
static inline float *modeli_grad(float *grads, uint64_t offset_elems)
{
    return grads == NULL || offset_elems == MODELI_ABSENT ? NULL : grads + offset_elems;
}

/* The offsets of a layer's parameters in the unit of this pass. */
static inline modeli_params modeli_params_of(const modeli_run *run, const modeli_layer *layer)
{
    if (run->part == NULL)
        return layer->at;
    uint32_t idx = (uint32_t)(layer - run->list->layers);
    return run->part->at[idx - run->list->layers[run->part->owner].forward_begin];
}

static inline const void *modeli_layer_param(const modeli_run *run, const modeli_layer *layer,
                                             uint64_t offset_elems)
{
    return modeli_param(run->self, run->call->params[layer->unit], offset_elems);
}

static inline float *modeli_layer_grad(const modeli_run *run, const modeli_layer *layer,
                                       uint64_t offset_elems)
{
    return modeli_grad(run->call->grads[layer->unit], offset_elems);
}

/* One product of a matrix, with the pass's scratch: products.c. bias: of a forward, or NULL. */
int modeli_multiply(const modeli_run *run, const modeli_matrix *by, enum modeli_product which,
                    const void *a, const void *b, const void *bias, void *c) MUST_CHECK;

/* target = factor * source, [rows,C]: layer_scale.c. */
int modeli_scale_rows(const model *self, void *stream, uint64_t rows, float factor,
                      const void *source, void *target) MUST_CHECK;
/* target = factor * source, or += if `accumulates`; [rows,columns] of rows that may be longer. */
int modeli_scale_columns(const model *self, void *stream, uint64_t rows, uint64_t columns,
                         float factor, bool accumulates, const void *source, uint64_t source_stride,
                         void *target, uint64_t target_stride) MUST_CHECK;

/* The arguments of a norm that do not depend on where its values lie: layer_norm.c. */
norm_args modeli_norm_args(const modeli_layer *layer, const model_call *call, modeli_params params);
norm_grad_args modeli_norm_grad_args(const modeli_layer *layer, const model_call *call,
                                     modeli_params params);

#endif
