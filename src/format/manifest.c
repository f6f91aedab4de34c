/* The two slots as files. manifest.h is the contract; tiers/FORMAT.md has the bytes.
 *
 * How slot g mod 2 is written depends on the other slot, which is of generation g - 1:
 *
 *   It is a commit: the slot is written in place, over generation g - 2. A commit takes no new
 *   space, so that a full disk cannot stop one. Until it is whole the slot is damaged, and g - 1
 *   counts.
 *
 *   It is absent, or BEGUN: manifest-<slot>.new, fsync, rename. The slot is as before or whole. So
 *   a run that was killed while it wrote its first slot never was a run, and a damaged slot beside
 *   BEGUN is a commit that was lost, not one that was never made.
 *
 * In place, the length is set before the bytes are written, because the tail of a longer old slot
 * would make the new one damaged. If the cut comes first, there is no step between the last byte
 * and the fsync, and a cut that fails has changed nothing. A slot counts only if its length and the
 * checksum of the whole are right, so it does not matter in which order the cut and the bytes reach
 * the drive.
 *
 * A slot that was not reported as written must not count later. After a failed fsync it may be
 * whole in the page cache and nowhere else, so its first bytes are overwritten with zeros.
 * manifest_read syncs a slot that a killed process left unsynced, before anything relies on it.
 *
 * One thread. Writing allocates nothing, so that a commit can happen while memory is sealed. */
#include "format/manifest.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/failpoint.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "format/manifest_internal.h"

static int slot_path(char path[PATH_MAX], const char *state_dir, unsigned slot, const char *suffix)
{
    int length = snprintf(path, PATH_MAX, "%s/manifest-%u%s", state_dir, slot, suffix);
    if (length < 0 || length >= PATH_MAX)
        return err_errno(ENAMETOOLONG, "the run's state directory %s", state_dir);
    return 0;
}

/* ---- writing ---- */

/* A slot being written. */
struct slot_file {
    char path[PATH_MAX];      /* of the slot */
    char temporary[PATH_MAX]; /* the name while it is written; not used in place */
    int fd;
    bool in_place;
    bool is_renamed;
};
typedef struct slot_file slot_file;

static const char *present_path(const slot_file *self)
{
    return self->in_place || self->is_renamed ? self->path : self->temporary;
}

/* True if the slot's first bytes say COMMITTED or RUNNING. It then counts while the other slot is
 * written. */
