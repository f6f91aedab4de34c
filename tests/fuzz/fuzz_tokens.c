/* Fuzzes the token files: text, llm.c, raw ids, Megatron's pair, and the sampler upon them.
 *
 *   offset  bytes  field
 *   0       1      data.format (enum data_format), modulo those up to megatron; fuzz_files.c has
 *                  the others
 *   1       1      names: what the files are called and which of them is given (layouts[]), modulo
 *   2       1      vocabulary (vocabs[]), modulo
 *   3       1      bits 0 to 4: T - 1, tokens of a window; bit 5: the files change after opening,
 *                  bit 6: by being cut to half (else all bytes become 0xFF); bit 7: a pair is
 *                  repeated until its index is read in several pieces
 *   4       2      bytes of the first file, little-endian; what is left is the second's
 *   6              content: first file, second file
 *
 * What opens must give the tokens that the harness reads from the same bytes by code of its own,
 * and each epoch of windows must be the stream but for at most T tokens. */
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "data/corpus.h"
#include "fuzz.h"

enum {
    HEAD_BYTES = 6,
    WINDOW_MAX = 32,
    INPUT_MAX = 16384, /* larger ones are passed over */
    FILE_MAX = 1 << 18,
    IDS_MAX = 1 << 16, /* bytes of a grown pair's ids */
    LLMC_BYTES = 1024,
    INDEX_TYPE_AT = 17,
    INDEX_COUNTS_AT = 18,
    INDEX_HEADER_BYTES = 34,
    GROWN_SEQUENCES = 8200, /* more than src/data reads at a time */
};

/* First the name of the first file and of the second ("": there is none), then what is given. */
static const struct layout {
    const char *names[2];
    const char *given[2]; /* [1] NULL: one path */
} layouts[] = {
    {{"a.idx", "a.bin"}, {"a", NULL}}, /* Megatron's, the index first: it is the interesting one */
    {{"a.idx", "a.bin"}, {"a.bin", NULL}}, /* as above */
    {{"a.idx", "a.bin"}, {"a.idx", NULL}}, /* as above */
    {{"a.txt", ""}, {"a.txt", NULL}},         {{"a.bin", ""}, {"a.bin", NULL}},
    {{"a.bin", "b.bin"}, {"a.bin", "b.bin"}}, {{"a.txt", "b"}, {"a.txt", "b"}},
    {{"a.idx", "a.bin"}, {"a", "a.bin"}}, /* the same pair twice */
};
enum { LAYOUT_COUNT = sizeof layouts / sizeof layouts[0] };

static const uint64_t vocabs[] = {0, 256, 50257, 65536, 1, 300, (uint64_t)1 << 31, UINT64_MAX};
enum { VOCAB_COUNT = sizeof vocabs / sizeof vocabs[0] };

/* One input, taken apart. */
struct input {
    enum data_format format;
    const struct layout *layout;
    uint64_t vocab_size, window_tokens;
    bool changes, is_cut;
    const uint8_t *bytes[2];
    size_t sizes[2];
    char paths[2][FUZZ_PATH_BYTES]; /* as written */
};

/* Large enough for all files together. A grown index that is read as bytes needs the most. */
static int32_t expected[FILE_MAX], tokens[FILE_MAX];

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    log_set_level(LOG_QUIET);
    return 0;
}

static void take_apart(const uint8_t *data, size_t size, struct input *out)
{
    out->format = (enum data_format)(data[0] % (DATA_MEGATRON + 1));
    out->layout = &layouts[data[1] % LAYOUT_COUNT];
    out->vocab_size = vocabs[data[2] % VOCAB_COUNT];
    out->window_tokens = 1 + (data[3] & (WINDOW_MAX - 1));
    out->changes = data[3] & 0x20;
    out->is_cut = data[3] & 0x40;
    size_t first = (size_t)data[4] | (size_t)data[5] << 8;
    size_t content = size - HEAD_BYTES;
    if (first > content || out->layout->names[1][0] == '\0')
        first = content;
    out->bytes[0] = data + HEAD_BYTES;
    out->sizes[0] = first;
    out->bytes[1] = out->bytes[0] + first;
    out->sizes[1] = content - first;
}

