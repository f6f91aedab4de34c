/* Reading a job file: text in, checked struct job out.
 *
 *   job.json -> parse (comments, trailing commas, no duplicate keys) -> --set
 *            -> preset, or config.json of a checkpoint
 *            -> table of keys: names, types, ranges, defaults
 *            -> relations between keys -> struct job
 *
 * The table of keys (keys_internal.h) has every key once; KEYS.md is made from it. DeepSpeed's keys
 * keep their names, meanings, units and defaults, except that limits of stage 3 hold only where
 * they are given. `model`, `data`, `train`, `run`, `device`, `update`, `tiers`, `schedule`,
 * `state`, `io` and `comm` are Sluice's own. Keys without effect are named once in the log, with
 * the reason.
 *
 * All functions are pure except for reading the named files and for the log. A job belongs to who
 * reads it. */
#ifndef SLUICE_CONFIG_CONFIG_H
#define SLUICE_CONFIG_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"
#include "config/job.h"

/* Reads the file `path` ("-": standard input), applies set[set_count] ("key.path=value", the value
 * JSON or a bare word) and checks everything. The caller destroys *out. Errors: ERR_CONFIG with one
 * sentence that names file, key path, value, rule and, for an unknown key, the nearest known key;
 * ERR_INPUT when the file cannot be read. */
int job_read(const char *path, const char *const *set, uint32_t set_count, job **out) MUST_CHECK;

/* The same for a file `name` that holds text[text_bytes]: messages name it, and a preset may lie
 * beside it. */
int job_read_text(const char *name, const char *text, size_t text_bytes, const char *const *set,
                  uint32_t set_count, job **out) MUST_CHECK;

/* The same two for a job of `world` ranks, whose batch sizes must go together for so many. The two
 * above read for one rank. */
int job_read_ranks(const char *path, const char *const *set, uint32_t set_count, uint32_t world,
                   job **out) MUST_CHECK;
int job_read_text_ranks(const char *name, const char *text, size_t text_bytes,
                        const char *const *set, uint32_t set_count, uint32_t world,
                        job **out) MUST_CHECK;

/* NULL is allowed. */
void job_destroy(job *self);

/* Checks what training needs beyond a valid job: data.train, and data.valid where the run
 * evaluates. Planning needs neither. ERR_CONFIG. */
int job_check_for_training(const job *self) MUST_CHECK;

/* ---- a run that goes on ---- */

enum {
    JOB_CHANGE_BYTES = 128, /* of a value in job_list_changes */
};

/* Lists what job `is` changes for the steps after `from_step` of a run that job `was` began:
 * "data.seed was 1 and is 2; ...". Keys that change no bit are not listed, nor those of the run's
 * identity, with which no run goes on. Returns how many changes there are; text[text_bytes], at
 * least 16 bytes, holds as many as fit. */
uint32_t job_list_changes(const job *was, const job *is, uint64_t from_step, char *text,
                          size_t text_bytes);

/* Lists in the same form the keys that count only when a run begins, and so change nothing in the
 * run that `was` began. run.seed is not listed: the run's manifest says what its weights began
 * with. */
uint32_t job_list_late_keys(const job *was, const job *is, char *text, size_t text_bytes);

/* ---- learning rates ---- */

/* The learning rate of optimizer step `step`, the first being 1: what DeepSpeed's update of that
 * number runs with, whose scheduler then stands at last_batch_iteration step - 2 (it begins at -1
 * and is stepped after each update). `step` counts updates that are applied: after a skipped step
 * (overflow) the same number comes again, as DeepSpeed's scheduler waits too. */
double job_learning_rate(const job *self, uint64_t step);

/* beta1 of optimizer step `step`, counted as above. It is the optimizer's own unless OneCycle moves
 * the momentum (then optimizer.beta2 is 0.99, as in DeepSpeed). Where bias is corrected, this beta1
 * stands for that of all steps before, as in DeepSpeed: 1 - beta1^step. */
double job_momentum(const job *self, uint64_t step);

/* ---- for people ---- */

/* Lists every key of the job file: type, range, unit, default, meaning. As Markdown the list is
 * KEYS.md, which also says what a change of a key means for a run that goes on. */
void job_print_keys(FILE *stream, bool is_markdown);

#endif
