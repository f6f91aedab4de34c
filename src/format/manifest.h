/* The manifest: the small checksummed record that makes the slabs a checkpoint.
 *
 *   state/manifest-0, manifest-1       commit of generation g writes slot g mod 2, whole, then fsync;
 *                                      the other slot, with the commit before, is not touched
 *   newest valid slot                  is the state of the run
 *   state/manifest-<n>.new             a slot's first, until it is whole; means nothing
 *
 *   BEGUN --(first commit)--> COMMITTED --(commit)--> COMMITTED ...         two places per extent
 *   BEGUN --> RUNNING --(clean stop)--> COMMITTED --(next start)--> RUNNING   one place (commit_every 0)
 *
 * The byte layout is a table in tiers/FORMAT.md and manifest_internal.h. Little-endian. One thread per
 * manifest and directory. Failpoints (base/failpoint.h): manifest.begin, .half, .written, .synced. */
#ifndef SLUICE_FORMAT_MANIFEST_H
#define SLUICE_FORMAT_MANIFEST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/tile.h"
#include "base/words.h"

enum {
    MANIFEST_UUID_BYTES = 16,
    MANIFEST_TEXT_BYTES = 4096,
    MANIFEST_REASON_BYTES = 256,
    MANIFEST_RANKS_MAX = 1024,
    MANIFEST_HOST_BYTES = 64
};

enum manifest_state {
    MANIFEST_COMMITTED = 1, /* the extents are the state after `step` */
    MANIFEST_RUNNING = 2,   /* the extents are being changed in place: cannot be resumed */
    MANIFEST_BEGUN = 3      /* a new run's first: it names the slabs, which hold nothing yet */
};

/* Where one tile of one unit's optimizer state rests on the slab; or of the params of a unit that does not learn,
 * which has no such state. Of a split master (base/tile.h) each tile has two extents, one behind the other: its
 * params, which are the high halves, and its state with the low ones. */
struct manifest_extent {
    uint32_t unit, tile;   /* tile: of the rank's shard of the unit, from 0 */
    uint64_t offset_bytes; /* in the nvme address space: of the place that the commit names */
    uint64_t size_bytes;   /* of the extent, padding included */
    uint64_t elem_begin;   /* within the whole unit, whatever the rank */
    uint64_t
        elem_count;    /* the last ones of a unit cut over ranks may lie behind its end: padding */
    uint64_t checksum; /* XXH3-64 of the streams' elements, padding excluded */
    uint32_t rank;     /* on whose slab it lies; 0 where is_replicated */
    uint32_t
        param_bytes; /* 0: optimizer state. 2 or 4: params alone, of so many bytes each, elem_count of
                             them without padding: the unit is frozen or the master split */
};
typedef struct manifest_extent manifest_extent;

/* Bytes of an element of the extent's first stream: a master weight, or one of params. Not of a split master. */
static inline uint64_t manifest_weight_bytes(const manifest_extent *self)
{
    return self->param_bytes ? self->param_bytes : sizeof(float);
}

struct manifest_rank {
    char host
        [MANIFEST_HOST_BYTES]; /* that the rank ran on, zeros behind it; "": not noted (one rank) */
    uint32_t local_rank;       /* below rank_count */
};
typedef struct manifest_rank manifest_rank;

/* Slab files: "<drive>/sluice-<uuid>/rank-<r>-drive-<d>.slab" on the rank's host, where <drive> is drives[d]
 * with "{rank}", "{local_rank}" and "{host}" replaced by the rank's. */
struct manifest_slabs {
    uint8_t uuid[MANIFEST_UUID_BYTES];
    uint32_t drive_count;
    char drives[DRIVES_MAX][MANIFEST_TEXT_BYTES];
    uint32_t rank_count; /* 0 acts as 1 */
    manifest_rank ranks[MANIFEST_RANKS_MAX];
};
typedef struct manifest_slabs manifest_slabs;

/* `path` with its placeholders replaced. False where the result has no room in out[out_bytes]. */
bool manifest_expand_path(const char *path, uint32_t rank, uint32_t local_rank, const char *host,
                          char *out, uint64_t out_bytes);

enum { MANIFEST_UUID_TEXT_BYTES = 2 * MANIFEST_UUID_BYTES + 1 };

/* The uuid of slabs as it stands in their paths, 32 hex digits. Returns `text`. */
const char *manifest_uuid_text(const manifest_slabs *slabs, char text[MANIFEST_UUID_TEXT_BYTES]);

