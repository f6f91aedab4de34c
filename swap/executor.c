/* The scheduler thread's loop. See executor.h for the contract and executor_internal.h for the
 * state.
 *
 *   issue: for each lane, while its next op in order has no closed dependency and the lane has room
 *   collect: poll the lanes that have work
 *   sleep: in poll(2) on their descriptors, when a whole round brought nothing
 *
 * A dependency opens when its op is complete. It opens already at submit if both ops are on
 * in-order lanes of one owner: that worker keeps the order itself and is fed ahead. This holds for
 * a conditional op too, once it is known to run (the run commits; the norm that decides is complete
 * and said "apply"); to be skipped it waits for everything. The op in op.behind opens at submit if
 * the lanes keep that order (lane.keeps_behind), otherwise when it is complete. */
#include "swap/executor.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/progress.h"
#include "base/size.h"
#include "swap/executor_internal.h"
#include "swap/program_internal.h"

enum { COLLECT_MAX = 64 };

static const char tag[] = "executor";

/* --- creation --------------------------------------------------------------------------------- */

static int take_lanes(executor *self, const executor_config *config)
{
    for (int kind = 0; kind < LANE_COUNT; kind++) {
        lane *given = config->lanes[kind];
        self->lanes[kind] = given;
        if (!given)
            continue;
        if (given->depth == 0)
            return err_set(-EINVAL, "executor: lane %s has depth 0",
                           lane_kind_name((enum lane_kind)kind));
        uint32_t at = 0;
        while (at < self->object_count && self->objects[at] != given)
            at++;
        if (at == self->object_count)
            self->objects[self->object_count++] = given;
        self->object_of[kind] = (uint8_t)at;
    }
    return 0;
}

static int create_parts(executor *self, const executor_config *config)
{
    TRY(take_lanes(self, config));
    uint64_t op_count_max = 0;
    self->is_skipped = config->is_skipped;
    self->is_committing = config->is_committing;
    self->paranoid = config->paranoid;
    self->arena_base[TIER_DEVICE] = config->arena_base[TIER_DEVICE];
    self->arena_base[TIER_HOST] = config->arena_base[TIER_HOST]; /* nvme is no memory */
    self->prepared = mem_alloc(config->program_count, sizeof *self->prepared, tag);
    if (!self->prepared)
        return -ENOMEM;
    for (uint32_t i = 0; i < config->program_count; i++) {
        TRY(swapi_prepare(self, config->programs[i], &self->prepared[i]));
        self->prepared_count++;
        op_count_max = size_max(op_count_max, config->programs[i]->op_count);
    }
    self->requests = mem_alloc(op_count_max, sizeof *self->requests, tag);
    self->closed_deps = mem_alloc(op_count_max, sizeof *self->closed_deps, tag);
    self->states = mem_alloc(op_count_max, sizeof *self->states, tag);
    self->order = mem_alloc(op_count_max, sizeof *self->order, tag);
    if (!self->requests || !self->closed_deps || !self->states || !self->order)
        return -ENOMEM;
    return self->paranoid ? swapi_paranoid_create(self, config) : 0;
}

int executor_create(const executor_config *config, executor **out)
{
    *out = NULL;
    executor *self = mem_alloc(1, sizeof *self, tag);
    if (!self)
        return -ENOMEM;
    self->ring = config->ring;
    self->stuck_ns = config->stuck_ns;
    int rc = create_parts(self, config);
    if (rc < 0) {
        executor_destroy(self);
        return rc;
    }
    *out = self;
    return 0;
}

void executor_destroy(executor *self)
{
    if (!self)
        return;
    for (uint32_t i = 0; i < self->prepared_count; i++)
        swapi_prepared_fini(&self->prepared[i]);
    mem_free(self->prepared);
    mem_free(self->requests);
    mem_free(self->closed_deps);
    mem_free(self->states);
    mem_free(self->order);
    mem_free(self->users_left);
    mem_free(self);
}

