/* Slabs on disk: created, reopened, refused when foreign, damaged or too large, and removed
 * whole. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <xxhash.h>

#include "tests/tiers/tiers_helpers.h"
#include "tests/unit.h"

static slab_drive drives[DRIVES_MAX];
static slab store;

static slab_config config_of(uint32_t drive_count, uint64_t total_bytes)
{
    slab_config config = {.drives = drives,
                          .drive_count = drive_count,
                          .total_bytes = total_bytes,
                          .stripe_bytes = MIB,
                          .rank = 3};
    for (int i = 0; i < SLAB_UUID_BYTES; i++)
        config.uuid[i] = (uint8_t)(0x10 + i);
    static const char *const names[] = {"a/deep/path", "b", "c"};
    for (uint32_t i = 0; i < drive_count; i++)
        helper_drive(&drives[i], names[i], 64 * MIB, 1.0 + i);
    return config;
}

static void assert_nothing_left(void)
{
    assert_int_equal(helper_count_entries(directory), 2); /* "." and ".." */
}

static void create_reopen_remove(void **state)
{
    int fds = helper_count_fds();
    for (uint32_t drive_count = 1; drive_count <= 3; drive_count++) {
        slab_config config = config_of(drive_count, 12 * MIB + 1);
        assert_int_equal(helper_check_space(&config), 0);
        assert_nothing_left();
        assert_int_equal(slab_open(&store, &config), 0);
        assert_int_equal(store.total_bytes, 13 * MIB);
        uint64_t sum = 0;
        char path[FILE_PATH_BYTES + 128];
        for (uint32_t i = 0; i < drive_count; i++) {
            struct stat status;
            assert_int_equal(stat(store.files[i].path, &status), 0);
            assert_int_equal(status.st_size, store.files[i].file_bytes);
            assert_true((uint64_t)status.st_blocks * 512 >= store.files[i].file_bytes);
            assert_true(fcntl(store.files[i].fd, F_GETFD) & FD_CLOEXEC);
            assert_true(store.files[i].align_bytes > 0 && store.files[i].align_bytes <= 4096);
            sum += store.files[i].file_bytes - SLAB_HEADER_BYTES;
        }
        assert_int_equal(sum, 13 * MIB);
        snprintf(path, sizeof path,
                 "%s/sluice-101112131415161718191a1b1c1d1e1f/rank-3-drive-0.slab", drives[0].path);
        assert_string_equal(store.files[0].path, path);
        assert_int_equal(slab_sync(&store), 0);
        static slab created;
        created = store;
        slab_close(&store);

        /* The headers decide: other weights and budgets map the same. */
        for (uint32_t i = 0; i < drive_count; i++) {
            drives[i].weight = 5.0 - i;
            drives[i].budget_bytes = 1;
        }
        config.open_existing = true;
        assert_int_equal(slab_open(&store, &config), 0);
        assert_memory_equal(store.zones, created.zones, sizeof store.zones);
        assert_memory_equal(store.drive_stripes, created.drive_stripes, sizeof store.drive_stripes);
        assert_int_equal(slab_remove(&store), 0);
        for (uint32_t i = 0; i < drive_count; i++)
            assert_int_equal(helper_count_entries(drives[i].path), 2);
        assert_error(slab_open(&store, &config), ERR_INPUT, "is not there");
        assert_int_equal(helper_count_fds(), fds);
        directory_remove(NULL);
        assert_int_equal(mkdir(directory, 0700), 0);
    }
}

/* Beyond budgets and without space: zeros where nothing was written, also when it is opened
 * again. */
