/* Shared by the files prepare*.c: the conversion of a file, a piece of it, and the tokens that
 * result from the piece. */
#ifndef SLUICE_DATA_PREPARE_INTERNAL_H
#define SLUICE_DATA_PREPARE_INTERNAL_H

#include <jansson.h>

#include "data/data_internal.h"
#include "data/prepare.h"

/* Whole lines, or a part of a text, for one thread. Reused from batch to batch. */
struct prepi_piece {
    const char *text;
    uint64_t bytes;
    uint64_t line;     /* number of its first line, from 1 */
    bool begins;       /* a text: the document begins in this piece */
    bool ends;         /* a text: the document ends in this piece */
    bool is_record;    /* a text of a JSON record: an end token in it ends no document */
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
    int32_t cut_id;    /* a document ends after it (tokenizer_document_end_id), or -1 */
    bool has_safe_end; /* the token that ends an answer is one of the tokenizer's own */
};
typedef struct prepi_rules prepi_rules;

/* The conversion of one file. */
struct prepi_record;
struct prepi_maker {
    const prepare_work *work;
    const prepare_options *options;
    prepi_rules rules;
    token_list before;
    int fd;
    datai_input input;
    /* NULL; or the text of a record that is being read, whose bytes take the place of the file's */
    struct prepi_record *record;
    char *text; /* [capacity]; the file's contents, or the record's text, from text_offset on */
    uint64_t capacity, capacity_most; /* now, and what the memory allows */
    uint64_t text_bytes, text_offset, line;
    bool is_over; /* nothing follows the text in memory */
    bool can_cut; /* the tokenizer has safe cuts */
    int threads;
    prepi_piece *pieces; /* [PIECE_COUNT] */
    uint32_t piece_count;
    const prepare_sink *sink;
    uint64_t token_count; /* number given to the sink */
    uint64_t begin_ns, told_ns;
};
typedef struct prepi_maker prepi_maker;

/* ---- prepare.c ---- */
const char *prepi_field(const prepare_options *options);
/* Converts all that is left of the file, or of the record's text. */
int prepi_make(prepi_maker *self) MUST_CHECK;
/* Gives the tokens of a piece to the sink, or returns its error. */
int prepi_write(prepi_maker *self, const prepi_piece *piece) MUST_CHECK;
void prepi_tell(prepi_maker *self, bool is_done); /* a log line from time to time */
int prepi_check_stop(const prepi_maker *self) MUST_CHECK;

/* ---- prepare_long.c ---- */
/* Reads up to `bytes` bytes of the file, or of the record's text. The offset is where the last read
 * ended, or before. Returns their number, 0 at the end, or an error. */
int64_t prepi_read(prepi_maker *self, uint64_t offset, char *target, uint64_t bytes) MUST_CHECK;
uint64_t prepi_begin(const prepi_maker *self);    /* the offset of the first byte of the text */
uint64_t prepi_line(const prepi_maker *self);     /* of the file, for messages */
uint64_t prepi_progress(const prepi_maker *self); /* bytes of the file that are done */
/* The buffer is full of text without a safe cut: converts the text up to the next one. */
int prepi_stream(prepi_maker *self) MUST_CHECK;
/* The buffer is full of the beginning of a record: converts the record. */
int prepi_long_record(prepi_maker *self) MUST_CHECK;

/* ---- prepare_encode.c, prepare_records.c ---- */
/* Fills the piece's tokens and ends. An error goes, with its text and code, to piece->failed. */
void prepi_encode(const prepi_rules *rules, prepi_piece *piece);

/* Makes room for `more` entries after the `count` of a list. */
int prepi_make_room(void **list, size_t *capacity, size_t count, size_t more,
                    size_t elem_bytes) MUST_CHECK;

/* Puts the place of a record before an error in it. error_at: bytes of the record before it. */
int prepi_prefix_place(const prepi_rules *rules, uint64_t line, size_t error_at, int rc) MUST_CHECK;

/* ERR_INPUT if a JSON value is no record of the file's kind. */
int prepi_check_record(const prepi_rules *rules, const json_t *record) MUST_CHECK;
/* Adds the tokens of one record, a JSON value (prepare_records.c). */
int prepi_take_record(const prepi_rules *rules, prepi_piece *piece,
                      const json_t *record) MUST_CHECK;

/* Add a document (prepare_encode.c), each in one of these ways:
 *
 *   begin_text, add_ids, end_text   a text in parts; is_ended: its last id is the end token
 *   add_document                    a text, whose tokens all count
 *   add_completion                  a prompt and its completion, which alone counts
 *   add_chat                        the first messages of the piece, of which the answers count */
int prepi_begin_text(const prepi_rules *rules, prepi_piece *piece) MUST_CHECK;
int prepi_add_ids(const prepi_rules *rules, prepi_piece *piece, const int32_t *ids,
                  size_t count) MUST_CHECK;
int prepi_end_text(const prepi_rules *rules, prepi_piece *piece, bool is_ended) MUST_CHECK;
bool prepi_is_end(const prepi_rules *rules, int32_t id); /* a text that ends with it needs no end */
int prepi_add_document(const prepi_rules *rules, prepi_piece *piece, const char *text,
                       size_t bytes) MUST_CHECK;
int prepi_add_completion(const prepi_rules *rules, prepi_piece *piece, const char *text,
                         size_t prompt_bytes, size_t bytes) MUST_CHECK;
int prepi_add_chat(const prepi_rules *rules, prepi_piece *piece, size_t message_count) MUST_CHECK;

#endif
