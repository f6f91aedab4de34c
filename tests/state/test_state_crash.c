/* Runs are killed (SIGKILL) at random instants and started again with the same command until they
 * end. Each ends with the losses, evaluations and weights of the run that nobody killed, to the
 * bit.
 *
 * For each seed:
 *   - a job is drawn from the seed (crash_case.h) and runs once undisturbed;
 *   - then it is killed one to five times: by a timer over the length of the undisturbed run, at a
 *     named point of base/failpoint.h, or by a timer while the process sleeps at such a point, so
 *     that the kill falls inside commits;
 *   - every fourth job comes back with other drives, tiles and placement after each kill, and is
 *     killed while its extents are re-cut.
 *
 * Argument: FIRST-LAST, or one seed, which runs that job again. Its timers are drawn alike, but the
 * machine's pace differs. With "victim ..." the program is the process that dies. */
#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "format/manifest.h"
#include "setup/setup.h"
#include "state/verify.h"
#include "tests/state/crash_case.h"
#include "tests/unit.h"
#include "train/train.h"

enum {
    STREAM_KILLS = 510,
    KILLS_MAX = 5,
    MOVING_OF = 4, /* one job of four changes its layout */
    HISTORY_BYTES = 1024
};

static const char *const name_whole = "whole";
static const char *const name_killed = "killed";

static const char *const points[] = {
    "slab.create",   "commit.begin",     "slab.sync",       "commit.synced",  "manifest.begin",
    "manifest.half", "manifest.written", "manifest.synced", "commit.durable", "keep.begin",
    "keep.copied",   "recut.begin",      "recut.copied",    "recut.switched", "recut.removed",
};
enum { POINT_COUNT = sizeof points / sizeof points[0] };

/* ---- what a victim tells of itself, in memory that survives it ------------------------------- */

struct board {
    atomic_int committing, recutting, keeping; /* between the points that say so */
    atomic_int last_point;                     /* index; -1: none was met */
    atomic_int has_ended;                      /* the fields below are set */
    int rc;
    uint64_t hash, steps_done;
    char error[ERR_TEXT_BYTES];
};
typedef struct board board;

static board *shared;

static int open_board(void)
{
    int fd = open(fixture_path(NULL, "board"), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || ftruncate(fd, sizeof *shared) != 0)
        return -1;
    void *page = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    shared = page == MAP_FAILED ? NULL : page;
    return shared ? 0 : -1;
}

static int find_point(const char *name)
{
    for (int i = 0; i < POINT_COUNT; i++)
        if (strcmp(points[i], name) == 0)
            return i;
    return -1;
}

static int note_point(void *user, const char *name)
{
    atomic_store(&shared->last_point, find_point(name));
    if (strcmp(name, "commit.begin") == 0 || strcmp(name, "commit.durable") == 0)
        atomic_store(&shared->committing, name[7] == 'b');
    if (strcmp(name, "recut.begin") == 0 || strcmp(name, "recut.removed") == 0)
        atomic_store(&shared->recutting, name[6] == 'b');
    atomic_store(&shared->keeping, strncmp(name, "keep.", 5) == 0);
    return 0;
}

/* The command that is given again and again. */
static int be_victim(char **arguments)
{
    static crash_case job_drawn;
    snprintf(fixture_dir, sizeof fixture_dir, "%s", arguments[0]);
    const char *name = arguments[1];
    log_set_level(LOG_QUIET);
    if (open_board() < 0 || failpoint_init() < 0) {
        fprintf(stderr, "victim: no board, or %s\n", err_text());
        return 2;
    }
    failpoint_hook(note_point, NULL);
    crash_draw(strtoull(arguments[2], NULL, 10), (uint32_t)strtoul(arguments[3], NULL, 10),
               CRASH_ANY, name, &job_drawn);
    job *asked = fixture_job(name, &job_drawn.shape, &job_drawn.sets);
    uint64_t hash = 0;
    const struct setup_test test = {.on_end = fixture_hash_weights, .user = &hash};
    struct train_options options = {.job = asked, .test = &test};
    struct train_summary summary;
    shared->rc = train_run(&options, &summary);
    if (shared->rc < 0)
        snprintf(shared->error, sizeof shared->error, "%s", err_text());
    shared->hash = hash;
    shared->steps_done = summary.steps_done;
    atomic_store(&shared->has_ended, 1);
    job_destroy(asked);
    return shared->rc < 0;
}

/* ---- one attempt ----------------------------------------------------------------------------- */

