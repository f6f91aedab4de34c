/* Plans and runs as JSON: bytes, seconds, tokens; numbers only where they are known.
 * See cli_report.h. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdbool.h>

#include "cli/cli.h"
#include "cli/cli_report.h"
#include "setup/summary.h"
#include "train/train.h"

static json_t *report_tiers(const uint64_t bytes[TIER_COUNT])
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

static json_t *report_places(const struct setup_summary *plan)
{
    uint64_t bytes[2];
    double params = plan->param_count ? (double)plan->param_count : 1;
    cli_place_bytes(plan, &bytes[0], &bytes[1]);
    return json_pack("{s:{s:I, s:f}, s:{s:I, s:f}, s:I}", "with_commits", "bytes",
                     (json_int_t)bytes[0], "bytes_per_parameter", (double)bytes[0] / params,
                     "without_commits", "bytes", (json_int_t)bytes[1], "bytes_per_parameter",
                     (double)bytes[1] / params, "second_places", (json_int_t)plan->second_bytes);
}

/* A number, or null where it is none (unknown, infinite). */
static json_t *report_number(double value, bool is_known)
{
    return is_known && isfinite(value) ? json_real(value) : json_null();
}

static json_t *report_kinds(const uint64_t bytes[STATE_KIND_COUNT])
{
    json_t *object = json_object();
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        json_object_set_new(object, state_kind_name((enum state_kind)kind),
                            json_integer((json_int_t)bytes[kind]));
    return object;
}

/* By tier: what adds up to its peak. */
static json_t *report_memory(const struct setup_summary *plan)
{
    json_t *object = json_object();
    for (int arena = 0; arena < TIER_COUNT; arena++) {
        uint64_t homes[STATE_KIND_COUNT];
        bool is_nvme = arena == TIER_NVME;
        for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
            homes[kind] = plan->home_bytes[kind][arena];
        json_object_set_new(
            object, tier_name((enum tier)arena),
            json_pack("{s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s}", "homes",
                      report_kinds(homes), "copies",
                      (json_int_t)(arena == TIER_HOST ? plan->copy_bytes : 0), "save_places",
                      (json_int_t)(is_nvme ? plan->save_bytes : 0), "second_places",
                      (json_int_t)(is_nvme ? plan->second_bytes : 0), "scratch",
                      (json_int_t)plan->scratch_bytes[arena], "alignment",
                      (json_int_t)plan->padding_bytes[arena], "under_way",
                      (json_int_t)plan->moving_bytes[arena], "peak",
                      (json_int_t)plan->peak_bytes[arena], "budget",
                      (json_int_t)plan->budget_bytes[arena], "at_peak", plan->peak_what[arena]));
    }
    return object;
}

static json_t *report_resources(const struct setup_summary *plan)
{
    json_t *object = json_object();
    for (uint32_t i = 0; i < plan->link_count; i++) {
        const struct setup_link *link = &plan->links[i];
        json_object_set_new(
            object, link->name,
            json_pack("{s:f, s:o, s:f, s:f, s:b, s:o}", "bytes", link->bytes, "bytes_per_second",
                      report_number(link->bytes_per_second, link->bytes_per_second > 0), "seconds",
                      link->seconds, "growing_seconds", link->growing_seconds, "is_computing",
                      link->is_computing, "hidden_from_tokens",
                      report_number(link->hidden_tokens, !link->is_computing)));
    }
    return object;
}

/* The step's length and what it comes from. */
static void report_speed(json_t *object, const struct setup_summary *plan,
                         const struct cli_plan_figures *figures)
{
    bool has_peak = plan->peak_flops > 0, has_schedule = plan->schedule_bound_seconds > 0;
    const struct {
        const char *key;
        double value;
        bool is_known;
    } numbers[] = {
        {"step_seconds", plan->step_seconds, true},
        {"steps_per_hour", figures->steps_per_hour, true},
        {"tokens_per_second", figures->tokens_per_second, true},
        {"bound_seconds", plan->bound_seconds, true},
        {"over_bound", figures->over_bound, plan->bound_seconds > 0},
        {"schedule_bound_seconds", plan->schedule_bound_seconds, has_schedule},
        {"over_schedule_bound", figures->over_schedule_bound, has_schedule},
        {"computing_seconds", plan->computing_seconds, true},
        {"model_flops", plan->model_flops, true},
        {"hardware_flops_per_rank", plan->hardware_flops, true},
        {"tflops_per_rank", figures->rank_flops_per_second / 1e12, true},
        {"hardware_tflops_per_rank", figures->hardware_flops_per_second / 1e12, true},
        {"peak_tflops_per_rank", plan->peak_flops / 1e12, has_peak},
        {"mfu", figures->mfu, has_peak},
        {"busiest_seconds", plan->busiest_seconds, true},
    };
    if (plan->step_seconds <= 0)
        return;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        json_object_set_new(object, numbers[i].key,
                            report_number(numbers[i].value, numbers[i].is_known));
    json_object_set_new(object, "bottleneck", json_string(plan->bottleneck));
    json_object_set_new(object, "busiest_resource", json_string(plan->busiest));
}

