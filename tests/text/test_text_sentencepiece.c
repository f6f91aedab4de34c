/* SentencePiece models: ids are those of its library, tokens give the text back, what is put around
 * a text, what is refused. The models are trained here. Without the library: *.model is refused
 * with what to install, and the rest is skipped. Against the Python package, on much text:
 * reference/check_sentencepiece.py. */
#include <unistd.h>

#include "tests/directory.h"
#include "text/tokenizer.h"

enum { SKIPPED = 77 };

#ifdef SLUICE_HAS_SENTENCEPIECE

#include "tests/text/sentencepiece_model.h"

enum { IDS_MAX = 4096, TEXT_MAX = 8192 };

static const char *const kinds[] = {"unigram", "bpe"};

static void train_models(void)
{
    static const char *const words[] = {"river", "stone", "the",  "of",    "sluice", "Gate",
                                        "water", "level", "öl",   "naïve", "日本",   "12",
                                        "runs",  "into",  "mill", "and",   "wheel",  "."};
    char arguments[1024];
    FILE *file = fopen(in_directory("text.txt"), "w");
    assert_non_null(file);
    uint32_t random = 1;
    for (int line = 0; line < 400; line++) {
        for (int i = 0; i < 9; i++) {
            random = random * 1664525 + 1013904223;
            fprintf(file, "%s%s", i ? " " : "",
                    words[(random >> 16) % (sizeof words / sizeof *words)]);
        }
        fprintf(file, "\n");
    }
    assert_int_equal(fclose(file), 0);
    for (size_t i = 0; i < 2; i++) {
        snprintf(arguments, sizeof arguments,
                 "--input=%s/text.txt --model_prefix=%s/%s --model_type=%s --vocab_size=%d "
                 "--byte_fallback=%s --hard_vocab_limit=false --user_defined_symbols=<sep> "
                 "--num_threads=1 --minloglevel=4",
                 directory, directory, kinds[i], kinds[i], i ? 120 : 360, i ? "false" : "true");
        assert_int_equal(sentencepiece_train(arguments), 0);
    }
}

static tokenizer *open_model(const char *name)
{
    tokenizer *self;
    char file[64];
    snprintf(file, sizeof file, "%s.model", name);
    assert_ok(tokenizer_open(in_directory(file), &self));
    return self;
}

/* Joins the texts of the tokens. */
static void join(const tokenizer *self, const token_list *ids, char *text)
{
    size_t at = 0, bytes;
    for (size_t i = 0; i < ids->count; i++) {
        const char *token = tokenizer_token_bytes(self, ids->ids[i], true, &bytes);
        assert_true(at + bytes < TEXT_MAX);
        memcpy(text + at, token, bytes);
        at += bytes;
    }
    text[at] = '\0';
}

static void ids_are_those_of_the_library(void **state)
{
    static const char *const texts[] = {
        "",
        "the river runs into the sluice .",
        "  two   spaces\tand a tab \n",
        "naïve öl, 日本 and \xef\xac\x81sh \xe2\x85\xa7 \xf0\x9f\x98\x80",
        "a<sep>b</s><s><unk> \xe2\x96\x81x",
        "nothing of it was seen: QXZ #$%& \x01\x7f",
        "bad \xff\xc3( bytes",
        "wheelwheelwheelwheelwheelwheelwheelwheelwheelwheelwheelwheel",
    };
    static int32_t expected[IDS_MAX];
    static char joined[TEXT_MAX], decoded[TEXT_MAX], path[512];
    for (size_t k = 0; k < 2; k++) {
        tokenizer *self = open_model(kinds[k]);
        snprintf(path, sizeof path, "%s/%s.model", directory, kinds[k]);
        assert_false(tokenizer_cuts_lines(self));
        assert_int_equal(tokenizer_find(self, "<s>"), tokenizer_begin_id(self));
        assert_int_equal(tokenizer_find(self, "</s>"), tokenizer_end_id(self));
        assert_true(tokenizer_find(self, "<sep>") > 2 && tokenizer_find(self, "<none>") < 0);
        for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
            token_list ids = {0};
            tokenize_options options = {.adds_special = true, .plain_text = i % 2};
            bool is_damaged = strstr(texts[i], "\xff") != NULL;
            const char *text = is_damaged ? "bad \xef\xbf\xbd\xef\xbf\xbd( bytes" : texts[i];
            int count = sentencepiece_ids(path, text, strlen(text), expected, IDS_MAX);
            assert_true(count >= 0);
            assert_ok(tokenizer_encode(self, texts[i], strlen(texts[i]), &options, &ids));
            assert_int_equal(ids.count, count);
            for (int n = 0; n < count; n++) {
                assert_int_equal(ids.ids[n], expected[n]);
                assert_true((uint64_t)expected[n] < tokenizer_vocab(self));
            }
            assert_int_equal(sentencepiece_text(path, expected, count, decoded, TEXT_MAX), 0);
            join(self, &ids, joined);
            assert_string_equal(joined[0] == ' ' ? joined + 1 : joined, decoded);
            token_list_fini(&ids);
        }
        tokenizer_close(self);
    }
}

