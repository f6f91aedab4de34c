/* What the files of the report share. Names that begin with reporti_ are theirs alone.
 *
 *   report.c          reads all, fills the template        report_text.c     lines, notes, text for people
 *   report_metrics.c  metrics.jsonl -> bins                report_tables.c   the page's tables
 *   report_trace.c    trace.json -> a step, stalls       report_bars.c     its tables that are pictures
 *   report_data.c     the JSON block of the pictures       report_page.c     the template, made by embed.cmake */
#ifndef SLUICE_PROF_REPORT_INTERNAL_H
#define SLUICE_PROF_REPORT_INTERNAL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"
#include "swap/program.h"

enum {
    REPORT_NOTES_MAX = 16,
    REPORT_NOTE_BYTES = 512,
    REPORT_BINS_MAX = 1200,    /* of a picture */
    REPORT_RECENT_STEPS = 512, /* whose median and means stand for a step of the run */
    REPORT_EVENTS_MAX = 12000, /* of the timeline; more are joined */
    REPORT_ROWS_MAX = 6,       /* of a lane: requests at once beyond them share the last */
    REPORT_TEXT_BYTES = 64
};

/* Sentences about what is missing or damaged. */
struct reporti_notes {
    char text[REPORT_NOTES_MAX][REPORT_NOTE_BYTES];
    uint32_t count;
    uint64_t unsaid; /* that found no place */
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
    bool is_whole;   /* it had its newline */
    bool is_long;    /* and was cut */
};
typedef struct reporti_lines reporti_lines;
/* *found false where there is no such file; -errno, ERR_INPUT where it is no regular one. */
int reporti_lines_open(reporti_lines *self, const char *path, bool *found) MUST_CHECK;
bool reporti_lines_next(reporti_lines *self);
void reporti_lines_close(reporti_lines *self);

/* Of finite values alone. */
struct reporti_value {
    double min, max, sum;
    uint64_t count;
};
typedef struct reporti_value reporti_value;
double reporti_mean(const reporti_value *value); /* NAN where there is none */

enum reporti_measure {
    MEASURE_LOSS,
    MEASURE_LR,
    MEASURE_SPEED,
    MEASURE_SECONDS,
    MEASURE_NORM,
    MEASURE_COUNT
};

/* Consecutive lines. */
struct reporti_bin {
    uint64_t step_first, step_last, line_count, skipped_count;
    reporti_value values[MEASURE_COUNT];
};
typedef struct reporti_bin reporti_bin;

struct reporti_series {
    reporti_bin bins[REPORT_BINS_MAX];
    uint32_t count;
    uint64_t lines_per_bin; /* of all but the last */
};
typedef struct reporti_series reporti_series;

/* Means over the last steps. */
struct reporti_recent {
    uint32_t count;
    double seconds_median, seconds_mean;
    double tokens_per_second, tflops;
    struct {
        double bytes, busy_seconds, stall_seconds; /* of a step */
    } lanes[LANE_COUNT];
};
typedef struct reporti_recent reporti_recent;

struct reporti_metrics {
    bool is_present;
    reporti_series steps, evals; /* evals: MEASURE_LOSS is the held-out loss */
    uint64_t step_lines, eval_lines, damaged_lines, skipped_steps, nonfinite_losses;
    uint64_t step_last;
    double loss_last, valid_last; /* NAN: none */
    uint64_t valid_step;
    uint64_t tokens;
    double seconds;
    uint64_t peak_bytes[TIER_COUNT];
    reporti_recent recent;
};
typedef struct reporti_metrics reporti_metrics;
int reporti_read_metrics(const char *path, reporti_notes *notes, reporti_metrics *out) MUST_CHECK;

