/* The slab's files: space, headers, O_DIRECT, sync, removal. See slab.h for the contract and
 * FORMAT.md for the bytes. One thread, at start and end (slab_sync: at a commit); nothing from the
 * heap.
 *
 *   (nothing) --slab_open(create)--> OPEN --slab_close--> on disk --slab_open(existing)--> OPEN
 *                                     OPEN --slab_remove--> (nothing)
 *   in any state, also cut short by a crash -----slab_remove_files--> (nothing)
 */
#include "tiers/slab.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/log.h"
#include "base/size.h"
#include "tiers/tiers_internal.h"

enum { SLAB_VERSION = 1, SLAB_ALIGN_DEFAULT_BYTES = 4096 };

static const char slab_magic[8] = {'S', 'L', 'U', 'I', 'C', 'E', 'S', 'B'};

/* The first block of each file; FORMAT.md, section "slab". All integers little-endian. */
struct slab_header {
    char magic[8];
    uint32_t version;
    uint32_t header_bytes;
    uint8_t uuid[SLAB_UUID_BYTES];
    uint32_t rank;
    uint32_t drive_idx;
    uint32_t drive_count;
    uint32_t reserved;
    uint64_t stripe_bytes;
    uint64_t total_bytes;
    uint64_t file_bytes;
    uint64_t drive_stripes[DRIVES_MAX];
    uint8_t zero[3888];
    uint64_t checksum; /* XXH3-64 of the bytes before it */
};
typedef struct slab_header slab_header;

static_assert(sizeof(slab_header) == SLAB_HEADER_BYTES, "one block");
static_assert(offsetof(slab_header, version) == 8, "FORMAT.md");
static_assert(offsetof(slab_header, header_bytes) == 12, "FORMAT.md");
static_assert(offsetof(slab_header, uuid) == 16, "FORMAT.md");
static_assert(offsetof(slab_header, rank) == 32, "FORMAT.md");
static_assert(offsetof(slab_header, drive_idx) == 36, "FORMAT.md");
static_assert(offsetof(slab_header, drive_count) == 40, "FORMAT.md");
static_assert(offsetof(slab_header, stripe_bytes) == 48, "FORMAT.md");
static_assert(offsetof(slab_header, total_bytes) == 56, "FORMAT.md");
static_assert(offsetof(slab_header, file_bytes) == 64, "FORMAT.md");
static_assert(offsetof(slab_header, drive_stripes) == 72, "FORMAT.md");
static_assert(offsetof(slab_header, zero) == 200, "FORMAT.md");
static_assert(offsetof(slab_header, checksum) == 4088, "FORMAT.md");

/* The alignment that direct I/O on fd needs for offsets and memory; 0: direct I/O is not possible
 * there. The names of the two statx fields are younger than some C libraries, so the fields are
 * read by their place in the kernel's stable struct (linux/stat.h). */
static uint32_t direct_align_bytes(int fd)
{
    enum { MASK_DIOALIGN = 0x2000, AT_MEM_ALIGN = 152, AT_OFFSET_ALIGN = 156 };
    static_assert(sizeof(struct statx) == 256, "the kernel's struct, spare space included");
    struct statx status;
    memset(&status, 0, sizeof status);
    if (statx(fd, "", AT_EMPTY_PATH, MASK_DIOALIGN, &status) != 0 ||
        !(status.stx_mask & MASK_DIOALIGN))
        return SLAB_ALIGN_DEFAULT_BYTES;
    uint32_t memory_align, offset_align;
    memcpy(&memory_align, (const char *)&status + AT_MEM_ALIGN, sizeof memory_align);
    memcpy(&offset_align, (const char *)&status + AT_OFFSET_ALIGN, sizeof offset_align);
    return memory_align && offset_align ? (uint32_t)size_max(memory_align, offset_align) : 0;
}

/* Turns direct I/O on if the file supports it and our 4 KiB blocks suit it. */
static void set_direct(slab_file *file)
{
    static atomic_bool warned;
    file->align_bytes = direct_align_bytes(file->fd);
    if (file->align_bytes && file->align_bytes <= SLAB_HEADER_BYTES) {
        int flags = fcntl(file->fd, F_GETFL);
        if (flags >= 0 && fcntl(file->fd, F_SETFL, flags | O_DIRECT) == 0) {
            file->direct = true;
            return;
        }
    }
    file->align_bytes = SLAB_ALIGN_DEFAULT_BYTES;
    file->direct = false;
    if (!atomic_exchange(&warned, true))
        log_warn(
            "%s: the file system takes no direct I/O: transfers go through the page cache, which "
            "costs a copy in memory each and competes with the arenas for memory",
            file->path);
}

