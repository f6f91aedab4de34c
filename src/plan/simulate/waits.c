/* The critical path of a compiled program. See waits.h.
 *
 *   trace   from the last op back to the start: the chain, and why each of its ops was waited for
 *   cut     the chain into at most SLICES_MOST slices of about equal time
 *   join    neighbours that are most alike, until PLAN_WAITS_MAX parts are left
 *   look    what the resources did meanwhile */
#include "plan/waits.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"
#include "plan/simulate/simulate_internal.h"

enum { SLICES_MOST = 256 };

/* Parts whose difference weighs less than this share of the step are one part. */
static const double alike = 0.002;

const char *plan_cause_name(enum plan_cause cause)
{
    static const char *const names[CAUSE_COUNT] = {
        [CAUSE_RESULT] = "result",
        [CAUSE_NORM] = "norm",
        [CAUSE_COMMIT] = "commit",
        [CAUSE_LANE] = "lane",
        [CAUSE_DEVICE_MEMORY] = "device_memory",
        [CAUSE_HOST_MEMORY] = "host_memory",
        [CAUSE_TURN] = "turn",
    };
    assert(cause < CAUSE_COUNT);
    return names[cause];
}

const char *plan_span_name(enum plan_span span)
{
    static const char *const names[SPAN_COUNT] = {
        [SPAN_FORWARD] = "forward",
        [SPAN_BACKWARD] = "backward",
        [SPAN_PASSES] = "passes",
        [SPAN_AFTER] = "after_norm",
    };
    assert(span < SPAN_COUNT);
    return names[span];
}

struct tracing {
    const plan_job *job;
    const program *prog;
    bool *is_left_out;           /* [op_count] true: only steps that commit have it */
    uint64_t *start_ns, *end_ns; /* [op_count] of the others */
    uint64_t step_ns;
    uint32_t *before; /* [op_count] the op before it on its lane */
    uint32_t *chain;  /* [chain_count] last op first */
    uint8_t *causes;  /* [chain_count] enum plan_cause of each op of the chain */
    uint64_t chain_count;
    uint64_t turn_ns, norm_ns; /* the head's backward begins, the norm ends */
    uint32_t recent[LANE_COUNT];
};

/* ---- why an op waited for another ----------------------------------------------------------- */

static bool ranges_meet(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

/* Why the second op depends on the first. They use the same bytes, or memory of one buffer went to
 * another, or the plan put one copy before the other, or one was made to follow the other. */
static enum plan_cause shared_cause(const struct tracing *t, const op *first, const op *second)
{
    const program *prog = t->prog;
    bool are_rivals = plani_rival_lane(&t->job->machine, first->lane) == second->lane;
    enum plan_cause cause = are_rivals ? CAUSE_TURN : CAUSE_RESULT;
    for (uint32_t i = 0; i < first->operand_count; i++)
        for (uint32_t j = 0; j < second->operand_count; j++) {
            const operand *a = &first->operands[i], *c = &second->operands[j];
            const buffer *held = &prog->buffers[a->buffer_idx];
            const buffer *fresh = &prog->buffers[c->buffer_idx];
            if (a->buffer_idx == c->buffer_idx &&
                ranges_meet(a->offset_bytes, a->size_bytes, c->offset_bytes, c->size_bytes))
                return CAUSE_RESULT;
            if (a->buffer_idx != c->buffer_idx && held->arena == fresh->arena &&
                ranges_meet(held->offset_bytes, held->size_bytes, fresh->offset_bytes,
                            fresh->size_bytes))
                cause = held->arena == TIER_DEVICE ? CAUSE_DEVICE_MEMORY : CAUSE_HOST_MEMORY;
        }
    return cause;
}

static enum plan_cause cause_of(const struct tracing *t, uint32_t first, uint32_t second,
                                bool is_dependency)
{
    const op *one = &t->prog->ops[first], *two = &t->prog->ops[second];
    if (!is_dependency)
        return one->lane == two->lane ? CAUSE_LANE : CAUSE_TURN;
    if (one->kind == OP_COMMIT)
        return CAUSE_COMMIT;
    if (one->kind == OP_NORM)
        return CAUSE_NORM;
    return shared_cause(t, one, two);
}

/* ---- the chain ------------------------------------------------------------------------------ */

/* Keeps the first op as the reason of the second one's start, unless a better reason is known. */
static void offer(const struct tracing *t, uint32_t first, uint32_t second, bool is_dependency,
                  uint32_t *best, uint8_t *cause)
{
    if (first >= second || t->is_left_out[first] || t->end_ns[first] != t->start_ns[second])
        return;
    uint8_t found = (uint8_t)cause_of(t, first, second, is_dependency);
    if (*best == PROGRAM_NONE || (first != *best && found < *cause)) {
        *best = first;
        *cause = found;
    }
}

/* The op whose end the op waited for, and why; PROGRAM_NONE: it waited for none. */
static uint32_t waited_for(struct tracing *t, uint32_t idx, uint8_t *cause)
{
    const program *prog = t->prog;
    const op *item = &prog->ops[idx];
    uint32_t best = PROGRAM_NONE;
    for (uint32_t d = 0; d < item->dep_count; d++)
        offer(t, prog->deps[item->dep_begin + d], idx, true, &best, cause);
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        uint32_t *recent = &t->recent[lane];
        while (*recent != PROGRAM_NONE && *recent >= idx)
            *recent = t->before[*recent];
        if (*recent != PROGRAM_NONE)
            offer(t, *recent, idx, false, &best, cause);
    }
    return best;
}

