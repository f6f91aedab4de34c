/* Every key of DeepSpeed's configuration (version 0.19.6), and what becomes of it here: it changes
 * a field of the job, or it is named once in the log with the reason why it has no effect, or it is
 * refused with a sentence. A key that did nothing in silence would fail. Also DeepSpeed's
 * arithmetic of batch sizes, for every small case. */
#include "test_config_common.h"

#include "config/config_internal.h"
#include "test_config_keys.h"

/* How often the log names the key (not a longer one that contains it) on a line with the reason. */
static uint32_t count_named(char *log, const char *path, const char *reason)
{
    static const char within[] = "abcdefghijklmnopqrstuvwxyz0123456789_.";
    uint32_t count = 0;
    size_t length = strlen(path);
    for (char *line = strtok(log, "\n"); line; line = strtok(NULL, "\n")) {
        const char *at = strstr(line, "no effect here: ");
        for (at = at ? strstr(at, path) : NULL; at; at = strstr(at + 1, path)) {
            bool whole =
                !strchr(within, at[-1]) && (at[length] == '\0' || !strchr(within, at[length]));
            count += whole && strstr(line, reason);
        }
    }
    return count;
}

/* The table's name of the key that a --set gives: aliases stand for another. */
static void canonical(const char *set, char path[256])
{
    static const struct {
        const char *alias, *name;
    } renamed[] = {
        {"seq_parallel_comm_data_type", "seq_parallel_communication_data_type"},
        {"aio.thread_count", "aio.intra_op_parallelism"},
        {"zero_optimization.gather_16bit_weights_on_model_save",
         "zero_optimization.stage3_gather_16bit_weights_on_model_save"},
        {"zero_optimization.stage3_gather_fp16_weights_on_model_save",
         "zero_optimization.stage3_gather_16bit_weights_on_model_save"},
    };
    static const char *const short_names[] = {
        "prefetch_bucket_size",         "max_live_parameters",
        "max_reuse_distance",           "allgather_sequential",
        "module_granularity_threshold", "use_all_reduce_for_fetch_params",
        "param_persistence_threshold",  "model_persistence_threshold",
    };
    snprintf(path, 256, "%.*s", (int)strcspn(set, "="), set);
    for (size_t i = 0; i < sizeof renamed / sizeof renamed[0]; i++) {
        if (strcmp(path, renamed[i].alias) == 0)
            snprintf(path, 256, "%s", renamed[i].name);
    }
    for (size_t i = 0; i < sizeof short_names / sizeof short_names[0]; i++) {
        const char *dot = strchr(path, '.');
        if (dot && strcmp(dot + 1, short_names[i]) == 0)
            snprintf(path, 256, "zero_optimization.stage3_%s", short_names[i]);
    }
}

static bool fate_holds(const struct key *key)
{
    static char log[TEST_LOG_BYTES];
    char path[256];
    job *plain = read_good(bases[key->base], NULL), *self;
    int rc = read_text(bases[key->base], key->set, &self);
    bool holds = key->fate == REFUSED ? rc == ERR_CONFIG && strstr(err_text(), key->says) : rc == 0;
    if (!holds)
        print_error("%s: %s\n", key->set, rc == 0 ? "accepted" : err_text());
    if (rc == 0 && (key->fate == HONOURED || key->fate == ALONE) &&
        !field_holds(&key->field, self)) {
        print_error("%s: the field has another value\n", key->set);
        holds = false;
    } else if (rc == 0 && (key->fate == HONOURED || key->fate == ALONE) &&
               field_holds(&key->field, plain)) {
        print_error("%s: the field has the value without the key\n", key->set);
        holds = false;
    } else if (rc == 0 && key->fate != HONOURED && key->fate != ALONE && !jobs_equal(plain, self)) {
        print_error("%s: changes the job\n", key->set);
        holds = false;
    }
    if (rc == 0 && (key->fate == IDLE || key->fate == ALONE)) {
        canonical(key->set, path);
        read_logged(bases[key->base], key->set, log);
        uint32_t count = count_named(log, path, key->says);
        if (count != 1) {
            print_error("%s: named %u times with its reason\n", key->set, count);
            holds = false;
        }
    }
    job_destroy(plain);
    job_destroy(self);
    return holds;
}

