/* The presets have their published parameter counts, the example jobs read, and files are found. */
#include "tests/config/test_config_common.h"

#include <dirent.h>
#include <sys/stat.h>

#include "config/config_internal.h"

/* Parameters by the dimensions alone. */
static uint64_t param_count(const model_spec *m)
{
    uint64_t c = m->hidden_size, head = m->head_dim ? m->head_dim : c / m->num_heads;
    uint64_t kv = m->num_kv_heads * head, q = m->num_heads * head;
    uint64_t out = m->tie_embeddings ? 0 : m->vocab_size * c;
    if (m->family == MODEL_GPT2) {
        uint64_t attention = c * 3 * c + 3 * c + c * c + c;
        uint64_t ffn = 2 * c * m->ffn_size + m->ffn_size + c;
        return (m->vocab_size + m->seq_length) * c + m->num_layers * (attention + ffn + 4 * c) +
               2 * c + out;
    }
    if (m->family == MODEL_BERT) {
        uint64_t block = 4 * (c * c + c) + 2 * c * m->ffn_size + m->ffn_size + c + 4 * c;
        uint64_t last = c * c + c + 2 * c + m->vocab_size;
        return (m->vocab_size + m->seq_length + 2 + 2) * c + m->num_layers * block + last;
    }
    uint64_t attention =
        2 * c * q + 2 * c * kv + (m->qkv_bias ? q + 2 * kv : 0) + (m->qk_norm ? 2 * head : 0);
    if (m->kv_latent_size > 0) { /* latents and their norms, and what is made of them */
        uint64_t from = m->q_latent_size ? m->q_latent_size : c, common = m->rope_head_dim;
        attention = m->q_latent_size ? c * from + from : 0;
        attention += from * q + c * (m->kv_latent_size + common) + m->kv_latent_size +
                     m->kv_latent_size * m->num_heads * (head - common + m->value_head_dim) +
                     m->num_heads * m->value_head_dim * c;
    }
    uint64_t norms = (m->family == MODEL_GEMMA2 ? 4 : 2) * c;
    uint64_t ffn = 3 * c * m->ffn_size;
    if (m->expert_count > 0) { /* the router and the experts; one more, with its gate */
        uint64_t width = m->expert_ffn_size ? m->expert_ffn_size : m->ffn_size;
        ffn = m->expert_count * (c + 3 * c * width);
        ffn += m->shared_ffn_size ? 3 * c * m->shared_ffn_size : 0;
        ffn += m->family == MODEL_QWEN2_MOE ? c : 0;
    }
    if (m->family == MODEL_OLMOE)
        norms += q + kv;
    if (m->family == MODEL_GPT_OSS) { /* biases of output and experts; sinks */
        uint64_t width = m->expert_ffn_size ? m->expert_ffn_size : m->ffn_size;
        attention += c + m->num_heads;
        ffn += m->expert_count * (1 + 2 * width + c);
    }
    uint64_t dense = m->dense_blocks;
    return m->vocab_size * c + m->num_layers * (attention + norms) + c + out +
           dense * 3 * c * m->ffn_size + (m->num_layers - dense) * ffn;
}

static void published_sizes(void **state)
{
    static const struct {
        const char *name;
        uint64_t params; /* as published, or by the formula where only a rounded size is */
    } cases[] = {
        {"gpt2-124m", 124439808},          {"gpt2-350m", 354823168},
        {"gpt2-774m", 774030080},          {"gpt2-1.5b", 1557611200},
        {"gpt2-xl", 1557611200},           {"gpt2-10b", 10279047168},
        {"llama-1b", 1235814400},          {"llama-8b", 8030261248},
        {"llama-70b", 70553706496},        {"llama-405b", 405853388800},
        {"mistral-7b", 7241732096},        {"qwen2.5-0.5b", 494032768},
        {"qwen3-4b", 4022468096},          {"smollm2-135m", 134515008},
        {"bert-base", 109514298},          {"bert-large", 335174458},
        {"gemma2-2b", 2614341888},         {"gemma3-1b", 999885952},
        {"mixtral-8x7b", 46702792704},     {"qwen1.5-moe-a2.7b", 14315784192},
        {"qwen3-30b-a3b", 30532122624},    {"olmoe-1b-7b", 6919161856},
        {"deepseek-v2-lite", 15706484224}, {"deepseek-v3", 671026404352},
        {"glm-4.5-air", 106852245504},     {"gpt-oss-20b", 20914757184},
        {"gpt-oss-120b", 116829156672},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[512];
        snprintf(text, sizeof text, "{'model': {'preset': '%s'}, " SMALL_REST "}", cases[i].name);
        job *self = read_good(text, NULL);
        assert_string_equal(self->preset, cases[i].name);
        assert_int_equal(param_count(&self->model), cases[i].params);
        if (self->model.head_dim == 0)
            assert_int_equal(self->model.hidden_size % self->model.num_heads, 0);
        assert_int_equal(self->model.num_heads % self->model.num_kv_heads, 0);
        job_destroy(self);
    }
}

