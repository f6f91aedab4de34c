/* See utf8.h. Sequences follow RFC 3629: the shortest form only, no surrogates, nothing above
 * U+10FFFF. */
#include "base/utf8.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

/* Bytes of the sequence that this first byte begins, or 0 if it begins none. */
static size_t sequence_bytes(unsigned char first)
{
    if (first < 0x80)
        return 1;
    if (first < 0xc2)
        return 0;
    return first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
}

/* True if the `count` bytes are the beginning of a sequence, or a whole one. */
static bool may_be_sequence(const unsigned char *bytes, size_t count)
{
    if (count > sequence_bytes(bytes[0]))
        return false;
    for (size_t i = 1; i < count; i++)
        if ((bytes[i] & 0xc0) != 0x80)
            return false;
    if (count < 2)
        return true;
    unsigned char least = 0x80, most = 0xbf;
    if (bytes[0] == 0xe0)
        least = 0xa0;
    if (bytes[0] == 0xed)
        most = 0x9f;
    if (bytes[0] == 0xf0)
        least = 0x90;
    if (bytes[0] == 0xf4)
        most = 0x8f;
    return bytes[1] >= least && bytes[1] <= most;
}

static size_t replace(char *out)
{
    memcpy(out, "\xef\xbf\xbd", 3);
    return 3;
}

/* Adds one byte after those held back. */
static size_t add_byte(utf8_stream *self, unsigned char byte, char *out)
{
    size_t written = 0;
    assert(self->held_bytes < sizeof self->held);
    self->held[self->held_bytes++] = byte;
    if (!may_be_sequence(self->held, self->held_bytes)) {
        /* The sequence held back is not valid: it becomes one replacement, as Unicode advises, and
         * the byte begins a new sequence. */
        if (self->held_bytes > 1)
            written += replace(out);
        self->held[0] = byte;
        self->held_bytes = 1;
        if (sequence_bytes(byte) == 0) {
            written += replace(out + written);
            self->held_bytes = 0;
        }
    }
    if (self->held_bytes > 0 && self->held_bytes == sequence_bytes(self->held[0])) {
        memcpy(out + written, self->held, self->held_bytes);
        written += self->held_bytes;
        self->held_bytes = 0;
    }
    return written;
}

size_t utf8_stream_add(utf8_stream *self, const char *bytes, size_t count, char *out)
{
    size_t written = 0;
    for (size_t i = 0; i < count; i++)
        written += add_byte(self, (unsigned char)bytes[i], out + written);
    return written;
}

size_t utf8_stream_end(utf8_stream *self, char *out)
{
    bool has_some = self->held_bytes > 0;
    self->held_bytes = 0;
    return has_some ? replace(out) : 0;
}

char *utf8_on_one_line(char *text)
{
    for (char *byte = text; *byte != '\0'; byte++)
        if ((unsigned char)*byte < ' ' || *byte == 0x7f)
            *byte = '?';
    return text;
}
