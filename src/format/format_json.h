/* JSON of strangers: read under limits that are asked before a parser takes memory. Any thread. */
#ifndef SLUICE_FORMAT_JSON_H
#define SLUICE_FORMAT_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct format_json_limits {
    uint64_t bytes_max;
    uint64_t values_max; /* counted as commas and brackets: some 100 bytes of memory each */
    uint32_t depth_max;
};
typedef struct format_json_limits format_json_limits;

/* An object without duplicate keys. ERR_INPUT "PATH: ..." with the rule that the text breaks, and
 * where. json_decref ends *out. */
int format_json_parse(const char *path, const char *text, uint64_t text_bytes,
                      const format_json_limits *limits, json_t **out) MUST_CHECK;
/* The same of a regular file. ERR_INPUT also where there is none. */
int format_json_read(const char *path, const format_json_limits *limits, json_t **out) MUST_CHECK;
/* Text of others as it may stand in a message: without what moves a terminal, and cut at a
 * character's end. Returns `out`. */
enum { FORMAT_SHOWN_BYTES = 128 };
const char *format_show(const char *text, char out[FORMAT_SHOWN_BYTES]);

#endif
