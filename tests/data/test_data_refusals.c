/* Token files that are not as they should be are refused with a sentence that names file and fault;
 * damaged headers never get through. */
#include "tests/data/token_files.h"

enum { FUZZ_TURNS = 4000 };

/* ---- refusals ---- */

static void refuse(const char *path, enum data_format format, uint64_t vocab, const char *word)
{
    corpus *source;
    assert_int_equal(corpus_open_as(&path, 1, format, vocab, &source), ERR_INPUT);
    assert_null(source);
    if (!strstr(err_text(), word))
        fail_msg("no \"%s\" in: %s", word, err_text());
    assert_non_null(strstr(err_text(), directory));
    assert_null(strchr(err_text(), '\n'));
}

static void cut(const char *path, int64_t change)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    long length = ftell(file);
    fclose(file);
    assert_int_equal(truncate(path, length + change), 0);
}

static void bad_llmc_files(void **state)
{
    const char *path = write_llmc("a.bin", 0, 10, VOCAB, false);
    cut(path, -1);
    refuse(path, DATA_AUTO, VOCAB, "10 tokens of 2 bytes follow its header, which makes 1044");
    refuse(path, DATA_AUTO, VOCAB, "truncated");
    cut(path, 3);
    refuse(path, DATA_LLMC, VOCAB, "has 1046: it is no whole llm.c token file");
    assert_int_equal(truncate(path, 700), 0);
    refuse(path, DATA_AUTO, VOCAB, "700 bytes, fewer than the 1024");
    assert_int_equal(truncate(path, 5), 0);
    refuse(path, DATA_AUTO, VOCAB, "5 bytes, fewer than the 1024");
    assert_int_equal(truncate(path, 0), 0);
    refuse(path, DATA_AUTO, VOCAB, "empty");
    path = write_llmc("a.bin", 0, 10, VOCAB, true);
    patch(path, 4, 1, 4);
    refuse(path, DATA_AUTO, VOCAB, "version 1 with the magic 20240801, whose version should be 7");
    path = write_llmc("a.bin", 0, 0, VOCAB, false);
    refuse(path, DATA_AUTO, VOCAB, "without tokens");
    path = write_llmc("a.bin", 0, 10, VOCAB, false);
    patch(path, 0, 0x88d83401, 4);
    refuse(path, DATA_AUTO, VOCAB, "big-endian");
    refuse(path, DATA_LLMC, VOCAB, "big-endian");
    patch(path, 0, 20240522, 4);
    refuse(path, DATA_LLMC, VOCAB, "evaluation file");
    patch(path, 0, 20240326, 4);
    refuse(path, DATA_LLMC, VOCAB, "checkpoint");
    patch(path, 0, 1234567, 4);
    refuse(path, DATA_LLMC, VOCAB, "begins with 1234567, which is no magic number");
    refuse(path, DATA_AUTO, VOCAB, "the format of");
    refuse(path, DATA_AUTO, VOCAB, "data.format to u16 or u32");
    patch(path, 8, UINT32_MAX, 4);
    patch(path, 0, 20240520, 4);
    refuse(path, DATA_AUTO, VOCAB, "4294967295 tokens");
    remove_all();
}

static void bad_raw_files(void **state)
{
    const char *path = write_ids("raw", 0, 11, VOCAB, 2);
    refuse(path, DATA_U32, VOCAB, "22 bytes, which is not a multiple of 4");
    cut(path, -1);
    refuse(path, DATA_U16, VOCAB, "21 bytes, which is not a multiple of 2");
    refuse(in_directory("missing"), DATA_U16, VOCAB, "No such file");
    refuse(directory, DATA_U16, VOCAB, "directory");
    path = write_llmc("a.bin", 0, 10, VOCAB, false);
    refuse(path, DATA_U16, UINT16_MAX + 1, "header of an llm.c token file");
    refuse(path, DATA_U32, 0, "set it to llmc or auto");
    struct bytes *out = fresh(0);
    memcpy(out->data, "\x93NUMPY\x01\x00v\x00", 10);
    out->count = 128;
    path = store("tokens.npy", out);
    refuse(path, DATA_AUTO, VOCAB, "it is no dictionary");
    refuse(path, DATA_U16, VOCAB, "set data.format to npy or auto");
    remove_all();
}

