/* Several ranks train as one: ZeRO's stages, placements and times of update give the same bits at
 * the same number of ranks and in the same order, and the losses of one rank at the same global
 * batch to 1e-4. One rank gives the same bits in both orders.
 *
 * test_ranks_stages RANKS FAMILY-DTYPE[-split][-m16|-m8][-muon] [CASE...]
 *
 * -split: split masters; -m16, -m8: moments in bf16 or in 8 bits; -muon: the optimizer. CASE is one
 * of stages, parts, canary, curve, experts, draws=SEED-SEED, overflow, scale, stop. */
#include <math.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "tests/ranks/mpi_fixture.h"
#include "tests/train/drawn_job.h"
#include "tests/unit.h"
#include "train/train.h"

#define TOLERANCE 1e-4 /* relative, of a loss: sums over ranks are taken in another order */

enum {
    STAGES = 4,
    MICRO_BATCHES = 2, /* fixture_job's */
    CURVE_STEPS = 50,
    DRAW_STREAM = 92,
    PROGRAMS = 5,
};

static fixture_model shape = {.family = "gpt2", .layers = 2, .hidden = 64};
static bool is_fp16, is_split, is_muon;
static const char *moments = "fp32";
static uint64_t first_seed = 1, last_seed = 1;

/* The family's usual embeddings, the dtype asked for. */
static void begin_sets(fixture_sets *sets)
{
    memset(sets, 0, sizeof *sets);
    fixture_set(sets, "model.tie_embeddings=%s",
                strcmp(shape.family, "gpt2") == 0 ? "true" : "false");
    fixture_set(sets, "state.moments=%s", moments);
    fixture_set(sets, "state.master=%s", is_split ? "split" : "fp32");
    if (is_fp16)
        fixture_set(sets, "fp16={\"enabled\":true,\"initial_scale_power\":12,\"hysteresis\":1}");
    if (is_muon)
        fixture_set(sets, "optimizer={\"type\":\"Muon\",\"params\":{\"lr\":3e-3}}");
}

/* Stage 3 with no unit that stays: all here are smaller than what stays by default. */
static void set_stage(fixture_sets *sets, unsigned stage)
{
    fixture_set(sets, "zero_optimization.stage=%u", stage);
    fixture_set(sets, "zero_optimization.stage3_param_persistence_threshold=0");
}

/* ---- stages ---- */

/* Uneven: units that do not divide, three rows a micro-batch, three micro-batches, evaluations
 * between. */
static void set_uneven(fixture_sets *sets)
{
    begin_sets(sets);
    fixture_set(sets, "model.vocab_size=601");
    fixture_set(sets, "train_micro_batch_size_per_gpu=3");
    fixture_set(sets, "gradient_accumulation_steps=3");
    fixture_set(sets, "run.steps=7");
    fixture_set(sets, "run.eval_every=3");
    fixture_set(sets, "run.eval_batches=12");
}

struct way {
    const char *name;
    const char *sets[7];
};

static const struct way ways[] = {
    {"stage 0", {"zero_optimization.stage=0"}},
    {"stage 1", {"zero_optimization.stage=1"}},
    {"stage 2", {"zero_optimization.stage=2"}},
    {"stage 3, all gathered anew",
     {"zero_optimization.stage=3", "zero_optimization.stage3_param_persistence_threshold=0",
      "zero_optimization.stage3_max_reuse_distance=0"}},
    {"stage 3, the smaller units stay",
     {"zero_optimization.stage=3", "zero_optimization.stage3_param_persistence_threshold=45000"}},
    {"stage 3, all on drives, behind the backward",
     {"zero_optimization.stage=3", "zero_optimization.stage3_param_persistence_threshold=0",
      "tiers.place.optimizer=nvme", "tiers.place.params=nvme", "tiers.place.grads=nvme",
      "tiers.place.activations=nvme", "schedule.update=after_backward"}},
    {"stage 3, all in host memory, as planned",
     {"zero_optimization.stage=3", "zero_optimization.stage3_param_persistence_threshold=0",
      "tiers.place.optimizer=host", "tiers.place.params=host", "tiers.place.grads=host",
      "tiers.place.activations=host"}},
};

