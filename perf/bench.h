/* What the benchmarks of this folder share: their common options, medians with their spread, and
 * the lines that perf/run.sh makes its table of.
 *
 * Every benchmark takes two options beside its own arguments:
 *
 *   --csv FILE   appends a line for each figure to FILE: name,value,unit,limit,ratio,spread
 *   --quick      small sizes and few runs: for a first look, or to try the program
 *
 *   name     what was measured, with its type and shape (commas become semicolons): "adam fp32 2 threads"
 *   value    median of the runs, in `unit`; rates, so that more is better
 *   limit    in the same unit, measured by turns with it in the same run; empty: it has none
 *   ratio    value / limit; empty likewise
 *   spread   half of the distance between the quartiles as a share of the median: 0.02 is +-2%
 *
 * One thread. A benchmark has no caller, so that what fails ends it with the error's text and a
 * status of sluice's, Ctrl-C with 130 after the run that is under way, so that files are
 * removed. */
#ifndef SLUICE_PERF_BENCH_H
#define SLUICE_PERF_BENCH_H

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"

enum { BENCH_RUNS_MAX = 101, BENCH_THREADS_MAX = 1024 };

/* "perf/bench_adam" is bench_adam. */
static inline const char *bench_program(void)
{
    return program_invocation_short_name;
}

/* sluice's exit statuses, but for what was stopped: a benchmark does not go on. */
static inline int bench_exit_of(int rc)
{
    switch (rc) {
    case ERR_USAGE:
    case ERR_INPUT:
    case ERR_CONFIG:
    case -ENOENT:
    case -ENOTDIR:
    case -EACCES:
    case -EROFS:
        return 2;
    case ERR_NO_FIT:
        return 3;
    case ERR_STOPPED:
        return 130;
    default:
        return rc < 0;
    }
}

/* Ends the benchmark with the error's text. */
static inline void bench_require(int rc)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "%s: %s: %s\n", bench_program(), err_name(rc), err_text());
    exit(bench_exit_of(rc));
}

/* Ends the benchmark for its arguments. */
static inline void bench_usage(const char *text)
{
    fprintf(stderr, "%s: %s\n", bench_program(), text);
    exit(2);
}

/* argv[at] as a whole number of lowest..highest, or `fallback` where there is none; else exit 2. */
static inline long bench_number(int argc, char **argv, int at, const char *name, long fallback,
                                long lowest, long highest)
{
    if (at >= argc)
        return fallback;
    char *end, text[160];
    long value = strtol(argv[at], &end, 10);
    if (end != argv[at] && *end == 0 && value >= lowest && value <= highest)
        return value;
    snprintf(text, sizeof text, "%s is %ld to %ld, not \"%.60s\"", name, lowest, highest, argv[at]);
    bench_usage(text);
    return fallback;
}

static inline int bench_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- the common options ---- */

struct bench_settings {
    FILE *csv; /* NULL: figures are printed alone */
    bool is_quick;
};

static inline struct bench_settings *bench_settings(void)
{
    static struct bench_settings settings;
    return &settings;
}

static inline bool bench_is_quick(void)
{
    return bench_settings()->is_quick;
}

static inline volatile sig_atomic_t *bench_stop_flag(void)
{
    static volatile sig_atomic_t is_stopped;
    return &is_stopped;
}

static inline void bench_on_signal(int signal)
{
    *bench_stop_flag() = signal;
}

/* 0, or ERR_STOPPED after Ctrl-C or SIGTERM. */
static inline int bench_stopped(void)
{
    return *bench_stop_flag() ? err_set(ERR_STOPPED, "stopped") : 0;
}

/* Ends the benchmark for a file that cannot be written. */
static inline void bench_fail_file(const char *option, const char *path)
{
    fprintf(stderr, "%s: %s %s: %s\n", bench_program(), option, path,
            *path ? strerror(errno) : "needs a file to write");
    exit(2);
}

/* Takes --csv FILE and --quick out of the arguments, wherever they stand; exit 2 where FILE is missing
 * or cannot be written. From here on Ctrl-C is looked at between runs. */
