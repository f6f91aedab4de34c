/* Tokens of a step's windows: of the data, or random ones where a trial has none. On the loop's thread, between
 * programs. */
#include "base/rng.h"
#include "train/train_internal.h"

enum { RANDOM_STREAM = 77 };

/* Windows of a step, of all ranks. */
uint64_t traini_step_windows(const traini_loop *self)
{
    return self->ranks.world * self->job->accumulation * self->setup->net->micro_batch;
}

/* For a trial without data: it measures, and what it learns is dropped. */
static void fill_random(const traini_loop *self, uint64_t first, uint64_t count, int32_t *tokens)
{
    uint64_t vocabulary = self->setup->net->spec.vocab_size;
    for (uint64_t i = 0; i < count; i++)
        tokens[i] = (int32_t)rng_below(self->job->data.seed, RANDOM_STREAM + first, i, vocabulary);
}

int traini_load_windows(traini_loop *self, mixture *from, bool shuffled, uint64_t first)
{
    const model *net = self->setup->net;
    const uint64_t windows = self->job->accumulation * net->micro_batch;
    int32_t *tokens =
        (int32_t *)(void *)traini_home(self->engine, self->setup->set.homes.tokens_host);
    int32_t *targets = tokens + windows * net->tokens;
    first += self->ranks.rank * windows;
    uint64_t *target_count = &self->engine->step.target_count;
    *target_count = traini_step_windows(self) * net->tokens;
    if (!from) {
        fill_random(self, first, 2 * windows * net->tokens, tokens);
        return 0;
    }
    for (uint64_t w = 0; w < windows; w++) {
        int32_t *in = tokens + w * net->tokens, *out = targets + w * net->tokens;
        TRY(shuffled ? mixture_window(from, first + w, in, out)
                     : mixture_window_in_order(from, first + w, in, out));
    }
    if (!mixture_has_marks(from))
        return 0;
    uint64_t own = 0;
    for (uint64_t i = 0; i < windows * net->tokens; i++)
        own += targets[i] >= 0;
    return traini_share_count(self, own, target_count);
}
