/* The GPU tier on CUDA's runtime. See device.h.
 *
 * The runtime is linked statically. It looks for the driver (libcuda.so.1) at its first call, so a
 * machine without a driver gets an error code here and has no other disadvantage. Streams and
 * events are CUDA's own handles under our incomplete types. The device lists all that it made, so
 * that close frees them.
 *
 * CUDA reports errors twice: as a call's return value, and once more by cudaGetLastError, which the
 * kernels' launches read. So code that handles an error from a return value also clears the other
 * one (check). That does not clear an error of the GPU itself, such as a fault in a kernel: every
 * later call returns it, as device.h says. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cuda_runtime_api.h>

#include "base/mem.h"
#include "base/size.h"
#include "tiers/device.h"
#include "tiers/tiers_internal.h"

enum {
    RESERVE_ALIGNMENT = 2 << 20, /* as every arena (tiers/arena.h); tiles rely on it */
    MALLOC_ALIGNMENT = 256,      /* the alignment that cudaMalloc guarantees */
};

/* Host memory is registered in pieces that end on multiples of this in the address space. One call
 * for 512 GiB or more fails with "out of memory" on drivers from 580 on, because the table of its
 * pages is larger than the kernel allocates at once. A copy must not span two registrations, so
 * copies are cut at the same addresses. That needs no table of pieces, so another device of the
 * process can copy too. */
#define PIECE_BYTES ((uint64_t)64 << 30)

static const char tag[] = "device";

/* A list of handles that close frees. */
struct handle_list {
    void **items;
    uint32_t count, capacity;
};
typedef struct handle_list handle_list;

/* A registered region of host memory. */
struct pinned_region {
    unsigned char *base;
    uint64_t size_bytes;
};
typedef struct pinned_region pinned_region;

struct device {
    device_info info;
    void *reserved;        /* as returned by cudaMalloc; NULL: nothing is reserved */
    handle_list pinned;    /* pinned_regions, on the heap */
    handle_list allocated; /* by cudaHostAlloc */
    handle_list streams;
    handle_list events;
};

/* --- errors and lists ------------------------------------------------------------------------- */

static int check(cudaError_t code, const char *what)
{
    return tieri_cuda_check((int)code, what);
}

/* Makes room for one more handle, so that adding it cannot fail once CUDA has made it. */
static int list_reserve(handle_list *list)
{
    if (list->count < list->capacity)
        return 0;
    uint32_t capacity = list->capacity ? 2 * list->capacity : 16;
    void **grown = mem_resize(list->items, capacity, sizeof *grown, tag);
    if (!grown)
        return -ENOMEM;
    list->items = grown;
    list->capacity = capacity;
    return 0;
}

static void list_add(handle_list *list, void *item)
{
    list->items[list->count++] = item;
}

/* --- which GPUs there are --------------------------------------------------------------------- */

/* Sets what CUDA reads from the environment at its first call, unless the user has set it.
 *
 * Streams share a number of queues to the hardware, 8 by default. If two streams share a queue, one
 * waits for the other. The lanes have four streams, four more that signal, and one for the clock.
 * With fewer queues than streams, a copy could wait for a product that it does not need.
 *
 * CUDA_MODULE_LOADING stays unchanged. By default a kernel is loaded at its first launch, which may
 * take some memory of the GPU after the budget was computed. Libraries' products and attention run
 * once when they are made, so their kernels are loaded by then; our own kernels are small beside
 * the reserve that the engine keeps. Loading all kernels at once would take hundreds of MB for
 * kernels that nobody launches. */
static void prepare_environment(void)
{
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "16", 0);
}

/* Writes why CUDA counts no GPU. */
static void explain_absence(cudaError_t code, char text[DEVICE_TEXT_BYTES])
{
    int driver = 0, runtime = 0;
    (void)cudaGetLastError();
    if (cudaDriverGetVersion(&driver) != cudaSuccess)
        driver = 0;
    if (cudaRuntimeGetVersion(&runtime) != cudaSuccess)
        runtime = 0;
    (void)cudaGetLastError();
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (code == cudaErrorInsufficientDriver && driver == 0)
        snprintf(text, DEVICE_TEXT_BYTES, "no NVIDIA driver");
    else if (code == cudaErrorInsufficientDriver)
        snprintf(text, DEVICE_TEXT_BYTES, "the driver is too old for CUDA %d.%d (it is for %d.%d)",
                 runtime / 1000, runtime % 1000 / 10, driver / 1000, driver % 1000 / 10);
    else if ((code == cudaSuccess || code == cudaErrorNoDevice) && visible)
        snprintf(text, DEVICE_TEXT_BYTES, "no GPU is visible (CUDA_VISIBLE_DEVICES is \"%.64s\")",
                 visible);
    else if (code == cudaSuccess || code == cudaErrorNoDevice)
        snprintf(text, DEVICE_TEXT_BYTES, "no GPU is visible");
    else
        snprintf(text, DEVICE_TEXT_BYTES, "no usable GPU: CUDA says %s (%.128s)",
                 cudaGetErrorName(code), cudaGetErrorString(code));
}

