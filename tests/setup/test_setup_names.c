/* The names of a plan's figures: each has one, in what `plan --json` prints as in plan.json. */
#include <jansson.h>

#include "base/text.h"
#include "setup/plan_figures.h"
#include "setup/setup.h"
#include "setup/summary.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"

static const fixture_model shape = {.family = "llama", .bf16 = true, .layers = 6, .hidden = 128};

/* The first value of a row, or NULL. */
static json_t *first_value(json_t *object, const char *path)
{
    static const char *const names[][2] = {
        {"TIER", "device"}, {"KIND", "params"}, {"LANE", "read"}, {"RESOURCE", "drive"}};
    for (size_t length; object; path += length + 1) {
        char name[64];
        length = strcspn(path, ".");
        snprintf(name, sizeof name, "%.*s", (int)length, path);
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
            if (strcmp(name, names[i][0]) == 0)
                snprintf(name, sizeof name, "%s", names[i][1]);
        object = json_object_get(object, name);
        if (path[length] == '\0')
            break;
    }
    return object;
}

static bool has_type(const json_t *value, const struct setup_figure *row)
{
    if (json_is_null(value))
        return row->type == FIGURE_REAL || row->zero_is_unknown;
    switch (row->type) {
    case FIGURE_COUNT:
    case FIGURE_SMALL:
        return json_is_integer(value);
    case FIGURE_REAL:
        return json_is_real(value);
    case FIGURE_FLAG:
        return json_is_boolean(value);
    default:
        return json_is_string(value);
    }
}

static uint64_t leaf_count(json_t *value)
{
    const char *key;
    json_t *item;
    uint64_t count = json_is_object(value) ? 0 : 1;
    json_object_foreach(value, key, item) count += leaf_count(item);
    return count;
}

/* Number of values of a row. Each word in capitals in the path stands for several values. */
static uint64_t value_count(const char *path)
{
    uint64_t count = 1;
    count *= strstr(path, "TIER") ? TIER_COUNT : 1;
    count *= strstr(path, "KIND") ? STATE_KIND_COUNT : 1;
    count *= strstr(path, "LANE") ? LANE_COUNT : 1;
    return count * (strstr(path, "RESOURCE") ? RESOURCE_COUNT : 1);
}

/* No figure has two names, and no name has two figures. */
static void names_are_unique(const struct setup_figure *rows, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (text_ends_with(rows[i].path, "seconds"))
            assert_string_equal(rows[i].unit, "s");
        if (text_ends_with(rows[i].path, "bytes"))
            assert_string_equal(rows[i].unit, "bytes");
        for (uint32_t k = 0; k < i; k++)
            if (strcmp(rows[i].path, rows[k].path) == 0 || rows[i].offset == rows[k].offset)
                fail_msg("%s and %s are one", rows[i].path, rows[k].path);
    }
}

/* Each row of the table is in the object that `plan --json` prints and in plan.json, with the same
 * value, and the object has nothing else but the reasons and the waits. */
static void figures_have_one_name(void **state)
{
    static struct setup_summary sum;
    struct setup *setup;
    fixture_sets sets = {.count = 0};
    fixture_set(&sets, "tiers.place.optimizer=nvme");
    job *asked = fixture_job("figures", &shape, &sets);
    assert_ok(setup_create(asked, &(struct setup_options){0}, &setup));
    setup_summarize(setup, &sum);
    uint32_t count;
    const struct setup_figure *rows = setup_figures(&count);
    names_are_unique(rows, count);
    json_t *object = setup_plan_object(&sum), *value;
    char *printed = json_dumps(object, JSON_REAL_PRECISION(9)), *text;
    json_decref(object);
    assert_non_null(printed);
    object = json_loads(printed, JSON_REJECT_DUPLICATES, NULL);
    assert_ok(setup_plan_json(setup, 77, &text));
    json_error_t error;
    json_t *file = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (!file)
        fail_msg("plan.json, line %d: %s", error.line, error.text);
    uint64_t values = 2; /* the reasons, the waits */
    for (uint32_t i = 0; i < count; i++) {
        json_t *found = first_value(object, rows[i].path);
        if (!found || !has_type(found, &rows[i]))
            fail_msg("%s is not there, or of another type", rows[i].path);
        assert_true(json_equal(found, first_value(file, rows[i].path)));
        values += value_count(rows[i].path);
    }
    assert_int_equal(leaf_count(object), values);
    const char *key;
    json_object_foreach(object, key, value)
        assert_true(json_equal(value, json_object_get(file, key)));
    static const char *const more[] = {"device",    "steps",     "train_tokens",
                                       "placement", "unit_list", "memory_over_step",
                                       "timeline"};
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++)
        assert_true(json_object_get(file, more[i]) && !json_object_get(object, more[i]));
    assert_int_equal(json_object_size(file), json_object_size(object) + 7);
    assert_int_equal(json_integer_value(json_object_get(file, "train_tokens")), 77);
    assert_int_equal(json_array_size(json_object_get(file, "unit_list")), sum.unit_count);
    json_decref(object);
    json_decref(file);
    free(printed);
    free(text);
    setup_destroy(setup);
    job_destroy(asked);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figures_have_one_name),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
