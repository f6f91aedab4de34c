/* Tokenizers that are not byte-level: WordPiece, Unigram, and BPE with byte fallback, from small
 * files that are made here. That ids and texts are those of the `tokenizers` library on much text
 * is shown by tests/reference/check_tokenizer.py; the expected ids here were checked by hand or
 * with it. */
#include "base/mem.h"
#include "tests/text/tokenizer_folder.h"
#include "tests/unit.h"

#define MARK "\xe2\x96\x81"

static void write_file(const char *model, const char *rest)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "{\"model\": {%s}%s}\n", model, rest);
    assert_int_equal(fclose(file), 0);
}

static tokenizer *open_model(const char *model, const char *rest)
{
    write_file(model, rest);
    return open_it();
}

static const tokenize_options as_library = {0};

/* Compares the ids of a text, and its tokens' bytes if `shown` is given. */
static void expect(const tokenizer *self, const char *text, const char *shown, size_t count,
                   const int32_t *ids)
{
    token_list list = {0};
    char all[256] = "";
    size_t filled = 0;
    assert_ok(tokenizer_encode(self, text, strlen(text), &as_library, &list));
    if (list.count != count || memcmp(list.ids, ids, count * sizeof *ids) != 0)
        for (size_t i = 0; i < list.count; i++)
            print_message("%s: ids[%zu] = %d\n", text, i, list.ids[i]);
    assert_int_equal(list.count, count);
    assert_memory_equal(list.ids, ids, count * sizeof *ids);
    for (size_t i = 0; shown && i < list.count; i++) {
        size_t bytes;
        const char *token = tokenizer_token_bytes(self, list.ids[i], false, &bytes);
        assert_true(filled + bytes < sizeof all);
        memcpy(all + filled, token, bytes);
        filled += bytes;
    }
    if (shown)
        assert_string_equal(all, shown);
    token_list_fini(&list);
}

#define EXPECT(self, text, shown, ...)                                                             \
    expect(self, text, shown, sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t),                  \
           (int32_t[]){__VA_ARGS__})

/* ---- WordPiece ---- */

#define WORDPIECE                                                                                  \
    "\"type\": \"WordPiece\", \"unk_token\": \"[UNK]\", \"max_input_chars_per_word\": 9, "         \
    "\"vocab\": {\"[UNK]\": 0, \"[CLS]\": 1, \"[SEP]\": 2, \"un\": 3, \"##aff\": 4, \"##able\": "  \
    "5, \",\": 6, \"\xe4\xb8\xad\": 7, \"e\": 8, \"##e\": 9, \"unaff\": 10, \"do\": 11, \"E\": "   \
    "12}"
#define BERT_REST(normalizer)                                                                      \
    ", \"normalizer\": {\"type\": \"BertNormalizer\"" normalizer                                   \
    "}, \"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"}, \"decoder\": {\"type\": "             \
    "\"WordPiece\", \"prefix\": \"##\", \"cleanup\": true}, \"added_tokens\": [{\"id\": 2, "       \
    "\"content\": \"[SEP]\", \"special\": true}, {\"id\": 1, \"content\": \"[CLS]\", "             \
    "\"special\": true}], \"post_processor\": {\"type\": \"BertProcessing\", \"sep\": "            \
    "[\"[SEP]\", 2], \"cls\": [\"[CLS]\", 1]}"

