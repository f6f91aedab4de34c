/* Runs of forked ranks with a GPU, or the simulated one, for test_gpu_ranks.c: jobs, train_run on
 * all ranks, what happens to one of them meanwhile. The test's own process makes
 * no call of CUDA. Every function fails the test if it cannot do its work. */
#ifndef SLUICE_TESTS_GPU_RANKS_RIG_H
#define SLUICE_TESTS_GPU_RANKS_RIG_H

#include <stdatomic.h>

#include "tests/comm/comm_fixture.h"
#include "tests/train/train_fixture.h"

#ifdef SLUICE_SIMULATED_GPU
enum { GPU_RANKS_IS_SIMULATED = 1 };
#else
enum { GPU_RANKS_IS_SIMULATED = 0 };
#endif

enum {
    GPU_RANKS_MAX = 4,
    GPU_RANKS_BATCH = 4,
    GPU_RANKS_TEXT_BYTES = 64,
    GPU_RANKS_KILL_STEP = 3,
    GPU_RANKS_STEPS_FEW = 4
};

/* True on the simulated GPU, and if SLUICE_TEST_FEW is set for a slow GPU: the test then runs fewer
 * cases with few steps. Set by main. */
extern bool gpu_ranks_are_few;
extern fixture_model gpu_ranks_shape;

/* Memory through which the ranks and the test exchange results and signals. */
struct gpu_ranks_shared {
    fixture_result results[GPU_RANKS_MAX];
    atomic_uint step, is_killed;
    /* on the simulated GPU, after 2 steps */
    uint64_t late_allocations, late_pageable_copies, late_row_copies;
    char text[GPU_RANKS_TEXT_BYTES];
    uint64_t gpu_count, total_bytes, budgets[GPU_RANKS_MAX + 1];
    int nccl_code;
    char reason[ERR_TEXT_BYTES];
};
extern struct gpu_ranks_shared *gpu_ranks_shared; /* of the test and all ranks; made by main */

/* A run of forked ranks. */
struct gpu_ranks_run {
    const char *name;
    uint32_t world;
    bool is_spread;           /* each rank is on another host */
    bool has_own;             /* each rank sees only its own GPU, as with srun --gpus-per-task=1 */
    bool kills;               /* rank 1, once rank 0 has done GPU_RANKS_KILL_STEP */
    bool faults;              /* rank 0's simulated GPU, after GPU_RANKS_KILL_STEP */
    uint32_t deadly_rows;     /* rank 1 dies before these rows (fake_nccl.h); 0: never */
    bool keeps;               /* what the run leaves */
    uint64_t norm_part_bytes; /* train_options */
    const job *job;           /* filled by gpu_ranks_train */
};

/* Clears sets and begins them: backend, steps, stage. */
void gpu_ranks_sets(fixture_sets *sets, const char *backend, unsigned stage);
/* A step of all ranks has GPU_RANKS_BATCH sequences, each a micro-batch. The result is rank 0's. */
comm_fixture gpu_ranks_train(struct gpu_ranks_run *run, const fixture_sets *asked,
                             fixture_result *result);
/* The same, expecting success, and that nothing is allocated once it runs; with its metrics. */
void gpu_ranks_train_good(struct gpu_ranks_run run, const fixture_sets *sets,
                          fixture_result *result);
/* Trains with what ends `run`, expects the ends of both ranks, and begins it again: that gives the
 * bits of the run that nothing happened to. */
void gpu_ranks_fail(struct gpu_ranks_run run, fixture_sets *sets);

/* Tests in gpu_ranks_owned.c. The last two are there with NCCL's stand-in. */
void owned_experts_have_the_bits_of_zero(void **state);
void owned_experts_on_nccl(void **state);
void a_rank_that_dies_before_its_rows_ends_all(void **state);

#endif
