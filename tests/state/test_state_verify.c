/* state_verify and state_inspect: an intact run is found intact, with the hash that training gave;
 * each bit that is flipped in what a commit names is found, with the unit, tile, file and offset
 * that it is in; what no commit names does not matter. SLUICE_TEST_SEED draws the places. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/tile.h"
#include "format/manifest.h"
#include "state/verify.h"
#include "tests/train/train_fixture.h"
#include "tiers/io.h"
#include "tiers/io_faults.h"
#include "tiers/slab.h"

enum { DAMAGES_MAX = 8, STEPS = 6, FLIPS = 12 };

static const fixture_model shape = {.family = "llama", .bf16 = true, .layers = 2, .hidden = 128};
static uint64_t seed = 20261121;

/* ---- a run and a look at it ---- */

struct report {
    int rc;
    char error[ERR_TEXT_BYTES];
    struct state_verify_summary sum;
    struct state_damage damages[DAMAGES_MAX];
    uint64_t damage_count, progress_count, done_bytes, total_bytes;
};

static void note_damage(void *user, const struct state_damage *damage)
{
    struct report *report = user;
    if (report->damage_count < DAMAGES_MAX)
        report->damages[report->damage_count] = *damage;
    report->damage_count++;
}

static void note_progress(void *user, uint64_t done_bytes, uint64_t total_bytes, double seconds)
{
    struct report *report = user;
    assert_true(done_bytes >= report->done_bytes && done_bytes <= total_bytes && seconds >= 0);
    report->done_bytes = done_bytes;
    report->total_bytes = total_bytes;
    report->progress_count++;
}

static const struct report *verify_with(const char *run_dir, const io_faults *faults,
                                        const volatile sig_atomic_t *stop)
{
    static struct report report;
    memset(&report, 0, sizeof report);
    struct state_verify_options asked = {.run_dir = run_dir,
                                         .faults = faults,
                                         .stop = stop,
                                         .on_damage = note_damage,
                                         .on_progress = note_progress,
                                         .user = &report};
    report.rc = state_verify(&asked, &report.sum);
    snprintf(report.error, sizeof report.error, "%s", report.rc < 0 ? err_text() : "");
    assert_int_equal(report.sum.damage_count, report.damage_count);
    return &report;
}

static const struct report *verify(const char *run_dir)
{
    return verify_with(run_dir, NULL, NULL);
}

static void assert_intact(const char *run_dir, uint64_t step, uint64_t hash)
{
    const struct report *report = verify(run_dir);
    if (report->rc != 0)
        fail_msg("%s: %s", report->error, report->damages[0].reason);
    assert_int_equal(report->damage_count, 0);
    assert_int_equal(report->sum.step, step);
    assert_true(report->sum.weights_hash == hash);
    assert_true(report->sum.bytes > 0 && report->sum.bytes <= report->sum.slab_bytes);
    assert_true(report->progress_count > 0 && report->done_bytes == report->sum.bytes);
    assert_int_equal(report->total_bytes, report->sum.bytes);
}

/* Two drives, small tiles, a commit every second step. */
static fixture_sets make_sets(void)
{
    fixture_sets sets = {.count = 0};
    fixture_set(&sets, "tiers.place.optimizer=nvme");
    fixture_set(&sets, "run.steps=%d", STEPS);
    fixture_set(&sets, "run.commit_every=2");
    fixture_set(&sets, "schedule.tile_elems=32768");
    fixture_set(&sets,
                "tiers.nvme=[{\"path\":\"%s/run.nvme/a\",\"budget\":\"128MiB\"},"
                "{\"path\":\"%s/run.nvme/b\",\"budget\":\"128MiB\"}]",
                fixture_dir, fixture_dir);
    return sets;
}

/* The run's newest manifest and its slabs. */
struct opened {
    manifest record;
    slab_drive drives[DRIVES_MAX];
    slab disk;
};

