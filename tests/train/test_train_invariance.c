/* Where states rest, in what pieces they move and when they are updated changes no bit: losses
 * of all steps and final weights against a run with everything on the device. Argument:
 * FAMILY-DTYPE. With SLUICE_TEST_MANY in the environment the runs are longer. */
#include "base/rng.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"

enum { SHAPE_COMBINATIONS = 27, RANDOM_SEED = 20, TIERS = 3 };

static fixture_model shape = {.family = "gpt2", .layers = 3, .hidden = 128};
static fixture_result baseline;

static const char *const kinds[] = {"params", "grads", "optimizer", "activations"};
static const char *const tiers[TIERS] = {"device", "host", "nvme"};

/* Few are enough beyond the first two, whose programs the others repeat. */
static uint64_t step_count(void)
{
    return (uint64_t)unit_draws(8, 20);
}

struct combination {
    fixture_sets sets;
    char text[256];
    bool uses_nvme, is_tight;
    uint64_t tile_elems;
};

/* The nine placements in which every pair of kinds meets every pair of tiers. */
static void place_kinds(struct combination *c, unsigned i)
{
    unsigned a = i / 3 % 3, b = i % 3;
    unsigned tier[4] = {a, b, (a + b) % 3, (a + 2 * b) % 3};
    for (int k = 0; k < 4; k++) {
        fixture_set(&c->sets, "tiers.place.%s=%s", kinds[k], tiers[tier[k]]);
        c->uses_nvme = c->uses_nvme || tier[k] == 2;
    }
    snprintf(c->text, sizeof c->text, "%s %s %s %s", tiers[tier[0]], tiers[tier[1]], tiers[tier[2]],
             tiers[tier[3]]);
}

/* A tier of its own for every unit and kind. */
static void place_units(struct combination *c, unsigned i, uint64_t unit_count)
{
    char rules[2000];
    size_t used = (size_t)snprintf(rules, sizeof rules, "[");
    assert_true(unit_count * 4 <= JOB_RULES_MAX);
    for (uint64_t u = 0; u < unit_count; u++)
        for (unsigned k = 0; k < 4; k++) {
            uint64_t tier = rng_below(RANDOM_SEED, i, u * 4 + k, TIERS);
            c->uses_nvme = c->uses_nvme || tier == 2;
            used += (size_t)snprintf(rules + used, sizeof rules - used,
                                     "%s{\"units\":\"%u\",\"kind\":\"%s\",\"tier\":\"%s\"}",
                                     used > 1 ? "," : "", (unsigned)u, kinds[k], tiers[tier]);
            assert_true(used < sizeof rules - 2);
        }
    fixture_set(&c->sets, "tiers.place.rules=%s]", rules);
    snprintf(c->text, sizeof c->text, "mixed by unit, draw %u", i);
}

static void make_combination(struct combination *c, unsigned i, uint64_t unit_count)
{
    static const uint64_t tile_elems[] = {32768, 65536, 0}, lookahead[] = {0, 1, 8};
    memset(c, 0, sizeof *c);
    fixture_set(&c->sets, "run.steps=%d", (int)step_count());
    if (i < 9)
        place_kinds(c, i);
    else
        place_units(c, i, unit_count);
    c->tile_elems = tile_elems[(i + i / 3) % 3];
    bool next = (i + i / 9) % 2;
    uint64_t ahead = lookahead[(i / 2 + i / 7) % 3];
    const char *backend = i % 5 < 3 ? "uring" : "pool";
    c->is_tight = i % 4 != 1;
    fixture_set(&c->sets, "schedule.tile_elems=%llu", (unsigned long long)c->tile_elems);
    fixture_set(&c->sets, "schedule.update=%s", next ? "in_next_forward" : "after_backward");
    fixture_set(&c->sets, "debug.schedule.lookahead=%llu", (unsigned long long)ahead);
    fixture_set(&c->sets, "io.backend=%s", backend);
    bool has_two_drives = i % 3 == 2;
    if (has_two_drives)
        fixture_set(&c->sets,
                    "tiers.nvme=[{\"path\":\"%s/a\",\"budget\":\"64MiB\"},"
                    "{\"path\":\"%s/b\",\"budget\":\"128MiB\"}]",
                    fixture_path("moved", ".nvme"), fixture_path("moved", ".nvme"));
    size_t used = strlen(c->text);
    snprintf(c->text + used, sizeof c->text - used, "; tile %llu, %s, lookahead %llu, %s%s, %s",
             (unsigned long long)c->tile_elems, next ? "in next forward" : "after backward",
             (unsigned long long)ahead, backend, has_two_drives ? ", two drives" : "",
             c->is_tight ? "least budgets" : "large budgets");
}

