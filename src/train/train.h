/* Training, planning and generating: the only place that combines all other parts.
 *
 *   train_run     job -> setup (model, placement, programs) -> engine (arenas, slabs, lanes) -> steps
 *   train_plan    job -> setup alone: nothing is created, no large allocation
 *   generate_run  run directory or checkpoint -> parameters -> tokens
 *   evaluate_run  the same -> the loss on files
 *   verify_run    run directory -> every committed byte compared with its checksum
 *   inspect_run   run directory -> what its manifest says
 *
 * One call at a time per process, on a thread that keeps a short scheduling slice from then on. Blocking;
 * progress is told through callbacks on the caller's thread. Of several ranks train_run is called by all, alike;
 * the others are one process's, whatever the number of ranks that trained.
 * Errors: see the err_code list; ERR_NO_FIT comes before any file or large allocation. */
#ifndef SLUICE_TRAIN_TRAIN_H
#define SLUICE_TRAIN_TRAIN_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"
#include "base/words.h"
#include "config/config.h"
#include "swap/program.h"

/* What a lane did in one step or in a whole run. */
struct lane_numbers {
    uint64_t bytes;       /* moved */
    double busy_seconds;  /* at least one op was running */
    double stall_seconds; /* the cores waited for this lane */
};

struct train_progress {
    uint64_t step, steps, tokens; /* tokens of this step */
    double loss, grad_norm, learning_rate, seconds, tokens_per_second, model_tflops;
    double seconds_left; /* negative: unknown */
    bool skipped;
    struct lane_numbers lanes[LANE_COUNT];
};

struct train_eval {
    uint64_t step;
    double loss; /* nats per token of data.valid */
};

/* What one rank has and had: of train_summary. */
struct train_rank {
    char host[64];
    uint64_t arena_bytes
        [TIER_COUNT];        /* memory of the device and host arenas, and of the slabs' extents, as
                                          they were made */
    uint64_t slab_file_bytes; /* of its slab files, headers included */
    uint64_t sent_bytes;      /* to other ranks by collectives, in the last step */
    uint64_t resident_bytes_max;
};

enum {
    PLAN_PEAK_BYTES = 192,
    PLAN_LINKS_MAX = 8,
};

/* What the ops of a rank's steady step ask of one resource (enum plan_resource), and from how many tokens a
 * step on that hides behind computing. Growing is what there is more of with more tokens: activations, and
 * the passes themselves. The rest, states on their way, is the same for any number of them (in the order
 * batch_major: for any size of micro-batch). */
struct plan_link {
    const char *name;        /* "drive", "h2d", "d2h", "dram", "cores", "device", "comm" */
    double bytes;            /* drive: read and written; cores: 0 */
    double bytes_per_second; /* as the plan takes it; drive: of this mix; 0: it moves no bytes */
    double seconds;          /* that all of the resource is needed */
    double growing_seconds;  /* of these, what grows with the tokens */
    bool is_computing;       /* the passes run on it: hidden_tokens is 0 */
    double hidden_tokens; /* T*: tokens of a rank's step at which the resource is needed as long as
                                computing takes; 0: at any number; INFINITY: at none, because what grows
                                takes longer than computing as it is */
};

