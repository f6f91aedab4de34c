/* What the two files of a recut share. See state_recut. */
#ifndef SLUICE_STATE_RECUT_INTERNAL_H
#define SLUICE_STATE_RECUT_INTERNAL_H

#include "state/rank_slabs.h"
#include "state/state_internal.h"

enum { RECUT_TILES_MAX = 64 };

/* A tile of either layout. */
struct recut_tile {
    uint32_t unit, tile;
    uint8_t is_of_state; /* new: it is of state, not of params; old: it is read for such */
    uint32_t rank;       /* old: whose slab it is on */
    uint64_t elem_begin, elem_count; /* of the whole unit, whatever the rank */
    uint64_t use_end;                /* old: of this rank's elements, the last in it and one */
    uint64_t offset, size_bytes;     /* on its slab */
    uint32_t param_bytes;            /* of params; 0: it is of optimizer state */
    uint64_t checksum;               /* old: as the commit has it; new: as written */
    place_entry *entry;              /* new */
};
typedef struct recut_tile recut_tile;

/* Memory for one tile and its transfer. */
struct recut_slot {
    io_request transfer; /* its user: the slot */
    unsigned char *data;
    const struct recut_side *side;
    const recut_tile *tile;
    enum {
        RECUT_FREE,
        RECUT_IN_FLIGHT,
        RECUT_READ,    /* old: read, its sum not compared */
        RECUT_COMPARED /* old: may be copied from */
    } phase;
};
typedef struct recut_slot recut_slot;

struct recut_side {
    const char *name;  /* of the layout, for messages */
    rank_slabs *slabs; /* old */
    io *transport;     /* new */
    uint64_t tile_count;
    recut_tile *tiles;                 /* [tile_count] by unit, is_of_state, elem_begin */
    void *block;                       /* memory of all slots */
    recut_slot slots[RECUT_TILES_MAX]; /* tile i in slots[i % slot_count] */
    uint32_t slot_count;
    uint64_t begun, ended; /* tiles submitted; old: of these, used up */
};
typedef struct recut_side recut_side;

struct recut {
    const struct state_recut *work;
    recut_side old, fresh;
    uint32_t old_world, world;
    /* code of the committed layout; another than the new one's for an import */
    uint32_t old_streams;
    uint32_t copy_rank;               /* where each old rank has the whole state: whose is read */
    uint64_t total_bytes, done_bytes; /* of the new tiles */
    uint64_t begin_ns, told_ns;
};
typedef struct recut recut;

/* The tiles that are read, and those that are written: sides' tiles and tile_count. */
int recut_list_old(recut *self) MUST_CHECK;
int recut_list_fresh(recut *self) MUST_CHECK;
/* Both lists are of the same units, whole, and lie on their slabs. */
int recut_check_work(const recut *self) MUST_CHECK;
/* Of old ranks that all have the whole state: this rank's own slab, else the first that can be
 * seen. */
int recut_choose_copy(const struct state_recut *work, uint32_t world, uint32_t *out) MUST_CHECK;

#endif
