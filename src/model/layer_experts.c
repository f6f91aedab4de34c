/* EXPERTS: the feed-forward part of a mixture. y = sum over a token's experts of weight *
 * expert(x). It reads x and what the router wrote.
 *
 * Each expert has a matrix for gate and up, and one for down. Only x is kept: the backward computes
 * the rest again. A part has some experts. It takes its experts one after the other, and the slots
 * of each (kernels/ops_experts.h) in blocks of rows, whose sizes are prepared:
 *
 *   forward    x of the slots -> up -> gate -> down -> added to the tokens' sums, times the weight
 *   backward   the same up to the gate, then back; gradients of x are added to the tokens' sums
 *
 * A block has at most ROWS_MAX rows, so temp does not grow with the number of tokens that choose
 * one expert. The sums are fp32, in list.input_sum. The forward takes the experts in ascending
 * order and the backward in descending order, as the parts run; so the cut into parts changes no
 * bit.
 *
 * Experts that belong to ranks (owned_experts.c) take the rows that each rank has sent, one rank
 * after the other, and leave the results in their place.
 *
 * The sizes of blocks follow from what the router chose, so the host must know the offsets of the
 * slots (read_back). An expert without slots is not computed; if no expert of the part has any,
 * the part's params need not be there. Allocates nothing after model_prepare. */
#include <assert.h>
#include <string.h>

#include "model/model_internal.h"

enum { ROWS_MAX = 1024 };

uint64_t modeli_expert_width(const modeli_layer *layer)
{
    const model_spec *spec = &layer->net->spec;
    return layer->row->is_shared ? spec->shared_ffn_size : spec->expert_ffn_size;
}

uint64_t modeli_expert_elems(const modeli_layer *layer)
{
    return 3 * modeli_expert_width(layer) * layer->in;
}

uint64_t modeli_choices_of(const modeli_layer *layer)
{
    return layer->row->is_shared ? 1 : layer->net->spec.experts_per_token;
}

uint64_t modeli_experts_per_unit(const model_spec *spec)
{
    uint64_t elems = 3 * spec->expert_ffn_size * spec->hidden_size, all = spec->expert_count;
    uint64_t groups = size_max(spec->expert_ranks, 1); /* a rank moves its own group alone */
    uint64_t count = size_min(size_max(MODEL_EXPERTS_UNIT_ELEMS / elems, 1) * groups, all);
    while (count > 1 && (all % count != 0 || count % groups != 0))
        count--;
    return count;
}

double modeli_miss(const modeli_layer *layer, uint64_t count)
{
    double share = 1;
    uint64_t all = layer->net->spec.expert_count;
    for (uint64_t i = 0; i < modeli_choices_of(layer) && !layer->row->is_shared; i++)
        share *= all - i > count ? (double)(all - i - count) / (double)(all - i) : 0;
    return layer->row->is_shared ? 0 : share;
}

static const modeli_layer *router_of(const modeli_list *list, const modeli_layer *layer)
{
    const modeli_layer *router = list->layers;
    while (router->writes != layer->reads[1])
        router++;
    return router;
}

/* ---- sizes of blocks ---- */

static uint64_t size_at(const modeli_layer *layer, uint32_t idx)
{
    return modeli_slot_multiple(layer->net) << idx;
}

/* From the multiple of the slots on, each twice the one before, as far as an expert may need. */
static uint32_t size_count(const modeli_layer *layer)
{
    uint64_t most = size_round_up(modeli_rows(layer->net), size_at(layer, 0));
    uint32_t count = 1;
    while (size_at(layer, count) <= size_min(most, ROWS_MAX))
        count++;
    assert(count <= MODELI_SIZES_MAX);
    return count;
}

/* ---- memory ---- */

/* Offsets in temp, behind the scratch of the products. */
struct room {
    uint64_t inputs, up, gated; /* [R,C], [R,2F], [R,F] */
    uint64_t outputs;           /* [R,C]: outputs, or in a backward the gradients of the inputs */
    uint64_t gated_grad;        /* [R,F], only in a backward */
    modeli_expert_room lora;
    uint64_t end;
};

static bool has_biases(const modeli_layer *layer)
{
    return layer->at.bias != MODELI_ABSENT;
}