static int attribute(uint32_t device_idx, enum cudaDeviceAttr which)
{
    int value = 0;
    if (cudaDeviceGetAttribute(&value, which, (int)device_idx) == cudaSuccess)
        return value;
    (void)cudaGetLastError();
    return 0;
}

static bool is_new_enough(uint32_t device_idx)
{
    return attribute(device_idx, cudaDevAttrComputeCapabilityMajor) >= DEVICE_COMPUTE_MAJOR_MIN;
}

uint32_t device_count(char text[DEVICE_TEXT_BYTES])
{
    int count = 0;
    text[0] = '\0';
    prepare_environment();
    cudaError_t code = cudaGetDeviceCount(&count);
    if (code != cudaSuccess || count <= 0) {
        explain_absence(code, text);
        return 0;
    }
    for (int i = 0; i < count; i++)
        if (is_new_enough((uint32_t)i))
            return (uint32_t)count;
    snprintf(text, DEVICE_TEXT_BYTES,
             "no usable GPU: the first of %d has compute capability %d.%d, %d.0 is needed", count,
             attribute(0, cudaDevAttrComputeCapabilityMajor),
             attribute(0, cudaDevAttrComputeCapabilityMinor), DEVICE_COMPUTE_MAJOR_MIN);
    return 0;
}

/* --- registered host memory ------------------------------------------------------------------- */

/* The bytes from `base` on, up to size_bytes, that lie in one piece. */
static uint64_t piece_bytes(const void *base, uint64_t size_bytes)
{
    return size_min(size_bytes, PIECE_BYTES - (uintptr_t)base % PIECE_BYTES);
}

/* Unregisters all pieces, even if some fail; returns the first error. */
static cudaError_t unregister_pieces(unsigned char *base, uint64_t size_bytes)
{
    cudaError_t first = cudaSuccess;
    for (uint64_t at = 0; at < size_bytes; at += piece_bytes(base + at, size_bytes - at)) {
        cudaError_t code = cudaHostUnregister(base + at);
        if (first == cudaSuccess)
            first = code;
    }
    return first;
}

/* Registers all pieces or none. */
static cudaError_t register_pieces(unsigned char *base, uint64_t size_bytes)
{
    for (uint64_t at = 0; at < size_bytes; at += piece_bytes(base + at, size_bytes - at)) {
        cudaError_t code = cudaHostRegister(base + at, piece_bytes(base + at, size_bytes - at),
                                            cudaHostRegisterPortable | cudaHostRegisterMapped);
        if (code != cudaSuccess) {
            (void)unregister_pieces(base, at);
            return code;
        }
    }
    return cudaSuccess;
}

/* --- opening and closing ---------------------------------------------------------------------- */

static int fill_info(device_info *info, uint32_t device_idx)
{
    struct cudaDeviceProp properties;
    TRY(check(cudaGetDeviceProperties(&properties, (int)device_idx), "asking for the GPU"));
    info->device_idx = device_idx;
    snprintf(info->name, sizeof info->name, "%.95s", properties.name);
    TRY(check(
        cudaDeviceGetPCIBusId(info->pci_bus_id, (int)sizeof info->pci_bus_id, (int)device_idx),
        "asking for the GPU's place on the bus"));
    for (char *at = info->pci_bus_id; *at; at++)
        /* CUDA returns 0000:C1:00.0, sysfs has 0000:c1:00.0 */
        *at = (char)tolower((unsigned char)*at);
    info->compute_major = properties.major;
    info->compute_minor = properties.minor;
    info->sm_count = (uint32_t)properties.multiProcessorCount;
    info->total_bytes = properties.totalGlobalMem;
    double clock_khz = attribute(device_idx, cudaDevAttrMemoryClockRate);
    double bus_bits = attribute(device_idx, cudaDevAttrGlobalMemoryBusWidth);
    info->memory_bytes_per_second = 2.0 * clock_khz * 1e3 * bus_bits / 8.0; /* both clock edges */
    TRY(check(cudaDriverGetVersion(&info->driver_version), "asking for the driver's version"));
    return check(cudaRuntimeGetVersion(&info->runtime_version), "asking for the runtime's version");
}

