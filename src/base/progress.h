/* How far this process has come, as one number that others can watch: whoever has got on with work that may take
 * long says so, and who asks now and then sees whether it goes on or stands still.
 *
 *   lanes      an op is done                      (swap/executor.c)
 *   arenas     a part is mapped                  (tiers/arena.c)
 *   drives     a transfer is done                 (tiers/io.c), a part of a copy (tiers/slab_copy.c)
 *   data       a part of a file is read           (data/formats.c)
 *   ranks      a call of the control plane has begun or ended, a round of a collective is through (src/comm)
 *
 * What waits, polls or tries again says nothing: a process that hangs must stand still. So work of one piece is to
 * be split, or to be shorter than comm.timeout_seconds. Any thread. */
#ifndef SLUICE_BASE_PROGRESS_H
#define SLUICE_BASE_PROGRESS_H

#include <stdatomic.h>
#include <stdint.h>

extern _Atomic uint64_t base_progress; /* by the functions below alone */

static inline void progress_note(void)
{
    atomic_fetch_add_explicit(&base_progress, 1, memory_order_relaxed); /* orders nothing */
}

static inline uint64_t progress_count(void)
{
    return atomic_load_explicit(&base_progress, memory_order_relaxed);
}

#endif
