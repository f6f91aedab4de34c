/* How the gradients of a step begin. The first pass of a backward that adds to a unit's accumulator
 * finds arbitrary contents in it (model_call.fresh). Matrices are most of a unit and need no zeros,
 * because their products write instead of adding. Everything else is filled with zeros before the
 * pass: what kernels add to (norms, biases, tables), and what the pass does not touch (padding; in
 * a tied embedding the positions, which belong to another stage). Allocates nothing. */
#include <assert.h>

#include "model/model_internal.h"

/* matrices of one unit, and the end of the unit */
enum { RANGES_MAX = 2 * MODEL_LORA_TARGETS_MAX + 1 };

/* Elements of a unit's accumulator. */
struct range {
    uint64_t begin, end;
};

/* Sorted by element; no two overlap. */
struct ranges {
    struct range items[RANGES_MAX];
    uint32_t count;
};

static void insert(struct ranges *ranges, uint64_t begin, uint64_t elems)
{
    uint32_t at = ranges->count++;
    assert(at < RANGES_MAX);
    for (; at > 0 && ranges->items[at - 1].begin > begin; at--)
        ranges->items[at] = ranges->items[at - 1];
    ranges->items[at] = (struct range){begin, begin + elems};
}

static void insert_block(const model *self, uint32_t i, struct ranges *written)
{
    for (uint32_t layer = MODELI_LAYER_QKV; layer <= MODELI_LAYER_DOWN && i == 0; layer++) {
        enum modeli_layer of = (enum modeli_layer)layer;
        insert(written, modeli_layer_whole(&self->products->shape, of).weight,
               modeli_layer_rows(self, of) * modeli_layer_columns(self, of));
    }
    for (uint32_t a = 0; a < self->products->adapter_count && i == 1; a++) {
        const modeli_adapter *adapter = &self->products->adapters[a];
        insert(written, adapter->a, self->spec.lora.rank * adapter->in);
        insert(written, adapter->b, self->spec.lora.rank * adapter->out);
    }
}

/* The ranges of the pass's unit i that the products of a backward pass write. */
static struct ranges written_of(const model *self, uint32_t stage, uint32_t pass, uint32_t i)
{
    const modeli_shape *shape = &self->products->shape;
    enum stage_kind kind = self->stages[stage].kind;
    struct ranges written = {.count = 0};
    if (self->stages[stage].is_cut) {
        bool backward;
        const modeli_part *part = modeli_pass_part(self, PHASE_BACKWARD, stage, pass, &backward);
        if (part->layer <= MODELI_LAYER_DOWN || part->layer == MODELI_LAYER_OUTPUT)
            insert(&written, part->weights.weight,
                   part->rows * modeli_layer_columns(self, part->layer));
    } else if (kind == STAGE_BLOCK) {
        insert_block(self, i, &written);
    } else if (kind == STAGE_HEAD && i == shape->output_unit) {
        insert(&written, shape->output_matrix, self->spec.vocab_size * self->spec.hidden_size);
    }
    return written;
}

uint64_t modeli_zeroed_bytes(const model *self, uint32_t stage, uint32_t pass, uint32_t i)
{
    const struct pass *of = &self->stages[stage].passes[PHASE_BACKWARD][pass];
    struct ranges written = written_of(self, stage, pass, i);
    uint64_t elems = self->units[of->units[i]].elems;
    for (uint32_t r = 0; r < written.count; r++)
        elems -= written.items[r].end - written.items[r].begin;
    return elems * sizeof(float);
}

int modeli_begin_grads(model *self, uint32_t stage, uint32_t pass, void *stream,
                       const model_call *call)
{
    const struct pass *of = &self->stages[stage].passes[PHASE_BACKWARD][pass];
    for (uint32_t i = 0; i < of->unit_count; i++) {
        if (!call->fresh[i] || call->grads[i] == NULL)
            continue;
        struct ranges written = written_of(self, stage, pass, i);
        insert(&written, self->units[of->units[i]].elems, 0);
        uint64_t begin = 0;
        for (uint32_t r = 0; r < written.count; r++) {
            uint64_t end = written.items[r].begin;
            if (end > begin)
                TRY(self->ops->zero(self->context, stream, call->grads[i] + begin,
                                    (end - begin) * sizeof(float)));
            begin = written.items[r].end;
        }
    }
    return 0;
}
