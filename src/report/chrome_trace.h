/* trace.json: the trace ring as Chrome trace events, for chrome://tracing and ui.perfetto.dev.
 *
 * One track per lane; each op is a complete event ("ph":"X") named like "forward block.3 mb 1",
 * with its bytes, step, program and stall as args. A track shows nested events only. So requests of
 * a lane that overlap in time (read and write keep many in flight) go to further tracks of the
 * lane, "read 2" and so on. Times are microseconds from the earliest event of the ring. The times
 * of single transfers are a metadata event ("ph":"M") "drive_times" per drive and direction, with
 * args drive, direction, transfers, p50_us, p95_us, p99_us, max_us.
 *
 * Called on the owner's thread, between steps or at the end. Blocks on the file; allocates nothing
 * itself (stdio does). */
#ifndef SLUICE_REPORT_CHROME_TRACE_H
#define SLUICE_REPORT_CHROME_TRACE_H

#include <stdint.h>

#include "base/error.h"
#include "base/trace.h"
#include "base/words.h"

/* The args.stall_lane of an op that no lane kept waiting (trace_event.stall_is_hand_over). */
#define CHROME_TRACE_HAND_OVER "hand-over"

struct chrome_trace_times {
    uint64_t count; /* 0: no transfers, and no event is written */
    uint64_t p50_ns, p95_ns, p99_ns, max_ns;
};
typedef struct chrome_trace_times chrome_trace_times;

struct chrome_trace_drive {
    const char *path;           /* UTF-8 */
    chrome_trace_times ways[2]; /* read, write */
};
typedef struct chrome_trace_drive chrome_trace_drive;

struct chrome_trace_names {
    const char *process;           /* "sluice rank 0", or NULL */
    uint32_t rank;                 /* the process number in the trace */
    const char *const *unit_names; /* [unit_count], UTF-8; NULL: units are numbered */
    uint32_t unit_count;
    uint32_t drive_count;
    chrome_trace_drive drives[DRIVES_MAX];
};
typedef struct chrome_trace_names chrome_trace_names;

/* Writes the ring's events to `path` with file_write_with. If this fails, the old file stays.
 * Returns -errno. */
int chrome_trace_write(const char *path, int mode, const trace *ring,
                       const chrome_trace_names *names) MUST_CHECK;

#endif
