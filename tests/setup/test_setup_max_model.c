/* Plans for a small described machine. The model that --max-model names fits as `plan` places it,
 * the next larger one does not, and more room on the drives gives a larger one. If the GPUs are too
 * old for the kernels, the plan says so and refuses bf16. */
#include "base/error.h"
#include "base/size.h"
#include "config/config.h"
#include "config/machine.h"
#include "setup/summary.h"
#include "tests/unit.h"

static const char text[] =
    "{\"model\": {\"preset\": \"gpt2-124m\"}, \"data\": {\"train\": [\"none.txt\"]},"
    " \"run\": {\"dir\": \"none\", \"steps\": 1, \"commit_every\": 0},"
    " \"tiers\": {\"nvme\": [{\"path\": \"none\"}]}, \"train_micro_batch_size_per_gpu\": 1,"
    " \"gradient_accumulation_steps\": 1, \"bf16\": {\"enabled\": true}}";

static struct machine described(uint64_t host_bytes, uint64_t drive_bytes)
{
    struct machine it = {.name = "small", .host_count = 1, .ranks_per_host = 1};
    it.host.core_count = 4;
    it.host.memory_bytes = host_bytes;
    it.device.is_gpu = true;
    it.device.memory_bytes = 8 * GIB;
    it.drive_count = 1;
    it.drives[0] = (struct machine_drive){.count = 1, .capacity_bytes = drive_bytes};
    return it;
}

static job *read_job(const char *const *set, uint32_t count)
{
    job *asked;
    assert_ok(job_read("small.json", text, set, count, 1, &asked));
    return asked;
}

/* Whether `plan` finds a place for so many layers of the found model's hidden size. */
static int plan_fits(const struct machine *on, const struct setup_max_model *model, uint64_t layers)
{
    static struct setup_summary plan;
    struct setup_plan_options options = {.machine = on, .is_described = true};
    char sets[5][64];
    const char *list[5];
    snprintf(sets[0], sizeof sets[0], "model.num_layers=%llu", (unsigned long long)layers);
    snprintf(sets[1], sizeof sets[1], "model.hidden_size=%llu", (unsigned long long)model->hidden);
    snprintf(sets[2], sizeof sets[2], "model.num_heads=%llu", (unsigned long long)model->heads);
    snprintf(sets[3], sizeof sets[3], "model.ffn_size=%llu", (unsigned long long)model->hidden * 4);
    snprintf(sets[4], sizeof sets[4], "model.max_part_bytes=%llu",
             (unsigned long long)model->max_part_bytes);
    for (int i = 0; i < 5; i++)
        list[i] = sets[i];
    job *asked = read_job(list, 5);
    int rc = setup_plan_on(asked, &options, &plan);
    job_destroy(asked);
    if (rc == 0)
        assert_int_equal(plan.param_count, model->param_count);
    return rc;
}

static void largest(const struct machine *on, struct setup_max_model *out)
{
    struct setup_plan_options options = {.machine = on, .is_described = true};
    job *asked = read_job(NULL, 0);
    /* A rule about units of the job's own model, which the search drops. */
    asked->tiers.rules[0] = (struct job_rule){"", 0, 100000, STATE_PARAMS, TIER_NVME};
    asked->tiers.rule_count = 1;
    assert_ok(setup_max_model(asked, "gpt", &options, out));
    job_destroy(asked);
}

static void named_fits(void **state)
{
    static struct setup_max_model found;
    uint64_t before = 0;
    for (uint64_t drive = 2; drive <= 3; drive++) {
        struct machine on = described(2 * GIB, drive * GIB);
        largest(&on, &found);
        assert_true(found.param_count > before);
        before = found.param_count;
        for (int a = 0; a < TIER_COUNT; a++)
            assert_true(found.need_bytes[a] <= found.budget_bytes[a]);
        assert_int_equal(plan_fits(&on, &found, found.layers), 0);
        assert_non_null(strstr(found.next_problem, "of nvme"));
        if (found.next_hidden == found.hidden) {
            assert_int_equal(found.next_layers, found.layers + 1);
            assert_int_equal(plan_fits(&on, &found, found.next_layers), ERR_NO_FIT);
        }
    }
}

static void refusals(void **state)
{
    static struct setup_max_model found;
    struct machine on = described(16 * GIB, 100 * MIB);
    struct setup_plan_options options = {.machine = &on, .is_described = true};
    job *asked = read_job(NULL, 0);
    assert_error(setup_max_model(asked, "gpt", &options, &found), ERR_NO_FIT,
                 "not even the smallest model of family gpt");
    assert_int_equal(setup_max_model(asked, "gpt3", &options, &found), ERR_USAGE);
    job_destroy(asked);
}

/* Plans the job for the machine. `cannot_run`: what the plan says of old GPUs. */
static int plan_old(double capability, const char *set, char cannot_run[SETUP_CANNOT_RUN_BYTES])
{
    static struct setup_summary plan;
    struct machine on = described(16 * GIB, 16 * GIB);
    struct setup_plan_options options = {.machine = &on, .is_described = true};
    const char *const sets[] = {"schedule.update=after_backward", set};
    on.device.compute_capability = capability;
    job *asked = read_job(sets, set ? 2 : 1);
    int rc = setup_plan_on(asked, &options, &plan);
    job_destroy(asked);
    snprintf(cannot_run, SETUP_CANNOT_RUN_BYTES, "%s", rc == 0 ? plan.machine_cannot_run : "");
    return rc;
}

static void old_gpus(void **state)
{
    char said[SETUP_CANNOT_RUN_BYTES];
    assert_error(plan_old(7.0, NULL, said), ERR_CONFIG,
                 "capability 7.0, and bf16 products need 8.0");
    assert_int_equal(plan_old(7.5, "bf16={\"enabled\":false}", said), 0); /* fp32 */
    assert_non_null(strstr(said, "compute capability 7.5"));
    assert_int_equal(plan_old(7.0, "device.backend=cpu", said), 0);
    assert_string_equal(said, "");
    for (int known = 0; known < 2; known++) {
        assert_int_equal(plan_old(known ? 8.0 : 0, NULL, said), 0);
        assert_string_equal(said, "");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(named_fits),
        cmocka_unit_test(refusals),
        cmocka_unit_test(old_gpus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
