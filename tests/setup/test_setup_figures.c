/* Figures of a stated machine as the plan takes them, field by field: what a host has is divided by
 * its ranks, what is not stated keeps the plan's default. Every expected number is worked out by
 * hand beside it. */
#include "base/size.h"
#include "base/tile.h"
#include "config/machine.h"
#include "setup/setup.h"
#include "setup/setup_internal.h"
#include "tests/unit.h"

static struct machine stated;
static struct job asked;
static model net;
static struct setup setup;

/* 32 hosts of 16 GPUs. */
static int begin(void **state)
{
    memset(&stated, 0, sizeof stated);
    memset(&asked, 0, sizeof asked);
    memset(&net, 0, sizeof net);
    memset(&setup, 0, sizeof setup);
    stated.host_count = 32;
    stated.ranks_per_host = 16;
    stated.host.core_count = 48;
    stated.host.memory_bytes = UINT64_C(1600000000000);
    stated.host.dram_copy = 160e9;
    stated.host.update_core_seconds = 3e-9;
    stated.host.io_core_seconds = 4e-11;
    stated.host.sum_core_seconds = 6e-11;
    stated.device.is_gpu = true;
    stated.device.memory_bytes = 32 * GIB;
    stated.device.flops_16bit = 70e12;
    stated.device.flops_fp32 = 15e12;
    stated.device.memory_rate = 765e9;
    stated.device.op_seconds = 7e-6;
    stated.device.expand_rate = 300e9;
    stated.h2d.pinned = 12e9;
    stated.d2h.pinned = 2e9;
    stated.link_all_ranks = 48e9;
    stated.drive_count = 1;
    stated.drives[0].count = 8;
    stated.drives[0].read = 4e9;
    stated.drives[0].write = 3e9;
    stated.drives[0].capacity_bytes = UINT64_C(3500000000000);
    stated.drives[0].sync_seconds = 0.001;
    stated.drives_read = 24e9;
    stated.comm.inside = 120e9;
    stated.comm.between = 5e9;
    stated.comm.seconds = 30e-6;
    net.type = DTYPE_FP16;
    strcpy(asked.device.backend, "auto");
    asked.tiers.nvme_count = 1;
    asked.io.verify_reads = true;
    strcpy(asked.tiers.nvme[0].path, "/nowhere/drive");
    setup.job = &asked;
    setup.net = &net;
    setup.stated = &stated;
    setup.is_described = setup.described_gpu = true;
    setup.collectives = COMM_NCCL;
    setup.thread_count = 3;
    setup.ranks.world = 512;
    setup.ranks.local_world = 16;
    return 0;
}

#define SAME(got, want) assert_float_equal((got) / (want), 1, 1e-12)

static void a_gpu_of_many_has_its_part_of_a_host(void **state)
{
    plan_machine got;
    setup_machine_figures(&setup, &got);
    assert_false(got.device_is_cpu);
    SAME(got.device_flops_per_second, 70e12);
    SAME(got.device_bytes_per_second, 765e9);
    SAME(got.op_seconds, 7e-6);
    SAME(got.expand_bytes_per_second, 300e9);
    SAME(got.h2d_bytes_per_second, 3e9);           /* 48 of all / 16, less than 12 of one alone */
    SAME(got.d2h_bytes_per_second, 2e9);           /* less than its part */
    SAME(got.dram_bytes_per_second, 10e9);         /* 160 / 16 */
    SAME(got.drive_read_bytes_per_second, 1.5e9);  /* all read 24, not 8 x 4 / 16 */
    SAME(got.drive_write_bytes_per_second, 1.5e9); /* 8 x 3 / 16 */
    SAME(got.sync_seconds, 0.002);                 /* slabs, then manifest */
    SAME(got.io_core_seconds, 4e-11);
    SAME(got.read_sum_core_seconds, 6e-11);
    SAME(got.write_sum_core_seconds, 6e-11);
    SAME(got.update_core_seconds, 3e-9);
    SAME(got.comm_bytes_per_second, 5e9); /* the slower way, between hosts */
    SAME(got.comm_seconds, 30e-6);
    assert_false(got.comm_is_copies);
    assert_false(got.is_measured); /* it has no date */

    assert_float_equal(got.drive_both_ways, 1, 0); /* no mixed rate is stated */
    stated.drives[0].mixed = 4.8e9;                /* by turns 2 / (1/4 + 1/3) = 24/7 */
    stated.drives[0].write_with_update = 3.6e9;    /* 3/4 of that */
    setup_machine_figures(&setup, &got);
    SAME(got.drive_both_ways, 1.4);
    SAME(got.drive_kept, 0.75);
    stated.drives[0].mixed = 3e9; /* less than by turns counts as by turns */
    setup_machine_figures(&setup, &got);
    assert_float_equal(got.drive_both_ways, 1, 0);
    SAME(got.drive_kept, 1); /* 3.6 is more than 24/7 */
    stated.drives[0].mixed = stated.drives[0].write_with_update = 0;

    asked.io.verify_reads = false; /* writes are summed for the manifest all the same */
    setup_machine_figures(&setup, &got);
    assert_true(got.read_sum_core_seconds == 0);
    SAME(got.write_sum_core_seconds, 6e-11);
    asked.io.verify_reads = true;

    setup.ranks.world = 16; /* one host: between hosts counts no more */
    net.type = DTYPE_FP32;
    stated.h2d.pinned_with_nvme = 1e9;
    setup_machine_figures(&setup, &got);
    SAME(got.comm_bytes_per_second, 120e9);
    SAME(got.device_flops_per_second, 15e12);
    SAME(got.h2d_bytes_per_second, 1e9); /* while the drives run */
}

