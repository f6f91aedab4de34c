/* The JSON block that the page's pictures are drawn from. See report_internal.h and report.js. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "report/report_internal.h"

static json_t *number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *count(uint64_t value)
{
    return json_integer((json_int_t)value);
}

static void put_value(json_t *row, const reporti_value *value)
{
    json_array_append_new(row, number(value->count ? value->min : NAN));
    json_array_append_new(row, number(reporti_mean(value)));
    json_array_append_new(row, number(value->count ? value->max : NAN));
}

/* Rows: first step, last step, then minimum, mean and maximum of loss, learning rate and tokens per
 * second. */
static json_t *series(const reporti_series *from, bool is_eval)
{
    json_t *rows = json_array(), *out = json_object();
    for (uint32_t i = 0; i < from->count; i++) {
        const reporti_bin *bin = &from->bins[i];
        json_t *row = json_array();
        json_array_append_new(row, count(bin->step_first));
        json_array_append_new(row, count(bin->step_last));
        put_value(row, &bin->values[MEASURE_LOSS]);
        if (!is_eval) {
            put_value(row, &bin->values[MEASURE_LR]);
            put_value(row, &bin->values[MEASURE_SPEED]);
        }
        json_array_append_new(rows, row);
    }
    json_object_set_new(out, "lines_per_bin", count(from->lines_per_bin));
    json_object_set_new(out, "rows", rows);
    return out;
}

static json_t *names(int how_many, const char *(*name_of)(int))
{
    json_t *out = json_array();
    for (int i = 0; i < how_many; i++)
        json_array_append_new(out, json_string(name_of(i)));
    return out;
}

static int64_t index_or_none(uint32_t value)
{
    return value == PROGRAM_NONE ? -1 : (int64_t)value;
}

/* Thousandths of a microsecond are below what the clock tells. */
static double rounded(double us)
{
    return round(us * 1000) / 1000;
}

static json_t *event_row(const reporti_trace *from, const reporti_event *event)
{
    json_t *row = json_array();
    json_array_append_new(row, count(event->lane));
    json_array_append_new(row, count(event->row));
    json_array_append_new(row, number(rounded(event->start_us - from->begin_us)));
    json_array_append_new(row, number(rounded(event->end_us - event->start_us)));
    json_array_append_new(row, count(event->kind));
    json_array_append_new(row, json_integer(index_or_none(event->unit)));
    json_array_append_new(row, json_integer(index_or_none(event->index)));
    json_array_append_new(row, count(event->bytes));
    json_array_append_new(row, number(rounded(event->stall_us)));
    json_array_append_new(
        row, json_integer(event->stall_cause < STALL_UNKNOWN ? event->stall_cause : -1));
    json_array_append_new(row, count(event->op_count));
    return row;
}

static json_t *timeline(const reporti_trace *from)
{
    if (!from->has_step)
        return json_null();
    json_t *out = json_object(), *events = json_array(), *units = json_array();
    for (uint64_t i = 0; i < from->event_count; i++)
        json_array_append_new(events, event_row(from, &from->events[i]));
    for (uint32_t i = 0; i < from->name_count; i++) {
        json_t *name = json_string(from->names[i]);
        json_array_append_new(units, name ? name : json_string("?"));
    }
    json_object_set_new(out, "step", count(from->step));
    json_object_set_new(out, "length_us", number(from->end_us - from->begin_us));
    json_object_set_new(out, "units", units);
    json_object_set_new(out, "events", events);
    return out;
}

static void put_plan(json_t *data, const json_t *plan)
{
    static const char *const keys[] = {"tokens_per_second", "budget_bytes", "memory",
                                       "memory_over_step", "timeline"};
    json_t *out = json_object(), *units = json_array();
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        json_t *value = json_object_get(plan, keys[i]);
        if (value)
            json_object_set(out, keys[i], value);
    }
    const json_t *list = json_object_get(plan, "unit_list");
    for (size_t i = 0; i < json_array_size(list); i++)
        json_array_append_new(units, json_string(reporti_text(json_array_get(list, i), "name")));
    json_object_set_new(out, "units", units);
    json_object_set_new(data, "plan", out);
}

/* Nothing in the text may end the element that it stands in. These letters are in JSON's strings
 * alone. */
static void put_escaped(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '<' || *text == '>' || *text == '&')
            fprintf(out, "\\u%04x", *text);
        else
            fputc(*text, out);
    }
}

int reporti_put_data(FILE *out, const reporti_run *run)
{
    json_t *data = json_object();
    json_object_set_new(data, "lanes", names(LANE_COUNT, reporti_lane_name));
    json_object_set_new(data, "stalls", names(STALL_CAUSES, reporti_stall_name));
    json_object_set_new(data, "kinds", names(OP_KIND_COUNT + 1, reporti_op_name));
    json_object_set_new(data, "steps", series(&run->metrics.steps, false));
    json_object_set_new(data, "evals", series(&run->metrics.evals, true));
    json_object_set_new(data, "timeline", timeline(&run->trace));
    put_plan(data, run->plan);
    char *text = json_dumps(data, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(9));
    json_decref(data);
    if (!text)
        return err_set(-ENOMEM, "no memory for the data of the report");
    put_escaped(out, text);
    free(text);
    return 0;
}