enum kill_kind { KILL_NONE, KILL_TIMER, KILL_POINT, KILL_ASLEEP, KILL_KIND_COUNT };

static const char *const kill_names[] = {"not killed", "timer", "point", "timer with sleeps"};

struct attempt {
    enum kill_kind kind;
    uint32_t layout;
    uint64_t delay_ns;   /* KILL_TIMER, KILL_ASLEEP */
    char failpoints[96]; /* KILL_POINT, KILL_ASLEEP */
    bool was_killed;
    double seconds;
};
typedef struct attempt attempt;

static pid_t start_victim(const char *name, uint64_t seed, const attempt *self)
{
    char seed_text[24], layout_text[16];
    snprintf(seed_text, sizeof seed_text, "%llu", (unsigned long long)seed);
    snprintf(layout_text, sizeof layout_text, "%u", self->layout);
    atomic_store(&shared->committing, 0);
    atomic_store(&shared->recutting, 0);
    atomic_store(&shared->keeping, 0);
    atomic_store(&shared->last_point, -1);
    atomic_store(&shared->has_ended, 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        setenv("OMP_WAIT_POLICY", "passive", 1);
        setenv("SLUICE_FAILPOINTS", self->failpoints, 1);
        execl("/proc/self/exe", "test_state_crash", "victim", fixture_dir, name, seed_text,
              layout_text, (char *)NULL);
        _exit(127);
    }
    assert_true(child > 0);
    return child;
}

/* Runs the command, kills it where it is to be killed; fails where it ends in any other way than
 * well. */
static void run_attempt(const char *name, uint64_t seed, attempt *self)
{
    uint64_t begin_ns = clock_ns();
    pid_t child = start_victim(name, seed, self);
    bool timed = self->kind == KILL_TIMER || self->kind == KILL_ASLEEP;
    uint64_t patience_ns = CRASH_HANG_SECONDS * 1000000000ull;
    if (!crash_ends_within(child, timed ? self->delay_ns : patience_ns))
        kill(child, SIGKILL);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    self->seconds = (double)(clock_ns() - begin_ns) * 1e-9;
    self->was_killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (self->was_killed && self->seconds >= CRASH_HANG_SECONDS)
        fail_msg("the process did not end");
    if (self->was_killed && self->kind != KILL_NONE)
        return;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("status %d: %s", status,
                 atomic_load(&shared->has_ended) ? shared->error : "it ended before it was done");
    assert_true(atomic_load(&shared->has_ended));
}

/* ---- when to kill ---------------------------------------------------------------------------- */

struct counts {
    uint64_t runs, runs_after_commit, moved_runs, kills, kills_after_commit, in_commit, in_recut,
        in_keep, commits_survived, verified, by_kind[KILL_KIND_COUNT], by_point[POINT_COUNT];
    double whole_seconds, seconds;
};
typedef struct counts counts;

/* One job on its way. */
struct story {
    crash_case drawn;
    crash_draws draws;
    double whole_seconds;
    bool moves;
    uint32_t attempt_count, kill_count;
    uint64_t committed; /* step of the manifest, after the last kill */
    bool was_killed_after_commit;
    char history[HISTORY_BYTES];
};
typedef struct story story;

static uint64_t commits_left(const story *self)
{
    uint64_t left = (self->drawn.steps - self->committed) / self->drawn.commit_every;
    return left ? left : 1;
}

static void aim_at(attempt *out, const char *point, uint64_t at)
{
    out->kind = KILL_POINT;
    snprintf(out->failpoints, sizeof out->failpoints, "%s=kill@%llu", point,
             (unsigned long long)at);
}

/* Draws a timer over the length of the remaining steps. */
static void aim_by_time(story *self, attempt *out)
{
    double left = (double)(self->drawn.steps - self->committed) / self->drawn.steps;
    double length = self->whole_seconds * (0.35 + 0.65 * left);
    double share = (double)crash_draw_below(&self->draws, 1000) / 1000;
    out->kind = KILL_TIMER;
    out->delay_ns = (uint64_t)(length * share * 1e9);
}

/* Parts of points[]: those of a commit, those of copies that are kept. */
enum { COMMIT_POINTS_BEGIN = 1, KEEP_POINTS_BEGIN = 9 };

