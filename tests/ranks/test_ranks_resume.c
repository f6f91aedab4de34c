/* Runs that go on with another number of ranks: 4, then 2, 3 and 1, with another ZeRO stage and
 * other places each time; from commits that were kept; killed again and again while the state is
 * moved; and with states much larger than the memory that a move may take.
 *
 * Arguments: worlds, from, memory, or moves=COUNT: so many kills, seeds 1 on. Without: all, with
 * 5. */
#include <signal.h>
#include <unistd.h>

#include "base/log.h"
#include "base/size.h"
#include "tests/ranks/ranks_rig.h"
#include "tests/unit.h"
#include "train/train.h"

enum { STREAM_MOVES = 630, HOPS = 4 };

static const fixture_model shapes[2] = {
    {.family = "gpt2", .layers = 2, .hidden = 128},
    {.family = "llama", .bf16 = true, .layers = 2, .hidden = 128},
};
static const char *const name = "moved", *const other = "copied";
static uint32_t move_count = 5;
static rig run;

static void begin_case(const char *run_name, uint32_t world)
{
    memset(&run, 0, sizeof run);
    run.name = run_name;
    run.world = world;
}

/* One run of those that follow each other; the layout is drawn. */
static void set_layout(crash_draws *draws, uint32_t stage)
{
    static const char *const tiers[] = {"device", "host", "nvme"};
    run.sets.count = 0;
    fixture_set(&run.sets, "zero_optimization.stage=%u", stage);
    fixture_set(&run.sets, "tiers.place.optimizer=%s", tiers[crash_draw_below(draws, 3)]);
    fixture_set(&run.sets, "tiers.place.params=%s", tiers[crash_draw_below(draws, 3)]);
    fixture_set(&run.sets, "schedule.tile_elems=%u",
                65536 * (1 + (unsigned)crash_draw_below(draws, 2)));
}

/* The drive holds the slabs of so many ranks, and nothing else. */
static void check_drive(const char *run_name, uint32_t world)
{
    static rig_drive drive;
    rig_list_drive(run_name, &drive);
    if (drive.directory_count - drive.kept_count != 1 || drive.slab_count != world ||
        drive.other_count != 0)
        fail_msg("on the drive of %u ranks there are %s", world, drive.text);
}

static uint64_t hash_of(const char *run_name, const char *below, uint64_t step)
{
    static rig_verified verified;
    rig_verify(fixture_path(run_name, below), &verified);
    if (verified.rc < 0)
        fail_msg("%s: %s", run_name, verified.error);
    assert_int_equal(verified.summary.step, step);
    assert_true(verified.summary.weights_hash != 0);
    return verified.summary.weights_hash;
}

/* ---- 4, 2, 3, 1 ------------------------------------------------------------------------------ */

static const uint32_t worlds[HOPS] = {4, 2, 3, 1};

/* Hashes where each stops, and the whole trail. */
static void go_through(uint32_t shape, const uint32_t stages[HOPS], uint64_t seed,
                       uint64_t hashes[HOPS], crash_trail *trail)
{
    crash_draws draws = {.seed = seed, .stream = STREAM_MOVES};
    fixture_remove(name);
    rig_write_job(name, &shapes[shape]);
    for (uint32_t h = 0; h < HOPS; h++) {
        begin_case(name, worlds[h]);
        set_layout(&draws, stages[h]);
        run.stop_after = h + 1 < HOPS ? 3 * (h + 1) : 0;
        rig_run_good(&run);
        uint64_t step = run.stop_after ? run.stop_after : RIG_STEPS;
        hashes[h] = hash_of(name, NULL, step);
        check_drive(name, worlds[h]);
    }
    rig_read_trail(name, trail);
}

static void any_stage_goes_on_as_any_other(void **state)
{
    static const uint32_t stages[3][HOPS] = {{0, 3, 1, 2}, {3, 0, 2, 3}, {1, 2, 3, 0}};
    static crash_trail first, next;
    uint64_t wanted[HOPS], got[HOPS];
    char why[CRASH_TEXT_BYTES];
    for (uint32_t shape = 0; shape < 2; shape++) {
        go_through(shape, stages[0], 1, wanted, &first);
        for (uint32_t i = 1; i < 3 - shape; i++) {
            go_through(shape, stages[i], 1 + i, got, &next);
            for (uint32_t h = 0; h < HOPS; h++)
                if (wanted[h] != got[h])
                    fail_msg("%s: other weights after %u ranks: %016llx and %016llx",
                             shapes[shape].family, worlds[h], (unsigned long long)wanted[h],
                             (unsigned long long)got[h]);
            if (!crash_trail_is_same(&first, &next, why))
                fail_msg("%s: %s", shapes[shape].family, why);
        }
    }
    fixture_remove(name);
}