static struct opened *open_run(const char *run_dir)
{
    struct opened *self = mem_alloc(1, sizeof *self, "opened run");
    char state_dir[2 * FIXTURE_PATH_BYTES];
    int found;
    assert_non_null(self);
    snprintf(state_dir, sizeof state_dir, "%s/state", run_dir);
    assert_int_equal(manifest_read(state_dir, &self->record, &found) < 0, 0);
    assert_true(found);
    for (uint32_t d = 0; d < self->record.slabs.drive_count; d++)
        strcpy(self->drives[d].path, self->record.slabs.drives[d]);
    slab_config config = {.drives = self->drives,
                          .drive_count = self->record.slabs.drive_count,
                          .total_bytes = self->record.total_bytes,
                          .stripe_bytes = self->record.stripe_bytes,
                          .open_existing = true};
    memcpy(config.uuid, self->record.slabs.uuid, sizeof config.uuid);
    if (slab_open(&self->disk, &config) < 0)
        fail_msg("%s", err_text());
    return self;
}

static void close_run(struct opened *self)
{
    slab_close(&self->disk);
    manifest_fini(&self->record);
    mem_free(self);
}

/* Changes one bit of a file; a second call repairs it. */
static void flip(const char *path, uint64_t offset, unsigned bit)
{
    unsigned char byte;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)offset), 1);
    byte ^= (unsigned char)(1u << bit);
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
    assert_int_equal(close(fd), 0);
}

/* The byte `within` an extent, as a file has it. */
static const char *byte_place(const struct opened *run, const manifest_extent *extent,
                              uint64_t within, uint64_t *file_offset)
{
    slab_piece piece;
    slab_map(&run->disk, extent->offset_bytes + within, 1, &piece);
    *file_offset = piece.file_offset;
    return run->disk.files[piece.drive_idx].path;
}

static uint64_t train_run_of(const char *name, const fixture_sets *sets)
{
    static fixture_result result;
    fixture_train_good(name, &shape, sets, &result);
    assert_true(result.summary.weights_hash != 0);
    return result.summary.weights_hash;
}

/* ---- intact runs ---- */

/* The hash equals that of training for all tiles and drives, also if one tile is several pieces and
 * if there are more tiles than the ring has room for. */
static void intact_runs_are_intact(void **state)
{
    (void)state;
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
        assert_intact(fixture_path("run", NULL), 2, result.summary.weights_hash);
        uint64_t *hash = &hashes[cases[i].hidden == 128];
        assert_true(*hash == 0 || *hash == result.summary.weights_hash);
        *hash = result.summary.weights_hash;
        fixture_remove("run");
    }
}

/* Whatever order requests complete in, and also where transfers are cut short and retried. */
static void troubled_reads_change_nothing(void **state)
{
    (void)state;
    fixture_sets sets = make_sets();
    uint64_t hash = train_run_of("run", &sets);
    const io_faults faults = {
        .seed = seed, .short_rate = 300, .retry_rate = 200, .latency_us_max = 300};
    const struct report *report = verify_with(fixture_path("run", NULL), &faults, NULL);
    assert_int_equal(report->rc, 0);
    assert_true(report->sum.weights_hash == hash);
}

/* ---- damage ---- */

static void assert_damage(const struct report *report, const char *path, uint64_t file_offset)
{
    assert_int_equal(report->rc, ERR_CORRUPT);
    assert_int_equal(report->damage_count, 1);
    assert_string_equal(report->damages[0].path, path);
    assert_int_equal(report->damages[0].file_offset, file_offset);
    assert_true(report->damages[0].reason[0] != '\0');
}

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
    assert_intact(fixture_path("run", NULL), record->step, hash);
}

static void flips_in_extents_are_found(void **state)
{
    (void)state;
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
    assert_intact(fixture_path("run", NULL), run->record.step, hash);
    close_run(run);
}

static void flips_in_headers_are_found(void **state)
{
    (void)state;
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
    assert_intact(fixture_path("run", NULL), run->record.step, hash);
    close_run(run);
}

