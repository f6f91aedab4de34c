/* Modules: models that are described by data (base/module.h), whose passes a program computes. See
 * model.h. Only model_create_module allocates.
 *
 * A pass has neither boundary activations nor memory of its own, because the program keeps its own
 * activations. Each pass writes the same few bytes of scratch. These dependencies keep the passes
 * of a step in one order. */
#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"
#include "base/tile.h"
#include "model/model_internal.h"

enum { ORDER_BYTES = 256 };

/* A tensor of two dimensions in a unit with matrices is a matrix; all others are vectors, whatever
 * their shape. */
static void describe_tensor(const module_tensor *from, bool has_matrices, uint64_t *end_elems,
                            model_tensor *out)
{
    bool is_matrix = has_matrices && from->dimension_count == 2;
    uint64_t elems = 1;
    for (uint32_t i = 0; i < from->dimension_count; i++)
        elems *= from->shape[i];
    strcpy(out->name, from->name);
    out->rows = is_matrix ? from->shape[0] : 1;
    out->columns = is_matrix ? from->shape[1] : elems;
    out->whole_rows = out->stored_rows = out->rows;
    out->offset_elems = size_round_up(*end_elems, MODEL_TENSOR_ALIGN_ELEMS);
    out->init = TENSOR_INIT_ZERO;
    *end_elems = out->offset_elems + elems;
}

static int describe_unit(model *self, uint32_t idx, const module_unit *from)
{
    model_unit *unit = &self->units[idx];
    uint64_t end_elems = 0;
    unit->tensors = mem_alloc(from->tensor_count, sizeof *unit->tensors, "model.tensors");
    if (unit->tensors == NULL)
        return -ENOMEM;
    strcpy(unit->name, from->name);
    unit->tensor_count = from->tensor_count;
    unit->group = from->group;
    unit->is_frozen = from->is_frozen;
    for (uint32_t i = 0; i < from->tensor_count; i++) {
        describe_tensor(&from->tensors[i], from->has_matrices, &end_elems, &unit->tensors[i]);
        unit->param_count += unit->tensors[i].rows * unit->tensors[i].columns;
    }
    unit->elems = unit->rest_elems = size_round_up(end_elems, SHARD_ELEMS_STEP);
    self->param_count += unit->param_count;
    return 0;
}

static void describe_pass(const module_stage *from, const module_pass *of, struct pass *pass)
{
    *pass = (struct pass){.unit_count = from->unit_count,
                          .seconds = of->seconds,
                          .copy_seconds = of->copy_seconds,
                          .temp_bytes = ORDER_BYTES};
    for (uint32_t i = 0; i < from->unit_count; i++) {
        pass->units[i] = from->units[i];
        pass->reads_params[i] = of->uses[i];
        pass->adds_grads[i] = of->adds[i];
    }
}

/* Fills the stage and its passes, of which `next` is the first. Returns the pass after them. */
static struct pass *describe_stage(model *self, uint32_t idx, struct pass *next)
{
    const module_stage *from = &self->module->stages[idx];
    struct stage *stage = &self->stages[idx];
    bool is_last = idx + 1 == self->stage_count;
    stage->kind = idx == 0 ? STAGE_EMBED : is_last ? STAGE_HEAD : STAGE_BLOCK;
    stage->unit_count = from->unit_count;
    memcpy(stage->units, from->units, sizeof stage->units);
    stage->passes[PHASE_FORWARD] = next++;
    stage->pass_count[PHASE_FORWARD] = 1;
    stage->passes[PHASE_RECOMPUTE] = stage->passes[PHASE_BACKWARD] = next;
    describe_pass(from, &from->forward, stage->passes[PHASE_FORWARD]);
    if (from->backward.is_computed) {
        describe_pass(from, &from->backward, next++);
        stage->pass_count[PHASE_BACKWARD] = 1;
    } else if (idx == self->first_learning) {
        self->first_learning = idx + 1;
    }
    if (is_last)
        for (int phase = 0; phase < PHASE_COUNT; phase++)
            for (uint32_t p = 0; p < stage->pass_count[phase]; p++)
                stage->passes[phase][p].losses = ACCESS_WRITE;
    return next;
}

