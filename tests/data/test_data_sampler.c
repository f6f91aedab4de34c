/* The corpus joins files and refuses bad ones; the sampler visits each window once per epoch. */
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/rng.h"
#include "data/corpus.h"
#include "tests/directory.h"

enum { SEED = 811, TOKENS_MAX = 20000 };

static unsigned char byte_at(uint64_t i)
{
    return (unsigned char)rng_u64(SEED, 1, i);
}

/* A file of bytes [begin, begin + count) of one long sequence. */
static const char *write_file(const char *name, uint64_t begin, uint64_t count)
{
    const char *path = in_directory(name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    for (uint64_t i = 0; i < count; i++)
        fputc(byte_at(begin + i), file);
    assert_int_equal(fclose(file), 0);
    return path;
}

static corpus *open_one(const char *path)
{
    corpus *source;
    assert_ok(corpus_open_as(&path, 1, DATA_TEXT, 0, &source));
    return source;
}

static void files_are_joined(void **state)
{
    const char *paths[3] = {write_file("a", 0, 100), write_file("b", 100, 1),
                            write_file("c", 101, 57)};
    corpus *source;
    assert_ok(corpus_open_as(paths, 3, DATA_TEXT, 0, &source));
    assert_int_equal(corpus_token_count(source), 158);
    int32_t tokens[158 + 1];
    for (uint64_t begin = 0; begin <= 158; begin += 3)
        for (uint64_t count = 0; begin + count <= 158; count++) {
            tokens[count] = -7;
            assert_ok(corpus_read(source, begin, count, tokens));
            for (uint64_t i = 0; i < count; i++)
                assert_int_equal(tokens[i], byte_at(begin + i));
            assert_int_equal(tokens[count], -7);
        }
    assert_int_equal(corpus_read(source, 158, 1, tokens), -EINVAL);
    assert_int_equal(corpus_read(source, 1, UINT64_MAX, tokens), -EINVAL);
    corpus_close(source);
}

static void expect_refusal(const char *const *paths, uint32_t count, const char *word)
{
    corpus *source;
    assert_int_equal(corpus_open_as(paths, count, DATA_TEXT, 0, &source), ERR_INPUT);
    assert_null(source);
    assert_non_null(strstr(err_text(), word));
    if (count > 0)
        assert_non_null(strstr(err_text(), paths[count - 1]));
}

static void bad_files_are_named(void **state)
{
    const char *good = write_file("good", 0, 10);
    const char *missing[2] = {good, in_directory("missing")};
    expect_refusal(missing, 2, "No such file");
    const char *folder[1] = {directory};
    expect_refusal(folder, 1, "directory");
    const char *empty[2] = {good, write_file("empty", 0, 0)};
    expect_refusal(empty, 2, "empty");
    const char *pipe_path[1] = {in_directory("pipe")};
    assert_int_equal(mkfifo(pipe_path[0], 0600), 0);
    expect_refusal(pipe_path, 1, "regular");
    expect_refusal(NULL, 0, "no file");
}

static void short_and_shrinking_files(void **state)
{
    const char *path = write_file("short", 0, 17);
    corpus *source = open_one(path);
    sampler windows;
    assert_error(sampler_init(&windows, source, 1, 16, SHUFFLE_WINDOWS), ERR_INPUT, "17 tokens");
    assert_int_equal(sampler_init(&windows, source, 1, UINT64_MAX, SHUFFLE_WINDOWS), ERR_INPUT);
    assert_int_equal(sampler_init(&windows, source, 1, 0, SHUFFLE_WINDOWS), ERR_INPUT);
    assert_ok(
        sampler_init(&windows, source, 1, 15, SHUFFLE_WINDOWS)); /* T + 2 tokens: one window */
    assert_int_equal(windows.windows_per_epoch, 1);
    int32_t inputs[15], targets[15];
    for (uint64_t idx = 0; idx < 20; idx++)
        assert_ok(sampler_window(&windows, idx, inputs, targets, NULL));
    assert_int_equal(truncate(path, 3), 0);
    assert_error(sampler_window(&windows, 0, inputs, targets, NULL), ERR_INPUT, path);
    corpus_close(source);
}

/* Where a window of a corpus without repeats begins. */
static uint64_t begin_of(const int32_t *inputs, uint64_t count, const int32_t *targets,
                         uint64_t token_count)
{
    for (uint64_t begin = 0; begin + count + 1 <= token_count; begin++) {
        uint64_t i = 0;
        while (i < count && inputs[i] == byte_at(begin + i) && targets[i] == byte_at(begin + i + 1))
            i++;
        if (i == count)
            return begin;
    }
    fail_msg("a window that is not in the corpus");
    return 0;
}

static void each_window_once(void **state)
{
    static const struct {
        uint64_t tokens, window;
    } cases[] = {{18, 16}, {100, 8}, {2001, 20}, {2002, 20}, {4000, 31}, {258, 16}};
    int32_t inputs[64], targets[64];
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        uint64_t window = cases[c].window, token_count = cases[c].tokens;
        corpus *source = open_one(write_file("tokens", 0, token_count));
        sampler windows;
        assert_ok(sampler_init(&windows, source, SEED, window, SHUFFLE_WINDOWS));
        uint64_t per_epoch = windows.windows_per_epoch;
        assert_true(per_epoch * window + window + 1 >= token_count - 1);
        uint64_t first_epoch[256], order_changes = 0;
        for (uint64_t epoch = 0; epoch < 4; epoch++) {
            unsigned char seen[TOKENS_MAX] = {0};
            uint64_t shift = UINT64_MAX;
            for (uint64_t i = 0; i < per_epoch; i++) {
                assert_ok(sampler_window(&windows, epoch * per_epoch + i, inputs, targets, NULL));
                uint64_t begin = begin_of(inputs, window, targets, token_count);
                if (shift == UINT64_MAX)
                    shift = begin % window;
                assert_int_equal(begin % window, shift);
                for (uint64_t t = begin; t < begin + window; t++)
                    assert_int_equal(seen[t]++, 0);
                if (epoch == 0)
                    first_epoch[i] = begin / window;
                else
                    order_changes += first_epoch[i] != begin / window;
            }
        }
        if (per_epoch > 20)
            assert_true(order_changes > per_epoch);
        corpus_close(source);
    }
}

