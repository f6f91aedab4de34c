/* Runs that begin with a checkpoint, through train_run: its weights are there to the bit, on any
 * placement and for units in parts; what belongs to the model goes along; going on reads the
 * checkpoint no more. */
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "config/config.h"
#include "hf/hf.h"
#include "tests/hf/hf_fixture.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"

static const fixture_model gpt2 = {.family = "gpt2", .layers = 3, .hidden = 64};
static const fixture_model llama = {.family = "llama", .bf16 = true, .layers = 3, .hidden = 64};

/* XXH3 of all master weights, as a run of this checkpoint begins. */
static uint64_t expected_hash(const hf_fixture_shape *shape, const hf_fixture_form *form)
{
    model *net = hf_fixture_model(shape);
    XXH3_state_t *hash = XXH3_createState();
    XXH3_64bits_reset(hash);
    for (uint32_t u = 0; u < net->unit_count; u++)
        for (uint64_t i = 0; i < net->units[u].elems; i++) {
            float value = hf_fixture_expected(net, shape, form, u, i);
            XXH3_64bits_update(hash, &value, sizeof value);
        }
    uint64_t sum = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    model_destroy(net);
    return sum;
}

static const char *path_in_run(const char *run, const char *name)
{
    static char path[FIXTURE_PATH_BYTES * 2];
    snprintf(path, sizeof path, "%s/%s/%s", fixture_dir, run, name);
    return path;
}

/* A run of two steps at rate 0 of the checkpoint in `dir`. */
static void train_still(const char *name, const fixture_model *kind, const fixture_sets *sets,
                        const char *dir, const char *from, fixture_result *result)
{
    fixture_sets all = *sets;
    fixture_set(&all, "run.steps=2");
    fixture_set(&all, "optimizer.params.lr=0");
    fixture_set(&all, "scheduler=null");
    job *asked = fixture_job(name, kind, &all);
    snprintf(asked->hf, sizeof asked->hf, "%s", dir);
    const fixture_call call = {.name = name, .from = from};
    fixture_train(asked, &call, result);
    job_destroy(asked);
}

/* Writes the weights of a model of the job that the arguments make. Returns its shape. */
static hf_fixture_shape write_weights(const char *dir, const char *name, const fixture_model *kind,
                                      const fixture_sets *sets, const hf_fixture_form *form)
{
    job *asked = fixture_job(name, kind, sets);
    const hf_fixture_shape shape = hf_fixture_shape_of(asked);
    job_destroy(asked);
    hf_fixture_write(dir, &shape, form);
    return shape;
}

static void expect_weights(const char *name, const fixture_model *kind, const fixture_sets *sets,
                           const hf_fixture_form *form)
{
    static fixture_result result;
    char dir[FIXTURE_PATH_BYTES * 2];
    snprintf(dir, sizeof dir, "%s/%s.hf", fixture_dir, name);
    const hf_fixture_shape shape = write_weights(dir, name, kind, sets, form);
    hf_fixture_text(dir, "config.json", "{\"model_type\": \"fixture\"}");
    hf_fixture_text(dir, "merges.txt", "a b\n");
    train_still(name, kind, sets, dir, NULL, &result);
    if (result.rc < 0)
        fail_msg("%s", result.error);
    uint64_t wanted = expected_hash(&shape, form);
    if (result.weights_hash != wanted)
        fail_msg("%s: weights %016llx, expected %016llx", name,
                 (unsigned long long)result.weights_hash, (unsigned long long)wanted);
    assert_true(fixture_exists(path_in_run(name, "hf/config.json")));
    assert_true(fixture_exists(path_in_run(name, "hf/merges.txt")));
    assert_false(fixture_exists(path_in_run(name, "hf/tokenizer.json")));
}

static void a_run_begins_with_the_checkpoints_weights(void **state)
{
    fixture_sets sets = {.count = 0};
    const hf_fixture_form plain = {.type = DTYPE_FP32}, shards = {.type = DTYPE_BF16, .shards = 3};
    expect_weights("gpt2-device", &gpt2, &sets, &plain);
    expect_weights("llama-device", &llama, &sets, &shards);
    fixture_set(&sets, "tiers.place.optimizer=nvme");
    fixture_set(&sets, "tiers.place.params=nvme");
    expect_weights("gpt2-nvme", &gpt2, &sets, &shards);
    fixture_set(&sets, "model.max_part_bytes=70000");
    expect_weights("gpt2-cut", &gpt2, &sets, &plain);
    expect_weights("llama-cut", &llama, &sets, &plain);
}

