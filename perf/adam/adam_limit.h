/* The memory limit of passes like an optimizer's: kernels that move the same streams and compute
 * nothing. The fastest way differs between machines, so there is a kernel for each of limit_widths
 * and each of limit_ways, and a benchmark takes the best. Any thread may call them; they allocate
 * nothing. Streams begin on lines of 64 bytes. */
#ifndef SLUICE_PERF_ADAM_LIMIT_H
#define SLUICE_PERF_ADAM_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

enum { LIMIT_UPDATED_MAX = 4, LIMIT_GROUP_ELEMS = 64, LIMIT_WAYS = 6 };

/* The data that a pass moves for each element. */
struct limit_streams {
    /* read and written back; NULL from the first unused one on */
    char *updated[LIMIT_UPDATED_MAX];
    uint32_t updated_bytes[LIMIT_UPDATED_MAX]; /* of one element: 4, 2 or 1 */
    const char *read;
    uint32_t read_bytes;    /* 4 or 2 */
    char *written;          /* and not read */
    uint32_t written_bytes; /* 4 or 2; 0: nothing is written there */
};

/* How a kernel walks through the streams. */
struct limit_way {
    const char *name;
    bool is_past;   /* write-only data bypasses the caches, if the processor can do this */
    uint64_t ahead; /* each line is prefetched so many elements ahead; 0: none is */
};
extern const struct limit_way limit_ways[LIMIT_WAYS];

/* Vectors of so many bytes. */
struct limit_width {
    uint32_t bytes;
    bool (*is_supported)(void);
    /* Runs over elements [begin, end), which are multiples of LIMIT_GROUP_ELEMS. */
    void (*run)(const struct limit_streams *streams, const struct limit_way *way, uint64_t begin,
                uint64_t end);
};
extern const struct limit_width limit_widths[]; /* the last one has 16 bytes */

#endif
