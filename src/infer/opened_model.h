/* A trained model, opened for evaluation and generation.
 *
 *   RUN directory ── job.json, newest commit ─┐
 *   HF_DIR ───────── config.json, weights ────┴─ begin ─► job, tokenizer
 *                                                             │
 *              setup, engine, parameters ◄─ start ────────────┘
 *
 * A run's job says where states rested in training, on the machine that trained (tiers,
 * zero_optimization). These keys are dropped; the keys that the caller sets take their place.
 * Parameters that do not fit in memory rest on drives and are read in each pass. The drives are
 * those of tiers.nvme, else those of the run's state, else $TMPDIR. The slab there has no name, so
 * it goes away with the process. One process, only parameters and the forward pass. Heap memory:
 * about 300 KiB. One thread. */
#ifndef SLUICE_INFER_OPENED_MODEL_H
#define SLUICE_INFER_OPENED_MODEL_H

#include "hf/weights.h"
#include "infer/infer_internal.h"
#include "text/tokenizer.h"

struct infer_model {
    const char *path; /* borrowed */
    bool is_run;      /* else it is a checkpoint */
    job *asked;
    struct state_run_dir dir; /* of a run, which is locked */
    manifest record;          /* of a run: its newest commit */
    struct setup *setup;
    struct engine *engine;
    tokenizer *words;                     /* NULL until infer_model_tokenizer */
    char words_name[FILE_PATH_BYTES + 8]; /* the name by which it was opened */
    bool has_own_words;                   /* the tokenizer is the checkpoint's, not the job's */
};
typedef struct infer_model infer_model;

/* Reads what `path` holds, and locks it if it is a run. `set`: further keys of its job
 * ("key.path=value"). ERR_INPUT if there is neither a run nor a checkpoint, or the run has no
 * commit. Call infer_model_end even after a failure. */
int infer_model_begin(infer_model *self, const char *path, const char *const *set,
                      uint32_t set_count) MUST_CHECK;

/* Raises the number of positions that a call of a checkpoint's model may have to `positions`, but
 * not above the model's own number. Without this, the job's reader takes few unless a key asks for
 * more. No effect for a run, or if the caller sets model.seq_length. */
int infer_model_lengthen(infer_model *self, const char *const *set, uint32_t set_count,
                         uint64_t positions) MUST_CHECK;

/* Opens the model's tokenizer: the checkpoint's, or the copy that a run has of it (RUN/hf), else
 * the job's data.tokenizer. ERR_INPUT if there is none. */
int infer_model_tokenizer(infer_model *self, const tokenizer **out) MUST_CHECK;

/* Compiles programs for micro-batches of job->micro_batch windows, reserves memory, and loads the
 * parameters. Errors: ERR_NO_FIT, if they do not fit even with drives, which are then among the
 * job's drives; ERR_STOPPED. */
int infer_model_start(infer_model *self, const model_window *window,
                      const volatile sig_atomic_t *stop) MUST_CHECK;
void infer_model_end(infer_model *self);

#endif
