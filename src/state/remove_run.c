/* Removes a run with its slabs. See runs.h.
 *
 *   note "removing" ─► slabs and files of kept commits ─► slabs ─► files ─► manifests ─► note,
 *   lock, directory
 *
 * The manifests name the slabs, so they stay until all slabs are gone, and the note says that the
 * slabs were all seen when the removal began. Only files of a run are removed, each by its name;
 * a link among them is removed and not followed. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/failpoint.h"
#include "base/file.h"
#include "base/mem.h"
#include "format/hf_checkpoint.h"
#include "state/rank_slabs.h"
#include "state/run_view.h"
#include "state/runs.h"
#include "state/state_internal.h"

static bool is_directory(const char *path)
{
    struct stat status;
    return lstat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

int state_check_not_removed(const char *state_dir)
{
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, sizeof path, state_dir, STATE_REMOVAL_NAME));
    if (access(path, F_OK) != 0)
        return 0;
    return err_set(ERR_INPUT,
                   "the run of %s is being removed, and that was cut short: sluice remove goes on "
                   "with it",
                   state_dir);
}

/* ---- looking ---- */

/* Cuts "sluice-<uuid>.keep/step-<9 digits>" off the drive of a kept commit, which leaves the drive
 * of its run. */
static void cut_kept(char *drive)
{
    for (int names = 0; names < 2; names++) {
        char *slash = strrchr(drive, '/');
        if (slash)
            *slash = '\0';
    }
}

/* The slabs, as the note of their owner knows them. The run directory of a kept commit lies two
 * directories above it. */
static int find_owner(state_removal *self, const manifest_slabs *slabs)
{
    char state[FILE_PATH_BYTES];
    if (slabs->drive_count == 0)
        return 0;
    if (!self->is_kept)
        return state_find_owner(self->state, slabs, self->owner);
    manifest_slabs *above = mem_alloc(1, sizeof *above, "slabs");
    if (!above)
        return -ENOMEM;
    *above = *slabs;
    for (uint32_t d = 0; d < above->drive_count; d++)
        cut_kept(above->drives[d]);
    int rc = file_join(state, sizeof state, self->path, "../../state");
    if (rc == 0)
        rc = state_find_owner(state, above, self->owner);
    mem_free(above);
    return rc;
}

/* Notes why a slab of the rank cannot be removed from here. A removal that was killed may have
 * removed slabs already, and those of a kept commit with the directories above them. */
static int look_at_rank(state_removal *self, const manifest *record, uint32_t rank, bool is_kept)
{
    bool may_be_gone = self->is_resumed || record->state == MANIFEST_BEGUN;
    for (uint32_t d = 0; d < record->slabs.drive_count; d++) {
        char path[FILE_PATH_BYTES], drive[FILE_PATH_BYTES];
        struct stat status;
        TRY(state_slab_of_rank(&record->slabs, rank, d, path));
        TRY(state_drive_of_rank(&record->slabs, rank, d, drive));
        if (is_kept)
            cut_kept(drive);
        bool is_there = lstat(path, &status) == 0;
        *strrchr(path, '/') = '\0';
        if (statei_is_link(path))
            return err_set(-ELOOP, "%s is a symbolic link: slabs are not removed through it", path);
        if (is_there || (may_be_gone && access(drive, F_OK) == 0) || self->missing[0] != '\0')
            continue;
        if (rank_slabs_look(record, rank) == ERR_INPUT)
            snprintf(self->missing, sizeof self->missing, "%s", err_text());
    }
    return 0;
}

/* Looks at the slabs of a run or of a kept commit. */
static int look_at_slabs(state_removal *self, const char *path, state_view *view)
{
    int rc = state_view_open(view, path, false);
    const manifest *record = &view->record;
    bool is_kept = self->is_kept || strcmp(path, self->path) != 0;
    if (rc == 0 && !view->has_record)
        snprintf(self->missing, sizeof self->missing,
                 "no manifest in %.600s is valid, so nothing says where its slabs are; sluice list "
                 "--drive finds them",
                 view->state_path);
    for (uint32_t r = 0; rc == 0 && view->has_record && r < rank_slabs_world(record); r++)
        rc = look_at_rank(self, record, r, is_kept);
    if (rc == 0 && view->has_record && record->state == MANIFEST_BEGUN && self->is_kept)
        rc = err_set(ERR_INPUT,
                     "%s is a kept commit that is being copied, or whose copy was cut short: the "
                     "next start of its run removes it",
                     path);
    if (rc == 0 && view->has_record && strcmp(path, self->path) == 0) {
        int owned = find_owner(self, &record->slabs);
        rc = owned < 0 ? owned : 0;
    }
    err_record first;
    err_save(&first, rc);
    state_view_close(view);
    /* A start or a removal that was killed leaves a run without manifests, and only a removal
     * leaves such a kept commit. */
    bool may_lack_manifests = !self->is_kept || self->is_resumed;
    if (rc == ERR_INPUT && may_lack_manifests && view->slots[0].outcome == MANIFEST_SLOT_ABSENT &&
        view->slots[1].outcome == MANIFEST_SLOT_ABSENT)
        return 0;
    return rc < 0 ? err_restore(&first) : 0;
}

