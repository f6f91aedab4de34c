/* Copies of slabs: "sparse" denies reflinks (as most file systems do) and copies what was asked
 * for; "reflink" wants a directory of SLUICE_TEST_REFLINK_DIR on a file system that has them
 * (btrfs, or xfs), and is skipped without. */
#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include "base/mem.h"
#include "base/rng.h"
#include "tests/tiers/tiers_helpers.h"
#include "tests/unit.h"

enum { DRIVES = 2, STRIPES = 32, BLOCK = 4096, SEED = 77 };

static bool denies_clones;
static char base_path[FILE_PATH_BYTES / 2];
static slab_drive drives[DRIVES], copy_drives[DRIVES];
static slab store, copy;
static unsigned char block[BLOCK] __attribute__((aligned(4096)));

/* Stands in for the C library's, also in the code under test. */
int ioctl(int fd, unsigned long request, ...)
{
    va_list args;
    va_start(args, request);
    void *argument = va_arg(args, void *);
    va_end(args);
    if (denies_clones) {
        errno = EOPNOTSUPP;
        return -1;
    }
    return (int)syscall(SYS_ioctl, fd, request, argument);
}

static void name_drive(slab_drive *drive, const char *name)
{
    memset(drive, 0, sizeof *drive);
    snprintf(drive->path, sizeof drive->path, "%s/%s", base_path, name);
    drive->budget_bytes = 64 * MIB;
    drive->weight = 1;
}

static slab_config config_of(const slab_drive *at)
{
    return (slab_config){.drives = at,
                         .drive_count = DRIVES,
                         .total_bytes = STRIPES * MIB,
                         .stripe_bytes = MIB,
                         .uuid = {0xc0, 0xde},
                         .rank = 2};
}

/* The block of the slab at this address, in its `version`: its own number all over. */
static const unsigned char *block_of(uint64_t offset, uint64_t version)
{
    uint64_t value = 1 + offset / BLOCK + (version << 32);
    for (int i = 0; i < BLOCK; i += (int)sizeof value)
        memcpy(block + i, &value, sizeof value);
    return block;
}

static void fill(uint64_t offset, uint64_t size_bytes, uint64_t version)
{
    static unsigned char stripe[1024 * 1024] __attribute__((aligned(4096)));
    for (uint64_t at = offset; at < offset + size_bytes; at += MIB) {
        for (uint64_t i = 0; i < MIB; i += BLOCK)
            memcpy(stripe + i, block_of(at + i, version), BLOCK);
        slab_piece piece;
        slab_map(&store, at, MIB, &piece);
        assert_int_equal(
            pwrite(store.files[piece.drive_idx].fd, stripe, MIB, (off_t)piece.file_offset), MIB);
    }
}

/* Is the block of the copy as in this version, or zeros? */
static bool holds(uint64_t offset, bool zeros, uint64_t version)
{
    static unsigned char found[BLOCK] __attribute__((aligned(4096)));
    slab_piece piece;
    slab_map(&copy, offset, BLOCK, &piece);
    assert_int_equal(pread(copy.files[piece.drive_idx].fd, found, BLOCK, (off_t)piece.file_offset),
                     BLOCK);
    block_of(offset, version);
    if (zeros)
        memset(block, 0, sizeof block);
    return memcmp(found, block, sizeof block) == 0;
}

static int setup(void **state)
{
    if (directory_make(state) != 0)
        return -1;
    const char *reflink = getenv("SLUICE_TEST_REFLINK_DIR");
    snprintf(base_path, sizeof base_path, "%s", directory);
    if (!denies_clones) {
        snprintf(base_path, sizeof base_path, "%s/copy-XXXXXX", reflink);
        if (!mkdtemp(base_path))
            return -1;
    }
    name_drive(&drives[0], "a");
    name_drive(&drives[1], "b");
    name_drive(&copy_drives[0], "keep/step-3/0");
    name_drive(&copy_drives[1], "keep/step-3/1");
    slab_config config = config_of(drives);
    return slab_open(&store, &config);
}

static int teardown(void **state)
{
    if (slab_remove(&store) < 0)
        return -1;
    if (!denies_clones && nftw(base_path, directory_remove_entry, 16, FTW_DEPTH | FTW_PHYS) != 0)
        return -1;
    return directory_remove(state);
}

