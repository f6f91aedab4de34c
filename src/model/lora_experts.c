/* Low-rank adapters of the experts of a mixture, one for gate and up together and one for down, as
 * lora.c has them for linear layers, but without dropout (PEFT has none there either). A shared
 * expert behind a gate has one for gate, one for up and one for down, with dropout. Experts work on
 * blocks of rows, and the backward computes u again:
 *
 *   y += B u,  u = s A d(x)
 *   backward, given dy:  du = s dy B;  dx += d(du A);  dB += dy^T u;  dA += du^T d(x)
 *
 * The adapters of a part's experts are the pass's second unit: by group of experts, and in a group
 * A and B of each matrix in turn, each of them for all experts of the group. A function does
 * nothing if it is given an adapter that is not there. Allocates nothing after model_prepare. */
#include "model/model_internal.h"

uint32_t modeli_expert_down(const modeli_layer *layer)
{
    return layer->row->is_shared ? 2 : 1;
}

static uint64_t in_of(const modeli_layer *layer, uint32_t matrix)
{
    return matrix < modeli_expert_down(layer) ? layer->in : modeli_expert_width(layer);
}

/* Columns of the output that the matrix is a part of. */
static uint64_t all_of(const modeli_layer *layer, uint32_t matrix)
{
    return matrix < modeli_expert_down(layer) ? 2 * modeli_expert_width(layer) : layer->in;
}

static uint64_t out_of(const modeli_layer *layer, uint32_t matrix)
{
    bool is_half = layer->row->is_shared && matrix < modeli_expert_down(layer);
    return all_of(layer, matrix) / (is_half ? 2 : 1);
}

/* ---- shapes ---- */

static modeli_matrix inner_matrix(const modeli_layer *layer, uint32_t matrix, uint64_t rows)
{
    const model *self = layer->net;
    modeli_matrix made = modeli_matrix_of(self, rows, in_of(layer, matrix), self->spec.lora.rank);
    made.out_stride = modeli_lora_stride(self);
    return made;
}

static modeli_matrix outer_matrix(const modeli_layer *layer, uint32_t matrix, uint64_t rows)
{
    const model *self = layer->net;
    modeli_matrix made = modeli_matrix_of(self, rows, self->spec.lora.rank, out_of(layer, matrix));
    made.in_stride = modeli_lora_stride(self);
    return made;
}

int modeli_expert_lora_prepare(model *self, modeli_layer *layer, uint32_t size, uint64_t rows)
{
    for (uint32_t i = 0; i <= modeli_expert_down(layer); i++) {
        if (!modeli_has_expert_adapter(layer, i))
            continue;
        modeli_mixture *by = modeli_mixture_of(layer);
        TRY(modeli_make_matrix(self, &by->inner[i][size], inner_matrix(layer, i, rows)));
        TRY(modeli_make_matrix(self, &by->outer[i][size], outer_matrix(layer, i, rows)));
    }
    return 0;
}

void modeli_expert_lora_scratch(const modeli_layer *layer, uint32_t size, uint64_t bytes[2])
{
    const modeli_mixture *by = modeli_mixture_of(layer);
    for (uint32_t i = 0; i <= modeli_expert_down(layer); i++) {
        modeli_product_scratch(layer->net, &by->inner[i][size], bytes);
        modeli_product_scratch(layer->net, &by->outer[i][size], bytes);
    }
}

modeli_expert_room modeli_expert_lora_room(const modeli_layer *layer, uint64_t rows, uint64_t *end)
{
    const model *self = layer->net;
    modeli_expert_room at = {0};
    uint64_t elem_bytes = dtype_bytes(self->type), widest = 0;
    uint64_t small = rows * modeli_lora_stride(self) * elem_bytes;
    for (uint32_t i = 0; i <= modeli_expert_down(layer); i++) {
        if (!modeli_has_expert_adapter(layer, i))
            continue;
        at.u[i] = modeli_reserve(end, small);
        widest = size_max(widest, size_max(in_of(layer, i), out_of(layer, i)));
    }
    if (widest == 0)
        return at;
    at.u_grad = modeli_reserve(end, small);
    at.delta = modeli_reserve(end, rows * widest * elem_bytes);
    return at;
}

/* ---- costs ---- */

static bool has_dropout(const modeli_layer *layer)
{
    return layer->row->is_shared && layer->net->spec.lora.dropout > 0;
}

