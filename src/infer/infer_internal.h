/* Declarations that the files of src/infer share: a model opened with its params, the text of an
 * evaluation, and how generation draws and ends. */
#ifndef SLUICE_INFER_INTERNAL_H
#define SLUICE_INFER_INTERNAL_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/log.h"
#include "data/corpus.h"
#include "data/masking.h"
#include "engine/engine.h"
#include "hf/hf.h"
#include "infer/infer.h"
#include "state/run_dir.h"
#include "state/state.h"
#include "text/tokenizer.h"

/* ---- fill_params.c, load_params.c: params brought to their homes ---- */

/* Makes params from fp32 master weights and puts them where they rest, in an engine with
 * params_alone. One filler per engine. */
struct inferi_filler {
    struct engine *engine;   /* borrowed */
    kernel_context *context; /* context of the CPU's kernels */
    void *block;             /* the allocation that holds `copy` */
    unsigned char *copy;     /* [copy_elems] params on their way to a GPU or to drives */
    uint64_t copy_elems;
    uint32_t unit; /* params on drives: the part that is being filled */
    uint64_t part_begin, part_elems;
};
typedef struct inferi_filler inferi_filler;
int inferi_filler_init(inferi_filler *self, struct engine *engine, uint64_t copy_elems) MUST_CHECK;
void inferi_filler_fini(inferi_filler *self);
/* Fills elements [begin, begin + count) of a unit from `master`, which holds these `count` elements
 * in fp32; count <= copy_elems. Call it for the units in order, and for each unit from 0 to its
 * end. */
int inferi_fill(inferi_filler *self, uint32_t unit, uint64_t begin, uint64_t count,
                const float *master) MUST_CHECK;
/* The same for a packed unit, or any other whose params are there as they rest. */
int inferi_fill_params(inferi_filler *self, uint32_t unit, uint64_t begin, uint64_t count,
                       const void *params) MUST_CHECK;

/* Brings the params of a commit to their homes in the engine. Any number of ranks may have made the
 * commit. `copy_rank`: whose slab is read if record->is_replicated. `stop`: ERR_STOPPED when it is
 * set; may be NULL. */
int inferi_load_params(struct engine *engine, const manifest *record, uint32_t copy_rank,
                       const volatile sig_atomic_t *stop) MUST_CHECK;

/* ---- opened_model.c ----
 *
 * A trained model, opened for evaluation and generation.
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

/* ---- eval_text.c: tokens ----
 *
 * The files of an evaluation as one sequence of tokens, and the number of text bytes that tokens
 * stand for. One thread. */
struct eval_tokens {
    uint64_t count;
    /* token files, or text for a model of bytes; NULL: the tokens are in `list` */
    corpus *files;
    uint32_t *list;    /* [capacity] tokens of text and JSON records, with TOKEN_UNCOUNTED */
    uint64_t capacity; /* elements of list, of which `count` are used */
    uint64_t *ends;    /* [end_capacity] where documents of the list end, ascending */
    uint64_t end_count, end_capacity;
    bool is_separate; /* documents are told apart (data.documents) */
    uint64_t vocab;   /* the model's vocabulary size */
    /* the model's tokenizer; NULL: it has none, and the files hold tokens */
    const tokenizer *words;
    bool is_text;   /* each byte is a token */
    bool has_bytes; /* eval_tokens_bytes can count bytes */
};
typedef struct eval_tokens eval_tokens;

/* Opens the files. Text and JSON records are cut by the model's tokenizer, as for training
 * (data/prepare.h); the resulting tokens are kept in memory, 4 bytes each. Files of tokens need no
 * tokenizer. ERR_INPUT for files that cannot be read and for tokens that the model does not know.
 * Call eval_tokens_close even after a failure. */
int eval_tokens_open(eval_tokens *self, infer_model *from,
                     const struct infer_evaluate_options *asked) MUST_CHECK;
void eval_tokens_close(eval_tokens *self);

/* Reads tokens [begin, begin + count). */
int eval_tokens_read(eval_tokens *self, uint64_t begin, uint64_t count, int32_t *tokens) MUST_CHECK;
/* The same as targets: -1 for tokens that do not count, such as the user's words in a
 * conversation. */
int eval_tokens_targets(eval_tokens *self, uint64_t begin, uint64_t count,
                        int32_t *targets) MUST_CHECK;

