/* The least bytes that a job needs of each tier, and the refusal that names them.
 *
 * A tile size fits if and only if the budgets cover what the serial order of its programs needs.
 * First fit does not look at the end of an arena, so budgets of exactly those bytes give the same
 * places. Needs are found step by step: homes first, which cost nothing to lay out, then program
 * by program, and only as far as the question asks. The search for the nearest tile size stops
 * where a nearer one is known.
 *
 * At the end: jobs that no budget helps. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "plan/search/search_internal.h"

static const uint64_t unlimited[TIER_COUNT] = {UINT64_MAX / 2, UINT64_MAX / 2, UINT64_MAX / 2};

uint64_t plani_budget_for(const plan_job *job, int arena, uint64_t bytes)
{
    if (arena != TIER_NVME)
        return bytes;
    if (job->nvme_stripe_bytes) /* a slab has at least one */
        bytes = size_round_up(size_max(bytes, 1), job->nvme_stripe_bytes);
    return bytes + job->nvme_overhead_bytes;
}

uint64_t plani_room_in(const plan_job *job, int arena, uint64_t budget_bytes)
{
    if (arena != TIER_NVME)
        return budget_bytes;
    uint64_t step = size_max(job->nvme_stripe_bytes, 1);
    return (budget_bytes - size_min(budget_bytes, job->nvme_overhead_bytes)) / step * step;
}

bool plani_is_covered(const plan_job *job, const uint64_t need[TIER_COUNT])
{
    for (int a = 0; a < TIER_COUNT; a++)
        if (need[a] > job->budget_bytes[a])
            return false;
    return true;
}

/* ---- homes ---------------------------------------------------------------------------------- */

bool plani_homes_fit(const plan_job *job, const plani_layout *layout,
                     const uint64_t budgets[TIER_COUNT])
{
    for (int a = 0; a < TIER_COUNT; a++)
        if (plani_budget_for(job, a, layout->end_bytes[a]) > budgets[a])
            return false;
    return true;
}

/* Activations that rest, and those that wait between the passes of cut stages, for all
 * micro-batches at once. */
static void add_waiting(const plan_job *job, uint64_t bytes[TIER_COUNT])
{
    uint64_t slots = job->order == ORDER_BATCH_MAJOR ? 1 : job->micro_batch_count;
    uint64_t parked = plani_parked_bytes(job), near = size_min(job->parked_near, slots);
    for (uint32_t s = 0; s < job->stage_count && !job->only_eval; s++) {
        uint32_t unit = plani_stage_unit(job, s);
        if (!plani_goes_back(job, s))
            continue;
        if (s > 0 && s + 1 < job->stage_count)
            bytes[job->homes[STATE_ACTIVATIONS][unit]] += slots * job->boundary_bytes;
        enum tier inner = tier_of_home(job->homes[STATE_INNER_ACTIVATIONS][unit]);
        if (inner < TIER_COUNT)
            bytes[inner] += slots * plani_kept_bytes(&job->stages[s], plani_kept(job, s));
    }
    if (parked == 0)
        return;
    bytes[TIER_DEVICE] += near * parked;
    bytes[plani_parked_home(job)] += (slots - near) * parked;
}

void plani_count_homes(const plan_job *job, uint64_t bytes[TIER_COUNT])
{
    memset(bytes, 0, TIER_COUNT * sizeof *bytes);
    bytes[TIER_NVME] = job->nvme_overhead_bytes;
    add_waiting(job, bytes);
    for (uint32_t u = 0; u < job->unit_count; u++) {
        uint64_t optimizer =
            tile_state_bytes(plan_streams(job, u), plan_rest_elems(job, STATE_OPTIMIZER, u));
        uint64_t high = plani_high_bytes(job, u);
        bytes[job->homes[STATE_PARAMS][u]] +=
            plan_rest_elems(job, STATE_PARAMS, u) * job->param_bytes;
        if (!plan_learns(job, u) && !plani_rests_for_good(job, u) && job->needs_save_places)
            bytes[TIER_NVME] += plan_rest_elems(job, STATE_OPTIMIZER, u) * job->param_bytes;
        if (job->needs_save_places && high && plani_high_arena(job, u) != TIER_NVME)
            bytes[TIER_NVME] += high;
        if (job->only_eval || !plan_learns(job, u))
            continue;
        bytes[job->homes[STATE_OPTIMIZER][u]] += optimizer;
        if (high && !plani_params_are_high(job, u))
            bytes[plani_high_arena(job, u)] += high;
        if (job->needs_save_places && job->homes[STATE_OPTIMIZER][u] != TIER_NVME)
            bytes[TIER_NVME] += optimizer;
        if (plani_commits(job))
            bytes[TIER_NVME] += optimizer + high;
        if (job->update != UPDATE_IN_BACKWARD)
            bytes[job->homes[STATE_GRADS][u]] +=
                plan_rest_elems(job, STATE_GRADS, u) * job->grad_bytes;
    }
}

