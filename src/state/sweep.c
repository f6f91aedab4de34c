/* See sweep.h.
 *
 * Piece `seq` lies in slot seq % slot_count. Its slot goes FREE -> READING -> READ -> FREE. The
 * owner frees slots in the order of seq, each after all readers of its piece are done. The mutex
 * protects state, seq and readers_left. The bytes of a READ piece belong to its readers, which only
 * read them. */
#include "state/sweep.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/core_set.h"
#include "base/dtype.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/shard.h"
#include "base/thread.h"
#include "base/tile.h"
#include "state/rank_slabs.h"

enum {
    PIECES_LEAST = 16,
    PIECES_PER_DRIVE = 8, /* 32 MiB: twice what a drive's queue takes */
    SUMMERS_MAX = 4,      /* one core sums 19 GB/s */
    CORES_PER_SUMMER = 4,
    WAIT_MS = 100,
    PROGRESS_NS = 100000000,
};

enum piece_state { PIECE_FREE, PIECE_READING, PIECE_READ };

/* A range of an extent. */
struct piece {
    io_request request;
    unsigned char *data;
    uint64_t extent_idx, begin, size_bytes;
    bool is_last;     /* the last piece of its extent */
    err_record error; /* error of reading it */
    enum piece_state state;
    uint64_t seq;
    uint32_t readers_left;
    uint64_t sum; /* written by the summer if is_last: the sum of the whole extent */
};
typedef struct piece piece;

typedef struct sweep sweep;

/* A thread that reads pieces in their order. */
struct reader {
    sweep *all;
    uint32_t idx; /* index of the summer; summer_count for the reader of weights */
    XXH3_state_t *hash;
    pthread_t thread;
    bool is_running;
};
typedef struct reader reader;

struct sweep {
    const struct state_sweep_options *asked;
    const manifest *record;
    rank_slabs *slabs;
    unsigned char *block;
    piece *pieces; /* [slot_count] */
    uint64_t slot_count, piece_count;
    uint64_t head, tail;              /* values of seq: next to submit, next to retire */
    uint64_t extent_idx, extent_done; /* where the next piece begins */
    uint64_t done_bytes;
    err_record error; /* of the extent being retired */
    reader readers[SUMMERS_MAX + 1];
    uint32_t summer_count;
    int wake_fd; /* signalled when a piece has lost its last reader */
    pthread_mutex_t mutex;
    pthread_cond_t wake; /* signalled when a piece is READ or the sweep ends */
    bool is_over;
    /* [elements of the largest tile] high halves of a split master. Only the reader of weights uses
     * this and the next two members. */
    uint16_t *high;
    float *joined;          /* [SWEEP_PIECE_BYTES / 2] */
    err_record hand_error;  /* the error of on_weights */
    atomic_bool is_refused; /* hand_error is set */
};

/* The rank whose slab the extent is read from. */
static uint32_t rank_of(const sweep *self, const manifest_extent *extent)
{
    return rank_slabs_rank_of(self->record, extent, self->asked->copy_rank);
}

static uint64_t pieces_of(const sweep *self, uint64_t extent_idx)
{
    const manifest_extent *extent = &self->record->extents[extent_idx];
    if (self->asked->is_absent && self->asked->is_absent[rank_of(self, extent)])
        return 0;
    return size_div_up(extent->size_bytes, SWEEP_PIECE_BYTES);
}

/* ---- the readers ---- */

/* Waits until piece `seq` is read; false if the sweep ends. */
static bool await_piece(sweep *self, uint64_t seq)
{
    const piece *item = &self->pieces[seq % self->slot_count];
    pthread_mutex_lock(&self->mutex);
    while (!self->is_over && (item->seq != seq || item->state != PIECE_READ))
        pthread_cond_wait(&self->wake, &self->mutex);
    bool is_there = !self->is_over;
    pthread_mutex_unlock(&self->mutex);
    return is_there;
}

