/* Converts text and JSON records to token files (token_file.h), once, before training reads them.
 * Text must be UTF-8; a byte order mark is left out. Records stand one a line, or in one array.
 *
 *   input             members        documents
 *   text file                        One document, followed by the tokenizer's end token. An end
 *                                    token within the text ends a document as well.
 *   jsonl             "text"         One document, followed by the end token. Another member may be
 *                                    named for it.
 *   messages          "messages"     A conversation in the form of chat.h. Each message has "role"
 *                                    and "content". Only the assistant's answers, each with the
 *                                    token that ends it, count as targets; those of "weight" 0 do
 *                                    not.
 *   sharegpt          "conversations"  The same; a message has "from" and "value". Roles: system;
 *                                    human, user; gpt, chatgpt, assistant, model.
 *   alpaca            "instruction", "output", maybe "input", "system", "history"
 *                                    A conversation: the pairs of "history", then instruction,
 *                                    newline and input as the user's message, and the output as the
 *                                    answer. In the form alpaca: Alpaca's prompts, with the input
 *                                    under its own heading.
 *   prompt_completion "prompt", "completion"
 *                                    Two texts: one document without a form, followed by the end
 *                                    token unless it is there. Only the completion counts. Or two
 *                                    lists of messages: a conversation of both. Only the answers
 *                                    in the completion count.
 *
 * All records of a file are of the same kind, which its first one decides if nobody names it. Added
 * tokens that appear in the text become their ids, as in the tokenizer's own library. If its
 * post-processor puts something before a text (a beginning), that is put before each document, but
 * not before conversations, whose form has it already (alpaca has none). A tokenizer without an end
 * token ("bytes") puts nothing between documents.
 *
 * The tokens of a file do not depend on threads, on memory or on how the file is cut. A text is cut
 * only where the tokenizer is known to cut itself (tokenizer_cut_is_safe). A long text without such
 * a place, such as a single letter repeated, is encoded as a stream by one thread. A tokenizer that
 * cannot do that (tokenizer_no_stream) needs the whole text in memory, and a conversation must fit
 * into memory with any tokenizer.
 *
 * Uses all threads of the caller's OpenMP team, and at most memory_bytes of memory. A text or a
 * record that needs more is refused with file, line and numbers. */
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
    /* data.chat_template: a name of chat.h. NULL: conversations are recognized (has_marks), but
     * cannot be converted. */
    const char *chat_template;
    /* member of a JSON record that holds its text; NULL or "" means "text" */
    const char *field;
    uint64_t vocab_size; /* the model's; every token is below it */
    int mode;            /* permissions of files that are made (base/file.h) */
    bool has_no_end;     /* no end token is put after documents of text */
    /* for all buffers; 0: half of the machine's memory. See prepare_check_memory. */
    uint64_t memory_bytes;
    const volatile sig_atomic_t *stop; /* not 0: the work ends with ERR_STOPPED; may be NULL */
};
typedef struct prepare_options prepare_options;

/* The work to be done for one file. */
struct prepare_work {
    const char *path; /* borrowed */
    bool is_needed;   /* false: the file can be read as it is */
    /* DATA_TEXT, DATA_JSONL for records of text, or the kind of the records */
    enum data_format kind;
    bool is_json, is_array; /* records; in one array */
    bool has_marks;         /* the kind has tokens that do not count as targets */
    bool has_chat;          /* conversations, written as `chat` says */
    chat_form chat;
    uint64_t bytes, begin; /* of the file; of its byte order mark, if it is text */
    /* XXH3 of the file's absolute path, size and time of change, of the tokenizer, the kind, the
     * field and the form. Equal keys mean equal tokens. */
    uint64_t key;
};
typedef struct prepare_work prepare_work;

/* Examines a file: its format, its first record, the form of its conversations. Makes nothing.
 * ERR_INPUT and ERR_CONFIG as in corpus_open_as and chat_form_find, and for a first record that is
 * of no known kind, or not of the kind that `format` names. */
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

/* True if memory_bytes is enough for any work. */
bool prepare_has_memory(const prepare_options *options);
/* ERR_NO_FIT, which names the setting that fits, if it is not. */
int prepare_check_memory(const prepare_work *work, const prepare_options *options) MUST_CHECK;

/* Gives all tokens of a file to the sink, with a log line from time to time. ERR_INPUT names file
 * and line; ERR_STOPPED. */
int prepare_run(const prepare_work *work, const prepare_options *options,
                const prepare_sink *sink) MUST_CHECK;

/* Makes the token file at `path`, with a log line from time to time. ERR_INPUT names file and line;
 * ERR_STOPPED. On failure no file is left. */
int prepare_make(const prepare_work *work, const prepare_options *options,
                 const char *path) MUST_CHECK;

#endif
