/* Shared by the benchmarks: common options, medians with their spread, and the lines from which
 * perf/run.sh makes its table.
 *
 * Every benchmark takes two options in addition to its own arguments:
 *
 *   --csv FILE   appends a line for each figure to FILE: name,value,unit,limit,ratio,spread
 *   --quick      small sizes and few runs, for a first look or to try the program
 *
 *   name     the measured thing with its type and shape, such as "adam fp32 2 threads"; commas
 *            become semicolons
 *   value    median of the runs, in `unit`; a rate, so more is better
 *   limit    in the same unit, measured in turns with the value in the same run; empty if there is
 *            none
 *   ratio    value / limit; empty if there is no limit
 *   spread   half of the distance between the quartiles, as a share of the median: 0.02 is +-2%
 *
 * One thread. A benchmark has no caller, so an error ends it with the error's text and one of
 * sluice's exit statuses. Ctrl-C ends it with status 130 after the current run, so that its files
 * are removed. */
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

/* Returns the name of the program without its folder: "bench_adam" for "perf/adam/bench_adam". */
static inline const char *bench_program(void)
{
    return program_invocation_short_name;
}

/* Converts an error to sluice's exit status. A stopped benchmark has its own status, since it
 * cannot be continued. */
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

/* Ends the benchmark with the error's text if rc is negative. */
static inline void bench_require(int rc)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "%s: %s: %s\n", bench_program(), err_name(rc), err_text());
    exit(bench_exit_of(rc));
}

/* Ends the benchmark because of a wrong argument. */
static inline void bench_usage(const char *text)
{
    fprintf(stderr, "%s: %s\n", bench_program(), text);
    exit(2);
}

/* Returns argv[at] as a whole number in lowest..highest, or `fallback` if there is no such
 * argument. Otherwise ends the benchmark with status 2. */
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
    FILE *csv; /* NULL: figures are only printed */
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

/* Returns 0, or ERR_STOPPED after Ctrl-C or SIGTERM. */
static inline int bench_stopped(void)
{
    return *bench_stop_flag() ? err_set(ERR_STOPPED, "stopped") : 0;
}

/* Ends the benchmark because a file cannot be written. */
static inline void bench_fail_file(const char *option, const char *path)
{
    fprintf(stderr, "%s: %s %s: %s\n", bench_program(), option, path,
            *path ? strerror(errno) : "needs a file to write");
    exit(2);
}

/* Removes --csv FILE and --quick from the arguments, at any position. Ends with status 2 if FILE is
 * missing or cannot be written. From here on, Ctrl-C is checked between runs. */
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

/* Writes one figure to the CSV file, if there is one. limit 0: the figure has no limit. */
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

/* Returns argv[at] as a number of threads. The default is all cores that this process may use. */
static inline int bench_threads(int argc, char **argv, int at)
{
    cpu_set_t cores;
    int count = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
    return (int)bench_number(argc, argv, at, "THREADS", count, 1, BENCH_THREADS_MAX);
}

/* ---- medians ---- */

struct bench_summary {
    double median, lowest, highest;
    double spread; /* half of the distance between the quartiles, divided by the median */
};

/* Returns the median and spread. Sorts the samples. */
static inline struct bench_summary bench_summarize(double *samples, int count)
{
    qsort(samples, (size_t)count, sizeof *samples, bench_compare);
    struct bench_summary out = {
        .median = samples[count / 2], .lowest = samples[0], .highest = samples[count - 1]};
    out.spread = (samples[count * 3 / 4] - samples[count / 4]) / (2 * fabs(out.median));
    return out;
}

/* One of several bodies that are timed in turns. */
struct bench_body {
    double (*seconds)(void *user); /* runs the body once and returns its time */
    void *user;
};

/* Times each body `runs` times, in turns, after one turn that does not count. out: seconds. So a
 * benchmark and its limit run under the same conditions of the machine. */
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

/* Prints and keeps a rate. `amount` is the work of a run in `unit` without its "per second".
 * `limit` is the time of the limit; NULL: none. */
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
