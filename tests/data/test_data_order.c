/* NumPy's arrays, documents, their shuffling, and weighted sources. */
#include "tests/data/token_files.h"

#include "data/data_internal.h"
#include "data/mixture.h"

/* ---- NumPy ---- */

/* A header that is longer than is read is not a file that was cut off. */
static void a_long_header_is_told_from_a_cut_file(void **state)
{
    enum { LENGTH = 70000 };
    struct bytes *out = fresh(0);
    memcpy(out->data, "\x93NUMPY", 6);
    out->count = 6;
    put(out, 2, 1);
    put(out, 0, 1);
    put(out, LENGTH, 4);
    for (uint64_t i = 0; i < LENGTH; i++)
        put(out, ' ', 1);
    const char *path = store("long.npy", out);
    corpus *source;
    assert_error(corpus_open_as(&path, 1, DATA_AUTO, 200, &source), ERR_INPUT,
                 "has 70000 bytes, and up to 65536 are read");
    out->count = LENGTH / 2;
    path = store("cut.npy", out);
    assert_error(corpus_open_as(&path, 1, DATA_AUTO, 200, &source), ERR_INPUT,
                 "truncated or damaged");
}

static const char *write_npy(const char *name, unsigned major, const char *header, uint64_t count,
                             unsigned width)
{
    struct bytes *out = fresh(0);
    memcpy(out->data, "\x93NUMPY", 6);
    out->count = 6;
    put(out, major, 1);
    put(out, 0, 1);
    put(out, strlen(header), major == 1 ? 2 : 4);
    memcpy(out->data + out->count, header, strlen(header));
    out->count += strlen(header);
    for (uint64_t i = 0; i < count; i++)
        put(out, (uint64_t)token_of(i, 120), width);
    return store(name, out);
}

static void arrays_are_read(void **state)
{
    static const struct {
        unsigned major, width;
        const char *header;
        uint64_t documents;
    } good[] = {
        {1, 2, "{'descr': '<u2', 'fortran_order': False, 'shape': (3001,), }      \n", 1},
        {1, 4, "{'descr': '<i4', 'fortran_order': False, 'shape': (3001,), }\n", 1},
        {2, 4, "{\"shape\": (3001L,), 'fortran_order':True,'descr':\"<u4\"}", 1},
        {3, 8, "{'descr': '<i8', 'fortran_order': False, 'shape': (3001,), }\n", 1},
        {1, 1, "{'descr': '|u1', 'fortran_order': False, 'shape': (3001,), }\n", 1},
        {1, 1, "{'descr': '>i1', 'fortran_order': False, 'shape': (3001,), }\n", 1},
        {1, 8, "{'descr': '<u8', 'fortran_order': False, 'shape': (3001, 1), }\n", 3001},
        {1, 2, "{'descr': '=i2', 'fortran_order': False, 'shape': (1, 3001), }\n", 1},
        {1, 2, "{'descr': '<u2', 'fortran_order': False, 'shape': ( 0003001 ,), }\n", 1},
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        const char *path = write_npy("a.npy", good[i].major, good[i].header, TOKENS, good[i].width);
        corpus *source = open_good(&path, 1, i % 2 ? DATA_AUTO : DATA_NPY, 200);
        expect_tokens(source, TOKENS, 120);
        assert_int_equal(corpus_document_count(source), good[i].documents);
        assert_false(corpus_is_text(source));
        corpus_close(source);
    }
}

