/* See ranks_rig.h. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/launched_ranks.h"
#include "setup/setup.h"
#include "state/verify.h"
#include "tests/comm/comm_fixture.h"
#include "tests/ranks/ranks_rig.h"
#include "tests/unit.h"
#include "train/train.h"

const char *const rig_points[RIG_POINT_COUNT] = {
    "slab.create",   "commit.begin",     "slab.sync",       "commit.synced",  "manifest.begin",
    "manifest.half", "manifest.written", "manifest.synced", "commit.durable", "keep.begin",
    "keep.copied",   "recut.begin",      "recut.copied",    "recut.switched", "recut.removed",
};

static const char *job_path(const rig *self)
{
    return fixture_path(self->name, ".json");
}

void rig_write_job(const char *name, const fixture_model *shape)
{
    FILE *file = fopen(fixture_path(name, ".json"), "w");
    assert_non_null(file);
    fprintf(
        file,
        "{\n\"model\": {\"family\": \"%s\", \"num_layers\": %u, \"hidden_size\": %u, "
        "\"num_heads\": 4, \"num_kv_heads\": %d, \"vocab_size\": 640, \"seq_length\": 16},\n"
        "\"data\": {\"train\": [\"%s/train.txt\"], \"valid\": [\"%s/valid.txt\"], \"seed\": 3},\n",
        shape->family, shape->layers, shape->hidden, strcmp(shape->family, "llama") == 0 ? 2 : 4,
        fixture_dir, fixture_dir);
    fprintf(file,
            "\"run\": {\"dir\": \"%s/%s\", \"steps\": %d, \"seed\": 7, \"eval_every\": %d, "
            "\"eval_batches\": 12, \"commit_every\": %d},\n"
            "\"device\": {\"backend\": \"cpu\", \"threads\": 1},\n"
            "\"tiers\": {\"device\": {\"budget\": %d}, \"host\": {\"budget\": %d},\n"
            "  \"nvme\": [{\"path\": \"%s/%s.nvme\", \"budget\": \"256MiB\"}]},\n",
            fixture_dir, name, RIG_STEPS, RIG_EVAL_EVERY, RIG_COMMIT_EVERY, FIXTURE_BUDGET_BYTES,
            FIXTURE_BUDGET_BYTES, fixture_dir, name);
    fprintf(file,
            "\"comm\": {\"timeout_seconds\": 20}, \"debug\": {\"comm\": {\"exit_seconds\": 10}},\n"
            "\"train_batch_size\": %d, \"train_micro_batch_size_per_gpu\": 1,\n"
            "\"gradient_clipping\": 1.0, \"bf16\": {\"enabled\": %s},\n"
            "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 2e-3, \"betas\": [0.9, "
            "0.95], \"eps\": 1e-8, \"weight_decay\": 0.1}}\n}\n",
            RIG_BATCH, shape->bf16 ? "true" : "false");
    assert_int_equal(fclose(file), 0);
}

/* ---- a forked rank --------------------------------------------------------------------------- */

static const rig *in_rank; /* what this process is a rank of */
static rig_rank *own_board;

static int note_point(void *user, const char *name)
{
    for (int i = 0; i < RIG_POINT_COUNT; i++)
        if (strcmp(rig_points[i], name) == 0)
            atomic_store(&own_board->last_point, i);
    if (strcmp(name, "commit.begin") == 0 || strcmp(name, "commit.durable") == 0)
        atomic_store(&own_board->committing, name[7] == 'b');
    if (strcmp(name, "recut.begin") == 0 || strcmp(name, "recut.removed") == 0)
        atomic_store(&own_board->recutting, name[6] == 'b');
    return 0;
}

/* With several ranks all learn of a stop with the losses that come next: those of the step before
 * the one after which the test wants the stop, unless there is an evaluation in between. */
static void ask_to_stop(uint64_t done)
{
    uint64_t ask_at = in_rank->world > 1 ? in_rank->stop_after - 1 : in_rank->stop_after;
    if (in_rank->stop_after && done == ask_at)
        (void)raise(SIGUSR1);
}

static void note_step(void *user, const struct train_progress *progress)
{
    atomic_store(&own_board->step, progress->step);
    if (in_rank->world == 1 || progress->step % RIG_EVAL_EVERY != 0)
        ask_to_stop(progress->step);
}

