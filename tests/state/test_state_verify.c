/* state_verify and state_inspect: an intact run is found intact, with the hash that training gave;
 * each bit that is flipped in what a commit names is found, with the unit, tile, file and offset
 * that it is in; what no commit names does not matter. SLUICE_TEST_SEED draws the places. */
#include <sys/stat.h>
#include <unistd.h>

#include "base/rng.h"
#include "base/tile.h"
#include "tests/state/verify_rig.h"
#include "tests/unit.h"

enum { FLIPS = 12 };

static uint64_t seed = 20261121;

/* ---- intact runs ---- */

/* The hash equals that of training for all tiles and drives, also if one tile is several pieces and
 * if there are more tiles than the ring has room for. */
static void intact_runs_are_intact(void **state)
{
    static const struct {
        uint32_t hidden, tile_elems;
        const char *backend;
    } cases[] = {
        {128, 32768, "auto"}, {256, 0, "auto"}, {128, 65536, "pool"}, {256, 32768, "auto"}};
    uint64_t hashes[2] = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        static fixture_result result;
        fixture_model model = shape;
        model.hidden = cases[i].hidden;
        fixture_sets sets = make_sets();
        fixture_set(&sets, "schedule.tile_elems=%u", cases[i].tile_elems);
        fixture_set(&sets, "io.backend=%s", cases[i].backend);
        fixture_set(&sets, "run.steps=2");
        fixture_train_good("run", &model, &sets, &result);
        assert_intact(fixture_path("run", NULL), 2, result.weights_hash);
        uint64_t *hash = &hashes[cases[i].hidden == 128];
        assert_true(*hash == 0 || *hash == result.weights_hash);
        *hash = result.weights_hash;
        fixture_remove("run");
    }
}

/* Whatever order requests complete in, and also where transfers are cut short and retried. */
static void troubled_reads_change_nothing(void **state)
{
    fixture_sets sets = make_sets();
    uint64_t hash = train_run_of("run", &sets);
    const io_faults faults = {
        .seed = seed, .short_rate = 300, .retry_rate = 200, .latency_us_max = 300};
    const struct report *report = verify_with(fixture_path("run", NULL), &faults, NULL);
    assert_int_equal(report->rc, 0);
    assert_true(report->sum.weights_hash == hash);
}

/* ---- damage ---- */

/* A bit in one of the streams, by turns; of 8-bit codes every second time in a scale. */
static void flip_in_extent(const struct opened *run, uint64_t round, uint64_t hash)
{
    const manifest *record = &run->record;
    const manifest_extent *extent =
        &record->extents[rng_below(seed, 1, round, record->extent_count)];
    uint32_t streams = record->state_streams, stream = round % tile_stream_count(streams);
    uint64_t at_stream =
        rng_below(seed, 3, round, tile_stream_bytes(streams, extent->elem_count, stream));
    if (tile_stream_format(streams, stream) == TILE_INT8 && round / 3 % 2)
        at_stream = at_stream / TILE_CODE_BLOCK_BYTES * TILE_CODE_BLOCK_BYTES +
                    TILE_CODE_BLOCK_ELEMS +
                    rng_below(seed, 2, round, TILE_CODE_BLOCK_BYTES - TILE_CODE_BLOCK_ELEMS);
    uint64_t within = tile_stream_offset(streams, extent->elem_count, stream) + at_stream;
    unsigned bit = (unsigned)rng_below(seed, 4, round, 8);
    uint64_t at, begin;
    const char *file = byte_place(run, extent, within, &at);
    flip(file, at, bit);
    const struct report *report = verify(fixture_path("run", NULL));
    const char *first = byte_place(run, extent, 0, &begin);
    assert_damage(report, first, begin);
    const struct state_damage *damage = &report->damages[0];
    assert_int_equal(damage->unit, extent->unit);
    assert_int_equal(damage->tile, extent->tile);
    assert_int_equal(damage->size_bytes, extent->size_bytes);
    assert_true(damage->expected == extent->checksum && damage->found != extent->checksum);
    static const char *const names[] = {"embed", "block.0", "block.1", "head"};
    assert_string_equal(damage->unit_name, names[extent->unit]);
    assert_true(report->sum.weights_hash == 0);
    flip(file, at, bit);
    assert_intact(fixture_path("run", NULL), record->point.step, hash);
}

