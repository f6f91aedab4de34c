/* Extents in another layout: the committed state of one slab, streamed to the places of another.
 *
 *   from ─read─► [ old tiles in flight ] ─compare sums─► copy elements ─► [ new tiles ] ─sum, write─► to
 *
 * Both layouts cut the same vectors of elements (a unit's master, m and v), so both are walked in the order
 * of (unit, element), and each tile is read once and written once. While one tile is being copied and
 * summed, those before it are being written and those behind it read: each side has a ring of tiles, two
 * or as many as fill RECUT_RING_BYTES. All memory is taken before the first transfer. The old slab is only
 * read: whatever fails, the commit on it stays what it was.
 *
 * One thread, the caller's; it sleeps in poll(2) when it waits for the drives. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "base/tile.h"
#include "swap/checksum.h"
#include "train/train_internal.h"

enum {
    RECUT_TILES_MIN = 2,
    RECUT_TILES_MAX = 64,
    RECUT_COLLECT_MAX = 16,
    RECUT_PATIENCE_MS = 1000,
    RECUT_DEPTH = 32, /* transfers of 1 MiB: what the drives have to do while a tile is summed */
};

#define RECUT_RING_BYTES                                                                           \
    (32 * MIB) /* per side; a drive is at full speed with 4 to 16 MiB in flight */
#define RECUT_COPY_BYTES (2 * MIB) /* copied between two looks at the drives */

static const uint64_t report_ns = 5000000000;
static const uint64_t stuck_ns_default = 30000000000;

/* A tile of either layout. */
struct recut_tile {
    uint32_t unit, tile;
    uint64_t elem_begin, elem_count;
    uint64_t offset, size_bytes; /* on its slab */
    uint64_t checksum;           /* old: as the commit has it, 0: not taken; new: as written */
    place_entry *entry;          /* new */
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
    const char *name; /* of the layout, for messages */
    slab *disk;
    io *transport;
    uint64_t tile_count;
    recut_tile *tiles;                 /* [tile_count] by unit, then elem_begin */
    void *block;                       /* memory of all slots */
    recut_slot slots[RECUT_TILES_MAX]; /* tile i in slots[i % slot_count] */
    uint32_t slot_count;
    uint64_t begun, ended; /* tiles submitted; old: of these, used up */
};
typedef struct recut_side recut_side;

struct recut {
    const struct traini_recut *work;
    recut_side old, fresh;
    uint64_t total_bytes, done_bytes; /* of the new tiles */
    uint64_t begin_ns, told_ns;
};
typedef struct recut recut;

/* ---- what is to be done ---- */

static int compare_tiles(const void *left, const void *right)
{
    const recut_tile *a = left, *b = right;
    if (a->unit != b->unit)
        return a->unit < b->unit ? -1 : 1;
    return (a->elem_begin > b->elem_begin) - (a->elem_begin < b->elem_begin);
}

/* Both layouts, in the order in which they are walked. */
static int list_tiles(recut *self)
{
    const manifest *found = self->work->found;
    recut_side *old = &self->old, *fresh = &self->fresh;
    old->tile_count = found->extent_count;
    fresh->tile_count = place_table_count(self->work->places);
    old->tiles = mem_alloc(old->tile_count, sizeof *old->tiles, "recut");
    fresh->tiles = mem_alloc(fresh->tile_count, sizeof *fresh->tiles, "recut");
    if (!old->tiles || !fresh->tiles)
        return -ENOMEM;
    for (uint64_t i = 0; i < old->tile_count; i++) {
        const manifest_extent *from = &found->extents[i];
        old->tiles[i] = (recut_tile){.unit = from->unit,
                                     .tile = from->tile,
                                     .elem_begin = from->elem_begin,
                                     .elem_count = from->elem_count,
                                     .offset = from->offset_bytes,
                                     .size_bytes = from->size_bytes,
                                     .checksum = from->checksum};
    }
    for (uint64_t i = 0; i < fresh->tile_count; i++) {
        place_entry *entry = place_table_at(self->work->places, i);
        fresh->tiles[i] = (recut_tile){.unit = entry->unit,
                                       .tile = entry->tile,
                                       .elem_begin = entry->elem_begin,
                                       .elem_count = entry->elem_count,
                                       .offset = entry->offset[0],
                                       .size_bytes = entry->size_bytes,
                                       .entry = entry};
        self->total_bytes += entry->size_bytes;
    }
    if (old->tile_count > 0)
        qsort(old->tiles, old->tile_count, sizeof *old->tiles, compare_tiles);
    if (fresh->tile_count > 0)
        qsort(fresh->tiles, fresh->tile_count, sizeof *fresh->tiles, compare_tiles);
    return 0;
}

