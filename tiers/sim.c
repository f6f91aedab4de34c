/* The simulated drive: its bytes, its cache and its queue. See sim.h. One thread, except for
 * sim_store_sync. Memory comes from base/mem at creation, and more for the cache's log as it grows
 * (a sync empties the log and keeps its memory).
 *
 * The cache is a log of replaced bytes. The drives' bytes are what reads see, and each write since
 * the last sync saves the bytes that it replaced. Undoing the log from the newest write to the
 * oldest gives the bytes as at the sync, and leaves the written bytes in the log. A loss of power
 * then applies some of these writes again, in an order of its own. */
#include "tiers/sim.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/size.h"
#include "tiers/io_internal.h"

static const char tag[] = "simulated drive";

enum { SIM_SECTOR_BYTES = 512 }; /* the unit that a drive writes completely or not at all */

/* The draws of a loss of power. Two of each eight writes are torn. SURVIVORS (0 to 4, drawn once
 * for the whole loss) of each four writes survive, and as many of each four sectors of a torn
 * write. */
enum power_stream {
    STREAM_SURVIVORS = 110,
    STREAM_ORDER,
    STREAM_TORN,
    STREAM_WRITE,
    STREAM_SECTOR
};

enum { POWER_QUARTERS = 4, POWER_TORN_OF = 8, POWER_TORN = 2 };

/* One drive. */
struct sim_drive {
    uint64_t file_bytes;  /* of the slab's file */
    uint64_t end_bytes;   /* its present end, <= file_bytes */
    unsigned char *bytes; /* [file_bytes]; NULL: the store keeps no bytes */
};
typedef struct sim_drive sim_drive;

/* A write in the cache. */
struct sim_write {
    uint32_t drive_idx;
    uint64_t offset, size_bytes;
    uint64_t at_bytes; /* offset in log_bytes of the replaced bytes */
};
typedef struct sim_write sim_write;

struct sim_store {
    uint32_t drive_count;
    sim_drive drives[DRIVES_MAX];
    bool cached;
    /* guards the members below; held while a cached write changes the bytes */
    pthread_mutex_t mutex;
    sim_write *writes; /* [write_capacity] the first write_count since the last sync, in order */
    uint64_t write_count, write_capacity;
    unsigned char *log_bytes; /* [log_capacity_bytes] log_used_bytes of them in use */
    uint64_t log_used_bytes, log_capacity_bytes;
};

int sim_store_create_empty(const slab *target, sim_store **out)
{
    sim_store *self = *out = mem_alloc(1, sizeof *self, tag);
    if (!self)
        return -ENOMEM;
    pthread_mutex_init(&self->mutex, NULL);
    self->drive_count = target->drive_count;
    for (uint32_t i = 0; i < self->drive_count; i++)
        self->drives[i].file_bytes = self->drives[i].end_bytes = target->files[i].file_bytes;
    return 0;
}

int sim_store_create(const slab *target, sim_store **out)
{
    TRY(sim_store_create_empty(target, out));
    for (uint32_t i = 0; i < (*out)->drive_count; i++) {
        sim_drive *drive = &(*out)->drives[i];
        drive->bytes = mem_alloc(drive->file_bytes, 1, tag);
        if (!drive->bytes) {
            sim_store_destroy(*out);
            *out = NULL;
            return -ENOMEM;
        }
    }
    return 0;
}

void sim_store_destroy(sim_store *self)
{
    if (!self)
        return;
    for (uint32_t i = 0; i < self->drive_count; i++)
        mem_free(self->drives[i].bytes);
    mem_free(self->writes);
    mem_free(self->log_bytes);
    pthread_mutex_destroy(&self->mutex);
    mem_free(self);
}

/* -EINVAL if the store was made for drives of another number or size. */
static int check_store(const sim_store *self, const slab *target)
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

/* The drive's bytes from `offset` on. */
static unsigned char *bytes_at(const sim_store *self, uint32_t drive_idx, uint64_t offset,
                               uint64_t size_bytes)
{
    assert(drive_idx < self->drive_count);
    const sim_drive *drive = &self->drives[drive_idx];
    assert(offset <= drive->file_bytes);
    assert(size_bytes <= drive->file_bytes - offset);
    return drive->bytes + offset;
}

void sim_store_get(const sim_store *self, uint32_t drive_idx, uint64_t offset, void *data,
                   uint64_t size_bytes)
{
    memcpy(data, bytes_at(self, drive_idx, offset, size_bytes), size_bytes);
}

void sim_store_put(sim_store *self, uint32_t drive_idx, uint64_t offset, const void *data,
                   uint64_t size_bytes)
{
    memcpy(bytes_at(self, drive_idx, offset, size_bytes), data, size_bytes);
}

/* ---- the cache ---- */

void sim_store_cache(sim_store *self)
{
    self->cached = true;
}

