/* What the files of src/data share: one token file, and where in it the tokens lie.
 *
 *   corpus.c    files -> one sequence; reads, widens and checks tokens
 *   formats.c   opens a file and finds its format; llm.c's header, raw ids, text
 *   megatron.c  the .idx beside a .bin         npy.c        NumPy's arrays
 *   made.c      files that Sluice makes        documents.c  where documents begin and end
 *   sampler.c   which window comes when        mixture.c    of which source
 *   prepare.c   text and JSON lines -> made.c's files; prepare_encode.c makes tokens of them, chat.c conversations */
#ifndef SLUICE_DATA_INTERNAL_H
#define SLUICE_DATA_INTERNAL_H

#include "data/corpus.h"

/* Of a token as it is stored in a file with marks. */
#define DATAI_MARK ((uint32_t)1 << 31)

/* How a token is stored. */
struct datai_type {
    uint32_t bytes; /* 1, 2, 4 or 8 */
    bool is_signed;
};
typedef struct datai_type datai_type;

/* How a file says where its documents are. */
enum datai_documents {
    DATAI_ONE,      /* it is one */
    DATAI_ROWS,     /* each of row_tokens */
    DATAI_MEGATRON, /* index_fd, an index that was checked */
    DATAI_ENDS      /* fd at index_at: where each ends in tokens, uint64 */
};

struct datai_file {
    int fd;                  /* -1 while not open */
    char *path;              /* mem_alloc'd: of the file that holds the tokens */
    enum data_format format; /* never DATA_AUTO */
    datai_type type;
    uint64_t file_bytes;               /* when it was opened */
    uint64_t data_begin;               /* of the first token, in bytes */
    uint64_t token_begin, token_count; /* in the whole sequence */
    bool is_bytes;                     /* a token is a byte value: text, or made of it */
    bool has_marks;                    /* bit 31 of a token: it does not count as a target */
    uint64_t counted;                  /* tokens that do */
    enum datai_documents documents;
    uint64_t document_begin, document_count; /* in the whole sequence */
    uint64_t row_tokens;                     /* DATAI_ROWS */
    int index_fd;                            /* DATAI_MEGATRON; else -1 */
    char *index_path;                        /* likewise, mem_alloc'd */
    uint64_t index_at;                       /* of the list of documents, in bytes */
    uint64_t sequence_count;                 /* DATAI_MEGATRON */
};
typedef struct datai_file datai_file;

/* Opens the file that a path names, finds its format and checks all but the tokens. token_begin
 * stays
 * 0. On failure the caller still closes what is in *self. */
int datai_file_open(datai_file *self, const char *path, enum data_format format) MUST_CHECK;
void datai_file_close(datai_file *self);
/* The format that a file would be opened in. */
int datai_format_of(const char *path, enum data_format asked, enum data_format *out) MUST_CHECK;
bool datai_is_jsonl(const char *path); /* by its name */

/* Opens a regular file that is not empty and gives its length; -1 in *fd on failure. */
int datai_open(const char *path, int *fd, uint64_t *bytes) MUST_CHECK;
/* Exactly `bytes` bytes at `offset`. ERR_INPUT where the file ends before. */
int datai_pread(int fd, const char *path, uint64_t offset, uint64_t bytes, void *target) MUST_CHECK;

/* Checks the index at idx_path whole and holds it against the opened .bin: sets type and
 * token_count, and keeps the index open for its documents. */
int datai_megatron_index(datai_file *self, const char *idx_path) MUST_CHECK;
/* Document `idx` of the file's index: its tokens [*begin, *end) within the file. */
int datai_megatron_document(const datai_file *self, uint64_t idx, uint64_t *begin,
                            uint64_t *end) MUST_CHECK;
/* Whether the file exists and begins as Megatron's index does. */
bool datai_megatron_is_index(const char *path);

/* NumPy's arrays: sets type, data_begin, token_count and documents. */
bool datai_is_npy(const unsigned char *begin, uint64_t bytes);
int datai_npy(datai_file *self) MUST_CHECK;

/* Files of made.h, likewise. */
bool datai_is_made(const unsigned char *begin, uint64_t bytes);
int datai_made(datai_file *self) MUST_CHECK;

/* Document `idx` of a file: its tokens [*begin, *end) within the file. documents.c */
int datai_document(const datai_file *self, uint64_t idx, uint64_t *begin, uint64_t *end) MUST_CHECK;

/* A bijection of [0, count) for each seed, stream (of rng.h; six from this one on) and epoch: what
 * comes at `position`. sampler.c */
uint64_t datai_permute(uint64_t seed, uint64_t stream, uint64_t epoch, uint64_t count,
                       uint64_t position);

#endif
