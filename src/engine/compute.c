/* Runs ops: translates each op into a call of the model or of kernels. Workers of the CPU run it;
 * on a GPU the call is enqueued on a stream. Runs on the workers' threads, or (GPU) on the
 * executor's. Reads the step's scalars, which change only between programs and when the norm is
 * complete. Allocates nothing. The norm itself is in norm.c. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/shard.h"
#include "base/size.h"
#include "base/thread.h"
#include "base/tile.h"
#include "engine/engine_internal.h"
#include "model/pack.h"

/* The address of an operand; NULL for a NULL operand. */
static void *address(const struct engine *self, const program *prog, const operand *item)
{
    if (!item)
        return NULL;
    uint8_t held_in = prog->buffers[item->buffer_idx].arena;
    return lane_operand_address(self->arenas[held_in].base, prog, item);
}

void *enginei_role_address(const struct engine *self, const program *prog, const op *item,
                           enum operand_role role)
{
    return address(self, prog, op_operand(item, role));
}

/* The model that the current program runs. */
static model *model_of(const struct engine *self)
{
    return self->is_single ? self->setup->single : self->setup->net;
}

/* The factor of the head's backward: the loss is a mean, so each target that counts contributes its
 * part. Without targets the gradient is zero. */
static float grad_scale(const struct engine_step *step)
{
    return step->target_count ? (float)(step->loss_scale / (double)step->target_count) : 0.0f;
}

/* Runs a pass. The program that computes a module has threads of its own meanwhile: where it shares
 * OpenMP's runtime with us, as PyTorch may, the threads of all teams count, and those of its team
 * sleep after each short loop once there are more threads than cores. So our team ends first.
 *
 * The program may give up a step (model_runner). The rest of the step then runs without computing,
 * and its update is skipped. If that is not possible, since units are updated one by one or other
 * ranks would go on, the step fails. */
static int run_pass(struct engine *self, const program *prog, enum phase phase, const op *item,
                    void *stream, const model_call *call, enum kept kept)
{
    const struct setup *setup = self->setup;
    model *net = model_of(self);
    if (net->module) {
        if (setup->gpu) /* the program's own streams do not wait for ours */
            TRY(device_synchronize(setup->gpu, stream));
        thread_end_team();
    }
    int rc = model_run(net, phase, item->stage, item->pass, stream, call, kept);
    if (rc <= 0)
        return rc;
    bool trains = prog->kind != PROGRAM_EVAL;
    if (trains && (setup->ranks.world > 1 || setup->plan.update == UPDATE_IN_BACKWARD)) {
        /* at once: collectives that are under way would wait for the other ranks */
        ranks_fail_all(&setup->ranks, -ECANCELED);
        return -ECANCELED;
    }
    self->step.is_given_up = true;
    return 0;
}

/* How much of the inner activations is kept in the op's ROLE_SAVED, between a whole block's forward
 * and its backward. */
static enum kept kept_by(const struct engine *self, const op *item)
{
    const struct setup *setup = self->setup;
    if (setup->net->stages[item->stage].is_cut || !op_operand(item, ROLE_SAVED))
        return KEPT_NONE;
    return kept_at_home(setup->homes[STATE_INNER_ACTIVATIONS][item->unit]);
}

/* A pass whose unit is not hit gets no params, since they were not fetched. The pass of a router,
 * which finds out the hits, gets their place; the first micro-batch of a round clears it. Counts
 * the passes that read a hit, and those of them whose unit was hit. */
static void fill_hits(struct engine *self, const program *prog, const op *item, model_call *call)
{
    const operand *hits = op_operand(item, ROLE_HITS);
    uint8_t *at = address(self, prog, hits);
    if (hits && hits->access == ACCESS_WRITE)
        memset(at, 0, hits->size_bytes);
    if (hits && hits->access != ACCESS_READ)
        call->hits = at;
    else if (hits && *at == 0)
        call->params[0] = call->params[1] = NULL;
    bool is_first = self->setup->plan.order == ORDER_BATCH_MAJOR || item->micro_batch == 0;
    if (hits && hits->access == ACCESS_READ && is_first) {
        self->expert_passes++;
        self->expert_passes_hit += *at != 0;
    }
}