static void bad_arrays_are_refused(void **state)
{
    static const struct {
        unsigned major;
        const char *header, *word;
    } bad[] = {
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (10,), }\n", "not tokens"},
        {1, "{'descr': '<c8', 'fortran_order': False, 'shape': (10,), }\n", "not tokens"},
        {1, "{'descr': '|O', 'fortran_order': False, 'shape': (10,), }\n", "not tokens"},
        {1, "{'descr': '>u2', 'fortran_order': False, 'shape': (10,), }\n", "big-endian"},
        {1, "{'descr': [('a', '<u2')], 'fortran_order': False, 'shape': (10,), }\n", "structures"},
        {1, "{'descr': '<u2', 'fortran_order': False, 'shape': (11,), }\n", "truncated or damaged"},
        {1, "{'descr': '<u2', 'fortran_order': False, 'shape': (9,), }\n", "truncated or damaged"},
        {1, "{'descr': '<u2', 'fortran_order': True, 'shape': (5, 2), }\n", "fortran_order"},
        {1, "{'descr': '<u2', 'fortran_order': False, 'shape': (5, 2, 1), }\n", "two dimensions"},
        {1, "{'descr': '<u2', 'fortran_order': False, 'shape': (), }\n", "single number"},
        {1, "{'descr': '<u2', 'fortran_order': False, 'shape': (9223372036854775808, 2), }\n",
         "beyond all files"},
        {1, "{'descr': '<u2', 'fortran_order': False, 'shape': (99999999999999999999,), }\n",
         "too large a number"},
        {1, "{'descr': '<u2', 'fortran_order': False, 'shape': (-10,), }\n", "whole number"},
        {1, "{'descr': '<u2', 'fortran_order': False, 'shape': (10,)", "does not end"},
        {1, "{'descr': '<u2', 'fortran_order': False, 'shape': (10,), } x\n", "follows"},
        {1, "{'descr': '<u2', 'fortran_order': False, }\n", "missing"},
        {1, "{'descr': '<u2', 'descr': '<u2', 'shape': (10,), }\n", "twice"},
        {1, "{'descr': '<u2', 'fortran_order': 0, 'shape': (10,), }\n", "neither True nor False"},
        {1, "{'descr': '<u2\\'', 'fortran_order': False, 'shape': (10,), }\n", "does not end"},
        {1, "", "no dictionary"},
        {4, "{'descr': '<u2', 'fortran_order': False, 'shape': (10,), }\n", "version 4.0"},
        {1, "{'descr': '<u2', 'fortran_order': False, 'shape': (3, 7), }\n",
         "3 rows of 7 elements of 2 bytes, is not as long"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const char *path = write_npy("a.npy", bad[i].major, bad[i].header, 10, 2);
        corpus *source;
        assert_int_equal(corpus_open_as(&path, 1, DATA_AUTO, 200, &source), ERR_INPUT);
        assert_null(source);
        if (!strstr(err_text(), bad[i].word) || !strstr(err_text(), path))
            fail_msg("case %zu: no \"%s\" in: %s", i, bad[i].word, err_text());
    }
}

/* ---- documents ---- */

/* A matrix of rows as documents: row i holds i at each place, with 1000 before it. */
static corpus *open_rows(uint64_t rows, uint64_t columns)
{
    char header[128];
    snprintf(header, sizeof header,
             "{'descr': '<u2', 'fortran_order': False, 'shape': (%llu, %llu), }\n",
             (unsigned long long)rows, (unsigned long long)columns);
    struct bytes *out = fresh(0);
    memcpy(out->data, "\x93NUMPY\x01\x00", 8);
    out->count = 8;
    put(out, strlen(header), 2);
    memcpy(out->data + out->count, header, strlen(header));
    out->count += strlen(header);
    for (uint64_t i = 0; i < rows; i++)
        for (uint64_t c = 0; c < columns; c++)
            put(out, c == 0 ? 40000 : i, 2);
    const char *path = store("rows.npy", out);
    return open_good(&path, 1, DATA_AUTO, 65536);
}

static void documents_of_an_index(void **state)
{
    for (int turn = 0; turn < 2; turn++) {
        const char *path = write_megatron(turn ? "again" : "pair", 0, TOKENS, 65000, 8);
        const char *both[2] = {path, path};
        corpus *source = open_good(both, turn ? 2 : 1, DATA_AUTO, 65536);
        uint64_t at = 0, begin, count;
        for (uint64_t i = 0; i < corpus_document_count(source); i++) {
            assert_int_equal(corpus_document(source, i, &begin, &count), 0);
            assert_int_equal(begin, at);
            at += count;
        }
        assert_true(corpus_document_count(source) > 10);
        assert_int_equal(at, (turn + 1) * TOKENS);
        assert_int_equal(corpus_document(source, corpus_document_count(source), &begin, &count),
                         -EINVAL);
        corpus_close(source);
    }
}

