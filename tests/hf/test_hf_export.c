/* A checkpoint is imported and exported again, bit for bit: several families, every dtype, units in
 * parts, several files; also after training, and from several ranks' shards. A refused export
 * leaves nothing under a final name. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "hf/hf.h"
#include "tests/hf/hf_fixture.h"
#include "tests/unit.h"
#include "text/tokenizer.h"

static const hf_fixture_shape gpt2 = HF_FIXTURE_GPT2(300), llama = HF_FIXTURE_LLAMA(300),
                              opt = HF_FIXTURE_OPT(300), neox = HF_FIXTURE_GPT_NEOX(300),
                              mixtral = HF_FIXTURE_MIXTURE(MODEL_MIXTRAL, 300),
                              qwen2_moe = HF_FIXTURE_MIXTURE(MODEL_QWEN2_MOE, 300);

static int quiet_setup(void **state)
{
    log_set_level(LOG_WARN);
    return hf_fixture_setup(state);
}

/* A fresh directory of the test. */
static const char *fresh(const char *name)
{
    char command[600];
    snprintf(command, sizeof command, "rm -rf '%s'", hf_fixture_path(name));
    assert_int_equal(system(command), 0);
    return hf_fixture_path(name);
}

static void make_checkpoint(const char *name, const hf_fixture_shape *shape,
                            const hf_fixture_form *form)
{
    const char *dir = fresh(name);
    hf_fixture_write(dir, shape, form);
    hf_fixture_config(dir, shape);
    hf_fixture_text(dir, "tokenizer.json", "{\"not\": \"looked at\"}");
}

static const char *beside; /* a setting of `import` beside `set`; or NULL */

static int import(const char *from, const char *to, const char *set, struct hf_import_summary *sum)
{
    const char *sets[] = {set, beside};
    const struct hf_import_options asked = {.hf_dir = hf_fixture_path(from),
                                            .run_dir = hf_fixture_path(to),
                                            .set = sets,
                                            .set_count = !set     ? 0
                                                         : beside ? 2
                                                                  : 1};
    return hf_import(&asked, sum);
}

static bool fuses_experts;

static int export(const char *from, const char *to, const char *type, uint64_t shard_bytes,
                  bool force, struct hf_export_summary *sum)
{
    const struct hf_export_options asked = {.run_dir = hf_fixture_path(from),
                                            .hf_dir = hf_fixture_path(to),
                                            .type = type,
                                            .shard_bytes = shard_bytes,
                                            .fused_experts = fuses_experts,
                                            .force = force};
    return hf_export(&asked, sum);
}

static void expect_good(int rc)
{
    if (rc < 0)
        fail_msg("%s: %s", err_name(rc), err_text());
}

static bool is_there(const char *name)
{
    return access(hf_fixture_path(name), F_OK) == 0;
}

static void read_text(const char *name, char *text, size_t capacity)
{
    FILE *file = fopen(hf_fixture_path(name), "r");
    assert_non_null(file);
    text[fread(text, 1, capacity - 1, file)] = '\0';
    fclose(file);
}

static void round_trip(const hf_fixture_shape *shape, const hf_fixture_form *form, const char *set,
                       uint64_t shard_bytes, uint32_t least_files)
{
    static const char *const torch[] = {"float32", "bfloat16", "float16"};
    struct hf_import_summary in;
    struct hf_export_summary out;
    char text[2048], wanted[64];
    make_checkpoint("model", shape, form);
    fresh("run");
    fresh("again");
    expect_good(import("model", "run", set, &in));
    expect_good(export("run", "again", NULL, shard_bytes, false, &out));
    assert_string_equal(out.type, dtype_name(form->type)); /* the job that was made is in it */
    assert_true(out.file_count >= least_files && (least_files > 1 || out.file_count == 1));
    assert_int_equal(out.param_count, in.param_count);
    assert_true(is_there("again/model.safetensors") == (out.file_count == 1));
    const hf_fixture_form wanted_form = {.type = form->type, .is_fused = fuses_experts};
    hf_fixture_compare(hf_fixture_path("again"), shape, &wanted_form);
    read_text("again/config.json", text, sizeof text);
    snprintf(wanted, sizeof wanted, "\"torch_dtype\": \"%s\"", torch[form->type]);
    assert_non_null(strstr(text, wanted));
    assert_null(strstr(text, "float64"));
    assert_true(is_there("again/tokenizer.json"));
}