/* The checkpoint is gone: the run, and another that begins with it, go on. */
static void going_on_reads_no_checkpoint(void **state)
{
    static fixture_result result, more;
    const fixture_sets sets = {.count = 0};
    const hf_fixture_form form = {.type = DTYPE_BF16};
    char dir[FIXTURE_PATH_BYTES * 2], file[FIXTURE_PATH_BYTES * 2 + 32];
    expect_weights("first", &gpt2, &sets, &form);
    snprintf(dir, sizeof dir, "%s/first.hf", fixture_dir);
    snprintf(file, sizeof file, "%s/model.safetensors", dir);
    assert_int_equal(unlink(file), 0);
    job *asked = fixture_job("first", &gpt2, &sets);
    asked->run.steps = 4;
    snprintf(asked->hf, sizeof asked->hf, "%s", dir);
    const fixture_call call = {.name = "first"};
    fixture_train(asked, &call, &result);
    job_destroy(asked);
    if (result.rc < 0)
        fail_msg("%s", result.error);
    assert_int_equal(result.step_count, 4);
    train_still("second", &gpt2, &sets, dir, path_in_run("first", ""), &more);
    if (more.rc < 0)
        fail_msg("%s", more.error);
    assert_true(more.weights_hash == result.weights_hash);
    assert_true(fixture_exists(path_in_run("second", "hf/config.json")));
}

static void import_into(const char *name, const char *dir, const char *set)
{
    struct hf_import_summary sum;
    char run_dir[FIXTURE_PATH_BYTES * 2];
    const char *const sets[] = {set};
    snprintf(run_dir, sizeof run_dir, "%s", path_in_run(name, ""));
    const struct hf_import_options options = {
        .hf_dir = dir, .run_dir = run_dir, .set = sets, .set_count = set ? 1 : 0};
    assert_ok(hf_import(&options, &sum));
}

/* Any job of the same model continues from an import, with any values of its other keys. A job of
 * another model does not. */
static void jobs_go_on_from_an_import(void **state)
{
    static fixture_result result;
    fixture_sets sets = {.count = 0};
    const hf_fixture_form form = {.type = DTYPE_FP32};
    char dir[FIXTURE_PATH_BYTES * 2];
    snprintf(dir, sizeof dir, "%s/imported.hf", fixture_dir);
    const hf_fixture_shape shape = write_weights(dir, "imported", &gpt2, &sets, &form);
    hf_fixture_config(dir, &shape);
    import_into("imported", dir, NULL);
    import_into("parts", dir, "model.max_part_bytes=70000");
    train_still("parts", &gpt2, &sets, "", NULL, &result);
    assert_int_equal(result.rc, ERR_INPUT);
    if (!strstr(result.error, "model.max_part_bytes was 70000 and is 0") ||
        !strstr(result.error, "imported for another model"))
        fail_msg("%s", result.error);
    fixture_sets lion = sets;
    fixture_set(&lion, "optimizer={\"type\": \"Lion\", \"params\": {\"lr\": 0}}");
    train_still("imported", &gpt2, &lion, "", NULL, &result);
    assert_int_equal(result.rc, ERR_INPUT);
    assert_non_null(strstr(result.error, "optimizer.type was Adam and is Lion"));
    train_still("from-it", &gpt2, &sets, "", path_in_run("imported", ""), &result);
    assert_int_equal(result.rc, 0);
    assert_true(result.weights_hash == expected_hash(&shape, &form));
    assert_true(fixture_exists(path_in_run("from-it", "hf/config.json")));
    fixture_set(&sets, "train_micro_batch_size_per_gpu=1");
    fixture_set(&sets, "data_types.grad_accum_dtype=fp32");
    fixture_set(&sets, "state.moments=8bit"); /* zeros in any format */
    train_still("imported", &gpt2, &sets, "", NULL, &result);
    if (result.rc < 0)
        fail_msg("%s", result.error);
    assert_true(result.summary.was_resumed && result.summary.step == 2);
    assert_true(result.weights_hash == expected_hash(&shape, &form));
    train_still("imported", &gpt2, &lion, "", NULL, &result); /* now it is a run like any other */
    assert_int_equal(result.rc, ERR_INPUT);
    assert_non_null(strstr(result.error, "was made with other settings"));
}

/* The peak of this process's memory while it imports so many blocks. */
static uint64_t import_peak(uint32_t layers, uint64_t *written_bytes)
{
    const fixture_model kind = {.family = "llama", .bf16 = true, .layers = layers, .hidden = 256};
    const hf_fixture_form form = {.type = DTYPE_BF16, .shards = 3};
    const fixture_sets sets = {.count = 0};
    char dir[FIXTURE_PATH_BYTES * 2], run_dir[FIXTURE_PATH_BYTES * 2];
    struct hf_import_summary sum;
    snprintf(dir, sizeof dir, "%s/streamed-%u.hf", fixture_dir, (unsigned)layers);
    const hf_fixture_shape shape = write_weights(dir, "streamed", &kind, &sets, &form);
    hf_fixture_config(dir, &shape);
    for (int i = 0; i < 2; i++) { /* the first one brings what stays in any case */
        FILE *peak = fopen("/proc/self/clear_refs", "w");
        if (peak == NULL || fputs("5", peak) < 0 || fclose(peak) != 0)
            skip(); /* this kernel cannot begin a new peak */
        snprintf(run_dir, sizeof run_dir, "%s",
                 path_in_run(i == 0 ? "streamed-first" : "streamed", ""));
        const struct hf_import_options options = {.hf_dir = dir, .run_dir = run_dir};
        assert_ok(hf_import(&options, &sum));
        fixture_remove(i == 0 ? "streamed-first" : "streamed");
    }
    *written_bytes = sum.written_bytes;
    return sum.resident_bytes_max;
}

