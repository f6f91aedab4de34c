/* The keys of DeepSpeed's configuration (version 0.19.6) and what becomes of each here: the table
 * of test_config_deepspeed.c. */
#ifndef SLUICE_TESTS_TEST_CONFIG_KEYS_H
#define SLUICE_TESTS_TEST_CONFIG_KEYS_H

#include "tests/config/test_config_common.h"

/* The rest of the job in which a key is tried: blocks of a job that end in a comma. */
enum base {
    PLAIN,
    ADAM,
    MUON,
    BF16,
    FP16,
    STAGE_3,
    DEEPCOMPILE,
    WARMUP,
    COSINE,
    CYCLE,
    RANGE,
    OPTIMIZER_PATH,
    TENSORBOARD,
    OPTIMIZER_NVME,
    STAGE_3_OFFLOAD,
    PARAM_NVME
};
static const char *const bases[] = {
    [PLAIN] = SMALL_JOB,
    [ADAM] = SMALL_WITH("'optimizer': {'type': 'Adam'},"),
    [MUON] = SMALL_WITH("'optimizer': {'type': 'Muon'},"),
    [BF16] = SMALL_WITH("'bf16': {'enabled': true},"),
    [FP16] = SMALL_WITH("'fp16': {'enabled': true},"),
    [STAGE_3] = SMALL_WITH("'zero_optimization': {'stage': 3},"),
    [DEEPCOMPILE] = SMALL_WITH("'compile': {'deepcompile': true},"),
    [WARMUP] = SMALL_WITH("'scheduler': {'type': 'WarmupLR'},"),
    [COSINE] =
        SMALL_WITH("'scheduler': {'type': 'WarmupCosineLR', 'params': {'total_num_steps': 5000}},"),
    [CYCLE] = SMALL_WITH("'scheduler': {'type': 'OneCycle', 'params': {'cycle_min_lr': 0.25, "
                         "'cycle_max_lr': 0.5}},"),
    [RANGE] = SMALL_WITH("'scheduler': {'type': 'LRRangeTest'},"),
    [TENSORBOARD] = SMALL_WITH("'tensorboard': {'enabled': true},"),
    [OPTIMIZER_PATH] =
        SMALL_WITH("'zero_optimization': {'offload_optimizer': {'nvme_path': '/o'}},"),
    [OPTIMIZER_NVME] = SMALL_WITH(
        "'zero_optimization': {'offload_optimizer': {'device': 'nvme', 'nvme_path': '/o'}},"),
    [STAGE_3_OFFLOAD] =
        SMALL_WITH("'zero_optimization': {'stage': 3, 'offload_optimizer': {'device': 'cpu'}},"),
    [PARAM_NVME] = SMALL_WITH(
        "'zero_optimization': {'offload_param': {'device': 'nvme', 'nvme_path': '/o'}},"),
};

