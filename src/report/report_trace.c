/* Reads trace.json, which has an event per line as chrome_trace.c writes it. Keeps a step of median
 * length, and sums the stalls of all complete steps. See report_internal.h. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "report/report_internal.h"

enum {
    NAMES_MAX = 1 << 16,
    NAME_SLOTS = 1 << 17,
    NAME_BYTES = 200,
    EVENTS_READ_MAX = 1 << 22,
};

static int find_name(const char *name, const char *(*name_of)(int), int count)
{
    for (int i = 0; i < count; i++)
        if (strcmp(name, name_of(i)) == 0)
            return i;
    return count;
}

static const char *program_of(int i)
{
    return program_kind_name((enum program_kind)i);
}

/* Returns the index of a unit's name, and adds the name if it is new. PROGRAM_NONE if there is no
 * room. */
static uint32_t intern(reporti_trace *self, const char *name)
{
    uint32_t hash = 2166136261u;
    for (const unsigned char *at = (const unsigned char *)name; *at; at++)
        hash = (hash ^ *at) * 16777619u;
    uint32_t slot = hash % NAME_SLOTS;
    for (; self->name_slots[slot] != 0; slot = (slot + 1) % NAME_SLOTS)
        if (strcmp(self->names[self->name_slots[slot] - 1], name) == 0)
            return self->name_slots[slot] - 1;
    if (self->name_count == NAMES_MAX)
        return PROGRAM_NONE;
    char *copy = mem_string(name, "unit name");
    if (!copy)
        return PROGRAM_NONE;
    self->names[self->name_count++] = copy;
    self->name_slots[slot] = self->name_count;
    return self->name_count - 1;
}

/* Reads "forward block.3 mb 1" as kind, unit, index. The unit and the index may be missing. */
static void read_name(reporti_trace *self, const char *name, reporti_event *event)
{
    char text[NAME_BYTES];
    snprintf(text, sizeof text, "%s", name);
    char *rest = text + strcspn(text, " "); /* " block.3 mb 1" */
    bool has_rest = *rest != '\0';
    *rest = '\0';
    event->kind = (uint8_t)find_name(text, reporti_op_name, OP_KIND_COUNT);
    event->unit = event->index = PROGRAM_NONE;
    if (!has_rest)
        return;
    *rest = ' ';
    static const char *const words[] = {" mb ", " tile ", " #"};
    char *number = NULL;
    for (size_t i = 0; !number && i < sizeof words / sizeof words[0]; i++)
        for (char *at = strstr(rest, words[i]); at; at = strstr(at + 1, words[i])) {
            char *digits = at + strlen(words[i]), *end;
            unsigned long value = strtoul(digits, &end, 10);
            if (end == digits || *end)
                continue;
            event->index = (uint32_t)value;
            number = at;
        }
    if (number)
        *number = '\0';
    if (*rest)
        event->unit = intern(self, rest + 1);
}

static double not_negative(double value, double limit)
{
    return isfinite(value) && value > 0 ? fmin(value, limit) : 0;
}

static int keep_event(reporti_trace *self, const reporti_event *event)
{
    if (self->event_count == self->event_capacity) {
        uint64_t more = self->event_capacity ? 2 * self->event_capacity : 4096;
        reporti_event *grown = mem_resize(self->events, more, sizeof *grown, "events of a trace");
        if (!grown)
            return -ENOMEM;
        self->events = grown;
        self->event_capacity = more;
    }
    self->events[self->event_count++] = *event;
    return 0;
}

