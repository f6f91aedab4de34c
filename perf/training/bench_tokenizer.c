/* Tokenizing: MB/s of text. The limit only splits the same text into words, by PCRE2.
 *
 *   bench_tokenizer TEXT TOKENIZER [THREADS]         and the common options of bench.h
 *
 * TEXT is a file of UTF-8; only its first 32 MiB are used (--quick: 4 MiB). TOKENIZER is a
 * tokenizer.json or its folder; make_tokenizer.py makes one of any text.
 *
 * The limit is the first task of every such tokenizer: to find the pattern's matches in the text,
 * by PCRE2 with its compiler. There are three figures:
 *   - documents of 64 KiB on one thread; words seen before are cached
 *   - the same with every word new: each document has a newly opened tokenizer
 *   - a file as `sluice data tokenize` processes it, on THREADS cores (default: all); its limit
 *     splits on the same number of cores
 * Before the timing, ids are decoded and compared with the text. */
#include <errno.h>
#include <omp.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "base/size.h"
#include "data/prepare.h"
#include "perf/bench.h"
#include "text/tokenizer_internal.h"

enum { DOCUMENT_BYTES = 64 << 10, THREADS_MAX = 256 };

struct bench {
    const char *text_path, *tokenizer_name;
    char *text;
    size_t bytes;
    tokenizer *words;
    token_list ids;
    int thread_count;
    uint64_t made; /* tokens from tokenize_file */
};

/* Returns the end of the document that begins at `at`. It lies after a newline, so that no
 * character is cut. */
static size_t document_end(const struct bench *b, size_t at)
{
    size_t end = at + DOCUMENT_BYTES;
    if (end >= b->bytes)
        return b->bytes;
    const char *line = memchr(b->text + end, '\n', b->bytes - end);
    return line ? (size_t)(line - b->text) + 1 : b->bytes;
}

static void read_text(struct bench *b)
{
    size_t most = (size_t)(bench_is_quick() ? 4 : 32) << 20;
    FILE *file = fopen(b->text_path, "rb");
    if (!file)
        bench_require(err_set(ERR_INPUT, "%s: %s", b->text_path, strerror(errno)));
    b->text = mem_alloc(most + 1, 1, "text");
    bench_require(b->text ? 0 : -ENOMEM);
    b->bytes = fread(b->text, 1, most, file);
    fclose(file);
    while (b->bytes > 0 && b->text[b->bytes - 1] != '\n')
        b->bytes--;
    if (b->bytes == 0)
        bench_require(err_set(ERR_INPUT, "%s: no lines in it", b->text_path));
}

/* ---- the timed bodies; each returns seconds ---- */

static void encode(const struct bench *b, const tokenizer *words, size_t begin, size_t end,
                   token_list *ids)
{
    const tokenize_options options = {0};
    ids->count = 0;
    bench_require(tokenizer_encode(words, b->text + begin, end - begin, &options, ids));
}

static double encode_all(void *user)
{
    struct bench *b = user;
    uint64_t start = clock_ns();
    for (size_t at = 0, end; at < b->bytes; at = end) {
        end = document_end(b, at);
        encode(b, b->words, at, end, &b->ids);
    }
    return (double)(clock_ns() - start) * 1e-9;
}

/* Each document has a tokenizer that has seen nothing before. The time to open it does not
 * count. */
static double encode_anew(void *user)
{
    struct bench *b = user;
    uint64_t spent = 0;
    size_t count = bench_is_quick() ? 4 : 16, at = 0;
    for (size_t i = 0; i < count; i++) {
        tokenizer *fresh;
        size_t end = document_end(b, at);
        bench_require(tokenizer_open(b->tokenizer_name, &fresh));
        uint64_t start = clock_ns();
        encode(b, fresh, at, end, &b->ids);
        spent += clock_ns() - start;
        tokenizer_close(fresh);
        at = end < b->bytes ? end : 0;
    }
    return (double)spent * 1e-9;
}

static size_t anew_bytes(const struct bench *b)
{
    size_t count = bench_is_quick() ? 4 : 16, at = 0, bytes = 0;
    for (size_t i = 0; i < count; i++) {
        size_t end = document_end(b, at);
        bytes += end - at;
        at = end < b->bytes ? end : 0;
    }
    return bytes;
}

/* Finds the matches of the first pattern in [begin, end) and returns their number. */
static size_t split_range(const struct bench *b, size_t begin, size_t end)
{
    const toki_stage *stage = &b->words->stages[0];
    pcre2_match_data *match = pcre2_match_data_create_from_pattern(stage->code, NULL);
    const PCRE2_SIZE *places = pcre2_get_ovector_pointer(match);
    size_t count = 0;
    for (size_t at = 0; at < end - begin;) {
        PCRE2_SPTR subject = (PCRE2_SPTR)(b->text + begin);
        int rc = stage->has_jit
                     ? pcre2_jit_match(stage->code, subject, end - begin, at, 0, match, NULL)
                     : pcre2_match(stage->code, subject, end - begin, at, PCRE2_NO_UTF_CHECK, match,
                                   NULL);
        if (rc < 0)
            break;
        at = places[1] > at ? places[1] : at + 1;
        count++;
    }
    pcre2_match_data_free(match);
    return count;
}