uint64_t plani_host_room(const plan_job *job)
{
    uint64_t bytes[TIER_COUNT], budget = job->budget_bytes[TIER_HOST];
    plani_count_homes(job, bytes);
    return budget - size_min(bytes[TIER_HOST], budget);
}

bool plani_homes_may_fit(const plan_job *job)
{
    uint64_t bytes[TIER_COUNT];
    plani_count_homes(job, bytes);
    return plani_is_covered(job, bytes);
}

int plani_home_ends(const plan_job *job, uint64_t tile_elems, uint64_t ends[TIER_COUNT],
                    uint64_t *second_bytes)
{
    plan_set set;
    plani_layout layout;
    struct plani_point at = plani_plain_point(job, tile_elems);
    TRY(plani_set_begin(job, &at, &set, &layout));
    memcpy(ends, layout.end_bytes, sizeof layout.end_bytes);
    *second_bytes = set.second_bytes;
    plani_layout_fini(&layout);
    plan_set_fini(&set);
    return 0;
}

/* ---- programs in serial order --------------------------------------------------------------- */

static int make_serial(const plan_job *job, const struct plani_point *at, enum program_kind kind,
                       plani_builder *builder, struct plani_answer *made)
{
    plan_set set;
    plani_layout layout;
    program serial;
    TRY(plani_set_begin(job, at, &set, &layout));
    struct plani_request asked = {.kind = kind, .serial = true, .builder = builder};
    int rc = plani_compile_one(job, &set, &layout, &asked, unlimited, &serial);
    made->ops = asked.ops;
    memcpy(made->peaks, serial.peak_bytes, sizeof made->peaks);
    program_fini(&serial);
    plani_layout_fini(&layout);
    plan_set_fini(&set);
    return rc;
}

int plani_serial_peaks(const plan_job *job, uint64_t tile_elems, enum program_kind kind,
                       uint64_t peaks[TIER_COUNT], plani_work *work)
{
    struct plani_point at = plani_plain_point(job, tile_elems), question = at;
    question.held = PLANI_SERIAL_HELD - kind;
    struct plani_answer asked = {.key = plani_trial_key(job, &question)};
    int rc = plani_ask(job, work, &asked);
    TRY(rc);
    if (rc == 1) {
        asked.rc = make_serial(job, &at, kind, &work->builder, &asked);
        plani_tell(work, &asked);
    }
    memcpy(peaks, asked.peaks, sizeof asked.peaks);
    return asked.rc;
}

/* Bytes beyond the budgets, all arenas together. */
static double excess(const plan_job *job, const uint64_t need[TIER_COUNT])
{
    double bytes = 0;
    for (int a = 0; a < TIER_COUNT; a++)
        if (need[a] > job->budget_bytes[a])
            bytes += (double)(need[a] - job->budget_bytes[a]);
    return bytes;
}

/* The steady step needs the most in nearly every job. */
static const enum program_kind need_order[PROGRAM_KIND_COUNT] = {
    PROGRAM_STEADY, PROGRAM_FIRST, PROGRAM_EVAL, PROGRAM_INIT,
    PROGRAM_LOAD,   PROGRAM_FLUSH, PROGRAM_SAVE,
};

static bool is_known(const struct plani_candidate *c)
{
    return c->has_homes && c->kinds_done == PROGRAM_KIND_COUNT;
}

static void note_need(const plan_job *job, struct plani_candidate *c,
                      const uint64_t ends[TIER_COUNT])
{
    for (int a = 0; a < TIER_COUNT; a++)
        c->need[a] = size_max(c->need[a], plani_budget_for(job, a, ends[a]));
    c->reached_bytes = size_max(c->reached_bytes, ends[TIER_NVME]);
}

/* Learns needs until all are known or the excess reaches `most`. */
static int learn_needs(const plan_job *job, struct plani_candidate *c, double most,
                       plani_work *work)
{
    uint64_t ends[TIER_COUNT];
    if (!c->has_homes) {
        TRY(plani_home_ends(job, c->tile_elems, ends, &c->second_bytes));
        note_need(job, c, ends);
        c->has_homes = true;
    }
    assert(c->kinds_done <= PROGRAM_KIND_COUNT);
    while (!is_known(c) && excess(job, c->need) < most) {
        TRY(plani_serial_peaks(job, c->tile_elems, need_order[c->kinds_done++], ends, work));
        note_need(job, c, ends);
    }
    return 0;
}

