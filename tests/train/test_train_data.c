/* Training on text with a tokenizer, JSON lines, conversations, arrays and several sources through
 * the whole engine: what is made is made once; a run that stops goes on to the same bits, whatever
 * its data; the loss is the mean over the targets that count, on one rank's micro-batches as on a
 * whole step's. */
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rng.h"
#include "infer/infer.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"

enum { SEED = 15, STEPS = 8, STOP = 3 };

static const fixture_model shape = {.family = "llama", .bf16 = false, .layers = 1, .hidden = 64};

static FILE *create(const char *name)
{
    FILE *file = fopen(fixture_path(NULL, name), "wb");
    assert_non_null(file);
    return file;
}

static void put_words(FILE *file, uint64_t stream, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        fprintf(file, "%c%s", (char)('a' + rng_below(SEED, stream, i, 26)), i % 7 == 6 ? " " : "");
}

static void write_lines(const char *name, uint64_t first, uint64_t count)
{
    FILE *file = create(name);
    for (uint64_t i = 0; i < count; i++) {
        fprintf(file, "{\"text\": \"");
        put_words(file, 100 + first + i, 5 + rng_below(SEED, 1, i, 60));
        fprintf(file, "\"}\n");
    }
    assert_int_equal(fclose(file), 0);
}

/* Answers of `length` letters to longer questions. */
static void write_chats(const char *name, uint64_t count, uint64_t length)
{
    FILE *file = create(name);
    for (uint64_t i = 0; i < count; i++) {
        fprintf(file, "{\"messages\": [{\"role\": \"user\", \"content\": \"");
        put_words(file, 5000 + i, 40);
        fprintf(file, "\"}");
        if (length > 0) {
            fprintf(file, ", {\"role\": \"assistant\", \"content\": \"");
            put_words(file, 9000 + i, length);
            fprintf(file, "\"}");
        }
        fprintf(file, "]}\n");
    }
    assert_int_equal(fclose(file), 0);
}

static void write_array(const char *name, uint64_t rows, uint64_t columns)
{
    char header[128];
    int length = snprintf(header, sizeof header,
                          "{'descr': '|u1', 'fortran_order': False, 'shape': (%d, %d), }\n",
                          (int)rows, (int)columns);
    FILE *file = create(name);
    fwrite("\x93NUMPY\x01", 1, 7, file);
    fputc(0, file);
    fputc(length, file);
    fputc(0, file);
    fputs(header, file);
    for (uint64_t i = 0; i < rows * columns; i++)
        fputc((int)rng_below(SEED, 3, i, 200), file);
    assert_int_equal(fclose(file), 0);
}

static fixture_sets make_sets(const char *data)
{
    fixture_sets sets = {.count = 0};
    fixture_set(&sets, "run.steps=%d", STEPS);
    fixture_set(&sets, "data=%s", data);
    return sets;
}

static void train(const char *name, const fixture_sets *sets, uint64_t stop, fixture_result *result)
{
    fixture_call call = {.name = name, .stop_after = stop};
    fixture_run(name, &shape, sets, &call, result);
}

static void train_good(const char *name, const fixture_sets *sets, fixture_result *result)
{
    train(name, sets, 0, result);
    if (result->rc < 0)
        fail_msg("%s", result->error);
}

/* Every kind of source, in every order: stopped, and gone on with. */
static void all_sources_resume_exactly(void **state)
{
    static fixture_result whole, result;
    static const char *const sources[] = {
        "\"train\": [\"%1$s/a.jsonl\"]",
        "\"train\": [\"%1$s/chat.jsonl\"], \"chat_template\": \"plain\"",
        "\"train\": [\"%1$s/a.npy\"]",
        "\"train\": [{\"path\": \"%1$s/a.jsonl\", \"weight\": 3}, {\"path\": [\"%1$s/b.jsonl\", "
        "\"%1$s/chat.jsonl\"], \"weight\": 1.5}], \"chat_template\": \"chatml\"",
    };
    static const char *const orders[] = {"windows", "documents", "none"};
    write_lines("a.jsonl", 0, 300);
    write_lines("b.jsonl", 1000, 20);
    write_chats("chat.jsonl", 30, 12);
    write_array("a.npy", 40, 50);
    double first[3];
    for (size_t s = 0; s < sizeof sources / sizeof sources[0]; s++) {
        for (size_t o = 0; o < 3; o++) {
            char data[2048], part[1900];
            snprintf(part, sizeof part, sources[s], fixture_dir);
            snprintf(data, sizeof data, "{%s, \"seed\": 4, \"shuffle\": \"%s\"}", part, orders[o]);
            fixture_sets sets = make_sets(data);
            train_good("whole", &sets, &whole);
            assert_int_equal(whole.step_count, STEPS);
            assert_true(whole.losses[0] > 4 && whole.losses[0] < 8);
            assert_true(whole.losses[STEPS - 1] < whole.losses[0]);
            first[o] = whole.losses[0];
            train("parts", &sets, STOP, &result);
            assert_int_equal(result.rc, ERR_STOPPED);
            train_good("parts", &sets, &result);
            assert_true(result.summary.was_resumed);
            fixture_assert_same(&whole, &result);
            fixture_remove("whole");
            fixture_remove("parts");
        }
        assert_true(first[0] != first[1] && first[1] != first[2] && first[0] != first[2]);
    }
}