static bool holds_commit(const char *path)
{
    manifesti_header header = {.version = 0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return false;
    ssize_t got = pread(fd, &header, sizeof header, 0);
    close(fd);
    return got == (ssize_t)sizeof header &&
           memcmp(header.magic, MANIFESTI_MAGIC, sizeof header.magic) == 0 &&
           (header.state == MANIFEST_COMMITTED || header.state == MANIFEST_RUNNING);
}

/* Opens the file of the slot. Changes no byte of it yet. */
static int open_for_writing(const char *state_dir, unsigned slot, slot_file *out)
{
    char other[PATH_MAX];
    *out = (slot_file){.fd = -1};
    TRY(slot_path(out->path, state_dir, slot, ""));
    TRY(slot_path(out->temporary, state_dir, slot, ".new"));
    TRY(slot_path(other, state_dir, 1 - slot, ""));
    if (holds_commit(other)) {
        out->fd = open(out->path, O_WRONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
        out->in_place = out->fd >= 0;
        if (out->fd < 0 && errno != ENOENT)
            return err_errno(errno, "cannot open the manifest %s for writing%s", out->path,
                             errno == ENXIO ? ", because it is a pipe: move it away" : "");
    }
    if (out->in_place)
        return 0;
    unlink(out->temporary); /* of a process that was killed */
    int rc = file_create(out->temporary, O_WRONLY | O_EXCL, FILE_AS_DIRECTORY, &out->fd);
    return rc < 0 ? err_prefix(rc, "the manifest") : 0;
}

/* Writes bytes [begin, end) of the slot. */
static int write_range(const slot_file *self, const manifesti_parts *parts, uint64_t begin,
                       uint64_t end)
{
    uint64_t part_begin = 0;
    for (int i = 0; i < parts->count && part_begin < end; i++) {
        const char *data = parts->parts[i].data;
        uint64_t part_end = part_begin + parts->parts[i].bytes;
        uint64_t at = size_max(begin, part_begin), stop = size_min(end, part_end);
        if (at < stop) {
            int rc = file_write_at(self->fd, (int64_t)at, data + (at - part_begin), stop - at);
            if (rc < 0)
                return err_errno(-rc, "cannot write the manifest %s at byte %" PRIu64,
                                 present_path(self), at);
        }
        part_begin = part_end;
    }
    return 0;
}

/* Truncates: the old slot may be longer. */
static int cut(const slot_file *self, uint64_t file_bytes)
{
    struct stat info;
    if (fstat(self->fd, &info) < 0)
        return err_errno(errno, "cannot examine the manifest %s", present_path(self));
    if ((uint64_t)info.st_size > file_bytes && ftruncate(self->fd, (off_t)file_bytes) < 0)
        return err_errno(errno, "cannot set the length of the manifest %s", present_path(self));
    return 0;
}

/* Writes the bytes, syncs the file, renames it, syncs the directory. */
static int write_slot(const char *state_dir, slot_file *self, const manifesti_parts *parts)
{
    uint64_t file_bytes = parts->header.file_bytes;
    TRY(cut(self, file_bytes));
    TRY(write_range(self, parts, 0, file_bytes / 2));
    TRY(failpoint("manifest.half"));
    TRY(write_range(self, parts, file_bytes / 2, file_bytes));
    TRY(failpoint("manifest.written"));
    if (fsync(self->fd) < 0)
        return err_errno(errno, "cannot make the manifest %s durable", present_path(self));
    if (!self->in_place) {
        if (rename(self->temporary, self->path) < 0)
            return err_errno(errno, "cannot put the manifest %s into its place", self->temporary);
        self->is_renamed = true;
    }
    TRY(failpoint("manifest.synced"));
    return file_sync_directory(state_dir);
}

/* After a failure, makes sure that the slot does not count. This may fail too, because the drive
 * may be gone. The bytes stay allocated for the next commit. */
static void invalidate_slot(const slot_file *self)
{
    static const char zeros[sizeof(((manifesti_header *)NULL)->magic)];
    if (!self->in_place)
        unlink(present_path(self));
    else if (pwrite(self->fd, zeros, sizeof zeros, 0) != (ssize_t)sizeof zeros &&
             ftruncate(self->fd, 0) < 0)
        log_warn("the manifest %s could not be made invalid after its write failed (%s)",
                 self->path, strerror(errno));
}

/* Reserves the blocks of the other slot for a commit of this length, after a run's first commit:
 * the slot says BEGUN, which is shorter. So later commits need no space. Where this is not
 * possible, they fail if there is none. */
static void reserve_other(const char *state_dir, unsigned slot, uint64_t file_bytes)
{
    char path[PATH_MAX];
    int fd = slot_path(path, state_dir, slot, "") < 0
                 ? -1
                 : open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0)
        return;
    (void)fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)file_bytes);
    close(fd);
}

int manifest_write(const char *state_dir, const manifest *self)
{
    manifesti_parts parts;
    manifesti_reason reason;
    slot_file file;
    if (!manifesti_is_possible(self, &reason))
        return err_set(-EINVAL, "a manifest that could not be read again is not written to %s: %s",
                       state_dir, reason.text);
    TRY(manifesti_collect(self, &parts));
    TRY(failpoint("manifest.begin"));
    TRY(open_for_writing(state_dir, (unsigned)(self->generation % MANIFESTI_SLOTS), &file));
    int rc = write_slot(state_dir, &file, &parts);
    if (rc < 0)
        invalidate_slot(&file);
    close(file.fd); /* everything is on the drive, or the slot is invalid */
    if (rc == 0 && self->state == MANIFEST_COMMITTED && !file.in_place)
        reserve_other(state_dir, (unsigned)((self->generation + 1) % MANIFESTI_SLOTS),
                      parts.header.file_bytes);
    return rc;
}

int manifest_remove(const char *state_dir)
{
    static const char *const suffixes[] = {"", ".new"};
    int rc = 0;
    for (unsigned i = 0; i < 2 * MANIFESTI_SLOTS; i++) {
        char path[PATH_MAX];
        TRY(slot_path(path, state_dir, i / 2, suffixes[i % 2]));
        if (unlink(path) < 0 && errno != ENOENT && rc == 0)
            rc = err_errno(errno, "cannot remove the manifest %s", path);
    }
    return rc;
}

/* ---- reading ---- */

/* Returns 1 with the record, 0 with the reason, or -ENOMEM. */
static int read_open(int fd, unsigned slot, manifest *out, manifesti_reason *reason)
{
    struct stat info;
    if (fstat(fd, &info) < 0)
        return manifesti_wrong(reason, "it cannot be examined (%s)", strerror(errno));
    if (!S_ISREG(info.st_mode))
        return manifesti_wrong(reason, "it is not a regular file");
    uint64_t file_bytes = (uint64_t)info.st_size;
    /* read first: no memory is allocated for a file whose header does not give its length */
    manifesti_header header;
    int64_t got = file_read_at(fd, 0, &header, sizeof header);
    if (got < 0)
        return manifesti_wrong(reason, "it cannot be read (%s)", strerror((int)-got));
    manifesti_header checked;
    if (!manifesti_read_header(&header, (uint64_t)got, file_bytes, &checked, reason))
        return 0;
    char *bytes = mem_alloc(file_bytes, 1, "manifest slot");
    if (!bytes)
        return -ENOMEM;
    got = file_read_at(fd, 0, bytes, file_bytes);
    int rc = got < 0 ? manifesti_wrong(reason, "it cannot be read (%s)", strerror((int)-got))
                     : manifesti_decode(bytes, (uint64_t)got, slot, out, reason);
    mem_free(bytes);
    return rc;
}

