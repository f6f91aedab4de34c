/* Low-rank adapters of the experts of a mixture, one for gate and up together and one for down, as
 * lora.c has them for linear layers, but without dropout (PEFT has none there either). Experts work
 * on blocks of rows, and the backward computes u again:
 *
 *   y += B u,  u = s A x
 *   backward, given dy:  du = s dy B;  dx += du A;  dB += dy^T u;  dA += du^T x
 *
 * The adapters of a part's experts are the pass's second unit: A of all its experts, then B. A
 * function does nothing if it is given an adapter that is not there. Allocates nothing after
 * model_prepare. */
#include "model/model_internal.h"

static uint64_t in_of(const modeli_layer *layer, enum modeli_expert_matrix which)
{
    return which == MODELI_UP ? layer->in : modeli_expert_width(layer);
}

static uint64_t out_of(const modeli_layer *layer, enum modeli_expert_matrix which)
{
    return which == MODELI_UP ? 2 * modeli_expert_width(layer) : layer->in;
}

/* ---- shapes ---- */

static modeli_matrix inner_matrix(const modeli_layer *layer, enum modeli_expert_matrix which,
                                  uint64_t rows)
{
    const model *self = layer->net;
    modeli_matrix made = modeli_matrix_of(self, rows, in_of(layer, which), self->spec.lora.rank);
    made.out_stride = modeli_lora_stride(self);
    return made;
}

static modeli_matrix outer_matrix(const modeli_layer *layer, enum modeli_expert_matrix which,
                                  uint64_t rows)
{
    const model *self = layer->net;
    modeli_matrix made = modeli_matrix_of(self, rows, self->spec.lora.rank, out_of(layer, which));
    made.in_stride = modeli_lora_stride(self);
    return made;
}

int modeli_expert_lora_prepare(model *self, modeli_layer *layer, uint32_t size, uint64_t rows)
{
    for (int which = MODELI_UP; which <= MODELI_DOWN; which++) {
        enum modeli_expert_matrix of = (enum modeli_expert_matrix)which;
        if (!modeli_has_expert_adapter(layer, of))
            continue;
        modeli_mixture *by = modeli_mixture_of(layer);
        TRY(modeli_make_matrix(self, &by->inner[which][size], inner_matrix(layer, of, rows)));
        TRY(modeli_make_matrix(self, &by->outer[which][size], outer_matrix(layer, of, rows)));
    }
    return 0;
}

void modeli_expert_lora_scratch(const modeli_layer *layer, uint32_t size, uint64_t bytes[2])
{
    const modeli_mixture *by = modeli_mixture_of(layer);
    for (int which = MODELI_UP; which <= MODELI_DOWN; which++) {
        modeli_product_scratch(layer->net, &by->inner[which][size], bytes);
        modeli_product_scratch(layer->net, &by->outer[which][size], bytes);
    }
}

modeli_expert_room modeli_expert_lora_room(const modeli_layer *layer, uint64_t rows, uint64_t *end)
{
    const model *self = layer->net;
    modeli_expert_room at = {0};
    uint64_t elem_bytes = dtype_bytes(self->type), widest = 0;
    uint64_t small = rows * modeli_lora_stride(self) * elem_bytes;
    for (int which = MODELI_UP; which <= MODELI_DOWN; which++) {
        enum modeli_expert_matrix of = (enum modeli_expert_matrix)which;
        if (!modeli_has_expert_adapter(layer, of))
            continue;
        at.u[which] = modeli_reserve(end, small);
        widest = size_max(widest, size_max(in_of(layer, of), out_of(layer, of)));
    }
    if (widest == 0)
        return at;
    at.u_grad = modeli_reserve(end, small);
    at.delta = modeli_reserve(end, rows * widest * elem_bytes);
    return at;
}

/* ---- costs ---- */

