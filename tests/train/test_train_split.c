/* Runs with split masters: bf16 params and 16 low bits. Losses, weights and exports are those of
 * fp32 masters in every bit, wherever states rest and whenever updates run; a run that is stopped,
 * killed, moved to other places, tiles or ranks goes on to the same bits; rot of either half is
 * found. With the argument "fp32" params are fp32, and are the masters themselves. Arguments
 * "victim DIR TIER WIDTH": the run that kills itself; WIDTH is 2 or 4, the bytes of one of its
 * params. */
#include <dirent.h>
#include <sys/stat.h>

#include "hf/hf.h"
#include "state/verify.h"
#include "tests/train/train_parts.h"
#include "tests/unit.h"
#include "train/train.h"

/* Bytes of one of the params. */
static uint32_t width(void)
{
    return shape.bf16 ? 2 : 4;
}

static fixture_sets make_sets(const char *master, const char *tier, const char *update)
{
    fixture_sets sets = parts_sets(tier, update);
    fixture_set(&sets, "state.master=%s", master);
    return sets;
}

static fixture_sets make_split(const char *tier, const char *update)
{
    return make_sets("split", tier, update);
}

static fixture_sets make_whole(const char *tier, const char *update)
{
    return make_sets("fp32", tier, update);
}

static const fixture_result *whole_masters(void)
{
    fixture_sets sets = make_whole("device", "after_backward");
    return parts_whole(&sets);
}

/* ---- bits ------------------------------------------------------------------------------------ */

static const struct {
    const char *tiers[4], *update;
    uint64_t tile_elems;
    bool is_tight;
    const char *more;
} cases[] = {
    {{"nvme", "nvme", "nvme", "nvme"}, "in_next_forward", 32768, true},
    {{"host", "device", "nvme", "host"}, "after_backward", 0, false, "schedule.order=batch_major"},
    {{"nvme", "host", "host", "device"}, "in_next_forward", 65536, true},
    {{"host", "nvme", "device", "nvme"}, "after_backward", 32768, true, "run.commit_every=0"},
    {{"device", "host", "nvme", "device"}, "in_next_forward", 0, false, "train.only=blocks.1"},
    {{"nvme", "nvme", "device", "host"}, "in_backward", 32768, false, "gradient_clipping=0"},
    {{"device", "host", "host", "host"}, "in_backward", 0, false, "gradient_clipping=0"},
    {{"nvme", "host", "nvme", "host"}, "delayed_one_step", 32768, false},
    /* skips steps */
    {{"nvme", "nvme", "nvme", "nvme"}, "in_next_forward", 0, false, "optimizer.params.lr=1e30"},
};

static void split_masters_give_the_bits_of_whole_ones(void **state)
{
    static fixture_result baseline, result;
    int skipped = 0;
    size_t count = few ? 3 : sizeof cases / sizeof cases[0];
    for (size_t i = 0; i < count; i++) {
        const char *update = cases[i].update;
        bool is_exact = strcmp(update, "delayed_one_step") != 0;
        fixture_sets near = make_sets("fp32", "device", is_exact ? "after_backward" : update);
        fixture_sets sets = make_sets("split", "device", update);
        for (int k = 0; k < 2; k++) {
            if (cases[i].more)
                fixture_set(k ? &near : &sets, "%s", cases[i].more);
            if (strcmp(update, "in_backward") == 0)
                fixture_set(k ? &near : &sets, "bf16.check_grad_overflow=false");
        }
        fixture_train_good("near", &shape, &near, &baseline);
        assert_int_equal(baseline.step_count, STEPS);
        for (int k = 0; k < 4; k++)
            fixture_set(&sets, "tiers.place.%s=%s", kinds[k], cases[i].tiers[k]);
        fixture_set(&sets, "schedule.tile_elems=%llu", (unsigned long long)cases[i].tile_elems);
        if (cases[i].is_tight)
            fixture_tighten("moved", &shape, &sets);
        fixture_train_good("moved", &shape, &sets, &result);
        fixture_assert_same(&baseline, &result);
        for (int k = 0; k < STEPS; k++)
            skipped += result.skipped[k];
        fixture_remove("moved");
        fixture_remove("near");
    }
    assert_true(few || skipped >= STEPS / 2);
}

/* ---- what is committed ----------------------------------------------------------------------- */

/* Two extents for each tile, params before the state; so many bytes as the formats
 * say. */