/* The tiles of each unit follow each other without a gap from its first element, each is as long as its
 * elements make it, and each lies on the slab. */
static int check_side(const recut_side *side, uint32_t streams, int code)
{
    uint64_t total_bytes = side->disk->total_bytes;
    for (uint64_t i = 0; i < side->tile_count; i++) {
        const recut_tile *tile = &side->tiles[i], *before = tile - 1;
        bool is_first = i == 0 || before->unit != tile->unit;
        uint64_t begin = is_first ? 0 : before->elem_begin + before->elem_count;
        if (tile->elem_begin != begin)
            return err_set(code,
                           "%s: unit %u, tile %u begins at element %" PRIu64 " and not at %" PRIu64
                           ", where the one before it ends",
                           side->name, tile->unit, tile->tile, tile->elem_begin, begin);
        if (tile->elem_count == 0 || tile->elem_count > total_bytes / sizeof(float) ||
            tile->size_bytes != tile_bytes(tile->elem_count, streams))
            return err_set(code,
                           "%s: unit %u, tile %u with %" PRIu64
                           " elements of %u values has %" PRIu64 " bytes, which is not their size",
                           side->name, tile->unit, tile->tile, tile->elem_count, streams,
                           tile->size_bytes);
        if (tile->offset % TILE_BLOCK_BYTES || tile->offset > total_bytes ||
            tile->size_bytes > total_bytes - tile->offset)
            return err_set(code,
                           "%s: unit %u, tile %u lies at byte %" PRIu64 " of a slab of %" PRIu64
                           ", and has %" PRIu64,
                           side->name, tile->unit, tile->tile, tile->offset, total_bytes,
                           tile->size_bytes);
    }
    return 0;
}

/* The unit that side->tiles[*at] begins, and its elements; *at moves behind it. */
static uint64_t next_unit(const recut_side *side, uint64_t *at, uint32_t *unit)
{
    uint64_t elems = 0;
    *unit = side->tiles[*at].unit;
    for (; *at < side->tile_count && side->tiles[*at].unit == *unit; ++*at)
        elems += side->tiles[*at].elem_count;
    return elems;
}

/* Same units, as many elements in each. */
static int check_units(const recut *self)
{
    const recut_side *old = &self->old, *fresh = &self->fresh;
    uint64_t a = 0, b = 0;
    while (a < old->tile_count && b < fresh->tile_count) {
        uint32_t old_unit, fresh_unit;
        uint64_t old_elems = next_unit(old, &a, &old_unit);
        uint64_t fresh_elems = next_unit(fresh, &b, &fresh_unit);
        if (old_unit != fresh_unit || old_elems != fresh_elems)
            return err_set(ERR_CORRUPT,
                           "the commit of step %" PRIu64 " has %" PRIu64
                           " elements of unit %u where the model has %" PRIu64
                           " of unit %u: its manifest is of another model",
                           self->work->found->step, old_elems, old_unit, fresh_elems, fresh_unit);
    }
    if (a == old->tile_count && b == fresh->tile_count)
        return 0;
    return err_set(ERR_CORRUPT,
                   "the commit of step %" PRIu64 " has %s units than the model: its manifest is of "
                   "another model",
                   self->work->found->step, a < old->tile_count ? "more" : "fewer");
}

