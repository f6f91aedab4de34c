/* A directory of the test's own below the present one, and files in it. Include it once. */
#ifndef SLUICE_TESTS_DIRECTORY_H
#define SLUICE_TESTS_DIRECTORY_H

#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit.h"

static char directory[256];

static inline int directory_remove_entry(const char *path, const struct stat *status, int type,
                                         struct FTW *place)
{
    (void)status;
    (void)type;
    (void)place;
    return remove(path);
}

/* Setup and teardown of a group of tests: the directory is made, and removed with its files. */
static inline int directory_make(void **state)
{
    (void)state;
    char cwd[200];
    if (!getcwd(cwd, sizeof cwd))
        return -1;
    snprintf(directory, sizeof directory, "%s/test.XXXXXX", cwd);
    return mkdtemp(directory) ? 0 : -1;
}

static inline int directory_remove(void **state)
{
    (void)state;
    return nftw(directory, directory_remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* The path of a name in the directory; valid until the 16th call after this one. */
static inline const char *in_directory(const char *name)
{
    static char paths[16][sizeof directory + 512];
    static unsigned next;
    char *path = paths[next++ % 16];
    snprintf(path, sizeof paths[0], "%s/%s", directory, name);
    return path;
}

/* Writes a file of the directory; returns its path. */
static inline const char *write_text(const char *name, const void *text, size_t bytes)
{
    const char *path = in_directory(name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
    return path;
}

#endif
