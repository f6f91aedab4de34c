/* Broken job files: random changes to right ones must end in a job or in ERR_CONFIG with a text,
 * never in a crash, a leak or a read beyond the end (run it with the sanitizers). SLUICE_TEST_SEED
 * sets the seed. */
#include "tests/config/test_config_common.h"

#include "base/rng.h"

enum { MUTATIONS = 2000, EDITS_MAX = 4, TEXT_BYTES_MAX = 8192 };

static uint64_t seed;

/* Pieces that mean something to the reader. */
static const char *const pieces[] = {
    "\"",   "\\",   "{",        "}",           "[",    "]",        ",",       ":",         "//",
    "/*",   "*/",   "#",        "\n",          "null", "\"auto\"", "true",    "-1",        "1e999",
    "1e18", "0",    "5e8",      "99999999999", "\xff", "\xc3",     "\\u0000", "\"type\":", "\"*\"",
    ".",    "nvme", "\"none\"", "{}",          "[]",   "\"\"",
};

static void mutate(char *text, size_t *bytes, uint64_t round)
{
    uint64_t edits = 1 + rng_below(seed, round, 0, EDITS_MAX);
    for (uint64_t i = 0; i < edits; i++) {
        uint64_t draw = 8 * (i + 1);
        size_t at = (size_t)rng_below(seed, round, draw, *bytes + 1);
        size_t length = (size_t)rng_below(seed, round, draw + 1, 24);
        const char *piece =
            pieces[rng_below(seed, round, draw + 2, sizeof pieces / sizeof pieces[0])];
        switch (rng_below(seed, round, draw + 3, 4)) {
        case 0: /* take out */
            if (length > *bytes - at)
                length = *bytes - at;
            memmove(text + at, text + at + length, *bytes - at - length);
            *bytes -= length;
            break;
        case 1: /* put in */
            length = strlen(piece);
            if (*bytes + length > TEXT_BYTES_MAX)
                break;
            memmove(text + at + length, text + at, *bytes - at);
            memcpy(text + at, piece, length);
            *bytes += length;
            break;
        case 2: /* write over */
            length = strlen(piece);
            if (at + length <= *bytes)
                memcpy(text + at, piece, length);
            break;
        default: /* flip a bit */
            if (at < *bytes)
                text[at] = (char)(text[at] ^ (1 << rng_below(seed, round, draw + 4, 8)));
            break;
        }
    }
}

static size_t read_example(const char *name, char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/configs/%s", SLUICE_SOURCE_DIR, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t bytes = fread(text, 1, TEXT_BYTES_MAX, file);
    assert_true(bytes > 0 && bytes < TEXT_BYTES_MAX);
    assert_int_equal(fclose(file), 0);
    return bytes;
}

static void broken_files(void **state)
{
    static const char *const examples[] = {"jobs/gpt2-1.5b-nvme.json",
                                           "jobs/deepspeed-zero3-nvme.json",
                                           "jobs/gpt2-124m-fp16.json", "jobs/quickstart.json"};
    uint32_t accepted = 0;
    for (uint64_t round = 0; round < MUTATIONS; round++) {
        char text[TEXT_BYTES_MAX];
        size_t bytes = read_example(examples[round % 4], text);
        mutate(text, &bytes, round);
        write_job(text, bytes);
        job *self;
        int rc = job_read(test_file, NULL, NULL, 0, 1, &self);
        if (rc == 0) {
            accepted++;
            char *again = mem_string(self->text, "test text");
            assert_non_null(again);
            job *second = read_good(again, NULL);
            assert_jobs_equal(self, second);
            job_destroy(second);
            mem_free(again);
        } else {
            if (rc != ERR_CONFIG || self || err_text()[0] == '\0')
                fail_msg("round %llu: %s: %s", (unsigned long long)round, err_name(rc), err_text());
        }
        job_destroy(self);
    }
    print_message("seed %llu: %u of %d accepted\n", (unsigned long long)seed, accepted, MUTATIONS);
    assert_true(accepted > 0 && accepted < MUTATIONS); /* both ways were taken */
}

/* The same for --set. */
static void broken_set(void **state)
{
    static const char *const sets[] = {
        "tiers.nvme.0.path=/x",
        "optimizer.params.betas=[0.9, 0.99]",
        "tiers.place.rules=[{\"units\": \"0-3\"}]",
        "run.steps=5",
        "device.cores=0-7,16",
        "zero_optimization=true",
        "fp16={\"enabled\": true, \"loss_scale_window\": 500, \"min_loss_scale\": 1}",
        "scheduler={\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": 1e-4, "
        "\"cycle_max_lr\": 1e-3, \"cycle_first_step_size\": 10}}",
        "compression_training={\"a\": {\"b\": {\"enabled\": false}}}",
    };
    enum { SET_COUNT = sizeof sets / sizeof sets[0] };
    write_job(quoted(SMALL_JOB), strlen(SMALL_JOB));
    for (uint64_t round = 0; round < MUTATIONS; round++) {
        char text[TEXT_BYTES_MAX + 1];
        size_t bytes = strlen(sets[round % SET_COUNT]);
        memcpy(text, sets[round % SET_COUNT], bytes);
        mutate(text, &bytes, MUTATIONS + round);
        text[bytes] = '\0';
        const char *set = text;
        job *self;
        int rc = job_read(test_file, NULL, &set, 1, 1, &self);
        if (rc != 0 && (rc != ERR_CONFIG || self || err_text()[0] == '\0'))
            fail_msg("round %llu, --set %s: %s", (unsigned long long)round, text, err_name(rc));
        job_destroy(self);
    }
}

int main(void)
{
    seed = unit_seed(20240611);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(broken_files),
        cmocka_unit_test(broken_set),
    };
    return cmocka_run_group_tests(tests, test_setup, test_teardown);
}
