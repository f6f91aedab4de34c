/* Shared by the tests of src/config: a job file in a directory of the test. */
#ifndef SLUICE_TESTS_TEST_CONFIG_COMMON_H
#define SLUICE_TESTS_TEST_CONFIG_COMMON_H

#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "config/config.h"
#include "tests/unit.h"

/* The least that is a job. JSON in these tests has ' for " (tests/unit.h). */
#define SMALL_MODEL                                                                                \
    "'model': {'family': 'gpt2', 'num_layers': 2, 'hidden_size': 64, 'num_heads': 4, "             \
    "'seq_length': 32}"
#define SMALL_REST "'run': {'dir': 'runs/test'}, 'train_micro_batch_size_per_gpu': 1"
#define SMALL_JOB  "{" SMALL_MODEL ", " SMALL_REST "}"
/* The same with further keys, each ending in a comma. */
#define SMALL_WITH(keys) "{" keys SMALL_MODEL ", " SMALL_REST "}"

static char test_dir[64];
static char test_file[96];

static int test_setup(void **state)
{
    log_set_level(LOG_WARN);
    strcpy(test_dir, "test_config.XXXXXX");
    if (!mkdtemp(test_dir))
        return -1;
    snprintf(test_file, sizeof test_file, "%s/job.json", test_dir);
    return 0;
}

static int test_teardown(void **state)
{
    unlink(test_file);
    return rmdir(test_dir);
}

static void write_job(const char *text, size_t text_bytes)
{
    FILE *file = fopen(test_file, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, text_bytes, file), text_bytes);
    assert_int_equal(fclose(file), 0);
}

/* Reads a job from text; at most one --set. */
static int read_text(const char *text, const char *set, job **out)
{
    text = quoted(text);
    set = quoted(set);
    write_job(text, strlen(text));
    return job_read(test_file, NULL, &set, set ? 1 : 0, 1, out);
}

/* Calls read_text for a job that must be right. The caller destroys it. */
__attribute__((unused)) static job *read_good(const char *text, const char *set)
{
    job *self;
    int rc = read_text(text, set, &self);
    if (rc < 0)
        fail_msg("%s: %s", err_name(rc), err_text());
    return self;
}

/* A member of struct job and the value that it takes. */
struct field {
    size_t offset;
    enum { FIELD_BOOL, FIELD_WORD, FIELD_COUNT, FIELD_NUMBER, FIELD_TEXT } type;
    double number;
    const char *text;
};
#define FIELD(member, value)                                                                       \
    {                                                                                              \
        offsetof(job, member),                                                                     \
            _Generic(((const job *)0)->member, bool                                                \
                     : FIELD_BOOL, uint64_t                                                        \
                     : FIELD_COUNT, double                                                         \
                     : FIELD_NUMBER, default                                                       \
                     : FIELD_WORD),                                                                \
            (double)(value), NULL                                                                  \
    }
#define FIELD_IS_TEXT(member, value)                                                               \
    {                                                                                              \
        offsetof(job, member), FIELD_TEXT, 0, value                                                \
    }

__attribute__((unused)) static bool field_holds(const struct field *field, const job *self)
{
    const char *at = (const char *)self + field->offset;
    uint64_t count;
    uint32_t word;
    double number;
    switch (field->type) {
    case FIELD_BOOL:
        return *(const bool *)at == (field->number != 0);
    case FIELD_WORD:
        memcpy(&word, at, sizeof word);
        return word == (uint32_t)field->number;
    case FIELD_COUNT:
        memcpy(&count, at, sizeof count);
        return count == (uint64_t)field->number;
    case FIELD_NUMBER:
        memcpy(&number, at, sizeof number);
        return number == field->number;
    case FIELD_TEXT:
        return strcmp(at, field->text) == 0;
    }
    return false;
}

enum { ROW_FIELDS_MAX = 12, TEST_LOG_BYTES = 32768 };

/* The fields hold, up to one at offset 0: struct job begins with the preset's name, which no table
 * asks for. */
__attribute__((unused)) static void check_fields(const struct field fields[ROW_FIELDS_MAX],
                                                 const job *self, const char *what, size_t idx)
{
    for (size_t k = 0; k < ROW_FIELDS_MAX && fields[k].offset; k++)
        if (!field_holds(&fields[k], self))
            fail_msg("%s %zu: field %zu has another value", what, idx, k);
}

/* Collects what is logged, at the level info, from capture_begin to capture_end. */
struct capture {
    FILE *file;
    int saved; /* the standard error of before */
};

__attribute__((unused)) static struct capture capture_begin(void)
{
    struct capture self = {.file = tmpfile()};
    assert_non_null(self.file);
    fflush(stderr);
    self.saved = dup(STDERR_FILENO);
    assert_true(self.saved >= 0 && dup2(fileno(self.file), STDERR_FILENO) >= 0);
    log_set_level(LOG_INFO);
    return self;
}

/* Returns the log's length, and sets the level warn. */
__attribute__((unused)) static size_t capture_end(struct capture self, char log[TEST_LOG_BYTES])
{
    log_set_level(LOG_WARN);
    assert_true(dup2(self.saved, STDERR_FILENO) >= 0);
    close(self.saved);
    rewind(self.file);
    size_t bytes = fread(log, 1, TEST_LOG_BYTES - 1, self.file);
    log[bytes] = '\0';
    fclose(self.file);
    return bytes;
}

/* Reads a job that must be right and collects what is logged. Returns the log's length. */
__attribute__((unused)) static size_t read_logged(const char *text, const char *set,
                                                  char log[TEST_LOG_BYTES])
{
    job *self;
    struct capture capture = capture_begin();
    int rc = read_text(text, set, &self);
    size_t bytes = capture_end(capture, log);
    job_destroy(self);
    if (rc < 0)
        fail_msg("%s (--set %s): %s", text, set ? set : "-", err_text());
    return bytes;
}

/* Two jobs say the same; their texts aside. */
__attribute__((unused)) static bool jobs_equal(const job *a, const job *b)
{
    job *x = mem_alloc(1, sizeof *x, "test job"), *y = mem_alloc(1, sizeof *y, "test job");
    assert_true(x && y);
    memcpy(x, a, sizeof *x); /* padding too: mem_alloc zeroes, so that it is equal */
    memcpy(y, b, sizeof *y);
    x->text = y->text = NULL;
    x->run.keep = y->run.keep = NULL;
    bool equal = memcmp(x, y, sizeof *x) == 0;
    for (uint32_t i = 0; equal && i < a->run.keep_count; i++)
        equal = a->run.keep[i] == b->run.keep[i];
    mem_free(x);
    mem_free(y);
    return equal;
}

__attribute__((unused)) static void assert_jobs_equal(const job *a, const job *b)
{
    assert_true(jobs_equal(a, b));
}

#endif
