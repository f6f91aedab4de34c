/* SentencePiece models through libsentencepiece (tokenizer_sp.c). If it was not present at build
 * time, tokenizer_sp_absent.c returns ERR_CONFIG and says what to install. See tokenizer.h.
 *
 * Ids are those of the library's own Encode, in the version that is linked. (If two ways to cut a
 * text have the same score, unigram models of 0.1 and 0.2 may differ.)
 * - The library normalizes, and its ids include what the model puts before a text, mostly one
 *   space.
 * - Control pieces ("<s>") in a text are ordinary text, as in the library. User-defined pieces are
 *   found with and without plain_text.
 * - In a token's bytes U+2581 is a space, and a byte piece ("<0x0A>") is its byte. So the tokens of
 *   a text, one after the other, are the normalized text with its first space.
 * - Beginning and end are put around a text if tokenizer_config.json beside the model says
 *   add_bos_token, add_eos_token; the library itself puts none. */
#ifndef SLUICE_TEXT_TOKENIZER_SP_H
#define SLUICE_TEXT_TOKENIZER_SP_H

#include <stddef.h>

#include "text/tokenizer.h"

/* Fills tokens, begin_id, end_id, prefix, suffix and hash of *self. ERR_INPUT if the file is not a
 * SentencePiece model. */
int toki_sp_open(tokenizer *self, const char *path) MUST_CHECK;
void toki_sp_close(tokenizer *self); /* allowed also if nothing was opened */
/* Appends the ids of a text. -ENOMEM; ERR_BACKEND with the library's message. */
int toki_sp_encode(const tokenizer *self, const char *text, size_t bytes,
                   token_list *out) MUST_CHECK;

#endif
