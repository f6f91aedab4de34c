/* Loads parameters from a commit, of one rank or of several, into one process that holds all of
 * them.
 *
 *   all ranks' extents, by unit and element ─read─► a tile ─compare its sum─► working copy
 *                                                                    ─► home of the params
 *
 * Elements of a tile beyond its unit's end are dropped. One tile is read at a time, in transfers of
 * 1 MiB that are all in flight together, so memory is that of the largest tile and its working
 * copy. The process then holds the same bits as the run's own working copies (fill_params.c). */
#include <errno.h>
#include <inttypes.h>

#include "base/mem.h"
#include "base/shard.h"
#include "base/size.h"
#include "base/tile.h"
#include "infer/infer_internal.h"
#include "state/rank_slabs.h"
#include "swap/checksum.h"

enum { LOAD_DEPTH = 32, LOAD_PATIENCE_MS = 1000 };

struct loader {
    struct engine *engine;
    const manifest *record;
    rank_slabs *slabs;
    inferi_filler to;
    const volatile sig_atomic_t *stop;
    void *block;
    float *wide;         /* [elements of the largest tile of frozen params] */
    unsigned char *tile; /* [tile_bytes] within block */
    uint64_t tile_bytes;
    uint32_t copy_rank; /* if each rank has the whole state: the rank whose copy is read */
};
typedef struct loader loader;

static int await_request(loader *self)
{
    io_request *done;
    io *of;
    for (;;) {
        int count = rank_slabs_poll(self->slabs, &done, 1, &of);
        TRY(count);
        if (count > 0)
            return done->result < 0 ? io_request_error(of, done) : 0;
        struct pollfd fds[RANK_SLABS_OPEN_MAX];
        uint32_t fd_count = rank_slabs_fds(self->slabs, fds);
        if (poll(fds, fd_count, LOAD_PATIENCE_MS) < 0 && errno != EINTR)
            return err_errno(errno, "waiting for the drives");
    }
}

static int read_tile(loader *self, const manifest_extent *extent)
{
    io_request request = {.direction = IO_READ,
                          .offset = extent->offset_bytes,
                          .data = self->tile,
                          .size_bytes = extent->size_bytes};
    uint32_t rank = rank_slabs_rank_of(self->record, extent, self->copy_rank);
    int begun = rank_slabs_submit(self->slabs, rank, &request);
    TRY(begun);
    if (begun == 0)
        return err_set(ERR_INTERNAL, "no request is in flight, but no slab can be opened");
    int rc = await_request(self);
    if (rc < 0)
        return err_prefix(rc, "unit %u, tile %u of rank %u", extent->unit, extent->tile, rank);
    uint64_t sum = checksum_sum(self->tile, extent->size_bytes, extent->elem_count,
                                manifest_streams_of(self->record, extent));
    if (sum == extent->checksum)
        return 0;
    char path[FILE_PATH_BYTES];
    uint64_t file_offset;
    rank_slabs_locate(self->record, rank, NULL, extent->offset_bytes, path, &file_offset);
    return err_set(ERR_CORRUPT,
                   "unit %u, tile %u of rank %u: %" PRIu64 " bytes at offset %" PRIu64
                   " of %s have checksum %016" PRIx64 ", but %016" PRIx64
                   " was written; sluice verify lists all that is damaged",
                   extent->unit, extent->tile, rank, extent->size_bytes, file_offset, path, sum,
                   extent->checksum);
}

/* Refuses params that are not stored in the working dtype of the model. */
static int check_type(const loader *self, const manifest_extent *extent)
{
    enum dtype type = self->engine->setup->net->type;
    if (extent->param_bytes == dtype_bytes(type))
        return 0;
    return err_set(ERR_CORRUPT,
                   "the params of unit %u have %u bytes each in the manifest, and are %s by "
                   "job.json",
                   extent->unit, extent->param_bytes, dtype_name(type));
}

/* Gets fp32 masters of the tile. Params that are frozen, or the high halves of split masters, are
 * converted to fp32: their working copy gives the same params again. */
