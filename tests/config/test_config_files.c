/* DeepSpeed's files unchanged: each file in tests/reference/deepspeed_jobs.txt, written from its
 * documentation's keys, becomes a job by the blocks that it lacks (model, run), given by --set as a
 * user would, and has the settings that DeepSpeed takes from it. */
#include "tests/config/test_config_common.h"

/* Each file follows a line "==> NAME <==". */
#define FILES_PATH SLUICE_SOURCE_DIR "/tests/reference/deepspeed_jobs.txt"

static const char *const blocks[] = {
    "model={\"family\": \"gpt2\", \"num_layers\": 10, \"hidden_size\": 64, \"num_heads\": 4, "
    "\"seq_length\": 32}",
    "run={\"dir\": \"runs/test\", \"steps\": 777}", "data.train=text.txt",
    "auto=hf", /* the last: only for files whose learning rate is "auto" */
};
enum { BLOCK_COUNT = sizeof blocks / sizeof blocks[0], FIELDS_MAX = 16 };

struct expected {
    const char *file;
    struct field fields[FIELDS_MAX]; /* up to the first of offset 0, where no setting lies */
};

static const struct expected files[] = {
    {"01-minimal.json",
     {FIELD(train_batch_size, 8), FIELD(micro_batch, 8), FIELD(accumulation, 1),
      FIELD(gradient_clipping, 1.0), FIELD(type, DTYPE_FP32), FIELD(grad_dtype, DTYPE_FP32),
      FIELD(optimizer.type, JOB_ADAM), FIELD(optimizer.decoupled, true), FIELD(optimizer.lr, 1e-3),
      FIELD(scheduler.type, JOB_SCHEDULE_NONE), FIELD(zero_stage, 0),
      FIELD(tiers.place[STATE_OPTIMIZER], TIER_AUTO)}},
    {"02-getting-started.json",
     {FIELD(micro_batch, 8), FIELD(accumulation, 1), FIELD(type, DTYPE_FP16),
      FIELD(grad_dtype, DTYPE_FP16), FIELD(zero_stage, 1), FIELD(optimizer.lr, 0.00015),
      FIELD(optimizer.decoupled, true), FIELD(fp16.initial_scale_power, 16),
      FIELD(fp16.loss_scale_window, 1000), FIELD(fp16.hysteresis, 2), FIELD(fp16.min_loss_scale, 1),
      FIELD(check_grad_overflow, true)}},
    {"03-stage0-fp32.json",
     {FIELD(train_batch_size, 8), FIELD(gradient_clipping, 0), FIELD(run.log_every, 50),
      FIELD(optimizer.beta2, 0.95), FIELD(optimizer.weight_decay, 0.1), FIELD(type, DTYPE_FP32)}},
    {"04-stage1-bf16.json",
     {FIELD(train_batch_size, 64), FIELD(micro_batch, 8), FIELD(accumulation, 8),
      FIELD(type, DTYPE_BF16), FIELD(grad_dtype, DTYPE_FP32), FIELD(zero_stage, 1),
      FIELD(check_grad_overflow, true), FIELD(scheduler.type, JOB_WARMUP_COSINE_LR),
      FIELD(scheduler.total_num_steps, 10000), FIELD(scheduler.warmup_num_steps, 500),
      FIELD(scheduler.cos_min_ratio, 0.1), FIELD(scheduler.warmup_linear, false)}},
    {"05-stage2-cpu-fp16.json",
     {FIELD(micro_batch, 4), FIELD(type, DTYPE_FP16), FIELD(fp16.loss_scale, 0),
      FIELD(fp16.initial_scale_power, 12), FIELD(zero_stage, 2),
      FIELD(tiers.place[STATE_OPTIMIZER], TIER_HOST), FIELD(tiers.place[STATE_PARAMS], TIER_AUTO)}},
    {"06-stage3-cpu.json",
     {FIELD(train_batch_size, 16), FIELD(zero_stage, 3), FIELD(sub_group_size, 1000000000),
      FIELD(tiers.place[STATE_OPTIMIZER], TIER_HOST), FIELD(tiers.place[STATE_PARAMS], TIER_HOST),
      FIELD(tiers.nvme_count, 0)}},
    {"07-infinity-nvme.json",
     {FIELD(accumulation, 4), FIELD(tiers.place[STATE_OPTIMIZER], TIER_NVME),
      FIELD(tiers.place[STATE_PARAMS], TIER_NVME), FIELD(tiers.nvme_count, 1),
      FIELD_IS_TEXT(tiers.nvme[0].path, "/local_nvme"), FIELD(tiers.nvme[0].budget_bytes, 0),
      FIELD(sub_group_size, 100000000), FIELD(io.block_bytes, 1048576), FIELD(io.queue_depth, 16)}},
    {"08-two-drives.json",
     {FIELD(tiers.nvme_count, 2), FIELD_IS_TEXT(tiers.nvme[0].path, "/nvme0"),
      FIELD_IS_TEXT(tiers.nvme[1].path, "/nvme1"), FIELD(optimizer.lr, 3e-5)}},
    {"09-nvme-tune.json",
     {FIELD(io.block_bytes, 8388608), FIELD(io.queue_depth, 32),
      FIELD_IS_TEXT(tiers.nvme[0].path, "/scratch")}},
    {"10-hf-zero2-auto.json",
     {FIELD(train_batch_size, 4), FIELD(micro_batch, 4), FIELD(accumulation, 1),
      FIELD(type, DTYPE_FP32), FIELD(gradient_clipping, 1.0), FIELD(optimizer.lr, 5e-5),
      FIELD(optimizer.beta1, 0.9), FIELD(optimizer.epsilon, 1e-8),
      FIELD(scheduler.type, JOB_WARMUP_LR), FIELD(scheduler.warmup_num_steps, 0),
      FIELD(scheduler.warmup_max_lr, 5e-5), FIELD(tiers.place[STATE_OPTIMIZER], TIER_DEVICE),
      FIELD(run.log_every, 2000)}},
    {"11-hf-zero3-auto.json",
     {FIELD(train_batch_size, 8), FIELD(type, DTYPE_BF16), FIELD(optimizer.lr, 2e-5),
      FIELD(scheduler.type, JOB_WARMUP_DECAY_LR), FIELD(scheduler.total_num_steps, 777),
      FIELD(scheduler.warmup_max_lr_given, false), FIELD(scheduler.warmup_max_lr, 2e-5),
      FIELD(tiers.place[STATE_PARAMS], TIER_DEVICE)}},
    {"12-deprecated.json",
     {FIELD(type, DTYPE_BF16), FIELD(zero_stage, 3), FIELD(tiers.place[STATE_OPTIMIZER], TIER_HOST),
      FIELD(tiers.place[STATE_PARAMS], TIER_HOST), FIELD(io.block_bytes, 262144)}},
    {"13-zero-false.json",
     {FIELD(zero_stage, 0), FIELD(optimizer.decoupled, false),
      FIELD(optimizer.weight_decay, 0.01)}},
    {"14-static-loss-scale.json",
     {FIELD(accumulation, 8), FIELD(type, DTYPE_FP16), FIELD(fp16.loss_scale, 128),
      FIELD(gradient_clipping, 0.1), FIELD(check_grad_overflow, true)}},
    {"15-lion.json",
     {FIELD(optimizer.type, JOB_LION), FIELD(optimizer.lr, 1e-4), FIELD(optimizer.beta1, 0.95),
      FIELD(optimizer.beta2, 0.98), FIELD(optimizer.weight_decay, 0.1),
      FIELD(check_grad_overflow, false), FIELD(type, DTYPE_BF16)}},
    {"16-adagrad.json",
     {FIELD(optimizer.type, JOB_ADAGRAD), FIELD(optimizer.lr, 0.05),
      FIELD(optimizer.epsilon, 1e-10), FIELD(optimizer.weight_decay, 1e-4),
      FIELD(optimizer.decoupled, false)}},
    {"17-onecycle.json",
     {FIELD(scheduler.type, JOB_ONE_CYCLE), FIELD(scheduler.cycle.min_lr, 1e-4),
      FIELD(scheduler.cycle.max_lr, 1e-3), FIELD(scheduler.cycle.first_step_size, 1000),
      FIELD(scheduler.cycle.second_step_size, 1500), FIELD(scheduler.cycle.first_stair_count, 500),
      FIELD(scheduler.cycle.second_stair_count, 250), FIELD(scheduler.cycle.decay_step_size, 1000),
      FIELD(scheduler.cycle.decay_lr_rate, 0.001), FIELD(scheduler.cycle.momentum, true),
      FIELD(scheduler.cycle.min_mom, 0.85), FIELD(scheduler.cycle.max_mom, 0.99),
      FIELD(optimizer.beta2, 0.99)}},
    {"18-lr-range-test.json",
     {FIELD(micro_batch, 8), FIELD(scheduler.type, JOB_LR_RANGE_TEST),
      FIELD(scheduler.range_test.min_lr, 1e-4), FIELD(scheduler.range_test.step_size, 200),
      FIELD(scheduler.range_test.step_rate, 5), FIELD(scheduler.range_test.staircase, false)}},
    {"19-warmup-linear.json",
     {FIELD(scheduler.type, JOB_WARMUP_LR), FIELD(scheduler.warmup_linear, true),
      FIELD(scheduler.warmup_min_lr, 1e-6), FIELD(scheduler.warmup_max_lr, 2e-4),
      FIELD(scheduler.warmup_num_steps, 250), FIELD(optimizer.weight_decay, 0.01)}},
    {"20-activation-checkpointing.json",
     {FIELD(tiers.place[STATE_ACTIVATIONS], TIER_HOST),
      FIELD(tiers.place[STATE_INNER_ACTIVATIONS], TIER_AUTO)}},
    {"21-monitors.json", {FIELD(run.log_every, 10), FIELD(micro_batch, 4)}},
    {"22-checkpoint.json", {FIELD(zero_stage, 3)}},
    {"23-switched-off.json", {FIELD(type, DTYPE_FP32), FIELD(zero_stage, 2)}},
    {"24-partial-offload.json",
     {FIELD(tiers.place[STATE_OPTIMIZER], TIER_HOST), FIELD(tiers.rule_count, 1),
      FIELD(tiers.rules[0].unit_first, 1), FIELD(tiers.rules[0].unit_last, 7),
      FIELD(tiers.rules[0].kind, STATE_OPTIMIZER), FIELD(tiers.rules[0].tier, TIER_DEVICE)}},
    {"25-communication.json", {FIELD(train_batch_size, 12), FIELD(zero_stage, 3)}},
    {"26-megatron.json",
     {FIELD(accumulation, 64), FIELD(type, DTYPE_BF16), FIELD(grad_dtype, DTYPE_FP32)}},
    {"27-one-line.json",
     {FIELD(train_batch_size, 6), FIELD(tiers.place[STATE_OPTIMIZER], TIER_NVME),
      FIELD(tiers.place[STATE_PARAMS], TIER_HOST)}},
    {"28-ladder-of-comments.json",
     {FIELD(train_batch_size, 20), FIELD(micro_batch, 4), FIELD(gradient_clipping, 1.0),
      FIELD(optimizer.weight_decay, 0.01), FIELD(scheduler.total_num_steps, 2000),
      FIELD(scheduler.warmup_max_lr, 0.001), FIELD(scheduler.warmup_linear, true)}},
};
enum { FILE_COUNT = sizeof files / sizeof files[0] };

