// Launches: the checks that CUDA makes, the grid's blocks in a drawn order, dynamic shared memory.
#include <map>
#include <mutex>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

namespace simulated
{

// --- what kernels have and were allowed ----------------------------------------------------------

struct kernel_limits {
    int shared_static, shared_dynamic_max;
};

static std::mutex limits_mutex;
static std::map<const void *, kernel_limits> *limits = new std::map<const void *, kernel_limits>();

// With the mutex.
static kernel_limits &limits_of(const void *kernel)
{
    auto found = limits->find(kernel);
    if (found == limits->end()) {
        int fixed = static_cast<int>(static_shared_bytes(kernel));
        int rest = fixed < SHARED_BYTES_DEFAULT ? SHARED_BYTES_DEFAULT - fixed : 0;
        found = limits->emplace(kernel, kernel_limits{fixed, rest}).first;
    }
    return found->second;
}

static kernel_limits get_limits(const void *kernel)
{
    std::lock_guard<std::mutex> guard(limits_mutex);
    return limits_of(kernel);
}

// --- dynamic shared memory -----------------------------------------------------------------------

//   [guard page][... 256 canary bytes][bytes of the block][canary up to 127][guard page]
enum { CANARY_BYTES = 256, SHARED_ALIGNMENT = 128 };

struct shared_memory {
    unsigned char *end; // of the mapping that may be touched
    unsigned char *base;
    size_t bytes;
};
static __thread shared_memory shared;

static void map_shared()
{
    size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    size_t inside = (SHARED_BYTES_OPTIN + CANARY_BYTES + SHARED_ALIGNMENT + page) / page * page;
    void *memory = mmap(NULL, inside + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned char *first = static_cast<unsigned char *>(memory) + page;
    if (memory == MAP_FAILED || mprotect(first, inside, PROT_READ | PROT_WRITE) != 0) {
        perror("simulated GPU: shared memory");
        _exit(EXIT_FAILED);
    }
    shared.end = first + inside;
}

static void prepare_shared(size_t bytes)
{
    if (!shared.end)
        map_shared();
    size_t aligned = (bytes + SHARED_ALIGNMENT - 1) / SHARED_ALIGNMENT * SHARED_ALIGNMENT;
    shared.base = shared.end - aligned;
    shared.bytes = bytes;
    memset(shared.base - CANARY_BYTES, 0xff, aligned + CANARY_BYTES);
    fill_static_shared();
}

static void check_shared(const simulated_call *call, uint3 block)
{
    for (const unsigned char *at = shared.base - CANARY_BYTES; at < shared.end; at++) {
        if (at == shared.base)
            at += shared.bytes;
        if (at < shared.end && *at != 0xff)
            simulated_fail("kernel %s, block (%u, %u, %u) wrote at byte %ld of %zu of dynamic "
                           "shared memory",
                           symbol_name(call->kernel), block.x, block.y, block.z,
                           static_cast<long>(at - shared.base), shared.bytes);
    }
}

// --- launches ------------------------------------------------------------------------------------

static cudaError_t check_launch(const simulated_call *call)
{
    const dim3 &grid = call->grid, &block = call->block;
    if (!call->kernel)
        return cudaErrorInvalidDeviceFunction;
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || block.x == 0 || block.y == 0 || block.z == 0)
        return cudaErrorInvalidConfiguration;
    if (grid.x > INT32_MAX || grid.y > GRID_YZ_MAX || grid.z > GRID_YZ_MAX)
        return cudaErrorInvalidConfiguration;
    uint64_t threads = static_cast<uint64_t>(block.x) * block.y * block.z;
    if (block.x > 1024 || block.y > 1024 || block.z > 64 || threads > BLOCK_THREADS_MAX)
        return cudaErrorInvalidConfiguration;
    if (call->shared_bytes > static_cast<size_t>(get_limits(call->kernel).shared_dynamic_max))
        return cudaErrorInvalidValue;
    return cudaSuccess;
}

// Refuses a pointer that the GPU could not follow. On a GPU the kernel would fault when it follows
// it.
static void check_pointers(const simulated_call *call)
{
    for (int i = 0; i < call->pointer_count; i++) {
        const void *pointer = call->pointers[i];
        if (!pointer)
            continue;
        const char *before = static_cast<const char *>(pointer) - 1; /* an end is allowed */
        if (classify(pointer, 1) == MEMORY_PAGEABLE && classify(before, 1) == MEMORY_PAGEABLE)
            simulated_fail("kernel %s: pointer argument %d (%p) is neither GPU memory nor "
                           "registered host memory",
                           symbol_name(call->kernel), i, pointer);
    }
}

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    while (b != 0) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

// All blocks, one after the other, in an order drawn from the seed: start + i * step modulo the
// count.
static void run_grid(simulated_call *call, uint64_t seed)
{
    install_handlers();
    uint64_t xy = static_cast<uint64_t>(call->grid.x) * call->grid.y;
    uint64_t blocks = xy * call->grid.z;
    random_source random(seed);
    uint64_t at = random.next() % blocks, step = random.next() % blocks | 1u;
    while (common_divisor(step, blocks) != 1)
        step += 2;
    step %= blocks;
    for (uint64_t i = 0; i < blocks; i++) {
        uint3 block = {static_cast<unsigned>(at % call->grid.x),
                       static_cast<unsigned>(at % xy / call->grid.x),
                       static_cast<unsigned>(at / xy)};
        prepare_shared(call->shared_bytes);
        run_block(call, block, seed + at * 2 + 1);
        check_shared(call, block);
        at = (at + step) % blocks;
    }
}

} // namespace simulated

