/* A block in parts. Each pass runs some rows of one linear layer, that is some columns of its
 * output. The first part of a layer also does the work before the layer, the last part the work
 * after it:
 *
 *   forward, recompute   norm1, qkv ..  (norms of heads,) rope, attention | proj .. |
 *                        norm2, up .. activation | down .. + middle (forward only)
 *   backward             down .. activation' | up .. norm2' | proj .. attention', rope' |
 *                        qkv .. norm1'
 *
 * In the backward the parts of a layer run from last to first:
 * - Each part makes the gradients of its weights, and adds its share of the gradient of the layer's
 *   input, in fp32.
 * - The first part, which runs last, rounds that sum and goes on to the layer before.
 * - If heads have norms, the last part of qkv has their weights; it begins with their gradient.
 *
 * Everything else, names included, is as in block.c. Allocates nothing. */
#include "model/block_internal.h"

/* Operands of a whole linear layer. */
struct layer_operands {
    void *input, *output; /* [N,in], [N,out] in the working dtype */
    const void *output_grad;
    void *input_grad; /* the sum over all parts, rounded */
    uint64_t in, out;
};
typedef struct layer_operands layer_operands;

static layer_operands operands_of(const modeli_block_run *run, enum modeli_layer layer)
{
    const modeli_block_layout *at = &run->at;
    layer_operands found = {
        .in = modeli_layer_columns(run->self, layer),
        .out = modeli_layer_rows(run->self, layer),
    };
    switch (layer) {
    case MODELI_LAYER_QKV:
        found.input = found.input_grad = modeli_block_saved(run, at->normed1);
        found.output = modeli_block_saved(run, at->qkv);
        found.output_grad = modeli_block_saved(run, at->qkv_grad);
        break;
    case MODELI_LAYER_PROJ:
        found.input = modeli_block_saved(run, at->attention);
        found.output = modeli_block_saved(run, at->projected);
        found.output_grad = run->call->input_grad;
        found.input_grad = modeli_block_saved(run, at->attention_grad);
        break;
    case MODELI_LAYER_UP:
        found.input = modeli_block_saved(run, at->normed2);
        found.output = modeli_block_saved(run, at->ffn_input);
        found.output_grad = found.output;
        found.input_grad = run->call->input_grad;
        break;
    default: /* down */
        found.input = found.input_grad = modeli_block_saved(run, at->ffn_output);
        found.output = run->call->output;
        found.output_grad = run->call->output_grad;
        break;
    }
    return found;
}

static int forward(const modeli_block_run *run, const modeli_part *part)
{
    const model *self = run->self;
    layer_operands of = operands_of(run, part->layer);
    if (part->is_first && part->layer == MODELI_LAYER_QKV)
        TRY(modeli_block_norm1(run, part->norm));
    if (part->is_first && part->layer == MODELI_LAYER_UP)
        TRY(modeli_block_norm2(run, part->norm, modeli_block_saved(run, run->at.projected)));
    TRY(self->ops->matmul(
        part->products[0].matmul[MODELI_FORWARD], run->stream, of.input,
        modeli_block_param(run, part->weights.weight), modeli_block_param(run, part->weights.bias),
        modeli_at(of.output, part->row_begin * dtype_bytes(self->type)), run->call->temp));
    if (!part->is_last)
        return 0;
    if (part->layer == MODELI_LAYER_QKV)
        return modeli_block_attend(run, part->q_norm, part->k_norm);
    if (part->layer == MODELI_LAYER_UP)
        return modeli_block_activate(run);
    return part->layer == MODELI_LAYER_DOWN ? modeli_block_add_middle(run) : 0;
}

/* Bias gradients. The part that runs first sums the columns of the whole output gradient; each part
 * adds its own share. */
static int bias_grad(const modeli_block_run *run, const modeli_part *part, const layer_operands *of)
{
    const model *self = run->self;
    const kernel_ops *ops = self->ops;
    float *sums = modeli_block_saved(run, run->at.bias_sums);
    float *target = modeli_block_grad(run, part->weights.bias);
    if (target == NULL)
        return 0;
    if (part->is_last) {
        TRY(ops->zero(self->context, run->stream, sums, of->out * sizeof *sums));
        TRY(ops->bias_backward(self->context, run->stream, self->type, run->shape->rows, of->out,
                               of->output_grad, sums, run->call->temp));
    }
    return ops->add(self->context, run->stream, DTYPE_FP32, part->rows, target,
                    sums + part->row_begin, target);
}

static int backward(const modeli_block_run *run, const modeli_part *part)
{
    const model *self = run->self;
    const kernel_ops *ops = self->ops;
    layer_operands of = operands_of(run, part->layer);
    const void *output_grad =
        (const char *)of.output_grad + part->row_begin * dtype_bytes(self->type);
    float *input_sum = modeli_block_saved(run, run->at.input_sum);
    if (part->q_norm != MODELI_ABSENT)
        TRY(modeli_block_head_norm_grad(run, part->q_norm, part->k_norm));
    if (run->call->grads[0] != NULL) {
        enum modeli_product gradient = run->call->fresh[0] ? MODELI_FIRST : MODELI_WEIGHT;
        TRY(ops->matmul(part->products[0].matmul[gradient], run->stream, output_grad, of.input,
                        NULL, modeli_block_grad(run, part->weights.weight), run->call->temp));
        TRY(bias_grad(run, part, &of));
    }
    TRY(ops->matmul(part->products[0].matmul[MODELI_INPUT], run->stream, output_grad,
                    modeli_block_param(run, part->weights.weight), NULL, input_sum,
                    run->call->temp));
    if (!part->is_first)
        return 0;
    TRY(ops->convert(self->context, run->stream, input_sum, DTYPE_FP32, of.input_grad, self->type,
                     run->shape->rows * of.in));
    if (part->layer == MODELI_LAYER_QKV)
        return modeli_block_norm1_grad(run, part->norm);
    if (part->layer == MODELI_LAYER_PROJ)
        return modeli_block_attend_grad(run);
    if (part->layer == MODELI_LAYER_UP)
        return modeli_block_norm2_grad(run, part->norm);
    return modeli_block_activate_grad(run);
}

int modeli_block_part(model *self, void *stream, const model_call *call, const modeli_part *part,
                      bool is_backward)
{
    modeli_block_run run = modeli_block_start(self, stream, call);
    return is_backward ? backward(&run, part) : forward(&run, part);
}
