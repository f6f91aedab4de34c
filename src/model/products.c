/* model_prepare: makes every matrix product and the attention of a model on one backend, one for
 * each shape, and finds the scratch that the backend's library needs. All blocks share the
 * products. Allocates through the backend; nothing allocates later. */
#include <math.h>

#include "base/size.h"
#include "model/model_internal.h"

/* Y[rows, out] = X[rows, in] W^T, the weight stored [out, in]. */
matmul_desc modeli_forward_desc(const model *self, uint64_t rows, uint64_t in, uint64_t out)
{
    matmul_desc desc = {
        .m = rows,
        .n = out,
        .k = in,
        .b_transposed = true,
        .a_stride = in,
        .b_stride = in,
        .c_stride = out,
        .ab_type = self->type,
        .c_type = self->type,
    };
    return desc;
}

/* dX[rows, in] = dY[rows, out] W. */
matmul_desc modeli_input_desc(const model *self, uint64_t rows, uint64_t in, uint64_t out)
{
    matmul_desc desc = {
        .m = rows,
        .n = in,
        .k = out,
        .a_stride = out,
        .b_stride = in,
        .c_stride = in,
        .ab_type = self->type,
        .c_type = self->type,
    };
    return desc;
}

/* dW[out, in] += dY^T X, in fp32. */
matmul_desc modeli_weight_desc(const model *self, uint64_t rows, uint64_t in, uint64_t out)
{
    matmul_desc desc = {
        .m = out,
        .n = in,
        .k = rows,
        .a_transposed = true,
        .a_stride = out,
        .b_stride = in,
        .c_stride = in,
        .ab_type = self->type,
        .c_type = DTYPE_FP32,
        .accumulate = true,
    };
    return desc;
}

static int make(model *self, enum modeli_product which, matmul_desc desc)
{
    return self->ops->matmul_create(self->context, &desc, &self->products->matmul[which]);
}

/* Makes the products of one linear layer of a block. */
static int make_linear(model *self, enum modeli_product forward, enum modeli_layer layer)
{
    uint64_t rows = self->products->shape.rows;
    uint64_t in = modeli_layer_columns(self, layer), out = modeli_layer_rows(self, layer);
    uint32_t input = MODELI_QKV_INPUT - MODELI_QKV, weight = MODELI_QKV_WEIGHT - MODELI_QKV;
    uint32_t first = MODELI_QKV_FIRST - MODELI_QKV;
    matmul_desc desc = modeli_forward_desc(self, rows, in, out);
    desc.has_bias = modeli_has_bias(self, layer);
    TRY(make(self, forward, desc));
    TRY(make(self, forward + input, modeli_input_desc(self, rows, in, out)));
    desc = modeli_weight_desc(self, rows, in, out);
    TRY(make(self, forward + weight, desc));
    desc.accumulate = false;
    return make(self, forward + first, desc);
}

/* Makes the products of a chunk of logits, which are fp32 and have no bias. A fresh gradient of the
 * matrix begins with the first chunk, which is never the shorter one. */
