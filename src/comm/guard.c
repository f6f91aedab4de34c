/* A thread that acts when a call does not return. See comm_internal.h. It blocks in poll(2) alone
 * and allocates nothing. */
#include "comm/comm_internal.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/thread.h"

enum { BETWEEN_CALLS_MS = 100 };

static int remaining_ms(const commi_guard *self)
{
    int64_t left_ms = (self->end_ns - commi_now_ns()) / 1000000 + 1;
    if (left_ms < 0)
        return 0;
    return left_ms < INT32_MAX ? (int)left_ms : INT32_MAX;
}

static void *run_guard(void *argument)
{
    commi_guard *self = argument;
    struct pollfd fd = {.fd = self->fd, .events = POLLIN};
    int limit_ms = remaining_ms(self);
    for (;;) {
        int count = poll(&fd, 1, limit_ms);
        if (count > 0)
            return NULL;
        limit_ms = remaining_ms(self);
        if (limit_ms > 0)
            continue;
        const char *call = atomic_load(&self->call);
        if (call)
            self->expire(self->owner, call);
        limit_ms = BETWEEN_CALLS_MS; /* what is under way now has a limit of its own */
    }
}

int commi_guard_start(commi_guard *self, comm *owner, int64_t end_ns,
                      void (*expire)(comm *owner, const char *call))
{
    *self = (commi_guard){.owner = owner, .end_ns = end_ns, .expire = expire};
    self->fd = eventfd(0, EFD_CLOEXEC);
    if (self->fd < 0)
        return err_errno(errno, "creating an eventfd");
    int errno_value = thread_start(&self->thread, run_guard, self);
    if (errno_value) {
        close(self->fd);
        return err_errno(errno_value, "creating the thread that watches how long MPI takes");
    }
    return 0;
}

void commi_guard_enter(commi_guard *self, const char *call)
{
    atomic_store(&self->call, call);
}

void commi_guard_stop(commi_guard *self)
{
    (void)eventfd_write(self->fd, 1);
    pthread_join(self->thread, NULL);
    close(self->fd);
}
