/* Text into a caller's buffer, for the files of src/prof: appends until it is full, remembers that
 * it was. No allocation; one thread per buffer. Names that begin with profi_ are shared by them
 * only. */
#ifndef SLUICE_PROF_INTERNAL_H
#define SLUICE_PROF_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>

struct profi_text {
    char *data; /* [capacity], always ended by NUL */
    size_t capacity, length;
    bool is_cut; /* something did not fit */
};
typedef struct profi_text profi_text;

/* Starts an empty text; capacity > 0. */
void profi_text_init(profi_text *self, char *data, size_t capacity);

__attribute__((format(printf, 2, 3))) void profi_append(profi_text *self, const char *format, ...);

/* A JSON number of enough digits to give an fp32 back, or null where it is not finite. */
void profi_append_number(profi_text *self, double value);

/* A JSON string with its quotes: quotes, backslashes and control characters escaped. */
void profi_append_string(profi_text *self, const char *value);

#endif
