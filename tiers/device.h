/* A GPU as a tier: its memory, reserved once; pinned host memory; streams, events and copies.
 *
 *   device_open -> device_reserve (one allocation: the budget) -> streams, events -> copies, calls
 *                  device_pin (host arena)                         ... device_close frees all of it
 *
 * Streams and events are opaque handles (cudaStream_t, cudaEvent_t) that kernels take as they are. All
 * calls come from the thread that opened the device; but a thread that called device_attach may copy,
 * fill, record, wait, ask and synchronize too, on streams and events that it alone uses. Functions given
 * to device_call run on a thread of the driver and may make no call of this file. Nothing here is called per byte: all calls but open,
 * reserve, pin, create, synchronize and close return without waiting for the GPU, and allocate nothing.
 *
 * A build without CUDA has the same functions: device_count is 0 and says why, device_open returns
 * -ENOTSUP. A build with CUDA runs without a driver too: the runtime is linked statically and finds
 * the driver at the first call, or does not.
 * CUDA's errors become ERR_BACKEND with CUDA's own name and text; after an error of the GPU itself (a
 * faulting kernel) every later call fails in the same way. */
#ifndef SLUICE_TIERS_DEVICE_H
#define SLUICE_TIERS_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

typedef struct device device;
typedef struct device_stream device_stream; /* incomplete on purpose: a cudaStream_t */
typedef struct device_event device_event;   /* a cudaEvent_t */

struct device_info {
    uint32_t device_idx;
    char name[96];       /* "NVIDIA H200" */
    char pci_bus_id[16]; /* "0000:17:00.0", lower case: as sysfs names it */
    int compute_major, compute_minor;
    uint32_t sm_count;
    uint64_t total_bytes;                /* of its memory */
    double memory_bytes_per_second;      /* by clock and bus width; 0: the driver does not say */
    int driver_version, runtime_version; /* CUDA's: 13000 is 13.0 */
};
typedef struct device_info device_info;

/* Usable GPUs; 0 where there is none, with the reason in text[DEVICE_TEXT_BYTES]: "this build has no
 * CUDA", "no NVIDIA driver", "the driver is too old for CUDA 13.0 (it is for 12.2)", "no GPU is visible",
 * "no usable GPU: ..." (compute capability below 8.0, or what CUDA says). text is "" where there is one.
 * Never fails.
 * It makes the first call of CUDA and before that sets, where the user has not, a variable of the
 * environment: CUDA_DEVICE_MAX_CONNECTIONS=16, so that each stream has a queue of its own. So the first
 * call comes before there are threads that read the environment. When kernels are loaded is left to the
 * driver, whose default is each one's first launch: cuBLASLt and cuDNN hold hundreds of MB of them. */
enum { DEVICE_TEXT_BYTES = 256 };
uint32_t device_count(char text[DEVICE_TEXT_BYTES]);

/* Makes the GPU's context and chooses it for the calling thread; waits by sleeping, not by spinning.
 * ERR_BACKEND (also for a GPU that is too old beside one that is not), -ENOTSUP without CUDA, -EINVAL
 * for an index that is not below device_count, with its reason where that is 0. */
int device_open(uint32_t device_idx, device **out) MUST_CHECK;
/* Chooses this GPU for the calling thread too, which else would have made a context on GPU 0 with its first
 * call, whatever GPU that is. The device must outlive the thread's last call. ERR_BACKEND. */
int device_attach(device *self) MUST_CHECK;
/* Waits for all work, releases the reserved memory, pinned memory, streams and events. NULL allowed. */
void device_close(device *self);
const device_info *device_get_info(const device *self);

/* Memory of the GPU that is free at this moment, for all processes. */
int device_free_bytes(device *self, uint64_t *free_bytes) MUST_CHECK;

/* The one allocation, aligned to 2 MiB; once per device until device_release. ERR_NO_FIT with the bytes
 * asked and free where the GPU has not got them. */
int device_reserve(device *self, uint64_t size_bytes, unsigned char **base) MUST_CHECK;
int device_release(device *self) MUST_CHECK; /* waits for all work */

/* Registers host memory [base, base + size_bytes), page-aligned, so that copies run at the link's speed
 * and asynchronously, and kernels may write there under the same address. Many GiB take seconds. -ENOMEM
 * with the advice about locked memory where the system refuses. Several regions may be pinned. A copy of
 * CUDA's own may not reach over an address that is a multiple of 64 GiB there; device_copy's may. */
int device_pin(device *self, void *base, uint64_t size_bytes) MUST_CHECK;
int device_unpin(device *self, void *base) MUST_CHECK; /* no work may use it */

/* Small pinned host memory that kernels may write to, zeroed; freed by device_close. */
int device_alloc_pinned(device *self, uint64_t size_bytes, void **out) MUST_CHECK;

/* Streams do not wait for the legacy default stream. Owned by the device until close. */
int device_stream_create(device *self, bool high_priority, device_stream **out) MUST_CHECK;
/* Timed events tell times; untimed ones are cheaper to record. Owned by the device until close. */
int device_event_create(device *self, bool is_timed, device_event **out) MUST_CHECK;

int device_record(device *self, device_event *event, device_stream *stream) MUST_CHECK;
/* Work enqueued on `stream` from here on waits for the event's latest record; a later record of the
 * event changes nothing about it. */
int device_wait(device *self, device_stream *stream, device_event *event) MUST_CHECK;
/* 1: complete (or never recorded), 0: not yet; negative: the GPU failed. */
int device_event_done(device *self, device_event *event) MUST_CHECK;
/* Time between two timed events, both complete, at about half a microsecond; negative where `to` came
 * before `from`. A float of milliseconds underneath, so that its resolution falls to 4 us after a
 * minute. */
int device_elapsed_ns(device *self, device_event *from, device_event *to,
                      int64_t *elapsed_ns) MUST_CHECK;
int device_synchronize(device *self, device_stream *stream) MUST_CHECK; /* NULL: everything */

enum device_direction { DEVICE_FROM_HOST, DEVICE_TO_HOST, DEVICE_WITHIN };
/* Asynchronous where the host side is pinned. */
int device_copy(device *self, device_stream *stream, void *target, const void *source,
                uint64_t size_bytes, enum device_direction direction) MUST_CHECK;
/* `rows` rows of row_bytes each that lie source_pitch_bytes apart, to one after the other; within the device. One
 * enqueued copy, whatever the number of rows. */
int device_gather_rows(device *self, device_stream *stream, void *target, const void *source,
                       uint64_t source_pitch_bytes, uint64_t row_bytes, uint64_t rows) MUST_CHECK;
int device_fill(device *self, device_stream *stream, void *target, uint8_t value,
                uint64_t size_bytes) MUST_CHECK;

/* `function` runs on a thread of the driver when all earlier work of the stream is complete; later work
 * of this stream waits for it. Not called after an error of the GPU. */
int device_call(device *self, device_stream *stream, void (*function)(void *user),
                void *user) MUST_CHECK;

#endif
