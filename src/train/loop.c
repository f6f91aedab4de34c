/* The training loop: one program per step, scalars between programs, metrics after each step.
 *
 *   start ──(no commit here)──► INIT ──┐
 *         ──(commit)──────────► LOAD ──┴─► FIRST ─► STEADY ... ─► FLUSH ─► SAVE: the last commit
 *                                                     └─► a commit after a step, if one is due
 *
 * With update in_next_forward, the gradients of step t are applied by the program of step t + 1 (or
 * by FLUSH), with the scalars that follow from the norm of step t. A step whose gradient norm is
 * not finite is skipped:
 *
 *   updates are left for later   nothing is pending after the step, so the next program is FIRST
 *   otherwise                    the updates of the step's own program do not run */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "train/loop_internal.h"

enum {
    SEAL_AFTER_STEPS = 2,
    /* without loss scaling a skip changes nothing, so more skips do not help */
    SKIPS_IN_A_ROW_MAX = 10,
};

/* ---- losses ---- */

/* Adds the losses of the routers in each micro-batch of this rank. */
static void add_router_losses(const struct loop *self, const unsigned char *losses,
                              struct loop_losses *sums)
{
    const struct setup *setup = self->run.setup;
    for (uint32_t mb = 0; setup->plan.totals_bytes > 0 && mb < setup->plan.micro_batch_count;
         mb++) {
        double balance, z;
        const void *totals = losses + plan_totals_begin(&setup->plan, mb);
        model_router_losses(setup->net, totals, &balance, &z);
        sums->balance += balance;
        sums->z += z;
    }
}

/* The mean of the losses of the targets that count: each rank sums in double, in order; then the
 * ranks' sums are added in rank order. NaN if no target counts. Those of the routers are means over
 * the micro-batches of all ranks. Also exchanges requests to stop. */
static int mean_loss(struct loop *self, struct loop_losses *mean)
{
    const model *net = self->run.setup->net;
    uint64_t count = self->run.job->accumulation * net->micro_batch * net->tokens;
    const unsigned char *home =
        engine_home(self->run.engine, self->run.setup->set.homes.losses_host);
    const float *losses = (const float *)(const void *)home;
    struct loop_losses sums = {0};
    for (uint64_t i = 0; i < count; i++)
        sums.tokens += net->module ? self->module_losses[i] : (double)losses[i];
    add_router_losses(self, home, &sums);
    TRY(loop_share_step(self, &sums, mean));
    uint64_t target_count = self->run.engine->step.target_count;
    double micro_batches = (double)self->run.ranks.world * (double)self->run.job->accumulation;
    mean->tokens = target_count ? mean->tokens / (double)target_count : NAN;
    mean->balance /= micro_batches;
    mean->z /= micro_batches;
    return 0;
}

/* True if the state at this step must be committed and is not committed yet. */
static bool is_due(const struct loop *self, uint64_t step)
{
    uint64_t every = self->run.job->run.commit_every;
    const state_commit *commit = &self->run.commit;
    return every > 0 && loop_is_kept(self) && step > 0 && step % every == 0 &&
           !(commit->has_commit && commit->committed_step >= step);
}

/* True if a steady step commits the state at its begin, which lacks the pending update. */
static bool finds_older(const struct loop *self)
{
    return self->run.setup->set.commit == PLAN_COMMIT_FIRST &&
           engine_leaves_update(self->run.setup);
}

/* Commits the state before the last step, which memory still holds, if it is one to keep. Otherwise
 * the next step would commit it, but here no next step begins with it. */
static int commit_older(struct loop *self)
{
    uint64_t step = self->before.step;
    if (!finds_older(self) || !is_due(self, step) || !state_is_kept(self->run.job, step))
        return 0;
    self->run.commit.record.point = self->before;
    return engine_run(self->run.engine, PROGRAM_SAVE, self->run.record.point.step, NULL);
}

int loop_apply_pending(struct loop *self)
{
    if (!self->pending)
        return 0;
    TRY(commit_older(self));
    self->pending = false;
    return engine_run(self->run.engine, PROGRAM_FLUSH, self->run.record.point.step, NULL);
}

/* True if any rank was asked to stop. All ranks learn it at the same step. */
static bool is_stopped(const struct loop *self)
{
    const volatile sig_atomic_t *stop = self->options->stop;
    return self->run.ranks.world > 1 ? self->is_asked_to_stop : stop && *stop;
}

