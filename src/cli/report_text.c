/* What plans and runs say, for people. See cli_report.h. */
#include "cli/cli_report.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "base/size.h"
#include "cli/cli.h"

/* Writes a count with a unit: "7.52M", "1.56B". */
static const char *report_count(uint64_t count, char text[SIZE_TEXT_BYTES])
{
    double value = (double)count;
    if (value >= 1e9)
        snprintf(text, SIZE_TEXT_BYTES, "%.2fB", value / 1e9);
    else if (value >= 1e6)
        snprintf(text, SIZE_TEXT_BYTES, "%.2fM", value / 1e6);
    else
        snprintf(text, SIZE_TEXT_BYTES, "%" PRIu64, count);
    return text;
}

/* What of several ranks holds for all that follows. */
static void report_ranks(FILE *out, const struct plan_summary *plan)
{
    char text[SIZE_TEXT_BYTES];
    if (plan->world_size <= 1)
        return;
    fprintf(out,
            "ranks        %" PRIu32 ", ZeRO stage %" PRIu32
            "; each sends %s a step, and what follows is of "
            "each\n",
            plan->world_size, plan->zero_stage, size_format(plan->sent_bytes, text));
}

static void report_homes(FILE *out, const struct plan_summary *plan)
{
    char text[SIZE_TEXT_BYTES];
    fprintf(out, "\n%-17s %14s %14s %14s\n", "state", "device", "host", "nvme");
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++) {
        fprintf(out, "%-17s", state_kind_name((enum state_kind)kind));
        for (int arena = 0; arena < ARENA_COUNT; arena++) {
            uint64_t bytes = plan->home_bytes[kind][arena];
            fprintf(out, " %14s", bytes ? size_format(bytes, text) : "-");
        }
        fputc('\n', out);
    }
    static const char *const rows[] = {"peak", "budget"};
    for (int row = 0; row < 2; row++) {
        const uint64_t *values = row == 0 ? plan->peak_bytes : plan->budget_bytes;
        fprintf(out, "%-17s", rows[row]);
        for (int arena = 0; arena < ARENA_COUNT; arena++)
            fprintf(out, " %14s", values[arena] ? size_format(values[arena], text) : "-");
        fputc('\n', out);
    }
}

static void report_lanes(FILE *out, const struct plan_summary *plan)
{
    fprintf(out, "\n%-12s %14s %14s\n", "lane", "GB a step", "busy seconds");
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        if (plan->lane_bytes[lane] == 0 && plan->lane_seconds[lane] <= 0)
            continue;
        fprintf(out, "%-12s %14.3f %14.3f\n", lane_kind_name((enum lane_kind)lane),
                (double)plan->lane_bytes[lane] / 1e9, plan->lane_seconds[lane]);
    }
}

uint32_t cli_ranks_shown(const struct train_summary *summary)
{
    enum { HELD = sizeof summary->ranks / sizeof summary->ranks[0] };
    return summary->world_size < HELD ? summary->world_size : HELD;
}

void cli_place_bytes(const struct plan_summary *plan, uint64_t *with_commits,
                     uint64_t *without_commits)
{
    uint64_t planned = plan->peak_bytes[ARENA_NVME], state = 0;
    if (plan->second_bytes > 0) {
        *with_commits = planned;
        *without_commits = planned - plan->second_bytes;
        return;
    }
    for (int arena = 0; arena < ARENA_COUNT; arena++)
        state += plan->home_bytes[STATE_OPTIMIZER][arena];
    *with_commits = planned + state; /* each tile of it has its first place there already */
    *without_commits = planned;
}

/* What the job takes of nvme, and below it what it would take in the other way. */
static void report_places(FILE *out, const struct plan_summary *plan)
{
    static const char *const remarks[2][2] = {
        {": one place for the optimizer's state (run.commit_every 0)",
         " with commits: a killed run could be resumed"},
        {": two places for the optimizer's state (run.commit_every)",
         " with run.commit_every=0: a killed run could not be resumed"},
    };
    uint64_t with_commits, without_commits;
    char text[SIZE_TEXT_BYTES], each[64] = " on each rank";
    double params = plan->param_count ? (double)plan->param_count : 1;
    cli_place_bytes(plan, &with_commits, &without_commits);
    bool commits = plan->second_bytes > 0;
    uint64_t bytes[] = {commits ? with_commits : without_commits,
                        commits ? without_commits : with_commits};
    fputc('\n', out);
    for (int i = 0; i < 2; i++) {
        if (plan->world_size < 2)
            snprintf(each, sizeof each, ", %.1f bytes a parameter", (double)bytes[i] / params);
        fprintf(out, "%-12s %s%s%s\n", i ? "" : "nvme", size_format(bytes[i], text), each,
                remarks[commits][i]);
    }
}

