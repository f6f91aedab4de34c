/* The compiler on random jobs: each ends in programs that pass program_check, or in a refusal whose
 * figures are right (the job compiles with exactly the bytes named, and not with one block less). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/size.h"
#include "base/tile.h"
#include "plan/plan.h"

enum { UNITS_MAX = 10 };

struct random_job {
    plan_job job;
    uint64_t elems[UNITS_MAX];
    plan_stage stages[UNITS_MAX];
    uint8_t homes[STATE_KIND_COUNT][UNITS_MAX];
};

static uint64_t draw(uint64_t seed, uint64_t *counter, uint64_t bound)
{
    return rng_below(seed, 77, (*counter)++, bound);
}

/* embed, blocks, head; tied where the draw says so. */
static void make_job(struct random_job *r, uint64_t seed)
{
    uint64_t n = 0;
    memset(r, 0, sizeof *r);
    plan_job *job = &r->job;
    job->unit_count = job->stage_count = 3 + (uint32_t)draw(seed, &n, UNITS_MAX - 3);
    bool tied = draw(seed, &n, 2);
    uint64_t block_elems = SHARD_ELEMS_STEP * (1 + draw(seed, &n, 60));
    for (uint32_t u = 0; u < job->unit_count; u++) {
        bool head = u + 1 == job->unit_count;
        r->elems[u] = u == 0 ? SHARD_ELEMS_STEP * (1 + draw(seed, &n, 90))
                      : head ? SHARD_ELEMS_STEP
                             : block_elems;
        r->stages[u] = (plan_stage){.units = {u, 0},
                                    .unit_count = head && tied ? 2 : 1,
                                    .has_input = u > 0,
                                    .has_output = !head,
                                    .backward_needs_params = u > 0,
                                    .forward_flops = 1e6 * (double)draw(seed, &n, 2000),
                                    .backward_flops = 3e6 * (double)draw(seed, &n, 2000),
                                    .forward_dram_bytes = 1 << 20,
                                    .backward_dram_bytes = 3 << 20};
        for (int k = 0; k < STATE_KIND_COUNT; k++)
            r->homes[k][u] = (uint8_t)draw(seed, &n, ARENA_COUNT);
    }
    for (int k = 0; k < STATE_KIND_COUNT; k++)
        job->homes[k] = r->homes[k];
    job->unit_elems = r->elems;
    job->stages = r->stages;
    job->micro_batch_count = 1 + (uint32_t)draw(seed, &n, 4);
    job->boundary_bytes = 4096 * (1 + draw(seed, &n, 64));
    job->workspace_bytes = 4096 * draw(seed, &n, 300);
    job->constants_bytes = 4096 * draw(seed, &n, 2);
    job->tokens_bytes = 4096;
    job->losses_bytes = 4096 * job->micro_batch_count;
    job->param_bytes = draw(seed, &n, 2) ? 2 : 4;
    job->grad_bytes = draw(seed, &n, 2) ? 2 : 4;
    job->state_streams = draw(seed, &n, 2) ? 3 : 2;
    job->update = draw(seed, &n, 2) ? PLAN_UPDATE_IN_NEXT_FORWARD : PLAN_UPDATE_AFTER_BACKWARD;
    job->tile_elems = draw(seed, &n, 3) ? TILE_ELEMS_STEP << draw(seed, &n, 3) : 0;
    job->lookahead_ops = draw(seed, &n, 3) ? 0 : 1 + draw(seed, &n, 50);
    job->needs_save_places = draw(seed, &n, 2);
    job->only_eval = draw(seed, &n, 8) == 0;
    for (int a = 0; a < ARENA_COUNT; a++)
        job->budget_bytes[a] = draw(seed, &n, 3) ? 64 * MIB : 4096 * draw(seed, &n, 2000);
    job->budget_bytes[ARENA_NVME] = 512 * MIB;
    plan_machine_default_cpu(&job->machine, 2, true);
    if (draw(seed, &n, 2))
        job->machine.device_is_cpu = false;
}

static void random_jobs(void **state)
{
    (void)state;
    int fitted = 0, refused = 0;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        struct random_job r;
        make_job(&r, seed);
        plan_set set;
        int rc = plan_compile(&r.job, &set);
        if (rc == 0) {
            fitted++;
            for (int k = 0; k < PROGRAM_KIND_COUNT; k++)
                assert_int_equal(program_check(&set.programs[k]), 0);
            assert_true(set.programs[PROGRAM_STEADY].predicted_ns + 1000 >= set.bound_ns);
            plan_set_fini(&set);
            continue;
        }
        if (rc != ERR_NO_FIT)
            print_error("seed %llu: %s\n", (unsigned long long)seed, err_text());
        assert_int_equal(rc, ERR_NO_FIT);
        refused++;
        char text[ERR_TEXT_BYTES];
        snprintf(text, sizeof text, "%s", err_text());
        uint64_t need[ARENA_COUNT];
        static const char *const keys[ARENA_COUNT] = {
            "tiers.device.budget=", "tiers.host.budget=", "tiers.nvme[].budget="};
        for (int a = 0; a < ARENA_COUNT; a++) {
            const char *at = strstr(text, keys[a]);
            need[a] = at ? strtoull(at + strlen(keys[a]), NULL, 10) : 0;
            if (at)
                r.job.budget_bytes[a] = need[a];
        }
        rc = plan_compile(&r.job, &set);
        if (rc != 0)
            print_error("seed %llu: %s; with the needed bytes: %s\n", (unsigned long long)seed,
                        text, err_text());
        assert_int_equal(rc, 0);
        plan_set_fini(&set);
        for (int a = 0; a < ARENA_COUNT; a++) {
            if (!need[a])
                continue;
            r.job.budget_bytes[a] = need[a] - TILE_BLOCK_BYTES;
            rc = plan_compile(&r.job, &set);
            if (rc == 0)
                print_error("seed %llu: fits with less than \"%s\"\n", (unsigned long long)seed,
                            text);
            assert_int_equal(rc, ERR_NO_FIT);
            r.job.budget_bytes[a] = need[a];
        }
    }
    print_message("%d compiled, %d refused\n", fitted, refused);
    assert_true(fitted > 100 && refused > 30);
}

static void nothing_leaks(void **state)
{
    (void)state;
    mem_stats before, after;
    mem_get_stats(&before);
    struct random_job r;
    for (uint64_t seed = 500; seed < 520; seed++) {
        make_job(&r, seed);
        plan_set set;
        if (plan_compile(&r.job, &set) == 0)
            plan_set_fini(&set);
    }
    mem_get_stats(&after);
    assert_int_equal(after.live_bytes, before.live_bytes);
}

static void equal_jobs_give_equal_programs(void **state)
{
    (void)state;
    struct random_job r;
    make_job(&r, 3);
    for (int a = 0; a < ARENA_COUNT; a++)
        r.job.budget_bytes[a] = 512 * MIB;
    plan_set one, two;
    assert_int_equal(plan_compile(&r.job, &one), 0);
    assert_int_equal(plan_compile(&r.job, &two), 0);
    for (int k = 0; k < PROGRAM_KIND_COUNT; k++)
        assert_int_equal(program_hash(&one.programs[k]), program_hash(&two.programs[k]));
    plan_set_fini(&one);
    plan_set_fini(&two);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_jobs),
        cmocka_unit_test(nothing_leaks),
        cmocka_unit_test(equal_jobs_give_equal_programs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