/* The one file in run.dir/data: its path, or NULL. */
static const char *made_file(const char *name)
{
    static char path[1024];
    char command[1024];
    snprintf(command, sizeof command, "ls %s/data/*.tokens 2>/dev/null", fixture_path(name, NULL));
    FILE *list = popen(command, "r");
    assert_non_null(list);
    bool is_there = fgets(path, sizeof path, list) != NULL;
    assert_int_equal(fgetc(list), EOF); /* no other one */
    pclose(list);
    path[strcspn(path, "\n")] = '\0';
    return is_there ? path : NULL;
}

static void tokens_are_made_once(void **state)
{
    static fixture_result result, other;
    struct stat before, after;
    char data[2048];
    write_lines("a.jsonl", 0, 300);
    snprintf(data, sizeof data, "{\"train\": \"%1$s/a.jsonl\", \"valid\": \"%1$s/a.jsonl\"}",
             fixture_dir);
    fixture_sets sets = make_sets(data);
    train("once", &sets, STOP, &result);
    assert_int_equal(result.rc, ERR_STOPPED);
    assert_int_equal(stat(made_file("once"), &before), 0);
    train_good("once", &sets, &result);
    assert_int_equal(stat(made_file("once"), &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    /* One that is damaged or gone is made anew, to the same tokens. */
    train("twice", &sets, STOP, &other);
    assert_int_equal(truncate(made_file("twice"), 100), 0);
    train_good("twice", &sets, &other);
    fixture_assert_same(&result, &other);
    assert_true(result.summary.eval_given && result.summary.eval_loss == other.summary.eval_loss);
    fixture_remove("once");
    fixture_remove("twice");
}

/* Refused before a run directory is there. */
static void bad_data_makes_nothing(void **state)
{
    static fixture_result result;
    static const struct {
        const char *text, *word;
        int rc;
    } bad[] = {
        {"[1]\n", "begins with no JSON object", ERR_INPUT},
        {"{\"messages\": []}\n", "data.chat_template", ERR_CONFIG},
        {"", "is empty", ERR_INPUT},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char data[2048];
        FILE *file = create("bad.jsonl");
        fputs(bad[i].text, file);
        fclose(file);
        snprintf(data, sizeof data, "{\"train\": \"%s/bad.jsonl\"}", fixture_dir);
        fixture_sets sets = make_sets(data);
        train("bad", &sets, 0, &result);
        assert_int_equal(result.rc, bad[i].rc);
        if (!strstr(result.error, bad[i].word))
            fail_msg("no \"%s\" in: %s", bad[i].word, result.error);
        assert_false(fixture_exists(fixture_path("bad", NULL)));
    }
    /* A bad later line is found while tokens are made. Then only the directory is left. */
    FILE *file = create("bad.jsonl");
    for (int i = 0; i < 1000; i++)
        fputs(i == 700 ? "{\"text\": }\n" : "{\"text\": \"abc\"}\n", file);
    fclose(file);
    char data[2048];
    snprintf(data, sizeof data, "{\"train\": \"%s/bad.jsonl\"}", fixture_dir);
    fixture_sets sets = make_sets(data);
    train("bad", &sets, 0, &result);
    assert_int_equal(result.rc, ERR_INPUT);
    assert_non_null(strstr(result.error, "bad.jsonl:701: column"));
    assert_null(made_file("bad"));
    fixture_remove("bad");
}

static json_t *line_of(const char *name, size_t idx)
{
    json_t *lines = fixture_metrics(name), *line = json_incref(json_array_get(lines, idx));
    json_decref(lines);
    assert_non_null(line);
    return line;
}

/* The same windows as one micro-batch of four and as four of one. The step's mean is over the
 * targets of all windows, with any number of them in each. */
static void the_mean_is_over_the_step(void **state)
{
    static fixture_result whole, parts;
    char data[2048];
    write_chats("chat.jsonl", 60, 9);
    snprintf(data, sizeof data,
             "{\"train\": \"%1$s/chat.jsonl\", \"valid\": \"%1$s/chat.jsonl\", \"chat_template\": "
             "\"chatml\"}",
             fixture_dir);
    fixture_sets sets = make_sets(data), other = make_sets(data);
    fixture_set(&sets, "train_micro_batch_size_per_gpu=4");
    fixture_set(&sets, "gradient_accumulation_steps=1");
    fixture_set(&sets, "run.eval_batches=1");
    fixture_set(&other, "train_micro_batch_size_per_gpu=1");
    fixture_set(&other, "gradient_accumulation_steps=4");
    fixture_set(&other, "run.eval_batches=4");
    train_good("whole", &sets, &whole);
    train_good("parts", &other, &parts);
    for (uint64_t i = 0; i < STEPS; i++) {
        json_t *a = line_of("whole", i), *b = line_of("parts", i);
        json_int_t counted = json_integer_value(json_object_get(a, "counted_tokens"));
        assert_int_equal(json_integer_value(json_object_get(a, "tokens")), 4 * 32);
        assert_true(counted > 0 && counted < 4 * 32);
        assert_int_equal(json_integer_value(json_object_get(b, "counted_tokens")), counted);
        double norm = json_number_value(json_object_get(a, "grad_norm"));
        assert_true(fabs(norm - json_number_value(json_object_get(b, "grad_norm"))) < 1e-3 * norm);
        assert_true(fabs(whole.losses[i] - parts.losses[i]) < 1e-4);
        json_decref(a);
        json_decref(b);
    }
    assert_true(fabs(whole.summary.eval_loss - parts.summary.eval_loss) < 1e-4);
    fixture_remove("whole");
    fixture_remove("parts");
}

/* Where no target of a step counts there is no loss and no gradient, and the run goes on. */
static void steps_without_targets(void **state)
{
    static fixture_result result;
    char data[2048];
    static const char *const updates[] = {"after_backward", "in_next_forward"};
    write_chats("none.jsonl", 60, 0);
    write_chats("chat.jsonl", 2, 30);
    for (int u = 0; u < 2; u++) {
        snprintf(data, sizeof data,
                 "{\"train\": [\"%1$s/chat.jsonl\", \"%1$s/none.jsonl\"], \"chat_template\": "
                 "\"chatml\", \"shuffle\": \"none\"}",
                 fixture_dir);
        fixture_sets sets = make_sets(data);
        fixture_set(&sets, "schedule.update=%s", updates[u]);
        train_good("none", &sets, &result);
        assert_int_equal(result.step_count, STEPS);
        json_t *first = line_of("none", 0), *last = line_of("none", STEPS - 1);
        assert_true(json_integer_value(json_object_get(first, "counted_tokens")) > 0);
        assert_true(json_number_value(json_object_get(first, "loss")) > 4);
        assert_int_equal(json_integer_value(json_object_get(last, "counted_tokens")), 0);
        assert_true(json_is_null(json_object_get(last, "loss")));
        assert_true(json_number_value(json_object_get(last, "grad_norm")) == 0);
        assert_false(json_is_true(json_object_get(last, "skipped")));
        json_decref(first);
        json_decref(last);
        fixture_remove("none");
    }
}

/* Begun with a run that has a tokenizer: bytes are to be asked for, and then are what its
 * evaluation cuts into. */
static void bytes_are_asked_for(void **state)
{
    static fixture_result result;
    char data[1024], from[FIXTURE_PATH_BYTES + 16], path[FIXTURE_PATH_BYTES + 32];
    write_lines("own.jsonl", 0, 300);
    snprintf(data, sizeof data, "{\"train\": \"%s/own.jsonl\"}", fixture_dir);
    fixture_sets sets = make_sets(data);
    train_good("first", &sets, &result);
    snprintf(from, sizeof from, "%s/first", fixture_dir);
    snprintf(path, sizeof path, "%s/hf", from);
    assert_int_equal(mkdir(path, 0777), 0);
    FILE *file = create("first/hf/tokenizer.json");
    fprintf(file, "{}"); /* nothing opens it */
    assert_int_equal(fclose(file), 0);
    for (int is_given = 0; is_given < 2; is_given++) {
        if (is_given)
            fixture_set(&sets, "data.tokenizer=bytes");
        const fixture_call call = {.name = "second", .from = from};
        fixture_run("second", &shape, &sets, &call, &result);
        assert_int_equal(result.rc, is_given ? 0 : ERR_CONFIG);
        if (!is_given)
            assert_non_null(strstr(result.error, "first has a tokenizer: set data.tokenizer to"));
    }
    char run[FIXTURE_PATH_BYTES + 16];
    snprintf(run, sizeof run, "%s/second", fixture_dir);
    snprintf(path, sizeof path, "%s/second/hf/tokenizer.json", fixture_dir);
    assert_int_equal(access(path, F_OK), 0);
    snprintf(path, sizeof path, "%s/own.jsonl", fixture_dir);
    const char *files[] = {path};
    const struct infer_evaluate_options asked = {.path = run, .files = files, .file_count = 1};
    struct infer_evaluate_result out;
    assert_ok(infer_evaluate(&asked, &out));
    fixture_remove("second");
    fixture_remove("first");
    assert_int_equal(unlink(path), 0);
}

int main(void)
{
    printf("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_sources_resume_exactly), cmocka_unit_test(tokens_are_made_once),
        cmocka_unit_test(bad_data_makes_nothing),     cmocka_unit_test(the_mean_is_over_the_step),
        cmocka_unit_test(steps_without_targets),      cmocka_unit_test(bytes_are_asked_for),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
