/* Runs a pass of a block: its layers in order, forwards or backwards. A whole block is one pass;
 * its backward first computes again what it reads and the caller did not keep. A pass of a block in
 * parts runs the layers of one part (rows.c). The sequence of ops depends only on shapes. Nothing
 * is computed for a unit whose grads are NULL. Allocates nothing. */
#include "model/model_internal.h"

void *modeli_at_spot(const modeli_run *run, modeli_spot spot)
{
    const model_call *call = run->call;
    void *const buffers[] = {
        [MODELI_NOWHERE] = NULL,
        [MODELI_INPUT] = (void *)call->input,
        [MODELI_OUTPUT] = call->output,
        [MODELI_OUTPUT_GRAD] = (void *)call->output_grad,
        [MODELI_GRAD] = run->grad,
        [MODELI_SCRATCH] = run->turn == MODELI_TURN_FORWARD ? call->output : run->grad,
    };
    if (spot.buffer != MODELI_SAVED)
        return buffers[spot.buffer];
    if (call->saved_rest != NULL && spot.offset_bytes >= run->list->selective_bytes)
        return modeli_at(call->saved_rest, spot.offset_bytes - run->list->selective_bytes);
    return modeli_at(call->saved, spot.offset_bytes);
}

/* True if the call's step has the layer. In a pass whose experts belong to ranks, the layers before
 * the owner come in the first step of a forward and in the last one of a backward. */
static bool is_in_step(const modeli_run *run, uint32_t idx)
{
    enum op_step step = run->call->step;
    if (step == STEP_WHOLE || idx == run->part->owner)
        return true;
    bool is_before = (idx < run->part->owner) == (run->turn != MODELI_TURN_BACKWARD);
    return step == (is_before ? STEP_SEND : STEP_COMBINE);
}

static int run_forward(const modeli_run *run, modeli_range range)
{
    for (uint32_t i = range.begin; i < range.end; i++) {
        const modeli_layer *layer = &run->list->layers[i];
        bool is_needed = run->turn == MODELI_TURN_FORWARD || layer->is_recomputed[run->kept];
        bool may_adapt = layer->kind->has_matrix && run->kept == KEPT_NONE;
        if ((!is_needed && !may_adapt) || !is_in_step(run, i))
            continue;
        modeli_pause(run->call);
        TRY(layer->kind->forward(run, layer));
    }
    return 0;
}

/* Stops where nothing further back learns. */
static int run_backward(const modeli_run *run, modeli_range range)
{
    const modeli_layer *first = modeli_first_owner(run->list);
    for (uint32_t i = range.end; i-- > range.begin;) {
        const modeli_layer *layer = &run->list->layers[i];
        if (layer->kind->backward == NULL || (layer < first && !run->wants_inner) ||
            !is_in_step(run, i))
            continue;
        modeli_pause(run->call);
        TRY(layer->kind->backward(run, layer));
    }
    return 0;
}

int modeli_block(model *self, void *stream, const modeli_list *list, const model_call *call,
                 const modeli_part *part, enum phase phase, enum kept kept)
{
    bool backward = phase == PHASE_BACKWARD;
    modeli_range range = modeli_layers_of(list, part, backward);
    modeli_run run = {.self = self, .stream = stream, .call = call, .list = list, .part = part};
    if (phase == PHASE_RECOMPUTE)
        run.turn = MODELI_TURN_RECOMPUTE;
    if (!backward)
        return run_forward(&run, range);
    run.grad = call->input_grad;
    bool begins_with_norm = list->layers[0].kind->is_norm;
    run.wants_inner = part != NULL || call->input_grad != NULL ||
                      (begins_with_norm && call->grads[list->layers[0].unit] != NULL);
    if (run.grad == NULL)
        run.grad = modeli_at(call->temp, modeli_unwanted_grad(self, list));
    run.turn = MODELI_TURN_RECOMPUTE;
    run.kept = kept;
    if (part == NULL && kept != KEPT_ALL)
        TRY(run_forward(&run, range));
    run.turn = MODELI_TURN_BACKWARD;
    return run_backward(&run, range);
}
