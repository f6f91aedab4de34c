/* Text, JSON lines and conversations made into token files: which tokens there are, where documents
 * end, what counts as a target; what is wrong is named with its line; a damaged file is refused.
 * The tokenizer is "bytes", so that each token can be seen. */
#include "tests/data/token_files.h"

#include <utime.h>

static void lines_of_text(void **state)
{
    static const char text[] = "{\"text\": \"one\", \"id\": 12345678901234567890123}\r\n"
                               "\n"
                               "  {\"more\": [1, {\"text\": 2}], \"text\": \"tw\\u006f\\n\"}\n"
                               "{\"text\": \"\"}\n"
                               "{\"text\": \"a\", \"text\": \"b\"}\n"
                               "\t\n"
                               "{\"text\": \"last\"}";
    prepare_options options = options_of("auto", NULL);
    corpus *source = make(write_text("a.jsonl", text, sizeof text - 1), &options);
    if (!source)
        fail_msg("%s", err_text());
    assert_string_equal(show(source), "one|two\n|b|last|");
    assert_false(corpus_has_marks(source));
    corpus_close(source);
    static const char other[] = "{\"content\": \"z\\u0000y\"}\n{\"content\":\"x\"}\n";
    options.field = "content";
    source = make(write_text("b.ndjson", other, sizeof other - 1), &options);
    assert_int_equal(corpus_token_count(source), 4);
    corpus_close(source);
}

static void bad_lines_are_named(void **state)
{
    static const struct {
        const char *text, *word;
    } bad[] = {
        {"{\"text\": \"a\"}\n\n{\"text\": \"a\"\n", "a.jsonl:3: column"},
        {"{\"text\": \"a\"}\n[1]\n", "a.jsonl:2: the record is not an object"},
        {"{\"text\": \"a\"}\n{\"txt\": \"a\"}\n",
         "a.jsonl:2: the record has \"txt\", and records of text are read; known are"},
        {"{\"text\": \"a\"}\n{\"text\": 5}\n", "a.jsonl:2: the record has no text in \"text\""},
        {"{\"text\": \"a\"}\n{\"text\": \"\\ud800\"}\n", "a.jsonl:2: column"},
        {"{\"text\": \"a\"}\n{\"text\": \"\xff\"}\n", "a.jsonl:2: column"},
        {"{\"text\": \"a\"}\n{\"messages\": []}\n",
         "a.jsonl:2: the record has \"messages\", and records of text"},
        {"nothing\n", "begins with no JSON object"},
        {"\n\n\n", "begins with no JSON object"},
        {"{\"text\": \"\"}\n", "holds no tokens"},
        {"{\"messages\": []}\n", "a.jsonl:1: a conversation has no messages"},
        {"{\"messages\": [{}]}\n", "a.jsonl:1: message 0 has no \"role\""},
        {"{\"messages\": 3}\n", "a.jsonl:1: the record has no list \"messages\""},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n{\"text\": \"a\"}\n",
         "a.jsonl:2: the record has \"text\", and records of the kind messages"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": null}]}\n", "has no \"content\""},
        {"{\"messages\": [{\"role\": \"tool\", \"content\": \"a\"}]}\n", "the role \"tool\""},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [1]}]}\n",
         "tool_calls"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        prepare_options options = options_of("chatml", NULL);
        const char *path = write_text("a.jsonl", bad[i].text, strlen(bad[i].text));
        corpus *source = make(path, &options);
        if (source || !strstr(err_text(), bad[i].word))
            fail_msg("case %zu: no \"%s\" in: %s", i, bad[i].word, err_text());
    }
}

/* A token beyond the model's vocabulary is reported at the place where it occurs. */
static void vocabulary_is_held(void **state)
{
    prepare_options options = options_of("auto", NULL);
    options.vocab_size = 100;
    assert_null(
        make(write_text("a.jsonl", "{\"text\": \"Aa\"}\n{\"text\": \"z\"}\n", 28), &options));
    assert_non_null(strstr(err_text(), "a.jsonl:2: the tokenizer gives token 122"));
}