static int make_logits(model *self, enum modeli_product first, uint64_t rows)
{
    uint64_t channels = self->spec.hidden_size, vocab = self->spec.vocab_size;
    uint64_t stride = modeli_logits_stride(vocab);
    matmul_desc logits = modeli_forward_desc(self, rows, channels, vocab);
    logits.c_type = DTYPE_FP32;
    if (first == MODELI_ROW_LOGITS)
        return make(self, first, logits);
    logits.c_stride = stride;
    TRY(make(self, first, logits));
    matmul_desc input = modeli_input_desc(self, rows, channels, vocab);
    input.a_stride = stride;
    TRY(make(self, first + 1, input));
    matmul_desc weight = modeli_weight_desc(self, rows, channels, vocab);
    weight.a_stride = stride;
    TRY(make(self, first + 2, weight));
    if (first == MODELI_LAST_LOGITS)
        return 0;
    weight.accumulate = false;
    return make(self, MODELI_LOGITS_FIRST, weight);
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

static int make_all(model *self)
{
    const modeli_shape *shape = &self->products->shape;
    TRY(make_attention(self));
    TRY(modeli_make_part_products(self));
    if (self->products->block.count == 0) {
        TRY(make_linear(self, MODELI_QKV, MODELI_LAYER_QKV));
        TRY(make_linear(self, MODELI_PROJ, MODELI_LAYER_PROJ));
        TRY(make_linear(self, MODELI_UP, MODELI_LAYER_UP));
        TRY(make_linear(self, MODELI_DOWN, MODELI_LAYER_DOWN));
        TRY(modeli_make_lora(self));
    }
    if (self->products->head.count > 0)
        return 0;
    TRY(make_logits(self, MODELI_LOGITS, self->chunk_rows));
    uint64_t last_rows = shape->rows % self->chunk_rows;
    if (last_rows != 0)
        TRY(make_logits(self, MODELI_LAST_LOGITS, last_rows));
    return make_logits(self, MODELI_ROW_LOGITS, 1);
}

/* The largest scratch of the products [first, end) that exist. */
static uint64_t scratch_of(const model *self, uint32_t first, uint32_t end)
{
    uint64_t bytes = 0;
    for (uint32_t i = first; i < end; i++) {
        const kernel_matmul *product = self->products->matmul[i];
        if (product != NULL)
            bytes = size_max(bytes, self->ops->matmul_scratch_bytes(product));
    }
    return bytes;
}

static uint64_t bias_scratch(const model *self)
{
    uint64_t rows = self->products->shape.rows, bytes = 0;
    for (uint32_t i = MODELI_LAYER_QKV; i <= MODELI_LAYER_DOWN; i++) {
        enum modeli_layer layer = (enum modeli_layer)i;
        if (modeli_has_bias(self, layer))
            bytes = size_max(bytes, self->ops->bias_backward_scratch_bytes(
                                        self->context, rows, modeli_layer_rows(self, layer)));
    }
    return bytes;
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

static void find_scratch(model *self)
{
    model_products *products = self->products;
    const kernel_ops *ops = self->ops;
    uint64_t rows = products->shape.rows;
    uint64_t norm = ops->norm_grad_scratch_bytes(self->context, rows, self->spec.hidden_size);
    products->embed_backward_scratch_bytes =
        ops->embedding_grad_scratch_bytes(self->context, rows, self->spec.vocab_size);

    uint64_t forward = scratch_of(self, MODELI_QKV, MODELI_DOWN + 1);
    forward = size_max(forward, ops->attention_forward_scratch_bytes(products->attention));
    uint64_t backward = scratch_of(self, MODELI_QKV_INPUT, MODELI_DOWN_FIRST + 1);
    backward = size_max(backward, ops->attention_backward_scratch_bytes(products->attention));
    backward = size_max(backward, size_max(norm, bias_scratch(self)));
    backward = size_max(backward, head_norm_scratch(self));
    modeli_lora_scratch(self, &forward, &backward);
    products->block_forward_scratch_bytes = forward;
    products->block_backward_scratch_bytes = size_max(forward, backward);

    products->head_backward_scratch_bytes =
        size_max(scratch_of(self, MODELI_LOGITS, MODELI_PRODUCT_COUNT), norm);
    forward = scratch_of(self, MODELI_LOGITS, MODELI_LOGITS + 1);
    forward = size_max(forward, scratch_of(self, MODELI_LAST_LOGITS, MODELI_LAST_LOGITS + 1));
    forward = size_max(forward, scratch_of(self, MODELI_ROW_LOGITS, MODELI_ROW_LOGITS + 1));
    products->head_forward_scratch_bytes = forward;
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
    find_scratch(self);
    modeli_size_stages(self);
    return 0;
}

void modeli_release_products(model *self)
{
    model_products *products = self->products;
    for (uint32_t i = 0; i < MODELI_PRODUCT_COUNT; i++) {
        if (products->matmul[i] != NULL)
            self->ops->matmul_destroy(products->matmul[i]);
        products->matmul[i] = NULL;
    }
    modeli_release_part_products(self);
    modeli_release_lora(self);
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
