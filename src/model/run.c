/* What runs a stage: dispatch over phases, stages and passes. Allocates nothing. */
#include <assert.h>

#include "model/model_internal.h"

int model_forward(model *self, uint32_t stage, void *stream, const model_call *call)
{
    assert(self->ops != NULL);
    assert(stage < self->stage_count);
    assert(!self->stages[stage].is_cut);
    switch (self->stages[stage].kind) {
    case STAGE_EMBED:
        return modeli_embed_forward(self, stream, call);
    case STAGE_BLOCK:
        return modeli_block_forward(self, stream, call);
    case STAGE_HEAD:
        return modeli_head_forward(self, stream, call);
    }
    return err_set(ERR_INTERNAL, "stage %u of the model has no kind", stage);
}

int model_backward(model *self, uint32_t stage, void *stream, const model_call *call,
                   bool saved_is_valid)
{
    assert(self->ops != NULL);
    assert(stage < self->stage_count);
    assert(!self->stages[stage].is_cut);
    switch (self->stages[stage].kind) {
    case STAGE_EMBED:
        return modeli_embed_backward(self, stream, call);
    case STAGE_BLOCK:
        return modeli_block_backward(self, stream, call, saved_is_valid);
    case STAGE_HEAD:
        return modeli_head_backward(self, stream, call);
    }
    return err_set(ERR_INTERNAL, "stage %u of the model has no kind", stage);
}

int model_run(model *self, enum model_phase phase, uint32_t stage, uint32_t pass, void *stream,
              const model_call *call, bool saved_is_valid)
{
    assert(stage < self->stage_count);
    assert(pass < self->stages[stage].pass_count[phase]);
    if (phase == MODEL_FORWARD)
        return model_forward(self, stage, stream, call);
    return model_backward(self, stage, stream, call, saved_is_valid);
}
