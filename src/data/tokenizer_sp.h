/* SentencePiece models through libsentencepiece, where it was there at build time (tokenizer_sp.cc), or not
 * (tokenizer_sp_absent.c: ERR_CONFIG with what to install). See tokenizer.h. */
#ifndef SLUICE_DATA_TOKENIZER_SP_H
#define SLUICE_DATA_TOKENIZER_SP_H

#include <stddef.h>

#include "data/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Fills tokens, begin_id, end_id, prefix and hash of *self. */
int toki_sp_open(tokenizer *self, const char *path) MUST_CHECK;
void toki_sp_close(tokenizer *self); /* also where nothing was opened */
int toki_sp_encode(const tokenizer *self, const char *text, size_t bytes,
                   token_list *out) MUST_CHECK;

#ifdef __cplusplus
}
#endif

#endif
