/* The GPU tier of a build without CUDA: each function says how to build with it. Compiled without
 * the warning about unused parameters. */
#include <errno.h>
#include <stdio.h>

#include "tiers/device.h"

static int absent(void)
{
    return err_set(-ENOTSUP, "this build has no CUDA: install the CUDA toolkit (nvcc) and build "
                             "again with -DSLUICE_CUDA=ON");
}

uint32_t device_count(char text[DEVICE_TEXT_BYTES])
{
    snprintf(text, DEVICE_TEXT_BYTES, "this build has no CUDA");
    return 0;
}

int device_open(uint32_t device_idx, device **out)
{
    *out = NULL;
    return absent();
}

int device_attach(device *self)
{
    return absent();
}

void device_close(device *self)
{
}

const device_info *device_get_info(const device *self)
{
    return NULL;
}

int device_free_bytes(device *self, uint64_t *free_bytes)
{
    *free_bytes = 0;
    return absent();
}

int device_reserve(device *self, uint64_t size_bytes, unsigned char **base)
{
    *base = NULL;
    return absent();
}

int device_release(device *self)
{
    return absent();
}

int device_pin(device *self, void *base, uint64_t size_bytes)
{
    return absent();
}

int device_unpin(device *self, void *base)
{
    return absent();
}

int device_alloc_pinned(device *self, uint64_t size_bytes, void **out)
{
    *out = NULL;
    return absent();
}

int device_stream_create(device *self, bool high_priority, device_stream **out)
{
    *out = NULL;
    return absent();
}

int device_event_create(device *self, bool is_timed, device_event **out)
{
    *out = NULL;
    return absent();
}

int device_record(device *self, device_event *event, device_stream *stream)
{
    return absent();
}

int device_wait(device *self, device_stream *stream, device_event *event)
{
    return absent();
}

int device_event_done(device *self, device_event *event)
{
    return absent();
}

int device_elapsed_ns(device *self, device_event *from, device_event *to, int64_t *elapsed_ns)
{
    *elapsed_ns = 0;
    return absent();
}

int device_synchronize(device *self, device_stream *stream)
{
    return absent();
}

int device_copy(device *self, device_stream *stream, void *target, const void *source,
                uint64_t size_bytes, enum device_direction direction)
{
    return absent();
}

int device_gather_rows(device *self, device_stream *stream, void *target, const void *source,
                       uint64_t source_pitch_bytes, uint64_t row_bytes, uint64_t rows)
{
    return absent();
}

int device_fill(device *self, device_stream *stream, void *target, uint8_t value,
                uint64_t size_bytes)
{
    return absent();
}

int device_call(device *self, device_stream *stream, void (*function)(void *user), void *user)
{
    return absent();
}

int device_capture_begin(device *self, device_stream *stream)
{
    return absent();
}

int device_capture_end(device *self, device_stream *stream, device_graph **out,
                       uint64_t *node_count)
{
    *out = NULL;
    *node_count = 0;
    return absent();
}

int device_graph_launch(device *self, device_graph *graph, device_stream *stream)
{
    return absent();
}

void device_graph_destroy(device *self, device_graph *graph)
{
}
