/* EXPERTS: the feed-forward part of a mixture. y = sum over a token's experts of weight *
 * expert(x). It reads x and what the router wrote.
 *
 * Each expert has a matrix for gate and up, and one for down. Only x is kept: the backward computes
 * the rest again. A part has some experts. It takes its experts one after the other, and the slots
 * of each (kernels/ops_experts.h) in blocks of rows (run_expert.c), whose sizes are prepared:
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

#include "model/experts_internal.h"

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

uint64_t modeli_expert_size_at(const modeli_layer *layer, uint32_t idx)
{
    return modeli_slot_multiple(layer->net) << idx;
}

uint32_t modeli_expert_size_count(const modeli_layer *layer)
{
    uint64_t most = size_round_up(modeli_rows(layer->net), modeli_expert_size_at(layer, 0));
    uint32_t count = 1;
    while (modeli_expert_size_at(layer, count) <= size_min(most, ROWS_MAX))
        count++;
    assert(count <= MODELI_SIZES_MAX);
    return count;
}

/* ---- memory ---- */

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
    for (uint32_t i = 0; i < modeli_expert_size_count(layer); i++) {
        modeli_product_scratch(self, &by->up[i], bytes);
        modeli_product_scratch(self, &by->down[i], bytes);
        modeli_expert_lora_scratch(layer, i, bytes);
        if (has_biases(layer) && self->ops != NULL)
            bytes[1] =
                size_max(bytes[1], self->ops->bias_backward_scratch_bytes(
                                       self->context, modeli_expert_size_at(layer, i), widest));
    }
    return backward ? size_max(bytes[0], bytes[1]) : bytes[0];
}

static modeli_experts_room room_of(const modeli_layer *layer, bool backward)
{
    uint64_t elem_bytes = dtype_bytes(layer->net->type), width = modeli_expert_width(layer);
    uint64_t rows = modeli_expert_size_at(layer, modeli_expert_size_count(layer) - 1);
    modeli_experts_room at = {
        .end = size_round_up(library_scratch(layer, backward), MODELI_ALIGN_BYTES)};
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
    for (uint32_t i = 0; i < modeli_expert_size_count(layer); i++) {
        TRY(modeli_make_matrix(self, &by->up[i],
                               up_matrix(layer, modeli_expert_size_at(layer, i))));
        TRY(modeli_make_matrix(self, &by->down[i],
                               down_matrix(layer, modeli_expert_size_at(layer, i))));
        TRY(modeli_expert_lora_prepare(self, layer, i, modeli_expert_size_at(layer, i)));
    }
    return 0;
}

/* ---- running ---- */

/* The passes of a layer's parts follow each other, so the first one leaves the offsets for the
 * others, and none of these waits for the device. */
static bool knows_offsets(const modeli_run *run)
{
    bool backward = run->turn == MODELI_TURN_BACKWARD;
    bool is_first_pass = backward ? run->part->is_last : run->part->is_first;
    return run->call->parcels.offsets != NULL &&
           (!is_first_pass || run->call->step == STEP_COMBINE);
}

static int begin_run(modeli_experts_run *of, const modeli_run *run, const modeli_layer *layer)
{
    const model *self = run->self;
    const modeli_layer *router = router_of(run->list, layer);
    modeli_routing at = modeli_routing_of(router);
    char *routed = modeli_value_at(run, router->writes);
    *of = (modeli_experts_run){.run = run, .layer = layer, .by = modeli_mixture_of(layer)};
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
    const read_back_args args = {.source = of->device_offsets,
                                 .target = of->read,
                                 .rows = 1,
                                 .row_bytes = (at.experts + 1) * sizeof of->read[0]};
    of->offsets = of->read;
    if (knows_offsets(run)) {
        memcpy(of->read, run->call->parcels.offsets, args.row_bytes);
        return 0;
    }
    TRY(self->ops->read_back(self->context, run->stream, &args));
    if (run->call->parcels.offsets != NULL)
        memcpy(run->call->parcels.offsets, of->read, args.row_bytes);
    return 0;
}

/* Fills the sums with zeros. */
static int begin_sums(const modeli_experts_run *of)
{
    const model *self = of->run->self;
    return self->ops->zero(self->context, of->run->stream, of->rows.sums,
                           of->rows.rows * of->layer->in * sizeof(float));
}

/* The rows that a rank has sent, through the own experts. */
static int run_parcel(modeli_experts_run *of, uint64_t rank)
{
    const modeli_part *part = of->run->part;
    uint64_t count = part->rows / modeli_expert_groups(of->layer);
    bool is_backward = of->run->turn == MODELI_TURN_BACKWARD;
    modeli_parcel_rows parcel;
    of->offsets = of->read + rank * (count + 1);
    modeli_open_parcel(of->run, of->layer, rank, of->offsets, &parcel);
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
        TRY(modeli_run_expert(of, is_backward ? count - 1 - i : i));
    modeli_close_parcel(of->run, of->layer, rank, (uint64_t)of->offsets[count]);
    return 0;
}

static int run_parcels(const modeli_run *run, const modeli_layer *layer)
{
    modeli_experts_run of = {.run = run, .layer = layer, .by = modeli_mixture_of(layer)};
    of.up_count = modeli_expert_down(layer);
    of.at = room_of(layer, run->turn == MODELI_TURN_BACKWARD);
    TRY(modeli_read_parcels(run, layer, of.read));
    for (uint64_t r = 0; r < modeli_expert_groups(layer); r++)
        TRY(run_parcel(&of, r));
    return 0;
}

static int forward(const modeli_run *run, const modeli_layer *layer)
{
    modeli_experts_run of;
    const model *self = run->self;
    enum op_step step = run->call->step;
    assert(run->part != NULL);
    if (run->turn == MODELI_TURN_RECOMPUTE)
        return 0;
    if (step == STEP_EXPERTS)
        return run_parcels(run, layer);
    TRY(begin_run(&of, run, layer));
    if (step == STEP_SEND)
        return modeli_send_rows(run, layer, &of.rows, of.offsets, of.device_offsets);
    if (run->part->is_first)
        TRY(begin_sums(&of));
    if (step == STEP_COMBINE)
        TRY(modeli_take_results(run, layer, &of.rows, of.offsets));
    for (uint64_t i = 0; i < run->part->rows && step == STEP_WHOLE; i++)
        TRY(modeli_run_expert(&of, i));
    if (!run->part->is_last)
        return 0;
    return self->ops->convert(self->context, run->stream, of.rows.sums, DTYPE_FP32,
                              modeli_value_at(run, layer->writes), self->type,
                              of.rows.rows * layer->out);
}

static int backward(const modeli_run *run, const modeli_layer *layer)
{
    modeli_experts_run of;
    enum op_step step = run->call->step;
    if (step == STEP_EXPERTS)
        return run_parcels(run, layer);
    TRY(begin_run(&of, run, layer));
    if (step == STEP_SEND)
        return modeli_send_rows(run, layer, &of.rows, of.offsets, of.device_offsets);
    if (run->part->is_last)
        TRY(begin_sums(&of));
    if (step == STEP_COMBINE)
        TRY(modeli_take_results(run, layer, &of.rows, of.offsets));
    for (uint64_t i = run->part->rows; i-- > 0 && step == STEP_WHOLE;)
        TRY(modeli_run_expert(&of, i));
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
    uint32_t size = modeli_expert_size_count(layer) - 1;
    while (size > 0 && modeli_expert_size_at(layer, size) > rows)
        size--;
    uint64_t block = modeli_expert_size_at(layer, size),
             blocks = experts * size_div_up(rows, block);
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
