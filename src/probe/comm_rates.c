/* Measures collectives between ranks on this machine. They exchange through shared memory, as the
 * ranks of one host do if they have no GPUs. See probe_internal.h.
 *
 * The probe forks its ranks before it has threads or a GPU. They join as ranks of a launcher
 * would, and end together with the probe in every case. One host cannot measure collectives
 * between hosts. */
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/size.h"
#include "base/thread.h"
#include "comm/comm.h"
#include "probe/probe_internal.h"

enum { RANKS_MAX = 4, SMALL_BYTES = 4096, SMALL_COUNT = 50 };

/* The variants that take turns. */
enum variant { GATHER, REDUCE, SMALL, VARIANT_COUNT };

/* Memory shared by the probe and its ranks. Rank 0 writes the figures; the first failed rank writes
 * `code` and `text`. */
struct outcome {
    probei_figure figures[VARIANT_COUNT]; /* bytes sent per second; SMALL: seconds */
    int code;                             /* error of the first rank that failed */
    char text[ERR_TEXT_BYTES];
};

struct plan {
    uint32_t world;
    uint64_t shard_bytes;
    double seconds;
    comm_join_config join;
    struct outcome *outcome;
};

static int run_variant(comm *self, const struct plan *plan, unsigned char *memory,
                       enum variant variant, double *value)
{
    uint64_t bytes = variant == SMALL ? SMALL_BYTES : plan->shard_bytes;
    comm_call call = {.label = "a collective of the probe",
                      .source = memory,
                      .target = memory + plan->world * plan->shard_bytes,
                      .count = variant == REDUCE ? bytes / 4 : bytes,
                      .wire = DTYPE_FP32};
    int count = variant == SMALL ? SMALL_COUNT : 1;
    TRY(comm_barrier(self, "a collective of the probe"));
    uint64_t sent = comm_sent_bytes(self), begin_ns = clock_ns();
    for (int i = 0; i < count; i++)
        TRY(variant == REDUCE ? comm_reduce_scatter(self, &call) : comm_all_gather(self, &call));
    double seconds = (double)size_max(clock_ns() - begin_ns, 1) * 1e-9;
    sent = comm_sent_bytes(self) - sent;
    *value = variant == SMALL ? seconds / count : (double)sent / seconds;
    return 0;
}

static int measure(comm *self, const struct plan *plan, unsigned char *memory)
{
    uint64_t begin_ns = clock_ns();
    for (int round = -1; round < PROBEI_ROUNDS_MAX; round++) {
        for (int v = 0; v < VARIANT_COUNT; v++) {
            double value;
            TRY(run_variant(self, plan, memory, (enum variant)v, &value));
            if (round >= 0 && plan->join.rank == 0)
                probei_figure_add(&plan->outcome->figures[v], value);
        }
        double spent = (double)(clock_ns() - begin_ns) * 1e-9;
        uint8_t ends = round >= 0 && spent * (round + 3) / (round + 2) > plan->seconds;
        TRY(comm_broadcast(self, "whether the probe goes on", &ends, sizeof ends));
        if (ends)
            break;
    }
    return 0;
}

static int be_rank(const struct plan *plan)
{
    uint64_t bytes = (2 * plan->world + 1) * plan->shard_bytes;
    unsigned char *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return err_errno(errno, "taking memory");
    madvise(memory, bytes, MADV_HUGEPAGE);
    memset(memory, 0, bytes);
    comm *self;
    TRY(comm_join(&plan->join, &self));
    comm_open_config open = {.backend = COMM_MPI};
    int rc = comm_open(self, &open);
    if (rc == 0)
        rc = measure(self, plan, memory);
    if (rc < 0 && plan->outcome->code == 0) {
        snprintf(plan->outcome->text, sizeof plan->outcome->text, "%s", err_text());
        plan->outcome->code = rc;
    }
    comm_close(self);
    comm_leave(self, rc);
    return rc;
}

