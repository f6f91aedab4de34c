/* The trace ring: what each op really did. It has a fixed size, and only the executor's thread
 * writes it.
 *
 * It is created before the memory is sealed. When it is full, new events overwrite the oldest.
 * Readers (metrics, trace.json, the report) run on the owner's thread between steps. */
#ifndef SLUICE_BASE_TRACE_H
#define SLUICE_BASE_TRACE_H

#include <stdint.h>

#include "base/error.h"

struct trace_event {
    uint64_t start_ns; /* clock_ns at which the lane began the op */
    uint64_t end_ns;   /* clock_ns at which it was complete */
    uint64_t bytes;    /* moved by the op; 0 if it only computes */
    uint64_t step;     /* optimizer step, from 1 */
    uint32_t op_idx;   /* in the program */
    uint32_t unit;     /* UINT32_MAX if the op has none */
    uint16_t micro_batch_or_tile;
    uint8_t lane;       /* enum lane_kind */
    uint8_t kind;       /* enum op_kind */
    uint8_t program;    /* enum program_kind */
    uint8_t stall_lane; /* for compute and update: the lane that it waited for, else LANE_COUNT */
    /* 1: no other lane ended an op in that idle time, so the op was ready before it: the time went
     * into learning that the last op had ended, starting this one and waking its thread. */
    uint8_t stall_is_hand_over;
    uint8_t reserved;
    uint64_t stall_ns;  /* for compute and update: idle time of the cores right before the op */
    uint64_t paused_ns; /* for compute: time between start and end in which updates ran */
};
typedef struct trace_event trace_event;

struct trace {
    trace_event *events; /* [capacity] ring */
    uint64_t capacity;   /* a power of two */
    uint64_t written;    /* events ever recorded; event i lies at i modulo capacity */
};
typedef struct trace trace;

int trace_init(trace *ring, uint64_t capacity) MUST_CHECK; /* -ENOMEM */
void trace_fini(trace *ring);

/* Copies the event into the ring. Never fails, never allocates. */
static inline void trace_record(trace *ring, const trace_event *event)
{
    ring->events[ring->written++ & (ring->capacity - 1)] = *event;
}

#endif
