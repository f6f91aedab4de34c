/* Jobs with a checkpoint's config.json: what a job may say beside it, what a run's copy of the job
 * keeps of it, and the same keys in a job without a checkpoint. */
#include <sys/stat.h>

#include "tests/config/test_config_hf.h"

/* A job may repeat the checkpoint's values, and may set the sequence length and the size of
 * parts. */
static void jobs_may_repeat(void **state)
{
    static const char keys[] = "llama 'rope_scaling': {'type': 'linear', 'factor': 2}";
    static const char *const sets[] = {"model.num_layers=3",
                                       "model.family=llama",
                                       "model.rope_theta=1e4",
                                       "model.mlp_bias=false",
                                       "model.activation=default",
                                       "model.scoring_func=softmax",
                                       "model.rope_scaling={'factor': 2, 'type': 'linear'}"};
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++)
        job_destroy(read_right(keys, sets[i]));
    job *self = read_right(keys, "model.seq_length=4096");
    assert_int_equal(self->model.seq_length, 4096);
    job_destroy(self);
    self = read_right(keys, "model.max_part_bytes=1MiB");
    assert_int_equal(self->model.max_part_bytes, 1 << 20);
    job_destroy(self);
}

/* Dropout is a matter of training: the job's own values count. */
static void jobs_choose_dropout(void **state)
{
    job *self = read_right(GPT2, "train.dropout=0");
    assert_true(self->model.hidden_dropout == 0 && self->model.embedding_dropout == 0 &&
                self->model.attention_dropout == 0);
    job_destroy(self);
    self = read_right(GPT2, "model.hidden_dropout=0.3");
    assert_true(self->model.hidden_dropout == 0.3 && self->model.attention_dropout == 0.1);
    job_destroy(self);
    self = read_right("llama", "train.dropout=0.2");
    assert_true(self->model.hidden_dropout == 0 && self->model.embedding_dropout == 0 &&
                self->model.attention_dropout == 0.2);
    job_destroy(self);
}

/* A run's copy of the job stands for itself: the directory may be gone, and another may be in its
 * place. */
static void a_runs_copy_needs_no_checkpoint(void **state)
{
    static const char *const files[] = {
        "llama 'rope_scaling': {'rope_type': 'llama3', " LLAMA3 "}",
        "llama 'rope_scaling': {'type': 'yarn', 'factor': 2.5, 'truncate': false}",
        "phi3 'partial_rotary_factor': 0.75, 'rope_scaling': {'type': 'longrope', " LISTS "}",
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        job *self = read_right(files[i], "model.seq_length=77");
        job *again = read_good(self->text, NULL);
        assert_jobs_equal(self, again);
        assert_string_equal(again->hf, test_dir);
        job_destroy(self);
        job_destroy(again);
    }
}

