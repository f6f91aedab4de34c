/* Sluice's side of a comparison. It does one piece of work for each line that it reads, and answers
 * with the seconds that this took. So the Python programs of perf can let two programs really take
 * turns.
 *
 *   bench_side train JOB [MACHINE]
 *       step | bare     one training step; answers "seconds loss". With bare, updates read and
 *                       write the optimizer's state but leave out the arithmetic. MACHINE is the
 *                       machine.json by which the step is planned; without it by the defaults.
 *       commit          a commit of the last step; answers "seconds step"
 *   bench_side io DIRECTORY BYTES
 *       read | write    BYTES of a file on the drive of DIRECTORY, which was written once before,
 *                       with 16 requests of 4 MiB in flight; answers "seconds bytes"
 *       durable         write, and sync
 *   bench_side tokenize TEXT FILE
 *       one | all       with the tokenizer.json FILE: TEXT in documents of 64 KiB on one thread, or
 *                       the file TEXT as `sluice data tokenize` processes it, on all cores; answers
 *                       "seconds tokens"
 *       anew            the first documents on one thread, every word new: each document has a
 *                       newly opened tokenizer; answers "seconds bytes"
 *       split | split-all   only finds the matches of the tokenizer's pattern, by PCRE2, on one
 *                       thread or on all cores; answers "seconds matches"
 *
 * Its first output, after the setup, is "ready", and what is compared. It ends at the end of its
 * input. */
#include <errno.h>
#include <omp.h>

#include "base/mem.h"
#include "base/size.h"
#include "cli/cli.h"
#include "config/config.h"
#include "config/machine.h"
#include "data/prepare.h"
#include "perf/bench.h"
#include "setup/watch.h"
#include "text/tokenizer_internal.h"
#include "tiers/arena.h"
#include "tiers/drive_bench.h"
#include "train/train.h"

/* Reads the next line without its end. Returns false at the end of input. */
static bool next_line(char line[32])
{
    if (!fgets(line, 32, stdin))
        return false;
    line[strcspn(line, "\n")] = 0;
    return true;
}

static void ready(const char *about)
{
    printf("ready %s\n", about);
    fflush(stdout);
}

static void answer(double seconds, double what)
{
    printf("%.9f %.9g\n", seconds, what);
    fflush(stdout);
}

static double seconds_since(uint64_t start_ns)
{
    return (double)(clock_ns() - start_ns) * 1e-9;
}

/* ---- train ---- */

static void side_train(const char *path, const char *machine_path)
{
    static machine figures; /* large */
    job *asked;
    train_session *session;
    char line[32];
    bench_require(job_read(path, NULL, NULL, 0, 1, &asked));
    if (machine_path)
        bench_require(machine_read(machine_path, &figures));
    struct setup_watch watch = {.leaves_out_updates = false};
    struct train_options options = {
        .job = asked, .machine = machine_path ? &figures : NULL, .watch = &watch, .fresh = true};
    bench_require(train_open(&options, &session));
    ready("");
    while (next_line(line)) {
        struct train_progress progress;
        uint64_t step, start = clock_ns();
        if (strcmp(line, "commit") == 0) {
            bench_require(train_commit(session, &step));
            answer(seconds_since(start), (double)step);
            continue;
        }
        watch.leaves_out_updates = strcmp(line, "bare") == 0;
        bench_require(train_step(session, &progress));
        answer(seconds_since(start), progress.loss);
    }
    bench_require(train_close(session));
    job_destroy(asked);
}

/* ---- io ---- */

