/* The search for a plan.
 *
 *   a point    what is chosen: homes, order, update, parked activations, held stages, tile size,
 *              copies, carried tiles, the commit
 *   a trial    the deciding step of a point, simulated
 *   the rule   the point with the lowest score wins: its time, and small prices (moves.c)
 *   refusal    the least bytes that would fit, by tier, and the setting
 *
 * plan_place and plan_compile are the same search; where homes are given, fewer coordinates are
 * open.
 *
 * Work is counted in ops that were emitted or simulated, never in time, so that equal questions
 * get equal answers on every machine. */
#ifndef SLUICE_PLAN_SEARCH_INTERNAL_H
#define SLUICE_PLAN_SEARCH_INTERNAL_H

#include "plan/simulate/simulate_internal.h"

/* ---- points: point.c ------------------------------------------------------------------------ */

/* The first seven members are the placement. `until` says it for the units whose homes are open, in
 * the order that `spread` names: those before until[kind][tier] rest on that tier or a nearer one.
 * Inner activations from until[kind][nvme] on are recomputed; all units of other kinds are before
 * it. The first `whole` units keep their inner activations whole, the others selectively.
 * Where no home is open, all of `until` is 0 and the job's own homes count.
 *
 * The last seven say how the programs use that placement. */
struct plani_point {
    uint32_t until[STATE_KIND_COUNT][TIER_COUNT];
    uint32_t whole;
    uint32_t spread; /* bit k: units of kind k are counted in the order `spread` of the search */
    enum order order;
    enum update update;
    uint32_t parked_near; /* as in plan_job */
    bool parked_on_host;

    /* Stages nearest the turn that hold their params for the backward; of a model with units in
     * parts, passes of each stage (plan_set.held_passes). */
    uint32_t held;
    uint64_t tile_elems;
    /* How far ahead steady steps reserve device and host memory at most: by the 2^n-th part of
     * their ops; 0: as far as there is room. Reserving memory early decides early which ops
     * wait for each other's memory, and may start work that is not urgent: the step gets longer. */
    uint32_t ahead[TIER_NVME];
    uint32_t copy_parts;    /* of the host's other room, for copies of optimizer state */
    uint32_t carried_parts; /* of the same room, for tiles that a step carries to the next one */
    enum plan_commit commit;
    bool fetches_hit; /* as in plan_set */
};
enum { PLANI_PARTS = 16, PLANI_AHEAD_MOST = 8 };

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
/* A placement of which no unit has a home yet, with nothing parked near. */
struct plani_point plani_first_point(const plani_search *self);
/* Sets the update and its usual commit, and takes away copies where it allows none. */
void plani_point_set_update(plani_search *self, struct plani_point *point, enum update update);
/* All open units as near as possible; as far as possible; by whole kinds, placement number
 * `idx`. */
void plani_point_near(const plani_search *self, struct plani_point *point, bool keeps_inner);
void plani_point_far(const plani_search *self, struct plani_point *point);
enum { PLANI_WHOLE_KINDS = 11 }; /* nearest first */
void plani_point_of_kinds(const plani_search *self, uint32_t idx, struct plani_point *point);
/* Where the update is open: the usual one of the placement. Applies the point. */
void plani_point_usual_update(plani_search *self, struct plani_point *point);
/* The updates that may be chosen, all of which give the same bits, the one that hides most first;
 * or the given one. Returns how many. */
enum { PLANI_UPDATES = UPDATE_AUTO };
uint32_t plani_open_updates(const plani_search *self, uint8_t updates[PLANI_UPDATES]);
/* Moves a boundary by `step` units, and with it those that it would cross. False: nothing moved. */
bool plani_point_shift(const plani_search *self, struct plani_point *point, int kind, int tier,
                       int64_t step);
/* Bytes of open homes on the tier. */
double plani_bytes_on(const plani_search *self, const struct plani_point *point, int tier);
/* Puts the first `most` units of the kind on the tier (TIER_COUNT: recomputed), as many of them as
 * have room once other kinds, `giver` first, have given way. Those after them stay where they are,
 * but are no nearer. False: nothing moved. */
bool plani_point_set_kind(const plani_search *self, struct plani_point *point, int kind, int tier,
                          uint32_t most, int giver);

/* ---- one trial: trial.c --------------------------------------------------------------------- */

/* The work of a search so far, and the steps that it need not try again: moves, the search for
 * other tiles and the reasons ask for some of them again. One thread; heap memory, freed by
 * plani_work_fini. Zeros are an empty one. */
