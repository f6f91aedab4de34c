/* The machine's resources: what ops ask of them, the speed of ops that run together, and rough
 * figures for machines without measurements.
 *
 * An op is a vector of seconds per resource. Its time alone is the longest of them, plus a fixed
 * cost and what it waits while it uses none; at least a nanosecond, so that every op has a rate.
 * Ops that run together share the resources max-min fairly: all of them speed up together until a
 * resource is full; those that use it keep their rate, and the others go on growing (progressive
 * filling). One use is not shared so: a read or write needs a core for its checksums, but less than
 * one whole core. Its thread sleeps between pieces, and the system's scheduler serves a thread that
 * wakes up at once, so full cores do not slow it; the others share what it leaves. All such ops
 * together have no more than all cores.
 *
 * Drives lose more to memory traffic than a fair share of the memory: the more of the memory's rate
 * other ops would use alone, the slower are reads and writes (machine.drive_kept). Pure; allocates
 * nothing. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "plan/simulate/simulate_internal.h"

/* ---- demands and rates ---------------------------------------------------------------------- */

const char *plan_resource_name(enum plan_resource resource)
{
    static const char *const names[RESOURCE_COUNT] = {
        [RESOURCE_DRIVE] = "drive", [RESOURCE_H2D] = "h2d",     [RESOURCE_D2H] = "d2h",
        [RESOURCE_DRAM] = "dram",   [RESOURCE_CORES] = "cores", [RESOURCE_DEVICE] = "device",
        [RESOURCE_COMM] = "comm",
    };
    assert(resource < RESOURCE_COUNT);
    return names[resource];
}

double plan_drive_both_ways(const plan_machine *machine)
{
    return fmax(machine->drive_both_ways, 1);
}

double plan_drive_kept(const plan_machine *machine)
{
    return machine->drive_kept > 0 ? fmin(machine->drive_kept, 1) : 1;
}

void plan_demand_seconds(const plan_machine *machine, const op_demand *demand,
                         double d[RESOURCE_COUNT])
{
    memset(d, 0, RESOURCE_COUNT * sizeof *d);
    d[RESOURCE_DRIVE] =
        ((double)demand->drive_read_bytes / machine->drive_read_bytes_per_second +
         (double)demand->drive_write_bytes / machine->drive_write_bytes_per_second) /
        plan_drive_both_ways(machine);
    d[RESOURCE_H2D] = (double)demand->h2d_bytes / machine->h2d_bytes_per_second;
    d[RESOURCE_D2H] = (double)demand->d2h_bytes / machine->d2h_bytes_per_second;
    if (machine->device_is_cpu) /* one thread copies both ways */
        d[RESOURCE_H2D] += d[RESOURCE_D2H];
    d[RESOURCE_DRAM] = (double)demand->dram_bytes / machine->dram_bytes_per_second;
    d[RESOURCE_CORES] = demand->core_seconds / machine->core_count;
    if (demand->comm_bytes > 0)
        d[RESOURCE_COMM] = (double)demand->comm_bytes / machine->comm_bytes_per_second;
    double device_seconds = demand->device_seconds > 0
                                ? demand->device_seconds
                                : demand->device_flops / machine->device_flops_per_second;
    if (demand->device_bytes > 0) /* products and memory of a GPU overlap within an op */
        device_seconds =
            fmax(device_seconds, (double)demand->device_bytes / machine->device_bytes_per_second);
    d[machine->device_is_cpu ? RESOURCE_CORES : RESOURCE_DEVICE] += device_seconds;
    for (int r = 0; r < RESOURCE_COUNT; r++)
        d[r] *= plan_share(demand);
}

void plani_demand(const plan_machine *machine, const op_demand *demand, struct plani_share *share)
{
    memset(share, 0, sizeof *share);
    plan_demand_seconds(machine, demand, share->demand);
    double longest =
        share->demand[RESOURCE_DRIVE] * plan_drive_both_ways(machine); /* an op has one direction */
    for (int r = 0; r < RESOURCE_COUNT; r++)
        longest = share->demand[r] > longest ? share->demand[r] : longest;
    double fixed = (machine->op_seconds + demand->wait_seconds) * plan_share(demand);
    share->alone_seconds = fmax(longest + fixed, 1e-9);
    assert(isfinite(share->alone_seconds));
    bool is_served = demand->drive_read_bytes + demand->drive_write_bytes > 0 &&
                     demand->core_seconds * plan_share(demand) < share->alone_seconds;
    for (int r = 0; r < RESOURCE_COUNT; r++)
        share->need[r] = share->demand[r] / share->alone_seconds;
    if (is_served) {
        share->need[PLANI_SERVED] = share->need[RESOURCE_CORES];
        share->need[RESOURCE_CORES] = 0;
    }
    if (share->demand[RESOURCE_DRIVE] == 0)
        share->slows_drives = share->need[RESOURCE_DRAM] * (1 - plan_drive_kept(machine));
}

