/* Prints a plan for people: each figure can be calculated by hand from those beside it. See
 * cli_report.h.
 *
 *   bytes of an arena     states + scratch + places + padding + under way = peak
 *   seconds of a resource bytes a step / rate; the step cannot be shorter than the largest
 *   hidden from (T*)      tokens of a rank's step at which computing takes as long (plan/zero.h) */
#include "cli/cli_report.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/size.h"
#include "cli/cli.h"
#include "plan/plan.h"
#include "setup/summary.h"

const char *cli_count(double value, char text[CLI_FIGURE_BYTES])
{
    if (value >= 1e12)
        snprintf(text, CLI_FIGURE_BYTES, "%.2fT", value / 1e12);
    else if (value >= 1e9)
        snprintf(text, CLI_FIGURE_BYTES, "%.2fB", value / 1e9);
    else if (value >= 1e6)
        snprintf(text, CLI_FIGURE_BYTES, "%.2fM", value / 1e6);
    else if (value >= 1e4)
        snprintf(text, CLI_FIGURE_BYTES, "%.1fK", value / 1e3);
    else
        snprintf(text, CLI_FIGURE_BYTES, "%.0f", value);
    return text;
}

/* Decimal bytes, as drives are sold: "24.94 GB". */
static const char *report_bytes(double value, char text[CLI_FIGURE_BYTES])
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    size_t unit = 0;
    while (value >= 1000 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1000;
        unit++;
    }
    snprintf(text, CLI_FIGURE_BYTES, unit ? "%.2f %s" : "%.0f %s", value, units[unit]);
    return text;
}

/* ---- what it is ---- */

/* Where the rates come from. */
static const char *report_origin(const struct setup_summary *plan)
{
    if (strcmp(plan->machine_name, "defaults") == 0)
        return ": rates are guesses; sluice probe measures them";
    return plan->machine_is_measured ? ", measured" : "; not all rates are measured";
}

/* Says what a rank sends for routed experts, in the way that the plan has and in the other one. */
static void report_expert_ranks(FILE *out, const struct setup_summary *plan)
{
    char zero[CLI_FIGURE_BYTES], rows[CLI_FIGURE_BYTES];
    if (plan->expert_zero_bytes == 0 && plan->expert_rows_bytes == 0)
        return;
    report_bytes((double)plan->expert_zero_bytes, zero);
    report_bytes((double)plan->expert_rows_bytes, rows);
    if (plan->expert_parallel_size > 1)
        fprintf(
            out,
            "             Experts are owned by ranks: %s of it are rows of tokens (by ZeRO: %s).\n",
            rows, zero);
    else
        fprintf(
            out,
            "             Experts are cut by ZeRO: %s of it at most (expert_parallel_size=%" PRIu32
            ": %s).\n",
            zero, plan->world_size, rows);
    fputs("             Rows are counted as if all choices of experts were equally likely.\n", out);
}

static void report_job(FILE *out, const struct setup_summary *plan)
{
    char text[CLI_FIGURE_BYTES];
    fprintf(out, "model        %s, %s parameters in %" PRIu64 " units\n", plan->model_name,
            cli_count((double)plan->param_count, text), plan->unit_count);
    fprintf(out,
            "a step       %s tokens: %" PRIu64 " micro-batch%s of %" PRIu64 " x %" PRIu64 "%s\n",
            cli_count((double)plan->tokens_per_step, text), plan->micro_batch_count,
            plan->micro_batch_count == 1 ? "" : "es", plan->micro_batch, plan->seq_length,
            plan->world_size > 1 ? " on each rank" : "");
    fprintf(out, "schedule     %s, update %s; ", plan->order, plan->update);
    uint64_t held = plan->held_stages + plan->held_passes;
    fprintf(out, "tiles of %s elements, %" PRIu64 " %s%s held\n",
            cli_count((double)plan->tile_elems, text), held, plan->held_passes ? "pass" : "stage",
            held == 1           ? ""
            : plan->held_passes ? "es of each stage"
                                : "s");
    fprintf(out, "machine      %s%s\n", plan->machine_name, report_origin(plan));
    if (plan->machine_cannot_run[0])
        fprintf(out, "cannot run   %s\n", plan->machine_cannot_run);
    if (plan->machine_is_disturbed)
        fprintf(
            out,
            "disturbed    while it was measured: %s\n"
            "             these figures may be wrong: run sluice probe again on a quiet machine\n",
            plan->machine_disturbed_by);
    if (plan->world_size > 1)
        fprintf(out,
                "ranks        %" PRIu32 ", %" PRIu32 " a host, ZeRO stage %" PRIu32
                "; each sends %s a step,\n             %.3f P: gathers %.3f, reductions %.3f.\n"
                "             All figures are of each rank, but where hosts or all are named.\n",
                plan->world_size, plan->ranks_per_host, plan->zero_stage,
                report_bytes((double)plan->sent_bytes, text), plan->sent_times,
                plan->gathered_times, plan->reduced_times);
    report_expert_ranks(out, plan);
}

