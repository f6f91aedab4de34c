/* Prints a profile as tables and as JSON. See cli_report.h. */
#include "cli/cli_report.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdbool.h>
#include <string.h>

#include "base/size.h"
#include "cli/cli.h"
#include "setup/summary.h"

/* ---- text ---- */

/* Prints the text with an indent, in lines of at most 90 columns. The first line continues at
 * `column`. */
static void print_wrapped(FILE *out, const char *text, int indent, int column)
{
    enum { COLUMNS = 90 };
    for (size_t length; *text; text += length + strspn(text + length, " ")) {
        length = strcspn(text, " ");
        bool breaks = column > indent && column + 1 + (int)length > COLUMNS;
        if (breaks)
            column = fprintf(out, "\n%*s", indent, "") - 1;
        else if (column > indent)
            column += fprintf(out, " ");
        column += fprintf(out, "%.*s", (int)length, text);
    }
    fputc('\n', out);
}

/* Prints a title and its text. */
__attribute__((format(printf, 3, 4))) static void print_line(FILE *out, const char *title,
                                                             const char *format, ...)
{
    enum { INDENT = 13 };
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    print_wrapped(out, text, INDENT, fprintf(out, "%-*s", INDENT, title));
}

static void print_head(FILE *out, const struct profile_summary *summary)
{
    const struct setup_summary *plan = &summary->plan;
    char count[CLI_FIGURE_BYTES];
    fputc('\n', out);
    print_line(out, "model", "%s, %s parameters in %" PRIu64 " units, %" PRIu64 " tokens a step%s",
               plan->model_name, cli_count((double)plan->param_count, count), plan->unit_count,
               plan->tokens_per_step, summary->is_random_data ? ", random ones" : "");
    if (summary->of_ranks == 0)
        return;
    print_line(out, "rank",
               "%" PRIu32 " of %" PRIu32 ", ZeRO stage %" PRIu32
               ", alone on this host; its result means nothing",
               summary->as_rank, summary->of_ranks, plan->zero_stage);
    print_line(out, "collectives", "%s at %.3g GB/s; each rank would send %.3f GB a step",
               summary->only_transfers ? "wait as if they sent" : "are copies of their size, sent",
               summary->comm_bytes_per_second / 1e9, (double)plan->sent_bytes / 1e9);
    if (summary->scale_down > 1)
        print_line(
            out, "scaled down",
            "%" PRIu64 " of %" PRIu64 " blocks (1/%" PRIu32
            "): each unit's transfers are the rank's own, a step of the whole job has %" PRIu32
            " times these blocks, and embedding and head once",
            summary->block_count, summary->block_count_asked, summary->scale_down,
            summary->scale_down);
    if (summary->only_transfers)
        print_line(
            out, "transfers", "alone: forward and backward %s; I/O, copies and updates are real",
            summary->is_compute_timed ? "wait as long as the machine takes for their products"
                                      : "take no time");
}

static void print_time(FILE *out, const struct profile_summary *summary)
{
    double ratio = summary->measured_seconds / summary->predicted_seconds;
    fprintf(out,
            "\nmeasured     %.4f s a step (median of %" PRIu64 ", %.4f to %.4f; %" PRIu64
            " before them)\n",
            summary->measured_seconds, summary->steps, summary->measured_fastest,
            summary->measured_slowest, summary->warmup_steps);
    fprintf(out, "predicted    %.4f s, from %s: the measured step takes %.2f times that\n",
            summary->predicted_seconds,
            summary->plan.machine_is_measured ? "the machine's figures" : "rough defaults", ratio);
}

static void print_share(FILE *out, double value)
{
    if (value > 0)
        fprintf(out, " %7.2f", value);
    else
        fprintf(out, " %7s", "-");
}

