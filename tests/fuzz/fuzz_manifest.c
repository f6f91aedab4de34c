/* Fuzzes the manifest.
 *
 *   offset  bytes  field
 *   0       1      bit 0: the slot; bits 1 to 7: what is put right in the bytes before reading
 *                  (FIX_*), since no search meets a checksum
 *   1       1      which byte of a written slot is damaged later; whether refused bytes are read as
 *                  a file
 *   2              the slot
 *
 * Bytes end in ERR_CORRUPT, or in a record that keeps all that manifest.h promises, that memory and
 * file agree about, and that written again is the same to the bit. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/log.h"
#include "base/shard.h"
#include "base/size.h"
#include "base/tile.h"
#include "format/manifest_internal.h"
#include "fuzz.h"

enum {
    HEAD_BYTES = 2,
    SLOT_MAX = 1 << 16, /* larger inputs are passed over */
    FIX_LENGTHS = 0x02,
    FIX_GENERATION = 0x04,
    FIX_FINGERPRINT = 0x08,
    FIX_EXTENTS = 0x10, /* their order, elements and sizes */
    FIX_OFFSETS = 0x20, /* one extent after the other */
    FIX_SCALER = 0x40,
    FIX_CHECKSUM = 0x80,
};

static unsigned char slot_bytes[SLOT_MAX], stored[SLOT_MAX];
static manifest record, again;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    log_set_level(LOG_QUIET);
    return 0;
}

/* ---- putting right ---- */

/* Where the extents begin, or `size` where the lengths of the texts lead beyond it. */
static size_t extents_begin(const manifesti_header *header, size_t size)
{
    uint64_t at = sizeof *header;
    uint64_t ranks[] = {header->world_size, header->leftover_rank_count};
    for (size_t i = 0; i < 2; i++)
        ranks[i] = size_round_up(ranks[i] * sizeof(manifest_rank), 8);
    const uint64_t texts[] = {header->drives_bytes, header->leftover_bytes, ranks[0], ranks[1],
                              header->identity_bytes};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        at += size_min(texts[i], size);
    return (size_t)size_min(at, size);
}

/* Moves the extent to the place that is due after `before`. All shards have as many elements as the
 * unit's first. */
static void fix_place(manifest_extent *extent, const manifest_extent *before, uint32_t shards,
                      uint64_t *shard_elems, uint64_t tile_elems)
{
    uint64_t end = before->elem_begin + before->elem_count;
    bool is_first = before->rank == 0; /* of the unit's shards: it may grow */
    bool same_shard = is_first ? extent->tile != 0 && before->elem_count == tile_elems
                               : end < (before->rank + 1) * *shard_elems;
    if (same_shard) {
        extent->unit = before->unit;
        extent->rank = before->rank;
        extent->tile = before->tile + 1;
    } else {
        if (is_first)
            *shard_elems = end;
        extent->rank = before->rank + 1 < shards ? before->rank + 1 : 0;
        extent->unit = extent->rank > 0 ? before->unit : before->unit + 1;
        extent->tile = 0;
    }
    extent->elem_begin = same_shard || extent->rank > 0 ? end : 0;
    uint64_t elems_max = tile_elems;
    if (extent->rank > 0)
        elems_max = size_min(elems_max, (extent->rank + 1) * *shard_elems - extent->elem_begin);
    if (extent->rank > 0 || extent->elem_count == 0 || extent->elem_count > elems_max)
        extent->elem_count = elems_max;
    if (shards > 1 && extent->rank == 0)
        extent->elem_count =
            size_min(size_round_up(extent->elem_count, SHARD_ELEMS_STEP), tile_elems);
}

/* Makes extents valid, one after the other. With a split master, a unit that learns has two extents
 * for each tile: first params (2 bytes an element, the high halves), then state. */
struct fixer {
    uint32_t shards, streams;
    uint64_t tile_elems, shard_elems;
    manifest_extent before; /* the last that is not of low halves */
    bool learns;            /* its unit */
    bool wants_low;         /* its low halves come next */
};

