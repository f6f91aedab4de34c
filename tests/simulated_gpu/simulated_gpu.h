/* The simulated GPU's own controls, for tests. Its properties:
 *
 * - Kernels run on the CPU, thread by thread. Each thread of a block is a fiber, and a seed decides
 *   which one runs next between barriers. Blocks of a grid run one after the other, in an order
 *   drawn from the seed. Shared memory is full of 0xff before each block.
 * - A stream is a host thread that takes its work in order, after small random delays. The legacy
 *   default stream (NULL) waits for all blocking streams, and the host waits for it: all calls on
 *   it are synchronous.
 * - Device memory is host memory that the host could touch but must not. Each allocation is
 *   followed by a page that nobody may touch. Pointers are checked against what was allocated and
 *   registered.
 * - After a wrong access, a barrier that not all threads reach, or a misaligned access of a vector
 *   the process ends with a message that names kernel, block, thread and seed.
 *
 * Environment, read once:
 *   SLUICE_SIMULATED_GPU_SEED       order of threads and delays (default 1; printed on a failure)
 *   SLUICE_SIMULATED_GPU_DELAY_US   longest delay before a piece of work (default 100; 0: none)
 *   SLUICE_SIMULATED_GPU_TOTAL_MB   the GPU's memory (default 2048)
 *   SLUICE_SIMULATED_GPU_SMS        its multiprocessors (default 4)
 *   SLUICE_SIMULATED_GPU_BUS        its bus (default 0x17): another number is another GPU, for
 *                                   several processes
 *   SLUICE_SIMULATED_GPU_ABSENT     not empty: there is no GPU
 *
 * It is a GPU of compute capability 9.0 with an H100's limits. It cannot show races between blocks
 * of one grid, bank conflicts, registers, weak memory order, or time. */
#ifndef SLUICE_TESTS_SIMULATED_GPU_H
#define SLUICE_TESTS_SIMULATED_GPU_H

#include <stdint.h>

#include "cuda_runtime_api.h"

#ifdef __cplusplus
extern "C" {
#endif

struct simulated_gpu_counters {
    uint64_t kernels;         /* launched, or captured */
    uint64_t copies;          /* between memories, of any kind */
    uint64_t pageable_copies; /* those of them from or to host memory that is not registered */
    uint64_t row_copies;      /* calls that copied rows (cudaMemcpy2DAsync), each a copy */
    uint64_t fills;
    uint64_t allocations;     /* cudaMalloc, cudaHostAlloc and cudaHostRegister */
    uint64_t host_functions;  /* called */
    uint64_t streams, events; /* created */
    uint64_t records;         /* of events */
    uint64_t timed_records;   /* those of them whose events have times */
    uint64_t waits;           /* of streams for events */
    uint64_t graph_launches;
    uint64_t graph_nodes;      /* run by those launches */
    uint64_t synchronizations; /* of a stream, event or the device, by the host */
};
typedef struct simulated_gpu_counters simulated_gpu_counters;

/* Since the process began; take two and subtract. */
void simulated_gpu_get_counters(simulated_gpu_counters *counters);

enum simulated_gpu_fault { SIMULATED_FAULT_KERNEL, SIMULATED_FAULT_COPY, SIMULATED_FAULT_ANY };
/* The next piece of work of that kind, after `skip` others, fails when it would run: from then on
 * every call returns cudaErrorIllegalAddress, no work runs and no host function is called, as on a
 * GPU. */
void simulated_gpu_inject_fault(enum simulated_gpu_fault kind, uint64_t skip);
/* As a new process would find it: streams, events and memory of the test must not be used any
 * more. */
void simulated_gpu_clear_fault(void);

/* After `count` more captures every capture fails when it ends, as it does where a captured call is
 * not allowed. UINT64_MAX, as at the start: none fails. */
void simulated_gpu_fail_captures_after(uint64_t count);

/* Makes products of cuBLASLt's stand-in that cut k, and those that do not, take so much longer. */
void simulated_gpu_slow_products(uint32_t split_us, uint32_t ordered_us);

void simulated_gpu_set_total_bytes(uint64_t bytes);
void simulated_gpu_set_seed(uint64_t seed);
void simulated_gpu_set_absent(int is_absent);

/* Work of a simulated library (cuBLASLt) on a stream: function(user) runs on the stream's thread
 * in its turn, counted as a kernel called `name` (a literal), then drop(user) runs, also where
 * the function did not because of a fault. drop may be NULL. The last error is set as a launch
 * would. */
cudaError_t simulated_gpu_enqueue(cudaStream_t stream, const char *name,
                                  void (*function)(void *user), void (*drop)(void *user),
                                  void *user);
/* Whether all of [memory, memory + bytes) may be touched by the GPU: device or registered
 * memory. */
int simulated_gpu_may_touch(const void *memory, uint64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
