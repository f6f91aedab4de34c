/* Copies of commits that are to be kept: each is a run directory of its own beside the run's.
 *
 *   <run>/keep/step-000000500/      job.json, buffers/step-000000500.pt, state/manifest-<g mod 2>
 *   <drive>/sluice-<uuid>.keep/step-000000500/sluice-<uuid>/rank-<r>-drive-<d>.slab
 *
 *   note ─► slabs copied, by all ranks ─► files ─► manifest ─► note removed: COMPLETE
 *
 * The note is a manifest of state BEGUN, one generation earlier, in the other slot. It names the
 * slabs that are about to be made. So a later start that finds the note knows what a killed attempt
 * has left, also on drives that the run does not use any more. Everything is durable before the
 * manifest is written, and the manifest makes the copy count. state_keeper_create removes what
 * earlier attempts left. Therefore, when state_keep finds a manifest in the directory, the copy is
 * complete and remains unchanged.
 *
 * With several ranks, each rank copies its own slabs. Rank 0, which has the run directory, does the
 * rest. A killed copy may leave slabs on drives that rank 0's host does not see; they stay until
 * that step is kept again.
 *
 * A copy that fails is a warning, and nothing of it stays: the run's own commit does not depend on
 * it. state_keep and its parts run on the commit's thread and do not allocate on the heap. */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/failpoint.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "base/text.h"
#include "state/rank_slabs.h"
#include "state/state_internal.h"

static_assert((int)FILE_PATH_BYTES == (int)MANIFEST_TEXT_BYTES, "paths of drives are copied whole");

enum { KEEP_NAME_BYTES = 32, KEEP_PIECE_BYTES = 65536, KEEP_TEXT_BYTES = 600 };

struct state_keeper {
    const struct job *asked;
    char run_dir[FILE_PATH_BYTES], keep_dir[FILE_PATH_BYTES];
    /* The current copy: */
    char step_name[KEEP_NAME_BYTES], step_dir[FILE_PATH_BYTES], state_dir[FILE_PATH_BYTES];
    char buffers_name[KEEP_NAME_BYTES + 16], buffers_dir[FILE_PATH_BYTES]; /* name: below the run */
    slab_drive drives[DRIVES_MAX];                                         /* of the current rank */
    /* The copy's manifest, or one that was read. Its extents are borrowed, except those that were
     * read. */
    manifest record;
    slab_range *ranges; /* [extent_capacity] */
    uint64_t extent_capacity;
    unsigned char piece[KEEP_PIECE_BYTES]; /* of a file being copied */
    uint64_t copied_bytes;                 /* by this rank */
    bool has_logged_size;
};

bool state_is_kept(const struct job *asked, uint64_t step)
{
    if (step > 0 && asked->run.keep_every > 0 && step % asked->run.keep_every == 0)
        return true;
    for (uint32_t i = 0; i < asked->run.keep_count; i++)
        if (asked->run.keep[i] == step)
            return true;
    return false;
}

/* ---- names ---- */

/* Sets the names of the copy of a step: those that begin with step, state and buffers. */
static int name_step(state_keeper *self, uint64_t step)
{
    snprintf(self->step_name, sizeof self->step_name, "step-%09" PRIu64, step);
    snprintf(self->buffers_name, sizeof self->buffers_name, "buffers/%s.pt", self->step_name);
    TRY(file_join(self->step_dir, sizeof self->step_dir, self->keep_dir, self->step_name));
    TRY(file_join(self->buffers_dir, sizeof self->buffers_dir, self->step_dir, "buffers"));
    return file_join(self->state_dir, sizeof self->state_dir, self->step_dir, "state");
}

/* Sets the drives of the copy, in self->record. They are directories below the run's drives. */
static int name_drives(state_keeper *self, const manifest *record)
{
    char hex[MANIFEST_UUID_TEXT_BYTES], below[sizeof hex + KEEP_NAME_BYTES + 16];
    snprintf(below, sizeof below, "sluice-%s.keep/%s", manifest_uuid_text(&record->slabs, hex),
             self->step_name);
    for (uint32_t d = 0; d < record->slabs.drive_count; d++)
        TRY(file_join(self->record.slabs.drives[d], sizeof self->record.slabs.drives[d],
                      record->slabs.drives[d], below));
    return 0;
}

/* ---- removing ---- */

/* Cuts the last name off the path; false if there is none. */
static bool cut_name(char *path)
{
    char *slash = strrchr(path, '/');
    if (!slash || slash == path)
        return false;
    *slash = '\0';
    return true;
}

