/* The search as a whole. A way is an order and an update that may be chosen. Each way is searched
 * by itself, with work of its own:
 *
 *   1  search_way         each way: descents (descents.c) from its best starts (starts.c), with
 *                         half of its work
 *   2  improve_way        each way whose best point is near the best of all: settings, memory that
 *                         is reserved less far ahead, and drawn points. The nearest way comes
 *                         first, and also has the work that ways which are not near have left; each
 *                         next one has what the one before it has left.
 *   3  improve_near_ways  the nearest ways, once more: inner activations that are kept selectively,
 *                         or by a share of the units (inner.c). Before, they are kept whole or not
 *                         at all.
 *   4  improve_last       the best point of all: trades between the device and the drives,
 *                         settings once more, and moves that gain only together
 *
 * 3 and 4 come last and take no work from the others, so they make no step longer.
 *
 * A setting that the job gives only takes coordinates away. Where all homes are given, those
 * settings are left that say how programs use them. */
#include <math.h>
#include <string.h>

#include "plan/search/search_internal.h"

enum {
    TRIES_MOST = 4000, /* steps of a way: short programs need no more */
    TRIES_CLOSED = 60, /* the same where homes are given */
    /* Work in ops and in steps, each of at most LAST_WORK_MOST ops: of selective placements and of
     * shares, for each way that is near the best one; and of the last part, once, with half as many
     * steps again for moves that are made together. */
    SELECTIVE_WORK = PLANI_SEARCH_WORK / 8,
    SELECTIVE_STEPS = 8,
    SHARE_STEPS = 12,
    FINAL_WORK = PLANI_SEARCH_WORK / 4,
    FINAL_STEPS = 50,
    LAST_WORK_MOST = PLANI_SEARCH_WORK / 2,
    TOGETHER_PART = 4, /* moves that gain only together are by this part of a range, and less */
    INNER = STATE_INNER_ACTIVATIONS,
};
/* A step so near to what computing takes, or to the bound of its ops, is not worth a longer
 * search. */
static const double near_bound = 1.003;
/* A way whose best start takes so many times the best step so far ends there. */
static const double near_way = 3;
/* A way whose best point is above the best of all by this factor gets no changed settings, */
static const double near_way_settings = 1.1;
/* and by this one, no inner activations that are kept selectively or by a share of the units. */
static const double near_way_inner = 1.02;
/* Units that keep inner activations are spread only where the step is above its bound by this
 * factor. */
static const double near_own_bound = 1.02;

/* One way to search, as if no other were open. A job that names its update is therefore searched as
 * that way is in a job that leaves it open. */
struct way {
    enum order order;
    enum update update;
    struct plani_scored best;
    double room_bytes[TIER_NVME];   /* as in plani_search */
    uint64_t work_left, tries_left; /* in ops and in steps */
};

struct plani_scored *plani_search_best(plani_search *self)
{
    return isfinite(self->best.score) ? &self->best : NULL;
}

/* ---- ways ----------------------------------------------------------------------------------- */

/* Goes down from the starts. Every second one tries moves in the opposite order, so that equal
 * starts may lead to different points. Even if no work is left, the first one is taken
 * where it is the best of all ways, whose score so far is `least`. */
static int improve_starts(plani_search *self, double least)
{
    bool gained;
    for (uint32_t i = 0; i < self->start_count; i++) {
        bool leads = i == 0 && self->starts[0].score < least;
        if (!leads && !plani_search_may_go_on(self))
            break;
        self->is_reversed = i % 2;
        if (i < 2 || self->starts[i].score < plani_near_start * self->starts[0].score)
            TRY(plani_descend(self, &self->starts[i], 1, &gained));
    }
    self->is_reversed = false;
    return 0;
}

/* Finds the step of the best point. It was tried before, so this is looked up. */
static int try_best(plani_search *self, struct plani_figures *step)
{
    plani_point_apply(self, &self->best.point);
    return plani_try_step(&self->job, &self->best.point, 0, step, self->work);
}

