/* What the tests of tiers/ share: a directory of one's own, slabs in it, a count of descriptors. Include
 * after cmocka.h. */
#ifndef SLUICE_TESTS_TIERS_HELPERS_H
#define SLUICE_TESTS_TIERS_HELPERS_H

#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/size.h"
#include "tiers/slab.h"

static char helper_directory[256];

__attribute__((unused)) static int helper_setup(void **state)
{
    (void)state;
    char cwd[200];
    if (!getcwd(cwd, sizeof cwd))
        return -1;
    snprintf(helper_directory, sizeof helper_directory, "%s/test_tiers_XXXXXX", cwd);
    return mkdtemp(helper_directory) ? 0 : -1;
}

static int helper_remove_entry(const char *path, const struct stat *status, int type,
                               struct FTW *place)
{
    (void)status;
    (void)type;
    (void)place;
    return remove(path);
}

__attribute__((unused)) static int helper_teardown(void **state)
{
    (void)state;
    return nftw(helper_directory, helper_remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* A drive "<directory>/<name>". */
__attribute__((unused)) static void helper_drive(slab_drive *drive, const char *name,
                                                 uint64_t budget_bytes, double weight)
{
    memset(drive, 0, sizeof *drive);
    snprintf(drive->path, sizeof drive->path, "%s/%s", helper_directory, name);
    drive->budget_bytes = budget_bytes;
    drive->weight = weight;
}

__attribute__((unused)) static int helper_count_entries(const char *path)
{
    int count = 0;
    DIR *directory = opendir(path);
    if (!directory)
        return -1;
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

__attribute__((unused)) static int helper_count_fds(void)
{
    return helper_count_entries("/proc/self/fd");
}

#endif
