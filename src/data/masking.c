/* Masked tokens. See masking.h. */
#include "data/masking.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "base/rng.h"

/* Our stream of rng.h: the word "masking" in ASCII, then a number in the low byte. */
#define STREAM_MASKING 0x6d61736b696e6700u

#define WORDS 0x1p32 /* values of a random word */

static bool is_special(const tokenizer *words, int32_t id)
{
    size_t bytes, kept;
    (void)tokenizer_token_bytes(words, id, false, &bytes);
    (void)tokenizer_token_bytes(words, id, true, &kept);
    return kept < bytes;
}

static int find_specials(masking *self, const tokenizer *words)
{
    uint64_t all = tokenizer_vocab(words);
    for (uint64_t id = 0; id < all && id < self->vocab; id++) {
        if (!is_special(words, (int32_t)id))
            continue;
        if (self->special_count == MASKING_SPECIALS_MAX)
            return err_set(ERR_CONFIG, "the tokenizer has more than %d special tokens",
                           MASKING_SPECIALS_MAX);
        self->specials[self->special_count++] = (int32_t)id;
    }
    return 0;
}

int masking_init(masking *self, double share, uint64_t vocab, int64_t mask_token,
                 const tokenizer *words)
{
    memset(self, 0, sizeof *self);
    self->share = share;
    self->vocab = vocab;
    for (int i = 0; mask_token < 0 && words && i < 2; i++)
        mask_token = tokenizer_find(words, i == 0 ? "[MASK]" : "<mask>");
    if (mask_token < 0)
        return err_set(ERR_CONFIG, "data.mask_token is missing: the model learns to fill in masked "
                                   "tokens, and no tokenizer with a token [MASK] is known");
    if ((uint64_t)mask_token >= vocab)
        return err_set(ERR_CONFIG,
                       "data.mask_token is %" PRId64 ", but model.vocab_size is %" PRIu64
                       ": the mask must be a token of the model",
                       mask_token, vocab);
    self->mask_token = (int32_t)mask_token;
    return words ? find_specials(self, words) : 0;
}

static bool may_choose(const masking *self, int32_t token)
{
    uint32_t low = 0, high = self->special_count;
    while (low < high) { /* the first special token that is not below */
        uint32_t middle = low + (high - low) / 2;
        if (self->specials[middle] < token)
            low = middle + 1;
        else
            high = middle;
    }
    bool is_special = low < self->special_count && self->specials[low] == token;
    return !is_special && token != self->mask_token;
}

void masking_apply(const masking *self, uint64_t seed, uint64_t window, uint64_t count,
                   int32_t *inputs, int32_t *targets)
{
    uint64_t key = rng_u64(seed, STREAM_MASKING, window);
    for (uint64_t t = 0; t < count; t++) {
        uint32_t words[4];
        int32_t token = inputs[t];
        rng_block(key, STREAM_MASKING, t, words);
        targets[t] = -1;
        if ((double)words[0] >= self->share * WORDS || !may_choose(self, token))
            continue;
        targets[t] = token;
        uint64_t wide = (uint64_t)words[2] << 32 | words[3];
        if ((double)words[1] < 0.8 * WORDS)
            inputs[t] = self->mask_token;
        else if ((double)words[1] < 0.9 * WORDS)
            inputs[t] = (int32_t)((unsigned __int128)wide * self->vocab >> 64);
    }
}