static void checkpoints_come_back_bit_for_bit(void **state)
{
    const hf_fixture_shape shapes[] = {gpt2, llama, gpt2, llama, gpt2, llama, opt, neox, neox, opt};
    for (int i = 0; i < 10; i++) {
        hf_fixture_shape shape = shapes[i];
        hf_fixture_form form = {.type = (enum dtype)(i % 3), .shards = i == 4 ? 3 : 0};
        form.has_extras = i == 2;
        shape.tied = i == 1 || i == 2 || i == 4;
        bool cuts = i >= 3, is_sharded = i % 2;
        round_trip(&shape, &form, cuts ? "model.max_part_bytes=30000" : NULL,
                   is_sharded ? 60000 : 0, is_sharded ? 3 : 1);
    }
}

/* Each expert has tensors of its own, also where a unit has several; or all have one tensor. */
static void experts_come_back_bit_for_bit(void **state)
{
    for (int i = 0; i < 8; i++) {
        const hf_fixture_form form = {
            .type = (enum dtype)(i % 3), .shards = i == 4 ? 3 : 0, .is_fused = i >= 6};
        fuses_experts = form.is_fused;
        round_trip(i % 2 ? &mixtral : &qwen2_moe, &form, i < 4 ? "model.experts_per_unit=2" : NULL,
                   i == 3 ? 60000 : 0, i == 3 ? 3 : 1);
    }
    fuses_experts = false;
}

/* A run on bytes has no files of a tokenizer to copy: the export makes them. */
static void a_run_on_bytes_is_exported_with_its_tokenizer(void **state)
{
    static const char text[] =
        "In the beginning:\n\tca\xc3\xb1on  \xe2\x82\xac 10\xf0\x9f\x90\x8e\r\n'tis \x7f";
    const hf_fixture_form form = {.type = DTYPE_BF16};
    const tokenize_options options = {.adds_special = true};
    struct hf_import_summary in;
    struct hf_export_summary out;
    tokenizer *read;
    token_list list = {0};
    make_checkpoint("model", &llama, &form);
    fresh("run");
    fresh("again");
    expect_good(import("model", "run", "data.tokenizer=bytes", &in));
    expect_good(export("run", "again", NULL, 0, false, &out));
    assert_true(is_there("again/tokenizer_config.json"));
    expect_good(tokenizer_open(hf_fixture_path("again"), &read));
    assert_int_equal(tokenizer_vocab(read), 256);
    assert_int_equal(tokenizer_end_id(read), -1);
    expect_good(tokenizer_encode(read, text, sizeof text, &options, &list));
    assert_int_equal(list.count, sizeof text);
    for (size_t i = 0; i < list.count; i++)
        assert_int_equal(list.ids[i], (unsigned char)text[i]);
    for (int32_t id = 0; id < 256; id++) {
        size_t bytes;
        const char *token = tokenizer_token_bytes(read, id, true, &bytes);
        assert_int_equal(bytes, 1);
        assert_int_equal((unsigned char)token[0], id);
    }
    token_list_fini(&list);
    tokenizer_close(read);
}

/* Another dtype is another rounding of the same masters. */
static void other_dtypes_are_rounded(void **state)
{
    struct hf_import_summary in;
    struct hf_export_summary out;
    const hf_fixture_form form = {.type = DTYPE_FP32};
    make_checkpoint("model", &gpt2, &form);
    fresh("run");
    expect_good(import("model", "run", NULL, &in));
    for (int t = 0; t < DTYPE_COUNT; t++) {
        fresh("again");
        expect_good(export("run", "again", dtype_name((enum dtype)t), 0, false, &out));
        hf_fixture_compare(hf_fixture_path("again"), &gpt2,
                           &(hf_fixture_form){.type = (enum dtype)t}); /* exact in all of them */
    }
    assert_int_equal(export("run", "again", "fp64", 0, true, &out), ERR_USAGE);
}

