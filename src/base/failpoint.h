/* Named points at which a test makes this process wait, fail or die.
 *
 *   code     TRY(failpoint("commit.synced"));            costs one load while no point is armed
 *   shell    SLUICE_FAILPOINTS="commit.synced=sleep:20ms;manifest.written=fail:EIO@3"
 *   C test   failpoint_hook(on_point, user)
 *
 * In the environment each point has one action:
 *   sleep:<n>ms       waits there every time
 *   fail:<ERRNO>@<n>  fails the n-th time that the point is reached (without @n: the first time)
 *   kill@<n>          sends SIGKILL to the process itself
 * failpoint_init reads the variable once, before anything else. A text that it cannot read is
 * ERR_USAGE. The points, in the order in which a run reaches them:
 *
 *   join.hub            before a rank other than 0 connects to rank 0
 *   slab.create         before the slabs of a new run are made
 *   recut.begin .copied .switched .removed     extents of another layout: src/state/recut.c
 *   commit.begin        the extents of a commit are written, the slabs are not synced
 *   slab.sync           before fdatasync of the slabs: a failure acts as its error
 *   commit.synced       before the manifest
 *   manifest.begin      before the first byte of the slot is written
 *   manifest.half       after the first half of the slot
 *   manifest.written    before fsync of the slot
 *   manifest.synced     before fsync of the directory
 *   commit.durable      after fsync of the directory
 *   keep.begin .copied  copies of a commit that is kept: src/state/kept_commits.c
 *   remove.begin .slabs .manifests      steps of sluice remove: src/state/remove_run.c
 *
 * Hooks and counters belong to the process. Any thread may reach a point, but only one thread at a
 * time the same point. */
#ifndef SLUICE_BASE_FAILPOINT_H
#define SLUICE_BASE_FAILPOINT_H

#include "base/error.h"

/* Reads SLUICE_FAILPOINTS. If its text is wrong, returns ERR_USAGE and the error says what is
 * wrong. */
int failpoint_init(void) MUST_CHECK;

/* Returns 0, or the negative code with which the caller must fail; the error's text is set. */
int failpoint(const char *name) MUST_CHECK;

/* From now on every point calls `hook` first, on the thread that reaches it. If the hook returns a
 * negative code (it sets the text), the point returns that code. NULL removes the hook. For tests;
 * no other thread may be at a point during the call. */
void failpoint_hook(int (*hook)(void *user, const char *name), void *user);

#endif
