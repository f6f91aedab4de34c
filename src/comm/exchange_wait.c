/* Waiting for other ranks, with a limit: asleep on a shared counter, or between tests of MPI's
 * requests. See exchange_internal.h. */
#include "base/size.h"
#include "comm/exchange_internal.h"

enum {
    WAIT_ASLEEP_NS = 500000000, /* then it checks whether another rank has failed */
    WAIT_POLL_NS_MIN = 50000,   /* MPI makes progress only while it is called */
    WAIT_POLL_NS_MAX = 1000000,
};

struct patience {
    int64_t start_ns; /* 0: the wait has not begun */
    int64_t said_ns;  /* when the hub was last told of a long wait */
    /* Length of the next sleep. backoff_pause (base/thread.h) is no help here. With ranks of other
     * hosts this also limits a sleep on a shared counter, which another rank may end early. And a
     * wait must not spin anew, since ranks may share cores. */
    uint64_t sleep_ns;
};
typedef struct patience patience;

/* Called between two looks. 0, or the failure that ends the wait for rank p. */
static int go_on(exchange *self, patience *state, uint32_t p, const char *label)
{
    comm *group = self->group;
    if (commi_is_aborted(group))
        return commi_abort_error(group);
    int64_t now_ns = commi_now_ns(), timeout_ns = commi_timeout_ns(group);
    if (state->start_ns == 0) {
        state->start_ns = now_ns;
        atomic_store(&group->waits, true);
    } else if (now_ns - state->start_ns > timeout_ns && now_ns - state->said_ns > timeout_ns / 10) {
        state->said_ns = now_ns;
        commi_say_waiting(group, p, label);
    }
    state->sleep_ns =
        state->sleep_ns == 0 ? WAIT_POLL_NS_MIN : size_min(2 * state->sleep_ns, WAIT_POLL_NS_MAX);
    return 0;
}

static void end_wait(exchange *self, const patience *state)
{
    if (state->start_ns != 0)
        atomic_store(&self->group->waits, false);
}

/* Calls MPI, which sends large messages only while it is called. Otherwise this rank could sleep
 * for a rank of its host while a rank of another host waits for this rank's message. */
static int move_on(exchange *self)
{
    for (uint32_t p = 0; self->has_remote && p < self->group->world; p++) {
        for (int half = 0; half < 2; half++) {
            bool is_done;
            if (self->peers[p].sends[half].is_active)
                TRY(commi_mpi_test(&self->peers[p].sends[half], &is_done));
        }
    }
    return 0;
}

static int wait_word(exchange *self, segment_word *word, uint32_t round, uint32_t p,
                     const char *label)
{
    patience state = {0};
    uint64_t spin_ns = self->spin_ns;
    while (!segment_wait(word, round, spin_ns,
                         self->has_remote ? size_max(state.sleep_ns, 1) : WAIT_ASLEEP_NS)) {
        spin_ns = 0;
        TRY(move_on(self));
        TRY(go_on(self, &state, p, label));
    }
    end_wait(self, &state);
    return 0;
}

static int wait_request(exchange *self, commi_request *request, uint32_t p, const char *label)
{
    patience state = {0};
    for (;;) {
        bool is_done;
        TRY(commi_mpi_test(request, &is_done));
        if (is_done) {
            end_wait(self, &state);
            return 0;
        }
        TRY(go_on(self, &state, p, label));
        commi_sleep_ns((int64_t)state.sleep_ns);
    }
}

int exchangei_wait_published(exchange *self, uint32_t p, uint32_t round, const char *label)
{
    exchange_peer *peer = &self->peers[p];
    if (peer->is_remote)
        return wait_request(self, &peer->receives[round & 1], p, label);
    return wait_word(self, &peer->shared.page->published, round, p, label);
}

int exchangei_wait_free(exchange *self, uint32_t round, const char *label)
{
    for (uint32_t p = 0; p < self->group->world; p++) {
        exchange_peer *peer = &self->peers[p];
        if (p == self->group->rank)
            continue;
        if (peer->is_remote)
            TRY(wait_request(self, &peer->sends[round & 1], p, label));
        else
            TRY(wait_word(self, &peer->shared.page->consumed, round - 2, p, label));
    }
    return 0;
}
