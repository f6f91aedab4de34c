/* The cores and memory that ranks get when they divide a machine. The machines are described and
 * need not be present. */
#include "tests/tiers/topology_machines.h"
#include "tests/unit.h"

/* Says the plan too, so that a failure shows it. */
static core_plan plan_of(const topology *machine, const core_request *asked)
{
    core_plan plan;
    assert_int_equal(topology_place(machine, asked, &plan), 0);
    topology_place_memory(machine, 8 * GIB, 0, &plan);
    char text[TOPOLOGY_TEXT_BYTES];
    printf("    %s\n", core_plan_describe(&plan, text));
    for (uint32_t i = 0; i < plan.note_count; i++)
        printf("    note: %s\n", plan.notes[i]);
    return plan;
}

/* The plans of all ranks of a machine, which divide its cores. */
static void plans_of(const topology *machine, core_request asked, uint32_t world, core_plan *plans)
{
    asked.local_world = world;
    asked.shares_cores = true;
    for (uint32_t r = 0; r < world; r++) {
        topology mine = *machine;
        if (asked.device_nodes)
            mine.device_node = asked.device_nodes[r];
        asked.local_rank = r;
        plans[r] = plan_of(&mine, &asked);
    }
}

static void one_node(void **state)
{
    topology machine;
    core_plan plans[8];
    machine_begin(&machine); /* more ranks than cores: two on each */
    machine_node(&machine, 0, 16, "0-1");
    plans_of(&machine, request(true), 4, plans);
    for (uint32_t r = 0; r < 4; r++) {
        assert_group(&plans[r].compute, r < 2 ? "0" : "1", 1);
        assert_set(&plans[r].io.cores, r < 2 ? "0" : "1");
        assert_int_equal(plans[r].share.home_ranks[0], 4);
        assert_int_equal(plans[r].note_count, 0);
    }
    char text[TOPOLOGY_TEXT_BYTES];
    core_plan_describe(&plans[2], text);
    assert_non_null(strstr(text, "cores of rank 2 of the 4 here (its share: 1): compute"));
    plans_of(&machine, request(true), 3, plans);
    assert_group(&plans[0].compute, "0", 1);
    assert_group(&plans[1].compute, "0", 1);
    assert_group(&plans[2].compute, "1", 1);

    machine_begin(&machine); /* hyperthreads go with their core; what is left over is nobody's */
    machine_node(&machine, 0, 64, "0-13");
    machine_smt(&machine, 7);
    machine_drive(&machine, 0);
    plans_of(&machine, request(true), 3, plans);
    assert_group(&plans[0].compute, "0-1", 2);
    assert_group(&plans[2].compute, "4-5", 2);
    assert_group(&plans[2].io, "4-5,11-12", 4);
    machine.allowed = set_of("1-2,5-6,8-9"); /* a mask: the physical cores 1, 2, 5 and 6 */
    plans_of(&machine, request(true), 2, plans);
    assert_group(&plans[0].compute, "1-2", 2);
    assert_set(&plans[0].io.cores, "1-2,8-9");
    assert_group(&plans[1].compute, "5-6", 2);
}

/* Sets that the job names are for all ranks. */
static void named_cores(void **state)
{
    topology machine;
    core_plan plans[4];
    machine_begin(&machine);
    machine_node(&machine, 0, 64, "0-7");
    machine_node(&machine, 1, 64, "8-15");
    core_request asked = request(true);
    asked.compute.cores = "2-5";
    plans_of(&machine, asked, 2, plans);
    for (uint32_t r = 0; r < 2; r++)
        assert_group(&plans[r].compute, "2-5", 2);
    asked.compute.threads = 3;
    plans_of(&machine, asked, 2, plans);
    assert_group(&plans[1].compute, "2-5", 3);
    asked.compute.threads = 0;
    plans_of(&machine, asked, 4, plans); /* one home for all: 15 GiB each */
    assert_group(&plans[3].compute, "2-5", 1);
    assert_int_equal(plans[3].note_count, 0);
    topology_place_memory(&machine, 16 * GIB, 0, &plans[3]);
    assert_int_equal(plans[3].note_count, 1);
}

