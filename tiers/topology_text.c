/* Describes a machine and a plan in one line each, for the log. Pure. */
#include "base/size.h"
#include "base/text.h"
#include "tiers/tiers_internal.h"

char *topology_describe(const topology *self, char text[TOPOLOGY_TEXT_BYTES])
{
    char set[CORE_SET_TEXT_BYTES], bytes[SIZE_TEXT_BYTES];
    core_set physical_cores = tieri_physical(self, &self->allowed);
    uint32_t allowed = core_set_count(&self->allowed);
    uint32_t physical = core_set_count(&physical_cores);
    text[0] = 0;
    text_add(text, TOPOLOGY_TEXT_BYTES, "machine: %u core%s (%s)", allowed, allowed == 1 ? "" : "s",
             core_set_format(&self->allowed, set));
    if (physical < allowed)
        text_add(text, TOPOLOGY_TEXT_BYTES, " on %u physical", physical);
    if (self->quota_cores)
        text_add(text, TOPOLOGY_TEXT_BYTES, ", CPU time for %u", self->quota_cores);
    text_add(text, TOPOLOGY_TEXT_BYTES, ", %u NUMA node%s", self->node_count,
             self->node_count == 1 ? "" : "s");
    for (uint32_t n = 0; n < self->node_count; n++) {
        const topology_node *node = &self->nodes[n];
        text_add(text, TOPOLOGY_TEXT_BYTES, "%s %d: %s%s, cores %s", n ? ";" : " -", node->id,
                 size_format(node->memory_bytes, bytes),
                 node->memory_is_allowed ? "" : " (not allowed)",
                 core_set_format(&node->cores, set));
    }
    if (self->memory_is_set_by_user)
        text_add(text, TOPOLOGY_TEXT_BYTES, "; memory policy as the process was started with");
    if (self->device_node >= 0)
        text_add(text, TOPOLOGY_TEXT_BYTES, "; GPU on node %d", self->device_node);
    for (uint32_t d = 0; d < self->drive_count; d++)
        if (self->drive_nodes[d] >= 0)
            text_add(text, TOPOLOGY_TEXT_BYTES, "; drive %u on node %d", d, self->drive_nodes[d]);
    return text;
}

static void say_group(char text[TOPOLOGY_TEXT_BYTES], const char *name, const core_group *group)
{
    char set[CORE_SET_TEXT_BYTES];
    text_add(text, TOPOLOGY_TEXT_BYTES, "%s %u thread%s on cores %s", name, group->thread_count,
             group->thread_count == 1 ? "" : "s", core_set_format(&group->cores, set));
}

char *core_plan_describe(const core_plan *self, char text[TOPOLOGY_TEXT_BYTES])
{
    char set[CORE_SET_TEXT_BYTES];
    text[0] = 0;
    text_add(text, TOPOLOGY_TEXT_BYTES, "cores");
    if (self->share.world > 1)
        text_add(text, TOPOLOGY_TEXT_BYTES, " of rank %u of the %u here (%s %s)", self->share.rank,
                 self->share.world, self->share.is_dealt ? "its share:" : "bound to",
                 core_set_format(&self->share.cores, set));
    if (self->update_is_compute) {
        say_group(text, ": compute and update", &self->compute);
    } else {
        say_group(text, ": compute", &self->compute);
        say_group(text, ", update", &self->update);
    }
    text_add(text, TOPOLOGY_TEXT_BYTES, ", scheduler and I/O on cores %s",
             core_set_format(&self->io.cores, set));
    if (self->reserved)
        text_add(text, TOPOLOGY_TEXT_BYTES, " (%u left to %s)", self->reserved,
                 self->reserved == 1 ? "it" : "them");
    core_set_format(&self->host.nodes, set);
    if (self->host.spread == ARENA_ANYWHERE)
        text_add(text, TOPOLOGY_TEXT_BYTES, "; memory not bound");
    else if (self->host.spread == ARENA_INTERLEAVE)
        text_add(text, TOPOLOGY_TEXT_BYTES, "; memory interleaved over nodes %s", set);
    else if (core_set_count(&self->host.nodes) == 1)
        text_add(text, TOPOLOGY_TEXT_BYTES, "; memory on node %s", set);
    else
        text_add(text, TOPOLOGY_TEXT_BYTES, "; memory on nodes %s, nearest first", set);
    return text;
}
