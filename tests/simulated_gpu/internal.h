// Declarations that the files of the simulated GPU share.
#ifndef SIMULATED_INTERNAL_H
#define SIMULATED_INTERNAL_H

#include <functional>
#include <memory>
#include <stdint.h>
#include <string>
#include <vector>

#include "simulated_gpu.h"
#include "simulated_launch.h"

namespace simulated
{

// --- numbers of the GPU --------------------------------------------------------------------------

enum {
    SHARED_BYTES_DEFAULT = 48 * 1024,
    SHARED_BYTES_OPTIN = 232448,
    BLOCK_THREADS_MAX = 1024,
    GRID_YZ_MAX = 65535,
    EXIT_FAILED = 99, // of simulated_fail
};

struct settings {
    uint64_t seed, total_bytes;
    uint32_t delay_us_max;
    int sm_count, bus_idx;
    bool is_absent;
};
settings &get_settings();

// --- random numbers: xorshift64*, seeded from any number -----------------------------------------

struct random_source {
    uint64_t state;

    explicit random_source(uint64_t seed)
    {
        state = (seed + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
        state = (state ^ state >> 31) | 1u;
    }
    uint64_t next()
    {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        return state * 0x2545f4914f6cdd1du >> 16;
    }
    uint32_t below(uint32_t bound) // of bounds far below 2^32
    {
        return static_cast<uint32_t>((next() & 0xffffffffu) * bound >> 32);
    }
};

// --- fibers.cc -----------------------------------------------------------------------------------

// Runs all threads of one block on this host thread.
void run_block(simulated_call *call, uint3 block, uint64_t seed);

struct async_copy {
    void *target;
    const void *source;
    int bytes, source_bytes;
};
// Copies of the running thread of a kernel that are not complete yet.
struct async_queue {
    std::vector<async_copy> copies; // oldest first
    std::vector<size_t> group_ends; // of committed groups: counts of copies
};
async_queue &get_async_queue();
const char *running_kernel(); // its name; NULL outside

// --- crash.cc ------------------------------------------------------------------------------------

// Before each kernel: handlers for wrong accesses, on a stack of this host thread's own.
void install_handlers();

// --- symbols.cc ----------------------------------------------------------------------------------

// A function's name in source form, or its address as text. Kept.
const char *symbol_name(const void *address);
// Shared memory that the kernel declares itself; not that of functions which it calls.
size_t static_shared_bytes(const void *kernel);
// Fills this host thread's statically declared shared memory with 0xff.
void fill_static_shared();

// --- streams.cc ----------------------------------------------------------------------------------

enum work_kind { WORK_KERNEL, WORK_COPY, WORK_FILL, WORK_HOST, WORK_EVENT };

// Puts work on the stream, in its order. `drop` runs after `run`, or instead of it after a fault;
// both may be empty. On the default stream the work is complete on return.
cudaError_t enqueue(cudaStream_t stream, work_kind kind, std::function<void()> run,
                    std::function<void()> drop);
cudaError_t wait_stream(cudaStream_t stream);

// Work that a stream captured instead of running it. It may run any number of times.
struct captured_work {
    work_kind kind;
    std::function<void()> run, drop;

    captured_work(work_kind which, std::function<void()> runs, std::function<void()> drops)
        : kind(which), run(std::move(runs)), drop(std::move(drops))
    {
    }
    captured_work(const captured_work &) = delete;
    ~captured_work()
    {
        if (drop)
            drop();
    }
};
cudaError_t begin_capture(cudaStream_t stream);
// Refused work (events, waiting for the stream) has spoilt a capture: then it has no nodes.
cudaError_t end_capture(cudaStream_t stream, std::vector<std::shared_ptr<captured_work>> *nodes);
cudaError_t launch_captured(cudaStream_t stream,
                            const std::vector<std::shared_ptr<captured_work>> &nodes);
void wait_all();
// Whether the runtime may be called now; else the error, which becomes the last one.
cudaError_t enter();
cudaError_t report(cudaError_t error); // makes it the last error of this host thread
bool has_fault();

// Changes of the counters from any thread.
void count(uint64_t simulated_gpu_counters::*counter);

// --- memory.cc -----------------------------------------------------------------------------------

enum memory_kind { MEMORY_PAGEABLE, MEMORY_PINNED, MEMORY_DEVICE, MEMORY_MIXED };
memory_kind classify(const void *memory, uint64_t bytes);
std::string describe_address(const void *address); // for messages

} // namespace simulated

#endif
