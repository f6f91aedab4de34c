/* Reading a job file that is right: defaults, DeepSpeed's files, --set, and the job's text. */
#include "tests/config/test_config_common.h"

#include "config/config.h"
#include "config/config_internal.h"

static const char block_job[] =
    SMALL_WITH("'quantization_config': {'load_in_4bit': true, 'bnb_4bit_quant_type': 'nf4', "
               "'llm_int8_skip_modules': ['lm_head', 'multi_modal_projector']},");

/* A typical job of DeepSpeed: aliases, "auto", string booleans, deprecated keys, blocks that are
 * off. */
static const char deepspeed_job[] =
    "{" SMALL_MODEL
    ", 'run': {'dir': 'r'},\n'train_batch_size': 32, 'train_micro_batch_size_per_gpu': "
    "4,\n'gradient_accumulation_steps': 'auto', 'steps_per_print': 2000,\n'optimizer': {'type': "
    "'adam', 'params': {'lr': 2e-4, 'betas': [0.8, 0.99],\n  'eps': 1e-7, 'weight_decay': 3e-7, "
    "'adam_w_mode': false}},\n'scheduler': {'type': 'WarmupLR', 'params': {'warmup_min_lr': 0,\n  "
    "'warmup_max_lr': 'auto', 'warmup_num_steps': 10}},\n'bfloat16': {'enabled': true}, 'fp16': "
    "{'enabled': false, 'loss_scale': 0},\n'data_types': {'grad_accum_dtype': 'fp32'}, 'amp': "
    "{'enabled': false},\n'zero_optimization': {'stage': 3, 'overlap_comm': true, "
    "'sub_group_size': 5e8,\n  'stage3_model_persistence_threshold': 9223372036854775807,\n  "
    "'prefetch_bucket_size': 'auto', 'offload_param': {'device': 'cpu'},\n  'offload_optimizer': "
    "{'device': 'nvme', 'nvme_path': '/nvme',\n     'buffer_count': 4, 'fast_init': false}, "
    "'zenflow': null},\n'aio': {'single_submit': 'false', 'overlap_events': 'true', "
    "'thread_count': 1,\n  'block_size': 262144, 'queue_depth': 32},\n'activation_checkpointing': "
    "{'cpu_checkpointing': true},\n'wandb': {'enabled': false}, 'elasticity': {'enabled': false, "
    "'x': 1},\n'wall_clock_breakdown': false, 'dump_state': true}";

static const char machine_job[] = SMALL_WITH(
    "'io': {'cores': '3', 'stuck_seconds': 0, 'verify_reads': false, 'polled_completions': true},"
    "'debug': {'io': {'threads': 4, 'stop_seconds': 0.5}},"
    "'update': {'threads': 6, 'cores': '0-7,16'}, 'device': {'cores': '8-15'},"
    "'tiers': {'place': {'rules': [{'units': 1, 'kind': 'inner_activations',"
    " 'tier': 'recompute'}]}}, 'data': {'format': 'text'},");

static const char own_blocks_job[] =
    "# a remark\n{" SMALL_MODEL ", /* // # */\n"
    "'data': {'train': ['a#b', 'c//d',], 'valid': 'e/*f*/', 'seed': 7},\n"
    "'run': {'dir': 'auto', 'steps': 5e2, 'eval_every': 10, 'fresh': true},\n"
    "'device': {'backend': 'cpu', 'threads': 3},\n"
    "'tiers': {'device': {'budget': '1.5GiB'}, 'host': {'budget': 4096},\n"
    "  'nvme': [{'path': '/a', 'budget': '2 GB'}, {'path': '/b'}],\n"
    "  'place': {'optimizer': 'nvme', 'activations': 'host', 'rules': [\n"
    "    {'units': '0-11', 'kind': 'params', 'tier': 'device'},\n"
    "    {'units': 3, 'kind': 'grads', 'tier': 'host'},\n"
    "    {'units': 'all', 'kind': 'activations', 'tier': 'nvme'}]}},\n"
    "'schedule': {'update': 'in_next_forward', 'tile_elems': 65536},\n"
    "'debug': {'schedule': {'lookahead': 4}}, 'io': {'backend': 'pool'},\n"
    "'train_batch_size': 12, 'gradient_accumulation_steps': 3,\n"
    "'bf16': {'enabled': true}, // the end\n}\n";

