/* Reads the machine from /sys, /proc and the control groups. See topology.h. It uses stack buffers,
 * and descriptors only during the call. */
#include "tiers/topology.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <numa.h>
#include <numaif.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "base/log.h"
#include "base/size.h"
#include "base/thread.h"
#include "tiers/tiers_internal.h"

enum { PATH_BYTES = PATH_MAX, LIST_BYTES = 8192, BLOCK_DEPTH_MAX = 8 };

/* Reads a list file of the kernel as a set. False if it is absent or not a list. */
static bool read_set(const char *path, core_set *out)
{
    char text[LIST_BYTES];
    memset(out, 0, sizeof *out);
    return tieri_read_small_file(path, text, sizeof text) > 0 && core_set_parse(text, out) == 0;
}

static void read_memory(const char *root, topology_node *node)
{
    char path[PATH_BYTES], text[LIST_BYTES], key[48];
    snprintf(path, sizeof path, "%s/sys/devices/system/node/node%d/meminfo", root, node->id);
    if (tieri_read_small_file(path, text, sizeof text) <= 0)
        return;
    snprintf(key, sizeof key, "Node %d MemTotal:", node->id);
    node->memory_bytes = tieri_value_of(text, key, KIB, 0);
    node->available_bytes = size_min(tieri_node_available(text, node->id), node->memory_bytes);
}

/* Reads the distances of a node to all online nodes, in the order of their numbers. */
static void read_distances(const char *root, topology_node *node)
{
    char path[PATH_BYTES], text[LIST_BYTES];
    snprintf(path, sizeof path, "%s/sys/devices/system/node/node%d/distance", root, node->id);
    if (tieri_read_small_file(path, text, sizeof text) <= 0)
        return;
    char *at = text;
    for (int i = 0; i < TOPOLOGY_NODES_MAX; i++) {
        char *end;
        unsigned long value = strtoul(at, &end, 10);
        if (end == at)
            return;
        node->distance[i] = (uint8_t)(value < UINT8_MAX ? value : UINT8_MAX);
        at = end;
    }
}

/* A kernel without NUMA: makes one node with all cores and all memory. */
static void one_node(const char *root, const core_set *online, topology *out)
{
    char path[PATH_BYTES], text[LIST_BYTES];
    topology_node *node = &out->nodes[0];
    *node = (topology_node){.memory_is_allowed = true, .cores = *online, .distance = {10}};
    out->node_count = 1;
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    if (tieri_read_small_file(path, text, sizeof text) <= 0)
        return;
    node->memory_bytes = tieri_value_of(text, "MemTotal:", KIB, 0);
    node->available_bytes = tieri_value_of(text, "MemAvailable:", KIB, node->memory_bytes);
}

static void read_nodes(const char *root, topology *out)
{
    char path[PATH_BYTES], text[LIST_BYTES];
    node_set ids, allowed;
    bool allowed_is_known = false;
    snprintf(path, sizeof path, "%s/sys/devices/system/node/online", root);
    if (!read_set(path, &ids))
        return;
    snprintf(path, sizeof path, "%s/proc/self/status", root);
    if (tieri_read_small_file(path, text, sizeof text) > 0) {
        char *list = strstr(text, "\nMems_allowed_list:");
        if (list) {
            list += strlen("\nMems_allowed_list:");
            list[strcspn(list, "\n")] = 0;
            allowed_is_known =
                core_set_parse(list, &allowed) == 0 && core_set_next(&allowed, 0) >= 0;
        }
    }
    for (int id = core_set_next(&ids, 0); id >= 0; id = core_set_next(&ids, id + 1)) {
        if (out->node_count == TOPOLOGY_NODES_MAX) {
            log_warn("this machine has more than %d NUMA nodes; those from %d on are not used",
                     TOPOLOGY_NODES_MAX, id);
            return;
        }
        topology_node *node = &out->nodes[out->node_count++];
        node->id = id;
        node->memory_is_allowed = !allowed_is_known || core_set_has(&allowed, id);
        snprintf(path, sizeof path, "%s/sys/devices/system/node/node%d/cpulist", root, id);
        (void)read_set(path, &node->cores);
        read_memory(root, node);
        read_distances(root, node);
    }
}

/* Gives cores that share a physical core the number of the lowest one. */
static void read_siblings(const char *root, const core_set *online, topology *out)
{
    static const char *const files[2] = {"core_cpus_list", "thread_siblings_list"};
    for (int core = 0; core < CORE_SET_MAX; core++)
        out->physical[core] = (uint16_t)core;
    for (int core = core_set_next(online, 0); core >= 0; core = core_set_next(online, core + 1)) {
        core_set siblings;
        char path[PATH_BYTES];
        for (int f = 0; f < 2; f++) {
            snprintf(path, sizeof path, "%s/sys/devices/system/cpu/cpu%d/topology/%s", root, core,
                     files[f]);
            if (read_set(path, &siblings) && core_set_has(&siblings, core)) {
                out->physical[core] = (uint16_t)core_set_next(&siblings, 0);
                break;
            }
        }
    }
}