/* ---- memory ---- */

/* A row of bytes by arena; `per_parameter` 0: without that column. A row of zeros is left out. */
static void report_row(FILE *out, const char *label, const uint64_t bytes[TIER_COUNT],
                       double params, bool always)
{
    char text[SIZE_TEXT_BYTES];
    uint64_t sum = 0;
    for (int arena = 0; arena < TIER_COUNT; arena++)
        sum += bytes[arena];
    if (sum == 0 && !always)
        return;
    fprintf(out, "%-26s", label);
    for (int arena = 0; arena < TIER_COUNT; arena++)
        fprintf(out, " %13s", bytes[arena] ? size_format(bytes[arena], text) : "-");
    if (params > 0 && sum > 0)
        fprintf(out, " %11.*f", (double)sum < 0.1 * params ? 4 : 2, (double)sum / params);
    fputc('\n', out);
}

static void report_memory(FILE *out, const struct setup_summary *plan)
{
    double params = (double)plan->param_count;
    char text[SIZE_TEXT_BYTES];
    uint64_t places[3][TIER_COUNT] = {{0}};
    places[0][TIER_NVME] = plan->save_bytes;
    places[1][TIER_NVME] = plan->second_bytes;
    places[2][TIER_HOST] = plan->copy_bytes;
    fprintf(out, "\n%-26s %13s %13s %13s %11s\n", plan->world_size > 1 ? "of each rank" : "state",
            "device", "host", "nvme", "B/parameter");
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        report_row(out, state_kind_name((enum state_kind)kind), plan->home_bytes[kind], params,
                   true);
    report_row(out, "optimizer, to be saved to", places[0], params, false);
    report_row(out, "optimizer, second place", places[1], params, false);
    report_row(out, "optimizer, read once", places[2], params, false);
    if (plan->state_has_formats)
        fprintf(out, "  optimizer in %s: %.2f B for each parameter that learns\n",
                plan->state_formats, plan->state_param_bytes);
    report_row(out, "scratch and tables", plan->scratch_bytes, 0, false);
    report_row(out, "alignment", plan->padding_bytes, 0, false);
    report_row(out, "under way", plan->moving_bytes, 0, false);
    if (plan->carried_bytes)
        fprintf(out, "  of which %s on the host are carried to the next step\n",
                size_format(plan->carried_bytes, text));
    report_row(out, "= peak", plan->peak_bytes, 0, true);
    report_row(out, "budget", plan->budget_bytes, 0, true);
    if (plan->world_size > 1) {
        report_row(out, "peak of a host", plan->host_peak_bytes, 0, true);
        report_row(out, "peak of all", plan->all_peak_bytes, 0, true);
    }
}

static void report_peaks(FILE *out, const struct setup_summary *plan)
{
    fputs("\nat the peak\n", out);
    for (int arena = 0; arena < TIER_COUNT; arena++)
        if (plan->peak_what[arena][0])
            fprintf(out, "  %-10s %s\n", tier_name((enum tier)arena), plan->peak_what[arena]);
}

void cli_print_folded(FILE *out, int indent, const char *text)
{
    enum { COLUMNS = 90, HANGING = 2 };
    size_t width = (size_t)(COLUMNS - HANGING - indent);
    for (int lead = indent; *text; lead = indent + HANGING) {
        size_t length = strlen(text);
        if (length > width) {
            length = width;
            while (length > 0 && text[length] != ' ')
                length--;
            length = length ? length : width;
        }
        fprintf(out, "%*s%.*s\n", lead, "", (int)length, text);
        text += length;
        while (*text == ' ')
            text++;
    }
}

static void report_reasons(FILE *out, const struct setup_summary *plan)
{
    if (plan->reason_count > 0)
        fputs("\nwhy\n", out);
    for (uint32_t i = 0; i < plan->reason_count; i++)
        cli_print_folded(out, 2, plan->reasons[i]);
}

/* ---- speed ---- */