static uint64_t library_scratch(const modeli_layer *layer, bool backward)
{
    const model *self = layer->net;
    uint64_t widest = size_max(2 * modeli_expert_width(layer), layer->in);
    const modeli_mixture *by = modeli_mixture_of(layer);
    uint64_t bytes[2] = {0, 0};
    for (uint32_t i = 0; i < size_count(layer); i++) {
        modeli_product_scratch(self, &by->up[i], bytes);
        modeli_product_scratch(self, &by->down[i], bytes);
        modeli_expert_lora_scratch(layer, i, bytes);
        if (has_biases(layer) && self->ops != NULL)
            bytes[1] = size_max(bytes[1], self->ops->bias_backward_scratch_bytes(
                                              self->context, size_at(layer, i), widest));
    }
    return backward ? size_max(bytes[0], bytes[1]) : bytes[0];
}

static struct room room_of(const modeli_layer *layer, bool backward)
{
    uint64_t elem_bytes = dtype_bytes(layer->net->type), width = modeli_expert_width(layer);
    uint64_t rows = size_at(layer, size_count(layer) - 1);
    struct room at = {.end = size_round_up(library_scratch(layer, backward), MODELI_ALIGN_BYTES)};
    at.inputs = modeli_reserve(&at.end, rows * layer->in * elem_bytes);
    at.up = modeli_reserve(&at.end, rows * 2 * width * elem_bytes);
    at.gated = modeli_reserve(&at.end, rows * width * elem_bytes);
    at.outputs = modeli_reserve(&at.end, rows * layer->in * elem_bytes);
    at.gated_grad = modeli_reserve(&at.end, backward ? rows * width * elem_bytes : 0);
    at.lora = modeli_expert_lora_room(layer, rows, &at.end);
    return at;
}

static void scratch(const modeli_layer *layer, const modeli_part *part, uint64_t bytes[2])
{
    (void)part;
    bytes[0] = room_of(layer, false).end;
    bytes[1] = room_of(layer, true).end;
}

/* ---- products ---- */

static modeli_matrix up_matrix(const modeli_layer *layer, uint64_t rows)
{
    modeli_matrix made =
        modeli_matrix_of(layer->net, rows, layer->in, 2 * modeli_expert_width(layer));
    made.has_bias = has_biases(layer);
    return made;
}

static modeli_matrix down_matrix(const modeli_layer *layer, uint64_t rows)
{
    modeli_matrix made = modeli_matrix_of(layer->net, rows, modeli_expert_width(layer), layer->in);
    made.has_bias = has_biases(layer);
    return made;
}

static int prepare(model *self, modeli_layer *layer)
{
    modeli_mixture *by = modeli_mixture_of(layer);
    for (uint32_t i = 0; i < size_count(layer); i++) {
        TRY(modeli_make_matrix(self, &by->up[i], up_matrix(layer, size_at(layer, i))));
        TRY(modeli_make_matrix(self, &by->down[i], down_matrix(layer, size_at(layer, i))));
        TRY(modeli_expert_lora_prepare(self, layer, i, size_at(layer, i)));
    }
    return 0;
}

/* ---- running ---- */

/* The work on one expert at a time. */
struct experts_run {
    const modeli_run *run;
    const modeli_layer *layer;
    const modeli_mixture *by;
    struct room at;
    experts_rows_args rows; /* what is common to all calls */
    /* Experts that belong to ranks: the rows of one rank; where its group is in the gradients. */
    const modeli_parcel_rows *parcel;
    uint64_t grads_group;
    /* The expert's matrices, and its biases, which may be NULL. */
    const void *up, *down, *up_bias, *down_bias;
    float *up_grad, *down_grad, *up_bias_grad, *down_bias_grad;
    /* of up_count matrices, which is 2 where gate and up are apart; and of the one after them */
    modeli_expert_lora up_lora[2], down_lora;
    uint32_t up_count;
    const int32_t *device_offsets;
    int32_t offsets[ROUTER_EXPERTS_MAX + 1]; /* the same on the host */
};

