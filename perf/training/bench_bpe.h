/* Trains a byte-level BPE on a text, so that bench_tokenizer does not need a published one. It has
 * GPT-2's pattern, the 256 bytes, and merges by the usual rule: the most frequent pair first, and
 * the lowest ids among equals. It is written as tokenizer.json, which the tokenizers library also
 * loads. Only the 16384 most frequent words of the text count. Only one file includes this. */
#ifndef SLUICE_PERF_BENCH_BPE_H
#define SLUICE_PERF_BENCH_BPE_H

#include <errno.h>
#include <xxhash.h>

#include "base/mem.h"
#include "perf/bench.h"
#include "text/tokenizer_internal.h"

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

static inline void *bpe_memory(size_t count, size_t bytes)
{
    void *block = mem_alloc(count, bytes, "bpe");
    bench_require(block ? 0 : -ENOMEM);
    return block;
}

static inline void bpe_see(struct bpe *self, const char *bytes, size_t byte_count)
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

static inline int bpe_by_count(const void *a, const void *b)
{
    const struct bpe_word *x = a, *y = b;
    if (x->count != y->count)
        return x->count < y->count ? 1 : -1;
    uint32_t most = x->byte_count < y->byte_count ? x->byte_count : y->byte_count;
    int order = most ? memcmp(x->bytes, y->bytes, most) : 0;
    return order ? order : (x->byte_count > y->byte_count) - (x->byte_count < y->byte_count);
}

/* Collects the words of the text by GPT-2's pattern, the most frequent first. */
static inline void bpe_read_words(struct bpe *self, const char *text, size_t bytes)
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
static inline void bpe_count(struct bpe *self, const struct bpe_word *word, int sign)
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

static inline void bpe_merge(struct bpe *self, int32_t left, int32_t right, int32_t id)
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

static inline void bpe_train(struct bpe *self, uint32_t merges)
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
static inline void bpe_put(FILE *file, const struct bpe *self, int32_t id,
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

static inline void bpe_write(const struct bpe *self, const char *path)
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
static inline void bpe_make(const char *folder, uint32_t merges, const char *text, size_t bytes)
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

#endif
