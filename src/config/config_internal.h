/* Shared by the files of src/config: the document that is read, and access to its values. The table
 * of keys is in keys_internal.h.
 *
 * Everything here belongs to the thread that called job_read. */
#ifndef SLUICE_CONFIG_INTERNAL_H
#define SLUICE_CONFIG_INTERNAL_H

#include <jansson.h>

#include "base/text.h"
#include "config/config.h"
#include "config/keys_internal.h"

enum {
    CONFIGI_PATH_BYTES = 512, /* of a key path */
    CONFIGI_VALUE_BYTES = 96, /* of a value as shown in messages */
    /* a module of PyTorch with a hundred thousand tensors takes some 25 MB in job.json */
    CONFIGI_FILE_BYTES_MAX = 1 << 28,
    /* of the text that says which files there are instead of a missing one */
    CONFIGI_ADVICE_BYTES = 640,
};

/* The document, and what messages about it need. */
struct configi_reader {
    const char *file;                      /* the name in messages */
    json_t *doc;                           /* owned by job_read */
    char (*set_paths)[CONFIGI_PATH_BYTES]; /* canonical paths given by --set */
    uint32_t set_count;
    uint32_t world; /* ranks; 0 acts as 1 */
};
typedef struct configi_reader configi_reader;

/* --- json.c --- */

/* Blanks in place the comments (double slash, slash-star, hash) and trailing commas of `text` that
 * stand outside strings. Lines and columns keep their places. Returns the new length, which is
 * never longer because each character becomes one blank, or ERR_CONFIG for a comment that does not
 * end. */
int64_t configi_strip(const char *file, char *text, size_t text_bytes) MUST_CHECK;

/* Parses a text. The caller owns *doc (json_decref). Returns ERR_CONFIG with file:line:column.
 * `any` also allows a value that is neither an object nor an array. */
int configi_parse(const char *file, const char *text, size_t text_bytes, bool any,
                  json_t **doc) MUST_CHECK;

/* Reads and parses a whole file ("-": standard input). The caller owns *doc. Returns ERR_INPUT if
 * it cannot be read. */
int configi_read_json(const char *path, json_t **doc) MUST_CHECK;

/* Puts a member into an object of a document, which messages call `file`. Takes the reference to
 * `value`, also on failure. Returns -ENOMEM, also if `value` is NULL. */
int configi_put(const char *file, json_t *object, const char *key, json_t *value) MUST_CHECK;

/* Writes the document as indented text from mem_alloc. Numbers have the fewest digits that read
 * back as the same value. */
int configi_dump(const json_t *doc, char **text) MUST_CHECK;

/* Writes the value as messages show it, and cuts it if it is long. Returns `text`. */
char *configi_show(const json_t *value, char text[CONFIGI_VALUE_BYTES]);

/* --- document.c: messages and access --- */

/* Sets "<file or --set path>: <path>: <text>" and returns ERR_CONFIG. */
__attribute__((format(printf, 3, 4))) int configi_error(const configi_reader *reader,
                                                        const char *path, const char *format, ...);

/* Compares numbers by value, and objects by their keys. */
bool configi_is_same(const json_t *a, const json_t *b);

/* True if --set gave the value at a path, or a block around it. */
bool configi_is_set(const configi_reader *reader, const char *path);

/* Joins <parent>.<key>; at the top level the path is the key alone. Characters that would damage a
 * message are replaced. Returns false if the path does not fit. */
bool configi_join(char path[CONFIGI_PATH_BYTES], const char *parent, const char *key);

/* True if a value counts as not given: null, or "auto" unless the key takes that text as its
 * value. */
bool configi_is_absent(const configi_key *row, const json_t *value);

/* The value as it is written at a path, even if it is "auto" or null. NULL: there is none. */
const json_t *configi_written(const configi_reader *reader, const char *path);

/* The value at a path. NULL if it, or a block above it, is absent, null or "auto". */
const json_t *configi_get(const configi_reader *reader, const char *path);

/* The value at a path of a checked document, or the row's default. The path must have a row of that
 * type. Most values are already in struct job (job_read.c); these functions are for keys without a
 * member there. */
bool configi_bool(const configi_reader *reader, const char *path);
uint64_t configi_uint(const configi_reader *reader, const char *path); /* INT, SIZE, one of STEPS */
double configi_whole(const configi_reader *reader, const char *path); /* INT that may be negative */
double configi_double(const configi_reader *reader, const char *path);