/* Finds a TCP port that is not in use. */
static int free_port(uint16_t *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return err_errno(errno, "a socket");
    int rc = bind(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
                     getsockname(fd, (struct sockaddr *)&address, &bytes) == 0
                 ? 0
                 : err_errno(errno, "a port of the loopback interface");
    close(fd);
    *port = ntohs(address.sin_port);
    return rc;
}

static int start_ranks(struct plan *plan, pid_t pids[RANKS_MAX])
{
    pid_t parent = getpid();
    for (uint32_t r = 0; r < plan->world; r++) {
        plan->join.rank = r;
        fflush(NULL);
        pids[r] = fork();
        if (pids[r] < 0)
            return err_errno(errno, "starting a rank of the probe");
        if (pids[r] > 0)
            continue;
        signal(SIGINT, SIG_IGN); /* the probe itself ends its ranks */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        log_set_level(LOG_QUIET);
        _exit(getppid() == parent && be_rank(plan) == 0 ? 0 : 1);
    }
    return 0;
}

/* Waits until all ranks have ended, the probe is stopped, or the ranks take much longer than
 * planned. */
static int wait_for_ranks(probei *self, const struct plan *plan, pid_t pids[RANKS_MAX])
{
    uint64_t begin_ns = clock_ns();
    uint32_t left = plan->world;
    int rc = 0;
    while (left > 0) {
        double spent = (double)(clock_ns() - begin_ns) * 1e-9;
        if (rc == 0)
            rc = probei_check(self, "all-gather and reduce-scatter");
        if (rc == 0 && spent > plan->seconds + 15)
            rc = err_set(-ETIMEDOUT, "ranks of the probe did not end in time");
        for (uint32_t r = 0; r < plan->world; r++) {
            int status = 0;
            if (pids[r] <= 0)
                continue;
            if (rc < 0)
                kill(pids[r], SIGKILL);
            if (waitpid(pids[r], &status, rc < 0 ? 0 : WNOHANG) != pids[r])
                continue;
            pids[r] = 0;
            left--;
            if (rc == 0 && (!WIFEXITED(status) || WEXITSTATUS(status) != 0))
                rc = plan->outcome->code < 0
                         ? err_set(plan->outcome->code, "%s", plan->outcome->text)
                         : err_set(-EIO, "rank %u of the probe ended with status %#x", r,
                                   (unsigned)status);
        }
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    return rc;
}

static void report(probei *self, struct plan *plan)
{
    machine *out = self->out;
    probei_figure *f = plan->outcome->figures;
    for (int v = 0; v < VARIANT_COUNT; v++)
        probei_figure_close(&f[v]);
    /* The same number of bytes of each kind, one after the other. */
    out->comm.inside = 2 / (1 / f[GATHER].median + 1 / f[REDUCE].median);
    out->comm.seconds = f[SMALL].median;
    out->comm.is_copies = true;
    probei_say(self, "ranks: %u processes through shared memory", plan->world);
    probei_found(self, "all-gather, sent by a rank", f[GATHER].median * 1e-9, "GB/s", &f[GATHER],
                 "%s", "");
    probei_found(self, "reduce-scatter in fp32, sent by a rank", f[REDUCE].median * 1e-9, "GB/s",
                 &f[REDUCE], "%s", "");
    probei_found(self, "a collective of 4 KiB", f[SMALL].median * 1e6, "us", &f[SMALL], "%s", "");
}

/* A failure is no error of the probe: the figures of the collectives stay unknown, and the other
 * measurements go on. */
int probei_ranks(probei *self)
{
    core_set allowed;
    pid_t pids[RANKS_MAX] = {0};
    TRY(probei_check(self, ""));
    TRY(thread_allowed_cores(&allowed));
    struct plan plan = {.seconds = 0.7 * probei_step_left(self),
                        .world =
                            (uint32_t)size_min(size_max(core_set_count(&allowed), 2), RANKS_MAX)};
    plan.shard_bytes = self->extent == PROBEI_TINY ? 64 * KIB : 8 * MIB;
    plan.join = (comm_join_config){
        .is_given = true, .world = plan.world, .timeout_seconds = 10, .exit_seconds = 5};
    TRY(free_port(&plan.join.hub_port));
    if (getrandom(&plan.join.token, sizeof plan.join.token, 0) != sizeof plan.join.token)
        return err_errno(errno, "random numbers");
    plan.outcome =
        mmap(NULL, sizeof *plan.outcome, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (plan.outcome == MAP_FAILED)
        return err_errno(errno, "taking memory");
    int rc = start_ranks(&plan, pids);
    err_record first;
    err_save(&first, rc);
    for (uint32_t r = 0; rc < 0 && r < plan.world; r++)
        if (pids[r] > 0) {
            kill(pids[r], SIGKILL);
            waitpid(pids[r], NULL, 0);
        }
    if (rc < 0)
        rc = err_restore(&first);
    else
        rc = wait_for_ranks(self, &plan, pids);
    if (rc == 0)
        report(self, &plan);
    else if (rc != ERR_STOPPED)
        probei_say(self, "ranks: collectives are not measured: %s", err_text());
    munmap(plan.outcome, sizeof *plan.outcome);
    return rc == ERR_STOPPED ? rc : 0;
}
