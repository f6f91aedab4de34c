/* What the files of machine.json share: its keys as rows of a table, which reading and writing
 * follow.
 *
 *   machine_rows.c  the table          machine_host.c  the host that this process is on
 *   machine.c       text -> struct machine -> text */
#ifndef SLUICE_CONFIG_MACHINE_INTERNAL_H
#define SLUICE_CONFIG_MACHINE_INTERNAL_H

#include <stddef.h>

#include "config/machine.h"

enum machinei_type {
    MACHINEI_TEXT,    /* char[] */
    MACHINEI_FLAG,    /* bool */
    MACHINEI_COUNT,   /* uint32_t */
    MACHINEI_BYTES,   /* uint64_t; in the file also "32GiB" */
    MACHINEI_LENGTH,  /* uint64_t, no size in bytes */
    MACHINEI_REAL,    /* double, 0 or above */
    MACHINEI_CHOICE,  /* int-sized enum, by its index in `choices` */
    MACHINEI_OBJECT,  /* what `below` says, at the offset */
    MACHINEI_OBJECTS, /* array of it, of at most `most`; their number is at `count_offset` */
};

struct machinei_block;

/* A key. Offsets are from the beginning of the struct that its block describes. */
struct machinei_row {
    const char *key;
    enum machinei_type type;
    size_t offset, room; /* room: bytes of a text, with its end, or of an array's element */
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
