/* Reading a job file that is right: defaults, DeepSpeed's files, --set, and the job's text. */
#include "tests/config/test_config_common.h"

#include "config/config.h"
#include "config/config_internal.h"

static void defaults_hold(void **state)
{
    job *self = read_good(SMALL_JOB, NULL);
    assert_string_equal(self->model.family, "gpt2");
    assert_string_equal(self->model.preset, "");
    assert_int_equal(self->model.num_kv_heads, 4);
    assert_int_equal(self->model.ffn_size, 256);
    assert_int_equal(self->model.vocab_size, 256);
    assert_true(self->model.tie_embeddings);
    assert_true(self->model.rope_theta == 10000.0 && self->model.norm_epsilon == 1e-5);
    assert_true(self->model.init_std == 0.02);
    assert_int_equal(self->data.train.count, 0);
    assert_string_equal(self->data.tokenizer, "bytes");
    assert_int_equal(self->data.seed, 1);
    assert_int_equal(self->run.steps, 1000);
    assert_int_equal(self->run.seed, 1);
    assert_int_equal(self->run.commit_every, 50);
    assert_int_equal(self->run.keep_every, 0);
    assert_int_equal(self->run.keep_count, 0);
    assert_int_equal(self->run.log_every, 1);
    assert_false(self->run.fresh);
    assert_string_equal(self->device.backend, "auto");
    assert_int_equal(self->tiers.nvme_count, 0);
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        assert_int_equal(self->tiers.place[kind], TIER_AUTO);
    assert_int_equal(self->schedule.order, ORDER_LAYER_MAJOR);
    assert_int_equal(self->schedule.update, UPDATE_AUTO);
    assert_string_equal(self->io.backend, "auto");
    assert_int_equal(self->io.block_bytes, 1048576);
    assert_int_equal(self->io.queue_depth, 8);
    assert_int_equal(self->train_batch_size, 1);
    assert_int_equal(self->accumulation, 1);
    assert_true(self->gradient_clipping == 1.0);
    assert_int_equal(self->type, DTYPE_FP32);
    assert_int_equal(self->grad_dtype, DTYPE_FP32);
    assert_int_equal(self->sub_group_size, 1000000000);
    assert_true(self->optimizer.decoupled && self->optimizer.bias_correction);
    assert_true(self->optimizer.lr == 1e-3 && self->optimizer.beta1 == 0.9);
    assert_true(self->optimizer.beta2 == 0.999 && self->optimizer.epsilon == 1e-8);
    assert_true(self->optimizer.weight_decay == 0.0);
    assert_int_equal(self->scheduler.type, JOB_SCHEDULE_NONE);
    assert_error(job_check_for_training(self), ERR_CONFIG, "data.train");
    job_destroy(self);
}

/* Counts texts in what a job's reading logs. */
static uint32_t count_logged(const char *job_text, const char *const *wanted, uint32_t *counts)
{
    static char log[TEST_LOG_BYTES];
    size_t bytes = read_logged(job_text, NULL, log);
    for (; *wanted; wanted++, counts++) {
        *counts = 0;
        for (const char *at = strstr(log, *wanted); at; at = strstr(at + 1, *wanted))
            (*counts)++;
    }
    return (uint32_t)bytes;
}

