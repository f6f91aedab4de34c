/* On which cores threads run, how soon after waking, and how they wait. See thread.h. */
#include "base/thread.h"

#include <assert.h>
#include <errno.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/log.h"
#include "base/size.h"

/* The kernel's struct sched_attr, first version; glibc before 2.41 does not declare it. */
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
        return; /* not an ordinary thread: its policy was set on purpose */
    attr.size = sizeof attr;
    attr.runtime_ns = THREAD_SLICE_NS;
    (void)syscall(SYS_sched_setattr, 0, &attr, 0); /* only a hint: a refusal changes nothing else */
#endif
}

static_assert(CORE_SET_MAX == CPU_SETSIZE, "a core set holds what an affinity mask does");

/* Adds the places of an OpenMP runtime that binds threads itself; else adds nothing. */
static void add_places(core_set *cores)
{
    if (omp_get_proc_bind() == omp_proc_bind_false)
        return;
    int place_count = omp_get_num_places();
    for (int p = 0; p < place_count; p++) {
        int numbers[CORE_SET_MAX];
        int count = omp_get_place_num_procs(p);
        if (count <= 0 || count > CORE_SET_MAX)
            continue;
        omp_get_place_proc_ids(p, numbers);
        for (int i = 0; i < count; i++)
            if (numbers[i] >= 0 && numbers[i] < CORE_SET_MAX)
                core_set_add(cores, numbers[i]);
    }
}

/* Read once, because this thread may be bound to fewer cores later. */
static pthread_once_t allowed_once = PTHREAD_ONCE_INIT;
static core_set allowed_cores;
static int allowed_errno;

static void ask_allowed(void)
{
    /* several masks: a kernel for more cores than one mask holds refuses a single one */
    cpu_set_t masks[8];
    memset(masks, 0, sizeof masks);
    if (sched_getaffinity(0, sizeof masks, masks) != 0) {
        allowed_errno = errno;
        return;
    }
    for (int core = 0; core < CORE_SET_MAX; core++)
        if (CPU_ISSET(core, &masks[0]))
            core_set_add(&allowed_cores, core);
    add_places(&allowed_cores);
}

int thread_allowed_cores(core_set *out)
{
    memset(out, 0, sizeof *out);
    pthread_once(&allowed_once, ask_allowed);
    if (allowed_errno)
        return err_errno(allowed_errno, "asking which cores this process may use");
    if (core_set_next(&allowed_cores, 0) < 0)
        return err_set(-ENOTSUP, "this process may only use cores from number %d on", CORE_SET_MAX);
    *out = allowed_cores;
    return 0;
}

uint32_t thread_allowed_count(void)
{
    core_set cores;
    return thread_allowed_cores(&cores) < 0 ? 1 : core_set_count(&cores);
}

/* Returns the errno value without a message: not each thread of a team must make one. */
static int set_affinity(const core_set *cores)
{
    cpu_set_t mask;
    CPU_ZERO(&mask);
    for (int core = core_set_next(cores, 0); core >= 0; core = core_set_next(cores, core + 1))
        CPU_SET(core, &mask);
    return sched_setaffinity(0, sizeof mask, &mask) == 0 ? 0 : errno;
}

int thread_start(pthread_t *out, void *(*run)(void *argument), void *argument)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int errno_value = pthread_create(out, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return errno_value;
}

static int bind_error(int errno_value, const core_set *cores)
{
    char text[CORE_SET_TEXT_BYTES];
    static atomic_bool warned;
    if (errno_value == EPERM || errno_value == ENOSYS) {
        if (!atomic_exchange(&warned, true))
            log_warn("threads may not be bound to cores here (%s): they run where the kernel puts "
                     "them, which may be slower; a container needs a seccomp profile with "
                     "sched_setaffinity",
                     strerror(errno_value));
        return 0;
    }
    return err_errno(errno_value, "binding a thread to the cores %s", core_set_format(cores, text));
}

int thread_bind(const core_set *cores)
{
    int errno_value = set_affinity(cores);
    return errno_value ? bind_error(errno_value, cores) : 0;
}

int thread_bind_team(const core_set *cores, uint32_t thread_count)
{
    int failed = 0;
    TRY(limits_check_threads(thread_count - 1)); /* OpenMP's runtime would end the process */
    bool is_bound_by_user = omp_get_proc_bind() != omp_proc_bind_false;
    if (!is_bound_by_user)
        failed = set_affinity(cores); /* first: new threads of the team inherit it */
    if (failed)
        TRY(bind_error(failed, cores));
    omp_set_num_threads((int)thread_count);
    if (is_bound_by_user || failed)
        return 0;
#pragma omp parallel num_threads((int)thread_count) reduction(max : failed)
    failed = set_affinity(cores);
    return failed ? bind_error(failed, cores) : 0;
}

/* If the runtime refuses, the threads stay, which only makes waiting slower. */
void thread_end_team(void)
{
    (void)omp_pause_resource_all(omp_pause_soft);
}

void backoff_pause(backoff *self)
{
    uint64_t now_ns = clock_ns();
    if (self->begin_ns == 0)
        self->begin_ns = now_ns;
    uint64_t waited_ns = now_ns - self->begin_ns;
    if (waited_ns < BACKOFF_SPIN_NS) {
        (void)sched_yield();
        return;
    }
    struct timespec pause = {.tv_nsec = (long)size_min(waited_ns / 8, BACKOFF_SLEEP_NS_MAX)};
    (void)nanosleep(&pause, NULL);
}