/* True if the best step takes no longer than computing that no point can spare. */
static bool is_at_bound(plani_search *self)
{
    struct plani_figures step;
    return try_best(self, &step) == 0 &&
           (double)step.ns <= near_bound * (double)step.lane_ns[LANE_COMPUTE] &&
           self->best.point.until[INNER][TIER_NVME] == self->counts[INNER];
}

/* Begins to search one way, or goes on with it. */
static void begin_way(plani_search *self, const struct way *way)
{
    self->best = way->best;
    memcpy(self->room_bytes, way->room_bytes, sizeof self->room_bytes);
    self->work_end = self->work->ops + way->work_left;
    self->tries_end = plani_search_tries(self) + way->tries_left;
}

static void end_way(const plani_search *self, struct way *way)
{
    way->best = self->best;
    memcpy(way->room_bytes, self->room_bytes, sizeof way->room_bytes);
    way->work_left = self->work_end - size_min(self->work->ops, self->work_end);
    way->tries_left = self->tries_end - size_min(plani_search_tries(self), self->tries_end);
}

/* Goes down from the starts of the way, with half of its work. `least`: the best score so far. */
static int search_way(plani_search *self, struct way *way, double least)
{
    begin_way(self, way);
    self->passing_bytes = 0;
    self->work_begin = self->work->ops;
    TRY(plani_try_starts(self));
    const uint64_t work_end = self->work_end, tries_end = self->tries_end;
    self->work_end -= (self->work_end - self->work_begin) / 2;
    self->tries_end -= way->tries_left / 2;
    if (self->start_count > 0 && self->starts[0].score < near_way * least)
        TRY(improve_starts(self, least));
    self->work_end = work_end;
    self->tries_end = tries_end;
    end_way(self, way);
    return 0;
}

/* Goes on from the best point of the way, and from the best of all if only its update differs. */
static int improve_way(plani_search *self, struct way *way, const struct plani_scored *all)
{
    struct plani_scored other = {.score = plani_near_start * way->best.score};
    struct plani_point point = all->point;
    enum update update = way->best.point.update;
    bool gained = false, moved;
    begin_way(self, way);
    if (point.update != update && point.order == way->best.point.order) {
        plani_point_apply(self, &point);
        plani_point_set_update(self, &point, update);
        TRY(plani_search_try(self, &point, &other, &gained));
    }
    if (gained)
        TRY(plani_descend(self, &other, 1, &moved));
    TRY(plani_improve(self));
    end_way(self, way);
    return 0;
}

static uint32_t list_ways(plani_search *self, struct way *ways)
{
    uint8_t updates[PLANI_UPDATES];
    uint32_t count = plani_open_updates(self, updates), orders = 1;
    const enum order given = self->asked->job->order;
    if (self->asked->chooses_order && given == ORDER_LAYER_MAJOR && self->job.micro_batch_count > 1)
        orders = 2;
    for (uint32_t i = 0; i < orders * count; i++)
        ways[i] = (struct way){
            .order = i < count ? given : ORDER_BATCH_MAJOR,
            .update = (enum update)updates[i % count],
            .best.score = INFINITY,
            .work_left = PLANI_SEARCH_WORK,
            .tries_left = self->is_closed ? TRIES_CLOSED : TRIES_MOST,
        };
    return orders * count;
}

/* The way with the best score below the limit, without those in `done` (a bit each), or NULL. */
static struct way *nearest_way(struct way *ways, uint32_t count, uint32_t done, double limit)
{
    struct way *nearest = NULL;
    for (uint32_t i = 0; i < count; i++)
        if (!(done >> i & 1) && ways[i].best.score < limit) {
            nearest = &ways[i];
            limit = ways[i].best.score;
        }
    return nearest;
}
/* ---- the end of the search ------------------------------------------------------------------- */

/* Goes on with the way, with `least` work and that of so many steps, or of fewer long ones. */
static void begin_last(plani_search *self, struct way *way, uint64_t least, uint64_t steps)
{
    way->work_left = least + size_min(steps * 2 * self->work->step_ops, LAST_WORK_MOST);
    way->tries_left = TRIES_MOST / 4;
    begin_way(self, way);
}

/* True if the best step takes hardly more than the bound of its own ops, by this factor at most: in
 * another order they take about as long. */
