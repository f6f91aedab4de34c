/* What a new run begins with: the weights of model.hf, or those that the model draws. Each rank reads what its own
 * state and params want, and no more. Declared in train_internal.h. */
#include <inttypes.h>

#include "base/log.h"
#include "base/size.h"
#include "train/train_internal.h"
#include "train/weights.h"

static const uint64_t report_ns = 5000000000;

/* ERR_INPUT, on all ranks, where one sees another checkpoint than rank 0. */
static int compare_weights(const traini_loop *self)
{
    uint64_t own = weights_identity(self->weights), first = own;
    TRY(traini_from_rank0(&self->ranks, "checkpoint", &first, sizeof first));
    int rc = 0;
    if (own != first)
        rc = err_set(ERR_INPUT,
                     "model.hf: %s has other tensors on %s than on rank 0's host: all ranks read "
                     "one checkpoint",
                     self->job->model.hf, self->ranks.host);
    return traini_agree(&self->ranks, "checkpoint", rc);
}

int traini_open_weights(traini_loop *self)
{
    const char *dir = self->job->model.hf;
    if (dir[0] == '\0' || self->weights || self->options->is_trial)
        return 0; /* what a trial measures does not depend on them */
    int rc = weights_open(dir, self->setup->net, &self->weights);
    TRY(traini_agree(&self->ranks, "checkpoint", rc));
    TRY(compare_weights(self));
    if (self->ranks.rank == 0)
        log_info("the run begins with the weights of %s (tensors %016" PRIx64 ")", dir,
                 weights_identity(self->weights));
    return 0;
}

static void report(struct traini_first_weights *self, bool is_end)
{
    uint64_t now_ns = clock_ns();
    if (!self->speaks || (!is_end && now_ns - self->told_ns < report_ns))
        return;
    self->told_ns = now_ns;
    char done[SIZE_TEXT_BYTES], total[SIZE_TEXT_BYTES];
    double seconds = (double)(now_ns - self->begin_ns) * 1e-9;
    double rate = seconds > 0 ? (double)self->done_bytes * 1e-9 / seconds : 0;
    if (is_end)
        log_info("the weights are there: %s of fp32 in %.1f s (%.2f GB/s)",
                 size_format(self->done_bytes, done), seconds, rate);
    else
        log_info("reading the weights of the checkpoint: %s of %s of fp32 (%.2f GB/s)",
                 size_format(self->done_bytes, done), size_format(self->total_bytes, total), rate);
}

void traini_first_begin(traini_engine *engine, struct weights *from, bool speaks)
{
    const traini_setup *setup = engine->setup;
    engine->first = (struct traini_first_weights){.from = from, .speaks = speaks};
    engine->first.begin_ns = engine->first.told_ns = clock_ns();
    for (uint32_t u = 0; u < setup->net->unit_count; u++)
        engine->first.total_bytes +=
            sizeof(float) * plan_rest_elems(&setup->plan, STATE_OPTIMIZER, u);
}

int traini_first_elems(traini_engine *engine, uint32_t unit, uint64_t begin, uint64_t count,
                       float *master)
{
    const traini_setup *setup = engine->setup;
    struct traini_first_weights *first = &engine->first;
    if (!first->from || !weights_has_all(first->from, unit))
        model_init_elems(setup->net, unit, setup->job->run.seed, begin, count, master);
    if (!first->from)
        return 0;
    TRY(weights_read(first->from, unit, begin, count, master));
    first->done_bytes += sizeof(float) * count;
    report(first, false);
    return 0;
}

void traini_first_end(traini_engine *engine)
{
    if (engine->first.from)
        report(&engine->first, true);
    engine->first.from = NULL;
}
