/* Machines that we do not have, written down: a builder for `topology`, and a folder of files as
 * /sys and /proc show them. */
#ifndef SLUICE_TESTS_TOPOLOGY_MACHINES_H
#define SLUICE_TESTS_TOPOLOGY_MACHINES_H

#include "base/size.h"
#include "tests/unit.h"
#include "tiers/topology.h"

static inline core_set set_of(const char *text)
{
    core_set set;
    assert_int_equal(core_set_parse(text, &set), 0);
    return set;
}

/* Every core a physical one, and nothing else there yet. */
static inline void machine_begin(topology *self)
{
    memset(self, 0, sizeof *self);
    self->device_node = -1;
    for (int c = 0; c < CORE_SET_MAX; c++)
        self->physical[c] = (uint16_t)c;
}

/* A node with its cores, all of them allowed; 10 to itself and 21 to all others. */
static inline void machine_node(topology *self, int id, uint64_t memory_gib, const char *cores)
{
    uint32_t n = self->node_count++;
    topology_node *node = &self->nodes[n];
    node->id = id;
    node->memory_bytes = node->available_bytes = memory_gib * GIB;
    node->memory_is_allowed = true;
    node->cores = set_of(cores);
    core_set_or(&self->allowed, &self->allowed, &node->cores);
    for (uint32_t i = 0; i < n; i++)
        node->distance[i] = self->nodes[i].distance[n] = 21;
    node->distance[n] = 10;
}

/* Core c + apart is the hyperthread of core c, for c below `apart`. */
static inline void machine_smt(topology *self, int apart)
{
    for (int c = 0; c < apart; c++)
        self->physical[c + apart] = (uint16_t)c;
}

static inline void machine_distance(topology *self, uint32_t a, uint32_t b, uint8_t distance)
{
    self->nodes[a].distance[b] = self->nodes[b].distance[a] = distance;
}

static inline void machine_drive(topology *self, int node)
{
    self->drive_nodes[self->drive_count++] = node;
}

/* The request of a run without keys of its own. */
static inline core_request request(bool device_is_cpu)
{
    return (core_request){.compute = {.key = "device"},
                          .update = {.key = "update"},
                          .io = {.key = "io"},
                          .device_is_cpu = device_is_cpu};
}

static inline void assert_set(const core_set *set, const char *expected)
{
    char text[CORE_SET_TEXT_BYTES];
    assert_string_equal(core_set_format(set, text), expected);
}

static inline void assert_group(const core_group *group, const char *cores, uint32_t thread_count)
{
    assert_set(&group->cores, cores);
    assert_int_equal(group->thread_count, thread_count);
}

static inline void assert_memory(const arena_nodes *nodes, enum arena_spread spread,
                                 const char *expected)
{
    assert_int_equal(nodes->spread, spread);
    assert_set(&nodes->nodes, expected);
}

#endif
