/* What the files share that make the per-tile work of a unit: emit.c and durable.c. */
#ifndef SLUICE_PLAN_EMIT_H
#define SLUICE_PLAN_EMIT_H

#include "plan/plan_internal.h"

/* Tile work of one unit and tile. */
struct plani_tile {
    uint32_t unit, tile;
    uint64_t begin, count;  /* elements */
    enum tier where;        /* where the work runs */
    uint32_t params_home;   /* where the new working copy goes */
    uint32_t device_params; /* also wanted there, or PROGRAM_NONE */
    uint32_t high;          /* of a split master: the buffer with its high half; or PROGRAM_NONE */
    enum plani_tile_work work;
    uint32_t after;
    plani_range closed; /* the tile's gradient where it never rests; else of 0 bytes */
};

/* Where the tiles' new params go, and how the ranks' come together behind them. */
struct plani_new_params {
    uint32_t unit;
    uint32_t
        tiles_to; /* where tiles take them: the home, or a shard on the device to be gathered */
    uint32_t tiles_also_to; /* PROGRAM_NONE, or on the device */
    uint32_t high;          /* where tiles take the high half of a split master, or PROGRAM_NONE */
    uint32_t shard;         /* to be gathered into `whole` behind the last tile, or PROGRAM_NONE */
    uint32_t whole, home;
};

/* A tile of `elems` elements: those of the unit's optimizer state, of its shard, or of all of it. */
struct plani_tile plani_tile_at(const plani_builder *b, uint32_t unit, uint64_t elems,
                                uint64_t tile);
uint64_t plani_tiles_of(const plani_builder *b, uint64_t elems);
/* The bytes of elements [begin, begin + count) in a buffer of `elem_bytes` each. */
plani_range plani_elems(uint32_t buffer_idx, uint64_t begin, uint64_t count, uint64_t elem_bytes);
/* The tile's place in a buffer of the unit's optimizer state. */
plani_range plani_tile_state(const plani_builder *b, const struct plani_tile *t,
                             uint32_t buffer_idx);
/* The tile's share of a buffer of params. */
plani_range plani_tile_params(const plani_builder *b, const struct plani_tile *t,
                              uint32_t buffer_idx);
/* A transfer of the tile's share of a state. */
void plani_tile_transfer(plani_builder *b, const struct plani_tile *t, plani_range source,
                         plani_range target, enum state_kind kind);
/* What the tile's work asks of the machine. */
void plani_work_demand(plani_builder *b, uint32_t idx, const struct plani_tile *t);
/* Around the work on all tiles of a unit; `wanted`: a device buffer, or PROGRAM_NONE. */
struct plani_new_params plani_begin_params(plani_builder *b, uint32_t unit, uint32_t wanted);
void plani_finish_params(plani_builder *b, const struct plani_new_params *made);

#endif