/* Each epoch of shuffled documents is every document once, whole but where a window ends. */
static void documents_are_shuffled(void **state)
{
    enum { ROWS = 700, COLUMNS = 13, T = 32, W = (ROWS * COLUMNS - 2) / T };
    static int32_t packed[2][W * T + 1], inputs[T], targets[T], again[2 * T];
    corpus *source = open_rows(ROWS, COLUMNS);
    sampler windows, other;
    assert_int_equal(sampler_init(&windows, source, 9, T, SHUFFLE_DOCUMENTS), 0);
    assert_int_equal(sampler_init(&other, source, 9, T, SHUFFLE_DOCUMENTS), 0);
    assert_int_equal(windows.windows_per_epoch, W);
    for (uint64_t epoch = 0; epoch < 2; epoch++) {
        static uint8_t seen[W];
        memset(seen, 0, sizeof seen);
        int32_t *all = packed[epoch];
        for (uint64_t i = 0; i < W; i++) { /* its place, by the permutation's own inverse */
            assert_int_equal(sampler_window(&windows, epoch * W + i, inputs, targets, NULL), 0);
            assert_memory_equal(inputs + 1, targets, (T - 1) * sizeof *inputs);
            uint64_t place = datai_permute(9, 0x73616d706c657200u, epoch, W, i);
            assert_true(place < W && !seen[place % W]);
            seen[place % W] = 1;
            memcpy(all + place * T, inputs, sizeof inputs);
            if (place == W - 1)
                all[W * T] = targets[T - 1];
        }
        static uint8_t had[ROWS];
        memset(had, 0, sizeof had);
        for (uint64_t i = 0; i + COLUMNS <= W * T; i += COLUMNS) { /* documents of equal length */
            assert_int_equal(all[i], 40000);
            for (uint64_t c = 2; c < COLUMNS; c++)
                assert_int_equal(all[i + c], all[i + 1]);
            uint32_t which = (uint32_t)all[i + 1];
            assert_true(which < ROWS);
            assert_int_equal(had[which]++, 0);
        }
    }
    assert_memory_not_equal(packed[0], packed[1], 4 * W * T);
    for (uint64_t i = 0; i < 50;
         i++) { /* any window at once, in whatever order they are asked for */
        uint64_t idx = rng_below(SEED, 3, i, 6 * W);
        assert_int_equal(sampler_window(&windows, idx, inputs, targets, NULL), 0);
        assert_int_equal(sampler_window(&other, 5 * W - 1, again, again + T, NULL), 0);
        assert_int_equal(sampler_window(&other, idx, again, again + T, NULL), 0);
        assert_memory_equal(inputs, again, sizeof inputs);
        assert_memory_equal(targets, again + T, sizeof targets);
    }
    sampler_fini(&windows);
    sampler_fini(&other);
    corpus_close(source);
}

/* More documents than places that are noted, some of them empty. */
static void many_short_documents(void **state)
{
    enum { ROWS = 140000, T = 50 };
    int32_t inputs[T], targets[T];
    corpus *source = open_rows(ROWS, 2);
    sampler windows;
    assert_int_equal(sampler_init(&windows, source, 4, T, SHUFFLE_DOCUMENTS), 0);
    mem_stats before, after;
    mem_get_stats(&before);
    static uint8_t had[ROWS];
    uint64_t count = 0;
    for (uint64_t i = 0; i < windows.windows_per_epoch; i++) {
        assert_int_equal(sampler_window(&windows, i, inputs, targets, NULL), 0);
        for (uint64_t k = 1; k < T;
             k += 2) /* T is even: documents lie at the same places in every window */
            count += had[(uint16_t)inputs[k]]++ == 0;
    }
    mem_get_stats(&after);
    assert_int_equal(before.call_count, after.call_count);
    assert_int_equal(count, 65536 < ROWS ? 65536 : ROWS); /* values wrap at 16 bits */
    sampler_fini(&windows);
    corpus_close(source);
}

