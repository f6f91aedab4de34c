/* Shared by the files of machine.json: its keys as rows of a table. Reading and writing follow the
 * table. */
#ifndef SLUICE_CONFIG_MACHINE_INTERNAL_H
#define SLUICE_CONFIG_MACHINE_INTERNAL_H

#include <stddef.h>

#include "config/machine.h"

enum machinei_type {
    MACHINEI_TEXT,    /* char[] */
    MACHINEI_FLAG,    /* bool */
    MACHINEI_COUNT,   /* uint32_t */
    MACHINEI_BYTES,   /* uint64_t; in the file also "32GiB" */
    MACHINEI_LENGTH,  /* uint64_t, a number that is not a size in bytes */
    MACHINEI_REAL,    /* double, 0 or above */
    MACHINEI_CHOICE,  /* int-sized enum: the index of the text in `choices` */
    MACHINEI_OBJECT,  /* the block `below`, at the offset */
    MACHINEI_OBJECTS, /* array of such blocks, at most `most`; their number is at `count_offset` */
};

struct machinei_block;

/* One key. Offsets are from the beginning of the struct that its block describes. */
struct machinei_row {
    const char *key;
    enum machinei_type type;
    size_t offset, room; /* room: bytes of a text with its NUL, or of one element of an array */
    double most;
    const char *choices; /* "a|b" */
    const struct machinei_block *below;
    size_t count_offset;
};
typedef struct machinei_row machinei_row;

struct machinei_block {
    const machinei_row *rows;
    uint32_t count;
};
typedef struct machinei_block machinei_block;

extern const machinei_block machinei_top;

#endif
