/* Safetensors: what is written is read again; every way in which a header can be wrong is named,
 * one table row each; random damage gives an error or a table that keeps the rules; a file is whole
 * or not there. */
#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rng.h"
#include "format/hf_checkpoint.h"
#include "format/safetensors.h"
#include "tests/hf/hf_fixture.h"
#include "tests/unit.h"

enum { SEED = 20, DAMAGE_ROUNDS = 4000, DATA_BYTES = 24 };

static void expect_error(int rc, const char *reason)
{
    assert_int_equal(rc, ERR_INPUT);
    if (!strstr(err_text(), reason))
        fail_msg("expected \"%s\" in \"%s\"", reason, err_text());
    assert_null(strchr(err_text(), '\n'));
}

/* A file of this header, its length in front, and so many bytes of data. */
static void write_raw(const char *path, uint64_t length, const char *header, uint64_t header_bytes,
                      uint64_t data_bytes)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    for (int i = 0; i < 8; i++)
        assert_true(putc((int)(length >> 8 * i & 0xff), file) != EOF);
    assert_int_equal(fwrite(header, 1, header_bytes, file), header_bytes);
    for (uint64_t i = 0; i < data_bytes; i++)
        assert_true(putc((int)i, file) != EOF);
    assert_int_equal(fclose(file), 0);
}

static int open_header(const char *header, safetensors_table *table)
{
    const char *path = hf_fixture_path("header.safetensors");
    write_raw(path, strlen(header), header, strlen(header), DATA_BYTES);
    return safetensors_open(path, table);
}

#define TENSOR(name, type, shape, begin, end)                                                      \
    "\"" name "\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"

static void good_headers_are_read(void **state)
{
    safetensors_table table;
    char text[SAFETENSORS_SHAPE_BYTES];
    assert_int_equal(
        open_header("{" TENSOR("b", "F32", "[2,2]", "8",
                               "24") ",\"__metadata__\":{\"format\":\"pt\"}," TENSOR("a", "BF16",
                                                                                     "[4]", "0",
                                                                                     "8") "}   ",
                    &table),
        0);
    assert_int_equal(table.count, 2);
    assert_string_equal(table.tensors[0].name, "a");
    const safetensors_tensor *b = safetensors_find(&table, "b");
    assert_ptr_equal(b, &table.tensors[1]);
    assert_int_equal(b->type, SAFETENSORS_F32);
    assert_int_equal(b->elem_count, 4);
    assert_int_equal(b->file_offset + b->size_bytes, table.file_bytes);
    assert_string_equal(safetensors_shape(b, text), "[2, 2]");
    assert_null(safetensors_find(&table, "c"));
    safetensors_close(&table);
    /* Scalars, tensors of nothing, dtypes that are known and no weights', fractions of bytes. */
    assert_int_equal(
        open_header("{" TENSOR("s", "F32", "[]", "0", "4") "," TENSOR(
                        "none", "F16", "[0,9]", "4",
                        "4") "," TENSOR("i", "I64", "[2]", "4", "20") "," TENSOR("f", "F4", "[8]",
                                                                                 "20", "24") "}",
                    &table),
        0);
    assert_int_equal(table.count, 4);
    assert_int_equal(safetensors_find(&table, "s")->elem_count, 1);
    assert_int_equal(safetensors_find(&table, "i")->type, SAFETENSORS_OTHER);
    safetensors_close(&table);
}

struct hostile {
    const char *header, *reason;
};

