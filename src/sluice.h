/* Sluice: training of transformer models whose states are larger than the memory of all devices.
 *
 * This is the public interface of libsluice. A job is the same JSON file that `sluice train` takes.
 * The caller opens it, makes steps, evaluates and commits at any step, and closes it. Nothing else
 * in the archive is part of the interface. It can be used from C and C++.
 *
 *   sluice_open -> sluice_step ... sluice_evaluate ... sluice_commit ... sluice_export
 *               -> sluice_close
 *
 * Other functions need no open run and do what the command of their name does: sluice_plan,
 * sluice_train, sluice_probe, sluice_generate, sluice_evaluate_files, sluice_export_run.
 *
 * Errors are values. Functions return SLUICE_DONE (0) or one of the statuses below, which are the
 * exit statuses of the command. sluice_error() then says in one sentence what failed, where, with
 * which numbers, and what the caller can change.
 *
 * Memory: sluice_open reserves the memory of the device, the host and the drives, within the job's
 * budgets. A step takes no more.
 *
 * Threads: a process that is one rank may have several runs open. Calls block, and may come from
 * different threads. A run has threads of its own, and the caller's thread keeps its cores and its
 * scheduling. Only one function of this header may be called at a time. Callbacks come on the
 * thread that called, unless the function says otherwise, and must not call a function of this
 * header.
 *
 * Ranks: if mpirun or srun starts the program, each process is one rank of one run. All ranks make
 * the same calls in the same order. Rank 0 reads the job. A failure that ends one rank ends all.
 * MPI ends with a run that succeeds, so a process can be a rank of one run; the next sluice_open is
 * refused.
 *
 * Sizes are bytes, times seconds, losses nats per token. Text is UTF-8. */
#ifndef SLUICE_H
#define SLUICE_H

#include <signal.h>
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
    SLUICE_STOPPED = 75, /* stopped on request; a run's state is committed */
};

/* Returns the sentence of this thread's last failure, or "" if there was none. It is valid until
 * the next call of a function of this header. */
const char *sluice_error(void);

/* Names a directory with models.json and clusters.json, for programs that are not installed by
 * `cmake --install`. They are looked for in $SLUICE_CONFIG_DIR first, and then there. At most 4000
 * bytes are copied; NULL: none. */
void sluice_set_data_directory(const char *directory);

/* Frees a text that a function of this header made. NULL is allowed. */
void sluice_free(char *text);

/* ---- a run, step by step ---- */

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
    /* For sluice_open, not 0: the run ends when it is closed. It makes no commits, and its slabs
     * have no names, so no state stays on a drive of any host. Closing removes the run's files from
     * the run directory but for a lock; after a kill, or a failure of several ranks, its small
     * files stay there. The directory must be new or hold no commit. Not with `from`. */
    int temporary;
    /* The job itself, JSON; then no file is read, and job_path is its name in messages. Or NULL. */
    const char *job_text;
    /* The weights with which a new run of a job with model.module begins: elements [begin, begin +
     * count) of a unit's padded flat vector. Returns 0; anything else, and the run is not opened.
     * Comes on a thread of the library, while sluice_open waits. NULL: zeros. */
    int (*first)(void *user, uint32_t unit, uint64_t begin, uint64_t count, float *values);
    void *first_user;
    /* For the ranks of torchrun, which has a store that all ranks see, but no MPI. Gives all ranks
     * the data of rank 0, a few hundred bytes, and waits for it at most timeout_seconds. Returns 0;
     * anything else, and the run is not opened. It is called on a thread of the library, while the
     * function that opens the run waits: on rank 0 once, and on another rank until the data lead to
     * rank 0, because the store may still hold those of before a restart. NULL: torchrun's ranks
     * are refused. */
    int (*share)(void *user, void *data, size_t bytes, double timeout_seconds);
    void *share_user;
    /* For sluice_open of a job with model.module by several ranks: what their programs must have
     * alike, such as the module's parameters, as lines of text. If a rank's lines are not rank 0's,
     * all ranks are refused with a sentence that has the first difference. NULL: no lines. */
    const char *alike;
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
    double tokens_per_second; /* of all ranks */
    double model_flops;       /* per second, counted by the model's formula */
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

/* Gives rank 0's data[bytes] to all ranks. All call it between steps, with the same number of
 * bytes. It is for what a program itself keeps beside its run. */
int sluice_broadcast(sluice_run *run, void *data, uint64_t bytes);

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

