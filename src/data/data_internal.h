/* Declarations that the files of src/data share: one token file, and where its tokens and documents
 * lie; files of text and JSON records, as they are read. */
#ifndef SLUICE_DATA_INTERNAL_H
#define SLUICE_DATA_INTERNAL_H

#include <assert.h>
#include <stddef.h>

#include "data/corpus.h"

/* How a token is stored. */
struct datai_type {
    uint32_t bytes; /* 1, 2, 4 or 8 */
    bool is_signed;
};
typedef struct datai_type datai_type;

/* llm.c's token files: dev/data/data_common.py, HEADERS_INFO. The header is 256 uint32: magic,
 * version, count of tokens, zeros. */
enum { DATAI_LLMC_HEADER_BYTES = 1024 };
struct datai_llmc_kind {
    uint32_t magic, version;
    datai_type type;
};
typedef struct datai_llmc_kind datai_llmc_kind;
extern const datai_llmc_kind datai_llmc_kinds[2]; /* tokens of 2 bytes, of 4 bytes */

/* The header of Sluice's own format; token_file.h has the table. */
#define DATAI_MADE_MAGIC "SLUICETK"
enum { DATAI_MADE_VERSION = 1, DATAI_MADE_MARKS = 1, DATAI_MADE_BYTES = 2 };
struct datai_made_header {
    char magic[8];
    uint32_t version, token_bytes, flags, zero;
    uint64_t key, token_count, document_count, counted, sum;
};
static_assert(sizeof(struct datai_made_header) == 64 &&
                  offsetof(struct datai_made_header, key) == 24 &&
                  offsetof(struct datai_made_header, sum) == 56,
              "token_file.h");

/* How a file stores its documents. */
enum datai_documents {
    DATAI_ONE,      /* the file is one document */
    DATAI_ROWS,     /* each row of row_tokens is a document */
    DATAI_MEGATRON, /* in index_fd, an index that was checked */
    DATAI_ENDS      /* in fd at index_at: the end of each document in tokens, uint64 */
};

/* Where the end token stands in a file of one stored document that has several in truth. */
enum datai_end {
    DATAI_END_NONE, /* there is no such token */
    DATAI_END_LAST, /* as the last token of each document */
    DATAI_END_FIRST /* as the first one: the file begins with it, as llm.c writes its files */
};

struct datai_file {
    int fd;                  /* -1 while not open */
    char *path;              /* of the file that holds the tokens; from mem_alloc */
    enum data_format format; /* never DATA_AUTO */
    datai_type type;
    uint64_t file_bytes;               /* at the time of opening */
    uint64_t data_begin;               /* offset of the first token, in bytes */
    uint64_t token_begin, token_count; /* in the whole sequence */
    bool is_bytes;                     /* a token is a byte value: text, or made from text */
    bool is_checked;                   /* text that must be UTF-8: nobody named its format */
    bool has_marks;                    /* bit 31 of a token: it does not count as a target */
    uint64_t counted;                  /* number of tokens that count as targets */
    enum datai_documents documents;
    enum datai_end end;
    uint64_t document_begin, document_count; /* in the whole sequence */
    uint64_t row_tokens;                     /* for DATAI_ROWS */
    int index_fd;                            /* for DATAI_MEGATRON; else -1 */
    char *index_path;                        /* for DATAI_MEGATRON; from mem_alloc */
    uint64_t index_at;                       /* offset of the list of documents, in bytes */
    uint64_t sequence_count;                 /* for DATAI_MEGATRON */
};
typedef struct datai_file datai_file;

/* Opens the file that a path names, finds its format and checks everything except the tokens.
 * token_begin stays 0. After a failure too the caller must call datai_file_close. */
int datai_file_open(datai_file *self, const char *path, enum data_format format) MUST_CHECK;
void datai_file_close(datai_file *self);
/* The format in which a file would be opened. `field` is the member of a JSON record that would
 * hold its text. */
int datai_format_of(const char *path, enum data_format asked, const char *field,
                    enum data_format *out) MUST_CHECK;

/* Opens a regular file that is not empty; *bytes is its length. On failure *fd is -1. */
int datai_open(const char *path, int *fd, uint64_t *bytes) MUST_CHECK;
/* Reads exactly `bytes` bytes at `offset`. ERR_INPUT if the file ends before. */
int datai_pread(int fd, const char *path, uint64_t offset, uint64_t bytes, void *target) MUST_CHECK;

/* Checks the whole index at idx_path, and checks it against the opened .bin. Sets type and
 * token_count, and keeps the index open for its documents. */
int datai_megatron_index(datai_file *self, const char *idx_path) MUST_CHECK;
/* Document `idx` of the file's index: its tokens [*begin, *end) within the file. */
int datai_megatron_document(const datai_file *self, uint64_t idx, uint64_t *begin,
                            uint64_t *end) MUST_CHECK;
/* True if the file exists and begins like Megatron's index. */
bool datai_megatron_is_index(const char *path);

/* NumPy's arrays: sets type, data_begin, token_count and documents. */
bool datai_is_npy(const unsigned char *begin, uint64_t bytes);
int datai_npy(datai_file *self) MUST_CHECK;

/* Files of DATA_MADE: sets the same. */
bool datai_is_made(const unsigned char *begin, uint64_t bytes);
int datai_made(datai_file *self) MUST_CHECK;

/* ---- text and JSON records ---- */

enum { DATAI_BEGIN_BYTES = 24 }; /* first bytes of a file, enough for every magic */

/* Refuses a file of another program by its first bytes, with what to do with it. Compares only
 * magics of at least `bytes_min` bytes, because a file of raw token ids may begin with any four
 * bytes. */