static void remove_file(const char *directory, const char *name)
{
    if (file_remove(directory, name) < 0)
        log_warn("%s", err_text());
}

/* Removes a file of the copy, also one that is being written. */
static void remove_copied(const state_keeper *self, const char *name)
{
    char partial[sizeof self->buffers_name + 16];
    snprintf(partial, sizeof partial, "%s.partial", name);
    remove_file(self->step_dir, name);
    remove_file(self->step_dir, partial);
}

static const char *slot_name(uint64_t generation)
{
    return generation % 2 ? "manifest-1" : "manifest-0";
}

/* Removes a rank's slabs of the current copy, and directories that this leaves empty. */
static int discard_slabs(state_keeper *self, uint32_t rank)
{
    slab_config config;
    if (self->record.slabs.drive_count == 0)
        return 0;
    TRY(state_slab_config(&self->record.slabs, rank, self->drives, &config));
    TRY(slab_remove_files(&config));
    for (uint32_t d = 0; d < config.drive_count; d++)
        /* The second directory stays while it has another copy. */
        file_unmake_directories(self->drives[d].path, 2);
    return 0;
}

/* Removes the current copy. If self->record names slabs, those of all ranks are removed first, as
 * far as they are visible here. The note goes last. Files that others put there stay. */
static void discard(state_keeper *self)
{
    int rc = 0;
    for (uint32_t r = 0; rc == 0 && r < rank_slabs_world(&self->record); r++)
        rc = discard_slabs(self, r);
    if (rc < 0) {
        log_warn("the copied slabs of %s could not be removed, the next start tries it again: %s",
                 self->step_dir, err_text());
        return;
    }
    remove_copied(self, "job.json");
    remove_copied(self, self->buffers_name);
    rmdir(self->buffers_dir);
    remove_file(self->state_dir, "lock");
    remove_file(self->state_dir, "manifest-0.new"); /* slots being written */
    remove_file(self->state_dir, "manifest-1.new");
    remove_file(self->state_dir, slot_name(0));
    remove_file(self->state_dir, slot_name(1));
    rmdir(self->state_dir);
    rmdir(self->step_dir);
    rmdir(self->keep_dir);
}

static bool has_file(const char *directory, const char *name)
{
    char path[FILE_PATH_BYTES];
    struct stat status;
    return file_join(path, sizeof path, directory, name) == 0 && stat(path, &status) == 0;
}

/* True if self->record, which was read, is our note for this step: its drives are those of the
 * copy. */
static bool is_note(const state_keeper *self)
{
    const manifest *record = &self->record;
    bool is_ours = record->state == MANIFEST_BEGUN && record->slabs.drive_count > 0;
    for (uint32_t d = 0; is_ours && d < record->slabs.drive_count; d++) {
        char path[MANIFEST_TEXT_BYTES];
        snprintf(path, sizeof path, "%s", record->slabs.drives[d]);
        const char *slash = strrchr(path, '/');
        is_ours = slash && strcmp(slash + 1, self->step_name) == 0 && cut_name(path) &&
                  text_ends_with(path, ".keep");
    }
    return is_ours;
}

/* Looks at the copy of a step, and removes it if the attempt to make it was cut short. */
static void clean_step(state_keeper *self, uint64_t step)
{
    if (name_step(self, step) < 0)
        return;
    int rc = manifest_read(self->state_dir, &self->record);
    bool is_partial = rc == 0 || (rc > 0 && is_note(self));
    if (rc == ERR_CORRUPT && !has_file(self->step_dir, "job.json"))
        is_partial = true; /* no copy gets that far without it */
    else if (rc < 0)
        log_warn("the kept commit %s cannot be used: %s", self->step_dir, err_text());
    if (is_partial) {
        log_info("removing %s: the copy of that commit was cut short", self->step_dir);
        discard(self);
    }
    manifest_fini(&self->record);
    self->record.slabs.drive_count = 0;
}

static void clean_all(state_keeper *self)
{
    DIR *directory = opendir(self->keep_dir);
    if (!directory)
        return;
    for (const struct dirent *entry; (entry = readdir(directory));) {
        char *end, name[KEEP_NAME_BYTES];
        if (strncmp(entry->d_name, "step-", 5) != 0)
            continue;
        uint64_t step = strtoull(entry->d_name + 5, &end, 10);
        snprintf(name, sizeof name, "step-%09" PRIu64, step);
        if (strcmp(name, entry->d_name) == 0)
            clean_step(self, step);
    }
    closedir(directory);
}

/* ---- creation ---- */

