/* Shared by the files of tiers only: readers of /proc, sysfs and control groups
 * (system_memory.c, topology_read.c). They use stack buffers, and descriptors only during the call;
 * any thread. */
#ifndef SLUICE_TIERS_INTERNAL_H
#define SLUICE_TIERS_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

#include "base/core_set.h"
#include "base/error.h"

struct topology;

/* Reads a small file into text[capacity] and ends it with 0; a longer file is cut. Returns the
 * bytes read, or -errno without a message. */
int tieri_read_small_file(const char *path, char *text, size_t capacity) MUST_CHECK;

/* The number after `key` in the line of `text` that begins with it, times `unit`. Absent:
 * fallback. */
uint64_t tieri_value_of(const char *text, const char *key, uint64_t unit, uint64_t fallback);

/* Bytes of [base, base + size_bytes) that lie on huge pages, by /proc/self/smaps; 0 if unknown. */
uint64_t tieri_huge_bytes(const void *base, uint64_t size_bytes);

/* Bytes that NUMA node `node` can still give (free and clean page cache); UINT64_MAX if unknown. */
uint64_t tieri_node_available_bytes(int node);

/* The same from the text of the node's meminfo file. */
uint64_t tieri_node_available(const char *text, int node);

/* CPU time that the control groups above this process allow (cpu.max, cpu.cfs_quota_us), in cores,
 * rounded up; 0: no limit. Reads files below `root`; "": this machine. */
uint32_t tieri_group_quota_cores(const char *root);

/* topology_read, the node of a drive and topology_pci_node on the files below `root` ("": this
 * machine), with the given affinity mask. */
int tieri_topology_read(const char *root, const core_set *affinity,
                        struct topology *out) MUST_CHECK;
int tieri_block_node(const char *root, unsigned device_major, unsigned device_minor);
int tieri_pci_node(const char *root, const char *address);

#endif
