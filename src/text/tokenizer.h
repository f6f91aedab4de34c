/* Tokenizers: text to token ids and back.
 *
 *   name                        tokenizer
 *   "bytes"                     token = byte value; vocabulary 256, no other tokens
 *   DIR or DIR/tokenizer.json   Hugging Face's tokenizer.json: BPE, byte-level (GPT-2, Llama 3,
 *                               Qwen, SmolLM, ...) or with byte fallback (Llama 2, Gemma);
 *                               WordPiece (BERT); Unigram (T5, ALBERT). Ids are exactly those of
 *                               its library
 *   FILE.model                  a SentencePiece model; needs libsentencepiece at build time
 *
 * tokenizer_config.json, config.json and generation_config.json in the same directory name the
 * tokens that begin and end a document. Without them a special token with a usual name is taken
 * ("<|endoftext|>", "</s>", ...). Truncation and padding in a tokenizer.json are ignored.
 *
 * An opened tokenizer is constant: any number of threads may use it at once. Each call borrows
 * buffers and a cache of words from it, about 2 MiB for each concurrent call. They stay allocated
 * until the tokenizer is closed.
 *
 * "The library" in these files is the software whose ids we reproduce: `tokenizers` of Hugging
 * Face, or libsentencepiece. */
#ifndef SLUICE_TEXT_TOKENIZER_H
#define SLUICE_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/file.h"

typedef struct tokenizer tokenizer;

/* Opens a tokenizer. ERR_INPUT with path and reason for a missing, damaged or hostile file.
 * ERR_CONFIG for an unsupported kind of tokenizer; the text names the part of the file. */
int tokenizer_open(const char *name, tokenizer **out) MUST_CHECK;
void tokenizer_close(tokenizer *self); /* NULL is allowed */
/* The path of a file beside the files of a tokenizer of this name. ERR_INPUT if it is too long. */
int tokenizer_beside(const char *name, const char *file_name, char out[FILE_PATH_BYTES]) MUST_CHECK;

/* The tokenizer "bytes" as a tokenizer.json, which the library and tokenizer_open read. The ids of
 * valid UTF-8 are the same. A document of jansson, which the caller releases; NULL: no memory. */
struct json_t *tokenizer_bytes_document(void) MUST_CHECK;

/* All ids are below this number (highest id + 1, added tokens included). */
uint64_t tokenizer_vocab(const tokenizer *self);
/* The token that ends, or begins, a document; -1 if there is none. */
int32_t tokenizer_end_id(const tokenizer *self);
int32_t tokenizer_begin_id(const tokenizer *self);
/* The token with which documents end within text and ids; -1 if none is known. It is
 * tokenizer_end_id, unless chats end each of their messages with that: then it is another token
 * with a usual name, if there is one. */
int32_t tokenizer_document_end_id(const tokenizer *self);
/* The id of a token by its text as in the file ("<|im_start|>"), or -1 if there is none. */
int32_t tokenizer_find(const tokenizer *self, const char *token);
/* True if a text is found to have this token where it stands, and the ids of the text after it are
 * those of that text alone. */
bool tokenizer_separates(const tokenizer *self, const char *token);
/* XXH3 of everything that affects ids. Compare it where runs and token files must agree. */
uint64_t tokenizer_hash(const tokenizer *self);

/* A growing list of ids; all zero is empty. From mem_alloc; token_list_fini frees it. */
struct token_list {
    int32_t *ids;
    size_t count, capacity;
};
typedef struct token_list token_list;
void token_list_fini(token_list *self);

struct tokenize_options {
    /* add what the post-processor puts around a text, such as a beginning-of-text token */
    bool adds_special;
    /* True: added tokens that appear in the text are ordinary text; use it for untrusted data.
     * False: they become their ids, as in the library. */
    bool plain_text;
};
typedef struct tokenize_options tokenize_options;

/* Appends the ids of text[bytes] (UTF-8; invalid bytes are replaced by U+FFFD as the library's
 * bindings do). On failure *out holds ids of a part of the text. -ENOMEM; ERR_INPUT if the file's
 * split pattern exceeds a limit on steps that no sensible pattern reaches. */
int tokenizer_encode(const tokenizer *self, const char *text, size_t bytes,
                     const tokenize_options *options, token_list *out) MUST_CHECK;

/* A text that is read piece by piece. `read` gives up to `bytes` bytes from `offset` on; it returns
 * their number, 0 at the end of the text, or an error. Offsets go up, except that the text may be
 * read again from an earlier offset. */
struct tokenize_source {
    void *user;
    int (*read)(void *user, uint64_t offset, char *target, size_t bytes);
};
typedef struct tokenize_source tokenize_source;

/* The receiver of ids, in their order. Returns 0 or an error, which ends the work. */
struct tokenize_sink {
    void *user;
    int (*add)(void *user, const int32_t *ids, size_t count);
};
typedef struct tokenize_sink tokenize_sink;

/* Gives the ids of a text of any length to the sink; they are those of tokenizer_encode without
 * adds_special. Memory is at most TOKENIZE_STREAM_BYTES, for a text of any length. The function is
 * slower than tokenizer_encode. ERR_INPUT if the tokenizer cannot do it (tokenizer_no_stream), or
 * for a text whose ids need more memory: thousands of combining characters in a row with a normal
 * form, or a word that some tables of merges decide from its end. */
int tokenizer_encode_stream(const tokenizer *self, const tokenize_source *source, bool plain_text,
                            const tokenize_sink *sink) MUST_CHECK;
enum { TOKENIZE_STREAM_BYTES = 4 << 20 };
/* The reason, as the end of a sentence, why texts cannot be encoded as streams; NULL if that is
 * possible. It is possible with "bytes" and with the split patterns of GPT-2, Llama 3 and 4, Qwen,
 * SmolLM, DeepSeek and Tekken. */
const char *tokenizer_no_stream(const tokenizer *self);

/* True if text[bytes] may be cut before byte `at` without changing its ids, apart from what
 * adds_special adds. So cut, the parts are encoded each by itself. True only before a space or a
 * tab, or after a newline, where it is proved for the split pattern (tokenizer_known.c); never at
 * the ends of the text. False may also mean that nothing is known. */
bool tokenizer_cut_is_safe(const tokenizer *self, const char *text, size_t bytes, size_t at);
/* True if there are such places at all. */
bool tokenizer_cuts_lines(const tokenizer *self);

/* The bytes of one token as they stand in the text, not zero-terminated. *bytes is 0 for an id
 * outside the vocabulary, and for special tokens if `skip_special`. The bytes are constant and
 * belong to the tokenizer. A token may end within a UTF-8 sequence, so join the bytes before
 * printing. A space that the tokenizer puts in front of a text, or between words, belongs to the
 * token after it. */
const char *tokenizer_token_bytes(const tokenizer *self, int32_t id, bool skip_special,
                                  size_t *bytes);

#endif
