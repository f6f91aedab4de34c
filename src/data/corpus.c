/* Files as one sequence of byte tokens. See corpus.h.
 *
 * One thread. Everything is allocated in corpus_open; a read allocates nothing and goes by pread
 * into the caller's memory, where the bytes are widened in place. */
#include "data/corpus.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/size.h"

enum { BYTE_VOCAB = 256 };

struct corpus_file {
    int fd; /* -1 while not open */
    char *path;
    uint64_t token_begin, token_count; /* in the whole sequence */
};

struct corpus {
    struct corpus_file *files; /* [file_count] */
    uint32_t file_count;
    uint64_t token_count;
};

static int file_open(struct corpus_file *file, const char *path, uint64_t token_begin)
{
    file->path = mem_string(path, "corpus path");
    if (!file->path)
        return -ENOMEM;
    /* Not blocking: opening a pipe would wait for its writer before it can be refused. */
    file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file->fd < 0)
        return err_set(ERR_INPUT, "cannot open the token file %s: %s", path, strerror(errno));
    struct stat info;
    if (fstat(file->fd, &info) < 0)
        return err_set(ERR_INPUT, "cannot examine the token file %s: %s", path, strerror(errno));
    if (S_ISDIR(info.st_mode))
        return err_set(ERR_INPUT, "%s is a directory; name the text files in it", path);
    if (!S_ISREG(info.st_mode))
        return err_set(ERR_INPUT, "%s is not a regular file; windows are read in random order",
                       path);
    if (info.st_size == 0)
        return err_set(ERR_INPUT, "the token file %s is empty", path);
    file->token_begin = token_begin;
    file->token_count = (uint64_t)info.st_size;
    return 0;
}

int corpus_open(const char *const *paths, uint32_t path_count, corpus **out)
{
    *out = NULL;
    if (path_count == 0)
        return err_set(ERR_INPUT, "the data block names no file; give at least one text file");
    corpus *self = mem_alloc(1, sizeof *self, "corpus");
    if (!self)
        return -ENOMEM;
    int rc = -ENOMEM;
    self->files = mem_alloc(path_count, sizeof *self->files, "corpus files");
    if (!self->files)
        goto failed;
    self->file_count = path_count;
    for (uint32_t i = 0; i < path_count; i++)
        self->files[i].fd = -1;
    for (uint32_t i = 0; i < path_count; i++) {
        TRY_GOTO(rc, file_open(&self->files[i], paths[i], self->token_count), failed);
        TRY_GOTO(rc, size_add(self->token_count, self->files[i].token_count, &self->token_count),
                 failed);
    }
    *out = self;
    return 0;
failed:
    corpus_close(self);
    return rc;
}

void corpus_close(corpus *self)
{
    if (!self)
        return;
    for (uint32_t i = 0; i < self->file_count; i++) {
        if (self->files[i].fd >= 0)
            close(self->files[i].fd);
        mem_free(self->files[i].path);
    }
    mem_free(self->files);
    mem_free(self);
}

uint64_t corpus_token_count(const corpus *self)
{
    return self->token_count;
}

uint64_t corpus_vocab(const corpus *self)
{
    (void)self;
    return BYTE_VOCAB;
}

static int file_read(const struct corpus_file *file, uint64_t begin, uint64_t count,
                     unsigned char *bytes)
{
    uint64_t done = 0;
    while (done < count) {
        ssize_t got = pread(file->fd, bytes + done, count - done, (off_t)(begin + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_errno(errno, "cannot read %llu bytes at %llu of the token file %s",
                             (unsigned long long)(count - done), (unsigned long long)(begin + done),
                             file->path);
        if (got == 0)
            return err_set(ERR_INPUT,
                           "the token file %s ends at byte %llu of the %llu it had when it was "
                           "opened; it must not change during a run",
                           file->path, (unsigned long long)(begin + done),
                           (unsigned long long)file->token_count);
        done += (uint64_t)got;
    }
    return 0;
}

/* The file that holds a token: binary search, since a corpus may be thousands of files. */
static uint32_t file_of(const corpus *self, uint64_t token)
{
    uint32_t low = 0, high = self->file_count - 1;
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        if (self->files[middle].token_begin <= token)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

int corpus_read(corpus *self, uint64_t begin, uint64_t count, int32_t *tokens)
{
    if (count == 0)
        return 0;
    if (begin > self->token_count || count > self->token_count - begin)
        return err_set(-EINVAL, "tokens %llu to %llu were asked of a corpus of %llu",
                       (unsigned long long)begin, (unsigned long long)(begin + count),
                       (unsigned long long)self->token_count);
    /* The bytes go to the last quarter of `tokens`; widening from the front never overtakes them:
     * token i ends at byte 4i + 4, byte i + 1 lies at 3 count + i + 1, and i < count. */
    unsigned char *bytes = (unsigned char *)tokens + 3 * count;
    uint64_t done = 0;
    for (uint32_t i = file_of(self, begin); done < count; i++) {
        const struct corpus_file *file = &self->files[i];
        uint64_t file_begin = begin + done - file->token_begin;
        uint64_t part = size_min(count - done, file->token_count - file_begin);
        TRY(file_read(file, file_begin, part, bytes + done));
        done += part;
    }
    for (uint64_t i = 0; i < count; i++) {
        int32_t token = bytes[i];
        memcpy((char *)tokens + 4 * i, &token, sizeof token);
    }
    return 0;
}
