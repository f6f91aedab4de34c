/* See hf_internal.h. The caller's thread starts the lanes, reports progress and waits. */
#include "hf/hf_internal.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/size.h"
#include "base/tile.h"
#include "swap/checksum.h"
#include "tiers/arena.h"
#include "tiers/io.h"

enum {
    DEPTH = 32,
    PATIENCE_MS = 1000,
    STUCK_SECONDS = 30,
    TELL_MS = 250,
};

struct slot {
    float *data; /* [elements of the largest tile] masters, then zeros up to a whole block */
    io_request request;
    bool is_writing;
};

struct shared;

struct lane {
    struct shared *shared;
    pthread_t thread;
    struct slot slots[IMPORT_SLOTS];
    void *room; /* [WEIGHTS_ROOM_BYTES] */
    io *transport;
};

struct shared {
    const import_stream *asked;
    uint32_t lane_count;
    uint64_t slot_bytes, lane_bytes; /* memory of a slot; of a whole lane */
    arena memory;
    struct lane lanes[IMPORT_LANES];
    pthread_mutex_t order; /* with strips: held from taking a tile until it is read */
    atomic_uint_fast64_t next_idx, done_bytes, written_bytes;
    atomic_bool ends;      /* a lane has failed, or the user asked to stop */
    pthread_mutex_t mutex; /* protects the members below */
    pthread_cond_t changed;
    uint32_t running_count;
    err_record first; /* the first failure */
};

/* ---- a lane ---- */

/* Takes finished writes. Returns their number. */
static int collect(struct lane *self)
{
    io_request *done[IMPORT_SLOTS];
    int count = io_poll(self->transport, done, IMPORT_SLOTS);
    for (int i = 0; i < count; i++) {
        struct slot *slot = done[i]->user;
        slot->is_writing = false;
        if (done[i]->result < 0)
            return io_request_error(self->transport, done[i]);
    }
    return count;
}

static int await_slot(struct lane *self, const struct slot *slot)
{
    while (slot->is_writing) {
        int count = collect(self);
        TRY(count);
        struct pollfd fd = {.fd = io_event_fd(self->transport), .events = POLLIN};
        if (count == 0 && poll(&fd, 1, PATIENCE_MS) < 0 && errno != EINTR)
            return err_errno(errno, "waiting for the drives");
    }
    return 0;
}

/* Constants: fp32 values, and zeros up to the end. They are the unit's one tensor and one tile. */
static int read_constants(struct lane *self, const manifest_extent *extent, struct slot *slot)
{
    const import_stream *asked = self->shared->asked;
    const model_tensor *tensor = asked->net->units[extent->unit].tensors;
    memset(slot->data, 0, extent->size_bytes);
    return hf_weights_read_alone(asked->from, extent->unit, 0, tensor->rows * tensor->columns,
                                 self->room, slot->data);
}

static int read_tile(struct lane *self, const manifest_extent *extent, struct slot *slot)
{
    const import_stream *asked = self->shared->asked;
    uint64_t elems = extent->elem_count;
    if (extent->param_bytes != 0)
        return read_constants(self, extent, slot);
    if (!hf_weights_has_all(asked->from, extent->unit)) /* adapters begin as the model says */
        model_init_elems(asked->net, extent->unit, asked->record->point.seed, extent->elem_begin,
                         elems, slot->data);
    TRY(hf_weights_read_alone(asked->from, extent->unit, extent->elem_begin, elems, self->room,
                              slot->data));
    uint64_t used = sizeof(float) * elems;
    memset((unsigned char *)slot->data + used, 0, size_round_up(used, TILE_BLOCK_BYTES) - used);
    return 0;
}

/* Takes the next tile and reads it. *extent is NULL if there is none. */
static int take_tile(struct lane *self, struct slot *slot, manifest_extent **extent)
{
    struct shared *shared = self->shared;
    manifest *record = shared->asked->record;
    bool in_order = hf_weights_has_strips(shared->asked->from);
    int rc = 0;
    *extent = NULL;
    if (in_order)
        pthread_mutex_lock(&shared->order);
    uint64_t idx =
        atomic_load(&shared->ends) ? record->extent_count : atomic_fetch_add(&shared->next_idx, 1);
    if (idx < record->extent_count) {
        *extent = &record->extents[idx];
        rc = read_tile(self, *extent, slot);
    }
    if (in_order)
        pthread_mutex_unlock(&shared->order);
    return rc;
}

