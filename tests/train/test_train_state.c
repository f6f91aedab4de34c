/* Runs whose optimizer state is smaller (config block `state`), with all that is done with a run:
 * they begin with an import, are stopped and moved, looked at, evaluated, made to write text,
 * verified and exported. A split master gives what an fp32 one gives, to the bit; moments of fewer
 * bits what an undisturbed run with them gives. */
#include "base/log.h"
#include "hf/hf.h"
#include "infer/infer.h"
#include "kernels/ops.h"
#include "setup/setup.h"
#include "state/verify.h"
#include "tests/hf/hf_fixture.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"

enum { STEPS = 6, STOP_STEP = 3, TOKENS = 12, PATH_BYTES = FIXTURE_PATH_BYTES * 2 };

static const fixture_model shape = {.family = "llama", .bf16 = true, .layers = 2, .hidden = 64};
static const hf_fixture_form form = {.type = DTYPE_FP32};

static char *path_of(const char *name, char path[PATH_BYTES])
{
    snprintf(path, PATH_BYTES, "%s/%s", fixture_dir, name);
    return path;
}

/* ---- a whole life ---- */

/* The observed results of a run. */
struct life {
    uint64_t hash;
    uint32_t loss_bits[STEPS];
    double loss; /* of files, evaluated */
    char text[256];
    uint64_t text_bytes;
};

static void import_checkpoint(const char *name)
{
    char dir[PATH_BYTES], run[PATH_BYTES];
    struct hf_import_summary sum;
    const struct hf_import_options options = {.hf_dir = path_of("model.hf", dir),
                                              .run_dir = path_of(name, run)};
    assert_ok(hf_import(&options, &sum));
}

static void go_on(const char *name, const char *master, const char *moments, const char *tier,
                  uint64_t stop_after, fixture_result *result)
{
    static const char *const kinds[] = {"params", "grads", "optimizer"};
    fixture_sets sets = {.count = 0};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        fixture_set(&sets, "tiers.place.%s=%s", kinds[k], tier);
    fixture_set(&sets, "run.steps=%d", STEPS);
    fixture_set(&sets, "model.norm_epsilon=1e-6"); /* as the checkpoint's config.json */
    fixture_set(&sets, "state.master=%s", master);
    fixture_set(&sets, "state.moments=%s", moments);
    fixture_set(&sets, "schedule.tile_elems=%u", strcmp(tier, "nvme") == 0 ? 32768u : 65536u);
    const fixture_call call = {.name = name, .stop_after = stop_after};
    fixture_run(name, &shape, &sets, &call, result);
    if (result->rc != (stop_after ? ERR_STOPPED : 0))
        fail_msg("%s, %s, %s: %s", master, moments, tier, result->error);
}

static int add_text(void *user, const char *bytes, uint64_t count)
{
    struct life *out = user;
    assert_true(out->text_bytes + count <= sizeof out->text);
    memcpy(out->text + out->text_bytes, bytes, count);
    out->text_bytes += count;
    return 0;
}

static void look_at(const char *name, const char *formats, struct life *out)
{
    char dir[PATH_BYTES];
    const char *run = path_of(name, dir), *files[] = {fixture_path("valid.txt", NULL)};
    struct infer_evaluate_result evaluated;
    const struct infer_evaluate_options evaluation = {
        .path = run, .files = files, .file_count = 1, .batches = 4};
    if (infer_evaluate(&evaluation, &evaluated) < 0)
        fail_msg("evaluate: %s", err_text());
    out->loss = evaluated.loss;
    const struct infer_generate_options generation = {.run_dir = run,
                                                      .prompt = "Once",
                                                      .prompt_bytes = 4,
                                                      .token_count = TOKENS,
                                                      .on_token = add_text,
                                                      .user = out};
    if (infer_generate(&generation) < 0)
        fail_msg("generate: %s", err_text());
    struct state_inspect_summary seen;
    assert_ok(state_inspect(run, &seen));
    assert_string_equal(seen.state, "committed");
    assert_int_equal(seen.record.point.step, STEPS);
    assert_string_equal(seen.state_formats, formats);
    state_inspect_fini(&seen);
    struct state_verify_options asked = {.run_dir = run};
    struct state_verify_summary sum;
    assert_ok(state_verify(&asked, &sum));
    assert_int_equal(sum.weights_hash, out->hash);
}

/* The run's weights as a checkpoint, and a run that begins with that: at rate 0 the same
 * weights. */
