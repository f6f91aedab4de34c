/* The run directory: job.json, plan.json, metrics.jsonl, trace.json, and state/ with the manifests
 * and the lock. See run_dir.h. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "format/hf_checkpoint.h"
#include "state/state_internal.h"

bool state_is_same_directory(const char *one, const char *other)
{
    struct stat a, b;
    return strcmp(one, other) == 0 || (stat(one, &a) == 0 && stat(other, &b) == 0 &&
                                       a.st_dev == b.st_dev && a.st_ino == b.st_ino);
}

int state_check_apart(const char *run_dir, const char *hf_dir)
{
    char own[FILE_PATH_BYTES];
    TRY(file_join(own, sizeof own, run_dir, "hf"));
    if (hf_dir[0] == '\0' ||
        (!state_is_same_directory(run_dir, hf_dir) && !state_is_same_directory(own, hf_dir)))
        return 0;
    return err_set(ERR_INPUT,
                   "a run in %s would write among the files of the checkpoint %s, and sluice "
                   "remove would remove some of these: name another directory for the run",
                   run_dir, hf_dir);
}

int state_check_no_kept(const char *run_dir)
{
    char path[FILE_PATH_BYTES + 16], name[sizeof path + 300];
    snprintf(path, sizeof path, "%s/keep", run_dir);
    DIR *directory = opendir(path);
    if (!directory)
        return 0;
    int rc = 0;
    for (const struct dirent *entry; rc == 0 && (entry = readdir(directory));)
        for (int slot = 0; rc == 0 && slot < 2; slot++) {
            snprintf(name, sizeof name, "%s/%s/state/manifest-%d", path, entry->d_name, slot);
            if (strncmp(entry->d_name, "step-", 5) == 0 && access(name, F_OK) == 0)
                rc = err_set(ERR_INPUT,
                             "%s holds commits that another run has kept, such as %s, but not that "
                             "run: name another run.dir, or move or remove %s",
                             run_dir, entry->d_name, path);
        }
    closedir(directory);
    return rc;
}

/* ---- the lock ----
 *
 * A lock belongs to the open file, which a forked process has too. Such a process, a worker that
 * loads data for example, would keep the directory locked after this one was killed. So it closes
 * its copies. */

enum { LOCKS_MAX = 8 }; /* that one process holds at a time */

static _Atomic int held_fds[LOCKS_MAX]; /* descriptors + 1; 0: none */

static void close_locks(void)
{
    for (int i = 0; i < LOCKS_MAX; i++) {
        int fd = atomic_exchange(&held_fds[i], 0) - 1; /* a child may fork, too */
        if (fd >= 0)
            close(fd);
    }
}

static void watch_forks(void)
{
    (void)pthread_atfork(NULL, NULL, close_locks);
}

static void replace_held(int from, int to)
{
    for (int i = 0; i < LOCKS_MAX; i++) {
        int expected = from;
        if (atomic_compare_exchange_strong(&held_fds[i], &expected, to))
            return;
    }
}

static void note_lock(int fd)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, watch_forks);
    replace_held(0, fd + 1);
}

int state_run_dir_open(struct state_run_dir *self, const char *path, int mode)
{
    memset(self, 0, sizeof *self);
    self->lock_fd = -1;
    self->mode = mode;
    char lock_path[FILE_PATH_BYTES];
    snprintf(self->path, sizeof self->path, "%s", path);
    TRY(file_join(self->state, sizeof self->state, path, "state"));
    if (file_make_directories(self->state, mode, NULL) < 0)
        return err_prefix(ERR_INPUT, "run.dir");
    TRY(file_join(lock_path, sizeof lock_path, self->state, "lock"));
    int rc = file_create(lock_path, O_RDWR, FILE_AS_DIRECTORY, &self->lock_fd);
    if (rc == -EROFS || rc == -EACCES) { /* enough for a process that only reads */
        self->lock_fd = open(lock_path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        rc = self->lock_fd < 0 ? rc : 0;
    }
    if (rc < 0)
        return err_prefix(ERR_INPUT, "run.dir");
    if (flock(self->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        state_run_dir_close(self);
        return err_set(ERR_INPUT,
                       "run.dir %s is in use by another process, or by another run of this one: "
                       "wait for its end or name another directory",
                       path);
    }
    note_lock(self->lock_fd);
    rc = state_check_not_removed(self->state);
    if (rc < 0)
        state_run_dir_close(self);
    return rc;
}

void state_run_dir_close(struct state_run_dir *self)
{
    if (self->lock_fd >= 0) {
        replace_held(self->lock_fd + 1, 0);
        close(self->lock_fd); /* releases the lock */
    }
    self->lock_fd = -1;
}

int state_run_dir_write(const struct state_run_dir *self, const char *name, const char *text)
{
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, sizeof path, self->path, name));
    return file_write(path, self->mode, text, strlen(text));
}

int state_run_dir_sync(const struct state_run_dir *self)
{
    return file_sync_directory(self->path);
}

int state_slab_config(const manifest_slabs *from, uint32_t rank, slab_drive drives[DRIVES_MAX],
                      slab_config *config)
{
    for (uint32_t d = 0; d < from->drive_count; d++) {
        drives[d] = (slab_drive){.budget_bytes = 0};
        TRY(state_drive_of_rank(from, rank, d, drives[d].path));
    }
    *config = (slab_config){.drives = drives, .drive_count = from->drive_count, .rank = rank};
    memcpy(config->uuid, from->uuid, sizeof config->uuid);
    return 0;
}