#define BF16 SMALL_WITH("'bf16': {'enabled': true},")
#define TOKENS                                                                                     \
    "{'model': {'family': 'gpt2', 'num_layers': 2, 'hidden_size': 64, 'num_heads': 4, "            \
    "'seq_length': 32, 'vocab_size': 100, 'max_part_bytes': '2MiB'}, " SMALL_REST "}"

/* Jobs, a --set or NULL, and members of the job that follow. test_config_keys.h has DeepSpeed's
 * keys one by one. */
static const struct {
    const char *text, *set;
    struct field fields[ROW_FIELDS_MAX];
} readings[] = {
    /* defaults */
    {SMALL_JOB,
     NULL,
     {FIELD(model.family, MODEL_GPT2), FIELD(model.num_kv_heads, 4), FIELD(model.ffn_size, 256),
      FIELD(model.vocab_size, 256), FIELD(model.tie_embeddings, true),
      FIELD(model.rope_theta, 10000), FIELD(model.norm_epsilon, 1e-5), FIELD(model.init_std, 0.02),
      FIELD(model.max_part_bytes, 0)}},
    {SMALL_JOB,
     NULL,
     {FIELD(data.train.count, 0), FIELD_IS_TEXT(data.tokenizer, "bytes"), FIELD(data.seed, 1),
      FIELD(data.format, DATA_AUTO), FIELD(run.steps, 1000), FIELD(run.seed, 1),
      FIELD(run.commit_every, 50), FIELD(run.keep_every, 0), FIELD(run.keep_count, 0),
      FIELD(run.log_every, 1), FIELD(run.fresh, false), FIELD(run.paranoid, false)}},
    {SMALL_JOB,
     NULL,
     {FIELD_IS_TEXT(device.backend, "auto"), FIELD_IS_TEXT(device.cores, ""),
      FIELD(tiers.nvme_count, 0), FIELD(tiers.place[STATE_PARAMS], TIER_AUTO),
      FIELD(tiers.place[STATE_GRADS], TIER_AUTO), FIELD(tiers.place[STATE_OPTIMIZER], TIER_AUTO),
      FIELD(tiers.place[STATE_ACTIVATIONS], TIER_AUTO),
      FIELD(tiers.place[STATE_INNER_ACTIVATIONS], TIER_AUTO),
      FIELD(schedule.order, ORDER_LAYER_MAJOR), FIELD(schedule.update, UPDATE_AUTO)}},
    {SMALL_JOB,
     NULL,
     {FIELD_IS_TEXT(io.backend, "auto"), FIELD(io.block_bytes, 1048576), FIELD(io.queue_depth, 8),
      FIELD(io.stuck_seconds, 30), FIELD(io.stop_seconds, 600), FIELD(io.verify_reads, true),
      FIELD(io.polled_completions, false), FIELD(io.threads, 0), FIELD(update.threads, 0)}},
    {SMALL_JOB,
     NULL,
     {FIELD(train_batch_size, 1), FIELD(accumulation, 1), FIELD(gradient_clipping, 1),
      FIELD(type, DTYPE_FP32), FIELD(grad_dtype, DTYPE_FP32), FIELD(sub_group_size, 1000000000),
      FIELD(model.learn.is_given, false), FIELD(model.lora.rank, 0), FIELD(state.master, TILE_FP32),
      FIELD(state.moments, TILE_FP32), FIELD(scheduler.type, JOB_SCHEDULE_NONE)}},
    {SMALL_JOB,
     NULL,
     {FIELD(optimizer.decoupled, true), FIELD(optimizer.bias_correction, true),
      FIELD(optimizer.lr, 1e-3), FIELD(optimizer.beta1, 0.9), FIELD(optimizer.beta2, 0.999),
      FIELD(optimizer.epsilon, 1e-8), FIELD(optimizer.weight_decay, 0)}},
    /* the keys of fp16, and what each mode of a step is called */
    {SMALL_WITH("'fp16': {'enabled': true}, 'schedule': {'order': 'Batch_Major', 'update': "
                "'delayed_one_step'},"),
     "tiers.place.inner_activations=host",
     {FIELD(type, DTYPE_FP16), FIELD(grad_dtype, DTYPE_FP16), FIELD(fp16.loss_scale, 0),
      FIELD(fp16.min_loss_scale, 1), FIELD(fp16.initial_scale_power, 16),
      FIELD(fp16.loss_scale_window, 1000), FIELD(fp16.hysteresis, 2),
      FIELD(fp16.consecutive_hysteresis, false), FIELD(check_grad_overflow, true),
      FIELD(schedule.order, ORDER_BATCH_MAJOR), FIELD(schedule.update, UPDATE_DELAYED_ONE_STEP),
      FIELD(tiers.place[STATE_INNER_ACTIVATIONS], TIER_HOST)}},
    /* A static scale makes the dynamic keys idle, as in DeepSpeed. */
    {SMALL_WITH("'fp16': {'enabled': true, 'loss_scale': 128, 'loss_scale_window': 0, "
                "'min_loss_scale': 0, 'hysteresis': 3, 'consecutive_hysteresis': true, "
                "'initial_scale_power': 8},"),
     "data_types.grad_accum_dtype=fp32",
     {FIELD(fp16.loss_scale, 128), FIELD(fp16.hysteresis, 3), FIELD(fp16.initial_scale_power, 8),
      FIELD(fp16.consecutive_hysteresis, true), FIELD(grad_dtype, DTYPE_FP32)}},
    {SMALL_WITH("'bf16': {'enabled': true, 'check_grad_overflow': false}, 'gradient_clipping': 0,"),
     "schedule.update=in_backward",
     {FIELD(schedule.update, UPDATE_IN_BACKWARD), FIELD(check_grad_overflow, false)}},
    {SMALL_WITH("'gradient_clipping': 0,"),
     "schedule.update=in_backward",
     {FIELD(type, DTYPE_FP32), FIELD(check_grad_overflow, false)}},
    {BF16, "data_types.param_dtype=bf16", {FIELD(check_grad_overflow, true)}},
    /* formats of state */
    {BF16,
     "state.master=split",
     {FIELD(state.master, TILE_LOW16), FIELD(state.moments, TILE_FP32)}},
    {SMALL_JOB, "state.moments=8bit", {FIELD(state.moments, TILE_INT8)}}, /* no dtype is needed */
    {BF16,
     "state={'moments': 'bf16', 'master': 'split'}",
     {FIELD(state.master, TILE_LOW16), FIELD(state.moments, TILE_BF16)}},
    /* A job's quantization_config gives the formats. It may name modules that the model lacks, as
     * those of checkpoints do, and the rules of a job may not. */
    {block_job,
     NULL,
     {FIELD(model.stored.format, STORED_NF4), FIELD(model.stored.rule_count, 1),
      FIELD_IS_TEXT(model.stored.rules[0].name, "multi_modal_projector"),
      FIELD(model.stored.rules[0].format, STORED_WORKING),
      FIELD(model.stored.may_keep_absent, true), FIELD(model.stored.is_of_checkpoint, false)}},
    {SMALL_JOB, "state.params=nf4", {FIELD(model.stored.may_keep_absent, false)}},
    /* the machine, and the form of data */
    {machine_job,
     "run.paranoid=true",
     {FIELD(io.stuck_seconds, 0), FIELD(io.stop_seconds, 0.5), FIELD(io.verify_reads, false),
      FIELD(io.polled_completions, true), FIELD(io.threads, 4), FIELD_IS_TEXT(io.cores, "3"),
      FIELD(update.threads, 6), FIELD_IS_TEXT(update.cores, "0-7,16"),
      FIELD_IS_TEXT(device.cores, "8-15"), FIELD(run.paranoid, true),
      FIELD(tiers.rules[0].kind, STATE_INNER_ACTIVATIONS),
      FIELD(tiers.rules[0].tier, TIER_RECOMPUTE)}},
    {TOKENS,
     "data.format=llmc",
     {FIELD(data.format, DATA_LLMC), FIELD(model.vocab_size, 100),
      FIELD(model.max_part_bytes, 2 << 20)}},
    {TOKENS, "data.format=u16", {FIELD(data.format, DATA_LLMC + 1), FIELD(model.vocab_size, 100)}},
    {TOKENS, "data.format=u32", {FIELD(data.format, DATA_LLMC + 2)}},
    {TOKENS, "data.format=megatron", {FIELD(data.format, DATA_LLMC + 3)}},
    {"{'model': {'family': 'LLaMA', 'num_layers': 1, 'hidden_size': 4096, 'num_heads': 32, "
     "'num_kv_heads': 8, 'seq_length': 16}, " SMALL_REST "}",
     NULL,
     {FIELD(model.family, MODEL_LLAMA), FIELD(model.ffn_size, 11008), /* as Llama 7B */
      FIELD(model.num_kv_heads, 8), FIELD(model.tie_embeddings, false)}},
    /* what learns */
    {SMALL_JOB,
     "train.only=['blocks.20-31', 'blocks.5', 'norms']",
     {FIELD(model.learn.is_given, true), FIELD(model.learn.norms, true),
      FIELD(model.learn.all, false), FIELD(model.learn.embed, false),
      FIELD(model.learn.head, false), FIELD(model.learn.range_count, 2),
      FIELD(model.learn.blocks[0].first, 20), FIELD(model.learn.blocks[0].last, 31),
      FIELD(model.learn.blocks[1].first, 5), FIELD(model.learn.blocks[1].last, 5)}},
    {SMALL_JOB,
     "train.only=embed",
     {FIELD(model.learn.is_given, true), FIELD(model.learn.embed, true)}},
    {SMALL_JOB,
     "train.lora={}",
     {FIELD(model.learn.is_given, false), FIELD(model.lora.rank, 8), FIELD(model.lora.alpha, 8),
      FIELD(model.lora.dropout, 0), FIELD(lora.target_count, 0)}},
    {SMALL_JOB,
     "train.lora={'rank': 16, 'alpha': 32, 'dropout': 0.05, 'targets': ['q_proj', 'down_proj']}",
     {FIELD(model.lora.rank, 16), FIELD(model.lora.alpha, 32), FIELD(model.lora.dropout, 0.05),
      FIELD(lora.target_count, 2), FIELD_IS_TEXT(lora.targets[1], "down_proj")}},
    /* Sluice's own blocks, with remarks */
    {own_blocks_job,
     NULL,
     {FIELD(data.train.count, 2), FIELD_IS_TEXT(data.train.path[0], "a#b"),
      FIELD_IS_TEXT(data.train.path[1], "c//d"), FIELD_IS_TEXT(data.valid.path[0], "e/*f*/"),
      FIELD(data.seed, 7), FIELD_IS_TEXT(run.dir, "auto"), FIELD(run.steps, 500),
      FIELD(run.fresh, true), FIELD_IS_TEXT(device.backend, "cpu"), FIELD(device.threads, 3)}},
    {own_blocks_job,
     NULL,
     {FIELD(tiers.device_budget, 3ull << 29), FIELD(tiers.host_budget, 4096),
      FIELD(tiers.nvme_count, 2), FIELD(tiers.nvme[0].budget_bytes, 2000000000),
      FIELD_IS_TEXT(tiers.nvme[1].path, "/b"), FIELD(tiers.place[STATE_PARAMS], TIER_AUTO),
      FIELD(tiers.place[STATE_OPTIMIZER], TIER_NVME),
      FIELD(tiers.place[STATE_ACTIVATIONS], TIER_HOST)}},
    {own_blocks_job,
     NULL,
     {FIELD(tiers.rule_count, 3), FIELD(tiers.rules[0].unit_last, 11),
      FIELD(tiers.rules[0].kind, STATE_PARAMS), FIELD(tiers.rules[0].tier, TIER_DEVICE),
      FIELD(tiers.rules[1].unit_first, 3), FIELD(tiers.rules[1].unit_last, 3),
      FIELD(tiers.rules[2].unit_last, UINT32_MAX)}},
    {own_blocks_job,
     NULL,
     {FIELD(schedule.update, UPDATE_IN_NEXT_FORWARD), FIELD(schedule.tile_elems, 65536),
      FIELD(schedule.lookahead, 4), FIELD_IS_TEXT(io.backend, "pool"), FIELD(micro_batch, 4),
      FIELD(grad_dtype, DTYPE_BF16)}},
    /* DeepSpeed's */
    {deepspeed_job,
     NULL,
     {FIELD(accumulation, 8), FIELD(run.log_every, 2000), FIELD(optimizer.decoupled, false),
      FIELD(optimizer.lr, 2e-4), FIELD(optimizer.beta1, 0.8), FIELD(optimizer.beta2, 0.99),
      FIELD(optimizer.weight_decay, 3e-7), FIELD(scheduler.type, JOB_WARMUP_LR),
      FIELD(scheduler.warmup_max_lr_given, false), FIELD(type, DTYPE_BF16),
      FIELD(grad_dtype, DTYPE_FP32), FIELD(zero_stage, 3)}},
    {deepspeed_job,
     NULL,
     {FIELD(sub_group_size, 500000000), FIELD(tiers.place[STATE_OPTIMIZER], TIER_NVME),
      FIELD(tiers.place[STATE_PARAMS], TIER_HOST), FIELD(tiers.place[STATE_ACTIVATIONS], TIER_HOST),
      FIELD(tiers.place[STATE_GRADS], TIER_AUTO), FIELD(tiers.nvme_count, 1),
      FIELD_IS_TEXT(tiers.nvme[0].path, "/nvme"), FIELD(io.block_bytes, 262144),
      FIELD(io.queue_depth, 32)}},
    {deepspeed_job,
     "optimizer.params.adam_w_mode=null",
     {FIELD(optimizer.decoupled, true)}}, /* the type Adam means AdamW */
    {SMALL_WITH("'optimizer': {'type': 'adagrad'},"),
     NULL,
     {FIELD(optimizer.type, JOB_ADAGRAD), FIELD(optimizer.lr, 1e-2),
      FIELD(optimizer.epsilon, 1e-10), FIELD(optimizer.decoupled, false),
      FIELD(optimizer.bias_correction, false)}},
    {SMALL_WITH("'optimizer': {'type': 'Lion', 'params': {'lr': 1e-4, 'betas': [0.95, 0.98], "
                "'weight_decay': 0.5}},"),
     NULL,
     {FIELD(optimizer.type, JOB_LION), FIELD(optimizer.beta1, 0.95), FIELD(optimizer.beta2, 0.98),
      FIELD(optimizer.lr, 1e-4), FIELD(optimizer.weight_decay, 0.5),
      FIELD(optimizer.decoupled, true)}},
    {SMALL_WITH("'optimizer': {'type': 'LION'},"),
     NULL,
     {FIELD(optimizer.lr, 1e-3), FIELD(optimizer.beta1, 0.9), FIELD(optimizer.beta2, 0.999)}},
    {SMALL_WITH("'zero_optimization': {'cpu_offload': true, 'offload_param': {'device': 'none'}},"),
     NULL,
     {FIELD(tiers.place[STATE_OPTIMIZER], TIER_HOST),
      FIELD(tiers.place[STATE_PARAMS], TIER_DEVICE)}},
};