static void trace(struct tracing *t)
{
    const program *prog = t->prog;
    uint32_t last = PROGRAM_NONE;
    uint8_t cause = CAUSE_RESULT;
    t->turn_ns = t->norm_ns = t->step_ns;
    for (int lane = 0; lane < LANE_COUNT; lane++)
        t->recent[lane] = PROGRAM_NONE;
    for (uint64_t i = 0; i < prog->op_count; i++) {
        const op *item = &prog->ops[i];
        if (t->is_left_out[i])
            continue;
        t->before[i] = t->recent[item->lane];
        t->recent[item->lane] = (uint32_t)i;
        if (last == PROGRAM_NONE || t->end_ns[i] > t->end_ns[last])
            last = (uint32_t)i;
        if (item->kind == OP_BACKWARD)
            t->turn_ns = size_min(t->turn_ns, t->start_ns[i]);
        if (item->kind == OP_NORM)
            t->norm_ns = t->end_ns[i];
    }
    for (uint32_t idx = last; idx != PROGRAM_NONE; idx = waited_for(t, idx, &cause)) {
        t->causes[t->chain_count] = cause;
        t->chain[t->chain_count++] = idx;
    }
}

/* ---- parts ---------------------------------------------------------------------------------- */

static enum plan_span span_at(const struct tracing *t, uint64_t ns)
{
    bool takes_turns = t->job->order == ORDER_BATCH_MAJOR && t->job->micro_batch_count > 1;
    if (ns >= t->norm_ns)
        return SPAN_AFTER;
    if (takes_turns)
        return SPAN_PASSES;
    return ns < t->turn_ns ? SPAN_FORWARD : SPAN_BACKWARD;
}

static void add_to_slice(const struct tracing *t, uint32_t idx, enum plan_cause cause,
                         struct plan_wait *slice)
{
    const op *item = &t->prog->ops[idx];
    uint64_t ns = t->end_ns[idx] - t->start_ns[idx];
    struct plani_share alone;
    plani_demand(&t->job->machine, &item->demand, &alone);
    uint64_t alone_ns = (uint64_t)llround(alone.alone_seconds * 1e9);
    slice->end_ns = t->end_ns[idx];
    slice->op_count++;
    slice->work_ns[item->lane][size_min(item->state_kind, STATE_KIND_COUNT)] += ns;
    slice->cause_ns[cause] += ns;
    slice->shared_ns += ns > alone_ns ? ns - alone_ns : 0;
    if (item->unit == PROGRAM_NONE)
        return;
    bool is_first = slice->first_unit == PROGRAM_NONE;
    slice->first_unit = is_first ? item->unit : (uint32_t)size_min(slice->first_unit, item->unit);
    slice->last_unit = is_first ? item->unit : (uint32_t)size_max(slice->last_unit, item->unit);
}

