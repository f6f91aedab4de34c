/* A model that was trained, to be looked at: by evaluate.c and generate.c.
 *
 *   RUN directory ── job.json, newest commit ─┐
 *   HF_DIR ───────── config.json, weights ────┴─ begin ─► job, tokenizer ─ start ─► setup, engine, parameters
 *
 * Of a run's job what says where states rest (tiers, zero_optimization) is left out: it was for
 * training, on that machine; what the caller sets takes its place. Parameters that do not fit in
 * memory rest on drives (those of tiers.nvme; else those of the run's state, or $TMPDIR), in a slab
 * without a name, which goes with the process, and are read in each pass. One process, forward
 * alone, parameters alone. Heap memory: about 300 KiB. One thread. */
#ifndef SLUICE_INFER_TRAINED_H
#define SLUICE_INFER_TRAINED_H

#include "hf/weights.h"
#include "infer/infer_internal.h"
#include "text/tokenizer.h"

struct infer_model {
    const char *path; /* borrowed */
    bool is_run;      /* else a checkpoint */
    job *asked;
    struct state_run_dir dir; /* of a run: locked */
    manifest record;          /* likewise: its newest commit */
    struct setup *setup;
    struct engine *engine;
    tokenizer *words;                     /* once asked for */
    char words_name[FILE_PATH_BYTES + 8]; /* what it was opened by */
    bool has_own_words;                   /* they are the checkpoint's, not what the job says */
};
typedef struct infer_model infer_model;

/* Reads what `path` holds, and locks a run. `set` are further keys of its job ("key.path=value").
 * ERR_INPUT where there is neither a run nor a checkpoint, or the run has no commit. To be ended in
 * either case. */
int infer_model_begin(infer_model *self, const char *path, const char *const *set,
                      uint32_t set_count) MUST_CHECK;

/* The model of a checkpoint may have calls of so many positions, or of as many as it has: the job's
 * reader takes few where nobody says. Without effect for a run, and where the caller sets
 * model.seq_length. */
int infer_model_lengthen(infer_model *self, const char *const *set, uint32_t set_count,
                         uint64_t positions) MUST_CHECK;

/* Its tokenizer: what the checkpoint has or had (RUN/hf), else data.tokenizer of the job. ERR_INPUT
 * where it has none. */
int infer_model_tokenizer(infer_model *self, const tokenizer **out) MUST_CHECK;

/* Compiles for micro-batches of job->micro_batch windows, reserves memory, fills the parameters. ERR_NO_FIT, also
 * with drives, which then are among the job's;
 * ERR_STOPPED. */
int infer_model_start(infer_model *self, const model_window *window,
                      const volatile sig_atomic_t *stop) MUST_CHECK;
void infer_model_end(infer_model *self);

#endif