static void leave_piece(sweep *self, piece *item)
{
    pthread_mutex_lock(&self->mutex);
    bool is_done = --item->readers_left == 0;
    pthread_mutex_unlock(&self->mutex);
    static const uint64_t one = 1;
    if (is_done && write(self->wake_fd, &one, sizeof one) < 0)
        return; /* the counter is full: the owner wakes anyway */
}

/* Adds the piece's part of [begin, begin + length) of its extent to the hash. */
static void add_range(XXH3_state_t *hash, const piece *item, uint64_t begin, uint64_t length)
{
    uint64_t from = size_max(item->begin, begin);
    uint64_t to = size_min(item->begin + item->size_bytes, begin + length);
    if (from < to)
        XXH3_64bits_update(hash, item->data + (from - item->begin), to - from);
}

/* Adds the piece's part of the extent's streams to the hash. Frozen params are one stream. */
static void add_streams(const sweep *self, XXH3_state_t *hash, const manifest_extent *extent,
                        const piece *item)
{
    uint32_t streams = manifest_streams_of(self->record, extent);
    uint64_t elems = extent->elem_count;
    if (streams == 0)
        add_range(hash, item, 0, extent->size_bytes);
    for (uint32_t i = 0; i < tile_stream_count(streams); i++)
        add_range(hash, item, tile_stream_offset(streams, elems, i),
                  tile_stream_bytes(streams, elems, i));
}

static void *sum_extents(void *user)
{
    reader *own = user;
    sweep *self = own->all;
    uint64_t seq = 0;
    for (uint64_t e = 0; e < self->record->extent_count; e++) {
        uint64_t count = pieces_of(self, e);
        seq += count;
        if (e % self->summer_count != own->idx)
            continue;
        XXH3_64bits_reset(own->hash);
        for (uint64_t at = seq - count; at < seq; at++) {
            if (!await_piece(self, at))
                return NULL;
            piece *item = &self->pieces[at % self->slot_count];
            add_streams(self, own->hash, &self->record->extents[e], item);
            if (item->is_last)
                item->sum = XXH3_64bits_digest(own->hash);
            leave_piece(self, item);
        }
    }
    return NULL;
}

/* Elements of the extent without padding. */
static uint64_t weights_in(const sweep *self, const manifest_extent *extent)
{
    const model *net = self->asked->net;
    return net ? shard_real_elems(net->units[extent->unit].rest_elems, extent->elem_begin,
                                  extent->elem_count)
               : extent->elem_count;
}

/* Bytes of these elements in the extent's first stream, the master weights. */
static uint64_t weight_bytes(const sweep *self, const manifest_extent *extent)
{
    bool is_low = manifest_is_low(self->record, (uint64_t)(extent - self->record->extents));
    uint64_t count = weights_in(self, extent);
    return is_low ? tile_stream_bytes(self->record->state_streams, count, 0)
                  : manifest_weight_bytes(extent) * count;
}

/* Pieces of the extent that hold some of these bytes. */
static uint64_t weight_pieces(const sweep *self, const manifest_extent *extent)
{
    return size_div_up(weight_bytes(self, extent), SWEEP_PIECE_BYTES);
}

/* Passes a piece's master weights to on_weights. The first error is kept in hand_error, which the
 * owner reads after it has joined this thread. */
static void hand_over(sweep *self, const piece *item, uint64_t begin, const void *data,
                      uint64_t size_bytes)
{
    if (!self->asked->on_weights || self->hand_error.code < 0 || item->error.code < 0)
        return;
    int rc = self->asked->on_weights(self->asked->user, item->extent_idx, begin, data, size_bytes);
    if (rc < 0) {
        err_save(&self->hand_error, rc);
        atomic_store(&self->is_refused, true);
    }
}

/* Hashes a piece's master weights and passes them on. For split masters, the high halves come first
 * and are kept until the low halves arrive. */
