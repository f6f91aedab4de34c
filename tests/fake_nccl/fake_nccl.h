/* A stand-in for libnccl on the simulated GPU, in the place of src/comm/nccl_library.c. Ranks are
 * forked processes that have `shared` in common. The stand-in keeps the rules of non-blocking
 * calls: nothing is enqueued while a call is in progress. Collectives run on the simulated GPU's
 * streams and wait there for absent ranks until they are aborted, like NCCL's kernels. Sums are
 * taken in rank order in fp32 and rounded to the type. Sends and receives come in groups in which
 * all ranks take part. A send that no receive of its length meets ends the process. */
#ifndef SLUICE_TESTS_FAKE_NCCL_H
#define SLUICE_TESTS_FAKE_NCCL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { FAKE_NCCL_RANKS = 8, FAKE_NCCL_PIECE_BYTES = 8192 };

struct fake_nccl_shared {
    atomic_uint arrived_count, generation;
    unsigned char pieces[FAKE_NCCL_RANKS][FAKE_NCCL_PIECE_BYTES];
    uint64_t sent_bytes[FAKE_NCCL_RANKS][FAKE_NCCL_RANKS]; /* of a group: by sender and receiver */
};

/* The behaviour that the test asks for in this process, and the calls that were seen. */
struct fake_nccl {
    bool is_absent;             /* the library cannot be loaded */
    int version_code;           /* 0: 22809 */
    uint32_t questions;         /* that each call is in progress for */
    int refusal;                /* ncclResult_t of the next collective; 0: none */
    int failure;                /* ncclResult_t that every question after it is set gets; 0: none */
    uint32_t deadly_rows;       /* the process is killed in place of the rows of its all-to-all of
                                 * this number, from 1 on, after it has told the sizes; 0: never */
    uint64_t held_bytes;        /* of the GPU's memory, by each handle */
    uint32_t collective_count;  /* taken */
    uint32_t live_handle_count; /* made, and neither destroyed nor aborted */
    uint32_t abort_count;
    struct fake_nccl_shared *shared;
};
extern struct fake_nccl fake_nccl;

#endif
