/* Drives measured and weighed: the arithmetic of weights, directories of one device, what the
 * measuring leaves behind (nothing), and what it does where it cannot measure. No test asserts on a
 * rate's size, only that it is one. The argument names the backend. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <sys/wait.h>

#include "base/rng.h"
#include "tests/tiers/tiers_helpers.h"
#include "tests/unit.h"
#include "tiers/drive_speed.h"
#include "tiers/tiers_internal.h"

static enum io_backend backend = IO_AUTO;
static slab_drive drives[DRIVES_MAX];
static char other_directory[64]; /* on another file system, or "" */

static uint64_t free_bytes_of(const char *path)
{
    struct statfs status;
    return statfs(path, &status) == 0 ? (uint64_t)status.f_bfree * (uint64_t)status.f_bsize : 0;
}

static void measured_and_nothing_left(void **state)
{
    int fds = helper_count_fds();
    drive_speed speed;
    char path[512];
    snprintf(path, sizeof path, "%s/not/made/yet", directory);
    assert_int_equal(drive_speed_measure(path, 16 * MIB, backend, &speed), 0);
    assert_true(speed.read > 0 && speed.write > 0);
    assert_true(speed.mixed <= fmax(speed.read, speed.write) * 1.000001);
    assert_true(speed.mixed >= fmin(speed.read, speed.write) * 0.999999);
    assert_int_equal(speed.file_bytes, 16 * MIB + SLAB_HEADER_BYTES);
    assert_true(speed.moved_bytes >= 3 * 8 * MIB);
    if (backend != IO_AUTO)
        assert_int_equal(speed.backend, backend);
    assert_int_equal(helper_count_entries(directory), 2);
    assert_int_equal(helper_count_fds(), fds);
}