static void print_lanes(FILE *out, const struct profile_summary *summary)
{
    fprintf(out, "\n%-8s %10s %10s %10s %10s %7s %7s %7s %10s\n", "lane", "GB planned", "GB moved",
            "s planned", "s busy", "GB/s", "ceiling", "share", "s waited");
    for (int kind = 0; kind < LANE_COUNT; kind++) {
        const struct profile_lane *each = &summary->lanes[kind];
        if (each->measured_bytes == 0 && each->measured_seconds <= 0 &&
            each->predicted_seconds <= 0)
            continue;
        bool moves = each->measured_bytes > 0 && each->measured_seconds > 0;
        double rate = moves ? (double)each->measured_bytes / each->measured_seconds / 1e9 : 0;
        fprintf(out, "%-8s %10.3f %10.3f %10.4f %10.4f", lane_kind_name((enum lane_kind)kind),
                (double)each->predicted_bytes / 1e9, (double)each->measured_bytes / 1e9,
                each->predicted_seconds, each->measured_seconds);
        print_share(out, rate);
        print_share(out, moves ? each->ceiling / 1e9 : 0);
        if (moves && each->ceiling > 0)
            fprintf(out, " %6.0f%%", 100 * rate * 1e9 / each->ceiling);
        else
            fprintf(out, " %7s", "-");
        fprintf(out, " %10.4f\n", each->stall_seconds);
    }
}

/* Says what was expected of experts that may not be needed, and what was found. */
static void print_experts(FILE *out, const struct profile_summary *summary)
{
    const struct setup_summary *plan = &summary->plan;
    if (summary->expert_passes <= 0)
        return;
    fprintf(out,
            "\nexperts      %.1f%% of %.0f passes were hit (%.1f%% expected, if all experts are "
            "chosen alike)\n",
            100 * summary->expert_passes_hit / summary->expert_passes, summary->expert_passes,
            100 * plan->expert_passes_hit / plan->expert_passes);
    for (int kind = 0; kind < LANE_COUNT; kind++) {
        const struct profile_lane *each = &summary->lanes[kind];
        if (each->measured_spared_bytes > 0 || each->predicted_spared_bytes > 0)
            fprintf(out, "             %-8s spared %.3f GB a step (%.3f expected)\n",
                    lane_kind_name((enum lane_kind)kind), each->measured_spared_bytes / 1e9,
                    (double)each->predicted_spared_bytes / 1e9);
    }
}

static void print_drives(FILE *out, const struct profile_summary *summary)
{
    if (summary->drive_count == 0)
        return;
    fprintf(out, "\n%-6s %-30s %9s %9s %9s %9s %9s\n", "way", "drive", "transfers", "ms median",
            "95%", "99%", "longest");
    for (uint32_t i = 0; i < 2 * summary->drive_count; i++) {
        const struct profile_drive *drive = &summary->drives[i / 2];
        const struct profile_times *times = &drive->times[i % 2];
        size_t length = strlen(drive->path);
        if (times->count > 0)
            fprintf(out, "%-6s %-30s %9" PRIu64 " %9.3f %9.3f %9.3f %9.3f\n",
                    i % 2 ? "write" : "read", length > 30 ? drive->path + length - 30 : drive->path,
                    times->count, 1e3 * times->p50, 1e3 * times->p95, 1e3 * times->p99,
                    1e3 * times->max);
    }
}

/* Says which part of the resource is meant, if its name does not say it. */
static const char *resource_meaning(uint8_t resource)
{
    if (resource == PROFILE_DRIVES)
        return " (read and write)";
    return resource == PROFILE_CORES ? " (compute and update)" : "";
}

static void print_binding(FILE *out, const struct profile_summary *summary)
{
    static const char *const titles[2] = {"measured", "predicted"};
    const uint8_t lanes[2] = {summary->measured_binding, summary->predicted_binding};
    const uint8_t resources[2] = {summary->measured_resource, summary->predicted_resource};
    const double *const seconds[2] = {summary->measured_resource_seconds,
                                      summary->predicted_resource_seconds};
    const double steps[2] = {summary->measured_seconds, summary->predicted_seconds};
    fputc('\n', out);
    for (int i = 0; i < 2; i++)
        fprintf(out, "%-12s %-9s  lane %s; %s%s, busy %.0f%% of the step\n", i ? "" : "binding",
                titles[i], lane_kind_name((enum lane_kind)lanes[i]),
                profile_resource_name((enum profile_resource)resources[i]),
                resource_meaning(resources[i]), 100 * seconds[i][resources[i]] / steps[i]);
}

