/* Shared by the files of the report: what each file of a run becomes in memory, and the functions
 * that write the parts of the page. Only these files use names that begin with reporti_. The
 * template reporti_page is made by embed.cmake. */
#ifndef SLUICE_REPORT_INTERNAL_H
#define SLUICE_REPORT_INTERNAL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"
#include "swap/program.h"

enum {
    REPORT_NOTES_MAX = 16,
    REPORT_NOTE_BYTES = 512,
    REPORT_BINS_MAX = 1200, /* bins of a picture */
    /* the last steps; their median and means stand for a step of the run */
    REPORT_RECENT_STEPS = 512,
    /* events of the timeline; if there are more, neighbours are joined */
    REPORT_EVENTS_MAX = 12000,
    REPORT_ROWS_MAX = 6, /* rows of a lane; further requests at the same time share the last row */
    REPORT_TEXT_BYTES = 64
};

/* Sentences about what is missing or damaged. */
struct reporti_notes {
    char text[REPORT_NOTES_MAX][REPORT_NOTE_BYTES];
    uint32_t count;
    uint64_t unsaid; /* how many more there were, without room */
};
typedef struct reporti_notes reporti_notes;
__attribute__((format(printf, 2, 3))) void reporti_note(reporti_notes *self, const char *format,
                                                        ...);

/* The lines of a file, one at a time, in memory of a fixed size. */
struct reporti_lines {
    FILE *file;
    char *text; /* without the newline, ended by NUL */
    size_t length;
    uint64_t number; /* from 1 */
    bool is_whole;   /* it ended with a newline */
    bool is_long;    /* it was too long and was cut */
};
typedef struct reporti_lines reporti_lines;
/* Sets *found to false if there is no such file. Returns -errno, or ERR_INPUT if it is not a
 * regular file. */
int reporti_lines_open(reporti_lines *self, const char *path, bool *found) MUST_CHECK;
bool reporti_lines_next(reporti_lines *self);
void reporti_lines_close(reporti_lines *self);

/* Summary of the finite values of a measure. */
struct reporti_value {
    double min, max, sum;
    uint64_t count;
};
typedef struct reporti_value reporti_value;
double reporti_mean(const reporti_value *value); /* NAN if there is no value */

enum reporti_measure {
    MEASURE_LOSS,
    MEASURE_LR,
    MEASURE_SPEED,
    MEASURE_SECONDS,
    MEASURE_NORM,
    MEASURE_COUNT
};

/* A bin summarizes consecutive lines. */
struct reporti_bin {
    uint64_t step_first, step_last, line_count;
    reporti_value values[MEASURE_COUNT];
};
typedef struct reporti_bin reporti_bin;

struct reporti_series {
    reporti_bin bins[REPORT_BINS_MAX];
    uint32_t count;
    uint64_t lines_per_bin; /* of all bins but the last */
};
typedef struct reporti_series reporti_series;

/* The figures of one step, or their means. */
struct reporti_step {
    double seconds, tokens_per_second, tflops;
    double expert_passes, expert_passes_hit; /* as in metrics.h */
    struct {
        double bytes, spared_bytes, busy_seconds, stall_seconds;
    } lanes[LANE_COUNT];
};
typedef struct reporti_step reporti_step;

/* The last steps. */
struct reporti_recent {
    uint32_t count;
    double seconds_median;
    reporti_step mean;
};
typedef struct reporti_recent reporti_recent;

struct reporti_metrics {
    bool is_present;
    reporti_series steps, evals; /* evals: MEASURE_LOSS is the held-out loss */
    uint64_t step_lines, damaged_lines, skipped_steps, nonfinite_losses;
    uint64_t step_last;
    double loss_last, valid_last; /* NAN: none */
    uint64_t valid_step;
    uint64_t peak_bytes[TIER_COUNT];
    reporti_recent recent;
};
typedef struct reporti_metrics reporti_metrics;
int reporti_read_metrics(const char *path, reporti_notes *notes, reporti_metrics *out) MUST_CHECK;

/* Causes of a stall: the lane that the op waited for, or one of these. */
enum {
    STALL_HAND_OVER = LANE_COUNT, /* nothing: trace_event.stall_is_hand_over */
    STALL_UNKNOWN,                /* the trace does not say */
    STALL_CAUSES
};

struct reporti_event {
    double start_us, end_us, stall_us;
    double paused_us; /* between start and end, while other ops ran on its lane's threads */
    uint64_t bytes, step;
    uint32_t unit;     /* index of a name, or PROGRAM_NONE */
    uint32_t index;    /* micro-batch, tile or number; PROGRAM_NONE: none */
    uint32_t op_count; /* 1, or how many were joined to this one */
    uint8_t lane, kind, program;
    uint8_t stall_cause; /* what the op waited for: a lane, or STALL_* */
    uint8_t row;         /* the row in its lane, among requests at the same time */
};
typedef struct reporti_event reporti_event;

