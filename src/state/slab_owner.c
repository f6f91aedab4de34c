/* Notes which run directory owns the slabs. A run directory can be copied, but slabs outside of it
 * are not copied with it. Then two manifests name the same files. If the copy trains, it changes
 * them in place; if it moves them, it removes them.
 *
 *   <drive>/sluice-<uuid>/owner     one line: the state directory whose manifests name the slabs
 *
 * With several ranks, rank 0 keeps the notes beside its own slabs; they count for all ranks.
 *
 * A note that names another directory is believed only if that directory exists and has a manifest
 * that names these slabs too. Else the run was moved, and the note is written again. A lost or torn
 * note protects nothing but does no harm, so it is not synced. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "state/state_internal.h"

enum { NOTE_PATH_BYTES = FILE_PATH_BYTES + 64 };

/* Builds the path of the note; false if it is not possible. */
static bool note_path(const manifest_slabs *slabs, uint32_t drive_idx, char path[NOTE_PATH_BYTES])
{
    char uuid[MANIFEST_UUID_TEXT_BYTES], drive[FILE_PATH_BYTES];
    if (state_drive_of_rank(slabs, 0, drive_idx, drive) < 0)
        return false;
    snprintf(path, NOTE_PATH_BYTES, "%s/sluice-%s/owner", drive, manifest_uuid_text(slabs, uuid));
    return true;
}

/* Reads the first line of the note; false if there is none. */
static bool read_note(const char *path, char text[FILE_PATH_BYTES])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return false;
    ssize_t got = read(fd, text, FILE_PATH_BYTES - 1);
    close(fd);
    char *end = got > 0 ? memchr(text, '\n', (size_t)got) : NULL;
    if (end)
        *end = '\0';
    return end && text[0] == '/';
}

/* Returns 1 if the manifests in another state directory name these slabs, else 0; or -ENOMEM. */
static int names_them(const char *state_dir, const manifest_slabs *slabs)
{
    if (access(state_dir, F_OK) != 0)
        return 0;
    manifest *other = mem_alloc(1, sizeof *other, "manifest");
    if (!other)
        return -ENOMEM;
    int rc = manifest_read(state_dir, other);
    bool found = rc > 0;
    if (found)
        rc = state_find_moved(other, state_dir);
    bool names = rc >= 0 && found &&
                 memcmp(other->slabs.uuid, slabs->uuid, sizeof slabs->uuid) == 0 &&
                 strcmp(other->slabs.drives[0], slabs->drives[0]) == 0;
    manifest_fini(other);
    mem_free(other);
    return names;
}

/* Cuts "/state" off. */
static void cut_state(char *path)
{
    char *end = strrchr(path, '/');
    if (end && end != path)
        *end = '\0';
}

int state_find_owner(const char *state_dir, const manifest_slabs *slabs,
                     char owner[FILE_PATH_BYTES])
{
    char here[FILE_PATH_BYTES], path[NOTE_PATH_BYTES];
    owner[0] = '\0';
    snprintf(here, sizeof here, "%s", state_dir);
    if (slabs->drive_count == 0)
        return 0;
    TRY(setup_make_absolute(here));
    int names = 0;
    if (note_path(slabs, 0, path) && !state_is_same_directory(slabs->drives[0], here) &&
        read_note(path, owner) && !state_is_same_directory(owner, here))
        names = names_them(owner, slabs);
    if (names <= 0)
        owner[0] = '\0';
    cut_state(owner);
    return names;
}

/* Returns 1 if the run or kept commit names slabs of this uuid, or has manifests that cannot be
 * read; 0 if not; -ENOMEM. */
static int names_uuid(const char *run_dir, const char *uuid)
{
    char text[MANIFEST_UUID_TEXT_BYTES];
    state_view *view = mem_alloc(1, sizeof *view, "view of a run");
    if (!view)
        return -ENOMEM;
    int rc = state_view_open(view, run_dir, false);
    const manifest *record = &view->record;
    bool names = rc == 0 && (!view->has_record ||
                             strcmp(manifest_uuid_text(&record->slabs, text), uuid) == 0 ||
                             (record->leftover.drive_count > 0 &&
                              strcmp(manifest_uuid_text(&record->leftover, text), uuid) == 0));
    state_view_close(view);
    mem_free(view);
    return rc == -ENOMEM ? rc : names;
}

int state_slabs_are_owned(const char *path, char owner[FILE_PATH_BYTES])
{
    char note[NOTE_PATH_BYTES], run[NOTE_PATH_BYTES], above[FILE_PATH_BYTES];
    const char *uuid = strrchr(path, '-') + 1;
    snprintf(above, sizeof above, "%s", path);
    cut_state(above); /* "<drive>/sluice-<uuid>.keep/step-<9 digits>" for a kept commit */
    char *step = strrchr(above, '/');
    bool is_kept = step && strncmp(step + 1, "step-", 5) == 0;
    if (is_kept)
        snprintf(note, sizeof note, "%s/../../sluice-%s/owner", above, uuid);
    else
        snprintf(note, sizeof note, "%.*s/owner", FILE_PATH_BYTES - 1, path);
    if (!read_note(note, owner)) {
        owner[0] = '\0';
        return 0;
    }
    cut_state(owner);
    snprintf(run, sizeof run, "%s%s%s", owner, is_kept ? "/keep" : "", is_kept ? step : "");
    return names_uuid(run, uuid);
}

int state_check_owner(const char *state_dir, const manifest_slabs *slabs)
{
    char owner[FILE_PATH_BYTES];
    int found = state_find_owner(state_dir, slabs, owner);
    if (found <= 0)
        return found;
    return err_set(
        ERR_INPUT,
        "the slabs in %s are those of the run in %s. This directory seems to be a copy of "
        "it: training here would destroy that run. To begin with its state, name a new "
        "run.dir and --from %s. If instead that directory is the copy, remove it",
        slabs->drives[0], owner, owner);
}

static int write_note(const char *path, const char *state_dir)
{
    char text[FILE_PATH_BYTES + 1];
    int length = snprintf(text, sizeof text, "%s\n", state_dir);
    int fd;
    int rc = file_create(path, O_WRONLY | O_TRUNC, FILE_AS_DIRECTORY, &fd);
    if (rc < 0)
        return rc;
    rc = write(fd, text, (size_t)length) == length ? 0 : -EIO;
    close(fd);
    return rc;
}

int state_claim_slabs(const char *state_dir, const manifest_slabs *slabs)
{
    char here[FILE_PATH_BYTES], owner[FILE_PATH_BYTES], path[NOTE_PATH_BYTES];
    snprintf(here, sizeof here, "%s", state_dir);
    TRY(setup_make_absolute(here));
    for (uint32_t d = 0; d < slabs->drive_count; d++) {
        if (!note_path(slabs, d, path) || (read_note(path, owner) && strcmp(owner, here) == 0))
            continue;
        int rc = write_note(path, here);
        if (rc < 0)
            log_warn("%s cannot be written (%s): a copy of the run directory would not be noticed",
                     path, strerror(-rc));
    }
    return 0;
}

void state_release_slabs(const manifest_slabs *slabs)
{
    char path[NOTE_PATH_BYTES];
    for (uint32_t d = 0; d < slabs->drive_count; d++) {
        if (note_path(slabs, d, path) && unlink(path) != 0 && errno != ENOENT && errno != ENOTDIR)
            log_warn("%s cannot be removed: %s", path, strerror(errno));
    }
}
