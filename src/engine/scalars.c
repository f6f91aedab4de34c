/* The scalars of an update, made once a step: when the norm is known or, if the update does not
 * wait for the norm, before the step. See engine.h. */
#include <math.h>

#include "config/config.h"
#include "engine/engine_internal.h"

bool engine_leaves_update(const struct setup *setup)
{
    return setup->plan.update == UPDATE_IN_NEXT_FORWARD ||
           setup->plan.update == UPDATE_DELAYED_ONE_STEP;
}

/* Fills the scalars of update number step->applied. */
static void fill_scalars(const struct job *asked, struct engine_step *step)
{
    adam_scalars *s = &step->scalars;
    s->learning_rate = (float)job_learning_rate(asked, step->applied);
    s->beta1 = (float)job_momentum(asked, step->applied);
    s->beta2 = (float)asked->optimizer.beta2;
    s->epsilon = (float)asked->optimizer.epsilon;
    s->weight_decay = (float)asked->optimizer.weight_decay;
    s->decoupled = asked->optimizer.decoupled;
    s->bias_correction1 = 1.0f;
    s->bias_correction2_sqrt = 1.0f;
    if (asked->optimizer.bias_correction) {
        double t = (double)step->applied;
        s->bias_correction1 = (float)(1.0 - pow((double)s->beta1, t));
        s->bias_correction2_sqrt = (float)sqrt(1.0 - pow((double)s->beta2, t));
    }
}

void engine_make_scalars(struct engine *self)
{
    const struct job *asked = self->setup->job;
    struct engine_step *step = &self->step;
    step->skip = !isfinite(step->grad_norm);
    if (step->skip)
        return;
    step->applied++;
    fill_scalars(asked, step);
    /* As torch.nn.utils.clip_grad_norm_: a norm below the limit does not change the gradient. */
    double clip = asked->gradient_clipping;
    double factor = clip > 0 ? fmin(1.0, clip / (step->grad_norm + 1e-6)) : 1.0;
    step->scalars.grad_scale = (float)(factor / step->loss_scale);
}
