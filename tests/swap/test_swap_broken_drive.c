/* Real drives that fail, under io alone and under a program: a full file system (tmpfs) gives
 * ENOSPC, and a block device that has lost its medium (a loop device on memory that is cut short,
 * or sealed against writing) gives EIO. All mounts are in a namespace of our own and go with the
 * process. The argument is <backend>_<full or lost>; 77 where the machine does not allow it. */
#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <poll.h>
#include <sched.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/swap/swap_io_rig.h"
#include "tests/unit.h"

enum { SEED = 78, REQUESTS = 8 };

#define TMPFS_OPTIONS "size=3m"
#define MEDIUM_BYTES  (24 * MIB)
#define LOST_BYTES    (64 * KIB) /* what is left of the medium: less than the tables, no data */

static const char *transport_name = "pool";
static char mount_point[512];
static int medium = -1; /* memfd behind the loop device */

/* ---- drives that can fail ---- */

static int fill_drive(void)
{
    static unsigned char block[64 * 1024];
    char path[600];
    snprintf(path, sizeof path, "%s/filler", mount_point);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    ssize_t put;
    do
        put = write(fd, block, sizeof block);
    while (put > 0);
    int rc = errno == ENOSPC ? 0 : -errno;
    close(fd);
    return rc;
}

/* Takes away what the slab's file has reserved, all but its header, and lets others have it. */
static void exhaust(const slab *drive)
{
    assert_int_equal(fallocate(drive->files[0].fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                               SLAB_HEADER_BYTES,
                               (off_t)(drive->files[0].file_bytes - SLAB_HEADER_BYTES)),
                     0);
    assert_int_equal(fill_drive(), 0);
}

static int mount_tmpfs(void)
{
    return mount("tmpfs", mount_point, "tmpfs", 0, TMPFS_OPTIONS) == 0 ? 0 : -errno;
}

static int make_file_system(const char *device)
{
    extern char **environ;
    char *const arguments[] = {"mkfs.ext4", "-q",           "-F",           "-b", "4096",
                               "-O",        "^has_journal", (char *)device, NULL};
    static const char *const places[] = {"/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4"};
    for (int i = 0; i < 2; i++) {
        pid_t child;
        int status;
        if (access(places[i], X_OK) != 0 ||
            posix_spawn(&child, places[i], NULL, NULL, arguments, environ) != 0)
            continue;
        if (waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0)
            return 0;
        return -EIO;
    }
    return -ENOENT;
}

/* Makes a free loop device one on the medium. Returns its descriptor. -EBUSY: another process was
 * faster. */
static int take_loop(char device[64])
{
    struct loop_config config = {
        .fd = (uint32_t)medium, .block_size = 4096, .info.lo_flags = LO_FLAGS_AUTOCLEAR};
    int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    if (control < 0)
        return -errno;
    int number = ioctl(control, LOOP_CTL_GET_FREE);
    close(control);
    snprintf(device, 64, "/dev/loop%d", number);
    int loop = number >= 0 ? open(device, O_RDWR | O_CLOEXEC) : -1;
    if (loop < 0)
        return -errno;
    if (ioctl(loop, LOOP_CONFIGURE, &config) == 0)
        return loop;
    int rc = -errno;
    close(loop);
    return rc;
}

/* Mounts a file system on a loop device on memory. The device frees itself when the mount is
 * gone. */