/* Returns 1 if the event is kept or not needed; 0 with the defect in *wrong; or -ENOMEM. */
static int read_event(reporti_trace *self, const json_t *line, const char **wrong)
{
    if (strcmp(reporti_text(line, "ph"), "X") != 0)
        return 1;
    reporti_event event = {.op_count = 1};
    double start = reporti_number(line, "ts"), length = reporti_number(line, "dur");
    event.lane = (uint8_t)find_name(reporti_text(line, "cat"), reporti_lane_name, LANE_COUNT);
    event.program =
        (uint8_t)find_name(reporti_text(line, "args.program"), program_of, PROGRAM_KIND_COUNT);
    *wrong = "it has no time";
    if (!(start >= 0 && start < 1e15 && length >= 0 && length < 1e15))
        return 0;
    *wrong = "its lane is not known";
    if (event.lane == LANE_COUNT)
        return 0;
    event.start_us = start;
    event.end_us = start + length;
    event.step = (uint64_t)not_negative(reporti_number(line, "args.step"), 1e15);
    event.bytes = (uint64_t)not_negative(reporti_number(line, "args.bytes"), 1e18);
    event.stall_us = not_negative(reporti_number(line, "args.stall_us"), 1e15);
    event.paused_us = not_negative(reporti_number(line, "args.paused_us"), 1e15);
    event.stall_cause = (uint8_t)find_name(reporti_text(line, "args.stall_lane"),
                                           reporti_stall_name, STALL_UNKNOWN);
    read_name(self, reporti_text(line, "name"), &event);
    return keep_event(self, &event) < 0 ? -ENOMEM : 1;
}

static int read_events(reporti_lines *lines, reporti_notes *notes, reporti_trace *self)
{
    enum { SAID_MAX = 3 };
    uint64_t damaged = 0;
    while (self->event_count < EVENTS_READ_MAX && reporti_lines_next(lines)) {
        const char *lost = strstr(lines->text, "\"events_lost\":\"");
        if (lines->number == 1 && strstr(lines->text, "\"traceEvents\":[")) {
            self->events_lost = lost ? strtoull(lost + strlen("\"events_lost\":\""), NULL, 10) : 0;
            continue;
        }
        if (strcmp(lines->text, "]}") == 0) {
            self->is_whole = true;
            break;
        }
        if (!lines->is_whole)
            break;
        size_t length = lines->length;
        if (length > 0 && lines->text[length - 1] == ',')
            length--;
        json_error_t error;
        json_t *line = json_loadb(lines->text, length, 0, &error);
        const char *wrong = error.text;
        int rc = line ? read_event(self, line, &wrong) : 0;
        json_decref(line);
        if (rc < 0)
            return rc;
        if (rc == 0 && damaged++ < SAID_MAX)
            reporti_note(notes, "trace.json, line %llu is left out: %s.",
                         (unsigned long long)lines->number, wrong);
    }
    if (damaged > SAID_MAX)
        reporti_note(notes, "trace.json has %llu more lines that are left out.",
                     (unsigned long long)(damaged - SAID_MAX));
    if (!self->is_whole)
        reporti_note(notes,
                     "trace.json ends in the middle, after line %llu: its last step is not used.",
                     (unsigned long long)lines->number);
    return 0;
}

/* Sorts by step, then by start. */
static int by_step(const void *a, const void *b)
{
    const reporti_event *one = a, *other = b;
    if (one->step != other->step)
        return one->step < other->step ? -1 : 1;
    if (one->start_us != other->start_us)
        return one->start_us < other->start_us ? -1 : 1;
    return (one->end_us > other->end_us) - (one->end_us < other->end_us);
}

/* Keeps only the events of training steps, those of PROGRAM_FIRST and PROGRAM_STEADY. */
static void keep_steps(reporti_trace *self)
{
    uint64_t used = 0;
    for (uint64_t i = 0; i < self->event_count; i++) {
        uint8_t which = self->events[i].program;
        if (which == PROGRAM_STEADY || which == PROGRAM_FIRST)
            self->events[used++] = self->events[i];
    }
    self->event_count = used;
    if (used > 0)
        qsort(self->events, used, sizeof *self->events, by_step);
}

static void add_stall(reporti_trace *self, const reporti_event *event, uint32_t *row_of_unit)
{
    if (event->stall_us <= 0)
        return;
    uint32_t unit = event->unit == PROGRAM_NONE ? self->name_count : event->unit;
    if (row_of_unit[unit] == 0) {
        row_of_unit[unit] = ++self->stall_count;
        self->stalls[self->stall_count - 1].unit = event->unit;
    }
    reporti_stall *row = &self->stalls[row_of_unit[unit] - 1];
    row->us[event->stall_cause] += event->stall_us;
    row->total_us += event->stall_us;
}

