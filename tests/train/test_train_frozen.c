/* Runs of which some units do not learn: where states rest changes no bit; frozen params never
 * change, and are committed once; a run that is stopped, killed, moved to other places, tiles or
 * ranks goes on to the same bits; rot of frozen params is found; a run may begin with the state of
 * one in which others learned. Arguments "victim DIR TIER 2": the run that kills itself. */
#include "state/verify.h"
#include "tests/train/train_parts.h"
#include "tests/unit.h"

/* The middle block and all norms: a unit of norms beside each block's matrices, no backward of the
 * embedding. */
static const char *const middle = "[\"blocks.1\",\"norms\"]";

static fixture_sets make_sets(const char *only, const char *tier, const char *update)
{
    fixture_sets sets = parts_sets(tier, update);
    if (only)
        fixture_set(&sets, "train.only=%s", only);
    return sets;
}

/* ---- bits ------------------------------------------------------------------------------------ */

static void placements_give_equal_bits(void **state)
{
    static const char *const selections[] = {"[\"blocks.1\",\"norms\"]", "[\"blocks.2\"]",
                                             "[\"head\"]", "[\"embed\",\"blocks.0-1\"]"};
    static const struct {
        const char *tiers[4], *update;
        uint64_t tile_elems;
        bool is_tight;
    } cases[] = {
        {{"nvme", "nvme", "nvme", "nvme"}, "in_next_forward", 32768, true},
        {{"host", "device", "nvme", "host"}, "after_backward", 0, false},
        {{"nvme", "host", "host", "device"}, "in_next_forward", 65536, true},
        {{"host", "nvme", "device", "nvme"}, "after_backward", 32768, true},
    };
    static fixture_result baseline, result;
    size_t count = few ? 1 : sizeof selections / sizeof selections[0];
    size_t case_count = few ? 2 : sizeof cases / sizeof cases[0];
    for (size_t s = 0; s < count; s++) {
        fixture_sets near = make_sets(selections[s], "device", "after_backward");
        fixture_train_good("near", &shape, &near, &baseline);
        assert_int_equal(baseline.step_count, STEPS);
        assert_true(baseline.losses[STEPS - 1] < baseline.losses[0]);
        for (size_t i = 0; i < (s == 0 ? case_count : 1); i++) {
            fixture_sets sets = make_sets(selections[s], "device", cases[i].update);
            for (int k = 0; k < 4; k++)
                fixture_set(&sets, "tiers.place.%s=%s", kinds[k], cases[i].tiers[k]);
            fixture_set(&sets, "schedule.tile_elems=%llu", (unsigned long long)cases[i].tile_elems);
            if (cases[i].is_tight)
                fixture_tighten("moved", &shape, &sets);
            fixture_train_good("moved", &shape, &sets, &result);
            fixture_assert_same(&baseline, &result);
            fixture_remove("moved");
        }
        fixture_remove("near");
    }
}

/* ---- what is committed ----------------------------------------------------------------------- */

/* Frozen extents are unchanged after one step, in the bytes of the param dtype. All others
 * change. */
