/* The learning rate and the momentum of each update, as in DeepSpeed. See config.h. Pure.
 *
 * The classes are those of deepspeed/runtime/lr_schedules.py. The step that an update sees is
 * DeepSpeed's too: the engine creates the scheduler, which sets the rate of last_batch_iteration
 * -1, and advances it after each optimizer step that was not skipped. So update s, the first being
 * 1, runs with the rate of
 *
 *   t = s - 2   the rate set after update s - 1; t = -1, before the first, is a special case
 *
 * With w = max(2, warmup_num_steps) and n = total_num_steps:
 *
 *   warm-up, t < w       g = ln(t + 1) / ln(w), or t / w if warmup_type is linear
 *   WarmupLR             min + (max - min) g; then max; at t = -1 min
 *   WarmupDecayLR        the same; then min + (max - min) max(0, (n - t) / max(1, n - w))
 *   WarmupCosineLR       lr (r + (1 - r) g), r = warmup_min_ratio; then
 *                        lr max(0, c + (1 - c) (1 + cos(pi p)) / 2), c = cos_min_ratio,
 *                        p = min(1, (t - w + 1) / max(1, n - w)); at t = -1 0
 *   OneCycle             i = t + 1, in cycles of a + b steps (cycle_first_step_size and
 *                        cycle_second_step_size) up and down between min and max, f the height:
 *                        min + (max - min) f; momentum max - (max - min) f; at t = -1 both are min.
 *                        From t = a + b on: min / (1 + decay_lr_rate d / decay_step_size),
 *                        max (1 + decay_mom_rate d / decay_step_size), d = t - a - b + 1
 *   LRRangeTest          min (1 + step_rate (t + 1) / step_size), or the floor of the quotient
 *
 * Linear is Sluice's own name for the linear schedule of Hugging Face's Trainer, which makes it if
 * the file has no scheduler. Its first update already has a rate, with u = s - 1 and w without a
 * lower bound: lr u / max(1, w) for u < w, then lr max(0, (n - u) / max(1, n - w)). */
#include <inttypes.h>
#include <math.h>

#include "base/log.h"
#include "base/size.h"
#include "config/config_internal.h"

enum { WARMUP_STEPS_MIN = 2 };

/* DeepSpeed's last_batch_iteration at the time of an update. */
static int64_t iteration_of(uint64_t step)
{
    return step > 0 ? (int64_t)step - 2 : -1;
}

static uint64_t warmup_steps(const job *self)
{
    return size_max(self->scheduler.warmup_num_steps, WARMUP_STEPS_MIN);
}

/* The progress of the warm-up, 0 to 1, in its iterations. */
static double warmup_share(const job *self, double iteration)
{
    double steps = (double)warmup_steps(self);
    if (self->scheduler.warmup_linear)
        return iteration / steps;
    return 1.0 / log(steps) * log(iteration + 1.0);
}

static double warmup_rate(const job *self, double iteration)
{
    double warmup = (double)warmup_steps(self), total = (double)self->scheduler.total_num_steps;
    double low = self->scheduler.warmup_min_lr;
    double high =
        self->scheduler.warmup_max_lr_given ? self->scheduler.warmup_max_lr : self->optimizer.lr;
    double share = 1.0;
    if (iteration < 0)
        return low;
    if (iteration < warmup)
        share = warmup_share(self, iteration);
    else if (self->scheduler.type == JOB_WARMUP_DECAY_LR)
        share = fmax(0.0, (total - iteration) / fmax(1.0, total - warmup));
    return low + (high - low) * share;
}

static double cosine_ratio(const job *self, double iteration)
{
    double warmup = (double)warmup_steps(self), total = (double)self->scheduler.total_num_steps;
    double floor_ratio = self->scheduler.cos_min_ratio;
    if (iteration < 0)
        return 0.0;
    if (iteration < warmup) {
        double start = self->scheduler.warmup_min_ratio;
        return start + warmup_share(self, iteration) * (1.0 - start);
    }
    double progress = fmin(1.0, (iteration - warmup + 1) / fmax(1.0, total - warmup));
    double wave = (1.0 + cos(M_PI * progress)) / 2.0;
    return fmax(0.0, floor_ratio + (1.0 - floor_ratio) * wave);
}

static double cycle_steps(const job *self)
{
    return (double)self->scheduler.cycle.first_step_size +
           (double)self->scheduler.cycle.second_step_size;
}

/* The height in the cycle, 0 to 1, in stairs if the job asks for them. Stairs are counted in whole
 * steps, as in DeepSpeed, so that rounding never drops one. */
static double cycle_height(const job *self, double iteration)
{
    double first = (double)self->scheduler.cycle.first_step_size;
    double second = (double)self->scheduler.cycle.second_step_size;
    double total = first + second, ratio = first / total;
    double batch = iteration + 1.0;
    double x = 1.0 + batch / total - floor(1.0 + batch / total);
    bool rises = x <= ratio;
    double height = rises ? x / ratio : (x - 1.0) / (ratio - 1.0);
    double stairs = (double)(rises ? self->scheduler.cycle.first_stair_count
                                   : self->scheduler.cycle.second_stair_count);
    if (stairs == 0)
        return height;
    double at = fmod(batch, total);
    double position = at <= first ? at * stairs / first : (total - at) * stairs / second;
    return floor(position) / stairs;
}

