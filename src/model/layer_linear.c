/* LINEAR: y = x W^T + b, with the adapters of its targets (lora.c).
 *
 * A part of a cut layer makes some columns of y. In the backward the parts run from last to first:
 * - Each part makes the gradients of its weights, and adds its share of the gradient of x, in fp32.
 *   The first part, which runs last, rounds that sum.
 * - The part that runs first sums the columns of the whole gradient of y; each part adds its own of
 *   these sums to the gradient of its bias.
 *
 * Nothing is computed for a unit whose grads are NULL. Allocates nothing after model_prepare. */
#include "model/model_internal.h"

static uint64_t out_columns(const modeli_layer *layer)
{
    return layer->matrix_rows;
}

static const modeli_matrix *matrix_of(const modeli_run *run, const modeli_layer *layer)
{
    return run->part ? &run->part->products[0] : &layer->matrix;
}

/* The part's columns of the layer's output, or of the gradient of that. */
static void *own_columns(const modeli_run *run, void *output)
{
    uint64_t first = run->part ? run->part->row_begin : 0;
    return modeli_at(output, first * dtype_bytes(run->self->type));
}

static int forward(const modeli_run *run, const modeli_layer *layer)
{
    modeli_params params = modeli_params_of(run, layer);
    const void *bias = modeli_param(run->self, run->call->params[layer->bias_unit], params.bias);
    const void *input = modeli_value_at(run, layer->reads[0]);
    void *output = modeli_value_at(run, layer->writes);
    TRY(modeli_lora_inner(run, layer, input));
    if (run->turn == MODELI_TURN_RECOMPUTE && !layer->is_recomputed[KEPT_NONE])
        return 0; /* the backward needs only the adapters' inner activations */
    TRY(modeli_multiply(run, matrix_of(run, layer), MODELI_FORWARD, input,
                        modeli_layer_param(run, layer, params.weight), bias,
                        own_columns(run, output)));
    return modeli_lora_outer(run, layer, output);
}

/* db += column sums of dY, of all columns. */
static int bias_grad(const modeli_run *run, const modeli_layer *layer, const void *output_grad,
                     float *target)
{
    const model *self = run->self;
    const kernel_ops *ops = self->ops;
    const modeli_part *part = run->part;
    float *sums = part ? modeli_at(run->call->saved, run->list->bias_sums) : target;
    if (target == NULL)
        return 0;
    if (part != NULL && part->is_last)
        TRY(ops->zero(self->context, run->stream, sums, layer->matrix_rows * sizeof *sums));
    if (part == NULL || part->is_last)
        TRY(ops->bias_backward(self->context, run->stream, self->type, modeli_rows(self),
                               layer->matrix_rows, layer->matrix_rows, output_grad, sums,
                               run->call->temp));
    if (part == NULL)
        return 0;
    return ops->add(self->context, run->stream, DTYPE_FP32, part->rows, target,
                    sums + part->row_begin, target);
}

/* Adds the gradient that other readers of the input gave, if there is one. */
static int add_residual(const modeli_run *run, const modeli_layer *layer)
{
    const model *self = run->self;
    if (layer->residual_grad.buffer == MODELI_NOWHERE)
        return 0;
    return self->ops->add(self->context, run->stream, self->type, modeli_rows(self) * layer->in,
                          modeli_at_spot(run, layer->residual_grad),
                          modeli_at_spot(run, layer->own_grad),
                          modeli_at_spot(run, layer->input_grad));
}

int modeli_round_input_grad(const modeli_run *run, const modeli_layer *layer)
{
    const model *self = run->self;
    const float *sum = modeli_at(run->call->saved, run->list->input_sum);
    void *target = modeli_at_spot(run, layer->own_grad);
    TRY(self->ops->convert(self->context, run->stream, sum, DTYPE_FP32, target, self->type,
                           modeli_rows(self) * layer->in));
    TRY(modeli_lora_input_grads(run, layer, target));
    return add_residual(run, layer);
}

/* dX = dY W, of a part added to a sum. */
static int input_grad(const modeli_run *run, const modeli_layer *layer, const void *output_grad,
                      const void *weight)
{
    void *target = modeli_at_spot(run, layer->own_grad);
    if (run->part != NULL) {
        float *sum = modeli_at(run->call->saved, run->list->input_sum);
        TRY(modeli_multiply(run, matrix_of(run, layer), MODELI_INPUT_GRAD, output_grad, weight,
                            NULL, sum));
        return run->part->is_first ? modeli_round_input_grad(run, layer) : 0;
    }
    TRY(modeli_multiply(run, matrix_of(run, layer), MODELI_INPUT_GRAD, output_grad, weight, NULL,
                        target));
    TRY(modeli_lora_input_grads(run, layer, target));
    return add_residual(run, layer);
}

