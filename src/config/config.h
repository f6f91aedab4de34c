/* Reading a job file: text in, checked struct job out.
 *
 *   job.json -> parse (comments, trailing commas, no duplicate keys) -> --set
 *            -> preset, or config.json of a checkpoint
 *            -> table of keys: names, types, ranges, defaults
 *            -> relations between keys -> struct job
 *
 * The table of keys (keys_internal.h) holds every key once, and KEYS.md is made from it.
 * DeepSpeed's keys keep their names, meanings, units and defaults, with one exception: the limits
 * of stage 3 hold only if they are given. The blocks `model`, `data`, `train`, `run`, `device`,
 * `update`, `tiers`, `schedule`, `state`, `io` and `comm` are Sluice's own. Keys without effect are
 * named once in the log, with the reason.
 *
 * All functions are pure, except that they read the named files and write to the log. The caller
 * owns the job that it reads. */
#ifndef SLUICE_CONFIG_CONFIG_H
#define SLUICE_CONFIG_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"
#include "config/job.h"

/* Reads the file `path` ("-": standard input), applies set[set_count] ("key.path=value", where the
 * value is JSON or a bare word) and checks everything; `world`: the number of ranks, which batch
 * sizes must fit. `text`: the content of the file, which is then not read, though messages name it
 * and a preset may lie beside it; NULL: the file is read. The caller destroys *out. Errors:
 * - ERR_CONFIG: one sentence that names file, key path, value, rule and, for an unknown key, the
 *   nearest known key.
 * - ERR_INPUT: the file cannot be read. */
int job_read(const char *path, const char *text, const char *const *set, uint32_t set_count,
             uint32_t world, job **out) MUST_CHECK;

/* Reads the job with which the last process opened a run, which has logged the warnings about its
 * keys: nothing is logged again. The caller destroys it. NULL: it cannot be read. */
job *job_read_of_run(const char *run_dir, uint32_t world);

/* comm.timeout_seconds of the job, for ranks that must meet before one of them reads it; path and
 * text as in job_read. Checks nothing else and reports nothing: job_read does both. The default
 * holds if the job is wrong, cannot be read here (other hosts need not see it), or is no regular
 * file (standard input and pipes are read only once). `set` counts in any case. */
double job_peek_timeout(const char *path, const char *text, const char *const *set,
                        uint32_t set_count);

/* Names a directory in which models.json and clusters.json are looked for after
 * $SLUICE_CONFIG_DIR. It is copied; NULL: none. ERR_USAGE if the path is too long. */
int config_set_directory(const char *directory) MUST_CHECK;

/* NULL is allowed. */
void job_destroy(job *self);

/* Writes a config.json of Hugging Face for the job's model. type: the dtype of the weights, as
 * torch names it ("bfloat16"). quantization: the block quantization_config, or NULL. The caller
 * frees *text (mem_free). ERR_CONFIG if no config.json can describe the model; the message names
 * the keys that it would need. */
struct json_t;
int config_write_hf(const job *from, const char *type, const struct json_t *quantization,
                    char **text) MUST_CHECK;

/* Checks what training needs beyond a valid job: data.train, and data.valid if the run evaluates.
 * Planning needs neither. Returns ERR_CONFIG if one is missing. */
int job_check_for_training(const job *self) MUST_CHECK;

/* ---- resuming a run with a changed job ---- */

enum {
    JOB_CHANGE_BYTES = 128, /* of one value in job_list_changes */
};

/* Lists what job `is` changes for the steps after `from_step` of a run that job `was` began:
 * "data.seed was 1 and is 2; ...". The list leaves out keys that change no bit, and keys of the
 * run's identity, because no run continues with another identity. Returns the number of changes;
 * text[text_bytes], at least 16 bytes, holds as many as fit. */
uint32_t job_list_changes(const job *was, const job *is, uint64_t from_step, char *text,
                          size_t text_bytes);

/* Lists in the same form the keys that count only when a run begins, and so change nothing in the
 * run that `was` began. run.seed is left out: the run's manifest holds the seed that its weights
 * were initialized with. */
uint32_t job_list_late_keys(const job *was, const job *is, char *text, size_t text_bytes);

/* ---- learning rates ---- */

/* The learning rate of optimizer step `step`; the first step is 1. It is the rate that DeepSpeed's
 * update of the same number uses. At that update DeepSpeed's scheduler stands at
 * last_batch_iteration step - 2, because it begins at -1 and advances after each update. `step`
 * counts the updates that are applied. A skipped step (overflow) repeats its number, as DeepSpeed's
 * scheduler does not advance either. */
double job_learning_rate(const job *self, uint64_t step);

/* beta1 of optimizer step `step`, counted as above. It is the optimizer's own beta1 unless OneCycle
 * changes the momentum (then optimizer.beta2 is 0.99, as in DeepSpeed). Bias correction uses this
 * beta1 for all steps before, like DeepSpeed: 1 - beta1^step. */
double job_momentum(const job *self, uint64_t step);

/* ---- lists of keys ---- */

/* Lists every key of the job file: type, range, unit, default, meaning. In Markdown the list is
 * KEYS.md, which also says what a change of each key means for a run that is resumed. */
void job_print_keys(FILE *stream, bool is_markdown);

#endif
