/* A GPU as a tier: its memory, reserved once; pinned host memory; streams, events and copies.
 *
 *   device_open -> device_reserve (one allocation: the budget) -> streams, events -> copies, calls
 *                  device_pin (host arena)                         ... device_close frees all of it
 *
 * Streams and events are opaque handles (cudaStream_t, cudaEvent_t), which kernels take unchanged.
 *
 * Threads: the thread that opened the device makes all calls. A thread that called device_attach
 * may also copy, fill, record, wait, query and synchronize, on streams and events that only it
 * uses. Functions given to device_call run on a thread of the driver and must not call this header.
 *
 * Only open, reserve, pin, create, capture, synchronize and close wait for the GPU or allocate.
 *
 * A build without CUDA has the same functions: device_count returns 0 with the reason, device_open
 * returns -ENOTSUP. A build with CUDA also runs without a driver: the runtime is linked statically
 * and looks for the driver at its first call. CUDA's errors become ERR_BACKEND with CUDA's name and
 * text. After an error of the GPU itself (a faulting kernel) every later call fails the same
 * way. */
#ifndef SLUICE_TIERS_DEVICE_H
#define SLUICE_TIERS_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

typedef struct device device;
typedef struct device_stream device_stream; /* incomplete on purpose: a cudaStream_t */
typedef struct device_event device_event;   /* a cudaEvent_t */
typedef struct device_graph device_graph;   /* a cudaGraphExec_t */

struct device_info {
    uint32_t device_idx;
    char name[96];       /* "NVIDIA H200" */
    char pci_bus_id[16]; /* "0000:17:00.0", lower case, as in sysfs */
    int compute_major, compute_minor;
    uint32_t sm_count;
    uint64_t total_bytes;                /* of its memory */
    double memory_bytes_per_second;      /* by clock and bus width; 0: the driver does not say */
    int driver_version, runtime_version; /* CUDA's: 13000 is 13.0 */
};
typedef struct device_info device_info;

enum {
    /* compute capability; the kernels are built for sm_80 and later */
    DEVICE_COMPUTE_MAJOR_MIN = 8,
    DEVICE_TEXT_BYTES = 256
};

/* Returns the number of usable GPUs. If it is 0, `text` says why: "this build has no CUDA", "no
 * NVIDIA driver", "the driver is too old for CUDA 13.0 (it is for 12.2)", "no GPU is visible", "no
 * usable GPU: ..." (compute capability below 8.0, or CUDA's text). Otherwise text is "". Never
 * fails.
 *
 * It makes the first call of CUDA. Before that it sets CUDA_DEVICE_MAX_CONNECTIONS=16 in the
 * environment, unless the user has set it, so that each stream has a queue of its own. So the first
 * call must come before other threads read the environment. The driver's default for loading
 * kernels (at the first launch) stays: cuBLASLt and cuDNN hold hundreds of MB of kernels. */
uint32_t device_count(char text[DEVICE_TEXT_BYTES]);

/* Makes the GPU's context and selects it for the calling thread, which will sleep where it waits.
 * ERR_BACKEND, also for a GPU that is too old beside one that is not. -ENOTSUP without CUDA.
 * -EINVAL if the index is not below device_count, with the reason if that is 0. */
int device_open(uint32_t device_idx, device **out) MUST_CHECK;
/* Selects this GPU for the calling thread too; otherwise the thread's first call would make a
 * context on GPU 0. The device must outlive the thread's last call. ERR_BACKEND. */
int device_attach(device *self) MUST_CHECK;
/* Waits for all work, then releases reserved memory, pinned memory, streams and events. NULL is
 * allowed. */
void device_close(device *self);
const device_info *device_get_info(const device *self);

/* The GPU's memory that is free at this moment, for all processes. */
int device_free_bytes(device *self, uint64_t *free_bytes) MUST_CHECK;

/* Makes the one allocation, aligned to 2 MiB; once per device until device_release. ERR_NO_FIT with
 * the requested and the free bytes if the GPU does not have them. */