struct plan_summary {
    char model_name[96];
    uint32_t world_size, zero_stage, ranks_per_host;
    uint64_t sent_bytes;    /* by each rank to others in a steady step */
    char state_formats[64]; /* of each stream of optimizer state: "fp32, bf16, bf16" */
    double
        state_param_bytes;  /* of it, for each parameter that learns; tiles' padding not counted */
    bool state_has_formats; /* one is not fp32 */
    uint64_t param_count, unit_count;
    uint64_t micro_batch, micro_batch_count, seq_length; /* of a rank's step: B, how many, T */
    /* Of each rank, as all below. What lies in an arena adds up: homes of states, scratch, places of the
     * state on the slab, padding (alignment and rounding), and above all homes what is under way, to the peak. */
    uint64_t home_bytes[STATE_KIND_COUNT][TIER_COUNT]; /* where each state rests */
    uint64_t scratch_bytes[TIER_COUNT]; /* workspace, tables, tokens, losses, norms */
    uint64_t save_bytes;   /* of nvme: places of optimizer state that is homed in memory */
    uint64_t second_bytes; /* of nvme: the second places of what commits keep (run.commit_every) */
    uint64_t
        copy_bytes; /* of host: optimizer state on nvme that a step begins with (plan/plan.h) */
    uint64_t packed_bytes; /* of device: the most that a pass holds packed (plan/plan.h) */
    uint64_t kept_bytes;   /* what second places take, or would take, where steps commit */
    uint64_t padding_bytes[TIER_COUNT];
    uint64_t moving_bytes[TIER_COUNT];
    uint64_t budget_bytes[TIER_COUNT], peak_bytes[TIER_COUNT];
    /* The buffer that ends at the peak, who makes it, and in which program. "": nothing lies there. */
    char peak_what[TIER_COUNT][PLAN_PEAK_BYTES];
    /* Of a steady step, in the mean over those that commit and those that do not: */
    uint64_t lane_bytes[LANE_COUNT];
    double lane_seconds[LANE_COUNT]; /* that an op of the lane runs */
    double step_seconds;             /* predicted */
    double bound_seconds;            /* per phase, the busiest resource's work */
    double
        schedule_bound_seconds; /* a bound that knows the dependencies too: at least bound_seconds; 0: none */
    uint32_t link_count;
    struct plan_link links[PLAN_LINKS_MAX]; /* by enum plan_resource */
    const char
        *bottleneck; /* the lane that is busy longest: what a measurement can be compared with */
    const char *busiest;    /* the resource that is needed longest; read and write are one drive */
    double busiest_seconds; /* that it is needed */
    double computing_seconds; /* of the passes alone, on the resource that computes */
    uint64_t tokens_per_step, tile_elems, held_stages, op_count; /* tokens: of all ranks */
    const char *order;                                           /* schedule.order */
    const char *update;                                          /* schedule.update in use */
    bool machine_is_measured;
    char machine_name[96]; /* "defaults", or machine.json's */
    /* Why each state rests where it does, in sentences. */
    uint32_t reason_count;
    char reasons[PLAN_REASONS_MAX][PLAN_REASON_BYTES];
    double model_flops;    /* of a step, all ranks, as the field counts them: no recomputation */
    double hardware_flops; /* of a step, of each rank: recomputation included */
    double peak_flops;     /* of a rank's device; 0: not known */
    /* Of each rank: */
    uint64_t
        commit_bytes; /* that a commit writes to the drives beyond what its step writes anyway */
    double commit_seconds; /* that it makes its step longer */
    uint64_t commit_every; /* run.commit_every; 0: at clean stops alone */
    uint64_t read_bytes[STATE_KIND_COUNT], written_bytes[STATE_KIND_COUNT]; /* of the drives, in the
                                                                mean step; without what commits write */
    uint64_t commit_share_bytes;   /* what commits write, in the mean step */
    uint64_t drive_written_bytes;  /* all of it */
    uint64_t drive_capacity_bytes; /* of all drives of a host; 0: not known */
    double drive_endurance_bytes;  /* likewise */
};

struct train_summary {
    uint64_t step;               /* that the run is at, and that is committed */
    uint64_t steps_done, tokens; /* of this call */
    double seconds;
    double train_loss; /* of the last step */
    double eval_loss;
    bool eval_given;
    bool was_resumed;
    struct lane_numbers lanes[LANE_COUNT];
    uint64_t peak_bytes[TIER_COUNT];
    uint64_t gpu_used_bytes;      /* of its memory, at the end, by all processes; 0 on the CPU */
    uint64_t resident_bytes_max;  /* VmHWM */
    uint64_t sealed_alloc_count;  /* allocations of ours between the second step and the end: 0 */
    uint64_t sealed_mapped_bytes; /* growth of the mappings in the same time */
    uint64_t
        weights_hash; /* XXH3 over all master weights (of units that do not learn their params), by
                              unit: equal weights, equal hash, whatever the number of ranks; on rank 0 */
    struct train_rank ranks[8]; /* [min(world, 8)] on rank 0 */
    uint32_t world_size;
};

/* Host memory for runs that follow each other in one process, such as a benchmark's: touching and pinning
 * 100 GB takes minutes. Made for the GPU that device.backend "auto" takes, where there is one. A run
 * that is given it takes its host tier from it, and fails with ERR_NO_FIT where it needs more. Create and
 * destroy on the thread that runs. */
typedef struct train_memory train_memory;
int train_memory_create(uint64_t host_bytes, train_memory **out) MUST_CHECK;
void train_memory_destroy(train_memory *self); /* after the last run; NULL is allowed */

/* Tests: a machine of stated speeds. Lanes wait until an op has taken as long as the plan says that it takes
 * alone (drives, links and the cores as shared by those that run together); compute and update ops do nothing
 * else. Losses and weights then mean nothing. */
