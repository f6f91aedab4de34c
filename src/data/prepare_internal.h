/* What prepare.c and prepare_encode.c share: a piece of a file and the tokens that it gives. */
#ifndef SLUICE_DATA_PREPARE_INTERNAL_H
#define SLUICE_DATA_PREPARE_INTERNAL_H

#include "data/prepare.h"

/* Whole lines, or a part of a text, given to one thread. Reused from batch to batch. */
struct prepi_piece {
    const char *text;
    uint64_t bytes;
    uint64_t line;     /* of its first line, from 1 */
    bool begins;       /* a text: the document begins here; */
    bool ends;         /* it ends here */
    err_record failed; /* code 0: none */
    /* out: */
    uint32_t *tokens; /* with MADE_UNCOUNTED */
    size_t token_count, token_capacity;
    size_t *ends_at; /* [end_count] where documents end, in tokens of this piece */
    size_t end_count, end_capacity;
    /* of the thread that works on it: */
    token_list ids, prefix_ids;
    chat_text chat;
    chat_message *messages;
    size_t message_capacity;
};
typedef struct prepi_piece prepi_piece;
void prepi_piece_fini(prepi_piece *self);

/* What all pieces of a file share; constant while they are worked on. */
struct prepi_rules {
    const prepare_work *work;
    const prepare_options *options;
    const char *field;
    const int32_t *before; /* [before_count] ids that a document begins with */
    size_t before_count;
    int32_t end_id;    /* -1: none */
    bool has_safe_end; /* the token that ends an answer is one of the tokenizer's own */
};
typedef struct prepi_rules prepi_rules;

/* Fills the piece's tokens and ends. On failure with its text and code in piece->failed. */
void prepi_encode(const prepi_rules *rules, prepi_piece *piece);

#endif