static void sparse_slabs_take_what_is_written(void **state)
{
    slab_config config = config_of(2, (uint64_t)4 << 30); /* of two budgets of 64 MiB */
    assert_int_equal(slab_open(&store, &config), ERR_NO_FIT);
    assert_nothing_left();
    config.is_sparse = true;
    assert_int_equal(slab_open(&store, &config), 0);
    for (int reopened = 0; reopened < 2; reopened++) {
        uint64_t taken = 0;
        for (uint32_t i = 0; i < 2; i++) {
            struct stat status;
            unsigned char byte = 1;
            assert_int_equal(stat(store.files[i].path, &status), 0);
            assert_int_equal(status.st_size, store.files[i].file_bytes);
            taken += (uint64_t)status.st_blocks * 512;
            int fd = open(store.files[i].path, O_RDONLY | O_CLOEXEC);
            assert_true(fd >= 0);
            assert_int_equal(pread(fd, &byte, 1, (off_t)store.files[i].file_bytes - 1), 1);
            assert_int_equal(byte, 0);
            close(fd);
        }
        assert_true(taken < MIB);
        slab_close(&store);
        config.total_bytes = (uint64_t)4 << 30;
        config.open_existing = true;
        if (reopened == 0)
            assert_int_equal(slab_open(&store, &config), 0);
    }
    assert_int_equal(slab_remove_files(&config), 0);
}

static void leftovers_are_refused_and_kept(void **state)
{
    slab_config config = config_of(2, 4 * MIB);
    assert_int_equal(slab_open(&store, &config), 0);
    slab_close(&store);
    static slab second;
    int fds = helper_count_fds();
    assert_error(slab_open(&second, &config), -EEXIST, "rank-3-drive-0.slab");
    assert_int_equal(helper_count_fds(), fds);
    config.open_existing = true;
    assert_int_equal(slab_open(&store, &config), 0);
    assert_int_equal(slab_remove(&store), 0);
}

/* Only the name goes: the file is whole until it is closed. Another rank's keeps its name. */
static void unname_keeps_the_open_files(void **state)
{
    slab_config config = config_of(2, 4 * MIB);
    struct stat status;
    static slab other;
    assert_int_equal(slab_open(&store, &config), 0);
    config.rank = 4;
    assert_int_equal(slab_open(&other, &config), 0);
    assert_int_equal(slab_unname(&store), 0);
    for (int d = 0; d < 2; d++) {
        assert_int_equal(access(store.files[d].path, F_OK), -1);
        assert_int_equal(access(other.files[d].path, F_OK), 0);
    }
    assert_int_equal(fstat(store.files[0].fd, &status), 0);
    assert_int_equal(status.st_nlink, 0);
    assert_int_equal(status.st_size, store.files[0].file_bytes);
    assert_int_equal(slab_sync(&store), 0);
    assert_int_equal(slab_unname(&store), 0); /* nothing there: no error */
    assert_int_equal(slab_remove(&store), 0);
    assert_int_equal(slab_remove(&other), 0);
    for (int d = 0; d < 2; d++)
        assert_int_equal(helper_count_entries(drives[d].path), 2);
}

/* Another rank's slab and a stranger's file in the same directory stay. */
static void remove_deletes_only_its_own(void **state)
{
    slab_config config = config_of(1, 2 * MIB);
    static slab other;
    assert_int_equal(slab_open(&store, &config), 0);
    config.rank = 4;
    assert_int_equal(slab_open(&other, &config), 0);
    assert_int_equal(slab_remove(&store), 0);
    assert_int_equal(access(other.files[0].path, F_OK), 0);
    assert_int_equal(slab_remove(&other), 0);
    assert_int_equal(helper_count_entries(drives[0].path), 2);
}

/* The remains of a kill at any point of slab_open: later files missing, one without its header or
 * its length, directories only, nothing at all. */