/* Reserves the file's space, so that no later write can run out of it. */
static int reserve_space(const slab_file *file)
{
    static atomic_bool warned;
    char size[SIZE_TEXT_BYTES];
    int rc;
    do
        rc = fallocate(file->fd, 0, 0, (off_t)file->file_bytes);
    while (rc != 0 && errno == EINTR);
    if (rc == 0)
        return 0;
    if (errno != EOPNOTSUPP && errno != ENOSYS)
        return err_errno(errno, "reserving %s for the slab %s", size_format(file->file_bytes, size),
                         file->path);
    if (ftruncate(file->fd, (off_t)file->file_bytes) != 0)
        return err_errno(errno, "setting the slab %s to %s", file->path,
                         size_format(file->file_bytes, size));
    if (!atomic_exchange(&warned, true))
        log_warn("%s: the file system cannot reserve space (no fallocate): a later write may fail "
                 "with ENOSPC if others fill the drive",
                 file->path);
    return 0;
}

static int write_header(const slab *self, uint32_t drive_idx)
{
    _Alignas(SLAB_HEADER_BYTES) slab_header header;
    memset(&header, 0, sizeof header);
    memcpy(header.magic, slab_magic, sizeof header.magic);
    header.version = htole32(SLAB_VERSION);
    header.header_bytes = htole32(SLAB_HEADER_BYTES);
    memcpy(header.uuid, self->uuid, sizeof header.uuid);
    header.rank = htole32(self->rank);
    header.drive_idx = htole32(drive_idx);
    header.drive_count = htole32(self->drive_count);
    header.stripe_bytes = htole64(self->stripe_bytes);
    header.total_bytes = htole64(self->total_bytes);
    header.file_bytes = htole64(self->files[drive_idx].file_bytes);
    for (uint32_t i = 0; i < self->drive_count; i++)
        header.drive_stripes[i] = htole64(self->drive_stripes[i]);
    header.checksum = htole64(XXH3_64bits(&header, offsetof(slab_header, checksum)));
    int rc = file_write_at(self->files[drive_idx].fd, 0, &header, sizeof header);
    return rc < 0
               ? err_errno(-rc, "write of the header of the slab %s", self->files[drive_idx].path)
               : 0;
}

/* Checks that this is a header of this slab. The first drive's header sets how stripes are shared;
 * the others must agree. */
static int check_header(slab *self, const slab_header *header, uint32_t drive_idx)
{
    const char *path = self->files[drive_idx].path;
    if (memcmp(header->magic, slab_magic, sizeof slab_magic) != 0)
        return err_set(ERR_CORRUPT, "%s is not a slab (magic number)", path);
    if (le64toh(header->checksum) != XXH3_64bits(header, offsetof(slab_header, checksum)))
        return err_set(ERR_CORRUPT, "the header of the slab %s does not match its checksum", path);
    if (le32toh(header->version) != SLAB_VERSION ||
        le32toh(header->header_bytes) != SLAB_HEADER_BYTES)
        return err_set(ERR_CORRUPT, "the slab %s has format version %u, this program knows %d",
                       path, le32toh(header->version), SLAB_VERSION);
    if (memcmp(header->uuid, self->uuid, sizeof header->uuid) != 0)
        return err_set(ERR_CORRUPT, "the slab %s belongs to another run (its uuid differs)", path);
    if (le32toh(header->rank) != self->rank || le32toh(header->drive_idx) != drive_idx ||
        le32toh(header->drive_count) != self->drive_count)
        return err_set(
            ERR_CORRUPT,
            "the slab %s is of rank %u, drive %u of %u; expected rank %u, drive %u of %u", path,
            le32toh(header->rank), le32toh(header->drive_idx), le32toh(header->drive_count),
            self->rank, drive_idx, self->drive_count);
    if (le64toh(header->stripe_bytes) != self->stripe_bytes ||
        le64toh(header->total_bytes) != self->total_bytes)
        return err_set(
            ERR_CORRUPT, "the slab %s has %llu bytes in stripes of %llu; expected %llu in %llu",
            path, (unsigned long long)le64toh(header->total_bytes),
            (unsigned long long)le64toh(header->stripe_bytes),
            (unsigned long long)self->total_bytes, (unsigned long long)self->stripe_bytes);
    uint64_t sum = 0, stripe_count = self->total_bytes / self->stripe_bytes;
    for (uint32_t i = 0; i < self->drive_count; i++) {
        uint64_t count = le64toh(header->drive_stripes[i]);
        if (drive_idx == 0)
            self->drive_stripes[i] = count;
        if (count != self->drive_stripes[i])
            return err_set(ERR_CORRUPT, "the slabs %s and %s disagree on the shares of the drives",
                           self->files[0].path, path);
        sum += size_min(count, stripe_count + 1); /* cannot overflow, whatever the file holds */
    }
    if (sum != stripe_count)
        return err_set(ERR_CORRUPT, "the shares in the header of the slab %s do not add up", path);
    return 0;
}

