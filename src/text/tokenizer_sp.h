/* SentencePiece models through libsentencepiece, where it was there at build time (tokenizer_sp.c),
 * or not (tokenizer_sp_absent.c: ERR_CONFIG with what to install). See tokenizer.h.
 *
 * Ids are those of the library's own Encode, of the version that is linked (where two ways to cut a
 * text have the same score, unigram models of 0.1 and 0.2 may differ): it normalizes, and what the
 * model puts before a text (mostly one space) is in them. Control pieces ("<s>") that are written
 * in a text are text, as the library has it; pieces that a user has defined are found whether or
 * not plain_text is asked for. A token's bytes have a space for U+2581, and a byte piece ("<0x0A>")
 * is its byte: the tokens of a text, one after the other, are the normalized text with its first
 * space. Beginning and end are put around a text where tokenizer_config.json beside the model says
 * add_bos_token, add_eos_token: the library itself puts none. */
#ifndef SLUICE_DATA_TOKENIZER_SP_H
#define SLUICE_DATA_TOKENIZER_SP_H

#include <stddef.h>

#include "text/tokenizer.h"

/* Fills tokens, begin_id, end_id, prefix, suffix and hash of *self. ERR_INPUT for a file that is no
 * such model. */
int toki_sp_open(tokenizer *self, const char *path) MUST_CHECK;
void toki_sp_close(tokenizer *self); /* also where nothing was opened */
/* -ENOMEM; ERR_BACKEND with what the library says. */
int toki_sp_encode(const tokenizer *self, const char *text, size_t bytes,
                   token_list *out) MUST_CHECK;

#endif
