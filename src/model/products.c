/* model_prepare: makes every matrix product and the attention of a model on one backend, one for
 * each shape, and finds the scratch that the backend's library needs. All blocks share the
 * products, and so do layers and parts of the same shape. Allocates through the backend; nothing
 * allocates later. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"
#include "model/model_internal.h"

/* ---- shapes of products ---- */

/* True if the layer has a bias; layers of embedding and head have none. */
static bool has_bias(const model *self, enum modeli_layer layer)
{
    return modeli_layer_whole(&self->products->shape, layer).bias != MODELI_ABSENT;
}

modeli_linear modeli_linear_of(const model *self, uint64_t rows, uint64_t in, uint64_t out)
{
    return (modeli_linear){
        .rows = rows,
        .in = in,
        .out = out,
        .in_stride = in,
        .out_stride = out,
        .out_type = self->type,
        .in_grad_type = self->type,
        .begins = true,
    };
}

modeli_linear modeli_layer_linear(const model *self, enum modeli_layer layer)
{
    modeli_linear made =
        modeli_linear_of(self, self->products->shape.rows, modeli_layer_columns(self, layer),
                         modeli_layer_rows(self, layer));
    made.has_bias = has_bias(self, layer);
    return made;
}

modeli_linear modeli_part_linear(const model *self, const modeli_part *part)
{
    modeli_linear made = modeli_layer_linear(self, part->layer);
    made.out = part->rows;
    made.in_grad_type = DTYPE_FP32;
    made.adds_in_grad = !part->is_last;
    return made;
}

modeli_linear modeli_logits_linear(const model *self, const modeli_part *part, bool is_last)
{
    modeli_linear made =
        part ? modeli_part_linear(self, part) : modeli_layer_linear(self, MODELI_LAYER_OUTPUT);
    made.rows = is_last ? made.rows % self->chunk_rows : self->chunk_rows;
    made.out_stride = modeli_logits_stride(made.out);
    made.out_type = DTYPE_FP32;
    made.begins = !is_last;
    return made;
}

matmul_desc modeli_product_desc(const model *self, const modeli_linear *of,
                                enum modeli_product which)
{
    switch (which) {
    case MODELI_FORWARD:
        return (matmul_desc){
            .m = of->rows,
            .n = of->out,
            .k = of->in,
            .b_transposed = true,
            .a_stride = of->in_stride,
            .b_stride = of->in,
            .c_stride = of->out_stride,
            .ab_type = self->type,
            .c_type = of->out_type,
            .has_bias = of->has_bias,
        };
    case MODELI_INPUT:
        return (matmul_desc){
            .m = of->rows,
            .n = of->in,
            .k = of->out,
            .a_stride = of->out_stride,
            .b_stride = of->in,
            .c_stride = of->in_stride,
            .ab_type = self->type,
            .c_type = of->in_grad_type,
            .accumulate = of->adds_in_grad,
        };
    default: /* the gradient of the weight */
        return (matmul_desc){
            .m = of->out,
            .n = of->in,
            .k = of->rows,
            .a_transposed = true,
            .a_stride = of->out_stride,
            .b_stride = of->in_stride,
            .c_stride = of->in,
            .ab_type = self->type,
            .c_type = DTYPE_FP32,
            .accumulate = which == MODELI_WEIGHT,
        };
    }
}

/* ---- making them ---- */

static bool is_same(const matmul_desc *a, const matmul_desc *b)
{
    return a->m == b->m && a->n == b->n && a->k == b->k && a->a_transposed == b->a_transposed &&
           a->b_transposed == b->b_transposed && a->a_stride == b->a_stride &&
           a->b_stride == b->b_stride && a->c_stride == b->c_stride && a->ab_type == b->ab_type &&
           a->c_type == b->c_type && a->has_bias == b->has_bias && a->accumulate == b->accumulate;
}

/* Finds the product of a shape, or makes it. */
static int make_product(model *self, modeli_linear *of, enum modeli_product which)
{
    model_products *products = self->products;
    uint32_t count = products->matmul_count;
    matmul_desc desc = modeli_product_desc(self, of, which);
    for (uint32_t i = 0; i < count; i++)
        if (is_same(&products->descs[i], &desc)) {
            of->matmul[which] = products->matmuls[i];
            return 0;
        }
    matmul_desc *descs = mem_resize(products->descs, count + 1, sizeof *descs, "model.descs");
    if (descs == NULL)
        return -ENOMEM;
    products->descs = descs;
    kernel_matmul **matmuls =
        mem_resize(products->matmuls, count + 1, sizeof *matmuls, "model.matmuls");
    if (matmuls == NULL)
        return -ENOMEM;
    products->matmuls = matmuls;
    TRY(self->ops->matmul_create(self->context, &desc, &matmuls[count]));
    descs[count] = desc;
    products->matmul_count = count + 1;
    of->matmul[which] = matmuls[count];
    return 0;
}