/* "0.00040", "70.285": three significant digits. */
static const char *report_seconds(double seconds, char text[CLI_FIGURE_BYTES])
{
    snprintf(text, CLI_FIGURE_BYTES, seconds < 0.0995 ? "%.5f" : "%.3f", seconds);
    return text;
}

static double percent(double part, double of)
{
    return of > 0 ? 100 * part / of : 0;
}

static void report_speed(FILE *out, const struct setup_summary *plan)
{
    double step = plan->step_seconds, lane = 0;
    for (int i = 0; i < LANE_COUNT; i++)
        if (strcmp(plan->bottleneck, lane_kind_name((enum lane_kind)i)) == 0)
            lane = plan->lane_seconds[i];
    char seconds[CLI_FIGURE_BYTES];
    double tokens = plan->tokens_per_second, steps = plan->steps_per_hour;
    fprintf(out, "\npredicted    %s s a step, %.*f tokens/s, %.*f steps an hour\n",
            report_seconds(step, seconds), tokens < 1000, tokens, steps < 1000, steps);
    fprintf(out,
            "bound        %s s, the busiest resource of each phase: the step takes %.1f%% more\n",
            report_seconds(plan->bound_seconds, seconds), 100 * plan->over_bound);
    if (plan->schedule_bound_seconds > 0)
        fprintf(out, "             %s s with what ops wait for: the step takes %.1f%% more\n",
                report_seconds(plan->schedule_bound_seconds, seconds),
                100 * plan->over_schedule_bound);
    fprintf(out, "bound by     lane %s, busy %.1f%% of the step; resource %s, %.1f%%\n",
            plan->bottleneck, percent(lane, step), plan->busiest,
            percent(plan->busiest_seconds, step));
    fprintf(out, "computing    %.3f TFLOPS a rank, %.3f with recomputation; ",
            plan->tflops_per_rank, plan->hardware_tflops_per_rank);
    if (plan->peak_tflops_per_rank > 0)
        fprintf(out, "MFU %.1f%% of %.2f TFLOPS\n", 100 * plan->mfu, plan->peak_tflops_per_rank);
    else
        fputs("MFU unknown: no peak is\n", out);
}

/* Says what moves of experts: what is expected, and what if a token chose each of them. */
static void report_experts(FILE *out, const struct setup_summary *plan)
{
    char spared[CLI_FIGURE_BYTES], link[CLI_FIGURE_BYTES], seconds[CLI_FIGURE_BYTES];
    bool is_hit = strcmp(plan->experts, "hit") == 0;
    if (plan->expert_passes <= 0)
        return;
    fprintf(out, "experts      %s; of %.0f passes %.1f (%.1f%%) are expected to be hit\n",
            is_hit ? "fetched when hit" : "all fetched ahead", plan->expert_passes,
            plan->expert_passes_hit, percent(plan->expert_passes_hit, plan->expert_passes));
    if (!is_hit)
        return;
    fprintf(out,
            "             that leaves %s on the drives and %s on the host; if all are hit a step "
            "takes %s s\n",
            report_bytes((double)plan->lane_spared_bytes[LANE_READ], spared),
            report_bytes((double)plan->lane_spared_bytes[LANE_H2D], link),
            report_seconds(plan->all_hit_seconds, seconds));
}

static void report_waits(FILE *out, const struct setup_summary *plan)
{
    if (plan->wait_count > 0)
        fputs("\nwaits        the chain of ops that the step consists of, in order of time\n", out);
    for (uint32_t i = 0; i < plan->wait_count; i++)
        cli_print_folded(out, 2, plan->waits[i].text);
}

/* The scaled value, or "-" for 0. */
static const char *report_scaled(double value, double unit, int digits, char text[CLI_FIGURE_BYTES])
{
    if (value > 0)
        snprintf(text, CLI_FIGURE_BYTES, "%.*f", digits, value / unit);
    else
        snprintf(text, CLI_FIGURE_BYTES, "-");
    return text;
}

static void report_lanes(FILE *out, const struct setup_summary *plan)
{
    char moved[CLI_FIGURE_BYTES], rate[CLI_FIGURE_BYTES], busy[CLI_FIGURE_BYTES];
    fprintf(out, "\n%-12s %12s %11s %12s %12s\n", "lane", "GB a step", "GB/s", "busy s",
            "of the step");
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        double bytes = (double)plan->lane_bytes[lane], seconds = plan->lane_seconds[lane];
        if (bytes <= 0 && seconds <= 0)
            continue;
        fprintf(out, "%-12s %12s %11s %12s %11.1f%%\n", lane_kind_name((enum lane_kind)lane),
                report_scaled(bytes, 1e9, 3, moved),
                report_scaled(seconds > 0 ? bytes / seconds : 0, 1e9, 2, rate),
                report_seconds(seconds, busy), percent(seconds, plan->step_seconds));
    }
}