using namespace simulated;

void *simulated_dynamic_shared()
{
    return shared.base;
}

cudaError_t simulated_enqueue_call(cudaStream_t stream, simulated_call *call)
{
    static uint64_t launches;
    cudaError_t error = enter();
    if (error == cudaSuccess)
        error = check_launch(call);
    if (error != cudaSuccess) {
        call->destroy(call);
        return report(error);
    }
    check_pointers(call);
    uint64_t launch = __atomic_fetch_add(&launches, 1, __ATOMIC_RELAXED);
    uint64_t seed = get_settings().seed * 0x9e3779b97f4a7c15u + launch * 0x100000001b3u;
    return enqueue(
        stream, WORK_KERNEL, [call, seed] { run_grid(call, seed); },
        [call] { call->destroy(call); });
}

extern "C" {

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute which, int value)
{
    if (cudaError_t error = enter())
        return error;
    if (!kernel)
        return report(cudaErrorInvalidDeviceFunction);
    if (which == cudaFuncAttributePreferredSharedMemoryCarveout)
        return value < -1 || value > 100 ? report(cudaErrorInvalidValue) : cudaSuccess;
    std::lock_guard<std::mutex> guard(limits_mutex);
    kernel_limits &own = limits_of(kernel);
    if (which != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        value > SHARED_BYTES_OPTIN - own.shared_static)
        return report(cudaErrorInvalidValue);
    own.shared_dynamic_max = value;
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *kernel)
{
    if (cudaError_t error = enter())
        return error;
    if (!kernel || !attributes)
        return report(cudaErrorInvalidDeviceFunction);
    *attributes = cudaFuncAttributes();
    attributes->maxThreadsPerBlock = BLOCK_THREADS_MAX;
    attributes->numRegs = 64; /* of no meaning here */
    attributes->ptxVersion = attributes->binaryVersion = 90;
    kernel_limits own = get_limits(kernel);
    attributes->sharedSizeBytes = static_cast<size_t>(own.shared_static);
    attributes->maxDynamicSharedSizeBytes = own.shared_dynamic_max;
    attributes->preferredShmemCarveout = -1;
    return cudaSuccess;
}

} // extern "C"
