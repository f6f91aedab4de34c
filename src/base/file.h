/* Whole files and directories: read with a limit, written whole or not at all, made durable.
 *
 * An atomic write goes this way; after a failure the file at `path` is the old one, and the
 * temporary is gone:
 *
 *   "<path>.partial" -> its bytes -> fsync -> rename to `path` -> fsync of the directory
 *
 * Only a failure of the last step leaves the new file at `path`: it is whole, and a loss of power
 * may undo it. The manifest's slots and the slabs have an order of writes of their own
 * (tiers/FORMAT.md) and share only the calls for directories.
 *
 * Any thread. Only file_read and file_read_fd allocate (mem_alloc), so that a run can write while
 * memory is sealed; file_write and file_write_with use stdio's own buffer. Errors name the path. */
#ifndef SLUICE_BASE_FILE_H
#define SLUICE_BASE_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"

enum { FILE_PATH_BYTES = 4096 }; /* a path with its zero, as PATH_MAX */

/* ---- paths ---- */

/* out = "<directory>/<name>". `name` may hold slashes. ERR_INPUT, with *out empty, where the result
 * has no room. */
int file_join(char *out, size_t out_bytes, const char *directory, const char *name) MUST_CHECK;

/* ---- reading ---- */

/* Opens a regular file to be read; a pipe without a writer is refused and not waited for.
 * ERR_INPUT. */
int file_open(const char *path, int *fd, uint64_t *file_bytes) MUST_CHECK;

/* Reads a whole regular file of at most bytes_max bytes; a zero byte follows the text. The caller
 * ends *text with mem_free. ERR_INPUT where it cannot be opened or read, is longer, or becomes
 * shorter meanwhile; -ENOMEM. */
int file_read(const char *path, uint64_t bytes_max, char **text, uint64_t *text_bytes) MUST_CHECK;

/* The same from an open file or pipe, from its position to its end. `name` is for messages. Does
 * not close fd. */
int file_read_fd(int fd, const char *name, uint64_t bytes_max, char **text,
                 uint64_t *text_bytes) MUST_CHECK;

/* ---- writing ---- */

/* Writes the file atomically. -errno; ERR_INPUT for a path that is too long. */
int file_write(const char *path, const void *data, uint64_t data_bytes) MUST_CHECK;

/* The same, with the bytes from `fill`, which writes to `out`. A negative result of `fill` (its
 * text set) ends the write and becomes the result; `fill` need not look for errors of the stream.
 * Results of `fill` above 0 are not allowed. */
int file_write_with(const char *path, int (*fill)(void *user, FILE *out), void *user) MUST_CHECK;

/* out = "<path>.partial", the temporary of an atomic write. ERR_INPUT where it has no room. */
int file_name_temporary(char out[FILE_PATH_BYTES], const char *path) MUST_CHECK;

/* The end of an atomic write whose temporary the caller opened and filled: fsync, close, rename,
 * fsync of the directory. *fd is -1 afterwards; on failure the temporary is gone. -errno. */
int file_publish(int *fd, const char *temporary, const char *path) MUST_CHECK;

/* ---- directories ---- */

/* Makes the entries of a directory durable. EINVAL is the answer of file systems that keep no
 * entries to be synced, and counts as success. -errno. */
int file_sync_directory(const char *directory) MUST_CHECK;

/* Makes the entry of `path` in its directory durable. A directory that may be written and not read
 * cannot be opened: then the whole file system is synced through `path` itself. -errno. */
int file_sync_parent(const char *path) MUST_CHECK;

/* Makes the directory and those above it that are missing, each entry durable. *made_count (NULL is
 * allowed) says how many were made; none is left after a failure. -errno. */
int file_make_directories(const char *directory, uint32_t *made_count) MUST_CHECK;

/* Removes the directory and those above it that file_make_directories made, as far as they are
 * empty. */
void file_unmake_directories(const char *directory, uint32_t made_count);

#endif
