/* Training on token files through the whole engine: the same tokens in every format give the same
 * bits, and a file that does not fit the model ends the start with a sentence, before anything is
 * made. */
#include "base/rng.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"

enum { SEED = 5, TOKENS = 5000, VOCAB = 640, STEPS = 4, LLMC_INTS = 256 };

static const fixture_model shape = {.family = "gpt2", .bf16 = false, .layers = 1, .hidden = 64};

static uint32_t token_of(uint64_t idx)
{
    return (uint32_t)rng_below(SEED, 1, idx, VOCAB);
}

static void put(FILE *file, uint64_t value, int width)
{
    for (int i = 0; i < width; i++)
        fputc((int)(value >> 8 * i & 0xff), file);
}

static FILE *create(const char *name)
{
    FILE *file = fopen(fixture_path(NULL, name), "wb");
    assert_non_null(file);
    return file;
}

/* magic 0: ids alone. */
static void write_tokens(const char *name, uint32_t magic, uint32_t version, int width)
{
    FILE *file = create(name);
    if (magic) {
        uint32_t header[LLMC_INTS] = {magic, version, TOKENS};
        for (int i = 0; i < LLMC_INTS; i++)
            put(file, header[i], 4);
    }
    for (uint64_t i = 0; i < TOKENS; i++)
        put(file, token_of(i), width);
    assert_int_equal(fclose(file), 0);
}

/* NAME.idx of one document per 500 tokens, int32. */
static void write_index(const char *name)
{
    enum { DOCUMENTS = 10, LENGTH = TOKENS / DOCUMENTS };
    FILE *file = create(name);
    fwrite("MMIDIDX\0\0", 1, 9, file);
    put(file, 1, 8);
    put(file, 4, 1);
    put(file, DOCUMENTS, 8);
    put(file, DOCUMENTS + 1, 8);
    for (uint64_t i = 0; i < DOCUMENTS; i++)
        put(file, LENGTH, 4);
    for (uint64_t i = 0; i < DOCUMENTS; i++)
        put(file, 4 * LENGTH * i, 8);
    for (uint64_t i = 0; i <= DOCUMENTS; i++)
        put(file, i, 8);
    assert_int_equal(fclose(file), 0);
}

static void train_on(const char *file, const char *format, uint64_t vocab, fixture_result *result)
{
    fixture_sets sets = {.count = 0};
    fixture_set(&sets, "data.train=[\"%s\"]", fixture_path(NULL, file));
    fixture_set(&sets, "data.valid=[\"%s\"]", fixture_path(NULL, file));
    fixture_set(&sets, "data.format=%s", format);
    fixture_set(&sets, "model.vocab_size=%llu", (unsigned long long)vocab);
    fixture_set(&sets, "run.steps=%d", STEPS);
    fixture_run("tokens", &shape, &sets, NULL, result);
}

static void every_format_gives_the_same_bits(void **state)
{
    static fixture_result first, other;
    write_tokens("v1.bin", 20240520, 1, 2);
    write_tokens("v7.bin", 20240801, 7, 4);
    write_tokens("ids16", 0, 0, 2);
    write_tokens("pair.bin", 0, 0, 4);
    write_index("pair.idx");
    static const struct {
        const char *file, *format;
    } runs[] = {{"v1.bin", "auto"}, {"v1.bin", "llmc"},   {"v7.bin", "auto"}, {"ids16", "u16"},
                {"pair", "auto"},   {"pair", "megatron"}, {"pair.bin", "u32"}};
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        fixture_result *result = i == 0 ? &first : &other;
        train_on(runs[i].file, runs[i].format, VOCAB, result);
        if (result->rc < 0)
            fail_msg("%s as %s: %s", runs[i].file, runs[i].format, result->error);
        assert_int_equal(result->step_count, STEPS);
        /* nats a token: a model that knows nothing is at ln 640 = 6.46 */
        assert_true(result->losses[0] > 6.0 && result->losses[0] < 7.0);
        if (i > 0)
            fixture_assert_same(&first, &other);
        fixture_remove("tokens");
    }
}

static void bad_files_end_the_start(void **state)
{
    static fixture_result result;
    write_tokens("v1.bin", 20240520, 1, 2);
    write_tokens("raw.bin", 0, 0, 2);
    static const struct {
        const char *file, *format;
        uint64_t vocab;
        const char *word;
    } cases[] = {
        {"v1.bin", "auto", 600, "model.vocab_size is 600"},
        {"raw.bin", "auto", VOCAB, "set data.format"},
        {"v1.bin", "u16", VOCAB, "header of an llm.c token file"},
        {"raw.bin", "megatron", VOCAB, "raw.idx"},
        {"none.bin", "llmc", VOCAB, "No such file"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        train_on(cases[i].file, cases[i].format, cases[i].vocab, &result);
        assert_int_equal(result.rc, ERR_INPUT);
        if (!strstr(result.error, cases[i].word))
            fail_msg("no \"%s\" in: %s", cases[i].word, result.error);
        assert_false(fixture_exists(fixture_path("tokens", NULL)));
    }
}

int main(void)
{
    printf("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_gives_the_same_bits),
        cmocka_unit_test(bad_files_end_the_start),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
