/* Data loading: the tokens per second of the sampler, in windows of T tokens as training requests
 * them. The limit reads the same bytes and copies the same amount.
 *
 *   bench_data [DIRECTORY]      default: . ; and the common options of bench.h
 *
 * It makes two token files in DIRECTORY and removes them at the end: plain 16-bit ids, and a NumPy
 * array whose rows of 512 are documents. They are in the page cache during the timing, because
 * bench_nvme.py measures the drive. For each window the limit makes one pread of its T + 1 tokens
 * and one memcpy of the 8 T bytes of inputs and targets. One thread, as in training. Before the
 * timing, windows are compared with the known tokens. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <unistd.h>

#include "base/rng.h"
#include "data/corpus.h"
#include "perf/bench.h"

enum { ROW_TOKENS = 512, VOCAB = 50257, SEED = 7, HEADER_BYTES = 128, TOKENS_MAX = 4096 };

struct bench {
    sampler windows;
    uint64_t next;  /* number of the next window */
    uint64_t count; /* windows of a run */
    int fd;         /* of the same file */
    uint64_t header_bytes, token_count;
    int32_t inputs[TOKENS_MAX], targets[TOKENS_MAX];
    uint16_t raw[TOKENS_MAX + 1];
    char copy[8 * TOKENS_MAX];
};
static struct bench state;

static uint16_t token_at(uint64_t idx)
{
    return (uint16_t)rng_below(SEED, 1, idx, VOCAB);
}

/* Writes `header` [header_bytes], then the tokens. */
static int write_file(const char *path, const char *header, uint64_t header_bytes, uint64_t count)
{
    FILE *file = fopen(path, "wb");
    if (!file)
        return err_set(-errno, "%s: cannot be made: %s", path, strerror(errno));
    bool is_good = fwrite(header, 1, header_bytes, file) == header_bytes;
    for (uint64_t i = 0; i < count && is_good; i++) {
        uint16_t token = token_at(i);
        is_good = fwrite(&token, sizeof token, 1, file) == 1;
    }
    int reason = errno; /* the reason of the first failure */
    if (fclose(file) != 0 || !is_good)
        return err_set(-EIO, "%s: cannot be written: %s", path, strerror(is_good ? errno : reason));
    return 0;
}

/* Makes NumPy's header for an array [rows][ROW_TOKENS] of uint16, padded to HEADER_BYTES. */
static void numpy_header(uint64_t rows, char header[HEADER_BYTES + 1])
{
    static const char magic[] = "\x93NUMPY\x01\x00\x76\x00"; /* version 1, 118 bytes follow */
    char text[HEADER_BYTES - 10];
    snprintf(text, sizeof text,
             "{'descr': '<u2', 'fortran_order': False, 'shape': (%" PRIu64 ", %d), }", rows,
             ROW_TOKENS);
    memcpy(header, magic, 10);
    snprintf(header + 10, HEADER_BYTES - 9, "%-117s\n", text);
}

static double sample(void *user)
{
    struct bench *b = user;
    uint64_t start = clock_ns();
    for (uint64_t i = 0; i < b->count; i++)
        bench_require(sampler_window(&b->windows, b->next++, b->inputs, b->targets, NULL));
    return (double)(clock_ns() - start) * 1e-9;
}

static double read_alike(void *user)
{
    struct bench *b = user;
    uint64_t tokens = b->windows.tokens_per_window, bytes = (tokens + 1) * sizeof *b->raw;
    bool is_random = b->windows.shuffle != SHUFFLE_NONE;
    uint64_t start = clock_ns();
    for (uint64_t i = 0; i < b->count; i++) {
        uint64_t window = is_random ? rng_below(SEED, 2, b->next + i, b->windows.windows_per_epoch)
                                    : (b->next + i) % b->windows.windows_per_epoch;
        off_t offset = (off_t)(b->header_bytes + window * tokens * sizeof *b->raw);
        if (pread(b->fd, b->raw, bytes, offset) != (ssize_t)bytes)
            bench_require(err_set(-EIO, "a window cannot be read"));
        memcpy(b->copy, b->inputs, 4 * tokens);
        memcpy(b->copy + 4 * tokens, b->targets, 4 * tokens);
        /* so the copy is really made */
        __asm__ volatile("" : : "r"(b->copy), "r"(b->raw) : "memory");
    }
    return (double)(clock_ns() - start) * 1e-9;
}

