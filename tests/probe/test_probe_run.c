/* A tiny probe of everything: each figure is there, no file is left, a request to stop is obeyed,
 * and drives that cannot be used are refused before anything is measured. No test asserts a speed.
 * */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include "probe/probe.h"
#include "tests/tiers/tiers_helpers.h"
#include "tests/unit.h"

static machine found; /* large */
static volatile sig_atomic_t stop_flag;

struct watcher {
    int progress_count, line_count;
    const char *stop_at; /* the progress that sets the flag contains this; NULL: none */
    double share;
    char last[512], seen[16384];
};

static void on_progress(void *user, const char *what, double done_share, double seconds_left)
{
    struct watcher *watcher = user;
    watcher->progress_count++;
    assert_true(done_share >= 0 && done_share <= 1);
    assert_true(seconds_left >= 0);
    watcher->share = done_share;
    snprintf(watcher->last, sizeof watcher->last, "%s", what);
    size_t used = strlen(watcher->seen);
    snprintf(watcher->seen + used, sizeof watcher->seen - used, "%s\n", what);
    if (watcher->stop_at && strstr(what, watcher->stop_at))
        stop_flag = 1;
}

static void on_line(void *user, const char *text)
{
    struct watcher *watcher = user;
    watcher->line_count++;
    assert_null(strchr(text, '\n'));
}

static struct probe_options tiny(struct watcher *watcher)
{
    return (struct probe_options){.drives = {directory},
                                  .drive_count = 1,
                                  .backend = "cpu",
                                  .is_tiny = true,
                                  .stop = &stop_flag,
                                  .on_progress = on_progress,
                                  .on_line = on_line,
                                  .user = watcher};
}

static int count_fds(void)
{
    return helper_count_entries("/proc/self/fd");
}

/* Neither file nor descriptor nor child nor thread of ours. OpenMP's own threads of this one may
 * stay. */
static void expect_nothing_left(int fds)
{
    assert_int_equal(helper_count_entries(directory), 2);
    assert_int_equal(count_fds(), fds);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
    helper_wait_for_threads(1);
}

static void expect_host(void)
{
    assert_true(found.name[0] && found.measured_at[0] && found.measured_by[0] && found.host.cpu[0]);
    assert_true(found.host_count == 1 && found.ranks_per_host == 1);
    assert_true(found.host.core_count > 0 && found.host.node_count > 0);
    assert_true(found.host.memory_bytes > 0);
    assert_true(found.host.dram_read > 0 && found.host.dram_copy > 0 && found.host.dram_update > 0);
    assert_true(found.host.sum_core_seconds > 0);
    assert_true(found.host.update_core_seconds > 0 && found.host.update_elems > 0);
    assert_true(found.host.io_core_seconds >= 0); /* of milliseconds of I/O it may round to none */
    char why[256];
    static machine here;
    assert_ok(probe_name_host(&here));
    assert_true(machine_is_here(&found, &here, why, sizeof why));
    assert_true(found.comm.inside > 0 && found.comm.seconds > 0 && found.comm.is_copies);
}

static void expect_device(void)
{
    bool has[2][2] = {{false}};
    double best = 0;
    assert_false(found.device.is_gpu);
    assert_true(found.device.product_count > 0);
    for (uint32_t i = 0; i < found.device.product_count; i++) {
        const machine_product *product = &found.device.products[i];
        assert_true(product->m > 0 && product->n > 0 && product->k > 0);
        assert_true(product->flops_per_second > 0);
        assert_true(product->type == DTYPE_FP32 || product->type == DTYPE_BF16);
        has[product->type == DTYPE_FP32][product->accumulates] = true;
        best = product->flops_per_second > best ? product->flops_per_second : best;
    }
    assert_true(has[0][0] && has[0][1] && has[1][0] && has[1][1]);
    assert_true(found.device.peak_flops == best);
    assert_true(found.device.flops_16bit > 0 && found.device.flops_fp32 > 0);
    assert_true(found.device.attention_forward > 0 && found.device.attention_backward > 0);
    assert_true(found.device.row_rate > 0 && found.device.op_seconds > 0);
    assert_true(found.device.expand_rate > 0);
    assert_in_range(found.device.thread_count, 1, found.host.core_count);
    const machine_link *links[] = {&found.h2d, &found.d2h};
    for (int i = 0; i < 2; i++)
        assert_true(links[i]->pageable > 0 && links[i]->pinned > 0 && links[i]->pinned_both > 0 &&
                    links[i]->pinned_with_nvme > 0);
}

static void expect_drive(const machine_drive *drive)
{
    assert_true(drive->name[0] && drive->path[0] == '/' && drive->count == 1);
    assert_true(drive->capacity_bytes > 0);
    assert_true(drive->read > 0 && drive->write > 0 && drive->mixed > 0);
    assert_true(drive->write_with_update > 0 && drive->sync_seconds > 0);
    bool has_setting = false;
    uint32_t kinds[3] = {0};
    assert_true(drive->point_count > 0);
    for (uint32_t i = 0; i < drive->point_count; i++) {
        const machine_io_point *point = &drive->points[i];
        assert_true(point->bytes_per_second > 0);
        kinds[point->kind]++;
        has_setting = has_setting || (point->block_bytes == drive->block_bytes &&
                                      point->queue_depth == drive->queue_depth);
    }
    assert_true(has_setting);
    assert_true(kinds[0] > 0 && kinds[0] == kinds[1] && kinds[1] == kinds[2]);
}

