/* The page's summary, notes and plain tables. See report_internal.h. */
#include <math.h>
#include <stdlib.h>

#include "base/text.h"
#include "report/report_internal.h"

/* Writes a figure of the summary; `note` may be NULL. */
static void put_tile(FILE *out, const char *name, const char *value, const char *note)
{
    fprintf(out, "<div class=\"tile\"><dt>%s</dt><dd>", name);
    reporti_html(out, value);
    if (note && note[0]) {
        fputs("<span>", out);
        reporti_html(out, note);
        fputs("</span>", out);
    }
    fputs("</dd></div>\n", out);
}

static void put_model_tiles(FILE *out, const reporti_run *run)
{
    char value[REPORT_TEXT_BYTES], note[256];
    const json_t *plan = run->plan;
    if (!run->has_plan)
        return;
    const char *net = reporti_text(plan, "model");
    double world = reporti_number(plan, "world_size");
    snprintf(note, sizeof note, "%.0f unit%s", reporti_number(plan, "units"),
             reporti_number(plan, "units") == 1 ? "" : "s");
    if (*net)
        put_tile(out, "Model", net, "");
    put_tile(out, "Parameters", reporti_count(reporti_number(plan, "parameters"), value), note);
    if (world > 1)
        snprintf(note, sizeof note, "%.0f ranks, ZeRO stage %.0f", world,
                 reporti_number(plan, "zero_stage"));
    else
        snprintf(note, sizeof note, "one rank");
    const char *where = reporti_text(plan, "device");
    put_tile(out, "Computed on", *where ? where : "-", note);
}

static void put_step_tiles(FILE *out, const reporti_run *run)
{
    char value[REPORT_TEXT_BYTES], other[REPORT_TEXT_BYTES], note[256] = "";
    const reporti_metrics *m = &run->metrics;
    double steps = reporti_number(run->plan, "steps");
    if (m->skipped_steps > 0)
        snprintf(note, sizeof note, "%llu skipped for overflow",
                 (unsigned long long)m->skipped_steps);
    if (steps > 0)
        snprintf(value, sizeof value, "%llu of %.0f", (unsigned long long)m->step_last, steps);
    else
        snprintf(value, sizeof value, "%llu", (unsigned long long)m->step_last);
    put_tile(out, "Steps", value, note);
    note[0] = '\0';
    if (isfinite(m->valid_last))
        snprintf(note, sizeof note, "held out: %.4f at step %llu", m->valid_last,
                 (unsigned long long)m->valid_step);
    if (isfinite(m->loss_last))
        snprintf(value, sizeof value, "%.4f", m->loss_last);
    else
        snprintf(value, sizeof value, m->step_lines ? "not finite" : "-");
    put_tile(out, "Loss, nats per token", value, note);
    if (m->recent.count == 0)
        return;
    snprintf(note, sizeof note, "mean of the last %u steps", m->recent.count);
    put_tile(out, "Tokens per second", reporti_count(m->recent.mean.tokens_per_second, value),
             note);
    double predicted = reporti_number(run->plan, "step_seconds");
    snprintf(note, sizeof note, "median of the last %u steps", m->recent.count);
    if (predicted > 0)
        snprintf(note, sizeof note, "predicted %s: measured %+.0f%%",
                 reporti_seconds(predicted, other),
                 100 * (m->recent.seconds_median / predicted - 1));
    put_tile(out, "A step takes", reporti_seconds(m->recent.seconds_median, value), note);
}

/* Writes the lane that was busy longest, in the plan and in the run. */
static void put_binding_tile(FILE *out, const reporti_run *run)
{
    char value[256], note[256] = "";
    const char *planned = reporti_text(run->plan, "bottleneck");
    const reporti_recent *recent = &run->metrics.recent;
    int busiest = -1;
    for (int i = 0; i < LANE_COUNT && recent->count > 0; i++)
        if (recent->mean.lanes[i].busy_seconds > 0 &&
            (busiest < 0 ||
             recent->mean.lanes[i].busy_seconds > recent->mean.lanes[busiest].busy_seconds))
            busiest = i;
    if (busiest < 0 && !*planned)
        return;
    if (busiest < 0) {
        put_tile(out, "Binding lane", planned, "predicted; nothing was measured");
        return;
    }
    snprintf(value, sizeof value, "%s", lane_kind_name((enum lane_kind)busiest));
    snprintf(note, sizeof note, "busy %.0f%% of the step",
             100 * recent->mean.lanes[busiest].busy_seconds / fmax(recent->mean.seconds, 1e-12));
    if (*planned)
        text_add(note, sizeof note, "; predicted: %.32s", planned);
    put_tile(out, "Binding lane", value, note);
}

void reporti_put_summary(FILE *out, const reporti_run *run)
{
    fputs("<dl class=\"tiles\">\n", out);
    put_model_tiles(out, run);
    put_step_tiles(out, run);
    put_binding_tile(out, run);
    fputs("</dl>\n", out);
    if (json_is_false(reporti_at(run->plan, "machine.is_measured")))
        fputs("<p class=\"quiet\">Predictions are for stated default speeds, not for this machine "
              "as measured: <code>sluice probe</code> measures it.</p>\n",
              out);
    if (reporti_is_disturbed(run)) {
        fputs("<p class=\"quiet\">The machine was measured beside other work (", out);
        reporti_html(out, reporti_text(run->plan, "machine.disturbed_by"));
        fputs("): predictions and ceilings may be wrong. <code>sluice probe</code> on a quiet "
              "machine measures it again.</p>\n",
              out);
    }
}