/* ---- from a commit that was kept ------------------------------------------------------------- */

/* A new run on 3 ranks from each kept commit of 4: as the run itself that stops there, and goes on
 * with 3. */
static void a_kept_commit_begins_a_run_of_others(void **state)
{
    static crash_trail went_on, begun;
    static char from[2 * FIXTURE_PATH_BYTES];
    crash_draws draws = {.seed = 20, .stream = STREAM_MOVES};
    fixture_remove(name);
    rig_write_job(name, &shapes[0]);
    rig_write_job(other, &shapes[0]);
    begin_case(name, 4);
    set_layout(&draws, 2);
    fixture_set(&run.sets, "run.keep=6");
    run.stop_after = 6;
    rig_run_good(&run);
    uint64_t kept = hash_of(name, "keep/step-000000006", 6);
    snprintf(from, sizeof from, "%s", fixture_path(name, "keep/step-000000006"));
    begin_case(name, 3);
    set_layout(&draws, 1);
    rig_run_good(&run);
    rig_read_trail(name, &went_on);
    for (uint32_t stage = 0; stage < 4; stage += 3) {
        fixture_remove(other);
        begin_case(other, 3);
        set_layout(&draws, stage);
        run.from = from;
        rig_run_good(&run);
        rig_read_trail(other, &begun);
        assert_int_equal(begun.hash, went_on.hash);
        assert_true(begun.count > 0 && begun.count < went_on.count);
        for (uint32_t i = 1; i <= begun.count; i++) /* its own lines are those after step 6 */
            assert_string_equal(begun.lines[begun.count - i], went_on.lines[went_on.count - i]);
        check_drive(other, 3);
        assert_int_equal(hash_of(name, "keep/step-000000006", 6), kept);
    }
    fixture_remove(name);
    fixture_remove(other);
}

/* ---- killed while it moves ------------------------------------------------------------------- */

static bool is_moving(void)
{
    for (uint32_t r = 0; r < run.world; r++)
        if (atomic_load(&run.board[r].recutting))
            return true;
    return false;
}

/* Kills one rank at a random instant of the move; whether it met one. */
static bool kill_in_move(crash_draws *draws, uint64_t *longest_ns)
{
    uint32_t victim = (uint32_t)crash_draw_below(draws, run.world);
    uint64_t end_ns = clock_ns() + 20000000000, seen_ns;
    rig_begin(&run);
    while (!is_moving() && clock_ns() < end_ns && !atomic_load(&run.board[0].has_ended))
        rig_sleep(0.0002);
    seen_ns = clock_ns();
    rig_sleep(1e-6 * (double)crash_draw_below(draws, 30000));
    bool is_met = is_moving();
    kill(run.pids[victim], SIGKILL);
    rig_mark(&run);
    rig_end(&run);
    if (is_met && clock_ns() - seen_ns > *longest_ns)
        *longest_ns = clock_ns() - seen_ns;
    if (run.world > 1 && is_met && run.error_count != 1)
        fail_msg("%u messages instead of one: %s", run.error_count, run.says);
    return is_met;
}

