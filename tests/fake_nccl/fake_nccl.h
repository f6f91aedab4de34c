/* A stand-in for libnccl on the simulated GPU, in the place of src/comm/nccl_library.c: ranks are
 * processes that were forked with `shared` in common. It keeps the rules of calls that do not block
 * (nothing is enqueued while a call is in progress), runs collectives on the simulated GPU's
 * streams, and waits there for ranks that do not come until it is aborted, as NCCL's kernels do.
 * Sums are taken in rank order in fp32 and rounded to the type. */
#ifndef SLUICE_TESTS_FAKE_NCCL_H
#define SLUICE_TESTS_FAKE_NCCL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { FAKE_NCCL_RANKS = 8, FAKE_NCCL_PIECE_BYTES = 8192 };

struct fake_nccl_shared {
    atomic_uint arrived_count, generation;
    unsigned char pieces[FAKE_NCCL_RANKS][FAKE_NCCL_PIECE_BYTES];
};

/* What it pretends to be in this process, and what it saw. */
struct fake_nccl {
    bool is_absent;             /* the library cannot be loaded */
    int version_code;           /* 0: 22809 */
    uint32_t questions;         /* that each call is in progress for */
    int refusal;                /* ncclResult_t of the next collective; 0: none */
    int failure;                /* ncclResult_t that every question after it is set gets; 0: none */
    uint64_t held_bytes;        /* of the GPU's memory, by each handle */
    uint32_t collective_count;  /* taken */
    uint32_t live_handle_count; /* made, and neither destroyed nor aborted */
    uint32_t abort_count;
    struct fake_nccl_shared *shared;
};
extern struct fake_nccl fake_nccl;

#endif
