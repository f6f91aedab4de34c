/* How Hugging Face stores a tensor of the model: names, shapes, and the order of elements.
 *
 * Most tensors are stored as the model has them. The others:
 *
 *   GPT-2's matrices        transposed
 *   GPT-NeoX's q, k and v   rows by heads, q, k and v of each together; here all heads of q first
 *   Cohere's head norms     a matrix with a row for each head
 *   experts of a mixture    the model has two tensors for all experts of a block, as transformers
 *                           has in memory. Published files have three matrices for each expert:
 *
 *     mlp.experts.gate_up_proj   experts.0.gate_proj, .up_proj, experts.1.gate_proj, ..
 *     mlp.experts.down_proj      experts.0.down_proj, experts.1.down_proj, ..
 *
 *   gpt-oss's experts       stored as the model has them, but the matrix of each expert transposed,
 *                           and the rows of gate and up by turns, their biases, too. Where they are
 *                           quantized (mxfp4) they are not transposed
 *
 * So a tensor of the model is one or several stored tensors of one shape, one after the other, and
 * hf_layout_place maps its elements to theirs. A layout is a value; nothing is allocated. */
#ifndef SLUICE_HF_LAYOUT_H
#define SLUICE_HF_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "model/model.h"

enum { HF_NAME_BYTES = 2 * MODEL_NAME_BYTES };

enum hf_order {
    HF_ORDER_SAME,
    HF_ORDER_TRANSPOSED, /* hf_layout_place is not for these */
    HF_ORDER_BY_HEADS,
    HF_ORDER_PAIRED, /* rows of each matrix: 0, rows / 2, 1, rows / 2 + 1, .. */
};

struct hf_layout {
    enum hf_order order;
    bool is_fused;         /* the experts of a block are stored as the model has them */
    uint64_t tensor_count; /* stored tensors of the whole tensor, whatever part a unit has */
    uint64_t elems;        /* of each */
    uint32_t dim_count;
    uint64_t shape[4];
    uint64_t heads, head_elems; /* by heads: of one head's rows of q, k or v */
    /* Transposed: each stored tensor is matrices of this shape, one after the other, and each of
     * them is stored [columns, rows]. is_paired: the stored columns are rows 0, rows / 2, 1,
     * rows / 2 + 1, .. */
    uint64_t rows, columns;
    bool is_paired;
    bool is_blocks; /* codes of mxfp4, "NAME_blocks" beside "NAME_scales" */
};
typedef struct hf_layout hf_layout;

/* The layout of a tensor, of which a unit may have only a part: that of published files, which
 * exports have too, or the fused one, which differs for tensors of experts alone. */
hf_layout hf_layout_of(const model *net, const model_tensor *tensor, bool is_fused);
/* The layout of a tensor in mxfp4; false if there is none. */
bool hf_layout_of_blocks(const model *net, const model_tensor *tensor, hf_layout *out);
/* The name of stored tensor `idx`. In fused files the names are the model's. */
void hf_layout_name(const model *net, const model_tensor *tensor, const hf_layout *layout,
                    uint64_t idx, char out[HF_NAME_BYTES]);

/* The stored column of a row of a matrix that is stored transposed. */
static inline uint64_t hf_layout_turned(const hf_layout *self, uint64_t row)
{
    uint64_t half = self->rows / 2;
    return self->is_paired ? row % half * 2 + row / half : row;
}

/* The stored place of element `at` of the whole tensor. */
struct hf_place {
    uint64_t tensor, elem; /* which stored tensor, and the element in it */
    uint64_t together;     /* elements from there on that lie together in both */
};
struct hf_place hf_layout_place(const hf_layout *self, uint64_t at);

/* Stored tensors [first, first + count) that the unit's part of a tensor lies in. */
struct hf_stored_range {
    uint64_t first, count;
};
struct hf_stored_range hf_layout_range(const hf_layout *self, const model_tensor *tensor);
/* True if the first element of stored tensor `idx` is in this part; false if it is in another. */
bool hf_layout_begins(const hf_layout *self, const model_tensor *tensor, uint64_t idx);

#endif
