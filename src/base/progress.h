/* How far this process has come, as one number that others can watch. Code that has advanced a long
 * piece of work adds one. A reader that looks from time to time sees whether the process makes
 * progress or hangs. These parts count:
 *
 *   lanes      an op is done                          (swap/executor.c)
 *   arenas     a part is mapped                       (tiers/arena.c)
 *   drives     a transfer is done                     (tiers/io.c)
 *   files      a part of a file is read or written    (src/base, src/format)
 *   ranks      a call of the control plane has begun or ended, or a round of a collective
 *              is done                                (src/comm)
 *
 * Code that waits, polls or tries again does not count, because the number of a process that hangs
 * must stand still. So each piece of work either counts its parts or takes less than
 * comm.timeout_seconds. Any thread. */
#ifndef SLUICE_BASE_PROGRESS_H
#define SLUICE_BASE_PROGRESS_H

#include <stdatomic.h>
#include <stdint.h>

extern _Atomic uint64_t base_progress; /* in trace.c; only the functions below use it */

static inline void progress_note(void)
{
    atomic_fetch_add_explicit(&base_progress, 1, memory_order_relaxed); /* orders nothing */
}

static inline uint64_t progress_count(void)
{
    return atomic_load_explicit(&base_progress, memory_order_relaxed);
}

#endif
