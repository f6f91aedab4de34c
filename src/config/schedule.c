/* Optimizer, batch sizes and the learning rate, as DeepSpeed has them. See job.h. Pure.
 *
 * The rates are those of deepspeed/runtime/lr_schedules.py. With t = step - 1 (its
 * last_batch_iteration), w = max(2, warmup_num_steps) and n = total_num_steps:
 *
 *   warm-up, t < w       g = ln(t + 1) / ln(w), or t / w where warmup_type is linear
 *   WarmupLR             min + (max - min) g; then max
 *   WarmupDecayLR        the same; then min + (max - min) max(0, (n - t) / max(1, n - w))
 *   WarmupCosineLR       lr (r + (1 - r) g), r = warmup_min_ratio; then
 *                        lr max(0, c + (1 - c) (1 + cos(pi p)) / 2), c = cos_min_ratio,
 *                        p = min(1, (t - w + 1) / max(1, n - w)) */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"
#include "base/size.h"
#include "config/config_internal.h"

enum { WARMUP_STEPS_MIN = 2 };

static uint64_t warmup_steps(const job *self)
{
    return size_max(self->scheduler.warmup_num_steps, WARMUP_STEPS_MIN);
}

/* How far the warm-up is, 0 to 1, in its iterations. */
static double warmup_share(const job *self, uint64_t iteration)
{
    double steps = (double)warmup_steps(self);
    if (self->scheduler.warmup_linear)
        return (double)iteration / steps;
    return log((double)iteration + 1.0) / log(steps);
}

static double cosine_ratio(const job *self, uint64_t iteration)
{
    uint64_t warmup = warmup_steps(self), total = self->scheduler.total_num_steps;
    double floor_ratio = self->scheduler.cos_min_ratio;
    if (iteration < warmup) {
        double start = self->scheduler.warmup_min_ratio;
        return start + warmup_share(self, iteration) * (1.0 - start);
    }
    double steps = total > warmup ? (double)(total - warmup) : 1.0;
    double progress = fmin(1.0, (double)(iteration - warmup + 1) / steps);
    double wave = (1.0 + cos(M_PI * progress)) / 2.0;
    return fmax(0.0, floor_ratio + (1.0 - floor_ratio) * wave);
}

double job_learning_rate(const job *self, uint64_t step)
{
    uint64_t iteration = step > 0 ? step - 1 : 0;
    uint64_t warmup = warmup_steps(self), total = self->scheduler.total_num_steps;
    double low = self->scheduler.warmup_min_lr;
    double high =
        self->scheduler.warmup_max_lr_given ? self->scheduler.warmup_max_lr : self->optimizer.lr;
    double share = 1.0;
    switch (self->scheduler.type) {
    case JOB_SCHEDULE_NONE:
    case JOB_ONE_CYCLE: /* no job file leads here yet */
    case JOB_LR_RANGE_TEST:
        return self->optimizer.lr;
    case JOB_WARMUP_LR:
        if (iteration < warmup)
            share = warmup_share(self, iteration);
        break;
    case JOB_WARMUP_DECAY_LR:
        if (iteration < warmup)
            share = warmup_share(self, iteration);
        else
            share = fmax(0.0, ((double)total - (double)iteration) /
                                  fmax(1.0, (double)total - (double)warmup));
        break;
    case JOB_WARMUP_COSINE_LR:
        return self->optimizer.lr * cosine_ratio(self, iteration);
    }
    return low + (high - low) * share;
}

int configi_fill_optimizer(const configi_reader *reader, job *target)
{
    enum { BETA_COUNT = 2 };
    static const char betas_path[] = "optimizer.params.betas";
    static const double torch_weight_decay = 0.01; /* the default of torch.optim.AdamW */
    bool is_adamw = strcmp(configi_choice(reader, "optimizer.type"), "AdamW") == 0;
    target->optimizer.decoupled = is_adamw || configi_bool(reader, "optimizer.params.adam_w_mode");
    target->optimizer.lr = configi_double(reader, "optimizer.params.lr");
    target->optimizer.epsilon = configi_double(reader, "optimizer.params.eps");
    target->optimizer.bias_correction = configi_bool(reader, "optimizer.params.bias_correction");
    target->optimizer.weight_decay = configi_double(reader, "optimizer.params.weight_decay");
    if (configi_bool(reader, "optimizer.params.torch_adam") && target->optimizer.decoupled &&
        !configi_get(reader, "optimizer.params.weight_decay"))
        target->optimizer.weight_decay = torch_weight_decay;
    target->optimizer.beta1 = 0.9;
    target->optimizer.beta2 = 0.999;
    const json_t *betas = configi_get(reader, betas_path);
    if (!betas)
        return 0;
    if (json_array_size(betas) != BETA_COUNT) {
        char shown[CONFIGI_VALUE_BYTES];
        return configi_error(reader, betas_path, "%s: two numbers are needed, as in [0.9, 0.999]",
                             configi_show(betas, shown));
    }
    target->optimizer.beta1 = json_number_value(json_array_get(betas, 0));
    target->optimizer.beta2 = json_number_value(json_array_get(betas, 1));
    return 0;
}

