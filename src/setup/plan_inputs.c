/* The inputs of the plan, taken from the model and the job: sizes, stages, ranks. Pure. */
#include <errno.h>

#include "base/mem.h"
#include "base/size.h"
#include "setup/setup_internal.h"

/* The model's stages as the plan takes them: `saved_bytes` is what may be kept. An uncut head has
 * its own as scratch, in the workspace. With a model for calls of one token: the larger of both. */
static int make_stages(struct setup *self)
{
    const model *net = self->net;
    self->stages = mem_alloc(net->stage_count, sizeof *self->stages, "plan stages");
    if (!self->stages)
        return -ENOMEM;
    for (uint32_t i = 0; i < net->stage_count; i++) {
        struct stage *made = &self->stages[i];
        *made = net->stages[i];
        if (self->single)
            made->saved_bytes = size_max(made->saved_bytes, self->single->stages[i].saved_bytes);
        if (!made->is_cut && made->kind != STAGE_BLOCK)
            made->saved_bytes = made->selective_bytes = 0;
        if (made->is_cut)
            made->selective_bytes = made->saved_bytes;
    }
    return 0;
}

/* Chooses the units whose params stay gathered at stage 3: in order, small units, as long as they
 * are within the model's limit. */
static int choose_gathered(struct setup *self)
{
    const struct job *asked = self->job;
    uint64_t left = asked->model_persistence_threshold;
    self->stays_gathered = mem_alloc(self->net->unit_count, 1, "persistent units"); /* zeroed */
    if (!self->stays_gathered)
        return -ENOMEM;
    for (uint32_t u = 0; u < self->net->unit_count; u++) {
        uint64_t elems = self->net->units[u].elems;
        if (elems >= asked->persistence_threshold || elems > left)
            continue;
        self->stays_gathered[u] = 1;
        left -= elems;
    }
    return 0;
}

/* Fills those inputs of the plan that concern ranks. */
static int make_rank_inputs(struct setup *self)
{
    const struct job *asked = self->job;
    plan_job *plan = &self->plan;
    TRY(choose_gathered(self));
    plan->world = self->ranks.world;
    plan->zero_stage = asked->zero_stage;
    plan->stays_gathered = self->stays_gathered;
    TRY(setupi_find_owned(self));
    plan->wire_bytes = (uint32_t)dtype_bytes(asked->comm.wire);
    bool is_nccl = self->collectives == COMM_NCCL;
    plan->reduce_scratch_bytes = is_nccl && plan->wire_bytes < 4 ? plan->wire_bytes : 0;
    uint64_t piece_elems = COMM_SCRATCH_BYTES / plan->wire_bytes / plan->world;
    plan->reduce_piece_elems = size_max(piece_elems / SHARD_ELEMS_STEP, 1) * SHARD_ELEMS_STEP;
    plan->live_elems_max = asked->max_live_parameters;
    plan->ahead_elems_max = asked->prefetch_bucket_size;
    plan->limits_reuse = asked->limits_reuse;
    plan->reuse_elems_max = asked->max_reuse_distance;
    return 0;
}

/* Muon needs no second moment for units that hold only matrices of blocks. */
static int find_unit_streams(struct setup *self)
{
    const model *net = self->net;
    if (self->job->optimizer.type != JOB_MUON)
        return 0;
    self->unit_streams = mem_alloc(net->unit_count, sizeof *self->unit_streams, "plan units");
    if (!self->unit_streams)
        return -ENOMEM;
    for (uint32_t u = 0; u < net->unit_count; u++)
        self->unit_streams[u] = setup_streams_of(self->job, net, u);
    self->plan.unit_streams = self->unit_streams;
    return 0;
}

/* A pass's expanded params lie at the end of the workspace, so that the plan can tell them from its
 * temp. */
static uint64_t temp_and_expanded(const struct pass *pass)
{
    if (pass->expanded_bytes == 0)
        return pass->temp_bytes;
    return size_round_up(pass->temp_bytes, MODEL_REST_ALIGN_BYTES) + pass->expanded_bytes;
}

/* The largest `saved` and `temp` that the passes of a model need in the workspace. */
static void size_workspace(const model *net, bool only_eval, uint64_t *saved, uint64_t *temp)
{
    int phase_end = only_eval ? PHASE_FORWARD + 1 : PHASE_COUNT;
    for (uint32_t i = 0; i < net->stage_count; i++) {
        const struct stage *from = &net->stages[i];
        if (!from->is_cut) /* `saved` of a cut stage is a buffer of its own */
            *saved = size_max(*saved, from->saved_bytes);
        for (int phase = 0; phase < phase_end; phase++)
            for (uint32_t p = 0; p < from->pass_count[phase]; p++)
                *temp = size_max(*temp, temp_and_expanded(&from->passes[phase][p]));
    }
}

