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
 *   units in parts    3P    as stage 3, where recomputation and backward of a part share a gather.
 *                     Otherwise all but the last layer's are gathered once more: 3.67P. A tied
 *                     embedding is reduced at each end
 *   batch by batch    each micro-batch's gradient is reduced, and in stage 3 its params gathered; a
 *                     tied embedding's own part of its gradient is reduced once more
 *
 * To these the norm's sums are added: 8 bytes for each 4096 elements of its shards, to each other
 * rank.
 *
 * test_ranks_volume RANKS FAMILY-DTYPE */
#include <math.h>

#include "setup/summary.h"
#include "tests/ranks/mpi_fixture.h"
#include "tests/unit.h"

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
    bool in_parts; /* model.max_part_bytes; nothing but boundaries is kept */
};

static const struct volume volumes[] = {
    {.name = "stage 0"},
    {.name = "stage 1", .stage = 1},
    {.name = "stage 2", .stage = 2, .sets = {"schedule.update=after_backward"}},
    {.name = "stage 2, batch by batch",
     .stage = 2,
     .by_batch = true,
     .sets = {"tiers.place.grads=host"}},
    {.name = "stage 3", .stage = 3},
    {.name = "stage 3 on drives",
     .stage = 3,
     .sets = {"tiers.place.params=nvme", "tiers.place.grads=nvme"}},
    {.name = "stage 3, smaller units stay", .stage = 3, .stays_below = 48000},
    {.name = "stage 3, all units stay", .stage = 3, .stays_below = 1000000},
    {.name = "stage 0, batch by batch", .by_batch = true, .sets = {"tiers.place.grads=nvme"}},
    {.name = "stage 3, batch by batch", .stage = 3, .by_batch = true},
    {.name = "stage 3 with reuse", /* little to compute, so that it pays */
     .stage = 3,
     .reuses = true,
     .sets = {"train_micro_batch_size_per_gpu=1", "gradient_accumulation_steps=1"}},
    {.name = "stage 2, in parts", .stage = 2, .in_parts = true, .sets = {"tiers.place.grads=host"}},
    {.name = "stage 3, parts gathered anew", .stage = 3, .in_parts = true},
    {.name = "stage 3, parts share gathers", .stage = 3, .in_parts = true, .reuses = true},
    {.name = "stage 3, parts batch by batch",
     .stage = 3,
     .in_parts = true,
     .reuses = true,
     .by_batch = true,
     .sets = {"tiers.place.grads=host"}},
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

/* ---- units in parts ---- */

/* Names are "embed.0" (a part of the table), "embed.positions.0", "block.0.qkv.1", "head.norm" and,
 * where the embedding is not tied, "head.0". */
static bool has_word(uint32_t unit, const char *word)
{
    return strstr(mpi_unit_names[unit], word) != NULL;
}

static bool is_tied_part(uint32_t unit)
{
    return is_tied && has_word(unit, "embed.") && !has_word(unit, "positions");
}

/* A part of the output matrix, which follows the final norm in the head. */
static bool is_output(uint32_t unit)
{
    return is_tied_part(unit) || (has_word(unit, "head.") && !has_word(unit, "norm"));
}

static bool is_of_block(uint32_t unit)
{
    return strncmp(mpi_unit_names[unit], "block.", 6) == 0;
}

/* Blocks are numbered with one digit: "block.0.qkv.1". The last layer is not recomputed. */
static bool is_recomputed_with(uint32_t unit, uint32_t other)
{
    return is_of_block(unit) && strncmp(mpi_unit_names[unit], mpi_unit_names[other], 7) == 0 &&
           !has_word(unit, "down");
}

/* How many parts come between the unit's and the turn of its stage's backward. */
static uint32_t parts_after(uint32_t unit)
{
    uint32_t count = 0;
    for (uint32_t u = 0; u < unit_count; u++)
        if (is_of_block(unit))
            count += u > unit && is_recomputed_with(u, unit);
        else
            count += is_output(u) && (u > unit || !is_output(unit));
    return count;
}

/* How often a pass through all stages and back gathers the part. */
static uint64_t part_uses(uint32_t unit, uint64_t held)
{
    bool is_shared = parts_after(unit) < held;
    if (is_of_block(unit))
        return 2 + (!has_word(unit, "down") && !is_shared);
    if (is_tied_part(unit)) /* of the embedding, too */
        return is_shared ? 2 : 3;
    return has_word(unit, "embed") || is_shared ? 1 : 2;
}

/* How often a step reduces the part. Where the embedding is tied its backward is one for all
 * micro-batches. */
static uint64_t part_reductions(uint32_t unit, uint64_t rounds)
{
    if (is_tied_part(unit))
        return rounds + 1;
    return is_tied && has_word(unit, "embed") ? 1 : rounds;
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
        uint64_t shard = shard_of(u), uses = what->in_parts ? part_uses(u, held) : uses_of(u, held);
        bool stays = unit_elems[u] < what->stays_below;
        sum.reduced += shard * (what->in_parts ? part_reductions(u, rounds)
                                               : rounds + (what->by_batch && u == 0 && is_tied));
        sum.gathered += shard * (what->stage < 3 || stays ? 1 : rounds * uses);
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
    struct sums sum = sum_up(what, plan->held_stages + plan->held_passes);
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
        assert_int_equal(plan->held_stages + plan->held_passes > 0, what->reuses);
    for (uint32_t u = 0; what->in_parts && what->reuses && u < unit_count; u++)
        assert_true(plan->held_passes > parts_after(u)); /* there is room for all */
    /* Padding is all that the elements of units have beyond the model's parameters. */
    assert_true(sum.padded >= plan->param_count &&
                sum.padded < plan->param_count + unit_count * (mpi_world + 1) * STEP_ELEMS);
    if (mpi_world == 1)
        return;
    double share = (double)(mpi_world - 1) / mpi_world, elem_bytes = shape.bf16 ? 2 : 4;
    double norm_bytes = (double)((mpi_world - 1) * sum.norm_blocks * sizeof(double));
    double elems = ((double)plan->sent_bytes - norm_bytes) / elem_bytes / share;
    double times = (double)(mpi_world * (sum.gathered + sum.reduced)) / (double)sum.padded;
    assert_true(fabs(plan->sent_times - times) < 1e-9);
    if (!what->by_batch && !is_tied && what->reuses)
        assert_true(times <= 3);
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
    if (what->in_parts) {
        fixture_set(sets, "model.max_part_bytes=%d", shape.bf16 ? 16384 : 32768);
        fixture_set(sets, "tiers.place.inner_activations=recompute");
    }
    for (int k = 0; k < 2 && what->sets[k]; k++)
        fixture_set(sets, "%s", what->sets[k]);
}

static void ranks_send_what_the_formulas_say(void **state)
{
    static fixture_sets sets;
    static mpi_result result;
    for (size_t i = 0; i < sizeof volumes / sizeof volumes[0]; i++) {
        set_volume(&sets, &volumes[i]);
        if (i == 0 || volumes[i].in_parts != volumes[i - 1].in_parts) {
            unit_count = mpi_units(&shape, &sets, unit_elems);
            assert_true(mpi_rank != 0 || (unit_count == shape.layers + 2) != volumes[i].in_parts);
        }
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