struct train_pace {
    const struct plan_machine *machine; /* takes the place of the defaults in the plan */
};

struct train_options {
    const struct job *job;
    struct comm *comm; /* ranks of this run, joined by the caller, who leaves; all of them call
                                          train_run alike. NULL: one rank. Callbacks are called on rank 0 alone */
    const struct machine *machine;     /* config/machine.h: its figures take the place of the plan's
                                          defaults; NULL: defaults. Changes no bit */
    const struct train_pace *pace;     /* tests; or NULL */
    const struct train_watch *watch;   /* watch.h: profile_run's or a benchmark's; or NULL */
    train_memory *memory;              /* borrowed; NULL: memory of the run's own */
    bool fresh;                        /* the run directory must be new, or hold no commit */
    const char *from;                  /* run directory, or a kept commit, whose state a new run
                                          begins with; it stays as it is. NULL: the beginning. A run
                                          that has begun goes on without it */
    bool is_trial;                     /* to measure: no state is kept, none has a place on the
                                          drives but what rests there; nothing is left behind */
    bool hash_weights;                 /* fill summary.weights_hash (reads all state once more) */
    const volatile sig_atomic_t *stop; /* polled between steps; may be NULL */
    const struct io_faults *faults;    /* tests: what the drives shall do (tiers/io.h), or NULL */
    uint64_t norm_part_bytes; /* tests: plan_job.norm_part_bytes; 0: as ever. Changes no bit */
    bool simulates_drives;    /* tests: the slabs' bytes lie in memory (tiers/sim.h) */
    struct sim_store *
        *store; /* tests: the simulated drives' memory, for runs that follow each other; a
                                 NULL there is filled by the first, the caller destroys it; or NULL */
    void (*on_plan)(void *user, const struct plan_summary *plan);
    void (*on_step)(void *user, const struct train_progress *progress);
    void (*on_eval)(void *user, const struct train_eval *eval);
    void *user;
};

struct comm;

/* Reads the job on rank 0, from `path` (or standard input) and `set` (job_read); the others read its merged
 * text. What is wrong with it is refused on all ranks alike: then the comm is in order. `fresh`: run.fresh. The
 * caller destroys *out. */
int train_read_job(struct comm *ranks, const char *path, const char *const *set, uint32_t set_count,
                   struct job **out, bool *fresh) MUST_CHECK;

/* Trains to run.steps, from the last commit of the run directory or from the beginning. Returns 0,
 * ERR_STOPPED after a requested stop (state is committed), or an error, whose text says which commit is
 * the last; the summary is filled as far as the run came. */
int train_run(const struct train_options *options, struct train_summary *summary) MUST_CHECK;

/* The same step by step, for a program of one's own: at the state that train_run would begin its first step
 * with. One at a time in a process, and all calls from one thread. `options` is copied, what it points to is
 * borrowed until train_close; is_trial is refused. Of several ranks all call alike. */
typedef struct train_session train_session;
int train_open(const struct train_options *options, train_session **out) MUST_CHECK;
/* One step, with the commit that run.commit_every asks for; no evaluation. ERR_USAGE behind run.steps. A step
 * that fails ends the session: what can be committed is, as train_run does it, and every further call but
 * train_close fails alike. */
int train_step(train_session *self, struct train_progress *progress) MUST_CHECK;
/* Nats per token of data.valid; a line of metrics.jsonl. ERR_USAGE where there is none. */
int train_evaluate(train_session *self, double *loss) MUST_CHECK;
/* Commits the state after the last step unless that is durable already; *step: which. */
int train_commit(train_session *self, uint64_t *step) MUST_CHECK;
/* Commits, and then export_run of that commit by rank 0, for which the others wait; run_dir and is_held are set
 * here. What is wrong with the export leaves the session as it is. */
struct export_options;
struct export_summary;
int train_export(train_session *self, const struct export_options *options,
                 struct export_summary *summary) MUST_CHECK;
void train_get_summary(const train_session *self, struct train_summary *summary,
                       struct plan_summary *plan);
/* Commits what is not committed, and frees; after a failed step frees alone and returns its failure. NULL is
 * allowed. */
int train_close(train_session *self) MUST_CHECK;

struct machine;

struct train_plan_options {
    uint32_t local_world; /* ranks that share a host; 0: all of them (described: the machine's) */
    const struct machine *machine; /* config/machine.h; borrowed; NULL: defaults */
    bool is_described; /* nothing is looked at but the machine: memory, devices, cores and drives
                                      are what it says, and the budgets that the job leaves open come from it. Scratch
                                      of a GPU's kernels is then estimated */
};