/* Tells the run, before sluice_close, that the program ends because of a failure of its own.
 * `failure`: a few words, which are copied ("bad batch 7"); NULL: there is no failure. It changes
 * only how a run of several ranks is closed. This rank then waits at most debug.comm.exit_seconds
 * for the others to close too (in a collective of NCCL at least half of comm.timeout_seconds). If
 * they do not, the run ends on all ranks, as after any failure of a rank. */
void sluice_set_failure(sluice_run *run, const char *failure);

/* Commits the steps that are not yet committed, and frees all. NULL is allowed. After a failed step
 * it returns that failure again. With several ranks it waits until all ranks close. SLUICE_FAILED:
 * another rank has begun a step, and waits for this one there. */
int sluice_close(sluice_run *run);

/* ---- whole tasks, without an open run ----
 *
 * `stop`, where an options struct has it, may be NULL; the task ends soon after it becomes nonzero,
 * with SLUICE_STOPPED. It may be set by a signal handler. */

struct sluice_train_options {
    struct sluice_options job; /* as for sluice_open */
    const volatile sig_atomic_t *stop;
    /* Callbacks on rank 0, each or NULL: after each step, and after each evaluation (nats per
     * token). */
    void (*on_step)(void *user, const struct sluice_step_info *step);
    void (*on_evaluation)(void *user, uint64_t step, double loss);
    void *user;
};

struct sluice_train_result {
    uint64_t step;               /* the run is at this step, and it is committed */
    uint64_t steps_done, tokens; /* by this call */
    double seconds;
    double loss;             /* the mean of the last step; NAN if no step was made */
    double valid_loss;       /* of the last evaluation, nats per token; NAN if there was none */
    int resumed;             /* not 0: the run went on from a commit */
    uint64_t peak_bytes[3];  /* of this rank: device, host, nvme */
    uint64_t resident_bytes; /* the most memory that the process had so far */
};

/* Trains to run.steps, with the evaluations and commits that the job asks for, as `sluice train`.
 * `options` and `result` may be NULL. After SLUICE_STOPPED the result is filled, the state is
 * committed, and the same call resumes. */
int sluice_train(const char *job_path, const struct sluice_train_options *options,
                 struct sluice_train_result *result);

/* All zero: the defaults. */
struct sluice_plan_options {
    const char *const *set; /* [set_count] "key.path=value" */
    size_t set_count;
    const char *machine;     /* a machine.json, or the name of a described machine; or NULL */
    const char *job_text;    /* as in struct sluice_options */
    uint32_t ranks;          /* 0: 1, or all ranks of a described machine */
    uint32_t ranks_per_host; /* 0: all of them */
    int verbose;             /* below 0: not even warnings */
};

/* Plans a job: where its states go, what it needs, how long a step takes. Touches no drive. *json:
 * the object that `sluice plan --json` prints (bytes and seconds), to be freed by sluice_free; NULL
 * on failure. `options` may be NULL. */
int sluice_plan(const char *job_path, const struct sluice_plan_options *options, char **json);

/* All zero: the defaults. */
struct sluice_probe_options {
    const char *const *drives; /* [drive_count] directories; none: the working directory */
    size_t drive_count;
    const char *backend; /* "auto", "cpu" or "cuda"; NULL: "auto" */
    int quick;           /* not 0: under 30 s; otherwise under 3 minutes */
    int tiny; /* not 0: a few seconds, for tests: the figures are not good enough for plans */
    const volatile sig_atomic_t *stop;
    /* Told the name of what is measured, and the share that is done (0 to 1). May be NULL. It is
     * called on another thread while the caller waits. */
    void (*on_progress)(void *user, const char *what, double done_share);
    void *user;
};

/* Measures this machine and writes the file, which plans take as `machine`. A file that exists is
 * replaced only if a probe wrote it. `options` may be NULL. */
int sluice_probe(const char *path, const struct sluice_probe_options *options);

/* All zero: the defaults. */
struct sluice_generate_options {
    const char *const *set; /* [set_count] "key.path=value" of the run's job */
    size_t set_count;
    uint64_t token_count;  /* at most so many; 0: 256 */
    double temperature;    /* 0: the likeliest token */
    uint64_t top_k;        /* 0: all */
    double top_p;          /* 0 acts as 1: all */
    uint64_t seed;         /* of the draws */
    uint64_t context;      /* most positions that the model sees; 0: as many as the text takes */
    const char *stop_text; /* the text ends before this one; or NULL */
    int ignore_end;        /* not 0: goes on after the token that ends a text */
    int chat;              /* not 0: the prompt is a user's message, and only the answer comes */
    const char *system;    /* with chat: the system message; or NULL */
    int verbose;
    const volatile sig_atomic_t *stop;
    /* Receives the bytes of each token, the prompt's first; not whole characters. Anything but 0
     * ends the text. May be NULL. */
    int (*on_text)(void *user, const char *bytes, size_t byte_count);
    void (*on_token)(void *user, int32_t id, int is_prompt); /* may be NULL */
    void *user;
};