static void files_of_a_killed_start_are_removed(void **state)
{
    static char path[FILE_PATH_BYTES];
    for (int point = 0; point < 6; point++) {
        slab_config config = config_of(3, 6 * MIB);
        if (point < 5) {
            assert_int_equal(slab_open(&store, &config), 0);
            snprintf(path, sizeof path, "%s", store.files[1].path);
            if (point >= 1)
                assert_int_equal(unlink(store.files[2].path), 0);
            if (point == 2) /* in the midst of the reservation: any length */
                assert_int_equal(truncate(path, 5000), 0);
            if (point == 3)
                assert_int_equal(truncate(path, 0), 0);
            if (point == 4)
                assert_int_equal(unlink(path), 0); /* its directory alone */
            slab_close(&store);
        }
        config.total_bytes = 0; /* uuid, rank and drives suffice */
        config.stripe_bytes = 0;
        assert_int_equal(slab_remove_files(&config), 0);
        for (uint32_t i = 0; i < 3; i++)
            assert_int_equal(helper_count_entries(drives[i].path), point < 5 ? 2 : -1);
        assert_int_equal(slab_remove_files(&config), 0); /* nothing there: no error */
        directory_remove(NULL);
        assert_int_equal(mkdir(directory, 0700), 0);
    }
}

static void only_known_names_are_removed(void **state)
{
    static char path[FILE_PATH_BYTES + 64];
    slab_config config = config_of(2, 4 * MIB);
    static slab other;
    assert_int_equal(slab_open(&store, &config), 0);
    config.rank = 4;
    assert_int_equal(slab_open(&other, &config), 0);
    slab_close(&store);
    snprintf(path, sizeof path, "%s", other.files[1].path);
    snprintf(strrchr(path, '/'), 32, "/stranger");
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
    config.uuid[0] ^= 1; /* another run: nothing of ours goes */
    assert_int_equal(slab_remove_files(&config), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(access(other.files[i].path, F_OK), 0);
    config.uuid[0] ^= 1;
    config.rank = 3;
    assert_int_equal(slab_remove_files(&config), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(access(other.files[i].path, F_OK), 0);
    config.rank = 4;
    slab_close(&other);
    assert_int_equal(slab_remove_files(&config), 0);
    assert_int_equal(helper_count_entries(drives[0].path), 2);
    assert_int_equal(helper_count_entries(drives[1].path), 3); /* the stranger's directory */
    assert_int_equal(access(path, F_OK), 0);

    /* A file that cannot be deleted is named, and the others are deleted. */
    config.open_existing = false;
    assert_int_equal(slab_open(&store, &config), 0);
    static char second[FILE_PATH_BYTES];
    snprintf(second, sizeof second, "%s", store.files[1].path);
    assert_int_equal(unlink(store.files[0].path), 0);
    assert_int_equal(mkdir(store.files[0].path, 0700), 0); /* a directory of a slab's name */
    slab_close(&store);
    assert_true(slab_remove_files(&config) < 0);
    assert_non_null(strstr(err_text(), "rank-4-drive-0.slab"));
    assert_int_not_equal(access(second, F_OK), 0);

    drives[1].path[0] = 0;
    assert_int_equal(slab_remove_files(&config), -EINVAL);
    config.drive_count = DRIVES_MAX + 1;
    assert_int_equal(slab_remove_files(&config), -EINVAL);
    config.drive_count = 0;
    assert_int_equal(slab_remove_files(&config), 0);
}

/* A path whose end cannot be made: the directories made above it go again. */
static void half_made_directories_are_undone(void **state)
{
    char name[400] = "new//deep/";
    size_t used = strlen(name);
    memset(name + used, 'x', 300); /* longer than a name may be */
    slab_config config = config_of(1, 4 * MIB);
    helper_drive(&drives[0], name, 64 * MIB, 1);
    assert_int_equal(slab_open(&store, &config), -ENAMETOOLONG);
    assert_nothing_left();
}

static void damage(const char *path, uint64_t offset, const void *bytes, size_t count)
{
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bytes, count, (off_t)offset), count);
    close(fd);
}

/* Changes a header field and makes its checksum good again. */
static void forge(const char *path, uint64_t offset, const void *bytes, size_t count)
{
    unsigned char header[SLAB_HEADER_BYTES];
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, header, sizeof header, 0), sizeof header);
    close(fd);
    memcpy(header + offset, bytes, count);
    XXH64_hash_t sum = XXH3_64bits(header, 4088);
    memcpy(header + 4088, &sum, sizeof sum);
    damage(path, 0, header, sizeof header);
}