/* Reads one slot. `out` is cleared unless the slot is valid. The result is negative only if the
 * machine failed. */
static int read_slot(const char *state_dir, unsigned slot, manifest *out, manifest_slot *view)
{
    char path[PATH_MAX];
    manifesti_reason reason = {.other_version = 0};
    *view = (manifest_slot){.outcome = MANIFEST_SLOT_ABSENT};
    memset(out, 0, sizeof *out);
    TRY(slot_path(path, state_dir, slot, ""));
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT)
        return 0;
    if (fd < 0) /* not the slot's fault: using the other slot would lose a commit */
        return err_errno(errno, "cannot open the manifest %s", path);
    int rc = read_open(fd, slot, out, &reason);
    close(fd);
    TRY(rc);
    view->outcome = rc ? MANIFEST_SLOT_VALID : MANIFEST_SLOT_DAMAGED;
    view->generation = out->generation;
    view->step = out->point.step;
    view->other_version = reason.other_version;
    memcpy(view->reason, reason.text, sizeof view->reason);
    return 0;
}

/* Makes both slots durable as they were read, for two reasons:
 * - The writer of the slot that counts may have been killed before its fsync. The next steps change
 *   places that the other slot names. After a loss of power, both would be lost.
 * - A damaged slot may be damaged in the page cache alone, where its writer made it invalid after a
 *   failed fsync. After a loss of power it would be whole again, and name places that have since
 *   been changed. */
static int settle(const char *state_dir, const manifest_slot views[MANIFESTI_SLOTS])
{
    for (unsigned slot = 0; slot < MANIFESTI_SLOTS; slot++) {
        char path[PATH_MAX];
        if (views[slot].outcome == MANIFEST_SLOT_ABSENT)
            continue;
        TRY(slot_path(path, state_dir, slot, ""));
        int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0)
            return err_errno(errno, "cannot open the manifest %s", path);
        int rc = 0;
        /* On a read-only file system nothing can be written, so nothing can be lost. */
        if (fsync(fd) < 0 && errno != EROFS && errno != EINVAL)
            rc = err_errno(errno, "cannot make the manifest %s durable", path);
        close(fd);
        TRY(rc);
    }
    int rc = file_sync_directory(state_dir);
    return rc == -EROFS ? 0 : rc;
}

/* Two valid slots must be of the same run: they have the same slabs, or one names the other's slabs
 * as slabs to remove. */
static int check_kinship(const char *state_dir, const manifest *one, const manifest *other)
{
    size_t bytes = sizeof one->slabs.uuid;
    if (one->slabs.drive_count == 0 || other->slabs.drive_count == 0 ||
        memcmp(one->slabs.uuid, other->slabs.uuid, bytes) == 0 ||
        (one->leftover.drive_count && memcmp(one->leftover.uuid, other->slabs.uuid, bytes) == 0) ||
        (other->leftover.drive_count && memcmp(other->leftover.uuid, one->slabs.uuid, bytes) == 0))
        return 0;
    return err_set(ERR_CORRUPT,
                   "the manifests in %s are of two runs: manifest-%u of step %" PRIu64
                   " with slabs in %s, manifest-%u of step %" PRIu64
                   " with slabs in %s; remove the one that was put there by mistake",
                   state_dir, (unsigned)(one->generation % MANIFESTI_SLOTS), one->point.step,
                   one->slabs.drives[0], (unsigned)(other->generation % MANIFESTI_SLOTS),
                   other->point.step, other->slabs.drives[0]);
}

static const char *view_text(const manifest_slot *view)
{
    return view->outcome == MANIFEST_SLOT_ABSENT ? "it is missing" : view->reason;
}

/* Decides whether the valid slot may be used although the other one is damaged. */
static int pass_over(const char *state_dir, unsigned damaged, const manifest_slot *view,
                     const manifest *used)
{
    if (used->state == MANIFEST_BEGUN)
        return err_set(ERR_CORRUPT,
                       "the only commit of the run, %s/manifest-%u, is damaged: %s; manifest-%u "
                       "says no more than that the run had begun, so its state cannot be resumed: "
                       "restore the file, or begin again in another run.dir",
                       state_dir, damaged, view->reason, 1 - damaged);
    log_warn("%s/manifest-%u does not count: %s (normal where the process was killed or the power "
             "lost while it was written); manifest-%u is used, the %s of step %" PRIu64
             " (generation %" PRIu64 "). If the damaged one was whole once, the run may have "
             "overwritten extents of this one since then: their checksums will show it",
             state_dir, damaged, view->reason, 1 - damaged,
             used->state == MANIFEST_COMMITTED ? "commit" : "record", used->point.step,
             used->generation);
    return 0;
}

