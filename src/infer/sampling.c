/* Chooses the next token; see infer_internal.h. */
#include <math.h>
#include <stdbool.h>

#include "base/rng.h"
#include "infer/infer_internal.h"

enum { SAMPLING_STREAM = 0x67656e }; /* stream of the counter-based generator: "gen" */

/* True if token a ranks before token b. */
static bool ranks_before(const float *logits, uint32_t a, uint32_t b)
{
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

/* Restores the heap below `at`. The first entry of the heap is the one that ranks last. */
static void sift(const float *logits, uint32_t *heap, uint64_t count, uint64_t at)
{
    for (;;) {
        uint64_t child = 2 * at + 1;
        if (child >= count)
            return;
        if (child + 1 < count && ranks_before(logits, heap[child], heap[child + 1]))
            child++;
        if (!ranks_before(logits, heap[at], heap[child]))
            return;
        uint32_t moved = heap[at];
        heap[at] = heap[child];
        heap[child] = moved;
        at = child;
    }
}

/* Sets order[0..count) to the tokens that rank first, in their order. */
static void rank_first(const float *logits, uint64_t vocab, uint64_t count, uint32_t *order)
{
    for (uint64_t i = 0; i < count; i++)
        order[i] = (uint32_t)i;
    for (uint64_t i = count / 2; i-- > 0;)
        sift(logits, order, count, i);
    for (uint64_t i = count; i < vocab; i++) {
        if (!ranks_before(logits, (uint32_t)i, order[0]))
            continue;
        order[0] = (uint32_t)i;
        sift(logits, order, count, 0);
    }
    for (uint64_t left = count; left > 1; left--) {
        uint32_t last = order[0];
        order[0] = order[left - 1];
        order[left - 1] = last;
        sift(logits, order, left - 1, 0);
    }
}

static int find_likeliest(const float *logits, uint64_t vocab, uint64_t *best)
{
    *best = 0;
    for (uint64_t i = 0; i < vocab; i++) {
        if (isnan(logits[i]) || logits[i] == INFINITY)
            return err_set(ERR_DIVERGED, "the logit of token %llu is %g: the model is broken",
                           (unsigned long long)i, (double)logits[i]);
        if (logits[i] > logits[*best])
            *best = i;
    }
    if (logits[*best] == -INFINITY)
        return err_set(ERR_DIVERGED, "the logits of all tokens are -inf: the model is broken");
    return 0;
}

static double weight_of(const sampling *self, const float *logits, uint64_t best, uint64_t token)
{
    return exp(((double)logits[token] - (double)logits[best]) / self->temperature);
}

/* Returns the last token in rank order that may be drawn. */
static uint32_t find_last(const sampling *self, const float *logits, uint64_t vocab, uint64_t best,
                          uint32_t *order)
{
    bool has_k = self->top_k > 0 && self->top_k < vocab;
    uint64_t count = has_k ? self->top_k : vocab;
    rank_first(logits, vocab, count, order);
    if (self->top_p >= 1)
        return order[count - 1];
    double total = 0, sum = 0;
    for (uint64_t i = 0; i < count; i++)
        total += weight_of(self, logits, best, order[i]);
    for (uint64_t i = 0; i < count; i++) {
        sum += weight_of(self, logits, best, order[i]);
        if (sum >= self->top_p * total)
            return order[i];
    }
    return order[count - 1];
}

int sampling_draw(const sampling *self, const float *logits, uint64_t vocab, uint64_t idx,
                  uint32_t *order, uint64_t *token)
{
    uint64_t best;
    TRY(find_likeliest(logits, vocab, &best));
    *token = best;
    if (self->temperature <= 0 || self->top_k == 1)
        return 0;
    bool is_cut = (self->top_k > 0 && self->top_k < vocab) || self->top_p < 1;
    uint32_t last = is_cut ? find_last(self, logits, vocab, best, order) : 0;
    double total = 0;
    for (uint64_t i = 0; i < vocab; i++)
        if (!is_cut || !ranks_before(logits, last, (uint32_t)i))
            total += weight_of(self, logits, best, i);
    double point = rng_uniform(self->seed, SAMPLING_STREAM, idx) * total;
    for (uint64_t i = 0; i < vocab; i++) {
        if (is_cut && ranks_before(logits, last, (uint32_t)i))
            continue;
        point -= weight_of(self, logits, best, i);
        if (point < 0) {
            *token = i;
            return 0;
        }
    }
    return 0; /* rounding left a rest: the likeliest token */
}
