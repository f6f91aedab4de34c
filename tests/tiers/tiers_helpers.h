/* Shared by the tests of drives: a directory of their own, slabs in it, a count of descriptors, the
 * backends by name. */
#ifndef SLUICE_TESTS_TIERS_HELPERS_H
#define SLUICE_TESTS_TIERS_HELPERS_H

#include <dirent.h>
#include <poll.h>
#include <time.h>

#include "base/size.h"
#include "tests/directory.h"
#include "tiers/io.h"
#include "tiers/sim.h"
#include "tiers/slab.h"
#include "tiers/tiers_internal.h"

/* A drive "<directory>/<name>". */
__attribute__((unused)) static void helper_drive(slab_drive *drive, const char *name,
                                                 uint64_t budget_bytes, double weight)
{
    memset(drive, 0, sizeof *drive);
    snprintf(drive->path, sizeof drive->path, "%s/%s", directory, name);
    drive->budget_bytes = budget_bytes;
    drive->weight = weight;
}

__attribute__((unused)) static int helper_count_entries(const char *path)
{
    int count = 0;
    DIR *entries = opendir(path);
    if (!entries)
        return -1;
    while (readdir(entries))
        count++;
    closedir(entries);
    return count;
}

/* Waits until the process has at most `count` threads: for a moment after pthread_join the kernel
 * still lists the one that ended. */
__attribute__((unused)) static void helper_wait_for_threads(int count)
{
    const struct timespec pause = {.tv_nsec = 10000000};
    for (int tries = 0; helper_count_entries("/proc/self/task") - 2 > count; tries++) {
        assert_true(tries < 2000);
        (void)nanosleep(&pause, NULL);
    }
}

/* "uring...", "pool", "sim". */
__attribute__((unused)) static enum io_backend helper_backend(const char *name)
{
    if (strncmp(name, "uring", 5) == 0)
        return IO_URING;
    if (strcmp(name, "pool") != 0 && strcmp(name, "sim") != 0) {
        fprintf(stderr, "no backend is called %s\n", name);
        exit(1);
    }
    return strcmp(name, "sim") == 0 ? IO_SIM : IO_POOL;
}

/* 0, or 77 with a word to the reader where io_uring was asked for and is really absent: asked of
 * the kernel by a slab of its own in a directory of its own, both gone when it returns. */
__attribute__((unused)) static int helper_skip(enum io_backend backend)
{
    static slab probe;
    static slab_drive place;
    if (backend != IO_URING)
        return 0;
    if (directory_make(NULL) != 0)
        return 1;
    memset(&place, 0, sizeof place);
    snprintf(place.path, sizeof place.path, "%s/probe", directory);
    slab_config config = {
        .drives = &place, .drive_count = 1, .total_bytes = MIB, .stripe_bytes = MIB};
    io_config settings = {.target = &probe, .backend = IO_URING};
    io *self = NULL;
    if (slab_open(&probe, &config) < 0)
        return 1;
    int rc = io_create(&settings, &self);
    if (rc < 0)
        fprintf(stderr, "skipped: io_uring is not available: %s\n", err_text());
    io_destroy(self);
    if (slab_remove(&probe) < 0)
        return 1;
    directory_remove(NULL);
    return rc < 0 ? 77 : 0;
}

__attribute__((unused)) static int helper_count_fds(void)
{
    return helper_count_entries("/proc/self/fd");
}

/* Makes the checks of slab_open before it creates anything: configuration, paths, budgets and free
 * space. */
__attribute__((unused)) static int helper_check_space(const slab_config *config)
{
    uint64_t stripe_bytes, stripe_count, drive_stripes[DRIVES_MAX];
    TRY(tieri_slab_check_config(config, &stripe_bytes, &stripe_count));
    for (uint32_t i = 0; i < config->drive_count; i++) {
        char path[FILE_PATH_BYTES];
        TRY(tieri_slab_file_path(config, i, path));
    }
    return tieri_slab_plan(config, stripe_bytes, stripe_count, drive_stripes);
}

/* Sleeps until io_poll has work. */
__attribute__((unused)) static void helper_sleep(const io *self)
{
    struct pollfd waiter = {.fd = io_event_fd(self), .events = POLLIN};
    assert_int_equal(poll(&waiter, 1, 20000), 1);
}

/* Sleeps and polls until `count` requests are back; returns how often io_poll had nothing. */
__attribute__((unused)) static int helper_wait_for(io *self, int count)
{
    int idle = 0;
    while (count > 0) {
        io_request *done[4];
        int got = io_poll(self, done, 4);
        assert_true(got >= 0);
        count -= got;
        idle += got == 0;
        if (count > 0 && got == 0)
            helper_sleep(self);
    }
    return idle;
}

#endif
