/* Every key of DeepSpeed's configuration (version 0.19.6), and what becomes of it here: it changes
 * a field of the job, or it is named once in the log with the reason why it has no effect, or it is
 * refused with a sentence. A key that did nothing in silence would fail. Also DeepSpeed's
 * arithmetic of batch sizes, for every small case. */
#include "tests/config/test_config_common.h"

#include "config/config_internal.h"
#include "tests/config/test_config_keys.h"

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

/* The log names the key once, with its reason. */
static bool is_named(enum base base, const char *set, const char *reason)
{
    static char log[TEST_LOG_BYTES];
    char path[256];
    canonical(set, path);
    read_logged(bases[base], set, log);
    uint32_t count = count_named(log, path, reason);
    if (count != 1)
        print_error("%s: named %u times with its reason\n", set, count);
    return count == 1;
}

static bool is_honoured(const struct honoured *key)
{
    job *plain = read_good(bases[key->base], NULL), *self = read_good(bases[key->base], key->set);
    bool has_value = field_holds(&key->field, self), had_value = field_holds(&key->field, plain);
    if (!has_value || had_value)
        print_error("%s: the field has %s\n", key->set,
                    has_value ? "the value without the key" : "another value");
    job_destroy(plain);
    job_destroy(self);
    return has_value && !had_value && (!key->alone || is_named(key->base, key->set, key->alone));
}

/* The --set changes nothing, and its fate is as told. */
static bool is_unused(enum fate fate, enum base base, const char *says, const char *set)
{
    job *plain = read_good(bases[base], NULL), *self;
    int rc = read_text(bases[base], set, &self);
    bool holds = fate == REFUSED ? rc == ERR_CONFIG && strstr(err_text(), says) : rc == 0;
    if (!holds)
        print_error("%s: %s\n", set, rc == 0 ? "accepted" : err_text());
    if (rc == 0 && !jobs_equal(plain, self)) {
        print_error("%s: changes the job\n", set);
        holds = false;
    }
    job_destroy(plain);
    job_destroy(self);
    return holds && (fate != IDLE || is_named(base, set, says));
}

enum { SET_BYTES = 512 };

/* Copies the first --set of a list. Returns where the next one begins; NULL at the list's end. */
static const char *next_set(const char *sets, char set[SET_BYTES])
{
    size_t bytes = strcspn(sets, ";");
    snprintf(set, SET_BYTES, "%.*s", (int)bytes, sets);
    return bytes ? sets + bytes + (sets[bytes] ? strlen("; ") : 0) : NULL;
}

static void every_key_has_its_fate(void **state)
{
    uint32_t counts[REFUSED + 1] = {0}, wrong = 0;
    char set[SET_BYTES];
    for (size_t i = 0; i < HONOURED_COUNT; i++)
        wrong += !is_honoured(&honoured[i]);
    for (size_t i = 0; i < UNUSED_COUNT; i++)
        for (const char *sets = unused[i].sets; (sets = next_set(sets, set));) {
            counts[unused[i].fate]++;
            wrong += !is_unused(unused[i].fate, unused[i].base, unused[i].says, set);
        }
    print_message("keys: %d honoured, %u say what holds, %u without effect, %u refused\n",
                  (int)HONOURED_COUNT, counts[SAME], counts[IDLE], counts[REFUSED]);
    assert_int_equal(wrong, 0);
}

static bool lists(const configi_key *row, const char *set)
{
    char path[256];
    canonical(set, path);
    enum configi_relation relation = configi_relate(row->path, path);
    return relation == CONFIGI_EQUAL || relation == CONFIGI_BELOW ||
           (relation == CONFIGI_ABOVE && strchr(set, '{'));
}

