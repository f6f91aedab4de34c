/* Threads that make programs ahead of the search change neither the plan nor the work that is
 * counted. */
#include "plan/plan.h"
#include "tests/plan/plan_large.h"
#include "tests/unit.h"

enum {
    LAYERS = 10,
    HIDDEN = 512,
    MICRO_BATCHES = 96, /* steps of more than the 4096 ops from which on scouts are sent */
    THREADS = 3,
    ROUNDS_MOST = 20,
};

struct question {
    plan_job job;
    uint64_t elems[LARGE_UNITS_MAX];
    struct stage stages[LARGE_UNITS_MAX];
    struct pass passes[LARGE_UNITS_MAX][2];
    uint8_t homes[STATE_KIND_COUNT][LARGE_UNITS_MAX];
};

/* State on the drives, and memory for some of the copies and tiles that the search tries. */
static void make_question(struct question *q)
{
    static const uint8_t homes[STATE_KIND_COUNT] = {[STATE_PARAMS] = TIER_NVME,
                                                    [STATE_GRADS] = TIER_NVME,
                                                    [STATE_OPTIMIZER] = TIER_NVME,
                                                    [STATE_ACTIVATIONS] = TIER_HOST,
                                                    [STATE_INNER_ACTIVATIONS] = TIER_COUNT};
    plan_job *job = &q->job;
    large_job_make(job, q->elems, q->stages, q->passes, LAYERS, HIDDEN);
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++) {
        memset(q->homes[kind], homes[kind], LARGE_UNITS_MAX);
        job->homes[kind] = q->homes[kind];
    }
    job->micro_batch_count = MICRO_BATCHES;
    job->update = UPDATE_IN_NEXT_FORWARD;
    job->budget_bytes[TIER_DEVICE] = 2 * GIB;
    job->budget_bytes[TIER_HOST] = 1200 * MIB;
    job->budget_bytes[TIER_NVME] = 100 * GIB;
    plan_machine_default_gpu(&job->machine, 2, 8, 0);
    job->machine.device_flops_per_second = 1e14;
}

static void assert_same_set(const plan_set *a, const plan_set *b)
{
    assert_int_equal(a->work_ops, b->work_ops);
    assert_int_equal(a->tile_elems, b->tile_elems);
    assert_int_equal(a->copy_bytes, b->copy_bytes);
    for (int kind = 0; kind < PROGRAM_KIND_COUNT; kind++) {
        const program *x = &a->programs[kind], *y = &b->programs[kind];
        assert_int_equal(program_hash(x), program_hash(y));
        assert_int_equal(x->predicted_ns, y->predicted_ns);
        assert_memory_equal(x->peak_bytes, y->peak_bytes, sizeof x->peak_bytes);
    }
}

static void sets_are_equal_with_any_number_of_threads(void **state)
{
    static struct question q;
    plan_set alone, helped;
    uint32_t scouted = 0;
    make_question(&q);
    assert_ok(plan_compile(&q.job, &alone));
    assert_int_equal(alone.scouted_count, 0);
    q.job.threads = THREADS;
    for (int round = 0; round < ROUNDS_MOST && scouted == 0; round++) {
        assert_ok(plan_compile(&q.job, &helped));
        scouted = helped.scouted_count;
        print_message("%llu ops a step, %llu thousand in all, %u programs made by scouts\n",
                      (unsigned long long)helped.programs[PROGRAM_STEADY].op_count,
                      (unsigned long long)helped.work_ops / 1000, scouted);
        assert_same_set(&alone, &helped);
        plan_set_fini(&helped);
    }
    assert_true(scouted > 0);
    plan_set_fini(&alone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sets_are_equal_with_any_number_of_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