static void placements_give_equal_bits(void **state)
{
    static struct combination c;
    static fixture_result result;
    const uint64_t last = step_count() - 1;
    fixture_sets plain = {.count = 0};
    fixture_set(&plain, "run.steps=%d", (int)step_count());
    fixture_train_good("baseline", &shape, &plain, &baseline);
    assert_int_equal(baseline.step_count, last + 1);
    /* It learned something, and nothing left the device. */
    assert_true(baseline.losses[last] < baseline.losses[0] - 0.5);
    assert_int_equal(baseline.plan.lane_bytes[LANE_READ], 0);
    int with_copies = 0;
    for (unsigned i = 0; i < SHAPE_COMBINATIONS; i++) {
        make_combination(&c, i, baseline.plan.unit_count);
        if (c.is_tight)
            fixture_tighten("moved", &shape, &c.sets);
        printf("%2u: %s\n", i, c.text);
        fflush(stdout);
        fixture_train_good("moved", &shape, &c.sets, &result);
        if (c.tile_elems)
            assert_int_equal(result.plan.tile_elems, c.tile_elems);
        if (c.uses_nvme && c.is_tight) /* with room, what is near the turn may stay */
            assert_true(result.summary.lanes[LANE_READ].bytes > 0);
        with_copies += result.plan.copy_bytes > 0;
        fixture_assert_same(&baseline, &result);
        fixture_remove("moved");
    }
    assert_true(with_copies > 0); /* some steps began with state that the host kept */
}

/* The comparison can fail: each of these changes the losses or the weights. */
static void other_settings_give_other_bits(void **state)
{
    static const char *const changes[] = {"run.seed=8", "data.seed=4",
                                          "optimizer.params.lr=2.001e-3", "gradient_clipping=0.05"};
    static fixture_result result;
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        fixture_sets sets = {.count = 0};
        fixture_set(&sets, "run.steps=%d", (int)step_count());
        fixture_set(&sets, "%s", changes[i]);
        fixture_train_good("other", &shape, &sets, &result);
        assert_int_equal(result.step_count, baseline.step_count);
        if (memcmp(result.loss_bits, baseline.loss_bits, sizeof result.loss_bits) == 0 ||
            result.weights_hash == baseline.weights_hash)
            fail_msg("%s changes nothing", changes[i]);
        fixture_remove("other");
    }
}

/* A rate that makes the weights overflow: the first update ruins them, later gradients are not
 * finite and their updates are skipped, in both update modes and wherever states rest. */
static void skipped_updates_are_equal_too(void **state)
{
    static struct combination c;
    static fixture_result first, result;
    fixture_sets sets = {.count = 0};
    fixture_set(&sets, "optimizer.params.lr=1e38");
    fixture_set(&sets, "run.steps=6");
    fixture_train_good("skip", &shape, &sets, &first);
    assert_int_equal(first.step_count, 6);
    assert_false(first.skipped[0]);
    uint64_t skipped = 0;
    for (uint64_t i = 0; i < first.step_count; i++)
        skipped += first.skipped[i];
    assert_true(skipped >= 3);
    fixture_remove("skip");
    for (unsigned i = 9; i < 13; i++) {
        make_combination(&c, i, baseline.plan.unit_count);
        fixture_set(&c.sets, "optimizer.params.lr=1e38");
        fixture_set(&c.sets, "run.steps=6");
        fixture_train_good("moved", &shape, &c.sets, &result);
        assert_memory_equal(first.skipped, result.skipped, sizeof first.skipped);
        assert_int_equal(first.loss_bits[0], result.loss_bits[0]);
        assert_true(first.weights_hash == result.weights_hash);
        fixture_remove("moved");
    }
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        shape.family = strstr(argv[1], "llama") ? "llama" : "gpt2";
        shape.bf16 = strstr(argv[1], "bf16") != NULL;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(placements_give_equal_bits),
        cmocka_unit_test(other_settings_give_other_bits),
        cmocka_unit_test(skipped_updates_are_equal_too),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