/* The text, the row's default, or "". It is borrowed from the document or the table. */
const char *configi_text(const configi_reader *reader, const char *path);

/* The choice of an ENUM: its index among the row's choices (-1: none is given and there is no
 * default), its enumerator, and its name as the table spells it. The name is valid until the next
 * call. */
int configi_choice_idx(const configi_reader *reader, const char *path);
int configi_enumerator(const configi_reader *reader, const char *path);
const char *configi_choice(const configi_reader *reader, const char *path);

/* Copies the text or the default. Returns ERR_CONFIG if it is longer than the job's member. */
int configi_copy_text(const configi_reader *reader, const char *path, char *target,
                      size_t target_bytes) MUST_CHECK;

/* --- keys_check.c --- */

/* Writes advice about an unknown key below `parent`: the path that it probably stands for, or the
 * nearest known key. */
void configi_advise(const char *parent, const char *key, char advice[CONFIGI_ADVICE_BYTES]);
/* The same for a block whose keys are not in the table; `nearest` is the nearest of them. */
void configi_advise_among(const struct nearest *nearest, const char *parent, const char *key,
                          char advice[CONFIGI_ADVICE_BYTES]);

/* Returns ERR_CONFIG for such a key, with that advice. */
int configi_unknown(const configi_reader *reader, const char *parent, const char *key);

/* Checks a value and everything below it against the table: names, types, ranges, refusals. */
int configi_check(const configi_reader *reader, const char *path, const json_t *value) MUST_CHECK;

/* Checks a value against a row, whose path may differ from the value's. */
int configi_check_value(const configi_reader *reader, const configi_key *row, const char *path,
                        const json_t *value) MUST_CHECK;

/* --- job_changes.c --- */

/* Writes the value that the job has for a row with a member; of a list, element `idx`. */
void configi_show_member(const configi_key *row, const job *self, size_t idx,
                         char text[JOB_CHANGE_BYTES]);

/* --- named_files.c --- */

/* True if a text can be such a name: letters, digits and ._- */
bool configi_is_name(const char *name);

/* Reads what has the name `name` and the kind "models" or "clusters". In $SLUICE_CONFIG_DIR, then
 * the source tree, then the installation, it is the file <kind>/<name>.json, or else a member of
 * <kind>.json. Last it may be <name>.json in the directory of the file `beside` (NULL: nowhere
 * else). `file`: where it was found. The caller owns *doc. Returns -ENOENT if there is none; then
 * `advice` is a clause with the nearest name, if it is near, and the places. */
int configi_read_named(const char *kind, const char *name, const char *beside,
                       char file[FILE_PATH_BYTES], json_t **doc,
                       char advice[CONFIGI_ADVICE_BYTES]) MUST_CHECK;

/* --- job_log.c --- */

/* Names the keys of the document that have no effect, one log line per reason. */
void configi_log_no_effect(const configi_reader *reader);

/* Names, in one log line, DeepSpeed's keys that are "auto", with the values that the job has for
 * them. */
void configi_log_auto(const configi_reader *reader, const job *self);

/* --- changes of the document before it is checked, in the order of job_read --- */

/* Renames DeepSpeed's other names of keys to those of the table. ERR_CONFIG if both are given. */
int configi_rename_aliases(const configi_reader *reader) MUST_CHECK;

/* Removes remarks for people (_comment, //). Removes unknown keys, with a warning, at the top level
 * and in blocks where DeepSpeed ignores them; returns ERR_CONFIG for one that is nearly the name of
 * a block of Sluice's own. Writes values of DeepSpeed's keys in the form of the table: true for 1,
 * 3 for "3". The log names all of this. */
int configi_take_spellings(const configi_reader *reader) MUST_CHECK;

/* Applies the --set arguments to the document and notes their paths. */
int configi_apply_set(configi_reader *reader, const char *const *set,
                      uint32_t set_count) MUST_CHECK;

/* Puts a value at a path, and creates blocks that are missing. Takes the reference to `value`, also
 * on failure. */
int configi_put_path(const configi_reader *reader, const char *path, json_t *value) MUST_CHECK;

/* Adds the keys of model.preset, except those that the job's own block gives. `job_path`: the
 * job file. */
int configi_expand_preset(const configi_reader *reader, const char *job_path) MUST_CHECK;

/* If model.module is a path, puts what that file holds in its place. */
int configi_expand_module(const configi_reader *reader) MUST_CHECK;