static json_t *report_drives(const struct setup_summary *plan,
                             const struct cli_plan_figures *figures)
{
    json_t *written = report_kinds(plan->written_bytes);
    json_object_set_new(written, "commits", json_integer((json_int_t)plan->commit_share_bytes));
    return json_pack(
        "{s:o, s:o, s:I, s:f, s:f, s:o, s:o, s:o}", "read_bytes", report_kinds(plan->read_bytes),
        "written_bytes", written, "written_bytes_per_step", (json_int_t)plan->drive_written_bytes,
        "written_bytes_per_parameter", figures->written_per_parameter, "host_written_bytes_per_day",
        figures->host_bytes_a_day, "host_capacity_bytes",
        report_number((double)plan->drive_capacity_bytes, plan->drive_capacity_bytes > 0),
        "host_endurance_bytes",
        report_number(plan->drive_endurance_bytes, plan->drive_endurance_bytes > 0), "life_days",
        report_number(figures->drive_days, figures->drive_days > 0));
}

static void report_job(json_t *object, const struct setup_summary *plan)
{
    const struct {
        const char *key;
        uint64_t value;
    } counts[] = {
        {"parameters", plan->param_count},
        {"units", plan->unit_count},
        {"tokens_per_step", plan->tokens_per_step},
        {"micro_batch_size", plan->micro_batch},
        {"micro_batches", plan->micro_batch_count},
        {"seq_length", plan->seq_length},
        {"world_size", plan->world_size},
        {"ranks_per_host", plan->ranks_per_host},
        {"zero_stage", plan->zero_stage},
        {"sent_bytes", plan->sent_bytes},
        {"tile_elems", plan->tile_elems},
        {"held_stages", plan->held_stages},
        {"ops", plan->op_count},
    };
    json_object_set_new(object, "model", json_string(plan->model_name));
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        json_object_set_new(object, counts[i].key, json_integer((json_int_t)counts[i].value));
    json_object_set_new(object, "state_formats", json_string(plan->state_formats));
    json_object_set_new(object, "state_bytes_per_parameter", json_real(plan->state_param_bytes));
    json_object_set_new(object, "order", json_string(plan->order));
    json_object_set_new(object, "update", json_string(plan->update));
    json_object_set_new(object, "machine",
                        json_pack("{s:s, s:b}", "name", plan->machine_name, "is_measured",
                                  plan->machine_is_measured));
}

/* Peaks of so many ranks together. */
static json_t *report_peaks(const struct setup_summary *plan, uint64_t ranks)
{
    uint64_t bytes[TIER_COUNT];
    for (int arena = 0; arena < TIER_COUNT; arena++)
        bytes[arena] = plan->peak_bytes[arena] * ranks;
    return report_tiers(bytes);
}

json_t *cli_plan_object(const struct setup_summary *plan)
{
    struct cli_plan_figures figures = cli_plan_figures_of(plan);
    json_t *homes = json_object(), *lanes = json_object(), *reasons = json_array();
    json_t *object = json_object();
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        json_object_set_new(homes, state_kind_name((enum state_kind)kind),
                            report_tiers(plan->home_bytes[kind]));
    for (int lane = 0; lane < LANE_COUNT; lane++)
        json_object_set_new(lanes, lane_kind_name((enum lane_kind)lane),
                            json_pack("{s:I, s:f}", "bytes", (json_int_t)plan->lane_bytes[lane],
                                      "busy_seconds", plan->lane_seconds[lane]));
    for (uint32_t i = 0; i < plan->reason_count; i++)
        json_array_append_new(reasons, json_string(plan->reasons[i]));
    report_job(object, plan);
    json_object_set_new(object, "homes", homes);
    json_object_set_new(object, "memory", report_memory(plan));
    json_object_set_new(object, "budget_bytes", report_tiers(plan->budget_bytes));
    json_object_set_new(object, "peak_bytes", report_tiers(plan->peak_bytes));
    json_object_set_new(object, "host_peak_bytes", report_peaks(plan, plan->ranks_per_host));
    json_object_set_new(object, "all_peak_bytes", report_peaks(plan, plan->world_size));
    json_object_set_new(object, "nvme_bytes", report_places(plan));
    json_object_set_new(object, "reasons", reasons);
    json_object_set_new(object, "lanes", lanes);
    json_object_set_new(object, "resources", report_resources(plan));
    report_speed(object, plan, &figures);
    json_object_set_new(object, "commit",
                        json_pack("{s:I, s:I, s:f}", "every_steps", (json_int_t)plan->commit_every,
                                  "bytes", (json_int_t)plan->commit_bytes, "seconds",
                                  plan->commit_seconds));
    json_object_set_new(object, "drives", report_drives(plan, &figures));
    return object;
}

int cli_plan_json(FILE *out, const struct setup_summary *plan)
{
    return cli_print_json(out, cli_plan_object(plan));
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
    json_object_set_new(object, "peak_bytes", report_tiers(summary->peak_bytes));
    json_object_set_new(object, "resident_bytes_max",
                        json_integer((json_int_t)summary->resident_bytes_max));
    json_object_set_new(object, "world_size", json_integer(summary->world_size));
    json_object_set_new(object, "ranks", report_each_rank(summary));
    return cli_print_json(out, object);
}