static void resumes_by_number(void **state)
{
    corpus *source = open_one(write_file("resume", 0, 5000));
    sampler one, other, reseeded;
    assert_ok(sampler_init(&one, source, SEED, 24, SHUFFLE_WINDOWS));
    assert_ok(sampler_init(&reseeded, source, SEED + 1, 24, SHUFFLE_WINDOWS));
    int32_t a[24], b[24], x[24], y[24];
    uint64_t differences = 0;
    for (uint64_t i = 0; i < 500; i++) {
        uint64_t idx = rng_u64(SEED, 2, i) >> (i % 40); /* any number, huge ones included */
        assert_ok(sampler_init(&other, source, SEED, 24, SHUFFLE_WINDOWS));
        assert_ok(sampler_window(&one, idx, a, b, NULL));
        assert_ok(sampler_window(&other, idx, x, y, NULL));
        assert_memory_equal(a, x, sizeof a);
        assert_memory_equal(b, y, sizeof b);
        assert_ok(sampler_window(&reseeded, idx, x, y, NULL));
        differences += memcmp(a, x, sizeof a) != 0;
    }
    assert_true(differences > 450);
    corpus_close(source);
}

/* Neighbours in the visiting order should be far apart, for odd numbers of windows too. */
static void order_is_shuffled(void **state)
{
    corpus *source = open_one(write_file("order", 0, 4001));
    sampler windows;
    assert_ok(sampler_init(&windows, source, SEED, 16, SHUFFLE_WINDOWS));
    int32_t inputs[16], targets[16];
    uint64_t successors = 0, previous = 0;
    for (uint64_t i = 0; i < windows.windows_per_epoch; i++) {
        assert_ok(sampler_window(&windows, i, inputs, targets, NULL));
        uint64_t begin = begin_of(inputs, 16, targets, 4001);
        successors += i > 0 && begin == previous + 16;
        previous = begin;
    }
    assert_true(successors < 10); /* about one is expected of 249 */
    corpus_close(source);
}

static void evaluation_in_order(void **state)
{
    corpus *source = open_one(write_file("valid", 0, 101));
    sampler windows;
    assert_ok(sampler_init(&windows, source, SEED, 10, SHUFFLE_WINDOWS));
    assert_int_equal(windows.windows_per_epoch, 9);
    int32_t inputs[10], targets[10];
    mem_stats before, after;
    mem_get_stats(&before);
    for (uint64_t idx = 0; idx < 20; idx++) {
        assert_ok(sampler_window_in_order(&windows, idx, inputs, targets, NULL));
        for (uint64_t i = 0; i < 10; i++) {
            assert_int_equal(inputs[i], byte_at(idx % 9 * 10 + i));
            assert_int_equal(targets[i], byte_at(idx % 9 * 10 + i + 1));
        }
    }
    mem_get_stats(&after);
    assert_int_equal(before.call_count, after.call_count); /* reading allocates nothing */
    corpus_close(source);
}

int main(void)
{
    printf("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_are_joined),    cmocka_unit_test(bad_files_are_named),
        cmocka_unit_test(each_window_once),    cmocka_unit_test(short_and_shrinking_files),
        cmocka_unit_test(resumes_by_number),   cmocka_unit_test(order_is_shuffled),
        cmocka_unit_test(evaluation_in_order),
    };
    return cmocka_run_group_tests(tests, directory_make, directory_remove);
}