/* The error for a slab that should exist but cannot be opened, by `errno_value`, with advice. In
 * each case nothing has been written, so the commit is intact. */
static int open_refused(const slab_config *config, uint32_t drive_idx, const char *path,
                        int errno_value)
{
    const char *drive = config->drives[drive_idx].path;
    struct stat status;
    switch (errno_value) {
    case ENOENT:
    case ENOTDIR:
        return err_set(ERR_INPUT,
                       "the slab %s is not there%s: mount its drive at %s and run the same command "
                       "again, the last commit is untouched; where the drive is lost for good, "
                       "begin anew in an empty run directory",
                       path,
                       stat(drive, &status) != 0 ? ", and neither is the directory of its drive"
                                                 : ", though the directory of its drive is",
                       drive);
    case EROFS:
        return err_set(-EROFS,
                       "the slab %s cannot be written: the file system at %s is read-only, as some "
                       "make themselves after an error (the kernel's log says so); mount it for "
                       "writing and run the same command again, the last commit is untouched",
                       path, drive);
    case EACCES:
    case EPERM:
        return err_set(-errno_value,
                       "the slab %s may not be read and written by this user (%s): give it the "
                       "right to, or run as the user that began the run; the last commit is "
                       "untouched",
                       path, strerror(errno_value));
    default:
        return err_set(-errno_value,
                       "the slab %s cannot be opened (%s): check the drive at %s and run the same "
                       "command again, the last commit is untouched",
                       path, strerror(errno_value), drive);
    }
}

static int open_existing_file(slab *self, const slab_config *config, uint32_t drive_idx)
{
    slab_file *file = &self->files[drive_idx];
    int way = config->only_reads ? O_RDONLY : O_RDWR;
    file->fd = open(file->path, way | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); /* it may be a pipe */
    if (file->fd < 0)
        return open_refused(config, drive_idx, file->path, errno);
    struct stat status;
    if (fstat(file->fd, &status) != 0)
        return err_errno(errno, "fstat of the slab %s", file->path);
    if (!S_ISREG(status.st_mode))
        return err_set(ERR_CORRUPT, "%s is not a slab: it is no regular file", file->path);
    if (fcntl(file->fd, F_SETFL, 0) != 0) /* io_uring would not wait for the drive */
        return err_errno(errno, "opening the slab %s", file->path);
    if (status.st_size < SLAB_HEADER_BYTES)
        return err_set(ERR_CORRUPT,
                       "%s is not a slab any more: it is %lld bytes long and begins with a header "
                       "of %d bytes; it has been cut off, and what the run kept there is lost "
                       "unless the file is restored",
                       file->path, (long long)status.st_size, SLAB_HEADER_BYTES);
    set_direct(file);
    _Alignas(SLAB_HEADER_BYTES) slab_header header;
    int64_t got = file_read_at(file->fd, 0, &header, sizeof header);
    if (got < 0)
        return err_errno((int)-got, "read of the header of the slab %s", file->path);
    if ((size_t)got < sizeof header)
        return err_set(ERR_CORRUPT, "the slab %s ends within its header", file->path);
    TRY(check_header(self, &header, drive_idx));
    file->file_bytes = SLAB_HEADER_BYTES + self->drive_stripes[drive_idx] * self->stripe_bytes;
    if (le64toh(header.file_bytes) != file->file_bytes ||
        (uint64_t)status.st_size != file->file_bytes)
        return err_set(ERR_CORRUPT,
                       "the slab %s is %lld bytes long, its header says %llu: it has been cut off "
                       "or written to by others, and what the run kept there is lost unless the "
                       "file is restored",
                       file->path, (long long)status.st_size, (unsigned long long)file->file_bytes);
    return 0;
}

