/* Runs lose their power at random instants and are started again with the same command until they
 * end. Each ends with the losses, evaluations and weights of the run that lost none, to the bit,
 * and no commit that was durable is lost.
 *
 *   drives      simulated (tiers/sim.h), with a cache that a loss of power empties: each sector
 *               that was written since the last sync is old or new
 *   files       manifests and metrics are real, and torn here in the same way (crash_image.h): what
 *               an fsync of the engine covered before the moment is whole, all else may be torn
 *   layouts     every fourth run comes back with other drives, tiles and placement, and loses power
 *               while its extents are re-cut
 *   the moment  at a named point of base/failpoint.h, between two steps, or at any transfer; after
 *               it every point fails, so nothing is made durable any more
 *
 * A canary proves that this test can fail: the same run with a sync that does nothing must lose
 * something. Argument: FIRST-LAST, one seed, or "canary". */
#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "setup/setup.h"
#include "state/verify.h"
#include "tests/state/crash_case.h"
#include "tests/state/crash_image.h"
#include "tests/unit.h"
#include "tiers/io.h"
#include "tiers/io_faults.h"
#include "tiers/sim.h"
#include "train/train.h"

enum { STREAM_POWER = 520, LOSSES_MAX = 3, TRANSFER_GUESS_BYTES = 300000, CANARY_SEEDS = 8 };

static const char *const name = "powered";

static const char *const points[] = {
    "slab.create",   "commit.begin",     "slab.sync",       "commit.synced",  "manifest.begin",
    "manifest.half", "manifest.written", "manifest.synced", "commit.durable", "recut.begin",
    "recut.copied",  "recut.switched",   "recut.removed",
};
enum { POINT_COUNT = sizeof points / sizeof points[0], COMMIT_POINTS = 9, MOVING_OF = 4 };

/* ---- the moment ------------------------------------------------------------------------------ */

enum loss_kind { LOSS_NONE, LOSS_AT_POINT, LOSS_AFTER_STEP, LOSS_AT_TRANSFER, LOSS_KIND_COUNT };

struct moment {
    enum loss_kind kind;
    const char *point; /* LOSS_AT_POINT */
    uint64_t at;       /* n-th meeting, step or transfer */
};
typedef struct moment moment;

/* State that the hook and the syncs share, on any thread. */
struct power {
    pthread_mutex_t mutex;
    moment when;
    uint64_t met_count;
    bool is_off;
    bool is_caught;        /* `files` were seen after the power went */
    const char *stage;     /* the point where they were */
    uint64_t durable_step; /* of a commit that was reported as durable */
    bool in_commit, in_recut;
    sim_store *store; /* the slabs; NULL: the run is about to make some */
    crash_disk disk;
    crash_files files; /* at the moment */
};
typedef struct power power;

static power grid = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static bool is_named(const char *point, const char *wanted)
{
    return strcmp(point, wanted) == 0;
}

static int meet(power *self, const char *point)
{
    if (is_named(point, "commit.begin") || is_named(point, "commit.durable"))
        self->in_commit = point[7] == 'b';
    if (is_named(point, "recut.begin") || is_named(point, "recut.removed"))
        self->in_recut = point[6] == 'b';
    if (!self->is_off && is_named(point, "commit.durable"))
        self->durable_step = crash_committed_step(name);
    if (self->when.kind == LOSS_AT_POINT && is_named(point, self->when.point) &&
        ++self->met_count == self->when.at)
        self->is_off = true;
    if (!self->is_off)
        return 0;
    if (!self->is_caught) {
        crash_files_read(&self->files, name);
        self->is_caught = true;
        self->stage = point;
    }
    return err_set(-EIO, "the power is off");
}

static int on_point(void *user, const char *point)
{
    power *self = user;
    pthread_mutex_lock(&self->mutex);
    int rc = meet(self, point);
    pthread_mutex_unlock(&self->mutex);
    return rc;
}

static void on_step(void *user, const struct train_progress *progress)
{
    power *self = user;
    pthread_mutex_lock(&self->mutex);
    if (self->when.kind == LOSS_AFTER_STEP && progress->step >= self->when.at)
        self->is_off = true;
    pthread_mutex_unlock(&self->mutex);
}