static void cores_of_io(void **state)
{
    topology machine;
    core_plan plans[4];
    machine_begin(&machine);
    machine_node(&machine, 0, 64, "0-15");
    core_request asked = request(true);
    plans_of(&machine, asked, 2, plans); /* rule 5 holds for each rank's cores */
    assert_group(&plans[0].compute, "1-7", 7);
    assert_group(&plans[1].compute, "9-15", 7);
    asked.io.cores = "0-3"; /* dealt to nobody: as many threads on each */
    plans_of(&machine, asked, 2, plans);
    assert_group(&plans[0].compute, "4-9", 6);
    assert_group(&plans[1].compute, "10-15", 6);
    assert_set(&plans[1].io.cores, "0-3");
    asked.io.cores = "0-9"; /* too many */
    plans_of(&machine, asked, 2, plans);
    assert_group(&plans[0].compute, "0-7", 8);
    assert_group(&plans[1].compute, "8-15", 8);
}

/* CPU time and masks of control groups and launchers. */
static void quotas_and_masks(void **state)
{
    topology machine;
    core_plan plans[4];
    machine_begin(&machine);
    machine_node(&machine, 0, 64, "0-15");
    core_request asked = request(true);
    static const uint32_t quotas[][2] = {{2, 1}, {6, 1}, {9, 2}, {16, 4}, {64, 4}};
    for (size_t i = 0; i < sizeof quotas / sizeof quotas[0]; i++) {
        machine.quota_cores = quotas[i][0];
        plans_of(&machine, asked, 4, plans);
        for (uint32_t r = 0; r < 4; r++)
            assert_int_equal(plans[r].compute.thread_count, quotas[i][1]);
    }
    machine.quota_cores = 9;
    asked.local_world = 4;
    asked.local_rank = 1;
    machine.allowed = set_of("4-7"); /* its own: nothing is dealt, but the quota is the ranks' */
    plans[0] = plan_of(&machine, &asked);
    assert_group(&plans[0].compute, "4-7", 2);
    assert_int_equal(plans[0].share.home_ranks[0], 4);
    char text[TOPOLOGY_TEXT_BYTES];
    assert_non_null(strstr(core_plan_describe(&plans[0], text), "(bound to 4-7)"));
}

static void two_nodes(void **state)
{
    topology machine;
    core_plan plans[8];
    static const char *const eight[8] = {"0-1", "2-3",   "4-5",   "6-7",
                                         "8-9", "10-11", "12-13", "14-15"};
    machine_begin(&machine);
    machine_node(&machine, 0, 64, "0-7");
    machine_node(&machine, 1, 64, "8-15");
    plans_of(&machine, request(true), 8, plans);
    for (uint32_t r = 0; r < 8; r++) {
        assert_group(&plans[r].compute, eight[r], 2);
        assert_memory(&plans[r].host, ARENA_BIND, r < 4 ? "0" : "1");
        assert_set(&plans[r].host.touch_cores, eight[r]);
        assert_int_equal(plans[r].share.home_ranks[r / 4], 4);
        assert_int_equal(plans[r].note_count, 0);
        /* 60 GiB of each node are for four: 15 GiB */
        topology_place_memory(&machine, 16 * GIB, 0, &plans[r]);
        assert_set(&plans[r].host.nodes, "0-1");
        assert_int_equal(plans[r].note_count, 1);
        assert_non_null(strstr(plans[r].notes[0], "has room for 15.00 GiB for this rank"));
    }
    plans_of(&machine, request(true), 3, plans); /* no multiple: in a row */
    assert_group(&plans[0].compute, "0-4", 5);
    assert_group(&plans[1].compute, "5-9", 5);
    assert_memory(&plans[1].host, ARENA_INTERLEAVE, "0-1");
    assert_group(&plans[2].compute, "10-14", 5);
    assert_int_equal(plans[2].share.home_ranks[0], 2);
    assert_int_equal(plans[2].share.home_ranks[1], 2);
    machine.allowed = set_of("0-7,8-9"); /* 2 + 2 would leave 6 of 10 */
    plans_of(&machine, request(true), 2, plans);
    assert_group(&plans[0].compute, "0-4", 5);
    assert_group(&plans[1].compute, "5-9", 5);
    machine.allowed = set_of("0-7,8-13"); /* 6 + 6 leave 2 of 14 */
    plans_of(&machine, request(true), 2, plans);
    assert_group(&plans[0].compute, "0-5", 6);
    assert_group(&plans[1].compute, "8-13", 6);
}

