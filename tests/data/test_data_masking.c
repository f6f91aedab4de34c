/* Masked tokens: which are chosen and what becomes of them; what it depends on; the mask token and
 * the special tokens of a tokenizer; windows of a mixture. */
#include "base/error.h"
#include "base/rng.h"
#include "data/mixture.h"
#include "tests/directory.h"

enum { SEED = 29, VOCAB = 500, MASK = 3, COUNT = 200000, LENGTH = 64 };

static masking start(double share)
{
    masking self;
    assert_ok(masking_init(&self, share, VOCAB, MASK, NULL));
    return self;
}

static void fill(int32_t *tokens)
{
    for (uint64_t i = 0; i < COUNT; i++)
        tokens[i] = (int32_t)(10 + rng_below(SEED, 1, i, VOCAB - 10));
}

static void shares_are_as_published(void **state)
{
    static int32_t tokens[COUNT], inputs[COUNT], targets[COUNT];
    masking self = start(0.15);
    double chosen = 0, masked = 0, changed = 0, kept = 0;
    fill(tokens);
    memcpy(inputs, tokens, sizeof inputs);
    masking_apply(&self, SEED, 5, COUNT, inputs, targets);
    for (uint64_t i = 0; i < COUNT; i++) {
        if (targets[i] < 0) {
            assert_int_equal(inputs[i], tokens[i]);
            continue;
        }
        assert_int_equal(targets[i], tokens[i]);
        assert_true(inputs[i] >= 0 && inputs[i] < VOCAB);
        chosen++;
        masked += inputs[i] == MASK;
        kept += inputs[i] == tokens[i];
        changed += inputs[i] != MASK && inputs[i] != tokens[i];
    }
    /* five standard deviations */
    assert_true(chosen > 0.146 * COUNT && chosen < 0.154 * COUNT);
    assert_true(masked > 0.788 * chosen && masked < 0.812 * chosen);
    assert_true(changed > 0.091 * chosen && changed < 0.109 * chosen);
    assert_true(kept > 0.091 * chosen && kept < 0.109 * chosen);
}

static void all_can_be_chosen_but_special_tokens(void **state)
{
    static int32_t inputs[COUNT], targets[COUNT];
    masking self = start(1);
    self.special_count = 2;
    self.specials[0] = 20;
    self.specials[1] = 33;
    fill(inputs);
    inputs[0] = MASK;
    masking_apply(&self, SEED, 5, COUNT, inputs, targets);
    assert_int_equal(inputs[0], MASK);
    assert_int_equal(targets[0], -1);
    static int32_t tokens[COUNT];
    fill(tokens);
    for (uint64_t i = 1; i < COUNT; i++) {
        bool is_special = tokens[i] == 20 || tokens[i] == 33;
        assert_int_equal(targets[i], is_special ? -1 : tokens[i]);
        assert_true(!is_special || inputs[i] == tokens[i]);
    }
}

static void seed_and_window_decide(void **state)
{
    static int32_t inputs[5][COUNT], targets[5][COUNT];
    const struct {
        uint64_t seed, window, count;
    } cases[5] = {{1, 7, COUNT}, {1, 7, COUNT}, {2, 7, COUNT}, {1, 8, COUNT}, {1, 7, COUNT / 3}};
    masking self = start(0.15);
    for (int i = 0; i < 5; i++) {
        fill(inputs[i]);
        masking_apply(&self, cases[i].seed, cases[i].window, cases[i].count, inputs[i], targets[i]);
    }
    assert_memory_equal(inputs[0], inputs[1], sizeof inputs[0]);
    assert_memory_equal(targets[0], targets[1], sizeof targets[0]);
    assert_memory_not_equal(targets[0], targets[2], sizeof targets[0]);
    assert_memory_not_equal(targets[0], targets[3], sizeof targets[0]);
    /* the length of the window changes nothing before its end */
    assert_memory_equal(targets[0], targets[4], COUNT / 3 * sizeof targets[0][0]);
}