int model_create_module(const module_spec *spec, enum dtype type, model **out)
{
    *out = NULL;
    model *self = mem_alloc(1, sizeof *self, "model");
    int rc = -ENOMEM;
    if (self == NULL)
        return -ENOMEM;
    self->module = spec;
    self->type = type;
    self->micro_batch = self->tokens = 1;
    self->stage_count = spec->stage_count;
    self->chunk_rows = 1;
    self->units = mem_alloc(spec->unit_count, sizeof *self->units, "model.units");
    self->stages = mem_alloc(self->stage_count, sizeof *self->stages, "model.stages");
    self->passes = mem_alloc(2 * (uint64_t)self->stage_count, sizeof *self->passes, "model.passes");
    if (self->units == NULL || self->stages == NULL || self->passes == NULL)
        goto fail;
    self->unit_count = spec->unit_count;
    for (uint32_t u = 0; u < spec->unit_count; u++)
        TRY_GOTO(rc, describe_unit(self, u, &spec->units[u]), fail);
    struct pass *next = self->passes;
    for (uint32_t s = 0; s < self->stage_count; s++)
        next = describe_stage(self, s, next);
    self->pass_count = (uint64_t)(next - self->passes);
    *out = self;
    return 0;

fail:
    model_destroy(self);
    return rc;
}

void model_set_runner(model *self, model_runner *run, void *user)
{
    self->runner = run;
    self->runner_user = user;
}

/* Fills the gaps between the tensors of a fresh accumulator, and its end, with zeros. */
static int zero_gaps(const model *self, const model_unit *unit, void *stream, float *grads)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i <= unit->tensor_count; i++) {
        const model_tensor *tensor = i < unit->tensor_count ? &unit->tensors[i] : NULL;
        uint64_t until = tensor != NULL ? tensor->offset_elems : unit->elems;
        if (until > at)
            TRY(self->ops->zero(self->context, stream, grads + at, (until - at) * sizeof *grads));
        at = until + (tensor != NULL ? tensor->rows * tensor->columns : 0);
    }
    return 0;
}

int modeli_run_module(model *self, enum phase phase, uint32_t stage, void *stream,
                      const model_call *call)
{
    const module_stage *of = &self->module->stages[stage];
    const struct pass *pass = &self->stages[stage].passes[phase][0];
    bool is_backward = phase == PHASE_BACKWARD;
    if (!(is_backward ? &of->backward : &of->forward)->is_computed)
        return 0;
    model_use use = {.stage = stage,
                     .is_backward = is_backward,
                     .trains = call->trains,
                     .micro_batch = call->micro_batch,
                     .grad_scale = call->grad_scale,
                     .lent = call->lent,
                     .pause = call->pause,
                     .unit_count = pass->unit_count};
    for (uint32_t i = 0; i < pass->unit_count; i++) {
        use.units[i] = pass->units[i];
        use.elems[i] = self->units[pass->units[i]].elems;
        use.params[i] = pass->reads_params[i] ? call->params[i] : NULL;
        use.grads[i] = is_backward && pass->adds_grads[i] ? call->grads[i] : NULL;
        use.fresh[i] = use.grads[i] != NULL && call->fresh[i];
    }
    if (use.lent != NULL)
        memset(use.lent, 0, self->units[use.units[0]].tensor_count * sizeof *use.lent);
    if (self->runner == NULL)
        return err_set(ERR_INTERNAL, "no program computes the passes of %s", self->module->name);
    int rc = self->runner(self->runner_user, &use);
    if (rc != 0)
        return rc;
    for (uint32_t i = 0; i < use.unit_count; i++)
        if (use.fresh[i])
            TRY(zero_gaps(self, &self->units[use.units[i]], stream, use.grads[i]));
    return 0;
}