/* --- failure ---------------------------------------------------------------------------------- */

static void keep_op_failure(executor *self, const lane_request *request)
{
    if (self->failure.code != 0)
        return;
    char text[SWAPI_OP_TEXT_BYTES];
    const lane *home = self->lanes[request->item->lane];
    const err_record *record = home->ops->error ? home->ops->error(home) : NULL;
    if (record && record->code == request->result)
        err_restore(record);
    else
        err_set(request->result, "%s", err_name(request->result));
    err_prefix(request->result, "%s", swapi_op_text(self->now->prog, request->op_idx, text));
    err_save(&self->failure, request->result);
}

/* --- issue ------------------------------------------------------------------------------------ */

/* Op op_idx was submitted, or is complete: opens the dependencies on it that this event opens. */
static void open_dependents(executor *self, uint32_t op_idx, bool at_submit)
{
    const swapi_prepared *now = self->now;
    uint8_t lane_kind_of_op = now->prog->ops[op_idx].lane;
    for (uint64_t i = now->next_begin[op_idx]; i < now->next_begin[op_idx + 1]; i++) {
        uint32_t dependent = now->next[i];
        const op *item = &now->prog->ops[dependent];
        bool fed_ahead =
            !self->paranoid &&
            (item->behind == op_idx ? self->lanes[item->lane]->keeps_behind
                                    : swapi_same_worker(self, lane_kind_of_op, item->lane));
        if (fed_ahead != at_submit)
            continue;
        assert(self->closed_deps[dependent] > 0);
        self->closed_deps[dependent]--;
    }
}

enum head_action { HEAD_WAIT, HEAD_SUBMIT, HEAD_SKIP };

/* True if everything that a skipped op would have waited for is complete. */
static bool may_skip_now(const executor *self, const op *item)
{
    if (swapi_lane_is_chain(item->lane) && self->in_flight[item->lane] > 0)
        return false;
    const uint32_t *deps = &self->now->prog->deps[item->dep_begin];
    for (uint32_t k = 0; k < item->dep_count; k++)
        if (self->states[deps[k]] < SWAPI_DONE)
            return false;
    return true;
}

static bool is_hit(const executor *self, const op *item)
{
    const operand *hit = swapi_condition(item);
    const unsigned char *at =
        lane_operand_address(self->arena_base[TIER_HOST], self->now->prog, hit);
    return *at != 0;
}

/* Decides what to do with the head of a lane whose dependencies are open. */
static enum head_action decide_head(const executor *self, uint32_t op_idx)
{
    const swapi_prepared *now = self->now;
    const op *item = &now->prog->ops[op_idx];
    uint32_t router = now->routers ? now->routers[op_idx] : PROGRAM_NONE;
    if (router != PROGRAM_NONE && self->states[router] != SWAPI_DONE)
        return HEAD_WAIT;
    if (router != PROGRAM_NONE && swapi_condition(item) && !is_hit(self, item))
        return may_skip_now(self, item) ? HEAD_SKIP : HEAD_WAIT;
    if (item->if_commits && self->skips_commit) /* whether or not the update is applied */
        return may_skip_now(self, item) ? HEAD_SKIP : HEAD_WAIT;
    if (!item->if_applied || !self->is_skipped)
        return HEAD_SUBMIT;
    uint32_t norm = now->norms[op_idx];
    bool skips;
    if (norm == PROGRAM_NONE)
        skips = !now->decides && self->skips_pending;
    else if (self->states[norm] != SWAPI_DONE)
        return HEAD_WAIT;
    else
        skips = self->skips_decided;
    if (!skips)
        return HEAD_SUBMIT;
    return may_skip_now(self, item) ? HEAD_SKIP : HEAD_WAIT;
}

