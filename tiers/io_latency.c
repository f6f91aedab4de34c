/* Histograms of latencies. See io_latency.h. Integer arithmetic except for `share`; allocates
 * nothing. */
#include "tiers/io_latency.h"

#include <assert.h>
#include <stdbool.h>

#include "base/size.h"

static_assert(IO_LATENCY_OCTAVE_FIRST >= IO_LATENCY_PARTS_LOG2, "parts are whole nanoseconds");

static uint32_t bucket_of(uint64_t ns)
{
    const uint64_t first_ns = (uint64_t)1 << IO_LATENCY_OCTAVE_FIRST;
    if (ns < first_ns)
        return 0;
    uint32_t log2 = 63 - (uint32_t)__builtin_clzll(ns);
    uint32_t octave = log2 - IO_LATENCY_OCTAVE_FIRST;
    if (octave >= IO_LATENCY_OCTAVES)
        return IO_LATENCY_BUCKETS - 1;
    uint32_t part = (uint32_t)(ns >> (log2 - IO_LATENCY_PARTS_LOG2)) % IO_LATENCY_PARTS;
    return octave * IO_LATENCY_PARTS + part;
}

/* The longest time in the bucket. */
static uint64_t bucket_end_ns(uint32_t bucket)
{
    uint32_t log2 = IO_LATENCY_OCTAVE_FIRST + bucket / IO_LATENCY_PARTS;
    uint64_t parts = IO_LATENCY_PARTS + bucket % IO_LATENCY_PARTS + 1;
    return (parts << (log2 - IO_LATENCY_PARTS_LOG2)) - 1;
}

void io_latency_add(io_latency *self, uint64_t ns)
{
    self->counts[bucket_of(ns)]++;
    self->count++;
    self->max_ns = size_max(self->max_ns, ns);
}

void io_latency_merge(io_latency *self, const io_latency *from)
{
    for (uint32_t i = 0; i < IO_LATENCY_BUCKETS; i++)
        self->counts[i] += from->counts[i];
    self->count += from->count;
    self->max_ns = size_max(self->max_ns, from->max_ns);
}

uint64_t io_latency_quantile_ns(const io_latency *self, double share)
{
    assert(share >= 0.0);
    assert(share <= 1.0);
    /* The rank of the wanted transfer, from 1. */
    double rank = share * (double)self->count;
    uint64_t passed = 0;
    for (uint32_t i = 0; i < IO_LATENCY_BUCKETS; i++) {
        passed += self->counts[i];
        bool is_last = i == IO_LATENCY_BUCKETS - 1; /* also holds times beyond its end */
        if (passed > 0 && (double)passed >= rank)
            return is_last ? self->max_ns : size_min(bucket_end_ns(i), self->max_ns);
    }
    return self->max_ns;
}
