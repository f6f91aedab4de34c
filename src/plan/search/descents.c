/* The search goes down: from a point to a better one, by the moves of search.c, until none gains. A
 * way is an order and an update that may be chosen. Each way is searched by itself, with work of
 * its own:
 *
 *   1  descents from its best starts (starts.c), with half of the work
 *   2  if its best point is near the best of all: descents from that point with one setting changed
 *      by much, which stays frozen at first: all or half of a kind of state on one tier, or another
 *      value of one coordinate. Again from the beginning while a setting has gained. Then the same
 *      with memory that is reserved less far ahead. Then from points some random moves away. The
 *      nearest way comes first, and also has the work that ways which are not near have left; each
 *      next one has what the one before it has left.
 *
 * Up to there inner activations are kept whole or not at all. At the end the search goes on from
 * the best points of the nearest ways with units that are kept selectively, and then with another
 * share of units that keep theirs, spread evenly. Last come trades between the device and the
 * drives, and changed settings, from the best point of all. None of these makes a step longer.
 *
 * A setting that the job gives only takes coordinates away. Where all homes are given, those
 * settings are left that say how programs use them. */
#include <math.h>
#include <string.h>

#include "plan/search/search_internal.h"

/* A step so near to what computing takes is not worth a longer search. */
static const double near_bound = 1.003;
/* A point whose score is above the best one by this part gets no moves by whole ranges. Smaller
 * moves gain less: half as much is allowed for moves by half a range. */
static const double near_homes = 0.5;
enum {
    SETTING_PARTS = 5, /* changes of numbers: a half of their range, a quarter, and so on */
    AHEAD_PARTS = 3,   /* of each arena: by the whole range, a half and a quarter */
    PATIENCE = 128,    /* so many drawn points may gain nothing */
    MOVES_DRAWN = 4,   /* at least, for each of them; most move nothing */
    SHARE_PARTS = 32, /* of the units: the least step by which the share of those that keep moves */
    INNER = STATE_INNER_ACTIVATIONS,
};
/* A point that a frozen setting led to goes down with all open where it is so near to the best. */
static const double near_setting = 1.2;
/* The same for a placement that keeps as much selectively as there is room for. */
static const double near_selective = 1.05;
/* A way whose best point is above the best of all by this factor gets no such placement. */
static const double near_way_selective = 1.02;
/* Units that keep inner activations are spread only where the step is above its bound by this
 * factor. */
static const double near_own_bound = 1.02;
/* A way whose best start takes so many times the best step so far ends there. */
static const double near_way = 3;
/* A way whose best point is above the best of all by this factor ends without changed settings. */
static const double near_way_settings = 1.1;

/* One way to search: an order and an update, as if no other were open. A job that names its update
 * is therefore searched as that way is in a job that leaves it open. */
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

/* ---- going down ----------------------------------------------------------------------------- */

/* Moves by parts of each range that get smaller, from the `first`-th part on, until none gains. */
static int move_all(plani_search *self, struct plani_scored *from, uint32_t first)
{
    uint32_t most = (uint32_t)size_max(PLANI_PARTS, self->job.stage_count);
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        most = (uint32_t)size_max(self->counts[kind], most);
    for (uint32_t part = first; part <= 2 * most; part *= 2) {
        bool gained = true;
        while (gained && plani_search_may_go_on(self) &&
               from->score < self->best.score * (1 + near_homes / part)) {
            gained = false;
            TRY(plani_try_modes(self, from, part, &gained));
            TRY(plani_try_kinds(self, from, part, &gained));
        }
    }
    return 0;
}

/* Goes down from the point by moves of the `part`-th part and less, and takes the result where it
 * is better than the best one. Programs that no trial looked at seldom lack room where the step has
 * it. They are therefore checked at the end of a descent, and at each of its points once a check
 * has failed. */
static int descend(plani_search *self, struct plani_scored *from, uint32_t part, bool *gained)
{
    const struct plani_point begin = from->point;
    bool moved;
    TRY(move_all(self, from, part));
    if (from->score >= self->best.score)
        return 0;
    plani_point_apply(self, &from->point);
    int rc = self->is_closed || self->checks_all ? 0 : plani_search_check(self, &from->point);
    if (rc == ERR_NO_FIT) {
        self->checks_all = true;
        *from = (struct plani_scored){begin, INFINITY};
        TRY(plani_search_try(self, &begin, from, &moved));
        return isfinite(from->score) ? descend(self, from, part, gained) : 0;
    }
    TRY(rc);
    self->best = *from;
    *gained = true;
    return 0;
}

/* ---- settings ------------------------------------------------------------------------------- */

