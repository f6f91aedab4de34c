/* The matrix products of parts, one for each shape, and the parts' scratch. Parts of the same shape
 * share a product. Allocates through the backend, in model_prepare only. */
#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"
#include "model/model_internal.h"

static bool is_same(const matmul_desc *a, const matmul_desc *b)
{
    return a->m == b->m && a->n == b->n && a->k == b->k && a->a_transposed == b->a_transposed &&
           a->b_transposed == b->b_transposed && a->a_stride == b->a_stride &&
           a->b_stride == b->b_stride && a->c_stride == b->c_stride && a->ab_type == b->ab_type &&
           a->c_type == b->c_type && a->has_bias == b->has_bias && a->accumulate == b->accumulate;
}

/* Finds the product of a shape, or makes it. */
static int find(model *self, const matmul_desc *desc, kernel_matmul **product)
{
    model_products *products = self->products;
    uint32_t count = products->part_matmul_count;
    for (uint32_t i = 0; i < count; i++)
        if (is_same(&products->part_descs[i], desc)) {
            *product = products->part_matmuls[i];
            return 0;
        }
    matmul_desc *descs =
        mem_resize(products->part_descs, count + 1, sizeof *descs, "model.part_descs");
    if (descs == NULL)
        return -ENOMEM;
    products->part_descs = descs;
    kernel_matmul **matmuls =
        mem_resize(products->part_matmuls, count + 1, sizeof *matmuls, "model.part_matmuls");
    if (matmuls == NULL)
        return -ENOMEM;
    products->part_matmuls = matmuls;
    TRY(self->ops->matmul_create(self->context, desc, &matmuls[count]));
    descs[count] = *desc;
    products->part_matmul_count = count + 1;
    *product = matmuls[count];
    return 0;
}

/* Makes the products of a part over `rows` rows of activations. The rows of its output gradient are
 * `out_stride` elements apart. `begins`: also the product that begins a fresh gradient. */
static int make_part(model *self, modeli_part *part, uint64_t rows, uint64_t out_stride,
                     bool begins, modeli_part_products *made)
{
    uint64_t in = modeli_layer_columns(self, part->layer);
    bool is_logits = part->layer == MODELI_LAYER_OUTPUT;
    matmul_desc forward = modeli_forward_desc(self, rows, in, part->rows);
    forward.c_stride = out_stride;
    forward.has_bias = modeli_has_bias(self, part->layer);
    if (is_logits)
        forward.c_type = DTYPE_FP32;
    TRY(find(self, &forward, &made->forward));

    matmul_desc input = modeli_input_desc(self, rows, in, part->rows);
    input.a_stride = out_stride;
    input.c_type = DTYPE_FP32;
    input.accumulate = !part->is_last;
    TRY(find(self, &input, &made->input));

    matmul_desc weight = modeli_weight_desc(self, rows, in, part->rows);
    weight.a_stride = out_stride;
    TRY(find(self, &weight, &made->weight));
    weight.accumulate = false;
    return begins ? find(self, &weight, &made->first) : 0;
}

static int make_output(model *self, modeli_part *part)
{
    uint64_t last_rows = self->products->shape.rows % self->chunk_rows;
    uint64_t stride = modeli_logits_stride(part->rows);
    TRY(make_part(self, part, self->chunk_rows, stride, true, &part->products[0]));
    if (last_rows != 0)
        TRY(make_part(self, part, last_rows, stride, false, &part->products[1]));
    matmul_desc row = modeli_forward_desc(self, 1, self->spec.hidden_size, part->rows);
    row.c_type = DTYPE_FP32;
    return find(self, &row, &part->row_logits);
}

static uint64_t scratch_of(const model *self, const kernel_matmul *product)
{
    return product == NULL ? 0 : self->ops->matmul_scratch_bytes(product);
}

static void find_products_scratch(const model *self, modeli_part *part)
{
    uint64_t forward = scratch_of(self, part->row_logits), backward = 0;
    for (uint32_t i = 0; i < 2; i++) {
        const modeli_part_products *made = &part->products[i];
        forward = size_max(forward, scratch_of(self, made->forward));
        backward = size_max(backward, scratch_of(self, made->input));
        backward = size_max(backward, scratch_of(self, made->weight));
        backward = size_max(backward, scratch_of(self, made->first));
        if (part->layer == MODELI_LAYER_OUTPUT)
            backward = size_max(backward, scratch_of(self, made->forward));
    }
    part->forward_scratch_bytes = forward;
    part->backward_scratch_bytes = backward;
}

/* Finds the scratch that a part needs for block_parts.c and head_parts.c, its products included. */
static void find_scratch(const model *self, modeli_part *part)
{
    const kernel_ops *ops = self->ops;
    const modeli_shape *shape = &self->products->shape;
    const kernel_attention *attention = self->products->attention;
    uint64_t rows = shape->rows, channels = self->spec.hidden_size, backward = 0;
    find_products_scratch(self, part);
    if (part->norm.weight != MODELI_ABSENT)
        backward = ops->norm_grad_scratch_bytes(self->context, rows, channels);
    if (part->layer == MODELI_LAYER_TABLE || part->layer == MODELI_LAYER_POSITIONS)
        backward = ops->embedding_grad_scratch_bytes(self->context, rows, self->spec.vocab_size);
    if (part->layer <= MODELI_LAYER_DOWN && part->is_last && part->weights.bias != MODELI_ABSENT)
        backward =
            size_max(backward, ops->bias_backward_scratch_bytes(
                                   self->context, rows, modeli_layer_rows(self, part->layer)));
    if (part->layer == MODELI_LAYER_PROJ && part->is_first)
        backward = size_max(backward, ops->attention_backward_scratch_bytes(attention));
    if (part->q_norm != MODELI_ABSENT)
        backward =
            size_max(backward, ops->head_norm_grad_scratch_bytes(
                                   self->context, rows, self->spec.num_heads, shape->head_dim));
    if (part->layer == MODELI_LAYER_QKV && part->is_last)
        part->forward_scratch_bytes =
            size_max(part->forward_scratch_bytes, ops->attention_forward_scratch_bytes(attention));
    part->backward_scratch_bytes = size_max(part->backward_scratch_bytes, backward);
}

int modeli_make_part_products(model *self)
{
    modeli_parts *lists[] = {&self->products->embed, &self->products->block, &self->products->head};
    for (uint32_t k = 0; k < sizeof lists / sizeof lists[0]; k++)
        for (uint32_t i = 0; i < lists[k]->count; i++) {
            modeli_part *part = &lists[k]->items[i];
            uint64_t rows = self->products->shape.rows;
            memset(part->products, 0, sizeof part->products); /* left by a prepare that failed */
            part->row_logits = NULL;
            if (part->layer <= MODELI_LAYER_DOWN)
                TRY(make_part(self, part, rows, modeli_layer_rows(self, part->layer), true,
                              &part->products[0]));
            else if (part->layer == MODELI_LAYER_OUTPUT)
                TRY(make_output(self, part));
            find_scratch(self, part);
        }
    return 0;
}

void modeli_release_part_products(model *self)
{
    model_products *products = self->products;
    for (uint32_t i = 0; i < products->part_matmul_count; i++)
        self->ops->matmul_destroy(products->part_matmuls[i]);
    mem_free(products->part_matmuls);
    mem_free(products->part_descs);
    products->part_matmuls = NULL;
    products->part_descs = NULL;
    products->part_matmul_count = 0;
}
