/* Unequal drives: what they offer together, what fits to the byte, who gets how much. Random
 * budgets and weights on paper, and slabs that fill small file systems for real where those can be
 * mounted. */
#include <math.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/statvfs.h>

#include "base/rng.h"
#include "tests/tiers/tiers_helpers.h"
#include "tests/unit.h"
#include "tiers/tiers_internal.h"

#define STRIPE (8 * MIB) /* what a config without one gets: plan counts on it */

static slab_drive drives[DRIVES_MAX];
static slab store, again;

static slab_config config_of(uint32_t drive_count, uint64_t total_bytes, uint64_t stripe_bytes)
{
    return (slab_config){.drives = drives,
                         .drive_count = drive_count,
                         .total_bytes = total_bytes,
                         .stripe_bytes = stripe_bytes};
}

static void drive_at(uint32_t idx, uint64_t budget_bytes, double weight)
{
    char name[32];
    snprintf(name, sizeof name, "drive-%u", idx);
    helper_drive(&drives[idx], name, budget_bytes, weight);
}

/* Free space is no limit where all budgets together are far below it. */
static uint64_t room_bytes(void)
{
    struct statvfs volume;
    assert_int_equal(statvfs(".", &volume), 0);
    return (uint64_t)volume.f_bavail * volume.f_frsize / 2;
}

static void assert_no_fit(const slab_config *config, uint64_t held_bytes)
{
    char text[SIZE_TEXT_BYTES];
    assert_error(helper_check_space(config), ERR_NO_FIT, size_format(held_bytes, text));
    for (uint32_t i = 0; i < config->drive_count; i++) {
        char figure[64];
        snprintf(figure, sizeof figure, "drive-%u: %s", i,
                 size_format(drives[i].budget_bytes, text));
        if (!strstr(err_text(), figure))
            fail_msg("'%s' lacks '%s'", err_text(), figure);
    }
}

/* Shares hold to limits, add up, and follow the weights to a stripe where no limit is met. */
static void check_shares(const slab_config *config, uint64_t stripe_count, const uint64_t *limits)
{
    uint64_t shares[DRIVES_MAX], sum = 0;
    assert_int_equal(tieri_slab_plan(config, STRIPE, stripe_count, shares), 0);
    bool any_full = false;
    double weight_sum = 0;
    for (uint32_t i = 0; i < config->drive_count; i++) {
        assert_true(shares[i] <= limits[i]);
        any_full |= shares[i] == limits[i];
        weight_sum += drives[i].weight;
        sum += shares[i];
    }
    assert_int_equal(sum, stripe_count);
    for (uint32_t i = 0; i < config->drive_count && !any_full; i++)
        assert_true(fabs((double)shares[i] - (double)stripe_count * drives[i].weight /
                                                 weight_sum) <= config->drive_count);
}

/* The space that the plan sets aside (a stripe per drive, beside the headers) is enough for any
 * budgets and weights. Every stripe that the budgets hold can be used, and not one more. */
static void any_budgets_fit_as_planned(void **state)
{
    uint64_t seed = 20261123, drive_bytes_max = size_min(room_bytes() / DRIVES_MAX, GIB);
    print_message("seed %llu\n", (unsigned long long)seed);
    for (uint64_t trial = 0; trial < 400; trial++) {
        uint32_t count = 1 + (uint32_t)rng_below(seed, 1, trial, DRIVES_MAX);
        uint64_t limits[DRIVES_MAX], limit_sum = 0, expected = 0, capacity;
        for (uint32_t i = 0; i < count; i++) {
            uint64_t place = trial * DRIVES_MAX + i;
            uint64_t budget = 1 + rng_below(seed, 2, place, drive_bytes_max);
            switch (rng_below(seed, 3, place, 6)) {
            case 0: /* below a stripe, down to less than a header */
                budget = 1 + budget % STRIPE;
                break;
            case 1: /* whole stripes exactly, or a byte off */
                budget = budget / STRIPE * STRIPE + SLAB_HEADER_BYTES;
                budget += rng_below(seed, 4, place, 3) - 1;
                break;
            default:
                break;
            }
            drive_at(i, budget, exp(12.0 * rng_uniform(seed, 5, place) - 6.0));
            uint64_t data = budget > SLAB_HEADER_BYTES ? budget - SLAB_HEADER_BYTES : 0;
            limits[i] = data / STRIPE;
            limit_sum += limits[i];
            expected += data;
        }
        assert_int_equal(slab_capacity(drives, count, &capacity), 0);
        assert_int_equal(capacity, expected);
        if (capacity > count * STRIPE) {
            uint64_t most = capacity - count * STRIPE;
            slab_config config = config_of(count, most, 0);
            assert_int_equal(helper_check_space(&config), 0);
            config.total_bytes = 1 + rng_below(seed, 6, trial, most);
            assert_int_equal(helper_check_space(&config), 0);
        }
        if (limit_sum) {
            slab_config config = config_of(count, limit_sum * STRIPE, 0);
            assert_int_equal(helper_check_space(&config), 0);
            check_shares(&config, limit_sum, limits);
            check_shares(&config, 1 + rng_below(seed, 7, trial, limit_sum), limits);
        }
        slab_config config = config_of(count, limit_sum * STRIPE + 1, 0);
        assert_no_fit(&config, limit_sum * STRIPE);
    }
}

