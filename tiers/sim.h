/* The simulated drive: a complete backend beside io_uring and the pool, for tests.
 *
 *   io (backend IO_SIM) ─ transfers ─► in flight ─(virtual time, drawn from the seed)─► sim_store
 *
 * It has the same interface, splitting into transfers, queue depth and faults as the other
 * backends, but the bytes of each drive lie in memory. A transfer's bytes move when it completes,
 * not when it is submitted, and completions come in an order drawn from io_faults.seed (0 without
 * faults). So a program that uses memory too early meets wrong bytes. Time is virtual: each io_poll
 * with transfers in flight completes some of them, and io_event_fd stays readable until none is
 * left. To wait in real time use io_faults.latency_us_max and the stuck fault.
 *
 * The slab says where bytes lie; its files are neither read nor written. A run that is to be
 * resumed needs a store that outlives the io. The io's thread makes all calls; any thread may call
 * sim_store_sync. */
#ifndef SLUICE_TIERS_SIM_H
#define SLUICE_TIERS_SIM_H

#include <stdbool.h>

#include "base/error.h"
#include "tiers/slab.h"

typedef struct sim_store sim_store;

/* Makes the bytes of the slab's drives, all zero. The store does not keep `target`, which may be
 * closed and reopened. -ENOMEM. */
int sim_store_create(const slab *target, sim_store **out) MUST_CHECK;
/* Makes drives that keep no bytes, for state that no machine here could hold. A read leaves memory
 * as it is, and a write changes nothing. Time is virtual here too; paced lanes over such drives are
 * drives of a stated speed (tests/swap/lane_pace.h). Only three of the calls below may be
 * made: sim_store_destroy, sim_store_cut and sim_store_sync. -ENOMEM. */
int sim_store_create_empty(const slab *target, sim_store **out) MUST_CHECK;
void sim_store_destroy(sim_store *self); /* after the io that uses it; NULL is allowed */

/* Cuts the drive's file to `size_bytes`, header included: reads beyond meet the end of the file,
 * writes beyond meet ENOSPC. A later call may make it longer, up to the slab's size. */
void sim_store_cut(sim_store *self, uint32_t drive_idx, uint64_t size_bytes);

/* Reads or changes bytes without the queue, to simulate data corruption: `size_bytes` from
 * `offset` of the drive's file, all within the slab's size. */
void sim_store_get(const sim_store *self, uint32_t drive_idx, uint64_t offset, void *data,
                   uint64_t size_bytes);
void sim_store_put(sim_store *self, uint32_t drive_idx, uint64_t offset, const void *data,
                   uint64_t size_bytes);

/* Loss of power. After sim_store_cache, the queue's writes go to the drive's cache first: reads see
 * them, but only sim_store_sync makes them durable. sim_store_lose_power then decides, from `seed`,
 * what survives of the writes since the last sync: each 512-byte sector holds its content at the
 * sync or that of any one write to it since. So writes are torn, reordered and lost; how many are
 * lost is drawn too, between all and none. The cache is empty afterwards. Bytes from sim_store_put
 * do not go through the cache.
 *
 * Another thread may sync while the owner moves bytes; without a cache a sync does nothing. Power
 * is lost on the owner's thread, while no sync runs. -ENOMEM for the log, which grows with the
 * writes between two syncs; -EINVAL for a loss without a cache. */
void sim_store_cache(sim_store *self);
void sim_store_sync(sim_store *self);
int sim_store_lose_power(sim_store *self, uint64_t seed) MUST_CHECK;

#endif
