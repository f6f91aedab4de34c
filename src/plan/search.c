/* The search of one order of micro-batches, by one trial and one rule of acceptance.
 *
 *   1  the first points (starts.c), each with the update that is usual for its homes
 *   2  the best of them with each other update that may be chosen
 *   3  from the best point of each update: moves of one or two coordinates, in steps that get
 *      smaller, until none gains
 *   4  the same from other first points, and from points that one move makes of the best point,
 *      though they are worse: until the work is used up
 *
 * A word that the job gives only takes coordinates away. Where all homes are given, those moves
 * remain that say how programs use them. */
#include <math.h>
#include <string.h>

#include "plan/search_internal.h"

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
    double crowded; /* copies leave room for no tile under way. In a run tiles are also compared and
                     * summed between ops. 151M params through 170 MiB: tiles of 1 Mi in place of 4
                     * Mi elements made a step 9 % shorter. */
    double older;   /* a commit is one step older: a crash loses one step more */
    double idle;    /* memory beside homes is left unused */
    double batch;   /* batch-major: every gradient is added to once a micro-batch */
} price = {0.0003, 0.0003, 0.0005, 0.0001, 0.0002, 0.0003, 0.004, 0.0015, 0.0002, 0.001};

enum { TILES_UNDER_WAY = 6 }; /* fewer are crowded */

/* Returns the score of the point, which is applied, over the time of its step. */
static double factor_of(const plani_search *self, const struct plani_point *point)
{
    const plan_job *job = &self->job;
    double count = self->counts[STATE_INNER_ACTIVATIONS], far = 0, all = 1;
    double kept = point->until[STATE_INNER_ACTIVATIONS][TIER_NVME];
    uint64_t tiles[PLANI_TILES_MAX];
    for (int kind = 0; kind < STATE_INNER_ACTIVATIONS; kind++)
        for (uint32_t i = 0; i < self->counts[kind]; i++) {
            double bytes = (double)self->bytes[kind][self->units[kind][i]];
            far += i >= point->until[kind][TIER_HOST] ? bytes : 0;
            all += bytes;
        }
    uint32_t tile_count = plani_list_tiles(job, tiles), larger = 0;
    while (larger < tile_count && tiles[larger] > point->tile_elems)
        larger++;
    double factor = 1 + price.kept * kept / fmax(count, 1) + price.far * far / all +
                    price.halved * fmin(larger, 8) +
                    price.held * point->held / fmax(plani_held_most(job), 1) +
                    price.older * (point->commit != plani_usual_commit(job)) +
                    price.idle * (point->idle_parts[0] + point->idle_parts[1]) / PLANI_PARTS +
                    price.batch * (point->order == ORDER_BATCH_MAJOR) +
                    price.carried * point->carried_parts / PLANI_PARTS;
    if (point->copy_parts == 0)
        return factor;
    double copies = (double)point->copy_parts / PLANI_PARTS;
    double tile_bytes = (double)tile_state_bytes(job->state_streams, point->tile_elems) +
                        (double)point->tile_elems * (job->param_bytes + job->grad_bytes);
    double used = 1 - (double)point->idle_parts[TIER_HOST] / PLANI_PARTS;
    double under_way = used * (1 - copies) * (double)plani_room_beside(job, TIER_HOST) / tile_bytes;
    return factor + price.copies * copies +
           price.crowded * fmax(1 - under_way / TILES_UNDER_WAY, 0);
}

/* ---- trials --------------------------------------------------------------------------------- */

bool plani_search_may_go_on(const plani_search *self)
{
    return self->work->ops < self->work_end &&
           self->work->try_count - self->work->repeat_count < self->tries_end;
}

int plani_search_check(plani_search *self, const struct plani_point *point)
{
    struct plani_point plain = plani_plain_point(&self->job, point->tile_elems);
    struct plani_candidate needs = {.tile_elems = point->tile_elems};
    plain.held = UINT32_MAX; /* no step has so many: the answer is known by this key */
    struct plani_known made = {.key = plani_trial_key(&self->job, &plain)};
    const struct plani_known *known = plani_recall(self->work, made.key);
    if (known)
        return known->rc;
    made.rc = plani_check_needs(&self->job, &needs, self->work);
    if (made.rc == 0 || made.rc == ERR_NO_FIT)
        TRY(plani_remember(self->work, &made));
    return made.rc;
}