static const struct way batch_ways[] = {
    {"stage 0, batch by batch", {"schedule.order=batch_major", "zero_optimization.stage=0"}},
    {"stage 1, batch by batch",
     {"schedule.order=batch_major", "zero_optimization.stage=1", "tiers.place.grads=nvme"}},
    {"stage 2, batch by batch",
     {"schedule.order=batch_major", "zero_optimization.stage=2", "tiers.place.grads=host",
      "tiers.place.optimizer=host", "schedule.tile_elems=32768"}},
    {"stage 3, batch by batch",
     {"schedule.order=batch_major", "zero_optimization.stage=3",
      "zero_optimization.stage3_param_persistence_threshold=0", "tiers.place.grads=device"}},
};

/* One way after the other: the norm in one part, unit by unit, in parts of a few units. */
static const uint64_t norm_part_bytes[3] = {0, 1, 256};

/* All of the ways give the bits of the first one. */
static void try_ways(const struct way *tried, size_t count, unsigned part_bytes, mpi_result *first)
{
    static mpi_result result;
    for (size_t i = 0; i < count; i++) {
        static fixture_sets sets;
        set_uneven(&sets);
        fixture_set(&sets, "model.max_part_bytes=%u", part_bytes);
        for (int k = 0; k < 7 && tried[i].sets[k]; k++)
            fixture_set(&sets, "%s", tried[i].sets[k]);
        const mpi_call call = {.name = "way", .norm_part_bytes = norm_part_bytes[i % 3]};
        mpi_train_call(&call, &shape, &sets, i ? &result : first);
        if (i > 0)
            mpi_assert_same(tried[i].name, first, &result);
    }
}

enum { WAYS = sizeof ways / sizeof ways[0], BATCH_WAYS = sizeof batch_ways / sizeof batch_ways[0] };

/* Stages agree in either order, and the orders on one rank. */
static void try_all_ways(unsigned part_bytes, mpi_result *first)
{
    static mpi_result by_batch;
    try_ways(ways, WAYS, part_bytes, first);
    try_ways(batch_ways, BATCH_WAYS, part_bytes, &by_batch);
    if (mpi_world == 1)
        mpi_assert_same("batch by batch", first, &by_batch);
    for (uint32_t i = 0; mpi_rank == 0 && i < 3; i++)
        assert_true(fabs(by_batch.eval_losses[i] / first->eval_losses[i] - 1) <= 5e-3);
}

/* The same of units that are cut, which share gathers and, where they are tied, rest between head
 * and embedding. */
static void parts_give_equal_bits(void **state)
{
    static mpi_result first;
    try_all_ways(shape.bf16 || is_fp16 ? 16384 : 32768, &first);
}

static void stages_give_equal_bits(void **state)
{
    static mpi_result first, alone;
    try_all_ways(0, &first);
    if (mpi_rank == 0) {
        assert_int_equal(first.run.step_count, 7);
        assert_int_equal(first.eval_count, 3); /* after steps 3 and 6, and at the end */
        assert_true(first.run.losses[6] < first.run.losses[0]);
    }
    static fixture_sets sets;
    set_uneven(&sets);
    mpi_train_alone("alone", &shape, &sets, 3 * mpi_world, &alone);
    double tolerance = is_fp16 || shape.bf16 ? 5e-3 : TOLERANCE, worst = 0;
    for (uint32_t i = 0; mpi_rank == 0 && i < 3; i++) {
        double far = fabs(first.eval_losses[i] / alone.eval_losses[i] - 1);
        worst = fmax(worst, far);
        if (!(far <= tolerance))
            fail_msg("evaluation %u: %.7g, and %.7g of one rank", i, first.eval_losses[i],
                     alone.eval_losses[i]);
    }
    printf(
        "%u ranks: %d and %d ways agree; held-out losses differ from one rank's by %.2g at most\n",
        mpi_world, WAYS, BATCH_WAYS, worst);
}

