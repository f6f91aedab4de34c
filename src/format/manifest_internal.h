/* Shared by the files of the manifest: the stored header, and the functions that turn bytes into a
 * checked record and back. */
#ifndef SLUICE_FORMAT_MANIFEST_INTERNAL_H
#define SLUICE_FORMAT_MANIFEST_INTERNAL_H

#include <assert.h>
#include <stddef.h>

#include "format/manifest.h"

enum {
    MANIFESTI_VERSION = 7, /* the only version that is read and written */
    MANIFESTI_SLOTS = 2,
    MANIFESTI_PAD = 8,          /* Each part of text is padded to a multiple of this. */
    MANIFESTI_PREFIX_BYTES = 32 /* These bytes of the header mean the same in every version. */
};

#define MANIFESTI_MAGIC "SLUMANIF" /* 8 bytes, no NUL */

/* As stored, little-endian. */
struct manifesti_header {
    char magic[8];
    uint32_t version;
    uint32_t state;      /* enum manifest_state */
    uint64_t file_bytes; /* of the whole slot */
    uint64_t checksum;   /* XXH3-64 of the whole slot with this field 0 */
    uint64_t generation;
    uint8_t uuid[MANIFEST_UUID_BYTES];
    uint64_t fingerprint;
    uint64_t step;
    uint64_t window_count;
    uint64_t seed;
    uint64_t skipped_count;
    double loss_scale; /* IEEE binary64 */
    uint64_t tile_elems;
    uint64_t total_bytes;
    uint64_t stripe_bytes;
    uint64_t drives_bytes; /* of the paths, NULs and padding included */
    uint64_t extent_count;
    uint32_t drive_count;
    uint32_t state_streams; /* base/tile.h */
    uint64_t scale_iteration;
    int64_t scale_last_overflow;
    uint64_t scale_hysteresis_left;
    uint64_t leftover_bytes; /* as drives_bytes */
    uint64_t identity_bytes; /* of the text, padding included */
    uint8_t leftover_uuid[MANIFEST_UUID_BYTES];
    uint32_t leftover_count;
    uint32_t reserved;   /* always 0 */
    uint32_t world_size; /* also the number of ranks of the slabs */
    uint32_t zero_stage;
    uint32_t is_replicated;       /* 0 or 1 */
    uint32_t leftover_rank_count; /* 0 if there are no slabs to remove */
};
typedef struct manifesti_header manifesti_header;

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "stored structs are little-endian");
static_assert(sizeof(manifesti_header) == 232, "FORMAT.md");
static_assert(offsetof(manifesti_header, magic) == 0, "FORMAT.md");
static_assert(offsetof(manifesti_header, version) == 8, "FORMAT.md");
static_assert(offsetof(manifesti_header, state) == 12, "FORMAT.md");
static_assert(offsetof(manifesti_header, file_bytes) == 16, "FORMAT.md");
static_assert(offsetof(manifesti_header, checksum) == 24, "FORMAT.md");
static_assert(offsetof(manifesti_header, generation) == MANIFESTI_PREFIX_BYTES, "FORMAT.md");
static_assert(offsetof(manifesti_header, uuid) == 40, "FORMAT.md");
static_assert(offsetof(manifesti_header, fingerprint) == 56, "FORMAT.md");
static_assert(offsetof(manifesti_header, step) == 64, "FORMAT.md");
static_assert(offsetof(manifesti_header, window_count) == 72, "FORMAT.md");
static_assert(offsetof(manifesti_header, seed) == 80, "FORMAT.md");
static_assert(offsetof(manifesti_header, skipped_count) == 88, "FORMAT.md");
static_assert(offsetof(manifesti_header, loss_scale) == 96, "FORMAT.md");
static_assert(offsetof(manifesti_header, tile_elems) == 104, "FORMAT.md");
static_assert(offsetof(manifesti_header, total_bytes) == 112, "FORMAT.md");
static_assert(offsetof(manifesti_header, stripe_bytes) == 120, "FORMAT.md");
static_assert(offsetof(manifesti_header, drives_bytes) == 128, "FORMAT.md");
static_assert(offsetof(manifesti_header, extent_count) == 136, "FORMAT.md");
static_assert(offsetof(manifesti_header, drive_count) == 144, "FORMAT.md");
static_assert(offsetof(manifesti_header, state_streams) == 148, "FORMAT.md");
static_assert(offsetof(manifesti_header, scale_iteration) == 152, "FORMAT.md");
static_assert(offsetof(manifesti_header, scale_last_overflow) == 160, "FORMAT.md");
static_assert(offsetof(manifesti_header, scale_hysteresis_left) == 168, "FORMAT.md");
static_assert(offsetof(manifesti_header, leftover_bytes) == 176, "FORMAT.md");
static_assert(offsetof(manifesti_header, identity_bytes) == 184, "FORMAT.md");
static_assert(offsetof(manifesti_header, leftover_uuid) == 192, "FORMAT.md");
static_assert(offsetof(manifesti_header, leftover_count) == 208, "FORMAT.md");
static_assert(offsetof(manifesti_header, reserved) == 212, "FORMAT.md");
static_assert(offsetof(manifesti_header, world_size) == 216, "FORMAT.md");
static_assert(offsetof(manifesti_header, zero_stage) == 220, "FORMAT.md");
static_assert(offsetof(manifesti_header, is_replicated) == 224, "FORMAT.md");
static_assert(offsetof(manifesti_header, leftover_rank_count) == 228, "FORMAT.md");
/* Ranks and extents are stored as they lie in memory. */
static_assert(sizeof(manifest_rank) == 68, "FORMAT.md");
static_assert(offsetof(manifest_rank, host) == 0, "FORMAT.md");
static_assert(offsetof(manifest_rank, local_rank) == MANIFEST_HOST_BYTES, "FORMAT.md");
static_assert(sizeof(manifest_extent) == 56, "FORMAT.md");
static_assert(offsetof(manifest_extent, unit) == 0, "FORMAT.md");
static_assert(offsetof(manifest_extent, tile) == 4, "FORMAT.md");
static_assert(offsetof(manifest_extent, offset_bytes) == 8, "FORMAT.md");
static_assert(offsetof(manifest_extent, size_bytes) == 16, "FORMAT.md");
static_assert(offsetof(manifest_extent, elem_begin) == 24, "FORMAT.md");
static_assert(offsetof(manifest_extent, elem_count) == 32, "FORMAT.md");
static_assert(offsetof(manifest_extent, checksum) == 40, "FORMAT.md");
static_assert(offsetof(manifest_extent, rank) == 48, "FORMAT.md");
static_assert(offsetof(manifest_extent, param_bytes) == 52, "FORMAT.md");

