/* The critical path of a plan in sentences and as JSON. See setup_internal.h. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "setup/setup_internal.h"

enum { WORKS_MOST = 3 };

/* Shares of a part below which a work, and a cause, goes unmentioned. */
static const double worth_a_work = 0.05, worth_a_cause = 0.1;

/* ---- sentences ---- */

static double seconds_of(const struct plan_wait *part)
{
    return (double)(part->end_ns - part->begin_ns) * 1e-9;
}

/* The work of a part that is longest and below `limit`; false: there is none worth a word. */
static bool next_work(const struct plan_wait *part, bool is_said[LANE_COUNT][STATE_KIND_COUNT + 1],
                      int *lane, int *kind)
{
    uint64_t most = 0;
    for (int i = 0; i < LANE_COUNT; i++)
        for (int k = 0; k <= STATE_KIND_COUNT; k++)
            if (!is_said[i][k] && part->work_ns[i][k] > most) {
                most = part->work_ns[i][k];
                *lane = i;
                *kind = k;
            }
    return most > 0 && (double)most * 1e-9 >= worth_a_work * seconds_of(part);
}

static void add_works(char text[SETUP_WAIT_BYTES], const struct plan_wait *part)
{
    bool is_said[LANE_COUNT][STATE_KIND_COUNT + 1] = {{false}};
    int lane, kind;
    for (int i = 0; i < WORKS_MOST && next_work(part, is_said, &lane, &kind); i++) {
        is_said[lane][kind] = true;
        text_add(text, SETUP_WAIT_BYTES, "%s%s", i ? ", " : "; ",
                 lane_kind_name((enum lane_kind)lane));
        if (kind < STATE_KIND_COUNT)
            text_add(text, SETUP_WAIT_BYTES, " of %s", state_kind_name((enum state_kind)kind));
        text_add(text, SETUP_WAIT_BYTES, " %.0f%%",
                 1e-7 * (double)part->work_ns[lane][kind] / seconds_of(part));
    }
}

static void add_causes(char text[SETUP_WAIT_BYTES], const struct plan_wait *part)
{
    static const char *const texts[CAUSE_COUNT] = {
        [CAUSE_DEVICE_MEMORY] = "until device memory is free",
        [CAUSE_HOST_MEMORY] = "until host memory is free",
        [CAUSE_TURN] = "for the turn of more urgent transfers",
        [CAUSE_NORM] = "for the gradient norm",
        [CAUSE_COMMIT] = "for the commit",
    };
    for (int i = 0; i < CAUSE_COUNT; i++) {
        double share = (double)part->cause_ns[i] * 1e-9 / seconds_of(part);
        if (texts[i] && share >= worth_a_cause)
            text_add(text, SETUP_WAIT_BYTES, "; %.0f%% of it waits %s", 100 * share, texts[i]);
    }
    double shared = (double)part->shared_ns * 1e-9 / seconds_of(part);
    if (shared >= worth_a_cause)
        text_add(text, SETUP_WAIT_BYTES, "; alone on the machine it would take %.0f%% less",
                 100 * shared);
}

static void describe(struct setup_wait *self)
{
    static const char *const spans[SPAN_COUNT] = {
        [SPAN_FORWARD] = "forward",
        [SPAN_BACKWARD] = "backward",
        [SPAN_PASSES] = "passes",
        [SPAN_AFTER] = "after the norm",
    };
    const struct plan_wait *part = &self->of;
    char *text = self->text;
    text[0] = '\0';
    double seconds = seconds_of(part);
    int busiest = 0;
    text_add(text, SETUP_WAIT_BYTES, seconds < 0.0995 ? "%.5f s" : "%.3f s", seconds);
    text_add(text, SETUP_WAIT_BYTES, ", %.1f%%: %s", 100 * self->share, spans[part->span]);
    if (self->first_unit[0])
        text_add(text, SETUP_WAIT_BYTES, part->span == SPAN_AFTER ? ", %s" : " of %s",
                 self->first_unit);
    if (strcmp(self->first_unit, self->last_unit) != 0)
        text_add(text, SETUP_WAIT_BYTES, " to %s", self->last_unit);
    add_works(text, part);
    for (int r = 1; r < RESOURCE_COUNT; r++)
        if (part->busy[r] > part->busy[busiest])
            busiest = r;
    text_add(text, SETUP_WAIT_BYTES, "; %s %.0f%% busy",
             plan_resource_name((enum plan_resource)busiest), 100 * part->busy[busiest]);
    add_causes(text, part);
    if (part->setting)
        text_add(text, SETUP_WAIT_BYTES, "; a larger %s would help", part->setting);
}