/* Goes down from the point, first with the coordinate as it is, then with all open: others may give
 * what it takes. Where the point does not fit, other kinds than the one that is set go far away. */
static int try_setting(plani_search *self, struct plani_point point, int frozen, uint32_t part,
                       bool *gained)
{
    struct plani_scored next = {.score = INFINITY};
    int kind = frozen - PLANI_COORDINATES;
    bool found;
    self->frozen = frozen;
    TRY(plani_try_relieved(self, point, &next, &found));
    if (!self->last_fits && kind >= 0) {
        const struct plani_point asked = point;
        plani_point_far(self, &point);
        memcpy(point.until[kind], asked.until[kind], sizeof asked.until[kind]);
        TRY(plani_try_relieved(self, point, &next, &found));
    }
    if (isfinite(next.score))
        TRY(descend(self, &next, part, gained));
    self->frozen = PLANI_NONE_FROZEN;
    if (next.score < near_setting * self->best.score)
        TRY(descend(self, &next, part, gained));
    return 0;
}

/* Tries the first units of a kind on one tier: all of them, or the `part`-th part. */
static int try_kind_settings(plani_search *self, int kind, uint32_t part, bool *gained)
{
    uint32_t most = self->counts[kind] / part; /* 0: half of one unit */
    bool may_recompute = kind == INNER && !self->is_selective;
    int end = part > 1 ? TIER_NVME : may_recompute ? TIER_COUNT + 1 : TIER_COUNT;
    for (int tier = 0; tier < end && most > 0; tier++)
        for (int giver = 0; giver < (tier < TIER_NVME ? STATE_KIND_COUNT : 1); giver++) {
            struct plani_point point = self->best.point;
            point.whole = self->is_selective ? 0 : point.whole;
            if (giver != kind && plani_search_may_go_on(self) &&
                plani_point_set_kind(self, &point, kind, tier, most, giver))
                TRY(try_setting(self, point, PLANI_COORDINATES + kind, part, gained));
        }
    return 0;
}

/* Goes down from the best point once more, with moves that reserve memory less far ahead. They come
 * after all others, so that those have more of the work. Without them and try_ahead_settings, job 7
 * of test_plan_best takes 3.8 % longer; jobs 1, 4, 8, 10, 26, 57 and 62 take as long, within
 * 0.1 %. */
static int try_ahead(plani_search *self)
{
    struct plani_scored next = self->best;
    bool gained;
    self->may_shorten = true;
    if (plani_search_best(self))
        TRY(descend(self, &next, 1, &gained));
    self->may_shorten = false;
    return 0;
}

/* A number below `count`, the same in every run. */
static uint32_t draw(plani_search *self, uint32_t count)
{
    self->drawn = self->drawn * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((self->drawn >> 33) % count);
}

/* Draws a move, and makes it where it is one. *finest: the smallest step so far, as a part. */
static void draw_move(plani_search *self, struct plani_point *point, uint32_t *finest)
{
    const struct plani_point before = *point;
    uint32_t part = UINT32_C(2) << draw(self, 4);
    int what = (int)draw(self, PLANI_COORDINATES + STATE_KIND_COUNT * TIER_NVME);
    int kind = (what - PLANI_COORDINATES) / TIER_NVME,
        tier = (what - PLANI_COORDINATES) % TIER_NVME;
    bool up = draw(self, 2) > 0, moves;
    plani_point_apply(self, point);
    if (what < PLANI_COORDINATES) {
        moves = plani_move_mode(self, point, what, part, up);
    } else {
        int64_t step = (int64_t)size_max(self->counts[kind] / part, 1);
        moves = plani_point_shift(self, point, kind, tier, up ? step : -step);
    }
    if (moves && plani_point_is_legal(self, point))
        *finest = (uint32_t)size_max(*finest, part);
    else
        *point = before;
}

/* Goes down from points that differ from the best one by some drawn moves: where no single setting
 * gains, some together may. */
static int try_drawn(plani_search *self)
{
    for (int left = PATIENCE; left > 0 && plani_search_may_go_on(self); left--) {
        struct plani_scored next = {.score = INFINITY};
        struct plani_point point = self->best.point;
        uint32_t finest = 1;
        bool found, gained = false;
        for (uint32_t count = MOVES_DRAWN + draw(self, MOVES_DRAWN); count > 0; count--)
            draw_move(self, &point, &finest);
        TRY(plani_try_relieved(self, point, &next, &found));
        if (isfinite(next.score))
            TRY(descend(self, &next, (finest + 1) / 2, &gained));
        if (gained) {
            TRY(try_ahead(self));
            left = PATIENCE;
        }
    }
    return 0;
}

