/* Finds the known name that somebody who wrote another one probably meant. Pure; any thread. */
#ifndef SLUICE_BASE_NEAREST_H
#define SLUICE_BASE_NEAREST_H

#include <stdbool.h>
#include <stdint.h>

/* The nearest of several names to a wanted one. If several names are equally near, the first one
 * counts. Begins as {0}. */
struct nearest {
    char name[64]; /* "": none was offered */
    uint32_t distance;
};
void nearest_offer(struct nearest *self, const char *wanted, const char *name);

/* True if `wanted` may be a misspelling of the nearest name: at most one edit in three letters. */
bool nearest_is_near(const struct nearest *self, const char *wanted);

#endif
