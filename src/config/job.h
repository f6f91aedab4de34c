/* The job: everything a run was asked to do, checked, with defaults filled in.
 *
 *   job.json (+ --set) -> parse (jansson; comments, trailing commas, no duplicate keys)
 *                      -> options table (config/options.h): names, types, ranges, defaults
 *                      -> relations between keys -> struct job
 *
 * DeepSpeed's keys keep their names, meanings, units and defaults, but that limits of stage 3 hold only where
 * they are given; `model`, `data`, `run`, `device`, `update`, `tiers`, `schedule`, `state`, `io` and `comm` are Sluice's own.
 * Known keys without effect here are named once in the log.
 * Pure but for reading the named files. */
#ifndef SLUICE_CONFIG_JOB_H
#define SLUICE_CONFIG_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/error.h"
#include "base/file.h"
#include "base/tile.h"
#include "base/words.h"

enum {
    JOB_FILES_MAX = 64,
    JOB_RULES_MAX = 64,
    JOB_NAME_BYTES = 64,
    JOB_BLOCKS_MAX = 60,    /* ranges in train.only */
    JOB_TARGETS_MAX = 16,   /* train.lora.targets */
    JOB_CHANGE_BYTES = 128, /* of a value in job_list_changes */
};

enum job_optimizer { JOB_ADAM, JOB_LION, JOB_ADAGRAD };
enum job_schedule {
    JOB_SCHEDULE_NONE,
    JOB_WARMUP_LR,
    JOB_WARMUP_DECAY_LR,
    JOB_WARMUP_COSINE_LR,
    JOB_ONE_CYCLE,
    JOB_LR_RANGE_TEST
};
struct job_model {
    char preset[JOB_NAME_BYTES]; /* as given, or "" */
    char
        hf[FILE_PATH_BYTES]; /* model.hf: the directory of a Hugging Face checkpoint, whose weights a
                                    new run begins with; or "" */
    char family[JOB_NAME_BYTES]; /* "gpt2" or "llama" */
    uint64_t num_layers, hidden_size, num_heads, num_kv_heads, ffn_size, vocab_size, seq_length;
    uint64_t head_dim;       /* 0: hidden_size / num_heads */
    uint64_t position_count; /* gpt2: rows of the table of positions; 0: seq_length */
    bool tie_embeddings, qkv_bias, qk_norm;
    double rope_theta, norm_epsilon, init_std;
    enum rope_scaling rope_scaling;
    double rope_factor, rope_low_freq_factor, rope_high_freq_factor;
    uint64_t rope_original_positions;
    uint64_t max_part_bytes; /* units whose working params are larger are cut into parts; 0: none */
};

/* Blocks first .. last, both included. */
struct job_blocks {
    uint64_t first, last;
};

/* What learns: train.only, the union of all that is named, and train.lora. */
struct job_train {
    bool is_given; /* train.only; else everything, or with adapters these alone */
    bool all, embed, head, norms;
    struct job_blocks blocks[JOB_BLOCKS_MAX];
    uint32_t range_count;
    uint64_t lora_rank; /* 0: no adapters */
    double lora_alpha;
    char lora_targets[JOB_TARGETS_MAX]
                     [JOB_NAME_BYTES]; /* names as PEFT's; none: the family's usual */
    uint32_t lora_target_count;
};

struct job_files {
    char path[JOB_FILES_MAX][FILE_PATH_BYTES];
    char field[JOB_FILES_MAX][JOB_NAME_BYTES]; /* of a JSON line; "text" */
    uint32_t source[JOB_FILES_MAX];            /* which the file belongs to, ascending */
    double weight[JOB_FILES_MAX];              /* [source_count]; one without weights: 1 */
    uint32_t count, source_count;
};

struct job_drive {
    char path[FILE_PATH_BYTES];
    uint64_t budget_bytes; /* 0: free space less 10% */
};

/* One hand-written placement: later rules win over earlier ones and over the kind's own tier. */
struct job_rule {
    uint32_t unit_first, unit_last; /* inclusive, in the model's unit numbering */
    enum state_kind kind;
    enum tier tier;
};