/* ---- syncs: the linker sends those of the engine here ---------------------------------------- */

static enum {
    SYNC_GOOD,
    SYNC_DRIVES_NOT,
    SYNC_FILES_NOT
} sync_kind; /* canaries: which do nothing */

void power_sync(sim_store *self) asm("__wrap_sim_store_sync");
extern void power_sync_real(sim_store *self) asm("__real_sim_store_sync");
int power_fsync(int fd) asm("__wrap_fsync");
extern int power_fsync_real(int fd) asm("__real_fsync");
int power_fdatasync(int fd) asm("__wrap_fdatasync");
extern int power_fdatasync_real(int fd) asm("__real_fdatasync");

void power_sync(sim_store *self)
{
    if (sync_kind != SYNC_DRIVES_NOT)
        power_sync_real(self);
}

/* A sync after the moment comes too late and covers nothing. */
static int note_sync(int fd, int rc)
{
    pthread_mutex_lock(&grid.mutex);
    if (rc == 0 && !grid.is_off && sync_kind != SYNC_FILES_NOT)
        crash_disk_synced(&grid.disk, name, fd);
    pthread_mutex_unlock(&grid.mutex);
    return rc;
}

int power_fsync(int fd)
{
    return note_sync(fd, power_fsync_real(fd));
}

int power_fdatasync(int fd)
{
    return note_sync(fd, power_fdatasync_real(fd));
}

/* ---- drives: as many as the run has made slabs, each with a cache from its first byte on ----- */

enum { DRIVES_MOST = 64 };

static struct {
    uint8_t uuid[SLAB_UUID_BYTES];
    sim_store *store;
} drives[DRIVES_MOST];
static uint32_t drives_count;

int power_create(const slab *target, sim_store **out) asm("__wrap_sim_store_create");
extern int power_create_real(const slab *target, sim_store **out) asm("__real_sim_store_create");
void power_destroy(sim_store *self) asm("__wrap_sim_store_destroy");
extern void power_destroy_real(sim_store *self) asm("__real_sim_store_destroy");

int power_create(const slab *target, sim_store **out)
{
    TRY(power_create_real(target, out));
    assert_true(drives_count < DRIVES_MOST);
    memcpy(drives[drives_count].uuid, target->uuid, sizeof drives[0].uuid);
    drives[drives_count++].store = *out;
    sim_store_cache(*out);
    return 0;
}

/* Does nothing: the contents of a drive outlive the processes that use it. */
void power_destroy(sim_store *self)
{
}

static void forget_drives(void)
{
    for (uint32_t i = 0; i < drives_count; i++)
        power_destroy_real(drives[i].store);
    drives_count = 0;
    grid.store = NULL;
}

/* Those that the run's manifest names, for the next attempt. False where there are none of that
 * id. */
static bool find_drives(void)
{
    struct state_inspect_summary summary;
    assert_ok(state_inspect(fixture_path(name, NULL), &summary));
    grid.store = NULL;
    for (uint32_t i = 0; i < drives_count; i++) {
        char hex[2 * SLAB_UUID_BYTES + 1];
        for (int k = 0; k < SLAB_UUID_BYTES; k++)
            snprintf(hex + 2 * k, 3, "%02x", drives[i].uuid[k]);
        if (strcmp(hex, summary.uuid) == 0)
            grid.store = drives[i].store;
    }
    state_inspect_fini(&summary);
    return grid.store != NULL;
}

/* ---- one attempt ----------------------------------------------------------------------------- */

struct attempt {
    int rc;
    char error[ERR_TEXT_BYTES];
    struct train_summary summary;
    uint64_t weights_hash;
};
typedef struct attempt attempt;

/* Runs the command with this moment before it. */
static void run_attempt(const crash_case *drawn, const moment *when, uint64_t order_seed,
                        attempt *out)
{
    job *asked = fixture_job(name, &drawn->shape, &drawn->sets);
    struct io_faults faults = {.seed = order_seed,
                               .break_after = when->kind == LOSS_AT_TRANSFER ? when->at : 0};
    const struct setup_test test = {.faults = &faults,
                                    .simulates_drives = true,
                                    .store = &grid.store,
                                    .on_end = fixture_hash_weights,
                                    .user = &out->weights_hash};
    struct train_options options = {.job = asked, .test = &test, .on_step = on_step, .user = &grid};
    grid.when = *when;
    grid.met_count = 0;
    grid.is_off = grid.is_caught = grid.in_commit = grid.in_recut = false;
    grid.stage = "";
    crash_disk_begin(&grid.disk, name);
    failpoint_hook(on_point, &grid);
    out->rc = train_run(&options, &out->summary);
    snprintf(out->error, sizeof out->error, "%s", out->rc < 0 ? err_text() : "");
    failpoint_hook(NULL, NULL);
    job_destroy(asked);
}