static void flips_in_extents_are_found(void **state)
{
    fixture_sets sets = make_sets();
    uint64_t hash = train_run_of("run", &sets);
    struct opened *run = open_run(fixture_path("run", NULL));
    assert_true(run->record.extent_count > 8);
    for (uint64_t round = 0; round < FLIPS; round++)
        flip_in_extent(run, round, hash);

    /* In moments of 8 bits, codes and scales. */
    static const char *const formats[] = {"bf16", "8bit"};
    for (int i = 0; i < 2; i++) {
        close_run(run);
        fixture_remove("run");
        sets = make_sets();
        fixture_set(&sets, "state.moments=%s", formats[i]);
        hash = train_run_of("run", &sets);
        run = open_run(fixture_path("run", NULL));
        assert_true(tile_has_formats(run->record.state_streams));
        for (uint64_t round = 0; round < FLIPS; round++)
            flip_in_extent(run, round, hash);
    }

    /* All of several, each once. */
    uint64_t at;
    const char *file;
    for (uint64_t i = 0; i < 3; i++) {
        file = byte_place(run, &run->record.extents[i], 4 * i, &at);
        flip(file, at, 0);
    }
    const struct report *report = verify(fixture_path("run", NULL));
    assert_int_equal(report->damage_count, 3);
    for (uint64_t i = 0; i < 3; i++) {
        assert_int_equal(report->damages[i].unit, run->record.extents[i].unit);
        assert_int_equal(report->damages[i].tile, run->record.extents[i].tile);
        file = byte_place(run, &run->record.extents[i], 4 * i, &at);
        flip(file, at, 0);
    }

    /* Between two streams nothing is committed. */
    const manifest_extent *first = &run->record.extents[0];
    file = byte_place(run, first,
                      tile_stream_offset(run->record.state_streams, first->elem_count, 1) - 1, &at);
    flip(file, at, 3);
    assert_intact(fixture_path("run", NULL), run->record.point.step, hash);
    close_run(run);
}

static void flips_in_headers_are_found(void **state)
{
    fixture_sets sets = make_sets();
    uint64_t hash = train_run_of("run", &sets);
    struct opened *run = open_run(fixture_path("run", NULL));
    for (uint64_t round = 0; round < FLIPS; round++) {
        const char *file = run->disk.files[round % 2].path;
        uint64_t at = rng_below(seed, 5, round, SLAB_HEADER_BYTES);
        flip(file, at, (unsigned)(round % 8));
        const struct report *report = verify(fixture_path("run", NULL));
        assert_damage(report, file, 0);
        assert_string_equal(report->damages[0].unit_name, "");
        assert_int_equal(report->damages[0].size_bytes, SLAB_HEADER_BYTES);
        flip(file, at, (unsigned)(round % 8));
    }
    assert_intact(fixture_path("run", NULL), run->record.point.step, hash);
    close_run(run);
}

/* Slabs that are absent, cut short, or of another run. */
static void other_slabs_are_found(void **state)
{
    fixture_sets sets = make_sets();
    uint64_t hash = train_run_of("run", &sets);
    struct opened *run = open_run(fixture_path("run", NULL));
    static char paths[2][FILE_PATH_BYTES], moved[2][2 * FILE_PATH_BYTES + 8];
    for (int i = 0; i < 2; i++) {
        strcpy(paths[i], run->disk.files[i].path);
        snprintf(moved[i], sizeof moved[i], "%s.moved", paths[i]);
        assert_int_equal(rename(paths[i], moved[i]), 0);
    }
    const struct report *report = verify(fixture_path("run", NULL));
    assert_int_equal(report->rc, ERR_CORRUPT);
    assert_int_equal(report->damage_count, 2);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(report->damages[i].path, paths[i]);
        assert_non_null(strstr(report->damages[i].reason, "not there"));
    }
    assert_int_equal(rename(moved[0], paths[0]), 0);
    assert_damage(verify(fixture_path("run", NULL)), paths[1], 0);

    assert_int_equal(link(paths[0], paths[1]), 0); /* the other drive's file */
    assert_damage(verify(fixture_path("run", NULL)), paths[1], 0);
    assert_int_equal(unlink(paths[1]), 0);
    assert_int_equal(rename(moved[1], paths[1]), 0);

    struct stat status;
    assert_int_equal(stat(paths[1], &status), 0);
    assert_int_equal(truncate(paths[1], status.st_size - 4096), 0);
    assert_damage(verify(fixture_path("run", NULL)), paths[1], 0);
    assert_int_equal(truncate(paths[1], status.st_size), 0);
    report = verify(fixture_path("run", NULL)); /* and what was there is gone, or was not needed */
    assert_true(report->rc == 0 ? report->sum.weights_hash == hash : report->damage_count > 0);
    close_run(run);
}

/* The run has two commits: a damaged older slot is told of and the newer one is compared; where
 * the newer one is damaged, or was cut short while it was written, the older commit is there and
 * whole. */