int state_keeper_create(const char *run_dir, const struct job *asked, uint64_t extent_count,
                        state_keeper **out)
{
    *out = NULL;
    state_keeper *self = mem_alloc(1, sizeof *self, "kept commits");
    if (!self)
        return -ENOMEM;
    self->asked = asked;
    self->extent_capacity = extent_count;
    self->ranges = mem_alloc(extent_count, sizeof *self->ranges, "kept commits");
    int rc = self->ranges ? 0 : -ENOMEM;
    int length = snprintf(self->run_dir, sizeof self->run_dir, "%s", run_dir ? run_dir : "");
    if (rc == 0 && (length < 0 || (size_t)length >= sizeof self->run_dir))
        rc = err_set(-ENAMETOOLONG, "the path of the run directory is longer than %d bytes",
                     FILE_PATH_BYTES - 1);
    if (rc == 0)
        rc = file_join(self->keep_dir, sizeof self->keep_dir, self->run_dir, "keep");
    if (rc == 0)
        rc = name_step(self, UINT64_MAX); /* the longest name; checks that it fits */
    if (rc < 0) {
        state_keeper_destroy(self);
        return rc;
    }
    if (run_dir)
        clean_all(self);
    *out = self;
    return 0;
}

void state_keeper_destroy(state_keeper *self)
{
    if (!self)
        return;
    mem_free(self->ranges);
    mem_free(self);
}

/* ---- the copy ---- */

/* Where the bytes of a copy come from. */
struct copy_source {
    state_keeper *keeper;
    const char *path;
    int fd;
};

static int copy_bytes(void *user, FILE *out)
{
    const struct copy_source *source = user;
    unsigned char *piece = source->keeper->piece;
    for (;;) {
        ssize_t got = read(source->fd, piece, KEEP_PIECE_BYTES);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_errno(errno, "cannot read %s", source->path);
        if (got == 0)
            return 0;
        fwrite(piece, 1, (size_t)got, out);
    }
}

/* Copies a file of the run, in pieces: memory may be sealed, so the file cannot be read whole. */
static int copy_file(state_keeper *self, const char *name)
{
    char source_path[FILE_PATH_BYTES], target_path[FILE_PATH_BYTES];
    TRY(file_join(source_path, sizeof source_path, self->run_dir, name));
    TRY(file_join(target_path, sizeof target_path, self->step_dir, name));
    struct copy_source source = {.keeper = self, .path = source_path};
    uint64_t source_bytes;
    TRY(file_open(source_path, &source.fd, &source_bytes));
    int rc = file_write_with(target_path, self->asked->run.mode, copy_bytes, &source);
    close(source.fd);
    return rc;
}

/* Copies what the run has beside its state: the job, and a module's buffers after the step. Where
 * these are missing, the copy has their folder without them, and is refused like the run. */
static int copy_files(state_keeper *self)
{
    TRY(copy_file(self, "job.json"));
    if (has_file(self->run_dir, "buffers"))
        TRY(file_make_directories(self->buffers_dir, self->asked->run.mode, NULL));
    if (has_file(self->run_dir, self->buffers_name))
        TRY(copy_file(self, self->buffers_name));
    return file_sync_directory(self->step_dir);
}

/* Makes the directories, and writes the note of what is about to be made. The note reads as a run
 * that has begun on these slabs. */
static int write_note(state_keeper *self, const manifest *record)
{
    TRY(file_make_directories(self->state_dir, self->asked->run.mode, NULL));
    manifest *note = &self->record;
    note->state = MANIFEST_BEGUN;
    note->generation = record->generation - 1;
    note->point.step = note->point.window_count = note->point.skipped_count = 0;
    int rc = manifest_write(self->state_dir, note);
    note->state = record->state;
    note->generation = record->generation;
    note->point = record->point;
    TRY(rc);
    TRY(file_sync_directory(self->step_dir));
    TRY(file_sync_directory(self->keep_dir));
    return file_sync_directory(self->run_dir);
}

/* Writes the manifest, which makes the copy count. Then the note is removed. */
static int finish(state_keeper *self)
{
    TRY(manifest_write(self->state_dir, &self->record));
    remove_file(self->state_dir, slot_name(self->record.generation + 1));
    if (file_sync_directory(self->state_dir) < 0)
        log_warn("%s: %s; the kept commit is whole", self->state_dir, err_text());
    return 0;
}

/* Counts the ranks whose slabs lie on the same file system as this rank's. */
static uint64_t sharing_ranks(const manifest_slabs *slabs, uint32_t rank, uint32_t drive_idx)
{
    uint64_t count = 0;
    if (strstr(slabs->drives[drive_idx], "{rank}") ||
        strstr(slabs->drives[drive_idx], "{local_rank}"))
        return 1;
    for (uint32_t r = 0; r < slabs->rank_count; r++)
        count += strcmp(slabs->ranks[r].host, slabs->ranks[rank].host) == 0;
    return size_max(count, 1);
}