static void skip_op(executor *self, uint32_t op_idx)
{
    const op *item = &self->now->prog->ops[op_idx];
    self->states[op_idx] = SWAPI_SKIPPED;
    self->done_count++;
    self->totals[item->lane].skipped_count++;
    if (swapi_condition(item))
        self->totals[item->lane].spared_bytes += op_moved_bytes(item);
    swapi_paranoid_done(self, item);
    open_dependents(self, op_idx, true);
    open_dependents(self, op_idx, false);
}

static bool has_room(const executor *self, int kind)
{
    bool one_at_a_time = self->paranoid && swapi_lane_is_chain((uint8_t)kind);
    return self->in_flight[kind] < (one_at_a_time ? 1 : self->lanes[kind]->depth);
}

/* Submits or skips the ops of one lane that are ready. Returns how many, or the error of submit. */
static int issue_lane(executor *self, int kind)
{
    const swapi_prepared *now = self->now;
    lane *to = self->lanes[kind];
    int issued = 0;
    while (self->cursor[kind] < now->lane_begin[kind + 1] && has_room(self, kind)) {
        uint32_t op_idx = now->lane_ops[self->cursor[kind]];
        if (self->closed_deps[op_idx] > 0)
            break;
        enum head_action action = decide_head(self, op_idx);
        if (action == HEAD_WAIT)
            break;
        if (action == HEAD_SKIP) {
            self->cursor[kind]++;
            skip_op(self, op_idx);
            issued++;
            continue;
        }
        swapi_paranoid_issue(self, &now->prog->ops[op_idx]);
        lane_request *request = &self->requests[op_idx];
        *request =
            (lane_request){.prog = now->prog, .item = &now->prog->ops[op_idx], .op_idx = op_idx};
        uint32_t behind = request->item->behind;
        if (behind != PROGRAM_NONE && self->states[behind] == SWAPI_IN_FLIGHT)
            request->behind = &self->requests[behind];
        int rc = to->ops->submit(to, request);
        if (rc == -EAGAIN && self->in_flight_total > 0)
            /* what the lane uses is full, perhaps with another lane's ops; a completion makes
             * room */
            break;
        if (rc < 0) {
            char text[SWAPI_OP_TEXT_BYTES];
            return err_prefix(rc, "%s", swapi_op_text(now->prog, op_idx, text));
        }
        self->states[op_idx] = SWAPI_IN_FLIGHT;
        if (kind == LANE_COMMIT) {
            self->commit_begin_ns = clock_ns();
            self->commit_report_ns = self->stuck_ns;
        }
        self->cursor[kind]++;
        self->in_flight[kind]++;
        self->object_in_flight[self->object_of[kind]]++;
        self->in_flight_total++;
        issued++;
        open_dependents(self, op_idx, true);
    }
    return issued;
}

/* Issues on all lanes until none takes more: submitting on one lane can open the head of
 * another. */
static int issue_ready(executor *self)
{
    int issued;
    do {
        issued = 0;
        for (int kind = 0; kind < LANE_COUNT; kind++) {
            int rc = self->lanes[kind] ? issue_lane(self, kind) : 0;
            if (rc < 0)
                return rc;
            issued += rc;
        }
    } while (issued > 0);
    return 0;
}

/* --- collect ---------------------------------------------------------------------------------- */

static void finish_request(executor *self, const lane_request *request)
{
    int kind = request->item->lane;
    assert(self->states[request->op_idx] == SWAPI_IN_FLIGHT);
    assert(self->in_flight[kind] > 0);
    self->states[request->op_idx] = SWAPI_DONE;
    self->in_flight[kind]--;
    self->object_in_flight[self->object_of[kind]]--;
    self->in_flight_total--;
    self->done_count++;
    progress_note();
    if (request->result < 0) {
        keep_op_failure(self, request);
        return;
    }
    swapi_record_done(self, request);
    if (request->item->kind == OP_NORM && self->is_skipped)
        self->skips_decided = *self->is_skipped;
    swapi_paranoid_done(self, request->item);
    open_dependents(self, request->op_idx, false);
}

