/* Inner activations between "kept" and "recomputed": units that keep a part of theirs (selective
 * placements), and a share of units that keep theirs, spread evenly over all of them. */
#include <math.h>
#include <string.h>

#include "plan/search/search_internal.h"

enum {
    SHARE_PARTS = 32, /* of the units: the least step by which the share of those that keep moves */
    INNER = STATE_INNER_ACTIVATIONS,
};
/* A selective placement is followed where its score is so near to the best. */
static const double near_selective = 1.05;

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

int plani_try_selective(plani_search *self)
{
    struct plani_scored next = {.score = INFINITY};
    bool gained = false;
    if (!may_be_selective(self))
        return 0;
    self->is_selective = true;
    for (int tier = TIER_DEVICE; tier < (self->asked->has_drives ? TIER_COUNT : TIER_NVME);
         tier++) {
        struct plani_point point = self->best.point;
        fill_selective(self, &point, tier);
        TRY(plani_try_relieved(self, point, &next, &gained));
    }
    if (next.score < near_selective * self->best.score)
        TRY(plani_descend(self, &next, 1, &gained));
    self->is_selective = false;
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

/* A search along one line: by a quarter of the units, and by steps that get smaller. llama-70b with
 * adapters in nf4 on desktop-24g, 16 x 1024 tokens: 38.46 -> 36.22 s a step, with 20 of 80 blocks
 * that recompute. */
int plani_try_shares(plani_search *self)
{
    struct plani_scored next = {.score = INFINITY};
    int tier = self->asked->has_drives ? TIER_NVME : TIER_HOST;
    bool gained = false;
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
        TRY(plani_descend(self, &next, SHARE_PARTS, &gained));
    self->checks_all |= checked_all;
    self->is_selective = false;
    return 0;
}
