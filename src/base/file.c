/* Whole files and directories. See file.h. */
#include "base/file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/progress.h"

static_assert(FILE_PATH_BYTES >= PATH_MAX, "every path that the system takes has room");

enum { PIECE_BYTES = 64 * 1024 }; /* first room for a text of unknown length */

/* ---- paths ---- */

int file_join(char *out, size_t out_bytes, const char *directory, const char *name)
{
    assert(out_bytes > 0);
    int length = snprintf(out, out_bytes, "%s/%s", directory, name);
    if (length >= 0 && (size_t)length < out_bytes)
        return 0;
    out[0] = '\0';
    return err_set(ERR_INPUT, "the path %.100s/%.100s is longer than %zu bytes", directory, name,
                   out_bytes - 1);
}

static int copy_path(char out[FILE_PATH_BYTES], const char *path)
{
    int length = snprintf(out, FILE_PATH_BYTES, "%s", path);
    if (length >= 0 && length < FILE_PATH_BYTES)
        return 0;
    return err_set(ERR_INPUT, "the path %.100s... is longer than %d bytes", path,
                   FILE_PATH_BYTES - 1);
}

/* "/a//b/" becomes "/a". False, with the path unchanged, if it has no parent part. */
static bool cut_last_part(char *path)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    while (length > 0 && path[length - 1] != '/')
        length--;
    while (length > 1 && path[length - 1] == '/')
        length--;
    if (length == 0 || strcmp(path, "/") == 0)
        return false;
    path[length] = '\0';
    return true;
}

/* The directory that the path lies in. */
static int name_parent(const char *path, char parent[FILE_PATH_BYTES])
{
    TRY(copy_path(parent, path));
    if (!cut_last_part(parent))
        snprintf(parent, FILE_PATH_BYTES, "%s", path[0] == '/' ? "/" : ".");
    return 0;
}

/* ---- permissions ---- */

enum { PERMISSIONS = 0777, FILE_PERMISSIONS = 0666 };

int file_mode_of(const char *path)
{
    struct stat status;
    if (stat(path, &status) != 0)
        return FILE_PRIVATE;
    return (int)(status.st_mode & FILE_PERMISSIONS) | FILE_PRIVATE;
}

/* Gives a new file or directory its permissions if the umask kept some back. The bit that makes
 * files take their group from the directory stays. */
static void set_permissions(int fd, const char *path, mode_t wanted)
{
    static atomic_bool warned;
    struct stat status;
    if (fstat(fd, &status) != 0 || (status.st_mode & PERMISSIONS) == wanted)
        return;
    if (fchmod(fd, wanted | (status.st_mode & S_ISGID)) != 0 && !atomic_exchange(&warned, true))
        log_warn("%s cannot get the permissions %04o (%s): who may read it is up to its file "
                 "system",
                 path, (unsigned)wanted, strerror(errno));
}

/* ---- reading ---- */

/* Names a kind of file that is not regular. */
static const char *name_kind(mode_t mode)
{
    return S_ISDIR(mode)    ? "a directory"
           : S_ISFIFO(mode) ? "a pipe"
           : S_ISSOCK(mode) ? "a socket"
                            : "a device";
}

/* Opens a file of any kind for reading, without waiting for the writer of a pipe. */
static int open_any(const char *path, int *fd, struct stat *status)
{
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0 && errno == ENXIO)
        return err_set(ERR_INPUT, "%s is a socket or an absent device, no regular file", path);
    if (*fd < 0)
        return err_set(ERR_INPUT, "cannot open %s: %s", path, strerror(errno));
    if (fstat(*fd, status) == 0)
        return 0;
    int rc = err_set(ERR_INPUT, "cannot examine %s: %s", path, strerror(errno));
    close(*fd);
    *fd = -1;
    return rc;
}

int file_open(const char *path, int *fd, uint64_t *file_bytes)
{
    struct stat status;
    *file_bytes = 0;
    TRY(open_any(path, fd, &status));
    if (S_ISREG(status.st_mode)) {
        *file_bytes = (uint64_t)status.st_size;
        return 0;
    }
    close(*fd);
    *fd = -1;
    return err_set(ERR_INPUT, "%s is %s, no regular file", path, name_kind(status.st_mode));
}