static void wordpiece_takes_the_longest_pieces(void **state)
{
    tokenizer *self = open_model(WORDPIECE, BERT_REST(""));
    EXPECT(self, "unaffe unaffable", " unaffe unaffable", 10, 9, 10, 5); /* not un ##aff ##able */
    EXPECT(self,
           "UN\xc3\x89\xe4\xb8\xad"
           "e,e",
           " une \xe4\xb8\xad e, e", 3, 9, 7, 8, 6, 8);
    EXPECT(self, "u\tunx un\ndo", " [UNK] [UNK] un do", 0, 0, 3, 11);
    EXPECT(self, "unaffaffe unaffaffee", NULL, 10, 4, 9, 0); /* more than 9 characters */
    EXPECT(self,
           "e\xc2\xad\xe2\x80\x8b"
           "e[SEP]e",
           " ee [SEP] e", 8, 9, 2, 8); /* format characters go */
    assert_int_equal(tokenizer_end_id(self), 2);
    assert_int_equal(tokenizer_begin_id(self), 1);
    assert_true(tokenizer_separates(self, "[SEP]"));
    assert_false(tokenizer_separates(self, "un"));
    tokenizer_close(self);
    self = open_model(WORDPIECE, BERT_REST(", \"lowercase\": false"));
    EXPECT(self, "E \xc3\x89", NULL, 12, 0); /* accents stay if capitals do */
    tokenizer_close(self);
}

static void text_is_cut_between_words(void **state)
{
    static const char text[] = "un un\xe4\xb8\xad\xe4\xb8\xad une\nun\tunaffe unx  un e\xcc\x81 e";
    tokenizer *self = open_model(WORDPIECE, BERT_REST(""));
    token_list whole = {0}, parts = {0};
    int cuts = 0;
    assert_true(tokenizer_cuts_lines(self));
    assert_ok(tokenizer_encode(self, text, strlen(text), &as_library, &whole));
    for (size_t at = 0; at < sizeof text - 1; at++) {
        if (!tokenizer_cut_is_safe(self, text, strlen(text), at))
            continue;
        parts.count = 0;
        assert_ok(tokenizer_encode(self, text, at, &as_library, &parts));
        assert_ok(tokenizer_encode(self, text + at, strlen(text + at), &as_library, &parts));
        assert_int_equal(parts.count, whole.count);
        assert_memory_equal(parts.ids, whole.ids, whole.count * sizeof *whole.ids);
        cuts++;
    }
    assert_in_range(cuts, 5, 8);
    token_list_fini(&whole);
    token_list_fini(&parts);
    tokenizer_close(self);
}

/* ---- Unigram ---- */

#define SCORES                                                                                     \
    "[\"<unk>\", 0], [\"a\", 0], [\"b\", 0], [\"c\", 0], [\"d\", 0], [\"cd\", 1], [\"ab\", 2], "   \
    "[\"abc\", 5], [\"abcd\", 10], [\"" MARK "\", -1], [\"" MARK "ab\", 1.5]"
#define METASPACE(more)                                                                            \
    ", \"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"" MARK "\"" more            \
    "}, \"decoder\": {\"type\": \"Metaspace\", \"replacement\": \"" MARK "\"}"
#define UNIGRAM(more) "\"type\": \"Unigram\", \"unk_id\": 0, \"vocab\": [" SCORES more "]"

static void unigram_takes_the_best_pieces(void **state)
{
    tokenizer *self = open_model(UNIGRAM(""), METASPACE(", \"prepend_scheme\": \"never\""));
    EXPECT(self, "abcdacdxx", NULL, 8, 1, 5, 0); /* what is unknown is one token */
    EXPECT(self, "ab  ab", "ab  ab", 6, 9, 10);
    tokenizer_close(self);
    self = open_model(UNIGRAM(""), METASPACE(""));
    EXPECT(self, "ab ab", " ab ab", 10, 10);
    EXPECT(self, " ab", " ab", 10);
    assert_false(tokenizer_cuts_lines(self));
    assert_non_null(tokenizer_no_stream(self));
    tokenizer_close(self);
    static const char rest[] =
        ", \"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFKD\"}, "
        "{\"type\": \"StripAccents\"}, {\"type\": \"Lowercase\"}, {\"type\": \"Replace\", "
        "\"pattern\": {\"Regex\": \" {2,}\"}, \"content\": \"d\"}, {\"type\": \"Strip\", "
        "\"strip_left\": false, \"strip_right\": true}]}" METASPACE(", \"split\": false");
    self = open_model(UNIGRAM(""), rest);
    EXPECT(self, "A\xcc\x81\xe2\x93\x91  \xe2\x93\x92 ", " abdc", 10, 4, 3); /* circled letters */
    tokenizer_close(self);
    static const char none[] = "\"type\": \"Unigram\", \"vocab\": [[\"a\", -1]]";
    self = open_model(none, "");
    token_list list = {0};
    assert_error(tokenizer_encode(self, "ax", 2, &as_library, &list), ERR_INPUT, "U+0078");
    token_list_fini(&list);
    tokenizer_close(self);
}

