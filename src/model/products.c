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

modeli_matrix modeli_matrix_of(const model *self, uint64_t rows, uint64_t in, uint64_t out)
{
    return (modeli_matrix){
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

modeli_matrix modeli_layer_matrix(const model *self, const modeli_layer *layer,
                                  const modeli_part *part)
{
    modeli_matrix made = modeli_matrix_of(self, modeli_rows(self), layer->in, layer->matrix_rows);
    made.has_bias = layer->at.bias != MODELI_ABSENT;
    if (layer->kind == &modeli_router)
        made.out_type = DTYPE_FP32;
    if (part != NULL) {
        made.out = part->rows;
        made.in_grad_type = DTYPE_FP32;
        made.adds_in_grad = !part->is_last;
    }
    return made;
}

modeli_matrix modeli_logits_matrix(const model *self, const modeli_part *part, bool is_last)
{
    modeli_matrix made = modeli_layer_matrix(self, modeli_output_of(self), part);
    made.rows = is_last ? made.rows % self->chunk_rows : self->chunk_rows;
    made.out_stride = modeli_logits_stride(made.out);
    made.out_type = DTYPE_FP32;
    made.begins = !is_last;
    return made;
}

matmul_desc modeli_product_desc(const model *self, const modeli_matrix *of,
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
    case MODELI_INPUT_GRAD:
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
static int make_product(model *self, modeli_matrix *of, enum modeli_product which)
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

int modeli_make_matrix(model *self, modeli_matrix *target, modeli_matrix made)
{
    *target = made;
    for (int which = MODELI_FORWARD; which < MODELI_PRODUCTS; which++)
        if (which != MODELI_FIRST || made.begins)
            TRY(make_product(self, target, (enum modeli_product)which));
    return 0;
}

int modeli_make_logits(model *self, const modeli_part *part, modeli_matrix chunks[2],
                       modeli_matrix *row)
{
    TRY(modeli_make_matrix(self, &chunks[0], modeli_logits_matrix(self, part, false)));
    modeli_matrix last = modeli_logits_matrix(self, part, true);
    if (last.rows != 0)
        TRY(modeli_make_matrix(self, &chunks[1], last));
    *row = modeli_matrix_of(self, 1, last.in, last.out);
    row->out_type = DTYPE_FP32;
    row->has_bias = last.has_bias;
    return make_product(self, row, MODELI_FORWARD);
}

/* ---- scratch ---- */

void modeli_product_scratch(const model *self, const modeli_matrix *of, uint64_t bytes[2])
{
    for (int which = MODELI_FORWARD; which < MODELI_PRODUCTS; which++) {
        uint64_t *most = &bytes[which != MODELI_FORWARD];
        if (of->matmul[which] != NULL)
            *most = size_max(*most, self->ops->matmul_scratch_bytes(of->matmul[which]));
    }
}

/* Raises bytes[backward] to the scratch of the layers that a pass runs. */
static void add_scratch(const modeli_list *list, const modeli_part *part, bool backward,
                        uint64_t bytes[2])
{
    modeli_range range = modeli_layers_of(list, part, backward);
    for (uint32_t i = range.begin; i < range.end; i++) {
        const modeli_layer *layer = &list->layers[i];
        uint64_t both[2] = {0, 0};
        if (layer->kind->scratch != NULL)
            layer->kind->scratch(layer, part, both);
        bytes[backward] = size_max(bytes[backward], both[backward]);
    }
}

/* Makes the products of a whole stage and finds its scratch. A backward also runs the forward. */
static int make_whole(model *self, modeli_list *list)
{
    uint64_t *bytes = list->scratch_bytes;
    for (uint32_t i = 0; i < list->layer_count; i++)
        if (list->layers[i].kind->prepare != NULL &&
            (list->part_count == 0 || !list->layers[i].kind->has_matrix ||
             list->layers[i].kind->has_experts))
            TRY(list->layers[i].kind->prepare(self, &list->layers[i]));
    if (list->part_count > 0)
        return 0;
    add_scratch(list, NULL, false, bytes);
    add_scratch(list, NULL, true, bytes);
    TRY(modeli_lora_prepare(self, list, (modeli_range){0, list->layer_count}, bytes));
    bytes[1] = size_max(bytes[0], bytes[1]);
    return 0;
}

static int make_part(model *self, modeli_list *list, modeli_part *part)
{
    const modeli_layer *owner = &list->layers[part->owner];
    uint64_t *bytes = part->scratch_bytes;
    if (owner->kind == &modeli_output)
        TRY(modeli_make_logits(self, part, part->products, &part->row_logits));
    else if (owner->kind->has_product && !owner->kind->has_experts)
        TRY(modeli_make_matrix(self, &part->products[0], modeli_layer_matrix(self, owner, part)));
    add_scratch(list, part, false, bytes);
    add_scratch(list, part, true, bytes);
    return modeli_lora_prepare(self, list, (modeli_range){part->owner, part->owner + 1}, bytes);
}

static int make_all(model *self)
{
    model_products *products = self->products;
    modeli_list *lists[] = {&products->embed,   &products->block, &products->dense,
                            &products->experts, &products->last,  &products->head};
    for (uint32_t k = 0; k < sizeof lists / sizeof lists[0]; k++) {
        TRY(make_whole(self, lists[k]));
        for (uint32_t i = 0; i < lists[k]->part_count; i++)
            TRY(make_part(self, lists[k], &lists[k]->parts[i]));
    }
    return 0;
}

int model_prepare(model *self, const kernel_ops *ops, kernel_context *context)
{
    if (self->ops != NULL)
        return err_set(ERR_INTERNAL, "model_prepare was called twice on one model");
    self->ops = ops;
    self->context = context;
    if (self->module)
        return 0;
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
    for (int i = 0; i < 2; i++) {
        if (products->attention[i] != NULL)
            self->ops->attention_destroy(products->attention[i]);
        products->attention[i] = NULL;
    }
    self->ops = NULL;
    self->context = NULL;
}

int modeli_multiply(const modeli_run *run, const modeli_matrix *by, enum modeli_product which,
                    const void *a, const void *b, const void *bias, void *c)
{
    return run->self->ops->matmul(by->matmul[which], run->stream, a, b, bias, c, run->call->temp);
}
