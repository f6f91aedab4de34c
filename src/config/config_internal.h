/* What the files of src/config share: the document being read, and access to its values. The table
 * of keys is in keys_internal.h.
 *
 * All of it belongs to the thread that called job_read. */
#ifndef SLUICE_CONFIG_CONFIG_INTERNAL_H
#define SLUICE_CONFIG_CONFIG_INTERNAL_H

#include <jansson.h>

#include "config/config.h"
#include "config/keys_internal.h"

enum {
    CONFIGI_PATH_BYTES = 512,   /* of a key path */
    CONFIGI_VALUE_BYTES = 96,   /* of a value as shown in messages */
    CONFIGI_LABEL_BYTES = 4224, /* of what a message begins with: a file, or --set and a path */
    CONFIGI_FILE_BYTES_MAX = 1 << 22,
    CONFIGI_ADVICE_BYTES = 640, /* what there is in place of a named file */
};

/* The document with what messages need. */
struct configi_reader {
    const char *file;                      /* as messages name it */
    json_t *doc;                           /* owned by job_read */
    char (*set_paths)[CONFIGI_PATH_BYTES]; /* canonical paths given by --set */
    uint32_t set_count;
    uint32_t world; /* ranks; 0 acts as 1 */
};
typedef struct configi_reader configi_reader;

/* --- json.c --- */

/* Blanks comments (double slash, slash-star, hash) and trailing commas of `text` in place, outside
 * of strings, so that every line and column stays. Returns the new length (one blank per character,
 * so never longer), or ERR_CONFIG for a comment that does not end. */
int64_t configi_strip(const char *file, char *text, size_t text_bytes) MUST_CHECK;

/* Reads a whole file ("-": standard input) into *text, which the caller frees with mem_free.
 * ERR_INPUT when it cannot be read. */
int configi_read_file(const char *path, char **text, size_t *text_bytes) MUST_CHECK;

/* Parses text, which is changed. The caller owns *doc (json_decref). ERR_CONFIG with
 * file:line:column. `any` allows a bare value instead of an object or array. */
int configi_parse(const char *file, char *text, size_t text_bytes, bool any,
                  json_t **doc) MUST_CHECK;

/* The document as indented text from mem_alloc, with the fewest digits that read back equal. */
int configi_dump(const json_t *doc, char **text) MUST_CHECK;

/* Replaces in place the control characters that would spoil a message. Returns `text`. */
char *configi_on_one_line(char *text);

/* The value as messages show it, cut where it is long. Returns `text`. */
char *configi_show(const json_t *value, char text[CONFIGI_VALUE_BYTES]);

/* --- document.c: messages and access --- */

/* Sets "<file or --set path>: <path>: <text>" and returns ERR_CONFIG. */
__attribute__((format(printf, 3, 4))) int configi_error(const configi_reader *reader,
                                                        const char *path, const char *format, ...);

/* <parent>.<key>, or the key alone below the top. Characters that would spoil a message are
 * replaced. Returns false where it does not fit. */
bool configi_join(char path[CONFIGI_PATH_BYTES], const char *parent, const char *key);

/* True where a value says nothing: null, or "auto" where that is no text of its own. */
bool configi_is_absent(const configi_key *row, const json_t *value);

/* The value as it is written at a path, "auto" and null too; NULL where there is none. */
const json_t *configi_written(const configi_reader *reader, const char *path);

/* The value at a path, NULL when it, or a block above it, is absent, null or "auto". */
const json_t *configi_get(const configi_reader *reader, const char *path);

/* The value at a path, or the row's default, of a document that is checked. The path must have a
 * row of that type. Most values are in struct job already (job_read.c); these are for keys without
 * a member there. */
bool configi_bool(const configi_reader *reader, const char *path);
uint64_t configi_uint(const configi_reader *reader, const char *path); /* INT, SIZE, one of STEPS */
double configi_whole(const configi_reader *reader, const char *path); /* INT that may be negative */
double configi_double(const configi_reader *reader, const char *path);

/* Text, or the row's default, or "". Borrowed from the document or the table. */
const char *configi_text(const configi_reader *reader, const char *path);

/* The choice of an ENUM: its place among those of the row (-1: none is given, and there is no
 * default), its enumerator, and its name in the spelling of the table, valid until the next call.
 */