static void fix_extent(struct fixer *self, manifest_extent *extent)
{
    const manifest_extent before = self->before;
    uint64_t checksum = extent->checksum;
    if (self->wants_low) {
        *extent = before;
        extent->checksum = checksum;
        extent->param_bytes = 0;
        extent->size_bytes = tile_bytes(extent->elem_count, self->streams);
        self->wants_low = false;
        return;
    }
    bool is_split = tile_master_is_split(self->streams);
    fix_place(extent, &before, self->shards, &self->shard_elems, self->tile_elems);
    if (extent->unit != before.unit)
        self->learns = extent->param_bytes == 0;
    /* of all of the unit or of none */
    extent->param_bytes = self->learns && !is_split ? 0 : 2;
    if (extent->param_bytes) /* whole blocks */
        extent->elem_count =
            size_min(size_round_up(extent->elem_count, TILE_BLOCK_BYTES / 2), self->tile_elems);
    extent->size_bytes = extent->param_bytes ? extent->elem_count * extent->param_bytes
                                             : tile_bytes(extent->elem_count, self->streams);
    self->wants_low = is_split && self->learns;
    self->before = *extent;
}

static void fix_extents(unsigned char *bytes, size_t begin, size_t size, unsigned fixes,
                        const manifesti_header *header)
{
    uint64_t tile_elems = size_max(header->tile_elems, 1), end = 0;
    uint32_t streams = tile_streams_is_valid(header->state_streams) ? header->state_streams : 3;
    uint32_t shards = header->is_replicated ? 1 : header->world_size;
    struct fixer fix = {.shards = shards, .tile_elems = tile_elems, .streams = streams};
    fix.before = (manifest_extent){.unit = UINT32_MAX, .rank = shards - 1};
    manifest_extent extent;
    for (size_t at = begin; size - at >= sizeof extent; at += sizeof extent) {
        memcpy(&extent, bytes + at, sizeof extent);
        if (fixes & FIX_EXTENTS)
            fix_extent(&fix, &extent);
        if (fixes & FIX_OFFSETS) {
            extent.offset_bytes = end;
            end += extent.size_bytes;
        }
        memcpy(bytes + at, &extent, sizeof extent);
    }
}

static void put_right(unsigned char *bytes, size_t size, unsigned slot, unsigned fixes)
{
    manifesti_header header = {.version = 0};
    size_t header_bytes = size_min(size, sizeof header);
    if (size < MANIFESTI_PREFIX_BYTES)
        return;
    memcpy(&header, bytes, header_bytes);
    size_t begin = extents_begin(&header, size);
    if (fixes & FIX_LENGTHS) {
        header.file_bytes = size;
        header.extent_count = (size - begin) / sizeof(manifest_extent);
    }
    if (fixes & FIX_GENERATION)
        header.generation = (header.generation & ~(UINT64_MAX << 62 | 1)) | slot;
    if ((fixes & FIX_FINGERPRINT) && header.identity_bytes <= begin) {
        const char *text = (const char *)bytes + begin - header.identity_bytes;
        header.fingerprint = XXH3_64bits(text, strnlen(text, header.identity_bytes));
    }
    if (fixes & FIX_SCALER) {
        if (!isfinite(header.loss_scale) || header.loss_scale <= 0)
            header.loss_scale = 1;
        header.scale_iteration &= INT64_MAX;
        if (header.scale_last_overflow >= (int64_t)header.scale_iteration)
            header.scale_last_overflow = -1;
    }
    header.checksum = fixes & FIX_CHECKSUM ? 0 : header.checksum;
    if (fixes & (FIX_EXTENTS | FIX_OFFSETS))
        fix_extents(bytes, begin, size, fixes, &header);
    memcpy(bytes, &header, header_bytes);
    if (fixes & FIX_CHECKSUM) {
        header.checksum = XXH3_64bits(bytes, size);
        memcpy(bytes, &header, header_bytes);
    }
}

/* ---- what a record promises ---- */

static void check_slabs(const manifest_slabs *self)
{
    FUZZ_CHECK(self->drive_count <= DRIVES_MAX, "%u drives", self->drive_count);
    for (uint32_t d = 0; d < self->drive_count; d++) {
        size_t length = strnlen(self->drives[d], MANIFEST_TEXT_BYTES);
        FUZZ_CHECK(length > 0 && length < MANIFEST_TEXT_BYTES, "drive %u", d);
    }
    FUZZ_CHECK(self->rank_count <= MANIFEST_RANKS_MAX, "%u ranks", self->rank_count);
    for (uint32_t r = 0; r < self->rank_count; r++) {
        const manifest_rank *rank = &self->ranks[r];
        size_t length = strnlen(rank->host, MANIFEST_HOST_BYTES);
        FUZZ_CHECK(length < MANIFEST_HOST_BYTES, "host of rank %u", r);
        for (size_t i = length; i < MANIFEST_HOST_BYTES; i++)
            FUZZ_CHECK(rank->host[i] == 0, "host of rank %u", r);
        FUZZ_CHECK(rank->local_rank < self->rank_count, "local rank of rank %u", r);
    }
}