/* Checks the free space after a copy that shares all its blocks with the slab. Each write to the
 * slab then takes a new block. If there are fewer free blocks than shared ones, a later commit
 * would fail for lack of space. */
static int check_shared(const slab *disk, const manifest *record)
{
    for (uint32_t d = 0; d < disk->drive_count; d++) {
        struct statvfs space, other;
        uint64_t shared_bytes = 0;
        if (fstatvfs(disk->files[d].fd, &space) != 0)
            continue; /* the free space is not known: the copy stays */
        for (uint32_t i = 0; i < disk->drive_count; i++)
            if (fstatvfs(disk->files[i].fd, &other) == 0 && other.f_fsid == space.f_fsid)
                shared_bytes +=
                    disk->files[i].file_bytes * sharing_ranks(&record->slabs, disk->rank, i);
        if ((uint64_t)space.f_bavail * space.f_frsize < shared_bytes)
            return err_set(-ENOSPC,
                           "the slabs on the file system of %.500s would share their %" PRIu64
                           " MiB with the copy, and need as many anew as they are written",
                           disk->files[d].path, shared_bytes / MIB);
    }
    return 0;
}

/* Fills in the copy's manifest and all its paths. Touches no file. */
static int prepare(state_keeper *self, const manifest *record)
{
    if (record->state != MANIFEST_COMMITTED || record->generation == 0)
        return err_set(ERR_INTERNAL,
                       "a manifest of state %d and generation %" PRIu64 " is no commit to be kept",
                       (int)record->state, record->generation);
    if (record->extent_count > self->extent_capacity)
        return err_set(ERR_INTERNAL,
                       "a commit of %" PRIu64 " extents cannot be kept: there is room for %" PRIu64,
                       record->extent_count, self->extent_capacity);
    TRY(name_step(self, record->point.step));
    self->record = *record;
    memset(&self->record.leftover, 0, sizeof self->record.leftover);
    self->record.slabs.drive_count = 0; /* until name_drives has named them */
    TRY(name_drives(self, record));
    self->record.slabs.drive_count = record->slabs.drive_count;
    return 0;
}

/* Lists the ranges of the slab that hold the rank's part of the commit. Returns their number. */
static uint64_t list_ranges(state_keeper *self, const slab *disk)
{
    const manifest *record = &self->record;
    uint64_t count = 0;
    for (uint64_t i = 0; i < record->extent_count; i++) {
        const manifest_extent *extent = &record->extents[i];
        if (record->is_replicated || extent->rank == disk->rank)
            self->ranges[count++] =
                (slab_range){.offset = extent->offset_bytes, .size_bytes = extent->size_bytes};
    }
    return count;
}

/* Clears self->record. Its extents belong to the caller. */
static void forget(state_keeper *self)
{
    self->record.extents = NULL;
    self->record.extent_count = 0;
    self->record.slabs.drive_count = 0;
}

static uint64_t extents_bytes(const manifest *record)
{
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < record->extent_count; i++)
        bytes += record->extents[i].size_bytes;
    return bytes;
}

/* Describes free space: "3.1 GiB on /mnt/a, 2.0 GiB on /mnt/b". */
static void describe_space(const manifest *record, char text[KEEP_TEXT_BYTES])
{
    text[0] = '\0';
    for (uint32_t d = 0; d < record->slabs.drive_count; d++) {
        struct statvfs space;
        char size[SIZE_TEXT_BYTES] = "an unknown amount";
        char drive[FILE_PATH_BYTES];
        if (state_drive_of_rank(&record->slabs, 0, d, drive) == 0 && statvfs(drive, &space) == 0)
            size_format((uint64_t)space.f_bavail * space.f_frsize, size);
        text_add(text, KEEP_TEXT_BYTES, "%s%s on %s", d ? ", " : "", size, record->slabs.drives[d]);
    }
}

static void warn(const manifest *record, const err_record *failure)
{
    static const char *const rest = "the run goes on, and its own commit of that step is intact";
    if (failure->code != -ENOSPC && failure->code != -EDQUOT) {
        log_warn("the commit of step %" PRIu64 " is not kept: %s; %s", record->point.step,
                 failure->text, rest);
        return;
    }
    char size[SIZE_TEXT_BYTES], space[KEEP_TEXT_BYTES];
    describe_space(record, space);
    log_warn("the commit of step %" PRIu64 " is not kept: %s; it needs %s, free are %s: "
             "make room, remove kept commits that nobody needs, or keep fewer (run.keep); %s",
             record->point.step, failure->text, size_format(extents_bytes(record), size), space,
             rest);
}