static void windows_in_order(void **state)
{
    enum { T = 16 };
    int32_t inputs[T], targets[T];
    corpus *source = open_rows(50, 10);
    sampler windows;
    assert_int_equal(sampler_init(&windows, source, 9, T, SHUFFLE_NONE), 0);
    for (uint64_t i = 0; i < 2 * windows.windows_per_epoch; i++) {
        uint64_t begin = i % windows.windows_per_epoch * T;
        assert_int_equal(sampler_window(&windows, i, inputs, targets, NULL), 0);
        for (uint64_t k = 0; k < T; k++)
            assert_int_equal(inputs[k], (begin + k) % 10 ? (begin + k) / 10 : 40000);
    }
    corpus_close(source);
}

/* ---- which document a token belongs to ---- */

enum { MARK = 40000 };

/* Ids alone: documents of random lengths, each with MARK at its begin or at its end. */
static corpus *open_marked(uint64_t rows, bool at_begin)
{
    struct bytes *out = fresh(0);
    for (uint64_t i = 0; i < rows; i++) {
        uint64_t length = 2 + rng_below(SEED, 31, i, 20);
        for (uint64_t c = 0; c < length; c++)
            put(out, c == (at_begin ? 0 : length - 1) ? MARK : i, 2);
    }
    const char *path = store("marked.u16", out);
    return open_good(&path, 1, DATA_U16, 65536);
}

/* Reads windows with and without their documents. An input with the value MARK is the first
 * (at_begin) or the last of its document. */
static void expect_documents(corpus *source, enum shuffle shuffle, bool at_begin)
{
    enum { T = 24 };
    int32_t inputs[2][T], targets[2][T], begins[T];
    uint64_t inner = 0, ignored = 0;
    sampler windows;
    assert_int_equal(sampler_init(&windows, source, 5, T, shuffle), 0);
    for (uint64_t i = 0; i < 2 * windows.windows_per_epoch; i++) {
        assert_int_equal(sampler_window(&windows, i, inputs[0], targets[0], NULL), 0);
        assert_int_equal(sampler_window(&windows, i, inputs[1], targets[1], begins), 0);
        assert_memory_equal(inputs[0], inputs[1], sizeof inputs[0]);
        int32_t begin = 0;
        for (int32_t t = 0; t < T; t++) {
            if (t > 0 && inputs[0][at_begin ? t : t - 1] == MARK)
                begin = t;
            assert_int_equal(begins[t], begin);
            bool is_other = at_begin ? targets[0][t] == MARK : inputs[0][t] == MARK;
            assert_int_equal(targets[1][t], is_other ? -1 : targets[0][t]);
            inner += begin > 0;
            ignored += is_other;
        }
    }
    assert_true(inner > 0 && ignored > 0);
    sampler_fini(&windows);
}

static void windows_tell_documents_apart(void **state)
{
    static const enum shuffle all[] = {SHUFFLE_WINDOWS, SHUFFLE_DOCUMENTS, SHUFFLE_NONE};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        corpus *source = open_rows(300, 7);
        /* the file stores its documents: no effect */
        assert_int_equal(corpus_set_end_token(source, 3), 0);
        expect_documents(source, all[i], true);
        corpus_close(source);
        for (int at_begin = 0; at_begin < 2; at_begin++) {
            source = open_marked(300, at_begin);
            assert_false(corpus_has_documents(source));
            assert_int_equal(corpus_set_end_token(source, MARK), 0);
            assert_true(corpus_has_documents(source));
            expect_documents(source, all[i], at_begin);
            corpus_close(source);
        }
    }
}

/* A file that stores its documents, and one of ids, in one corpus. */
static void files_of_both_kinds_are_told_apart(void **state)
{
    enum { T = 24 };
    int32_t inputs[T], targets[T], begins[T];
    corpus *parts[2] = {open_rows(50, 7), open_marked(50, false)};
    corpus_close(parts[0]);
    corpus_close(parts[1]);
    char rows[256], marked[256];
    snprintf(rows, sizeof rows, "%s", in_directory("rows.npy"));
    snprintf(marked, sizeof marked, "%s", in_directory("marked.u16"));
    const char *paths[2] = {marked, rows};
    const enum data_format formats[2] = {DATA_U16, DATA_NPY};
    corpus *both;
    assert_int_equal(corpus_open_each(paths, formats, 2, 65536, &both), 0);
    assert_int_equal(corpus_set_end_token(both, MARK), 0);
    uint64_t border, count;
    assert_int_equal(corpus_document(both, 1, &border, &count), 0);
    sampler windows;
    assert_int_equal(sampler_init(&windows, both, 5, T, SHUFFLE_NONE), 0);
    for (uint64_t w = 0; w < windows.windows_per_epoch; w++) {
        int32_t begin = 0;
        assert_int_equal(sampler_window(&windows, w, inputs, targets, begins), 0);
        for (int32_t t = 0; t < T; t++) {
            bool is_row = w * T + (uint64_t)t >= border;
            if (t > 0 && inputs[is_row ? t : t - 1] == MARK)
                begin = t;
            assert_int_equal(begins[t], begin);
        }
    }
    sampler_fini(&windows);
    corpus_close(both);
}

