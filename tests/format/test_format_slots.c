/* The manifest's two slots: which one counts after damage of any kind, after a failure or a kill at
 * each point of a write, and what is synced when. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "tests/format/format_fixture.h"
#include "tests/unit.h"

enum { SEED = 4711 };

static unsigned char bytes[FORMAT_FILE_MAX], before[FORMAT_FILE_MAX];

/* ---- what is warned of ---- */

/* Standard error of the call goes to `text`. */
static int read_with_warnings(manifest *out, char *text, size_t text_bytes)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    int saved = dup(STDERR_FILENO);
    dup2(ends[1], STDERR_FILENO);
    log_set_level(LOG_WARN);
    int rc = manifest_read(format_directory(), out);
    log_set_level(LOG_QUIET);
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(ends[1]);
    ssize_t got = read(ends[0], text, text_bytes - 1);
    close(ends[0]);
    text[got > 0 ? got : 0] = '\0';
    return rc;
}

static void expect_text(const char *text, const char *part)
{
    if (!strstr(text, part))
        print_error("expected \"%s\" in \"%s\"\n", part, text);
    assert_non_null(strstr(text, part));
}

/* ---- which slot counts ---- */

static void newest_wins(void **state)
{
    format_write_two(9);
    format_expect(10);
    format_write_two(10);
    format_expect(11);
    unlink(format_slot(1));
    format_expect(10);
    format_remove_slots();
}

static void any_damage_falls_back(void **state)
{
    format_write_two(10); /* the newer is 11, in slot 1 */
    size_t count = format_load(1, bytes);
    for (size_t i = 0; i < count; i++) {
        bytes[i] ^= (unsigned char)(1u << i % 8);
        format_store(1, bytes, count);
        format_expect(10);
        bytes[i] ^= (unsigned char)(1u << i % 8);
    }
    for (size_t length = 0; length < count + 20; length += length + 20 < count ? 7 : 1) {
        if (length == count)
            continue;
        format_store(1, bytes, length);
        format_expect(10);
    }
    for (size_t length = 0; length < count; length += 8) { /* torn: a new beginning, an old end */
        memset(before, 0xee, count);
        memcpy(before, bytes, length);
        format_store(1, before, count);
        format_expect(10);
    }
    format_store(1, bytes, count);
    format_expect(11);
    format_remove_slots();
}

static void a_damaged_slot_is_told_of(void **state)
{
    static manifest out;
    static char text[4096];
    format_write_two(10);
    assert_int_equal(read_with_warnings(&out, text, sizeof text), 1);
    assert_string_equal(text, "");
    manifest_fini(&out);
    size_t count = format_load(1, bytes);
    bytes[count / 2] ^= 4;
    format_store(1, bytes, count);
    assert_int_equal(read_with_warnings(&out, text, sizeof text), 1);
    expect_text(text, "manifest-1 does not count: its checksum is ");
    expect_text(text, "normal where the process was killed or the power lost");
    expect_text(text, "manifest-0 is used, the commit of step 10 (generation 10)");
    expect_text(text, "their checksums will show it");
    manifest_fini(&out);
    manifest_slot slots[2];
    assert_int_equal(manifest_examine(format_directory(), slots, NULL), 0);
    assert_int_equal(slots[0].outcome, MANIFEST_SLOT_VALID);
    assert_int_equal(slots[0].generation, 10);
    assert_int_equal(slots[0].step, 10);
    assert_int_equal(slots[1].outcome, MANIFEST_SLOT_DAMAGED);
    expect_text(slots[1].reason, "checksum");
    unlink(format_slot(0));
    assert_int_equal(manifest_examine(format_directory(), slots, NULL), 0);
    assert_int_equal(slots[0].outcome, MANIFEST_SLOT_ABSENT);
    format_remove_slots();
}

