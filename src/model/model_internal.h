/* What the files of the model module share.
 *
 *   model.c    create, destroy, checks, initial weights, FLOPs of a step
 *   gpt2.c     the tensors of the GPT-2 family        llama.c   those of the Llama family
 *   shapes.c   layouts of `saved` and `temp`, bytes and flops of the stages
 *   products.c model_prepare: matrix products, attention, scratch sizes
 *   passes.c   the passes of the stages               run.c     dispatch over stages and passes
 *   block.c    forward and backward of a block        head.c    embedding, head, logits
 *
 * Both families are the same block of two residual branches; what differs is said by modeli_shape.
 * Names that begin with modeli_ are shared by these files and by the tests of the module only. */
#ifndef SLUICE_MODEL_MODEL_INTERNAL_H
#define SLUICE_MODEL_MODEL_INTERNAL_H

#include "model/model.h"

enum { MODELI_ALIGN_BYTES = 256 }; /* of every part of `saved` and `temp` */

#define MODELI_ABSENT UINT64_MAX /* the offset of a tensor that the family does not have */

/* One linear layer or norm: offsets in elements within the unit's flat vector. */
struct modeli_pair {
    uint64_t weight, bias; /* bias may be MODELI_ABSENT */
};
typedef struct modeli_pair modeli_pair;

/* What a family is, and where its parameters lie. Filled while units are listed; all blocks have the
 * same offsets. Names of dimensions: N rows, C hidden, P = (H + 2G) D, E rows of the ffn's first
 * product (F, or 2F for SwiGLU). */
struct modeli_shape {
    enum norm_kind norm;
    enum activation_kind activation;
    bool has_rope;
    uint64_t rows;                                 /* N = B * T */
    uint64_t head_dim;                             /* D */
    uint64_t qkv_columns;                          /* P */
    uint64_t ffn_columns;                          /* E */
    uint64_t token_table, position_table;          /* unit 0; position_table may be MODELI_ABSENT */
    modeli_pair norm1, qkv, proj, norm2, up, down; /* of a block */
    modeli_pair norm_final;                        /* of the head's unit */
    uint32_t output_unit;   /* 0 or 1: index into stage.units of the output matrix */
    uint64_t output_matrix; /* [V,C] within that unit */
};
typedef struct modeli_shape modeli_shape;

/* `saved` of a block: offsets in bytes, each a multiple of MODELI_ALIGN_BYTES.
 *
 *   mean1, rstd1   [N] fp32          statistics of the first norm (mean: LayerNorm only)
 *   mean2, rstd2   [N] fp32          of the second
 *   lse            [B,H,T] fp32      of attention
 *   normed1        [N,C]             first norm's output;    backward: then its gradient
 *   qkv            [N,P]             projections, q and k turned by rope
 *   attention      [N,C]             attention output (H * D = C)
 *   middle         [N,C]             x + projection(attention): input of the second norm
 *   normed2        [N,C]             second norm's output
 *   ffn_input      [N,E]             first ffn product;      backward: then its gradient
 *   ffn_output     [N,F]             its activation;         backward: then its gradient
 *
 * Once the ffn's backward is done the space from ffn_input on is free; attention's backward puts
 * qkv_grad [N,P] and attention_grad [N,C] there, so the backward needs no further activations. */
struct modeli_block_layout {
    uint64_t mean1, rstd1, mean2, rstd2, lse, normed1, qkv, attention, middle, normed2;
    uint64_t ffn_input, ffn_output, qkv_grad, attention_grad;
    uint64_t total_bytes;
};
typedef struct modeli_block_layout modeli_block_layout;

/* The head. saved: mean, rstd [N] fp32, normed [N,C]. temp: logits [chunk,V] fp32, then in the
 * backward their gradient [chunk,V] (at the same place where the type is fp32), then the scratch of
 * the library. model_logits lays its one row in temp: mean, rstd, normed [C], scratch. */
