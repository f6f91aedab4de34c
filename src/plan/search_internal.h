/* The search for a plan.
 *
 *   a point    what is chosen: homes, order, update, parked activations, held stages, tile size,
 *              copies, the commit
 *   a trial    the deciding step of a point, simulated
 *   the rule   whether the point of a trial replaces the best one (plani_is_worth)
 *   refusal    the least bytes that would fit, by tier, and the setting
 *
 * Where homes are given, plan_compile settles the rest of the point and compiles it. Where homes
 * are open, plan_place starts from some points, moves from the best one, and settles the best few.
 *
 * Work is counted in ops that were emitted or simulated, never in time, so that equal questions
 * get equal answers on every machine. */
#ifndef SLUICE_PLAN_SEARCH_INTERNAL_H
#define SLUICE_PLAN_SEARCH_INTERNAL_H

#include "plan/simulate_internal.h"

/* ---- points: point.c ------------------------------------------------------------------------ */

/* The first five members are the placement. `until` says it for the units whose homes are open, in
 * their order of need: those before until[kind][tier] rest on that tier or a nearer one. Inner
 * activations from until[kind][nvme] on are recomputed; all units of other kinds are before it.
 * Where no home is open, all of `until` is 0 and the job's own homes count.
 *
 * The last four say how the programs use that placement. */
struct plani_point {
    uint32_t until[STATE_KIND_COUNT][TIER_COUNT];
    enum order order;
    enum update update;
    uint32_t parked_near; /* as in plan_job */
    bool parked_on_host;

    uint32_t held; /* stages nearest the turn that hold their params for the backward */
    uint64_t tile_elems;
    uint64_t copy_bytes; /* at most so many bytes of optimizer state are copied on the host */
    enum plan_commit commit;
};

/* The state that all trials of one plan_place share. One thread; heap memory, freed by
 * plani_search_fini. */
struct plani_search;
typedef struct plani_search plani_search;

/* The job's own placement and the usual way to commit, with tiles of `tile_elems`; nothing held or
 * copied. */
struct plani_point plani_plain_point(const plan_job *job, uint64_t tile_elems);
/* Sets the homes, order and update of the search's job as the point has them, and what is parked
 * where. */
void plani_point_apply(plani_search *self, const struct plani_point *point);
/* True if boundaries are in order and nothing rests on drives that are not there. */
bool plani_point_is_legal(const plani_search *self, const struct plani_point *point);
bool plani_point_is_same_placement(const struct plani_point *a, const struct plani_point *b);
/* All open units as near as possible; as far as possible; by whole kinds, placement number
 * `idx`. */
void plani_point_near(const plani_search *self, struct plani_point *point, bool keeps_inner);
void plani_point_far(const plani_search *self, struct plani_point *point);
enum { PLANI_WHOLE_KINDS = 11 }; /* nearest first */
void plani_point_of_kinds(const plani_search *self, uint32_t idx, struct plani_point *point);
/* Where the update is open: the usual one of the placement. Applies the point. */
void plani_point_usual_update(plani_search *self, struct plani_point *point);
/* The updates that may be chosen, all of which give the same bits; returns how many, 0 where it is
 * given. */
enum { PLANI_UPDATES_MAX = 3 };
uint32_t plani_open_updates(const plani_search *self, uint8_t updates[PLANI_UPDATES_MAX]);
/* Moves a boundary by `step` units, and with it those that it would cross. False: nothing moved. */
bool plani_point_shift(const plani_search *self, struct plani_point *point, int kind, int tier,
                       int64_t step);

/* ---- one trial, one rule: trial.c ----------------------------------------------------------- */

/* The work of a search so far, and the trials that it need not repeat: the search, the settling
 * of a placement and its reasons ask for some steps again. A trial that is known counts as many ops
 * as when it was made, so that the limits of the search mean the same with and without memory. One
 * thread; heap memory, freed by plani_work_fini. Zeros are an empty one. */
