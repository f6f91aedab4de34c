/* Simulated bad days of drives and kernels, for tests. They work on every backend of tiers/io.h.
 *
 * Which transfer meets which fault follows from the seed and the number of the transfer alone, so a test that prints
 * its seed can be repeated. */
#ifndef SLUICE_TIERS_IO_FAULTS_H
#define SLUICE_TIERS_IO_FAULTS_H

#include <stdbool.h>
#include <stdint.h>

/* What may happen to a transfer. Kinds that need a write (torn, ENOSPC) do nothing to a read, and a flip
 * does nothing to a write. */
enum io_fault_kind {
    IO_FAULT_NONE,
    IO_FAULT_SHORT,   /* moves only a part, as a signal or a busy drive may cause: is continued */
    IO_FAULT_RETRY,   /* ends with EINTR or EAGAIN before moving anything: is retried */
    IO_FAULT_EIO,     /* fails with EIO after moving all: reads are garbage, writes are done */
    IO_FAULT_TORN,    /* writes only: a part is written, then EIO */
    IO_FAULT_ENOSPC,  /* writes only: ENOSPC, nothing is written */
    IO_FAULT_FLIP,    /* reads only: one bit of what was read is wrong, and nothing is reported */
    IO_FAULT_LATENCY, /* is done, but its completion is held back for latency_us_max, or 1 ms */
    IO_FAULT_STUCK,   /* is not begun before stuck_us have passed; with 0 never, until io_destroy */
    IO_FAULT_KIND_COUNT
};

/* A drive's bad days, by seed, for tests; the same on every backend. Plain data. Transfers are counted
 * from 1, reads and writes together, in the order in which they are handed to the backend; what is
 * continued or retried counts again. Each rate is in transfers of a thousand, drawn per transfer from
 * (seed, its number) alone. */
struct io_faults {
    uint64_t seed;
    uint32_t short_rate, retry_rate, eio_rate, torn_rate, enospc_rate, flip_rate, stuck_rate;
    uint64_t at_transfer; /* exactly this transfer gets at_kind, whatever the rates; 0: none */
    enum io_fault_kind at_kind;
    uint64_t break_after; /* the queue itself breaks once so many transfers were tried; 0: never */
    uint64_t stuck_us;
    uint32_t latency_us_max; /* completions are held back for up to this long, so order changes */
};
typedef struct io_faults io_faults;

/* What a test changes about an io (io_config.test). */
struct io_test {
    bool deny_uring;         /* act as if the kernel refused io_uring */
    bool deny_registration;  /* act as if RLIMIT_MEMLOCK forbade registered buffers */
    const io_faults *faults; /* copied by io_create; NULL: none */
};
typedef struct io_test io_test;

/* "short", "eio", ... Static storage. */
const char *io_fault_kind_name(enum io_fault_kind kind);

#endif
