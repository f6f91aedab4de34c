/* The rule of acceptance, one trial under it, and the moves of one or two coordinates by which the
 * search goes down from a point (descents.c). */
#include <math.h>
#include <string.h>

#include "plan/search/search_internal.h"

/* ---- the rule of acceptance ----------------------------------------------------------------- */

/* The point with the lowest score wins: its time, and a price for what the simulator does not see.
 * A price is the share of a step that it may cost; all together stay below 1 %. */
static const struct {
    double kept;    /* all inner activations are kept: the least memory under equal times */
    double far;     /* all other states rest on drives: memory that is there spares them */
    double copies;  /* copies fill the host: memory that reading ahead may use */
    double carried; /* carried tiles fill it at the end of a step, which is less of the time */
    double halved;  /* a tile size is half of the largest one: twice as many ops */
    double held;    /* all stages are held: device memory */
    double again;   /* of units in parts none are held: the backward gathers or reads them again */
    double crowded; /* copies and carried tiles leave room for no tile under way. In a run tiles are
                     * also compared and summed between ops. 151M params through 170 MiB: tiles of 1
                     * Mi in place of 4 Mi elements made a step 9 % shorter. */
    double older;   /* a commit is one step older: a crash loses one step more */
    double ahead;   /* memory is reserved less far ahead than there is room */
    double batch;   /* batch-major: every gradient is added to once a micro-batch */
} price = {0.0003, 0.0003, 0.0005, 0.0001, 0.0002, 0.0003, 0.0006, 0.004, 0.0015, 0.0002, 0.001};

enum { TILES_UNDER_WAY = 6 }; /* fewer are crowded */

/* The price of what is held. Whole stages are held where that makes a step shorter. Units in parts
 * are held where they have room: a network that does not bind is spared too. `kept`: the share of
 * stages that recompute nothing. */
static double held_factor(const plan_job *job, const struct plani_point *point, double kept)
{
    double most = plani_held_most(job), share = point->held / fmax(most, 1);
    if (!plani_has_cut_stage(job))
        return price.held * share;
    return most > 0 ? price.again * (1 - kept) * (1 - share) : 0;
}

/* Returns the score of the point, which is applied, over the time of its step. */
static double factor_of(const plani_search *self, const struct plani_point *point)
{
    const plan_job *job = &self->job;
    double count = self->counts[STATE_INNER_ACTIVATIONS], far = 0, all = 1;
    double kept = point->until[STATE_INNER_ACTIVATIONS][TIER_NVME];
    kept = fmin(kept, (kept + point->whole) / 2); /* half of a unit where it is selective */
    uint64_t tiles[PLANI_TILES_MAX];
    for (int kind = 0; kind < STATE_INNER_ACTIVATIONS; kind++)
        for (uint32_t i = 0; i < self->counts[kind]; i++) {
            double bytes = (double)self->bytes[kind][plani_unit_at(self, point, kind, i)];
            far += i >= point->until[kind][TIER_HOST] ? bytes : 0;
            all += bytes;
        }
    uint32_t tile_count = plani_list_tiles(job, tiles), larger = 0;
    while (larger < tile_count && tiles[larger] > point->tile_elems)
        larger++;
    double factor = 1 + price.kept * kept / fmax(count, 1) + price.far * far / all +
                    price.halved * fmin(larger, 8) +
                    held_factor(job, point, kept / fmax(count, 1)) +
                    price.older * (point->commit != plani_usual_commit(job)) +
                    price.ahead * (point->ahead[0] + point->ahead[1]) / PLANI_AHEAD_MOST +
                    price.batch * (point->order == ORDER_BATCH_MAJOR) +
                    price.carried * point->carried_parts / PLANI_PARTS;
    if (point->copy_parts == 0)
        return factor;
    double copies = (double)point->copy_parts / PLANI_PARTS;
    double tile_bytes = (double)tile_state_bytes(job->state_streams, point->tile_elems) +
                        (double)point->tile_elems * (job->param_bytes + job->grad_bytes);
    double rest = fmax(1 - copies - (double)point->carried_parts / PLANI_PARTS, 0);
    double under_way = rest * (double)plani_host_room(job) / tile_bytes;
    return factor + price.copies * copies +
           price.crowded * fmax(1 - under_way / TILES_UNDER_WAY, 0);
}

/* ---- trials --------------------------------------------------------------------------------- */

uint64_t plani_search_tries(const plani_search *self)
{
    return self->work->try_count - self->work->repeat_count;
}

