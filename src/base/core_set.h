/* Sets of small numbers: cores (the kernel's CPU numbers) or NUMA nodes. Pure; any thread.
 *
 * As text a set has numbers and ranges with commas between them, "0-7,16", as the kernel writes it.
 */
#ifndef SLUICE_BASE_CORE_SET_H
#define SLUICE_BASE_CORE_SET_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum {
    CORE_SET_MAX = 1024, /* numbers 0 to 1023, as in cpu_set_t; Linux has at most 1024 nodes */
    CORE_SET_TEXT_BYTES = 128, /* longer texts end with "..." */
};

struct core_set {
    uint64_t words[CORE_SET_MAX / 64]; /* number i is bit i % 64 of word i / 64 */
};
typedef struct core_set core_set;
typedef struct core_set node_set; /* the same thing, holding nodes */

/* False for every number outside 0 .. CORE_SET_MAX - 1. */
static inline bool core_set_has(const core_set *self, int number)
{
    return number >= 0 && number < CORE_SET_MAX && (self->words[number / 64] >> (number % 64) & 1);
}

/* core_set_add and core_set_remove need a number in 0 .. CORE_SET_MAX - 1. */
static inline void core_set_add(core_set *self, int number)
{
    assert(number >= 0 && number < CORE_SET_MAX);
    self->words[number / 64] |= (uint64_t)1 << (number % 64);
}

static inline void core_set_remove(core_set *self, int number)
{
    assert(number >= 0 && number < CORE_SET_MAX);
    self->words[number / 64] &= ~((uint64_t)1 << (number % 64));
}

uint32_t core_set_count(const core_set *self);

/* The smallest number of the set that is at least `from`, or -1 if there is none. A loop over all:
 *     for (int c = core_set_next(&set, 0); c >= 0; c = core_set_next(&set, c + 1)) */
int core_set_next(const core_set *self, int from);

bool core_set_equals(const core_set *a, const core_set *b);

/* target = a and b; a or b; a without b. target may be a or b. */
void core_set_and(core_set *target, const core_set *a, const core_set *b);
void core_set_or(core_set *target, const core_set *a, const core_set *b);
void core_set_minus(core_set *target, const core_set *a, const core_set *b);

/* Reads a set. Blanks around numbers and a last newline are allowed, and numbers may repeat. A text
 * of blanks alone is the empty set; the kernel writes it for a node without cores. Every other text
 * ("3-", "7-3", "a", "1,,2", a number of CORE_SET_MAX or more) is -EINVAL: the error says what is
 * wrong, and *out is empty. */
int core_set_parse(const char *text, core_set *out) MUST_CHECK;

/* Writes the set's text, "none" for an empty one. Returns `text`. */
char *core_set_format(const core_set *self, char text[CORE_SET_TEXT_BYTES]);

#endif
