/* A rank of a world without other ranks, to measure a single rank's work. See comm_pretend in
 * comm.h.
 *
 *   all-gather      [own][own][own]...   its shard takes the place of each rank's, so as many bytes
 *                   are written
 *   reduce-scatter  the sum of the parts of its own source, so as many bytes are read; on a GPU
 *                   only its own part
 *   all-to-all      its parcel for each rank takes the place of that from the rank
 *
 * With moves_own_alone only the rank's own part is written or read.
 *
 * The caller then waits until the collective has taken call_seconds plus the bytes that the rank
 * would have sent divided by bytes_per_second. Nothing is allocated after opening. */
#include "comm/comm_internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "tiers/device.h"

struct pretended {
    device *gpu; /* NULL: host memory */
    device_stream *stream;
    bool is_attached; /* this thread has called device_attach */
    double call_seconds, bytes_per_second;
    bool moves_own_alone;
};

/* Counts `sent` bytes, and waits until a collective that began at begin_ns has taken its time. */
static void take_time(comm *self, uint64_t sent, int64_t begin_ns)
{
    const struct pretended *own = self->bulk_state;
    double seconds = own->call_seconds;
    if (own->bytes_per_second > 0)
        seconds += (double)sent / own->bytes_per_second;
    atomic_fetch_add(&self->sent_bytes, sent);
    int64_t end_ns = begin_ns + (int64_t)(seconds * 1e9);
    struct timespec until = {.tv_sec = (time_t)(end_ns / 1000000000),
                             .tv_nsec = (long)(end_ns % 1000000000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        ;
}

static int copy(struct pretended *own, void *target, const void *source, uint64_t bytes)
{
    if (!own->gpu) {
        memcpy(target, source, bytes);
        return 0;
    }
    if (!own->is_attached)
        TRY(device_attach(own->gpu));
    own->is_attached = true;
    return device_copy(own->gpu, own->stream, target, source, bytes, DEVICE_WITHIN);
}

static int finish(const struct pretended *own)
{
    return own->gpu ? device_synchronize(own->gpu, own->stream) : 0;
}

static int pretended_all_gather(comm *self, const comm_call *call)
{
    struct pretended *own = self->bulk_state;
    int64_t begin_ns = commi_now_ns();
    for (uint32_t r = own->moves_own_alone ? self->rank : 0; r < self->world; r++) {
        TRY(copy(own, (unsigned char *)call->target + r * call->count, call->source, call->count));
        if (own->moves_own_alone)
            break;
    }
    TRY(finish(own));
    take_time(self, (self->world - 1) * call->count, begin_ns);
    return 0;
}

/* Adds the own part first. The values differ from real sums, but have their size. */
static void add_parts(const comm *self, const comm_call *call)
{
    float *target = call->target;
    memcpy(target, (const float *)call->source + self->rank * call->count,
           call->count * sizeof *target);
    for (uint32_t r = 0; r < self->world; r++) {
        const float *part = (const float *)call->source + r * call->count;
        for (uint64_t i = 0; r != self->rank && i < call->count; i++)
            target[i] += part[i];
    }
}

static int pretended_reduce_scatter(comm *self, const comm_call *call)
{
    struct pretended *own = self->bulk_state;
    int64_t begin_ns = commi_now_ns();
    if (own->gpu || own->moves_own_alone)
        TRY(copy(own, call->target, (const float *)call->source + self->rank * call->count,
                 call->count * sizeof(float)));
    else
        add_parts(self, call);
    TRY(finish(own));
    take_time(self, (self->world - 1) * call->count * dtype_bytes(call->wire), begin_ns);
    return 0;
}

static int pretended_all_to_all(comm *self, const comm_parcels *call)
{
    struct pretended *own = self->bulk_state;
    uint64_t sent = 0;
    int64_t begin_ns = commi_now_ns();
    for (uint32_t r = 0; r < self->world; r++) {
        const rank_parcel *item = &call->sent[r];
        TRY(commi_check_parcel(call, r, self->rank, item->size_bytes));
        if (r == self->rank || !own->moves_own_alone)
            TRY(copy(own, (unsigned char *)call->target + call->received[r].begin_bytes,
                     (const unsigned char *)call->source + item->begin_bytes, item->size_bytes));
        call->received[r].size_bytes = item->size_bytes;
        sent += r == self->rank ? 0 : item->size_bytes;
    }
    TRY(finish(own));
    take_time(self, sent, begin_ns);
    return 0;
}

static void pretended_close(comm *self)
{
    mem_free(self->bulk_state); /* the device frees the stream */
}

static const commi_bulk_ops pretended_ops = {.all_gather = pretended_all_gather,
                                             .reduce_scatter = pretended_reduce_scatter,
                                             .all_to_all = pretended_all_to_all,
                                             .close = pretended_close};

int commi_open_pretended(comm *self, const comm_open_config *config)
{
    if (config->backend != COMM_MPI && config->backend != COMM_STAGED)
        return err_set(ERR_INTERNAL, "pretended ranks have no collective backend %d",
                       (int)config->backend);
    struct pretended *own = mem_alloc(1, sizeof *own, "pretended ranks");
    if (!own)
        return -ENOMEM;
    own->gpu = config->backend == COMM_STAGED ? config->gpu : NULL;
    own->call_seconds = config->call_seconds;
    own->bytes_per_second = config->bytes_per_second;
    own->moves_own_alone = config->moves_own_alone;
    int rc = own->gpu ? device_stream_create(own->gpu, false, &own->stream) : 0;
    if (rc < 0) {
        mem_free(own);
        return rc;
    }
    self->bulk_state = own;
    self->bulk = &pretended_ops;
    atomic_store(&self->sent_bytes, 0);
    return 0;
}

int comm_pretend(uint32_t rank, uint32_t world, comm **out)
{
    *out = NULL;
    if (world == 0 || world > COMM_RANKS_MAX || rank >= world)
        return err_set(ERR_CONFIG, "rank %u of %u ranks is none; at most %d ranks, from 0", rank,
                       world, COMM_RANKS_MAX);
    comm *self;
    TRY(commi_member_create(&self));
    int rc = commi_member_set_ranks(self, rank, world);
    if (rc < 0) {
        commi_member_destroy(self);
        return rc;
    }
    for (uint32_t r = 0; r < world; r++) {
        if (r == rank)
            commi_host_name(self->ranks[r].host);
        else
            snprintf(self->ranks[r].host, sizeof self->ranks[r].host, "rank-%u", r);
        self->ranks[r].host_idx = r;
        self->ranks[r].local_world = 1;
    }
    self->is_pretended = true;
    *out = self;
    return 0;
}
