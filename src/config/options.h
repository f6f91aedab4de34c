/* The options table: every key of the job file, once.
 *
 * A row says what a key is called, what it may hold, what holds when it is absent, and what it does.
 * The table drives the reading and checking of the job file, `--set`, the suggestions for misspelt
 * names, and the listing that the command line prints; nothing about a key is written anywhere else.
 *
 * Paths join keys with dots; `*` stands for the index of an array element:
 *
 *   tiers.nvme.*.budget      matches  tiers.nvme.0.budget
 *
 * The table is constant: any thread. */
#ifndef SLUICE_CONFIG_OPTIONS_H
#define SLUICE_CONFIG_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"

enum option_type {
    OPTION_BOOL,    /* true or false; below `aio` also "true" and "false" */
    OPTION_INT,     /* whole number; also written as 5e8 */
    OPTION_FLOAT,   /* number */
    OPTION_SIZE,    /* bytes: whole number or "16GiB" */
    OPTION_STRING,  /* text, not empty */
    OPTION_ENUM,    /* one of `choices`, any case */
    OPTION_TIER,    /* one of `choices`, which are tiers */
    OPTION_UNITS,   /* "all", "3", "0-11" or a whole number */
    OPTION_CORES,   /* core set: "0-7,16" */
    OPTION_FLOATS,  /* array of numbers */
    OPTION_STRINGS, /* text or array of texts */
    OPTION_SOURCES, /* text, or array of texts and of objects, described by the rows below it */
    OPTION_STEPS,   /* whole number, or array of whole numbers from 1 on */
    OPTION_BLOCKS,  /* array of objects, described by the rows below it */
    OPTION_SWITCH,  /* object of any keys that is not enabled */
    OPTION_ANY      /* anything */
};

enum option_effect {
    OPTION_USED,      /* does what `help` says */
    OPTION_NO_EFFECT, /* known, checked, and named once in the log; `help` is the reason */
    OPTION_REFUSED    /* known and not built: an error; `help` says what to do instead */
};

struct option {
    const char *path;
    enum option_type type;
    enum option_effect effect;
    const char *fallback; /* the default as text; NULL: none, or it depends as `help` says */
    const char *range;    /* "[0,1)": square brackets hold the bound, an empty side is unbounded */
    const char *choices;  /* "a|b": all that is supported (ENUM, TIER; BOOL where one is refused) */
    const char *later;    /* "c|d": known to DeepSpeed or the design, refused by this version */
    const char *unit;
    const char *help;
    const char *alone; /* why it has no effect where the job has one rank, whatever `effect` says of
                          several; NULL: their number makes no difference */
};
typedef struct option option;

uint32_t option_count(void);

/* Row `idx`; NULL from option_count on. */
const option *option_at(uint32_t idx);

/* The row of a key path; NULL when no row has it. */
const option *option_find(const char *path);

/* Lists the table for people: a line for the key and a line of help each. */
void options_print(FILE *stream);

/* The table as a JSON array of objects, from mem_alloc; NULL with the error set. */
char *options_json(void) MUST_CHECK;

#endif
