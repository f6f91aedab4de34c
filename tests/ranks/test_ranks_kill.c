/* One of 4 ranks is killed (SIGKILL) at random instants, and the same run is started again until it
 * ends. All ranks end, one of them says why, and the commit is whole and of one step. The run that
 * goes on (on 4 ranks, or on fewer) has the losses, evaluations and weights of one that nobody
 * killed, to the bit.
 *
 * For each seed:
 *   - a model and a victim are drawn; each attempt may have a ZeRO stage, an order, an update and
 *     places of its own;
 *   - the victim is killed once or twice: by a timer over the length of the undisturbed run, by a
 *     timer while a rank sleeps at a named point of base/failpoint.h, or at such a point itself;
 *   - then the run goes to its end on 4, 3 or 1 ranks.
 *
 * The reference is a run with the same sequence of world sizes, each part of which stops on request
 * at the step of the commit from which the killed run went on.
 *
 * Arguments: [mpirun] FIRST-LAST, or one seed; "points": every other point, on one rank alone;
 * "all-points": on each rank. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "tests/ranks/ranks_rig.h"
#include "tests/unit.h"

enum {
    STREAM_KILLS = 610,
    WORLD = 4,
    SHAPES = 2,
    SEGMENTS_MAX = 6,
    REFERENCES_MAX = 64,
    COMMITS = RIG_STEPS / RIG_COMMIT_EVERY + 1,
};

static const fixture_model shapes[SHAPES] = {
    {.family = "gpt2", .layers = 2, .hidden = 128},
    {.family = "llama", .bf16 = true, .layers = 2, .hidden = 128},
};

static const char *const name_killed = "killed", *const name_whole = "whole";
static bool by_mpirun;

/* ---- what is right --------------------------------------------------------------------------- */

/* Which ranks did which steps: 4 through step 6, then 3 to the end. */
struct history {
    uint32_t count;
    struct {
        uint32_t world;
        uint64_t until;
    } parts[SEGMENTS_MAX];
};
typedef struct history history;

static void add_part(history *self, uint32_t world, uint64_t until)
{
    uint64_t before = self->count ? self->parts[self->count - 1].until : 0;
    if (until == before)
        return;
    if (self->count && self->parts[self->count - 1].world == world) {
        self->parts[self->count - 1].until = until;
        return;
    }
    assert_true(self->count < SEGMENTS_MAX);
    self->parts[self->count].world = world;
    self->parts[self->count++].until = until;
}

struct reference {
    uint32_t shape;
    history of;
    crash_trail trail;
};

static struct reference references[REFERENCES_MAX];
static uint32_t reference_count;
static uint64_t hashes[SHAPES][COMMITS]; /* of the weights at each commit of 4 ranks */
static double whole_seconds[SHAPES];

/* Several ranks give other bits in the other order, so each shape has its own. */
static const char *order_of(uint32_t shape)
{
    return shape ? "batch_major" : "layer_major";
}

static void set_for_all(rig *self, uint32_t shape, uint32_t stage)
{
    fixture_set(&self->sets, "schedule.order=%s", order_of(shape));
    fixture_set(&self->sets, "zero_optimization.stage=%u", stage);
    fixture_set(&self->sets, "tiers.place.optimizer=nvme");
}

/* The run of that history to which nothing happens. */
static const crash_trail *find_reference(uint32_t shape, const history *wanted)
{
    static rig run;
    for (uint32_t i = 0; i < reference_count; i++)
        if (references[i].shape == shape && memcmp(&references[i].of, wanted, sizeof *wanted) == 0)
            return &references[i].trail;
    assert_true(reference_count < REFERENCES_MAX);
    struct reference *made = &references[reference_count++];
    made->shape = shape;
    made->of = *wanted;
    fixture_remove(name_whole);
    rig_write_job(name_whole, &shapes[shape]);
    for (uint32_t p = 0; p < wanted->count; p++) {
        run = (rig){.name = name_whole, .world = wanted->parts[p].world};
        set_for_all(&run, shape, 2);
        if (p + 1 < wanted->count)
            run.stop_after = wanted->parts[p].until;
        rig_run_good(&run);
        assert_int_equal(crash_committed_step(name_whole), wanted->parts[p].until);
    }
    rig_read_trail(name_whole, &made->trail);
    fixture_remove(name_whole);
    return &made->trail;
}