struct plani_work {
    uint64_t ops;              /* built and simulated */
    uint64_t step_ops;         /* of the last step that was built to its end */
    uint32_t try_count;        /* steps asked for */
    uint32_t repeat_count;     /* those of them that were known */
    uint32_t scouted_count;    /* programs that scouts had made */
    struct plani_known *known; /* a table by hash; NULL: none yet */
    uint32_t known_count;
    plani_builder builder;        /* of the last program, whose arrays the next one takes */
    struct plani_scouts *scouts;  /* or NULL */
    struct plani_scout *scout;    /* that this is the work of; NULL: the search */
    uint64_t refused[TIER_COUNT]; /* the needs that the last refusal named, */
    bool refused_is_known;        /* all of them, and not "at least" so much */
};
typedef struct plani_work plani_work;
void plani_work_fini(plani_work *work);
/* Counts the ops of a program. step_ops 0: no step was built to its end. */
static inline void plani_count_work(plani_work *work, uint64_t ops, uint64_t step_ops)
{
    work->ops += ops;
    work->step_ops = step_ops ? step_ops : work->step_ops;
}
/* Makes the counts and the known steps those of `from`. -ENOMEM. */
int plani_work_copy(plani_work *work, const plani_work *from) MUST_CHECK;

/* The figures of one simulated step. */
struct plani_figures {
    /* Time of the step; UINT64_MAX: not simulated, since its bound is not below the limit. */
    uint64_t ns;
    uint64_t bound_ns;            /* the step cannot be shorter */
    uint64_t lane_ns[LANE_COUNT]; /* busy time of each lane */
};

/* ---- steps that are known: known.c --------------------------------------------------------- */

struct plani_known {
    uint64_t key; /* 0: none */
    int rc;       /* 0; 1: only its bound is known; ERR_NO_FIT */
    struct plani_figures step;
};
/* In a point these say that a key is not that of a step, which never holds so many stages. */
enum { PLANI_CHECK_HELD = INT32_MAX, PLANI_SERIAL_HELD = INT32_MAX - 1 };
/* A hash of all that a step depends on among the jobs of a search; never 0. */
uint64_t plani_trial_key(const plan_job *job, const struct plani_point *point);
const struct plani_known *plani_recall(const plani_work *work, uint64_t key); /* NULL: not known */
int plani_remember(plani_work *work, const struct plani_known *trial) MUST_CHECK; /* -ENOMEM */

/* ---- programs that other threads make: scouts.c --------------------------------------------- */

/* A program that is asked for by key and limit, and what was found: of a step the figures, if it is
 * below the limit; of a program in serial order the peaks. */
struct plani_answer {
    uint64_t key;      /* a hash of all that the program depends on */
    uint64_t limit_ns; /* of a step; 0: none */
    int rc;            /* 0; 1: a step is not below the limit; ERR_NO_FIT */
    struct plani_figures step;
    uint64_t peaks[TIER_COUNT];
    uint64_t ops, step_ops; /* as in plani_request */
};
/* Asks for a program of the job. 0: *asked is filled, and its work counted. 1: the caller makes the
 * program, fills *asked and calls plani_tell, which counts its work. Waits while another thread
 * makes it. A scout may also be told that a step gains nothing, which is not known yet; or -EAGAIN:
 * it begins again, -ECANCELED: it ends. */
int plani_ask(const plan_job *job, plani_work *work, struct plani_answer *asked) MUST_CHECK;
void plani_tell(plani_work *work, const struct plani_answer *made);
/* Until the end, other threads may make what the search will ask for, if job.threads allows any and
 * programs are long. The end waits for the programs that they are making. */
void plani_scouts_begin(plani_search *self);
void plani_scouts_end(plani_search *self);

/* Simulates the step that decides (steady; only_eval: EVAL) at the point, on the homes and with
 * the update of the job. `limit_ns`: a longer step is of no interest; 0: no limit. Adds its ops
 * to *work. ERR_NO_FIT where the budgets do not cover it. All jobs that share `work` are equal but
 * for homes, order, update, what is parked near, and budgets. */
int plani_try_step(const plan_job *job, const struct plani_point *point, uint64_t limit_ns,
                   struct plani_figures *step, plani_work *work) MUST_CHECK;
/* The trial: the mean time of steps with and without a commit, as they come in a run. INFINITY: it
 * is not below limit_ns. */
int plani_try(const plan_job *job, const struct plani_point *point, double limit_ns,
              double *mean_ns, plani_work *work) MUST_CHECK;

