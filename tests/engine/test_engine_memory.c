/* Reserved, sealed, and nothing afterwards: no allocation of ours and no new mapping after the
 * second step, arenas exactly as large as the plan's peaks, and a process that stays within its
 * budgets. */
#include "base/mem.h"
#include "base/size.h"
#include "base/tile.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"
#include "tiers/arena.h"

/* Beside the arenas a process holds code, thread stacks, the product library's own buffers, the
 * trace ring (4 MiB), programs and io_uring's rings. */
#define SLACK_BYTES (96 * MIB)

static const fixture_model shape = {.family = "gpt2", .bf16 = true, .layers = 3, .hidden = 128};

static uint64_t huge_bytes; /* of the mappings that ask for huge pages, in a step */

/* Arenas are what asks for huge pages: "hg" among the flags of a mapping. */
static void look_at_maps(uint64_t step)
{
    if (step != 3)
        return;
    FILE *maps = fopen("/proc/self/smaps", "r");
    assert_non_null(maps);
    char line[512];
    unsigned long long kib = 0;
    while (fgets(line, sizeof line, maps)) {
        sscanf(line, "Size: %llu kB", &kib);
        if (strncmp(line, "VmFlags:", 8) == 0 && strstr(line, " hg "))
            huge_bytes += kib * KIB;
    }
    fclose(maps);
}

static void place_on_nvme(fixture_sets *sets)
{
    fixture_set(sets, "tiers.place.params=nvme");
    fixture_set(sets, "tiers.place.grads=nvme");
    fixture_set(sets, "tiers.place.optimizer=nvme");
    fixture_set(sets, "tiers.place.activations=nvme");
}

static void run_sealed(const char *update, const char *backend, const char *eval)
{
    static fixture_result result;
    fixture_sets sets = {.count = 0};
    place_on_nvme(&sets);
    fixture_set(&sets, "schedule.update=%s", update);
    fixture_set(&sets, "io.backend=%s", backend);
    fixture_set(&sets, "run.eval_every=%s", eval);
    uint64_t resident_before = 0, live_before;
    assert_ok(arena_process_memory(&resident_before, NULL, NULL));
    mem_stats stats;
    mem_get_stats(&stats);
    job *asked = fixture_job("sealed", &shape, &sets);
    fixture_call call = {.name = "sealed", .on_step = look_at_maps};
    live_before = stats.live_bytes;
    huge_bytes = 0;
    fixture_train(asked, &call, &result);
    job_destroy(asked);
    if (result.rc < 0)
        fail_msg("%s", result.error);
    assert_int_equal(result.step_count, 20); /* 18 of them sealed */
    assert_int_equal(result.summary.sealed_alloc_count, 0);
    if (!FIXTURE_IS_SANITIZED) /* a sanitizer's own heap grows */
        assert_int_equal(result.summary.sealed_mapped_bytes, 0);
    mem_get_stats(&stats);
    assert_int_equal(stats.live_bytes, live_before); /* and all is given back */

    const uint64_t *peak = result.summary.peak_bytes;
    for (int a = 0; a < TIER_COUNT; a++) {
        assert_true(peak[a] > 0);
        assert_int_equal(peak[a], result.plan.peak_bytes[a]);
        assert_true(peak[a] <= result.plan.budget_bytes[a]);
    }
    if (huge_bytes > 0 && !FIXTURE_IS_SANITIZED) /* a kernel without huge pages has no such flag */
        assert_int_equal(huge_bytes, size_round_up(peak[TIER_DEVICE], TILE_BLOCK_BYTES) +
                                         size_round_up(peak[TIER_HOST], TILE_BLOCK_BYTES));
    printf("%s, %s: peaks %.1f, %.1f and %.1f MiB; on huge pages %.1f; resident at most %.1f MiB, "
           "%.1f before\n",
           update, backend, (double)peak[0] / MIB, (double)peak[1] / MIB, (double)peak[2] / MIB,
           (double)huge_bytes / MIB, (double)result.summary.resident_bytes_max / MIB,
           (double)resident_before / MIB);
    if (!FIXTURE_IS_SANITIZED) {
        assert_true(result.summary.resident_bytes_max > peak[0] + peak[1]);
        assert_true(result.summary.resident_bytes_max < peak[0] + peak[1] + SLACK_BYTES);
    }
    fixture_remove("sealed");
}

static void nothing_is_taken_after_the_seal(void **state)
{
    run_sealed("in_next_forward", "uring", "0");
    run_sealed("after_backward", "pool", "0");
}

/* The reserved bytes and the size of the slab, for each shape of job in
 * perf/training/predict.py. */
static void reserved_is_what_was_planned(void **state)
{
    static const struct {
        const char *name, *places[5], *more;
    } jobs[] = {
        {"memory", {"device", "device", "device", "device", "recompute"}, NULL},
        {"optimizer", {"host", "host", "nvme", "device", "recompute"}, NULL},
        {"all", {"nvme", "nvme", "nvme", "nvme", "recompute"}, NULL},
        {"compute", {"host", "host", "host", "host", "host"}, "gradient_accumulation_steps=3"},
        {"activations", {"host", "host", "host", "nvme", "nvme"}, "schedule.order=batch_major"},
        {"selective", {"host", "host", "host", "host", "selective"}, NULL},
        {"spilled", {"host", "host", "host", "host", "selective_nvme"}, NULL},
        {"parts", {"host", "host", "nvme", "host", "recompute"}, "model.max_part_bytes=65536"},
        {"whole", {"host", "host", "nvme", "host", "selective"}, "model.max_part_bytes=65536"},
    };
    static const char *const kinds[] = {"params", "grads", "optimizer", "activations",
                                        "inner_activations"};
    static fixture_result result;
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        fixture_sets sets = {.count = 0};
        for (int kind = 0; kind < 5; kind++)
            fixture_set(&sets, "tiers.place.%s=%s", kinds[kind], jobs[i].places[kind]);
        fixture_set(&sets, "run.steps=%d", 3);
        if (jobs[i].more)
            fixture_set(&sets, "%s", jobs[i].more);
        fixture_call call = {.name = "reserved", .fresh = true};
        fixture_run("reserved", &shape, &sets, &call, &result);
        if (result.rc < 0)
            fail_msg("%s: %s", jobs[i].name, result.error);
        for (int a = 0; a < TIER_COUNT; a++)
            if (result.summary.ranks[0].arena_bytes[a] != result.plan.peak_bytes[a])
                fail_msg("%s: tier %d has %llu bytes, planned were %llu", jobs[i].name, a,
                         (unsigned long long)result.summary.ranks[0].arena_bytes[a],
                         (unsigned long long)result.plan.peak_bytes[a]);
        fixture_remove("reserved");
    }
}

static void evaluation_takes_nothing_either(void **state)
{
    run_sealed("in_next_forward", "uring", "4");
}

/* The seal sees an allocation: without this the zero above could be a counter that never counts. */
static void allocate_in_a_step(uint64_t step)
{
    if (step == 5)
        mem_free(mem_alloc(1, 64, "canary"));
}

static void the_seal_counts(void **state)
{
    static fixture_result result;
    fixture_call call = {.name = "canary", .on_step = allocate_in_a_step};
    fixture_run("canary", &shape, NULL, &call, &result);
    assert_int_equal(result.rc, 0);
    assert_int_equal(result.summary.sealed_alloc_count, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_taken_after_the_seal),
        cmocka_unit_test(reserved_is_what_was_planned),
        cmocka_unit_test(evaluation_takes_nothing_either),
        cmocka_unit_test(the_seal_counts),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
