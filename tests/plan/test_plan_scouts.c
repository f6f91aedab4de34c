/* Threads that make programs ahead of the search change neither the plan nor the work that is
 * counted.
 *
 * test_plan_scouts         homes are given: few steps, which the sanitizers can follow
 * test_plan_scouts open    homes are to be chosen */
#include "plan/plan.h"
#include "tests/plan/plan_large.h"
#include "tests/unit.h"

enum { HIDDEN = 512, THREADS = 3, ROUNDS_MOST = 20 };

struct question {
    plan_job job;
    uint64_t elems[LARGE_UNITS_MAX];
    struct stage stages[LARGE_UNITS_MAX];
    struct pass passes[LARGE_UNITS_MAX][2];
    uint8_t homes[STATE_KIND_COUNT][LARGE_UNITS_MAX];
};

/* Steps of so many micro-batches have more than the 4096 ops from which on scouts are sent. */
static void make_question(struct question *q, uint32_t layers, uint32_t micro_batches,
                          uint64_t device_mib, uint64_t host_mib)
{
    plan_job *job = &q->job;
    memset(q, 0, sizeof *q);
    large_job_make(job, q->elems, q->stages, q->passes, layers, HIDDEN);
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        job->homes[kind] = q->homes[kind];
    job->micro_batch_count = micro_batches;
    job->update = UPDATE_IN_NEXT_FORWARD;
    job->budget_bytes[TIER_DEVICE] = device_mib * MIB;
    job->budget_bytes[TIER_HOST] = host_mib * MIB;
    job->budget_bytes[TIER_NVME] = 100 * GIB;
    plan_machine_default_gpu(&job->machine, 2, 8, 0);
    job->machine.device_flops_per_second = 1e14;
}

static void assert_same_set(const plan_set *a, const plan_set *b)
{
    for (int kind = 0; kind < PROGRAM_KIND_COUNT; kind++) {
        const program *x = &a->programs[kind], *y = &b->programs[kind];
        assert_int_equal(program_hash(x), program_hash(y));
        assert_int_equal(x->predicted_ns, y->predicted_ns);
        assert_memory_equal(x->peak_bytes, y->peak_bytes, sizeof x->peak_bytes);
    }
}

/* ---- homes are given ------------------------------------------------------------------------ */

/* State on the drives, and memory for some of the copies and tiles that the search tries. */
static void sets_are_equal_with_any_number_of_threads(void **state)
{
    static const uint8_t homes[STATE_KIND_COUNT] = {[STATE_PARAMS] = TIER_NVME,
                                                    [STATE_GRADS] = TIER_NVME,
                                                    [STATE_OPTIMIZER] = TIER_NVME,
                                                    [STATE_ACTIVATIONS] = TIER_HOST,
                                                    [STATE_INNER_ACTIVATIONS] = TIER_COUNT};
    static struct question q;
    plan_set alone, helped;
    uint32_t scouted = 0;
    make_question(&q, 10, 96, 2048, 1200);
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        memset(q.homes[kind], homes[kind], LARGE_UNITS_MAX);
    assert_ok(plan_compile(&q.job, &alone));
    assert_int_equal(alone.scouted_count, 0);
    q.job.threads = THREADS;
    for (int round = 0; round < ROUNDS_MOST && scouted == 0; round++) {
        assert_ok(plan_compile(&q.job, &helped));
        scouted = helped.scouted_count;
        print_message("%llu ops a step, %llu thousand in all, %u programs made by scouts\n",
                      (unsigned long long)helped.programs[PROGRAM_STEADY].op_count,
                      (unsigned long long)helped.work_ops / 1000, scouted);
        assert_int_equal(helped.work_ops, alone.work_ops);
        assert_same_set(&alone, &helped);
        plan_set_fini(&helped);
    }
    if (scouted == 0)
        fail_msg("no scout made a program in %d searches: do threads run here?", ROUNDS_MOST);
    plan_set_fini(&alone);
}

/* ---- homes are to be chosen ----------------------------------------------------------------- */

struct placed {
    struct plan_place_found found;
    uint8_t homes[STATE_KIND_COUNT][LARGE_UNITS_MAX];
};

static void place(struct question *q, uint32_t threads, struct placed *out)
{
    struct plan_place_asked asked = {.job = &q->job, .has_drives = true};
    memset(out, 0, sizeof *out);
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++) {
        memset(q->homes[kind], TIER_AUTO, LARGE_UNITS_MAX);
        asked.wanted[kind] = q->homes[kind];
        out->found.homes[kind] = out->homes[kind];
    }
    q->job.threads = threads;
    assert_ok(plan_place(&asked, &out->found));
}

/* In each of these the search once went another way, since a scout's program that had no room was
 * taken for one of another length. */
static void placements_are_equal_with_any_number_of_threads(void **state)
{
    static const struct {
        uint32_t layers, micro_batches, device_mib, host_mib;
    } jobs[] = {{12, 133, 468, 1240}, {15, 147, 1199, 671}, {7, 105, 539, 1347}};
    static struct question q;
    static struct placed alone, helped;
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
        make_question(&q, jobs[i].layers, jobs[i].micro_batches, jobs[i].device_mib,
                      jobs[i].host_mib);
        place(&q, 0, &alone);
        place(&q, THREADS, &helped);
        print_message("%u steps tried, %u programs made by scouts\n", helped.found.trial_count,
                      helped.found.set.scouted_count);
        assert_memory_equal(helped.homes, alone.homes, sizeof alone.homes);
        assert_int_equal(helped.found.trial_count, alone.found.trial_count);
        assert_int_equal(helped.found.repeat_count, alone.found.repeat_count);
        assert_int_equal(helped.found.work_ops, alone.found.work_ops);
        assert_same_set(&alone.found.set, &helped.found.set);
        plan_set_fini(&alone.found.set);
        plan_set_fini(&helped.found.set);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest given[] = {
        cmocka_unit_test(sets_are_equal_with_any_number_of_threads),
    };
    const struct CMUnitTest open[] = {
        cmocka_unit_test(placements_are_equal_with_any_number_of_threads),
    };
    return argc > 1 ? cmocka_run_group_tests(open, NULL, NULL)
                    : cmocka_run_group_tests(given, NULL, NULL);
}