/* Makes room for one more write of this size. */
static int grow_log(sim_store *self, uint64_t size_bytes)
{
    if (self->write_count == self->write_capacity) {
        uint64_t capacity = size_max(2 * self->write_capacity, 1024);
        void *grown = mem_resize(self->writes, capacity, sizeof *self->writes, tag);
        if (!grown)
            return -ENOMEM;
        self->writes = grown;
        self->write_capacity = capacity;
    }
    if (size_bytes > self->log_capacity_bytes - self->log_used_bytes) {
        uint64_t capacity =
            size_max(2 * self->log_capacity_bytes, self->log_used_bytes + size_bytes);
        void *grown = mem_resize(self->log_bytes, capacity, 1, tag);
        if (!grown)
            return -ENOMEM;
        self->log_bytes = grown;
        self->log_capacity_bytes = capacity;
    }
    return 0;
}

/* Like sim_store_put, but a loss of power may undo it. */
static int put_cached(sim_store *self, uint32_t drive_idx, uint64_t offset, const void *data,
                      uint64_t size_bytes)
{
    TRY(grow_log(self, size_bytes));
    unsigned char *replaced = self->log_bytes + self->log_used_bytes;
    sim_store_get(self, drive_idx, offset, replaced, size_bytes);
    self->writes[self->write_count++] = (sim_write){.drive_idx = drive_idx,
                                                    .offset = offset,
                                                    .size_bytes = size_bytes,
                                                    .at_bytes = self->log_used_bytes};
    self->log_used_bytes += size_bytes;
    sim_store_put(self, drive_idx, offset, data, size_bytes);
    return 0;
}

void sim_store_sync(sim_store *self)
{
    pthread_mutex_lock(&self->mutex);
    self->write_count = 0;
    self->log_used_bytes = 0;
    pthread_mutex_unlock(&self->mutex);
}

static uint64_t sector_bytes(const sim_write *write, uint64_t at)
{
    return size_min(SIM_SECTOR_BYTES, write->size_bytes - at);
}

/* Swaps the bytes of the drive and of the log, for one write. */
static void swap_write(sim_store *self, const sim_write *write)
{
    unsigned char present[SIM_SECTOR_BYTES], *logged = self->log_bytes + write->at_bytes;
    for (uint64_t at = 0; at < write->size_bytes; at += SIM_SECTOR_BYTES) {
        uint64_t size_bytes = sector_bytes(write, at);
        sim_store_get(self, write->drive_idx, write->offset + at, present, size_bytes);
        sim_store_put(self, write->drive_idx, write->offset + at, logged + at, size_bytes);
        memcpy(logged + at, present, size_bytes);
    }
}

/* Applies what survives of one write; *sector_idx counts the sectors of torn writes. */
static void put_survivors(sim_store *self, const sim_write *write, uint64_t seed,
                          uint64_t write_idx, uint64_t survivors, uint64_t *sector_idx)
{
    bool torn = rng_below(seed, STREAM_TORN, write_idx, POWER_TORN_OF) < POWER_TORN;
    bool whole = rng_below(seed, STREAM_WRITE, write_idx, POWER_QUARTERS) < survivors;
    const unsigned char *logged = self->log_bytes + write->at_bytes;
    if (!torn && whole)
        sim_store_put(self, write->drive_idx, write->offset, logged, write->size_bytes);
    for (uint64_t at = 0; torn && at < write->size_bytes; at += SIM_SECTOR_BYTES)
        if (rng_below(seed, STREAM_SECTOR, (*sector_idx)++, POWER_QUARTERS) < survivors)
            sim_store_put(self, write->drive_idx, write->offset + at, logged + at,
                          sector_bytes(write, at));
}

int sim_store_lose_power(sim_store *self, uint64_t seed)
{
    if (!self->cached)
        return err_set(-EINVAL, "simulated drive: it has no cache to lose (sim_store_cache)");
    for (uint64_t i = self->write_count; i-- > 0;)
        swap_write(self, &self->writes[i]);
    uint64_t survivors = rng_below(seed, STREAM_SURVIVORS, 0, POWER_QUARTERS + 1), sector_idx = 0;
    /* any of the remaining writes may be the next */
    for (uint64_t i = self->write_count; i > 0; i--) {
        uint64_t chosen = rng_below(seed, STREAM_ORDER, i, i);
        sim_write write = self->writes[chosen];
        self->writes[chosen] = self->writes[i - 1];
        put_survivors(self, &write, seed, i, survivors, &sector_idx);
    }
    sim_store_sync(self);
    return 0;
}

/* Moves up to ask_bytes between the transfer's memory and its place on the drive. Returns the bytes
 * moved, 0 for a read beyond the end of the file, or -errno. */