/* If model.hf has no config.json any more, or train.lora.from no adapter_config.json, and run.dir
 * holds the job of a run that began with them: takes what they said from there, and marks the model
 * block as complete. Such a run goes on without its checkpoint. */
int configi_recall_hf(const configi_reader *reader) MUST_CHECK;

/* Translates DIR/config.json of model.hf into the model block. Returns ERR_CONFIG if a key of the
 * job contradicts it, or if it asks for something that is not built. */
int configi_expand_hf(const configi_reader *reader) MUST_CHECK;

/* Marks the model block as complete: the run's own copy of the job holds all that the preset or the
 * checkpoint said, and neither is read again. */
int configi_mark_expanded(const configi_reader *reader) MUST_CHECK;

/* If the job has auto "hf", replaces the values "auto" by those of Hugging Face's Trainer, and adds
 * the batch size, the optimizer and the schedule that this trainer has if the file has none. */
int configi_fill_auto(const configi_reader *reader) MUST_CHECK;

/* True if "auto" is written at a path. */
bool configi_is_auto(const configi_reader *reader, const char *path);

/* Returns ERR_CONFIG for a key that is "auto" and has no default that its author can have meant.
 * `value` is an example. */
int configi_ask_auto(const configi_reader *reader, const char *path, const char *value) MUST_CHECK;

/* --- job_quantization.c --- */

/* Writes state.params and state.rules as the block quantization_config of a checkpoint's `file`
 * says, if the job gives neither. ERR_CONFIG, with the file, if that is not read. */
int configi_take_checkpoint_formats(const configi_reader *reader, const char *file,
                                    const json_t *block) MUST_CHECK;
/* Does the same with the job's own block, and removes it. */
int configi_take_quantization(const configi_reader *reader) MUST_CHECK;

/* --- adapter_config.c --- */

/* Fills in rank, alpha and targets of train.lora from the adapters of train.lora.from. ERR_CONFIG
 * if the job gives others, or they are of a kind that is not read. */
int configi_take_adapters(const configi_reader *reader) MUST_CHECK;

/* --- job_read.c --- */

/* Fills all members that the table of keys names. Members that depend on other keys are corrected
 * after it. */
int configi_fill_members(const configi_reader *reader, job *target) MUST_CHECK;

/* --- struct job after the table has filled it, in the order of job_read ---
 *
 * Each function checks the relations between keys of its block, and fills members that follow from
 * several keys, or from a list. ERR_CONFIG. */

int configi_fill_model(const configi_reader *reader, job *target) MUST_CHECK;
/* The same for a job with model.module: the module, and what stands for dimensions. */
int configi_fill_module(const configi_reader *reader, job *target) MUST_CHECK;
/* Fills what a module decides: micro-batch, order of micro-batches, and run.steps if it is not
 * given. */
int configi_settle_module(const configi_reader *reader, job *target) MUST_CHECK;
void configi_free_module(module_spec *spec); /* NULL is allowed */
int configi_fill_train(const configi_reader *reader, job *target) MUST_CHECK;
int configi_fill_data(const configi_reader *reader, job *target) MUST_CHECK;
int configi_resolve_batch(const configi_reader *reader, uint64_t world, uint64_t *train,
                          uint64_t *micro, uint64_t *accumulation) MUST_CHECK; /* 0: not given */
int configi_fill_tiers(const configi_reader *reader, job *target) MUST_CHECK;
int configi_fill_precision(const configi_reader *reader, job *target) MUST_CHECK;
int configi_fill_ranks(const configi_reader *reader, job *target) MUST_CHECK;
int configi_fill_update(const configi_reader *reader, job *target) MUST_CHECK;
int configi_fill_optimizer(const configi_reader *reader, job *target) MUST_CHECK;
int configi_fill_state(const configi_reader *reader, job *target) MUST_CHECK;
int configi_fill_stored(const configi_reader *reader, job *target) MUST_CHECK;
int configi_fill_scheduler(const configi_reader *reader, job *target) MUST_CHECK;

/* Checks that the value is finite as fp32, because it is used as fp32. */
int configi_check_fp32(const configi_reader *reader, const char *path, double value) MUST_CHECK;

/* Checks that <block>.params has no key that is not in `params`, "a|b|c". */
int configi_check_params(const configi_reader *reader, const char *block,
                         const char *params) MUST_CHECK;

/* Checks that a drive's path `text`, at key `path`, has no placeholder but {rank}, {local_rank} and
 * {host}. */
int configi_check_placeholders(const configi_reader *reader, const char *path,
                               const char *text) MUST_CHECK;

#endif
