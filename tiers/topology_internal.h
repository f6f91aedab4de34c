/* Shared by the files of topology: how the ranks of a machine divide it. Pure; any thread. */
#ifndef SLUICE_TIERS_TOPOLOGY_INTERNAL_H
#define SLUICE_TIERS_TOPOLOGY_INTERNAL_H

#include "tiers/topology.h"

enum {
    TIERI_RESERVE_FROM = 8,            /* physical cores; see rule 5 */
    TIERI_DISTANCE_UNKNOWN = UINT8_MAX /* sorts last */
};

/* The index of the node with this id; -1: there is none. */
static inline int tieri_node_index(const topology *machine, int id)
{
    for (uint32_t n = 0; n < machine->node_count; n++)
        if (machine->nodes[n].id == id)
            return (int)n;
    return -1;
}

static inline uint32_t tieri_node_distance(const topology *machine, uint32_t from, uint32_t to)
{
    uint8_t known = machine->nodes[from].distance[to];
    return known ? known : from == to ? 10 : TIERI_DISTANCE_UNKNOWN;
}

/* Rule 7 of topology_place, for plan->share. `kept`: the cores that io.cores names; may be
 * empty. */
void tieri_share(const topology *machine, const core_request *asked, const core_set *kept,
                 core_share *out);

#endif
