/* Tiles that a step carries to the next one (src/plan/emit/carry.c), on the real executor: with all
 * states on the drives, updates in the next forward and steps that carry, the losses of all steps
 * and the final weights are those of a run in device memory, to the bit. Commits, evaluations,
 * skipped steps, paranoid mode, several ranks, and a kill after each step. With "victim DIR STEP"
 * the program is the process that dies after that step. */
#include "tests/train/train_parts.h"
#include "tests/unit.h"

static fixture_result whole;
static uint64_t die_after;

/* All states on the tier, in many tiles. */
static fixture_sets carry_sets(const char *tier, const char *update)
{
    fixture_sets sets = parts_sets(tier, update);
    fixture_set(&sets, "schedule.tile_elems=32768");
    fixture_set(&sets, "run.eval_every=5");
    return sets;
}

static void train_near(const char *name, const fixture_sets *more, fixture_result *result)
{
    fixture_sets sets = carry_sets("device", "after_backward");
    for (uint32_t i = 0; more && i < more->count; i++)
        fixture_set(&sets, "%s", more->text[i]);
    fixture_train_good(name, &shape, &sets, result);
    assert_int_equal(result->plan.carried_bytes, 0);
    fixture_remove(name);
}

static void carried_tiles_give_equal_bits(void **state)
{
    static const char *const hosts[] = {"6MiB",  "10MiB", "64MiB",  /* optimizer on nvme */
                                        "16MiB", "20MiB", "64MiB"}; /* on host */
    static fixture_result result;
    uint64_t least = UINT64_MAX, most = 0;
    for (int i = 0; i < 12; i++) {
        fixture_sets sets = carry_sets("nvme", "in_next_forward");
        fixture_set(&sets, "tiers.host.budget=%s", hosts[i % 3 + (i < 6 ? 0 : 3)]);
        fixture_set(&sets, "run.commit_every=%d", i / 3 % 3 == 2 ? 0 : 1 + i / 3 % 3);
        fixture_set(&sets, "run.paranoid=%s", i % 2 ? "true" : "false");
        fixture_set(&sets, "schedule.order=%s", i % 4 < 2 ? "layer_major" : "batch_major");
        if (i >= 6)
            fixture_set(&sets, "tiers.place.optimizer=host");
        fixture_train_good("parts", &shape, &sets, &result);
        fixture_assert_same(&whole, &result);
        least = size_min(least, result.plan.carried_bytes);
        most = size_max(most, result.plan.carried_bytes);
        fixture_remove("parts");
    }
    print_message("carried: %llu to %llu KiB\n", (unsigned long long)(least >> 10),
                  (unsigned long long)(most >> 10));
    assert_true(least > 0 && most > least);
}

/* The first steps overflow, and others later: nothing that was carried is used then. */
static void skipped_steps_drop_what_was_carried(void **state)
{
    static fixture_result near, result;
    fixture_model of_fp32 = {.family = "gpt2", .layers = 3, .hidden = 128};
    shape = of_fp32;
    fixture_sets more = {.count = 0};
    fixture_set(&more, "fp16={\"enabled\":true,\"initial_scale_power\":21,\"hysteresis\":1,"
                       "\"loss_scale_window\":2}");
    fixture_set(&more, "run.steps=16");
    train_near("near", &more, &near);
    uint64_t skipped = 0, after_update = 0;
    for (uint64_t i = 0; i < near.step_count; i++) {
        skipped += near.skipped[i];
        after_update += i > 0 && near.skipped[i] && !near.skipped[i - 1];
    }
    assert_true(near.skipped[0] && skipped < near.step_count && after_update > 0);
    for (int i = 0; i < 4; i++) {
        fixture_sets sets = carry_sets("nvme", "in_next_forward");
        for (uint32_t k = 0; k < more.count; k++)
            fixture_set(&sets, "%s", more.text[k]);
        fixture_set(&sets, "tiers.host.budget=%s", i / 2 ? "8MiB" : "64MiB");
        fixture_set(&sets, "run.paranoid=%s", i % 2 ? "true" : "false");
        fixture_train_good("parts", &shape, &sets, &result);
        assert_true(result.plan.carried_bytes > 0);
        fixture_assert_same(&near, &result);
        assert_memory_equal(near.skipped, result.skipped, sizeof near.skipped);
        fixture_remove("parts");
    }
}

/* Each rank carries tiles of its shard, or of the whole state in stage 0. */
static void ranks_carry_too(void **state)
{
    for (uint32_t stage = 0; stage <= 3; stage++) {
        const struct parts_row near = {RANKS, stage, STEPS, "device"};
        const struct parts_row far = {RANKS, stage, STEPS, "nvme"};
        uint64_t hash = parts_train_ranks("near", carry_sets, &near);
        assert_true(parts_train_ranks("parts", carry_sets, &far) == hash);
        fixture_remove("near");
        fixture_remove("parts");
    }
}

/* ---- stopped and killed ---- */

static void a_stop_applies_what_was_carried(void **state)
{
    parts_stop_and_move(carry_sets, false, &whole);
}

static void die_when_told(uint64_t step)
{
    if (step == die_after)
        raise(SIGKILL);
}

static int be_victim(const char *dir, const char *step)
{
    log_set_level(LOG_WARN);
    snprintf(fixture_dir, sizeof fixture_dir, "%s", dir);
    die_after = strtoull(step, NULL, 10);
    static fixture_result result;
    fixture_sets sets = carry_sets("nvme", "in_next_forward");
    fixture_call call = {.name = "parts", .on_step = die_when_told};
    fixture_run("parts", &shape, &sets, &call, &result);
    return 1;
}

static void a_run_killed_after_any_step_goes_on(void **state)
{
    static fixture_result result;
    for (int step = 1; step < STEPS; step += few ? 3 : 1) {
        char text[16];
        int status;
        snprintf(text, sizeof text, "%d", step);
        fflush(NULL);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            execl("/proc/self/exe", "test_train", "victim", fixture_dir, text, (char *)NULL);
            _exit(127);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        fixture_sets sets = carry_sets("nvme", "in_next_forward");
        fixture_train_good("parts", &shape, &sets, &result);
        assert_true(result.plan.carried_bytes > 0);
        fixture_assert_same(&whole, &result);
        fixture_remove("parts");
    }
}

static int begin(void **state)
{
    int rc = fixture_setup(state);
    if (rc == 0)
        train_near("near", NULL, &whole);
    return rc;
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "victim") == 0)
        return be_victim(argv[2], argv[3]);
    few = getenv("SLUICE_TEST_FEW") != NULL;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(carried_tiles_give_equal_bits),
        cmocka_unit_test(ranks_carry_too),
        cmocka_unit_test(a_stop_applies_what_was_carried),
        cmocka_unit_test(a_run_killed_after_any_step_goes_on),
        cmocka_unit_test(skipped_steps_drop_what_was_carried),
    };
    return cmocka_run_group_tests(tests, begin, fixture_teardown);
}
