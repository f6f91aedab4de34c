/* See rank_slabs.h. */
#include "state/rank_slabs.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/tile.h"
#include "state/state_internal.h"
#include "tiers/io_faults.h"

/* An open slab of a rank. */
struct open_slab {
    slab own;         /* used if it was opened here */
    const slab *disk; /* `own`, or the caller's slab */
    io *transport;    /* NULL: the slot is free */
    uint32_t rank;
    uint64_t in_flight, used_at;
};
typedef struct open_slab open_slab;

struct rank_slabs {
    rank_slabs_config config;
    uint32_t world;
    uint64_t clock; /* counts submissions; the slots' used_at */
    uint32_t turn;  /* the slot that poll looks at next */
    open_slab slots[RANK_SLABS_OPEN_MAX];
};

uint32_t rank_slabs_world(const manifest *record)
{
    return record->world_size ? record->world_size : 1;
}

/* ---- names ---- */

int state_drive_of_rank(const manifest_slabs *slabs, uint32_t rank, uint32_t drive_idx,
                        char path[FILE_PATH_BYTES])
{
    const char *drive = slabs->drives[drive_idx];
    bool is_known = rank < slabs->rank_count;
    if (!manifest_expand_path(drive, rank, is_known ? slabs->ranks[rank].local_rank : 0,
                              is_known ? slabs->ranks[rank].host : "", path, FILE_PATH_BYTES))
        return err_set(ERR_INPUT, "the drive %.200s of rank %u has a path longer than %d bytes",
                       drive, rank, FILE_PATH_BYTES - 1);
    return 0;
}

int state_slab_of_rank(const manifest_slabs *slabs, uint32_t rank, uint32_t drive_idx,
                       char path[FILE_PATH_BYTES])
{
    char uuid[MANIFEST_UUID_TEXT_BYTES], drive[FILE_PATH_BYTES];
    TRY(state_drive_of_rank(slabs, rank, drive_idx, drive));
    int length = snprintf(path, FILE_PATH_BYTES, "%s/sluice-%s/rank-%u-drive-%u.slab", drive,
                          manifest_uuid_text(slabs, uuid), rank, drive_idx);
    if (length >= FILE_PATH_BYTES)
        return err_set(ERR_INPUT, "the slab of rank %u on %.200s has a path longer than %d bytes",
                       rank, drive, FILE_PATH_BYTES - 1);
    return 0;
}

static void name_host(char host[MANIFEST_HOST_BYTES])
{
    if (gethostname(host, MANIFEST_HOST_BYTES) != 0)
        snprintf(host, MANIFEST_HOST_BYTES, "unknown");
    host[MANIFEST_HOST_BYTES - 1] = '\0';
}

bool rank_slabs_is_elsewhere(const manifest *record, uint32_t rank)
{
    char host[MANIFEST_HOST_BYTES];
    if (rank >= record->slabs.rank_count || record->slabs.ranks[rank].host[0] == '\0')
        return false;
    name_host(host);
    return strcmp(host, record->slabs.ranks[rank].host) != 0;
}

bool rank_slabs_is_unmounted(const manifest *record, uint32_t rank, uint32_t drive_idx)
{
    char drive[FILE_PATH_BYTES];
    if (state_drive_of_rank(&record->slabs, rank, drive_idx, drive) < 0)
        return false;
    DIR *entries = opendir(drive);
    if (!entries)
        return errno == ENOENT || errno == ENOTDIR;
    bool is_empty = true;
    for (const struct dirent *entry; is_empty && (entry = readdir(entries));)
        is_empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
                   strcmp(entry->d_name, "lost+found") == 0; /* of a new file system */
    closedir(entries);
    return is_empty;
}