static void every_key_has_its_fate(void **state)
{
    (void)state;
    uint32_t counts[REFUSED + 1] = {0}, good = 0;
    for (size_t i = 0; i < KEY_COUNT; i++) {
        counts[keys[i].fate]++;
        good += fate_holds(&keys[i]);
    }
    print_message("%d keys: %u honoured, %u say what holds, %u without effect, %u of them on one "
                  "rank alone, %u refused\n",
                  (int)KEY_COUNT, counts[HONOURED], counts[SAME], counts[IDLE] + counts[ALONE],
                  counts[ALONE], counts[REFUSED]);
    assert_int_equal(good, KEY_COUNT);
}

/* No row of the options table is left out above, so that a new one comes with its line. */
static void every_row_is_listed(void **state)
{
    (void)state;
    uint32_t left_out = 0;
    const configi_key *row;
    for (uint32_t idx = 0; (row = configi_key_at(idx)); idx++) {
        bool is_listed = configi_key_is_own(row);
        for (size_t i = 0; i < KEY_COUNT && !is_listed; i++) {
            char path[256];
            canonical(keys[i].set, path);
            enum configi_relation relation = configi_relate(row->path, path);
            is_listed = relation == CONFIGI_EQUAL || relation == CONFIGI_BELOW ||
                        (relation == CONFIGI_ABOVE && strchr(keys[i].set, '{'));
        }
        if (!is_listed) {
            print_error("%s is in no line\n", row->path);
            left_out++;
        }
    }
    assert_int_equal(left_out, 0);
}

/* Canary: the lines above can fail. */
static void wrong_fates_are_noticed(void **state)
{
    (void)state;
    static const struct key wrong[] = {
        {HONOURED, "gradient_clipping=0.5", PLAIN, NULL, FIELD(gradient_clipping, 0.25)},
        {HONOURED, "gradient_clipping=1.0", PLAIN, NULL, FIELD(gradient_clipping, 1.0)},
        {SAME, "gradient_clipping=0.5", PLAIN, NULL, {0}},
        {IDLE, "gradient_clipping=1.0", PLAIN, "", {0}},
        {IDLE, "dump_state=true", PLAIN, "another reason", {0}},
        {ALONE, "communication_data_type=fp16", PLAIN, "one rank", FIELD(comm.wire, DTYPE_BF16)},
        {REFUSED, "dump_state=true", PLAIN, "", {0}},
        {REFUSED, "gradient_clipping=-1", PLAIN, "another sentence", {0}},
    };
    print_message("the next lines are meant to complain\n");
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_false(fate_holds(&wrong[i]));
}

/* DeepSpeed's _set_batch_related_parameters and _batch_assertion, written out again: false is an
 * error. Python's // is the division of what is never negative here. */
static bool deepspeed_batch(int world, int sizes[3])
{
    int train = sizes[0], micro = sizes[1], accumulation = sizes[2];
    if (train && micro && accumulation) {
        /* all are given */
    } else if (train && micro) {
        accumulation = train / micro;
        accumulation /= world;
    } else if (train && accumulation) {
        micro = train / world;
        micro /= accumulation;
    } else if (micro && accumulation) {
        train = micro * accumulation * world;
    } else if (train) {
        accumulation = 1;
        micro = train / world;
    } else if (micro) {
        train = micro * world;
        accumulation = 1;
    } else {
        return false;
    }
    sizes[0] = train;
    sizes[1] = micro;
    sizes[2] = accumulation;
    return train > 0 && micro > 0 && accumulation > 0 && train == micro * accumulation * world;
}