/* At a point of the n-th commit from here on, n in [least, commits_left]. */
static void aim_in_commit(story *self, uint64_t least, attempt *out)
{
    uint64_t left = commits_left(self);
    const char *point =
        points[COMMIT_POINTS_BEGIN +
               crash_draw_below(&self->draws, KEEP_POINTS_BEGIN - COMMIT_POINTS_BEGIN)];
    uint64_t at = least + crash_draw_below(&self->draws, left > least ? left - least + 1 : 1);
    bool says_begun = strncmp(point, "manifest.", 9) == 0 && !self->committed;
    aim_at(out, point, at + says_begun); /* the first manifest says that the run has begun */
}

static void aim_at_point(story *self, attempt *out)
{
    uint64_t which = crash_draw_below(&self->draws, 8);
    if (which < 4 && self->drawn.keep_every)
        aim_at(out, points[KEEP_POINTS_BEGIN + which % 2], 1 + crash_draw_below(&self->draws, 2));
    else if (which == 7 && self->attempt_count == 0)
        aim_at(out, "slab.create", 1);
    else
        aim_in_commit(self, 1, out);
}

/* Sleeps in every commit, so that the timer finds the process in one. */
static void aim_asleep(story *self, attempt *out)
{
    aim_by_time(self, out);
    uint64_t ms = 3 + crash_draw_below(&self->draws, 6);
    uint64_t point = COMMIT_POINTS_BEGIN + crash_draw_below(&self->draws, 7);
    out->kind = KILL_ASLEEP;
    out->delay_ns += crash_draw_below(&self->draws, commits_left(self)) * ms * 1000000;
    snprintf(out->failpoints, sizeof out->failpoints, "%s=sleep:%llums", points[point],
             (unsigned long long)ms);
}

/* While extents are re-cut: at its own points, at those of its sync and manifests, or by time. */
static void aim_at_recut(story *self, attempt *out)
{
    static const char *const within[] = {"recut.begin",   "manifest.half",    "recut.copied",
                                         "slab.sync",     "manifest.written", "recut.switched",
                                         "recut.removed", "manifest.synced"};
    uint64_t turn = self->drawn.seed / MOVING_OF + self->attempt_count;
    const char *point = within[turn % 8];
    if (crash_draw_below(&self->draws, 4) == 0) {
        aim_by_time(self, out);
        out->delay_ns /= 2;
        return;
    }
    bool is_manifest = strncmp(point, "manifest.", 9) == 0;
    aim_at(out, point, is_manifest ? 1 + crash_draw_below(&self->draws, 3) : 1);
}

static void plan_attempt(story *self, attempt *out)
{
    memset(out, 0, sizeof *out);
    out->layout = self->moves ? self->attempt_count : 0;
    uint64_t kind = crash_draw_below(&self->draws, 4);
    if (self->moves && self->attempt_count == 0) /* else there is nothing to move */
        aim_in_commit(self, 2, out);
    else if (self->moves)
        aim_at_recut(self, out);
    else if (kind < 2)
        aim_by_time(self, out);
    else if (kind == 2)
        aim_at_point(self, out);
    else
        aim_asleep(self, out);
}

/* ---- one job --------------------------------------------------------------------------------- */

static void note(story *self, const attempt *done)
{
    size_t used = strlen(self->history);
    int last = atomic_load(&shared->last_point);
    snprintf(self->history + used, sizeof self->history - used,
             "\n    attempt %u, layout %u: %s %s, %.3f s, %s; last point %s; commit of step %llu",
             self->attempt_count, done->layout, kill_names[done->kind], done->failpoints,
             done->seconds, done->was_killed ? "killed" : "ended", last < 0 ? "none" : points[last],
             (unsigned long long)self->committed);
}

static void count_kill(const story *self, const attempt *done, counts *sums)
{
    int last = atomic_load(&shared->last_point);
    sums->kills++;
    sums->by_kind[done->kind]++;
    if (done->kind == KILL_POINT && last >= 0)
        sums->by_point[last]++;
    sums->in_commit += (uint64_t)atomic_load(&shared->committing);
    sums->in_recut += (uint64_t)atomic_load(&shared->recutting);
    sums->in_keep += (uint64_t)atomic_load(&shared->keeping);
    sums->kills_after_commit += self->committed > 0;
    sums->commits_survived += self->committed / self->drawn.commit_every;
}

/* Whether the process died while it wrote one of the two manifests. */
static bool has_torn_slot(const char *dir)
{
    char state[2 * FIXTURE_PATH_BYTES];
    manifest_slot slots[2];
    snprintf(state, sizeof state, "%s/state", dir);
    assert_int_equal(manifest_examine(state, slots, NULL), 0);
    return slots[0].outcome == MANIFEST_SLOT_DAMAGED || slots[1].outcome == MANIFEST_SLOT_DAMAGED;
}

