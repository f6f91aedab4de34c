/* Several ranks, as forked processes: each reads its part of a checkpoint, and the export of their
 * commit is that checkpoint again, whether the ranks share the state among them or each has the
 * whole. */
#include "config/config.h"
#include "hf/hf.h"
#include "tests/comm/comm_fixture.h"
#include "tests/hf/hf_fixture.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"
#include "train/train.h"

enum { RANKS_MAX = 3 };

struct run_of {
    job *jobs[RANKS_MAX];
};

static int train(comm *self, void *user)
{
    const struct run_of *run = user;
    const struct train_options options = {.job = run->jobs[comm_get_rank(self)], .comm = self};
    static struct train_summary summary;
    return train_run(&options, &summary);
}

static void set_hf(job *asked, const char *dir)
{
    snprintf(asked->hf, sizeof asked->hf, "%s", dir);
}

/* Trains at rate 0 with so many ranks, and exports. */
static void train_and_export(const char *name, const fixture_model *kind, uint32_t world, int stage,
                             uint64_t part_bytes)
{
    fixture_sets sets = {.count = 0};
    fixture_set(&sets, "zero_optimization.stage=%d", stage);
    fixture_set(&sets, "device.threads=1");
    fixture_set(&sets, "model.max_part_bytes=%llu", (unsigned long long)part_bytes);
    fixture_set(&sets, "run.steps=2");
    fixture_set(&sets, "optimizer.params.lr=0");
    fixture_set(&sets, "scheduler=null");
    struct run_of run;
    comm_fixture ranks = {.world = world};
    for (uint32_t r = 0; r < world; r++) {
        run.jobs[r] = fixture_job_ranks(name, kind, &sets, world);
        run.jobs[r]->world = world;
    }
    const job *asked = run.jobs[0];
    const hf_fixture_shape shape = hf_fixture_shape_of(asked);
    const hf_fixture_form form = {.type = asked->type, .shards = 2};
    char dir[FIXTURE_PATH_BYTES + 16], run_dir[FIXTURE_PATH_BYTES + 16];
    char again[FIXTURE_PATH_BYTES + 16];
    snprintf(dir, sizeof dir, "%s/%s.hf", fixture_dir, name);
    snprintf(run_dir, sizeof run_dir, "%s/%s", fixture_dir, name);
    snprintf(again, sizeof again, "%s/%s.out", fixture_dir, name);
    hf_fixture_write(dir, &shape, &form);
    for (uint32_t r = 0; r < world; r++)
        set_hf(run.jobs[r], dir);
    comm_fixture_run(&ranks, train, &run);
    for (uint32_t r = 0; r < world; r++)
        job_destroy(run.jobs[r]);
    comm_fixture_expect_ok(&ranks);
    struct hf_export_summary sum;
    const struct hf_export_options options = {
        .run_dir = run_dir, .hf_dir = again, .shard_bytes = 200000};
    assert_ok(hf_export(&options, &sum));
    assert_int_equal(sum.step, 2);
    assert_true(sum.file_count > 1);
    hf_fixture_compare(again, &shape, &form);
}

static void the_ranks_checkpoint_comes_back(void **state)
{
    static const fixture_model gpt2 = {.family = "gpt2", .bf16 = true, .layers = 2, .hidden = 64};
    static const fixture_model llama = {.family = "llama", .layers = 2, .hidden = 64};
    train_and_export("three", &gpt2, 3, 3, 0);
    train_and_export("cut", &llama, 2, 3, 70000);
    train_and_export("copies", &llama, 2, 0, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_ranks_checkpoint_comes_back)};
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
