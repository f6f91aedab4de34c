/* Runs variants in turns and computes medians and quartiles of their samples. See
 * probe_internal.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "probe/probe_internal.h"

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Returns the value below which `share` of the sorted values lie, interpolated between
 * neighbours. */
static double quantile(const double *sorted, uint32_t count, double share)
{
    double place = share * (count - 1);
    uint32_t below = (uint32_t)place;
    double part = place - below;
    return part > 0 ? sorted[below] + part * (sorted[below + 1] - sorted[below]) : sorted[below];
}

void probei_figure_add(probei_figure *self, double value)
{
    if (self->count < PROBEI_ROUNDS_MAX)
        self->values[self->count++] = value;
}

void probei_figure_close(probei_figure *self)
{
    double sorted[PROBEI_ROUNDS_MAX];
    if (self->count == 0)
        return;
    memcpy(sorted, self->values, self->count * sizeof *sorted);
    qsort(sorted, self->count, sizeof *sorted, compare);
    self->median = quantile(sorted, self->count, 0.5);
    self->low = quantile(sorted, self->count, 0.25);
    self->high = quantile(sorted, self->count, 0.75);
}

double probei_figure_spread(const probei_figure *self)
{
    return self->count > 1 && self->median > 0 ? 0.5 * (self->high - self->low) / self->median : 0;
}

/* Records a figure whose spread stayed too large. */
static void note_disturbed(probei *self, const char *name, double spread)
{
    self->disturbed_count++;
    if (spread <= self->disturbed_spread)
        return;
    self->disturbed_spread = spread;
    snprintf(self->disturbed_name, sizeof self->disturbed_name, "%s", name);
}

static bool swings(const probei_work *work, uint32_t variant, const probei_figure *figures)
{
    return !(work->loose >> variant & 1) &&
           probei_figure_spread(&figures[variant]) > 0.01 * PROBEI_SPREAD_PERCENT;
}

static void name_variant(const probei_work *work, uint32_t variant, char text[PROBEI_TEXT_BYTES])
{
    if (work->names)
        snprintf(text, PROBEI_TEXT_BYTES, "%s", work->names[variant]);
    else if (work->name)
        work->name(work->user, variant, text);
}

static int run_variant(probei *self, const probei_work *work, uint32_t variant, double *value)
{
    char text[PROBEI_TEXT_BYTES] = "";
    name_variant(work, variant, text);
    TRY(probei_check(self, text));
    return work->run(work->user, variant, value);
}

/* Measures figures with a large spread again, in turns, until no spread is large, their samples are
 * full, or the time is over. Records the figures that remain. */
static int settle(probei *self, const probei_work *work, probei_figure *figures)
{
    uint64_t begin_ns = clock_ns();
    for (bool any = true; any && (double)(clock_ns() - begin_ns) * 1e-9 < 0.5 * work->seconds;) {
        any = false;
        for (uint32_t i = 0; i < work->count; i++) {
            double value = 0;
            if (!swings(work, i, figures) || figures[i].count == PROBEI_ROUNDS_MAX)
                continue;
            any = true;
            TRY(run_variant(self, work, i, &value));
            probei_figure_add(&figures[i], value);
            probei_figure_close(&figures[i]);
        }
    }
    for (uint32_t i = 0; i < work->count; i++) {
        char text[PROBEI_TEXT_BYTES] = "a figure";
        if (!swings(work, i, figures))
            continue;
        name_variant(work, i, text);
        note_disturbed(self, text, probei_figure_spread(&figures[i]));
    }
    return 0;
}

/* Every second round runs backwards, so that a steady change affects all variants equally. */
static int one_round(probei *self, const probei_work *work, uint32_t round, bool counts,
                     probei_figure *figures)
{
    for (uint32_t i = 0; i < work->count; i++) {
        uint32_t variant = round % 2 ? work->count - 1 - i : i;
        double value = 0;
        TRY(run_variant(self, work, variant, &value));
        if (counts)
            probei_figure_add(&figures[variant], value);
    }
    return 0;
}

int probei_rounds(probei *self, const probei_work *work, probei_figure *figures)
{
    uint64_t begin_ns = clock_ns(), round_ns = begin_ns;
    double seconds, last;
    if (work->warms_up)
        TRY(one_round(self, work, 1, false, figures));
    for (uint32_t round = 0; round < PROBEI_ROUNDS_MAX; round++) {
        round_ns = clock_ns();
        TRY(one_round(self, work, round, true, figures));
        seconds = (double)(clock_ns() - begin_ns) * 1e-9;
        last = (double)(clock_ns() - round_ns) * 1e-9;
        if (seconds + last > work->seconds)
            break;
    }
    for (uint32_t i = 0; i < work->count; i++)
        probei_figure_close(&figures[i]);
    return work->is_checked && self->extent != PROBEI_TINY ? settle(self, work, figures) : 0;
}

/* Returns the lowest share of the best rate over all kinds. */
static double worst_share(const probe_setting *setting, const double best[3])
{
    double worst = 1;
    for (int kind = 0; kind < 3; kind++)
        if (best[kind] > 0)
            worst = fmin(worst, setting->rates[kind] / best[kind]);
    return worst;
}

static bool is_smaller(const probe_setting *a, const probe_setting *b)
{
    uint64_t a_bytes = a->block_bytes * a->queue_depth, b_bytes = b->block_bytes * b->queue_depth;
    return a_bytes != b_bytes ? a_bytes < b_bytes : a->queue_depth < b->queue_depth;
}

uint32_t probe_choose_setting(const probe_setting *settings, uint32_t count, double share)
{
    double best[3] = {0}, nearest = -1;
    uint32_t chosen = 0;
    for (uint32_t i = 0; i < count; i++)
        for (int kind = 0; kind < 3; kind++)
            best[kind] = fmax(best[kind], settings[i].rates[kind]);
    for (uint32_t i = 0; i < count; i++) {
        double worst = fmin(worst_share(&settings[i], best), share);
        if (worst > nearest || (worst == nearest && is_smaller(&settings[i], &settings[chosen]))) {
            nearest = worst;
            chosen = i;
        }
    }
    return chosen;
}