static const struct hostile hostile_headers[] = {
    {"", "does not begin with {"},
    {" {}", "does not begin with {"},
    {"[]", "does not begin with {"},
    {"{", "no JSON"},
    {"{}x", "no JSON"},
    {"{}", "the last 24 bytes of the file are no tensor's"},
    {"{\"a\":1}", "tensor \"a\" is no object"},
    {"{\"a\\u0000b\":{}}", "no JSON"},
    {"{\"\xff\":{}}", "no JSON"},
    {"{\"a\":{}}", "has no dtype"},
    {"{\"a\":{\"dtype\":7}}", "has no dtype"},
    {"{" TENSOR("a", "F17", "[6]", "0", "24") "}", "dtype \"F17\", which is not known"},
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,24]}}", "has no shape"},
    {"{" TENSOR("a", "F32", "{}", "0", "24") "}", "has no shape"},
    {"{" TENSOR("a", "F32", "[-6]", "0", "24") "}", "number 0 of its shape is no whole number"},
    {"{" TENSOR("a", "F32", "[6.0]", "0", "24") "}", "number 0 of its shape is no whole number"},
    {"{" TENSOR("a", "F32", "[\"6\"]", "0", "24") "}", "number 0 of its shape is no whole number"},
    {"{" TENSOR("a", "F32", "[[6]]", "0", "24") "}", "nested more than 3 deep"},
    {"{" TENSOR("a", "F32", "[1,1,1,1,1,1,1,1,6]", "0", "24") "}", "9 dimensions"},
    {"{" TENSOR("a", "F32", "[4294967296,4294967296]", "0", "24") "}", "more than 2^64 elements"},
    {"{" TENSOR("a", "F32", "[4611686018427387910]", "0", "24") "}", "data_offsets of 24 bytes"},
    {"{" TENSOR("a", "F32", "[9223372036854775808]", "0", "24") "}", "no whole number from 0 on"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[6]}}", "data_offsets are not two numbers"},
    {"{" TENSOR("a", "F32", "[6]", "0,12", "24") "}", "data_offsets are not two numbers"},
    {"{" TENSOR("a", "F32", "[6]", "-1", "24") "}", "data_offsets are not two numbers"},
    {"{" TENSOR("a", "F32", "[6]", "24", "0") "}", "data_offsets are not two numbers"},
    {"{" TENSOR("a", "F32", "[6]", "0", "true") "}", "data_offsets are not two numbers"},
    {"{" TENSOR("a", "F32", "[6]", "4", "28") "}", "ends at byte 28 of the data"},
    {"{" TENSOR("a", "F32", "[6]", "9223372036854775800", "9223372036854775807") "}",
     "ends at byte 9223372036854775807"},
    {"{" TENSOR("a", "F32", "[5]", "0", "24") "}",
     "of shape [5] and dtype F32 has data_offsets of 24"},
    {"{" TENSOR("a", "F4", "[47]", "0", "24") "}", "of shape [47] and dtype F4 has data_offsets"},
    {"{" TENSOR("a", "F32", "[6]", "0", "24") "," TENSOR("a", "F32", "[6]", "0", "24") "}",
     "no JSON, or not as it is allowed here: duplicate object key"},
    {"{" TENSOR("a", "F32", "[4]", "0", "16") "," TENSOR("b", "F32", "[4]", "8", "24") "}",
     "tensors \"a\" and \"b\" overlap"},
    {"{" TENSOR("a", "F32", "[6]", "0", "24") "," TENSOR("b", "F32", "[6]", "0", "24") "}",
     "tensors \"a\" and \"b\" overlap"},
    {"{" TENSOR("a", "F32", "[2]", "0", "8") "," TENSOR("b", "F32", "[2]", "16", "24") "}",
     "8 bytes before the data of tensor \"b\" are no tensor's"},
    {"{" TENSOR("a", "F32", "[2]", "16", "24") "}", "16 bytes before the data of tensor \"a\""},
    {"{" TENSOR("a", "F32", "[2]", "0", "8") "}", "the last 16 bytes of the file are no tensor's"},
    {"{\"__metadata__\":[]," TENSOR("a", "F32", "[6]", "0", "24") "}", "__metadata__ is no object"},
    {"{\"__metadata__\":{\"n\":1}," TENSOR("a", "F32", "[6]", "0", "24") "}",
     "\"n\" in __metadata__ is no text"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[6],\"data_offsets\":[0,24],\"more\":1}}",
     "a key \"more\" that is not known"},
    {"{" TENSOR("", "F32", "[6]", "0", "24") "}",
     "is empty, longer than 200 bytes, or has control"},
    {"{" TENSOR("a\\u001b[2J", "F32", "[6]", "0", "24") "}", "\"a\\u001b[2J\" is empty, longer"},
    {"{\"a\":[[[[[[[[1]]]]]]]]}", "nested more than 3 deep"},
};

static void hostile_headers_are_named(void **state)
{
    safetensors_table table;
    for (size_t i = 0; i < sizeof hostile_headers / sizeof hostile_headers[0]; i++) {
        expect_error(open_header(hostile_headers[i].header, &table), hostile_headers[i].reason);
        assert_null(table.tensors);
        assert_non_null(strstr(err_text(), "header.safetensors"));
    }
}

