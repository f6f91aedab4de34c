/* Long words and long texts in bounded memory: the ids are those of the plain way, for windows of
 * any size. The tables of merges are random: orders of ranks that no training gives are among
 * them. */
#include "base/rng.h"
#include "base/size.h"
#include "tests/text/tokenizer_folder.h"
#include "tests/unit.h"
#include "text/tokenizer_internal.h"

enum { TOKENS_MAX = 200, LETTERS = 4, FIRST = 256 };

static uint64_t seed = 1, draws;

static uint64_t draw(uint64_t below)
{
    return rng_below(seed, 31, draws++, below);
}

/* Two merges across a place where a text might be cut: "a " and "\n/". */
static bool has_merges_across;

/* Writes tokenizer.json: bytes, and `count` random merges of the first `letters` letters. A merge
 * may come before those that make its sides, and two merges may make the same token. */
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
    if (has_merges_across)
        fprintf(file, ", \"a\\u0120\": 700, \"\\u010a/\": 701");
    fprintf(file, "}, \"merges\": [");
    if (has_merges_across)
        fprintf(file, "[\"a\", \"\\u0120\"], [\"\\u010a\", \"/\"]%s", pair_count ? ", " : "");
    for (unsigned i = 0; i < pair_count; i++)
        fprintf(file, "%s%s", i ? ", " : "", pairs[i]);
    fprintf(file, "]}, %s}\n", rest);
    assert_int_equal(fclose(file), 0);
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

/* An empty list may have no memory, which memcmp must not be given. */
static bool are_equal(const token_list *a, const token_list *b)
{
    return a->count == b->count &&
           (a->count == 0 || memcmp(a->ids, b->ids, a->count * sizeof *a->ids) == 0);
}

/* The ids of words that are merged window by window are those of the whole words. */
static void long_words_are_exact(void **state)
{
    enum { TABLES = 150, TEXTS = 12, MOST = 900 };
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
            assert_ok(tokenizer_encode(self, text, bytes, &plain, &whole));
            self->word_window = 30 + draw(200);
            int rc = tokenizer_encode(self, text, bytes, &plain, &parts);
            if (rc == 0 && !are_equal(&whole, &parts))
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
    assert_true(compared > 500 && compared > 5 * refused);
}

/* ---- streams ---- */

struct reading {
    const char *text;
    size_t bytes;
};

/* Gives fewer bytes than asked for, as a source may. */
static int read_some(void *user, uint64_t offset, char *target, size_t bytes)
{
    const struct reading *from = user;
    size_t part = size_min(bytes, from->bytes - offset);
    part = part ? 1 + draw(part) : 0;
    memcpy(target, from->text + offset, part);
    return (int)part;
}

static int take_ids(void *user, const int32_t *ids, size_t count)
{
    token_list *out = user;
    assert_ok(toki_list_reserve(out, count));
    for (size_t i = 0; i < count; i++)
        out->ids[out->count++] = ids[i];
    return 0;
}

static void put_json_string(char *out, size_t bytes, const char *text)
{
    size_t at = 0;
    for (; *text; text++) {
        assert_true(at + 8 < bytes);
        if ((unsigned char)*text < ' ' || *text == '"' || *text == '\\')
            at += (size_t)snprintf(out + at, bytes - at, "\\u%04x", *text);
        else
            out[at++] = *text;
    }
    out[at] = '\0';
}

