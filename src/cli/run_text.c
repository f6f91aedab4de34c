/* Prints the results of runs for people. See cli_report.h. */
#include "cli/cli_report.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "base/size.h"
#include "cli/cli.h"
#include "setup/summary.h"
#include "train/train.h"

uint32_t cli_ranks_shown(const struct train_summary *summary)
{
    enum { HELD = sizeof summary->ranks / sizeof summary->ranks[0] };
    return summary->world_size < HELD ? summary->world_size : HELD;
}

/* Prints one row per rank, for the first few ranks. */
static void report_each_rank(FILE *out, const struct train_summary *summary)
{
    uint32_t count = cli_ranks_shown(summary);
    if (summary->world_size <= 1)
        return;
    fprintf(out, "\n%-5s %-16s", "rank", "host");
    for (int arena = 0; arena < TIER_COUNT; arena++)
        fprintf(out, " %12s", tier_name((enum tier)arena));
    fprintf(out, " %12s %12s %12s\n", "slab files", "sent a step", "resident");
    for (uint32_t rank = 0; rank < count; rank++) {
        const struct train_rank *each = &summary->ranks[rank];
        uint64_t bytes[TIER_COUNT + 3];
        memcpy(bytes, each->arena_bytes, sizeof each->arena_bytes);
        bytes[TIER_COUNT] = each->slab_file_bytes;
        bytes[TIER_COUNT + 1] = each->sent_bytes;
        bytes[TIER_COUNT + 2] = each->resident_bytes_max;
        fprintf(out, "%-5" PRIu32 " %-16.16s", rank, each->host);
        for (int i = 0; i < TIER_COUNT + 3; i++) {
            char text[SIZE_TEXT_BYTES];
            fprintf(out, " %12s", bytes[i] ? size_format(bytes[i], text) : "-");
        }
        fputc('\n', out);
    }
    if (count < summary->world_size)
        fprintf(out, "and %" PRIu32 " more ranks\n", summary->world_size - count);
}

void cli_print_summary(FILE *out, const struct setup_summary *plan,
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
        const metrics_lane *numbers = &summary->lanes[lane];
        if (numbers->bytes == 0 && numbers->busy_seconds <= 0)
            continue;
        fprintf(out, "%-12s %14.3f %14.2f %14.2f\n", lane_kind_name((enum lane_kind)lane),
                (double)numbers->bytes / 1e9, numbers->busy_seconds, numbers->stall_seconds);
    }

    fprintf(out, "\n%-12s %14s %14s\n", "tier", "peak", "budget");
    for (int arena = 0; arena < TIER_COUNT; arena++)
        fprintf(out, "%-12s %14s %14s\n", tier_name((enum tier)arena),
                size_format(summary->peak_bytes[arena], text),
                plan->budget_bytes[arena] ? size_format(plan->budget_bytes[arena], budget) : "-");
    fprintf(out, "%-12s %14s\n", "process", size_format(summary->resident_bytes_max, text));
    report_each_rank(out, summary);
}