/* Makes the primary context, which all libraries of the process share. */
static int make_context(uint32_t device_idx)
{
    char what[64];
    snprintf(what, sizeof what, "choosing GPU %u", device_idx);
    TRY(check(cudaSetDevice((int)device_idx), what));
    /* Waiting sleeps, and kernels may write to pinned memory. */
    TRY(check(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync | cudaDeviceMapHost),
              "setting how to wait for the GPU"));
    snprintf(what, sizeof what, "making the context of GPU %u", device_idx);
    return check(cudaFree(NULL), what);
}

int device_open(uint32_t device_idx, device **out)
{
    char text[DEVICE_TEXT_BYTES];
    *out = NULL;
    uint32_t count = device_count(text);
    if (count == 0)
        return err_set(-EINVAL, "GPU %u cannot be used: %s", device_idx, text);
    if (device_idx >= count)
        return err_set(-EINVAL, "there is no GPU %u: %u visible, counted from 0", device_idx,
                       count);
    if (!is_new_enough(device_idx))
        return err_set(ERR_BACKEND,
                       "GPU %u has compute capability %d.%d, %d.0 is needed; "
                       "CUDA_VISIBLE_DEVICES chooses among several",
                       device_idx, attribute(device_idx, cudaDevAttrComputeCapabilityMajor),
                       attribute(device_idx, cudaDevAttrComputeCapabilityMinor),
                       DEVICE_COMPUTE_MAJOR_MIN);
    device *self = mem_alloc(1, sizeof *self, tag);
    if (!self)
        return -ENOMEM;
    int rc = make_context(device_idx);
    if (rc == 0)
        rc = fill_info(&self->info, device_idx);
    if (rc < 0) {
        mem_free(self);
        return rc;
    }
    *out = self;
    return 0;
}

/* In CUDA each thread selects a GPU of its own; a new thread has GPU 0. */
int device_attach(device *self)
{
    return check(cudaSetDevice((int)self->info.device_idx), "choosing the GPU for another thread");
}

/* Frees in this order: first it waits until nothing runs, then it frees the handles that work is
 * enqueued on, then memory. After an error of the GPU each of these calls reports it again. Nobody
 * is left to tell, and the driver frees everything with the process. */
void device_close(device *self)
{
    if (!self)
        return;
    (void)cudaDeviceSynchronize();
    for (uint32_t i = 0; i < self->events.count; i++)
        (void)cudaEventDestroy(self->events.items[i]);
    for (uint32_t i = 0; i < self->streams.count; i++)
        (void)cudaStreamDestroy(self->streams.items[i]);
    for (uint32_t i = 0; i < self->pinned.count; i++) {
        pinned_region *region = self->pinned.items[i];
        (void)unregister_pieces(region->base, region->size_bytes);
        mem_free(region);
    }
    for (uint32_t i = 0; i < self->allocated.count; i++)
        (void)cudaFreeHost(self->allocated.items[i]);
    if (self->reserved)
        (void)cudaFree(self->reserved);
    (void)cudaGetLastError();
    mem_free(self->events.items);
    mem_free(self->streams.items);
    mem_free(self->pinned.items);
    mem_free(self->allocated.items);
    mem_free(self);
}

const device_info *device_get_info(const device *self)
{
    return &self->info;
}

/* --- memory ----------------------------------------------------------------------------------- */

int device_free_bytes(device *self, uint64_t *free_bytes)
{
    (void)self;
    size_t free_now = 0, total = 0;
    *free_bytes = 0;
    TRY(check(cudaMemGetInfo(&free_now, &total), "asking for the GPU's free memory"));
    *free_bytes = free_now;
    return 0;
}

/* cudaMalloc; the text of a refusal has the numbers. */
static int allocate(device *self, uint64_t size_bytes, void **out)
{
    cudaError_t code = cudaMalloc(out, size_bytes);
    if (code != cudaErrorMemoryAllocation)
        return check(code, "reserving memory of the GPU");
    (void)cudaGetLastError();
    *out = NULL;
    uint64_t free_bytes;
    TRY(device_free_bytes(self, &free_bytes));
    char asked[SIZE_TEXT_BYTES], is_free[SIZE_TEXT_BYTES];
    return err_set(ERR_NO_FIT,
                   "GPU %u (%s) cannot reserve %s (%llu bytes): %s (%llu bytes) are free; lower "
                   "tiers.device.budget, or end what else uses this GPU",
                   self->info.device_idx, self->info.name, size_format(size_bytes, asked),
                   (unsigned long long)size_bytes, size_format(free_bytes, is_free),
                   (unsigned long long)free_bytes);
}