static int mount_medium(void)
{
    char device[64];
    medium = memfd_create("sluice-medium", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (medium < 0 || ftruncate(medium, MEDIUM_BYTES) != 0)
        return -errno;
    int loop = -EBUSY;
    for (int i = 0; i < 100 && loop == -EBUSY; i++)
        loop = take_loop(device);
    if (loop < 0)
        return loop;
    int rc = make_file_system(device);
    if (rc == 0 && mount(device, mount_point, "ext4", 0, NULL) != 0)
        rc = -errno;
    close(loop);
    return rc;
}

/* Each test has a fresh drive. */
static int mount_full(void **state)
{
    return mount_tmpfs();
}

static int mount_lost(void **state)
{
    return mount_medium();
}

static int unmount(void **state)
{
    int rc = umount2(mount_point, MNT_DETACH);
    if (medium >= 0)
        close(medium);
    medium = -1;
    return rc;
}

/* ---- under a program ---- */

/* Runs the program on the drive after `breaks` was called on it: an error of this code that names
 * op, file and offset; all requests back; the executor refuses further work. */
static void run_on_broken_drive(void (*breaks)(const slab *drive), int code, const char *start)
{
    program prog;
    io_rig_program(&prog);
    io_rig r;
    io_rig_init(&r, transport_name, &prog, SEED);
    r.drive_name = "mount";
    r.keeps_files = true;
    io_rig_start(&r, NULL);
    breaks(r.drive);
    int rc = executor_run(r.exec, &prog, 1, NULL);
    if (rc != code || !io_rig_names_everything(&r, err_text()) ||
        strncmp(err_text(), start, strlen(start)) != 0)
        fail_msg("%d: '%s'", rc, rc < 0 ? err_text() : "no error");
    print_message("%s\n", err_text());
    assert_int_equal(executor_run(r.exec, &prog, 2, NULL), ERR_POISONED);
    io_rig_fini(&r); /* asserts in the lanes that all requests are back */
    program_fini(&prog);
}

static void lose_medium(const slab *drive)
{
    (void)drive;
    assert_int_equal(ftruncate(medium, LOST_BYTES), 0);
}

static void protect_medium(const slab *drive)
{
    (void)drive;
    assert_int_equal(fcntl(medium, F_ADD_SEALS, F_SEAL_WRITE), 0);
}

static void a_full_drive_stops_the_run(void **state)
{
    run_on_broken_drive(exhaust, -ENOSPC, "write of unit 3, tile ");
}

static void a_lost_medium_stops_the_run(void **state)
{
    run_on_broken_drive(lose_medium, -EIO, "read of unit 3, tile ");
}

static void a_protected_medium_stops_the_run(void **state)
{
    run_on_broken_drive(protect_medium, -EIO, "write of unit 3, tile ");
}

/* ---- under io alone ---- */

/* Several requests at once on a drive that broke: each ends with the code and has its own text, the
 * queue is empty and lives on. */
static void submit_to_broken_drive(void (*breaks)(const slab *drive), enum io_direction direction,
                                   int code)
{
    static slab store;
    static slab_drive place;
    helper_drive(&place, "mount", 64 * MIB, 1);
    slab_config config = {
        .drives = &place, .drive_count = 1, .total_bytes = MIB, .stripe_bytes = MIB};
    assert_int_equal(slab_open(&store, &config), 0);
    unsigned char *block = mem_alloc(MIB + 4096, 1, "test memory");
    assert_non_null(block);
    unsigned char *data = block + (4096 - (uintptr_t)block % 4096);
    io_config settings = {.target = &store,
                          .backend = helper_backend(transport_name),
                          .queue_depth = 4,
                          .block_bytes = 32 * KIB};
    io *self;
    assert_int_equal(io_create(&settings, &self), 0);
    assert_int_equal(io_transfer(self, IO_WRITE, 0, data, MIB), 0);
    breaks(&store);
    io_request requests[REQUESTS];
    uint64_t part_bytes = MIB / REQUESTS;
    for (uint64_t i = 0; i < REQUESTS; i++) {
        requests[i] = (io_request){.direction = direction,
                                   .offset = i * part_bytes,
                                   .data = data + i * part_bytes,
                                   .size_bytes = part_bytes};
        assert_int_equal(io_submit(self, &requests[i]), 0);
    }
    for (int returned = 0; returned < REQUESTS;) {
        io_request *done[REQUESTS];
        int count = io_poll(self, done, REQUESTS);
        assert_true(count >= 0);
        returned += count;
        struct pollfd waiter = {.fd = io_event_fd(self), .events = POLLIN};
        if (count == 0)
            assert_int_equal(poll(&waiter, 1, 20000), 1);
    }
    for (uint64_t i = 0; i < REQUESTS; i++) {
        assert_int_equal(requests[i].in_flight, 0);
        assert_int_equal(io_request_error(self, &requests[i]), code);
        const char *at = strstr(err_text(), " at offset ");
        if (!at || !strstr(at, store.files[0].path))
            fail_msg("'%s'", err_text());
        assert_in_range(strtoull(at + 11, NULL, 10), SLAB_HEADER_BYTES + i * part_bytes,
                        SLAB_HEADER_BYTES + (i + 1) * part_bytes - 1);
    }
    assert_int_equal(io_transfer(self, direction, 0, data, 4096), code); /* and says so again */
    assert_int_equal(io_room(self), 4096);                               /* all are back */
    io_destroy(self);
    mem_free(block);
    slab_close(&store);
}

static void a_full_drive_fails_all_writes(void **state)
{
    submit_to_broken_drive(exhaust, IO_WRITE, -ENOSPC);
}

static void a_lost_medium_fails_all_reads(void **state)
{
    submit_to_broken_drive(lose_medium, IO_READ, -EIO);
}

static void a_protected_medium_fails_all_writes(void **state)
{
    submit_to_broken_drive(protect_medium, IO_WRITE, -EIO);
}

/* ---- */

static int skip_with(const char *what, int rc)
{
    fprintf(stderr, "skipped: %s: %s\n", what, strerror(-rc));
    directory_remove(NULL);
    return 77;
}

int main(int argc, char **argv)
{
    char name[32];
    snprintf(name, sizeof name, "%s", argc > 1 ? argv[1] : "pool_full");
    char *what = strchr(name, '_');
    bool lost = what && strcmp(what, "_lost") == 0;
    if (what)
        *what = 0;
    transport_name = name;
    int skip = helper_skip(helper_backend(name));
    if (skip)
        return skip;
    if (directory_make(NULL) != 0)
        return 1;
    snprintf(mount_point, sizeof mount_point, "%s/mount", directory);
    if (mkdir(mount_point, 0700) != 0)
        return 1;
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        return skip_with("a mount namespace needs privileges", -errno);
    int rc = lost ? mount_medium() : mount_tmpfs();
    if (rc < 0)
        return skip_with(lost ? "no file system on a loop device (needs /dev/loop-control, "
                                "mkfs.ext4 and privileges)"
                              : "mounting a tmpfs",
                         rc);
    if (unmount(NULL) != 0)
        return 1;
    const struct CMUnitTest full_tests[] = {
        cmocka_unit_test_setup_teardown(a_full_drive_fails_all_writes, mount_full, unmount),
        cmocka_unit_test_setup_teardown(a_full_drive_stops_the_run, mount_full, unmount),
    };
    const struct CMUnitTest lost_tests[] = {
        cmocka_unit_test_setup_teardown(a_lost_medium_fails_all_reads, mount_lost, unmount),
        cmocka_unit_test_setup_teardown(a_protected_medium_fails_all_writes, mount_lost, unmount),
        cmocka_unit_test_setup_teardown(a_lost_medium_stops_the_run, mount_lost, unmount),
        cmocka_unit_test_setup_teardown(a_protected_medium_stops_the_run, mount_lost, unmount),
    };
    rc = lost ? cmocka_run_group_tests_name(name, lost_tests, NULL, NULL)
              : cmocka_run_group_tests_name(name, full_tests, NULL, NULL);
    directory_remove(NULL);
    return rc;
}
