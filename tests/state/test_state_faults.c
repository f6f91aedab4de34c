/* Everything that can fail in a short run fails in turn. Either the run ends with a typed error
 * that names the transfer, the file, the offset and the last good commit, or it gives the bits of
 * the run without faults. There are never wrong numbers and never a lost commit: the same job
 * without faults goes on from the last commit and ends with the right bits.
 *
 *   errors, harmless    each transfer with each fault, without a commit before the end
 *   commits             each transfer of a run that commits each step, then the run goes on
 *   resumes             each transfer of the call that goes on from a commit
 *   points              each sync and each step of writing a manifest, then the run goes on
 *   recut, keep         the same while extents are re-cut and commits kept, on real drives
 *   pool, uring         transfers on real drives
 *
 * Argument: one of these. With the prefix "all-" ("all-commits" and so on) every fault happens at
 * every place. Without it every place meets one fault; with resumes every third place does, and on
 * real drives every fifth. */
#include <errno.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "setup/setup.h"
#include "tests/state/crash_case.h"
#include "tests/unit.h"
#include "tiers/io.h"
#include "tiers/io_faults.h"
#include "tiers/sim.h"
#include "train/train.h"

enum { STEPS = 2, TRANSFERS_LEAST = 40 };

static const char *group = "errors";
static const fixture_model shape = {.family = "gpt2", .bf16 = true, .layers = 1, .hidden = 64};
static fixture_result clean;

static void make_sets(fixture_sets *sets)
{
    memset(sets, 0, sizeof *sets);
    static const char *const kinds[] = {"params", "grads", "optimizer", "activations",
                                        "inner_activations"};
    for (int k = 0; k < 5; k++)
        fixture_set(sets, "tiers.place.%s=nvme", kinds[k]);
    fixture_set(sets, "run.steps=%d", STEPS);
    fixture_set(sets, "gradient_accumulation_steps=1");
    fixture_set(sets, "schedule.update=after_backward");
    fixture_set(sets, "debug.schedule.lookahead=1"); /* one order of transfers */
    fixture_set(sets, "aio.block_size=262144");
    fixture_set(sets, "model.seq_length=16");
}

/* Runs the job. Transfer `at` fails as `kind` says; with 0 no transfer fails. */
static void run(enum io_fault_kind kind, uint64_t at, fixture_result *result)
{
    static fixture_sets sets;
    make_sets(&sets);
    struct io_faults faults = {.seed = 1 + at, .at_transfer = at, .at_kind = kind, .stuck_us = 300};
    fixture_call call = {
        .name = "faulty", .faults = &faults, .simulates_drives = true, .hashes_nothing = true};
    fixture_run("faulty", &shape, &sets, &call, result);
    fixture_remove("faulty");
}

static void assert_right(const fixture_result *result, const char *what, uint64_t at)
{
    assert_int_equal(result->step_count, clean.step_count);
    for (uint64_t i = 0; i < clean.step_count; i++)
        if (result->loss_bits[i] != clean.loss_bits[i])
            fail_msg("%s at transfer %llu: wrong loss of step %llu", what, (unsigned long long)at,
                     (unsigned long long)i + 1);
    /* The last evaluation reads all parameters as they were left. */
    if (result->summary.eval_loss != clean.summary.eval_loss)
        fail_msg("%s at transfer %llu: wrong final parameters", what, (unsigned long long)at);
}

static void assert_typed(const fixture_result *result, enum io_fault_kind kind, uint64_t at)
{
    static const int codes[IO_FAULT_KIND_COUNT] = {
        [IO_FAULT_EIO] = -EIO,
        [IO_FAULT_TORN] = -EIO,
        [IO_FAULT_ENOSPC] = -ENOSPC,
        [IO_FAULT_FLIP] = ERR_CORRUPT,
    };
    const char *what = io_fault_kind_name(kind);
    if (result->rc != codes[kind])
        fail_msg("%s at transfer %llu: %s: %s", what, (unsigned long long)at, err_name(result->rc),
                 result->error);
    if (!strstr(result->error, ".slab") || !strstr(result->error, "offset"))
        fail_msg("%s at transfer %llu: no file or offset in: %s", what, (unsigned long long)at,
                 result->error);
}

