/* Cases that several ranks, as forked processes on one host, handle alike or refuse together: the
 * start of a run, and a run in which one rank has other data or fails. */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/failpoint.h"
#include "config/machine.h"
#include "format/manifest.h"
#include "tests/comm/comm_fixture.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"
#include "train/train.h"

enum { RANKS = 2, STEPS = 4 };

static const fixture_model shape = {.family = "gpt2", .layers = 2, .hidden = 64};

/* Memory that the test and the ranks share. */
struct told {
    struct train_summary summary; /* rank 0's */
    char text[ERR_TEXT_BYTES];    /* of rank 0's train_run */
};

/* A run: the job of each rank, made before the fork. */
struct run_of {
    job *jobs[RANKS];
    const machine *machines[RANKS]; /* whose figures they plan with, or NULL */
    struct told *told;
    comm *members;
    const char *point; /* a failpoint, or NULL ... */
    uint32_t point_rank;
    void (*at_point)(const struct run_of *run); /* ... that calls this on that rank */
};

static fixture_sets plain_sets(void)
{
    fixture_sets sets = {.count = 0};
    fixture_set(&sets, "zero_optimization.stage=3");
    fixture_set(&sets, "device.threads=1");
    fixture_set(&sets, "run.steps=%d", STEPS);
    return sets;
}

static job *make_job(const char *name, const fixture_sets *sets)
{
    job *asked = fixture_job(name, &shape, sets);
    asked->world = RANKS;
    return asked;
}

static int on_point(void *user, const char *name)
{
    const struct run_of *run = user;
    if (strcmp(name, run->point) == 0)
        run->at_point(run);
    return 0;
}

static int train(comm *self, void *user)
{
    struct run_of *run = user;
    uint32_t rank = comm_get_rank(self);
    run->members = self;
    if (run->point && run->point_rank == rank)
        failpoint_hook(on_point, run);
    struct train_options options = {
        .job = run->jobs[rank], .comm = self, .machine = run->machines[rank]};
    static struct train_summary summary;
    int rc = train_run(&options, &summary);
    if (rank == 0) {
        run->told->summary = summary;
        snprintf(run->told->text, sizeof run->told->text, "%s", rc < 0 ? err_text() : "");
    }
    return rc;
}

/* Runs it; the jobs are gone then. */
static void run_all(struct run_of *run, comm_fixture *ranks)
{
    memset(ranks, 0, sizeof *ranks);
    ranks->world = RANKS;
    run->told = comm_fixture_shared(sizeof *run->told);
    comm_fixture_run(ranks, train, run);
    for (int r = 0; r < RANKS; r++)
        job_destroy(run->jobs[r]);
}

static void all_read_the_same_data(void **state)
{
    static const char *const keys[] = {"data.train", "data.valid"};
    static const char *const fewer = "the end of it was cut off on the way to this host";
    char path[FIXTURE_PATH_BYTES + 16];
    snprintf(path, sizeof path, "%s/other.txt", fixture_dir);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; i < 40; i++)
        fputs(fewer, file);
    assert_int_equal(fclose(file), 0);
    for (int i = 0; i < 2; i++) {
        fixture_sets sets = plain_sets(), other;
        fixture_set(&sets, "run.eval_batches=2");
        other = sets;
        fixture_set(&other, "%s=%s", keys[i], path);
        struct run_of run = {.jobs = {make_job("data", &sets), make_job("data", &other)}};
        comm_fixture ranks;
        run_all(&run, &ranks);
        for (int r = 0; r < RANKS; r++) {
            assert_int_equal(ranks.codes[r], ERR_INPUT);
            assert_non_null(strstr(ranks.texts[r], "rank 1 on "));
            assert_non_null(strstr(ranks.texts[r], keys[i]));
        }
        assert_false(fixture_exists(fixture_path("data", NULL)));
    }
    fixture_sets sets = plain_sets();
    struct run_of run = {.jobs = {make_job("data", &sets), make_job("data", &sets)}};
    comm_fixture ranks;
    run_all(&run, &ranks);
    comm_fixture_expect_ok(&ranks);
    assert_int_equal(run.told->summary.step, STEPS);
    fixture_remove("data");
}

static struct run_of plain_run(const char *name)
{
    fixture_sets sets = plain_sets();
    return (struct run_of){.jobs = {make_job(name, &sets), make_job(name, &sets)}};
}