/* The defect of one slot, as a clause such as "it has 7 bytes, ...". */
struct manifesti_reason {
    char text[MANIFEST_REASON_BYTES];
    /* The version of a slot that is whole, if this program does not read it; else 0. */
    uint32_t other_version;
};
typedef struct manifesti_reason manifesti_reason;

/* Sets the reason and returns false, for `return manifesti_wrong(...)`. */
__attribute__((format(printf, 2, 3))) bool manifesti_wrong(manifesti_reason *reason,
                                                           const char *format, ...);

/* 0 acts as 1. */
static inline uint32_t manifesti_ranks(uint32_t count)
{
    return count ? count : 1;
}

/* True if a run can have such a record. It does not look for overlaps. Allocates nothing. */
bool manifesti_is_possible(const manifest *self, manifesti_reason *reason);

/* Returns 1 if no two extents share a byte of a rank's slab, 0 with the reason if they do, or
 * -ENOMEM. Takes scratch memory of 24 bytes per extent. Call it after manifesti_is_possible. */
int manifesti_is_apart(const manifest *self, manifesti_reason *reason) MUST_CHECK;

/* Far larger than any run needs: 2 * 10^8 extents. */
#define MANIFESTI_FILE_MAX ((uint64_t)8 << 30)

/* Reads the header of a slot of `file_bytes` from its first `size_bytes`. Returns false with the
 * reason if it is not a header, or if its lengths do not add up to file_bytes. If the header has
 * another version, only its first MANIFESTI_PREFIX_BYTES are checked. */
bool manifesti_read_header(const void *bytes, uint64_t size_bytes, uint64_t file_bytes,
                           manifesti_header *out, manifesti_reason *reason);

/* Turns the bytes of a slot into a checked record. Returns 1; 0 with the reason and `out` cleared;
 * or -ENOMEM. `bytes` may be anything; the function allocates no more than twice their number. */
int manifesti_decode(const void *bytes, uint64_t size_bytes, unsigned slot, manifest *out,
                     manifesti_reason *reason) MUST_CHECK;

/* The parts of a slot in file order, borrowed from the record. */
enum { MANIFESTI_PARTS_MAX = 1 + 2 * (DRIVES_MAX + 1) + 2 * 2 + 2 + 1 };

struct manifesti_part {
    const void *data;
    uint64_t bytes;
};
typedef struct manifesti_part manifesti_part;

struct manifesti_parts {
    manifesti_header header;
    manifesti_part parts[MANIFESTI_PARTS_MAX]; /* the first is the header */
    int count;
};
typedef struct manifesti_parts manifesti_parts;

/* Points at the parts of a possible record and fills the header with its checksum. Allocates
 * nothing. Do not move `out` afterwards. Returns -EOVERFLOW if the lengths overflow. */
int manifesti_collect(const manifest *self, manifesti_parts *out) MUST_CHECK;

#endif
