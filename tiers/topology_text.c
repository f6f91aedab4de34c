/* Describes a machine and a plan in one line each, for the log. Pure. */
#include <stdarg.h>
#include <stdio.h>

#include "base/size.h"
#include "tiers/tiers_internal.h"

/* A line of text that grows; the rest is cut when it is full. */
struct line {
    char *text; /* [TOPOLOGY_TEXT_BYTES] */
    size_t used;
};

__attribute__((format(printf, 2, 3))) static void say(struct line *self, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length =
        vsnprintf(self->text + self->used, TOPOLOGY_TEXT_BYTES - self->used, format, arguments);
    va_end(arguments);
    if (length > 0)
        self->used = size_min(self->used + (size_t)length, TOPOLOGY_TEXT_BYTES - 1);
}

char *topology_describe(const topology *self, char text[TOPOLOGY_TEXT_BYTES])
{
    struct line line = {.text = text};
    char set[CORE_SET_TEXT_BYTES], bytes[SIZE_TEXT_BYTES];
    core_set physical_cores = tieri_physical(self, &self->allowed);
    uint32_t allowed = core_set_count(&self->allowed);
    uint32_t physical = core_set_count(&physical_cores);
    text[0] = 0;
    say(&line, "machine: %u core%s (%s)", allowed, allowed == 1 ? "" : "s",
        core_set_format(&self->allowed, set));
    if (physical < allowed)
        say(&line, " on %u physical", physical);
    if (self->quota_cores)
        say(&line, ", CPU time for %u", self->quota_cores);
    say(&line, ", %u NUMA node%s", self->node_count, self->node_count == 1 ? "" : "s");
    for (uint32_t n = 0; n < self->node_count; n++) {
        const topology_node *node = &self->nodes[n];
        say(&line, "%s %d: %s%s, cores %s", n ? ";" : " -", node->id,
            size_format(node->memory_bytes, bytes), node->memory_is_allowed ? "" : " (not allowed)",
            core_set_format(&node->cores, set));
    }
    if (self->memory_is_set_by_user)
        say(&line, "; memory policy as the process was started with");
    if (self->device_node >= 0)
        say(&line, "; GPU on node %d", self->device_node);
    for (uint32_t d = 0; d < self->drive_count; d++)
        if (self->drive_nodes[d] >= 0)
            say(&line, "; drive %u on node %d", d, self->drive_nodes[d]);
    return text;
}

static void say_group(struct line *line, const char *name, const core_group *group)
{
    char set[CORE_SET_TEXT_BYTES];
    say(line, "%s %u thread%s on cores %s", name, group->thread_count,
        group->thread_count == 1 ? "" : "s", core_set_format(&group->cores, set));
}

char *core_plan_describe(const core_plan *self, char text[TOPOLOGY_TEXT_BYTES])
{
    struct line line = {.text = text};
    char set[CORE_SET_TEXT_BYTES];
    text[0] = 0;
    say(&line, "cores");
    if (self->share.world > 1)
        say(&line, " of rank %u of the %u here (%s %s)", self->share.rank, self->share.world,
            self->share.is_dealt ? "its share:" : "bound to",
            core_set_format(&self->share.cores, set));
    if (self->update_is_compute) {
        say_group(&line, ": compute and update", &self->compute);
    } else {
        say_group(&line, ": compute", &self->compute);
        say_group(&line, ", update", &self->update);
    }
    say(&line, ", scheduler and I/O on cores %s", core_set_format(&self->io.cores, set));
    if (self->reserved)
        say(&line, " (%u left to %s)", self->reserved, self->reserved == 1 ? "it" : "them");
    core_set_format(&self->host.nodes, set);
    if (self->host.spread == ARENA_ANYWHERE)
        say(&line, "; memory not bound");
    else if (self->host.spread == ARENA_INTERLEAVE)
        say(&line, "; memory interleaved over nodes %s", set);
    else if (core_set_count(&self->host.nodes) == 1)
        say(&line, "; memory on node %s", set);
    else
        say(&line, "; memory on nodes %s, nearest first", set);
    return text;
}
