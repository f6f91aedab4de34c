/* Where the search for a placement begins: whole kinds on the nearest tiers that take them, then
 * tiers filled kind by kind in several orders. */
#include <math.h>
#include <string.h>

#include "plan/search/search_internal.h"

/* For the step of the job as applied, at the tiles of starts: bytes of homes, and what the serial
 * order needs beside them. For a long program that takes more than all work of a way, so it does
 * not count until a trial has fitted. */
static int learn_needs(plani_search *self, uint64_t homes[TIER_COUNT], uint64_t passing[TIER_COUNT])
{
    const plan_job *job = &self->job;
    enum program_kind kind = job->only_eval ? PROGRAM_EVAL : PROGRAM_STEADY;
    uint64_t tiles[PLANI_TILES_MAX], peaks[TIER_COUNT], second_bytes;
    plani_list_tiles(job, tiles);
    uint64_t tile_elems = tiles[self->tile_first], before = self->work->ops;
    TRY(plani_home_ends(job, tile_elems, homes, &second_bytes));
    TRY(plani_serial_peaks(job, tile_elems, kind, peaks, self->work));
    if (!self->has_fit)
        self->work_end += self->work->ops - before;
    for (int a = 0; a < TIER_COUNT; a++)
        passing[a] = size_max(peaks[a], homes[a]) - homes[a];
    return 0;
}

/* ---- what waits between passes -------------------------------------------------------------- */

/* Learns what passes through the device where nothing is parked there, from the first placement
 * that asks: it hardly depends on where states rest. */
static int learn_passing(plani_search *self)
{
    uint64_t homes[TIER_COUNT], passing[TIER_COUNT];
    if (self->passing_bytes > 0)
        return 0;
    TRY(learn_needs(self, homes, passing));
    self->passing_bytes = size_max(passing[TIER_DEVICE], 1);
    return 0;
}

/* For how many micro-batches the device has room beside its homes and `times` what passes through
 * it. The job as applied parks nothing near. */
static uint32_t parked_room(const plani_search *self, uint64_t times)
{
    const plan_job *job = &self->job;
    uint64_t homes[TIER_COUNT], budget = job->budget_bytes[TIER_DEVICE];
    plani_count_homes(job, homes);
    uint64_t taken = homes[TIER_DEVICE] + times * self->passing_bytes;
    uint64_t free_bytes = budget > taken ? budget - taken : 0;
    return (uint32_t)size_min(free_bytes / plani_parked_bytes(job), job->micro_batch_count);
}

/* With units in parts: how many passes of each stage the device has room to hold, beside its homes
 * and twice what passes through it. Programs are long there, and the search has few tries. */
static int held_room(plani_search *self, const struct plani_point *point, uint32_t *held)
{
    const plan_job *job = &self->job;
    uint64_t homes[TIER_COUNT], part_elems = 1, budget = job->budget_bytes[TIER_DEVICE];
    uint32_t most = plani_has_cut_stage(job) ? plani_held_most(job) : 0;
    *held = 0;
    if (most == 0)
        return 0;
    plani_point_apply(self, point);
    TRY(learn_passing(self));
    plani_count_homes(job, homes);
    for (uint32_t u = 0; u < job->unit_count; u++)
        part_elems = size_max(part_elems, plani_whole_elems(job, u));
    uint64_t taken = homes[TIER_DEVICE] + 2 * self->passing_bytes;
    uint64_t free_bytes = budget > taken ? budget - taken : 0;
    *held = (uint32_t)size_min(free_bytes / (part_elems * job->param_bytes), most);
    return 0;
}

