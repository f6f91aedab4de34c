/* Joining, leaving and opening; the bulk calls by the backend's table; the backend of one rank. See
 * comm.h. */
#include "comm/comm_internal.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "comm/control_internal.h"

/* How long a rank other than 0 lets rank 0 print and the launcher end the job. */
#define SILENCE_NS ((int64_t)2000000000)

/* This rank is not rank 0, and its join failed for a reason that rank 0 prints too. */
static atomic_bool is_reported_elsewhere;

/* ---- membership ---- */

void comm_set_timeouts(comm *self, double timeout_seconds, double exit_seconds)
{
    if (!self)
        return;
    commi_member_set_timeouts(self, timeout_seconds, exit_seconds);
    if (self->control)
        commi_control_wake(self->control);
}

static int become_one_rank(comm *self, const comm_join_config *config)
{
    TRY(commi_member_set_ranks(self, 0, 1));
    if (config->host)
        strncpy(self->ranks[0].host, config->host, COMM_HOST_BYTES - 1);
    else
        commi_host_name(self->ranks[0].host);
    self->ranks[0].local_world = 1;
    self->ranks[0].pid = getpid();
    return 0;
}

/* Ends a process that waits for a call of MPI while the ranks join. Rank 0 speaks for all; the
 * other ranks wait until the launcher ends them for it, and speak if that does not happen. */
static void end_joining(comm *self, const char *call)
{
    char host[COMM_HOST_BYTES];
    commi_host_name(host);
    if (self->rank != 0)
        commi_sleep_ns(SILENCE_NS);
    int rc =
        err_set(-ETIMEDOUT,
                "rank %u on host %s (process %lld) waits in %s, and the ranks have not met "
                "within %.1f s (comm.timeout_seconds): see whether all ranks have started and "
                "reach each other, and whether something else connects to the ports of mpirun "
                "or of MPI (Network in src/comm/README.md)",
                self->rank, host, (long long)getpid(), call, (double)commi_timeout_ns(self) * 1e-9);
    if (self->report)
        self->report(rc);
    else
        log_warn("%s", err_text());
    _exit(1);
}

static int meet(comm *self, const comm_join_config *config, const commi_launch *launch)
{
    if (launch->is_torchrun && !config->share)
        return err_set(ERR_CONFIG,
                       "torchrun started %u processes, which can be ranks only through the Python "
                       "package: call sluice.train or use sluice.torch there, or start the "
                       "command by mpirun or srun",
                       launch->world);
    if (!config->is_given && !launch->is_torchrun)
        TRY(commi_mpi_open(self, launch));
    if (self->world == 1)
        return become_one_rank(self, config);
    TRY(commi_member_set_ranks(self, self->rank, self->world));
    return commi_control_open(self, config);
}

static int join_many(comm *self, const comm_join_config *config, const commi_launch *launch)
{
    commi_guard guard;
    self->rank = launch->rank;
    self->world = launch->world;
    self->is_one_host = launch->is_one_host;
    self->join_end_ns = commi_now_ns() + commi_timeout_ns(self);
    if (config->is_given || launch->is_torchrun)
        return meet(self, config, launch);
    TRY(commi_guard_start(&guard, self, self->join_end_ns, end_joining));
    self->guard = &guard;
    int rc = meet(self, config, launch);
    self->guard = NULL;
    commi_guard_stop(&guard);
    return rc;
}

int comm_join(const comm_join_config *config, comm **out)
{
    *out = NULL;
    commi_launch launch = {.rank = config->rank, .world = config->world, .launcher = "config"};
    launch.is_launched = config->is_given && config->world > 1;
    if (!config->is_given) {
        int read = commi_launch_read(&launch);
        atomic_store(&is_reported_elsewhere, read < 0 && launch.rank != 0);
        TRY(read);
    } else if (config->world == 0 || config->rank >= config->world ||
               config->world > COMM_RANKS_MAX)
        return err_set(ERR_CONFIG, "rank %u of %u ranks is none; at most %d ranks", config->rank,
                       config->world, COMM_RANKS_MAX);
    comm *self;
    TRY(commi_member_create(&self));
    comm_set_timeouts(self, config->timeout_seconds, config->exit_seconds);
    self->report = config->report;
    int rc = launch.is_launched ? join_many(self, config, &launch) : become_one_rank(self, config);
    if (rc < 0) {
        atomic_store(&is_reported_elsewhere, self->rank != 0 && commi_join_is_reported(rc));
        if (self->mpi)
            commi_mpi_close(self, rc);
        commi_member_destroy(self);
        return rc;
    }
    *out = self;
    return 0;
}