static uint64_t taken_bytes(const slab *self)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < self->drive_count; i++) {
        struct stat status;
        assert_int_equal(fstat(self->files[i].fd, &status), 0);
        assert_int_equal(status.st_size, self->files[i].file_bytes);
        sum += (uint64_t)status.st_blocks * 512;
    }
    return sum;
}

/* Ranges of all sizes, over stripes and drives, some of them beside each other. */
static const slab_range ranges[] = {
    {0, BLOCK},
    {2 * BLOCK, 3 * BLOCK},
    {MIB - BLOCK, 2 * BLOCK},
    {5 * MIB, 0},
    {9 * MIB + 8 * BLOCK, 21 * MIB},
    {31 * MIB, 17 * BLOCK},
    {STRIPES * MIB - BLOCK, BLOCK},
};

enum { RANGES = sizeof ranges / sizeof ranges[0] };

static bool is_asked_for(uint64_t offset)
{
    for (int i = 0; i < RANGES; i++)
        if (offset - ranges[i].offset < ranges[i].size_bytes)
            return true;
    return false;
}

static void a_copy_opens_as_the_slab(void **state)
{
    int fds = helper_count_fds();
    uint64_t copied, asked = DRIVES * SLAB_HEADER_BYTES;
    for (int i = 0; i < RANGES; i++)
        asked += ranges[i].size_bytes;
    fill(0, STRIPES * MIB, 1);
    slab_config config = config_of(copy_drives);
    mem_stats before, after;
    mem_get_stats(&before);
    assert_ok(slab_copy(&store, &config, ranges, RANGES, &copied));
    mem_get_stats(&after);
    assert_int_equal(after.call_count, before.call_count);
    assert_int_equal(helper_count_fds(), fds);
    assert_int_equal(copied, denies_clones ? asked : 0);
    fill(0, STRIPES * MIB, 2); /* the next step */
    config.open_existing = true;
    assert_ok(slab_open(&copy, &config));
    for (uint64_t at = 0; at < STRIPES * MIB; at += BLOCK)
        if (!holds(at, denies_clones && !is_asked_for(at), 1))
            fail_msg("the block at %llu", (unsigned long long)at);
    if (denies_clones) {
        assert_in_range(taken_bytes(&copy), asked, asked + MIB); /* the rest is holes */
        assert_true(taken_bytes(&store) >= STRIPES * MIB);
    }
    slab_close(&copy);

    /* Where it is already, nothing happens to it. */
    assert_error(slab_copy(&store, &config, ranges, RANGES, &copied), -EEXIST,
                 "keep/step-3/0/sluice-c0de");
    assert_int_equal(copied, 0);
    assert_int_equal(slab_open(&copy, &config), 0);
    assert_true(holds(0, false, 1));
    slab_close(&copy);
    assert_int_equal(slab_remove_files(&config), 0);
    assert_ok(slab_copy(&store, &config, ranges, RANGES, &copied));
    assert_int_equal(slab_open(&copy, &config), 0);
    assert_true(holds(9 * MIB + 8 * BLOCK, false, 2));
    assert_int_equal(slab_remove(&copy), 0);
    assert_int_equal(helper_count_fds(), fds);
}

static void ranges_by_seed(void **state)
{
    enum { COUNT = 60, TRIALS = 2 };
    print_message("seed %d\n", SEED);
    static slab_range some[COUNT];
    static bool asked[STRIPES * MIB / BLOCK];
    fill(0, STRIPES * MIB, 1);
    slab_config config = config_of(copy_drives);
    for (uint64_t trial = 0; trial < TRIALS; trial++) {
        memset(asked, 0, sizeof asked);
        uint64_t copied;
        for (uint64_t i = 0; i < COUNT; i++) { /* in any order, and over each other */
            uint64_t idx = trial * COUNT + i;
            uint64_t first = rng_below(SEED, 1, idx, STRIPES * MIB / BLOCK);
            uint64_t most = i % 16 ? 40 : 4000;
            uint64_t count = size_min(rng_below(SEED, 2, idx, most), STRIPES * MIB / BLOCK - first);
            some[i] = (slab_range){first * BLOCK, count * BLOCK};
            memset(&asked[first], 1, count);
        }
        config.open_existing = false;
        assert_ok(slab_copy(&store, &config, some, COUNT, &copied));
        config.open_existing = true;
        assert_int_equal(slab_open(&copy, &config), 0);
        for (uint64_t i = 0; i < STRIPES * MIB / BLOCK; i++)
            if (!holds(i * BLOCK, denies_clones && !asked[i], 1))
                fail_msg("trial %d: block %d", (int)trial, (int)i);
        assert_int_equal(slab_remove(&copy), 0);
    }
}