static int create_file(slab *self, const slab_config *config, uint32_t drive_idx,
                       const char *directory, bool *created)
{
    slab_file *file = &self->files[drive_idx];
    file->file_bytes = SLAB_HEADER_BYTES + self->drive_stripes[drive_idx] * self->stripe_bytes;
    int rc = file_create(file->path, O_RDWR | O_EXCL, config->mode, &file->fd);
    if (rc == -EEXIST)
        return err_set(-EEXIST,
                       "the slab %s exists already: it was left by an earlier start of this run; "
                       "resume it or delete the file",
                       file->path);
    if (rc < 0)
        return err_errno(-rc, "creating the slab %s", file->path);
    *created = true;
    if (!config->is_sparse)
        TRY(reserve_space(file));
    else if (ftruncate(file->fd, (off_t)file->file_bytes) != 0)
        return err_errno(errno, "creating the slab %s", file->path);
    set_direct(file);
    TRY(write_header(self, drive_idx));
    if (fsync(file->fd) != 0)
        return err_errno(errno, "fsync of the slab %s", file->path);
    return file_sync_directory(directory);
}

static void warn_of_idle_drives(const slab *self, const slab_config *config)
{
    char stripe[SIZE_TEXT_BYTES];
    for (uint32_t i = 0; i < self->drive_count; i++)
        if (self->drive_stripes[i] == 0)
            log_warn("the drive %s stays empty: its share by budget, free space and speed is below "
                     "one stripe of %s",
                     config->drives[i].path, size_format(self->stripe_bytes, stripe));
}

/* Creates all files or none. */
static int create_all(slab *self, const slab_config *config, uint64_t stripe_count)
{
    bool created[DRIVES_MAX] = {false};
    uint32_t made_count[DRIVES_MAX] = {0};
    char directory[FILE_PATH_BYTES];
    TRY(tieri_slab_plan(config, self->stripe_bytes, stripe_count, self->drive_stripes));
    int rc = tieri_slab_layout(self);
    for (uint32_t i = 0; i < self->drive_count && rc == 0; i++) {
        rc = tieri_slab_directory(config, i, directory);
        if (rc == 0)
            rc = tieri_slab_make_directories(directory, config->mode, &made_count[i]);
        if (rc == 0)
            rc = create_file(self, config, i, directory, &created[i]);
    }
    if (rc == 0) {
        warn_of_idle_drives(self, config);
        return 0;
    }
    err_record first;
    err_save(&first, rc);
    for (uint32_t i = self->drive_count; i-- > 0;) {
        if (created[i])
            unlink(self->files[i].path);
        if (tieri_slab_directory(config, i, directory) == 0)
            file_unmake_directories(directory, made_count[i]);
    }
    return err_restore(&first);
}

int slab_open(slab *out, const slab_config *config)
{
    memset(out, 0, sizeof *out);
    uint64_t stripe_count;
    TRY(tieri_slab_check_config(config, &out->stripe_bytes, &stripe_count));
    out->drive_count = config->drive_count;
    out->rank = config->rank;
    out->total_bytes = stripe_count * out->stripe_bytes;
    memcpy(out->uuid, config->uuid, sizeof out->uuid);
    int rc = 0;
    for (uint32_t i = 0; i < out->drive_count; i++)
        out->files[i].fd = -1;
    for (uint32_t i = 0; i < out->drive_count && rc == 0; i++)
        rc = tieri_slab_file_path(config, i, out->files[i].path);
    if (rc == 0 && !config->open_existing)
        rc = create_all(out, config, stripe_count);
    for (uint32_t i = 0; i < out->drive_count && rc == 0 && config->open_existing; i++)
        rc = open_existing_file(out, config, i);
    if (rc == 0 && config->open_existing)
        rc = tieri_slab_layout(out);
    if (rc < 0)
        slab_close(out);
    return rc;
}

/* Makes a file that no other process sees and that is gone when its descriptor is closed, also
 * after kill -9. If the file system has no files without a name, the name exists until the next
 * line. */
