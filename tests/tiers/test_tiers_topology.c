/* The machine as the kernel shows it: this one, and folders of files like those of others. Threads
 * and memory are where they were bound. */
#include <dirent.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <numa.h>
#include <numaif.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/thread.h"
#include "tests/directory.h"
#include "tests/tiers/topology_machines.h"
#include "tiers/tiers_internal.h"

/* Writes text to folder/root/path, making the folders on the way. */
static void put(const char *root, const char *path, const char *text)
{
    char full[1024];
    snprintf(full, sizeof full, "%s/%s/%s", directory, root, path);
    for (char *slash = strchr(full + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        assert_true(mkdir(full, 0700) == 0 || errno == EEXIST);
        *slash = '/';
    }
    if (!text)
        return;
    FILE *file = fopen(full, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void put_link(const char *root, const char *path, const char *target)
{
    char full[1024];
    put(root, path, NULL); /* the folders above */
    snprintf(full, sizeof full, "%s/%s/%s", directory, root, path);
    assert_int_equal(symlink(target, full), 0);
}

static void put_node(const char *root, int id, const char *cores, const char *distances,
                     uint64_t total_kib, uint64_t free_kib)
{
    char path[128], text[512];
    snprintf(path, sizeof path, "sys/devices/system/node/node%d/cpulist", id);
    put(root, path, cores);
    snprintf(path, sizeof path, "sys/devices/system/node/node%d/distance", id);
    put(root, path, distances);
    snprintf(path, sizeof path, "sys/devices/system/node/node%d/meminfo", id);
    snprintf(text, sizeof text,
             "Node %d MemTotal:       %llu kB\nNode %d MemFree:  %llu kB\n"
             "Node %d FilePages:  300 kB\nNode %d Shmem:  100 kB\n",
             id, (unsigned long long)total_kib, id, (unsigned long long)free_kib, id, id);
    put(root, path, text);
}

static topology read_root(const char *root, const char *affinity)
{
    char full[1024];
    snprintf(full, sizeof full, "%s/%s", directory, root);
    core_set cores = set_of(affinity);
    topology machine;
    assert_int_equal(tieri_topology_read(full, &cores, &machine), 0);
    return machine;
}

/* Nodes 0, 1 (memory alone) and 8; hyperthreads; core 3 offline; node 1 not for us; a quota. */
static void files_of_a_large_machine(void **state)
{
    const char *root = "large";
    put(root, "sys/devices/system/node/online", "0-1,8\n");
    put(root, "sys/devices/system/cpu/online", "0-2,4-7\n");
    put_node(root, 0, "0-1,4-5\n", "10 17 40\n", 1000000, 400000);
    put_node(root, 1, "\n", "17 10 60\n", 2000000, 2000000);
    put_node(root, 8, "2-3,6-7\n", "40 60 10\n", 500000, 100);
    for (int c = 0; c < 8; c++) {
        char path[128], text[32];
        snprintf(path, sizeof path, "sys/devices/system/cpu/cpu%d/topology/%s", c,
                 c % 2 ? "thread_siblings_list" : "core_cpus_list");
        snprintf(text, sizeof text, "%d,%d\n", c % 4, c % 4 + 4);
        put(root, path, c == 7 ? "7\n" : text);
    }
    put(root, "proc/self/status", "Name:\tx\nMems_allowed:\t101\nMems_allowed_list:\t0,8\nx: 1\n");
    put(root, "proc/self/cgroup", "0::/a/b\n");
    put(root, "sys/fs/cgroup/cpu.max", "max 100000\n");
    put(root, "sys/fs/cgroup/a/cpu.max", "250000 100000\n");
    put(root, "sys/fs/cgroup/a/b/cpu.max", "400000 100000\n");

    topology machine = read_root(root, "0-1,3-7");
    assert_int_equal(machine.node_count, 3);
    assert_set(&machine.allowed, "0-1,4-7");
    static const int ids[3] = {0, 1, 8};
    static const char *const cores[3] = {"0-1,4-5", "none", "2,6-7"};
    static const uint64_t totals[3] = {1000000, 2000000, 500000},
                          available[3] = {400200, 2000000, 300};
    static const uint8_t distances[3][3] = {{10, 17, 40}, {17, 10, 60}, {40, 60, 10}};
    for (int n = 0; n < 3; n++) {
        const topology_node *node = &machine.nodes[n];
        assert_int_equal(node->id, ids[n]);
        assert_set(&node->cores, cores[n]);
        assert_int_equal(node->memory_bytes, totals[n] * KIB);
        assert_int_equal(node->available_bytes, available[n] * KIB);
        assert_int_equal(node->memory_is_allowed, n != 1);
        assert_memory_equal(node->distance, distances[n], 3);
    }
    static const uint16_t physical[8] = {0, 1, 2, 3, 0, 1, 2, 7};
    assert_memory_equal(machine.physical, physical, sizeof physical);
    assert_int_equal(machine.quota_cores, 3);
    assert_int_equal(machine.device_node, -1);
    assert_int_equal(machine.drive_count, 0);
    char text[TOPOLOGY_TEXT_BYTES];
    printf("  %s\n", topology_describe(&machine, text));
}

/* No nodes, control groups of version 1, and nothing at all. */
static void files_of_small_machines(void **state)
{
    put("small", "sys/devices/system/cpu/online", "0-3\n");
    put("small", "proc/meminfo", "MemTotal: 5000 kB\nMemFree: 1 kB\nMemAvailable: 4000 kB\n");
    put("small", "proc/self/cgroup", "9:name=systemd:/\n3:cpu,cpuacct:/x\n2:cpuset:/\n");
    put("small", "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    put("small", "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "100000\n");
    put("small", "sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n");
    topology machine = read_root("small", "2-3");
    assert_int_equal(machine.node_count, 1);
    assert_set(&machine.allowed, "2-3");
    assert_set(&machine.nodes[0].cores, "0-3");
    assert_int_equal(machine.nodes[0].memory_bytes, 5000 * KIB);
    assert_int_equal(machine.nodes[0].available_bytes, 4000 * KIB);
    assert_true(machine.nodes[0].memory_is_allowed);
    assert_int_equal(machine.quota_cores, 1);

    put("nothing", "proc", NULL);
    machine = read_root("nothing", "1,4");
    assert_int_equal(machine.node_count, 1);
    assert_set(&machine.allowed, "1,4");
    assert_set(&machine.nodes[0].cores, "1,4");
    assert_int_equal(machine.quota_cores, 0);
    core_request asked = {.compute = {.key = "device"},
                          .update = {.key = "update"},
                          .io = {.key = "io"},
                          .device_is_cpu = true};
    core_plan plan;
    assert_int_equal(topology_place(&machine, &asked, &plan), 0);
    assert_int_equal(plan.compute.thread_count, 2);

    char root[512];
    core_set offline = set_of("7");
    snprintf(root, sizeof root, "%s/small", directory);
    assert_int_equal(tieri_topology_read(root, &offline, &machine), -EINVAL);
}

/* An NVMe drive, a partition of another, a device mapper over both, one over the first alone. */
static void nodes_of_devices(void **state)
{
    const char *root = "devices";
    char full[1024];
    snprintf(full, sizeof full, "%s/%s", directory, root);
    put(root, "sys/devices/pci0/0000:01:00.0/numa_node", "0\n");
    put(root, "sys/devices/pci0/0000:01:00.0/nvme/nvme0/nvme0n1/size", "1\n");
    put(root, "sys/devices/pci1/0000:81:00.0/numa_node", "1\n");
    put(root, "sys/devices/pci1/0000:81:00.0/nvme/nvme1/nvme1n1/nvme1n1p1/size", "1\n");
    put(root, "sys/devices/pci1/0000:82:00.0/numa_node", "-1\n");
    put(root, "sys/devices/pci1/0000:82:00.0/virtio/block/vda/size", "1\n");
    put(root, "sys/devices/virtual/block/dm-0/size", "1\n");
    put(root, "sys/devices/virtual/block/dm-1/size", "1\n");
    put_link(root, "sys/devices/virtual/block/dm-0/slaves/nvme0n1",
             "../../../../pci0/0000:01:00.0/nvme/nvme0/nvme0n1");
    put_link(root, "sys/devices/virtual/block/dm-0/slaves/nvme1n1p1",
             "../../../../pci1/0000:81:00.0/nvme/nvme1/nvme1n1/nvme1n1p1");
    put_link(root, "sys/devices/virtual/block/dm-1/slaves/nvme1n1p1",
             "../../../../pci1/0000:81:00.0/nvme/nvme1/nvme1n1/nvme1n1p1");
    put_link(root, "sys/dev/block/259:0", "../../devices/pci0/0000:01:00.0/nvme/nvme0/nvme0n1");
    put_link(root, "sys/dev/block/259:3",
             "../../devices/pci1/0000:81:00.0/nvme/nvme1/nvme1n1/nvme1n1p1");
    put_link(root, "sys/dev/block/254:0", "../../devices/pci1/0000:82:00.0/virtio/block/vda");
    put_link(root, "sys/dev/block/253:0", "../../devices/virtual/block/dm-0");
    put_link(root, "sys/dev/block/253:1", "../../devices/virtual/block/dm-1");
    put_link(root, "sys/bus/pci/devices/0000:81:00.0", "../../../devices/pci1/0000:81:00.0");
    assert_int_equal(tieri_block_node(full, 259, 0), 0);
    assert_int_equal(tieri_block_node(full, 259, 3), 1);
    assert_int_equal(tieri_block_node(full, 254, 0), -1);
    assert_int_equal(tieri_block_node(full, 253, 0), -1);
    assert_int_equal(tieri_block_node(full, 253, 1), 1);
    assert_int_equal(tieri_block_node(full, 8, 0), -1);
    assert_int_equal(tieri_pci_node(full, "0000:81:00.0"), 1);
    assert_int_equal(tieri_pci_node(full, "0000:99:00.0"), -1);
    assert_int_equal(tieri_pci_node(full, "../../x"), -1);
    put_link(root, "sys/bus/pci/devices/0000:ab:00.0", "../../../devices/pci1/0000:81:00.0");
    assert_int_equal(tieri_pci_node(full, "0000:AB:00.0"), 1);

    topology machine = {.device_node = -1};
    assert_int_equal(topology_add_drive(&machine, "."), 0);
    assert_int_equal(topology_add_drive(&machine, "./is/not/there"), 0);
    assert_int_equal(topology_add_drive(&machine, "/is-not-there/a"), 0);
    assert_int_equal(machine.drive_nodes[0], machine.drive_nodes[1]);
    assert_int_equal(machine.drive_count, 3);
    for (int i = 3; i < DRIVES_MAX; i++)
        assert_int_equal(topology_add_drive(&machine, "/"), 0);
    assert_int_equal(topology_add_drive(&machine, "/"), -E2BIG);
}

static void this_machine(void **state)
{
    mem_stats before, after;
    mem_get_stats(&before);
    topology machine;
    assert_int_equal(topology_read(&machine), 0);
    char text[TOPOLOGY_TEXT_BYTES];
    printf("  %s\n", topology_describe(&machine, text));
    mem_get_stats(&after);
    assert_int_equal(after.call_count, before.call_count);
    cpu_set_t mask;
    assert_int_equal(sched_getaffinity(0, sizeof mask, &mask), 0);
    for (int c = 0; c < CORE_SET_MAX && omp_get_proc_bind() == omp_proc_bind_false; c++)
        assert_int_equal(core_set_has(&machine.allowed, c), CPU_ISSET(c, &mask) != 0);
    if (numa_available() >= 0) { /* a second reader of the same /sys */
        for (uint32_t n = 0; n < machine.node_count; n++) {
            const topology_node *node = &machine.nodes[n];
            long long free_bytes;
            assert_int_equal(node->memory_bytes, numa_node_size64(node->id, &free_bytes));
            assert_true(node->available_bytes <= node->memory_bytes);
            for (uint32_t i = 0; i < machine.node_count; i++)
                assert_int_equal(node->distance[i], numa_distance(node->id, machine.nodes[i].id));
        }
        for (int c = core_set_next(&machine.allowed, 0); c >= 0;
             c = core_set_next(&machine.allowed, c + 1)) {
            uint32_t n = 0;
            while (machine.nodes[n].id != numa_node_of_cpu(c))
                assert_true(++n < machine.node_count);
            assert_true(core_set_has(&machine.nodes[n].cores, c));
        }
    }
    core_request asked = {.compute = {.key = "device"},
                          .update = {.key = "update"},
                          .io = {.key = "io"},
                          .device_is_cpu = true};
    core_plan plan;
    assert_int_equal(topology_place(&machine, &asked, &plan), 0);
    topology_place_memory(&machine, 8 * MIB, 8 * MIB, &plan);
    printf("  %s\n", core_plan_describe(&plan, text));
    arena_config config = {.name = "host",
                           .size_bytes = 8 * MIB,
                           .touch_threads = (int)plan.compute.thread_count,
                           .nodes = &plan.host};
    arena made;
    assert_int_equal(arena_init(&made, &config), 0);
    arena_fini(&made);
}

static core_set mask_of_thread(void)
{
    cpu_set_t mask;
    core_set cores = {0};
    CPU_ZERO(&mask);
    if (sched_getaffinity(0, sizeof mask, &mask) == 0)
        for (int c = 0; c < CORE_SET_MAX; c++)
            if (CPU_ISSET(c, &mask))
                core_set_add(&cores, c);
    return cores;
}

/* Runs on a thread of its own, so that the other tests keep their cores. */
static void *bind_threads(void *argument)
{
    int *failures = argument;
    core_set allowed, one = {0};
    *failures += thread_allowed_cores(&allowed) != 0;
    for (int c = core_set_next(&allowed, 0); c >= 0; c = core_set_next(&allowed, c + 1)) {
        memset(&one, 0, sizeof one);
        core_set_add(&one, c);
        core_set now;
        *failures += thread_bind(&one) != 0;
        now = mask_of_thread();
        *failures += !core_set_equals(&now, &one) || sched_getcpu() != c;
    }
    core_set again; /* the process has what it had, also seen from a thread on one core */
    *failures += thread_allowed_cores(&again) != 0 || !core_set_equals(&again, &allowed);
    core_set nowhere = {0}, kept = mask_of_thread();
    *failures += thread_bind(&nowhere) != -EINVAL || !strstr(err_text(), "the cores none");
    for (int c = CORE_SET_MAX - 1; c >= 0 && core_set_next(&nowhere, 0) < 0; c--)
        if (!core_set_has(&allowed, c))
            core_set_add(&nowhere, c);
    *failures += thread_bind(&nowhere) != -EINVAL;
    *failures += thread_bind_team(&nowhere, 2) != -EINVAL;
    core_set now = mask_of_thread();
    *failures += !core_set_equals(&now, &kept);

    /* A team on a subset: every thread of it, those that come after a smaller region too. */
    const core_set *const sets[2] = {&one, &allowed};
    for (int s = 0; s < 2; s++) {
        *failures += thread_bind_team(sets[s], 4) != 0;
        *failures += omp_get_max_threads() != 4;
        static const int sizes[4] = {4, 1, 2, 4};
        for (int i = 0; i < 4; i++) {
            int wrong = 0, seen = 0;
#pragma omp parallel num_threads(sizes[i]) reduction(+ : wrong, seen)
            {
                core_set mine = mask_of_thread();
                wrong += !core_set_equals(&mine, sets[s]);
                seen++;
            }
            *failures += wrong + (seen != sizes[i]);
        }
    }
    return NULL;
}

/* In a child whose seccomp filter refuses to bind: a warning, and everything goes on. */
static void binding_may_be_forbidden(void **state)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct sock_filter lines[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sched_setaffinity, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog filter = {sizeof lines / sizeof lines[0], lines};
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
            prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
            _exit(77);
        core_set one = {0};
        core_set_add(&one, 0);
        _exit((thread_bind(&one) != 0) + 2 * (thread_bind_team(&one, 2) != 0) +
              4 * (omp_get_max_threads() != 2));
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void threads_run_where_bound(void **state)
{
    if (omp_get_proc_bind() != omp_proc_bind_false)
        skip(); /* OpenMP was told to bind: thread_bind_team leaves it alone */
    pthread_t thread;
    int failures = 0;
    core_set before = mask_of_thread();
    assert_int_equal(pthread_create(&thread, NULL, bind_threads, &failures), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(failures, 0);
    core_set after = mask_of_thread();
    assert_true(core_set_equals(&before, &after));
}

static int count_threads(void)
{
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *entry = tasks ? readdir(tasks) : NULL; entry; entry = readdir(tasks))
        count += entry->d_name[0] != '.';
    if (tasks)
        closedir(tasks);
    return count;
}

static void *end_team(void *argument)
{
    int *failures = argument, before = count_threads();
    thread_end_team(); /* of nobody */
    for (int i = 0; i < 2; i++) {
        int seen = 0;
#pragma omp parallel num_threads(4) reduction(+ : seen)
        seen++;
        *failures += seen != 4 || count_threads() != before + 3;
        thread_end_team();
        for (int wait = 0; wait < 1000 && count_threads() != before; wait++)
            usleep(10000); /* they are on their way out */
        *failures += count_threads() != before;
    }
    return NULL;
}

/* The process that teams_end starts: its exit status is the number of failures. */
static int end_teams(void)
{
    pthread_t thread;
    int failures = 0;
    if (pthread_create(&thread, NULL, end_team, &failures) != 0 || pthread_join(thread, NULL) != 0)
        return 100;
    return failures;
}

/* The threads go, and a later region has its team again. In a process that starts anew: threads of
 * an earlier test may still be on their way out here, and a fork would copy what they hold. */
static void teams_end(void **state)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        execl("/proc/self/exe", "test_tiers_topology", "end_teams", (char *)NULL);
        _exit(127);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* Each page asked for its node, and the range for its policy, where the kernel lets us ask. */
static void memory_lies_where_bound(void **state)
{
    topology machine;
    assert_int_equal(topology_read(&machine), 0);
    for (uint32_t n = 0; n < machine.node_count; n++) {
        const topology_node *node = &machine.nodes[n];
        if (!node->memory_is_allowed || node->available_bytes < 64 * MIB)
            continue;
        arena_nodes wanted = {.spread = ARENA_BIND, .touch_cores = machine.allowed};
        core_set_add(&wanted.nodes, node->id);
        arena_config config = {
            .name = "host", .size_bytes = 6 * MIB, .touch_threads = 2, .nodes = &wanted};
        arena made;
        core_set before = mask_of_thread();
        assert_int_equal(arena_init(&made, &config), 0);
        core_set after = mask_of_thread();
        assert_true(core_set_equals(&before, &after));
        int mode = -1;
        unsigned long mask[CORE_SET_MAX / 64] = {0};
        if (!core_set_equals(&made.nodes, &wanted.nodes)) {
            printf("  mbind is not allowed here: the binding to node %d was not checked\n",
                   node->id);
        } else if (get_mempolicy(&mode, mask, CORE_SET_MAX, made.base, MPOL_F_ADDR) != 0) {
            printf("  get_mempolicy is not allowed here: not checked\n");
        } else {
            assert_int_equal(mode, MPOL_BIND);
            assert_memory_equal(mask, wanted.nodes.words, sizeof mask);
            int asked = 0;
            for (uint64_t at = 0; at < made.size_bytes; at += 512 * KIB) {
                void *page = made.base + at;
                int status = -1;
                if (move_pages(0, 1, &page, NULL, &status, 0) != 0)
                    continue; /* not allowed here */
                assert_int_equal(status, node->id);
                asked++;
            }
            printf("  node %d: the policy and %d of 12 pages were checked\n", node->id, asked);
        }
        arena_fini(&made);
    }
}

static void memory_policy_of_the_user(void **state)
{
    topology machine;
    if (numa_available() < 0 || set_mempolicy(MPOL_PREFERRED, NULL, 0) != 0)
        skip();
    unsigned long first = 1;
    bool is_set = set_mempolicy(MPOL_BIND, &first, 64) == 0; /* to node 0 */
    int rc = topology_read(&machine);
    assert_int_equal(set_mempolicy(MPOL_DEFAULT, NULL, 0), 0);
    assert_int_equal(rc, 0);
    assert_true(!is_set || machine.memory_is_set_by_user);
    assert_int_equal(topology_read(&machine), 0);
    assert_false(machine.memory_is_set_by_user);
}

static void arena_node_sets(void **state)
{
    arena made;
    arena_nodes wanted = {.spread = ARENA_ANYWHERE};
    arena_config config = {
        .name = "host", .size_bytes = 4 * MIB, .touch_threads = 2, .nodes = &wanted};
    assert_int_equal(arena_init(&made, &config), 0);
    assert_int_equal(core_set_count(&made.nodes), 0);
    arena_fini(&made);
    wanted.spread = ARENA_BIND; /* to nothing */
    assert_int_equal(arena_init(&made, &config), -EINVAL);
    core_set_add(&wanted.nodes, 0);
    core_set_add(&wanted.nodes, 1000);
    assert_error(arena_init(&made, &config), -EINVAL, "node 1000");
    core_set_remove(&wanted.nodes, 1000);
    wanted.spread = ARENA_ANYWHERE; /* nodes, but no binding */
    assert_int_equal(arena_init(&made, &config), -EINVAL);
    wanted.spread = ARENA_INTERLEAVE;
    assert_int_equal(arena_init(&made, &config), 0);
    arena_fini(&made);
    wanted.touch_cores = set_of("1023"); /* cannot be had: touched from elsewhere */
    assert_int_equal(arena_init(&made, &config), 0);
    for (uint64_t at = 0; at < made.size_bytes; at++)
        assert_int_equal(made.base[at], 0);
    arena_fini(&made);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "end_teams") == 0)
        return end_teams();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_of_a_large_machine),
        cmocka_unit_test(files_of_small_machines),
        cmocka_unit_test(nodes_of_devices),
        cmocka_unit_test(this_machine),
        cmocka_unit_test(binding_may_be_forbidden),
        cmocka_unit_test(threads_run_where_bound),
        cmocka_unit_test(teams_end),
        cmocka_unit_test(memory_lies_where_bound),
        cmocka_unit_test(arena_node_sets),
        cmocka_unit_test(memory_policy_of_the_user),
    };
    return cmocka_run_group_tests(tests, directory_make, directory_remove);
}