static void assert_refused(slab_config *config, const char *word)
{
    int fds = helper_count_fds();
    config->open_existing = true;
    assert_int_equal(slab_open(&store, config), ERR_CORRUPT);
    if (!strstr(err_text(), word))
        fail_msg("'%s' lacks '%s'", err_text(), word);
    assert_int_equal(helper_count_fds(), fds);
}

static void foreign_and_damaged_are_refused(void **state)
{
    static char path[FILE_PATH_BYTES];
    slab_config config = config_of(2, 8 * MIB);
    assert_int_equal(slab_open(&store, &config), 0);
    snprintf(path, sizeof path, "%s", store.files[1].path);
    slab_close(&store);
    unsigned char saved[SLAB_HEADER_BYTES];
    int fd = open(path, O_RDONLY);
    assert_int_equal(pread(fd, saved, sizeof saved, 0), sizeof saved);
    close(fd);

    damage(path, 0, "NOTASLAB", 8);
    assert_refused(&config, "magic");
    damage(path, 0, saved, sizeof saved);
    damage(path, 3000, "x", 1);
    assert_refused(&config, "checksum");
    damage(path, 0, saved, sizeof saved);
    forge(path, 8, "\x02\0\0\0", 4);
    assert_refused(&config, "version");
    damage(path, 0, saved, sizeof saved);
    forge(path, 16, "other", 5);
    assert_refused(&config, "another run");
    damage(path, 0, saved, sizeof saved);
    forge(path, 36, "\x07", 1);
    assert_refused(&config, "drive 7");
    damage(path, 0, saved, sizeof saved);
    forge(path, 72, "\xff\xff\xff\xff\xff\xff\xff\xff", 8);
    assert_refused(&config, "disagree");
    damage(path, 0, saved, sizeof saved);
    config.total_bytes = 9 * MIB;
    assert_refused(&config, "expected 9437184");
    config.total_bytes = 8 * MIB;
    config.stripe_bytes = 2 * MIB;
    assert_refused(&config, "stripes of 1048576");
    config.stripe_bytes = MIB;
    struct stat status;
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(truncate(path, status.st_size - 4096), 0);
    assert_refused(&config, "bytes long");
    assert_int_equal(truncate(path, 100), 0);
    assert_refused(&config, "not a slab");
    assert_int_equal(truncate(path, status.st_size), 0);
    damage(path, 0, saved, sizeof saved);
    assert_int_equal(slab_open(&store, &config), 0);
    assert_int_equal(slab_remove(&store), 0);
}

static void assert_says(int rc, int expected, const char *const *words)
{
    if (rc != expected)
        fail_msg("%d instead of %d: '%s'", rc, expected, err_text());
    for (; *words; words++)
        if (!strstr(err_text(), *words))
            fail_msg("'%s' lacks '%s'", err_text(), *words);
    assert_null(strchr(err_text(), '\n'));
}

/* In a child whose mounts are its own: the drive's file system has become read-only. 0; 77: no
 * right to mount; 1: not refused as it should be. */
static int open_read_only(slab_config *config)
{
    const char *path = drives[1].path;
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount(path, path, NULL, MS_BIND, NULL) != 0 ||
        mount(NULL, path, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL) != 0)
        return 77;
    int rc = slab_open(&store, config);
    bool well = rc == -EROFS && strstr(err_text(), "drive-1.slab cannot be written") &&
                strstr(err_text(), path) && strstr(err_text(), "read-only") &&
                strstr(err_text(), "the last commit is untouched");
    if (!well)
        fprintf(stderr, "%d: '%s'\n", rc, err_text());
    return !well;
}

/* Drives that are missing, forbidden or read-only: the text says the fault, the place and the next
 * step. */