/* Lets updates that wait run in the middle of a pass. Otherwise a drive waits for the end of a long
 * pass, because its next read needs the memory of these tiles. The threads that compute a module go
 * on afterwards (run_pass). */
static void run_updates(void *user)
{
    struct engine *self = user;
    lane_worker_pause(self->core_lane);
    if (model_of(self)->module)
        thread_end_team();
}

static bool do_updates_wait(void *user)
{
    return lane_worker_is_pause_wanted(((struct engine *)user)->core_lane);
}

/* True if updates may run in pauses of the worker that computes: it does both, no test has another
 * in its place, and run.paranoid is off, whose scratch is for one op at a time. */
static bool may_pause(const struct engine *self)
{
    return self->core_lane && !self->update_lane && !self->test && !self->setup->job->run.paranoid;
}

static void fill_call(struct engine *self, const program *prog, const op *item, model_call *call)
{
    const struct setup *setup = self->setup;
    uint64_t rows = setup->net->micro_batch * setup->net->tokens;
    uint64_t step_tokens = setup->job->accumulation * rows;
    const int32_t *tokens = enginei_role_address(self, prog, item, ROLE_TOKENS);
    unsigned char *workspace = enginei_role_address(self, prog, item, ROLE_WORKSPACE);
    void *saved = enginei_role_address(self, prog, item, ROLE_SAVED);
    void *losses = enginei_role_address(self, prog, item, ROLE_LOSSES);
    const operand *expanded = op_operand(item, ROLE_EXPANDED);
    const uint32_t *counters = (const uint32_t *)(tokens + 3 * step_tokens);
    bool drops = prog->kind != PROGRAM_EVAL && model_has_dropout(&setup->net->spec);
    *call = (model_call){
        .params = {enginei_role_address(self, prog, item, ROLE_PARAMS0),
                   enginei_role_address(self, prog, item, ROLE_PARAMS1)},
        .grads = {enginei_role_address(self, prog, item, ROLE_GRADS0),
                  enginei_role_address(self, prog, item, ROLE_GRADS1)},
        .lent = enginei_role_address(self, prog, item, ROLE_LENT),
        .tokens = tokens + item->micro_batch * rows,
        .targets = tokens + step_tokens + item->micro_batch * rows,
        .begins =
            self->step.is_separate ? tokens + 2 * step_tokens + item->micro_batch * rows : NULL,
        .input = enginei_role_address(self, prog, item, ROLE_INPUT),
        .output = enginei_role_address(self, prog, item, ROLE_OUTPUT),
        .input_grad = enginei_role_address(self, prog, item, ROLE_INPUT_GRAD),
        .output_grad = enginei_role_address(self, prog, item, ROLE_OUTPUT_GRAD),
        .losses = losses,
        .grad_scale = grad_scale(&self->step),
        .totals = losses,
        .router_scale = (float)(self->step.loss_scale / (double)setup->job->accumulation /
                                (double)setup->ranks.world),
        .saved = saved ? saved : workspace,
        .saved_rest = kept_by(self, item) == KEPT_SELECTIVE
                          ? workspace + setup->net->stages[item->stage].selective_bytes
                          : NULL,
        .temp = workspace + setup->workspace_temp_offset,
        .expanded = address(self, prog, expanded),
        .expands = expanded && expanded->access == ACCESS_WRITE,
        .constants = enginei_role_address(self, prog, item, ROLE_CONSTANTS),
        .cache = enginei_role_address(self, prog, item, ROLE_CACHE),
        .position = self->position,
        .count = self->count,
        .layer = item->stage > 0 ? model_block_of(setup->net, item->stage) : 0,
        .dropout_counter = drops ? counters + 2 * item->micro_batch : NULL,
        .dropout_seed = self->step.seed,
        .micro_batch = item->micro_batch,
        .trains = prog->kind != PROGRAM_EVAL,
        .step = (enum op_step)item->step,
        .sent = enginei_role_address(self, prog, item, ROLE_SENT),
        .received = enginei_role_address(self, prog, item, ROLE_RECEIVED),
        .parcels = enginei_parcels_of(self, item->micro_batch),
    };
    if (may_pause(self))
        call->pause = (model_pause){run_updates, do_updates_wait, self};
    fill_hits(self, prog, item, call);
}

