/* Simulated faults of drives and kernels, for tests. They work on every backend of tiers/io.h.
 *
 * The seed and the number of a transfer alone decide which fault the transfer meets, so a test that
 * prints its seed can be repeated. */
#ifndef SLUICE_TIERS_IO_FAULTS_H
#define SLUICE_TIERS_IO_FAULTS_H

#include <stdbool.h>
#include <stdint.h>

/* The kinds of faults of a transfer. Faults of writes do nothing to a read, and vice versa. */
enum io_fault_kind {
    IO_FAULT_NONE,
    IO_FAULT_SHORT,   /* moves only a part, as a signal or a busy drive may cause; is continued */
    IO_FAULT_RETRY,   /* ends with EINTR or EAGAIN before it moves anything; is retried */
    IO_FAULT_EIO,     /* fails with EIO after moving all: reads are garbage, writes are done */
    IO_FAULT_TORN,    /* writes only: a part is written, then EIO */
    IO_FAULT_ENOSPC,  /* writes only: ENOSPC, nothing is written */
    IO_FAULT_FLIP,    /* reads only: one bit is wrong, and no error is reported */
    IO_FAULT_LATENCY, /* is done, but its completion is held back for latency_us_max, or 1 ms */
    IO_FAULT_STUCK,   /* does not begin before stuck_us have passed; 0: never, until io_destroy */
    IO_FAULT_KIND_COUNT
};

/* The faults of one io. Transfers are counted from 1, reads and writes together, in the order of
 * their handover to the backend; a continued or retried transfer counts again. Each rate is in
 * transfers per thousand and is drawn for each transfer from (seed, its number). */
struct io_faults {
    uint64_t seed;
    uint32_t short_rate, retry_rate, eio_rate, torn_rate, enospc_rate, flip_rate, stuck_rate;
    uint64_t at_transfer; /* this transfer gets at_kind, whatever the rates; 0: none */
    enum io_fault_kind at_kind;
    uint64_t break_after; /* the queue itself breaks after this many transfers; 0: never */
    uint64_t stuck_us;
    uint32_t latency_us_max; /* completions are held back for up to this long */
};
typedef struct io_faults io_faults;

/* The changes that a test makes to an io (io_config.test). */
struct io_test {
    int uring_refusal;       /* act as if io_uring_setup failed with this errno; 0: no */
    uint32_t skipped_modes;  /* act as a kernel that lacks the best ways to set up a ring */
    bool polls_plain_ring;   /* io_config.polls with a ring that the kernel does not poll */
    bool deny_registration;  /* act as if RLIMIT_MEMLOCK forbade registered buffers */
    const io_faults *faults; /* copied by io_create; NULL: none */
};
typedef struct io_test io_test;

/* "short", "eio", ... Static storage. */
const char *io_fault_kind_name(enum io_fault_kind kind);

#endif
