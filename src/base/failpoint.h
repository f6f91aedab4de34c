/* Named points at which a test makes this process wait, fail or die.
 *
 *   code     TRY(failpoint("commit.synced"));            does nothing, at the price of one load
 *   shell    SLUICE_FAILPOINTS="commit.synced=sleep:20ms;manifest.written=fail:EIO@3"
 *   C test   failpoint_hook(on_point, user)
 *
 * In the environment each point has one action:
 *   sleep:<n>ms       waits there every time
 *   fail:<ERRNO>@<n>  fails the n-th time that the point is reached (without @n: the first time)
 *   kill@<n>          sends SIGKILL to the process itself
 * failpoint_init reads the variable once, before anything else; a text that it cannot read is
 * ERR_USAGE. The points, in the order in which a run meets them:
 *
 *   slab.create         a new run's slabs are about to be made
 *   recut.begin .copied .switched .removed     extents of another layout: src/train/recut.c
 *   commit.begin        a commit's extents are written; slabs not synced
 *   slab.sync           before fdatasync of the slabs: a failure acts as its error
 *   commit.synced       before the manifest
 *   manifest.begin      before the first byte of the slot is written
 *   manifest.half       after the first half of it
 *   manifest.written    before fsync of the slot
 *   manifest.synced     before fsync of the directory
 *   commit.durable      after it
 *   keep.begin .copied  copies of a commit that is kept: src/train/keep.c
 *
 * Hooks and counters are the process's; points may be met on any thread, one at a time per point.
 */
#ifndef SLUICE_BASE_FAILPOINT_H
#define SLUICE_BASE_FAILPOINT_H

#include "base/error.h"

/* Reads SLUICE_FAILPOINTS. ERR_USAGE with what is wrong in it. */
int failpoint_init(void) MUST_CHECK;

/* 0, or the negative code with which the caller is to fail, its text set. */
int failpoint(const char *name) MUST_CHECK;

/* From now on every point calls `hook` first, on the thread that meets it; its negative result
 * (text set by it) is the point's. NULL ends it. For tests, while no other thread is at a point. */
void failpoint_hook(int (*hook)(void *user, const char *name), void *user);

#endif
