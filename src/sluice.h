/* Sluice: training of transformer models whose states are larger than the memory of all devices.
 *
 * This is the public interface of libsluice. A job is the same JSON file that `sluice train` takes.
 * The caller opens it, makes steps, evaluates and commits at any step, and closes it. Nothing else
 * in the archive is part of the interface. It can be used from C and C++.
 *
 *   sluice_open -> sluice_step ... sluice_evaluate ... sluice_commit ... sluice_export
 *               -> sluice_close
 *
 * Errors are values. Functions return SLUICE_DONE (0) or one of the statuses below, which are the
 * exit statuses of the command. sluice_error() then says in one sentence what failed, where, with
 * which numbers, and what the caller can change.
 *
 * Memory: sluice_open reserves the memory of the device, the host and the drives, within the job's
 * budgets. A step takes no more.
 *
 * Threads: a process has one run open at a time, and one thread makes all its calls; they block.
 * That thread is bound to cores and keeps a short scheduling slice while the run is open.
 *
 * Ranks: if mpirun or srun starts the program, each process is one rank of one run. All ranks make
 * the same calls in the same order. Rank 0 reads the job. A failure that ends one rank ends all.
 *
 * Sizes are bytes, times seconds, losses nats per token. Text is UTF-8. */
#ifndef SLUICE_H
#define SLUICE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SLUICE_VERSION_MAJOR 0
#define SLUICE_VERSION_MINOR 1
#define SLUICE_VERSION_PATCH 0

/* The version of the library in use, "major.minor.patch", in static storage. A program compares
 * it with the three numbers above to learn whether it runs with the library that it was compiled
 * for. */
const char *sluice_version(void);

enum sluice_status {
    SLUICE_DONE = 0,
    SLUICE_FAILED = 1, /* input or output, a library, training that diverged, a bug of Sluice */
    SLUICE_WRONG = 2,  /* wrong call or job, or wrong data, model or run directory that it names */
    SLUICE_NO_FIT = 3, /* the budgets are too small; nothing was made */
};

/* Returns the sentence of this thread's last failure, or "" if there was none. It is valid until
 * the next call of a function of this header. */
const char *sluice_error(void);

/* An open run. */
typedef struct sluice_run sluice_run;

/* All zero: the defaults. */
struct sluice_options {
    const char *const *set; /* [set_count] "key.path=value", as for `sluice train --set` */
    size_t set_count;
    const char *from; /* a run directory from whose last commit a new run begins; or NULL */
    /* a machine.json of `sluice probe`, which makes the plan better; or NULL */
    const char *machine;
    int fresh;   /* not 0: the run directory must be new or hold no commit */
    int verbose; /* not 0: log lines about the run on standard error; 0: only warnings */
};

/* Reads the job file, plans, reserves all memory, and resumes from the last commit of run.dir or
 * begins a new run. `options` may be NULL. On failure *out is NULL, and nothing new is left. */
int sluice_open(const char *job_path, const struct sluice_options *options, sluice_run **out);

/* Facts about the open run. Bytes are of this rank. */
struct sluice_info {
    uint64_t param_count;
    uint64_t step, steps;     /* the step that the run is at; the number that run.steps asks for */
    uint64_t tokens_per_step; /* of all ranks */
    uint32_t rank, world;
    uint64_t device_bytes, host_bytes, nvme_bytes; /* planned peaks; this much is reserved */
    double step_seconds;                           /* predicted */
};
void sluice_get_info(const sluice_run *run, struct sluice_info *info);

/* The result of one step. */
struct sluice_step_info {
    uint64_t step; /* the first step of a run is 1 */
    uint64_t tokens;
    double loss;      /* the mean of the step, before its update */
    double grad_norm; /* before clipping */
    double learning_rate;
    int skipped; /* not 0: the gradients overflowed, and nothing was changed */
    double seconds;
};

/* Makes one step, with the commit that run.commit_every asks for. `info` may be NULL. Returns
 * SLUICE_WRONG after the last step of run.steps. After any other failure the run takes no more
 * steps: everything that could be committed is committed (the sentence says which step), and the
 * caller closes the run. */
int sluice_step(sluice_run *run, struct sluice_step_info *info);

/* Computes the loss on data.valid. Returns SLUICE_WRONG if the job does not name it. */
int sluice_evaluate(sluice_run *run, double *loss);

/* Makes the state after the last step durable, and sets *step to that step; `step` may be NULL.
 * Writes nothing if that state is already durable. */
int sluice_commit(sluice_run *run, uint64_t *step);

/* All zero: the defaults. */
struct sluice_export_options {
    const char *dtype; /* "fp32", "bf16" or "fp16"; NULL: the run's working dtype */
    /* For a run with train.lora. Not 0: writes the adapters alone, in PEFT's layout. 0: adds them
     * to the weights. */
    int adapters;
    int force; /* not 0: replaces files in a directory that is not empty */
};

/* Commits, and writes that state to the directory as a Hugging Face checkpoint. The checkpoint
 * is complete or not there. `options` may be NULL. A failed export does not change the run. With
 * run.commit_every 0 the state is read at its place on the drives, and the next step changes it
 * there. */
int sluice_export(sluice_run *run, const char *directory,
                  const struct sluice_export_options *options);

/* Commits the steps that are not yet committed, and frees all. NULL is allowed. After a failed step
 * it returns that failure again. */
int sluice_close(sluice_run *run);

#ifdef __cplusplus
}
#endif

#endif
