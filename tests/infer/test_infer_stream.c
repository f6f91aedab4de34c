/* Generation and evaluation of parameters that do not fit in memory, packed and not: the bits are
 * those of parameters on the device, wherever they rest; drives are found without a word; nothing
 * stays on them; bytes that a drive changes are seen. And what a short prompt needs. */
#include <dirent.h>

#include "engine/engine.h"
#include "hf/hf.h"
#include "infer/infer.h"
#include "infer/infer_internal.h"
#include "setup/setup.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"

enum { TEXT_BYTES = 256, TOKEN_COUNT = 24, SETS_MAX = 3, WIDE_VOCAB = 36000, CALL_TOKENS = 6 };

struct place {
    const char *set[SETS_MAX];
    uint32_t set_count;
};

struct outcome {
    char text[TEXT_BYTES];
    uint64_t bytes;
    double nats;
};

/* With a format the head learns, and the matrices of blocks are packed. */
static void train_tiny(const char *family, uint32_t vocab, const char *format)
{
    static fixture_sets sets;
    static fixture_result trained;
    const fixture_model shape = {.family = family, .bf16 = true, .layers = 2, .hidden = 64};
    memset(&sets, 0, sizeof sets);
    fixture_set(&sets, "run.steps=3");
    fixture_set(&sets, "model.vocab_size=%u", vocab);
    fixture_set(&sets, "tiers.device.budget=%d", 256 << 20);
    if (format) {
        fixture_set(&sets, "train.only=[\"head\"]");
        fixture_set(&sets, "state.params=%s", format);
    }
    fixture_train_good("run", &shape, &sets, &trained);
}

static int add_text(void *user, const char *bytes, uint64_t count)
{
    struct outcome *out = user;
    assert_true(out->bytes + count <= TEXT_BYTES);
    memcpy(out->text + out->bytes, bytes, count);
    out->bytes += count;
    return 0;
}

/* 0, or the refusal's code. */
static int try_place(const struct place *at, struct outcome *out)
{
    const char *file = fixture_path("valid.txt", NULL);
    struct infer_evaluate_result result;
    const struct infer_evaluate_options asked = {.path = fixture_path("run", NULL),
                                                 .files = &file,
                                                 .file_count = 1,
                                                 .batches = 3,
                                                 .set = at->set,
                                                 .set_count = at->set_count};
    const struct infer_generate_options drawn = {.run_dir = fixture_path("run", NULL),
                                                 .prompt = "A prompt",
                                                 .prompt_bytes = 8,
                                                 .token_count = TOKEN_COUNT,
                                                 .set = at->set,
                                                 .set_count = at->set_count,
                                                 .on_token = add_text,
                                                 .user = out};
    memset(out, 0, sizeof *out);
    int rc = infer_evaluate(&asked, &result);
    if (rc < 0)
        return rc;
    out->nats = result.nats;
    return infer_generate(&drawn);
}

/* Entries of a directory; 0 where there is none. */
static int count_entries(const char *path)
{
    int count = 0;
    DIR *list = opendir(path);
    for (struct dirent *entry; list && (entry = readdir(list));)
        count += entry->d_name[0] != '.';
    if (list)
        closedir(list);
    return count;
}

static void expect_same(const struct place *at, const struct outcome *wanted)
{
    static struct outcome found;
    if (try_place(at, &found) < 0)
        fail_msg("%s: %s", at->set[0], err_text());
    assert_int_equal(found.bytes, wanted->bytes);
    assert_memory_equal(found.text, wanted->text, wanted->bytes);
    assert_memory_equal(&found.nats, &wanted->nats, sizeof found.nats);
}