int plani_search_try(plani_search *self, const struct plani_point *point, struct plani_scored *best,
                     bool *gained)
{
    double ns;
    self->last_fits = false;
    if (!plani_point_is_legal(self, point) || point->carried_parts >= self->carried_end ||
        !plani_search_may_go_on(self))
        return 0;
    plani_note_work(&self->job, "trying plans", 0);
    plani_point_apply(self, point);
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

enum {
    MOVE_COPIES,                    /* other numbers of parts */
    MOVE_CARRIED = MOVE_COPIES + 9, /* the same of carried tiles */
    MOVE_HELD = MOVE_CARRIED + 7,   /* other numbers of held stages */
    MOVE_TILE = MOVE_HELD + 10,     /* finer, coarser */
    MOVE_IDLE = MOVE_TILE + 2,      /* other parts of device and host that are left unused */
    MOVE_COMMIT = MOVE_IDLE + 8,    /* the other way */
    MOVE_PARKED = MOVE_COMMIT + 1,  /* other micro-batches whose parked activations stay near */
    MOVE_COUNT = MOVE_PARKED + 7
};

/* The first move of those that change the same coordinate. */
static int coordinate_of(int move)
{
    static const int begins[] = {MOVE_COPIES, MOVE_CARRIED, MOVE_HELD,   MOVE_TILE,
                                 MOVE_IDLE,   MOVE_COMMIT,  MOVE_PARKED, MOVE_COUNT};
    int at = 0;
    while (move >= begins[at + 1])
        at++;
    return begins[at];
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

static bool move_copies(const plani_search *self, struct plani_point *point, int way)
{
    static const uint32_t parts[] = {8, 4, 12, 2, 14, 0, 1};
    if (point->update != UPDATE_IN_NEXT_FORWARD || self->job.only_eval)
        return false;
    uint32_t next = way < 7 ? parts[way] : way == 7 ? point->copy_parts + 1 : point->copy_parts - 1;
    bool moves = next != point->copy_parts && next < self->copies_end;
    point->copy_parts = next;
    return moves;
}

static bool move_carried(const plani_search *self, struct plani_point *point, int way)
{
    static const uint32_t parts[] = {8, 4, 12, 2, 0};
    if (!plani_may_carry(&self->job))
        return false;
    uint32_t next = way < 5    ? parts[way]
                    : way == 5 ? point->carried_parts + 1
                               : point->carried_parts - 1;
    bool moves = next != point->carried_parts && next < self->carried_end;
    point->carried_parts = next;
    return moves;
}

static bool move_held(const plani_search *self, struct plani_point *point, int way)
{
    uint32_t held = point->held, most = plani_held_most(&self->job);
    const uint32_t others[] = {
        most,     most / 2, most / 4, most / 8, 2 * held, held + held / 2, held - held / 4,
        held / 2, held + 1, 0};
    point->held = (uint32_t)size_min(others[way], most);
    return point->held != held;
}

static bool move_idle(struct plani_point *point, int way, int arena)
{
    static const uint32_t parts[] = {3, 8, 12, 0};
    bool moves = point->idle_parts[arena] != parts[way];
    point->idle_parts[arena] = parts[way];
    return moves;
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

static bool move_parked(const plani_search *self, struct plani_point *point, int way)
{
    uint32_t all = self->job.micro_batch_count, near = point->parked_near;
    const uint32_t others[] = {
        all, near + (all - near) / 2, near / 2, 0, near + (near < all), near - (near > 0), near};
    if (self->is_closed || plani_parked_bytes(&self->job) == 0)
        return false;
    point->parked_near = others[way];
    point->parked_on_host ^= way == 6;
    return way == 6 || others[way] != near;
}

/* Changes how programs use the placement of the point, which is applied; false: not that way. */
static bool move_mode(const plani_search *self, struct plani_point *point, int move)
{
    int way = move - coordinate_of(move);
    switch (coordinate_of(move)) {
    case MOVE_TILE:
        return move_tile(self, point, way == 0);
    case MOVE_COPIES:
        return move_copies(self, point, way);
    case MOVE_CARRIED:
        return move_carried(self, point, way);
    case MOVE_HELD:
        return move_held(self, point, way);
    case MOVE_IDLE:
        return move_idle(point, way % 4, way / 4);
    case MOVE_COMMIT:
        return move_commit(self, point);
    default:
        return move_parked(self, point, way);
    }
}

/* Tries the moves of all coordinates but one. */
static int try_modes(plani_search *self, struct plani_scored *best, int without, bool *gained)
{
    for (int move = 0; move < MOVE_COUNT && plani_search_may_go_on(self); move++) {
        if (coordinate_of(move) == without)
            continue;
        struct plani_point next = best->point;
        plani_point_apply(self, &next);
        if (move_mode(self, &next, move))
            TRY(plani_search_try(self, &next, best, gained));
    }
    return 0;
}

static int settle_modes(plani_search *self, struct plani_scored *best)
{
    bool gained = true;
    while (gained && plani_search_may_go_on(self)) {
        gained = false;
        TRY(try_modes(self, best, MOVE_COUNT, &gained));
    }
    return 0;
}

/* False where the point has no home of the kind: gradients go straight into their update. */
static bool has_homes(const plani_search *self, const struct plani_point *point, int kind)
{
    bool rests = point->update != UPDATE_IN_BACKWARD ||
                 (point->order == ORDER_BATCH_MAJOR && self->job.micro_batch_count > 1);
    return self->counts[kind] > 0 && (kind != STATE_GRADS || rests);
}

/* Brings units of the kind nearer in place of as many bytes of another kind. */
static int trade(plani_search *self, struct plani_scored *best, int kind, int tier, uint32_t step,
                 bool *gained)
{
    for (int other = 0; other < STATE_KIND_COUNT; other++) {
        struct plani_point next = best->point;
        uint32_t first = next.until[kind][tier];
        if (other == kind || !has_homes(self, &next, other) ||
            !plani_point_shift(self, &next, kind, tier, step))
            continue;
        uint64_t bytes = 0;
        for (uint32_t i = first; i < next.until[kind][tier]; i++)
            bytes += self->bytes[kind][self->units[kind][i]];
        uint32_t end = next.until[other][tier], begin = end;
        uint32_t nearer = tier > 0 ? next.until[other][tier - 1] : 0;
        for (uint64_t given = 0; begin > nearer && given < bytes;)
            given += self->bytes[other][self->units[other][--begin]];
        if (begin == end ||
            !plani_point_shift(self, &next, other, tier, (int64_t)begin - (int64_t)end))
            continue;
        TRY(plani_search_try(self, &next, best, gained));
    }
    return 0;
}

/* Moves each boundary by the `part`-th part of its kind's units, both ways; and trades. */
static int try_kinds(plani_search *self, struct plani_scored *best, uint32_t part, bool *gained)
{
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        for (int tier = 0; tier < TIER_COUNT; tier++) {
            uint32_t step = self->counts[kind] / part;
            if (!has_homes(self, &best->point, kind) ||
                (step == 0 && part > 2 * self->counts[kind]))
                continue;
            step = step ? step : 1;
            for (int sign = 1; sign >= -1; sign -= 2) {
                struct plani_point next = best->point;
                if (plani_point_shift(self, &next, kind, tier, sign * (int64_t)step))
                    TRY(plani_search_try(self, &next, best, gained));
            }
            if (tier != TIER_NVME)
                TRY(trade(self, best, kind, tier, step, gained));
        }
    return 0;
}

static uint32_t longest_kind(const plani_search *self)
{
    uint32_t most = 0;
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        most = self->counts[kind] > most ? self->counts[kind] : most;
    return most;
}

/* Moves boundaries in steps that get smaller, until none gains. */
static int move_homes(plani_search *self, struct plani_scored *best)
{
    uint32_t most = longest_kind(self);
    for (uint32_t part = 1; part <= 2 * most; part *= 2)
        for (bool gained = true; gained && plani_search_may_go_on(self);) {
            gained = false;
            bool moved = false;
            TRY(try_kinds(self, best, part, &gained));
            if (gained)
                TRY(try_modes(self, best, MOVE_COUNT, &moved));
        }
    return 0;
}

/* ---- one order of micro-batches ------------------------------------------------------------- */

/* Updates whose best point is so much slower get no more moves at all, or none of homes. */
static const double near_update = 1.4, near_homes = 1.1;
/* A step so near to its bound is not worth a longer search. */
static const double near_bound = 1.003;
enum { STARTS_IDLE = 2, OTHERS_PART = 8 };

static struct plani_scored *best_of(plani_search *self, const bool *without)
{
    struct plani_scored *best = NULL;
    for (int u = 0; u < PLANI_UPDATES; u++)
        if (!without[u] && (!best || self->best[u].score < best->score))
            best = &self->best[u];
    return best && isfinite(best->score) ? best : NULL;
}

struct plani_scored *plani_search_best(plani_search *self)
{
    static const bool none[PLANI_UPDATES] = {false};
    return best_of(self, none);
}

/* Tries the best point with each other update that may be chosen. */
static int try_updates(plani_search *self, const struct plani_scored *from)
{
    uint8_t updates[PLANI_UPDATES];
    uint32_t count = self->job.only_eval ? 0 : plani_open_updates(self, updates);
    for (uint32_t i = 0; i < count; i++) {
        struct plani_scored *best = &self->best[updates[i]];
        struct plani_point next = from->point;
        bool gained;
        if (best == from)
            continue;
        plani_point_set_update(self, &next, (enum update)updates[i]);
        TRY(plani_search_try(self, &next, best, &gained));
    }
    return 0;
}

static void note_best(plani_search *self, const struct plani_scored *found)
{
    struct plani_scored *best = &self->best[found->point.update];
    if (found->score < best->score)
        *best = *found;
}

/* Improves the best points of updates that are near the best one. */
static int improve_updates(plani_search *self)
{
    bool is_done[PLANI_UPDATES] = {false};
    struct plani_scored *best;
    double least = INFINITY;
    const uint64_t end = self->work_end;
    while ((best = best_of(self, is_done)) && best->score < near_update * least) {
        is_done[best - self->best] = true;
        if (isfinite(least)) /* others than the best get a smaller part of the work */
            self->work_end =
                size_min(end, self->work->ops + (end - self->work_begin) / OTHERS_PART);
        bool gained = false;
        TRY(try_modes(self, best, MOVE_COUNT, &gained));
        if (best->score < near_homes * least)
            TRY(move_homes(self, best));
        TRY(settle_modes(self, best));
        self->work_end = end;
        least = fmin(least, best->score);
    }
    return 0;
}

/* Goes down from the point, and takes the result where it is better than the best one. */
static int descend(plani_search *self, struct plani_scored *from, bool *gained)
{
    double before = self->best[from->point.update].score;
    TRY(move_homes(self, from));
    TRY(settle_modes(self, from));
    note_best(self, from);
    *gained = from->score < before;
    return 0;
}

/* True if the step of the best point is as short as its transfers and its computing allow. */
static bool is_at_bound(plani_search *self, const struct plani_scored *best)
{
    struct plani_figures step;
    plani_point_apply(self, &best->point);
    int rc = plani_try_step(&self->job, &best->point, 0, &step, self->work);
    return rc == 0 && (double)step.ns <= near_bound * (double)step.bound_ns;
}

/* Goes down from other starts than the best one, until some in a row have led nowhere new. */
static int improve_starts(plani_search *self)
{
    uint32_t idle = 0;
    for (uint32_t i = 1; i < self->start_count && idle < STARTS_IDLE; i++) {
        bool gained;
        TRY(descend(self, &self->starts[i], &gained));
        idle = gained ? 0 : idle + 1;
    }
    return 0;
}

/* Goes down from points that a move makes from the best one, though they are worse: what one
 * coordinate takes, others may then give. */
static int improve_best(plani_search *self)
{
    for (int move = 0; move < MOVE_COUNT && plani_search_may_go_on(self); move++) {
        struct plani_scored next = {plani_search_best(self)->point, INFINITY};
        bool gained;
        plani_point_apply(self, &next.point);
        if (!move_mode(self, &next.point, move))
            continue;
        const struct plani_point moved = next.point;
        TRY(plani_search_try(self, &moved, &next, &gained));
        if (!isfinite(next.score))
            continue;
        TRY(try_modes(self, &next, coordinate_of(move), &gained));
        TRY(descend(self, &next, &gained));
        move = gained ? -1 : move;
    }
    return 0;
}

int plani_search_order(plani_search *self, enum order order)
{
    self->job.order = order;
    self->start_count = 0;
    self->passing_bytes = 0;
    self->work_begin = self->work->ops;
    self->work_end = self->work_begin + PLANI_SEARCH_WORK;
    self->tries_end = self->work->try_count - self->work->repeat_count +
                      (self->is_closed ? PLANI_TRIES_CLOSED : PLANI_TRIES_MOST);
    for (int u = 0; u < PLANI_UPDATES; u++)
        self->best[u].score = INFINITY;
    TRY(plani_try_starts(self));
    if (self->start_count == 0)
        return 0;
    for (uint32_t i = 0; i < self->start_count; i++)
        note_best(self, &self->starts[i]);
    TRY(try_updates(self, plani_search_best(self)));
    TRY(improve_updates(self));
    if (is_at_bound(self, plani_search_best(self)))
        return 0;
    TRY(improve_starts(self));
    return improve_best(self);
}