void reporti_put_notes(FILE *out, const reporti_run *run)
{
    if (run->notes.count == 0)
        return;
    fputs("<section class=\"notes\" aria-label=\"What is missing\"><h2>Not in this page</h2><ul>\n",
          out);
    for (uint32_t i = 0; i < run->notes.count; i++) {
        fputs("<li>", out);
        reporti_html(out, run->notes.text[i]);
        fputs("</li>\n", out);
    }
    if (run->notes.unsaid > 0)
        fprintf(out, "<li>and %llu more.</li>\n", (unsigned long long)run->notes.unsaid);
    fputs("</ul></section>\n", out);
}

static void put_bin_row(FILE *out, const reporti_bin *bin)
{
    char text[REPORT_TEXT_BYTES];
    if (bin->step_first == bin->step_last)
        fprintf(out, "<tr><th scope=\"row\">%llu</th>", (unsigned long long)bin->step_first);
    else
        fprintf(out, "<tr><th scope=\"row\">%llu\xe2\x80\x93%llu</th>",
                (unsigned long long)bin->step_first, (unsigned long long)bin->step_last);
    const reporti_value *loss = &bin->values[MEASURE_LOSS];
    double cells[] = {reporti_mean(loss), loss->count ? loss->min : NAN,
                      loss->count ? loss->max : NAN};
    for (int i = 0; i < 3; i++) {
        if (isfinite(cells[i]))
            snprintf(text, sizeof text, "%.4f", cells[i]);
        else
            snprintf(text, sizeof text, "not finite");
        reporti_put_cell(out, text);
    }
    reporti_put_cell(out, reporti_plain(reporti_mean(&bin->values[MEASURE_LR]), text));
    reporti_put_cell(out, reporti_plain(reporti_mean(&bin->values[MEASURE_NORM]), text));
    reporti_put_cell(out, reporti_count(reporti_mean(&bin->values[MEASURE_SPEED]), text));
    reporti_put_cell(out, reporti_seconds(reporti_mean(&bin->values[MEASURE_SECONDS]), text));
    fputs("</tr>\n", out);
}

static void put_evals(FILE *out, const reporti_series *evals)
{
    enum { ROWS_MAX = 24 };
    if (evals->count == 0)
        return;
    reporti_begin_table(out, "Held-out loss, nats per token", NULL, "step|held-out loss");
    uint32_t rows = evals->count < ROWS_MAX ? evals->count : ROWS_MAX;
    for (uint32_t i = 0; i < rows; i++) {
        const reporti_bin *bin =
            &evals->bins[rows > 1 ? (uint64_t)i * (evals->count - 1) / (rows - 1) : 0];
        double loss = reporti_mean(&bin->values[MEASURE_LOSS]);
        fprintf(out, "<tr><th scope=\"row\">%llu</th>", (unsigned long long)bin->step_last);
        if (isfinite(loss))
            fprintf(out, "<td>%.4f</td></tr>\n", loss);
        else
            fprintf(out, "<td>not finite</td></tr>\n");
    }
    reporti_end_table(out);
}

/* Joins bins to groups of about equal length, so that the whole run takes few rows. */
void reporti_put_steps(FILE *out, const reporti_run *run)
{
    enum { ROWS_MAX = 24 };
    const reporti_series *steps = &run->metrics.steps;
    if (steps->lines_per_bin > 1)
        fprintf(out,
                "<p class=\"quiet\">%llu steps are drawn as %u points of up to %llu steps each: "
                "lowest, mean and highest.</p>\n",
                (unsigned long long)run->metrics.step_lines, steps->count,
                (unsigned long long)steps->lines_per_bin);
    if (run->metrics.nonfinite_losses > 0)
        fprintf(out,
                "<p class=\"quiet\">%llu steps have a loss that is not finite; they are left out "
                "of the curve.</p>\n",
                (unsigned long long)run->metrics.nonfinite_losses);
    if (steps->count == 0) {
        fputs("<p class=\"none\">No steps.</p>\n", out);
        return;
    }
    fputs("<details><summary>Table of steps</summary>\n", out);
    if (steps->count > ROWS_MAX)
        fprintf(out, "<p class=\"quiet\">%d of %u rows, evenly chosen.</p>\n", ROWS_MAX,
                steps->count);
    reporti_begin_table(out, "Steps: loss in nats per token", NULL,
                        "step|loss|lowest|highest|learning rate|gradient norm|tokens/s|time");
    uint32_t rows = steps->count < ROWS_MAX ? steps->count : ROWS_MAX;
    for (uint32_t i = 0; i < rows; i++)
        put_bin_row(out,
                    &steps->bins[rows > 1 ? (uint64_t)i * (steps->count - 1) / (rows - 1) : 0]);
    reporti_end_table(out);
    put_evals(out, &run->metrics.evals);
    fputs("</details>\n", out);
}

