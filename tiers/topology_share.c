/* How the ranks of a machine divide its cores: rule 7 of topology.h. Every rank deals out all cores
 * in the same way and takes its own, so that nothing need be agreed. Pure.
 *
 *  - The allowed cores are dealt out in blocks of whole physical cores. Each rank gets equally many
 *    and at least one; if there are fewer cores than ranks, several ranks share one. The kernel
 *    keeps the cores that cannot be dealt evenly.
 *  - Ranks go to NUMA nodes first: rank i of n to node i * nodes / n if n is a multiple of the
 *    nodes, unless the nodes are so unequal that more than a quarter of the cores would be left
 *    over. A GPU's rank goes to its GPU's node.
 *  - All other rules then hold for the rank's own cores. Core sets that the job names are not
 *    dealt: every rank may use all of compute's cores, with so many threads that all ranks together
 *    have one per physical core. io's cores are left out of the deal if there are 8 physical cores
 *    or more, and at least half of them, and one for each rank, remain.
 *  - A quota is divided among the ranks of the machine, also those with masks of their own. The
 *    available memory of a node is divided among the ranks whose home it is (for masks of their
 *    own: as many as fit). Memory that ranks may fall back on is divided among all. */
#include <assert.h>
#include <string.h>

#include "base/size.h"
#include "tiers/tiers_internal.h"

/* The allowed physical cores, numbered as in topology.physical, node after node. */
struct core_deck {
    uint16_t physical[CORE_SET_MAX];
    /* index of each node's first core; the last entry: the number of cores */
    uint32_t begin[TOPOLOGY_NODES_MAX + 1];
    uint32_t node_count;
    uint32_t filled[TOPOLOGY_NODES_MAX]; /* indices of the nodes that have cores */
    uint32_t filled_count;
};
typedef struct core_deck core_deck;

struct core_range {
    uint32_t begin, count; /* indices into a deck */
};
typedef struct core_range core_range;

static uint32_t cores_of_deck(const core_deck *self)
{
    return self->begin[self->node_count];
}

static uint32_t cores_on(const core_deck *self, uint32_t node)
{
    return self->begin[node + 1] - self->begin[node];
}

static void fill_deck(const topology *machine, const core_set *cores, core_deck *out)
{
    core_set seen = {0};
    uint32_t count = 0;
    *out = (core_deck){.node_count = machine->node_count};
    for (uint32_t n = 0; n < machine->node_count; n++) {
        const core_set *of_node = &machine->nodes[n].cores;
        out->begin[n] = count;
        for (int c = core_set_next(cores, 0); c >= 0; c = core_set_next(cores, c + 1)) {
            if (!core_set_has(of_node, c) || core_set_has(&seen, machine->physical[c]))
                continue;
            core_set_add(&seen, machine->physical[c]);
            out->physical[count++] = machine->physical[c];
        }
        if (count > out->begin[n])
            out->filled[out->filled_count++] = n;
    }
    out->begin[machine->node_count] = count;
}

/* The cores of the range, with all of their threads that are in `cores`. */
static core_set cores_in(const topology *machine, const core_deck *deck, core_range range,
                         const core_set *cores)
{
    core_set physical = {0}, result = {0};
    for (uint32_t i = 0; i < range.count; i++)
        core_set_add(&physical, deck->physical[range.begin + i]);
    for (int c = core_set_next(cores, 0); c >= 0; c = core_set_next(cores, c + 1))
        if (core_set_has(&physical, machine->physical[c]))
            core_set_add(&result, c);
    return result;
}

/* Part `part` of the `parts` of a range: `each` cores, or one core if there are fewer cores than
 * parts; then several parts share it. */
static core_range cut(core_range whole, uint32_t parts, uint32_t part, uint32_t each)
{
    if (whole.count < parts)
        return (core_range){whole.begin + part * whole.count / parts, 1};
    return (core_range){whole.begin + part * each, each};
}

/* The cores of each rank if the ranks go to nodes first. 0: they do not, because their number is no
 * multiple of the nodes, or because more than a quarter of the cores would be left on the larger
 * nodes. */
static uint32_t each_by_node(const core_deck *deck, uint32_t world)
{
    if (world % deck->filled_count != 0)
        return 0;
    uint32_t each = CORE_SET_MAX, parts = world / deck->filled_count;
    for (uint32_t i = 0; i < deck->filled_count; i++)
        each = (uint32_t)size_min(each, cores_on(deck, deck->filled[i]) / parts);
    each = (uint32_t)size_max(each, 1);
    uint64_t all = cores_of_deck(deck);
    return all >= world && (uint64_t)each * world * 4 < all * 3 ? 0 : each;
}

/* The cores of rank `rank` if no GPU decides the node. */
static core_range deal_to_rank(const core_deck *deck, uint32_t world, uint32_t rank)
{
    uint32_t each = each_by_node(deck, world), all = cores_of_deck(deck);
    if (each == 0)
        return cut((core_range){0, all}, world, rank, all / world);
    uint32_t parts = world / deck->filled_count, node = deck->filled[rank / parts];
    core_range whole = {deck->begin[node], cores_on(deck, node)};
    return cut(whole, parts, rank % parts, each);
}

/* --- GPUs --- */