/* Keys that change the job: the field has the value, and had another without the key. */
struct honoured {
    enum base base;
    const char *set;
    struct field field;
    /* not NULL: on one rank the log names the key as without effect, with this reason */
    const char *alone;
};
static const struct honoured honoured[] = {
    {PLAIN, "train_batch_size=4", FIELD(accumulation, 4)},
    {PLAIN, "train_micro_batch_size_per_gpu=3", FIELD(micro_batch, 3)},
    {PLAIN, "gradient_accumulation_steps=5", FIELD(accumulation, 5)},
    {PLAIN, "gradient_clipping=0.5", FIELD(gradient_clipping, 0.5)},
    {PLAIN, "steps_per_print=7", FIELD(run.log_every, 7)},
    {BF16, "data_types.grad_accum_dtype=fp32", FIELD(grad_dtype, DTYPE_FP32)},
    {PLAIN, "optimizer.type=Adagrad", FIELD(optimizer.type, JOB_ADAGRAD)},
    {PLAIN, "optimizer.type=lion", FIELD(optimizer.type, JOB_LION)},
    {PLAIN, "optimizer.type=muon", FIELD(optimizer.type, JOB_MUON)},
    {MUON, "optimizer.params.muon_lr=0.5", FIELD(optimizer.lr, 0.5)},
    {MUON, "optimizer.params.adam_lr=0.5", FIELD(optimizer.adam_lr, 0.5)},
    {MUON, "optimizer.params.momentum=0.5", FIELD(optimizer.momentum, 0.5)},
    {MUON, "optimizer.params.nesterov=false", FIELD(optimizer.nesterov, false)},
    {MUON, "optimizer.params.ns_steps=6", FIELD(optimizer.ns_steps, 6)},
    {MUON, "optimizer.params.adjust_lr_fn=match_rms_adamw",
     FIELD(optimizer.adjust_lr, JOB_ADJUST_MATCH_RMS_ADAMW)},
    {PLAIN, "optimizer.params.lr=0.5", FIELD(optimizer.lr, 0.5)},
    {PLAIN, "optimizer.params.betas=[0.5, 0.25]", FIELD(optimizer.beta1, 0.5)},
    {PLAIN, "optimizer.params.betas=[0.5, 0.25]", FIELD(optimizer.beta2, 0.25)},
    {PLAIN, "optimizer.params.eps=0.5", FIELD(optimizer.epsilon, 0.5)},
    {PLAIN, "optimizer.params.weight_decay=0.5", FIELD(optimizer.weight_decay, 0.5)},
    {PLAIN, "optimizer.params.bias_correction=false", FIELD(optimizer.bias_correction, false)},
    {PLAIN, "optimizer.params.torch_adam=true", FIELD(optimizer.weight_decay, 0.01)},
    {ADAM, "optimizer.params.adam_w_mode=false", FIELD(optimizer.decoupled, false)},
    {BF16, "optimizer.params.fp32_optimizer_states=false", FIELD(state.moments, TILE_BF16)},
    {PLAIN, "scheduler={'type': 'Linear', 'params': {'total_num_steps': 5000}}",
     FIELD(scheduler.type, JOB_LINEAR)},
    {PLAIN, "scheduler.type=WarmupLR", FIELD(scheduler.type, JOB_WARMUP_LR)},
    {PLAIN, "scheduler={'type': 'WarmupDecayLR', 'params': {'total_num_steps': 5000}}",
     FIELD(scheduler.type, JOB_WARMUP_DECAY_LR)},
    {PLAIN, "scheduler={'type': 'WarmupDecayLR', 'params': {'total_num_steps': 5000}}",
     FIELD(scheduler.total_num_steps, 5000)},
    {PLAIN, "scheduler={'type': 'WarmupCosineLR', 'params': {'total_num_steps': 5000}}",
     FIELD(scheduler.type, JOB_WARMUP_COSINE_LR)},
    {PLAIN, "scheduler={'type': 'WarmupCosineLR', 'params': {'total_num_steps': 5000}}",
     FIELD(scheduler.total_num_steps, 5000)},
    {PLAIN, "scheduler={'type': 'OneCycle', 'params': {'cycle_min_lr': 0.25, 'cycle_max_lr': 0.5}}",
     FIELD(scheduler.type, JOB_ONE_CYCLE)},
    {PLAIN, "scheduler={'type': 'OneCycle', 'params': {'cycle_min_lr': 0.25, 'cycle_max_lr': 0.5}}",
     FIELD(scheduler.cycle.min_lr, 0.25)},
    {PLAIN, "scheduler={'type': 'OneCycle', 'params': {'cycle_min_lr': 0.25, 'cycle_max_lr': 0.5}}",
     FIELD(scheduler.cycle.max_lr, 0.5)},
    {PLAIN, "scheduler.type=LRRangeTest", FIELD(scheduler.type, JOB_LR_RANGE_TEST)},
    {WARMUP, "scheduler.params.warmup_min_lr=0.5", FIELD(scheduler.warmup_min_lr, 0.5)},
    {WARMUP, "scheduler.params.warmup_max_lr=0.5", FIELD(scheduler.warmup_max_lr, 0.5)},
    {WARMUP, "scheduler.params.warmup_max_lr=0.5", FIELD(scheduler.warmup_max_lr_given, true)},
    {WARMUP, "scheduler.params.warmup_num_steps=5", FIELD(scheduler.warmup_num_steps, 5)},
    {WARMUP, "scheduler.params.warmup_type=linear", FIELD(scheduler.warmup_linear, true)},
    {COSINE, "scheduler.params.total_num_steps=6000", FIELD(scheduler.total_num_steps, 6000)},
    {COSINE, "scheduler.params.warmup_min_ratio=0.5", FIELD(scheduler.warmup_min_ratio, 0.5)},
    {COSINE, "scheduler.params.cos_min_ratio=0.5", FIELD(scheduler.cos_min_ratio, 0.5)},
    {CYCLE, "scheduler.params.cycle_min_lr=0.125", FIELD(scheduler.cycle.min_lr, 0.125)},
    {CYCLE, "scheduler.params.cycle_max_lr=0.75", FIELD(scheduler.cycle.max_lr, 0.75)},
    {CYCLE, "scheduler.params.decay_lr_rate=0.5", FIELD(scheduler.cycle.decay_lr_rate, 0.5)},
    {CYCLE, "scheduler.params.cycle_first_step_size=50",
     FIELD(scheduler.cycle.first_step_size, 50)},
    {CYCLE, "scheduler.params.cycle_second_step_size=60",
     FIELD(scheduler.cycle.second_step_size, 60)},
    {CYCLE, "scheduler.params.cycle_first_stair_count=4",
     FIELD(scheduler.cycle.first_stair_count, 4)},
    {CYCLE, "scheduler.params.cycle_second_stair_count=5",
     FIELD(scheduler.cycle.second_stair_count, 5)},
    {CYCLE, "scheduler.params.decay_step_size=9", FIELD(scheduler.cycle.decay_step_size, 9)},
    {CYCLE, "scheduler.params.cycle_min_mom=0.25", FIELD(scheduler.cycle.min_mom, 0.25)},
    {CYCLE, "scheduler.params.cycle_max_mom=0.5", FIELD(scheduler.cycle.max_mom, 0.5)},
    {CYCLE, "scheduler.params.decay_mom_rate=0.5", FIELD(scheduler.cycle.decay_mom_rate, 0.5)},
    {CYCLE, "scheduler.params.cycle_momentum=false", FIELD(scheduler.cycle.momentum, false)},
    {RANGE, "scheduler.params.lr_range_test_min_lr=0.5", FIELD(scheduler.range_test.min_lr, 0.5)},
    {RANGE, "scheduler.params.lr_range_test_step_size=50",
     FIELD(scheduler.range_test.step_size, 50)},
    {RANGE, "scheduler.params.lr_range_test_step_rate=0.5",
     FIELD(scheduler.range_test.step_rate, 0.5)},
    {RANGE, "scheduler.params.lr_range_test_staircase=true",
     FIELD(scheduler.range_test.staircase, true)},
    {PLAIN, "fp16.enabled=true", FIELD(type, DTYPE_FP16)},
    {PLAIN, "fp16.enabled=true", FIELD(grad_dtype, DTYPE_FP16)},
    {FP16, "fp16.loss_scale=128", FIELD(fp16.loss_scale, 128)},
    {FP16, "fp16.initial_scale_power=8", FIELD(fp16.initial_scale_power, 8)},
    {FP16, "fp16.loss_scale_window=500", FIELD(fp16.loss_scale_window, 500)},
    {FP16, "fp16.hysteresis=3", FIELD(fp16.hysteresis, 3)},
    {FP16, "fp16.consecutive_hysteresis=true", FIELD(fp16.consecutive_hysteresis, true)},
    {FP16, "fp16.min_loss_scale=2", FIELD(fp16.min_loss_scale, 2)},
    {PLAIN, "bf16.enabled=true", FIELD(type, DTYPE_BF16)},
    {PLAIN, "bf16.enabled=true", FIELD(grad_dtype, DTYPE_BF16)},
    {PLAIN, "bfloat16.enabled=true", FIELD(type, DTYPE_BF16)},
    {BF16, "bf16.check_grad_overflow=false", FIELD(check_grad_overflow, false)},
    {BF16, "bf16.bf16_optimizer_states=true", FIELD(state.moments, TILE_BF16)},
    {PLAIN, "zero_optimization.stage=2", FIELD(zero_stage, 2)},
    {PLAIN, "zero_optimization=true", FIELD(zero_stage, 1)},
    {PLAIN, "zero_optimization.sub_group_size=5e7", FIELD(sub_group_size, 50000000)},
    {PLAIN, "zero_optimization.cpu_offload=true", FIELD(tiers.place[STATE_OPTIMIZER], TIER_HOST)},
    {PLAIN, "zero_optimization.cpu_offload_param=true",
     FIELD(tiers.place[STATE_PARAMS], TIER_HOST)},
    {PLAIN, "zero_optimization.offload_optimizer.device=cpu",
     FIELD(tiers.place[STATE_OPTIMIZER], TIER_HOST)},
    {PLAIN, "zero_optimization.offload_optimizer.device=none",
     FIELD(tiers.place[STATE_OPTIMIZER], TIER_DEVICE)},
    {OPTIMIZER_PATH, "zero_optimization.offload_optimizer.device=nvme",
     FIELD(tiers.place[STATE_OPTIMIZER], TIER_NVME)},
    {OPTIMIZER_PATH, "zero_optimization.offload_optimizer.device=nvme",
     FIELD_IS_TEXT(tiers.nvme[0].path, "/o")},
    {OPTIMIZER_NVME, "zero_optimization.offload_optimizer.nvme_path=/p",
     FIELD_IS_TEXT(tiers.nvme[0].path, "/p")},
    {STAGE_3_OFFLOAD, "zero_optimization.offload_optimizer.ratio=0.5", FIELD(tiers.rule_count, 1)},
    {STAGE_3_OFFLOAD, "zero_optimization.offload_optimizer.ratio=0.5",
     FIELD(tiers.rules[0].kind, STATE_OPTIMIZER)},
    {STAGE_3_OFFLOAD, "zero_optimization.offload_optimizer.ratio=0.5",
     FIELD(tiers.rules[0].tier, TIER_DEVICE)},
    {STAGE_3_OFFLOAD, "zero_optimization.offload_optimizer.ratio=0.5",
     FIELD(tiers.rules[0].unit_first, 1)},
    {STAGE_3_OFFLOAD, "zero_optimization.offload_optimizer.ratio=0.5",
     FIELD(tiers.rules[0].unit_last, 1)},
    {PLAIN, "zero_optimization.offload_param.device=cpu",
     FIELD(tiers.place[STATE_PARAMS], TIER_HOST)},
    {PLAIN, "zero_optimization.offload_param.device=none",
     FIELD(tiers.place[STATE_PARAMS], TIER_DEVICE)},
    {PARAM_NVME, "zero_optimization.offload_param.nvme_path=/q",
     FIELD_IS_TEXT(tiers.nvme[0].path, "/q")},
    {PLAIN, "aio.block_size=262144", FIELD(io.block_bytes, 262144)},
    {PLAIN, "aio.queue_depth=32", FIELD(io.queue_depth, 32)},
    {PLAIN, "activation_checkpointing.cpu_checkpointing=true",
     FIELD(tiers.place[STATE_ACTIVATIONS], TIER_HOST)},
    {PLAIN, "tensorboard.enabled=true", FIELD_IS_TEXT(run.tensorboard, "DeepSpeedJobName")},
    {TENSORBOARD, "tensorboard.output_path=x",
     FIELD_IS_TEXT(run.tensorboard, "x/DeepSpeedJobName")},
    {TENSORBOARD, "tensorboard.job_name=y", FIELD_IS_TEXT(run.tensorboard, "y")},
    {PLAIN, "communication_data_type=fp16", FIELD(comm.wire, DTYPE_FP16), "one rank"},
    {PLAIN, "zero_optimization.stage3_prefetch_bucket_size=5e6", FIELD(prefetch_bucket_size, 5e6),
     "one rank"},
    {PLAIN, "zero_optimization.prefetch_bucket_size=5e6", FIELD(prefetch_bucket_size, 5e6),
     "one rank"},
    {PLAIN, "zero_optimization.stage3_max_live_parameters=1e8", FIELD(max_live_parameters, 1e8),
     "one rank"},
    {PLAIN, "zero_optimization.max_live_parameters=1e8", FIELD(max_live_parameters, 1e8),
     "one rank"},
    {PLAIN, "zero_optimization.stage3_max_reuse_distance=1e8", FIELD(max_reuse_distance, 1e8),
     "one rank"},
    {PLAIN, "zero_optimization.max_reuse_distance=1e8", FIELD(max_reuse_distance, 1e8), "one rank"},
    {PLAIN, "zero_optimization.stage3_param_persistence_threshold=1e4",
     FIELD(persistence_threshold, 1e4), "one rank"},
    {PLAIN, "zero_optimization.param_persistence_threshold=1e4", FIELD(persistence_threshold, 1e4),
     "one rank"},
    {PLAIN, "zero_optimization.stage3_model_persistence_threshold=1e9",
     FIELD(model_persistence_threshold, 1e9), "one rank"},
    {PLAIN, "zero_optimization.model_persistence_threshold=1e9",
     FIELD(model_persistence_threshold, 1e9), "one rank"},
};