static bool is_pair(const struct input *self)
{
    return strcmp(self->layout->names[0], "a.idx") == 0;
}

/* Whether what is given is read as Megatron's pair, if at all. An index counts wherever it lies
 * beside. */
static bool is_megatron(const struct input *self)
{
    if (self->format != DATA_AUTO || !is_pair(self))
        return self->format == DATA_MEGATRON;
    return self->sizes[0] >= 9 && memcmp(self->bytes[0], "MMIDIDX\0", 9) == 0;
}

static void write_files(struct input *self)
{
    static const char *const all[] = {"a.idx", "a.bin", "a.txt", "b.bin", "b"};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (strcmp(all[i], self->layout->names[0]) != 0 &&
            strcmp(all[i], self->layout->names[1]) != 0)
            fuzz_remove_file(all[i]);
    for (int i = 0; i < 2 && self->layout->names[i][0] != '\0'; i++)
        fuzz_write_file(self->layout->names[i], self->bytes[i], self->sizes[i], self->paths[i]);
}

static int64_t value_at(const uint8_t *bytes, unsigned width, bool is_signed)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < width; i++)
        value |= (uint64_t)bytes[i] << 8 * i;
    if (is_signed && width < 8 && value >> (8 * width - 1))
        value |= UINT64_MAX << 8 * width;
    return (int64_t)value;
}

static void put_value(uint8_t *bytes, uint64_t value)
{
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(value >> 8 * i);
}

/* Repeats sequences, documents and tokens of a pair whose counts fit to its length. */
static void grow(struct input *self)
{
    static uint8_t index[FILE_MAX], ids[IDS_MAX];
    const uint8_t *source = self->bytes[0];
    size_t size = self->sizes[0], id_bytes = self->sizes[1];
    if (size < INDEX_HEADER_BYTES)
        return;
    uint64_t sequences = (uint64_t)value_at(source + INDEX_COUNTS_AT, 8, false);
    uint64_t documents = (uint64_t)value_at(source + INDEX_COUNTS_AT + 8, 8, false);
    if (sequences == 0 || sequences > size || documents > size ||
        size != INDEX_HEADER_BYTES + 12 * sequences + 8 * documents)
        return;
    uint64_t turns = GROWN_SEQUENCES / sequences + 1;
    uint64_t index_bytes = INDEX_HEADER_BYTES + turns * (size - INDEX_HEADER_BYTES);
    if (index_bytes > sizeof index || turns * id_bytes > sizeof ids)
        return;
    memcpy(index, source, INDEX_HEADER_BYTES);
    put_value(index + INDEX_COUNTS_AT, turns * sequences);
    put_value(index + INDEX_COUNTS_AT + 8, turns * documents);
    const uint8_t *lengths = source + INDEX_HEADER_BYTES;
    const uint8_t *places = lengths + 4 * sequences, *begins = places + 8 * sequences;
    uint8_t *length_out = index + INDEX_HEADER_BYTES;
    uint8_t *place_out = length_out + turns * 4 * sequences;
    uint8_t *begin_out = place_out + turns * 8 * sequences;
    for (uint64_t turn = 0; turn < turns; turn++) {
        memcpy(length_out + turn * 4 * sequences, lengths, 4 * sequences);
        for (uint64_t i = 0; i < sequences; i++, place_out += 8)
            put_value(place_out, (uint64_t)value_at(places + 8 * i, 8, false) + turn * id_bytes);
        for (uint64_t i = 0; i < documents; i++, begin_out += 8)
            put_value(begin_out, (uint64_t)value_at(begins + 8 * i, 8, false) + turn * sequences);
        if (id_bytes > 0)
            memcpy(ids + turn * id_bytes, self->bytes[1], id_bytes);
    }
    self->bytes[0] = index;
    self->sizes[0] = index_bytes;
    self->bytes[1] = ids;
    self->sizes[1] = turns * id_bytes;
}

