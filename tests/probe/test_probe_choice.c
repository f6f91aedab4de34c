/* Which setting of a drive is chosen from measured points, and medians of rounds. Pure. */
#include <math.h>
#include <time.h>

#include "base/rng.h"
#include "base/size.h"
#include "probe/probe_internal.h"
#include "tests/unit.h"

static void the_smallest_that_is_near_the_best(void **state)
{
    const probe_setting settings[] = {
        {4 * MIB, 16, {3.00, 2.00, 2.40}}, /* best of all, 64 MiB in flight */
        {1 * MIB, 2, {2.93, 1.97, 2.38}},  /* 97.7% of the best read: too little */
        {1 * MIB, 8, {2.97, 1.98, 2.37}},  /* near in each, 8 MiB */
        {4 * MIB, 2, {2.97, 1.98, 2.37}},  /* the same, as many bytes, fewer requests */
        {64 * KIB, 32, {1.50, 2.00, 1.90}},
    };
    assert_int_equal(probe_choose_setting(settings, 5, 0.98), 3);
    assert_int_equal(probe_choose_setting(settings, 3, 0.98), 2);
    assert_int_equal(probe_choose_setting(settings, 5, 0.97), 1);
    assert_int_equal(probe_choose_setting(settings, 5, 1.0), 0);
    assert_int_equal(probe_choose_setting(settings + 4, 1, 0.98), 0);
}

/* Where reads and writes want different settings, the one whose worst kind loses least. */
static void a_compromise_where_none_is_near_in_all(void **state)
{
    const probe_setting settings[] = {
        {1 * MIB, 1, {3.0, 1.0, 2.0}},
        {1 * MIB, 4, {2.7, 1.9, 2.0}},
        {1 * MIB, 8, {1.5, 2.0, 2.0}},
    };
    assert_int_equal(probe_choose_setting(settings, 3, 0.98), 1);
    const probe_setting unknown[] = {{1 * MIB, 4, {1.0, 0, 0}}, {1 * MIB, 1, {1.0, 0, 0}}};
    assert_int_equal(probe_choose_setting(unknown, 2, 0.98), 1);
    const probe_setting none[] = {{1 * MIB, 4, {0, 0, 0}}, {1 * MIB, 1, {0, 0, 0}}};
    assert_int_equal(probe_choose_setting(none, 2, 0.98), 1);
}

/* For any rates, the chosen setting is near the best of each kind, and no smaller setting is near
 * it. */
static void chosen_settings_keep_their_promise(void **state)
{
    const uint64_t seed = 20261122;
    print_message("seed %llu\n", (unsigned long long)seed);
    int near_count = 0;
    for (uint64_t trial = 0; trial < 2000; trial++) {
        probe_setting settings[24];
        double best[3] = {0};
        for (uint32_t i = 0; i < 24; i++) {
            settings[i].block_bytes = (64 * KIB) << 2 * (i / 6);
            settings[i].queue_depth = 1u << i % 6;
            double flight = (double)(settings[i].block_bytes * settings[i].queue_depth);
            for (uint32_t kind = 0; kind < 3; kind++) {
                double noise = 0.97 + 0.03 * rng_uniform(seed, trial, 3 * i + kind);
                settings[i].rates[kind] = noise * flight / (flight + 2e4 * (kind + 1));
                best[kind] = fmax(best[kind], settings[i].rates[kind]);
            }
        }
        uint32_t chosen = probe_choose_setting(settings, 24, 0.98);
        assert_in_range(chosen, 0, 23);
        uint64_t chosen_flight = settings[chosen].block_bytes * settings[chosen].queue_depth;
        for (uint32_t i = 0; i < 24; i++) {
            bool is_near = true;
            for (uint32_t kind = 0; kind < 3; kind++)
                is_near = is_near && settings[i].rates[kind] >= 0.98 * best[kind];
            if (is_near)
                assert_true(settings[i].block_bytes * settings[i].queue_depth >= chosen_flight);
            near_count += is_near && i == chosen;
        }
    }
    assert_true(near_count > 1000);
}

static void medians_and_quartiles(void **state)
{
    probei_figure figure = {.count = 0};
    probei_figure_close(&figure);
    assert_true(figure.median == 0);
    probei_figure_add(&figure, 7);
    probei_figure_close(&figure);
    assert_true(figure.median == 7 && figure.low == 7 && figure.high == 7);
    const double more[] = {1, 9, 3, 5};
    for (int i = 0; i < 4; i++)
        probei_figure_add(&figure, more[i]);
    probei_figure_close(&figure);
    assert_true(figure.median == 5 && figure.low == 3 && figure.high == 7);
    probei_figure_add(&figure, 100);
    probei_figure_close(&figure);
    assert_true(figure.median == 6);
    for (int i = 0; i < 2 * PROBEI_ROUNDS_MAX; i++)
        probei_figure_add(&figure, 1);
    assert_int_equal(figure.count, PROBEI_ROUNDS_MAX);
}