int state_remove_slabs(const manifest_slabs *slabs)
{
    slab_config config;
    if (slabs->drive_count == 0)
        return 0;
    slab_drive *drives = mem_alloc(DRIVES_MAX, sizeof *drives, "slab drives");
    int rc = drives ? 0 : -ENOMEM;
    state_release_slabs(slabs);
    for (uint32_t r = 0; drives && r < size_max(slabs->rank_count, 1); r++) {
        int removed = state_slab_config(slabs, r, drives, &config);
        TRY_KEEP(rc, removed < 0 ? removed : slab_remove_files(&config)); /* missing: no error */
    }
    mem_free(drives);
    return rc;
}

/* True if rank 0's slab of the manifest's drive `drive_idx` exists in `directory`. Rank 0's host
 * has the run directory. */
static bool has_slab(const manifest_slabs *slabs, uint32_t drive_idx, const char *directory)
{
    char uuid[MANIFEST_UUID_TEXT_BYTES], base[FILE_PATH_BYTES], path[FILE_PATH_BYTES + 128];
    if (!manifest_expand_path(directory, 0, slabs->ranks[0].local_rank, slabs->ranks[0].host, base,
                              sizeof base))
        return false;
    snprintf(path, sizeof path, "%s/sluice-%s/rank-0-drive-%u.slab", base,
             manifest_uuid_text(slabs, uuid), drive_idx);
    return access(path, F_OK) == 0;
}

bool state_has_slabs(const manifest_slabs *slabs)
{
    bool are_there = true;
    for (uint32_t d = 0; are_there && d < slabs->drive_count; d++)
        are_there = has_slab(slabs, d, slabs->drives[d]);
    return are_there;
}

/* Finds where the slab of a kept commit lies after it was moved with its run. The last two names of
 * the drive's path are those of the copy (kept_commits.c). */
static int place_of_kept(const char *drive, const char *state_dir, char out[FILE_PATH_BYTES])
{
    const char *at = drive + strlen(drive);
    for (int names = 0; names < 2 && at > drive; names++)
        do
            at--;
        while (at > drive && *at != '/');
    int length = snprintf(out, FILE_PATH_BYTES, "%s/../../../state%s", state_dir, at);
    return length > 0 && length < FILE_PATH_BYTES;
}

int state_find_moved(manifest *found, const char *state_dir)
{
    char here[FILE_PATH_BYTES], kept[FILE_PATH_BYTES], *whole = NULL;
    int length = snprintf(here, sizeof here, "%s", state_dir);
    if (found->slabs.drive_count != 1 || length < 0 || (size_t)length >= sizeof here)
        return 0;
    TRY(setup_make_absolute(here));
    if (has_slab(&found->slabs, 0, here))
        whole = here;
    else if (place_of_kept(found->slabs.drives[0], here, kept) && has_slab(&found->slabs, 0, kept))
        whole = realpath(kept, here);
    if (whole)
        snprintf(found->slabs.drives[0], sizeof found->slabs.drives[0], "%s", whole);
    return 0;
}

/* True for a drive of a kept commit. Its slab has the same uuid as the slab of its run, but is
 * another file (kept_commits.c). */
static bool is_of_kept(const char *drive)
{
    return strstr(drive, ".keep/step-") != NULL;
}

int state_find_renamed(manifest *found, const struct job *asked)
{
    slab_drive *drives = mem_alloc(DRIVES_MAX, sizeof *drives, "slab drives");
    if (!drives)
        return -ENOMEM;
    uint32_t count = 0;
    int rc = setup_job_drives(asked, drives, &count);
    bool are_there = rc == 0 && count == found->slabs.drive_count;
    for (uint32_t d = 0; are_there && d < count; d++)
        are_there = has_slab(&found->slabs, d, drives[d].path) &&
                    is_of_kept(found->slabs.drives[d]) == is_of_kept(drives[d].path);
    for (uint32_t d = 0; are_there && d < count; d++) {
        if (state_is_same_directory(found->slabs.drives[d], drives[d].path))
            continue;
        log_info("the slab that was in %s is taken from %s", found->slabs.drives[d],
                 drives[d].path);
        memcpy(found->slabs.drives[d], drives[d].path, sizeof found->slabs.drives[d]);
    }
    mem_free(drives);
    return rc;
}

/* ---- RUN/hf: src/hf fills it ---- */

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

/* ---- removal ---- */

int state_run_dir_clear(const struct state_run_dir *self, const manifest *found)
{
    if (found &&
        (state_remove_slabs(&found->slabs) < 0 || state_remove_slabs(&found->leftover) < 0))
        log_warn("the slabs of the former run could not be removed: %s", err_text());
    TRY(manifest_remove(self->state));
    static const char *const names[] = {"metrics.jsonl", "trace.json", "plan.json", "job.json"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        TRY(file_remove(self->path, names[i]));
    char side_files[FILE_PATH_BYTES];
    TRY(file_join(side_files, sizeof side_files, self->path, "hf"));
    return hf_remove_side_files(side_files);
}
