/* sluice probe: measures the speed of this machine. The result is a `machine`
 * (src/config/machine.h).
 *
 *   subject        what is measured
 *   ranks          collectives between processes that the probe forks, through shared memory
 *   memory         reading, copying and Adam, on all cores and on one core
 *   products       matrix products in the shapes of training, forward and backward
 *   kernels        attention, row-wise kernels, the cost of handing an op to another thread
 *   link           copies between host memory and the device; on a CPU also copies beside products
 *   drives         each drive over block size and depth, with fdatasync, and beside Adam, copies
 *                  and products; then all drives at once
 *
 * The measurements use the threads and cores that a run uses by default (tiers/topology.h). The
 * machine may have other work, so variants that are compared take turns, round by round, and each
 * figure is the median of its rounds. A figure with a large spread is measured again while there is
 * time. If its spread stays large, or other work took more than a tenth of a core, the probe says
 * so at the end and in machine.json ("disturbed", "disturbed_by"). Plans, runs and reports repeat
 * it.
 *
 * The probe plans the time of each step before the first measurement. A step that takes longer than
 * planned leaves fewer rounds to the later steps, but every figure is still measured.
 *
 * probe_run blocks, and only one may run at a time. It starts its own threads and processes and
 * leaves the settings of the caller's thread unchanged. Its files have no name (slab_open_unnamed),
 * so nothing remains on any drive, even if the process is killed. */
#ifndef SLUICE_PROBE_PROBE_H
#define SLUICE_PROBE_PROBE_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/words.h"
#include "config/machine.h"

enum {
    /* The chosen setting reaches this share of the best rate. Less is in flight then: transfers end
     * one after the other, and updates and writes can begin with the first, where with more in
     * flight all end together. Besides, settings differ by some percent by chance. */
    PROBE_NEAR_PERCENT = 95,
};

struct probe_options {
    const char *drives[DRIVES_MAX]; /* directories */
    uint32_t drive_count;
    const char *backend; /* "auto", "cpu", "cuda"; NULL: "auto" */
    bool is_quick;       /* the probe takes under 30 s; otherwise under 3 minutes */
    /* for tests: a few MiB, small shapes, one or two rounds of each */
    bool is_tiny;
    const volatile sig_atomic_t *stop; /* the probe stops when it becomes nonzero; may be NULL */
    /* Reports the current measurement and the progress of the whole probe. May be NULL. Both
     * callbacks come from one thread at a time, while the caller waits in probe_run. */
    void (*on_progress)(void *user, const char *what, double done_share, double seconds_left);
    void (*on_line)(void *user, const char *text); /* reports a finding of one line; may be NULL */
    void *user;
};

/* Measures the machine and fills *out. Every drive is tried before anything is measured. Errors:
 *
 *   ERR_STOPPED   *options->stop became nonzero
 *   ERR_INPUT     a drive cannot be used
 *   ERR_NO_FIT    a drive is full
 *   ERR_CONFIG    backend "cuda" without a GPU
 *
 * On failure *out is cleared. */
int probe_run(const struct probe_options *options, machine *out) MUST_CHECK;

/* Checks, before anything is measured, that the file `path` can be written, and that an existing
 * file is one that a probe wrote, so that it may be replaced. ERR_USAGE, ERR_INPUT. */
int probe_check_file(const char *path) MUST_CHECK;
/* Checks that the directories whose drives are to be measured exist. One that does not is a typing
 * error: measuring the drive of its parent would answer another question. ERR_INPUT, whose text
 * begins with `option`. */
int probe_check_drives(const char *option, const char *const *directories, size_t count) MUST_CHECK;

/* Fills the fields of *target that machine_is_here compares, for the host of this process: the
 * name, host.cpu and host.core_count. Cores are counted as in probe_run: physical cores that this
 * process may use, within the quota of its control groups. Returns the error of topology_read. */
int probe_name_host(machine *target) MUST_CHECK;

/* One setting of a drive. `rates` holds bytes per second, indexed by enum machine_io_kind. */
struct probe_setting {
    uint64_t block_bytes, queue_depth;
    double rates[3];
};
typedef struct probe_setting probe_setting;

/* Returns the index of the smallest setting (by bytes in flight, then by depth) that reaches
 * `share` of the best rate in every kind. If no setting does, returns the setting whose worst kind
 * comes nearest. `count` must be > 0. A kind whose best rate is 0 does not count. Pure. */
uint32_t probe_choose_setting(const probe_setting *settings, uint32_t count, double share);

#endif
