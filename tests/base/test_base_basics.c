/* Base helpers: sizes, conversions, counters, random numbers, errors, misspelt names. */
#include <errno.h>
#include <math.h>

#include "base/dtype.h"
#include "base/error.h"
#include "base/foreign_json.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/size.h"
#include "base/text.h"
#include "base/tile.h"
#include "base/utf8.h"
#include "tests/unit.h"

static void sizes_parse(void **state)
{
    uint64_t bytes;
    assert_ok(size_parse("16GiB", &bytes));
    assert_int_equal(bytes, 16 * GIB);
    assert_ok(size_parse("1.5 MB", &bytes));
    assert_int_equal(bytes, 1500000);
    assert_ok(size_parse("4096", &bytes));
    assert_int_equal(bytes, 4096);
    assert_int_equal(size_parse("-1", &bytes), -EINVAL);
    assert_int_equal(size_parse("12 parsecs", &bytes), -EINVAL);
    assert_int_equal(size_parse("0x10", &bytes), -EINVAL);
    assert_int_equal(size_parse("9e30GiB", &bytes), -EOVERFLOW);
    assert_int_equal(size_mul(UINT64_MAX, 2, &bytes), -EOVERFLOW);
    assert_int_equal(size_add(UINT64_MAX, 1, &bytes), -EOVERFLOW);
}

static void fp16_round_trip(void **state)
{
    for (uint32_t half = 0; half < 65536; half++) {
        float value = fp32_from_fp16((uint16_t)half);
        if (isnan(value))
            assert_true(isnan(fp32_from_fp16(fp16_from_fp32(value))));
        else
            assert_int_equal(fp16_from_fp32(value), half);
    }
    assert_int_equal(fp16_from_fp32(65519.0f), 0x7bff);
    assert_int_equal(fp16_from_fp32(65520.0f), 0x7c00);
    assert_int_equal(fp16_from_fp32(0x1p-25f), 0);             /* tie to even */
    assert_int_equal(fp16_from_fp32(0x1.000002p-25f), 1);      /* just above the tie */
    assert_int_equal(fp16_from_fp32(1.0f + 0x1p-11f), 0x3c00); /* tie to even */
}

static void bf16_rounding(void **state)
{
    assert_int_equal(bf16_from_fp32(fp32_from_bits(0x3f808000)), 0x3f80);    /* tie to even */
    assert_int_equal(bf16_working_copy(fp32_from_bits(0x3f808000)), 0x3f81); /* tie away */
    assert_int_equal(bf16_from_fp32(fp32_from_bits(0x00010000)), 1);         /* subnormals stay */
    assert_true(isnan(fp32_from_bf16(bf16_from_fp32(NAN))));
    assert_true(isnan(fp32_from_bf16(bf16_working_copy(fp32_from_bits(0x7f800001)))));
    /* The low 16 bits of the master restore it from its working copy. */
    for (uint64_t i = 0; i < 100000; i++) {
        uint32_t bits = (uint32_t)rng_u64(7, 1, i);
        if ((bits & 0x7fffffffu) > 0x7f800000u)
            continue;
        float master = fp32_from_bits(bits);
        float joined = master_join(bf16_working_copy(master), master_low16(master));
        assert_int_equal(fp32_bits(joined), bits);
    }
    assert_int_equal(fp32_bits(master_join(0x7f80, 0xffff)), 0x7f7fffff); /* the largest */
    assert_int_equal(fp32_bits(master_join(0x7f80, 0)), 0x7f800000);
}

static void memory_is_counted(void **state)
{
    mem_stats before, after;
    mem_get_stats(&before);
    uint64_t *block = mem_alloc(100, sizeof *block, "test block");
    assert_non_null(block);
    assert_int_equal((uintptr_t)block % 64, 0);
    block[99] = 5;
    block = mem_resize(block, 200, sizeof *block, "test block");
    assert_int_equal(block[99], 5);
    assert_int_equal(block[199], 0);
    mem_seal();
    mem_free(mem_alloc(1, 1, "late block"));
    mem_get_stats(&after);
    assert_int_equal(after.call_count_after_seal, 1);
    assert_string_equal(after.first_tag_after_seal, "late block");
    mem_unseal();
    mem_free(block);
    mem_get_stats(&after);
    assert_int_equal(after.live_bytes, before.live_bytes);
    assert_null(mem_alloc(SIZE_MAX / 2, 4, "huge"));
}

