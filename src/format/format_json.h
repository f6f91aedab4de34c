/* Reads JSON from untrusted files. Limits are checked before a parser takes memory. Any thread. */
#ifndef SLUICE_FORMAT_FORMAT_JSON_H
#define SLUICE_FORMAT_FORMAT_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct format_json_limits {
    uint64_t bytes_max;
    /* the number of commas and brackets; each value takes some 100 bytes of memory */
    uint64_t values_max;
    uint32_t depth_max;
};
typedef struct format_json_limits format_json_limits;

/* Parses an object without duplicate keys. Returns ERR_INPUT "PATH: ..." with the rule that the
 * text breaks, and where. The caller releases *out with json_decref. */
int format_json_parse(const char *path, const char *text, uint64_t text_bytes,
                      const format_json_limits *limits, json_t **out) MUST_CHECK;
/* Does the same for a regular file. Returns ERR_INPUT also if there is none. */
int format_json_read(const char *path, const format_json_limits *limits, json_t **out) MUST_CHECK;
/* Copies text of any length, cut at the end of a character, so that it can stand in a message.
 * Returns `out`. */
enum { FORMAT_SHOWN_BYTES = 128 };
const char *format_show(const char *text, char out[FORMAT_SHOWN_BYTES]);

#endif