/* The comparison can fail. */
static void other_settings_give_other_bits(void **state)
{
    static const char *const changes[] = {"data.seed=4", "communication_data_type=fp16",
                                          "gradient_accumulation_steps=3"};
    static mpi_result first, result;
    for (size_t i = 0; i <= sizeof changes / sizeof changes[0]; i++) {
        static fixture_sets sets;
        begin_sets(&sets);
        fixture_set(&sets, "run.steps=3");
        bool is_without = is_fp16 && i == 2;
        if (i > 0 && !is_without)
            fixture_set(&sets, "%s", changes[i - 1]);
        mpi_train_good("other", &shape, &sets, i ? &result : &first);
        bool is_changed = i > 0 && !is_without && (i != 2 || mpi_world > 1);
        if (mpi_rank == 0 && i > 0)
            assert_true((first.run.weights_hash != result.run.weights_hash) == is_changed);
    }
}

/* ---- experts ---- */

/* Each rank has 8 tokens a step, which choose one of 24 experts each. */
static void set_experts(fixture_sets *sets, unsigned stage, const char *order, const char *fetch)
{
    static const char *const plain[] = {
        "run.steps=4",           "run.eval_every=2",   "model.seq_length=4", "num_experts=24",
        "num_experts_per_tok=1", "expert_ffn_size=16", "experts_per_unit=1"};
    memset(sets, 0, sizeof *sets);
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++)
        fixture_set(sets, "%s%s", i < 3 ? "" : "model.", plain[i]);
    fixture_set(sets, "train_micro_batch_size_per_gpu=1");
    fixture_set(sets, "schedule.order=%s", order);
    fixture_set(sets, "schedule.experts=%s", fetch);
    fixture_set(sets, "zero_optimization.stage3_max_reuse_distance=0");
    set_stage(sets, stage);
}

/* Where params are sharded, the ranks agree on what none of their tokens chose. It is neither read
 * nor copied nor gathered, and the bits are those of the run that fetches all. */
static void experts_of_no_rank_stay(void **state)
{
    static const char *const orders[] = {"layer_major", "batch_major"};
    static const char *const learns[] = {
        "train.only=[\"all\"]", "train.lora={\"rank\":2,\"targets\":[\"q_proj\"]}",
        "train.lora={\"rank\":2,\"targets\":[\"experts.down_proj\"]}"};
    static const char *const homes[] = {"nvme", "host", "device"};
    static mpi_result all, hit;
    static fixture_sets sets;
    shape = (fixture_model){.family = "mixtral", .bf16 = true, .layers = 2, .hidden = 64};
    for (unsigned i = 0; i < 6; i++) {
        const char *params = homes[i / 2], *learning = learns[i % 3];
        set_experts(&sets, i % 2 ? 3 : 1, orders[i % 2], "all");
        fixture_set(&sets, "tiers.place.params=host");
        fixture_set(&sets, "%s", learning);
        mpi_train_good("all", &shape, &sets, &all);
        set_experts(&sets, 3, orders[i % 2], "hit");
        fixture_set(&sets, "tiers.place.params=%s", params);
        fixture_set(&sets, "%s", learning);
        if (i == 4)
            fixture_set(&sets, "run.paranoid=true");
        mpi_train_good("hit", &shape, &sets, &hit);
        mpi_assert_same(params, &all, &hit);
        const metrics_lane *lanes = hit.run.summary.lanes;
        if (mpi_rank != 0)
            continue;
        assert_true((lanes[LANE_READ].spared_bytes > 0) == (i / 2 == 0));
        assert_true((lanes[LANE_H2D].spared_bytes > 0) == (i / 2 < 2));
        assert_true((lanes[LANE_COMM].spared_bytes > 0) == (mpi_world > 1));
        printf("%s, %s, %s: %llu of %llu bytes not sent\n", params, orders[i % 2], learning,
               (unsigned long long)lanes[LANE_COMM].spared_bytes,
               (unsigned long long)(lanes[LANE_COMM].spared_bytes + lanes[LANE_COMM].bytes));
    }
}

