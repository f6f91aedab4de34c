/* What the simulated drive's bytes (sim.c) offer to its queue (io_sim.c). */
#ifndef SLUICE_TIERS_SIM_INTERNAL_H
#define SLUICE_TIERS_SIM_INTERNAL_H

#include "tiers/io_internal.h"
#include "tiers/sim.h"

/* -EINVAL where the store was made for drives of other number or size. */
int tieri_sim_check(const sim_store *self, const slab *target) MUST_CHECK;

/* Moves up to ask_bytes between the transfer's memory and its place; the bytes moved, 0 beyond the end
 * for a read, or -errno. */
int64_t tieri_sim_move(sim_store *self, const tieri_transfer *item);

/* The store that the simulated queue of this state moves bytes of. */
sim_store *tieri_sim_store(void *state);

#endif
