/* plan.json: the plan from before the first step, for `report`, tools and a later resume. It is the
 * object of plan_figures.h, with what only a run has:
 *
 *   device, steps, train_tokens
 *   placement          the tier of each state kind, by ranges of units
 *   unit_list          for each unit its name, parameters, and tier and bytes at rest by kind
 *   ceilings           the plan's rates, in bytes or flops per second
 *   memory_over_step   bytes in use in each tier over the predicted step (memory_curves.h)
 *   timeline           the predicted ops of each lane
 *
 * Each figure has a line of its own; a list of numbers stands on one line. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "setup/memory_curves.h"
#include "setup/plan_figures.h"
#include "setup/setup_internal.h"

static json_t *count(uint64_t value)
{
    return json_integer((json_int_t)value);
}

static json_t *microseconds(uint64_t ns)
{
    return json_real((double)ns * 1e-3);
}

static json_t *tier_text(const struct setup *setup, int kind, uint32_t unit)
{
    return json_string(tier_name((enum tier)setup->homes[kind][unit]));
}

/* One entry for neighbouring units with equal homes: {"units": "0-11", "tier": "nvme"}. */
static json_t *homes_of(const struct setup *setup, int kind)
{
    json_t *list = json_array();
    uint32_t unit_count = setup->net->unit_count;
    for (uint32_t first = 0, last; first < unit_count; first = last + 1) {
        char range[32];
        last = first;
        while (last + 1 < unit_count && setup->homes[kind][last + 1] == setup->homes[kind][first])
            last++;
        snprintf(range, sizeof range, "%" PRIu32 "-%" PRIu32, first, last);
        json_array_append_new(
            list, json_pack("{s:s, s:o}", "units", range, "tier", tier_text(setup, kind, first)));
    }
    return list;
}

static json_t *placement_of(const struct setup *setup)
{
    json_t *out = json_object();
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        json_object_set_new(out, state_kind_key((enum state_kind)kind), homes_of(setup, kind));
    return out;
}

/* Rates of one rank. A copy to the CPU's device arena reads and writes memory. */
static json_t *ceilings_of(const plan_machine *machine)
{
    double copy = machine->dram_bytes_per_second / 2;
    const struct {
        const char *name;
        double rate;
    } rows[] = {
        {"read", machine->drive_read_bytes_per_second},
        {"write", machine->drive_write_bytes_per_second},
        {"h2d", machine->device_is_cpu ? copy : machine->h2d_bytes_per_second},
        {"d2h", machine->device_is_cpu ? copy : machine->d2h_bytes_per_second},
        {"comm", machine->comm_bytes_per_second},
        {"dram", machine->dram_bytes_per_second},
        {"flops", machine->device_flops_per_second},
    };
    json_t *out = json_object();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        json_object_set_new(out, rows[i].name,
                            isfinite(rows[i].rate) ? json_real(rows[i].rate) : json_null());
    return out;
}

/* bytes[unit][kind] at rest on this rank, in the tier that is the kind's home. */
static void sum_homes(const struct setup *setup, uint64_t (*bytes)[STATE_KIND_COUNT])
{
    const program *steady = &setup->set.programs[PROGRAM_STEADY];
    for (uint64_t i = 0; i < steady->home_count; i++) {
        const buffer *home = &steady->buffers[i];
        if (home->state_kind < STATE_KIND_COUNT && home->unit < setup->net->unit_count &&
            home->arena == setup->homes[home->state_kind][home->unit])
            bytes[home->unit][home->state_kind] += home->size_bytes;
    }
}

static json_t *units_of(const struct setup *setup)
{
    uint32_t unit_count = setup->net->unit_count;
    uint64_t(*bytes)[STATE_KIND_COUNT] = mem_alloc(unit_count, sizeof *bytes, "plan.json");
    if (!bytes)
        return NULL;
    json_t *list = json_array();
    sum_homes(setup, bytes);
    for (uint32_t u = 0; u < unit_count; u++) {
        const model_unit *unit = &setup->net->units[u];
        json_t *tiers = json_array(), *sizes = json_array();
        for (int kind = 0; kind < STATE_KIND_COUNT; kind++) {
            json_array_append_new(tiers, tier_text(setup, kind, u));
            json_array_append_new(sizes, count(bytes[u][kind]));
        }
        json_array_append_new(list, json_pack("{s:s, s:I, s:o, s:o}", "name", unit->name,
                                              "parameters", (json_int_t)unit->param_count, "tiers",
                                              tiers, "bytes", sizes));
    }
    mem_free(bytes);
    return list;
}

/* Returns the object; after an error frees it and returns NULL. */
static json_t *finished(json_t *object, int rc)
{
    if (rc == 0)
        return object;
    json_decref(object);
    return NULL;
}

static json_t *curve_of(const program *steady, enum tier which, const memory_curve *curve)
{
    json_t *points = json_array();
    for (uint32_t i = 0; i < curve->count; i++) {
        json_t *point = json_array();
        json_array_append_new(point, microseconds(curve->points[i].at_ns));
        for (int kind = 0; kind < PLAN_MEMORY_KINDS; kind++)
            json_array_append_new(point, count(curve->points[i].bytes[kind]));
        json_array_append_new(points, point);
    }
    return json_pack("{s:I, s:o, s:I, s:I, s:o}", "peak_in_use_bytes",
                     (json_int_t)curve->peak.total_bytes, "peak_at_us",
                     microseconds(curve->peak_at_ns), "highest_bytes",
                     (json_int_t)steady->peak_bytes[which], "intervals",
                     (json_int_t)curve->interval_count, "points", points);
}

