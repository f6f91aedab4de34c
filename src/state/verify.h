/* `sluice verify` and `sluice inspect`: what the drives hold of a run, compared with its manifest,
 * and what the manifest says. Both run in one process, whatever number of ranks trained. */
#ifndef SLUICE_STATE_VERIFY_H
#define SLUICE_STATE_VERIFY_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct io_faults;

/* A difference between what a run's drives hold and what its manifest says. */
struct state_damage {
    char unit_name[64];  /* of the model; "" where it is not of a unit */
    uint32_t unit, tile; /* tile: of the rank's part of the unit */
    /* Which of the tile's bytes: "optimizer state", "params", or of a split master the half that
     * they have; static. NULL where it is not of a unit. */
    const char *part;
    uint32_t rank;        /* whose file it is; 0 where it is not a slab's */
    char path[4096];      /* of the file; an extent across stripes: where it begins */
    uint64_t file_offset; /* bytes */
    uint64_t size_bytes;
    uint64_t expected, found; /* sums; both 0: it could not be read, or is no extent */
    char reason[256];         /* one clause */
};

struct state_verify_options {
    const char *run_dir;
    const volatile sig_atomic_t *stop;
    const struct io_faults *faults; /* tests: what the drives shall do (tiers/io.h), or NULL */
    void (*on_progress)(void *user, uint64_t done_bytes, uint64_t total_bytes, double seconds);
    void (*on_damage)(void *user, const struct state_damage *damage); /* each */
    void *user;
};

struct state_verify_summary {
    uint64_t step, extent_count, bytes; /* of the commit that a run would go on from */
    uint64_t slab_bytes;                /* of the address spaces that they lie in */
    uint64_t damage_count;              /* damaged manifests and slab headers included */
    uint32_t world_size;
    /* ranks of other hosts whose slabs are not seen from here: not compared */
    uint32_t unseen_count;
    double seconds;
    /* as in train_summary; 0 where a slab or an extent is damaged or not seen, or where there are
     * several ranks and no job.json that says what of their units is padding */
    uint64_t weights_hash;
};

/* Reads all that the newest commit names, at the drives' speed, and compares; changes nothing. 0
 * where all is well; ERR_CORRUPT with the number of differences; ERR_INPUT where there is no run
 * or no commit, another process has the run in use, or all is well but slabs on other hosts are
 * not seen (unseen_count). Of a run whose ranks each had the whole state every rank's copy is
 * compared. */
int state_verify(const struct state_verify_options *options,
                 struct state_verify_summary *summary) MUST_CHECK;

struct state_inspect_slot {
    bool is_present, is_valid;
    char reason[256]; /* where present and not valid */
    uint64_t generation, step;
};

struct state_inspect_file {
    char path[4096];
    uint32_t rank;
    uint64_t size_bytes, allocated_bytes; /* both 0: absent */
};

struct state_inspect_rank {
    char host[64]; /* that it ran on; "": not noted (one rank) */
    uint32_t local_rank;
};

struct state_inspect_unit {
    char name[64];
    uint64_t elems, tile_count, size_bytes; /* of its committed extents, padding included */
    uint64_t offset_bytes;                  /* of the first one in the nvme address space */
    bool is_frozen;                         /* it does not learn: they are of its params alone */
};

struct state_inspect_kept {
    uint64_t step;
    char path[4096]; /* a run directory of its own */
};

/* Freed with state_inspect_fini. Nothing is read but manifests, slab headers, job.json. */
struct state_inspect_summary {
    /* "committed", "running", "begun"; "damaged": no manifest is valid, and all but slots and kept
     * is 0 */
    const char *state;
    uint64_t step, window_count, skipped_count, seed, generation;
    double loss_scale;
    char uuid[33];
    char identity[4096];    /* "key=value" lines: what the bits depend on */
    char state_formats[64]; /* of each stream: "fp32, bf16, bf16"; "": not known */
    uint64_t state_streams, tile_elems, extent_count, extents_bytes, total_bytes, stripe_bytes;
    struct state_inspect_slot slots[2];
    uint32_t world_size, zero_stage;
    bool is_replicated; /* each rank has the whole state; the extents are one rank's */
    struct state_inspect_rank *ranks; /* [world_size] */
    struct state_inspect_file *files; /* [file_count] slabs, by rank */
    uint32_t file_count;
    struct state_inspect_unit *units; /* [unit_count] */
    uint32_t unit_count;
    struct state_inspect_kept *kept; /* [kept_count] by step */
    uint32_t kept_count;
};

/* ERR_INPUT where there is no run. Works on a run that is in use, and on one that is damaged. */
int state_inspect(const char *run_dir, struct state_inspect_summary *out) MUST_CHECK;
void state_inspect_fini(struct state_inspect_summary *self);

#endif