/* With a split master, an extent of state alone. It holds the low halves of the params in the
 * extent right before it. */
static bool is_low(const manifest *self, uint64_t i)
{
    return tile_master_is_split(self->state_streams) && self->extents[i].param_bytes == 0;
}

static void check_low(const manifest *self, uint64_t i)
{
    const manifest_extent *low = &self->extents[i], *high = low - 1;
    FUZZ_CHECK(i > 0 && high->param_bytes == tile_high_bytes(self->state_streams),
               "low halves without high ones");
    FUZZ_CHECK(high->unit == low->unit && high->rank == low->rank && high->tile == low->tile &&
                   high->elem_begin == low->elem_begin && high->elem_count == low->elem_count,
               "halves of other elements");
    FUZZ_CHECK(manifest_is_low(self, i) && manifest_is_high(self, i - 1), "halves by manifest.h");
}

/* If one tile of the unit has low halves, all its tiles have them. */
static void check_halves(const manifest *self, uint32_t unit)
{
    uint64_t counts[2] = {0, 0};
    for (uint64_t i = 0; i < self->extent_count; i++)
        if (self->extents[i].unit == unit)
            counts[is_low(self, i)]++;
    FUZZ_CHECK(counts[1] == 0 || counts[0] == counts[1], "unit %u: %llu tiles, %llu halves", unit,
               (unsigned long long)counts[0], (unsigned long long)counts[1]);
}

/* Every shard of the unit whose last extent is number `last` is as long as its first, and all are
 * there. */
static void check_unit(const manifest *self, uint64_t last, uint32_t shards)
{
    uint32_t unit = self->extents[last].unit;
    uint64_t first_elems = 0, elems = 0;
    FUZZ_CHECK(self->extents[last].rank == shards - 1, "unit %u lacks ranks", unit);
    for (uint64_t i = 0; i <= last; i++) {
        if (self->extents[i].unit != unit || is_low(self, i)) /* its elements are counted before */
            continue;
        elems += self->extents[i].elem_count;
        if (self->extents[i].rank == 0)
            first_elems = elems;
    }
    FUZZ_CHECK(elems == shards * first_elems, "shards of unit %u", unit);
    FUZZ_CHECK(shards == 1 || first_elems % SHARD_ELEMS_STEP == 0, "shards of unit %u", unit);
}

/* Where the extent lies, and that it lies on no other. */
static void check_bytes(const manifest *self, uint64_t i)
{
    const manifest_extent *extent = &self->extents[i];
    uint64_t end, width = extent->param_bytes;
    FUZZ_CHECK(extent->offset_bytes % TILE_BLOCK_BYTES == 0, "offset of extent %llu",
               (unsigned long long)i);
    int rc = size_add(extent->offset_bytes, extent->size_bytes, &end);
    FUZZ_CHECK(rc == 0 && end <= INT64_MAX, "end of extent %llu", (unsigned long long)i);
    FUZZ_CHECK(self->total_bytes == 0 || end <= self->total_bytes, "beyond the slab");
    FUZZ_CHECK(width == 0 || extent->size_bytes == width * extent->elem_count, "size of params");
    FUZZ_CHECK(
        width > 0 || extent->size_bytes == tile_bytes(extent->elem_count, self->state_streams) ||
            (self->state_streams == 3 && extent->size_bytes == tile_bytes(extent->elem_count, 2)),
        "size of extent %llu", (unsigned long long)i);
    for (uint64_t k = 0; k < i; k++)
        FUZZ_CHECK(self->extents[k].rank != extent->rank || self->extents[k].offset_bytes >= end ||
                       self->extents[k].offset_bytes + self->extents[k].size_bytes <=
                           extent->offset_bytes,
                   "extents %llu and %llu overlap", (unsigned long long)k, (unsigned long long)i);
}