/* The library reads -8.681595205147008 and others as neighbours of these numbers, which decides
 * between cuts of equal probability. */
static void equal_scores_are_decided_as_in_the_library(void **state)
{
    static const char model[] =
        "\"type\": \"Unigram\", \"unk_id\": 0, \"vocab\": [[\"<unk>\", 0], [\"x\", "
        "-15.355749173219927], [\"ab\", -8.681595205147008], [\"abab\", -10.3230659921062]]";
    tokenizer *self = open_model(model, "");
    EXPECT(self, "ababab", NULL, 2, 3);
    EXPECT(self, "xababab", NULL, 1, 3, 2);
    tokenizer_close(self);
}

/* SentencePiece's rules: a trie of 4-byte units, then the texts that replace. This one replaces
 * "A" by "a". */
static void charsmaps_replace(void **state)
{
    /* unit 0: offset 1; unit 1 ^ 'A' = 64: label 'A', a value at 64 ^ 1 = 65: text 0 */
    enum { UNITS = 66, BYTES = 4 + 4 * UNITS + 2 };
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    unsigned char map[BYTES + 2] = {0};
    char text[4 * BYTES], rest[8 * BYTES];
    size_t filled = 0;
    const uint32_t units[][2] = {{0, 1u << 10}, {64, 1u << 10 | 1u << 8 | 'A'}, {65, 1u << 31}};
    map[0] = (unsigned char)(4 * UNITS % 256);
    map[1] = (unsigned char)(4 * UNITS / 256);
    for (size_t i = 0; i < 3; i++)
        for (size_t b = 0; b < 4; b++)
            map[4 + 4 * units[i][0] + b] = (unsigned char)(units[i][1] >> (8 * b));
    map[4 + 4 * UNITS] = 'a';
    for (size_t i = 0; i < BYTES; i += 3) {
        uint32_t bits = (uint32_t)map[i] << 16 | (uint32_t)map[i + 1] << 8 | map[i + 2];
        for (int shift = 18; shift >= 0; shift -= 6)
            text[filled++] = digits[bits >> shift & 63];
    }
    text[filled] = '\0';
    snprintf(rest, sizeof rest,
             ", \"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"%s\"}",
             text);
    tokenizer *self = open_model(UNIGRAM(""), rest);
    EXPECT(self, "AbAcAA", NULL, 6, 1, 3, 1, 1);
    EXPECT(self,
           "A\xcc\x81"
           "b",
           NULL, 6); /* as in the library, a rule takes the whole cluster */
    tokenizer_close(self);
    text[5] = '*';
    snprintf(rest, sizeof rest,
             ", \"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"%s\"}",
             text);
    write_file(UNIGRAM(""), rest);
    assert_error(tokenizer_open(path, &self), ERR_INPUT, "precompiled_charsmap is damaged");
}

/* ---- BPE with byte fallback ---- */

enum { FIRST_BYTE = 10 };

/* Ids: 0 <unk>, 1 <s>, 2 mark, 3 a, 4 b, 5 ab, 6 mark ab, 7 abab, 8 two marks; 10 to 265 the
 * bytes. */
static char bpe_model[8192];

