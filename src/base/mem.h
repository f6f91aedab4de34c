/* The one allocator of our own code: malloc with counters and a seal.
 *
 * All of our heap memory comes from here. So it can be proved that nothing allocates after the
 * start: the training loop seals after its first steps, and each later call is counted and named.
 * Large memory (the tiers' arenas) comes from tiers/arena.h instead. Any thread may call; the
 * counters are atomic. */
#ifndef SLUICE_BASE_MEM_H
#define SLUICE_BASE_MEM_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct mem_stats {
    uint64_t call_count;              /* allocations since the process began */
    uint64_t call_count_after_seal;   /* those made while sealed: must stay 0 in training */
    uint64_t live_bytes;              /* requested bytes not yet freed */
    uint64_t live_bytes_max;          /* the largest value of live_bytes */
    const char *first_tag_after_seal; /* tag of the first call while sealed, NULL if none */
};
typedef struct mem_stats mem_stats;

/* Zeroed memory for `count` elements of `elem_bytes`, aligned to 64 bytes, or NULL with the error
 * set (-ENOMEM, also if the product overflows). `tag` names the owner and must be a string literal.
 * A count of 0 gives a valid pointer. Free with mem_free. */
void *mem_alloc(size_t count, size_t elem_bytes, const char *tag) MUST_CHECK;

/* Grows or shrinks a block from mem_alloc to count elements; new bytes are zero. If there is no
 * memory, returns NULL with the error set and leaves the old block untouched. `block` NULL acts as
 * mem_alloc. */
void *mem_resize(void *block, size_t count, size_t elem_bytes, const char *tag) MUST_CHECK;

/* A copy of the string, from mem_alloc. */
char *mem_string(const char *text, const char *tag) MUST_CHECK;

void mem_free(void *block); /* NULL is allowed */

/* From here on every allocation is counted as a violation, until mem_unseal. */
void mem_seal(void);
void mem_unseal(void);

void mem_get_stats(mem_stats *stats);

#endif
