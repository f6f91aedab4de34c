/* Reads a file of text or JSON records from its beginning to its end, in pieces of any size, and
 * checks what it reads. See data_internal.h. One thread; allocates nothing. */
#include <string.h>

#include "base/size.h"
#include "base/utf8.h"
#include "data/data_internal.h"

enum { PIECE_BYTES = 32768 };

uint64_t datai_bom_bytes(const void *begin, uint64_t file_bytes)
{
    return file_bytes >= 3 && memcmp(begin, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

/* The number of the line that holds a byte of a file, from 1; 0 if it cannot be read. */
static uint64_t line_of(int fd, const char *path, uint64_t offset)
{
    char piece[PIECE_BYTES];
    uint64_t line = 1;
    for (uint64_t done = 0; done < offset;) {
        uint64_t part = size_min(offset - done, sizeof piece);
        if (datai_pread(fd, path, done, part, piece) < 0)
            return 0;
        for (uint64_t i = 0; i < part; i++)
            line += piece[i] == '\n';
        done += part;
    }
    return line;
}

int datai_refuse_text(int fd, const char *path, uint64_t offset)
{
    unsigned char byte = 0;
    unsigned long long line = line_of(fd, path, offset);
    TRY(datai_pread(fd, path, offset, 1, &byte));
    return err_set(ERR_INPUT,
                   "%s is not UTF-8 text: byte %llu (from 0, in line %llu) is 0x%02x. Convert the "
                   "file with iconv; if it is not text, name what it holds in data.format (with "
                   "the tokenizer bytes, text takes any bytes)",
                   path, (unsigned long long)offset, line, byte);
}

uint64_t datai_find_bad(const char *text, uint64_t bytes, bool ends)
{
    const char *zero = memchr(text, '\0', bytes);
    uint64_t good = utf8_valid_bytes(text, zero ? (uint64_t)(zero - text) : bytes);
    bool is_cut = !zero && !ends && good < bytes && utf8_character(text + good, bytes - good) == 0;
    return is_cut ? bytes : good;
}

void datai_input_start(datai_input *self, const char *path, int fd, uint64_t bytes,
                       enum datai_content content, uint64_t begin)
{
    *self =
        (datai_input){.path = path, .fd = fd, .bytes = bytes, .content = content, .offset = begin};
}

/* Checks text that follows what was read before. The beginning of a character at the end of a
 * piece is kept, and checked with the next piece. */
static int check_text(datai_input *self, const char *text, uint64_t bytes)
{
    uint64_t at = 0;
    while (self->held_bytes > 0 && at < bytes) {
        self->held[self->held_bytes++] = text[at++];
        int length = utf8_character(self->held, self->held_bytes);
        if (length < 0)
            return datai_refuse_text(self->fd, self->path, self->offset + at - self->held_bytes);
        if (length > 0)
            self->held_bytes = 0;
    }
    bool ends = self->offset + bytes == self->bytes;
    uint64_t bad = at + datai_find_bad(text + at, bytes - at, ends);
    if (bad < bytes || (ends && self->held_bytes > 0))
        return datai_refuse_text(self->fd, self->path,
                                 self->offset + bad - (bad < bytes ? 0 : self->held_bytes));
    uint64_t last = bytes - size_min(3, bytes - at);
    for (uint64_t i = last; i < bytes && self->held_bytes == 0; i++)
        if (((unsigned char)text[i] & 0xc0) == 0xc0 && utf8_character(text + i, bytes - i) == 0) {
            self->held_bytes = bytes - i;
            memcpy(self->held, text + i, self->held_bytes);
        }
    return 0;
}

int datai_input_read(datai_input *self, uint64_t bytes, char *target)
{
    TRY(datai_pread(self->fd, self->path, self->offset, bytes, target));
    bool is_begin = self->offset == 0;
    if (self->content == DATAI_UTF8)
        TRY(check_text(self, target, bytes));
    else if (is_begin && datai_bom_bytes(target, bytes) > 0)
        memset(target, ' ', 3);
    if (self->content == DATAI_ARRAY)
        TRY(datai_array_flatten(&self->array, self->path, target, bytes));
    self->offset += bytes;
    if (self->content == DATAI_ARRAY && self->offset == self->bytes)
        return datai_array_end(&self->array, self->path);
    return 0;
}
