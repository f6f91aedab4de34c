/* The trace ring. See trace.h. */
#include "base/trace.h"

#include <errno.h>

#include "base/mem.h"

int trace_init(trace *ring, uint64_t capacity)
{
    uint64_t rounded = 1;
    while (rounded < capacity)
        rounded *= 2;
    ring->written = 0;
    ring->capacity = rounded;
    ring->events = mem_alloc(rounded, sizeof *ring->events, "trace ring");
    return ring->events ? 0 : -ENOMEM;
}

void trace_fini(trace *ring)
{
    mem_free(ring->events);
    ring->events = 0;
    ring->capacity = 0;
}
