/* Writes token files, from the first token to the last. corpus.h reads them.
 *
 *   megatron  NAME.bin: only token ids; NAME.idx: the place of each document. uint16 for a
 *             vocabulary of up to 65,536, else int32. A document is one sequence.
 *   llmc      NAME: llm.c's header of 256 int32, then tokens: version 1 with uint16 for a
 *             vocabulary of up to 65,536, else version 7 with uint32; below 2^31 tokens
 *   u16, u32  NAME: only token ids
 *   made      NAME: Sluice's own format. One file holds the tokens, the ends of documents, and
 *             which tokens do not count as targets:
 *
 *     offset  bytes  field
 *     0       8      "SLUICETK"
 *     8       4      version, 1
 *     12      4      bytes of a token: 2 or 4
 *     16      4      flags: 1: bit 31 of a token (of 4 bytes) says that it does not count as a
 *                    target; 2: tokens are byte values
 *     20      4      zero
 *     24      8      key: identifies the source of the tokens (prepare.h)
 *     32      8      N, tokens
 *     40      8      D, documents
 *     48      8      tokens that count as targets
 *     56      8      XXH3 of bytes 0 to 55
 *     64             N tokens, then zeros to a multiple of 8
 *     then    8 D    the end of each document, in tokens; ascending, the last is N
 *
 * All numbers are little-endian. Files are written under other names (.partial) and renamed when
 * they are complete and synced, so a file with the final name is always complete. To replace a pair
 * of Megatron's files, the old index is removed first and the new index is put in place last. So an
 * index never lies beside the .bin of another pair. One thread. */
#ifndef SLUICE_DATA_TOKEN_FILE_H
#define SLUICE_DATA_TOKEN_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "data/corpus.h"

typedef struct token_file token_file;

struct token_file_options {
    enum data_format format; /* one of those above */
    uint64_t vocab_size;     /* every token is below it */
    int mode;                /* permissions (base/file.h) */
    /* for DATA_MADE: */
    uint64_t key;
    bool has_marks; /* tokens may be marked with TOKEN_UNCOUNTED; they take 4 bytes then */
    bool is_bytes;  /* a token is a byte value */
};
typedef struct token_file_options token_file_options;

/* Begins NAME. ERR_INPUT for a vocabulary that u16 cannot hold, a format that is not listed above,
 * or a path that is too long; -errno with the path. */
int token_file_create(const char *name, const token_file_options *options,
                      token_file **out) MUST_CHECK;
/* Appends tokens, which the caller has checked against the vocabulary. */
int token_file_add(token_file *self, const uint32_t *tokens, uint64_t count) MUST_CHECK;
/* Ends a document here. Does nothing if no token was added since the last end. */
int token_file_end_document(token_file *self) MUST_CHECK;
uint64_t token_file_tokens(const token_file *self);
uint64_t token_file_documents(const token_file *self);
/* Ends the last document, writes the rest, syncs and renames. ERR_INPUT if there is no token. *self
 * is destroyed in any case; on failure no new file is left. */
int token_file_finish(token_file *self) MUST_CHECK;
/* destroys *self and leaves no new file; NULL is allowed */
void token_file_abandon(token_file *self);

/* True if `path` is a complete file of Sluice's own format with this key. */
bool token_file_is_made(const char *path, uint64_t key);

#endif