struct job {
    struct job_model model;
    struct job_train train;
    struct {
        struct job_files train, valid;
        char tokenizer[FILE_PATH_BYTES]; /* "bytes", or a path */
        bool tokenizer_is_given; /* the job names it; else it is what model.hf has, or "bytes" */
        char chat_template[JOB_NAME_BYTES];
        enum data_format format;
        enum shuffle shuffle;
        uint64_t seed;
    } data;
    struct {
        char dir[FILE_PATH_BYTES];
        uint64_t steps, seed, eval_every, eval_batches, commit_every, log_every;
        uint64_t
            keep_every; /* commits of these steps are kept: multiples of it; 0: none but `keep` */
        uint64_t *keep; /* [keep_count] ascending, mem_alloc'd: and these */
        uint32_t keep_count;
        bool fresh;
        bool paranoid; /* fresh addresses, NaN-fill, compare, poison: finds our own bugs, slow */
    } run;
    struct {
        char backend[JOB_NAME_BYTES]; /* "auto", "cpu", "cuda" */
        uint64_t threads;             /* of computing; 0: all cores of the affinity mask */
        char cores[JOB_NAME_BYTES];   /* core set of computing, "0-7,16"; "": automatic */
    } device;
    struct {
        uint64_t threads;           /* of the optimizer on the CPU; 0: as device.threads */
        char cores[JOB_NAME_BYTES]; /* "": automatic */
    } update;
    struct {
        uint64_t device_budget, host_budget; /* 0: automatic (see README) */
        struct job_drive nvme[DRIVES_MAX];
        uint32_t nvme_count;
        enum tier place[STATE_KIND_COUNT];
        struct job_rule rules[JOB_RULES_MAX];
        uint32_t rule_count;
    } tiers;
    struct {
        enum order order;
        enum update update;
        uint64_t tile_elems; /* 0: automatic */
        uint64_t lookahead;  /* ops that a prefetch may run ahead; 0: as far as memory allows */
    } schedule;
    struct {
        char backend[JOB_NAME_BYTES];        /* "auto", "uring", "pool" (io.backend) */
        uint64_t block_bytes, queue_depth;   /* aio */
        bool block_is_given, depth_is_given; /* else the machine file's go before them */
        uint64_t threads;                    /* of the pread/pwrite pool, per drive; 0: automatic */
        char cores[JOB_NAME_BYTES];          /* of the pool and the scheduler; "": automatic */
        double stuck_seconds;                /* a request is reported after so long; 0: never */
        double stop_seconds; /* and after so long the run stops, its last commit intact; 0: never */
        bool verify_reads;   /* compare what is read with the sums of what was written */
    } io;
    uint32_t world; /* ranks, as told to job_read_ranks */
    uint64_t train_batch_size, micro_batch,
        accumulation; /* resolved: train = micro * accumulation * world */
    struct {
        char backend[JOB_NAME_BYTES]; /* comm.backend: "auto", "mpi", "staged", "nccl" */
        double timeout_seconds; /* of a rank's silence; of no rank getting on while some wait */
        double exit_seconds;    /* from a failure of any rank to the end of all processes */
        uint64_t staging_bytes; /* per rank, host memory that the ranks of a host share */
        enum dtype wire; /* of gradients between ranks: communication_data_type; default: `type` */
    } comm;
    double gradient_clipping;
    enum dtype type;       /* of params in compute and of activations: fp32, bf16 or fp16 */
    struct {               /* fp16.enabled: loss scaling, as DeepSpeed has it */
        double loss_scale; /* static where above 0; 0: dynamic */
        uint64_t initial_scale_power, loss_scale_window, hysteresis;
        bool consecutive_hysteresis;
        double min_loss_scale;
    } fp16;
    bool check_grad_overflow; /* a step whose gradient norm is not finite is skipped: always for
                                 fp16, bf16.check_grad_overflow for bf16, for fp32 unless the
                                 update is in_backward, which no norm can stop */
    uint32_t zero_stage;
    uint64_t sub_group_size;
    /* Of stage 3, in elements. */
    uint64_t persistence_threshold;       /* units of fewer stay gathered */
    uint64_t model_persistence_threshold; /* as long as they have no more together, by unit */
    uint64_t max_live_parameters;         /* 0: not given, no cap */
    uint64_t prefetch_bucket_size;        /* likewise */
    bool limits_reuse;                    /* stage3_max_reuse_distance is given */
    uint64_t max_reuse_distance;
    enum dtype grad_dtype; /* of gradients at rest: data_types.grad_accum_dtype; default the 16-bit
                              dtype when one is enabled, else fp32 */
    struct {
        enum job_optimizer type;
        bool decoupled; /* AdamW */
        double lr, beta1, beta2, epsilon, weight_decay;
        bool bias_correction;
    } optimizer;
    struct {                      /* how Adam's state is stored; others': fp32 */
        enum tile_format master;  /* TILE_FP32; TILE_LOW16: "split" */
        enum tile_format moments; /* TILE_FP32, TILE_BF16; TILE_INT8: "8bit" */
    } state;
    struct {
        enum job_schedule type;
        double warmup_min_lr, warmup_max_lr, warmup_min_ratio, cos_min_ratio;
        bool warmup_max_lr_given; /* else the optimizer's lr */
        uint64_t warmup_num_steps, total_num_steps;
        bool warmup_linear; /* else logarithmic */
        struct {            /* OneCycle */
            double min_lr, max_lr, decay_lr_rate, min_mom, max_mom, decay_mom_rate;
            uint64_t first_step_size, second_step_size, first_stair_count, second_stair_count;
            uint64_t decay_step_size;
            bool momentum;
        } cycle;
        struct { /* LRRangeTest */
            double min_lr, step_rate;
            uint64_t step_size;
            bool staircase;
        } range_test;
    } scheduler;
    char *text; /* the merged job as JSON, for the run directory; mem_alloc'd */
};
typedef struct job job;

