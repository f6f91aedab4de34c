/* Draws random jobs for the tests of training. The families of src/model take turns, each with
 * some of its options. The draw includes every optimizer, dtype and format of state, documents,
 * dropout, windows, adapters, frozen units, and units in parts. A job depends only on its stream
 * and seed.
 *
 * There is no list of a family's options: a setting that the job's reader or the model refuses is
 * left out. A new family is therefore drawn with all of its options once it has a table. */
#ifndef SLUICE_TESTS_TRAIN_DRAWN_JOB_H
#define SLUICE_TESTS_TRAIN_DRAWN_JOB_H

#include "tests/train/train_fixture.h"

enum { DRAWN_STEPS = 3 };

struct drawn_job {
    uint64_t stream, seed, counter;
    fixture_model shape;
    fixture_sets sets; /* all that decides the bits */
    bool is_exact;     /* updates may run within the backward */
    bool may_split;    /* split masters give the same bits */
    bool is_placed;    /* drawn_job_place left no home open */
};
typedef struct drawn_job drawn_job;

/* Draws a job. The families follow each other by seed. It runs DRAWN_STEPS steps. */
void drawn_job_make(drawn_job *self, uint64_t stream, uint64_t seed);
uint64_t drawn_job_draw(drawn_job *self, uint64_t bound);

/* Draws settings that change no bit: the tier of each kind of state, which may be left open, and
 * rules for single units. */
void drawn_job_place(drawn_job *self, fixture_sets *sets, uint64_t unit_count);
/* The same: time of the update, tiles, lookahead, I/O, format of masters. */
void drawn_job_schedule(drawn_job *self, fixture_sets *sets);

/* How many jobs have taken each setting of the table of options so far, to standard output. Fails
 * the test if one was taken by none. */
void drawn_job_report(void);

#endif
