/* How the gradients of a step begin. The first pass of a backward that adds to a unit's accumulator
 * finds arbitrary contents in it (model_call.fresh). Matrices are most of a unit and need no zeros,
 * because their products write instead of adding. Everything else is filled with zeros before the
 * pass: what kernels add to (norms, biases, tables), and what the pass does not touch (padding; in
 * a tied embedding the positions, which belong to another stage). Allocates nothing. */
#include "model/model_internal.h"

/* True if a product of the stage writes this tensor of a unit: matrices of linear layers and
 * adapters, and the output matrix. If that is tied, it is the embedding's first tensor. */
static bool is_written(const model *self, uint32_t stage, uint32_t unit, uint32_t idx)
{
    const model_tensor *tensor = &self->units[unit].tensors[idx];
    const modeli_origin *origin = &self->products->origins[unit];
    if (origin->unit == 0)
        return stage > 0 && origin->tensors[idx] == MODELI_TABLE;
    return tensor->is_adapter || tensor->init == TENSOR_INIT_NORMAL ||
           tensor->init == TENSOR_INIT_NORMAL_RESIDUAL;
}

uint64_t modeli_zeroed_bytes(const model *self, uint32_t stage, uint32_t unit)
{
    const model_unit *of = &self->units[unit];
    uint64_t elems = of->elems;
    for (uint32_t t = 0; t < of->tensor_count; t++)
        if (is_written(self, stage, unit, t))
            elems -= of->tensors[t].rows * of->tensors[t].columns;
    return elems * sizeof(float);
}

static int zero(const model *self, void *stream, float *grads, uint64_t begin, uint64_t end)
{
    if (begin >= end)
        return 0;
    return self->ops->zero(self->context, stream, grads + begin, (end - begin) * sizeof *grads);
}

int modeli_begin_grads(model *self, uint32_t stage, uint32_t pass, void *stream,
                       const model_call *call)
{
    const struct pass *of = &self->stages[stage].passes[PHASE_BACKWARD][pass];
    for (uint32_t i = 0; i < of->unit_count; i++) {
        const model_unit *unit = &self->units[of->units[i]];
        uint64_t begin = 0;
        if (!call->fresh[i] || call->grads[i] == NULL)
            continue;
        for (uint32_t t = 0; t < unit->tensor_count; t++) {
            const model_tensor *tensor = &unit->tensors[t];
            if (!is_written(self, stage, of->units[i], t))
                continue;
            TRY(zero(self, stream, call->grads[i], begin, tensor->offset_elems));
            begin = tensor->offset_elems + tensor->rows * tensor->columns;
        }
        TRY(zero(self, stream, call->grads[i], begin, unit->elems));
    }
    return 0;
}
