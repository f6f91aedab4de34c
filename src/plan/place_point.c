/* A placement as numbers, as homes, and as a simulated step. */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "plan/place_internal.h"

/* Of a step: what all inner activations kept, and what all other states on drives, cost in a score. */
static const double kept_cost = 0.0003, far_cost = 0.0003;

/* What waits between the passes of cut stages, where the first stage's output rests, though nothing else may
 * rest there: if all stages wait. */
static uint64_t parked_bytes(const plan_job *job)
{
    uint64_t bytes = 0;
    if (job->order == ORDER_BATCH_MAJOR || job->micro_batch_count < 2)
        return 0;
    for (uint32_t s = 0; s < job->stage_count; s++)
        if (job->stages[s].is_cut)
            bytes = size_max(bytes, job->stages[s].saved_bytes);
    return bytes * job->micro_batch_count;
}

/* Bytes of the unit's state of the kind that rest on this rank; 0: there is no such home. */
static uint64_t rest_bytes(const plan_job *job, int kind, uint32_t unit)
{
    bool by_batch = job->order == ORDER_BATCH_MAJOR;
    bool learns = !job->only_eval && plan_learns(job, unit);
    uint64_t bytes = 0, slots = by_batch ? 1 : job->micro_batch_count;
    switch ((enum state_kind)kind) {
    case STATE_PARAMS:
        return plan_rest_elems(job, STATE_PARAMS, unit) * job->param_bytes;
    case STATE_GRADS:
        return learns ? plan_rest_elems(job, STATE_GRADS, unit) * job->grad_bytes : 0;
    case STATE_OPTIMIZER:
        if (!learns)
            return 0;
        bytes = tile_state_bytes(job->state_streams, plan_rest_elems(job, STATE_OPTIMIZER, unit));
        return bytes + (plani_params_are_high(job, unit) ? 0 : plani_high_bytes(job, unit));
    case STATE_ACTIVATIONS:
    case STATE_INNER_ACTIVATIONS:
        for (uint32_t s = 0; s < job->stage_count && !job->only_eval; s++) {
            const plan_stage *stage = &job->stages[s];
            if (plani_stage_unit(job, s) != unit)
                continue;
            if (!plani_goes_back(job, s)) {
                bytes += kind == STATE_ACTIVATIONS && s == 1 ? parked_bytes(job) : 0;
                continue;
            }
            if (kind == STATE_INNER_ACTIVATIONS)
                bytes += slots * stage->saved_bytes;
            else if (stage->has_input && s + 1 < job->stage_count)
                bytes += slots * job->boundary_bytes;
        }
        return bytes;
    case STATE_KIND_COUNT:
        break;
    }
    return 0;
}

static int list_kind(plani_placer *self, int kind)
{
    const plan_job *job = &self->job;
    const uint8_t *wanted = self->asked->wanted[kind];
    bool last_first = kind == STATE_ACTIVATIONS || kind == STATE_INNER_ACTIVATIONS;
    self->homes[kind] = mem_alloc(job->unit_count, 1, "placement");
    self->units[kind] = mem_alloc(job->unit_count, sizeof(uint32_t), "placement");
    self->bytes[kind] = mem_alloc(job->unit_count, sizeof(uint64_t), "placement");
    if (!self->homes[kind] || !self->units[kind] || !self->bytes[kind])
        return -ENOMEM;
    for (uint32_t i = 0; i < job->unit_count; i++) {
        uint32_t unit = last_first ? job->unit_count - 1 - i : i;
        self->bytes[kind][unit] = rest_bytes(job, kind, unit);
        bool is_open = wanted[unit] == TIER_AUTO;
        uint8_t idle = kind == STATE_INNER_ACTIVATIONS ? TIER_COUNT : TIER_DEVICE;
        self->homes[kind][unit] = is_open ? idle : wanted[unit];
        if (is_open && self->bytes[kind][unit] > 0)
            self->units[kind][self->counts[kind]++] = unit;
    }
    self->job.homes[kind] = self->homes[kind];
    return 0;
}

int plani_placer_init(plani_placer *self, const struct plan_place_asked *asked)
{
    memset(self, 0, sizeof *self);
    self->asked = asked;
    self->job = *asked->job;
    self->job.no_advice = true;
    for (int i = 0; i < PLANI_FINALISTS; i++)
        self->best[i].score = INFINITY;
    self->seen = mem_alloc(PLANI_SEEN, sizeof *self->seen, "placement");
    if (!self->seen)
        return -ENOMEM;
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        TRY(list_kind(self, kind));
    return 0;
}

void plani_placer_fini(plani_placer *self)
{
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++) {
        mem_free(self->homes[kind]);
        mem_free(self->units[kind]);
        mem_free(self->bytes[kind]);
    }
    mem_free(self->seen);
}

void plani_point_near(const plani_placer *self, struct plani_point *point, bool keeps_inner)
{
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        for (int tier = 0; tier < PLANI_TIERS; tier++)
            point->until[kind][tier] =
                kind != STATE_INNER_ACTIVATIONS || keeps_inner ? self->counts[kind] : 0;
}

void plani_point_far(const plani_placer *self, struct plani_point *point)
{
    plani_point_near(self, point, false);
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++) {
        point->until[kind][TIER_DEVICE] = 0;
        if (self->asked->has_drives)
            point->until[kind][TIER_HOST] = 0;
    }
}

