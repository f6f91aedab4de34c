/* Runs as JSON: bytes, seconds, tokens. See cli_report.h. */
#include <errno.h>
#include <jansson.h>

#include "cli/cli.h"
#include "cli/cli_report.h"
#include "train/train.h"

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
static json_t *report_each_rank(const struct train_summary *summary)
{
    json_t *list = json_array();
    uint32_t count = cli_ranks_shown(summary);
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
    json_object_set_new(object, "ranks", report_each_rank(summary));
    return cli_print_json(out, object);
}
