/* A job that does not fit is refused before anything is made, with figures that are right: with the
 * budgets named it runs, and with a block less it does not. */
#include <glob.h>
#include <math.h>
#include <sys/stat.h>

#include "base/size.h"
#include "base/tile.h"
#include "setup/summary.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"
#include "tiers/arena.h"

static const fixture_model shape = {.family = "llama", .bf16 = true, .layers = 3, .hidden = 128};

/* The key of each tier's budget as a refusal names it. */
static const struct {
    const char *tier, *key;
} budgets[TIER_COUNT] = {
    {"device", "tiers.device.budget"},
    {"host", "tiers.host.budget"},
    {"nvme", "tiers.nvme[].budget"},
};

static void set_budget(fixture_sets *sets, const char *name, int tier, uint64_t bytes)
{
    if (tier == TIER_NVME)
        fixture_set(sets, "tiers.nvme=[{\"path\":\"%s\",\"budget\":%llu}]",
                    fixture_path(name, ".nvme"), (unsigned long long)bytes);
    else
        fixture_set(sets, "%s=%llu", budgets[tier].key, (unsigned long long)bytes);
}

static fixture_sets place_all(const char *tier)
{
    fixture_sets sets = {.count = 0};
    fixture_set(&sets, "tiers.place.params=%s", tier);
    fixture_set(&sets, "tiers.place.grads=%s", tier);
    fixture_set(&sets, "tiers.place.optimizer=%s", tier);
    fixture_set(&sets, "tiers.place.activations=%s", tier);
    fixture_set(&sets, "run.steps=2");
    return sets;
}

static void run(const char *name, const fixture_sets *sets, bool fresh, fixture_result *result)
{
    fixture_call call = {.name = name, .fresh = fresh};
    fixture_run(name, &shape, sets, &call, result);
}

static void assert_nothing_made(const char *name)
{
    assert_false(fixture_exists(fixture_path(name, NULL)));
    assert_false(fixture_exists(fixture_path(name, ".nvme")));
}

/* The size of a run's only slab file. */
static uint64_t slab_file_bytes(const char *name)
{
    char pattern[FIXTURE_PATH_BYTES + 64];
    glob_t found;
    struct stat status;
    snprintf(pattern, sizeof pattern, "%s/sluice-*/*.slab", fixture_path(name, ".nvme"));
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, 1);
    assert_int_equal(stat(found.gl_pathv[0], &status), 0);
    globfree(&found);
    return (uint64_t)status.st_size;
}

/* A budget that is too small for one tier: refused with that tier's figures, which then fit. */
static void refuse_one(const char *place, int tier, uint64_t bytes)
{
    static fixture_result result;
    fixture_sets sets = place_all(place), small = sets;
    char allowed[64];
    set_budget(&small, "tight", tier, bytes);
    run("tight", &small, false, &result);
    assert_int_equal(result.rc, ERR_NO_FIT);
    assert_nothing_made("tight");
    assert_false(result.planned);
    printf("%s\n", result.error);
    snprintf(allowed, sizeof allowed, "of %s, has ", budgets[tier].tier);
    assert_non_null(strstr(result.error, "does not fit"));
    assert_non_null(strstr(result.error, "needs "));
    assert_non_null(strstr(result.error, allowed));
    for (int a = 0; a < TIER_COUNT; a++)
        if (a != tier) /* the others are large enough and not blamed */
            assert_int_equal(fixture_budget_named(result.error, budgets[a].key), 0);
    uint64_t named = fixture_budget_named(result.error, budgets[tier].key);
    assert_true(named > bytes);

    fixture_sets less = sets;
    set_budget(&less, "tight", tier, named - TILE_BLOCK_BYTES);
    run("tight", &less, false, &result);
    assert_int_equal(result.rc, ERR_NO_FIT);
    assert_nothing_made("tight");

    set_budget(&sets, "tight", tier, named);
    run("tight", &sets, false, &result);
    if (result.rc < 0)
        fail_msg("%s=%llu was said to fit: %s", budgets[tier].key, (unsigned long long)named,
                 result.error);
    assert_int_equal(result.step_count, 2);
    assert_true(result.summary.peak_bytes[tier] <= named);
    if (tier == TIER_NVME) /* what the slab takes, to the byte */
        assert_int_equal(slab_file_bytes("tight"), named);
    fixture_remove("tight");
}