static void hostile_files_are_named(void **state)
{
    safetensors_table table;
    const char *path = hf_fixture_path("file.safetensors");
    static const char header[] = "{" TENSOR("a", "F32", "[6]", "0", "24") "}";
    write_raw(path, UINT64_MAX, header, sizeof header - 1, 24);
    expect_error(safetensors_open(path, &table), "is more than the 100000000 that a safetensors");
    write_raw(path, 100000001, header, sizeof header - 1, 24);
    expect_error(safetensors_open(path, &table), "is more than the 100000000");
    write_raw(path, 1000, header, sizeof header - 1, 24);
    expect_error(safetensors_open(path, &table), "the header has 1000 bytes, but the file");
    write_raw(path, sizeof header - 1, header, sizeof header - 1, 23);
    expect_error(safetensors_open(path, &table),
                 "ends at byte 24 of the data, but the file has 23");
    write_raw(path, sizeof header - 1, header, sizeof header - 1, 25);
    expect_error(safetensors_open(path, &table), "the last 1 bytes of the file are no tensor's");
    assert_int_equal(truncate(path, 7), 0);
    expect_error(safetensors_open(path, &table), "has 7 bytes, too few");
    expect_error(safetensors_open(hf_dir, &table), "is a directory, no regular file");
    expect_error(safetensors_open(hf_fixture_path("nowhere"), &table), "cannot open");
    assert_int_equal(mkfifo(hf_fixture_path("pipe"), 0600), 0);
    expect_error(safetensors_open(hf_fixture_path("pipe"), &table), "is a pipe, no regular file");
}

/* Far more values than a file of weights can have take no memory to be refused. */
static void headers_of_too_many_values_are_refused(void **state)
{
    enum { BYTES = 40 << 20 };
    safetensors_table table;
    char *header = malloc(BYTES);
    memset(header, ',', BYTES);
    memcpy(header, "{\"a\":[1", 7);
    expect_error(safetensors_decode("many", header, BYTES, BYTES + 8, &table), "has more than");
    memset(header, '{', BYTES);
    expect_error(safetensors_decode("deep", header, BYTES, BYTES + 8, &table), "nested more than");
    free(header);
}

/* Damaged headers give an error, or tables whose tensors fill the file without overlap. */
static void damaged_headers_crash_nothing(void **state)
{
    static const char good[] =
        "{\"__metadata__\":{\"format\":\"pt\"}," TENSOR("a", "F32", "[2]", "0", "8") "," TENSOR(
            "b", "BF16", "[2,2]", "8", "16") "," TENSOR("c", "F16", "[4]", "16", "24") "}";
    static const char letters[] = "{}[]\",:0123456789-eE.\\\0tfn\xff AFB";
    enum { LENGTH = sizeof good - 1 };
    uint32_t read_count = 0;
    for (uint64_t round = 0; round < DAMAGE_ROUNDS; round++) {
        char text[LENGTH];
        safetensors_table table;
        memcpy(text, good, LENGTH);
        uint64_t changes = 1 + rng_below(SEED, 1, round, 3);
        for (uint64_t c = 0; c < changes; c++)
            text[rng_below(SEED, 2 + c, round, LENGTH)] =
                letters[rng_below(SEED, 9 + c, round, sizeof letters - 1)];
        int rc = safetensors_decode("damaged", text, LENGTH, 8 + LENGTH + 24, &table);
        if (rc < 0) {
            assert_int_equal(rc, ERR_INPUT);
            continue;
        }
        uint64_t end = 8 + LENGTH;
        for (uint32_t i = 0; i < table.count; i++) {
            assert_int_equal(table.tensors[i].file_offset, end);
            end += table.tensors[i].size_bytes;
            assert_ptr_equal(safetensors_find(&table, table.tensors[i].name), &table.tensors[i]);
        }
        assert_int_equal(end, 8 + LENGTH + 24);
        safetensors_close(&table);
        read_count++;
    }
    assert_true(read_count > 0 && read_count < DAMAGE_ROUNDS);
}