int tieri_topology_read(const char *root, const core_set *affinity, topology *out)
{
    memset(out, 0, sizeof *out);
    out->device_node = -1;
    out->allowed = *affinity;
    char path[PATH_BYTES];
    core_set online, placed = {0};
    snprintf(path, sizeof path, "%s/sys/devices/system/cpu/online", root);
    if (!read_set(path, &online) || core_set_next(&online, 0) < 0)
        online = *affinity; /* without /sys, all cores of the mask count as online */
    core_set_and(&out->allowed, affinity, &online);
    read_nodes(root, out);
    for (uint32_t n = 0; n < out->node_count; n++) {
        core_set_and(&out->nodes[n].cores, &out->nodes[n].cores, &online);
        core_set_or(&placed, &placed, &out->nodes[n].cores);
    }
    core_set_and(&placed, &placed, &out->allowed);
    if (core_set_next(&placed, 0) < 0) {
        memset(out->nodes, 0, sizeof out->nodes);
        one_node(root, &online, out);
    } else {
        out->allowed = placed;
    }
    read_siblings(root, &online, out);
    out->quota_cores = tieri_group_quota_cores(root);
    if (core_set_next(&out->allowed, 0) < 0)
        return err_set(-EINVAL, "no core that this process may use is online");
    return 0;
}

int topology_read(topology *out)
{
    memset(out, 0, sizeof *out);
    core_set affinity;
    TRY(thread_allowed_cores(&affinity));
    TRY(tieri_topology_read("", &affinity, out));
    int mode = MPOL_DEFAULT;
    out->memory_is_set_by_user = numa_available() >= 0 &&
                                 get_mempolicy(&mode, NULL, 0, NULL, 0) == 0 &&
                                 mode != MPOL_DEFAULT && mode != MPOL_LOCAL;
    return 0;
}

/* The number in <directory>/numa_node, or -1. */
static int numa_node_at(const char *directory)
{
    char path[PATH_BYTES + 16], text[32];
    snprintf(path, sizeof path, "%s/numa_node", directory);
    if (tieri_read_small_file(path, text, sizeof text) <= 0)
        return -1;
    long node = strtol(text, NULL, 10);
    return node >= 0 && node < CORE_SET_MAX ? (int)node : -1;
}

/* The node of all parts of a mapped or striped device; -1 if there are none or they disagree. */
static int parts_node(const char *directory, int depth);

/* The node of a block device, by its directory: its own or that of the nearest device above it. */
static int block_node(const char *directory, int depth)
{
    char real[PATH_BYTES];
    if (depth > BLOCK_DEPTH_MAX || !realpath(directory, real))
        return -1;
    int parts = parts_node(real, depth + 1);
    if (parts >= 0)
        return parts;
    for (char *slash; (slash = strrchr(real, '/')) != NULL && slash != real; *slash = 0) {
        int node = numa_node_at(real);
        if (node >= 0)
            return node;
    }
    return -1;
}

static int parts_node(const char *directory, int depth)
{
    char path[PATH_BYTES + 16];
    snprintf(path, sizeof path, "%s/slaves", directory);
    DIR *parts = opendir(path);
    if (!parts)
        return -1;
    int found = -1;
    bool agree = true;
    for (struct dirent *entry; agree && (entry = readdir(parts)) != NULL;) {
        if (entry->d_name[0] == '.')
            continue;
        char part[PATH_BYTES + 16 + sizeof entry->d_name + 1];
        snprintf(part, sizeof part, "%s/%s", path, entry->d_name);
        int node = block_node(part, depth);
        agree = node >= 0 && (found < 0 || node == found);
        found = node;
    }
    closedir(parts);
    return agree ? found : -1;
}

int tieri_block_node(const char *root, unsigned device_major, unsigned device_minor)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/sys/dev/block/%u:%u", root, device_major, device_minor);
    return block_node(path, 0);
}

/* The node of the drive that holds `path`, or the nearest directory above it that exists.
 * Partitions, device mapper and RAID are followed while all parts agree. -1: not known. */
static int drive_node(const char *path)
{
    char directory[FILE_PATH_BYTES];
    struct stat status;
    if (path[0] == 0 || tieri_nearest(path, directory, &status) < 0)
        return -1;
    dev_t device = S_ISBLK(status.st_mode) ? status.st_rdev : status.st_dev;
    return tieri_block_node("", major(device), minor(device));
}

int tieri_pci_node(const char *root, const char *address)
{
    char lower[32], path[PATH_BYTES];
    size_t i = 0;
    for (; address[i] && i < sizeof lower - 1; i++) /* CUDA writes capitals, /sys small letters */
        lower[i] = (char)(address[i] >= 'A' && address[i] <= 'F' ? address[i] + 32 : address[i]);
    lower[i] = 0;
    if (address[i] || strspn(lower, "0123456789abcdef:.") != i)
        return -1;
    snprintf(path, sizeof path, "%s/sys/bus/pci/devices/%s", root, lower);
    return numa_node_at(path);
}

int topology_pci_node(const char *address)
{
    return tieri_pci_node("", address);
}

int topology_add_drive(topology *self, const char *path)
{
    if (self->drive_count == DRIVES_MAX)
        return err_set(-E2BIG, "%s: at most %d drives", path, DRIVES_MAX);
    self->drive_nodes[self->drive_count++] = drive_node(path);
    return 0;
}