static void print_units(FILE *out, const struct profile_summary *summary)
{
    if (summary->unit_count == 0) {
        fprintf(out, "\nno unit's computing waited for a lane\n");
        return;
    }
    fprintf(out, "\n%-32s %10s %9s  %s\n", "unit that waited longest", "s a step", "of step",
            "mostly for");
    for (uint32_t i = 0; i < summary->unit_count; i++) {
        const struct profile_unit *each = &summary->units[i];
        fprintf(out, "%-32.32s %10.4f %8.1f%%  %s\n", each->name, each->stall_seconds,
                100 * each->stall_seconds / summary->measured_seconds,
                lane_kind_name((enum lane_kind)each->lane));
    }
}

static void print_advice(FILE *out, const struct profile_summary *summary)
{
    if (summary->tried_count == 0)
        return;
    fprintf(out,
            "\nsimulated with the measured speeds: %.4f s a step; %" PRIu32
            " other settings tried\n",
            summary->calibrated_seconds, summary->tried_count);
    if (summary->advice_count == 0)
        fprintf(out, "none of them would make the step shorter by 2%%\n");
    enum { SHOWN = 2 };
    for (uint32_t i = 0; i < size_min(summary->advice_count, SHOWN); i++) {
        const struct profile_advice *each = &summary->advice[i];
        int column = fprintf(out, "  %4.1f%% less, %.4f s:", 100 * each->gain, each->step_seconds);
        print_wrapped(out, each->text, 14, column);
    }
}

void cli_print_profile(FILE *out, const struct profile_summary *summary)
{
    print_head(out, summary);
    print_time(out, summary);
    print_lanes(out, summary);
    print_experts(out, summary);
    print_drives(out, summary);
    print_binding(out, summary);
    print_units(out, summary);
    cli_print_peaks(out, summary->peak_bytes, summary->plan.budget_bytes,
                    summary->resident_bytes_max);
    print_advice(out, summary);
}

/* ---- JSON ---- */

static json_t *lane_objects(const struct profile_summary *summary)
{
    json_t *lanes = json_object();
    for (int kind = 0; kind < LANE_COUNT; kind++) {
        const struct profile_lane *each = &summary->lanes[kind];
        json_t *object =
            json_pack("{s:I, s:I, s:f, s:f, s:f}", "predicted_bytes",
                      (json_int_t)each->predicted_bytes, "bytes", (json_int_t)each->measured_bytes,
                      "predicted_busy_seconds", each->predicted_seconds, "busy_seconds",
                      each->measured_seconds, "stall_seconds", each->stall_seconds);
        if (each->measured_bytes > 0 && each->measured_seconds > 0) {
            double rate = (double)each->measured_bytes / each->measured_seconds;
            json_object_set_new(object, "bytes_per_second", json_real(rate));
            if (each->ceiling > 0) {
                json_object_set_new(object, "ceiling_bytes_per_second", json_real(each->ceiling));
                json_object_set_new(object, "share_of_ceiling", json_real(rate / each->ceiling));
            }
        }
        if (summary->expert_passes > 0) {
            json_object_set_new(object, "predicted_spared_bytes",
                                json_integer((json_int_t)each->predicted_spared_bytes));
            json_object_set_new(object, "spared_bytes", json_real(each->measured_spared_bytes));
        }
        json_object_set_new(lanes, lane_kind_name((enum lane_kind)kind), object);
    }
    return lanes;
}

static json_t *times_object(const struct profile_times *times)
{
    return json_pack("{s:I, s:f, s:f, s:f, s:f}", "transfers", (json_int_t)times->count,
                     "p50_seconds", times->p50, "p95_seconds", times->p95, "p99_seconds",
                     times->p99, "max_seconds", times->max);
}

static json_t *drive_objects(const struct profile_summary *summary)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < summary->drive_count; i++)
        json_array_append_new(list, json_pack("{s:s, s:o, s:o}", "path", summary->drives[i].path,
                                              "read", times_object(&summary->drives[i].times[0]),
                                              "write", times_object(&summary->drives[i].times[1])));
    return list;
}

static json_t *binding_object(uint8_t kind, uint8_t resource,
                              const double seconds[PROFILE_RESOURCE_COUNT])
{
    json_t *all = json_object();
    for (int r = 0; r < PROFILE_RESOURCE_COUNT; r++)
        json_object_set_new(all, profile_resource_name((enum profile_resource)r),
                            json_real(seconds[r]));
    return json_pack("{s:s, s:s, s:o}", "lane", lane_kind_name((enum lane_kind)kind), "resource",
                     profile_resource_name((enum profile_resource)resource), "busy_seconds", all);
}