/* Runs of characters of few classes, between short pieces of many. */
static size_t random_runs(char *text, size_t most)
{
    static const char *const some[] = {"a",
                                       "b",
                                       "c",
                                       "d",
                                       "A",
                                       "B",
                                       "Z",
                                       "\xc7\x85",
                                       "9",
                                       "1",
                                       "\xd9\xa3",
                                       "'",
                                       "'s",
                                       "'S",
                                       "'ll",
                                       "!",
                                       "/",
                                       ".",
                                       "$",
                                       "\n",
                                       "\r",
                                       "\r\n",
                                       "\n/",
                                       " ",
                                       " ",
                                       "\t",
                                       "\xc2\xa0",
                                       "\xc2\x85",
                                       "\xe2\x80\x83",
                                       "\xe3\x80\x80",
                                       "\xe5\xad\x97",
                                       "\xe3\x82\xab",
                                       "\xcc\x81",
                                       "\xcc\xa7",
                                       "e\xcc\x81",
                                       "\xca\xb0",
                                       "\xe1\x84\x92\xe1\x85\xa1",
                                       "\xf0\x9f\x98\x80",
                                       "<|x|>",
                                       "<|x",
                                       "\n\n",
                                       "  ",
                                       "\xff",
                                       "\xe2\x82",
                                       "\xd8\xa7",
                                       "\xf0\x91\xa4\xb0",
                                       "\xf0\x9e\x97\xb1",
                                       "x"};
    enum { SOME = sizeof some / sizeof some[0] };
    size_t bytes = 0, wanted = 1 + draw(most - 8);
    while (bytes < wanted) {
        const char *few[3] = {some[draw(SOME)], some[draw(SOME)], some[draw(SOME)]};
        uint64_t kinds = 1 + draw(3), count = draw(3) ? 1 + draw(4) : 20 + draw(250);
        uint64_t other = draw(2) ? 1 + draw(3) : 1 + draw(300);
        for (uint64_t i = 0; i < count && bytes < wanted; i++) {
            const char *next = few[draw(other) == 0 ? draw(kinds) : 0];
            memcpy(text + bytes, next, strlen(next));
            bytes += strlen(next);
        }
    }
    return bytes;
}

/* Compares the stream of a text with the text as a whole. */
static void compare_stream(tokenizer *self, const char *what, const char *text, size_t bytes,
                           uint64_t *refused)
{
    token_list whole = {0}, parts = {0};
    const tokenize_options options = {.plain_text = draw(4) == 0};
    struct reading from = {text, bytes};
    const tokenize_source source = {&from, read_some};
    const tokenize_sink sink = {&parts, take_ids};
    self->word_window = SIZE_MAX;
    assert_ok(tokenizer_encode(self, text, bytes, &options, &whole));
    self->word_window = 64 + draw(100);
    self->stream_window = 32 + draw(100);
    int rc = tokenizer_encode_stream(self, &source, options.plain_text, &sink);
    *refused += rc == ERR_INPUT;
    if (rc == ERR_INTERNAL)
        fail_msg("%s: %s", what, err_text());
    if (rc == 0 && !are_equal(&whole, &parts)) {
        for (size_t i = 0; i < bytes; i++)
            printf("\\x%02x", (unsigned char)text[i]);
        fail_msg(" of %s, windows %zu, %zu", what, self->word_window, self->stream_window);
    }
    token_list_fini(&whole);
    token_list_fini(&parts);
}

#define STAGE_OF(pattern, how)                                                                     \
    "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"" pattern "\"}, \"behavior\": \"" how "\"}"

static const char *const normalizers[] = {"null", "{\"type\": \"NFC\"}", "{\"type\": \"NFKC\"}"};

