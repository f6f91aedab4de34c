/* The tokens of a tokenizer.json by id, by text and by bytes, and its merges by pair. See
 * tokenizer_internal.h. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/mem.h"
#include "base/size.h"
#include "text/tokenizer_internal.h"

int toki_vocab_reserve(tokenizer *self, uint64_t count, uint64_t text_bytes)
{
    self->tokens = mem_alloc(count, sizeof *self->tokens, "tokenizer vocabulary");
    self->arena_bytes = 2 * text_bytes + count * toki_decoded_most(0);
    self->arena = mem_alloc(self->arena_bytes, 1, "tokenizer texts");
    if (!self->tokens || !self->arena)
        return -ENOMEM;
    self->token_count = count;
    return 0;
}

static char *arena_take(tokenizer *self, size_t bytes)
{
    assert(self->arena_bytes - self->arena_count >= bytes);
    char *taken = self->arena + self->arena_count;
    self->arena_count += bytes;
    return taken;
}

static int index_make(toki_index *self, uint64_t count)
{
    self->mask = 15;
    while (self->mask < 2 * count)
        self->mask = 2 * self->mask + 1;
    self->ids = mem_alloc(self->mask + 1, sizeof *self->ids, "tokenizer index");
    if (!self->ids)
        return -ENOMEM;
    memset(self->ids, 0xff, (self->mask + 1) * sizeof *self->ids);
    return 0;
}

static void index_put(toki_index *self, const char *key, size_t bytes, int32_t id)
{
    size_t place = XXH3_64bits(key, bytes) & self->mask;
    while (self->ids[place] >= 0)
        place = (place + 1) & self->mask;
    self->ids[place] = id;
}

void toki_vocab_put(tokenizer *self, int32_t id, const char *text, size_t bytes)
{
    assert(id >= 0 && (uint64_t)id < self->token_count && !self->tokens[id].text);
    toki_token *token = &self->tokens[id];
    char *copy = arena_take(self, bytes), *decoded = arena_take(self, toki_decoded_most(bytes));
    size_t count;
    memcpy(copy, text, bytes);
    token->text = copy;
    token->text_bytes = (uint32_t)bytes;
    token->is_word = toki_decode_token(&self->decoder, text, bytes, decoded, &count);
    token->bytes = decoded;
    token->byte_count = (uint32_t)count;
    if (self->by_text.ids) {
        token->is_word = false;
        index_put(&self->by_text, token->text, token->text_bytes, id);
    }
}

int toki_vocab_index(tokenizer *self)
{
    TRY(index_make(&self->by_text, self->token_count));
    TRY(index_make(&self->by_bytes, self->decoder.is_byte_level ? self->token_count : 0));
    memset(self->byte_ids, 0xff, sizeof self->byte_ids);
    for (uint64_t id = 0; id < self->token_count; id++) {
        const toki_token *token = &self->tokens[id];
        if (!token->text)
            continue;
        index_put(&self->by_text, token->text, token->text_bytes, (int32_t)id);
        if (!self->decoder.is_byte_level || !token->is_word)
            continue;
        index_put(&self->by_bytes, token->bytes, token->byte_count, (int32_t)id);
        if (token->byte_count == 1)
            self->byte_ids[(unsigned char)token->bytes[0]] = (int32_t)id;
    }
    for (int c = 0; c < TOKI_ASCII; c++)
        self->ascii_ids[c] = toki_find_text(self, (const char[]){(char)c}, 1);
    return 0;
}

/* Finds a key in one of the two indices. */
static int32_t find(const tokenizer *self, const toki_index *index, const char *key, size_t bytes)
{
    bool is_text = index == &self->by_text;
    if (!index->ids)
        return -1;
    size_t place = XXH3_64bits(key, bytes) & index->mask;
    for (int32_t id; (id = index->ids[place]) >= 0; place = (place + 1) & index->mask) {
        const toki_token *token = &self->tokens[id];
        if ((is_text ? token->text_bytes : token->byte_count) == bytes &&
            memcmp(is_text ? token->text : token->bytes, key, bytes) == 0)
            return id;
    }
    return -1;
}

int32_t toki_find_text(const tokenizer *self, const char *text, size_t bytes)
{
    return find(self, &self->by_text, text, bytes);
}