int device_reserve(device *self, uint64_t size_bytes, unsigned char **base)
{
    *base = NULL;
    if (size_bytes == 0 || size_bytes > UINT64_MAX - RESERVE_ALIGNMENT)
        return err_set(-EINVAL, "device: cannot reserve %llu bytes",
                       (unsigned long long)size_bytes);
    if (self->reserved)
        return err_set(-EINVAL, "device: the memory of GPU %u is reserved already",
                       self->info.device_idx);
    void *memory;
    TRY(allocate(self, size_bytes, &memory));
    if ((uintptr_t)memory % RESERVE_ALIGNMENT != 0) {
        /* Large pieces are aligned because they are mapped in pages of 2 MiB. Small ones need not
         * be. */
        TRY(check(cudaFree(memory), "giving memory of the GPU back"));
        TRY(allocate(self, size_bytes + RESERVE_ALIGNMENT - MALLOC_ALIGNMENT, &memory));
    }
    self->reserved = memory;
    uintptr_t aligned = size_round_up((uintptr_t)memory, RESERVE_ALIGNMENT);
    *base = (unsigned char *)memory + (aligned - (uintptr_t)memory);
    return 0;
}

int device_release(device *self)
{
    TRY(device_synchronize(self, NULL));
    if (!self->reserved)
        return 0;
    void *memory = self->reserved;
    self->reserved = NULL;
    return check(cudaFree(memory), "giving memory of the GPU back");
}

/* Host memory that kernels may write to must have one address on both sides. Registered memory has
 * it if all visible GPUs can use the host's addresses, as on Linux (but not on Windows). */
static int check_same_address(void *host)
{
    void *on_device = NULL;
    TRY(check(cudaHostGetDevicePointer(&on_device, host, 0), "asking for pinned memory's address"));
    if (on_device == host)
        return 0;
    return err_set(ERR_BACKEND,
                   "pinned memory at %p is at %p for the GPU: a GPU of this system cannot use the "
                   "host's addresses, which Sluice needs; if it is another one, hide it with "
                   "CUDA_VISIBLE_DEVICES",
                   host, on_device);
}

int device_pin(device *self, void *base, uint64_t size_bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    if (!base || size_bytes == 0 || (uintptr_t)base % page != 0)
        return err_set(-EINVAL, "device: cannot pin %llu bytes at %p: not whole pages",
                       (unsigned long long)size_bytes, base);
    TRY(list_reserve(&self->pinned));
    pinned_region *region = mem_alloc(1, sizeof *region, tag);
    if (!region)
        return -ENOMEM;
    *region = (pinned_region){base, size_bytes};
    cudaError_t code = register_pieces(base, size_bytes);
    if (code == cudaErrorMemoryAllocation) {
        char text[SIZE_TEXT_BYTES];
        (void)cudaGetLastError();
        mem_free(region);
        return err_set(-ENOMEM,
                       "the system does not let the GPU's driver lock %s of host memory: raise the "
                       "limit on locked memory (ulimit -l, LimitMEMLOCK=, docker run --ulimit "
                       "memlock=-1) or the container's memory, or lower tiers.host.budget",
                       size_format(size_bytes, text));
    }
    int rc = check(code, "registering host memory");
    if (rc == 0) {
        rc = check_same_address(base);
        if (rc < 0)
            (void)unregister_pieces(base, size_bytes);
    }
    if (rc < 0) {
        (void)cudaGetLastError();
        mem_free(region);
        return rc;
    }
    list_add(&self->pinned, region);
    return 0;
}

int device_unpin(device *self, void *base)
{
    for (uint32_t i = 0; i < self->pinned.count; i++) {
        pinned_region *region = self->pinned.items[i];
        if (region->base != base)
            continue;
        self->pinned.items[i] = self->pinned.items[--self->pinned.count];
        cudaError_t code = unregister_pieces(base, region->size_bytes);
        mem_free(region);
        return check(code, "releasing registered host memory");
    }
    return err_set(-EINVAL, "device: no memory is pinned at %p", base);
}

int device_alloc_pinned(device *self, uint64_t size_bytes, void **out)
{
    void *memory = NULL;
    *out = NULL;
    TRY(list_reserve(&self->allocated));
    TRY(check(cudaHostAlloc(&memory, size_bytes, cudaHostAllocPortable | cudaHostAllocMapped),
              "allocating pinned host memory"));
    int rc = check_same_address(memory);
    if (rc < 0) {
        (void)cudaFreeHost(memory);
        (void)cudaGetLastError();
        return rc;
    }
    memset(memory, 0, size_bytes);
    list_add(&self->allocated, memory);
    *out = memory;
    return 0;
}