/* The lane itself failed: what is in flight there never comes back. */
static void abandon_object(executor *self, uint32_t object_idx, int code)
{
    err_prefix(code, "lane %s", self->objects[object_idx]->ops->name);
    err_keep(&self->failure, code);
    self->object_dead[object_idx] = 1;
    self->in_flight_total -= self->object_in_flight[object_idx];
    self->object_in_flight[object_idx] = 0;
}

/* Polls every lane that has work once; returns how many ops finished. */
static uint32_t collect(executor *self)
{
    lane_request *done[COLLECT_MAX];
    uint32_t collected = 0;
    for (uint32_t i = 0; i < self->object_count; i++) {
        if (self->object_in_flight[i] == 0 || self->object_dead[i])
            continue;
        lane *from = self->objects[i];
        int count = from->ops->poll(from, done, COLLECT_MAX);
        if (count < 0) {
            abandon_object(self, i, count);
            collected++; /* this is news: do not sleep */
            continue;
        }
        for (int k = 0; k < count; k++)
            finish_request(self, done[k]);
        collected += (uint32_t)count;
    }
    return collected;
}

/* Milliseconds until the commit in flight must be reported; -1: never. */
static int commit_timeout_ms(const executor *self)
{
    if (self->stuck_ns == 0 || self->in_flight[LANE_COMMIT] == 0)
        return -1;
    uint64_t out_ns = clock_ns() - self->commit_begin_ns;
    uint64_t left_ns = self->commit_report_ns > out_ns ? self->commit_report_ns - out_ns : 0;
    return (int)size_min(left_ns / 1000000 + 1, INT_MAX);
}

static void report_commit(executor *self)
{
    uint64_t out_ns = clock_ns() - self->commit_begin_ns;
    if (self->in_flight[LANE_COMMIT] == 0 || out_ns < self->commit_report_ns)
        return;
    log_warn(
        "step %llu: the commit behind it has been in flight for %.3g s: a drive of the slabs, or "
        "that of the run directory, does not finish its sync; the run waits for it%s%s",
        (unsigned long long)self->step, (double)out_ns * 1e-9,
        self->failure.code != 0 ? ", and ends then: " : "", self->failure.text);
    while (self->commit_report_ns <= out_ns && self->commit_report_ns < UINT64_MAX / 4)
        self->commit_report_ns *= 2;
}

