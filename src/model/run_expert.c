/* One expert of a mixture (layer_experts.c) over all its slots: it finds the expert's matrices, and
 * takes the slots in blocks of rows, forward or backward. Called on the thread that computes;
 * allocates nothing. */
#include <assert.h>

#include "model/experts_internal.h"

/* The same gradient in the group of a rank. */
static float *grad_at(const modeli_experts_run *of, uint64_t offset_elems)
{
    uint64_t begin = of->grads_group * of->run->part->group_elems;
    return modeli_layer_grad(of->run, of->layer,
                             offset_elems == MODELI_ABSENT ? offset_elems : begin + offset_elems);
}

static uint64_t place_of(const modeli_experts_run *of, uint64_t first, uint64_t idx, uint64_t elems)
{
    const modeli_part *part = of->run->part;
    return modeli_expert_at(of->layer, part, part->group_elems, first, idx, elems);
}

/* Finds the matrices and biases of an expert, counted from the part's first, or from the first one
 * of the own group. */
static void take_expert(modeli_experts_run *of, uint64_t idx)
{
    const modeli_run *run = of->run;
    const modeli_layer *layer = of->layer;
    modeli_params params = modeli_params_of(run, layer);
    uint64_t width = modeli_expert_width(layer);
    uint64_t up = place_of(of, params.weight, idx, 2 * width * layer->in);
    uint64_t down = place_of(of, params.second, idx, width * layer->in);
    uint64_t up_bias = place_of(of, params.bias, idx, 2 * width);
    uint64_t down_bias = place_of(of, params.second_bias, idx, layer->in);
    of->up = modeli_layer_param(run, layer, up);
    of->down = modeli_layer_param(run, layer, down);
    of->up_bias = modeli_layer_param(run, layer, up_bias);
    of->down_bias = modeli_layer_param(run, layer, down_bias);
    of->up_grad = grad_at(of, up);
    of->down_grad = grad_at(of, down);
    of->up_bias_grad = grad_at(of, up_bias);
    of->down_bias_grad = grad_at(of, down_bias);
    for (uint32_t i = 0; i < of->up_count; i++)
        of->up_lora[i] = modeli_expert_lora_of(run, layer, i, idx, of->grads_group, &of->at.lora);
    of->down_lora =
        modeli_expert_lora_of(run, layer, of->up_count, idx, of->grads_group, &of->at.lora);
}

static void *room_at(const modeli_experts_run *of, uint64_t offset)
{
    return modeli_at(of->run->call->temp, offset);
}

/* The gradients of a matrix and of its bias, from that of what they made. */
static int add_grads(const modeli_experts_run *of, const modeli_matrix *by,
                     enum modeli_product which, const void *output_grad, const void *input,
                     float *grad, float *bias_grad)
{
    const model *self = of->run->self;
    if (grad != NULL)
        TRY(modeli_multiply(of->run, by, which, output_grad, input, NULL, grad));
    if (bias_grad == NULL)
        return 0;
    return self->ops->bias_backward(self->context, of->run->stream, self->type, by->rows, by->out,
                                    by->out, output_grad, bias_grad, of->run->call->temp);
}

static activation_args gate_of(const modeli_experts_run *of, uint64_t rows)
{
    return modeli_activation_args(of->run->self, rows, modeli_expert_width(of->layer),
                                  room_at(of, of->at.up));
}

/* Rows of tokens to rows of slots. */
static int gather(const modeli_experts_run *of, const experts_rows_args *rows, const void *tokens,
                  uint64_t target)
{
    const model *self = of->run->self;
    experts_rows_args args = *rows;
    args.tokens = tokens;
    args.slot_rows = room_at(of, target);
    return self->ops->experts_gather(self->context, of->run->stream, &args);
}

/* A block's rows in a parcel. */
static void *parcel_rows(const modeli_experts_run *of, const experts_rows_args *rows, char *base)
{
    return base + rows->slot_begin * of->layer->in * dtype_bytes(of->run->self->type);
}