/* Decay steps after the cycle, in units of decay_step_size; 0 if nothing decays. */
static double cycle_decay(const job *self, double iteration)
{
    double interval = (double)self->scheduler.cycle.decay_step_size;
    return interval > 0 ? (iteration - cycle_steps(self) + 1.0) / interval : 0.0;
}

static double cycle_rate(const job *self, double iteration)
{
    double low = self->scheduler.cycle.min_lr, high = self->scheduler.cycle.max_lr;
    if (iteration < 0)
        return low;
    if (iteration < cycle_steps(self))
        return low + (high - low) * cycle_height(self, iteration);
    return low / (1.0 + self->scheduler.cycle.decay_lr_rate * cycle_decay(self, iteration));
}

static double range_test_rate(const job *self, double iteration)
{
    double interval = (iteration + 1.0) / (double)self->scheduler.range_test.step_size;
    if (self->scheduler.range_test.staircase)
        interval = floor(interval);
    return self->scheduler.range_test.min_lr *
           (1.0 + self->scheduler.range_test.step_rate * interval);
}

static double linear_rate(const job *self, uint64_t step)
{
    double done = step > 0 ? (double)step - 1 : 0; /* updates before this one */
    double warmup = (double)self->scheduler.warmup_num_steps;
    double total = (double)self->scheduler.total_num_steps;
    if (done < warmup)
        return self->optimizer.lr * (done / fmax(1.0, warmup));
    return self->optimizer.lr * fmax(0.0, (total - done) / fmax(1.0, total - warmup));
}

double job_learning_rate(const job *self, uint64_t step)
{
    double iteration = (double)iteration_of(step);
    switch (self->scheduler.type) {
    case JOB_SCHEDULE_NONE:
        break;
    case JOB_WARMUP_LR:
    case JOB_WARMUP_DECAY_LR:
        return warmup_rate(self, iteration);
    case JOB_WARMUP_COSINE_LR:
        return self->optimizer.lr * cosine_ratio(self, iteration);
    case JOB_ONE_CYCLE:
        return cycle_rate(self, iteration);
    case JOB_LR_RANGE_TEST:
        return range_test_rate(self, iteration);
    case JOB_LINEAR:
        return linear_rate(self, step);
    }
    return self->optimizer.lr;
}

double job_momentum(const job *self, uint64_t step)
{
    double iteration = (double)iteration_of(step);
    if (self->scheduler.type != JOB_ONE_CYCLE || !self->scheduler.cycle.momentum)
        return self->optimizer.beta1;
    double low = self->scheduler.cycle.min_mom, high = self->scheduler.cycle.max_mom;
    if (iteration < 0)
        return low;
    if (iteration < cycle_steps(self))
        return high - (high - low) * cycle_height(self, iteration);
    return high * (1.0 + self->scheduler.cycle.decay_mom_rate * cycle_decay(self, iteration));
}

/* The parameters of each scheduler. A parameter of another scheduler is an error, as in
 * DeepSpeed. */
static const char *const schedule_params[] = {
    [JOB_WARMUP_LR] =
        "warmup_min_lr|warmup_max_lr|warmup_num_steps|warmup_type|last_batch_iteration",
    [JOB_WARMUP_DECAY_LR] = "total_num_steps|warmup_min_lr|warmup_max_lr|warmup_num_steps|"
                            "warmup_type|last_batch_iteration",
    [JOB_WARMUP_COSINE_LR] = "total_num_steps|warmup_min_ratio|warmup_num_steps|cos_min_ratio|"
                             "warmup_type|last_batch_iteration",
    [JOB_ONE_CYCLE] = "cycle_min_lr|cycle_max_lr|decay_lr_rate|cycle_first_step_size|"
                      "cycle_second_step_size|cycle_first_stair_count|cycle_second_stair_count|"
                      "decay_step_size|cycle_momentum|cycle_min_mom|cycle_max_mom|decay_mom_rate|"
                      "last_batch_iteration",
    [JOB_LR_RANGE_TEST] = "lr_range_test_min_lr|lr_range_test_step_size|lr_range_test_step_rate|"
                          "lr_range_test_staircase|last_batch_iteration",
    [JOB_LINEAR] = "total_num_steps|warmup_num_steps",
};

static int missing(const configi_reader *reader, const char *path)
{
    return configi_error(reader, path, "missing; %s needs it",
                         configi_text(reader, "scheduler.type"));
}

/* Fills and checks the number of steps. "auto" is what a trainer on top of DeepSpeed fills in: its
 * number of steps. */
static int fill_total(const configi_reader *reader, job *target)
{
    static const char total_path[] = "scheduler.params.total_num_steps";
    if (!configi_get(reader, total_path) && !configi_is_auto(reader, total_path))
        return missing(reader, total_path);
    if (!configi_get(reader, total_path))
        target->scheduler.total_num_steps = target->run.steps;
    if (target->scheduler.total_num_steps < target->scheduler.warmup_num_steps)
        log_warn("%s: %s %" PRIu64 " is less than warmup_num_steps %" PRIu64, reader->file,
                 total_path, target->scheduler.total_num_steps, target->scheduler.warmup_num_steps);
    return 0;
}

