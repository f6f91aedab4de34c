/* Random models under random budgets, placements and modes: each ends in a refusal whose figures
 * are right, or in a run that gives the bits of the run that keeps everything in memory. Argument:
 * which quarter of the seeds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "base/tile.h"
#include "setup/summary.h"
#include "tests/train/train_fixture.h"

enum { MODELS = 15, PROGRAMS = 5, STEPS = 3, DRAW_STREAM = 91, KINDS = 5 };

static const char *const kinds[KINDS] = {"params", "grads", "optimizer", "activations",
                                         "inner_activations"};
static const char *const tiers[] = {"device",    "host",           "nvme",          "recompute",
                                    "selective", "selective_host", "selective_nvme"};
static const char *const budget_keys[2] = {"tiers.device.budget", "tiers.host.budget"};

static uint64_t first_seed = 1;

struct draws {
    uint64_t seed, counter;
};

static uint64_t draw(struct draws *d, uint64_t bound)
{
    return rng_below(d->seed, DRAW_STREAM, d->counter++, bound);
}

/* Draws the settings that decide the bits: family, size, dtype, parts, optimizer, batch. */
static void draw_model(struct draws *d, fixture_model *shape, fixture_sets *sets, bool *is_exact)
{
    static const char *const families[] = {"gpt2",       "llama", "gpt_neox", "cohere",
                                           "starcoder2", "phi3",  "gemma",    "olmo2",
                                           "glm",        "glm4",  "gemma2"};
    static const char *const optimizers[] = {
        "{\"type\":\"AdamW\",\"params\":{\"lr\":1e-3,\"weight_decay\":0.1}}",
        "{\"type\":\"Adam\",\"params\":{\"lr\":1e-3,\"adam_w_mode\":false,\"weight_decay\":0.01}}",
        "{\"type\":\"Lion\",\"params\":{\"lr\":1e-4,\"weight_decay\":0.1}}",
        "{\"type\":\"Adagrad\",\"params\":{\"lr\":1e-2}}",
        "{\"type\":\"Muon\",\"params\":{\"lr\":3e-3,\"momentum\":0.9,\"weight_decay\":0.1}}"};
    memset(sets, 0, sizeof *sets);
    const char *family = families[draw(d, sizeof families / sizeof families[0])];
    uint64_t dtype = draw(d, 3);
    if (strcmp(family, "gpt_neox") == 0)
        fixture_set(sets, "model.parallel_residual=%s", draw(d, 2) ? "true" : "false");
    *shape = (fixture_model){.family = family,
                             .bf16 = dtype == 1,
                             .layers = 1 + (uint32_t)draw(d, 4),
                             .hidden = 64 + 32 * (uint32_t)draw(d, 4)};
    fixture_set(sets, "run.steps=%d", STEPS);
    fixture_set(sets, "model.tie_embeddings=%s", draw(d, 2) ? "true" : "false");
    fixture_set(sets, "model.vocab_size=%u", 256 + (unsigned)draw(d, 400));
    fixture_set(sets, "model.seq_length=%u", 16 + 8 * (unsigned)draw(d, 3));
    fixture_set(sets, "train_micro_batch_size_per_gpu=%u", 1 + (unsigned)draw(d, 3));
    fixture_set(sets, "gradient_accumulation_steps=%u", 1 + (unsigned)draw(d, 4));
    if (dtype == 2)
        fixture_set(sets, "fp16={\"enabled\":true,\"initial_scale_power\":%u,\"hysteresis\":1}",
                    8 + (unsigned)draw(d, 14));
    if (draw(d, 3) == 0)
        fixture_set(sets, "model.max_part_bytes=%u",
                    (unsigned)((dtype == 0 ? 4 : 2) * 1024 * (8 + draw(d, 40))));
    if (draw(d, 2))
        fixture_set(sets, "data_types.grad_accum_dtype=fp32");
    const char *optimizer = optimizers[draw(d, 5)];
    fixture_set(sets, "optimizer=%s", optimizer);
    if (strstr(optimizer, "Muon")) /* whole matrices */
        fixture_set(sets, "model.max_part_bytes=0");
    fixture_set(sets, "scheduler={\"type\":\"WarmupLR\",\"params\":{\"warmup_num_steps\":2}}");
    bool has_window = draw(d, 2);
    if (has_window)
        fixture_set(sets, "model.window=%u", 1 + (unsigned)draw(d, 20));
    if (has_window && draw(d, 2))
        fixture_set(sets, "model.window_pattern=wf");
    *is_exact = dtype != 2 && draw(d, 2);
    if (*is_exact) {
        fixture_set(sets, "gradient_clipping=0");
        if (dtype == 1)
            fixture_set(sets, "bf16.check_grad_overflow=false");
    }
}

static void draw_places(struct draws *d, fixture_sets *sets, uint64_t unit_count)
{
    char rules[2000];
    size_t used = (size_t)snprintf(rules, sizeof rules, "[");
    for (int k = 0; k < KINDS; k++)
        fixture_set(sets, "tiers.place.%s=%s", kinds[k], tiers[draw(d, k == KINDS - 1 ? 7 : 3)]);
    uint64_t count = draw(d, 10);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t k = draw(d, KINDS), first = draw(d, unit_count);
        used += (size_t)snprintf(rules + used, sizeof rules - used,
                                 "%s{\"units\":\"%u-%u\",\"kind\":\"%s\",\"tier\":\"%s\"}",
                                 i ? "," : "", (unsigned)first,
                                 (unsigned)(first + draw(d, unit_count - first)), kinds[k],
                                 tiers[draw(d, k == KINDS - 1 ? 7 : 3)]);
        assert_true(used < sizeof rules - 2);
    }
    fixture_set(sets, "tiers.place.rules=%s]", rules);
}