/* Slices begin where a phase does, and where the one before is long enough. */
static uint32_t cut(const struct tracing *t, struct plan_wait slices[SLICES_MOST])
{
    uint64_t least_ns = t->step_ns / (SLICES_MOST - SPAN_COUNT - 1) + 1;
    uint32_t count = 0;
    for (uint64_t i = t->chain_count; i-- > 0;) {
        uint64_t begin_ns = t->start_ns[t->chain[i]];
        enum plan_span span = span_at(t, begin_ns);
        struct plan_wait *now = count ? &slices[count - 1] : NULL;
        if (!now || now->span != span || now->end_ns - now->begin_ns >= least_ns) {
            assert(count < SLICES_MOST);
            now = &slices[count++];
            *now = (struct plan_wait){.begin_ns = begin_ns,
                                      .end_ns = begin_ns,
                                      .span = span,
                                      .first_unit = PROGRAM_NONE,
                                      .last_unit = PROGRAM_NONE};
        }
        add_to_slice(t, t->chain[i], (enum plan_cause)t->causes[i], now);
    }
    return count;
}

/* The loss if the two become one: the squared distance of their shares, weighed by the time
 * that it concerns, as in Ward's method. */
static double distance(const struct plan_wait *a, const struct plan_wait *c)
{
    double one = fmax((double)(a->end_ns - a->begin_ns), 1);
    double two = fmax((double)(c->end_ns - c->begin_ns), 1), sum = 0;
    if (a->span != c->span)
        return INFINITY;
    for (int lane = 0; lane < LANE_COUNT; lane++)
        for (int kind = 0; kind <= STATE_KIND_COUNT; kind++) {
            double between =
                (double)a->work_ns[lane][kind] / one - (double)c->work_ns[lane][kind] / two;
            sum += between * between;
        }
    for (int cause = 0; cause < CAUSE_COUNT; cause++) {
        double between = (double)a->cause_ns[cause] / one - (double)c->cause_ns[cause] / two;
        sum += between * between;
    }
    return sum * one * two / (one + two);
}

static void absorb(struct plan_wait *sum, const struct plan_wait *more)
{
    sum->end_ns = more->end_ns;
    sum->op_count += more->op_count;
    sum->shared_ns += more->shared_ns;
    for (int lane = 0; lane < LANE_COUNT; lane++)
        for (int kind = 0; kind <= STATE_KIND_COUNT; kind++)
            sum->work_ns[lane][kind] += more->work_ns[lane][kind];
    for (int cause = 0; cause < CAUSE_COUNT; cause++)
        sum->cause_ns[cause] += more->cause_ns[cause];
    if (more->first_unit == PROGRAM_NONE)
        return;
    bool is_first = sum->first_unit == PROGRAM_NONE;
    sum->first_unit =
        is_first ? more->first_unit : (uint32_t)size_min(sum->first_unit, more->first_unit);
    sum->last_unit =
        is_first ? more->last_unit : (uint32_t)size_max(sum->last_unit, more->last_unit);
}

static uint32_t join(struct plan_wait *slices, uint32_t count, uint64_t step_ns)
{
    while (count > 1) {
        uint32_t best = 0;
        double least = INFINITY;
        for (uint32_t i = 0; i + 1 < count; i++) {
            double lost = distance(&slices[i], &slices[i + 1]);
            if (lost < least) {
                least = lost;
                best = i;
            }
        }
        if (!isfinite(least) || (count <= PLAN_WAITS_MAX && least > alike * (double)step_ns))
            break;
        absorb(&slices[best], &slices[best + 1]);
        count--;
        memmove(&slices[best + 1], &slices[best + 2], (count - best - 1) * sizeof *slices);
    }
    assert(count <= PLAN_WAITS_MAX);
    return count;
}

/* ---- what the machine did meanwhile --------------------------------------------------------- */

/* An op's work is taken as spread evenly over its time, which is not exact where it begins alone
 * and ends in company. */
static void add_busy(const struct tracing *t, uint64_t idx, struct plan_wait *waits, uint32_t count)
{
    double seconds[RESOURCE_COUNT];
    uint64_t start_ns = t->start_ns[idx], end_ns = t->end_ns[idx];
    double length = (double)(end_ns - start_ns);
    plan_demand_seconds(&t->job->machine, &t->prog->ops[idx].demand, seconds);
    for (uint32_t i = 0; i < count && length > 0; i++) {
        uint64_t begin = size_max(waits[i].begin_ns, start_ns);
        uint64_t end = size_min(waits[i].end_ns, end_ns);
        if (begin >= end)
            continue;
        double part = (double)(end - begin) / length;
        double whole = (double)(waits[i].end_ns - waits[i].begin_ns) * 1e-9;
        for (int r = 0; r < RESOURCE_COUNT; r++)
            waits[i].busy[r] = fmin(waits[i].busy[r] + part * seconds[r] / whole, 1);
    }
}