static void put_lane_of_step(FILE *out, const reporti_run *run, int lane)
{
    const reporti_trace *t = &run->trace;
    char text[REPORT_TEXT_BYTES], path[64];
    const char *name = lane_kind_name((enum lane_kind)lane);
    snprintf(path, sizeof path, "lanes.%s.busy_seconds", name);
    fprintf(out, "<tr><th scope=\"row\">%s</th><td>%llu</td>", name,
            (unsigned long long)t->lane_ops[lane]);
    reporti_put_cell(out, t->lane_bytes[lane] ? reporti_bytes((double)t->lane_bytes[lane], text)
                                              : "\xe2\x80\x93");
    reporti_put_cell(out, reporti_seconds(t->lane_busy_us[lane] * 1e-6, text));
    double length = t->end_us - t->begin_us;
    fprintf(out, "<td>%.0f%%</td>", length > 0 ? 100 * t->lane_busy_us[lane] / length : 0);
    reporti_put_cell(out, reporti_seconds(reporti_number(run->plan, path), text));
    fputs("</tr>\n", out);
}

void reporti_put_timeline(FILE *out, const reporti_run *run)
{
    const reporti_trace *t = &run->trace;
    char text[REPORT_TEXT_BYTES];
    if (!t->has_step) {
        fputs("<p class=\"none\">No trace of a step.</p>\n", out);
        return;
    }
    char some[REPORT_TEXT_BYTES];
    snprintf(some, sizeof some, ", of median length among %u complete ones", t->stall_steps);
    fprintf(out, "<p class=\"quiet\">Step %llu (%s)%s in trace.json: %llu ops in %s.",
            (unsigned long long)t->step, program_kind_name((enum program_kind)t->program),
            t->is_cut            ? ", of which a part is"
            : t->stall_steps > 1 ? some
                                 : ", the only complete one",
            (unsigned long long)t->step_events,
            reporti_seconds((t->end_us - t->begin_us) * 1e-6, text));
    if (t->joined_below_us > 0)
        fprintf(out, " Neighbours within %s are drawn as one: %llu bars in all.",
                reporti_seconds(t->joined_below_us * 1e-6, text),
                (unsigned long long)t->event_count);
    if (t->rows_shared > 0)
        fprintf(out, " %llu requests share the last row of their lane with others.",
                (unsigned long long)t->rows_shared);
    fputs("</p>\n<details><summary>Table of lanes in this step</summary>\n", out);
    reporti_begin_table(out, "Lanes of the step", NULL,
                        "lane|ops|moved|busy|of the step|work predicted");
    for (int lane = 0; lane < LANE_COUNT; lane++)
        if (t->lane_ops[lane] > 0)
            put_lane_of_step(out, run, lane);
    reporti_end_table(out);
    fputs("</details>\n", out);
}

static void put_tier(FILE *out, const reporti_run *run, int which)
{
    char path[64], text[REPORT_TEXT_BYTES];
    const char *name = tier_name((enum tier)which);
    const char *fields[] = {"budget_bytes.%s", "peak_bytes.%s",
                            "memory_over_step.%s.peak_in_use_bytes"};
    fprintf(out, "<tr><th scope=\"row\">%s</th>", name);
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, fields[i], name);
        reporti_put_cell(out, reporti_bytes(reporti_number(run->plan, path), text));
    }
    double measured = (double)run->metrics.peak_bytes[which];
    reporti_put_cell(out, measured > 0 ? reporti_bytes(measured, text) : "\xe2\x80\x93");
    snprintf(path, sizeof path, "memory.%s.at_peak", name);
    reporti_put_cell(out, reporti_text(run->plan, path));
    fputs("</tr>\n", out);
}

void reporti_put_memory(FILE *out, const reporti_run *run)
{
    if (!run->has_plan) {
        fputs("<p class=\"none\">No plan.</p>\n", out);
        return;
    }
    reporti_begin_table(
        out, "Memory of each rank, by tier", NULL,
        "tier|budget|reserved|most in use|reserved by the run|buffer that reaches the top");
    for (int a = 0; a < TIER_COUNT; a++)
        put_tier(out, run, a);
    reporti_end_table(out);
    fputs("<p class=\"quiet\">Reserved is the end of the highest byte that any program uses; "
          "buffers have fixed addresses, so more is reserved than is in use at a time.</p>\n",
          out);
}

void reporti_put_reasons(FILE *out, const reporti_run *run)
{
    const json_t *reasons = json_object_get(run->plan, "reasons");
    if (json_array_size(reasons) == 0) {
        fputs("<p class=\"none\">The plan states no reasons.</p>\n", out);
        return;
    }
    fputs("<ul class=\"reasons\">\n", out);
    for (size_t i = 0; i < json_array_size(reasons); i++) {
        const char *reason = json_string_value(json_array_get(reasons, i));
        if (!reason)
            continue;
        fputs("<li>", out);
        reporti_html(out, reason);
        fputs("</li>\n", out);
    }
    fputs("</ul>\n", out);
}
