/* Plans and runs as JSON: bytes, seconds, tokens; numbers only where they are known.
 * See cli_report.h. */
#include <errno.h>
#include <jansson.h>

#include "cli/cli.h"
#include "cli/cli_report.h"

static json_t *report_tiers(const uint64_t bytes[ARENA_COUNT])
{
    json_t *object = json_object();
    for (int arena = 0; arena < ARENA_COUNT; arena++)
        json_object_set_new(object, arena_kind_name((enum arena_kind)arena),
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

static json_t *report_places(const struct plan_summary *plan)
{
    uint64_t bytes[2];
    double params = plan->param_count ? (double)plan->param_count : 1;
    cli_place_bytes(plan, &bytes[0], &bytes[1]);
    return json_pack("{s:{s:I, s:f}, s:{s:I, s:f}, s:I}", "with_commits", "bytes",
                     (json_int_t)bytes[0], "bytes_per_parameter", (double)bytes[0] / params,
                     "without_commits", "bytes", (json_int_t)bytes[1], "bytes_per_parameter",
                     (double)bytes[1] / params, "second_places", (json_int_t)plan->second_bytes);
}

int cli_plan_json(FILE *out, const struct plan_summary *plan)
{
    json_t *homes = json_object(), *lanes = json_object(), *object = json_object();
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        json_object_set_new(homes, state_kind_name((enum state_kind)kind),
                            report_tiers(plan->home_bytes[kind]));
    for (int lane = 0; lane < LANE_COUNT; lane++)
        json_object_set_new(lanes, lane_kind_name((enum lane_kind)lane),
                            json_pack("{s:I, s:f}", "bytes", (json_int_t)plan->lane_bytes[lane],
                                      "busy_seconds", plan->lane_seconds[lane]));
    json_object_set_new(object, "model", json_string(plan->model_name));
    json_object_set_new(object, "parameters", json_integer((json_int_t)plan->param_count));
    json_object_set_new(object, "units", json_integer((json_int_t)plan->unit_count));
    json_object_set_new(object, "tokens_per_step", json_integer((json_int_t)plan->tokens_per_step));
    json_object_set_new(object, "update", json_string(plan->update));
    json_object_set_new(object, "world_size", json_integer(plan->world_size));
    json_object_set_new(object, "zero_stage", json_integer(plan->zero_stage));
    json_object_set_new(object, "sent_bytes", json_integer((json_int_t)plan->sent_bytes));
    json_object_set_new(object, "homes", homes);
    json_object_set_new(object, "budget_bytes", report_tiers(plan->budget_bytes));
    json_object_set_new(object, "peak_bytes", report_tiers(plan->peak_bytes));
    json_object_set_new(object, "nvme_bytes", report_places(plan));
    json_object_set_new(object, "lanes", lanes);
    if (plan->step_seconds > 0) {
        json_object_set_new(object, "step_seconds", json_real(plan->step_seconds));
        json_object_set_new(object, "bottleneck", json_string(plan->bottleneck));
    }
    return cli_print_json(out, object);
}

/* An object per rank, of the first few. */
static json_t *report_each_rank(const struct train_summary *summary)
{
    json_t *list = json_array();
    uint32_t count = cli_ranks_shown(summary);
    for (uint32_t rank = 0; rank < count; rank++) {
        const struct train_rank *each = &summary->ranks[rank];
        json_array_append_new(list, json_pack("{s:I, s:s, s:o, s:I, s:I, s:I}", "rank",
                                              (json_int_t)rank, "host", each->host, "arena_bytes",
                                              report_tiers(each->arena_bytes), "slab_file_bytes",
                                              (json_int_t)each->slab_file_bytes, "sent_bytes",
                                              (json_int_t)each->sent_bytes, "resident_bytes_max",
                                              (json_int_t)each->resident_bytes_max));
    }
    return list;
}

int cli_summary_json(FILE *out, const struct train_summary *summary)
{
    json_t *lanes = json_object(), *object = json_object();
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        const struct lane_numbers *numbers = &summary->lanes[lane];
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
    json_object_set_new(object, "peak_bytes", report_tiers(summary->peak_bytes));
    json_object_set_new(object, "resident_bytes_max",
                        json_integer((json_int_t)summary->resident_bytes_max));
    json_object_set_new(object, "world_size", json_integer(summary->world_size));
    json_object_set_new(object, "ranks", report_each_rank(summary));
    return cli_print_json(out, object);
}
