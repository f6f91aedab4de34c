/* plan.json: the plan from before the first step, for `report`, tools and a later resume. It is the
 * object of plan_figures.h, and these members that only a run can fill:
 *
 *   device, steps, train_tokens
 *   placement          the tier of each state kind, by ranges of units
 *   unit_list          for each unit its name, parameters, and tier and bytes at rest by kind
 *   memory_over_step   bytes in use in each tier over the predicted step
 *   timeline           the predicted ops of each lane
 *
 * The last two are reduced to a few hundred entries. Called before the run's memory is sealed.
 *
 * Each figure has a line of its own; a list of numbers stands on one line. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"
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

/* bytes[unit][kind] at rest on this rank, in the tier that is the kind's home. */
static void sum_homes(const struct setup *setup, uint64_t (*bytes)[STATE_KIND_COUNT])
{
    const program *steady = &setup->set.programs[PROGRAM_STEADY];
    for (uint64_t i = 0; i < steady->home_count; i++) {
        const buffer *home = &steady->buffers[i];
        if (home->state_kind < STATE_KIND_COUNT && home->unit < setup->net->unit_count &&
            home->arena == tier_of_home(setup->homes[home->state_kind][home->unit]))
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

/* ---- memory over the step, and the timeline ---- */

enum {
    PLAN_MEMORY_POINTS_MAX = 400,
    PLAN_SPANS_MAX = 1500, /* of a lane */
    PLAN_MEMORY_KINDS =
        STATE_KIND_COUNT + 1 /* enum state_kind; the last: scratch, tokens and the like */
};

/* Bytes in use from at_ns on, at the fullest moment until the next point. */
struct memory_point {
    uint64_t at_ns;
    uint64_t total_bytes;
    uint64_t bytes[PLAN_MEMORY_KINDS];
};
typedef struct memory_point memory_point;

struct memory_curve {
    uint32_t count;
    memory_point points[PLAN_MEMORY_POINTS_MAX];
    uint64_t interval_count; /* of constant use; more than `count`: points stand for several */
    uint64_t peak_at_ns;
    memory_point peak; /* the fullest moment of all, exact */
};
typedef struct memory_curve memory_curve;

/* A transient comes or goes. */
struct change {
    uint64_t at_ns, bytes;
    uint8_t kind, comes;
};

static int by_time(const void *a, const void *b)
{
    const struct change *one = a, *other = b;
    if (one->at_ns != other->at_ns)
        return one->at_ns < other->at_ns ? -1 : 1;
    return (int)one->comes - (int)other->comes; /* what goes makes room for what comes */
}

static uint8_t kind_of(const buffer *piece)
{
    return piece->state_kind < STATE_KIND_COUNT ? piece->state_kind : STATE_KIND_COUNT;
}

/* Fills changes[2 * buffer_count], by time, and what rests. Returns their number. */
static uint64_t list_changes(const program *prog, enum tier which, struct change *changes,
                             memory_point *now)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < prog->buffer_count; i++) {
        const buffer *piece = &prog->buffers[i];
        if (piece->arena != which)
            continue;
        bool is_in = piece->carried & CARRIED_IN, is_out = piece->carried & CARRIED_OUT;
        if (piece->is_home || (piece->producer >= prog->op_count && !is_in) ||
            piece->last_reader >= prog->op_count) {
            now->bytes[kind_of(piece)] += piece->size_bytes;
            now->total_bytes += piece->size_bytes;
            continue;
        }
        uint64_t begin = is_in ? 0 : prog->ops[piece->producer].predicted_start_ns;
        uint64_t end = is_out ? prog->predicted_ns
                              : size_max(begin, prog->ops[piece->last_reader].predicted_end_ns);
        changes[count++] = (struct change){begin, piece->size_bytes, kind_of(piece), 1};
        changes[count++] = (struct change){end, piece->size_bytes, kind_of(piece), 0};
    }
    qsort(changes, count, sizeof *changes, by_time);
    return count;
}

/* Adds the state of one interval: to the slot of its time where slots are all that there is room
 * for. */
