/* ROUTER: chooses the experts of each token, and gives every choice a place among those of its
 * expert (kernels/ops_experts.h). Its value holds no activation. It holds all that the layers of
 * the experts need (struct modeli_routing), and the gradients of the choices' weights, which the
 * backward of the experts leaves here. CORRECTION: what is added to scores for that choice.
 * Allocates nothing.
 *
 * LOSSES. Those of load balancing and of large logits are of all routers together. The forward of
 * each adds its rows to the totals of the micro-batch, in the order of the blocks; a recomputation
 * gets no totals. All forwards run before the first backward, so each backward finds whole
 * totals. */
#include <assert.h>

#include "model/model_internal.h"

enum { MULTIPLE_MAX = 64 };

/* The slots of an expert begin at a multiple of this: so many rows at least has a block of a
 * product. Fewer only where there are fewer tokens, as in generation. */
uint64_t modeli_slot_multiple(const model *self)
{
    uint64_t multiple = MULTIPLE_MAX;
    while (multiple > modeli_rows(self))
        multiple /= 2;
    return multiple;
}

modeli_routing modeli_routing_of(const modeli_layer *layer)
{
    const model *self = layer->net;
    const model_spec *spec = &self->spec;
    uint64_t rows = modeli_rows(self), end = 0;
    bool is_shared = layer->row->is_shared;
    modeli_routing made = {.experts = is_shared ? 1 : spec->expert_count,
                           .choices = modeli_choices_of(layer),
                           .multiple = modeli_slot_multiple(self)};
    uint64_t pairs = rows * made.choices * sizeof(float);
    made.slot_count = experts_slots_max(rows, made.experts, made.choices, made.multiple);
    made.logits = modeli_reserve(&end, rows * made.experts * sizeof(float));
    made.chosen = modeli_reserve(&end, pairs);
    made.weights = modeli_reserve(&end, pairs);
    made.slots = modeli_reserve(&end, pairs);
    made.weights_grad = modeli_reserve(&end, pairs);
    made.offsets = modeli_reserve(&end, (made.experts + 1) * sizeof(int32_t));
    made.order = modeli_reserve(&end, made.slot_count * sizeof(int32_t));
    made.bytes = end;
    return made;
}

/* Columns of activations that take as much memory. */
static uint64_t out_columns(const modeli_layer *layer)
{
    return size_div_up(modeli_routing_of(layer).bytes,
                       modeli_rows(layer->net) * dtype_bytes(layer->net->type));
}

/* ---- losses ---- */

const modeli_layer *modeli_router_of(const modeli_list *list)
{
    for (uint32_t i = 0; i < list->layer_count; i++)
        if (list->layers[i].kind == &modeli_router && !list->layers[i].row->is_shared)
            return &list->layers[i];
    return NULL;
}

uint32_t modeli_first_router(const model *self)
{
    uint32_t stage = 0;
    while (modeli_router_of(modeli_list_of(self, stage)) == NULL)
        stage++;
    return stage;
}

uint64_t model_totals_bytes(const model *self)
{
    const model_spec *spec = &self->spec;
    bool has_losses = spec->balance_coef != 0 || spec->router_z_coef != 0;
    bool has_routers = spec->expert_count > 0 && spec->dense_blocks < spec->num_layers;
    return has_losses && has_routers ? (2 * spec->expert_count + 1) * sizeof(double) : 0;
}

/* Rows of all routers in a micro-batch. */
static double routed_rows(const model *self)
{
    uint64_t count = 0;
    for (uint32_t s = 0; s < self->stage_count; s++)
        count += modeli_router_of(modeli_list_of(self, s)) != NULL;
    return (double)count * (double)modeli_rows(self);
}

void model_router_losses(const model *self, const double *totals, double *balance, double *z)
{
    uint64_t experts = self->spec.expert_count;
    double rows = routed_rows(self);
    *balance = 0;
    for (uint64_t e = 0; e < experts; e++)
        *balance += (double)experts * (totals[e] / rows) * (totals[experts + e] / rows);
    *z = totals[2 * experts] / rows;
}

static int add_totals(const modeli_run *run, const modeli_layer *layer, const router_args *args)
{
    const model *self = run->self;
    router_sums_args sums = {
        .rows = args->rows,
        .experts = args->experts,
        .choices = args->choices,
        .logits = args->logits,
        .chosen = args->chosen,
        .totals = run->call->totals,
        .scratch = run->call->temp,
    };
    if (sums.totals == NULL || layer->row->is_shared)
        return 0;
    if (run->call->layer == model_block_of(self, modeli_first_router(self)))
        TRY(self->ops->zero(self->context, run->stream, sums.totals, model_totals_bytes(self)));
    return self->ops->router_sums(self->context, run->stream, &sums);
}