/* As train_plan, for a machine that was measured or is only described. */
int train_plan_on(const struct job *asked, const struct train_plan_options *options,
                  struct plan_summary *out) MUST_CHECK;

/* For job->world ranks, of which `local_world` share a host and its drives (0: all of them). */
int train_plan(const struct job *asked, uint32_t local_world, struct plan_summary *out) MUST_CHECK;

/* The largest model of a family that fits a job's machine and budgets, and what stops the next one. */
struct train_max_model {
    uint64_t layers, hidden, heads, max_part_bytes; /* max_part_bytes: 0: blocks are whole */
    uint64_t param_count;
    /* Of each rank: what a placement that fits takes at least, and what is there. */
    uint64_t need_bytes[TIER_COUNT], budget_bytes[TIER_COUNT];
    uint32_t world_size, ranks_per_host, zero_stage;
    char machine_name[96];
    uint64_t next_layers, next_hidden; /* 0: the family ends */
    char next_problem[ERR_TEXT_BYTES]; /* which tier, with numbers */
    uint32_t tries;
};

/* Takes everything but `model` from the job, and of that the sequence, initialization and max_part_bytes (0:
 * 256 MiB from hidden size 8192 on). Families: "gpt" (GPT-2's to ZeRO-Infinity's shapes and those in between),
 * "zero-offload", "llama". Each try asks only whether a placement fits, not which is fast. ERR_USAGE for another
 * family; ERR_NO_FIT where not even the smallest fits. */
int train_max_model(const struct job *asked, const char *family,
                    const struct train_plan_options *options,
                    struct train_max_model *out) MUST_CHECK;

enum generate_end {
    GENERATE_TOKENS,  /* as many as were asked for */
    GENERATE_END,     /* the model has ended the text */
    GENERATE_TEXT,    /* the text to stop at has come */
    GENERATE_STOPPED, /* on request, or by a callback */
};

struct generate_result {
    uint64_t prompt_tokens, tokens; /* tokens: generated, the one that ends the text included */
    uint64_t context;               /* positions that keys and values are kept of */
    uint64_t slides;                /* times that the older half of them was dropped */
    double prefill_seconds;         /* of the prompt's tokens, the first token's logits included */
    double decode_seconds; /* of all that follows: tokens - 1 calls, and what slides take */
    enum generate_end ended;
};

struct generate_options {
    const char *run_dir;    /* a run directory, or a checkpoint of Hugging Face */
    const char *const *set; /* [set_count] "key.path=value" of the job: budgets, types, ... */
    uint32_t set_count;
    const char *prompt; /* bytes */
    uint64_t prompt_bytes, token_count, top_k, seed;
    double temperature; /* 0: the likeliest token */
    double top_p;       /* 0 acts as 1: all */
    uint64_t context;   /* most positions; 0: as many as the text takes, at most model.seq_length */
    const char
        *stop_text;     /* where it comes in what is generated, the text ends before it; or NULL */
    bool ignores_end;   /* the token that ends a text is a token like any other */
    bool is_chat;       /* the prompt is what a user says; the answer alone is shown */
    const char *system; /* of a chat: what comes before it; or NULL */
    const volatile sig_atomic_t *stop;
    int (*on_token)(void *user, const char *bytes, uint64_t count); /* negative ends it */
    void (*on_id)(void *user, int32_t id, bool is_prompt);          /* each; or NULL */
    void *user;
    struct generate_result *result; /* filled as far as it came; or NULL */
};

/* Continues the prompt with the model of the run's last commit, or of the checkpoint. The prompt is shown first. Keys
 * and values of the positions so far are kept on the device. Where the text outgrows the context, the older half of
 * it is dropped and the rest read again: the model always sees between half of the context and all of it. ERR_NO_FIT
 * says which context would fit. */
int generate_run(const struct generate_options *options) MUST_CHECK;

/* Where an evaluation is, and what has come of it so far. */
struct evaluate_progress {
    uint64_t tokens_done, tokens; /* predicted ones */
    double loss;                  /* of those done */
    double seconds;
};

