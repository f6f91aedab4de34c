/* What the files of src/config share: the document being read, and access to its values.
 *
 *   json.c      bytes -> document             options*.c  the table and its listing
 *   job_set.c   --set, aliases                check.c     document against table
 *   job_model.c presets, the model block      job_place.c the tiers block
 *   job_train.c what learns
 *   schedule.c  learning rates                job_optimizer.c optimizer
 *   job_data.c  the data block
 *   job_precision.c dtypes, loss scaling, when the update runs
 *   job_ranks.c batch sizes, what passes between ranks
 *   report.c    what the log says            job.c       puts them together
 *   hf.c, hf_keys.c, hf_rope.c (hf_internal.h) a checkpoint's config.json as a model block
 *   changes.c   a job against another         named.c      files that are known by a name
 *   machine.c   machine.json against its rows machine_rows.c  those rows
 *
 * All of it belongs to the thread that called job_read. */
#ifndef SLUICE_CONFIG_CONFIG_INTERNAL_H
#define SLUICE_CONFIG_CONFIG_INTERNAL_H

#include <jansson.h>

#include "config/job.h"
#include "config/options.h"

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

/* Blanks comments (double slash, slash-star, hash) and trailing commas of `text` in place, outside of
 * strings, so that every line and column stays. Returns the new length (one blank per character, so
 * never longer), or ERR_CONFIG for a comment that does not end. */
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

/* --- check.c --- */

/* Sets "<file or --set path>: <path>: <text>" and returns ERR_CONFIG. */
__attribute__((format(printf, 3, 4))) int configi_error(const configi_reader *reader,
                                                        const char *path, const char *format, ...);

/* ERR_CONFIG for a key that the table does not have below `parent`, with the nearest name. */
int configi_unknown(const configi_reader *reader, const char *parent, const char *key);

/* Checks a value and all below it against the table: names, types, ranges, refusals. */
int configi_check(const configi_reader *reader, const char *path, const json_t *value) MUST_CHECK;

/* <parent>.<key>, or the key alone below the top. Characters that would spoil a message are replaced.
 * Returns false where it does not fit. */
bool configi_join(char path[CONFIGI_PATH_BYTES], const char *parent, const char *key);

/* --- named.c --- */

/* Whether a text can be the name of such a file: letters, digits and ._- */
bool configi_is_name(const char *name);

/* The path of <name>.json in `folder` ("models", "clusters") of $SLUICE_CONFIG_DIR, of the source tree or where
 * it is installed, else in the directory of the file `beside` (NULL: nowhere else). -ENOENT where there is none: then
 * `advice` is a clause with the nearest name and the places. */
int configi_find_named(const char *folder, const char *name, const char *beside,
                       char found[FILE_PATH_BYTES], char advice[CONFIGI_ADVICE_BYTES]) MUST_CHECK;

/* --- report.c --- */

/* Names the keys of the document that have no effect, one log line per reason. */
void configi_log_no_effect(const configi_reader *reader);

/* Names DeepSpeed's keys that are "auto", with the defaults that hold, in one log line. */
void configi_log_auto(const configi_reader *reader);

/* --- access to a checked document --- */

/* The value as it is written at a path, "auto" and null too; NULL where there is none. */
const json_t *configi_written(const configi_reader *reader, const char *path);

/* The value at a path, NULL when it, or a block above it, is absent, null or "auto". */
const json_t *configi_get(const configi_reader *reader, const char *path);

/* The value at a path, or the row's default. The path must have a row of that type. */
bool configi_bool(const configi_reader *reader, const char *path);
uint64_t configi_uint(const configi_reader *reader,
                      const char *path); /* INT, SIZE or STEPS of one */
double configi_double(const configi_reader *reader, const char *path);

/* Text, or the row's default, or "". Borrowed from the document or the table. */
const char *configi_text(const configi_reader *reader, const char *path);

/* As configi_text for ENUM and TIER, in the spelling of the table. */
const char *configi_choice(const configi_reader *reader, const char *path);

/* Copies text (or the default); ERR_CONFIG where it is longer than the job holds. */
int configi_copy_text(const configi_reader *reader, const char *path, char *target,
                      size_t target_bytes) MUST_CHECK;

/* --- options.c --- */

enum configi_relation {
    CONFIGI_APART,
    CONFIGI_EQUAL,
    CONFIGI_ABOVE, /* the path is a block that holds the row */
    CONFIGI_BELOW  /* the path lies below the row */
};