/* The directory that cannot take new files, the drive without room, the path that is a file. */
static void failures_name_the_path_and_leave_nothing(void **state)
{
    int fds = helper_count_fds();
    drive_speed speed = {.read = 1};
    assert_int_equal(drive_speed_measure("", 0, backend, &speed), ERR_INPUT);
    assert_error(drive_speed_measure(directory, 7 * MIB, backend, &speed), -ENOSPC, directory);
    assert_true(speed.read == 0);
    assert_true(drive_speed_measure("/proc/1", 16 * MIB, backend, &speed) < 0);
    assert_non_null(strstr(err_text(), "/proc/1"));
    char file[512];
    snprintf(file, sizeof file, "%s/plain", directory);
    close(open(file, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    assert_int_equal(drive_speed_measure(file, 16 * MIB, backend, &speed), ERR_INPUT);
    assert_int_equal(helper_count_entries(directory), 3); /* the file alone */
    assert_int_equal(helper_count_fds(), fds);
}

static void weights_follow_rates_in_steps(void **state)
{
    double weights[DRIVES_MAX];
    const uint32_t apart[] = {0, 1, 2, 3};
    /* Within half a step: equal to the bit. */
    const double noisy[] = {3.00e9, 3.05e9, 2.99e9, 3.06e9};
    drive_speed_weights(noisy, apart, 4, weights);
    for (int i = 0; i < 4; i++)
        assert_true(weights[i] == weights[0]);
    const double wide[] = {6e9, 3e9, 0.06e9, 1e9};
    drive_speed_weights(wide, apart, 4, weights);
    assert_true(fabs(weights[0] - 6.0) < 1e-9);
    for (int i = 0; i < 4; i++)
        assert_in_range((int)(1000 * weights[i] / (wide[i] * 1e-9)), 975, 1025);
    /* Two directories of one device share its weight, the third has its own. */
    const uint32_t shared[] = {0, 1, 0, 0};
    const double same[] = {4e9, 2e9, 4e9, 4e9};
    drive_speed_weights(same, shared, 4, weights);
    assert_true(fabs(weights[0] - 4.0 / 3) < 1e-9 && weights[0] == weights[2] &&
                weights[0] == weights[3]);
    assert_in_range((int)(1000 * weights[1]), 1950, 2050);
    /* Unknown rates: the slowest known, or all equal. */
    const double unknown[] = {4e9, 0, 1e9, 2e9};
    drive_speed_weights(unknown, apart, 4, weights);
    assert_true(weights[1] == weights[2] && weights[1] > 0);
    const double none[] = {0, 0, 0, 0};
    drive_speed_weights(none, apart, 4, weights);
    for (int i = 0; i < 4; i++)
        assert_true(weights[i] == 1.0);

    /* Any rates give weights that a slab takes, in few levels, within half a step of the rates. */
    uint64_t seed = 20261122;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (uint64_t trial = 0; trial < 500; trial++) {
        double rates[DRIVES_MAX], fastest = 0;
        uint32_t devices[DRIVES_MAX];
        for (uint32_t i = 0; i < DRIVES_MAX; i++) {
            rates[i] = exp(7.0 + 18.0 * rng_uniform(seed, trial, i)); /* 1 kB/s to 70 GB/s */
            devices[i] = i;
            fastest = fmax(fastest, rates[i]);
        }
        drive_speed_weights(rates, devices, DRIVES_MAX, weights);
        for (uint32_t i = 0; i < DRIVES_MAX; i++) {
            double steps = log(fastest * 1e-9 / weights[i]) / log(1.05);
            assert_true(fabs(steps - nearbyint(steps)) < 1e-6);
            assert_true(fabs(log(weights[i] / (rates[i] * 1e-9))) < 0.5001 * log(1.05));
        }
    }
}

static void one_device_is_not_measured(void **state)
{
    for (uint32_t count = 1; count <= 3; count++) {
        for (uint32_t i = 0; i < count; i++) {
            char name[16];
            snprintf(name, sizeof name, "d%u", i);
            helper_drive(&drives[i], name, 64 * MIB, 7.0 + i);
        }
        assert_int_equal(slab_weigh_drives_by(drives, count, IO_AUTO), 0);
        for (uint32_t i = 0; i < count; i++)
            assert_true(drives[i].weight == drives[0].weight && drives[i].weight > 0);
    }
    assert_int_equal(helper_count_entries(directory), 2);
    assert_int_equal(slab_weigh_drives_by(drives, 0, IO_AUTO), -EINVAL);
    assert_int_equal(slab_weigh_drives_by(drives, DRIVES_MAX + 1, IO_AUTO), -EINVAL);
    drives[0].weight = 5;
    drives[1].path[0] = 0;
    assert_int_equal(slab_weigh_drives_by(drives, 2, IO_AUTO), ERR_INPUT);
    assert_true(drives[0].weight == 5);
}

/* Two directories here and one on another file system: the two have one measurement and equal
 * parts. */
static void two_devices_share_by_speed(void **state)
{
    if (!other_directory[0]) {
        print_message("skipped: no second file system can be written here\n");
        skip();
    }
    int fds = helper_count_fds();
    helper_drive(&drives[0], "a", 16 * MIB, 0);
    helper_drive(&drives[1], "b", 4 * MIB, 0);
    helper_drive(&drives[2], "c", 16 * MIB, 0);
    snprintf(drives[1].path, sizeof drives[1].path, "%s/new", other_directory);
    drives[1].budget_bytes = 16 * MIB;
    assert_int_equal(slab_weigh_drives_by(drives, 3, backend), 0);
    assert_true(drives[0].weight == drives[2].weight);
    assert_true(drives[0].weight > 0 && drives[1].weight > 0);
    /* Too small to be measured: it counts as the slowest that is known. */
    drives[1].budget_bytes = MIB;
    assert_int_equal(slab_weigh_drives_by(drives, 3, backend), 0);
    assert_true(fabs(drives[1].weight - 2 * drives[0].weight) < 1e-9 * drives[1].weight);
    assert_int_equal(helper_count_entries(directory), 2);
    assert_int_equal(helper_count_entries(other_directory), 2);
    assert_int_equal(helper_count_fds(), fds);

    /* A slab over them reopens the same whatever is measured then. */
    static slab store, again;
    slab_config config = {
        .drives = drives, .drive_count = 3, .total_bytes = 24 * MIB, .stripe_bytes = MIB};
    drives[1].budget_bytes = 16 * MIB;
    assert_int_equal(slab_open(&store, &config), 0);
    config.open_existing = true;
    drives[0].weight = 1e-3;
    drives[2].weight = 1e3;
    assert_int_equal(slab_open(&again, &config), 0);
    assert_memory_equal(again.drive_stripes, store.drive_stripes, sizeof store.drive_stripes);
    assert_memory_equal(again.zones, store.zones, sizeof store.zones);
    slab_close(&again);
    assert_int_equal(slab_remove(&store), 0);
}

static void put_file(const char *path, const char *text)
{
    char whole[600];
    snprintf(whole, sizeof whole, "%s/%s", directory, path);
    if (!text) {
        assert_int_equal(mkdir(whole, 0700), 0);
        return;
    }
    FILE *file = fopen(whole, "we");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* Two partitions are one drive, whose queue has limits: told by a tree like that of sysfs. */
static void partitions_lead_to_their_disk(void **state)
{
    static const char *const entries[][2] = {
        {"block", NULL},
        {"disk", NULL},
        {"disk/dev", "259:0\n"},
        {"disk/queue", NULL},
        {"disk/queue/max_sectors_kb", "510\n"},
        {"disk/queue/max_segments", "127\n"},
        {"disk/part1", NULL},
        {"disk/part1/dev", "259:1\n"},
        {"disk/part1/partition", "1\n"},
        {"disk/part2", NULL},
        {"disk/part2/dev", "259:2\n"},
        {"disk/part2/partition", "2\n"},
    };
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++)
        put_file(entries[i][0], entries[i][1]);
    static const char *const links[][2] = {
        {"../disk", "259:0"}, {"../disk/part1", "259:1"}, {"../disk/part2", "259:2"}};
    char block[300], link[400];
    snprintf(block, sizeof block, "%s/block", directory);
    for (size_t i = 0; i < 3; i++) {
        snprintf(link, sizeof link, "%s/%s", block, links[i][1]);
        assert_int_equal(symlink(links[i][0], link), 0);
    }
    for (unsigned part = 0; part < 3; part++)
        assert_true(tieri_whole_device(block, makedev(259, part)) == makedev(259, 0));
    assert_true(tieri_whole_device(block, makedev(0, 42)) == makedev(0, 42)); /* not there */
    for (unsigned part = 0; part < 3; part++)
        assert_int_equal(tieri_largest_request(block, makedev(259, part)), 127 * 4 * KIB);
    put_file("disk/queue/max_segments", "168\n");
    assert_int_equal(tieri_largest_request(block, makedev(259, 2)), 508 * KIB);
    assert_true(tieri_largest_request(block, makedev(0, 42)) == UINT64_MAX);
    put_file("disk/queue/chunk_sectors", "0\n");
    assert_int_equal(tieri_largest_request(block, makedev(259, 2)), 508 * KIB);
    put_file("disk/queue/chunk_sectors", "256\n");
    assert_int_equal(tieri_largest_request(block, makedev(259, 2)), 0);
}

/* However the process ends: killed at any moment, it leaves no file. */
static void killed_and_nothing_left(void **state)
{
    for (int trial = 0; trial < 6; trial++) {
        int pipe_fds[2];
        assert_int_equal(pipe(pipe_fds), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            drive_speed speed;
            for (;;) {
                ssize_t put = write(pipe_fds[1], "x", 1);
                if (put != 1 || drive_speed_measure(directory, 16 * MIB, backend, &speed) < 0)
                    _exit(1);
            }
        }
        char byte;
        assert_int_equal(read(pipe_fds[0], &byte, 1), 1);
        usleep((useconds_t)(3000 * trial));
        kill(child, SIGKILL);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        assert_int_equal(helper_count_entries(directory), 2);
        close(pipe_fds[0]);
        close(pipe_fds[1]);
    }
}

/* A directory on another file system than the tests' own, if one can be written. */
static void find_other(void)
{
    static const char *const places[] = {"/dev/shm", "/tmp", "/run"};
    struct stat here, there;
    if (stat(".", &here) != 0)
        return;
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        snprintf(other_directory, sizeof other_directory, "%s/sluice_test_XXXXXX", places[i]);
        if (stat(places[i], &there) == 0 && there.st_dev != here.st_dev &&
            free_bytes_of(places[i]) > 64 * MIB && mkdtemp(other_directory))
            return;
    }
    other_directory[0] = 0;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "auto";
    backend = strcmp(name, "pool") == 0 ? IO_POOL : IO_AUTO;
    find_other();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(measured_and_nothing_left, directory_make,
                                        directory_remove),
        cmocka_unit_test_setup_teardown(failures_name_the_path_and_leave_nothing, directory_make,
                                        directory_remove),
        cmocka_unit_test(weights_follow_rates_in_steps),
        cmocka_unit_test_setup_teardown(one_device_is_not_measured, directory_make,
                                        directory_remove),
        cmocka_unit_test_setup_teardown(two_devices_share_by_speed, directory_make,
                                        directory_remove),
        cmocka_unit_test_setup_teardown(partitions_lead_to_their_disk, directory_make,
                                        directory_remove),
        cmocka_unit_test_setup_teardown(killed_and_nothing_left, directory_make, directory_remove),
    };
    int rc = cmocka_run_group_tests_name(name, tests, NULL, NULL);
    if (other_directory[0]) {
        snprintf(directory, sizeof directory, "%s", other_directory);
        directory_remove(NULL);
    }
    return rc;
}