static void note_eval(void *user, const struct train_eval *eval)
{
    ask_to_stop(eval->step);
}

static int train_as_rank(comm *ranks, uint32_t rank, const char *path)
{
    const char *sets[sizeof in_rank->sets.text / sizeof in_rank->sets.text[0]];
    job *asked;
    bool is_fresh;
    for (uint32_t i = 0; i < in_rank->sets.count; i++)
        sets[i] = in_rank->sets.text[i];
    TRY(setup_read_job(ranks, path, NULL, sets, in_rank->sets.count, &asked, &is_fresh));
    const struct setup_test test = {.faults =
                                        rank == in_rank->faulty_rank ? in_rank->faults : NULL};
    struct train_options options = {
        .job = asked,
        .test = &test,
        .comm = ranks,
        .from = in_rank->from,
        .stop = cli_stop_install(NULL),
        .on_step = note_step,
        .on_eval = note_eval,
    };
    int rc = in_rank->prepare ? in_rank->prepare(rank, &options, in_rank->user) : 0;
    if (rc == 0)
        rc = train_run(&options, &own_board->summary);
    atomic_store(&own_board->has_ended, 1);
    job_destroy(asked);
    return rc;
}

static void open_says(const rig *self, int flags)
{
    int fd = open(fixture_path(self->name, ".says"), O_WRONLY | O_CREAT | O_APPEND | flags, 0666);
    if (fd < 0 || dup2(fd, 1) != 1 || dup2(fd, 2) != 2)
        _exit(126);
    close(fd);
}

static void be_rank(const rig *self, const comm_join_config *config)
{
    char prefix[32], path[2 * FIXTURE_PATH_BYTES];
    uint32_t rank = config->rank;
    in_rank = self;
    own_board = &self->board[rank];
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* nothing outlives the test */
    open_says(self, 0);
    setenv("SLUICE_FAILPOINTS", self->failpoints[rank] ? self->failpoints[rank] : "", 1);
    (void)signal(SIGPIPE, SIG_IGN);
    static const int deadly[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    for (size_t i = 0; i < sizeof deadly / sizeof deadly[0]; i++)
        (void)signal(deadly[i],
                     SIG_DFL); /* the test's own handlers would go on with the test here */
    snprintf(prefix, sizeof prefix, "rank %u: ", rank);
    log_set_level(LOG_WARN);
    log_set_prefix(rank > 0 ? prefix : "");
    snprintf(path, sizeof path, "%s",
             self->job_paths[rank] ? self->job_paths[rank] : job_path(self));
    comm *ranks = NULL;
    int rc = failpoint_init();
    failpoint_hook(note_point, NULL);
    if (rc == 0)
        rc = comm_join(config, &ranks);
    if (rc < 0)
        cli_exit_as(comm_is_reporter(ranks), false);
    else
        rc = train_as_rank(ranks, rank, path);
    _exit(cli_finish(cli_ranks_leave(ranks, rc, rc == ERR_STOPPED)));
}

static void fork_ranks(rig *self)
{
    comm_join_config config = {.is_given = true,
                               .world = self->world,
                               .timeout_seconds = 10 + self->world, /* to join; then the job's */
                               .exit_seconds = 10,
                               .host = "machine",
                               .report = cli_print_error,
                               .hub_port = comm_fixture_port()};
    config.token = (uint64_t)getpid() << 20 | config.hub_port;
    for (uint32_t r = 0; r < self->world; r++) {
        config.rank = r;
        atomic_store(&self->board[r].last_point, -1);
        fflush(NULL);
        self->pids[r] = fork();
        assert_true(self->pids[r] >= 0);
        if (self->pids[r] == 0)
            be_rank(self, &config);
    }
}

/* ---- the program under mpirun ---------------------------------------------------------------- */

static const char *const shell_text =
    "eval export SLUICE_FAILPOINTS=\\\"\\$RIG_POINTS_$OMPI_COMM_WORLD_RANK\\\"; exec \"$@\"";

static void be_mpirun(const rig *self)
{
    const char *arguments[24 + 2 * FIXTURE_SETS_MAX];
    char world[16], name[32];
    uint32_t count = 0;
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    open_says(self, 0);
    int null = open("/dev/null", O_RDONLY);
    if (null < 0 || dup2(null, 0) != 0)
        _exit(126);
    for (uint32_t r = 0; r < self->world; r++) {
        snprintf(name, sizeof name, "RIG_POINTS_%u", r);
        setenv(name, self->failpoints[r] ? self->failpoints[r] : "", 1);
    }
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
    setenv("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe", 1);
    snprintf(world, sizeof world, "%u", self->world);
    const char *const first[] = {"mpirun",   "-n", world,          "sh",    "-c",
                                 shell_text, "sh", SLUICE_PROGRAM, "train", job_path(self)};
    for (; count < sizeof first / sizeof first[0]; count++)
        arguments[count] = first[count];
    for (uint32_t i = 0; i < self->sets.count; i++) {
        arguments[count++] = "--set";
        arguments[count++] = self->sets.text[i];
    }
    if (self->from) {
        arguments[count++] = "--from";
        arguments[count++] = self->from;
    }
    arguments[count] = NULL;
    execvp("mpirun", (char *const *)(uintptr_t)arguments);
    _exit(127);
}

bool rig_has_mpirun(void)
{
    return system("command -v mpirun >/dev/null 2>&1") == 0 &&
           system("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun -n "
                  "1 " SLUICE_PROGRAM
                  " train /nonexistent.json 2>&1 | grep -q 'this build has no MPI'") != 0;
}

/* The rank that the process says it is, where it runs the program already; -1. */
static int rank_of(pid_t pid)
{
    static const char key[] = "OMPI_COMM_WORLD_RANK=";
    static char text[65536];
    char path[64], binary[512];
    snprintf(path, sizeof path, "/proc/%d/exe", (int)pid);
    ssize_t bytes = readlink(path, binary, sizeof binary - 1);
    binary[bytes > 0 ? bytes : 0] = '\0';
    if (!strstr(binary, "sluice"))
        return -1;
    snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    FILE *file = fopen(path, "r");
    size_t got = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file)
        fclose(file);
    text[got] = '\0';
    for (size_t at = 0; at < got; at += strlen(text + at) + 1)
        if (strncmp(text + at, key, sizeof key - 1) == 0)
            return atoi(text + at + sizeof key - 1);
    return -1;
}