/* Checks that targets follow inputs. If the windows are in the file's order, also checks the
 * tokens. */
static void check(struct bench *b)
{
    uint64_t tokens = b->windows.tokens_per_window;
    for (uint64_t window = 0; window < 64; window++) {
        bench_require(sampler_window(&b->windows, window, b->inputs, b->targets, NULL));
        for (uint64_t i = 0; i < tokens; i++) {
            bool is_right = i + 1 == tokens || b->inputs[i + 1] == b->targets[i];
            if (b->windows.shuffle == SHUFFLE_NONE)
                is_right = is_right && b->inputs[i] == token_at(window * tokens + i);
            if (!is_right)
                bench_require(err_set(ERR_INTERNAL, "window %d has another token at %d",
                                      (int)window, (int)i));
        }
    }
}

static void bench_order(const char *path, enum data_format format, enum shuffle order,
                        uint64_t tokens, const char *name)
{
    struct bench *b = &state;
    corpus *source;
    bench_require(corpus_open_as(&path, 1, format, VOCAB, &source));
    bench_require(sampler_init(&b->windows, source, SEED, tokens, order));
    b->header_bytes = format == DATA_NPY ? HEADER_BYTES : 0;
    b->fd = open(path, O_RDONLY | O_CLOEXEC);
    b->next = 0;
    b->count = (bench_is_quick() ? 2 << 20 : 16 << 20) / tokens;
    check(b);
    const struct bench_body bodies[] = {{sample, b}, {read_alike, b}};
    struct bench_summary times[2];
    bench_by_turns(bodies, 2, bench_is_quick() ? 7 : 15, times);
    char text[96];
    snprintf(text, sizeof text, "data %s T=%d", name, (int)tokens);
    bench_report(text, (double)(b->count * tokens) * 1e-6, "Mtokens/s", &times[0], &times[1]);
    close(b->fd);
    sampler_fini(&b->windows);
    corpus_close(source);
}

static char plain[4096], rows[4096]; /* paths, also removed after a failure */

static void remove_files(void)
{
    unlink(plain);
    unlink(rows);
}

int main(int argc, char **argv)
{
    bench_begin(&argc, argv);
    if (argc > 2) {
        fprintf(stderr, "usage: bench_data [DIRECTORY] [--csv FILE] [--quick]\n");
        return 2;
    }
    log_set_level(LOG_WARN);
    const char *directory = argc > 1 ? argv[1] : ".";
    uint64_t count = bench_is_quick() ? 4 << 20 : 64 << 20;
    char header[HEADER_BYTES + 1];
    atexit(remove_files);
    snprintf(plain, sizeof plain, "%s/bench_data.%d.u16", directory, (int)getpid());
    snprintf(rows, sizeof rows, "%s/bench_data.%d.npy", directory, (int)getpid());
    numpy_header(count / ROW_TOKENS, header);
    int rc = write_file(plain, header, 0, count);
    if (rc == 0)
        rc = write_file(rows, header, HEADER_BYTES, count);
    if (rc == 0) {
        printf("%d Mi tokens of 16 bits, in the page cache\n", (int)(count >> 20));
        bench_order(plain, DATA_U16, SHUFFLE_NONE, 1024, "in order");
        bench_order(plain, DATA_U16, SHUFFLE_WINDOWS, 256, "windows shuffled");
        bench_order(plain, DATA_U16, SHUFFLE_WINDOWS, 1024, "windows shuffled");
        bench_order(rows, DATA_NPY, SHUFFLE_DOCUMENTS, 1024, "documents of 512 shuffled");
    }
    bench_require(rc);
    return 0;
}