/* Tries the point, and keeps it if it is one of the best starts. */
static int try_start_point(plani_search *self, const struct plani_point *point)
{
    struct plani_scored *starts = self->starts, fresh = {.score = INFINITY};
    bool gained = false;
    if (self->start_count > 0)
        fresh.score = plani_near_start * starts[0].score;
    if (self->start_count == PLANI_STARTS)
        fresh.score = fmin(fresh.score, starts[PLANI_STARTS - 1].score);
    TRY(plani_search_try(self, point, &fresh, &gained));
    uint32_t at = 0;
    while (at < self->start_count && starts[at].score < fresh.score)
        at++;
    if (!gained || (at < self->start_count && starts[at].score == fresh.score))
        return 0; /* equal scores are nearly always the same homes */
    self->start_count += self->start_count < PLANI_STARTS;
    for (uint32_t i = self->start_count - 1; i > at; i--)
        starts[i] = starts[i - 1];
    starts[at] = fresh;
    return 0;
}

/* The same with as many held passes as have room, or else with none. */
static int try_point(plani_search *self, const struct plani_point *point)
{
    struct plani_point next = *point;
    TRY(held_room(self, point, &next.held));
    if (next.held > 0)
        TRY(try_start_point(self, &next));
    return next.held > 0 && self->last_fits ? 0 : try_start_point(self, point);
}

/* Sets the work of the way by its first point that fits: its step may be long. */
static void note_fit(plani_search *self, uint32_t tile_idx, uint64_t step_ops)
{
    uint64_t work = size_min(PLANI_SEARCH_STEPS * step_ops, PLANI_SEARCH_WORK_MOST);
    self->tile_first = tile_idx;
    if (!self->is_closed)
        self->work_end = self->work_begin + size_max(work, PLANI_SEARCH_WORK);
}

/* Tries the point with the tiles of starts. While no point has fitted, finer tiles are tried until
 * one of them fits. */
static int try_tiles(plani_search *self, struct plani_point *point)
{
    uint64_t tiles[PLANI_TILES_MAX];
    plani_point_apply(self, point);
    uint32_t count = plani_list_tiles(&self->job, tiles), step = self->is_closed ? 1 : 2;
    uint32_t end = self->has_fit ? (uint32_t)size_min(self->tile_first + step + 1, count) : count;
    self->last_fits = false;
    for (uint32_t i = self->tile_first; i < end && !self->last_fits;
         i = i + 1 < end ? (uint32_t)size_min(i + step, end - 1) : end) {
        uint64_t before = self->work->ops;
        point->tile_elems = tiles[i];
        if (self->fails[i])
            continue;
        TRY(try_point(self, point));
        if (self->last_fits && !self->has_fit)
            note_fit(self, i, self->work->ops - before);
        self->has_fit |= self->last_fits;
    }
    return 0;
}

/* Tries the placement with its usual update. Activations parked between passes stay on the device
 * as far as that fits; the rest goes to host memory. */
static int try_start(plani_search *self, struct plani_point *point)
{
    uint32_t all = self->job.micro_batch_count;
    if (!plani_point_is_legal(self, point))
        return 0;
    plani_point_apply(self, point);
    plani_point_set_update(self, point, self->update);
    point->parked_near = 0;
    point->parked_on_host = true;
    plani_point_apply(self, point);
    bool parks = plani_parked_bytes(&self->job) > 0 && plani_parked_home(&self->job) != TIER_DEVICE;
    if (parks)
        TRY(learn_passing(self));
    /* Twice what passes: once for the op at hand, once for the copies after it and ahead of it. */
    uint32_t twice = parks ? parked_room(self, 2) : 0, once = parks ? parked_room(self, 1) : 0;
    const uint32_t nears[] = {all, twice, once, once / 2, 0};
    for (size_t i = 0; i < sizeof nears / sizeof nears[0]; i++) {
        if (i > 0 && nears[i] == nears[i - 1])
            continue;
        point->parked_near = nears[i];
        TRY(try_tiles(self, point));
        if (self->last_fits || !parks)
            return 0;
    }
    point->parked_on_host = false;
    return try_tiles(self, point);
}

/* ---- tiers filled in several orders --------------------------------------------------------- */

/* Bytes of each arena: left for homes that are open; and needed by the serial order beside
 * homes. */
struct room {
    double left[TIER_COUNT], passing[TIER_COUNT];
};

