/* The order of windows, a function of (seed, window number) only. See corpus.h.
 *
 * A corpus of N tokens has W = (N - 2) / T windows an epoch. They need W T + 1 tokens, so 1 to T
 * tokens are left over. The epoch's shift is drawn from 0 to that number and divides the rest
 * between both ends:
 *
 *   | shift | window 0 | window 1 | ... | window W-1 |+1| rest |
 *
 * Within the epoch the windows are visited in the order of a keyed bijection of [0, W). It is a
 * Feistel network over the next even power of two, with the counter-based generator as round
 * function and with cycle walking (Black and Rogaway, "Ciphers with arbitrary finite domains",
 * 2002). The domain is below 4 W (or 4), so a walk takes at most four steps on average. It needs no
 * memory, and any epoch can be visited directly.
 *
 * SHUFFLE_DOCUMENTS packs the documents, in a permutation of their own, into another sequence of
 * the same tokens, and lays the windows over it from its first token on. A document begins where
 * the documents before it end. At the first window of an epoch all lengths are read in that order
 * and summed. Every stride-th sum is kept, at most CHECKPOINTS of them. A window finds the nearest
 * one before it and walks on from there. */
#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/size.h"
#include "data/data_internal.h"

enum { FEISTEL_ROUNDS = 6, CHECKPOINTS = 65536 };

/* The packed sequence of one epoch. */
struct sampleri_documents {
    uint64_t epoch; /* UINT64_MAX: not filled yet */
    uint64_t stride, checkpoint_count;
    /* [checkpoint_count]: where document i * stride of the epoch's order begins */
    uint64_t *begins;
};

/* Our streams of rng.h: the word "sampler" in ASCII, then a number in the low byte. */
#define STREAM_SAMPLER   0x73616d706c657200u
#define STREAM_SHIFT     (STREAM_SAMPLER + 0xff)
#define STREAM_DOCUMENTS (STREAM_SAMPLER + 0x40)

uint64_t datai_permute(uint64_t seed, uint64_t stream, uint64_t epoch, uint64_t count,
                       uint64_t position)
{
    unsigned half_bits = 1;
    while (half_bits < 32 && (uint64_t)1 << 2 * half_bits < count)
        half_bits++;
    uint64_t mask = ((uint64_t)1 << half_bits) - 1;
    uint64_t value = position;
    do {
        uint64_t left = value >> half_bits, right = value & mask;
        for (unsigned round = 0; round < FEISTEL_ROUNDS; round++) {
            uint64_t mixed = rng_u64(seed, stream + round, epoch << 32 | right);
            uint64_t next = left ^ (mixed & mask);
            left = right;
            right = next;
        }
        value = left << half_bits | right;
    } while (value >= count);
    return value;
}

static int read_window(sampler *self, uint64_t begin, int32_t *inputs, int32_t *targets,
                       int32_t *begins)
{
    uint64_t count = self->tokens_per_window;
    TRY(corpus_read(self->source, begin, count, inputs));
    if (corpus_has_marks(self->source)) {
        TRY(corpus_read_targets(self->source, begin + 1, count, targets));
    } else {
        memcpy(targets, inputs + 1, (count - 1) * sizeof *targets);
        TRY(corpus_read(self->source, begin + count, 1, targets + count - 1));
    }
    return begins ? corpus_separate(self->source, begin, count, inputs, targets, begins) : 0;
}

/* ---- the order of documents ---- */

int sampler_init(sampler *self, corpus *source, uint64_t seed, uint64_t tokens_per_window,
                 enum shuffle shuffle)
{
    uint64_t token_count = corpus_token_count(source);
    if (tokens_per_window == 0)
        return err_set(ERR_INPUT, "the sampler cannot make windows of 0 tokens");
    if (token_count < 2 || token_count - 2 < tokens_per_window)
        return err_set(ERR_INPUT,
                       "the data has %llu tokens, but a sequence of %llu needs at least %llu; "
                       "add data or shorten model.seq_length",
                       (unsigned long long)token_count, (unsigned long long)tokens_per_window,
                       (unsigned long long)tokens_per_window + 2);
    *self = (sampler){.source = source,
                      .seed = seed,
                      .tokens_per_window = tokens_per_window,
                      .shuffle = shuffle,
                      .windows_per_epoch = (token_count - 2) / tokens_per_window};
    if (shuffle != SHUFFLE_DOCUMENTS)
        return 0;
    uint64_t count = corpus_document_count(source), stride = size_div_up(count, CHECKPOINTS);
    struct sampleri_documents *order = mem_alloc(1, sizeof *order, "order of documents");
    if (!order)
        return -ENOMEM;
    order->epoch = UINT64_MAX;
    order->stride = stride;
    order->checkpoint_count = size_div_up(count, stride);
    order->begins = mem_alloc(order->checkpoint_count, sizeof *order->begins, "order of documents");
    self->documents = order;
    if (order->begins)
        return 0;
    sampler_fini(self);
    return -ENOMEM;
}

