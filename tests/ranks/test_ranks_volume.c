/* The bytes that ranks send each other in a step: those counted where they are copied, those of the
 * program, and those of ZeRO's formulas with the padding of base/shard.h, equal to the byte.
 *
 * Each rank sends (N-1)/N of these elements, for P elements of params:
 *
 *   stages 0 to 2     2P    a reduce-scatter; and an all-gather of gradients (0) or of new
 *                           parameters (1, 2)
 *   stage 3           3P    a reduce-scatter, and parameters gathered for the forward and for the
 *                           backward, less those that are used once: the head's own unit, whose
 *                           forward and backward are one, and embeddings that are not tied, whose
 *                           backward reads no parameters
 *   with reuse        2P to 3P    units of stages that are held for the backward are gathered once
 *   units that stay   2P    as in stage 2
 *   batch by batch    each micro-batch's gradient is reduced, and in stage 3 its params gathered; a
 *                     tied embedding's own part of its gradient is reduced once more
 *
 * To these the norm's sums are added: 8 bytes for each 4096 elements of its shards, to each other
 * rank.
 *
 * test_ranks_volume RANKS FAMILY-DTYPE */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/ranks/mpi_fixture.h"
#include "setup/summary.h"

enum { STEP_ELEMS = 4096, MICRO_BATCHES = 2 /* fixture_job's */ };

static fixture_model shape = {.family = "gpt2", .layers = 3, .hidden = 64};
static bool is_tied = true;
static uint64_t unit_elems[MPI_UNITS_MAX];
static uint32_t unit_count;

struct volume {
    const char *name;
    unsigned stage;
    uint64_t stays_below; /* stage3_param_persistence_threshold */
    bool reuses;          /* parameters may stay from forward to backward, as planned */
    bool by_batch;        /* schedule.order batch_major */
    const char *sets[2];
};

static const struct volume volumes[] = {
    {"stage 0", 0, 0, false, false, {NULL}},
    {"stage 1", 1, 0, false, false, {NULL}},
    {"stage 2", 2, 0, false, false, {"schedule.update=after_backward"}},
    {"stage 2, batch by batch", 2, 0, false, true, {"tiers.place.grads=host"}},
    {"stage 3", 3, 0, false, false, {NULL}},
    {"stage 3 on drives",
     3,
     0,
     false,
     false,
     {"tiers.place.params=nvme", "tiers.place.grads=nvme"}},
    {"stage 3, smaller units stay", 3, 48000, false, false, {NULL}},
    {"stage 3, all units stay", 3, 1000000, false, false, {NULL}},
    {"stage 0, batch by batch", 0, 0, false, true, {"tiers.place.grads=nvme"}},
    {"stage 3, batch by batch", 3, 0, false, true, {NULL}},
    {"stage 3 with reuse",
     3,
     0,
     true,
     false, /* little to compute, so that it pays */
     {"train_micro_batch_size_per_gpu=1", "gradient_accumulation_steps=1"}},
};

static uint64_t shard_of(uint32_t unit)
{
    uint64_t count = (unit_elems[unit] + mpi_world - 1) / mpi_world;
    return (count + STEP_ELEMS - 1) / STEP_ELEMS * STEP_ELEMS;
}

/* How often a step gathers the unit, where so many stages before the head are held: units are
 * those of the embedding, of the blocks and of the head, a stage each. */
static uint64_t uses_of(uint32_t unit, uint64_t held)
{
    bool is_held = unit + held + 1 >= unit_count; /* the head always */
    if (is_held || (unit == 0 && !is_tied))
        return 1;
    return 2;
}

struct sums {
    uint64_t reduced, gathered, norm_blocks; /* elements of this rank's shards; blocks of them */
    uint64_t padded;                         /* elements of all ranks' */
};

static struct sums sum_up(const struct volume *what, uint64_t held)
{
    struct sums sum = {.reduced = 0};
    uint64_t rounds = what->by_batch ? MICRO_BATCHES : 1;
    for (uint32_t u = 0; u < unit_count; u++) {
        uint64_t shard = shard_of(u);
        bool stays = unit_elems[u] < what->stays_below;
        sum.reduced += shard * (rounds + (what->by_batch && u == 0 && is_tied));
        sum.gathered += shard * (what->stage < 3 || stays ? 1 : rounds * uses_of(u, held));
        sum.norm_blocks += shard / STEP_ELEMS;
        sum.padded += mpi_world * shard;
    }
    return sum;
}