static void take_weights(reader *own, const manifest_extent *extent, const piece *item)
{
    sweep *self = own->all;
    uint64_t end = size_min(item->begin + item->size_bytes, weight_bytes(self, extent));
    uint64_t size_bytes = end - item->begin, first = item->begin / sizeof(uint16_t);
    if (manifest_is_high(self->record, item->extent_idx) && manifest_weight_bytes(extent) == 2) {
        memcpy(self->high + first, item->data, size_bytes);
        return;
    }
    if (!manifest_is_low(self->record, item->extent_idx)) {
        XXH3_64bits_update(own->hash, item->data, size_bytes);
        hand_over(self, item, item->begin, item->data, size_bytes);
        return;
    }
    const uint16_t *low = (const uint16_t *)(const void *)item->data;
    uint64_t count = size_bytes / sizeof *low;
    for (uint64_t i = 0; i < count; i++)
        self->joined[i] = master_join(self->high[first + i], low[i]);
    XXH3_64bits_update(own->hash, self->joined, count * sizeof *self->joined);
    hand_over(self, item, first * sizeof *self->joined, self->joined, count * sizeof *self->joined);
}

static void *hash_weights(void *user)
{
    reader *own = user;
    sweep *self = own->all;
    uint64_t seq = 0;
    for (uint64_t e = 0; e < self->record->extent_count; e++) {
        const manifest_extent *extent = &self->record->extents[e];
        uint64_t count = pieces_of(self, e);
        for (uint64_t i = 0; count > 0 && i < weight_pieces(self, extent); i++) {
            if (!await_piece(self, seq + i))
                return NULL;
            piece *item = &self->pieces[(seq + i) % self->slot_count];
            take_weights(own, extent, item);
            leave_piece(self, item);
        }
        seq += count;
    }
    return NULL;
}

/* ---- the owner ---- */

/* Submits the next piece. Returns 1, or 0 if its slab cannot be opened before others are read. */
static int submit_piece(sweep *self)
{
    while (pieces_of(self, self->extent_idx) == 0) /* head < piece_count: there is a next one */
        self->extent_idx++;
    const manifest_extent *extent = &self->record->extents[self->extent_idx];
    piece *item = &self->pieces[self->head % self->slot_count];
    uint64_t begin = self->extent_done;
    uint64_t size_bytes = size_min(SWEEP_PIECE_BYTES, extent->size_bytes - begin);
    pthread_mutex_lock(&self->mutex);
    assert(item->state == PIECE_FREE);
    item->state = PIECE_READING;
    item->seq = self->head;
    item->readers_left = 1 + (begin < weight_bytes(self, extent));
    pthread_mutex_unlock(&self->mutex);
    item->extent_idx = self->extent_idx;
    item->begin = begin;
    item->size_bytes = size_bytes;
    item->is_last = begin + size_bytes == extent->size_bytes;
    item->error.code = 0;
    item->request = (io_request){
        .direction = IO_READ,
        .offset = extent->offset_bytes + begin,
        .data = item->data,
        .size_bytes = size_bytes,
        .user = item,
    };
    int begun = rank_slabs_submit(self->slabs, rank_of(self, extent), &item->request);
    if (begun <= 0) {
        item->state = PIECE_FREE; /* no reader looks at a piece that is not READ */
        return begun;
    }
    self->head++;
    self->extent_done = item->is_last ? 0 : begin + size_bytes;
    self->extent_idx += item->is_last;
    return 1;
}

/* Takes finished requests. Returns their number. */
static int collect(sweep *self)
{
    enum { BATCH = 32 };
    io_request *done[BATCH];
    io *of;
    int count = rank_slabs_poll(self->slabs, done, BATCH, &of);
    if (count <= 0)
        return count;
    for (int i = 0; i < count; i++) {
        piece *item = done[i]->user;
        if (done[i]->result < 0)
            err_save(&item->error, io_request_error(of, done[i]));
    }
    pthread_mutex_lock(&self->mutex);
    for (int i = 0; i < count; i++)
        ((piece *)done[i]->user)->state = PIECE_READ;
    pthread_cond_broadcast(&self->wake);
    pthread_mutex_unlock(&self->mutex);
    return count;
}