static int fill_warmup(const configi_reader *reader, job *target)
{
    static const char max_path[] = "scheduler.params.warmup_max_lr";
    static const double decay_max_lr = 0.001; /* WarmupDecayLR's own default */
    /* If the key is left out, the highest rate depends on the class. If it is null, or the "auto"
     * that a trainer on top of DeepSpeed fills in, it is the optimizer's rate for both classes. */
    bool is_written = json_object_get(configi_get(reader, "scheduler.params"), "warmup_max_lr");
    if (configi_is_auto(reader, max_path) && !configi_get(reader, "optimizer.params.lr"))
        return configi_ask_auto(reader, max_path, "5e-5");
    if (configi_get(reader, max_path)) {
        target->scheduler.warmup_max_lr_given = true;
    } else if (target->scheduler.type == JOB_WARMUP_DECAY_LR && !is_written) {
        target->scheduler.warmup_max_lr_given = true;
        target->scheduler.warmup_max_lr = decay_max_lr;
    } else {
        target->scheduler.warmup_max_lr = target->optimizer.lr;
    }
    return target->scheduler.type == JOB_WARMUP_LR ? 0 : fill_total(reader, target);
}

/* Linear: like Hugging Face's function, it has no warm-up unless one is given. */
static int fill_linear(const configi_reader *reader, job *target)
{
    if (!configi_get(reader, "scheduler.params.warmup_num_steps"))
        target->scheduler.warmup_num_steps = 0;
    return fill_total(reader, target);
}

/* OneCycle changes the betas too: beta1 between two bounds, and beta2 to a constant of its own. */
static void fill_cycle_momentum(const configi_reader *reader, job *target)
{
    static const double cycle_beta2 = 0.99; /* as in DeepSpeed's class, whatever betas says */
    if (target->optimizer.type == JOB_ADAGRAD) {
        log_warn("%s: scheduler.params.cycle_momentum: Adagrad has no momentum to cycle, as "
                 "DeepSpeed warns too; only the learning rate cycles",
                 reader->file);
        target->scheduler.cycle.momentum = false;
        return;
    }
    target->optimizer.beta2 = cycle_beta2;
    if (configi_get(reader, "optimizer.params.betas"))
        log_warn("%s: optimizer.params.betas: OneCycle with cycle_momentum sets the first beta to "
                 "cycle_min_mom up to cycle_max_mom and the second to %g, as in DeepSpeed",
                 reader->file, cycle_beta2);
}

/* Checks the momentum after the cycle. It goes on falling or, as in DeepSpeed, rising without a
 * bound. */
static int check_momentum(const configi_reader *reader, const job *target)
{
    const uint64_t steps[] = {1, target->scheduler.cycle.first_step_size + 1, target->run.steps};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        double momentum = job_momentum(target, steps[i]);
        if ((float)momentum >= 0 && (float)momentum < 1)
            continue;
        return configi_error(
            reader, "scheduler.params.cycle_momentum",
            "the first beta would be %.9g at step %" PRIu64 " of %" PRIu64
            ", but must stay in [0, 1): lower decay_mom_rate (%g) or cycle_max_mom (%.9g)",
            momentum, steps[i], target->run.steps, target->scheduler.cycle.decay_mom_rate,
            target->scheduler.cycle.max_mom);
    }
    return 0;
}

static int fill_cycle(const configi_reader *reader, job *target)
{
    static const char min_path[] = "scheduler.params.cycle_min_lr";
    static const char max_path[] = "scheduler.params.cycle_max_lr";
    static const char second_path[] = "scheduler.params.cycle_second_step_size";
    static const char stair_path[] = "scheduler.params.cycle_second_stair_count";
    if (!configi_get(reader, min_path))
        return missing(reader, min_path);
    if (!configi_get(reader, max_path))
        return missing(reader, max_path);
    if (!configi_get(reader, second_path))
        target->scheduler.cycle.second_step_size = target->scheduler.cycle.first_step_size;
    if (!configi_get(reader, stair_path))
        target->scheduler.cycle.second_stair_count = target->scheduler.cycle.first_stair_count;
    if (target->scheduler.cycle.momentum)
        fill_cycle_momentum(reader, target);
    return check_momentum(reader, target);
}

int configi_fill_scheduler(const configi_reader *reader, job *target)
{
    if (target->scheduler.type == JOB_SCHEDULE_NONE) {
        if (configi_get(reader, "scheduler.params"))
            return configi_error(reader, "scheduler.type", "missing beside scheduler.params");
        return 0;
    }
    TRY(configi_check_params(reader, "scheduler", schedule_params[target->scheduler.type]));
    switch (target->scheduler.type) {
    case JOB_ONE_CYCLE:
        return fill_cycle(reader, target);
    case JOB_LR_RANGE_TEST:
        return 0;
    case JOB_LINEAR:
        return fill_linear(reader, target);
    default:
        return fill_warmup(reader, target);
    }
}
