/* Ranks that own experts, on a GPU: tests of the groups `owned` and `owned-nccl` of
 * test_gpu_ranks.c. */
#include "tests/gpu/gpu_ranks_rig.h"
#include "tests/unit.h"

static const fixture_model owned_shape = {.family = "mixtral", .layers = 2, .hidden = 64};

/* So many ranks own the experts; 1: ZeRO cuts them. */
static void owned_sets(fixture_sets *asked, uint32_t owners, const char *collectives)
{
    gpu_ranks_sets(asked, "cuda", 3);
    fixture_set(asked, "comm.backend=%s", collectives);
    fixture_set(asked, "model.num_experts=8");
    fixture_set(asked, "model.expert_ffn_size=16");
    fixture_set(asked, "model.experts_per_unit=4");
    fixture_set(asked, "model.seq_length=8");
    fixture_set(asked, "model.expert_parallel_size=%u", owners);
    fixture_set(asked, "communication_data_type=fp32");
    fixture_set(asked, "gradient_clipping=0"); /* so that no bit of a norm acts on a weight */
}

/* Ranks that own experts: rows of tokens travel between GPUs, and the losses have the bits of ZeRO
 * (tests/ranks/test_ranks_owned.c says more of them). */
static void try_owned(uint32_t world, const char *collectives, const char *const sets[4])
{
    static fixture_result results[2];
    uint64_t row_copies[2];
    const fixture_model before = gpu_ranks_shape;
    gpu_ranks_shape = owned_shape;
    for (int i = 0; i < 2; i++) {
        fixture_sets asked;
        owned_sets(&asked, i == 0 ? 1 : world, collectives);
        fixture_set(&asked, "run.eval_every=2");
        for (int k = 0; k < 4 && sets[k]; k++)
            fixture_set(&asked, "%s", sets[k]);
        gpu_ranks_train_good(
            (struct gpu_ranks_run){.name = "owned", .world = world, .has_own = true}, &asked,
            &results[i]);
        assert_int_equal(results[i].plan.expert_parallel_size, i == 0 ? 1 : world);
        row_copies[i] = gpu_ranks_shared->late_row_copies;
    }
    /* Where ranks own experts, each of the 4 passes of a micro-batch reads back the numbers of all
     * ranks' rows in one call. These are two steps, both directions each, and an evaluation. */
    if (GPU_RANKS_IS_SIMULATED)
        assert_int_equal(row_copies[1] - row_copies[0], 5 * 4 * GPU_RANKS_BATCH / world);
    gpu_ranks_shape = before;
    assert_true(results[0].step_count > 0);
    assert_int_equal(results[0].step_count, results[1].step_count);
    for (uint64_t i = 0; i < results[0].step_count; i++)
        if (results[0].loss_bits[i] != results[1].loss_bits[i])
            fail_msg("%s, step %u: %.9g by ZeRO, %.9g with owned experts", collectives,
                     (unsigned)i + 1, results[0].losses[i], results[1].losses[i]);
    printf("%u ranks, %s: the losses of ZeRO, the last one %.7f\n", world, collectives,
           results[1].losses[results[1].step_count - 1]);
}

static const char *const whole_sets[4] = {NULL};
static const char *const host_sets[4] = {"schedule.experts=hit", "tiers.place.params=host",
                                         "tiers.place.optimizer=host", "bf16.enabled=true"};

/* Packed experts, with adapters. A width of 64 makes whole blocks of the format. */
static const char *const packed_sets[4] = {
    "state.params=nf4_double", "model.expert_ffn_size=64",
    "train.lora={\"rank\":2,\"targets\":[\"q_proj\",\"experts.down_proj\"]}",
    "gradient_accumulation_steps=3"};

void owned_experts_have_the_bits_of_zero(void **state)
{
    try_owned(2, "staged", whole_sets);
    try_owned(2, "staged", host_sets);
    try_owned(2, "staged", packed_sets);
    try_owned(4, "staged", whole_sets);
}

#ifdef GPU_RANKS_FAKE_NCCL
void owned_experts_on_nccl(void **state)
{
    try_owned(2, "nccl", whole_sets);
    try_owned(2, "nccl", host_sets);
    try_owned(4, "nccl", whole_sets);
}

/* A rank sends rows twice at the start, and 16 times in a step: for 2 layers of 2 units, in both
 * directions, for each of 2 micro-batches. So this is in the third step. */
enum { DEADLY_ROWS = 2 + 2 * 16 + 5 };

/* The rank tells the sizes of its rows and dies. The other one has enqueued its own, and waits for
 * the GPU, which waits for the rows. */
void a_rank_that_dies_before_its_rows_ends_all(void **state)
{
    const fixture_model before = gpu_ranks_shape;
    fixture_sets sets;
    gpu_ranks_shape = owned_shape;
    owned_sets(&sets, 2, "nccl");
    gpu_ranks_fail(
        (struct gpu_ranks_run){
            .name = "ended", .world = 2, .has_own = true, .deadly_rows = DEADLY_ROWS},
        &sets);
    gpu_ranks_shape = before;
}
#endif