static int open_unnamed(const char *directory, slab_file *file)
{
    snprintf(file->path, sizeof file->path, "%s", directory);
    file->fd = open(directory, O_RDWR | O_TMPFILE | O_EXCL | O_CLOEXEC, 0600);
    if (file->fd >= 0)
        return 0;
    if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)
        return err_errno(errno, "making a temporary file in %s", directory);
    int used = snprintf(file->path, sizeof file->path, "%s/.sluice-speed-XXXXXX", directory);
    if (used < 0 || (size_t)used >= sizeof file->path)
        return err_set(-ENAMETOOLONG, "the path of a drive is too long: %.200s...", directory);
    file->fd = mkostemp(file->path, O_CLOEXEC);
    if (file->fd < 0)
        return err_errno(errno, "making a temporary file in %s", directory);
    if (unlink(file->path) != 0)
        return err_errno(errno, "deleting the temporary file %s", file->path);
    return 0;
}

int slab_open_unnamed(slab *out, const char *path, uint64_t bytes)
{
    char directory[FILE_PATH_BYTES];
    struct stat status;
    memset(out, 0, sizeof *out);
    TRY(tieri_slab_existing(path, directory, &status));
    out->drive_count = 1;
    out->stripe_bytes = MIB;
    out->drive_stripes[0] = size_div_up(bytes, MIB);
    out->total_bytes = out->drive_stripes[0] * MIB;
    slab_file *file = &out->files[0];
    file->file_bytes = SLAB_HEADER_BYTES + out->total_bytes;
    int rc = open_unnamed(directory, file);
    if (rc == 0)
        rc = reserve_space(file);
    if (rc == 0) {
        set_direct(file);
        rc = write_header(out, 0);
    }
    if (rc == 0)
        rc = tieri_slab_layout(out);
    if (rc < 0)
        slab_close(out);
    return rc;
}

void slab_close(slab *self)
{
    for (uint32_t i = 0; i < self->drive_count; i++)
        if (self->files[i].fd >= 0)
            close(self->files[i].fd); /* slab_sync has reported lost data */
    memset(self, 0, sizeof *self);
}

int slab_unname(slab *self)
{
    char path[FILE_PATH_BYTES];
    err_record first = {0};
    for (uint32_t i = 0; i < self->drive_count; i++)
        err_keep(&first, file_remove_path(self->files[i].path));
    for (uint32_t i = 0; i < self->drive_count; i++) {
        snprintf(path, sizeof path, "%s", self->files[i].path);
        *strrchr(path, '/') = 0; /* it is not empty while it has the slabs of other ranks */
        err_keep(&first, file_remove_empty(path));
    }
    return first.code < 0 ? err_restore(&first) : 0;
}

int slab_remove(slab *self)
{
    err_record first;
    err_save(&first, slab_unname(self));
    slab_close(self);
    return first.code < 0 ? err_restore(&first) : 0;
}

int slab_remove_files(const slab_config *config)
{
    char path[FILE_PATH_BYTES];
    if (config->drive_count > DRIVES_MAX)
        return err_set(-EINVAL, "nvme tier: %u drives; at most %d are possible",
                       config->drive_count, DRIVES_MAX);
    for (uint32_t i = 0; i < config->drive_count; i++) {
        if (config->drives[i].path[0] == 0)
            return err_set(-EINVAL, "drive %u of the nvme tier has an empty path", i);
        TRY(tieri_slab_file_path(config, i, path));
    }
    err_record first = {0};
    for (uint32_t i = 0; i < config->drive_count; i++) {
        int rc = tieri_slab_file_path(config, i, path);
        err_keep(&first, rc < 0 ? rc : file_remove_path(path));
    }
    /* Two drives may share a directory: it is empty only when all files are gone. */
    for (uint32_t i = 0; i < config->drive_count; i++) {
        int rc = tieri_slab_directory(config, i, path);
        err_keep(&first, rc < 0 ? rc : file_remove_empty(path));
    }
    return first.code < 0 ? err_restore(&first) : 0;
}

int slab_sync(slab *self)
{
    int rc = 0;
    err_record first = {0};
    for (uint32_t i = 0; i < self->drive_count; i++) {
        if (fdatasync(self->files[i].fd) != 0 && rc == 0) {
            rc = err_errno(errno,
                           "fdatasync of the slab %s: what was written since the last commit "
                           "may be lost",
                           self->files[i].path);
            err_save(&first, rc);
        }
    }
    return rc < 0 ? err_restore(&first) : 0;
}
