/* A run's ranks as its main thread sees them, for one rank as for many: the collective calls below
 * return at once where there is one rank. See ranks.h. */
#include "comm/ranks.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"

/* Open MPI binds ranks to one core each where there are no more than two, and nobody has asked for
 * it. */
static void warn_of_one_core(const struct ranks *self, const cpu_set_t *own)
{
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    if (self->rank == 0 && CPU_COUNT(own) == 1 && online > (long)self->local_world &&
        getenv("OMPI_COMM_WORLD_SIZE"))
        log_warn(
            "each rank may run on one core alone, as mpirun binds it, and this machine has %ld: "
            "mpirun --bind-to none lets the ranks share them, configs/cluster shows more",
            online);
}

/* Whether another rank of this host may run on cores that this one may run on. */
static int find_shared_cores(struct ranks *self)
{
    cpu_set_t *masks = mem_alloc(self->world, sizeof *masks, "affinity masks"), own, both;
    if (!masks)
        return -ENOMEM;
    CPU_ZERO(&own);
    int rc = sched_getaffinity(0, sizeof own, &own) == 0 ? 0 : err_errno(errno, "affinity mask");
    warn_of_one_core(self, &own);
    rc = comm_agree(self->comm, "affinity masks", rc);
    if (rc == 0)
        rc = comm_exchange(self->comm, "affinity masks", &own, sizeof own, masks);
    const comm_rank *list = comm_get_ranks(self->comm);
    for (uint32_t r = 0; rc == 0 && r < self->world; r++) {
        if (r == self->rank || list[r].host_idx != list[self->rank].host_idx)
            continue;
        CPU_AND(&both, &own, &masks[r]);
        self->shares_cores = self->shares_cores || CPU_COUNT(&both) > 0;
    }
    mem_free(masks);
    return rc;
}

void ranks_name_host(struct ranks *self)
{
    if (gethostname(self->host, sizeof self->host) != 0)
        snprintf(self->host, sizeof self->host, "localhost");
    self->host[sizeof self->host - 1] = '\0';
}

int ranks_init(struct ranks *self, comm *members)
{
    *self = (struct ranks){.comm = members, .world = 1, .local_world = 1};
    ranks_name_host(self);
    if (!members || comm_get_world(members) == 1)
        return 0;
    const comm_rank *own = &comm_get_ranks(members)[comm_get_rank(members)];
    self->rank = comm_get_rank(members);
    self->world = comm_get_world(members);
    self->local_rank = own->local_rank;
    self->local_world = own->local_world;
    snprintf(self->host, sizeof self->host, "%s", own->host);
    return find_shared_cores(self);
}

int ranks_agree(const struct ranks *self, const char *what, int code)
{
    return self->world > 1 ? comm_agree(self->comm, what, code) : code;
}

void ranks_fail_all(const struct ranks *self, int code)
{
    if (self->world > 1)
        comm_fail(self->comm, code, err_text());
}

int ranks_barrier(const struct ranks *self, const char *what)
{
    return self->world > 1 ? comm_barrier(self->comm, what) : 0;
}

int ranks_meet(const struct ranks *self, const char *what)
{
    return self->world > 1 ? comm_meet(self->comm, what) : 0;
}

int ranks_end(const struct ranks *self)
{
    return self->world > 1 ? comm_end(self->comm) : 0;
}

int ranks_from_rank0(const struct ranks *self, const char *what, void *data, uint64_t bytes)
{
    return self->world > 1 ? comm_broadcast(self->comm, what, data, bytes) : 0;
}

int ranks_all_true(const struct ranks *self, const char *what, bool *value)
{
    uint8_t mine = *value, all[COMM_RANKS_MAX];
    if (self->world == 1)
        return 0;
    TRY(comm_exchange(self->comm, what, &mine, sizeof mine, all));
    for (uint32_t r = 0; r < self->world; r++)
        *value = *value && all[r];
    return 0;
}