static void both_halves_are_committed(void **state)
{
    static fixture_result result;
    static manifest found;
    for (int placed = 0; placed < 2; placed++) {
        fixture_sets sets = make_sets("split", placed ? "nvme" : "host", "in_next_forward");
        fixture_set(&sets, "train.only=[\"blocks.1\",\"norms\"]");
        fixture_train_good("parts", &shape, &sets, &result);
        read_commit("parts", &found);
        uint64_t halves = 0, frozen = 0;
        for (uint64_t i = 0; i < found.extent_count; i++) {
            const manifest_extent *extent = &found.extents[i];
            if (extent->param_bytes == 0)
                continue;
            assert_int_equal(extent->param_bytes, width());
            assert_int_equal(extent->size_bytes, width() * extent->elem_count);
            if (!manifest_is_high(&found, i)) {
                frozen++;
                continue;
            }
            assert_int_equal(extent[1].unit, extent->unit);
            assert_int_equal(extent[1].elem_begin, extent->elem_begin);
            assert_int_equal(extent[1].elem_count, extent->elem_count);
            assert_int_equal(extent[1].size_bytes,
                             tile_bytes(extent->elem_count, found.state_streams));
            halves++;
        }
        assert_int_equal(2 * halves + frozen, found.extent_count);
        assert_true(halves > 0 && frozen > 0);
        struct state_inspect_summary seen;
        assert_ok(state_inspect(fixture_path("parts", NULL), &seen));
        uint64_t elems = 0, learns = 0;
        for (uint32_t u = 0; u < seen.unit_count; u++) {
            elems += seen.units[u].elems;
            learns += !seen.units[u].is_frozen;
        }
        assert_int_equal(learns, 1 + 3 + 1); /* block.1, norms of three blocks and of the head */
        assert_true(elems >= result.plan.param_count);
        state_inspect_fini(&seen);
        manifest_fini(&found);
        fixture_remove("parts");
    }
}

/* Every file of the one directory is there in the other, with the same bytes; how many. */
static int compare_directories(const char *left, const char *right)
{
    DIR *entries = opendir(left);
    assert_non_null(entries);
    int count = 0;
    for (const struct dirent *entry; (entry = readdir(entries));) {
        const char *const dirs[2] = {left, right};
        unsigned char *bytes[2];
        off_t sizes[2];
        if (entry->d_name[0] == '.')
            continue;
        for (int i = 0; i < 2; i++) {
            char path[FIXTURE_PATH_BYTES * 2];
            struct stat status;
            snprintf(path, sizeof path, "%s/%s", dirs[i], entry->d_name);
            int fd = open(path, O_RDONLY);
            assert_true(fd >= 0 && fstat(fd, &status) == 0);
            sizes[i] = status.st_size;
            bytes[i] = malloc((size_t)sizes[i]);
            assert_int_equal(read(fd, bytes[i], (size_t)sizes[i]), sizes[i]);
            close(fd);
        }
        assert_int_equal(sizes[0], sizes[1]);
        assert_memory_equal(bytes[0], bytes[1], (size_t)sizes[0]);
        free(bytes[0]);
        free(bytes[1]);
        count++;
    }
    closedir(entries);
    return count;
}

static void export_to(const char *name, const char *type, char target[FIXTURE_PATH_BYTES])
{
    struct hf_export_summary sum;
    char run_dir[FIXTURE_PATH_BYTES + 16];
    snprintf(run_dir, sizeof run_dir, "%s", fixture_path(name, NULL));
    snprintf(target, FIXTURE_PATH_BYTES, "%s", fixture_path(name, type));
    const struct hf_export_options asked = {.run_dir = run_dir, .hf_dir = target, .type = type};
    if (hf_export(&asked, &sum) != 0)
        fail_msg("export of %s as %s: %s", name, type, err_text());
}

static void exports_are_the_same(void **state)
{
    static const char *const types[] = {"fp32", "bf16"};
    static fixture_result result;
    static const char *const masters[] = {"fp32", "split"};
    for (int i = 0; i < 2; i++) {
        fixture_sets sets = make_sets(masters[i], i ? "nvme" : "host", "in_next_forward");
        fixture_set(&sets, "schedule.tile_elems=32768");
        fixture_train_good(masters[i], &shape, &sets, &result);
    }
    for (int t = 0; t < 2; t++) {
        char targets[2][FIXTURE_PATH_BYTES];
        for (int i = 0; i < 2; i++)
            export_to(masters[i], types[t], targets[i]);
        assert_true(compare_directories(targets[0], targets[1]) >= 2);
    }
    for (int i = 0; i < 2; i++)
        fixture_remove(masters[i]);
}

/* ---- a later process ------------------------------------------------------------------------- */

static void stopped_and_moved_runs_go_on(void **state)
{
    parts_stop_and_move(make_split, true, whole_masters());
}

