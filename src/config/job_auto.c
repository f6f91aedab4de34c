/* The value "auto" of DeepSpeed's keys. In a file for a trainer it stands for what the trainer was
 * told on its own command line. See config_internal.h. Called by job_read; writes to the log. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "config/config_internal.h"

static bool is_auto(const json_t *value)
{
    return json_is_string(value) && strcmp(json_string_value(value), "auto") == 0;
}

bool configi_is_auto(const configi_reader *reader, const char *path)
{
    return is_auto(configi_written(reader, path));
}

int configi_ask_auto(const configi_reader *reader, const char *path, const char *value)
{
    return configi_error(reader, path,
                         "\"auto\" leaves it to a trainer, and no trainer runs here: give it by "
                         "--set %s=%s, or take the defaults of Hugging Face's Trainer by --auto hf",
                         path, value);
}

/* ---- --auto hf ---- */

/* Lists the values that are filled in, for the log. */
struct filling {
    const configi_reader *reader;
    char list[ERR_TEXT_BYTES];
};

/* Takes the reference to `value`. */
static int put(struct filling *self, const char *path, json_t *value)
{
    char shown[CONFIGI_VALUE_BYTES];
    text_add(self->list, sizeof self->list, "%s%s %s", self->list[0] ? ", " : "", path,
             configi_show(value, shown));
    return configi_put_path(self->reader, path, value);
}

/* The defaults of transformers' TrainingArguments, for the keys that its integration of DeepSpeed
 * fills in (HfTrainerDeepSpeedConfig). Keys that follow from others are not here. */
static const struct {
    const char *path, *value; /* JSON */
} trainer_values[] = {
    {"gradient_accumulation_steps", "1"},
    {"gradient_clipping", "1.0"},
    {"optimizer.params.betas", "[0.9, 0.999]"},
    {"optimizer.params.eps", "1e-08"},
    {"optimizer.params.weight_decay", "0.0"},
    {"scheduler.params.warmup_min_lr", "0"},
    {"scheduler.params.warmup_num_steps", "0"},
    {"fp16.enabled", "false"},
    {"bf16.enabled", "false"},
};

static int fill_constants(struct filling *self)
{
    for (size_t i = 0; i < sizeof trainer_values / sizeof trainer_values[0]; i++) {
        if (!configi_is_auto(self->reader, trainer_values[i].path))
            continue;
        json_t *value = json_loads(trainer_values[i].value, JSON_DECODE_ANY, NULL);
        TRY(put(self, trainer_values[i].path, value));
    }
    return 0;
}

/* The batch: per_device_train_batch_size is 8, unless the file's numbers give another. */
static int fill_batch(struct filling *self)
{
    static const char micro[] = "train_micro_batch_size_per_gpu";
    enum { PER_DEVICE = 8 };
    if (configi_get(self->reader, micro) || configi_get(self->reader, "train_batch_size"))
        return 0;
    return put(self, micro, json_integer(PER_DEVICE));
}

/* Limits of ZeRO that follow from the width of the model. */
static int fill_limits(struct filling *self)
{
    static const struct {
        const char *path;
        double factor, power;
    } rows[] = {
        {"zero_optimization.reduce_bucket_size", 1, 2},
        {"zero_optimization.stage3_prefetch_bucket_size", 0.9, 2},
        {"zero_optimization.stage3_param_persistence_threshold", 10, 1},
    };
    enum { WIDTH_MOST = 1 << 20 }; /* the check of the document refuses larger ones */
    double width = json_number_value(configi_get(self->reader, "model.hidden_size"));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (configi_is_auto(self->reader, rows[i].path) && width >= 1 && width <= WIDTH_MOST)
            TRY(put(self, rows[i].path,
                    json_integer((json_int_t)floor(rows[i].factor * pow(width, rows[i].power)))));
    return 0;
}

/* learning_rate of TrainingArguments. */
static json_t *default_rate(void)
{
    return json_real(5e-5);
}

/* The optimizer that the trainer makes itself if the file has none, and the schedule, which is
 * linear over the steps of the run. */
static int fill_schedule(struct filling *self)
{
    static const char max_lr[] = "scheduler.params.warmup_max_lr";
    static const char total[] = "scheduler.params.total_num_steps",
                      lr_path[] = "optimizer.params.lr";
    const json_t *steps = configi_get(self->reader, "run.steps");
    json_int_t count = json_is_integer(steps) ? json_integer_value(steps)
                                              : (json_int_t)configi_uint(self->reader, "run.steps");
    if (configi_is_auto(self->reader, lr_path) || !configi_get(self->reader, "optimizer"))
        TRY(put(self, lr_path, default_rate()));
    const json_t *rate = configi_get(self->reader, lr_path);
    if (configi_is_auto(self->reader, max_lr))
        TRY(put(self, max_lr, rate ? json_deep_copy(rate) : default_rate()));
    if (configi_is_auto(self->reader, total))
        TRY(put(self, total, json_integer(count)));
    if (configi_get(self->reader, "scheduler"))
        return 0;
    TRY(put(self, "scheduler.type", json_string("Linear")));
    TRY(put(self, "scheduler.params.warmup_num_steps", json_integer(0)));
    return put(self, total, json_integer(count));
}

int configi_fill_auto(const configi_reader *reader)
{
    struct filling self = {.reader = reader};
    const char *trainer = json_string_value(configi_get(reader, "auto"));
    if (!trainer || configi_list_find("hf", trainer) < 0)
        return 0; /* another value: the check of the document reports it */
    TRY(fill_batch(&self));
    TRY(fill_constants(&self));
    TRY(fill_schedule(&self));
    TRY(fill_limits(&self));
    if (self.list[0] != '\0')
        log_info("%s: as Hugging Face's Trainer has it by default (--auto hf): %s", reader->file,
                 self.list);
    return 0;
}
