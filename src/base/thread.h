/* Threads and the operating system: on which cores they may run, how soon after waking, and how to
 * wait for what wakes nobody.
 *
 * Each call applies to the thread that makes it. A new thread inherits the cores of the thread that
 * created it; it may then be bound to other cores. tiers/topology.h decides which thread gets which
 * cores, and shows the order of the calls. */
#ifndef SLUICE_BASE_THREAD_H
#define SLUICE_BASE_THREAD_H

#include <pthread.h>
#include <stdint.h>

#include "base/core_set.h"
#include "base/error.h"

/* pthread_create with all signals blocked on the new thread: they are for the threads of the
 * program. Returns an errno value; 0: the caller joins the thread. */
int thread_start(pthread_t *out, void *(*run)(void *argument), void *argument) MUST_CHECK;

/* Asks the scheduler to run this thread soon after it wakes. This is for threads that only hand
 * work over (the executor's, the copies') while computing threads keep every core busy. Linux 6.12
 * and later honour a short slice of an ordinary thread, without any privilege; elsewhere this does
 * nothing. Threads created afterwards inherit the request, so create computing threads first.
 *
 * Measured on two cores kept busy by two other threads, with nvme transfers of 1 MiB at depths 8
 * and 16:
 *                             without         with
 *   mixed reads and writes    2.3-2.9 GB/s    2.7-4.0 GB/s
 *   writes                    1.8-3.3 GB/s    4.7-5.2 GB/s */
void thread_ask_short_slice(void);

/* The cores that this process was given: the affinity mask of the thread that makes the first call,
 * at the time of that call. Control groups (cpusets) and offline cores have already narrowed that
 * mask. Later calls give the same set, also on threads that were bound since, so make the first
 * call before our code binds any thread. If the user has OpenMP bind its threads (OMP_PROC_BIND,
 * OMP_PLACES, GOMP_CPU_AFFINITY), the runtime has put the first thread on one core before main
 * began; then the cores of all its places count too. *out is not empty. -ENOTSUP if only cores from
 * CORE_SET_MAX on are allowed. Allocates nothing. */
int thread_allowed_cores(core_set *out) MUST_CHECK;

/* The number of cores that the calling thread may run on; 1 if the system does not tell. */
uint32_t thread_allowed_count(void);

/* Lets the calling thread run on these cores only. -EINVAL for a set without an allowed core; the
 * thread's cores are then unchanged. If a container forbids binding at all, the call warns once and
 * succeeds, because an unbound thread is slower but not wrong. Allocates nothing. */
int thread_bind(const core_set *cores) MUST_CHECK;

/* Creates the calling thread's OpenMP team of `thread_count` (> 0) threads and binds all of them,
 * the caller included, to `cores`. On this thread omp_get_max_threads then returns thread_count.
 *
 * Each thread gets the whole set, not one core. GCC's runtime ends threads when a region asks for
 * fewer (seen with 4, then 2, then 4 threads: two of the last team were new). New threads get the
 * caller's mask, so a caller bound to one core would in time pull its whole team onto that core. If
 * there are as many threads as cores, the kernel spreads them by itself. It also moves a thread
 * away from a core that I/O wants; a thread bound to that core would delay its whole team.
 *
 * If the user has OpenMP bind its threads, that binding stays and nothing is bound here. Errors are
 * those of thread_bind and limits_check_threads. OpenMP's runtime allocates; our code does not. */
int thread_bind_team(const core_set *cores, uint32_t thread_count) MUST_CHECK;

/* Ends the threads of the calling thread's OpenMP team, if it has one; a later region makes new
 * ones. Call it on a thread that has finished its own computing. The reason: while a process has
 * more OpenMP threads than cores, idle ones included, GCC's runtime lets waiting threads spin for
 * microseconds instead of milliseconds, and the team that computes then sleeps and wakes at each
 * region. Does nothing within a region. */
void thread_end_team(void);

/* Waiting for what wakes nobody, such as an answer of a GPU's driver: the caller asks again and
 * again, with a pause between two questions.
 *
 *   backoff wait = {0};
 *   while (!is_done())
 *       backoff_pause(&wait);
 *
 * For BACKOFF_SPIN_NS a pause only lets other threads run, because the shortest sleep takes some 60
 * us. From then on a pause is a sleep of an eighth of the time that was waited so far, and of a
 * millisecond at most. So a wait ends late by an eighth of itself, or by some 60 us if that is
 * more, and a long one takes little of a core. The struct is owned by the thread that waits. */
enum {
    BACKOFF_SPIN_NS = 200000,
    BACKOFF_SLEEP_NS_MAX = 1000000,
};

struct backoff {
    uint64_t begin_ns; /* of the first pause; 0: none yet */
};
typedef struct backoff backoff;

void backoff_pause(backoff *self);

#endif