static void killed_runs_go_on(void **state)
{
    static const char *const tiers[] = {"nvme", "host"};
    for (int t = 0; t < 2; t++) {
        fixture_sets sets = make_sets("split", tiers[t], "in_next_forward");
        parts_killed_go_on(tiers[t], &sets, whole_masters());
        fixture_remove("parts");
    }
}

/* A run with whole masters does not go on with split ones, nor the other way round. */
static void other_masters_are_refused(void **state)
{
    static const char *const masters[] = {"fp32", "split"};
    static fixture_result result;
    for (int i = 0; i < 2; i++) {
        fixture_sets sets = make_sets(masters[i], "nvme", "in_next_forward");
        fixture_sets others = make_sets(masters[1 - i], "nvme", "in_next_forward");
        fixture_train_stop("parts", &shape, &sets, 2, &result);
        assert_int_equal(fixture_run("parts", &shape, &others, NULL, &result), ERR_INPUT);
        assert_non_null(strstr(result.error, "state.master"));
        fixture_remove("parts");
    }
}

/* ---- rot ------------------------------------------------------------------------------------- */

static void rot_of_either_half_is_found(void **state)
{
    static const char *const tiers[] = {"host", "nvme"};
    static fixture_result result;
    static manifest found;
    const fixture_result *whole = whole_masters();
    for (int t = few; t < 2; t++) {
        fixture_sets sets = make_sets("split", tiers[t], "in_next_forward");
        fixture_train_stop("parts", &shape, &sets, 4, &result);
        read_commit("parts", &found);
        assert_int_equal(found.point.step, 4);
        for (int half = 0; half < 2; half++) {
            const manifest_extent *extent = &found.extents[found.extent_count - 2 + half];
            assert_int_equal(extent->param_bytes, half ? 0 : width());
            uint64_t byte = 1000;
            if (half && !shape.bf16) /* the first stream is empty, and padding does not count */
                byte += tile_stream_offset(found.state_streams, extent->elem_count, 1);
            struct state_damage damage;
            parts_find_rot(&sets, &found, extent, byte, &damage);
            assert_non_null(
                strstr(damage.part, half         ? shape.bf16 ? "lower halves" : "optimizer state"
                                    : shape.bf16 ? "upper halves"
                                                 : "master weights"));
        }
        fixture_train_good("parts", &shape, &sets, &result); /* repaired, it goes on */
        fixture_assert_same(whole, &result);
        parts_verify("parts", whole->weights_hash);
        manifest_fini(&found);
        fixture_remove("parts");
    }
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* From one rank to two and back, through all stages, beside a run with whole masters: the same
 * weights. */
static void ranks_take_over(void **state)
{
    static const struct parts_row rows[] = {{1, 0, 2, "nvme"}, {2, 3, 2, "nvme"}, {2, 3, 4, "host"},
                                            {2, 1, 4, "nvme"}, {2, 2, 5, "host"}, {2, 0, 5, "nvme"},
                                            {2, 1, 6, "host"}, {1, 0, 6, "host"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint64_t whole = parts_train_ranks("fp32", make_whole, &rows[i]);
        uint64_t split = parts_train_ranks("split", make_split, &rows[i]);
        assert_true(whole != 0 && whole == split);
        parts_verify("split", split);
    }
    fixture_remove("fp32");
    fixture_remove("split");
}

static int run_all(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_take_over), /* first: ranks are forks of a process without threads */
        cmocka_unit_test(split_masters_give_the_bits_of_whole_ones),
        cmocka_unit_test(both_halves_are_committed),
        cmocka_unit_test(exports_are_the_same),
        cmocka_unit_test(stopped_and_moved_runs_go_on),
        cmocka_unit_test(killed_runs_go_on),
        cmocka_unit_test(other_masters_are_refused),
        cmocka_unit_test(rot_of_either_half_is_found),
    };
    const struct CMUnitTest on_a_gpu[] = {
        cmocka_unit_test(split_masters_give_the_bits_of_whole_ones),
        cmocka_unit_test(rot_of_either_half_is_found),
    };
    return getenv("SLUICE_TEST_BACKEND")
               ? cmocka_run_group_tests(on_a_gpu, fixture_setup, fixture_teardown)
               : cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}

int main(int argc, char **argv)
{
    bool is_victim = argc == 5 && strcmp(argv[1], "victim") == 0;
    few = getenv("SLUICE_TEST_FEW") != NULL;
    if (few)
        shape.hidden = 64;
    shape.bf16 =
        !(is_victim ? strcmp(argv[4], "4") == 0 : argc == 2 && strcmp(argv[1], "fp32") == 0);
    if (!is_victim)
        return run_all();
    fixture_sets sets = make_sets("split", argv[3], "in_next_forward");
    return parts_be_victim(argv[2], &sets);
}