static int write_tile(struct lane *self, manifest_extent *extent, struct slot *slot)
{
    struct shared *shared = self->shared;
    uint64_t elems = extent->elem_count;
    uint64_t size_bytes = extent->param_bytes ? extent->size_bytes : sizeof(float) * elems;
    extent->checksum = extent->param_bytes
                           ? checksum_sum(slot->data, size_bytes, 0, 0)
                           : checksum_sum_fresh(slot->data, elems,
                                                manifest_streams_of(shared->asked->record, extent));
    slot->request = (io_request){.direction = IO_WRITE,
                                 .offset = extent->offset_bytes,
                                 .data = slot->data,
                                 .size_bytes = size_round_up(size_bytes, TILE_BLOCK_BYTES),
                                 .user = slot};
    TRY(io_submit(self->transport, &slot->request));
    slot->is_writing = true;
    int count = collect(self); /* hands it to the kernel */
    TRY(count);
    atomic_fetch_add(&shared->written_bytes, slot->request.size_bytes);
    atomic_fetch_add(&shared->done_bytes, sizeof(float) * elems);
    return 0;
}

static int run_tiles(struct lane *self)
{
    manifest_extent *extent;
    for (uint64_t i = 0;; i++) {
        struct slot *slot = &self->slots[i % IMPORT_SLOTS];
        TRY(await_slot(self, slot));
        TRY(take_tile(self, slot, &extent));
        if (!extent)
            break;
        TRY(write_tile(self, extent, slot));
    }
    for (int i = 0; i < IMPORT_SLOTS; i++)
        TRY(await_slot(self, &self->slots[i]));
    return 0;
}

static void *run_lane(void *user)
{
    struct lane *self = user;
    struct shared *shared = self->shared;
    int rc = run_tiles(self);
    if (rc < 0)
        atomic_store(&shared->ends, true);
    pthread_mutex_lock(&shared->mutex);
    err_keep(&shared->first, rc);
    shared->running_count--;
    pthread_cond_signal(&shared->changed);
    pthread_mutex_unlock(&shared->mutex);
    return NULL;
}

/* ---- the caller's thread ---- */

static int make_lane(struct shared *shared, struct lane *self, unsigned char *base)
{
    self->shared = shared;
    for (int i = 0; i < IMPORT_SLOTS; i++)
        self->slots[i].data = (float *)(void *)(base + (uint64_t)i * shared->slot_bytes);
    self->room = base + IMPORT_SLOTS * shared->slot_bytes;
    const io_region region = {base, IMPORT_SLOTS * shared->slot_bytes};
    const io_config config = {.target = shared->asked->disk,
                              .queue_depth = DEPTH,
                              .regions = &region,
                              .region_count = 1,
                              .request_capacity = IMPORT_SLOTS,
                              .changes_thread = true, /* run_lane's */
                              .stuck_ns = (uint64_t)STUCK_SECONDS * 1000000000};
    return io_create(&config, &self->transport);
}

static int make_lanes(struct shared *self)
{
    const manifest *record = self->asked->record;
    uint64_t elems = 0;
    for (uint64_t i = 0; i < record->extent_count; i++)
        elems = size_max(elems, record->extents[i].elem_count);
    self->lane_count = (uint32_t)size_min(IMPORT_LANES, record->extent_count);
    self->slot_bytes = size_round_up(sizeof(float) * elems, TILE_BLOCK_BYTES);
    self->lane_bytes = IMPORT_SLOTS * self->slot_bytes + WEIGHTS_ROOM_BYTES;
    if (self->lane_count == 0)
        return 0;
    const arena_config config = {.name = "import",
                                 .size_bytes = self->lane_count * self->lane_bytes,
                                 .touch_threads = IMPORT_LANES};
    TRY(arena_init(&self->memory, &config));
    for (uint32_t i = 0; i < self->lane_count; i++)
        TRY(make_lane(self, &self->lanes[i], self->memory.base + i * self->lane_bytes));
    return 0;
}

