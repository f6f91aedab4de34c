/* Latencies of a drive: a histogram of fixed size of how long single reads and writes took.
 *
 *   octave   64 ... 128 ns ... 256 ns ...         ... 64 s      each cut in IO_LATENCY_PARTS parts
 *
 * Shorter times count in the first bucket, longer times in the last; `max_ns` is exact. A
 * percentile is the upper end of its bucket: at most 1/16 above the time itself, and never above
 * max_ns. The histogram is plain data: all zeros is empty. One thread adds, merges and reads. */
#ifndef SLUICE_TIERS_IO_LATENCY_H
#define SLUICE_TIERS_IO_LATENCY_H

#include <stdint.h>

enum {
    IO_LATENCY_PARTS_LOG2 = 4,
    IO_LATENCY_PARTS = 1 << IO_LATENCY_PARTS_LOG2,
    IO_LATENCY_OCTAVE_FIRST = 6, /* 64 ns */
    IO_LATENCY_OCTAVES = 30,     /* to 64 s */
    IO_LATENCY_BUCKETS = IO_LATENCY_OCTAVES * IO_LATENCY_PARTS,
};

struct io_latency {
    uint64_t counts[IO_LATENCY_BUCKETS];
    uint64_t count; /* their sum */
    uint64_t max_ns;
};
typedef struct io_latency io_latency;

void io_latency_add(io_latency *self, uint64_t ns);

/* Adds all counts of `from`. */
void io_latency_merge(io_latency *self, const io_latency *from);

/* The time within which `share` (0..1) of all transfers stayed: 0.5 gives the median. Empty: 0. */
uint64_t io_latency_quantile_ns(const io_latency *self, double share);

#endif
