/* Token files that Sluice makes from text and JSON lines. One file holds the tokens, the ends of
 * documents, and which tokens do not count as targets.
 *
 *   offset  bytes  field
 *   0       8      "SLUICETK"
 *   8       4      version, 1
 *   12      4      bytes of a token: 2 or 4
 *   16      4      flags: 1: bit 31 of a token (of 4 bytes) says that it does not count as a
 *                  target; 2: tokens are byte values
 *   20      4      zero
 *   24      8      key: identifies the source of the tokens (prepare.h)
 *   32      8      N, tokens
 *   40      8      D, documents
 *   48      8      tokens that count as targets
 *   56      8      XXH3 of bytes 0 to 55
 *   64             N tokens, then zeros to a multiple of 8
 *   then    8 D    the end of each document, in tokens; ascending, the last is N
 *
 * All little-endian. The file is written under another name and renamed when it is complete and
 * synced, so a file with the final name is always complete. A writer belongs to one thread. */
#ifndef SLUICE_DATA_MADE_H
#define SLUICE_DATA_MADE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* Bit of a token given to made_add: it does not count as a target. */
#define MADE_UNCOUNTED ((uint32_t)1 << 31)

typedef struct made_writer made_writer;

struct made_options {
    uint64_t key;
    /* Every token is below it. Tokens take 2 bytes if it is at most 65536 and has_marks is false,
     * else 4. */
    uint64_t vocab_size;
    bool has_marks; /* tokens may be marked with MADE_UNCOUNTED */
    bool is_bytes;  /* a token is a byte value */
};
typedef struct made_options made_options;

/* Begins "<path>.part"; replaces what an earlier attempt left there. -errno. */
int made_create(const char *path, const made_options *options, made_writer **out) MUST_CHECK;
/* Appends tokens, which the caller has checked against the vocabulary. -ENOSPC and other errors
 * name the path. */
int made_add(made_writer *self, const uint32_t *tokens, uint64_t count) MUST_CHECK;
/* Ends a document here. Does nothing if no token was added since the last end. */
int made_end_document(made_writer *self) MUST_CHECK;
/* Ends the last document, writes the rest, syncs and renames. ERR_INPUT if there is no token. The
 * writer is destroyed in any case; on failure no file is left. */
int made_finish(made_writer *self) MUST_CHECK;
void made_abandon(made_writer *self); /* destroys the writer and leaves no file; NULL is allowed */

/* True if `path` is a complete file with this key. */
bool made_is_there(const char *path, uint64_t key);

#endif
