/* The directories of a trial: a run directory of its own, and those of the job's drives.
 * Directories of drives that did not exist before are removed again. See profile.h. */
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "profile/profile_internal.h"

/* Changes the path to that of its parent directory; it ends at "." or "/". */
static void cut_last(char path[FILE_PATH_BYTES])
{
    char *slash = strrchr(path, '/');
    if (!slash)
        snprintf(path, FILE_PATH_BYTES, ".");
    else
        slash[slash == path] = '\0';
}

/* Changes the path to that of the nearest existing directory above it, or leaves it if it
 * exists. */
static void find_base(char path[FILE_PATH_BYTES])
{
    struct stat info;
    while (stat(path, &info) != 0 || !S_ISDIR(info.st_mode))
        cut_last(path);
}

/* Makes the run directory in the nearest existing directory above the job's, so on the same file
 * system. */
static int make_run_dir(profile *self)
{
    char base[FILE_PATH_BYTES];
    snprintf(base, sizeof base, "%s", self->own->run.dir);
    find_base(base);
    char path[FILE_PATH_BYTES];
    int length = snprintf(path, sizeof path, "%s/sluice-profile-XXXXXX", base);
    if (length < 0 || (size_t)length >= sizeof path - 16)
        return err_set(ERR_CONFIG, "run.dir is longer than %d bytes", FILE_PATH_BYTES - 40);
    if (!mkdtemp(path))
        return err_set(ERR_INPUT, "run.dir: cannot make a directory for the trial in %s: %s", base,
                       strerror(errno));
    snprintf(self->run_dir, sizeof self->run_dir, "%s", path);
    snprintf(self->own->run.dir, sizeof self->own->run.dir, "%s", path);
    /* rank 0 would make this directory */
    if (self->options->of_ranks > 0 && self->options->as_rank > 0) {
        strcat(path, "/state");
        TRY(file_make_directories(path, FILE_PRIVATE, NULL));
    }
    return 0;
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info;
    (void)kind;
    (void)walk;
    return remove(path);
}

static void remove_run_dir(const profile *self)
{
    if (self->run_dir[0] && nftw(self->run_dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS) != 0)
        log_warn("the trial's directory %s could not be removed: %s", self->run_dir,
                 strerror(errno));
}

/* The path of drive `drive_idx` for this rank, with the placeholders of ranks replaced. */
static int drive_path(const profile *self, uint32_t drive_idx, char path[FILE_PATH_BYTES])
{
    char host[COMM_HOST_BYTES] = "localhost";
    (void)gethostname(host, sizeof host - 1);
    if (!manifest_expand_path(self->own->tiers.nvme[drive_idx].path, self->options->as_rank, 0,
                              host, path, FILE_PATH_BYTES))
        return err_set(ERR_CONFIG, "the path of drive %u is longer than %d bytes", drive_idx,
                       FILE_PATH_BYTES - 1);
    return 0;
}

int profilei_make_places(profile *self)
{
    uint32_t count = self->own->tiers.nvme_count;
    self->drive_bases = mem_alloc(count, sizeof *self->drive_bases, "profile");
    if (!self->drive_bases)
        return -ENOMEM;
    for (uint32_t d = 0; d < count; d++) {
        TRY(drive_path(self, d, self->drive_bases[d]));
        find_base(self->drive_bases[d]);
    }
    return make_run_dir(self);
}

void profilei_remove_places(const profile *self)
{
    remove_run_dir(self);
    for (uint32_t d = 0; self->drive_bases && d < self->own->tiers.nvme_count; d++) {
        char path[FILE_PATH_BYTES];
        if (drive_path(self, d, path) < 0)
            continue;
        while (strcmp(path, self->drive_bases[d]) != 0 && rmdir(path) == 0)
            cut_last(path);
    }
}