static void jobs_are_read(void **state)
{
    log_set_level(LOG_QUIET); /* approximate updates and moments warn */
    for (size_t i = 0; i < sizeof readings / sizeof readings[0]; i++) {
        job *self = read_good(readings[i].text, readings[i].set);
        check_fields(readings[i].fields, self, "reading", i);
        job_destroy(self);
    }
    log_set_level(LOG_WARN);
}

static void training_needs_data(void **state)
{
    job *self = read_good(SMALL_JOB, NULL);
    assert_string_equal(self->preset, "");
    assert_error(job_check_for_training(self), ERR_CONFIG, "data.train");
    job_destroy(self);
    self = read_good(own_blocks_job, NULL);
    assert_ok(job_check_for_training(self));
    job_destroy(self);
    self = read_good(SMALL_WITH("'data': {'train': 'x'},"), "run.eval_every=5");
    assert_error(job_check_for_training(self), ERR_CONFIG, "data.valid");
    job_destroy(self);
}

/* A key without effect is named once, with the reason. A key that is used or off is not named. A
 * setting that is approximate is warned of once, wherever the job has it. */
static void the_log_names_what_it_must(void **state)
{
    static const struct {
        const char *text, *says;
        uint32_t count;
    } rows[] = {
        {SMALL_WITH("'schedule': {'update': 'delayed_one_step'},"), "approximate", 1},
        {SMALL_WITH("'schedule': {'update': 'in_next_forward'},"), "approximate", 0},
        {SMALL_WITH("'schedule': {'delayed_from_step': 40},"), "delayed_from_step has no effect",
         1},
        {SMALL_WITH("'state': {'moments': 'bf16'},"), "moments in bf16 are approximate", 1},
        {SMALL_WITH("'bf16': {'enabled': true, 'bf16_optimizer_states': true},"),
         "moments in bf16 are approximate", 1},
        {SMALL_JOB, "", 0},
        {deepspeed_job, "zero_optimization.overlap_comm", 1},
        {deepspeed_job, "zero_optimization.offload_optimizer.buffer_count", 1},
        {deepspeed_job, "planned from the budgets in tiers", 1},
        {deepspeed_job, "aio.intra_op_parallelism", 1},
        {deepspeed_job, "dump_state", 1},
        {deepspeed_job, "wandb.enabled", 1},
        {deepspeed_job, "queue_depth,", 0},
        {deepspeed_job, "amp", 0},
        {deepspeed_job, "elasticity", 0},
        {deepspeed_job, "prefetch_bucket_size", 1}, /* also where it is "auto" */
    };
    static char log[TEST_LOG_BYTES];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        size_t bytes = read_logged(rows[i].text, NULL, log);
        uint32_t count = 0;
        for (const char *at = log; *rows[i].says && (at = strstr(at, rows[i].says)); at++)
            count++;
        if (count != rows[i].count || (!*rows[i].says && bytes > 0))
            fail_msg("case %zu: \"%s\" is logged %u times: %s", i, rows[i].says, count, log);
    }
}