/* About 290 KiB: static or heap memory.
 *
 * What is written and what is read has been checked (manifest_check.c), so that nobody need ask again:
 * texts end; extents are sorted by (unit, rank, tile), units and tiles from 0 without a gap; a rank's tiles
 * of a unit hold its shard, tile_elems each but for the last, and all ranks' shards are equal and follow
 * each other from element 0 without a gap (base/shard.h); offsets are multiples of 4 KiB and a rank's
 * extents lie within total_bytes, apart from each other (asked of what is read alone); size_bytes is
 * tile_bytes of base/tile.h where state_streams is known, of params elem_count times param_bytes, which
 * is the same for all of them, and all extents of a unit are of one kind; with split masters an extent of state
 * follows that of the same tile's params; a commit has slabs and extents; BEGUN is at
 * step 0; total_bytes and stripe_bytes are 0 together, before the slabs are made and never in a commit;
 * the scaler's numbers are such as loss_scaler_load takes; skipped_count is at most step;
 * `stray` is not `slabs`. */
struct manifest {
    enum manifest_state state;
    uint64_t generation; /* grows by one with each write; slot = generation mod 2 */
    manifest_slabs slabs;
    /* Slabs of no use any more, or not yet, when this was written: to be removed before the run goes on.
     * drive_count 0: none. */
    manifest_slabs stray;
    uint64_t fingerprint;  /* XXH3-64 of `identity`; where that is "", of what version 2 hashed */
    uint64_t step;         /* optimizer steps completed */
    uint64_t window_count; /* sampler position */
    uint64_t seed;
    uint64_t skipped_count;
    double loss_scale; /* of the next step; with the three below the state of train/loss_scale.h */
    uint64_t scale_iteration;       /* steps that the loss scaler has counted */
    int64_t scale_last_overflow;    /* of them the last one that overflowed, from 0; -1: none */
    uint64_t scale_hysteresis_left; /* overflows until the scale is halved */
    uint64_t tile_elems;
    uint64_t total_bytes, stripe_bytes; /* of each rank's slab */
    uint32_t world_size; /* ranks of the run; 0 acts as 1; slabs.rank_count is the same */
    uint32_t zero_stage;
    bool
        is_replicated; /* of several ranks each has the whole state (stage 0): the extents are those of
                           rank 0, and every rank's slab has the same bytes in the same places */
    uint32_t
        state_streams; /* of a tile: 3 (Adam) or 2; 0: a slot of version 2, which does not say */
    /* What the bits depend on, "key=value\n" lines: model, dtypes, kernels; "" in a slot of version 2. */
    char identity[MANIFEST_TEXT_BYTES];
    uint64_t extent_count;
    manifest_extent *extents; /* mem_alloc'd */
};
typedef struct manifest manifest;

void manifest_fini(manifest *self);

/* Whether the extent has the low halves of a split master; the extent before it has the high ones. */
static inline bool manifest_is_low(const manifest *self, uint64_t idx)
{
    return tile_master_is_split(self->state_streams) && self->extents[idx].param_bytes == 0;
}

/* Whether it has the high halves, and the extent behind it the low ones. */
static inline bool manifest_is_high(const manifest *self, uint64_t idx)
{
    return self->extents[idx].param_bytes && idx + 1 < self->extent_count &&
           manifest_is_low(self, idx + 1);
}

/* Copies all but the extents, which stay the target's. */
void manifest_copy_header(manifest *target, const manifest *source);

/* Writes the slot generation mod 2 under `state_dir`, fsync of file and directory. Allocates nothing. The
 * other slot is only looked at. -EINVAL for a record that manifest_read would refuse, with nothing changed;
 * else -errno or a failpoint's code: the other slot still counts, also for later readers. */
int manifest_write(const char *state_dir, const manifest *self) MUST_CHECK;

/* Reads the newest valid slot, warning of a damaged newer one, and makes both durable as they are (a writer may
 * have been killed before it had). 0 when there is none (*found 0), 1 when read. ERR_CORRUPT when slots exist
 * and none is valid, naming both and why, when the valid one is BEGUN, so that the damaged one was the
 * only commit, or when the two are of different runs. ERR_INPUT for a slot of a later version. -errno where a slot cannot be opened or synced. */
int manifest_read(const char *state_dir, manifest *out, int *found) MUST_CHECK;

/* Removes both slots and what a killed write of theirs left; other files stay. Absent ones are no error; the
 * directory is not synced. The first -errno, after trying all. Allocates nothing. */
int manifest_remove(const char *state_dir) MUST_CHECK;

/* What each slot is, for those who examine a run: changes and warns of nothing. -ENOMEM. */
struct manifest_slot {
    enum { MANIFEST_SLOT_ABSENT, MANIFEST_SLOT_DAMAGED, MANIFEST_SLOT_VALID } outcome;
    char reason[MANIFEST_REASON_BYTES]; /* where damaged */
    uint64_t generation, step;          /* where valid */
};
typedef struct manifest_slot manifest_slot;
int manifest_examine(const char *state_dir, manifest_slot slots[2]) MUST_CHECK;

/* One slot from memory, as manifest_read does it from a file; `slot` 0 or 1. ERR_CORRUPT with the reason,
 * out cleared. For tests with bytes of any kind: allocates no more than twice size_bytes. */
int manifest_decode(const void *bytes, uint64_t size_bytes, unsigned slot,
                    manifest *out) MUST_CHECK;

#endif