struct evaluate_options {
    const char *path; /* a run directory, or a checkpoint of Hugging Face */
    const char *const *files;
    uint32_t file_count;
    const char *const *set; /* [set_count] "key.path=value" of the job: budgets, data.format, ... */
    uint32_t set_count;
    uint64_t context; /* most tokens that a token is predicted from; 0: model.seq_length */
    uint64_t
        stride; /* between windows, at most the context; 0: the context, so that they do not overlap */
    uint64_t batches; /* at most so many micro-batches; 0: all there is */
    const volatile sig_atomic_t *stop;
    void (*on_progress)(void *user,
                        const struct evaluate_progress *progress); /* each micro-batch; or NULL */
    void *user;
};

struct evaluate_result {
    uint64_t
        tokens; /* predicted and counted, each once: all but the first of the text; of conversations the answers alone */
    uint64_t text_bytes;  /* that these tokens stand for; 0: not known (ids without a tokenizer) */
    double nats;          /* of all of them */
    double loss;          /* nats per token */
    double perplexity;    /* e^loss */
    double bits_per_byte; /* NAN where text_bytes is 0 */
    uint64_t context, stride, windows;
    double seconds; /* of computing */
};

/* The loss of a trained model on files, in order, each token once; see eval_windows.h. The files make one text,
 * as they do in training. ERR_INPUT for files without two tokens; ERR_NO_FIT; ERR_STOPPED. */
int evaluate_run(const struct evaluate_options *options, struct evaluate_result *result) MUST_CHECK;

/* import.c: a run directory whose commit of step 0 has a checkpoint's weights and moments of zero. */
struct import_options {
    const char *hf_dir;  /* config.json, model.safetensors or its index, and what belongs to them */
    const char *run_dir; /* must be new, or hold no run */
    const char *
        job_path; /* a job for what the run is to be; "-": standard input; NULL: one is made, of the
                             checkpoint's dtype */
    const char *const *set; /* [set_count] overrides, "key.path=value" */
    uint32_t set_count;
    const volatile sig_atomic_t *stop; /* may be NULL */
    void (*on_progress)(void *user, uint64_t done_bytes, uint64_t total_bytes, double seconds);
    void *user;
};

struct import_summary {
    uint64_t param_count, unit_count;
    uint64_t read_bytes;    /* of the checkpoint's tensors */
    uint64_t written_bytes; /* to the slabs: fp32 masters */
    uint64_t side_files;    /* copied to RUN/hf */
    const char *type;       /* of the tensors: "bf16" */
    char slab_dir[4096];    /* where the slab is; of several drives the first */
    double seconds;
    uint64_t resident_bytes_max; /* of this process so far */
};

/* Reads the checkpoint once, tile by tile; nothing of the run stays where it fails or is stopped (ERR_STOPPED).
 * Memory: some 100 MiB, and for GPT-2 a strip (weights.h). Moments of zero are holes of the slab's file. ERR_INPUT for
 * a checkpoint that is damaged or not the job's model, or a run directory that holds a run; ERR_CONFIG; ERR_NO_FIT
 * where the drives have too little space. */
int import_run(const struct import_options *options, struct import_summary *summary) MUST_CHECK;

/* export.c: a checkpoint as Hugging Face's transformers loads it, of a run's last commit. */
struct export_options {
    const char *run_dir;  /* or that of a commit that was kept */
    const char *hf_dir;   /* is made; must be empty, unless `force` */
    const char *type;     /* "fp32", "bf16", "fp16"; NULL: the run's working dtype */
    uint64_t shard_bytes; /* most bytes of a file's tensors; 0: 5 GB (5 * 10^9) */
    bool adapters;        /* of a run with train.lora: the adapters alone, as PEFT has them; else
                             they are added to the weights that are written */
    bool force;           /* replaces files of these names in a directory that is not empty */
    bool is_held;         /* the caller has the run open, and it makes no step meanwhile */
    const volatile sig_atomic_t *stop; /* may be NULL */
    const struct io_faults *faults;    /* tests: of the drives, or NULL */
    void (*on_progress)(void *user, uint64_t done_bytes, uint64_t total_bytes, double seconds);
    void *user;
};

struct export_summary {
    uint64_t step, param_count, tensor_count;
    uint32_t file_count;    /* of weights */
    uint64_t written_bytes; /* of weights */
    uint64_t read_bytes;    /* of the slabs, compared with their sums */
    uint64_t side_files;    /* carried along */
    const char *type;
    double seconds;
    uint64_t resident_bytes_max; /* of this process so far */
};

/* Reads all extents of the commit, compares them with their sums, and writes their master weights in the type. Every
 * file is whole or not there under its name; the index and config.json come last. ERR_CORRUPT as verify_run says it;
 * ERR_INPUT where there is no commit, hf_dir is not empty, or a weight has no place in fp16; -ENOSPC. With
 * `adapters` only those are read; ERR_CONFIG where there are none, or more has learned than they. */