void modeli_expert_lora_costs(const modeli_layer *layer, bool backward, uint64_t rows,
                              uint64_t count, model_costs *costs)
{
    const model *self = layer->net;
    for (int which = MODELI_UP; which <= MODELI_DOWN; which++) {
        enum modeli_expert_matrix of = (enum modeli_expert_matrix)which;
        if (!modeli_has_expert_adapter(layer, of))
            continue;
        modeli_matrix inner = inner_matrix(layer, of, rows), outer = outer_matrix(layer, of, rows);
        uint64_t columns = 0;
        modeli_cost_product(self, &inner, MODELI_FORWARD, count, costs);
        if (!backward || of == MODELI_UP) {
            modeli_cost_product(self, &outer, MODELI_FORWARD, count, costs);
            columns += 3 * outer.out;
        }
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
                                         enum modeli_expert_matrix which, uint64_t idx,
                                         const modeli_expert_room *at)
{
    const model *self = run->self;
    modeli_expert_lora of = {.run = run, .layer = layer, .which = which};
    if (!modeli_has_expert_adapter(layer, which))
        return of;
    uint64_t rank = self->spec.lora.rank;
    uint64_t a = run->part->adapters[which].a + idx * rank * in_of(layer, which);
    uint64_t b = run->part->adapters[which].b + idx * rank * out_of(layer, which);
    of.a = modeli_param(self, run->call->params[1], a);
    of.b = modeli_param(self, run->call->params[1], b);
    of.a_grad = modeli_grad(run->call->grads[1], a);
    of.b_grad = modeli_grad(run->call->grads[1], b);
    of.u = modeli_at(run->call->temp, at->u[which]);
    of.u_grad = modeli_at(run->call->temp, at->u_grad);
    of.delta = modeli_at(run->call->temp, at->delta);
    return of;
}

static int multiply(const modeli_expert_lora *of, const modeli_matrix *by,
                    enum modeli_product which, const void *a, const void *b, void *c)
{
    const modeli_run *run = of->run;
    return run->self->ops->matmul(by->matmul[which], run->stream, a, b, NULL, c, run->call->temp);
}

static const modeli_matrix *inner_of(const modeli_expert_lora *of, uint32_t size)
{
    return &modeli_mixture_of(of->layer)->inner[of->which][size];
}

static const modeli_matrix *outer_of(const modeli_expert_lora *of, uint32_t size)
{
    return &modeli_mixture_of(of->layer)->outer[of->which][size];
}

/* target = scale * source, or += if `accumulates`, [rows, columns] without gaps. */
static int scale(const modeli_expert_lora *of, uint64_t rows, uint64_t columns, float by,
                 bool accumulates, const void *source, void *target)
{
    const modeli_run *run = of->run;
    scale_rows_args args = {
        .type = run->self->type,
        .rows = rows,
        .columns = columns,
        .scale = by,
        .accumulates = accumulates,
        .source = source,
        .target = target,
        .source_stride = columns,
        .target_stride = columns,
    };
    return run->self->ops->scale_rows(run->self->context, run->stream, &args);
}

/* Multiplies u or du by alpha / rank. The gaps between its rows change, too. */
static int scale_small(const modeli_expert_lora *of, uint64_t rows, void *small)
{
    float by = modeli_lora_scale(of->run->self);
    return by == 1.0f ? 0
                      : scale(of, rows, modeli_lora_stride(of->run->self), by, false, small, small);
}

int modeli_expert_lora_inner(const modeli_expert_lora *of, uint32_t size, const void *input)
{
    if (of->a == NULL)
        return 0;
    const modeli_matrix *inner = inner_of(of, size);
    TRY(multiply(of, inner, MODELI_FORWARD, input, of->a, of->u));
    return scale_small(of, inner->rows, of->u);
}

int modeli_expert_lora_outer(const modeli_expert_lora *of, uint32_t size, void *output)
{
    if (of->a == NULL)
        return 0;
    const modeli_matrix *outer = outer_of(of, size);
    TRY(multiply(of, outer, MODELI_FORWARD, of->u, of->b, of->delta));
    return scale(of, outer->rows, outer->out, 1, true, of->delta, output);
}

int modeli_expert_lora_input_grad(const modeli_expert_lora *of, uint32_t size,
                                  const void *output_grad, void *input_grad)
{
    if (of->a == NULL)
        return 0;
    const modeli_matrix *inner = inner_of(of, size);
    TRY(multiply(of, outer_of(of, size), MODELI_INPUT_GRAD, output_grad, of->b, of->u_grad));
    TRY(scale_small(of, inner->rows, of->u_grad));
    TRY(multiply(of, inner, MODELI_INPUT_GRAD, of->u_grad, of->a, of->delta));
    return scale(of, inner->rows, inner->in, 1, true, of->delta, input_grad);
}

int modeli_expert_lora_grads(const modeli_expert_lora *of, uint32_t size,
                             enum modeli_product product, const void *output_grad,
                             const void *input)
{
    if (of->a_grad == NULL)
        return 0;
    TRY(multiply(of, outer_of(of, size), product, output_grad, of->u, of->b_grad));
    return multiply(of, inner_of(of, size), product, of->u_grad, input, of->a_grad);
}

int modeli_expert_lora_clear(const modeli_expert_lora *of)
{
    const model *self = of->run->self;
    uint64_t row_bytes = self->spec.lora.rank * sizeof(float);
    if (of->a_grad == NULL)
        return 0;
    TRY(self->ops->zero(self->context, of->run->stream, of->a_grad,
                        row_bytes * in_of(of->layer, of->which)));
    return self->ops->zero(self->context, of->run->stream, of->b_grad,
                           row_bytes * out_of(of->layer, of->which));
}

double modeli_expert_lora_elems(const modeli_list *list)
{
    double elems = 0;
    for (uint32_t i = 0; i < list->layer_count; i++)
        for (int which = MODELI_UP; which <= MODELI_DOWN; which++) {
            const modeli_layer *layer = &list->layers[i];
            enum modeli_expert_matrix of = (enum modeli_expert_matrix)which;
            if (modeli_has_expert_adapter(layer, of))
                elems += (double)modeli_choices_of(layer) * (double)layer->net->spec.lora.rank *
                         (double)(in_of(layer, of) + out_of(layer, of));
        }
    return elems;
}