/* The number of tokens from which the resource is hidden behind computing. */
static const char *report_hidden(const struct setup_link *link, char text[CLI_FIGURE_BYTES])
{
    if (link->is_computing)
        snprintf(text, CLI_FIGURE_BYTES, "computes");
    else if (isinf(link->hidden_tokens))
        snprintf(text, CLI_FIGURE_BYTES, "never");
    else
        cli_count(ceil(link->hidden_tokens), text);
    return text;
}

/* Says what the seconds of the resource that computes consist of: its FLOPs are those of the
 * passes, but its time is that of all ops. */
static void report_computing(FILE *out, const struct setup_summary *plan,
                             const struct setup_link *link)
{
    char passes[CLI_FIGURE_BYTES], other[CLI_FIGURE_BYTES], moved[64] = "";
    double seconds = link->seconds - plan->computing_seconds;
    if (link->other_bytes > 0 && seconds > 0)
        snprintf(moved, sizeof moved, ", %.3f GB of memory at %.2f GB/s", link->other_bytes / 1e9,
                 link->other_bytes / seconds / 1e9);
    fprintf(out, "  %s: passes (these FLOPs) %s s; other ops %s s%s\n", link->name,
            report_seconds(plan->computing_seconds, passes), report_seconds(seconds, other), moved);
}

/* The row of the drives has the rate of the step's mix of reads and writes. */
static void report_drive_rates(FILE *out, const struct setup_summary *plan)
{
    fprintf(out, "  drive: reads at %.2f GB/s, writes at %.2f GB/s", plan->ceilings.read / 1e9,
            plan->ceilings.write / 1e9);
    if (plan->ceilings.both_ways > 1)
        fprintf(out, "; both at once %.2f times as fast as by turns", plan->ceilings.both_ways);
    fputc('\n', out);
}

static void report_links(FILE *out, const struct setup_summary *plan)
{
    char moved[CLI_FIGURE_BYTES], rate[CLI_FIGURE_BYTES], work[CLI_FIGURE_BYTES];
    char hidden[CLI_FIGURE_BYTES];
    const struct setup_link *computes = NULL;
    uint64_t tokens = plan->world_size ? plan->tokens_per_step / plan->world_size : 0;
    fprintf(out, "\n%-12s %12s %11s %12s %12s %15s\n", "resource", "GB a step", "GB/s", "work s",
            "of the step", "hidden from T*");
    for (uint32_t i = 0; i < plan->link_count; i++) {
        const struct setup_link *link = &plan->links[i];
        if (link->seconds <= 0)
            continue;
        report_scaled(link->bytes, 1e9, 3, moved);
        report_scaled(link->bytes_per_second, 1e9, 2, rate);
        if (link->is_computing && plan->computing_seconds > 0) {
            snprintf(moved, sizeof moved, "%.*f TFLOP", plan->hardware_flops < 1e15 ? 2 : 0,
                     plan->hardware_flops / 1e12);
            snprintf(rate, sizeof rate, "%.2f TF/s",
                     plan->hardware_flops / plan->computing_seconds / 1e12);
            computes = link;
        }
        fprintf(out, "%-12s %12s %11s %12s %11.1f%% %15s\n", link->name, moved, rate,
                report_seconds(link->seconds, work), percent(link->seconds, plan->step_seconds),
                report_hidden(link, hidden));
    }
    if (plan->links[RESOURCE_DRIVE].seconds > 0)
        report_drive_rates(out, plan);
    if (computes)
        report_computing(out, plan, computes);
    cli_count((double)tokens, moved);
    fprintf(
        out,
        "  T*: with so many tokens in a rank's step (now %s) it takes no longer than computing\n",
        moved);
}

/* ---- commits and wear ---- */

/* Prints the bytes that the job takes on nvme, and below them those of the other setting of
 * run.commit_every. */