/* Bytes of the addresses of a unit's gradients, if the program of a module lends these and updates
 * can read their dtype; else 0. */
static uint64_t lent_bytes(const struct setup *self)
{
    const model *net = self->net;
    enum dtype closed = self->job->grad_dtype;
    uint64_t most = 0;
    if (!net->module || !net->module->lends_grads || (closed != DTYPE_FP32 && closed != net->type))
        return 0;
    for (uint32_t u = 0; u < net->unit_count; u++)
        most = size_max(most, net->units[u].tensor_count);
    return most * sizeof(void *);
}

/* Makes the lists with an element for each unit. The homes are chosen later. */
static int list_units(struct setup *self, bool params_alone)
{
    const model *net = self->net;
    self->unit_elems = mem_alloc(net->unit_count, sizeof *self->unit_elems, "plan units");
    self->is_frozen = mem_alloc(net->unit_count, 1, "plan units");
    if (!self->unit_elems || !self->is_frozen)
        return -ENOMEM;
    for (uint32_t u = 0; u < net->unit_count; u++) {
        self->unit_elems[u] = net->units[u].rest_elems;
        self->is_frozen[u] = net->units[u].is_frozen && !params_alone;
    }
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++) {
        self->homes[kind] = mem_alloc(net->unit_count, 1, "plan homes");
        if (!self->homes[kind])
            return -ENOMEM;
    }
    return 0;
}

int setupi_make_plan_inputs(struct setup *self, const struct setup_options *options)
{
    const model *net = self->net;
    plan_job *plan = &self->plan;
    TRY(list_units(self, options->params_alone));
    TRY(make_stages(self));
    uint64_t saved = 0, temp = 0;
    size_workspace(net, options->only_eval, &saved, &temp);
    if (self->single)
        size_workspace(self->single, options->only_eval, &saved, &temp);
    self->workspace_temp_offset = size_round_up(saved, 256);
    uint64_t step_tokens = self->job->accumulation * net->micro_batch * net->tokens;
    uint64_t counters = model_has_dropout(&net->spec) ? 2 * self->job->accumulation : 0;
    *plan = (plan_job){
        .unit_count = net->unit_count,
        .stage_count = net->stage_count,
        .unit_elems = self->unit_elems,
        .stages = self->stages,
        .is_frozen = self->is_frozen,
        .micro_batch_count = (uint32_t)self->job->accumulation,
        .boundary_bytes = net->boundary_bytes,
        .workspace_bytes =
            size_round_up(self->workspace_temp_offset + temp, MODEL_REST_ALIGN_BYTES),
        .constants_bytes = net->constants_bytes,
        .cache_bytes = net->cache_bytes,
        /* and targets, begins of documents, counters of dropout */
        .tokens_bytes = (3 * step_tokens + counters) * sizeof(int32_t),
        .losses_bytes = step_tokens * sizeof(float),
        .totals_bytes = model_totals_bytes(net),
        .param_bytes = (uint32_t)dtype_bytes(net->type),
        .grad_bytes = (uint32_t)dtype_bytes(self->job->grad_dtype),
        .lent_bytes = lent_bytes(self),
        .experts = self->job->schedule.experts,
        .call_tokens = self->single ? 1 : net->micro_batch * net->tokens,
        .in_order = net->module != NULL,
        .order =
            self->job->schedule.order == ORDER_BATCH_MAJOR ? ORDER_BATCH_MAJOR : ORDER_LAYER_MAJOR,
        .state_streams = setupi_state_streams(self->job, options->params_alone),
        .tile_elems = options->found && options->as_it_lies ? options->found->tile_elems
                                                            : self->job->schedule.tile_elems,
        .tile_elems_max = self->job->sub_group_size,
        .lookahead_ops = self->job->schedule.lookahead,
        .needs_save_places = !options->is_trial && !options->params_alone,
        .commits = !options->is_trial && !options->only_eval && self->job->run.commit_every > 0,
        .commit_every = self->job->run.commit_every,
        .only_eval = options->only_eval,
        .norm_part_bytes = options->test ? options->test->norm_part_bytes : 0,
    };
    if (plan->tile_elems)
        plan->tile_elems = size_round_up(plan->tile_elems, TILE_ELEMS_STEP);
    TRY(find_unit_streams(self));
    TRY(make_rank_inputs(self));
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        plan->homes[kind] = self->homes[kind];
    return 0;
}
