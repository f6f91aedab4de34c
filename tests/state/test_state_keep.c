/* Kept commits: a copy is a run directory of its own with the bytes of the commit; an attempt that
 * was killed at any point leaves nothing that counts, and is made anew; one that fails leaves
 * nothing at all, and the run goes on. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <xxhash.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/tile.h"
#include "state/state_internal.h"
#include "tests/tiers/tiers_helpers.h"
#include "tests/unit.h"

enum { SEED = 20261121, DRIVES = 2, EXTENTS = 4, STREAMS = 2, STEP = 50, GENERATION = 9 };

static const char job_text[] = "{\"run\": {\"steps\": 100}}\n", buffers_text[] = "tensors";

static struct {
    char dir[300]; /* the run's */
    slab disk, copy;
    slab_drive drives[DRIVES];
    struct job asked;
    manifest record, read;
    manifest_extent extents[EXTENTS];
    uint64_t list[3];
} rig;

static unsigned char page[TILE_BLOCK_BYTES] __attribute__((aligned(TILE_BLOCK_BYTES)));

static const char *path_of(const char *format, ...) __attribute__((format(printf, 1, 2)));
static const char *path_of(const char *format, ...)
{
    static char path[4][1024];
    static unsigned turn;
    char *out = path[turn++ % 4];
    int used = snprintf(out, sizeof path[0], "%s/", directory);
    va_list args;
    va_start(args, format);
    vsnprintf(out + used, sizeof path[0] - (size_t)used, format, args);
    va_end(args);
    return out;
}

static bool exists(const char *path)
{
    struct stat status;
    return lstat(path, &status) == 0;
}

