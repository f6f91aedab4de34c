/* Moves extents to another layout: the committed state on the slabs of some ranks is streamed to
 * the places of this rank.
 *
 *   from ─read─► [ old tiles in flight ] ─compare sums─► copy ─► [ new tiles ] ─sum, write─► to
 *
 *   old ranks    [0 . . . . .)[1 . . . . .)[2 . . .|0 0)     a unit, cut over 3 ranks; 0: padding
 *   this rank             [ . . . . . . . . . .)             its shard of 2, or the whole unit
 *
 * Both layouts cut the same vectors of elements (a unit's master, m and v). So both are walked in
 * the order of (unit, element): each old tile that overlaps this rank's elements is read once, and
 * each new tile is written once. For a split master (base/tile.h), params and state are two
 * vectors, one after the other. If they are made from a master that is not split, it is read once
 * for each of them. Elements beyond a unit's end are not read; they are zeros in the new layout.
 *
 * While one tile is copied and summed, the tiles before it are written and the tiles after it are
 * read. Each side has a ring of tiles: two, or as many as fill RECUT_RING_BYTES. All memory is
 * allocated before the first transfer. The old slab is only read, so the commit on it is unchanged
 * whatever fails.
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
#include "base/shard.h"
#include "base/size.h"
#include "base/tile.h"
#include "state/recut_internal.h"
#include "swap/checksum.h"
#include "tiers/io_faults.h"

enum {
    RECUT_TILES_MIN = 2,
    RECUT_COLLECT_MAX = 16,
    RECUT_PATIENCE_MS = 1000,
    RECUT_DEPTH = 32, /* transfers of 1 MiB: keeps the drives busy while a tile is summed */
};

/* Per side. A drive is at full speed with 4 to 16 MiB in flight. */
#define RECUT_RING_BYTES (32 * MIB)
#define RECUT_COPY_BYTES (2 * MIB) /* copied between two polls of the drives */

static const uint64_t report_ns = 5000000000;
static const uint64_t stuck_ns_default = 30000000000;

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

static io_region region_of(const recut_side *side)
{
    uint64_t slot_bytes = (uint64_t)(side->slots[1].data - side->slots[0].data);
    return (io_region){side->slots[0].data, side->slot_count * slot_bytes};
}

static int open_old(recut *self)
{
    const struct state_recut *work = self->work;
    const rank_slabs_config config = {
        .record = work->found,
        .backend = work->backend,
        .queue_depth = RECUT_DEPTH,
        .request_capacity = RECUT_TILES_MAX,
        .region = region_of(&self->old),
        .stuck_ns = work->stuck_ns ? work->stuck_ns : stuck_ns_default,
        .stop_ns = work->stop_ns,
        .faults = work->faults,
        .disks = work->from,
        .stores = work->from_store,
    };
    return rank_slabs_create(&config, &self->old.slabs);
}

static int open_fresh(recut *self)
{
    const struct state_recut *work = self->work;
    io_region region = region_of(&self->fresh);
    const io_config config = {
        .target = work->to,
        .backend = work->backend,
        .queue_depth = RECUT_DEPTH,
        .regions = &region,
        .region_count = 1,
        .request_capacity = RECUT_TILES_MAX,
        .stuck_ns = work->stuck_ns ? work->stuck_ns : stuck_ns_default,
        .stop_ns = work->stop_ns,
        .test = &(const io_test){.faults = work->faults},
        .store = work->to_store,
    };
    return io_create(&config, &self->fresh.transport);
}

static void close_side(recut_side *side)
{
    io_destroy(side->transport); /* first: it waits for the transfers in flight */
    rank_slabs_destroy(side->slabs);
    mem_free(side->block);
    mem_free(side->tiles);
}

/* Describes a transfer, for the message about one that does not return. */
static void describe(const io_request *transfer, char *text, size_t capacity)
{
    const recut_slot *slot = transfer->user;
    snprintf(text, capacity, "%s of unit %u, tile %u of %s",
             transfer->direction == IO_READ ? "read" : "write", slot->tile->unit, slot->tile->tile,
             slot->side->name);
}

