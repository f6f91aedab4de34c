/* Sluice: training of transformer models whose states are larger than the memory of all devices.
 *
 * The public interface of libsluice: a job (the same JSON file that `sluice train` takes) is
 * opened, makes steps, is evaluated and committed when the caller likes, and closed. Nothing else
 * in the archive is part of the interface. Usable from C and C++.
 *
 *   sluice_open -> sluice_step ... sluice_evaluate ... sluice_commit ... sluice_export -> sluice_close
 *
 * Errors are values. Functions return SLUICE_DONE (0) or one of the statuses below, which are the
 * exit statuses of the command; sluice_error() then says in one sentence what failed, where, with
 * which numbers, and what to do.
 *
 * Memory of the device, the host and the drives is reserved by sluice_open, within the job's
 * budgets, and none is taken by a step. One run is open at a time in a process, and one thread
 * makes all its calls; they block. That thread is bound to cores and keeps a short scheduling slice
 * while the run is open.
 *
 * Ranks. A program that is started by mpirun or srun is one rank of a run in each of its processes:
 * all of them make the same calls in the same order, rank 0 reads the job, and what ends one ends
 * all.
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

/* The version of the library in use, "major.minor.patch". Static storage. A program compares it
 * with the three numbers above to learn whether it runs with the library that it was compiled
 * for. */
const char *sluice_version(void);

enum sluice_status {
    SLUICE_DONE = 0,
    SLUICE_FAILED = 1, /* input or output, a library, training that diverged, a defect of ours */
    SLUICE_WRONG = 2,  /* the call, the job, or what it names: data, model, run directory */
    SLUICE_NO_FIT = 3, /* the budgets are too small; nothing was made */
};

/* The sentence of this thread's last failure; "" where there was none. Valid until the next call
 * here. */
const char *sluice_error(void);

/* An open run. */
typedef struct sluice_run sluice_run;

/* All zero: the defaults. */
struct sluice_options {
    const char *const *set; /* [set_count] "key.path=value", as `sluice train --set` has it */
    size_t set_count;
    const char *from;    /* a run directory whose last commit a new run begins with; or NULL */
    const char *machine; /* a machine.json of `sluice probe`, whose figures plan better; or NULL */
    int fresh;           /* not 0: the run directory must be new or hold no commit */
    int verbose;         /* not 0: lines about the run on standard error; else warnings alone */
};

/* Reads the job file, plans, reserves all memory, and goes on from the last commit of run.dir,
 * or begins. `options` may be NULL. On failure *out is NULL, and nothing is left but what was
 * there. */
int sluice_open(const char *job_path, const struct sluice_options *options, sluice_run **out);

/* What was opened. Bytes are of this rank. */
struct sluice_info {
    uint64_t param_count;
    uint64_t step, steps;     /* that the run is at; that run.steps asks for */
    uint64_t tokens_per_step; /* of all ranks */
    uint32_t rank, world;
    uint64_t device_bytes, host_bytes, nvme_bytes; /* planned peaks, which are what is reserved */
    double step_seconds;                           /* predicted */
};
void sluice_get_info(const sluice_run *run, struct sluice_info *info);

/* One step. */
struct sluice_step_info {
    uint64_t step; /* 1 is a run's first */
    uint64_t tokens;
    double loss;      /* the mean of the step, before its update */
    double grad_norm; /* before clipping */
    double learning_rate;
    int skipped; /* not 0: the gradients overflowed, and nothing was changed */
    double seconds;
};

/* Makes one step and, where run.commit_every says so, a commit behind its work. `info` may be NULL.
 * SLUICE_WRONG behind run.steps. After any other failure the run takes no more steps: what could be
 * committed is (the sentence says which step), and it is to be closed. */
int sluice_step(sluice_run *run, struct sluice_step_info *info);

/* The loss on data.valid. SLUICE_WRONG where the job names none. */
int sluice_evaluate(sluice_run *run, double *loss);

/* Makes the state after the last step durable; *step, which may be NULL: which one. Nothing is
 * written where it is so already. */
int sluice_commit(sluice_run *run, uint64_t *step);

/* All zero: the defaults. */
struct sluice_export_options {
    const char *dtype; /* "fp32", "bf16" or "fp16"; NULL: the run's working dtype */
    /* not 0: of a run with train.lora the adapters alone, in PEFT's layout; else they are added to
     * the weights */
    int adapters;
    int force; /* not 0: replaces files in a directory that is not empty */
};

/* Commits, and writes that state to the directory as a Hugging Face checkpoint, which is complete
 * or not there. `options` may be NULL. A failure of it leaves the run as it is. With
 * run.commit_every 0 the state is read where it lies, and the next step changes it there. */
int sluice_export(sluice_run *run, const char *directory,
                  const struct sluice_export_options *options);

/* Commits what is not committed and frees all; NULL is allowed. After a failed step its failure
 * again. */
int sluice_close(sluice_run *run);

#ifdef __cplusplus
}
#endif

#endif
