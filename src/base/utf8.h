/* UTF-8: one character of a text, streams of text, and text that a terminal may show.
 *
 * A stream turns bytes that arrive in pieces into UTF-8 that is valid after each piece. A sequence
 * that is incomplete at the end of a piece is held back until the next piece completes it. Each
 * byte that belongs to no sequence becomes U+FFFD. Pure; nothing is allocated. */
#ifndef SLUICE_BASE_UTF8_H
#define SLUICE_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* Examines the character at `at`, of which `left` > 0 bytes are there. Returns its length, 1 to 4.
 * 0: the bytes are the beginning of a character whose rest is missing. Below 0: there is no
 * character; one U+FFFD should replace that many bytes, which are the longest beginning of a valid
 * character, or one byte (Unicode 15, section 3.9). */
int utf8_character(const char *at, size_t left);

/* True for each byte of a character but its first. */
static inline bool utf8_is_inner(char byte)
{
    return ((unsigned char)byte & 0xc0) == 0x80;
}

/* Where the character that ends before `at` (> 0) begins. */
static inline size_t utf8_before(const char *text, size_t at)
{
    do
        at--;
    while (at > 0 && utf8_is_inner(text[at]));
    return at;
}

/* The length of the longest beginning of a text that consists of whole characters. */
size_t utf8_valid_bytes(const char *text, size_t bytes);

struct utf8_stream {
    char held[4];
    size_t held_bytes;
};
typedef struct utf8_stream utf8_stream; /* all zeros at the beginning */

/* The most bytes that utf8_stream_add writes for a piece of `count` bytes. */
static inline size_t utf8_stream_room(size_t count)
{
    return 3 * (count + 4);
}

/* Takes a piece, writes the complete characters to out[utf8_stream_room(count)], and returns the
 * number of bytes written. */
size_t utf8_stream_add(utf8_stream *self, const char *bytes, size_t count, char *out);
/* Ends the stream: bytes still held back are an incomplete sequence and become U+FFFD. Writes at
 * most utf8_stream_room(0) bytes. */
size_t utf8_stream_end(utf8_stream *self, char *out);

/* Copies text from an unknown source so that it cannot control a terminal: a control character (C0,
 * DEL, C1) becomes \u001b, as in JSON, and a byte that belongs to no character becomes \x9b.
 * Control characters that `kept` lists stay as they are. The copy ends with a zero byte and is cut
 * between characters if it does not fit. Returns its length. A piece of `count` bytes takes at most
 * UTF8_VISIBLE_BYTES times as many, and the zero. err_set and log_line apply it to every message,
 * and src/cli/terminal.c to what a terminal gets. */
enum { UTF8_VISIBLE_BYTES = 6 };
size_t utf8_visible(const char *text, size_t count, const char *kept, char *out, size_t out_bytes);

#endif
