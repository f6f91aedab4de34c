/* Points of the search as homes: what is open, where a point puts it, and the points beside it. */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "plan/search/search_internal.h"

/* ---- what is open --------------------------------------------------------------------------- */

/* Bytes that wait between the passes of cut stages if all stages wait. They rest with the first
 * stage's output, even if nothing else rests there. */
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

/* Adds to bytes[unit_count] what each unit's activations of the kind take on this rank; of inner
 * activations so much as is `kept`. One walk over the stages serves all units. */
static void add_activation_bytes(const plan_job *job, int kind, enum kept kept, uint64_t *bytes)
{
    uint64_t slots = job->order == ORDER_BATCH_MAJOR ? 1 : job->micro_batch_count;
    for (uint32_t s = 0; s < job->stage_count && !job->only_eval; s++) {
        uint64_t *of_unit = &bytes[plani_stage_unit(job, s)];
        if (!plani_goes_back(job, s))
            *of_unit += kind == STATE_ACTIVATIONS && s == 1 ? parked_bytes(job) : 0;
        else if (kind == STATE_INNER_ACTIVATIONS)
            *of_unit += slots * plani_kept_bytes(&job->stages[s], kept);
        else if (s > 0 && s + 1 < job->stage_count)
            *of_unit += slots * job->boundary_bytes;
    }
}

/* Bytes of the unit's state of the kind, which is none of activations, that rest on this rank; 0:
 * there is no such home. */
static uint64_t rest_bytes(const plan_job *job, int kind, uint32_t unit)
{
    bool learns = !job->only_eval && plan_learns(job, unit);
    uint64_t bytes = 0;
    switch ((enum state_kind)kind) {
    case STATE_PARAMS:
        return plan_rest_elems(job, STATE_PARAMS, unit) * job->param_bytes;
    case STATE_GRADS:
        return learns ? plan_rest_elems(job, STATE_GRADS, unit) * job->grad_bytes : 0;
    case STATE_OPTIMIZER:
        if (!learns)
            return 0;
        bytes =
            tile_state_bytes(plan_streams(job, unit), plan_rest_elems(job, STATE_OPTIMIZER, unit));
        return bytes + (plani_params_are_high(job, unit) ? 0 : plani_high_bytes(job, unit));
    case STATE_ACTIVATIONS:
    case STATE_INNER_ACTIVATIONS:
    case STATE_KIND_COUNT:
        break;
    }
    return 0;
}

/* Marks the units of experts whose params passes often do without. */
static void find_missable(const plan_job *job, bool *is_missable)
{
    if (!plani_prefers_hit(job))
        return;
    for (uint32_t s = 0; s < job->stage_count; s++)
        for (uint32_t p = 0; p < job->stages[s].pass_count[PHASE_FORWARD]; p++) {
            const struct pass *pass = &job->stages[s].passes[PHASE_FORWARD][p];
            for (uint32_t i = 0; i < pass->unit_count && pass->miss > 0; i++)
                is_missable[pass->units[i]] = true;
        }
}

/* Orders units by the reversed bits of their index: after every 2^n-th unit come those halfway
 * between them, and so on. */
static void spread(const uint32_t *units, uint32_t count, uint32_t *out)
{
    uint32_t bits = 0, filled = 0;
    while (UINT64_C(1) << bits < count)
        bits++;
    for (uint64_t i = 0; i < UINT64_C(1) << bits; i++) {
        uint64_t reversed = 0;
        for (uint32_t b = 0; b < bits; b++)
            reversed |= (i >> b & 1) << (bits - 1 - b);
        if (reversed < count)
            out[filled++] = units[reversed];
    }
}

/* Lists the units whose home is open. Params that every token needs come before those of experts
 * that may not be hit: near memory spares a fetch of them in each pass. */
static int list_open(plani_search *self, int kind, bool is_reversed)
{
    const plan_job *job = &self->job;
    bool *is_missable = mem_alloc(job->unit_count, sizeof *is_missable, "placement");
    if (!is_missable)
        return -ENOMEM;
    if (kind == STATE_PARAMS)
        find_missable(job, is_missable);
    for (int turn = 0; turn < 2; turn++) {
        uint32_t begin = self->counts[kind];
        for (uint32_t i = 0; i < job->unit_count; i++) {
            uint32_t unit = is_reversed ? job->unit_count - 1 - i : i;
            bool is_open = self->asked->wanted[kind][unit] == TIER_AUTO;
            if (is_open && is_missable[unit] == (turn == 1) && self->bytes[kind][unit] > 0)
                self->units[kind][self->counts[kind]++] = unit;
        }
        spread(&self->units[kind][begin], self->counts[kind] - begin, &self->spread[kind][begin]);
    }
    mem_free(is_missable);
    return 0;
}

