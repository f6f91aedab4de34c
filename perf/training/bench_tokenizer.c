/* Tokenizing: MB/s of text. The limit only splits the same text into words, by PCRE2.
 *
 *   bench_tokenizer TEXT [TOKENIZER [THREADS]]         and the common options of bench.h
 *   bench_tokenizer --make DIRECTORY MERGES TEXT       makes DIRECTORY/tokenizer.json and ends
 *
 * TEXT is a file of UTF-8; only its first 32 MiB are used (--quick: 4 MiB). TOKENIZER is a
 * tokenizer.json or its folder. Without it, a byte-level BPE of 8192 merges with GPT-2's pattern is
 * trained on the beginning of TEXT.
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
#include <unistd.h>

#include <xxhash.h>

#include "base/mem.h"
#include "base/size.h"
#include "data/prepare.h"
#include "perf/bench.h"
#include "text/tokenizer_internal.h"

/* ---- a tokenizer of our own ---- */

/* Trains a byte-level BPE on a text, so that bench_tokenizer does not need a published one. It has
 * GPT-2's pattern, the 256 bytes, and merges by the usual rule: the most frequent pair first, and
 * the lowest ids among equals. It is written as tokenizer.json, which the tokenizers library also
 * loads. Only the 16384 most frequent words of the text count. */
enum { BPE_WORDS_MAX = 16384, BPE_SEEN = 1 << 20, BPE_PAIRS = 1 << 19, BPE_WORD_BYTES = 64 };

struct bpe_word {
    const char *bytes;
    uint32_t byte_count;
    uint64_t count;   /* in the text */
    int32_t *symbols; /* [symbol_count], with room for byte_count */
    uint32_t symbol_count;
};

struct bpe_pair {
    uint64_t key; /* left << 32 | right, plus 1; 0: empty */
    int64_t count;
};

struct bpe {
    struct bpe_word *seen;  /* [BPE_SEEN] */
    struct bpe_pair *pairs; /* [BPE_PAIRS] */
    int32_t *left, *right;  /* [256 + merges]; -1 for a byte */
    uint32_t merge_count, word_count;
};

static void *bpe_memory(size_t count, size_t bytes)
{
    void *block = mem_alloc(count, bytes, "bpe");
    bench_require(block ? 0 : -ENOMEM);
    return block;
}

static void bpe_see(struct bpe *self, const char *bytes, size_t byte_count)
{
    if (byte_count > BPE_WORD_BYTES)
        return;
    for (size_t i = XXH3_64bits(bytes, byte_count);; i++) {
        struct bpe_word *word = &self->seen[i % BPE_SEEN];
        bool is_same =
            word->byte_count == byte_count && memcmp(word->bytes, bytes, byte_count) == 0;
        if (is_same) {
            word->count++;
            return;
        }
        if (word->byte_count == 0) {
            if (self->word_count < BPE_SEEN / 2) {
                self->word_count++;
                *word = (struct bpe_word){bytes, (uint32_t)byte_count, 1, NULL, 0};
            }
            return;
        }
    }
}

static int bpe_by_count(const void *a, const void *b)
{
    const struct bpe_word *x = a, *y = b;
    if (x->count != y->count)
        return x->count < y->count ? 1 : -1;
    uint32_t most = x->byte_count < y->byte_count ? x->byte_count : y->byte_count;
    int order = most ? memcmp(x->bytes, y->bytes, most) : 0;
    return order ? order : (x->byte_count > y->byte_count) - (x->byte_count < y->byte_count);
}

