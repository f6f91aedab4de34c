/* The calls of libsentencepiece that tokenizer_sp.c makes, as C functions. No exception leaves
 * them. */
#ifndef SLUICE_TEXT_TOKENIZER_SP_LIBRARY_H
#define SLUICE_TEXT_TOKENIZER_SP_LIBRARY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sp_library sp_library;

enum sp_piece_kind { SP_NORMAL, SP_UNKNOWN, SP_CONTROL, SP_BYTE };

enum { SP_MESSAGE_BYTES = 256 };

/* Opens a model from the bytes of a file. -1 and a message if it is not a model; -2 if there is no
 * memory. */
int sp_library_open(const char *data, size_t bytes, sp_library **out,
                    char message[SP_MESSAGE_BYTES]);
void sp_library_close(sp_library *self); /* NULL is allowed */

int sp_library_count(const sp_library *self);
/* The text of a piece, constant and zero-terminated; *bytes does not count the zero. 0 <= id <
 * count. */
const char *sp_library_piece(const sp_library *self, int id, size_t *bytes,
                             enum sp_piece_kind *kind);
int sp_library_begin_id(const sp_library *self); /* -1: none */
int sp_library_end_id(const sp_library *self);   /* -1: none */

/* Calls `take` once with the ids of a valid UTF-8 text. A negative result of `take` is returned. -1
 * and a message, or -2, as above. Any number of threads may call at once. */
int sp_library_encode(const sp_library *self, const char *text, size_t bytes, void *user,
                      int (*take)(void *user, const int *ids, size_t count),
                      char message[SP_MESSAGE_BYTES]);

#ifdef __cplusplus
}
#endif

#endif