bool plani_search_may_go_on(const plani_search *self)
{
    return self->work->ops < self->work_end && plani_search_tries(self) < self->tries_end;
}

int plani_search_check(plani_search *self, const struct plani_point *point)
{
    struct plani_point plain = plani_plain_point(&self->job, point->tile_elems);
    struct plani_candidate needs = {.tile_elems = point->tile_elems};
    plain.held = PLANI_CHECK_HELD;
    struct plani_known made = {.key = plani_trial_key(&self->job, &plain)};
    const struct plani_known *known = plani_recall(self->work, made.key);
    if (known)
        return known->rc;
    made.rc = plani_check_needs(&self->job, &needs, self->work);
    if (made.rc == 0 || made.rc == ERR_NO_FIT)
        TRY(plani_remember(self->work, &made));
    return made.rc;
}

struct plani_crowd plani_crowd_of(const plani_search *self, const struct plani_point *point)
{
    struct plani_point plain = plani_plain_point(&self->job, point->tile_elems);
    plain.commit = point->commit;
    return (struct plani_crowd){plani_trial_key(&self->job, &plain), point->copy_parts,
                                point->carried_parts};
}

/* True where some program had no room with at most as many copies and as many carried tiles. */
static bool is_crowded(const plani_search *self, const struct plani_point *point)
{
    bool takes = point->copy_parts > 0 || point->carried_parts > 0;
    if (!takes || self->failed_count == 0 || self->failed_count == PLANI_FAILED_MAX)
        return takes && self->failed_count > 0;
    const struct plani_crowd crowd = plani_crowd_of(self, point);
    for (uint32_t i = 0; i < self->failed_count; i++) {
        const struct plani_crowd *failed = &self->failed[i];
        if (failed->key == crowd.key && failed->copied <= crowd.copied &&
            failed->carried <= crowd.carried)
            return true;
    }
    return false;
}

int plani_search_try(plani_search *self, const struct plani_point *point, struct plani_scored *best,
                     bool *gained)
{
    self->last_fits = false;
    if (!plani_point_is_legal(self, point) || !plani_search_may_go_on(self))
        return 0;
    return plani_search_try_again(self, point, best, gained);
}

int plani_search_try_again(plani_search *self, const struct plani_point *point,
                           struct plani_scored *best, bool *gained)
{
    double ns;
    self->last_fits = false;
    plani_note_work(&self->job, "trying plans", 0);
    plani_point_apply(self, point);
    if (is_crowded(self, point))
        return 0;
    double factor = factor_of(self, point);
    double limit = isfinite(best->score) ? best->score / factor : 0;
    int rc = plani_try(&self->job, point, limit, &ns, self->work);
    if (rc == ERR_NO_FIT)
        return 0;
    TRY(rc);
    if (self->checks_all && ns * factor < best->score)
        rc = plani_search_check(self, point);
    if (rc == ERR_NO_FIT)
        return 0;
    TRY(rc);
    self->last_fits = true;
    if (ns * factor < best->score) {
        *best = (struct plani_scored){*point, ns * factor};
        *gained = true;
    }
    return 0;
}

/* ---- moves ---------------------------------------------------------------------------------- */

/* A number of the point, which is applied, and the most that it may be. */
static uint32_t *number_of(const plani_search *self, struct plani_point *point, int coordinate,
                           uint32_t *most)
{
    const plan_job *job = &self->job;
    bool updates_next = point->update == UPDATE_IN_NEXT_FORWARD && !job->only_eval;
    switch (coordinate) {
    case PLANI_COPIES:
        *most = updates_next ? PLANI_PARTS - 1 : 0;
        return &point->copy_parts;
    case PLANI_CARRIED:
        *most = plani_may_carry(job) ? PLANI_PARTS - 1 : 0;
        return &point->carried_parts;
    case PLANI_HELD:
        *most = plani_held_most(job);
        return &point->held;
    case PLANI_AHEAD_DEVICE:
    case PLANI_AHEAD_HOST:
        *most = self->is_closed || self->may_shorten ? PLANI_AHEAD_MOST : 0;
        return &point->ahead[coordinate - PLANI_AHEAD_DEVICE];
    case PLANI_PARKED:
        *most = self->is_closed || plani_parked_bytes(job) == 0 ? 0 : job->micro_batch_count;
        return &point->parked_near;
    default:
        *most = self->is_selective ? point->until[STATE_INNER_ACTIVATIONS][TIER_NVME] : 0;
        return &point->whole;
    }
}

