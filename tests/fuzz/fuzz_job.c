/* Fuzzes the job file and --set.
 *
 *   input   job text  [ 0x1E  key.path=value ]...       0x1E: ASCII's record separator
 *
 * A text ends in a job or in one sentence. A job's own text must read back as the same job, its
 * schedule must give numbers, and its counts must lie within its arrays. */
#include <math.h>
#include <string.h>

#include "base/log.h"
#include "config/config.h"
#include "fuzz.h"

enum { SETS_MAX = 6, SEPARATOR = 0x1e };

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    log_set_level(LOG_QUIET);
    return 0;
}

static void check_counts(const job *self)
{
    FUZZ_CHECK(self->data.train.count <= JOB_FILES_MAX && self->data.valid.count <= JOB_FILES_MAX,
               "%u and %u files", self->data.train.count, self->data.valid.count);
    FUZZ_CHECK(self->tiers.nvme_count <= DRIVES_MAX, "%u drives", self->tiers.nvme_count);
    FUZZ_CHECK(self->tiers.rule_count <= JOB_RULES_MAX, "%u rules", self->tiers.rule_count);
    for (uint32_t i = 0; i < self->tiers.rule_count; i++)
        FUZZ_CHECK(self->tiers.rules[i].unit_first <= self->tiers.rules[i].unit_last, "rule %u", i);
    for (uint32_t i = 0; i < self->tiers.nvme_count; i++)
        FUZZ_CHECK(memchr(self->tiers.nvme[i].path, '\0', FILE_PATH_BYTES), "drive %u", i);
    for (uint32_t i = 1; i < self->run.keep_count; i++)
        FUZZ_CHECK(self->run.keep[i - 1] < self->run.keep[i], "kept step %u", i);
    FUZZ_CHECK(memchr(self->run.dir, '\0', FILE_PATH_BYTES), "run.dir");
    FUZZ_CHECK(self->micro_batch > 0 && self->accumulation > 0, "batch sizes of 0");
    FUZZ_CHECK(self->train_batch_size / self->micro_batch == self->accumulation &&
                   self->train_batch_size % self->micro_batch == 0,
               "%llu != %llu x %llu", (unsigned long long)self->train_batch_size,
               (unsigned long long)self->micro_batch, (unsigned long long)self->accumulation);
    FUZZ_CHECK(self->model.num_layers > 0 && self->model.hidden_size > 0 &&
                   self->model.num_heads > 0 && self->model.vocab_size > 0 &&
                   self->model.seq_length > 0,
               "a dimension of 0");
}

/* The schedule gives a rate that is not NaN and a momentum in [0, 1) at every step of the run. */
static void check_schedule(const job *self)
{
    const uint64_t steps[] = {1, 2, 3, 10, 999, 1000, 1001, self->run.steps / 2, self->run.steps};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        if (steps[i] == 0 || steps[i] > self->run.steps)
            continue;
        double rate = job_learning_rate(self, steps[i]), momentum = job_momentum(self, steps[i]);
        FUZZ_CHECK(!isnan(rate), "rate %g of step %llu", rate, (unsigned long long)steps[i]);
        FUZZ_CHECK(momentum >= 0 && momentum < 1, "momentum %g of step %llu", momentum,
                   (unsigned long long)steps[i]);
    }
    if (job_check_for_training(self) < 0)
        fuzz_check_refusal(ERR_CONFIG, ERR_CONFIG, ERR_CONFIG);
}

/* The text that a run keeps is the job: all of it but a request to begin anew. */
static void check_text(job *self)
{
    job *again;
    int rc = job_read("kept", self->text, NULL, 0, 1, &again);
    FUZZ_CHECK(rc == 0, "the job's own text is refused: %s\n%s", err_text(), self->text);
    FUZZ_CHECK(strcmp(self->text, again->text) == 0, "the text changes:\n%s\n%s", self->text,
               again->text);
    char *text = self->text, *other_text = again->text;
    uint64_t *keep = self->run.keep, *other_keep = again->run.keep;
    FUZZ_CHECK(self->run.keep_count == again->run.keep_count, "kept steps");
    FUZZ_CHECK(self->run.keep_count == 0 ||
                   memcmp(keep, other_keep, self->run.keep_count * sizeof *keep) == 0,
               "kept steps");
    self->run.fresh = false;
    FUZZ_CHECK(!again->run.fresh, "run.fresh is kept");
    self->text = again->text = NULL;
    self->run.keep = again->run.keep = NULL;
    FUZZ_CHECK(memcmp(self, again, sizeof *self) == 0, "the kept text is another job:\n%s", text);
    self->text = text;
    self->run.keep = keep;
    again->text = other_text;
    again->run.keep = other_keep;
    job_destroy(again);
}

/* A block of exactly the text and its zero, so that ASan sees what reads beyond. */
static char *copy_text(const uint8_t *data, size_t length)
{
    char *copy = malloc(length + 1);
    FUZZ_CHECK(copy, "no memory");
    if (length > 0)
        memcpy(copy, data, length);
    copy[length] = '\0';
    return copy;
}

/* Cuts the rest after the text into arguments. */
static uint32_t cut_sets(const uint8_t *data, size_t size, char *sets[SETS_MAX])
{
    uint32_t count = 0;
    while (size > 0 && count < SETS_MAX) {
        data++; /* the separator */
        size--;
        const uint8_t *next = size > 0 ? memchr(data, SEPARATOR, size) : NULL;
        size_t length = next ? (size_t)(next - data) : size;
        sets[count++] = copy_text(data, length);
        data += length;
        size -= length;
    }
    return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *sets[SETS_MAX];
    uint64_t live_bytes = fuzz_live_bytes();
    const uint8_t *end = size > 0 ? memchr(data, SEPARATOR, size) : NULL;
    size_t text_bytes = end ? (size_t)(end - data) : size;
    uint32_t set_count = cut_sets(data + text_bytes, size - text_bytes, sets);
    char *text = copy_text(data, text_bytes);
    job *self;
    int rc = job_read("job", text, (const char *const *)sets, set_count, 1, &self);
    if (rc < 0) {
        FUZZ_CHECK(!self, "a job beside an error");
        fuzz_check_refusal(rc, ERR_CONFIG, ERR_INPUT);
    } else {
        FUZZ_CHECK(rc == 0 && self && self->text, "result %d", rc);
        check_counts(self);
        check_schedule(self);
        check_text(self);
        job_destroy(self);
    }
    for (uint32_t i = 0; i < set_count; i++)
        free(sets[i]);
    free(text);
    FUZZ_CHECK(fuzz_live_bytes() == live_bytes, "memory is kept");
    return 0;
}