static void make_bpe_model(const char *more)
{
    size_t filled = (size_t)snprintf(
        bpe_model, sizeof bpe_model,
        "\"type\": \"BPE\", \"unk_token\": \"<unk>\", \"fuse_unk\": true%s, \"merges\": [[\"a\", "
        "\"b\"], [\"" MARK "\", \"ab\"], [\"ab\", \"ab\"], [\"" MARK "\", \"" MARK
        "\"]], \"vocab\": {\"<unk>\": 0, \"<s>\": 1, \"" MARK
        "\": 2, \"a\": 3, \"b\": 4, \"ab\": 5, \"" MARK "ab\": 6, \"abab\": 7, \"" MARK MARK
        "\": 8",
        more);
    for (int b = 0; b < 256; b++)
        filled += (size_t)snprintf(bpe_model + filled, sizeof bpe_model - filled,
                                   ", \"<0x%02X>\": %d", (unsigned)b, FIRST_BYTE + b);
    snprintf(bpe_model + filled, sizeof bpe_model - filled, "}");
}

#define FALLBACK_DECODER                                                                           \
    ", \"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Replace\", \"pattern\": " \
    "{\"String\": \"" MARK "\"}, \"content\": \" \"}, {\"type\": \"ByteFallback\"}, {\"type\": "   \
    "\"Fuse\"}, {\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}]}, "          \
    "\"added_tokens\": [{\"id\": 1, \"content\": \"<s>\", \"special\": true, \"normalized\": "     \
    "false}]"
#define SPACE_TO_MARK                                                                              \
    "{\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"" MARK "\"}"
#define LLAMA2_REST                                                                                \
    ", \"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Prepend\", "        \
    "\"prepend\": \"" MARK "\"}, " SPACE_TO_MARK "]}" FALLBACK_DECODER

#define GEMMA_SPLIT                                                                                \
    ", \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"String\": \" \"}, \"behavior\": "  \
    "\"MergedWithPrevious\", \"invert\": false}"

static void bytes_stand_for_unknown_characters(void **state)
{
    make_bpe_model(", \"byte_fallback\": true");
    tokenizer *self = open_model(bpe_model, LLAMA2_REST);
    EXPECT(self, "ab ab", " ab ab", 6, 6);
    EXPECT(self, "\xc3\xa9", " \xc3\xa9", 2, FIRST_BYTE + 0xc3, FIRST_BYTE + 0xa9);
    EXPECT(self, "<s>ab<s> b", "<s> ab<s>  b", 1, 6, 1, 8, 4); /* each part gets a mark */
    EXPECT(self, "<0x41>", NULL, 2, FIRST_BYTE + '<', FIRST_BYTE + '0', FIRST_BYTE + 'x',
           FIRST_BYTE + '4', FIRST_BYTE + '1', FIRST_BYTE + '>');
    assert_false(tokenizer_cuts_lines(self)); /* the second part would get a mark, too */
    assert_true(tokenizer_separates(self, "<s>"));
    tokenizer_close(self);
    self = open_model(bpe_model, ", \"normalizer\": " SPACE_TO_MARK FALLBACK_DECODER GEMMA_SPLIT);
    EXPECT(self, "ab  ab", "ab  ab", 5, 2, 6); /* a mark joins ab before another mark */
    assert_true(tokenizer_cut_is_safe(self, "ab ab ab", 8, 5));
    assert_false(tokenizer_cut_is_safe(self, "ab ab\tab", 8, 5));
    tokenizer_close(self);
    self = open_model(bpe_model, METASPACE(", \"prepend_scheme\": \"first\", \"split\": false"));
    EXPECT(self, "ab", NULL, 6);
    tokenizer_close(self);
    self = open_model(
        bpe_model,
        METASPACE(", \"prepend_scheme\": \"first\"") ", \"added_tokens\": "
                                                     "[{\"id\": 1, \"content\": \"<s>\"}]");
    EXPECT(self, "ab<s>ab", NULL, 6, 1, 5); /* only the first piece gets a mark */
    assert_false(tokenizer_separates(self, "<s>"));
    tokenizer_close(self);
    make_bpe_model("");
    self = open_model(bpe_model, LLAMA2_REST);
    EXPECT(self,
           "\xc3\xa9\xc3\xa9"
           "ab",
           NULL, 2, 0, 5); /* both characters in one */
    tokenizer_close(self);
}

