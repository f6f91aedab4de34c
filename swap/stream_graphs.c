/* See stream_graphs.h. */
#include "swap/stream_graphs.h"

#include <errno.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"

/* Enqueues the ops of a segment. */
static int enqueue_segment(const stream_capture *how, const program *prog, stream_segment segment)
{
    uint32_t left = segment.op_count;
    for (uint32_t i = segment.first_op; left > 0; i++) {
        if (prog->ops[i].lane != LANE_COMPUTE)
            continue;
        TRY(how->enqueue(how->user, prog, &prog->ops[i], how->stream));
        left--;
    }
    return 0;
}

static int capture(const stream_graphs *self, const stream_capture *how, uint32_t segment,
                   uint64_t *node_count)
{
    TRY(device_capture_begin(how->gpu, how->stream));
    err_record first = {0};
    int rc = enqueue_segment(how, self->plan.prog, self->plan.segments[segment]);
    if (rc < 0)
        err_save(&first, rc);
    int ended = device_capture_end(how->gpu, how->stream, &self->items[segment], node_count);
    return rc < 0 ? err_restore(&first) : ended;
}

/* Measures how much of the GPU's memory the graphs take so far. */
static int measure(const stream_capture *how, uint64_t *used_bytes)
{
    uint64_t free_bytes;
    TRY(device_free_bytes(how->gpu, &free_bytes));
    *used_bytes = how->free_bytes_before - size_min(free_bytes, how->free_bytes_before);
    return 0;
}

static int capture_all(stream_graphs *self, const stream_capture *how)
{
    const char *name = program_kind_name(self->plan.prog->kind);
    uint32_t count = self->plan.segment_count, made = 0, at = 0;
    uint64_t nodes, all_nodes = 0, bytes;
    char text[SIZE_TEXT_BYTES];
    TRY(measure(how, &bytes));
    int rc = 0;
    for (; at < count && rc == 0 && bytes < how->bytes_max; at += rc == 0) {
        rc = capture(self, how, at, &nodes);
        if (rc < 0)
            break;
        made += self->items[at] != NULL;
        all_nodes += nodes;
        rc = measure(how, &bytes);
    }
    if (rc < 0) {
        log_warn("the %s program runs its parts from %u on of %u without graphs, with more calls "
                 "of the driver: %s",
                 name, at, count, err_text());
        self->is_refused = true;
        return device_synchronize(how->gpu, how->stream);
    }
    log_info("the %s program replays %u graphs with %llu pieces of work for %u of %u parts; graphs "
             "take %s of the GPU%s",
             name, made, (unsigned long long)all_nodes, at, count, size_format(bytes, text),
             at < count ? ", as much as device.graph_bytes allows" : "");
    return 0;
}

int stream_graphs_init(stream_graphs *self, const program *prog, const stream_plan_config *config,
                       const stream_capture *how)
{
    *self = (stream_graphs){0};
    TRY(stream_plan_init(&self->plan, prog, config));
    if (self->plan.segment_count == 0)
        return 0;
    self->items = mem_alloc(self->plan.segment_count, sizeof *self->items, "gpu graphs");
    int rc = self->items ? capture_all(self, how) : -ENOMEM;
    if (rc < 0)
        stream_graphs_fini(self, how->gpu);
    return rc;
}

void stream_graphs_fini(stream_graphs *self, device *gpu)
{
    for (uint32_t i = 0; self->items && i < self->plan.segment_count; i++)
        device_graph_destroy(gpu, self->items[i]);
    mem_free(self->items);
    stream_plan_fini(&self->plan);
    *self = (stream_graphs){0};
}