/* The manifest that counts; asserts that there is one. */
static void read_manifest(const char *name, manifest *found)
{
    assert_int_equal(manifest_read(fixture_path(name, "state"), found), 1);
}

static void die(const struct run_of *run)
{
    _exit(1);
}

/* A rank that dies at the start may leave slabs where no other rank can remove them: the manifest
 * goes on naming them, and the next start removes them. */
static void a_start_cut_short_is_cleared_by_the_next(void **state)
{
    static manifest found;
    struct run_of run = plain_run("cut");
    run.point = "slab.create";
    run.point_rank = 1;
    run.at_point = die;
    comm_fixture ranks;
    run_all(&run, &ranks);
    assert_true(ranks.codes[0] < 0);
    read_manifest("cut", &found);
    assert_int_equal(found.state, MANIFEST_BEGUN);
    char uuid[MANIFEST_UUID_TEXT_BYTES], path[2 * FIXTURE_PATH_BYTES];
    snprintf(path, sizeof path, "%s/sluice-%s", fixture_path("cut", ".nvme"),
             manifest_uuid_text(&found.slabs, uuid));
    manifest_fini(&found);
    assert_false(fixture_exists(path));
    assert_int_equal(mkdir(path, 0777), 0);
    char slab[sizeof path + 32];
    snprintf(slab, sizeof slab, "%s/rank-1-drive-0.slab", path);
    FILE *file = fopen(slab, "w");
    assert_non_null(file);
    assert_int_equal(fclose(file), 0);
    run = plain_run("cut");
    run_all(&run, &ranks);
    comm_fixture_expect_ok(&ranks);
    assert_false(fixture_exists(path));
    fixture_remove("cut");
}

/* At the second manifest: the first one says that the run has begun. */
static void kill_the_other(const struct run_of *run)
{
    static int count;
    if (++count < 2)
        return;
    kill((pid_t)comm_get_ranks(run->members)[1].pid, SIGKILL);
    while (comm_check(run->members) == 0)
        usleep(1000);
}

/* Rank 0's slot is the decision: what it says after a failure is what the next start finds. */
static void a_decided_commit_counts_though_a_rank_is_gone(void **state)
{
    static manifest found;
    struct run_of run = plain_run("decided");
    run.point = "manifest.synced";
    run.at_point = kill_the_other;
    comm_fixture ranks;
    run_all(&run, &ranks);
    assert_true(ranks.codes[0] < 0);
    read_manifest("decided", &found);
    assert_int_equal(found.state, MANIFEST_COMMITTED);
    char last[64];
    snprintf(last, sizeof last, "the last good commit is of step %" PRIu64, found.point.step);
    manifest_fini(&found);
    if (!strstr(run.told->text, last))
        fail_msg("'%s' does not say that %s", run.told->text, last);
    fixture_remove("decided");
}

static uint64_t file_bytes(const char *path)
{
    struct stat status;
    if (stat(path, &status) != 0)
        fail_msg("no %s", path);
    return (uint64_t)status.st_size;
}

/* Two drives of one file system, so equally fast; what the small one holds is divided too. */
static void a_shared_drive_holds_no_more_than_its_budget(void **state)
{
    enum { SMALL_BYTES = 34 << 20 };
    static const fixture_model wide = {.family = "gpt2", .layers = 2, .hidden = 384};
    static manifest found;
    fixture_sets sets = plain_sets();
    fixture_set(&sets, "tiers.place.optimizer=nvme");
    fixture_set(&sets, "run.steps=1");
    fixture_set(&sets,
                "tiers.nvme=[{\"path\":\"%s/divided.small\",\"budget\":%d},"
                "{\"path\":\"%s/divided.large\",\"budget\":\"1GiB\"}]",
                fixture_dir, SMALL_BYTES, fixture_dir);
    struct run_of run = {.jobs = {NULL}};
    for (int r = 0; r < RANKS; r++) {
        run.jobs[r] = fixture_job("divided", &wide, &sets);
        run.jobs[r]->world = RANKS;
    }
    comm_fixture ranks;
    run_all(&run, &ranks);
    comm_fixture_expect_ok(&ranks);
    read_manifest("divided", &found);
    char uuid[MANIFEST_UUID_TEXT_BYTES], path[2 * FIXTURE_PATH_BYTES];
    uint64_t bytes = 0, total_bytes = found.total_bytes;
    for (int r = 0; r < RANKS; r++) {
        snprintf(path, sizeof path, "%s/divided.small/sluice-%s/rank-%d-drive-0.slab", fixture_dir,
                 manifest_uuid_text(&found.slabs, uuid), r);
        bytes += file_bytes(path);
    }
    manifest_fini(&found);
    assert_true(total_bytes > SMALL_BYTES); /* else a half of it would fit anyway */
    assert_in_range(bytes, SMALL_BYTES / 2, SMALL_BYTES);
    fixture_remove("divided");
}