/* Sleeps until a lane with work has news. A signal causes one more round, which is harmless. */
static void sleep_for_news(executor *self)
{
    struct pollfd fds[LANE_COUNT];
    nfds_t count = 0;
    for (uint32_t i = 0; i < self->object_count; i++) {
        if (self->object_in_flight[i] == 0)
            continue;
        int fd = self->objects[i]->ops->event_fd(self->objects[i]);
        nfds_t at = 0;
        while (at < count && fds[at].fd != fd)
            at++;
        if (at == count)
            fds[count++] = (struct pollfd){.fd = fd, .events = POLLIN};
    }
    int rc = poll(fds, count, commit_timeout_ms(self));
    if (rc == 0)
        report_commit(self);
    bool failed = rc < 0 && errno != EINTR;
    if (failed)
        err_keep(&self->failure, err_errno(errno, "executor: poll on %u lanes", (unsigned)count));
    for (nfds_t i = 0; i < count && rc > 0; i++)
        if (fds[i].revents & (POLLNVAL | POLLERR | POLLHUP)) {
            err_keep(
                &self->failure,
                err_set(ERR_INTERNAL, "executor: descriptor %d of a lane is broken", fds[i].fd));
            failed = true;
        }
    if (failed) /* it must still wait for what is in flight, without the descriptors */
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* --- run -------------------------------------------------------------------------------------- */

/* Nothing is in flight, nothing can be issued, and ops remain: the error names the first such op
 * and the reason. */
static int stuck_error(const executor *self)
{
    const program *prog = self->now->prog;
    char text[SWAPI_OP_TEXT_BYTES], dep_text[SWAPI_OP_TEXT_BYTES];
    uint32_t stuck = PROGRAM_NONE;
    for (int kind = 0; kind < LANE_COUNT; kind++)
        if (self->cursor[kind] < self->now->lane_begin[kind + 1])
            stuck = (uint32_t)size_min(stuck, self->now->lane_ops[self->cursor[kind]]);
    if (stuck == PROGRAM_NONE)
        return err_set(ERR_INTERNAL, "executor: %llu of %llu ops are complete and none is left",
                       (unsigned long long)self->done_count, (unsigned long long)prog->op_count);
    const op *item = &prog->ops[stuck];
    swapi_op_text(prog, stuck, text);
    for (uint32_t k = 0; k < item->dep_count; k++) {
        uint32_t dep = prog->deps[item->dep_begin + k];
        if (self->states[dep] < SWAPI_DONE)
            return err_set(
                ERR_INTERNAL,
                "executor: deadlock in the %s program after %llu of %llu ops: %s waits for "
                "%s, which cannot start; please report",
                program_kind_name(prog->kind), (unsigned long long)self->done_count,
                (unsigned long long)prog->op_count, text, swapi_op_text(prog, dep, dep_text));
    }
    return err_set(ERR_INTERNAL, "executor: deadlock in the %s program: lane %s did not take %s",
                   program_kind_name(prog->kind), lane_kind_name((enum lane_kind)item->lane), text);
}

static void begin_run(executor *self, const swapi_prepared *now, uint64_t step)
{
    const program *prog = now->prog;
    self->now = now;
    self->step = step;
    self->run_start_ns = clock_ns();
    self->done_count = 0;
    self->in_flight_total = 0;
    self->cores_end_ns = 0;
    self->last_op_idx = PROGRAM_NONE;
    self->skips_pending = self->is_skipped && *self->is_skipped;
    self->skips_decided = false;
    self->skips_commit = self->is_committing && !*self->is_committing;
    memset(self->totals, 0, sizeof self->totals);
    memset(self->states, SWAPI_WAITING, prog->op_count);
    for (int kind = 0; kind < LANE_COUNT; kind++) {
        self->cursor[kind] = now->lane_begin[kind];
        self->in_flight[kind] = 0;
        self->object_in_flight[kind] = 0;
    }
    for (uint64_t i = 0; i < prog->op_count; i++)
        self->closed_deps[i] = prog->ops[i].dep_count + (prog->ops[i].behind != PROGRAM_NONE);
    swapi_paranoid_begin(self);
}

int executor_run(executor *self, const program *prog, uint64_t step, run_totals *totals)
{
    if (totals)
        memset(totals, 0, sizeof *totals);
    if (self->failure.code != 0) {
        err_restore(&self->failure);
        return err_prefix(ERR_POISONED, "executor: refused, an op failed before");
    }
    const swapi_prepared *now = NULL;
    for (uint32_t i = 0; i < self->prepared_count && !now; i++)
        if (self->prepared[i].prog == prog)
            now = &self->prepared[i];
    if (!now)
        return err_set(ERR_INTERNAL, "executor: this %s program was not named at creation",
                       program_kind_name(prog->kind));
    begin_run(self, now, step);
    while (self->done_count < prog->op_count) {
        if (self->failure.code == 0) {
            int rc = issue_ready(self);
            if (rc < 0)
                err_keep(&self->failure, rc);
        }
        if (self->in_flight_total == 0) {
            if (self->failure.code == 0 && self->done_count < prog->op_count)
                err_keep(&self->failure, stuck_error(self));
            break;
        }
        if (collect(self) == 0)
            sleep_for_news(self);
    }
    if (self->failure.code != 0)
        return err_restore(&self->failure);
    if (totals)
        swapi_finish_totals(self, totals);
    return 0;
}