/* ---- one rank's curve ---- */

static void curves_follow_one_rank(void **state)
{
    static fixture_sets sets;
    static mpi_result alone, first, result;
    begin_sets(&sets);
    fixture_set(&sets, "run.steps=%d", CURVE_STEPS);
    mpi_train_alone("alone", &shape, &sets, MICRO_BATCHES * mpi_world, &alone);
    for (unsigned stage = 0; stage < STAGES; stage++) {
        fixture_sets own = sets;
        set_stage(&own, stage);
        mpi_train_good("curve", &shape, &own, stage ? &result : &first);
        char text[32];
        snprintf(text, sizeof text, "stage %u", stage);
        if (stage > 0)
            mpi_assert_same(text, &first, &result);
    }
    if (mpi_rank != 0)
        return;
    assert_int_equal(alone.run.step_count, CURVE_STEPS);
    double worst = 0;
    for (int i = 0; i < CURVE_STEPS; i++) {
        double far = fabs(first.run.losses[i] / alone.run.losses[i] - 1);
        worst = fmax(worst, far);
        if (!(far <= TOLERANCE))
            fail_msg("step %d: loss %.7g, and %.7g of one rank", i + 1, first.run.losses[i],
                     alone.run.losses[i]);
    }
    assert_true(alone.run.losses[CURVE_STEPS - 1] < alone.run.losses[0] - 1);
    bool is_equal = first.run.weights_hash == alone.run.weights_hash;
    printf("%u ranks, %s: %d steps from %.4f to %.4f, at most %.2g from one rank's, weights %s\n",
           mpi_world, shape.family, CURVE_STEPS, alone.run.losses[0],
           alone.run.losses[CURVE_STEPS - 1], worst, is_equal ? "equal" : "not equal");
}

/* ---- draws ---- */

/* Draws what several ranks add to the settings that decide the bits. */
static void draw_exchange(drawn_job *drawn)
{
    static const char *const wires[] = {"fp32", "bf16", "fp16"};
    fixture_sets *sets = &drawn->sets;
    fixture_set(sets, "run.steps=4");
    fixture_set(sets, "run.eval_every=2");
    if (drawn_job_draw(drawn, 2))
        fixture_set(sets, "communication_data_type=%s", wires[drawn_job_draw(drawn, 3)]);
    fixture_set(sets, "schedule.order=%s",
                drawn_job_draw(drawn, 2) ? "batch_major" : "layer_major");
}

/* Draws the settings that must not change the bits. */
static void draw_program(drawn_job *drawn, fixture_sets *sets)
{
    static const char *const zero = "zero_optimization";
    drawn_job_place(drawn, sets, 3); /* every model has so many units */
    drawn_job_schedule(drawn, sets);
    fixture_set(sets, "%s.stage=%u", zero, (unsigned)drawn_job_draw(drawn, STAGES));
    uint64_t stays = drawn_job_draw(drawn, 3); /* none, some, all */
    if (stays < 2)
        fixture_set(sets, "%s.stage3_param_persistence_threshold=%u", zero,
                    (unsigned)(stays * drawn_job_draw(drawn, 120000)));
    static const char *const limits[] = {"max_reuse_distance", "max_live_parameters",
                                         "prefetch_bucket_size"};
    for (int i = 0; i < 3; i++)
        if (drawn_job_draw(drawn, 3) == 0)
            fixture_set(sets, "%s.stage3_%s=%u", zero, limits[i],
                        (unsigned)drawn_job_draw(drawn, 200000));
    fixture_set(sets, "debug.comm.staging_bytes=%u", 65536u << drawn_job_draw(drawn, 8));
    if (drawn_job_draw(drawn, 3) == 0)
        fixture_set(sets,
                    "tiers.nvme=[{\"path\":\"%s/a-{rank}\",\"budget\":\"64MiB\"},"
                    "{\"path\":\"%s/b\",\"budget\":\"256MiB\"}]",
                    fixture_path("drawn", ".nvme"), fixture_path("drawn", ".nvme"));
}