int32_t toki_find_word(const tokenizer *self, const char *word, size_t bytes)
{
    return find(self, self->decoder.is_byte_level ? &self->by_bytes : &self->by_text, word, bytes);
}

const char *toki_word_of(const tokenizer *self, const toki_token *token, size_t *bytes)
{
    bool is_byte_level = self->decoder.is_byte_level;
    *bytes = is_byte_level ? token->byte_count : token->text_bytes;
    return is_byte_level ? token->bytes : token->text;
}

/* --- merges --- */

static size_t merge_place(const tokenizer *self, uint32_t left, uint32_t right)
{
    uint64_t key = (uint64_t)left << 32 | right;
    key *= 0x9e3779b97f4a7c15u; /* 2^64 / golden ratio: the high bits depend on all of the key */
    return (key >> 32) & self->merge_mask;
}

int toki_merges_reserve(tokenizer *self, uint64_t count)
{
    self->merge_mask = 15;
    while (self->merge_mask < 2 * count)
        self->merge_mask = 2 * self->merge_mask + 1;
    self->merges = mem_alloc(self->merge_mask + 1, sizeof *self->merges, "tokenizer merges");
    if (!self->merges)
        return -ENOMEM;
    for (size_t i = 0; i <= self->merge_mask; i++)
        self->merges[i].rank = UINT32_MAX;
    return 0;
}

void toki_merges_put(tokenizer *self, toki_merge merge)
{
    size_t place = merge_place(self, merge.left, merge.right);
    while (self->merges[place].rank != UINT32_MAX &&
           (self->merges[place].left != merge.left || self->merges[place].right != merge.right))
        place = (place + 1) & self->merge_mask;
    self->merges[place] = merge;
}

const toki_merge *toki_merge_find(const tokenizer *self, uint32_t left, uint32_t right)
{
    size_t place = merge_place(self, left, right);
    for (; self->merges[place].rank != UINT32_MAX; place = (place + 1) & self->merge_mask)
        if (self->merges[place].left == left && self->merges[place].right == right)
            return &self->merges[place];
    return NULL;
}

static int by_rank(const void *a, const void *b)
{
    const toki_follower *left = a, *right = b;
    return left->rank < right->rank ? -1 : left->rank > right->rank;
}

int toki_merges_list(tokenizer *self)
{
    enum { TOKENS_IN_WINDOW = 16, TOKEN_BYTES_MOST = 65536 };
    size_t count = 0, longest = 0;
    for (size_t i = 0; i <= self->merge_mask; i++)
        count += self->merges[i].rank != UINT32_MAX;
    self->followers = mem_alloc(count, sizeof *self->followers, "tokenizer merges");
    self->followers_at =
        mem_alloc(self->token_count + 2, sizeof *self->followers_at, "tokenizer merges");
    if (!self->followers || !self->followers_at)
        return -ENOMEM;
    uint32_t *next = self->followers_at + 1; /* the place of the next one of each list */
    for (size_t i = 0; i <= self->merge_mask; i++)
        if (self->merges[i].rank != UINT32_MAX)
            next[self->merges[i].left + 1]++;
    for (uint64_t id = 0; id < self->token_count; id++)
        next[id + 1] += next[id];
    for (size_t i = 0; i <= self->merge_mask; i++) {
        const toki_merge *merge = &self->merges[i];
        if (merge->rank != UINT32_MAX)
            self->followers[next[merge->left]++] = (toki_follower){merge->rank, merge->right};
    }
    for (uint64_t id = 0; id < self->token_count; id++) {
        uint32_t first = self->followers_at[id];
        qsort(self->followers + first, self->followers_at[id + 1] - first, sizeof *self->followers,
              by_rank);
        size_t bytes;
        (void)toki_word_of(self, &self->tokens[id], &bytes);
        longest = size_max(longest, self->tokens[id].is_word ? bytes : 0);
    }
    if (longest > TOKEN_BYTES_MOST)
        return err_set(ERR_INPUT, "model.vocab has a token of %zu bytes; at most %d are read",
                       longest, (int)TOKEN_BYTES_MOST);
    self->word_window = size_max(TOKI_WORD_WINDOW, TOKENS_IN_WINDOW * longest);
    return 0;
}