static int begin_run(struct experts_run *of, const modeli_run *run, const modeli_layer *layer)
{
    const model *self = run->self;
    const modeli_layer *router = router_of(run->list, layer);
    modeli_routing at = modeli_routing_of(router);
    char *routed = modeli_value_at(run, router->writes);
    *of = (struct experts_run){.run = run, .layer = layer, .by = modeli_mixture_of(layer)};
    of->up_count = modeli_expert_down(layer);
    of->at = room_of(layer, run->turn == MODELI_TURN_BACKWARD);
    of->rows = (experts_rows_args){
        .type = self->type,
        .rows = modeli_rows(self),
        .choices = at.choices,
        .channels = layer->in,
        .order = modeli_at(routed, at.order),
        .slots = modeli_at(routed, at.slots),
        .weights = modeli_at(routed, at.weights),
        .sums = modeli_at(run->call->saved, run->list->input_sum),
        .weights_grad = modeli_at(routed, at.weights_grad),
    };
    of->device_offsets = modeli_at(routed, at.offsets);
    uint64_t bytes = (at.experts + 1) * sizeof(int32_t);
    if (run->call->step == MODEL_STEP_COMBINE) { /* does not wait for the results */
        memcpy(of->offsets, run->call->parcels.offsets, bytes);
        return 0;
    }
    TRY(self->ops->read_back(self->context, run->stream, of->device_offsets, of->offsets, bytes));
    if (run->call->step == MODEL_STEP_SEND)
        memcpy(run->call->parcels.offsets, of->offsets, bytes);
    return 0;
}

/* The same gradient in the group of a rank. */
static float *grad_at(const struct experts_run *of, uint64_t offset_elems)
{
    uint64_t begin = of->grads_group * of->run->part->group_elems;
    return modeli_layer_grad(of->run, of->layer,
                             offset_elems == MODELI_ABSENT ? offset_elems : begin + offset_elems);
}

static uint64_t place_of(const struct experts_run *of, uint64_t first, uint64_t idx, uint64_t elems)
{
    const modeli_part *part = of->run->part;
    return modeli_expert_at(of->layer, part, part->group_elems, first, idx, elems);
}

/* Finds the matrices and biases of an expert, counted from the part's first, or from the first one
 * of the own group. */
static void take_expert(struct experts_run *of, uint64_t idx)
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

static void *room_at(const struct experts_run *of, uint64_t offset)
{
    return modeli_at(of->run->call->temp, offset);
}

/* `bias`: of a forward; else NULL. */
static int multiply(const struct experts_run *of, const modeli_matrix *by,
                    enum modeli_product which, const void *a, const void *b, const void *bias,
                    void *c)
{
    const modeli_run *run = of->run;
    return run->self->ops->matmul(by->matmul[which], run->stream, a, b, bias, c, run->call->temp);
}

/* The gradients of a matrix and of its bias, from that of what they made. */
static int add_grads(const struct experts_run *of, const modeli_matrix *by,
                     enum modeli_product which, const void *output_grad, const void *input,
                     float *grad, float *bias_grad)
{
    const model *self = of->run->self;
    if (grad != NULL)
        TRY(multiply(of, by, which, output_grad, input, NULL, grad));
    if (bias_grad == NULL)
        return 0;
    return self->ops->bias_backward(self->context, of->run->stream, self->type, by->rows, by->out,
                                    by->out, output_grad, bias_grad, of->run->call->temp);
}

static activation_args gate_of(const struct experts_run *of, uint64_t rows)
{
    return modeli_activation_args(of->run->self, rows, modeli_expert_width(of->layer),
                                  room_at(of, of->at.up));
}

/* Rows of tokens to rows of slots. */
static int gather(const struct experts_run *of, const experts_rows_args *rows, const void *tokens,
                  uint64_t target)
{
    const model *self = of->run->self;
    experts_rows_args args = *rows;
    args.tokens = tokens;
    args.slot_rows = room_at(of, target);
    return self->ops->experts_gather(self->context, of->run->stream, &args);
}

/* A block's rows in a parcel. */
static void *parcel_rows(const struct experts_run *of, const experts_rows_args *rows, char *base)
{
    return base + rows->slot_begin * of->layer->in * dtype_bytes(of->run->self->type);
}

static void *inputs_of(const struct experts_run *of, const experts_rows_args *rows)
{
    return of->parcel ? parcel_rows(of, rows, of->parcel->inputs) : room_at(of, of->at.inputs);
}

/* The outputs of a block; in a backward their gradients, and then those of the inputs. */
static void *outputs_of(const struct experts_run *of, const experts_rows_args *rows)
{
    return of->parcel ? parcel_rows(of, rows, of->parcel->rows) : room_at(of, of->at.outputs);
}