static int improve_best(plani_search *self)
{
    bool gained = true;
    while (gained && plani_search_may_go_on(self)) {
        gained = false;
        for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
            TRY(try_kind_settings(self, kind, 1, &gained));
        for (int i = 0; i < SETTING_PARTS * 2 * PLANI_COORDINATES && plani_search_may_go_on(self);
             i++) {
            uint32_t part = UINT32_C(2) << i / (2 * PLANI_COORDINATES);
            int coordinate = i % (2 * PLANI_COORDINATES) / 2;
            struct plani_point point = self->best.point;
            plani_point_apply(self, &point);
            if (plani_move_mode(self, &point, coordinate, part, i % 2 == 0))
                TRY(try_setting(self, point, coordinate, part, &gained));
        }
        for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
            TRY(try_kind_settings(self, kind, 2, &gained));
    }
    return 0;
}

/* Descents with another value, frozen at first, of how far ahead memory is reserved. With more
 * memory the shortest steps may have coarser tiles and reserve less far ahead, and neither gains
 * alone. */
static int try_ahead_settings(plani_search *self)
{
    bool gained = false;
    self->may_shorten = true;
    for (int i = 0; i < AHEAD_PARTS * TIER_NVME && plani_search_may_go_on(self); i++) {
        struct plani_point point = self->best.point;
        int coordinate = PLANI_AHEAD_DEVICE + i % TIER_NVME;
        plani_point_apply(self, &point);
        if (plani_move_mode(self, &point, coordinate, UINT32_C(1) << i / TIER_NVME, true))
            TRY(try_setting(self, point, coordinate, 2, &gained));
    }
    self->may_shorten = false;
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
            TRY(descend(self, &self->starts[i], 1, &gained));
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
        TRY(descend(self, &other, 1, &moved));
    TRY(improve_best(self));
    TRY(try_ahead(self));
    TRY(try_ahead_settings(self));
    TRY(try_drawn(self));
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

/* ---- selective placements ------------------------------------------------------------------- */

/* True if fewer bytes of some open unit may be kept than the best point keeps, or would keep. */
static bool may_be_selective(const plani_search *self)
{
    const uint32_t *until = self->best.point.until[INNER];
    uint32_t count = self->counts[INNER];
    if (until[TIER_DEVICE] == count)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t unit = self->units[INNER][i];
        if (self->selective_bytes[unit] < self->bytes[INNER][unit])
            return true;
    }
    return false;
}

/* Keeps as many units selectively, on `last` and nearer tiers, as have room beside the other kinds;
 * and as many of these whole as the device then has room for. */
static void fill_selective(const plani_search *self, struct plani_point *point, int last)
{
    const struct plani_point before = *point;
    uint32_t *until = point->until[INNER], count = self->counts[INNER], end = 0;
    double on_device = 0;
    memset(until, 0, sizeof point->until[INNER]);
    point->whole = 0;
    for (int tier = 0; tier < TIER_COUNT; tier++) {
        double left = INFINITY;
        if (tier < TIER_NVME)
            left = fmax(plani_bytes_on(self, &before, tier), self->room_bytes[tier]) -
                   plani_bytes_on(self, point, tier);
        while (tier <= last && end < count &&
               (double)plani_open_bytes(self, point, INNER, end) <= left)
            left -= (double)plani_open_bytes(self, point, INNER, end++);
        for (int t = tier; t < TIER_COUNT; t++)
            until[t] = end;
        on_device = tier == TIER_DEVICE ? left : on_device;
    }
    while (point->whole < until[TIER_DEVICE]) {
        uint32_t unit = plani_unit_at(self, point, INNER, point->whole);
        on_device -= (double)self->bytes[INNER][unit] - (double)self->selective_bytes[unit];
        if (on_device < 0)
            return;
        point->whole++;
    }
}

/* Goes on with the way, with `least` work and that of so many steps, or of fewer long ones. */
static void begin_last(plani_search *self, struct way *way, uint64_t least, uint64_t steps)
{
    way->work_left = least + size_min(steps * 2 * self->work->step_ops, PLANI_LAST_WORK_MOST);
    way->tries_left = PLANI_TRIES_MOST / 4;
    begin_way(self, way);
}

/* Goes on from the best point, which is of the way, with units that are kept selectively. */
static int improve_selective(plani_search *self, struct way *way)
{
    struct plani_scored next = {.score = INFINITY};
    bool gained = false;
    begin_last(self, way, PLANI_SELECTIVE_WORK, PLANI_SELECTIVE_STEPS);
    self->is_selective = true;
    for (int tier = TIER_DEVICE; tier < (self->asked->has_drives ? TIER_COUNT : TIER_NVME);
         tier++) {
        struct plani_point point = self->best.point;
        fill_selective(self, &point, tier);
        TRY(plani_try_relieved(self, point, &next, &gained));
    }
    if (next.score < near_selective * self->best.score)
        TRY(descend(self, &next, 1, &gained));
    self->is_selective = false;
    end_way(self, way);
    return 0;
}

