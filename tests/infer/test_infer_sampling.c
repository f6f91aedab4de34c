/* Draws of tokens: greedy, top-k, top-p, temperature, ties, broken logits, and that frequencies
 * over many seeds are what the probabilities say; texts to stop at; pieces of UTF-8. */
#include <math.h>

#include "base/utf8.h"
#include "infer/infer_internal.h"
#include "tests/unit.h"

enum { VOCAB = 6, DRAWS = 40000 };

static uint64_t draw(const sampling *how, const float *logits, uint64_t vocab, uint64_t idx)
{
    static uint32_t order[1000];
    uint64_t token;
    assert_true(vocab <= 1000);
    assert_ok(sampling_draw(how, logits, vocab, idx, order, &token));
    assert_true(token < vocab);
    return token;
}

/* Compares counts of drawn tokens with probabilities by Pearson's sum. For VOCAB - 1 = 5 degrees of
 * freedom it is above 30 once in 70000 times. The draws are the same each time. */
static void check_frequencies(const sampling *how, const float *logits, const double *probability)
{
    uint64_t counts[VOCAB] = {0};
    double sum = 0;
    for (uint64_t i = 0; i < DRAWS; i++)
        counts[draw(how, logits, VOCAB, i)]++;
    for (int t = 0; t < VOCAB; t++) {
        double expected = probability[t] * DRAWS, off = (double)counts[t] - expected;
        if (probability[t] == 0)
            assert_int_equal(counts[t], 0);
        else
            sum += off * off / expected;
    }
    if (!(sum < 30))
        fail_msg("counts are off: %g", sum);
}

/* Probabilities 0.4, 0.3, 0.15, 0.1, 0.05 and, twice by its logit, none. */
static const double base[VOCAB] = {0.1, 0.4, 0.05, 0.3, 0.15, 0};

static void fill_logits(float logits[VOCAB])
{
    for (int t = 0; t < VOCAB; t++)
        logits[t] = base[t] > 0 ? (float)log(base[t]) + 3 : -INFINITY;
}

static void frequencies_are_the_probabilities(void **state)
{
    float logits[VOCAB];
    fill_logits(logits);
    const sampling plain = {.temperature = 1, .top_p = 1, .seed = 4};
    check_frequencies(&plain, logits, base);

    const sampling hot = {.temperature = 2, .top_p = 1, .seed = 4};
    double squared[VOCAB], total = 0;
    for (int t = 0; t < VOCAB; t++)
        total += sqrt(base[t]);
    for (int t = 0; t < VOCAB; t++)
        squared[t] = sqrt(base[t]) / total;
    check_frequencies(&hot, logits, squared);

    const sampling three = {.temperature = 1, .top_k = 3, .top_p = 1, .seed = 5};
    const double of_three[VOCAB] = {0, 0.4 / 0.85, 0, 0.3 / 0.85, 0.15 / 0.85, 0};
    check_frequencies(&three, logits, of_three);

    /* 0.4 + 0.3 is less than 0.75, so that the third is in; of three likeliest ones 0.75 of 0.85
     * are two. */
    const sampling part = {.temperature = 1, .top_p = 0.75, .seed = 6};
    check_frequencies(&part, logits, of_three);
    const sampling both = {.temperature = 1, .top_k = 3, .top_p = 0.75, .seed = 7};
    const double of_two[VOCAB] = {0, 0.4 / 0.7, 0, 0.3 / 0.7, 0, 0};
    check_frequencies(&both, logits, of_two);
}

static void draws_depend_on_seed_and_index_alone(void **state)
{
    float logits[VOCAB];
    fill_logits(logits);
    const sampling one = {.temperature = 1, .top_p = 1, .seed = 1}, two = {1, 0, 1, 2};
    int differing = 0;
    for (uint64_t i = 0; i < 100; i++) {
        assert_int_equal(draw(&one, logits, VOCAB, i), draw(&one, logits, VOCAB, i));
        differing += draw(&one, logits, VOCAB, i) != draw(&two, logits, VOCAB, i);
    }
    assert_true(differing > 20);
}

static void ties_go_to_the_lower_id(void **state)
{
    static float logits[1000];
    for (int i = 0; i < 1000; i++)
        logits[i] = (float)(i * 7 % 10);
    const sampling greedy = {.temperature = 0, .top_p = 1};
    assert_int_equal(draw(&greedy, logits, 1000, 0), 7); /* 49 % 10 = 9 comes first at 7 */
    /* 100 tokens have 9: of the first 5 of these every draw is one. */
    const sampling five = {.temperature = 1, .top_k = 5, .top_p = 1, .seed = 3};
    uint64_t seen = 0;
    for (uint64_t i = 0; i < 500; i++) {
        uint64_t token = draw(&five, logits, 1000, i);
        assert_true(token % 10 == 7 && token <= 47);
        seen |= (uint64_t)1 << token / 10;
    }
    assert_int_equal(seen, 31);
    const sampling one = {.temperature = 5, .top_k = 1, .top_p = 1};
    assert_int_equal(draw(&one, logits, 1000, 9), 7);
    const sampling tiny = {.temperature = 5, .top_p = 1e-9};
    assert_int_equal(draw(&tiny, logits, 1000, 9), 7);
}