static void add_point(memory_curve *out, const memory_point *now, uint64_t slot_ns)
{
    out->interval_count++;
    if (now->total_bytes > out->peak.total_bytes || out->interval_count == 1) {
        out->peak = *now;
        out->peak_at_ns = now->at_ns;
    }
    memory_point *last = out->count > 0 ? &out->points[out->count - 1] : NULL;
    bool shares = last && slot_ns > 0 && last->at_ns / slot_ns == now->at_ns / slot_ns;
    if (shares || (last && out->count == PLAN_MEMORY_POINTS_MAX)) {
        uint64_t at_ns = last->at_ns;
        if (now->total_bytes > last->total_bytes)
            *last = *now;
        last->at_ns = at_ns;
        return;
    }
    out->points[out->count++] = *now;
}

static void walk(const struct change *changes, uint64_t count, memory_point now, uint64_t slot_ns,
                 memory_curve *out)
{
    memset(out, 0, sizeof *out);
    for (uint64_t i = 0;; i++) {
        if (i == count || changes[i].at_ns != now.at_ns) {
            add_point(out, &now, slot_ns);
            if (i == count)
                break;
            now.at_ns = changes[i].at_ns;
        }
        uint64_t bytes = changes[i].comes ? changes[i].bytes : 0 - changes[i].bytes;
        now.bytes[changes[i].kind] += bytes;
        now.total_bytes += bytes;
    }
}

/* The curve of a tier: homes all the time, transients from the start of their first writer to the
 * end of their last reader, as predicted. -ENOMEM. */
static int memory_curve_make(const program *prog, enum tier which, memory_curve *out)
{
    memory_point rest = {0};
    struct change *changes =
        mem_alloc(2 * prog->buffer_count, sizeof *changes, "changes of memory");
    if (!changes)
        return -ENOMEM;
    uint64_t count = list_changes(prog, which, changes, &rest);
    walk(changes, count, rest, 0, out);
    if (out->interval_count > PLAN_MEMORY_POINTS_MAX)
        walk(changes, count, rest, prog->predicted_ns / (PLAN_MEMORY_POINTS_MAX - 2) + 1, out);
    mem_free(changes);
    return 0;
}

/* Ops of a lane that stand next to each other, or one op. */
struct memory_span {
    uint64_t start_ns, end_ns;
    uint32_t op_count;
    uint32_t unit; /* of the first op, or PROGRAM_NONE */
    uint8_t kind;  /* of the first op */
};
typedef struct memory_span memory_span;

static int by_start(const void *a, const void *b)
{
    const memory_span *one = a, *other = b;
    if (one->start_ns != other->start_ns)
        return one->start_ns < other->start_ns ? -1 : 1;
    return (one->end_ns > other->end_ns) - (one->end_ns < other->end_ns);
}

/* Neighbours that lie within width_ns, gaps included, become one span. Returns how many are
 * left. */
static uint64_t join(memory_span *spans, uint64_t count, uint64_t width_ns)
{
    uint64_t used = 0;
    for (uint64_t i = 0; i < count; i++) {
        memory_span *last = used > 0 ? &spans[used - 1] : NULL;
        if (last && size_max(last->end_ns, spans[i].end_ns) - last->start_ns < width_ns) {
            last->end_ns = size_max(last->end_ns, spans[i].end_ns);
            last->op_count += spans[i].op_count;
        } else {
            spans[used++] = spans[i];
        }
    }
    return used;
}

/* The lane's ops by predicted start into spans[PLAN_SPANS_MAX]; returns their number. If there
 * are more ops, those within *width_ns of each other are joined into one span with the kind of the
 * first op; otherwise *width_ns is 0. -ENOMEM. */
static int memory_lane_spans(const program *prog, enum lane_kind which, memory_span *spans,
                             uint64_t *width_ns)
{
    *width_ns = 0;
    memory_span *all = mem_alloc(prog->op_count, sizeof *all, "spans of a lane");
    if (!all)
        return -ENOMEM;
    uint64_t count = 0;
    for (uint64_t i = 0; i < prog->op_count; i++) {
        const op *item = &prog->ops[i];
        if (item->lane != which)
            continue;
        all[count++] = (memory_span){
            .start_ns = item->predicted_start_ns,
            .end_ns = item->predicted_end_ns,
            .op_count = 1,
            .unit = item->unit,
            .kind = item->kind,
        };
    }
    qsort(all, count, sizeof *all, by_start);
    for (uint64_t width = prog->predicted_ns / 100000 + 1; count > PLAN_SPANS_MAX; width *= 2) {
        *width_ns = width;
        count = join(all, count, width);
    }
    memcpy(spans, all, count * sizeof *all);
    mem_free(all);
    return (int)count;
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
