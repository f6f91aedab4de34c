/* The search goes down: from a point to a better one, by moves (moves.c), until none gains.
 *
 * Where no move gains, it starts again from a point that differs from the best one by more:
 *
 *   settings   all or half of a kind of state on one tier, or another value of one coordinate. It
 *              stays frozen at first, so that other coordinates give what it takes. Again from
 *              the beginning while a setting has gained.
 *   ahead      memory is reserved less far ahead
 *   drawn      some random moves together */
#include <math.h>
#include <string.h>

#include "plan/search/search_internal.h"

/* A point whose score is above the best one by this part gets no moves by whole ranges. Smaller
 * moves gain less: half as much is allowed for moves by half a range. */
static const double near_homes = 0.5;
/* A point that a frozen setting led to goes down with all open where it is so near to the best. */
static const double near_setting = 1.2;
enum {
    SETTING_PARTS = 5, /* changes of numbers: a half of their range, a quarter, and so on */
    AHEAD_PARTS = 3,   /* of each arena: by the whole range, a half and a quarter */
    PATIENCE = 128,    /* so many drawn points may gain nothing */
    MOVES_DRAWN = 4,   /* at least, for each of them; most move nothing */
};

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

/* Programs that no trial looked at seldom lack room where the step has it. They are therefore
 * checked at the end of a descent, and at each of its points once a check has failed. */
int plani_descend(plani_search *self, struct plani_scored *from, uint32_t part, bool *gained)
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
        TRY(plani_search_try_again(self, &begin, from, &moved));
        return isfinite(from->score) ? plani_descend(self, from, part, gained) : 0;
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
        TRY(plani_descend(self, &next, part, gained));
    self->frozen = PLANI_NONE_FROZEN;
    if (next.score < near_setting * self->best.score)
        TRY(plani_descend(self, &next, part, gained));
    return 0;
}

/* Tries the first units of a kind on one tier: all of them, or the `part`-th part. Where units may
 * keep their inner activations selectively, each setting is tried with all units selective, and
 * with those that are selective in the best point. */
static int try_kind_settings(plani_search *self, int kind, uint32_t part, bool *gained)
{
    uint32_t most = self->counts[kind] / part; /* 0: half of one unit */
    bool may_recompute = kind == STATE_INNER_ACTIVATIONS && !self->is_selective;
    int end = part > 1 ? TIER_NVME : may_recompute ? TIER_COUNT + 1 : TIER_COUNT;
    for (int tier = 0; tier < end && most > 0; tier++)
        for (int giver = 0; giver < (tier < TIER_NVME ? STATE_KIND_COUNT : 1); giver++)
            for (int selective = self->is_selective; selective >= 0 && giver != kind; selective--) {
                struct plani_point point = self->best.point;
                point.whole = selective ? 0 : point.whole;
                if (plani_search_may_go_on(self) &&
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
        TRY(plani_descend(self, &next, 1, &gained));
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
            TRY(plani_descend(self, &next, (finest + 1) / 2, &gained));
        if (gained) {
            TRY(try_ahead(self));
            left = PATIENCE;
        }
    }
    return 0;
}

int plani_try_settings(plani_search *self)
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

int plani_improve(plani_search *self)
{
    TRY(plani_try_settings(self));
    TRY(try_ahead(self));
    TRY(try_ahead_settings(self));
    return try_drawn(self);
}