struct kept_look {
    state_removal *removal;
    state_view *view;
};

static int look_at_kept(void *user, const char *path)
{
    struct kept_look *self = user;
    char state[FILE_PATH_BYTES];
    TRY(file_join(state, sizeof state, path, "state"));
    if (statei_is_link(state))
        return err_set(-ELOOP, "%s is a symbolic link: nothing is removed through it", state);
    return look_at_slabs(self->removal, path, self->view);
}

static int take_lock(state_removal *self)
{
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, sizeof path, self->state, "lock"));
    TRY(file_create(path, O_RDWR, FILE_AS_DIRECTORY, &self->lock_fd));
    if (flock(self->lock_fd, LOCK_EX | LOCK_NB) == 0)
        return 0;
    return err_set(ERR_INPUT, "%s is in use by another process: stop it, then remove the run",
                   self->path);
}

/* Sets path and link, and checks that the path is of a run. */
static int take_path(state_removal *self, const char *path)
{
    char parent[FILE_PATH_BYTES], whole[PATH_MAX];
    if (!realpath(path, whole))
        return err_set(ERR_INPUT, "%s is no run directory: %s", path, strerror(errno));
    if (statei_is_link(path))
        snprintf(self->link, sizeof self->link, "%s", path);
    snprintf(self->path, sizeof self->path, "%s", whole);
    TRY(file_join(self->state, sizeof self->state, whole, "state"));
    if (!state_is_run(whole) && access(self->state, X_OK) != 0 && errno == EACCES)
        return file_cannot_look_into(path);
    if (!state_is_run(whole))
        return err_set(ERR_INPUT, "%s is no run directory: it has no manifest in \"state\"", path);
    if (statei_is_link(self->state))
        return err_set(-ELOOP, "%s is a symbolic link: nothing is removed through it", self->state);
    snprintf(parent, sizeof parent, "%s", whole);
    char *slash = strrchr(parent, '/');
    *slash = '\0';
    const char *above = strrchr(parent, '/');
    self->is_kept = strncmp(slash + 1, "step-", 5) == 0 && above && strcmp(above, "/keep") == 0;
    return 0;
}

int state_removal_open(state_removal *self, const char *path)
{
    memset(self, 0, sizeof *self);
    self->lock_fd = -1;
    TRY(take_path(self, path));
    TRY(take_lock(self));
    self->is_resumed = state_check_not_removed(self->state) < 0;
    state_view *view = mem_alloc(1, sizeof *view, "view of a run");
    if (!view)
        return -ENOMEM;
    struct kept_look kept = {.removal = self, .view = view};
    int rc = state_look_at_run(self->path, view, &self->run, NULL, NULL);
    if (rc == 0)
        rc = look_at_slabs(self, self->path, view);
    if (rc == 0)
        rc = state_each_kept(self->path, look_at_kept, &kept);
    mem_free(view);
    return rc;
}

void state_removal_close(state_removal *self)
{
    if (self->lock_fd >= 0)
        close(self->lock_fd);
    self->lock_fd = -1;
}

/* ---- removing ---- */

static int remove_file(const char *directory, const char *name)
{
    int rc = file_remove(directory, name);
    return rc == -EISDIR ? 0 : rc;
}

/* Removes the directory if it is empty. A link is removed, and not what it leads to. */
static int remove_directory(const char *path)
{
    return statei_is_link(path) ? file_remove_path(path) : file_remove_empty(path);
}

/* Removes the slabs that the record of a run or of a kept commit names. */
static int remove_slabs(const char *path, state_view *view, bool is_kept)
{
    int rc = state_view_open(view, path, false);
    const manifest_slabs *slabs = &view->record.slabs;
    if (rc == 0 && view->has_record)
        rc = state_remove_slabs(slabs);
    if (rc == 0 && view->has_record)
        rc = state_remove_slabs(&view->record.leftover);
    for (uint32_t r = 0; rc == 0 && is_kept && view->has_record && r < slabs->rank_count; r++)
        for (uint32_t d = 0; rc == 0 && d < slabs->drive_count; d++) {
            char drive[FILE_PATH_BYTES];
            rc = state_drive_of_rank(slabs, r, d, drive);
            if (rc == 0)
                file_unmake_directories(drive, 2); /* "sluice-<uuid>.keep/step-<9 digits>" */
        }
    bool has_manifest = view->slots[0].outcome != MANIFEST_SLOT_ABSENT ||
                        view->slots[1].outcome != MANIFEST_SLOT_ABSENT;
    err_record first;
    err_save(&first, rc);
    state_view_close(view);
    return rc < 0 && has_manifest ? err_restore(&first) : failpoint("remove.slabs");
}

