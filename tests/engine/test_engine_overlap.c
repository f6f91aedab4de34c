/* Transfers and computing of different units overlap in time, shown by the trace; and the bytes
 * that each lane says it moved are those of the program. */
#include "base/mem.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"

enum { EVENTS_MAX = 1 << 16, UNIT_TEXT_BYTES = 32 };

static const fixture_model shape = {.family = "gpt2", .bf16 = true, .layers = 6, .hidden = 192};

struct event {
    int lane;
    char unit[UNIT_TEXT_BYTES]; /* the second word of the event's name */
    double begin_us, end_us, paused_us;
    uint64_t step, bytes;
};

static struct event *events;
static size_t event_count;

static int lane_of(const char *name)
{
    for (int i = 0; i < LANE_COUNT; i++)
        if (strcmp(lane_kind_name((enum lane_kind)i), name) == 0)
            return i;
    return -1;
}

static void read_trace(const char *name)
{
    json_t *found = fixture_json(fixture_path(name, "trace.json")), *one;
    size_t i;
    event_count = 0;
    json_array_foreach(json_object_get(found, "traceEvents"), i, one)
    {
        if (strcmp(json_string_value(json_object_get(one, "ph")), "X") != 0)
            continue;
        assert_true(event_count < EVENTS_MAX);
        struct event *event = &events[event_count++];
        memset(event, 0, sizeof *event);
        event->lane = lane_of(json_string_value(json_object_get(one, "cat")));
        assert_true(event->lane >= 0);
        const char *text = json_string_value(json_object_get(one, "name"));
        sscanf(text, "%*s %31s", event->unit);
        event->begin_us = json_number_value(json_object_get(one, "ts"));
        event->end_us = event->begin_us + json_number_value(json_object_get(one, "dur"));
        const json_t *args = json_object_get(one, "args");
        event->paused_us = json_number_value(json_object_get(args, "paused_us")); /* 0: not there */
        event->step = (uint64_t)json_integer_value(json_object_get(args, "step"));
        event->bytes = (uint64_t)json_integer_value(json_object_get(args, "bytes"));
    }
    json_decref(found);
    assert_true(event_count > 0);
}

/* Time that events of lane a spend beside events of lane b of another unit, in microseconds. */
static double together_us(int a, int b, uint64_t *pairs)
{
    double sum = 0;
    *pairs = 0;
    for (size_t i = 0; i < event_count; i++) {
        const struct event *x = &events[i];
        if (x->lane != a)
            continue;
        for (size_t k = 0; k < event_count; k++) {
            const struct event *y = &events[k];
            if (y->lane != b || strcmp(x->unit, y->unit) == 0)
                continue;
            double begin = x->begin_us > y->begin_us ? x->begin_us : y->begin_us;
            double end = x->end_us < y->end_us ? x->end_us : y->end_us;
            if (end > begin) {
                sum += end - begin;
                ++*pairs;
            }
        }
    }
    return sum;
}

static fixture_sets all_on_nvme(const char *update, const char *lookahead)
{
    fixture_sets sets = {.count = 0};
    static const char *const kinds[] = {"params", "grads", "optimizer", "activations"};
    for (int k = 0; k < 4; k++)
        fixture_set(&sets, "tiers.place.%s=nvme", kinds[k]);
    fixture_set(&sets, "schedule.update=%s", update);
    fixture_set(&sets, "debug.schedule.lookahead=%s", lookahead);
    fixture_set(&sets, "schedule.tile_elems=65536");
    fixture_set(&sets, "run.steps=8");
    fixture_set(&sets, "tiers.host.budget=6MiB"); /* with more, steps need to read nothing */
    return sets;
}

static void assert_overlap(int a, int b)
{
    uint64_t pairs;
    double us = together_us(a, b, &pairs);
    printf("  %s beside %s of another unit: %llu pairs, %.1f ms\n",
           lane_kind_name((enum lane_kind)a), lane_kind_name((enum lane_kind)b),
           (unsigned long long)pairs, us * 1e-3);
    assert_true(pairs > 0);
}

static void transfers_and_computing_overlap(void **state)
{
    static const char *const updates[] = {"after_backward", "in_next_forward"};
    for (int u = 0; u < 2; u++) {
        static fixture_result result;
        fixture_sets sets = all_on_nvme(updates[u], "0");
        fixture_train_good("overlap", &shape, &sets, &result);
        read_trace("overlap");
        printf("%s: %zu events\n", updates[u], event_count);
        assert_overlap(LANE_READ, LANE_COMPUTE);
        assert_overlap(LANE_WRITE, LANE_COMPUTE);
        assert_overlap(LANE_READ, LANE_UPDATE);
        assert_overlap(LANE_WRITE, LANE_UPDATE);
        assert_overlap(LANE_READ, LANE_WRITE);
        assert_overlap(LANE_H2D, LANE_COMPUTE);
        assert_overlap(LANE_D2H, LANE_COMPUTE);
        fixture_remove("overlap");
    }
}

