/* Reads and writes of a file by fio, for bench_nvme to compare ours with.
 *
 * fio runs as a child process, one thread, io_uring and O_DIRECT, sequentially over the range again
 * and again for the time given. Its buffers lie in huge pages by madvise, as ours do:
 * GLIBC_TUNABLES glibc.malloc.hugetlb=1 with --iomem_align 2 MiB (its --iomem=mmap takes 4 KiB
 * pages where huge ones are not given to all, and mmaphuge wants hugetlbfs). glibc below 2.35
 * cannot be asked; `huge_bytes` says what it really had. Blocks. */
#ifndef SLUICE_PERF_FIO_H
#define SLUICE_PERF_FIO_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "config/machine.h"

struct fio_job {
    const char *file;                  /* or several, joined by ':' */
    uint64_t offset_bytes, size_bytes; /* the range, of each file */
    enum machine_io_kind kind;
    uint64_t block_bytes;
    uint32_t depth;        /* in flight; mixed: both directions together */
    bool is_registered;    /* buffers and files */
    double seconds;        /* of one run, without its start */
    bool looks_at_memory;  /* huge_bytes is wanted */
    uint32_t read_percent; /* mixed: of the transfers; 0: 50 */
    /* fio's thread writes zeros into each block before it submits it, as a program does that makes
     * what it writes. Otherwise nobody touches the blocks. */
    bool fills;
};
typedef struct fio_job fio_job;

struct fio_times {
    double bytes_per_second;   /* 0: nothing moved that way */
    double p50, p95, p99, max; /* seconds of a transfer, from its submission to its completion */
};
typedef struct fio_times fio_times;

struct fio_result {
    double bytes_per_second;     /* both directions together */
    fio_times ways[2];           /* read, write */
    double cpu_seconds_per_byte; /* user and system, of its thread */
    uint64_t huge_bytes;         /* of its memory on huge pages when it was looked at */
};
typedef struct fio_result fio_result;

/* Whether fio is in the path. */
bool fio_is_installed(void);

/* -ENOTSUP where this fio cannot, with its reason; -ENOMEM. */
int fio_run(const fio_job *asked, fio_result *out) MUST_CHECK;

#endif
