/* Files, directory and common checks of the harnesses. See fuzz.h. */
#include "fuzz.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

static char directory[64];

void fuzz_check_refusal(int rc, int expected, int also)
{
    FUZZ_CHECK(rc == expected || rc == also, "%s: %s", err_name(rc), err_text());
    FUZZ_CHECK(err_text()[0] != '\0', "no text");
    for (const char *byte = err_text(); *byte != '\0'; byte++)
        FUZZ_CHECK((unsigned char)*byte >= ' ' && *byte != 0x7f, "byte 0x%02x in the text: %s",
                   (unsigned char)*byte, err_text());
}

uint64_t fuzz_live_bytes(void)
{
    mem_stats stats;
    mem_get_stats(&stats);
    return stats.live_bytes;
}

static void remove_directory(void)
{
    DIR *dir = opendir(directory);
    if (dir) {
        const struct dirent *entry;
        while ((entry = readdir(dir)))
            if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
                unlinkat(dirfd(dir), entry->d_name, 0);
        closedir(dir);
    }
    rmdir(directory);
}

const char *fuzz_directory(void)
{
    if (directory[0] != '\0')
        return directory;
    snprintf(directory, sizeof directory, "%s/sluice-fuzz-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    FUZZ_CHECK(mkdtemp(directory), "%s: %s", directory, strerror(errno));
    FUZZ_CHECK(atexit(remove_directory) == 0, "atexit");
    return directory;
}

static void path_of(const char *name, char path[FUZZ_PATH_BYTES])
{
    int length = snprintf(path, FUZZ_PATH_BYTES, "%s/%s", fuzz_directory(), name);
    FUZZ_CHECK(length < FUZZ_PATH_BYTES, "%s", name);
}

void fuzz_write_file(const char *name, const void *bytes, size_t size, char path[FUZZ_PATH_BYTES])
{
    path_of(name, path);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    FUZZ_CHECK(fd >= 0, "%s: %s", path, strerror(errno));
    ssize_t put = size > 0 ? write(fd, bytes, size) : 0;
    FUZZ_CHECK(put == (ssize_t)size, "%s: %zd of %zu bytes: %s", path, put, size, strerror(errno));
    close(fd);
}

void fuzz_remove_file(const char *name)
{
    char path[FUZZ_PATH_BYTES];
    path_of(name, path);
    int rc = unlink(path);
    FUZZ_CHECK(rc == 0 || errno == ENOENT, "%s: %s", path, strerror(errno));
}
