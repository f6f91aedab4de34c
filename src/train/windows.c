/* The tokens of a step's windows: from the data, or random ones if a trial has no data. On the
 * loop's thread, between programs. */
#include "base/rng.h"
#include "train/loop_internal.h"

enum { RANDOM_STREAM = 77 };

uint64_t loop_step_windows(const struct loop *self)
{
    return self->run.ranks.world * self->run.job->accumulation * self->run.setup->net->micro_batch;
}

/* Random tokens for a trial without data. It only measures, and what it learns is dropped. */
static void fill_random(const struct loop *self, uint64_t first, uint64_t count, int32_t *tokens)
{
    uint64_t vocabulary = self->run.setup->net->spec.vocab_size;
    for (uint64_t i = 0; i < count; i++)
        tokens[i] =
            (int32_t)rng_below(self->run.job->data.seed, RANDOM_STREAM + first, i, vocabulary);
}

int loop_load_windows(struct loop *self, mixture *from, bool shuffled, uint64_t first)
{
    const model *net = self->run.setup->net;
    const uint64_t windows = self->run.job->accumulation * net->micro_batch;
    int32_t *tokens =
        (int32_t *)(void *)engine_home(self->run.engine, self->run.setup->set.homes.tokens_host);
    int32_t *targets = tokens + windows * net->tokens;
    first += self->run.ranks.rank * windows;
    uint64_t *target_count = &self->run.engine->step.target_count;
    *target_count = loop_step_windows(self) * net->tokens;
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
    return loop_share_count(self, own, target_count);
}
