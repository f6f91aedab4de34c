/* The work of a pass: the products, attention and row-wise kernels of the block's and the head's
 * code, counted from the same shapes. Pure; allocates nothing.
 *
 * FLOPs. A product [m,k] x [k,n] counts 2 m n k. Causal attention counts half of the T x T scores:
 * - forward: 2 products (Q K^T, P V), so 2 B T T H D;
 * - backward: 5 products (scores again, and the gradients of P, V, Q, K), so 5 B T T H D. Norms,
 *   activations and softmax are not counted. */
#include <assert.h>
#include <string.h>

#include "base/size.h"
#include "model/costs.h"
#include "model/model_internal.h"

/* ---- counting ---- */

static void add_product(const model *self, const modeli_linear *of, enum modeli_product which,
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

/* Counts `rows` rows of `columns` elements of `elem_bytes`, read and written together. */
static void add_rows(model_costs *costs, enum model_row_kind kind, uint64_t rows, uint64_t columns,
                     uint64_t elem_bytes)
{
    costs->row_bytes[kind] += (double)rows * (double)columns * (double)elem_bytes;
    costs->call_count++;
}

/* Counts `columns` columns of activations: all rows of the micro-batch. */
static void add_columns(const model *self, model_costs *costs, enum model_row_kind kind,
                        uint64_t columns)
{
    add_rows(costs, kind, self->products->shape.rows, columns, dtype_bytes(self->type));
}

/* ---- steps of a block, as in block_steps.c ---- */

static double attention_flops(const model *self)
{
    return 2 * (double)self->products->shape.rows * (double)self->tokens *
           (double)self->products->shape.attention_columns;
}

/* For q and for k. Forward: the old value, the new value, and a copy of the old one. Gradient: that
 * copy, the old gradient and the new one. */
static void head_norms(const model *self, enum model_row_kind kind, model_costs *costs)
{
    const modeli_shape *shape = &self->products->shape;
    if (!modeli_has_head_norms(self))
        return;
    add_columns(self, costs, kind, 3 * self->spec.num_heads * shape->head_dim);
    add_columns(self, costs, kind, 3 * self->spec.num_kv_heads * shape->head_dim);
}

static void rope(const model *self, model_costs *costs)
{
    const modeli_shape *shape = &self->products->shape;
    uint64_t heads = self->spec.num_heads + self->spec.num_kv_heads;
    if (shape->has_rope)
        add_columns(self, costs, MODEL_ROWS_PLAIN, 2 * heads * shape->head_dim);
}

static void attend(const model *self, model_costs *costs)
{
    head_norms(self, MODEL_ROWS_NORM, costs);
    rope(self, costs);
    costs->attention_forward_flops += attention_flops(self);
    costs->call_count++;
}

static void attend_grad(const model *self, model_costs *costs)
{
    costs->attention_backward_flops += 2.5 * attention_flops(self);
    costs->call_count++;
    rope(self, costs);
}

static void norm1(const model *self, model_costs *costs)
{
    add_columns(self, costs, MODEL_ROWS_NORM, 2 * self->spec.hidden_size);
}

static void norm2(const model *self, model_costs *costs)
{
    add_columns(self, costs, MODEL_ROWS_NORM, 4 * self->spec.hidden_size);
}

/* Reads the input, the gradient of the output and the other branch's; writes the gradient of the
 * input. */
static void norm_grad(const model *self, model_costs *costs)
{
    add_columns(self, costs, MODEL_ROWS_NORM_GRAD, 4 * self->spec.hidden_size);
}

static void activate(const model *self, model_costs *costs)
{
    bool is_gelu = self->products->shape.activation == ACTIVATION_GELU;
    add_columns(self, costs, is_gelu ? MODEL_ROWS_GELU : MODEL_ROWS_SWIGLU,
                self->products->shape.ffn_columns + self->spec.ffn_size);
}

static void activate_grad(const model *self, model_costs *costs)
{
    bool is_gelu = self->products->shape.activation == ACTIVATION_GELU;
    add_columns(self, costs, is_gelu ? MODEL_ROWS_GELU_GRAD : MODEL_ROWS_SWIGLU_GRAD,
                2 * self->products->shape.ffn_columns + self->spec.ffn_size);
}

static void add_middle(const model *self, model_costs *costs)
{
    add_columns(self, costs, MODEL_ROWS_PLAIN, 3 * self->spec.hidden_size);
}

/* ---- adapters, as in lora.c ---- */

static void scale(const model *self, model_costs *costs, uint64_t columns, bool accumulates)
{
    add_columns(self, costs, MODEL_ROWS_PLAIN, (accumulates ? 3 : 2) * columns);
}

static void scale_small(const model *self, model_costs *costs)
{
    if ((float)(self->spec.lora.alpha / (double)self->spec.lora.rank) != 1.0f)
        scale(self, costs, self->spec.lora.rank, false);
}

static void lora_inner(const model *self, const modeli_adapter *adapter, model_costs *costs)
{
    modeli_linear inner = modeli_inner_linear(self, adapter);
    add_product(self, &inner, MODELI_FORWARD, 1, costs);
    scale_small(self, costs);
}

static void lora_outer(const model *self, const modeli_adapter *adapter, model_costs *costs)
{
    modeli_linear outer = modeli_outer_linear(self, adapter);
    add_product(self, &outer, MODELI_FORWARD, 1, costs);
    scale(self, costs, adapter->out, true);
}

static void lora_grad(const model *self, const modeli_adapter *adapter, bool wants_input,
                      model_costs *costs)
{
    modeli_linear inner = modeli_inner_linear(self, adapter);
    modeli_linear outer = modeli_outer_linear(self, adapter);
    if (adapter->out != modeli_layer_rows(self, adapter->layer))
        scale(self, costs, adapter->out, false);
    add_product(self, &outer, MODELI_WEIGHT, 1, costs);
    add_product(self, &outer, MODELI_INPUT, 1, costs);
    scale_small(self, costs);
    add_product(self, &inner, MODELI_WEIGHT, 1, costs);
    if (!wants_input)
        return;
    add_product(self, &inner, MODELI_INPUT, 1, costs);
    scale(self, costs, adapter->in, true);
}

/* Counts all adapters of a layer. `begins`: the work on its input; `ends`: the work on its
 * output. */
static void lora(const model *self, enum modeli_layer layer, bool begins, bool ends,
                 model_costs *costs)
{
    for (uint32_t i = 0; i < self->products->adapter_count; i++) {
        const modeli_adapter *adapter = &self->products->adapters[i];
        if (adapter->layer == layer && begins)
            lora_inner(self, adapter, costs);
        if (adapter->layer == layer && ends)
            lora_outer(self, adapter, costs);
    }
}

/* ---- a whole block ---- */

static void linear(const model *self, enum modeli_layer layer, model_costs *costs)
{
    modeli_linear whole = modeli_layer_linear(self, layer);
    lora(self, layer, layer != MODELI_LAYER_DOWN, true, costs);
    add_product(self, &whole, MODELI_FORWARD, 1, costs);
}

static void linear_grad(const model *self, enum modeli_layer layer, bool weights, bool inner,
                        model_costs *costs)
{
    modeli_linear whole = modeli_layer_linear(self, layer);
    for (uint32_t i = 0; i < self->products->adapter_count; i++)
        if (self->products->adapters[i].layer == layer)
            lora_grad(self, &self->products->adapters[i], inner, costs);
    if (weights)
        add_product(self, &whole, MODELI_WEIGHT, 1, costs);
    if (inner)
        add_product(self, &whole, MODELI_INPUT, 1, costs);
    if (weights && whole.has_bias)
        add_columns(self, costs, MODEL_ROWS_PLAIN, whole.out);
}

static void block_saved(const model *self, model_costs *costs)
{
    norm1(self, costs);
    linear(self, MODELI_LAYER_QKV, costs);
    attend(self, costs);
    linear(self, MODELI_LAYER_PROJ, costs);
    norm2(self, costs);
    linear(self, MODELI_LAYER_UP, costs);
    activate(self, costs);
    lora(self, MODELI_LAYER_DOWN, true, false, costs);
}

static void block(const model *self, uint32_t stage, bool backward, model_costs *costs)
{
    modeli_work work = modeli_work_of(self, stage);
    block_saved(self, costs);
    if (!backward) {
        linear(self, MODELI_LAYER_DOWN, costs);
        add_middle(self, costs);
        return;
    }
    linear_grad(self, MODELI_LAYER_DOWN, work.weights, true, costs);
    activate_grad(self, costs);
    linear_grad(self, MODELI_LAYER_UP, work.weights, true, costs);
    norm_grad(self, costs);
    linear_grad(self, MODELI_LAYER_PROJ, work.weights, true, costs);
    attend_grad(self, costs);
    head_norms(self, MODEL_ROWS_NORM_GRAD, costs);
    linear_grad(self, MODELI_LAYER_QKV, work.weights, work.inner, costs);
    if (work.inner)
        norm_grad(self, costs);
}

/* ---- a part of a block ---- */

static void part_forward(const model *self, const modeli_part *part, model_costs *costs)
{
    modeli_linear of = modeli_part_linear(self, part);
    if (part->is_first && part->layer == MODELI_LAYER_QKV)
        norm1(self, costs);
    if (part->is_first && part->layer == MODELI_LAYER_UP)
        norm2(self, costs);
    add_product(self, &of, MODELI_FORWARD, 1, costs);
    if (!part->is_last)
        return;
    if (part->layer == MODELI_LAYER_QKV)
        attend(self, costs);
    if (part->layer == MODELI_LAYER_UP)
        activate(self, costs);
    if (part->layer == MODELI_LAYER_DOWN)
        add_middle(self, costs);
}

static void part_backward(const model *self, const modeli_part *part, bool learns,
                          model_costs *costs)
{
    modeli_linear of = modeli_part_linear(self, part);
    if (part->q_norm != MODELI_ABSENT)
        head_norms(self, MODEL_ROWS_NORM_GRAD, costs);
    if (learns)
        add_product(self, &of, MODELI_WEIGHT, 1, costs);
    if (learns && of.has_bias && part->is_last)
        add_columns(self, costs, MODEL_ROWS_PLAIN, modeli_layer_rows(self, part->layer));
    add_product(self, &of, MODELI_INPUT, 1, costs);
    if (!part->is_first)
        return;
    add_rows(costs, MODEL_ROWS_PLAIN, of.rows, of.in, sizeof(float) + dtype_bytes(self->type));
    if (part->layer == MODELI_LAYER_QKV || part->layer == MODELI_LAYER_UP)
        norm_grad(self, costs);
    else if (part->layer == MODELI_LAYER_PROJ)
        attend_grad(self, costs);
    else
        activate_grad(self, costs);
}

/* ---- the ends ---- */

/* Counts rows of the embedding. `share`: this part's share of the rows of a table, the same for
 * positions. */
static void embed(const model *self, double share, bool has_both, bool backward, model_costs *costs)
{
    uint64_t elem_bytes = dtype_bytes(self->type);
    double elems = (double)self->boundary_bytes / (double)elem_bytes;
    double tables = has_both ? 2 : 1;
    double bytes = backward ? (double)elem_bytes + 2 * sizeof(float) : 2 * (double)elem_bytes;
    costs->row_bytes[backward ? MODEL_ROWS_TABLE_GRAD : MODEL_ROWS_TABLE] +=
        share * tables * elems * bytes;
    costs->call_count++;
}

static void final_norm(const model *self, bool backward, model_costs *costs)
{
    add_columns(self, costs, backward ? MODEL_ROWS_NORM_GRAD : MODEL_ROWS_NORM,
                (backward ? 3 : 2) * self->spec.hidden_size);
}

/* Counts the logits of a whole head (`part` NULL) or of one of its parts, chunk by chunk of rows,
 * and the work on them. weights, inner: these gradients are wanted; both false in a forward. */
static void logits(const model *self, const modeli_part *part, bool backward, bool weights,
                   bool inner, model_costs *costs)
{
    for (int last = 0; last < 2; last++) {
        modeli_linear chunk = modeli_logits_linear(self, part, last);
        uint64_t count = last ? 1 : self->products->shape.rows / self->chunk_rows;
        if (chunk.rows == 0 || count == 0)
            continue;
        add_product(self, &chunk, MODELI_FORWARD, count, costs);
        add_rows(costs, MODEL_ROWS_LOSS, chunk.rows * count, chunk.out,
                 sizeof(float) + (backward ? dtype_bytes(self->type) : 0));
        if (inner)
            add_product(self, &chunk, MODELI_INPUT, count, costs);
        if (weights)
            add_product(self, &chunk, MODELI_WEIGHT, count, costs);
    }
}

static void embed_part(const model *self, const modeli_part *part, bool backward,
                       model_costs *costs)
{
    uint64_t whole =
        part->layer == MODELI_LAYER_TABLE ? self->spec.vocab_size : self->spec.position_count;
    embed(self, (double)part->rows / (double)whole, false, backward, costs);
}

static void head_part(const model *self, const modeli_part *part, bool backward, bool learns,
                      model_costs *costs)
{
    if (part->layer != MODELI_LAYER_NORM) {
        logits(self, part, backward, backward && learns, backward, costs);
        return;
    }
    if (backward)
        add_rows(costs, MODEL_ROWS_PLAIN, self->products->shape.rows, self->spec.hidden_size,
                 sizeof(float) + dtype_bytes(self->type));
    final_norm(self, backward, costs);
}

/* ---- passes ---- */

static void whole_head(const model *self, uint32_t stage, bool backward, model_costs *costs)
{
    modeli_work work = modeli_work_of(self, stage);
    bool inner = backward && work.inner;
    final_norm(self, false, costs);
    logits(self, NULL, backward, backward && work.weights, inner, costs);
    if (inner)
        final_norm(self, true, costs);
}

static void whole_stage(const model *self, uint32_t stage, bool backward, model_costs *costs)
{
    switch (self->stages[stage].kind) {
    case STAGE_EMBED:
        embed(self, 1, self->products->shape.position_table != MODELI_ABSENT, backward, costs);
        break;
    case STAGE_BLOCK:
        block(self, stage, backward, costs);
        break;
    case STAGE_HEAD:
        whole_head(self, stage, backward, costs);
        break;
    }
}

void model_pass_costs(const model *self, enum phase phase, uint32_t stage, uint32_t pass,
                      model_costs *out)
{
    memset(out, 0, sizeof *out);
    assert(stage < self->stage_count);
    assert(pass < self->stages[stage].pass_count[phase]);
    enum stage_kind kind = self->stages[stage].kind;
    if (!self->stages[stage].is_cut) {
        whole_stage(self, stage, phase == PHASE_BACKWARD, out);
        return;
    }
    bool backward;
    const modeli_part *part = modeli_pass_part(self, phase, stage, pass, &backward);
    bool learns = !self->units[self->stages[stage].passes[phase][pass].units[0]].is_frozen;
    if (kind == STAGE_EMBED)
        embed_part(self, part, backward, out);
    else if (kind == STAGE_HEAD)
        head_part(self, part, backward, learns, out);
    else if (backward)
        part_backward(self, part, learns, out);
    else
        part_forward(self, part, out);
}

void model_kept_costs(const model *self, uint32_t stage, model_costs *out)
{
    memset(out, 0, sizeof *out);
    assert(stage < self->stage_count);
    if (self->stages[stage].kind == STAGE_BLOCK && !self->stages[stage].is_cut &&
        stage >= self->first_learning)
        block_saved(self, out);
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