/* Counts updates that ran in the pauses of passes. All other ops of compute and update, which have
 * one worker, run one after the other. An update in a pause lies within the pass, and the pass says
 * how long it paused. */
static uint64_t count_paused(void)
{
    const double rounding_us = 0.01; /* times are written in thousandths of a microsecond */
    uint64_t count = 0;
    for (size_t i = 0; i < event_count; i++) {
        const struct event *x = &events[i];
        double inner_us = 0;
        for (size_t k = 0; k < event_count && (x->lane == LANE_COMPUTE || x->lane == LANE_UPDATE);
             k++) {
            const struct event *y = &events[k];
            bool shares = k != i && (y->lane == LANE_UPDATE || y->lane == x->lane) &&
                          y->begin_us < x->end_us - rounding_us &&
                          x->begin_us < y->end_us - rounding_us;
            if (!shares)
                continue;
            assert_true(x->lane == LANE_COMPUTE && y->lane == LANE_UPDATE);
            assert_true(x->begin_us <= y->begin_us && y->end_us <= x->end_us);
            inner_us += y->end_us - y->begin_us - rounding_us;
            count++;
        }
        assert_true(inner_us <= x->paused_us);
        assert_true(x->paused_us <= x->end_us - x->begin_us + rounding_us);
    }
    return count;
}

/* Whether an update waits while a pass runs is a matter of timing, so that a run may have none. */
static void one_worker_does_one_thing(void **state)
{
    enum { RUNS = 30 };
    uint64_t count = 0;
    for (int i = 0; i < RUNS && count == 0; i++) {
        static fixture_result result;
        fixture_sets sets = all_on_nvme("in_next_forward", "0");
        fixture_train_good("overlap", &shape, &sets, &result);
        read_trace("overlap");
        count = count_paused();
        fixture_remove("overlap");
    }
    assert_true(count > 0);
}

static void lane_bytes_are_the_programs(void **state)
{
    static const char *const updates[] = {"after_backward", "in_next_forward"};
    for (int u = 0; u < 2; u++) {
        static fixture_result result;
        fixture_sets sets = all_on_nvme(updates[u], "8");
        fixture_set(&sets, "run.eval_every=3"); /* evaluation is no part of a step */
        fixture_train_good("bytes", &shape, &sets, &result);
        json_t *plan = fixture_json(fixture_path("bytes", "plan.json"));
        json_t *lines = fixture_metrics("bytes"), *line;
        read_trace("bytes");
        uint64_t compared = 0;
        size_t i;
        json_array_foreach(lines, i, line)
        {
            uint64_t step = (uint64_t)json_integer_value(json_object_get(line, "step"));
            /* With in_next_forward, the first step and a step after an evaluation have no update to
             * apply. They have programs of their own. */
            if (json_object_get(line, "event") || (u == 1 && step % 3 == 1))
                continue;
            for (int lane = 0; lane < LANE_COUNT; lane++) {
                const char *name = lane_kind_name((enum lane_kind)lane);
                uint64_t moved = (uint64_t)json_integer_value(json_object_get(
                    json_object_get(json_object_get(line, "lanes"), name), "bytes"));
                uint64_t said = (uint64_t)json_integer_value(json_object_get(
                    json_object_get(json_object_get(plan, "lanes"), name), "bytes"));
                assert_int_equal(moved, said);
                assert_int_equal(moved, result.plan.lane_bytes[lane]);
                compared += moved > 0;
            }
            /* The trace adds up to the same, for a step without evaluation or flush after it. */
            uint64_t traced = 0;
            for (size_t k = 0; k < event_count; k++)
                if (events[k].lane == LANE_READ && events[k].step == step)
                    traced += events[k].bytes;
            if (u == 0 && step % 3 != 0)
                assert_int_equal(traced, result.plan.lane_bytes[LANE_READ]);
        }
        assert_true(compared >= 4 * 4); /* read, write, h2d, d2h of four steps or more */
        json_decref(lines);
        json_decref(plan);
        fixture_remove("bytes");
    }
}

int main(void)
{
    events = mem_alloc(EVENTS_MAX, sizeof *events, "test events");
    if (!events)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transfers_and_computing_overlap),
        cmocka_unit_test(one_worker_does_one_thing),
        cmocka_unit_test(lane_bytes_are_the_programs),
    };
    int failed = cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
    mem_free(events);
    return failed;
}
