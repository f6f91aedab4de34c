/* Writes and opens the token files of made.h.
 *
 * The writer buffers 1 MiB of tokens. The ends of documents go to a second file without a name,
 * which is appended when all tokens are written. So memory does not grow with the number of
 * documents. */
#include "data/made.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/progress.h"
#include "base/size.h"
#include "data/data_internal.h"

enum {
    HEADER_BYTES = 64,
    VERSION = 1,
    FLAG_MARKS = 1,
    FLAG_BYTES = 2,
    BUFFER_BYTES = 1 << 20,
    ENDS_BUFFERED = 8192,
    VOCAB_OF_2_BYTES = 65536,
};

#define MAGIC "SLUICETK"

struct made_header {
    char magic[8];
    uint32_t version, token_bytes, flags, zero;
    uint64_t key, token_count, document_count, counted, sum;
};
static_assert(sizeof(struct made_header) == HEADER_BYTES &&
                  offsetof(struct made_header, key) == 24 &&
                  offsetof(struct made_header, sum) == 56,
              "made.h");

/* A file that is only appended to. */
struct stream {
    int fd;
    const char *path;
    uint64_t offset, used;
    unsigned char *buffer;
    uint64_t buffer_bytes;
};

struct made_writer {
    char path[PATH_MAX], part[PATH_MAX], ends_path[PATH_MAX];
    made_options options;
    uint32_t token_bytes;
    struct stream tokens, ends;
    uint64_t token_count, document_count, counted, document_end;
};

static int write_all(int fd, const char *path, uint64_t offset, const void *data, uint64_t bytes)
{
    for (uint64_t done = 0; done < bytes;) {
        ssize_t put = pwrite(fd, (const char *)data + done, bytes - done, (off_t)(offset + done));
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return err_errno(errno, "cannot write %llu bytes of tokens to %s",
                             (unsigned long long)(bytes - done), path);
        done += (uint64_t)put;
        progress_note();
    }
    return 0;
}

static int stream_flush(struct stream *self)
{
    TRY(write_all(self->fd, self->path, self->offset, self->buffer, self->used));
    self->offset += self->used;
    self->used = 0;
    return 0;
}

static int stream_add(struct stream *self, const void *data, uint64_t bytes)
{
    if (self->used + bytes > self->buffer_bytes)
        TRY(stream_flush(self));
    memcpy(self->buffer + self->used, data, bytes);
    self->used += bytes;
    return 0;
}

static int stream_open(struct stream *self, const char *path, uint64_t buffer_bytes)
{
    self->path = path;
    self->buffer_bytes = buffer_bytes;
    self->buffer = mem_alloc(buffer_bytes, 1, "tokens to be written");
    if (!self->buffer)
        return -ENOMEM;
    self->fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    return self->fd >= 0 ? 0 : err_errno(errno, "cannot make the token file %s", path);
}

static void stream_close(struct stream *self)
{
    if (self->fd >= 0)
        close(self->fd);
    mem_free(self->buffer);
}

void made_abandon(made_writer *self)
{
    if (!self)
        return;
    if (self->tokens.fd >= 0)
        unlink(self->part);
    stream_close(&self->tokens);
    stream_close(&self->ends);
    mem_free(self);
}

int made_create(const char *path, const made_options *options, made_writer **out)
{
    *out = NULL;
    made_writer *self = mem_alloc(1, sizeof *self, "token file");
    if (!self)
        return -ENOMEM;
    self->tokens.fd = self->ends.fd = -1;
    self->options = *options;
    bool is_short = options->vocab_size <= VOCAB_OF_2_BYTES && !options->has_marks;
    self->token_bytes = is_short ? 2 : 4;
    int rc = 0;
    int length = snprintf(self->path, sizeof self->path, "%s", path);
    if (length < 0 || (size_t)length + sizeof ".part.ends" > sizeof self->path)
        rc = err_set(ERR_INPUT, "the path of the token file %.100s... is too long", path);
    if (rc == 0) {
        snprintf(self->part, sizeof self->part, "%s", self->path);
        strcat(self->part, ".part");
        snprintf(self->ends_path, sizeof self->ends_path, "%s", self->path);
        strcat(self->ends_path, ".part.ends");
        rc = stream_open(&self->ends, self->ends_path, ENDS_BUFFERED * sizeof(uint64_t));
    }
    if (rc == 0) {
        unlink(self->ends_path);
        rc = stream_open(&self->tokens, self->part, BUFFER_BYTES);
        self->tokens.offset = HEADER_BYTES;
    }
    if (rc < 0)
        made_abandon(self);
    else
        *out = self;
    return rc;
}

int made_add(made_writer *self, const uint32_t *tokens, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        uint16_t narrow = (uint16_t)tokens[i];
        self->counted += !(tokens[i] & MADE_UNCOUNTED);
        assert(self->token_bytes == 4 || tokens[i] == narrow);
        TRY(stream_add(&self->tokens, self->token_bytes == 2 ? (const void *)&narrow : &tokens[i],
                       self->token_bytes));
    }
    self->token_count += count;
    return 0;
}

int made_end_document(made_writer *self)
{
    if (self->token_count == self->document_end)
        return 0;
    self->document_end = self->token_count;
    self->document_count++;
    return stream_add(&self->ends, &self->document_end, sizeof self->document_end);
}

