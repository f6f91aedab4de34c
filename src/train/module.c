/* Steps and evaluations of a job with model.module, whose passes are computed by the program that
 * uses the library. The runner is called on the thread of the op, all else on the loop's thread. */
#include <errno.h>
#include <math.h>

#include "base/mem.h"
#include "train/loop_internal.h"

/* A model_runner. `user` is the loop. */
static int run_pass(void *user, model_use *use)
{
    struct loop *self = user;
    const model *net = self->run.setup->net;
    int rc = self->options->run_module(self->options->module_user, use);
    if (rc == 0 && use->stage + 1 == net->stage_count)
        self->module_losses[use->micro_batch] = use->loss;
    return rc;
}

int loop_start_module(struct loop *self)
{
    if (!self->run.job->module)
        return 0;
    self->module_losses =
        mem_alloc(self->run.job->accumulation, sizeof *self->module_losses, "losses");
    if (!self->module_losses)
        return -ENOMEM;
    model_set_runner(self->run.setup->net, run_pass, self);
    return 0;
}

int loop_evaluate_module(struct loop *self, double *loss)
{
    uint64_t begin_ns = clock_ns();
    struct engine *engine = self->run.engine;
    struct loop_losses sums = {0};
    self->was_left = false;
    TRY(loop_apply_pending(self));
    engine->step.is_given_up = false;
    self->module_losses[0] = (double)NAN;
    engine->step.target_count = self->run.ranks.world;
    int rc = engine_run(engine, PROGRAM_EVAL, self->run.record.point.step, NULL);
    if (rc < 0)
        return rc;
    bool is_given_up = engine->step.is_given_up;
    engine->step.is_given_up = false;
    sums.tokens = is_given_up ? (double)NAN : self->module_losses[0];
    TRY(loop_share_step(self, &sums, &sums));
    *loss = sums.tokens / self->run.ranks.world;
    self->was_left = is_given_up;
    if (is_given_up)
        return err_set(-ECANCELED, "the evaluation was given up");
    if (isnan(*loss))
        return 0;
    self->summary->eval_loss = *loss;
    self->summary->eval_given = true;
    const metrics_line line = {
        .is_eval = true,
        .step = self->run.record.point.step,
        .valid_loss = (float)*loss,
        .tokens = self->run.ranks.world,
        .seconds = (double)(clock_ns() - begin_ns) * 1e-9,
    };
    return loop_write_metrics(self, &line);
}
