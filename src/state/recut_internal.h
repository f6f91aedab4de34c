/* Declarations that recut.c and recut_layout.c share. See state_recut in state_internal.h. */
#ifndef SLUICE_STATE_RECUT_INTERNAL_H
#define SLUICE_STATE_RECUT_INTERNAL_H

#include "state/rank_slabs.h"
#include "state/state_internal.h"

enum { RECUT_TILES_MAX = 64 };

/* A tile of the old (committed) or of the new layout. Members marked "old:" or "new:" are set in
 * such tiles only. */
struct recut_tile {
    uint32_t unit, tile;
    /* 1: optimizer state; 0: params. old: the tile is read to make such a new tile. */
    uint8_t is_of_state;
    uint32_t rank;                   /* old: the rank whose slab has it */
    uint64_t elem_begin, elem_count; /* counted in the whole unit, not in a shard */
    /* old: one past the last element in it that this rank needs */
    uint64_t use_end;
    uint64_t offset, size_bytes; /* its place on its slab */
    uint32_t param_bytes;        /* bytes of one param; 0: a tile of optimizer state */
    uint32_t streams;            /* the streams code of optimizer state; 0: params */
    uint64_t checksum;           /* old: in the manifest; new: of what is written */
    place_entry *entry;          /* new: its entry in the place table; old: NULL */
};
typedef struct recut_tile recut_tile;

/* Memory for one tile and its transfer. */
struct recut_slot {
    io_request transfer; /* its user pointer is the slot */
    unsigned char *data;
    const struct recut_side *side;
    const recut_tile *tile;
    enum {
        RECUT_FREE,
        RECUT_IN_FLIGHT,
        RECUT_READ,    /* old: read, but its sum is not compared yet */
        RECUT_COMPARED /* old: its sum was right; it may be copied from */
    } phase;
};
typedef struct recut_slot recut_slot;

struct recut_side {
    const char *name;  /* name of the layout, for messages */
    rank_slabs *slabs; /* of the old layout; else NULL */
    io *transport;     /* of the new layout; else NULL */
    uint64_t tile_count;
    recut_tile *tiles;                 /* [tile_count] sorted by unit, is_of_state, elem_begin */
    void *block;                       /* memory of all slots */
    recut_slot slots[RECUT_TILES_MAX]; /* tile i in slots[i % slot_count] */
    uint32_t slot_count;
    uint64_t begun, ended; /* begun: tiles submitted; ended (old): tiles that are used up */
};
typedef struct recut_side recut_side;

struct recut {
    const struct state_recut *work;
    recut_side old, fresh;
    uint32_t old_world, world;
    /* If each old rank has the whole state: the rank whose copy is read. */
    uint32_t copy_rank;
    uint64_t total_bytes, done_bytes; /* bytes of the new tiles */
    uint64_t begin_ns, reported_ns;
};
typedef struct recut recut;

/* List the tiles that are read and those that are written: tiles and tile_count of each side. */
int recut_list_old(recut *self) MUST_CHECK;
int recut_list_fresh(recut *self) MUST_CHECK;
/* Checks that both lists have the same whole units, and that the new tiles lie on their slab. */
int recut_check_work(const recut *self) MUST_CHECK;
/* For old ranks that each have the whole state: chooses this rank's own slab, else the first one
 * that can be seen from here. */
int recut_choose_copy(const struct state_recut *work, uint32_t world, uint32_t *out) MUST_CHECK;

#endif
