/* Tests that run as the ranks of an mpirun, through train_run: joining, jobs that all ranks
 * read, runs of all of them or of rank 0 alone, and what rank 0 knows of each.
 *
 *   test_ranks_stages 3 gpt2-fp32    becomes mpirun -n 3 test_ranks_stages 3 gpt2-fp32, whose
 *                                    processes each run the same tests in the same order
 *
 * Only rank 0 sees the files of runs, so it alone compares. A failure on any rank ends its process
 * at once, and with it all ranks. */
#ifndef SLUICE_TESTS_MPI_FIXTURE_H
#define SLUICE_TESTS_MPI_FIXTURE_H

#include "comm/comm.h"
#include "tests/train/train_fixture.h"

enum { MPI_RANKS_MAX = TRAIN_RANKS_MAX, MPI_UNITS_MAX = 64, MPI_NAME_BYTES = 64 };

/* This process: */
extern comm *mpi_comm;
extern uint32_t mpi_rank, mpi_world;

/* Call it first in main. If no launcher has started the program, it becomes mpirun with argv[1]
 * ranks of this program; else it joins them. Ends the program with 77 if there is no mpirun or no
 * MPI in the build. */
void mpi_launch(int argc, char **argv);

/* A group of tests: the directory is made by rank 0 and known to all ranks. */
int mpi_setup(void **state);
int mpi_teardown(void **state);
/* Waits for all and leaves; returns `failures`. */
int mpi_end(int failures);

/* fixture_job for all ranks, each with a thread and 64 MiB of the drive: rank 0's file, read for
 * mpi_world. The caller destroys it. */
job *mpi_job(const char *name, const fixture_model *shape, const fixture_sets *sets);

/* All ranks together: adds the least budgets of device and host with which the job fits; see
 * fixture_tighten. */
void mpi_tighten(const char *name, const fixture_model *shape, fixture_sets *sets);

struct mpi_call {
    const char *name;
    bool keeps;                        /* the run stays, as what the call finds there does */
    const volatile sig_atomic_t *stop; /* of this rank; or NULL */
    void (*on_step)(uint64_t step);    /* on rank 0; or NULL */
    bool simulates_drives;
    uint64_t norm_part_bytes; /* train_options */
};
typedef struct mpi_call mpi_call;

/* Rank 0's results of a run of all ranks; other ranks set only rc and error. */
struct mpi_result {
    fixture_result run;
    double eval_losses[FIXTURE_STEPS_MAX]; /* in their order */
    uint32_t eval_count;
    double norms[FIXTURE_STEPS_MAX], scales[FIXTURE_STEPS_MAX];
};
typedef struct mpi_result mpi_result;

/* All ranks together: runs the job. The run is removed before and after, but where call->keeps. */
void mpi_train(const job *asked, const mpi_call *call, mpi_result *result);
/* mpi_job and mpi_train in one, expecting success. */
void mpi_train_good(const char *name, const fixture_model *shape, const fixture_sets *sets,
                    mpi_result *result);
void mpi_train_call(const mpi_call *call, const fixture_model *shape, const fixture_sets *sets,
                    mpi_result *result);
/* The same on rank 0 as the only rank, with so many micro-batches a step; the others wait.
 * ERR_DIVERGED is the caller's to see. */
void mpi_train_alone(const char *name, const fixture_model *shape, const fixture_sets *sets,
                     uint32_t micro_batches, mpi_result *result);

/* On rank 0: same losses, evaluations and norms in every bit, same weights, same steps skipped. */
void mpi_assert_same(const char *what, const mpi_result *a, const mpi_result *b);

/* All wait for all. */
void mpi_barrier(void);

/* Elements of each unit (a multiple of 4096) of the job as one rank has it, and how many units:
 * on rank 0, from the extents of a run of one rank. Elsewhere 0. The names of these units go to
 * mpi_unit_names. */
extern char mpi_unit_names[MPI_UNITS_MAX][MPI_NAME_BYTES];
uint32_t mpi_units(const fixture_model *shape, const fixture_sets *sets,
                   uint64_t elems[MPI_UNITS_MAX]);

#endif