/* The same keys without a checkpoint. */
static void hand_written_blocks(void **state)
{
    static const char model[] =
        "{'model': {'family': 'llama', 'num_layers': 2, 'hidden_size': 64, 'num_heads': 4, "
        "'seq_length': 32, 'head_dim': 24, 'qkv_bias': true, 'qk_norm': true, 'rope_scaling': "
        "{'type': 'llama3', " LLAMA3 "}}, " SMALL_REST "}";
    static const char bert[] = "{'model': {'family': 'bert', 'num_layers': 2, 'hidden_size': 64, "
                               "'num_heads': 4, 'seq_length': 32}, " SMALL_REST "}";
    job *self = read_good(bert, NULL);
    assert_true(self->model.qkv_bias && self->model.tie_embeddings);
    assert_int_equal(self->model.ffn_size, 256);
    assert_int_equal(self->data.mask_token, -1);
    job_destroy(self);
    self = read_good(bert, "data.mask_token=0");
    assert_int_equal(self->data.mask_token, 0);
    job_destroy(self);
    self = read_good(model, NULL);
    assert_true(self->model.qkv_bias && self->model.qk_norm);
    assert_int_equal(self->model.head_dim, 24);
    assert_int_equal(self->model.rope.scaling, ROPE_LLAMA3);
    assert_int_equal(self->model.rope.original_positions, 8192);
    job_destroy(self);
    static const struct {
        const char *text, *set, *word;
    } bad[] = {
        {model, "model.rope_scaling.type=linear", "no such number"},
        {model, "model.rope_scaling.type=default", "no such number"},
        {model, "model.rope_scaling.type=yarn", "no such number"},
        {model, "model.rope_scaling.beta_fast=16", "no such number"},
        {model, "model.rope_scaling={'type': 'yarn', 'factor': 2}", "missing"},
        {model, "model.partial_rotary_factor=1.5", "model.partial_rotary_factor"},
        {SMALL_JOB, "model.partial_rotary_factor=0.5", "no such option"},
        {model, "model.position_count=40", "model.position_count"},
        {SMALL_JOB, "model.qkv_bias=false", "always has"},
        {SMALL_JOB, "model.qk_norm=true", "no such option"},
        {SMALL_JOB, "model.mlp_bias=true", "no such option"},
        {SMALL_JOB, "model.type_count=2", "no such option"},
        {bert, "model.tie_embeddings=false", "is the embedding"},
        {bert, "model.qkv_bias=false", "the bert family always has"},
        {bert, "model.rope_scaling={'type': 'linear', 'factor': 2}", "bert family has no"},
        {SMALL_JOB, "model.nope_interval=2", "no such option"},
        {model, "model.logits_scaling=1e-40", "model.logits_scaling"},
        {model, "model.embedding_multiplier=1e39", "model.embedding_multiplier"},
        {model, "model.family=gemma", "the gemma family has no such option"},
        {SMALL_JOB, "model.rope_scaling={'type': 'linear', 'factor': 2}", "no such option"},
        {model, "model.window_pattern=wf", "there is no window"},
        {SMALL_JOB, "model.position_count=31", "below model.seq_length, 32"},
        {SMALL_JOB, "model.rope_scaling={'type': 'linear'}", "rope_scaling.factor"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(read_text(bad[i].text, bad[i].set, &self), ERR_CONFIG);
        if (!strstr(err_text(), bad[i].word))
            fail_msg("case %zu: no \"%s\" in: %s", i, bad[i].word, err_text());
    }
    self = read_good(SMALL_JOB, "model.position_count=1024");
    assert_int_equal(self->model.position_count, 1024);
    job_destroy(self);
}

/* A run's own job, whose checkpoint is gone: the run's copy of the tokenizer counts as the
 * checkpoint's. */
static void a_run_keeps_its_tokenizer(void **state)
{
    char set[160], dir[160], file[200];
    job *first = read_right("llama", NULL), *again;
    snprintf(set, sizeof set, "run.dir=%s", test_dir);
    snprintf(dir, sizeof dir, "%s/hf", test_dir);
    snprintf(file, sizeof file, "%s/tokenizer.json", dir);
    assert_string_equal(first->data.tokenizer, "bytes");
    assert_false(first->data.tokenizer_is_given);
    job *named = read_right("llama", "data.tokenizer=bytes");
    assert_true(named->data.tokenizer_is_given);
    assert_int_equal(read_text(named->text, NULL, &again),
                     0); /* a run's job.json has the same effect */
    assert_true(again->data.tokenizer_is_given);
    job_destroy(again);
    job_destroy(named);
    for (int has_copy = 0; has_copy < 2; has_copy++) {
        if (has_copy) {
            assert_int_equal(mkdir(dir, 0777), 0);
            fclose(fopen(file, "wb"));
        }
        assert_int_equal(read_text(first->text, set, &again), 0);
        assert_string_equal(again->data.tokenizer, has_copy ? again->hf : "bytes");
        job_destroy(again);
    }
    unlink(file);
    rmdir(dir);
    job_destroy(first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_keeps_its_tokenizer),
        cmocka_unit_test(jobs_may_repeat),
        cmocka_unit_test(jobs_choose_dropout),
        cmocka_unit_test(a_runs_copy_needs_no_checkpoint),
        cmocka_unit_test(hand_written_blocks),
    };
    return cmocka_run_group_tests(tests, test_setup, test_teardown);
}
