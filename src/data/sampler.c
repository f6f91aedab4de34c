/* Which window comes when: a function of (seed, window number) alone. See corpus.h.
 *
 * A corpus of N tokens has W = (N - 2) / T windows an epoch. They need W T + 1 tokens, so 1 to T
 * tokens are left over; the epoch's shift, drawn from 0 to that number, decides at which end they
 * lie:
 *
 *   | shift | window 0 | window 1 | ... | window W-1 |+1| rest |
 *
 * Within the epoch the windows are visited in the order of a keyed bijection of [0, W): a Feistel
 * network over the next even power of two whose round function is the counter-based generator, with
 * cycle walking (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). The domain is
 * below 4 W (or 4), so a walk takes four turns at most on average. No memory, any epoch at once. */
#include <errno.h>
#include <string.h>

#include "base/rng.h"
#include "data/corpus.h"

enum { FEISTEL_ROUNDS = 6 };

/* Streams of rng.h that are ours: the word "sampler" in ASCII, then a number in the low byte. */
#define STREAM_SAMPLER 0x73616d706c657200u
#define STREAM_SHIFT   (STREAM_SAMPLER + 0xff)

int sampler_init(sampler *self, corpus *source, uint64_t seed, uint64_t tokens_per_window)
{
    uint64_t token_count = corpus_token_count(source);
    if (tokens_per_window == 0)
        return err_set(ERR_INPUT, "a window of 0 tokens was asked of the sampler");
    if (token_count < 2 || token_count - 2 < tokens_per_window)
        return err_set(ERR_INPUT,
                       "the data has %llu tokens, but a sequence of %llu needs at least %llu; "
                       "add data or shorten model.seq_length",
                       (unsigned long long)token_count, (unsigned long long)tokens_per_window,
                       (unsigned long long)tokens_per_window + 2);
    *self = (sampler){.source = source,
                      .seed = seed,
                      .tokens_per_window = tokens_per_window,
                      .windows_per_epoch = (token_count - 2) / tokens_per_window};
    return 0;
}

/* The position-th window of an epoch. */
static uint64_t permute(uint64_t seed, uint64_t epoch, uint64_t window_count, uint64_t position)
{
    unsigned half_bits = 1;
    while (half_bits < 32 && (uint64_t)1 << 2 * half_bits < window_count)
        half_bits++;
    uint64_t mask = ((uint64_t)1 << half_bits) - 1;
    uint64_t value = position;
    do {
        uint64_t left = value >> half_bits, right = value & mask;
        for (unsigned round = 0; round < FEISTEL_ROUNDS; round++) {
            uint64_t mixed = rng_u64(seed, STREAM_SAMPLER + round, epoch << 32 | right);
            uint64_t next = left ^ (mixed & mask);
            left = right;
            right = next;
        }
        value = left << half_bits | right;
    } while (value >= window_count);
    return value;
}

static int read_window(sampler *self, uint64_t begin, int32_t *inputs, int32_t *targets)
{
    uint64_t count = self->tokens_per_window;
    TRY(corpus_read(self->source, begin, count, inputs));
    memcpy(targets, inputs + 1, (count - 1) * sizeof *targets);
    return corpus_read(self->source, begin + count, 1, targets + count - 1);
}

int sampler_window(sampler *self, uint64_t idx, int32_t *inputs, int32_t *targets)
{
    uint64_t epoch = idx / self->windows_per_epoch;
    uint64_t window =
        permute(self->seed, epoch, self->windows_per_epoch, idx % self->windows_per_epoch);
    uint64_t used = self->windows_per_epoch * self->tokens_per_window + 1;
    uint64_t rest = corpus_token_count(self->source) - used;
    uint64_t shift = rng_below(self->seed, STREAM_SHIFT, epoch, rest + 1);
    return read_window(self, shift + window * self->tokens_per_window, inputs, targets);
}

int sampler_window_in_order(sampler *self, uint64_t idx, int32_t *inputs, int32_t *targets)
{
    uint64_t window = idx % self->windows_per_epoch;
    return read_window(self, window * self->tokens_per_window, inputs, targets);
}
