/* A small model for tests of sluice_module_*: its passes are plain C in fp32, so that another
 * program computes what the library hands out.
 *
 *   stage 0        root      x0 = E[token]                              E [V,C], g [C]
 *   stage 1..L     block.i   x = x + W2 relu(W1 x + b1)                 W1 [F,C], b1 [F], W2 [C,F]
 *   stage L+1      root      logits = E (g * x), loss = mean of -log softmax
 *
 * Tokens follow from (step, micro-batch, rank) alone. */
#ifndef SLUICE_TESTS_TOY_MODULE_H
#define SLUICE_TESTS_TOY_MODULE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "sluice.h"

enum {
    TOY_VOCAB = 61,
    TOY_WIDTH = 24,
    TOY_INNER = 200,
    TOY_BLOCKS = 3,
    TOY_ROWS = 5,
    TOY_UNITS = 1 + TOY_BLOCKS,
    TOY_ELEMS_MAX = 12288, /* of a unit */
    TOY_STEPS_MAX = 16,
};

struct toy_job {
    const char *dir;   /* run.dir */
    const char *drive; /* of tiers.nvme; NULL: none */
    enum dtype type;
    uint32_t accumulation; /* 0: 1 */
    bool freezes;          /* block.0 */
    bool shares;           /* blocks add 0.01 g to what they make: root is their second unit */
    bool lends;            /* the program lends its gradients (sluice_module_lend) */
    const char *optimizer; /* the block; NULL: AdamW */
    const char *more;      /* members of the job, each with a comma before it; or NULL */
};
typedef struct toy_job toy_job;

/* A job for a new run in places of its own. The strings last until the next call. */
toy_job toy_new_job(enum dtype type);

/* The call was refused, by a sentence that has `word`. */
void toy_assert_wrong(int status, const char *word);

/* The program's side of a run, with memory for the passes. */
struct toy {
    enum dtype type;
    uint32_t rank, world, accumulation;
    sluice_run *run;
    uint64_t steps_made; /* the number of the step that is computed, from 0 */
    float x[TOY_BLOCKS + 1][TOY_ROWS][TOY_WIDTH];
    float x_grad[TOY_ROWS][TOY_WIDTH];
    float params[2][TOY_ELEMS_MAX];       /* of the pass, as fp32 */
    float seen[TOY_UNITS][TOY_ELEMS_MAX]; /* of the last forward passes */
    uint32_t losses[TOY_STEPS_MAX];       /* bits of the fp32 losses of the steps */
    double norms[TOY_STEPS_MAX];
    float lent[2][TOY_ELEMS_MAX + 1]; /* gradients of the last two uses that lend, in `type` */
    uint64_t lent_count;              /* uses so far that lend */
    uint32_t asked_pauses;            /* toy_train asks so often in each use, until updates ran */
    uint64_t pauses;                  /* of these in which updates ran */
    bool is_in_pause;                 /* toy_train asks at the moment */
    bool stays_in_pause;              /* toy_train returns once updates ran, with that use held */
};
typedef struct toy toy;

/* Elements of a unit's flat vector; the place of its tensor `idx`. */
uint64_t toy_elems(uint32_t unit);
uint64_t toy_offset(uint32_t unit, uint32_t idx);
/* sluice_options.first; `user` is ignored. */
int toy_first(void *user, uint32_t unit, uint64_t begin, uint64_t count, float *values);

/* Writes the job's text; valid until the next call. */
const char *toy_text(const toy_job *asked);
/* Opens the run, and checks the places of tensors. toy_try_open returns the status. */
int toy_try_open(toy *self, const toy_job *asked, const struct sluice_options *options);
void toy_open(toy *self, const toy_job *asked, const char *const *set, size_t set_count);
void toy_close(toy *self);

/* Computes one use. Returns the loss if it is of the last stage, else NaN. */
double toy_compute(toy *self, const struct sluice_use *use);
/* Begins a step of one micro-batch and computes `uses` of it. */
void toy_begin(toy *self, uint32_t uses);
/* Makes steps until the run is at step `until`, with their losses and norms. */
void toy_train(toy *self, uint64_t until);
/* Runs an evaluation, which fills `seen`; returns its loss. */
double toy_evaluate(toy *self);

/* The forward and backward of a whole micro-batch in memory, as a program without the library makes
 * them: adds to grads, or begins them, and returns the loss. */
double toy_plain(toy *self, float params[TOY_UNITS][TOY_ELEMS_MAX],
                 float grads[TOY_UNITS][TOY_ELEMS_MAX], double grad_scale, uint32_t micro_batch,
                 bool fresh);

#endif