void loop_tell_lost_lines(struct loop *self)
{
    if (self->lost_line_count > 0)
        log_warn("metrics.jsonl lacks %" PRIu64
                 " lines, because its disk was full; the run's state is complete",
                 self->lost_line_count);
    self->lost_line_count = 0;
}

void loop_give_up_board(struct loop *self)
{
    log_warn("%s: TensorBoard gets nothing more of this run, which goes on", err_text());
    tensorboard_file_close(&self->board);
}

/* Only rank 0 has the file. A full disk loses lines for people, but no state: commits are written
 * in place. */
int loop_write_metrics(struct loop *self, const metrics_line *line)
{
    if (self->run.ranks.rank != 0)
        return 0;
    if (self->board.fd >= 0 && tensorboard_file_write(&self->board, line) < 0)
        loop_give_up_board(self);
    int rc = metrics_file_write(&self->metrics, line);
    if (rc == 0)
        loop_tell_lost_lines(self);
    if (!loop_is_disk_full(rc))
        return rc;
    if (self->lost_line_count++ == 0)
        log_warn("%s: the run goes on, and its steps have no lines there until there is room",
                 err_text());
    return 0;
}

/* The last evaluation is finished even if a stop was requested: the run is over. */
int loop_evaluate(struct loop *self, bool is_last)
{
    if (!self->valid_data)
        return 0;
    uint64_t begin_ns = clock_ns();
    TRY(loop_apply_pending(self));
    /* Evaluate whole programs, without repeating windows; at least one program, which may wrap
     * around. */
    uint64_t windows = loop_step_windows(self);
    uint64_t asked = size_div_up(self->run.job->run.eval_batches,
                                 self->run.ranks.world * self->run.job->accumulation);
    uint64_t runs =
        size_max(size_min(asked, mixture_windows_in_order(self->valid_data) / windows), 1);
    struct loop_losses losses;
    double sum = 0;
    uint64_t counted = 0;
    for (uint64_t r = 0; r < runs; r++) {
        if (is_stopped(self) && !is_last)
            return 0; /* stop at once; an unfinished evaluation has no result */
        TRY(loop_load_windows(self, self->valid_data, false, r * windows));
        TRY(engine_run(self->run.engine, PROGRAM_EVAL, self->run.record.point.step, NULL));
        TRY(mean_loss(self, &losses));
        double mean = losses.tokens;
        uint64_t targets = self->run.engine->step.target_count;
        counted += targets;
        if (mixture_has_uncounted(self->valid_data))
            mean = targets ? mean * (double)targets : 0;
        sum += mean;
    }
    /* Programs have the same weight, unless some targets do not count. */
    double weight = mixture_has_uncounted(self->valid_data) ? (double)counted : (double)runs;
    struct train_eval eval = {.step = self->run.record.point.step,
                              .loss = counted ? sum / weight : NAN};
    self->summary->eval_loss = eval.loss;
    self->summary->eval_given = true;
    metrics_line line = {
        .is_eval = true,
        .step = eval.step,
        .valid_loss = (float)eval.loss,
        .tokens = runs * windows * self->run.setup->net->tokens,
        .has_counted = mixture_has_uncounted(self->valid_data),
        .counted_tokens = counted,
        .seconds = (double)(clock_ns() - begin_ns) * 1e-9,
    };
    TRY(loop_write_metrics(self, &line));
    if (self->options->on_eval && self->run.ranks.rank == 0)
        self->options->on_eval(self->options->user, &eval);
    return 0;
}

static void fill_line(const struct loop *self, const run_totals *run,
                      const struct loop_losses *losses, double seconds, metrics_line *line)
{
    const struct engine *engine = self->run.engine;
    uint64_t tokens = loop_step_windows(self) * self->run.setup->net->tokens;
    *line = (metrics_line){
        .step = engine->step.step,
        .loss = (float)losses->tokens,
        .has_router_losses = self->run.setup->plan.totals_bytes > 0,
        .balance_loss = losses->balance,
        .router_z_loss = losses->z,
        .grad_norm = engine->step.grad_norm,
        .lr = engine->step.skip ? 0.0 : (double)engine->step.scalars.learning_rate,
        .loss_scale = engine->step.loss_scale,
        .skipped = engine->step.skip,
        .tokens = tokens,
        .has_counted = self->train_data && mixture_has_uncounted(self->train_data),
        .counted_tokens = engine->step.target_count,
        .seconds = seconds,
        .tokens_per_second = (double)tokens / seconds,
        .model_tflops = model_step_flops(self->run.setup->net, tokens) / seconds * 1e-12,
    };
    for (int i = 0; i < LANE_COUNT; i++)
        line->lanes[i] = (metrics_lane){
            .bytes = run->lanes[i].bytes,
            .spared_bytes = run->lanes[i].spared_bytes,
            .busy_seconds = (double)run->lanes[i].busy_ns * 1e-9,
            .stall_seconds = (double)run->lanes[i].stall_ns * 1e-9,
        };
    for (int a = 0; a < TIER_COUNT; a++)
        line->peak_bytes[a] = self->summary->peak_bytes[a];
}

