/* The speed of exchanges between ranks of one host: all-gather, reduce-scatter and all-to-all of
 * src/comm, against the MPI library's in the same run. Before the timing it checks that both give
 * the expected results. It prints the median of RUNS runs, their spread, the GB/s that each rank
 * sends, and the ratio to the library's.
 *
 *   mpirun -n N bench_comm [STAGING_BYTES]     default: 8MiB; --csv FILE as in bench.h */
#include <errno.h>
#include <inttypes.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "comm/comm.h"
#include "perf/bench.h"

enum { RUNS = 9 };

enum work {
    WORK_GATHER,
    WORK_GATHER_MPI,
    WORK_REDUCE,
    WORK_REDUCE_BF16,
    WORK_REDUCE_MPI,
    WORK_PARCELS,
    WORK_PARCELS_MPI,
    WORKS
};
static const char *const work_names[WORKS] = {"all-gather",
                                              "all-gather, library",
                                              "reduce-scatter fp32",
                                              "reduce-scatter bf16 wire",
                                              "reduce-scatter, library fp32",
                                              "all-to-all",
                                              "all-to-all, library"};
static const enum work rivals[WORKS] = {WORK_GATHER_MPI, WORK_GATHER_MPI, WORK_REDUCE_MPI,
                                        WORK_REDUCE_MPI, WORK_REDUCE_MPI, WORK_PARCELS_MPI,
                                        WORK_PARCELS_MPI};

struct data {
    float *source, *target; /* [world * elems] */
    uint64_t elems;         /* fp32 elements of a shard */
};
typedef struct data data;

static int from_mpi(int code)
{
    return code == MPI_SUCCESS ? 0 : err_set(ERR_BACKEND, "MPI's error %d", code);
}

static int exchange_parcels(comm *group, const data *on, const rank_parcel *sent,
                            rank_parcel *received)
{
    return comm_all_to_all(group, &(comm_parcels){.label = work_names[WORK_PARCELS],
                                                  .source = on->source,
                                                  .target = on->target,
                                                  .sent = sent,
                                                  .received = received});
}

/* Sends each rank a shard. */
static int run_parcels(comm *group, const data *on)
{
    static rank_parcel sent[COMM_RANKS_MAX], received[COMM_RANKS_MAX];
    uint64_t bytes = on->elems * sizeof(float);
    for (uint32_t r = 0; r < comm_get_world(group); r++)
        sent[r] = received[r] = (rank_parcel){r * bytes, bytes};
    return exchange_parcels(group, on, sent, received);
}

static int run_once(comm *group, enum work what, const data *on)
{
    comm_call call = {.label = work_names[what], .source = on->source, .target = on->target};
    call.count = on->elems;
    call.wire = what == WORK_REDUCE_BF16 ? DTYPE_BF16 : DTYPE_FP32;
    switch (what) {
    case WORK_GATHER:
        call.count *= sizeof(float);
        return comm_all_gather(group, &call);
    case WORK_GATHER_MPI:
        return from_mpi(MPI_Allgather(on->source, (int)on->elems, MPI_FLOAT, on->target,
                                      (int)on->elems, MPI_FLOAT, MPI_COMM_WORLD));
    case WORK_PARCELS:
        return run_parcels(group, on);
    case WORK_PARCELS_MPI:
        return from_mpi(MPI_Alltoall(on->source, (int)on->elems, MPI_FLOAT, on->target,
                                     (int)on->elems, MPI_FLOAT, MPI_COMM_WORLD));
    case WORK_REDUCE_MPI:
        return from_mpi(MPI_Reduce_scatter_block(on->source, on->target, (int)on->elems, MPI_FLOAT,
                                                 MPI_SUM, MPI_COMM_WORLD));
    default:
        return comm_reduce_scatter(group, &call);
    }
}

/* A third of a shard, two, or none. */
static uint64_t parcel_elems(const data *on, uint32_t from, uint32_t to)
{
    return on->elems / 3 * ((2 * from + to + 2) % 3);
}

/* Checks an all-to-all of parcels of other sizes than those that are timed: some are empty, and no
 * receiver knows the size before. */
static int prove_parcels(comm *group, const data *on)
{
    static rank_parcel sent[COMM_RANKS_MAX], received[COMM_RANKS_MAX];
    uint32_t world = comm_get_world(group), rank = comm_get_rank(group);
    uint64_t bytes = on->elems * sizeof(float);
    float untouched;
    memset(&untouched, 0x40, sizeof untouched);
    memset(on->target, 0x40, world * bytes);
    for (uint32_t p = 0; p < world; p++) {
        sent[p] = (rank_parcel){p * bytes, parcel_elems(on, rank, p) * sizeof(float)};
        received[p] = (rank_parcel){p * bytes, bytes};
    }
    TRY(exchange_parcels(group, on, sent, received));
    for (uint64_t i = 0; i < world * on->elems; i++) {
        uint32_t p = (uint32_t)(i / on->elems);
        uint64_t at = i % on->elems, elems = parcel_elems(on, p, rank);
        float expected = at < elems ? (float)(p + at % 64) : untouched;
        if (received[p].size_bytes != elems * sizeof(float) || on->target[i] != expected)
            return err_set(ERR_INTERNAL,
                           "all-to-all: %" PRIu64 " bytes from rank %u, element %" PRIu64
                           " is %g, not %g",
                           received[p].size_bytes, p, at, (double)on->target[i], (double)expected);
    }
    return 0;
}

