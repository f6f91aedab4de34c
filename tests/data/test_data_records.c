/* Kinds of JSON records: which tokens they become, and which of them count as targets; records in
 * an array and one a line; what is refused, with its place. Text that is no UTF-8, and files of
 * other programs. The tokenizer is "bytes", so that each token can be seen. */
#include "tests/data/token_files.h"

/* The tokens of a corpus as text. Those that count stand in << >>; '|' ends a document. */
static const char *show_marks(corpus *source)
{
    static char text[8192];
    static int32_t tokens[4096], targets[4096];
    uint64_t count = corpus_token_count(source), document = 0, begin, length;
    size_t at = 0;
    assert_true(count < 4000);
    assert_int_equal(corpus_read(source, 0, count, tokens), 0);
    assert_int_equal(corpus_read_targets(source, 0, count, targets), 0);
    assert_int_equal(corpus_document(source, 0, &begin, &length), 0);
    for (uint64_t i = 0; i < count; i++) {
        bool counts = targets[i] >= 0, is_end = i + 1 == begin + length;
        if (counts && (i == begin || targets[i - 1] < 0))
            at += (size_t)sprintf(text + at, "<<");
        text[at++] = (char)tokens[i];
        if (counts && (is_end || targets[i + 1] < 0))
            at += (size_t)sprintf(text + at, ">>");
        if (is_end) {
            text[at++] = '|';
            if (++document < corpus_document_count(source))
                assert_int_equal(corpus_document(source, document, &begin, &length), 0);
        }
    }
    text[at] = '\0';
    return text;
}

static corpus *make_as(const char *name, const char *text, size_t bytes, enum data_format format,
                       const char *form)
{
    prepare_options options = options_of(form, NULL);
    return make_in(write_text(name, text, bytes), format, &options);
}

#define ASK                                                                                        \
    "Below is an instruction that describes a task. Write a response that "                        \
    "appropriately completes the request.\n\n### Instruction:\n"
#define ASK_WITH                                                                                   \
    "Below is an instruction that describes a task, paired with an input that provides further "   \
    "context. Write a response that appropriately completes the request.\n\n### Instruction:\n"
#define RESPOND "\n\n### Response:\n"

/* 18 members that mean nothing. */
#define NINE(x)                                                                                    \
    x "1\":1," x "2\":1," x "3\":1," x "4\":1," x "5\":1," x "6\":1," x "7\":1," x "8\":1," x      \
      "9\":1,"
#define MANY NINE("\"a") NINE("\"b")

