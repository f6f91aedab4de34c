/* The backends mpi and staged: opening and closing the bulk plane, and its calls. See
 * exchange_internal.h. */
#include "comm/exchange_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/size.h"

#define HALF_BYTES_MAX GIB /* a message's length is an int */

enum {
    SLOT_BYTES_MIN = 256, /* a head and a chunk of 16 fp32 elements at the least */
    SPIN_NS = 4000,       /* about the cost of a sleep and a wake */
    WARM_ELEMS = 256,
    CLOSE_TRIES = 1000, /* each of a millisecond */
};

/* Describes a rank's segment to the other ranks. */
struct offer {
    uint64_t token;
    uint64_t staging_bytes;
    int32_t fd;
    int32_t is_staged;
    char name[SEGMENT_NAME_BYTES]; /* "": a memfd */
};
typedef struct offer offer;

static int exchange_all_gather(comm *group, const comm_call *call)
{
    exchange *self = group->bulk_state;
    return exchangei_run(self, self->gpu, EXCHANGE_GATHER, call);
}

static int exchange_reduce_scatter(comm *group, const comm_call *call)
{
    exchange *self = group->bulk_state;
    return exchangei_run(self, self->gpu, EXCHANGE_REDUCE, call);
}

static int exchange_all_to_all(comm *group, const comm_parcels *call)
{
    exchange *self = group->bulk_state;
    return exchangei_run_parcels(self, self->gpu, call);
}

/* Ends a request in flight. After a collective these are only sends that have arrived and that MPI
 * has not reported yet. Returns true if MPI may still use our memory afterwards. */
static bool end_request(comm *group, commi_request *request)
{
    for (int tries = 0; tries < CLOSE_TRIES; tries++) {
        bool is_done = true;
        if (commi_mpi_test(request, &is_done) < 0 || commi_is_aborted(group))
            break;
        if (is_done)
            return false;
        commi_sleep_ns(1000000);
    }
    if (!request->is_active)
        return false;
    commi_mpi_cancel(request);
    return true;
}

static bool abandon_requests(exchange *self)
{
    bool was_active = false;
    for (uint32_t p = 0; p < self->group->world; p++) {
        for (int half = 0; half < 2; half++) {
            was_active |= end_request(self->group, &self->peers[p].sends[half]);
            was_active |= end_request(self->group, &self->peers[p].receives[half]);
        }
    }
    return was_active;
}

static void destroy(exchange *self)
{
    stagedi_close(self->gpu);
    if (self->peers != NULL && abandon_requests(self))
        return; /* MPI may still write to this memory; the process ends soon after the failure */
    for (uint32_t p = 0; self->peers != NULL && p < self->group->world; p++)
        segment_fini(&self->peers[p].shared);
    mem_free(self->inboxes);
    mem_free(self->peers);
    mem_free(self);
}

static void close_exchange(comm *group)
{
    exchange *self = group->bulk_state;
    group->bulk_state = NULL;
    destroy(self);
}

static const commi_bulk_ops exchange_ops = {.all_gather = exchange_all_gather,
                                            .reduce_scatter = exchange_reduce_scatter,
                                            .all_to_all = exchange_all_to_all,
                                            .close = close_exchange};

/* ---- sizes ---- */

/* Computes the sizes, which are the same on all ranks, and allocates memory for ranks of other
 * hosts. */
