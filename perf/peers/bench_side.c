/* Sluice's side of a comparison. It does one piece of work for each line that it reads, and answers
 * with the seconds that this took. So perf/peers/compare.py can let two programs really take turns.
 *
 *   bench_side train JOB [MACHINE]
 *       step | bare     one training step; answers "seconds loss". With bare, updates read and
 *                       write the optimizer's state but leave out the arithmetic. MACHINE is the
 *                       machine.json by which the step is planned; without it by the defaults.
 *   bench_side io DIRECTORY BYTES
 *       read | write    BYTES of a slab in DIRECTORY, which was written once before
 *   bench_side tokenize TEXT FILE
 *       one | all       with the tokenizer.json FILE: TEXT in documents of 64 KiB on one thread, or
 *                       the file TEXT on all cores; answers "seconds tokens"
 *
 * Its first output, after the setup, is "ready". It ends at the end of its input. */
#include <errno.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "config/config.h"
#include "config/machine.h"
#include "data/prepare.h"
#include "perf/drives/bench_drive.h"
#include "setup/watch.h"
#include "train/train.h"

enum { DOCUMENT_BYTES = 64 << 10 };

/* Reads the next line without its end. Returns false at the end of input. */
static bool next_line(char line[32])
{
    if (!fgets(line, 32, stdin))
        return false;
    line[strcspn(line, "\n")] = 0;
    return true;
}

static void ready(void)
{
    printf("ready\n");
    fflush(stdout);
}

static void answer(uint64_t start_ns, double what)
{
    printf("%.9f %.9g\n", (double)(clock_ns() - start_ns) * 1e-9, what);
    fflush(stdout);
}

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
    ready();
    while (next_line(line)) {
        struct train_progress progress;
        watch.leaves_out_updates = strcmp(line, "bare") == 0;
        uint64_t start = clock_ns();
        bench_require(train_step(session, &progress));
        answer(start, progress.loss);
    }
    bench_require(train_close(session));
    job_destroy(asked);
}

static void side_io(const char *directory, const char *size)
{
    struct bench_drive *drive = mem_alloc(1, sizeof *drive, "drive");
    uint64_t bytes;
    char line[32];
    bench_require(drive ? size_parse(size, &bytes) : -ENOMEM);
    bench_drive_open(drive, directory, bytes);
    ready();
    while (next_line(line)) {
        uint64_t start = clock_ns();
        bench_drive_move(drive, strcmp(line, "read") == 0 ? IO_READ : IO_WRITE, false);
        answer(start, (double)drive->bytes);
    }
    bench_drive_close(drive);
    mem_free(drive);
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

/* Encodes the text in pieces of DOCUMENT_BYTES, each cut after a newline, as the peer cuts them. */
static uint64_t encode_one(const tokenizer *words, const char *text, size_t bytes, token_list *ids)
{
    const tokenize_options options = {0};
    uint64_t tokens = 0;
    for (size_t at = 0, end; at < bytes; at = end) {
        end = size_min(at + DOCUMENT_BYTES, bytes);
        const char *newline = memchr(text + end, '\n', bytes - end);
        end = newline ? (size_t)(newline - text) + 1 : bytes;
        ids->count = 0;
        bench_require(tokenizer_encode(words, text + at, end - at, &options, ids));
        tokens += ids->count;
    }
    return tokens;
}

static uint64_t encode_file(const tokenizer *words, const char *path, const char *name)
{
    uint64_t tokens = 0;
    prepare_options options = {.words = words,
                               .tokenizer_name = name,
                               .vocab_size = tokenizer_vocab(words),
                               .has_no_end = true};
    prepare_sink sink = {.user = &tokens, .add = count_tokens, .end_document = end_document};
    prepare_work work;
    bench_require(prepare_look(path, DATA_TEXT, &options, &work));
    bench_require(prepare_run(&work, &options, &sink));
    return tokens;
}

static void side_tokenize(const char *path, const char *name)
{
    enum { TEXT_MAX = 1 << 28 };
    tokenizer *words;
    token_list ids = {0};
    char line[32], *text = mem_alloc(TEXT_MAX, 1, "text");
    FILE *file = fopen(path, "rb");
    bench_require(text && file ? 0 : err_set(ERR_INPUT, "%s: cannot be read", path));
    size_t bytes = fread(text, 1, TEXT_MAX, file);
    fclose(file);
    bench_require(tokenizer_open(name, &words));
    ready();
    while (next_line(line)) {
        uint64_t start = clock_ns();
        bool is_one = strcmp(line, "one") == 0;
        uint64_t tokens =
            is_one ? encode_one(words, text, bytes, &ids) : encode_file(words, path, name);
        answer(start, (double)tokens);
    }
    token_list_fini(&ids);
    tokenizer_close(words);
    mem_free(text);
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
