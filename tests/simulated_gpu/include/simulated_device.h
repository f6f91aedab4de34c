// The language of kernels for a host compiler: CUDA's keywords and intrinsics as they are used in
// kernels/cuda. Each is exactly what CUDA documents, or its comment says what differs.
//
// A kernel's thread is a fiber (../fibers.cc) of the host thread that serves the stream. What waits
// for other threads (barriers, shuffles, votes) goes through simulated_block_meet and
// simulated_warp_meet: a thread that never comes ends the process with a message that names who
// waits where.
#ifndef SIMULATED_DEVICE_H
#define SIMULATED_DEVICE_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <type_traits>

#define __host__
#define __device__
#define __global__
#define __constant__
// A block runs wholly on one host thread, and blocks of one stream run one after the other.
#define __shared__      static thread_local
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

// --- where this thread is ----------------------------------------------------------------------

struct simulated_place {
    uint3 thread, block, block_dim, grid_dim;
};
extern __thread simulated_place *simulated_here; // NULL outside of kernels

#define threadIdx (simulated_here->thread)
#define blockIdx  (simulated_here->block)
#define blockDim  (simulated_here->block_dim)
#define gridDim   (simulated_here->grid_dim)
static const int warpSize = 32;

// Ends the process with the text, the kernel, block, thread and seed. Also for failed checks.
[[noreturn]] void simulated_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

// --- barriers ----------------------------------------------------------------------------------

// Waits for all threads of the block at this very call.
void simulated_block_meet(const char *file, int line);

static inline void __syncthreads(const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    simulated_block_meet(file, line);
}

// The contribution of one lane to an operation of its warp. The lane that comes last calls
// `complete` for all: lanes[i] is lane i's request, NULL for lanes that do not take part.
struct simulated_request {
    uint32_t mask;    // lanes named by the caller
    const char *what; // the same pointer in all lanes, or the operation is mismatched
    void (*complete)(simulated_request *const lanes[32]);
    const char *file;
    int line;
};

// Waits for all lanes of request->mask that exist in the block. All bring the same mask and `what`.
void simulated_warp_meet(simulated_request *request);

unsigned simulated_lane();

void simulated_complete_nothing(simulated_request *const lanes[32]);
extern const char simulated_syncwarp[];

static inline void __syncwarp(unsigned mask = 0xffffffffu, const char *file = __builtin_FILE(),
                              int line = __builtin_LINE())
{
    simulated_request request = {mask, simulated_syncwarp, simulated_complete_nothing, file, line};
    simulated_warp_meet(&request);
}

struct simulated_shuffle_request : simulated_request {
    int source; // lane
    uint64_t value, result;
};
void simulated_complete_shuffle(simulated_request *const lanes[32]);
extern const char simulated_shfl[], simulated_shfl_up[], simulated_shfl_down[],
    simulated_shfl_xor[];

// A value from a lane that takes no part is undefined: here all bits are set (NaN).
template <typename T>
static inline T simulated_shuffle(unsigned mask, T value, int source, const char *what,
                                  const char *file, int line)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
    static_assert(std::is_arithmetic<T>::value, "shuffles move numbers");
    simulated_shuffle_request request;
    request.mask = mask;
    request.what = what;
    request.complete = simulated_complete_shuffle;
    request.file = file;
    request.line = line;
    request.source = source;
    request.value = 0;
    memcpy(&request.value, &value, sizeof value);
    simulated_warp_meet(&request);
    memcpy(&value, &request.result, sizeof value);
    return value;
}

template <typename T>
static inline T __shfl_sync(unsigned mask, T value, int source, int width = 32,
                            const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    int lane = static_cast<int>(simulated_lane());
    return simulated_shuffle(mask, value, (lane & -width) | (source & (width - 1)), simulated_shfl,
                             file, line);
}

template <typename T>
static inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32,
                                const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    int lane = static_cast<int>(simulated_lane()), last = lane | (width - 1);
    int source = lane ^ lane_mask;
    return simulated_shuffle(mask, value, source <= last ? source : lane, simulated_shfl_xor, file,
                             line);
}

template <typename T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                                 const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    int lane = static_cast<int>(simulated_lane()), last = lane | (width - 1);
    int source = lane + static_cast<int>(delta);
    return simulated_shuffle(mask, value, source <= last ? source : lane, simulated_shfl_down, file,
                             line);
}

template <typename T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                               const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    int lane = static_cast<int>(simulated_lane()), first = lane & -width;
    int source = lane - static_cast<int>(delta);
    return simulated_shuffle(mask, value, source >= first ? source : lane, simulated_shfl_up, file,
                             line);
}

unsigned simulated_ballot(unsigned mask, int predicate, const char *file, int line);

static inline unsigned __ballot_sync(unsigned mask, int predicate,
                                     const char *file = __builtin_FILE(),
                                     int line = __builtin_LINE())
{
    return simulated_ballot(mask, predicate, file, line);
}

static inline int __any_sync(unsigned mask, int predicate, const char *file = __builtin_FILE(),
                             int line = __builtin_LINE())
{
    return simulated_ballot(mask, predicate, file, line) != 0;
}

static inline int __all_sync(unsigned mask, int predicate, const char *file = __builtin_FILE(),
                             int line = __builtin_LINE())
{
    return simulated_ballot(mask, !predicate, file, line) == 0;
}

static inline void __threadfence()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static inline void __threadfence_system()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

// Lets other threads of the block run: a thread that polls must call this.
void __nanosleep(unsigned nanoseconds);

#include "simulated_math.h"

#endif
