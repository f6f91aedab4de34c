/* The directories of slabs: made durably, and removed again if a later step fails. Any thread;
 * nothing from the heap. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tiers/slab_internal.h"

/* Cuts the last component: "/a//b" becomes "/a". False if there is no parent left. */
static bool cut_last_component(char *path)
{
    char *slash = strrchr(path, '/');
    if (!slash || slash == path)
        return false;
    while (slash > path + 1 && slash[-1] == '/')
        slash--;
    *slash = 0;
    return true;
}

void tieri_slab_unmake_directories(const char *directory, uint32_t made_count)
{
    char path[SLAB_PATH_BYTES];
    snprintf(path, sizeof path, "%s", directory);
    while (made_count-- && rmdir(path) == 0 && cut_last_component(path))
        ;
}

int tieri_slab_sync_directory(const char *directory)
{
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(errno, "opening the directory %s to sync it", directory);
    int rc = fsync(fd) == 0 || errno == EINVAL /* EINVAL: this file system keeps no entries */
                 ? 0
                 : err_errno(errno, "fsync of the directory %s", directory);
    close(fd);
    return rc;
}

/* Makes the directory's own entry durable, which lies in its parent. A parent that may be written
 * but not read cannot be opened: then its whole file system is synced, through the directory
 * itself. */
static int sync_entry(const char *directory)
{
    char parent[SLAB_PATH_BYTES];
    snprintf(parent, sizeof parent, "%s", directory);
    if (!cut_last_component(parent))
        snprintf(parent, sizeof parent, "%s", directory[0] == '/' ? "/" : ".");
    int rc = tieri_slab_sync_directory(parent);
    if (rc != -EACCES)
        return rc;
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(errno, "opening the directory %s to sync it", directory);
    rc = syncfs(fd) == 0 ? 0 : err_errno(errno, "syncfs at %s", directory);
    close(fd);
    return rc;
}

int tieri_slab_make_directories(const char *directory, uint32_t *made_count)
{
    char path[SLAB_PATH_BYTES];
    snprintf(path, sizeof path, "%s", directory);
    *made_count = 0;
    for (char *at = path + 1;; at++) {
        if (*at != '/' && *at != 0)
            continue;
        char saved = *at;
        *at = 0;
        bool is_new = mkdir(path, 0777) == 0;
        if (!is_new && errno != EEXIST) {
            int rc = err_errno(errno, "making the directory %s for the nvme tier", path);
            if (*made_count) {
                cut_last_component(path); /* this one was not made */
                tieri_slab_unmake_directories(path, *made_count);
            }
            *made_count = 0;
            return rc;
        }
        *made_count += is_new;
        int rc = is_new || saved == 0 ? sync_entry(path) : 0;
        if (rc < 0) {
            err_record first;
            err_save(&first, rc);
            tieri_slab_unmake_directories(path, *made_count);
            *made_count = 0;
            return err_restore(&first);
        }
        *at = saved;
        if (saved == 0)
            break;
        while (at[1] == '/')
            at++;
    }
    return 0;
}