/* Computes the block of slots of `rows` up to the gate. */
static int run_up(const struct experts_run *of, const experts_rows_args *rows, uint32_t size)
{
    const model *self = of->run->self;
    activation_args gate = gate_of(of, rows->slot_count);
    const void *inputs = inputs_of(of, rows);
    gate.output = room_at(of, of->at.gated);
    if (!of->parcel)
        TRY(gather(of, rows, modeli_value_at(of->run, of->layer->reads[0]), of->at.inputs));
    TRY(multiply(of, &of->by->up[size], MODELI_FORWARD, inputs, of->up, of->up_bias,
                 room_at(of, of->at.up)));
    for (uint32_t i = 0; i < of->up_count; i++) {
        TRY(modeli_expert_lora_inner(&of->up_lora[i], size, rows->slot_begin, inputs));
        TRY(modeli_expert_lora_outer(&of->up_lora[i], size, room_at(of, of->at.up)));
    }
    return self->ops->activation_forward(self->context, of->run->stream, &gate);
}

static int forward_block(const struct experts_run *of, const experts_rows_args *rows, uint32_t size)
{
    const model *self = of->run->self;
    experts_rows_args args = *rows;
    args.slot_rows = outputs_of(of, rows);
    TRY(run_up(of, rows, size));
    TRY(multiply(of, &of->by->down[size], MODELI_FORWARD, room_at(of, of->at.gated), of->down,
                 of->down_bias, args.slot_rows));
    TRY(modeli_expert_lora_inner(&of->down_lora, size, rows->slot_begin,
                                 room_at(of, of->at.gated)));
    TRY(modeli_expert_lora_outer(&of->down_lora, size, args.slot_rows));
    if (of->parcel)
        return 0;
    return self->ops->experts_combine(self->context, of->run->stream, &args);
}

/* The gradients of the choices' weights: the weight multiplies gated W^T + b, so its gradient is
 * gated times dy W, plus b times dy. Then the gradients times the weights. */
