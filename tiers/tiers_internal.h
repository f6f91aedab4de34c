/* What the files of tiers/ share and nobody else may use: readers of /proc and cgroup files. They use
 * stack buffers and open descriptors only for the call; any thread. */
#ifndef SLUICE_TIERS_TIERS_INTERNAL_H
#define SLUICE_TIERS_TIERS_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Reads a small file whole into text[capacity] and ends it with 0; longer files are cut. Returns the
 * bytes read or -errno, without a message. */
int tieri_read_small_file(const char *path, char *text, size_t capacity) MUST_CHECK;

/* The number after `key` where a line of `text` begins with it, times `unit`; fallback if absent. */
uint64_t tieri_value_of(const char *text, const char *key, uint64_t unit, uint64_t fallback);

/* Bytes of [base, base + size_bytes) that lie on huge pages, by /proc/self/smaps; 0 if unknown. */
uint64_t tieri_huge_bytes(const void *base, uint64_t size_bytes);

/* Bytes that NUMA node `node` can still give (free and clean page cache); UINT64_MAX if unknown. */
uint64_t tieri_node_available_bytes(int node);

#endif
