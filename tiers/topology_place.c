/* Which threads and memory go where: the rules of topology.h, with their reasons.
 *
 *  1. One thread per physical core. A product or an Adam pass on one physical core is bound by its
 *     vector units or by DRAM, which its hyperthreads share. So the hyperthreads stay free for I/O
 *     and for the rest of the machine.
 *  2. Home. With a GPU it is the GPU's node, whatever the cores are, since every byte crosses the
 *     GPU's link. If that node is unknown, home is all nodes with allowed cores.
 *  3. CPU backend. With fewer threads than cores (device.threads, or a control group's quota of CPU
 *     time) compute takes the fewest nodes that have as many cores: first the node of most drives,
 *     then the one with most available memory. The threads may use all cores of these nodes,
 *     because particular cores on a shared machine would collide with other users' choice of the
 *     same ones. Updates share cores and threads of compute, since the program never runs both at
 *     once.
 *  4. GPU. Updates take the allowed physical cores of the GPU's node. If it has none, they take
 *     those of the nearest node with allowed cores. If update.threads asks for more, they take
 *     those of the nearest nodes that together have enough.
 *  5. The core left to I/O is the lowest one of the first drive's home node, otherwise of the
 *     lowest home node: interrupts go to low numbers by default. A parallel region ends with its
 *     slowest thread. If other work takes a share s of one core, the region runs up to s longer,
 *     while leaving a core costs 1/n. Beside full disk load Adam was seen to lose 5-10% on two
 *     cores, and copies add to that, so s is about 1/8. This is an estimate: no machine of 8 cores
 *     or more was available to measure; device.threads overrides it. DeepSpeed leaves 20%
 *     (cpuadam_cores_perc 0.8), since its cores also run Python and libaio.
 *  6. I/O may use the hyperthreads and the core left to it too: the kernel puts it where it is
 *     idle, and on 2 cores it shares them (thread_ask_short_slice). Threads of the pool sleep in
 *     the kernel.
 *  7. Several ranks: topology_share.c.
 *
 * Pure: reads the machine and the request, writes the plan. The number of update threads changes no
 * bit, since the update is elementwise. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "tiers/tiers_internal.h"

enum {
    THREADS_MAX = 65536,        /* more can only be a mistake */
    POOL_THREADS_PER_DRIVE = 4, /* as io.h */
    POOL_THREADS_MAX = 64       /* as io.h */
};

__attribute__((format(printf, 2, 3))) static void add_note(core_plan *plan, const char *format, ...)
{
    if (plan->note_count == CORE_PLAN_NOTES_MAX)
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(plan->notes[plan->note_count++], CORE_PLAN_NOTE_BYTES, format, arguments);
    va_end(arguments);
}

core_set tieri_physical(const topology *machine, const core_set *cores)
{
    core_set seen = {0}, result = {0};
    for (int c = core_set_next(cores, 0); c >= 0; c = core_set_next(cores, c + 1)) {
        if (core_set_has(&seen, machine->physical[c]))
            continue;
        core_set_add(&seen, machine->physical[c]);
        core_set_add(&result, c);
    }
    return result;
}

static bool overlaps(const core_set *a, const core_set *b)
{
    core_set both;
    core_set_and(&both, a, b);
    return core_set_next(&both, 0) >= 0;
}

/* --- what the job says --- */

static int check_ask(const topology *machine, const core_ask *ask, core_set *cores)
{
    char allowed[CORE_SET_TEXT_BYTES], bad[CORE_SET_TEXT_BYTES];
    memset(cores, 0, sizeof *cores);
    core_set_format(&machine->allowed, allowed);
    if (ask->threads > THREADS_MAX)
        return err_set(ERR_CONFIG, "%s.threads is %llu: at most %d threads make sense", ask->key,
                       (unsigned long long)ask->threads, THREADS_MAX);
    if (!ask->cores || !*ask->cores)
        return 0;
    if (core_set_parse(ask->cores, cores) < 0) {
        err_record why;
        err_save(&why, ERR_CONFIG);
        return err_set(ERR_CONFIG,
                       "%s.cores is \"%s\": %.200s; give numbers and ranges such as \"0-3,8\", out "
                       "of the cores that this process may use: %s",
                       ask->key, ask->cores, why.text, allowed);
    }
    if (core_set_next(cores, 0) < 0)
        return err_set(ERR_CONFIG,
                       "%s.cores is \"%s\", which names no core; leave it out for the automatic "
                       "choice, or choose from those that this process may use: %s",
                       ask->key, ask->cores, allowed);
    core_set outside;
    core_set_minus(&outside, cores, &machine->allowed);
    if (core_set_next(&outside, 0) < 0)
        return 0;
    core_set absent = outside;
    for (uint32_t n = 0; n < machine->node_count; n++)
        core_set_minus(&absent, &absent, &machine->nodes[n].cores);
    bool is_absent = core_set_next(&absent, 0) >= 0;
    bool is_one = core_set_count(is_absent ? &absent : &outside) == 1;
    core_set_format(is_absent ? &absent : &outside, bad);
    return err_set(ERR_CONFIG, "%s.cores is \"%s\", but %s %s %s; this process may use: %s",
                   ask->key, ask->cores, is_one ? "core" : "cores", bad,
                   !is_absent ? "may not be used by this process (affinity mask, control group)"
                   : is_one   ? "does not exist or is offline"
                              : "do not exist or are offline",
                   allowed);
}

