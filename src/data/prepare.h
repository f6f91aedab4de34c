/* Text and JSON lines made into token files (made.h), once, before training reads them.
 *
 *   a text file          one document, with the tokenizer's end token behind it; where that token is written in the
 *                        text, a document ends as well
 *   a JSON line          one document: {"text": "..."}, or another field, with the end token behind it; or a
 *                        conversation, {"messages": [{"role": "user", "content": "..."}, ...]}, in the form of
 *                        chat.h, where the assistant's answers alone, each with the token that ends it, count as
 *                        targets. A file has lines of one of the two kinds, as its first line has it
 *
 * Added tokens that are written in a text become their ids, as the tokenizer's own library does it.
 * What its post-processor puts before a text (a beginning) is put before each document, but not
 * before conversations, whose form has it. A tokenizer without an end token ("bytes") puts nothing
 * between documents.
 *
 * Which tokens a file gives does not depend on threads or on how it is cut: a text is cut between a
 * newline and what follows, where neither neighbour is white space (see cut_is_safe in prepare.c),
 * and only with a tokenizer that is known to cut there itself (tokenizer_cuts_lines); with another
 * one it is encoded whole, up to 1 GiB. All cores of the caller's OpenMP team; memory is some tens
 * of MiB, or what the longest line needs. */
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
    const char
        *chat_template;  /* data.chat_template: a name of chat.h; NULL: conversations are known
                                 * as such (is_chat), and cannot be made into tokens */
    const char *field;   /* of a JSON line that is no conversation; NULL or "": "text" */
    uint64_t vocab_size; /* the model's: each token is below it */
    bool has_no_end;     /* no end token is put behind documents of text */
    const volatile sig_atomic_t *stop; /* or NULL */
};
typedef struct prepare_options prepare_options;

/* What is to be done with one file. */
struct prepare_work {
    const char *path; /* borrowed */
    bool is_needed;   /* false: it is read as it is */
    bool is_json, is_chat;
    chat_form chat;
    uint64_t bytes; /* of the file */
    /* XXH3 of the file's absolute path, size and time of change, the tokenizer, field and form:
     * what has the same key has the same tokens */
    uint64_t key;
};
typedef struct prepare_work prepare_work;

/* Looks at a file, makes nothing: its format, its first line, the form of its conversations.
 * ERR_INPUT and ERR_CONFIG as corpus_open_as, chat_form_find and the first line have it. */
int prepare_look(const char *path, enum data_format format, const prepare_options *options,
                 prepare_work *out) MUST_CHECK;

/* Where tokens go, from the caller's thread in their order. Both return 0 or an error, which ends
 * the work. */
struct prepare_sink {
    void *user;
    int (*add)(void *user, const uint32_t *tokens, uint64_t count); /* with MADE_UNCOUNTED */
    int (*end_document)(void *user);                                /* may come where none began */
};
typedef struct prepare_sink prepare_sink;

/* Gives all tokens of a file to the sink, with a log line now and then. ERR_INPUT names file and
 * line; ERR_STOPPED. */
int prepare_run(const prepare_work *work, const prepare_options *options,
                const prepare_sink *sink) MUST_CHECK;

/* Makes the token file at `path`, with a log line now and then. ERR_INPUT names file and line;
 * ERR_STOPPED; nothing is left on failure. */
int prepare_make(const prepare_work *work, const prepare_options *options,
                 const char *path) MUST_CHECK;

#endif