static void damage_of_both_is_named(void **state)
{
    static manifest out;
    format_write_two(10);
    size_t count = format_load(0, bytes);
    bytes[count - 1] ^= 1;
    format_store(0, bytes, count);
    format_load(1, bytes);
    format_store(1, bytes, 100);
    assert_int_equal(manifest_read(format_directory(), &out), ERR_CORRUPT);
    expect_text(err_text(), "manifest-0: its checksum");
    expect_text(err_text(), "manifest-1: it has 100 bytes");
    unlink(format_slot(0));
    assert_int_equal(manifest_read(format_directory(), &out), ERR_CORRUPT);
    expect_text(err_text(), "missing");
    format_store(1, (const unsigned char *)"NOTAMANIFEST", 12);
    assert_int_equal(manifest_read(format_directory(), &out), ERR_CORRUPT);
    format_remove_slots();
    assert_int_equal(mkdir(format_slot(1), 0700), 0);
    assert_int_equal(manifest_read(format_directory(), &out), ERR_CORRUPT);
    expect_text(err_text(), "regular");
    rmdir(format_slot(1));
    assert_int_equal(manifest_read(format_directory(), &out), 0);
    /* A slot that cannot be opened is no damaged one: nothing goes back a commit for it. */
    format_write_two(10);
    unlink(format_slot(1));
    assert_int_equal(symlink("manifest-1", format_slot(1)), 0);
    assert_int_equal(manifest_read(format_directory(), &out), -ELOOP);
    manifest_slot slots[2];
    assert_int_equal(manifest_examine(format_directory(), slots, NULL), 0);
    assert_int_equal(slots[1].outcome, MANIFEST_SLOT_DAMAGED);
    expect_text(slots[1].reason, "cannot open");
    format_remove_slots();
}

static void write_record(enum manifest_state record_state, uint64_t generation)
{
    static manifest record;
    format_draw(&record, SEED, generation, &(struct format_shape){record_state, 2, 0, 2, 1, 0});
    assert_ok(manifest_write(format_directory(), &record));
    manifest_fini(&record);
}

/* Beside BEGUN a slot is absent or whole, so damage there is a commit that was lost. */
static void the_only_commit_is_not_given_up(void **state)
{
    static manifest out;
    write_record(MANIFEST_BEGUN, 1);
    format_expect(1);
    write_record(MANIFEST_COMMITTED, 2);
    format_expect(2);
    size_t count = format_load(0, bytes);
    bytes[count / 2] ^= 1;
    format_store(0, bytes, count);
    assert_int_equal(manifest_read(format_directory(), &out), ERR_CORRUPT);
    assert_null(out.extents);
    expect_text(err_text(), "the only commit");
    expect_text(err_text(), "manifest-0, is damaged: its checksum");
    bytes[count / 2] ^= 1;
    format_store(0, bytes, count);
    write_record(MANIFEST_COMMITTED, 3);
    format_expect(3);
    format_remove_slots();
}

/* ---- writing ---- */

static void a_longer_slot_leaves_no_tail(void **state)
{
    static manifest record;
    static const uint32_t units[] = {9, 9, 1, 1, 40, 40, 2};
    for (uint64_t g = 1; g <= sizeof units / sizeof units[0]; g++) {
        format_draw(&record, SEED, g,
                    &(struct format_shape){MANIFEST_COMMITTED, 2, 0, units[g - 1], 1, 0});
        assert_ok(manifest_write(format_directory(), &record));
        manifest_fini(&record);
        format_expect(g);
    }
    format_remove_slots();
}

/* The inode of a slot stays once both are commits: a commit takes no new space. */
static void commits_are_written_in_place(void **state)
{
    struct stat first, second;
    format_write_two(10);
    assert_int_equal(stat(format_slot(0), &first), 0);
    format_write_two(12);
    assert_int_equal(stat(format_slot(0), &second), 0);
    assert_true(first.st_ino == second.st_ino);
    assert_false(format_exists("manifest-0.new"));
    format_remove_slots();
}

static struct {
    char names[8][32];
    int count;
    const char *fail_at;
    bool is_killed;
} points;

static int on_point(void *user, const char *name)
{
    if (points.count < 8)
        snprintf(points.names[points.count++], sizeof points.names[0], "%s", name);
    if (!points.fail_at || strcmp(points.fail_at, name) != 0)
        return 0;
    if (points.is_killed)
        kill(getpid(), SIGKILL);
    return err_set(-EIO, "failed by the test at %s", name);
}

static void expect_syncs(const char *first, const char *second)
{
    assert_int_equal(format_syncs.count, 2);
    assert_string_equal(format_syncs.names[0], first);
    assert_string_equal(format_syncs.names[1], second);
}