struct sluice_generate_result {
    uint64_t prompt_tokens, tokens; /* tokens: generated, with the one that ends the text */
    uint64_t context;
    double prefill_seconds, decode_seconds;
    const char *ended_by; /* "tokens", "end", "stop_text" or "stopped" */
};

/* Continues prompt[prompt_bytes] with the model of a run directory's last commit, or of a Hugging
 * Face checkpoint. `options` and `result` may be NULL. */
int sluice_generate(const char *path, const char *prompt, size_t prompt_bytes,
                    const struct sluice_generate_options *options,
                    struct sluice_generate_result *result);

/* All zero: the defaults. */
struct sluice_evaluate_options {
    const char *const *set; /* [set_count] "key.path=value" of the run's job, such as data.format */
    size_t set_count;
    uint64_t context; /* most tokens from which one is predicted; 0: model.seq_length */
    uint64_t stride;  /* tokens between windows; 0: the context */
    uint64_t batches; /* at most so many micro-batches; 0: all */
    int verbose;
    const volatile sig_atomic_t *stop;
};

struct sluice_evaluate_result {
    double loss;          /* nats per token */
    double perplexity;    /* e^loss */
    double bits_per_byte; /* NAN if the tokens' bytes are not known */
    uint64_t tokens;      /* predicted */
    double seconds;
};

/* Computes the loss of a trained model on files. `options` may be NULL. */
int sluice_evaluate_files(const char *path, const char *const *files, size_t file_count,
                          const struct sluice_evaluate_options *options,
                          struct sluice_evaluate_result *result);

/* Writes the last commit of a run that is not open as a Hugging Face checkpoint. `options` may be
 * NULL. */
int sluice_export_run(const char *run_dir, const char *directory,
                      const struct sluice_export_options *options);

/* ---- a run whose passes the caller computes ----
 *
 * The job has the key model.module in place of a family: a list of units (flat vectors of tensors)
 * and of stages, in the order of the forward, with the one or two units that each uses. The library
 * brings the params of a stage to the device, and the caller computes and hands back gradients. As
 * for any run, the library decides where state rests, updates it, commits it and resumes.
 *
 *   sluice_open -> sluice_module_begin -> sluice_module_wait -> sluice_module_done   a step: all
 *                                                ^                      |            uses of it,
 *                                                +----------------------+            in order
 *                  sluice_module_end    <------- or sluice_module_abort, at any time
 *   -> sluice_close, or sluice_module_close -> sluice_module_unmap
 *
 * A step uses, for each micro-batch, the forward of each stage but the last in order, then the
 * backward of each stage from the last to the first. The last stage's backward is its forward, the
 * loss and the backward. Stages whose forward or backward is null in the job are left out. An
 * evaluation uses the forward of each stage, of one micro-batch.
 *
 * A unit's flat vector has its tensors one after the other, each at a multiple of 128 elements
 * (sluice_module_locate), and ends at a multiple of 4096. Activations are the caller's own: they
 * count for no budget.
 *
 * Threads: calls may come from different threads, one at a time. They sleep while they wait. The
 * threads that compute are the caller's; the library needs cores only for copies, drives and
 * updates. On the CPU updates run between uses; a long use should call sluice_module_pause now and
 * then. With a GPU the caller waits for its own streams before sluice_module_done. While it
 * computes, only those transfers go on that have begun. */

enum sluice_pass { SLUICE_FORWARD, SLUICE_BACKWARD };

/* A pass that is to be computed. The pointers are device memory, and valid until
 * sluice_module_done. */
struct sluice_use {
    uint32_t stage;
    enum sluice_pass pass;
    uint32_t micro_batch;
    int is_training; /* 0: an evaluation */
    uint32_t unit_count, units[2];
    const void *params[2]; /* [elems] in the job's dtype; NULL: not read */
    /* [elems] fp32 sums to which the pass adds its gradients; NULL: none are wanted. */
    float *grads[2];
    /* Not 0: grads[i] holds nothing yet. The pass writes every tensor; what is between tensors need
     * not be written. */
    int fresh[2];
    int lends; /* not 0: the pass lends the gradients of units[0] (sluice_module_lend); grads[0] is
                * NULL */
    uint64_t elems[2]; /* of the padded flat vector */
    /* The loss whose gradients are added is the micro-batch's own times this: the loss scale
     * divided by the number of micro-batches of all ranks. */
    double grad_scale;
};

