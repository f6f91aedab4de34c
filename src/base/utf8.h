/* Bytes that come in pieces, as UTF-8 that is valid whenever it is shown: a sequence that a piece ends in is held
 * back until it is whole; each byte that belongs to none becomes U+FFFD. Pure; nothing is allocated. */
#ifndef SLUICE_BASE_UTF8_H
#define SLUICE_BASE_UTF8_H

#include <stddef.h>

struct utf8_stream {
    unsigned char held[4];
    size_t held_bytes;
};
typedef struct utf8_stream utf8_stream; /* zeros: the beginning */

/* Bytes that utf8_stream_add writes at most for a piece of so many. */
static inline size_t utf8_stream_room(size_t count)
{
    return 3 * (count + 4);
}

/* Takes a piece; writes what is whole to out[utf8_stream_room(count)] and returns how many bytes that is. */
size_t utf8_stream_add(utf8_stream *self, const char *bytes, size_t count, char *out);
/* The end: what is held back is no sequence. At most utf8_stream_room(0) bytes. */
size_t utf8_stream_end(utf8_stream *self, char *out);

/* Replaces control characters in place by '?', so that the text stays on one line of a message. Returns `text`. */
char *utf8_on_one_line(char *text);

#endif
