/* The calls of libsentencepiece that tokenizer_sp.c makes, in C: no exception comes out of them. */
#ifndef SLUICE_DATA_TOKENIZER_SP_LIBRARY_H
#define SLUICE_DATA_TOKENIZER_SP_LIBRARY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sp_library sp_library;

enum sp_piece_kind { SP_NORMAL, SP_UNKNOWN, SP_CONTROL, SP_BYTE };

enum { SP_MESSAGE_BYTES = 256 };

/* A model of the bytes of a file. -1 and a message: it is none; -2: no memory. */
int sp_library_open(const char *data, size_t bytes, sp_library **out,
                    char message[SP_MESSAGE_BYTES]);
void sp_library_close(sp_library *self); /* NULL is allowed */

int sp_library_count(const sp_library *self);
/* The text of a piece, constant, zero-terminated; *bytes without the zero. 0 <= id < count. */
const char *sp_library_piece(const sp_library *self, int id, size_t *bytes,
                             enum sp_piece_kind *kind);
int sp_library_begin_id(const sp_library *self); /* -1: none */
int sp_library_end_id(const sp_library *self);   /* -1: none */

/* The ids of valid UTF-8 are given to `take` once; its result, if it is negative, is the call's. -1
 * and a message, -2 as above. Any number of threads at once. */
int sp_library_encode(const sp_library *self, const char *text, size_t bytes, void *user,
                      int (*take)(void *user, const int *ids, size_t count),
                      char message[SP_MESSAGE_BYTES]);

#ifdef __cplusplus
}
#endif

#endif