static const char *const stages[] = {"manifest.begin", "manifest.half", "manifest.written",
                                     "manifest.synced"};
enum { STAGES = 4 };

static void reset_points(const char *fail_at, bool is_killed)
{
    memset(&points, 0, sizeof points);
    points.fail_at = fail_at;
    points.is_killed = is_killed;
    failpoint_hook(on_point, NULL);
}

static void points_are_met_in_order(void **state)
{
    format_write_two(10);
    reset_points(NULL, false);
    format_reset_syncs(-1, 0);
    write_record(MANIFEST_COMMITTED, 12);
    failpoint_hook(NULL, NULL);
    assert_int_equal(points.count, STAGES);
    for (int i = 0; i < STAGES; i++)
        assert_string_equal(points.names[i], stages[i]);
    expect_syncs("manifest-0", format_directory());
    format_remove_slots();
    format_reset_syncs(-1, 0);
    write_record(MANIFEST_BEGUN, 1);
    expect_syncs("manifest-1.new", format_directory());
    format_remove_slots();
}

/* The slots before generation `next` is written: none; one BEGUN; two BEGUN; two commits. */
enum { SITUATIONS = 4 };

static uint64_t prepare(int situation)
{
    format_remove_slots();
    if (situation == 0)
        return 1;
    if (situation == 3) {
        format_write_two(10);
        return 12;
    }
    write_record(MANIFEST_BEGUN, 1);
    if (situation == 2)
        write_record(MANIFEST_BEGUN, 2);
    return situation == 2 ? 3 : 2;
}

/* The generation that counts; 0: none. */
static uint64_t counting(void)
{
    static manifest out;
    int rc = manifest_read(format_directory(), &out);
    if (rc < 0)
        print_error("%s\n", err_text());
    assert_true(rc >= 0);
    uint64_t generation = rc ? out.generation : 0;
    manifest_fini(&out);
    return generation;
}

static size_t load_other(uint64_t generation, unsigned char *to)
{
    int slot = (int)(1 - generation % 2);
    return access(format_slot(slot), F_OK) == 0 ? format_load(slot, to) : 0;
}

static void a_failed_write_never_counts(void **state)
{
    static manifest record;
    for (int situation = 0; situation < SITUATIONS; situation++)
        for (int stage = 0; stage < STAGES; stage++) {
            uint64_t next = prepare(situation);
            size_t count = load_other(next, before);
            format_commit(&record, next);
            reset_points(stages[stage], false);
            assert_int_equal(manifest_write(format_directory(), &record), -EIO);
            failpoint_hook(NULL, NULL);
            expect_text(err_text(), "failed by the test at");
            assert_int_equal(load_other(next, bytes), count);
            assert_memory_equal(before, bytes, count);
            assert_int_equal(counting(), next - 1);
            /* Nothing has changed, and the next try counts. */
            assert_ok(manifest_write(format_directory(), &record));
            assert_int_equal(counting(), next);
            manifest_fini(&record);
        }
    format_remove_slots();
}

static void a_kill_leaves_one_of_two(void **state)
{
    static manifest record;
    for (int situation = 0; situation < SITUATIONS; situation++)
        for (int stage = 0; stage < STAGES; stage++) {
            uint64_t next = prepare(situation);
            size_t count = load_other(next, before);
            format_commit(&record, next);
            pid_t child = fork();
            assert_true(child >= 0);
            if (child == 0) {
                reset_points(stages[stage], true);
                _exit(manifest_write(format_directory(), &record) < 0);
            }
            int status;
            assert_int_equal(waitpid(child, &status, 0), child);
            assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
            assert_int_equal(load_other(next, bytes), count);
            assert_memory_equal(before, bytes, count);
            bool in_place = situation == 3;
            bool is_there = stage == 3 || (stage == 2 && in_place);
            assert_int_equal(counting(), is_there ? next : next - 1);
            assert_ok(manifest_write(format_directory(), &record));
            assert_int_equal(counting(), next);
            manifest_fini(&record);
        }
    format_remove_slots();
}