struct reporti_stall {
    uint32_t unit;
    double us[STALL_CAUSES]; /* per step, by what the unit waited for */
    double total_us;
};
typedef struct reporti_stall reporti_stall;

struct reporti_trace {
    bool is_present;
    /* all events while the file is read; then only those of the step that is shown */
    reporti_event *events;
    uint64_t event_count, event_capacity;
    char **names; /* [name_count] names of units */
    uint32_t name_count;
    uint32_t *name_slots; /* hash table */
    uint64_t events_lost;
    bool is_whole; /* the file has its end */
    /* The step that the page shows. */
    bool has_step, is_cut; /* is_cut: its first events are lost */
    uint64_t step;
    uint8_t program;
    uint64_t step_events; /* before any events were joined */
    double begin_us, end_us;
    double joined_below_us; /* events were joined within this width; 0: none were joined */
    uint64_t rows_shared;   /* events that did not get a row of their own */
    double lane_busy_us[LANE_COUNT];
    uint64_t lane_ops[LANE_COUNT], lane_bytes[LANE_COUNT];
    /* Means over the complete steps of the trace. */
    uint32_t stall_steps;
    reporti_stall *stalls; /* [stall_count] sorted by total */
    uint32_t stall_count;
};
typedef struct reporti_trace reporti_trace;
int reporti_read_trace(const char *path, reporti_notes *notes, reporti_trace *out) MUST_CHECK;
void reporti_trace_fini(reporti_trace *self);

/* Everything that the page shows. */
struct reporti_run {
    const char *dir;
    char name[256];            /* the last part of the directory's path */
    char began[32], ended[32]; /* dates of plan.json and of the newest file, UTC; "": not known */
    bool has_job;
    json_t *plan; /* an object; empty if there is no plan.json */
    bool has_plan;
    reporti_notes notes;
    reporti_metrics metrics;
    reporti_trace trace;
};
typedef struct reporti_run reporti_run;

/* These read a value of plan.json by a path such as "tiers.host". They return NULL, NAN or "" if it
 * is not there or has another type. */
const json_t *reporti_at(const json_t *root, const char *path);
double reporti_number(const json_t *root, const char *path);
const char *reporti_text(const json_t *root, const char *path);

/* True if the plan's machine was measured beside other work. */
bool reporti_is_disturbed(const reporti_run *run);

/* The names of a lane, of what an op waited for, and of a kind of op; "unknown" and "other" for a
 * number beyond the last. */
const char *reporti_lane_name(int lane);
const char *reporti_stall_name(int cause);
const char *reporti_op_name(int kind);

/* Writes text into the page: escapes & < > " and replaces bytes that are not UTF-8. */
void reporti_html(FILE *out, const char *text);
/* These write a number with its unit into text[REPORT_TEXT_BYTES] and return `text`. They write "-"
 * if the number is not finite. */
char *reporti_bytes(double bytes, char *text);
char *reporti_rate(double bytes_per_second, char *text);
char *reporti_seconds(double seconds, char *text);
char *reporti_count(double count, char *text); /* such as 7.52 M */
char *reporti_plain(double value, char *text); /* as %.4g */

/* Begins a table, whose rows follow; reporti_end_table ends it. `label` names it for screen
 * readers, and is its caption unless it has a CSS class. `columns` are titles with | between them;
 * a title "class:title" gives its cell a class. */
void reporti_begin_table(FILE *out, const char *label, const char *css_class, const char *columns);
void reporti_end_table(FILE *out);
void reporti_put_cell(FILE *out, const char *text); /* one cell with a text */
/* Sorts the values and returns the median; NAN if there are none. */
double reporti_median(double *values, uint32_t count);

/* These write the parts of the page to `out`. */
void reporti_put_summary(FILE *out, const reporti_run *run);
void reporti_put_notes(FILE *out, const reporti_run *run);
void reporti_put_steps(FILE *out, const reporti_run *run);
void reporti_put_timeline(FILE *out, const reporti_run *run);
void reporti_put_stalls(FILE *out, const reporti_run *run);
void reporti_put_lanes(FILE *out, const reporti_run *run);
/* Writes a section of its own, or nothing if no expert may be left where it rests. */
void reporti_put_experts(FILE *out, const reporti_run *run);
void reporti_put_memory(FILE *out, const reporti_run *run);
void reporti_put_placement(FILE *out, const reporti_run *run);
void reporti_put_reasons(FILE *out, const reporti_run *run);
/* Writes the JSON block. It is ASCII, without '<', '>' or '&'. Returns -ENOMEM. */
int reporti_put_data(FILE *out, const reporti_run *run) MUST_CHECK;

/* The template of the page. @NAME@ marks the place of each part. */
extern const char reporti_page[];
extern const uint64_t reporti_page_bytes;

#endif