static int run_forward(struct engine *self, const program *prog, const op *item, void *stream)
{
    model *net = model_of(self);
    model_call call;
    fill_call(self, prog, item, &call);
    bool is_head = net->stages[item->stage].kind == STAGE_HEAD;
    if (is_head && self->logits_row == ENGINE_LOGITS_NONE)
        return 0;
    if (is_head && self->logits_row >= 0)
        return model_logits_pass(net, item->pass, stream, &call, (uint64_t)self->logits_row,
                                 self->logits);
    enum phase phase = item->kind == OP_RECOMPUTE ? PHASE_RECOMPUTE : PHASE_FORWARD;
    return run_pass(self, prog, phase, item, stream, &call, KEPT_NONE);
}

/* Clears the part of a fresh accumulator beyond its unit: the padding of the last ranks' shards. It
 * is added up and stored with them, but no product writes it. */
static int zero_padding(struct engine *self, const program *prog, const op *item, int i,
                        void *stream)
{
    static const enum operand_role roles[2] = {ROLE_GRADS0, ROLE_GRADS1};
    const struct setup *setup = self->setup;
    const struct pass *pass = &setup->net->stages[item->stage].passes[PHASE_BACKWARD][item->pass];
    const operand *grads = op_operand(item, roles[i]);
    uint64_t unit_bytes = setup->net->units[pass->units[i]].elems * sizeof(float);
    if (grads->size_bytes == unit_bytes)
        return 0;
    return setup->ops->zero(setup->context, stream, (char *)address(self, prog, grads) + unit_bytes,
                            grads->size_bytes - unit_bytes);
}

static int run_backward(struct engine *self, const program *prog, const op *item, void *stream)
{
    model_call call;
    fill_call(self, prog, item, &call);
    for (int i = 0; i < 2; i++) {
        call.fresh[i] = item->fresh_grads & (1 << i);
        if (call.fresh[i])
            TRY(zero_padding(self, prog, item, i, stream));
    }
    return run_pass(self, prog, PHASE_BACKWARD, item, stream, &call, kept_by(self, item));
}

/* Adds to the sum of the rank's shard, or of a tile of it. */
static int run_grad_add(struct engine *self, const program *prog, const op *item, void *stream)
{
    void *sum = enginei_role_address(self, prog, item, ROLE_TARGET);
    return self->setup->ops->add(self->setup->context, stream, DTYPE_FP32, item->elem_count, sum,
                                 enginei_role_address(self, prog, item, ROLE_SOURCE), sum);
}

static int run_grad_close(struct engine *self, const program *prog, const op *item, void *stream)
{
    grad_close_args args = {
        .count = item->elem_count,
        .accumulator = enginei_role_address(self, prog, item, ROLE_GRADS0),
        .grads = enginei_role_address(self, prog, item, ROLE_TARGET),
        .grad_type = self->setup->job->grad_dtype,
        .block_sums = enginei_role_address(self, prog, item, ROLE_NORM_SUMS),
    };
    return self->setup->ops->grad_close(self->setup->context, stream, &args);
}

static int run_norm(struct engine *self, const program *prog, const op *item, void *stream)
{
    return enginei_reduce_norm(self, stream, item->tile == PROGRAM_NONE ? 0 : item->tile,
                               enginei_role_address(self, prog, item, ROLE_NORM_SUMS),
                               enginei_role_address(self, prog, item, ROLE_TARGET));
}

static int run_working_copy(struct engine *self, const program *prog, const op *item, void *stream)
{
    kernel_context *context;
    const kernel_ops *ops = enginei_worker(self, item, &context);
    const float *master = enginei_role_address(self, prog, item, ROLE_STATE);
    return ops->working_copy(context, stream, master,
                             enginei_role_address(self, prog, item, ROLE_TARGET),
                             self->setup->net->type, item->elem_count);
}

/* Uses the worker's team: a single core would take as long for this as all cores take for the
 * initial weights. */
