/* metrics.jsonl as bins: whatever the number of steps, at most REPORT_BINS_MAX of each kind of
 * line. Bins are joined two by two when there is no room, so that one pass and fixed memory are
 * enough. See report_internal.h. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "report/report_internal.h"

struct reader {
    reporti_metrics *out;
    reporti_step *ring; /* [REPORT_RECENT_STEPS] the last steps */
    uint64_t seen;
};

static void add_value(reporti_value *self, double value)
{
    if (!isfinite(value))
        return;
    if (self->count == 0 || value < self->min)
        self->min = value;
    if (self->count == 0 || value > self->max)
        self->max = value;
    self->sum += value;
    self->count++;
}

static void join_value(reporti_value *self, const reporti_value *other)
{
    if (other->count == 0)
        return;
    if (self->count == 0) {
        *self = *other;
        return;
    }
    self->min = fmin(self->min, other->min);
    self->max = fmax(self->max, other->max);
    self->sum += other->sum;
    self->count += other->count;
}

static void halve(reporti_series *self)
{
    for (uint32_t i = 0; i < self->count / 2; i++) {
        reporti_bin joined = self->bins[2 * i];
        const reporti_bin *next = &self->bins[2 * i + 1];
        joined.step_last = next->step_last;
        joined.line_count += next->line_count;
        for (int m = 0; m < MEASURE_COUNT; m++)
            join_value(&joined.values[m], &next->values[m]);
        self->bins[i] = joined;
    }
    self->count /= 2;
    self->lines_per_bin *= 2;
}

static void add_line(reporti_series *self, uint64_t step, const double values[MEASURE_COUNT])
{
    if (self->lines_per_bin == 0)
        self->lines_per_bin = 1;
    if (self->count == 0 || self->bins[self->count - 1].line_count == self->lines_per_bin) {
        if (self->count == REPORT_BINS_MAX) /* an even number */
            halve(self);
        memset(&self->bins[self->count], 0, sizeof self->bins[0]);
        self->bins[self->count++].step_first = step;
    }
    reporti_bin *bin = &self->bins[self->count - 1];
    bin->step_last = step;
    bin->line_count++;
    for (int m = 0; m < MEASURE_COUNT; m++)
        add_value(&bin->values[m], values[m]);
}

/* The figures of the file are not trusted: no figure of a run is above 10^18, in bytes, seconds or
 * flops. */
static double at_least_0(double value)
{
    return isfinite(value) && value > 0 ? fmin(value, 1e18) : 0;
}

static void read_lanes(const json_t *line, reporti_step *step)
{
    const json_t *lanes = json_object_get(line, "lanes");
    for (int i = 0; i < LANE_COUNT; i++) {
        const json_t *one = json_object_get(lanes, lane_kind_name((enum lane_kind)i));
        step->lanes[i].bytes = at_least_0(reporti_number(one, "bytes"));
        step->lanes[i].spared_bytes = at_least_0(reporti_number(one, "spared_bytes"));
        step->lanes[i].busy_seconds = at_least_0(reporti_number(one, "busy_seconds"));
        step->lanes[i].stall_seconds = at_least_0(reporti_number(one, "stall_seconds"));
    }
}

static void read_step(struct reader *self, const json_t *line, uint64_t step)
{
    reporti_metrics *out = self->out;
    double values[MEASURE_COUNT] = {
        [MEASURE_LOSS] = reporti_number(line, "loss"),
        [MEASURE_LR] = reporti_number(line, "lr"),
        [MEASURE_SPEED] = reporti_number(line, "tokens_per_second"),
        [MEASURE_SECONDS] = reporti_number(line, "seconds"),
        [MEASURE_NORM] = reporti_number(line, "grad_norm"),
    };
    add_line(&out->steps, step, values);
    out->step_lines++;
    out->skipped_steps += json_is_true(json_object_get(line, "skipped"));
    out->nonfinite_losses += !isfinite(values[MEASURE_LOSS]);
    out->step_last = step;
    out->loss_last = values[MEASURE_LOSS];
    for (int a = 0; a < TIER_COUNT; a++) {
        const json_t *peaks = json_object_get(line, "peak_bytes");
        double bytes = at_least_0(reporti_number(peaks, tier_name((enum tier)a)));
        if (bytes < 1e18 && (uint64_t)bytes > out->peak_bytes[a])
            out->peak_bytes[a] = (uint64_t)bytes;
    }
    reporti_step *recent = &self->ring[self->seen++ % REPORT_RECENT_STEPS];
    recent->seconds = at_least_0(values[MEASURE_SECONDS]);
    recent->tokens_per_second = at_least_0(values[MEASURE_SPEED]);
    recent->tflops = at_least_0(reporti_number(line, "model_tflops"));
    recent->expert_passes = at_least_0(reporti_number(line, "experts.passes"));
    recent->expert_passes_hit = at_least_0(reporti_number(line, "experts.passes_hit"));
    read_lanes(line, recent);
}