/* Sleeps for TELL_MS, or until a lane has ended. Returns true while some are running. Call it with
 * the mutex held. */
static bool await_lanes(struct shared *self)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += TELL_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    if (self->running_count > 0)
        pthread_cond_timedwait(&self->changed, &self->mutex, &until);
    return self->running_count > 0;
}

static void tell(struct shared *self, uint64_t total_bytes, double seconds)
{
    if (self->asked->on_progress)
        self->asked->on_progress(self->asked->user, atomic_load(&self->done_bytes), total_bytes,
                                 seconds);
}

static int start_lanes(struct shared *self, uint32_t *started)
{
    for (*started = 0; *started < self->lane_count; ++*started) {
        struct lane *lane = &self->lanes[*started];
        pthread_mutex_lock(&self->mutex);
        self->running_count++;
        pthread_mutex_unlock(&self->mutex);
        int code = pthread_create(&lane->thread, NULL, run_lane, lane);
        if (code == 0)
            continue;
        atomic_store(&self->ends, true);
        pthread_mutex_lock(&self->mutex);
        self->running_count--;
        pthread_mutex_unlock(&self->mutex);
        return err_errno(code, "cannot start a thread of the import");
    }
    return 0;
}

static int run_lanes(struct shared *self, uint64_t begin_ns)
{
    const import_stream *asked = self->asked;
    uint64_t total_bytes = 0;
    uint32_t started = 0;
    bool is_stopped = false;
    for (uint64_t i = 0; i < asked->record->extent_count; i++)
        total_bytes += sizeof(float) * asked->record->extents[i].elem_count;
    int rc = start_lanes(self, &started);
    pthread_mutex_lock(&self->mutex);
    while (await_lanes(self)) {
        if (asked->stop && *asked->stop)
            is_stopped = true;
        if (is_stopped)
            atomic_store(&self->ends, true);
        pthread_mutex_unlock(&self->mutex);
        tell(self, total_bytes, (double)(clock_ns() - begin_ns) * 1e-9);
        pthread_mutex_lock(&self->mutex);
    }
    pthread_mutex_unlock(&self->mutex);
    for (uint32_t i = 0; i < started; i++)
        pthread_join(self->lanes[i].thread, NULL);
    TRY(rc);
    if (self->first.code < 0)
        return err_restore(&self->first);
    if (is_stopped || (asked->stop && *asked->stop))
        return err_set(ERR_STOPPED, "stopped on request; nothing of the import stays");
    if (self->lane_count > 0)
        TRY(io_sync(self->lanes[0].transport));
    tell(self, total_bytes, (double)(clock_ns() - begin_ns) * 1e-9);
    return 0;
}

int import_stream_run(const import_stream *asked, uint64_t *written_bytes, double *seconds)
{
    struct shared self = {.asked = asked};
    pthread_mutex_init(&self.order, NULL);
    pthread_mutex_init(&self.mutex, NULL);
    pthread_cond_init(&self.changed, NULL);
    uint64_t begin_ns = clock_ns();
    int rc = make_lanes(&self);
    if (rc == 0)
        rc = run_lanes(&self, begin_ns);
    err_record first;
    err_save(&first, rc);
    for (uint32_t i = 0; i < self.lane_count; i++)
        io_destroy(self.lanes[i].transport); /* first: it may still write from the memory below */
    if (self.memory.base)
        arena_fini(&self.memory);
    pthread_cond_destroy(&self.changed);
    pthread_mutex_destroy(&self.mutex);
    pthread_mutex_destroy(&self.order);
    *written_bytes = atomic_load(&self.written_bytes);
    *seconds = (double)(clock_ns() - begin_ns) * 1e-9;
    return rc < 0 ? err_restore(&first) : 0;
}