/* ---- one job --------------------------------------------------------------------------------- */

struct counts {
    uint64_t runs, runs_after_commit, losses, losses_after_commit, in_commit, in_recut,
        torn_manifests, commits_survived, by_kind[LOSS_KIND_COUNT], by_point[POINT_COUNT];
    double seconds;
};
typedef struct counts counts;

struct story {
    crash_case drawn;
    crash_draws draws;
    uint64_t transfers; /* of the whole run, about */
    uint64_t committed;
    uint32_t losses, attempts;
    bool moves; /* to other drives, tiles and placement with each attempt */
    bool had_commit;
    char history[CRASH_TEXT_BYTES];
};
typedef struct story story;

/* While extents are moved: at a point of that, or of its sync and manifests. */
static void plan_in_recut(story *self, moment *out)
{
    static const char *const within[] = {"recut.begin",   "manifest.half",    "recut.copied",
                                         "slab.sync",     "manifest.written", "recut.switched",
                                         "recut.removed", "manifest.synced"};
    const char *point = within[crash_draw_below(&self->draws, 8)];
    bool is_manifest = strncmp(point, "manifest", 8) == 0;
    *out = (moment){.kind = LOSS_AT_POINT,
                    .point = point,
                    .at = is_manifest ? 1 + crash_draw_below(&self->draws, 3) : 1};
}

static void plan_moment(story *self, moment *out)
{
    uint64_t left = self->drawn.steps - self->committed;
    uint64_t commits = left / self->drawn.commit_every;
    memset(out, 0, sizeof *out);
    if (self->moves && self->committed > 0 && crash_draw_below(&self->draws, 5) > 0) {
        plan_in_recut(self, out);
        return;
    }
    switch (crash_draw_below(&self->draws, 4)) {
    case 0:
        out->kind = LOSS_AFTER_STEP;
        out->at = self->committed + 1 + crash_draw_below(&self->draws, left ? left : 1);
        break;
    case 1:
        out->kind = LOSS_AT_TRANSFER;
        out->at = 1 + crash_draw_below(&self->draws, self->transfers);
        break;
    default:
        out->kind = LOSS_AT_POINT;
        out->point = points[(self->drawn.seed + 4 * self->losses) % COMMIT_POINTS];
        out->at = 1 + crash_draw_below(&self->draws, commits ? commits : 1);
        if (strncmp(out->point, "manifest", 8) == 0 && !self->committed)
            out->at++;
        break;
    }
}

static void note(story *self, const moment *when, const attempt *done)
{
    static const char *const names[] = {"no loss", "at point", "after step", "at transfer"};
    size_t used = strlen(self->history);
    snprintf(self->history + used, sizeof self->history - used, "\n    %s %s %llu: %s, %s %s",
             names[when->kind], when->point ? when->point : "", (unsigned long long)when->at,
             err_name(done->rc), grid.is_caught ? "seen at" : "seen at the end", grid.stage);
}

static void count_loss(const story *self, const moment *when, bool is_torn, counts *sums)
{
    sums->losses++;
    sums->by_kind[when->kind]++;
    for (int i = 0; i < POINT_COUNT; i++)
        sums->by_point[i] += when->point && is_named(when->point, points[i]);
    sums->in_commit += grid.in_commit;
    sums->in_recut += grid.in_recut;
    sums->torn_manifests += is_torn;
    sums->losses_after_commit += self->committed > 0;
    sums->commits_survived += self->committed / self->drawn.commit_every;
}

/* The drives and files as they are when the power is back. False, with the reason, where what was
 * durable is not there. */