/* A preset has the size that its name promises ("zero-offload-13b"). The papers' formula counts the
 * blocks alone, 12 L C^2; for Llama all parameters count. */
static void sizes_as_named(void **state)
{
    static const char *const names[] = {
        "zero-offload-1b",  "zero-offload-2b",  "zero-offload-4b",  "zero-offload-6b",
        "zero-offload-8b",  "zero-offload-10b", "zero-offload-11b", "zero-offload-12b",
        "zero-offload-13b", "zero-offload-15b", "zero-offload-20b", "zero-offload-40b",
        "zero-offload-60b", "zero-offload-70b", "turing-nlg-17b",   "gpt-100b",
        "gpt-170b",         "gpt-1t",           "gpt-32t",          "gpt2-10b",
        "gpt2-1.5b",        "llama-8b",         "llama-70b",        "llama-405b",
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char text[512], *end;
        snprintf(text, sizeof text, "{'model': {'preset': '%s'}, " SMALL_REST "}", names[i]);
        job *self = read_good(text, NULL);
        const model_spec *m = &self->model;
        double named = strtod(strrchr(names[i], '-') + 1, &end);
        named *= *end == 't' ? 1e12 : 1e9;
        double blocks =
            12.0 * (double)m->num_layers * (double)m->hidden_size * (double)m->hidden_size;
        bool is_llama = m->family == MODEL_LLAMA;
        double params = is_llama ? (double)param_count(m) : blocks;
        if (!(params > 0.94 * named && params < 1.06 * named))
            fail_msg("%s: %g parameters", names[i], params);
        assert_int_equal(m->hidden_size % m->num_heads, 0);
        assert_int_equal(m->num_heads % m->num_kv_heads, 0);
        assert_true(is_llama || m->ffn_size == 4 * m->hidden_size);
        job_destroy(self);
    }
}

