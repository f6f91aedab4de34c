/* Evaluation of files: which tokens windows count, the arithmetic of its results by hand, and that
 * a run's own losses come out of it, with overlapping windows and micro-batches of any size. */
#include <math.h>

#include "infer/infer.h"
#include "infer/infer_internal.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"

enum { TEXT_MOST = 64 };

/* Each token but the first once, in order, with the context that was asked for. */
static void check_windows(const eval_text *text)
{
    uint64_t next = 1, count = eval_window_count(text);
    for (uint64_t w = 0; w < count; w++) {
        eval_window at = eval_window_at(text, w);
        assert_true(at.input_count >= 1 && at.input_count <= text->window);
        assert_true(at.begin + at.input_count + 1 <= text->token_count);
        assert_true(at.first_counted < at.input_count);
        assert_int_equal(at.begin + at.first_counted + 1, next);
        if (w > 0)
            assert_true(at.first_counted >= text->window - text->stride);
        next = at.begin + at.input_count + 1;
    }
    assert_int_equal(next, text->token_count);
}

static void windows_count_each_token_once(void **state)
{
    for (uint64_t n = 2; n <= TEXT_MOST; n++)
        for (uint64_t window = 1; window <= TEXT_MOST; window++)
            for (uint64_t stride = 1; stride <= window; stride++) {
                const eval_text text = {n, window, stride};
                check_windows(&text);
            }
    /* By hand: 10 tokens, windows of 4, 2 apart: 1-4, then 5-6, 7-8 and 9. */
    const eval_text text = {10, 4, 2};
    assert_int_equal(eval_window_count(&text), 4);
    eval_window last = eval_window_at(&text, 3);
    assert_int_equal(last.begin, 6);
    assert_int_equal(last.input_count, 3);
    assert_int_equal(last.first_counted, 2);
}

static void results_are_as_by_hand(void **state)
{
    assert_true(fabs(eval_perplexity(2) - 7.38905609893065) < 1e-12);
    /* 8 tokens of ln 256 nats, a byte each, are 8 bits a byte. */
    assert_true(fabs(eval_bits_per_byte(8 * log(256), 8) - 8) < 1e-12);
    assert_true(fabs(eval_bits_per_byte(4 * log(256), 16) - 2) < 1e-12);
}

static void evaluate(const char *run, uint64_t stride, uint64_t batches, const char *set,
                     struct infer_evaluate_result *out)
{
    const char *files[] = {fixture_path("valid.txt", NULL)};
    const char *sets[] = {set};
    struct infer_evaluate_options options = {.path = fixture_path(run, NULL),
                                             .files = files,
                                             .file_count = 1,
                                             .set = sets,
                                             .set_count = set ? 1 : 0,
                                             .stride = stride,
                                             .batches = batches};
    if (infer_evaluate(&options, out) < 0)
        fail_msg("evaluate: %s", err_text());
}

/* Trains "run" for 4 steps. Returns the held-out loss of its own evaluation of 6 micro-batches, and
 * in *counted, if that is not NULL, how many of their tokens count. */
static double train_and_evaluate(const fixture_model *shape, uint64_t *counted)
{
    static fixture_sets sets;
    static fixture_result trained;
    memset(&sets, 0, sizeof sets);
    fixture_set(&sets, "run.steps=4");
    fixture_set(&sets, "run.eval_every=4");
    fixture_set(&sets, "run.eval_batches=6");
    fixture_train_good("run", shape, &sets, &trained);
    json_t *lines = fixture_metrics("run");
    const json_t *line = json_array_get(lines, json_array_size(lines) - 1);
    double held = json_number_value(json_object_get(line, "valid_loss"));
    if (counted)
        *counted = (uint64_t)json_integer_value(json_object_get(line, "counted_tokens"));
    json_decref(lines);
    return held;
}

