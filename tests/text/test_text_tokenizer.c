/* Byte-level tokenizers: ids of a small tokenizer.json that is made here, added tokens, stages,
 * normal forms, and what is refused. That ids are those of the `tokenizers` library on much text is
 * shown by tests/reference/check_tokenizer.py; the expected ids here were checked by hand or with
 * it. */
#include <unistd.h>

#include "base/mem.h"
#include "tests/text/tokenizer_folder.h"
#include "tests/unit.h"

enum { IDS_MAX = 64, BYTES = 256 };

/* Ids 0 to 255 are the bytes; then what these merges make, in their order. */
static const char *const merges[][2] = {
    {"t", "h"},
    {"th", "e"},
    {"\xc4\xa0", "the"}, /* 256 th, 257 the, 258 " the" */
    {"a", "a"},
    {"aa", "aa"},             /* 259 aa, 260 aaaa */
    {"\xc3\x83", "\xc2\xa9"}, /* 261: U+00E9, whose bytes are C3 A9 */
    {"1", "2"},               /* 262 */
};
enum { MERGE_COUNT = sizeof merges / sizeof merges[0], FIRST_ADDED = BYTES + MERGE_COUNT };

static int put_byte(FILE *file, unsigned byte, unsigned *next)
{
    bool is_visible =
        (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    return fprintf(file, "%s\"\\u%04x\": %u", byte ? ", " : "", is_visible ? byte : (*next)++,
                   byte);
}

/* Writes folder/tokenizer.json: `rest` holds further members, "" for none. */
static void write_tokenizer(const char *pre_tokenizer, const char *rest)
{
    unsigned next = 256;
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "{\"version\": \"1.0\", \"model\": {\"type\": \"BPE\", \"vocab\": {");
    for (unsigned b = 0; b < BYTES; b++)
        put_byte(file, b, &next);
    for (int i = 0; i < MERGE_COUNT; i++)
        fprintf(file, ", \"%s%s\": %d", merges[i][0], merges[i][1], BYTES + i);
    fprintf(file, "}, \"merges\": [");
    for (int i = 0; i < MERGE_COUNT; i++)
        fprintf(file, "%s\"%s %s\"", i ? ", " : "", merges[i][0], merges[i][1]);
    fprintf(file, "]}, \"pre_tokenizer\": %s%s}\n", pre_tokenizer, quoted(rest));
    assert_int_equal(fclose(file), 0);
}

#define BYTE_LEVEL  "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}"
#define BYTES_ALONE "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}"
#define SPLIT(p, how)                                                                              \
    "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"" p "\"}, \"behavior\": \"" how "\"}"
#define STAGES(s) "{\"type\": \"Sequence\", \"pretokenizers\": [" s ", " BYTES_ALONE "]}"

static void expect(const tokenizer *self, tokenize_options options, const char *text, int count,
                   const int32_t *ids)
{
    token_list list = {0};
    assert_ok(tokenizer_encode(self, text, strlen(text), &options, &list));
    if (list.count != (size_t)count ||
        (count && memcmp(list.ids, ids, (size_t)count * sizeof *ids)))
        for (size_t i = 0; i < list.count; i++)
            print_message("%s: ids[%zu] = %d\n", text, i, list.ids[i]);
    assert_int_equal(list.count, count);
    if (count)
        assert_memory_equal(list.ids, ids, (size_t)count * sizeof *ids);
    token_list_fini(&list);
}

#define EXPECT(self, options, text, ...)                                                           \
    expect(self, options, text, (int)(sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t)),         \
           (int32_t[]){__VA_ARGS__})

static const tokenize_options as_library = {0};

static void merges_go_by_rank(void **state)
{
    write_tokenizer(BYTE_LEVEL, "");
    tokenizer *self = open_it();
    assert_int_equal(tokenizer_vocab(self), FIRST_ADDED);
    EXPECT(self, as_library, "the the", 257, 258);
    EXPECT(self, as_library, "aaaaa", 260, 'a');
    EXPECT(self, as_library, "aaa the", 259, 'a', 258);
    EXPECT(self, as_library, "\xc3\xa9 x", 261, ' ', 'x'); /* " x" is one word: no merge joins it */
    EXPECT(self, as_library, "a\xff", 'a', 0xef, 0xbf, 0xbd); /* no UTF-8: U+FFFD */
    EXPECT(self, as_library, "the  the", 257, ' ', 258); /* of two spaces, the last goes along */
    expect(self, as_library, "", 0, NULL);
    tokenizer_close(self);
}