/* The keys of fp16, and what each mode of a step is called. */
static void modes_are_read(void **state)
{
    log_set_level(LOG_QUIET); /* delayed_one_step warns */
    job *self = read_good(
        SMALL_WITH("\"fp16\": {\"enabled\": true},\"schedule\": {\"order\": \"Batch_Major\","
                   "\"update\": \"delayed_one_step\"},"),
        "tiers.place.inner_activations=host");
    assert_int_equal(self->type, DTYPE_FP16);
    assert_int_equal(self->grad_dtype, DTYPE_FP16);
    assert_true(self->fp16.loss_scale == 0.0 && self->fp16.min_loss_scale == 1.0);
    assert_int_equal(self->fp16.initial_scale_power, 16);
    assert_int_equal(self->fp16.loss_scale_window, 1000);
    assert_int_equal(self->fp16.hysteresis, 2);
    assert_false(self->fp16.consecutive_hysteresis);
    assert_true(self->check_grad_overflow);
    assert_int_equal(self->schedule.order, ORDER_BATCH_MAJOR);
    assert_int_equal(self->schedule.update, UPDATE_DELAYED_ONE_STEP);
    assert_int_equal(self->tiers.place[STATE_INNER_ACTIVATIONS], TIER_HOST);
    job_destroy(self);
    log_set_level(LOG_WARN);
    /* A static scale makes the dynamic keys idle, as in DeepSpeed. */
    self =
        read_good(SMALL_WITH("\"fp16\": {\"enabled\": true, \"loss_scale\": 128,"
                             "\"loss_scale_window\": 0, \"min_loss_scale\": 0, \"hysteresis\": 3,"
                             "\"consecutive_hysteresis\": true, \"initial_scale_power\": 8},"),
                  "data_types.grad_accum_dtype=fp32");
    assert_true(self->fp16.loss_scale == 128.0);
    assert_int_equal(self->fp16.hysteresis, 3);
    assert_int_equal(self->fp16.initial_scale_power, 8);
    assert_true(self->fp16.consecutive_hysteresis);
    assert_int_equal(self->grad_dtype, DTYPE_FP32);
    job_destroy(self);
    static const char bf16[] = SMALL_WITH("\"bf16\": {\"enabled\": true, \"check_grad_overflow\": "
                                          "false}, \"gradient_clipping\": 0,");
    self = read_good(bf16, "schedule.update=in_backward");
    assert_int_equal(self->schedule.update, UPDATE_IN_BACKWARD);
    assert_false(self->check_grad_overflow);
    job_destroy(self);
    self = read_good(SMALL_WITH("\"gradient_clipping\": 0,"), "schedule.update=in_backward");
    assert_int_equal(self->type, DTYPE_FP32);
    assert_false(self->check_grad_overflow);
    job_destroy(self);
    self = read_good(SMALL_WITH("\"bf16\": {\"enabled\": true},"), "data_types.param_dtype=bf16");
    assert_true(self->check_grad_overflow);
    job_destroy(self);
}

/* The warning about an approximate update is logged once, and only if the job asks for it. */
static void delayed_update_warns(void **state)
{
    static const char *const wanted[] = {"approximate", NULL};
    static const char *const idle[] = {"delayed_from_step has no effect", NULL};
    uint32_t count;
    count_logged(SMALL_WITH("\"schedule\": {\"update\": \"delayed_one_step\"},"), wanted, &count);
    assert_int_equal(count, 1);
    count_logged(SMALL_WITH("\"schedule\": {\"update\": \"in_next_forward\"},"), wanted, &count);
    assert_int_equal(count, 0);
    count_logged(SMALL_WITH("\"schedule\": {\"delayed_from_step\": 40},"), idle, &count);
    assert_int_equal(count, 1);
}

static const char block_job[] = SMALL_WITH(
    "\"quantization_config\": {\"load_in_4bit\": true, \"bnb_4bit_quant_type\": \"nf4\", "
    "\"llm_int8_skip_modules\": [\"lm_head\", \"multi_modal_projector\"]},");

/* Each format of state is accepted. Moments that are not fp32 cause one warning, wherever the job
 * sets them. */
