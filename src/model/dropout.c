/* Dropout of activations in training. A mask is a function of the run's seed, the step, the place
 * in the model, the sequence of the global batch and the element (kernels/dropout_mask.h). It is
 * computed wherever it is needed, in the forward, in a recomputation and in the backward, and never
 * stored. Allocates nothing. */
#include <assert.h>

#include "model/model_internal.h"

bool model_has_dropout(const model_spec *spec)
{
    return spec->hidden_dropout > 0 || spec->embedding_dropout > 0 || spec->attention_dropout > 0 ||
           (spec->lora.rank > 0 && spec->lora.dropout > 0);
}

bool modeli_drops_rows(const model *self)
{
    return self->spec.embedding_dropout > 0 && self->products->family->drops_rows;
}

uint64_t modeli_block_site(const model_call *call, uint64_t idx)
{
    return MODELI_BLOCK_SITES * (call->layer + 1) + idx;
}

int modeli_drop_rows(const model *self, void *stream, const model_call *call, double probability,
                     uint64_t site, uint64_t row_begin, uint64_t rows, uint64_t columns,
                     const void *source, void *target)
{
    assert(call->dropout_counter != NULL);
    dropout_args args = {
        .type = self->type,
        .rows = rows,
        .row_begin = row_begin,
        .columns = columns,
        .source = source,
        .target = target,
        .probability = (float)probability,
        .seed = call->dropout_seed,
        .site = (uint32_t)site,
        .counter = call->dropout_counter,
        .tokens = self->tokens,
    };
    return self->ops->dropout(self->context, stream, &args);
}

int modeli_drop(const model *self, void *stream, const model_call *call, double probability,
                uint64_t site, uint64_t columns, const void *source, void *target)
{
    return modeli_drop_rows(self, stream, call, probability, site, 0, modeli_rows(self), columns,
                            source, target);
}