void sampler_fini(sampler *self)
{
    if (self->documents)
        mem_free(self->documents->begins);
    mem_free(self->documents);
    self->documents = NULL;
}

/* The document at this place of the epoch's order. */
static int document_at(sampler *self, uint64_t epoch, uint64_t position, uint64_t *idx,
                       uint64_t *begin, uint64_t *count)
{
    *idx = datai_permute(self->seed, STREAM_DOCUMENTS, epoch, corpus_document_count(self->source),
                         position);
    return corpus_document(self->source, *idx, begin, count);
}

/* Sums the lengths of the epoch's documents, unless this is done already. */
static int order_documents(sampler *self, uint64_t epoch)
{
    struct sampleri_documents *order = self->documents;
    uint64_t document_count = corpus_document_count(self->source), sum = 0, idx, begin, count;
    if (order->epoch == epoch)
        return 0;
    order->epoch = UINT64_MAX;
    for (uint64_t i = 0; i < document_count; i++) {
        if (i % order->stride == 0)
            order->begins[i / order->stride] = sum;
        TRY(document_at(self, epoch, i, &idx, &begin, &count));
        sum += count;
    }
    if (sum != corpus_token_count(self->source))
        return err_set(ERR_INPUT,
                       "the documents of the data have %llu tokens together, but there are %llu: a "
                       "file has changed since it was opened",
                       (unsigned long long)sum,
                       (unsigned long long)corpus_token_count(self->source));
    order->epoch = epoch;
    return 0;
}

/* Tokens [from, from + T] of the epoch's packed sequence. */
static int read_packed(sampler *self, uint64_t epoch, uint64_t from, int32_t *inputs,
                       int32_t *targets, int32_t *begins)
{
    const uint64_t window = self->tokens_per_window, end = from + window + 1;
    TRY(order_documents(self, epoch));
    const struct sampleri_documents *order = self->documents;
    uint64_t low = 0, high = order->checkpoint_count - 1;
    while (low < high) {
        uint64_t middle = low + (high - low + 1) / 2;
        if (order->begins[middle] <= from)
            low = middle;
        else
            high = middle - 1;
    }
    uint64_t at = order->begins[low]; /* where document `i` of the order begins */
    for (uint64_t i = low * order->stride; at < end; i++) {
        uint64_t idx, begin, count;
        TRY(document_at(self, epoch, i, &idx, &begin, &count));
        uint64_t first = size_max(at, from), last = size_min(at + count, end);
        uint64_t last_input = size_min(last, end - 1), first_target = size_max(first, from + 1);
        if (first < last_input)
            TRY(corpus_read(self->source, begin + first - at, last_input - first,
                            inputs + (first - from)));
        if (first_target < last)
            TRY(corpus_read_targets(self->source, begin + first_target - at, last - first_target,
                                    targets + (first_target - from - 1)));
        if (begins && first < last)
            datai_note_document(self->source, idx,
                                (datai_stretch){first - from, last - from, window, first == at},
                                inputs, targets, begins);
        at += count;
    }
    return 0;
}

/* ---- windows ---- */

int sampler_window(sampler *self, uint64_t idx, int32_t *inputs, int32_t *targets, int32_t *begins)
{
    if (self->shuffle == SHUFFLE_NONE)
        return sampler_window_in_order(self, idx, inputs, targets, begins);
    uint64_t epoch = idx / self->windows_per_epoch;
    uint64_t window = datai_permute(self->seed, STREAM_SAMPLER, epoch, self->windows_per_epoch,
                                    idx % self->windows_per_epoch);
    if (self->shuffle == SHUFFLE_DOCUMENTS)
        return read_packed(self, epoch, window * self->tokens_per_window, inputs, targets, begins);
    uint64_t used = self->windows_per_epoch * self->tokens_per_window + 1;
    uint64_t rest = corpus_token_count(self->source) - used;
    uint64_t shift = rng_below(self->seed, STREAM_SHIFT, epoch, rest + 1);
    return read_window(self, shift + window * self->tokens_per_window, inputs, targets, begins);
}

int sampler_window_in_order(sampler *self, uint64_t idx, int32_t *inputs, int32_t *targets,
                            int32_t *begins)
{
    uint64_t window = idx % self->windows_per_epoch;
    return read_window(self, window * self->tokens_per_window, inputs, targets, begins);
}
