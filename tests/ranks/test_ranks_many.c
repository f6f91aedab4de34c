/* One of 64 forked ranks is killed (SIGKILL) after a commit. The other 63 end, and one of them says
 * which rank is gone. Then 48 ranks go on from the commit in another stage. Their losses,
 * evaluations and weights are those of a run of 64 and then 48 ranks that nobody killed. */
#include <signal.h>
#include <sys/wait.h>

#include "tests/ranks/ranks_rig.h"
#include "tests/unit.h"

enum { MANY = 64, LEFT = 48, VICTIM = 37, COMMITTED = 2 * RIG_COMMIT_EVERY };

static const fixture_model shape = {.family = "gpt2", .bf16 = true, .layers = 2, .hidden = 128};
static rig run;

/* A step has 192 windows, which both numbers of ranks share evenly. */
static void begin_case(const char *name, uint32_t world, uint32_t stage)
{
    run = (rig){.name = name, .world = world};
    fixture_set(&run.sets, "train_batch_size=192");
    fixture_set(&run.sets, "tiers.nvme.0.budget=4GiB");
    fixture_set(&run.sets, "tiers.place.optimizer=nvme");
    fixture_set(&run.sets, "zero_optimization.stage=%u", stage);
}

static void check_end(void)
{
    char wanted[64];
    for (uint32_t r = 0; r < MANY; r++) {
        int status = run.statuses[r];
        bool is_right = r == VICTIM ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                                    : WIFEXITED(status) && WEXITSTATUS(status) == 1;
        if (!is_right)
            fail_msg("rank %u has status %#x: %s", r, (unsigned)status, run.says);
    }
    snprintf(wanted, sizeof wanted, "rank %d on host ", VICTIM);
    if (run.error_count != 1 || !strstr(run.error, wanted))
        fail_msg("%u messages: %s", run.error_count, run.says);
    printf("rank %d of %d killed; the last rank was gone %.2f s later: %s\n", VICTIM, MANY,
           run.seconds, run.error);
}

static void one_of_many_dies_and_fewer_go_on(void **state)
{
    static crash_trail whole, killed;
    static rig_verified verified;
    static rig_drive drive;
    char why[CRASH_TEXT_BYTES];
    rig_write_job("whole", &shape);
    begin_case("whole", MANY, 1);
    run.stop_after = COMMITTED;
    rig_run_good(&run);
    begin_case("whole", LEFT, 2);
    rig_run_good(&run);
    rig_read_trail("whole", &whole);

    rig_write_job("killed", &shape);
    begin_case("killed", MANY, 3);
    rig_begin(&run);
    rig_await_step(&run, COMMITTED + 1);
    kill(run.pids[VICTIM], SIGKILL);
    rig_mark(&run);
    rig_end(&run);
    check_end();
    assert_int_equal(crash_committed_step("killed"), COMMITTED);
    rig_verify(fixture_path("killed", NULL), &verified);
    assert_true(rig_is_whole(&verified));
    begin_case("killed", LEFT, 0);
    rig_run_good(&run);
    rig_read_trail("killed", &killed);
    if (!crash_trail_is_same(&whole, &killed, why))
        fail_msg("%s", why);
    rig_list_drive("killed", &drive);
    assert_int_equal(drive.slab_count, LEFT);
    assert_int_equal(drive.other_count, 0);
    printf("%d ranks went on from step %d: %u lines and the weights are those of a run that nobody "
           "killed\n",
           LEFT, COMMITTED, killed.count);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_of_many_dies_and_fewer_go_on)};
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