static bool lose_power(story *self, const moment *when, counts *sums, char why[CRASH_TEXT_BYTES])
{
    uint64_t seed = crash_draw_below(&self->draws, UINT32_MAX);
    if (!grid.is_caught)
        crash_files_read(&grid.files, name);
    bool is_torn = crash_files_tear(&grid.disk, &grid.files, seed);
    crash_files_write(&grid.files, name);
    for (uint32_t i = 0; i < drives_count; i++)
        assert_ok(sim_store_lose_power(drives[i].store, seed + i));
    self->committed = crash_committed_step(name);
    self->had_commit |= self->committed > 0;
    self->losses++;
    count_loss(self, when, is_torn, sums);
    if (self->committed == 0)
        forget_drives(); /* the run begins again, on slabs of its own */
    else if (!find_drives()) {
        snprintf(why, CRASH_TEXT_BYTES, "the manifest names slabs that nobody has made");
        return false;
    }
    if (self->committed >= grid.durable_step)
        return true;
    snprintf(why, CRASH_TEXT_BYTES,
             "the commit of step %llu was durable, the newest is of step %llu",
             (unsigned long long)grid.durable_step, (unsigned long long)self->committed);
    return false;
}

/* True where the run is done; *good false where something is wrong. */
static bool go_on(story *self, const moment *when, attempt *done, counts *sums, bool *good,
                  char why[CRASH_TEXT_BYTES])
{
    uint64_t before = self->committed;
    if (self->moves)
        crash_draw(self->drawn.seed, self->attempts++, CRASH_SIMULATED, name, &self->drawn);
    run_attempt(&self->drawn, when, crash_draw_below(&self->draws, UINT32_MAX), done);
    note(self, when, done);
    bool is_lost = grid.is_off || (when->kind == LOSS_AT_TRANSFER && done->rc < 0);
    bool is_resumed = done->summary.was_resumed || done->summary.steps_done == 0;
    if (done->rc < 0 && is_lost) {
        *good = lose_power(self, when, sums, why);
        return false;
    }
    *good = done->rc == 0 && (before == 0 || is_resumed) &&
            done->summary.steps_done + before == self->drawn.steps;
    if (!*good)
        snprintf(why, CRASH_TEXT_BYTES, "from step %llu, %llu steps: %s: %.300s",
                 (unsigned long long)before, (unsigned long long)done->summary.steps_done,
                 err_name(done->rc), done->error);
    return true;
}

static bool check_end(const crash_trail *whole, const attempt *last, char why[CRASH_TEXT_BYTES])
{
    static crash_trail got;
    got.hash = last->weights_hash;
    return crash_trail_read(name, &got, why) && crash_trail_is_same(whole, &got, why);
}

/* The run that loses no power. */
static void run_whole(story *self, crash_trail *whole)
{
    static attempt done;
    char why[CRASH_TEXT_BYTES];
    run_attempt(&self->drawn, &(moment){.kind = LOSS_NONE}, self->drawn.seed, &done);
    if (done.rc < 0)
        fail_msg("%s: %s", err_name(done.rc), done.error);
    whole->hash = done.weights_hash;
    if (!crash_trail_read(name, whole, why))
        fail_msg("%s", why);
    uint64_t bytes = done.summary.lanes[LANE_READ].bytes + done.summary.lanes[LANE_WRITE].bytes;
    self->transfers = 20 + bytes / TRANSFER_GUESS_BYTES;
    forget_drives();
    fixture_remove(name);
}

static story current;

/* False, with the reason, where the run does not end as it should. */
static bool run_seed(uint64_t seed, counts *sums, char why[CRASH_TEXT_BYTES])
{
    static crash_trail whole;
    static attempt done;
    uint64_t begin_ns = clock_ns();
    memset(&current, 0, sizeof current);
    current.draws = (crash_draws){.seed = seed, .stream = STREAM_POWER};
    current.moves = seed % MOVING_OF == MOVING_OF - 1;
    crash_draw(seed, 0, CRASH_SIMULATED, name, &current.drawn);
    bool good = true, ended = false;
    run_whole(&current, &whole);
    grid.durable_step = 0;
    uint64_t wanted = 1 + crash_draw_below(&current.draws, LOSSES_MAX) + current.moves;
    moment when;
    for (uint64_t i = 0; good && !ended && i < wanted + 2 && current.losses < wanted; i++) {
        plan_moment(&current, &when);
        ended = go_on(&current, &when, &done, sums, &good, why);
    }
    when = (moment){.kind = LOSS_NONE};
    if (good && !ended)
        ended = go_on(&current, &when, &done, sums, &good, why);
    good = good && ended && check_end(&whole, &done, why);
    forget_drives();
    fixture_remove(name);
    sums->runs++;
    sums->runs_after_commit += current.had_commit;
    sums->seconds += (double)(clock_ns() - begin_ns) * 1e-9;
    return good;
}

