/* Token files in the formats of others, written from the first token to the last. See corpus.h,
 * which reads them.
 *
 *   megatron  NAME.bin: token ids alone; NAME.idx: where each document lies. uint16 for a vocabulary of up to
 *             65,536, else int32. A document is one sequence
 *   llmc      NAME: llm.c's header of 256 int32, then tokens: version 1 with uint16 for a vocabulary of up to 65,536,
 *             else version 7 with uint32; below 2^31 tokens
 *   u16, u32  NAME: token ids alone
 *
 * Files are written under other names (.part) and renamed when they are whole and synced: no name
 * is ever that of half a file. Of an older pair of Megatron's the index goes first and the new
 * index comes last, so that at no time an index lies beside a .bin of another. One thread. */
#ifndef SLUICE_DATA_TOKEN_FILE_H
#define SLUICE_DATA_TOKEN_FILE_H

#include <stdint.h>

#include "data/corpus.h"

typedef struct token_file token_file;

/* Begins NAME. `format` DATA_AUTO: megatron. ERR_INPUT for a vocabulary that u16 cannot hold, a
 * format that is not among those above, a path that is too long; -errno with the path. */
int token_file_create(const char *name, enum data_format format, uint64_t vocab_size,
                      token_file **out) MUST_CHECK;
/* Appends tokens, each below vocab_size. */
int token_file_add(token_file *self, const uint32_t *tokens, uint64_t count) MUST_CHECK;
/* A document ends here; where no token came since the last one ended, there is none. */
int token_file_end_document(token_file *self) MUST_CHECK;
uint64_t token_file_tokens(const token_file *self);
uint64_t token_file_documents(const token_file *self);
/* Writes the rest, syncs and renames. ERR_INPUT where there is no token. *self is gone, also on
 * failure, and then nothing new is left. */
int token_file_finish(token_file *self) MUST_CHECK;
void token_file_abandon(token_file *self); /* nothing new is left; NULL is allowed */

#endif