static void answers_alone_count(void **state)
{
    static const char text[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", "
        "\"content\": \"Yo\"}, {\"role\": \"user\", \"content\": \"A?\"}, {\"role\": "
        "\"assistant\", "
        "\"content\": \"B\"}]}\n"
        "{\"messages\": [{\"role\": \"user\", \"content\": \"no answer\"}]}\n";
    prepare_options options = options_of("chatml", NULL);
    corpus *source = make(write_text("c.jsonl", text, sizeof text - 1), &options);
    if (!source)
        fail_msg("%s", err_text());
    static const char dots[] = "............................................................";
    char wanted[512]; /* 52 bytes: a user's turn of two letters and the assistant's name */
    snprintf(wanted, sizeof wanted, "%.52sYo<|im_end|>%.53sB<|im_end|>.|%.37s|", dots, dots, dots);
    assert_string_equal(show(source), wanted);
    assert_true(corpus_has_marks(source));
    assert_int_equal(corpus_counted(source), 3 + 2 * 10);
    corpus_close(source);
    options.chat_template = "plain";
    source = make(write_text("c.jsonl", text, sizeof text - 1), &options);
    assert_string_equal(show(source),
                        "....................Yo\n....................B\n|................|");
    corpus_close(source);
}

/* ---- text ---- */

/* A long text cut into batches and pieces gives what it gives as a whole. */
static void long_texts_are_cut(void **state)
{
    enum { BYTES = 40 << 20 };
    static unsigned char text[BYTES];
    static int32_t tokens[65536];
    static const char *const some[] = {"a",    "\n", "\n\n", " ",        "word",        ".",
                                       "\r\n", "9",  "\t",   "\xc3\xa9", "\xe2\x80\x83"};
    uint64_t at = 0;
    for (uint64_t i = 0; at + 8 < BYTES; i++) {
        const char *next = some[rng_below(SEED, 21, i, sizeof some / sizeof some[0])];
        memcpy(text + at, next, strlen(next));
        at += strlen(next);
    }
    prepare_options options = options_of("auto", NULL);
    corpus *source = make(write_text("long.txt", (const char *)text, at), &options);
    if (!source)
        fail_msg("%s", err_text());
    assert_int_equal(corpus_token_count(source), at);
    assert_int_equal(corpus_document_count(source), 1);
    for (uint64_t i = 0; i < at;) {
        uint64_t part = size_min(at - i, 65536);
        assert_int_equal(corpus_read(source, i, part, tokens), 0);
        for (uint64_t k = 0; k < part; k++)
            if (tokens[k] != text[i + k])
                fail_msg("byte %llu", (unsigned long long)(i + k));
        i += part;
    }
    corpus_close(source);
    remove_all();
}

static void bytes_are_read_as_they_are(void **state)
{
    prepare_options options = options_of("auto", NULL);
    prepare_work work;
    options.tokenizer_name = "bytes";
    const char *path = write_text("a.txt", "abc", 3);
    assert_int_equal(prepare_look(path, DATA_AUTO, &options, &work), 0);
    assert_false(work.is_needed);
    path = write_ids("ids", 0, 10, VOCAB, 2);
    options.tokenizer_name = "some";
    assert_int_equal(prepare_look(path, DATA_U16, &options, &work), 0);
    assert_false(work.is_needed);
    assert_int_equal(prepare_look(in_directory("none"), DATA_AUTO, &options, &work), ERR_INPUT);
}

static volatile sig_atomic_t stops = 1;

static void keys_and_stops(void **state)
{
    prepare_options options = options_of("auto", NULL);
    prepare_work work, other;
    const char *path = write_text("a.jsonl", "{\"text\": \"abc\", \"content\": \"d\"}\n", 32);
    assert_int_equal(prepare_look(path, DATA_AUTO, &options, &work), 0);
    assert_int_equal(prepare_look(path, DATA_AUTO, &options, &other), 0);
    assert_true(work.key == other.key);
    options.field = "content";
    assert_int_equal(prepare_look(path, DATA_AUTO, &options, &other), 0);
    assert_true(work.key != other.key);
    options.field = NULL;
    struct utimbuf times = {1000, 1000};
    assert_int_equal(utime(path, &times), 0);
    assert_int_equal(prepare_look(path, DATA_AUTO, &options, &other), 0);
    assert_true(work.key != other.key);
    options.stop = &stops;
    assert_int_equal(prepare_make(&other, &options, in_directory("made.tokens")), ERR_STOPPED);
    assert_int_not_equal(access(in_directory("made.tokens.partial"), F_OK), 0);
    assert_int_equal(truncate(path, 31), 0);
    options.stop = NULL;
    assert_error(prepare_make(&other, &options, in_directory("made.tokens")), ERR_INPUT,
                 "has changed");
}

/* ---- damage ---- */

static void damage_is_refused(void **state)
{
    static const char text[] = "{\"text\": \"some\"}\n{\"text\": \"words\"}\n";
    unsigned char whole[512], broken[512];
    prepare_options options = options_of("auto", NULL);
    corpus *source = make(write_text("a.jsonl", text, sizeof text - 1), &options);
    corpus_close(source);
    const char *path = in_directory("made.tokens");
    FILE *file = fopen(path, "rb");
    size_t bytes = fread(whole, 1, sizeof whole, file);
    fclose(file);
    assert_int_equal(bytes, 64 + 24 + 16);
    for (size_t i = 0; i < bytes; i++) { /* tokens themselves and what is between are not summed */
        if (i >= 64 && i < 64 + 24)
            continue;
        memcpy(broken, whole, bytes);
        broken[i] ^= 0x10;
        write_text("made.tokens", (const char *)broken, bytes);
        assert_int_equal(corpus_open_as(&path, 1, DATA_MADE, 256, &source), ERR_INPUT);
    }
    for (size_t i = 1; i < bytes; i++) {
        write_text("made.tokens", (const char *)whole, i);
        assert_int_equal(corpus_open_as(&path, 1, DATA_MADE, 256, &source), ERR_INPUT);
        assert_false(token_file_is_made(path, 1));
    }
}

int main(void)
{
    printf("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_of_text),      cmocka_unit_test(bad_lines_are_named),
        cmocka_unit_test(vocabulary_is_held), cmocka_unit_test(answers_alone_count),
        cmocka_unit_test(long_texts_are_cut), cmocka_unit_test(bytes_are_read_as_they_are),
        cmocka_unit_test(keys_and_stops),     cmocka_unit_test(damage_is_refused),
    };
    return cmocka_run_group_tests(tests, prepare_setup, prepare_teardown);
}