static void put_scales(const modeli_run *run, const modeli_layer *layer, router_args *args)
{
    const model_spec *spec = &run->self->spec;
    if (run->call->totals == NULL || layer->row->is_shared)
        return;
    double rows = routed_rows(run->self), scale = (double)run->call->router_scale;
    args->totals = run->call->totals;
    args->balance_scale = (float)(scale * spec->balance_coef * (double)args->experts / rows / rows);
    args->z_scale = (float)(scale * spec->router_z_coef * 2 / rows);
}

/* ---- running ---- */

static router_args args_of(const modeli_run *run, const modeli_layer *layer,
                           const modeli_routing *at)
{
    const model_spec *spec = &run->self->spec;
    char *routed = modeli_value_at(run, layer->writes);
    bool is_shared = layer->row->is_shared;
    return (router_args){
        .score = is_shared || spec->sigmoid_scores ? ROUTER_SIGMOID : ROUTER_SOFTMAX,
        .rows = modeli_rows(run->self),
        .experts = at->experts,
        .choices = at->choices,
        .groups = is_shared ? 0 : spec->expert_groups,
        .groups_chosen = is_shared ? 0 : spec->groups_per_token,
        .group_best = spec->sigmoid_scores ? 2 : 1,
        .normalizes = !is_shared && spec->normalizes_experts,
        .scale = is_shared || spec->routed_scaling == 0 ? 1.0f : (float)spec->routed_scaling,
        .logits = modeli_at(routed, at->logits),
        .chosen = modeli_at(routed, at->chosen),
        .weights = modeli_at(routed, at->weights),
        .type = run->self->type,
        .weights_grad = modeli_at(routed, at->weights_grad),
    };
}

/* True if the part has experts of this router, all of which a token may leave out. */
static bool is_told(const modeli_list *list, const modeli_part *part, const modeli_layer *router)
{
    const modeli_layer *owner = &list->layers[part->owner];
    return owner->kind->has_experts && owner->reads[1] == router->writes &&
           modeli_miss(owner, part->rows) > 0;
}

modeli_range modeli_told_units(const modeli_list *list, const modeli_layer *router)
{
    modeli_range told = {0, 0};
    for (uint32_t p = 0; p < list->part_count; p++) {
        if (!is_told(list, &list->parts[p], router))
            continue;
        told.begin = told.end == 0 ? list->parts[p].unit : told.begin;
        told.end = list->parts[p].unit + 1;
    }
    return told;
}

/* Notes which parts, of those that may have none, have experts with slots. */
static int tell_hits(const modeli_run *run, const modeli_layer *layer, const void *offsets)
{
    const modeli_list *list = run->list;
    const model *self = run->self;
    uint64_t experts = modeli_routing_of(layer).experts;
    int32_t begins[ROUTER_EXPERTS_MAX + 1];
    modeli_range told = modeli_told_units(list, layer);
    if (run->call->hits == NULL || layer->row->is_shared)
        return 0;
    const read_back_args args = {.source = offsets,
                                 .target = begins,
                                 .rows = 1,
                                 .row_bytes = (experts + 1) * sizeof begins[0]};
    TRY(self->ops->read_back(self->context, run->stream, &args));
    for (uint32_t p = 0; p < list->part_count; p++) {
        const modeli_part *part = &list->parts[p];
        if (!is_told(list, part, layer))
            continue;
        assert(part->unit >= told.begin && part->unit < told.end);
        if (begins[part->row_begin + part->rows] > begins[part->row_begin])
            run->call->hits[part->unit - told.begin] = 1;
    }
    return 0;
}

static int forward(const modeli_run *run, const modeli_layer *layer)
{
    const model *self = run->self;
    const kernel_ops *ops = self->ops;
    modeli_params params = modeli_params_of(run, layer);
    modeli_routing at = modeli_routing_of(layer);
    char *routed = modeli_value_at(run, layer->writes);
    router_args args = args_of(run, layer, &at);
    args.bias = modeli_value_at(run, layer->reads[1]);
    experts_sort_args sort = {
        .rows = args.rows,
        .experts = at.experts,
        .choices = at.choices,
        .multiple = at.multiple,
        .chosen = args.chosen,
        .offsets = modeli_at(routed, at.offsets),
        .order = modeli_at(routed, at.order),
        .slots = modeli_at(routed, at.slots),
    };
    TRY(ops->matmul(run->part->products[0].matmul[MODELI_FORWARD], run->stream,
                    modeli_value_at(run, layer->reads[0]),
                    modeli_layer_param(run, layer, params.weight),
                    modeli_layer_param(run, layer, params.bias), modeli_at(routed, at.logits),
                    run->call->temp));
    TRY(ops->router_forward(self->context, run->stream, &args));
    TRY(add_totals(run, layer, &args));
    TRY(ops->experts_sort(self->context, run->stream, &sort));
    return tell_hits(run, layer, sort.offsets);
}