static int masters_of(loader *self, const manifest_extent *extent, const float **out)
{
    enum dtype type = self->engine->setup->net->type;
    *out = (const float *)(const void *)self->tile;
    if (extent->param_bytes == 0)
        return 0;
    TRY(check_type(self, extent));
    dtype_convert(self->tile, type, self->wide, DTYPE_FP32, extent->elem_count);
    *out = self->wide;
    return 0;
}

static int load_all(loader *self)
{
    const struct setup *setup = self->engine->setup;
    const manifest *record = self->record;
    uint64_t filled = 0, all = 0;
    for (uint64_t i = 0; i < record->extent_count; i++) {
        const manifest_extent *extent = &record->extents[i];
        if (manifest_is_low(record, i)) /* the high halves are the params */
            continue;
        if (extent->unit >= setup->net->unit_count)
            return err_set(ERR_CORRUPT,
                           "the manifest has a unit %u, and the model of job.json %u units",
                           extent->unit, setup->net->unit_count);
        uint64_t count = shard_real_elems(setup->unit_elems[extent->unit], extent->elem_begin,
                                          extent->elem_count);
        if (count == 0)
            continue;
        if (self->stop && *self->stop)
            return err_set(ERR_STOPPED, "stopped on request");
        TRY(read_tile(self, extent));
        const float *masters;
        if (setup->net->units[extent->unit].is_packed) {
            TRY(check_type(self, extent));
            TRY(inferi_fill_params(&self->to, extent->unit, extent->elem_begin, count, self->tile));
            filled += count;
            continue;
        }
        TRY(masters_of(self, extent, &masters));
        TRY(inferi_fill(&self->to, extent->unit, extent->elem_begin, count, masters));
        filled += count;
    }
    for (uint32_t u = 0; u < setup->net->unit_count; u++)
        all += setup->unit_elems[u];
    if (filled == all)
        return 0;
    return err_set(ERR_CONFIG,
                   "the commit has %" PRIu64 " of the model's %" PRIu64
                   " parameters: keys of the model that change its parameters cannot be set anew",
                   filled, all);
}

static int reserve(loader *self)
{
    const struct setup *setup = self->engine->setup;
    const struct job *asked = setup->job;
    uint64_t largest_elems = 0, frozen_elems = 0;
    for (uint64_t i = 0; i < self->record->extent_count; i++) {
        if (manifest_is_low(self->record, i))
            continue;
        self->tile_bytes = size_max(self->tile_bytes, self->record->extents[i].size_bytes);
        largest_elems = size_max(largest_elems, self->record->extents[i].elem_count);
        if (self->record->extents[i].param_bytes)
            frozen_elems = size_max(frozen_elems, self->record->extents[i].elem_count);
    }
    self->wide = mem_alloc(frozen_elems, sizeof *self->wide, "a tile of frozen parameters");
    self->block = mem_alloc(self->tile_bytes + TILE_BLOCK_BYTES, 1, "a tile of state");
    if (!self->block || !self->wide)
        return -ENOMEM;
    TRY(inferi_filler_init(&self->to, self->engine, largest_elems));
    self->tile = (unsigned char *)self->block +
                 (TILE_BLOCK_BYTES - (uintptr_t)self->block % TILE_BLOCK_BYTES);
    const rank_slabs_config config = {
        .record = self->record,
        .backend = self->engine->io_kind,
        .queue_depth = LOAD_DEPTH,
        .request_capacity = 1,
        .region = {.base = self->tile, .size_bytes = self->tile_bytes},
        .stuck_ns = (uint64_t)(asked->io.stuck_seconds * 1e9),
        .stop_ns = (uint64_t)(asked->io.stop_seconds * 1e9),
    };
    return rank_slabs_create(&config, &self->slabs);
}

int inferi_load_params(struct engine *engine, const manifest *record, uint32_t copy_rank,
                       const volatile sig_atomic_t *stop)
{
    loader self = {.engine = engine, .record = record, .copy_rank = copy_rank, .stop = stop};
    int rc = reserve(&self);
    if (rc == 0)
        rc = load_all(&self);
    rank_slabs_destroy(self.slabs);
    inferi_filler_fini(&self.to);
    mem_free(self.block);
    mem_free(self.wide);
    return rc;
}