/* ---- all ------------------------------------------------------------------------------------- */

static uint64_t first_seed = 1, last_seed = 4;

static void say(const counts *sums)
{
    print_message(
        "seeds %llu to %llu: %llu runs, %llu of them lost power after their first commit, "
        "%.2f s each\n",
        (unsigned long long)first_seed, (unsigned long long)last_seed,
        (unsigned long long)sums->runs, (unsigned long long)sums->runs_after_commit,
        sums->seconds / (double)sums->runs);
    print_message(
        "%llu losses of power: %llu at a point, %llu after a step, %llu at a transfer; %llu "
        "after the first commit, %llu inside a commit, %llu inside a re-cut, %llu with a torn "
        "manifest; %llu commits survived; at points:",
        (unsigned long long)sums->losses, (unsigned long long)sums->by_kind[LOSS_AT_POINT],
        (unsigned long long)sums->by_kind[LOSS_AFTER_STEP],
        (unsigned long long)sums->by_kind[LOSS_AT_TRANSFER],
        (unsigned long long)sums->losses_after_commit, (unsigned long long)sums->in_commit,
        (unsigned long long)sums->in_recut, (unsigned long long)sums->torn_manifests,
        (unsigned long long)sums->commits_survived);
    for (int i = 0; i < POINT_COUNT; i++)
        if (sums->by_point[i])
            print_message(" %s %llu", points[i], (unsigned long long)sums->by_point[i]);
    print_message("\n");
}

static void runs_survive_losses_of_power(void **state)
{
    static counts sums;
    char why[CRASH_TEXT_BYTES];
    log_set_level(LOG_QUIET);
    for (uint64_t seed = first_seed; seed <= last_seed; seed++)
        if (!run_seed(seed, &sums, why))
            fail_msg("seed %llu: %s; run it again with: test_state_power %llu\n  %s%s",
                     (unsigned long long)seed, why, (unsigned long long)seed, current.drawn.text,
                     current.history);
    say(&sums);
    if (sums.runs < 10)
        return;
    assert_true(2 * sums.runs_after_commit >= sums.runs);
    assert_true(sums.in_commit > 0);
    assert_true(sums.runs < 40 || sums.torn_manifests > 0);
}

/* The same where syncs make nothing durable: that must be seen. */
static void find_out(int kind, const char *what)
{
    static counts sums;
    char why[CRASH_TEXT_BYTES], example[CRASH_TEXT_BYTES] = "";
    uint64_t found = 0;
    log_set_level(LOG_QUIET);
    sync_kind = kind;
    for (uint64_t seed = 1; seed <= CANARY_SEEDS; seed++)
        if (!run_seed(seed, &sums, why)) {
            memcpy(example, why, sizeof example);
            found++;
        }
    sync_kind = SYNC_GOOD;
    print_message("%llu of %d runs without syncs of %s are found out, the last one by: %s\n",
                  (unsigned long long)found, CANARY_SEEDS, what, example);
    assert_true(found > 0);
}

static void drives_without_sync_are_found_out(void **state)
{
    find_out(SYNC_DRIVES_NOT, "drives");
}

static void files_without_sync_are_found_out(void **state)
{
    find_out(SYNC_FILES_NOT, "files");
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "canary") == 0) {
        const struct CMUnitTest tests[] = {
            cmocka_unit_test(drives_without_sync_are_found_out),
            cmocka_unit_test(files_without_sync_are_found_out),
        };
        return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
    }
    if (argc > 1) {
        char *end;
        first_seed = last_seed = strtoull(argv[1], &end, 10);
        if (*end == '-')
            last_seed = strtoull(end + 1, NULL, 10);
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(runs_survive_losses_of_power)};
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
