/* Checks of the file and the drives before anything is measured. See probe.h. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "probe/probe.h"

int probe_check_file(const char *path)
{
    struct stat status;
    char directory[MACHINE_PATH_BYTES];
    if (path[0] == '\0')
        return err_set(ERR_USAGE, "the name of the file for the figures is empty");
    if (stat(path, &status) == 0) {
        /* Without a slash, the name would also be looked for among the clusters. */
        char here[MACHINE_PATH_BYTES + 2];
        snprintf(here, sizeof here, "%s%s", strchr(path, '/') ? "" : "./", path);
        machine *old = mem_alloc(1, sizeof *old, "machine");
        if (!old)
            return -ENOMEM;
        bool is_ours = S_ISREG(status.st_mode) && status.st_size > 0 &&
                       machine_read(here, old) == 0 && old->measured_by[0] != '\0';
        mem_free(old);
        if (!is_ours)
            return err_set(ERR_INPUT,
                           "%s is there and is not a machine file that the probe wrote: it is not "
                           "overwritten; delete it, or name another file",
                           path);
    } else if (errno != ENOENT) {
        return err_set(ERR_INPUT, "%s cannot be written: %s", path, strerror(errno));
    }
    const char *slash = strrchr(path, '/');
    int length = slash ? (int)(slash - path) + (slash == path) : 1;
    snprintf(directory, sizeof directory, "%.*s", length, slash ? path : ".");
    if (access(directory, W_OK | X_OK) != 0)
        return err_set(ERR_INPUT, "%s cannot be written: %s: %s", path, directory, strerror(errno));
    return 0;
}

int probe_check_drives(const char *option, const char *const *directories, size_t count)
{
    struct stat status;
    for (size_t d = 0; d < count; d++)
        if (stat(directories[d], &status) != 0)
            return err_set(ERR_INPUT, "%s %s: %s; name a directory on the drive", option,
                           directories[d], strerror(errno));
    return 0;
}
