/* Low-rank adapters beside linear layers (Hu et al. 2021, "LoRA"), of whole stages or of parts that
 * have a whole layer:
 *
 *   y += B u,  u = s A d(x),  s = alpha / rank
 *   backward, given dy:  du = s dy B;  dB += dy^T u;  dA += du^T d(x);  dx += d(du A)
 *   (dA and dB are written if they are fresh)
 *
 * d is the dropout of train.lora.dropout, with a mask of its own for each adapter; without one d(x)
 * is x.
 *
 * All products are in the working dtype with fp32 sums. As in PEFT, the terms added to y and dx are
 * first rounded to it. The scale is applied to u and du, which are small. u [N,rank] of every
 * adapter lies in `saved`; its row stride is a multiple of MODELI_RANK_STEP. A layer that is one
 * product for several targets (q, k, v; gate, up) has an adapter for each, on that target's columns
 * of the output.
 *
 * temp, after the library's scratch (modeli_lora_temp_bytes):
 *   delta   the largest term added to y or dx; or d(x); or dy's columns of an adapter without gaps
 *   small   du of each of the layer's adapters
 *
 * Allocates nothing. */
#include "model/model_internal.h"

/* ---- shapes ---- */

uint64_t modeli_lora_stride(const model *self)
{
    return size_round_up(self->spec.lora.rank, MODELI_RANK_STEP);
}

static uint64_t small_bytes(const model *self)
{
    uint64_t bytes = modeli_rows(self) * modeli_lora_stride(self) * dtype_bytes(self->type);
    return size_round_up(bytes, MODELI_ALIGN_BYTES);
}

uint64_t modeli_lora_saved_bytes(const model *self)
{
    return small_bytes(self);
}

/* Offsets from the end of the library's scratch, which is rounded up. */
struct lora_temp {
    uint64_t delta, small[MODELI_LAYER_ADAPTERS_MAX], end;
};

static struct lora_temp temp_from(const model *self, const modeli_list *list,
                                  uint64_t scratch_bytes)
{
    struct lora_temp at = {.delta = size_round_up(scratch_bytes, MODELI_ALIGN_BYTES)};
    uint64_t widest = 0;
    for (uint32_t i = 0; i < list->adapter_count; i++) {
        const modeli_adapter *adapter = &list->adapters[i];
        widest = size_max(widest, size_max(adapter->in, adapter->out));
    }
    uint64_t delta_bytes = modeli_rows(self) * widest * dtype_bytes(self->type);
    at.end = at.delta + size_round_up(delta_bytes, MODELI_ALIGN_BYTES);
    for (uint32_t i = 0; i < MODELI_LAYER_ADAPTERS_MAX; i++) {
        at.small[i] = at.end;
        at.end += small_bytes(self);
    }
    return at;
}

/* The library's scratch of a pass. */
static uint64_t scratch_of(const modeli_list *list, const modeli_part *part, bool backward)
{
    return part ? part->scratch_bytes[backward] : list->scratch_bytes[backward];
}

uint64_t modeli_lora_temp_bytes(const model *self, const modeli_list *list, const modeli_part *part,
                                bool backward)
{
    uint64_t scratch_bytes = scratch_of(list, part, backward);
    bool is_without = part ? !part->has_adapters || list->layers[part->owner].kind != &modeli_linear
                           : list->adapter_count == 0;
    return is_without ? scratch_bytes : temp_from(self, list, scratch_bytes).end;
}

static bool is_in(const modeli_adapter *adapter, modeli_range range)
{
    return adapter->layer >= range.begin && adapter->layer < range.end;
}

uint64_t modeli_lora_dram_bytes(const model *self, const modeli_list *list, modeli_range range)
{
    uint64_t columns = 0;
    for (uint32_t i = 0; i < list->adapter_count; i++) {
        const modeli_adapter *adapter = &list->adapters[i];
        if (!is_in(adapter, range))
            continue;
        columns += adapter->in + 4 * adapter->out + 4 * self->spec.lora.rank;
        columns += self->spec.lora.dropout > 0 ? 2 * adapter->in : 0;
    }
    return modeli_rows(self) * columns * dtype_bytes(self->type);
}

double modeli_lora_elems(const modeli_list *list)
{
    double elems = 0;
    for (uint32_t i = 0; i < list->adapter_count; i++)
        elems += (double)(list->adapters[i].in + list->adapters[i].out) *
                 (double)list->layers[0].net->spec.lora.rank;
    return elems;
}

/* ---- products ---- */

static modeli_matrix inner_matrix(const model *self, const modeli_adapter *adapter)
{
    modeli_matrix made =
        modeli_matrix_of(self, modeli_rows(self), adapter->in, self->spec.lora.rank);
    made.out_stride = modeli_lora_stride(self);
    return made;
}

static modeli_matrix outer_matrix(const model *self, const modeli_adapter *adapter)
{
    modeli_matrix made =
        modeli_matrix_of(self, modeli_rows(self), self->spec.lora.rank, adapter->out);
    made.in_stride = modeli_lora_stride(self);
    return made;
}

