/* Makes one token file from text and JSON records, for `sluice data tokenize`. Documents and their
 * ends are those of data/prepare.h, formats those of data/token_file.h. Uses all cores that the
 * process may use; memory does not grow with the size of the files. */
#ifndef SLUICE_TRAIN_TOKENIZE_H
#define SLUICE_TRAIN_TOKENIZE_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct tokenize_request {
    const char *const *paths; /* [path_count] read in this order */
    uint32_t path_count;
    const char *tokenizer; /* a name as tokenizer_open takes it (text/tokenizer.h) */
    /* path of the file; for megatron the common path of .bin and .idx */
    const char *out;
    const char *format;                /* "megatron", "llmc", "u16" or "u32"; NULL: megatron */
    const char *field;                 /* key of the text in JSON records; NULL: "text" */
    bool has_no_end;                   /* put no end token after documents */
    const volatile sig_atomic_t *stop; /* or NULL */
};
typedef struct tokenize_request tokenize_request;

struct tokenize_result {
    uint64_t bytes, tokens, documents; /* in all files together */
    uint64_t vocab;
    double seconds;
};
typedef struct tokenize_result tokenize_result;

/* Errors:
 *
 *   ERR_USAGE     an unknown format, or an output that is one of the input files
 *   ERR_INPUT     conversations: no such format can say which of their tokens count
 *   ERR_INPUT, ERR_CONFIG   also those of tokenizer_open, prepare_look and prepare_run
 *   ERR_STOPPED   after a requested stop
 *
 * On failure no file is left or changed. */
int tokenize_files(const tokenize_request *request, tokenize_result *result) MUST_CHECK;

#endif