static void bad_megatron_files(void **state)
{
    enum { COUNT = 500 };
    const char *path = write_megatron("pair", 0, COUNT, VOCAB, 4);
    const char *bin = in_directory("pair.bin"), *idx = in_directory("pair.idx");
    cut(bin, -4);
    refuse(path, DATA_AUTO, VOCAB, "describes 2000 bytes of tokens or more, but");
    refuse(path, DATA_AUTO, VOCAB, "has 1996: it is truncated, or they are not a pair");
    cut(bin, 5);
    refuse(path, DATA_AUTO, VOCAB, "has 2001: they are not a pair");
    cut(bin, -1);
    cut(idx, -8);
    refuse(path, DATA_AUTO, VOCAB, "do not match that: it is truncated or damaged");
    assert_int_equal(truncate(idx, 20), 0);
    refuse(path, DATA_MEGATRON, VOCAB, "20 bytes, fewer than the 34");
    assert_int_equal(truncate(idx, 0), 0);
    refuse(path, DATA_MEGATRON, VOCAB, "empty");
    assert_int_equal(unlink(idx), 0);
    refuse(path, DATA_MEGATRON, VOCAB, "both are needed");
    refuse(idx, DATA_MEGATRON, VOCAB, "there is no");
    refuse(bin, DATA_AUTO, VOCAB, "no .idx of Megatron lies beside it");
    static const struct {
        uint64_t offset, value;
        unsigned width;
        const char *word;
    } patches[] = {
        {0, 0, 1, "MMIDIDX"},
        {9, 2, 8, "version 2; only version 1"},
        {9, (uint64_t)1 << 56, 8, "big-endian"},
        {17, 7, 1, "float32"},
        {17, 6, 1, "float64"},
        {17, 0, 1, "token type 0"},
        {17, 9, 1, "token type 9; 1 to 8 are known"},
        {17, 5, 1, "puts sequence"},
        {18, UINT64_MAX, 8, "truncated or damaged"},
        {18, UINT64_MAX / 12, 8, "truncated or damaged"},
        {26, UINT64_MAX / 8 + 1, 8, "truncated or damaged"},
        {34, UINT64_MAX, 4, "a length of -1"},
        {34, 1000000, 4, "describes"},
    };
    for (size_t i = 0; i < sizeof patches / sizeof patches[0]; i++) {
        path = write_megatron("pair", 0, COUNT, VOCAB, 4);
        idx = in_directory("pair.idx");
        patch(idx, patches[i].offset, patches[i].value, patches[i].width);
        refuse(path, DATA_MEGATRON, VOCAB, patches[i].word);
    }
    remove_all();
}

