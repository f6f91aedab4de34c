/* See train_fixture.h. */
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/rng.h"
#include "setup/setup.h"
#include "setup/summary.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"
#include "tiers/device.h"
#include "train/train.h"

#define STREAM_TEXT 0x74657874u

char fixture_dir[FIXTURE_PATH_BYTES];

static int remove_entry(const char *path, const struct stat *status, int type, struct FTW *place)
{
    return remove(path);
}

/* Letters [first, first + bytes) of a text that can be learned: a walk over 64 letters with some
 * noise. */
static void put_text(FILE *file, uint64_t seed, uint64_t first, uint64_t bytes)
{
    unsigned letter = 0;
    for (uint64_t i = 0; i < first + bytes; i++) {
        if (i >= first)
            fputc((int)(' ' + letter), file);
        letter = (unsigned)((5 * letter + 17 + rng_below(seed, STREAM_TEXT, i, 4)) % 64);
    }
}

static int write_text(const char *name, uint64_t seed, uint64_t bytes)
{
    FILE *file = fopen(fixture_path(NULL, name), "wb");
    if (!file)
        return -1;
    put_text(file, seed, 0, bytes);
    return fclose(file);
}

const char *fixture_rows(const char *name, uint64_t first, uint64_t rows, uint64_t columns)
{
    const char *path = fixture_path(NULL, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fprintf(file, "\x93NUMPY%c%c%c%c", 1, 0, 118, 0); /* version 1.0, a header of 118 bytes */
    int used = fprintf(file, "{'descr': '|u1', 'fortran_order': False, 'shape': (%llu, %llu), }",
                       (unsigned long long)rows, (unsigned long long)columns);
    fprintf(file, "%*s", 118 - used, "\n");
    put_text(file, 11, first, rows * columns);
    assert_int_equal(fclose(file), 0);
    return path;
}

int fixture_setup(void **state)
{
    log_set_level(LOG_WARN);
    char reason[DEVICE_TEXT_BYTES];
    const char *backend = getenv("SLUICE_TEST_BACKEND");
    if (backend && strcmp(backend, "cuda") == 0 && device_count(reason) == 0) {
        printf("skipped: %s\n", reason);
        exit(77);
    }
    char cwd[FIXTURE_PATH_BYTES - 32];
    if (!getcwd(cwd, sizeof cwd))
        return -1;
    snprintf(fixture_dir, sizeof fixture_dir, "%s/test_train.XXXXXX", cwd);
    if (!mkdtemp(fixture_dir))
        return -1;
    fixture_rows("rows.npy", 0, 600, 23);
    return write_text("train.txt", 11, FIXTURE_TRAIN_BYTES) ||
                   write_text("valid.txt", 12, FIXTURE_TRAIN_BYTES / 4)
               ? -1
               : 0;
}

int fixture_teardown(void **state)
{
    return nftw(fixture_dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

const char *fixture_path(const char *name, const char *file)
{
    static char paths[4][2 * FIXTURE_PATH_BYTES];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s%s%s%s%s", fixture_dir, name ? "/" : "", name ? name : "",
             file && file[0] != '.' ? "/" : "", file ? file : "");
    return path;
}

bool fixture_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

void fixture_remove(const char *name)
{
    static const char *const ends[] = {NULL, ".nvme"};
    for (int i = 0; i < 2; i++) {
        const char *path = fixture_path(name, ends[i]);
        if (fixture_exists(path))
            assert_int_equal(nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS), 0);
    }
}

void fixture_set(fixture_sets *sets, const char *format, ...)
{
    assert_true(sets->count < FIXTURE_SETS_MAX);
    va_list args;
    va_start(args, format);
    int length = vsnprintf(sets->text[sets->count++], sizeof sets->text[0], format, args);
    va_end(args);
    assert_true(length > 0 && (size_t)length < sizeof sets->text[0]);
}

static void write_job(const char *name, const fixture_model *shape)
{
    bool has_experts = strcmp(shape->family, "mixtral") == 0;
    bool has_groups = has_experts || strcmp(shape->family, "llama") == 0;
    bool is_bert = strcmp(shape->family, "bert") == 0;
    FILE *file = fopen(fixture_path(name, ".json"), "w");
    assert_non_null(file);
    fprintf(file,
            "{\n\"model\": {\"family\": \"%s\", \"num_layers\": %u, \"hidden_size\": %u, "
            "\"num_heads\": 4, \"num_kv_heads\": %d, \"vocab_size\": 640, \"seq_length\": 32%s},\n",
            shape->family, shape->layers, shape->hidden, has_groups ? 2 : 4,
            has_experts ? ", \"num_experts\": 5, \"num_experts_per_tok\": 2, \"expert_ffn_size\": "
                          "48, \"experts_per_unit\": 2, \"norm_topk_prob\": true"
                        : "");
    fprintf(
        file,
        "\"data\": {\"train\": [\"%s/train.txt\"], \"valid\": [\"%s/valid.txt\"], \"seed\": 3%s},\n"
        "\"run\": {\"dir\": \"%s/%s\", \"steps\": 20, \"seed\": 7, \"eval_batches\": 2, "
        "\"commit_every\": 3},\n",
        fixture_dir, fixture_dir, is_bert ? ", \"mask_token\": 255" : "", fixture_dir, name);
    fprintf(
        file,
        "\"device\": {\"backend\": \"cpu\", \"threads\": 2},\n"
        "\"tiers\": {\"device\": {\"budget\": %d}, \"host\": {\"budget\": %d},\n"
        "  \"nvme\": [{\"path\": \"%s/%s.nvme\", \"budget\": \"256MiB\"}],\n"
        "  \"place\": {\"params\": \"device\", \"grads\": \"device\", \"optimizer\": \"device\", "
        "\"activations\": \"device\"}},\n",
        FIXTURE_BUDGET_BYTES, FIXTURE_BUDGET_BYTES, fixture_dir, name);
    fprintf(
        file,
        "\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2,\n"
        "\"gradient_clipping\": 1.0, \"bf16\": {\"enabled\": %s},\n"
        "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 2e-3, \"betas\": [0.9, 0.95], "
        "\"eps\": 1e-8, \"weight_decay\": 0.1}},\n"
        "\"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": {\"total_num_steps\": 20, "
        "\"warmup_num_steps\": 4, \"cos_min_ratio\": 0.1}}\n}\n",
        shape->bf16 ? "true" : "false");
    assert_int_equal(fclose(file), 0);
}

job *fixture_job(const char *name, const fixture_model *shape, const fixture_sets *sets)
{
    return fixture_job_ranks(name, shape, sets, 1);
}

job *fixture_job_ranks(const char *name, const fixture_model *shape, const fixture_sets *sets,
                       uint32_t world)
{
    job *asked;
    int rc = fixture_read_job(name, shape, sets, world, &asked);
    if (rc < 0)
        fail_msg("%s: %s", err_name(rc), err_text());
    return asked;
}

int fixture_read_job(const char *name, const fixture_model *shape, const fixture_sets *sets,
                     uint32_t world, job **out)
{
    const char *texts[FIXTURE_SETS_MAX];
    uint32_t count = sets ? sets->count : 0;
    for (uint32_t i = 0; i < count; i++)
        texts[i] = sets->text[i];
    const char *backend = getenv("SLUICE_TEST_BACKEND");
    char backend_text[64];
    snprintf(backend_text, sizeof backend_text, "device.backend=%s", backend ? backend : "cpu");
    assert_true(count < FIXTURE_SETS_MAX);
    memmove(texts + 1, texts, count++ * sizeof *texts); /* first: a test may say otherwise */
    texts[0] = backend_text;
    if (getenv("SLUICE_TEST_PARANOID") && count < FIXTURE_SETS_MAX)
        texts[count++] = "run.paranoid=true";
    write_job(name, shape);
    return job_read(fixture_path(name, ".json"), NULL, texts, count, world, out);
}

json_t *fixture_json(const char *path)
{
    json_error_t error;
    json_t *found = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!found)
        fail_msg("%s:%d: %s", path, error.line, error.text);
    return found;
}

json_t *fixture_metrics(const char *name)
{
    char line[8192];
    json_t *lines = json_array();
    FILE *file = fopen(fixture_path(name, "metrics.jsonl"), "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        json_t *one = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        if (!one)
            fail_msg("not a line of JSON: %s", line);
        json_array_append_new(lines, one);
    }
    fclose(file);
    return lines;
}

void fixture_read_steps(const char *name, fixture_result *result)
{
    json_t *lines = fixture_metrics(name), *line;
    size_t i;
    json_array_foreach(lines, i, line)
    {
        if (json_object_get(line, "event"))
            continue;
        assert_true(result->step_count < FIXTURE_STEPS_MAX);
        uint64_t at = result->step_count++;
        /* Steps follow each other without a gap, also across a resume. */
        assert_int_equal(json_integer_value(json_object_get(line, "step")), at + 1);
        const char *bits = json_string_value(json_object_get(line, "loss_bits"));
        assert_non_null(bits);
        result->loss_bits[at] = (uint32_t)strtoul(bits, NULL, 16);
        result->losses[at] = json_number_value(json_object_get(line, "loss"));
        result->rates[at] = json_number_value(json_object_get(line, "lr"));
        result->skipped[at] = json_is_true(json_object_get(line, "skipped"));
    }
    json_decref(lines);
}

struct watcher {
    const fixture_call *call;
    fixture_result *result;
    volatile sig_atomic_t stop;
};

static void keep_plan(void *user, const struct setup_summary *plan)
{
    struct watcher *watcher = user;
    watcher->result->plan = *plan;
    watcher->result->planned = true;
}

static void watch_step(void *user, const struct train_progress *progress)
{
    struct watcher *watcher = user;
    if (watcher->call->on_step)
        watcher->call->on_step(progress->step);
    if (progress->step == watcher->call->stop_after)
        watcher->stop = 1;
}

void fixture_train(const job *asked, const fixture_call *call, fixture_result *result)
{
    memset(result, 0, sizeof *result);
    struct watcher watcher = {.call = call, .result = result};
    if (call->fresh && call->name)
        fixture_remove(call->name);
    const struct setup_test test = {
        .store = call->store,
        .norm_part_bytes = call->norm_part_bytes,
        .faults = call->faults,
        .simulates_drives = call->simulates_drives || getenv("SLUICE_TEST_SIMULATED"),
        .on_end = call->hashes_nothing ? NULL : fixture_hash_weights,
        .user = &result->weights_hash,
    };
    struct train_options options = {.job = asked,
                                    .test = &test,
                                    .comm = call->comm,
                                    .fresh = call->fresh,
                                    .from = call->from,
                                    .stop = &watcher.stop,
                                    .on_plan = keep_plan,
                                    .on_step = watch_step,
                                    .user = &watcher};
    result->rc = train_run(&options, &result->summary);
    if (result->rc < 0)
        snprintf(result->error, sizeof result->error, "%s", err_text());
    if ((result->rc == 0 || result->rc == ERR_STOPPED) && call->name)
        fixture_read_steps(call->name, result);
}

int fixture_run(const char *name, const fixture_model *shape, const fixture_sets *sets,
                const fixture_call *call, fixture_result *result)
{
    const fixture_call plain = {.name = name};
    job *asked = fixture_job(name, shape, sets);
    fixture_train(asked, call ? call : &plain, result);
    job_destroy(asked);
    return result->rc;
}

static void run_until(const char *name, const fixture_model *shape, const fixture_sets *sets,
                      uint64_t stop_after, fixture_result *result)
{
    fixture_call call = {.name = name, .stop_after = stop_after};
    int rc = fixture_run(name, shape, sets, &call, result);
    if (rc != (stop_after ? ERR_STOPPED : 0))
        fail_msg("%s: %s: %s", name, err_name(rc), result->error);
}

void fixture_train_stop(const char *name, const fixture_model *shape, const fixture_sets *sets,
                        uint64_t stop_after, fixture_result *result)
{
    assert_true(stop_after > 0);
    run_until(name, shape, sets, stop_after, result);
}

void fixture_train_good(const char *name, const fixture_model *shape, const fixture_sets *sets,
                        fixture_result *result)
{
    run_until(name, shape, sets, 0, result);
}

void fixture_assert_same(const fixture_result *a, const fixture_result *b)
{
    assert_int_equal(a->step_count, b->step_count);
    for (uint64_t i = 0; i < a->step_count; i++)
        if (a->loss_bits[i] != b->loss_bits[i])
            fail_msg("step %llu: loss %08x and %08x", (unsigned long long)i + 1, a->loss_bits[i],
                     b->loss_bits[i]);
    assert_true(a->weights_hash != 0);
    if (a->weights_hash != b->weights_hash)
        fail_msg("equal losses, but weights %016llx and %016llx",
                 (unsigned long long)a->weights_hash, (unsigned long long)b->weights_hash);
}

uint64_t fixture_budget_named(const char *error, const char *key)
{
    const char *fits = strstr(error, "fits with ");
    const char *at = fits ? strstr(fits, key) : NULL;
    return at && at[strlen(key)] == '=' ? strtoull(at + strlen(key) + 1, NULL, 10) : 0;
}

void fixture_tighten(const char *name, const fixture_model *shape, fixture_sets *sets)
{
    enum { NO_FIT_BYTES = 65536 };
    static fixture_sets small;
    small = *sets;
    fixture_set(&small, "tiers.device.budget=%d", NO_FIT_BYTES);
    fixture_set(&small, "tiers.host.budget=%d", NO_FIT_BYTES);
    job *asked = fixture_job(name, shape, &small);
    struct setup_summary plan;
    assert_int_equal(setup_plan_on(asked, &(struct setup_plan_options){0}, &plan), ERR_NO_FIT);
    job_destroy(asked);
    static const char *const keys[] = {"tiers.device.budget", "tiers.host.budget"};
    for (int i = 0; i < 2; i++) {
        uint64_t bytes = fixture_budget_named(err_text(), keys[i]);
        if (bytes > 0) /* else NO_FIT_BYTES is enough of this tier */
            fixture_set(sets, "%s=%llu", keys[i], (unsigned long long)bytes);
    }
}

/* ---- reference curves ---- */

#define STREAM_CORPUS 0x636f7270757300u

json_t *curve_open(const char *name)
{
    json_t *curves = fixture_json(FIXTURE_DIR "/curves.json");
    json_t *curve = json_incref(curve_member(curves, name));
    json_decref(curves);
    return curve;
}

json_t *curve_member(const json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    if (value == NULL)
        fail_msg("the fixture has no key %s", key);
    return value;
}

double curve_number(const json_t *object, const char *key)
{
    return json_number_value(curve_member(object, key));
}

uint64_t curve_integer(const json_t *object, const char *key)
{
    return (uint64_t)json_integer_value(curve_member(object, key));
}

static void write_spikes(const json_t *fixture, FILE *file)
{
    const json_t *source = curve_member(fixture, "corpus"), *begin;
    const json_t *spikes = json_object_get(fixture, "spikes");
    size_t i;
    json_array_foreach(spikes, i, begin)
    {
        assert_int_equal(fseek(file, (long)json_integer_value(begin), SEEK_SET), 0);
        for (uint64_t k = 0; k < curve_integer(source, "spike_bytes"); k++)
            fputc((int)curve_integer(source, "spike_byte"), file);
    }
}

void curve_write_corpus(const json_t *fixture, const char *path)
{
    const json_t *source = curve_member(fixture, "corpus");
    uint64_t count = curve_integer(source, "tokens"), alphabet = curve_integer(source, "alphabet");
    uint64_t seed = curve_integer(fixture, "seed"), token = 0;
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    for (uint64_t i = 0; i < count; i++) {
        fputc((int)token, file);
        token = (5 * token + 17 + rng_below(seed, STREAM_CORPUS, i, 3)) % alphabet;
    }
    write_spikes(fixture, file);
    assert_int_equal(fclose(file), 0);
}

/* The job of the fixture's keys; jansson takes the reference of each value. */
static json_t *make_job(json_t *fixture, const char *corpus, const char *name)
{
    const json_t *training = curve_member(fixture, "training");
    json_error_t error;
    json_t *made = json_pack_ex(
        &error, 0,
        "{s:O, s:{s:[s], s:s, s:O}, s:{s:s, s:O, s:O}, s:O, s:O, s:O, s:{s:s, s:{s:O, s:O, s:O, "
        "s:O}}, "
        "s:{s:s, s:{s:O, s:O, s:s, s:O, s:O}}}",
        "model", curve_member(fixture, "model"), "data", "train", corpus, "format", "text",
        /* letters 0 to 255 are no UTF-8 */ "seed", curve_member(fixture, "seed"), "run", "dir",
        fixture_path(name, NULL), "steps", curve_member(fixture, "steps"), "seed",
        curve_member(fixture, "seed"), "train_micro_batch_size_per_gpu",
        curve_member(fixture, "micro_batch"), "gradient_accumulation_steps",
        curve_member(fixture, "accumulation"), "gradient_clipping",
        curve_member(training, "gradient_clipping"), "optimizer", "type", "AdamW", "params", "lr",
        curve_member(training, "learning_rate"), "betas", curve_member(training, "betas"), "eps",
        curve_member(training, "epsilon"), "weight_decay", curve_member(training, "weight_decay"),
        "scheduler", "type", "WarmupCosineLR", "params", "total_num_steps",
        curve_member(fixture, "steps"), "warmup_num_steps", curve_member(training, "warmup_steps"),
        "warmup_type", "linear", "warmup_min_ratio", curve_member(training, "warmup_min_ratio"),
        "cos_min_ratio", curve_member(training, "cos_min_ratio"));
    if (!made)
        fail_msg("the job cannot be made: %s", error.text);
    json_t *tiers = json_pack("{s:{s:s}, s:{s:s}, s:[{s:s, s:s}], s:{s:s, s:s, s:s, s:s, "
                              "s:[{s:s, s:s, s:s}, {s:s, s:s, s:s}]}}",
                              "device", "budget", "32MiB", "host", "budget", "32MiB", "nvme",
                              "path", fixture_path(name, ".nvme"), "budget", "64MiB", "place",
                              "params", "nvme", "grads", "host", "optimizer", "nvme", "activations",
                              "host", "rules", "units", "1", "kind", "optimizer", "tier", "host",
                              "units", "0", "kind", "grads", "tier", "nvme");
    assert_non_null(tiers);
    json_object_set_new(made, "tiers", tiers);
    return made;
}

job *curve_job(json_t *fixture, const char *corpus, const char *name, const char *const *sets,
               uint32_t set_count)
{
    json_t *made = make_job(fixture, corpus, name);
    assert_int_equal(json_dump_file(made, fixture_path(name, ".json"), JSON_INDENT(1)), 0);
    json_decref(made);
    job *asked;
    assert_ok(job_read(fixture_path(name, ".json"), NULL, sets, set_count, 1, &asked));
    return asked;
}
