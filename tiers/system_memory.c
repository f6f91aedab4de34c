/* Reads from the kernel how much memory this process, the machine, the control group and a NUMA
 * node have, and how much CPU time the control group allows. Called at start and by the metrics
 * between steps. Allocates nothing. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/size.h"
#include "tiers/arena.h"
#include "tiers/tiers_internal.h"

enum { GROUP_PATH_BYTES = 4096, GROUP_FILE_BYTES = GROUP_PATH_BYTES + 64 };

int tieri_read_small_file(const char *path, char *text, size_t capacity)
{
    text[0] = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    size_t used = 0;
    int rc = 0;
    while (used < capacity - 1) {
        ssize_t got = read(fd, text + used, capacity - 1 - used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            rc = -errno;
        if (got <= 0)
            break;
        used += (size_t)got;
    }
    close(fd);
    text[used] = 0;
    return rc < 0 ? rc : (int)used;
}

uint64_t tieri_value_of(const char *text, const char *key, uint64_t unit, uint64_t fallback)
{
    size_t key_bytes = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, key_bytes) == 0)
            return strtoull(line + key_bytes, NULL, 10) * unit;
    }
    return fallback;
}

int arena_process_memory(uint64_t *resident_bytes, uint64_t *resident_bytes_max,
                         uint64_t *mapped_bytes)
{
    uint64_t *outs[3] = {resident_bytes, resident_bytes_max, mapped_bytes};
    static const char *const keys[3] = {"VmRSS:", "VmHWM:", "VmSize:"};
    for (int i = 0; i < 3; i++)
        if (outs[i])
            *outs[i] = 0;
    char text[8192];
    int rc = tieri_read_small_file("/proc/self/status", text, sizeof text);
    if (rc < 0)
        return err_errno(-rc, "read of /proc/self/status, to learn the memory of this process");
    for (int i = 0; i < 3; i++) {
        uint64_t value = tieri_value_of(text, keys[i], KIB, UINT64_MAX);
        if (value == UINT64_MAX)
            return err_set(-ENOTSUP, "/proc/self/status has no line %s", keys[i]);
        if (outs[i])
            *outs[i] = value;
    }
    return 0;
}

/* Parses a limit of a control group: a number, or "max". */
static uint64_t group_value(const char *directory, const char *file)
{
    char path[GROUP_FILE_BYTES], text[64];
    snprintf(path, sizeof path, "%s/%s", directory, file);
    if (tieri_read_small_file(path, text, sizeof text) <= 0 || !isdigit((unsigned char)text[0]))
        return UINT64_MAX;
    return strtoull(text, NULL, 10);
}

/* The bytes that the group at `directory` may still use: its limit less its use. Clean page cache
 * counts as free. */
static uint64_t group_available(const char *directory, int version)
{
    uint64_t limit = group_value(directory, version == 2 ? "memory.max" : "memory.limit_in_bytes");
    uint64_t used =
        group_value(directory, version == 2 ? "memory.current" : "memory.usage_in_bytes");
    if (limit == UINT64_MAX || used == UINT64_MAX || limit >= (UINT64_MAX >> 2))
        return UINT64_MAX;
    char path[GROUP_FILE_BYTES], text[8192];
    snprintf(path, sizeof path, "%s/memory.stat", directory);
    uint64_t cache = 0;
    if (tieri_read_small_file(path, text, sizeof text) > 0) {
        const char *prefix = version == 2 ? "" : "total_";
        char key[32];
        snprintf(key, sizeof key, "%sinactive_file ", prefix);
        cache += tieri_value_of(text, key, 1, 0);
        snprintf(key, sizeof key, "%sactive_file ", prefix);
        cache += tieri_value_of(text, key, 1, 0);
    }
    uint64_t busy = used > cache ? used - cache : 0;
    return limit > busy ? limit - busy : 0;
}

/* The bytes that one group allows; UINT64_MAX: no limit. */
typedef uint64_t group_limit(const char *directory, int version);

/* The least that any group from `root``group` up to `root` allows, since limits nest. In a
 * container the group's own path may not exist below the mount; the levels that exist still
 * count. */
static uint64_t hierarchy_least(group_limit *limit, const char *root, const char *group,
                                int version)
{
    char directory[GROUP_PATH_BYTES];
    int used = snprintf(directory, sizeof directory, "%s%s", root, group);
    if (used < 0 || (size_t)used >= sizeof directory)
        return UINT64_MAX;
    size_t root_bytes = strlen(root);
    uint64_t least = UINT64_MAX;
    for (;;) {
        least = size_min(least, limit(directory, version));
        char *slash = strrchr(directory, '/');
        if (!slash || slash < directory + root_bytes)
            return least;
        *slash = 0;
    }
}

static bool names_controller(const char *list, const char *controller)
{
    size_t length = strlen(controller);
    for (const char *at = list; (at = strstr(at, controller)) != NULL; at += length)
        if ((at == list || at[-1] == ',') && (at[length] == 0 || at[length] == ','))
            return true;
    return false;
}