/* The order in the job file names the files; it does not decide who gets how much. */
static void order_does_not_change_shares(void **state)
{
    static const double weights[] = {1.0, 5.3, 2.9, 0.4};
    static const uint64_t budgets[] = {900 * MIB, 200 * MIB, 77 * MIB, 600 * MIB};
    uint64_t by_drive[4] = {0};
    for (uint32_t turn = 0; turn < 4; turn++) {
        for (uint32_t i = 0; i < 4; i++)
            drive_at(i, budgets[(i + turn) % 4], weights[(i + turn) % 4]);
        uint64_t shares[DRIVES_MAX];
        slab_config config = config_of(4, GIB, 0);
        assert_int_equal(tieri_slab_plan(&config, STRIPE, GIB / STRIPE, shares), 0);
        for (uint32_t i = 0; i < 4; i++) {
            if (turn == 0)
                by_drive[i] = shares[i];
            assert_int_equal(shares[i], by_drive[(i + turn) % 4]);
        }
    }
    assert_int_equal(by_drive[1],
                     (200 * MIB - SLAB_HEADER_BYTES) / STRIPE); /* the fast one is full */
}

/* A drive with room for no stripe has a file with a header alone; the slab is whole without it. */
static void a_drive_below_a_stripe_stays_empty(void **state)
{
    static const uint64_t budgets[] = {MIB, 5 * MIB, 3 * MIB + 17};
    for (uint32_t i = 0; i < 3; i++)
        drive_at(i, budgets[i], 1.0);
    slab_config config = config_of(3, 6 * MIB, MIB);
    config.total_bytes = 7 * MIB;
    assert_no_fit(&config, 7 * MIB - MIB); /* 4 and 2: headers take from whole MiB */
    config.total_bytes = 6 * MIB;
    assert_int_equal(slab_open(&store, &config), 0);
    assert_int_equal(store.drive_stripes[0], 0);
    assert_int_equal(store.files[0].file_bytes, SLAB_HEADER_BYTES);
    assert_int_equal(store.drive_stripes[1], 4);
    assert_int_equal(store.drive_stripes[2], 2);
    for (uint64_t at = 0; at < store.total_bytes; at += MIB) {
        slab_piece piece;
        slab_map(&store, at, MIB, &piece);
        assert_int_not_equal(piece.drive_idx, 0);
    }
    slab_close(&store);
    config.open_existing = true;
    assert_int_equal(slab_open(&again, &config), 0);
    assert_int_equal(slab_remove(&again), 0);
}

/* ---- small file systems ---- */

static bool mounted;
static int filled_count; /* slabs that took all that was free */

static const char *const mount_names[] = {"small", "middle", "large"};
static const char *const mount_sizes[] = {"size=6m", "size=20m", "size=64m"};
enum { MOUNTS = 3 };

static uint64_t all_blocks; /* that are free on all of them when they are empty */

static uint64_t free_blocks(void)
{
    uint64_t sum = 0;
    for (int i = 0; i < MOUNTS; i++) {
        struct statvfs volume;
        assert_int_equal(statvfs(in_directory(mount_names[i]), &volume), 0);
        sum += volume.f_bfree;
    }
    return sum;
}

static void mount_all(void)
{
    mounted = unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
    for (int i = 0; i < MOUNTS && mounted; i++) {
        const char *path = in_directory(mount_names[i]);
        mounted = mkdir(path, 0700) == 0 && mount("tmpfs", path, "tmpfs", 0, mount_sizes[i]) == 0;
    }
    all_blocks = mounted ? free_blocks() : 0;
}

static void unmount_all(void)
{
    for (int i = 0; i < MOUNTS; i++)
        umount(in_directory(mount_names[i]));
}

/* Waits until the file systems are empty again. A deleted file's space is free when its last
 * reference is gone, and a process that looks through /proc/PID/fd of others (strangers.c, tools
 * like lsof) holds one for a moment. Space that is not given back at all is seen. */
static void await_empty(void)
{
    const struct timespec pause = {.tv_nsec = 10000000};
    for (int tries = 0; free_blocks() != all_blocks && tries < 2000; tries++)
        (void)nanosleep(&pause, NULL);
    assert_int_equal(free_blocks(), all_blocks);
}

