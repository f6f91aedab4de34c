/* Several ranks of `sluice train`, which a test kills, stops or gives faults that only one rank
 * sees.
 *
 *   rig_begin    starts the ranks: forked (no launcher, everything in reach), or under mpirun (the
 *                program itself)
 *   rig_kill...  the test does its work
 *   rig_end      waits for all processes, each until the limit; gives how they ended and what they
 *                wrote
 *   rig_verify   checks every committed byte that they left, and the hash of its weights
 *
 * Forked ranks exit as those of the program do (src/cli/launched_ranks.c is linked): they write on
 * standard error what a user sees. The test's own process trains and reads nothing, so that no
 * thread is lost by fork.
 *
 * One thread. Every function fails the test if it cannot do its part. */
#ifndef SLUICE_TESTS_RANKS_RIG_H
#define SLUICE_TESTS_RANKS_RIG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "state/verify.h"
#include "tests/state/crash_case.h"
#include "train/train.h"

enum {
    RIG_RANKS_MAX = 64,
    RIG_BATCH = 12,       /* windows of a step, whatever the world: 1, 2, 3, 4, 6 ranks go */
    RIG_STEPS = 13,       /* of a run, where the test says nothing else */
    RIG_COMMIT_EVERY = 3, /* the evaluation at 8 makes no step commit that would not */
    RIG_EVAL_EVERY = 8,
    RIG_SAYS_BYTES = 32768,
};

/* The state of a forked rank, in shared memory that outlives it. Only rank 0 gets callbacks. */
struct rig_rank {
    atomic_int committing, recutting; /* between the points that say so */
    atomic_int last_point;            /* index in rig_points; -1: none was met */
    atomic_int has_ended;             /* train_run has returned */
    atomic_ullong step;               /* done, on rank 0 */
    struct train_summary summary;
};
typedef struct rig_rank rig_rank;

enum { RIG_POINT_COUNT = 15 };
extern const char *const rig_points[RIG_POINT_COUNT];

struct rig {
    /* The request; constant until rig_end. */
    const char *name; /* of the run, in fixture_dir */
    uint32_t world;
    bool by_mpirun;
    fixture_sets sets; /* beyond rig_write_job's, as for --set */
    const char *from;
    uint64_t stop_after;                   /* a stop is asked for, on rank 0; 0: none */
    const char *failpoints[RIG_RANKS_MAX]; /* of one rank; NULL: none */
    const char *job_paths[RIG_RANKS_MAX];  /* NULL: the run's; forked ranks alone */
    const struct io_faults *faults;        /* of `faulty_rank`'s drives; forked ranks alone */
    uint32_t faulty_rank;
    /* In the forked rank, before it trains; or NULL. The job is its own. */
    int (*prepare)(uint32_t rank, struct train_options *options, void *user);
    void *user;
    /* Counted from rig_end on; 0: 60 and 5 for each rank. Processes that still run then are killed,
     * and the test fails. */
    double limit_seconds;
    /* While it runs: */
    pid_t launcher;            /* mpirun; else 0 */
    pid_t pids[RIG_RANKS_MAX]; /* of the ranks; under mpirun: after rig_find_ranks */
    rig_rank *board;           /* [world]; under mpirun nothing is told */
    uint64_t begin_ns;
    /* stopped_rank has been sent SIGSTOP: rig_end waits for the others, wakes it and waits for
     * it */
    bool has_stopped;
    uint32_t stopped_rank;
    /* After rig_end: */
    int statuses[RIG_RANKS_MAX]; /* as waitpid has them; under mpirun all its own */
    double seconds; /* from rig_end's call, or since rig_mark, until the last one was gone */
    uint64_t mark_ns;
    bool launcher_hung;         /* mpirun did not end though all ranks had: it was killed */
    char says[RIG_SAYS_BYTES];  /* standard error, and under mpirun output, of all */
    uint32_t error_count;       /* lines that begin with "sluice: error: " */
    char error[ERR_TEXT_BYTES]; /* the last of them */
};
typedef struct rig rig;

/* The run's job: gpt2 or llama of 2 small layers, 13 steps of 12 windows, commits every 3. Its
 * drive is "NAME.nvme" of the fixture's directory, that all ranks share. */
void rig_write_job(const char *name, const fixture_model *shape);

/* Whether mpirun is there and the program that the test names joins it. */
bool rig_has_mpirun(void);

void rig_begin(rig *self);
/* Under mpirun: waits until all ranks run the program; forked ranks are known. */
void rig_find_ranks(rig *self);
/* Whether rank 0 has the run directory open: then all ranks have joined. */
bool rig_has_begun(const rig *self);
/* From here on rig.seconds counts. */
void rig_mark(rig *self);
void rig_end(rig *self);
/* Begin and end, all well: every process ends with 0 (75 where a stop was asked for). */
void rig_run_good(rig *self);

/* Waits until rank 0 has done that many steps or has ended, at most 20 seconds and one more for
 * each rank. Under mpirun the steps of earlier runs count until this one has begun. */
void rig_await_step(const rig *self, uint64_t step);
void rig_sleep(double seconds);

/* state_verify in a process of its own. */
struct rig_verified {
    int rc;
    struct state_verify_summary summary;
    char error[ERR_TEXT_BYTES];
};
typedef struct rig_verified rig_verified;
void rig_verify(const char *run_dir, rig_verified *out);
/* All that the newest commit names is there; a manifest that was being written may be torn. */
bool rig_is_whole(const rig_verified *self);

/* Loss bits, norms and evaluations of the run, with the hash of its weights; all of it is whole. */
void rig_read_trail(const char *name, crash_trail *out);

/* Contents of the run's drive: its directories, how many of them belong to kept commits, and the
 * files in the others. */
struct rig_drive {
    uint32_t directory_count, kept_count, slab_count, other_count;
    char text[1024]; /* for messages */
};
typedef struct rig_drive rig_drive;
void rig_list_drive(const char *name, rig_drive *out);

#endif
