/* For the tests of config.json: files of a checkpoint, and tables of what is read and what is
 * refused. */
#ifndef SLUICE_TESTS_CONFIG_HF_H
#define SLUICE_TESTS_CONFIG_HF_H

#include "tests/config/test_config_common.h"

#define GPT2                                                                                       \
    "'model_type': 'gpt2', 'vocab_size': 300, 'n_embd': 48, 'n_layer': 3, 'n_head': 4, "           \
    "'n_positions': 96"
/* Sizes for every other family. There are more positions than the default sequence has tokens. */
#define SIZES                                                                                      \
    "'vocab_size': 300, 'hidden_size': 48, 'num_hidden_layers': 3, 'num_attention_heads': 4, "     \
    "'intermediate_size': 80, 'max_position_embeddings': 4096"
#define LLAMA3                                                                                     \
    "'factor': 8.0, 'low_freq_factor': 1.0, 'high_freq_factor': 4.0, "                             \
    "'original_max_position_embeddings': 8192"
#define LISTS "'short_factor': [1, 1, 1, 1.5], 'long_factor': [2, 3, 4, 5]"

enum { WORDS_MAX = 4 };

/* Keys of config.json, and members of the job that follow from them. Keys that begin with a word
 * have it as model_type, and SIZES. */
struct right_case {
    const char *keys;
    struct field fields[ROW_FIELDS_MAX];
};

/* The same keys, words of the refusal, and an override of the job (or NULL). */
struct wrong_case {
    const char *keys;
    const char *words[WORDS_MAX];
    const char *set;
};

static char hf_file[128];

/* Reads a job whose checkpoint has this config.json. */
static int read_file(const char *config, const char *set, job **out)
{
    char text[1024];
    snprintf(hf_file, sizeof hf_file, "%s/config.json", test_dir);
    FILE *file = fopen(hf_file, "wb");
    assert_non_null(file);
    assert_true(fputs(config, file) > 0);
    assert_int_equal(fclose(file), 0);
    snprintf(text, sizeof text, "{'model': {'hf': '%s'}, " SMALL_REST "}", test_dir);
    int rc = read_text(text, set, out);
    unlink(hf_file);
    return rc;
}

static int read_config(const char *keys, const char *set, job **out)
{
    char text[1024];
    int word = (int)strcspn(keys, " '");
    if (word)
        snprintf(text, sizeof text, "{'model_type': '%.*s', " SIZES "%s%s}", word, keys,
                 keys[word] ? "," : "", keys + word);
    else
        snprintf(text, sizeof text, "{%s}", keys);
    return read_file(quoted(text), set, out);
}

static job *read_right(const char *keys, const char *set)
{
    job *self;
    int rc = read_config(keys, set, &self);
    if (rc < 0)
        fail_msg("%s: %s", keys, err_text());
    return self;
}

/* Reads each file, and compares the members that its row names. */
__attribute__((unused)) static void check_right(const struct right_case *right, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        job *self = read_right(right[i].keys, NULL);
        assert_string_equal(self->hf, test_dir);
        check_fields(right[i].fields, self, right[i].keys, i);
        job_destroy(self);
    }
}

/* Reads each file, and writes a new one of the job, which must mean the same. */
__attribute__((unused)) static void check_written(const struct right_case *right, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        job *self = read_right(right[i].keys, NULL), *again;
        char *text, *text_again;
        if (config_write_hf(self, "bfloat16", NULL, &text) < 0 ||
            read_file(text, NULL, &again) < 0 ||
            config_write_hf(again, "bfloat16", NULL, &text_again) < 0)
            fail_msg("%s: %s", right[i].keys, err_text());
        check_fields(right[i].fields, again, text, i);
        assert_string_equal(text, text_again);
        mem_free(text);
        mem_free(text_again);
        job_destroy(self);
        job_destroy(again);
    }
}

/* Each file is refused, with the words of its row. */
__attribute__((unused)) static void check_wrong(const struct wrong_case *wrong, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        job *self;
        int rc = read_config(wrong[i].keys, wrong[i].set, &self);
        if (rc != ERR_CONFIG)
            fail_msg("case %zu (%s): %s", i, wrong[i].keys, rc < 0 ? err_text() : "taken");
        for (size_t k = 0; k < WORDS_MAX && wrong[i].words[k]; k++)
            if (!strstr(err_text(), wrong[i].words[k]))
                fail_msg("case %zu (%s): no \"%s\" in: %s", i, wrong[i].keys, wrong[i].words[k],
                         err_text());
    }
}

#endif
