/* See fio.h. */
#include "perf/drives/fio.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/size.h"

enum { OUTPUT_BYTES = 65536, ARGUMENTS = 32, ARGUMENT_BYTES = 4352, LOOK_MS = 50 };

extern char **environ;

struct command {
    char text[ARGUMENTS][ARGUMENT_BYTES];
    char *list[ARGUMENTS + 1];
    uint32_t count;
};

bool fio_is_installed(void)
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

__attribute__((format(printf, 2, 3))) static void add(struct command *self, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(self->text[self->count], ARGUMENT_BYTES, format, args);
    va_end(args);
    self->list[self->count] = self->text[self->count];
    self->count++;
}

static void make_command(struct command *self, const fio_job *asked)
{
    static const char *const kinds[] = {"read", "write", "rw"};
    add(self, "env");
    add(self, "GLIBC_TUNABLES=glibc.malloc.hugetlb=1");
    add(self, "fio");
    add(self, "--name=sluice");
    add(self, "--direct=1");
    add(self, "--ioengine=io_uring");
    add(self, "--time_based");
    add(self, "--output-format=json");
    add(self, "--percentile_list=50:95:99");
    add(self, "--invalidate=0");
    add(self, "--iomem_align=2097152");
    add(self, "--scramble_buffers=0"); /* scrambling would change the data to write, on the CPU */
    add(self, "--thread");
    if (asked->is_registered) {
        add(self, "--fixedbufs");
        add(self, "--registerfiles");
    }
    add(self, "--filename=%s", asked->file);
    add(self, "--offset=%llu", (unsigned long long)asked->offset_bytes);
    add(self, "--size=%llu", (unsigned long long)asked->size_bytes);
    add(self, "--bs=%llu", (unsigned long long)asked->block_bytes);
    add(self, "--iodepth=%u", asked->depth);
    add(self, "--rw=%s", kinds[asked->kind]);
    if (asked->read_percent)
        add(self, "--rwmixread=%u", asked->read_percent);
    if (asked->fills) {
        add(self, "--zero_buffers");
        add(self, "--refill_buffers");
    }
    add(self, "--runtime=%.0fms", 1000 * asked->seconds);
}

static int start_fio(const struct command *command, int output, pid_t *pid)
{
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    int rc = posix_spawnp(pid, "env", &actions, NULL, command->list, environ);
    posix_spawn_file_actions_destroy(&actions);
    return rc == 0 ? 0 : err_set(-ENOTSUP, "fio cannot be started: %s", strerror(rc));
}

/* Returns 0 if the system does not report it. */
static uint64_t huge_bytes_of(pid_t pid)
{
    char path[64], line[256];
    unsigned long long kilobytes = 0;
    snprintf(path, sizeof path, "/proc/%d/smaps_rollup", (int)pid);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "AnonHugePages: %llu", &kilobytes) == 1)
            break;
    if (file)
        fclose(file);
    return kilobytes * KIB;
}

/* Reads all output of fio until it ends. */
static void read_output(const fio_job *asked, int fd, pid_t pid, char output[OUTPUT_BYTES],
                        uint64_t *huge_bytes)
{
    size_t used = 0;
    for (;;) {
        struct pollfd waiter = {.fd = fd, .events = POLLIN};
        if (poll(&waiter, 1, LOOK_MS) == 0) {
            if (asked->looks_at_memory)
                *huge_bytes = size_max(*huge_bytes, huge_bytes_of(pid));
            continue;
        }
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
}

static double number_at(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

static void read_way(const json_t *way, fio_times *out)
{
    const json_t *latency = json_object_get(way, "clat_ns");
    const json_t *shares = json_object_get(latency, "percentile");
    out->bytes_per_second = number_at(way, "bw_bytes");
    out->p50 = number_at(shares, "50.000000") * 1e-9;
    out->p95 = number_at(shares, "95.000000") * 1e-9;
    out->p99 = number_at(shares, "99.000000") * 1e-9;
    out->max = number_at(latency, "max") * 1e-9;
}

static int read_result(const char *output, enum machine_io_kind kind, fio_result *out)
{
    const char *begin = strchr(output, '{'); /* warnings may come first */
    json_error_t error;
    json_t *root = begin ? json_loads(begin, JSON_DISABLE_EOF_CHECK, &error) : NULL;
    const json_t *first = json_array_get(json_object_get(root, "jobs"), 0);
    bool has_failed = json_integer_value(json_object_get(first, "error")) != 0;
    if (kind != MACHINE_IO_WRITE)
        read_way(json_object_get(first, "read"), &out->ways[0]);
    if (kind != MACHINE_IO_READ)
        read_way(json_object_get(first, "write"), &out->ways[1]);
    out->bytes_per_second = out->ways[0].bytes_per_second + out->ways[1].bytes_per_second;
    double cores = (number_at(first, "usr_cpu") + number_at(first, "sys_cpu")) / 100;
    if (out->bytes_per_second > 0)
        out->cpu_seconds_per_byte = cores / out->bytes_per_second;
    json_decref(root);
    if (out->bytes_per_second > 0 && !has_failed)
        return 0;
    return err_set(-ENOTSUP, "fio gave no figure (%.60s)", output[0] ? output : "it said nothing");
}

int fio_run(const fio_job *asked, fio_result *out)
{
    *out = (fio_result){.bytes_per_second = 0};
    struct command *command = mem_alloc(1, sizeof *command, "fio command");
    char *output = mem_alloc(OUTPUT_BYTES, 1, "fio output");
    int ends[2], status;
    pid_t pid;
    int rc = command && output ? 0 : -ENOMEM;
    if (rc == 0)
        rc = pipe2(ends, O_CLOEXEC) == 0 ? 0 : err_errno(errno, "a pipe for fio");
    if (rc == 0) {
        make_command(command, asked);
        rc = start_fio(command, ends[1], &pid);
        close(ends[1]);
        if (rc == 0) {
            read_output(asked, ends[0], pid, output, &out->huge_bytes);
            while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
                continue; /* after Ctrl-C fio ends by itself */
            rc = read_result(output, asked->kind, out);
        }
        close(ends[0]);
    }
    mem_free(command);
    mem_free(output);
    return rc;
}