static void written_files_are_read_again(void **state)
{
    const char *path = hf_fixture_path("written.safetensors");
    const safetensors_row rows[] = {
        {.name = "first", .type = DTYPE_BF16, .dim_count = 2, .shape = {3, 5}},
        {.name = "none", .type = DTYPE_FP32, .dim_count = 1, .shape = {0}},
        {.name = "last \"quoted\"", .type = DTYPE_FP32, .dim_count = 1, .shape = {7}},
    };
    uint16_t first[15];
    float last[7], got_last[7];
    uint16_t got_first[15];
    for (int i = 0; i < 15; i++)
        first[i] = (uint16_t)(i * 77);
    for (int i = 0; i < 7; i++)
        last[i] = (float)i / 3;
    safetensors_writer *writer;
    safetensors_table table;
    assert_ok(safetensors_create(path, rows, 3, &writer));
    assert_ok(safetensors_write(writer, 2, 3, 4, last + 3)); /* in any order */
    assert_ok(safetensors_write(writer, 0, 0, 15, first));
    assert_ok(safetensors_write(writer, 2, 0, 3, last));
    assert_true(access(path, F_OK) != 0); /* not before it is whole */
    assert_ok(safetensors_finish(writer));
    assert_ok(safetensors_open(path, &table));
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(table.file_bytes, info.st_size);
    assert_int_equal(table.count, 3);
    const safetensors_tensor *tensor = safetensors_find(&table, "first");
    assert_int_equal(tensor->file_offset % 8, 0);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_ok(safetensors_read(&table, fileno(file), tensor, 0, 30, got_first));
    assert_memory_equal(got_first, first, sizeof first);
    tensor = safetensors_find(&table, "last \"quoted\"");
    assert_ok(safetensors_read(&table, fileno(file), tensor, 8, 20, got_last));
    assert_memory_equal(got_last, last + 2, 20);
    assert_int_equal(safetensors_read(&table, fileno(file), tensor, 8, 24, got_last), ERR_INTERNAL);
    char metadata[64] = "";
    assert_int_equal(fseek(file, 8, SEEK_SET), 0);
    assert_int_equal(fread(metadata, 1, 36, file), 36);
    assert_string_equal(metadata, "{\"__metadata__\":{\"format\":\"pt\"},\"fir");
    fclose(file);
    safetensors_close(&table);
}

/* An unfinished file is removed, and a file that was there before stays. */
static void unfinished_files_leave_nothing(void **state)
{
    const char *path = hf_fixture_path("unfinished.safetensors");
    const char *partial = hf_fixture_path("unfinished.safetensors.partial");
    const safetensors_row row = {.name = "a", .type = DTYPE_FP32, .dim_count = 1, .shape = {2}};
    const float values[2] = {1, 2};
    safetensors_writer *writer;
    hf_fixture_text(hf_dir, "unfinished.safetensors", "before");
    assert_ok(safetensors_create(path, &row, 1, &writer));
    assert_ok(safetensors_write(writer, 0, 0, 1, values));
    assert_int_equal(safetensors_write(writer, 0, 1, 2, values), ERR_INTERNAL);
    assert_error(safetensors_finish(writer), ERR_INTERNAL, "1 elements were written, and it has 2");
    assert_true(access(partial, F_OK) != 0);
    assert_ok(safetensors_create(path, &row, 1, &writer));
    safetensors_abandon(writer);
    assert_true(access(partial, F_OK) != 0);
    struct stat status;
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_size, 6);
    assert_int_equal(safetensors_create(hf_fixture_path("no/such/file"), &row, 1, &writer),
                     -ENOENT);
    assert_null(writer);
}