static void state_formats_are_read(void **state)
{
    static const char bf16[] = SMALL_WITH("\"bf16\": {\"enabled\": true},");
    static const char *const wanted[] = {"moments in bf16 are approximate", NULL};
    uint32_t count;
    job *self = read_good(SMALL_JOB, NULL);
    assert_int_equal(self->state.master, TILE_FP32);
    assert_int_equal(self->state.moments, TILE_FP32);
    job_destroy(self);
    self = read_good(bf16, "state.master=split");
    assert_int_equal(self->state.master, TILE_LOW16);
    assert_int_equal(self->state.moments, TILE_FP32);
    job_destroy(self);
    log_set_level(LOG_QUIET);
    self = read_good(SMALL_JOB, "state.moments=8bit"); /* no dtype of parameters is needed */
    assert_int_equal(self->state.moments, TILE_INT8);
    job_destroy(self);
    self = read_good(bf16, "state={\"moments\": \"bf16\", \"master\": \"split\"}");
    assert_int_equal(self->state.master, TILE_LOW16);
    assert_int_equal(self->state.moments, TILE_BF16);
    job_destroy(self);
    log_set_level(LOG_WARN);
    count_logged(SMALL_WITH("\"state\": {\"moments\": \"bf16\"},"), wanted, &count);
    assert_int_equal(count, 1);
    count_logged(SMALL_WITH("\"bf16\": {\"enabled\": true, \"bf16_optimizer_states\": true},"),
                 wanted, &count);
    assert_int_equal(count, 1);
    count_logged(SMALL_JOB, wanted, &count);
    assert_int_equal(count, 0);
}

/* A job's quantization_config gives the formats. It may name modules that the model lacks, as those
 * of checkpoints do, and the rules of a job may not. */
static void block_of_formats_is_read(void **state)
{
    job *self = read_good(block_job, NULL);
    assert_int_equal(self->state.params, STORED_NF4);
    assert_int_equal(self->state.rule_count, 1);
    assert_string_equal(self->state.rules[0].tensors, "multi_modal_projector");
    assert_int_equal(self->state.rules[0].format, STORED_WORKING);
    assert_true(self->state.is_of_block && !self->state.is_of_checkpoint);
    job_destroy(self);
    self = read_good(SMALL_JOB, "state.params=nf4");
    assert_false(self->state.is_of_block);
    job_destroy(self);
}

static void machine_keys_are_read(void **state)
{
    job *self = read_good(SMALL_JOB, NULL);
    assert_true(self->io.stuck_seconds == 30.0 && self->io.stop_seconds == 600.0);
    assert_true(self->io.verify_reads && !self->io.polled_completions);
    assert_int_equal(self->io.threads, 0);
    assert_int_equal(self->update.threads, 0);
    assert_string_equal(self->device.cores, "");
    assert_int_equal(self->data.format, DATA_AUTO);
    assert_int_equal(self->model.max_part_bytes, 0);
    assert_false(self->run.paranoid);
    job_destroy(self);
    self = read_good(
        SMALL_WITH(
            "\"io\": {\"cores\": \"3\", \"stuck_seconds\": 0, \"verify_reads\": false,"
            " \"polled_completions\": true},"
            "\"debug\": {\"io\": {\"threads\": 4, \"stop_seconds\": 0.5}},"
            "\"update\": {\"threads\": 6, \"cores\": \"0-7,16\"},"
            "\"device\": {\"cores\": \"8-15\"},"
            "\"tiers\": {\"place\": {\"rules\": [{\"units\": 1, \"kind\": \"inner_activations\","
            " \"tier\": \"recompute\"}]}},"
            "\"data\": {\"format\": \"text\"},"),
        "run.paranoid=true");
    assert_true(self->io.stuck_seconds == 0.0 && self->run.paranoid);
    assert_true(self->io.stop_seconds == 0.5 && !self->io.verify_reads);
    assert_true(self->io.polled_completions);
    assert_int_equal(self->io.threads, 4);
    assert_int_equal(self->update.threads, 6);
    assert_string_equal(self->io.cores, "3");
    assert_string_equal(self->update.cores, "0-7,16");
    assert_string_equal(self->device.cores, "8-15");
    assert_int_equal(self->tiers.rules[0].kind, STATE_INNER_ACTIVATIONS);
    assert_int_equal(self->tiers.rules[0].tier, TIER_RECOMPUTE);
    job_destroy(self);
    static const char tokens[] =
        "{\"model\": {\"family\": \"gpt2\", \"num_layers\": 2, \"hidden_size\": 64, "
        "\"num_heads\": 4, \"seq_length\": 32, \"vocab_size\": 100, "
        "\"max_part_bytes\": \"2MiB\"}, " SMALL_REST "}";
    static const char *const formats[] = {"llmc", "u16", "u32", "megatron"};
    for (int i = 0; i < 4; i++) {
        char set[64];
        snprintf(set, sizeof set, "data.format=%s", formats[i]);
        self = read_good(tokens, set);
        assert_int_equal(self->data.format, DATA_LLMC + i);
        assert_int_equal(self->model.vocab_size, 100);
        assert_int_equal(self->model.max_part_bytes, 2 << 20);
        job_destroy(self);
    }
}

