/* The rows of DeepSpeed's keys, as of its version 0.19.6. The columns of KEY are, in order: path,
 * type, place in struct job, default, allowed values, unit, what a change means for a resumed run,
 * help. A key without effect has path, type, default, allowed values and reason. Keys with the same
 * reason share a line of the log. See keys_internal.h. Constant data. */
#include <assert.h>

#include "config/keys_internal.h"

static_assert(offsetof(struct job, optimizer.beta2) ==
                  offsetof(struct job, optimizer.beta1) + sizeof(double),
              "optimizer.params.betas is a pair");

/* The enumerators of choices. */
static const int dtypes[] = {DTYPE_FP32, DTYPE_FP16, DTYPE_BF16};
static const int homes[] = {TIER_DEVICE, TIER_HOST, TIER_NVME}; /* none, cpu, nvme */
static const int schedules[] = {JOB_WARMUP_LR, JOB_WARMUP_DECAY_LR, JOB_WARMUP_COSINE_LR,
                                JOB_ONE_CYCLE, JOB_LR_RANGE_TEST,   JOB_LINEAR};

/* The reasons why a key has no effect. */
static const char one_rank[] = "it is about several ranks or devices, and this job has one rank";
static const char scaled_once[] = "gradients are summed in fp32 and scaled once";
static const char no_bucket[] = "a unit is reduced and gathered by one collective each, through "
                                "staging of constant size, so that no bucket is filled";
static const char one_way[] = "gradients are reduced and parts gathered in one way, for all stages";
static const char no_sequence_parallel[] = "a sequence is not split over ranks";
static const char own_experts[] = "model.expert_parallel_size says which ranks have experts";
static const char whole_steps[] = "a step here always takes all of its micro-batches";
static const char engine_only[] = "it is about the inner workings of DeepSpeed's engine";
static const char always_measured[] =
    "trace.json and metrics.jsonl hold times, bytes and peaks of the lanes anyway";
static const char dense[] = "gradients are dense vectors here";
static const char own_data[] = "the sampler draws whole batches only";
static const char model_block[] = "model.vocab_size says it";
static const char resume_step[] = "a resumed run takes its step from the run directory";
static const char fp32_sums[] = "gradients of micro-batches are summed in fp32 as each one ends";
static const char no_buffers[] = "these models have no buffers beside their parameters";
static const char always_ahead[] =
    "collectives are issued ahead of their use by the plan, beside computing";
static const char whole_world[] =
    "every unit is cut over all ranks: there are no groups of ranks that hold copies";
static const char planned[] =
    "buffers, prefetches and transfers are planned from the budgets in tiers";
static const char host_budget[] = "tiers.host.budget says how much rests in memory";
static const char own_threads[] =
    "update.threads and update.cores say which cores the optimizer has";
static const char all_trained[] = "every weight is trained";
static const char own_state[] = "state is kept in run.dir, in its own format";
static const char kept_whole[] =
    "a checkpoint of activations lies with the rank whose batch it is of";
static const char data_parallel[] = "ranks differ in their data alone";
static const char one_ring[] =
    "one queue serves all drives and keeps aio.queue_depth requests of each in flight";
static const char no_gds[] = "drives are read through host memory";
static const char each_block[] = "every block's input is a checkpoint";
static const char own_metrics[] = "metrics are written to metrics.jsonl in run.dir";
static const char own_device[] =
    "the variable CUDA_VISIBLE_DEVICES of the process says which GPUs it may use";
/* The reasons why numbers have upper bounds. */
static const char whole_batch[] = "The sequences of a whole run are counted in 64 bits.";
static const char one_micro[] =
    "All sequences of a micro-batch are on the device together; more of them belong into "
    "gradient_accumulation_steps.";
static const char long_program[] =
    "A step's program has ops for each micro-batch and unit, and is compiled before the first "
    "step: raise train_micro_batch_size_per_gpu instead.";

static const char own_plan[] = "`sluice plan` says what fits and what a step takes, before any run";

