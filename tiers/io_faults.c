/* The simulated drive: sits between io.c and a real backend and does what drives and kernels do on bad
 * days, decided by seed and transfer number alone. Owner thread only; allocates nothing. Tests use it to
 * prove that requests survive short and interrupted transfers, and that errors stop what they must. */
#include <errno.h>

#include "base/log.h"
#include "base/rng.h"
#include "base/size.h"
#include "tiers/io_internal.h"

enum fault_kind {
    FAULT_NONE,
    FAULT_SHORT,  /* fewer bytes than asked */
    FAULT_RETRY,  /* EINTR or EAGAIN */
    FAULT_EIO,    /* fails after moving all */
    FAULT_TORN,   /* writes a part, then fails */
    FAULT_ENOSPC, /* writes nothing */
    FAULT_FLIP    /* a wrong bit, unreported */
};

enum fault_stream { STREAM_KIND, STREAM_SIZE, STREAM_BIT, STREAM_LATENCY };

enum { FAULT_BLOCK_BYTES = 4096, FAULT_RATE_UNIT = 1000 };

static uint64_t draw(const tieri_faults *self, enum fault_stream stream, uint64_t number,
                     uint64_t bound)
{
    return rng_below(self->config.seed, (uint64_t)stream, number, bound);
}

static enum fault_kind choose(const tieri_faults *self, uint64_t number,
                              enum io_direction direction)
{
    const io_faults *rates = &self->config;
    bool writes = direction == IO_WRITE;
    const struct {
        enum fault_kind kind;
        uint32_t rate;
    } table[] = {
        {FAULT_SHORT, rates->short_rate},
        {FAULT_RETRY, rates->retry_rate},
        {FAULT_EIO, rates->eio_rate},
        {FAULT_TORN, writes ? rates->torn_rate : 0},
        {FAULT_ENOSPC, writes ? rates->enospc_rate : 0},
        {FAULT_FLIP, writes ? 0 : rates->flip_rate},
    };
    uint64_t at = draw(self, STREAM_KIND, number, FAULT_RATE_UNIT);
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (at < table[i].rate)
            return table[i].kind;
        at -= table[i].rate;
    }
    return FAULT_NONE;
}

/* Some whole blocks, fewer than asked; one block cannot be cut. */
static uint64_t part_of(const tieri_faults *self, const tieri_transfer *item)
{
    uint64_t blocks = item->left_bytes / FAULT_BLOCK_BYTES;
    if (blocks < 2)
        return item->left_bytes;
    return (1 + draw(self, STREAM_SIZE, item->number, blocks - 1)) * FAULT_BLOCK_BYTES;
}

bool tieri_faults_before(tieri_faults *self, tieri_transfer *item)
{
    item->number = self->number++;
    item->fault = (int)choose(self, item->number, item->direction);
    item->release_ns = 0;
    switch (item->fault) {
    case FAULT_SHORT:
    case FAULT_TORN:
        item->ask_bytes = part_of(self, item);
        return true;
    case FAULT_RETRY:
        item->result = item->number % 2 ? -EINTR : -EAGAIN;
        break;
    case FAULT_ENOSPC:
        item->result = -ENOSPC;
        break;
    default:
        return true;
    }
    tieri_list_push(&self->held, item);
    return false;
}

bool tieri_faults_after(tieri_faults *self, tieri_transfer *item)
{
    if (item->fault == FAULT_EIO || item->fault == FAULT_TORN)
        item->result = -EIO;
    if (item->fault == FAULT_FLIP && item->result > 0) {
        uint64_t bit = draw(self, STREAM_BIT, item->number, 8 * (uint64_t)item->result);
        item->data[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    if (self->config.latency_us_max == 0)
        return false;
    uint64_t wait_us = draw(self, STREAM_LATENCY, item->number, self->config.latency_us_max + 1ull);
    item->release_ns = clock_ns() + 1000 * wait_us;
    tieri_list_push(&self->held, item);
    return true;
}

bool tieri_faults_broken(const tieri_faults *self)
{
    return self->config.break_after > 0 && self->number >= self->config.break_after;
}

tieri_transfer *tieri_faults_release(tieri_faults *self)
{
    uint64_t now_ns = clock_ns();
    tieri_transfer *before = NULL;
    for (tieri_transfer *at = self->held.first; at; before = at, at = at->next) {
        if (at->release_ns > now_ns)
            continue;
        if (before)
            before->next = at->next;
        else
            self->held.first = at->next;
        if (self->held.last == at)
            self->held.last = before;
        return at;
    }
    return NULL;
}