/* How long it takes, and the weights at each of its commits. */
static void prepare_shape(uint32_t shape)
{
    static rig run;
    static rig_verified verified;
    char path[64];
    if (whole_seconds[shape] > 0)
        return;
    fixture_remove(name_whole);
    rig_write_job(name_whole, &shapes[shape]);
    run = (rig){.name = name_whole, .world = WORLD, .by_mpirun = by_mpirun};
    set_for_all(&run, shape, 1);
    uint64_t begin_ns = clock_ns();
    rig_run_good(&run);
    whole_seconds[shape] = (double)(clock_ns() - begin_ns) * 1e-9;
    fixture_remove(name_whole);
    fixture_set(&run.sets, "run.keep=%d", RIG_COMMIT_EVERY);
    rig_run_good(&run);
    for (uint32_t c = 1; c < COMMITS; c++) {
        snprintf(path, sizeof path, "keep/step-%09u", c * RIG_COMMIT_EVERY);
        rig_verify(fixture_path(name_whole, path), &verified);
        if (verified.rc < 0)
            fail_msg("%s: %s; %s", path, verified.error, run.says);
        hashes[shape][c] = verified.summary.weights_hash;
        assert_true(hashes[shape][c] != 0);
    }
    fixture_remove(name_whole);
}

/* ---- one kill -------------------------------------------------------------------------------- */

enum kill_kind { KILL_TIMER, KILL_STEP, KILL_ASLEEP, KILL_POINT, KILL_KIND_COUNT };
static const char *const kill_names[] = {"timer", "step", "timer with sleeps", "point"};

struct counts {
    uint64_t trials, attempts, kills, too_late, before_commit, in_commit, in_recut, verified,
        understated, unsaid, hung, by_kind[KILL_KIND_COUNT], by_victim[WORLD];
    double longest, whole;
};
static struct counts counts;

struct trial {
    uint64_t seed;
    uint32_t shape;
    crash_draws draws;
    rig run;
    history past;
    enum kill_kind kind;
    uint32_t victim;
    double delay; /* from the start; KILL_STEP: from when rank 0 had done `after` steps */
    uint64_t after, committed_before;
    bool keeps, had_begun;
    char points[2][96];
    char text[2048];
};
typedef struct trial trial;

static uint64_t below(trial *self, uint64_t bound)
{
    return crash_draw_below(&self->draws, bound);
}

__attribute__((format(printf, 2, 3))) static void say(trial *self, const char *format, ...)
{
    size_t used = strlen(self->text);
    va_list args;
    va_start(args, format);
    vsnprintf(self->text + used, sizeof self->text - used, format, args);
    va_end(args);
}

static void draw_layout(trial *self)
{
    static const char *const tiers[] = {"device", "host", "nvme"};
    static const char *const kinds[] = {"params", "grads", "optimizer", "activations"};
    static const char *const updates[] = {"after_backward", "in_next_forward", "auto"};
    fixture_sets *sets = &self->run.sets;
    memset(sets, 0, sizeof *sets);
    uint32_t stage = (uint32_t)below(self, 4);
    const char *update = updates[below(self, 3)];
    fixture_set(sets, "zero_optimization.stage=%u", stage);
    fixture_set(sets, "schedule.update=%s", update);
    fixture_set(sets, "schedule.order=%s", order_of(self->shape));
    say(self, " [stage %u %s %s", stage, update, order_of(self->shape));
    for (uint32_t k = 0; k < 4; k++) {
        const char *tier = tiers[k == 2 && below(self, 2) ? 2 : below(self, 3)];
        fixture_set(sets, "tiers.place.%s=%s", kinds[k], tier);
        say(self, " %c", tier[0]);
    }
    say(self, "]");
}

