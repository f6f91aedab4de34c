/* The table of keys: every key of the job file, once.
 *
 * A row says what a key is called, what it may hold, its default, where its value lies in struct
 * job, and what a change of it means for a run that is resumed. All other uses of a key follow from
 * the table: parsing, checks, struct job, the comparison with an earlier run, the log, `--keys` and
 * KEYS.md.
 *
 * Paths join keys with dots. `*` stands for the index of an array element: tiers.nvme.*.budget
 * matches tiers.nvme.0.budget. Sluice's own rows are in keys_model.c and keys_own.c, DeepSpeed's in
 * keys_deepspeed.c. Rows below `debug` are in no list. The table is constant, so any thread may
 * read it. */
#ifndef SLUICE_CONFIG_KEYS_INTERNAL_H
#define SLUICE_CONFIG_KEYS_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/job.h"

enum configi_type {
    CONFIGI_BOOL,    /* true or false */
    CONFIGI_INT,     /* whole number; also written as 5e8 */
    CONFIGI_FLOAT,   /* number */
    CONFIGI_SIZE,    /* bytes: whole number or "16GiB" */
    CONFIGI_STRING,  /* text, not empty */
    CONFIGI_ENUM,    /* one of `allowed`, any case */
    CONFIGI_UNITS,   /* "all", "3", "0-11", a whole number, or words of names */
    CONFIGI_CORES,   /* core set: "0-7,16" */
    CONFIGI_PATH,    /* true, false, or text that is a path */
    CONFIGI_FLOATS,  /* array of numbers */
    CONFIGI_STRINGS, /* text or array of texts */
    CONFIGI_SOURCES, /* text, or array of texts and of objects, described by the rows below it */
    CONFIGI_STEPS,   /* whole number, or array of whole numbers from 1 on */
    CONFIGI_OBJECTS, /* array of objects, described by the rows below it */
    CONFIGI_SWITCH,  /* object of any keys that is not enabled */
    CONFIGI_ANY      /* anything */
};

enum configi_effect {
    CONFIGI_USED,      /* does what `help` says */
    CONFIGI_NO_EFFECT, /* known, checked, and named once in the log; `help` is the reason */
    CONFIGI_REFUSED    /* known, but not built: an error; `help` says what to do instead */
};

/* Says whether the bits of a run depend on a key, and what a change means for a run that is
 * resumed. */
enum configi_change {
    CONFIGI_FREE,  /* changes no bit: may change at any time */
    CONFIGI_LATER, /* changes the steps that follow: may change, and the log names the change */
    CONFIGI_LATER_SILENT, /* as LATER, but the key is not compared on its own */
    CONFIGI_FIXED, /* part of the run's identity: the run is not resumed with another value */
    CONFIGI_START  /* counts when a run begins, and changes nothing in a resumed one */
};

struct configi_key {
    const char *path;
    enum configi_type type;
    enum configi_effect effect;
    enum configi_change change;
    /* the default as text; NULL: there is none, or it depends on other keys as `help` says */
    const char *fallback;
    /* Which values are allowed; NULL: anything.
     * - Numbers: "[0,1)". A square bracket includes the bound, and an empty side is unbounded.
     * - OBJECTS: the same for the number of entries.
     * - ENUM, and BOOL if one value is refused: "a|b", all values that are supported. */
    const char *allowed;
    const char *why;   /* why a number has an upper bound, a sentence; NULL: it says itself */
    const char *later; /* "c|d": known to DeepSpeed, refused by this version */
    const char *unit;
    const char *help;
    const char *alone; /* why the key has no effect on one rank; NULL: ranks make no difference */
    /* ENUM: the enumerator of each choice; NULL: they are 0, 1, ... */
    const int *values;
    /* Where the value lies in struct job; member_bytes 0: a function of job_*.c reads it. An ENUM's
     * member is its enumerator (int), its text (a larger member), or a bool that is true for the
     * second choice. */
    size_t offset, member_bytes;
    bool is_real; /* INT: the member is a double, and may be negative if the job does not use it */
};
typedef struct configi_key configi_key;