static int check_work(const recut *self)
{
    const struct traini_recut *work = self->work;
    if (work->state_streams == 0 || work->state_streams > TILE_STREAMS_MAX)
        return err_set(ERR_INTERNAL, "a tile cannot have %u streams", work->state_streams);
    if (work->found->state_streams != 0 && work->found->state_streams != work->state_streams)
        return err_set(
            ERR_CORRUPT,
            "the commit of step %" PRIu64
            " has %u values per parameter and the run's optimizer %u: its manifest is of "
            "another optimizer",
            work->found->step, work->found->state_streams, work->state_streams);
    TRY(check_side(&self->old, work->state_streams, ERR_CORRUPT));
    TRY(check_side(&self->fresh, work->state_streams, ERR_INTERNAL));
    return check_units(self);
}

/* ---- memory and drives ---- */

static int make_ring(recut_side *side)
{
    uint64_t largest = TILE_BLOCK_BYTES;
    for (uint64_t i = 0; i < side->tile_count; i++)
        largest = size_max(largest, side->tiles[i].size_bytes);
    uint64_t count = size_min(side->tile_count, RECUT_RING_BYTES / largest);
    count = size_min(size_max(count, RECUT_TILES_MIN), RECUT_TILES_MAX);
    uint64_t block_bytes;
    TRY(size_mul(count, largest, &block_bytes));
    side->block = mem_alloc(block_bytes + TILE_BLOCK_BYTES, 1, "recut tiles");
    if (!side->block)
        return -ENOMEM;
    uint64_t address = size_round_up((uintptr_t)side->block, TILE_BLOCK_BYTES);
    unsigned char *base = (unsigned char *)side->block + (address - (uintptr_t)side->block);
    side->slot_count = (uint32_t)count;
    for (uint32_t i = 0; i < side->slot_count; i++)
        side->slots[i].data = base + i * largest;
    return 0;
}

static int open_side(recut_side *side, const struct traini_recut *work, struct sim_store *store)
{
    TRY(make_ring(side));
    uint64_t slot_bytes = (uint64_t)(side->slots[1].data - side->slots[0].data);
    io_region region = {side->slots[0].data, side->slot_count * slot_bytes};
    io_config config = {
        .target = side->disk,
        .backend = work->backend,
        .queue_depth = RECUT_DEPTH,
        .regions = &region,
        .region_count = 1,
        .request_capacity = RECUT_TILES_MAX,
        .stuck_ns = work->stuck_ns ? work->stuck_ns : stuck_ns_default,
        .stop_ns = work->stop_ns,
        .faults = work->faults,
        .store = store,
    };
    return io_create(&config, &side->transport);
}

static void close_side(recut_side *side)
{
    io_destroy(side->transport); /* first: it waits for what is in flight */
    mem_free(side->block);
    mem_free(side->tiles);
}

/* Names a transfer that does not return. */
static void describe(const io_request *transfer, char *text, size_t capacity)
{
    const recut_slot *slot = transfer->user;
    snprintf(text, capacity, "%s of unit %u, tile %u of %s",
             transfer->direction == IO_READ ? "read" : "write", slot->tile->unit, slot->tile->tile,
             slot->side->name);
}

/* Begins the transfer of the next tile; its slot is free. */
static int submit_tile(recut_side *side, enum io_direction direction)
{
    recut_slot *slot = &side->slots[side->begun % side->slot_count];
    slot->side = side;
    slot->tile = &side->tiles[side->begun];
    slot->transfer = (io_request){.direction = direction,
                                  .offset = slot->tile->offset,
                                  .data = slot->data,
                                  .size_bytes = slot->tile->size_bytes,
                                  .user = slot,
                                  .describe = describe};
    TRY(io_submit(side->transport, &slot->transfer));
    slot->phase = RECUT_IN_FLIGHT;
    side->begun++;
    return 0;
}

/* What a side's drives have finished; how many, or the first failure. */
static int collect(const recut *self, recut_side *side)
{
    io_request *done[RECUT_COLLECT_MAX];
    int count = io_poll(side->transport, done, RECUT_COLLECT_MAX);
    for (int i = 0; i < count; i++) {
        recut_slot *slot = done[i]->user;
        const recut_tile *tile = slot->tile;
        if (done[i]->result < 0)
            return err_prefix(io_request_error(side->transport, done[i]),
                              "moving the commit of step %" PRIu64
                              " to another layout: unit %u, tile %u of %s",
                              self->work->found->step, tile->unit, tile->tile, side->name);
        slot->phase = tile->entry ? RECUT_FREE : RECUT_READ;
        if (tile->entry)
            place_written(tile->entry, 0, tile->checksum);
    }
    return count;
}