/* --- streams and events ----------------------------------------------------------------------- */

int device_stream_create(device *self, bool high_priority, device_stream **out)
{
    int least = 0, greatest = 0;
    cudaStream_t stream = NULL;
    *out = NULL;
    TRY(list_reserve(&self->streams));
    TRY(check(cudaDeviceGetStreamPriorityRange(&least, &greatest),
              "asking for priorities of streams"));
    TRY(check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                           high_priority ? greatest : least),
              "making a stream"));
    list_add(&self->streams, stream);
    *out = (device_stream *)stream;
    return 0;
}

int device_event_create(device *self, bool is_timed, device_event **out)
{
    cudaEvent_t event = NULL;
    *out = NULL;
    TRY(list_reserve(&self->events));
    TRY(check(
        cudaEventCreateWithFlags(&event, is_timed ? cudaEventDefault : cudaEventDisableTiming),
        "making an event"));
    list_add(&self->events, event);
    *out = (device_event *)event;
    return 0;
}

int device_record(device *self, device_event *event, device_stream *stream)
{
    (void)self;
    return check(cudaEventRecord((cudaEvent_t)event, (cudaStream_t)stream), "recording an event");
}

int device_wait(device *self, device_stream *stream, device_event *event)
{
    (void)self;
    return check(cudaStreamWaitEvent((cudaStream_t)stream, (cudaEvent_t)event, 0),
                 "ordering a stream after an event");
}

int device_event_done(device *self, device_event *event)
{
    (void)self;
    cudaError_t code = cudaEventQuery((cudaEvent_t)event);
    if (code == cudaSuccess)
        return 1;
    if (code != cudaErrorNotReady)
        return check(code, "asking whether work of the GPU is complete");
    (void)cudaGetLastError(); /* this is an answer, but some versions keep it as the last error */
    return 0;
}

int device_elapsed_ns(device *self, device_event *from, device_event *to, int64_t *elapsed_ns)
{
    (void)self;
    float milliseconds = 0.0f;
    *elapsed_ns = 0;
    TRY(check(cudaEventElapsedTime(&milliseconds, (cudaEvent_t)from, (cudaEvent_t)to),
              "measuring the time between events"));
    *elapsed_ns = (int64_t)((double)milliseconds * 1e6);
    return 0;
}

int device_synchronize(device *self, device_stream *stream)
{
    (void)self;
    return check(stream ? cudaStreamSynchronize((cudaStream_t)stream) : cudaDeviceSynchronize(),
                 "waiting for the GPU");
}

/* --- work ------------------------------------------------------------------------------------- */

int device_copy(device *self, device_stream *stream, void *target, const void *source,
                uint64_t size_bytes, enum device_direction direction)
{
    static const enum cudaMemcpyKind kinds[] = {
        [DEVICE_FROM_HOST] = cudaMemcpyHostToDevice,
        [DEVICE_TO_HOST] = cudaMemcpyDeviceToHost,
        [DEVICE_WITHIN] = cudaMemcpyDeviceToDevice,
    };
    unsigned char *to = target;
    const unsigned char *from = source;
    (void)self;
    do {
        uint64_t bytes = size_bytes;
        if (direction != DEVICE_WITHIN)
            bytes = piece_bytes(direction == DEVICE_TO_HOST ? to : from, size_bytes);
        TRY(check(cudaMemcpyAsync(to, from, bytes, kinds[direction], (cudaStream_t)stream),
                  "copying"));
        to += bytes;
        from += bytes;
        size_bytes -= bytes;
    } while (size_bytes > 0);
    return 0;
}

int device_gather_rows(device *self, device_stream *stream, void *target, const void *source,
                       uint64_t source_pitch_bytes, uint64_t row_bytes, uint64_t rows)
{
    (void)self;
    return check(cudaMemcpy2DAsync(target, row_bytes, source, source_pitch_bytes, row_bytes, rows,
                                   cudaMemcpyDeviceToDevice, (cudaStream_t)stream),
                 "copying rows");
}

int device_fill(device *self, device_stream *stream, void *target, uint8_t value,
                uint64_t size_bytes)
{
    (void)self;
    return check(cudaMemsetAsync(target, value, size_bytes, (cudaStream_t)stream),
                 "filling memory");
}

int device_call(device *self, device_stream *stream, void (*function)(void *user), void *user)
{
    (void)self;
    return check(cudaLaunchHostFunc((cudaStream_t)stream, function, user),
                 "enqueueing a function of the host");
}
