/* The entries of bench_nvme: ways of moving bytes, the rates of their runs, and functions that
 * print them, write them as CSV and compare them. Nothing here moves bytes. */
#ifndef SLUICE_PERF_BENCH_NVME_H
#define SLUICE_PERF_BENCH_NVME_H

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "perf/bench.h"
#include "perf/drives/fio.h"
#include "tiers/io.h"

enum { ROUNDS_MAX = 31, SETTINGS_MAX = 32, ENTRIES_MAX = 8 * SETTINGS_MAX };
enum { MODES = 3, FINALISTS = 2 };

/* by enum machine_io_kind */
static const char *const mode_names[MODES] = {"read", "write", "mixed"};

struct setting {
    uint64_t block_bytes;
    uint32_t depth; /* each way */
};
typedef struct setting setting;

/* One way of moving bytes, and its measurements. */
enum side { SIDE_SLUICE, SIDE_FIO, SIDE_LANES, SIDE_FILLED };
static const char *const side_names[] = {"sluice", "fio", "lanes", "filled"};
enum { SIDES = 4 };

struct entry {
    enum side side;
    bool is_registered;
    enum machine_io_kind mode;
    setting at;
    uint32_t run_count;
    double rates[ROUNDS_MAX]; /* bytes per second, by round */
    double cpu_sum;           /* seconds per byte */
    io_latency ours[2];
    fio_times fio[2]; /* sums over the runs, except max */
};
typedef struct entry entry;

static inline bool is_fio(enum side side)
{
    return side == SIDE_FIO || side == SIDE_FILLED;
}

static inline double quantile(const double *values, uint32_t count, double share)
{
    double sorted[ROUNDS_MAX];
    memcpy(sorted, values, count * sizeof *values);
    qsort(sorted, count, sizeof *sorted, bench_compare);
    return sorted[(uint32_t)(share * (count - 1) + 0.5)];
}

static inline double median_of(const entry *what)
{
    return quantile(what->rates, what->run_count, 0.5);
}

static inline fio_times times_of(const entry *what, int way)
{
    const io_latency *ours = &what->ours[way];
    double runs = what->run_count;
    const fio_times *sum = &what->fio[way];
    if (is_fio(what->side))
        return (fio_times){.p50 = sum->p50 / runs,
                           .p95 = sum->p95 / runs,
                           .p99 = sum->p99 / runs,
                           .max = sum->max};
    return (fio_times){.p50 = (double)io_latency_quantile_ns(ours, 0.50) * 1e-9,
                       .p95 = (double)io_latency_quantile_ns(ours, 0.95) * 1e-9,
                       .p99 = (double)io_latency_quantile_ns(ours, 0.99) * 1e-9,
                       .max = (double)ours->max_ns * 1e-9};
}

/* Writes a line of CSV for each entry; does nothing if `into` is NULL. */
static inline void write_rows(FILE *into, const entry *list, uint32_t count, const char *stage)
{
    for (uint32_t i = 0; into && i < count; i++) {
        const entry *what = &list[i];
        fprintf(into, "%s,%s,%s,%" PRIu64 ",%u,%d,%u,%.0f,%.0f,%.0f,%.4g", stage,
                side_names[what->side], mode_names[what->mode], what->at.block_bytes,
                what->at.depth, what->is_registered, what->run_count, median_of(what),
                quantile(what->rates, what->run_count, 0),
                quantile(what->rates, what->run_count, 1), what->cpu_sum / what->run_count);
        for (int way = 0; way < 2; way++) {
            fio_times times = times_of(what, way);
            fprintf(into, ",%.4g,%.4g,%.4g,%.4g", times.p50, times.p95, times.p99, times.max);
        }
        fputc('\n', into);
    }
}

static inline void print_entry(const entry *what)
{
    printf("%-6s %-6s %5" PRIu64 "KiB %5u  %-3s %6.2f %6.2f -%5.2f %8.4f", mode_names[what->mode],
           side_names[what->side], what->at.block_bytes / KIB, what->at.depth,
           what->is_registered ? "yes" : "no", median_of(what) * 1e-9,
           quantile(what->rates, what->run_count, 0) * 1e-9,
           quantile(what->rates, what->run_count, 1) * 1e-9, what->cpu_sum / what->run_count * 1e9);
    for (int way = 0; way < 2; way++) {
        fio_times times = times_of(what, way);
        if (times.max > 0)
            printf("  %c %5.2f %5.2f %6.2f %6.2f", "rw"[way], 1e3 * times.p50, 1e3 * times.p95,
                   1e3 * times.p99, 1e3 * times.max);
    }
    putchar('\n');
}

/* Prints the ratio of the fastest entries of both sides, with the extremes over the rounds. */
static inline void print_ratio(const entry *list, uint32_t count)
{
    const entry *best[2] = {NULL, NULL};
    double ratios[ROUNDS_MAX];
    for (uint32_t i = 0; i < count; i++) {
        if (list[i].side > SIDE_FIO)
            continue; /* these sides have no counterpart */
        const entry **place = &best[list[i].side];
        if (!*place || median_of(&list[i]) > median_of(*place))
            *place = &list[i];
    }
    if (best[0]) {
        char name[32];
        double half = (quantile(best[0]->rates, best[0]->run_count, 0.75) -
                       quantile(best[0]->rates, best[0]->run_count, 0.25)) /
                      2;
        snprintf(name, sizeof name, "nvme %s", mode_names[list->mode]);
        bench_keep(name, median_of(best[0]) * 1e-9, "GB/s", best[1] ? median_of(best[1]) * 1e-9 : 0,
                   half / median_of(best[0]));
    }
    if (!best[0] || !best[1])
        return;
    for (uint32_t r = 0; r < best[0]->run_count; r++)
        ratios[r] = best[0]->rates[r] / best[1]->rates[r];
    printf("%-6s ratio of medians, sluice / best of fio: %.3f (of single rounds %.3f to %.3f)\n",
           mode_names[list->mode], median_of(best[0]) / median_of(best[1]),
           quantile(ratios, best[0]->run_count, 0), quantile(ratios, best[0]->run_count, 1));
}

static inline void add_entry(entry *list, uint32_t *count, enum side side, bool is_registered,
                             enum machine_io_kind mode, setting at)
{
    for (uint32_t i = 0; i < *count; i++)
        if (list[i].side == side && list[i].is_registered == is_registered &&
            list[i].at.block_bytes == at.block_bytes && list[i].at.depth == at.depth)
            return;
    if (*count < ENTRIES_MAX)
        list[(*count)++] =
            (entry){.side = side, .is_registered = is_registered, .mode = mode, .at = at};
}

/* Finds the best settings of a side, by their medians. Returns their number. */
static inline uint32_t find_best(const entry *list, uint32_t count, enum side side,
                                 setting best[FINALISTS])
{
    double below = 1e300;
    uint32_t found = 0;
    while (found < FINALISTS) {
        const entry *next = NULL;
        for (uint32_t i = 0; i < count; i++)
            if (list[i].side == side && median_of(&list[i]) < below &&
                (!next || median_of(&list[i]) > median_of(next)))
                next = &list[i];
        if (!next)
            break;
        below = median_of(next);
        best[found++] = next->at;
    }
    return found;
}

#endif
