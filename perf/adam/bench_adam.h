/* Shared by bench_adam and bench_adam_state: their arguments, the memory on which they work,
 * the scalars of a step, and the variants to measure. */
#ifndef SLUICE_PERF_BENCH_ADAM_H
#define SLUICE_PERF_BENCH_ADAM_H

#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>

#include "base/size.h"
#include "base/tile.h"
#include "kernels/cpu/cpu_internal.h"
#include "perf/bench.h"

enum { TILE_ELEMS = 1 << 20 };

/* Best first. The reference is measured only if there is no other variant. */
static const enum cpu_isa variants[] = {CPU_AVX512, CPU_AVX2, CPU_NEON, CPU_BASELINE};
enum { VARIANT_COUNT = 4 };

static const update_scalars scalars = {.learning_rate = 1e-4f,
                                       .beta1 = 0.9f,
                                       .beta2 = 0.95f,
                                       .epsilon = 1e-8f,
                                       .weight_decay = 0.1f,
                                       .decoupled = true,
                                       .bias_correction1 = 0.5f,
                                       .bias_correction2_sqrt = 0.5f,
                                       .grad_scale = 0.9f};

struct bench_adam_arguments {
    long millions, runs, threads;
    const char *part; /* a part of the names that are wanted; "" selects all */
};

/* Reads [MILLIONS_OF_ELEMENTS] [RUNS] [THREADS] [PART]. An argument that is no number in its range
 * ends the program with status 2. */
static inline struct bench_adam_arguments bench_adam_take(int argc, char **argv, long millions,
                                                          long millions_max)
{
    if (argc > 5)
        bench_usage("at most 4 arguments: MILLIONS_OF_ELEMENTS RUNS THREADS PART_OF_A_NAME");
    return (struct bench_adam_arguments){
        .millions = bench_number(argc, argv, 1, "MILLIONS_OF_ELEMENTS", millions, 1, millions_max),
        .runs = bench_number(argc, argv, 2, "RUNS", bench_is_quick() ? 7 : 9, 7, BENCH_RUNS_MAX),
        .threads = bench_threads(argc, argv, 3),
        .part = argc > 4 ? argv[4] : "",
    };
}

/* Elements [0, tile_count * TILE_ELEMS) as tiles of state, each with its gradient and working
 * copy. */
struct working_set {
    char *mapping, *base;
    uint64_t mapped_bytes;
    uint64_t bytes; /* bytes from base on */
    uint64_t tile_count, state_pitch, flat_pitch;
};

/* Maps zeros, on huge pages if the system provides them. A tile has `streams` fp32 streams of
 * state, and gradient and working copy of flat_bytes per element each. */
static inline void set_create(struct working_set *set, uint64_t tile_count, uint32_t streams,
                              uint64_t flat_bytes)
{
    set->tile_count = tile_count;
    set->state_pitch = tile_pitch(TILE_ELEMS, streams);
    set->flat_pitch = size_round_up(flat_bytes * TILE_ELEMS, TILE_PERIOD_BYTES) + TILE_PERIOD_BYTES;
    set->bytes = tile_count * (set->state_pitch + 2 * set->flat_pitch);
    set->mapped_bytes = set->bytes + 2 * MIB;
    set->mapping =
        mmap(NULL, set->mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (set->mapping == MAP_FAILED)
        bench_require(err_set(-ENOMEM, "no memory for %llu MiB of state, gradients and copies",
                              (unsigned long long)(set->mapped_bytes / MIB)));
    madvise(set->mapping, set->mapped_bytes, MADV_HUGEPAGE);
    set->base = (char *)size_round_up((uint64_t)(uintptr_t)set->mapping, 2 * MIB);
}

static inline void set_destroy(struct working_set *set)
{
    munmap(set->mapping, set->mapped_bytes);
}

/* Returns the state of a tile. Its gradient and working copy follow the state. */
static inline char *set_state(const struct working_set *set, uint64_t tile_idx)
{
    return set->base + tile_idx * (set->state_pitch + 2 * set->flat_pitch);
}

static inline void *set_grads(const struct working_set *set, uint64_t tile_idx)
{
    return set_state(set, tile_idx) + set->state_pitch + TILE_RESIDUE_GRADS;
}

static inline void *set_params(const struct working_set *set, uint64_t tile_idx)
{
    return set_state(set, tile_idx) + set->state_pitch + set->flat_pitch + TILE_RESIDUE_PARAMS;
}

/* Fills contexts for the variants that this processor has, with this many threads each. Returns
 * their number. */
static inline int variant_contexts(kernel_context contexts[VARIANT_COUNT], int threads)
{
    int count = 0;
    for (int v = 0; v < VARIANT_COUNT; v++) {
        bool is_reference = variants[v] == CPU_BASELINE;
        if (variants[v] > cpu_isa() || !cpu_has(variants[v]) || (is_reference && count > 0))
            continue;
        contexts[count] = (kernel_context){.thread_count = threads, .isa = variants[v]};
        cpui_adam_select(&contexts[count++]);
    }
    return count;
}

#endif
