/* What a job changes in a run that another one has begun: the keys that the training depends on and that a
 * run may go on without (what it cannot, its manifest holds: src/train/setup.c). See job.h. Pure. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "config/job.h"

enum change_type {
    CHANGE_UINT,
    CHANGE_WORLD,
    CHANGE_BATCH,
    CHANGE_STEPS,
    CHANGE_WIRE,
    CHANGE_REAL,
    CHANGE_BOOL,
    CHANGE_SCHEDULE,
    CHANGE_TEXT,
    CHANGE_SHUFFLE,
    CHANGE_FILES
};

struct change_row {
    const char *path; /* as in the job file */
    size_t offset;    /* in struct job */
    enum change_type type;
};

#define CHANGE_ROW(path_, member, type_)                                                           \
    {                                                                                              \
        .path = (path_), .offset = offsetof(struct job, member), .type = (type_)                   \
    }

/* The schedule's own values follow where its type is the same: of another type they say nothing. */
static const struct change_row change_rows[] = {
    CHANGE_ROW("data.train", data.train, CHANGE_FILES),
    CHANGE_ROW("data.tokenizer", data.tokenizer, CHANGE_TEXT),
    CHANGE_ROW("data.chat_template", data.chat_template, CHANGE_TEXT),
    CHANGE_ROW("data.shuffle", data.shuffle, CHANGE_SHUFFLE),
    CHANGE_ROW("data.seed", data.seed, CHANGE_UINT),
    CHANGE_ROW("the number of ranks", world, CHANGE_WORLD),
    CHANGE_ROW("train_batch_size", train_batch_size, CHANGE_BATCH),
    CHANGE_ROW("gradient_accumulation_steps", accumulation, CHANGE_STEPS),
    CHANGE_ROW("communication_data_type", comm.wire, CHANGE_WIRE),
    CHANGE_ROW("gradient_clipping", gradient_clipping, CHANGE_REAL),
    CHANGE_ROW("optimizer.params.lr", optimizer.lr, CHANGE_REAL),
    CHANGE_ROW("optimizer.params.betas[0]", optimizer.beta1, CHANGE_REAL),
    CHANGE_ROW("optimizer.params.betas[1]", optimizer.beta2, CHANGE_REAL),
    CHANGE_ROW("optimizer.params.eps", optimizer.epsilon, CHANGE_REAL),
    CHANGE_ROW("optimizer.params.weight_decay", optimizer.weight_decay, CHANGE_REAL),
    CHANGE_ROW("optimizer.params.adam_w_mode", optimizer.decoupled, CHANGE_BOOL),
    CHANGE_ROW("optimizer.params.bias_correction", optimizer.bias_correction, CHANGE_BOOL),
    CHANGE_ROW("fp16.loss_scale", fp16.loss_scale, CHANGE_REAL),
    CHANGE_ROW("fp16.loss_scale_window", fp16.loss_scale_window, CHANGE_UINT),
    CHANGE_ROW("fp16.hysteresis", fp16.hysteresis, CHANGE_UINT),
    CHANGE_ROW("fp16.consecutive_hysteresis", fp16.consecutive_hysteresis, CHANGE_BOOL),
    CHANGE_ROW("fp16.min_loss_scale", fp16.min_loss_scale, CHANGE_REAL),
    CHANGE_ROW("scheduler.type", scheduler.type, CHANGE_SCHEDULE),
};

static const char *schedule_name(enum job_schedule type)
{
    static const char *const names[] = {
        [JOB_SCHEDULE_NONE] = "none",
        [JOB_WARMUP_LR] = "WarmupLR",
        [JOB_WARMUP_DECAY_LR] = "WarmupDecayLR",
        [JOB_WARMUP_COSINE_LR] = "WarmupCosineLR",
        [JOB_ONE_CYCLE] = "OneCycle",
        [JOB_LR_RANGE_TEST] = "LRRangeTest",
    };
    return names[type];
}

/* The first file, and how many there are. */
static void show_files(const struct job_files *files, char text[JOB_CHANGE_BYTES])
{
    if (files->count == 0)
        snprintf(text, JOB_CHANGE_BYTES, "none");
    else if (files->count == 1)
        snprintf(text, JOB_CHANGE_BYTES, "%.80s", files->path[0]);
    else
        snprintf(text, JOB_CHANGE_BYTES, "%.80s and %u more", files->path[0], files->count - 1);
}

static bool are_same_files(const struct job_files *a, const struct job_files *b)
{
    bool same = a->count == b->count && a->source_count == b->source_count;
    for (uint32_t i = 0; same && i < a->count; i++)
        same = strcmp(a->path[i], b->path[i]) == 0 && strcmp(a->field[i], b->field[i]) == 0 &&
               a->source[i] == b->source[i];
    for (uint32_t i = 0; same && i < a->source_count; i++)
        same = a->weight[i] == b->weight[i];
    return same;
}

