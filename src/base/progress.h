/* How far this process has come, as one number that others can watch. Code that has advanced a long
 * piece of work counts it up; a reader that looks now and then sees whether the process goes on or
 * stands still. The counters are:
 *
 *   lanes      an op is done                      (swap/executor.c)
 *   arenas     a part is mapped                  (tiers/arena.c)
 *   drives     a transfer is done                 (tiers/io.c)
 *              a part of a copy is done           (tiers/slab_copy.c)
 *   files      a part of a file is read           (base/file.c, data/formats.c)
 *   ranks      a call of the control plane has begun or ended, or a round of a collective
 *              is done                            (src/comm)
 *
 * Code that waits, polls or tries again does not count: a process that hangs must stand still. So a
 * piece of work is split, or it is shorter than comm.timeout_seconds. Any thread. */
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