static void llama_follows_its_rules(void **state)
{
    job *self = read_good("{\"model\": {\"family\": \"LLaMA\", \"num_layers\": 1, "
                          "\"hidden_size\": 4096, \"num_heads\": 32, \"num_kv_heads\": 8, "
                          "\"seq_length\": 16}, " SMALL_REST "}",
                          NULL);
    assert_string_equal(self->model.family, "llama");
    assert_int_equal(self->model.ffn_size, 11008); /* as Llama 7B */
    assert_int_equal(self->model.num_kv_heads, 8);
    assert_false(self->model.tie_embeddings);
    job_destroy(self);
}

static void what_learns_is_read(void **state)
{
    job *self = read_good(SMALL_JOB, NULL);
    assert_false(self->train.is_given);
    assert_int_equal(self->train.lora_rank, 0);
    job_destroy(self);
    self = read_good(SMALL_JOB, "train.only=[\"blocks.20-31\", \"blocks.5\", \"norms\"]");
    assert_true(self->train.is_given && self->train.norms);
    assert_false(self->train.all || self->train.embed || self->train.head);
    assert_int_equal(self->train.range_count, 2);
    assert_int_equal(self->train.blocks[0].first, 20);
    assert_int_equal(self->train.blocks[0].last, 31);
    assert_int_equal(self->train.blocks[1].first, 5);
    assert_int_equal(self->train.blocks[1].last, 5);
    job_destroy(self);
    self = read_good(SMALL_JOB, "train.only=embed");
    assert_true(self->train.is_given && self->train.embed);
    job_destroy(self);
    self = read_good(SMALL_JOB, "train.lora={}");
    assert_false(self->train.is_given);
    assert_int_equal(self->train.lora_rank, 8);
    assert_true(self->train.lora_alpha == 8);
    assert_true(self->train.lora_dropout == 0);
    assert_int_equal(self->train.lora_target_count, 0);
    job_destroy(self);
    self = read_good(SMALL_JOB, "train.lora={\"rank\": 16, \"alpha\": 32, \"dropout\": 0.05, "
                                "\"targets\": [\"q_proj\", \"down_proj\"]}");
    assert_int_equal(self->train.lora_rank, 16);
    assert_true(self->train.lora_alpha == 32);
    assert_true(self->train.lora_dropout == 0.05);
    assert_int_equal(self->train.lora_target_count, 2);
    assert_string_equal(self->train.lora_targets[1], "down_proj");
    job_destroy(self);
}