int export_run(const struct export_options *options, struct export_summary *summary) MUST_CHECK;

/* A difference between what a run's drives hold and what its manifest says. */
struct verify_damage {
    char unit_name[64];  /* of the model; "" where it is not of a unit */
    uint32_t unit, tile; /* tile: of the rank's part of the unit */
    /* Which of the tile's bytes: "optimizer state", "params", or of a split master the half that they
     * have; static. NULL where it is not of a unit. */
    const char *part;
    uint32_t rank;        /* whose file it is; 0 where it is not a slab's */
    char path[4096];      /* of the file; an extent across stripes: where it begins */
    uint64_t file_offset; /* bytes */
    uint64_t size_bytes;
    uint64_t expected, found; /* sums; both 0: it could not be read, or is no extent */
    char reason[256];         /* one clause */
};

struct verify_options {
    const char *run_dir;
    const volatile sig_atomic_t *stop;
    const struct io_faults *faults; /* tests: what the drives shall do (tiers/io.h), or NULL */
    void (*on_progress)(void *user, uint64_t done_bytes, uint64_t total_bytes, double seconds);
    void (*on_damage)(void *user, const struct verify_damage *damage); /* each */
    void *user;
};

struct verify_summary {
    uint64_t step, extent_count, bytes; /* of the commit that a run would go on from */
    uint64_t slab_bytes;                /* of the address spaces that they lie in */
    uint64_t damage_count;              /* damaged manifests and slab headers included */
    uint32_t world_size;
    uint32_t
        unseen_count; /* ranks of other hosts whose slabs are not seen from here: not compared */
    double seconds;
    uint64_t
        weights_hash; /* as in train_summary; 0 where a slab or an extent is damaged or not seen,
                              or where there are several ranks and no job.json that says what of
                              their units is padding */
};

/* Reads all that the newest commit names, at the drives' speed, and compares; changes nothing. 0 where all
 * is well; ERR_CORRUPT with the number of differences; ERR_INPUT where there is no run or no commit,
 * another process has the run in use, or all is well but slabs on other hosts are not seen (unseen_count).
 * Of a run whose ranks each had the whole state every rank's copy is compared. */
int verify_run(const struct verify_options *options, struct verify_summary *summary) MUST_CHECK;

struct inspect_slot {
    bool is_present, is_valid;
    char reason[256]; /* where present and not valid */
    uint64_t generation, step;
};

struct inspect_file {
    char path[4096];
    uint32_t rank;
    uint64_t size_bytes, allocated_bytes; /* both 0: absent */
};

struct inspect_rank {
    char host[64]; /* that it ran on; "": not noted (one rank) */
    uint32_t local_rank;
};

struct inspect_unit {
    char name[64];
    uint64_t elems, tile_count, size_bytes; /* of its committed extents, padding included */
    uint64_t offset_bytes;                  /* of the first one in the nvme address space */
    bool is_frozen;                         /* it does not learn: they are of its params alone */
};

struct inspect_kept {
    uint64_t step;
    char path[4096]; /* a run directory of its own */
};

/* Freed with inspect_fini. Nothing is read but manifests, slab headers, job.json. */
struct inspect_summary {
    const char *state; /* "committed", "running", "begun"; "damaged": no manifest is valid, and
                          all but slots and kept is 0 */
    uint64_t step, window_count, skipped_count, seed, generation;
    double loss_scale;
    char uuid[33];
    char identity[4096];    /* "key=value" lines: what the bits depend on */
    char state_formats[64]; /* of each stream: "fp32, bf16, bf16"; "": not known */
    uint64_t state_streams, tile_elems, extent_count, extents_bytes, total_bytes, stripe_bytes;
    struct inspect_slot slots[2];
    uint32_t world_size, zero_stage;
    bool is_replicated;         /* each rank has the whole state; the extents are one rank's */
    struct inspect_rank *ranks; /* [world_size] */
    struct inspect_file *files; /* [file_count] slabs, by rank */
    uint32_t file_count;
    struct inspect_unit *units; /* [unit_count] */
    uint32_t unit_count;
    struct inspect_kept *kept; /* [kept_count] by step */
    uint32_t kept_count;
};

/* ERR_INPUT where there is no run. Works on a run that is in use, and on one that is damaged. */
int inspect_run(const char *run_dir, struct inspect_summary *out) MUST_CHECK;
void inspect_fini(struct inspect_summary *self);

#endif