static void side_io(const char *directory, const char *size)
{
    enum { PIECES = 16 };
    const uint64_t piece_bytes = 4 * MIB;
    arena memory; /* [2][PIECES] pieces: for reads, for writes */
    arena_config settings = {
        .name = "host", .size_bytes = 2 * PIECES * piece_bytes, .touch_threads = 2};
    drive_bench *drive = mem_alloc(1, sizeof *drive, "drive"), *const drives[] = {drive};
    uint64_t bytes;
    char line[32];
    double unused;
    bench_require(drive ? size_parse(size, &bytes) : -ENOMEM);
    bytes = size_round_up(bytes, piece_bytes);
    bench_require(arena_init(&memory, &settings));
    drive_bench_config config = {.path = directory,
                                 .file_bytes = bytes,
                                 .memory = memory.base,
                                 .memory_bytes = memory.size_bytes};
    bench_require(drive_bench_open(&config, drive));
    bench_require(drive_bench_fill(drive, piece_bytes, PIECES, INFINITY, NULL, NULL));
    ready("");
    while (next_line(line)) {
        bool reads = strcmp(line, "read") == 0;
        drive_pass pass = {.reads = reads,
                           .writes = !reads,
                           .block_bytes = piece_bytes,
                           .depth = PIECES,
                           .seconds = INFINITY,
                           .once = true};
        uint64_t start = clock_ns();
        bench_require(drive_bench_run(drives, 1, &pass, &unused));
        if (strcmp(line, "durable") == 0)
            bench_require(io_sync(drive->queue));
        answer(seconds_since(start), (double)bytes);
    }
    drive_bench_close(drive);
    arena_fini(&memory);
    mem_free(drive);
}

/* ---- tokenize ---- */

struct texts {
    const char *path, *name; /* of the text, of the tokenizer */
    char *text;
    size_t bytes;
    tokenizer *words;
    token_list ids;
};

/* Returns the end of the document that begins at `at`: after a newline, as the peer cuts them. */
static size_t document_end(const struct texts *self, size_t at)
{
    enum { DOCUMENT_BYTES = 64 << 10 };
    size_t end = size_min(at + DOCUMENT_BYTES, self->bytes);
    const char *newline = memchr(self->text + end, '\n', self->bytes - end);
    return newline ? (size_t)(newline - self->text) + 1 : self->bytes;
}

static uint64_t encode(struct texts *self, const tokenizer *words, size_t begin, size_t end)
{
    const tokenize_options options = {0};
    self->ids.count = 0;
    bench_require(tokenizer_encode(words, self->text + begin, end - begin, &options, &self->ids));
    return self->ids.count;
}

static uint64_t encode_one(struct texts *self)
{
    uint64_t tokens = 0;
    for (size_t at = 0, end; at < self->bytes; at = end) {
        end = document_end(self, at);
        tokens += encode(self, self->words, at, end);
    }
    return tokens;
}

static int count_tokens(void *user, const uint32_t *tokens, uint64_t count)
{
    (void)tokens;
    *(uint64_t *)user += count;
    return 0;
}

static int end_document(void *user)
{
    (void)user;
    return 0;
}

static uint64_t encode_file(const struct texts *self)
{
    uint64_t tokens = 0;
    prepare_options options = {.words = self->words,
                               .tokenizer_name = self->name,
                               .vocab_size = tokenizer_vocab(self->words),
                               .has_no_end = true};
    prepare_sink sink = {.user = &tokens, .add = count_tokens, .end_document = end_document};
    prepare_work work;
    bench_require(prepare_look(self->path, DATA_TEXT, &options, &work));
    bench_require(prepare_run(&work, &options, &sink));
    return tokens;
}

/* The time to open the tokenizers does not count. */
static void answer_anew(struct texts *self)
{
    enum { DOCUMENTS = 16 };
    double seconds = 0;
    size_t at = 0, bytes = 0;
    for (int i = 0; i < DOCUMENTS; i++) {
        tokenizer *fresh;
        size_t end = document_end(self, at);
        bench_require(tokenizer_open(self->name, &fresh));
        uint64_t start = clock_ns();
        encode(self, fresh, at, end);
        seconds += seconds_since(start);
        tokenizer_close(fresh);
        bytes += end - at;
        at = end < self->bytes ? end : 0;
    }
    answer(seconds, (double)bytes);
}