/* Documents of many lengths, some of them empty, in two files. */
static void documents_of_an_index_are_told_apart(void **state)
{
    enum { T = 100 };
    static int32_t document_of[2 * TOKENS];
    int32_t inputs[T], targets[T], begins[T];
    const char *path = write_megatron("pair", 0, TOKENS, 65000, 8);
    const char *both[2] = {path, path};
    corpus *source = open_good(both, 2, DATA_AUTO, 65536);
    uint64_t begin, count, empty = 0;
    for (uint64_t i = 0; i < corpus_document_count(source); i++) {
        assert_int_equal(corpus_document(source, i, &begin, &count), 0);
        empty += count == 0;
        for (uint64_t t = begin; t < begin + count; t++)
            document_of[t] = (int32_t)i;
    }
    sampler windows;
    assert_int_equal(sampler_init(&windows, source, 5, T, SHUFFLE_NONE), 0);
    for (uint64_t w = 0; w < windows.windows_per_epoch; w++) {
        uint64_t of, from = w * T;
        assert_int_equal(sampler_window(&windows, w, inputs, targets, begins), 0);
        for (int32_t t = 0; t < T; t++) {
            assert_int_equal(corpus_document_of(source, from + t, &of), 0);
            assert_int_equal(of, document_of[from + t]);
            assert_true(begins[t] <= t && document_of[from + begins[t]] == document_of[from + t]);
            assert_true(begins[t] == 0 ||
                        document_of[from + begins[t] - 1] != document_of[from + t]);
            assert_int_equal(targets[t] < 0, document_of[from + t + 1] != document_of[from + t]);
        }
    }
    assert_int_equal(corpus_document_of(source, 2 * TOKENS, &begin), -EINVAL);
    print_message("%llu documents, %llu of them empty\n",
                  (unsigned long long)corpus_document_count(source), (unsigned long long)empty);
    sampler_fini(&windows);
    corpus_close(source);
}

/* ---- sources ---- */

/* Source s holds the value 1000 s + i / 8 at token i. */
static corpus *open_source(uint64_t s, uint64_t count)
{
    char name[32];
    struct bytes *out = fresh(0);
    for (uint64_t i = 0; i < count; i++)
        put(out, 1000 * s + i / 8, 2);
    snprintf(name, sizeof name, "source%llu", (unsigned long long)s);
    const char *path = store(name, out);
    return open_good(&path, 1, DATA_U16, 65536);
}

