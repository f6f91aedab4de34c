/* Puts the windows of a step or of an evaluation into the host buffer, from which the first program
 * op copies them to the device. On the loop's thread; allocates nothing. */
#include "base/rng.h"
#include "train/loop_internal.h"

enum { RANDOM_STREAM = 77 }; /* of the random tokens of a trial without data */

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

/* Writes the counters of dropout: for each micro-batch the step and the number of its first window
 * among the windows of all ranks. */
static void put_counters(const struct loop *self, uint32_t *counters)
{
    const model *net = self->run.setup->net;
    uint64_t count = self->run.job->accumulation;
    if (!model_has_dropout(&net->spec))
        return;
    for (uint64_t i = 0; i < count; i++) {
        counters[2 * i] = (uint32_t)(self->run.record.point.step + 1);
        counters[2 * i + 1] = (uint32_t)((self->run.ranks.rank * count + i) * net->micro_batch);
    }
}

int loop_load_windows(struct loop *self, mixture *from, bool shuffled, uint64_t first)
{
    const model *net = self->run.setup->net;
    const uint64_t windows = self->run.job->accumulation * net->micro_batch;
    int32_t *tokens =
        (int32_t *)(void *)engine_home(self->run.engine, self->run.setup->set.homes.tokens_host);
    int32_t *targets = tokens + windows * net->tokens;
    int32_t *begins = targets + windows * net->tokens;
    self->run.engine->step.is_separate = from && mixture_is_separate(from);
    put_counters(self, (uint32_t *)(void *)(begins + windows * net->tokens));
    first += self->run.ranks.rank * windows;
    uint64_t *target_count = &self->run.engine->step.target_count;
    *target_count = loop_step_windows(self) * net->tokens;
    if (net->module) /* its program has the data */
        return 0;
    if (!from) {
        fill_random(self, first, 2 * windows * net->tokens, tokens);
        return 0;
    }
    for (uint64_t w = 0; w < windows; w++) {
        uint64_t at = w * net->tokens;
        TRY((shuffled ? mixture_window : mixture_window_in_order)(from, first + w, tokens + at,
                                                                  targets + at, begins + at));
    }
    if (!mixture_has_uncounted(from))
        return 0;
    uint64_t own = 0;
    for (uint64_t i = 0; i < windows * net->tokens; i++)
        own += targets[i] >= 0;
    return loop_share_count(self, own, target_count);
}