static void random_numbers(void **state)
{
    /* Known answer of Philox-4x32-10 for all-zero counter and key (Random123's kat_vectors), and
     * for the digits of pi. */
    uint32_t words[4];
    rng_block(0, 0, 0, words);
    assert_int_equal(words[0], 0x6627e8d5);
    assert_int_equal(words[1], 0xe169c58d);
    assert_int_equal(words[2], 0xbc57ac4c);
    assert_int_equal(words[3], 0x9b00dbd8);
    rng_block(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88, words);
    assert_memory_equal(words, ((uint32_t[]){0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}), 16);
    double sum = 0, squares = 0;
    for (uint64_t i = 0; i < 100000; i++) {
        double value = (double)rng_normal(3, 4, i);
        sum += value;
        squares += value * value;
    }
    assert_true(fabs(sum / 1e5) < 0.02);
    assert_true(fabs(squares / 1e5 - 1.0) < 0.03);
    for (uint64_t i = 0; i < 1000; i++)
        assert_true(rng_below(1, 2, i, 7) < 7);
}

static void tiles(void **state)
{
    assert_int_equal(tile_stream_stride(32768) % TILE_PERIOD_BYTES, TILE_SKEW_BYTES);
    assert_int_equal(tile_bytes(4096, 3) % TILE_BLOCK_BYTES, 0);
    assert_int_equal(tile_pitch(65536, 3) % TILE_PERIOD_BYTES, 0);
    assert_int_equal(tile_count(100000, 32768), 4);
    assert_int_equal(tile_elems_at(100000, 32768, 3), 100000 - 3 * 32768);
    assert_int_equal(tile_unit_bytes(32768, 32768, 3), tile_bytes(32768, 3));
}

static void tile_formats(void **state)
{
    assert_int_equal(tile_streams_code(3, TILE_FP32, TILE_FP32, TILE_FP32), 3);
    uint32_t small = tile_streams_code(3, TILE_LOW16, TILE_INT8, TILE_BF16);
    assert_int_equal(tile_stream_count(small), 3);
    assert_int_equal(tile_stream_format(small, 1), TILE_INT8);
    assert_true(tile_master_is_split(small) && !tile_master_is_split(3));
    /* 2 + (1 + 4/256) + 2 bytes an element */
    assert_int_equal(tile_state_bytes(small, 65536), 65536 * 5 + 65536 / 256 * 4);
    assert_int_equal(tile_stream_offset(small, 65536, 1), 131072 + TILE_SKEW_BYTES);
    assert_int_equal(tile_bytes(65536, 3), 2 * tile_stream_stride(65536) + 4 * 65536);
    assert_int_equal(tile_bytes(65536, small), 2 * (131072 + TILE_SKEW_BYTES) + 131072);
    assert_true(tile_streams_is_valid(2) && tile_streams_is_valid(3) &&
                tile_streams_is_valid(small));
    assert_false(tile_streams_is_valid(1) || tile_streams_is_valid(4) ||
                 tile_streams_is_valid(2 | TILE_BF16 << 24) ||
                 tile_streams_is_valid(3 | TILE_FORMAT_COUNT << 8));
}

static void errors(void **state)
{
    assert_int_equal(err_set(ERR_CONFIG, "key %s", "a"), ERR_CONFIG);
    assert_int_equal(err_prefix(ERR_CONFIG, "job.json"), ERR_CONFIG);
    assert_string_equal(err_text(), "job.json: key a");
    err_record record;
    err_save(&record, ERR_CONFIG);
    assert_int_equal(err_errno(ENOSPC, "write %d", 3), -ENOSPC);
    assert_int_equal(err_restore(&record), ERR_CONFIG);
    assert_string_equal(err_text(), "job.json: key a");
    assert_string_equal(err_name(-EIO), "EIO");
}

static const char *visible(const char *text, const char *kept, size_t room)
{
    static char out[64];
    assert_true(room <= sizeof out);
    size_t length = utf8_visible(text, strlen(text), kept, out, room);
    assert_int_equal(length, strlen(out));
    return out;
}