/* All that the commit names is whole: also where the process died while it moved or kept it. A
 * manifest that was half written is all that may be wrong. */
static void verify(const char *dir, counts *sums)
{
    struct state_verify_options options = {.run_dir = dir};
    struct state_verify_summary summary;
    int rc = state_verify(&options, &summary);
    uint64_t torn = has_torn_slot(dir);
    if (rc != (torn ? ERR_CORRUPT : 0) || summary.damage_count != torn)
        fail_msg("verify of %s: %s, %llu differences: %s", dir, err_name(rc),
                 (unsigned long long)summary.damage_count, rc < 0 ? err_text() : "");
    sums->verified++;
}

/* After a kill: no commit was lost. */
static void look_at_kill(story *self, const attempt *done, counts *sums)
{
    uint64_t before = self->committed;
    self->committed = crash_committed_step(name_killed);
    note(self, done);
    if (self->committed < before)
        fail_msg("the commit of step %llu was lost, the newest is of step %llu",
                 (unsigned long long)before, (unsigned long long)self->committed);
    self->kill_count++;
    self->was_killed_after_commit |= self->committed > 0;
    count_kill(self, done, sums);
    if (self->committed > 0 && crash_draw_below(&self->draws, 3) == 0)
        verify(fixture_path(name_killed, NULL), sums);
}

/* The next attempt, killed or to the end. True where the run is done. */
static bool go_on(story *self, const attempt *planned, counts *sums)
{
    attempt now = *planned;
    run_attempt(name_killed, self->drawn.seed, &now);
    if (now.was_killed)
        look_at_kill(self, &now, sums);
    else
        note(self, &now);
    self->attempt_count++;
    return !now.was_killed;
}

/* The copies that were kept are commits of their own; those that were cut short are gone. */
static void check_kept(counts *sums)
{
    glob_t found;
    char pattern[2 * FIXTURE_PATH_BYTES];
    snprintf(pattern, sizeof pattern, "%s/keep/step-*", fixture_path(name_killed, NULL));
    if (glob(pattern, 0, NULL, &found) != 0)
        return;
    for (size_t i = 0; i < found.gl_pathc; i++)
        verify(found.gl_pathv[i], sums);
    globfree(&found);
}

static void check_end(const story *self, const crash_trail *whole, counts *sums)
{
    static crash_trail killed;
    char why[CRASH_TEXT_BYTES];
    killed.hash = shared->hash;
    if (!crash_trail_read(name_killed, &killed, why) || !crash_trail_is_same(whole, &killed, why))
        fail_msg("%s", why);
    static crash_case last;
    crash_draw(self->drawn.seed, self->moves ? self->attempt_count - 1 : 0, CRASH_ANY, name_killed,
               &last);
    uint64_t dirs = crash_slab_dirs(name_killed);
    if (dirs != last.drive_count)
        fail_msg("%llu slab directories are left on %u drives", (unsigned long long)dirs,
                 last.drive_count);
    check_kept(sums);
}

/* One to three kills as drawn; further ones where none came, or none after the first commit in jobs
 * that are to have one; then to the end. */
static void kill_and_go_on(story *self, counts *sums)
{
    uint64_t wanted = 1 + crash_draw_below(&self->draws, 3) + self->moves;
    bool wants_commit = self->drawn.seed % MOVING_OF != 0, done = false;
    attempt next;
    while (!done && self->kill_count < wanted) {
        plan_attempt(self, &next);
        done = go_on(self, &next, sums);
    }
    bool again = self->kill_count == 0 || (wants_commit && !self->was_killed_after_commit);
    if (again && (done || self->kill_count < KILLS_MAX)) {
        if (done) {
            fixture_remove(name_killed);
            self->committed = 0;
        }
        memset(&next, 0, sizeof next);
        next.layout = self->moves ? self->attempt_count : 0;
        aim_in_commit(self, 2, &next);
        done = go_on(self, &next, sums);
    }
    memset(&next, 0, sizeof next);
    next.layout = self->moves ? self->attempt_count : 0;
    if (!done && !go_on(self, &next, sums))
        fail_msg("an attempt that nobody kills was killed");
}

static uint64_t seed_at_work;
static story current;