static void tell_step(struct loop *self, const metrics_line *line)
{
    bool speaks = self->run.ranks.rank == 0 || comm_is_pretended(self->run.ranks.comm);
    uint64_t done = line->step - self->begin_step;
    double elapsed = (double)(clock_ns() - self->begin_ns) * 1e-9;
    self->last = (struct train_progress){
        .step = line->step,
        .steps = self->run.job->run.steps,
        .tokens = line->tokens,
        .loss = (double)line->loss,
        .has_router_losses = line->has_router_losses,
        .balance_loss = line->balance_loss,
        .router_z_loss = line->router_z_loss,
        .grad_norm = line->grad_norm,
        .learning_rate = line->lr,
        .seconds = line->seconds,
        .tokens_per_second = line->tokens_per_second,
        .model_tflops = line->model_tflops,
        .seconds_left = elapsed / (double)done * (double)(self->run.job->run.steps - line->step),
        .skipped = line->skipped,
    };
    for (int i = 0; i < LANE_COUNT; i++)
        self->last.lanes[i] = line->lanes[i];
    if (self->options->on_step && speaks)
        self->options->on_step(self->options->user, &self->last);
}

/* The learning rate of the update that this step should have made. */
static double rate_of(const struct loop *self)
{
    return job_learning_rate(self->run.job, self->run.engine->step.applied + 1);
}

/* The reason why this step's gradient, which is not finite, ends the run; NULL: it does not. */
static const char *why_no_skip(const struct loop *self)
{
    if (self->run.setup->plan.update == UPDATE_IN_BACKWARD)
        return "with schedule.update in_backward it was applied as it came, so what was trained is "
               "lost";
    if (!self->run.job->check_grad_overflow)
        return "bf16.check_grad_overflow false lets no step be skipped";
    return NULL;
}

/* Handles a gradient norm that is not finite: the step is skipped, or the run ends. */
static int note_overflow(struct loop *self, double loss)
{
    const struct engine_step *step = &self->run.engine->step;
    bool overflows = !isfinite(step->grad_norm);
    self->skips_in_a_row = overflows ? self->skips_in_a_row + 1 : 0;
    if (self->scaler.is_dynamic) {
        if (overflows)
            log_info("step %" PRIu64
                     ": the gradients overflowed at loss scale %g; the update is skipped",
                     step->step, step->loss_scale);
        int rc = loss_scaler_update(&self->scaler, overflows);
        return rc < 0 ? err_prefix(rc, "step %" PRIu64, step->step) : 0;
    }
    if (!overflows)
        return 0;
    const char *why = why_no_skip(self);
    if (why)
        return err_set(ERR_DIVERGED,
                       "step %" PRIu64 ": the gradient norm is not finite (loss %g), and %s; begin "
                       "anew with a lower learning rate (here %g)",
                       step->step, loss, why, rate_of(self));
    log_warn("step %" PRIu64 ": the gradient norm is not finite (loss %g); the update is skipped",
             step->step, loss);
    if (self->skips_in_a_row < SKIPS_IN_A_ROW_MAX)
        return 0;
    return err_set(ERR_DIVERGED,
                   "step %" PRIu64 ": the gradient norm was not finite in %u steps in a row%s, so "
                   "training has diverged; begin anew with a lower learning rate (here %g)%s",
                   step->step, self->skips_in_a_row,
                   self->run.job->type == DTYPE_FP16 ? " at a static loss scale" : "",
                   rate_of(self),
                   self->run.job->type == DTYPE_FP16 ? " or with fp16.loss_scale 0" : "");
}

/* The state that the next steady step would commit: the state at its begin, which lacks a pending
 * update, or the state with all updates. */
static const manifest_point *state_to_commit(const struct loop *self)
{
    return finds_older(self) ? &self->before : &self->run.record.point;
}