static void the_tokenizer_knows_the_tokens(void **state)
{
    static const char json[] =
        "{\"version\": \"1.0\", \"added_tokens\": ["
        "{\"id\": 0, \"content\": \"[PAD]\", \"special\": true},"
        "{\"id\": 1, \"content\": \"[CLS]\", \"special\": true},"
        "{\"id\": 2, \"content\": \"[SEP]\", \"special\": true},"
        "{\"id\": 4, \"content\": \"[MASK]\", \"special\": true}],"
        "\"normalizer\": {\"type\": \"BertNormalizer\", \"clean_text\": true, "
        "\"handle_chinese_chars\": true, \"strip_accents\": null, \"lowercase\": true},"
        "\"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"},"
        "\"model\": {\"type\": \"WordPiece\", \"unk_token\": \"[UNK]\", "
        "\"continuing_subword_prefix\": \"##\", \"max_input_chars_per_word\": 100, \"vocab\": "
        "{\"[PAD]\": 0, \"[CLS]\": 1, \"[SEP]\": 2, \"[UNK]\": 3, \"[MASK]\": 4, \"a\": 5, "
        "\"##b\": 6}}}";
    tokenizer *words;
    masking self;
    assert_ok(tokenizer_open(write_text("tokenizer.json", json, strlen(json)), &words));
    assert_ok(masking_init(&self, 0.15, 7, -1, words));
    assert_int_equal(self.mask_token, 4);
    assert_int_equal(self.special_count, 4);
    const int32_t specials[4] = {0, 1, 2, 4};
    assert_memory_equal(self.specials, specials, sizeof specials);
    /* the job's own token comes first */
    assert_ok(masking_init(&self, 0.15, 7, 5, words));
    assert_int_equal(self.mask_token, 5);
    assert_error(masking_init(&self, 0.15, 4, -1, words), ERR_CONFIG, "model.vocab_size is 4");
    assert_error(masking_init(&self, 0.15, 7, -1, NULL), ERR_CONFIG, "data.mask_token");
    tokenizer_close(words);
}

/* Windows are those of the mixture without masks, masked by its seed and their number; in order,
 * by a seed that is always the same. */
static void a_mixture_masks_its_windows(void **state)
{
    char text[1000];
    int32_t plain[LENGTH], next[LENGTH], inputs[LENGTH], targets[LENGTH], wanted[LENGTH];
    mixture *of[2];
    const masking self = start(0.4);
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + rng_below(SEED, 2, i, 26));
    text[sizeof text - 1] = '\0';
    const char *path = write_text("text", text, strlen(text));
    for (int i = 0; i < 2; i++) {
        corpus *source;
        const double weight = 1;
        assert_ok(corpus_open_as(&path, 1, DATA_TEXT, 0, &source));
        assert_ok(mixture_create(&source, &weight, 1, SEED, LENGTH, SHUFFLE_WINDOWS,
                                 DOCUMENTS_SEPARATE, &of[i]));
    }
    mixture_mask(of[1], &self);
    assert_false(mixture_has_uncounted(of[0]));
    assert_true(mixture_has_uncounted(of[1]));
    for (uint64_t idx = 0; idx < 40; idx++)
        for (int in_order = 0; in_order < 2; in_order++) {
            int (*window)(mixture *, uint64_t, int32_t *, int32_t *, int32_t *) =
                in_order ? mixture_window_in_order : mixture_window;
            assert_int_equal(window(of[0], idx, plain, next, NULL), 0);
            assert_int_equal(window(of[1], idx, inputs, targets, NULL), 0);
            masking_apply(&self, in_order ? MASKING_FIXED_SEED : SEED, idx, LENGTH, plain, wanted);
            assert_memory_equal(inputs, plain, sizeof plain);
            assert_memory_equal(targets, wanted, sizeof wanted);
        }
    mixture_destroy(of[0]);
    mixture_destroy(of[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_are_as_published),
        cmocka_unit_test(all_can_be_chosen_but_special_tokens),
        cmocka_unit_test(seed_and_window_decide),
        cmocka_unit_test(the_tokenizer_knows_the_tokens),
        cmocka_unit_test(a_mixture_masks_its_windows),
    };
    printf("seed %d\n", SEED);
    return cmocka_run_group_tests(tests, directory_make, directory_remove);
}
