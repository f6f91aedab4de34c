/* Shared by the files of tiers only, except for those of io (io_internal.h). */
#ifndef SLUICE_TIERS_INTERNAL_H
#define SLUICE_TIERS_INTERNAL_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/core_set.h"
#include "base/error.h"
#include "tiers/slab.h"
#include "tiers/topology.h"

struct stat;

/* ---- CUDA (device_cuda.c, device_graph.c) ---- */

/* Converts the cudaError_t of a call: 0, or ERR_BACKEND with "<what>: CUDA says ...". */
int tieri_cuda_check(int cuda_error, const char *what) MUST_CHECK;

/* ---- readers of /proc, sysfs and control groups (system_memory.c, topology_read.c): they use
 * stack buffers, and descriptors only during the call; any thread ---- */

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
int tieri_topology_read(const char *root, const core_set *affinity, topology *out) MUST_CHECK;
int tieri_block_node(const char *root, unsigned device_major, unsigned device_minor);
int tieri_pci_node(const char *root, const char *address);

/* ---- the slab ---- */

/* slab_space.c: fills *stripe_bytes and *stripe_count, with defaults. -EINVAL for a bad config. */
int tieri_slab_check_config(const slab_config *config, uint64_t *stripe_bytes,
                            uint64_t *stripe_count) MUST_CHECK;

/* Decides how many stripes each drive gets, without creating anything: directories exist or can be
 * made and are writable, budget and free space suffice. ERR_NO_FIT with needed and allowed bytes
 * per drive; ERR_INPUT for a path that cannot be used. */
int tieri_slab_plan(const slab_config *config, uint64_t stripe_bytes, uint64_t stripe_count,
                    uint64_t drive_stripes[DRIVES_MAX]) MUST_CHECK;

/* slab_space.c: shares stripe_count stripes in proportion to weights, none above its limit. The
 * limits together hold them all. */
void tieri_slab_share(uint32_t drive_count, const double *weights, const uint64_t *limits,
                      uint64_t stripe_count, uint64_t *shares);

/* slab_layout.c: computes the zones from drive_count and drive_stripes. ERR_CORRUPT if they need
 * too many zones, which only a forged header can cause. */
int tieri_slab_layout(slab *self) MUST_CHECK;

/* slab_space.c: finds the nearest existing path at or above `path` (finally "." for a relative
 * path). -errno without a text; then `existing` names the place. */
int tieri_nearest(const char *path, char existing[FILE_PATH_BYTES], struct stat *status) MUST_CHECK;

/* The same, and checks that new files can be made there. ERR_INPUT names path and reason. */
int tieri_slab_existing(const char *path, char existing[FILE_PATH_BYTES],
                        struct stat *status) MUST_CHECK;

/* drive_speed.c: the whole disk that a partition belongs to, by the links of sysfs
 * ("/sys/dev/block"). Returns the device itself if that is unknown (network and memory file
 * systems, logical volumes). */
dev_t tieri_whole_device(const char *sysfs_block, dev_t device);

/* drive_speed.c: bytes of the largest request that the drive takes in one piece wherever the pages
 * of its memory lie; whole pages. UINT64_MAX if sysfs does not say it; 0 if the drive divides
 * requests that cross certain boundaries, whatever their size. */
uint64_t tieri_largest_request(const char *sysfs_block, dev_t device);

/* slab_space.c: "<path>/sluice-<uuid hex>", and the file in it. -ENAMETOOLONG. */
int tieri_slab_directory(const slab_config *config, uint32_t drive_idx,
                         char directory[FILE_PATH_BYTES]) MUST_CHECK;
int tieri_slab_file_path(const slab_config *config, uint32_t drive_idx,
                         char path[FILE_PATH_BYTES]) MUST_CHECK;

/* Makes the directory of a slab by the rules of file_make_directories. It also makes the entry
 * of an existing directory durable, because the process that made it may have been killed before
 * that. */
int tieri_slab_make_directories(const char *directory, int mode, uint32_t *made_count) MUST_CHECK;

/* ---- how the ranks of a machine divide it. Pure; any thread ---- */

enum {
    TIERI_RESERVE_FROM = 8,            /* physical cores; see rule 5 */
    TIERI_DISTANCE_UNKNOWN = UINT8_MAX /* sorts last */
};

/* The index of the node with this id; -1: there is none. */
static inline int tieri_node_index(const topology *self, int id)
{
    for (uint32_t n = 0; n < self->node_count; n++)
        if (self->nodes[n].id == id)
            return (int)n;
    return -1;
}

static inline uint32_t tieri_node_distance(const topology *self, uint32_t from, uint32_t to)
{
    uint8_t known = self->nodes[from].distance[to];
    return known ? known : from == to ? 10 : TIERI_DISTANCE_UNKNOWN;
}

/* topology_place.c: one core of each physical core in `cores`, the lowest. */
core_set tieri_physical(const topology *machine, const core_set *cores);

/* Rule 7 of topology_place, for plan->share. `kept`: the cores that io.cores names; may be
 * empty. */
void tieri_share(const topology *machine, const core_request *asked, const core_set *kept,
                 core_share *out);

#endif