static void check_extents(const manifest *self)
{
    uint64_t elems = 0;       /* of the unit so far */
    uint64_t first_elems = 0; /* of its first shard */
    uint32_t shards = self->is_replicated ? 1 : self->world_size;
    uint64_t params = 0;                  /* bytes each, of all units that have any */
    const manifest_extent *before = NULL; /* of those that are not of low halves */
    for (uint64_t i = 0; i < self->extent_count; i++) {
        const manifest_extent *extent = &self->extents[i];
        check_bytes(self, i);
        bool is_last = i + 1 == self->extent_count || self->extents[i + 1].unit != extent->unit;
        if (is_low(self, i)) {
            check_low(self, i);
            if (is_last) {
                check_halves(self, extent->unit);
                check_unit(self, i, shards);
            }
            continue;
        }
        bool same_unit = before && before->unit == extent->unit;
        uint32_t unit = !before ? 0 : same_unit ? before->unit : before->unit + 1;
        elems = same_unit ? elems : 0;
        bool same_shard = same_unit && before->rank == extent->rank;
        uint32_t rank = same_shard ? before->rank : same_unit ? before->rank + 1 : 0;
        FUZZ_CHECK(extent->unit == unit, "unit of extent %llu", (unsigned long long)i);
        FUZZ_CHECK(extent->rank == rank && rank < shards, "rank %u", extent->rank);
        uint32_t width = extent->param_bytes;
        FUZZ_CHECK(width == 0 || width == 2 || width == 4, "params of %u bytes", width);
        FUZZ_CHECK(!same_unit || width == before->param_bytes, "unit %u is half frozen", unit);
        FUZZ_CHECK(width == 0 || params == 0 || width == params, "params of %u bytes too", width);
        params = size_max(params, width);
        FUZZ_CHECK(extent->tile == (same_shard ? before->tile + 1 : 0), "tile %u", extent->tile);
        FUZZ_CHECK(same_shard || rank == 0 || elems == rank * first_elems, "shard %u", rank);
        FUZZ_CHECK(extent->elem_begin == elems, "elements of extent %llu", (unsigned long long)i);
        FUZZ_CHECK(!same_shard || before->elem_count == self->tile_elems, "a short tile");
        FUZZ_CHECK(extent->elem_count > 0 && extent->elem_count <= self->tile_elems, "no elements");
        elems += extent->elem_count;
        first_elems = rank == 0 ? elems : first_elems;
        before = extent;
        if (is_last) {
            check_halves(self, unit);
            check_unit(self, i, shards);
        }
    }
}

static void check_record(const manifest *self, unsigned slot)
{
    bool is_commit = self->state == MANIFEST_COMMITTED;
    FUZZ_CHECK(is_commit || self->state == MANIFEST_RUNNING || self->state == MANIFEST_BEGUN,
               "state %d", (int)self->state);
    FUZZ_CHECK(self->generation % 2 == slot, "generation");
    check_slabs(&self->slabs);
    check_slabs(&self->leftover);
    size_t length = strnlen(self->identity, MANIFEST_TEXT_BYTES);
    FUZZ_CHECK(length > 0 && length < MANIFEST_TEXT_BYTES, "the identity's length");
    FUZZ_CHECK(XXH3_64bits(self->identity, length) == self->fingerprint, "fingerprint");
    FUZZ_CHECK(!is_commit || (self->slabs.drive_count > 0 && self->extent_count > 0 &&
                              self->total_bytes > 0 && self->stripe_bytes > 0),
               "an empty commit");
    FUZZ_CHECK(self->state != MANIFEST_BEGUN || self->point.step == 0,
               "step of a run that has begun");
    FUZZ_CHECK((self->total_bytes == 0) == (self->stripe_bytes == 0), "total and stripe");
    FUZZ_CHECK(self->stripe_bytes == 0 || self->total_bytes % self->stripe_bytes == 0, "stripes");
    FUZZ_CHECK(self->point.skipped_count <= self->point.step, "skipped steps");
    FUZZ_CHECK(isfinite(self->point.loss_scale) && self->point.loss_scale > 0, "scale %g",
               self->point.loss_scale);
    FUZZ_CHECK(self->point.scale_last_overflow >= -1 && self->point.scale_hysteresis_left >= 1 &&
                   (self->point.scale_last_overflow < 0 ||
                    (uint64_t)self->point.scale_last_overflow < self->point.scale_iteration),
               "the scaler");
    FUZZ_CHECK(tile_streams_is_valid(self->state_streams), "streams %08x", self->state_streams);
    FUZZ_CHECK(self->world_size > 0 && self->slabs.rank_count == self->world_size, "world");
    FUZZ_CHECK((self->leftover.rank_count > 0) == (self->leftover.drive_count > 0),
               "ranks of leftovers");
    FUZZ_CHECK(self->zero_stage <= 3 && (!self->is_replicated || self->zero_stage == 0), "stage");
    check_extents(self);
}