static double split_all(void *user)
{
    struct bench *b = user;
    volatile size_t count = 0;
    uint64_t start = clock_ns();
    for (size_t at = 0, end; at < b->bytes; at = end) {
        end = document_end(b, at);
        count += split_range(b, at, end);
    }
    return (double)(clock_ns() - start) * 1e-9;
}

static double split_parallel(void *user)
{
    struct bench *b = user;
    size_t starts[THREADS_MAX + 1] = {0};
    for (int i = 1; i <= b->thread_count; i++) {
        size_t at = b->bytes / (size_t)b->thread_count * (size_t)i;
        starts[i] =
            i == b->thread_count ? b->bytes : document_end(b, at - size_min(at, DOCUMENT_BYTES));
    }
    uint64_t start = clock_ns();
#pragma omp parallel for num_threads(b->thread_count) schedule(static)
    for (int i = 0; i < b->thread_count; i++)
        for (size_t at = starts[i], end; at < starts[i + 1]; at = end) {
            end = size_min(document_end(b, at), starts[i + 1]);
            split_range(b, at, end);
        }
    return (double)(clock_ns() - start) * 1e-9;
}

static int count_tokens(void *user, const uint32_t *tokens, uint64_t count)
{
    (void)tokens;
    ((struct bench *)user)->made += count;
    return 0;
}

static int end_document(void *user)
{
    (void)user;
    return 0;
}

/* Processes the file like `sluice data tokenize`: it is read, cut, encoded on all cores and
 * passed on in order. */
static double tokenize_file(void *user)
{
    struct bench *b = user;
    prepare_options options = {.words = b->words,
                               .tokenizer_name = b->tokenizer_name,
                               .vocab_size = tokenizer_vocab(b->words),
                               .has_no_end = true};
    prepare_work work;
    prepare_sink sink = {.user = b, .add = count_tokens, .end_document = end_document};
    uint64_t start = clock_ns();
    bench_require(prepare_look(b->text_path, DATA_TEXT, &options, &work));
    bench_require(prepare_run(&work, &options, &sink));
    return (double)(clock_ns() - start) * 1e-9;
}

/* Checks that the ids give the text again. A tokenizer that normalizes may change a text; this is
 * no error. */
static void check(struct bench *b)
{
    size_t end = document_end(b, 0), at = 0;
    encode(b, b->words, 0, end, &b->ids);
    for (size_t i = 0; i < b->ids.count && at <= end; i++) {
        size_t bytes;
        const char *piece = tokenizer_token_bytes(b->words, b->ids.ids[i], false, &bytes);
        if (bytes > end - at || memcmp(piece, b->text + at, bytes) != 0)
            break;
        at += bytes;
    }
    if (at != end && b->words->step_count == 0)
        bench_require(err_set(ERR_INTERNAL,
                              "the ids of the text's first %zu bytes differ from it at "
                              "byte %zu",
                              end, at));
    printf("%zu bytes of text, %.2f bytes a token, vocabulary of %d, patterns %s\n", b->bytes,
           (double)end / (double)b->ids.count, (int)tokenizer_vocab(b->words),
           b->words->stages[0].has_jit ? "compiled" : "interpreted");
}

static void run(struct bench *b)
{
    bench_require(tokenizer_open(b->tokenizer_name, &b->words));
    if (b->words->kind != TOKI_BPE || b->words->stage_count == 0 || !b->words->stages[0].code)
        bench_require(err_set(ERR_CONFIG, "%s: not a byte-level BPE with a split pattern",
                              b->tokenizer_name));
    check(b);
    int runs = bench_is_quick() ? 7 : 9;
    double megabytes = (double)b->bytes * 1e-6;
    const struct bench_body bodies[] = {
        {encode_all, b}, {split_all, b}, {tokenize_file, b}, {split_parallel, b}, {encode_anew, b}};
    struct bench_summary times[5];
    bench_by_turns(bodies, 5, runs, times);
    bench_report("tokenizer 1 thread", megabytes, "MB/s", &times[0], &times[1]);
    /* The time that the split would take for the same bytes. */
    struct bench_summary fair = times[1];
    fair.median *= (double)anew_bytes(b) / (double)b->bytes;
    bench_report("tokenizer 1 thread every word new", (double)anew_bytes(b) * 1e-6, "MB/s",
                 &times[4], &fair);
    char name[64];
    struct stat file;
    if (stat(b->text_path, &file) == 0 && (size_t)file.st_size - b->bytes < DOCUMENT_BYTES) {
        snprintf(name, sizeof name, "tokenizer file %d thread%s", b->thread_count,
                 b->thread_count == 1 ? "" : "s");
        bench_report(name, megabytes, "MB/s", &times[2], &times[3]);
    }
    token_list_fini(&b->ids);
    tokenizer_close(b->words);
}

int main(int argc, char **argv)
{
    bench_begin(&argc, argv);
    log_set_level(LOG_WARN);
    struct bench self = {.thread_count = argc > 3 ? atoi(argv[3]) : omp_get_num_procs()};
    if (argc < 3 || argc > 4 || self.thread_count < 1 || self.thread_count > THREADS_MAX) {
        fprintf(stderr, "usage: bench_tokenizer TEXT TOKENIZER [THREADS 1..%d]\n", THREADS_MAX);
        return 2;
    }
    self.text_path = argv[1];
    self.tokenizer_name = argv[2];
    omp_set_num_threads(self.thread_count);
    read_text(&self);
    run(&self);
    mem_free(self.text);
    return 0;
}