/* An accepted index is consistent: its sequences cover the whole .bin one after another, and
 * documents begin with sequences in ascending order. */
static void check_index(const struct input *self, unsigned width)
{
    const uint8_t *index = self->bytes[0];
    uint64_t sequences = (uint64_t)value_at(index + INDEX_COUNTS_AT, 8, false);
    uint64_t documents = (uint64_t)value_at(index + INDEX_COUNTS_AT + 8, 8, false);
    FUZZ_CHECK(sequences <= FILE_MAX && documents <= FILE_MAX &&
                   self->sizes[0] == INDEX_HEADER_BYTES + 12 * sequences + 8 * documents,
               "%llu sequences, %llu documents", (unsigned long long)sequences,
               (unsigned long long)documents);
    const uint8_t *lengths = index + INDEX_HEADER_BYTES, *places = lengths + 4 * sequences;
    const uint8_t *begins = places + 8 * sequences;
    int64_t place = 0, last = 0;
    for (uint64_t i = 0; i < sequences; i++) {
        int64_t length = value_at(lengths + 4 * i, 4, true);
        FUZZ_CHECK(length >= 0 && value_at(places + 8 * i, 8, true) == place, "sequence %llu",
                   (unsigned long long)i);
        place += length * width;
    }
    FUZZ_CHECK((uint64_t)place == self->sizes[1], "the index ends at %lld", (long long)place);
    for (uint64_t i = 0; i < documents; i++) {
        int64_t begin = value_at(begins + 8 * i, 8, true);
        FUZZ_CHECK(begin >= last && (uint64_t)begin <= sequences, "document %llu",
                   (unsigned long long)i);
        last = begin;
    }
}

/* Appends the tokens of one path that was opened, by the format that its bytes must have had. */
static size_t expect_file(const struct input *self, const char *given, size_t count)
{
    static const unsigned widths[] = {0, 1, 1, 2, 4, 8, 0, 0, 2};
    unsigned width = 1;
    bool is_signed = false;
    int which = is_pair(self)
                    ? strcmp(given, "a.idx") != 0
                    : self->layout->given[1] && strcmp(given, self->layout->given[1]) == 0;
    size_t begin = 0;
    if (is_megatron(self)) {
        unsigned code = self->bytes[0][INDEX_TYPE_AT];
        FUZZ_CHECK(code < sizeof widths / sizeof widths[0] && widths[code] > 0, "type %u", code);
        which = 1;
        width = widths[code];
        is_signed = code >= 2 && code <= 5;
        check_index(self, width);
    } else if (self->format == DATA_U16 || self->format == DATA_U32) {
        width = self->format == DATA_U16 ? 2 : 4;
    } else if (self->format != DATA_TEXT) {
        uint64_t magic = self->sizes[which] >= 4 ? (uint64_t)value_at(self->bytes[which], 4, 0) : 0;
        bool is_llmc = magic == 20240520 || magic == 20240801;
        FUZZ_CHECK(is_llmc || self->format == DATA_AUTO, "magic %llu", (unsigned long long)magic);
        begin = is_llmc ? LLMC_BYTES : 0;
        width = !is_llmc ? 1 : magic == 20240520 ? 2 : 4;
    }
    FUZZ_CHECK((self->sizes[which] - begin) % width == 0, "%zu bytes", self->sizes[which]);
    FUZZ_CHECK(count + self->sizes[which] / width <= FILE_MAX, "too little room to compare");
    for (size_t at = begin; at < self->sizes[which]; at += width) {
        int64_t value = value_at(self->bytes[which] + at, width, is_signed);
        FUZZ_CHECK(value >= 0 && value <= INT32_MAX, "token %lld", (long long)value);
        expected[count++] = (int32_t)value;
    }
    return count;
}