struct reporti_event {
    double start_us, end_us, stall_us;
    uint64_t bytes, step;
    uint32_t unit;     /* index of a name, or PROGRAM_NONE */
    uint32_t index;    /* micro-batch, tile or number; PROGRAM_NONE: none */
    uint32_t op_count; /* 1, or how many were joined to this one */
    uint8_t lane, kind, program;
    uint8_t stall_lane; /* LANE_COUNT: none */
    uint8_t row;        /* among requests of the lane at once */
};
typedef struct reporti_event reporti_event;

struct reporti_stall {
    uint32_t unit;
    double us[LANE_COUNT + 1]; /* of a step, by the lane waited for; the last: not known */
    double total_us;
};
typedef struct reporti_stall reporti_stall;

struct reporti_trace {
    bool is_present;
    reporti_event *events; /* all, and after reporti_pick_step those of the step alone */
    uint64_t event_count, event_capacity;
    char **names; /* [name_count] units */
    uint32_t name_count;
    uint32_t *name_slots; /* hash table */
    uint64_t events_lost;
    bool is_whole; /* the file had its end */
    /* The step that is shown. */
    bool has_step, is_cut; /* is_cut: its beginning is lost */
    uint64_t step;
    uint8_t program;
    uint64_t step_events; /* before any were joined */
    double begin_us, end_us;
    double joined_below_us; /* 0: none were joined */
    uint64_t rows_shared;   /* events that found no row of their own */
    double lane_busy_us[LANE_COUNT];
    uint64_t lane_ops[LANE_COUNT], lane_bytes[LANE_COUNT];
    /* Means over the complete steps of the trace. */
    uint32_t stall_steps;
    reporti_stall *stalls; /* [stall_count] by total */
    uint32_t stall_count;
};
typedef struct reporti_trace reporti_trace;
int reporti_read_trace(const char *path, reporti_notes *notes, reporti_trace *out) MUST_CHECK;
void reporti_trace_fini(reporti_trace *self);

/* All that the page is made of. */
struct reporti_run {
    const char *dir;
    char name[256];            /* last part of the directory */
    char began[32], ended[32]; /* dates of plan.json and of the newest file, UTC; "" */
    bool has_job;
    json_t *plan; /* an object; empty where there is none */
    bool has_plan;
    reporti_notes notes;
    reporti_metrics metrics;
    reporti_trace trace;
};
typedef struct reporti_run reporti_run;

/* plan.json's values, with 0, NAN or "" where they are not there or of another type. Path:
 * "tiers.host". */
const json_t *reporti_at(const json_t *root, const char *path);
double reporti_number(const json_t *root, const char *path);
const char *reporti_text(const json_t *root, const char *path);

/* Text of the page: & < > " escaped, and what is not UTF-8 replaced. */
void reporti_html(FILE *out, const char *text);
/* Numbers with units, into text[REPORT_TEXT_BYTES], which is returned; "-" for what is not
 * finite. */
char *reporti_bytes(double bytes, char *text);
char *reporti_rate(double bytes_per_second, char *text);
char *reporti_seconds(double seconds, char *text);
char *reporti_count(double count, char *text); /* 7.52 M */
char *reporti_plain(double value, char *text); /* %.4g */

/* The parts of the page; each writes to `out`. */
void reporti_put_summary(FILE *out, const reporti_run *run);
void reporti_put_notes(FILE *out, const reporti_run *run);
void reporti_put_steps(FILE *out, const reporti_run *run);
void reporti_put_timeline(FILE *out, const reporti_run *run);
void reporti_put_stalls(FILE *out, const reporti_run *run);
void reporti_put_lanes(FILE *out, const reporti_run *run);
void reporti_put_memory(FILE *out, const reporti_run *run);
void reporti_put_placement(FILE *out, const reporti_run *run);
void reporti_put_reasons(FILE *out, const reporti_run *run);
/* The JSON block: no '<', '>' or '&' in it, ASCII alone. -ENOMEM. */
int reporti_put_data(FILE *out, const reporti_run *run) MUST_CHECK;

/* The page with @NAME@ where its parts go. */
extern const char reporti_page[];
extern const uint64_t reporti_page_bytes;

#endif