static void long_words_are_as_short_ones(void **state)
{
    enum { LONG = 1000003 };
    write_tokenizer(BYTE_LEVEL, "");
    tokenizer *self = open_it();
    char *text = mem_alloc(LONG, 1, "text");
    token_list list = {0};
    assert_non_null(text);
    memset(text, 'a', LONG);
    assert_ok(tokenizer_encode(self, text, LONG, &as_library, &list));
    assert_int_equal(list.count, LONG / 4 + 2); /* 3 are left over: aa and a */
    for (size_t i = 0; i < LONG / 4; i++)
        assert_int_equal(list.ids[i], 260);
    assert_int_equal(list.ids[LONG / 4], 259);
    assert_int_equal(list.ids[LONG / 4 + 1], 'a');
    mem_free(text);
    token_list_fini(&list);
    tokenizer_close(self);
}

static void added_tokens_are_found(void **state)
{
    write_tokenizer(BYTE_LEVEL,
                    ", 'normalizer': {'type': 'NFC'}, 'added_tokens': ["
                    "{'id': 263, 'content': '<end>', 'special': true, 'normalized': false}, "
                    "{'id': 264, 'content': '<endless>', 'special': true, 'normalized': false}, "
                    "{'id': 265, 'content': '<l>', 'lstrip': true, 'normalized': false}, "
                    "{'id': 266, 'content': '<r>', 'rstrip': true, 'normalized': false}, "
                    "{'id': 267, 'content': 'wo', 'single_word': true, 'normalized': false}, "
                    "{'id': 268, 'content': '\xc3\xa9\xc3\xa9', 'normalized': true}]");
    tokenizer *self = open_it();
    assert_int_equal(tokenizer_vocab(self), 269);
    assert_int_equal(tokenizer_find(self, "<end>"), 263);
    assert_int_equal(tokenizer_find(self, "<none>"), -1);
    EXPECT(self, as_library, "a<end>a", 'a', 263, 'a');
    EXPECT(self, as_library, "<endless><end", 264, '<', 'e', 'n', 'd'); /* the longest one */
    EXPECT(self, as_library, "a \n<l> a", 'a', 265, ' ', 'a');
    EXPECT(self, as_library, "a <r> \n a", 'a', ' ', 266, 'a');
    EXPECT(self, as_library, "<r>  <l>", 266, 265);
    EXPECT(self, as_library, "wo two wo", 267, ' ', 't', 'w', 'o', ' ', 267);
    EXPECT(self, as_library, "e\xcc\x81\xc3\xa9", 268); /* found when normalized */
    EXPECT(self, ((tokenize_options){.plain_text = true}), "<r>", '<', 'r', '>');
    size_t bytes;
    assert_memory_equal(tokenizer_token_bytes(self, 263, false, &bytes), "<end>", 5);
    tokenizer_token_bytes(self, 263, true, &bytes);
    assert_int_equal(bytes, 0);
    assert_memory_equal(tokenizer_token_bytes(self, 258, true, &bytes), " the", 4);
    assert_int_equal(bytes, 4);
    tokenizer_token_bytes(self, 269, false, &bytes);
    assert_int_equal(bytes, 0);
    tokenizer_close(self);
}

static void stages_cut(void **state)
{
    static const struct {
        const char *stages;
        int count;
        int32_t ids[8];
    } cases[] = {
        {STAGES(SPLIT("a", "Isolated")), 5, {'a', 'a', '1', 'a', 'a'}},
        {STAGES(SPLIT("a", "Removed")), 1, {'1'}},
        {STAGES(SPLIT("a", "Contiguous")), 3, {259, '1', 259}},
        {STAGES(SPLIT("1", "MergedWithPrevious")), 3, {259, '1', 259}},
        {STAGES(SPLIT("1", "MergedWithNext")), 3, {259, '1', 259}},
        {STAGES("{\"type\": \"Digits\", \"individual_digits\": true}"), 3, {259, '1', 259}},
        {"{\"type\": \"ByteLevel\"}", 4, {' ', 259, '1', 259}}, /* with a space before it */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_tokenizer(cases[i].stages, "");
        tokenizer *self = open_it();
        expect(self, as_library, "aa1aa", cases[i].count, cases[i].ids);
        tokenizer_close(self);
    }
}