/* Appends the list of ends after the tokens, which are padded to a multiple of 8. */
static int append_ends(made_writer *self)
{
    static const unsigned char zeros[8];
    TRY(stream_add(&self->tokens, zeros, -(self->token_count * self->token_bytes) % 8));
    TRY(stream_flush(&self->ends));
    uint64_t ends[ENDS_BUFFERED], bytes = self->document_count * sizeof *ends;
    for (uint64_t done = 0; done < bytes;) {
        uint64_t part = size_min(bytes - done, sizeof ends);
        TRY(datai_pread(self->ends.fd, self->ends_path, done, part, ends));
        TRY(stream_add(&self->tokens, ends, part));
        done += part;
    }
    return stream_flush(&self->tokens);
}

static int write_header(const made_writer *self)
{
    bool has_marks = self->counted < self->token_count;
    struct made_header header = {
        .version = VERSION,
        .token_bytes = self->token_bytes,
        .flags = (has_marks ? FLAG_MARKS : 0u) | (self->options.is_bytes ? FLAG_BYTES : 0u),
        .key = self->options.key,
        .token_count = self->token_count,
        .document_count = self->document_count,
        .counted = self->counted,
    };
    memcpy(header.magic, MAGIC, sizeof header.magic);
    header.sum = XXH3_64bits(&header, offsetof(struct made_header, sum));
    return write_all(self->tokens.fd, self->part, 0, &header, sizeof header);
}

static int finish(made_writer *self)
{
    TRY(made_end_document(self));
    if (self->token_count == 0)
        return err_set(ERR_INPUT, "there is not one token for %s", self->path);
    TRY(append_ends(self));
    TRY(write_header(self));
    return file_publish(&self->tokens.fd, self->part, self->path);
}

int made_finish(made_writer *self)
{
    int rc = finish(self);
    made_abandon(self);
    return rc;
}

/* ---- reading ---- */

bool datai_is_made(const unsigned char *begin, uint64_t bytes)
{
    return bytes >= sizeof MAGIC - 1 && memcmp(begin, MAGIC, sizeof MAGIC - 1) == 0;
}

/* True if the header and the length of the file agree. Counts must not be used before this
 * check. */
static bool agrees(const struct made_header *header, uint64_t file_bytes)
{
    bool is_known =
        memcmp(header->magic, MAGIC, sizeof header->magic) == 0 && header->version == VERSION &&
        header->zero == 0 && header->flags <= (FLAG_MARKS | FLAG_BYTES) &&
        header->sum == XXH3_64bits(header, offsetof(struct made_header, sum)) &&
        (header->token_bytes == 4 || (header->token_bytes == 2 && !(header->flags & FLAG_MARKS)));
    if (!is_known || header->token_count == 0 || header->document_count == 0 ||
        header->counted > header->token_count || header->token_count > file_bytes ||
        header->document_count > header->token_count)
        return false;
    bool has_marks = header->flags & FLAG_MARKS;
    return has_marks == (header->counted < header->token_count) &&
           HEADER_BYTES + size_round_up(header->token_count * header->token_bytes, 8) +
                   8 * header->document_count ==
               file_bytes;
}

/* Checks that the ends ascend, up to the number of tokens. */
static int check_ends(const datai_file *self)
{
    uint64_t ends[ENDS_BUFFERED], last = 0;
    for (uint64_t done = 0; done < self->document_count;) {
        uint64_t part = size_min(self->document_count - done, ENDS_BUFFERED);
        TRY(datai_pread(self->fd, self->path, self->index_at + 8 * done, 8 * part, ends));
        for (uint64_t i = 0; i < part; i++) {
            if (ends[i] <= last || ends[i] > self->token_count)
                return err_set(ERR_INPUT,
                               "%s is damaged: document %llu ends at token %llu, the one before at "
                               "%llu, of %llu; remove it, and it is made anew",
                               self->path, (unsigned long long)(done + i),
                               (unsigned long long)ends[i], (unsigned long long)last,
                               (unsigned long long)self->token_count);
            last = ends[i];
        }
        done += part;
    }
    return last == self->token_count
               ? 0
               : err_set(ERR_INPUT, "%s is damaged: its last document ends at token %llu of %llu",
                         self->path, (unsigned long long)last,
                         (unsigned long long)self->token_count);
}

int datai_made(datai_file *self)
{
    struct made_header header = {.version = 0};
    TRY(datai_pread(self->fd, self->path, 0, size_min(self->file_bytes, sizeof header), &header));
    if (!agrees(&header, self->file_bytes))
        return err_set(
            ERR_INPUT,
            "%s is no whole token file of Sluice's own (SLUICETK): it is truncated, damaged "
            "or of another version",
            self->path);
    self->type = (datai_type){.bytes = header.token_bytes};
    self->data_begin = HEADER_BYTES;
    self->token_count = header.token_count;
    self->is_bytes = header.flags & FLAG_BYTES;
    self->has_marks = header.flags & FLAG_MARKS;
    self->counted = header.counted;
    self->documents = DATAI_ENDS;
    self->document_count = header.document_count;
    self->index_at = HEADER_BYTES + size_round_up(header.token_count * header.token_bytes, 8);
    return check_ends(self);
}

bool made_is_there(const char *path, uint64_t key)
{
    struct made_header header;
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return false;
    bool is = fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
              pread(fd, &header, sizeof header, 0) == (ssize_t)sizeof header &&
              agrees(&header, (uint64_t)info.st_size) && header.key == key;
    close(fd);
    return is;
}
