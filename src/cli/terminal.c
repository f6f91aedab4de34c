/* Standard output on a terminal shows text from unknown sources: names in a checkpoint or a run,
 * paths, generated text. Everything that is printed passes through one filter, which writes control
 * characters as \u001b, except line ends and tabs. See cli.h.
 *
 *   printf ... ─► stdout, a stream of glibc with our write function ─► utf8_visible ─► write(2)
 *
 * A pipe or a file gets the bytes as they are. Allocates only in cli_terminal_begin. */
#include "cli/cli.h"

#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/utf8.h"

enum { TERMINAL_PIECE_BYTES = 512, TERMINAL_BUFFER_BYTES = 4096 };

static struct {
    utf8_stream text; /* holds a character back whose rest comes with the next write */
    bool is_raw;
} terminal;

static int terminal_write_all(const char *bytes, size_t count)
{
    return file_write_at(STDOUT_FILENO, FILE_CURRENT, bytes, count);
}

/* The write function of the stream: returns the bytes taken, fewer if there was an error. */
static ssize_t terminal_write(void *user, const char *bytes, size_t count)
{
    char whole[3 * (TERMINAL_PIECE_BYTES + 4)]; /* utf8_stream_room */
    char shown[UTF8_VISIBLE_BYTES * sizeof whole + 1];
    (void)user;
    if (terminal.is_raw)
        return terminal_write_all(bytes, count) == 0 ? (ssize_t)count : 0;
    for (size_t at = 0; at < count;) {
        size_t taken = count - at < TERMINAL_PIECE_BYTES ? count - at : TERMINAL_PIECE_BYTES;
        size_t length = utf8_stream_add(&terminal.text, bytes + at, taken, whole);
        length = utf8_visible(whole, length, "\n\t", shown, sizeof shown);
        if (terminal_write_all(shown, length) < 0)
            return (ssize_t)at;
        at += taken;
    }
    return (ssize_t)count;
}

void cli_terminal_begin(void)
{
    static char buffer[TERMINAL_BUFFER_BYTES];
    if (isatty(STDOUT_FILENO) != 1)
        return;
    FILE *filtered = fopencookie(NULL, "w", (cookie_io_functions_t){.write = terminal_write});
    if (!filtered)
        return; /* no memory: the first command that needs some says so */
    setvbuf(filtered, buffer, _IOLBF, sizeof buffer);
    stdout = filtered;
}

void cli_terminal_raw(void)
{
    terminal.is_raw = true;
}

void cli_terminal_control(const char *sequence)
{
    fflush(stdout);
    (void)terminal_write_all(sequence, strlen(sequence)); /* only the look of a line is lost */
}
