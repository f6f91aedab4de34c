/* sluice probe: what this machine can do, measured: memory, the optimizer, matrix products, links,
 * drives, collectives. See src/config/machine.h for what comes of it.
 *
 *   ranks        processes of its own that exchange through shared memory    (ranks.c)
 *   memory       reading, copying, Adam; all cores and one                   (memory.c)
 *   products     the shapes that training has, forward and backward          (products.c)
 *   kernels      attention, row-wise kernels, the hand-over of an op         (kernels.c)
 *   link         between host memory and device; a CPU's copies beside products, which lose more than the
 *                copies' time (link.c, product_load.c)
 *   drives       each over block size and depth, with fdatasync, beside Adam, copies and products
 *                (drive.c, drives.c, tiers/drive_bench.h); then all at once
 *
 * Measured on the threads and cores that a run uses by default (tiers/topology.h). Variants that
 * are compared take turns, round by round, and each figure is the median of its rounds: the machine
 * may have other work. What swings beyond some percent is measured again while there is time for
 * it; what still does is named at the end, and in machine.json ("disturbed"), as is other work that
 * took more than a tenth of a core: plans then say so. Times are planned before the first
 * measurement; what takes longer than planned takes rounds from what follows, never its figure.
 *
 * Blocking; one at a time. Starts threads and processes of its own and leaves the caller's thread
 * as it was. Files are those of slab_open_unnamed: nothing stays behind on any drive, however it
 * ends. */
#ifndef SLUICE_PROBE_PROBE_H
#define SLUICE_PROBE_PROBE_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/words.h"
#include "config/machine.h"

enum {
    PROBE_NEAR_PERCENT = 98, /* of the best: what the chosen settings reach */
};

struct probe_options {
    const char *drives[DRIVES_MAX]; /* directories */
    uint32_t drive_count;
    const char *backend;               /* "auto", "cpu", "cuda"; NULL: "auto" */
    bool is_quick;                     /* under 30 s, else under 3 minutes */
    bool is_tiny;                      /* tests: some MiB, small shapes, a round or two of each */
    const volatile sig_atomic_t *stop; /* may be NULL */
    /* What is measured now, and how far all is; both from one thread at a time, while the caller
     * waits. */
    void (*on_progress)(void *user, const char *what, double done_share, double seconds_left);
    void (*on_line)(void *user, const char *text); /* a finding, one line; either may be NULL */
    void *user;
};

/* Fills *out. Every drive is tried before anything is measured. ERR_STOPPED after a stop; ERR_INPUT
 * for a drive that cannot be used, ERR_NO_FIT for one that is full, ERR_CONFIG for "cuda" without a
 * GPU. On failure *out is cleared. */
int probe_run(const struct probe_options *options, machine *out) MUST_CHECK;

/* Of the host that this process is on, what machine_is_here compares: name, host.cpu, and
 * host.core_count as probe_run counts them: physical cores that may be used, within the quota of
 * the control groups. The error of topology_read. */
int probe_name_host(machine *target) MUST_CHECK;

/* One setting of a drive: bytes per second of each kind, by enum machine_io_kind. */
struct probe_setting {
    uint64_t block_bytes, queue_depth;
    double rates[3];
};
typedef struct probe_setting probe_setting;

/* The index of the smallest setting (bytes in flight, then depth) that reaches `share` of the best
 * rate of every kind; where none does, of the one whose worst kind comes nearest. count > 0; a kind
 * whose best rate is 0 does not count. Pure. */
uint32_t probe_choose_setting(const probe_setting *settings, uint32_t count, double share);

#endif