static void clear(unsigned char *target, uint64_t size_bytes)
{
    const uint64_t piece_bytes = MIB;
#pragma omp parallel for schedule(static)
    for (uint64_t at = 0; at < size_bytes; at += piece_bytes)
        memset(target + at, 0, size_min(piece_bytes, size_bytes - at));
}

/* Makes the weights with which a new run begins. */
static int first_elems(struct engine *self, uint32_t unit, uint64_t begin, uint64_t count,
                       float *master)
{
    const struct setup *setup = self->setup;
    if (self->first_elems) {
        uint64_t real = shard_real_elems(setup->net->units[unit].elems, begin, count);
        memset(master + real, 0, (count - real) * sizeof *master); /* padding of the last ranks */
        return real ? self->first_elems(self->first_user, unit, begin, real, master) : 0;
    }
    model_init_elems(setup->net, unit, setup->job->run.seed, begin, count, master);
    return 0;
}

/* Initializes a tile whose master is the working copy. */
static int init_working(struct engine *self, const program *prog, const op *item)
{
    clear(enginei_role_address(self, prog, item, ROLE_STATE),
          op_operand(item, ROLE_STATE)->size_bytes);
    return first_elems(self, item->unit,
                       setup_state_begin(self->setup, item->unit) + item->elem_begin,
                       item->elem_count, enginei_role_address(self, prog, item, ROLE_TARGET));
}

/* Initializes a tile whose master is split in halves. Its fp32 weights are made at the end of the
 * tile, where there is room for them, and are then split. The low halves are written from the start
 * of the tile; each write lands before what is still to be read. */
static int init_split(struct engine *self, const program *prog, const op *item)
{
    const struct setup *setup = self->setup;
    unsigned char *state = enginei_role_address(self, prog, item, ROLE_STATE);
    uint64_t size_bytes = op_operand(item, ROLE_STATE)->size_bytes, count = item->elem_count;
    uint64_t low_bytes = tile_stream_bytes(setup->plan.state_streams, count, 0);
    kernel_context *context;
    const kernel_ops *ops = enginei_worker(self, item, &context);
    if (size_bytes < sizeof(float) * count)
        return err_set(ERR_INTERNAL, "a tile of %llu elements has %llu bytes",
                       (unsigned long long)count, (unsigned long long)size_bytes);
    float *master = (float *)(void *)(state + size_bytes - sizeof(float) * count);
    TRY(first_elems(self, item->unit, setup_state_begin(setup, item->unit) + item->elem_begin,
                    count, master));
    TRY(ops->working_copy(context, NULL, master,
                          enginei_role_address(self, prog, item, ROLE_TARGET), setup->net->type,
                          count));
    for (uint64_t i = 0; i < count; i++) {
        uint16_t low = master_low16(master[i]);
        memcpy(state + i * sizeof low, &low, sizeof low);
    }
    clear(state + low_bytes, size_bytes - low_bytes); /* padding goes to disk too */
    return 0;
}

static int first_source(void *user, uint32_t unit, uint64_t begin, uint64_t count, float *values)
{
    return first_elems(user, unit, begin, count, values);
}

static int first_codes(void *user, uint32_t unit, uint32_t tensor, uint64_t matrix, void *codes,
                       void *scales)
{
    const struct engine *self = user;
    if (!self->first_codes)
        return 0;
    return self->first_codes(self->first_user, unit, tensor, matrix, codes, scales);
}

/* A tile of a packed unit: a part of its packed vector. */
static int init_packed(struct engine *self, const program *prog, const op *item)
{
    const struct setup *setup = self->setup;
    uint64_t begin = setup_state_begin(setup, item->unit) + item->elem_begin;
    uint64_t count = shard_real_elems(setup->unit_elems[item->unit], begin, item->elem_count);
    uint64_t width = setup->plan.param_bytes;
    char *target = enginei_role_address(self, prog, item, ROLE_TARGET);
    kernel_context *context;
    const kernel_ops *ops = enginei_worker(self, item, &context);
    const void *packed;
    const model_source source = {.values = first_source, .codes = first_codes, .user = self};
    if (!self->packer)
        TRY(model_packer_create(setup->net, &self->packer));
    TRY(model_pack(self->packer, ops, context, item->unit, &source, &packed));
    memcpy(target, (const char *)packed + begin * width, count * width);
    memset(target + count * width, 0, (item->elem_count - count) * width);
    return 0;
}

