/* See stop_text.h. */
#include "infer/stop_text.h"

#include <string.h>

int stop_text_init(stop_text *self, const char *stop,
                   int (*show)(void *user, const char *bytes, size_t count), void *user)
{
    *self = (stop_text){.stop = stop, .show = show, .user = user};
    self->stop_bytes = stop ? strlen(stop) : 0;
    if (self->stop_bytes <= STOP_TEXT_MAX)
        return 0;
    return err_set(ERR_USAGE, "the text to stop at has %zu bytes, more than %d", self->stop_bytes,
                   STOP_TEXT_MAX);
}

static int show(stop_text *self, const char *bytes, size_t count)
{
    return count ? self->show(self->user, bytes, count) : 0;
}

/* Adds one byte. The held bytes are always a beginning of the stop text. After the new byte, the
 * longest end of them that still is such a beginning is held, and the bytes before it are shown. */
static int add_byte(stop_text *self, char byte)
{
    size_t known = self->held_bytes;
    self->held[known++] = byte;
    size_t dropped = 0;
    while (memcmp(self->held + dropped, self->stop, known - dropped) != 0)
        dropped++;
    TRY(show(self, self->held, dropped));
    self->held_bytes = known - dropped;
    memmove(self->held, self->held + dropped, self->held_bytes);
    self->is_met = self->held_bytes == self->stop_bytes;
    return 0;
}

int stop_text_add(stop_text *self, const char *bytes, size_t count)
{
    if (self->stop_bytes == 0)
        return show(self, bytes, count);
    for (size_t i = 0; i < count && !self->is_met; i++)
        TRY(add_byte(self, bytes[i]));
    return 0;
}

int stop_text_end(stop_text *self)
{
    size_t count = self->is_met ? 0 : self->held_bytes;
    self->held_bytes = 0;
    return show(self, self->held, count);
}