int device_reserve(device *self, uint64_t size_bytes, unsigned char **base) MUST_CHECK;
int device_release(device *self) MUST_CHECK; /* waits for all work */

/* Registers host memory [base, base + size_bytes), page-aligned, so that copies run asynchronously
 * and at the link's speed, and kernels may write there under the same address. This takes seconds
 * for many GiB. -ENOMEM, with advice about locked memory, if the system refuses. Several regions
 * may be pinned. A copy made with CUDA directly must not cross an address that is a multiple of 64
 * GiB; device_copy may. */
int device_pin(device *self, void *base, uint64_t size_bytes) MUST_CHECK;
int device_unpin(device *self, void *base) MUST_CHECK; /* no work may use it */

/* Small zeroed pinned host memory that kernels may write to; device_close frees it. */
int device_alloc_pinned(device *self, uint64_t size_bytes, void **out) MUST_CHECK;

/* Streams do not wait for the legacy default stream. The device owns them until close. */
int device_stream_create(device *self, bool high_priority, device_stream **out) MUST_CHECK;
/* Timed events report times; untimed events are cheaper to record. The device owns them until
 * close. */
int device_event_create(device *self, bool is_timed, device_event **out) MUST_CHECK;

int device_record(device *self, device_event *event, device_stream *stream) MUST_CHECK;
/* Work enqueued on `stream` from here on waits for the event's latest record; a later record of the
 * event does not change that. */
int device_wait(device *self, device_stream *stream, device_event *event) MUST_CHECK;
/* 1: complete, or never recorded; 0: not yet; negative: the GPU failed. */
int device_event_done(device *self, device_event *event) MUST_CHECK;
/* Time between two timed events, both complete; negative if `to` came before `from`. The resolution
 * is about half a microsecond; after a minute it is 4 us, since CUDA uses a float of
 * milliseconds. */
int device_elapsed_ns(device *self, device_event *from, device_event *to,
                      int64_t *elapsed_ns) MUST_CHECK;
int device_synchronize(device *self, device_stream *stream) MUST_CHECK; /* NULL: all streams */

enum device_direction { DEVICE_FROM_HOST, DEVICE_TO_HOST, DEVICE_WITHIN };
/* Asynchronous if the host side is pinned. */
int device_copy(device *self, device_stream *stream, void *target, const void *source,
                uint64_t size_bytes, enum device_direction direction) MUST_CHECK;
/* Copies `rows` rows of row_bytes each, which lie source_pitch_bytes apart, to one contiguous
 * block; within the device. It is one enqueued copy for any number of rows. */
int device_gather_rows(device *self, device_stream *stream, void *target, const void *source,
                       uint64_t source_pitch_bytes, uint64_t row_bytes, uint64_t rows) MUST_CHECK;
int device_fill(device *self, device_stream *stream, void *target, uint8_t value,
                uint64_t size_bytes) MUST_CHECK;

/* Between the two calls, work that is enqueued on `stream` does not run. It is recorded, with its
 * arguments, as a graph, which replays it with one call. Only copies, fills and kernels on this
 * stream may be enqueued. device_capture_end must follow, also after an error. *out is NULL if
 * there are fewer than two pieces of work, for which a graph saves nothing; *node_count is their
 * number. A graph takes memory of the GPU, in an amount that CUDA does not state. ERR_BACKEND if
 * CUDA refuses: the stream is as before, and *out is NULL. */
int device_capture_begin(device *self, device_stream *stream) MUST_CHECK;
int device_capture_end(device *self, device_stream *stream, device_graph **out,
                       uint64_t *node_count) MUST_CHECK;
int device_graph_launch(device *self, device_graph *graph, device_stream *stream) MUST_CHECK;
void device_graph_destroy(device *self, device_graph *graph); /* NULL is allowed */

/* Runs `function` on a thread of the driver once all earlier work of the stream is complete; later
 * work of the stream waits for it. It is not called after an error of the GPU. */
int device_call(device *self, device_stream *stream, void (*function)(void *user),
                void *user) MUST_CHECK;

#endif