/* Works in host memory; a plan for a GPU copies the result to the device. */
static int run_init(struct engine *self, const program *prog, const op *item)
{
    const struct setup *setup = self->setup;
    unsigned char *state = enginei_role_address(self, prog, item, ROLE_STATE);
    if (tile_master_is_split(setup->plan.state_streams) && plan_learns(&setup->plan, item->unit))
        return tile_stream_format(setup->plan.state_streams, 0) == TILE_PARAMS
                   ? init_working(self, prog, item)
                   : init_split(self, prog, item);
    if (setup->net->units[item->unit].is_packed)
        return init_packed(self, prog, item);
    clear(state, op_operand(item, ROLE_STATE)->size_bytes); /* padding goes to disk too */
    TRY(first_elems(self, item->unit, setup_state_begin(setup, item->unit) + item->elem_begin,
                    item->elem_count, (float *)(void *)state));
    return run_working_copy(self, prog, item, NULL);
}

void enginei_name_collective(const struct engine *self, const op *item,
                             char label[COMM_LABEL_BYTES])
{
    const model *net = self->setup->net;
    const char *kind = item->kind == OP_ALL_GATHER ? "all-gather" : "reduce-scatter";
    if (item->kind == OP_UNITE_HITS)
        snprintf(label, COMM_LABEL_BYTES, "step %llu, hits of the experts of stage %u",
                 (unsigned long long)self->step.step, item->stage);
    else if (item->kind == OP_DISPATCH || item->kind == OP_RETURN)
        snprintf(label, COMM_LABEL_BYTES, "step %llu, %s of %.40s, pass %u, micro-batch %u",
                 (unsigned long long)self->step.step,
                 item->kind == OP_DISPATCH ? "rows for experts" : "results",
                 net->units[item->unit].name, item->pass, item->micro_batch);
    else if (item->unit < net->unit_count)
        snprintf(label, COMM_LABEL_BYTES, "step %llu, %s of %s of %.40s",
                 (unsigned long long)self->step.step, kind,
                 item->state_kind < STATE_KIND_COUNT
                     ? state_kind_name((enum state_kind)item->state_kind)
                     : "state",
                 net->units[item->unit].name);
    else
        snprintf(label, COMM_LABEL_BYTES, "step %llu, %s of the norm's sums",
                 (unsigned long long)self->step.step, kind);
}

int enginei_run_collective(void *user, const program *prog, const op *item)
{
    struct engine *self = user;
    char label[COMM_LABEL_BYTES];
    if (item->kind == OP_UNITE_HITS) /* on a worker: it is complete when the call returns */
        return enginei_unite_hits(self, prog, item, NULL);
    if (item->kind == OP_DISPATCH || item->kind == OP_RETURN)
        return enginei_exchange_rows(self, prog, item);
    comm *members = self->setup->ranks.comm;
    enginei_name_collective(self, item, label);
    comm_note(members, label);
    comm_call call = {.label = label,
                      .source = enginei_role_address(self, prog, item, ROLE_SOURCE),
                      .target = enginei_role_address(self, prog, item, ROLE_TARGET),
                      .wire = self->setup->job->comm.wire,
                      .scratch = enginei_role_address(self, prog, item, ROLE_WORKSPACE)};
    if (item->kind == OP_ALL_GATHER) {
        call.count = op_operand(item, ROLE_SOURCE)->size_bytes;
        return comm_all_gather(members, &call);
    }
    call.count = op_operand(item, ROLE_TARGET)->size_bytes / sizeof(float);
    if (call.scratch)
        call.scratch_elems = op_operand(item, ROLE_WORKSPACE)->size_bytes /
                             (self->setup->ranks.world * dtype_bytes(call.wire));
    return comm_reduce_scatter(members, &call);
}

