/* Shared by the tests of swap: a builder of programs, random valid programs, a slow and simple
 * checker to compare program_check with, and arenas on which ops compute values that depend on all
 * bytes read and on the op, so that a wrong order shows. */
#ifndef SLUICE_TESTS_SWAP_FIXTURE_H
#define SLUICE_TESTS_SWAP_FIXTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "swap/program.h"

/* Aborts with the text unless it is good; unlike assert also where NDEBUG is defined. */
void must(bool good, const char *what);

/* Grows a program op by op; dependencies and operands always go to the latest op. */
struct builder {
    program prog;
    uint64_t op_capacity, dep_capacity, buffer_capacity;
};
typedef struct builder builder;

void builder_init(builder *self, enum program_kind kind, uint64_t device_bytes, uint64_t host_bytes,
                  uint64_t nvme_bytes);
uint32_t builder_home(builder *self, enum tier arena, uint64_t offset, uint64_t size_bytes);
uint32_t builder_transient(builder *self, enum tier arena, uint64_t offset, uint64_t size_bytes);
uint32_t builder_op(builder *self, enum op_kind kind); /* on the lane of its kind */
void builder_use(builder *self, enum operand_role role, enum operand_access access,
                 uint32_t buffer_idx, uint64_t offset, uint64_t size_bytes);
void builder_dep(builder *self, uint32_t op_idx);
/* Fills producers, last readers and peaks. Free the result with program_fini. */
void builder_finish(builder *self, program *out);

/* Removes dependency `k` of op `op_idx` (shortens the op's list; the deps array keeps its
 * length). */
void program_drop_dep(program *prog, uint32_t op_idx, uint32_t k);

/* A change to a program that is right, and words of the error that program_check gives then. */
struct program_fault {
    const char *name;
    void (*apply)(program *prog);
    const char *text;
};

#define FAULT(function, text)                                                                      \
    {                                                                                              \
#function, function, text                                                                  \
    }

/* Fails the test unless the program that `build` makes is right, and each fault of it is named. */
void program_check_faults(void (*build)(program *out), const struct program_fault *list,
                          size_t count);

/* A copy that shares nothing with `from`. */
void program_copy(program *out, const program *from);

/* A valid program of op_count ops over all lanes, with exactly the dependencies it needs and a few
 * that others imply. */
void random_program(uint64_t seed, uint32_t op_count, program *out);

/* The same ops with an OP_NORM and conditional ops. decides: the norm stands at a third; after it
 * conditional ops that depend on it, before it conditional transfers to transients, which always
 * run. Else the norm is the last op and decides on nothing. No op that always runs reads from a
 * transient what only a skipped one writes. */
void random_conditional_program(uint64_t seed, uint32_t op_count, bool decides, program *out);

/* True where op op_idx of such a program is not run when the update is skipped. */
bool fixture_skips(const program *prog, uint32_t op_idx);

/* Like random_conditional_program, with ops of a commit (if_commits) anywhere, some under both
 * conditions, and several OP_COMMITs among them. Only ops of a commit read what such an op writes
 * to a transient. */
void random_committing_program(uint64_t seed, uint32_t op_count, bool decides, program *out);

/* True where op op_idx runs in a run whose update is skipped, and that commits. */
bool fixture_runs(const program *prog, uint32_t op_idx, bool skipped, bool commits);

/* The promises of program_check about order and space, proved over all pairs. O(ops^3): small
 * ones. */
bool oracle_accepts(const program *prog);

/* Memory for the three arenas of a program. */
struct fixture_arenas {
    unsigned char *base[TIER_COUNT];
    uint64_t size_bytes[TIER_COUNT];
    bool is_skipped;    /* what the executor reads */
    bool norm_skips;    /* what an OP_NORM stores there */
    bool is_committing; /* what the executor reads */
};
typedef struct fixture_arenas fixture_arenas;

/* Content drawn from the seed; nothing is skipped. */
void fixture_arenas_init(fixture_arenas *self, const program *prog, uint64_t seed);
void fixture_arenas_fini(fixture_arenas *self);

/* Executes one op: `user` is a fixture_arenas. Copies copy; other ops mix what they read (params
 * only where their unit is hit), and hits are 0 or 1. Returns 0. */
int fixture_execute(void *user, const program *prog, const op *item);

/* Executes all ops in issue order. */
void fixture_execute_all(fixture_arenas *arenas, const program *prog);
/* skipped: but those that fixture_skips names. */
void fixture_execute_unless(fixture_arenas *arenas, const program *prog, bool skipped);
/* Those that fixture_runs names. */
void fixture_execute_where(fixture_arenas *arenas, const program *prog, bool skipped, bool commits);

bool fixture_arenas_equal(const fixture_arenas *a, const fixture_arenas *b);
bool fixture_homes_equal(const program *prog, const fixture_arenas *a, const fixture_arenas *b);

#endif