struct plani_work {
    uint64_t ops;              /* built and simulated, or known */
    uint32_t try_count;        /* trials asked for */
    uint32_t repeat_count;     /* those of them that were known */
    struct plani_known *known; /* a table by hash; NULL: none yet */
    uint32_t known_count;
};
typedef struct plani_work plani_work;
void plani_work_fini(plani_work *work);

/* The figures of one simulated step. */
struct plani_trial {
    /* Time of the step; UINT64_MAX: not simulated, since its bound is not below the limit. */
    uint64_t ns;
    uint64_t bound_ns;              /* the step cannot be shorter */
    uint64_t lane_ns[LANE_COUNT];   /* busy time of each lane */
    uint64_t home_ends[TIER_COUNT]; /* end of the last home in each arena */
};

/* ---- trials that are known: known.c --------------------------------------------------------- */

/* FNV-1a, goes on from `hash`. */
#define PLANI_HASH_BEGIN UINT64_C(14695981039346656037)
uint64_t plani_hash(uint64_t hash, const void *bytes, uint64_t count);

struct plani_known {
    uint64_t key;      /* 0: none */
    int rc;            /* 0 or ERR_NO_FIT */
    bool is_simulated; /* else only its bound is known */
    uint64_t op_count;
    struct plani_trial trial;
};
/* A hash of all that a trial depends on among the jobs of a search; never 0. */
uint64_t plani_trial_key(const plan_job *job, const struct plani_point *point);
const struct plani_known *plani_recall(const plani_work *work, uint64_t key); /* NULL: not known */
void plani_remember(plani_work *work, const struct plani_known *trial);

/* Simulates the step that decides (steady; only_eval: EVAL) at the point, on the homes and with
 * the update of the job. `limit_ns`: a longer step is of no interest; 0: no limit. Adds its ops
 * to *work. ERR_NO_FIT where the budgets do not cover it. All jobs that share `work` are equal but
 * for homes, order, update, what is parked near, and budgets. */
int plani_try(const plan_job *job, const struct plani_point *point, uint64_t limit_ns,
              struct plani_trial *trial, plani_work *work) MUST_CHECK;

/* Changes of a point, each with a price beside the time of a step. */
enum plani_change {
    PLANI_CHANGE_HOMES,
    PLANI_CHANGE_TILE_OR_HELD, /* smaller tiles, or more held stages */
    PLANI_CHANGE_OLDER_COMMIT, /* a commit that is one step older: a crash loses one step more */
    PLANI_CHANGE_COPIES,       /* host memory that copies take */
    PLANI_CHANGE_FINER_TILES,  /* smaller tiles where copies leave room for few: may cost time */
    PLANI_CHANGE_ORDER,        /* batch-major: every gradient is added to once a micro-batch */
    PLANI_CHANGE_COUNT
};
/* The rule of acceptance: true if a step of `ns` pays the price of the change from one of
 * `best_ns`. */
bool plani_is_worth(enum plani_change change, double ns, double best_ns);
/* The limit_ns of a trial that must be worth the change; 0 where there is no best step yet. */
uint64_t plani_limit_ns(enum plani_change change, uint64_t best_ns);
/* True if no other point with this bound can be worth a change of tiles or held stages. */
bool plani_is_at_bound(const struct plani_trial *trial);

/* How steady steps commit, as far as the update says it. */
enum plan_commit plani_usual_commit(const plan_job *job);
/* How the step commits that decides: where commits are seldom, it does not. */
enum plan_commit plani_decisive_commit(const plan_job *job);
bool plani_has_state_in_memory(const plan_job *job);
/* How many stages before the turn may hold their params: within limits_reuse, and such that their
 * params and the head's together are within live_elems_max. */
uint32_t plani_held_most(const plan_job *job);

