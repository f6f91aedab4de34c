/* Fuzzes text, JSON records of all kinds, one a line or in an array, and the chat template beside a
 * tokenizer.
 *
 *   offset  bytes  field
 *   0       1      form of conversations (names[]), modulo
 *   1       1      bit 0: the field is "t", else "text"; bit 1: the file is text; bits 2 to 4, if
 *                  it is not: its format (formats[]), modulo; 0 is jsonl
 *   2       2      bytes of the template beside the tokenizer, little-endian; then the file's
 *   4              template, file
 *
 * The tokenizer is "bytes". A file that is made must have documents that cover all its tokens, the
 * bytes of its text, and as many marks as its header says. An array that is accepted must be a JSON
 * array for the JSON library too, with a record for each document. */
#include <string.h>

#include <jansson.h>

#include "base/log.h"
#include "data/corpus.h"
#include "data/prepare.h"
#include "fuzz.h"

enum { HEAD_BYTES = 4, INPUT_MAX = 8192, TOKENS_MAX = 1 << 20 };

static const char *const names[] = {"auto",           "chatml", "qwen2",    "qwen2.5", "qwen3",
                                    "smollm2",        "llama3", "llama3.1", "mistral", "mistral-v1",
                                    "mistral-tekken", "zephyr", "plain",    "alpaca",  "llama2",
                                    "phi3",           "gemma",  "gemma3",   "olmo2",   "granite3.1",
                                    "glm4",           "cohere"};

static const enum data_format formats[] = {DATA_JSONL,  DATA_AUTO,     DATA_MESSAGES,
                                           DATA_ALPACA, DATA_SHAREGPT, DATA_PROMPT_COMPLETION};

enum {
    NAME_COUNT = sizeof names / sizeof names[0],
    FORMAT_COUNT = sizeof formats / sizeof formats[0]
};

static tokenizer *words;
static int32_t tokens[TOKENS_MAX], targets[TOKENS_MAX];

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    log_set_level(LOG_QUIET);
    return tokenizer_open("bytes", &words);
}

static void check_corpus(corpus *source, bool is_text, const uint8_t *bytes, size_t size)
{
    uint64_t count = corpus_token_count(source), at = 0, counted = 0, begin, length;
    if (count > TOKENS_MAX)
        return;
    FUZZ_CHECK(corpus_read(source, 0, count, tokens) == 0, "%s", err_text());
    FUZZ_CHECK(corpus_read_targets(source, 0, count, targets) == 0, "%s", err_text());
    for (uint64_t i = 0; i < count; i++) {
        FUZZ_CHECK(tokens[i] < 256 && (targets[i] == -1 || targets[i] == tokens[i]), "token %d",
                   tokens[i]);
        counted += targets[i] >= 0;
    }
    FUZZ_CHECK(counted == corpus_counted(source), "%llu counted", (unsigned long long)counted);
    for (uint64_t i = 0; i < corpus_document_count(source); i++) {
        FUZZ_CHECK(corpus_document(source, i, &begin, &length) == 0, "%s", err_text());
        FUZZ_CHECK(begin == at && length > 0, "document %llu", (unsigned long long)i);
        at += length;
    }
    FUZZ_CHECK(at == count, "documents end at %llu", (unsigned long long)at);
    for (size_t i = 0; is_text && i < size; i++)
        FUZZ_CHECK(tokens[i] == bytes[i], "byte %zu", i);
    FUZZ_CHECK(!is_text || count == size, "%llu tokens", (unsigned long long)count);
}

static void check_array(corpus *source, const uint8_t *bytes, size_t size)
{
    json_error_t error;
    json_t *array =
        json_loadb((const char *)bytes, size, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &error);
    if (!array && json_error_code(&error) == json_error_stack_overflow)
        return; /* the array is one level deeper than its records */
    FUZZ_CHECK(json_is_array(array), "%s", error.text);
    FUZZ_CHECK(corpus_document_count(source) <= json_array_size(array), "%zu records",
               json_array_size(array));
    json_decref(array);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < HEAD_BYTES || size > INPUT_MAX)
        return 0;
    uint64_t live_bytes = fuzz_live_bytes();
    bool is_text = data[1] & 2;
    char path[FUZZ_PATH_BYTES], beside[FUZZ_PATH_BYTES], made[FUZZ_PATH_BYTES + 16];
    size_t template_bytes = data[2] | (size_t)data[3] << 8;
    if (template_bytes > size - HEAD_BYTES)
        template_bytes = size - HEAD_BYTES;
    const uint8_t *bytes = data + HEAD_BYTES + template_bytes;
    size_t count = size - HEAD_BYTES - template_bytes;
    fuzz_write_file("chat_template.jinja", data + HEAD_BYTES, template_bytes, beside);
    enum data_format format = is_text ? DATA_TEXT : formats[(data[1] >> 2 & 7) % FORMAT_COUNT];
    fuzz_write_file(format == DATA_AUTO ? "a" : "a.jsonl", bytes, count, path);
    snprintf(made, sizeof made, "%s/made", fuzz_directory());
    prepare_options options = {.words = words,
                               .tokenizer_name = beside,
                               .chat_template = names[data[0] % NAME_COUNT],
                               .field = data[1] & 1 ? "t" : NULL,
                               .vocab_size = 256};
    prepare_work work;
    corpus *source = NULL;
    const char *given = made;
    int rc = prepare_look(path, format, &options, &work);
    bool is_read = rc == 0 && !work.is_needed; /* found to be a file of tokens */
    if (rc == 0 && !is_read)
        rc = prepare_make(&work, &options, made);
    if (rc < 0) {
        fuzz_check_refusal(rc, ERR_INPUT, ERR_CONFIG);
    } else if (!is_read) {
        rc = corpus_open_as(&given, 1, DATA_MADE, 256, &source);
        FUZZ_CHECK(rc == 0, "%s", err_text());
        size_t mark = count >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
        check_corpus(source, work.kind == DATA_TEXT, bytes + mark, count - mark);
        if (work.is_array)
            check_array(source, bytes + mark, count - mark);
        corpus_close(source);
    }
    FUZZ_CHECK(fuzz_live_bytes() == live_bytes, "memory is kept");
    return 0;
}
