/* Converts text and JSON lines to token files (token_file.h), once, before training reads them.
 *
 *   input         documents
 *   text file     One document, followed by the tokenizer's end token. An end token within the
 *                 text ends a document as well.
 *   JSON line     One document: {"text": "..."}, or another field, followed by the end token.
 *                 Or a conversation in the form of chat.h:
 *                 {"messages": [{"role": "user", "content": "..."}, ...]}. Only the assistant's
 *                 answers, each with the token that ends it, count as targets.
 *
 * All lines of a file are of the same kind, which its first line decides. Added tokens that appear
 * in the text become their ids, as in the tokenizer's own library. If its post-processor puts
 * something before a text (a beginning), that is put before each document, but not before
 * conversations, whose form has it already. A tokenizer without an end token ("bytes") puts nothing
 * between documents.
 *
 * The tokens of a file depend neither on threads nor on how the file is cut. A text is cut only at
 * a newline whose neighbours are not white space (see cut_is_safe in prepare.c), and only if the
 * tokenizer is known to cut there itself (tokenizer_cuts_lines). With another tokenizer the text is
 * encoded whole, up to 1 GiB.
 *
 * Uses all threads of the caller's OpenMP team. Memory is some tens of MiB, or what the longest
 * line needs. */
#ifndef SLUICE_DATA_PREPARE_H
#define SLUICE_DATA_PREPARE_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "data/corpus.h"
#include "text/chat.h"
#include "text/tokenizer.h"

struct prepare_options {
    const tokenizer *words;
    const char *tokenizer_name; /* data.tokenizer; "bytes": text files are read as they are */
    /* data.chat_template: a name of chat.h. NULL: conversations are recognized (is_chat), but
     * cannot be converted. */
    const char *chat_template;
    /* field of a JSON line that is not a conversation; NULL or "" means "text" */
    const char *field;
    uint64_t vocab_size;               /* the model's; every token is below it */
    bool has_no_end;                   /* no end token is put after documents of text */
    const volatile sig_atomic_t *stop; /* not 0: the work ends with ERR_STOPPED; may be NULL */
};
typedef struct prepare_options prepare_options;

/* The work to be done for one file. */
struct prepare_work {
    const char *path; /* borrowed */
    bool is_needed;   /* false: the file can be read as it is */
    bool is_json, is_chat;
    chat_form chat;
    uint64_t bytes; /* of the file */
    /* XXH3 of the file's absolute path, size and time of change, of the tokenizer, the field and
     * the form. Equal keys mean equal tokens. */
    uint64_t key;
};
typedef struct prepare_work prepare_work;

/* Examines a file: its format, its first line, the form of its conversations. Makes nothing.
 * ERR_INPUT and ERR_CONFIG as in corpus_open_as and chat_form_find, and for a wrong first line. */
int prepare_look(const char *path, enum data_format format, const prepare_options *options,
                 prepare_work *out) MUST_CHECK;

/* The receiver of tokens. It is called on the caller's thread, in the order of the tokens. Both
 * functions return 0 or an error, which ends the work. */
struct prepare_sink {
    void *user;
    /* tokens may have TOKEN_UNCOUNTED */
    int (*add)(void *user, const uint32_t *tokens, uint64_t count);
    int (*end_document)(void *user); /* may be called when no document has begun */
};
typedef struct prepare_sink prepare_sink;

/* The sink that writes a file of token_file.h. */
struct token_file;
prepare_sink prepare_to_file(struct token_file *out);

/* Gives all tokens of a file to the sink, with a log line from time to time. ERR_INPUT names file
 * and line; ERR_STOPPED. */
int prepare_run(const prepare_work *work, const prepare_options *options,
                const prepare_sink *sink) MUST_CHECK;

/* Makes the token file at `path`, with a log line from time to time. ERR_INPUT names file and line;
 * ERR_STOPPED. On failure no file is left. */
int prepare_make(const prepare_work *work, const prepare_options *options,
                 const char *path) MUST_CHECK;

#endif