static void log_copy(state_keeper *self, uint64_t copied_bytes)
{
    char size[SIZE_TEXT_BYTES];
    size_format(copied_bytes, size);
    log_debug("the commit of step %" PRIu64 " is kept in %s: %s copied", self->record.point.step,
              self->step_dir, size);
    if (copied_bytes == 0 || self->has_logged_size)
        return;
    self->has_logged_size = true;
    log_info(
        "each commit that is kept (run.keep) takes %s of the drives and the time to copy them: "
        "their file system cannot share blocks between files, as XFS and Btrfs can (reflink)",
        size);
}

/* Removes the copy and warns. The run continues. */
static void give_up(state_keeper *self, const manifest *record, int code)
{
    err_record failure;
    err_save(&failure, code);
    /* now the copy does not count any more */
    remove_file(self->state_dir, slot_name(record->generation));
    discard(self);
    warn(record, &failure);
}

int state_keep_begin(state_keeper *self, const manifest *record)
{
    self->copied_bytes = 0;
    int rc = prepare(self, record);
    if (rc == 0 &&
        (has_file(self->state_dir, slot_name(0)) || has_file(self->state_dir, slot_name(1)))) {
        forget(self);
        return 0;
    }
    if (rc == 0)
        rc = failpoint("keep.begin");
    if (rc == 0)
        rc = write_note(self, record);
    if (rc < 0 && rc != ERR_INTERNAL)
        give_up(self, record, rc);
    forget(self);
    return rc == 0 ? 1 : rc == ERR_INTERNAL ? rc : 0;
}

int state_keep_slabs(state_keeper *self, const slab *disk, const manifest *record)
{
    slab_config config = {.drives = NULL};
    int rc = prepare(self, record);
    if (rc == 0)
        rc = state_slab_config(&self->record.slabs, disk->rank, self->drives, &config);
    config.total_bytes = record->total_bytes;
    config.stripe_bytes = record->stripe_bytes;
    config.mode = self->asked->run.mode;
    if (rc == 0)
        rc = slab_copy(disk, &config, self->ranges, list_ranges(self, disk), &self->copied_bytes);
    if (rc == 0 && self->copied_bytes == 0)
        rc = check_shared(disk, record);
    forget(self);
    return rc;
}

int state_keep_drop(state_keeper *self, const slab *disk, const manifest *record)
{
    int rc = prepare(self, record);
    if (rc == 0)
        rc = discard_slabs(self, disk->rank);
    forget(self);
    return rc;
}

int state_keep_record(state_keeper *self, const manifest *record, int outcome)
{
    err_record failure;
    err_save(&failure, outcome);
    int rc = prepare(self, record);
    if (rc == 0 && outcome < 0)
        rc = err_restore(&failure);
    if (rc == 0)
        rc = copy_files(self);
    if (rc == 0)
        rc = failpoint("keep.copied");
    if (rc == 0)
        rc = finish(self);
    if (rc == 0)
        log_copy(self, self->copied_bytes);
    else if (rc != ERR_INTERNAL)
        give_up(self, record, rc);
    forget(self);
    return rc == ERR_INTERNAL ? rc : 0;
}

int state_keep(state_keeper *self, const struct ranks *ranks, const slab *disk,
               const manifest *record)
{
    if (!state_is_kept(self->asked, record->point.step))
        return 0;
    int begins = ranks->rank == 0 ? state_keep_begin(self, record) : 0;
    TRY(ranks_agree(ranks, "keeping of the commit", begins < 0 ? begins : 0));
    uint8_t is_to_copy = begins > 0;
    TRY(ranks_from_rank0(ranks, "keeping of the commit", &is_to_copy, sizeof is_to_copy));
    if (!is_to_copy)
        return 0;
    int rc = state_keep_drop(self, disk, record); /* what an attempt without a note left */
    rc = ranks_agree(ranks, "room for the copies of the slabs", rc);
    int copied = rc < 0 ? rc : state_keep_slabs(self, disk, record);
    int outcome = ranks_agree(ranks, "copies of the slabs", copied);
    if (outcome < 0 && ranks->rank != 0 && state_keep_drop(self, disk, record) < 0)
        log_warn("the copied slabs of a commit that is not kept could not be removed: %s",
                 err_text());
    return ranks->rank == 0 ? state_keep_record(self, record, outcome) : 0;
}