static void each_figure_is_there_and_nothing_is_left(void **state)
{
    static struct watcher watcher;
    static machine again;
    struct probe_options options = tiny(&watcher);
    watcher = (struct watcher){0};
    stop_flag = 0;
    int fds = count_fds();
    assert_ok(probe_run(&options, &found));
    expect_nothing_left(fds);
    expect_host();
    expect_device();
    assert_int_equal(found.drive_count, 1);
    expect_drive(&found.drives[0]);
    assert_true(found.drives_read == 0); /* one drive: there is no sum */
    assert_true(watcher.line_count > 20 && watcher.progress_count > 40);
    assert_non_null(strstr(watcher.seen, "1/7 ranks"));
    assert_non_null(strstr(watcher.seen, "7/7 nvme "));
    assert_non_null(strstr(watcher.seen, ": write 1024 KiB x 4"));
    /* The result can be written as a machine file. */
    char path[512];
    snprintf(path, sizeof path, "%s/machine.json", directory);
    assert_ok(machine_write(&found, path));
    assert_ok(machine_read(path, &again));
    assert_true(again.host.dram_copy == found.host.dram_copy);
    assert_int_equal(again.drives[0].point_count, found.drives[0].point_count);
    assert_int_equal(again.device.product_count, found.device.product_count);
    assert_int_equal(remove(path), 0);
}

static void several_drives_are_measured_together_too(void **state)
{
    static struct watcher watcher;
    struct probe_options options = tiny(&watcher);
    watcher = (struct watcher){0};
    stop_flag = 0;
    char second[512];
    snprintf(second, sizeof second, "%s/not/made", directory); /* the one above is used */
    options.drives[1] = second;
    options.drive_count = 2;
    int fds = count_fds();
    assert_ok(probe_run(&options, &found));
    expect_nothing_left(fds);
    assert_int_equal(found.drive_count, 2);
    expect_drive(&found.drives[0]);
    assert_true(found.drives[1].read > 0 && found.drives[1].point_count > 0);
    assert_true(found.drives_read > 0 && found.drives_write > 0);
}

/* Among ranks, kernels, first writes, beside Adam: stopped within a step or two, cleared, nothing
 * left. */
static void a_stop_is_heard_everywhere(void **state)
{
    static struct watcher watcher;
    struct probe_options options = tiny(&watcher);
    static const char *const places[] = {"1/7 ranks",          "3/7 memory and Adam: copying, one",
                                         "4/7 products: fp32", "first write",
                                         "read 256 KiB x 4",   "mixed beside Adam"};
    int fds = count_fds();
    for (uint32_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        watcher = (struct watcher){.stop_at = places[i]};
        stop_flag = 0;
        assert_int_equal(probe_run(&options, &found), ERR_STOPPED);
        assert_non_null(strstr(watcher.last, places[i])); /* nothing came after it */
        assert_true(found.host.dram_copy == 0 && found.drive_count == 0);
        expect_nothing_left(fds);
    }
}

static void drives_that_cannot_be_used_are_refused_first(void **state)
{
    static struct watcher watcher;
    char file[512];
    snprintf(file, sizeof file, "%s/plain", directory);
    close(open(file, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    const char *const bad[] = {file, "", "/proc/1"};
    int fds = count_fds();
    for (int i = 0; i < 3; i++) {
        struct probe_options options = tiny(&watcher);
        watcher = (struct watcher){0};
        stop_flag = 0;
        options.drives[1] = bad[i];
        options.drive_count = 2;
        assert_int_equal(probe_run(&options, &found), ERR_INPUT);
        assert_true(bad[i][0] == 0 || strstr(err_text(), bad[i]) != NULL);
        assert_int_equal(watcher.progress_count + watcher.line_count, 0);
        assert_int_equal(found.drive_count, 0);
    }
    struct probe_options options = tiny(&watcher);
    options.backend = "gpu";
    assert_int_equal(probe_run(&options, &found), ERR_USAGE);
    assert_int_equal(count_fds(), fds);
    assert_int_equal(remove(file), 0);
    assert_int_equal(helper_count_entries(directory), 2);
}

static void a_full_drive_is_refused(void **state)
{
    static struct watcher watcher;
    struct probe_options options = tiny(&watcher);
    char mount_point[512];
    snprintf(mount_point, sizeof mount_point, "%s/small", directory);
    assert_int_equal(mkdir(mount_point, 0700), 0);
    options.drives[0] = mount_point;
    static const char *const room[] = {"size=3m", "size=24m"};
    for (int i = 0; i < 2; i++) {
        watcher = (struct watcher){0};
        stop_flag = 0;
        if (mount("tmpfs", mount_point, "tmpfs", 0, room[i]) != 0) {
            rmdir(mount_point);
            print_message("mounting a small file system needs privileges: not tested\n");
            return;
        }
        int rc = probe_run(&options, &found);
        assert_int_equal(umount(mount_point), 0); /* nothing of ours is open there */
        assert_error(rc, ERR_NO_FIT, mount_point);
        assert_int_equal(watcher.line_count, 0);
    }
    assert_int_equal(rmdir(mount_point), 0);
}

int main(void)
{
    /* Mounts of ours are nobody else's; where that is not allowed, a test says that it did not
     * run. */
    if (unshare(CLONE_NEWNS) == 0)
        (void)!mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drives_that_cannot_be_used_are_refused_first),
        cmocka_unit_test(a_full_drive_is_refused),
        cmocka_unit_test(each_figure_is_there_and_nothing_is_left),
        cmocka_unit_test(several_drives_are_measured_together_too),
        cmocka_unit_test(a_stop_is_heard_everywhere),
    };
    return cmocka_run_group_tests(tests, directory_make, directory_remove);
}