void comm_leave(comm *self, int code)
{
    if (!self)
        return;
    atomic_store(&self->is_leaving, true);
    if (code < 0 && !commi_is_aborted(self))
        comm_fail(self, code, err_text());
    int rc = comm_check(self);
    if (rc == 0)
        rc = comm_barrier(self, "leaving");
    comm_close(self);
    if (self->control)
        commi_control_close(self);
    if (self->mpi)
        commi_mpi_close(self, rc);
    commi_member_destroy(self);
}

bool comm_is_reporter(const comm *self)
{
    if (!self)
        return !atomic_load(&is_reported_elsewhere);
    return self->control ? commi_control_is_reporter((comm *)self) : true;
}

/* ---- bulk ---- */

static int self_all_gather(comm *self, const comm_call *call)
{
    (void)self;
    memcpy(call->target, call->source, call->count);
    return 0;
}

static int self_reduce_scatter(comm *self, const comm_call *call)
{
    (void)self;
    memcpy(call->target, call->source, call->count * sizeof(float));
    return 0;
}

static int self_all_to_all(comm *self, const comm_parcels *call)
{
    (void)self;
    TRY(commi_check_parcel(call, 0, 0, call->sent->size_bytes));
    memcpy((unsigned char *)call->target + call->received->begin_bytes,
           (const unsigned char *)call->source + call->sent->begin_bytes, call->sent->size_bytes);
    call->received->size_bytes = call->sent->size_bytes;
    return 0;
}

static const commi_bulk_ops self_ops = {.all_gather = self_all_gather,
                                        .reduce_scatter = self_reduce_scatter,
                                        .all_to_all = self_all_to_all};

void comm_close(comm *self)
{
    if (!self || !self->bulk)
        return;
    if (self->bulk->close)
        self->bulk->close(self);
    self->bulk = NULL;
    self->bulk_state = NULL;
    atomic_store(&self->held_bytes, 0);
}

int comm_open(comm *self, const comm_open_config *config)
{
    assert(!self->bulk);
    TRY(comm_check(self));
    if (self->is_pretended)
        return commi_open_pretended(self, config);
    switch (config->backend) {
    case COMM_SELF:
        if (self->world > 1)
            return err_set(ERR_INTERNAL, "the backend self is for one rank, not for %u",
                           self->world);
        self->bulk = &self_ops;
        return 0;
    case COMM_MPI:
    case COMM_STAGED:
        if (self->world == 1 && config->backend == COMM_MPI) {
            self->bulk = &self_ops;
            return 0;
        }
        return commi_open_exchange(self, config);
    case COMM_NCCL:
        return commi_open_nccl(self, config);
    }
    return err_set(ERR_INTERNAL, "there is no collective backend %d", (int)config->backend);
}

static int check_call(comm *self, const char *label)
{
    assert(label != NULL);
    TRY(comm_check(self));
    if (!self->bulk)
        return err_set(ERR_INTERNAL, "%s: collectives are not open", label);
    return 0;
}

int comm_all_gather(comm *self, const comm_call *call)
{
    TRY(check_call(self, call->label));
    return self->bulk->all_gather(self, call);
}

int comm_reduce_scatter(comm *self, const comm_call *call)
{
    TRY(check_call(self, call->label));
    return self->bulk->reduce_scatter(self, call);
}

int commi_check_parcel(const comm_parcels *call, uint32_t from, uint32_t to, uint64_t bytes)
{
    if (bytes <= call->received[from].size_bytes)
        return 0;
    return err_set(ERR_INTERNAL,
                   "%s: rank %u sends %" PRIu64 " bytes to rank %u, which has room for %" PRIu64,
                   call->label, from, bytes, to, call->received[from].size_bytes);
}

int comm_all_to_all(comm *self, const comm_parcels *call)
{
    TRY(check_call(self, call->label));
    return self->bulk->all_to_all(self, call);
}

int comm_watch(comm *self)
{
    return self && self->bulk && self->bulk->watch ? self->bulk->watch(self) : comm_check(self);
}

uint64_t comm_sent_bytes(const comm *self)
{
    return self ? atomic_load(&((comm *)self)->sent_bytes) : 0;
}

uint64_t comm_held_bytes(const comm *self)
{
    return self ? atomic_load(&((comm *)self)->held_bytes) : 0;
}
