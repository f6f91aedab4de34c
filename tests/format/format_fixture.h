/* Shared by the tests of the manifest: valid records drawn from a seed, and a directory with two
 * slots. One thread; errors end the test. */
#ifndef SLUICE_TESTS_FORMAT_FIXTURE_H
#define SLUICE_TESTS_FORMAT_FIXTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/manifest.h"

enum { FORMAT_FILE_MAX = 1 << 20 };

/* Makes a directory of this test's own, and removes it with the slots. */
void format_begin(void);
void format_end(void);

const char *format_directory(void);
const char *format_slot(int slot); /* path of manifest-<slot>; both are valid at once */
const char *
format_path(const char *name); /* of a file in the directory; valid until the next call */
void format_remove_slots(void);
bool format_exists(const char *name); /* in the directory */

/* The properties of a drawn record. The rest follows from the seed and the generation. */
struct format_shape {
    enum manifest_state state;
    uint32_t drives, leftovers, units;
    uint32_t ranks; /* 0 acts as 1 */
    uint32_t stage; /* 0: each of several ranks has the whole state */
};

/* Draws a valid record. Overwrites *out and frees nothing in it. */
void format_draw(manifest *out, uint64_t seed, uint64_t generation,
                 const struct format_shape *shape);
/* Draws a commit of step `generation` with two drives and three units. */
void format_commit(manifest *out, uint64_t generation);

/* Fails the test if two records differ in any field. */
void format_assert_same(const manifest *a, const manifest *b);

/* Draws and writes the commits of two generations. */
void format_write_two(uint64_t first_generation);

/* Reads the directory and fails the test unless this generation counts. */
void format_expect(uint64_t generation);

size_t format_load(int slot, unsigned char *bytes); /* [FORMAT_FILE_MAX] */
void format_store(int slot, const unsigned char *bytes, size_t count);
void format_sign(unsigned char *bytes, size_t count); /* puts the right checksum in */

/* The fixture replaces the C library's fsync. Its own records the paths, fails where asked, and
 * syncs nothing: a real sync is slow on a busy drive, and a test without a loss of power cannot see
 * its effect. */
struct format_syncs {
    char names[16][64]; /* the last part of each path */
    int count;
    int fail_at, fail_errno; /* the call of this index fails; negative: none */
};
extern struct format_syncs format_syncs;
void format_reset_syncs(int fail_at, int fail_errno);

/* Fails the test unless rc is `code` and the error text contains the reason. */
void format_expect_reason(int rc, int code, const char *reason);

#endif