/* The held-out loss of a run's own evaluation, and of the same windows. */
static void runs_give_their_own_losses(void **state)
{
    struct infer_evaluate_result whole, same, overlapping, other;
    const fixture_model shape = {.family = "llama", .layers = 2, .hidden = 64};
    double held = train_and_evaluate(&shape, NULL);

    evaluate("run", 0, 6, NULL, &same); /* 6 micro-batches of 2 windows of 32 tokens */
    assert_int_equal(same.tokens, 6 * 2 * 32);
    assert_int_equal(same.text_bytes, same.tokens);
    assert_true(fabs(same.loss - held) < 1e-6);
    assert_true(fabs(same.bits_per_byte - same.loss / log(2)) < 1e-9);

    evaluate("run", 0, 0, NULL, &whole);
    assert_int_equal(whole.tokens, FIXTURE_TRAIN_BYTES / 4 - 1);
    assert_int_equal(whole.context, 32);
    assert_true(fabs(whole.perplexity - exp(whole.loss)) < 1e-9);

    /* Other micro-batches and other budgets change nothing but rounding. */
    evaluate("run", 0, 0, "train_micro_batch_size_per_gpu=5", &other);
    assert_int_equal(other.tokens, whole.tokens);
    assert_true(fabs(other.loss - whole.loss) < 1e-5);

    evaluate("run", 8, 0, NULL, &overlapping);
    assert_int_equal(overlapping.tokens, whole.tokens);
    assert_true(overlapping.windows > 3 * whole.windows);
    assert_true(fabs(overlapping.loss - whole.loss) < 0.2);
    fixture_remove("run");
}

/* Documents that share a window have the losses that each has alone, and each token but a
 * document's first is counted. Joined they are one text. */
static void documents_are_as_if_alone(void **state)
{
    enum { DOCUMENTS = 6, LENGTH = 16 }; /* two to a window */
    static fixture_sets sets;
    static fixture_result trained;
    const fixture_model shape = {.family = "llama", .layers = 2, .hidden = 64};
    const char *joined = "data.documents=joined";
    memset(&sets, 0, sizeof sets);
    fixture_set(&sets, "run.steps=4");
    fixture_train_good("run", &shape, &sets, &trained);
    struct infer_evaluate_result one, all, text;
    double nats = 0;
    const char *file;
    char run[2 * FIXTURE_PATH_BYTES];
    snprintf(run, sizeof run, "%s", fixture_path("run", NULL));
    struct infer_evaluate_options asked = {.path = run, .files = &file, .file_count = 1};
    for (uint64_t d = 0; d < DOCUMENTS; d++) {
        file = fixture_rows("one.npy", d * LENGTH, 1, LENGTH);
        assert_ok(infer_evaluate(&asked, &one));
        assert_int_equal(one.tokens, LENGTH - 1);
        nats += one.nats;
    }
    file = fixture_rows("all.npy", 0, DOCUMENTS, LENGTH);
    assert_ok(infer_evaluate(&asked, &all));
    assert_int_equal(all.tokens, DOCUMENTS * (LENGTH - 1));
    assert_true(fabs(all.nats - nats) < 1e-3);
    asked.set = &joined;
    asked.set_count = 1;
    assert_ok(infer_evaluate(&asked, &text));
    assert_int_equal(text.tokens, DOCUMENTS * LENGTH - 1);
    assert_true(fabs(text.loss - all.loss) > 1e-3);
    fixture_remove("run");
}

/* A model that fills in masked tokens: an evaluation masks what the run's own masked, however
 * windows are grouped. Overlapping windows count what others leave. It cannot continue a text. */
static void masked_tokens(void **state)
{
    struct infer_evaluate_result same, again, other, overlapping;
    const fixture_model shape = {.family = "bert", .layers = 2, .hidden = 64};
    uint64_t counted;
    double held = train_and_evaluate(&shape, &counted);

    evaluate("run", 0, 6, NULL, &same);
    assert_int_equal(same.tokens, counted);
    assert_true(counted > 20 && counted < 100); /* 15 % of 6 x 2 x 32 are 58 */
    assert_int_equal(same.text_bytes, 0);
    assert_true(fabs(same.loss - held) < 1e-6);
    evaluate("run", 0, 4, "train_micro_batch_size_per_gpu=3", &again);
    assert_int_equal(again.tokens, counted);
    assert_true(fabs(again.loss - same.loss) < 1e-5);
    evaluate("run", 0, 6, "data.masked=0.5", &other);
    assert_true(other.tokens > 2 * counted);
    evaluate("run", 8, 0, NULL, &overlapping);
    double share = (double)overlapping.tokens / (FIXTURE_TRAIN_BYTES / 4.0);
    assert_true(share > 0.12 && share < 0.18);

    struct infer_generate_options text = {
        .run_dir = fixture_path("run", NULL), .prompt = "a", .prompt_bytes = 1, .token_count = 1};
    assert_error(infer_generate(&text), ERR_USAGE, "cannot continue a text");
    fixture_remove("run");
}