static void draws_give_equal_bits(void **state)
{
    static drawn_job drawn;
    static fixture_sets sets;
    static mpi_result first, result;
    uint64_t skips = 0;
    log_set_level(LOG_QUIET); /* of draws that warn of themselves */
    for (uint64_t seed = first_seed; seed <= last_seed; seed++) {
        drawn_job_make(&drawn, DRAW_STREAM, seed);
        draw_exchange(&drawn);
        for (int p = 0; p <= PROGRAMS; p++) {
            sets = drawn.sets;
            bool is_tight = false;
            if (p > 0) {
                draw_program(&drawn, &sets);
                is_tight = drawn_job_draw(&drawn, 3) == 0;
                if (is_tight)
                    mpi_tighten("drawn", &drawn.shape, &sets);
            } else {
                fixture_set(&sets, "schedule.update=after_backward");
            }
            job *asked = mpi_job("drawn", &drawn.shape, &sets);
            mpi_call call = {.name = "drawn",
                             .simulates_drives = p > 0 && drawn_job_draw(&drawn, 4) == 0};
            if (p > 0 && !is_tight) /* which is of a norm in one part */
                call.norm_part_bytes = UINT64_C(1) << drawn_job_draw(&drawn, 10);
            mpi_train(asked, &call, p > 0 ? &result : &first);
            job_destroy(asked);
            char text[64];
            snprintf(text, sizeof text, "seed %u (%s), program %d", (unsigned)seed,
                     drawn.shape.family, p);
            mpi_result *now = p > 0 ? &result : &first;
            if (now->run.rc < 0)
                fail_msg("%s: %s", text, now->run.error);
            if (p > 0)
                mpi_assert_same(text, &first, now);
        }
        for (uint64_t i = 0; i < first.run.step_count; i++)
            skips += first.run.skipped[i];
    }
    printf("%u ranks, seeds %u to %u: %u programs agree with their plain one; %u steps skipped\n",
           mpi_world, (unsigned)first_seed, (unsigned)last_seed,
           (unsigned)((last_seed - first_seed + 1) * PROGRAMS), (unsigned)skips);
}

/* ---- overflow ---- */

/* Steps of a run whose weights stay as they are, at a static loss scale; gradients are fp32 but
 * in the activations, so that what overflows does so within a rank. */
static void set_still(fixture_sets *sets, uint64_t steps, double scale)
{
    begin_sets(sets);
    fixture_set(sets, "fp16={\"enabled\":true,\"loss_scale\":%.17g}", scale);
    fixture_set(sets, "optimizer={\"type\":\"AdamW\",\"params\":{\"lr\":0}}");
    fixture_set(sets, "scheduler={\"type\":\"WarmupLR\",\"params\":{\"warmup_max_lr\":0}}");
    fixture_set(sets, "data_types.grad_accum_dtype=fp32");
    fixture_set(sets, "communication_data_type=fp32");
    fixture_set(sets, "run.steps=%u", (unsigned)steps);
}

enum { STILL_STEPS = 4 };

static uint32_t count_skips(const mpi_result *result)
{
    uint32_t count = 0;
    for (uint64_t i = 0; i < result->run.step_count; i++)
        count += result->run.skipped[i];
    return count;
}

/* A step has one part for each rank. Returns how many of these parts overflow. */
static uint32_t count_parts(const mpi_result *parts, uint32_t step_idx)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < mpi_world; r++)
        count += parts->run.skipped[step_idx * mpi_world + r];
    return count;
}

/* Whether some of the ranks' parts of a step overflow and not the others, and none of another
 * step. */
