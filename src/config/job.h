/* The job as a struct: everything that a run was asked to do, checked, with defaults filled in.
 *
 * The table of keys (keys_internal.h) fills most members, and its rows name them. KEYS.md gives
 * each key's meaning, default and range. The comments here add what the keys do not say: members
 * that follow from several keys, and what 0 or "" stands for. A job is constant once it is read
 * (config.h), so any thread may read it. */
#ifndef SLUICE_CONFIG_JOB_H
#define SLUICE_CONFIG_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/file.h"
#include "base/model_spec.h"
#include "base/module.h"
#include "base/tile.h"
#include "base/words.h"

enum {
    JOB_NAME_BYTES = 64,
    JOB_FILES_MAX = 64,
    JOB_RULES_MAX = 64,
    JOB_TARGETS_MAX = 16, /* train.lora.targets */
};

enum job_optimizer { JOB_ADAM, JOB_LION, JOB_ADAGRAD, JOB_MUON };
/* How Muon's learning rate follows from a matrix's shape, as in torch.optim.Muon. */
enum job_adjust_lr {
    JOB_ADJUST_ORIGINAL,          /* times sqrt(max(1, rows / columns)) */
    JOB_ADJUST_MATCH_RMS_ADAMW,   /* times 0.2 sqrt(max(rows, columns)) */
    JOB_ADJUST_SPECTRAL_UNCLAMPED /* times sqrt(rows / columns) */
};
enum job_schedule {
    JOB_SCHEDULE_NONE,
    JOB_WARMUP_LR,
    JOB_WARMUP_DECAY_LR,
    JOB_WARMUP_COSINE_LR,
    JOB_ONE_CYCLE,
    JOB_LR_RANGE_TEST,
    JOB_LINEAR
};

/* ---- parts ---- */

/* train.lora, beside what is in model_lora. */
struct job_lora {
    /* Names as in PEFT; if none is given, the family's usual ones. */
    char targets[JOB_TARGETS_MAX][JOB_NAME_BYTES];
    uint32_t target_count;
    char from[FILE_PATH_BYTES]; /* the directory of the first weights, or "" */
};

struct job_files {
    char path[JOB_FILES_MAX][FILE_PATH_BYTES];
    /* the field of a JSON line that holds the text; default "text" */
    char field[JOB_FILES_MAX][JOB_NAME_BYTES];
    uint32_t source[JOB_FILES_MAX]; /* the source that each file belongs to, ascending */
    /* [source_count]; without weights there is one source of weight 1 */
    double weight[JOB_FILES_MAX];
    uint32_t count, source_count;
};

struct job_drive {
    char path[FILE_PATH_BYTES];
    uint64_t budget_bytes; /* 0: the free space less 10% */
};

/* One placement by hand. Later rules win over earlier ones, and all rules over the kind's own
 * tier. */
struct job_rule {
    /* Words of unit names in a row, such as "3.experts" in block.3.experts.0; "": the rule has
     * numbers. */
    char name[JOB_NAME_BYTES];
    uint32_t unit_first, unit_last; /* inclusive, in the model's unit numbering; a name: all */
    enum state_kind kind;
    enum tier tier;
};

/* ---- the job ---- */