/* Whether the member is equal in both; its texts. */
static bool compare(const struct change_row *row, const job *was, const job *is,
                    char old[JOB_CHANGE_BYTES], char new[JOB_CHANGE_BYTES])
{
    const void *a = (const char *)was + row->offset, *b = (const char *)is + row->offset;
    bool is_other_world = was->world != is->world;
    if (row->type == (is_other_world ? CHANGE_STEPS : CHANGE_BATCH) ||
        (row->type == CHANGE_WIRE && is->world <= 1))
        return true; /* the one or the other says how long a step is; one rank sends nothing */
    switch (row->type) {
    case CHANGE_WORLD:
        snprintf(old, JOB_CHANGE_BYTES, "%" PRIu32, *(const uint32_t *)a);
        snprintf(new, JOB_CHANGE_BYTES, "%" PRIu32, *(const uint32_t *)b);
        return !is_other_world;
    case CHANGE_WIRE:
        snprintf(old, JOB_CHANGE_BYTES, "%s", dtype_name(*(const enum dtype *)a));
        snprintf(new, JOB_CHANGE_BYTES, "%s", dtype_name(*(const enum dtype *)b));
        return *(const enum dtype *)a == *(const enum dtype *)b;
    case CHANGE_UINT:
    case CHANGE_BATCH:
    case CHANGE_STEPS:
        snprintf(old, JOB_CHANGE_BYTES, "%" PRIu64, *(const uint64_t *)a);
        snprintf(new, JOB_CHANGE_BYTES, "%" PRIu64, *(const uint64_t *)b);
        return *(const uint64_t *)a == *(const uint64_t *)b;
    case CHANGE_REAL:
        snprintf(old, JOB_CHANGE_BYTES, "%.9g", *(const double *)a);
        snprintf(new, JOB_CHANGE_BYTES, "%.9g", *(const double *)b);
        return *(const double *)a == *(const double *)b;
    case CHANGE_BOOL:
        snprintf(old, JOB_CHANGE_BYTES, "%s", *(const bool *)a ? "true" : "false");
        snprintf(new, JOB_CHANGE_BYTES, "%s", *(const bool *)b ? "true" : "false");
        return *(const bool *)a == *(const bool *)b;
    case CHANGE_SCHEDULE:
        snprintf(old, JOB_CHANGE_BYTES, "%s", schedule_name(*(const enum job_schedule *)a));
        snprintf(new, JOB_CHANGE_BYTES, "%s", schedule_name(*(const enum job_schedule *)b));
        return *(const enum job_schedule *)a == *(const enum job_schedule *)b;
    case CHANGE_TEXT:
        snprintf(old, JOB_CHANGE_BYTES, "%.80s", (const char *)a);
        snprintf(new, JOB_CHANGE_BYTES, "%.80s", (const char *)b);
        return strcmp(a, b) == 0;
    case CHANGE_SHUFFLE:
        snprintf(old, JOB_CHANGE_BYTES, "%s", shuffle_name(*(const enum shuffle *)a));
        snprintf(new, JOB_CHANGE_BYTES, "%s", shuffle_name(*(const enum shuffle *)b));
        return *(const enum shuffle *)a == *(const enum shuffle *)b;
    case CHANGE_FILES:
        break;
    }
    show_files(a, old);
    show_files(b, new);
    if (!are_same_files(a, b) && strcmp(old, new) == 0)
        snprintf(new, JOB_CHANGE_BYTES, "the same with other entries");
    return are_same_files(a, b);
}

/* Whether a rate or a momentum of a step to come is another. What moves the rate is in many keys: the rates
 * themselves are compared, at steps that a change of any of them moves. */
static bool are_same_rates(const job *was, const job *is, uint64_t from_step)
{
    uint64_t last = is->run.steps, span = last > from_step ? last - from_step : 1;
    enum { RATES = 1000 };
    for (uint64_t i = 0; i < RATES; i++) {
        uint64_t step = from_step + 1 + (span <= RATES ? i : i * (span / RATES));
        if (job_learning_rate(was, step) != job_learning_rate(is, step) ||
            job_momentum(was, step) != job_momentum(is, step))
            return false;
    }
    return true;
}

/* What has no room, and all after it, is "...". */
static void append(char *text, size_t text_bytes, const char *item)
{
    size_t used = strlen(text), more_bytes = sizeof "; ..." - 1;
    const char *between = used ? "; " : "";
    bool is_cut = used >= 3 && strcmp(text + used - 3, "...") == 0;
    if (is_cut)
        return;
    if (used + strlen(between) + strlen(item) + more_bytes < text_bytes)
        snprintf(text + used, text_bytes - used, "%s%s", between, item);
    else
        snprintf(text + used, text_bytes - used, "%s...", between);
}

uint32_t job_list_changes(const job *was, const job *is, uint64_t from_step, char *text,
                          size_t text_bytes)
{
    char old[JOB_CHANGE_BYTES], new[JOB_CHANGE_BYTES], item[3 * JOB_CHANGE_BYTES];
    uint32_t count = 0;
    text[0] = '\0';
    for (size_t i = 0; i < sizeof change_rows / sizeof change_rows[0]; i++) {
        if (compare(&change_rows[i], was, is, old, new))
            continue;
        snprintf(item, sizeof item, "%s was %s and is %s", change_rows[i].path, old, new);
        append(text, text_bytes, item);
        count++;
    }
    bool is_told = was->scheduler.type != is->scheduler.type;
    if (!is_told && is->scheduler.type != JOB_SCHEDULE_NONE &&
        !are_same_rates(was, is, from_step)) {
        append(text, text_bytes, "scheduler.params give other learning rates");
        count++;
    }
    bool was_late = was->schedule.update == UPDATE_DELAYED_ONE_STEP;
    bool is_late = is->schedule.update == UPDATE_DELAYED_ONE_STEP;
    if (was_late != is_late) {
        snprintf(item, sizeof item, "schedule.update was %s and is %s",
                 was_late ? "delayed_one_step" : "exact", is_late ? "delayed_one_step" : "exact");
        append(text, text_bytes, item);
        count++;
    }
    return count;
}