/* Collects the words of the text by GPT-2's pattern, the most frequent first. */
static void bpe_read_words(struct bpe *self, const char *text, size_t bytes)
{
    int code;
    PCRE2_SIZE at = 0;
    pcre2_code *pattern =
        pcre2_compile((PCRE2_SPTR) "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| "
                                   "?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
                      PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
    pcre2_match_data *match = pattern ? pcre2_match_data_create_from_pattern(pattern, NULL) : NULL;
    bench_require(match ? 0 : -ENOMEM);
    (void)pcre2_jit_compile(pattern, PCRE2_JIT_COMPLETE);
    const PCRE2_SIZE *places = pcre2_get_ovector_pointer(match);
    for (at = 0; at < bytes; at = places[1]) {
        int rc = pcre2_match(pattern, (PCRE2_SPTR)text, bytes, at, at ? PCRE2_NO_UTF_CHECK : 0,
                             match, NULL);
        if (rc < 0 || places[1] <= at)
            break; /* invalid UTF-8: the text before it is enough */
        bpe_see(self, text + places[0], places[1] - places[0]);
    }
    pcre2_match_data_free(match);
    pcre2_code_free(pattern);
    qsort(self->seen, BPE_SEEN, sizeof *self->seen, bpe_by_count);
    if (self->word_count > BPE_WORDS_MAX)
        self->word_count = BPE_WORDS_MAX;
    for (uint32_t w = 0; w < self->word_count; w++) {
        struct bpe_word *word = &self->seen[w];
        word->symbols = bpe_memory(word->byte_count, sizeof *word->symbols);
        word->symbol_count = word->byte_count;
        for (uint32_t i = 0; i < word->byte_count; i++)
            word->symbols[i] = (unsigned char)word->bytes[i];
    }
}

/* Adds the word's pairs, each `sign` times the word's count. */
static void bpe_count(struct bpe *self, const struct bpe_word *word, int sign)
{
    for (uint32_t i = 0; i + 1 < word->symbol_count; i++) {
        uint64_t key = ((uint64_t)word->symbols[i] << 32 | (uint64_t)word->symbols[i + 1]) + 1;
        for (size_t at = key * 0x9e3779b97f4a7c15u >> 40;; at++) {
            struct bpe_pair *pair = &self->pairs[at % BPE_PAIRS];
            if (pair->key == 0)
                pair->key = key;
            if (pair->key == key) {
                pair->count += sign * (int64_t)word->count;
                break;
            }
        }
    }
}

static void bpe_merge(struct bpe *self, int32_t left, int32_t right, int32_t id)
{
    for (uint32_t w = 0; w < self->word_count; w++) {
        struct bpe_word *word = &self->seen[w];
        uint32_t first = 0, kept = 0;
        while (first + 1 < word->symbol_count &&
               (word->symbols[first] != left || word->symbols[first + 1] != right))
            first++;
        if (first + 1 >= word->symbol_count)
            continue;
        bpe_count(self, word, -1);
        for (uint32_t i = 0; i < word->symbol_count; i++) {
            bool joins = i + 1 < word->symbol_count && word->symbols[i] == left &&
                         word->symbols[i + 1] == right;
            word->symbols[kept++] = joins ? id : word->symbols[i];
            i += joins;
        }
        word->symbol_count = kept;
        bpe_count(self, word, 1);
    }
}

static void bpe_train(struct bpe *self, uint32_t merges)
{
    for (uint32_t w = 0; w < self->word_count; w++)
        bpe_count(self, &self->seen[w], 1);
    uint32_t used = 0;
    for (uint32_t m = 0; m < merges; m++) {
        struct bpe_pair best = {0, 1};
        used = 0;
        for (size_t i = 0; i < BPE_PAIRS; i++) {
            const struct bpe_pair *pair = &self->pairs[i];
            used += pair->key != 0;
            if (pair->count > best.count || (pair->count == best.count && pair->key < best.key))
                best = *pair;
        }
        if (best.key == 0 || used > BPE_PAIRS / 2)
            break; /* no pair occurs twice, or the table is full: fewer merges are enough */
        int32_t left = (int32_t)((best.key - 1) >> 32), right = (int32_t)(best.key - 1);
        self->left[256 + m] = left;
        self->right[256 + m] = right;
        self->merge_count = m + 1;
        bpe_merge(self, left, right, (int32_t)(256 + m));
    }
}

/* Writes a token in the byte alphabet of tokenizer.json, escaped for JSON. */
static void bpe_put(FILE *file, const struct bpe *self, int32_t id,
                    const uint16_t alphabet[TOKI_BYTE_VALUES])
{
    if (id >= 256) {
        bpe_put(file, self, self->left[id], alphabet);
        bpe_put(file, self, self->right[id], alphabet);
        return;
    }
    unsigned c = alphabet[id];
    if (c == '"' || c == '\\')
        fputc('\\', file);
    if (c < 0x80) {
        fputc((int)c, file);
    } else {
        fputc((int)(0xc0 | c >> 6), file);
        fputc((int)(0x80 | (c & 0x3f)), file);
    }
}

static void bpe_write(const struct bpe *self, const char *path)
{
    uint16_t alphabet[TOKI_BYTE_VALUES];
    uint32_t count = 256 + self->merge_count;
    FILE *file = fopen(path, "wb");
    if (!file)
        bench_require(err_set(-errno, "%s: cannot be made", path));
    toki_byte_alphabet(alphabet);
    fprintf(
        file,
        "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[{\"id\":%u,"
        "\"content\":\"<|endoftext|>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
        "\"normalized\":false,\"special\":true}],\"normalizer\":null,\"pre_tokenizer\":{\"type\":"
        "\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},"
        "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,"
        "\"trim_offsets\":true,\"use_regex\":true},\"model\":{\"type\":\"BPE\",\"dropout\":null,"
        "\"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
        "\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":false,\"vocab\":{",
        count);
    for (uint32_t id = 0; id < count; id++) {
        fputs(id ? ",\"" : "\"", file);
        bpe_put(file, self, (int32_t)id, alphabet);
        fprintf(file, "\":%u", id);
    }
    fprintf(file, ",\"<|endoftext|>\":%u},\"merges\":[", count);
    for (uint32_t id = 256; id < count; id++) {
        fputs(id > 256 ? ",\"" : "\"", file);
        bpe_put(file, self, self->left[id], alphabet);
        fputc(' ', file);
        bpe_put(file, self, self->right[id], alphabet);
        fputc('"', file);
    }
    fputs("]}}\n", file);
    if (fclose(file) != 0)
        bench_require(err_set(-EIO, "%s: cannot be written", path));
}

/* Trains at most `merges` merges on text[bytes] and writes folder/tokenizer.json. */
static void bpe_make(const char *folder, uint32_t merges, const char *text, size_t bytes)
{
    struct bpe self = {.seen = bpe_memory(BPE_SEEN, sizeof *self.seen),
                       .pairs = bpe_memory(BPE_PAIRS, sizeof *self.pairs),
                       .left = bpe_memory(256 + merges, sizeof *self.left),
                       .right = bpe_memory(256 + merges, sizeof *self.right)};
    char path[4200];
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    bpe_read_words(&self, text, bytes);
    bpe_train(&self, merges);
    bpe_write(&self, path);
    for (uint32_t w = 0; w < self.word_count; w++)
        mem_free(self.seen[w].symbols);
    mem_free(self.seen);
    mem_free(self.pairs);
    mem_free(self.left);
    mem_free(self.right);
}

/* ---- the measurements ---- */

enum { DOCUMENT_BYTES = 64 << 10, THREADS_MAX = 256, MADE_MERGES = 8192 };

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

static int make(int argc, char **argv)
{
    if (argc != 5 || atoi(argv[3]) < 1 || atoi(argv[3]) > 60000) {
        fprintf(stderr, "usage: bench_tokenizer --make DIRECTORY MERGES TEXT, MERGES 1 to 60000\n");
        return 2;
    }
    struct bench self = {.text_path = argv[4]};
    read_text(&self);
    bpe_make(argv[2], (uint32_t)atoi(argv[3]), self.text, self.bytes);
    mem_free(self.text);
    return 0;
}

static char folder[] =
    "/tmp/bench-tokenizer-XXXXXX"; /* folder of a made tokenizer; also removed after a failure */

static void remove_folder(void)
{
    char path[sizeof folder + 32];
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    unlink(path);
    rmdir(folder);
}

int main(int argc, char **argv)
{
    bench_begin(&argc, argv);
    log_set_level(LOG_WARN);
    if (argc > 1 && strcmp(argv[1], "--make") == 0)
        return make(argc, argv);
    struct bench self = {.thread_count = argc > 3 ? atoi(argv[3]) : omp_get_num_procs()};
    if (argc < 2 || argc > 4 || self.thread_count < 1 || self.thread_count > THREADS_MAX) {
        fprintf(stderr,
                "usage: bench_tokenizer TEXT [TOKENIZER [THREADS 1..%d]]\n"
                "       bench_tokenizer --make DIRECTORY MERGES TEXT\n",
                THREADS_MAX);
        return 2;
    }
    self.text_path = argv[1];
    self.tokenizer_name = argc > 2 ? argv[2] : "";
    omp_set_num_threads(self.thread_count);
    read_text(&self);
    if (argc == 2) {
        bench_require(mkdtemp(folder) ? 0 : err_set(-errno, "%s cannot be made", folder));
        atexit(remove_folder);
        bpe_make(folder, MADE_MERGES, self.text, size_min(self.bytes, 4 << 20));
        self.tokenizer_name = folder;
        printf("no tokenizer was named: a byte-level BPE of at most %d merges, made of this text\n",
               MADE_MERGES);
    }
    run(&self);
    mem_free(self.text);
    return 0;
}