/* After a failed fsync the slot may be whole in memory alone. It must not be read as the commit. */
static void an_unsynced_slot_never_counts(void **state)
{
    static manifest record;
    for (int situation = 0; situation < SITUATIONS; situation++)
        for (int sync = 0; sync < 2; sync++) {
            uint64_t next = prepare(situation);
            format_commit(&record, next);
            format_reset_syncs(sync, EIO);
            assert_int_equal(manifest_write(format_directory(), &record), -EIO);
            expect_text(err_text(), "durable");
            format_reset_syncs(-1, 0);
            assert_int_equal(counting(), next - 1);
            manifest_fini(&record);
        }
    format_remove_slots();
}

/* A slot that a killed writer left unsynced is synced before it counts. */
static void what_counts_is_synced(void **state)
{
    static manifest out;
    format_write_two(10);
    format_reset_syncs(-1, 0);
    format_expect(11);
    /* The older slot is synced too. If it had been made invalid in the page cache alone, its
     * old bytes would come back after a loss of power. */
    assert_int_equal(format_syncs.count, 3);
    assert_string_equal(format_syncs.names[0], "manifest-0");
    assert_string_equal(format_syncs.names[1], "manifest-1");
    assert_string_equal(format_syncs.names[2], format_directory());
    for (int sync = 0; sync < 3; sync++) {
        format_reset_syncs(sync, EIO);
        assert_int_equal(manifest_read(format_directory(), &out), -EIO);
        assert_null(out.extents);
        format_reset_syncs(sync, EROFS); /* where nothing can be written, nothing can be lost */
        format_expect(11);
    }
    format_reset_syncs(-1, 0);
    manifest_slot slots[2];
    assert_int_equal(manifest_examine(format_directory(), slots, NULL), 0);
    assert_int_equal(format_syncs.count, 0);
    format_remove_slots();
}

/* If the slots hold manifests of two runs, neither counts. While a run moves to new slabs, one
 * manifest names the other's slabs as `leftover`, and both belong to one run. */
static void two_runs_are_not_one(void **state)
{
    static manifest record, out;
    for (int is_move = 0; is_move < 3; is_move++) {
        format_write_two(10);
        format_commit(&record, 12);
        if (is_move == 1) {
            record.leftover = record.slabs;
        } else if (is_move == 2) {
            record.leftover = record.slabs;
            record.leftover.uuid[3] ^= 2;
        }
        record.slabs.uuid[3] ^= 1;
        assert_ok(manifest_write(format_directory(), &record));
        manifest_fini(&record);
        if (is_move == 1) {
            format_expect(12);
        } else {
            assert_int_equal(manifest_read(format_directory(), &out), ERR_CORRUPT);
            expect_text(err_text(), "of two runs: manifest-0");
        }
        format_remove_slots();
    }
}

/* A drive that takes no more bytes in the middle of a slot. */
static void a_full_drive_leaves_the_commit(void **state)
{
    static manifest record;
    struct rlimit old, limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_IGN);
    for (int situation = 0; situation < SITUATIONS; situation += 3)
        for (uint64_t room = 0; room <= 600; room += 150) {
            uint64_t next = prepare(situation);
            size_t count = load_other(next, before);
            format_draw(&record, SEED, next,
                        &(struct format_shape){MANIFEST_COMMITTED, 2, 0, 40, 1, 0});
            limit = (struct rlimit){.rlim_cur = room, .rlim_max = old.rlim_max};
            assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
            int rc = manifest_write(format_directory(), &record);
            assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
            assert_int_equal(rc, -EFBIG);
            expect_text(err_text(), "cannot write the manifest");
            assert_int_equal(load_other(next, bytes), count);
            assert_memory_equal(before, bytes, count);
            assert_int_equal(counting(), next - 1);
            manifest_fini(&record);
        }
    signal(SIGXFSZ, SIG_DFL);
    format_remove_slots();
}