static void note_threads(core_plan *plan, const char *key, const core_group *group)
{
    char text[CORE_SET_TEXT_BYTES];
    uint32_t core_count = core_set_count(&group->cores);
    if (group->thread_count > core_count)
        add_note(plan,
                 "%s.threads is %u, but these threads have %u core%s (%s): they take turns, which "
                 "is slower",
                 key, group->thread_count, core_count, core_count == 1 ? "" : "s",
                 core_set_format(&group->cores, text));
}

/* --- nodes in order --- */

/* The distance from the nearest node of `home` (ids); 0 for the nodes of home. */
static uint32_t distance_from(const topology *machine, const node_set *home, uint32_t to)
{
    if (core_set_has(home, machine->nodes[to].id))
        return 0;
    uint32_t least = TIERI_DISTANCE_UNKNOWN;
    for (uint32_t n = 0; n < machine->node_count; n++)
        if (core_set_has(home, machine->nodes[n].id))
            least = (uint32_t)size_min(least, tieri_node_distance(machine, n, to));
    return least;
}

/* Sorts all nodes by their distance from home, and equal ones by number. `order` holds indices. */
static void order_by_distance(const topology *machine, const node_set *home,
                              uint32_t order[TOPOLOGY_NODES_MAX])
{
    for (uint32_t n = 0; n < machine->node_count; n++) {
        uint32_t distance = distance_from(machine, home, n), at = n;
        for (; at > 0 && distance_from(machine, home, order[at - 1]) > distance; at--)
            order[at] = order[at - 1];
        order[at] = n;
    }
}

static uint32_t drives_on(const topology *machine, int id)
{
    uint32_t count = 0;
    for (uint32_t d = 0; d < machine->drive_count; d++)
        count += machine->drive_nodes[d] == id;
    return count;
}

/* True if node `a` goes before node `b` when some nodes have enough cores: rule 3. */
static bool is_preferred(const topology_node *a, uint32_t drives_a, const topology_node *b,
                         uint32_t drives_b)
{
    if (drives_a != drives_b)
        return drives_a > drives_b;
    return a->available_bytes > b->available_bytes;
}

static void order_by_preference(const topology *machine, uint32_t order[TOPOLOGY_NODES_MAX])
{
    for (uint32_t n = 0; n < machine->node_count; n++) {
        const topology_node *node = &machine->nodes[n];
        uint32_t at = n;
        for (; at > 0; at--) {
            const topology_node *before = &machine->nodes[order[at - 1]];
            if (!is_preferred(node, drives_on(machine, node->id), before,
                              drives_on(machine, before->id)))
                break;
            order[at] = order[at - 1];
        }
        order[at] = n;
    }
}

/* --- cores --- */

/* The ids of the nodes that have any of the cores. */
static node_set nodes_with(const topology *machine, const core_set *cores)
{
    node_set nodes = {0};
    for (uint32_t n = 0; n < machine->node_count; n++)
        if (overlaps(&machine->nodes[n].cores, cores))
            core_set_add(&nodes, machine->nodes[n].id);
    return nodes;
}

/* The allowed cores of these nodes. */
static core_set cores_of(const topology *machine, const node_set *nodes)
{
    core_set cores = {0};
    for (uint32_t n = 0; n < machine->node_count; n++)
        if (core_set_has(nodes, machine->nodes[n].id))
            core_set_or(&cores, &cores, &machine->nodes[n].cores);
    core_set_and(&cores, &cores, &machine->allowed);
    return cores;
}

/* The allowed cores of the first nodes in the order until there are `wanted` physical cores, or of
 * all nodes if there are not so many. */
