/* The simulated drive's bytes, and a slab without files. See sim.h. One thread; the memory comes from
 * base/mem, all at creation or chunk by chunk at first writes. */
#include "tiers/sim.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"
#include "tiers/sim_internal.h"
#include "tiers/slab_internal.h"

#define SIM_CHUNK_BYTES (256 * KIB)

/* One drive: chunks that nobody wrote yet are NULL and read as zeros. */
struct sim_drive {
    uint64_t file_bytes; /* of the slab's file */
    uint64_t end_bytes;  /* where it ends now, <= file_bytes */
    uint64_t chunk_count;
    unsigned char **chunks; /* [chunk_count] SIM_CHUNK_BYTES each */
};
typedef struct sim_drive sim_drive;

struct sim_store {
    uint32_t drive_count;
    sim_drive drives[SLAB_DRIVES_MAX];
};

static int make_chunk(sim_drive *drive, uint64_t chunk_idx)
{
    if (!drive->chunks[chunk_idx])
        drive->chunks[chunk_idx] = mem_alloc(SIM_CHUNK_BYTES, 1, "simulated drive");
    return drive->chunks[chunk_idx] ? 0 : -ENOMEM;
}

static int make_drive(sim_drive *drive, uint64_t file_bytes, bool whole)
{
    drive->file_bytes = drive->end_bytes = file_bytes;
    drive->chunk_count = size_div_up(file_bytes, SIM_CHUNK_BYTES);
    drive->chunks = mem_alloc(drive->chunk_count, sizeof *drive->chunks, "simulated drive");
    if (!drive->chunks)
        return -ENOMEM;
    for (uint64_t i = 0; whole && i < drive->chunk_count; i++)
        TRY(make_chunk(drive, i));
    return 0;
}

int sim_store_create(const slab *target, bool whole, sim_store **out)
{
    *out = NULL;
    sim_store *self = mem_alloc(1, sizeof *self, "simulated drive");
    if (!self)
        return -ENOMEM;
    self->drive_count = target->drive_count;
    for (uint32_t i = 0; i < self->drive_count; i++) {
        int rc = make_drive(&self->drives[i], target->files[i].file_bytes, whole);
        if (rc < 0) {
            sim_store_destroy(self);
            return rc;
        }
    }
    *out = self;
    return 0;
}

void sim_store_destroy(sim_store *self)
{
    if (!self)
        return;
    for (uint32_t i = 0; i < self->drive_count; i++) {
        sim_drive *drive = &self->drives[i];
        for (uint64_t k = 0; drive->chunks && k < drive->chunk_count; k++)
            mem_free(drive->chunks[k]);
        mem_free(drive->chunks);
    }
    mem_free(self);
}

int tieri_sim_check(const sim_store *self, const slab *target)
{
    bool same = self->drive_count == target->drive_count;
    for (uint32_t i = 0; i < target->drive_count && same; i++)
        same = self->drives[i].file_bytes == target->files[i].file_bytes;
    return same ? 0 : err_set(-EINVAL, "io: the simulated drives were made for another slab");
}

void sim_store_cut(sim_store *self, uint32_t drive_idx, uint64_t size_bytes)
{
    assert(drive_idx < self->drive_count);
    sim_drive *drive = &self->drives[drive_idx];
    drive->end_bytes = size_min(size_bytes, drive->file_bytes);
}

/* The part of [offset, offset + size) that lies in offset's chunk. */
static uint64_t within_chunk(uint64_t offset, uint64_t size_bytes)
{
    return size_min(size_bytes, SIM_CHUNK_BYTES - offset % SIM_CHUNK_BYTES);
}