static void check_same_slabs(const manifest_slabs *a, const manifest_slabs *b)
{
    FUZZ_CHECK(a->drive_count == b->drive_count, "drives");
    FUZZ_CHECK(a->drive_count == 0 || memcmp(a->uuid, b->uuid, sizeof a->uuid) == 0, "uuid");
    for (uint32_t d = 0; d < a->drive_count; d++)
        FUZZ_CHECK(strcmp(a->drives[d], b->drives[d]) == 0, "drive %u", d);
    FUZZ_CHECK(a->rank_count == b->rank_count &&
                   memcmp(a->ranks, b->ranks, a->rank_count * sizeof *a->ranks) == 0,
               "ranks");
}

static void check_same(const manifest *a, const manifest *b)
{
    FUZZ_CHECK(a->state == b->state && a->generation == b->generation &&
                   a->fingerprint == b->fingerprint &&
                   memcmp(&a->point, &b->point, sizeof a->point) == 0 &&
                   a->tile_elems == b->tile_elems && a->total_bytes == b->total_bytes &&
                   a->stripe_bytes == b->stripe_bytes && a->state_streams == b->state_streams &&
                   a->extent_count == b->extent_count && a->world_size == b->world_size &&
                   a->zero_stage == b->zero_stage && a->is_replicated == b->is_replicated,
               "values");
    FUZZ_CHECK(strcmp(a->identity, b->identity) == 0, "identity");
    check_same_slabs(&a->slabs, &b->slabs);
    check_same_slabs(&a->leftover, &b->leftover);
    FUZZ_CHECK(a->extent_count == 0 ||
                   memcmp(a->extents, b->extents, a->extent_count * sizeof *a->extents) == 0,
               "extents");
}

/* ---- files ---- */