static void own_blocks_are_read(void **state)
{
    job *self = read_good(
        "# a remark\n{" SMALL_MODEL ", /* // # */\n"
        "\"data\": {\"train\": [\"a#b\", \"c//d\",], \"valid\": \"e/*f*/\", \"seed\": 7},\n"
        "\"run\": {\"dir\": \"auto\", \"steps\": 5e2, \"eval_every\": 10, \"fresh\": true},\n"
        "\"device\": {\"backend\": \"cpu\", \"threads\": 3},\n"
        "\"tiers\": {\"device\": {\"budget\": \"1.5GiB\"}, \"host\": {\"budget\": 4096},\n"
        "  \"nvme\": [{\"path\": \"/a\", \"budget\": \"2 GB\"}, {\"path\": \"/b\"}],\n"
        "  \"place\": {\"optimizer\": \"nvme\", \"activations\": \"host\", \"rules\": [\n"
        "    {\"units\": \"0-11\", \"kind\": \"params\", \"tier\": \"device\"},\n"
        "    {\"units\": 3, \"kind\": \"grads\", \"tier\": \"host\"},\n"
        "    {\"units\": \"all\", \"kind\": \"activations\", \"tier\": \"nvme\"}]}},\n"
        "\"schedule\": {\"update\": \"in_next_forward\", \"tile_elems\": 65536},\n"
        "\"debug\": {\"schedule\": {\"lookahead\": 4}},\n"
        "\"io\": {\"backend\": \"pool\"},\n"
        "\"train_batch_size\": 12, \"gradient_accumulation_steps\": 3,\n"
        "\"bf16\": {\"enabled\": true}, // the end\n}\n",
        NULL);
    assert_int_equal(self->data.train.count, 2);
    assert_string_equal(self->data.train.path[0], "a#b");
    assert_string_equal(self->data.train.path[1], "c//d");
    assert_string_equal(self->data.valid.path[0], "e/*f*/");
    assert_int_equal(self->data.seed, 7);
    assert_string_equal(self->run.dir, "auto");
    assert_int_equal(self->run.steps, 500);
    assert_true(self->run.fresh);
    assert_string_equal(self->device.backend, "cpu");
    assert_int_equal(self->device.threads, 3);
    assert_int_equal(self->tiers.device_budget, 3ull << 29);
    assert_int_equal(self->tiers.host_budget, 4096);
    assert_int_equal(self->tiers.nvme_count, 2);
    assert_int_equal(self->tiers.nvme[0].budget_bytes, 2000000000);
    assert_string_equal(self->tiers.nvme[1].path, "/b");
    assert_int_equal(self->tiers.place[STATE_PARAMS], TIER_AUTO);
    assert_int_equal(self->tiers.place[STATE_OPTIMIZER], TIER_NVME);
    assert_int_equal(self->tiers.place[STATE_ACTIVATIONS], TIER_HOST);
    assert_int_equal(self->tiers.rule_count, 3);
    assert_int_equal(self->tiers.rules[0].unit_last, 11);
    assert_int_equal(self->tiers.rules[0].kind, STATE_PARAMS);
    assert_int_equal(self->tiers.rules[0].tier, TIER_DEVICE);
    assert_int_equal(self->tiers.rules[1].unit_first, 3);
    assert_int_equal(self->tiers.rules[1].unit_last, 3);
    assert_int_equal(self->tiers.rules[2].unit_last, UINT32_MAX);
    assert_int_equal(self->schedule.update, UPDATE_IN_NEXT_FORWARD);
    assert_int_equal(self->schedule.tile_elems, 65536);
    assert_int_equal(self->schedule.lookahead, 4);
    assert_string_equal(self->io.backend, "pool");
    assert_int_equal(self->micro_batch, 4);
    assert_int_equal(self->grad_dtype, DTYPE_BF16);
    assert_int_equal(job_check_for_training(self), 0);
    job_destroy(self);
}

/* A typical job of DeepSpeed: aliases, "auto", string booleans, deprecated keys, blocks that are
 * off. */
static const char deepspeed_job[] =
    "{" SMALL_MODEL ", \"run\": {\"dir\": \"r\"},\n"
    "\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 4,\n"
    "\"gradient_accumulation_steps\": \"auto\", \"steps_per_print\": 2000,\n"
    "\"optimizer\": {\"type\": \"adam\", \"params\": {\"lr\": 2e-4, \"betas\": [0.8, 0.99],\n"
    "  \"eps\": 1e-7, \"weight_decay\": 3e-7, \"adam_w_mode\": false}},\n"
    "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_min_lr\": 0,\n"
    "  \"warmup_max_lr\": \"auto\", \"warmup_num_steps\": 10}},\n"
    "\"bfloat16\": {\"enabled\": true}, \"fp16\": {\"enabled\": false, \"loss_scale\": 0},\n"
    "\"data_types\": {\"grad_accum_dtype\": \"fp32\"}, \"amp\": {\"enabled\": false},\n"
    "\"zero_optimization\": {\"stage\": 3, \"overlap_comm\": true, \"sub_group_size\": 5e8,\n"
    "  \"stage3_model_persistence_threshold\": 9223372036854775807,\n"
    "  \"prefetch_bucket_size\": \"auto\", \"offload_param\": {\"device\": \"cpu\"},\n"
    "  \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/nvme\",\n"
    "     \"buffer_count\": 4, \"fast_init\": false}, \"zenflow\": null},\n"
    "\"aio\": {\"single_submit\": \"false\", \"overlap_events\": \"true\", \"thread_count\": 1,\n"
    "  \"block_size\": 262144, \"queue_depth\": 32},\n"
    "\"activation_checkpointing\": {\"cpu_checkpointing\": true},\n"
    "\"wandb\": {\"enabled\": false}, \"elasticity\": {\"enabled\": false, \"x\": 1},\n"
    "\"wall_clock_breakdown\": false, \"dump_state\": true}";