static void write_to(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void assert_text_is(const char *path, const char *text)
{
    char found[512] = "";
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t got = fread(found, 1, sizeof found - 1, file);
    fclose(file);
    found[got] = '\0';
    assert_string_equal(found, text);
}

static uint64_t entry_count;

static int count_entry(const char *path, const struct stat *status, int type, struct FTW *place)
{
    entry_count++;
    return 0;
}

/* Files and directories of the whole test. */
static uint64_t count_all(void)
{
    entry_count = 0;
    assert_int_equal(nftw(directory, count_entry, 16, FTW_PHYS), 0);
    return entry_count;
}

/* Page `idx` of an extent: what the run wrote, with `turn` saying how often. */
static void move_page(const slab *disk, const manifest_extent *extent, uint64_t idx, bool is_write)
{
    slab_piece piece;
    slab_map(disk, extent->offset_bytes + idx * sizeof page, sizeof page, &piece);
    assert_int_equal(piece.size_bytes, sizeof page);
    int fd = disk->files[piece.drive_idx].fd;
    ssize_t moved = is_write ? pwrite(fd, page, sizeof page, (off_t)piece.file_offset)
                             : pread(fd, page, sizeof page, (off_t)piece.file_offset);
    assert_int_equal(moved, sizeof page);
}

static unsigned char page_byte(uint64_t extent, uint64_t idx, int turn)
{
    return (unsigned char)(1 + rng_below(SEED, (uint64_t)turn, extent * 1000 + idx, 255));
}

static void write_extents(int turn)
{
    for (uint64_t i = 0; i < EXTENTS; i++)
        for (uint64_t k = 0; k < rig.extents[i].size_bytes / sizeof page; k++) {
            memset(page, page_byte(i, k, turn), sizeof page);
            move_page(&rig.disk, &rig.extents[i], k, true);
        }
}

static void check_extents(const slab *disk, int turn)
{
    for (uint64_t i = 0; i < EXTENTS; i++)
        for (uint64_t k = 0; k < rig.extents[i].size_bytes / sizeof page; k++) {
            move_page(disk, &rig.extents[i], k, false);
            for (size_t b = 0; b < sizeof page; b++)
                if (page[b] != page_byte(i, k, turn))
                    fail_msg("extent %" PRIu64 ", page %" PRIu64 ", byte %zu is another", i, k, b);
        }
}

static void make_record(void)
{
    static const uint64_t unit_elems[] = {70000, 5};
    uint64_t offset = 0, count = 0;
    for (uint32_t u = 0; u < 2; u++)
        for (uint64_t k = 0; k < tile_count(unit_elems[u], TILE_ELEMS_STEP); k++) {
            uint64_t held = tile_elems_at(unit_elems[u], TILE_ELEMS_STEP, k);
            manifest_extent *extent = &rig.extents[count++];
            *extent = (manifest_extent){.unit = u,
                                        .tile = (uint32_t)k,
                                        .offset_bytes = offset,
                                        .size_bytes = tile_bytes(held, STREAMS),
                                        .elem_begin = k * TILE_ELEMS_STEP,
                                        .elem_count = held,
                                        .checksum = 1000 + k};
            offset += 2 * extent->size_bytes;
        }
    assert_int_equal(count, EXTENTS);
    manifest *record = &rig.record;
    *record = (manifest){.state = MANIFEST_COMMITTED,
                         .generation = GENERATION,
                         .point = {.step = STEP,
                                   .seed = 3,
                                   .loss_scale = 1,
                                   .scale_last_overflow = -1,
                                   .scale_hysteresis_left = 1},
                         .identity = "test=1\n",
                         .tile_elems = TILE_ELEMS_STEP,
                         .total_bytes = rig.disk.total_bytes,
                         .stripe_bytes = rig.disk.stripe_bytes,
                         .state_streams = STREAMS,
                         .extent_count = EXTENTS,
                         .extents = rig.extents};
    record->fingerprint = XXH3_64bits(record->identity, strlen(record->identity));
    memcpy(record->slabs.uuid, rig.disk.uuid, sizeof record->slabs.uuid);
    record->slabs.drive_count = DRIVES;
    for (uint32_t d = 0; d < DRIVES; d++)
        memcpy(record->slabs.drives[d], rig.drives[d].path, sizeof record->slabs.drives[d]);
    record->leftover.drive_count = 1; /* of the run, not of the copy */
    record->leftover.uuid[0] = 99;
    snprintf(record->leftover.drives[0], sizeof record->leftover.drives[0], "/nowhere");
}

/* A run that committed step 50, on drives "<name>0" and "<name>1". */
static void open_run(const char *name, uint8_t uuid)
{
    for (uint32_t d = 0; d < DRIVES; d++) {
        char drive[32];
        snprintf(drive, sizeof drive, "%s%u", name, d);
        helper_drive(&rig.drives[d], drive, 8 * MIB, 1);
    }
    slab_config config = {.drives = rig.drives,
                          .drive_count = DRIVES,
                          .total_bytes = 4 * MIB,
                          .uuid = {uuid, 0xcd},
                          .stripe_bytes = MIB};
    assert_ok(slab_open(&rig.disk, &config));
    make_record();
    write_extents(0);
}

static int setup(void **state)
{
    TRY(directory_make(state));
    memset(&rig, 0, sizeof rig);
    snprintf(rig.dir, sizeof rig.dir, "%s", path_of("run"));
    if (mkdir(rig.dir, 0777) != 0)
        return -1;
    write_to(path_of("run/job.json"), job_text);
    assert_int_equal(mkdir(path_of("run/buffers"), 0777), 0);
    write_to(path_of("run/buffers/step-000000050.pt"), buffers_text);
    rig.asked.run.keep_every = 25;
    rig.asked.run.keep = rig.list;
    open_run("drive", 0xab);
    return 0;
}

static int teardown(void **state)
{
    slab_close(&rig.disk);
    return directory_remove(state);
}

static const struct ranks alone = {.world = 1};

static state_keeper *make_keeper(void)
{
    state_keeper *self;
    assert_ok(state_keeper_create(rig.dir, &rig.asked, EXTENTS, &self));
    return self;
}

static void keep(void)
{
    state_keeper *self = make_keeper();
    mem_stats before, after;
    mem_get_stats(&before);
    assert_ok(state_keep(self, &alone, &rig.disk, &rig.record));
    mem_get_stats(&after);
    assert_int_equal(after.call_count, before.call_count);
    state_keeper_destroy(self);
}

/* Opens what the copy's manifest names. */
static void open_copy(void)
{
    static slab_drive drives[DRIVES];
    slab_config config = {.drives = drives,
                          .drive_count = rig.read.slabs.drive_count,
                          .total_bytes = rig.read.total_bytes,
                          .stripe_bytes = rig.read.stripe_bytes,
                          .open_existing = true};
    memcpy(config.uuid, rig.read.slabs.uuid, sizeof config.uuid);
    for (uint32_t d = 0; d < DRIVES; d++)
        memcpy(drives[d].path, rig.read.slabs.drives[d], sizeof drives[d].path);
    assert_ok(slab_open(&rig.copy, &config));
}

/* killed between the manifest and the note's removal, which harms nobody */
static bool may_have_note;

/* The copy of step 50 is complete: all of a run directory, and the bytes of `turn`. */
static void check_copy(int turn)
{
    assert_int_equal(manifest_read(path_of("run/keep/step-000000050/state"), &rig.read), 1);
    assert_true(exists(path_of("run/keep/step-000000050/state/manifest-1")));
    assert_true(may_have_note || !exists(path_of("run/keep/step-000000050/state/manifest-0")));
    assert_text_is(path_of("run/keep/step-000000050/job.json"), job_text);
    assert_text_is(path_of("run/keep/step-000000050/buffers/step-000000050.pt"), buffers_text);
    const manifest *read = &rig.read;
    assert_int_equal(read->state, MANIFEST_COMMITTED);
    assert_int_equal(read->generation, GENERATION);
    assert_int_equal(read->point.step, STEP);
    assert_int_equal(read->fingerprint, rig.record.fingerprint);
    assert_int_equal(read->leftover.drive_count, 0);
    assert_int_equal(read->slabs.drive_count, DRIVES);
    assert_int_equal(read->extent_count, EXTENTS);
    assert_memory_equal(read->extents, rig.extents, sizeof rig.extents);
    for (uint32_t d = 0; d < DRIVES; d++) {
        char hex[33], path[2 * FILE_PATH_BYTES];
        for (int i = 0; i < 16; i++)
            snprintf(hex + 2 * i, 3, "%02x", rig.disk.uuid[i]);
        snprintf(path, sizeof path, "%s/sluice-%s.keep/step-000000050", rig.drives[d].path, hex);
        assert_string_equal(read->slabs.drives[d], path);
    }
    open_copy();
    check_extents(&rig.copy, turn);
    slab_close(&rig.copy);
    manifest_fini(&rig.read);
}

static void which_steps(void **state)
{
    struct job *asked = &rig.asked;
    assert_false(state_is_kept(asked, 0));
    assert_true(state_is_kept(asked, 25) && state_is_kept(asked, 50));
    assert_false(state_is_kept(asked, 24) || state_is_kept(asked, 51));
    asked->run.keep_every = 0;
    assert_false(state_is_kept(asked, 25));
    rig.list[0] = 3, rig.list[1] = 7, rig.list[2] = UINT64_MAX;
    asked->run.keep_count = 3;
    assert_true(state_is_kept(asked, 3) && state_is_kept(asked, 7));
    assert_true(state_is_kept(asked, UINT64_MAX));
    assert_false(state_is_kept(asked, 0) || state_is_kept(asked, 4));
}

static void a_copy_is_a_run(void **state)
{
    rig.record.point.step = 51; /* not one to keep */
    uint64_t count = count_all();
    keep();
    assert_int_equal(count_all(), count);
    rig.record.point.step = STEP;
    keep();
    check_copy(0);
    check_extents(&rig.disk, 0);
    write_extents(1); /* the run goes on */
    check_copy(0);
    write_to(path_of("run/job.json"), "{}");
    keep(); /* there already: left alone */
    check_copy(0);
    rig.record.point.step = 75;
    rig.record.generation++;
    keep(); /* a second one beside it */
    rig.record.point.step = STEP;
    rig.record.generation--;
    check_copy(0);
    assert_true(exists(path_of("run/keep/step-000000075/state/manifest-0")));
    /* the run has no file of that step */
    assert_true(exists(path_of("run/keep/step-000000075/buffers")));
    assert_false(exists(path_of("run/keep/step-000000075/buffers/step-000000075.pt")));
    assert_ok(slab_remove(&rig.disk)); /* the run is removed: the copies stay */
    open_run("drive", 0xab);
    check_copy(0);
}

static struct {
    const char *name;
    int at, met, result; /* result 0: SIGKILL */
} point;

static int on_point(void *user, const char *name)
{
    if (strcmp(name, point.name) != 0 || ++point.met != point.at)
        return 0;
    if (point.result == 0)
        kill(getpid(), SIGKILL);
    return err_set(point.result, "%s fails", name);
}

/* A process of its own keeps the commit and is killed at the point, or is not where it does not get
 * there. */
static bool keep_killed(const char *name, int at)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        point.name = name, point.at = at, point.met = 0, point.result = 0;
        failpoint_hook(on_point, NULL);
        state_keeper *self;
        int rc = state_keeper_create(rig.dir, &rig.asked, EXTENTS, &self);
        if (rc == 0)
            rc = state_keep(self, &alone, &rig.disk, &rig.record);
        _exit(rc == 0 ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    return WIFSIGNALED(status);
}

static void remove_copy(void)
{
    char command[600];
    snprintf(command, sizeof command, "rm -rf %s/run/keep %s/*/*.keep", directory, directory);
    assert_int_equal(system(command), 0);
}

static const char *const points[] = {"keep.begin",    "keep.copied",      "manifest.begin",
                                     "manifest.half", "manifest.written", "manifest.synced"};

static void killed_anywhere(void **state)
{
    uint64_t empty = count_all();
    int killed = 0;
    for (size_t p = 0; p < sizeof points / sizeof points[0]; p++) {
        for (int at = 1; keep_killed(points[p], at); at++, killed++) {
            bool has_commit = strcmp(points[p], "manifest.synced") == 0 && at == 2;
            state_keeper *self =
                make_keeper(); /* the next process: removes what counts for nothing */
            assert_true(has_commit || count_all() == empty);
            state_keeper_destroy(self);
            keep();
            may_have_note = has_commit;
            check_copy(0);
            may_have_note = false;
            remove_copy();
            assert_int_equal(count_all(), empty);
        }
        check_copy(0); /* of the process that did not meet the point so often */
        remove_copy();
    }
    assert_int_equal(killed, 2 + 4 * 2); /* the note and the manifest, at each point of a slot */
}

/* Between the attempt and the next start the run has moved to other drives. */
static void killed_before_a_move(void **state)
{
    static const char *const late[] = {"keep.copied", "manifest.half"};
    for (int i = 0; i < 2; i++) {
        uint64_t empty = count_all();
        assert_true(keep_killed(late[i], 1 + i));
        assert_ok(slab_remove(&rig.disk));
        open_run(i ? "third" : "other", (uint8_t)(0xb0 + i));
        keep();
        check_copy(0);
        remove_copy();
        assert_true(count_all() <= empty + DRIVES);
    }
}

/* Takes what is written to standard error meanwhile. */
static char log_text[4096];

static void keep_failing(void)
{
    const char *path = path_of("log");
    int saved = dup(STDERR_FILENO), fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0666);
    assert_true(saved >= 0 && fd >= 0);
    state_keeper *self = make_keeper();
    dup2(fd, STDERR_FILENO);
    log_set_level(LOG_INFO);
    int rc = state_keep(self, &alone, &rig.disk, &rig.record);
    log_set_level(LOG_QUIET);
    dup2(saved, STDERR_FILENO);
    close(saved);
    state_keeper_destroy(self);
    ssize_t got = pread(fd, log_text, sizeof log_text - 1, 0);
    log_text[got > 0 ? got : 0] = '\0';
    close(fd);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rc, 0);
}

