// Memory of the simulated GPU and registered host memory: who owns which addresses, and copies.
//
//   [page without access][0xff][allocation][0xff up to a page][page without access]
#include <map>
#include <mutex>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

namespace simulated
{

enum {
    DEVICE_ALIGNMENT = 256,
    LARGE_BYTES = 2 << 20, // allocations of this size and more are aligned to it, as CUDA's are
    FILL_BYTES_MAX = 64 << 20
};

struct region {
    uint64_t bytes;
    memory_kind kind;
    unsigned char *mapping; // NULL: not ours
    size_t mapping_bytes;
    uint64_t front_bytes; // before it, after the page without access
    uint64_t slack_bytes; // after the end, up to the page without access
};

static std::mutex memory_mutex;
static std::map<uintptr_t, region> *regions = new std::map<uintptr_t, region>();
static uint64_t used_bytes;

typedef std::lock_guard<std::mutex> guard_type;

static uintptr_t number(const void *pointer)
{
    return reinterpret_cast<uintptr_t>(pointer);
}

// With the mutex: the region that overlaps [at, at + bytes), the last of them; regions->end() for
// none.
static std::map<uintptr_t, region>::iterator find_overlap(uintptr_t at, uint64_t bytes)
{
    auto found = regions->lower_bound(at + bytes);
    if (found == regions->begin())
        return regions->end();
    --found;
    return found->first + found->second.bytes > at ? found : regions->end();
}

memory_kind classify(const void *memory, uint64_t bytes)
{
    guard_type guard(memory_mutex);
    uintptr_t at = number(memory);
    auto found = find_overlap(at, bytes);
    if (found == regions->end())
        return MEMORY_PAGEABLE;
    bool is_inside = at >= found->first && at + bytes <= found->first + found->second.bytes;
    return is_inside ? found->second.kind : MEMORY_MIXED;
}

std::string describe_address(const void *address)
{
    guard_type guard(memory_mutex);
    uintptr_t at = number(address);
    for (const auto &entry : *regions) {
        const region &r = entry.second;
        const char *kind = r.kind == MEMORY_DEVICE ? "GPU" : "pinned host";
        if (at + 65536 < entry.first || at >= entry.first + r.bytes + 65536)
            continue;
        char text[160];
        snprintf(text, sizeof text, ", byte %lld of an allocation of %llu bytes of %s memory",
                 static_cast<long long>(at - entry.first), static_cast<unsigned long long>(r.bytes),
                 kind);
        return text;
    }
    return ", near no allocation of the GPU's memory";
}

// --- allocations ---------------------------------------------------------------------------------

// Adds a region of `bytes`, filled with 0xff; NULL where the system has no memory.
static void *allocate(uint64_t bytes, memory_kind kind)
{
    size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    size_t alignment = bytes >= LARGE_BYTES ? size_t{LARGE_BYTES} : page;
    size_t inside = (bytes + page - 1) / page * page;
    size_t mapping_bytes = inside + 2 * alignment + page;
    void *memory =
        mmap(NULL, mapping_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    uintptr_t first = (number(memory) + page + alignment - 1) / alignment * alignment;
    if (mprotect(reinterpret_cast<void *>(first), inside, PROT_READ | PROT_WRITE) != 0) {
        munmap(memory, mapping_bytes);
        return NULL;
    }
    uintptr_t base = first;
    if (alignment == page) { /* the end as near to the page without access as alignment allows */
        uint64_t rounded = (bytes + DEVICE_ALIGNMENT - 1) / DEVICE_ALIGNMENT * DEVICE_ALIGNMENT;
        base = first + inside - rounded;
    }
    uint64_t slack_bytes = first + inside - base - bytes;
    unsigned char *data = reinterpret_cast<unsigned char *>(base);
    memset(data, 0xff, bytes < FILL_BYTES_MAX ? bytes : uint64_t{FILL_BYTES_MAX});
    memset(reinterpret_cast<void *>(first), 0xff, base - first);
    memset(data + bytes, 0xff, slack_bytes);
    guard_type guard(memory_mutex);
    (*regions)[base] = region{bytes,         kind,         static_cast<unsigned char *>(memory),
                              mapping_bytes, base - first, slack_bytes};
    return data;
}

[[noreturn]] static void fail_overwritten(uint64_t distance, const char *where, uint64_t bytes)
{
    simulated_fail("byte %llu %s of an allocation of %llu bytes was overwritten",
                   static_cast<unsigned long long>(distance), where,
                   static_cast<unsigned long long>(bytes));
}

static void check_slack(const unsigned char *data, const region &r)
{
    for (uint64_t i = 0; i < r.slack_bytes; i++)
        if (data[r.bytes + i] != 0xff)
            fail_overwritten(i, "beyond the end", r.bytes);
    for (uint64_t i = 1; i <= r.front_bytes; i++)
        if (*(data - i) != 0xff)
            fail_overwritten(i, "before the begin", r.bytes);
}

// Whether `pointer` was the base of a region of that kind, ours or not; it is gone then.
static bool release(void *pointer, memory_kind kind, bool is_ours)
{
    guard_type guard(memory_mutex);
    auto found = regions->find(number(pointer));
    if (found == regions->end() || found->second.kind != kind ||
        (found->second.mapping != NULL) != is_ours)
        return false;
    const region &r = found->second;
    if (r.mapping) {
        check_slack(static_cast<unsigned char *>(pointer), r);
        munmap(r.mapping, r.mapping_bytes);
    }
    if (kind == MEMORY_DEVICE)
        used_bytes -= r.bytes;
    regions->erase(found);
    return true;
}

// --- copies --------------------------------------------------------------------------------------

static cudaError_t check_copy(const void *target, const void *source, size_t bytes,
                              cudaMemcpyKind kind, bool *is_pageable)
{
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault)
        return cudaErrorInvalidMemcpyDirection;
    if (!target || !source)
        return cudaErrorInvalidValue;
    memory_kind to = classify(target, bytes), from = classify(source, bytes);
    if (to == MEMORY_MIXED || from == MEMORY_MIXED)
        return cudaErrorInvalidValue;
    bool to_device = to == MEMORY_DEVICE, from_device = from == MEMORY_DEVICE;
    if (kind != cudaMemcpyDefault &&
        (to_device != (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) ||
         from_device != (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice)))
        return cudaErrorInvalidValue;
    *is_pageable = to == MEMORY_PAGEABLE || from == MEMORY_PAGEABLE;
    return cudaSuccess;
}

static cudaError_t copy(void *target, const void *source, size_t bytes, cudaMemcpyKind kind,
                        cudaStream_t stream, bool is_sync)
{
    cudaError_t error = enter();
    if (error != cudaSuccess || bytes == 0)
        return error;
    bool is_pageable = false;
    error = check_copy(target, source, bytes, kind, &is_pageable);
    if (error != cudaSuccess)
        return report(error);
    count(&simulated_gpu_counters::copies);
    if (is_pageable)
        count(&simulated_gpu_counters::pageable_copies);
    error = enqueue(
        stream, WORK_COPY, [=] { memmove(target, source, bytes); }, nullptr);
    if (error == cudaSuccess && (is_pageable || is_sync))
        error = wait_stream(stream);
    return error;
}

static cudaError_t fill(void *target, int value, size_t bytes, cudaStream_t stream)
{
    cudaError_t error = enter();
    if (error != cudaSuccess || bytes == 0)
        return error;
    memory_kind kind = classify(target, bytes);
    if (kind != MEMORY_DEVICE && kind != MEMORY_PINNED)
        return report(cudaErrorInvalidValue);
    count(&simulated_gpu_counters::fills);
    return enqueue(
        stream, WORK_FILL, [=] { memset(target, value, bytes); }, nullptr);
}

} // namespace simulated