static void deepspeed_file_works(void **state)
{
    job *self = read_good(deepspeed_job, NULL);
    assert_int_equal(self->accumulation, 8);
    assert_int_equal(self->run.log_every, 2000);
    assert_false(self->optimizer.decoupled);
    assert_true(self->optimizer.lr == 2e-4 && self->optimizer.beta1 == 0.8);
    assert_true(self->optimizer.beta2 == 0.99 && self->optimizer.weight_decay == 3e-7);
    assert_int_equal(self->scheduler.type, JOB_WARMUP_LR);
    assert_false(self->scheduler.warmup_max_lr_given);
    assert_int_equal(self->type, DTYPE_BF16);
    assert_int_equal(self->grad_dtype, DTYPE_FP32);
    assert_int_equal(self->zero_stage, 3);
    assert_int_equal(self->sub_group_size, 500000000);
    assert_int_equal(self->tiers.place[STATE_OPTIMIZER], TIER_NVME);
    assert_int_equal(self->tiers.place[STATE_PARAMS], TIER_HOST);
    assert_int_equal(self->tiers.place[STATE_ACTIVATIONS], TIER_HOST);
    assert_int_equal(self->tiers.place[STATE_GRADS], TIER_AUTO);
    assert_int_equal(self->tiers.nvme_count, 1);
    assert_string_equal(self->tiers.nvme[0].path, "/nvme");
    assert_int_equal(self->io.block_bytes, 262144);
    assert_int_equal(self->io.queue_depth, 32);
    job_destroy(self);

    self = read_good(deepspeed_job, "optimizer.params.adam_w_mode=null");
    assert_true(self->optimizer.decoupled); /* the type Adam means AdamW */
    job_destroy(self);
    self = read_good(SMALL_WITH("\"optimizer\": {\"params\": {\"torch_adam\": true}},"), NULL);
    assert_true(self->optimizer.weight_decay == 0.01);
    job_destroy(self);
    self = read_good(SMALL_WITH("\"optimizer\": {\"type\": \"adagrad\"},"), NULL);
    assert_int_equal(self->optimizer.type, JOB_ADAGRAD);
    assert_true(self->optimizer.lr == 1e-2 && self->optimizer.epsilon == 1e-10);
    assert_true(!self->optimizer.decoupled && !self->optimizer.bias_correction);
    job_destroy(self);
    self = read_good(SMALL_WITH("\"optimizer\": {\"type\": \"Lion\", \"params\": {\"lr\": 1e-4, "
                                "\"betas\": [0.95, 0.98], \"weight_decay\": 0.5}},"),
                     NULL);
    assert_int_equal(self->optimizer.type, JOB_LION);
    assert_true(self->optimizer.beta1 == 0.95 && self->optimizer.beta2 == 0.98);
    assert_true(self->optimizer.lr == 1e-4 && self->optimizer.weight_decay == 0.5);
    assert_true(self->optimizer.decoupled);
    job_destroy(self);
    self = read_good(SMALL_WITH("\"optimizer\": {\"type\": \"LION\"},"), NULL);
    assert_true(self->optimizer.lr == 1e-3 && self->optimizer.beta1 == 0.9);
    assert_true(self->optimizer.beta2 == 0.999);
    job_destroy(self);
    self = read_good(SMALL_WITH("\"zero_optimization\": {\"cpu_offload\": true, "
                                "\"offload_param\": {\"device\": \"none\"}},"),
                     NULL);
    assert_int_equal(self->tiers.place[STATE_OPTIMIZER], TIER_HOST);
    assert_int_equal(self->tiers.place[STATE_PARAMS], TIER_DEVICE);
    job_destroy(self);
}