/* How steady steps commit, as far as the update says it. */
enum plan_commit plani_usual_commit(const plan_job *job);
bool plani_has_state_in_memory(const plan_job *job);
/* How many stages before the turn, or passes of each stage in parts, may hold their params: within
 * limits_reuse, and such that all params that are there at once are within live_elems_max. */
uint32_t plani_held_most(const plan_job *job);

/* How one program of a set is compiled. */
struct plani_request {
    enum program_kind kind;
    bool serial;               /* reserve memory one op at a time, and simulate nothing */
    bool whole;                /* all of the program, not only its figures */
    uint32_t ahead[TIER_NVME]; /* as in plani_point */
    uint64_t enough_ns; /* a program whose bound is not below it is not simulated; 0: all are */
    /* Out, of a steady step: its bound by phases, or for trials if it was not simulated. */
    uint64_t bound_ns;
    plan_set *bounds;       /* out: the bounds of the steady step; NULL: not asked for */
    plani_builder *builder; /* of an earlier program, whose arrays this one takes; or NULL */
    /* Out, added: ops built and simulated; ops of a step, if it was built to its end. */
    uint64_t ops, step_ops;
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
/* Those that the search tries, largest first: the candidates, and before them a coarser one, which
 * keeps the programs of large models short. */
enum { PLANI_TILES_MAX = PLANI_CANDIDATES_MAX + 1 };
uint32_t plani_list_tiles(const plan_job *job, uint64_t tiles[PLANI_TILES_MAX]);
/* Tiles below this size are tried only where larger ones do not fit. */
uint64_t plani_searched_tile(const plan_job *job);

/* ---- what a job needs: needs.c -------------------------------------------------------------- */

/* The least budget in which the arena has so many bytes, and the most bytes that it has in a
 * budget. Only nvme has overhead. */
uint64_t plani_budget_for(const plan_job *job, int arena, uint64_t bytes);
uint64_t plani_room_in(const plan_job *job, int arena, uint64_t budget_bytes);
/* True if the budgets cover the homes. */
bool plani_homes_fit(const plan_job *job, const plani_layout *layout,
                     const uint64_t budgets[TIER_COUNT]);
/* Host memory that homes leave, about. */
uint64_t plani_host_room(const plan_job *job);
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
/* Finds the tile size of the job that comes nearest to the budgets. need[]: its needs, as far as
 * they are known; *bytes: how many are beyond the budgets. */
int plani_excess(const plan_job *job, uint64_t need[TIER_COUNT], double *bytes,
                 plani_work *work) MUST_CHECK;

/* The refusal. Always ERR_NO_FIT, with a text that names every tier that is too small.
 *
 *   plani_refuse        finds the nearest tile size; names needs, budgets and the setting that fits
 *   plani_refuse_lack   names known needs, where no setting was looked for */
int plani_refuse(const plan_job *job, plani_work *work) MUST_CHECK;
int plani_refuse_lack(const plan_job *job, const uint64_t need[TIER_COUNT]) MUST_CHECK;
/* Bytes that homes nearer than `tier` leave free of their tiers, all together. */
double plani_room_nearer(const plan_job *job, const uint64_t need[TIER_COUNT], int tier);

/* ---- the programs of a point: compile.c ------------------------------------------------------ */

/* Compiles all programs of the point, on the homes of the job. ERR_NO_FIT where one has no room. */
int plani_compile_point(const plan_job *job, const struct plani_point *point, plan_set *out,
                        plani_work *work) MUST_CHECK;

/* ---- the search: starts.c, moves.c, descents.c, inner.c, ways.c, fit.c, place.c, reasons.c --- */

enum {
    /* Work of one way (an order and an update) in ops, built or simulated: what takes some tenths
     * of a second. Where a step is long, so many steps, up to what takes some seconds. */
    PLANI_SEARCH_WORK = 1000000,
    PLANI_SEARCH_STEPS = 50,
    PLANI_SEARCH_WORK_MOST = 5000000,
    PLANI_STARTS = 8,
    PLANI_FAILED_MAX = 64,
};

struct plani_scored {
    struct plani_point point;
    double score; /* INFINITY: none */
};
/* Starts whose score is above the best one by this factor are not followed. */
static const double plani_near_start = 1.3;

/* How much of the host a point gives to copies and to carried tiles, in PLANI_PARTS-th parts. */
struct plani_crowd {
    uint64_t key; /* of the placement, the tile size and the commit */
    uint32_t copied, carried;
};

struct plani_search {
    const struct plan_place_asked *asked;
    plan_job job;                      /* with homes that are ours */
    uint8_t *homes[STATE_KIND_COUNT];  /* [unit_count] */
    uint32_t *units[STATE_KIND_COUNT]; /* [count] those whose home is open, in order of need */
    /* [count] the same units in an order of which every first part is spread evenly over them. A
     * tier that takes a part of a kind is then used all the time, and not only while one range of
     * units passes. */
    uint32_t *spread[STATE_KIND_COUNT];
    uint32_t counts[STATE_KIND_COUNT];
    uint64_t *bytes[STATE_KIND_COUNT]; /* [unit_count] that rest; of inner activations all */
    uint64_t *selective_bytes;         /* [unit_count] of inner activations kept selectively */
    bool is_selective; /* the search has come to selective placements: `whole` may change */
    bool is_closed;    /* plan_compile: homes, and what is parked, are given */
    bool fails[PLANI_TILES_MAX]; /* with is_closed: tile sizes with which some program fails */
    bool checks_all;             /* the other programs of a point too, before it is taken */
    /* With so much some program failed that no trial looked at. Full: nothing is copied or carried
     * any more. */
    struct plani_crowd failed[PLANI_FAILED_MAX];
    uint32_t failed_count;
    uint32_t tile_first; /* of plani_list_tiles, at which the first point fitted */
    bool last_fits;      /* the last trial did, whether or not it gained */
    bool is_hopeless;    /* the homes alone fit nowhere, which no trial needs to show */
    /* Bytes that pass through the device, beside homes, where nothing is parked near; 0: not
     * known. */
    uint64_t passing_bytes;
    plani_work *work;              /* the caller's */
    uint64_t work_begin, work_end; /* of the way that is searched */
    uint64_t tries_end;            /* the same in steps */
    uint32_t compiles;
    int frozen;     /* coordinate that no move changes, or PLANI_COORDINATES and a kind of state */
    uint64_t drawn; /* the last drawn number (descents.c) */
    bool may_shorten; /* moves may change `ahead`; where homes are given they always may */
    bool trades_far;  /* what gives way on the device may go to the drives at once */
    /* A move that gains nothing alone is also tried with no held stages, then with finer tiles too,
     * and with units that leave the host for the device. */
    bool moves_together;
    bool is_reversed;                         /* the last move is tried first */
    enum update update;                       /* of the way that is searched */
    bool has_fit;                             /* some start with this update */
    double room_bytes[TIER_NVME];             /* for open homes, beside what passes */
    struct plani_scored starts[PLANI_STARTS]; /* the best ones, shortest first */
    uint32_t start_count;
    struct plani_point winner; /* what is compiled in the end */
    struct plani_scored best;  /* of the way that is searched; in the end, of all */
};

int plani_search_init(plani_search *self, const struct plan_place_asked *asked,
                      plani_work *work) MUST_CHECK;
void plani_search_fini(plani_search *self);
/* The open unit `idx` of the kind, in the order in which the point counts them. */
static inline uint32_t plani_unit_at(const plani_search *self, const struct plani_point *point,
                                     int kind, uint32_t idx)
{
    bool is_spread = point->spread >> kind & 1;
    return is_spread ? self->spread[kind][idx] : self->units[kind][idx];
}
/* Bytes of a unit's state at such a home (recomputed: all); and of the open unit `idx` of the kind
 * where the point keeps it. */
uint64_t plani_bytes_at_home(const plani_search *self, int kind, uint32_t unit, unsigned home);
uint64_t plani_open_bytes(const plani_search *self, const struct plani_point *point, int kind,
                          uint32_t idx);
/* How many steps were simulated. */
uint64_t plani_search_tries(const plani_search *self);
/* Returns false once the search has used up its work. */
bool plani_search_may_go_on(const plani_search *self);
/* 0 if all programs of the applied point have room in serial order, without copies, which a refusal
 * names; ERR_NO_FIT. */
int plani_search_check(plani_search *self, const struct plani_point *point) MUST_CHECK;
/* How much of the host the point, which is applied, gives to copies and carried tiles. */
struct plani_crowd plani_crowd_of(const plani_search *self, const struct plani_point *point);
/* Tries the point; if its score is below that of *best it becomes *best, and *gained true. */
int plani_search_try(plani_search *self, const struct plani_point *point, struct plani_scored *best,
                     bool *gained) MUST_CHECK;
/* The same for a point that was tried before, so that its step is known: also without work left. */
int plani_search_try_again(plani_search *self, const struct plani_point *point,
                           struct plani_scored *best, bool *gained) MUST_CHECK;

/* The coordinates of a point beside its homes. Numbers move up and down by a part of their range.
 * Tiles get finer or coarser. PLANI_COMMIT, PLANI_PARKED_ON, PLANI_FETCH and PLANI_SPREAD change
 * between two values. */
enum {
    PLANI_COPIES,
    PLANI_CARRIED,
    PLANI_HELD,
    PLANI_TILE,
    PLANI_AHEAD_DEVICE,
    PLANI_AHEAD_HOST,
    PLANI_COMMIT,
    PLANI_PARKED,
    PLANI_PARKED_ON,
    PLANI_WHOLE,
    PLANI_FETCH,
    PLANI_SPREAD, /* and so on, one for each kind of state */
    PLANI_COORDINATES = PLANI_SPREAD + STATE_KIND_COUNT,
    PLANI_NONE_FROZEN = -1
};
/* Makes the move from the point, which is applied; false: it is none. Up: more, or finer tiles. */
bool plani_move_mode(const plani_search *self, struct plani_point *point, int coordinate,
                     uint32_t part, bool up);
/* False where the point has no home of the kind: gradients go straight into their update. */
bool plani_has_homes(const plani_search *self, const struct plani_point *point, int kind);
/* Each tries moves from *best, and makes every better point *best; *gained: there was one. A move
 * that gains is repeated with twice the step.
 *
 *   plani_try_modes     the moves above, except the frozen ones, by the `part`-th part of a range
 *   plani_try_kinds     of boundaries, by the `part`-th part of the units of a kind; and trades
 *   plani_try_relieved  the point itself; if it does not fit, those that need less memory. With
 *                       moves_together, some of them also if it fits and gains nothing: where
 *                       memory is short, a step waits for it */
int plani_try_modes(plani_search *self, struct plani_scored *best, uint32_t part,
                    bool *gained) MUST_CHECK;
int plani_try_kinds(plani_search *self, struct plani_scored *best, uint32_t part,
                    bool *gained) MUST_CHECK;
int plani_try_relieved(plani_search *self, struct plani_point point, struct plani_scored *best,
                       bool *gained) MUST_CHECK;

/* Goes down from the point by moves of the `part`-th part and less. Where the result is better than
 * the best point it becomes self->best, and *gained true. */
int plani_descend(plani_search *self, struct plani_scored *from, uint32_t part,
                  bool *gained) MUST_CHECK;
/* Each goes on from the best point, and fills self->best.
 *
 *   plani_try_settings   descents with one setting changed by much, until none gains
 *   plani_improve        these, memory that is reserved less far ahead, and drawn points
 *   plani_try_selective  units that keep a part of their inner activations
 *   plani_try_shares     more or fewer units that keep their inner activations, spread evenly over
 *                        all of them: the others recompute while drives and links work for those
 *                        that keep */
int plani_try_settings(plani_search *self) MUST_CHECK;
int plani_improve(plani_search *self) MUST_CHECK;
int plani_try_selective(plani_search *self) MUST_CHECK;
int plani_try_shares(plani_search *self) MUST_CHECK;

/* Searches all orders and updates that are open: fills self->best. plani_walk_ways is the same
 * without scouts, as scouts do it. */
int plani_search_ways(plani_search *self) MUST_CHECK;
int plani_walk_ways(plani_search *self) MUST_CHECK;
/* The best point of that search; NULL: nothing was found to fit. */
struct plani_scored *plani_search_best(plani_search *self);

/* Fills self->starts with points of the job's order and self->update, for about an eighth of the
 * work. */
int plani_try_starts(plani_search *self) MUST_CHECK;
/* Bytes of homes beyond the budgets, by arena, of the job as applied. */
int plani_home_excess(plani_search *self, double bytes[TIER_COUNT]) MUST_CHECK;

/* 0: *point fits, and takes need[] bytes of each tier at least. 1: no placement was found, and
 * need[] is of the last far placement that was tried, as far as that was looked at. After so many
 * ops of work only the first update and the coarsest tiles are tried. */
int plani_find_fit(plani_search *self, uint64_t work_end, struct plani_point *point,
                   uint64_t need[TIER_COUNT]) MUST_CHECK;
/* The least budget of one tier that was found to be enough while the others keep theirs.
 * UINT64_MAX: none was found. Ends about at so many ops of work. */
int plani_find_least(plani_search *self, int tier, uint64_t work_end, uint64_t *bytes) MUST_CHECK;

/* Gives the reasons of self->winner, which is applied and `found` holds compiled. */
int plani_give_reasons(plani_search *self, struct plan_place_found *found) MUST_CHECK;

#endif