using namespace simulated;

extern "C" {

cudaError_t cudaMalloc(void **pointer, size_t bytes)
{
    if (cudaError_t error = enter())
        return error;
    if (!pointer)
        return report(cudaErrorInvalidValue);
    *pointer = NULL;
    if (bytes == 0)
        return cudaSuccess;
    count(&simulated_gpu_counters::allocations);
    {
        guard_type guard(memory_mutex);
        uint64_t total = get_settings().total_bytes;
        if (bytes > total || used_bytes > total - bytes)
            return report(cudaErrorMemoryAllocation);
        used_bytes += bytes;
    }
    *pointer = allocate(bytes, MEMORY_DEVICE);
    if (!*pointer) {
        guard_type guard(memory_mutex);
        used_bytes -= bytes;
        return report(cudaErrorMemoryAllocation);
    }
    return cudaSuccess;
}

cudaError_t cudaFree(void *pointer)
{
    cudaError_t error = enter();
    if (error == cudaErrorNoDevice || error == cudaErrorNotPermitted || !pointer)
        return error;
    wait_all();
    if (!release(pointer, MEMORY_DEVICE, true))
        return report(cudaErrorInvalidValue);
    return error;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    if (cudaError_t error = enter())
        return error;
    guard_type guard(memory_mutex);
    uint64_t total = get_settings().total_bytes;
    *total_bytes = total;
    *free_bytes = used_bytes < total ? total - used_bytes : 0;
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned flags)
{
    if (cudaError_t error = enter())
        return error;
    if (!pointer || (flags & ~7u))
        return report(cudaErrorInvalidValue);
    *pointer = NULL;
    if (bytes == 0)
        return cudaSuccess;
    count(&simulated_gpu_counters::allocations);
    *pointer = allocate(bytes, MEMORY_PINNED);
    return *pointer ? cudaSuccess : report(cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void *pointer)
{
    cudaError_t error = enter();
    if (error == cudaErrorNoDevice || error == cudaErrorNotPermitted || !pointer)
        return error;
    wait_all();
    return release(pointer, MEMORY_PINNED, true) ? error : report(cudaErrorInvalidValue);
}

cudaError_t cudaHostRegister(void *base, size_t bytes, unsigned flags)
{
    if (cudaError_t error = enter())
        return error;
    if (!base || bytes == 0 || (flags & ~15u))
        return report(cudaErrorInvalidValue);
    count(&simulated_gpu_counters::allocations);
    guard_type guard(memory_mutex);
    if (find_overlap(number(base), bytes) != regions->end())
        return report(cudaErrorHostMemoryAlreadyRegistered);
    (*regions)[number(base)] = region{bytes, MEMORY_PINNED, NULL, 0, 0, 0};
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *base)
{
    cudaError_t error = enter();
    if (error == cudaErrorNoDevice || error == cudaErrorNotPermitted)
        return error;
    wait_all();
    return release(base, MEMORY_PINNED, false) ? error : report(cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaHostGetDevicePointer(void **device_pointer, void *host, unsigned flags)
{
    if (cudaError_t error = enter())
        return error;
    if (!device_pointer || flags != 0 || classify(host, 1) != MEMORY_PINNED)
        return report(cudaErrorInvalidValue);
    *device_pointer = host;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer)
{
    if (cudaError_t error = enter())
        return error;
    memory_kind kind = classify(pointer, 1);
    void *address = const_cast<void *>(pointer);
    attributes->type = kind == MEMORY_DEVICE   ? cudaMemoryTypeDevice
                       : kind == MEMORY_PINNED ? cudaMemoryTypeHost
                                               : cudaMemoryTypeUnregistered;
    attributes->device = kind == MEMORY_PAGEABLE ? -2 : 0;
    attributes->devicePointer = kind == MEMORY_PAGEABLE ? NULL : address;
    attributes->hostPointer = kind == MEMORY_DEVICE ? NULL : address;
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *target, const void *source, size_t bytes, enum cudaMemcpyKind kind)
{
    return copy(target, source, bytes, kind, NULL, true);
}

cudaError_t cudaMemcpyAsync(void *target, const void *source, size_t bytes,
                            enum cudaMemcpyKind kind, cudaStream_t stream)
{
    return copy(target, source, bytes, kind, stream, false);
}

cudaError_t cudaMemcpy2DAsync(void *target, size_t target_pitch, const void *source,
                              size_t source_pitch, size_t width, size_t height,
                              enum cudaMemcpyKind kind, cudaStream_t stream)
{
    const size_t pitch_max = INT32_MAX; // cudaDeviceProp.memPitch
    if (width > target_pitch || width > source_pitch)
        return report(cudaErrorInvalidValue);
    if (target_pitch > pitch_max || source_pitch > pitch_max)
        return report(cudaErrorInvalidPitchValue);
    count(&simulated_gpu_counters::row_copies);
    for (size_t row = 0; row < height; row++) {
        cudaError_t error =
            copy((char *)target + row * target_pitch, (const char *)source + row * source_pitch,
                 width, kind, stream, false);
        if (error != cudaSuccess)
            return error;
    }
    return cudaSuccess;
}

cudaError_t cudaMemset(void *target, int value, size_t bytes)
{
    return fill(target, value, bytes, NULL);
}

cudaError_t cudaMemsetAsync(void *target, int value, size_t bytes, cudaStream_t stream)
{
    return fill(target, value, bytes, stream);
}

int simulated_gpu_may_touch(const void *memory, uint64_t bytes)
{
    memory_kind kind = bytes > 0 ? classify(memory, bytes) : MEMORY_DEVICE;
    return kind == MEMORY_DEVICE || kind == MEMORY_PINNED;
}
}