/* Before a steady step: decides if it commits, and which state. */
static void decide_commit(struct loop *self)
{
    state_commit *commit = &self->run.commit;
    if (self->run.setup->set.commit == PLAN_COMMIT_APART)
        return;
    const manifest_point *state = state_to_commit(self);
    self->run.engine->is_committing = is_due(self, state->step);
    if (self->run.engine->is_committing)
        commit->record.point = *state;
}

/* Between steps: makes a due commit that no step can make beside its work. If updates are left for
 * later but none is pending (the step was skipped, or an evaluation has applied the update), the
 * next step does not commit the state at its begin. */
static int commit_between(struct loop *self)
{
    if (!is_due(self, self->run.record.point.step) && !is_due(self, self->before.step))
        return 0;
    bool apart = self->run.setup->set.commit == PLAN_COMMIT_APART;
    if (!apart && !(engine_leaves_update(self->run.setup) && !self->pending))
        return 0;
    if (apart && !is_due(self, self->run.record.point.step))
        return 0;
    if (self->run.engine->step.skip) /* the skipped step changed nothing */
        TRY(commit_older(self));
    return is_due(self, self->run.record.point.step) || is_due(self, self->before.step)
               ? loop_commit_now(self)
               : 0;
}

/* Runs the program of one step, and sets the scalars before and after it. */
static int run_step_program(struct loop *self, run_totals *run, enum program_kind *ran)
{
    struct engine *engine = self->run.engine;
    bool leaves_update = engine_leaves_update(self->run.setup);
    engine->step.step = self->run.record.point.step + 1;
    engine->step.loss_scale = self->scaler.scale;
    if (!leaves_update)
        engine->step.skip = false; /* until the norm is known */
    if (self->run.setup->plan.update == UPDATE_IN_BACKWARD) {
        engine->step.grad_norm = 0; /* then it neither clips nor skips */
        engine_make_scalars(engine);
    }
    enum program_kind kind = self->pending || !leaves_update ? PROGRAM_STEADY : PROGRAM_FIRST;
    *ran = kind;
    if (kind == PROGRAM_STEADY)
        decide_commit(self);
    int rc = engine_run(engine, kind, engine->step.step, run);
    engine->is_committing = false;
    if (rc < 0)
        return err_prefix(rc, "step %" PRIu64, engine->step.step);
    if (leaves_update)
        engine_make_scalars(engine);
    if (self->run.setup->plan.update == UPDATE_IN_BACKWARD)
        self->spoiled = engine->step.skip = !isfinite(engine->step.grad_norm);
    self->pending = leaves_update && !engine->step.skip;
    return 0;
}

/* Bytes that collectives have sent to other ranks so far. */
static uint64_t sent_so_far(const struct loop *self)
{
    return self->run.ranks.world > 1 ? comm_sent_bytes(self->run.ranks.comm) : 0;
}

/* True if this step's update is not left to the next step, because training is exact before
 * schedule.delayed_from_step. A trial measures the steps after that. */
static bool is_warm_up(const struct loop *self, uint64_t step)
{
    return self->run.setup->plan.update == UPDATE_DELAYED_ONE_STEP && !self->options->is_trial &&
           step < self->run.job->schedule.delayed_from_step;
}

/* Calls the on_step of train_options.watch, if there is one. */
static int watch_step(struct loop *self, const run_totals *run, enum program_kind kind,
                      uint64_t events_begin, double seconds)
{
    const struct setup_watch *watch = self->options->watch;
    if (!watch || !watch->on_step)
        return 0;
    struct setup_watched_step step = {
        .totals = run,
        .prog = &self->run.setup->set.programs[kind],
        .events_begin = events_begin,
        .skipped = self->run.engine->step.skip,
        .seconds = seconds,
    };
    return watch->on_step(watch->user, self->run.engine, &step);
}

/* The program that computes a module has given up the step: an update that was pending is made, and
 * nothing else has changed. */
static int leave_step(struct loop *self)
{
    self->before = self->run.record.point;
    self->run.engine->step.is_given_up = false;
    self->was_left = true;
    return err_set(-ECANCELED, "step %" PRIu64 " was given up", self->run.record.point.step + 1);
}