/* A weight that fp16 cannot hold: nothing is left but what was there. */
static void weights_beyond_fp16_are_refused(void **state)
{
    struct hf_import_summary in;
    struct hf_export_summary out;
    const hf_fixture_form form = {.type = DTYPE_FP32};
    make_checkpoint("model", &llama, &form);
    fresh("run");
    fresh("again");
    FILE *file = fopen(hf_fixture_path("model/model.safetensors"), "r+");
    assert_non_null(file);
    const float large = 65520; /* rounds to infinity */
    assert_int_equal(fseek(file, -4, SEEK_END), 0);
    assert_int_equal(fwrite(&large, 4, 1, file), 1);
    fclose(file);
    expect_good(import("model", "run", NULL, &in));
    assert_int_equal(export("run", "again", "fp16", 0, false, &out), ERR_INPUT);
    assert_non_null(
        strstr(err_text(), "tensor lm_head.weight holds 65520, and fp16 ends at 65504"));
    assert_false(is_there("again/model.safetensors"));
    assert_false(is_there("again/model.safetensors.partial"));
    assert_false(is_there("again/config.json"));
    expect_good(export("run", "again", "bf16", 0, false, &out));
}

static void damage_is_found_and_nothing_is_exported(void **state)
{
    struct hf_import_summary in;
    struct hf_export_summary out;
    const hf_fixture_form form = {.type = DTYPE_BF16};
    make_checkpoint("model", &gpt2, &form);
    fresh("run");
    fresh("again");
    expect_good(import("model", "run", NULL, &in));
    char path[600];
    snprintf(path, sizeof path, "%s", hf_fixture_path("run/state"));
    DIR *directory = opendir(path);
    assert_non_null(directory);
    for (const struct dirent *entry; (entry = readdir(directory));)
        if (strncmp(entry->d_name, "sluice-", 7) == 0)
            snprintf(path + strlen(path), sizeof path - strlen(path), "/%s/rank-0-drive-0.slab",
                     entry->d_name);
    closedir(directory);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, "x", 1, 4096 + 777), 1); /* after the header: unit 0's masters */
    close(fd);
    assert_error(export("run", "again", NULL, 0, false, &out), ERR_CORRUPT,
                 "1 tiles of the commit are damaged, nothing is exported");
    assert_non_null(strstr(err_text(), "unit 0, tile 0"));
    assert_int_equal(rmdir(hf_fixture_path("again")), 0); /* it is empty */
}

static void directories_that_hold_something_are_kept(void **state)
{
    struct hf_import_summary in;
    struct hf_export_summary out;
    const hf_fixture_form form = {.type = DTYPE_BF16};
    make_checkpoint("model", &llama, &form);
    fresh("run");
    fresh("again");
    /* A job whose units are not the checkpoint's could not read its own import. */
    assert_error(import("model", "run", "train.lora.rank=4", &in), ERR_CONFIG,
                 "train.lora of this job");
    assert_int_equal(import("model", "run", "train.only=norms", &in), ERR_CONFIG);
    /* For Muon an import has as many units, but others. */
    beside = "optimizer={\"type\":\"Muon\",\"params\":{\"lr\":0.01}}";
    assert_error(import("model", "run", "train.lora.rank=4", &in), ERR_CONFIG,
                 "train.lora of this job");
    assert_error(import("model", "run", "train.only=norms", &in), ERR_CONFIG,
                 "train.only of this job");
    beside = NULL;
    assert_false(is_there("run"));
    expect_good(import("model", "run", NULL, &in));
    assert_error(import("model", "run", NULL, &in), ERR_INPUT,
                 "holds a run with a commit of step 0");
    expect_good(export("run", "again", NULL, 40000, false, &out));
    assert_true(out.file_count > 3);
    assert_error(export("run", "again", NULL, 0, false, &out), ERR_INPUT, "is not empty");
    assert_true(is_there("again/model.safetensors.index.json"));
    expect_good(export("run", "run/hf/above/new", NULL, 0, false, &out)); /* directories are made */
    assert_true(is_there("run/hf/above/new/config.json"));
    /* With force, the old files are removed, because loaders would read them. */
    expect_good(export("run", "again", NULL, 0, true, &out));
    assert_int_equal(out.file_count, 1);
    assert_false(is_there("again/model.safetensors.index.json"));
    DIR *directory = opendir(hf_fixture_path("again"));
    assert_non_null(directory);
    for (const struct dirent *entry; (entry = readdir(directory));)
        assert_true(strncmp(entry->d_name, "model-", 6) != 0);
    closedir(directory);
    hf_fixture_compare(hf_fixture_path("again"), &llama, &form);
}

