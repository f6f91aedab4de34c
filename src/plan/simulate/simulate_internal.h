/* From serial order to a program. Each transient gets its place first, which turns reuse of memory
 * into dependencies. Then ops get their urgency, and a simulation starts them in time. Lower
 * bounds say how short the program can be at best.
 *
 * Pure and deterministic; heap memory, freed on return. */
#ifndef SLUICE_PLAN_SIMULATE_INTERNAL_H
#define SLUICE_PLAN_SIMULATE_INTERNAL_H

#include "plan/emit/emit_internal.h"

enum {
    /* Programs that move all state through memory, and saves within a step, could fill the whole
     * host budget; so many ops ahead keep every drive and link busy. For large tiles it is as many
     * as hold about the third figure in bytes, but not fewer than the second. With 64 ops ahead,
     * saving GPT-2 124M in tiles of 4 Mi elements took 720 MiB of host memory; now it is 224. */
    PLANI_LOOKAHEAD_OF_SAVES = 64,
    PLANI_LOOKAHEAD_OF_LARGE_SAVES = 16,
    PLANI_SAVES_BYTES = 256 << 20,
};

/* How many ops ahead memory of saves is reserved. */
static inline uint64_t plani_saves_ahead(const plani_builder *b)
{
    uint64_t tile_bytes = tile_state_bytes(b->job->state_streams, b->set->tile_elems);
    /* a tile has two ops, d2h and write, unless it rests on the host */
    uint64_t ops = 2 * (PLANI_SAVES_BYTES / size_max(tile_bytes, 1));
    return size_max(size_min(ops, PLANI_LOOKAHEAD_OF_SAVES), PLANI_LOOKAHEAD_OF_LARGE_SAVES);
}

/* The library's fmax and fmin are calls. */
static inline double plani_larger(double a, double b)
{
    return a > b ? a : b;
}
static inline double plani_smaller(double a, double b)
{
    return a < b ? a : b;
}

/* ---- demands and rates: resources.c --------------------------------------------------------- */

/* The needs of an op: shares of the resources and, for an op that is served before all others, its
 * cores. */
enum { PLANI_SERVED = RESOURCE_COUNT, PLANI_NEEDS };

struct plani_share {
    double demand[RESOURCE_COUNT]; /* seconds of the whole resource that the op needs */
    double alone_seconds;          /* its time when nothing else runs */
    double need[PLANI_NEEDS];      /* at full speed; RESOURCE_CORES or PLANI_SERVED is 0 */
    double slows_drives; /* share of the drives' rate that they lose while it runs at full speed */
    double rate;         /* out: share of the op done per second */
};
void plani_demand(const plan_machine *machine, const op_demand *demand, struct plani_share *share);
/* Max-min fair rates of ops that run together; at most LANE_COUNT. */
void plani_share_rates(struct plani_share *const *running, uint32_t count);

/* ---- one arena's memory: space.c ------------------------------------------------------------ */

struct plani_piece { /* a stretch and the transient that used it last */
    uint64_t begin, end;
    uint32_t buffer_idx;
    bool live;
};
struct plani_gap { /* a longest stretch without live pieces */
    uint64_t begin, end;
};
struct plani_space_class { /* buffers of one size and residue, that may lie from there on */
    uint64_t size_bytes, residue, from_bytes;
    uint64_t lowest; /* no place for one below; UINT64_MAX: no place at all */
};
struct plani_space {
    struct plani_piece *pieces; /* sorted, disjoint; what lies between them was never used */
    uint64_t count, capacity;   /* without pieces `count` is that of live buffers */
    struct plani_gap *gaps;     /* sorted, none empty */
    uint64_t gap_count, gap_capacity;
    uint64_t gap_recent; /* where the last place was found */
    struct plani_space_class *classes;
    uint32_t class_count, class_capacity, class_recent;
    uint64_t floor_bytes, budget_bytes; /* transients live in [floor, budget) */
};
/* Called for each buffer whose bytes a fresh one takes over; below 0 stops. */
typedef int plani_space_order(void *context, uint32_t held_idx, uint32_t fresh_idx);

void plani_space_init(struct plani_space *space, uint64_t floor_bytes, uint64_t budget_bytes);
void plani_space_fini(struct plani_space *space);
/* The lowest place for such a buffer from `from_bytes` on in *offset; UINT64_MAX where there is
 * none now. */
int plani_space_find(struct plani_space *space, uint64_t size_bytes, uint64_t residue,
                     uint64_t from_bytes, uint64_t *offset) MUST_CHECK;
