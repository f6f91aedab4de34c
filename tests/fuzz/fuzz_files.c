/* Fuzzes NumPy's arrays and the token files that Sluice makes, and the sampler of documents upon
 * them.
 *
 *   offset  bytes  field
 *   0       1      bit 0: npy, else made; bit 1: recognized by its beginning, else named; bit 2:
 *                  the sum of a made file's header is put right first; bit 3: the file is cut
 *                  to half after opening
 *   1       1      vocabulary (vocabs[]), modulo
 *   2       1      T - 1, tokens of a window, modulo 32
 *   3              the file
 *
 * What opens must give the tokens, marks and documents that the harness reads from the same bytes,
 * and windows of shuffled documents must hold each token of an epoch at most once. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/log.h"
#include "base/size.h"
#include "data/corpus.h"
#include "fuzz.h"

enum { HEAD_BYTES = 3, INPUT_MAX = 16384, WINDOW_MAX = 32, MADE_HEADER = 64 };

static const uint64_t vocabs[] = {0, 256, 50257, 65536, 1, (uint64_t)1 << 31};
enum { VOCAB_COUNT = sizeof vocabs / sizeof vocabs[0] };

static int32_t tokens[INPUT_MAX], targets[INPUT_MAX], times[INPUT_MAX];

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    log_set_level(LOG_QUIET);
    return 0;
}

static uint64_t value_at(const uint8_t *bytes, unsigned width)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < width; i++)
        value |= (uint64_t)bytes[i] << 8 * i;
    return value;
}

/* A made file's tokens, marks and documents are where its header says. */
static void check_made(corpus *source, const uint8_t *bytes, size_t size)
{
    unsigned width = (unsigned)value_at(bytes + 12, 4);
    bool has_marks = value_at(bytes + 16, 4) & 1;
    uint64_t count = value_at(bytes + 32, 8), documents = value_at(bytes + 40, 8), last = 0;
    FUZZ_CHECK(count == corpus_token_count(source) && documents == corpus_document_count(source),
               "%llu tokens", (unsigned long long)count);
    FUZZ_CHECK(MADE_HEADER + size_round_up(count * width, 8) + 8 * documents == size, "its length");
    for (uint64_t i = 0; i < count; i++) {
        uint64_t value = value_at(bytes + MADE_HEADER + i * width, width);
        bool is_marked = has_marks && value >> 31;
        FUZZ_CHECK((uint64_t)tokens[i] == (has_marks ? value & 0x7fffffff : value), "token %llu",
                   (unsigned long long)i);
        FUZZ_CHECK(targets[i] == (is_marked ? -1 : tokens[i]), "mark %llu", (unsigned long long)i);
    }
    const uint8_t *ends = bytes + size - 8 * documents;
    for (uint64_t i = 0; i < documents; i++) {
        uint64_t begin, length, end = value_at(ends + 8 * i, 8);
        FUZZ_CHECK(corpus_document(source, i, &begin, &length) == 0, "%s", err_text());
        FUZZ_CHECK(begin == last && begin + length == end, "document %llu", (unsigned long long)i);
        last = end;
    }
    FUZZ_CHECK(last == count, "documents end at %llu", (unsigned long long)last);
}

/* An array's elements follow its header. The rest of the file is a whole number of elements. */
static void check_npy(corpus *source, const uint8_t *bytes, size_t size)
{
    uint64_t header = bytes[6] == 1 ? 10 + value_at(bytes + 8, 2) : 12 + value_at(bytes + 8, 4);
    uint64_t count = corpus_token_count(source), at = 0, begin, length;
    FUZZ_CHECK(header < size && (size - header) % count == 0, "%llu tokens",
               (unsigned long long)count);
    unsigned width = (unsigned)((size - header) / count);
    FUZZ_CHECK(width == 1 || width == 2 || width == 4 || width == 8, "width %u", width);
    for (uint64_t i = 0; i < count; i++)
        FUZZ_CHECK((uint64_t)tokens[i] == value_at(bytes + header + i * width, width) &&
                       targets[i] == tokens[i],
                   "token %llu", (unsigned long long)i);
    for (uint64_t i = 0; i < corpus_document_count(source); i++) {
        FUZZ_CHECK(corpus_document(source, i, &begin, &length) == 0, "%s", err_text());
        FUZZ_CHECK(begin == at, "document %llu", (unsigned long long)i);
        at += length;
    }
    FUZZ_CHECK(at == count, "documents end at %llu", (unsigned long long)at);
}