/* The error for a slab that should be on this host and is not. */
static int name_missing(const manifest *record, uint32_t rank, uint32_t drive_idx, const char *path)
{
    char drive[FILE_PATH_BYTES];
    TRY(state_drive_of_rank(&record->slabs, rank, drive_idx, drive));
    if (rank_slabs_is_unmounted(record, rank, drive_idx))
        return err_set(ERR_INPUT,
                       "the drive at %s is not mounted or is empty: it does not have the slab %s; "
                       "mount it there and run the same command again, nothing was changed",
                       drive, path);
    return err_set(ERR_INPUT,
                   "the slab %s is not there, though its drive at %s has other files: bring it "
                   "back, or mount the right drive, and run the same command again; nothing was "
                   "changed",
                   path, drive);
}

int rank_slabs_look(const manifest *record, uint32_t rank)
{
    for (uint32_t d = 0; d < record->slabs.drive_count; d++) {
        char path[FILE_PATH_BYTES], host[MANIFEST_HOST_BYTES];
        TRY(state_slab_of_rank(&record->slabs, rank, d, path));
        if (access(path, F_OK) == 0)
            continue;
        if (errno != ENOENT && errno != ENOTDIR)
            return err_errno(errno, "cannot look at the slab %s", path);
        if (!rank_slabs_is_elsewhere(record, rank))
            return name_missing(record, rank, d, path);
        name_host(host);
        return err_set(ERR_INPUT,
                       "the slab of rank %u, which ran on host %s, is not visible from here (host "
                       "%s): %s; start as many ranks on the same hosts as before, or on a shared "
                       "file system",
                       rank, record->slabs.ranks[rank].host, host, path);
    }
    return 0;
}

int rank_slabs_choose(const manifest *record, uint32_t first, uint32_t *out)
{
    *out = first;
    int rc = rank_slabs_look(record, first);
    for (uint32_t r = 0; r < rank_slabs_world(record) && rc == ERR_INPUT; r++) {
        err_record why;
        err_save(&why, rc);
        rc = rank_slabs_look(record, r);
        if (rc == 0)
            *out = r;
        else
            rc = err_restore(&why);
    }
    return rc;
}

/* ---- opening ---- */

int rank_slabs_open(const manifest *record, uint32_t rank, slab *out)
{
    slab_config config;
    slab_drive *drives = mem_alloc(DRIVES_MAX, sizeof *drives, "slab drives");
    int rc = drives ? state_slab_config(&record->slabs, rank, drives, &config) : -ENOMEM;
    if (rc == 0) {
        config.total_bytes = record->total_bytes;
        config.stripe_bytes = record->stripe_bytes;
        config.open_existing = config.only_reads = true;
        rc = slab_open(out, &config);
    }
    mem_free(drives);
    return rc;
}

void rank_slabs_locate(const manifest *record, uint32_t rank, const slab *held, uint64_t offset,
                       char path[FILE_PATH_BYTES], uint64_t *file_offset)
{
    path[0] = '\0';
    *file_offset = 0;
    err_record kept; /* the error that the caller's message is about */
    err_save(&kept, -EIO);
    slab *own = held ? NULL : mem_alloc(1, sizeof *own, "slab");
    const slab *disk = held;
    if (own && rank_slabs_open(record, rank, own) == 0)
        disk = own;
    if (disk && offset < disk->total_bytes) {
        slab_piece place;
        slab_map(disk, offset, TILE_BLOCK_BYTES, &place);
        memcpy(path, disk->files[place.drive_idx].path, FILE_PATH_BYTES);
        *file_offset = place.file_offset;
    }
    if (own && disk)
        slab_close(own);
    mem_free(own);
    (void)err_restore(&kept);
}

static void close_slot(open_slab *slot)
{
    io_destroy(slot->transport);
    if (slot->disk == &slot->own)
        slab_close(&slot->own);
    slot->transport = NULL;
    slot->disk = NULL;
    slot->in_flight = 0;
}

