/* RUN/hf: the files that belong to a run's model beside its weights. This file finds and removes
 * the directory; src/hf fills it. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "format/hf_checkpoint.h"
#include "state/state_internal.h"

/* True if the directory is RUN/keep/step-...: a kept commit. */
static bool is_kept(const char *path)
{
    char parent[FILE_PATH_BYTES], whole[PATH_MAX];
    if (file_join(parent, sizeof parent, path, "..") < 0 || !realpath(parent, whole))
        return false;
    const char *slash = strrchr(whole, '/');
    return slash && strcmp(slash, "/keep") == 0;
}

int state_hf_dir(const char *run_dir, char out[FILE_PATH_BYTES])
{
    TRY(file_join(out, FILE_PATH_BYTES, run_dir, "hf"));
    if (access(out, F_OK) == 0)
        return 1;
    if (!is_kept(run_dir))
        return 0;
    char above[FILE_PATH_BYTES];
    TRY(file_join(above, sizeof above, run_dir, "../../hf"));
    if (access(above, F_OK) != 0)
        return 0;
    return file_join(out, FILE_PATH_BYTES, run_dir, "../../hf") < 0 ? ERR_INPUT : 1;
}

int state_remove_hf_dir(const char *run_dir)
{
    char target[FILE_PATH_BYTES];
    TRY(file_join(target, sizeof target, run_dir, "hf"));
    return hf_remove_side_files(target);
}