static void report_places(FILE *out, const struct setup_summary *plan)
{
    static const char *const remarks[2][2] = {
        {": one place of optimizer state (commit_every 0)",
         " with commits: a killed run could be resumed"},
        {": two places of optimizer state (commit_every)",
         " with commit_every=0: a killed run is lost"},
    };
    char text[SIZE_TEXT_BYTES], each[64] = " a rank";
    bool commits = plan->second_bytes > 0;
    for (int i = 0; i < 2; i++) {
        bool with = commits == (i == 0);
        if (plan->world_size < 2)
            snprintf(each, sizeof each, ", %.1f B/parameter",
                     with ? plan->nvme_with_commits_per_parameter
                          : plan->nvme_without_commits_per_parameter);
        size_format(with ? plan->nvme_with_commits_bytes : plan->nvme_without_commits_bytes, text);
        fprintf(out, "%-12s %s%s%s\n", i ? "" : "nvme", text, each, remarks[commits][i]);
    }
}

static void report_commits(FILE *out, const struct setup_summary *plan)
{
    char text[CLI_FIGURE_BYTES], longer[CLI_FIGURE_BYTES], every[64] = "after every step";
    if (plan->commit_every > 1)
        snprintf(every, sizeof every, "every %" PRIu64 " steps", plan->commit_every);
    report_bytes((double)plan->commit_bytes, text);
    report_seconds(plan->commit_seconds, longer);
    if (plan->commit_every == 0)
        fprintf(out, "\ncommits      at clean stops alone; one writes %s and takes %s s\n", text,
                longer);
    else
        fprintf(out, "\ncommits      %s; each writes %s more, takes %s s longer\n", every,
                plan->commit_bytes ? text : "nothing", plan->commit_seconds >= 5e-6 ? longer : "0");
    report_places(out, plan);
}

/* Prints what the drives read and write in a step, by kind, per parameter of the model. */
static void report_traffic(FILE *out, const struct setup_summary *plan)
{
    static const char *const names[] = {"params",      "grads",    "optimizer",
                                        "activations", "inner a.", "commits"};
    static_assert(sizeof names / sizeof names[0] == STATE_KIND_COUNT + 1, "a name for each");
    double each = (double)plan->world_size / (double)plan->param_count;
    fprintf(out, "\n%-18s", "drives, B/param.");
    for (int kind = 0; kind <= STATE_KIND_COUNT; kind++)
        fprintf(out, " %*s", kind == STATE_ACTIVATIONS ? 11 : 9, names[kind]);
    fprintf(out, " %9s\n", "all");
    for (int row = 0; row < 2; row++) {
        const uint64_t *bytes = row == 0 ? plan->read_bytes : plan->written_bytes;
        double sum = 0;
        fprintf(out, "%-18s", row == 0 ? "read a step" : "written a step");
        for (int kind = 0; kind <= STATE_KIND_COUNT; kind++) {
            char text[CLI_FIGURE_BYTES];
            uint64_t commits = row == 0 ? 0 : plan->commit_share_bytes;
            double part = (double)(kind < STATE_KIND_COUNT ? bytes[kind] : commits) * each;
            sum += part;
            fprintf(out, " %*s", kind == STATE_ACTIVATIONS ? 11 : 9,
                    report_scaled(part, 1, 2, text));
        }
        fprintf(out, " %9.2f\n", sum);
    }
}

static void report_wear(FILE *out, const struct setup_summary *plan)
{
    char day[CLI_FIGURE_BYTES], life[CLI_FIGURE_BYTES];
    if (plan->links[RESOURCE_DRIVE].bytes > 0)
        report_traffic(out, plan);
    if (plan->drive_written_bytes == 0)
        return;
    fprintf(out, "wear         %s a day to the drives of %s; ",
            report_bytes(plan->host_written_bytes_per_day, day),
            plan->ranks_per_host < plan->world_size ? "each host" : "the host");
    if (plan->drive_life_days > 0)
        fprintf(out, "they last %.*f days (%s)\n", plan->drive_life_days < 10,
                plan->drive_life_days, report_bytes(plan->drive_endurance_bytes, life));
    else
        fputs("their endurance is not known\n", out);
}

void cli_print_plan(FILE *out, const struct setup_summary *plan)
{
    report_job(out, plan);
    report_memory(out, plan);
    report_peaks(out, plan);
    report_reasons(out, plan);
    if (plan->step_seconds > 0) {
        report_speed(out, plan);
        report_experts(out, plan);
        report_waits(out, plan);
        report_lanes(out, plan);
        report_links(out, plan);
    }
    report_commits(out, plan);
    report_wear(out, plan);
}

void cli_print_plan_brief(FILE *out, const struct setup_summary *plan)
{
    report_job(out, plan);
    report_memory(out, plan);
    if (plan->step_seconds > 0)
        report_speed(out, plan);
}