static void long_words_are_as_short_ones(void **state)
{
    enum { COUNT = 20001 };
    make_bpe_model(", \"byte_fallback\": true");
    tokenizer *self = open_model(bpe_model, LLAMA2_REST);
    char *text = mem_alloc(4, COUNT, "text");
    token_list list = {0};
    assert_non_null(text);
    for (size_t i = 0; i < COUNT; i++)
        memcpy(text + 4 * i, "ab\xc3\xa9", 4); /* windows end within characters */
    assert_ok(tokenizer_encode(self, text, 4 * COUNT, &as_library, &list));
    assert_int_equal(list.count, 3 * COUNT);
    for (size_t i = 0; i < list.count; i++)
        assert_int_equal(list.ids[i], i == 0       ? 6
                                      : i % 3 == 0 ? 5
                                                   : FIRST_BYTE + (i % 3 == 1 ? 0xc3 : 0xa9));
    mem_free(text);
    token_list_fini(&list);
    tokenizer_close(self);
}

/* ---- refusals ---- */

static void refusals_name_the_part(void **state)
{
    static const struct {
        const char *model, *rest, *said;
    } cases[] = {
        {"\"type\": \"WordLevel\", \"vocab\": {}", "", "a model of type WordLevel"},
        {UNIGRAM(""), ", \"pre_tokenizer\": {\"type\": \"ByteLevel\"}", "together with ByteLevel"},
        {UNIGRAM(", [\"e\"]"), "", "model.vocab[11] is not a pair"},
        {UNIGRAM(", [\"<0x00>\", 0]"), "", NULL},
        {UNIGRAM(", [\"<0x00>\", 0]") ", \"byte_fallback\": true", "", "model.vocab has 1"},
        {"\"type\": \"Unigram\", \"unk_id\": 1, \"vocab\": [[\"a\", 0]]", "", "model.unk_id"},
        {"\"type\": \"Unigram\", \"vocab\": {}", "", "model.vocab is not a list"},
        {"\"type\": \"WordPiece\", \"vocab\": {\"a\": 0}", "", "unk_token is not in"},
        {"\"type\": \"WordPiece\", \"vocab\": {\"[UNK]\": 0}, \"max_input_chars_per_word\": -1", "",
         "max_input_chars_per_word"},
        {WORDPIECE, ", \"decoder\": {\"type\": \"CTC\"}", "the decoder CTC"},
        {WORDPIECE, ", \"decoder\": {\"type\": \"Strip\", \"start\": 1}", "only after Fuse"},
        {WORDPIECE, ", \"normalizer\": {\"type\": \"Nmt\"}", "the normalizer Nmt"},
        {WORDPIECE, ", \"normalizer\": {\"type\": \"Prepend\"}", "Prepend of normalizer"},
        {WORDPIECE,
         ", \"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"Regex\": \"(a)\"}, "
         "\"content\": \"$1\"}",
         "groups of its pattern"},
        {WORDPIECE, ", \"pre_tokenizer\": {\"type\": \"Punctuation\", \"behavior\": \"Removed\"}",
         "behavior Removed"},
        {WORDPIECE, METASPACE(", \"prepend_scheme\": \"twice\""), "prepend_scheme is \"twice\""},
    };
    tokenizer *self;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_file(cases[i].model, cases[i].rest);
        int rc = tokenizer_open(path, &self);
        if (!cases[i].said) {
            assert_int_equal(rc, 0);
            tokenizer_close(self);
            continue;
        }
        assert_true(rc < 0);
        if (!strstr(err_text(), cases[i].said))
            fail_msg("case %zu: %s", i, err_text());
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wordpiece_takes_the_longest_pieces),
        cmocka_unit_test(text_is_cut_between_words),
        cmocka_unit_test(unigram_takes_the_best_pieces),
        cmocka_unit_test(equal_scores_are_decided_as_in_the_library),
        cmocka_unit_test(charsmaps_replace),
        cmocka_unit_test(bytes_stand_for_unknown_characters),
        cmocka_unit_test(long_words_are_as_short_ones),
        cmocka_unit_test(refusals_name_the_part),
    };
    return cmocka_run_group_tests(tests, make_folder, directory_remove);
}