static void what_is_not_stated_is_the_default(void **state)
{
    plan_machine got, by_default;
    plan_machine_default_gpu(&by_default, 3, 8, 0);
    strcpy(stated.measured_at, "2024-01-01T00:00:00Z");
    setup_machine_figures(&setup, &got);
    assert_true(got.is_measured);
    stated.host.dram_copy = stated.device.memory_rate = 0;
    setup_machine_figures(&setup, &got);
    assert_false(got.is_measured);
    SAME(got.dram_bytes_per_second, by_default.dram_bytes_per_second);
    SAME(got.device_bytes_per_second, by_default.device_bytes_per_second);
    SAME(got.device_flops_per_second, 70e12);
}

static void a_cpu_counts_by_its_threads(void **state)
{
    plan_machine got;
    setup.described_gpu = stated.device.is_gpu = false;
    setup.thread_count = 8;
    setup.ranks.world = setup.ranks.local_world = 1;
    net.type = DTYPE_BF16;
    stated.device.thread_count = 16;
    stated.device.flops_16bit = 1e12;
    setup_machine_figures(&setup, &got);
    assert_true(got.device_is_cpu);
    SAME(got.device_flops_per_second, 0.5e12); /* 8 of 16 threads */
    SAME(got.expand_bytes_per_second, 150e9);
    SAME(got.h2d_bytes_per_second, 12e9); /* nothing is shared */
    SAME(got.dram_bytes_per_second, 160e9);
    SAME(got.drive_read_bytes_per_second, 24e9);
}

static void a_described_host_is_divided(void **state)
{
    assert_ok(setupi_described_budgets(&setup));
    const uint64_t *budget = setup.plan.budget_bytes;
    assert_int_equal(budget[TIER_DEVICE], 30 * GIB); /* 32 less 1.5 of CUDA and 0.5 of NCCL */
    uint64_t host = UINT64_C(90000000000);           /* 1600e9 x 90% / 16 */
    assert_int_equal(budget[TIER_HOST], host / TILE_BLOCK_BYTES * TILE_BLOCK_BYTES);
    assert_int_equal(budget[TIER_NVME], UINT64_C(1575000000000)); /* 28e12 x 90% / 16 */
    assert_int_equal(setup.plan.nvme_sharers, 16);
    asked.tiers.nvme[0].budget_bytes = 16 * GIB; /* of a drive that 16 share */
    assert_ok(setupi_described_budgets(&setup));
    assert_int_equal(budget[TIER_NVME], GIB);
}

static void hosts_are_whole_and_enough(void **state)
{
    setup.ranks.local_world = 0; /* not asked: as many as a host has */
    assert_ok(setupi_described_ranks(&setup));
    assert_int_equal(setup.ranks.local_world, 16);
    setup.ranks.world = 24;
    assert_int_equal(setupi_described_ranks(&setup), ERR_CONFIG);
    setup.ranks.world = 528;
    assert_int_equal(setupi_described_ranks(&setup), ERR_CONFIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_gpu_of_many_has_its_part_of_a_host, begin),
        cmocka_unit_test_setup(what_is_not_stated_is_the_default, begin),
        cmocka_unit_test_setup(a_cpu_counts_by_its_threads, begin),
        cmocka_unit_test_setup(a_described_host_is_divided, begin),
        cmocka_unit_test_setup(hosts_are_whole_and_enough, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