static void too_little_device_memory(void **state)
{
    refuse_one("device", TIER_DEVICE, 4 * MIB);
    refuse_one("nvme", TIER_DEVICE, 65536);
}

static void too_little_host_memory(void **state)
{
    refuse_one("host", TIER_HOST, 4 * MIB);
    refuse_one("nvme", TIER_HOST, 65536);
}

static void too_little_nvme(void **state)
{
    refuse_one("nvme", TIER_NVME, 12 * MIB);
    refuse_one("device", TIER_NVME, 9 * MIB); /* the place of the final state alone */
}

/* Two tiers at once are named together, and together they fit. */
static void too_little_of_both(void **state)
{
    static fixture_result result;
    fixture_sets sets = place_all("nvme"), small = sets;
    set_budget(&small, "both", TIER_DEVICE, 65536);
    set_budget(&small, "both", TIER_HOST, 65536);
    run("both", &small, false, &result);
    assert_int_equal(result.rc, ERR_NO_FIT);
    assert_nothing_made("both");
    for (int a = TIER_DEVICE; a <= TIER_HOST; a++) {
        uint64_t named = fixture_budget_named(result.error, budgets[a].key);
        assert_true(named > 65536);
        set_budget(&sets, "both", a, named);
    }
    run("both", &sets, false, &result);
    if (result.rc < 0)
        fail_msg("%s", result.error);
    fixture_remove("both");
}

/* The nvme figure is that of all drives together. */
static void too_little_on_two_drives(void **state)
{
    static fixture_result result;
    unsigned long long each = 9 * MIB;
    for (int round = 0; round < 2; round++) {
        fixture_sets sets = place_all("nvme");
        const char *path = fixture_path("drives", ".nvme");
        fixture_set(&sets,
                    "tiers.nvme=[{\"path\":\"%s/a\",\"budget\":%llu},"
                    "{\"path\":\"%s/b\",\"budget\":%llu}]",
                    path, each, path, each);
        run("drives", &sets, false, &result);
        if (round == 1)
            break;
        assert_int_equal(result.rc, ERR_NO_FIT);
        assert_nothing_made("drives");
        each = fixture_budget_named(result.error, budgets[TIER_NVME].key) / 2;
        assert_true(each > 9 * MIB);
    }
    if (result.rc < 0)
        fail_msg("%s", result.error);
    fixture_remove("drives");
}

/* The refusal costs no memory of the size asked for: a model of 2 GiB against budgets of 64 MiB. */
static void refusal_takes_no_memory(void **state)
{
    static fixture_result result;
    fixture_sets sets = place_all("host");
    fixture_set(&sets, "model.hidden_size=1024");
    fixture_set(&sets, "model.num_heads=16");
    fixture_set(&sets, "model.num_kv_heads=8");
    fixture_set(&sets, "model.num_layers=10");
    uint64_t before, after;
    assert_ok(arena_process_memory(NULL, &before, NULL));
    run("large", &sets, false, &result);
    assert_ok(arena_process_memory(NULL, &after, NULL));
    assert_int_equal(result.rc, ERR_NO_FIT);
    assert_nothing_made("large");
    assert_true(FIXTURE_IS_SANITIZED || after - before < 192 * MIB);
}

/* A refused job leaves an existing run as it is, whether it would lie where it lies or be
 * re-cut. */