static void remove_slots(void)
{
    static const char *const names[] = {"manifest-0", "manifest-1", "manifest-0.new",
                                        "manifest-1.new"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        fuzz_remove_file(names[i]);
}

static size_t load_slot(unsigned slot)
{
    char path[FUZZ_PATH_BYTES];
    snprintf(path, sizeof path, "%s/manifest-%u", fuzz_directory(), slot);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    FUZZ_CHECK(fd >= 0, "%s", path);
    ssize_t got = read(fd, stored, sizeof stored);
    FUZZ_CHECK(got > 0, "%s", path);
    close(fd);
    return (size_t)got;
}

/* The same bytes as a file must give what they gave from memory. */
static void check_file(size_t size, unsigned slot, bool is_valid)
{
    char name[32], path[FUZZ_PATH_BYTES];
    manifest_slot slots[2];
    snprintf(name, sizeof name, "manifest-%u", slot);
    fuzz_write_file(name, slot_bytes, size, path);
    int examined = manifest_examine(fuzz_directory(), slots, NULL);
    FUZZ_CHECK(examined == 0 || (examined == ERR_INPUT && !is_valid), "%s", err_text());
    if (examined == 0) {
        FUZZ_CHECK(slots[1 - slot].outcome == MANIFEST_SLOT_ABSENT, "the other slot");
        FUZZ_CHECK(slots[slot].outcome == (is_valid ? MANIFEST_SLOT_VALID : MANIFEST_SLOT_DAMAGED),
                   "%s", slots[slot].reason);
        FUZZ_CHECK(is_valid || slots[slot].reason[0] != '\0', "no reason");
    }
    int rc = manifest_read(fuzz_directory(), &again);
    FUZZ_CHECK((rc == 1) == is_valid, "%d: %s", rc, err_text());
    /* Both give this error for another version, and for nothing else. */
    FUZZ_CHECK((rc == ERR_INPUT) == (examined == ERR_INPUT), "read %d, examine %d", rc, examined);
    if (rc < 0) {
        fuzz_check_refusal(rc, ERR_CORRUPT, ERR_INPUT);
        FUZZ_CHECK(!again.extents, "extents beside an error");
        return;
    }
    check_same(&record, &again);
    manifest_fini(&again);
}

/* A valid slot of another run beside the record is not taken for a commit of this one. */
static void check_foreign(unsigned where)
{
    size_t bytes = sizeof record.slabs.uuid;
    static manifest other;
    other = record;
    other.generation++;
    other.slabs.uuid[where % bytes] ^= 0x40;
    int rc = manifest_write(fuzz_directory(), &other);
    if (rc == -EINVAL) /* its `leftover` now names its own slabs */
        return;
    FUZZ_CHECK(rc == 0, "%s", err_text());
    const manifest_slabs *leftover = &record.leftover;
    bool is_kin =
        record.slabs.drive_count == 0 ||
        (leftover->drive_count > 0 && (memcmp(leftover->uuid, other.slabs.uuid, bytes) == 0 ||
                                       memcmp(leftover->uuid, record.slabs.uuid, bytes) == 0));
    rc = manifest_read(fuzz_directory(), &again);
    FUZZ_CHECK(rc == (is_kin ? 1 : ERR_CORRUPT), "%d: %s", rc, err_text());
    manifest_fini(&again);
}

/* A commit beside the record; damaged, the record counts again, or a run that had only begun is
 * lost. */
static void check_damage(unsigned slot, unsigned where)
{
    static manifest next;
    next = record;
    next.generation++;
    int rc = manifest_write(fuzz_directory(), &next);
    FUZZ_CHECK(rc == 0, "%s", err_text());
    rc = manifest_read(fuzz_directory(), &again);
    FUZZ_CHECK(rc == 1, "%d: %s", rc, err_text());
    check_same(&next, &again);
    manifest_fini(&again);
    char name[32], path[FUZZ_PATH_BYTES];
    size_t size = load_slot(1 - slot);
    stored[where * 251 % size] ^= (unsigned char)(1u << where % 8);
    snprintf(name, sizeof name, "manifest-%u", 1 - slot);
    fuzz_write_file(name, stored, size, path);
    rc = manifest_read(fuzz_directory(), &again);
    if (record.state == MANIFEST_BEGUN) {
        fuzz_check_refusal(rc, ERR_CORRUPT, ERR_CORRUPT);
    } else {
        FUZZ_CHECK(rc == 1, "%d: %s", rc, err_text());
        check_same(&record, &again);
    }
    manifest_fini(&again);
}

/* Written anew, and over itself, the record is the same bytes. */
static void check_written(size_t size, unsigned slot, unsigned where)
{
    remove_slots();
    int rc = manifest_write(fuzz_directory(), &record);
    FUZZ_CHECK(rc == 0, "%s", err_text());
    size_t written = load_slot(slot);
    FUZZ_CHECK(written == size && memcmp(stored, slot_bytes, size) == 0,
               "other bytes are written than were read");
    rc = manifest_decode(stored, written, slot, &again);
    FUZZ_CHECK(rc == 0, "%s", err_text());
    check_same(&record, &again);
    manifest_fini(&again);
    if (record.generation < INT64_MAX) {
        check_foreign(where);
        check_damage(slot, where);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < HEAD_BYTES || size - HEAD_BYTES > SLOT_MAX / 2)
        return 0;
    uint64_t live_bytes = fuzz_live_bytes();
    unsigned slot = data[0] & 1, where = data[1];
    unsigned fixes = data[0];
    size -= HEAD_BYTES;
    memcpy(slot_bytes, data + HEAD_BYTES, size);
    put_right(slot_bytes, size, slot, fixes);
    unsigned char *exact = malloc(size > 0 ? size : 1); /* so that ASan sees what reads beyond */
    FUZZ_CHECK(exact, "no memory");
    memcpy(exact, slot_bytes, size);
    int rc = manifest_decode(exact, size, slot, &record);
    free(exact);
    remove_slots();
    if (rc < 0) {
        fuzz_check_refusal(rc, ERR_CORRUPT, ERR_CORRUPT);
        FUZZ_CHECK(!record.extents && record.extent_count == 0, "extents beside an error");
    } else {
        FUZZ_CHECK(rc == 0, "result %d", rc);
        check_record(&record, slot);
    }
    if (rc == 0 || where % 4 == 0) /* the slow part: one refused input in four */
        check_file(size, slot, rc == 0);
    if (rc == 0)
        check_written(size, slot, where);
    manifest_fini(&record);
    FUZZ_CHECK(fuzz_live_bytes() == live_bytes, "memory is kept");
    return 0;
}
