/* The simulated drive: a full part beside io_uring and the pool, for tests.
 *
 *   io (backend IO_SIM) ─ transfers ─► in flight ─(virtual time, drawn from the seed)─► sim_store
 *
 * It has the same interface, the same splitting into transfers, the same queue depth and the same faults
 * as the other backends, but the bytes of each drive lie in memory. A transfer's bytes move when it
 * completes, not when it is submitted, and completions come in an order drawn from io_faults.seed (0
 * without faults): so a program that uses memory too early meets wrong bytes. Time is virtual: each
 * io_poll with transfers in flight completes some of them, and io_event_fd stays readable until none is
 * left. Waiting in real time is what io_faults.latency_us_max and the stuck fault are for.
 *
 * The slab says where bytes lie. It may be one with real files (slab_open), which are then neither read
 * nor written, or one without any (sim_slab_init). The engine does the former: it opens its slabs as ever
 * and passes {.backend = IO_SIM} to io_create, with or without a store of its own; fdatasync of the
 * slabs' files then says nothing, and what is to be resumed needs a store that outlives the io.
 * One thread, that of the io; sim_store_sync any. */
#ifndef SLUICE_TIERS_SIM_H
#define SLUICE_TIERS_SIM_H

#include <stdbool.h>

#include "base/error.h"
#include "tiers/slab.h"

typedef struct sim_store sim_store;

/* The bytes of the slab's drives, all zero. `whole`: all memory is taken now, and nothing allocates
 * later; else in pieces of 256 KiB when they are first written, by base/mem. The store does not keep
 * `target`, which may be closed and reopened. -ENOMEM. */
int sim_store_create(const slab *target, bool whole, sim_store **out) MUST_CHECK;
void sim_store_destroy(sim_store *self); /* NULL is allowed; after the io that uses it */

/* As if the drive's file had been cut to `size_bytes` (header included) by somebody: reads beyond meet
 * the end of the file, writes beyond ENOSPC. A later call may make it longer, up to the slab's size. */
void sim_store_cut(sim_store *self, uint32_t drive_idx, uint64_t size_bytes);

/* Reads or changes bytes behind the queue's back, as rot does: `size_bytes` from `offset` of the drive's
 * file, all within the slab's size. -ENOMEM for a sparse store that cannot grow. */
void sim_store_get(const sim_store *self, uint32_t drive_idx, uint64_t offset, void *data,
                   uint64_t size_bytes);
int sim_store_put(sim_store *self, uint32_t drive_idx, uint64_t offset, const void *data,
                  uint64_t size_bytes) MUST_CHECK;

/* Loss of power. From sim_store_cache on, what the queue writes is first in the drive's cache: reads see it,
 * but only sim_store_sync makes it last. sim_store_lose_power is the moment after: of the writes since the
 * last sync, in an order and to an extent drawn from `seed`, each 512-byte sector has either its content at
 * the sync or that of any one of the writes to it since (so writes are torn, reordered and lost); then the
 * cache is empty again. How much is lost is drawn as well, between all and nothing. What sim_store_put
 * changes is not in the cache.
 * Sync may come from another thread while the owner moves bytes, and does nothing without a cache; power is
 * lost on the owner's thread, with no sync under way. -ENOMEM for the log, which grows with the writes
 * between two syncs; -EINVAL for a loss without a cache. */
int sim_store_cache(sim_store *self) MUST_CHECK;
void sim_store_sync(sim_store *self);
int sim_store_lose_power(sim_store *self, uint64_t seed) MUST_CHECK;

/* A slab without files: the drives' paths are names only ("<path>/sluice-<uuid>/rank-..."), budgets and
 * weights share the stripes as slab_open would with free space without limit. Needs no slab_close, and
 * slab_sync, slab_remove and backends other than IO_SIM must not be used with it. About 100 KiB, as any
 * slab. -EINVAL, -ENAMETOOLONG; ERR_NO_FIT where the budgets do not hold total_bytes. */
int sim_slab_init(slab *out, const slab_config *config) MUST_CHECK;

#endif
