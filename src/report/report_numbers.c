/* Appends text to a caller's buffer. See report_names_internal.h. */
#include "report/report_names_internal.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

void profi_text_init(profi_text *self, char *data, size_t capacity)
{
    assert(capacity > 0);
    *self = (profi_text){.data = data, .capacity = capacity};
    data[0] = '\0';
}

void profi_append(profi_text *self, const char *format, ...)
{
    size_t left = self->capacity - self->length;
    va_list args;
    va_start(args, format);
    int length = vsnprintf(self->data + self->length, left, format, args);
    va_end(args);
    if (length < 0 || (size_t)length >= left) {
        self->is_cut = true;
        self->length = self->capacity - 1;
    } else {
        self->length += (size_t)length;
    }
}

void profi_append_number(profi_text *self, double value)
{
    if (isfinite(value))
        profi_append(self, "%.9g", value);
    else
        profi_append(self, "null");
}

void profi_append_string(profi_text *self, const char *value)
{
    profi_append(self, "\"");
    for (const unsigned char *at = (const unsigned char *)value; *at; at++) {
        if (*at == '"' || *at == '\\')
            profi_append(self, "\\%c", *at);
        else if (*at < 0x20 || *at == 0x7f)
            profi_append(self, "\\u%04x", *at);
        else
            profi_append(self, "%c", *at);
    }
    profi_append(self, "\"");
}