struct job {
    char preset[JOB_NAME_BYTES]; /* model.preset as given, or "" */
    char hf[FILE_PATH_BYTES];    /* model.hf, or "" */
    /* model.module, owned by the job; NULL: the model is one of a family. With a module only
     * num_layers (its stages), seq_length and vocab_size (1) of `model` are filled; its family says
     * nothing. */
    module_spec *module;
    model_spec model;
    struct job_lora lora;
    struct {
        struct job_files train, valid;
        char tokenizer[FILE_PATH_BYTES]; /* "bytes", or a path */
        /* by the job; if not, model.hf's own tokenizer if it has one, else "bytes" */
        bool tokenizer_is_given;
        char chat_template[JOB_NAME_BYTES];
        enum data_format format;
        enum shuffle shuffle;
        enum documents documents;
        uint64_t seed;
        /* of a bert model */
        double masked;      /* share of the tokens that are masked */
        int64_t mask_token; /* -1: the tokenizer's */
    } data;
    struct {
        char dir[FILE_PATH_BYTES];
        int mode; /* permissions of what the run makes (base/file.h) */
        uint64_t steps, seed, eval_every, eval_batches, commit_every, log_every;
        uint64_t keep_every; /* commits at multiples of it are kept; 0: only those in `keep` */
        uint64_t *keep;      /* [keep_count] steps, ascending, from mem_alloc */
        uint32_t keep_count;
        bool fresh;
        bool paranoid;
        bool trace;
        char tensorboard[FILE_PATH_BYTES]; /* the directory of event files; "": none */
    } run;
    struct {
        char backend[JOB_NAME_BYTES];  /* "auto", "cpu", "cuda" */
        uint64_t threads;              /* 0: all cores of the affinity mask */
        char cores[JOB_NAME_BYTES];    /* "0-7,16"; "": automatic */
        uint64_t graph_bytes;          /* of a GPU's memory; 0: no graphs */
        char products[JOB_NAME_BYTES]; /* "estimated", "timed" */
    } device;
    struct {
        uint64_t threads;           /* of the optimizer on the CPU; 0: the same as device.threads */
        char cores[JOB_NAME_BYTES]; /* "": automatic */
    } update;
    struct {
        uint64_t device_budget, host_budget; /* bytes; 0: automatic */
        struct job_drive nvme[DRIVES_MAX];
        uint32_t nvme_count;
        enum tier place[STATE_KIND_COUNT];
        struct job_rule rules[JOB_RULES_MAX];
        uint32_t rule_count;
    } tiers;
    struct {
        enum order order;
        enum update update;
        enum fetch experts;
        uint64_t delayed_from_step; /* delayed_one_step: the steps before this one are exact */
        uint64_t tile_elems;        /* 0: automatic */
        uint64_t lookahead; /* how many ops ahead a prefetch may run; 0: as far as memory allows */
    } schedule;
    struct {
        char backend[JOB_NAME_BYTES]; /* "auto", "uring", "pool" */
        uint64_t block_bytes, queue_depth;
        bool block_is_given, depth_is_given; /* if not, the values of the machine file come first */
        uint64_t threads;                    /* of the pread/pwrite pool, per drive; 0: automatic */
        char cores[JOB_NAME_BYTES];          /* of the pool and the scheduler; "": automatic */
        double stuck_seconds;                /* a request is reported after this time; 0: never */
        double stop_seconds; /* the run stops after this time, its last commit intact; 0: never */
        bool polled_completions; /* io_config.polls */
        bool verify_reads;
    } io;
    uint32_t world; /* the number of ranks, as given to job_read */
    /* train_batch_size = micro_batch * accumulation * world */
    uint64_t train_batch_size, micro_batch, accumulation;
    struct {
        char backend[JOB_NAME_BYTES]; /* "auto", "mpi", "staged", "nccl" */
        /* longest silence of a rank; longest time in which ranks wait and none makes progress */
        double timeout_seconds;
        double exit_seconds;    /* from the failure of a rank to the end of all processes */
        uint64_t staging_bytes; /* per rank, in host memory that the ranks of a host share */
        enum dtype wire;        /* of gradients between ranks; default: `type` */
    } comm;
    double gradient_clipping;
    enum dtype type;       /* of params in compute and of activations: fp32, bf16 or fp16 */
    struct {               /* loss scaling, as DeepSpeed has it; all 0 unless `type` is fp16 */
        double loss_scale; /* above 0: static; 0: dynamic */
        uint64_t initial_scale_power, loss_scale_window, hysteresis;
        bool consecutive_hysteresis;
        double min_loss_scale;
    } fp16;
    /* A step whose gradient norm is not finite is skipped:
     * - fp16: always.
     * - bf16: if bf16.check_grad_overflow is set.
     * - fp32: unless the update is in_backward, because no norm can stop that update. */
    bool check_grad_overflow;
    uint32_t zero_stage;
    uint64_t sub_group_size;
    /* Limits of stage 3, in elements. */
    uint64_t persistence_threshold; /* smaller units stay gathered, ... */
    /* ... as long as together they have no more than this, unit by unit */
    uint64_t model_persistence_threshold;
    uint64_t max_live_parameters;  /* 0: not given, no cap */
    uint64_t prefetch_bucket_size; /* 0: not given, no limit */
    bool limits_reuse;             /* stage3_max_reuse_distance is given */
    uint64_t max_reuse_distance;
    enum dtype grad_dtype; /* of gradients at rest; default: `type` */
    struct {
        enum job_optimizer type;
        bool decoupled; /* decoupled weight decay, as in AdamW */
        double lr, beta1, beta2, epsilon, weight_decay;
        bool bias_correction;
        /* Muon. lr is that of matrices. Tensors with Adam have adam_lr, and with a scheduler its
         * rate times adam_lr / lr. */
        double adam_lr, momentum;
        bool nesterov;
        uint64_t ns_steps;
        enum job_adjust_lr adjust_lr;
    } optimizer;
    struct {
        /* how Adam's state is stored; other optimizers': fp32 */
        enum tile_format master;  /* TILE_FP32; TILE_LOW16: "split" */
        enum tile_format moments; /* TILE_FP32, TILE_BF16; TILE_INT8: "8bit" */
    } state;
    struct { /* members that `type` does not use hold their defaults */
        enum job_schedule type;
        double warmup_min_lr, warmup_max_lr, warmup_min_ratio, cos_min_ratio;
        bool warmup_max_lr_given; /* if not, the optimizer's lr counts */
        uint64_t warmup_num_steps, total_num_steps;
        bool warmup_linear; /* if not, logarithmic */
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
    char *text; /* the merged job as JSON, for the run directory; from mem_alloc */
};
typedef struct job job;

#endif