/* ---- shares that are spread evenly ---------------------------------------------------------- */

/* Tries the point; while it does not fit, with fewer inner activations on the device: what is
 * recomputed needs room there as well. */
static int try_with_less(plani_search *self, struct plani_point point, struct plani_scored *best)
{
    bool gained = false;
    TRY(plani_search_try(self, &point, best, &gained));
    while (!self->last_fits && plani_search_may_go_on(self) &&
           plani_point_shift(self, &point, INNER, TIER_DEVICE,
                             -(int64_t)((point.until[INNER][TIER_DEVICE] + 3) / 4)))
        TRY(plani_search_try(self, &point, best, &gained));
    return 0;
}

/* Lets more or fewer units keep their inner activations, spread evenly over all of them: the others
 * recompute while drives and links work for those that keep. A search along one line: by a quarter
 * of the units, and by steps that get smaller. llama-70b with adapters in nf4 on desktop-24g, 16 x
 * 1024 tokens: 38.46 -> 36.22 s a step, with 20 of 80 blocks that recompute. */
static int try_shares(plani_search *self, struct way *way)
{
    struct plani_scored next = {.score = INFINITY};
    int tier = self->asked->has_drives ? TIER_NVME : TIER_HOST;
    bool gained = false;
    begin_last(self, way, 0, PLANI_SHARE_STEPS);
    const bool checked_all = self->checks_all;
    self->is_selective = true;
    self->checks_all = false; /* of the points on the line only the last one is checked */
    next.point = self->best.point;
    next.point.spread |= UINT32_C(1) << INNER;
    const struct plani_point turned = next.point;
    TRY(plani_search_try(self, &turned, &next, &gained));
    for (uint32_t part = 4; part <= SHARE_PARTS && part <= self->counts[INNER]; part *= 2) {
        const struct plani_point from = next.point;
        int64_t step = self->counts[INNER] / part;
        for (int sign = -1; sign <= 1; sign += 2) {
            struct plani_point point = from;
            if (plani_point_shift(self, &point, INNER, tier, sign * step))
                TRY(try_with_less(self, point, &next));
        }
    }
    if (next.score < self->best.score)
        TRY(descend(self, &next, SHARE_PARTS, &gained));
    self->checks_all |= checked_all;
    self->is_selective = false;
    end_way(self, way);
    return 0;
}

/* ---- the ways near the best one ------------------------------------------------------------- */

/* True if the best step takes hardly more than the bound of its own ops: in another order they take
 * about as long. */
static bool is_near_own_bound(plani_search *self)
{
    struct plani_figures step;
    return try_best(self, &step) == 0 && (double)step.ns <= near_own_bound * (double)step.bound_ns;
}

/* Both for each way that is so near to the best of all that it may become the best. */
static int improve_near_ways(plani_search *self, struct way *ways, uint32_t count,
                             struct plani_scored *all)
{
    const double limit = near_way_selective * all->score;
    for (uint32_t i = 0; i < count; i++) {
        self->best = ways[i].best;
        if (!(ways[i].best.score < limit) || self->is_closed || is_at_bound(self))
            continue;
        if (may_be_selective(self))
            TRY(improve_selective(self, &ways[i]));
        if (self->counts[INNER] > 0 && !is_near_own_bound(self))
            TRY(try_shares(self, &ways[i]));
        if (ways[i].best.score < all->score)
            *all = ways[i].best;
    }
    return 0;
}

/* Goes on from the best point, which is of the way, with trades with the drives, and then with
 * settings that may keep units selectively. It comes last, so it makes no step longer. Without the
 * settings, drawn jobs 9, 20 and 44 of test_plan_best take 4.8, 1.5 and 0.7 % longer. */
static int improve_last(plani_search *self, struct way *way)
{
    struct plani_scored next = way->best;
    bool gained;
    begin_last(self, way, PLANI_FINAL_WORK, PLANI_FINAL_STEPS);
    if (!is_at_bound(self)) {
        self->trades_far = true;
        TRY(descend(self, &next, 1, &gained));
        self->is_selective = true;
        TRY(improve_best(self));
        self->is_selective = self->trades_far = false;
    }
    end_way(self, way);
    return 0;
}

int plani_search_ways(plani_search *self)
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