static void frozen_params_never_change(void **state)
{
    static fixture_result result;
    static manifest first, last;
    for (int placed = 0; placed < 2; placed++) {
        fixture_sets sets = make_sets(middle, placed ? "nvme" : "host", "in_next_forward");
        fixture_sets one = sets;
        fixture_set(&one, "run.steps=1");
        fixture_train_good("one", &shape, &one, &result);
        fixture_train_good("parts", &shape, &sets, &result);
        read_commit("one", &first);
        read_commit("parts", &last);
        uint64_t frozen = 0, learning = 0;
        assert_int_equal(first.extent_count, last.extent_count);
        for (uint64_t i = 0; i < last.extent_count; i++) {
            const manifest_extent *a = &first.extents[i], *b = &last.extents[i];
            assert_int_equal(a->param_bytes, b->param_bytes);
            assert_int_equal(a->checksum == b->checksum, b->param_bytes > 0);
            if (b->param_bytes > 0) {
                assert_int_equal(b->size_bytes, 2 * b->elem_count);
                assert_int_equal(a->offset_bytes, b->offset_bytes);
            }
            *(b->param_bytes ? &frozen : &learning) += b->elem_count;
        }
        assert_true(frozen > 2 * learning && learning > 0);
        struct state_inspect_summary seen;
        assert_ok(state_inspect(fixture_path("parts", NULL), &seen));
        assert_string_equal(seen.units[0].name, "embed");
        assert_true(seen.units[0].is_frozen);
        uint32_t learns = 0;
        for (uint32_t u = 0; u < seen.unit_count; u++)
            learns += !seen.units[u].is_frozen;
        assert_int_equal(learns, 1 + 3 + 1); /* block.1, norms of three blocks and of the head */
        state_inspect_fini(&seen);
        manifest_fini(&first);
        manifest_fini(&last);
        fixture_remove("one");
        fixture_remove("parts");
    }
}

/* ---- a later process ------------------------------------------------------------------------- */

static fixture_sets make_middle(const char *tier, const char *update)
{
    return make_sets(middle, tier, update);
}

static const fixture_result *whole_middle(void)
{
    fixture_sets sets = make_middle("device", "after_backward");
    return parts_whole(&sets);
}

static void stopped_and_moved_runs_go_on(void **state)
{
    parts_stop_and_move(make_middle, false, whole_middle());
}

static void killed_runs_go_on(void **state)
{
    static const char *const tiers[] = {"nvme", "host"};
    for (int t = 0; t < 2; t++) {
        fixture_sets sets = make_sets(middle, tiers[t], "in_next_forward");
        parts_killed_go_on(tiers[t], &sets, whole_middle());
        fixture_remove("parts");
    }
}

/* ---- rot ------------------------------------------------------------------------------------- */

static void rot_is_found(void **state)
{
    static const char *const tiers[] = {"host", "nvme"};
    static fixture_result result;
    static manifest found;
    const fixture_result *whole = whole_middle();
    for (int t = few; t < 2; t++) {
        fixture_sets sets = make_sets(middle, tiers[t], "in_next_forward");
        if (t == 1) /* what another process has written is compared all the same */
            fixture_set(&sets, "io.verify_reads=false");
        fixture_train_stop("parts", &shape, &sets, 4, &result);
        read_commit("parts", &found);
        assert_int_equal(found.point.step, 4);
        uint64_t i = found.extent_count;
        while (found.extents[--i].param_bytes == 0)
            ;
        struct state_damage damage;
        parts_find_rot(&sets, &found, &found.extents[i], found.extents[i].size_bytes - 1, &damage);
        fixture_train_good("parts", &shape, &sets, &result); /* repaired, it goes on */
        fixture_assert_same(whole, &result);
        parts_verify("parts", whole->weights_hash);
        manifest_fini(&found);
        fixture_remove("parts");
    }
}

/* ---- other units learn ----------------------------------------------------------------------- */

static void begin_with(const char *name, const char *from, const fixture_sets *sets, int expected,
                       fixture_result *result)
{
    char path[FIXTURE_PATH_BYTES + 16];
    snprintf(path, sizeof path, "%s/%s", fixture_dir, from);
    fixture_call call = {.from = path};
    fixture_run(name, &shape, sets, &call, result);
    if (result->rc != expected)
        fail_msg("%s from %s: %s: %s", name, from, err_name(result->rc), result->error);
}

/* All units learn, then one block, then all again. The params that did not learn are rounded and
 * otherwise unchanged. */