static int64_t move_bytes(sim_store *self, const tieri_transfer *item)
{
    const sim_drive *drive = &self->drives[item->drive_idx];
    uint64_t left = drive->end_bytes - size_min(item->file_offset, drive->end_bytes);
    uint64_t size_bytes = size_min(item->ask_bytes, left);
    if (item->direction == IO_READ) {
        if (size_bytes && drive->bytes)
            sim_store_get(self, item->drive_idx, item->file_offset, item->data, size_bytes);
        return (int64_t)size_bytes;
    }
    if (size_bytes == 0)
        return -ENOSPC;
    if (!drive->bytes)
        return (int64_t)size_bytes;
    int rc = 0;
    if (self->cached) { /* a sync comes either before or after this write */
        pthread_mutex_lock(&self->mutex);
        rc = put_cached(self, item->drive_idx, item->file_offset, item->data, size_bytes);
        pthread_mutex_unlock(&self->mutex);
    } else {
        sim_store_put(self, item->drive_idx, item->file_offset, item->data, size_bytes);
    }
    return rc < 0 ? rc : (int64_t)size_bytes;
}

/* ---- the queue ----
 *
 *   submit ─► staged ─flush─► flying (each with a virtual due time) ─reap, earliest first─► owner
 *
 * A flush with transfers flying decides how many of them complete before the next flush, at least
 * one, and makes event_fd readable. So each round of the owner brings something and its sleep ends
 * at once, and yet a later transfer can overtake. The bytes move at reap. */

enum { SIM_SPREAD = 1000 }; /* range of due times, in virtual ticks; a flush is one tick */

enum sim_stream { SIM_STREAM_DUE = 100, SIM_STREAM_BUDGET };

struct sim_state {
    sim_store *store;
    sim_store *own_store; /* the same if the queue owns it; otherwise NULL */
    int event_fd;
    uint64_t seed;
    uint64_t number;      /* transfers taken */
    uint64_t round;       /* flushes with transfers flying */
    uint64_t now;         /* virtual time: that of the latest completion */
    uint64_t ready_count; /* completions until the next flush */
    uint32_t flying_count;
    tieri_list staged, flying;
};
typedef struct sim_state sim_state;

static uint64_t sim_span(void *state, const void *data, uint64_t size_bytes)
{
    (void)state;
    (void)data;
    return size_bytes;
}

static void sim_submit(void *state, tieri_transfer *item)
{
    tieri_list_push(&((sim_state *)state)->staged, item);
}

static int sim_flush(void *state)
{
    sim_state *self = state;
    for (tieri_transfer *item; (item = tieri_list_pop(&self->staged)); self->flying_count++) {
        item->due =
            self->now + 1 + rng_below(self->seed, SIM_STREAM_DUE, self->number++, SIM_SPREAD);
        tieri_list_push(&self->flying, item);
    }
    self->ready_count = 0;
    if (self->flying_count == 0)
        return 0;
    self->ready_count =
        1 + rng_below(self->seed, SIM_STREAM_BUDGET, self->round++, self->flying_count);
    (void)eventfd_write(self->event_fd, 1);
    return 0;
}

static tieri_transfer *sim_reap(void *state)
{
    sim_state *self = state;
    if (self->ready_count == 0 || !self->flying.first)
        return NULL;
    tieri_transfer *before = NULL, *before_best = NULL, *best = self->flying.first;
    for (tieri_transfer *at = best; at; before = at, at = at->next)
        if (at->due < best->due) {
            best = at;
            before_best = before;
        }
    tieri_list_take(&self->flying, before_best);
    assert(self->flying_count > 0);
    self->flying_count--;
    self->ready_count--;
    self->now = size_max(self->now, best->due);
    best->result = move_bytes(self->store, best);
    return best;
}

sim_store *tieri_sim_store(void *state)
{
    return ((sim_state *)state)->store;
}

static bool sim_close(void *state, bool hung)
{
    (void)hung; /* memory never hangs */
    sim_state *self = state;
    sim_store_destroy(self->own_store);
    mem_free(self);
    return true;
}

int tieri_sim_open(const tieri_backend_config *config, io_stats *stats, void **state)
{
    *state = NULL;
    stats->files_registered = stats->buffers_registered = false;
    if (config->store)
        TRY(check_store(config->store, config->target));
    sim_state *self = mem_alloc(1, sizeof *self, "io simulated");
    if (!self)
        return -ENOMEM;
    int rc = config->store ? 0 : sim_store_create(config->target, &self->own_store);
    if (rc < 0) {
        mem_free(self);
        return rc;
    }
    self->store = config->store ? config->store : self->own_store;
    self->event_fd = config->event_fd;
    self->seed = config->seed;
    *state = self;
    return 0;
}

const tieri_backend tieri_sim_backend = {
    .span = sim_span,
    .submit = sim_submit,
    .flush = sim_flush,
    .reap = sim_reap,
    .close = sim_close,
};