int configi_choice_idx(const configi_reader *reader, const char *path);
int configi_enumerator(const configi_reader *reader, const char *path);
const char *configi_choice(const configi_reader *reader, const char *path);

/* Copies text (or the default); ERR_CONFIG where it is longer than the job holds. */
int configi_copy_text(const configi_reader *reader, const char *path, char *target,
                      size_t target_bytes) MUST_CHECK;

/* --- keys_check.c --- */

/* ERR_CONFIG for a key that the table does not have below `parent`, with the nearest name. */
int configi_unknown(const configi_reader *reader, const char *parent, const char *key);

/* Checks a value and all below it against the table: names, types, ranges, refusals. */
int configi_check(const configi_reader *reader, const char *path, const json_t *value) MUST_CHECK;

/* --- named_files.c --- */

/* Whether a text can be the name of such a file: letters, digits and ._- */
bool configi_is_name(const char *name);

/* The path of <name>.json in `folder` ("models", "clusters") of $SLUICE_CONFIG_DIR, of the source
 * tree or where it is installed, else in the directory of the file `beside` (NULL: nowhere else).
 * -ENOENT where there is none: then `advice` is a clause with the nearest name and the places. */
int configi_find_named(const char *folder, const char *name, const char *beside,
                       char found[FILE_PATH_BYTES], char advice[CONFIGI_ADVICE_BYTES]) MUST_CHECK;

/* --- job_log.c --- */

/* Names the keys of the document that have no effect, one log line per reason. */
void configi_log_no_effect(const configi_reader *reader);

/* Names DeepSpeed's keys that are "auto", with the defaults that hold, in one log line. */
void configi_log_auto(const configi_reader *reader);

/* --- the document before it is checked, in the order of job_read --- */

/* Moves DeepSpeed's other names to the table's. ERR_CONFIG where both are there. */
int configi_rename_aliases(const configi_reader *reader) MUST_CHECK;

/* Applies --set arguments to the document and notes their paths. */
int configi_apply_set(configi_reader *reader, const char *const *set,
                      uint32_t set_count) MUST_CHECK;

/* Puts the keys of model.preset where the job's own block has none. `job_path`: the job file. */
int configi_expand_preset(const configi_reader *reader, const char *job_path) MUST_CHECK;

/* Puts what DIR/config.json of model.hf means into the model block. ERR_CONFIG where a key of the
 * job says something else, and for what is not built. */
int configi_expand_hf(const configi_reader *reader) MUST_CHECK;

/* --- struct job after the table has filled it, in the order of job_read ---
 *
 * Each function checks the relations between keys of its block, and fills members that follow from
 * several keys, or from a list. ERR_CONFIG. */

int configi_fill_model(const configi_reader *reader, struct job_model *model) MUST_CHECK;
int configi_fill_train(const configi_reader *reader, struct job_train *train) MUST_CHECK;
int configi_fill_data(const configi_reader *reader, job *target) MUST_CHECK;
int configi_resolve_batch(const configi_reader *reader, uint64_t world, uint64_t *train,
                          uint64_t *micro, uint64_t *accumulation) MUST_CHECK; /* 0: not given */
int configi_fill_tiers(const configi_reader *reader, job *target) MUST_CHECK;
int configi_fill_precision(const configi_reader *reader, job *target) MUST_CHECK;
int configi_fill_ranks(const configi_reader *reader, job *target) MUST_CHECK;
int configi_fill_update(const configi_reader *reader, job *target) MUST_CHECK;
int configi_fill_optimizer(const configi_reader *reader, job *target) MUST_CHECK;
int configi_fill_state(const configi_reader *reader, job *target) MUST_CHECK;
int configi_fill_scheduler(const configi_reader *reader, job *target) MUST_CHECK;

/* The value is finite as fp32, in which it is used. */
int configi_check_fp32(const configi_reader *reader, const char *path, double value) MUST_CHECK;

/* <block>.params has no key that is not in `params`, "a|b|c". */
int configi_check_params(const configi_reader *reader, const char *block,
                         const char *params) MUST_CHECK;

/* A drive's path `text`, at key `path`, has no placeholder but {rank}, {local_rank} and {host}. */
int configi_check_placeholders(const configi_reader *reader, const char *path,
                               const char *text) MUST_CHECK;

#endif