/* How one program of a set is compiled. */
struct plani_request {
    enum program_kind kind;
    bool serial;        /* reserve memory one op at a time, and simulate nothing */
    bool whole;         /* all of the program, not only its figures */
    uint64_t enough_ns; /* a program whose bound is not below it is not simulated; 0: all are */
    uint64_t bound_ns;  /* out, of a steady step */
    plan_set *bounds;   /* out: the bounds of the steady step; NULL: not asked for */
    plani_work *work;   /* out: ops built and simulated are added; or NULL */
};
/* A set at the point, without programs, and the layout of its homes. */
int plani_set_begin(const plan_job *job, const struct plani_point *point, plan_set *set,
                    plani_layout *layout) MUST_CHECK;
/* Compiles one program of the set. ERR_NO_FIT; 1: by asked->enough_ns it was not simulated. */
int plani_compile_one(const plan_job *job, const plan_set *set, const plani_layout *layout,
                      struct plani_request *asked, const uint64_t *budgets,
                      program *out) MUST_CHECK;

/* ---- tile sizes: tile_sizes.c --------------------------------------------------------------- */

/* A tile size, and what is known of its needs: those of the homes and of the first `kinds_done`
 * programs. */
struct plani_candidate {
    uint64_t tile_elems;
    bool fails; /* a program with such tiles does not fit */
    bool has_homes;
    int kinds_done;
    uint64_t need[TIER_COUNT]; /* at least this much budget */
    uint64_t second_bytes;     /* of nvme: without commits, that much less */
    uint64_t reached_bytes;    /* of nvme: `need` without overhead, not in stripes */
};

/* The tile sizes in question, largest first; returns how many. They are the job's own alone, or
 * halves of the largest one that is worth its memory, down to the one that cuts the model into at
 * most 2^14 tiles, and what moves in a step into at most 2^19. A drive is as fast at any of them,
 * and smaller tiles only make the plan long. */
enum { PLANI_CANDIDATES_MAX = 64 }; /* each is about half of the one before */
uint32_t plani_list_candidates(const plan_job *job,
                               struct plani_candidate list[PLANI_CANDIDATES_MAX]);
/* Tiles below this size are tried only where larger ones do not fit. */
uint64_t plani_searched_tile(const plan_job *job);
/* The tile size of placement's trials: level 0 is the coarsest, and each next level is finer; the
 * last size from some level on. */
uint64_t plani_trial_tile(const plan_job *job, uint32_t level);
bool plani_is_last_level(const plan_job *job, uint32_t level);

/* ---- what a job needs: needs.c -------------------------------------------------------------- */

/* The least budget in which the arena has so many bytes, and the most bytes that it has in a
 * budget. Only nvme has overhead. */
uint64_t plani_budget_for(const plan_job *job, int arena, uint64_t bytes);
uint64_t plani_room_in(const plan_job *job, int arena, uint64_t budget_bytes);
/* True if the budgets cover the homes. */
bool plani_homes_fit(const plan_job *job, const plani_layout *layout);
/* False where no tile size can make the homes fit. Counts their bytes without alignment, at little
 * cost. */
bool plani_homes_may_fit(const plan_job *job);
/* Bytes that surely lie in each arena at some time of a step: homes, and what waits from pass to
 * pass. */
void plani_count_homes(const plan_job *job, uint64_t bytes[TIER_COUNT]);
bool plani_is_covered(const plan_job *job, const uint64_t need[TIER_COUNT]);

/* End of the homes in each arena, and how much of nvme the second places take, with such tiles. */
int plani_home_ends(const plan_job *job, uint64_t tile_elems, uint64_t ends[TIER_COUNT],
                    uint64_t *second_bytes) MUST_CHECK;
/* Peaks of one program in serial order, homes included, with such tiles. */
int plani_serial_peaks(const plan_job *job, uint64_t tile_elems, enum program_kind kind,
                       uint64_t peaks[TIER_COUNT], plani_work *work) MUST_CHECK;

/* Learns what the candidate needs as far as the budgets cover it. ERR_NO_FIT where they do not. */
int plani_check_needs(const plan_job *job, struct plani_candidate *c, plani_work *work) MUST_CHECK;
/* Bytes beyond the budgets, all arenas together, of the job's tile size that comes nearest. */
int plani_excess(const plan_job *job, double *bytes, plani_work *work) MUST_CHECK;