static void what_is_put_around_is_the_files(void **state)
{
    static const char config[] = "{\"add_bos_token\": true, \"add_eos_token\": true}";
    static const char wrong[] = "{\"add_bos_token\": \"yes\"}";
    const tokenize_options special = {.adds_special = true}, plain = {0};
    tokenizer *bare = open_model("bpe");
    write_text("tokenizer_config.json", config, sizeof config - 1);
    tokenizer *self = open_model("bpe");
    token_list with = {0}, without = {0};
    assert_ok(tokenizer_encode(self, "the mill", 8, &special, &with));
    assert_ok(tokenizer_encode(self, "the mill", 8, &plain, &without));
    assert_int_equal(with.count, without.count + 2);
    assert_int_equal(with.ids[0], tokenizer_begin_id(self));
    assert_memory_equal(with.ids + 1, without.ids, without.count * sizeof *without.ids);
    assert_int_equal(with.ids[with.count - 1], tokenizer_end_id(self));
    assert_true(tokenizer_hash(self) != tokenizer_hash(bare));
    token_list_fini(&with);
    token_list_fini(&without);
    tokenizer_close(self);
    tokenizer_close(bare);
    write_text("tokenizer_config.json", wrong, sizeof wrong - 1);
    assert_error(tokenizer_open(in_directory("bpe.model"), &self), ERR_INPUT, "add_bos_token");
    assert_int_equal(unlink(in_directory("tokenizer_config.json")), 0);
}

static void damaged_models_are_refused(void **state)
{
    static char data[1 << 20];
    tokenizer *self;
    FILE *file = fopen(in_directory("bpe.model"), "rb");
    assert_non_null(file);
    size_t bytes = fread(data, 1, sizeof data, file);
    assert_int_equal(fclose(file), 0);
    assert_true(bytes > 1000 && bytes < sizeof data);
    const size_t lengths[] = {0, 1, 7, bytes / 2 + 1};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        data[lengths[i] / 2] ^= 0x55;
        write_text("bad.model", data, lengths[i]);
        data[lengths[i] / 2] ^= 0x55;
        assert_int_equal(tokenizer_open(in_directory("bad.model"), &self), ERR_INPUT);
        assert_null(self);
        assert_non_null(strstr(err_text(), "bad.model cannot be read as a SentencePiece model"));
    }
}

static int make_models(void **state)
{
    if (directory_make(state) != 0)
        return -1;
    train_models();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_those_of_the_library),
        cmocka_unit_test(what_is_put_around_is_the_files),
        cmocka_unit_test(damaged_models_are_refused),
    };
    return cmocka_run_group_tests(tests, make_models, directory_remove);
}

#else

static void a_model_is_refused_with_what_to_install(void **state)
{
    tokenizer *self;
    write_text("some.model", "x", 1);
    assert_int_equal(tokenizer_open(in_directory("some.model"), &self), ERR_CONFIG);
    assert_null(self);
    assert_non_null(strstr(err_text(), "libsentencepiece-dev"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_model_is_refused_with_what_to_install)};
    int failed = cmocka_run_group_tests(tests, directory_make, directory_remove);
    return failed ? failed : SKIPPED;
}

#endif