/* Finds the matches of the first pattern in [begin, end) and returns their number. */
static uint64_t split_range(const struct texts *self, size_t begin, size_t end)
{
    const toki_stage *stage = &self->words->stages[0];
    pcre2_match_data *match = pcre2_match_data_create_from_pattern(stage->code, NULL);
    const PCRE2_SIZE *places = pcre2_get_ovector_pointer(match);
    uint64_t count = 0;
    for (size_t at = 0; at < end - begin;) {
        PCRE2_SPTR subject = (PCRE2_SPTR)(self->text + begin);
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

/* The beginning of the first line at or after `at`. */
static size_t line_begin(const struct texts *self, size_t at)
{
    const char *newline = at ? memchr(self->text + at - 1, '\n', self->bytes - at + 1) : NULL;
    return newline ? (size_t)(newline - self->text) + 1 : at ? self->bytes : 0;
}

/* Splits the text in as many parts as threads, each document by document. */
static uint64_t split(const struct texts *self, int threads)
{
    uint64_t count = 0, share = self->bytes / (uint64_t)threads;
    if (self->words->stage_count == 0 || !self->words->stages[0].code)
        bench_require(err_set(ERR_CONFIG, "%s: has no split pattern", self->name));
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : count)
    for (int i = 0; i < threads; i++) {
        size_t at = line_begin(self, share * (uint64_t)i);
        size_t until = i + 1 < threads ? line_begin(self, share * (uint64_t)(i + 1)) : self->bytes;
        for (size_t end; at < until; at = end) {
            end = size_min(document_end(self, at), until);
            count += split_range(self, at, end);
        }
    }
    return count;
}

/* Checks that the ids give the text again, unless the tokenizer changes texts. Describes
 * both. */
static void look(struct texts *self, char about[128])
{
    size_t end = document_end(self, 0), at = 0;
    encode(self, self->words, 0, end);
    for (size_t i = 0; i < self->ids.count && at <= end; i++) {
        size_t bytes;
        const char *piece = tokenizer_token_bytes(self->words, self->ids.ids[i], false, &bytes);
        if (bytes > end - at || memcmp(piece, self->text + at, bytes) != 0)
            break;
        at += bytes;
    }
    if (at != end && self->words->step_count == 0 && self->words->kind == TOKI_BPE)
        bench_require(err_set(ERR_INTERNAL,
                              "the ids of the text's first %zu bytes differ from it at byte %zu",
                              end, at));
    snprintf(about, 128, "%zu bytes of text, %.2f bytes a token, vocabulary of %d", self->bytes,
             (double)end / (double)self->ids.count, (int)tokenizer_vocab(self->words));
}

static void side_tokenize(const char *path, const char *name)
{
    enum { TEXT_MAX = 1 << 28 };
    struct texts self = {.path = path, .name = name, .text = mem_alloc(TEXT_MAX, 1, "text")};
    char line[32], about[128];
    FILE *file = fopen(path, "rb");
    bench_require(self.text && file ? 0 : err_set(ERR_INPUT, "%s: cannot be read", path));
    self.bytes = fread(self.text, 1, TEXT_MAX, file);
    fclose(file);
    bench_require(self.bytes ? 0 : err_set(ERR_INPUT, "%s: is empty", path));
    bench_require(tokenizer_open(name, &self.words));
    look(&self, about);
    ready(about);
    while (next_line(line)) {
        uint64_t count, start = clock_ns();
        if (strcmp(line, "anew") == 0) {
            answer_anew(&self);
            continue;
        }
        if (strcmp(line, "one") == 0)
            count = encode_one(&self);
        else if (strcmp(line, "all") == 0)
            count = encode_file(&self);
        else
            count = split(&self, strcmp(line, "split") == 0 ? 1 : omp_get_max_threads());
        answer(seconds_since(start), (double)count);
    }
    token_list_fini(&self.ids);
    tokenizer_close(self.words);
    mem_free(self.text);
}

int main(int argc, char **argv)
{
    cli_threads_settle(argv); /* threads wait in the same way as in `sluice` */
    log_set_level(LOG_WARN);
    const char *kind = argc > 1 ? argv[1] : "";
    if (strcmp(kind, "train") == 0 && (argc == 3 || argc == 4)) {
        side_train(argv[2], argc == 4 ? argv[3] : NULL);
    } else if (strcmp(kind, "io") == 0 && argc == 4) {
        side_io(argv[2], argv[3]);
    } else if (strcmp(kind, "tokenize") == 0 && argc == 4) {
        side_tokenize(argv[2], argv[3]);
    } else {
        fprintf(stderr, "usage: bench_side train JOB | io DIRECTORY BYTES | tokenize TEXT FILE\n");
        return 2;
    }
    return 0;
}
