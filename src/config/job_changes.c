/* Lists what a job changes in a run that another job began. It compares the rows of the table of
 * keys that say LATER. Rows that say FIXED are compared elsewhere: the run's manifest holds their
 * values, and a run with other values is not resumed. See config.h. Pure. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "config/config_internal.h"

/* Shows the first file, and the number of further files. */
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

/* Shows the choice that a member holds, or "none" if it holds no choice. */
static void show_choice(const configi_key *row, int value, char text[JOB_CHANGE_BYTES])
{
    for (int idx = 0; configi_list_entry(row->allowed, idx, text, JOB_CHANGE_BYTES); idx++)
        if ((row->values ? row->values[idx] : idx) == value)
            return;
    snprintf(text, JOB_CHANGE_BYTES, "none");
}

void configi_show_member(const configi_key *row, const job *self, size_t idx,
                         char text[JOB_CHANGE_BYTES])
{
    const char *member = (const char *)self + row->offset;
    if (row->type == CONFIGI_BOOL)
        snprintf(text, JOB_CHANGE_BYTES, "%s", *(const bool *)member ? "true" : "false");
    else if (row->type == CONFIGI_SOURCES)
        show_files((const struct job_files *)member, text);
    else if (row->type == CONFIGI_STRING || row->member_bytes == JOB_NAME_BYTES)
        snprintf(text, JOB_CHANGE_BYTES, "%.80s", member[0] != '\0' ? member : "not set");
    else if (row->type == CONFIGI_ENUM)
        show_choice(row, *(const int *)member, text);
    else if (row->type == CONFIGI_INT && !row->is_real)
        snprintf(text, JOB_CHANGE_BYTES, "%" PRIu64, *(const uint64_t *)member);
    else
        snprintf(text, JOB_CHANGE_BYTES, "%.9g", ((const double *)member)[idx]);
}

static bool is_same_member(const configi_key *row, const job *was, const job *is, size_t idx)
{
    const char *a = (const char *)was + row->offset, *b = (const char *)is + row->offset;
    if (row->type == CONFIGI_SOURCES)
        return are_same_files((const struct job_files *)a, (const struct job_files *)b);
    if (row->type == CONFIGI_STRING || row->member_bytes == JOB_NAME_BYTES)
        return strcmp(a, b) == 0;
    if (row->type == CONFIGI_FLOAT || row->type == CONFIGI_FLOATS || row->is_real)
        return ((const double *)a)[idx] == ((const double *)b)[idx];
    return memcmp(a, b, row->member_bytes) == 0;
}

static bool is_delayed(const job *self)
{
    return self->schedule.update == UPDATE_DELAYED_ONE_STEP;
}

/* True if a changed row is not listed on its own:
 *
 *   train_batch_size              on the same number of ranks; the next key is listed
 *   gradient_accumulation_steps   on another number of ranks; the key above is listed
 *   communication_data_type       on one rank, because it sends nothing
 *   schedule.update               always; all but delayed_one_step give the same bits
 *   schedule.delayed_from_step    unless both jobs have delayed_one_step
 *   scheduler.params              always; the learning rates that they give are compared */
static bool is_left_out(const configi_key *row, const job *was, const job *is)
{
    static const char params[] = "scheduler.params.";
    bool is_other_world = was->world != is->world;
    if (row->offset == offsetof(job, train_batch_size))
        return !is_other_world;
    if (row->offset == offsetof(job, accumulation))
        return is_other_world;
    if (row->offset == offsetof(job, comm.wire))
        return is->world <= 1;
    if (row->offset == offsetof(job, schedule.delayed_from_step))
        return !is_delayed(was) || !is_delayed(is);
    return row->offset == offsetof(job, schedule.update) ||
           strncmp(row->path, params, sizeof params - 1) == 0;
}

/* True if both jobs have the same learning rates and momentums after `from_step`. Many keys change
 * the rate, so the rates themselves are compared, at up to 1000 steps. */
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

/* The list while it is built. */
struct changes {
    char *text; /* "; " stands between items; "..." replaces those without room */
    size_t text_bytes;
    uint32_t count;
};

static void add_text(struct changes *self, const char *item)
{
    size_t used = strlen(self->text), more_bytes = sizeof "; ..." - 1;
    const char *between = used ? "; " : "";
    bool is_cut = used >= 3 && strcmp(self->text + used - 3, "...") == 0;
    self->count++;
    if (is_cut)
        return;
    bool fits = used + strlen(between) + strlen(item) + more_bytes < self->text_bytes;
    snprintf(self->text + used, self->text_bytes - used, "%s%s", between, fits ? item : "...");
}

static void add(struct changes *self, const char *name, const char *was, const char *is)
{
    char item[4 * JOB_CHANGE_BYTES];
    snprintf(item, sizeof item, "%s was %s and is %s", name, was, is);
    add_text(self, item);
}

static void add_row(struct changes *self, const configi_key *row, const job *was, const job *is)
{
    bool is_list = row->type == CONFIGI_FLOATS;
    for (size_t i = 0; i < (is_list ? row->member_bytes / sizeof(double) : 1); i++) {
        char name[JOB_CHANGE_BYTES], old[JOB_CHANGE_BYTES], new[JOB_CHANGE_BYTES];
        if (is_same_member(row, was, is, i))
            continue;
        snprintf(name, sizeof name, is_list ? "%s[%zu]" : "%s", row->path, i);
        configi_show_member(row, was, i, old);
        configi_show_member(row, is, i, new);
        if (row->type == CONFIGI_SOURCES && strcmp(old, new) == 0)
            snprintf(new, sizeof new, "the same with other entries");
        add(self, name, old, new);
    }
}

uint32_t job_list_changes(const job *was, const job *is, uint64_t from_step, char *text,
                          size_t text_bytes)
{
    struct changes self = {.text = text, .text_bytes = text_bytes};
    char old[JOB_CHANGE_BYTES], new[JOB_CHANGE_BYTES];
    const configi_key *row;
    text[0] = '\0';
    if (was->world != is->world) {
        snprintf(old, sizeof old, "%" PRIu32, was->world);
        snprintf(new, sizeof new, "%" PRIu32, is->world);
        add(&self, "the number of ranks", old, new);
    }
    for (uint32_t idx = 0; (row = configi_key_at(idx)); idx++)
        if (row->change == CONFIGI_LATER && row->member_bytes > 0 && !is_left_out(row, was, is))
            add_row(&self, row, was, is);
    if (was->scheduler.type == is->scheduler.type && is->scheduler.type != JOB_SCHEDULE_NONE &&
        !are_same_rates(was, is, from_step))
        add_text(&self, "scheduler.params give other learning rates");
    if (is_delayed(was) != is_delayed(is))
        add(&self, "schedule.update", is_delayed(was) ? "delayed_one_step" : "exact",
            is_delayed(is) ? "delayed_one_step" : "exact");
    return self.count;
}

uint32_t job_list_late_keys(const job *was, const job *is, char *text, size_t text_bytes)
{
    struct changes self = {.text = text, .text_bytes = text_bytes};
    const configi_key *row;
    text[0] = '\0';
    for (uint32_t idx = 0; (row = configi_key_at(idx)); idx++)
        if (row->change == CONFIGI_START && row->offset != offsetof(job, run.seed))
            add_row(&self, row, was, is);
    return self.count;
}
