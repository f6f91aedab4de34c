/* One rank as all files of comm see it: who it is, its times, and the failure of its job. See
 * comm_internal.h. Allocates when a comm is made and when its ranks are known; any thread may
 * ask. */
#include <assert.h>
#include <errno.h>
#include <time.h>

#include "base/mem.h"
#include "comm/comm_internal.h"

#define DEFAULT_TIMEOUT_SECONDS 300.0
#define DEFAULT_EXIT_SECONDS    30.0

int64_t commi_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* ---- creation ---- */

int commi_member_create(comm **out)
{
    *out = mem_alloc(1, sizeof **out, "comm");
    if (!*out)
        return -ENOMEM;
    pthread_mutex_init(&(*out)->mutex, NULL);
    commi_member_set_timeouts(*out, 0, 0);
    return 0;
}

void commi_member_destroy(comm *self)
{
    pthread_mutex_destroy(&self->mutex);
    mem_free(self->ranks);
    mem_free(self);
}

int commi_member_set_ranks(comm *self, uint32_t rank, uint32_t world)
{
    assert(rank < world);
    assert(world <= COMM_RANKS_MAX);
    self->rank = rank;
    self->world = world;
    self->ranks = mem_alloc(world, sizeof *self->ranks, "comm ranks");
    return self->ranks ? 0 : -ENOMEM;
}

void commi_member_set_timeouts(comm *self, double timeout_seconds, double exit_seconds)
{
    double timeout = timeout_seconds > 0.0 ? timeout_seconds : DEFAULT_TIMEOUT_SECONDS;
    double ending = exit_seconds > 0.0 ? exit_seconds : DEFAULT_EXIT_SECONDS;
    atomic_store(&self->timeout_ns, (int64_t)(timeout * 1e9));
    atomic_store(&self->exit_ns, (int64_t)(ending * 1e9));
}

/* ---- who this rank is ---- */

uint32_t comm_get_rank(const comm *self)
{
    return self ? self->rank : 0;
}

uint32_t comm_get_world(const comm *self)
{
    return self ? self->world : 1;
}

const comm_rank *comm_get_ranks(const comm *self)
{
    return self->ranks;
}

bool comm_is_pretended(const comm *self)
{
    return self && self->is_pretended;
}

/* ---- the failure of the job ---- */

int commi_abort_error(comm *self)
{
    pthread_mutex_lock(&self->mutex);
    int code = err_restore(&self->failure);
    pthread_mutex_unlock(&self->mutex);
    assert(code < 0);
    return code;
}

int comm_check(comm *self)
{
    return self && commi_is_aborted(self) ? commi_abort_error(self) : 0;
}
