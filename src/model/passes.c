/* The passes of every stage: which parameters each needs, what it reads and writes, and what it costs.
 * modeli_create_passes makes the lists (model_create), modeli_size_passes fills them whenever bytes or
 * flops of the stages change. See model.h for the order of passes. */
#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "model/model_internal.h"

/* ---- stages of one pass in each direction ---- */

static void fill_embed(const model_stage *stage)
{
    model_pass *forward = stage->passes[MODEL_FORWARD], *backward = stage->passes[MODEL_BACKWARD];
    forward->reads_params[0] = true;
    forward->output = MODEL_WRITE;
    backward->adds_grads[0] = true;
    backward->output_grad = MODEL_READ;
}

static void fill_block(const model_stage *stage)
{
    model_pass *forward = stage->passes[MODEL_FORWARD], *backward = stage->passes[MODEL_BACKWARD];
    forward->reads_params[0] = backward->reads_params[0] = backward->adds_grads[0] = true;
    forward->input = backward->input = backward->output_grad = MODEL_READ;
    forward->output = backward->input_grad = MODEL_WRITE;
}

static void fill_head(const model_stage *stage)
{
    model_pass *forward = stage->passes[MODEL_FORWARD], *backward = stage->passes[MODEL_BACKWARD];
    for (uint32_t i = 0; i < stage->unit_count; i++)
        forward->reads_params[i] = backward->reads_params[i] = backward->adds_grads[i] = true;
    forward->input = backward->input = MODEL_READ;
    forward->losses = backward->losses = backward->input_grad = MODEL_WRITE;
}

static void fill_uncut(const model_stage *stage)
{
    model_pass *forward = stage->passes[MODEL_FORWARD], *backward = stage->passes[MODEL_BACKWARD];
    model_pass common = {.unit_count = stage->unit_count};
    memcpy(common.units, stage->units, sizeof common.units);
    *forward = *backward = common;
    forward->flops = stage->forward_flops;
    forward->dram_bytes = stage->forward_dram_bytes;
    forward->temp_bytes = stage->forward_temp_bytes;
    backward->flops = stage->backward_flops + stage->recompute_flops;
    backward->dram_bytes = stage->backward_dram_bytes;
    backward->temp_bytes = stage->backward_temp_bytes;
    if (stage->kind == STAGE_EMBED)
        fill_embed(stage);
    else if (stage->kind == STAGE_BLOCK)
        fill_block(stage);
    else
        fill_head(stage);
}

int modeli_create_passes(model *self)
{
    for (uint32_t i = 0; i < self->stage_count; i++) {
        model_stage *stage = &self->stages[i];
        stage->pass_count[MODEL_FORWARD] = stage->pass_count[MODEL_BACKWARD] = 1;
        uint32_t total = 0;
        for (uint32_t phase = 0; phase < MODEL_PHASE_COUNT; phase++)
            total += stage->pass_count[phase];
        model_pass *passes = mem_alloc(total, sizeof *passes, "model.passes");
        if (passes == NULL)
            return -ENOMEM;
        for (uint32_t phase = 0; phase < MODEL_PHASE_COUNT; phase++) {
            stage->passes[phase] = passes;
            passes += stage->pass_count[phase];
        }
    }
    return 0;
}

void modeli_size_passes(model *self)
{
    for (uint32_t i = 0; i < self->stage_count; i++)
        fill_uncut(&self->stages[i]);
}

void modeli_destroy_passes(model *self)
{
    for (uint32_t i = 0; i < self->stage_count; i++)
        mem_free(self->stages[i].passes[0]); /* one block for all phases */
}