struct modeli_head_layout {
    uint64_t mean, rstd, normed, saved_total_bytes;
    uint64_t logits, logits_grad, forward_scratch, backward_scratch;
    uint64_t row_mean, row_rstd, row_normed;
};
typedef struct modeli_head_layout modeli_head_layout;

enum modeli_product {
    MODELI_QKV,       /* [N,P] = normed1 Wqkv^T + b */
    MODELI_PROJ,      /* [N,C] = attention Wproj^T + b */
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
    MODELI_LOGITS, /* [chunk,V] fp32 = normed Wout^T */
    MODELI_LOGITS_INPUT,
    MODELI_LOGITS_WEIGHT,
    MODELI_LAST_LOGITS, /* the same for the last, shorter chunk; absent where there is none */
    MODELI_LAST_LOGITS_INPUT,
    MODELI_LAST_LOGITS_WEIGHT,
    MODELI_ROW_LOGITS, /* one row, for model_logits */
    MODELI_PRODUCT_COUNT
};

/* model.products: the shape from model_create; products and attention from model_prepare. */
struct model_products {
    modeli_shape shape;
    kernel_matmul *matmul[MODELI_PRODUCT_COUNT]; /* NULL where absent or not prepared */
    kernel_attention *attention;
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

enum { MODELI_TENSORS_MAX = 12 }; /* of one unit */

/* The families: each lists the tensors of the three kinds of unit and notes their offsets. */
struct modeli_family {
    const char *name;
    void (*embed)(const model_spec *spec, modeli_lister *list, modeli_shape *shape);
    void (*block)(const model_spec *spec, modeli_lister *list, modeli_shape *shape);
    void (*head)(const model_spec *spec, modeli_lister *list, modeli_shape *shape);
};
typedef struct modeli_family modeli_family;

extern const modeli_family modeli_gpt2, modeli_llama;

/* shapes.c: pure functions of the model. */
void modeli_block_layout_of(const model *self, modeli_block_layout *layout);
void modeli_head_layout_of(const model *self, modeli_head_layout *layout);
void modeli_size_stages(model *self); /* bytes and flops of all stages, from the known scratch */

/* Sets the rows of a logits chunk, for tests of the chunk boundary. Before model_prepare. */
void modeli_set_chunk_rows(model *self, uint64_t rows);

/* passes.c: the lists of passes of all stages, and what is in them. */
int modeli_create_passes(model *self) MUST_CHECK;
void modeli_size_passes(model *self); /* after the stages' bytes and flops */
void modeli_destroy_passes(model *self);

/* products.c */
void modeli_release_products(model *self);

/* block.c, head.c: the stages. */
int modeli_embed_forward(model *self, void *stream, const model_call *call) MUST_CHECK;
int modeli_embed_backward(model *self, void *stream, const model_call *call) MUST_CHECK;
int modeli_block_forward(model *self, void *stream, const model_call *call) MUST_CHECK;
int modeli_block_backward(model *self, void *stream, const model_call *call,
                          bool saved_is_valid) MUST_CHECK;
int modeli_head_forward(model *self, void *stream, const model_call *call) MUST_CHECK;
int modeli_head_backward(model *self, void *stream, const model_call *call) MUST_CHECK;

/* Address of element `offset_elems` of a vector in the model's type; NULL for MODELI_ABSENT. */
static inline const void *modeli_param(const model *self, const void *params, uint64_t offset_elems)
{
    if (offset_elems == MODELI_ABSENT)
        return NULL;
    return (const char *)params + offset_elems * dtype_bytes(self->type);
}

static inline float *modeli_grad(float *grads, uint64_t offset_elems)
{
    return offset_elems == MODELI_ABSENT ? NULL : grads + offset_elems;
}

static inline void *modeli_at(void *base, uint64_t offset_bytes)
{
    return (char *)base + offset_bytes;
}

#endif
