/* For the tests of state_verify and state_inspect: a trained run on two drives, what they find in
 * it, and bits that are flipped in its files. Include it once. */
#ifndef SLUICE_TESTS_VERIFY_RIG_H
#define SLUICE_TESTS_VERIFY_RIG_H

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "format/manifest.h"
#include "state/verify.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"
#include "tiers/io_faults.h"
#include "tiers/slab.h"

enum { DAMAGES_MAX = 8, STEPS = 6 };

static const fixture_model shape = {.family = "llama", .bf16 = true, .layers = 2, .hidden = 128};

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
    assert_non_null(self);
    snprintf(state_dir, sizeof state_dir, "%s/state", run_dir);
    assert_int_equal(manifest_read(state_dir, &self->record), 1);
    for (uint32_t d = 0; d < self->record.slabs.drive_count; d++)
        strcpy(self->drives[d].path, self->record.slabs.drives[d]);
    slab_config config = {.drives = self->drives,
                          .drive_count = self->record.slabs.drive_count,
                          .total_bytes = self->record.total_bytes,
                          .stripe_bytes = self->record.stripe_bytes,
                          .open_existing = true};
    memcpy(config.uuid, self->record.slabs.uuid, sizeof config.uuid);
    assert_ok(slab_open(&self->disk, &config));
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
    assert_true(result.weights_hash != 0);
    return result.weights_hash;
}

static void assert_damage(const struct report *report, const char *path, uint64_t file_offset)
{
    assert_int_equal(report->rc, ERR_CORRUPT);
    assert_int_equal(report->damage_count, 1);
    assert_string_equal(report->damages[0].path, path);
    assert_int_equal(report->damages[0].file_offset, file_offset);
    assert_true(report->damages[0].reason[0] != '\0');
}

static uint64_t file_bytes(const char *path)
{
    struct stat status;
    assert_int_equal(stat(path, &status), 0);
    return (uint64_t)status.st_size;
}

static int remove_run(void **state)
{
    fixture_remove("run");
    return 0;
}

#endif
