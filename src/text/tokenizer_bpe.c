/* The merges of BPE within one word. Its symbols are at first its bytes (of a byte-level tokenizer)
 * or its characters; a character without a token is its bytes as tokens ("<0x0A>"), or the unknown
 * token. Among all pairs of neighbours the one with the lowest rank merges, the
 * leftmost of equal ones, until no pair has a rank. See tokenizer_internal.h.
 *
 *   short words     the ranks of all pairs in an array, searched for the lowest at each merge:
 *                   quadratic, but fastest
 *   long words      a linked list with a heap of (rank, place): n log n, so that a text of one byte
 *                   repeated a million times ends soon
 *   longer words    than the tokenizer's word_window: one window after another, so that memory has
 *                   a bound. The next paragraphs say why the ids are those of the whole word.
 *
 * The front of a word. A window holds the beginning of a word whose rest is unknown. Its symbols
 * merge as in a long word, but the ones at the end are given up step by step. At each moment the
 * symbols up to `last` are certain: whatever the rest of the word is, merging the whole word comes
 * to a moment at which it begins with exactly these symbols, and at which the symbol after `last`
 * begins with the bytes that were given up last. In the beginning this is true for all bytes of the
 * window. Let `risk` be the lowest rank at which `last` merges with any symbol that can follow it.
 *
 * - If a pair of certain symbols has a rank up to `risk`, it merges before `last` merges with what
 *   follows: the pair is further left. The rest of the word may merge in between, but that changes
 *   only the end of the symbol after `last`.
 * - Else `last` may merge with what follows: it is given up.
 * - If no pair is left and `last` merges with nothing that can follow, no later merge reaches the
 *   certain symbols. They are the first ids of the word, and the others are those of its rest.
 *
 * This holds for every table of merges. How many symbols are given up depends on the table: mostly
 * a few at the end. A table that needs more than the window is refused. */
#include <errno.h>
#include <string.h>

#include "base/size.h"
#include "text/tokenizer_internal.h"

enum {
    SHORT_SYMBOLS = 96,
    FRONT_SHARE = 16,           /* a window must make at least this part of its bytes certain */
    WHOLE_BYTES_MOST = 1 << 20, /* of a word that toki_word_front refuses for lack of tokens */
};
#define RANK_NONE UINT32_MAX

/* One symbol of a long word: its neighbours, and the merge with its right neighbour. */
struct symbol {
    uint32_t id, merged_id;
    uint32_t rank;       /* of the pair (this, right neighbour); RANK_NONE if it does not merge */
    int32_t left, right; /* -1: none */
    bool is_gone;
};
typedef struct symbol symbol;

/* The tables of a long word, in one block: the heap [3 * capacity], then symbols [capacity]. The
 * heap begins with at most one pair per symbol. Each merge removes one symbol and puts at most two
 * pairs on the heap. */
struct long_word {
    symbol *symbols;
    uint64_t *heap; /* rank << 32 | place; the lowest first */
    size_t heap_count;
};
typedef struct long_word long_word;

/* A walk over the first symbols of a word. */
struct symbols {
    bool was_unknown;
    size_t bytes_left; /* of a character that becomes byte tokens */
};
typedef struct symbols symbols;

/* The symbol at a place, and its bytes. -1: there is none; the unknown token before may stand for
 * the bytes. */
static int32_t next_symbol(const tokenizer *self, symbols *walk, const char *at, size_t *step)
{
    unsigned char byte = (unsigned char)*at;
    int32_t id = self->byte_ids[byte];
    *step = 1;
    if (self->decoder.is_byte_level) {
    } else if (walk->bytes_left > 0) {
        walk->bytes_left--;
        return id;
    } else {
        (void)toki_decode(at, step);
        id = byte < 0x80 ? self->ascii_ids[byte] : toki_find_text(self, at, *step);
        if (id < 0 && self->has_all_bytes) {
            walk->bytes_left = *step - 1;
            *step = 1;
            id = self->byte_ids[byte];
        }
    }
    if (id < 0 && walk->was_unknown && self->fuses_unknown)
        return -1;
    if (id >= 0 || self->unknown_id >= 0)
        walk->was_unknown = id < 0;
    return id >= 0 ? id : self->unknown_id;
}

/* The rank of a pair, and the id that it merges to; RANK_NONE and 0 if it does not merge. */
static uint32_t find_rank(const tokenizer *self, const uint32_t pair[2], uint32_t *merged)
{
    const toki_merge *merge = toki_merge_find(self, pair[0], pair[1]);
    *merged = merge ? merge->id : 0;
    return merge ? merge->rank : RANK_NONE;
}

