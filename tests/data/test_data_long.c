/* Long texts and long records: with the least memory their tokens are those that much memory gives,
 * the memory has a bound, and what cannot be bounded is refused with file, line and numbers. */
#include "tests/data/token_files.h"

#include <sys/resource.h>
#include <sys/wait.h>

#include "base/mem.h"

enum { LEAST = 12 << 20, TEXT_BYTES = 900 << 10 };

static uint64_t draws;

static uint64_t draw(uint64_t below)
{
    return rng_below(SEED, 41, draws++, below);
}

/* Writes a tokenizer.json whose tokens are bytes, and powers of "a" and of a space. */
static const char *write_tokenizer(const char *pre_tokenizer)
{
    static char text[8192];
    static const char *const merges[] = {"a a",           "aa aa", "aaaa aaaa",
                                         "\u0120 \u0120", "a b",   "\u0120 a"};
    enum { MERGES = sizeof merges / sizeof merges[0] };
    size_t at = 0;
    unsigned next = 256;
    at += (size_t)sprintf(text, "{\"model\": {\"type\": \"BPE\", \"vocab\": {");
    for (unsigned b = 0; b < 256; b++) {
        bool is_visible = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        at += (size_t)sprintf(text + at, "%s\"\\u%04x\": %u", b ? "," : "", is_visible ? b : next++,
                              b);
    }
    for (unsigned i = 0; i < MERGES; i++) {
        const char *space = strchr(merges[i], ' ');
        at += (size_t)sprintf(text + at, ",\"%.*s%s\": %u", (int)(space - merges[i]), merges[i],
                              space + 1, 256 + i);
    }
    at += (size_t)sprintf(text + at, "}, \"merges\": [");
    for (unsigned i = 0; i < MERGES; i++)
        at += (size_t)sprintf(text + at, "%s\"%s\"", i ? "," : "", merges[i]);
    at += (size_t)sprintf(text + at,
                          "]}, \"added_tokens\": [{\"id\": 300, \"content\": \"<|endoftext|>\", "
                          "\"special\": true}], \"pre_tokenizer\": %s}",
                          pre_tokenizer);
    return write_text("tokenizer.json", text, at);
}

#define BYTE_LEVEL "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}"

/* A text of long runs, with an end token and a safe cut now and then. */
static size_t random_text(char *text, size_t most)
{
    static const char *const runs[] = {"a",
                                       " ",
                                       "ab",
                                       "\n",
                                       ". ",
                                       "\xc3\xa9",
                                       "\xf0\x9f\x98\x80",
                                       "\t",
                                       "7",
                                       "\"\\",
                                       "<|endoftext|>",
                                       "word "};
    size_t bytes = 0;
    while (bytes < most) {
        const char *run = runs[draw(sizeof runs / sizeof runs[0])];
        size_t length = strlen(run);
        uint64_t count = draw(3) ? draw(20) : draw(draw(2) ? 300000 : 70000);
        for (uint64_t i = 0; i < count && bytes + length <= most && length < 13;
             i++, bytes += length)
            memcpy(text + bytes, run, length);
        if (length == 13 && bytes + length <= most) {
            memcpy(text + bytes, run, length);
            bytes += length;
        }
        if (bytes + 16 > most)
            break;
    }
    return bytes;
}

/* Writes a text between quotes, with escapes of all kinds. */
static size_t put_json(char *out, const char *text, size_t bytes)
{
    size_t at = 0;
    out[at++] = '"';
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c < ' ' || c == '"' || c == '\\' || (c == 'a' && i % 4001 == 0))
            at += (size_t)sprintf(out + at, "\\u%04x", c);
        else if (c == 0xc3 && i % 3 == 0 && ++i)
            at += (size_t)sprintf(out + at, "\\u00E9");
        else if (c == 0xf0 && i % 5 == 0)
            i += 3, at += (size_t)sprintf(out + at, "\\ud83D\\uDe00");
        else
            out[at++] = (char)c;
    }
    out[at++] = '"';
    return at;
}

struct tokens {
    uint32_t *list;
    uint64_t count, capacity, ends;
};

static int take_tokens(void *user, const uint32_t *tokens, uint64_t count)
{
    struct tokens *self = user;
    if (self->count + count > self->capacity) {
        self->capacity = 2 * (self->count + count);
        self->list = mem_resize(self->list, self->capacity, sizeof *self->list, "tokens");
        assert_non_null(self->list);
    }
    if (count)
        memcpy(self->list + self->count, tokens, count * sizeof *tokens);
    self->count += count;
    return 0;
}

