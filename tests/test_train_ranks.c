/* What several ranks do alike or refuse together, as forked processes on one host: the start of a run, and what
 * becomes of it where a rank has other data or fails. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "comm_fixture.h"
#include "train_fixture.h"

enum { RANKS = 2, STEPS = 4 };

static const fixture_model shape = {.family = "gpt2", .layers = 2, .hidden = 64};

/* A run: the job of each rank, made before the fork. */
struct run_of {
    job *jobs[RANKS];
    struct train_summary *summary; /* rank 0's, shared */
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

static int train(comm *self, void *user)
{
    struct run_of *run = user;
    uint32_t rank = comm_get_rank(self);
    struct train_options options = {.job = run->jobs[rank], .comm = self};
    static struct train_summary summary;
    int rc = train_run(&options, &summary);
    if (rank == 0)
        *run->summary = summary;
    return rc;
}

/* Runs it; the jobs are gone then. */
static void run_all(struct run_of *run, comm_fixture *ranks)
{
    memset(ranks, 0, sizeof *ranks);
    ranks->world = RANKS;
    run->summary = comm_fixture_shared(sizeof *run->summary);
    comm_fixture_run(ranks, train, run);
    for (int r = 0; r < RANKS; r++)
        job_destroy(run->jobs[r]);
}

static void all_read_the_same_data(void **state)
{
    (void)state;
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
    assert_int_equal(run.summary->step, STEPS);
    fixture_remove("data");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_read_the_same_data),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