/* The gradient of the logits [N,E] lies behind the library's scratch in temp. */
static uint64_t logits_grad_at(const modeli_layer *layer, const modeli_part *part)
{
    uint64_t bytes[2] = {0, 0};
    modeli_linear.scratch(layer, part, bytes);
    return size_round_up(bytes[1], MODELI_ALIGN_BYTES);
}

static int backward(const modeli_run *run, const modeli_layer *layer)
{
    modeli_routing at = modeli_routing_of(layer);
    router_args args = args_of(run, layer, &at);
    args.logits_grad = modeli_at(run->call->temp, logits_grad_at(layer, run->part));
    put_scales(run, layer, &args);
    TRY(run->self->ops->router_backward(run->self->context, run->stream, &args));
    return modeli_linear_backward(run, layer, args.logits_grad);
}

static void scratch(const modeli_layer *layer, const modeli_part *part, uint64_t bytes[2])
{
    const model *self = layer->net;
    modeli_routing at = modeli_routing_of(layer);
    uint64_t grads = modeli_rows(self) * at.experts * dtype_bytes(self->type);
    modeli_linear.scratch(layer, part, bytes);
    bytes[1] = logits_grad_at(layer, part) + grads;
    if (model_totals_bytes(self) > 0 && self->ops != NULL)
        bytes[0] = size_max(bytes[0], self->ops->router_sums_scratch_bytes(
                                          self->context, modeli_rows(self), at.experts));
}

static uint64_t columns(const modeli_layer *layer, bool backward)
{
    return layer->in + layer->matrix_rows + (backward ? 3 * layer->in : 0);
}

static void costs(const modeli_layer *layer, const modeli_costing *of)
{
    bool backward = of->turn == MODELI_TURN_BACKWARD;
    bool sums = of->turn == MODELI_TURN_FORWARD && model_totals_bytes(layer->net) > 0;
    modeli_linear.costs(layer, of);
    if (sums && !layer->row->is_shared)
        modeli_cost_rows(MODEL_ROWS_SWIGLU, modeli_rows(layer->net), layer->matrix_rows,
                         sizeof(float), of->costs);
    modeli_cost_rows(backward ? MODEL_ROWS_SWIGLU_GRAD : MODEL_ROWS_SWIGLU, modeli_rows(layer->net),
                     3 * layer->matrix_rows, sizeof(float), of->costs);
}

const modeli_kind modeli_router = {
    .has_matrix = true,
    .is_one_part = true,
    .has_product = true,
    .keeps_input = true,
    .keeps_output = true,
    .gradient = MODELI_GRAD_REPLACES,
    .out = out_columns,
    .forward = forward,
    .backward = backward,
    .scratch = scratch,
    .columns = columns,
    .costs = costs,
};

/* ---- CORRECTION ----
 *
 * A constant of each expert, which its score is increased by where experts are chosen (DeepSeek-V3,
 * e_score_correction_bias). It has no gradient. Checkpoints have it in fp32, and in fewer bits
 * other experts would be chosen; so it is a unit of its own, kept in fp32. The value is those E
 * numbers, one after the other. */

static uint64_t correction_columns(const modeli_layer *layer)
{
    const model *self = layer->net;
    return size_div_up(self->spec.expert_count * sizeof(float),
                       modeli_rows(self) * dtype_bytes(self->type));
}

static int correction_forward(const modeli_run *run, const modeli_layer *layer)
{
    const model *self = run->self;
    return self->ops->convert(self->context, run->stream, run->call->params[layer->unit],
                              DTYPE_FP32, modeli_value_at(run, layer->writes), DTYPE_FP32,
                              self->spec.expert_count);
}

const modeli_kind modeli_correction = {
    .is_constant = true,
    .out = correction_columns,
    .forward = correction_forward,
    .row_kinds = {MODEL_ROWS_PLAIN, MODEL_ROWS_PLAIN},
};
