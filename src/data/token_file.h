/* Writes token files in the formats of other programs, from the first token to the last. corpus.h
 * reads them.
 *
 *   megatron  NAME.bin: only token ids; NAME.idx: the place of each document. uint16 for a
 *             vocabulary of up to 65,536, else int32. A document is one sequence.
 *   llmc      NAME: llm.c's header of 256 int32, then tokens: version 1 with uint16 for a
 *             vocabulary of up to 65,536, else version 7 with uint32; below 2^31 tokens
 *   u16, u32  NAME: only token ids
 *
 * Files are written under other names (.part) and renamed when they are complete and synced, so a
 * file with the final name is always complete. To replace a pair of Megatron's files, the old index
 * is removed first and the new index is put in place last. So an index never lies beside the .bin
 * of another pair. One thread. */
#ifndef SLUICE_DATA_TOKEN_FILE_H
#define SLUICE_DATA_TOKEN_FILE_H

#include <stdint.h>

#include "data/corpus.h"

typedef struct token_file token_file;

/* Begins NAME. `format` DATA_AUTO means megatron. ERR_INPUT for a vocabulary that u16 cannot hold,
 * a format that is not listed above, or a path that is too long; -errno with the path. */
int token_file_create(const char *name, enum data_format format, uint64_t vocab_size,
                      token_file **out) MUST_CHECK;
/* Appends tokens, each below vocab_size. */
int token_file_add(token_file *self, const uint32_t *tokens, uint64_t count) MUST_CHECK;
/* Ends a document here. Does nothing if no token was added since the last end. */
int token_file_end_document(token_file *self) MUST_CHECK;
uint64_t token_file_tokens(const token_file *self);
uint64_t token_file_documents(const token_file *self);
/* Writes the rest, syncs and renames. ERR_INPUT if there is no token. *self is destroyed in any
 * case; on failure no new file is left. */
int token_file_finish(token_file *self) MUST_CHECK;
/* destroys *self and leaves no new file; NULL is allowed */
void token_file_abandon(token_file *self);

#endif
