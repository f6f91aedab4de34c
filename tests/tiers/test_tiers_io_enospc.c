/* A real full drive: a tmpfs of 3 MiB, mounted for the test (in a mount namespace of its own, so
 * that nothing stays behind), or a skip where mounting is not allowed. The argument names the
 * backend. */
#include <errno.h>
#include <sched.h>
#include <sys/mount.h>

#include "tests/tiers/tiers_helpers.h"
#include "tests/unit.h"
#include "tiers/arena.h"
#include "tiers/io.h"

static enum io_backend backend = IO_POOL;
static slab_drive drives[1];
static slab store;
static arena memory;

static slab_config config_of(uint64_t total_bytes)
{
    helper_drive(&drives[0], "small", (uint64_t)1 << 40, 1);
    return (slab_config){
        .drives = drives, .drive_count = 1, .total_bytes = total_bytes, .stripe_bytes = MIB};
}

static void a_slab_that_does_not_fit_is_refused(void **state)
{
    slab_config config = config_of(4 * MIB);
    assert_int_equal(helper_check_space(&config), ERR_NO_FIT);
    assert_int_equal(slab_open(&store, &config), ERR_NO_FIT);
    assert_int_equal(helper_count_entries(drives[0].path), 2);
}

static void a_full_drive_fails_the_write(void **state)
{
    slab_config config = config_of(2 * MIB);
    assert_int_equal(slab_open(&store, &config), 0);
    /* Takes away what fallocate reserved, then fills the drive from outside. */
    assert_int_equal(ftruncate(store.files[0].fd, SLAB_HEADER_BYTES), 0);
    char filler[FILE_PATH_BYTES + 16];
    snprintf(filler, sizeof filler, "%s/filler", drives[0].path);
    FILE *file = fopen(filler, "we");
    assert_non_null(file);
    memset(memory.base, 1, MIB);
    size_t put;
    do
        put = fwrite(memory.base, 1, 64 * KIB, file);
    while (put == 64 * KIB);
    fclose(file);

    io_config io_settings = {.target = &store, .backend = backend};
    io *self = NULL;
    assert_int_equal(io_create(&io_settings, &self), 0);
    assert_error(io_transfer(self, IO_WRITE, 0, memory.base, 2 * MIB), -ENOSPC,
                 store.files[0].path);
    assert_non_null(strstr(err_text(), "No space left on device"));
    unlink(filler);
    assert_int_equal(io_transfer(self, IO_WRITE, 0, memory.base, 2 * MIB), 0);
    io_destroy(self);
    assert_int_equal(slab_remove(&store), 0);
}

/* Twice 2 MiB do not fit in 3 MiB; a part of the second does, and the slab is unchanged. */
static void a_copy_that_does_not_fit_leaves_nothing(void **state)
{
    slab_config config = config_of(2 * MIB), copy_config = config;
    static slab_drive copy_drive;
    helper_drive(&copy_drive, "small/kept", 0, 1);
    copy_config.drives = &copy_drive;
    assert_int_equal(slab_open(&store, &config), 0);
    memset(memory.base, 3, 2 * MIB);
    assert_int_equal(pwrite(store.files[0].fd, memory.base, 2 * MIB, SLAB_HEADER_BYTES), 2 * MIB);
    const slab_range all = {0, 2 * MIB}, part = {MIB, 256 * KIB};
    uint64_t copied;
    int fds = helper_count_fds();
    assert_int_equal(slab_copy(&store, &copy_config, &all, 1, &copied), -ENOSPC);
    if (!strstr(err_text(), "small/kept/sluice-") || !strstr(err_text(), "No space left on device"))
        fail_msg("'%s'", err_text());
    assert_int_equal(helper_count_entries(copy_drive.path), -1);
    assert_int_equal(helper_count_fds(), fds);
    assert_int_equal(slab_copy(&store, &copy_config, &part, 1, &copied), 0);
    assert_int_equal(copied, part.size_bytes + SLAB_HEADER_BYTES);
    assert_int_equal(slab_remove_files(&copy_config), 0);
    assert_int_equal(rmdir(copy_drive.path), 0);
    assert_int_equal(pread(store.files[0].fd, memory.base + 2 * MIB, 2 * MIB, SLAB_HEADER_BYTES),
                     2 * MIB);
    assert_memory_equal(memory.base, memory.base + 2 * MIB, 2 * MIB);
    assert_int_equal(slab_remove(&store), 0);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "pool";
    backend = strcmp(name, "uring") == 0 ? IO_URING : IO_POOL;
    if (directory_make(NULL) != 0)
        return 1;
    char mount_point[512];
    snprintf(mount_point, sizeof mount_point, "%s/small", directory);
    if (mkdir(mount_point, 0700) != 0)
        return 1;
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", mount_point, "tmpfs", 0, "size=3m") != 0) {
        fprintf(stderr, "skipped: mounting a small file system needs privileges: %s\n",
                strerror(errno));
        directory_remove(NULL);
        return 77;
    }
    arena_config config = {.name = "host", .size_bytes = 4 * MIB, .touch_threads = 1};
    if (arena_init(&memory, &config) < 0)
        return 1;
    int rc = 0;
    if (backend == IO_URING) {
        slab_config slab_settings = config_of(MIB);
        io_config io_settings = {.target = &store, .backend = IO_URING};
        io *self = NULL;
        if (slab_open(&store, &slab_settings) < 0)
            return 1;
        rc = io_create(&io_settings, &self) < 0 ? 77 : 0;
        if (rc)
            fprintf(stderr, "skipped: io_uring is not available: %s\n", err_text());
        io_destroy(self);
        if (slab_remove(&store) < 0)
            return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slab_that_does_not_fit_is_refused),
        cmocka_unit_test(a_full_drive_fails_the_write),
        cmocka_unit_test(a_copy_that_does_not_fit_leaves_nothing),
    };
    if (rc == 0)
        rc = cmocka_run_group_tests_name(name, tests, NULL, NULL);
    arena_fini(&memory);
    umount(mount_point);
    directory_remove(NULL);
    return rc;
}
