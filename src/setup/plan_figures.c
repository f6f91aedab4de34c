/* The table of a plan's figures, and the JSON that is made from it. See plan_figures.h. */
#include "setup/plan_figures.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "plan/plan.h"
#include "setup/setup_internal.h"

#define MEMBER_TYPE(member)                                                                        \
    _Generic(((struct setup_summary *)NULL)->member,                                               \
        uint64_t: FIGURE_COUNT,                                                                    \
        uint32_t: FIGURE_SMALL,                                                                    \
        double: FIGURE_REAL,                                                                       \
        bool: FIGURE_FLAG,                                                                         \
        char *: FIGURE_CHARS,                                                                      \
        const char *: FIGURE_WORD)
#define STEP(member) sizeof(((struct setup_summary *)NULL)->member)
#define FIGURE(path_, unit_, member)                                                               \
    .path = path_, .unit = unit_, .offset = offsetof(struct setup_summary, member),                \
    .type = MEMBER_TYPE(member)

/* One value; one that is null where it is 0; the first of a list whose items are as large as
 * `item`. */
#define ONE(path, unit, member)                                                                    \
    {                                                                                              \
        FIGURE(path, unit, member)                                                                 \
    }
#define KNOWN(path, unit, member)                                                                  \
    {                                                                                              \
        FIGURE(path, unit, member), .zero_is_unknown = true                                        \
    }
#define EACH(path, unit, member, item)                                                             \
    {                                                                                              \
        FIGURE(path, unit, member), .step_bytes = { STEP(item) }                                   \
    }

