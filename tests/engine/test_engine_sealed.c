/* Memory is sealed in every mode: fp16, batch_major, parts, kept activations, several drives, the
 * pool, fp32 gradients, evaluation. Nothing of ours is allocated or mapped after the second step,
 * the arenas are as large as the plan's peaks, and the process stays within them and a fixed slack,
 * also with everything on the drives. */
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/size.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"

/* The same as in test_engine_memory.c: code, stacks, the product library's buffers, trace ring,
 * programs, rings. */
#define SLACK_BYTES (96 * MIB)

enum { STEPS = 8, SETS_MAX = 9 };

static const fixture_model shape = {.family = "gpt2", .layers = 3, .hidden = 128};

#define ON_NVME                                                                                    \
    "tiers.place.params=nvme", "tiers.place.grads=nvme", "tiers.place.optimizer=nvme",             \
        "tiers.place.activations=nvme"
#define FP16        "fp16={\"enabled\":true,\"initial_scale_power\":20,\"hysteresis\":1}"
#define BATCH_MAJOR "schedule.order=batch_major"
#define PARTS       "model.max_part_bytes=49152"
#define POOL        "io.backend=pool"
#define KEPT        "tiers.place.inner_activations=nvme"

static const struct {
    const char *name;
    const char *sets[SETS_MAX];
} modes[] = {
    {"fp16", {ON_NVME, FP16, "run.eval_every=3"}},
    {"batch-major", {ON_NVME, BATCH_MAJOR, "bf16.enabled=true"}},
    {"parts", {ON_NVME, PARTS, FP16, POOL}},
    {"kept", {ON_NVME, KEPT, POOL, BATCH_MAJOR, FP16}},
    {"parts-batch-major", {ON_NVME, PARTS, BATCH_MAJOR, "bf16.enabled=true", KEPT}},
    {"late", {ON_NVME, "schedule.update=delayed_one_step", "bf16.enabled=true"}},
    {"in-backward",
     {ON_NVME, "schedule.update=in_backward", "gradient_clipping=0", "run.eval_every=2"}},
    {"moments8", {ON_NVME, "state.moments=8bit", "bf16.enabled=true"}},
    {"lion-fp32-grads",
     {ON_NVME, FP16, "data_types.grad_accum_dtype=fp32", "optimizer={\"type\":\"Lion\"}",
      "scheduler={\"type\":\"WarmupLR\"}"}},
};
enum { MODE_COUNT = sizeof modes / sizeof modes[0] };

static void train_sealed(int mode)
{
    static fixture_result result;
    const char *name = modes[mode].name;
    fixture_sets sets = {.count = 0};
    for (int i = 0; i < SETS_MAX && modes[mode].sets[i]; i++)
        fixture_set(&sets, "%s", modes[mode].sets[i]);
    fixture_set(&sets, "run.steps=%d", STEPS);
    fixture_set(&sets, "gradient_accumulation_steps=3");
    mem_stats before, after;
    mem_get_stats(&before);
    fixture_train_good(name, &shape, &sets, &result);
    mem_get_stats(&after);
    assert_int_equal(result.step_count, STEPS);
    assert_int_equal(result.summary.sealed_alloc_count, 0);
    assert_int_equal(after.live_bytes, before.live_bytes);
    const uint64_t *peak = result.summary.peak_bytes;
    for (int a = 0; a < TIER_COUNT; a++) {
        assert_true(peak[a] > 0);
        assert_int_equal(peak[a], result.plan.peak_bytes[a]);
        assert_true(peak[a] <= result.plan.budget_bytes[a]);
    }
    uint64_t resident = result.summary.resident_bytes_max;
    printf("%s: %llu units, peaks %.1f, %.1f and %.1f MiB, resident at most %.1f MiB\n", name,
           (unsigned long long)result.plan.unit_count, (double)peak[0] / MIB, (double)peak[1] / MIB,
           (double)peak[2] / MIB, (double)resident / MIB);
    if (!FIXTURE_IS_SANITIZED) {
        assert_int_equal(result.summary.sealed_mapped_bytes, 0);
        assert_true(resident < peak[0] + peak[1] + SLACK_BYTES);
    }
    fixture_remove(name);
}

/* Each mode runs in its own process, so that the process's largest size is that of the mode. */
static void nothing_is_taken_after_the_seal(void **state)
{
    for (int mode = 0; mode < MODE_COUNT; mode++) {
        char number[16];
        snprintf(number, sizeof number, "%d", mode);
        fflush(NULL);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            execl("/proc/self/exe", "test_engine_sealed", "mode", number, (char *)NULL);
            _exit(127);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            fail_msg("%s failed", modes[mode].name);
    }
}

static int asked_mode;

static void one_mode(void **state)
{
    train_sealed(asked_mode);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "mode") == 0) {
        asked_mode = atoi(argv[2]);
        const struct CMUnitTest tests[] = {cmocka_unit_test(one_mode)};
        return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_is_taken_after_the_seal)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