static void run_seed(uint64_t seed, counts *sums)
{
    static crash_trail whole;
    char why[CRASH_TEXT_BYTES];
    uint64_t begin_ns = clock_ns();
    memset(&current, 0, sizeof current);
    seed_at_work = seed;
    current.draws = (crash_draws){.seed = seed, .stream = STREAM_KILLS};
    current.moves = seed % MOVING_OF == MOVING_OF - 1;
    crash_draw(seed, 0, CRASH_ANY, name_killed, &current.drawn);

    attempt undisturbed = {.kind = KILL_NONE};
    run_attempt(name_whole, seed, &undisturbed);
    whole.hash = shared->hash;
    assert_int_equal(shared->steps_done, current.drawn.steps);
    if (!crash_trail_read(name_whole, &whole, why))
        fail_msg("%s", why);
    assert_true(whole.count > current.drawn.steps); /* the last evaluation at least */
    fixture_remove(name_whole);
    current.whole_seconds = undisturbed.seconds;

    kill_and_go_on(&current, sums);
    check_end(&current, &whole, sums);
    fixture_remove(name_killed);
    sums->runs++;
    sums->moved_runs += current.moves;
    sums->runs_after_commit += current.was_killed_after_commit;
    sums->whole_seconds += undisturbed.seconds;
    sums->seconds += (double)(clock_ns() - begin_ns) * 1e-9;
}

/* ---- all ------------------------------------------------------------------------------------- */

static uint64_t first_seed = 1, last_seed = 4;
static bool is_done;

static void say(const counts *sums)
{
    print_message("seeds %llu to %llu: %llu runs, %llu of them killed after their first commit, "
                  "%llu moved to other drives and tiles between kills\n",
                  (unsigned long long)first_seed, (unsigned long long)last_seed,
                  (unsigned long long)sums->runs, (unsigned long long)sums->runs_after_commit,
                  (unsigned long long)sums->moved_runs);
    print_message("%llu kills: %llu by a timer, %llu at a point, %llu by a timer with sleeps in "
                  "commits; %llu after the first commit, %llu inside a commit, %llu inside a "
                  "re-cut, %llu inside a copy that is kept\n",
                  (unsigned long long)sums->kills, (unsigned long long)sums->by_kind[KILL_TIMER],
                  (unsigned long long)sums->by_kind[KILL_POINT],
                  (unsigned long long)sums->by_kind[KILL_ASLEEP],
                  (unsigned long long)sums->kills_after_commit, (unsigned long long)sums->in_commit,
                  (unsigned long long)sums->in_recut, (unsigned long long)sums->in_keep);
    print_message("%llu commits survived, %llu times verified; %.3f s per undisturbed run, %.2f s "
                  "per seed; kills at points:",
                  (unsigned long long)sums->commits_survived, (unsigned long long)sums->verified,
                  sums->whole_seconds / (double)sums->runs, sums->seconds / (double)sums->runs);
    for (int i = 0; i < POINT_COUNT; i++)
        if (sums->by_point[i])
            print_message(" %s %llu", points[i], (unsigned long long)sums->by_point[i]);
    print_message("\n");
}

static void killed_runs_end_with_the_same_bits(void **state)
{
    static counts sums;
    log_set_level(LOG_QUIET);
    assert_int_equal(open_board(), 0);
    for (uint64_t seed = first_seed; seed <= last_seed; seed++)
        run_seed(seed, &sums);
    is_done = true;
    if (first_seed == last_seed)
        print_message("%s%s\n", current.drawn.text, current.history);
    say(&sums);
    assert_true(sums.kills >= sums.runs);
    if (sums.runs < 10)
        return;
    assert_true(2 * sums.runs_after_commit >= sums.runs);
    assert_true(sums.in_commit * 10 >= sums.runs);
    assert_true(sums.in_recut > 0);
}

/* Says how to run the one that failed again. */
static int finish(void **state)
{
    if (!is_done)
        print_error("seed %llu failed; run it again with: test_state_crash %llu\n  %s%s\n",
                    (unsigned long long)seed_at_work, (unsigned long long)seed_at_work,
                    current.drawn.text, current.history);
    return fixture_teardown(state);
}

int main(int argc, char **argv)
{
    if (argc == 6 && strcmp(argv[1], "victim") == 0)
        return be_victim(argv + 2);
    if (argc > 1) {
        char *end;
        first_seed = last_seed = strtoull(argv[1], &end, 10);
        if (*end == '-')
            last_seed = strtoull(end + 1, NULL, 10);
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(killed_runs_end_with_the_same_bits)};
    return cmocka_run_group_tests(tests, fixture_setup, finish);
}
