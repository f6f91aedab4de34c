/* Files and directories: read with a limit, written whole or not at all, made durable.
 *
 * An atomic write has these steps. If one fails, the file at `path` is the old one and the
 * temporary is removed:
 *
 *   a new "<path>.partial" -> its bytes -> fsync -> rename to `path` -> fsync of the directory
 *
 * Only a failure of the last step leaves the new file at `path`: it is whole, but a loss of power
 * may undo it. The manifest's slots and the slabs have their own order of writes (tiers/FORMAT.md).
 *
 * Any thread. Only file_read and file_read_any allocate (mem_alloc), so that a run can write while
 * memory is sealed; file_write and file_write_with use stdio's own buffer. Errors name the path,
 * except those of open files. */
#ifndef SLUICE_BASE_FILE_H
#define SLUICE_BASE_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"

enum { FILE_PATH_BYTES = 4096 }; /* a path with its zero, as PATH_MAX */

/* ---- paths ---- */

/* out = "<directory>/<name>". `name` may hold slashes. If the result does not fit, returns
 * ERR_INPUT and *out is empty. */
int file_join(char *out, size_t out_bytes, const char *directory, const char *name) MUST_CHECK;

/* ---- reading ---- */

/* Opens a regular file for reading. ERR_INPUT for other kinds, which it names: directories, pipes,
 * devices, sockets. It does not wait for the writer of a pipe. */
int file_open(const char *path, int *fd, uint64_t *file_bytes) MUST_CHECK;

/* Reads a whole regular file of at most bytes_max bytes and puts a zero byte after the text. The
 * caller frees *text with mem_free. ERR_INPUT if the file cannot be opened or read, is longer, or
 * becomes shorter meanwhile; -ENOMEM. */
int file_read(const char *path, uint64_t bytes_max, char **text, uint64_t *text_bytes) MUST_CHECK;

/* The same for a small text that a user names and that need not be a regular file: "-" is standard
 * input, and pipes and devices are read to their end, so that a shell's <(...) works. It waits for
 * the writers of a pipe; a pipe that has none, or that gives nothing, is ERR_INPUT. */
int file_read_any(const char *path, uint64_t bytes_max, char **text,
                  uint64_t *text_bytes) MUST_CHECK;

/* The name of such a path for messages: "standard input" for "-", else the path. */
const char *file_name_any(const char *path);

/* ---- open files ----
 *
 * These functions repeat after EINTR and short transfers, each of which counts as progress
 * (progress.h). They set no text, since only the caller knows the file. */

/* Reads `bytes` from `offset` on, or those up to the file's end. Returns their number or -errno. */
int64_t file_read_at(int fd, uint64_t offset, void *data, uint64_t bytes) MUST_CHECK;

enum { FILE_CURRENT = -1 }; /* the offset at which the file stands; it moves on */

/* Writes all bytes. -errno; -EIO if the file takes none. */
int file_write_at(int fd, int64_t offset, const void *data, uint64_t bytes) MUST_CHECK;

/* Adds the bytes at the end. On failure the file is truncated to its earlier length, if that
 * succeeds. -errno. */
int file_append(int fd, const void *data, uint64_t bytes) MUST_CHECK;

/* ---- permissions of what is made ----
 *
 * A `mode` is the permissions of a file, as chmod takes them, such as 0640. A directory also gets x
 * where it gets r. They do not depend on the umask, and they are for what is new: an existing file
 * or directory keeps its own, and so does a file that is replaced. If the file system keeps no
 * permissions, there is one warning. */
enum file_mode {
    FILE_PRIVATE = 0600,    /* for the owner alone; so is 0 */
    FILE_SHARED = -1,       /* as other programs do it: the umask decides */
    FILE_AS_DIRECTORY = -2, /* those of the directory that it lies in; only for files */
};

/* The permissions of an existing file, as a mode; FILE_PRIVATE if there is none. */
int file_mode_of(const char *path);

/* ---- writing ---- */

/* Opens a file for writing, with `flags` of open(2), and makes it if it is missing; with O_EXCL it
 * must be missing. Does not follow a symbolic link at the last name. On failure *fd is -1. -errno
 * (-ELOOP: it is a link). */
int file_create(const char *path, int flags, int mode, int *fd) MUST_CHECK;

/* Writes the file atomically. -errno; ERR_INPUT for a path that is too long. */
int file_write(const char *path, int mode, const void *data, uint64_t data_bytes) MUST_CHECK;

/* The same, but `fill` writes the bytes to `out`. `fill` returns 0, or a negative code with its
 * text set: that ends the write and becomes the result. A positive result is not allowed. `fill`
 * need not check `out` for errors. But the error names the last thing that failed in it: other work
 * that may fail comes before its writes. */
int file_write_with(const char *path, int mode, int (*fill)(void *user, FILE *out),
                    void *user) MUST_CHECK;

/* Begins an atomic write: makes the new file "<path>.partial" and opens it for reading and writing.
 * A file of that name, which a killed process may have left, is removed first. -errno; ERR_INPUT
 * for a path that is too long. */
int file_open_temporary(const char *path, int mode, char temporary[FILE_PATH_BYTES],
                        int *fd) MUST_CHECK;

/* The last steps of an atomic write: fsync, close, rename, fsync of the directory. *fd is -1
 * afterwards. On failure the temporary is removed. -errno. */
int file_publish(int *fd, const char *temporary, const char *path) MUST_CHECK;

/* Removes a file; file_remove removes <directory>/<name>. A missing file is no error. -errno. */
int file_remove_path(const char *path) MUST_CHECK;
int file_remove(const char *directory, const char *name) MUST_CHECK;

/* ---- directories ---- */

/* Makes the entries of a directory durable. A file system that has no entries to sync answers
 * EINVAL, which counts as success. -errno. */
int file_sync_directory(const char *directory) MUST_CHECK;

/* Makes the entry of `path` in its directory durable. If the directory may be written but not read,
 * it cannot be opened: then the whole file system is synced through `path` itself. -errno. */
int file_sync_parent(const char *path) MUST_CHECK;

/* Makes the directory and its missing parents, each entry durable. *made_count (NULL is allowed)
 * says how many were made. On failure those that it made are removed again. -errno. */
int file_make_directories(const char *directory, int mode, uint32_t *made_count) MUST_CHECK;

/* Removes the directory and those of its parents that file_make_directories made, as far as they
 * are empty. */
void file_unmake_directories(const char *directory, uint32_t made_count);

/* Removes the directory if it is empty. That there is none, that it holds something, or that
 * something is mounted there, is no error. -errno. */
int file_remove_empty(const char *directory) MUST_CHECK;

/* Sets the error that a directory's entries cannot be seen, for the reason in errno. ERR_INPUT. */
int file_cannot_look_into(const char *directory) MUST_CHECK;

#endif