/* The index of the node of a rank's GPU; -1: unknown. If nobody says it for the other ranks, they
 * go over the nodes with cores by local rank. */
static int device_index(const topology *machine, const core_request *asked, const core_deck *deck,
                        uint32_t rank)
{
    if (asked->device_nodes)
        return tieri_node_index(machine, asked->device_nodes[rank]);
    if (rank == asked->local_rank)
        return tieri_node_index(machine, machine->device_node);
    return (int)deck->filled[(uint64_t)rank * deck->filled_count / asked->local_world];
}

/* The node whose cores serve a GPU on node `device`: this one or the nearest. */
static uint32_t nearest_filled(const topology *machine, const core_deck *deck, uint32_t device)
{
    uint32_t best = deck->filled[0];
    for (uint32_t i = 0; i < deck->filled_count; i++) {
        uint32_t node = deck->filled[i];
        if (node == device)
            return node;
        if (tieri_node_distance(machine, device, node) < tieri_node_distance(machine, device, best))
            best = node;
    }
    return best;
}

/* The ranks whose GPUs are nearest to one node divide its cores. */
static core_range deal_to_device(const topology *machine, const core_request *asked,
                                 const core_deck *deck, uint32_t device)
{
    uint32_t node = nearest_filled(machine, deck, device), parts = 0, part = 0;
    for (uint32_t r = 0; r < asked->local_world; r++) {
        int other = device_index(machine, asked, deck, r);
        bool is_near = r == asked->local_rank ||
                       (other >= 0 && nearest_filled(machine, deck, (uint32_t)other) == node);
        part += is_near && r < asked->local_rank;
        parts += is_near;
    }
    core_range whole = {deck->begin[node], cores_on(deck, node)};
    return cut(whole, parts, part, whole.count / parts);
}

/* --- who else's home a node is --- */

static void count_devices(const topology *machine, const core_request *asked, const core_deck *deck,
                          core_share *out)
{
    for (uint32_t r = 0; r < asked->local_world; r++) {
        int node = device_index(machine, asked, deck, r);
        if (node >= 0)
            out->home_ranks[node]++;
    }
}

static void count_dealt(const core_deck *deck, uint32_t world, core_share *out)
{
    for (uint32_t r = 0; r < world; r++) {
        core_range range = deal_to_rank(deck, world, r);
        for (uint32_t n = 0; n < deck->node_count; n++)
            out->home_ranks[n] +=
                range.begin < deck->begin[n + 1] && range.begin + range.count > deck->begin[n];
    }
}

/* For ranks with masks of their own: assumes as many ranks on a node as fit into its cores. */
static void count_masks(const topology *machine, uint32_t world, core_share *out)
{
    for (uint32_t n = 0; n < machine->node_count; n++) {
        core_set mine;
        core_set_and(&mine, &machine->nodes[n].cores, &out->cores);
        uint32_t count = core_set_count(&mine);
        if (count > 0)
            out->home_ranks[n] =
                (uint32_t)size_min(world, core_set_count(&machine->nodes[n].cores) / count);
    }
}

/* The allowed cores to deal, without those of io if rule 7 leaves them out. Fills the deck. */
static core_set cores_to_deal(const topology *machine, const core_set *kept, uint32_t world,
                              core_deck *deck)
{
    core_set physical = {0}, others = {0};
    for (int c = core_set_next(kept, 0); c >= 0; c = core_set_next(kept, c + 1))
        core_set_add(&physical, machine->physical[c]);
    for (int c = core_set_next(&machine->allowed, 0); c >= 0;
         c = core_set_next(&machine->allowed, c + 1))
        if (!core_set_has(&physical, machine->physical[c]))
            core_set_add(&others, c);
    core_deck all;
    fill_deck(machine, &machine->allowed, &all);
    fill_deck(machine, &others, deck);
    uint32_t all_count = cores_of_deck(&all), stay_count = cores_of_deck(deck);
    if (all_count >= TIERI_RESERVE_FROM && 2 * stay_count >= all_count && stay_count >= world)
        return others;
    *deck = all;
    return machine->allowed;
}

void tieri_share(const topology *machine, const core_request *asked, const core_set *kept,
                 core_share *out)
{
    memset(out, 0, sizeof *out);
    out->cores = machine->allowed;
    out->world = asked->local_world ? asked->local_world : 1;
    out->rank = asked->local_rank;
    assert(out->rank < out->world);
    if (out->world == 1)
        return;
    core_deck deck;
    core_set cores = cores_to_deal(machine, kept, out->world, &deck);
    if (deck.filled_count == 0) /* the cores belong to no node, so there is nothing to deal */
        return;
    int device = asked->device_is_cpu ? -1 : tieri_node_index(machine, machine->device_node);
    if (asked->shares_cores) {
        core_range range = device >= 0 ? deal_to_device(machine, asked, &deck, (uint32_t)device)
                                       : deal_to_rank(&deck, out->world, out->rank);
        out->cores = cores_in(machine, &deck, range, &cores);
        out->is_dealt = true;
    }
    if (device >= 0)
        count_devices(machine, asked, &deck, out);
    else if (asked->shares_cores)
        count_dealt(&deck, out->world, out);
    else
        count_masks(machine, out->world, out);
}