/* A slot of another version is not damaged. This program must not go back to the commit before it,
 * and must not overwrite it. */
static int refuse_other_version(const char *state_dir, unsigned slot, const manifest_slot *view)
{
    uint32_t version = view->other_version;
    if (view->outcome != MANIFEST_SLOT_DAMAGED || version == 0)
        return 0;
    return err_set(ERR_INPUT,
                   "%s/manifest-%u was written by %s sluice: it has version %" PRIu32
                   " and this program reads version %d alone; go on with the sluice that "
                   "wrote it, or begin in another run.dir",
                   state_dir, slot, version > MANIFESTI_VERSION ? "a newer" : "an older", version,
                   MANIFESTI_VERSION);
}

/* Chooses the slot that counts. Its record is in *out; the other record is freed. */
static int choose(const char *state_dir, const manifest_slot views[MANIFESTI_SLOTS], manifest *out,
                  manifest *second)
{
    bool first_counts =
        views[0].outcome == MANIFEST_SLOT_VALID &&
        (views[1].outcome != MANIFEST_SLOT_VALID || out->generation > second->generation);
    if (!first_counts && views[1].outcome != MANIFEST_SLOT_VALID) {
        if (views[0].outcome == MANIFEST_SLOT_ABSENT && views[1].outcome == MANIFEST_SLOT_ABSENT)
            return 0;
        return err_set(ERR_CORRUPT,
                       "no manifest in %s is valid, so its state cannot be resumed: manifest-0: "
                       "%s; manifest-1: %s",
                       state_dir, view_text(&views[0]), view_text(&views[1]));
    }
    if (views[0].outcome == MANIFEST_SLOT_VALID && views[1].outcome == MANIFEST_SLOT_VALID)
        TRY(check_kinship(state_dir, out, second));
    if (first_counts) {
        manifest_fini(second);
    } else {
        manifest_fini(out);
        *out = *second;
        second->extents = NULL;
    }
    unsigned used = first_counts ? 0 : 1;
    if (views[1 - used].outcome == MANIFEST_SLOT_DAMAGED)
        TRY(pass_over(state_dir, 1 - used, &views[1 - used], out));
    TRY(settle(state_dir, views));
    return 1;
}

int manifest_read(const char *state_dir, manifest *out)
{
    manifest_slot views[MANIFESTI_SLOTS];
    memset(out, 0, sizeof *out);
    manifest *second = mem_alloc(1, sizeof *second, "manifest");
    if (!second)
        return -ENOMEM;
    int rc;
    TRY_GOTO(rc, read_slot(state_dir, 0, out, &views[0]), done);
    TRY_GOTO(rc, read_slot(state_dir, 1, second, &views[1]), done);
    for (unsigned slot = 0; slot < MANIFESTI_SLOTS; slot++)
        TRY_GOTO(rc, refuse_other_version(state_dir, slot, &views[slot]), done);
    rc = choose(state_dir, views, out, second);
done:
    if (rc <= 0) {
        manifest_fini(out);
        memset(out, 0, sizeof *out);
    }
    manifest_fini(second);
    mem_free(second);
    return rc;
}

int manifest_examine(const char *state_dir, manifest_slot slots[2], manifest *newest)
{
    memset(slots, 0, MANIFESTI_SLOTS * sizeof *slots);
    if (newest)
        memset(newest, 0, sizeof *newest);
    manifest *record = mem_alloc(1, sizeof *record, "manifest");
    int rc = record ? 0 : -ENOMEM;
    for (unsigned i = 0; i < MANIFESTI_SLOTS && rc == 0; i++) {
        rc = read_slot(state_dir, i, record, &slots[i]);
        if (rc < 0 && rc != -ENOMEM) { /* it exists and cannot be opened */
            slots[i].outcome = MANIFEST_SLOT_DAMAGED;
            snprintf(slots[i].reason, sizeof slots[i].reason, "%.*s", MANIFEST_REASON_BYTES - 1,
                     err_text());
            rc = 0;
        }
        if (rc == 0)
            rc = refuse_other_version(state_dir, i, &slots[i]);
        bool is_newest = slots[i].outcome == MANIFEST_SLOT_VALID &&
                         (i == 0 || slots[1].generation > slots[0].generation);
        manifest_fini(newest && is_newest ? newest : record);
        if (newest && is_newest)
            *newest = *record;
    }
    mem_free(record);
    return rc;
}