/* Begins a step, or an evaluation (is_training 0). */
int sluice_module_begin(sluice_run *run, int is_training);

/* Waits for the next use. SLUICE_WRONG if the last one is not done, or if there is no more. Any
 * other failure is that of the step, which sluice_module_end then returns too. */
int sluice_module_wait(sluice_run *run, struct sluice_use *use);

/* Lends the gradients of units[0] to the run, in a use with `lends` and before sluice_module_done.
 * grads[t] belongs to the unit's tensor t, in the order of the job and in its dtype, without gaps;
 * NULL stands for zeros, and so does a use without this call. The unit's update reads them there,
 * in place of sums. The caller keeps them as they are until sluice_module_wait gives the second use
 * with `lends` after this one, or the step is over.
 *
 * The job's model.module.lends_grads says that the program can do so. Uses then have `lends` on
 * one rank of the CPU, in a step of one micro-batch with schedule.update in_backward, for units
 * whose gradients no other backward adds to and Muon does not update. SLUICE_WRONG: the use does
 * not lend, or the unit has another number of tensors. */
int sluice_module_lend(sluice_run *run, const void *const *grads, uint32_t tensor_count);

/* Runs all updates that are ready. Call it in a use that takes long, between two parts of its
 * computing. Otherwise updates wait for the end of the use, and drives wait for the memory of
 * updates. Returns not 0 if updates waited. If none did, or no use is held, it returns 0 after two
 * short locks. Updates never wait with a GPU, nor where update.cores or update.threads differ from
 * those that compute, because they have a worker of their own there. If an update fails,
 * sluice_module_wait or sluice_module_end gives its error once the use is done. */
int sluice_module_pause(sluice_run *run);

/* The use is over. `loss`: of the last stage, the micro-batch's own loss without the scale, for
 * metrics.jsonl; NULL: not known. */
int sluice_module_done(sluice_run *run, const double *loss);

/* Waits for the end of the step, with the commit that run.commit_every asks for. SLUICE_WRONG, and
 * the step stays open, if not all uses are done. After any other failure the run can only be
 * closed. `info` may be NULL; an evaluation fills in its loss alone. */
int sluice_module_end(sluice_run *run, struct sluice_step_info *info);

/* Gives up the open step or evaluation; `why` is a sentence, or NULL. SLUICE_DONE: the run is as it
 * was before, and the step can be begun again; or all uses were done already, and the step counts
 * (sluice_get_info). SLUICE_FAILED, for a step of several ranks or with
 * schedule.update in_backward: the run can only be closed, and goes on from its last commit when it
 * is opened again. */
int sluice_module_abort(sluice_run *run, const char *why);

/* The optimizer's numbers of a group of units. NAN: the job's, those of its scheduler included. */
struct sluice_group {
    double lr, weight_decay, betas[2], eps;
};

/* Sets the numbers of a group for the steps that begin afterwards. They are not part of a commit:
 * set them again after sluice_open. */
int sluice_module_set_group(sluice_run *run, uint32_t group, const struct sluice_group *numbers);

/* Where tensor number `tensor` of a unit lies in the unit's flat vector. */
int sluice_module_locate(const sluice_run *run, uint32_t unit, uint32_t tensor,
                         uint64_t *offset_elems, uint64_t *elems);

/* The unit's params after the last step, where they rest: *params [elems] in the job's dtype, to be
 * read until the next step begins; it is the same address after each step. *params is NULL if they
 * rest on a drive, on a GPU, or in part on other ranks. A pending update is made first. */
int sluice_module_home(sluice_run *run, uint32_t unit, void **params, uint64_t *bytes);

/* Memory of a closed run: [0] of its device, [1] of its host. 0 bytes: there is none; memory of a
 * GPU is never here. */
struct sluice_memory {
    void *base[2];
    uint64_t bytes[2];
};

/* Like sluice_close, for a program whose parts may still read or write at the run's addresses. The
 * addresses stay valid until sluice_module_unmap, whatever sluice_module_close returns, except
 * those that uses got while run.paranoid was set. It overwrites *memory. If keeps_params is not 0,
 * params that sluice_module_home gave keep their values; after an error the last update may be in
 * them in part. All else reads as zeros and takes no memory until it is written to. Memory of a GPU
 * is freed at once. */
int sluice_module_close(sluice_run *run, int keeps_params, struct sluice_memory *memory);

/* Frees the memory. It may be called at any time, from any thread, and in a forked process. */
void sluice_module_unmap(struct sluice_memory *memory);

#ifdef __cplusplus
}
#endif

#endif
