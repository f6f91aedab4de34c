/* A job of several ranks: batch sizes that cannot be dealt out name the ranks, keys about ranks do
 * what they say or are named with the reason, drives may be each rank's own. */
#include "tests/config/test_config_common.h"

#include "config/config_internal.h"

/* Does the same as read_text, for `world` ranks. */
static int read_ranks(const char *text, const char *set, uint32_t world, job **out)
{
    set = quoted(set);
    return job_read("job", quoted(text), &set, set ? 1 : 0, world, out);
}

static void refused(const char *text, const char *set, uint32_t world, const char *says)
{
    job *self;
    int rc = read_ranks(text, set, world, &self);
    if (rc != ERR_CONFIG || !strstr(err_text(), says))
        fail_msg("%s on %u ranks: %s, expected \"%s\"", set ? set : text, world,
                 rc == 0 ? "accepted" : err_text(), says);
    assert_null(self);
}

static void batches_are_dealt_out(void **state)
{
    job *self;
    assert_int_equal(read_ranks(SMALL_JOB, "train_micro_batch_size_per_gpu=3", 4, &self), 0);
    assert_int_equal(self->world, 4);
    assert_int_equal(self->train_batch_size, 12);
    assert_int_equal(self->accumulation, 1);
    job_destroy(self);
    assert_int_equal(read_ranks(SMALL_JOB, "train_batch_size=24", 4, &self), 0);
    assert_int_equal(self->micro_batch, 1);
    assert_int_equal(self->accumulation, 6);
    job_destroy(self);

    refused(
        SMALL_JOB, "train_batch_size=3", 4,
        "train_batch_size: 3 is smaller than what 4 ranks with micro-batches of 1 need: each rank "
        "takes at least one sequence a step; raise train_batch_size to 4 or start 3 ranks");
    refused(SMALL_WITH("'train_batch_size': 5,"), "train_micro_batch_size_per_gpu=2", 3,
            "raise train_batch_size to 6 or start 2 ranks");
    refused(SMALL_WITH("'train_batch_size': 1,"), "train_micro_batch_size_per_gpu=2", 3,
            "raise train_batch_size to 6 or make the micro-batch smaller");
    refused(SMALL_WITH("'gradient_accumulation_steps': 2,"), "train_batch_size=7", 4,
            "micro-batches of 1, 2 of them in a step need: each rank takes at least one sequence a "
            "step; raise train_batch_size to 8 or start 3 ranks");
    refused(SMALL_JOB, "train_batch_size=6", 4, "batch_size_per_gpu 1 times 4 ranks");
}

/* On several ranks. */
static const struct {
    const char *set, *says; /* NULL: the field has the value, and the log says nothing of the key */
    struct field field;
} keys[] = {
    {"communication_data_type=fp16", NULL, FIELD(comm.wire, DTYPE_FP16)},
    {"comm.backend=staged", NULL, FIELD_IS_TEXT(comm.backend, "staged")},
    {"comm.timeout_seconds=12.5", NULL, FIELD(comm.timeout_seconds, 12.5)},
    {"debug.comm.exit_seconds=5", NULL, FIELD(comm.exit_seconds, 5)},
    {"debug.comm.staging_bytes=64KiB", NULL, FIELD(comm.staging_bytes, 65536)},
    {"zero_optimization.stage3_param_persistence_threshold=1e4", NULL,
     FIELD(persistence_threshold, 1e4)},
    {"zero_optimization.stage3_model_persistence_threshold=1e9", NULL,
     FIELD(model_persistence_threshold, 1e9)},
    {"zero_optimization.stage3_max_live_parameters=1e8", NULL, FIELD(max_live_parameters, 1e8)},
    {"zero_optimization.stage3_max_live_parameters=0", NULL, FIELD(max_live_parameters, 1)},
    {"zero_optimization.stage3_prefetch_bucket_size=5e6", NULL, FIELD(prefetch_bucket_size, 5e6)},
    {"zero_optimization.stage3_max_reuse_distance=0", NULL, FIELD(limits_reuse, true)},
    {"zero_optimization.reduce_bucket_size=5e7", "no bucket is filled", {0}},
    {"zero_optimization.allgather_bucket_size=5e7", "no bucket is filled", {0}},
    {"allgather_size=5e7", "no bucket is filled", {0}},
    {"zero_optimization.overlap_comm=true", "issued ahead of their use", {0}},
    {"zero_optimization.reduce_scatter=false", "in one way", {0}},
    {"zero_optimization.allgather_partitions=false", "in one way", {0}},
    {"zero_optimization.use_multi_rank_bucket_allreduce=false", "in one way", {0}},
    {"disable_allgather=true", "in one way", {0}},
    {"zero_optimization.zero_hpz_partition_size=2", "cut over all ranks", {0}},
    {"zero_optimization.mics_shard_size=2", "cut over all ranks", {0}},
    {"zero_optimization.mics_hierarchical_params_gather=true", "cut over all ranks", {0}},
    {"prescale_gradients=true", "scaled once", {0}},
    {"gradient_predivide_factor=2.0", "scaled once", {0}},
    {"seq_parallel_communication_data_type=bf16", "not split over ranks", {0}},
    {"use_data_before_expert_parallelism=true", "model.expert_parallel_size", {0}},
    {"activation_checkpointing.partition_activations=true", "whose batch", {0}},
    {"sequence_parallel_size=1", "data alone", {0}},
    {"tensor_parallel={'autotp_size': 1}", "data alone", {0}},
    {"pipeline={'stages': 'auto'}", "data alone", {0}},
    {"expert_parallel={'enabled': false}", "model.expert_parallel_size", {0}},
};