/* Children of mpirun, those of all its threads. */
static uint32_t look_for_ranks(rig *self)
{
    char path[300];
    uint32_t count = 0;
    snprintf(path, sizeof path, "/proc/%d/task", (int)self->launcher);
    DIR *tasks = opendir(path);
    for (const struct dirent *entry; tasks && (entry = readdir(tasks));) {
        snprintf(path, sizeof path, "/proc/%d/task/%.20s/children", (int)self->launcher,
                 entry->d_name);
        FILE *file = entry->d_name[0] != '.' ? fopen(path, "r") : NULL;
        for (int pid; file && fscanf(file, "%d", &pid) == 1;) {
            int rank = rank_of(pid);
            if (rank < 0 || (uint32_t)rank >= self->world)
                continue;
            self->pids[rank] = pid;
            count++;
        }
        if (file)
            fclose(file);
    }
    if (tasks)
        closedir(tasks);
    return count;
}

void rig_find_ranks(rig *self)
{
    for (int tries = 0; self->by_mpirun && look_for_ranks(self) < self->world; tries++) {
        if (tries > 10000 || crash_ends_within(self->launcher, 1000000))
            return; /* they were too fast, or never came: rig_end says more */
    }
}

bool rig_has_begun(const rig *self)
{
    char path[300], target[4 * FIXTURE_PATH_BYTES];
    bool is_found = false;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)self->pids[0]);
    DIR *files = self->pids[0] > 0 ? opendir(path) : NULL;
    for (const struct dirent *entry; files && (entry = readdir(files));) {
        snprintf(path, sizeof path, "/proc/%d/fd/%.20s", (int)self->pids[0], entry->d_name);
        ssize_t bytes = readlink(path, target, sizeof target - 1);
        target[bytes > 0 ? bytes : 0] = '\0';
        is_found = is_found || strstr(target, "/state/lock");
    }
    if (files)
        closedir(files);
    return is_found;
}

/* ---- from the beginning to the end ----------------------------------------------------------- */