static inline void bench_begin(int *argc, char **argv)
{
    int kept = 1;
    struct sigaction action = {.sa_handler = bench_on_signal, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    for (int i = 1; i < *argc; i++) {
        if (strcmp(argv[i], "--quick") == 0) {
            bench_settings()->is_quick = true;
        } else if (strcmp(argv[i], "--csv") == 0) {
            const char *path = ++i < *argc ? argv[i] : "";
            bench_settings()->csv = *path ? fopen(path, "ae") : NULL;
            if (!bench_settings()->csv)
                bench_fail_file("--csv", path);
        } else {
            argv[kept++] = argv[i];
        }
    }
    argv[kept] = NULL;
    *argc = kept;
}

/* Keeps one figure; limit 0: it has none. Nothing without --csv. */
static inline void bench_keep(const char *name, double value, const char *unit, double limit,
                              double spread)
{
    FILE *file = bench_settings()->csv;
    if (!file)
        return;
    for (const char *at = name; *at; at++) /* a comma would end the field */
        fputc(*at == ',' ? ';' : *at, file);
    fprintf(file, ",%.6g,%s,", value, unit);
    if (limit > 0)
        fprintf(file, "%.6g,%.4f", limit, value / limit);
    else
        fprintf(file, ",");
    fprintf(file, ",%.4f\n", spread);
    fflush(file);
}

/* argv[at] as a number of threads; where there is none, all cores that this process may use. */
static inline int bench_threads(int argc, char **argv, int at)
{
    cpu_set_t cores;
    int count = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
    return (int)bench_number(argc, argv, at, "THREADS", count, 1, BENCH_THREADS_MAX);
}

/* ---- medians ---- */

struct bench_summary {
    double median, lowest, highest;
    double spread; /* half of the distance between the quartiles over the median */
};

/* Sorts the samples. */
static inline struct bench_summary bench_summarize(double *samples, int count)
{
    qsort(samples, (size_t)count, sizeof *samples, bench_compare);
    struct bench_summary out = {
        .median = samples[count / 2], .lowest = samples[0], .highest = samples[count - 1]};
    out.spread = (samples[count * 3 / 4] - samples[count / 4]) / (2 * fabs(out.median));
    return out;
}

/* One of several things that are timed by turns. */
struct bench_body {
    double (*seconds)(void *user); /* does it once */
    void *user;
};

/* Times each body `runs` times by turns, after a turn that does not count; out: seconds. What
 * stands beside what, a benchmark and its limit, meets the same moments of the machine so. */
static inline void bench_by_turns(const struct bench_body *bodies, int body_count, int runs,
                                  struct bench_summary *out)
{
    double(*samples)[BENCH_RUNS_MAX] = calloc((size_t)body_count, sizeof *samples);
    if (!samples || runs > BENCH_RUNS_MAX)
        exit(1);
    for (int run = -1; run < runs; run++)
        for (int i = 0; i < body_count; i++) {
            bench_require(bench_stopped());
            double seconds = bodies[i].seconds(bodies[i].user);
            if (run >= 0)
                samples[i][run] = seconds;
        }
    for (int i = 0; i < body_count; i++)
        out[i] = bench_summarize(samples[i], runs);
    free(samples);
}

/* Prints and keeps a rate, `amount` (in units of which 1e9 or 1e6 make one of `unit`) a run, beside
 * that of its limit; limit NULL: none. */
static inline void bench_report(const char *name, double amount, const char *unit,
                                const struct bench_summary *time, const struct bench_summary *limit)
{
    double value = amount / time->median, most = limit ? amount / limit->median : 0;
    printf("%-52s %10.4g %-10s +-%4.1f%%", name, value, unit, 100 * time->spread);
    if (limit)
        printf("  limit %10.4g  ratio %.3f", most, value / most);
    printf("\n");
    fflush(stdout);
    bench_keep(name, value, unit, most, time->spread);
}

#endif