/* No row of the options table is left out above, so that a new one comes with its line. */
static void every_row_is_listed(void **state)
{
    uint32_t left_out = 0;
    char set[SET_BYTES];
    const configi_key *row;
    for (uint32_t idx = 0; (row = configi_key_at(idx)); idx++) {
        bool is_listed = configi_key_is_own(row);
        for (size_t i = 0; i < HONOURED_COUNT && !is_listed; i++)
            is_listed = lists(row, honoured[i].set);
        for (size_t i = 0; i < UNUSED_COUNT; i++)
            for (const char *sets = unused[i].sets; !is_listed && (sets = next_set(sets, set));)
                is_listed = lists(row, set);
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
    static const struct honoured wrong[] = {
        {PLAIN, "gradient_clipping=0.5", FIELD(gradient_clipping, 0.25)},
        {PLAIN, "gradient_clipping=1.0", FIELD(gradient_clipping, 1.0)},
        {PLAIN, "communication_data_type=fp16", FIELD(comm.wire, DTYPE_BF16), "one rank"},
        {PLAIN, "communication_data_type=fp16", FIELD(comm.wire, DTYPE_FP16), "another reason"},
    };
    print_message("the next lines are meant to complain\n");
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_false(is_honoured(&wrong[i]));
    assert_false(is_unused(SAME, PLAIN, NULL, "gradient_clipping=0.5"));
    assert_false(is_unused(IDLE, PLAIN, "", "gradient_clipping=1.0"));
    assert_false(is_unused(IDLE, PLAIN, "another reason", "dump_state=true"));
    assert_false(is_unused(REFUSED, PLAIN, "", "dump_state=true"));
    assert_false(is_unused(REFUSED, PLAIN, "another sentence", "gradient_clipping=-1"));
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

/* Zero and below are errors there too, and so is a product beyond 64 bits; "auto" and null are not
 * given. */
static void batch_values_are_checked(void **state)
{
    static const char *const paths[] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                        "gradient_accumulation_steps"};
    job *self;
    for (int i = 0; i < 3; i++) {
        char set[96];
        snprintf(set, sizeof set, "%s=0", paths[i]);
        assert_error(read_text(SMALL_JOB, set, &self), ERR_CONFIG, paths[i]);
        snprintf(set, sizeof set, "%s=-8", paths[i]);
        assert_int_equal(read_text(SMALL_JOB, set, &self), ERR_CONFIG);
        snprintf(set, sizeof set, "%s=1.5", paths[i]);
        assert_int_equal(read_text(SMALL_JOB, set, &self), ERR_CONFIG);
    }
    configi_reader reader = {.file = "job"};
    uint64_t train = 0, micro = UINT64_MAX / 2, accumulation = 4;
    assert_int_equal(configi_resolve_batch(&reader, 2, &train, &micro, &accumulation), ERR_CONFIG);
    self = read_good(SMALL_WITH("'train_batch_size': 8, 'gradient_accumulation_steps': null,"),
                     "train_micro_batch_size_per_gpu=auto");
    assert_int_equal(self->micro_batch, 8);
    assert_int_equal(self->accumulation, 1);
    job_destroy(self);
}

/* A key that is "auto" has its default, or what follows from other keys, and the log says which. */
static void auto_is_named(void **state)
{
    static char log[TEST_LOG_BYTES];
    read_logged(
        SMALL_WITH("'optimizer': {'params': {'eps': 'auto', 'betas': 'auto'}},'bf16': {'enabled': "
                   "'auto'}, 'train_batch_size': 'auto','gradient_accumulation_steps': 'auto',"),
        NULL, log);
    assert_non_null(strstr(log, "optimizer.params.eps (1e-08)"));
    assert_non_null(strstr(log, "optimizer.params.betas ([0.9,0.999])"));
    assert_non_null(strstr(log, "bf16.enabled (false)"));
    assert_non_null(strstr(log, "train_batch_size (1)"));
    assert_non_null(strstr(log, "gradient_accumulation_steps (1)"));
}

#define HF_MODEL                                                                                   \
    "{'model': {'family': 'gpt2', 'num_layers': 2, 'hidden_size': 64, 'num_heads': "               \
    "4, "                                                                                          \
    "'seq_length': 32}, 'run': {'dir': 'runs/test', 'steps': 40}"

/* The defaults of transformers' TrainingArguments, as its integration of DeepSpeed fills them
 * in. */
static void auto_of_hugging_face(void **state)
{
    static char log[TEST_LOG_BYTES];
    static const char all[] = HF_MODEL
        ", 'train_batch_size': 'auto', 'train_micro_batch_size_per_gpu': 'auto', "
        "'gradient_accumulation_steps': 'auto', 'gradient_clipping': 'auto', 'fp16': {'enabled': "
        "'auto'}, 'bf16': {'enabled': 'auto'}, 'optimizer': {'type': 'AdamW', 'params': {'lr': "
        "'auto', 'betas': 'auto', 'eps': 'auto', 'weight_decay': 'auto'}}, 'scheduler': {'type': "
        "'WarmupDecayLR', 'params': {'warmup_min_lr': 'auto', 'warmup_max_lr': 'auto', "
        "'warmup_num_steps': 'auto', 'total_num_steps': 'auto'}}, 'zero_optimization': {'stage': "
        "3, 'reduce_bucket_size': 'auto', 'stage3_prefetch_bucket_size': 'auto', "
        "'stage3_param_persistence_threshold': 'auto'}}";
    job *self = read_good(all, "auto=hf");
    assert_true(self->optimizer.lr == 5e-5 && self->optimizer.beta1 == 0.9);
    assert_true(self->optimizer.beta2 == 0.999 && self->optimizer.epsilon == 1e-8);
    assert_true(self->optimizer.weight_decay == 0 && self->gradient_clipping == 1.0);
    assert_true(self->micro_batch == 8 && self->accumulation == 1 && self->train_batch_size == 8);
    assert_int_equal(self->type, DTYPE_FP32);
    assert_true(self->scheduler.warmup_max_lr == 5e-5 && self->scheduler.warmup_min_lr == 0);
    assert_true(self->scheduler.warmup_num_steps == 0 && self->scheduler.total_num_steps == 40);
    assert_int_equal(self->prefetch_bucket_size, 3686); /* 0.9 * 64 * 64 */
    assert_int_equal(self->persistence_threshold, 640);
    /* The run's own copy needs no trainer. */
    job *again = read_good(self->text, NULL);
    assert_jobs_equal(self, again);
    job_destroy(self);
    job_destroy(again);
    read_logged(all, "auto=hf", log);
    static const char *const named[] = {
        "optimizer.params.lr 5e-5",
        "train_micro_batch_size_per_gpu 8",
        "gradient_accumulation_steps 1",
        "gradient_clipping 1.0",
        "betas [0.9,0.999]",
        "fp16.enabled false",
        "warmup_max_lr 5e-5",
        "total_num_steps 40",
        "zero_optimization.reduce_bucket_size 4096",
    };
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++)
        if (!strstr(log, named[i]))
            fail_msg("no \"%s\" in: %s", named[i], log);
}