/* Begins the transfer of the next tile; its slot must be free. Returns 1, or 0 if its slab cannot
 * be opened before other transfers have finished. */
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
    if (side->slabs) {
        int begun = rank_slabs_submit(side->slabs, slot->tile->rank, &slot->transfer);
        if (begun <= 0)
            return begun;
    } else {
        TRY(io_submit(side->transport, &slot->transfer));
    }
    slot->phase = RECUT_IN_FLIGHT;
    side->begun++;
    return 1;
}

/* Takes the finished transfers of a side. Returns their number, or the first failure. */
static int collect(const recut *self, recut_side *side)
{
    io_request *done[RECUT_COLLECT_MAX];
    io *of = side->transport;
    int count = side->slabs ? rank_slabs_poll(side->slabs, done, RECUT_COLLECT_MAX, &of)
                            : io_poll(of, done, RECUT_COLLECT_MAX);
    for (int i = 0; i < count; i++) {
        recut_slot *slot = done[i]->user;
        const recut_tile *tile = slot->tile;
        if (done[i]->result < 0)
            return err_prefix(io_request_error(of, done[i]),
                              "moving the commit of step %" PRIu64
                              " to another layout: unit %u, tile %u of %s",
                              self->work->found->point.step, tile->unit, tile->tile, side->name);
        slot->phase = tile->entry ? RECUT_FREE : RECUT_READ;
        if (tile->entry)
            place_written(tile->entry, 0, tile->checksum);
    }
    return count;
}

/* Takes the finished transfers of both sides. Returns their number. */
static int pump(recut *self)
{
    int read_count = collect(self, &self->old);
    TRY(read_count);
    int write_count = collect(self, &self->fresh);
    TRY(write_count);
    return read_count + write_count;
}

/* Waits until the slot's transfer is complete; returns at once if it has none. */
static int wait_for(recut *self, const recut_slot *slot)
{
    while (slot->phase == RECUT_IN_FLIGHT) {
        int count = pump(self);
        TRY(count);
        struct pollfd fds[RANK_SLABS_OPEN_MAX + 1];
        uint32_t fd_count = rank_slabs_fds(self->old.slabs, fds);
        fds[fd_count++] =
            (struct pollfd){.fd = io_event_fd(self->fresh.transport), .events = POLLIN};
        if (count == 0 && poll(fds, fd_count, RECUT_PATIENCE_MS) < 0 && errno != EINTR)
            return err_errno(errno, "waiting for the drives");
    }
    return 0;
}

/* ---- the stream ---- */

static int check_sum(const recut *self, const recut_slot *slot)
{
    const recut_tile *tile = slot->tile;
    uint64_t sum = checksum_sum(slot->data, tile->size_bytes, tile->elem_count, tile->streams);
    if (sum == tile->checksum)
        return 0;
    const struct state_recut *work = self->work;
    char path[FILE_PATH_BYTES];
    uint64_t file_offset;
    rank_slabs_locate(work->found, tile->rank, work->from ? work->from[tile->rank] : NULL,
                      tile->offset, path, &file_offset);
    return err_set(
        ERR_CORRUPT,
        "unit %u, tile %u: %" PRIu64 " bytes at offset %" PRIu64 " of %s have checksum %016" PRIx64
        ", but %016" PRIx64 " was written: the commit of step %" PRIu64
        " cannot be moved; sluice verify on the run directory lists all that is damaged; "
        "go on from a commit that was kept (run.keep), or begin anew with --fresh",
        tile->unit, tile->tile, tile->size_bytes, file_offset, path, sum, tile->checksum,
        work->found->point.step);
}

/* Begins reads of the next old tiles, as far as there is memory. */
static int read_ahead(recut *self)
{
    recut_side *old = &self->old;
    int begun = 1;
    while (begun > 0 && old->begun < old->tile_count && old->begun < old->ended + old->slot_count) {
        begun = submit_tile(old, IO_READ);
        TRY(begun);
    }
    int count = pump(self);
    return count < 0 ? count : 0;
}

/* Returns the current old tile, after it was read and its sum compared. */
static int old_tile(recut *self, recut_slot **out)
{
    recut_slot *slot = &self->old.slots[self->old.ended % self->old.slot_count];
    /* its slab was not open, and no other could be closed */
    while (self->old.begun == self->old.ended)
        TRY(read_ahead(self));
    TRY(wait_for(self, slot));
    if (slot->phase == RECUT_READ)
        TRY(check_sum(self, slot));
    slot->phase = RECUT_COMPARED;
    *out = slot;
    return 0;
}