void sim_store_get(const sim_store *self, uint32_t drive_idx, uint64_t offset, void *data,
                   uint64_t size_bytes)
{
    const sim_drive *drive = &self->drives[drive_idx];
    assert(drive_idx < self->drive_count && offset <= drive->file_bytes);
    assert(size_bytes <= drive->file_bytes - offset);
    unsigned char *to = data;
    for (uint64_t part; size_bytes > 0; offset += part, to += part, size_bytes -= part) {
        part = within_chunk(offset, size_bytes);
        const unsigned char *chunk = drive->chunks[offset / SIM_CHUNK_BYTES];
        if (chunk)
            memcpy(to, chunk + offset % SIM_CHUNK_BYTES, part);
        else
            memset(to, 0, part);
    }
}

int sim_store_put(sim_store *self, uint32_t drive_idx, uint64_t offset, const void *data,
                  uint64_t size_bytes)
{
    sim_drive *drive = &self->drives[drive_idx];
    assert(drive_idx < self->drive_count && offset <= drive->file_bytes);
    assert(size_bytes <= drive->file_bytes - offset);
    const unsigned char *from = data;
    for (uint64_t part; size_bytes > 0; offset += part, from += part, size_bytes -= part) {
        part = within_chunk(offset, size_bytes);
        TRY(make_chunk(drive, offset / SIM_CHUNK_BYTES));
        memcpy(drive->chunks[offset / SIM_CHUNK_BYTES] + offset % SIM_CHUNK_BYTES, from, part);
    }
    return 0;
}

int64_t tieri_sim_move(sim_store *self, const tieri_transfer *item)
{
    const sim_drive *drive = &self->drives[item->drive_idx];
    uint64_t left = drive->end_bytes - size_min(item->file_offset, drive->end_bytes);
    uint64_t size_bytes = size_min(item->ask_bytes, left);
    if (item->direction == IO_READ) {
        if (size_bytes)
            sim_store_get(self, item->drive_idx, item->file_offset, item->data, size_bytes);
        return (int64_t)size_bytes;
    }
    if (size_bytes == 0)
        return -ENOSPC;
    int rc = sim_store_put(self, item->drive_idx, item->file_offset, item->data, size_bytes);
    return rc < 0 ? rc : (int64_t)size_bytes;
}

/* ---- a slab without files ---- */

int sim_slab_init(slab *out, const slab_config *config)
{
    memset(out, 0, sizeof *out);
    uint64_t stripe_count, limits[SLAB_DRIVES_MAX], limit_sum = 0;
    double weights[SLAB_DRIVES_MAX];
    TRY(tieri_slab_check_config(config, &out->stripe_bytes, &stripe_count));
    for (uint32_t i = 0; i < config->drive_count; i++) {
        uint64_t budget_bytes = config->drives[i].budget_bytes;
        weights[i] = config->drives[i].weight > 0 ? config->drives[i].weight : 1.0;
        limits[i] = budget_bytes == 0 ? stripe_count
                    : budget_bytes > SLAB_HEADER_BYTES
                        ? (budget_bytes - SLAB_HEADER_BYTES) / out->stripe_bytes
                        : 0;
        limits[i] = size_min(limits[i], stripe_count);
        limit_sum += limits[i];
    }
    if (limit_sum < stripe_count)
        return err_set(
            ERR_NO_FIT,
            "simulated drives: needs %llu stripes, the budgets hold %llu; give them more",
            (unsigned long long)stripe_count, (unsigned long long)limit_sum);
    tieri_slab_share(config->drive_count, weights, limits, stripe_count, out->drive_stripes);
    for (uint32_t i = 0; i < config->drive_count; i++) {
        slab_file *file = &out->files[i];
        *file = (slab_file){.fd = -1,
                            .direct = true, /* cut transfers go on at whole blocks, as on a drive */
                            .align_bytes = 4096,
                            .file_bytes =
                                SLAB_HEADER_BYTES + out->drive_stripes[i] * out->stripe_bytes};
        TRY(tieri_slab_file_path(config, i, file->path));
    }
    out->drive_count = config->drive_count;
    out->rank = config->rank;
    out->total_bytes = stripe_count * out->stripe_bytes;
    memcpy(out->uuid, config->uuid, sizeof out->uuid);
    return tieri_slab_layout(out);
}