/* By the `part`-th part of its range. */
static bool move_number(const plani_search *self, struct plani_point *point, int coordinate,
                        uint32_t part, bool up)
{
    uint32_t most, *number = number_of(self, point, coordinate, &most);
    uint32_t step = (uint32_t)size_max(most / part, 1), before = *number;
    if (part > 2 * most)
        return false;
    *number = up ? before + step : before - (uint32_t)size_min(before, step);
    *number = (uint32_t)size_min(*number, most);
    return *number != before;
}

static bool move_tile(const plani_search *self, struct plani_point *point, bool finer)
{
    uint64_t tiles[PLANI_TILES_MAX], least = plani_searched_tile(&self->job);
    uint32_t count = plani_list_tiles(&self->job, tiles), at = 0;
    while (at + 1 < count && tiles[at] > point->tile_elems)
        at++;
    if (finer ? at + 1 == count || point->tile_elems <= least : at == 0)
        return false;
    point->tile_elems = tiles[finer ? at + 1 : at - 1];
    return !self->fails[finer ? at + 1 : at - 1];
}

/* State homed in memory may be so much that the drive is at its saves when the step's other work
 * ends, and the sync comes on top. Where the saves come first the step hides that too, at the price
 * of updates that wait for them. */
static bool move_commit(const plani_search *self, struct plani_point *point)
{
    bool is_first = point->commit == PLAN_COMMIT_FIRST;
    point->commit = is_first ? PLAN_COMMIT_BEHIND : PLAN_COMMIT_FIRST;
    return plani_usual_commit(&self->job) == PLAN_COMMIT_BEHIND &&
           plani_has_state_in_memory(&self->job);
}

/* Counts the units of the kind in its other order, where they do not all rest alike. */
static bool move_spread(const plani_search *self, struct plani_point *point, int kind)
{
    bool moves = kind == STATE_INNER_ACTIVATIONS && point->whole > 0 &&
                 point->whole < point->until[kind][TIER_NVME];
    for (int t = 0; t < TIER_COUNT; t++)
        moves = moves || (point->until[kind][t] > 0 && point->until[kind][t] < self->counts[kind]);
    point->spread ^= UINT32_C(1) << kind;
    return moves && plani_has_homes(self, point, kind);
}

bool plani_move_mode(const plani_search *self, struct plani_point *point, int coordinate,
                     uint32_t part, bool up)
{
    if (coordinate >= PLANI_SPREAD)
        return up && move_spread(self, point, coordinate - PLANI_SPREAD);
    switch (coordinate) {
    case PLANI_TILE:
        return move_tile(self, point, up);
    case PLANI_COMMIT:
        return up && move_commit(self, point);
    case PLANI_PARKED_ON:
        point->parked_on_host ^= true;
        return up && !self->is_closed && plani_parked_bytes(&self->job) > 0;
    case PLANI_FETCH:
        point->fetches_hit = !point->fetches_hit;
        return up && self->job.experts == FETCH_AUTO && plani_may_miss(&self->job);
    default:
        return move_number(self, point, coordinate, part, up);
    }
}

int plani_try_modes(plani_search *self, struct plani_scored *best, uint32_t part, bool *gained)
{
    for (int i = 0; i < 2 * PLANI_COORDINATES && plani_search_may_go_on(self); i++) {
        int move = self->is_reversed ? 2 * PLANI_COORDINATES - 1 - i : i;
        bool more = move / 2 != self->frozen;
        for (uint32_t by = part; more; by = by > 1 ? by / 2 : 1) {
            struct plani_point next = best->point;
            more = false;
            plani_point_apply(self, &next);
            if (plani_move_mode(self, &next, move / 2, by, move % 2 == 0))
                TRY(plani_search_try(self, &next, best, &more));
            *gained = *gained || more;
        }
    }
    return 0;
}

bool plani_has_homes(const plani_search *self, const struct plani_point *point, int kind)
{
    bool rests = point->update != UPDATE_IN_BACKWARD ||
                 (point->order == ORDER_BATCH_MAJOR && self->job.micro_batch_count > 1);
    return self->counts[kind] > 0 && (kind != STATE_GRADS || rests);
}

/* Takes so many bytes of the kind off the tier: its last units go to the next tier, or its first
 * ones to the device. False: it has none there. */