void rig_begin(rig *self)
{
    assert_in_range(self->world, 1, RIG_RANKS_MAX);
    self->board = comm_fixture_shared(RIG_RANKS_MAX * sizeof *self->board);
    memset(self->pids, 0, sizeof self->pids);
    self->launcher = 0;
    (void)unlink(fixture_path(self->name, ".says"));
    self->begin_ns = clock_ns();
    self->mark_ns = 0;
    if (!self->by_mpirun) {
        fork_ranks(self);
        return;
    }
    fflush(NULL);
    self->launcher = fork();
    assert_true(self->launcher >= 0);
    if (self->launcher == 0)
        be_mpirun(self);
}

void rig_mark(rig *self)
{
    self->mark_ns = clock_ns();
}

static void read_says(rig *self)
{
    FILE *file = fopen(fixture_path(self->name, ".says"), "r");
    size_t got = file ? fread(self->says, 1, sizeof self->says - 1, file) : 0;
    if (file)
        fclose(file);
    self->says[got] = '\0';
    self->error_count = 0;
    self->error[0] = '\0';
    static const char begins[] = "sluice: error: ";
    for (const char *line = self->says; line && *line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, begins, sizeof begins - 1) != 0)
            continue;
        self->error_count++;
        snprintf(self->error, sizeof self->error, "%.*s", (int)strcspn(line, "\n"), line);
    }
}

/* Until the process is gone, or the time is over. Ranks of mpirun are not our children. */
static bool is_gone_by(pid_t pid, uint64_t end_ns)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd < 0)
        return errno == ESRCH;
    uint64_t now_ns = clock_ns();
    struct pollfd end = {.fd = fd, .events = POLLIN};
    int rc = poll(&end, 1, now_ns < end_ns ? (int)((end_ns - now_ns) / 1000000) + 1 : 0);
    close(fd);
    return rc == 1;
}

/* mpirun itself: where a rank dies while it shakes hands with mpirun (in MPI_Init), Open MPI 4.1
 * may wait forever with no process left to wait for. */
static int end_launcher(rig *self)
{
    enum { LAUNCHER_SECONDS = 10 };
    int status;
    self->launcher_hung =
        !is_gone_by(self->launcher, clock_ns() + LAUNCHER_SECONDS * (uint64_t)1000000000);
    if (self->launcher_hung)
        kill(self->launcher, SIGKILL);
    assert_int_equal(waitpid(self->launcher, &status, 0), self->launcher);
    return status;
}

void rig_end(rig *self)
{
    if (self->mark_ns == 0)
        rig_mark(self);
    double limit = self->limit_seconds > 0 ? self->limit_seconds : 60 + 5 * (double)self->world;
    uint64_t end_ns = clock_ns() + (uint64_t)(limit * 1e9);
    int late = -1;
    if (self->launcher && self->pids[0] == 0)
        (void)is_gone_by(self->launcher, end_ns); /* the ranks are not known */
    for (uint32_t r = 0; r < self->world; r++)
        if (self->pids[r] > 0 && !(self->has_stopped && r == self->stopped_rank) &&
            !is_gone_by(self->pids[r], end_ns))
            late = (int)r;
    self->seconds = (double)(clock_ns() - self->mark_ns) * 1e-9;
    if (self->has_stopped) {
        kill(self->pids[self->stopped_rank], SIGCONT);
        if (!is_gone_by(self->pids[self->stopped_rank], end_ns))
            late = (int)self->stopped_rank;
        self->has_stopped = false;
    }
    for (uint32_t r = 0; late >= 0 && r < self->world; r++)
        kill(self->pids[r], SIGKILL);
    int status = self->launcher ? end_launcher(self) : 0;
    for (uint32_t r = 0; r < self->world; r++) {
        self->statuses[r] = status;
        if (!self->launcher)
            assert_int_equal(waitpid(self->pids[r], &self->statuses[r], 0), self->pids[r]);
    }
    read_says(self);
    if (late >= 0)
        fail_msg("rank %d of %s is still there after %.1f s: %s", late, self->name, limit,
                 self->says);
}