/* Copies in pieces and polls the drives after each, so that they do not wait for us. */
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

static uint64_t width_of(const recut_tile *tile)
{
    return tile->param_bytes ? tile->param_bytes : sizeof(float);
}

/* Zeros everything after the tile's first `held` elements, which are the unit's own. */
static void zero_padding(unsigned char *data, const recut_tile *tile, uint64_t held)
{
    uint32_t streams = tile->streams;
    if (streams == 0)
        memset(data + width_of(tile) * held, 0, tile->size_bytes - width_of(tile) * held);
    for (uint32_t s = 0; s < tile_stream_count(streams); s++) {
        uint64_t begin =
            tile_stream_offset(streams, tile->elem_count, s) + tile_stream_bytes(streams, held, s);
        uint64_t end = s + 1 < tile_stream_count(streams)
                           ? tile_stream_offset(streams, tile->elem_count, s + 1)
                           : tile->size_bytes;
        memset(data + begin, 0, end - begin);
    }
}

/* Converts `count` elements between params and master weights:
 * - Old master weights become params, rounded like the working copy. Either the unit no longer
 *   learns, or these are the high halves of a split master.
 * - Old params become master weights, because the unit learns now. Low halves and moments are
 *   zeros. */
static void convert(const recut *self, const recut_tile *tile, unsigned char *data,
                    const recut_tile *from, const unsigned char *source, uint64_t at,
                    uint64_t count)
{
    enum dtype type = self->work->param_type;
    uint64_t within = at - tile->elem_begin;
    unsigned char *target = data + width_of(tile) * within;
    source += width_of(from) * (at - from->elem_begin);
    if (from->param_bytes) {
        uint32_t streams = tile->streams, first = tile_master_is_split(streams) ? 0 : 1;
        if (first > 0)
            dtype_convert(source, type, target, DTYPE_FP32, count);
        for (uint32_t s = first; s < tile_stream_count(streams); s++)
            memset(data + tile_stream_offset(streams, tile->elem_count, s) +
                       tile_stream_bytes(streams, within, s),
                   0, tile_stream_bytes(streams, count, s));
        return;
    }
    if (type != DTYPE_BF16) {
        dtype_convert(source, DTYPE_FP32, target, type, count);
        return;
    }
    const float *master = (const float *)(const void *)source;
    uint16_t *params = (uint16_t *)(void *)target;
    for (uint64_t i = 0; i < count; i++)
        params[i] = bf16_working_copy(master[i]);
}

/* Takes the low halves of fp32 master weights. */
static void cut_low(unsigned char *target, const unsigned char *source, uint64_t count)
{
    const float *master = (const float *)(const void *)source;
    uint16_t *low = (uint16_t *)(void *)target;
    for (uint64_t i = 0; i < count; i++)
        low[i] = master_low16(master[i]);
}

/* Copies the elements [at, until) of the current old tile into the new one. */
static int copy_elems(recut *self, const recut_tile *tile, unsigned char *data,
                      const recut_slot *slot, uint64_t at, uint64_t until)
{
    const recut_tile *from = slot->tile;
    uint64_t width = width_of(tile);
    if (from->param_bytes != tile->param_bytes) {
        const uint64_t part = RECUT_COPY_BYTES / sizeof(float);
        for (uint64_t end; at < until; at = end) {
            end = size_min(at + part, until);
            convert(self, tile, data, from, slot->data, at, end - at);
            TRY(pump(self));
        }
        return 0;
    }
    uint32_t streams = tile->streams, old = from->streams;
    uint64_t to_first = at - tile->elem_begin, from_first = at - from->elem_begin;
    if (streams == 0)
        return copy_bytes(self, data + width * to_first, slot->data + width * from_first,
                          width * (until - at));
    if (tile_stream_count(old) != tile_stream_count(streams))
        return err_set(ERR_CORRUPT,
                       "the commit of step %" PRIu64 " has %u values per parameter of unit %u and "
                       "the run's optimizer %u: its manifest is of another run",
                       self->work->found->point.step, tile_stream_count(old), tile->unit,
                       tile_stream_count(streams));
    for (uint32_t s = 0; s < tile_stream_count(streams); s++) {
        uint64_t target = tile_stream_offset(streams, tile->elem_count, s) +
                          tile_stream_bytes(streams, to_first, s);
        uint64_t source =
            tile_stream_offset(old, from->elem_count, s) + tile_stream_bytes(old, from_first, s);
        uint64_t size_bytes = tile_stream_bytes(streams, until - at, s);
        if (tile_stream_format(streams, s) == tile_stream_format(old, s))
            TRY(copy_bytes(self, data + target, slot->data + source, size_bytes));
        else if (tile_stream_format(streams, s) == TILE_LOW16)
            cut_low(data + target, slot->data + source, until - at);
        else /* an import's moments, which are zeros in every format */
            memset(data + target, 0, size_bytes);
    }
    return 0;
}