static void assert_logged(const char *words)
{
    if (!strstr(log_text, words))
        fail_msg("expected \"%s\" in: %s", words, log_text);
}

static void failed_anywhere(void **state)
{
    static const int codes[] = {-ENOSPC, -EIO};
    uint64_t empty = count_all();
    for (size_t p = 0; p < sizeof points / sizeof points[0]; p++)
        for (int i = 0; i < 4; i++) {
            point.name = points[p], point.at = 1 + i / 2, point.met = 0;
            point.result = codes[i % 2];
            failpoint_hook(on_point, NULL);
            keep_failing();
            failpoint_hook(NULL, NULL);
            if (point.met < point.at) { /* it did not come to that: kept */
                check_copy(0);
                remove_copy();
                continue;
            }
            assert_int_equal(count_all(), empty);
            assert_logged("warning: the commit of step 50 is not kept: ");
            assert_logged("its own commit of that step is intact");
            if (point.result == -ENOSPC)
                assert_logged("KiB, free are ");
        }
    check_extents(&rig.disk, 0);
}

/* Real failures: files cannot grow, the directory is none, job.json is gone. */
static void what_cannot_be_copied(void **state)
{
    uint64_t empty = count_all();
    struct rlimit saved, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &saved), 0);
    signal(SIGXFSZ, SIG_IGN);
    small = saved;
    small.rlim_cur = 300000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    keep_failing();
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &saved), 0);
    assert_logged("the commit of step 50 is not kept: ");
    assert_int_equal(count_all(), empty);
    assert_int_equal(unlink(path_of("run/job.json")), 0);
    keep_failing();
    assert_logged("job.json: No such file or directory");
    assert_int_equal(count_all(), empty - 1);
    write_to(path_of("run/job.json"), job_text);
    write_to(path_of("run/keep"), "in the way");
    keep_failing();
    assert_logged("is not kept: ");
    assert_text_is(path_of("run/keep"), "in the way");
    assert_int_equal(unlink(path_of("run/keep")), 0);
    for (uint32_t d = 0; d < DRIVES; d++) /* a path too long to stand below */
        memset(rig.record.slabs.drives[d], 'x', FILE_PATH_BYTES - 10);
    keep_failing();
    assert_logged("is longer than");
    assert_int_equal(count_all(), empty);
    make_record();
    keep_failing(); /* which does not fail now */
    check_copy(0);
}