static void keys_override(void **state)
{
    job *self = read_good("{'model': {'seq_length': 256, 'preset': 'llama-1b'}, " SMALL_REST "}",
                          "model.num_layers=3");
    assert_int_equal(self->model.seq_length, 256);
    assert_int_equal(self->model.num_layers, 3);
    assert_int_equal(self->model.vocab_size, 128256);
    assert_true(self->model.rope_theta == 500000.0 && self->model.tie_embeddings);
    job_destroy(self);
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_true(fputs(quoted(text), file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* $SLUICE_CONFIG_DIR goes before the built-in place, the job's directory after it. */
static void places_in_order(void **state)
{
    static const char preset[] = "{'family': 'gpt2', 'num_layers': 1, 'hidden_size': 8, "
                                 "'num_heads': 1, 'seq_length': 9, // mine\n}";
    char models[96], first[128], beside[128], all[128];
    snprintf(models, sizeof models, "%s/models", test_dir);
    snprintf(first, sizeof first, "%s/gpt2-124m.json", models);
    snprintf(beside, sizeof beside, "%s/mine.json", test_dir);
    assert_int_equal(mkdir(models, 0700), 0);
    write_file(first, preset);
    write_file(beside, preset);
    static const char standard[] = "{'model': {'preset': 'gpt2-124m'}, " SMALL_REST "}";
    job *self = read_good(standard, NULL);
    assert_int_equal(self->model.hidden_size, 768);
    job_destroy(self);
    setenv("SLUICE_CONFIG_DIR", test_dir, 1);
    self = read_good(standard, NULL);
    assert_int_equal(self->model.hidden_size, 8);
    job_destroy(self);
    /* a file of its own goes before a member of models.json */
    snprintf(all, sizeof all, "%s/models.json", test_dir);
    write_file(all, "{'gpt2-124m': {}, 'other': {'family': 'llama', 'num_layers': 3, "
                    "'hidden_size': 8, 'num_heads': 1, 'seq_length': 9}}");
    self = read_good(standard, NULL);
    assert_int_equal(self->model.hidden_size, 8);
    job_destroy(self);
    self = read_good("{'model': {'preset': 'other'}, " SMALL_REST "}", NULL);
    assert_int_equal(self->model.num_layers, 3);
    job_destroy(self);
    assert_error(read_text("{'model': {'preset': 'othr'}, " SMALL_REST "}", NULL, &self),
                 ERR_CONFIG, "the nearest is \"other\"");
    unsetenv("SLUICE_CONFIG_DIR");
    self = read_good("{'model': {'preset': 'mine'}, " SMALL_REST "}", NULL);
    assert_int_equal(self->model.seq_length, 9);
    job_destroy(self);
    write_file(beside, "{'family': 'gpt2', 'num_layer': 1}");
    assert_error(read_text("{'model': {'preset': 'mine'}, " SMALL_REST "}", NULL, &self),
                 ERR_CONFIG, "mine.json: model.num_layer: ");
    assert_non_null(strstr(err_text(), "\"num_layers\""));
    assert_int_equal(unlink(first) | unlink(beside) | unlink(all) | rmdir(models), 0);
}

/* The jobs finetune*.json leave the checkpoint to the user. */
static job *read_finetune(const char *path)
{
    char config[128], model[128];
    snprintf(config, sizeof config, "%s/config.json", test_dir);
    snprintf(model, sizeof model, "model.hf=%s", test_dir);
    write_file(config,
               "{'model_type': 'qwen3', 'vocab_size': 256, 'hidden_size': 64, 'num_hidden_layers': "
               "2, 'num_attention_heads': 4, 'num_key_value_heads': 2, 'intermediate_size': 96}");
    const char *const sets[] = {model};
    job *self;
    int rc = job_read(path, NULL, sets, 1, 1, &self);
    assert_int_equal(unlink(config), 0);
    assert_ok(rc);
    assert_string_equal(self->hf, test_dir);
    assert_int_equal(self->model.seq_length, strstr(path, "finetune-small") ? 256 : 512);
    return self;
}

static job *read_example(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, SLUICE_SOURCE_DIR "/configs/jobs/%s", name);
    if (strncmp(name, "finetune", strlen("finetune")) == 0)
        return read_finetune(path);
    /* A file of DeepSpeed's alone gets the blocks that it lacks, as a user would give them. */
    static const char *const blocks[] = {"model.preset=gpt2-124m", "data.train=train.txt",
                                         "run.dir=runs/infinity",
                                         "zero_optimization.offload_optimizer.nvme_path=slabs",
                                         "zero_optimization.offload_param.nvme_path=slabs"};
    uint32_t count =
        strcmp(name, "deepspeed-infinity.json") == 0 ? sizeof blocks / sizeof blocks[0] : 0;
    job *self;
    assert_ok(job_read(path, NULL, blocks, count, 1, &self));
    return self;
}

/* Every file of configs/jobs is a job that could train. */
static void all_examples_read(void **state)
{
    DIR *folder = opendir(SLUICE_SOURCE_DIR "/configs/jobs");
    assert_non_null(folder);
    uint32_t count = 0;
    for (const struct dirent *entry; (entry = readdir(folder)); count++) {
        const char *end = strrchr(entry->d_name, '.');
        if (entry->d_name[0] == '.' || strcmp(entry->d_name, "limits") == 0) {
            count--;
            continue;
        }
        assert_string_equal(end ? end : "", ".json");
        job *self = read_example(entry->d_name);
        assert_int_equal(job_check_for_training(self), 0);
        assert_true(self->run.steps > 0 && self->run.dir[0] != '\0');
        job_destroy(self);
    }
    assert_int_equal(closedir(folder), 0);
    assert_true(count >= 9);
}

/* The job of configs/cluster is for 8 ranks. */
static void cluster_example_reads(void **state)
{
    job *self;
    int rc =
        job_read(SLUICE_SOURCE_DIR "/configs/cluster/zero3-nvme.json", NULL, NULL, 0, 8, &self);
    assert_ok(rc);
    assert_int_equal(job_check_for_training(self), 0);
    assert_int_equal(self->accumulation, 4);
    assert_int_equal(self->comm.wire, DTYPE_BF16);
    assert_int_equal(self->zero_stage, 3);
    assert_int_equal(self->max_live_parameters, 1000000000);
    assert_true(self->limits_reuse);
    job_destroy(self);
}

static void examples_say(void **state)
{
    job *self = read_example("gpt2-1.5b-nvme.json");
    assert_int_equal(self->model.num_layers * self->model.hidden_size, 48 * 1600);
    assert_int_equal(self->model.num_heads, 16);
    assert_int_equal(self->micro_batch, 1);
    assert_int_equal(self->accumulation, 2);
    assert_int_equal(self->tiers.device_budget, 2ull << 30);
    assert_int_equal(self->tiers.host_budget, 2ull << 30);
    assert_int_equal(self->tiers.place[STATE_OPTIMIZER], TIER_NVME);
    job_destroy(self);
    self = read_example("deepspeed-zero3-nvme.json");
    assert_int_equal(self->accumulation, 8);
    assert_int_equal(self->tiers.nvme_count, 1);
    assert_int_equal(self->tiers.place[STATE_PARAMS], TIER_NVME);
    assert_int_equal(self->io.queue_depth, 32);
    job_destroy(self);
    self = read_example("deepspeed-infinity.json");
    assert_int_equal(self->accumulation, 4);
    assert_string_equal(self->tiers.nvme[0].path, "slabs");
    assert_int_equal(self->tiers.nvme_count, 1);
    assert_int_equal(self->scheduler.total_num_steps, 1000);
    assert_false(self->scheduler.warmup_max_lr_given);
    job_destroy(self);
    self = read_example("gpt2-124m-fp16.json");
    assert_int_equal(self->type, DTYPE_FP16);
    assert_int_equal(self->accumulation, 8);
    assert_int_equal(self->tiers.place[STATE_OPTIMIZER], TIER_HOST);
    assert_int_equal(self->tiers.place[STATE_INNER_ACTIVATIONS], TIER_HOST);
    job_destroy(self);
    self = read_example("gpt2-124m-small-state.json");
    assert_int_equal(self->state.moments, TILE_INT8);
    assert_int_equal(self->state.master, TILE_FP32);
    job_destroy(self);
    self = read_example("llama-1b-parts.json");
    assert_int_equal(self->model.max_part_bytes, 64 << 20);
    assert_int_equal(self->tiers.place[STATE_ACTIVATIONS], TIER_NVME);
    job_destroy(self);
}

/* The preset is looked up whatever stands beside it. Other keys override it, and the log says
 * which. The run's own copy holds all of it and looks for no preset, unless --set names one. */
static void keys_beside_a_preset(void **state)
{
    static char log[TEST_LOG_BYTES];
    job *self;
    assert_error(read_text(SMALL_JOB, "model.preset=nonexistent", &self), ERR_CONFIG,
                 "there is no preset \"nonexistent\"; they are files models/NAME.json");
    read_logged(SMALL_JOB, "model.preset=gpt2-124m", log);
    assert_non_null(strstr(log, "model.preset \"gpt2-124m\" is overridden by the job's own keys"));
    assert_non_null(strstr(log, "model.num_layers 2 instead of 12"));
    assert_null(strstr(log, "model.family"));
    self = read_good(SMALL_JOB, "model.preset=gpt2-124m");
    assert_true(self->model.num_layers == 2 && self->model.vocab_size == 50257);
    char *end = strstr(self->text, "gpt2-124m"); /* a preset that is gone */
    memcpy(end, "gpt2-xxxx", 9);
    job *again = read_good(self->text, NULL);
    assert_int_equal(again->model.vocab_size, 50257);
    job_destroy(again);
    assert_int_equal(read_text(self->text, "model.preset=gpt2-yyyy", &again), ERR_CONFIG);
    job_destroy(self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_sizes),       cmocka_unit_test(sizes_as_named),
        cmocka_unit_test(keys_override),         cmocka_unit_test(places_in_order),
        cmocka_unit_test(all_examples_read),     cmocka_unit_test(examples_say),
        cmocka_unit_test(cluster_example_reads), cmocka_unit_test(keys_beside_a_preset),
    };
    return cmocka_run_group_tests(tests, test_setup, test_teardown);
}