/* Assembles a new tile from the old ones that it overlaps. */
static int fill_tile(recut *self, const recut_tile *tile, unsigned char *data)
{
    uint64_t at = tile->elem_begin;
    uint64_t end = at + shard_real_elems(self->work->unit_elems[tile->unit], at, tile->elem_count);
    while (at < end) {
        recut_slot *slot;
        TRY(old_tile(self, &slot));
        const recut_tile *from = slot->tile;
        uint64_t until = size_min(end, from->use_end);
        TRY(copy_elems(self, tile, data, slot, at, until));
        at = until;
        if (at == from->use_end) {
            slot->phase = RECUT_FREE;
            self->old.ended++;
            TRY(read_ahead(self));
        }
    }
    zero_padding(data, tile, end - tile->elem_begin);
    return 0;
}

static void report(recut *self, bool is_end)
{
    uint64_t now_ns = clock_ns();
    if (!is_end && now_ns - self->reported_ns < report_ns)
        return;
    self->reported_ns = now_ns;
    char done[SIZE_TEXT_BYTES], total[SIZE_TEXT_BYTES];
    double seconds = (double)(now_ns - self->begin_ns) / 1e9;
    double rate = seconds > 0 ? (double)self->done_bytes / 1e9 / seconds : 0;
    if (is_end)
        log_info("the commit of step %" PRIu64 " is in its new layout: %s in %" PRIu64
                 " tiles, were %" PRIu64 ", in %.1f s (%.2f GB/s read and written)",
                 self->work->found->point.step, size_format(self->done_bytes, done),
                 self->fresh.tile_count, self->old.tile_count, seconds, rate);
    else
        log_info("moving the commit of step %" PRIu64
                 " to its new layout: %s of %s (%.2f GB/s read and written)",
                 self->work->found->point.step, size_format(self->done_bytes, done),
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
        self->work->found->point.step);
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
        tile->checksum =
            checksum_sum(slot->data, tile->size_bytes, tile->elem_count, tile->streams);
        place_begin_write(tile->entry, 0);
        int begun = submit_tile(fresh, IO_WRITE);
        TRY(begun);
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
    const struct state_recut *work = self->work;
    if (work->found->is_replicated)
        TRY(recut_choose_copy(work, self->old_world, &self->copy_rank));
    TRY(recut_list_old(self));
    TRY(recut_list_fresh(self));
    TRY(recut_check_work(self));
    TRY(make_ring(&self->old));
    TRY(make_ring(&self->fresh));
    TRY(open_old(self));
    TRY(open_fresh(self));
    self->begin_ns = self->reported_ns = clock_ns();
    TRY(stream(self));
    report(self, true);
    return failpoint("recut.copied");
}

int state_recut_copy(const struct state_recut *work)
{
    recut *self = mem_alloc(1, sizeof *self, "recut");
    if (!self)
        return -ENOMEM;
    self->work = work;
    self->world = work->world ? work->world : 1;
    self->old_world = rank_slabs_world(work->found);
    self->old.name = "the committed layout";
    self->fresh.name = "the new layout";
    int rc = copy_all(self);
    close_side(&self->old);
    close_side(&self->fresh);
    mem_free(self);
    return rc;
}