int plani_check_needs(const plan_job *job, struct plani_candidate *c, plani_work *work)
{
    TRY(learn_needs(job, c, 1, work));
    return excess(job, c->need) > 0 ? err_set(ERR_NO_FIT, "does not fit") : 0;
}

/* ---- the nearest tile size ------------------------------------------------------------------ */

/* Serial orders of all tile sizes of such long programs take minutes. Where the homes alone are
 * too much, programs are not looked at, and the refusal says "at least". */
enum { LONG_PROGRAM = 1 << 14 }; /* units, and stages times micro-batches */

/* Ops: a refusal that took so many names the nearest tile size found so far. */
static const uint64_t nearest_work = 8000000;

static bool is_long(const plan_job *job)
{
    return job->unit_count + (uint64_t)job->stage_count * job->micro_batch_count > LONG_PROGRAM;
}

/* Finds the candidate that comes nearest to the budgets, and its needs. The needs known of a
 * candidate so far bounds its excess from below, so the least one is looked at first, and none
 * that a finished one undercuts. After nearest_work ops it takes the nearest that is known, or one
 * of which enough is known that it does not fit. */
static int nearest(const plan_job *job, struct plani_candidate *list, uint32_t count,
                   struct plani_candidate **found, plani_work *work)
{
    uint64_t begun = work->ops;
    plani_note_work(job, "looking for what would fit", 0);
    *found = NULL;
    double least = INFINITY;
    if (is_long(job)) {
        TRY(learn_needs(job, &list[0], 1, work));
        *found = &list[0];
        if (list[0].kinds_done == 0)
            return 0;
        *found = NULL;
    }
    for (;;) {
        struct plani_candidate *next = NULL;
        for (uint32_t i = 0; i < count; i++) {
            double bound = excess(job, list[i].need);
            if (&list[i] != *found && bound < least && (!next || bound < excess(job, next->need)))
                next = &list[i];
        }
        bool is_enough = work->ops - begun > nearest_work;
        if (!next || (is_enough && *found))
            return 0;
        TRY(learn_needs(job, next, is_enough ? 1 : least, work));
        if (is_enough && excess(job, next->need) > 0) {
            *found = next;
            return 0;
        }
        if (is_known(next) && excess(job, next->need) < least) {
            least = excess(job, next->need);
            *found = next;
        }
    }
}

/* All tile sizes that the search tries. */
static uint32_t list_all(const plan_job *job, struct plani_candidate list[PLANI_TILES_MAX])
{
    uint64_t tiles[PLANI_TILES_MAX];
    uint32_t count = plani_list_tiles(job, tiles);
    for (uint32_t i = 0; i < count; i++)
        list[i] = (struct plani_candidate){.tile_elems = tiles[i]};
    return count;
}

int plani_excess(const plan_job *job, uint64_t need[TIER_COUNT], double *bytes, plani_work *work)
{
    struct plani_candidate list[PLANI_TILES_MAX], *closest;
    uint32_t count = list_all(job, list);
    TRY(nearest(job, list, count, &closest, work));
    memcpy(need, closest->need, sizeof closest->need);
    *bytes = excess(job, need);
    return 0;
}

/* ---- the refusal ---------------------------------------------------------------------------- */

static const char *const budget_keys[TIER_COUNT] = {"tiers.device.budget", "tiers.host.budget",
                                                    "tiers.nvme[].budget"};

double plani_room_nearer(const plan_job *job, const uint64_t need[TIER_COUNT], int tier)
{
    double room = 0;
    for (int a = TIER_DEVICE; a < tier; a++)
        room += fmax((double)job->budget_bytes[a] - (double)need[a], 0);
    return room;
}

/* A text that grows by printf. */
struct text {
    char bytes[640];
    size_t used;
};

__attribute__((format(printf, 2, 3))) static void add_text(struct text *to, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int length = vsnprintf(to->bytes + to->used, sizeof to->bytes - to->used, format, args);
    va_end(args);
    assert(length >= 0 && to->used + (size_t)length < sizeof to->bytes);
    to->used += (size_t)length;
}

/* Which tiers are too small by how much; `exact`: with the bytes, of needs that are all known or
 * not. */