static const char stage_3[] = SMALL_WITH("'zero_optimization': {'stage': 3},");

/* Reads a job for `world` ranks and collects what is logged. */
static void read_ranks_logged(const char *text, const char *set, uint32_t world,
                              char log[TEST_LOG_BYTES])
{
    job *self;
    struct capture capture = capture_begin();
    int rc = read_ranks(text, set, world, &self);
    capture_end(capture, log);
    job_destroy(self);
    if (rc < 0)
        fail_msg("%s: %s", set, err_text());
}

static void keys_of_ranks(void **state)
{
    static char log[TEST_LOG_BYTES];
    job *plain, *self;
    assert_int_equal(read_ranks(stage_3, NULL, 2, &plain), 0);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        char path[128];
        snprintf(path, sizeof path, "%.*s", (int)strcspn(keys[i].set, "="), keys[i].set);
        if (read_ranks(stage_3, keys[i].set, 2, &self) < 0)
            fail_msg("%s: %s", keys[i].set, err_text());
        read_ranks_logged(stage_3, keys[i].set, 2, log);
        if (keys[i].says) {
            if (!jobs_equal(plain, self))
                fail_msg("%s changes the job", keys[i].set);
            if (!strstr(log, path) || !strstr(log, keys[i].says))
                fail_msg("%s: the log says \"%s\"", keys[i].set, log);
        } else {
            if (!field_holds(&keys[i].field, self) || field_holds(&keys[i].field, plain))
                fail_msg("%s: another value", keys[i].set);
            if (strstr(log, path))
                fail_msg("%s is named: %s", keys[i].set, log);
            read_ranks_logged(stage_3, keys[i].set, 1, log);
            if (!strstr(log, "no effect here: ") || !strstr(log, path))
                fail_msg("%s is not named on one rank", keys[i].set);
        }
        job_destroy(self);
    }
    job_destroy(plain);
}

static void defaults_of_ranks(void **state)
{
    job *self;
    assert_int_equal(read_ranks(SMALL_JOB, "bf16.enabled=true", 2, &self), 0);
    assert_int_equal(self->comm.wire, DTYPE_BF16); /* as the training, in DeepSpeed */
    assert_string_equal(self->comm.backend, "auto");
    assert_true(self->comm.timeout_seconds == 300 && self->comm.exit_seconds == 30);
    assert_int_equal(self->comm.staging_bytes, 8u << 20);
    assert_int_equal(self->persistence_threshold, 100000);
    assert_int_equal(self->model_persistence_threshold, INT64_MAX);
    assert_int_equal(self->max_live_parameters, 0);
    assert_int_equal(self->prefetch_bucket_size, 0);
    assert_false(self->limits_reuse);
    job_destroy(self);
}

/* Several ranks are refused options that are not built and would change what a step trains on, and
 * values out of range. */