/* The last window of a text may be short. Attention to both sides must not see the padding behind
 * it: its loss is that of the same tokens in a window that they fill. */
static void padding_is_not_seen(void **state)
{
    enum { CONTEXT = 32, SHORT = 8 };
    static const struct {
        uint64_t begin, count, context;
    } texts[] = {{0, CONTEXT + SHORT + 1, CONTEXT},
                 {0, CONTEXT + 1, CONTEXT},
                 {CONTEXT - SHORT, 2 * SHORT + 1, SHORT},
                 {CONTEXT - SHORT, SHORT + 1, SHORT}};
    static fixture_sets sets;
    static fixture_result trained;
    const fixture_model shape = {.family = "bert", .layers = 2, .hidden = 64};
    const char *const set[] = {"data.documents=joined", "data.masked=0.5"};
    struct infer_evaluate_result result[4];
    char run[2 * FIXTURE_PATH_BYTES];
    memset(&sets, 0, sizeof sets);
    fixture_set(&sets, "run.steps=4");
    fixture_train_good("run", &shape, &sets, &trained);
    snprintf(run, sizeof run, "%s", fixture_path("run", NULL));
    for (int i = 0; i < 4; i++) {
        const char *file = fixture_rows("text.npy", texts[i].begin, 1, texts[i].count);
        struct infer_evaluate_options asked = {.path = run,
                                               .files = &file,
                                               .file_count = 1,
                                               .context = texts[i].context,
                                               .set = set,
                                               .set_count = 2};
        assert_ok(infer_evaluate(&asked, &result[i]));
        assert_int_equal(result[i].windows, i % 2 ? 1 : 2);
    }
    uint64_t counted = result[0].tokens - result[1].tokens;
    assert_true(counted > 0 && counted == result[2].tokens - result[3].tokens);
    double padded = result[0].nats - result[1].nats, filled = result[2].nats - result[3].nats;
    assert_true(fabs(padded - filled) < 1e-4);
    fixture_remove("run");
}

static void expect_refusal(struct infer_evaluate_options *options, int code, const char *word)
{
    struct infer_evaluate_result result;
    assert_int_equal(infer_evaluate(options, &result), code);
    if (!strstr(err_text(), word))
        fail_msg("\"%s\" does not say \"%s\"", err_text(), word);
}

static void what_cannot_be_evaluated_is_refused(void **state)
{
    static fixture_sets sets;
    static fixture_result trained;
    const fixture_model shape = {.family = "gpt2", .layers = 1, .hidden = 32};
    memset(&sets, 0, sizeof sets);
    fixture_set(&sets, "run.steps=1");
    fixture_train_good("run", &shape, &sets, &trained);
    const char *file = fixture_path("valid.txt", NULL), *set = "tiers.device.budget=4096";
    struct infer_evaluate_options asked = {
        .path = fixture_path(NULL, NULL), .files = &file, .file_count = 1};
    expect_refusal(&asked, ERR_INPUT, "is no run directory");
    asked.path = fixture_path("run", NULL);
    asked.context = 33;
    expect_refusal(&asked, ERR_USAGE, "a context of 33 tokens was asked for, but the model has 32");
    asked.context = 8;
    asked.stride = 9;
    expect_refusal(&asked, ERR_USAGE, "stride of 9 is longer than the context of 8");
    asked.stride = 0;
    asked.set = &set;
    asked.set_count = 1;
    expect_refusal(&asked, ERR_NO_FIT, "needs");
    set = "model.num_layers=2";
    expect_refusal(&asked, ERR_CONFIG, "cannot be set anew");
    set = "state.params=nf4"; /* the run's params would be read as codes */
    expect_refusal(&asked, ERR_CONFIG, "keeps its params as working");
    asked.set_count = 0;
    file = "/nonexistent/text";
    expect_refusal(&asked, ERR_INPUT, "/nonexistent/text");
    fixture_remove("run");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_count_each_token_once),
        cmocka_unit_test(results_are_as_by_hand),
        cmocka_unit_test(runs_give_their_own_losses),
        cmocka_unit_test(documents_are_as_if_alone),
        cmocka_unit_test(masked_tokens),
        cmocka_unit_test(padding_is_not_seen),
        cmocka_unit_test(what_cannot_be_evaluated_is_refused),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