/* The content of a file cannot control the terminal on which a message is shown. */
static void text_is_made_visible(void **state)
{
    assert_string_equal(visible("plain \xc3\xa9 \xf0\x9f\x99\x82", "", 64),
                        "plain \xc3\xa9 \xf0\x9f\x99\x82");
    assert_string_equal(visible("\x1b[31m\x07\x7f", "", 64), "\\u001b[31m\\u0007\\u007f");
    assert_string_equal(visible("\xc2\x9b"
                                "2J \xc2\xa0",
                                "", 64),
                        "\\u009b2J \xc2\xa0"); /* C1 */
    assert_string_equal(visible("a\n\tb\r", "\n\t", 64), "a\n\tb\\u000d");
    assert_string_equal(visible("\x9b \xe2\x82", "", 64), "\\x9b \\xe2\\x82"); /* no characters */
    assert_string_equal(visible("ab\x1b", "", 8), "ab"); /* cut before what does not fit */
    assert_string_equal(visible("ab\xc3\xa9", "", 4), "ab");
    err_set(-EIO, "tensor %s\nof 2", "\x1b]0;x\x07");
    assert_string_equal(err_text(), "tensor \\u001b]0;x\\u0007\\u000aof 2");
}

static void texts_are_cut_where_they_are_full(void **state)
{
    char text[8] = "";
    text_add(text, sizeof text, "%s%d", "a", 1);
    text_add(text, 5, ", %s", "b"); /* as if it had 5 bytes */
    assert_string_equal(text, "a1, ");
    text_add(text, sizeof text, "%s", "cdefgh");
    assert_string_equal(text, "a1, cde");
    text_add(text, sizeof text, "%s", "i");
    assert_string_equal(text, "a1, cde");
}

/* Integers beyond 64 bits, which jansson refuses, become reals; in such a file the others stay. */
static void large_integers_are_read(void **state)
{
    static const char text[] =
        "{\"most\": 1000000000000000019884624838656, \"least\": -20000000000000000000, \"id\": "
        "32000, "
        "\"text\": \"1000000000000000019884624838656 \\\" 99999999999999999999\", \"rate\": 1e-6, "
        "\"exact\": 999999999999999999, \"list\": [12345678901234567890123, 7]}";
    json_error_t error;
    assert_null(json_loads(text, 0, &error));
    json_t *doc = foreign_json_parse(text, sizeof text - 1, 0, &error);
    if (!doc)
        fail_msg("%d: %s", error.position, error.text);
    assert_true(json_real_value(json_object_get(doc, "most")) == 1e30);
    assert_true(json_real_value(json_object_get(doc, "least")) == -2e19);
    assert_int_equal(json_integer_value(json_object_get(doc, "id")), 32000);
    assert_true(json_integer_value(json_object_get(doc, "exact")) == 999999999999999999);
    assert_true(json_real_value(json_object_get(doc, "rate")) == 1e-6);
    assert_string_equal(json_string_value(json_object_get(doc, "text")),
                        "1000000000000000019884624838656 \" 99999999999999999999");
    assert_true(json_real_value(json_array_get(json_object_get(doc, "list"), 0)) ==
                12345678901234567890123.0);
    json_decref(doc);
    static const char *const wrong[] = {"{\"a\": 1e999}", "[12345678901234567890123",
                                        "[1234567890123456789012x]",
                                        "{\"a\": 123456789012345678901234, \"a\": 1}"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_null(foreign_json_parse(wrong[i], strlen(wrong[i]), JSON_REJECT_DUPLICATES, &error));
}

/* One edit in three letters of what was written: more is another name. */
static void near_names_are_found(void **state)
{
    static const char *const names[] = {"train", "plan", "generate", "run"};
    static const struct {
        const char *wanted, *found; /* "": none is near */
    } cases[] = {
        {"trian", "train"},
        {"trane", ""},
        {"plna", "plan"},
        {"Pla", "plan"},
        {"pl", ""},
        {"fun", "run"},
        {"genrate", "generate"},
        {"egnerat", "generate"},
        {"gnrat", ""},
        {"frobnicate", ""},
        {"", ""},
    };
    struct nearest none = {0};
    assert_false(nearest_is_near(&none, "train"));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct nearest nearest = {0};
        for (size_t n = 0; n < sizeof names / sizeof names[0]; n++)
            nearest_offer(&nearest, cases[i].wanted, names[n]);
        const char *found = nearest_is_near(&nearest, cases[i].wanted) ? nearest.name : "";
        assert_string_equal(found, cases[i].found);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_parse),
        cmocka_unit_test(fp16_round_trip),
        cmocka_unit_test(bf16_rounding),
        cmocka_unit_test(memory_is_counted),
        cmocka_unit_test(random_numbers),
        cmocka_unit_test(tiles),
        cmocka_unit_test(tile_formats),
        cmocka_unit_test(errors),
        cmocka_unit_test(text_is_made_visible),
        cmocka_unit_test(texts_are_cut_where_they_are_full),
        cmocka_unit_test(large_integers_are_read),
        cmocka_unit_test(near_names_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
