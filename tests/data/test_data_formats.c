/* Token files: the same tokens in every format give the same windows. */
#include "tests/data/token_files.h"

enum { WINDOW = 64 };

/* ---- the same tokens ---- */

/* A hash of the first windows of two epochs. */
static uint64_t windows_of(corpus *source)
{
    sampler windows;
    int32_t inputs[WINDOW], targets[WINDOW];
    uint64_t hash = 0;
    assert_int_equal(sampler_init(&windows, source, 3, WINDOW, SHUFFLE_WINDOWS), 0);
    for (uint64_t idx = 0; idx < 2 * windows.windows_per_epoch; idx++) {
        assert_int_equal(sampler_window(&windows, idx, inputs, targets, NULL), 0);
        assert_memory_equal(inputs + 1, targets, (WINDOW - 1) * sizeof *inputs);
        for (int i = 0; i < WINDOW; i++)
            hash = rng_u64(hash, (uint64_t)inputs[i], (uint64_t)targets[i]);
    }
    return hash;
}

static void expect_good(const char *path, enum data_format format, uint64_t vocab, uint64_t *hash)
{
    corpus *source = open_good(&path, 1, format, vocab);
    expect_tokens(source, TOKENS, vocab);
    assert_false(corpus_is_text(source));
    uint64_t found = windows_of(source);
    if (*hash)
        assert_int_equal(found, *hash);
    *hash = found;
    corpus_close(source);
}

static void all_formats_give_the_same_windows(void **state)
{
    uint64_t hash = 0;
    const char *path = write_llmc("v1.bin", 0, TOKENS, VOCAB, false);
    expect_good(path, DATA_AUTO, VOCAB, &hash);
    expect_good(path, DATA_LLMC, VOCAB, &hash);
    path = write_llmc("v7.tokens", 0, TOKENS, VOCAB, true);
    expect_good(path, DATA_AUTO, VOCAB, &hash);
    expect_good(path, DATA_LLMC, VOCAB, &hash);
    expect_good(write_ids("raw.bin", 0, TOKENS, VOCAB, 2), DATA_U16, VOCAB, &hash);
    expect_good(write_ids("raw", 0, TOKENS, VOCAB, 4), DATA_U32, VOCAB, &hash);
    static const unsigned codes[] = {4, 5, 8};
    for (int i = 0; i < 3; i++) {
        path = write_megatron("pair", 0, TOKENS, VOCAB, codes[i]);
        expect_good(path, DATA_AUTO, VOCAB, &hash);
        expect_good(path, DATA_MEGATRON, VOCAB, &hash);
        expect_good(in_directory("pair.bin"), DATA_AUTO, VOCAB, &hash);
        expect_good(in_directory("pair.bin"), DATA_MEGATRON, VOCAB, &hash);
        expect_good(in_directory("pair.idx"), DATA_AUTO, VOCAB, &hash);
        expect_good(in_directory("pair.idx"), DATA_MEGATRON, VOCAB, &hash);
    }
    remove_all();
}

static void small_types_and_text(void **state)
{
    enum { SMALL = 100 };
    uint64_t hash = 0;
    for (unsigned code = 1; code <= 3; code++)
        expect_good(write_megatron("pair", 0, TOKENS, SMALL, code), DATA_AUTO, SMALL, &hash);
    expect_good(write_ids("ids", 0, TOKENS, SMALL, 2), DATA_U16, SMALL, &hash);
    const char *path = write_ids("text", 0, TOKENS, SMALL, 1);
    for (int turn = 0; turn < 2; turn++) {
        corpus *source = open_good(&path, 1, DATA_TEXT, turn ? 0 : 640);
        expect_tokens(source, TOKENS, SMALL);
        assert_true(corpus_is_text(source));
        assert_int_equal(windows_of(source), hash);
        corpus_close(source);
    }
    /* Named, even what looks like tokens is text. */
    path = write_llmc("v1.bin", 0, 10, VOCAB, false);
    corpus *source = open_good(&path, 1, DATA_TEXT, 256);
    assert_int_equal(corpus_token_count(source), 1044);
    corpus_close(source);
    remove_all();
}

/* Windows go over the ends of files, of several formats too. */
static void files_are_joined(void **state)
{
    const char *paths[4] = {write_llmc("a.bin", 0, 1000, VOCAB, false),
                            write_megatron("b", 1000, 77, VOCAB, 4),
                            write_llmc("c.bin", 1077, 1, VOCAB, true),
                            write_megatron("d", 1078, TOKENS - 1078, VOCAB, 8)};
    corpus *source = open_good(paths, 4, DATA_AUTO, VOCAB);
    expect_tokens(source, TOKENS, VOCAB);
    uint64_t hash = windows_of(source);
    corpus_close(source);
    expect_good(write_ids("all", 0, TOKENS, VOCAB, 4), DATA_U32, VOCAB, &hash);
    remove_all();
}

static void reading_allocates_nothing(void **state)
{
    const char *path = write_megatron("pair", 0, TOKENS, VOCAB, 5);
    corpus *source = open_good(&path, 1, DATA_AUTO, VOCAB);
    mem_seal();
    windows_of(source);
    mem_stats stats;
    mem_get_stats(&stats);
    assert_int_equal(stats.call_count_after_seal, 0);
    mem_unseal();
    corpus_close(source);
    remove_all();
}

/* Behind what is looked at when it is opened, and beyond 4 GiB: holes are tokens 0. */
static void large_files(void **state)
{
    const char *path = in_directory("large");
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0);
    static const uint64_t count = ((uint64_t)5 << 30) / 4 + 3;
    if (ftruncate(fd, (off_t)(4 * count)) < 0) {
        close(fd);
        print_message("a file of 5 GiB cannot be made here\n");
        skip();
    }
    close(fd);
    patch(path, 4 * (count - 1), 49999, 4);
    patch(path, 4 * (count - 3), VOCAB, 4);
    corpus *source = open_good(&path, 1, DATA_U32, VOCAB);
    assert_int_equal(corpus_token_count(source), count);
    int32_t tokens[4];
    assert_int_equal(corpus_read(source, count - 2, 2, tokens), 0);
    assert_int_equal(tokens[0], 0);
    assert_int_equal(tokens[1], 49999);
    assert_int_equal(corpus_read(source, count - 4, 4, tokens), ERR_INPUT);
    char word[64];
    snprintf(word, sizeof word, "token %llu (from 0) of", (unsigned long long)count - 3);
    assert_non_null(strstr(err_text(), word));
    assert_non_null(strstr(err_text(), path));
    assert_int_equal(truncate(path, (off_t)(4 * count - 6)), 0);
    assert_error(corpus_read(source, count - 2, 2, tokens), ERR_INPUT, "must not change");
    corpus_close(source);
    remove_all();
}

int main(void)
{
    printf("seed %d\n", SEED);
    log_set_level(LOG_QUIET);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_formats_give_the_same_windows),
        cmocka_unit_test(small_types_and_text),
        cmocka_unit_test(files_are_joined),
        cmocka_unit_test(reading_allocates_nothing),
        cmocka_unit_test(large_files),
    };
    return cmocka_run_group_tests(tests, directory_make, directory_remove);
}
