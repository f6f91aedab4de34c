/* The search: descents by the moves of search.c. Each way, an order and an update that may be
 * chosen, is searched by itself, with work of its own:
 *
 *   1  from its best starts (starts.c), with half of the work
 *   2  if its best point is near the best of all: from that point with one word set, which stays
 *      at first: a kind of state on one tier, or another value of one coordinate. Again from the
 *      beginning while a word has gained.
 *
 * Up to there inner activations are kept whole or not at all. At the end the search goes on from
 * the best points of the nearest ways with units that are kept selectively. So this third way makes
 * no step longer.
 *
 * A word that the job gives only takes coordinates away. Where all homes are given, those words
 * remain that say how programs use them. */
#include <math.h>
#include <string.h>

#include "plan/search_internal.h"

/* A step so near to what computing takes is not worth a longer search. */
static const double near_bound = 1.003;
/* A point whose score is above the best one by this part gets no moves of homes by whole kinds.
 * Smaller moves gain less: half as much is allowed where half a kind moves. */
static const double near_homes = 0.5;
/* A point that a word led to goes down without it where it is so near to the best one. */
static const double near_word = 1.2;
/* The same for a placement that keeps as much selectively as there is room for. */
static const double near_selective = 1.05;
/* A way whose best point is above the best of all by this factor gets no such placement. */
static const double near_way_selective = 1.02;
/* A way whose best start takes so many times the best step so far ends there. */
static const double near_way = 3;
/* A way whose best point is above the best of all by this factor ends without words. */
static const double near_words = 1.1;

/* One way to search: an order and an update, as if no other were open. A job that names its update
 * is therefore searched as that way is in a job that leaves it open. */
struct way {
    enum order order;
    enum update update;
    struct plani_scored best;
    double room_bytes[TIER_NVME];   /* as in plani_search */
    uint64_t work_left, tries_left; /* in ops and in steps */
    bool is_done;
};

struct plani_scored *plani_search_best(plani_search *self)
{
    return isfinite(self->best.score) ? &self->best : NULL;
}

/* ---- going down ----------------------------------------------------------------------------- */

static int settle_modes(plani_search *self, struct plani_scored *best)
{
    bool gained = true;
    while (gained && plani_search_may_go_on(self)) {
        gained = false;
        TRY(plani_try_modes(self, best, &gained));
    }
    return 0;
}

/* Moves boundaries in steps that get smaller, until none gains. */
static int move_homes(plani_search *self, struct plani_scored *from)
{
    uint32_t most = 0;
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        most = (uint32_t)size_max(self->counts[kind], most);
    for (uint32_t part = 1; part <= 2 * most; part *= 2) {
        bool gained = true, moved;
        while (gained && plani_search_may_go_on(self) &&
               from->score < self->best.score * (1 + near_homes / part)) {
            gained = false;
            TRY(plani_try_kinds(self, from, part, &gained));
            if (gained)
                TRY(plani_try_modes(self, from, &moved));
        }
    }
    return 0;
}

/* Goes down from the point, and takes the result where it is better than the best one. Programs
 * that no trial looked at seldom lack room where the step has it. They are therefore checked at the
 * end of a descent, and at each of its points once a check has failed. */
static int descend(plani_search *self, struct plani_scored *from, bool *gained)
{
    const struct plani_point begin = from->point;
    bool moved;
    TRY(plani_try_modes(self, from, &moved));
    TRY(move_homes(self, from));
    TRY(settle_modes(self, from));
    if (from->score >= self->best.score)
        return 0;
    plani_point_apply(self, &from->point);
    int rc = self->is_closed || self->checks_all ? 0 : plani_search_check(self, &from->point);
    if (rc == ERR_NO_FIT) {
        self->checks_all = true;
        *from = (struct plani_scored){begin, INFINITY};
        TRY(plani_search_try(self, &begin, from, &moved));
        return isfinite(from->score) ? descend(self, from, gained) : 0;
    }
    TRY(rc);
    self->best = *from;
    *gained = true;
    return 0;
}

/* ---- words ---------------------------------------------------------------------------------- */

/* Bytes of open homes on the tier. */
static double bytes_on(const plani_search *self, const struct plani_point *point, int tier)
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

/* Puts the kind on the tier (TIER_COUNT: recomputed), as much of it as has room once other kinds,
 * `giver` first, have given way. False: nothing moved. */
