/* The memory limit of passes like an optimizer's: kernels that move the same streams with just
 * enough arithmetic that the compiler cannot remove any. The fastest way differs between machines,
 * so there are several kernels, and a benchmark takes the best:
 *
 *   plain       whole lines of one stream after the other, ordinary stores
 *   fetched     the same, with each line prefetched 512 elements ahead
 *   past        write-only data bypasses the caches (x86's non-temporal stores)
 *   past, fetched
 *
 * Each exists for vectors of 64, 32 and 16 bytes, if the processor has them. Any thread may call
 * them; they allocate nothing. Streams begin on lines of 64 bytes. */
#ifndef SLUICE_PERF_ADAM_LIMIT_H
#define SLUICE_PERF_ADAM_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

enum { LIMIT_UPDATED_MAX = 3, LIMIT_GROUP_ELEMS = 64 };

/* The data that a pass moves for each element. */
struct limit_streams {
    /* fp32, read and written back; NULL from the first unused one on */
    float *updated[LIMIT_UPDATED_MAX];
    const void *read;    /* NULL: none */
    uint32_t read_bytes; /* of one element: 4 or 2 */
    void *written;       /* written but not read; NULL: none */
    uint32_t written_bytes;
    float one; /* 1.0f, which the compiler does not know. Updated values are multiplied by it. */
};

struct limit_kernel {
    const char *name;
    bool is_past; /* useful only if the pass has a write-only stream */
    bool (*is_supported)(void);
    /* Runs over elements [begin, end), which are multiples of LIMIT_GROUP_ELEMS. */
    void (*run)(const struct limit_streams *streams, uint64_t begin, uint64_t end);
};

extern const struct limit_kernel limit_kernels[];
extern const int limit_kernel_count;

#endif
