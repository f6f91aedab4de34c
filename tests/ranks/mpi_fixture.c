/* See mpi_fixture.h. */
#include <errno.h>
#include <unistd.h>

#include "base/log.h"
#include "setup/setup.h"
#include "setup/summary.h"
#include "state/verify.h"
#include "tests/ranks/mpi_fixture.h"
#include "tests/unit.h"
#include "train/train.h"

enum { SKIPPED = 77, TIMEOUT_SECONDS = 120 };

comm *mpi_comm;
uint32_t mpi_rank, mpi_world = 1;

static const char *const world_keys[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                         "SLURM_STEP_NUM_TASKS"};

static bool is_launched(void)
{
    for (size_t i = 0; i < sizeof world_keys / sizeof world_keys[0]; i++)
        if (getenv(world_keys[i]))
            return true;
    return false;
}

/* Starts more ranks than cores, on any core, also as root, with any mpirun. Idle OpenMP threads
 * sleep. */
static void become_mpirun(int argc, char **argv)
{
    static const char *const settings[][2] = {
        {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
        {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
        {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
        {"OMPI_MCA_hwloc_base_binding_policy", "none"},
        {"PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"},
        {"PRTE_MCA_hwloc_default_binding_policy", "none"},
        {"OMP_WAIT_POLICY", "passive"},
        {"OMPI_MCA_opal_signal", ""}, /* no stacks of what aborts */
        {"CMOCKA_TEST_ABORT", "1"},
    };
    char *args[16] = {"mpirun", "-n", argv[1]};
    if (argc < 2 || strtoul(argv[1], NULL, 10) == 0 || argc > 10) {
        fprintf(stderr, "use: %s RANKS [WHAT...]\n", argv[0]);
        exit(2);
    }
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        setenv(settings[i][0], settings[i][1], 1);
    memcpy(args + 3, argv, (size_t)argc * sizeof *argv);
    execvp("mpirun", args);
    printf("skipped: mpirun: %s\n", strerror(errno));
    exit(errno == ENOENT ? SKIPPED : 1);
}

void mpi_launch(int argc, char **argv)
{
    if (!is_launched())
        become_mpirun(argc, argv);
    const comm_join_config config = {.timeout_seconds = TIMEOUT_SECONDS, .exit_seconds = 10};
    int rc = comm_join(&config, &mpi_comm);
    if (rc < 0) {
        bool is_absent = strstr(err_text(), "has no MPI") != NULL;
        if (comm_is_reporter(NULL))
            fprintf(stderr, "%s%s\n", is_absent ? "skipped: " : "", err_text());
        exit(is_absent ? SKIPPED : 1);
    }
    mpi_rank = comm_get_rank(mpi_comm);
    mpi_world = comm_get_world(mpi_comm);
    char prefix[32];
    snprintf(prefix, sizeof prefix, "rank %u: ", mpi_rank);
    log_set_prefix(prefix);
    if (mpi_rank != 0 && !freopen("/dev/null", "w", stdout))
        exit(1);
}

void mpi_barrier(void)
{
    assert_ok(comm_barrier(mpi_comm, "the test's barrier"));
}

int mpi_setup(void **state)
{
    int rc = mpi_rank == 0 ? fixture_setup(state) : 0;
    log_set_level(mpi_rank == 0 ? LOG_WARN : LOG_QUIET);
    if (rc == 0 && comm_broadcast(mpi_comm, "directory", fixture_dir, sizeof fixture_dir) < 0)
        rc = -1;
    return rc;
}

int mpi_teardown(void **state)
{
    mpi_barrier();
    return mpi_rank == 0 ? fixture_teardown(state) : 0;
}

int mpi_end(int failures)
{
    fflush(stdout);
    comm_leave(mpi_comm, 0);
    return failures;
}

job *mpi_job(const char *name, const fixture_model *shape, const fixture_sets *sets)
{
    char drive[64];
    const char *texts[FIXTURE_SETS_MAX + 3] = {"device.backend=cpu", "device.threads=1", drive};
    uint32_t count = 3;
    snprintf(drive, sizeof drive, "tiers.nvme.0.budget=%uMiB", 64 * mpi_world);
    for (uint32_t i = 0; sets && i < sets->count; i++)
        texts[count++] = sets->text[i];
    if (mpi_rank == 0)
        job_destroy(fixture_job(name, shape, sets)); /* the file */
    mpi_barrier();
    job *asked;
    assert_ok(job_read(fixture_path(name, ".json"), NULL, texts, count, mpi_world, &asked));
    mpi_barrier(); /* the file may be another's from here on */
    return asked;
}

void mpi_tighten(const char *name, const fixture_model *shape, fixture_sets *sets)
{
    enum { NO_FIT_BYTES = 65536 };
    static const char *const keys[] = {"tiers.device.budget", "tiers.host.budget"};
    static fixture_sets small;
    small = *sets;
    for (int i = 0; i < 2; i++)
        fixture_set(&small, "%s=%d", keys[i], NO_FIT_BYTES);
    job *asked = mpi_job(name, shape, &small);
    struct setup_summary plan;
    assert_int_equal(setup_plan_on(asked, &(struct setup_plan_options){0}, &plan), ERR_NO_FIT);
    job_destroy(asked);
    for (int i = 0; i < 2; i++) {
        uint64_t bytes = fixture_budget_named(err_text(), keys[i]);
        if (bytes > 0) /* else NO_FIT_BYTES is enough of this tier */
            fixture_set(sets, "%s=%llu", keys[i], (unsigned long long)bytes);
    }
}

/* ---- what a run has left ---- */

static void read_line(const json_t *line, mpi_result *result)
{
    fixture_result *run = &result->run;
    if (json_object_get(line, "event")) {
        assert_true(result->eval_count < FIXTURE_STEPS_MAX);
        const json_t *loss = json_object_get(line, "valid_loss");
        assert_non_null(loss);
        result->eval_losses[result->eval_count++] = json_number_value(loss);
        return;
    }
    uint64_t at = run->step_count++;
    assert_true(at < FIXTURE_STEPS_MAX);
    assert_int_equal(json_integer_value(json_object_get(line, "step")), at + 1);
    const char *bits = json_string_value(json_object_get(line, "loss_bits"));
    assert_non_null(bits);
    run->loss_bits[at] = (uint32_t)strtoul(bits, NULL, 16);
    run->losses[at] = json_number_value(json_object_get(line, "loss"));
    run->rates[at] = json_number_value(json_object_get(line, "lr"));
    run->skipped[at] = json_is_true(json_object_get(line, "skipped"));
    result->norms[at] = json_number_value(json_object_get(line, "grad_norm"));
    result->scales[at] = json_number_value(json_object_get(line, "loss_scale"));
}

static void read_lines(const char *name, mpi_result *result)
{
    json_t *lines = fixture_metrics(name), *line;
    size_t i;
    json_array_foreach(lines, i, line) read_line(line, result);
    json_decref(lines);
}

struct listener {
    const mpi_call *call;
    mpi_result *result;
};

static void keep_plan(void *user, const struct setup_summary *plan)
{
    struct listener *listener = user;
    listener->result->run.plan = *plan;
    listener->result->run.planned = true;
}

static void watch_step(void *user, const struct train_progress *progress)
{
    struct listener *listener = user;
    if (listener->call->on_step)
        listener->call->on_step(progress->step);
}

static void run_job(const job *asked, comm *members, const mpi_call *call, mpi_result *result)
{
    struct listener listener = {.call = call, .result = result};
    const struct setup_test test = {.simulates_drives = call->simulates_drives,
                                    .norm_part_bytes = call->norm_part_bytes,
                                    .on_end = fixture_hash_weights,
                                    .user = &result->run.weights_hash};
    struct train_options options = {.job = asked,
                                    .test = &test,
                                    .comm = members,
                                    .stop = call->stop,
                                    .on_plan = keep_plan,
                                    .on_step = watch_step,
                                    .user = &listener};
    memset(result, 0, sizeof *result);
    result->run.rc = train_run(&options, &result->run.summary);
    if (result->run.rc < 0)
        snprintf(result->run.error, sizeof result->run.error, "%s", err_text());
    if (mpi_rank == 0 && (result->run.rc == 0 || result->run.rc == ERR_STOPPED))
        read_lines(call->name, result);
}

static void remove_run(const mpi_call *call)
{
    mpi_barrier();
    if (mpi_rank == 0 && !call->keeps)
        fixture_remove(call->name);
    mpi_barrier();
}

void mpi_train(const job *asked, const mpi_call *call, mpi_result *result)
{
    remove_run(call);
    run_job(asked, mpi_comm, call, result);
    if (result->run.rc == 0 || result->run.rc == ERR_STOPPED)
        remove_run(call);
}

void mpi_train_good(const char *name, const fixture_model *shape, const fixture_sets *sets,
                    mpi_result *result)
{
    mpi_train_call(&(mpi_call){.name = name}, shape, sets, result);
}

void mpi_train_call(const mpi_call *call, const fixture_model *shape, const fixture_sets *sets,
                    mpi_result *result)
{
    job *asked = mpi_job(call->name, shape, sets);
    mpi_train(asked, call, result);
    job_destroy(asked);
    if (result->run.rc < 0)
        fail_msg("%s: %s: %s", call->name, err_name(result->run.rc), result->run.error);
}

void mpi_train_alone(const char *name, const fixture_model *shape, const fixture_sets *sets,
                     uint32_t micro_batches, mpi_result *result)
{
    if (mpi_rank == 0) {
        static fixture_sets own;
        own = sets ? *sets : (fixture_sets){.count = 0};
        fixture_set(&own, "gradient_accumulation_steps=%u", micro_batches);
        fixture_set(&own, "device.threads=1");
        job *asked = fixture_job(name, shape, &own);
        const mpi_call call = {.name = name};
        run_job(asked, NULL, &call, result);
        job_destroy(asked);
        if (result->run.rc < 0 && result->run.rc != ERR_DIVERGED)
            fail_msg("%s: %s", name, result->run.error);
        fixture_remove(name);
    }
    mpi_barrier();
}

void mpi_assert_same(const char *what, const mpi_result *a, const mpi_result *b)
{
    if (mpi_rank != 0)
        return;
    const fixture_result *left = &a->run, *right = &b->run;
    if (left->step_count != right->step_count || a->eval_count != b->eval_count)
        fail_msg("%s: %u steps and %u evaluations, not %u and %u", what,
                 (unsigned)right->step_count, b->eval_count, (unsigned)left->step_count,
                 a->eval_count);
    for (uint64_t i = 0; i < left->step_count; i++)
        if (left->loss_bits[i] != right->loss_bits[i] || left->skipped[i] != right->skipped[i] ||
            memcmp(&a->norms[i], &b->norms[i], sizeof a->norms[i]) != 0)
            fail_msg("%s: step %llu: loss %08x, norm %.17g, %d; and %08x, %.17g, %d", what,
                     (unsigned long long)i + 1, left->loss_bits[i], a->norms[i], left->skipped[i],
                     right->loss_bits[i], b->norms[i], right->skipped[i]);
    for (uint32_t i = 0; i < a->eval_count; i++)
        if (memcmp(&a->eval_losses[i], &b->eval_losses[i], sizeof a->eval_losses[i]) != 0)
            fail_msg("%s: evaluation %u: %.9g and %.9g", what, i, a->eval_losses[i],
                     b->eval_losses[i]);
    assert_true(left->weights_hash != 0);
    if (left->weights_hash != right->weights_hash)
        fail_msg("%s: equal losses, but weights %016llx and %016llx", what,
                 (unsigned long long)left->weights_hash, (unsigned long long)right->weights_hash);
}

char mpi_unit_names[MPI_UNITS_MAX][MPI_NAME_BYTES];

uint32_t mpi_units(const fixture_model *shape, const fixture_sets *sets,
                   uint64_t elems[MPI_UNITS_MAX])
{
    uint32_t count = 0;
    if (mpi_rank == 0) {
        static fixture_sets own;
        static struct state_inspect_summary found;
        own = sets ? *sets : (fixture_sets){.count = 0};
        fixture_set(&own, "run.steps=1");
        fixture_set(&own, "device.threads=1");
        job *asked = fixture_job("units", shape, &own);
        static mpi_result result;
        const mpi_call call = {.name = "units"};
        run_job(asked, NULL, &call, &result);
        job_destroy(asked);
        if (result.run.rc < 0 || state_inspect(fixture_path("units", NULL), &found) < 0)
            fail_msg("%s", err_text());
        count = found.unit_count;
        assert_true(count <= MPI_UNITS_MAX);
        for (uint32_t u = 0; u < count; u++) {
            elems[u] = found.units[u].elems;
            snprintf(mpi_unit_names[u], MPI_NAME_BYTES, "%s", found.units[u].name);
        }
        state_inspect_fini(&found);
        fixture_remove("units");
    }
    mpi_barrier();
    return count;
}