int modeli_lora_prepare(model *self, modeli_list *list, modeli_range range,
                        uint64_t scratch_bytes[2])
{
    for (uint32_t i = 0; i < list->adapter_count; i++) {
        modeli_adapter *adapter = &list->adapters[i];
        if (!is_in(adapter, range))
            continue;
        TRY(modeli_make_matrix(self, &adapter->inner, inner_matrix(self, adapter)));
        TRY(modeli_make_matrix(self, &adapter->outer, outer_matrix(self, adapter)));
        modeli_product_scratch(self, &adapter->inner, scratch_bytes);
        modeli_product_scratch(self, &adapter->outer, scratch_bytes);
    }
    return 0;
}

/* ---- costs ---- */

float modeli_lora_scale(const model *self)
{
    return (float)(self->spec.lora.alpha / (double)self->spec.lora.rank);
}

static void cost_scale(const model *self, uint64_t columns, bool accumulates, model_costs *costs)
{
    modeli_cost_columns(self, MODEL_ROWS_PLAIN, (accumulates ? 3 : 2) * columns, costs);
}

static void cost_small(const model *self, model_costs *costs)
{
    if (modeli_lora_scale(self) != 1.0f)
        cost_scale(self, self->spec.lora.rank, false, costs);
}

static void cost_drop(const model *self, const modeli_adapter *adapter, model_costs *costs)
{
    if (self->spec.lora.dropout > 0)
        modeli_cost_columns(self, MODEL_ROWS_DROPOUT, 2 * adapter->in, costs);
}

static void cost_backward(const model *self, const modeli_layer *layer,
                          const modeli_adapter *adapter, bool wants_input, model_costs *costs)
{
    modeli_matrix inner = inner_matrix(self, adapter), outer = outer_matrix(self, adapter);
    if (adapter->out != layer->out)
        cost_scale(self, adapter->out, false, costs);
    modeli_cost_product(self, &outer, MODELI_WEIGHT, 1, costs);
    modeli_cost_product(self, &outer, MODELI_INPUT_GRAD, 1, costs);
    cost_small(self, costs);
    cost_drop(self, adapter, costs);
    modeli_cost_product(self, &inner, MODELI_WEIGHT, 1, costs);
    if (!wants_input)
        return;
    modeli_cost_product(self, &inner, MODELI_INPUT_GRAD, 1, costs);
    cost_drop(self, adapter, costs);
    cost_scale(self, adapter->in, true, costs);
}

void modeli_lora_costs(const modeli_layer *layer, const modeli_costing *of, bool wants_input)
{
    const model *self = layer->net;
    const modeli_list *list = modeli_list_of(self, of->stage);
    for (uint32_t i = 0; i < list->adapter_count; i++) {
        const modeli_adapter *adapter = &list->adapters[i];
        modeli_matrix inner = inner_matrix(self, adapter), outer = outer_matrix(self, adapter);
        if (&list->layers[adapter->layer] != layer)
            continue;
        if (of->turn == MODELI_TURN_BACKWARD) {
            cost_backward(self, layer, adapter, wants_input, of->costs);
            continue;
        }
        cost_drop(self, adapter, of->costs);
        modeli_cost_product(self, &inner, MODELI_FORWARD, 1, of->costs);
        cost_small(self, of->costs);
        if (of->turn == MODELI_TURN_RECOMPUTE && !layer->is_recomputed[KEPT_NONE])
            continue;
        modeli_cost_product(self, &outer, MODELI_FORWARD, 1, of->costs);
        cost_scale(self, adapter->out, true, of->costs);
    }
}

/* ---- running ---- */

/* One adapter in one call. */
struct lora_run {
    const modeli_run *run;
    const modeli_adapter *adapter;
    const modeli_layer *layer;
    const void *a, *b; /* its matrices */
    void *u;           /* [N,rank] */
    struct lora_temp at;
};

/* Finds the next adapter of a layer from *idx on, and moves *idx behind it. */
static bool next_adapter(const modeli_run *run, const modeli_layer *layer, uint32_t *idx,
                         struct lora_run *out)
{
    const model *self = run->self;
    const modeli_list *list = run->list;
    bool is_backward = run->turn == MODELI_TURN_BACKWARD;
    while (*idx < list->adapter_count && &list->layers[list->adapters[*idx].layer] != layer)
        ++*idx;
    if (*idx == list->adapter_count)
        return false;
    const modeli_adapter *adapter = &list->adapters[(*idx)++];
    *out = (struct lora_run){
        .run = run,
        .adapter = adapter,
        .layer = layer,
        .a = modeli_param(self, run->call->params[1], adapter->a),
        .b = modeli_param(self, run->call->params[1], adapter->b),
        .u = modeli_at_spot(run, adapter->inner_at),
        .at = temp_from(self, list, scratch_of(list, run->part, is_backward)),
    };
    return true;
}

