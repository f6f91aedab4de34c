/* The manifest is the small checksummed record that makes the slabs a checkpoint.
 *
 *   state/manifest-0, manifest-1
 *       The commit of generation g writes slot g mod 2, whole, then fsync. It does not touch the
 *       other slot, which holds the commit before. The newest valid slot is the state of the run.
 *   state/manifest-<n>.new
 *       A slot is written under this name while the other slot holds no commit, and is then
 *       renamed. The file itself means nothing.
 *
 * Two places per extent:
 *   BEGUN --(first commit)--> COMMITTED --(commit)--> COMMITTED ...
 * One place per extent (commit_every 0):
 *   BEGUN --> RUNNING --(clean stop)--> COMMITTED --(next start)--> RUNNING
 *
 * The byte layout is a table in tiers/FORMAT.md and manifest_internal.h. All numbers are
 * little-endian. Each manifest and its directory belong to one thread. Failpoints
 * (base/failpoint.h): manifest.begin, .half, .written, .synced. */
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
    /* the first record of a new run: it names the slabs, which hold nothing yet */
    MANIFEST_BEGUN = 3
};

/* Where one tile of a unit rests on the slab: its optimizer state, or its params if the unit does
 * not learn. If masters are split (base/tile.h), each tile has two extents, one after the other:
 * the params, which are the high halves of the masters, and the state with the low halves; or the
 * params are the masters, and the state has no stream of them. */
struct manifest_extent {
    uint32_t unit;
    uint32_t tile;         /* of the rank's shard of the unit, from 0 */
    uint64_t offset_bytes; /* in the nvme address space: of the place that the commit names */
    uint64_t size_bytes;   /* of the extent, padding included */
    uint64_t elem_begin;   /* from the first element of the whole unit, on every rank */
    uint64_t elem_count;   /* The last shard may end after its unit; the rest is padding. */
    uint64_t checksum;     /* XXH3-64 of the streams' elements, padding excluded */
    uint32_t rank;         /* on whose slab it lies; 0 where is_replicated */
    /* 0: optimizer state. 2 or 4: params alone, elem_count of them with so many bytes each and no
     * padding, because the unit is frozen or its masters are split. */
    uint32_t param_bytes;
};
typedef struct manifest_extent manifest_extent;

/* Bytes of an element of the extent's first stream: a master weight, or one of the params. Do not
 * ask for a split master. */
static inline uint64_t manifest_weight_bytes(const manifest_extent *self)
{
    return self->param_bytes ? self->param_bytes : sizeof(float);
}

struct manifest_rank {
    char host[MANIFEST_HOST_BYTES]; /* padded with zeros; "": not noted, as for one rank */
    uint32_t local_rank;            /* below rank_count */
};
typedef struct manifest_rank manifest_rank;

/* The slab files are "<drive>/sluice-<uuid>/rank-<r>-drive-<d>.slab" on the rank's host, where
 * <drive> is drives[d] with "{rank}", "{local_rank}" and "{host}" replaced by the rank's values. */
struct manifest_slabs {
    uint8_t uuid[MANIFEST_UUID_BYTES];
    uint32_t drive_count;
    char drives[DRIVES_MAX][MANIFEST_TEXT_BYTES];
    uint32_t rank_count; /* 0 acts as 1 */
    manifest_rank ranks[MANIFEST_RANKS_MAX];
};
typedef struct manifest_slabs manifest_slabs;

/* Replaces the placeholders of `path`. Returns false if the result does not fit out[out_bytes]. */
bool manifest_expand_path(const char *path, uint32_t rank, uint32_t local_rank, const char *host,
                          char *out, uint64_t out_bytes);

enum { MANIFEST_UUID_TEXT_BYTES = 2 * MANIFEST_UUID_BYTES + 1 };

/* Writes the uuid of the slabs as it stands in their paths, 32 hex digits. Returns `text`. */
const char *manifest_uuid_text(const manifest_slabs *slabs, char text[MANIFEST_UUID_TEXT_BYTES]);

/* A point of a run between two steps: the counters that a commit stores and a resume restores. */
struct manifest_point {
    uint64_t seed;         /* of the initial weights */
    uint64_t step;         /* optimizer steps completed */
    uint64_t window_count; /* sampler position */
    uint64_t skipped_count;
    /* The state of setup/loss_scale.h: */
    double loss_scale;              /* of the next step */
    uint64_t scale_iteration;       /* steps that the loss scaler has counted */
    int64_t scale_last_overflow;    /* the last of them that overflowed, from 0; -1: none */
    uint64_t scale_hysteresis_left; /* overflows until the scale is halved */
};
typedef struct manifest_point manifest_point;

/* About 290 KiB: keep it in static or heap memory.
 *
 * manifest_write and manifest_read check each record (manifest_check.c), so that other code can
 * rely on these rules:
 *   - Texts end, and the identity is not empty. The fingerprint is that of the identity.
 *   - Extents are sorted by (unit, rank, tile). Units and tiles count from 0 without a gap.
 *   - A rank's tiles of a unit hold its shard; each has tile_elems elements, except for the last.
 *     All ranks' shards are equal, and follow each other from element 0 without a gap
 *     (base/shard.h).
 *   - Offsets are multiples of 4 KiB. A rank's extents lie within total_bytes and do not overlap
 *     (only manifest_read checks that they do not).
 *   - size_bytes of an extent of state is tile_bytes of base/tile.h, of state_streams or, if these
 *     are three of fp32, of TILE_MATRIX_STREAMS. That of an extent of params is elem_count times
 *     param_bytes, and param_bytes is the same for all of them.
 *   - All extents of a unit are of one kind, with the same streams. If masters are split, an extent
 *     of state follows that of the same tile's params.
 *   - A commit has slabs and extents. BEGUN is at step 0.
 *   - total_bytes and stripe_bytes are 0 together, before the slabs are made and never in a commit.
 *   - loss_scaler_load accepts the scaler's numbers. skipped_count is at most step.
 *   - The slabs to remove and the slabs in use have different files. */
