/* Tokenizers: text to token ids and back.
 *
 *   name                      what it is
 *   "bytes"                   token = byte value; vocabulary 256, no further tokens
 *   DIR or DIR/tokenizer.json Hugging Face's tokenizer.json of the byte-level BPE kind (GPT-2, Llama 3, Qwen,
 *                             SmolLM, ...): ids are exactly those of its own library
 *   FILE.model                a SentencePiece model, where libsentencepiece was there at build time
 *
 * The files tokenizer_config.json, config.json and generation_config.json beside it say which
 * tokens begin and end a
 * document; without them, a special token with a usual name does ("<|endoftext|>", "</s>", ...). Truncation and
 * padding that a tokenizer.json asks for are not done. An opened tokenizer is constant: any number
 * of threads may use it at once; each call borrows buffers and a cache of words from it (about 2
 * MiB for each call at once), which stay until it is closed. */
#ifndef SLUICE_DATA_TOKENIZER_H
#define SLUICE_DATA_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct tokenizer tokenizer;

/* ERR_INPUT with path and reason for a missing, damaged or hostile file; ERR_CONFIG for a kind of
 * tokenizer that is not supported, naming the part of the file. */
int tokenizer_open(const char *name, tokenizer **out) MUST_CHECK;
void tokenizer_close(tokenizer *self); /* NULL is allowed */

/* Every id is below it (highest id + 1, added tokens included). */
uint64_t tokenizer_vocab(const tokenizer *self);
/* The document's end and beginning; -1: it has none. */
int32_t tokenizer_end_id(const tokenizer *self);
int32_t tokenizer_begin_id(const tokenizer *self);
/* The id of a token by its text, as an added token is written: "<|im_start|>"; -1: there is
 * none. */
int32_t tokenizer_find(const tokenizer *self, const char *token);
/* XXH3 of all that decides about ids: runs and token files that must agree compare it. */
uint64_t tokenizer_hash(const tokenizer *self);

/* Ids as they grow; all zero is empty. mem_alloc'd, freed by token_list_fini. */
struct token_list {
    int32_t *ids;
    size_t count, capacity;
};
typedef struct token_list token_list;
void token_list_fini(token_list *self);

struct tokenize_options {
    /* what the post-processor adds around a text, such as a beginning-of-text token */
    bool adds_special;
    /* added tokens that are written in the text are text like any other: for data of strangers.
     * False: they become their ids, as the library does it */
    bool plain_text;
};
typedef struct tokenize_options tokenize_options;

/* Appends the ids of text[bytes] (UTF-8; what is no UTF-8 is replaced by U+FFFD as the library's
 * bindings do it). -ENOMEM; ERR_INPUT where the file's split pattern gives up: it takes more steps
 * than any sensible one. *out then holds ids of a part of the text. */
int tokenizer_encode(const tokenizer *self, const char *text, size_t bytes,
                     const tokenize_options *options, token_list *out) MUST_CHECK;

/* Whether a text may be cut behind a newline whose neighbours are no white space (of Unicode) and
 * whose second neighbour is no "/", so that the ids of the parts one after the other are those of
 * the whole, without what adds_special adds. True for "bytes" and for split patterns that this was
 * shown of (tokenizer_pattern.c), among them those of GPT-2, Llama 3 and 4, Qwen, SmolLM and
 * DeepSeek. False: it is not known; a text is encoded whole. */
bool tokenizer_cuts_lines(const tokenizer *self);

/* The bytes of one token as they lie in the text, not zero-terminated; *bytes 0 for special tokens
 * where `skip_special`. Constant, the tokenizer's. An id outside of the vocabulary has none. A
 * token may end within a UTF-8 sequence: who prints joins the bytes. */
const char *tokenizer_token_bytes(const tokenizer *self, int32_t id, bool skip_special,
                                  size_t *bytes);

#endif