static int take_end(void *user)
{
    struct tokens *self = user;
    return take_tokens(self, (const uint32_t[]){UINT32_MAX}, 1); /* seen in the comparison */
}

static int run_with(const char *path, uint64_t memory, struct tokens *out)
{
    prepare_work work;
    prepare_options options = options_of(NULL, NULL);
    const prepare_sink sink = {.user = out, .add = take_tokens, .end_document = take_end};
    options.vocab_size = 301;
    options.memory_bytes = memory;
    TRY(prepare_look(path, DATA_AUTO, &options, &work));
    return prepare_run(&work, &options, &sink);
}

static void compare(const char *path)
{
    struct tokens much = {0}, little = {0};
    if (run_with(path, 0, &much) < 0 || run_with(path, LEAST, &little) < 0)
        fail_msg("%s", err_text());
    assert_int_equal(much.count, little.count);
    assert_memory_equal(much.list, little.list, much.count * sizeof *much.list);
    mem_free(much.list);
    mem_free(little.list);
}

static void open_words(const char *pre_tokenizer)
{
    tokenizer_close(words);
    assert_ok(tokenizer_open(write_tokenizer(pre_tokenizer), &words));
}

/* The buffers hold some 100 KiB with the least memory, and 16 MiB with much. */
static void memory_changes_no_token(void **state)
{
    static char text[TEXT_BYTES], json[6 * TEXT_BYTES];
    open_words(BYTE_LEVEL);
    for (int i = 0; i < 4; i++) {
        size_t bytes = random_text(text, TEXT_BYTES), at = 0, half = bytes / 2;
        while (((unsigned char)text[half] & 0xc0) == 0x80)
            half--;
        compare(write_text("long.txt", text, bytes));
        for (int record = 0; record < 3; record++) {
            at += (size_t)sprintf(json + at, "%s {\"n\": [1, \"\\\"\"], ",
                                  record       ? i % 2 ? ",\n" : "\n"
                                  : i % 2 == 1 ? "[\n"
                                               : "");
            if (record == 1) { /* one long text beside the one that is wanted */
                at += (size_t)sprintf(json + at, "\"more\": ");
                at += put_json(json + at, text + half, bytes - half);
                at += (size_t)sprintf(json + at, ", ");
            }
            at += (size_t)sprintf(json + at, "\"text\": ");
            at += put_json(json + at, text, record == 2 ? 0 : half);
            at += (size_t)sprintf(json + at, "}");
        }
        at += (size_t)sprintf(json + at, i % 2 ? "]\n" : i % 4 ? "\n" : "");
        compare(write_text(i % 2 ? "long.json" : "long.jsonl", json, at));
    }
    size_t at = (size_t)sprintf(json, "{\"text\": \"\\u0000long text 0\", \"more\": \"");
    memset(json + at, 'a', 700000);
    at += 700000;
    at += (size_t)sprintf(json + at, "\"}\n");
    compare(write_text("marked.jsonl", json, at)); /* a text that looks like the mark of another */
    remove_all();
}

/* A defect of a long record is found as in a short one. Records and texts that need much memory are
 * refused with the numbers. */
