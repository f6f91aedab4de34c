/* Copies of a slab's files, for a commit that is kept: clones if the file system can share blocks
 * (FICLONE), otherwise sparse files of the header and the requested ranges. See slab.h. One thread
 * at a time; uses the stack only.
 *
 *   source  read by the slab's own descriptors with direct I/O. The page cache could hold stale
 *           bytes of blocks that others write directly
 *   target  written through the page cache, so writing overlaps the next read. Each window is
 *           written out and then dropped, so a copy of any size takes little of the cache */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/size.h"
#include "tiers/tiers_internal.h"

enum { COPY_BUFFER_BYTES = 64 * 1024, COPY_ALIGN_BYTES = 4096 };

#define COPY_WINDOW_BYTES (8 * MIB)

static_assert(SLAB_HEADER_BYTES % COPY_ALIGN_BYTES == 0,
              "pieces of a file are aligned as its addresses");

/* One file of the copy. */
struct copy_file {
    int fd;        /* -1: not made yet */
    bool is_clone; /* a clone: it shares all blocks already */
    bool has_directory;
    uint32_t made_count;               /* directories made for it */
    uint64_t window_begin, window_end; /* written, but write-out has not begun */
    uint64_t last_begin, last_end;     /* the earlier window, which is being written out */
};
typedef struct copy_file copy_file;

struct copy_job {
    const slab *source;
    slab_config names; /* the copy, for tieri_slab_file_path */
    copy_file files[DRIVES_MAX];
    uint64_t copied_bytes;
    char path[FILE_PATH_BYTES]; /* scratch: path of the present file */
};
typedef struct copy_job copy_job;

/* ---- the files ---- */

/* 1: the file is a clone. 0: the two files are not on one file system that can clone. */
static int clone_file(copy_job *self, uint32_t drive_idx)
{
    int rc;
    do
        rc = ioctl(self->files[drive_idx].fd, FICLONE, self->source->files[drive_idx].fd);
    while (rc != 0 && errno == EINTR);
    if (rc == 0)
        return 1;
    switch (errno) {
    case EOPNOTSUPP:
    case ENOTTY:
    case ENOSYS:
    case EXDEV:
    case EINVAL: /* also if the two files have different attributes */
        return 0;
    default:
        return err_errno(errno, "copying the slab %s to %s by reflink",
                         self->source->files[drive_idx].path, self->path);
    }
}

static int make_file(copy_job *self, uint32_t drive_idx)
{
    copy_file *file = &self->files[drive_idx];
    const slab_file *from = &self->source->files[drive_idx];
    TRY(tieri_slab_directory(&self->names, drive_idx, self->path));
    TRY(tieri_slab_make_directories(self->path, self->names.mode, &file->made_count));
    file->has_directory = true;
    TRY(tieri_slab_file_path(&self->names, drive_idx, self->path));
    int rc = file_create(self->path, O_RDWR | O_EXCL, self->names.mode, &file->fd);
    if (rc == -EEXIST)
        return err_set(-EEXIST,
                       "a copy of the slab %s is to be made where %s is already: delete it",
                       from->path, self->path);
    if (rc < 0)
        return err_errno(-rc, "making %s, a copy of the slab %s", self->path, from->path);
    rc = clone_file(self, drive_idx);
    if (rc < 0)
        return rc;
    file->is_clone = rc == 1;
    if (!file->is_clone && ftruncate(file->fd, (off_t)from->file_bytes) != 0)
        return err_errno(errno, "making %s, a copy of the slab %s, %llu bytes long", self->path,
                         from->path, (unsigned long long)from->file_bytes);
    return 0;
}

/* Makes bytes and names durable; tieri_slab_make_directories has done so for the directories. */
static int sync_file(copy_job *self, uint32_t drive_idx)
{
    TRY(tieri_slab_file_path(&self->names, drive_idx, self->path));
    if (fsync(self->files[drive_idx].fd) != 0)
        return err_errno(errno, "fsync of %s, a copy of the slab %s", self->path,
                         self->source->files[drive_idx].path);
    (void)posix_fadvise(self->files[drive_idx].fd, 0, 0, POSIX_FADV_DONTNEED);
    TRY(tieri_slab_directory(&self->names, drive_idx, self->path));
    return file_sync_directory(self->path);
}

static void close_files(copy_job *self, bool remove)
{
    for (uint32_t i = self->source->drive_count; i-- > 0;) {
        copy_file *file = &self->files[i];
        if (file->fd >= 0) {
            close(file->fd);
            if (remove && tieri_slab_file_path(&self->names, i, self->path) == 0)
                unlink(self->path);
        }
        if (remove && file->has_directory && tieri_slab_directory(&self->names, i, self->path) == 0)
            file_unmake_directories(self->path, file->made_count);
    }
}

/* ---- the bytes ---- */

/* Starts to write out the window, and begins the next one at `next`. The window before it is
 * awaited and leaves the page cache. fsync reports what fails here. */
static void end_window(copy_file *file, uint64_t next)
{
    if (file->last_end > file->last_begin) {
        off_t begin = (off_t)file->last_begin, size = (off_t)(file->last_end - file->last_begin);
        (void)sync_file_range(file->fd, begin, size,
                              SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
                                  SYNC_FILE_RANGE_WAIT_AFTER);
        (void)posix_fadvise(file->fd, begin, size, POSIX_FADV_DONTNEED);
    }
    file->last_begin = file->window_begin;
    file->last_end = file->window_end;
    if (file->last_end > file->last_begin)
        (void)sync_file_range(file->fd, (off_t)file->last_begin,
                              (off_t)(file->last_end - file->last_begin), SYNC_FILE_RANGE_WRITE);
    file->window_begin = file->window_end = next;
}