static int open_slot(rank_slabs *self, open_slab *slot, uint32_t rank)
{
    const rank_slabs_config *asked = &self->config;
    slab *given = asked->disks ? asked->disks[rank] : NULL;
    if (!given) {
        TRY(rank_slabs_look(asked->record, rank));
        TRY(rank_slabs_open(asked->record, rank, &slot->own));
    }
    const io_config config = {
        .target = given ? given : &slot->own,
        .backend = asked->backend,
        .queue_depth = asked->queue_depth,
        .pool_threads = asked->pool_threads,
        .regions = &asked->region,
        .region_count = self->world == 1, /* each registration counts as locked memory */
        .request_capacity = asked->request_capacity,
        .stuck_ns = asked->stuck_ns,
        .stop_ns = asked->stop_ns,
        .test = &(const io_test){.faults = asked->faults},
        .store = asked->stores ? asked->stores[rank] : NULL,
    };
    int rc = io_create(&config, &slot->transport);
    if (rc < 0) {
        slot->transport = NULL;
        if (!given)
            slab_close(&slot->own);
        return rc;
    }
    slot->disk = config.target;
    slot->rank = rank;
    slot->in_flight = 0;
    return 0;
}

int rank_slabs_create(const rank_slabs_config *config, rank_slabs **out)
{
    *out = mem_alloc(1, sizeof **out, "slabs of all ranks");
    if (!*out)
        return -ENOMEM;
    (*out)->config = *config;
    (*out)->world = rank_slabs_world(config->record);
    return 0;
}

void rank_slabs_destroy(rank_slabs *self)
{
    if (!self)
        return;
    for (uint32_t i = 0; i < RANK_SLABS_OPEN_MAX; i++)
        if (self->slots[i].transport)
            close_slot(&self->slots[i]);
    mem_free(self);
}

/* ---- requests ---- */

/* Returns the rank's slot, else the one that it can take: a free slot, or the one that is idle for
 * longest. NULL if all are busy. */
static open_slab *find_slot(rank_slabs *self, uint32_t rank)
{
    open_slab *best = NULL;
    for (uint32_t i = 0; i < RANK_SLABS_OPEN_MAX; i++) {
        open_slab *slot = &self->slots[i];
        if (slot->transport && slot->rank == rank)
            return slot;
        bool is_better =
            !best || (best->transport && (!slot->transport || slot->used_at < best->used_at));
        if (slot->in_flight == 0 && is_better)
            best = slot;
    }
    return best;
}

int rank_slabs_submit(rank_slabs *self, uint32_t rank, io_request *request)
{
    if (rank >= self->world)
        return err_set(ERR_INTERNAL, "a request for the slab of rank %u of %u", rank, self->world);
    open_slab *slot = find_slot(self, rank);
    if (!slot)
        return 0;
    if (!slot->transport || slot->rank != rank) {
        if (slot->transport)
            close_slot(slot);
        TRY(open_slot(self, slot, rank));
    }
    TRY(io_submit(slot->transport, request));
    slot->in_flight++;
    slot->used_at = ++self->clock;
    return 1;
}

int rank_slabs_poll(rank_slabs *self, io_request **done, int capacity, io **of)
{
    *of = NULL;
    for (uint32_t i = 0; i < RANK_SLABS_OPEN_MAX; i++) {
        open_slab *slot = &self->slots[self->turn++ % RANK_SLABS_OPEN_MAX];
        if (!slot->transport || slot->in_flight == 0)
            continue;
        int count = io_poll(slot->transport, done, capacity);
        if (count == 0)
            continue;
        TRY(count);
        assert((uint64_t)count <= slot->in_flight);
        slot->in_flight -= (uint64_t)count;
        *of = slot->transport;
        return count;
    }
    return 0;
}

uint32_t rank_slabs_fds(const rank_slabs *self, struct pollfd fds[RANK_SLABS_OPEN_MAX])
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < RANK_SLABS_OPEN_MAX; i++)
        if (self->slots[i].transport && self->slots[i].in_flight > 0)
            fds[count++] =
                (struct pollfd){.fd = io_event_fd(self->slots[i].transport), .events = POLLIN};
    return count;
}