static void gpus(void **state)
{
    topology machine;
    core_plan plans[4];
    machine_begin(&machine);
    machine_node(&machine, 0, 64, "0-7");
    machine_node(&machine, 1, 64, "8-15");
    machine_node(&machine, 2, 64, "");
    machine_distance(&machine, 1, 2, 12);
    static const int in_turn[4] = {0, 1, 0, 1}, mostly_second[4] = {1, 1, 0, 1};
    core_request asked = request(false);
    asked.device_nodes = in_turn;
    plans_of(&machine, asked, 4, plans);
    static const char *const expected[4] = {"0-3", "8-11", "4-7", "12-15"};
    for (uint32_t r = 0; r < 4; r++) {
        assert_group(&plans[r].update, expected[r], 4);
        assert_group(&plans[r].compute, expected[r], 1);
        assert_memory(&plans[r].host, ARENA_BIND, r % 2 ? "1" : "0");
        assert_int_equal(plans[r].share.home_ranks[r % 2], 2);
    }
    asked.device_nodes = mostly_second;
    plans_of(&machine, asked, 4, plans);
    assert_group(&plans[0].update, "8-9", 2);
    assert_group(&plans[2].update, "1-7", 7);
    assert_group(&plans[3].update, "12-13", 2);
    static const int no_cores[2] = {2, 1}; /* the nearest node that has some, with its own rank */
    asked.device_nodes = no_cores;
    plans_of(&machine, asked, 2, plans);
    assert_group(&plans[0].update, "8-11", 4);
    assert_memory(&plans[0].host, ARENA_BIND, "2");
    assert_group(&plans[1].update, "12-15", 4);
    asked.device_nodes = NULL; /* the others' are not known: in order */
    asked.shares_cores = true;
    asked.local_world = 4;
    asked.local_rank = 3;
    machine.device_node = 1;
    plans[0] = plan_of(&machine, &asked);
    assert_group(&plans[0].update, "12-15", 4);
    machine.device_node = -1; /* nor its own: as without GPUs */
    plans[0] = plan_of(&machine, &asked);
    assert_group(&plans[0].update, "12-15", 4);
}

static topology draw_machine(void)
{
    topology machine;
    int core = 0;
    machine_begin(&machine);
    for (int n = 0, node_count = 1 + rand() % 4; n < node_count; n++) {
        char cores[32];
        int count = 1 + rand() % 12;
        snprintf(cores, sizeof cores, "%d-%d", core, core + count - 1);
        core += count;
        machine_node(&machine, n, 8, cores);
    }
    for (int c = 1; c < core; c++)
        if (rand() % 4 == 0)
            core_set_remove(&machine.allowed, c);
    machine.quota_cores = rand() % 3 ? 0 : (uint32_t)(1 + rand() % 16);
    return machine;
}

static void assert_within(const core_set *inner, const core_set *outer)
{
    core_set outside;
    core_set_minus(&outside, inner, outer);
    assert_int_equal(core_set_count(&outside), 0);
}

/* On any machine: shares are allowed cores, equal, apart where there are enough, and all ranks
 * compute with as many threads. */
static void any_machine(void **state)
{
    unsigned seed = 11;
    printf("  seed %u\n", seed);
    srand(seed);
    for (int round = 0; round < 500; round++) {
        topology machine = draw_machine();
        core_request asked = request(true);
        asked.compute.threads = rand() % 2 ? 0 : (uint64_t)(rand() % 10);
        asked.io.cores = rand() % 3 ? NULL : "0";
        asked.shares_cores = true;
        asked.local_world = (uint32_t)(2 + rand() % 9);
        core_set seen = {0};
        core_plan first = {.share = {.world = 0}};
        for (uint32_t r = 0; r < asked.local_world; r++) {
            core_plan plan;
            asked.local_rank = r;
            assert_int_equal(topology_place(&machine, &asked, &plan), 0);
            if (r == 0)
                first = plan;
            assert_int_equal(plan.compute.thread_count, first.compute.thread_count);
            assert_int_equal(core_set_count(&plan.share.cores), core_set_count(&first.share.cores));
            assert_within(&plan.share.cores, &machine.allowed);
            assert_within(&plan.compute.cores, &plan.share.cores);
            core_set both;
            core_set_and(&both, &seen, &plan.share.cores);
            if (core_set_count(&first.share.cores) > 1)
                assert_int_equal(core_set_count(&both), 0);
            core_set_or(&seen, &seen, &plan.share.cores);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_node),    cmocka_unit_test(named_cores),
        cmocka_unit_test(cores_of_io), cmocka_unit_test(quotas_and_masks),
        cmocka_unit_test(two_nodes),   cmocka_unit_test(gpus),
        cmocka_unit_test(any_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