/* Keeps the drives busy; how many tiles they have finished since. */
static int pump(recut *self)
{
    int read_count = collect(self, &self->old);
    TRY(read_count);
    int write_count = collect(self, &self->fresh);
    TRY(write_count);
    return read_count + write_count;
}

/* Until a transfer of the slot is complete; of a slot without one at once. */
static int wait_for(recut *self, const recut_slot *slot)
{
    while (slot->phase == RECUT_IN_FLIGHT) {
        int count = pump(self);
        TRY(count);
        struct pollfd sides[2] = {
            {.fd = io_event_fd(self->old.transport), .events = POLLIN},
            {.fd = io_event_fd(self->fresh.transport), .events = POLLIN},
        };
        if (count == 0 && poll(sides, 2, RECUT_PATIENCE_MS) < 0 && errno != EINTR)
            return err_errno(errno, "waiting for the drives");
    }
    return 0;
}

/* ---- the stream ---- */

static int check_sum(const recut *self, const recut_slot *slot)
{
    const recut_tile *tile = slot->tile;
    if (tile->checksum == 0)
        return 0;
    uint64_t sum = checksum_sum(slot->data, tile->size_bytes, tile->elem_count);
    if (sum == tile->checksum)
        return 0;
    const slab *disk = self->old.disk;
    slab_piece piece;
    slab_map(disk, tile->offset, tile->size_bytes, &piece);
    return err_set(
        ERR_CORRUPT,
        "unit %u, tile %u: %" PRIu64 " bytes at offset %" PRIu64 " of %s have checksum %016" PRIx64
        ", but %016" PRIx64 " was written: the commit of step %" PRIu64
        " cannot be moved; sluice verify on the run directory lists all that is damaged; "
        "go on from a commit that was kept (run.keep), or begin anew with --fresh",
        tile->unit, tile->tile, tile->size_bytes, piece.file_offset,
        disk->files[piece.drive_idx].path, sum, tile->checksum, self->work->found->step);
}

/* The old tile at hand, complete and compared. */
static int old_tile(recut *self, recut_slot **out)
{
    recut_slot *slot = &self->old.slots[self->old.ended % self->old.slot_count];
    TRY(wait_for(self, slot));
    if (slot->phase == RECUT_READ)
        TRY(check_sum(self, slot));
    slot->phase = RECUT_COMPARED;
    *out = slot;
    return 0;
}

/* Reads ahead as far as there is memory. */
static int read_ahead(recut *self)
{
    recut_side *old = &self->old;
    while (old->begun < old->tile_count && old->begun < old->ended + old->slot_count)
        TRY(submit_tile(old, IO_READ));
    int count = pump(self);
    return count < 0 ? count : 0;
}

/* In pieces, with a look at the drives after each, so that they do not wait for us. */
static int copy_bytes(recut *self, unsigned char *target, const unsigned char *source,
                      uint64_t size_bytes)
{
    while (size_bytes > 0) {
        uint64_t part = size_min(size_bytes, RECUT_COPY_BYTES);
        memcpy(target, source, part);
        target += part;
        source += part;
        size_bytes -= part;
        TRY(pump(self));
    }
    return 0;
}

static void zero_padding(unsigned char *data, const recut_tile *tile, uint32_t streams)
{
    uint64_t stride = tile_stream_stride(tile->elem_count);
    for (uint32_t s = 0; s < streams; s++) {
        uint64_t begin = s * stride + sizeof(float) * tile->elem_count;
        uint64_t end = s + 1 < streams ? (s + 1) * stride : tile->size_bytes;
        memset(data + begin, 0, end - begin);
    }
}

