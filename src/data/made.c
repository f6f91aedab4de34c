/* Opens the token files that Sluice makes from text and JSON lines. See token_file.h. */
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/size.h"
#include "data/data_internal.h"
#include "data/token_file.h"

enum { ENDS_AT_ONCE = 8192 };

bool datai_is_made(const unsigned char *begin, uint64_t bytes)
{
    return bytes >= sizeof DATAI_MADE_MAGIC - 1 &&
           memcmp(begin, DATAI_MADE_MAGIC, sizeof DATAI_MADE_MAGIC - 1) == 0;
}

/* True if the header and the length of the file agree. Counts must not be used before this
 * check. */
static bool agrees(const struct datai_made_header *header, uint64_t file_bytes)
{
    bool is_known = memcmp(header->magic, DATAI_MADE_MAGIC, sizeof header->magic) == 0 &&
                    header->version == DATAI_MADE_VERSION && header->zero == 0 &&
                    header->flags <= (DATAI_MADE_MARKS | DATAI_MADE_BYTES) &&
                    header->sum == XXH3_64bits(header, offsetof(struct datai_made_header, sum)) &&
                    (header->token_bytes == 4 ||
                     (header->token_bytes == 2 && !(header->flags & DATAI_MADE_MARKS)));
    if (!is_known || header->token_count == 0 || header->document_count == 0 ||
        header->counted > header->token_count || header->token_count > file_bytes ||
        header->document_count > header->token_count)
        return false;
    bool has_marks = header->flags & DATAI_MADE_MARKS;
    return has_marks == (header->counted < header->token_count) &&
           sizeof(struct datai_made_header) +
                   size_round_up(header->token_count * header->token_bytes, 8) +
                   8 * header->document_count ==
               file_bytes;
}

/* Checks that the ends ascend, up to the number of tokens. */
static int check_ends(const datai_file *self)
{
    uint64_t ends[ENDS_AT_ONCE], last = 0;
    for (uint64_t done = 0; done < self->document_count;) {
        uint64_t part = size_min(self->document_count - done, ENDS_AT_ONCE);
        TRY(datai_pread(self->fd, self->path, self->index_at + 8 * done, 8 * part, ends));
        for (uint64_t i = 0; i < part; i++) {
            if (ends[i] <= last || ends[i] > self->token_count)
                return err_set(ERR_INPUT,
                               "%s is damaged: document %llu ends at token %llu, the one before at "
                               "%llu, of %llu; remove it, and it will be made again",
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
    struct datai_made_header header = {.version = 0};
    TRY(datai_pread(self->fd, self->path, 0, size_min(self->file_bytes, sizeof header), &header));
    if (!agrees(&header, self->file_bytes))
        return err_set(
            ERR_INPUT,
            "%s is not a complete token file of Sluice (SLUICETK): it is truncated, damaged "
            "or of another version",
            self->path);
    self->type = (datai_type){.bytes = header.token_bytes};
    self->data_begin = sizeof(struct datai_made_header);
    self->token_count = header.token_count;
    self->is_bytes = header.flags & DATAI_MADE_BYTES;
    self->has_marks = header.flags & DATAI_MADE_MARKS;
    self->counted = header.counted;
    self->documents = DATAI_ENDS;
    self->document_count = header.document_count;
    self->index_at = sizeof(struct datai_made_header) +
                     size_round_up(header.token_count * header.token_bytes, 8);
    return check_ends(self);
}

bool token_file_is_made(const char *path, uint64_t key)
{
    struct datai_made_header header;
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