/* Opens a slab of all that plan would use, whatever the weights, and it is there. */
static void check_filled(uint32_t drive_count)
{
    uint64_t capacity, left;
    assert_int_equal(slab_capacity(drives, drive_count, &capacity), 0);
    assert_true(capacity > drive_count * MIB);
    slab_config config = config_of(drive_count, capacity - drive_count * MIB, MIB);
    assert_int_equal(helper_check_space(&config), 0);
    assert_int_equal(slab_open(&store, &config), 0);
    for (uint32_t i = 0; i < drive_count; i++) {
        struct stat status;
        assert_int_equal(stat(store.files[i].path, &status), 0);
        assert_true((uint64_t)status.st_blocks * 512 >= store.files[i].file_bytes);
        assert_true(drives[i].budget_bytes == 0 ||
                    store.files[i].file_bytes <= drives[i].budget_bytes);
    }
    /* Reserved space is no longer free for a second run; each run has its own budgets. */
    bool free_space_limits = true;
    for (uint32_t i = 0; i < drive_count; i++)
        free_space_limits = free_space_limits && drives[i].budget_bytes == (uint64_t)1 << 40;
    assert_int_equal(slab_capacity(drives, drive_count, &left), 0);
    assert_true(left <= capacity);
    slab_config second = config;
    second.uuid[0] = 9;
    if (free_space_limits) {
        assert_true(left <= drive_count * 2 * MIB);
        assert_int_equal(helper_check_space(&second), ERR_NO_FIT);
        assert_int_equal(slab_open(&again, &second), ERR_NO_FIT);
        filled_count++;
    }
    assert_int_equal(slab_remove(&store), 0);
    await_empty();
    assert_int_equal(slab_capacity(drives, drive_count, &left), 0);
    assert_int_equal(left, capacity);
}

static void small_file_systems_are_filled(void **state)
{
    if (!mounted) {
        print_message("skipped: mounting small file systems needs privileges\n");
        skip();
    }
    uint64_t seed = 20261124;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (uint64_t trial = 0; trial < 30; trial++) {
        /* Drives on one file system share it. Some have no budget, some have a larger budget than
         * the file system's size. */
        uint32_t count = 1 + (uint32_t)rng_below(seed, 1, trial, 6);
        for (uint32_t i = 0; i < count; i++) {
            uint64_t place = trial * DRIVES_MAX + i;
            char name[64];
            snprintf(name, sizeof name, "%s/d%u",
                     mount_names[trial < 3 ? trial : rng_below(seed, 2, place, MOUNTS)], i);
            static const uint64_t budgets[] = {0, (uint64_t)1 << 40, 7 * MIB + 4097, 3 * MIB};
            helper_drive(&drives[i], name, budgets[trial % 3 ? rng_below(seed, 3, place, 4) : 1],
                         exp(6.0 * rng_uniform(seed, 4, place) - 3.0));
        }
        uint64_t capacity;
        assert_int_equal(slab_capacity(drives, count, &capacity), 0);
        assert_true(capacity < 90 * MIB); /* 6 + 20 + 64 */
        if (capacity > 2 * count * MIB)
            check_filled(count);
    }
    assert_true(filled_count > 2);
}

/* Two directories of one file system: the first's budget comes off what the second may take. */
static void one_file_system_is_counted_once(void **state)
{
    if (!mounted) {
        print_message("skipped: mounting small file systems needs privileges\n");
        skip();
    }
    uint64_t alone, both, plain;
    helper_drive(&drives[0], "middle/a", (uint64_t)1 << 40, 1.0);
    assert_int_equal(slab_capacity(drives, 1, &alone), 0);
    assert_true(alone > 19 * MIB && alone < 20 * MIB);
    helper_drive(&drives[1], "middle/b", (uint64_t)1 << 40, 1.0);
    assert_int_equal(slab_capacity(drives, 2, &both), 0);
    assert_int_equal(both, alone);
    drives[1].budget_bytes = 0; /* takes what the other leaves: nothing */
    assert_int_equal(slab_capacity(drives, 2, &both), 0);
    assert_int_equal(both, alone);
    drives[0].budget_bytes = 10 * MIB + SLAB_HEADER_BYTES;
    assert_int_equal(slab_capacity(drives, 2, &both), 0);
    assert_true(both > 18 * MIB && both < alone); /* the second: 90% of the rest */
    drives[0].budget_bytes = drives[1].budget_bytes = 0;
    assert_int_equal(slab_capacity(drives, 2, &both), 0);
    assert_int_equal(slab_capacity(drives, 1, &plain), 0);
    assert_in_range(both, plain - 2 * SLAB_HEADER_BYTES, plain);
    /* A third drive elsewhere adds its own space, wherever it stands in the list. */
    drives[2] = drives[1];
    helper_drive(&drives[1], "large/c", 30 * MIB + SLAB_HEADER_BYTES, 1.0);
    uint64_t three;
    assert_int_equal(slab_capacity(drives, 3, &three), 0);
    assert_int_equal(three, both + 30 * MIB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_budgets_fit_as_planned),
        cmocka_unit_test(order_does_not_change_shares),
        cmocka_unit_test(a_drive_below_a_stripe_stays_empty),
        cmocka_unit_test(small_file_systems_are_filled),
        cmocka_unit_test(one_file_system_is_counted_once),
    };
    if (directory_make(NULL) != 0)
        return 1;
    mount_all();
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    unmount_all();
    directory_remove(NULL);
    return rc;
}