/* The least that any group of this process allows. Lines of /proc/self/cgroup are
 * "id:controllers:path"; version 2 has id 0 and no controllers. */
static uint64_t groups_least(group_limit *limit, const char *root, const char *controller)
{
    char text[8192], path[GROUP_FILE_BYTES];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    if (tieri_read_small_file(path, text, sizeof text) <= 0)
        return UINT64_MAX;
    uint64_t least = UINT64_MAX;
    char *rest = text;
    for (char *line = strsep(&rest, "\n"); line; line = strsep(&rest, "\n")) {
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = 0;
        controllers++;
        bool is_second = *controllers == 0;
        if (!is_second && !names_controller(controllers, controller))
            continue;
        snprintf(path, sizeof path, "%s/sys/fs/cgroup%s%s", root, is_second ? "" : "/",
                 is_second ? "" : controller);
        least = size_min(least, hierarchy_least(limit, path, group, is_second ? 2 : 1));
    }
    return least;
}

/* CPU time in cores, rounded up. Version 2 has "quota period" or "max period" in one file. */
static uint64_t group_quota(const char *directory, int version)
{
    uint64_t quota_us, period_us;
    if (version == 1) {
        quota_us = group_value(directory, "cpu.cfs_quota_us"); /* -1: no limit */
        period_us = group_value(directory, "cpu.cfs_period_us");
    } else {
        char path[GROUP_FILE_BYTES], text[64];
        snprintf(path, sizeof path, "%s/cpu.max", directory);
        if (tieri_read_small_file(path, text, sizeof text) <= 0 ||
            sscanf(text, "%" SCNu64 " %" SCNu64, &quota_us, &period_us) != 2)
            return UINT64_MAX;
    }
    if (quota_us == UINT64_MAX || period_us == UINT64_MAX || quota_us == 0 || period_us == 0)
        return UINT64_MAX;
    return size_div_up(quota_us, period_us);
}

uint32_t tieri_group_quota_cores(const char *root)
{
    uint64_t least = groups_least(group_quota, root, "cpu");
    return least <= INT32_MAX ? (uint32_t)least : 0;
}

int arena_available_memory(uint64_t *available_bytes)
{
    *available_bytes = 0;
    char text[8192];
    int rc = tieri_read_small_file("/proc/meminfo", text, sizeof text);
    if (rc < 0)
        return err_errno(-rc, "read of /proc/meminfo, to learn the available memory");
    uint64_t machine = tieri_value_of(text, "MemAvailable:", KIB, UINT64_MAX);
    *available_bytes = size_min(machine, groups_least(group_available, "", "memory"));
    return 0;
}

uint64_t tieri_node_available(const char *text, int node)
{
    char key[48];
    static const char *const names[3] = {"MemFree:", "FilePages:", "Shmem:"};
    uint64_t values[3];
    for (int i = 0; i < 3; i++) {
        snprintf(key, sizeof key, "Node %d %s", node, names[i]);
        values[i] = tieri_value_of(text, key, KIB, i == 0 ? UINT64_MAX : 0);
    }
    if (values[0] == UINT64_MAX)
        return UINT64_MAX;
    return values[0] + (values[1] > values[2] ? values[1] - values[2] : 0);
}

uint64_t tieri_node_available_bytes(int node)
{
    char path[64], text[8192];
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/meminfo", node);
    if (tieri_read_small_file(path, text, sizeof text) <= 0)
        return UINT64_MAX;
    return tieri_node_available(text, node);
}

/* Handles one line of smaps: the head of a mapping sets *overlap, its AnonHugePages line is
 * added. */
static void smaps_line(const char *line, uint64_t begin, uint64_t end, uint64_t *overlap,
                       uint64_t *huge)
{
    uint64_t low, high;
    if (sscanf(line, "%" SCNx64 "-%" SCNx64 " ", &low, &high) == 2) {
        uint64_t from = size_max(low, begin), to = size_min(high, end);
        *overlap = to > from ? to - from : 0;
    } else if (*overlap && strncmp(line, "AnonHugePages:", 14) == 0) {
        *huge += size_min(*overlap, strtoull(line + 14, NULL, 10) * KIB);
    }
}

uint64_t tieri_huge_bytes(const void *base, uint64_t size_bytes)
{
    int fd = open("/proc/self/smaps", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    char text[16384];
    size_t held = 0;
    uint64_t overlap = 0, huge = 0;
    uint64_t begin = (uint64_t)(uintptr_t)base;
    for (;;) {
        ssize_t got = read(fd, text + held, sizeof text - 1 - held);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        held += (size_t)got;
        text[held] = 0;
        char *line = text, *stop;
        for (; (stop = strchr(line, '\n')); line = stop + 1) {
            *stop = 0;
            smaps_line(line, begin, begin + size_bytes, &overlap, &huge);
        }
        held = (size_t)(text + held - line);
        if (held == sizeof text - 1)
            held = 0; /* a line longer than any path is of no interest */
        memmove(text, line, held);
    }
    close(fd);
    return huge;
}
