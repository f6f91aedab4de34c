/* The memory limit of passes like an optimizer's: kernels that move the same streams with as little
 * arithmetic as keeps the compiler from dropping one. What is fastest differs between machines, so
 * there are several, of which a benchmark takes the best:
 *
 *   plain       whole lines of one stream after the other, ordinary stores
 *   fetched     the same, each line asked for 512 elements ahead
 *   past        what is only written goes past the caches (x86's non-temporal stores)
 *   past, fetched
 *
 * each with vectors of 64, 32 and 16 bytes, as far as the processor has them. Any thread; allocates
 * nothing. Streams begin on lines of 64 bytes. */
#ifndef SLUICE_PERF_ADAM_LIMIT_H
#define SLUICE_PERF_ADAM_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

enum { LIMIT_UPDATED_MAX = 3, LIMIT_GROUP_ELEMS = 64 };

/* What a pass moves for each element. */
struct limit_streams {
    /* fp32: read and written back; NULL from the first unused on */
    float *updated[LIMIT_UPDATED_MAX];
    const void *read;    /* NULL: none */
    uint32_t read_bytes; /* of one element: 4 or 2 */
    void *written;       /* not read; NULL: none */
    uint32_t written_bytes;
    float one; /* 1.0f, which the compiler does not know: what is updated is multiplied by it */
};

struct limit_kernel {
    const char *name;
    bool is_past; /* of use only where there is something that is only written */
    bool (*is_supported)(void);
    /* Elements [begin, end), multiples of LIMIT_GROUP_ELEMS. */
    void (*run)(const struct limit_streams *streams, uint64_t begin, uint64_t end);
};

extern const struct limit_kernel limit_kernels[];
extern const int limit_kernel_count;

#endif
