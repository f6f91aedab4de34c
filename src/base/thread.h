/* Threads and the operating system: where they may run, and how soon after waking.
 *
 * Each call is made on the thread that it is for. A new thread inherits the cores of the thread
 * that created it; it may then be bound to other cores. tiers/topology.h decides who gets which
 * cores, and shows the calls. */
#ifndef SLUICE_BASE_THREAD_H
#define SLUICE_BASE_THREAD_H

#include <stdint.h>

#include "base/core_set.h"
#include "base/error.h"

/* Asks the scheduler to run this thread soon after it wakes: for threads that only hand work over
 * (the executor's, the copies'), while computing threads keep every core busy. Linux 6.12 and later
 * honour a short slice of an ordinary thread, without any privilege; elsewhere this does nothing.
 * Threads created afterwards inherit it, so computing threads are created first.
 *
 * Measured on two cores kept busy by two other threads, nvme transfers of 1 MiB at depth 8 and 16:
 * mixed reads and writes 2.3-2.9 GB/s without, 2.7-4.0 with; writes 1.8-3.3 and 4.7-5.2. */
void thread_ask_short_slice(void);

/* The cores that this process was given: the affinity mask that the thread of the first call had
 * then, which control groups (cpusets) and offline cores already narrow. Later calls give the same,
 * also on threads that were bound since; so call it first before any binding of ours. Where the
 * user has OpenMP bind its threads (OMP_PROC_BIND, OMP_PLACES, GOMP_CPU_AFFINITY), the runtime has
 * put the first thread on one core before main began; then the cores of all its places count too.
 * *out is not empty; -ENOTSUP where only cores from CORE_SET_MAX on are allowed. No allocation. */
int thread_allowed_cores(core_set *out) MUST_CHECK;

/* Lets the calling thread run on these cores alone. -EINVAL for a set without an allowed core; the
 * thread's cores are then unchanged. Where a container forbids binding at all, that is a warning,
 * once, and success: it is slower, not wrong. Allocates nothing. */
int thread_bind(const core_set *cores) MUST_CHECK;

/* Creates the calling thread's OpenMP team of `thread_count` (> 0) and binds every thread of it,
 * the caller too, to `cores`. The thread_count also becomes what omp_get_max_threads says to this
 * thread.
 *
 * All threads get the whole set, not a core each: GCC's runtime ends threads when a region asks for
 * fewer (seen: 4, then 2, then 4 threads; two of the last team were new) and makes new ones with
 * the caller's mask, so a caller bound to one core would in time draw its whole team there. The
 * kernel spreads as many threads as cores by itself, and moves one away from a core that I/O wants,
 * where a bound thread would hold its whole team up.
 *
 * Where the user has OpenMP bind its threads, that is left as it is and nothing is bound here. An
 * error as thread_bind's, of the first thread that failed. OpenMP's runtime allocates; nothing of
 * ours does. */
int thread_bind_team(const core_set *cores, uint32_t thread_count) MUST_CHECK;

/* Ends the threads of the calling thread's OpenMP team, if it has one; a later region makes new
 * ones. For a thread that has done its own computing: GCC's runtime lets waiting threads spin for
 * microseconds only, in place of milliseconds, while a process has more OpenMP threads than cores,
 * idle ones included, and the team that computes then sleeps and wakes at each region. Does nothing
 * within a region. */
void thread_end_team(void);

#endif
