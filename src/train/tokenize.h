/* Text and JSON lines made into one token file: what `sluice data tokenize` does. Documents and
 * their ends are those of data/prepare.h, formats those of data/token_file.h. All cores that the
 * process may use; memory does not grow with the files. */
#ifndef SLUICE_TRAIN_TOKENIZE_H
#define SLUICE_TRAIN_TOKENIZE_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct tokenize_request {
    const char *const *paths; /* [path_count] read one after the other */
    uint32_t path_count;
    const char *tokenizer;             /* a name of data/tokenizer.h */
    const char *out;                   /* the file, or the pair without .bin */
    const char *format;                /* NULL: megatron; llmc, u16, u32 */
    const char *field;                 /* of JSON lines; NULL: text */
    bool has_no_end;                   /* no end token behind documents */
    const volatile sig_atomic_t *stop; /* or NULL */
};
typedef struct tokenize_request tokenize_request;

struct tokenize_result {
    uint64_t bytes, tokens, documents; /* of all files */
    uint64_t vocab;
    double seconds;
};
typedef struct tokenize_result tokenize_result;

/* ERR_USAGE for an unknown format and an output that is one of the files read; ERR_INPUT and
 * ERR_CONFIG as tokenizer_open, prepare_look and prepare_run have it, and for conversations, whose
 * marks no such format holds; ERR_STOPPED. On failure no file is left or changed. */
int tokenize_files(const tokenize_request *request, tokenize_result *result) MUST_CHECK;

#endif