static bool is_mixed(const mpi_result *parts)
{
    uint32_t mixed = 0, whole = 0;
    for (uint32_t i = 0; i < STILL_STEPS; i++) {
        uint32_t count = count_parts(parts, i);
        mixed += count > 0 && (count < mpi_world || mpi_world == 1);
        whole += count == 0;
    }
    return mixed > 0 && whole > 0;
}

/* Finds a scale for which is_mixed holds. Each part is a step of a run of one rank at 1/world of
 * the scale, since the mean is over all ranks' tokens. Rank 0 finds the scale for all ranks. */
static double find_scale(mpi_result *parts)
{
    static fixture_sets sets;
    double low = 1, high = (double)(1ull << 40); /* none overflows, all do */
    for (int i = 0; i < 60; i++) {
        double middle = sqrt(low * high);
        set_still(&sets, STILL_STEPS * mpi_world, middle);
        mpi_train_alone("part", &shape, &sets, MICRO_BATCHES, parts);
        bool is_too_much = parts->run.rc < 0; /* ten skips in a row end a run */
        uint8_t verdict = is_too_much ? 2 : is_mixed(parts) ? 1 : count_skips(parts) ? 2 : 0;
        assert_ok(comm_broadcast(mpi_comm, "verdict", &verdict, sizeof verdict));
        if (verdict == 1)
            return middle;
        *(verdict == 0 ? &low : &high) = middle;
    }
    fail_msg("there is no loss scale at which parts of a step overflow");
    return 0;
}

static void one_ranks_overflow_skips_the_step_of_all(void **state)
{
    static mpi_result parts, result, first;
    static fixture_sets sets;
    log_set_level(LOG_QUIET); /* of warnings at each skip */
    double scale = find_scale(&parts);
    for (unsigned stage = 0; stage < STAGES; stage++) {
        set_still(&sets, STILL_STEPS, scale * mpi_world);
        set_stage(&sets, stage);
        mpi_train_good("still", &shape, &sets, stage ? &result : &first);
        if (stage > 0)
            mpi_assert_same("a stage", &first, &result);
    }
    for (uint32_t i = 0; mpi_rank == 0 && i < STILL_STEPS; i++) {
        uint32_t count = count_parts(&parts, i);
        if (first.run.skipped[i] != (count > 0))
            fail_msg("step %u: %u of %u ranks overflow, but it is %sskipped", i + 1, count,
                     mpi_world, first.run.skipped[i] ? "" : "not ");
    }
    printf("%u ranks, scale %g: of %d steps' parts %u overflow, and %u steps are skipped\n",
           mpi_world, scale * mpi_world, STILL_STEPS, count_skips(&parts), count_skips(&first));
}

/* With the scale falling from far too high all ranks skip and lower it alike, and then learn. */
static void falling_scales_are_equal(void **state)
{
    static mpi_result first, result;
    static fixture_sets sets;
    for (unsigned stage = 0; stage < STAGES; stage++) {
        begin_sets(&sets);
        fixture_set(&sets, "fp16={\"enabled\":true,\"initial_scale_power\":32,\"hysteresis\":1,"
                           "\"loss_scale_window\":4}");
        fixture_set(&sets, "run.steps=24");
        set_stage(&sets, stage);
        mpi_train_good("falling", &shape, &sets, stage ? &result : &first);
        if (stage > 0) {
            mpi_assert_same("a stage", &first, &result);
            assert_memory_equal(first.scales, result.scales, sizeof first.scales);
        }
    }
    if (mpi_rank == 0) {
        uint32_t skips = count_skips(&first);
        assert_true(skips >= 3 && skips < 20);
        printf("%u ranks: %u of 24 steps skipped, scales from %g to %g\n", mpi_world, skips,
               first.scales[0], first.scales[23]);
    }
}

/* ---- a stop ---- */

static volatile sig_atomic_t is_asked;

static int ask_at_commit(void *user, const char *point)
{
    if (strcmp(point, "commit.begin") == 0)
        is_asked = 1;
    return 0;
}