static int one_step(struct loop *self)
{
    const struct engine *engine = self->run.engine;
    uint64_t begin_ns = clock_ns(), sent_bytes = sent_so_far(self);
    uint64_t passes = engine->expert_passes, passes_hit = engine->expert_passes_hit;
    uint64_t events_begin = engine->ring.written;
    enum program_kind kind;
    struct loop_losses losses;
    TRY(loop_load_windows(self, self->train_data, true, self->run.record.point.window_count));
    run_totals run;
    self->run.engine->step.is_given_up = false;
    TRY(run_step_program(self, &run, &kind));
    if (self->run.engine->step.is_given_up)
        return leave_step(self);
    bool skipped = self->run.engine->step.skip;
    self->before = self->run.record.point;
    self->run.record.point.step++;
    self->run.record.point.window_count += loop_step_windows(self);
    self->run.record.point.skipped_count += skipped;
    TRY(mean_loss(self, &losses));
    if (is_warm_up(self, self->run.record.point.step))
        TRY(loop_apply_pending(self));
    if (self->run.engine->step.target_count == 0 && self->run.ranks.rank == 0)
        log_warn("step %" PRIu64 ": not one of its %" PRIu64
                 " tokens counts as a target: it has no loss, and its gradient is zero",
                 self->run.engine->step.step,
                 loop_step_windows(self) * self->run.setup->net->tokens);
    self->sent_bytes = sent_so_far(self) - sent_bytes;
    int rc = note_overflow(self, losses.tokens);
    loss_scaler_save(&self->scaler, &self->run.record);
    metrics_line line;
    fill_line(self, &run, &losses, (double)(clock_ns() - begin_ns) * 1e-9, &line);
    line.expert_passes = engine->expert_passes - passes;
    line.expert_passes_hit = engine->expert_passes_hit - passes_hit;
    TRY_KEEP(rc, loop_write_metrics(self, &line));
    self->summary->steps_done++;
    self->summary->tokens += line.tokens;
    self->summary->train_loss = losses.tokens;
    tell_step(self, &line);
    TRY_KEEP(rc, watch_step(self, &run, kind, events_begin, line.seconds));
    return rc;
}

int loop_step(struct loop *self)
{
    self->was_left = false;
    TRY(commit_between(self));
    return one_step(self);
}

void loop_begin_steps(struct loop *self)
{
    self->begin_ns = clock_ns();
    self->begin_step = self->run.record.point.step;
}

static void check_seal(struct loop *self, bool last)
{
    if (!last) {
        mem_seal();
        if (arena_process_memory(NULL, NULL, &self->mapped_at_seal) < 0)
            self->mapped_at_seal = 0;
        return;
    }
    mem_stats stats;
    mem_unseal();
    mem_get_stats(&stats);
    uint64_t mapped = 0;
    if (self->mapped_at_seal == 0 || arena_process_memory(NULL, NULL, &mapped) < 0)
        return;
    self->summary->sealed_alloc_count = stats.call_count_after_seal;
    self->summary->sealed_mapped_bytes =
        mapped > self->mapped_at_seal ? mapped - self->mapped_at_seal : 0;
    if (stats.call_count_after_seal)
        log_warn("%" PRIu64 " allocations after memory was sealed, the first for %s",
                 stats.call_count_after_seal, stats.first_tag_after_seal);
}

/* A stop comes before an evaluation that is due, so a resumed run makes that evaluation first. */
static int evaluate_missed(struct loop *self)
{
    uint64_t every = self->run.job->run.eval_every, step = self->run.record.point.step;
    bool is_due = every && self->resumed && step > 0 && step % every == 0, is_done;
    if (!is_due || step >= self->run.job->run.steps)
        return 0;
    TRY(loop_is_evaluated(self, &is_done));
    return is_done ? 0 : loop_evaluate(self, false);
}

/* Runs steps until the last one or a stop. Returns 1 if it stopped on request. */
int loop_run_steps(struct loop *self)
{
    uint64_t every = self->run.job->run.eval_every;
    bool sealed = false;
    struct loop_losses none = {0};
    loop_begin_steps(self);
    int rc = loop_share_step(self, &none, &none); /* a stop that was requested before */
    if (rc == 0)
        rc = evaluate_missed(self);
    while (rc == 0 && self->run.record.point.step < self->run.job->run.steps && !is_stopped(self)) {
        rc = loop_step(self);
        if (rc == 0 && every && self->run.record.point.step % every == 0 &&
            self->run.record.point.step < self->run.job->run.steps)
            rc = loop_evaluate(self, false);
        if (!sealed && self->run.record.point.step - self->begin_step >= SEAL_AFTER_STEPS) {
            sealed = true;
            check_seal(self, false);
        }
    }
    if (sealed)
        check_seal(self, true);
    self->summary->seconds = (double)(clock_ns() - self->begin_ns) * 1e-9;
    if (rc < 0)
        return rc;
    return is_stopped(self) && self->run.record.point.step < self->run.job->run.steps;
}
