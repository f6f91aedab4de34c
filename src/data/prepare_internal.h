/* Shared by prepare.c, prepare_encode.c and prepare_records.c: a piece of a file, and the tokens
 * that result from it. */
#ifndef SLUICE_DATA_PREPARE_INTERNAL_H
#define SLUICE_DATA_PREPARE_INTERNAL_H

#include <jansson.h>

#include "data/prepare.h"

/* Whole lines, or a part of a text, for one thread. Reused from batch to batch. */
struct prepi_piece {
    const char *text;
    uint64_t bytes;
    uint64_t line;     /* number of its first line, from 1 */
    bool begins;       /* a text: the document begins in this piece */
    bool ends;         /* a text: the document ends in this piece */
    err_record failed; /* code 0: no error */
    /* results: */
    uint32_t *tokens; /* with TOKEN_UNCOUNTED */
    size_t token_count, token_capacity;
    size_t *ends_at; /* [end_count] ends of documents, in tokens of this piece */
    size_t end_count, end_capacity;
    /* memory of the thread that works on the piece: */
    token_list ids, prefix_ids;
    chat_text chat;
    chat_message *messages;
    size_t message_capacity;
    char *joined; /* texts of a record, put together */
    size_t joined_capacity, joined_bytes;
};
typedef struct prepi_piece prepi_piece;
void prepi_piece_fini(prepi_piece *self);

/* The rules for all pieces of a file; constant during the work. */
struct prepi_rules {
    const prepare_work *work;
    const prepare_options *options;
    const char *field;
    const int32_t *before; /* [before_count] ids put before each document */
    size_t before_count;
    int32_t end_id;    /* -1: the tokenizer has none */
    bool has_safe_end; /* the token that ends an answer is one of the tokenizer's own */
};
typedef struct prepi_rules prepi_rules;

/* Fills the piece's tokens and ends. An error goes, with its text and code, to piece->failed. */
void prepi_encode(const prepi_rules *rules, prepi_piece *piece);

/* Makes room for `more` entries after the `count` of a list. */
int prepi_make_room(void **list, size_t *capacity, size_t count, size_t more,
                    size_t elem_bytes) MUST_CHECK;

/* Adds the tokens of one record, a JSON value (prepare_records.c). */
int prepi_take_record(const prepi_rules *rules, prepi_piece *piece,
                      const json_t *record) MUST_CHECK;

/* Add a document (prepare_encode.c): a text, whose tokens all count; a prompt and its completion,
 * which alone counts; the first messages of the piece, of which the answers count. */
int prepi_add_document(const prepi_rules *rules, prepi_piece *piece, const char *text,
                       size_t bytes) MUST_CHECK;
int prepi_add_completion(const prepi_rules *rules, prepi_piece *piece, const char *text,
                         size_t prompt_bytes, size_t bytes) MUST_CHECK;
int prepi_add_chat(const prepi_rules *rules, prepi_piece *piece, size_t message_count) MUST_CHECK;

#endif