static bool set_kind(const plani_search *self, struct plani_point *point, int kind, int tier,
                     int giver)
{
    const struct plani_point before = *point;
    if (!plani_has_homes(self, point, kind) || (tier == TIER_NVME && !self->asked->has_drives))
        return false;
    for (int t = 0; t < TIER_COUNT; t++)
        point->until[kind][t] = t < tier ? 0 : self->counts[kind];
    if (tier < TIER_NVME) {
        double most = fmax(bytes_on(self, &before, tier), self->room_bytes[tier]);
        double excess = bytes_on(self, point, tier) - most;
        for (int i = 0; i < STATE_KIND_COUNT; i++)
            if ((giver + i) % STATE_KIND_COUNT != kind)
                give_way(self, point, (giver + i) % STATE_KIND_COUNT, tier, &excess);
        give_way(self, point, kind, tier, &excess);
        if (excess > 0)
            return false;
    }
    return memcmp(&before, point, sizeof before) != 0;
}

/* Goes down from the point, first with the coordinate as it is, then with all open: others may give
 * what it takes. Where the point does not fit, other kinds than the one that is set go far away. */
static int try_word(plani_search *self, struct plani_point point, int frozen, bool *gained)
{
    struct plani_scored next = {.score = INFINITY};
    int kind = frozen - PLANI_MOVES;
    bool found;
    self->frozen = frozen;
    TRY(plani_search_try(self, &point, &next, &found));
    TRY(plani_try_relieved(self, point, &next, &found));
    if (!self->last_fits && kind >= 0) {
        const struct plani_point word = point;
        plani_point_far(self, &point);
        memcpy(point.until[kind], word.until[kind], sizeof word.until[kind]);
        TRY(plani_search_try(self, &point, &next, &found));
        TRY(plani_try_relieved(self, point, &next, &found));
    }
    if (isfinite(next.score))
        TRY(descend(self, &next, gained));
    self->frozen = PLANI_NONE_FROZEN;
    if (next.score < near_word * self->best.score)
        TRY(descend(self, &next, gained));
    return 0;
}

static int try_kind_words(plani_search *self, int kind, bool *gained)
{
    int end = kind == STATE_INNER_ACTIVATIONS ? TIER_COUNT + 1 : TIER_COUNT;
    for (int tier = 0; tier < end; tier++)
        for (int giver = 0; giver < (tier < TIER_NVME ? STATE_KIND_COUNT : 1); giver++) {
            struct plani_point point = self->best.point;
            if (giver != kind && plani_search_may_go_on(self) &&
                set_kind(self, &point, kind, tier, giver))
                TRY(try_word(self, point, PLANI_MOVES + kind, gained));
        }
    return 0;
}

static int improve_best(plani_search *self)
{
    bool gained = true;
    while (gained && plani_search_may_go_on(self)) {
        gained = false;
        for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
            TRY(try_kind_words(self, kind, &gained));
        for (int move = 0; move < PLANI_MOVES && plani_search_may_go_on(self); move++) {
            struct plani_point point = self->best.point;
            plani_point_apply(self, &point);
            if (plani_move_mode(self, &point, move))
                TRY(try_word(self, point, plani_coordinate_of(move), &gained));
        }
    }
    return 0;
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
            TRY(descend(self, &self->starts[i], &gained));
    }
    self->is_reversed = false;
    return 0;
}

/* True if the best step takes no longer than computing that no point can spare. */
static bool is_at_bound(plani_search *self)
{
    struct plani_figures step;
    const struct plani_point *point = &self->best.point;
    plani_point_apply(self, point);
    int rc = plani_try_step(&self->job, point, 0, &step, self->work);
    return rc == 0 && (double)step.ns <= near_bound * (double)step.lane_ns[LANE_COMPUTE] &&
           point->until[STATE_INNER_ACTIVATIONS][TIER_NVME] ==
               self->counts[STATE_INNER_ACTIVATIONS];
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
        TRY(descend(self, &other, &moved));
    TRY(improve_best(self));
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
            .tries_left = self->is_closed ? PLANI_TRIES_CLOSED : PLANI_TRIES_MOST,
        };
    return orders * count;
}

/* The way with the best score below the limit; NULL: there is none. */
static struct way *nearest_way(struct way *ways, uint32_t count, double limit)
{
    struct way *nearest = NULL;
    for (uint32_t i = 0; i < count; i++)
        if (!ways[i].is_done && ways[i].best.score < limit) {
            nearest = &ways[i];
            limit = ways[i].best.score;
        }
    return nearest;
}

/* ---- selective placements ------------------------------------------------------------------- */

