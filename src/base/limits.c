/* Limits of a process, tried before libraries meet them. See limits.h. */
#include "base/limits.h"

#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "base/core_set.h"
#include "base/size.h"
#include "base/thread.h"

/* With 640 KiB of stack, sluice plan --max-model crashed. With 512 KiB, a job of 1900 nested lists
 * did. Usual jobs trained with 128 KiB. */
#define STACK_BYTES_MIN   ((rlim_t)1 << 20)
#define STACK_GUARD_BYTES ((size_t)16 << 10) /* at most so much less than its limit a stack has */
/* Training with 2 threads used some 30 MiB of address space after its threads and arenas were
 * made. */
#define LIBRARY_BYTES ((size_t)64 << 20)

static bool has_limit(int resource, rlim_t *bytes)
{
    struct rlimit limit;
    *bytes = RLIM_INFINITY;
    if (getrlimit(resource, &limit) == 0)
        *bytes = limit.rlim_cur;
    return *bytes != RLIM_INFINITY;
}

static bool has_room(void)
{
    void *room =
        mmap(NULL, LIBRARY_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return false;
    munmap(room, LIBRARY_BYTES);
    return true;
}

int limits_check_memory(void)
{
    rlim_t limit;
    char text[SIZE_TEXT_BYTES], room[SIZE_TEXT_BYTES];
    if (has_room())
        return 0;
    size_format(LIBRARY_BYTES, room);
    if (!has_limit(RLIMIT_AS, &limit))
        return err_set(-ENOMEM, "the system has no %s of address space left for libraries", room);
    return err_set(ERR_CONFIG,
                   "the process may have %s of address space, and less than %s of it are left for "
                   "libraries: raise the limit (ulimit -v)",
                   size_format(limit, text), room);
}

/* Programs that use the library call it from threads of their own. */
static int check_own_stack(void)
{
    pthread_attr_t attributes;
    size_t bytes = 0;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0)
        return 0;
    int rc = pthread_attr_getstacksize(&attributes, &bytes);
    pthread_attr_destroy(&attributes);
    if (rc != 0 || bytes + STACK_GUARD_BYTES >= STACK_BYTES_MIN)
        return 0;
    return err_set(ERR_CONFIG,
                   "the stack of this thread has %zu KiB and %llu are needed: start the thread "
                   "with more",
                   bytes >> 10, (unsigned long long)(STACK_BYTES_MIN >> 10));
}

static int check_stack(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= STACK_BYTES_MIN)
        return check_own_stack();
    return err_set(
        ERR_CONFIG,
        "the stack may have %llu KiB here and %llu are needed: start it with more (ulimit -s 8192)",
        (unsigned long long)(limit.rlim_cur >> 10), (unsigned long long)(STACK_BYTES_MIN >> 10));
}

int limits_begin(void)
{
    rlim_t limit;
    TRY(check_stack());
    if (has_limit(RLIMIT_AS, &limit))
        (void)mallopt(M_ARENA_MAX, 1);
    return limits_check_memory();
}

static void *wait_for_gate(void *gate)
{
    pthread_mutex_lock(gate);
    pthread_mutex_unlock(gate);
    return NULL;
}

static int thread_error(uint32_t made_count, uint32_t wanted_count)
{
    rlim_t space, processes;
    char text[SIZE_TEXT_BYTES];
    if (has_limit(RLIMIT_AS, &space))
        return err_set(ERR_CONFIG,
                       "only %u of %u further threads have room in the %s of address space that "
                       "the process may have: raise the limit (ulimit -v), or use fewer threads "
                       "or smaller stacks (ulimit -s)",
                       made_count, wanted_count, size_format(space, text));
    if (has_limit(RLIMIT_NPROC, &processes))
        return err_set(ERR_CONFIG,
                       "only %u of %u further threads are allowed: the user may have %llu "
                       "processes and threads (ulimit -u), and a container may have fewer",
                       made_count, wanted_count, (unsigned long long)processes);
    return err_set(ERR_CONFIG,
                   "only %u of %u further threads are allowed: raise the container's limit of "
                   "threads (pids.max)",
                   made_count, wanted_count);
}

int limits_check_threads(uint32_t thread_count)
{
    pthread_t threads[CORE_SET_MAX];
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    uint32_t wanted = thread_count < CORE_SET_MAX ? thread_count : CORE_SET_MAX;
    uint32_t made = 0;
    pthread_mutex_lock(&gate);
    while (made < wanted && thread_start(&threads[made], wait_for_gate, &gate) == 0)
        made++;
    int rc = made < wanted ? thread_error(made, wanted) : limits_check_memory();
    pthread_mutex_unlock(&gate);
    for (uint32_t t = 0; t < made; t++)
        pthread_join(threads[t], NULL);
    return rc;
}
