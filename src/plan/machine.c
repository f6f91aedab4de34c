/* Rough figures of a machine that was not measured. */
#include <math.h>
#include <string.h>

#include "plan/plan.h"

void plan_machine_default_cpu(plan_machine *machine, uint32_t core_count, bool bf16_products)
{
    /* A server core of the 2020s with AVX-512: products near 90 GFLOP/s in fp32 and twice that where it
     * has bf16 ones; DRAM 15 GB/s a core and more; one Gen4 drive. */
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
    /* A guess that no measurement of ours stands behind: a few flushes of a drive's cache, which take
     * from well under a millisecond (power-loss protection) to some milliseconds (none) each. */
    machine->sync_seconds = 5e-3;
}

void plan_machine_default_gpu(plan_machine *machine, uint32_t core_count, int major,
                              double memory_bytes_per_second)
{
    /* Products at about two thirds of the dense 16-bit peak that the makers state (A100 312, H100 989
     * TFLOP/s, later ones more); links of Gen4 and, from Hopper on, Gen5 x16 at what copies reach. */
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