static int list_kind(plani_search *self, int kind)
{
    const plan_job *job = &self->job;
    const uint8_t *wanted = self->asked->wanted[kind];
    bool are_activations = kind == STATE_ACTIVATIONS || kind == STATE_INNER_ACTIVATIONS;
    self->homes[kind] = mem_alloc(job->unit_count, 1, "placement");
    self->units[kind] = mem_alloc(job->unit_count, sizeof(uint32_t), "placement");
    self->spread[kind] = mem_alloc(job->unit_count, sizeof(uint32_t), "placement");
    self->bytes[kind] = mem_alloc(job->unit_count, sizeof(uint64_t), "placement");
    if (!self->homes[kind] || !self->units[kind] || !self->spread[kind] || !self->bytes[kind])
        return -ENOMEM;
    if (are_activations)
        add_activation_bytes(job, kind, KEPT_ALL, self->bytes[kind]);
    for (uint32_t unit = 0; unit < job->unit_count; unit++) {
        if (!are_activations)
            self->bytes[kind][unit] = rest_bytes(job, kind, unit);
        uint8_t idle = kind == STATE_INNER_ACTIVATIONS ? TIER_COUNT : TIER_DEVICE;
        self->homes[kind][unit] = wanted[unit] == TIER_AUTO ? idle : wanted[unit];
    }
    TRY(list_open(self, kind, are_activations)); /* of activations the last unit is first */
    self->job.homes[kind] = self->homes[kind];
    return 0;
}

int plani_search_init(plani_search *self, const struct plan_place_asked *asked, plani_work *work)
{
    memset(self, 0, sizeof *self);
    self->asked = asked;
    self->job = *asked->job;
    self->job.no_advice = true;
    self->work = work;
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        TRY(list_kind(self, kind));
    self->selective_bytes = mem_alloc(self->job.unit_count, sizeof(uint64_t), "placement");
    if (!self->selective_bytes)
        return -ENOMEM;
    add_activation_bytes(&self->job, STATE_INNER_ACTIVATIONS, KEPT_SELECTIVE,
                         self->selective_bytes);
    return 0;
}

void plani_search_fini(plani_search *self)
{
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++) {
        mem_free(self->homes[kind]);
        mem_free(self->units[kind]);
        mem_free(self->spread[kind]);
        mem_free(self->bytes[kind]);
    }
    mem_free(self->selective_bytes);
}

uint64_t plani_bytes_at_home(const plani_search *self, int kind, uint32_t unit, unsigned home)
{
    bool is_selective = kind == STATE_INNER_ACTIVATIONS && kept_at_home(home) == KEPT_SELECTIVE;
    return is_selective ? self->selective_bytes[unit] : self->bytes[kind][unit];
}

uint64_t plani_open_bytes(const plani_search *self, const struct plani_point *point, int kind,
                          uint32_t idx)
{
    bool is_selective = kind == STATE_INNER_ACTIVATIONS && idx >= point->whole;
    uint32_t unit = plani_unit_at(self, point, kind, idx);
    return is_selective ? self->selective_bytes[unit] : self->bytes[kind][unit];
}

uint32_t plani_open_updates(const plani_search *self, uint8_t updates[PLANI_UPDATES])
{
    uint32_t count = 0;
    if (!self->asked->chooses_update || self->job.only_eval) {
        updates[count++] = (uint8_t)self->asked->job->update;
        return count;
    }
    updates[count++] = UPDATE_IN_NEXT_FORWARD;
    updates[count++] = UPDATE_AFTER_BACKWARD;
    if (self->asked->allows_in_backward)
        updates[count++] = UPDATE_IN_BACKWARD;
    return count;
}

/* ---- a point as homes ----------------------------------------------------------------------- */