static void *inputs_of(const modeli_experts_run *of, const experts_rows_args *rows)
{
    return of->parcel ? parcel_rows(of, rows, of->parcel->inputs) : room_at(of, of->at.inputs);
}

/* The outputs of a block; in a backward their gradients, and then those of the inputs. */
static void *outputs_of(const modeli_experts_run *of, const experts_rows_args *rows)
{
    return of->parcel ? parcel_rows(of, rows, of->parcel->rows) : room_at(of, of->at.outputs);
}

/* Computes the block of slots of `rows` up to the gate. */
static int run_up(const modeli_experts_run *of, const experts_rows_args *rows, uint32_t size)
{
    const model *self = of->run->self;
    activation_args gate = gate_of(of, rows->slot_count);
    const void *inputs = inputs_of(of, rows);
    gate.output = room_at(of, of->at.gated);
    if (!of->parcel)
        TRY(gather(of, rows, modeli_value_at(of->run, of->layer->reads[0]), of->at.inputs));
    TRY(modeli_multiply(of->run, &of->by->up[size], MODELI_FORWARD, inputs, of->up, of->up_bias,
                        room_at(of, of->at.up)));
    for (uint32_t i = 0; i < of->up_count; i++) {
        TRY(modeli_expert_lora_inner(&of->up_lora[i], size, rows->slot_begin, inputs));
        TRY(modeli_expert_lora_outer(&of->up_lora[i], size, room_at(of, of->at.up)));
    }
    return self->ops->activation_forward(self->context, of->run->stream, &gate);
}

static int forward_block(const modeli_experts_run *of, const experts_rows_args *rows, uint32_t size)
{
    const model *self = of->run->self;
    experts_rows_args args = *rows;
    args.slot_rows = outputs_of(of, rows);
    TRY(run_up(of, rows, size));
    TRY(modeli_multiply(of->run, &of->by->down[size], MODELI_FORWARD, room_at(of, of->at.gated),
                        of->down, of->down_bias, args.slot_rows));
    TRY(modeli_expert_lora_inner(&of->down_lora, size, rows->slot_begin,
                                 room_at(of, of->at.gated)));
    TRY(modeli_expert_lora_outer(&of->down_lora, size, args.slot_rows));
    if (of->parcel)
        return 0;
    return self->ops->experts_combine(self->context, of->run->stream, &args);
}

/* The gradients of the choices' weights: the weight multiplies gated W^T + b, so its gradient is
 * gated times dy W, plus b times dy. Then the gradients times the weights. */
static int weigh(const modeli_experts_run *of, const experts_rows_args *rows)
{
    const model *self = of->run->self;
    experts_rows_args args = *rows;
    args.channels = modeli_expert_width(of->layer);
    args.output = room_at(of, of->at.gated);
    args.slot_rows = room_at(of, of->at.gated_grad);
    TRY(self->ops->experts_weights_backward(self->context, of->run->stream, &args));
    if (of->down_lora.a_grad != NULL) {
        args.channels = modeli_lora_stride(self);
        args.output = NULL;
        args.slot_rows = of->down_lora.u_grad;
        TRY(self->ops->experts_weights_backward(self->context, of->run->stream, &args));
    }
    if (of->down_grad == NULL && of->down_bias == NULL && of->down_lora.a_grad == NULL)
        return 0;
    args.channels = of->layer->in;
    args.output = NULL;
    args.bias = of->down_bias;
    args.slot_rows = outputs_of(of, rows);
    return self->ops->experts_weights_backward(self->context, of->run->stream, &args);
}

