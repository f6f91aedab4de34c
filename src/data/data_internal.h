/* Declarations that the files of src/data share: one token file, and where its tokens and documents
 * lie. */
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

struct datai_file {
    int fd;                  /* -1 while not open */
    char *path;              /* of the file that holds the tokens; from mem_alloc */
    enum data_format format; /* never DATA_AUTO */
    datai_type type;
    uint64_t file_bytes;               /* at the time of opening */
    uint64_t data_begin;               /* offset of the first token, in bytes */
    uint64_t token_begin, token_count; /* in the whole sequence */
    bool is_bytes;                     /* a token is a byte value: text, or made from text */
    bool has_marks;                    /* bit 31 of a token: it does not count as a target */
    uint64_t counted;                  /* number of tokens that count as targets */
    enum datai_documents documents;
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
/* The format in which a file would be opened. */
int datai_format_of(const char *path, enum data_format asked, enum data_format *out) MUST_CHECK;

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

/* A bijection of [0, count) for each seed, stream and epoch: returns the value at `position`.
 * `stream` is the first of six consecutive streams of rng.h that it uses. */
uint64_t datai_permute(uint64_t seed, uint64_t stream, uint64_t epoch, uint64_t count,
                       uint64_t position);

#endif