static int find_room(plani_search *self, struct room *room)
{
    struct plani_point far = plani_first_point(self);
    uint64_t homes[TIER_COUNT], passing[TIER_COUNT];
    plani_point_far(self, &far);
    plani_point_set_update(self, &far, self->update);
    plani_point_apply(self, &far);
    TRY(learn_needs(self, homes, passing));
    for (int a = 0; a < TIER_COUNT; a++) {
        room->passing[a] = (double)passing[a];
        room->left[a] = (double)self->job.budget_bytes[a] - (double)homes[a];
    }
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        for (uint32_t i = 0; i < self->counts[kind]; i++) {
            uint32_t unit = self->units[kind][i];
            if (self->homes[kind][unit] < TIER_COUNT)
                room->left[self->homes[kind][unit]] += (double)self->bytes[kind][unit];
        }
    return 0;
}

enum { FILL_KINDS = 5 };

/* Fills an arena kind by kind, each in order of need; what rests nearer already stays there. */
static void fill_tier(const plani_search *self, struct plani_point *point, int tier,
                      const uint8_t kinds[FILL_KINDS], double left)
{
    for (int i = 0; i < FILL_KINDS && kinds[i] < STATE_KIND_COUNT; i++) {
        uint32_t *until = point->until[kinds[i]];
        uint32_t end = tier > 0 ? until[tier - 1] : 0;
        for (; end < self->counts[kinds[i]]; end++) {
            double bytes = (double)plani_open_bytes(self, point, kinds[i], end);
            if (bytes > left)
                break;
            left -= bytes;
        }
        for (int t = tier; t < TIER_COUNT; t++)
            until[t] = t == tier || until[t] < end ? end : until[t];
    }
}

enum {
    P = STATE_PARAMS,
    G = STATE_GRADS,
    O = STATE_OPTIMIZER,
    A = STATE_ACTIVATIONS,
    I = STATE_INNER_ACTIVATIONS,
    NONE = STATE_KIND_COUNT
};

static const uint8_t device_fills[][FILL_KINDS] = {
    {A, P, G, O, NONE}, {I, A, P, G, O}, {A, P, G, O, I}, {P, G, A, NONE}, {O, G, P, A, I}, {NONE},
};
static const uint8_t host_fills[][FILL_KINDS] = {
    {A, O, G, P, NONE}, {A, P, G, O, I}, {I, A, P, G, O}, {A, P, O, G, NONE}, {P, O, G, NONE},
};

static int try_fills(plani_search *self)
{
    static const double shares[] = {1.5, 4, 12}; /* of what the serial order needs is left open */
    struct room room;
    uint64_t begin = self->work->ops, work = self->work_end - size_min(begin, self->work_end);
    TRY(find_room(self, &room));
    if (!self->has_fit) /* the search for room does not count until a trial has fitted */
        begin = self->work->ops;
    for (int a = 0; a < TIER_NVME; a++)
        self->room_bytes[a] = room.left[a] - shares[0] * room.passing[a];
    for (size_t h = 0; h < sizeof host_fills / sizeof host_fills[0]; h++)
        for (size_t s = 0; s < sizeof shares / sizeof shares[0]; s++)
            for (size_t d = 0; d < sizeof device_fills / sizeof device_fills[0]; d++) {
                struct plani_point point = plani_first_point(self);
                if (self->work->ops - begin > work / 8)
                    return 0;
                fill_tier(self, &point, TIER_DEVICE, device_fills[d],
                          room.left[TIER_DEVICE] - shares[s] * room.passing[TIER_DEVICE]);
                fill_tier(self, &point, TIER_HOST, host_fills[h],
                          room.left[TIER_HOST] - shares[s] * room.passing[TIER_HOST]);
                for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
                    if (kind != STATE_INNER_ACTIVATIONS)
                        point.until[kind][TIER_NVME] = self->counts[kind];
                TRY(try_start(self, &point));
            }
    return 0;
}