const configi_key configi_deepspeed_keys[] = {
    KEY("train_batch_size", INT, AT(train_batch_size), NONE, "[1,1099511627776]", "sequences",
        LATER,
        "Sequences of one optimizer step: micro-batch times accumulation times ranks. Of the three "
        "batch keys, those left out follow from the others.",
        .why = whole_batch),
    KEY("train_micro_batch_size_per_gpu", INT, AT(micro_batch), NONE, "[1,1048576]", "sequences",
        FIXED, "Sequences of one micro-batch on one rank.", .why = one_micro),
    KEY("gradient_accumulation_steps", INT, AT(accumulation), NONE, "[1,65536]", "micro-batches",
        LATER, "Micro-batches of one optimizer step.", .why = long_program),
    IDLE_ON("managed_gradient_accumulation", whole_steps),
    KEY("gradient_clipping", FLOAT, AT(gradient_clipping), "1.0", "[0,]", NONE, LATER,
        "Largest global L2 norm of the gradients; 0: no clipping."),
    KEY("steps_per_print", INT, NOWHERE, NONE, "[1,]", "steps", FREE,
        "Steps between log lines, if run.log_every is not given."),
    IDLE_OFF("wall_clock_breakdown", always_measured),
    IDLE_OFF("memory_breakdown", always_measured),
    IDLE_OFF("dump_state", always_measured),
    IDLE_OFF("prescale_gradients", scaled_once, RANKS),
    IDLE("gradient_predivide_factor", FLOAT, "1.0", "(0,]", scaled_once, RANKS),
    KEY("gradient_allreduce_op", ENUM, NOWHERE, "mean", "mean|sum", NONE, FREE,
        "How gradients of ranks are combined; on one rank both are the same. sum is only for one "
        "rank, and not with stage 3 or DeepCompile, as in DeepSpeed."),
    KEY("communication_data_type", ENUM, AT(comm.wire), NONE, "fp32|fp16|bf16", NONE, LATER,
        "Dtype of gradients on their way between ranks. Each rank's gradient is rounded to it "
        "once; the sum, in rank order, is fp32. Default: the 16-bit dtype that is enabled, else "
        "fp32.",
        RANKS, .values = dtypes),
    IDLE("seq_parallel_communication_data_type", ENUM, "fp32", "fp32|fp16|bf16",
         no_sequence_parallel, RANKS),
    IDLE("allgather_size", INT, "500000000", "[0,]", no_bucket, RANKS),
    IDLE_OFF("disable_allgather", one_way, RANKS),
    IDLE_OFF("use_data_before_expert_parallelism", own_experts, RANKS),
    IDLE_OFF("zero_allow_untested_optimizer", engine_only),
    IDLE_ON("zero_force_ds_cpu_optimizer", engine_only),
    IDLE_OFF("sparse_gradients", dense),
    IDLE_OFF("dataloader_drop_last", own_data),
    IDLE_OFF("graph_harvesting", engine_only),
    IDLE("vocabulary_size", INT, NONE, "[1,]", model_block),
    IDLE_ANY("cuda_visible_devices", own_device),
    IDLE_ANY("comms_config", engine_only),
    IDLE("log_level", STRING, NONE, NONE, engine_only),

    KEY("optimizer.type", ENUM, NOWHERE, "AdamW",
        "Adam|AdamW|Adagrad|Lion|Muon|adamw_torch|adamw_torch_fused|paged_adamw_32bit|adamw_8bit|"
        "adamw_bnb_8bit|adamw_torch_8bit|paged_adamw_8bit|lion_32bit|lion_8bit|paged_lion_32bit|"
        "paged_lion_8bit",
        NONE, FIXED,
        "Adam is AdamW unless optimizer.params.adam_w_mode is false. Muon is for the matrices of "
        "blocks, and AdamW for all other tensors. The names after Muon are those of transformers' "
        "optim; the log says what they are here.",
        .later = "Lamb|OneBitAdam|ZeroOneAdam|OneBitLamb|MuAdam|MuAdamW|MuSGD|SGD|RMSprop|"
                 "Adamax|NAdam|RAdam|Adafactor"),
    IDLE_OFF("optimizer.legacy_fusion", engine_only),
    KEY("optimizer.params.lr", FLOAT, AT(optimizer.lr), NONE, "[0,]", NONE, LATER,
        "Learning rate; a scheduler may set it step by step. Default: 1e-3, Adagrad 1e-2."),
    KEY("optimizer.params.muon_lr", FLOAT, NOWHERE, NONE, "(0,]", NONE, LATER,
        "Learning rate of Muon's matrices. Default: optimizer.params.lr."),
    KEY("optimizer.params.adam_lr", FLOAT, AT(optimizer.adam_lr), NONE, "[0,]", NONE, LATER,
        "Learning rate of Muon's tensors with AdamW. Default: optimizer.params.lr. A scheduler "
        "sets the rate of matrices; this one keeps its ratio to it."),
    KEY("optimizer.params.momentum", FLOAT, AT(optimizer.momentum), "0.95", "[0,1)", NONE, LATER,
        "Decay of Muon's momentum."),
    KEY("optimizer.params.nesterov", BOOL, AT(optimizer.nesterov), "true", NONE, NONE, LATER,
        "Whether Muon looks ahead along its momentum, as in Nesterov's method."),
    KEY("optimizer.params.ns_steps", INT, AT(optimizer.ns_steps), "5", "[1,99]", NONE, LATER,
        "Newton-Schulz steps that make Muon's momentum of a matrix nearly orthogonal.",
        .why = "As in torch.optim.Muon."),
    KEY("optimizer.params.adjust_lr_fn", ENUM, AT(optimizer.adjust_lr), "original",
        "original|match_rms_adamw|spectral_unclamped", NONE, LATER,
        "Factor of Muon's learning rate for a matrix [rows, columns] as stored by Hugging Face, as "
        "in torch.optim.Muon: sqrt(max(1, rows / columns)), 0.2 sqrt(max(rows, columns)), or "
        "sqrt(rows / columns)."),
    KEY("optimizer.params.per_head_muon", BOOL, NOWHERE, "false", "false", NONE, FREE,
        "Muon for each attention head by itself.", .later = "true"),
    IDLE("optimizer.params.ns_method", ENUM, "gram", "standard|gram",
         "both are the same in exact arithmetic; here the standard iteration runs, in fp32"),
    KEY("optimizer.params.betas", FLOATS, AT_PAIR(optimizer.beta1), "[0.9,0.999]", "[0,1)", NONE,
        LATER,
        "Decay of the first and of the second moment, two numbers; for Lion, the weight of the "
        "momentum in the update and its decay."),
    KEY("optimizer.params.eps", FLOAT, AT(optimizer.epsilon), NONE, "[0,]", NONE, LATER,
        "Added to the root of the second moment, or of Adagrad's sum. Default: 1e-8, Adagrad "
        "1e-10."),
    KEY("optimizer.params.weight_decay", FLOAT, AT(optimizer.weight_decay), "0.0", "[0,]", NONE,
        LATER,
        "Decay of the weights: decoupled for AdamW, Lion and Muon, added to the gradient for Adam "
        "without adam_w_mode and for Adagrad. With torch_adam, AdamW's default is 0.01."),
    KEY("optimizer.params.bias_correction", BOOL, AT(optimizer.bias_correction), "true", NONE, NONE,
        LATER, "Whether moments are corrected for their start at zero."),
    KEY("optimizer.params.torch_adam", BOOL, NOWHERE, "false", NONE, NONE, LATER,
        "Takes the defaults of torch.optim; the arithmetic is the same."),
    KEY("optimizer.params.adam_w_mode", BOOL, AT(optimizer.decoupled), "true", NONE, NONE, LATER,
        "Decoupled weight decay for the type Adam (AdamW always has it)."),
    KEY("optimizer.params.fp32_optimizer_states", BOOL, NOWHERE, "true", NONE, NONE, FIXED,
        "false, with bf16.enabled: moments have the dtype of parameters, which is state.moments "
        "bf16."),
    KEY("optimizer.params.amsgrad", BOOL, NOWHERE, "false", "false", NONE, FREE,
        "The variant of Adam with a running maximum.", .later = "true"),
    IDLE("optimizer.params.foreach", BOOL, NONE, NONE, engine_only),
    IDLE_ON("optimizer.params.set_grad_none", engine_only),
    REFUSED("optimizer.params.max_grad_norm",
            "write gradient_clipping at the top level instead, as DeepSpeed asks too"),

    KEY("scheduler.type", ENUM, AT(scheduler.type), NONE,
        "WarmupLR|WarmupDecayLR|WarmupCosineLR|OneCycle|LRRangeTest|Linear", NONE, LATER,
        "How the learning rate changes. Without a scheduler it is optimizer.params.lr. Linear is "
        "not DeepSpeed's: it rises to optimizer.params.lr over warmup_num_steps, and falls to 0 "
        "at total_num_steps, as in Hugging Face's Trainer.",
        .values = schedules),
    KEY("scheduler.params.warmup_min_lr", FLOAT, AT(scheduler.warmup_min_lr), "0.0", "[0,]", NONE,
        LATER, "Learning rate at the start of the warm-up (WarmupLR, WarmupDecayLR)."),
    KEY("scheduler.params.warmup_max_lr", FLOAT, AT(scheduler.warmup_max_lr), NONE, "[0,]", NONE,
        LATER,
        "Learning rate after the warm-up. Default: WarmupLR optimizer.params.lr, WarmupDecayLR "
        "0.001. null and \"auto\": optimizer.params.lr."),
    KEY("scheduler.params.warmup_num_steps", INT, AT(scheduler.warmup_num_steps), "1000", "[0,]",
        "steps", LATER, "Length of the warm-up; 0 and 1 count as 2, except for Linear."),
    KEY("scheduler.params.warmup_type", ENUM, AT(scheduler.warmup_linear), "log", "log|linear",
        NONE, LATER, "Shape of the warm-up."),
    KEY("scheduler.params.total_num_steps", INT, AT(scheduler.total_num_steps), NONE, "[1,]",
        "steps", LATER,
        "Steps to the end of the decay. Required by WarmupDecayLR and WarmupCosineLR; \"auto\": "
        "run.steps."),
    KEY("scheduler.params.warmup_min_ratio", FLOAT, AT(scheduler.warmup_min_ratio), "0.0", "[0,]",
        NONE, LATER, "Share of optimizer.params.lr at the start of the warm-up (WarmupCosineLR)."),
    KEY("scheduler.params.cos_min_ratio", FLOAT, AT(scheduler.cos_min_ratio), "0.0001", "[0,]",
        NONE, LATER, "Share of optimizer.params.lr at the end (WarmupCosineLR)."),
    KEY("scheduler.params.cycle_min_lr", FLOAT, AT(scheduler.cycle.min_lr), NONE, "[0,]", NONE,
        LATER, "Lowest learning rate of the cycle, at its start and end. Required by OneCycle."),
    KEY("scheduler.params.cycle_max_lr", FLOAT, AT(scheduler.cycle.max_lr), NONE, "[0,]", NONE,
        LATER, "Highest learning rate of the cycle. Required by OneCycle."),
    KEY("scheduler.params.decay_lr_rate", FLOAT, AT(scheduler.cycle.decay_lr_rate), "0.0", "[0,]",
        NONE, LATER,
        "After the cycle, the lowest rate is divided by 1 + decay_lr_rate * steps / "
        "decay_step_size."),
    KEY("scheduler.params.cycle_first_step_size", INT, AT(scheduler.cycle.first_step_size), "2000",
        "[1,]", "steps", LATER, "Length of the rise."),
    KEY("scheduler.params.cycle_second_step_size", INT, AT(scheduler.cycle.second_step_size), NONE,
        "[0,]", "steps", LATER, "Length of the fall. Default: as the rise."),
    KEY("scheduler.params.cycle_first_stair_count", INT, AT(scheduler.cycle.first_stair_count), "0",
        "[0,]", "stairs", LATER, "Stairs of the rise; 0: a slope."),
    KEY("scheduler.params.cycle_second_stair_count", INT, AT(scheduler.cycle.second_stair_count),
        NONE, "[0,]", "stairs", LATER, "Stairs of the fall. Default: as the rise."),
    KEY("scheduler.params.decay_step_size", INT, AT(scheduler.cycle.decay_step_size), "0", "[0,]",
        "steps", LATER, "Steps of one decay after the cycle; 0: no decay."),
    KEY("scheduler.params.cycle_momentum", BOOL, AT(scheduler.cycle.momentum), "true", NONE, NONE,
        LATER,
        "Whether the first beta moves against the learning rate; the second is then 0.99. With "
        "Muon these are the betas of its tensors with AdamW; the momentum of matrices stays."),
    KEY("scheduler.params.cycle_min_mom", FLOAT, AT(scheduler.cycle.min_mom), "0.8", "[0,1)", NONE,
        LATER, "Lowest momentum, when the learning rate is highest."),
    KEY("scheduler.params.cycle_max_mom", FLOAT, AT(scheduler.cycle.max_mom), "0.9", "[0,1)", NONE,
        LATER, "Highest momentum, also used after the cycle."),
    KEY("scheduler.params.decay_mom_rate", FLOAT, AT(scheduler.cycle.decay_mom_rate), "0.0", NONE,
        NONE, LATER,
        "After the cycle, the highest momentum is multiplied by 1 + decay_mom_rate * steps / "
        "decay_step_size."),
    KEY("scheduler.params.lr_range_test_min_lr", FLOAT, AT(scheduler.range_test.min_lr), "1e-3",
        "[0,]", NONE, LATER, "Learning rate at the start (LRRangeTest)."),
    KEY("scheduler.params.lr_range_test_step_size", INT, AT(scheduler.range_test.step_size), "2000",
        "[1,]", "steps", LATER, "Steps of one increase."),
    KEY("scheduler.params.lr_range_test_step_rate", FLOAT, AT(scheduler.range_test.step_rate),
        "1.0", "[0,]", NONE, LATER,
        "Increase per lr_range_test_step_size steps, as a multiple of lr_range_test_min_lr."),
    KEY("scheduler.params.lr_range_test_staircase", BOOL, AT(scheduler.range_test.staircase),
        "false", NONE, NONE, LATER, "Whether the rate rises in stairs rather than with each step."),
    IDLE("scheduler.params.last_batch_iteration", INT, "-1", "[-1,]", resume_step),

    KEY("bf16.enabled", BOOL, NOWHERE, "false", NONE, NONE, FIXED,
        "Working parameters and activations in bf16; master weights and moments stay fp32."),
    IDLE_OFF("bf16.immediate_grad_update", fp32_sums),
    KEY("bf16.check_grad_overflow", BOOL, AT(check_grad_overflow), "true", NONE, NONE, FREE,
        "Whether a step whose gradients are not finite is skipped (with bf16.enabled). false: "
        "such a step ends the run."),
    KEY("bf16.bf16_master_weights_and_grads", BOOL, NOWHERE, "false", "false", NONE, FREE,
        "Master weights are fp32. state.master split stores them in as few bytes, exactly.",
        .later = "true"),
    KEY("bf16.bf16_optimizer_states", BOOL, NOWHERE, "false", NONE, NONE, FIXED,
        "true, with bf16.enabled: moments are bf16, as with state.moments bf16. Master weights "
        "stay as state.master says."),

    KEY("fp16.enabled", BOOL, NOWHERE, "false", NONE, NONE, FIXED,
        "Working parameters and activations in fp16, with loss scaling; master weights and moments "
        "stay fp32. Not beside bf16.enabled."),
    IDLE_OFF("fp16.auto_cast", "a model's inputs are token numbers, which are never cast"),
    KEY("fp16.loss_scale", FLOAT, AT(fp16.loss_scale), "0", "[0,]", NONE, LATER,
        "The loss scale if it is constant; 0: dynamic, it follows overflows."),
    KEY("fp16.initial_scale_power", INT, AT(fp16.initial_scale_power), "16", "[0,127]", NONE, START,
        "The first dynamic loss scale is 2 to this power."),
    KEY("fp16.loss_scale_window", INT, AT(fp16.loss_scale_window), "1000", NONE, "steps", LATER,
        "Steps without overflow after which the dynamic loss scale doubles; must be above 0 if "
        "it is dynamic."),
    KEY("fp16.hysteresis", INT, AT(fp16.hysteresis), "2", "[1,]", "overflows", LATER,
        "Overflows until the dynamic loss scale is halved."),
    KEY("fp16.consecutive_hysteresis", BOOL, AT(fp16.consecutive_hysteresis), "false", NONE, NONE,
        LATER, "Whether a step without overflow resets the count of hysteresis."),
    KEY("fp16.min_loss_scale", INT, AT_REAL(fp16.min_loss_scale), "1", NONE, NONE, LATER,
        "Lowest dynamic loss scale; must be above 0 if it is dynamic."),
    IDLE_ON("fp16.fused_mode", engine_only),
    KEY("fp16.fp16_master_weights_and_grads", BOOL, NOWHERE, "false", "false", NONE, FREE,
        "Master weights are fp32.", .later = "true"),

    KEY("torch_autocast.enabled", BOOL, NOWHERE, "false", "false", NONE, FREE,
        "Precision follows fp16.enabled and bf16.enabled alone; enable one of them.",
        .later = "true"),
    IDLE("torch_autocast.dtype", STRING, NONE, NONE, engine_only),
    IDLE("torch_autocast.lower_precision_safe_modules", STRINGS, NONE, NONE, engine_only),

    SWITCH("amp", "mixed precision by Apex is not built; enable bf16 or fp16"),

    KEY("data_types.grad_accum_dtype", ENUM, AT(grad_dtype), NONE, "fp32|fp16|bf16", NONE, FIXED,
        "Dtype of gradients at rest, fp32 or the working one; sums are fp32. Default: the 16-bit "
        "dtype that is enabled, else fp32.",
        .values = dtypes),
    KEY("data_types.param_dtype", ENUM, NOWHERE, NONE, "fp32|fp16|bf16", NONE, FIXED,
        "Repeats what fp16.enabled and bf16.enabled say, and must agree with them.",
        .values = dtypes),
    IDLE("data_types.buffer_dtype", ENUM, NONE, "fp32|fp16|bf16", no_buffers),

    KEY("zero_optimization.stage", INT, AT(zero_stage), "0", "[0,3]", NONE, FREE,
        "What ranks partition: 0 nothing, 1 optimizer state, 2 also gradients, 3 also parameters. "
        "The bits are the same in all stages; on one rank so is the rest."),
    KEY("zero_optimization.sub_group_size", INT, AT(sub_group_size), "1000000000", "[0,]",
        "elements", FREE,
        "Largest optimizer tile, rounded up to a multiple of 32768; 0: the default."),
    KEY("zero_optimization.offload_optimizer.device", ENUM, NOWHERE, NONE, "none|cpu|nvme", NONE,
        FREE, "Home of the optimizer state: none is the device, cpu is host memory.",
        .values = homes),
    KEY("zero_optimization.offload_optimizer.nvme_path", STRING, NOWHERE, NONE, NONE, NONE, FREE,
        "Directory of the drive; the same as an entry of tiers.nvme without a budget."),
    IDLE("zero_optimization.offload_optimizer.buffer_count", INT, "4", "[0,]", planned),
    IDLE_ON("zero_optimization.offload_optimizer.pin_memory", planned),
    IDLE_OFF("zero_optimization.offload_optimizer.pipeline_read", planned),
    IDLE_OFF("zero_optimization.offload_optimizer.pipeline_write", planned),
    IDLE_OFF("zero_optimization.offload_optimizer.fast_init", planned),
    IDLE_OFF("zero_optimization.offload_optimizer.super_offload", planned),
    IDLE_OFF("zero_optimization.offload_optimizer.pipeline", planned),
    KEY("zero_optimization.offload_optimizer.ratio", FLOAT, NOWHERE, "1.0", "[0,1]", NONE, FREE,
        "Share of the blocks whose optimizer state is offloaded. The optimizer state of the "
        "other blocks, which are the first ones, rests on the device. Below 1 only with stage 3."),
    IDLE("zero_optimization.offload_optimizer.cpuadam_cores_perc", FLOAT, "0.8", "[0,1]",
         own_threads),
    KEY("zero_optimization.offload_param.device", ENUM, NOWHERE, NONE, "none|cpu|nvme", NONE, FREE,
        "Home of the working parameters: none is the device, cpu is host memory.", .values = homes),
    KEY("zero_optimization.offload_param.nvme_path", STRING, NOWHERE, NONE, NONE, NONE, FREE,
        "Directory of the drive; the same as an entry of tiers.nvme without a budget."),
    IDLE("zero_optimization.offload_param.buffer_count", INT, "5", "[0,]", planned),
    IDLE("zero_optimization.offload_param.buffer_size", INT, "100000000", "[0,]", planned),
    IDLE("zero_optimization.offload_param.max_in_cpu", INT, "1000000000", "[0,]", host_budget),
    IDLE_ON("zero_optimization.offload_param.pin_memory", planned),
    KEY("zero_optimization.cpu_offload", BOOL, NOWHERE, "false", NONE, NONE, FREE,
        "Older name of offload_optimizer with the device cpu."),
    KEY("zero_optimization.cpu_offload_param", BOOL, NOWHERE, "false", NONE, NONE, FREE,
        "Older name of offload_param with the device cpu."),
    IDLE_ON("zero_optimization.cpu_offload_use_pin_memory", planned),
    REFUSED("zero_optimization.zenflow",
            "ZenFlow changes the arithmetic of training and is not built; leave it out"),
    IDLE_ON("zero_optimization.contiguous_gradients", planned),
    IDLE("zero_optimization.overlap_comm", BOOL, NONE, NONE, always_ahead, .alone = planned),
    IDLE_OFF("zero_optimization.pipeline_loading_checkpoint", planned),
    IDLE_OFF("zero_optimization.stage3_use_all_reduce_for_fetch_params", planned),
    IDLE_OFF("zero_optimization.stage3_allgather_sequential", planned),
    KEY("zero_optimization.stage3_prefetch_bucket_size", INT, AT(prefetch_bucket_size), NONE,
        "[0,]", "elements", FREE,
        "If given: the most parameters that are gathered ahead of their use. Default: planned "
        "within the device budget.",
        RANKS),
    KEY("zero_optimization.stage3_max_live_parameters", INT, AT(max_live_parameters), NONE, "[0,]",
        "elements", FREE,
        "If given: the most parameters that are gathered at a time; a unit in use is always "
        "gathered. Default: planned within the device budget.",
        RANKS),
    KEY("zero_optimization.stage3_max_reuse_distance", INT, AT(max_reuse_distance), NONE, "[0,]",
        "elements", FREE,
        "If given: a unit that is used again within this many parameters stays gathered until "
        "then; other units are released. Default: planned within the device budget.",
        RANKS),
    IDLE("zero_optimization.stage3_module_granularity_threshold", INT, "0", "[0,]", planned),
    KEY("zero_optimization.stage3_param_persistence_threshold", INT, AT(persistence_threshold),
        "100000", "[0,]", "elements", FREE,
        "Units with fewer parameters stay gathered on every rank (stage 3). Small tensors of "
        "larger units come with the one all-gather of their unit, so that they cost no message "
        "of their own.",
        RANKS),
    KEY("zero_optimization.stage3_model_persistence_threshold", INT,
        AT(model_persistence_threshold), "9223372036854775807", "[0,]", "elements", FREE,
        "Units stay gathered, in their order, as long as together they have no more parameters "
        "than this.",
        RANKS),
    IDLE("zero_optimization.reduce_bucket_size", INT, "500000000", "[1,]", no_bucket, RANKS),
    IDLE("zero_optimization.allgather_bucket_size", INT, "500000000", "[0,]", no_bucket, RANKS),
    IDLE_ON("zero_optimization.reduce_scatter", one_way, RANKS),
    IDLE_ON("zero_optimization.allgather_partitions", one_way, RANKS),
    IDLE_ON("zero_optimization.use_multi_rank_bucket_allreduce", one_way, RANKS),
    KEY("zero_optimization.zero_quantized_weights", BOOL, NOWHERE, "false", "false", NONE, FREE,
        "Quantized communication changes the arithmetic of training; leave it out.",
        .later = "true"),
    IDLE_OFF("zero_optimization.zero_quantized_nontrainable_weights", all_trained),
    KEY("zero_optimization.zero_quantized_gradients", BOOL, NOWHERE, "false", "false", NONE, FREE,
        "Quantized communication changes the arithmetic of training; leave it out.",
        .later = "true"),
    IDLE_OFF("zero_optimization.mics_hierarchical_params_gather", whole_world, RANKS),
    IDLE("zero_optimization.zero_hpz_partition_size", INT, "1", "[0,]", whole_world, RANKS),
    IDLE("zero_optimization.mics_shard_size", INT, "-1", "[-1,]", whole_world, RANKS),
    REFUSED("zero_optimization.zeropp_loco_param",
            "it belongs to quantized gradients, which change the arithmetic of training and are "
            "not built; leave it out"),
    IDLE_ON("zero_optimization.load_from_fp32_weights", own_state),
    IDLE_OFF("zero_optimization.elastic_checkpoint", own_state),
    IDLE_OFF("zero_optimization.stage3_gather_16bit_weights_on_model_save", own_state),
    IDLE_OFF("zero_optimization.legacy_stage1", engine_only),
    IDLE_OFF("zero_optimization.round_robin_gradients", engine_only),
    IDLE_ON("zero_optimization.ignore_unused_parameters", engine_only),
    IDLE_ON("zero_optimization.memory_efficient_linear", engine_only),
    IDLE_ON("zero_optimization.override_module_apply", engine_only),
    IDLE_OFF("zero_optimization.log_trace_cache_warnings", engine_only),
    IDLE_OFF("zero_optimization.enable_sanity_checks", engine_only),
    IDLE_OFF("zero_optimization.save_muon_momentum_buffer_in_memory", engine_only),
    IDLE("zero_optimization.leaf_module.classes", STRINGS, NONE, NONE, planned),
    IDLE("zero_optimization.leaf_module.names", STRINGS, NONE, NONE, planned),
    IDLE("zero_optimization.leaf_module.name_suffixes", STRINGS, NONE, NONE, planned),

    KEY("aio.block_size", INT, AT(io.block_bytes), "1048576", "[4096,1073741824]", "bytes", FREE,
        "Largest request to a drive; a multiple of 4096. Not given: the value of machine.json "
        "for the job's drives, if it has one."),
    KEY("aio.queue_depth", INT, AT(io.queue_depth), "8", "[1,32768]", "requests", FREE,
        "Requests in flight per drive, counted separately for reads and writes. Not given: the "
        "value of machine.json for the job's drives, if it has one."),
    IDLE("aio.intra_op_parallelism", INT, "1", "[1,]", one_ring),
    IDLE_OFF("aio.single_submit", one_ring),
    IDLE_ON("aio.overlap_events", one_ring),
    IDLE_OFF("aio.use_gds", no_gds),

    KEY("activation_checkpointing.cpu_checkpointing", BOOL, NOWHERE, "false", NONE, NONE, FREE,
        "Activation checkpoints rest in host memory: tiers.place.activations host."),
    IDLE_OFF("activation_checkpointing.partition_activations", kept_whole, RANKS),
    IDLE_OFF("activation_checkpointing.contiguous_memory_optimization", planned),
    IDLE_OFF("activation_checkpointing.synchronize_checkpoint_boundary", planned),
    IDLE_OFF("activation_checkpointing.profile", always_measured),
    IDLE("activation_checkpointing.number_checkpoints", INT, NONE, "[0,]", each_block),

    IDLE("checkpoint.tag_validation", ENUM, "Warn", "Warn|Ignore|Fail", own_state),
    IDLE_OFF("checkpoint.load_universal", own_state),
    IDLE_OFF("checkpoint.use_node_local_storage", own_state),
    IDLE_OFF("checkpoint.parallel_write.pipeline_stage", own_state),
    IDLE_ON("checkpoint.checkpoint_serialization", own_state),
    IDLE("checkpoint.writer.type", ENUM, "FAST", "FAST|PYTHON|MOCK", own_state),
    IDLE("checkpoint.writer.io_buffer_size", INT, "67108864", "[1,]", own_state),
    IDLE_ON("checkpoint.writer.io_buffer_double", own_state),
    IDLE("checkpoint.writer.io_multiplier", INT, "1", "[1,]", own_state),
    IDLE_OFF("checkpoint.writer.show_statistics", own_state),
    IDLE("checkpoint.writer.data_parallel", ENUM, NONE, "REPLICA|SOCKET|MACHINE", own_state),
    IDLE_OFF("checkpoint.writer.decoupled", own_state),
    IDLE_ANY("checkpoint.datastates_ckpt", own_state),

    IDLE_ANY("datastates_ckpt", own_state),

    IDLE_ON("timers.throughput.enabled", always_measured),
    IDLE_ON("timers.throughput.synchronized", always_measured),

    IDLE_OFF("flops_profiler.enabled", always_measured),
    IDLE("flops_profiler.recompute_fwd_factor", FLOAT, "0.0", "[0,]", always_measured),
    IDLE("flops_profiler.profile_step", INT, "1", "[0,]", always_measured),
    IDLE("flops_profiler.module_depth", INT, "-1", "[-1,]", always_measured),
    IDLE("flops_profiler.top_modules", INT, "1", "[0,]", always_measured),
    IDLE_ON("flops_profiler.detailed", always_measured),
    IDLE("flops_profiler.output_file", STRING, NONE, NONE, always_measured),

    IDLE_OFF("comms_logger.enabled", always_measured),
    IDLE_OFF("comms_logger.verbose", always_measured),
    IDLE_ON("comms_logger.prof_all", always_measured),
    IDLE_OFF("comms_logger.debug", always_measured),
    IDLE("comms_logger.prof_ops", STRINGS, NONE, NONE, always_measured),

    KEY("tensorboard.enabled", BOOL, NOWHERE, "false", NONE, NONE, FREE,
        "Event files for TensorBoard, in tensorboard.output_path/tensorboard.job_name, unless "
        "run.tensorboard is given."),
    KEY("tensorboard.output_path", STRING, NOWHERE, NONE, NONE, NONE, FREE,
        "A directory. Default: the current one."),
    KEY("tensorboard.job_name", STRING, NOWHERE, "DeepSpeedJobName", NONE, NONE, FREE,
        "A directory in tensorboard.output_path."),

    IDLE_OFF("csv_monitor.enabled", own_metrics),
    IDLE("csv_monitor.output_path", STRING, NONE, NONE, own_metrics),
    IDLE("csv_monitor.job_name", STRING, "DeepSpeedJobName", NONE, own_metrics),

    IDLE_OFF("wandb.enabled", own_metrics),
    IDLE("wandb.group", STRING, NONE, NONE, own_metrics),
    IDLE("wandb.team", STRING, NONE, NONE, own_metrics),
    IDLE("wandb.project", STRING, "deepspeed", NONE, own_metrics),

    IDLE_OFF("comet.enabled", own_metrics),
    IDLE("comet.samples_log_interval", INT, "100", "[1,]", own_metrics),
    IDLE("comet.project", STRING, NONE, NONE, own_metrics),
    IDLE("comet.workspace", STRING, NONE, NONE, own_metrics),
    IDLE("comet.api_key", STRING, NONE, NONE, own_metrics),
    IDLE("comet.experiment_name", STRING, NONE, NONE, own_metrics),
    IDLE("comet.experiment_key", STRING, NONE, NONE, own_metrics),
    IDLE("comet.online", BOOL, NONE, NONE, own_metrics),
    IDLE("comet.mode", STRING, NONE, NONE, own_metrics),

    IDLE_ANY("autotuning", own_plan),
    IDLE_ANY("compile", engine_only),
    IDLE_ANY("nebula", own_state),
    IDLE_ANY("hybrid_engine", engine_only),
    REFUSED("weight_quantization",
            "it quantizes the weights and is not built; leave it out or disable it"),
    IDLE_ANY("tensor_parallel", data_parallel, RANKS),
    IDLE_ANY("expert_parallel", own_experts, RANKS),
    IDLE_ANY("pipeline", data_parallel, RANKS),
    IDLE_ANY("sequence_parallel_size", data_parallel, RANKS),
    SWITCH("elasticity", "elastic batch sizes are not built; give the batch sizes"),
    REFUSED("sparse_attention",
            "it changes what is trained and is not built; leave it out or disable it"),
    SWITCH("compression_training",
           "it changes what is trained and is not built; leave it out or disable it"),
    REFUSED("quantize_training",
            "it changes what is trained and is not built; leave it out or disable it"),
    SWITCH("curriculum_learning",
           "it changes what is trained and is not built; leave it out or disable it"),
    SWITCH("data_efficiency",
           "it changes what is trained and is not built; leave it out or disable it"),
    SWITCH("progressive_layer_drop",
           "it changes what is trained and is not built; leave it out or disable it"),
    SWITCH("eigenvalue", "it changes what is trained and is not built; leave it out or disable it"),

};