/* Removes the manifests, which no slab needs any more, and the directory `state`. */
static int remove_state(const char *state)
{
    TRY(manifest_remove(state));
    TRY(failpoint("remove.manifests"));
    TRY(remove_file(state, STATE_REMOVAL_NAME));
    TRY(remove_file(state, "lock"));
    return remove_directory(state);
}

/* Removes the files of RUN/<folder> with this word in their names, and the folder. */
static int remove_folder(const char *run_dir, const char *folder, const char *word)
{
    char path[FILE_PATH_BYTES];
    int rc = 0;
    TRY(file_join(path, sizeof path, run_dir, folder));
    DIR *entries = is_directory(path) ? opendir(path) : NULL;
    for (const struct dirent *entry; entries && rc == 0 && (entry = readdir(entries));)
        if (strstr(entry->d_name, word))
            rc = remove_file(path, entry->d_name);
    if (entries)
        closedir(entries);
    return rc < 0 ? rc : remove_directory(path);
}

static int remove_side_files(const char *run_dir)
{
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, sizeof path, run_dir, "hf"));
    return statei_is_link(path) ? remove_directory(path) : hf_remove_side_files(path);
}

static int remove_files(const char *run_dir)
{
    static const char *const names[] = {"metrics.jsonl", "trace.json", "plan.json", "report.html",
                                        "job.json"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char partial[32];
        snprintf(partial, sizeof partial, "%s.partial", names[i]);
        TRY(remove_file(run_dir, names[i]));
        TRY(remove_file(run_dir, partial));
    }
    TRY(remove_folder(run_dir, "data", ".tokens")); /* made from the job's data */
    TRY(remove_folder(run_dir, "tensorboard", "events.out.tfevents."));
    TRY(remove_folder(run_dir, "buffers", "step-")); /* of a module of PyTorch */
    return remove_side_files(run_dir);
}

struct kept_removal {
    state_view *view;
    bool keeps_slabs;
};

static int remove_kept(void *user, const char *path)
{
    const struct kept_removal *self = user;
    char state[FILE_PATH_BYTES];
    TRY(file_join(state, sizeof state, path, "state"));
    if (!self->keeps_slabs)
        TRY(remove_slabs(path, self->view, true));
    TRY(remove_files(path));
    TRY(remove_state(state));
    return remove_directory(path);
}

/* Names a file that is not the run's. */
static void find_rest(const char *path, char rest[FILE_PATH_BYTES])
{
    DIR *entries = opendir(path);
    for (const struct dirent *entry; entries && !rest[0] && (entry = readdir(entries));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            snprintf(rest, FILE_PATH_BYTES, "%s", entry->d_name);
    if (entries)
        closedir(entries);
}

/* Writes the note that the removal has begun. */
static int write_note(const state_removal *self)
{
    char path[FILE_PATH_BYTES];
    int fd;
    TRY(file_join(path, sizeof path, self->state, STATE_REMOVAL_NAME));
    TRY(file_create(path, O_WRONLY, FILE_AS_DIRECTORY, &fd));
    close(fd);
    return file_sync_directory(self->state);
}

static int remove_all(state_removal *self, state_view *view)
{
    char keep[FILE_PATH_BYTES];
    struct kept_removal kept = {.view = view, .keeps_slabs = self->owner[0] != '\0'};
    TRY(write_note(self));
    TRY(failpoint("remove.begin"));
    TRY(state_each_kept(self->path, remove_kept, &kept));
    TRY(file_join(keep, sizeof keep, self->path, "keep"));
    TRY(remove_directory(keep));
    if (!kept.keeps_slabs)
        TRY(remove_slabs(self->path, view, self->is_kept));
    TRY(remove_files(self->path));
    TRY(remove_state(self->state));
    return remove_directory(self->path);
}

int state_removal_run(state_removal *self, char rest[FILE_PATH_BYTES])
{
    rest[0] = '\0';
    state_view *view = mem_alloc(1, sizeof *view, "view of a run");
    if (!view)
        return -ENOMEM;
    int rc = remove_all(self, view);
    mem_free(view);
    TRY(rc);
    if (access(self->path, F_OK) == 0)
        find_rest(self->path, rest);
    else if (self->link[0] && unlink(self->link) != 0)
        return err_errno(errno, "cannot remove the link %s", self->link);
    return 0;
}