/* Draws the settings that must not change the bits. */
static void draw_program(struct draws *d, fixture_sets *sets, uint64_t unit_count, bool is_exact)
{
    static const char *const updates[] = {"after_backward", "in_next_forward", "in_backward"};
    draw_places(d, sets, unit_count);
    fixture_set(sets, "schedule.order=%s", draw(d, 2) ? "batch_major" : "layer_major");
    fixture_set(sets, "schedule.update=%s", updates[draw(d, is_exact ? 3 : 2)]);
    fixture_set(sets, "schedule.tile_elems=%u",
                draw(d, 2) ? 0 : (unsigned)TILE_ELEMS_STEP << draw(d, 3));
    fixture_set(sets, "debug.schedule.lookahead=%u", draw(d, 2) ? 0 : 1 + (unsigned)draw(d, 40));
    fixture_set(sets, "io.backend=%s", draw(d, 2) ? "uring" : "pool");
    for (int i = 0; i < 2; i++)
        fixture_set(sets, "%s=%u", budget_keys[i],
                    draw(d, 3) ? FIXTURE_BUDGET_BYTES : 65536u << draw(d, 9));
}

struct counts {
    int ran, refused;
};

/* A refusal names budgets that suffice, and of which half does not. They are what the serial order
 * of ops needs; a schedule may do with less: a job in parts whose gradients rest on the drive and
 * which goes layer by layer needs a third less. */
static void check_refusal(const char *name, const fixture_model *shape, fixture_sets *sets,
                          const char *error, fixture_result *result)
{
    uint64_t bytes[2];
    for (int i = 0; i < 2; i++) {
        bytes[i] = fixture_budget_named(error, budget_keys[i]);
        if (bytes[i])
            fixture_set(sets, "%s=%llu", budget_keys[i], (unsigned long long)bytes[i]);
    }
    assert_true(bytes[0] || bytes[1]);
    for (int i = 0; i < 2; i++) {
        if (!bytes[i])
            continue;
        fixture_sets less = *sets;
        fixture_set(&less, "%s=%llu", budget_keys[i], (unsigned long long)(bytes[i] / 2));
        job *asked = fixture_job(name, shape, &less);
        struct setup_summary plan;
        assert_int_equal(setup_plan_on(asked, &(struct setup_plan_options){0}, &plan), ERR_NO_FIT);
        job_destroy(asked);
    }
    fixture_train_good(name, shape, sets, result);
}

static void run_program(const char *name, const fixture_model *shape, fixture_sets *sets,
                        bool simulates, struct counts *counts, fixture_result *result)
{
    job *asked = fixture_job(name, shape, sets);
    fixture_call call = {.name = name, .simulates_drives = simulates};
    fixture_train(asked, &call, result);
    job_destroy(asked);
    if (result->rc == 0) {
        counts->ran++;
    } else if (result->rc == ERR_NO_FIT) {
        counts->refused++;
        assert_false(fixture_exists(fixture_path(name, "")));
        static fixture_result refused;
        refused = *result;
        check_refusal(name, shape, sets, refused.error, result);
    } else {
        fail_msg("%s: %s", err_name(result->rc), result->error);
    }
}

static void random_programs(void **state)
{
    (void)state;
    static fixture_sets model_sets, sets;
    static fixture_result in_memory, moved;
    struct counts counts = {0};
    for (uint64_t m = 0; m < MODELS; m++) {
        struct draws d = {.seed = first_seed + m};
        fixture_model shape;
        bool is_exact;
        draw_model(&d, &shape, &model_sets, &is_exact);
        sets = model_sets;
        fixture_set(&sets, "tiers.place.inner_activations=recompute");
        fixture_set(&sets, "schedule.update=after_backward");
        fixture_train_good("memory", &shape, &sets, &in_memory);
        fixture_remove("memory");
        assert_int_equal(in_memory.plan.lane_bytes[LANE_READ], 0);
        for (int p = 0; p < PROGRAMS; p++) {
            sets = model_sets;
            draw_program(&d, &sets, in_memory.plan.unit_count, is_exact);
            printf("seed %llu, program %d\n", (unsigned long long)d.seed, p);
            fflush(stdout);
            run_program("moved", &shape, &sets, draw(&d, 4) == 0, &counts, &moved);
            fixture_assert_same(&in_memory, &moved);
            assert_memory_equal(in_memory.skipped, moved.skipped, sizeof moved.skipped);
            fixture_remove("moved");
        }
    }
    print_message(
        "seeds %llu to %llu: %d programs ran, %d were refused and ran with the bytes named\n",
        (unsigned long long)first_seed, (unsigned long long)(first_seed + MODELS - 1), counts.ran,
        counts.refused);
    assert_true(counts.ran >= 20 && counts.refused >= 5);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        first_seed = 1 + MODELS * (strtoull(argv[1], NULL, 10) - 1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_programs)};
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