/* The best starts with copies, for which other states should leave room. */
static int try_copied(plani_search *self)
{
    struct plani_scored starts[PLANI_STARTS];
    uint32_t count = self->start_count;
    memcpy(starts, self->starts, sizeof starts);
    for (uint32_t i = 0; i < count; i++) {
        struct plani_point *point = &starts[i].point;
        point->copy_parts = PLANI_PARTS * 3 / 4;
        if (point->update == UPDATE_IN_NEXT_FORWARD && !self->job.only_eval)
            TRY(try_point(self, point));
    }
    return 0;
}

/* The best start with finer tiles, which leave room for other homes. */
static int try_finer(plani_search *self)
{
    uint64_t tiles[PLANI_TILES_MAX];
    struct plani_point point = self->starts[0].point;
    if (self->start_count == 0)
        return 0;
    plani_point_apply(self, &point);
    uint64_t begun = point.tile_elems, least = plani_searched_tile(&self->job);
    uint32_t count = plani_list_tiles(&self->job, tiles);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t before = self->work->ops;
        point.tile_elems = tiles[i];
        if (tiles[i] >= begun || tiles[i] < least)
            continue;
        TRY(try_point(self, &point));
        if (self->work->ops - before > (self->work_end - self->work_begin) / 50)
            break; /* the next one is twice as long */
    }
    return 0;
}

/* ---- all of it ------------------------------------------------------------------------------ */

int plani_home_excess(plani_search *self, double bytes[TIER_COUNT])
{
    uint64_t ends[TIER_COUNT], second_bytes;
    uint64_t tiles[PLANI_TILES_MAX];
    plani_list_tiles(&self->job, tiles);
    TRY(plani_home_ends(&self->job, tiles[self->tile_first], ends, &second_bytes));
    for (int a = 0; a < TIER_COUNT; a++)
        bytes[a] = fmax((double)ends[a] - (double)self->job.budget_bytes[a], 0);
    return 0;
}

/* Finds self->is_hopeless: all tiers together are too small for the states, or the device or the
 * host is too small for what every placement leaves there. */
static int look_for_hope(plani_search *self)
{
    struct plani_point far = plani_first_point(self);
    double bytes = 0, budget = 0, excess[TIER_COUNT];
    bool needs_grads = !self->asked->chooses_update || !self->asked->allows_in_backward;
    for (int a = 0; a < TIER_COUNT; a++)
        if (a != TIER_NVME || self->asked->has_drives)
            budget += (double)self->job.budget_bytes[a];
    for (uint32_t u = 0; u < self->job.unit_count; u++)
        bytes += (double)self->bytes[STATE_PARAMS][u] + (double)self->bytes[STATE_OPTIMIZER][u] +
                 (needs_grads && self->job.update != UPDATE_IN_BACKWARD
                      ? (double)self->bytes[STATE_GRADS][u]
                      : 0);
    plani_point_far(self, &far);
    plani_point_apply(self, &far);
    TRY(plani_home_excess(self, excess));
    self->is_hopeless = bytes > budget || excess[TIER_DEVICE] > 0 ||
                        (self->asked->has_drives && excess[TIER_HOST] > 0);
    return 0;
}

int plani_try_starts(plani_search *self)
{
    struct plani_point point = plani_first_point(self);
    self->start_count = 0;
    self->has_fit = false;
    self->tile_first = 0;
    if (self->is_closed) {
        point = plani_plain_point(&self->job, 0);
        return try_tiles(self, &point);
    }
    TRY(look_for_hope(self));
    if (self->is_hopeless)
        return 0;
    self->last_fits = false;
    for (uint32_t i = 0; i < PLANI_WHOLE_KINDS && !self->last_fits && plani_search_may_go_on(self);
         i++) {
        plani_point_of_kinds(self, i, &point);
        TRY(try_start(self, &point));
    }
    plani_point_near(self, &point, true);
    TRY(try_start(self, &point));
    TRY(try_fills(self));
    TRY(try_copied(self));
    return try_finer(self);
}
