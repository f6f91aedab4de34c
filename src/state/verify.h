/* `sluice verify` and `sluice inspect`. Verify compares what the drives hold of a run with its
 * manifest; inspect lists what the manifest says. Both run in one process, whatever number of ranks
 * trained, and change nothing of the run. */
#ifndef SLUICE_STATE_VERIFY_H
#define SLUICE_STATE_VERIFY_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "format/manifest.h"

struct io_faults;

/* A difference between what a run's drives hold and what its manifest says. */
struct state_damage {
    char unit_name[64];  /* name of the unit; "" if the damage is not in a unit */
    uint32_t unit, tile; /* tile: counted in the rank's part of the unit */
    /* The part of the tile that the bytes are, as static text: "optimizer state", "params", or one
     * half of a split master. NULL if the damage is not in a unit. */
    const char *part;
    uint32_t rank; /* rank of the slab; 0 if the file is no slab */
    /* Path of the file. For an extent across several drives: the file where it begins. */
    char path[4096];
    uint64_t file_offset; /* bytes */
    uint64_t size_bytes;
    /* Checksums. Both 0: the bytes could not be read, or are no extent. */
    uint64_t expected, found;
    char reason[256]; /* one clause */
};

struct state_verify_options {
    const char *run_dir;
    const volatile sig_atomic_t *stop;
    const struct io_faults *faults; /* for tests: faults of the drives (tiers/io.h); or NULL */
    void (*on_progress)(void *user, uint64_t done_bytes, uint64_t total_bytes, double seconds);
    /* called for each difference; or NULL */
    void (*on_damage)(void *user, const struct state_damage *damage);
    void *user;
};

struct state_verify_summary {
    uint64_t step, extent_count, bytes; /* of the commit that a run would resume from */
    uint64_t slab_bytes;                /* sizes of the slabs' address spaces */
    uint64_t damage_count;              /* including damaged manifests and slab headers */
    uint32_t world_size;
    /* Ranks that ran on other hosts and whose slabs are not visible here. They are not compared. */
    uint32_t unseen_count;
    double seconds;
    /* XXH3-64 over all master weights of the commit. 0 if a slab or an extent is damaged or not
     * visible, or if there are several ranks and no job.json that says which elements are
     * padding. */
    uint64_t weights_hash;
};

/* Reads all that the newest commit names, at the drives' speed, and compares it with the checksums.
 * Changes nothing, but takes the run's lock. If each rank had the whole state, every rank's copy is
 * compared. Returns 0 if all is as committed. Errors:
 * - ERR_CORRUPT: there are differences; the message has their number.
 * - ERR_INPUT: there is no run or no commit, or another process uses the run, or a drive is not
 *   mounted, or all that was compared is right but slabs on other hosts are not visible
 *   (unseen_count). */
int state_verify(const struct state_verify_options *options,
                 struct state_verify_summary *summary) MUST_CHECK;

struct state_inspect_file {
    char path[4096];
    uint32_t rank;
    uint64_t size_bytes, allocated_bytes; /* both 0: the file does not exist */
    bool is_unmounted; /* the directory of its drive does not exist or is empty */
};

struct state_inspect_unit {
    char name[64];
    uint64_t elems, tile_count, size_bytes; /* of its committed extents, with padding; elems of a */
                                            /* packed unit: those that it expands to */
    /* Place of the first extent in the nvme address space. */
    uint64_t offset_bytes;
    bool is_frozen; /* it does not learn; its extents hold only params */
    bool is_packed; /* and these are packed */
};

struct state_inspect_kept {
    uint64_t step;
    /* Path of the kept commit, which is a run directory of its own. */
    char path[4096];
};

/* Reads only manifests, slab headers and job.json. Free it with state_inspect_fini. About 300
 * KiB. */
struct state_inspect_summary {
    /* "committed", "running", "begun" or "damaged". Damaged: no manifest is valid, and all members
     * but slots and kept are 0. */
    const char *state;
    manifest record; /* of the newest valid slot */
    char uuid[MANIFEST_UUID_TEXT_BYTES];
    char state_formats[64];                /* of each stream, as "fp32, bf16, bf16" */
    uint64_t state_streams, extents_bytes; /* the number of streams; of all extents */
    uint64_t matrix_tiles;                 /* tiles that have only two streams (Muon) */
    manifest_slot slots[2];
    struct state_inspect_file *files; /* [file_count] slabs, sorted by rank */
    uint32_t file_count;
    struct state_inspect_unit *units; /* [unit_count] */
    uint32_t unit_count;
    struct state_inspect_kept *kept; /* [kept_count] sorted by step */
    uint32_t kept_count;
};

/* Fills *out. The run may be in use, or damaged. ERR_INPUT if there is no run; then there is
 * nothing to free. */
int state_inspect(const char *run_dir, struct state_inspect_summary *out) MUST_CHECK;
void state_inspect_fini(struct state_inspect_summary *self);

#endif