struct manifest {
    enum manifest_state state;
    uint64_t generation; /* grows by one with each write; slot = generation mod 2 */
    manifest_slabs slabs;
    /* Slabs that are no longer in use, or not yet in use: the reader of this record removes their
     * files before the run continues. drive_count 0: there are none. */
    manifest_slabs leftover;
    uint64_t fingerprint; /* XXH3-64 of `identity` */
    manifest_point point;
    uint64_t tile_elems;
    uint64_t total_bytes, stripe_bytes; /* of each rank's slab */
    uint32_t world_size; /* ranks of the run; 0 acts as 1; slabs.rank_count is the same */
    uint32_t zero_stage;
    /* True if there are several ranks and each has the whole state (stage 0). Then the extents are
     * those of rank 0, and every rank's slab has the same bytes in the same places. */
    bool is_replicated;
    uint32_t state_streams; /* the streams code of a tile (base/tile.h) */
    /* Everything that the bits depend on, as "key=value\n" lines: model, dtypes, kernels. */
    char identity[MANIFEST_TEXT_BYTES];
    uint64_t extent_count;
    manifest_extent *extents; /* [extent_count], from mem_alloc */
};
typedef struct manifest manifest;

void manifest_fini(manifest *self);

/* The streams code (base/tile.h) of the extent; 0 if it holds only params. Its size tells. */
static inline uint32_t manifest_streams_of(const manifest *self, const manifest_extent *extent)
{
    bool is_matrix = self->state_streams == 3 &&
                     extent->size_bytes == tile_bytes(extent->elem_count, TILE_MATRIX_STREAMS);
    return extent->param_bytes ? 0 : is_matrix ? TILE_MATRIX_STREAMS : self->state_streams;
}

/* True if the extent holds the low halves of split masters. The extent before it holds the high
 * ones. */
static inline bool manifest_is_low(const manifest *self, uint64_t idx)
{
    return tile_master_is_split(self->state_streams) && self->extents[idx].param_bytes == 0;
}

/* True if it holds the high halves, and the extent after it the low ones. */
static inline bool manifest_is_high(const manifest *self, uint64_t idx)
{
    return self->extents[idx].param_bytes && idx + 1 < self->extent_count &&
           manifest_is_low(self, idx + 1);
}

/* Writes the slot generation mod 2 in `state_dir`, then calls fsync on the file and the directory.
 * It allocates nothing and does not change the other slot; after a run's first commit it
 * reserves blocks for that slot's next commit. -EINVAL for a record that manifest_read
 * would refuse, with nothing changed; else -errno or a failpoint's code: then the other slot still
 * counts, also for later readers. */
int manifest_write(const char *state_dir, const manifest *self) MUST_CHECK;

/* Reads the newest valid slot, and warns of a damaged newer one. Makes both slots durable as they
 * are, because their writer may have been killed before it did.
 *   1             read
 *   0             there is no slot, and *out is cleared
 *   ERR_CORRUPT   There are slots and none is valid: the message names both and says why. Or the
 *                 valid one is BEGUN, so that the damaged one was the only commit. Or the two slots
 *                 are of different runs.
 *   ERR_INPUT     A slot has another version, older or newer.
 *   -errno        A slot cannot be opened or synced. */
int manifest_read(const char *state_dir, manifest *out) MUST_CHECK;

/* Removes both slots and what a killed writer left of them. Other files stay, an absent slot is no
 * error, and the directory is not synced. Tries all and returns the first -errno. Allocates
 * nothing. */
int manifest_remove(const char *state_dir) MUST_CHECK;

/* The result of reading one slot. */
struct manifest_slot {
    enum { MANIFEST_SLOT_ABSENT, MANIFEST_SLOT_DAMAGED, MANIFEST_SLOT_VALID } outcome;
    char reason[MANIFEST_REASON_BYTES]; /* if damaged */
    uint32_t other_version;             /* if whole and of a version that is not read; else 0 */
    uint64_t generation, step;          /* if valid */
};
typedef struct manifest_slot manifest_slot;
/* Reads both slots for commands that examine a run. Changes nothing and logs no warning. *newest
 * (NULL is allowed) is the record of the newest valid slot, all zero if there is none. Returns
 * ERR_INPUT for a slot of another version, as manifest_read does, and -ENOMEM. */
int manifest_examine(const char *state_dir, manifest_slot slots[2], manifest *newest) MUST_CHECK;

/* Decodes one slot from memory, as manifest_read does it from a file; `slot` is 0 or 1. ERR_CORRUPT
 * with the reason, and *out cleared. For tests, with bytes of any kind: it allocates no more than
 * twice size_bytes. */
int manifest_decode(const void *bytes, uint64_t size_bytes, unsigned slot,
                    manifest *out) MUST_CHECK;

#endif
