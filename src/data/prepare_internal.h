/* Shared by prepare.c and prepare_encode.c: a piece of a file, and the tokens that result from
 * it. */
#ifndef SLUICE_DATA_PREPARE_INTERNAL_H
#define SLUICE_DATA_PREPARE_INTERNAL_H

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

#endif