/* A point that ranks other than 0 meet too, unless it sleeps on rank 0. */
static const char *draw_point(trial *self, bool is_on_first, bool recuts)
{
    static const char *const first_only[] = {"manifest.begin", "manifest.half", "manifest.written",
                                             "manifest.synced"};
    static const char *const commit[] = {"slab.create", "commit.begin", "slab.sync",
                                         "commit.synced", "commit.durable"};
    static const char *const recut[] = {"recut.begin", "recut.copied", "recut.switched",
                                        "recut.removed"};
    if (recuts && below(self, 2))
        return recut[below(self, 4)];
    if (is_on_first && below(self, 2))
        return first_only[below(self, 4)];
    return commit[below(self, 5)];
}

static void draw_kill(trial *self, bool recuts)
{
    self->kind = (enum kill_kind)below(self, KILL_KIND_COUNT);
    self->delay = whole_seconds[self->shape] * 1e-3 * (double)below(self, 1000);
    memset(self->run.failpoints, 0, sizeof self->run.failpoints);
    say(self, " %s", kill_names[self->kind]);
    if (self->kind == KILL_POINT) {
        const char *point = draw_point(self, self->victim == 0, recuts);
        bool is_once = strncmp(point, "commit", 6) != 0 && strncmp(point, "manifest", 8) != 0;
        snprintf(self->points[0], sizeof self->points[0], "%s=kill@%u", point,
                 is_once ? 1 : 1 + (unsigned)below(self, 3));
        self->run.failpoints[self->victim] = self->points[0];
        say(self, " %s", self->points[0]);
    } else if (self->kind == KILL_ASLEEP) {
        uint32_t sleeper = (uint32_t)below(self, self->run.world);
        snprintf(self->points[0], sizeof self->points[0], "%s=sleep:%ums",
                 draw_point(self, sleeper == 0, recuts), 20 + (unsigned)below(self, 100));
        self->run.failpoints[sleeper] = self->points[0];
        self->delay *= 1.2;
        say(self, " (rank %u %s)", sleeper, self->points[0]);
    }
    if (self->kind == KILL_STEP) {
        self->after = 1 + below(self, RIG_STEPS - 1);
        self->delay *= 0.05;
        say(self, " %u +", (unsigned)self->after);
    }
    if (self->kind != KILL_POINT)
        say(self, " %.3f s", self->delay);
}

static uint64_t committed_step(const char *name)
{
    return access(fixture_path(name, "state"), F_OK) == 0 ? crash_committed_step(name) : 0;
}

