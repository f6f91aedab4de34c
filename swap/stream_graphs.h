/* The graphs of a program that runs on a GPU: one for each segment of stream_plan.h. One thread;
 * only init allocates. */
#ifndef SLUICE_SWAP_STREAM_GRAPHS_H
#define SLUICE_SWAP_STREAM_GRAPHS_H

#include "swap/stream_plan.h"
#include "tiers/device.h"

struct stream_graphs {
    stream_plan plan;
    device_graph **items; /* [plan.segment_count]; NULL: its ops are enqueued one by one */
    bool is_refused;      /* CUDA refused a graph, so this and later ones are not made */
};
typedef struct stream_graphs stream_graphs;

/* How to capture a segment. */
struct stream_capture {
    device *gpu;
    device_stream *stream; /* of the compute lane; nothing runs on it */
    int (*enqueue)(void *user, const program *prog, const op *item, void *stream);
    void *user;
    uint64_t free_bytes_before; /* memory of the GPU that was free before the first graph */
    uint64_t bytes_max;         /* of it that graphs may take; the last one may exceed it */
};
typedef struct stream_capture stream_capture;

/* Plans the program and captures its segments in order, until CUDA refuses one or their memory is
 * used up, which the log says. -ENOMEM, or the error of a GPU that has failed: then nothing has to
 * be freed. */
int stream_graphs_init(stream_graphs *self, const program *prog, const stream_plan_config *config,
                       const stream_capture *how) MUST_CHECK;
void stream_graphs_fini(stream_graphs *self, device *gpu);

#endif