/* Returns row `idx`; Sluice's own rows come first. NULL after the last. */
const configi_key *configi_key_at(uint32_t idx);

/* Returns the row of a key path; NULL if no row has it. */
const configi_key *configi_key_find(const char *path);

/* True for rows of Sluice's own blocks. Their texts may be "auto". */
bool configi_key_is_own(const configi_key *row);

/* True for rows below `debug`, which no list names. */
bool configi_key_is_hidden(const configi_key *row);

enum configi_relation {
    CONFIGI_APART,
    CONFIGI_EQUAL,
    CONFIGI_ABOVE, /* the path is a block that holds the row */
    CONFIGI_BELOW  /* the path lies below the row */
};

/* Says how a path lies to the path of a row. "" is above all rows. */
enum configi_relation configi_relate(const char *row_path, const char *path);

/* True if some row lies at, or below, the path. */
bool configi_is_known(const char *path);

/* True if a number lies in a row's range, or if the row has no range. */
bool configi_in_range(const configi_key *row, double value);

/* Returns the index of the entry of a list "a|b|c" that equals the text in any case, or -1. */
int configi_list_find(const char *list, const char *text);

/* Copies entry `idx` of a list; false beyond its end. */
bool configi_list_entry(const char *list, int idx, char *entry, size_t entry_bytes);

/* Other names that DeepSpeed has for its keys and blocks. */
struct configi_alias {
    const char *path; /* as it may be written */
    const char *name; /* as the table has it */
};
extern const struct configi_alias configi_aliases[];
extern const uint32_t configi_alias_count;

/* ---- macros for the rows in keys_own.c and keys_deepspeed.c ---- */

#define KEY(path_, type_, member_, default_, allowed_, unit_, change_, ...)                        \
    {                                                                                              \
        .path = (path_), .type = CONFIGI_##type_, member_, .fallback = (default_),                 \
        .allowed = (allowed_), .unit = (unit_), .change = CONFIGI_##change_, .help = __VA_ARGS__   \
    }
/* A key without effect; `reason` is what the log says. */
#define IDLE(path_, type_, default_, allowed_, ...)                                                \
    {                                                                                              \
        .path = (path_), .type = CONFIGI_##type_, .effect = CONFIGI_NO_EFFECT,                     \
        .fallback = (default_), .allowed = (allowed_), .help = __VA_ARGS__                         \
    }
#define IDLE_ON(path_, ...)  IDLE(path_, BOOL, "true", NONE, __VA_ARGS__)
#define IDLE_OFF(path_, ...) IDLE(path_, BOOL, "false", NONE, __VA_ARGS__)
#define IDLE_ANY(path_, ...) IDLE(path_, ANY, NONE, NONE, __VA_ARGS__)
/* A block that may only be off; `help` says why. */
#define SWITCH(path_, ...) IDLE(path_, SWITCH, NONE, NONE, __VA_ARGS__)
#define REFUSED(path_, ...)                                                                        \
    {                                                                                              \
        .path = (path_), .type = CONFIGI_ANY, .effect = CONFIGI_REFUSED, .help = __VA_ARGS__       \
    }

#define AT(member_)                                                                                \
    .offset = offsetof(struct job, member_), .member_bytes = sizeof(((struct job *)0)->member_)
/* Two doubles, one after the other. */
#define AT_PAIR(member_) .offset = offsetof(struct job, member_), .member_bytes = 2 * sizeof(double)
#define AT_REAL(member_) AT(member_), .is_real = true
#define NOWHERE          .member_bytes = 0
#define NONE             NULL
/* The key has no effect on one rank. */
#define RANKS .alone = one_rank

extern const configi_key configi_model_keys[], configi_own_keys[], configi_deepspeed_keys[];
extern const uint32_t configi_model_key_count, configi_own_key_count, configi_deepspeed_key_count;

#endif