static void retire(sweep *self, piece *item)
{
    if (item->error.code < 0 && self->error.code == 0)
        self->error = item->error;
    self->done_bytes += item->size_bytes;
    self->tail++;
    if (!item->is_last)
        return;
    struct state_swept swept = {.extent_idx = item->extent_idx};
    if (self->error.code < 0)
        swept.error = self->error.text;
    else
        swept.sum = item->sum;
    self->asked->on_extent(self->asked->user, &swept);
    self->error.code = 0;
}

/* Frees the pieces that all readers have read, from the oldest on. Returns their number. */
static int retire_all(sweep *self)
{
    int count = 0;
    while (self->tail < self->head) {
        piece *item = &self->pieces[self->tail % self->slot_count];
        pthread_mutex_lock(&self->mutex);
        bool is_done = item->state == PIECE_READ && item->readers_left == 0;
        pthread_mutex_unlock(&self->mutex);
        if (!is_done)
            break;
        retire(self, item); /* no other thread looks at a piece without readers */
        pthread_mutex_lock(&self->mutex);
        item->state = PIECE_FREE;
        pthread_mutex_unlock(&self->mutex);
        count++;
    }
    return count;
}

static void await_events(sweep *self)
{
    struct pollfd fds[RANK_SLABS_OPEN_MAX + 1];
    uint32_t slab_count = rank_slabs_fds(self->slabs, fds);
    uint64_t count;
    fds[slab_count] = (struct pollfd){.fd = self->wake_fd, .events = POLLIN};
    if (poll(fds, slab_count + 1, WAIT_MS) > 0 && (fds[slab_count].revents & POLLIN) &&
        read(self->wake_fd, &count, sizeof count) < 0)
        return; /* interrupted: the next round looks again */
}

static int run_sweep(sweep *self)
{
    const struct state_sweep_options *asked = self->asked;
    uint64_t begin_ns = clock_ns(), reported_ns = begin_ns;
    while (self->tail < self->piece_count) {
        if (asked->stop && *asked->stop)
            return err_set(ERR_STOPPED, "stopped on request, before all was read");
        if (atomic_load(&self->is_refused))
            return ERR_INTERNAL; /* sweep_all returns the error of on_weights instead */
        int begun = 1;
        while (begun > 0 && self->head < self->piece_count &&
               self->head - self->tail < self->slot_count) {
            begun = submit_piece(self);
            TRY(begun);
        }
        int found = collect(self);
        if (found < 0)
            return found;
        found += retire_all(self);
        uint64_t now_ns = clock_ns();
        if (asked->on_progress && now_ns - reported_ns >= PROGRESS_NS) {
            asked->on_progress(asked->user, self->done_bytes, (double)(now_ns - begin_ns) * 1e-9);
            reported_ns = now_ns;
        }
        if (found == 0)
            await_events(self);
    }
    if (asked->on_progress)
        asked->on_progress(asked->user, self->done_bytes, (double)(clock_ns() - begin_ns) * 1e-9);
    return 0;
}

/* ---- beginning and end ---- */