static void assert_no_copy(int fds)
{
    char path[FILE_PATH_BYTES];
    snprintf(path, sizeof path, "%s/keep", base_path);
    assert_int_equal(helper_count_entries(path), -1); /* directories are undone too */
    assert_int_equal(helper_count_fds(), fds);
}

static void failures_leave_nothing(void **state)
{
    int fds = helper_count_fds();
    uint64_t copied = 1;
    slab_config config = config_of(copy_drives);
    static const slab_range bad[] = {{BLOCK / 2, BLOCK},
                                     {0, BLOCK + 1},
                                     {STRIPES * MIB, BLOCK},
                                     {STRIPES * MIB - BLOCK, 2 * BLOCK},
                                     {UINT64_MAX - BLOCK + 1, 2 * BLOCK}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(slab_copy(&store, &config, &bad[i], 1, &copied), -EINVAL);
        assert_int_equal(copied, 0);
    }
    config.rank = 1;
    assert_int_equal(slab_copy(&store, &config, ranges, RANGES, &copied), -EINVAL);
    config = config_of(copy_drives);
    config.uuid[3] = 1;
    assert_int_equal(slab_copy(&store, &config, ranges, RANGES, &copied), -EINVAL);
    config = config_of(copy_drives);
    config.drive_count = 1;
    assert_int_equal(slab_copy(&store, &config, ranges, RANGES, &copied), -EINVAL);
    assert_no_copy(fds);

    /* The second drive cannot be made: the first goes again. */
    config = config_of(copy_drives);
    char file[FILE_PATH_BYTES];
    snprintf(file, sizeof file, "%s/plain", base_path);
    int fd = open(file, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
    name_drive(&copy_drives[1], "plain/x");
    assert_error(slab_copy(&store, &config, ranges, RANGES, &copied), -ENOTDIR, "plain");
    assert_no_copy(fds);
    name_drive(&copy_drives[1], "keep/step-3/1");
    if (!denies_clones)
        return;
    /* In the midst of the bytes: the source has been cut off. */
    assert_int_equal(truncate(store.files[1].path, 12 * MIB), 0);
    assert_int_equal(slab_copy(&store, &config, ranges, RANGES, &copied), ERR_CORRUPT);
    if (!strstr(err_text(), store.files[1].path) || !strstr(err_text(), "cut off"))
        fail_msg("'%s'", err_text());
    assert_int_equal(copied, 0);
    assert_no_copy(fds);
}

/* Two drives of the copy may be one directory, as those of a slab may be. */
static void drives_may_share_a_directory(void **state)
{
    int fds = helper_count_fds();
    uint64_t copied;
    fill(0, 2 * MIB, 1);
    copy_drives[1] = copy_drives[0];
    slab_config config = config_of(copy_drives);
    const slab_range range = {0, 2 * MIB};
    assert_int_equal(slab_copy(&store, &config, &range, 1, &copied), 0);
    config.open_existing = true;
    assert_int_equal(slab_open(&copy, &config), 0);
    for (uint64_t at = 0; at < 2 * MIB; at += BLOCK)
        assert_true(holds(at, false, 1));
    assert_int_equal(slab_remove(&copy), 0);
    assert_int_equal(helper_count_fds(), fds);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "sparse";
    denies_clones = strcmp(name, "reflink") != 0;
    if (!denies_clones && !getenv("SLUICE_TEST_REFLINK_DIR")) {
        fprintf(stderr, "skipped: SLUICE_TEST_REFLINK_DIR names no directory on a file system with "
                        "reflinks\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_copy_opens_as_the_slab, setup, teardown),
        cmocka_unit_test_setup_teardown(ranges_by_seed, setup, teardown),
        cmocka_unit_test_setup_teardown(failures_leave_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(drives_may_share_a_directory, setup, teardown),
    };
    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}
