/* A job may change keys of a run that another job began. The report of these changes names each key
 * that changes what follows and no key that changes no bit, and it fits its buffer. */
#include "tests/config/test_config_common.h"

static char told[1024];

/* How many changes there are between the small job with these --set, and what is said of them. */
static uint32_t changes(const char *keys, const char *was_set, const char *is_set, size_t room)
{
    char text[1024];
    snprintf(text, sizeof text, "{%s" SMALL_MODEL ", " SMALL_REST "}", keys);
    job *was = read_good(text, was_set), *is = read_good(text, is_set);
    uint32_t count = job_list_changes(was, is, 10, told, room);
    job_destroy(was);
    job_destroy(is);
    return count;
}

static void each_change_is_told(void **state)
{
    static const char keys[] = "'optimizer': {'type': 'Adam', 'params': {'lr': 1e-3}}, ";
    static const struct {
        const char *set, *told;
    } rows[] = {
        {"data.train=['a','b','c']", "data.train was none and is a and 2 more"},
        {"data.seed=2", "data.seed was 1 and is 2"},
        {"gradient_accumulation_steps=3", "gradient_accumulation_steps was 1 and is 3"},
        {"gradient_clipping=0.5", "gradient_clipping was 1 and is 0.5"},
        {"optimizer.params.lr=0.01", "optimizer.params.lr was 0.001 and is 0.01"},
        {"optimizer.params.betas=[0.9,0.95]", "optimizer.params.betas[1] was 0.999 and is 0.95"},
        {"optimizer.params.eps=1e-6", "optimizer.params.eps was 1e-08 and is 1e-06"},
        {"optimizer.params.weight_decay=0.1", "optimizer.params.weight_decay was 0 and is 0.1"},
        {"optimizer.params.adam_w_mode=false",
         "optimizer.params.adam_w_mode was true and is false"},
        {"optimizer.params.bias_correction=false",
         "optimizer.params.bias_correction was true and is false"},
        {"schedule.update=delayed_one_step", "schedule.update was exact and is delayed_one_step"},
        {"scheduler={'type':'WarmupLR','params':{'warmup_num_steps':50}}",
         "scheduler.type was none and is WarmupLR"},
    };
    log_set_level(LOG_QUIET);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(changes(keys, NULL, rows[i].set, sizeof told), 1);
        assert_string_equal(told, rows[i].told);
        assert_int_equal(changes(keys, rows[i].set, rows[i].set, sizeof told), 0);
        assert_string_equal(told, "");
    }
    log_set_level(LOG_WARN);
}

/* The rate of Muon's tensors with AdamW. */
static void muons_second_rate_is_told(void **state)
{
    static const char muon[] =
        "'optimizer': {'type': 'Muon', 'params': {'lr': 0.02, 'adam_lr': 0.001}}, ";
    assert_int_equal(changes(muon, NULL, "optimizer.params.adam_lr=0.002", sizeof told), 1);
    assert_string_equal(told, "optimizer.params.adam_lr was 0.001 and is 0.002");
    assert_int_equal(changes(muon, NULL, "optimizer.params.muon_lr=0.03", sizeof told), 1);
    assert_string_equal(told, "optimizer.params.lr was 0.02 and is 0.03");
}

/* Within one kind of schedule the rates of the steps to come count, not those of before. */
static void rates_are_compared(void **state)
{
    static const char keys[] =
        "'scheduler': {'type': 'WarmupLR', 'params': {'warmup_max_lr': 1e-3, 'warmup_num_steps': "
        "4}}, 'optimizer': {'type': 'Adam', 'params': {'lr': 1e-3}}, ";
    assert_int_equal(changes(keys, NULL, "scheduler.params.warmup_num_steps=5", sizeof told), 0);
    assert_int_equal(changes(keys, NULL, "scheduler.params.warmup_num_steps=50", sizeof told), 1);
    assert_string_equal(told, "scheduler.params give other learning rates");
    assert_int_equal(changes(keys, NULL, "scheduler.params.warmup_max_lr=2e-3", sizeof told), 1);
}

/* The warm-up of a delayed update counts where both jobs delay it. */
static void a_warm_up_is_told(void **state)
{
    static const char delayed[] = "'schedule': {'update': 'delayed_one_step'}, ";
    log_set_level(LOG_QUIET);
    assert_int_equal(changes(delayed, NULL, "schedule.delayed_from_step=40", sizeof told), 1);
    assert_string_equal(told, "schedule.delayed_from_step was 0 and is 40");
    assert_int_equal(changes("", NULL, "schedule.delayed_from_step=40", sizeof told), 0);
    log_set_level(LOG_WARN);
}

static void what_changes_no_bit_is_not_told(void **state)
{
    static const char *const sets[] = {
        "run.steps=5",
        "run.commit_every=1",
        "run.keep=1000",
        "schedule.order=batch_major",
        "schedule.tile_elems=8192",
        "schedule.update=after_backward",
        "tiers.host.budget=1GiB",
        "io.backend=pool",
        "data.valid=x",
    };
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++)
        assert_int_equal(changes("", NULL, sets[i], sizeof told), 0);
}

/* Keys that count only at the start are listed by themselves. */
static void late_keys_are_told(void **state)
{
    static const char fp16[] = "{'fp16': {'enabled': true}, " SMALL_MODEL ", " SMALL_REST "}";
    job *was = read_good(fp16, NULL), *is = read_good(fp16, "fp16.initial_scale_power=8");
    assert_int_equal(job_list_late_keys(was, is, told, sizeof told), 1);
    assert_string_equal(told, "fp16.initial_scale_power was 16 and is 8");
    assert_int_equal(job_list_changes(was, is, 10, told, sizeof told), 0);
    job_destroy(is);
    is = read_good(fp16, "run.seed=9"); /* the manifest says it */
    assert_int_equal(job_list_late_keys(was, is, told, sizeof told), 0);
    strcpy(is->hf, "a/checkpoint");
    assert_int_equal(job_list_late_keys(was, is, told, sizeof told), 1);
    assert_string_equal(told, "model.hf was not set and is a/checkpoint");
    job_destroy(is);
    job_destroy(was);
}

static void text_is_cut_where_there_is_no_room(void **state)
{
    static const char set[] =
        "optimizer={'type':'Adam','params':{'lr':0.5,'eps':0.5,'weight_decay':0.5}}";
    for (size_t room = 16; room < 200; room++) {
        memset(told, 'x', sizeof told);
        assert_int_equal(changes("", NULL, set, room), 3);
        assert_true(strlen(told) < room);
        for (size_t i = room; i < sizeof told; i++)
            assert_int_equal(told[i], 'x');
        bool is_whole = strstr(told, "weight_decay") != NULL;
        size_t length = strlen(told);
        assert_true(is_whole || (length >= 3 && strcmp(told + length - 3, "...") == 0));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_change_is_told),
        cmocka_unit_test(rates_are_compared),
        cmocka_unit_test(muons_second_rate_is_told),
        cmocka_unit_test(a_warm_up_is_told),
        cmocka_unit_test(what_changes_no_bit_is_not_told),
        cmocka_unit_test(late_keys_are_told),
        cmocka_unit_test(text_is_cut_where_there_is_no_room),
    };
    return cmocka_run_group_tests(tests, test_setup, test_teardown);
}
