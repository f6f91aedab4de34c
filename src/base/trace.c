/* The trace ring, and the counter of progress. See trace.h and progress.h. */
#include "base/trace.h"

#include <assert.h>
#include <errno.h>

#include "base/mem.h"
#include "base/progress.h"

_Atomic uint64_t base_progress;

int trace_init(trace *ring, uint64_t capacity)
{
    uint64_t rounded = 1;
    while (rounded < capacity)
        rounded *= 2;
    assert(capacity > 0);
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
