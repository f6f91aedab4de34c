/* Runs that begin with adapters in the format of PEFT (train.lora.from): adapters that one run
 * exported come back with all bits from another that begins with them, however experts are cut into
 * units, and an evaluation takes them too. Adapters of another shape, of other layers or of a kind
 * that is not read are refused. */
#include "base/file.h"
#include "base/mem.h"
#include "hf/hf.h"
#include "infer/infer.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"

static const fixture_model *shape;
/* A mixture with a shared expert, whose first block has none: shapes beside the fixture's. */
static const fixture_model glm4_moe = {.family = "glm4_moe", .layers = 3, .hidden = 64};
#define GLM4_MOE                                                                                   \
    "{\"family\": \"glm4_moe\", \"num_layers\": 3, \"hidden_size\": 64, \"num_heads\": 4, "        \
    "\"num_kv_heads\": 2, \"vocab_size\": 640, \"seq_length\": 32, \"ffn_size\": 80, "             \
    "\"num_experts\": 4, \"num_experts_per_tok\": 2, \"expert_ffn_size\": 48, "                    \
    "\"shared_ffn_size\": 48, \"first_k_dense_replace\": 1, \"scoring_func\": \"sigmoid\"}"

/* A run of two steps of the checkpoint `base` (NULL: of a new model) with this block train.lora
 * (NULL: none). Returns its code. */
static int train(const char *name, const char *base, const char *lora, double rate,
                 uint32_t experts_per_unit)
{
    static fixture_result result;
    fixture_sets sets = {.count = 0};
    fixture_set(&sets, "run.steps=2");
    fixture_set(&sets, "scheduler=null");
    fixture_set(&sets, "data.tokenizer=bytes");
    fixture_set(&sets, "optimizer.params.lr=%g", rate);
    if (!base && shape == &glm4_moe)
        fixture_set(&sets, "model=" GLM4_MOE);
    if (base)
        fixture_set(&sets, "model={\"hf\": \"%s\", \"seq_length\": 32}", fixture_path(NULL, base));
    if (experts_per_unit)
        fixture_set(&sets, "model.experts_per_unit=%u", experts_per_unit);
    if (lora)
        fixture_set(&sets, "train.lora=%s", lora);
    job *asked;
    TRY(fixture_read_job(name, shape, &sets, 1, &asked));
    const fixture_call call = {.name = name, .fresh = true};
    fixture_train(asked, &call, &result);
    job_destroy(asked);
    return result.rc < 0 ? err_set(result.rc, "%s", result.error) : 0;
}

static void must_train(const char *name, const char *base, const char *lora, double rate,
                       uint32_t experts_per_unit)
{
    if (train(name, base, lora, rate, experts_per_unit) < 0)
        fail_msg("%s: %s", name, err_text());
}

static void export(const char *run, const char *hf, bool adapters)
{
    struct hf_export_summary sum;
    const struct hf_export_options options = {.run_dir = fixture_path(NULL, run),
                                              .hf_dir = fixture_path(NULL, hf),
                                              .adapters = adapters,
                                              .force = true};
    assert_ok(hf_export(&options, &sum));
}

static void expect_same(const char *a, const char *b, const char *file)
{
    char *first, *second, path[FIXTURE_PATH_BYTES * 3];
    uint64_t first_bytes, second_bytes;
    snprintf(path, sizeof path, "%s/%s", fixture_path(NULL, a), file);
    assert_ok(file_read(path, 1 << 28, &first, &first_bytes));
    snprintf(path, sizeof path, "%s/%s", fixture_path(NULL, b), file);
    assert_ok(file_read(path, 1 << 28, &second, &second_bytes));
    assert_int_equal(first_bytes, second_bytes);
    assert_memory_equal(first, second, first_bytes);
    mem_free(first);
    mem_free(second);
}

static const char *from_of(const char *adapters, const char *more)
{
    static char text[FIXTURE_PATH_BYTES * 3];
    snprintf(text, sizeof text, "{\"from\": \"%s\"%s}", fixture_path(NULL, adapters), more);
    return text;
}

static void check_round_trip(const fixture_model *of, const char *lora)
{
    shape = of;
    must_train("begin", NULL, NULL, 1e-3, 0);
    export("begin", "base", false);
    must_train("first", "base", lora, 1e-1, 0);
    export("first", "adapters", true);
    export("first", "merged", false);
    must_train("second", "base", from_of("adapters", ""), 0, strcmp(of->family, "mixtral") == 0);
    export("second", "again", true);
    export("second", "merged-2", false);
    expect_same("adapters", "again", "adapter_config.json");
    expect_same("adapters", "again", "adapter_model.safetensors");
    if (strcmp(of->family, "mixtral") != 0) /* files are in the order of units */
        expect_same("merged", "merged-2", "model.safetensors");
}