static void set_overrides(void **state)
{
    static const char *const set[] = {
        "run.steps=7",
        "run.dir=12",             /* text where text belongs */
        "tiers.nvme.0.path=/x=y", /* makes the list; the first = parts */
        "tiers.nvme.1={\"path\": \"/z\", \"budget\": \"1GiB\", /* as in a file */}",
        "tiers.place.optimizer=nvme",
        "data.train=[\"a\", \"b\"]",
        "data.train.1=c",
        "bfloat16.enabled=true",
        "optimizer.params.betas.0=0.5",
        "gradient_clipping=0",
        "model.preset=null",
    };
    const char *text = quoted(SMALL_WITH("'optimizer': {'params': {'betas': [0.1, 0.2]}},'bf16': "
                                         "{'enabled': false}, 'gradient_clipping': -5,"));
    write_job(text, strlen(text));
    job *self;
    assert_ok(job_read(test_file, NULL, set, sizeof set / sizeof set[0], 1, &self));
    assert_int_equal(self->run.steps, 7);
    assert_string_equal(self->run.dir, "12");
    assert_int_equal(self->tiers.nvme_count, 2);
    assert_string_equal(self->tiers.nvme[0].path, "/x=y");
    assert_int_equal(self->tiers.nvme[1].budget_bytes, 1ull << 30);
    assert_int_equal(self->tiers.place[STATE_OPTIMIZER], TIER_NVME);
    assert_string_equal(self->data.train.path[1], "c");
    assert_int_equal(self->type, DTYPE_BF16);
    assert_true(self->optimizer.beta1 == 0.5 && self->optimizer.beta2 == 0.2);
    assert_true(self->gradient_clipping == 0.0);
    job_destroy(self);
}