/* All combinations of not given (0) and 1 to 16, on one rank and on some. */
static void batch_sizes_agree(void **state)
{
    (void)state;
    enum { SIZE_MAX_TRIED = 16 };
    static const int worlds[] = {1, 2, 3, 8};
    configi_reader reader = {.file = "job"};
    uint32_t good = 0, wrong = 0;
    for (size_t w = 0; w < sizeof worlds / sizeof worlds[0]; w++) {
        for (int i = 0; i < (SIZE_MAX_TRIED + 1) * (SIZE_MAX_TRIED + 1) * (SIZE_MAX_TRIED + 1);
             i++) {
            int sizes[3] = {i % (SIZE_MAX_TRIED + 1),
                            i / (SIZE_MAX_TRIED + 1) % (SIZE_MAX_TRIED + 1),
                            i / (SIZE_MAX_TRIED + 1) / (SIZE_MAX_TRIED + 1)};
            uint64_t train = (uint64_t)sizes[0], micro = (uint64_t)sizes[1];
            uint64_t accumulation = (uint64_t)sizes[2];
            int rc =
                configi_resolve_batch(&reader, (uint64_t)worlds[w], &train, &micro, &accumulation);
            bool is_right = deepspeed_batch(worlds[w], sizes);
            assert_int_equal(rc, is_right ? 0 : ERR_CONFIG);
            if (is_right) {
                assert_int_equal(train, sizes[0]);
                assert_int_equal(micro, sizes[1]);
                assert_int_equal(accumulation, sizes[2]);
            }
            good += is_right;
            wrong += !is_right;
        }
    }
    print_message("batch sizes: %u right, %u wrong, as in DeepSpeed\n", good, wrong);
    assert_true(good > 1000 && wrong > 1000);
}

/* Zero and below are errors there too; "auto" and null are not given. */
static void batch_values_are_checked(void **state)
{
    (void)state;
    static const char *const paths[] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                        "gradient_accumulation_steps"};
    job *self;
    for (int i = 0; i < 3; i++) {
        char set[96];
        snprintf(set, sizeof set, "%s=0", paths[i]);
        assert_int_equal(read_text(SMALL_JOB, set, &self), ERR_CONFIG);
        assert_non_null(strstr(err_text(), paths[i]));
        snprintf(set, sizeof set, "%s=-8", paths[i]);
        assert_int_equal(read_text(SMALL_JOB, set, &self), ERR_CONFIG);
        snprintf(set, sizeof set, "%s=1.5", paths[i]);
        assert_int_equal(read_text(SMALL_JOB, set, &self), ERR_CONFIG);
    }
    self = read_good(SMALL_WITH("\"train_batch_size\": 8, \"gradient_accumulation_steps\": null,"),
                     "train_micro_batch_size_per_gpu=auto");
    assert_int_equal(self->micro_batch, 8);
    assert_int_equal(self->accumulation, 1);
    job_destroy(self);
}

/* "auto" outside the batch is the default, and the log says which. */
static void auto_is_named(void **state)
{
    (void)state;
    static char log[TEST_LOG_BYTES];
    read_logged(SMALL_WITH("\"optimizer\": {\"params\": {\"lr\": \"auto\", \"betas\": \"auto\"}},"
                           "\"bf16\": {\"enabled\": \"auto\"}, \"train_batch_size\": \"auto\","),
                NULL, log);
    assert_non_null(strstr(log, "optimizer.params.lr"));
    assert_non_null(strstr(log, "optimizer.params.betas ([0.9,0.999])"));
    assert_non_null(strstr(log, "bf16.enabled (false)"));
    assert_non_null(strstr(log, "train_batch_size"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key_has_its_fate),   cmocka_unit_test(every_row_is_listed),
        cmocka_unit_test(wrong_fates_are_noticed),  cmocka_unit_test(batch_sizes_agree),
        cmocka_unit_test(batch_values_are_checked), cmocka_unit_test(auto_is_named),
    };
    return cmocka_run_group_tests(tests, test_setup, test_teardown);
}