/* The least budgets that refusals name suffice, for a run whose drives the caller does not name. */
static void expect_least(const struct outcome *wanted)
{
    static char near[64], far[64];
    static struct outcome found;
    snprintf(near, sizeof near, "tiers.device.budget=4096");
    snprintf(far, sizeof far, "tiers.host.budget=4096");
    const struct place least = {{near, far}, 2};
    int rc = ERR_NO_FIT;
    for (int i = 0; i < 6 && rc == ERR_NO_FIT; i++) {
        rc = try_place(&least, &found);
        uint64_t more = rc < 0 ? fixture_budget_named(err_text(), "tiers.device.budget") : 0;
        if (more)
            snprintf(near, sizeof near, "tiers.device.budget=%llu", (unsigned long long)more);
        more = rc < 0 ? fixture_budget_named(err_text(), "tiers.host.budget") : 0;
        if (more)
            snprintf(far, sizeof far, "tiers.host.budget=%llu", (unsigned long long)more);
    }
    if (rc < 0)
        fail_msg("%s %s: %s", near, far, err_text());
    print_message("fits with %s %s\n", near, far);
    static infer_model from;
    const model_window window = {.tokens = 0}; /* as it trains: what was evaluated */
    assert_ok(infer_model_begin(&from, fixture_path("run", NULL), least.set, 2));
    assert_int_equal(from.asked->tiers.nvme_count, 0);
    assert_ok(infer_model_start(&from, &window, NULL));
    assert_true(from.setup->set.home_bytes[STATE_PARAMS][TIER_NVME] > 0);
    infer_model_end(&from);
    expect_same(&least, wanted);
}

/* Returns the evaluated loss. */
static double check_family(const char *family, const char *format)
{
    static struct outcome wanted;
    static char drive[FIXTURE_PATH_BYTES + 32];
    train_tiny(family, 256, format);
    snprintf(drive, sizeof drive, "tiers.nvme=[{\"path\":\"%s\"}]", fixture_path("slabs", NULL));
    const struct place near = {{"tiers.place.params=device"}, 1};
    const struct place places[] = {
        {{"tiers.place.params=host"}, 1},
        {{"tiers.place.params=nvme", drive}, 2},
        {{"tiers.place.rules=[{\"kind\":\"params\",\"units\":\"1-2\",\"tier\":\"nvme\"}]", drive,
          "io.backend=pool"},
         3},
    };
    const int before = count_entries(fixture_path("run", "state"));
    assert_int_equal(try_place(&near, &wanted), 0);
    assert_int_equal(wanted.bytes, 8 + TOKEN_COUNT);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        expect_same(&places[i], &wanted);
    expect_least(&wanted);
    assert_int_equal(count_entries(fixture_path("slabs", NULL)), 0);
    assert_int_equal(count_entries(fixture_path("run", "state")), before);
    fixture_remove("run");
    return wanted.nats;
}

static void places_change_no_bit_of_gpt2(void **state)
{
    check_family("gpt2", NULL);
}

static void places_change_no_bit_of_llama(void **state)
{
    check_family("llama", NULL);
}

static void places_change_no_bit_of_a_packed_base(void **state)
{
    double four = check_family("llama", "nf4_double"), eight = check_family("llama", "int8_rows");
    assert_true(four != eight); /* the formats are those of the runs */
}

/* ---- units of several parts, of runs and checkpoints ---- */

static int call(infer_model *from)
{
    struct engine *engine = from->engine;
    int32_t *tokens = (int32_t *)(void *)engine_home(engine, from->setup->set.homes.tokens_host);
    for (int32_t i = 0; i < CALL_TOKENS; i++)
        tokens[i] = i * 5 + WIDE_VOCAB / 2;
    engine->position = 0;
    engine->count = CALL_TOKENS;
    engine->logits_row = CALL_TOKENS - 1;
    return engine_run(engine, PROGRAM_EVAL, 0, NULL);
}

static void open_at(infer_model *from, const char *path, const char *set)
{
    const model_window window = {.tokens = CALL_TOKENS, .cache_positions = CALL_TOKENS};
    void *logits;
    assert_ok(infer_model_begin(from, path, &set, 1));
    from->asked->micro_batch = 1;
    assert_ok(infer_model_start(from, &window, NULL));
    assert_ok(engine_result_memory(from->engine, WIDE_VOCAB * sizeof(float), &logits));
    from->engine->logits = logits;
}

static void logits_at(const char *path, const char *set, float logits[WIDE_VOCAB])
{
    static infer_model from;
    open_at(&from, path, set);
    assert_int_equal(call(&from), 0);
    memcpy(logits, from.engine->logits, WIDE_VOCAB * sizeof *logits);
    infer_model_end(&from);
}