/* Texts as streams have the ids of the whole texts, with small buffers and every known pattern. */
static void streams_are_exact(void **state)
{
    enum { TEXTS = 40, MOST = 1500 };
    static const char *const stages_before[] = {
        "", "{\"type\": \"Digits\", \"individual_digits\": false}, ",
        STAGE_OF("\\\\p{N}{1,3}", "Isolated") ", ",
        "{\"type\": \"ByteLevel\", \"use_regex\": false}"};
    uint64_t refused = 0, compared = 0;
    for (const toki_known *known = toki_known_patterns; known->pattern; known++) {
        for (int variant = 0; variant < 6; variant++) {
            static char rest[8192], pattern[4096];
            static const char *const behaviors[] = {"Isolated", "Isolated",   "Isolated",
                                                    "Isolated", "Contiguous", "Removed"};
            put_json_string(pattern, sizeof pattern, known->pattern);
            snprintf(rest, sizeof rest,
                     "\"normalizer\": %s, \"added_tokens\": [{\"id\": 900, \"content\": \"<|x|>\", "
                     "\"special\": true, \"normalized\": %s}%s], \"pre_tokenizer\": {\"type\": "
                     "\"Sequence\", \"pretokenizers\": [%s" STAGE_OF(
                         "%s", "%s") ", "
                                     "{\"type\": \"ByteLevel\", \"add_prefix_space\": %s, "
                                     "\"use_regex\": false}]}",
                     normalizers[variant % 3], variant % 2 ? "true" : "false",
                     variant == 3 ? ", {\"id\": 901, \"content\": \"\\n\\n\"}" : "",
                     stages_before[variant % 3], pattern, behaviors[variant],
                     variant == 2 ? "true" : "false");
            write_random_merges(30, LETTERS, rest);
            tokenizer *self = open_it();
            assert_null(tokenizer_no_stream(self));
            for (int i = 0; i < TEXTS; i++, compared++) {
                char text[MOST + 16];
                size_t bytes = random_runs(text, MOST);
                compare_stream(self, known->pattern, text, bytes, &refused);
            }
            tokenizer_close(self);
        }
    }
    print_message("%llu of %llu texts were refused\n", (unsigned long long)refused,
                  (unsigned long long)compared);
    assert_true(compared > 5 * refused);
}

/* Cuts a text at each place that is called safe, and returns the number of places. */
static unsigned compare_cuts(const tokenizer *self, const char *what, const char *text)
{
    static const tokenize_options plain = {0};
    unsigned count = 0;
    size_t bytes = strlen(text);
    for (size_t at = 0; at <= bytes; at++) {
        token_list whole = {0}, parts = {0};
        if (!tokenizer_cut_is_safe(self, text, bytes, at))
            continue;
        assert_ok(tokenizer_encode(self, text, bytes, &plain, &whole));
        assert_ok(tokenizer_encode(self, text, at, &plain, &parts));
        assert_ok(tokenizer_encode(self, text + at, bytes - at, &plain, &parts));
        if (!are_equal(&whole, &parts))
            fail_msg("%s: a cut at byte %zu changes the ids", what, at);
        token_list_fini(&whole);
        token_list_fini(&parts);
        count++;
    }
    return count;
}

/* A cut changes no id: also where no pattern splits words at spaces, where matches are joined, and
 * where NFKC makes a "/" of another character. */
static void cuts_are_safe(void **state)
{
    static const char text[] = "aa a1 a\tb.\nc d!\n\xef\xbc\x8f a a\n/a \xc2\xa8\n\xcb\x98 b";
    static const char *const behaviors[] = {"Isolated", "Contiguous", "Removed"};
    has_merges_across = true;
    write_random_merges(0, 1, WHOLE);
    tokenizer *self = open_it();
    (void)compare_cuts(self, "no pattern", text);
    tokenizer_close(self);
    for (const toki_known *known = toki_known_patterns; known->pattern; known++)
        for (int variant = 0; variant < 9; variant++) {
            static char rest[8192], pattern[4096];
            put_json_string(pattern, sizeof pattern, known->pattern);
            snprintf(rest, sizeof rest,
                     "\"normalizer\": %s, \"pre_tokenizer\": {\"type\": \"Sequence\", "
                     "\"pretokenizers\": [" STAGE_OF(
                         "%s", "%s") ", {\"type\": \"ByteLevel\", "
                                     "\"add_prefix_space\": false, \"use_regex\": false}]}",
                     normalizers[variant % 3], pattern, behaviors[variant / 3]);
            write_random_merges(0, 1, rest);
            self = open_it();
            unsigned cuts = compare_cuts(self, known->pattern, text);
            if (known->pattern == toki_gpt2_pattern && variant == 1)
                assert_true(cuts > 5);
            tokenizer_close(self);
        }
    has_merges_across = false;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        seed = strtoull(argv[1], NULL, 0);
    printf("seed %llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_words_are_exact),
        cmocka_unit_test(streams_are_exact),
        cmocka_unit_test(cuts_are_safe),
    };
    return cmocka_run_group_tests(tests, make_folder, directory_remove);
}
