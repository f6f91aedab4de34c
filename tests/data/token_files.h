/* Writers of token files for the tests of src/data. Each format has its own code here, independent
 * of the product's. Includes all headers that those tests need. */
#ifndef SLUICE_TESTS_TOKEN_FILES_H
#define SLUICE_TESTS_TOKEN_FILES_H

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/size.h"
#include "data/corpus.h"
#include "data/prepare.h"
#include "data/token_file.h"
#include "tests/directory.h"
#include "text/chat.h"

enum { SEED = 20240520, TOKENS = 3001, VOCAB = 50257 };

/* Removes the files of a test. */
static inline void remove_all(void)
{
    assert_int_equal(directory_remove(NULL), 0);
    assert_int_equal(mkdir(directory, 0700), 0);
}

/* ---- writers of our own ---- */

struct bytes {
    unsigned char data[1 << 20];
    size_t count;
};

static inline void put(struct bytes *self, uint64_t value, unsigned width)
{
    assert_true(self->count + width <= sizeof self->data);
    for (unsigned i = 0; i < width; i++)
        self->data[self->count++] = (unsigned char)(value >> 8 * i);
}

static inline const char *store(const char *name, const struct bytes *content)
{
    return write_text(name, content->data, content->count);
}

static inline struct bytes *fresh(int which)
{
    static struct bytes two[2];
    two[which].count = 0;
    return &two[which];
}

/* A stream with all values of a vocabulary. */
static inline int32_t token_of(uint64_t idx, uint64_t vocab)
{
    return (int32_t)rng_below(SEED, 5, idx, vocab);
}

static inline const char *write_ids(const char *name, uint64_t begin, uint64_t count,
                                    uint64_t vocab, unsigned width)
{
    struct bytes *out = fresh(0);
    for (uint64_t i = 0; i < count; i++)
        put(out, (uint64_t)token_of(begin + i, vocab), width);
    return store(name, out);
}

static inline void put_llmc_header(struct bytes *out, uint32_t magic, uint32_t version,
                                   uint32_t count)
{
    put(out, magic, 4);
    put(out, version, 4);
    put(out, count, 4);
    for (int i = 3; i < 256; i++)
        put(out, 0, 4);
}

static inline const char *write_llmc(const char *name, uint64_t begin, uint64_t count,
                                     uint64_t vocab, bool is_32)
{
    struct bytes *out = fresh(0);
    put_llmc_header(out, is_32 ? 20240801 : 20240520, is_32 ? 7 : 1, (uint32_t)count);
    for (uint64_t i = 0; i < count; i++)
        put(out, (uint64_t)token_of(begin + i, vocab), is_32 ? 4 : 2);
    return store(name, out);
}

static inline unsigned width_of(unsigned code)
{
    static const unsigned widths[] = {0, 1, 1, 2, 4, 8, 8, 4, 2};
    return widths[code];
}

/* Sequences of 0 to 99 tokens, one to three in a document. */
static inline void make_index(struct bytes *out, uint64_t count, unsigned code)
{
    static uint64_t lengths[4096], documents[4096];
    uint64_t sequence_count = 0, document_count = 0, done = 0, next = 0;
    while (done < count) {
        if (sequence_count == next) {
            documents[document_count++] = next;
            next += 1 + rng_below(SEED, 8, document_count, 3);
        }
        uint64_t length = size_min(rng_below(SEED, 7, sequence_count, 100), count - done);
        lengths[sequence_count++] = length;
        done += length;
    }
    documents[document_count++] = sequence_count;
    memcpy(out->data, "MMIDIDX\0\0", 9);
    out->count = 9;
    put(out, 1, 8);
    put(out, code, 1);
    put(out, sequence_count, 8);
    put(out, document_count, 8);
    for (uint64_t i = 0; i < sequence_count; i++)
        put(out, lengths[i], 4);
    uint64_t place = 0;
    for (uint64_t i = 0; i < sequence_count; place += lengths[i] * width_of(code), i++)
        put(out, place, 8);
    for (uint64_t i = 0; i < document_count; i++)
        put(out, documents[i], 8);
}