int datai_refuse_foreign(const char *path, const unsigned char begin[DATAI_BEGIN_BYTES],
                         uint64_t file_bytes, uint32_t bytes_min) MUST_CHECK;

/* The length of the byte order mark that a file of UTF-8 begins with: 3 or 0. */
uint64_t datai_bom_bytes(const void *begin, uint64_t file_bytes);
/* The place of the first byte that is zero or belongs to no character of UTF-8, or `bytes`. Unless
 * the text `ends` there, its last character may be incomplete. */
uint64_t datai_find_bad(const char *text, uint64_t bytes, bool ends);
/* ERR_INPUT for a file whose byte `offset` is not text; names its line. */
int datai_refuse_text(int fd, const char *path, uint64_t offset) MUST_CHECK;

/* One JSON array that is being turned into JSON lines; see json_array.c. Zero at the beginning. */
struct datai_array {
    uint64_t depth;      /* of open brackets */
    uint64_t line;       /* newlines of the file until now */
    uint64_t record_idx; /* commas between records until now */
    bool in_text, is_escaped;
    bool has_record; /* something stands after the last comma */
    bool is_over;    /* the array has ended */
};
typedef struct datai_array datai_array;

/* Turns the next bytes into those of JSON lines, in place. ERR_INPUT with line and record. */
int datai_array_flatten(datai_array *self, const char *path, char *text, uint64_t bytes) MUST_CHECK;
/* ERR_INPUT unless the array is complete. */
int datai_array_end(const datai_array *self, const char *path) MUST_CHECK;
/* The line of the file, from 1, on which byte `offset` of the JSON line made of record `record_idx`
 * (from 0) stands. 0 if the file cannot be read. Reads the file up to there. */
uint64_t datai_array_line(const char *path, uint64_t record_idx, uint64_t offset);

/* A file of text or records that is read from its beginning to its end. */
enum datai_content {
    DATAI_UTF8,    /* text; every byte is checked */
    DATAI_RECORDS, /* JSON lines */
    DATAI_ARRAY    /* a JSON array, which becomes JSON lines */
};
struct datai_input {
    const char *path;
    int fd;                 /* borrowed */
    uint64_t bytes, offset; /* of the file; read until now */
    enum datai_content content;
    datai_array array;
    char held[4]; /* the beginning of a character that the next bytes complete */
    size_t held_bytes;
};
typedef struct datai_input datai_input;

/* begin: bytes at the beginning that are passed over. */
void datai_input_start(datai_input *self, const char *path, int fd, uint64_t bytes,
                       enum datai_content content, uint64_t begin);
/* Reads exactly the next `bytes` bytes. ERR_INPUT, with the place, for text that is not UTF-8 or
 * has zeros, and for an array that is not well-formed. */
int datai_input_read(datai_input *self, uint64_t bytes, char *target) MUST_CHECK;

/* The names of the members of a JSON record. If there are more than DATAI_NAMES_MAX, those that
 * decide the kind of the record are kept in place of others. */
enum { DATAI_NAMES_MAX = 16, DATAI_NAME_BYTES = 40, DATAI_KIND_BYTES = 448 };
struct datai_names {
    const char *field; /* the member that would hold the text; set before names are added */
    char names[DATAI_NAMES_MAX][DATAI_NAME_BYTES]; /* longer names are cut */
    char values[DATAI_NAMES_MAX];                  /* first byte of the value */
    uint32_t count;                                /* of all; may exceed DATAI_NAMES_MAX */
};
typedef struct datai_names datai_names;
void datai_names_add(datai_names *self, const char *name, size_t bytes, char value);
/* The first byte of a member's value; 0 if there is no such member. */
char datai_names_value(const datai_names *self, const char *name);

/* The beginning of a file of JSON. */
struct datai_record {
    bool is_array;    /* it begins with [ */
    bool is_object;   /* the first record begins with { */
    bool is_whole;    /* that object is well-formed, as far as that can be seen without parsing */
    bool spans_lines; /* it takes several lines */
    datai_names names;
};
typedef struct datai_record datai_record;

/* Examines the first record, of any length. `field` as in datai_names, which borrows it. */
int datai_first_record(int fd, const char *path, uint64_t bytes, const char *field,
                       datai_record *out) MUST_CHECK;

/* The kind of a record: DATA_JSONL for one with text in `field`, DATA_AUTO if it is unknown. */
enum data_format datai_kind_of(const char *field, const datai_names *names);
bool datai_kind_fits(enum data_format kind, const char *field, const datai_names *names);
/* ERR_INPUT for a record that is not of the kind `wanted`, or of no known kind (DATA_AUTO): what it
 * has, and what is known. */
int datai_refuse_kind(enum data_format wanted, const char *field,
                      const datai_names *names) MUST_CHECK;

/* Tokens [first, last) of a window of `count` inputs and one token more. */
struct datai_stretch {
    uint64_t first, last, count;
    bool is_begun; /* the first of them is its document's first token */
};
typedef struct datai_stretch datai_stretch;

/* Notes that the stretch belongs to document `idx` of the corpus; divides it at its end tokens. */
void datai_note_document(const corpus *self, uint64_t idx, datai_stretch of, const int32_t *inputs,
                         int32_t *targets, int32_t *begins);

/* A bijection of [0, count) for each seed, stream and epoch: returns the value at `position`.
 * `stream` is the first of six consecutive streams of rng.h that it uses. */
uint64_t datai_permute(uint64_t seed, uint64_t stream, uint64_t epoch, uint64_t count,
                       uint64_t position);

#endif
