/* What the files of automatic placement share.
 *
 *   place.c         moves, the winner              place_starts.c  where the search begins
 *   place_point.c   a point as homes; its trial    place_fits.c    a placement that fits, without a search
 *   place_reason.c  why, in sentences */
#ifndef SLUICE_PLAN_PLACE_INTERNAL_H
#define SLUICE_PLAN_PLACE_INTERNAL_H

#include "plan/compile.h"
#include "plan/place.h"

enum {
    PLANI_TIERS = TIER_COUNT,
    PLANI_SEEN = 4096, /* a power of 2 */
    PLANI_SEEN_MOST = PLANI_SEEN * 3 / 4,
    PLANI_FINALISTS = 3,
    /* Work of all trials in ops, built or simulated: what takes a few seconds. */
    PLANI_PLACE_WORK = 2500000,
    PLANI_TRIALS_MOST = 240,
    PLANI_WHOLE_KINDS = 11, /* placements by whole kinds, nearest first */
};

/* A placement: of the units of a kind that are to be placed, in order of need, those before until[kind][t] rest
 * on tier t or a nearer one. Behind until[kind][nvme] inner activations are recomputed; of other kinds there
 * is none. */
struct plani_point {
    uint32_t until[STATE_KIND_COUNT][PLANI_TIERS];
    uint32_t held; /* stages, in trials */
    uint32_t parked_near;
    bool parked_on_host;
    uint8_t update;
};

struct plani_scored {
    struct plani_point point;
    double score; /* ns of the step, and a little for what is kept; INFINITY: none */
};

struct plani_placer {
    const struct plan_place_asked *asked;
    plan_job job;                      /* homes: ours */
    uint8_t *homes[STATE_KIND_COUNT];  /* [unit_count] */
    uint32_t *units[STATE_KIND_COUNT]; /* [count] those to be placed, in order of need */
    uint32_t counts[STATE_KIND_COUNT];
    uint64_t *bytes[STATE_KIND_COUNT]; /* [unit_count] that rest */
    uint32_t level;
    bool last_fits;            /* the last trial did, whether or not it could win */
    bool has_fit, is_hopeless; /* hopeless: the homes alone fit nowhere, which needs no trial */
    uint64_t
        passing_bytes; /* of the device, beside homes, where nothing is parked near; 0: not known */
    uint64_t work;
    uint32_t trials, compiles;
    uint64_t *seen;                            /* [PLANI_SEEN] hashes of points; 0: none */
    uint32_t seen_count;                       /* at most PLANI_SEEN_MOST */
    struct plani_scored best[PLANI_FINALISTS]; /* shortest first */
};
typedef struct plani_placer plani_placer;

/* place_point.c */
int plani_placer_init(plani_placer *self, const struct plan_place_asked *asked) MUST_CHECK;
void plani_placer_fini(plani_placer *self);
/* All near; far ends where they are allowed. */
void plani_point_near(const plani_placer *self, struct plani_point *point, bool keeps_inner);
void plani_point_far(const plani_placer *self, struct plani_point *point);
/* Fills job.homes, update and what is parked where. */
void plani_point_apply(plani_placer *self, const struct plani_point *point);
/* Whether `point` is legal: boundaries in order, no drive where there is none. */
bool plani_point_is_legal(const plani_placer *self, const struct plani_point *point);
/* Simulates, unless the point was seen; *score INFINITY where it does not fit, was seen or cannot win. */
int plani_point_try(plani_placer *self, const struct plani_point *point, double *score) MUST_CHECK;
bool plani_placer_may_go_on(const plani_placer *self);

/* place_starts.c: the first trials. */
int plani_try_starts(plani_placer *self) MUST_CHECK;
/* Placement by whole kinds number `idx`. */
void plani_point_of_kinds(const plani_placer *self, uint32_t idx, struct plani_point *point);
/* The usual update of the placement, where it is to be chosen. */
void plani_usual_update(plani_placer *self, struct plani_point *point);
/* Bytes of homes beyond the budgets, by arena, of the job as applied. */
int plani_home_excess(plani_placer *self, double bytes[TIER_COUNT]) MUST_CHECK;

/* place_fits.c: 0: *point fits, and takes need[] bytes of each tier at least; 1: none was found, and need[] is of
 * the last far placement that was tried, as far as that was looked at. Counts ops, not time. */
int plani_find_fit(plani_placer *self, struct plani_point *point,
                   uint64_t need[TIER_COUNT]) MUST_CHECK;

/* ERR_NO_FIT with these numbers. */
int plani_refuse_fit(const plani_placer *self, const uint64_t need[TIER_COUNT]) MUST_CHECK;

/* place_reason.c: of the placement that self->job has and `found` holds compiled. */
int plani_give_reasons(plani_placer *self, struct plan_place_found *found) MUST_CHECK;

#endif
