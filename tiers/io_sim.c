/* The simulated drive's queue: transfers complete in an order drawn from the seed, in virtual time. Owner
 * thread only; allocates at open. See sim.h.
 *
 *   submit ─► staged ─flush─► flying (each with its virtual due time) ─reap, earliest first─► owner
 *
 * A flush with transfers flying says how many of them complete before the next one, at least one, and
 * makes event_fd readable: so each round of the owner brings something, its sleep ends at once, and yet
 * what is submitted later can overtake. The bytes move at reap. */
#include <errno.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/size.h"
#include "tiers/sim_internal.h"

enum { SIM_SPREAD = 1000 }; /* of due times, in virtual ticks; a flush is one tick */

enum sim_stream { SIM_STREAM_DUE = 100, SIM_STREAM_BUDGET };

struct sim_state {
    sim_store *store;
    sim_store *own_store; /* the same, where it goes with the queue; else NULL */
    int event_fd;
    uint64_t seed;
    uint64_t number;      /* transfers taken */
    uint64_t round;       /* flushes with transfers flying */
    uint64_t now;         /* virtual: due time of the latest completion */
    uint64_t ready_count; /* completions until the next flush */
    uint32_t flying_count;
    tieri_list staged, flying;
};
typedef struct sim_state sim_state;

static uint64_t sim_span(void *state, const void *data, uint64_t size_bytes)
{
    (void)state;
    (void)data;
    return size_bytes;
}

static void sim_submit(void *state, tieri_transfer *item)
{
    tieri_list_push(&((sim_state *)state)->staged, item);
}

static int sim_flush(void *state)
{
    sim_state *self = state;
    for (tieri_transfer *item; (item = tieri_list_pop(&self->staged)); self->flying_count++) {
        item->due =
            self->now + 1 + rng_below(self->seed, SIM_STREAM_DUE, self->number++, SIM_SPREAD);
        tieri_list_push(&self->flying, item);
    }
    self->ready_count = 0;
    if (self->flying_count == 0)
        return 0;
    self->ready_count =
        1 + rng_below(self->seed, SIM_STREAM_BUDGET, self->round++, self->flying_count);
    uint64_t one = 1;
    while (write(self->event_fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
    return 0;
}

static tieri_transfer *sim_reap(void *state)
{
    sim_state *self = state;
    if (self->ready_count == 0 || !self->flying.first)
        return NULL;
    tieri_transfer *before = NULL, *before_best = NULL, *best = self->flying.first;
    for (tieri_transfer *at = best; at; before = at, at = at->next)
        if (at->due < best->due) {
            best = at;
            before_best = before;
        }
    if (before_best)
        before_best->next = best->next;
    else
        self->flying.first = best->next;
    if (self->flying.last == best)
        self->flying.last = before_best;
    self->flying_count--;
    self->ready_count--;
    self->now = size_max(self->now, best->due);
    best->result = tieri_sim_move(self->store, best);
    return best;
}

sim_store *tieri_sim_store(void *state)
{
    return ((sim_state *)state)->store;
}

static bool sim_close(void *state, bool hung)
{
    (void)hung; /* memory answers */
    sim_state *self = state;
    sim_store_destroy(self->own_store);
    mem_free(self);
    return true;
}

int tieri_sim_open(const tieri_backend_config *config, io_stats *stats, void **state)
{
    *state = NULL;
    stats->files_registered = stats->buffers_registered = false;
    if (config->store)
        TRY(tieri_sim_check(config->store, config->target));
    sim_state *self = mem_alloc(1, sizeof *self, "io simulated");
    if (!self)
        return -ENOMEM;
    int rc = config->store ? 0 : sim_store_create(config->target, true, &self->own_store);
    if (rc < 0) {
        mem_free(self);
        return rc;
    }
    self->store = config->store ? config->store : self->own_store;
    self->event_fd = config->event_fd;
    self->seed = config->seed;
    *state = self;
    return 0;
}

const tieri_backend tieri_sim_backend = {
    .span = sim_span,
    .submit = sim_submit,
    .flush = sim_flush,
    .reap = sim_reap,
    .close = sim_close,
};
