/* What the files of src/data share: one token file, and where in it the tokens lie.
 *
 *   corpus.c    files -> one sequence; reads, widens and checks tokens
 *   formats.c   opens a file and finds its format; llm.c's header, raw ids, text
 *   megatron.c  the .idx beside a .bin
 *   sampler.c   which window comes when */
#ifndef SLUICE_DATA_INTERNAL_H
#define SLUICE_DATA_INTERNAL_H

#include "data/corpus.h"

/* How a token is stored. */
struct datai_type {
    uint32_t bytes; /* 1, 2, 4 or 8 */
    bool is_signed;
};
typedef struct datai_type datai_type;

struct datai_file {
    int fd;                    /* -1 while not open */
    char *path;                /* mem_alloc'd: of the file that holds the tokens */
    enum corpus_format format; /* never CORPUS_AUTO */
    datai_type type;
    uint64_t file_bytes;               /* when it was opened */
    uint64_t data_begin;               /* of the first token, in bytes */
    uint64_t token_begin, token_count; /* in the whole sequence */
};
typedef struct datai_file datai_file;

/* Opens the file that a path names, finds its format and checks all but the tokens. token_begin stays
 * 0. On failure the caller still closes what is in *self. */
int datai_file_open(datai_file *self, const char *path, enum corpus_format format) MUST_CHECK;
void datai_file_close(datai_file *self);

/* Opens a regular file that is not empty and gives its length; -1 in *fd on failure. */
int datai_open(const char *path, int *fd, uint64_t *bytes) MUST_CHECK;
/* Exactly `bytes` bytes at `offset`. ERR_INPUT where the file ends before. */
int datai_pread(int fd, const char *path, uint64_t offset, uint64_t bytes, void *target) MUST_CHECK;

/* Checks the index at idx_path whole and holds it against the opened .bin: sets type and token_count. */
int datai_megatron_index(datai_file *self, const char *idx_path) MUST_CHECK;
/* Whether the file exists and begins as Megatron's index does. */
bool datai_megatron_is_index(const char *path);

#endif