/* Puts a new tile together from the old ones that it overlaps. */
static int fill_tile(recut *self, const recut_tile *tile, unsigned char *data)
{
    uint32_t streams = self->work->state_streams;
    uint64_t at = tile->elem_begin, end = at + tile->elem_count;
    while (at < end) {
        recut_slot *slot;
        TRY(old_tile(self, &slot));
        const recut_tile *from = slot->tile;
        uint64_t old_end = from->elem_begin + from->elem_count, until = size_min(end, old_end);
        for (uint32_t s = 0; s < streams; s++) {
            uint64_t target =
                s * tile_stream_stride(tile->elem_count) + sizeof(float) * (at - tile->elem_begin);
            uint64_t source =
                s * tile_stream_stride(from->elem_count) + sizeof(float) * (at - from->elem_begin);
            TRY(copy_bytes(self, data + target, slot->data + source, sizeof(float) * (until - at)));
        }
        at = until;
        if (at == old_end) {
            slot->phase = RECUT_FREE;
            self->old.ended++;
            TRY(read_ahead(self));
        }
    }
    zero_padding(data, tile, streams);
    return 0;
}

static void report(recut *self, bool is_end)
{
    uint64_t now_ns = clock_ns();
    if (!is_end && now_ns - self->told_ns < report_ns)
        return;
    self->told_ns = now_ns;
    char done[SIZE_TEXT_BYTES], total[SIZE_TEXT_BYTES];
    double seconds = (double)(now_ns - self->begin_ns) / 1e9;
    double rate = seconds > 0 ? (double)self->done_bytes / 1e9 / seconds : 0;
    if (is_end)
        log_info("the commit of step %" PRIu64 " is in its new layout: %s in %" PRIu64
                 " tiles, were %" PRIu64 ", in %.1f s (%.2f GB/s read and written)",
                 self->work->found->step, size_format(self->done_bytes, done),
                 self->fresh.tile_count, self->old.tile_count, seconds, rate);
    else
        log_info("moving the commit of step %" PRIu64
                 " to its new layout: %s of %s (%.2f GB/s read and written)",
                 self->work->found->step, size_format(self->done_bytes, done),
                 size_format(self->total_bytes, total), rate);
}

static int check_stop(const recut *self)
{
    const volatile sig_atomic_t *stop = self->work->stop;
    if (!stop || !*stop)
        return 0;
    return err_set(
        ERR_STOPPED,
        "stopped on request while the commit of step %" PRIu64
        " was being moved to another layout; it is as it was: resume with the same command",
        self->work->found->step);
}

static int stream(recut *self)
{
    recut_side *fresh = &self->fresh;
    TRY(read_ahead(self));
    while (fresh->begun < fresh->tile_count) {
        TRY(check_stop(self));
        recut_tile *tile = &fresh->tiles[fresh->begun];
        recut_slot *slot = &fresh->slots[fresh->begun % fresh->slot_count];
        TRY(wait_for(self, slot));
        TRY(fill_tile(self, tile, slot->data));
        tile->checksum = checksum_sum(slot->data, tile->size_bytes, tile->elem_count);
        place_begin_write(tile->entry, 0);
        TRY(submit_tile(fresh, IO_WRITE));
        TRY(pump(self));
        self->done_bytes += tile->size_bytes;
        report(self, false);
    }
    for (uint32_t i = 0; i < fresh->slot_count; i++)
        TRY(wait_for(self, &fresh->slots[i]));
    return io_sync(fresh->transport);
}

static int copy_all(recut *self)
{
    const struct traini_recut *work = self->work;
    TRY(list_tiles(self));
    TRY(check_work(self));
    TRY(open_side(&self->old, work, work->from_store));
    TRY(open_side(&self->fresh, work, work->to_store));
    self->begin_ns = self->told_ns = clock_ns();
    TRY(stream(self));
    report(self, true);
    return failpoint("recut.copied");
}

int traini_recut_copy(const struct traini_recut *work)
{
    recut *self = mem_alloc(1, sizeof *self, "recut");
    if (!self)
        return -ENOMEM;
    self->work = work;
    self->old.name = "the committed layout";
    self->old.disk = work->from;
    self->fresh.name = "the new layout";
    self->fresh.disk = work->to;
    int rc = copy_all(self);
    close_side(&self->old);
    close_side(&self->fresh);
    mem_free(self);
    return rc;
}