/* Reads to the end into a buffer that at first has room for `room_bytes`. */
static int read_to_end(int fd, const char *name, uint64_t room_bytes, uint64_t bytes_max,
                       char **text, uint64_t *text_bytes)
{
    uint64_t used = 0, room = 0;
    for (;;) {
        if (used == room) { /* beyond the text: room for the zero byte, and to see the end */
            room = room == 0 ? room_bytes : 2 * room;
            char *larger = mem_resize(*text, room, 1, "text of a file");
            if (!larger)
                return -ENOMEM;
            *text = larger;
        }
        ssize_t got = read(fd, *text + used, room - used);
        struct pollfd waiter = {.fd = fd, .events = POLLIN};
        if (got < 0 && errno == EAGAIN && (poll(&waiter, 1, -1) >= 0 || errno == EINTR))
            continue; /* the writer of a pipe is at work */
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_set(ERR_INPUT, "%s: cannot read: %s", name, strerror(errno));
        if (got == 0)
            break;
        used += (uint64_t)got;
        if (used > bytes_max)
            return err_set(ERR_INPUT,
                           "%s has more than the %" PRIu64 " bytes that such a file can have", name,
                           bytes_max);
        progress_note();
    }
    assert(used < room);
    (*text)[used] = '\0';
    *text_bytes = used;
    return 0;
}

/* Frees the text if the read failed. */
static int end_read(int rc, char **text, uint64_t *text_bytes)
{
    if (rc < 0) {
        mem_free(*text);
        *text = NULL;
        *text_bytes = 0;
    }
    return rc;
}

const char *file_name_any(const char *path)
{
    return strcmp(path, "-") == 0 ? "standard input" : path;
}

int file_read_any(const char *path, uint64_t bytes_max, char **text, uint64_t *text_bytes)
{
    const char *name = file_name_any(path);
    struct stat status = {.st_mode = S_IFCHR};
    int fd = STDIN_FILENO;
    *text = NULL;
    *text_bytes = 0;
    if (name == path)
        TRY(open_any(path, &fd, &status));
    int rc = 0;
    if (S_ISDIR(status.st_mode))
        rc = err_set(ERR_INPUT, "%s is a directory, no file", path);
    if (rc == 0)
        rc = read_to_end(fd, name, PIECE_BYTES, bytes_max, text, text_bytes);
    if (rc == 0 && *text_bytes == 0 && !S_ISREG(status.st_mode))
        rc = err_set(ERR_INPUT, "%s gives no text%s", name,
                     S_ISFIFO(status.st_mode) ? ": it is a pipe that nobody writes to, or whose "
                                                "writer ended without a word"
                                              : "");
    if (fd != STDIN_FILENO)
        close(fd);
    return end_read(rc, text, text_bytes);
}

int file_read(const char *path, uint64_t bytes_max, char **text, uint64_t *text_bytes)
{
    int fd;
    uint64_t file_bytes;
    *text = NULL;
    *text_bytes = 0;
    TRY(file_open(path, &fd, &file_bytes));
    int rc = 0;
    if (file_bytes > bytes_max)
        rc =
            err_set(ERR_INPUT,
                    "%s has %" PRIu64 " bytes, more than the %" PRIu64 " that such a file can have",
                    path, file_bytes, bytes_max);
    if (rc == 0)
        rc = read_to_end(fd, path, file_bytes + 1, bytes_max, text, text_bytes);
    if (rc == 0 && *text_bytes < file_bytes)
        rc = err_set(ERR_INPUT, "%s has become shorter while it was read", path);
    close(fd);
    return end_read(rc, text, text_bytes);
}

/* ---- open files ---- */

