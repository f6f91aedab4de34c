/* Fuzzes JSON lines, conversations and the chat template beside a tokenizer.
 *
 *   offset  bytes  field
 *   0       1      form of conversations (names[]), modulo
 *   1       1      bit 0: the field is "t", else "text"; bit 1: the file is text, not JSON lines
 *   2       2      bytes of the template beside the tokenizer, little-endian; then the file's
 *   4              template, file
 *
 * The tokenizer is "bytes". A file that is made must have documents that cover all its tokens, the
 * bytes of its text, and as many marks as its header says; made again, it must be the same file. */
#include <string.h>

#include "base/log.h"
#include "data/corpus.h"
#include "data/prepare.h"
#include "fuzz.h"
#include "text/chat.h"

enum { HEAD_BYTES = 4, INPUT_MAX = 8192, TOKENS_MAX = 1 << 20 };

static const char *const names[] = {"auto",           "chatml", "qwen2",    "qwen2.5", "qwen3",
                                    "smollm2",        "llama3", "llama3.1", "mistral", "mistral-v1",
                                    "mistral-tekken", "zephyr", "plain"};
enum { NAME_COUNT = sizeof names / sizeof names[0] };

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
    fuzz_write_file("a.jsonl", bytes, count, path);
    snprintf(made, sizeof made, "%s/made", fuzz_directory());
    prepare_options options = {.words = words,
                               .tokenizer_name = beside,
                               .chat_template = names[data[0] % NAME_COUNT],
                               .field = data[1] & 1 ? "t" : NULL,
                               .vocab_size = 256};
    prepare_work work;
    corpus *source = NULL;
    const char *given = made;
    int rc = prepare_look(path, is_text ? DATA_TEXT : DATA_JSONL, &options, &work);
    if (rc == 0)
        rc = prepare_make(&work, &options, made);
    if (rc < 0) {
        fuzz_check_refusal(rc, ERR_INPUT, ERR_CONFIG);
    } else {
        rc = corpus_open_as(&given, 1, DATA_MADE, 256, &source);
        FUZZ_CHECK(rc == 0, "%s", err_text());
        check_corpus(source, is_text, bytes, count);
        corpus_close(source);
    }
    FUZZ_CHECK(fuzz_live_bytes() == live_bytes, "memory is kept");
    return 0;
}
