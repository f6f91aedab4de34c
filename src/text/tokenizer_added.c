/* Finds added tokens in a text: from left to right, at each place the longest one. See
 * tokenizer_internal.h.
 *
 * Most texts have none, so a filter comes first. If all tokens begin with the same byte ("<"), it
 * is memchr; else it is a table with one bit for each pair of first bytes. */
#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"
#include "text/tokenizer_internal.h"

static void put(toki_added *self, const toki_added_token *token, int32_t idx)
{
    toki_trie_put(&self->trie, token->text, token->text_bytes, idx);
    uint8_t first = (uint8_t)token->text[0];
    for (unsigned second = 0; second < 256; second++)
        if (token->text_bytes == 1 || second == (uint8_t)token->text[1])
            self->pairs[(first << 8 | second) / 8] |= (uint8_t)(1u << (second % 8));
}

int toki_added_make(toki_added *self, uint32_t count, const toki_added_token *tokens)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        bytes += tokens[i].text_bytes;
    TRY(toki_trie_make(&self->trie, bytes, "added_tokens"));
    self->tokens = mem_alloc(count, sizeof *self->tokens, "tokenizer added tokens");
    if (!self->tokens)
        return -ENOMEM;
    self->first_byte = count ? (uint8_t)tokens[0].text[0] : -1;
    for (uint32_t i = 0; i < count; i++) {
        self->has_single_word |= tokens[i].single_word;
        self->longest = size_max(self->longest, tokens[i].text_bytes);
        if ((uint8_t)tokens[i].text[0] != self->first_byte)
            self->first_byte = -1;
        put(self, &tokens[i], (int32_t)i);
        self->tokens[i] = tokens[i];
        self->tokens[i].text = NULL; /* it is in the trie now */
    }
    self->count = count;
    return 0;
}

void toki_added_fini(toki_added *self)
{
    toki_trie_fini(&self->trie);
    mem_free(self->tokens);
    *self = (toki_added){0};
}

/* The first place at or after `at` where a token may begin. */
static size_t candidate(const toki_added *self, const char *text, size_t bytes, size_t at)
{
    const uint8_t *bytes_at = (const uint8_t *)text;
    if (self->first_byte >= 0) {
        const char *found = memchr(text + at, self->first_byte, bytes - at);
        return found ? (size_t)(found - text) : bytes;
    }
    for (; at + 1 < bytes; at++)
        if (self->pairs[(bytes_at[at] << 8 | bytes_at[at + 1]) / 8] &
            (1u << (bytes_at[at + 1] % 8)))
            return at;
    return at;
}

static bool is_word_at(const tokenizer *owner, const char *text, size_t at)
{
    char stand_in[4];
    size_t bytes;
    uint32_t character = toki_decode(text + at, &bytes);
    memcpy(stand_in, text + at, bytes);
    toki_bytes copy = {.data = stand_in, .capacity = sizeof stand_in};
    const char *shadow = stand_in;
    if (toki_stand_in(character) != character && toki_text_shadow(text + at, bytes, &copy, &shadow))
        return false; /* cannot happen: the copy has room already */
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    if (!match)
        return false;
    int rc = pcre2_match(owner->word_character, (PCRE2_SPTR)shadow, bytes, 0, PCRE2_ANCHORED, match,
                         NULL);
    pcre2_match_data_free(match);
    return rc >= 0;
}

static bool is_within_word(const tokenizer *owner, const char *text, size_t bytes, size_t begin,
                           size_t end)
{
    return (begin && is_word_at(owner, text, utf8_before(text, begin))) ||
           (end < bytes && is_word_at(owner, text, end));
}

const toki_added_token *toki_added_next(const tokenizer *owner, const toki_added *self,
                                        const char *text, size_t bytes, size_t at, size_t from,
                                        size_t *begin, size_t *end, size_t *resume)
{
    while (self->count && (at = candidate(self, text, bytes, at)) < bytes) {
        size_t length, step;
        int32_t idx = toki_trie_longest(&self->trie, text + at, bytes - at, &length);
        if (idx < 0) {
            at++;
            continue;
        }
        const toki_added_token *token = &self->tokens[idx];
        size_t stop = at + length;
        *resume = stop; /* before the spaces that it strips, where a token may begin */
        if (token->single_word && is_within_word(owner, text, bytes, at, stop)) {
            at = stop;
            continue;
        }
        if (token->lstrip) {
            while (at > 0) {
                size_t before = utf8_before(text, at);
                if (!toki_is_space(toki_decode(text + before, &step)))
                    break;
                at = before;
            }
            at = size_max(at, from);
        }
        if (token->rstrip)
            while (stop < bytes && toki_is_space(toki_decode(text + stop, &step)))
                stop += step;
        *begin = at;
        *end = stop;
        return token;
    }
    return NULL;
}
