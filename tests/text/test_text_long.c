/* Long words and long texts in bounded memory: the ids are those of the plain way, for windows of
 * any size. The tables of merges are random: orders of ranks that no training gives are among
 * them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/size.h"
#include "text/tokenizer_internal.h"

enum { TOKENS_MAX = 200, LETTERS = 4, PATH_BYTES = 64, FIRST = 256 };

static uint64_t seed = 1, draws;
static char folder[PATH_BYTES], path[PATH_BYTES + 32];

static uint64_t draw(uint64_t below)
{
    return rng_below(seed, 31, draws++, below);
}

/* Writes tokens.json: bytes, and `count` random merges of the first `letters` letters. A merge may
 * come before those that make its sides, and two merges may make the same token. */
static void write_random_merges(unsigned count, unsigned letters, const char *rest)
{
    static char tokens[TOKENS_MAX][64], pairs[4 * TOKENS_MAX][160];
    unsigned made = letters, pair_count = 0, next = 256;
    for (unsigned i = 0; i < letters; i++)
        snprintf(tokens[i], sizeof tokens[i], "%c", 'a' + i);
    for (unsigned i = 0; i < count && made < TOKENS_MAX; i++) {
        char whole[128];
        const char *left = tokens[draw(made)], *right = tokens[draw(made)];
        if (strlen(left) + strlen(right) > 12)
            continue;
        snprintf(whole, sizeof whole, "%s%s", left, right);
        snprintf(pairs[pair_count++], sizeof pairs[0], "[\"%s\", \"%s\"]", left, right);
        bool is_there = false;
        for (unsigned t = 0; t < made; t++)
            is_there = is_there || strcmp(tokens[t], whole) == 0;
        if (!is_there)
            memcpy(tokens[made++], whole, sizeof tokens[0]);
    }
    for (unsigned i = pair_count; draw(3) && i > 1; i--) { /* another order of the ranks */
        char other[sizeof pairs[0]];
        uint64_t place = draw(i);
        memcpy(other, pairs[i - 1], sizeof other);
        memcpy(pairs[i - 1], pairs[place], sizeof other);
        memcpy(pairs[place], other, sizeof other);
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "{\"model\": {\"type\": \"BPE\", \"vocab\": {");
    for (unsigned b = 0; b < TOKI_BYTE_VALUES; b++) {
        bool is_visible = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        fprintf(file, "%s\"\\u%04x\": %u", b ? ", " : "", is_visible ? b : next++, b);
    }
    for (unsigned t = letters; t < made; t++)
        fprintf(file, ", \"%s\": %u", tokens[t], FIRST + t - letters);
    fprintf(file, "}, \"merges\": [");
    for (unsigned i = 0; i < pair_count; i++)
        fprintf(file, "%s%s", i ? ", " : "", pairs[i]);
    fprintf(file, "]}, %s}\n", rest);
    assert_int_equal(fclose(file), 0);
}

static tokenizer *open_it(void)
{
    tokenizer *self;
    if (tokenizer_open(folder, &self) < 0)
        fail_msg("%s", err_text());
    return self;
}

/* A random text of a few letters, with repetitions. */
static size_t random_letters(char *text, size_t most, unsigned letters)
{
    size_t bytes = 1 + draw(most);
    uint64_t period = 1 + draw(draw(2) ? 5 : bytes);
    for (size_t i = 0; i < bytes; i++)
        text[i] = i < period || draw(60) == 0 ? (char)('a' + draw(letters)) : text[i - period];
    return bytes;
}

#define WHOLE                                                                                      \
    "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": "    \
    "false}"

/* The ids of words that are merged window by window are those of the whole words. */
static void long_words_are_exact(void **state)
{
    (void)state;
    enum { TABLES = 300, TEXTS = 12, MOST = 900 };
    static const tokenize_options plain = {0};
    uint64_t refused = 0, compared = 0;
    for (int table = 0; table < TABLES; table++) {
        unsigned letters = 1 + (unsigned)draw(LETTERS);
        write_random_merges(1 + (unsigned)draw(table % 2 ? 150 : 12), letters, WHOLE);
        tokenizer *self = open_it();
        for (int i = 0; i < TEXTS; i++) {
            char text[MOST];
            token_list whole = {0}, parts = {0};
            size_t bytes = random_letters(text, MOST, letters);
            self->word_window = SIZE_MAX;
            assert_int_equal(tokenizer_encode(self, text, bytes, &plain, &whole), 0);
            self->word_window = 30 + draw(200);
            int rc = tokenizer_encode(self, text, bytes, &plain, &parts);
            if (rc == 0 && (whole.count != parts.count ||
                            memcmp(whole.ids, parts.ids, whole.count * sizeof *whole.ids) != 0))
                fail_msg("table %d: %.*s", table, (int)bytes, text);
            refused += rc < 0;
            compared += rc == 0 && bytes > self->word_window;
            token_list_fini(&whole);
            token_list_fini(&parts);
        }
        tokenizer_close(self);
    }
    print_message("%llu texts agree, %llu tables needed more\n", (unsigned long long)compared,
                  (unsigned long long)refused);
    assert_true(compared > 1000 && compared > 5 * refused);
}

static int make_folder(void **state)
{
    (void)state;
    log_set_level(LOG_QUIET);
    snprintf(folder, sizeof folder, "/tmp/sluice-long-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        seed = strtoull(argv[1], NULL, 0);
    printf("seed %llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_words_are_exact),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