static int make_linear(model *self, modeli_linear *target, modeli_linear made)
{
    *target = made;
    for (int which = MODELI_FORWARD; which < MODELI_PRODUCTS; which++)
        if (which != MODELI_FIRST || made.begins)
            TRY(make_product(self, target, (enum modeli_product)which));
    return 0;
}

/* Makes the products of the logits of a whole head, or of one of its parts. */
static int make_logits(model *self, const modeli_part *part, modeli_linear chunks[2],
                       modeli_linear *row)
{
    TRY(make_linear(self, &chunks[0], modeli_logits_linear(self, part, false)));
    modeli_linear last = modeli_logits_linear(self, part, true);
    if (last.rows != 0)
        TRY(make_linear(self, &chunks[1], last));
    *row = modeli_linear_of(self, 1, last.in, last.out);
    row->out_type = DTYPE_FP32;
    return make_product(self, row, MODELI_FORWARD);
}

static int make_part(model *self, modeli_part *part)
{
    if (part->layer <= MODELI_LAYER_DOWN)
        return make_linear(self, &part->products[0], modeli_part_linear(self, part));
    if (part->layer == MODELI_LAYER_OUTPUT)
        return make_logits(self, part, part->products, &part->row_logits);
    return 0;
}

static int make_attention(model *self)
{
    const modeli_shape *shape = &self->products->shape;
    attention_desc desc = {
        .batch = self->micro_batch,
        .tokens = self->tokens,
        .heads = self->spec.num_heads,
        .kv_heads = self->spec.num_kv_heads,
        .head_dim = shape->head_dim,
        .qkv_stride = shape->qkv_columns,
        .type = self->type,
        .scale = modeli_score_scale(self),
    };
    return self->ops->attention_create(self->context, &desc, &self->products->attention);
}

/* ---- scratch ---- */

/* The largest scratch of the products that were made; gradients run in a backward. */
static void add_scratch(const model *self, const modeli_linear *of, uint64_t *forward,
                        uint64_t *backward)
{
    for (int which = MODELI_FORWARD; which < MODELI_PRODUCTS; which++) {
        uint64_t *most = which == MODELI_FORWARD ? forward : backward;
        if (of->matmul[which] != NULL)
            *most = size_max(*most, self->ops->matmul_scratch_bytes(of->matmul[which]));
    }
}

static uint64_t bias_scratch(const model *self, enum modeli_layer layer)
{
    if (!has_bias(self, layer))
        return 0;
    return self->ops->bias_backward_scratch_bytes(self->context, self->products->shape.rows,
                                                  modeli_layer_rows(self, layer));
}

/* Scratch for the norms of q's heads; those of k's need no more. */
static uint64_t head_norm_scratch(const model *self)
{
    const modeli_shape *shape = &self->products->shape;
    if (!modeli_has_head_norms(self))
        return 0;
    return self->ops->head_norm_grad_scratch_bytes(self->context, shape->rows, self->spec.num_heads,
                                                   shape->head_dim);
}

static uint64_t norm_scratch(const model *self)
{
    return self->ops->norm_grad_scratch_bytes(self->context, self->products->shape.rows,
                                              self->spec.hidden_size);
}

static uint64_t embedding_scratch(const model *self)
{
    return self->ops->embedding_grad_scratch_bytes(self->context, self->products->shape.rows,
                                                   self->spec.vocab_size);
}

/* Makes the products of a whole block and finds its scratch. */
static int make_block(model *self)
{
    model_products *products = self->products;
    const kernel_ops *ops = self->ops;
    uint64_t forward = ops->attention_forward_scratch_bytes(products->attention);
    uint64_t backward = ops->attention_backward_scratch_bytes(products->attention);
    backward = size_max(backward, size_max(norm_scratch(self), head_norm_scratch(self)));
    for (uint32_t i = MODELI_LAYER_QKV; i <= MODELI_LAYER_DOWN; i++) {
        enum modeli_layer layer = (enum modeli_layer)i;
        modeli_linear *made = &products->layers[layer];
        TRY(make_linear(self, made, modeli_layer_linear(self, layer)));
        add_scratch(self, made, &forward, &backward);
        backward = size_max(backward, bias_scratch(self, layer));
    }
    for (uint32_t i = 0; i < products->adapter_count; i++) {
        modeli_adapter *adapter = &products->adapters[i];
        TRY(make_linear(self, &adapter->inner, modeli_inner_linear(self, adapter)));
        TRY(make_linear(self, &adapter->outer, modeli_outer_linear(self, adapter)));
        add_scratch(self, &adapter->inner, &forward, &backward);
        add_scratch(self, &adapter->outer, &forward, &backward);
    }
    products->block_forward_scratch_bytes = forward;
    products->block_backward_scratch_bytes = size_max(forward, backward);
    return 0;
}

