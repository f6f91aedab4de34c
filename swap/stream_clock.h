/* The GPU's clock on ours, for the times of a GPU's ops. One thread. */
#ifndef SLUICE_SWAP_STREAM_CLOCK_H
#define SLUICE_SWAP_STREAM_CLOCK_H

#include "tiers/device.h"

/* The same moment on both clocks: when anchors[anchor_idx] was recorded, clock_ns was
 * anchor_ns. */
struct stream_clock {
    device *gpu;
    device_stream *stream; /* used for nothing else */
    device_event *anchors[2];
    int anchor_idx;
    uint64_t anchor_ns;
    uint64_t compare_due_ns;
};
typedef struct stream_clock stream_clock;

/* Makes its stream and events and compares the clocks; waits until the GPU answers, and fails after
 * seconds. */
int stream_clock_start(stream_clock *self, device *gpu) MUST_CHECK;
/* Compares the clocks again once a second; waits for at most 50 us. */
int stream_clock_refresh(stream_clock *self) MUST_CHECK;
/* When a timed event, which is complete, was recorded, on the clock of clock_ns; may be a few
 * microseconds off. */
int stream_clock_time(const stream_clock *self, device_event *event, uint64_t *time_ns) MUST_CHECK;

#endif