void modeli_expert_lora_costs(const modeli_layer *layer, bool backward, uint64_t rows,
                              uint64_t count, model_costs *costs)
{
    const model *self = layer->net;
    for (uint32_t i = 0; i <= modeli_expert_down(layer); i++) {
        if (!modeli_has_expert_adapter(layer, i))
            continue;
        modeli_matrix inner = inner_matrix(layer, i, rows), outer = outer_matrix(layer, i, rows);
        uint64_t columns = 0;
        modeli_cost_product(self, &inner, MODELI_FORWARD, count, costs);
        if (!backward || i < modeli_expert_down(layer)) {
            modeli_cost_product(self, &outer, MODELI_FORWARD, count, costs);
            columns += 3 * outer.out;
        }
        if (has_dropout(layer))
            modeli_cost_rows(MODEL_ROWS_DROPOUT, rows * count, (backward ? 6 : 2) * inner.in,
                             dtype_bytes(self->type), costs);
        if (backward) {
            modeli_cost_product(self, &outer, MODELI_WEIGHT, count, costs);
            modeli_cost_product(self, &outer, MODELI_INPUT_GRAD, count, costs);
            modeli_cost_product(self, &inner, MODELI_WEIGHT, count, costs);
            modeli_cost_product(self, &inner, MODELI_INPUT_GRAD, count, costs);
            columns += 3 * inner.in;
        }
        modeli_cost_rows(MODEL_ROWS_PLAIN, rows * count, columns, dtype_bytes(self->type), costs);
    }
}

/* ---- running ---- */

modeli_expert_lora modeli_expert_lora_of(const modeli_run *run, const modeli_layer *layer,
                                         uint32_t matrix, uint64_t idx, uint64_t grads_group,
                                         const modeli_expert_room *at)
{
    const model *self = run->self;
    modeli_expert_lora of = {.run = run, .layer = layer, .matrix = matrix};
    if (!modeli_has_expert_adapter(layer, matrix))
        return of;
    uint64_t rank = self->spec.lora.rank;
    const modeli_part *part = run->part;
    uint64_t group = part->adapter_group_elems, grads = grads_group * group;
    uint64_t a = modeli_expert_at(layer, part, group, part->adapters[matrix].a, idx,
                                  rank * in_of(layer, matrix));
    uint64_t b = modeli_expert_at(layer, part, group, part->adapters[matrix].b, idx,
                                  rank * out_of(layer, matrix));
    of.a = modeli_param(self, run->call->params[1], a);
    of.b = modeli_param(self, run->call->params[1], b);
    of.a_grad = modeli_grad(run->call->grads[1], grads + a);
    of.b_grad = modeli_grad(run->call->grads[1], grads + b);
    of.u = modeli_at(run->call->temp, at->u[matrix]);
    of.u_grad = modeli_at(run->call->temp, at->u_grad);
    of.delta = modeli_at(run->call->temp, at->delta);
    return of;
}

static const modeli_matrix *inner_of(const modeli_expert_lora *of, uint32_t size)
{
    return &modeli_mixture_of(of->layer)->inner[of->matrix][size];
}

static const modeli_matrix *outer_of(const modeli_expert_lora *of, uint32_t size)
{
    return &modeli_mixture_of(of->layer)->outer[of->matrix][size];
}

/* Multiplies u or du by alpha / rank. The gaps between its rows change, too. */
static int scale_small(const modeli_expert_lora *of, uint64_t rows, void *small)
{
    float by = modeli_lora_scale(of->run->self);
    uint64_t stride = modeli_lora_stride(of->run->self);
    return by == 1.0f ? 0
                      : modeli_scale_columns(of->run->self, of->run->stream, rows, stride, by,
                                             false, small, stride, small, stride);
}

/* The adapter's columns of what its layer writes, `up` of a shared expert after `gate`. */
static void *columns_of(const modeli_expert_lora *of, const void *output)
{
    uint64_t first = of->matrix == 1 && of->layer->row->is_shared ? out_of(of->layer, 1) : 0;
    return (char *)(uintptr_t)output + first * dtype_bytes(of->run->self->type);
}

/* dy of the adapter without gaps: all of it, or a copy of its columns. */
static int own_grad(const modeli_expert_lora *of, uint64_t rows, const void *output_grad,
                    const void **own)
{
    uint64_t out = out_of(of->layer, of->matrix), all = all_of(of->layer, of->matrix);
    *own = out == all ? output_grad : of->delta;
    return out == all ? 0
                      : modeli_scale_columns(of->run->self, of->run->stream, rows, out, 1, false,
                                             columns_of(of, output_grad), all, of->delta, out);
}

static bool drops(const modeli_expert_lora *of)
{
    return has_dropout(of->layer) && of->run->call->dropout_counter != NULL;
}