static int by_total(const void *a, const void *b)
{
    const reporti_stall *one = a, *other = b;
    return (one->total_us < other->total_us) - (one->total_us > other->total_us);
}

/* Returns the end of the step whose first event is `at`. */
static uint64_t step_end(const reporti_trace *self, uint64_t at)
{
    uint64_t end = at;
    while (end < self->event_count && self->events[end].step == self->events[at].step)
        end++;
    return end;
}

/* Computes which units stalled: the mean over the complete steps in [begin, end). */
static int sum_stalls(reporti_trace *self, uint64_t begin, uint64_t end, uint32_t steps)
{
    uint32_t *row_of_unit = mem_alloc(self->name_count + 1, sizeof *row_of_unit, "stalls");
    self->stalls = mem_alloc(self->name_count + 1, sizeof *self->stalls, "stalls");
    if (!row_of_unit || !self->stalls) {
        mem_free(row_of_unit);
        return -ENOMEM;
    }
    self->stall_steps = steps;
    for (uint64_t i = begin; i < end; i++)
        add_stall(self, &self->events[i], row_of_unit);
    for (uint32_t i = 0; i < self->stall_count; i++) {
        for (int cause = 0; cause < STALL_CAUSES; cause++)
            self->stalls[i].us[cause] /= steps;
        self->stalls[i].total_us /= steps;
    }
    qsort(self->stalls, self->stall_count, sizeof *self->stalls, by_total);
    mem_free(row_of_unit);
    return 0;
}

/* Gives each event the lowest free row of its lane. Events are sorted by start. */
static void give_rows(reporti_trace *self)
{
    double free_us[LANE_COUNT][REPORT_ROWS_MAX] = {{0}};
    for (uint64_t i = 0; i < self->event_count; i++) {
        reporti_event *event = &self->events[i];
        double *rows = free_us[event->lane];
        int row = 0;
        while (row < REPORT_ROWS_MAX && rows[row] > event->start_us)
            row++;
        if (row == REPORT_ROWS_MAX) {
            row--;
            self->rows_shared++;
        }
        rows[row] = fmax(rows[row], event->end_us);
        event->row = (uint8_t)row;
    }
}

/* Computes how long each lane was busy: the union of its events, which are sorted by start, without
 * their pauses. */
static void sum_lanes(reporti_trace *self)
{
    double end_us[LANE_COUNT] = {0};
    self->begin_us = self->events[0].start_us;
    self->end_us = self->begin_us;
    for (uint64_t i = 0; i < self->event_count; i++) {
        const reporti_event *event = &self->events[i];
        int lane = event->lane;
        double begin = fmax(event->start_us, end_us[lane]);
        self->lane_busy_us[lane] += fmax(0, event->end_us - begin - event->paused_us);
        end_us[lane] = fmax(end_us[lane], event->end_us);
        self->lane_ops[lane]++;
        self->lane_bytes[lane] += event->bytes;
        self->end_us = fmax(self->end_us, event->end_us);
    }
}

/* Joins neighbours of a row that lie within `width_us`, gaps included, to one event with the sum of
 * their ops and bytes. */
static void join(reporti_trace *self, double width_us)
{
    uint64_t last[LANE_COUNT][REPORT_ROWS_MAX], used = 0;
    memset(last, 0xff, sizeof last);
    for (uint64_t i = 0; i < self->event_count; i++) {
        reporti_event event = self->events[i];
        uint64_t *at = &last[event.lane][event.row];
        reporti_event *before = *at != UINT64_MAX ? &self->events[*at] : NULL;
        if (before && fmax(before->end_us, event.end_us) - before->start_us < width_us) {
            before->end_us = fmax(before->end_us, event.end_us);
            before->bytes += event.bytes;
            before->stall_us += event.stall_us;
            before->op_count += event.op_count;
            continue;
        }
        *at = used;
        self->events[used++] = event;
    }
    self->event_count = used;
    self->joined_below_us = width_us;
}