int64_t file_read_at(int fd, uint64_t offset, void *data, uint64_t bytes)
{
    uint64_t done = 0;
    while (done < bytes) {
        ssize_t got = pread(fd, (char *)data + done, bytes - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -errno;
        if (got == 0)
            break;
        done += (uint64_t)got;
        progress_note();
    }
    return (int64_t)done;
}

int file_write_at(int fd, int64_t offset, const void *data, uint64_t bytes)
{
    for (uint64_t done = 0; done < bytes;) {
        const char *from = (const char *)data + done;
        ssize_t put = offset == FILE_CURRENT ? write(fd, from, bytes - done)
                                             : pwrite(fd, from, bytes - done, offset + (off_t)done);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return put < 0 ? -errno : -EIO;
        done += (uint64_t)put;
        progress_note();
    }
    return 0;
}

int file_append(int fd, const void *data, uint64_t bytes)
{
    off_t begin = lseek(fd, 0, SEEK_END);
    int rc = file_write_at(fd, FILE_CURRENT, data, bytes);
    if (rc < 0 && begin >= 0 && ftruncate(fd, begin) < 0)
        return rc; /* a part of the bytes stays */
    return rc;
}

/* ---- writing ---- */

/* Opens a new file. -errno without a text. */
static int create_new(const char *path, int flags, int mode)
{
    char parent[FILE_PATH_BYTES];
    if (mode == FILE_AS_DIRECTORY) {
        if (name_parent(path, parent) < 0)
            return -ENAMETOOLONG;
        mode = file_mode_of(parent);
    }
    mode_t wanted = mode == FILE_SHARED ? 0666 : mode == 0 ? FILE_PRIVATE : (mode_t)mode;
    int fd = open(path, flags | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, wanted);
    if (fd < 0)
        return -errno;
    if (mode != FILE_SHARED)
        set_permissions(fd, path, wanted);
    return fd;
}

int file_create(const char *path, int flags, int mode, int *fd)
{
    int opened = create_new(path, flags, mode);
    if (opened == -EEXIST && !(flags & O_EXCL)) {
        opened = open(path, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (opened < 0)
            opened = -errno;
    }
    *fd = opened < 0 ? -1 : opened;
    if (opened == -ELOOP)
        return err_set(-ELOOP,
                       "%s is a symbolic link, and the file that it leads to is not written: "
                       "remove the link; a whole directory may be a link",
                       path);
    return opened < 0 ? err_errno(-opened, "cannot write %s", path) : 0;
}

int file_open_temporary(const char *path, int mode, char temporary[FILE_PATH_BYTES], int *fd)
{
    static const char suffix[] = ".partial";
    struct stat status;
    int length = snprintf(temporary, FILE_PATH_BYTES, "%s%s", path, suffix);
    *fd = -1;
    if (length < 0 || length >= FILE_PATH_BYTES)
        return err_set(ERR_INPUT, "the path %.100s... is longer than %d bytes", path,
                       (int)(FILE_PATH_BYTES - sizeof suffix));
    if (lstat(path, &status) == 0 && S_ISREG(status.st_mode))
        mode = (int)(status.st_mode & PERMISSIONS);
    unlink(temporary); /* what stays is found by O_EXCL */
    return file_create(temporary, O_RDWR | O_EXCL, mode, fd);
}

/* The last steps of an atomic write whose temporary is closed. If rc is 0: rename and sync; else
 * the temporary is removed. */
static int put_in_place(int rc, const char *temporary, const char *path)
{
    if (rc == 0 && rename(temporary, path) != 0)
        rc = err_errno(errno, "cannot rename %s to %s", temporary, path);
    if (rc == 0)
        return file_sync_parent(path);
    unlink(temporary);
    return rc;
}

int file_publish(int *fd, const char *temporary, const char *path)
{
    assert(*fd >= 0);
    int rc = fsync(*fd) == 0 ? 0 : err_errno(errno, "cannot write %s", path);
    if (close(*fd) != 0 && rc == 0)
        rc = err_errno(errno, "cannot write %s", path);
    *fd = -1;
    return put_in_place(rc, temporary, path);
}

int file_write_with(const char *path, int mode, int (*fill)(void *user, FILE *out), void *user)
{
    char temporary[FILE_PATH_BYTES];
    int fd;
    TRY(file_open_temporary(path, mode, temporary, &fd));
    FILE *out = fdopen(fd, "w");
    if (!out) {
        int failed = errno;
        close(fd);
        unlink(temporary);
        return err_errno(failed, "cannot write %s", temporary);
    }
    errno = 0;
    int rc = fill(user, out);
    assert(rc <= 0);
    /* A stream keeps only that a write failed; errno is that of the write, unless `fill` failed at
     * something else after it. */
    if (rc == 0 && (ferror(out) || fflush(out) != 0 || fsync(fileno(out)) != 0))
        rc = err_errno(errno ? errno : EIO, "cannot write %s", path);
    if (fclose(out) != 0 && rc == 0)
        rc = err_errno(errno, "cannot write %s", path);
    return put_in_place(rc, temporary, path);
}

struct bytes {
    const void *data;
    uint64_t count;
};

static int write_bytes(void *user, FILE *out)
{
    const struct bytes *self = user;
    fwrite(self->data, 1, self->count, out);
    return 0;
}

int file_write(const char *path, int mode, const void *data, uint64_t data_bytes)
{
    return file_write_with(path, mode, write_bytes, &(struct bytes){data, data_bytes});
}

int file_remove_path(const char *path)
{
    if (unlink(path) == 0 || errno == ENOENT || errno == ENOTDIR)
        return 0;
    return err_errno(errno, "cannot remove %s", path);
}

int file_remove(const char *directory, const char *name)
{
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, sizeof path, directory, name));
    return file_remove_path(path);
}