/* Windows of shuffled documents hold each token value at most as often as the source. */
static void check_sampler(corpus *source, uint64_t length)
{
    int32_t in[WINDOW_MAX], out[WINDOW_MAX];
    sampler windows;
    int rc = sampler_init(&windows, source, length * 77, length, SHUFFLE_DOCUMENTS);
    if (rc < 0) {
        fuzz_check_refusal(rc, ERR_INPUT, ERR_INPUT);
        return;
    }
    memset(times, 0, sizeof times);
    for (uint64_t i = 0; i < corpus_token_count(source); i++)
        times[(uint32_t)tokens[i] % INPUT_MAX]++;
    for (uint64_t i = 0; i < windows.windows_per_epoch; i++) {
        FUZZ_CHECK(sampler_window(&windows, windows.windows_per_epoch + i, in, out, NULL) == 0,
                   "%s", err_text());
        for (uint64_t k = 0; k < length; k++) {
            FUZZ_CHECK(times[(uint32_t)in[k] % INPUT_MAX]-- > 0, "token %d too often", in[k]);
            FUZZ_CHECK(k == 0 || out[k - 1] == in[k] || out[k - 1] == -1, "target %d", out[k - 1]);
        }
    }
    sampler_fini(&windows);
}

static void check_cut(corpus *source, const char *path, size_t size)
{
    FUZZ_CHECK(truncate(path, (off_t)(size / 2)) == 0, "%s", strerror(errno));
    for (uint64_t i = 0; i < corpus_document_count(source); i++) {
        uint64_t begin, length;
        int rc = corpus_document(source, i, &begin, &length);
        if (rc < 0)
            fuzz_check_refusal(rc, ERR_INPUT, ERR_INPUT);
    }
    int rc = corpus_read_targets(source, 0, corpus_token_count(source), targets);
    if (rc < 0)
        fuzz_check_refusal(rc, ERR_INPUT, ERR_INPUT);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t bytes[INPUT_MAX];
    if (size < HEAD_BYTES || size > INPUT_MAX)
        return 0;
    uint64_t live_bytes = fuzz_live_bytes();
    char path[FUZZ_PATH_BYTES];
    const char *given = path;
    bool is_npy = data[0] & 1;
    size_t count = size - HEAD_BYTES;
    memcpy(bytes, data + HEAD_BYTES, count);
    if ((data[0] & 4) && count >= MADE_HEADER) {
        uint64_t sum = XXH3_64bits(bytes, MADE_HEADER - 8);
        memcpy(bytes + MADE_HEADER - 8, &sum, sizeof sum);
    }
    fuzz_write_file("a", bytes, count, path);
    const char *magic = is_npy ? "\x93NUMPY" : "SLUICETK";
    bool is_recognized =
        (data[0] & 2) && count >= strlen(magic) && memcmp(bytes, magic, strlen(magic)) == 0;
    enum data_format format = is_recognized ? DATA_AUTO : is_npy ? DATA_NPY : DATA_MADE;
    corpus *source;
    int rc = corpus_open_as(&given, 1, format, vocabs[data[1] % VOCAB_COUNT], &source);
    if (rc < 0) {
        FUZZ_CHECK(!source, "a corpus beside an error");
        fuzz_check_refusal(rc, ERR_INPUT, ERR_INPUT);
    } else if (corpus_is_text(source) || !is_recognized || count >= MADE_HEADER || is_npy) {
        uint64_t token_count = corpus_token_count(source);
        FUZZ_CHECK(token_count <= INPUT_MAX, "%llu tokens", (unsigned long long)token_count);
        FUZZ_CHECK(corpus_read(source, 0, token_count, tokens) == 0, "%s", err_text());
        FUZZ_CHECK(corpus_read_targets(source, 0, token_count, targets) == 0, "%s", err_text());
        if (is_npy)
            check_npy(source, bytes, count);
        else
            check_made(source, bytes, count);
        check_sampler(source, 1 + data[2] % WINDOW_MAX);
        if (data[0] & 8)
            check_cut(source, path, count);
    }
    if (rc == 0)
        corpus_close(source);
    FUZZ_CHECK(fuzz_live_bytes() == live_bytes, "memory is kept");
    return 0;
}