static void a_move_that_is_killed_loses_nothing(void **state)
{
    static const uint32_t targets[] = {3, 2, 1, 4};
    static crash_trail wanted, got;
    crash_draws draws = {.seed = 40, .stream = STREAM_MOVES};
    char why[CRASH_TEXT_BYTES];
    uint64_t met = 0, longest_ns = 0;
    for (uint32_t pass = 0; pass < 2; pass++) { /* the first one undisturbed */
        fixture_remove(name);
        rig_write_job(name, &shapes[1]);
        begin_case(name, 4);
        set_layout(&draws, 3);
        run.stop_after = 6;
        rig_run_good(&run);
        uint64_t hash = hash_of(name, NULL, 6);
        for (uint32_t k = 0; pass == 1 && k < move_count; k++) {
            begin_case(name, targets[k % 4]);
            set_layout(&draws, (uint32_t)crash_draw_below(&draws, 4));
            fixture_set(&run.sets, "run.steps=6"); /* it moves, and has nothing else to do */
            fixture_set(&run.sets, "run.eval_every=0");
            fixture_set(&run.sets, "data.valid=[]");
            met += kill_in_move(&draws, &longest_ns);
            assert_int_equal(hash_of(name, NULL, 6), hash);
        }
        begin_case(name, 2);
        set_layout(&draws, 1);
        rig_run_good(&run);
        check_drive(name, 2);
        rig_read_trail(name, pass ? &got : &wanted);
    }
    if (!crash_trail_is_same(&wanted, &got, why))
        fail_msg("%s", why);
    print_message("%llu of %u kills while the state was moved; gone after %.2f s at most\n",
                  (unsigned long long)met, move_count, (double)longest_ns * 1e-9);
    assert_true(met > 0);
    fixture_remove(name);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* The state of 4 ranks to 2 and 1: rings of 32 MiB on each side, whatever its size. */
static void a_move_takes_bounded_memory(void **state)
{
    enum { RINGS_BYTES = 64 << 20, PROGRAM_BYTES = 96 << 20 }; /* code, libraries, buffers of I/O */
    static const fixture_model large = {.family = "gpt2", .layers = 12, .hidden = 512};
    static rig_verified verified;
    if (FIXTURE_IS_SANITIZED)
        skip();
    fixture_remove(name);
    rig_write_job(name, &large);
    for (uint32_t world = 4; world > 0; world /= 2) {
        begin_case(name, world);
        fixture_set(&run.sets, "run.steps=1");
        fixture_set(&run.sets, "train_batch_size=4");
        fixture_set(&run.sets, "run.eval_every=0");
        fixture_set(&run.sets, "data.valid=[]");
        fixture_set(&run.sets, "zero_optimization.stage=3");
        fixture_set(&run.sets, "tiers.place.optimizer=nvme");
        fixture_set(&run.sets, "tiers.place.params=nvme");
        fixture_set(&run.sets, "tiers.place.grads=nvme");
        fixture_set(&run.sets, "schedule.tile_elems=262144");
        fixture_set(&run.sets, "tiers.nvme=[{\"path\":\"%s\",\"budget\":\"4GiB\"}]",
                    fixture_path(name, ".nvme"));
        rig_begin(&run);
        rig_end(&run);
        if (run.statuses[0] != 0)
            fail_msg("%u ranks: %s", world, run.says);
        rig_verify(fixture_path(name, NULL), &verified);
        assert_int_equal(verified.rc, 0);
        for (uint32_t r = 0; r < world; r++) {
            const struct train_summary *summary = &run.board[r].summary;
            uint64_t arenas = run.board[0].summary.ranks[0].arena_bytes[TIER_DEVICE] +
                              run.board[0].summary.ranks[0].arena_bytes[TIER_HOST];
            print_message(
                "rank %u of %u: %.0f MiB resident at most, arenas %.0f MiB, its part of the "
                "state %.0f MiB of %.0f MiB\n",
                r, world, (double)summary->resident_bytes_max / MIB, (double)arenas / MIB,
                (double)verified.summary.bytes / world / MIB, (double)verified.summary.bytes / MIB);
            if (world < 4) {
                assert_int_equal(summary->steps_done, 0);
                assert_true(summary->resident_bytes_max < RINGS_BYTES + PROGRAM_BYTES + arenas);
            }
        }
        assert_true(verified.summary.bytes > 4 * (uint64_t)RINGS_BYTES);
    }
    fixture_remove(name);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        {"worlds", any_stage_goes_on_as_any_other, NULL, NULL, NULL},
        {"from", a_kept_commit_begins_a_run_of_others, NULL, NULL, NULL},
        {"moves", a_move_that_is_killed_loses_nothing, NULL, NULL, NULL},
        {"memory", a_move_takes_bounded_memory, NULL, NULL, NULL},
    };
    char pattern[32] = "*";
    if (argc > 1)
        snprintf(pattern, sizeof pattern, "%.*s", (int)strcspn(argv[1], "="), argv[1]);
    if (argc > 1 && strchr(argv[1], '='))
        move_count = (uint32_t)strtoul(strchr(argv[1], '=') + 1, NULL, 10);
    printf("seeds 1, 2, 3, 20, 40\n");
    cmocka_set_test_filter(pattern);
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
