/* The one live line of the terminal, and its plain form for logs.
 *
 *   step 120/300  loss 3.2145  1.23k tok/s  read 2.90 write 1.95 GB/s  stall 12%  left 1h02m
 *
 * Pure text in a caller's buffer: no terminal codes, no allocation, any thread. It is ASCII, so
 * that a column is a byte. src/cli shows it. */
#ifndef SLUICE_REPORT_LIVE_H
#define SLUICE_REPORT_LIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "swap/program.h"

enum { LIVE_LINE_BYTES = 512 }; /* enough for any line with its NUL */

struct live_status {
    uint64_t step, steps; /* the number of steps done, and of all steps; steps 0: unknown */
    double loss;          /* nats per token */
    /* plain form only: the losses of the routers, without their coefficients */
    bool has_router_losses;
    double balance_loss, router_z_loss;
    double grad_norm; /* plain form only */
    double lr;        /* plain form only */
    bool skipped;     /* the step overflowed and changed nothing */
    double step_seconds;
    double tokens_per_second;
    uint64_t lane_bytes[LANE_COUNT]; /* moved in the step */
    double stall_share;              /* share of the step, 0..1, in which cores waited for data */
    double seconds_left;             /* negative: unknown */
};
typedef struct live_status live_status;

/* Formats the live line for a terminal of `width` columns. The least important parts are left out
 * until it fits (first the seconds left, then the lanes, the stall, the speed, the loss). If it is
 * still too wide, it is cut. Returns its length, below min(width + 1, text_bytes > 0). */
size_t live_format(const live_status *status, unsigned width, char *text, size_t text_bytes);

/* Formats the step's line for a log, with all parts and any width. Returns the length. text_bytes >
 * 0. */
size_t live_format_plain(const live_status *status, char *text, size_t text_bytes);

#endif