static void changed_bytes_are_seen(const char *path, const char *set)
{
    static infer_model from;
    enum { PAGE = 4096 };
    open_at(&from, path, set);
    const struct setup *setup = from.setup;
    assert_true(setup->set.home_bytes[STATE_PARAMS][TIER_NVME] > 0);
    assert_int_equal(call(&from), 0);
    const buffer *home = &setup->set.programs[PROGRAM_EVAL].buffers[setup->set.homes.params[0]];
    unsigned char *page = aligned_alloc(PAGE, PAGE);
    assert_non_null(page);
    uint64_t at = home->offset_bytes + (home->size_bytes - 1) / PAGE * PAGE; /* its last part */
    assert_ok(io_transfer(from.engine->transport, IO_READ, at, page, PAGE));
    page[77] ^= 1;
    assert_ok(io_transfer(from.engine->transport, IO_WRITE, at, page, PAGE));
    free(page);
    assert_int_equal(call(&from), ERR_CORRUPT);
    infer_model_end(&from);
}

static void parts_are_filled_and_compared(void **state)
{
    static float wanted[WIDE_VOCAB], found[WIDE_VOCAB];
    static const char near[] = "tiers.place.params=device";
    static char drive[FIXTURE_PATH_BYTES + 96];
    train_tiny("llama", WIDE_VOCAB, NULL);
    const char *run = fixture_path("run", NULL), *hf = fixture_path("hf", NULL);
    struct hf_export_options asked = {.run_dir = run, .hf_dir = hf};
    struct hf_export_summary summary;
    assert_ok(hf_export(&asked, &summary));
    logits_at(run, near, wanted);
    snprintf(drive, sizeof drive,
             "tiers={\"nvme\":[{\"path\":\"%s\"}],\"place\":{\"params\":\"nvme\"}}",
             fixture_path("slabs", NULL));
    logits_at(run, drive, found);
    assert_memory_equal(found, wanted, sizeof wanted);
    logits_at(hf, near, found);
    assert_memory_equal(found, wanted, sizeof wanted);
    logits_at(hf, drive, found);
    assert_memory_equal(found, wanted, sizeof wanted);
    changed_bytes_are_seen(hf, drive);
    changed_bytes_are_seen(run, drive);
    fixture_remove("run");
}

/* The least budget of the device that a text of 201 tokens needs, all but the prompt generated. */
static uint64_t least_device_bytes(uint64_t prompt_bytes)
{
    static char prompt[200];
    static const char *const set[] = {"tiers.device.budget=4096"};
    memset(prompt, 'a', sizeof prompt);
    const struct infer_generate_options asked = {.run_dir = fixture_path("run", NULL),
                                                 .prompt = prompt,
                                                 .prompt_bytes = prompt_bytes,
                                                 .token_count = 201 - prompt_bytes,
                                                 .set = set,
                                                 .set_count = 1};
    assert_int_equal(infer_generate(&asked), ERR_NO_FIT);
    return fixture_budget_named(err_text(), "tiers.device.budget");
}

/* Passes have the rows of the prompt, not of the whole text. */
static void short_prompts_need_little(void **state)
{
    static fixture_sets sets;
    static fixture_result trained;
    const fixture_model shape = {.family = "gpt2", .layers = 2, .hidden = 64};
    fixture_set(&sets, "run.steps=1");
    fixture_set(&sets, "model.seq_length=256");
    fixture_train_good("run", &shape, &sets, &trained);
    uint64_t of_short = least_device_bytes(5), of_long = least_device_bytes(200);
    print_message("device bytes: %llu and %llu\n", (unsigned long long)of_short,
                  (unsigned long long)of_long);
    assert_true(of_short > 0 && of_short < of_long / 2);
    fixture_remove("run");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places_change_no_bit_of_gpt2),
        cmocka_unit_test(places_change_no_bit_of_llama),
        cmocka_unit_test(places_change_no_bit_of_a_packed_base),
        cmocka_unit_test(parts_are_filled_and_compared),
        cmocka_unit_test(short_prompts_need_little),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