static core_set gather(const topology *machine, const uint32_t *order, uint32_t wanted)
{
    core_set gathered = {0};
    for (uint32_t i = 0; i < machine->node_count; i++) {
        core_set_or(&gathered, &gathered, &machine->nodes[order[i]].cores);
        core_set_and(&gathered, &gathered, &machine->allowed);
        core_set physical = tieri_physical(machine, &gathered);
        uint32_t count = core_set_count(&physical);
        if (count > 0 && count >= wanted)
            break;
    }
    return gathered;
}

/* One thread per physical core; hyperthreads too if more are asked for. */
static core_set spread(const topology *machine, const core_set *cores, uint32_t thread_count)
{
    core_set physical = tieri_physical(machine, cores);
    return thread_count > core_set_count(&physical) ? *cores : physical;
}

/* Takes the cores of io.cores, or otherwise the one core of rule 5, out of an automatic group. With
 * several ranks, the cores of io.cores were taken out before the deal, so that each rank has
 * equally many. */
static void reserve(const topology *machine, const core_set *io_cores, const node_set *home,
                    core_set *physical, core_plan *plan)
{
    uint32_t count = core_set_count(physical);
    bool is_named = core_set_next(io_cores, 0) >= 0;
    if (count < TIERI_RESERVE_FROM || (is_named && plan->share.is_dealt))
        return;
    core_set taken = {0};
    if (is_named) {
        for (int c = core_set_next(physical, 0); c >= 0; c = core_set_next(physical, c + 1))
            for (int i = core_set_next(io_cores, 0); i >= 0; i = core_set_next(io_cores, i + 1))
                if (machine->physical[i] == machine->physical[c])
                    core_set_add(&taken, c);
    } else {
        core_set near = {0};
        for (uint32_t d = 0; d < machine->drive_count && core_set_next(&near, 0) < 0; d++) {
            int n = tieri_node_index(machine, machine->drive_nodes[d]);
            if (n >= 0 && core_set_has(home, machine->nodes[n].id))
                core_set_and(&near, physical, &machine->nodes[n].cores);
        }
        core_set_add(&taken, core_set_next(core_set_next(&near, 0) >= 0 ? &near : physical, 0));
    }
    if (core_set_count(&taken) > count / 2)
        return;
    core_set_minus(physical, physical, &taken);
    plan->reserved = core_set_count(&taken);
}

/* The group of a team whose cores the job does not name. `candidates`: the cores that it may
 * use; `asked`: its thread count or 0; `limit`: the largest count that we choose, 0 for none. */
static core_group automatic(const topology *machine, const core_set *candidates,
                            const core_set *io_cores, uint64_t asked, uint32_t limit,
                            core_plan *plan)
{
    core_group group = {.cores = tieri_physical(machine, candidates)};
    uint32_t count = core_set_count(&group.cores);
    if (asked || (limit && limit <= count)) {
        group.thread_count = asked ? (uint32_t)asked : limit;
        group.cores = spread(machine, candidates, group.thread_count);
        return group;
    }
    node_set home = nodes_with(machine, candidates);
    reserve(machine, io_cores, &home, &group.cores, plan);
    group.thread_count = core_set_count(&group.cores);
    return group;
}

/* The group of a team whose cores the job names: one thread for each physical core of them, of all
 * ranks together. */
static core_group named(const topology *machine, const core_set *cores, uint64_t asked,
                        uint32_t limit, const core_share *share)
{
    core_set physical = tieri_physical(machine, cores);
    uint32_t count = core_set_count(&physical);
    if (share->is_dealt)
        count = (uint32_t)size_max(count / share->world, 1);
    if (limit && limit < count)
        count = limit;
    return (core_group){.cores = *cores, .thread_count = asked ? (uint32_t)asked : count};
}

/* --- the two kinds of device --- */

static core_set compute_candidates(const topology *machine, uint64_t asked)
{
    uint64_t wanted = asked ? asked : machine->quota_cores ? machine->quota_cores : UINT32_MAX;
    uint32_t order[TOPOLOGY_NODES_MAX];
    order_by_preference(machine, order);
    return gather(machine, order, (uint32_t)wanted);
}