static void broken_logits_are_refused(void **state)
{
    uint32_t order[3];
    uint64_t token;
    const sampling how = {.temperature = 1, .top_p = 1};
    const float nan_in[3] = {0, NAN, 1}, none[3] = {-INFINITY, -INFINITY, -INFINITY};
    const float infinite[3] = {0, INFINITY, 1};
    assert_error(sampling_draw(&how, nan_in, 3, 0, order, &token), ERR_DIVERGED, "token 1");
    assert_int_equal(sampling_draw(&how, none, 3, 0, order, &token), ERR_DIVERGED);
    assert_int_equal(sampling_draw(&how, infinite, 3, 0, order, &token), ERR_DIVERGED);
}

/* ---- texts to stop at ---- */

static char shown[64];
static size_t shown_bytes;

static int collect(void *user, const char *bytes, size_t count)
{
    assert_true(shown_bytes + count < sizeof shown);
    memcpy(shown + shown_bytes, bytes, count);
    shown_bytes += count;
    shown[shown_bytes] = '\0';
    return 0;
}

/* The text in pieces of every length. */
static void check_stop(const char *stop, const char *text, const char *expected, bool is_met)
{
    for (size_t piece = 1; piece <= strlen(text); piece++) {
        stop_text of;
        shown_bytes = 0;
        shown[0] = '\0';
        assert_ok(stop_text_init(&of, stop, collect, NULL));
        for (size_t at = 0; at < strlen(text); at += piece) {
            size_t left = strlen(text) - at;
            assert_ok(stop_text_add(&of, text + at, left < piece ? left : piece));
        }
        assert_ok(stop_text_end(&of));
        assert_string_equal(shown, expected);
        assert_int_equal(of.is_met, is_met);
    }
}

static void texts_end_before_the_stop(void **state)
{
    check_stop(NULL, "any text", "any text", false);
    check_stop("", "any text", "any text", false);
    check_stop("END", "so ENEND and more", "so EN", true);
    check_stop("END", "so EN", "so EN", false);
    check_stop("aab", "aaaab", "aa", true);
    check_stop("aba", "ababa", "", true);
    check_stop("abab", "abaabab.", "aba", true);
    check_stop("x", "x", "", true);
    static char long_stop[STOP_TEXT_MAX + 2];
    memset(long_stop, 'a', sizeof long_stop - 1);
    stop_text of;
    assert_int_equal(stop_text_init(&of, long_stop, collect, NULL), ERR_USAGE);
}

/* ---- UTF-8 ---- */

static void check_utf8(const char *bytes, size_t count, const char *expected)
{
    for (size_t piece = 1; piece <= count; piece++) {
        utf8_stream stream = {.held_bytes = 0};
        char out[256];
        size_t written = 0;
        for (size_t at = 0; at < count; at += piece) {
            size_t taken = count - at < piece ? count - at : piece;
            size_t now = utf8_stream_add(&stream, bytes + at, taken, out + written);
            assert_true(now <= utf8_stream_room(taken));
            written += now;
        }
        written += utf8_stream_end(&stream, out + written);
        out[written] = '\0';
        assert_string_equal(out, expected);
    }
}

#define BAD "\xef\xbf\xbd" /* U+FFFD */

static void pieces_are_valid_when_shown(void **state)
{
    static const struct {
        const char *bytes, *expected;
    } cases[] = {
        {"plain", "plain"},
        {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80.", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80."},
        {"a\xffz", "a" BAD "z"},
        {"\xe2\x82", BAD},                     /* the end within a sequence */
        {"\xe2\x82z", BAD "z"},                /* cut short: one replacement for what was begun */
        {"\xc0\xaf", BAD BAD},                 /* longer than needed */
        {"\xe0\x80\xaf", BAD BAD BAD},         /* longer than needed */
        {"\xed\xa0\x80", BAD BAD BAD},         /* a surrogate */
        {"\xf4\x90\x80\x80", BAD BAD BAD BAD}, /* above U+10FFFF */
        {"\xf0\x9f\xc3\xa9", BAD "\xc3\xa9"},  /* a sequence begins within another */
        {"\x80\x80", BAD BAD},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_utf8(cases[i].bytes, strlen(cases[i].bytes), cases[i].expected);
    utf8_stream stream = {.held_bytes = 0};
    char out[32];
    assert_int_equal(utf8_stream_add(&stream, "\xe2\x82", 2, out), 0); /* nothing is shown yet */
    assert_int_equal(utf8_stream_add(&stream, "\xac", 1, out), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frequencies_are_the_probabilities),
        cmocka_unit_test(draws_depend_on_seed_and_index_alone),
        cmocka_unit_test(ties_go_to_the_lower_id),
        cmocka_unit_test(broken_logits_are_refused),
        cmocka_unit_test(texts_end_before_the_stop),
        cmocka_unit_test(pieces_are_valid_when_shown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