/* True if some token does not count as a target. */
bool eval_tokens_have_marks(const eval_tokens *self);

/* Tells the documents of a window apart, as corpus_separate does it. */
int eval_tokens_separate(eval_tokens *self, uint64_t from, uint64_t count, const int32_t *inputs,
                         int32_t *targets, int32_t *begins) MUST_CHECK;

/* How many bytes of text these targets stand for. Special tokens, such as a document's end, count
 * 0. */
uint64_t eval_tokens_bytes(const eval_tokens *self, const int32_t *targets, uint64_t count);

/* ---- eval_text.c: windows ----
 *
 * The windows of an evaluation: which tokens of a text each window reads and which it counts; and
 * the results that follow from the sums. Pure.
 *
 * A text of N tokens has N - 1 predicted tokens (all but the first). Each is counted once. Windows
 * of T inputs begin `stride` apart:
 *
 *   window 0   |<------- T inputs ------->|
 *   window 1        |<------- T inputs ------->|
 *   window 2             |<------- T inputs ------->|
 *
 * Window 0 counts all its T targets. Each later window counts the targets of its inputs from number
 * T - stride on, because an earlier window has counted the others. So at least T - stride tokens
 * precede every target that a later window counts. The last window is cut where the text ends. */
struct eval_text {
    uint64_t token_count;    /* N >= 2 */
    uint64_t window, stride; /* window: T; stride: 1 to T */
};
typedef struct eval_text eval_text;

struct eval_window {
    uint64_t begin;         /* index in the text of its first input */
    uint64_t input_count;   /* at most T; each target is one token after its input */
    uint64_t first_counted; /* the targets of the inputs from this one on count */
};
typedef struct eval_window eval_window;

uint64_t eval_window_count(const eval_text *text);
eval_window eval_window_at(const eval_text *text, uint64_t idx);

/* exp(loss); infinite if that overflows. */
double eval_perplexity(double loss);
/* Bits per byte of a text of `bytes` bytes whose loss is `nats` in total. bytes > 0. */
double eval_bits_per_byte(double nats, uint64_t bytes);

/* ---- sampling.c ----
 *
 * Chooses the next token from a model's logits.
 *
 *   1. Divide the logits by the temperature.
 *   2. Keep the top_k largest.
 *   3. From these, keep the fewest that together have at least top_p of the probability.
 *   4. Draw one of them.
 *
 * Tokens of equal logits rank by id, the lower first. Probabilities are computed in double. Pure:
 * with the same logits, the result depends on (seed, index) only, on any machine. */
struct sampling {
    double temperature; /* 0: the likeliest token, whatever the other members are */
    uint64_t top_k;     /* 0: all */
    double top_p;       /* in (0, 1]; 1: all */
    uint64_t seed;
};
typedef struct sampling sampling;

/* Draws token number `idx` of a text from logits [vocab]; `order` [vocab] is scratch. ERR_DIVERGED
 * if a logit is NaN or +infinity, or if all are -infinity. */
int sampling_draw(const sampling *self, const float *logits, uint64_t vocab, uint64_t idx,
                  uint32_t *order, uint64_t *token) MUST_CHECK;

/* ---- generate.c: a text that ends the answer ----
 *
 * Shows the bytes of a text as they come, up to a given text at which it ends. Bytes that may be
 * the beginning of that text are held back until more is known. Pure, except for the callback. */
enum { STOP_TEXT_MAX = 256 };

struct stop_text {
    const char *stop; /* borrowed; NULL or "": no such text, and nothing is held back */
    size_t stop_bytes;
    char held[STOP_TEXT_MAX];
    size_t held_bytes;
    bool is_met;
    int (*show)(void *user, const char *bytes, size_t count); /* negative ends it */
    void *user;
};
typedef struct stop_text stop_text;

/* ERR_USAGE if `stop` has more than STOP_TEXT_MAX bytes. */
int stop_text_init(stop_text *self, const char *stop,
                   int (*show)(void *user, const char *bytes, size_t count), void *user) MUST_CHECK;
/* Shows as much of the text as can be shown. Sets is_met when the text has ended; then nothing more
 * is shown. */
int stop_text_add(stop_text *self, const char *bytes, size_t count) MUST_CHECK;
/* Shows what is held back: the text has ended without `stop`. */
int stop_text_end(stop_text *self) MUST_CHECK;

#endif