const uint32_t configi_deepspeed_key_count =
    sizeof configi_deepspeed_keys / sizeof configi_deepspeed_keys[0];

const struct configi_alias configi_aliases[] = {
    {"bfloat16", "bf16"},
    {"seq_parallel_comm_data_type", "seq_parallel_communication_data_type"},
    {"aio.thread_count", "aio.intra_op_parallelism"},
    {"zero_optimization.prefetch_bucket_size", "zero_optimization.stage3_prefetch_bucket_size"},
    {"zero_optimization.param_persistence_threshold",
     "zero_optimization.stage3_param_persistence_threshold"},
    {"zero_optimization.model_persistence_threshold",
     "zero_optimization.stage3_model_persistence_threshold"},
    {"zero_optimization.max_live_parameters", "zero_optimization.stage3_max_live_parameters"},
    {"zero_optimization.max_reuse_distance", "zero_optimization.stage3_max_reuse_distance"},
    {"zero_optimization.module_granularity_threshold",
     "zero_optimization.stage3_module_granularity_threshold"},
    {"zero_optimization.use_all_reduce_for_fetch_params",
     "zero_optimization.stage3_use_all_reduce_for_fetch_params"},
    {"zero_optimization.allgather_sequential", "zero_optimization.stage3_allgather_sequential"},
    {"zero_optimization.gather_16bit_weights_on_model_save",
     "zero_optimization.stage3_gather_16bit_weights_on_model_save"},
    {"zero_optimization.stage3_gather_fp16_weights_on_model_save",
     "zero_optimization.stage3_gather_16bit_weights_on_model_save"},
};

const uint32_t configi_alias_count = sizeof configi_aliases / sizeof configi_aliases[0];
