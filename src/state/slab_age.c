/* Finds out whether a slab holds the newest commit of its run or an older one. A slab that was
 * copied back from a backup holds an older one. The slab itself does not say which commit that is,
 * so a few tiles are compared with the sums of both manifests:
 *
 *   one of them is as the newest commit says     this is the slab, damaged or not
 *   none is, all are as the older one says       a copy of the commit before
 *   none is, nor as the older one says           an older copy, or a slab that was overwritten
 *
 * Every commit changes every tile of state, so no tile of an older copy is as the newest commit
 * says. The usual case reads one tile. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "state/rank_slabs.h"
#include "state/state_internal.h"
#include "swap/checksum.h"

enum { SAMPLES = 4, SLOT_BYTES_MAX = 1 << 30 };

struct sampler {
    const struct state_slab_age *asked;
    uint64_t *older_step;
    slab disk;
    io *transport;
    unsigned char *block, *data; /* [data_bytes] aligned to 4 KiB, within block */
    uint64_t data_bytes;
};
typedef struct sampler sampler;

/* True if each commit writes the extent anew. */
static bool changes(const manifest *record, uint64_t idx)
{
    return record->extents[idx].param_bytes == 0 || manifest_is_high(record, idx);
}

/* Lists up to SAMPLES extents of the rank that change with each commit, evenly spread. */
static uint32_t choose(const manifest *record, uint32_t rank, uint64_t idx[SAMPLES])
{
    uint64_t count = 0, seen = 0;
    uint32_t used = 0;
    for (uint64_t i = 0; i < record->extent_count; i++)
        count +=
            changes(record, i) && rank_slabs_rank_of(record, &record->extents[i], rank) == rank;
    for (uint64_t i = 0; i < record->extent_count && used < SAMPLES; i++) {
        if (!changes(record, i) || rank_slabs_rank_of(record, &record->extents[i], rank) != rank)
            continue;
        if (seen++ * SAMPLES >= used * count)
            idx[used++] = i;
    }
    return used;
}

/* Returns 1 if the bytes on the slab are those of the extent, else 0. */
static int is_as_committed(sampler *self, const manifest *record, uint64_t idx)
{
    const manifest_extent *extent = &record->extents[idx];
    if (extent->size_bytes > self->data_bytes)
        return 0; /* another layout */
    TRY(io_transfer(self->transport, IO_READ, extent->offset_bytes, self->data,
                    extent->size_bytes));
    uint64_t sum = checksum_sum(self->data, extent->size_bytes, extent->elem_count,
                                manifest_streams_of(record, extent));
    return sum == extent->checksum;
}

/* Reads the valid slot that is not the newest one. Returns 1, or 0 if there is none that names
 * these slabs. */
static int read_older(const struct state_slab_age *asked, manifest *older)
{
    static const char *const names[2] = {"manifest-0", "manifest-1"};
    char path[FILE_PATH_BYTES], *bytes;
    uint64_t size_bytes;
    unsigned slot = 1 - asked->newest->generation % 2;
    if (file_join(path, sizeof path, asked->state_dir, names[slot]) < 0 ||
        file_read(path, SLOT_BYTES_MAX, &bytes, &size_bytes) < 0)
        return 0;
    int rc = manifest_decode(bytes, size_bytes, slot, older);
    mem_free(bytes);
    return rc == 0 && older->state == MANIFEST_COMMITTED &&
           older->extent_count == asked->newest->extent_count &&
           older->point.step < asked->newest->point.step &&
           memcmp(older->slabs.uuid, asked->newest->slabs.uuid, sizeof older->slabs.uuid) == 0;
}

/* Sets the error if no sample is as committed. */
static int compare_samples(sampler *self, const uint64_t *idx, uint32_t count)
{
    const manifest *newest = self->asked->newest;
    const char *path = self->disk.files[0].path;
    for (uint32_t i = 0; i < count; i++) {
        int is_right = is_as_committed(self, newest, idx[i]);
        if (is_right != 0)
            return is_right < 0 ? is_right : 0;
    }
    manifest *older = mem_alloc(1, sizeof *older, "manifest");
    if (!older)
        return -ENOMEM;
    int is_older = read_older(self->asked, older);
    for (uint32_t i = 0; is_older > 0 && i < count; i++)
        is_older = is_as_committed(self, older, idx[i]);
    uint64_t step = older->point.step;
    if (is_older > 0)
        *self->older_step = step;
    manifest_fini(older);
    mem_free(older);
    if (is_older > 0)
        return err_set(ERR_CORRUPT,
                       "the slab %s is an old copy: it holds the commit of step %" PRIu64
                       ", and the run is at step %" PRIu64
                       "; put the newer slab back, or the run directory of the slab's time too",
                       path, step, newest->point.step);
    if (is_older < 0 || count < 2)
        return is_older < 0 ? is_older : 0; /* one tile may be damaged */
    return err_set(
        ERR_CORRUPT,
        "the slab %s is not that of the run's commit of step %" PRIu64
        ": none of %u tiles that were compared is as committed, so it is an old copy or was "
        "overwritten; put the right slab back, or the run directory of the slab's time too",
        path, newest->point.step, count);
}

static int sample(sampler *self)
{
    const struct state_slab_age *asked = self->asked;
    uint64_t idx[SAMPLES];
    uint32_t count = choose(asked->newest, asked->rank, idx);
    for (uint32_t i = 0; i < count; i++)
        self->data_bytes = size_max(self->data_bytes, asked->newest->extents[idx[i]].size_bytes);
    if (count == 0)
        return 0;
    self->block = mem_alloc(self->data_bytes + TILE_BLOCK_BYTES, 1, "sample of a slab");
    if (!self->block)
        return -ENOMEM;
    uint64_t aligned = size_round_up((uintptr_t)self->block, TILE_BLOCK_BYTES);
    self->data = self->block + (aligned - (uintptr_t)self->block);
    const io_config config = {.target = &self->disk,
                              .backend = asked->backend,
                              .stuck_ns = asked->stuck_ns,
                              .stop_ns = asked->stop_ns};
    TRY(io_create(&config, &self->transport));
    return compare_samples(self, idx, count);
}

int state_check_slab_age(const struct state_slab_age *asked, uint64_t *older_step)
{
    *older_step = UINT64_MAX;
    sampler *self = mem_alloc(1, sizeof *self, "sampler of a slab");
    if (!self)
        return -ENOMEM;
    self->asked = asked;
    self->older_step = older_step;
    int rc = rank_slabs_open(asked->newest, asked->rank, &self->disk);
    if (rc == 0) {
        rc = sample(self);
        err_record kept;
        err_save(&kept, rc);
        io_destroy(self->transport);
        slab_close(&self->disk);
        if (rc < 0)
            (void)err_restore(&kept);
    }
    mem_free(self->block);
    mem_free(self);
    return rc;
}