static char all_files[1 << 16];

static void load_files(void)
{
    FILE *file = fopen(FILES_PATH, "rb");
    assert_non_null(file);
    size_t bytes = fread(all_files, 1, sizeof all_files - 1, file);
    assert_in_range(bytes, 1, sizeof all_files - 2);
    assert_int_equal(fclose(file), 0);
    all_files[bytes] = '\0';
}

/* Writes the file of that name to test_file. */
static void write_file(const char *name)
{
    char line[96];
    snprintf(line, sizeof line, "==> %s <==\n", name);
    const char *begin = strstr(all_files, line);
    if (!begin)
        fail_msg("%s has no %s", FILES_PATH, name);
    begin += strlen(line);
    const char *end = strstr(begin, "\n==> ");
    write_job(begin, end ? (size_t)(end + 1 - begin) : strlen(begin));
}

static void files_have_their_settings(void **state)
{
    size_t wrong = 0;
    load_files();
    for (size_t i = 0; i < FILE_COUNT; i++) {
        job *self;
        bool has_auto_rate = strcmp(files[i].file, "10-hf-zero2-auto.json") == 0;
        write_file(files[i].file);
        int rc = job_read(test_file, NULL, blocks, BLOCK_COUNT - !has_auto_rate, 1, &self);
        if (rc < 0) {
            print_error("%s: %s\n", files[i].file, err_text());
            wrong++;
            continue;
        }
        for (size_t k = 0; k < FIELDS_MAX && files[i].fields[k].offset > 0; k++) {
            if (field_holds(&files[i].fields[k], self))
                continue;
            print_error("%s: setting %zu is not as expected\n", files[i].file, k);
            wrong++;
        }
        if (job_check_for_training(self) < 0) {
            print_error("%s: %s\n", files[i].file, err_text());
            wrong++;
        }
        job_destroy(self);
    }
    assert_int_equal(wrong, 0);
}

/* There are as many files as in the table above, which has found each of its own; and enough. */
static void files_are_covered(void **state)
{
    size_t found = 0;
    load_files();
    for (const char *at = all_files; (at = strstr(at, "==> ")); at++)
        found += at == all_files || at[-1] == '\n';
    assert_int_equal(found, FILE_COUNT);
    assert_true(FILE_COUNT >= 25);
}

/* A file alone says what it lacks. */
static void files_need_a_model(void **state)
{
    job *self;
    load_files();
    write_file("01-minimal.json");
    assert_error(job_read(test_file, NULL, NULL, 0, 1, &self), ERR_CONFIG, "model: missing");
    assert_error(job_read(test_file, NULL, blocks, 1, 1, &self), ERR_CONFIG, "run.dir: missing");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_have_their_settings),
        cmocka_unit_test(files_are_covered),
        cmocka_unit_test(files_need_a_model),
    };
    return cmocka_run_group_tests(tests, test_setup, test_teardown);
}