int modeli_linear_backward(const modeli_run *run, const modeli_layer *layer, void *output_grad)
{
    modeli_params params = modeli_params_of(run, layer);
    const void *input = modeli_value_at(run, layer->reads[0]);
    const void *own = own_columns(run, output_grad);
    float *weight_grad = modeli_layer_grad(run, layer, params.weight);
    if (weight_grad != NULL) {
        enum modeli_product product = run->call->fresh[layer->unit] ? MODELI_FIRST : MODELI_WEIGHT;
        TRY(modeli_multiply(run, matrix_of(run, layer), product, own, input, NULL, weight_grad));
        TRY(bias_grad(run, layer, output_grad,
                      modeli_grad(run->call->grads[layer->bias_unit], params.bias)));
    }
    if (!run->wants_inner && layer == modeli_first_owner(run->list))
        return 0;
    return input_grad(run, layer, own, modeli_layer_param(run, layer, params.weight));
}

static int backward(const modeli_run *run, const modeli_layer *layer)
{
    void *output_grad = modeli_at_spot(run, layer->output_grad);
    TRY(modeli_lora_weight_grads(run, layer, output_grad, modeli_value_at(run, layer->reads[0])));
    return modeli_linear_backward(run, layer, output_grad);
}

static int prepare(model *self, modeli_layer *layer)
{
    return modeli_make_matrix(self, &layer->matrix, modeli_layer_matrix(self, layer, NULL));
}

static void scratch(const modeli_layer *layer, const modeli_part *part, uint64_t bytes[2])
{
    const model *self = layer->net;
    modeli_product_scratch(self, part ? &part->products[0] : &layer->matrix, bytes);
    if (layer->at.bias != MODELI_ABSENT && (part == NULL || part->is_last))
        bytes[1] = size_max(bytes[1], self->ops->bias_backward_scratch_bytes(
                                          self->context, modeli_rows(self), layer->matrix_rows));
}

static uint64_t columns(const modeli_layer *layer, bool backward)
{
    bool adds = backward && layer->residual_grad.buffer != MODELI_NOWHERE;
    return layer->in + layer->out + (adds ? 3 * layer->in : 0);
}

static void costs(const modeli_layer *layer, const modeli_costing *of)
{
    const model *self = layer->net;
    const modeli_part *part = of->part;
    modeli_matrix matrix = modeli_layer_matrix(self, layer, part);
    bool wants_input = part != NULL || of->work.inner ||
                       layer != modeli_first_owner(modeli_list_of(self, of->stage));
    modeli_lora_costs(layer, of, wants_input);
    if (of->turn == MODELI_TURN_RECOMPUTE && !layer->is_recomputed[KEPT_NONE])
        return;
    if (of->turn != MODELI_TURN_BACKWARD) {
        modeli_cost_product(self, &matrix, MODELI_FORWARD, 1, of->costs);
        return;
    }
    if (of->work.weights)
        modeli_cost_product(self, &matrix, MODELI_WEIGHT, 1, of->costs);
    if (of->work.weights && matrix.has_bias && (part == NULL || part->is_last))
        modeli_cost_columns(self, MODEL_ROWS_PLAIN, layer->matrix_rows, of->costs);
    if (wants_input)
        modeli_cost_product(self, &matrix, MODELI_INPUT_GRAD, 1, of->costs);
    if (wants_input && layer->residual_grad.buffer != MODELI_NOWHERE &&
        (part == NULL || part->is_first))
        modeli_cost_columns(self, MODEL_ROWS_PLAIN, 3 * layer->in, of->costs);
    if (part != NULL && part->is_first)
        modeli_cost_rows(MODEL_ROWS_PLAIN, matrix.rows, matrix.in,
                         sizeof(float) + dtype_bytes(self->type), of->costs);
}

const modeli_kind modeli_linear = {
    .has_matrix = true,
    .has_product = true,
    .keeps_input = true,
    .gradient = MODELI_GRAD_REPLACES,
    .out = out_columns,
    .forward = forward,
    .backward = backward,
    .prepare = prepare,
    .scratch = scratch,
    .columns = columns,
    .costs = costs,
};