/* The same for a whole head. */
static int make_head(model *self)
{
    model_products *products = self->products;
    uint64_t forward = 0, backward = norm_scratch(self);
    TRY(make_logits(self, NULL, products->logits, &products->row_logits));
    add_scratch(self, &products->logits[0], &forward, &backward);
    add_scratch(self, &products->logits[1], &forward, &backward);
    add_scratch(self, &products->row_logits, &forward, &backward);
    products->head_forward_scratch_bytes = forward;
    products->head_backward_scratch_bytes = size_max(forward, backward);
    return 0;
}

/* Finds the scratch that a part needs for block_parts.c and head_parts.c, its products included. */
static void find_part_scratch(const model *self, modeli_part *part)
{
    const kernel_ops *ops = self->ops;
    const kernel_attention *attention = self->products->attention;
    uint64_t forward = 0, backward = 0;
    add_scratch(self, &part->products[0], &forward, &backward);
    add_scratch(self, &part->products[1], &forward, &backward);
    if (part->layer == MODELI_LAYER_OUTPUT) /* its backward makes the logits again */
        backward = size_max(backward, forward);
    add_scratch(self, &part->row_logits, &forward, &backward);
    if (part->norm.weight != MODELI_ABSENT)
        backward = size_max(backward, norm_scratch(self));
    if (part->layer == MODELI_LAYER_TABLE || part->layer == MODELI_LAYER_POSITIONS)
        backward = size_max(backward, embedding_scratch(self));
    if (part->layer <= MODELI_LAYER_DOWN && part->is_last)
        backward = size_max(backward, bias_scratch(self, part->layer));
    if (part->layer == MODELI_LAYER_PROJ && part->is_first)
        backward = size_max(backward, ops->attention_backward_scratch_bytes(attention));
    if (part->q_norm != MODELI_ABSENT)
        backward = size_max(backward, head_norm_scratch(self));
    if (part->layer == MODELI_LAYER_QKV && part->is_last)
        forward = size_max(forward, ops->attention_forward_scratch_bytes(attention));
    part->forward_scratch_bytes = forward;
    part->backward_scratch_bytes = backward;
}

static int make_all(model *self)
{
    model_products *products = self->products;
    modeli_parts *lists[] = {&products->embed, &products->block, &products->head};
    TRY(make_attention(self));
    products->embed_backward_scratch_bytes = embedding_scratch(self);
    for (uint32_t k = 0; k < sizeof lists / sizeof lists[0]; k++)
        for (uint32_t i = 0; i < lists[k]->count; i++) {
            TRY(make_part(self, &lists[k]->items[i]));
            find_part_scratch(self, &lists[k]->items[i]);
        }
    if (products->block.count == 0)
        TRY(make_block(self));
    return products->head.count == 0 ? make_head(self) : 0;
}

int model_prepare(model *self, const kernel_ops *ops, kernel_context *context)
{
    if (self->ops != NULL)
        return err_set(ERR_INTERNAL, "model_prepare was called twice on one model");
    self->ops = ops;
    self->context = context;
    int rc = make_all(self);
    if (rc < 0) {
        modeli_release_products(self);
        return rc;
    }
    modeli_size_stages(self);
    return 0;
}

void modeli_release_products(model *self)
{
    model_products *products = self->products;
    for (uint32_t i = 0; i < products->matmul_count; i++)
        self->ops->matmul_destroy(products->matmuls[i]);
    mem_free(products->matmuls);
    mem_free(products->descs);
    products->matmuls = NULL;
    products->descs = NULL;
    products->matmul_count = 0;
    if (products->attention != NULL)
        self->ops->attention_destroy(products->attention);
    products->attention = NULL;
    self->ops = NULL;
    self->context = NULL;
}

int model_fill_constants(model *self, void *stream, void *constants)
{
    if (!self->products->shape.has_rope)
        return 0;
    const model_spec *spec = &self->spec;
    rope_table_args args = {
        .table = constants,
        .tokens = modeli_positions(self),
        .head_dim = self->products->shape.head_dim,
        .theta = spec->rope_theta,
        .scaling = spec->rope_scaling,
        .factor = spec->rope_factor,
        .low_freq_factor = spec->rope_low_freq_factor,
        .high_freq_factor = spec->rope_high_freq_factor,
        .original_positions = (double)spec->rope_original_positions,
    };
    return self->ops->rope_table(self->context, stream, &args);
}