static void long_records_are_refused(void **state)
{
    static char json[TEXT_BYTES + 256];
    static const struct {
        const char *before, *after, *said;
    } bad[] = {
        {"{\"text\": \"", "\\q\"}\n", "a.jsonl:2: byte "},
        {"{\"text\": \"", "\\ud800\"}\n", "half of a surrogate pair"},
        {"{\"text\": \"", "\xff\"}\n", "the record is not UTF-8"},
        {"{\"text\": \"b\", \"more\": \"", "\xff\"}\n", "a.jsonl:2: byte "},
        {"{\"text\": \"", "\"\n", "a.jsonl:2: "},
        {"{\"text\": \"", "\n", "a.jsonl:2: "},
        {"{\"txt\": \"", "\"}\n", "a.jsonl:2: "},
        {"{\"text\": 5, \"more\": \"", "\"}\n", "a.jsonl:2: "},
        {"{\"text\": \"\", \"more\": [", "1]}\n", "beside its long texts"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct tokens none = {0};
        size_t at = (size_t)sprintf(json, "{\"text\": \"a\"}\n%s", bad[i].before);
        for (size_t k = 0; k < 700000; k += 2, at += 2)
            memcpy(json + at, i == 8 ? "1," : "aa", 2);
        at += (size_t)sprintf(json + at, "%s", bad[i].after);
        const char *path = write_text("a.jsonl", json, at);
        assert_int_equal(run_with(path, LEAST, &none), ERR_INPUT);
        if (!strstr(err_text(), bad[i].said))
            fail_msg("case %zu: no \"%s\" in: %s", i, bad[i].said, err_text());
        mem_free(none.list);
    }
    struct tokens none = {0};
    size_t at = (size_t)sprintf(json, "{\"prompt\": \"b\", \"completion\": \"");
    memset(json + at, 'a', 800000);
    at += 800000;
    at += (size_t)sprintf(json + at, "\"}\n");
    const char *path = write_text("a.jsonl", json, at);
    assert_error(run_with(path, LEAST, &none), ERR_INPUT, "a.jsonl:1: the record has more than");
    assert_non_null(strstr(err_text(), "tiers.host.budget"));
    assert_error(run_with(path, 1 << 20, &none), ERR_NO_FIT, "fits with tiers.host.budget=");
    open_words("{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": "
               "{\"Regex\": \"[ab]+\"}, \"behavior\": \"Isolated\"}, " BYTE_LEVEL "]}");
    memset(json, 'a', 800000);
    path = write_text("a.txt", json, 800000);
    assert_error(run_with(path, LEAST, &none), ERR_INPUT, "a.txt:1: from this line on more than");
    mem_free(none.list);
    remove_all();
}

static void log_to(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0 && dup2(fd, STDERR_FILENO) >= 0);
    close(fd);
    log_set_level(LOG_INFO);
}

/* A child process tokenizes 24 MB of one letter. Its allocations, and its memory as the kernel
 * counts it, stay below the budget and the size of a small process. Its last line gives the size
 * of the file. */
static void memory_has_a_bound(void **state)
{
    enum { BYTES = 24 << 20, BUDGET = 24 << 20, PROCESS = 24 << 20 };
    open_words(BYTE_LEVEL);
    const char *path = in_directory("letter.txt");
    FILE *file = fopen(path, "wb");
    static char part[65536];
    assert_non_null(file);
    memset(part, 'a', sizeof part);
    for (size_t i = 0; i < BYTES; i += sizeof part)
        assert_int_equal(fwrite(part, 1, sizeof part, file), sizeof part);
    assert_int_equal(fclose(file), 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        prepare_work work;
        mem_stats before, after;
        struct rusage usage;
        prepare_options options = options_of(NULL, NULL);
        options.vocab_size = 301;
        options.memory_bytes = BUDGET;
        log_to(in_directory("letter.log"));
        mem_get_stats(&before);
        int rc = prepare_look(path, DATA_AUTO, &options, &work);
        if (rc == 0)
            rc = prepare_make(&work, &options, in_directory("letter.tokens"));
        mem_get_stats(&after);
        getrusage(RUSAGE_SELF, &usage);
        bool is_small = after.live_bytes_max - before.live_bytes <= BUDGET;
#ifndef __SANITIZE_ADDRESS__
        is_small = is_small && (size_t)usage.ru_maxrss * 1024 <= BUDGET + PROCESS;
#endif
        if (rc < 0 || !is_small)
            printf("%s; %llu bytes allocated, %ld KiB in memory\n", err_text(),
                   (unsigned long long)(after.live_bytes_max - before.live_bytes), usage.ru_maxrss);
        fflush(NULL);
        _exit(rc < 0 ? 3 : is_small ? 0 : 4);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    size_t log_bytes = 0;
    char *log = NULL;
    assert_int_equal(file_read(in_directory("letter.log"), 1 << 16, &log, &log_bytes), 0);
    if (!strstr(log, "letter.txt: 24.00 MiB of 24.00 MiB are 3145729 tokens"))
        fail_msg("%s", log);
    mem_free(log);
    corpus *source;
    static int32_t tokens[1000];
    const char *made = in_directory("letter.tokens");
    assert_int_equal(corpus_open_as(&made, 1, DATA_MADE, 301, &source), 0);
    assert_int_equal(corpus_token_count(source), BYTES / 8 + 1);
    assert_int_equal(corpus_read(source, BYTES / 16, 1000, tokens), 0);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(tokens[i], 258);
    corpus_close(source);
    remove_all();
}

int main(void)
{
    printf("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_has_a_bound), /* first: it forks before there are threads */
        cmocka_unit_test(memory_changes_no_token),
        cmocka_unit_test(long_records_are_refused),
    };
    return cmocka_run_group_tests(tests, prepare_setup, prepare_teardown);
}
