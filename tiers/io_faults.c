/* Simulated faults, between io.c and any backend: they do what drives and kernels do on bad days.
 * The seed and the number of a transfer decide. Owner thread only; allocates nothing. Tests use
 * them to prove that requests survive short and interrupted transfers, and that errors stop what
 * they must. */
#include <errno.h>

#include "base/log.h"
#include "base/rng.h"
#include "base/size.h"
#include "tiers/io_internal.h"

enum fault_stream { STREAM_KIND, STREAM_SIZE, STREAM_BIT, STREAM_LATENCY };

enum { FAULT_BLOCK_BYTES = 4096, FAULT_RATE_UNIT = 1000, FAULT_LATENCY_US_DEFAULT = 1000 };

static const char *const kind_names[IO_FAULT_KIND_COUNT] = {
    [IO_FAULT_NONE] = "none", [IO_FAULT_SHORT] = "short",     [IO_FAULT_RETRY] = "retry",
    [IO_FAULT_EIO] = "eio",   [IO_FAULT_TORN] = "torn",       [IO_FAULT_ENOSPC] = "enospc",
    [IO_FAULT_FLIP] = "flip", [IO_FAULT_LATENCY] = "latency", [IO_FAULT_STUCK] = "stuck",
};

const char *io_fault_kind_name(enum io_fault_kind kind)
{
    return (unsigned)kind < IO_FAULT_KIND_COUNT ? kind_names[kind] : "unknown";
}

static uint64_t draw(const tieri_faults *self, enum fault_stream stream, uint64_t number,
                     uint64_t bound)
{
    return rng_below(self->config.seed, (uint64_t)stream, number, bound);
}

/* True if this kind of fault can happen to a transfer of this direction. */
static bool applies(enum io_fault_kind kind, enum io_direction direction)
{
    if (kind == IO_FAULT_TORN || kind == IO_FAULT_ENOSPC)
        return direction == IO_WRITE;
    return kind != IO_FAULT_FLIP || direction == IO_READ;
}

static enum io_fault_kind choose(const tieri_faults *self, uint64_t number,
                                 enum io_direction direction)
{
    const io_faults *rates = &self->config;
    if (rates->at_transfer == number)
        return applies(rates->at_kind, direction) ? rates->at_kind : IO_FAULT_NONE;
    const struct {
        enum io_fault_kind kind;
        uint32_t rate;
    } table[] = {
        {IO_FAULT_SHORT, rates->short_rate},   {IO_FAULT_RETRY, rates->retry_rate},
        {IO_FAULT_EIO, rates->eio_rate},       {IO_FAULT_TORN, rates->torn_rate},
        {IO_FAULT_ENOSPC, rates->enospc_rate}, {IO_FAULT_FLIP, rates->flip_rate},
        {IO_FAULT_STUCK, rates->stuck_rate},
    };
    uint64_t at = draw(self, STREAM_KIND, number, FAULT_RATE_UNIT);
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        uint32_t rate = applies(table[i].kind, direction) ? table[i].rate : 0;
        if (at < rate)
            return table[i].kind;
        at -= rate;
    }
    return IO_FAULT_NONE;
}

/* A number of whole blocks, fewer than asked. One block cannot be cut. */
static uint64_t part_of(const tieri_faults *self, const tieri_transfer *item)
{
    uint64_t blocks = item->left_bytes / FAULT_BLOCK_BYTES;
    if (blocks < 2)
        return item->left_bytes;
    return (1 + draw(self, STREAM_SIZE, item->number, blocks - 1)) * FAULT_BLOCK_BYTES;
}

bool tieri_faults_before(tieri_faults *self, tieri_transfer *item)
{
    item->number = ++self->number;
    item->fault = choose(self, item->number, item->direction);
    item->release_ns = 0;
    item->parked = false;
    switch (item->fault) {
    case IO_FAULT_SHORT:
    case IO_FAULT_TORN:
        item->ask_bytes = part_of(self, item);
        return true;
    case IO_FAULT_RETRY:
        item->result = item->number % 2 ? -EINTR : -EAGAIN;
        break;
    case IO_FAULT_ENOSPC:
        item->result = -ENOSPC;
        break;
    case IO_FAULT_STUCK:
        item->parked = true;
        item->release_ns =
            self->config.stuck_us ? clock_ns() + 1000 * self->config.stuck_us : UINT64_MAX;
        break;
    default:
        return true;
    }
    tieri_list_push(&self->held, item);
    return false;
}

bool tieri_faults_after(tieri_faults *self, tieri_transfer *item)
{
    if (item->fault == IO_FAULT_EIO || item->fault == IO_FAULT_TORN)
        item->result = -EIO;
    if (item->fault == IO_FAULT_FLIP && item->result > 0) {
        uint64_t bit = draw(self, STREAM_BIT, item->number, 8 * (uint64_t)item->result);
        item->data[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    uint64_t wait_us = 0, most_us = self->config.latency_us_max;
    if (item->fault == IO_FAULT_LATENCY)
        wait_us = most_us ? most_us : FAULT_LATENCY_US_DEFAULT;
    else if (most_us)
        wait_us = draw(self, STREAM_LATENCY, item->number, most_us + 1);
    else
        return false;
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
    for (tieri_transfer *at = self->held.first; at; before = at, at = at->next)
        if (at->release_ns <= now_ns)
            return tieri_list_take(&self->held, before);
    return NULL;
}

uint64_t tieri_faults_next_ns(const tieri_faults *self)
{
    uint64_t next_ns = UINT64_MAX;
    for (const tieri_transfer *at = self->held.first; at; at = at->next)
        next_ns = size_min(next_ns, at->release_ns);
    return next_ns;
}