static int short_word(const tokenizer *self, const char *word, size_t bytes, token_list *out)
{
    uint32_t ids[SHORT_SYMBOLS + 1], merged[SHORT_SYMBOLS + 1], ranks[SHORT_SYMBOLS + 1];
    size_t count = 0, step;
    symbols walk = {0};
    for (size_t i = 0; i < bytes; i += step) {
        int32_t id = next_symbol(self, &walk, word + i, &step);
        if (id >= 0)
            ids[count++] = (uint32_t)id;
    }
    for (size_t i = 0; i + 1 < count; i++)
        ranks[i] = find_rank(self, &ids[i], &merged[i]);
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++)
            if (ranks[i] < ranks[best])
                best = i;
        if (ranks[best] == RANK_NONE)
            break;
        ids[best] = merged[best];
        count--;
        size_t moved = count - best - 1;
        memmove(&ids[best + 1], &ids[best + 2], moved * sizeof *ids);
        if (moved) {
            memmove(&ranks[best + 1], &ranks[best + 2], (moved - 1) * sizeof *ranks);
            memmove(&merged[best + 1], &merged[best + 2], (moved - 1) * sizeof *merged);
            ranks[best] = find_rank(self, &ids[best], &merged[best]);
        }
        if (best)
            ranks[best - 1] = find_rank(self, &ids[best - 1], &merged[best - 1]);
    }
    TRY(toki_list_reserve(out, count));
    for (size_t i = 0; i < count; i++)
        out->ids[out->count++] = (int32_t)ids[i];
    return 0;
}

/* --- long words --- */