static void read_eval(struct reader *self, const json_t *line, uint64_t step)
{
    double values[MEASURE_COUNT] = {reporti_number(line, "valid_loss"), NAN, NAN,
                                    reporti_number(line, "seconds"), NAN};
    add_line(&self->out->evals, step, values);
    self->out->valid_last = values[MEASURE_LOSS];
    self->out->valid_step = step;
}

/* NULL, or what is wrong with the line. */
static const char *read_line(struct reader *self, const reporti_lines *lines, json_error_t *error)
{
    if (lines->is_long)
        return "it is longer than a line of metrics can be";
    json_t *line = json_loadb(lines->text, lines->length, 0, error);
    if (!line)
        return error->text;
    const char *wrong = NULL;
    double step = reporti_number(line, "step");
    if (!json_is_object(line))
        wrong = "it is not an object";
    else if (!(step >= 0 && step < 1e15))
        wrong = "it names no step";
    else if (strcmp(reporti_text(line, "event"), "eval") == 0)
        read_eval(self, line, (uint64_t)step);
    else if (reporti_text(line, "event")[0])
        wrong = "its event is not known";
    else
        read_step(self, line, (uint64_t)step);
    json_decref(line);
    return wrong;
}

static void sum_recent(struct reader *self)
{
    reporti_recent *out = &self->out->recent;
    double seconds[REPORT_RECENT_STEPS];
    out->count = (uint32_t)(self->seen < REPORT_RECENT_STEPS ? self->seen : REPORT_RECENT_STEPS);
    /* A run's first step begins with cold caches and no pending update. */
    if (self->seen > 1 && self->seen <= REPORT_RECENT_STEPS) {
        self->ring++;
        out->count--;
    }
    for (uint32_t i = 0; i < out->count; i++) {
        const reporti_step *step = &self->ring[i];
        seconds[i] = step->seconds;
        double share = 1 / (double)out->count;
        out->mean.seconds += share * step->seconds;
        out->mean.tokens_per_second += share * step->tokens_per_second;
        out->mean.tflops += share * step->tflops;
        out->mean.expert_passes += share * step->expert_passes;
        out->mean.expert_passes_hit += share * step->expert_passes_hit;
        for (int k = 0; k < LANE_COUNT; k++) {
            out->mean.lanes[k].bytes += share * step->lanes[k].bytes;
            out->mean.lanes[k].spared_bytes += share * step->lanes[k].spared_bytes;
            out->mean.lanes[k].busy_seconds += share * step->lanes[k].busy_seconds;
            out->mean.lanes[k].stall_seconds += share * step->lanes[k].stall_seconds;
        }
    }
    out->seconds_median = reporti_median(seconds, out->count);
}

int reporti_read_metrics(const char *path, reporti_notes *notes, reporti_metrics *out)
{
    enum { SAID_MAX = 3 };
    out->loss_last = out->valid_last = NAN;
    out->recent.seconds_median = NAN;
    reporti_lines lines;
    TRY(reporti_lines_open(&lines, path, &out->is_present));
    if (!out->is_present) {
        reporti_note(notes, "metrics.jsonl is not there: no step was done yet, or it was removed.");
        return 0;
    }
    reporti_step *ring = mem_alloc(REPORT_RECENT_STEPS, sizeof *ring, "last steps");
    if (!ring) {
        reporti_lines_close(&lines);
        return err_set(-ENOMEM, "no memory to read %s", path);
    }
    struct reader self = {.out = out, .ring = ring};
    while (reporti_lines_next(&lines)) {
        json_error_t error;
        if (!lines.is_whole)
            break; /* still being written, or cut by a crash */
        const char *wrong = read_line(&self, &lines, &error);
        if (wrong && out->damaged_lines++ < SAID_MAX)
            reporti_note(notes, "metrics.jsonl, line %llu is left out: %s.",
                         (unsigned long long)lines.number, wrong);
    }
    if (out->damaged_lines > SAID_MAX)
        reporti_note(notes, "metrics.jsonl has %llu more lines that are left out.",
                     (unsigned long long)(out->damaged_lines - SAID_MAX));
    if (out->step_lines == 0)
        reporti_note(notes, "metrics.jsonl holds no step yet.");
    sum_recent(&self);
    reporti_lines_close(&lines);
    mem_free(ring);
    return 0;
}