/* is_first: no block of the expert came before. */
static int backward_block(const modeli_experts_run *of, const experts_rows_args *rows,
                          uint32_t size, bool is_first)
{
    const bool *fresh = of->run->call->fresh;
    enum modeli_product product = is_first && fresh[of->layer->unit] ? MODELI_FIRST : MODELI_WEIGHT;
    enum modeli_product lora_product = is_first && fresh[1] ? MODELI_FIRST : MODELI_WEIGHT;
    const model *self = of->run->self;
    const modeli_matrix *up = &of->by->up[size], *down = &of->by->down[size];
    void *inputs = inputs_of(of, rows), *outputs = outputs_of(of, rows);
    void *gated_grad = room_at(of, of->at.gated_grad);
    void *up_grad = room_at(of, of->at.up);
    activation_args gate = gate_of(of, rows->slot_count);
    experts_rows_args args = *rows;
    TRY(run_up(of, rows, size));
    if (!of->parcel)
        TRY(gather(of, rows, modeli_at_spot(of->run, of->layer->output_grad), of->at.outputs));
    TRY(modeli_multiply(of->run, down, MODELI_INPUT_GRAD, outputs, of->down, NULL, gated_grad));
    TRY(modeli_expert_lora_inner(&of->down_lora, size, rows->slot_begin,
                                 room_at(of, of->at.gated)));
    TRY(modeli_expert_lora_input_grad(&of->down_lora, size, rows->slot_begin, outputs, gated_grad));
    TRY(weigh(of, rows));
    TRY(modeli_expert_lora_grads(&of->down_lora, size, rows->slot_begin, lora_product, outputs,
                                 room_at(of, of->at.gated)));
    TRY(add_grads(of, down, product, outputs, room_at(of, of->at.gated), of->down_grad,
                  of->down_bias_grad));
    gate.output_grad = gated_grad;
    gate.input_grad = up_grad;
    TRY(self->ops->activation_backward(self->context, of->run->stream, &gate));
    TRY(add_grads(of, up, product, up_grad, inputs, of->up_grad, of->up_bias_grad));
    TRY(modeli_multiply(of->run, up, MODELI_INPUT_GRAD, up_grad, of->up, NULL, outputs));
    for (uint32_t i = 0; i < of->up_count; i++) {
        TRY(modeli_expert_lora_input_grad(&of->up_lora[i], size, rows->slot_begin, up_grad,
                                          outputs));
        TRY(modeli_expert_lora_grads(&of->up_lora[i], size, rows->slot_begin, lora_product, up_grad,
                                     inputs));
    }
    if (of->parcel)
        return 0;
    args.weights = NULL;
    args.slot_rows = outputs;
    return self->ops->experts_combine(self->context, of->run->stream, &args);
}

/* The gradients of the matrices of an expert that no token chose; those of biases are zero
 * already (fresh.c). */
static int clear_grads(const modeli_experts_run *of)
{
    const model *self = of->run->self;
    uint64_t matrix_bytes = modeli_expert_width(of->layer) * of->layer->in * sizeof(float);
    if (of->run->call->fresh[1]) {
        for (uint32_t i = 0; i < of->up_count; i++)
            TRY(modeli_expert_lora_clear(&of->up_lora[i]));
        TRY(modeli_expert_lora_clear(&of->down_lora));
    }
    if (of->up_grad == NULL || !of->run->call->fresh[of->layer->unit])
        return 0;
    TRY(self->ops->zero(self->context, of->run->stream, of->up_grad, 2 * matrix_bytes));
    return self->ops->zero(self->context, of->run->stream, of->down_grad, matrix_bytes);
}

int modeli_run_expert(modeli_experts_run *of, uint64_t idx)
{
    bool is_backward = of->run->turn == MODELI_TURN_BACKWARD;
    uint64_t expert = of->parcel ? idx : of->run->part->row_begin + idx;
    uint64_t at = (uint64_t)of->offsets[expert], end = (uint64_t)of->offsets[expert + 1];
    bool is_first = true;
    if (at == end && !is_backward)
        return 0;
    take_expert(of, idx);
    if (at == end)
        return clear_grads(of);
    for (uint32_t size = modeli_expert_size_count(of->layer); size-- > 0;)
        for (uint64_t count = modeli_expert_size_at(of->layer, size); end - at >= count;
             at += count) {
            experts_rows_args rows = of->rows;
            rows.slot_begin = at;
            rows.slot_count = count;
            TRY(is_backward ? backward_block(of, &rows, size, is_first)
                            : forward_block(of, &rows, size));
            is_first = false;
        }
    assert(at == end);
    return 0;
}
