/* Times of a program's ops when some of them are left out. Pure. */
#ifndef SLUICE_PLAN_WAITS_INTERNAL_H
#define SLUICE_PLAN_WAITS_INTERNAL_H

#include "plan/plan.h"

/* Times the program's ops again, in its own order, without those left out: they are done from the
 * start. Fills start and end of the others, and the length of the whole. -ENOMEM. */
int plani_replay(const plan_machine *machine, const program *prog, const bool *is_left_out,
                 uint64_t *start_ns, uint64_t *end_ns, uint64_t *length_ns) MUST_CHECK;

#endif
