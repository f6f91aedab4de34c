/* What compile.c and refuse.c share: one program of a set, and a tile size with what is known of its needs. */
#ifndef SLUICE_PLAN_COMPILE_H
#define SLUICE_PLAN_COMPILE_H

#include "plan/plan_internal.h"

/* How a program is compiled. */
struct plani_order {
    enum program_kind kind;
    uint32_t held;
    bool serial;        /* no lookahead; else the job's own, then shorter ones until it fits */
    bool whole;         /* all of the program, not just its figures */
    uint64_t enough_ns; /* a program whose bound is not below it is not simulated; 0: any is */
    uint64_t bound_ns;  /* out, of a steady step */
    plan_set *bounds;   /* out: what the steady step's time is held against; NULL: not asked */
    uint64_t *work;     /* out: ops built and simulated are added; or NULL */
};

/* A tile size, and what is known of its needs: the homes and the first `kinds_done` programs. */
struct plani_candidate {
    uint64_t tile_elems;
    bool fails; /* a program of it does not fit */
    bool has_homes;
    int kinds_done;
    uint64_t need[TIER_COUNT]; /* so far: at least this */
    uint64_t second_bytes;     /* of nvme: without commits that much less */
    uint64_t reached_bytes;    /* of nvme: `need` without overhead, not in stripes */
};

/* candidates.c: the tile sizes in question, largest first; returns how many. The job's own alone, or halves of the
 * largest that is worth its memory, down to the one that cuts the model into at most 2^14 tiles, and what moves into
 * at most 2^19: a drive is as fast at any of them, and smaller ones only make the plan long. */
enum { PLANI_CANDIDATES_MAX = 64 }; /* each is about half of the one before */
uint32_t plani_list_candidates(const plan_job *job,
                               struct plani_candidate list[PLANI_CANDIDATES_MAX]);
/* Smaller tiles only where larger ones do not fit. */
uint64_t plani_searched_tile(const plan_job *job);
/* Of all units, padded. */
uint64_t plani_total_elems(const plan_job *job);

/* ERR_NO_FIT where it does not fit; 1: by asked->enough_ns it was not simulated. */
int plani_compile_one(const plan_job *job, const plan_set *set, const plani_layout *layout,
                      struct plani_order *asked, const uint64_t *budgets, program *out) MUST_CHECK;
/* A layout of homes at a tile size, in a set without programs; with copies of at most so many bytes. */
int plani_set_begin_with(const plan_job *job, uint64_t tile_elems, uint64_t copy_bytes,
                         plan_set *set, plani_layout *layout) MUST_CHECK;
int plani_set_begin(const plan_job *job, uint64_t tile_elems, plan_set *set,
                    plani_layout *layout) MUST_CHECK;
/* The least budget in which the arena has so many bytes; and the most bytes that it has in a budget. Others than
 * nvme have no overhead. */
uint64_t plani_budget_for(const plan_job *job, int arena, uint64_t bytes);
uint64_t plani_room_in(const plan_job *job, int arena, uint64_t budget_bytes);

/* Whether the budgets cover the homes. */
bool plani_homes_fit(const plan_job *job, const plani_layout *layout);

/* False where no tile size can make the homes fit: their bytes without alignment, unit by unit and at little
 * cost. */
bool plani_homes_may_fit(const plan_job *job);
/* Bytes that surely lie in each arena at some time of a step: homes, and what waits from pass to pass. */
void plani_count_homes(const plan_job *job, uint64_t bytes[TIER_COUNT]);

/* refuse.c: ERR_NO_FIT where the budgets do not cover the needs. */
int plani_check_needs(const plan_job *job, struct plani_candidate *c, uint64_t *work) MUST_CHECK;
/* ERR_NO_FIT with, for every tier that is too small, what is needed and what is allowed, of the
 * tile size that comes nearest. */
int plani_refuse(const plan_job *job, struct plani_candidate *list, uint32_t count,
                 uint64_t *work) MUST_CHECK;

/* Bytes beyond the budgets, all arenas together, of the tile size that comes nearest; of the job's. */
int plani_excess_of(const plan_job *job, struct plani_candidate *list, uint32_t count,
                    double *bytes, uint64_t *work) MUST_CHECK;
int plani_excess(const plan_job *job, double *bytes, uint64_t *work) MUST_CHECK;

/* The steady step (only_eval: EVAL) as a choice between placements sees it: coarse tiles, one number of held
 * stages. ERR_NO_FIT; else 0. */
struct plani_trial {
    uint32_t held;       /* in */
    uint32_t level;      /* in, out: 0 the coarsest tiles, each next one finer, until it fits */
    uint32_t level_max;  /* in */
    uint64_t enough_ns;  /* in: as in plani_order */
    uint64_t ns;         /* out: of the step; UINT64_MAX: not below enough_ns */
    uint64_t bound_ns;   /* out */
    uint64_t tile_elems; /* out */
    uint64_t work;       /* out: added to */
    uint64_t work_most;  /* in: no finer tiles are tried where more is done */
};
/* The tile size of a level; the last one from some level on. */
uint64_t plani_trial_tile(const plan_job *job, uint32_t level);
int plani_try(const plan_job *job, struct plani_trial *trial) MUST_CHECK;

#endif