static bool was_killed(const trial *self)
{
    if (self->run.launcher_hung)
        return true;
    if (self->run.by_mpirun) /* its status is the killed rank's, as a shell has it */
        return WEXITSTATUS(self->run.statuses[0]) != 0;
    int status = self->run.statuses[self->victim];
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

/* Killed before the ranks had joined: mpirun ends the others by a signal, and says so itself. */
static bool is_mpirun_first(const trial *self, uint64_t committed)
{
    return self->run.by_mpirun && self->run.error_count == 0 && !self->had_begun &&
           committed == self->committed_before;
}

/* Exactly one message names the victim, and a surviving rank writes it. The other ranks fail, and
 * none of them by a signal. */
static void check_end(const trial *self, uint64_t committed)
{
    char wanted[96], missing[96];
    const rig *run = &self->run;
    if (run->seconds > counts.longest)
        counts.longest = run->seconds;
    counts.hung += run->launcher_hung;
    for (uint32_t r = 0; !run->by_mpirun && r < run->world; r++)
        if (r != self->victim &&
            (!WIFEXITED(run->statuses[r]) || WEXITSTATUS(run->statuses[r]) != 1))
            fail_msg("%s: rank %u has status %#x: %s", self->text, r, (unsigned)run->statuses[r],
                     run->says);
    if (is_mpirun_first(self, committed)) {
        counts.unsaid++;
        return;
    }
    /* A rank that had not yet joined when the others gave up finds nobody there, and reports it. */
    bool is_joining = strstr(run->says, "while the ranks joined") && run->error_count <= WORLD - 1;
    if (is_joining)
        return;
    if (run->error_count != 1 || run->launcher_hung)
        fail_msg("%s: %u messages instead of one%s: %s", self->text, run->error_count,
                 run->launcher_hung ? ", and mpirun did not end" : "", run->says);
    snprintf(wanted, sizeof wanted, "rank %u on host ", self->victim);
    snprintf(missing, sizeof missing, "rank %u has not joined", self->victim);
    if (!strstr(run->error, wanted) && !strstr(run->error, missing))
        fail_msg("%s: \"%s\" does not name rank %u", self->text, run->error, self->victim);
    const char *commit = strstr(run->error, "commit is of step ");
    uint64_t said = commit ? strtoull(commit + 18, NULL, 10) : 0;
    if (said > committed)
        fail_msg("%s: the last commit is of step %llu: %s", self->text,
                 (unsigned long long)committed, run->error);
    counts.understated += said < committed;
}

/* All that the manifest names is there, and of its step. */
static void check_state(trial *self, uint64_t committed)
{
    static rig_verified verified;
    const history *past = &self->past;
    if (committed == 0)
        return;
    rig_verify(fixture_path(name_killed, NULL), &verified);
    if (!rig_is_whole(&verified) || verified.summary.step != committed)
        fail_msg("%s: the commit of step %llu after the kill: %s", self->text,
                 (unsigned long long)committed, verified.error);
    counts.verified++;
    bool by_four = past->count == 1 && past->parts[0].world == WORLD;
    if (by_four && committed % RIG_COMMIT_EVERY == 0)
        assert_int_equal(verified.summary.weights_hash,
                         hashes[self->shape][committed / RIG_COMMIT_EVERY]);
}

static void kill_by_timer(trial *self)
{
    rig *run = &self->run;
    rig_find_ranks(run);
    if (self->kind == KILL_STEP)
        rig_await_step(run, self->after);
    double gone = self->kind == KILL_STEP ? 0 : (double)(clock_ns() - run->begin_ns) * 1e-9;
    if (self->delay > gone)
        rig_sleep(self->delay - gone);
    pid_t victim = run->pids[self->victim];
    if (!run->by_mpirun)
        counts.in_commit += atomic_load(&run->board[self->victim].committing) != 0;
    if (!run->by_mpirun)
        counts.in_recut += atomic_load(&run->board[self->victim].recutting) != 0;
    self->had_begun = rig_has_begun(run);
    if (victim > 0)
        kill(victim, SIGKILL);
}

/* False where the run was done before. */
static bool attempt(trial *self)
{
    rig *run = &self->run;
    counts.attempts++;
    self->had_begun = false;
    self->committed_before = committed_step(name_killed);
    rig_begin(run);
    if (self->kind != KILL_POINT)
        kill_by_timer(self);
    else
        rig_find_ranks(run);
    self->had_begun = self->had_begun || self->kind == KILL_POINT;
    rig_mark(run);
    rig_end(run);
    uint64_t committed = committed_step(name_killed);
    add_part(&self->past, run->world, committed);
    /* Or while it left, with all done and said: nobody has anything to tell. */
    bool is_done = committed == RIG_STEPS && run->error_count == 0;
    if (!was_killed(self) || is_done) {
        counts.too_late++;
        say(self, ": too late;");
        return false;
    }
    if (self->kind == KILL_POINT)
        run->seconds = 0; /* it was killed some time after it was marked */
    say(self, ": commit %llu;", (unsigned long long)committed);
    if (run->seconds > 2)
        say(self, " %.2f s: %.300s;", run->seconds, run->error);
    counts.kills++;
    counts.by_kind[self->kind]++;
    counts.by_victim[self->victim]++;
    counts.before_commit += committed == 0;
    check_end(self, committed);
    check_state(self, committed);
    return true;
}

/* Each commit that was to be kept is, whole. */
static void check_kept(const trial *self)
{
    static rig_verified verified;
    char path[64];
    for (uint32_t c = 1; c < COMMITS; c++) {
        snprintf(path, sizeof path, "keep/step-%09u", c * RIG_COMMIT_EVERY);
        rig_verify(fixture_path(name_killed, path), &verified);
        if (verified.rc < 0)
            fail_msg("%s: %s: %s; %s", self->text, path, verified.error, self->run.says);
    }
}

/* To the end, and as it should be. Nothing is left on the drive but the run's slabs. */
static void finish_and_compare(trial *self)
{
    static crash_trail got;
    static rig_drive drive;
    char why[CRASH_TEXT_BYTES];
    rig *run = &self->run;
    memset(run->failpoints, 0, sizeof run->failpoints);
    rig_run_good(run);
    add_part(&self->past, run->world, RIG_STEPS);
    rig_read_trail(name_killed, &got);
    if (!crash_trail_is_same(find_reference(self->shape, &self->past), &got, why))
        fail_msg("%s: %s", self->text, why);
    rig_list_drive(name_killed, &drive);
    if (drive.directory_count - drive.kept_count != 1 || drive.slab_count != run->world ||
        drive.other_count != 0 || drive.kept_count > 2 * (uint32_t)self->keeps)
        fail_msg("%s: on the drive there are %s", self->text, drive.text);
    if (self->keeps)
        check_kept(self);
    fixture_remove(name_killed);
}

static void begin_trial(trial *self, uint64_t seed, const char *what)
{
    memset(self, 0, sizeof *self);
    self->seed = seed;
    self->draws = (crash_draws){.seed = seed, .stream = STREAM_KILLS};
    self->shape = (uint32_t)below(self, SHAPES);
    self->run.name = name_killed;
    self->run.by_mpirun = by_mpirun;
    self->run.world = WORLD;
    say(self, "%s %llu, %s:", what, (unsigned long long)seed, shapes[self->shape].family);
    prepare_shape(self->shape);
    fixture_remove(name_killed); /* of a test that failed */
    rig_write_job(name_killed, &shapes[self->shape]);
    draw_layout(self);
}

static void one_trial(trial *self, uint64_t seed)
{
    static const uint32_t worlds[] = {4, 3, 4, 1};
    begin_trial(self, seed, "seed");
    uint32_t kills = 1 + (uint32_t)below(self, 2), target = worlds[seed / 4 % 4];
    for (uint32_t k = 0; k < kills; k++) {
        self->victim = (uint32_t)(seed + k) % self->run.world;
        say(self, " rank %u of %u", self->victim, self->run.world);
        draw_kill(self, k > 0);
        (void)attempt(self);
        if (k + 1 < kills && target == 1)
            self->run.world = 3;
        if (below(self, 2))
            draw_layout(self);
    }
    self->run.world = target;
    finish_and_compare(self);
    counts.trials++;
    print_message("%s\n", self->text);
}

/* A point that lies on the way of this rank, which is killed there: in a run that keeps commits,
 * and of the points of a move in one that goes on with 3 ranks, from step 6. */
static void one_point(trial *self, uint32_t point, uint32_t victim)
{
    const char *name = rig_points[point];
    rig *run = &self->run;
    bool recuts = strncmp(name, "recut", 5) == 0;
    bool is_once = recuts || strcmp(name, "slab.create") == 0;
    begin_trial(self, 1000 + point, "point");
    self->keeps = true;
    fixture_set(&run->sets, "run.keep=%d", RIG_COMMIT_EVERY);
    if (recuts) {
        run->stop_after = 2 * RIG_COMMIT_EVERY;
        rig_run_good(run);
        run->stop_after = 0;
        add_part(&self->past, run->world, 2 * RIG_COMMIT_EVERY);
        run->world = 3;
    }
    self->kind = KILL_POINT;
    self->victim = victim % run->world;
    snprintf(self->points[0], sizeof self->points[0], "%s=kill@%u", name,
             is_once          ? 1
             : name[0] == 'm' ? 3
                              : 2); /* the run's first manifest is of no commit */
    run->failpoints[self->victim] = self->points[0];
    say(self, " rank %u of %u, %s", self->victim, run->world, self->points[0]);
    if (!attempt(self))
        fail_msg("%s: the rank did not come there", self->text);
    if (!recuts && point % 2)
        run->world = 3;
    finish_and_compare(self);
    print_message("%s\n", self->text);
}

/* Whether rank 0 alone comes there: it has the run directory. */
static bool is_of_first(const char *point)
{
    return strncmp(point, "manifest", 8) == 0 || strncmp(point, "keep", 4) == 0;
}

typedef unsigned long long number;

static void print_counts(void)
{
    print_message(
        "%llu trials: %llu kills of %llu attempts (%llu too late), ranks %llu %llu %llu %llu\n",
        (number)counts.trials, (number)counts.kills, (number)counts.attempts,
        (number)counts.too_late, (number)counts.by_victim[0], (number)counts.by_victim[1],
        (number)counts.by_victim[2], (number)counts.by_victim[3]);
    print_message("%llu by timer, %llu after a step, %llu while one slept, %llu at a point; %llu "
                  "before the first commit, %llu seen in a commit, %llu in a move\n",
                  (number)counts.by_kind[0], (number)counts.by_kind[1], (number)counts.by_kind[2],
                  (number)counts.by_kind[3], (number)counts.before_commit, (number)counts.in_commit,
                  (number)counts.in_recut);
    print_message(
        "%llu commits verified; %llu messages named an older commit; %llu deaths before "
        "the ranks had joined, of which mpirun spoke (%llu times it did not end itself)\n",
        (number)counts.verified, (number)counts.understated, (number)counts.unsaid,
        (number)counts.hung);
    print_message("the last rank was gone %.2f s after the kill at most; %.1f s in all\n",
                  counts.longest, counts.whole);
}

static bool all_victims;

static void a_rank_dies_at_each_point(void **state)
{
    static trial one;
    for (uint32_t p = 0; p < RIG_POINT_COUNT; p++) {
        if (!all_victims && p % 2 == 0 && !strstr("recut.copied", rig_points[p]))
            continue; /* every other one is enough for a short run */
        uint32_t victims = all_victims && !is_of_first(rig_points[p]) ? WORLD : 1;
        for (uint32_t v = 0; v < victims; v++)
            one_point(&one, p, is_of_first(rig_points[p]) ? 0 : p + v);
    }
    print_counts();
}

static uint64_t first_seed = 1, last_seed = 8;

static void killed_ranks_end_all_and_the_run_goes_on(void **state)
{
    static trial one;
    uint64_t begin_ns = clock_ns();
    for (uint64_t seed = first_seed; seed <= last_seed; seed++)
        one_trial(&one, seed);
    counts.whole = (double)(clock_ns() - begin_ns) * 1e-9;
    print_counts();
    assert_true(counts.kills > 0);
}

static bool read_seeds(const char *text)
{
    char *end;
    first_seed = last_seed = strtoull(text, &end, 10);
    if (*end == '-')
        last_seed = strtoull(end + 1, &end, 10);
    return *end == '\0' && first_seed > 0 && last_seed >= first_seed;
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_ranks_end_all_and_the_run_goes_on),
    };
    static const struct CMUnitTest point_tests[] = {
        cmocka_unit_test(a_rank_dies_at_each_point),
    };
    all_victims = argc > 1 && strcmp(argv[1], "all-points") == 0;
    if (all_victims || (argc > 1 && strcmp(argv[1], "points") == 0))
        return cmocka_run_group_tests(point_tests, fixture_setup, fixture_teardown);
    by_mpirun = argc > 1 && strcmp(argv[1], "mpirun") == 0;
    if (argc > 1 + by_mpirun && !read_seeds(argv[1 + by_mpirun])) {
        fprintf(stderr, "use: %s [mpirun] FIRST-LAST, or points, or all-points\n", argv[0]);
        return 2;
    }
    if (by_mpirun && !rig_has_mpirun()) {
        printf("no mpirun, or a build without MPI: skipped\n");
        return 77;
    }
    printf("seeds %llu to %llu\n", (unsigned long long)first_seed, (unsigned long long)last_seed);
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
