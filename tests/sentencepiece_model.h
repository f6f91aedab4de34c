/* Small SentencePiece models, trained by its library, and what that library itself makes of a
 * text. */
#ifndef SLUICE_TESTS_SENTENCEPIECE_MODEL_H
#define SLUICE_TESTS_SENTENCEPIECE_MODEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Trains with the library's own arguments; 0, or -1. */
int sentencepiece_train(const char *arguments);
/* The ids of a text by the model at `path`: how many, at most `room`; -1: failed. */
int sentencepiece_ids(const char *path, const char *text, size_t bytes, int32_t *ids, int room);
/* The text of ids, at most room - 1 bytes and a zero; -1: failed. */
int sentencepiece_text(const char *path, const int32_t *ids, int count, char *text, size_t room);

#ifdef __cplusplus
}
#endif

#endif
