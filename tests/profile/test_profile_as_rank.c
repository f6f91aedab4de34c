/* One rank of ranks that are not there (comm_pretend) does what that rank does among real ones: the
 * same bytes on every lane, the same memory, the same slab, as many bytes sent. Real ranks are
 * forked processes; so is the one that pretends, since no thread outlives a fork. */
#include "tests/comm/comm_fixture.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"
#include "train/train.h"

enum { RANKS_MAX = 4, STEPS = 3, STAGES = 4 };

/* Results of all ranks of a case, for the test. */
struct told {
    struct train_summary real[RANKS_MAX]; /* [0].ranks: of all */
    struct train_summary pretended;
};

struct case_of {
    const job *asked;
    struct told *told;
    uint32_t rank; /* that is pretended */
};

static int train_real(comm *self, void *user)
{
    const struct case_of *run = user;
    struct train_options options = {.job = run->asked, .comm = self, .is_trial = true};
    return train_run(&options, &run->told->real[comm_get_rank(self)]);
}

static int train_pretended(comm *self, void *user)
{
    const struct case_of *run = user;
    comm *alone;
    TRY(comm_pretend(run->rank, run->asked->world, &alone));
    struct train_options options = {.job = run->asked, .comm = alone, .is_trial = true};
    int rc = train_run(&options, &run->told->pretended);
    comm_leave(alone, 0);
    return rc;
}

static void compare(const struct case_of *run)
{
    const struct train_summary *real = &run->told->real[run->rank];
    const struct train_summary *pretended = &run->told->pretended;
    const struct train_rank *one = &run->told->real[0].ranks[run->rank];
    const struct train_rank *other = &pretended->ranks[0];
    assert_int_equal(pretended->steps_done, STEPS);
    for (int kind = 0; kind < LANE_COUNT; kind++)
        if (real->lanes[kind].bytes != pretended->lanes[kind].bytes)
            fail_msg("lane %s: %llu bytes, alone %llu", lane_kind_name((enum lane_kind)kind),
                     (unsigned long long)real->lanes[kind].bytes,
                     (unsigned long long)pretended->lanes[kind].bytes);
    assert_true(real->lanes[LANE_COMM].bytes > 0);
    for (int a = 0; a < TIER_COUNT; a++)
        assert_int_equal(one->arena_bytes[a], other->arena_bytes[a]);
    assert_int_equal(one->slab_file_bytes, other->slab_file_bytes);
    assert_int_equal(one->sent_bytes, other->sent_bytes);
    assert_true(other->sent_bytes > 0);
}

static void run_case(const char *name, uint32_t world, uint32_t rank, const fixture_sets *sets)
{
    static const fixture_model shape = {.family = "gpt2", .layers = 2, .hidden = 64};
    job *asked = fixture_job_ranks(name, &shape, sets, world);
    struct case_of run = {.asked = asked, .rank = rank};
    run.told = comm_fixture_shared(sizeof *run.told);
    comm_fixture ranks = {.world = world};
    comm_fixture_run(&ranks, train_real, &run);
    comm_fixture_expect_ok(&ranks);
    comm_fixture alone = {.world = 1};
    comm_fixture_run(&alone, train_pretended, &run);
    comm_fixture_expect_ok(&alone);
    compare(&run);
    job_destroy(asked);
    fixture_remove(name);
}

static void a_rank_alone_does_what_it_does_among_others(void **state)
{
    static const struct {
        uint32_t world, rank;
        const char *places; /* of optimizer, params and grads */
    } ways[STAGES] = {{2, 1, "host"}, {2, 0, "nvme"}, {3, 2, "nvme"}, {4, 3, "nvme"}};
    for (uint32_t stage = 0; stage < STAGES; stage++) {
        fixture_sets sets = {.count = 0};
        fixture_set(&sets, "zero_optimization.stage=%u", stage);
        fixture_set(&sets, "zero_optimization.stage3_param_persistence_threshold=%u",
                    stage == 3 ? 1000 : 0);
        fixture_set(&sets, "device.threads=1");
        fixture_set(&sets, "run.steps=%d", STEPS);
        fixture_set(&sets, "run.eval_every=0");
        fixture_set(&sets, "tiers.place.optimizer=%s", ways[stage].places);
        fixture_set(&sets, "tiers.place.params=%s", ways[stage].places);
        fixture_set(&sets, "tiers.place.grads=%s", ways[stage].places);
        if (stage == 2)
            fixture_set(&sets, "communication_data_type=bf16");
        run_case("rank", ways[stage].world, ways[stage].rank, &sets);
    }
}

/* The comparison can fail: another rank count has other shards. */
static void other_ranks_move_other_bytes(void **state)
{
    static const fixture_model shape = {.family = "gpt2", .layers = 2, .hidden = 64};
    struct told *told[2];
    for (uint32_t i = 0; i < 2; i++) {
        fixture_sets sets = {.count = 0};
        fixture_set(&sets, "zero_optimization.stage=3");
        fixture_set(&sets, "tiers.place.optimizer=nvme");
        fixture_set(&sets, "run.steps=%d", STEPS);
        job *asked = fixture_job_ranks("other", &shape, &sets, i ? 512 : 2);
        struct case_of run = {.asked = asked, .rank = 1};
        told[i] = run.told = comm_fixture_shared(sizeof *run.told);
        comm_fixture alone = {.world = 1};
        comm_fixture_run(&alone, train_pretended, &run);
        comm_fixture_expect_ok(&alone);
        job_destroy(asked);
        fixture_remove("other");
    }
    assert_true(told[1]->pretended.lanes[LANE_READ].bytes <
                told[0]->pretended.lanes[LANE_READ].bytes);
}

static void a_rank_that_is_none_is_refused(void **state)
{
    comm *alone;
    assert_int_equal(comm_pretend(4, 4, &alone), ERR_CONFIG);
    assert_null(alone);
    assert_int_equal(comm_pretend(0, COMM_RANKS_MAX + 1, &alone), ERR_CONFIG);
    assert_false(comm_is_pretended(NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_alone_does_what_it_does_among_others),
        cmocka_unit_test(other_ranks_move_other_bytes),
        cmocka_unit_test(a_rank_that_is_none_is_refused),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