/* Multiplies u or du by alpha / rank, in place. */
static int scale_small(const struct lora_run *of, void *small)
{
    const model *self = of->run->self;
    float by = modeli_lora_scale(self);
    uint64_t stride = modeli_lora_stride(self);
    if (by == 1.0f)
        return 0;
    return modeli_scale_columns(of->run->self, of->run->stream, modeli_rows(self),
                                self->spec.lora.rank, by, false, small, stride, small, stride);
}

static int drop(const struct lora_run *of, const void *source, void *target)
{
    const modeli_run *run = of->run;
    return modeli_drop(run->self, run->stream, run->call, run->self->spec.lora.dropout,
                       modeli_block_site(run->call, MODELI_ADAPTER_SITE + of->adapter->target),
                       of->adapter->in, source, target);
}

static bool drops(const struct lora_run *of)
{
    return of->run->self->spec.lora.dropout > 0 && of->run->call->dropout_counter != NULL;
}

/* The adapter's input: that of the layer or, with dropout, its copy in delta. */
static int own_input(const struct lora_run *of, const void *source, const void **own)
{
    void *delta = modeli_at(of->run->call->temp, of->at.delta);
    *own = drops(of) ? delta : source;
    return drops(of) ? drop(of, source, delta) : 0;
}

int modeli_lora_inner(const modeli_run *run, const modeli_layer *layer, const void *source)
{
    struct lora_run of;
    for (uint32_t i = 0; next_adapter(run, layer, &i, &of);) {
        const void *own;
        TRY(own_input(&of, source, &own));
        TRY(modeli_multiply(run, &of.adapter->inner, MODELI_FORWARD, own, of.a, NULL, of.u));
        TRY(scale_small(&of, of.u));
    }
    return 0;
}

int modeli_lora_outer(const modeli_run *run, const modeli_layer *layer, void *target)
{
    struct lora_run of;
    for (uint32_t i = 0; next_adapter(run, layer, &i, &of);) {
        void *delta = modeli_at(run->call->temp, of.at.delta);
        void *columns = modeli_at(target, of.adapter->column * dtype_bytes(run->self->type));
        TRY(modeli_multiply(run, &of.adapter->outer, MODELI_FORWARD, of.u, of.b, NULL, delta));
        TRY(modeli_scale_columns(run->self, run->stream, modeli_rows(run->self), of.adapter->out, 1,
                                 true, delta, of.adapter->out, columns, layer->out));
    }
    return 0;
}

/* dy of the adapter, [N,out] without gaps: the layer's dy if the adapter has all its columns, else
 * a copy in `delta`. */
static int own_columns(const struct lora_run *of, const void *output_grad, const void **own)
{
    const modeli_run *run = of->run;
    const modeli_adapter *adapter = of->adapter;
    *own = output_grad;
    if (adapter->out == of->layer->out)
        return 0;
    void *delta = modeli_at(run->call->temp, of->at.delta);
    const char *columns =
        (const char *)output_grad + adapter->column * dtype_bytes(run->self->type);
    *own = delta;
    return modeli_scale_columns(run->self, run->stream, modeli_rows(run->self), adapter->out, 1,
                                false, columns, of->layer->out, delta, adapter->out);
}

int modeli_lora_weight_grads(const modeli_run *run, const modeli_layer *layer,
                             const void *output_grad, const void *source)
{
    enum modeli_product gradient = run->call->fresh[1] ? MODELI_FIRST : MODELI_WEIGHT;
    struct lora_run of;
    uint32_t place = 0;
    for (uint32_t i = 0; next_adapter(run, layer, &i, &of);) {
        const void *own;
        void *small = modeli_at(run->call->temp, of.at.small[place++]);
        float *grads = run->call->grads[1];
        TRY(own_columns(&of, output_grad, &own));
        TRY(modeli_multiply(run, &of.adapter->outer, gradient, own, of.u, NULL,
                            modeli_grad(grads, of.adapter->b)));
        TRY(modeli_multiply(run, &of.adapter->outer, MODELI_INPUT_GRAD, own, of.b, NULL, small));
        TRY(scale_small(&of, small));
        TRY(own_input(&of, source, &own)); /* dy is not needed any more */
        TRY(modeli_multiply(run, &of.adapter->inner, gradient, small, own, NULL,
                            modeli_grad(grads, of.adapter->a)));
    }
    return 0;
}

int modeli_lora_input_grads(const modeli_run *run, const modeli_layer *layer, void *input_grad)
{
    struct lora_run of;
    uint32_t place = 0;
    for (uint32_t i = 0; next_adapter(run, layer, &i, &of);) {
        void *small = modeli_at(run->call->temp, of.at.small[place++]);
        void *delta = modeli_at(run->call->temp, of.at.delta);
        uint64_t in = of.adapter->in;
        TRY(modeli_multiply(run, &of.adapter->inner, MODELI_INPUT_GRAD, small, of.a, NULL, delta));
        if (drops(&of))
            TRY(drop(&of, delta, delta));
        TRY(modeli_scale_columns(run->self, run->stream, modeli_rows(run->self), in, 1, true, delta,
                                 in, input_grad, in));
    }
    return 0;
}