static int drop(const modeli_expert_lora *of, uint64_t at, uint64_t rows, const void *source,
                void *target)
{
    const modeli_run *run = of->run;
    uint32_t number = modeli_first_target(run->self->products->family, of->layer->row) + of->matrix;
    return modeli_drop_rows(run->self, run->stream, run->call, run->self->spec.lora.dropout,
                            modeli_block_site(run->call, MODELI_ADAPTER_SITE + number), at, rows,
                            in_of(of->layer, of->matrix), source, target);
}

/* The adapter's input: that of the expert or, with dropout, its copy in delta. */
static int own_input(const modeli_expert_lora *of, uint64_t at, uint64_t rows, const void *input,
                     const void **own)
{
    *own = drops(of) ? of->delta : input;
    return drops(of) ? drop(of, at, rows, input, of->delta) : 0;
}

int modeli_expert_lora_inner(const modeli_expert_lora *of, uint32_t size, uint64_t at,
                             const void *input)
{
    if (of->a == NULL)
        return 0;
    const modeli_matrix *inner = inner_of(of, size);
    const void *own;
    TRY(own_input(of, at, inner->rows, input, &own));
    TRY(modeli_multiply(of->run, inner, MODELI_FORWARD, own, of->a, NULL, of->u));
    return scale_small(of, inner->rows, of->u);
}

int modeli_expert_lora_outer(const modeli_expert_lora *of, uint32_t size, void *output)
{
    if (of->a == NULL)
        return 0;
    const modeli_matrix *outer = outer_of(of, size);
    TRY(modeli_multiply(of->run, outer, MODELI_FORWARD, of->u, of->b, NULL, of->delta));
    return modeli_scale_columns(of->run->self, of->run->stream, outer->rows, outer->out, 1, true,
                                of->delta, outer->out, columns_of(of, output),
                                all_of(of->layer, of->matrix));
}

int modeli_expert_lora_input_grad(const modeli_expert_lora *of, uint32_t size, uint64_t at,
                                  const void *output_grad, void *input_grad)
{
    if (of->a == NULL)
        return 0;
    const modeli_matrix *inner = inner_of(of, size);
    const void *own;
    TRY(own_grad(of, inner->rows, output_grad, &own));
    TRY(modeli_multiply(of->run, outer_of(of, size), MODELI_INPUT_GRAD, own, of->b, NULL,
                        of->u_grad));
    TRY(scale_small(of, inner->rows, of->u_grad));
    TRY(modeli_multiply(of->run, inner, MODELI_INPUT_GRAD, of->u_grad, of->a, NULL, of->delta));
    if (drops(of))
        TRY(drop(of, at, inner->rows, of->delta, of->delta));
    return modeli_scale_columns(of->run->self, of->run->stream, inner->rows, inner->in, 1, true,
                                of->delta, inner->in, input_grad, inner->in);
}

int modeli_expert_lora_grads(const modeli_expert_lora *of, uint32_t size, uint64_t at,
                             enum modeli_product product, const void *output_grad,
                             const void *input)
{
    const modeli_matrix *inner = inner_of(of, size);
    const void *own;
    if (of->a_grad == NULL)
        return 0;
    TRY(own_grad(of, inner->rows, output_grad, &own));
    TRY(modeli_multiply(of->run, outer_of(of, size), product, own, of->u, NULL, of->b_grad));
    TRY(own_input(of, at, inner->rows, input, &own)); /* dy is not needed any more */
    return modeli_multiply(of->run, inner, product, of->u_grad, own, NULL, of->a_grad);
}

int modeli_expert_lora_clear(const modeli_expert_lora *of)
{
    const model *self = of->run->self;
    uint64_t row_bytes = self->spec.lora.rank * sizeof(float);
    if (of->a_grad == NULL)
        return 0;
    TRY(self->ops->zero(self->context, of->run->stream, of->a_grad,
                        row_bytes * in_of(of->layer, of->matrix)));
    return self->ops->zero(self->context, of->run->stream, of->b_grad,
                           row_bytes * out_of(of->layer, of->matrix));
}

double modeli_expert_lora_elems(const modeli_list *list)
{
    double elems = 0;
    for (uint32_t l = 0; l < list->layer_count; l++) {
        const modeli_layer *layer = &list->layers[l];
        for (uint32_t i = 0; layer->kind->has_experts && i <= modeli_expert_down(layer); i++)
            if (modeli_has_expert_adapter(layer, i))
                elems += (double)modeli_choices_of(layer) * (double)layer->net->spec.lora.rank *
                         (double)(in_of(layer, i) + out_of(layer, i));
    }
    return elems;
}