static bool give_up(const plani_search *self, struct plani_point *point, int kind, int tier,
                    uint64_t bytes, bool to_device)
{
    const uint32_t *until = point->until[kind];
    uint32_t begin = tier > TIER_DEVICE ? until[tier - 1] : 0, end = until[tier];
    int64_t count = 0;
    for (uint64_t given = 0; begin < end && given < bytes; count++)
        given += plani_open_bytes(self, point, kind, to_device ? begin++ : --end);
    return count > 0 && plani_point_shift(self, point, kind, to_device ? TIER_DEVICE : tier,
                                          to_device ? count : -count);
}

/* Brings units of the kind nearer in place of as many bytes of another kind. Where the host has no
 * room for what leaves the device, that goes to the drives if `to_drives`, and so does what the
 * host has of it. With moves_together, what gives way on the host may also go to the device. */
static int trade(plani_search *self, struct plani_scored *best, int kind, int tier, uint32_t step,
                 bool to_drives, bool *gained)
{
    for (int other = 0; other < STATE_KIND_COUNT; other++) {
        struct plani_point next = best->point;
        uint32_t first = next.until[kind][tier];
        if (other == kind || PLANI_COORDINATES + other == self->frozen ||
            !plani_has_homes(self, &next, other) ||
            !plani_point_shift(self, &next, kind, tier, step))
            continue;
        uint64_t bytes = 0;
        for (uint32_t i = first; i < next.until[kind][tier]; i++)
            bytes += plani_open_bytes(self, &next, kind, i);
        struct plani_point nearer = next;
        if (self->moves_together && tier == TIER_HOST &&
            give_up(self, &nearer, other, tier, bytes, true))
            TRY(plani_try_relieved(self, nearer, best, gained));
        if (!give_up(self, &next, other, tier, bytes, false))
            continue;
        TRY(self->moves_together ? plani_try_relieved(self, next, best, gained)
                                 : plani_search_try(self, &next, best, gained));
        uint32_t left = next.until[other][tier];
        if (self->last_fits || !to_drives || next.until[other][TIER_HOST] == left)
            continue;
        next.until[other][TIER_HOST] = left;
        TRY(plani_search_try(self, &next, best, gained));
    }
    return 0;
}

int plani_try_relieved(plani_search *self, struct plani_point point, struct plani_scored *best,
                       bool *gained)
{
    static const int ways[] = {PLANI_HELD, PLANI_TILE, PLANI_CARRIED, PLANI_COPIES};
    enum { WAYS = sizeof ways / sizeof ways[0], WAYS_IF_IT_FITS = 2 };
    bool better = false;
    TRY(plani_search_try(self, &point, best, &better));
    const bool fits = self->last_fits;
    int count = !fits ? WAYS : self->moves_together ? WAYS_IF_IT_FITS : 0;
    for (int i = 0; i < count && !better && (fits || !self->last_fits); i++) {
        plani_point_apply(self, &point);
        if (ways[i] != self->frozen &&
            plani_move_mode(self, &point, ways[i], 1, ways[i] == PLANI_TILE))
            TRY(plani_search_try(self, &point, best, &better));
    }
    self->last_fits |= fits;
    if (better)
        *gained = true;
    return 0;
}

int plani_try_kinds(plani_search *self, struct plani_scored *best, uint32_t part, bool *gained)
{
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        for (int tier = 0; tier < TIER_COUNT; tier++) {
            uint32_t step = self->counts[kind] / part;
            if (PLANI_COORDINATES + kind == self->frozen ||
                !plani_has_homes(self, &best->point, kind) ||
                (step == 0 && part > 2 * self->counts[kind]))
                continue;
            step = step ? step : 1;
            for (int sign = 1; sign >= -1; sign -= 2) {
                bool more = true;
                for (int64_t by = step; more; by *= 2) {
                    struct plani_point next = best->point;
                    more = false;
                    if (!plani_point_shift(self, &next, kind, tier, sign * by))
                        break;
                    TRY(sign > 0 ? plani_try_relieved(self, next, best, &more)
                                 : plani_search_try(self, &next, best, &more));
                    *gained = *gained || more;
                }
            }
            if (tier != TIER_NVME)
                TRY(trade(self, best, kind, tier, step, false, gained));
        }
    for (int kind = 0; kind < STATE_KIND_COUNT && self->trades_far && !*gained; kind++) {
        uint32_t step = (uint32_t)size_max(self->counts[kind] / part, 1);
        if (PLANI_COORDINATES + kind != self->frozen && part <= 2 * self->counts[kind] &&
            plani_has_homes(self, &best->point, kind))
            TRY(trade(self, best, kind, TIER_DEVICE, step, true, gained));
    }
    return 0;
}