/* True if nothing live lies in [begin, end). */
bool plani_space_is_free(const struct plani_space *space, uint64_t begin, uint64_t end);
/* Gives [begin, end), which is free, to the buffer. `order` may be NULL, but then in all calls for
 * the space: no pieces are kept, so nobody knows who used the bytes before. */
int plani_space_take(struct plani_space *space, uint64_t begin, uint64_t end, uint32_t fresh,
                     plani_space_order *order, void *context) MUST_CHECK;
/* Frees the whole of the live buffer that lies there. */
void plani_space_release(struct plani_space *space, uint64_t begin, uint64_t end);

/* A hash of words, whose low bits are good. */
static inline uint64_t plani_hash_words(const uint64_t *words, size_t count)
{
    uint64_t hash = 0;
    for (size_t i = 0; i < count; i++)
        hash = (hash ^ words[i]) * UINT64_C(0x9e3779b97f4a7c15);
    return hash >> 32;
}

/* ---- the graph and its urgency: urgency.c --------------------------------------------------- */

/* The graph that all simulations of a builder's ops share. The second part is linked anew for each
 * of them. */
struct plani_graph {
    uint64_t *in_begin;             /* [op_count + 1] in builder.edges: data dependencies by `to` */
    uint32_t *chain, *chain_before; /* [op_count] next and last op of the compute lane's chain */
    /* Demands. Most ops ask the same of the machine as others, of other tiles and layers:
     * shares[share_of[i]] is what op i asks for. */
    struct plani_share *shares; /* [share_count] */
    uint32_t *share_of;         /* [op_count] */
    uint64_t share_count, share_capacity;
    /* Seconds that all ops together keep a resource busy, and that those of a lane take alone. */
    double work[RESOURCE_COUNT], lane_work[LANE_COUNT];
    uint8_t *lanes; /* [op_count] those of the ops, side by side */
    uint64_t lane_count[LANE_COUNT];
    /* Linked: dependencies of data and of memory, but not of the chain. */
    uint64_t *from_begin, *to_begin; /* [op_count + 2] in successors, predecessors */
    uint32_t *successors, *predecessors;
    uint64_t capacity;
    double *tail; /* [op_count] the longest path from the start of the op to the end of all */
    /* Lanes that get in each other's way are one line. In a line ops have ranks by their latest
     * start: a higher rank is more urgent. */
    uint32_t *rank;                  /* [op_count] of each op in its line */
    uint32_t *by_rank;               /* [op_count] the ops of each line */
    uint64_t line_begin[LANE_COUNT]; /* of each lane's line in by_rank */
    uint64_t line_count[LANE_COUNT]; /* the ops of each lane's line */
};
static inline struct plani_share *plani_share_of(const struct plani_graph *g, uint64_t op_idx)
{
    return &g->shares[g->share_of[op_idx]];
}
/* The lane that shares the drives with this one, or the one thread that copies for a CPU;
 * LANE_COUNT: there is none. */
int plani_rival_lane(const plan_machine *machine, int lane);
int plani_graph_create(const plani_builder *b, struct plani_graph **out) MUST_CHECK;
/* Links the graph and ranks its ops. 1: it has a path of `enough` seconds or more, and is not
 * ranked. */
int plani_graph_link(struct plani_graph *g, const plani_builder *b, double enough) MUST_CHECK;

/* ---- ready ops: ready.c --------------------------------------------------------------------- */

/* The ops of each lane that are ready, by their rank in the lane's line. One thread; heap memory,
 * freed by plani_ready_fini. */
enum { PLANI_READY_LEVELS = 6 }; /* 64^6 is more than 2^32 */
struct plani_ready {
    /* Bit n of the first level is rank n. Bit n of each other level says whether word n of the
     * level before has bits. The last level has one word. */
    uint64_t *words[LANE_COUNT][PLANI_READY_LEVELS];
    int levels;
    uint64_t count[LANE_COUNT];
};
int plani_ready_init(struct plani_ready *ready, const struct plani_graph *graph) MUST_CHECK;
void plani_ready_fini(struct plani_ready *ready);
void plani_ready_push(struct plani_ready *ready, int lane, uint32_t rank);
/* The highest rank; there is one. */
uint32_t plani_ready_first(const struct plani_ready *ready, int lane);
/* Removes one that is there. */
void plani_ready_take(struct plani_ready *ready, int lane, uint32_t rank);

