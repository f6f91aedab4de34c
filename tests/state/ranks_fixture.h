/* Makes a committed run of several ranks for tests: its manifest in memory and its slabs in files,
 * with units of known elements that are cut over the ranks or whole on each rank. Every
 * function fails the test if it cannot do its part. */
#ifndef SLUICE_TESTS_RANKS_FIXTURE_H
#define SLUICE_TESTS_RANKS_FIXTURE_H

#include "state/rank_slabs.h"

enum {
    RANKS_WORLDS = 4,
    RANKS_MANY = 12, /* more than rank_slabs.h has open at a time */
    RANKS_UNITS = 4,
    RANKS_STREAMS = 3,
    RANKS_DRIVES = 2
};

extern uint64_t ranks_seed;
extern const uint64_t ranks_unit_elems[RANKS_UNITS];

/* Ranks with their slabs; of an old run, and of a new one. */
struct ranks_run {
    manifest record;
    slab disks[RANKS_MANY];
    uint32_t world;
    bool is_sharded;
    uint64_t tile_elems;
};

extern struct ranks_run ranks_old;

/* The bits of one element: any pattern. */
uint32_t ranks_element(uint32_t unit, uint32_t stream, uint64_t idx);
/* Memory for direct I/O; the caller frees *block. */
void *ranks_aligned(uint64_t size_bytes, void **block);
uint64_t ranks_rest_elems(const struct ranks_run *self, uint32_t unit);
/* The extents of one rank's layout, by unit and tile; how many. Elements count from the whole
 * unit's first, or from the rank's. */
uint64_t ranks_lay_out(const struct ranks_run *self, uint32_t rank, bool begins_whole,
                       manifest_extent *out);
/* Fills `data` with the expected contents of the tile: the unit's elements, then zeros. */
void ranks_fill_tile(const manifest_extent *tile, unsigned char *data);
void ranks_open_rank(struct ranks_run *self, uint32_t rank, uint64_t total_bytes);
io *ranks_open_io(slab *disk);
/* The test's own directory, which holds all drives. The group's set-up creates it. */
int ranks_setup(void **state);
int ranks_teardown(void **state);
const char *ranks_directory(void);
/* Drives with and without placeholders, two ranks on a host. */
void ranks_name_slabs(struct ranks_run *self, const char *name);
/* A committed run of so many ranks, with all its slabs; they are closed. */
void ranks_make_old(uint32_t world, bool is_sharded, uint64_t tile_elems);
void ranks_remove_old(void);

#endif