static void place_cpu(const topology *machine, const core_request *asked,
                      const core_set named_sets[3], core_plan *plan)
{
    const core_set *compute_cores = &named_sets[0], *update_cores = &named_sets[1];
    if (core_set_next(compute_cores, 0) >= 0) {
        /* all ranks have this home */
        memset(plan->share.home_ranks, 0, sizeof plan->share.home_ranks);
        plan->compute = named(machine, compute_cores, asked->compute.threads, machine->quota_cores,
                              &plan->share);
    } else {
        core_set candidates = compute_candidates(machine, asked->compute.threads);
        plan->compute = automatic(machine, &candidates, &named_sets[2], asked->compute.threads,
                                  machine->quota_cores, plan);
    }
    plan->home = nodes_with(machine, &plan->compute.cores);
    plan->update = plan->compute;
    if (core_set_next(update_cores, 0) >= 0) {
        plan->update =
            named(machine, update_cores, asked->update.threads, machine->quota_cores, &plan->share);
    } else if (asked->update.threads) {
        plan->update.thread_count = (uint32_t)asked->update.threads;
        if (plan->update.thread_count > core_set_count(&plan->update.cores) &&
            core_set_next(compute_cores, 0) < 0) {
            core_set all = cores_of(machine, &plan->home);
            plan->update.cores = spread(machine, &all, plan->update.thread_count);
        }
    }
}

static void place_gpu(const topology *machine, const core_request *asked,
                      const core_set named_sets[3], core_plan *plan)
{
    const core_set *compute_cores = &named_sets[0], *update_cores = &named_sets[1];
    int device = tieri_node_index(machine, machine->device_node);
    if (device >= 0)
        core_set_add(&plan->home, machine->device_node);
    else
        plan->home = nodes_with(machine, core_set_next(update_cores, 0) >= 0 ? update_cores
                                                                             : &machine->allowed);
    /* As in job.h, update.threads 0 means device.threads. */
    uint64_t threads = asked->update.threads ? asked->update.threads : asked->compute.threads;
    uint32_t order[TOPOLOGY_NODES_MAX];
    order_by_distance(machine, &plan->home, order);
    uint32_t wanted = device >= 0 ? (uint32_t)(threads ? threads : 1) : UINT32_MAX;
    core_set candidates = gather(machine, order, wanted);
    plan->update =
        core_set_next(update_cores, 0) >= 0
            ? named(machine, update_cores, threads, machine->quota_cores, &plan->share)
            : automatic(machine, &candidates, &named_sets[2], threads, machine->quota_cores, plan);
    core_set near = gather(machine, order, 1);
    plan->compute.cores = core_set_next(compute_cores, 0) >= 0 ? *compute_cores
                          : device >= 0                        ? near
                                                               : candidates;
    plan->compute.thread_count = 1;
    if (device >= 0 && !overlaps(&machine->nodes[device].cores, &machine->allowed)) {
        char text[CORE_SET_TEXT_BYTES];
        add_note(plan,
                 "the GPU is on NUMA node %d, where this process may use no core; the update runs "
                 "on the cores %s, so its memory traffic crosses nodes",
                 machine->device_node, core_set_format(&plan->update.cores, text));
    }
}

static void place_io(const topology *machine, const core_request *asked, const core_set *io_cores,
                     core_plan *plan)
{
    uint32_t order[TOPOLOGY_NODES_MAX];
    order_by_distance(machine, &plan->home, order);
    core_set cores = cores_of(machine, &plan->home);
    if (core_set_next(&cores, 0) < 0)
        cores = gather(machine, order, 1);
    plan->io.cores = core_set_next(io_cores, 0) >= 0 ? *io_cores : cores;
    uint64_t each = asked->io.threads ? asked->io.threads : POOL_THREADS_PER_DRIVE;
    plan->io.thread_count = (uint32_t)size_min(each * machine->drive_count, POOL_THREADS_MAX);
}

/* The machine as this rank has it. */
static topology share_of(const topology *machine, const core_share *share)
{
    topology mine = *machine;
    mine.allowed = share->cores;
    if (mine.quota_cores)
        mine.quota_cores = (uint32_t)size_max(mine.quota_cores / share->world, 1);
    return mine;
}

int topology_place(const topology *machine, const core_request *asked, core_plan *out)
{
    memset(out, 0, sizeof *out);
    core_set named_sets[3];
    TRY(check_ask(machine, &asked->compute, &named_sets[0]));
    TRY(check_ask(machine, &asked->update, &named_sets[1]));
    TRY(check_ask(machine, &asked->io, &named_sets[2]));
    tieri_share(machine, asked, &named_sets[2], &out->share);
    topology mine = share_of(machine, &out->share);
    if (asked->device_is_cpu)
        place_cpu(&mine, asked, named_sets, out);
    else
        place_gpu(&mine, asked, named_sets, out);
    out->update_is_compute = asked->device_is_cpu &&
                             core_set_equals(&out->update.cores, &out->compute.cores) &&
                             out->update.thread_count == out->compute.thread_count;
    place_io(&mine, asked, &named_sets[2], out);
    note_threads(out, asked->compute.key, &out->compute);
    if (!out->update_is_compute)
        note_threads(out, asked->update.threads ? asked->update.key : asked->compute.key,
                     &out->update);
    out->core_note_count = out->note_count;
    topology_place_memory(machine, 0, 0, out);
    return 0;
}