static void tell_lack(const plan_job *job, const uint64_t need[TIER_COUNT], bool exact, bool known,
                      struct text *out)
{
    for (int a = 0; a < TIER_COUNT; a++) {
        char needed[SIZE_TEXT_BYTES], has[SIZE_TEXT_BYTES];
        const char *between = out->used ? "; " : "", *least = known ? "" : "at least ";
        const char *tier = tier_name((enum tier)a);
        if (need[a] <= job->budget_bytes[a])
            continue;
        size_format(need[a], needed);
        size_format(job->budget_bytes[a], has);
        if (exact) {
            add_text(out, "%sneeds %s%" PRIu64 " bytes (%s) of %s, has %" PRIu64 " (%s)", between,
                     least, need[a], needed, tier, job->budget_bytes[a], has);
            continue;
        }
        add_text(out, "%sneeds %s%s of %s, has %s", between, least, needed, tier, has);
        double room = plani_room_nearer(job, need, a);
        if (a > TIER_DEVICE && room > 0)
            add_text(out, " (of nearer tiers %s are free)", size_format((uint64_t)room, has));
    }
}

/* The setting with which it fits: a budget for each tier that is too small. */
static void tell_setting(const plan_job *job, const struct plani_candidate *c, struct text *out)
{
    add_text(out, "%s", is_known(c) ? "fits with" : "set them to no less than:");
    for (int a = 0; a < TIER_COUNT; a++) {
        uint64_t sharers = a == TIER_NVME ? size_max(job->nvme_sharers, 1) : 1;
        if (c->need[a] > job->budget_bytes[a])
            add_text(out, " %s=%" PRIu64, budget_keys[a], c->need[a] * sharers);
    }
}

/* How much less of nvme a run needs that does not commit. */
static void tell_commits(const plan_job *job, const struct plani_candidate *c, struct text *out)
{
    char less[SIZE_TEXT_BYTES];
    uint64_t once_bytes = c->reached_bytes - c->second_bytes;
    uint64_t saved_bytes = c->need[TIER_NVME] - plani_budget_for(job, TIER_NVME, once_bytes);
    if (saved_bytes > 0)
        add_text(out,
                 "; run.commit_every=0 needs %" PRIu64
                 " bytes (%s) of nvme less, but resumes only after a clean stop",
                 saved_bytes, size_format(saved_bytes, less));
}

int plani_refuse(const plan_job *job, plani_work *work)
{
    if (job->no_advice)
        return err_set(ERR_NO_FIT, "does not fit");
    struct plani_candidate list[PLANI_TILES_MAX], *closest;
    uint32_t count = list_all(job, list);
    struct text lack = {0}, advice = {0};
    TRY(nearest(job, list, count, &closest, work));
    memcpy(work->refused, closest->need, sizeof work->refused);
    work->refused_is_known = is_known(closest);
    tell_lack(job, closest->need, true, is_known(closest), &lack);
    if (lack.used == 0)
        return err_set(ERR_INTERNAL, "the plan found no schedule although the serial order fits");
    bool lacks_nvme = closest->need[TIER_NVME] > job->budget_bytes[TIER_NVME];
    bool lacks_device = closest->need[TIER_DEVICE] > job->budget_bytes[TIER_DEVICE];
    if (job->nvme_advice && lacks_nvme)
        add_text(&advice, "%s", job->nvme_advice);
    else
        tell_setting(job, closest, &advice);
    if (lacks_nvme)
        tell_commits(job, closest, &advice);
    if (job->device_advice && lacks_device)
        add_text(&advice, "; %s", job->device_advice);
    return err_set(ERR_NO_FIT, "does not fit: %s; %s", lack.bytes, advice.bytes);
}

int plani_refuse_lack(const plan_job *job, const uint64_t need[TIER_COUNT])
{
    struct text lack = {0};
    tell_lack(job, need, false, false, &lack);
    return err_set(ERR_NO_FIT, "does not fit: %s",
                   lack.used ? lack.bytes
                             : "of what its far tier lacks too little has room nearer");
}

/* ---- jobs that no budget helps -------------------------------------------------------------- */

int plani_check_job(const plan_job *job)
{
    bool learns = job->only_eval;
    for (uint32_t u = 0; u < job->unit_count; u++)
        learns = learns || plan_learns(job, u);
    if (job->micro_batch_count == 0)
        return err_set(ERR_CONFIG, "gradient_accumulation_steps is 0: a step has at least one "
                                   "micro-batch");
    if (!learns)
        return err_set(ERR_CONFIG, "all %" PRIu32 " units are frozen: nothing of the model learns",
                       job->unit_count);
    if (tile_master_is_split(job->state_streams) &&
        job->param_bytes != tile_high_bytes(job->state_streams))
        return err_set(ERR_CONFIG,
                       "this split master needs params of %" PRIu32
                       " bytes, and these have %" PRIu32,
                       tile_high_bytes(job->state_streams), job->param_bytes);
    return 0;
}