static bool is_near_own_bound(plani_search *self, double factor)
{
    struct plani_figures step;
    return try_best(self, &step) == 0 && (double)step.ns <= factor * (double)step.bound_ns;
}

/* Lets units keep a part of their inner activations, and then a share of the units keep theirs, in
 * each way that is so near to the best of all that it may become the best. */
static int improve_near_ways(plani_search *self, struct way *ways, uint32_t count,
                             struct plani_scored *all)
{
    const double limit = near_way_inner * all->score;
    for (uint32_t i = 0; i < count; i++) {
        self->best = ways[i].best;
        if (!(ways[i].best.score < limit) || self->is_closed || is_at_bound(self))
            continue;
        begin_last(self, &ways[i], SELECTIVE_WORK, SELECTIVE_STEPS);
        TRY(plani_try_selective(self));
        end_way(self, &ways[i]);
        if (self->counts[INNER] > 0 && !is_near_own_bound(self, near_own_bound)) {
            begin_last(self, &ways[i], 0, SHARE_STEPS);
            TRY(plani_try_shares(self));
            end_way(self, &ways[i]);
        }
        if (ways[i].best.score < all->score)
            *all = ways[i].best;
    }
    return 0;
}

/* Goes on from the best point, which is of the way, with trades between the device and the drives,
 * then with settings that may keep units selectively, and last with moves that gain only together.
 * Without the settings, drawn jobs 9, 20 and 44 of test_plan_best take 4.8, 1.5 and 0.7 % longer;
 * without the last moves, jobs 20 and 22 take 3.1 and 1.4 % longer. */
static int improve_last(plani_search *self, struct way *way)
{
    struct plani_scored next = way->best;
    bool gained;
    begin_last(self, way, FINAL_WORK, FINAL_STEPS);
    if (!is_at_bound(self)) {
        self->trades_far = true;
        TRY(plani_descend(self, &next, 1, &gained));
        self->is_selective = true;
        TRY(plani_try_settings(self));
        if (!is_near_own_bound(self, near_bound)) {
            end_way(self, way);
            begin_last(self, way, FINAL_WORK, FINAL_STEPS / 2);
            self->moves_together = true;
            next = self->best;
            TRY(plani_descend(self, &next, TOGETHER_PART, &gained));
        }
        self->is_selective = self->trades_far = self->moves_together = false;
    }
    end_way(self, way);
    return 0;
}

int plani_walk_ways(plani_search *self)
{
    struct way ways[2 * PLANI_UPDATES];
    struct plani_scored all = {.score = INFINITY};
    uint32_t count = list_ways(self, ways), done = 0;
    self->frozen = PLANI_NONE_FROZEN;
    for (uint32_t i = 0; i < count; i++) {
        self->job.order = ways[i].order;
        self->update = ways[i].update;
        TRY(search_way(self, &ways[i], all.score));
        if (ways[i].best.score < all.score)
            all = ways[i].best;
    }
    self->best = all;
    struct way *way = NULL;
    if (plani_search_best(self) && !is_at_bound(self))
        way = nearest_way(ways, count, done, INFINITY);
    uint64_t work_left = 0, tries_left = 0;
    for (uint32_t i = 0; i < count; i++)
        if (!(ways[i].best.score < near_way_settings * all.score)) {
            work_left += ways[i].work_left;
            tries_left += ways[i].tries_left;
        }
    while (way) {
        way->work_left += work_left;
        way->tries_left += tries_left;
        TRY(improve_way(self, way, &all));
        work_left = way->work_left;
        tries_left = way->tries_left;
        done |= UINT32_C(1) << (way - ways);
        if (way->best.score < all.score)
            all = way->best;
        way = nearest_way(ways, count, done, near_way_settings * all.score);
    }
    TRY(improve_near_ways(self, ways, count, &all));
    way = self->is_closed ? NULL : nearest_way(ways, count, 0, INFINITY);
    if (way) {
        TRY(improve_last(self, way));
        all = way->best;
    }
    self->best = all;
    self->job.order = self->asked->job->order;
    return 0;
}

int plani_search_ways(plani_search *self)
{
    plani_scouts_begin(self);
    int rc = plani_walk_ways(self);
    plani_scouts_end(self);
    return rc;
}