static int points_left;

static int fail_at_point(void *user, const char *name)
{
    if (strcmp(name, user) != 0 || points_left-- > 0)
        return 0;
    return err_set(-EIO, "the test says so");
}

/* Wherever an import fails nothing of a run stays, and the next one is as the first. */
static void an_import_that_fails_leaves_nothing(void **state)
{
    static char point[] = "manifest.written";
    struct hf_import_summary in;
    struct hf_export_summary out;
    const hf_fixture_form form = {.type = DTYPE_FP16};
    make_checkpoint("model", &gpt2, &form);
    fresh("run");
    for (int which = 0; which < 2; which++) { /* the first manifest, and the commit */
        points_left = which;
        failpoint_hook(fail_at_point, point);
        assert_int_equal(import("model", "run", NULL, &in), -EIO);
        failpoint_hook(NULL, NULL);
        assert_false(is_there("run/job.json"));
        assert_false(is_there("run/hf"));
        assert_false(is_there("run/state/manifest-0") || is_there("run/state/manifest-1"));
    }
    expect_good(import("model", "run", NULL, &in));
    fresh("again");
    expect_good(export("run", "again", NULL, 0, false, &out));
    hf_fixture_compare(hf_fixture_path("again"), &gpt2, &form);
    /* A checkpoint that is not what its config.json says. */
    hf_fixture_shape other = gpt2;
    other.ffn = 208;
    hf_fixture_config(hf_fixture_path("model"), &other);
    fresh("run");
    assert_int_equal(import("model", "run", NULL, &in), ERR_INPUT);
    assert_false(is_there("run"));
    assert_int_equal(export("nowhere", "again", NULL, 0, true, &out), ERR_INPUT);
}

/* The slab takes little more of the drive than the masters. */
static void moments_take_no_space(void **state)
{
    struct hf_import_summary in;
    const hf_fixture_form form = {.type = DTYPE_BF16};
    hf_fixture_shape wide = llama;
    wide.vocab = 9000;
    make_checkpoint("model", &wide, &form);
    fresh("run");
    expect_good(import("model", "run", NULL, &in));
    char command[700];
    snprintf(command, sizeof command, "du -k '%s' | tail -1", hf_fixture_path("run"));
    FILE *pipe = popen(command, "r");
    unsigned long long kib = 0;
    assert_non_null(pipe);
    assert_int_equal(fscanf(pipe, "%llu", &kib), 1);
    pclose(pipe);
    assert_true(in.written_bytes >= 4 * in.param_count);
    assert_true(kib * 1024 < in.written_bytes + (1 << 20));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checkpoints_come_back_bit_for_bit),
        cmocka_unit_test(experts_come_back_bit_for_bit),
        cmocka_unit_test(a_run_on_bytes_is_exported_with_its_tokenizer),
        cmocka_unit_test(other_dtypes_are_rounded),
        cmocka_unit_test(weights_beyond_fp16_are_refused),
        cmocka_unit_test(damage_is_found_and_nothing_is_exported),
        cmocka_unit_test(directories_that_hold_something_are_kept),
        cmocka_unit_test(an_import_that_fails_leaves_nothing),
        cmocka_unit_test(moments_take_no_space),
    };
    return cmocka_run_group_tests(tests, quiet_setup, hf_fixture_teardown);
}