static int prepare(exchange *self, uint64_t staging_bytes)
{
    comm *group = self->group;
    uint32_t world = group->world, remote_count = 0, far_rank = 0;
    for (uint32_t p = 0; p < world; p++) {
        self->peers[p].shared.fd = -1;
        self->peers[p].is_remote = group->ranks[p].host_idx != group->ranks[group->rank].host_idx;
        remote_count += self->peers[p].is_remote;
        if (group->ranks[p].host_idx != group->ranks[0].host_idx)
            far_rank = p;
    }
    if (far_rank != 0 && !commi_has_mpi(group))
        return err_set(ERR_CONFIG,
                       "rank 0 on %s and rank %u on %s are on different hosts and there is no MPI "
                       "between them: start the ranks by mpirun or srun, with a build that has MPI",
                       group->ranks[0].host, far_rank, group->ranks[far_rank].host);
    uint32_t readers = world > 1 ? world - 1 : 1;
    self->half_bytes = size_min(staging_bytes / 2, HALF_BYTES_MAX) / 64 * 64;
    self->reduce_slot_bytes = self->half_bytes / readers / 64 * 64;
    self->gather_slot_bytes = far_rank != 0 ? self->reduce_slot_bytes : self->half_bytes;
    if (self->reduce_slot_bytes < SLOT_BYTES_MIN)
        return err_set(ERR_CONFIG,
                       "%" PRIu64 " bytes of staging are too few for %u ranks: at least %" PRIu64,
                       staging_bytes, world, (uint64_t)2 * readers * SLOT_BYTES_MIN);
    self->has_remote = remote_count > 0;
    uint64_t slot_bytes = self->gather_slot_bytes;
    self->inboxes = mem_alloc(2 * remote_count, slot_bytes, "comm inboxes");
    if (self->inboxes == NULL)
        return -ENOMEM;
    uint64_t used = 0;
    for (uint32_t p = 0; p < world; p++) {
        for (int half = 0; self->peers[p].is_remote && half < 2; half++)
            self->peers[p].inbox[half] = self->inboxes + slot_bytes * used++;
    }
    memset(self->inboxes, 0, 2 * remote_count * slot_bytes);
    atomic_store(&group->held_bytes,
                 SEGMENT_PAGE_BYTES + 2 * self->half_bytes + 2 * remote_count * slot_bytes);
    return 0;
}

/* ---- segments ---- */

static int open_peers(exchange *self, const offer *offers)
{
    comm *group = self->group;
    for (uint32_t p = 0; p < group->world; p++) {
        if (p == group->rank || self->peers[p].is_remote)
            continue;
        const char *name = offers[p].name[0] != '\0' ? offers[p].name : NULL;
        TRY(segment_open(2 * self->half_bytes, offers[p].token, group->ranks[p].pid, offers[p].fd,
                         name, &self->peers[p].shared));
    }
    return 0;
}

static int check_offers(const exchange *self, const offer *offers)
{
    const comm *group = self->group;
    for (uint32_t p = 1; p < group->world; p++) {
        if (offers[p].staging_bytes != offers[0].staging_bytes ||
            offers[p].is_staged != offers[0].is_staged)
            return err_set(ERR_CONFIG,
                           "rank %u on %s exchanges through %" PRIu64 " bytes%s, rank 0 on %s "
                           "through %" PRIu64 "%s: all ranks must have the same",
                           p, group->ranks[p].host, offers[p].staging_bytes,
                           offers[p].is_staged ? " for a GPU" : "", group->ranks[0].host,
                           offers[0].staging_bytes, offers[0].is_staged ? " for a GPU" : "");
    }
    return 0;
}

/* Makes this rank's segment, as memfd or by name, and maps the segments of its host. *is_mapped:
 * all ranks of all hosts succeeded. Its failures are those of all ranks. */
static int share(exchange *self, offer *mine, offer *offers, bool by_name, bool *is_mapped)
{
    comm *group = self->group;
    segment *own = &self->peers[group->rank].shared;
    *is_mapped = false;
    int rc = 0;
    if (getrandom(&mine->token, sizeof mine->token, 0) != (ssize_t)sizeof mine->token)
        rc = err_errno(errno, "cannot draw a random name");
    mine->name[0] = '\0';
    if (by_name)
        (void)snprintf(mine->name, sizeof mine->name, "/sluice-%016" PRIx64 "-%u", mine->token,
                       group->rank);
    if (rc == 0)
        rc = segment_create(2 * self->half_bytes, mine->token, by_name ? mine->name : NULL, own);
    mine->fd = own->fd;
    TRY(comm_agree(group, "making shared memory", rc));
    rc = comm_exchange(group, "shared memory", mine, sizeof *mine, offers);
    if (rc == 0)
        rc = check_offers(self, offers);
    int mapped = rc == 0 ? open_peers(self, offers) : rc;
    if (rc == 0 && by_name)
        rc = comm_agree(group, "mapping shared memory", mapped);
    if (by_name)
        (void)shm_unlink(mine->name);
    if (rc < 0)
        return rc;
    *is_mapped = comm_agree(group, "mapping shared memory", mapped) == 0;
    return *is_mapped ? 0 : comm_check(group);
}