/* Shares the machine, of whose cores the share `cores` is left to ops that are not served. */
static void share_rates(struct plani_share *const *running, uint32_t count, double cores)
{
    double left[PLANI_NEEDS], traffic = 0, lost = 0;
    bool fixed[LANE_COUNT] = {false};
    for (int r = 0; r < PLANI_NEEDS; r++)
        left[r] = 1.0;
    left[RESOURCE_CORES] = fmax(cores, 0);
    for (uint32_t i = 0; i < count; i++) {
        traffic += running[i]->slows_drives > 0 ? running[i]->need[RESOURCE_DRAM] : 0;
        lost += running[i]->slows_drives;
    }
    double kept = 1 - lost / fmax(traffic, 1);
    for (uint32_t open = count; open > 0;) {
        /* The level (share of its own full speed) at which the next resource fills. */
        double level = 1.0, wanted[PLANI_NEEDS] = {0};
        bool is_full[PLANI_NEEDS];
        for (uint32_t i = 0; i < count; i++)
            for (int r = 0; r < PLANI_NEEDS && !fixed[i]; r++)
                wanted[r] += running[i]->need[r];
        for (int r = 0; r < PLANI_NEEDS; r++)
            if (left[r] < level * wanted[r])
                level = left[r] / wanted[r];
        level = level < 1e-9 ? 1e-9 : level;
        for (int r = 0; r < PLANI_NEEDS; r++)
            is_full[r] = level * wanted[r] >= left[r] * (1.0 - 1e-9);
        /* Fix the ops that use a full resource, or all when each has reached its own full speed. */
        for (uint32_t i = 0; i < count; i++) {
            bool fixes = level >= 1.0;
            for (int r = 0; r < PLANI_NEEDS && !fixes && !fixed[i]; r++)
                fixes = running[i]->need[r] > 0 && is_full[r];
            if (fixed[i] || !fixes)
                continue;
            fixed[i] = true;
            open--;
            running[i]->rate = level / running[i]->alone_seconds;
            if (running[i]->need[RESOURCE_DRIVE] > 0)
                running[i]->rate *= kept;
            for (int r = 0; r < PLANI_NEEDS; r++) {
                left[r] -= running[i]->need[r] * level;
                left[r] = left[r] > 0 ? left[r] : 0;
            }
        }
    }
}

void plani_share_rates(struct plani_share *const *running, uint32_t count)
{
    double served = 0, used = 0;
    assert(count <= LANE_COUNT);
    for (uint32_t i = 0; i < count; i++)
        served += running[i]->need[PLANI_SERVED];
    share_rates(running, count, 1 - served);
    for (uint32_t i = 0; i < count; i++)
        used += running[i]->need[PLANI_SERVED] * running[i]->alone_seconds * running[i]->rate;
    if (used < served) /* slowed by something else, they leave more of the cores */
        share_rates(running, count, 1 - used);
}

/* ---- machines that were not measured -------------------------------------------------------- */

void plan_machine_default_cpu(plan_machine *machine, uint32_t core_count, bool bf16_products)
{
    /* A server core of the 2020s with AVX-512: products near 90 GFLOP/s in fp32 and twice that
     * where it has bf16 ones; DRAM 15 GB/s a core and more; one Gen4 drive. */
    double cores = core_count > 0 ? core_count : 1;
    memset(machine, 0, sizeof *machine);
    machine->drive_read_bytes_per_second = 3e9;
    machine->drive_write_bytes_per_second = 3e9;
    machine->dram_bytes_per_second = fmin(15e9 * cores + 20e9, 200e9);
    machine->h2d_bytes_per_second = 12e9;
    machine->d2h_bytes_per_second = 12e9;
    machine->device_flops_per_second = (bf16_products ? 180e9 : 90e9) * cores;
    machine->core_count = cores;
    machine->device_is_cpu = true;
    machine->op_seconds = 20e-6;
    /* Ranks of one host that copy through shared memory: a guess as well. */
    machine->comm_bytes_per_second = 5e9;
    machine->comm_seconds = 20e-6;
    machine->comm_is_copies = true;
    /* A guess that no measurement of ours stands behind: a few flushes of a drive's cache, which
     * take from well under a millisecond (power-loss protection) to some milliseconds (none)
     * each. */
    machine->sync_seconds = 5e-3;
}

void plan_machine_default_gpu(plan_machine *machine, uint32_t core_count, int major,
                              double memory_bytes_per_second)
{
    /* Products at about two thirds of the dense 16-bit peak that the makers state (A100 312, H100
     * 989 TFLOP/s, later ones more); links of Gen4 and, from Hopper on, Gen5 x16 at what copies
     * reach. */
    plan_machine_default_cpu(machine, core_count, false);
    machine->device_is_cpu = false;
    machine->device_flops_per_second = major >= 9 ? 600e12 : major == 8 ? 200e12 : 60e12;
    machine->device_bytes_per_second = memory_bytes_per_second > 0 ? 0.85 * memory_bytes_per_second
                                       : major >= 9                ? 2.5e12
                                                                   : 1.2e12;
    machine->h2d_bytes_per_second = machine->d2h_bytes_per_second = major >= 9 ? 50e9 : 24e9;
    machine->op_seconds = 10e-6;
    /* GPUs of one host that reach each other through the same switches: a guess. */
    machine->comm_bytes_per_second = machine->h2d_bytes_per_second / 2;
    machine->comm_is_copies = false;
}