/* The refusal. Always ERR_NO_FIT, with a text that names every tier that is too small.
 *
 *   plani_refuse        finds the nearest tile size; names needs, budgets and the setting that fits
 *   plani_refuse_lack   names known needs, where no setting was looked for */
int plani_refuse(const plan_job *job, struct plani_candidate *list, uint32_t count,
                 plani_work *work) MUST_CHECK;
int plani_refuse_lack(const plan_job *job, const uint64_t need[TIER_COUNT]) MUST_CHECK;
/* Bytes that homes nearer than `tier` leave free of their tiers, all together. */
double plani_room_nearer(const plan_job *job, const uint64_t need[TIER_COUNT], int tier);

/* ---- the rest of a point, and its programs: settle.c ---------------------------------------- */

/* plan_compile, with the trials that are known. Adds to *work; out->work_ops is the part of this
 * call. */
int plani_compile(const plan_job *job, plan_set *out, plani_work *work) MUST_CHECK;

/* ---- homes are open: starts.c, fit.c, search.c, reasons.c ----------------------------------- */

enum {
    PLANI_SEEN = 4096, /* a power of 2 */
    PLANI_SEEN_MOST = PLANI_SEEN * 3 / 4,
    PLANI_FINALISTS = 3,
    /* Work of all trials in ops, built or simulated: what takes a few seconds. */
    PLANI_SEARCH_WORK = 2500000,
    PLANI_TRIALS_MOST = 240,
};

struct plani_scored {
    struct plani_point point;
    double score; /* ns of the step, and a little for what is kept; INFINITY: none */
};

struct plani_search {
    const struct plan_place_asked *asked;
    plan_job job;                      /* with homes that are ours */
    uint8_t *homes[STATE_KIND_COUNT];  /* [unit_count] */
    uint32_t *units[STATE_KIND_COUNT]; /* [count] those whose home is open, in order of need */
    uint32_t counts[STATE_KIND_COUNT];
    uint64_t *bytes[STATE_KIND_COUNT]; /* [unit_count] that rest */
    uint32_t level;                    /* of the tiles in trials */
    bool last_fits;                    /* the last trial did, whether or not it could win */
    bool has_fit;
    bool is_hopeless; /* the homes alone fit nowhere, which no trial needs to show */
    /* Bytes that pass through the device, beside homes, where nothing is parked near; 0: not
     * known. */
    uint64_t passing_bytes;
    plani_work work;
    uint32_t trials, compiles;
    uint64_t *seen; /* [PLANI_SEEN] hashes of points; 0: none */
    uint32_t seen_count;
    struct plani_scored best[PLANI_FINALISTS]; /* shortest first */
};

int plani_search_init(plani_search *self, const struct plan_place_asked *asked) MUST_CHECK;
void plani_search_fini(plani_search *self);
/* Returns false once the search has used up its work. */
bool plani_search_may_go_on(const plani_search *self);
/* Tries the point at the tiles of trials, unless it was seen, and keeps it where it is among the
 * best. *score is INFINITY where the point does not fit, was seen or cannot win. */
int plani_search_try(plani_search *self, struct plani_point point, double *score) MUST_CHECK;

int plani_try_starts(plani_search *self) MUST_CHECK;
/* Bytes of homes beyond the budgets, by arena, of the job as applied. */
int plani_home_excess(plani_search *self, double bytes[TIER_COUNT]) MUST_CHECK;

/* 0: *point fits, and takes need[] bytes of each tier at least. 1: no placement was found, and
 * need[] is of the last far placement that was tried, as far as that was looked at. */
int plani_find_fit(plani_search *self, struct plani_point *point,
                   uint64_t need[TIER_COUNT]) MUST_CHECK;

/* Gives the reasons of the placement that self->job has and `found` holds compiled. */
int plani_give_reasons(plani_search *self, struct plan_place_found *found) MUST_CHECK;

#endif
