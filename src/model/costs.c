/* The work of a pass: the sum over its layers. Pure; allocates nothing.
 *
 * FLOPs. A product [m,k] x [k,n] counts 2 m n k; layer_attention.c says what attention counts.
 * Norms, activations and softmax are not counted. */
#include <assert.h>
#include <string.h>

#include "model/costs.h"
#include "model/model_internal.h"

/* ---- counting ---- */

uint64_t modeli_columns(const modeli_layer *layer, bool backward)
{
    const modeli_kind *kind = layer->kind;
    if (kind->columns != NULL)
        return kind->columns(layer, backward);
    uint64_t both = layer->in + layer->out;
    if (!backward)
        return both +
               ((layer->reads[1] != MODELI_NO_VALUE) + (layer->sum != MODELI_NO_VALUE)) * layer->in;
    if (kind->gradient == MODELI_GRAD_PASSES)
        return 0;
    bool adds = layer->residual_grad.buffer != MODELI_NOWHERE;
    return both + (kind->keeps_input + adds) * layer->in + kind->keeps_output * layer->out;
}

void modeli_cost_product(const model *self, const modeli_matrix *of, enum modeli_product which,
                         uint64_t count, model_costs *costs)
{
    matmul_desc desc = modeli_product_desc(self, of, which);
    model_cost_product product = {
        .type = desc.ab_type,
        .result = desc.c_type,
        .accumulates = desc.accumulate,
        .b_transposed = desc.b_transposed,
        .m = desc.m,
        .n = desc.n,
        .k = desc.k,
        .count = count,
    };
    costs->call_count += count;
    for (uint32_t i = 0; i < costs->product_count; i++) {
        model_cost_product *known = &costs->products[i];
        if (known->m == product.m && known->n == product.n && known->k == product.k &&
            known->result == product.result && known->accumulates == product.accumulates &&
            known->b_transposed == product.b_transposed) {
            known->count += count;
            return;
        }
    }
    assert(costs->product_count < MODEL_COST_PRODUCTS_MAX);
    costs->products[costs->product_count++] = product;
}

void modeli_cost_rows(enum model_row_kind kind, uint64_t rows, uint64_t columns,
                      uint64_t elem_bytes, model_costs *costs)
{
    costs->row_bytes[kind] += (double)rows * (double)columns * (double)elem_bytes;
    costs->call_count++;
}

void modeli_cost_columns(const model *self, enum model_row_kind kind, uint64_t columns,
                         model_costs *costs)
{
    modeli_cost_rows(kind, modeli_rows(self), columns, dtype_bytes(self->type), costs);
}

/* ---- passes ---- */

static void add_layer(const modeli_layer *layer, const modeli_costing *of)
{
    if (layer == modeli_final_norm_of(layer->net) && layer->net->spec.logits_scaling != 0)
        modeli_cost_columns(layer->net, MODEL_ROWS_PLAIN, 2 * layer->in, of->costs);
    bool backward = of->turn == MODELI_TURN_BACKWARD;
    uint64_t columns = modeli_columns(layer, backward);
    if (layer->kind->costs != NULL)
        layer->kind->costs(layer, of);
    else if (columns > 0)
        modeli_cost_columns(layer->net, layer->kind->row_kinds[backward], columns, of->costs);
}

/* Counts what a backward computes again where so much is kept. */
static void add_recomputed(const modeli_list *list, uint32_t stage, enum kept kept,
                           model_costs *costs)
{
    modeli_costing of = {
        .turn = MODELI_TURN_RECOMPUTE, .stage = stage, .kept = kept, .costs = costs};
    for (uint32_t i = 0; i < list->layer_count; i++) {
        const modeli_layer *layer = &list->layers[i];
        if (layer->is_recomputed[kept] || (layer->kind->has_matrix && kept == KEPT_NONE))
            add_layer(layer, &of);
    }
}

void model_pass_costs(const model *self, enum phase phase, uint32_t stage, uint32_t pass,
                      model_costs *out)
{
    bool backward;
    memset(out, 0, sizeof *out);
    assert(stage < self->stage_count);
    assert(pass < self->stages[stage].pass_count[phase]);
    assert(!self->module);
    const modeli_list *list = modeli_list_of(self, stage);
    const modeli_part *part = modeli_pass_part(self, phase, stage, pass, &backward);
    modeli_range range = modeli_layers_of(list, part, backward);
    modeli_costing of = {.part = part,
                         .turn = backward ? MODELI_TURN_BACKWARD : MODELI_TURN_FORWARD,
                         .stage = stage,
                         .work = modeli_work_of(self, stage),
                         .costs = out};
    if (part != NULL)
        of.work.inner = true; /* the passes leave it for each other */
    else if (backward)
        add_recomputed(list, stage, KEPT_NONE, out);
    if (phase == PHASE_RECOMPUTE)
        of.turn = MODELI_TURN_RECOMPUTE;
    for (uint32_t k = 0; k < range.end - range.begin; k++) {
        const modeli_layer *layer = &list->layers[backward ? range.end - 1 - k : range.begin + k];
        bool is_again = layer->is_recomputed[KEPT_NONE] || layer->kind == &modeli_linear;
        bool is_needed = backward ? of.work.inner || layer >= modeli_first_owner(list)
                                  : phase != PHASE_RECOMPUTE || is_again;
        if (is_needed)
            add_layer(layer, &of);
    }
    if (part != NULL && backward && part->owner == MODELI_FINAL_NORM &&
        list == &self->products->head)
        modeli_cost_rows(MODEL_ROWS_PLAIN, modeli_rows(self), self->spec.hidden_size,
                         sizeof(float) + dtype_bytes(self->type), out); /* rounds the sum */
}

void model_recompute_costs(const model *self, uint32_t stage, enum kept kept, model_costs *out)
{
    memset(out, 0, sizeof *out);
    assert(stage < self->stage_count);
    if (self->stages[stage].kind == STAGE_BLOCK && !self->stages[stage].is_cut &&
        stage >= self->first_learning)
        add_recomputed(modeli_list_of(self, stage), stage, kept, out);
}

double model_costs_flops(const model_costs *costs)
{
    double flops = costs->attention_forward_flops + costs->attention_backward_flops;
    for (uint32_t i = 0; i < costs->product_count; i++) {
        const model_cost_product *p = &costs->products[i];
        flops += 2 * (double)p->m * (double)p->n * (double)p->k * (double)p->count;
    }
    return flops;
}
