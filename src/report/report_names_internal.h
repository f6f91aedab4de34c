/* Appends text to a caller's buffer until it is full, and remembers if something did not fit. Used
 * by the files of src/report. No allocation; one thread per buffer. Only these files use names that
 * begin with profi_. */
#ifndef SLUICE_REPORT_REPORT_NAMES_INTERNAL_H
#define SLUICE_REPORT_REPORT_NAMES_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>

struct profi_text {
    char *data; /* [capacity], always NUL-ended */
    size_t capacity, length;
    bool is_cut; /* something did not fit */
};
typedef struct profi_text profi_text;

/* Starts an empty text; capacity > 0. */
void profi_text_init(profi_text *self, char *data, size_t capacity);

__attribute__((format(printf, 2, 3))) void profi_append(profi_text *self, const char *format, ...);

/* Appends a JSON number with enough digits to restore an fp32, or null if it is not finite. */
void profi_append_number(profi_text *self, double value);

/* Appends a JSON string with its quotes. Quotes, backslashes and control characters are escaped. */
void profi_append_string(profi_text *self, const char *value);

#endif
