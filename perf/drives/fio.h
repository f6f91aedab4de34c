/* Runs fio on a file, so that bench_nvme can compare Sluice with it.
 *
 * fio runs as a child process with one thread, io_uring and O_DIRECT. It reads or writes the range
 * sequentially, again and again, for the given time. Its buffers are on huge pages by madvise, like
 * ours: GLIBC_TUNABLES glibc.malloc.hugetlb=1 with --iomem_align 2 MiB. (Its --iomem=mmap gets 4
 * KiB pages if the system gives huge pages only to programs that ask, and mmaphuge needs
 * hugetlbfs.) glibc before 2.35 does not support this; `huge_bytes` reports the real amount.
 * fio_run blocks. */
#ifndef SLUICE_PERF_FIO_H
#define SLUICE_PERF_FIO_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "config/machine.h"

struct fio_job {
    const char *file;                  /* one file, or several joined by ':' */
    uint64_t offset_bytes, size_bytes; /* the range in each file */
    enum machine_io_kind kind;
    uint64_t block_bytes;
    uint32_t depth;        /* requests in flight; mixed: of both directions together */
    bool is_registered;    /* buffers and files */
    double seconds;        /* of one run, without its start */
    bool looks_at_memory;  /* sets huge_bytes in the result */
    uint32_t read_percent; /* mixed: share of reads among the transfers; 0 means 50 */
    /* fio's thread writes zeros into each block before it submits it, like a program that produces
     * its data. Otherwise nobody touches the blocks. */
    bool fills;
};
typedef struct fio_job fio_job;

struct fio_times {
    double bytes_per_second;   /* 0 if nothing moved in this direction */
    double p50, p95, p99, max; /* seconds of a transfer, from submission to completion */
};
typedef struct fio_times fio_times;

struct fio_result {
    double bytes_per_second;     /* both directions together */
    fio_times ways[2];           /* read, write */
    double cpu_seconds_per_byte; /* user and system time of its thread */
    uint64_t huge_bytes;         /* its memory on huge pages at the last check */
};
typedef struct fio_result fio_result;

/* Returns true if fio is in the path. */
bool fio_is_installed(void);

/* Returns -ENOTSUP with the reason if this fio cannot run the job, or -ENOMEM. */
int fio_run(const fio_job *asked, fio_result *out) MUST_CHECK;

#endif