struct plani_point plani_plain_point(const plan_job *job, uint64_t tile_elems)
{
    return (struct plani_point){.order = job->order,
                                .update = job->update,
                                .parked_near = job->parked_near,
                                .parked_on_host = job->parked_on_host,
                                .tile_elems = tile_elems,
                                .commit = plani_usual_commit(job),
                                .fetches_hit = plani_prefers_hit(job)};
}

void plani_point_apply(plani_search *self, const struct plani_point *point)
{
    assert(plani_point_is_legal(self, point));
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++) {
        uint8_t tier = TIER_DEVICE;
        for (uint32_t i = 0; i < self->counts[kind]; i++) {
            while (tier < TIER_COUNT && i >= point->until[kind][tier])
                tier++;
            uint32_t unit = plani_unit_at(self, point, kind, i);
            bool is_selective = kind == STATE_INNER_ACTIVATIONS && tier < TIER_COUNT &&
                                i >= point->whole &&
                                self->selective_bytes[unit] < self->bytes[kind][unit];
            self->homes[kind][unit] = tier + (is_selective ? TIER_SELECTIVE : 0);
        }
    }
    self->job.order = point->order;
    self->job.update = point->update;
    self->job.parked_near = point->parked_near;
    self->job.parked_on_host = point->parked_on_host;
}

bool plani_point_is_legal(const plani_search *self, const struct plani_point *point)
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

/* ---- points to begin with ------------------------------------------------------------------- */

struct plani_point plani_first_point(const plani_search *self)
{
    return (struct plani_point){.order = self->job.order,
                                .update = self->job.update,
                                .whole = self->counts[STATE_INNER_ACTIVATIONS],
                                .fetches_hit = plani_prefers_hit(&self->job)};
}

void plani_point_set_update(plani_search *self, struct plani_point *point, enum update update)
{
    self->job.update = point->update = update;
    point->commit = plani_usual_commit(&self->job);
    if (update != UPDATE_IN_NEXT_FORWARD)
        point->copy_parts = point->carried_parts = 0;
}

void plani_point_near(const plani_search *self, struct plani_point *point, bool keeps_inner)
{
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        for (int tier = 0; tier < TIER_COUNT; tier++)
            point->until[kind][tier] =
                kind != STATE_INNER_ACTIVATIONS || keeps_inner ? self->counts[kind] : 0;
}

void plani_point_far(const plani_search *self, struct plani_point *point)
{
    plani_point_near(self, point, false);
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++) {
        point->until[kind][TIER_DEVICE] = 0;
        if (self->asked->has_drives)
            point->until[kind][TIER_HOST] = 0;
    }
}

/* Whole kinds, nearest first. */
static const uint8_t whole_kinds[][STATE_KIND_COUNT] = {
    /* params, grads, optimizer, activations, inner activations */
    {TIER_DEVICE, TIER_DEVICE, TIER_DEVICE, TIER_DEVICE, TIER_COUNT},
    {TIER_DEVICE, TIER_DEVICE, TIER_HOST, TIER_DEVICE, TIER_COUNT},
    {TIER_DEVICE, TIER_HOST, TIER_HOST, TIER_DEVICE, TIER_COUNT},
    {TIER_HOST, TIER_HOST, TIER_HOST, TIER_DEVICE, TIER_COUNT},
    {TIER_HOST, TIER_HOST, TIER_HOST, TIER_HOST, TIER_COUNT},
    {TIER_DEVICE, TIER_HOST, TIER_NVME, TIER_DEVICE, TIER_COUNT},
    {TIER_HOST, TIER_HOST, TIER_NVME, TIER_DEVICE, TIER_COUNT},
    {TIER_HOST, TIER_HOST, TIER_NVME, TIER_HOST, TIER_COUNT},
    {TIER_NVME, TIER_HOST, TIER_NVME, TIER_HOST, TIER_COUNT},
    {TIER_NVME, TIER_NVME, TIER_NVME, TIER_HOST, TIER_COUNT},
    {TIER_NVME, TIER_NVME, TIER_NVME, TIER_NVME, TIER_COUNT},
};

static_assert(sizeof whole_kinds / sizeof whole_kinds[0] == PLANI_WHOLE_KINDS,
              "the header names their number");