/* ---- places: reserve.c ---------------------------------------------------------------------- */

struct plani_peaks {
    uint64_t bytes[TIER_COUNT];  /* the end of the highest buffer */
    uint32_t buffer[TIER_COUNT]; /* which that is */
};
/* ERR_NO_FIT: some op has no room, however places are chosen, since what lies in an arena while it
 * runs is larger. 0: plani_reserve must say it. Linear, and needs no graph. */
int plani_check_room(const plani_builder *b, const uint64_t budget_bytes[TIER_COUNT]) MUST_CHECK;
/* Fills in the transients' offsets, and adds as edges what their places cost; with `only_fits` no
 * edges. ERR_NO_FIT. */
int plani_reserve(plani_builder *b, const struct plani_graph *graph,
                  const uint64_t budget_bytes[TIER_COUNT], const uint64_t lookahead_ops[TIER_COUNT],
                  bool only_fits, struct plani_peaks *peaks) MUST_CHECK;

/* ---- caps on gathered params: caps.c --------------------------------------------------------- */

/* Gathered params on the device during a simulation. Heap memory, freed by plani_caps_fini.
 *
 *   reserved ---- all-gather ---- first use ---- ... ---- last use
 *   |<-------- ahead ----------->|
 *   |<----------------------- live ------------------------------>|
 */
struct plani_caps {
    const plani_builder *b;
    uint8_t *is_ahead;   /* [buffer_count] 1: params that nothing uses yet; NULL: there is no cap */
    uint32_t *uses_left; /* [buffer_count] users that are not complete */
    uint64_t live_most, ahead_most;
    uint64_t live_elems, ahead_elems;
};
int plani_caps_init(struct plani_caps *caps, const plani_builder *b) MUST_CHECK;
void plani_caps_fini(struct plani_caps *caps);
/* With a cap: whether the buffer, a target of an all-gather, may be filled now. */
bool plani_caps_allow(const struct plani_caps *caps, uint32_t buffer_idx);
/* Counts the start of the gather that fills the buffer, and the start and the end of any op. */
void plani_caps_take(struct plani_caps *caps, uint32_t buffer_idx);
void plani_caps_start(struct plani_caps *caps, uint32_t op_idx);
void plani_caps_complete(struct plani_caps *caps, uint32_t op_idx);

/* ---- time: simulate.c ----------------------------------------------------------------------- */

/* Places and simulates the builder's ops. With `whole` it fills *out; without, only what a choice
 * between programs needs: predicted_ns, lane_busy_ns, peaks, budgets. `lookahead_ops` 0 is no
 * limit, 1 needs the least memory. ERR_NO_FIT when memory ran out. 1: the program surely takes
 * `enough_ns` or longer, and is not simulated to its end; 0 is no such limit. The builder can be
 * scheduled again. */
int plani_schedule(plani_builder *b, enum program_kind kind,
                   const uint64_t budget_bytes[TIER_COUNT],
                   const uint64_t lookahead_ops[TIER_COUNT], uint64_t enough_ns, bool whole,
                   program *out) MUST_CHECK;
/* Peaks and budgets alone, with a lookahead of 1: what the serial order needs. ERR_NO_FIT. */
int plani_schedule_serial(plani_builder *b, enum program_kind kind,
                          const uint64_t budget_bytes[TIER_COUNT], program *out) MUST_CHECK;

/* ---- lower bounds: bound.c ------------------------------------------------------------------ */

/* Lower bounds of the program's time from the data dependencies alone, for a run that commits or
 * does not. plan_set.bound_ns and schedule_bound_ns define the first and the last; the one between
 * costs as little as the first and is for trials. The builder has its graph. -ENOMEM. */
int plani_phases_bound(const plani_builder *b, bool commits, uint64_t *ns) MUST_CHECK;
int plani_trial_bound(const plani_builder *b, bool commits, uint64_t *ns) MUST_CHECK;
int plani_schedule_bound(const plani_builder *b, bool commits, uint64_t *ns) MUST_CHECK;

/* ---- times without some ops: replay.c ------------------------------------------------------- */

/* Times the program's ops again, in its own order, without those left out: they are done from the
 * start. Fills start and end of the others, and the length of the whole. -ENOMEM. */
int plani_replay(const plan_machine *machine, const program *prog, const bool *is_left_out,
                 uint64_t *start_ns, uint64_t *end_ns, uint64_t *length_ns) MUST_CHECK;

#endif
