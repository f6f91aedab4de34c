/* sluice probe: what this machine can do, measured: memory, the optimizer, matrix products, links, drives,
 * collectives. See src/config/machine.h for what comes of it.
 *
 * Blocking; one at a time; on the caller's thread and an OpenMP team. Leaves nothing behind on any drive. */
#ifndef SLUICE_PROBE_PROBE_H
#define SLUICE_PROBE_PROBE_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "config/machine.h"

enum { PROBE_DRIVES_MAX = MACHINE_DRIVES_MAX };

struct probe_options {
    const char *drives[PROBE_DRIVES_MAX]; /* directories */
    uint32_t drive_count;
    const char *backend;               /* "auto", "cpu", "cuda" */
    bool is_quick;                     /* under 30 s, else under 3 minutes */
    bool skips_fio;                    /* not compared with fio, even where that is installed */
    const volatile sig_atomic_t *stop; /* may be NULL */
    /* What is measured now, and how far all is; on the caller's thread. */
    void (*on_progress)(void *user, const char *what, double done_share, double seconds_left);
    void (*on_line)(void *user, const char *text); /* a finding, one line */
    void *user;
};

/* Fills *out. ERR_STOPPED after a stop; ERR_INPUT for a drive that cannot be used. */
int probe_run(const struct probe_options *options, machine *out) MUST_CHECK;

#endif