static uint64_t lane_ns(const struct plan_wait *self, enum lane_kind lane)
{
    uint64_t sum = 0;
    for (int kind = 0; kind <= STATE_KIND_COUNT; kind++)
        sum += self->work_ns[lane][kind];
    return sum;
}

/* The first of these that a tenth of the part, or more, is due to. Computing itself has none. */
static const char *setting_of(const struct plan_wait *self)
{
    double whole = (double)(self->end_ns - self->begin_ns);
    const struct {
        double ns;
        const char *setting;
    } rows[] = {
        {(double)lane_ns(self, LANE_COMMIT), "run.commit_every"},
        {(double)self->cause_ns[CAUSE_HOST_MEMORY], "tiers.host.budget"},
        {(double)self->cause_ns[CAUSE_DEVICE_MEMORY], "tiers.device.budget"},
        {(double)(lane_ns(self, LANE_READ) + lane_ns(self, LANE_WRITE)), "tiers.host.budget"},
        {(double)(lane_ns(self, LANE_H2D) + lane_ns(self, LANE_D2H)), "tiers.device.budget"},
        {(double)lane_ns(self, LANE_COMM), "gradient_accumulation_steps"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].ns >= 0.1 * whole)
            return rows[i].setting;
    return NULL;
}

/* ---- all of it ------------------------------------------------------------------------------ */

/* The times of the step that is looked at: the program's own, or those without commits. */
static int take_times(struct tracing *t, bool commits)
{
    bool is_whole = true;
    t->step_ns = t->prog->predicted_ns;
    for (uint64_t i = 0; i < t->prog->op_count; i++) {
        t->is_left_out[i] = !commits && t->prog->ops[i].if_commits;
        is_whole = is_whole && !t->is_left_out[i];
        t->start_ns[i] = t->prog->ops[i].predicted_start_ns;
        t->end_ns[i] = t->prog->ops[i].predicted_end_ns;
    }
    return is_whole ? 0
                    : plani_replay(&t->job->machine, t->prog, t->is_left_out, t->start_ns,
                                   t->end_ns, &t->step_ns);
}

static int trace_alloc(struct tracing *t, struct plan_wait **slices)
{
    uint64_t n = t->prog->op_count;
    t->is_left_out = mem_alloc(n, sizeof *t->is_left_out, "plan waits");
    t->start_ns = mem_alloc(2 * n, sizeof *t->start_ns, "plan waits");
    t->before = mem_alloc(n, sizeof *t->before, "plan waits");
    t->chain = mem_alloc(n, sizeof *t->chain, "plan waits");
    t->causes = mem_alloc(n, sizeof *t->causes, "plan waits");
    *slices = mem_alloc(SLICES_MOST, sizeof **slices, "plan waits");
    if (!t->is_left_out || !t->start_ns || !t->before || !t->chain || !t->causes || !*slices)
        return -ENOMEM;
    t->end_ns = t->start_ns + n;
    return 0;
}

int plan_find_waits(const plan_job *job, const program *prog, bool commits,
                    struct plan_wait waits[PLAN_WAITS_MAX], uint32_t *count)
{
    struct tracing t = {.job = job, .prog = prog};
    struct plan_wait *slices = NULL;
    *count = 0;
    if (prog->op_count == 0)
        return 0;
    int rc = trace_alloc(&t, &slices);
    if (rc == 0)
        rc = take_times(&t, commits);
    if (rc == 0) {
        trace(&t);
        *count = join(slices, cut(&t, slices), t.step_ns);
        memcpy(waits, slices, *count * sizeof *waits);
        for (uint64_t i = 0; i < prog->op_count; i++)
            if (!t.is_left_out[i])
                add_busy(&t, i, waits, *count);
        for (uint32_t i = 0; i < *count; i++)
            waits[i].setting = setting_of(&waits[i]);
    }
    mem_free(t.is_left_out);
    mem_free(t.start_ns);
    mem_free(t.before);
    mem_free(t.chain);
    mem_free(t.causes);
    mem_free(slices);
    return rc;
}