/* The last rank alone is asked, in the middle of a step; all stop behind the same one, and go
 * on. */
static void a_stop_of_one_is_a_stop_of_all(void **state)
{
    static mpi_result whole, half, rest;
    static fixture_sets sets;
    static struct train_summary seen[MPI_RANKS_MAX];
    begin_sets(&sets);
    set_stage(&sets, 3);
    fixture_set(&sets, "tiers.place.optimizer=nvme");
    mpi_train_good("whole", &shape, &sets, &whole);
    job *asked = mpi_job("stopped", &shape, &sets);
    if (mpi_rank + 1 == mpi_world)
        failpoint_hook(ask_at_commit, NULL);
    const mpi_call call = {.name = "stopped", .keeps = true, .stop = &is_asked};
    mpi_train(asked, &call, &half);
    failpoint_hook(NULL, NULL);
    is_asked = 0;
    assert_int_equal(half.run.rc, ERR_STOPPED);
    assert_ok(comm_exchange(mpi_comm, "summaries", &half.run.summary, sizeof seen[0], seen));
    for (uint32_t r = 0; r < mpi_world; r++)
        assert_int_equal(seen[r].step, seen[0].step);
    assert_true(seen[0].step >= 3 && seen[0].step < 20);
    mpi_train(asked, &call, &rest);
    job_destroy(asked);
    if (rest.run.rc < 0)
        fail_msg("%s", rest.run.error);
    assert_true(rest.run.summary.was_resumed);
    mpi_assert_same("stopped and gone on", &whole, &rest);
    printf("%u ranks stopped behind step %u\n", mpi_world, (unsigned)seen[0].step);
    mpi_barrier();
    if (mpi_rank == 0)
        fixture_remove("stopped");
}

/* ---- */

static int run_cases(int count, char **cases)
{
    static const struct {
        const char *name;
        struct CMUnitTest test;
    } known[] = {
        {"stages", cmocka_unit_test(stages_give_equal_bits)},
        {"parts", cmocka_unit_test(parts_give_equal_bits)},
        {"canary", cmocka_unit_test(other_settings_give_other_bits)},
        {"curve", cmocka_unit_test(curves_follow_one_rank)},
        {"experts", cmocka_unit_test(experts_of_no_rank_stay)},
        {"draws", cmocka_unit_test(draws_give_equal_bits)},
        {"overflow", cmocka_unit_test(one_ranks_overflow_skips_the_step_of_all)},
        {"scale", cmocka_unit_test(falling_scales_are_equal)},
        {"stop", cmocka_unit_test(a_stop_of_one_is_a_stop_of_all)},
    };
    int failures = 0;
    for (int c = 0; c < count; c++)
        for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
            size_t length = strlen(known[i].name);
            if (strncmp(cases[c], known[i].name, length) != 0)
                continue;
            if (cases[c][length] == '=') {
                char *end;
                first_seed = last_seed = strtoull(cases[c] + length + 1, &end, 10);
                if (*end == '-')
                    last_seed = strtoull(end + 1, NULL, 10);
            }
            const struct CMUnitTest tests[] = {known[i].test};
            failures += cmocka_run_group_tests(tests, mpi_setup, mpi_teardown);
        }
    return failures;
}

int main(int argc, char **argv)
{
    mpi_launch(argc, argv);
    if (argc > 2) {
        shape.family = strstr(argv[2], "llama") ? "llama" : "gpt2";
        shape.bf16 = strstr(argv[2], "bf16") != NULL;
        is_split = strstr(argv[2], "-split") != NULL;
        is_fp16 = strstr(argv[2], "fp16") != NULL;
        is_muon = strstr(argv[2], "-muon") != NULL;
        moments = strstr(argv[2], "-m16") ? "bf16" : strstr(argv[2], "-m8") ? "8bit" : "fp32";
    }
    return mpi_end(argc > 3 ? run_cases(argc - 3, argv + 3) : 2);
}