static uint64_t bytes_of(const struct sums *sum)
{
    uint64_t elem_bytes = shape.bf16 ? 2 : 4; /* of parameters, gradients and the wire alike */
    return (mpi_world - 1) *
           ((sum->reduced + sum->gathered) * elem_bytes + sum->norm_blocks * sizeof(double));
}

static void check(const struct volume *what, const mpi_result *result)
{
    const struct setup_summary *plan = &result->run.plan;
    struct sums sum = sum_up(what, plan->held_stages);
    uint64_t must_be = bytes_of(&sum);
    for (uint32_t r = 0; r < mpi_world; r++)
        if (result->run.summary.ranks[r].sent_bytes != plan->sent_bytes)
            fail_msg("%s: rank %u sent %llu bytes, the program says %llu", what->name, r,
                     (unsigned long long)result->run.summary.ranks[r].sent_bytes,
                     (unsigned long long)plan->sent_bytes);
    if (plan->sent_bytes != must_be)
        fail_msg("%s: %llu bytes are sent, by the formulas %llu", what->name,
                 (unsigned long long)plan->sent_bytes, (unsigned long long)must_be);
    if (what->stage == 3 && what->stays_below == 0 && mpi_world > 1)
        assert_int_equal(plan->held_stages > 0, what->reuses);
    /* Padding is all that the elements of units have beyond the model's parameters. */
    assert_true(sum.padded >= plan->param_count &&
                sum.padded < plan->param_count + unit_count * (mpi_world + 1) * STEP_ELEMS);
    if (mpi_world == 1)
        return;
    double share = (double)(mpi_world - 1) / mpi_world, elem_bytes = shape.bf16 ? 2 : 4;
    double norm_bytes = (double)((mpi_world - 1) * sum.norm_blocks * sizeof(double));
    double elems = ((double)plan->sent_bytes - norm_bytes) / elem_bytes / share;
    printf("%u ranks, %-28s %8llu bytes: %.3f P, of %llu elements padded from %llu; norm %.0f\n",
           mpi_world, what->name, (unsigned long long)plan->sent_bytes, elems / (double)sum.padded,
           (unsigned long long)sum.padded, (unsigned long long)plan->param_count, norm_bytes);
}

static void set_volume(fixture_sets *sets, const struct volume *what)
{
    static const char *const zero = "zero_optimization";
    memset(sets, 0, sizeof *sets);
    fixture_set(sets, "run.steps=4");
    fixture_set(sets, "model.tie_embeddings=%s", is_tied ? "true" : "false");
    fixture_set(sets, "%s.stage=%u", zero, what->stage);
    fixture_set(sets, "%s.stage3_param_persistence_threshold=%u", zero,
                (unsigned)what->stays_below);
    if (!what->reuses)
        fixture_set(sets, "%s.stage3_max_reuse_distance=0", zero);
    if (what->by_batch)
        fixture_set(sets, "schedule.order=batch_major");
    for (int k = 0; k < 2 && what->sets[k]; k++)
        fixture_set(sets, "%s", what->sets[k]);
}

static void ranks_send_what_the_formulas_say(void **state)
{
    (void)state;
    static fixture_sets sets;
    static mpi_result result;
    set_volume(&sets, &volumes[0]);
    unit_count = mpi_units(&shape, &sets, unit_elems);
    assert_true(mpi_rank != 0 || unit_count == shape.layers + 2);
    for (size_t i = 0; i < sizeof volumes / sizeof volumes[0]; i++) {
        set_volume(&sets, &volumes[i]);
        mpi_train_good("volume", &shape, &sets, &result);
        if (mpi_rank == 0)
            check(&volumes[i], &result);
    }
}

int main(int argc, char **argv)
{
    mpi_launch(argc, argv);
    if (argc > 2) {
        is_tied = strstr(argv[2], "llama") == NULL;
        shape.family = is_tied ? "gpt2" : "llama";
        shape.bf16 = strstr(argv[2], "bf16") != NULL;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_send_what_the_formulas_say)};
    return mpi_end(cmocka_run_group_tests(tests, mpi_setup, mpi_teardown));
}