static void kinds_of_records(void **state)
{
    static const struct {
        const char *text, *form, *shown;
    } cases[] = {
        {"{\"text\": \"one\"}\n{\"text\": \"two\", \"id\": 1}\n", "auto", "<<one>>|<<two>>|"},
        {"{" MANY "\"text\": \"one\"}\n{" MANY "\"text\": \"two\"}\n", "auto", "<<one>>|<<two>>|"},
        {"{" MANY "\"prompt\": \"a\", " MANY "\"completion\": \"b\"}\n", "auto", "a<<b>>|"},
        /* Alpaca: its own prompts, as the tokenizer shows no form */
        {"{\"instruction\": \"Do\", \"input\": \"\", \"output\": \"Yes\"}\n"
         "{\"instruction\": \"Do\", \"input\": \"It\", \"output\": \"No\", \"text\": \"all\"}\n"
         "{\"instruction\": \"Do\", \"input\": null, \"output\": \"\", \"history\": []}\n",
         "auto",
         ASK "Do" RESPOND "<<Yes\n>>|" ASK_WITH "Do\n\n### Input:\nIt" RESPOND "<<No\n>>|" ASK
             "Do" RESPOND "<<\n>>|"},
        {"{\"instruction\": \"Do\", \"output\": \"B\", \"system\": \"Be.\", \"input\": \"It\","
         " \"history\": [[\"Q\", \"A\"]]}",
         "alpaca",
         "Be.\n\n### Instruction:\nQ" RESPOND
         "<<A\n>>\n\n### Instruction:\nDo\n\n### Input:\nIt" RESPOND "<<B\n>>|"},
        /* in a chat form: the input follows the instruction */
        {"{\"instruction\": \"Do\", \"input\": \"It\", \"output\": \"No\", \"system\": \"S\"}",
         "chatml",
         "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nDo\nIt<|im_end|>\n"
         "<|im_start|>assistant\n<<No<|im_end|>>>\n|"},
        /* prompt and completion: no form */
        {"{\"prompt\": \"2+2=\", \"completion\": \"4\"}\n{\"prompt\": \"\", \"completion\": "
         "\"x\"}\n{\"prompt\": \"a\", \"completion\": \"\"}\n",
         "auto", "2+2=<<4>>|<<x>>|a|"},
        {"{\"prompt\": [{\"role\": \"user\", \"content\": \"Q\"}, {\"role\": \"assistant\", "
         "\"content\": \"A\"}, {\"role\": \"user\", \"content\": \"R\"}], \"completion\": "
         "[{\"role\": \"assistant\", \"content\": \"B\"}]}",
         "plain", "user: Q\nassistant: A\nuser: R\nassistant: <<B\n>>|"},
        /* conversations */
        {"{\"conversations\": [{\"from\": \"human\", \"value\": \"Q\"}, {\"from\": \"gpt\", "
         "\"value\": \"A\"}], \"system\": \"S\", \"tools\": \"[]\"}\n"
         "{\"conversations\": [{\"role\": \"user\", \"content\": \"Q\"}, {\"role\": "
         "\"assistant\", \"content\": \"A\"}]}\n",
         "plain", "system: S\nuser: Q\nassistant: <<A\n>>|user: Q\nassistant: <<A\n>>|"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"Q\"}, {\"role\": \"assistant\", "
         "\"content\": \"A\", \"weight\": 0}, {\"role\": \"user\", \"content\": \"R\"}, {\"role\": "
         "\"model\", \"content\": \"B\", \"weight\": 1}]}\n",
         "plain", "user: Q\nassistant: A\nuser: R\nassistant: <<B\n>>|"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        corpus *source =
            make_as("a.jsonl", cases[i].text, strlen(cases[i].text), DATA_AUTO, cases[i].form);
        if (!source)
            fail_msg("case %zu: %s", i, err_text());
        if (strcmp(show_marks(source), cases[i].shown) != 0)
            fail_msg("case %zu: %s\nwanted %s", i, show_marks(source), cases[i].shown);
        corpus_close(source);
    }
}

/* The same records, one a line and in an array of any layout, give the same tokens. */
static void arrays_give_the_same(void **state)
{
    enum { RECORDS = 3000 };
    static char lines[1 << 20], array[1 << 20], shown[8192];
    static const char *const layouts[][3] = {
        {"[", ",", "]"}, {"\n [\n  ", "\n ,\r\n\t", "\n]\n\n"}, {"\xef\xbb\xbf[ ", ",\n", " ] "}};
    static const char *const records[] = {
        "{\"text\": \"a, b\"}", "{\"more\": [1, {\"text\": \"]\"}],%s\"text\": \"c\\\"\\\\\"}",
        "{\"text\": \"\\u005b}\",%s\"n\": {}}"};
    prepare_work work;
    prepare_options options = options_of("auto", NULL);
    for (size_t l = 0; l < sizeof layouts / sizeof layouts[0]; l++)
        for (int count = 3; count <= RECORDS; count *= 1000) {
            size_t at = 0, to = (size_t)sprintf(array, "%s", layouts[l][0]);
            for (int i = 0; i < count; i++) {
                at += (size_t)sprintf(lines + at, records[i % 3], " ");
                at += (size_t)sprintf(lines + at, "\n");
                to += (size_t)sprintf(array + to, "%s", i ? layouts[l][1] : "");
                to += (size_t)sprintf(array + to, records[i % 3], l ? "\n   " : "");
            }
            to += (size_t)sprintf(array + to, "%s", layouts[l][2]);
            corpus *one = make_as("lines.txt", lines, at, DATA_AUTO, "auto");
            if (!one)
                fail_msg("%s", err_text());
            uint64_t tokens = corpus_token_count(one);
            if (count == 3)
                snprintf(shown, sizeof shown, "%s", show_marks(one));
            corpus_close(one);
            corpus *other = make_as("array.txt", array, to, DATA_AUTO, "auto");
            if (!other)
                fail_msg("layout %zu: %s", l, err_text());
            assert_int_equal(corpus_token_count(other), tokens);
            assert_int_equal(corpus_document_count(other), count);
            if (count == 3)
                assert_string_equal(show_marks(other), shown);
            corpus_close(other);
            assert_int_equal(prepare_look(in_directory("array.txt"), DATA_AUTO, &options, &work),
                             0);
            assert_true(work.is_array);
        }
}

/* The content of a file decides its format; the name decides only where that is unclear. */
static void content_decides(void **state)
{
    static const struct {
        const char *name, *text;
        enum data_format kind;
    } cases[] = {
        {"a.json", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n", DATA_JSONL},
        {"a.json", "[{\"text\": \"a\"}]", DATA_JSONL},
        {"a.txt", "\xef\xbb\xbf {\"messages\": []}", DATA_MESSAGES},
        {"a", "[\n{\"instruction\": \"a\", \"output\": \"b\"}]", DATA_ALPACA},
        {"a.data", "{\"conversations\": [], \"text\": \"a\"}", DATA_SHAREGPT},
        {"a.data", "{\"prompt\": \"a\", \"completion\": \"b\", \"text\": \"a\"}",
         DATA_PROMPT_COMPLETION},
        {"a.txt", "{\"words\": \"a\"}", DATA_TEXT},
        {"a.txt", "{\"text\": \"a\"", DATA_TEXT},
        {"a.txt", "{text}", DATA_TEXT},
        {"a.txt", "[1] as a footnote", DATA_TEXT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        prepare_options options = options_of(NULL, NULL);
        prepare_work work;
        const char *path = write_text(cases[i].name, cases[i].text, strlen(cases[i].text));
        if (prepare_look(path, DATA_AUTO, &options, &work) < 0 || work.kind != cases[i].kind)
            fail_msg("case %zu: %s, %s", i, data_format_name(work.kind), err_text());
        prepare_work named;
        bool is_json = corpus_is_json(work.kind);
        assert_int_equal(prepare_look(path, work.kind, &options, &named), 0);
        assert_true(named.key == work.key);
        assert_int_equal(prepare_look(path, DATA_TEXT, &options, &named), 0);
        assert_int_equal(named.key != work.key, is_json);
    }
    /* a member that was named is taken before all others */
    prepare_options options = options_of(NULL, "output");
    prepare_work work;
    const char *path = write_text("a.txt", "{\"instruction\": \"a\", \"output\": \"b\"}", 36);
    assert_int_equal(prepare_look(path, DATA_AUTO, &options, &work), 0);
    assert_int_equal(work.kind, DATA_JSONL);
    assert_int_equal(prepare_look(path, DATA_ALPACA, &options, &work), 0);
    assert_int_equal(work.kind, DATA_ALPACA);
}

#define TURNS(turns) "{\"conversations\": [" turns "]}"

static void bad_records_are_named(void **state)
{
    static const struct {
        const char *text;
        enum data_format format;
        const char *word;
    } bad[] = {
        {"{\"question\": \"a\", \"answer\": \"b\"}", DATA_AUTO,
         "a.json: record 1: the record has \"question\", \"answer\"; known are messages "
         "(\"messages\"), sharegpt (\"conversations\"), alpaca (\"instruction\", \"output\"), "
         "prompt_completion (\"prompt\", \"completion\"), or a text in \"text\""},
        {"{}", DATA_AUTO, "the record has no members; known"},
        {"{'text': 'a'}", DATA_AUTO, "a.json: the first object is not well-formed JSON"},
        {"{\"messages\": [", DATA_ALPACA, "the first object is not well-formed JSON"},
        {"{\"text\": \"a\", b}", DATA_AUTO, "a.json:1: column 15: string or '}' expected"},
        {"{\"text\": \"a\"}", DATA_ALPACA, "and records of the kind alpaca are read; known"},
        {"{\"messages\": []}", DATA_SHAREGPT, "and records of the kind sharegpt are read"},
        {"[{\"text\": \"a\"}, {\"text\": \"b\"},\n\n {\"txt\": 1}]", DATA_AUTO,
         "a.json:3: record 3 of the array: the record has \"txt\", and records of text are read"},
        {"[{\"text\": \"a\"},\n {\n\"text\":\n nul}]", DATA_AUTO,
         "a.json:4: record 2 of the array: invalid token near 'nul'"},
        {"[{\"text\": \"a\"},\n [5]]", DATA_AUTO,
         "a.json:2: record 2 of the array: the record is not an object"},
        {"[{\"text\": \"a\"},\n,{\"text\": \"a\"}]", DATA_AUTO,
         "a.json:2: record 2 of the array: there is a comma where the record should be"},
        {"[{\"text\": \"a\"},\n]", DATA_AUTO, "a.json:2: record 2 of the array: the array ends"},
        {"[{\"text\": \"a\"}\n", DATA_AUTO, "record 1 of the array: the file ends before the"},
        {"[{\"text\": \"a\"}]\n\nx", DATA_AUTO, "a.json:3: more text follows the end of the array"},
        {"[{\"text\": \"a\"}}]", DATA_AUTO, "there is a } without its {"},
        {"[{\"text\": \"a\n\"}]", DATA_AUTO, "a.json:1: record 1 of the array: a text in it does"},
        {"[]", DATA_AUTO, "begins with no JSON object, { ... }, and with no array of them"},
        {"[[1]]", DATA_AUTO, "begins with no JSON object"},
        {"{\n \"text\": \"a\"\n}\n", DATA_AUTO, "the first object does not end on its line"},
        {TURNS("{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"observation\", \"value\": "
               "\"a\"}"),
         DATA_AUTO, "a.json:1: message 1 has the role \"observation\": tools"},
        {TURNS("{\"from\": \"narrator\", \"value\": \"a\"}"), DATA_AUTO, "known are system, user"},
        {TURNS("{\"from\": \"gpt\"}"), DATA_AUTO, "message 0 has no \"content\" and no \"value\""},
        {TURNS("3"), DATA_AUTO, "message 0 has no \"role\" and no \"from\""},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"tools\": [{}]}", DATA_AUTO,
         "the record has \"tools\""},
        {"{\"messages\": [{\"role\": \"system\", \"content\": \"a\"}], \"system\": \"b\"}",
         DATA_AUTO, "the record has \"system\", and"},
        {"{\"instruction\": 5, \"output\": \"a\"}", DATA_AUTO, "no text in \"instruction\""},
        {"{\"instruction\": \"a\", \"output\": null}", DATA_AUTO, "no text in \"output\""},
        {"{\"instruction\": \"a\", \"output\": \"b\", \"input\": 5}", DATA_AUTO, "an \"input\""},
        {"{\"instruction\": \"a\", \"output\": \"b\", \"history\": [[\"a\"]]}", DATA_AUTO,
         "entry 0 of \"history\" is no pair"},
        {"{\"prompt\": \"a\", \"completion\": [\"b\"]}", DATA_AUTO, "no text in \"completion\""},
        {"{\"prompt\": [], \"completion\": \"b\"}", DATA_AUTO, "not both lists of messages"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        corpus *source =
            make_as("a.json", bad[i].text, strlen(bad[i].text), bad[i].format, "chatml");
        if (source || !strstr(err_text(), bad[i].word))
            fail_msg("case %zu: no \"%s\" in: %s", i, bad[i].word, err_text());
    }
}

/* Text must be UTF-8 without zeros, wherever it is read from. The explicit format "text" takes any
 * bytes. */
static void text_is_checked(void **state)
{
    enum { BYTES = 200000 };
    static char text[BYTES];
    static const struct {
        const char *bad;
        size_t bytes, offset; /* of the byte that is named, within `bad` */
    } cases[] = {
        {"\xff", 1, 0},          {"\0", 1, 0}, {"\xc3\xa9\xa9", 3, 2}, {"\xed\xa0\x80", 3, 0},
        {"\xf0\x9f\x98 ", 4, 0},
    };
    static const size_t places[] = {0, 100, 32766, 32767, 32768, 131071, BYTES - 4};
    prepare_options options = options_of("auto", NULL);
    corpus *source;
    char word[96];
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++)
        for (size_t p = 0; p < sizeof places / sizeof places[0]; p++) {
            size_t at = places[p];
            for (size_t i = 0; i < BYTES; i++)
                text[i] = i % 50 == 49 ? '\n' : 'a';
            memcpy(text + at, cases[c].bad, cases[c].bytes);
            const char *path = write_text("a.txt", text, BYTES);
            at += cases[c].offset;
            snprintf(word, sizeof word, "a.txt is not UTF-8 text: byte %zu (from 0, in line %zu)",
                     at, at / 50 + 1);
            assert_int_equal(corpus_open_as(&path, 1, DATA_AUTO, 256, &source), ERR_INPUT);
            if (!strstr(err_text(), word))
                fail_msg("case %zu: no \"%s\" in: %s", c, word, err_text());
            assert_null(make_in(path, DATA_AUTO, &options));
            if (!strstr(err_text(), word))
                fail_msg("case %zu: no \"%s\" in: %s", c, word, err_text());
            source = open_good(&path, 1, DATA_TEXT, 256);
            assert_int_equal(corpus_token_count(source), BYTES);
            corpus_close(source);
        }
    /* cut within a character */
    const char *path = write_text("a.txt", "caf\xc3", 4);
    assert_int_equal(corpus_open_as(&path, 1, DATA_AUTO, 256, &source), ERR_INPUT);
    assert_null(make_in(path, DATA_AUTO, &options));
    assert_non_null(strstr(err_text(), "byte 3"));
}

/* Characters of all lengths across the borders of all reads are good. */
static void good_text_is_taken(void **state)
{
    static char text[300000];
    static const char *const some[] = {"a", "\n", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"};
    static int32_t tokens[64];
    prepare_options options = options_of("auto", NULL);
    size_t at = (size_t)sprintf(text, "\xef\xbb\xbf");
    for (uint64_t i = 0; at + 4 < sizeof text; i++) {
        const char *next = some[rng_below(SEED, 31, i, 5)];
        memcpy(text + at, next, strlen(next));
        at += strlen(next);
    }
    const char *path = write_text("a.txt", text, at);
    corpus *sources[2] = {open_good(&path, 1, DATA_AUTO, 256), NULL};
    sources[1] = make_in(path, DATA_AUTO, &options);
    if (!sources[1])
        fail_msg("%s", err_text());
    for (int s = 0; s < 2; s++) {
        assert_int_equal(corpus_token_count(sources[s]), at - 3);
        for (uint64_t i = 0; i < 3000; i++) {
            uint64_t begin = rng_below(SEED, 32, i, at - 3 - 64);
            uint64_t count = 1 + rng_below(SEED, 33, i, 64);
            assert_int_equal(corpus_read(sources[s], begin, count, tokens), 0);
            for (uint64_t k = 0; k < count; k++)
                assert_int_equal(tokens[k], (unsigned char)text[3 + begin + k]);
        }
        corpus_close(sources[s]);
    }
}

static void foreign_files_are_named(void **state)
{
    static const struct {
        const char *begin;
        size_t bytes;
        const char *word;
    } cases[] = {
        {"PAR1\x15\x04", 6, "a Parquet file"},
        {"\xff\xff\xff\xff\x10\x01\0\0", 8, "an Arrow file"},
        {"\x1f\x8b\x08", 3, "gzip -d"},
        {"\x28\xb5\x2f\xfd", 4, "zstd -d"},
        {"PK\x03\x04", 4, "a ZIP archive"},
        {"\x80\x04\x95", 3, "a Python pickle"},
        {"SQLite format 3", 16, "an SQLite database"},
        {"\x89HDF\r\n\x1a\n", 8, "an HDF5 file"},
        {"%PDF-1.7", 8, "pdftotext"},
        {"\xff\xfe"
         "a\0",
         4, "iconv -f UTF-16"},
        {"\xff\xfe\0\0", 4, "iconv -f UTF-32"},
        {"version https://git-lfs.github.com/spec/v1\n", 43, "git lfs pull"},
    };
    static const char *const names[] = {"a.txt", "a.jsonl", "a.parquet"};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t n = 0; n < sizeof names / sizeof names[0]; n++) {
            char text[256] = "";
            memcpy(text, cases[i].begin, cases[i].bytes);
            const char *path = write_text(names[n], text, sizeof text);
            prepare_options options = options_of("auto", NULL);
            corpus *source;
            prepare_work work;
            assert_error(prepare_look(path, DATA_AUTO, &options, &work), ERR_INPUT, cases[i].word);
            assert_error(prepare_look(path, DATA_TEXT, &options, &work), ERR_INPUT, cases[i].word);
            assert_error(corpus_open_as(&path, 1, DATA_AUTO, 256, &source), ERR_INPUT,
                         cases[i].word);
        }
    /* text that begins like the name of a format is text */
    const char *path = write_text("a.txt", "PAR1 and GGUF are magics.", 25);
    corpus_close(open_good(&path, 1, DATA_AUTO, 256));
}

int main(void)
{
    printf("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kinds_of_records),        cmocka_unit_test(arrays_give_the_same),
        cmocka_unit_test(content_decides),         cmocka_unit_test(bad_records_are_named),
        cmocka_unit_test(text_is_checked),         cmocka_unit_test(good_text_is_taken),
        cmocka_unit_test(foreign_files_are_named),
    };
    return cmocka_run_group_tests(tests, prepare_setup, prepare_teardown);
}