static void what_is_gone_is_named(void **state)
{
    static char path[FILE_PATH_BYTES], away[FILE_PATH_BYTES], drive[FILE_PATH_BYTES];
    slab_config config = config_of(2, 4 * MIB);
    assert_int_equal(slab_open(&store, &config), 0);
    snprintf(path, sizeof path, "%s", store.files[1].path);
    snprintf(drive, sizeof drive, "%s", drives[1].path);
    snprintf(away, sizeof away, "%s/away", directory);
    slab_close(&store);
    config.open_existing = true;
    int fds = helper_count_fds();

    assert_int_equal(rename(path, away), 0);
    assert_says(slab_open(&store, &config), ERR_INPUT,
                (const char *const[]){path, "is not there, though the directory of its drive is",
                                      "mount its drive at", drive, "last commit is untouched",
                                      "empty run directory", NULL});
    assert_int_equal(rename(away, path), 0);
    assert_int_equal(rename(drive, away), 0);
    assert_says(slab_open(&store, &config), ERR_INPUT,
                (const char *const[]){path, "neither is the directory of its drive", drive, NULL});
    assert_int_equal(rename(away, drive), 0);

    /* By nobody, where this is root; else without the right to write. */
    bool is_root = geteuid() == 0;
    assert_int_equal(is_root ? seteuid(65534) : chmod(path, 0400), 0);
    int rc = slab_open(&store, &config);
    assert_int_equal(is_root ? seteuid(0) : chmod(path, 0600), 0);
    assert_says(rc, -EACCES,
                (const char *const[]){is_root ? "drive-0" : path, "by this user",
                                      "last commit is untouched", NULL});
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(open_read_only(&config));
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        print_message(
            "not tested: a read-only file system, for which one must be allowed to mount\n");
    else
        assert_int_equal(WEXITSTATUS(status), 0);

    assert_int_equal(truncate(path, 3 * MIB), 0);
    assert_says(slab_open(&store, &config), ERR_CORRUPT,
                (const char *const[]){path, "is 3145728 bytes long, its header says ",
                                      "has been cut off", NULL});
    assert_int_equal(truncate(path, 0), 0);
    assert_says(slab_open(&store, &config), ERR_CORRUPT,
                (const char *const[]){path, "0 bytes long", "cut off", NULL});
    assert_int_equal(helper_count_fds(), fds);
}