static void flips_in_manifests_are_found(void **state)
{
    fixture_sets sets = make_sets();
    uint64_t hash = train_run_of("run", &sets);
    struct state_inspect_summary sum;
    assert_ok(state_inspect(fixture_path("run", NULL), &sum));
    assert_string_equal(sum.state, "committed");
    assert_int_equal(sum.record.point.step, STEPS);
    int newer = sum.slots[1].generation > sum.slots[0].generation;
    uint64_t older_step = sum.slots[!newer].step;
    assert_int_equal(sum.slots[0].outcome, MANIFEST_SLOT_VALID);
    assert_int_equal(sum.slots[1].outcome, MANIFEST_SLOT_VALID);
    assert_true(older_step < STEPS);
    state_inspect_fini(&sum);
    for (uint64_t round = 0; round < FLIPS; round++) {
        bool is_newer = round % 2 != 0;
        char file[32], path[2 * FIXTURE_PATH_BYTES];
        snprintf(file, sizeof file, "state/manifest-%d", is_newer ? newer : !newer);
        snprintf(path, sizeof path, "%s", fixture_path("run", file));
        uint64_t at = rng_below(seed, 6, round, file_bytes(path));
        flip(path, at, (unsigned)(round % 8));
        const struct report *report = verify(fixture_path("run", NULL));
        assert_damage(report, path, 0);
        assert_int_equal(report->sum.step, is_newer ? older_step : STEPS);
        assert_true(report->sum.weights_hash != 0);
        assert_int_equal(report->sum.weights_hash == hash, !is_newer);
        assert_non_null(strstr(report->error, "is whole"));
        assert_ok(state_inspect(fixture_path("run", NULL), &sum));
        assert_int_equal(sum.record.point.step, is_newer ? older_step : STEPS);
        assert_int_equal(sum.slots[is_newer ? newer : !newer].outcome, MANIFEST_SLOT_DAMAGED);
        assert_true(sum.slots[is_newer ? newer : !newer].reason[0] != '\0');
        state_inspect_fini(&sum);
        flip(path, at, (unsigned)(round % 8));
    }
    assert_intact(fixture_path("run", NULL), STEPS, hash);

    char file[32];
    snprintf(file, sizeof file, "state/manifest-%d", newer);
    assert_int_equal(truncate(fixture_path("run", file), 300), 0);
    assert_damage(verify(fixture_path("run", NULL)), fixture_path("run", file), 0);

    /* Nothing says what was committed. */
    flip(fixture_path("run", newer ? "state/manifest-0" : "state/manifest-1"), 40, 0);
    const struct report *report = verify(fixture_path("run", NULL));
    assert_int_equal(report->rc, ERR_CORRUPT);
    assert_int_equal(report->damage_count, 2);
    assert_ok(state_inspect(fixture_path("run", NULL), &sum));
    assert_string_equal(sum.state, "damaged");
    state_inspect_fini(&sum);
}

/* A drive that fails, or brings other bytes, is told of; one that breaks ends it. */
static void bad_reads_are_told(void **state)
{
    fixture_sets sets = make_sets();
    uint64_t hash = train_run_of("run", &sets);
    io_faults faults = {.seed = seed, .at_transfer = 7, .at_kind = IO_FAULT_EIO};
    const struct report *report = verify_with(fixture_path("run", NULL), &faults, NULL);
    assert_int_equal(report->rc, ERR_CORRUPT);
    assert_int_equal(report->damage_count, 1);
    assert_true(report->damages[0].expected == 0 && report->damages[0].found == 0);
    assert_non_null(strstr(report->damages[0].reason, "Input/output error"));
    assert_true(report->damages[0].unit_name[0] != '\0');
    faults.at_kind = IO_FAULT_FLIP;
    report = verify_with(fixture_path("run", NULL), &faults, NULL);
    assert_int_equal(report->rc == ERR_CORRUPT, report->damage_count == 1); /* 0: in a padding */
    faults = (io_faults){.seed = seed, .break_after = 5};
    report = verify_with(fixture_path("run", NULL), &faults, NULL);
    assert_true(report->rc < 0 && report->rc != ERR_CORRUPT);
    assert_int_equal(report->damage_count, 0);
    assert_intact(fixture_path("run", NULL), STEPS, hash);
}

int main(void)
{
    seed = unit_seed(seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(intact_runs_are_intact, remove_run),
        cmocka_unit_test_teardown(troubled_reads_change_nothing, remove_run),
        cmocka_unit_test_teardown(flips_in_extents_are_found, remove_run),
        cmocka_unit_test_teardown(flips_in_headers_are_found, remove_run),
        cmocka_unit_test_teardown(other_slabs_are_found, remove_run),
        cmocka_unit_test_teardown(flips_in_manifests_are_found, remove_run),
        cmocka_unit_test_teardown(bad_reads_are_told, remove_run),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