enum fate {
    SAME,   /* accepted: it says what holds anyway, or that something is off */
    IDLE,   /* no field changes; named in the log, with a reason that holds these words */
    REFUSED /* ERR_CONFIG with these words */
};
/* Keys that change nothing, by what becomes of them. "; " parts the --sets of a row. */
struct unused {
    enum fate fate;
    enum base base;
    const char *says, *sets;
};
static const struct unused unused[] = {
    {SAME, PLAIN, NULL,
     "gradient_allreduce_op=sum; elasticity={'enabled': false, 'x': 1}; amp={'enabled': false, "
     "'x': 1}; curriculum_learning={'enabled': false, 'x': 1}; data_efficiency={'enabled': false, "
     "'x': 1}; progressive_layer_drop={'enabled': false, 'x': 1}; eigenvalue={'enabled': false, "
     "'x': 1}; quantize_training={'enabled': false, 'x': 1}; "
     "compression_training={'weight_quantization': {'shared_parameters': {'enabled': false}}}; "
     "sparse_attention={}; weight_quantization={'enabled': false}; optimizer.type=adam; "
     "optimizer.type=ADAMW; zero_optimization=false"},
    {SAME, BF16, NULL, "data_types.param_dtype=bf16"},
    {IDLE, PLAIN, "all of its micro-batches", "managed_gradient_accumulation=false"},
    {IDLE, PLAIN, "metrics.jsonl hold",
     "wall_clock_breakdown=true; memory_breakdown=true; dump_state=true; "
     "activation_checkpointing.profile=true; timers.throughput.enabled=false; "
     "timers.throughput.synchronized=false; flops_profiler.enabled=true; "
     "flops_profiler.recompute_fwd_factor=1.0; flops_profiler.profile_step=2; "
     "flops_profiler.module_depth=1; flops_profiler.top_modules=3; flops_profiler.detailed=false; "
     "flops_profiler.output_file=x; comms_logger.enabled=true; comms_logger.verbose=true; "
     "comms_logger.prof_all=false; comms_logger.debug=true; comms_logger.prof_ops=['all_reduce']"},
    {IDLE, PLAIN, "one rank",
     "prescale_gradients=true; gradient_predivide_factor=2.0; "
     "seq_parallel_communication_data_type=bf16; seq_parallel_comm_data_type=bf16; "
     "disable_allgather=true; allgather_size=5e7; use_data_before_expert_parallelism=true; "
     "tensor_parallel={'autotp_size': 2}; expert_parallel={'size': 2}; pipeline={'stages': 2}; "
     "sequence_parallel_size=2; zero_optimization.reduce_scatter=false; "
     "zero_optimization.reduce_bucket_size=5e7; zero_optimization.allgather_bucket_size=5e7; "
     "zero_optimization.allgather_partitions=false; "
     "zero_optimization.use_multi_rank_bucket_allreduce=false; "
     "zero_optimization.zero_hpz_partition_size=8; zero_optimization.mics_shard_size=2; "
     "zero_optimization.mics_hierarchical_params_gather=true; "
     "activation_checkpointing.partition_activations=true"},
    {IDLE, PLAIN, "DeepSpeed's engine",
     "zero_allow_untested_optimizer=true; zero_force_ds_cpu_optimizer=false; "
     "graph_harvesting=true; log_level=warning; comms_config={'a': 1}; compile={'deepcompile': "
     "false, 'offload_activation': true}; hybrid_engine={'enabled': true}; "
     "optimizer.legacy_fusion=true; optimizer.params.foreach=true; "
     "optimizer.params.set_grad_none=false; torch_autocast.dtype=bfloat16; "
     "torch_autocast.lower_precision_safe_modules=['a']; zero_optimization.legacy_stage1=true; "
     "zero_optimization.round_robin_gradients=true; "
     "zero_optimization.ignore_unused_parameters=false; "
     "zero_optimization.memory_efficient_linear=false; "
     "zero_optimization.override_module_apply=false; "
     "zero_optimization.log_trace_cache_warnings=true; "
     "zero_optimization.enable_sanity_checks=true; "
     "zero_optimization.save_muon_momentum_buffer_in_memory=true"},
    {IDLE, PLAIN, "gradients are dense", "sparse_gradients=true"},
    {IDLE, PLAIN, "whole batches", "dataloader_drop_last=true"},
    {IDLE, PLAIN, "model.vocab_size", "vocabulary_size=32000"},
    {IDLE, PLAIN, "CUDA_VISIBLE_DEVICES", "cuda_visible_devices='0,1'"},
    {IDLE, PLAIN, "run.dir",
     "nebula={'enabled': true}; zero_optimization.load_from_fp32_weights=false; "
     "zero_optimization.elastic_checkpoint=true; "
     "zero_optimization.stage3_gather_16bit_weights_on_model_save=true; "
     "zero_optimization.gather_16bit_weights_on_model_save=true; "
     "zero_optimization.stage3_gather_fp16_weights_on_model_save=true; "
     "checkpoint.tag_validation=Fail; checkpoint.load_universal=true; "
     "checkpoint.use_node_local_storage=true; checkpoint.parallel_write.pipeline_stage=true; "
     "checkpoint.checkpoint_serialization=false; checkpoint.writer.type=PYTHON; "
     "checkpoint.writer.io_buffer_size=1048576; checkpoint.writer.io_buffer_double=false; "
     "checkpoint.writer.io_multiplier=2; checkpoint.writer.show_statistics=true; "
     "checkpoint.writer.data_parallel=SOCKET; checkpoint.writer.decoupled=true; "
     "checkpoint.datastates_ckpt={'host_cache_size':16}; datastates_ckpt={'host_cache_size': 16}"},
    {IDLE, PLAIN, "sluice plan", "autotuning={'enabled': true, 'fast': true}"},
    {IDLE, PLAIN, "no buffers", "data_types.buffer_dtype=fp32"},
    {IDLE, MUON, "exact arithmetic", "optimizer.params.ns_method=standard"},
    {IDLE, WARMUP, "run directory", "scheduler.params.last_batch_iteration=10"},
    {IDLE, FP16, "never cast", "fp16.auto_cast=true"},
    {IDLE, FP16, "DeepSpeed's engine", "fp16.fused_mode=true"},
    {IDLE, BF16, "summed in fp32", "bf16.immediate_grad_update=true"},
    {IDLE, PLAIN, "planned from the budgets",
     "zero_optimization.contiguous_gradients=false; zero_optimization.overlap_comm=true; "
     "zero_optimization.pipeline_loading_checkpoint=true; "
     "zero_optimization.stage3_module_granularity_threshold=5; "
     "zero_optimization.module_granularity_threshold=5; "
     "zero_optimization.stage3_use_all_reduce_for_fetch_params=true; "
     "zero_optimization.use_all_reduce_for_fetch_params=true; "
     "zero_optimization.stage3_allgather_sequential=true; "
     "zero_optimization.allgather_sequential=true; "
     "zero_optimization.cpu_offload_use_pin_memory=false; "
     "zero_optimization.leaf_module.classes=['a']; zero_optimization.leaf_module.names=['a']; "
     "zero_optimization.leaf_module.name_suffixes=['a']; "
     "zero_optimization.offload_optimizer.buffer_count=5; "
     "zero_optimization.offload_optimizer.pin_memory=false; "
     "zero_optimization.offload_optimizer.pipeline_read=true; "
     "zero_optimization.offload_optimizer.pipeline_write=true; "
     "zero_optimization.offload_optimizer.pipeline=true; "
     "zero_optimization.offload_optimizer.fast_init=true; "
     "zero_optimization.offload_optimizer.super_offload=true; "
     "zero_optimization.offload_param.buffer_count=6; "
     "zero_optimization.offload_param.buffer_size=1e9; "
     "zero_optimization.offload_param.pin_memory=false; "
     "activation_checkpointing.contiguous_memory_optimization=true; "
     "activation_checkpointing.synchronize_checkpoint_boundary=true"},
    {IDLE, PLAIN, "every weight is trained",
     "zero_optimization.zero_quantized_nontrainable_weights=true"},
    {IDLE, PLAIN, "update.threads and update.cores",
     "zero_optimization.offload_optimizer.cpuadam_cores_perc=0.5"},
    {IDLE, PLAIN, "tiers.host.budget", "zero_optimization.offload_param.max_in_cpu=1e8"},
    {IDLE, PLAIN, "one queue serves all drives",
     "aio.intra_op_parallelism=2; aio.thread_count=2; aio.single_submit='true'; "
     "aio.overlap_events='false'"},
    {IDLE, PLAIN, "through host memory", "aio.use_gds=true"},
    {IDLE, PLAIN, "every block's input", "activation_checkpointing.number_checkpoints=4"},
    {IDLE, PLAIN, "metrics are written to metrics.jsonl",
     "csv_monitor.enabled=true; csv_monitor.output_path=x; csv_monitor.job_name=y; "
     "wandb.enabled=true; wandb.group=g; wandb.team=t; wandb.project=p; comet.enabled=true; "
     "comet.samples_log_interval=5; comet.project=p; comet.workspace=w; comet.api_key=k; "
     "comet.experiment_name=n; comet.experiment_key=k; comet.online=false; comet.mode=get"},
    {REFUSED, STAGE_3, "not supported with zero_optimization.stage 3", "gradient_allreduce_op=sum"},
    {REFUSED, DEEPCOMPILE, "compile.deepcompile", "gradient_allreduce_op=sum"},
    {REFUSED, PLAIN, "not built",
     "elasticity={'enabled': true}; amp={'enabled': true}; curriculum_learning={'enabled': true}; "
     "data_efficiency={'enabled': true}; progressive_layer_drop={'enabled': true}; "
     "eigenvalue={'enabled': true}; quantize_training={'enabled': true}; "
     "quantize_training={'quantize_bits': {'start_bits': 16}}; "
     "compression_training={'weight_quantization': {'shared_parameters': {'enabled': true}}}; "
     "sparse_attention={'mode': 'fixed'}; optimizer.params.amsgrad=true; "
     "torch_autocast.enabled=true"},
    {REFUSED, PLAIN, "quantizes the weights",
     "weight_quantization={'quantized_initialization': {'num_bits': 4}}"},
    {REFUSED, BF16, "disagrees with fp16.enabled and bf16.enabled", "data_types.param_dtype=fp16"},
    {REFUSED, PLAIN, "supported: Adam|AdamW|Adagrad|Lion",
     "optimizer.type=lamb; optimizer.type=onebitadam; optimizer.type=muadam; optimizer.type=musgd; "
     "optimizer.type=sgd"},
    {REFUSED, MUON, "not built", "optimizer.params.per_head_muon=true"},
    {REFUSED, PLAIN, "dtype of the parameters", "optimizer.params.fp32_optimizer_states=false"},
    {REFUSED, PLAIN, "gradient_clipping", "optimizer.params.max_grad_norm=1.0"},
    {REFUSED, BF16, "bf16.enabled", "fp16.enabled=true"},
    {REFUSED, FP16, "Master weights are fp32", "fp16.fp16_master_weights_and_grads=true"},
    {REFUSED, BF16, "Master weights are fp32", "bf16.bf16_master_weights_and_grads=true"},
    {REFUSED, FP16, "dtype of the parameters", "bf16.bf16_optimizer_states=true"},
    {REFUSED, PLAIN, "changes the arithmetic of training",
     "zero_optimization.zero_quantized_weights=true; "
     "zero_optimization.zero_quantized_gradients=true"},
    {REFUSED, PLAIN, "quantized gradients",
     "zero_optimization.zeropp_loco_param={'err_beta': 0.8, 'reset_T': 1024}"},
    {REFUSED, PLAIN, "ZenFlow changes the arithmetic",
     "zero_optimization.zenflow={'topk_ratio': 0.1, 'select_strategy': 'auto', 'select_interval': "
     "'auto', 'update_interval': 4, 'overlap_step': true, 'offload': false, 'auto_ratio': 0.99, "
     "'full_warm_up_rounds': 0, 'pt_reserved_cores_perc': 0.5}"},
    {REFUSED, OPTIMIZER_NVME, "needs zero_optimization.stage 3",
     "zero_optimization.offload_optimizer.ratio=0.5"},
};
enum {
    HONOURED_COUNT = sizeof honoured / sizeof honoured[0],
    UNUSED_COUNT = sizeof unused / sizeof unused[0]
};

#endif