/* The common name of the pair. */
static inline const char *write_megatron(const char *name, uint64_t begin, uint64_t count,
                                         uint64_t vocab, unsigned code)
{
    char file[64];
    snprintf(file, sizeof file, "%s.bin", name);
    write_ids(file, begin, count, vocab, width_of(code));
    struct bytes *index = fresh(0);
    make_index(index, count, code);
    snprintf(file, sizeof file, "%s.idx", name);
    store(file, index);
    return in_directory(name);
}

/* Replaces bytes of a file. */
static inline void patch(const char *path, uint64_t offset, uint64_t value, unsigned width)
{
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, &value, width, (off_t)offset), width);
    close(fd);
}

/* ---- what they give ---- */

static inline corpus *open_good(const char *const *paths, uint32_t count, enum data_format format,
                                uint64_t vocab)
{
    corpus *source;
    assert_ok(corpus_open_as(paths, count, format, vocab, &source));
    return source;
}

static inline void expect_tokens(corpus *source, uint64_t count, uint64_t vocab)
{
    static int32_t tokens[TOKENS];
    assert_int_equal(corpus_token_count(source), count);
    assert_ok(corpus_read(source, 0, count, tokens));
    for (uint64_t i = 0; i < count; i++)
        assert_int_equal(tokens[i], token_of(i, vocab));
    for (uint64_t turn = 0; turn < 200; turn++) {
        uint64_t begin = rng_below(SEED, 11, turn, count);
        uint64_t part = rng_below(SEED, 12, turn, count - begin + 1);
        assert_ok(corpus_read(source, begin, part, tokens));
        for (uint64_t i = 0; i < part; i++)
            assert_int_equal(tokens[i], token_of(begin + i, vocab));
    }
    assert_int_equal(corpus_read(source, count, 1, tokens), -EINVAL);
}

/* ---- for the tests of prepare.h ---- */

static tokenizer *words;

static inline prepare_options options_of(const char *form, const char *field)
{
    return (prepare_options){.words = words,
                             .tokenizer_name = "some",
                             .chat_template = form,
                             .field = field,
                             .vocab_size = 256};
}

static inline int prepare_setup(void **state)
{
    log_set_level(LOG_WARN);
    return directory_make(state) == 0 ? tokenizer_open("bytes", &words) : -1;
}

static inline int prepare_teardown(void **state)
{
    tokenizer_close(words);
    return directory_remove(state);
}

/* Looks at and makes; the corpus of it, or NULL with the error. */
static inline corpus *make_in(const char *path, enum data_format format,
                              const prepare_options *options)
{
    prepare_work work;
    corpus *source = NULL;
    const char *made = in_directory("made.tokens");
    unlink(made);
    if (prepare_look(path, format, options, &work) < 0)
        return NULL;
    assert_true(work.is_needed);
    if (prepare_make(&work, options, made) < 0) {
        assert_int_not_equal(access(made, F_OK), 0);
        assert_int_not_equal(access(in_directory("made.tokens.partial"), F_OK), 0);
        return NULL;
    }
    assert_true(token_file_is_made(made, work.key));
    assert_false(token_file_is_made(made, work.key + 1));
    assert_ok(corpus_open_as(&made, 1, DATA_AUTO, 256, &source));
    return source;
}

static inline corpus *make(const char *path, const prepare_options *options)
{
    return make_in(path, DATA_AUTO, options);
}

/* The tokens as text, documents ended by '|', those that do not count in upper case's place:
 * '.'. */
static inline const char *show(corpus *source)
{
    static char text[4096];
    static int32_t tokens[2048], targets[2048];
    size_t at = 0;
    uint64_t count = corpus_token_count(source), document = 0, begin, length;
    assert_true(count < 2000);
    assert_ok(corpus_read(source, 0, count, tokens));
    assert_ok(corpus_read_targets(source, 0, count, targets));
    assert_ok(corpus_document(source, 0, &begin, &length));
    for (uint64_t i = 0; i < count; i++) {
        assert_true(targets[i] == -1 || targets[i] == tokens[i]);
        text[at++] = targets[i] < 0 ? '.' : (char)tokens[i];
        if (i + 1 < begin + length)
            continue;
        text[at++] = '|';
        if (++document < corpus_document_count(source))
            assert_ok(corpus_document(source, document, &begin, &length));
    }
    text[at] = '\0';
    assert_int_equal(document, corpus_document_count(source));
    return text;
}

#endif