/* After a run's first commit, the next one finds its blocks in the slot that says BEGUN. */
static void the_first_commit_reserves_the_next(void **state)
{
    static manifest record;
    struct stat begun, commit, reserved;
    const struct format_shape large = {MANIFEST_COMMITTED, 2, 0, 400, 1, 0};
    format_remove_slots();
    format_draw(&record, SEED, 1, &(struct format_shape){MANIFEST_BEGUN, 2, 0, 0, 1, 0});
    assert_ok(manifest_write(format_directory(), &record));
    manifest_fini(&record);
    int fd = open(format_slot(1), O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0 && fstat(fd, &begun) == 0);
    bool reserves = fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, begun.st_size) == 0;
    close(fd);
    format_draw(&record, SEED, 2, &large);
    assert_ok(manifest_write(format_directory(), &record));
    manifest_fini(&record);
    assert_int_equal(stat(format_slot(0), &commit), 0);
    assert_int_equal(stat(format_slot(1), &reserved), 0);
    assert_int_equal(reserved.st_size, begun.st_size);
    assert_true(commit.st_size > 8 * begun.st_size);
    if (reserves) /* else the file system cannot */
        assert_true(reserved.st_blocks * 512 >= commit.st_size);
    format_expect(2);
    format_draw(&record, SEED, 3, &large);
    assert_ok(manifest_write(format_directory(), &record));
    manifest_fini(&record);
    format_expect(3);
    format_remove_slots();
}

static void slots_are_removed(void **state)
{
    format_write_two(10);
    assert_int_equal(link(format_slot(0), format_path("manifest-0.new")), 0);
    assert_int_equal(link(format_slot(0), format_path("manifest-1.new")), 0);
    assert_int_equal(link(format_slot(0), format_path("manifest-2")), 0);
    assert_ok(manifest_remove(format_directory()));
    assert_false(format_exists("manifest-0") || format_exists("manifest-1") ||
                 format_exists("manifest-0.new") || format_exists("manifest-1.new"));
    assert_int_equal(unlink(format_path("manifest-2")), 0);
    assert_ok(manifest_remove(format_directory()));
    assert_int_equal(mkdir(format_slot(0), 0700), 0);
    format_store(1, before, 10);
    assert_true(manifest_remove(format_directory()) < 0);
    expect_text(err_text(), "manifest-0");
    assert_false(format_exists("manifest-1"));
    rmdir(format_slot(0));
}

static void bad_calls_are_refused(void **state)
{
    static manifest record, out;
    format_commit(&record, 1);
    assert_int_equal(manifest_write("no-such-directory", &record), -ENOENT);
    expect_text(err_text(), "no-such-directory/manifest-1");
    record.slabs.drive_count = 17;
    assert_int_equal(manifest_write(format_directory(), &record), -EINVAL);
    record.slabs.drive_count = 2;
    memset(record.slabs.drives[0], 'x', MANIFEST_TEXT_BYTES);
    assert_int_equal(manifest_write(format_directory(), &record), -EINVAL);
    snprintf(record.slabs.drives[0], MANIFEST_TEXT_BYTES, "/a");
    record.state = (enum manifest_state)0;
    assert_int_equal(manifest_write(format_directory(), &record), -EINVAL);
    assert_int_equal(manifest_read(format_directory(), &out), 0); /* nothing was written */
    manifest_fini(&record);
}

int main(void)
{
    printf("seed %d\n", SEED);
    log_set_level(LOG_QUIET); /* each fallback warns */
    format_begin();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(newest_wins),
        cmocka_unit_test(any_damage_falls_back),
        cmocka_unit_test(a_damaged_slot_is_told_of),
        cmocka_unit_test(damage_of_both_is_named),
        cmocka_unit_test(the_only_commit_is_not_given_up),
        cmocka_unit_test(a_longer_slot_leaves_no_tail),
        cmocka_unit_test(commits_are_written_in_place),
        cmocka_unit_test(points_are_met_in_order),
        cmocka_unit_test(a_failed_write_never_counts),
        cmocka_unit_test(a_kill_leaves_one_of_two),
        cmocka_unit_test(an_unsynced_slot_never_counts),
        cmocka_unit_test(what_counts_is_synced),
        cmocka_unit_test(two_runs_are_not_one),
        cmocka_unit_test(a_full_drive_leaves_the_commit),
        cmocka_unit_test(the_first_commit_reserves_the_next),
        cmocka_unit_test(slots_are_removed),
        cmocka_unit_test(bad_calls_are_refused),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    format_end();
    return rc;
}