static bool is_computing(const op *item)
{
    return item->kind == OP_FORWARD || item->kind == OP_RECOMPUTE || item->kind == OP_BACKWARD;
}

/* For setup_watch.only_transfers: waits instead of computing. With a GPU it does not wait, because
 * that would hold up the executor's thread. */
static int wait_in_place(struct engine *self, const program *prog, const op *item)
{
    const operand *hits = op_operand(item, ROLE_HITS);
    if (hits && hits->access != ACCESS_READ) /* nothing is skipped */
        memset(address(self, prog, hits), 1, hits->size_bytes);
    if (item->step != STEP_WHOLE)
        enginei_send_usual(self, item);
    double seconds = self->setup->gpu ? 0 : setup_watched_seconds(self->setup, item);
    struct timespec left = {.tv_sec = (time_t)seconds};
    left.tv_nsec = (long)((seconds - (double)left.tv_sec) * 1e9);
    while (seconds > 0 && nanosleep(&left, &left) != 0)
        ;
    return 0;
}

int enginei_enqueue_op(void *user, const program *prog, const op *item, void *stream)
{
    struct engine *self = user;
    if (self->watch && self->watch->only_transfers && is_computing(item))
        return wait_in_place(self, prog, item);
    switch ((enum op_kind)item->kind) {
    case OP_FORWARD:
    case OP_RECOMPUTE:
        return run_forward(self, prog, item, stream);
    case OP_BACKWARD:
        return run_backward(self, prog, item, stream);
    case OP_GRAD_ADD:
        return run_grad_add(self, prog, item, stream);
    case OP_GRAD_CLOSE:
        return run_grad_close(self, prog, item, stream);
    case OP_NORM_PART:
    case OP_NORM:
        return run_norm(self, prog, item, stream);
    case OP_UPDATE:
        return enginei_run_update(self, prog, item, stream);
    case OP_DIRECTION:
        return enginei_run_direction(self, prog, item);
    case OP_ORTHOGONALIZE:
        return enginei_run_orthogonalize(self, prog, item);
    case OP_INIT:
        return run_init(self, prog, item);
    case OP_WORKING_COPY:
        return run_working_copy(self, prog, item, stream);
    case OP_ALL_GATHER:
    case OP_REDUCE_SCATTER:
    case OP_DISPATCH:
    case OP_RETURN:
        return enginei_run_collective(self, prog, item);
    case OP_UNITE_HITS:
        return enginei_unite_hits(self, prog, item, stream);
    default:
        return err_set(ERR_INTERNAL, "a worker that computes was given an op of kind %s",
                       op_kind_name((enum op_kind)item->kind));
    }
}

bool engine_may_replay(const struct setup *setup, const program *prog, const op *item)
{
    if (prog->kind != PROGRAM_STEADY)
        return false;
    if (is_computing(item) && setup->net->module)
        return false;
    if (is_computing(item))
        return setup->net->stages[item->stage].kind != STAGE_HEAD &&
               !model_waits_for_device(setup->net, item->stage);
    return item->kind == OP_GRAD_ADD || item->kind == OP_GRAD_CLOSE;
}

bool enginei_may_replay(void *user, const program *prog, const op *item)
{
    const struct engine *self = user;
    if (self->watch && self->watch->only_transfers)
        return false; /* computing is left out */
    return engine_may_replay(self->setup, prog, item);
}

int enginei_finish_op(void *user, const program *prog, const op *item)
{
    (void)prog;
    if (item->kind == OP_NORM)
        enginei_take_norm(user);
    if (item->kind == OP_UNITE_HITS)
        enginei_take_hits(user, prog, item);
    return 0;
}

int enginei_run_op(void *user, const program *prog, const op *item)
{
    TRY(enginei_enqueue_op(user, prog, item, NULL));
    return enginei_finish_op(user, prog, item);
}

int enginei_run_copy(void *user, const program *prog, const op *item)
{
    struct engine *self = user;
    const operand *target = op_operand(item, ROLE_TARGET);
    memcpy(address(self, prog, target), enginei_role_address(self, prog, item, ROLE_SOURCE),
           target->size_bytes);
    return 0;
}
