/* The exchange: collectives in rounds, for host memory (mpi) and for a GPU's memory (staged).
 *
 *   own segment   [ page ][ half 0 ............ ][ half 1 ............ ]      rounds alternate
 *   a half        all-gather: [ slot for all ]  others: [ slot for each reader ][ ... ]
 *   a slot        [ head ][ chunk ]                as it travels to another host
 *   inbox         [ slot from each rank of another host ] twice
 *
 * Rounds are numbered through all collectives and wrap at 2^32. Round k:
 *
 *   publish(k)  wait until all ranks of this host have consumed k - 2 and its messages have left;
 *               write half k & 1; set published = k; send the slots of ranks on other hosts
 *   read(k)     wait for round k of each rank and compare its head; copy or sum in rank order;
 *               set consumed = k
 *
 * A collective publishes one round ahead of what it reads, so ranks need not run in step. All ranks
 * read all other ranks in every round, so no rank is ever more than two rounds ahead; that also
 * bounds what MPI may have to hold. Slots and chunks have the same size on all ranks. Everything is
 * allocated at open. */
#ifndef SLUICE_COMM_EXCHANGE_INTERNAL_H
#define SLUICE_COMM_EXCHANGE_INTERNAL_H

#include "comm/comm_internal.h"
#include "comm/segment.h"
#include "comm/sum.h"
#include "tiers/device.h"

enum exchange_kind { EXCHANGE_GATHER, EXCHANGE_REDUCE, EXCHANGE_PARCELS };

struct exchange_peer {
    segment shared;          /* mapped if the rank is on this host */
    bool is_remote;          /* on another host */
    unsigned char *inbox[2]; /* [slot_bytes] for the rounds of a remote rank */
    commi_request receives[2], sends[2];
};
typedef struct exchange_peer exchange_peer;

struct staged; /* staged.c */

struct exchange {
    comm *group;
    const sum_loops *loops;
    struct staged *gpu;   /* NULL: calls use host memory */
    exchange_peer *peers; /* [world]; [own rank] is this rank's segment */
    unsigned char *inboxes;
    uint64_t half_bytes;
    uint64_t gather_slot_bytes, reduce_slot_bytes; /* including the heads */
    uint64_t spin_ns;
    uint32_t round;  /* the last published round */
    bool has_remote; /* this rank reads ranks of other hosts */
};
typedef struct exchange exchange;

/* exchange_round.c: runs one collective; `gpu` NULL: in host memory. */
int exchangei_run(exchange *self, struct staged *gpu, enum exchange_kind kind,
                  const comm_call *call) MUST_CHECK;
/* An all-to-all. A chunk begins with an exchange_lead, from which all ranks learn the number of
 * rounds in the first one. */
int exchangei_run_parcels(exchange *self, struct staged *gpu, const comm_parcels *call) MUST_CHECK;
/* Elements that one round of a reduce-scatter moves for each rank. */
uint64_t exchangei_reduce_chunk(const exchange *self, bool is_staged, enum dtype wire);
/* exchange_wait.c: waits until rank p has published the round. */
int exchangei_wait_published(exchange *self, uint32_t p, uint32_t round,
                             const char *label) MUST_CHECK;
/* Waits until the half of this round may be written: all ranks of this host have read it, and its
 * messages to other hosts have left. */
int exchangei_wait_free(exchange *self, uint32_t round, const char *label) MUST_CHECK;

/* staged.c: copies between the GPU and pinned host memory. `chunk_bytes`: the longest chunk. */
int stagedi_open(exchange *owner, struct device *gpu, uint64_t chunk_bytes,
                 struct staged **out) MUST_CHECK;
void stagedi_close(struct staged *self);
int stagedi_attach(struct staged *self) MUST_CHECK; /* once per collective */
int stagedi_copy(struct staged *self, void *target, const void *source, uint64_t bytes,
                 enum device_direction way) MUST_CHECK;
int stagedi_finish(struct staged *self) MUST_CHECK;          /* waits for all copies */
float *stagedi_outgoing(struct staged *self, uint32_t slot); /* [chunk], one per reader */
float *stagedi_own(struct staged *self, uint32_t round);     /* [chunk], one per round */
float *stagedi_total(struct staged *self);                   /* [chunk] */
uint64_t stagedi_held_bytes(const struct staged *self);

#endif