static const struct setup_figure figures[] = {
    ONE("model", "", model_name),
    ONE("parameters", "parameters", param_count),
    ONE("units", "units", unit_count),
    ONE("tokens_per_step", "tokens", tokens_per_step),
    ONE("micro_batch_size", "sequences", micro_batch),
    ONE("micro_batches", "micro-batches", micro_batch_count),
    ONE("seq_length", "tokens", seq_length),
    ONE("world_size", "ranks", world_size),
    ONE("ranks_per_host", "ranks", ranks_per_host),
    ONE("zero_stage", "", zero_stage),
    ONE("sent_bytes", "bytes", sent_bytes),
    ONE("sent_times", "ratio", sent_times),
    ONE("gathered_times", "ratio", gathered_times),
    ONE("reduced_times", "ratio", reduced_times),
    ONE("order", "", order),
    ONE("update", "", update),
    ONE("tile_elems", "elements", tile_elems),
    ONE("held_stages", "stages", held_stages),
    ONE("held_passes", "passes", held_passes),
    ONE("ops", "ops", op_count),
    ONE("experts.fetch", "", experts),
    ONE("experts.passes", "passes", expert_passes),
    ONE("experts.passes_hit", "passes", expert_passes_hit),
    KNOWN("experts.all_hit_step_seconds", "s", all_hit_seconds),
    ONE("experts.parallel_size", "ranks", expert_parallel_size),
    KNOWN("experts.zero_sent_bytes", "bytes", expert_zero_bytes),
    KNOWN("experts.rows_sent_bytes", "bytes", expert_rows_bytes),
    ONE("state_formats", "", state_formats),
    ONE("state_bytes_per_parameter", "bytes", state_param_bytes),
    ONE("machine.name", "", machine_name),
    ONE("machine.is_measured", "", machine_is_measured),
    ONE("machine.disturbed", "", machine_is_disturbed),
    ONE("machine.disturbed_by", "", machine_disturbed_by),
    ONE("machine.cannot_run", "", machine_cannot_run),

    {FIGURE("memory.TIER.homes.KIND", "bytes", home_bytes[0][0]),
     .step_bytes = {STEP(home_bytes[0][0]), STEP(home_bytes[0])}},
    ONE("memory.host.copies", "bytes", copy_bytes),
    ONE("memory.host.carried", "bytes", carried_bytes),
    ONE("memory.nvme.save_places", "bytes", save_bytes),
    ONE("memory.nvme.second_places", "bytes", second_bytes),
    EACH("memory.TIER.scratch", "bytes", scratch_bytes[0], scratch_bytes[0]),
    EACH("memory.TIER.alignment", "bytes", padding_bytes[0], padding_bytes[0]),
    EACH("memory.TIER.under_way", "bytes", moving_bytes[0], moving_bytes[0]),
    EACH("memory.TIER.at_peak", "", peak_what[0], peak_what[0]),
    EACH("peak_bytes.TIER", "bytes", peak_bytes[0], peak_bytes[0]),
    EACH("budget_bytes.TIER", "bytes", budget_bytes[0], budget_bytes[0]),
    EACH("host_peak_bytes.TIER", "bytes", host_peak_bytes[0], host_peak_bytes[0]),
    EACH("all_peak_bytes.TIER", "bytes", all_peak_bytes[0], all_peak_bytes[0]),
    ONE("nvme_bytes.with_commits.bytes", "bytes", nvme_with_commits_bytes),
    ONE("nvme_bytes.with_commits.bytes_per_parameter", "bytes", nvme_with_commits_per_parameter),
    ONE("nvme_bytes.without_commits.bytes", "bytes", nvme_without_commits_bytes),
    ONE("nvme_bytes.without_commits.bytes_per_parameter", "bytes",
        nvme_without_commits_per_parameter),

    KNOWN("step_seconds", "s", step_seconds),
    KNOWN("steps_per_hour", "steps/h", steps_per_hour),
    KNOWN("tokens_per_second", "tokens/s", tokens_per_second),
    ONE("bound_seconds", "s", bound_seconds),
    ONE("over_bound", "ratio", over_bound),
    KNOWN("schedule_bound_seconds", "s", schedule_bound_seconds),
    ONE("over_schedule_bound", "ratio", over_schedule_bound),
    ONE("computing_seconds", "s", computing_seconds),
    ONE("model_flops", "FLOP", model_flops),
    ONE("hardware_flops_per_rank", "FLOP", hardware_flops),
    ONE("tflops_per_rank", "TFLOPS", tflops_per_rank),
    ONE("hardware_tflops_per_rank", "TFLOPS", hardware_tflops_per_rank),
    KNOWN("peak_tflops_per_rank", "TFLOPS", peak_tflops_per_rank),
    KNOWN("mfu", "ratio", mfu),
    ONE("bottleneck", "", bottleneck),
    ONE("busiest_resource", "", busiest),
    ONE("busiest_seconds", "s", busiest_seconds),
    EACH("lanes.LANE.bytes", "bytes", lane_bytes[0], lane_bytes[0]),
    EACH("lanes.LANE.spared_bytes", "bytes", lane_spared_bytes[0], lane_spared_bytes[0]),
    EACH("lanes.LANE.busy_seconds", "s", lane_seconds[0], lane_seconds[0]),
    EACH("resources.RESOURCE.bytes", "bytes", links[0].bytes, links[0]),
    {FIGURE("resources.RESOURCE.bytes_per_second", "bytes/s", links[0].bytes_per_second),
     .step_bytes = {STEP(links[0])}, .zero_is_unknown = true},
    EACH("resources.RESOURCE.seconds", "s", links[0].seconds, links[0]),
    EACH("resources.RESOURCE.growing_seconds", "s", links[0].growing_seconds, links[0]),
    EACH("resources.RESOURCE.other_bytes", "bytes", links[0].other_bytes, links[0]),
    EACH("resources.RESOURCE.is_computing", "", links[0].is_computing, links[0]),
    EACH("resources.RESOURCE.hidden_from_tokens", "tokens", links[0].hidden_tokens, links[0]),

    ONE("ceilings.read", "bytes/s", ceilings.read),
    ONE("ceilings.write", "bytes/s", ceilings.write),
    ONE("ceilings.both_ways", "ratio", ceilings.both_ways),
    ONE("ceilings.drive_kept", "ratio", ceilings.drive_kept),
    ONE("ceilings.h2d", "bytes/s", ceilings.h2d),
    ONE("ceilings.d2h", "bytes/s", ceilings.d2h),
    ONE("ceilings.comm", "bytes/s", ceilings.comm),
    ONE("ceilings.dram", "bytes/s", ceilings.dram),
    ONE("ceilings.flops", "FLOP/s", ceilings.flops),

    ONE("commit.every_steps", "steps", commit_every),
    ONE("commit.bytes", "bytes", commit_bytes),
    ONE("commit.seconds", "s", commit_seconds),
    EACH("drives.read_bytes.KIND", "bytes", read_bytes[0], read_bytes[0]),
    EACH("drives.written_bytes.KIND", "bytes", written_bytes[0], written_bytes[0]),
    ONE("drives.written_bytes.commits", "bytes", commit_share_bytes),
    ONE("drives.written_bytes_per_step", "bytes", drive_written_bytes),
    ONE("drives.written_bytes_per_parameter", "bytes", drive_written_per_parameter),
    ONE("drives.host_written_bytes_per_day", "bytes/day", host_written_bytes_per_day),
    KNOWN("drives.host_capacity_bytes", "bytes", drive_capacity_bytes),
    KNOWN("drives.host_endurance_bytes", "bytes", drive_endurance_bytes),
    KNOWN("drives.life_days", "days", drive_life_days),
};

