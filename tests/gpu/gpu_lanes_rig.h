/* For the tests of the lanes under the executor: a GPU with its lanes (swap/lane_stream.h), worker
 * lanes for the host's ops, and ops that move values about.
 *
 * Ops on the compute and comm lanes are copies and fills within the device, so that they are the
 * same on the simulated GPU and on a real one: each leaves its own bytes in what it writes, and
 * bytes of all it reads. Ops on the host are those of swap_fixture.h. */
#ifndef SLUICE_TESTS_GPU_LANES_RIG_H
#define SLUICE_TESTS_GPU_LANES_RIG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/trace.h"
#include "swap/executor.h"
#include "swap/lane_stream.h"
#include "tests/swap/swap_fixture.h"

enum { GPU_RIG_OPS_MAX = 512, GPU_RIG_EVENTS = 1024 };

struct gpu_rig {
    device *gpu;
    unsigned char *device_base, *pinned;
    lane *lanes
        [LANE_COUNT]; /* h2d, d2h, comm and compute are one object; but see gpu_rig_init_staged */
    device_stream *comm_stream; /* of a comm lane on the host */
    uint32_t depth;
    bool is_untimed;
    trace ring;                        /* of GPU_RIG_EVENTS */
    fixture_arenas arenas;             /* the host's is `pinned`; the device's a copy of it */
    uint8_t finished[GPU_RIG_OPS_MAX]; /* how often config.finish saw an op */
    uint32_t break_idx;                /* this op breaks the GPU; PROGRAM_NONE: none */
    uint32_t fail_enqueue_idx;         /* this op fails in enqueue */
    uint32_t fail_finish_idx;          /* in finish */
    bool has_failed;                   /* finish did */
    uint32_t late_finishes;            /* calls of finish after that */
};
typedef struct gpu_rig gpu_rig;

/* Opens GPU 0 and makes lanes of this depth. */
void gpu_rig_init(gpu_rig *self, uint32_t depth);
/* The same with a worker of the host as the comm lane. Its ops are done once it has waited for
 * them. */
void gpu_rig_init_staged(gpu_rig *self, uint32_t depth);
void gpu_rig_fini(gpu_rig *self);

/* The same, timed or not, and with the programs prepared (lane_stream_prepare): graphs may take
 * graph_bytes and replay four of five ops of the compute lane. */
void gpu_rig_init_prepared(gpu_rig *self, uint32_t depth, bool is_timed,
                           const program *const *programs, uint32_t count, uint64_t graph_bytes);

/* Whether a graph may replay the op. */
bool gpu_rig_may_replay(void *user, const program *prog, const op *item);

/* The configuration that gpu_rig_init gave lane_stream_create. */
lane_stream_config gpu_rig_config(gpu_rig *self);

/* Fills the program's arenas from the seed, like fixture_arenas_init. Nothing may run between
 * unload and the next load. */
void gpu_rig_load(gpu_rig *self, const program *prog, uint64_t seed);
void gpu_rig_unload(gpu_rig *self);

/* An executor on the rig's lanes; the caller destroys it. */
executor *gpu_rig_executor(gpu_rig *self, const program *const *programs, uint32_t count);

/* True if all memory holds the bytes that serial execution left. */
bool gpu_rig_matches(gpu_rig *self, const fixture_arenas *serial);

/* Enqueues work that breaks the GPU: a kernel that writes to an unmapped address
 * (gpu_lanes_break.cu), or a fault of the simulated GPU. Returns CUDA's error of the launch, or
 * 0. */
int gpu_rig_break(void *stream);

/* Enqueues work that sets flags[0] and ends once flags[1] is set; both are 0 and in pinned memory.
 * No host function on a real GPU, which may let other streams' host functions wait for it. Returns
 * CUDA's error of the launch, or 0. */
int gpu_rig_hold(void *stream, atomic_int *flags);

/* Executes all ops on the host, in issue order; if `skipped`, without those that fixture_skips
 * names. */
void gpu_rig_execute_serially(fixture_arenas *arenas, const program *prog, bool skipped);

static inline bool is_gpu_lane(uint8_t kind)
{
    return kind >= LANE_H2D && kind <= LANE_COMPUTE;
}

/* A program of `count` copies of 4096 bytes to the device. */
void gpu_rig_copies_program(uint32_t count, program *out);

#endif