void rig_run_good(rig *self)
{
    rig_begin(self);
    rig_end(self);
    int wanted = self->stop_after ? CLI_EXIT_STOPPED : 0;
    for (uint32_t r = 0; r < self->world; r++)
        if (!WIFEXITED(self->statuses[r]) || WEXITSTATUS(self->statuses[r]) != wanted)
            fail_msg("rank %u of %u of %s: status %#x, and not exit %d: %s", r, self->world,
                     self->name, (unsigned)self->statuses[r], wanted, self->says);
    munmap(self->board, RIG_RANKS_MAX * sizeof *self->board);
}

void rig_sleep(double seconds)
{
    struct timespec left = {.tv_sec = (time_t)seconds,
                            .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

/* Lines of the run's metrics, of which some are evaluations. */
static uint64_t count_lines(const rig *self)
{
    uint64_t count = 0;
    FILE *file = fopen(fixture_path(self->name, "metrics.jsonl"), "r");
    for (int letter; file && (letter = fgetc(file)) != EOF;)
        count += letter == '\n';
    if (file)
        fclose(file);
    return count;
}

static bool has_ended(const rig *self)
{
    pid_t pid = self->launcher ? self->launcher : self->pids[0];
    return crash_ends_within(pid, 1000000);
}

void rig_await_step(const rig *self, uint64_t step)
{
    uint64_t end_ns = clock_ns() + (20 + self->world) * UINT64_C(1000000000);
    for (uint64_t done = 0; done < step && clock_ns() < end_ns && !has_ended(self);)
        done = self->launcher ? count_lines(self) : atomic_load(&self->board[0].step);
}

/* ---- what is left ---------------------------------------------------------------------------- */

void rig_verify(const char *run_dir, rig_verified *out)
{
    rig_verified *shared = comm_fixture_shared(sizeof *shared);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        log_set_level(LOG_QUIET);
        const struct state_verify_options options = {.run_dir = run_dir};
        shared->rc = state_verify(&options, &shared->summary);
        if (shared->rc < 0)
            snprintf(shared->error, sizeof shared->error, "%s", err_text());
        _exit(0);
    }
    if (crash_wait(child) != 0)
        fail_msg("verify of %s has died", run_dir);
    *out = *shared;
    munmap(shared, sizeof *shared);
}

bool rig_is_whole(const rig_verified *self)
{
    bool is_torn = self->rc == ERR_CORRUPT && self->summary.damage_count == 1;
    return self->rc == 0 || (is_torn && strstr(self->error, "is whole, and the run goes on"));
}

void rig_read_trail(const char *name, crash_trail *out)
{
    char why[CRASH_TEXT_BYTES];
    static rig_verified verified;
    rig_verify(fixture_path(name, NULL), &verified);
    if (verified.rc < 0)
        fail_msg("%s: %s", name, verified.error);
    if (!crash_trail_read(name, out, why))
        fail_msg("%s", why);
    out->hash = verified.summary.weights_hash;
}

/* One directory's names; those of slabs count apart. */
static void list_slabs(const char *path, rig_drive *out)
{
    DIR *directory = opendir(path);
    for (const struct dirent *entry; directory && (entry = readdir(directory));) {
        if (entry->d_name[0] == '.')
            continue;
        bool is_slab = strstr(entry->d_name, ".slab") != NULL;
        out->slab_count += is_slab;
        out->other_count += !is_slab && strcmp(entry->d_name, "owner") != 0;
        size_t used = strlen(out->text);
        snprintf(out->text + used, sizeof out->text - used, "%.60s ", entry->d_name);
    }
    if (directory)
        closedir(directory);
}

void rig_list_drive(const char *name, rig_drive *out)
{
    char path[3 * FIXTURE_PATH_BYTES];
    memset(out, 0, sizeof *out);
    DIR *drive = opendir(fixture_path(name, ".nvme"));
    for (const struct dirent *entry; drive && (entry = readdir(drive));) {
        if (entry->d_name[0] == '.')
            continue;
        out->directory_count++;
        size_t used = strlen(out->text);
        snprintf(out->text + used, sizeof out->text - used, "%.60s: ", entry->d_name);
        snprintf(path, sizeof path, "%s/%.200s", fixture_path(name, ".nvme"), entry->d_name);
        if (strstr(entry->d_name, ".keep"))
            out->kept_count++;
        else
            list_slabs(path, out);
    }
    if (drive)
        closedir(drive);
}
