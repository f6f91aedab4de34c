/* See utf8.h. Sequences follow RFC 3629: the shortest form only, no surrogates, nothing above
 * U+10FFFF. */
#include "base/utf8.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

int utf8_character(const char *at, size_t left)
{
    const unsigned char *bytes = (const unsigned char *)at;
    unsigned char first = bytes[0], least = 0x80, most = 0xbf;
    if (first < 0x80)
        return 1;
    if (first < 0xc2 || first > 0xf4)
        return -1;
    int length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    if (first == 0xe0)
        least = 0xa0;
    if (first == 0xed)
        most = 0x9f;
    if (first == 0xf0)
        least = 0x90;
    if (first == 0xf4)
        most = 0x8f;
    for (int i = 1; i < length; i++) {
        if ((size_t)i == left)
            return 0;
        if (bytes[i] < least || bytes[i] > most)
            return -i;
        least = 0x80;
        most = 0xbf;
    }
    return length;
}

size_t utf8_valid_bytes(const char *text, size_t bytes)
{
    size_t at = 0;
    while (at < bytes) {
        uint64_t eight;
        if (bytes - at >= sizeof eight) {
            memcpy(&eight, text + at, sizeof eight);
            if ((eight & 0x8080808080808080u) == 0) { /* ASCII, which most text is */
                at += sizeof eight;
                continue;
            }
        }
        int length = utf8_character(text + at, bytes - at);
        if (length <= 0)
            return at;
        at += (size_t)length;
    }
    return at;
}

static size_t replace(char *out)
{
    memcpy(out, "\xef\xbf\xbd", 3);
    return 3;
}

/* Adds one byte after those held back. */
static size_t add_byte(utf8_stream *self, char byte, char *out)
{
    size_t written = 0;
    assert(self->held_bytes < sizeof self->held);
    self->held[self->held_bytes++] = byte;
    while (self->held_bytes > 0) {
        int length = utf8_character(self->held, self->held_bytes);
        if (length == 0)
            break;
        size_t taken = (size_t)(length > 0 ? length : -length);
        if (length > 0)
            memcpy(out + written, self->held, taken);
        written += length > 0 ? taken : replace(out + written);
        self->held_bytes -= taken;
        memmove(self->held, self->held + taken, self->held_bytes);
    }
    return written;
}

size_t utf8_stream_add(utf8_stream *self, const char *bytes, size_t count, char *out)
{
    size_t written = 0;
    for (size_t i = 0; i < count; i++)
        written += add_byte(self, bytes[i], out + written);
    return written;
}

size_t utf8_stream_end(utf8_stream *self, char *out)
{
    bool has_some = self->held_bytes > 0;
    self->held_bytes = 0;
    return has_some ? replace(out) : 0;
}

/* Writes one character of `length` bytes, or, if length is below 1, one byte that is none. Returns
 * the bytes written. */
static size_t show_character(const char *at, int length, const char *kept,
                             char piece[UTF8_VISIBLE_BYTES + 1])
{
    unsigned char first = (unsigned char)at[0];
    unsigned char second = length == 2 ? (unsigned char)at[1] : 0;
    bool is_c1 = length == 2 && first == 0xc2 && second < 0xa0;
    bool is_c0 = length == 1 && (first < ' ' || first == 0x7f);
    if (length < 1)
        return (size_t)snprintf(piece, UTF8_VISIBLE_BYTES + 1, "\\x%02x", first);
    if (is_c1 || (is_c0 && (first == '\0' || !strchr(kept, first))))
        return (size_t)snprintf(piece, UTF8_VISIBLE_BYTES + 1, "\\u%04x", is_c1 ? second : first);
    memcpy(piece, at, (size_t)length);
    return (size_t)length;
}

size_t utf8_visible(const char *text, size_t count, const char *kept, char *out, size_t out_bytes)
{
    size_t written = 0;
    assert(out_bytes > 0);
    for (size_t at = 0; at < count;) {
        char piece[UTF8_VISIBLE_BYTES + 1];
        int length = utf8_character(text + at, count - at);
        size_t piece_bytes = show_character(text + at, length, kept, piece);
        if (written + piece_bytes >= out_bytes)
            break;
        memcpy(out + written, piece, piece_bytes);
        written += piece_bytes;
        at += length > 0 ? (size_t)length : 1;
    }
    out[written] = '\0';
    return written;
}