static int weigh(const struct experts_run *of, const experts_rows_args *rows)
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
static int backward_block(const struct experts_run *of, const experts_rows_args *rows,
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
    TRY(multiply(of, down, MODELI_INPUT_GRAD, outputs, of->down, NULL, gated_grad));
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
    TRY(multiply(of, up, MODELI_INPUT_GRAD, up_grad, of->up, NULL, outputs));
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
static int clear_grads(const struct experts_run *of)
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

/* Runs expert `idx` of the part over all its slots, the largest blocks first. */
static int run_expert(struct experts_run *of, uint64_t idx)
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
    for (uint32_t size = size_count(of->layer); size-- > 0;)
        for (uint64_t count = size_at(of->layer, size); end - at >= count; at += count) {
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

/* Fills the sums with zeros. */
static int begin_sums(const struct experts_run *of)
{
    const model *self = of->run->self;
    return self->ops->zero(self->context, of->run->stream, of->rows.sums,
                           of->rows.rows * of->layer->in * sizeof(float));
}

/* The rows that a rank has sent, through the own experts. */
static int run_parcel(struct experts_run *of, uint64_t rank)
{
    const modeli_part *part = of->run->part;
    uint64_t count = part->rows / modeli_expert_groups(of->layer);
    bool is_backward = of->run->turn == MODELI_TURN_BACKWARD;
    modeli_parcel_rows parcel;
    TRY(modeli_open_parcel(of->run, of->layer, rank, &parcel, of->offsets));
    of->parcel = &parcel;
    of->grads_group = rank;
    of->rows = (experts_rows_args){
        .type = of->run->self->type,
        .rows = (uint64_t)of->offsets[count],
        .choices = 1,
        .channels = of->layer->in,
        .weights = parcel.weights,
        .weights_grad = parcel.weights_grad,
    };
    for (uint64_t i = 0; i < count; i++)
        TRY(run_expert(of, is_backward ? count - 1 - i : i));
    modeli_close_parcel(of->run, of->layer, rank, (uint64_t)of->offsets[count]);
    return 0;
}

static int run_parcels(const modeli_run *run, const modeli_layer *layer)
{
    struct experts_run of = {.run = run, .layer = layer, .by = modeli_mixture_of(layer)};
    of.up_count = modeli_expert_down(layer);
    of.at = room_of(layer, run->turn == MODELI_TURN_BACKWARD);
    for (uint64_t r = 0; r < modeli_expert_groups(layer); r++)
        TRY(run_parcel(&of, r));
    return 0;
}

static int forward(const modeli_run *run, const modeli_layer *layer)
{
    struct experts_run of;
    const model *self = run->self;
    enum model_step step = run->call->step;
    assert(run->part != NULL);
    if (run->turn == MODELI_TURN_RECOMPUTE)
        return 0;
    if (step == MODEL_STEP_EXPERTS)
        return run_parcels(run, layer);
    TRY(begin_run(&of, run, layer));
    if (step == MODEL_STEP_SEND)
        return modeli_send_rows(run, layer, &of.rows, of.offsets, of.device_offsets);
    if (run->part->is_first)
        TRY(begin_sums(&of));
    if (step == MODEL_STEP_COMBINE)
        TRY(modeli_take_results(run, layer, &of.rows, of.offsets));
    for (uint64_t i = 0; i < run->part->rows && step == MODEL_STEP_WHOLE; i++)
        TRY(run_expert(&of, i));
    if (!run->part->is_last)
        return 0;
    return self->ops->convert(self->context, run->stream, of.rows.sums, DTYPE_FP32,
                              modeli_value_at(run, layer->writes), self->type,
                              of.rows.rows * layer->out);
}

static int backward(const modeli_run *run, const modeli_layer *layer)
{
    struct experts_run of;
    enum model_step step = run->call->step;
    if (step == MODEL_STEP_EXPERTS)
        return run_parcels(run, layer);
    TRY(begin_run(&of, run, layer));
    if (step == MODEL_STEP_SEND)
        return modeli_send_rows(run, layer, &of.rows, of.offsets, of.device_offsets);
    if (run->part->is_last)
        TRY(begin_sums(&of));
    if (step == MODEL_STEP_COMBINE)
        TRY(modeli_take_results(run, layer, &of.rows, of.offsets));
    for (uint64_t i = run->part->rows; i-- > 0 && step == MODEL_STEP_WHOLE;)
        TRY(run_expert(&of, i));
    return run->part->is_first ? modeli_round_input_grad(run, layer) : 0;
}

/* ---- costs ---- */

static uint64_t columns(const modeli_layer *layer, bool backward)
{
    uint64_t choices = modeli_choices_of(layer), width = modeli_expert_width(layer);
    uint64_t once = 5 * layer->in + 5 * width;
    return choices * (backward ? 3 * once : once);
}

/* Every expert that is hit at all has the same number of rows. */
static void costs(const modeli_layer *layer, const modeli_costing *of)
{
    modeli_routing at = modeli_routing_of(layer);
    uint64_t pairs = modeli_rows(layer->net) * at.choices, hit = size_min(pairs, at.experts);
    uint64_t rows = size_div_up(pairs, hit),
             experts = size_div_up(of->part->rows * hit, at.experts);
    uint64_t width = modeli_expert_width(layer), elem_bytes = dtype_bytes(layer->net->type);
    bool backward = of->turn == MODELI_TURN_BACKWARD;
    uint32_t size = size_count(layer) - 1;
    while (size > 0 && size_at(layer, size) > rows)
        size--;
    uint64_t block = size_at(layer, size), blocks = experts * size_div_up(rows, block);
    uint64_t slots = blocks * block;
    modeli_matrix up = up_matrix(layer, block), down = down_matrix(layer, block);
    modeli_expert_lora_costs(layer, backward, block, blocks, of->costs);
    modeli_cost_product(layer->net, &up, MODELI_FORWARD, blocks, of->costs);
    modeli_cost_rows(MODEL_ROWS_SWIGLU, slots, 3 * width, elem_bytes, of->costs);
    modeli_cost_rows(MODEL_ROWS_PLAIN, slots, (backward ? 7 : 5) * layer->in, elem_bytes,
                     of->costs);
    if (!backward) {
        modeli_cost_product(layer->net, &down, MODELI_FORWARD, blocks, of->costs);
        return;
    }
    modeli_cost_product(layer->net, &down, MODELI_INPUT_GRAD, blocks, of->costs);
    modeli_cost_product(layer->net, &up, MODELI_INPUT_GRAD, blocks, of->costs);
    modeli_cost_rows(MODEL_ROWS_SWIGLU_GRAD, slots, 5 * width, elem_bytes, of->costs);
    if (!of->work.weights)
        return;
    modeli_cost_product(layer->net, &down, MODELI_WEIGHT, blocks, of->costs);
    modeli_cost_product(layer->net, &up, MODELI_WEIGHT, blocks, of->costs);
    if (has_biases(layer))
        modeli_cost_rows(MODEL_ROWS_PLAIN, slots, 2 * width + layer->in, elem_bytes, of->costs);
}

const modeli_kind modeli_experts = {
    .has_matrix = true,
    .has_experts = true,
    .has_product = true,
    .keeps_input = true,
    .gradient = MODELI_GRAD_REPLACES,
    .forward = forward,
    .backward = backward,
    .prepare = prepare,
    .scratch = scratch,
    .columns = columns,
    .costs = costs,
};
