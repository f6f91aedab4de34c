/* Runs with a packed base, from a checkpoint and back to one. An export whose matrices stay packed
 * has the codes of the run, a run that begins with it has them again, and so has its export. An
 * import expands them. Formats that no checkpoint can hold are refused. */
#include "base/file.h"
#include "base/mem.h"
#include "hf/hf.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"

static const fixture_model llama = {.family = "llama", .layers = 2, .hidden = 64};
static const fixture_model mixtral = {.family = "mixtral", .layers = 2, .hidden = 64};
static bool is_gpt_oss; /* mixtral's shape with the layers of gpt-oss */

/* A run of two steps, in which the head or adapters learn at this rate. */
static void train(const char *name, const char *params, const char *learns, double rate,
                  const char *hf)
{
    static fixture_result result;
    fixture_sets sets = {.count = 0};
    fixture_set(&sets, "run.steps=2");
    fixture_set(&sets, "scheduler=null");
    fixture_set(&sets, "optimizer.params.lr=%g", rate);
    fixture_set(&sets, "state.params=%s", params);
    fixture_set(&sets, "%s", learns);
    if (is_gpt_oss) {
        fixture_set(&sets, "model.family=gpt_oss");
        fixture_set(&sets, "model.expert_ffn_size=32");
    }
    job *asked = fixture_job(name, is_gpt_oss ? &mixtral : &llama, &sets);
    if (hf)
        snprintf(asked->hf, sizeof asked->hf, "%s", hf);
    const fixture_call call = {.name = name};
    fixture_train(asked, &call, &result);
    job_destroy(asked);
    if (result.rc < 0)
        fail_msg("%s: %s", name, result.error);
}

static int export(const char *run, const char *hf, bool quantized)
{
    struct hf_export_summary sum;
    const struct hf_export_options options = {.run_dir = fixture_path(NULL, run),
                                              .hf_dir = fixture_path(NULL, hf),
                                              .quantized = quantized,
                                              .force = true};
    return hf_export(&options, &sum);
}

static void expect_same_file(const char *a, const char *b)
{
    char *first, *second;
    uint64_t first_bytes, second_bytes;
    char path[FIXTURE_PATH_BYTES * 3];
    snprintf(path, sizeof path, "%s/model.safetensors", fixture_path(NULL, a));
    assert_ok(file_read(path, 1 << 28, &first, &first_bytes));
    snprintf(path, sizeof path, "%s/model.safetensors", fixture_path(NULL, b));
    assert_ok(file_read(path, 1 << 28, &second, &second_bytes));
    assert_int_equal(first_bytes, second_bytes);
    assert_memory_equal(first, second, first_bytes);
    mem_free(first);
    mem_free(second);
}

static void expect_config(const char *dir, const char *text, bool is_there)
{
    char path[FIXTURE_PATH_BYTES * 3], *config;
    uint64_t size_bytes;
    snprintf(path, sizeof path, "%s/config.json", fixture_path(NULL, dir));
    assert_ok(file_read(path, 1 << 20, &config, &size_bytes));
    assert_true((strstr(config, text) != NULL) == is_there);
    mem_free(config);
}

#define HEAD     "train.only=[\"head\"]"
#define ADAPTERS "train.lora={\"rank\":4,\"targets\":[\"q_proj\",\"up_proj\"]}"
#define EXPERT_ADAPTERS                                                                            \
    "train.lora={\"rank\":4,\"targets\":[\"experts.gate_up_proj\",\"experts.down_proj\"]}"

/* An import of the checkpoint `packed`, whose export must be that of `expanded`. */
static void import(void)
{
    struct hf_import_summary sum;
    const struct hf_import_options options = {.hf_dir = fixture_path(NULL, "packed"),
                                              .run_dir = fixture_path(NULL, "imported")};
    assert_ok(hf_import(&options, &sum));
    assert_int_equal(export("imported", "expanded-3", false), 0);
    expect_same_file("expanded", "expanded-3");
    expect_config("expanded-3", "quantization_config", false);
    fixture_remove("imported");
}

static void check_format(const char *format)
{
    train("first", format, HEAD, 1e-2, NULL);
    assert_int_equal(export("first", "packed", true), 0);
    assert_int_equal(export("first", "expanded", false), 0);
    expect_config("packed", "quantization_config", true);
    expect_config("expanded", "quantization_config", false);
    train("second", format, HEAD, 0, fixture_path(NULL, "packed"));
    assert_int_equal(export("second", "packed-2", true), 0);
    assert_int_equal(export("second", "expanded-2", false), 0);
    expect_same_file("packed", "packed-2");
    expect_same_file("expanded", "expanded-2");
    expect_config("packed-2", "quantization_config", true);
    expect_config("expanded-2", "quantization_config", false);
    fixture_remove("first");
    fixture_remove("second");
}

static void there_and_back(void **state)
{
    static const char *const formats[] = {"nf4",        "nf4_double", "fp4",
                                          "fp4_double", "int8_rows",  "fp8_blocks"};
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        check_format(formats[i]);
        import();
    }
}

/* Experts stay packed, with the rows of gate and up by turns; attention is expanded, exactly. */
static void gpt_oss(void **state)
{
    is_gpt_oss = true;
    check_format("mxfp4");
    import();
    expect_config("packed", "\"mxfp4\"", true);
    train("first", "mxfp4", EXPERT_ADAPTERS, 0, fixture_path(NULL, "packed"));
    assert_int_equal(export("first", "packed-4", true), 0);
    expect_same_file("packed", "packed-4"); /* adapters of zero: quantized again to the same */
    fixture_remove("first");
    is_gpt_oss = false;
}

/* A matrix whose adapter adds nothing is quantized again to the same codes. */
static void quantized_again(void **state)
{
    train("first", "nf4", HEAD, 0, NULL);
    assert_int_equal(export("first", "packed", true), 0);
    train("second", "nf4", ADAPTERS, 0, fixture_path(NULL, "packed"));
    assert_int_equal(export("second", "packed-2", true), 0);
    expect_same_file("packed", "packed-2");
    train("third", "nf4", ADAPTERS, 1e-1, fixture_path(NULL, "packed"));
    assert_int_equal(export("third", "packed-3", true), 0);
    expect_config("packed-3", "\"nf4\"", true);
}

static void refuse(const char *params, const char *text)
{
    train("wrong", params, HEAD, 0, NULL);
    assert_error(export("wrong", "none", true), ERR_CONFIG, text);
    assert_false(fixture_exists(fixture_path(NULL, "none")));
    fixture_remove("wrong");
}

static void refusals(void **state)
{
    refuse("working", "keeps no matrix in a packed format");
    refuse("int8", "in the format int8: export without --quantized, or begin a run with "
                   "state.params int8_rows");
    refuse("fp8_rows", "state.params fp8_blocks");
    refuse("mxfp4", "mxfp4 for experts of gpt_oss alone");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(there_and_back),
        cmocka_unit_test(gpt_oss),
        cmocka_unit_test(quantized_again),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