/* How a path lies to the path of a row. "" is above all. */
enum configi_relation configi_relate(const char *row_path, const char *path);

/* True where some row lies at, or below, the path. */
bool configi_is_known(const char *path);

/* True for rows of Sluice's own blocks, whose texts may be "auto". */
bool configi_is_own(const option *row);

/* Whether a number lies in a row's range (also where the row has none). */
bool configi_in_range(const option *row, double value);

/* The entry of a list "a|b|c" that equals the text, any case: its index, or -1. */
int configi_list_find(const char *list, const char *text);

/* Copies entry `idx` of a list; false beyond its end. */
bool configi_list_entry(const char *list, int idx, char *entry, size_t entry_bytes);

/* Edits (insert, delete, replace, swap of neighbours) between two names, any case. */
uint32_t configi_distance(const char *a, const char *b);

extern const option configi_own_rows[];
extern const uint32_t configi_own_row_count;
extern const option configi_deepspeed_rows[];
extern const uint32_t configi_deepspeed_row_count;
extern const option configi_zero_rows[];
extern const uint32_t configi_zero_row_count;
extern const option configi_block_rows[];
extern const uint32_t configi_block_row_count;

/* --- the parts of job_read --- */

/* Moves DeepSpeed's older and shorter names to the table's. ERR_CONFIG where both are there. */
int configi_rename_aliases(const configi_reader *reader) MUST_CHECK;

/* Applies --set arguments to the document and notes their paths. */
int configi_apply_set(configi_reader *reader, const char *const *set,
                      uint32_t set_count) MUST_CHECK;

/* Replaces model.preset by the preset's keys beneath the job's own. `job_path` names the job file. */
int configi_expand_preset(const configi_reader *reader, const char *job_path) MUST_CHECK;

/* Puts what DIR/config.json of model.hf means into the model block. ERR_CONFIG where a key of the job says
 * something else, and for what is not built. */
int configi_expand_hf(const configi_reader *reader) MUST_CHECK;

/* "fp32", "fp16" or "bf16", as the table spells them. */
enum dtype configi_dtype_named(const char *name);

int configi_fill_model(const configi_reader *reader, struct job_model *model) MUST_CHECK;
int configi_fill_train(const configi_reader *reader, struct job_train *train) MUST_CHECK;
/* After the model, whose checkpoint may have a tokenizer. job_data.c */
int configi_fill_data(const configi_reader *reader, job *target) MUST_CHECK;
/* Dtypes, loss scaling and clipping. */
int configi_fill_precision(const configi_reader *reader, job *target) MUST_CHECK;

/* schedule.update against precision and clipping, which are filled. Warns of what is approximate. */
int configi_fill_update(const configi_reader *reader, job *target) MUST_CHECK;

int configi_fill_tiers(const configi_reader *reader, job *target) MUST_CHECK;
/* ERR_CONFIG where the value, a double in the file, is infinite as the fp32 that it is used as. */
int configi_check_fp32(const configi_reader *reader, const char *path, double value) MUST_CHECK;
int configi_fill_optimizer(const configi_reader *reader, job *target) MUST_CHECK;

/* state, and DeepSpeed's keys that mean it, after precision and the optimizer. Warns of what is approximate.
 * job_state.c */
int configi_fill_state(const configi_reader *reader, job *target) MUST_CHECK;

/* ERR_CONFIG for a key of <block>.params that is not in the list "a|b|c" of what <block>.type has. */
int configi_check_params(const configi_reader *reader, const char *block,
                         const char *params) MUST_CHECK;

/* After the optimizer, whose rate and second beta it may replace. */
int configi_fill_scheduler(const configi_reader *reader, job *target) MUST_CHECK;

/* --- job_ranks.c --- */

/* comm, communication_data_type and the limits of stage 3, after precision. ERR_CONFIG for parallelism
 * that is not built where there are several ranks. */
int configi_fill_ranks(const configi_reader *reader, job *target) MUST_CHECK;

/* ERR_CONFIG for a drive's path with a placeholder that is none of {rank}, {local_rank}, {host}. `text`: at
 * key `path`. */
int configi_check_placeholders(const configi_reader *reader, const char *path,
                               const char *text) MUST_CHECK;

/* Completes the three batch sizes as DeepSpeed does; 0 is "not given". */
int configi_resolve_batch(const configi_reader *reader, uint64_t world, uint64_t *train,
                          uint64_t *micro, uint64_t *accumulation) MUST_CHECK;

#endif