static int reserve(sweep *self)
{
    const struct state_sweep_options *asked = self->asked;
    for (uint64_t e = 0; e < self->record->extent_count; e++)
        self->piece_count += pieces_of(self, e);
    uint64_t high_elems = 0;
    for (uint64_t e = 0; e < self->record->extent_count; e++)
        if (manifest_is_low(self->record, e) && weight_bytes(self, &self->record->extents[e]) > 0)
            high_elems = size_max(high_elems, self->record->extents[e].elem_count);
    self->high = mem_alloc(high_elems, sizeof *self->high, "halves of weights");
    self->joined = mem_alloc(high_elems ? SWEEP_PIECE_BYTES / sizeof *self->high : 0,
                             sizeof *self->joined, "weights");
    if (!self->high || !self->joined)
        return -ENOMEM;
    self->slot_count = PIECES_LEAST + (uint64_t)PIECES_PER_DRIVE * self->record->slabs.drive_count;
    self->slot_count = size_max(1, size_min(self->slot_count, self->piece_count));
    uint64_t bytes = self->slot_count * SWEEP_PIECE_BYTES;
    self->pieces = mem_alloc(self->slot_count, sizeof *self->pieces, "sweep pieces");
    self->block = mem_alloc(bytes + TILE_BLOCK_BYTES, 1, "sweep buffers");
    if (!self->pieces || !self->block)
        return -ENOMEM;
    unsigned char *base =
        self->block + (TILE_BLOCK_BYTES - (uintptr_t)self->block % TILE_BLOCK_BYTES);
    for (uint64_t i = 0; i < self->slot_count; i++)
        self->pieces[i].data = base + i * SWEEP_PIECE_BYTES;
    for (uint32_t i = 0; i <= self->summer_count; i++) {
        self->readers[i].hash = XXH3_createState();
        if (!self->readers[i].hash)
            return err_set(-ENOMEM, "no memory for the states of %u sums", self->summer_count + 1);
        XXH3_64bits_reset(self->readers[i].hash);
    }
    const rank_slabs_config config = {
        .record = self->record,
        .backend = asked->backend,
        .pool_threads = asked->pool_threads,
        .request_capacity = (uint32_t)self->slot_count,
        .region = {.base = base, .size_bytes = bytes},
        .stuck_ns = asked->stuck_ns,
        .stop_ns = asked->stop_ns,
        .faults = asked->faults,
    };
    return rank_slabs_create(&config, &self->slabs);
}

static int start_readers(sweep *self)
{
    for (uint32_t i = 0; i <= self->summer_count; i++) {
        reader *own = &self->readers[i];
        own->all = self;
        own->idx = i;
        int failed = pthread_create(&own->thread, NULL,
                                    i < self->summer_count ? sum_extents : hash_weights, own);
        if (failed)
            return err_errno(failed, "cannot start a thread that sums");
        own->is_running = true;
    }
    return 0;
}

static void join_readers(sweep *self, bool is_over)
{
    pthread_mutex_lock(&self->mutex);
    self->is_over = is_over;
    pthread_cond_broadcast(&self->wake);
    pthread_mutex_unlock(&self->mutex);
    for (uint32_t i = 0; i <= self->summer_count; i++)
        if (self->readers[i].is_running)
            pthread_join(self->readers[i].thread, NULL);
}

static int sweep_all(sweep *self, uint64_t *weights_hash)
{
    TRY(reserve(self));
    int rc = start_readers(self);
    if (rc == 0)
        rc = run_sweep(self);
    join_readers(self, rc < 0);
    if (self->hand_error.code < 0)
        return err_restore(&self->hand_error);
    if (rc == 0)
        *weights_hash = XXH3_64bits_digest(self->readers[self->summer_count].hash);
    return rc;
}

int state_sweep(const struct state_sweep_options *options, uint64_t *weights_hash)
{
    *weights_hash = 0;
    sweep *self = mem_alloc(1, sizeof *self, "sweep");
    if (!self)
        return -ENOMEM;
    self->asked = options;
    self->record = options->record;
    self->summer_count =
        (uint32_t)size_max(1, size_min(thread_allowed_count() / CORES_PER_SUMMER, SUMMERS_MAX));
    pthread_mutex_init(&self->mutex, NULL);
    pthread_cond_init(&self->wake, NULL);
    self->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = self->wake_fd < 0 ? err_errno(errno, "eventfd") : sweep_all(self, weights_hash);
    err_record first;
    err_save(&first, rc);
    rank_slabs_destroy(self->slabs); /* first: it may still read into the memory below */
    if (self->wake_fd >= 0)
        close(self->wake_fd);
    for (uint32_t i = 0; i <= self->summer_count; i++)
        XXH3_freeState(self->readers[i].hash);
    pthread_cond_destroy(&self->wake);
    pthread_mutex_destroy(&self->mutex);
    mem_free(self->high);
    mem_free(self->joined);
    mem_free(self->pieces);
    mem_free(self->block);
    mem_free(self);
    return rc < 0 ? err_restore(&first) : 0;
}
