/* Prints the results of a run, as text and as JSON (bytes, seconds, tokens). See cli_report.h. */
#include "cli/cli_report.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "base/size.h"
#include "cli/cli.h"
#include "setup/summary.h"
#include "train/train.h"

/* ---- text ---- */

/* How many ranks have a line: all of them, up to 8. */
static uint32_t ranks_shown(const struct train_summary *summary)
{
    enum { SHOWN = 8 }; /* at most TRAIN_RANKS_MAX */
    return summary->world_size < SHOWN ? summary->world_size : SHOWN;
}

/* Prints one row per rank, for the first few ranks. */
static void report_each_rank(FILE *out, const struct train_summary *summary)
{
    uint32_t count = ranks_shown(summary);
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

void cli_print_peaks(FILE *out, const uint64_t peak_bytes[TIER_COUNT],
                     const uint64_t budget_bytes[TIER_COUNT], uint64_t resident_bytes)
{
    char text[SIZE_TEXT_BYTES], budget[SIZE_TEXT_BYTES];
    fprintf(out, "\n%-12s %14s %14s\n", "tier", "peak", "budget");
    for (int arena = 0; arena < TIER_COUNT; arena++)
        fprintf(out, "%-12s %14s %14s\n", tier_name((enum tier)arena),
                size_format(peak_bytes[arena], text),
                budget_bytes[arena] ? size_format(budget_bytes[arena], budget) : "-");
    fprintf(out, "%-12s %14s\n", "process", size_format(resident_bytes, text));
}

void cli_print_summary(FILE *out, const struct setup_summary *plan,
                       const struct train_summary *summary)
{
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

    cli_print_peaks(out, summary->peak_bytes, plan->budget_bytes, summary->resident_bytes_max);
    report_each_rank(out, summary);
}

/* ---- JSON ---- */

json_t *cli_tiers_object(const uint64_t bytes[TIER_COUNT])
{
    json_t *object = json_object();
    for (int arena = 0; arena < TIER_COUNT; arena++)
        json_object_set_new(object, tier_name((enum tier)arena),
                            json_integer((json_int_t)bytes[arena]));
    return object;
}

int cli_print_json(FILE *out, json_t *object)
{
    int failed = object == NULL || json_dumpf(object, out, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    json_decref(object);
    if (failed)
        return err_set(-ENOMEM, "cannot print the result as JSON");
    fputc('\n', out);
    return 0;
}

/* A list with an object for each of the first few ranks. */
static json_t *each_rank_json(const struct train_summary *summary)
{
    json_t *list = json_array();
    uint32_t count = ranks_shown(summary);
    for (uint32_t rank = 0; rank < count; rank++) {
        const struct train_rank *each = &summary->ranks[rank];
        json_array_append_new(
            list, json_pack("{s:I, s:s, s:o, s:I, s:I, s:I}", "rank", (json_int_t)rank, "host",
                            each->host, "arena_bytes", cli_tiers_object(each->arena_bytes),
                            "slab_file_bytes", (json_int_t)each->slab_file_bytes, "sent_bytes",
                            (json_int_t)each->sent_bytes, "resident_bytes_max",
                            (json_int_t)each->resident_bytes_max));
    }
    return list;
}

int cli_summary_json(FILE *out, const struct train_summary *summary)
{
    json_t *lanes = json_object(), *object = json_object();
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        const metrics_lane *numbers = &summary->lanes[lane];
        json_object_set_new(lanes, lane_kind_name((enum lane_kind)lane),
                            json_pack("{s:I, s:f, s:f}", "bytes", (json_int_t)numbers->bytes,
                                      "busy_seconds", numbers->busy_seconds, "stall_seconds",
                                      numbers->stall_seconds));
    }
    json_object_set_new(object, "step", json_integer((json_int_t)summary->step));
    json_object_set_new(object, "resumed", json_boolean(summary->was_resumed));
    json_object_set_new(object, "steps", json_integer((json_int_t)summary->steps_done));
    json_object_set_new(object, "tokens", json_integer((json_int_t)summary->tokens));
    json_object_set_new(object, "seconds", json_real(summary->seconds));
    if (summary->steps_done > 0)
        json_object_set_new(object, "train_loss", json_real(summary->train_loss));
    if (summary->eval_given)
        json_object_set_new(object, "heldout_loss", json_real(summary->eval_loss));
    json_object_set_new(object, "lanes", lanes);
    json_object_set_new(object, "peak_bytes", cli_tiers_object(summary->peak_bytes));
    json_object_set_new(object, "resident_bytes_max",
                        json_integer((json_int_t)summary->resident_bytes_max));
    json_object_set_new(object, "world_size", json_integer(summary->world_size));
    json_object_set_new(object, "ranks", each_rank_json(summary));
    return cli_print_json(out, object);
}