static json_t *memory_of(const program *steady)
{
    memory_curve *curve = mem_alloc(1, sizeof *curve, "plan.json");
    json_t *out = json_object(), *fields = json_array();
    json_array_append_new(fields, json_string("at_us"));
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        json_array_append_new(fields, json_string(state_kind_key((enum state_kind)kind)));
    json_array_append_new(fields, json_string("other"));
    json_object_set_new(out, "fields", fields);
    json_object_set_new(out, "seconds", json_real((double)steady->predicted_ns * 1e-9));
    int rc = curve ? 0 : -ENOMEM;
    for (int a = 0; rc == 0 && a < TIER_COUNT; a++) {
        rc = memory_curve_make(steady, (enum tier)a, curve);
        if (rc == 0)
            json_object_set_new(out, tier_name((enum tier)a),
                                curve_of(steady, (enum tier)a, curve));
    }
    mem_free(curve);
    return finished(out, rc);
}

static json_t *lane_of(const memory_span *spans, int span_count, uint64_t width_ns)
{
    json_t *list = json_array();
    for (int s = 0; s < span_count; s++) {
        const memory_span *span = &spans[s];
        json_array_append_new(
            list, json_pack("[o, o, i, I, I]", microseconds(span->start_ns),
                            microseconds(span->end_ns), (int)span->kind,
                            span->unit == PROGRAM_NONE ? (json_int_t)-1 : (json_int_t)span->unit,
                            (json_int_t)span->op_count));
    }
    return json_pack("{s:o, s:o}", "joined_within_us", microseconds(width_ns), "spans", list);
}

static json_t *timeline_of(const program *steady)
{
    memory_span *spans = mem_alloc(PLAN_SPANS_MAX, sizeof *spans, "plan.json");
    json_t *kinds = json_array();
    for (int kind = 0; kind < OP_KIND_COUNT; kind++)
        json_array_append_new(kinds, json_string(op_kind_name((enum op_kind)kind)));
    json_t *out =
        json_pack("{s:[s, s, s, s, s], s:f, s:o}", "fields", "start_us", "end_us", "kind", "unit",
                  "ops", "seconds", (double)steady->predicted_ns * 1e-9, "kinds", kinds);
    int span_count = spans ? 0 : -ENOMEM;
    for (int i = 0; span_count >= 0 && i < LANE_COUNT; i++) {
        uint64_t width_ns;
        span_count = memory_lane_spans(steady, (enum lane_kind)i, spans, &width_ns);
        if (span_count >= 0)
            json_object_set_new(out, lane_kind_name((enum lane_kind)i),
                                lane_of(spans, span_count, width_ns));
    }
    mem_free(spans);
    return finished(out, span_count < 0 ? span_count : 0);
}

/* NULL: no memory. */
static json_t *plan_of(const struct setup *setup, uint64_t train_tokens)
{
    struct setup_summary sum;
    const program *steady = &setup->set.programs[PROGRAM_STEADY];
    setup_summarize(setup, &sum);
    json_t *out = setup_plan_object(&sum);
    const struct {
        const char *name;
        json_t *value;
    } rows[] = {
        {"device", json_string(setup->gpu ? "GPU" : "CPU")},
        {"steps", count(setup->job->run.steps)},
        {"train_tokens", count(train_tokens)},
        {"placement", placement_of(setup)},
        {"ceilings", ceilings_of(&setup->plan.machine)},
        {"unit_list", units_of(setup)},
        {"memory_over_step", memory_of(steady)},
        {"timeline", timeline_of(steady)},
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (json_object_set_new(out, rows[i].name, rows[i].value) != 0)
            rc = -ENOMEM;
    return finished(out, rc);
}

/* Writes an object with one member per line, and so the objects in it down to DEPTH_MAX. Deeper
 * values stand on one line, and so do lists, except lists of objects. */
static int put_lines(FILE *out, json_t *value, int depth)
{
    enum { DEPTH_MAX = 2 };
    const char *key, *lead = "";
    json_t *item;
    size_t i;
    int rc = 0;
    if (json_is_object(value) && depth < DEPTH_MAX) {
        fputc('{', out);
        json_object_foreach(value, key, item)
        {
            fprintf(out, "%s\n%*s\"%s\": ", lead, 2 * depth + 2, "", key);
            rc = put_lines(out, item, depth + 1) != 0 ? -ENOMEM : rc;
            lead = ",";
        }
        fprintf(out, "\n%*s}", 2 * depth, "");
    } else if (json_is_object(json_array_get(value, 0))) {
        fputc('[', out);
        json_array_foreach(value, i, item)
        {
            fprintf(out, "%s\n%*s", lead, 2 * depth + 2, "");
            rc = put_lines(out, item, DEPTH_MAX) != 0 ? -ENOMEM : rc;
            lead = ",";
        }
        fprintf(out, "\n%*s]", 2 * depth, "");
    } else {
        rc = json_dumpf(value, out, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
    }
    return rc;
}

int setup_plan_json(const struct setup *self, uint64_t train_tokens, char **text)
{
    size_t text_bytes = 0;
    *text = NULL;
    json_t *plan = plan_of(self, train_tokens);
    FILE *out = open_memstream(text, &text_bytes);
    int rc = plan && out ? put_lines(out, plan, 0) : -ENOMEM;
    json_decref(plan);
    if (out) {
        fputc('\n', out);
        rc = fclose(out) != 0 ? -ENOMEM : rc;
    }
    if (rc == 0)
        return 0;
    free(*text);
    *text = NULL;
    return err_set(-ENOMEM, "no memory for plan.json");
}