static void export_and_come_back(const char *name, uint64_t hash)
{
    char run[PATH_BYTES], dir[PATH_BYTES];
    static fixture_result result;
    struct hf_export_summary sum;
    const struct hf_export_options options = {.run_dir = path_of(name, run),
                                              .hf_dir = path_of("out.hf", dir),
                                              .type = "fp32",
                                              .force = true};
    if (hf_export(&options, &sum) < 0)
        fail_msg("export: %s", err_text());
    fixture_sets sets = {.count = 0};
    fixture_set(&sets, "run.steps=1");
    fixture_set(&sets, "optimizer.params.lr=0");
    fixture_set(&sets, "scheduler=null");
    fixture_set(&sets, "model.norm_epsilon=1e-6");
    fixture_set(&sets, "state.master=split");
    fixture_set(&sets, "state.moments=8bit");
    job *asked = fixture_job("back", &shape, &sets);
    snprintf(asked->hf, sizeof asked->hf, "%s", dir);
    const fixture_call call = {.name = "back"};
    fixture_train(asked, &call, &result);
    job_destroy(asked);
    if (result.rc < 0)
        fail_msg("%s", result.error);
    assert_int_equal(result.weights_hash, hash);
    fixture_remove("back");
}

/* From the import to the export; `moved`: stopped in the middle, to go on elsewhere in other
 * tiles. */
static void live(const char *name, const char *master, const char *moments, bool moved,
                 const char *formats, struct life *out)
{
    static fixture_result result;
    memset(out, 0, sizeof *out);
    import_checkpoint(name);
    if (moved)
        go_on(name, master, moments, "host", STOP_STEP, &result);
    go_on(name, master, moments, moved ? "nvme" : "device", 0, &result);
    assert_true(result.summary.was_resumed);
    assert_int_equal(result.step_count, STEPS);
    memcpy(out->loss_bits, result.loss_bits, sizeof out->loss_bits);
    out->hash = result.weights_hash;
    look_at(name, formats, out);
    export_and_come_back(name, out->hash);
    fixture_remove(name);
}

static void assert_alike(const struct life *a, const struct life *b)
{
    assert_memory_equal(a->loss_bits, b->loss_bits, sizeof a->loss_bits);
    assert_int_equal(a->hash, b->hash);
    assert_true(a->loss == b->loss);
    assert_int_equal(a->text_bytes, b->text_bytes);
    assert_memory_equal(a->text, b->text, a->text_bytes);
}

static void runs_live_with_it(void **state)
{
    static const char *const moments[] = {"fp32", "bf16", "8bit"};
    job *asked = fixture_job("model", &shape, NULL);
    const hf_fixture_shape hf = hf_fixture_shape_of(asked);
    char dir[PATH_BYTES];
    hf_fixture_write(path_of("model.hf", dir), &hf, &form);
    hf_fixture_config(dir, &hf);
    job_destroy(asked);
    uint64_t hashes[3];
    for (int i = 0; i < 3; i++) {
        struct life whole, moved, split;
        char formats[64];
        snprintf(formats, sizeof formats, "fp32, %s, %s", i == 2 ? "int8" : moments[i],
                 i == 2 ? "int8" : moments[i]);
        live("run", "fp32", moments[i], false, formats, &whole);
        live("run", "fp32", moments[i], true, formats, &moved);
        assert_alike(&whole, &moved);
        snprintf(formats, sizeof formats, "low16, %s, %s", i == 2 ? "int8" : moments[i],
                 i == 2 ? "int8" : moments[i]);
        live("run", "split", moments[i], true, formats, &split);
        assert_alike(&whole, &split);
        hashes[i] = whole.hash;
    }
    assert_true(hashes[0] != hashes[1] && hashes[1] != hashes[2]); /* they are stored as asked */
}

/* Adapters alone learn, in units beside frozen ones: the same comparisons, with clipping on and in
 * other tiles. */
static void adapters_learn_with_it(void **state)
{
    static const char *const moments[] = {"fp32", "bf16", "8bit"};
    static const char *const masters[] = {"fp32", "fp32", "split"};
    static fixture_result results[3];
    for (int i = 0; i < 3; i++) {
        for (int r = 0; r < 3; r++) { /* undisturbed; stopped and moved; with a split master also */
            const char *const tiers[] = {r ? "nvme" : "device", "host"};
            for (int part = r ? 0 : 1; part < 2; part++) {
                fixture_sets sets = {.count = 0};
                fixture_set(&sets, "train.lora={\"rank\":4,\"alpha\":8}");
                fixture_set(&sets, "run.steps=%d", STEPS);
                fixture_set(&sets, "tiers.place.optimizer=%s", tiers[r && part]);
                fixture_set(&sets, "tiers.place.params=%s", tiers[r && !part]);
                fixture_set(&sets, "state.moments=%s", moments[i]);
                fixture_set(&sets, "state.master=%s", masters[r]);
                const fixture_call call = {.name = "adapters", .stop_after = part ? 0 : STOP_STEP};
                fixture_run("adapters", &shape, &sets, &call, &results[r]);
                if (results[r].rc != (part ? 0 : ERR_STOPPED))
                    fail_msg("%s, %s: %s", masters[r], moments[i], results[r].error);
            }
            fixture_assert_same(&results[0], &results[r]);
            fixture_remove("adapters");
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_live_with_it),
        cmocka_unit_test(adapters_learn_with_it),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