/* A key without effect is named in the log once, with the reason. A key that is used, or that is
 * off, is not. */
static void no_effect_is_logged(void **state)
{
    static const char *const wanted[] = {"zero_optimization.overlap_comm",
                                         "zero_optimization.offload_optimizer.buffer_count",
                                         "planned from the budgets in tiers",
                                         "aio.intra_op_parallelism",
                                         "dump_state",
                                         "wandb.enabled",
                                         "queue_depth,",
                                         "amp",
                                         "elasticity",
                                         "prefetch_bucket_size", /* also where it is "auto" */
                                         NULL};
    static const uint32_t expected[] = {1, 1, 1, 1, 1, 1, 0, 0, 0, 1};
    uint32_t counts[sizeof expected / sizeof expected[0]];
    assert_true(count_logged(deepspeed_job, wanted, counts) > 0);
    for (size_t i = 0; wanted[i]; i++) {
        if (counts[i] != expected[i])
            fail_msg("\"%s\" is logged %u times", wanted[i], counts[i]);
    }
    assert_int_equal(count_logged(SMALL_JOB, wanted, counts), 0);
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
    const char *text = SMALL_WITH("\"optimizer\": {\"params\": {\"betas\": [0.1, 0.2]}},"
                                  "\"bf16\": {\"enabled\": false}, \"gradient_clipping\": -5,");
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
        {", \"keep\": 100", "run.keep=null", 0, 0, {0}},
        {", \"keep\": \"auto\"", NULL, 0, 0, {0}},
        {", \"keep\": 100", "run.keep=[]", 0, 0, {0}},
        {", \"commit_every\": 1", "run.keep=[1,2]", 0, 2, {1, 2}},
        {", \"keep\": [250, 50, 150]", NULL, 0, 3, {50, 150, 250}},
        {", \"keep\": [250, 50, 250, 50]", "run.keep.1=5e1", 0, 2, {50, 250}},
        {", \"keep\": [50]", "run.keep.1=1000", 0, 2, {50, 1000}},
        {", \"steps\": 999", "run.keep=[50, 999]", 0, 2, {50, 999}},
        {", \"steps\": 999", "run.keep=999", 999, 0, {0}},
        {", \"keep\": 100", "run.keep=[100]", 0, 1, {100}},
        {", \"keep\": [100]", "run.keep=50", 50, 0, {0}},
        {", \"commit_every\": 0", "run.keep=0", 0, 0, {0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[512];
        snprintf(text, sizeof text,
                 "{" SMALL_MODEL ", \"run\": {\"dir\": \"d\"%s}, "
                 "\"train_micro_batch_size_per_gpu\": 1}",
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
        {"{\"model\": {\"preset\": \"gpt2-1.5b\", \"seq_length\": 512}, " SMALL_REST "}",
         "tiers.nvme.0.path=/x"},
        {"{\"model\": {\"preset\": \"llama-8b\", \"num_layers\": null}, " SMALL_REST "}", NULL},
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
    memcpy(text + bytes - job_bytes, SMALL_JOB, job_bytes);
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
        cmocka_unit_test(defaults_hold),          cmocka_unit_test(llama_follows_its_rules),
        cmocka_unit_test(modes_are_read),         cmocka_unit_test(delayed_update_warns),
        cmocka_unit_test(state_formats_are_read), cmocka_unit_test(block_of_formats_is_read),
        cmocka_unit_test(machine_keys_are_read),  cmocka_unit_test(what_learns_is_read),
        cmocka_unit_test(own_blocks_are_read),    cmocka_unit_test(deepspeed_file_works),
        cmocka_unit_test(set_overrides),          cmocka_unit_test(no_effect_is_logged),
        cmocka_unit_test(text_round_trips),       cmocka_unit_test(comments_keep_places),
        cmocka_unit_test(keep_is_read),           cmocka_unit_test(long_files_are_read),
    };
    return cmocka_run_group_tests(tests, test_setup, test_teardown);
}