/* How often a transfer of the run met the fault and was an error for it. */
static uint64_t sweep(enum io_fault_kind kind, uint64_t transfers, uint64_t *named)
{
    static fixture_result result;
    uint64_t failed = 0;
    for (uint64_t at = 1; at <= transfers; at++) {
        run(kind, at, &result);
        if (result.rc == 0) {
            assert_right(&result, io_fault_kind_name(kind), at);
            continue;
        }
        assert_typed(&result, kind, at);
        failed++;
        *named += strstr(result.error, "of unit") != NULL;
    }
    return failed;
}

/* Transfers of the whole run: beyond the last one EIO meets nothing. */
static uint64_t count_transfers(void)
{
    static fixture_result result;
    uint64_t low = 1, high = TRANSFERS_LEAST;
    for (run(IO_FAULT_EIO, high, &result); result.rc != 0; run(IO_FAULT_EIO, high, &result)) {
        low = high;
        high *= 2;
    }
    while (low + 1 < high) {
        uint64_t middle = (low + high) / 2;
        run(IO_FAULT_EIO, middle, &result);
        if (result.rc != 0)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static void every_transfer_fails_in_turn(void **state)
{
    run(IO_FAULT_NONE, 0, &clean);
    assert_int_equal(clean.rc, 0);
    assert_int_equal(clean.step_count, STEPS);
    assert_true(clean.summary.eval_given);
    uint64_t transfers = count_transfers();
    assert_true(transfers >= TRANSFERS_LEAST);
    static const enum io_fault_kind errors[] = {IO_FAULT_EIO, IO_FAULT_TORN, IO_FAULT_ENOSPC,
                                                IO_FAULT_FLIP};
    static const enum io_fault_kind harmless[] = {IO_FAULT_SHORT, IO_FAULT_RETRY, IO_FAULT_LATENCY,
                                                  IO_FAULT_STUCK};
    bool fails = strcmp(group, "errors") == 0;
    for (int i = 0; i < 4; i++) {
        enum io_fault_kind kind = fails ? errors[i] : harmless[i];
        uint64_t named = 0, failed = sweep(kind, transfers, &named);
        print_message("%s at each of %llu transfers: %llu errors, %llu of them name a unit\n",
                      io_fault_kind_name(kind), (unsigned long long)transfers,
                      (unsigned long long)failed, (unsigned long long)named);
        if (!fails)
            assert_int_equal(failed, 0);
        else if (kind == IO_FAULT_EIO)
            assert_true(failed == transfers && named + 4 >= failed);
        else
            assert_true(failed >= transfers / 5 && named + 4 >= failed);
    }
}

/* ---- runs that commit each step, and go on --------------------------------------------------- */

enum {
    COMMIT_STEPS = 3,
    ERROR_KINDS = 4,
    PLACES_MOST = 1000, /* no sweep is longer */
};

static const char *const job_name = "failing";
static const enum io_fault_kind error_kinds[ERROR_KINDS] = {IO_FAULT_EIO, IO_FAULT_TORN,
                                                            IO_FAULT_ENOSPC, IO_FAULT_FLIP};
static const int error_codes[IO_FAULT_KIND_COUNT] = {
    [IO_FAULT_EIO] = -EIO,
    [IO_FAULT_TORN] = -EIO,
    [IO_FAULT_ENOSPC] = -ENOSPC,
    [IO_FAULT_FLIP] = ERR_CORRUPT,
};

/* A group of faults and the job in which they happen. */
struct trial {
    bool is_full;        /* every fault at every place */
    bool is_real;        /* real drives, not simulated ones */
    bool is_resumed;     /* what fails is the second call, after a commit of step 1 */
    const char *backend; /* io.backend */
    const char *tiles;   /* schedule.tile_elems */
    uint64_t keep;       /* run.keep */
    uint64_t stop_after; /* 0: never */
    struct io_faults faults;
    const char *point; /* fails at its point_at-th meeting with point_errno; NULL: none */
    uint64_t point_at, point_met;
    int point_errno;
    uint64_t durable_step; /* of a commit that was reported as durable */
    sim_store *store;
    volatile sig_atomic_t stop;
    int rc;
    char error[ERR_TEXT_BYTES];
    struct train_summary summary;
    uint64_t weights_hash;
};
typedef struct trial trial;

static crash_trail right; /* of the run that meets no fault */

static int fail_at_point(void *user, const char *point)
{
    trial *self = user;
    if (strcmp(point, "commit.durable") == 0)
        self->durable_step = crash_committed_step(job_name);
    if (!self->point || strcmp(point, self->point) != 0 || ++self->point_met != self->point_at)
        return 0;
    return err_errno(self->point_errno, "injected at %s", point);
}

static void stop_at_step(void *user, const struct train_progress *progress)
{
    trial *self = user;
    self->stop = progress->step == self->stop_after;
}

/* Optimizer state on the drive, and of one unit in memory, from where commits save it. */
static void make_commit_sets(const trial *self, fixture_sets *sets)
{
    make_sets(sets);
    fixture_set(sets, "run.steps=%d", COMMIT_STEPS);
    fixture_set(sets, "run.commit_every=1");
    fixture_set(sets, "run.keep=%llu", (unsigned long long)self->keep);
    fixture_set(sets, "schedule.update=in_next_forward");
    fixture_set(sets, "tiers.place.activations=host");
    fixture_set(sets, "tiers.place.inner_activations=recompute");
    fixture_set(sets, "tiers.place.rules="
                      "[{\"units\":\"1-1\",\"kind\":\"optimizer\",\"tier\":\"host\"}]");
    if (self->tiles)
        fixture_set(sets, "schedule.tile_elems=%s", self->tiles);
    if (self->backend)
        fixture_set(sets, "io.backend=%s", self->backend);
}

static void try_once(trial *self, bool hashes)
{
    static fixture_sets sets;
    make_commit_sets(self, &sets);
    job *asked = fixture_job(job_name, &shape, &sets);
    const struct setup_test test = {.faults = &self->faults,
                                    .simulates_drives = !self->is_real,
                                    .store = self->is_real ? NULL : &self->store,
                                    /* past the lanes and their sums */
                                    .on_end = hashes ? fixture_hash_weights : NULL,
                                    .user = &self->weights_hash};
    struct train_options options = {
        .job = asked, .test = &test, .stop = &self->stop, .on_step = stop_at_step, .user = self};
    self->point_met = 0;
    self->stop = 0;
    failpoint_hook(fail_at_point, self);
    self->rc = train_run(&options, &self->summary);
    snprintf(self->error, sizeof self->error, "%s", self->rc < 0 ? err_text() : "");
    failpoint_hook(NULL, NULL);
    job_destroy(asked);
}

static void forget_run(trial *self)
{
    sim_store_destroy(self->store);
    self->store = NULL;
    self->durable_step = 0;
    fixture_remove(job_name);
}

/* True if the error names the last commit, in one of the forms of the messages. */
static bool names_commit(const char *error, uint64_t step)
{
    static const char *const forms[] = {"last good commit is of step ", "last commit is of step ",
                                        "the commit of step ", "the state after step "};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++)
        for (const char *at = error; (at = strstr(at, forms[i]));) {
            at += strlen(forms[i]);
            if (strtoull(at, NULL, 10) == step)
                return true;
        }
    return false;
}

static void assert_named(const trial *self, const char *what, uint64_t at, uint64_t committed)
{
    if (committed < self->durable_step)
        fail_msg("%s at %llu: the commit of step %llu was durable, the newest is of step %llu",
                 what, (unsigned long long)at, (unsigned long long)self->durable_step,
                 (unsigned long long)committed);
    if (committed > 0 && !names_commit(self->error, committed))
        fail_msg("%s at %llu: the commit of step %llu is not named in: %s", what,
                 (unsigned long long)at, (unsigned long long)committed, self->error);
}

/* The same job without faults goes on to the end, with the right bits. */
static void go_on(trial *self, const char *what, uint64_t at, uint64_t committed)
{
    static crash_trail got;
    char why[CRASH_TEXT_BYTES], first[ERR_TEXT_BYTES];
    memcpy(first, self->error, sizeof first);
    if (committed == 0) {
        sim_store_destroy(self->store);
        self->store = NULL;
    }
    self->faults = (struct io_faults){.seed = at};
    self->point = NULL;
    self->stop_after = 0;
    try_once(self, true);
    bool good = self->rc == 0 && self->summary.was_resumed == (committed > 0) &&
                self->summary.steps_done + committed == COMMIT_STEPS;
    if (!good)
        fail_msg("%s at %llu (%s): after the commit of step %llu it should go on, but: %s, %llu "
                 "steps: %s",
                 what, (unsigned long long)at, first, (unsigned long long)committed,
                 err_name(self->rc), (unsigned long long)self->summary.steps_done, self->error);
    got.hash = self->weights_hash;
    if (!crash_trail_read(job_name, &got, why) || !crash_trail_is_same(&right, &got, why))
        fail_msg("%s at %llu (%s): %s", what, (unsigned long long)at, first, why);
}

static void make_right(trial *self)
{
    char why[CRASH_TEXT_BYTES];
    log_set_level(LOG_QUIET);
    try_once(self, true);
    if (self->rc < 0)
        fail_msg("%s", self->error);
    right.hash = self->weights_hash;
    if (!crash_trail_read(job_name, &right, why))
        fail_msg("%s", why);
    forget_run(self);
}

/* A run that stopped after its first step. */
static void begin_run(trial *self)
{
    self->faults = (struct io_faults){.seed = 0};
    self->point = NULL;
    self->stop_after = 1;
    try_once(self, false);
    assert_int_equal(self->rc, ERR_STOPPED);
    self->stop_after = 0;
}

/* The call in which a transfer fails; before it, where that is to resume, one that stops. */
static void try_fault(trial *self, const struct io_faults *faults)
{
    if (self->is_resumed)
        begin_run(self);
    self->faults = *faults;
    try_once(self, false);
}

/* How many transfers the run has, within one or two. */
static uint64_t count_commit_transfers(trial *self)
{
    uint64_t low = 1, high = PLACES_MOST;
    while (low + 1 < high) {
        uint64_t middle = (low + high) / 2;
        try_fault(self, &(struct io_faults){.at_transfer = middle, .at_kind = IO_FAULT_EIO});
        *(self->rc < 0 ? &low : &high) = middle;
        forget_run(self);
    }
    self->faults = (struct io_faults){.seed = 0};
    return low;
}

/* One fault at one transfer, then on. True where it was an error. */
static bool fail_transfer(trial *self, enum io_fault_kind kind, uint64_t at)
{
    const char *what = io_fault_kind_name(kind);
    try_fault(self, &(struct io_faults){.seed = at, .at_transfer = at, .at_kind = kind});
    bool failed = self->rc < 0;
    uint64_t committed = crash_committed_step(job_name);
    if (failed) {
        if (self->rc != error_codes[kind] || !strstr(self->error, ".slab") ||
            !strstr(self->error, "offset"))
            fail_msg("%s at transfer %llu: %s: %s", what, (unsigned long long)at,
                     err_name(self->rc), self->error);
        assert_named(self, what, at, committed);
    }
    go_on(self, what, at, committed);
    forget_run(self);
    return failed;
}

/* Whether every fault is tried at every place. */
static bool is_full(void)
{
    return strncmp(group, "all-", 4) == 0;
}

static const char *group_name(void)
{
    return is_full() ? group + 4 : group;
}

static trial make_trial(void)
{
    const char *name = group_name();
    bool is_resumed = strcmp(name, "resumes") == 0;
    bool is_real = !is_resumed && strcmp(name, "commits") != 0 && strcmp(name, "points") != 0;
    return (trial){.is_full = is_full(),
                   .is_real = is_real,
                   .is_resumed = is_resumed,
                   .backend = strcmp(name, "uring") == 0 ? "uring"
                              : is_real                  ? "pool"
                                                         : NULL};
}

static void transfers_fail_and_the_run_goes_on(void **state)
{
    static trial self;
    self = make_trial();
    make_right(&self);
    uint64_t transfers = count_commit_transfers(&self), failed = 0, runs = 0;
    assert_true(transfers >= TRANSFERS_LEAST && transfers < PLACES_MOST - 2);
    uint64_t stride = self.is_full ? 1 : self.is_real ? 5 : self.is_resumed ? 3 : 1;
    for (uint64_t at = 1; at <= transfers; at += stride)
        for (int k = 0; k < ERROR_KINDS; k++) {
            if (!self.is_full && (uint64_t)k != at / stride % ERROR_KINDS)
                continue;
            failed += fail_transfer(&self, error_kinds[k], at);
            runs++;
        }
    print_message("%s: %llu faults at %llu transfers: %llu errors, each went on from its last "
                  "commit to the same bits\n",
                  group, (unsigned long long)runs, (unsigned long long)transfers,
                  (unsigned long long)failed);
    assert_true(failed * 4 >= runs);
}

/* ---- points ---------------------------------------------------------------------------------- */

static const int point_errnos[] = {EIO, ENOSPC, EROFS};
enum { POINT_ERRNOS = 3 };

/* The point's at-th meeting fails, then the run goes on, with these tiles. False where it was not
 * met so often. */
static bool fail_point(trial *self, const char *point, uint64_t at, int code, const char *tiles,
                       bool is_harmless)
{
    const char *before = self->tiles;
    self->tiles = tiles;
    self->point = point;
    self->point_at = at;
    self->point_errno = code;
    try_once(self, false);
    bool was_met = self->point_met >= at;
    uint64_t committed = crash_committed_step(job_name);
    if (self->rc != (was_met && !is_harmless ? -code : 0))
        fail_msg("%s, meeting %llu: %s: %s", point, (unsigned long long)at, err_name(self->rc),
                 self->error);
    if (self->rc < 0)
        assert_named(self, point, at, committed);
    if (at % 2 == 0) /* after a failed re-cut the run may also go on where it was */
        self->tiles = before;
    go_on(self, point, at, committed);
    self->tiles = before;
    return was_met;
}

/* Each meeting of each point, with each error or with one of them. */
static void sweep_points(trial *self, const char *const *points, int count,
                         void (*begin)(trial *self), const char *tiles, bool is_harmless)
{
    for (int p = 0; p < count; p++) {
        uint64_t at = 0, met = 0, failures = 0;
        for (bool was_met = true; was_met && at < PLACES_MOST;) {
            at++;
            for (int e = 0; e < POINT_ERRNOS; e++) {
                if (!self->is_full && (at + (uint64_t)p) % POINT_ERRNOS != (uint64_t)e)
                    continue;
                if (begin)
                    begin(self);
                was_met = fail_point(self, points[p], at, point_errnos[e], tiles, is_harmless);
                failures += was_met;
                forget_run(self);
            }
            met += was_met;
        }
        print_message("%s: %llu meetings, %llu failures\n", points[p], (unsigned long long)met,
                      (unsigned long long)failures);
        assert_true(met > 0);
    }
}

static void points_fail_and_the_run_goes_on(void **state)
{
    static const char *const points[] = {"slab.create",      "commit.begin",    "slab.sync",
                                         "commit.synced",    "manifest.begin",  "manifest.half",
                                         "manifest.written", "manifest.synced", "commit.durable"};
    static trial self;
    self = make_trial();
    make_right(&self);
    sweep_points(&self, points, 9, NULL, NULL, false);
}

static void recuts_fail_and_the_run_goes_on(void **state)
{
    static const char *const points[] = {"recut.begin",      "recut.copied",   "recut.switched",
                                         "recut.removed",    "slab.sync",      "manifest.half",
                                         "manifest.written", "manifest.synced"};
    static trial self;
    self = make_trial();
    make_right(&self);
    self.tiles = "32768";
    sweep_points(&self, points, 8, begin_run, "65536", false);
}

/* A commit that cannot be kept costs nothing but the copy. */
static void copies_fail_and_the_run_goes_on(void **state)
{
    static const char *const points[] = {"keep.begin", "keep.copied"};
    static trial self;
    self = make_trial();
    make_right(&self);
    self.keep = 1;
    sweep_points(&self, points, 2, NULL, NULL, true);
}

static int run_group(void (*test)(void **state))
{
    const struct CMUnitTest tests[] = {{.name = group, .test_func = test}};
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        group = argv[1];
    const char *name = group_name();
    if (strcmp(name, "points") == 0)
        return run_group(points_fail_and_the_run_goes_on);
    if (strcmp(name, "recut") == 0)
        return run_group(recuts_fail_and_the_run_goes_on);
    if (strcmp(name, "keep") == 0)
        return run_group(copies_fail_and_the_run_goes_on);
    if (strcmp(name, "errors") == 0 || strcmp(name, "harmless") == 0)
        return run_group(every_transfer_fails_in_turn);
    return run_group(transfers_fail_and_the_run_goes_on);
}
