/* Fuzzes tokenizer.json and the patterns in it.
 *
 *   offset  bytes  field
 *   0       1      bit 0: adds_special; bit 1: plain_text; bit 2: there is a tokenizer_config.json
 *   1       1      bytes of the text
 *   2              text, then the document. In the document the first "@V" stands for a vocabulary
 *                  of all 256 bytes (ids 0 to 255, no braces), so that short inputs have one
 *
 * A refusal is one line of text. A tokenizer that opens must give ids that exist, and the same ids
 * each time. Where it says that text may be cut, text that is cut gives the ids of the whole. ASCII
 * text comes back from the tokens of a byte-level tokenizer that can be cut. */
#include <string.h>

#include "base/log.h"
#include "fuzz.h"
#include "text/tokenizer.h"

enum { HEAD_BYTES = 2, INPUT_MAX = 16384, DOCUMENT_MAX = 1 << 16, BYTES = 256 };

static char document[DOCUMENT_MAX], vocabulary[8192];
static size_t vocabulary_bytes;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    unsigned next = 256;
    (void)argc;
    (void)argv;
    log_set_level(LOG_QUIET);
    for (unsigned b = 0; b < BYTES; b++) {
        bool is_visible = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        vocabulary_bytes +=
            (size_t)snprintf(vocabulary + vocabulary_bytes, sizeof vocabulary - vocabulary_bytes,
                             "%s\"\\u%04x\": %u", b ? ", " : "", is_visible ? b : next++, b);
    }
    return 0;
}

/* The document with its vocabulary in place; bytes of it. */
static size_t fill_in(const uint8_t *data, size_t size)
{
    const uint8_t *mark = memmem(data, size, "@V", 2);
    size_t before = mark ? (size_t)(mark - data) : size, rest = mark ? size - before - 2 : 0;
    memcpy(document, data, before);
    if (!mark)
        return before;
    memcpy(document + before, vocabulary, vocabulary_bytes);
    memcpy(document + before + vocabulary_bytes, mark + 2, rest);
    return before + vocabulary_bytes + rest;
}

static bool encode(const tokenizer *self, const char *text, size_t bytes, bool special, bool plain,
                   token_list *out)
{
    const tokenize_options options = {.adds_special = special, .plain_text = plain};
    int rc = tokenizer_encode(self, text, bytes, &options, out);
    if (rc < 0) {
        fuzz_check_refusal(rc, ERR_INPUT, ERR_INPUT); /* the pattern gives up */
        return false;
    }
    for (size_t i = 0; i < out->count; i++)
        FUZZ_CHECK(out->ids[i] >= 0 && (uint64_t)out->ids[i] < tokenizer_vocab(self), "id %d",
                   out->ids[i]);
    return true;
}

static void check_same(const token_list *a, const token_list *b, const char *what)
{
    FUZZ_CHECK(a->count == b->count, "%s: %zu and %zu ids", what, a->count, b->count);
    for (size_t i = 0; i < a->count; i++)
        FUZZ_CHECK(a->ids[i] == b->ids[i], "%s: id %zu", what, i);
}

/* Wherever it is said to be safe; in a byte-level tokenizer at least behind a newline between two
 * letters, where tokenizer_cuts_lines promises it. */
static void check_cuts(const tokenizer *self, const char *text, size_t bytes, bool plain)
{
    for (size_t at = 2; at < bytes; at++) {
        token_list whole = {0}, parts = {0};
        bool is_line = text[at - 1] == '\n' && text[at - 2] > ' ' && text[at - 2] < 0x7f &&
                       text[at] > ' ' && text[at] < 0x7f && text[at] != '/';
        bool is_cut =
            tokenizer_cut_is_safe(self, text, bytes, at) || (is_line && !tokenizer_no_stream(self));
        if (is_cut && encode(self, text, bytes, false, plain, &whole) &&
            encode(self, text, at, false, plain, &parts) &&
            encode(self, text + at, bytes - at, false, plain, &parts))
            check_same(&whole, &parts, "cut");
        token_list_fini(&whole);
        token_list_fini(&parts);
    }
}

static void check_bytes(const tokenizer *self, const char *text, size_t bytes)
{
    token_list ids = {0};
    size_t at = 0, length;
    bool is_ascii = true;
    for (size_t i = 0; i < bytes; i++)
        is_ascii &= (unsigned char)text[i] < 0x80;
    if (is_ascii && encode(self, text, bytes, false, true, &ids)) {
        for (size_t i = 0; i < ids.count; i++) {
            const char *token = tokenizer_token_bytes(self, ids.ids[i], false, &length);
            FUZZ_CHECK(length <= bytes - at && memcmp(token, text + at, length) == 0, "token %zu",
                       i);
            at += length;
        }
        FUZZ_CHECK(at == bytes, "%zu of %zu bytes", at, bytes);
    }
    token_list_fini(&ids);
}

static void check_tokenizer(const tokenizer *self, uint8_t flags, const char *text, size_t bytes,
                            bool has_all_bytes)
{
    token_list first = {0}, again = {0};
    bool special = flags & 1, plain = flags & 2;
    size_t length;
    FUZZ_CHECK(tokenizer_end_id(self) < (int64_t)tokenizer_vocab(self), "end");
    FUZZ_CHECK(tokenizer_begin_id(self) < (int64_t)tokenizer_vocab(self), "begin");
    if (encode(self, text, bytes, special, plain, &first) &&
        encode(self, text, bytes, special, plain, &again))
        check_same(&first, &again, "again");
    for (int64_t id = -1; id <= (int64_t)tokenizer_vocab(self) && id < 1000; id++)
        FUZZ_CHECK(tokenizer_token_bytes(self, (int32_t)id, flags & 1, &length) != NULL, "bytes");
    if (tokenizer_cuts_lines(self))
        check_cuts(self, text, bytes, plain);
    if (tokenizer_cuts_lines(self) && has_all_bytes && !tokenizer_no_stream(self))
        check_bytes(self, text, bytes);
    token_list_fini(&first);
    token_list_fini(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH_BYTES], beside[FUZZ_PATH_BYTES];
    if (size < HEAD_BYTES || size > INPUT_MAX || size - HEAD_BYTES < data[1])
        return 0;
    uint64_t live = fuzz_live_bytes();
    const char *text = (const char *)data + HEAD_BYTES;
    size_t text_bytes = data[1];
    const uint8_t *rest = data + HEAD_BYTES + text_bytes;
    size_t rest_bytes = size - HEAD_BYTES - text_bytes;
    bool has_all_bytes = memmem(rest, rest_bytes, "@V", 2) != NULL;
    fuzz_write_file("tokenizer.json", document, fill_in(rest, rest_bytes), path);
    fuzz_remove_file("tokenizer_config.json");
    if (data[0] & 4)
        fuzz_write_file("tokenizer_config.json", text, text_bytes, beside);
    tokenizer *self;
    int rc = tokenizer_open(path, &self);
    if (rc < 0) {
        fuzz_check_refusal(rc, ERR_INPUT, ERR_CONFIG);
        FUZZ_CHECK(self == NULL, "a tokenizer that was refused");
    } else {
        check_tokenizer(self, data[0], text, text_bytes, has_all_bytes);
        tokenizer_close(self);
    }
    FUZZ_CHECK(fuzz_live_bytes() == live, "memory is left");
    return 0;
}