static int share_all(exchange *self, offer *mine)
{
    comm *group = self->group;
    offer *offers = mem_alloc(group->world, sizeof *offers, "comm offers");
    if (offers == NULL)
        return -ENOMEM;
    bool is_mapped;
    int rc = share(self, mine, offers, false, &is_mapped);
    if (rc == 0 && !is_mapped) { /* no access to each other's /proc: by name */
        for (uint32_t p = 0; p < group->world; p++)
            segment_fini(&self->peers[p].shared);
        rc = share(self, mine, offers, true, &is_mapped);
    }
    mem_free(offers);
    return rc;
}

/* ---- open ---- */

/* Runs each collective once, in host memory. */
static int warm(exchange *self)
{
    comm *group = self->group;
    uint32_t world = group->world;
    float *source = mem_alloc((uint64_t)world * WARM_ELEMS, sizeof(float), "comm warm-up");
    float *target = mem_alloc((uint64_t)world * WARM_ELEMS, sizeof(float), "comm warm-up");
    int rc = source != NULL && target != NULL ? 0 : -ENOMEM;
    for (uint32_t i = 0; rc == 0 && i < world * WARM_ELEMS; i++)
        source[i] = (float)(group->rank + 1);
    comm_call gather = {.label = "all-gather of the start", .source = source, .target = target};
    gather.count = WARM_ELEMS * sizeof(float);
    comm_call reduce = {.label = "reduce-scatter of the start", .source = source, .target = target};
    reduce.count = WARM_ELEMS;
    TRY_GOTO(rc, rc, done);
    TRY_GOTO(rc, exchangei_run(self, NULL, EXCHANGE_GATHER, &gather), done);
    TRY_GOTO(rc, exchangei_run(self, NULL, EXCHANGE_REDUCE, &reduce), done);
    if (target[WARM_ELEMS - 1] != (float)(world * (world + 1) / 2))
        rc = err_set(ERR_INTERNAL, "the first reduce-scatter gave %g where %u ranks sum to %u",
                     (double)target[WARM_ELEMS - 1], world, world * (world + 1) / 2);
done:
    mem_free(source);
    mem_free(target);
    atomic_store(&group->sent_bytes, 0);
    return rc;
}

static int make(exchange *self, const comm_open_config *config)
{
    comm *group = self->group;
    bool is_staged = config->backend == COMM_STAGED;
    offer mine = {.is_staged = is_staged, .fd = -1};
    mine.staging_bytes = config->staging_bytes > 0 ? config->staging_bytes : COMMI_STAGING_BYTES;
    self->loops = sum_loops_of(cpu_isa());
    if (sysconf(_SC_NPROCESSORS_ONLN) > (long)group->ranks[group->rank].local_world)
        self->spin_ns = SPIN_NS;
    self->peers = mem_alloc(group->world, sizeof *self->peers, "comm peers");
    int rc = self->peers != NULL ? prepare(self, mine.staging_bytes) : -ENOMEM;
    TRY(comm_agree(group, "opening collectives", rc));
    TRY(share_all(self, &mine));
    if (is_staged) {
        uint64_t chunk_bytes = exchangei_reduce_chunk(self, true, DTYPE_FP32) * sizeof(float);
        rc = stagedi_open(self, config->gpu, chunk_bytes, &self->gpu);
        TRY(comm_agree(group, "pinning memory of collectives", rc));
        atomic_fetch_add(&group->held_bytes, stagedi_held_bytes(self->gpu));
    }
    return warm(self);
}

int commi_open_exchange(comm *group, const comm_open_config *config)
{
    exchange *self = mem_alloc(1, sizeof *self, "comm exchange");
    if (self == NULL)
        return -ENOMEM;
    self->group = group;
    int rc = make(self, config);
    if (rc < 0) {
        err_record first;
        err_save(&first, rc);
        destroy(self);
        atomic_store(&group->held_bytes, 0);
        return err_restore(&first);
    }
    group->bulk = &exchange_ops;
    group->bulk_state = self;
    return 0;
}
