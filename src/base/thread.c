/* Thread hints. See thread.h. */
#include "base/thread.h"

#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* struct sched_attr of the kernel, first version; glibc has none before 2.41. */
struct thread_sched_attr {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
};

enum { THREAD_SLICE_NS = 100000 }; /* the least that the kernel accepts */

void thread_ask_short_slice(void)
{
#ifdef SYS_sched_setattr
    struct thread_sched_attr attr;
    memset(&attr, 0, sizeof attr);
    if (syscall(SYS_sched_getattr, 0, &attr, sizeof attr, 0) != 0 || attr.policy != 0)
        return; /* not an ordinary thread: its owner has other plans */
    attr.size = sizeof attr;
    attr.runtime_ns = THREAD_SLICE_NS;
    (void)syscall(SYS_sched_setattr, 0, &attr, 0); /* a hint: refused is as good as ignored */
#endif
}