/* The trainer makes AdamW and a linear schedule if the file has neither. Numbers of the file win
 * over the trainer's. */
static void hugging_face_fills_gaps(void **state)
{
    job *self = read_good(HF_MODEL ", 'optimizer': 'auto'}", "auto=hf");
    assert_true(self->optimizer.lr == 5e-5 && self->micro_batch == 8);
    job_destroy(self);
    self = read_good(HF_MODEL "}", "auto=hf");
    assert_true(self->optimizer.lr == 5e-5 && self->micro_batch == 8);
    assert_int_equal(self->scheduler.type, JOB_LINEAR);
    assert_true(job_learning_rate(self, 1) == 5e-5); /* get_linear_schedule_with_warmup(0, 40) */
    assert_true(job_learning_rate(self, 11) == 5e-5 * 0.75);
    assert_true(job_learning_rate(self, 41) == 0 && job_learning_rate(self, 100) == 0);
    self->scheduler.warmup_num_steps = 4;
    assert_true(job_learning_rate(self, 1) == 0 && job_learning_rate(self, 2) == 5e-5 / 4);
    assert_true(job_learning_rate(self, 5) == 5e-5 && job_learning_rate(self, 23) == 5e-5 / 2);
    job_destroy(self);
    self = read_good(HF_MODEL
                     ", 'train_batch_size': 12, 'optimizer': {'params': {'lr': 1e-4}}, "
                     "'scheduler': {'type': 'WarmupLR', 'params': {'warmup_max_lr': 'auto'}}}",
                     "auto=hf");
    assert_true(self->micro_batch == 12 && self->optimizer.lr == 1e-4);
    assert_true(self->scheduler.type == JOB_WARMUP_LR && self->scheduler.warmup_max_lr == 1e-4);
    job_destroy(self);
    /* An optimizer without a rate has that of DeepSpeed, and the schedule that of the trainer. */
    self = read_good(HF_MODEL ", 'optimizer': {'type': 'AdamW'}, 'scheduler': {'type': 'WarmupLR', "
                              "'params': {'warmup_max_lr': 'auto'}}}",
                     "auto=hf");
    assert_true(self->optimizer.lr == 1e-3 && self->scheduler.warmup_max_lr == 5e-5);
    job_destroy(self);
}