/* ---- directories ---- */

int file_sync_directory(const char *directory)
{
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(errno, "cannot open the directory %s to sync it", directory);
    int rc = 0;
    if (fsync(fd) != 0 && errno != EINVAL)
        rc = err_errno(errno, "cannot make the directory %s durable", directory);
    close(fd);
    return rc;
}

int file_sync_parent(const char *path)
{
    char parent[FILE_PATH_BYTES];
    TRY(name_parent(path, parent));
    int rc = file_sync_directory(parent);
    if (rc != -EACCES)
        return rc;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return rc;
    rc = syncfs(fd) == 0 ? 0 : err_errno(errno, "cannot sync the file system of %s", path);
    close(fd);
    return rc;
}

/* Makes one directory. If it was missing, *made_count grows by one. */
static int make_directory(const char *path, int mode, uint32_t *made_count)
{
    mode_t wanted = mode == 0 ? FILE_PRIVATE : (mode_t)mode;
    wanted = mode == FILE_SHARED ? 0777 : wanted | (wanted & 0444) >> 2;
    if (mkdir(path, wanted) != 0)
        return errno == EEXIST ? 0 : err_errno(errno, "cannot make the directory %s", path);
    ++*made_count;
    int fd = mode == FILE_SHARED ? -1 : open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0) {
        set_permissions(fd, path, wanted);
        close(fd);
    }
    return file_sync_parent(path);
}

int file_make_directories(const char *directory, int mode, uint32_t *made_count)
{
    char path[FILE_PATH_BYTES];
    uint32_t count = 0;
    if (made_count)
        *made_count = 0;
    TRY(copy_path(path, directory));
    for (char *at = path; *at != '\0';) {
        at += strspn(at, "/");
        at += strcspn(at, "/");
        char saved = *at;
        *at = '\0';
        uint32_t before = count;
        int rc = make_directory(path, mode, &count);
        if (rc < 0) {
            if (count == before) /* this directory was not made */
                cut_last_part(path);
            file_unmake_directories(path, count);
            return rc;
        }
        *at = saved;
    }
    if (made_count)
        *made_count = count;
    return 0;
}

void file_unmake_directories(const char *directory, uint32_t made_count)
{
    char path[FILE_PATH_BYTES];
    int length = snprintf(path, sizeof path, "%s", directory);
    assert(length >= 0 && (size_t)length < sizeof path);
    while (made_count-- && rmdir(path) == 0 && cut_last_part(path))
        ;
}

int file_remove_empty(const char *directory)
{
    if (rmdir(directory) == 0 || errno == ENOENT || errno == ENOTDIR || errno == ENOTEMPTY ||
        errno == EEXIST || errno == EBUSY)
        return 0;
    return err_errno(errno, "cannot remove the directory %s", directory);
}

int file_cannot_look_into(const char *directory)
{
    return err_set(ERR_INPUT, "cannot look into %s: %s", directory, strerror(errno));
}
