/* Token files that Sluice makes of text and of JSON lines: tokens, where documents end, and which
 * tokens do not count as targets, in one file.
 *
 *   offset  bytes  field
 *   0       8      "SLUICETK"
 *   8       4      version, 1
 *   12      4      bytes of a token: 2 or 4
 *   16      4      flags: 1: bit 31 of a token (of 4 bytes) says that it does not count as a target;
 *                  2: tokens are byte values
 *   20      4      zero
 *   24      8      key: of what it was made from (prepare.h)
 *   32      8      N, tokens
 *   40      8      D, documents
 *   48      8      tokens that count as targets
 *   56      8      XXH3 of bytes 0 to 55
 *   64             N tokens, then zeros to a multiple of 8
 *   then    8 D    where each document ends, in tokens; ascending, the last is N
 *
 * All little-endian. It is written under another name and renamed when it is whole and synced, so
 * that a file of this name is never half of one. A writer has one thread. */
#ifndef SLUICE_DATA_MADE_H
#define SLUICE_DATA_MADE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* Of a token given to made_add. */
#define MADE_UNCOUNTED ((uint32_t)1 << 31)

typedef struct made_writer made_writer;

struct made_options {
    uint64_t key;
    /* every token is below it; up to 65536 they take 2 bytes, where has_marks is false */
    uint64_t vocab_size;
    bool has_marks; /* tokens may be marked with MADE_UNCOUNTED */
    bool is_bytes;  /* a token is a byte value */
};
typedef struct made_options made_options;

/* Begins "<path>.part", over what an earlier attempt has left there. -errno. */
int made_create(const char *path, const made_options *options, made_writer **out) MUST_CHECK;
/* Appends tokens; the caller has held them against the vocabulary. -ENOSPC and others with the
 * path. */
int made_add(made_writer *self, const uint32_t *tokens, uint64_t count) MUST_CHECK;
/* A document ends here; where no token came since the last one ended, there is none. */
int made_end_document(made_writer *self) MUST_CHECK;
uint64_t made_token_count(const made_writer *self);
/* Ends the last document, writes the rest, syncs and renames. ERR_INPUT where there is no token.
 * The writer is gone, also on failure, and then nothing is left. */
int made_finish(made_writer *self) MUST_CHECK;
void made_abandon(made_writer *self); /* nothing is left; NULL is allowed */

/* Whether there is a whole file of this key at `path`. */
bool made_is_there(const char *path, uint64_t key);

#endif