/* Other forms that DeepSpeed accepts are read, and a log line names them. */
static void other_spellings_are_read(void **state)
{
    static const struct {
        const char *keys, *says;
        struct field field;
    } cases[] = {
        {"'_comment': 'x', ", "taken for remarks: _comment", FIELD(zero_stage, 0)},
        {"'//': [1], '#': {}, 'comment': 1, ", "//, #, comment", FIELD(zero_stage, 0)},
        {"'fp16': {'enabled': 1}, ", "fp16.enabled 1 as true", FIELD(type, DTYPE_FP16)},
        {"'fp16': {'enabled': 'True'}, ", "as true", FIELD(type, DTYPE_FP16)},
        {"'bf16': {'enabled': 0}, ", "bf16.enabled 0 as false", FIELD(type, DTYPE_FP32)},
        {"'zero_optimization': {'stage': '3'}, ", "stage \"3\" as 3", FIELD(zero_stage, 3)},
        {"'optimizer': {'params': {'lr': '2e-4'}}, ", "lr \"2e-4\" as", FIELD(optimizer.lr, 2e-4)},
        {"'zero_optimization': {'sub_group_size': 0}, ", "sub_group_size 0 is no size",
         FIELD(sub_group_size, 1000000000)},
        {"'optimiser': {'type': 'Lion'}, ",
         "optimiser: an unknown key, which is ignored as in DeepSpeed; the nearest known key is "
         "\"optimizer\"",
         FIELD(optimizer.type, JOB_ADAM)},
        {"'learning_rate': 1, ", "here it is called optimizer.params.lr", FIELD(zero_stage, 0)},
        {"'flops_profiler': {'end_step': 5}, ", "flops_profiler.end_step: an unknown key",
         FIELD(zero_stage, 0)},
    };
    static char log[TEST_LOG_BYTES], text[1024];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        snprintf(text, sizeof text, "{%s%s, %s}", cases[i].keys, SMALL_MODEL, SMALL_REST);
        read_logged(text, NULL, log);
        if (!strstr(log, cases[i].says))
            fail_msg("%s: no \"%s\" in: %s", cases[i].keys, cases[i].says, log);
        job *self = read_good(text, NULL);
        if (!field_holds(&cases[i].field, self))
            fail_msg("%s: the field has another value", cases[i].keys);
        job_destroy(self);
    }
}

/* The names of transformers' `optim`, in any case. */
static void optimizers_have_names_of_transformers(void **state)
{
    static const struct {
        const char *set;
        enum job_optimizer type;
        enum tile_format moments;
    } rows[] = {
        {"optimizer.type=adamw_torch", JOB_ADAM, TILE_FP32},
        {"optimizer.type=adamw_torch_fused", JOB_ADAM, TILE_FP32},
        {"optimizer.type=paged_adamw_32bit", JOB_ADAM, TILE_FP32},
        {"optimizer.type=adamw_8bit", JOB_ADAM, TILE_INT8},
        {"optimizer.type=adamw_bnb_8bit", JOB_ADAM, TILE_INT8},
        {"optimizer.type=adamw_torch_8bit", JOB_ADAM, TILE_INT8},
        {"optimizer.type=PAGED_ADAMW_8BIT", JOB_ADAM, TILE_INT8},
        {"optimizer.type=lion_32bit", JOB_LION, TILE_FP32},
        {"optimizer.type=lion_8bit", JOB_LION, TILE_FP32},
        {"optimizer.type=paged_lion_32bit", JOB_LION, TILE_FP32},
        {"optimizer.type=paged_lion_8bit", JOB_LION, TILE_FP32},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        job *self = read_good(SMALL_WITH(""), rows[i].set);
        assert_int_equal(self->optimizer.type, rows[i].type);
        assert_int_equal(self->state.moments, rows[i].moments);
        assert_true(self->optimizer.decoupled);
        job_destroy(self);
    }
    job *self = read_good(SMALL_WITH("'state': {'moments': 'fp32'},"), "optimizer.type=adamw_8bit");
    assert_int_equal(self->state.moments, TILE_FP32);
    job_destroy(self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(optimizers_have_names_of_transformers),
        cmocka_unit_test(every_key_has_its_fate),
        cmocka_unit_test(every_row_is_listed),
        cmocka_unit_test(wrong_fates_are_noticed),
        cmocka_unit_test(batch_sizes_agree),
        cmocka_unit_test(batch_values_are_checked),
        cmocka_unit_test(auto_is_named),
        cmocka_unit_test(auto_of_hugging_face),
        cmocka_unit_test(hugging_face_fills_gaps),
        cmocka_unit_test(other_spellings_are_read),
    };
    return cmocka_run_group_tests(tests, test_setup, test_teardown);
}
