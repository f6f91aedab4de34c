/* The exchange: all-gather and reduce-scatter in rounds, for host memory (mpi) and a GPU's
 * (staged).
 *
 *   own segment   [ page ][ half 0 ............ ][ half 1 ............ ]      rounds alternate
 *   a half        all-gather: [ slot for all ]  reduce-scatter: [ slot for each reader ][ ... ]
 *   a slot        [ head ][ chunk ]                as it travels to another host
 *   inbox         [ slot from each rank of another host ] twice
 *
 * A round k, numbered on through all collectives, wrapping at 2^32:
 *
 *   publish(k)  wait until all ranks of this host have consumed k - 2 and its messages have left;
 *               write half k & 1; published = k; send the slots of other hosts' ranks
 *   read(k)     wait for each rank's k, compare its head; copy or sum, in rank order; consumed = k
 *
 * A collective publishes one round ahead of what it reads, so that ranks need not go in step. All
 * ranks read all others in every round, so none is ever more than two rounds ahead, and what MPI
 * may have to hold is bounded by that. Slots and chunks are the same on all ranks. Everything is
 * allocated at open. */
#ifndef SLUICE_COMM_EXCHANGE_INTERNAL_H
#define SLUICE_COMM_EXCHANGE_INTERNAL_H

#include "comm/comm_internal.h"
#include "comm/segment.h"
#include "comm/sum.h"

enum exchange_kind { EXCHANGE_GATHER, EXCHANGE_REDUCE };
enum exchange_way { EXCHANGE_TO_HOST, EXCHANGE_FROM_HOST, EXCHANGE_WITHIN };

struct exchange_peer {
    segment shared;          /* mapped: a rank of this host (or this one) */
    bool is_remote;          /* on another host */
    unsigned char *inbox[2]; /* [slot_bytes] of a remote rank's rounds */
    commi_request receives[2], sends[2];
};
typedef struct exchange_peer exchange_peer;

struct staged; /* staged.c */

struct exchange {
    comm *group;
    const sum_loops *loops;
    struct staged *gpu;   /* NULL: calls are of host memory */
    exchange_peer *peers; /* [world]; [own rank] is this rank's segment */
    unsigned char *inboxes;
    uint64_t half_bytes;
    uint64_t gather_slot_bytes, reduce_slot_bytes; /* heads included */
    uint64_t spin_ns;
    uint32_t round;  /* the last that is published */
    bool has_remote; /* this rank reads ranks of other hosts */
};
typedef struct exchange exchange;

/* exchange_round.c: one collective, of calls in host memory where `gpu` is NULL. */
int exchangei_run(exchange *self, struct staged *gpu, enum exchange_kind kind,
                  const comm_call *call) MUST_CHECK;
uint64_t exchangei_reduce_chunk(const exchange *self, bool is_staged, enum dtype wire);
/* exchange_wait.c: until p's round is there, until p has read it, until its message has left. */
int exchangei_wait_published(exchange *self, uint32_t p, uint32_t round,
                             const char *label) MUST_CHECK;
int exchangei_wait_free(exchange *self, uint32_t round, const char *label) MUST_CHECK;
int exchangei_post(exchange *self, uint32_t p, uint32_t round, const void *slot,
                   uint64_t bytes) MUST_CHECK;
int exchangei_expect(exchange *self, uint32_t p, uint32_t round, uint64_t bytes) MUST_CHECK;

/* staged.c: copies between the GPU and host memory that is pinned. */
int stagedi_open(exchange *self, struct device *gpu, struct staged **out) MUST_CHECK;
void stagedi_close(struct staged *self);
int stagedi_attach(struct staged *self) MUST_CHECK; /* the calling thread, once a collective */
int stagedi_copy(struct staged *self, void *target, const void *source, uint64_t bytes,
                 enum exchange_way way) MUST_CHECK;
int stagedi_finish(struct staged *self) MUST_CHECK;          /* waits for all copies */
float *stagedi_outgoing(struct staged *self, uint32_t slot); /* [chunk] for each reader */
float *stagedi_own(struct staged *self, uint32_t round);     /* [chunk] of a round */
float *stagedi_total(struct staged *self);                   /* [chunk] */
uint64_t stagedi_held_bytes(const struct staged *self);

#endif