static void others_may_learn_later(void **state)
{
    static fixture_result result;
    static manifest before, frozen, after;
    fixture_sets all = make_sets(NULL, "host", "after_backward");
    fixture_sets some = make_sets("[\"blocks.1\"]", "nvme", "in_next_forward");
    fixture_sets apart = make_sets(middle, "nvme", "in_next_forward");
    fixture_sets longer = all;
    fixture_set(&all, "run.steps=3");
    fixture_set(&some, "run.steps=5");
    fixture_set(&longer, "run.steps=5");
    fixture_train_good("parts", &shape, &all, &result);
    begin_with("some", "parts", &some, 0, &result);
    assert_int_equal(result.summary.steps_done, 2);
    begin_with("again", "some", &longer, 0,
               &result); /* no step is left: what was widened is there */
    assert_int_equal(result.summary.steps_done, 0);
    read_commit("parts", &before);
    read_commit("some", &frozen);
    read_commit("again", &after);
    for (uint64_t i = 0; i < frozen.extent_count; i++)
        assert_int_equal(frozen.extents[i].param_bytes, frozen.extents[i].unit == 2 ? 0 : 2);
    for (uint64_t i = 0; i < after.extent_count; i++)
        assert_int_equal(after.extents[i].param_bytes, 0);
    manifest_fini(&before);
    manifest_fini(&frozen);
    manifest_fini(&after);
    /* Once rounded they do not change: when they are frozen again, the sums are the same. */
    begin_with("once", "again", &some, 0, &result);
    read_commit("some", &frozen);
    read_commit("once", &after);
    assert_int_equal(frozen.extent_count, after.extent_count);
    for (uint64_t i = 0; i < frozen.extent_count; i++)
        assert_true(frozen.extents[i].checksum == after.extents[i].checksum);
    manifest_fini(&frozen);
    manifest_fini(&after);
    begin_with("apart", "parts", &apart, ERR_INPUT, &result);
    assert_non_null(strstr(result.error, "norms"));
    /* The run itself refuses another selection. */
    assert_int_equal(fixture_run("parts", &shape, &some, NULL, &result), ERR_INPUT);
    assert_non_null(strstr(result.error, "train.only"));
    static const char *const names[] = {"parts", "some", "again", "once", "apart"};
    for (int i = 0; i < 5; i++)
        fixture_remove(names[i]);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* From one rank to two and back, through all stages: moving extents between ranks changes no
 * weight. */
static void ranks_take_over(void **state)
{
    static const struct parts_row rows[] = {{1, 0, 2, "nvme"}, {2, 3, 2, "nvme"}, {2, 3, 4, "host"},
                                            {2, 1, 4, "nvme"}, {2, 2, 5, "host"}, {2, 0, 5, "nvme"},
                                            {2, 0, 6, "host"}, {1, 0, 6, "host"}};
    uint64_t before = 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint64_t hash = parts_train_ranks("ranks", make_middle, &rows[i]);
        assert_true(hash != 0);
        if (i > 0)
            assert_int_equal(hash == before, rows[i].steps == rows[i - 1].steps);
        before = hash;
        parts_verify("ranks", hash);
    }
    fixture_remove("ranks");
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "victim") == 0) {
        fixture_sets sets = make_sets(middle, argv[3], "in_next_forward");
        return parts_be_victim(argv[2], &sets);
    }
    few = getenv("SLUICE_TEST_FEW") != NULL;
    if (few)
        shape.hidden = 64;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_take_over), /* first: ranks are forks of a process without threads */
        cmocka_unit_test(placements_give_equal_bits),
        cmocka_unit_test(frozen_params_never_change),
        cmocka_unit_test(stopped_and_moved_runs_go_on),
        cmocka_unit_test(killed_runs_go_on),
        cmocka_unit_test(rot_is_found),
        cmocka_unit_test(others_may_learn_later),
    };
    const struct CMUnitTest on_a_gpu[] = {
        cmocka_unit_test(placements_give_equal_bits),
        cmocka_unit_test(rot_is_found),
    };
    return getenv("SLUICE_TEST_BACKEND")
               ? cmocka_run_group_tests(on_a_gpu, fixture_setup, fixture_teardown)
               : cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