static void refusal_keeps_the_former_run(void **state)
{
    static fixture_result first, result;
    fixture_sets sets = place_all("nvme"), small = sets, longer = sets;
    run("kept", &sets, false, &first);
    assert_int_equal(first.rc, 0);
    set_budget(&small, "kept", TIER_DEVICE, 65536);
    run("kept", &small, false, &result);
    assert_int_equal(result.rc, ERR_NO_FIT);
    small = sets;
    set_budget(&small, "kept", TIER_NVME, 20 * MIB); /* below the slab that it has, and any other */
    run("kept", &small, false, &result);
    assert_int_equal(result.rc, ERR_NO_FIT);
    assert_non_null(strstr(result.error, "is to move to other places"));
    fixture_set(&longer, "run.steps=3");
    run("kept", &longer, false, &result);
    if (result.rc < 0)
        fail_msg("%s", result.error);
    assert_true(result.summary.was_resumed);
    assert_int_equal(result.step_count, 3);
    fixture_remove("kept");
}

static void plan_steps(const char *update, uint64_t commit_every, struct setup_summary *plan)
{
    fixture_sets sets = {.count = 0};
    fixture_set(&sets, "schedule.update=%s", update);
    fixture_set(&sets, "schedule.tile_elems=1048576"); /* each tile has padding of its own */
    fixture_set(&sets, "run.commit_every=%llu", (unsigned long long)commit_every);
    job *asked = fixture_job("mean", &shape, &sets);
    assert_ok(setup_plan_on(asked, &(struct setup_plan_options){0}, plan));
    job_destroy(asked);
}

/* The figures of a step are the mean of steps that commit and steps that do not, also if a commit
 * is a program of its own: only commits write state that lies on the device. */
static void a_step_is_the_mean_of_steps(void **state)
{
    static const char *const updates[] = {"in_next_forward", "after_backward", "delayed_one_step"};
    for (size_t i = 0; i < sizeof updates / sizeof *updates; i++) {
        struct setup_summary each, seldom;
        plan_steps(updates[i], 1, &each);
        plan_steps(updates[i], 50, &seldom);
        uint64_t written = each.lane_bytes[LANE_WRITE];
        assert_true(written >= 12 * each.param_count);
        assert_in_range(seldom.lane_bytes[LANE_WRITE], written / 50, written / 50 + 1);
        assert_true(each.lane_seconds[LANE_COMMIT] > 0);
        assert_true(each.lane_seconds[LANE_COMMIT] > 49 * seldom.lane_seconds[LANE_COMMIT]);
        assert_true(seldom.step_seconds < each.step_seconds);
        const struct setup_summary *plans[] = {&each, &seldom};
        for (int k = 0; k < 2; k++) {
            assert_true(plans[k]->step_seconds * 1.000001 >= plans[k]->bound_seconds);
            for (int lane = LANE_H2D; lane < LANE_COUNT; lane++) /* one op at a time */
                assert_true(plans[k]->step_seconds * 1.000001 >= plans[k]->lane_seconds[lane]);
        }
    }
}

/* Seconds of a step in the order, or infinity where it does not fit. */
static double ordered_seconds(const char *order, uint64_t device_bytes)
{
    struct setup_summary plan;
    fixture_sets sets = {.count = 0};
    fixture_set(&sets, "schedule.order=%s", order);
    fixture_set(&sets, "gradient_accumulation_steps=16");
    fixture_set(&sets, "tiers.place.activations=device");
    fixture_set(&sets, "tiers.device.budget=%llu", (unsigned long long)device_bytes);
    job *asked = fixture_job("ordered", &shape, &sets);
    int rc = setup_plan_on(asked, &(struct setup_plan_options){0}, &plan);
    job_destroy(asked);
    if (rc < 0)
        assert_int_equal(rc, ERR_NO_FIT);
    return rc < 0 ? INFINITY : plan.step_seconds;
}