static void special_ids_are_known(void **state)
{
    write_tokenizer(
        BYTE_LEVEL,
        ", 'added_tokens': [{'id': 263, 'content': '<s>', 'special': true}, "
        "{'id': 264, 'content': '<|endoftext|>', 'special': true}], "
        "'post_processor': {'type': 'TemplateProcessing', 'single': [{'SpecialToken': {'id': "
        "'<s>'}}, {'Sequence': {'id': 'A'}}], 'special_tokens': {'<s>': {'ids': [263]}}}");
    tokenizer *self = open_it();
    uint64_t hash = tokenizer_hash(self);
    assert_int_equal(tokenizer_end_id(self), 264);
    assert_int_equal(tokenizer_begin_id(self), 263);
    EXPECT(self, ((tokenize_options){.adds_special = true}), "the", 263, 257);
    EXPECT(self, as_library, "the", 257);
    tokenizer_close(self);
    /* transformers writes int(1e30) for a length without a bound */
    static const char bounds[] = "{\"model_max_length\": 1000000000000000019884624838656, "
                                 "\"eos_token\": {\"content\": \"<s>\"}}";
    write_text("tokenizer_config.json", bounds, strlen(bounds));
    self = open_it();
    assert_int_equal(tokenizer_end_id(self), 263);
    assert_int_equal(tokenizer_document_end_id(self), 263);
    assert_true(tokenizer_hash(self) != hash);
    tokenizer_close(self);
    assert_int_equal(unlink(in_directory("tokenizer_config.json")), 0);
}

/* A token that ends the messages of a chat ends no document. */
static void messages_are_no_documents(void **state)
{
    write_text("tokenizer_config.json", "{\"eos_token\": \"<|im_end|>\"}", 27);
    static const struct {
        const char *other;
        int32_t end;
    } rows[] = {{"<|endoftext|>", 264}, {"<|other|>", -1}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char added[256];
        snprintf(added, sizeof added,
                 ", 'added_tokens': [{'id': 263, 'content': '<|im_end|>', 'special': true}, "
                 "{'id': 264, 'content': '%s', 'special': true}]",
                 rows[i].other);
        write_tokenizer(BYTE_LEVEL, added);
        tokenizer *self = open_it();
        assert_int_equal(tokenizer_end_id(self), 263);
        assert_int_equal(tokenizer_document_end_id(self), rows[i].end);
        tokenizer_close(self);
    }
    assert_int_equal(unlink(in_directory("tokenizer_config.json")), 0);
}

static void refusals_name_the_part(void **state)
{
    static const struct {
        const char *pre_tokenizer, *rest, *said;
    } cases[] = {
        {"{\"type\": \"Metaspace\"}", "", "replacement is not one character"},
        {"{\"type\": \"UnicodeScripts\"}", "", "UnicodeScripts is not supported"},
        {BYTE_LEVEL, ", 'normalizer': {'type': 'Nmt'}", "normalizer Nmt"},
        {STAGES(SPLIT("(a", "Isolated")), "", "( that is not closed"},
        {STAGES(SPLIT("[a&&b]", "Isolated")), "", "intersection"},
        {STAGES(SPLIT("\\\\p{Nothing}", "Isolated")), "", "is not understood"},
        {STAGES(SPLIT("a", "Sometimes")), "", "behavior Sometimes"},
        {BYTE_LEVEL, ", 'added_tokens': [{'id': -1, 'content': 'x'}]", "ids are 0 to"},
        {BYTE_LEVEL, ", 'added_tokens': [{'id': '1', 'content': 'x'}]", "is not an integer"},
        {BYTE_LEVEL, ", 'added_tokens': {}", "added_tokens is not a list"},
        {BYTE_LEVEL, ", 'post_processor': {'type': 'Other'}", "post-processor Other"},
        {"[]", "", "pre_tokenizer is not an object"},
        {BYTE_LEVEL, "}", "this is not JSON"},
    };
    tokenizer *self;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_tokenizer(cases[i].pre_tokenizer, cases[i].rest);
        assert_true(tokenizer_open(path, &self) < 0);
        assert_null(self);
        if (!strstr(err_text(), cases[i].said))
            fail_msg("case %zu: %s", i, err_text());
    }
    assert_int_equal(tokenizer_open("/nowhere/tokenizer.json", &self), ERR_INPUT);
}

static void hostile_patterns_give_up(void **state)
{
    write_tokenizer(STAGES(SPLIT("(a|aa)+[bc]", "Isolated")), "");
    tokenizer *self = open_it();
    char text[4096];
    token_list list = {0};
    memset(text, 'a', sizeof text);
    assert_error(tokenizer_encode(self, text, sizeof text, &as_library, &list), ERR_INPUT,
                 "gives up");
    token_list_fini(&list);
    tokenizer_close(self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_go_by_rank),      cmocka_unit_test(long_words_are_as_short_ones),
        cmocka_unit_test(added_tokens_are_found), cmocka_unit_test(stages_cut),
        cmocka_unit_test(special_ids_are_known),  cmocka_unit_test(messages_are_no_documents),
        cmocka_unit_test(refusals_name_the_part), cmocka_unit_test(hostile_patterns_give_up),
    };
    return cmocka_run_group_tests(tests, make_folder, directory_remove);
}
