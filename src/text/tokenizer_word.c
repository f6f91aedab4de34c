/* Turns one word into ids by the model: the merges of BPE (tokenizer_bpe.c), the longest pieces of
 * WordPiece, or the most probable pieces of Unigram. See tokenizer_internal.h.
 *
 * Repeated words are looked up in the worker's cache. Nothing is allocated for a word that is not
 * longer than all words before it. */
#include <errno.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/mem.h"
#include "base/size.h"
#include "text/tokenizer_internal.h"

void *toki_word_room(toki_worker *worker, size_t bytes)
{
    if (worker->word_capacity >= bytes)
        return worker->word;
    mem_free(worker->word);
    worker->word_capacity = 0;
    worker->word = mem_alloc(bytes, 1, "tokenizer word");
    worker->word_capacity = worker->word ? bytes : 0;
    return worker->word;
}

/* --- WordPiece --- */

/* At each place the longest piece. A word with a place where none fits is unknown. */
static int wordpiece(const tokenizer *self, const char *word, size_t bytes, token_list *out)
{
    size_t before = out->count, characters = 0, length;
    for (size_t i = 0; i < bytes; i++)
        characters += !utf8_is_inner(word[i]);
    if (characters > self->word_characters_max)
        return toki_list_add(out, self->unknown_id);
    for (size_t at = 0; at < bytes; at += length) {
        const toki_trie *pieces = at == 0 ? &self->trie : &self->trie_within;
        int32_t id = toki_trie_longest(pieces, word + at, bytes - at, &length);
        if (id < 0) {
            out->count = before;
            return toki_list_add(out, self->unknown_id);
        }
        TRY(toki_list_add(out, id));
    }
    return 0;
}

/* --- Unigram --- */

/* The best way to cut the text before a place: its score, and its last piece. */
struct best {
    double score;
    size_t begin; /* of the last piece; SIZE_MAX: there is no way */
    int32_t id;   /* the unknown token's for a character without a piece */
};
typedef struct best best;

static void improve(best *at, double score, size_t begin, int32_t id)
{
    if (at->begin == SIZE_MAX || score > at->score)
        *at = (best){score, begin, id};
}

static void reverse(token_list *list, size_t begin)
{
    for (size_t end = list->count; begin + 1 < end; begin++) {
        int32_t id = list->ids[begin];
        list->ids[begin] = list->ids[--end];
        list->ids[end] = id;
    }
}

/* Appends the ids of a text that is unknown: those of its bytes, or the unknown token. */
static int add_unknown(const tokenizer *self, const char *text, size_t bytes, token_list *out)
{
    size_t length = 0;
    int32_t id = toki_trie_longest(&self->trie, text, bytes, &length);
    if (id >= 0 && length == bytes)
        return toki_list_add(out, id);
    for (size_t i = 0; self->has_all_bytes && i < bytes; i++)
        TRY(toki_list_add(out, self->byte_ids[(unsigned char)text[i]]));
    return self->has_all_bytes ? 0 : toki_list_add(out, self->unknown_id);
}

/* The order of the sums and comparisons is the library's, because equal scores are common. */
static int unigram(const tokenizer *self, toki_worker *worker, const char *word, size_t bytes,
                   token_list *out)
{
    size_t room, length, first = out->count;
    TRY(size_mul(bytes + 1, sizeof(best), &room));
    best *ways = toki_word_room(worker, room);
    if (!ways)
        return -ENOMEM;
    ways[0] = (best){0, 0, -1};
    for (size_t i = 1; i <= bytes; i++)
        ways[i].begin = SIZE_MAX;
    for (size_t at = 0; at < bytes; at += length) {
        double score = ways[at].score;
        bool has_single = false;
        (void)toki_decode(word + at, &length);
        uint32_t node = 0;
        for (size_t i = at; i < bytes; i++) {
            node = toki_trie_next(&self->trie, node, (uint8_t)word[i]);
            if (!node)
                break;
            int32_t id = self->trie.values[node];
            if (id < 0)
                continue;
            improve(&ways[i + 1], self->scores[id] + score, at, id);
            has_single = has_single || i + 1 - at == length;
        }
        if (!has_single && self->unknown_id < 0)
            return err_set(ERR_INPUT,
                           "a text has the character U+%04X, for which the tokenizer has no token",
                           (unsigned)toki_decode(word + at, &length));
        if (!has_single)
            improve(&ways[at + length], self->unknown_score + score, at, self->unknown_id);
    }
    for (size_t end = bytes; end > 0;) { /* from the end: the ids in reverse order */
        size_t begin = ways[end].begin, from = out->count;
        bool is_unknown = self->unknown_id >= 0 && ways[end].id == self->unknown_id;
        while (is_unknown && begin > 0 && ways[begin].id == self->unknown_id)
            begin = ways[begin].begin;
        TRY(is_unknown ? add_unknown(self, word + begin, end - begin, out)
                       : toki_list_add(out, ways[end].id));
        reverse(out, from);
        end = begin;
    }
    reverse(out, first);
    return 0;
}

/* --- the cache --- */

static int model_word(const tokenizer *self, toki_worker *worker, const char *word, size_t bytes,
                      token_list *out)
{
    switch (self->kind) {
    case TOKI_WORDPIECE:
        return wordpiece(self, word, bytes, out);
    case TOKI_UNIGRAM:
        return unigram(self, worker, word, bytes, out);
    default:
        return toki_bpe_word(self, worker, word, bytes, out);
    }
}

int toki_word(const tokenizer *self, toki_worker *worker, const char *word, size_t bytes,
              token_list *out)
{
    if (bytes == 0)
        return 0;
    if (bytes > TOKI_CACHED_BYTES)
        return model_word(self, worker, word, bytes, out);
    toki_cached *cached = &worker->cache[XXH3_64bits(word, bytes) & (TOKI_CACHE_ENTRIES - 1)];
    if (cached->byte_count == bytes && memcmp(cached->bytes, word, bytes) == 0) {
        if (out->capacity - out->count < TOKI_CACHED_IDS)
            TRY(toki_list_reserve(out, TOKI_CACHED_IDS));
        memcpy(&out->ids[out->count], cached->ids, sizeof cached->ids);
        out->count += cached->id_count;
        return 0;
    }
    size_t before = out->count;
    TRY(model_word(self, worker, word, bytes, out));
    if (out->count - before > TOKI_CACHED_IDS)
        return 0;
    cached->byte_count = (uint8_t)bytes;
    cached->id_count = (uint8_t)(out->count - before);
    memcpy(cached->bytes, word, bytes);
    memcpy(cached->ids, &out->ids[before], (out->count - before) * sizeof *out->ids);
    return 0;
}