/* Checks one exchange. The values are small whole numbers, so that every order of sums gives the
 * same result. */
static int prove(comm *group, enum work what, const data *on)
{
    uint32_t world = comm_get_world(group), rank = comm_get_rank(group);
    bool is_sum = rivals[what] == WORK_REDUCE_MPI;
    uint64_t count = !is_sum ? world * on->elems : on->elems;
    if (what == WORK_PARCELS)
        TRY(prove_parcels(group, on));
    memset(on->target, 0xff, world * on->elems * sizeof(float));
    TRY(run_once(group, what, on));
    for (uint64_t i = 0; i < count; i++) {
        float expected = !is_sum ? (float)(i / on->elems + i % on->elems % 64)
                                 : (float)(world * (world - 1) / 2 +
                                           world * ((rank * on->elems + i) % on->elems % 64));
        if (on->target[i] != expected)
            return err_set(ERR_INTERNAL, "%s: element %" PRIu64 " is %g, not %g", work_names[what],
                           i, (double)on->target[i], (double)expected);
    }
    return 0;
}

/* Measures the seconds of the slowest rank, sorted. */
static int measure(comm *group, enum work what, const data *on, double seconds[RUNS])
{
    for (int run = -2; run < RUNS; run++) {
        TRY(from_mpi(MPI_Barrier(MPI_COMM_WORLD)));
        uint64_t start_ns = clock_ns();
        TRY(run_once(group, what, on));
        double mine = (double)(clock_ns() - start_ns) * 1e-9, slowest;
        TRY(from_mpi(MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD)));
        if (run >= 0)
            seconds[run] = slowest;
    }
    (void)bench_summarize(seconds, RUNS);
    return 0;
}

static int bench_count(comm *group, uint64_t elems)
{
    uint32_t world = comm_get_world(group);
    data on = {.elems = elems};
    on.source = mem_alloc(world * elems, sizeof(float), "bench");
    on.target = mem_alloc(world * elems, sizeof(float), "bench");
    if (on.source == NULL || on.target == NULL)
        return -ENOMEM;
    for (uint64_t i = 0; i < world * elems; i++)
        on.source[i] = (float)(comm_get_rank(group) + i % elems % 64);
    double seconds[WORKS][RUNS];
    for (int what = 0; what < WORKS; what++) {
        TRY(prove(group, (enum work)what, &on));
        TRY(measure(group, (enum work)what, &on, seconds[what]));
    }
    double sent = (double)(world - 1) * (double)elems * sizeof(float);
    char size[SIZE_TEXT_BYTES];
    for (int what = 0; what < WORKS && comm_get_rank(group) == 0; what++) {
        const double *mine = seconds[what];
        printf("%2u ranks  %10s of fp32 a shard  %-29s %8.3f ms (%.3f to %.3f)  %6.2f GB/s  %5.2f "
               "of the "
               "library's\n",
               world, size_format(elems * sizeof(float), size), work_names[what],
               mine[RUNS / 2] * 1e3, mine[0] * 1e3, mine[RUNS - 1] * 1e3,
               sent / mine[RUNS / 2] * 1e-9, seconds[rivals[what]][RUNS / 2] / mine[RUNS / 2]);
        if (what == (int)rivals[what])
            continue;
        char name[96];
        snprintf(name, sizeof name, "%s %u ranks %s a shard", work_names[what], world, size);
        bench_keep(name, sent / mine[RUNS / 2] * 1e-9, "GB/s",
                   sent / seconds[rivals[what]][RUNS / 2] * 1e-9,
                   (mine[RUNS * 3 / 4] - mine[RUNS / 4]) / (2 * mine[RUNS / 2]));
    }
    mem_free(on.source);
    mem_free(on.target);
    return 0;
}

static int bench(comm *group, uint64_t staging_bytes)
{
    static const uint64_t counts[] = {4096, 65536, 1048576, 8388608};
    comm_open_config config = {.backend = COMM_MPI, .staging_bytes = staging_bytes};
    TRY(comm_open(group, &config));
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        TRY(bench_count(group, counts[i]));
    return 0;
}

int main(int argc, char **argv)
{
    uint64_t staging_bytes = 0;
    comm *group = NULL;
    bench_begin(&argc, argv);
    int rc = 0;
    if (argc > 1 && size_parse(argv[1], &staging_bytes) < 0)
        rc = err_set(ERR_USAGE, "\"%s\" is no size of the staging memory, such as 16MiB", argv[1]);
    if (rc == 0)
        rc = comm_join(&(comm_join_config){0}, &group);
    if (rc == 0 && comm_get_world(group) < 2)
        rc = err_set(ERR_USAGE, "start it as mpirun -n 2 bench_comm");
    if (rc == 0)
        rc = bench(group, staging_bytes);
    if (rc < 0 && comm_is_reporter(group))
        fprintf(stderr, "bench_comm: %s\n", err_text());
    comm_leave(group, rc);
    return bench_exit_of(rc);
}