static void the_order_may_be_chosen(void **state)
{
    uint32_t only_one_fits = 0, both_fit = 0;
    for (uint64_t bytes = (uint64_t)10 << 20; bytes <= (uint64_t)40 << 20; bytes += bytes / 24) {
        double by_layer = ordered_seconds("layer_major", bytes);
        double by_batch = ordered_seconds("batch_major", bytes);
        double chosen = ordered_seconds("fastest", bytes);
        double best = fmin(by_layer, by_batch);
        printf("%.1f MiB: by layer %g s, by batch %g s, chosen %g s\n", (double)bytes / MIB,
               by_layer, by_batch, chosen);
        only_one_fits += isinf(by_layer) != isinf(by_batch);
        both_fit += !isinf(by_layer) && !isinf(by_batch);
        assert_int_equal(isinf(chosen), isinf(best));
        assert_true(isinf(best) || chosen <= best * 1.0051);
    }
    printf("both orders fit %u times, one alone %u times\n", both_fit, only_one_fits);
    assert_true(both_fit > 0 && only_one_fits > 0);
}

/* A plan for ranks that nobody has started has the budgets that the job states, of each rank. */
static void a_plan_for_many_ranks_has_their_budgets(void **state)
{
    static const uint32_t worlds[] = {1, 2, 16, 1024};
    fixture_sets sets = {.count = 0};
    fixture_set(&sets, "tiers.device.budget=268435456");
    fixture_set(&sets, "tiers.host.budget=134217728");
    fixture_set(&sets, "zero_optimization.stage=3");
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
        struct setup_summary plan;
        job *asked = fixture_job("many", &shape, &sets);
        asked->world = worlds[i];
        if (setup_plan_on(asked, &(struct setup_plan_options){.local_world = 1}, &plan) < 0)
            fail_msg("%u ranks: %s", worlds[i], err_text());
        assert_int_equal(plan.world_size, worlds[i]);
        assert_int_equal(plan.budget_bytes[TIER_DEVICE], 268435456);
        assert_int_equal(plan.budget_bytes[TIER_HOST], 134217728);
        assert_int_equal(plan.sent_bytes > 0, worlds[i] > 1);
        job_destroy(asked);
    }
}

/* Ranks of a host divide a drive's budget, but where each has its own. */
static void the_budget_named_is_that_of_all_ranks_of_a_host(void **state)
{
    static const char *const paths[] = {"shared", "own-{rank}", "own-{local_rank}", "of-{host}"};
    static const uint64_t sharers[] = {3, 1, 1, 3};
    uint64_t alone = 0;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        for (int too_little = 1; too_little >= 0; too_little--) {
            static uint64_t named;
            fixture_sets sets = {.count = 0};
            struct setup_summary plan;
            fixture_set(&sets, "zero_optimization.stage=2");
            fixture_set(&sets, "tiers.place.optimizer=nvme");
            fixture_set(&sets, "tiers.nvme=[{\"path\":\"%s/%s\",\"budget\":%llu}]", fixture_dir,
                        paths[i], too_little ? 65536ull : (unsigned long long)named);
            job *asked = fixture_job("divided", &shape, &sets);
            asked->world = 3;
            assert_int_equal(setup_plan_on(asked, &(struct setup_plan_options){0}, &plan),
                             too_little ? ERR_NO_FIT : 0);
            named = too_little ? fixture_budget_named(err_text(), "tiers.nvme[].budget") : named;
            job_destroy(asked);
            alone = i == 1 ? named : alone;
            if (i > 1)
                assert_int_equal(named, sharers[i] * alone);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refusal_takes_no_memory), /* first: it looks at the process's peak */
        cmocka_unit_test(too_little_device_memory),
        cmocka_unit_test(too_little_host_memory),
        cmocka_unit_test(too_little_nvme),
        cmocka_unit_test(too_little_on_two_drives),
        cmocka_unit_test(too_little_of_both),
        cmocka_unit_test(refusal_keeps_the_former_run),
        cmocka_unit_test(a_step_is_the_mean_of_steps),
        cmocka_unit_test(the_order_may_be_chosen),
        cmocka_unit_test(a_plan_for_many_ranks_has_their_budgets),
        cmocka_unit_test(the_budget_named_is_that_of_all_ranks_of_a_host),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
