/* Small jobs drawn by seed, for the tests of durability, and the trail that a run of such a job
 * leaves, to compare it with the trail of the undisturbed run.
 *
 *   crash_draw(seed, layout)   the job: seed decides the bits, layout only where the state rests
 *   crash_trail_read           loss bits, norms, scales, evaluations, in the order of metrics.jsonl
 *   crash_trail_difference     NULL, or what is different
 *
 * One thread. */
#ifndef SLUICE_TESTS_CRASH_CASE_H
#define SLUICE_TESTS_CRASH_CASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "tests/train/train_fixture.h"

enum {
    CRASH_STEPS_MAX = 20,
    CRASH_LINES_MAX = 2 * CRASH_STEPS_MAX + 4,
    CRASH_LINE_BYTES = 200,
    CRASH_TEXT_BYTES = 512
};

/* Draws from a seed, one after the other. */
struct crash_draws {
    uint64_t seed, stream, counter;
};
typedef struct crash_draws crash_draws;

uint64_t crash_draw_below(crash_draws *draws, uint64_t bound); /* uniform in [0, bound) */

/* The groups of cases. */
enum crash_kind {
    CRASH_ANY,
    CRASH_SIMULATED /* for simulated drives: nothing is kept, which copies files */
};

struct crash_case {
    uint64_t seed;
    uint32_t layout; /* 0, 1, ...: other drives, tiles and placement for the same bits */
    uint32_t steps, commit_every, keep_every, drive_count;
    fixture_model shape;
    fixture_sets sets;
    char text[CRASH_TEXT_BYTES]; /* what was drawn, for messages */
};
typedef struct crash_case crash_case;

/* The case's drives are at "NAME.nvme/a", "/b", "/c" of the fixture's directory. */
void crash_draw(uint64_t seed, uint32_t layout, enum crash_kind kind, const char *name,
                crash_case *out);

/* The line of one step or evaluation: what must not depend on what happened to the run. */
struct crash_trail {
    uint32_t count;
    char lines[CRASH_LINES_MAX][CRASH_LINE_BYTES];
    uint64_t hash; /* of the weights; set by the caller */
};
typedef struct crash_trail crash_trail;

/* Reads metrics.jsonl of the run. False, with the reason in `why`, where it is none. */
bool crash_trail_read(const char *name, crash_trail *out, char why[CRASH_TEXT_BYTES]);

/* Whether the two are the same to the bit, weights included; else `why` says where they differ. */
bool crash_trail_is_same(const crash_trail *wanted, const crash_trail *got,
                         char why[CRASH_TEXT_BYTES]);

/* Step of the newest valid manifest of the run; 0: it has no commit. Changes nothing. */
uint64_t crash_committed_step(const char *name);

/* How many slab directories the run has on its drives, copies of kept commits not counted. */
uint64_t crash_slab_dirs(const char *name);

/* ---- waiting for processes that are to end, or to be ended, in time ---- */

enum { CRASH_HANG_SECONDS = 120 }; /* no process of these tests takes a tenth of it */

/* Whether the child ended, or ends, within the time. It is left to be waited for. */
bool crash_ends_within(pid_t child, uint64_t ns);

/* Waits for the child; its status as waitpid has it. One that does not end is killed and fails the
 * test. */
int crash_wait(pid_t child);

#endif