/* Documents follow one another through all tokens. */
static void check_documents(corpus *source, size_t count)
{
    uint64_t at = 0, begin, length;
    for (uint64_t i = 0; i < corpus_document_count(source); i++) {
        FUZZ_CHECK(corpus_document(source, i, &begin, &length) == 0, "%s", err_text());
        FUZZ_CHECK(begin == at && length <= count - at, "document %llu", (unsigned long long)i);
        at += length;
    }
    FUZZ_CHECK(at == count, "documents end at %llu", (unsigned long long)at);
}

/* Every token is below this number. */
static uint64_t vocab_of(const struct input *self)
{
    return self->vocab_size ? self->vocab_size : (uint64_t)INT32_MAX + 1;
}

/* Tokens, count and documents of an opened corpus. Returns the count. */
static size_t check_tokens(const struct input *self, corpus *source)
{
    size_t count = expect_file(self, self->layout->given[0], 0);
    if (self->layout->given[1])
        count = expect_file(self, self->layout->given[1], count);
    FUZZ_CHECK(corpus_token_count(source) == count, "%llu tokens, and %zu are there",
               (unsigned long long)corpus_token_count(source), count);
    int rc = corpus_read(source, 0, count, tokens);
    FUZZ_CHECK(rc == 0, "%s", err_text()); /* all of so small a file was checked */
    FUZZ_CHECK(memcmp(tokens, expected, count * sizeof *tokens) == 0, "other tokens");
    for (size_t i = 0; i < count; i++)
        FUZZ_CHECK((uint64_t)expected[i] < vocab_of(self), "token %d", expected[i]);
    check_documents(source, count);
    FUZZ_CHECK(corpus_read(source, count, 1, tokens) == -EINVAL, "a token beyond the end");
    FUZZ_CHECK(corpus_read(source, 1, UINT64_MAX, tokens) == -EINVAL, "tokens beyond the end");
    return count;
}

/* One epoch: its inputs are the stream from some shift on, each window once. */
static void check_epoch(sampler *windows, uint64_t epoch, size_t count)
{
    enum { EPOCH_MAX = 24 };
    int32_t inputs[WINDOW_MAX], targets[WINDOW_MAX];
    uint64_t length = windows->tokens_per_window, per_epoch = windows->windows_per_epoch;
    if (per_epoch > EPOCH_MAX)
        return;
    uint64_t sum = 0, last_sum = 0;
    for (uint64_t i = 0; i < per_epoch; i++) {
        int rc = sampler_window(windows, epoch * per_epoch + i, inputs, targets, NULL);
        FUZZ_CHECK(rc == 0, "%s", err_text());
        for (uint64_t k = 0; k < length; k++) {
            FUZZ_CHECK(k == 0 || inputs[k] == targets[k - 1], "targets are not the next tokens");
            sum += (uint64_t)inputs[k] * (uint64_t)inputs[k];
            last_sum += (uint64_t)targets[k];
        }
    }
    bool is_found = false;
    for (uint64_t shift = 0; shift + per_epoch * length + 1 <= count && !is_found; shift++) {
        uint64_t wanted = 0, last_wanted = 0;
        for (uint64_t i = shift; i < shift + per_epoch * length; i++) {
            wanted += (uint64_t)expected[i] * (uint64_t)expected[i];
            last_wanted += (uint64_t)expected[i + 1];
        }
        is_found = wanted == sum && last_wanted == last_sum;
    }
    FUZZ_CHECK(is_found, "the windows of epoch %llu are not the stream", (unsigned long long)epoch);
}