void cli_print_plan(FILE *out, const struct plan_summary *plan)
{
    char params[SIZE_TEXT_BYTES];
    fprintf(out, "model        %s, %s parameters in %" PRIu64 " units\n", plan->model_name,
            report_count(plan->param_count, params), plan->unit_count);
    fprintf(out, "a step       %" PRIu64 " tokens, update %s\n", plan->tokens_per_step,
            plan->update);
    report_ranks(out, plan);
    report_homes(out, plan);
    report_places(out, plan);
    report_lanes(out, plan);
    if (plan->step_seconds > 0)
        fprintf(out, "\npredicted    %.3f s a step, %.0f tokens/s; bound by %s\n",
                plan->step_seconds, (double)plan->tokens_per_step / plan->step_seconds,
                plan->bottleneck);
}

/* One row per rank, of the first few. */
static void report_each_rank(FILE *out, const struct train_summary *summary)
{
    uint32_t count = cli_ranks_shown(summary);
    if (summary->world_size <= 1)
        return;
    fprintf(out, "\n%-5s %-16s", "rank", "host");
    for (int arena = 0; arena < ARENA_COUNT; arena++)
        fprintf(out, " %12s", arena_kind_name((enum arena_kind)arena));
    fprintf(out, " %12s %12s %12s\n", "slab files", "sent a step", "resident");
    for (uint32_t rank = 0; rank < count; rank++) {
        const struct train_rank *each = &summary->ranks[rank];
        uint64_t bytes[ARENA_COUNT + 3];
        memcpy(bytes, each->arena_bytes, sizeof each->arena_bytes);
        bytes[ARENA_COUNT] = each->slab_file_bytes;
        bytes[ARENA_COUNT + 1] = each->sent_bytes;
        bytes[ARENA_COUNT + 2] = each->resident_bytes_max;
        fprintf(out, "%-5" PRIu32 " %-16.16s", rank, each->host);
        for (int i = 0; i < ARENA_COUNT + 3; i++) {
            char text[SIZE_TEXT_BYTES];
            fprintf(out, " %12s", bytes[i] ? size_format(bytes[i], text) : "-");
        }
        fputc('\n', out);
    }
    if (count < summary->world_size)
        fprintf(out, "and %" PRIu32 " more ranks\n", summary->world_size - count);
}

void cli_print_summary(FILE *out, const struct plan_summary *plan,
                       const struct train_summary *summary)
{
    char text[SIZE_TEXT_BYTES], budget[SIZE_TEXT_BYTES];
    char duration[CLI_DURATION_BYTES];
    fprintf(out, "\nsteps        %" PRIu64 ", %" PRIu64 " tokens in %s", summary->steps_done,
            summary->tokens, cli_duration(summary->seconds, duration));
    if (summary->seconds > 0)
        fprintf(out, " (%.0f tokens/s)", (double)summary->tokens / summary->seconds);
    fputc('\n', out);
    if (summary->steps_done > 0)
        fprintf(out, "train loss   %.4f nats per token\n", summary->train_loss);
    if (summary->eval_given)
        fprintf(out, "held-out loss %.4f nats per token\n", summary->eval_loss);

    fprintf(out, "\n%-12s %14s %14s %14s\n", "lane", "GB moved", "busy seconds", "stall seconds");
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        const struct lane_numbers *numbers = &summary->lanes[lane];
        if (numbers->bytes == 0 && numbers->busy_seconds <= 0)
            continue;
        fprintf(out, "%-12s %14.3f %14.2f %14.2f\n", lane_kind_name((enum lane_kind)lane),
                (double)numbers->bytes / 1e9, numbers->busy_seconds, numbers->stall_seconds);
    }

    fprintf(out, "\n%-12s %14s %14s\n", "tier", "peak", "budget");
    for (int arena = 0; arena < ARENA_COUNT; arena++)
        fprintf(out, "%-12s %14s %14s\n", arena_kind_name((enum arena_kind)arena),
                size_format(summary->peak_bytes[arena], text),
                plan->budget_bytes[arena] ? size_format(plan->budget_bytes[arena], budget) : "-");
    fprintf(out, "%-12s %14s\n", "process", size_format(summary->resident_bytes_max, text));
    report_each_rank(out, summary);
}