/* A limit on the size of files stands for a drive that is full. */
static void no_space_is_known_before_the_first_byte(void **state)
{
    const char *path = hf_fixture_path("full.safetensors");
    const safetensors_row row = {
        .name = "a", .type = DTYPE_FP32, .dim_count = 1, .shape = {1 << 20}};
    struct rlimit was, small;
    safetensors_writer *writer;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    small = (struct rlimit){.rlim_cur = 1 << 20, .rlim_max = was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    void (*old)(int) = signal(SIGXFSZ, SIG_IGN);
    int rc = safetensors_create(path, &row, 1, &writer);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    signal(SIGXFSZ, old);
    assert_error(rc, -EFBIG, "no room for 4.00 MiB of");
    assert_true(access(hf_fixture_path("full.safetensors.partial"), F_OK) != 0);
}

/* ---- directories ---- */

static void expect_index(const char *index, const char *reason)
{
    hf_checkpoint *files;
    hf_fixture_text(hf_fixture_path("index"), "model.safetensors.index.json", index);
    expect_error(hf_open(hf_fixture_path("index"), &files), reason);
    assert_null(files);
}

static void hostile_indices_are_named(void **state)
{
    hf_checkpoint *files;
    const char *dir = hf_fixture_path("index");
    assert_int_equal(mkdir(dir, 0777), 0);
    expect_error(hf_open(dir, &files),
                 "neither model.safetensors nor model.safetensors.index.json");
    expect_error(hf_open(hf_fixture_path("nowhere"), &files), "cannot look at");
    static const char header[] = "{" TENSOR("a", "F32", "[6]", "0", "24") "}";
    write_raw(hf_fixture_path("index/one.safetensors"), sizeof header - 1, header,
              sizeof header - 1, 24);
    write_raw(hf_fixture_path("index/two.safetensors"), sizeof header - 1, header,
              sizeof header - 1, 24);
    write_raw(hf_fixture_path("outside.safetensors"), sizeof header - 1, header, sizeof header - 1,
              24);
    expect_index("{}", "has no weight_map");
    expect_index("{\"weight_map\": {}}", "its weight_map names no tensor");
    expect_index("{\"weight_map\": []}", "has no weight_map");
    expect_index("{\"weight_map\": {\"a\": 1}}", "the file of tensor \"a\" is \"(no text)\"");
    expect_index("{\"weight_map\": {\"a\": \"../outside.safetensors\"}}", "is no name of a file");
    expect_index("{\"weight_map\": {\"a\": \"/etc/passwd\"}}", "is no name of a file");
    expect_index("{\"weight_map\": {\"a\": \"..\"}}", "is no name of a file");
    expect_index("{\"weight_map\": {\"a\": \"\"}}", "is no name of a file");
    expect_index("{\"weight_map\": {\"a\": \"gone.safetensors\"}}",
                 "names gone.safetensors, which is not in the directory");
    expect_index("{\"weight_map\": {\"b\": \"one.safetensors\"}}",
                 "names one.safetensors for tensor \"b\", but it is not in there");
    expect_index("{\"weight_map\": {\"a\": \"one.safetensors\", \"a\": \"two.safetensors\"}}",
                 "duplicate object key");
    write_raw(hf_fixture_path("index/three.safetensors"), sizeof header - 1,
              "{" TENSOR("c", "F32", "[6]", "0", "24") "}", sizeof header - 1, 24);
    hf_fixture_text(dir, "model.safetensors.index.json",
                    "{\"weight_map\": {\"a\": \"one.safetensors\", \"c\": \"three.safetensors\"}}");
    assert_ok(hf_open(dir, &files));
    assert_int_equal(hf_count(files), 2);
    hf_tensor at;
    assert_true(hf_find(files, "c", &at) && !hf_find(files, "b", &at));
    hf_close(files);
}

/* Two files that have one tensor, though the index names only one of them. */
static void a_tensor_is_in_one_file(void **state)
{
    hf_checkpoint *files;
    const char *dir = hf_fixture_path("twice");
    assert_int_equal(mkdir(dir, 0777), 0);
    static const char both[] =
        "{" TENSOR("a", "F32", "[3]", "0", "12") "," TENSOR("b", "F32", "[3]", "12", "24") "}";
    static const char one[] = "{" TENSOR("a", "F32", "[6]", "0", "24") "}";
    write_raw(hf_fixture_path("twice/1.safetensors"), sizeof both - 1, both, sizeof both - 1, 24);
    write_raw(hf_fixture_path("twice/2.safetensors"), sizeof one - 1, one, sizeof one - 1, 24);
    hf_fixture_text(dir, "model.safetensors.index.json",
                    "{\"weight_map\": {\"b\": \"1.safetensors\", \"a\": \"2.safetensors\"}}");
    expect_error(hf_open(dir, &files), "tensor \"a\" is in ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_headers_are_read),
        cmocka_unit_test(hostile_headers_are_named),
        cmocka_unit_test(hostile_files_are_named),
        cmocka_unit_test(headers_of_too_many_values_are_refused),
        cmocka_unit_test(damaged_headers_crash_nothing),
        cmocka_unit_test(written_files_are_read_again),
        cmocka_unit_test(unfinished_files_leave_nothing),
        cmocka_unit_test(no_space_is_known_before_the_first_byte),
        cmocka_unit_test(hostile_indices_are_named),
        cmocka_unit_test(a_tensor_is_in_one_file),
    };
    return cmocka_run_group_tests(tests, hf_fixture_setup, hf_fixture_teardown);
}