static void check_sampler(const struct input *self, corpus *source, size_t count)
{
    sampler windows;
    int32_t inputs[WINDOW_MAX], targets[WINDOW_MAX];
    uint64_t length = self->window_tokens;
    int rc = sampler_init(&windows, source, length * 77, length, SHUFFLE_WINDOWS);
    FUZZ_CHECK((rc == 0) == (count >= length + 2), "%s", err_text());
    if (rc < 0) {
        fuzz_check_refusal(rc, ERR_INPUT, ERR_INPUT);
        return;
    }
    for (uint64_t i = 0; i < 3; i++) {
        const int32_t *wanted = expected + i % windows.windows_per_epoch * length;
        FUZZ_CHECK(sampler_window_in_order(&windows, i, inputs, targets, NULL) == 0, "%s",
                   err_text());
        FUZZ_CHECK(memcmp(inputs, wanted, length * sizeof *inputs) == 0 &&
                       memcmp(targets, wanted + 1, length * sizeof *targets) == 0,
                   "window %llu in order", (unsigned long long)i);
    }
    check_epoch(&windows, 0, count);
    check_epoch(&windows, 1, count);
    check_epoch(&windows, (uint64_t)1 << 40, count);
    FUZZ_CHECK(sampler_window(&windows, UINT64_MAX, inputs, targets, NULL) == 0, "%s", err_text());
}

/* If a file changes during a run, the read fails, or the tokens are within the vocabulary. */
static void check_changed(struct input *self, corpus *source, size_t count)
{
    static uint8_t bytes[FILE_MAX];
    memset(bytes, 0xff, sizeof bytes);
    for (int i = 0; i < 2 && self->layout->names[i][0] != '\0'; i++)
        fuzz_write_file(self->layout->names[i], self->is_cut ? self->bytes[i] : bytes,
                        self->is_cut ? self->sizes[i] / 2 : self->sizes[i], self->paths[i]);
    for (size_t i = 0; i < count; i += 1 + count / 16) {
        int rc = corpus_read(source, i, 1, tokens);
        if (rc < 0)
            fuzz_check_refusal(rc, ERR_INPUT, ERR_INPUT);
        FUZZ_CHECK(rc < 0 || (uint64_t)tokens[0] < vocab_of(self), "token %d", tokens[0]);
    }
    for (uint64_t i = 0; i < corpus_document_count(source); i++) {
        uint64_t begin, length;
        int rc = corpus_document(source, i, &begin, &length);
        if (rc < 0)
            fuzz_check_refusal(rc, ERR_INPUT, ERR_INPUT);
        FUZZ_CHECK(rc < 0 || (begin <= count && length <= count - begin), "document %llu",
                   (unsigned long long)i);
    }
}

static int open_files(const struct input *self, corpus **out)
{
    char paths[2][FUZZ_PATH_BYTES];
    const char *given[2] = {paths[0], paths[1]};
    uint32_t count = 0;
    for (; count < 2 && self->layout->given[count]; count++)
        snprintf(paths[count], FUZZ_PATH_BYTES, "%s/%s", fuzz_directory(),
                 self->layout->given[count]);
    int rc = corpus_open_as(given, count, self->format, self->vocab_size, out);
    if (rc < 0) {
        FUZZ_CHECK(!*out, "a corpus beside an error");
        fuzz_check_refusal(rc, ERR_INPUT, ERR_INPUT);
    }
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < HEAD_BYTES || size > INPUT_MAX)
        return 0;
    uint64_t live_bytes = fuzz_live_bytes();
    struct input input;
    corpus *source;
    bool must_open = false;
    take_apart(data, size, &input);
    for (int i = 0; i < 2; i++) /* fuzz_files.c has these */
        if (input.sizes[i] >= 6 && (memcmp(input.bytes[i], "\x93NUMPY", 6) == 0 ||
                                    memcmp(input.bytes[i], "SLUICE", 6) == 0))
            return 0;
    if ((data[3] & 0x80) && is_pair(&input)) {
        write_files(&input);
        must_open = open_files(&input, &source) == 0 && is_megatron(&input);
        corpus_close(source);
        grow(&input);
    }
    write_files(&input);
    int rc = open_files(&input, &source);
    FUZZ_CHECK(rc == 0 || !must_open, "a pair opens and, repeated, does not: %s", err_text());
    if (rc == 0) {
        size_t token_count = check_tokens(&input, source);
        check_sampler(&input, source, token_count);
        if (input.changes)
            check_changed(&input, source, token_count);
        corpus_close(source);
    }
    FUZZ_CHECK(fuzz_live_bytes() == live_bytes, "memory is kept");
    return 0;
}