/* The parameters of each scheduler; another's is an error, as it is there. */
static const struct {
    enum job_schedule type;
    const char *params;
} schedules[] = {
    {JOB_WARMUP_LR,
     "warmup_min_lr|warmup_max_lr|warmup_num_steps|warmup_type|last_batch_iteration"},
    {JOB_WARMUP_DECAY_LR, "total_num_steps|warmup_min_lr|warmup_max_lr|warmup_num_steps|"
                          "warmup_type|last_batch_iteration"},
    {JOB_WARMUP_COSINE_LR, "total_num_steps|warmup_min_ratio|warmup_num_steps|cos_min_ratio|"
                           "warmup_type|last_batch_iteration"},
};

static int check_scheduler_params(const configi_reader *reader, const char *params)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)configi_get(reader, "scheduler.params"), key, value)
    {
        char path[CONFIGI_PATH_BYTES];
        configi_join(path, "scheduler.params", key);
        if (configi_list_find(params, key) < 0)
            return configi_error(reader, path, "no parameter of %s, which has %s",
                                 configi_text(reader, "scheduler.type"), params);
    }
    return 0;
}

int configi_fill_scheduler(const configi_reader *reader, job *target)
{
    static const char total_path[] = "scheduler.params.total_num_steps";
    static const char max_path[] = "scheduler.params.warmup_max_lr";
    static const double decay_max_lr = 0.001; /* WarmupDecayLR's own default */
    if (!configi_get(reader, "scheduler.type")) {
        if (configi_get(reader, "scheduler.params"))
            return configi_error(reader, "scheduler.type", "missing beside scheduler.params");
        return 0;
    }
    const char *choices = option_find("scheduler.type")->choices;
    int idx = configi_list_find(choices, configi_text(reader, "scheduler.type"));
    target->scheduler.type = schedules[idx].type;
    TRY(check_scheduler_params(reader, schedules[idx].params));
    target->scheduler.warmup_min_lr = configi_double(reader, "scheduler.params.warmup_min_lr");
    target->scheduler.warmup_min_ratio =
        configi_double(reader, "scheduler.params.warmup_min_ratio");
    target->scheduler.cos_min_ratio = configi_double(reader, "scheduler.params.cos_min_ratio");
    target->scheduler.warmup_num_steps = configi_uint(reader, "scheduler.params.warmup_num_steps");
    target->scheduler.warmup_linear =
        strcmp(configi_choice(reader, "scheduler.params.warmup_type"), "linear") == 0;
    target->scheduler.warmup_max_lr = target->optimizer.lr;
    /* A null that is written out means the optimizer's rate to both; left out, it depends. */
    const json_t *written =
        json_object_get(configi_get(reader, "scheduler.params"), "warmup_max_lr");
    if (configi_get(reader, max_path)) {
        target->scheduler.warmup_max_lr_given = true;
        target->scheduler.warmup_max_lr = configi_double(reader, max_path);
    } else if (target->scheduler.type == JOB_WARMUP_DECAY_LR && !json_is_null(written)) {
        target->scheduler.warmup_max_lr_given = true;
        target->scheduler.warmup_max_lr = decay_max_lr;
    }
    if (target->scheduler.type == JOB_WARMUP_LR)
        return 0;
    if (!configi_get(reader, total_path))
        return configi_error(reader, total_path, "missing; %s needs it",
                             configi_text(reader, "scheduler.type"));
    target->scheduler.total_num_steps = configi_uint(reader, total_path);
    if (target->scheduler.total_num_steps < target->scheduler.warmup_num_steps)
        log_warn("%s: %s %" PRIu64 " is less than warmup_num_steps %" PRIu64, reader->file,
                 total_path, target->scheduler.total_num_steps, target->scheduler.warmup_num_steps);
    return 0;
}

int configi_resolve_batch(const configi_reader *reader, uint64_t world, uint64_t *train,
                          uint64_t *micro, uint64_t *accumulation)
{
    if (*train == 0 && *micro == 0)
        return configi_error(reader, "train_micro_batch_size_per_gpu",
                             "missing; give it or train_batch_size");
    uint64_t product;
    if (*train > 0 && *micro > 0 && *accumulation == 0) {
        *accumulation = *train / *micro / world;
    } else if (*train > 0 && *micro == 0) {
        if (*accumulation == 0)
            *accumulation = 1;
        *micro = *train / world / *accumulation;
    } else if (*train == 0) {
        if (*accumulation == 0)
            *accumulation = 1;
        if (size_mul(*micro, *accumulation, train) < 0 || size_mul(*train, world, train) < 0)
            return configi_error(reader, "train_batch_size",
                                 "%" PRIu64 " micro-batch times %" PRIu64 " accumulation times "
                                 "%" PRIu64 " ranks is more than 64 bits hold",
                                 *micro, *accumulation, world);
    }
    bool fits =
        size_mul(*micro, *accumulation, &product) == 0 && size_mul(product, world, &product) == 0;
    if (fits && product == *train && product > 0)
        return 0;
    return configi_error(reader, "train_batch_size",
                         "%" PRIu64 " is not train_micro_batch_size_per_gpu %" PRIu64
                         " times gradient_accumulation_steps %" PRIu64 " times %" PRIu64 " rank%s",
                         *train, *micro, *accumulation, world, world == 1 ? "" : "s");
}