static void shares_are_exact(void **state)
{
    enum { T = 8, BLOCKS = 6, SOURCES = 4 };
    static const double weights[SOURCES] = {0.7, 0.2, 0.098, 0.002};
    static const uint64_t tokens[SOURCES] = {7002, 802, 402, 90};
    corpus *sources[SOURCES];
    mixture *data, *other;
    int32_t inputs[T], targets[T], again[2 * T];
    uint64_t had[SOURCES] = {0};
    for (int s = 0; s < SOURCES; s++)
        sources[s] = open_source((uint64_t)s, tokens[s]);
    assert_int_equal(
        mixture_create(sources, weights, SOURCES, 5, T, SHUFFLE_WINDOWS, DOCUMENTS_JOINED, &data),
        0);
    for (int s = 0; s < SOURCES; s++)
        sources[s] = open_source((uint64_t)s, tokens[s]);
    assert_int_equal(
        mixture_create(sources, weights, SOURCES, 5, T, SHUFFLE_WINDOWS, DOCUMENTS_JOINED, &other),
        0);
    static uint8_t seen[SOURCES][1001];
    memset(seen, 0, sizeof seen);
    for (uint64_t w = 0; w < BLOCKS * 1024; w++) {
        assert_int_equal(mixture_window(data, w, inputs, targets, NULL), 0);
        int s = inputs[T - 1] / 1000;
        uint64_t per_epoch = (tokens[s] - 2) / T;
        assert_true(s < SOURCES);
        if (had[s] % per_epoch == 0)
            memset(seen[s], 0, sizeof seen[s]);
        had[s]++;
        assert_int_equal(seen[s][inputs[T - 1] % 1000]++, 0); /* once an epoch, of its own */
        if (w % 97 == 0) {                                    /* any window at once */
            assert_int_equal(mixture_window(other, (w * 7919) % 99991, again, again + T, NULL), 0);
            assert_int_equal(mixture_window(other, w, again, again + T, NULL), 0);
            assert_memory_equal(inputs, again, sizeof inputs);
            assert_memory_equal(targets, again + T, sizeof targets);
        }
        if (w % 1024 != 1023)
            continue;
        for (int k = 0; k < SOURCES; k++) {
            double share = weights[k] * (double)(w + 1);
            assert_true((double)had[k] > share - 1.01 && (double)had[k] < share + 1.01);
            assert_int_equal(mixture_get_use(data, (uint32_t)k, w + 1).windows, had[k]);
        }
    }
    assert_true(mixture_get_use(data, 0, 1000).epochs > 0.79 &&
                mixture_get_use(data, 0, 1000).epochs < 0.81);
    mixture_destroy(data);
    mixture_destroy(other);
}

static void too_small_a_share(void **state)
{
    static const double weights[2] = {2000, 1};
    corpus *sources[2] = {open_source(0, 100), open_source(1, 100)};
    mixture *data;
    assert_error(
        mixture_create(sources, weights, 2, 5, 8, SHUFFLE_WINDOWS, DOCUMENTS_JOINED, &data),
        ERR_INPUT, "less than one window in 1024");
    corpus *one = open_source(0, 100), *two = open_source(1, 9);
    sources[0] = one;
    sources[1] = two;
    static const double even[2] = {1, 1};
    assert_error(mixture_create(sources, even, 2, 5, 8, SHUFFLE_WINDOWS, DOCUMENTS_JOINED, &data),
                 ERR_INPUT, "9 tokens");
    /* One source is its sampler. */
    one = open_source(0, 900);
    assert_int_equal(mixture_create(&one, even, 1, 5, 8, SHUFFLE_WINDOWS, DOCUMENTS_JOINED, &data),
                     0);
    corpus *same = open_source(0, 900);
    sampler windows;
    assert_int_equal(sampler_init(&windows, same, 5, 8, SHUFFLE_WINDOWS), 0);
    int32_t a[16], b[16];
    for (uint64_t w = 0; w < 300; w++) {
        assert_int_equal(mixture_window(data, w, a, a + 8, NULL), 0);
        assert_int_equal(sampler_window(&windows, w, b, b + 8, NULL), 0);
        assert_memory_equal(a, b, sizeof a);
    }
    mixture_destroy(data);
    corpus_close(same);
}

int main(void)
{
    printf("seed %d\n", SEED);
    log_set_level(LOG_WARN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arrays_are_read),
        cmocka_unit_test(bad_arrays_are_refused),
        cmocka_unit_test(a_long_header_is_told_from_a_cut_file),
        cmocka_unit_test(documents_of_an_index),
        cmocka_unit_test(documents_are_shuffled),
        cmocka_unit_test(many_short_documents),
        cmocka_unit_test(windows_in_order),
        cmocka_unit_test(windows_tell_documents_apart),
        cmocka_unit_test(files_of_both_kinds_are_told_apart),
        cmocka_unit_test(documents_of_an_index_are_told_apart),
        cmocka_unit_test(shares_are_exact),
        cmocka_unit_test(too_small_a_share),
    };
    return cmocka_run_group_tests(tests, directory_make, directory_remove);
}