const struct setup_figure *setup_figures(uint32_t *count)
{
    *count = sizeof figures / sizeof figures[0];
    return figures;
}

static const char *tier_key(int i)
{
    return tier_name((enum tier)i);
}

static const char *kind_key(int i)
{
    return state_kind_key((enum state_kind)i);
}

static const char *lane_key(int i)
{
    return lane_kind_name((enum lane_kind)i);
}

static const char *resource_key(int i)
{
    return plan_resource_name((enum plan_resource)i);
}

/* The words of a path that stand for several names. */
static const struct axis {
    const char *word;
    int count;
    const char *(*key)(int i);
} axes[] = {
    {"TIER", TIER_COUNT, tier_key},
    {"KIND", STATE_KIND_COUNT, kind_key},
    {"LANE", LANE_COUNT, lane_key},
    {"RESOURCE", RESOURCE_COUNT, resource_key},
};

static const struct axis *axis_of(const char *name)
{
    for (size_t i = 0; i < sizeof axes / sizeof axes[0]; i++)
        if (strcmp(axes[i].word, name) == 0)
            return &axes[i];
    return NULL;
}

static json_t *text_value(const char *text)
{
    json_t *value = json_string(text);
    return value ? value : json_null(); /* a name that was cut within a letter is no UTF-8 */
}

static json_t *real_value(double value, bool zero_is_unknown)
{
    bool is_known = isfinite(value) && (fabs(value) > 0 || !zero_is_unknown);
    return is_known ? json_real(value) : json_null();
}

static json_t *count_value(uint64_t value, bool zero_is_unknown)
{
    return value == 0 && zero_is_unknown ? json_null() : json_integer((json_int_t)value);
}

static json_t *value_at(const struct setup_figure *row, const void *at)
{
    switch (row->type) {
    case FIGURE_COUNT:
        return count_value(*(const uint64_t *)at, row->zero_is_unknown);
    case FIGURE_SMALL:
        return count_value(*(const uint32_t *)at, row->zero_is_unknown);
    case FIGURE_REAL:
        return real_value(*(const double *)at, row->zero_is_unknown);
    case FIGURE_FLAG:
        return json_boolean(*(const bool *)at);
    case FIGURE_CHARS:
        return text_value(at);
    case FIGURE_WORD:
        return text_value(*(const char *const *)at);
    }
    return NULL;
}

/* Puts what is left of the row's path into the object: a value, or an object with the rest. */
static void put_figure(json_t *object, const struct setup_figure *row, const char *path,
                       const char *at, const size_t *step_bytes)
{
    char name[64];
    size_t length = strcspn(path, ".");
    snprintf(name, sizeof name, "%.*s", (int)length, path);
    const struct axis *axis = axis_of(name);
    for (int i = 0; i < (axis ? axis->count : 1); i++) {
        const char *key = axis ? axis->key(i) : name;
        const char *item = axis ? at + (size_t)i * *step_bytes : at;
        if (path[length] == '\0') {
            json_object_set_new(object, key, value_at(row, item));
            continue;
        }
        json_t *inner = json_object_get(object, key);
        if (!inner) {
            inner = json_object();
            json_object_set_new(object, key, inner);
        }
        put_figure(inner, row, path + length + 1, item, axis ? step_bytes + 1 : step_bytes);
    }
}

json_t *setup_plan_object(const struct setup_summary *plan)
{
    json_t *object = json_object(), *reasons = json_array();
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++)
        put_figure(object, &figures[i], figures[i].path, (const char *)plan + figures[i].offset,
                   figures[i].step_bytes);
    for (uint32_t i = 0; i < plan->reason_count; i++)
        json_array_append_new(reasons, text_value(plan->reasons[i]));
    json_object_set_new(object, "reasons", reasons);
    json_object_set_new(object, "waits", setupi_waits_json(plan));
    return object;
}