static void there_and_back(void **state)
{
    static const fixture_model neox = {.family = "gpt_neox", .layers = 2, .hidden = 64};
    static const fixture_model llama = {.family = "llama", .layers = 2, .hidden = 64};
    static const fixture_model mixtral = {.family = "mixtral", .layers = 2, .hidden = 64};
    check_round_trip(&neox, "{\"rank\": 4, \"alpha\": 12.5, \"targets\": [\"query_key_value\"]}");
    check_round_trip(&mixtral, "{\"rank\": 3, \"targets\": [\"q_proj\", \"experts.down_proj\", "
                               "\"experts.gate_up_proj\"]}");
    check_round_trip(&glm4_moe, "{\"rank\": 4, \"targets\": [\"mlp.up_proj\", "
                                "\"shared_experts.up_proj\", \"shared_experts.down_proj\"]}");
    check_round_trip(&llama, "{\"rank\": 4, \"dropout\": 0.1, \"targets\": [\"o_proj\", "
                             "\"up_proj\"]}");
}

/* ---- refusals, of the adapters of llama ---- */

static void refuse(const char *adapters, const char *more, const char *text)
{
    int rc = train("wrong", "base", from_of(adapters, more), 0, 0);
    if (rc >= 0 || !strstr(err_text(), text))
        fail_msg("%d: %s", rc, err_text());
}

/* Copies the adapters to `other` with another config. */
static void change(const char *format, ...)
{
    char config[2048], path[FIXTURE_PATH_BYTES * 3], *text;
    uint64_t size_bytes;
    uint32_t made_count;
    va_list args;
    va_start(args, format);
    vsnprintf(config, sizeof config, format, args);
    va_end(args);
    assert_ok(file_make_directories(fixture_path(NULL, "other"), FILE_SHARED, &made_count));
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", fixture_path(NULL, "adapters"));
    assert_ok(file_read(path, 1 << 28, &text, &size_bytes));
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", fixture_path(NULL, "other"));
    assert_ok(file_write(path, FILE_SHARED, text, size_bytes));
    mem_free(text);
    snprintf(path, sizeof path, "%s/adapter_config.json", fixture_path(NULL, "other"));
    assert_ok(file_write(path, FILE_SHARED, config, strlen(config)));
}

#define CONFIG(rank, targets, more)                                                                \
    "{\"peft_type\": \"LORA\", \"r\": " rank                                                       \
    ", \"lora_alpha\": 8, \"target_modules\": " targets more "}"

static void refusals(void **state)
{
    refuse("adapters", ", \"rank\": 8", "adapter_config.json has r 4; leave the key out");
    refuse("adapters", ", \"alpha\": 3", "has lora_alpha 8; leave the key out");
    refuse("adapters", ", \"targets\": [\"q_proj\", \"up_proj\"]", "leave the key out");
    refuse("nowhere", "", "adapter_config.json");
    change(CONFIG("8", "[\"o_proj\", \"up_proj\"]", ""));
    refuse("other", "", "has shape [4, 64], and the model with these adapters has [8, 64]");
    change(CONFIG("4", "[\"o_proj\", \"down_proj\"]", ""));
    refuse("other", "",
           "has no tensor base_model.model.model.layers.0.mlp.down_proj.lora_A.weight");
    change(CONFIG("4", "[\"o_proj\"]", ""));
    refuse("other", "", "of the tensors, such as");
    change(CONFIG("4", "[\"lm_head\"]", ""));
    refuse("other", "", "\"lm_head\" is not a linear layer");
    change(CONFIG("4", "\".*_proj\"", ""));
    refuse("other", "", "target_modules: a pattern is not read");
    change(CONFIG("4", "[\"o_proj\", \"up_proj\"]", ", \"use_dora\": true"));
    refuse("other", "", "use_dora: it is set");
    change(CONFIG("4", "[\"o_proj\", \"up_proj\"]", ", \"rank_pattern\": {\"o_proj\": 2}"));
    refuse("other", "", "rank_pattern: it is set");
    change(CONFIG("4", "[\"o_proj\", \"up_proj\"]", ", \"init_lora_weights\": \"lora_ga\""));
    refuse("other", "", "init_lora_weights: \"lora_ga\" may change the base");
    refuse("adapters", ", \"targets\": [1, \"up_proj\"]", "train.lora.targets");
    change(CONFIG("5000", "[\"o_proj\", \"up_proj\"]", ""));
    refuse("other", "", "other/adapter_config.json: r: 5000 is out of range: must be in [1,4096]");
    change(CONFIG("4", "[\"o_proj\", \"up_proj\"]", ", \"lora_dropout\": 1.5"));
    refuse("other", "", "other/adapter_config.json: lora_dropout: 1.5 is out of range");
    change("{\"peft_type\": \"IA3\"}");
    refuse("other", "", "peft_type: \"IA3\" is not read");
    assert_true(train("wrong", NULL, from_of("adapters", ""), 0, 0) == ERR_CONFIG);
    assert_non_null(strstr(err_text(), "name it in model.hf"));
}

