/* The same transfers by fio, on the same file, to compare with. See probe_internal.h.
 *
 * fio opens the probe's file by its descriptor (/proc/<pid>/fd/<n>), so that it needs none of its own and leaves
 * none behind. Its buffers lie in huge pages by madvise, as ours do, where glibc (2.35 and later) can be asked for that. A child process, which is killed where the probe
 * is stopped. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "probe/probe_internal.h"

enum { OUTPUT_BYTES = 65536, ARGUMENTS = 24, ARGUMENT_BYTES = 96 };

extern char **environ;

bool probei_has_fio(void)
{
    const char *path = getenv("PATH");
    char file[4096];
    for (const char *at = path ? path : ""; *at;) {
        size_t length = strcspn(at, ":");
        int used = snprintf(file, sizeof file, "%.*s/fio", (int)length, at);
        if (used > 0 && (size_t)used < sizeof file && access(file, X_OK) == 0)
            return true;
        at += length + (at[length] == ':');
    }
    return false;
}

static int start_fio(char arguments[ARGUMENTS][ARGUMENT_BYTES], int output, pid_t *pid)
{
    char *list[ARGUMENTS + 1] = {0};
    for (int i = 0; i < ARGUMENTS && arguments[i][0]; i++)
        list[i] = arguments[i];
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    int rc = posix_spawnp(pid, "env", &actions, NULL, list, environ);
    posix_spawn_file_actions_destroy(&actions);
    return rc == 0 ? 0 : err_set(-ENOTSUP, "fio cannot be started: %s", strerror(rc));
}

/* All that it says, until it ends. ERR_STOPPED after a stop; then it is killed. */
static int read_output(probei *self, int fd, pid_t pid, char output[OUTPUT_BYTES])
{
    size_t used = 0;
    int rc = 0;
    for (;;) {
        struct pollfd waiter = {.fd = fd, .events = POLLIN};
        const volatile sig_atomic_t *stop = self->options->stop;
        if (stop && *stop)
            rc = err_set(ERR_STOPPED, "the probe was stopped; nothing was written");
        if (rc < 0)
            kill(pid, SIGKILL);
        if (rc == 0 && poll(&waiter, 1, 100) == 0)
            continue;
        char rest[256];
        bool is_full = used + 1 >= OUTPUT_BYTES;
        ssize_t got = is_full ? read(fd, rest, sizeof rest)
                              : read(fd, output + used, OUTPUT_BYTES - 1 - used);
        if (got <= 0)
            break;
        if (!is_full)
            used += (size_t)got;
    }
    output[used] = 0;
    return rc;
}

static int read_rate(const char *output, enum machine_io_kind kind, double *rate)
{
    const char *begin = strchr(output, '{'); /* warnings may come first */
    json_error_t error;
    json_t *root = begin ? json_loads(begin, JSON_DISABLE_EOF_CHECK, &error) : NULL;
    json_t *first = json_array_get(json_object_get(root, "jobs"), 0);
    double sum = 0;
    if (kind != MACHINE_IO_WRITE)
        sum += json_number_value(json_object_get(json_object_get(first, "read"), "bw_bytes"));
    if (kind != MACHINE_IO_READ)
        sum += json_number_value(json_object_get(json_object_get(first, "write"), "bw_bytes"));
    bool has_failed = json_integer_value(json_object_get(first, "error")) != 0;
    json_decref(root);
    *rate = sum;
    if (sum > 0 && !has_failed)
        return 0;
    return err_set(-ENOTSUP, "fio gave no figure (%.60s)", output[0] ? output : "it said nothing");
}

int probei_fio_run(probei *self, const probei_bench *bench, enum machine_io_kind kind,
                   uint64_t block_bytes, uint32_t depth, double seconds, double *rate)
{
    static const char *const kinds[] = {"read", "write", "rw"};
    char arguments[ARGUMENTS][ARGUMENT_BYTES] = {"env",
                                                 "GLIBC_TUNABLES=glibc.malloc.hugetlb=1",
                                                 "fio",
                                                 "--name=sluice",
                                                 "--direct=1",
                                                 "--ioengine=io_uring",
                                                 "--time_based",
                                                 "--output-format=json",
                                                 "--invalidate=0",

                                                 "--iomem_align=2097152",
                                                 "--thread"};
    /* Mixed: both directions have `depth` in flight, and share fio's one queue. */
    uint32_t in_flight = kind == MACHINE_IO_MIXED ? 2 * depth : depth;
    snprintf(arguments[11], ARGUMENT_BYTES, "--filename=/proc/%d/fd/%d", (int)getpid(),
             bench->store.files[0].fd);
    snprintf(arguments[12], ARGUMENT_BYTES, "--offset=%d", SLAB_HEADER_BYTES);
    snprintf(arguments[13], ARGUMENT_BYTES, "--size=%llu", (unsigned long long)bench->area_bytes);
    snprintf(arguments[14], ARGUMENT_BYTES, "--bs=%llu", (unsigned long long)block_bytes);
    snprintf(arguments[15], ARGUMENT_BYTES, "--iodepth=%u", in_flight);
    snprintf(arguments[16], ARGUMENT_BYTES, "--rw=%s", kinds[kind]);
    snprintf(arguments[17], ARGUMENT_BYTES, "--runtime=%.0fms", 1000 * seconds);
    char *output = mem_alloc(OUTPUT_BYTES, 1, "fio output");
    int ends[2], status;
    pid_t pid;
    if (!output)
        return -ENOMEM;
    int rc = pipe2(ends, O_CLOEXEC) == 0 ? 0 : err_errno(errno, "a pipe for fio");
    if (rc == 0) {
        rc = start_fio(arguments, ends[1], &pid);
        close(ends[1]);
        if (rc == 0) {
            rc = read_output(self, ends[0], pid, output);
            while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
                continue; /* Ctrl-C: fio was killed, or ends by itself */
            if (rc == 0)
                rc = read_rate(output, kind, rate);
        }
        close(ends[0]);
    }
    mem_free(output);
    return rc;
}