void setupi_summarize_waits(const struct setup *self, struct setup_summary *out)
{
    struct plan_wait parts[PLAN_WAITS_MAX];
    const program *steady = &self->set.programs[PROGRAM_STEADY];
    bool commits = !self->plan.commits || self->plan.commit_every <= 1;
    if (!(out->over_schedule_bound > SETUP_WAITS_OVER) ||
        plan_find_waits(&self->plan, steady, commits, parts, &out->wait_count) < 0)
        return;
    double step = 0;
    for (uint32_t i = 0; i < out->wait_count; i++)
        step += seconds_of(&parts[i]);
    for (uint32_t i = 0; i < out->wait_count; i++) {
        struct setup_wait *wait = &out->waits[i];
        wait->of = parts[i];
        wait->share = seconds_of(&parts[i]) / step;
        if (parts[i].first_unit < self->net->unit_count)
            snprintf(wait->first_unit, sizeof wait->first_unit, "%s",
                     self->net->units[parts[i].first_unit].name);
        if (parts[i].last_unit < self->net->unit_count)
            snprintf(wait->last_unit, sizeof wait->last_unit, "%s",
                     self->net->units[parts[i].last_unit].name);
        describe(wait);
    }
}

/* ---- JSON ---- */

/* Seconds by name, without those that are 0. */
static void put_seconds(json_t *object, const char *name, uint64_t ns)
{
    if (ns > 0)
        json_object_set_new(object, name, json_real((double)ns * 1e-9));
}

static json_t *wait_json(const struct setup_wait *wait)
{
    const struct plan_wait *part = &wait->of;
    json_t *lanes = json_object(), *causes = json_object(), *resources = json_object();
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        uint64_t ns = 0;
        for (int kind = 0; kind <= STATE_KIND_COUNT; kind++)
            ns += part->work_ns[lane][kind];
        put_seconds(lanes, lane_kind_name((enum lane_kind)lane), ns);
    }
    for (int i = 0; i < CAUSE_COUNT; i++)
        put_seconds(causes, plan_cause_name((enum plan_cause)i), part->cause_ns[i]);
    for (int r = 0; r < RESOURCE_COUNT; r++)
        if (part->busy[r] > 0)
            json_object_set_new(resources, plan_resource_name((enum plan_resource)r),
                                json_real(part->busy[r]));
    return json_pack("{s:f, s:f, s:f, s:s, s:s, s:s, s:I, s:o, s:o, s:o, s:f, s:s?, s:s}",
                     "begin_seconds", (double)part->begin_ns * 1e-9, "seconds", seconds_of(part),
                     "share", wait->share, "phase", plan_span_name(part->span), "first_unit",
                     wait->first_unit, "last_unit", wait->last_unit, "ops",
                     (json_int_t)part->op_count, "lane_seconds", lanes, "cause_seconds", causes,
                     "busy", resources, "shared_seconds", (double)part->shared_ns * 1e-9, "setting",
                     part->setting, "text", wait->text);
}

json_t *setupi_waits_json(const struct setup_summary *plan)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < plan->wait_count; i++)
        json_array_append_new(list, wait_json(&plan->waits[i]));
    return list;
}