/* --- memory --- */

/* The bytes of node n that this rank may count on. */
static uint64_t room_of(const topology *machine, const core_plan *plan, uint32_t n)
{
    const topology_node *node = &machine->nodes[n];
    uint32_t ranks = plan->share.world;
    if (core_set_has(&plan->home, node->id) && plan->share.home_ranks[n] > 0)
        ranks = plan->share.home_ranks[n];
    return node->available_bytes / 16 * 15 / ranks;
}

/* The first `count` nodes of the order as a binding. */
static void bind_to(const topology *machine, const uint32_t *order, uint32_t count,
                    uint64_t need_bytes, core_plan *plan)
{
    arena_nodes *out = &plan->host;
    bool are_peers = true;
    for (uint32_t i = 0; i < count; i++) {
        const topology_node *node = &machine->nodes[order[i]];
        core_set_add(&out->nodes, node->id);
        are_peers = are_peers && core_set_next(&node->cores, 0) >= 0 &&
                    room_of(machine, plan, order[i]) >= need_bytes / count;
    }
    out->spread = count > 1 && are_peers ? ARENA_INTERLEAVE : ARENA_BIND;
}

static void note_memory(const topology *machine, const arena_nodes *bound, uint32_t home_count,
                        uint32_t count, uint64_t need_bytes, core_plan *plan)
{
    char home[CORE_SET_TEXT_BYTES], nodes[CORE_SET_TEXT_BYTES], needed[SIZE_TEXT_BYTES];
    core_set_format(&plan->home, home);
    core_set_format(&bound->nodes, nodes);
    if (home_count == 0) {
        add_note(plan,
                 "NUMA node %s has no memory that this process may use: the arenas lie on node %s, "
                 "and transfers cross nodes",
                 home, nodes);
    } else if (count > home_count) {
        uint64_t room_bytes = 0;
        for (uint32_t n = 0; n < machine->node_count; n++)
            if (core_set_has(&plan->home, machine->nodes[n].id))
                room_bytes += room_of(machine, plan, n);
        char room[SIZE_TEXT_BYTES];
        add_note(plan,
                 "the arenas need %s, but NUMA node %s has room for %s%s: they %s the nodes %s%s, "
                 "and a part of the traffic crosses nodes",
                 size_format(need_bytes, needed), home, size_format(room_bytes, room),
                 plan->share.world > 1 ? " for this rank" : "",
                 bound->spread == ARENA_INTERLEAVE ? "are spread evenly over" : "fill", nodes,
                 bound->spread == ARENA_INTERLEAVE ? "" : " in order of distance");
    }
}

void topology_place_memory(const topology *machine, uint64_t host_bytes, uint64_t device_bytes,
                           core_plan *plan)
{
    memset(&plan->host, 0, sizeof plan->host);
    plan->note_count = plan->core_note_count; /* drops the notes of an earlier call about memory */
    uint32_t order[TOPOLOGY_NODES_MAX], usable[TOPOLOGY_NODES_MAX], count = 0, home_count = 0;
    order_by_distance(machine, &plan->home, order);
    for (uint32_t i = 0; i < machine->node_count; i++) {
        const topology_node *node = &machine->nodes[order[i]];
        if (!node->memory_is_allowed || node->memory_bytes == 0)
            continue;
        home_count += core_set_has(&plan->home, node->id);
        usable[count++] = order[i];
    }
    if (count > 1 && !machine->memory_is_set_by_user) {
        uint64_t need_bytes = host_bytes + device_bytes, room_bytes = 0;
        uint32_t taken = 0;
        while (taken < count && (taken < home_count || taken == 0 || room_bytes < need_bytes))
            room_bytes += room_of(machine, plan, usable[taken++]);
        bind_to(machine, usable, taken, need_bytes, plan);
        plan->host.touch_cores = cores_of(machine, &plan->home);
        core_set_and(&plan->host.touch_cores, &plan->host.touch_cores, &plan->share.cores);
        if (core_set_next(&plan->host.touch_cores, 0) < 0)
            plan->host.touch_cores = plan->io.cores;
        note_memory(machine, &plan->host, home_count, taken, need_bytes, plan);
    }
    plan->device = plan->host;
}