static void budgets_are_hard(void **state)
{
    slab_config config = config_of(2, 10 * MIB);
    drives[0].budget_bytes = 4 * MIB + SLAB_HEADER_BYTES;
    drives[1].budget_bytes = 6 * MIB + SLAB_HEADER_BYTES - 1; /* one byte short of six stripes */
    uint64_t capacity;
    assert_int_equal(slab_capacity(drives, 2, &capacity), 0);
    assert_int_equal(capacity, 10 * MIB - 1);
    assert_error(helper_check_space(&config), ERR_NO_FIT, "needs 10.00 MiB");
    assert_non_null(strstr(err_text(), "2 drives may hold 9.00 MiB"));
    assert_int_equal(slab_open(&store, &config), ERR_NO_FIT);
    assert_nothing_left();
    drives[1].budget_bytes++;
    assert_int_equal(helper_check_space(&config), 0);
    assert_int_equal(slab_open(&store, &config), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(store.files[i].file_bytes, drives[i].budget_bytes);
    assert_int_equal(slab_remove(&store), 0);

    /* More than the file system has, whatever the budget says. */
    config.total_bytes = (uint64_t)1 << 55;
    drives[0].budget_bytes = drives[1].budget_bytes = (uint64_t)1 << 60;
    assert_int_equal(helper_check_space(&config), ERR_NO_FIT);
    /* Two drives on one file system do not have its free space twice. */
    uint64_t one, two;
    assert_int_equal(slab_capacity(drives, 1, &one), 0);
    assert_int_equal(slab_capacity(drives, 2, &two), 0);
    assert_true(two < one + one / 4);
    drives[0].budget_bytes = drives[1].budget_bytes = 0;
    assert_int_equal(slab_capacity(drives, 2, &two), 0);
    assert_true(two < one);
}

static void bad_paths_are_input_errors(void **state)
{
    char file[512];
    snprintf(file, sizeof file, "%s/plain", directory);
    int fd = open(file, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
    int fds = helper_count_fds();
    slab_config config = config_of(2, 4 * MIB);
    snprintf(drives[1].path, sizeof drives[1].path, "%s", file);
    assert_error(helper_check_space(&config), ERR_INPUT, "plain");
    snprintf(drives[1].path, sizeof drives[1].path, "%s/below", file);
    assert_int_equal(helper_check_space(&config), ERR_INPUT);
    assert_int_equal(slab_open(&store, &config), ERR_INPUT);
    drives[1].path[0] = 0;
    assert_int_equal(helper_check_space(&config), ERR_INPUT);
    /* A path that looks well and still cannot be made: what the first drive made goes away
     * again. */
    snprintf(drives[1].path, sizeof drives[1].path, "/proc/sluice-cannot-be-made");
    config.drives = drives;
    int rc = slab_open(&store, &config);
    assert_true(rc < 0);
    assert_int_equal(helper_count_entries(directory), 3); /* "plain" alone */
    assert_int_equal(helper_count_fds(), fds);
    unlink(file);
    memset(drives[1].path, 'x', FILE_PATH_BYTES - 1);
    drives[1].path[0] = '/';
    drives[1].path[FILE_PATH_BYTES - 1] = 0;
    assert_true(helper_check_space(&config) < 0);
}

/* If the second drive fails while its file is made, nothing of the first stays either. */
static void failure_undoes_everything(void **state)
{
    slab_config config = config_of(2, 4 * MIB);
    assert_int_equal(slab_open(&store, &config), 0);
    static char first[FILE_PATH_BYTES];
    snprintf(first, sizeof first, "%s", store.files[0].path);
    unlink(first); /* the second drive's file is now a leftover */
    slab_close(&store);
    assert_error(slab_open(&store, &config), -EEXIST, "drive-1");
    assert_int_not_equal(access(first, F_OK), 0);
}

static void bad_configs(void **state)
{
    slab_config config = config_of(1, 4 * MIB);
    config.stripe_bytes = MIB + 4096;
    assert_int_equal(slab_open(&store, &config), -EINVAL);
    config = config_of(1, 0);
    assert_int_equal(slab_open(&store, &config), -EINVAL);
    config = config_of(1, 4 * MIB);
    config.drive_count = DRIVES_MAX + 1;
    assert_int_equal(helper_check_space(&config), -EINVAL);
    config = config_of(1, 4 * MIB);
    drives[0].weight = -1;
    assert_int_equal(helper_check_space(&config), -EINVAL);
    assert_nothing_left();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(create_reopen_remove, directory_make, directory_remove),
        cmocka_unit_test_setup_teardown(sparse_slabs_take_what_is_written, directory_make,
                                        directory_remove),
        cmocka_unit_test_setup_teardown(leftovers_are_refused_and_kept, directory_make,
                                        directory_remove),
        cmocka_unit_test_setup_teardown(remove_deletes_only_its_own, directory_make,
                                        directory_remove),
        cmocka_unit_test_setup_teardown(unname_keeps_the_open_files, directory_make,
                                        directory_remove),
        cmocka_unit_test_setup_teardown(files_of_a_killed_start_are_removed, directory_make,
                                        directory_remove),
        cmocka_unit_test_setup_teardown(only_known_names_are_removed, directory_make,
                                        directory_remove),
        cmocka_unit_test_setup_teardown(half_made_directories_are_undone, directory_make,
                                        directory_remove),
        cmocka_unit_test_setup_teardown(foreign_and_damaged_are_refused, directory_make,
                                        directory_remove),
        cmocka_unit_test_setup_teardown(what_is_gone_is_named, directory_make, directory_remove),
        cmocka_unit_test_setup_teardown(budgets_are_hard, directory_make, directory_remove),
        cmocka_unit_test_setup_teardown(bad_paths_are_input_errors, directory_make,
                                        directory_remove),
        cmocka_unit_test_setup_teardown(failure_undoes_everything, directory_make,
                                        directory_remove),
        cmocka_unit_test_setup_teardown(bad_configs, directory_make, directory_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