/* Reads the file, applies `set` ("key.path=value", value JSON or a bare word), checks everything.
 * path "-" reads standard input. ERR_CONFIG with one sentence that names file, key path, value, rule
 * and (for an unknown key) the nearest known key; ERR_INPUT when the file cannot be read. */
int job_read(const char *path, const char *const *set, uint32_t set_count, job **out) MUST_CHECK;

/* As job_read of a file `name` that holds text[text_bytes]: messages name it, and a preset may lie beside
 * it. */
int job_read_text(const char *name, const char *text, size_t text_bytes, const char *const *set,
                  uint32_t set_count, job **out) MUST_CHECK;
/* The same for a job of `world` ranks, whose batch sizes go together for so many. The two above: 1. */
int job_read_ranks(const char *path, const char *const *set, uint32_t set_count, uint32_t world,
                   job **out) MUST_CHECK;
int job_read_text_ranks(const char *name, const char *text, size_t text_bytes,
                        const char *const *set, uint32_t set_count, uint32_t world,
                        job **out) MUST_CHECK;
void job_destroy(job *self);

/* What training needs beyond a valid job (planning does not): data.train, and data.valid where the run
 * evaluates. ERR_CONFIG. */
int job_check_for_training(const job *self) MUST_CHECK;

/* What `is` changes for the steps after `from_step` of a run that `was` has begun: "data.seed was 1 and is
 * 2; ...", as many as there is room for, and how many there are. Keys that change no bit are not among
 * them, nor those of the run's identity, with which no run goes on. Text needs 16 bytes or more. */
uint32_t job_list_changes(const job *was, const job *is, uint64_t from_step, char *text,
                          size_t text_bytes);

/* The learning rate of optimizer step `step`, the first being 1: what DeepSpeed's update of that number
 * runs with, whose scheduler then stands at last_batch_iteration step - 2 (it is made with -1 and
 * stepped after each update). `step` counts updates that are applied: a skipped step (overflow) takes
 * the same number again, as DeepSpeed's scheduler waits too. Pure; any thread. */
double job_learning_rate(const job *self, uint64_t step);

/* beta1 of optimizer step `step`, counted as above: the optimizer's own but where OneCycle moves the
 * momentum (then optimizer.beta2 is 0.99, as in DeepSpeed). Where bias is corrected, this beta1 stands
 * for that of all steps before, as in DeepSpeed: 1 - beta1^step. Pure; any thread. */
double job_momentum(const job *self, uint64_t step);

#endif