static int read_part(const slab_file *from, unsigned char *buffer, uint64_t size_bytes,
                     uint64_t offset)
{
    for (uint64_t done = 0; done < size_bytes;) {
        ssize_t got = pread(from->fd, buffer + done, size_bytes - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_errno(errno, "read of %llu bytes at offset %llu of %s, to copy them",
                             (unsigned long long)(size_bytes - done),
                             (unsigned long long)(offset + done), from->path);
        done += (uint64_t)got;
        if (got == 0 || (done < size_bytes && done % COPY_ALIGN_BYTES))
            return err_set(ERR_CORRUPT,
                           "read of %llu bytes at offset %llu of %s, to copy them: end of file; "
                           "the slab has been cut off",
                           (unsigned long long)size_bytes, (unsigned long long)offset, from->path);
    }
    return 0;
}

/* Copies one piece, unless the file is a clone. */
static int copy_piece(copy_job *self, const slab_piece *piece)
{
    _Alignas(COPY_ALIGN_BYTES) unsigned char buffer[COPY_BUFFER_BYTES];
    copy_file *file = &self->files[piece->drive_idx];
    if (file->is_clone)
        return 0;
    TRY(tieri_slab_file_path(&self->names, piece->drive_idx, self->path)); /* for error texts */
    uint64_t at = piece->file_offset, end = at + piece->size_bytes;
    for (uint64_t part; at < end; at += part) {
        part = size_min(end - at, COPY_BUFFER_BYTES);
        if (at < file->window_end || at + part - file->window_begin > COPY_WINDOW_BYTES)
            end_window(file, at); /* the window is full, or the piece lies elsewhere */
        TRY(read_part(&self->source->files[piece->drive_idx], buffer, part, at));
        int rc = file_write_at(file->fd, (int64_t)at, buffer, part);
        if (rc < 0)
            return err_errno(-rc, "write of %llu bytes at offset %llu of the copy %s",
                             (unsigned long long)part, (unsigned long long)at, self->path);
        self->copied_bytes += part;
        file->window_end = at + part;
    }
    return 0;
}

static int copy_range(copy_job *self, const slab_range *range)
{
    slab_piece piece;
    for (uint64_t done = 0; done < range->size_bytes; done += piece.size_bytes) {
        slab_map(self->source, range->offset + done, range->size_bytes - done, &piece);
        TRY(copy_piece(self, &piece));
    }
    return 0;
}

static int copy_all(copy_job *self, const slab_range *ranges, uint64_t range_count)
{
    uint32_t drive_count = self->source->drive_count;
    bool all_clones = true;
    for (uint32_t i = 0; i < drive_count; i++) {
        TRY(make_file(self, i));
        all_clones = all_clones && self->files[i].is_clone;
    }
    for (uint32_t i = 0; i < drive_count; i++) {
        const slab_piece header = {.drive_idx = i, .size_bytes = SLAB_HEADER_BYTES};
        TRY(copy_piece(self, &header));
    }
    for (uint64_t i = 0; i < range_count && !all_clones; i++)
        TRY(copy_range(self, &ranges[i]));
    for (uint32_t i = 0; i < drive_count; i++)
        TRY(sync_file(self, i));
    return 0;
}

static int check_request(const slab *self, const slab_config *copy, const slab_range *ranges,
                         uint64_t range_count)
{
    if (copy->drive_count != self->drive_count || copy->rank != self->rank ||
        memcmp(copy->uuid, self->uuid, sizeof self->uuid) != 0)
        return err_set(-EINVAL,
                       "a copy of a slab of rank %u on %u drives cannot be of rank %u on %u, or of "
                       "another run",
                       self->rank, self->drive_count, copy->rank, copy->drive_count);
    for (uint64_t i = 0; i < range_count; i++) {
        uint64_t offset = ranges[i].offset, size_bytes = ranges[i].size_bytes;
        if (offset % COPY_ALIGN_BYTES || size_bytes % COPY_ALIGN_BYTES ||
            offset > self->total_bytes || size_bytes > self->total_bytes - offset)
            return err_set(-EINVAL,
                           "a copy of %llu bytes at offset %llu of a slab of %llu bytes: it must "
                           "lie within, by multiples of 4 KiB",
                           (unsigned long long)size_bytes, (unsigned long long)offset,
                           (unsigned long long)self->total_bytes);
    }
    return 0;
}

int slab_copy(const slab *self, const slab_config *copy, const slab_range *ranges,
              uint64_t range_count, uint64_t *copied_bytes)
{
    *copied_bytes = 0;
    TRY(check_request(self, copy, ranges, range_count));
    copy_job work = {.source = self,
                     .names = {.drives = copy->drives,
                               .drive_count = copy->drive_count,
                               .rank = copy->rank,
                               .mode = copy->mode}};
    memcpy(work.names.uuid, copy->uuid, sizeof work.names.uuid);
    for (uint32_t i = 0; i < DRIVES_MAX; i++)
        work.files[i].fd = -1;
    int rc = copy_all(&work, ranges, range_count);
    if (rc < 0) {
        err_record first;
        err_save(&first, rc);
        close_files(&work, true);
        return err_restore(&first);
    }
    close_files(&work, false); /* fsync has reported lost data */
    *copied_bytes = work.copied_bytes;
    return 0;
}