void plani_point_apply(plani_placer *self, const struct plani_point *point)
{
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++) {
        uint8_t tier = TIER_DEVICE;
        for (uint32_t i = 0; i < self->counts[kind]; i++) {
            while (tier < PLANI_TIERS && i >= point->until[kind][tier])
                tier++;
            self->homes[kind][self->units[kind][i]] = tier;
        }
    }
    self->job.update = (enum update)point->update;
    self->job.parked_near = point->parked_near;
    self->job.parked_on_host = point->parked_on_host;
}

bool plani_point_is_legal(const plani_placer *self, const struct plani_point *point)
{
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++) {
        const uint32_t *until = point->until[kind];
        if (until[TIER_DEVICE] > until[TIER_HOST] || until[TIER_HOST] > until[TIER_NVME] ||
            until[TIER_NVME] > self->counts[kind])
            return false;
        if (kind != STATE_INNER_ACTIVATIONS && until[TIER_NVME] < self->counts[kind])
            return false;
        if (!self->asked->has_drives && until[TIER_HOST] < until[TIER_NVME])
            return false;
    }
    return true;
}

/* FNV-1a over homes, modes and held stages; never 0. */
static uint64_t hash_of(const plani_placer *self, const struct plani_point *point)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        for (uint32_t u = 0; u < self->job.unit_count; u++)
            hash = (hash ^ self->homes[kind][u]) * UINT64_C(1099511628211);
    const uint32_t modes[] = {point->held, point->update, point->parked_near,
                              point->parked_on_host};
    for (int i = 0; i < 4; i++)
        hash = (hash ^ modes[i]) * UINT64_C(1099511628211);
    return hash ? hash : 1;
}

/* Points whose homes alone do not fit cost no work and are no trials: their number ends the search, too. */
static bool note_seen(plani_placer *self, uint64_t hash)
{
    uint64_t at = hash & (PLANI_SEEN - 1);
    while (self->seen[at] != 0 && self->seen[at] != hash)
        at = (at + 1) & (PLANI_SEEN - 1);
    if (self->seen[at] == hash || self->seen_count == PLANI_SEEN_MOST)
        return true;
    self->seen[at] = hash;
    self->seen_count++;
    return false;
}

bool plani_placer_may_go_on(const plani_placer *self)
{
    return self->work < PLANI_PLACE_WORK && self->trials < PLANI_TRIALS_MOST &&
           self->seen_count < PLANI_SEEN_MOST;
}

/* What is kept and what wears drives, as a factor of the score. */
static double factor_of(const plani_placer *self, const struct plani_point *point)
{
    double count = self->counts[STATE_INNER_ACTIVATIONS], far = 0, all = 1;
    double kept = point->until[STATE_INNER_ACTIVATIONS][TIER_NVME];
    for (int kind = 0; kind < STATE_INNER_ACTIVATIONS; kind++)
        for (uint32_t i = 0; i < self->counts[kind]; i++) {
            double bytes = (double)self->bytes[kind][self->units[kind][i]];
            far += i >= point->until[kind][TIER_HOST] ? bytes : 0;
            all += bytes;
        }
    return 1 + kept_cost * kept / fmax(count, 1) + far_cost * far / all;
}

static bool is_same_placement(const struct plani_point *a, const struct plani_point *b)
{
    return memcmp(a->until, b->until, sizeof a->until) == 0 && a->update == b->update &&
           a->parked_near == b->parked_near && a->parked_on_host == b->parked_on_host;
}

static void note_score(plani_placer *self, const struct plani_point *point, double score)
{
    struct plani_scored *best = self->best;
    int at = 0;
    while (at < PLANI_FINALISTS && best[at].score <= score) {
        if (isfinite(best[at].score) && is_same_placement(&best[at].point, point))
            return;
        at++;
    }
    if (at == PLANI_FINALISTS)
        return;
    int end = at; /* the same with other held stages goes, or the last */
    while (end < PLANI_FINALISTS - 1 &&
           !(isfinite(best[end].score) && is_same_placement(&best[end].point, point)))
        end++;
    for (int i = end; i > at; i--)
        best[i] = best[i - 1];
    best[at] = (struct plani_scored){*point, score};
}

int plani_point_try(plani_placer *self, const struct plani_point *point, double *score)
{
    *score = INFINITY;
    self->last_fits = false;
    if (!plani_point_is_legal(self, point))
        return 0;
    plani_point_apply(self, point);
    if (note_seen(self, hash_of(self, point)))
        return 0;
    double factor = factor_of(self, point);
    struct plani_trial trial = {
        .held = point->held, .level = self->level, .work_most = PLANI_PLACE_WORK};
    trial.level_max = self->has_fit ? self->level + 1 : UINT32_MAX;
    if (self->has_fit) /* a loser by a little may yet win when compiled whole */
        trial.enough_ns = (uint64_t)(1.005 * self->best[0].score / factor);
    int rc = plani_try(&self->job, &trial);
    self->trials += trial.work > 0;
    self->work += trial.work;
    if (rc == ERR_NO_FIT)
        return 0;
    TRY(rc);
    self->last_fits = true;
    if (!self->has_fit)
        self->level = trial.level;
    self->has_fit = true;
    if (trial.ns == UINT64_MAX)
        return 0;
    *score = (double)trial.ns * factor;
    note_score(self, point, *score);
    return 0;
}