static void heap_put(long_word *self, uint64_t value)
{
    size_t at = self->heap_count++;
    while (at && self->heap[(at - 1) / 2] > value) {
        self->heap[at] = self->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    self->heap[at] = value;
}

static uint64_t heap_take(long_word *self)
{
    uint64_t taken = self->heap[0], last = self->heap[--self->heap_count];
    size_t at = 0, child;
    while ((child = 2 * at + 1) < self->heap_count) {
        if (child + 1 < self->heap_count && self->heap[child + 1] < self->heap[child])
            child++;
        if (self->heap[child] >= last)
            break;
        self->heap[at] = self->heap[child];
        at = child;
    }
    self->heap[at] = last;
    return taken;
}

/* Finds the merge of the symbol at `place` with its right neighbour. */
static void rank_pair(const tokenizer *self, long_word *word, int32_t place)
{
    symbol *left = &word->symbols[place];
    left->rank = RANK_NONE;
    if (left->right < 0)
        return;
    const uint32_t pair[2] = {left->id, word->symbols[left->right].id};
    left->rank = find_rank(self, pair, &left->merged_id);
    if (left->rank != RANK_NONE)
        heap_put(word, (uint64_t)left->rank << 32 | (uint64_t)place);
}

/* Makes the symbols of a word and ranks their pairs. A symbol's place is that of its first byte.
 * *first and *last: the first and the last symbol, -1 if there is none. */
static int begin_long_word(const tokenizer *self, toki_worker *worker, const char *bytes_at,
                           size_t bytes, long_word *out, int32_t *first, int32_t *last)
{
    symbols walk = {0};
    size_t step;
    out->heap = toki_word_room(worker, bytes * (sizeof(symbol) + 3 * sizeof(uint64_t)));
    if (!out->heap)
        return -ENOMEM;
    out->symbols = (symbol *)(out->heap + 3 * bytes);
    out->heap_count = 0;
    *first = *last = -1;
    for (size_t i = 0; i < bytes; i += step) {
        int32_t id = next_symbol(self, &walk, bytes_at + i, &step);
        if (id < 0)
            continue;
        out->symbols[i] = (symbol){.id = (uint32_t)id, .left = *last, .right = -1};
        if (*last >= 0)
            out->symbols[*last].right = (int32_t)i;
        else
            *first = (int32_t)i;
        *last = (int32_t)i;
    }
    for (int32_t i = *first; i >= 0; i = out->symbols[i].right)
        rank_pair(self, out, i);
    return 0;
}

/* The rank of the best pair, whose left symbol is *place. RANK_NONE if there is none. */
static uint32_t best_pair(long_word *word, int32_t *place)
{
    while (word->heap_count) {
        uint64_t top = word->heap[0];
        const symbol *left = &word->symbols[top & UINT32_MAX];
        *place = (int32_t)(top & UINT32_MAX);
        if (!left->is_gone && left->rank == top >> 32)
            return left->rank;
        (void)heap_take(word); /* this pair no longer exists */
    }
    return RANK_NONE;
}

/* Merges the symbol at `place`, whose pair is at the top of the heap, with its right neighbour. */
static void merge_pair(const tokenizer *self, long_word *word, int32_t place)
{
    symbol *left = &word->symbols[place], *right = &word->symbols[left->right];
    (void)heap_take(word);
    left->id = left->merged_id;
    left->right = right->right;
    right->is_gone = true;
    if (left->right >= 0)
        word->symbols[left->right].left = place;
    rank_pair(self, word, place);
    if (left->left >= 0)
        rank_pair(self, word, left->left);
}

static int end_long_word(const long_word *word, int32_t first, token_list *out)
{
    for (int32_t i = first; i >= 0; i = word->symbols[i].right)
        TRY(toki_list_add(out, (int32_t)word->symbols[i].id));
    return 0;
}

static int merge_long_word(const tokenizer *self, toki_worker *worker, const char *bytes_at,
                           size_t bytes, token_list *out)
{
    long_word word = {0};
    int32_t first, last, place;
    TRY(begin_long_word(self, worker, bytes_at, bytes, &word, &first, &last));
    while (best_pair(&word, &place) != RANK_NONE)
        merge_pair(self, &word, place);
    return end_long_word(&word, first, out);
}

/* --- longer words --- */

/* The lowest rank of a merge of `id` with a symbol of at least `least` bytes that agrees with the
 * text after it, of which `known` bytes are known. */
static uint32_t risk_of(const tokenizer *self, uint32_t id, const char *text, size_t known,
                        size_t least)
{
    for (uint32_t i = self->followers_at[id]; i < self->followers_at[id + 1]; i++) {
        const toki_token *right = &self->tokens[self->followers[i].right];
        size_t bytes;
        const char *word = toki_word_of(self, right, &bytes);
        if (!right->is_word && self->unknown_id >= 0)
            return self->followers[i].rank; /* it may hold an unknown token that comes later */
        if (right->is_word && bytes >= least && memcmp(word, text, size_min(bytes, known)) == 0)
            return self->followers[i].rank;
    }
    return RANK_NONE;
}

/* True if a text ends within a character. */
static bool ends_within(const char *text, size_t bytes)
{
    size_t begin = utf8_before(text, bytes), length;
    (void)toki_decode(text + begin, &length);
    return begin + length != bytes;
}

int toki_word_front(const tokenizer *self, toki_worker *worker, const char *text, size_t bytes,
                    token_list *out, size_t *done)
{
    long_word word = {0};
    int32_t first, last, place;
    size_t least = 0; /* bytes of the symbol that was given up last */
    while (!self->decoder.is_byte_level && bytes > 0 && ends_within(text, bytes))
        bytes--;
    *done = bytes; /* the bytes of the certain symbols */
    for (size_t i = 0; self->decoder.is_byte_level && i < bytes; i++)
        if (self->byte_ids[(unsigned char)text[i]] < 0)
            return err_set(ERR_INPUT,
                           "a word (text without a place to split) of more than %zu bytes has the "
                           "byte 0x%02x, for which the tokenizer has no token: cut the word",
                           bytes, (unsigned char)text[i]);
    TRY(begin_long_word(self, worker, text, bytes, &word, &first, &last));
    bool is_new = true;
    for (uint32_t risk = 0; last >= 0;) {
        symbol *at = &word.symbols[last];
        if (is_new)
            risk = risk_of(self, at->id, text + *done, bytes - *done, least);
        uint32_t best = best_pair(&word, &place);
        is_new = true;
        if (risk < best) {
            at->is_gone = true;
            *done = (size_t)last;
            (void)toki_word_of(self, &self->tokens[at->id], &least);
            last = at->left;
            if (last >= 0) {
                word.symbols[last].right = -1;
                word.symbols[last].rank = RANK_NONE;
            }
        } else if (best == RANK_NONE) {
            break;
        } else {
            is_new = word.symbols[place].right == last;
            last = is_new ? place : last;
            merge_pair(self, &word, place);
        }
    }
    if (*done == 0 || *done < bytes / FRONT_SHARE)
        return err_set(ERR_INPUT,
                       "a word (text without a place to split) of more than %zu bytes: by the "
                       "tokenizer's merges its first tokens depend on bytes that come later; cut "
                       "the word",
                       bytes);
    return end_long_word(&word, last < 0 ? -1 : first, out);
}

int toki_word_rest(const tokenizer *self, toki_worker *worker, const char *word, size_t bytes,
                   token_list *out)
{
    bool is_whole = self->takes_whole_words || (self->decoder.is_byte_level &&
                                                !self->has_all_bytes && bytes <= WHOLE_BYTES_MOST);
    for (size_t done; !is_whole && bytes > self->word_window; word += done, bytes -= done)
        TRY(toki_word_front(self, worker, word, self->word_window, out, &done));
    return bytes <= SHORT_SYMBOLS ? short_word(self, word, bytes, out)
                                  : merge_long_word(self, worker, word, bytes, out);
}

int toki_bpe_word(const tokenizer *self, toki_worker *worker, const char *word, size_t bytes,
                  token_list *out)
{
    if (self->ignores_merges) {
        int32_t id = toki_find_word(self, word, bytes);
        if (id >= 0)
            return toki_list_add(out, id);
    }
    return toki_word_rest(self, worker, word, bytes, out);
}