/* A checkpoint streams: 10 more blocks add next to nothing to the memory that an import takes. */
static void larger_checkpoints_take_no_more_memory(void **state)
{
    uint64_t small_bytes, large_bytes;
    uint64_t small = import_peak(2, &small_bytes), large = import_peak(12, &large_bytes);
    printf("%llu bytes of masters with %llu of memory, %llu with %llu\n",
           (unsigned long long)small_bytes, (unsigned long long)small,
           (unsigned long long)large_bytes, (unsigned long long)large);
    assert_true(large_bytes > 4 * small_bytes);
    if (!FIXTURE_IS_SANITIZED) /* a sanitizer keeps freed memory for a while */
        assert_true(large < small + (large_bytes - small_bytes) / 4);
}

/* Nothing is made where the checkpoint is not the model's. */
static void another_checkpoint_leaves_nothing(void **state)
{
    static fixture_result result;
    const fixture_sets sets = {.count = 0};
    train_still("refused", &gpt2, &sets, path_in_run("gpt2-device.hf", ""), NULL, &result);
    assert_int_equal(result.rc, 0); /* that one is */
    train_still("other", &llama, &sets, path_in_run("gpt2-device.hf", ""), NULL, &result);
    assert_int_equal(result.rc, ERR_INPUT);
    assert_non_null(strstr(result.error, "it is no checkpoint of this family of models"));
    assert_false(fixture_exists(path_in_run("other", "state")));
    assert_false(fixture_exists(path_in_run("other.nvme", "")));
    train_still("none", &llama, &sets, path_in_run("nowhere", ""), NULL, &result);
    assert_int_equal(result.rc, ERR_INPUT);
    assert_non_null(strstr(result.error, "nowhere"));
}

static void import_refused(const char *dir, const char *run_dir, const char *says)
{
    struct hf_import_summary sum;
    const struct hf_import_options options = {.hf_dir = dir, .run_dir = run_dir};
    assert_error(hf_import(&options, &sum), ERR_INPUT, says);
}

/* A run's directory is neither the checkpoint, nor has it in its "hf", nor has another run's
 * commits. */
static void a_run_has_a_directory_of_its_own(void **state)
{
    static const char among[] = "write among the files of the checkpoint";
    static fixture_result result;
    fixture_sets sets = {.count = 0};
    const hf_fixture_form form = {.type = DTYPE_FP32};
    char run_dir[FIXTURE_PATH_BYTES * 2], dir[FIXTURE_PATH_BYTES * 3];
    snprintf(run_dir, sizeof run_dir, "%s", path_in_run("own", ""));
    snprintf(dir, sizeof dir, "%shf", run_dir);
    assert_int_equal(mkdir(run_dir, 0777), 0);
    const hf_fixture_shape shape = write_weights(dir, "own", &gpt2, &sets, &form);
    hf_fixture_config(dir, &shape);
    import_refused(dir, run_dir, among);
    train_still("own", &gpt2, &sets, dir, NULL, &result);
    assert_int_equal(result.rc, ERR_INPUT);
    assert_non_null(strstr(result.error, among));
    assert_false(fixture_exists(path_in_run("own", "state")));
    import_refused(dir, dir, among);
    assert_false(fixture_exists(path_in_run("own", "hf/state")));
    fixture_set(&sets, "run.keep=[2]");
    train_still("keeps", &gpt2, &sets, "", NULL, &result);
    assert_int_equal(result.rc, 0);
    for (int slot = 0; slot < 2; slot++)
        assert_int_equal(
            remove(path_in_run("keeps", slot ? "state/manifest-1" : "state/manifest-0")), 0);
    import_refused(dir, path_in_run("keeps", ""), "commits that another run has kept");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_has_a_directory_of_its_own),
        cmocka_unit_test(a_run_begins_with_the_checkpoints_weights),
        cmocka_unit_test(going_on_reads_no_checkpoint),
        cmocka_unit_test(jobs_go_on_from_an_import),
        cmocka_unit_test(larger_checkpoints_take_no_more_memory),
        cmocka_unit_test(another_checkpoint_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