/* Slabs that are absent, cut short, or of another run. */
static void other_slabs_are_found(void **state)
{
    (void)state;
    fixture_sets sets = make_sets();
    uint64_t hash = train_run_of("run", &sets);
    struct opened *run = open_run(fixture_path("run", NULL));
    static char paths[2][FILE_PATH_BYTES], moved[2][FILE_PATH_BYTES + 8];
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

static uint64_t file_bytes(const char *path)
{
    struct stat status;
    assert_int_equal(stat(path, &status), 0);
    return (uint64_t)status.st_size;
}

/* The run has two commits: a damaged older slot is told of and the newer one is compared; where
 * the newer one is damaged, or was cut short while it was written, the older commit is there and
 * whole. */
static void flips_in_manifests_are_found(void **state)
{
    (void)state;
    fixture_sets sets = make_sets();
    uint64_t hash = train_run_of("run", &sets);
    struct state_inspect_summary sum;
    assert_int_equal(state_inspect(fixture_path("run", NULL), &sum), 0);
    assert_string_equal(sum.state, "committed");
    assert_int_equal(sum.record.step, STEPS);
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
        assert_int_equal(state_inspect(fixture_path("run", NULL), &sum), 0);
        assert_int_equal(sum.record.step, is_newer ? older_step : STEPS);
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
    assert_int_equal(state_inspect(fixture_path("run", NULL), &sum), 0);
    assert_string_equal(sum.state, "damaged");
    state_inspect_fini(&sum);
}

/* A drive that fails, or brings other bytes, is told of; one that breaks ends it. */
static void bad_reads_are_told(void **state)
{
    (void)state;
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

/* ---- what there is to verify ---- */

static void runs_that_cannot_be_verified(void **state)
{
    (void)state;
    struct state_inspect_summary sum;
    const struct report *report = verify(fixture_path("none", NULL));
    assert_int_equal(report->rc, ERR_INPUT);
    assert_int_equal(state_inspect(fixture_path("none", NULL), &sum), ERR_INPUT);
    assert_false(fixture_exists(fixture_path("none", NULL))); /* nothing was made */
    state_inspect_fini(&sum);

    fixture_sets sets = make_sets();
    uint64_t hash = train_run_of("run", &sets);
    int fd = open(fixture_path("run", "state/lock"), O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0);
    report = verify(fixture_path("run", NULL));
    assert_int_equal(report->rc, ERR_INPUT);
    assert_non_null(strstr(report->error, "in use"));
    assert_int_equal(state_inspect(fixture_path("run", NULL), &sum),
                     0); /* that looks all the same */
    state_inspect_fini(&sum);
    close(fd);

    static const volatile sig_atomic_t stop = 1;
    report = verify_with(fixture_path("run", NULL), NULL, &stop);
    assert_int_equal(report->rc, ERR_STOPPED);
    assert_intact(fixture_path("run", NULL), STEPS, hash);

    /* Names need the model; damage is found without. */
    struct opened *run = open_run(fixture_path("run", NULL));
    uint64_t at;
    const char *path = byte_place(run, &run->record.extents[0], 0, &at);
    assert_int_equal(unlink(fixture_path("run", "job.json")), 0);
    flip(path, at, 0);
    report = verify(fixture_path("run", NULL));
    assert_damage(report, path, at);
    assert_string_equal(report->damages[0].unit_name, "unit 0");
    close_run(run);
}

/* The output of inspect agrees with the manifest and the files. */
static void inspection_agrees(void **state)
{
    (void)state;
    fixture_sets sets = make_sets();
    train_run_of("run", &sets);
    struct opened *run = open_run(fixture_path("run", NULL));
    const manifest *record = &run->record;
    struct state_inspect_summary sum;
    assert_int_equal(state_inspect(fixture_path("run", NULL), &sum), 0);
    assert_int_equal(sum.record.step, STEPS);
    assert_int_equal(sum.record.generation, record->generation);
    assert_int_equal(sum.record.seed, 7);
    assert_int_equal(sum.record.tile_elems, record->tile_elems);
    assert_int_equal(sum.record.extent_count, record->extent_count);
    assert_int_equal(sum.file_count, 2);
    for (uint32_t d = 0; d < 2; d++) {
        assert_string_equal(sum.files[d].path, run->disk.files[d].path);
        assert_int_equal(sum.files[d].size_bytes, file_bytes(sum.files[d].path));
        assert_true(sum.files[d].allocated_bytes > 0);
        assert_non_null(strstr(sum.files[d].path, sum.uuid));
    }
    static const char *const names[] = {"embed", "block.0", "block.1", "head"};
    uint64_t tiles = 0, bytes = 0;
    assert_int_equal(sum.unit_count, 4);
    for (uint32_t u = 0; u < 4; u++) {
        assert_string_equal(sum.units[u].name, names[u]);
        assert_int_equal(sum.units[u].offset_bytes, record->extents[tiles].offset_bytes);
        tiles += sum.units[u].tile_count;
        bytes += sum.units[u].size_bytes;
    }
    assert_int_equal(tiles, record->extent_count);
    assert_int_equal(bytes, sum.extents_bytes);
    assert_non_null(strstr(sum.record.identity, "model.num_layers=2\n"));
    assert_int_equal(sum.state_streams, 3);
    assert_int_equal(sum.kept_count, 0);
    state_inspect_fini(&sum);
    close_run(run);
}

/* ---- one run with kept commits, which each of the following cases leaves whole ---- */

static uint64_t kept_hash;

static fixture_sets make_kept_sets(void)
{
    fixture_sets sets = make_sets();
    fixture_set(&sets, "run.keep=[2, 4]");
    return sets;
}

static int train_kept(void **state)
{
    (void)state;
    fixture_sets sets = make_kept_sets();
    kept_hash = train_run_of("run", &sets);
    return 0;
}

/* A kept commit is a run directory: it is verified and inspected as such. */
static void kept_commits_are_runs(void **state)
{
    (void)state;
    struct state_inspect_summary sum, copy;
    assert_int_equal(state_inspect(fixture_path("run", NULL), &sum), 0);
    assert_int_equal(sum.kept_count, 2);
    for (uint32_t i = 0; i < 2; i++) {
        uint64_t step = 2 * (i + 1);
        assert_int_equal(sum.kept[i].step, step);
        const struct report *report = verify(sum.kept[i].path);
        if (report->rc < 0)
            fail_msg("%s", report->error);
        assert_int_equal(report->sum.step, step);
        assert_true(report->sum.weights_hash != 0 && report->sum.weights_hash != kept_hash);
        assert_int_equal(state_inspect(sum.kept[i].path, &copy), 0);
        assert_int_equal(copy.record.step, step);
        assert_string_equal(copy.units[0].name, "embed");
        state_inspect_fini(&copy);
    }
    struct opened *run = open_run(sum.kept[0].path);
    uint64_t at;
    const char *path = byte_place(run, &run->record.extents[3], 8, &at);
    flip(path, at, 1);
    assert_int_equal(verify(sum.kept[0].path)->damage_count, 1);
    assert_int_equal(verify(sum.kept[1].path)->damage_count, 0);
    assert_intact(fixture_path("run", NULL), STEPS, kept_hash);
    flip(path, at, 1);
    assert_int_equal(verify(sum.kept[0].path)->damage_count, 0);
    close_run(run);
    state_inspect_fini(&sum);
}

/* Puts another slab's bytes in the place of this one's. */
static void copy_slab(const char *from, const char *to)
{
    int source = open(from, O_RDONLY | O_CLOEXEC), target = open(to, O_WRONLY | O_CLOEXEC);
    assert_true(source >= 0 && target >= 0);
    for (ssize_t got = 1; got > 0;) {
        got = copy_file_range(source, NULL, target, NULL, 1 << 30, 0);
        assert_true(got >= 0);
    }
    close(source);
    close(target);
}

/* Training on is refused with this text. */
static void assert_no_resume(fixture_sets sets, int code, const char *text)
{
    static fixture_result result;
    const fixture_call call = {.name = NULL};
    fixture_set(&sets, "run.steps=%d", STEPS + 1);
    job *asked = fixture_job("run", &shape, &sets);
    fixture_train(asked, &call, &result);
    if (result.rc != code || !strstr(result.error, text))
        fail_msg("%d: '%s'", result.rc, result.error);
    job_destroy(asked);
}

/* A slab of an earlier commit, copied back from a backup, is told from damage. */
static void old_slabs_are_named(void **state)
{
    (void)state;
    fixture_sets sets = make_kept_sets();
    struct state_inspect_summary now, old;
    assert_int_equal(state_inspect(fixture_path("run", NULL), &now), 0);
    char saved[2][FILE_PATH_BYTES + 8];
    for (uint32_t d = 0; d < 2; d++) {
        snprintf(saved[d], sizeof saved[d], "%s.saved", now.files[d].path);
        assert_int_equal(rename(now.files[d].path, saved[d]), 0);
    }
    for (uint32_t k = 0; k < 2; k++) {
        assert_int_equal(state_inspect(now.kept[k].path, &old), 0);
        for (uint32_t d = 0; d < 2; d++) {
            int fd = open(now.files[d].path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
            assert_true(fd >= 0);
            close(fd);
            copy_slab(old.files[d].path, now.files[d].path);
        }
        state_inspect_fini(&old);
        const struct report *report = verify(fixture_path("run", NULL));
        assert_int_equal(report->rc, ERR_CORRUPT);
        /* The manifest of step 4 still exists, that of step 2 does not. */
        const char *text =
            k ? " is an old copy: it holds the commit of step 4, and the run is at "
                "step 6"
              : "of 4 tiles that were compared is as committed, so it is an old copy";
        if (k == 0 ? !strstr(report->error, "a slab seems to be an old copy")
                   : report->damage_count != 1 || !strstr(report->damages[0].reason, text))
            fail_msg("%s: %s", report->error, report->damages[0].reason);
        assert_no_resume(sets, ERR_CORRUPT, text);
    }
    for (uint32_t d = 0; d < 2; d++)
        assert_int_equal(rename(saved[d], now.files[d].path), 0);
    assert_intact(fixture_path("run", NULL), STEPS, kept_hash);
    state_inspect_fini(&now);
}

/* A drive that is not mounted is no damage, and nothing is made in its place. */
static void drives_that_are_not_mounted(void **state)
{
    (void)state;
    fixture_sets sets = make_kept_sets();
    struct state_inspect_summary sum;
    char drive[FILE_PATH_BYTES], away[FILE_PATH_BYTES + 8];
    snprintf(drive, sizeof drive, "%s/run.nvme/b", fixture_dir);
    snprintf(away, sizeof away, "%s.away", drive);
    assert_int_equal(rename(drive, away), 0);
    for (int exists = 0; exists < 2; exists++) {
        if (exists)
            assert_int_equal(mkdir(drive, 0700), 0);
        const struct report *report = verify(fixture_path("run", NULL));
        if (report->rc != ERR_INPUT || report->damage_count != 0 ||
            !strstr(report->error, "run.nvme/b is not mounted or is empty"))
            fail_msg("%d: '%s'", report->rc, report->error);
        assert_no_resume(sets, ERR_INPUT, "run.nvme/b is not mounted or is empty");
        assert_int_equal(state_inspect(fixture_path("run", NULL), &sum), 0);
        assert_false(sum.files[0].is_unmounted);
        assert_true(sum.files[1].is_unmounted);
        state_inspect_fini(&sum);
        assert_int_equal(rmdir(drive), exists ? 0 : -1); /* still absent, or empty */
    }
    assert_int_equal(rename(away, drive), 0);
    assert_intact(fixture_path("run", NULL), STEPS, kept_hash);
}

static int remove_run(void **state)
{
    (void)state;
    fixture_remove("run");
    return 0;
}

int main(void)
{
    const char *asked = getenv("SLUICE_TEST_SEED");
    if (asked)
        seed = strtoull(asked, NULL, 10);
    printf("seed %llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(intact_runs_are_intact, remove_run),
        cmocka_unit_test_teardown(troubled_reads_change_nothing, remove_run),
        cmocka_unit_test_teardown(flips_in_extents_are_found, remove_run),
        cmocka_unit_test_teardown(flips_in_headers_are_found, remove_run),
        cmocka_unit_test_teardown(other_slabs_are_found, remove_run),
        cmocka_unit_test_teardown(flips_in_manifests_are_found, remove_run),
        cmocka_unit_test_teardown(bad_reads_are_told, remove_run),
        cmocka_unit_test_teardown(runs_that_cannot_be_verified, remove_run),
        cmocka_unit_test_teardown(inspection_agrees, remove_run),
        cmocka_unit_test_setup(kept_commits_are_runs, train_kept),
        cmocka_unit_test(old_slabs_are_named),
        cmocka_unit_test_teardown(drives_that_are_not_mounted, remove_run),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
