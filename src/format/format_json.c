/* See format_json.h. */
#include "format/format_json.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/progress.h"
#include "base/size.h"

const char *format_show(const char *text, char out[FORMAT_SHOWN_BYTES])
{
    size_t used = 0, most = FORMAT_SHOWN_BYTES - sizeof "...";
    while (text[used] && used < most) {
        unsigned char byte = (unsigned char)text[used];
        out[used++] = byte < ' ' || byte == 0x7f ? '?' : (char)byte;
    }
    if (text[used]) { /* not within a character */
        while (used > 0 && ((unsigned char)text[used] & 0xc0u) == 0x80u)
            used--;
        memcpy(out + used, "...", 3);
        used += 3;
    }
    out[used] = '\0';
    return out;
}

/* Depth and number of values, without memory: what is in strings does not count. */
static int check_limits(const char *path, const char *text, uint64_t text_bytes,
                        const format_json_limits *limits)
{
    uint64_t values = 0;
    uint32_t depth = 0;
    bool is_text = false;
    for (uint64_t i = 0; i < text_bytes; i++) {
        char byte = text[i];
        if (is_text) {
            i += byte == '\\';
            is_text = byte != '"';
            continue;
        }
        is_text = byte == '"';
        if (byte == '{' || byte == '[')
            depth++;
        else if ((byte == '}' || byte == ']') && depth > 0)
            depth--;
        values += byte == '{' || byte == '[' || byte == ',';
        if (depth > limits->depth_max)
            return err_set(ERR_INPUT,
                           "%s: its JSON is nested more than %" PRIu32 " deep at byte %" PRIu64,
                           path, limits->depth_max, i);
        if (values > limits->values_max)
            return err_set(ERR_INPUT, "%s: its JSON has more than %" PRIu64 " values", path,
                           limits->values_max);
    }
    return 0;
}

int format_json_parse(const char *path, const char *text, uint64_t text_bytes,
                      const format_json_limits *limits, json_t **out)
{
    *out = NULL;
    if (text_bytes > limits->bytes_max)
        return err_set(ERR_INPUT,
                       "%s: %" PRIu64 " bytes of JSON are more than the %" PRIu64
                       " that are possible",
                       path, text_bytes, limits->bytes_max);
    TRY(check_limits(path, text, text_bytes, limits));
    json_error_t error;
    json_t *doc = json_loadb(text, text_bytes, JSON_REJECT_DUPLICATES, &error);
    char shown[FORMAT_SHOWN_BYTES];
    if (!doc)
        return err_set(ERR_INPUT, "%s: no JSON, or not as it is allowed here: %s, at byte %d", path,
                       format_show(error.text, shown), error.position);
    if (!json_is_object(doc)) {
        json_decref(doc);
        return err_set(ERR_INPUT, "%s: its JSON is no object", path);
    }
    *out = doc;
    return 0;
}

int format_open_file(const char *path, int *fd, uint64_t *file_bytes)
{
    struct stat status;
    *file_bytes = 0;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* of a pipe that nobody writes, too */
    if (*fd < 0)
        return err_set(ERR_INPUT, "cannot open %s: %s", path, strerror(errno));
    int rc = 0;
    if (fstat(*fd, &status) != 0)
        rc = err_errno(errno, "cannot look at %s", path);
    else if (!S_ISREG(status.st_mode))
        rc = err_set(ERR_INPUT, "%s is no regular file", path);
    else
        *file_bytes = (uint64_t)status.st_size;
    if (rc < 0) {
        close(*fd);
        *fd = -1;
    }
    return rc;
}

static int read_whole(const char *path, int fd, char *text, uint64_t text_bytes)
{
    for (uint64_t at = 0; at < text_bytes;) {
        ssize_t got = pread(fd, text + at, text_bytes - at, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_errno(errno, "cannot read %s", path);
        if (got == 0)
            return err_set(ERR_INPUT, "%s has become shorter while it was read", path);
        at += (uint64_t)got;
        progress_note();
    }
    return 0;
}

int format_read_file(const char *path, uint64_t bytes_max, char **text, uint64_t *text_bytes)
{
    int fd;
    *text = NULL;
    TRY(format_open_file(path, &fd, text_bytes));
    int rc = 0;
    if (*text_bytes > bytes_max)
        rc =
            err_set(ERR_INPUT,
                    "%s has %" PRIu64 " bytes, more than the %" PRIu64 " that such a file can have",
                    path, *text_bytes, bytes_max);
    if (rc == 0 && !(*text = mem_alloc(*text_bytes + 1, 1, "text of a file")))
        rc = -ENOMEM;
    if (rc == 0)
        rc = read_whole(path, fd, *text, *text_bytes);
    close(fd);
    if (rc < 0) {
        mem_free(*text);
        *text = NULL;
    }
    return rc;
}

int format_json_read(const char *path, const format_json_limits *limits, json_t **out)
{
    char *text;
    uint64_t text_bytes;
    *out = NULL;
    TRY(format_read_file(path, limits->bytes_max, &text, &text_bytes));
    int rc = format_json_parse(path, text, text_bytes, limits, out);
    mem_free(text);
    return rc;
}

int format_sync_parent(const char *path)
{
    char parent[PATH_MAX];
    int length = snprintf(parent, sizeof parent, "%s", path);
    if (length < 0 || (size_t)length >= sizeof parent)
        return err_set(ERR_INPUT, "the path %.100s... is longer than %d bytes", path, PATH_MAX - 1);
    char *slash = strrchr(parent, '/');
    if (slash)
        slash[slash == parent] = '\0'; /* "/" is its own parent */
    int fd = open(slash ? parent : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(errno, "cannot open the directory of %s", path);
    int rc = 0;
    if (fsync(fd) < 0 && errno != EINVAL) /* file systems that keep no entries to be synced */
        rc = err_errno(errno, "cannot make %s durable", path);
    close(fd);
    return rc;
}

static int write_whole(int fd, const char *path, const char *data, uint64_t size_bytes)
{
    for (uint64_t at = 0; at < size_bytes;) {
        ssize_t put = write(fd, data + at, size_bytes - at);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return err_errno(errno, "cannot write %s", path);
        at += (uint64_t)put;
    }
    return fsync(fd) < 0 ? err_errno(errno, "cannot write %s", path) : 0;
}

int format_write_file(const char *path, const void *data, uint64_t size_bytes)
{
    char partial[PATH_MAX];
    int length = snprintf(partial, sizeof partial, "%s.partial", path);
    if (length < 0 || (size_t)length >= sizeof partial)
        return err_set(ERR_INPUT, "the path %.100s... is longer than %d bytes", path,
                       PATH_MAX - 10);
    int fd = open(partial, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return err_errno(errno, "cannot write %s", partial);
    int rc = write_whole(fd, path, data, size_bytes);
    if (close(fd) < 0 && rc == 0)
        rc = err_errno(errno, "cannot write %s", path);
    if (rc == 0 && rename(partial, path) != 0)
        rc = err_errno(errno, "cannot write %s", path);
    if (rc == 0)
        return format_sync_parent(path);
    unlink(partial);
    return rc;
}