void plani_point_of_kinds(const plani_search *self, uint32_t idx, struct plani_point *point)
{
    assert(idx < PLANI_WHOLE_KINDS);
    const uint8_t *tiers = whole_kinds[idx];
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        for (int tier = 0; tier < TIER_COUNT; tier++)
            point->until[kind][tier] = tier >= tiers[kind] ? self->counts[kind] : 0;
}

static bool has_far_optimizer(const plani_search *self)
{
    for (uint32_t u = 0; u < self->job.unit_count; u++)
        if (plan_learns(&self->job, u) && self->homes[STATE_OPTIMIZER][u] != TIER_DEVICE)
            return true;
    return false;
}

/* State that is updated far from the device is updated in the next forward. */
void plani_point_usual_update(plani_search *self, struct plani_point *point)
{
    enum update update = self->asked->job->update;
    if (!plani_point_is_legal(self, point))
        return;
    plani_point_apply(self, point);
    if (self->asked->chooses_update)
        update = has_far_optimizer(self) ? UPDATE_IN_NEXT_FORWARD : UPDATE_AFTER_BACKWARD;
    plani_point_set_update(self, point, update);
}

/* ---- points beside a point ------------------------------------------------------------------ */

bool plani_point_shift(const plani_search *self, struct plani_point *point, int kind, int tier,
                       int64_t step)
{
    uint32_t *until = point->until[kind], count = self->counts[kind];
    int64_t moved = (int64_t)until[tier] + step;
    if (tier == TIER_NVME && kind != STATE_INNER_ACTIVATIONS)
        return false; /* every unit rests somewhere */
    moved = moved < 0 ? 0 : moved > count ? count : moved;
    if (moved == until[tier])
        return false;
    until[tier] = (uint32_t)moved;
    for (int t = 0; t < TIER_COUNT; t++) {
        if (t < tier && until[t] > moved)
            until[t] = (uint32_t)moved;
        if (t > tier && until[t] < moved)
            until[t] = (uint32_t)moved;
    }
    if (!self->asked->has_drives) /* what leaves the host goes nowhere */
        until[TIER_HOST] = until[TIER_NVME] =
            kind == STATE_INNER_ACTIVATIONS ? until[TIER_HOST] : count;
    return true;
}

double plani_bytes_on(const plani_search *self, const struct plani_point *point, int tier)
{
    double bytes = 0;
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++) {
        const uint32_t *until = point->until[kind];
        if (plani_has_homes(self, point, kind))
            for (uint32_t i = tier > 0 ? until[tier - 1] : 0; i < until[tier]; i++)
                bytes += (double)plani_open_bytes(self, point, kind, i);
    }
    return bytes;
}

/* Takes units of the kind off the tier while it holds more bytes than it may. */
static void give_way(const plani_search *self, struct plani_point *point, int kind, int tier,
                     double *excess)
{
    uint32_t end = point->until[kind][tier], begin = end;
    uint32_t nearer = tier > 0 ? point->until[kind][tier - 1] : 0;
    while (plani_has_homes(self, point, kind) && begin > nearer && *excess > 0)
        *excess -= (double)plani_open_bytes(self, point, kind, --begin);
    if (begin < end && !plani_point_shift(self, point, kind, tier, (int64_t)begin - (int64_t)end))
        *excess = INFINITY;
}

bool plani_point_set_kind(const plani_search *self, struct plani_point *point, int kind, int tier,
                          uint32_t most, int giver)
{
    const struct plani_point before = *point;
    if (!plani_has_homes(self, point, kind) || (tier == TIER_NVME && !self->asked->has_drives))
        return false;
    for (int t = 0; t < TIER_COUNT; t++)
        point->until[kind][t] = t < tier    ? 0
                                : t == tier ? most
                                            : (uint32_t)size_max(most, before.until[kind][t]);
    if (tier < TIER_NVME) {
        double room = fmax(plani_bytes_on(self, &before, tier), self->room_bytes[tier]);
        double excess = plani_bytes_on(self, point, tier) - room;
        for (int i = 0; i < STATE_KIND_COUNT; i++)
            if ((giver + i) % STATE_KIND_COUNT != kind)
                give_way(self, point, (giver + i) % STATE_KIND_COUNT, tier, &excess);
        give_way(self, point, kind, tier, &excess);
        if (excess > 0)
            return false;
    }
    return plani_point_is_legal(self, point) && memcmp(&before, point, sizeof before) != 0;
}