/* ---- what PEFT writes ---- */

/* The whole config of PEFT 0.18 and later, of which most says nothing. */
#define CONFIG_OF_PEFT(modules, parameters)                                                        \
    "{\"alora_invocation_tokens\": null, \"alpha_pattern\": {}, \"arrow_config\": null, "          \
    "\"auto_mapping\": null, \"base_model_name_or_path\": \"tiny\", \"bias\": \"none\", "          \
    "\"corda_config\": null, \"ensure_weight_tying\": false, \"eva_config\": null, "               \
    "\"exclude_modules\": null, \"fan_in_fan_out\": false, \"inference_mode\": true, "             \
    "\"init_lora_weights\": true, \"layer_replication\": null, \"layers_pattern\": null, "         \
    "\"layers_to_transform\": null, \"loftq_config\": {}, \"lora_alpha\": 8, \"lora_bias\": "      \
    "false, "                                                                                      \
    "\"lora_dropout\": 0.0, \"megatron_config\": null, \"megatron_core\": \"megatron.core\", "     \
    "\"modules_to_save\": null, \"peft_type\": \"LORA\", \"peft_version\": \"0.18.0\", "           \
    "\"qalora_group_size\": 16, \"r\": 4, \"rank_pattern\": {}, \"revision\": null, "              \
    "\"target_modules\": " modules ", \"target_parameters\": " parameters                          \
    ", \"task_type\": \"CAUSAL_LM\", \"trainable_token_indices\": null, \"use_dora\": false, "     \
    "\"use_qalora\": false, \"use_rslora\": false}"

/* One window at a time: products of other sizes may round otherwise. */
static double loss_of(const char *path, const char *lora)
{
    struct infer_evaluate_result result;
    char set[FIXTURE_PATH_BYTES * 4];
    const char *files[] = {fixture_path("valid.txt", NULL)};
    const char *sets[] = {"train_micro_batch_size_per_gpu=1", set};
    snprintf(set, sizeof set, "train.lora=%s", lora ? lora : "");
    const struct infer_evaluate_options options = {.path = fixture_path(NULL, path),
                                                   .files = files,
                                                   .file_count = 1,
                                                   .set = sets,
                                                   .set_count = lora ? 2 : 1};
    if (infer_evaluate(&options, &result) < 0)
        fail_msg("%s: %s", path, err_text());
    return result.loss;
}

/* Trains adapters of these targets, and gives them the config that PEFT would have written. A new
 * run takes them, and an evaluation of the checkpoint with them has the loss of the run. */
static void check_peft(const char *targets, const char *config)
{
    char lora[256];
    shape = &glm4_moe;
    snprintf(lora, sizeof lora, "{\"rank\": 4, \"targets\": %s}", targets);
    must_train("first", "base", lora, 1e-1, 0);
    export("first", "adapters", true);
    change("%s", config);
    must_train("second", "base", from_of("other", ""), 0, 0);
    export("second", "again", true);
    expect_same("adapters", "again", "adapter_model.safetensors");
    double of_run = loss_of("first", NULL), of_base = loss_of("base", NULL);
    assert_true(loss_of("base", from_of("other", "")) == of_run);
    assert_true(of_base != of_run);
}

/* A name without a dot is that of modules in target_modules. In target_parameters it is that of a
 * parameter: of all routed experts, or with ".weight" of linear layers. */
static void files_of_peft(void **state)
{
    shape = &glm4_moe;
    must_train("begin", NULL, NULL, 1e-3, 0);
    export("begin", "base", false);
    check_peft("[\"q_proj\", \"mlp.experts.down_proj\"]",
               CONFIG_OF_PEFT("[\"q_proj\"]", "[\"down_proj\"]"));
    check_peft("[\"o_proj\", \"mlp.down_proj\", \"mlp.shared_experts.down_proj\"]",
               CONFIG_OF_PEFT("[]", "[\"o_proj.weight\", \"down_proj.weight\"]"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(there_and_back),
        cmocka_unit_test(refusals),
        cmocka_unit_test(files_of_peft),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