/* Returns the time from the first start to the last end of the step that begins at event `at`. */
static double step_length(const reporti_trace *self, uint64_t at)
{
    double end_us = 0;
    uint64_t stop = step_end(self, at);
    for (uint64_t i = at; i < stop; i++)
        end_us = fmax(end_us, self->events[i].end_us);
    return end_us - self->events[at].start_us;
}

/* Finds the last step in [first, end) whose length is the median. */
static int find_typical(const reporti_trace *self, uint64_t first, uint64_t end, uint32_t steps,
                        uint64_t *chosen)
{
    double *lengths = mem_alloc(2 * (size_t)steps, sizeof *lengths, "lengths of steps");
    if (!lengths)
        return -ENOMEM;
    double *sorted = lengths + steps;
    uint32_t count = 0;
    for (uint64_t at = first; at < end; at = step_end(self, at))
        lengths[count++] = step_length(self, at);
    memcpy(sorted, lengths, count * sizeof *sorted);
    double median = reporti_median(sorted, count);
    *chosen = first;
    count = 0;
    for (uint64_t at = first; at < end; at = step_end(self, at))
        if (lengths[count++] == median)
            *chosen = at;
    mem_free(lengths);
    return 0;
}

/* Keeps the events of a step of median length, and sums over all complete steps. */
static int pick_step(reporti_notes *notes, reporti_trace *self)
{
    keep_steps(self);
    if (self->event_count == 0) {
        reporti_note(notes, "trace.json holds no training step.");
        return 0;
    }
    /* If events are lost, the first step is incomplete. If the file is cut, the last one is
     * incomplete. */
    uint64_t first = self->events_lost > 0 ? step_end(self, 0) : 0, end = self->event_count;
    if (!self->is_whole)
        while (end > 0 && self->events[end - 1].step == self->events[self->event_count - 1].step)
            end--;
    if (first >= end) { /* the trace holds only a part of one step */
        first = 0;
        end = self->event_count;
        self->is_cut = true;
        reporti_note(
            notes,
            "trace.json holds a part of step %llu alone: what is missing is not in the timeline, "
            "nor in stalls.",
            (unsigned long long)self->events[0].step);
    }
    uint32_t steps = 0;
    for (uint64_t at = first; at < end; at = step_end(self, at))
        steps++;
    uint64_t chosen;
    TRY(find_typical(self, first, end, steps, &chosen));
    uint64_t stop = step_end(self, chosen);
    TRY(sum_stalls(self, first, end, steps));
    memmove(self->events, self->events + chosen, (stop - chosen) * sizeof *self->events);
    self->event_count = self->step_events = stop - chosen;
    self->has_step = true;
    self->step = self->events[0].step;
    self->program = self->events[0].program;
    sum_lanes(self);
    give_rows(self);
    for (double width = (self->end_us - self->begin_us) / (1 << 17) + 1e-3;
         self->event_count > REPORT_EVENTS_MAX; width *= 2)
        join(self, width);
    return 0;
}

int reporti_read_trace(const char *path, reporti_notes *notes, reporti_trace *out)
{
    reporti_lines lines;
    TRY(reporti_lines_open(&lines, path, &out->is_present));
    if (!out->is_present) {
        reporti_note(notes,
                     "trace.json is not there: a run writes it when it ends, or stops on request.");
        return 0;
    }
    out->names = mem_alloc(NAMES_MAX, sizeof *out->names, "unit names");
    out->name_slots = mem_alloc(NAME_SLOTS, sizeof *out->name_slots, "unit names");
    int rc = out->names && out->name_slots ? 0 : -ENOMEM;
    if (rc == 0)
        rc = read_events(&lines, notes, out);
    reporti_lines_close(&lines);
    if (rc == 0)
        rc = pick_step(notes, out);
    return rc < 0 ? err_set(rc, "no memory to read %s", path) : 0;
}

void reporti_trace_fini(reporti_trace *self)
{
    for (uint32_t i = 0; i < self->name_count; i++)
        mem_free(self->names[i]);
    mem_free(self->names);
    mem_free(self->name_slots);
    mem_free(self->events);
    mem_free(self->stalls);
    memset(self, 0, sizeof *self);
}