static json_t *unit_objects(const struct profile_summary *summary)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < summary->unit_count; i++)
        json_array_append_new(list,
                              json_pack("{s:s, s:f, s:s}", "unit", summary->units[i].name,
                                        "stall_seconds", summary->units[i].stall_seconds, "lane",
                                        lane_kind_name((enum lane_kind)summary->units[i].lane)));
    return list;
}

static json_t *advice_objects(const struct profile_summary *summary)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < summary->advice_count; i++)
        json_array_append_new(list, json_pack("{s:s, s:f, s:f}", "text", summary->advice[i].text,
                                              "step_seconds", summary->advice[i].step_seconds,
                                              "gain", summary->advice[i].gain));
    return list;
}

static json_t *rank_object(const struct profile_summary *summary)
{
    return json_pack("{s:I, s:I, s:f, s:I, s:I, s:I, s:b, s:I}", "rank",
                     (json_int_t)summary->as_rank, "of", (json_int_t)summary->of_ranks,
                     "comm_bytes_per_second", summary->comm_bytes_per_second, "scale_down",
                     (json_int_t)summary->scale_down, "blocks", (json_int_t)summary->block_count,
                     "blocks_of_job", (json_int_t)summary->block_count_asked, "transfers_only",
                     summary->only_transfers, "zero_stage", (json_int_t)summary->plan.zero_stage);
}

int cli_profile_json(FILE *out, const struct profile_summary *summary)
{
    const struct setup_summary *plan = &summary->plan;
    json_t *object = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:b, s:b}", "model", plan->model_name, "parameters",
        (json_int_t)plan->param_count, "tokens_per_step", (json_int_t)plan->tokens_per_step,
        "steps", (json_int_t)summary->steps, "warmup_steps", (json_int_t)summary->warmup_steps,
        "random_tokens", summary->is_random_data, "machine_is_measured", plan->machine_is_measured);
    json_object_set_new(object, "predicted_step_seconds", json_real(summary->predicted_seconds));
    json_object_set_new(object, "step_seconds", json_real(summary->measured_seconds));
    json_object_set_new(object, "fastest_step_seconds", json_real(summary->measured_fastest));
    json_object_set_new(object, "slowest_step_seconds", json_real(summary->measured_slowest));
    json_object_set_new(object, "model_flops", json_real(plan->model_flops));
    json_object_set_new(object, "lanes", lane_objects(summary));
    json_object_set_new(object, "drives", drive_objects(summary));
    json_object_set_new(object, "binding",
                        binding_object(summary->measured_binding, summary->measured_resource,
                                       summary->measured_resource_seconds));
    json_object_set_new(object, "predicted_binding",
                        binding_object(summary->predicted_binding, summary->predicted_resource,
                                       summary->predicted_resource_seconds));
    json_object_set_new(object, "units", unit_objects(summary));
    json_object_set_new(object, "peak_bytes", cli_tiers_object(summary->peak_bytes));
    json_object_set_new(object, "planned_peak_bytes", cli_tiers_object(summary->plan.peak_bytes));
    json_object_set_new(object, "budget_bytes", cli_tiers_object(plan->budget_bytes));
    json_object_set_new(object, "resident_bytes_max",
                        json_integer((json_int_t)summary->resident_bytes_max));
    json_object_set_new(object, "gpu_used_bytes",
                        json_integer((json_int_t)summary->gpu_used_bytes));
    if (summary->of_ranks > 0)
        json_object_set_new(object, "as_rank", rank_object(summary));
    if (summary->expert_passes > 0)
        json_object_set_new(object, "experts",
                            json_pack("{s:f, s:f, s:f, s:f}", "passes", summary->expert_passes,
                                      "passes_hit", summary->expert_passes_hit, "predicted_passes",
                                      plan->expert_passes, "predicted_passes_hit",
                                      plan->expert_passes_hit));
    if (summary->tried_count > 0) {
        json_object_set_new(object, "calibrated_step_seconds",
                            json_real(summary->calibrated_seconds));
        json_object_set_new(object, "settings_tried",
                            json_integer((json_int_t)summary->tried_count));
        json_object_set_new(object, "advice", advice_objects(summary));
    }
    return cli_print_json(out, object);
}