/* A copy that somebody has changed belongs to them and is not touched. */
static void others_are_left_alone(void **state)
{
    keep();
    manifest gone_on = rig.record; /* trained on in the copy */
    gone_on.leftover.drive_count = 0;
    gone_on.generation++;
    gone_on.point.step = 60;
    assert_ok(manifest_write(path_of("run/keep/step-000000050/state"), &gone_on));
    assert_int_equal(mkdir(path_of("run/keep/step-7"), 0777), 0); /* not a name of ours */
    uint64_t count = count_all();
    keep();
    assert_int_equal(count_all(), count);
    write_to(path_of("run/keep/step-000000050/state/manifest-0"), "rotten");
    write_to(path_of("run/keep/step-000000050/state/manifest-1"), "rotten");
    keep_failing();
    assert_int_equal(count_all(), count);
    remove_copy();
    assert_int_equal(mkdir(path_of("run/keep"), 0777),
                     0); /* cut short before there was a manifest */
    assert_int_equal(mkdir(path_of("run/keep/step-000000050"), 0777), 0);
    assert_int_equal(mkdir(path_of("run/keep/step-000000050/state"), 0777), 0);
    write_to(path_of("run/keep/step-000000050/state/manifest-1.new"), "half");
    keep();
    check_copy(0);
}

int main(void)
{
    log_set_level(LOG_QUIET);
    print_message("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(which_steps, setup, teardown),
        cmocka_unit_test_setup_teardown(a_copy_is_a_run, setup, teardown),
        cmocka_unit_test_setup_teardown(killed_anywhere, setup, teardown),
        cmocka_unit_test_setup_teardown(killed_before_a_move, setup, teardown),
        cmocka_unit_test_setup_teardown(failed_anywhere, setup, teardown),
        cmocka_unit_test_setup_teardown(what_cannot_be_copied, setup, teardown),
        cmocka_unit_test_setup_teardown(others_are_left_alone, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