static void wrong_for_ranks(void **state)
{
    static const struct {
        const char *set, *says;
    } rows[] = {
        {"sequence_parallel_size=2", "lower model.seq_length"},
        {"tensor_parallel={'autotp_size': 2}", "not built for 2 ranks"},
        {"tensor_parallel={'tp': {'tp_size': 4}}", "not built for 2 ranks"},
        {"pipeline={'stages': 2}", "not built for 2 ranks"},
        {"expert_parallel={'size': 2}", "model.expert_parallel_size"},
        {"gradient_allreduce_op=sum", "\"sum\" is not built for 2 ranks"},
        {"comm.backend=gloo", "none of auto|mpi|staged|nccl"},
        {"comm.timeout_seconds=1", "must be in [2,86400]"},
        {"debug.comm.exit_seconds=0", "must be in [1,86400]"},
        {"debug.comm.staging_bytes=65535", "must be at least 64"},
        {"comm.timeout=3", "nearest known key"},
        {"communication_data_type=fp8", "none of fp32|fp16|bf16"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        refused(SMALL_JOB, rows[i].set, 2, rows[i].says);
}

static void stage_3_keys_need_stage_3(void **state)
{
    static char log[TEST_LOG_BYTES];
    read_ranks_logged(SMALL_JOB, "zero_optimization.stage3_max_live_parameters=1e6", 2, log);
    assert_non_null(
        strstr(log, "no effect here: zero_optimization.stage3_max_live_parameters (it is about the "
                    "parameters that zero_optimization.stage 3 partitions)"));
}

static void drives_of_ranks(void **state)
{
    static const char *const good[] = {"/mnt/{rank}/s", "/mnt/nvme{local_rank}",
                                       "/s/{host}/{rank}"};
    static const char *const wrong[] = {"/mnt/{ranks}", "/mnt/{}", "/mnt/{LOCAL_RANK}",
                                        "/mnt/{rank", "/mnt/{rank}/{node}"};
    char set[128];
    job *self;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        snprintf(set, sizeof set, "tiers.nvme=[{'path': '%s'}]", good[i]);
        assert_int_equal(read_ranks(SMALL_JOB, set, 2, &self), 0);
        assert_string_equal(self->tiers.nvme[0].path, good[i]); /* each rank puts in its own */
        job_destroy(self);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        snprintf(set, sizeof set, "tiers.nvme=[{'path': '%s'}]", wrong[i]);
        refused(SMALL_JOB, set, 2, "{rank}, {local_rank}, {host}");
    }
    refused(SMALL_JOB,
            "zero_optimization.offload_param={'device': 'nvme', 'nvme_path': '/m/{gpu}'}", 1,
            "zero_optimization.offload_param.nvme_path: \"{gpu}\" is none of the placeholders");
}

static void other_ranks_are_a_change(void **state)
{
    static const char text[] = SMALL_WITH("'train_batch_size': 12,");
    char told[512];
    job *was, *is;
    assert_int_equal(read_ranks(text, NULL, 4, &was), 0);
    assert_int_equal(read_ranks(text, "communication_data_type=bf16", 2, &is), 0);
    assert_int_equal(job_list_changes(was, is, 1, told, sizeof told), 2);
    assert_string_equal(
        told, "the number of ranks was 4 and is 2; communication_data_type was fp32 and is bf16");
    job_destroy(is);
    assert_int_equal(read_ranks(text, "train_batch_size=6", 1, &is), 0);
    assert_int_equal(job_list_changes(was, is, 1, told, sizeof told), 2);
    assert_string_equal(told,
                        "the number of ranks was 4 and is 1; train_batch_size was 12 and is 6");
    job_destroy(is);
    job_destroy(was);
}

/* The merged text of one rank is all that the others read. */
static void others_read_the_text(void **state)
{
    job *first, *other;
    static const char text[] =
        SMALL_WITH("'zero_optimization': {'stage': 3}, // a remark\n'train_batch_size': 12,");
    assert_int_equal(read_ranks(text, "run.seed=7", 3, &first), 0);
    assert_int_equal(job_read("job", first->text, NULL, 0, 3, &other), 0);
    assert_jobs_equal(first, other);
    assert_string_equal(first->text, other->text);
    job_destroy(first);
    job_destroy(other);
}

static double peek(const char *text, const char *set)
{
    text = quoted(text);
    write_job(text, strlen(text));
    return job_peek_timeout(test_file, NULL, &set, set ? 1 : 0);
}

/* The timeout is known before the job is read. Errors of the job are reported later. */
static void the_timeout_is_known_early(void **state)
{
    static const char given[] = SMALL_WITH("'comm': {'timeout_seconds': 12}, // a remark\n");
    static const char set[] = "comm.timeout_seconds=7.5", *const sets[] = {set};
    assert_true(peek(SMALL_JOB, NULL) == 300.0);
    assert_true(peek(given, NULL) == 12.0);
    assert_true(peek(given, set) == 7.5);
    assert_true(peek(given, "train_batch_size=none") == 12.0); /* wrong, which is said later */
    assert_true(peek(given, "comm.timeout_seconds=1e9") == 300.0);
    assert_true(peek(given, "comm=3") == 300.0);
    assert_true(peek("{'comm': ", set) == 7.5);
    assert_true(peek("[]", NULL) == 300.0);
    assert_true(job_peek_timeout("-", NULL, sets, 1) == 7.5);
    assert_true(job_peek_timeout("no/such/file.json", NULL, sets, 1) == 7.5);
    assert_true(job_peek_timeout("/dev/null", NULL, NULL, 0) == 300.0); /* no regular file */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_are_dealt_out),      cmocka_unit_test(keys_of_ranks),
        cmocka_unit_test(defaults_of_ranks),          cmocka_unit_test(wrong_for_ranks),
        cmocka_unit_test(stage_3_keys_need_stage_3),  cmocka_unit_test(drives_of_ranks),
        cmocka_unit_test(other_ranks_are_a_change),   cmocka_unit_test(others_read_the_text),
        cmocka_unit_test(the_timeout_is_known_early),
    };
    return cmocka_run_group_tests(tests, test_setup, test_teardown);
}