/* Hosts have other numbers of cores: products then ask for other scratch, and the plan has room for
 * each. */
static void ranks_may_have_other_numbers_of_threads(void **state)
{
    fixture_sets sets = plain_sets(), more = sets;
    fixture_set(&more, "device.threads=2");
    struct run_of run = {.jobs = {make_job("threads", &sets), make_job("threads", &more)}};
    comm_fixture ranks;
    run_all(&run, &ranks);
    comm_fixture_expect_ok(&ranks);
    assert_int_equal(run.told->summary.step, STEPS);
    fixture_remove("threads");
}

/* Hosts whose machine files differ, or of which one has none: all plan with rank 0's. */
static void ranks_may_have_other_machine_files(void **state)
{
    static machine fast, slow;
    fixture_sets sets = plain_sets();
    fast = (machine){.name = "fast", .measured_at = "2026-01-01T00:00:00Z"};
    fast.host.core_count = 2;
    fast.device.product_count = 1;
    fast.device.products[0] =
        (machine_product){.type = DTYPE_FP32, .m = 64, .n = 64, .k = 64, .flops_per_second = 1e10};
    slow = fast;
    slow.device.products[0].flops_per_second = 1e7;
    const machine *const others[] = {&slow, NULL};
    for (int i = 0; i < 2; i++) {
        struct run_of run = {.jobs = {make_job("files", &sets), make_job("files", &sets)},
                             .machines = {&fast, others[i]}};
        comm_fixture ranks;
        run_all(&run, &ranks);
        comm_fixture_expect_ok(&ranks);
        assert_int_equal(run.told->summary.step, STEPS);
        fixture_remove("files");
    }
}

/* Dropout goes by the number of a sample in the global batch: two ranks drop what one rank drops in
 * twice as many micro-batches, so that their losses differ by the order of sums only. */
static void ranks_drop_the_same(void **state)
{
    static fixture_result alone, other, both;
    fixture_sets sets = plain_sets();
    fixture_set(&sets, "train.dropout=0.2");
    fixture_sets halves = sets, without = sets;
    fixture_set(&sets, "gradient_accumulation_steps=2");
    fixture_set(&without, "gradient_accumulation_steps=2");
    fixture_set(&without, "train.dropout=0");
    fixture_set(&halves, "gradient_accumulation_steps=1");
    fixture_train_good("alone", &shape, &sets, &alone);
    fixture_train_good("without", &shape, &without, &other);
    struct run_of run = {.jobs = {NULL}};
    for (int r = 0; r < RANKS; r++)
        run.jobs[r] = fixture_job_ranks("both", &shape, &halves, RANKS);
    comm_fixture ranks;
    run_all(&run, &ranks);
    comm_fixture_expect_ok(&ranks);
    fixture_read_steps("both", &both);
    assert_int_equal(both.step_count, STEPS);
    for (int i = 0; i < STEPS; i++) {
        assert_true(fabs(both.losses[i] - alone.losses[i]) < 1e-5 * alone.losses[i]);
        assert_true(fabs(both.losses[i] - other.losses[i]) > 1e-4 * alone.losses[i]);
    }
    fixture_remove("alone");
    fixture_remove("without");
    fixture_remove("both");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_read_the_same_data),
        cmocka_unit_test(a_start_cut_short_is_cleared_by_the_next),
        cmocka_unit_test(a_decided_commit_counts_though_a_rank_is_gone),
        cmocka_unit_test(a_shared_drive_holds_no_more_than_its_budget),
        cmocka_unit_test(ranks_may_have_other_numbers_of_threads),
        cmocka_unit_test(ranks_may_have_other_machine_files),
        cmocka_unit_test(ranks_drop_the_same),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
