/* Runs a stage: dispatch over phases, stages and passes. Allocates nothing. */
#include <assert.h>

#include "model/model_internal.h"

int model_run(model *self, enum phase phase, uint32_t stage, uint32_t pass, void *stream,
              const model_call *call, bool saved_is_valid)
{
    const modeli_part *part = NULL;
    bool backward = phase == PHASE_BACKWARD;
    assert(self->ops != NULL);
    assert(stage < self->stage_count);
    assert(pass < self->stages[stage].pass_count[phase]);
    if (backward)
        TRY(modeli_begin_grads(self, stage, pass, stream, call));
    if (self->stages[stage].is_cut)
        part = modeli_pass_part(self, phase, stage, pass, &backward);
    switch (self->stages[stage].kind) {
    case STAGE_EMBED:
        return part ? modeli_embed_part(self, stream, call, part, backward)
                    : modeli_embed(self, stream, call, backward);
    case STAGE_BLOCK:
        if (part)
            return modeli_block_part(self, stream, call, part, backward);
        return backward ? modeli_block_backward(self, stream, call, saved_is_valid)
                        : modeli_block_forward(self, stream, call);
    case STAGE_HEAD:
        return part ? modeli_head_part(self, stream, call, part, backward)
                    : modeli_head(self, stream, call, backward);
    }
    return err_set(ERR_INTERNAL, "stage %u of the model has no kind", stage);
}

int model_logits_pass(model *self, uint32_t pass, void *stream, const model_call *call,
                      uint64_t row, float *logits)
{
    uint32_t head = self->stage_count - 1;
    assert(self->ops != NULL);
    assert(row < self->products->shape.rows);
    assert(pass < self->stages[head].pass_count[PHASE_FORWARD]);
    if (!self->stages[head].is_cut)
        return modeli_row_logits(self, stream, call, row, logits);
    bool is_backward;
    const modeli_part *part = modeli_pass_part(self, PHASE_FORWARD, head, pass, &is_backward);
    return modeli_row_logits_part(self, stream, call, part, row, logits);
}