/* True if fewer bytes of some open unit may be kept than the best point keeps, or would keep. */
static bool may_be_selective(const plani_search *self)
{
    const uint32_t *until = self->best.point.until[STATE_INNER_ACTIVATIONS];
    uint32_t count = self->counts[STATE_INNER_ACTIVATIONS];
    if (self->is_closed || until[TIER_DEVICE] == count)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t unit = self->units[STATE_INNER_ACTIVATIONS][i];
        if (self->selective_bytes[unit] < self->bytes[STATE_INNER_ACTIVATIONS][unit])
            return true;
    }
    return false;
}

/* Keeps as many units selectively, on `last` and nearer tiers, as have room beside the other kinds;
 * and as many of these whole as the device then has room for. */
static void fill_selective(const plani_search *self, struct plani_point *point, int last)
{
    enum { INNER = STATE_INNER_ACTIVATIONS };
    const struct plani_point before = *point;
    uint32_t *until = point->until[INNER], count = self->counts[INNER], end = 0;
    double on_device = 0;
    memset(until, 0, sizeof point->until[INNER]);
    point->whole = 0;
    for (int tier = 0; tier < TIER_COUNT; tier++) {
        double left = INFINITY;
        if (tier < TIER_NVME)
            left = fmax(bytes_on(self, &before, tier), self->room_bytes[tier]) -
                   bytes_on(self, point, tier);
        while (tier <= last && end < count &&
               (double)plani_open_bytes(self, point, INNER, end) <= left)
            left -= (double)plani_open_bytes(self, point, INNER, end++);
        for (int t = tier; t < TIER_COUNT; t++)
            until[t] = end;
        on_device = tier == TIER_DEVICE ? left : on_device;
    }
    while (point->whole < until[TIER_DEVICE]) {
        uint32_t unit = self->units[INNER][point->whole];
        on_device -= (double)self->bytes[INNER][unit] - (double)self->selective_bytes[unit];
        if (on_device < 0)
            return;
        point->whole++;
    }
}

/* Goes on from the best point, which is of the way, with units that are kept selectively. */
static int improve_selective(plani_search *self, struct way *way)
{
    struct plani_scored next = {.score = INFINITY};
    bool gained = false;
    way->work_left = PLANI_SELECTIVE_WORK + PLANI_SELECTIVE_STEPS * 2 * self->work->last_ops;
    way->tries_left = PLANI_TRIES_MOST / 4;
    begin_way(self, way);
    self->is_selective = true;
    for (int tier = TIER_DEVICE; tier < (self->asked->has_drives ? TIER_COUNT : TIER_NVME);
         tier++) {
        struct plani_point point = self->best.point;
        fill_selective(self, &point, tier);
        TRY(plani_search_try(self, &point, &next, &gained));
        TRY(plani_try_relieved(self, point, &next, &gained));
    }
    gained = false;
    if (next.score < near_selective * self->best.score)
        TRY(descend(self, &next, &gained));
    for (int tier = TIER_DEVICE; tier < TIER_COUNT && gained; tier++)
        for (int giver = 0; giver < (tier < TIER_NVME ? STATE_INNER_ACTIVATIONS : 1) &&
                            plani_search_may_go_on(self);
             giver++) {
            struct plani_point point = self->best.point;
            point.whole = 0;
            if (set_kind(self, &point, STATE_INNER_ACTIVATIONS, tier, giver))
                TRY(try_word(self, point, PLANI_MOVES + STATE_INNER_ACTIVATIONS, &gained));
        }
    self->is_selective = false;
    end_way(self, way);
    return 0;
}

/* The same for each way that is so near to the best of all that it may become the best. */
static int improve_near_ways(plani_search *self, struct way *ways, uint32_t count,
                             struct plani_scored *all)
{
    const double limit = near_way_selective * all->score;
    for (uint32_t i = 0; i < count; i++) {
        self->best = ways[i].best;
        if (!(ways[i].best.score < limit) || !may_be_selective(self) || is_at_bound(self))
            continue;
        TRY(improve_selective(self, &ways[i]));
        if (ways[i].best.score < all->score)
            *all = ways[i].best;
    }
    return 0;
}

int plani_search_ways(plani_search *self)
{
    struct way ways[2 * PLANI_UPDATES];
    struct plani_scored all = {.score = INFINITY};
    uint32_t count = list_ways(self, ways);
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
        way = nearest_way(ways, count, INFINITY);
    while (way) {
        TRY(improve_way(self, way, &all));
        way->is_done = true;
        if (way->best.score < all.score)
            all = way->best;
        way = nearest_way(ways, count, near_words * all.score);
    }
    TRY(improve_near_ways(self, ways, count, &all));
    self->best = all;
    self->job.order = self->asked->job->order;
    return 0;
}