/* run.keep: a number, a list in any order, the last step, and what says nothing. */
static void keep_is_read(void **state)
{
    enum { STEPS_MAX = 3 };
    static const struct {
        const char *run, *set;
        uint64_t every;
        uint32_t count;
        uint64_t steps[STEPS_MAX];
    } cases[] = {
        {"", "run.keep=100", 100, 0, {0}},
        {"", "run.keep=1e3", 1000, 0, {0}},
        {"", "run.keep=2000", 2000, 0, {0}}, /* a later run.steps may reach it */
        {"", "run.keep=0", 0, 0, {0}},
        {", 'keep': 100", "run.keep=null", 0, 0, {0}},
        {", 'keep': 'auto'", NULL, 0, 0, {0}},
        {", 'keep': 100", "run.keep=[]", 0, 0, {0}},
        {", 'commit_every': 1", "run.keep=[1,2]", 0, 2, {1, 2}},
        {", 'keep': [250, 50, 150]", NULL, 0, 3, {50, 150, 250}},
        {", 'keep': [250, 50, 250, 50]", "run.keep.1=5e1", 0, 2, {50, 250}},
        {", 'keep': [50]", "run.keep.1=1000", 0, 2, {50, 1000}},
        {", 'steps': 999", "run.keep=[50, 999]", 0, 2, {50, 999}},
        {", 'steps': 999", "run.keep=999", 999, 0, {0}},
        {", 'keep': 100", "run.keep=[100]", 0, 1, {100}},
        {", 'keep': [100]", "run.keep=50", 50, 0, {0}},
        {", 'commit_every': 0", "run.keep=0", 0, 0, {0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[512];
        snprintf(text, sizeof text,
                 "{" SMALL_MODEL ", 'run': {'dir': 'd'%s}, 'train_micro_batch_size_per_gpu': 1}",
                 cases[i].run);
        job *self = read_good(text, cases[i].set);
        assert_int_equal(self->run.keep_every, cases[i].every);
        assert_int_equal(self->run.keep_count, cases[i].count);
        for (uint32_t step = 0; step < cases[i].count; step++)
            assert_int_equal(self->run.keep[step], cases[i].steps[step]);
        job_destroy(self);
    }
}

/* The text of a job is JSON without comments, and reads back as the same job. */
static void text_round_trips(void **state)
{
    static const struct {
        const char *text, *set;
    } cases[] = {
        {SMALL_JOB, NULL},
        {deepspeed_job, "optimizer.params.lr=0.00012345678901234567"},
        {"{'model': {'preset': 'gpt2-1.5b', 'seq_length': 512}, " SMALL_REST "}",
         "tiers.nvme.0.path=/x"},
        {"{'model': {'preset': 'llama-8b', 'num_layers': null}, " SMALL_REST "}", NULL},
        {SMALL_JOB, "run.keep=[100, 50, 1000]"},
        {block_job, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        job *first = read_good(cases[i].text, cases[i].set);
        char *text = mem_string(first->text, "test text");
        assert_non_null(text);
        json_t *doc = json_loads(text, JSON_REJECT_DUPLICATES, NULL); /* strict: no comments */
        assert_non_null(doc);
        json_decref(doc);
        setenv("SLUICE_CONFIG_DIR", "/nonexistent", 1); /* the presets are in the text */
        job *second = read_good(text, NULL);
        unsetenv("SLUICE_CONFIG_DIR");
        assert_jobs_equal(first, second);
        assert_string_equal(first->text, second->text);
        mem_free(text);
        job_destroy(first);
        job_destroy(second);
    }
}

/* The job.json of a module with many tensors is long. */
static void long_files_are_read(void **state)
{
    size_t bytes = (size_t)20 << 20, job_bytes = strlen(SMALL_JOB);
    char *text = mem_alloc(bytes, 1, "test text");
    assert_non_null(text);
    memset(text, ' ', bytes);
    memcpy(text + bytes - job_bytes, quoted(SMALL_JOB), job_bytes);
    write_job(text, bytes);
    mem_free(text);
    job *self;
    assert_int_equal(job_read(test_file, NULL, NULL, 0, 1, &self), 0);
    job_destroy(self);
}

static void comments_keep_places(void **state)
{
    char text[] =
        "\xef\xbb\xbf{ /* \xc3\xa4\n */ \"a\\\"//\": [1, 2,], # x\n \"b\": {\"c\": 1,},\t}";
    int64_t bytes = configi_strip("f", text, strlen(text));
    static const char expected[] = "{     \n    \"a\\\"//\": [1, 2 ],    \n \"b\": {\"c\": 1 } \t}";
    assert_int_equal(bytes, strlen(expected));
    assert_memory_equal(text, expected, strlen(expected));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jobs_are_read),    cmocka_unit_test(training_needs_data),
        cmocka_unit_test(set_overrides),    cmocka_unit_test(the_log_names_what_it_must),
        cmocka_unit_test(text_round_trips), cmocka_unit_test(comments_keep_places),
        cmocka_unit_test(keep_is_read),     cmocka_unit_test(long_files_are_read),
    };
    return cmocka_run_group_tests(tests, test_setup, test_teardown);
}