/* Threads of one physical core count once, and a quota bounds them: as many as a run computes
 * with. */
static void cores_are_counted_as_runs_use_them(void **state)
{
    static topology place;
    memset(&place, 0, sizeof place);
    for (int c = 0; c < 8; c++) { /* 0 to 3, and their other threads 4 to 7 */
        core_set_add(&place.allowed, c);
        place.physical[c] = (uint16_t)(c % 4);
    }
    assert_int_equal(probei_count_cores(&place), 4);
    place.quota_cores = 3;
    assert_int_equal(probei_count_cores(&place), 3);
    place.quota_cores = 0;
    for (int c = 0; c < 6; c++)
        core_set_remove(&place.allowed, c);
    assert_int_equal(probei_count_cores(&place),
                     2); /* though no first thread of theirs is allowed */
}

/* A figure's samples: +-40% for the first `settles` of them, then 100. */
struct swinging {
    uint32_t calls[3];
    uint32_t settles[3];
    bool takes_time; /* a millisecond */
};

static int swing(void *user, uint32_t variant, double *value)
{
    struct swinging *self = user;
    uint32_t call = self->calls[variant]++;
    if (self->takes_time)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    *value = call >= self->settles[variant] ? 100 : call % 2 ? 60 : 140;
    return 0;
}

static void name_swinging(void *user, uint32_t variant, char text[PROBEI_TEXT_BYTES])
{
    snprintf(text, PROBEI_TEXT_BYTES, "figure %u", (unsigned)variant);
}

/* One round of each, then more of what swings, until it is steady or its samples are full. */
static void what_swings_is_measured_again_and_else_named(void **state)
{
    const struct probe_options options = {.stop = NULL};
    static probei self; /* large */
    self = (probei){.options = &options, .extent = PROBEI_QUICK};
    struct swinging user = {.settles = {4, UINT32_MAX, UINT32_MAX}};
    probei_figure figures[3] = {{.count = 0}};
    for (uint32_t v = 0; v < 3; v++)
        for (int i = 0; i < 2; i++) {
            double value;
            assert_int_equal(swing(&user, v, &value), 0);
            probei_figure_add(&figures[v], value);
        }
    probei_work work = {.count = 3,
                        .seconds = 1e-9, /* a single round */
                        .run = swing,
                        .name = name_swinging,
                        .user = &user};
    assert_ok(probei_rounds(&self, &work, figures));
    for (int v = 0; v < 3; v++)
        assert_int_equal(figures[v].count, 3);
    assert_int_equal(self.disturbed_count, 0);

    struct swinging again = {.settles = {4, UINT32_MAX, UINT32_MAX}};
    memset(figures, 0, sizeof figures);
    work.user = &again;
    work.seconds = 20; /* never reached: all samples are taken before */
    work.is_checked = true;
    work.loose = 1U << 2;
    assert_ok(probei_rounds(&self, &work, figures));
    assert_int_equal(figures[0].count, PROBEI_ROUNDS_MAX);
    assert_true(probei_figure_spread(&figures[0]) == 0 && figures[0].median == 100);
    assert_int_equal(self.disturbed_count, 1); /* the loose one is none */
    assert_string_equal(self.disturbed_name, "figure 1");
    assert_true(self.disturbed_spread > 0.28);
}

/* Only settings whose rates vary are measured once more. */
static void what_is_steady_is_measured_once(void **state)
{
    const struct probe_options options = {.stop = NULL};
    static probei self;
    self = (probei){.options = &options, .extent = PROBEI_QUICK};
    struct swinging user = {.settles = {UINT32_MAX, 0, 0}, .takes_time = true};
    /* As a round that took all its time would leave them. */
    probei_figure figures[3] = {{.values = {140, 60}, .count = 2},
                                {.values = {100, 100}, .count = 2},
                                {.values = {100, 100}, .count = 2}};
    user.calls[0] = 2; /* so many are there */
    probei_work work = {.count = 3, .seconds = 4e-3, .run = swing, .user = &user}; /* a round */
    work.is_checked = true;
    assert_ok(probei_rounds(&self, &work, figures));
    assert_int_equal(user.calls[1], 1);
    assert_int_equal(user.calls[2], 1);
    assert_true(user.calls[0] >= 2 + 1 + 1);
    assert_int_equal(self.disturbed_count, 1);
    assert_string_equal(self.disturbed_name, "a figure");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_smallest_that_is_near_the_best),
        cmocka_unit_test(a_compromise_where_none_is_near_in_all),
        cmocka_unit_test(chosen_settings_keep_their_promise),
        cmocka_unit_test(medians_and_quartiles),
        cmocka_unit_test(what_swings_is_measured_again_and_else_named),
        cmocka_unit_test(what_is_steady_is_measured_once),
        cmocka_unit_test(cores_are_counted_as_runs_use_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