/* A small index written by hand, for cases that random ones do not meet. */
static void bad_places_and_documents(void **state)
{
    static const struct {
        uint64_t lengths[3], places[3], documents[3];
        uint64_t mode_bytes;
        const char *word; /* NULL: good */
    } cases[] = {
        {{4, 0, 6}, {0, 8, 8}, {0, 1, 3}, 0, NULL},
        {{4, 0, 6}, {0, 8, 8}, {0, 0, 0}, 0, NULL},
        {{4, 0, 6}, {0, 8, 10}, {0, 1, 3}, 0, "puts sequence 2 at byte 10 of the .bin"},
        {{4, 0, 6}, {2, 10, 10}, {0, 1, 3}, 0, "puts sequence 0 at byte 2"},
        {{4, 0, 6}, {0, UINT64_MAX, 8}, {0, 1, 3}, 0, "puts sequence 1 at byte -1"},
        {{4, 0, 6}, {0, 8, 8}, {0, 2, 1}, 0, "document 2 begin with sequence 1, and"},
        {{4, 0, 6}, {0, 8, 8}, {0, 1, 4}, 0, "document 2 begin with sequence 4"},
        {{4, 0, 6}, {0, 8, 8}, {UINT64_MAX, 1, 3}, 0, "document 0 begin with sequence -1"},
        {{4, 0, 6}, {0, 8, 8}, {0, 1, 3}, 3, "multimodal"},
        {{0, 0, 0}, {0, 0, 0}, {0, 1, 3}, 0, "no tokens"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct bytes *out = fresh(1);
        memcpy(out->data, "MMIDIDX\0\0", 9);
        out->count = 9;
        put(out, 1, 8);
        put(out, 8, 1);
        put(out, 3, 8);
        put(out, 3, 8);
        for (int i = 0; i < 3; i++)
            put(out, cases[c].lengths[i], 4);
        for (int i = 0; i < 3; i++)
            put(out, cases[c].places[i], 8);
        for (int i = 0; i < 3; i++)
            put(out, cases[c].documents[i], 8);
        put(out, 0, (unsigned)cases[c].mode_bytes);
        store("hand.idx", out);
        const char *path = write_ids("hand.bin", 0, 10, VOCAB, 2);
        if (cases[c].word) {
            refuse(path, DATA_AUTO, VOCAB, cases[c].word);
            continue;
        }
        corpus *source = open_good(&path, 1, DATA_AUTO, VOCAB);
        expect_tokens(source, 10, VOCAB);
        corpus_close(source);
    }
    struct bytes *out = fresh(1);
    memcpy(out->data, "TNTIDX\0\0", 8);
    out->count = 100;
    const char *path = store("hand.idx", out);
    refuse(path, DATA_AUTO, VOCAB, "oldest Megatron format");
    refuse(path, DATA_MEGATRON, VOCAB, "oldest format");
    remove_all();
}

static void mixtures_are_refused(void **state)
{
    const char *paths[2] = {write_llmc("a.bin", 0, 10, VOCAB, false),
                            write_ids("b.txt", 0, 10, 100, 1)};
    corpus *source;
    assert_error(corpus_open_as(paths, 2, DATA_AUTO, VOCAB, &source), ERR_INPUT,
                 "a.bin is a token file and");
    assert_non_null(strstr(err_text(), "b.txt is text"));
    assert_int_equal(corpus_open_as(paths, 0, DATA_AUTO, VOCAB, &source), ERR_INPUT);
    assert_int_equal(corpus_open_as(paths, 1, DATA_FORMAT_COUNT, 1, &source), -EINVAL);
    remove_all();
}

/* ---- the vocabulary ---- */

static void tokens_outside_the_vocabulary(void **state)
{
    const char *path = write_ids("raw", 0, TOKENS, VOCAB, 4);
    patch(path, 4 * 1234, VOCAB, 4);
    refuse(path, DATA_U32, VOCAB, "token 1234 (from 0) of");
    refuse(path, DATA_U32, VOCAB, "is 50257, but model.vocab_size is 50257");
    corpus_close(open_good(&path, 1, DATA_U32, VOCAB + 1));
    patch(path, 4 * 1234, UINT32_MAX, 4);
    refuse(path, DATA_U32, 0, "is 4294967295");
    path = write_megatron("pair", 0, TOKENS, VOCAB, 4);
    patch(in_directory("pair.bin"), 4 * 7, UINT32_MAX, 4);
    refuse(path, DATA_AUTO, VOCAB, "token 7 (from 0)");
    refuse(path, DATA_AUTO, 0, "is -1");
    path = write_megatron("pair", 0, TOKENS, VOCAB, 5);
    patch(in_directory("pair.bin"), 8 * 7, (uint64_t)1 << 32, 8);
    refuse(path, DATA_AUTO, 0, "is 4294967296");
    path = write_llmc("a.bin", 0, TOKENS, VOCAB, false);
    refuse(path, DATA_AUTO, 5000, "model.vocab_size is 5000");
    remove_all();
}

/* ---- random damage ---- */

/* The file is opened or refused. If it is opened, all tokens are there and within the vocabulary,
 * or reading them fails. */
static bool try_open(const char *path, enum data_format format)
{
    static int32_t tokens[1 << 16];
    corpus *source;
    int rc = corpus_open_as(&path, 1, format, VOCAB, &source);
    if (rc < 0) {
        assert_error(rc, ERR_INPUT, directory);
        return false;
    }
    uint64_t count = corpus_token_count(source);
    assert_true(count > 0 && count <= 1 << 16);
    assert_int_equal(corpus_read(source, 0, count, tokens), 0);
    for (uint64_t i = 0; i < count; i++)
        assert_true(tokens[i] >= 0 && tokens[i] < VOCAB);
    corpus_close(source);
    return true;
}

static void damage(struct bytes *out, uint64_t turn, uint64_t header_bytes)
{
    static const uint64_t values[] = {0,         1,          0x7f,      0x80,       0xff,
                                      INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX, 34};
    uint64_t kind = rng_below(SEED, 20, turn, 4);
    uint64_t room = size_min(header_bytes, out->count);
    uint64_t at = room > 0 ? rng_below(SEED, 21, turn, room) : 0;
    if (kind == 0) {
        out->data[at] ^= (unsigned char)(1u << rng_below(SEED, 22, turn, 8));
    } else if (kind == 1) {
        out->data[at] = (unsigned char)rng_u64(SEED, 23, turn);
    } else if (kind == 2) {
        uint64_t value = values[rng_below(SEED, 24, turn, sizeof values / sizeof values[0])];
        size_t width = size_min(8, out->count - at);
        memcpy(out->data + at, &value, width);
    } else {
        out->count = rng_below(SEED, 25, turn, out->count + 1);
    }
}

static void random_damage(void **state)
{
    enum { COUNT = 300 };
    uint64_t opened = 0;
    for (uint64_t turn = 0; turn < FUZZ_TURNS; turn++) {
        struct bytes *out = fresh(0);
        static const unsigned codes[] = {1, 3, 4, 5, 8};
        if (turn % 2) {
            put_llmc_header(out, turn % 4 == 1 ? 20240520 : 20240801, turn % 4 == 1 ? 1 : 7, COUNT);
            for (uint64_t i = 0; i < COUNT; i++)
                put(out, (uint64_t)token_of(i, VOCAB), turn % 4 == 1 ? 2 : 4);
            for (uint64_t i = 0; i <= rng_below(SEED, 30, turn, 3); i++)
                damage(out, 10 * turn + i, rng_below(SEED, 31, turn, 2) ? 12 : 1024);
            const char *path = store("fuzz.bin", out);
            opened += try_open(path, DATA_AUTO);
            opened += try_open(path, DATA_LLMC);
            unlink(path);
        } else {
            unsigned code = codes[turn / 2 % 5];
            make_index(out, COUNT, code);
            for (uint64_t i = 0; i <= rng_below(SEED, 30, turn, 3); i++)
                damage(out, 10 * turn + i, rng_below(SEED, 31, turn, 2) ? 34 : 1u << 20);
            const char *idx = store("fuzz.idx", out);
            const char *bin =
                write_ids("fuzz.bin", 0, COUNT, code == 1 ? 256 : 30000, width_of(code));
            opened += try_open(bin, DATA_MEGATRON);
            unlink(idx);
            unlink(bin);
        }
    }
    printf("%llu of %d damaged files could be read\n", (unsigned long long)opened, FUZZ_TURNS);
    assert_true(opened > 100 && opened < FUZZ_TURNS);
    remove_all();
}

int main(void)
{
    printf("seed %d\n", SEED);
    log_set_level(LOG_QUIET);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_llmc_files),       cmocka_unit_test(bad_raw_files),
        cmocka_unit_test(bad_megatron_files),   cmocka_unit_test(bad_places_and_documents),
        cmocka_unit_test(mixtures_are_refused), cmocka_unit_test(tokens_outside_the_vocabulary),
        cmocka_unit_test(random_damage),
    };
    return cmocka_run_group_tests(tests, directory_make, directory_remove);
}
