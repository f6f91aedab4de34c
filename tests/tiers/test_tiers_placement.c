/* Placement of threads and memory on described machines, which need not be present. */
#include "tests/tiers/topology_machines.h"
#include "tests/unit.h"

/* Makes a plan, which must have all items of `expected`: "compute CORES x THREADS", "host SPREAD
 * NODES" and the like, with "; " between them. Prints the machine and the plan too, so that a
 * failure shows both. */
static core_plan plan_of(const topology *machine, const core_request *asked, uint64_t host_gib,
                         uint64_t device_gib, const char *expected)
{
    static const char *const spreads[] = {
        [ARENA_ANYWHERE] = "anywhere", [ARENA_BIND] = "bind", [ARENA_INTERLEAVE] = "interleave"};
    core_plan plan;
    assert_int_equal(topology_place(machine, asked, &plan), 0);
    topology_place_memory(machine, host_gib * GIB, device_gib * GIB, &plan);
    char text[TOPOLOGY_TEXT_BYTES], cores[3][CORE_SET_TEXT_BYTES], nodes[2][CORE_SET_TEXT_BYTES];
    printf("  %s\n", topology_describe(machine, text));
    printf("    %s\n", core_plan_describe(&plan, text));
    for (uint32_t i = 0; i < plan.note_count; i++)
        printf("    note: %s\n", plan.notes[i]);
    snprintf(text, sizeof text,
             "compute %s x %u; update %s x %u; io %s x %u; host %s %s; device %s %s; notes %u; "
             "reserved %u;",
             core_set_format(&plan.compute.cores, cores[0]), plan.compute.thread_count,
             core_set_format(&plan.update.cores, cores[1]), plan.update.thread_count,
             core_set_format(&plan.io.cores, cores[2]), plan.io.thread_count,
             spreads[plan.host.spread], core_set_format(&plan.host.nodes, nodes[0]),
             spreads[plan.device.spread], core_set_format(&plan.device.nodes, nodes[1]),
             plan.note_count, plan.reserved);
    char item[CORE_SET_TEXT_BYTES + 32];
    for (const char *at = expected; *at; at += strspn(at, "; ")) {
        snprintf(item, sizeof item, "%.*s;", (int)strcspn(at, ";"), at);
        if (!strstr(text, item))
            fail_msg("no \"%s\" in: %s", item, text);
        at += strcspn(at, ";");
    }
    return plan;
}

static void one_socket(void **state)
{
    topology machine;
    machine_begin(&machine);
    machine_node(&machine, 0, 64, "0-3");
    machine_drive(&machine, -1);
    core_request asked = request(true);
    core_plan plan = plan_of(&machine, &asked, 30, 10,
                             "compute 0-3 x 4; update 0-3 x 4; io 0-3 x 4; host anywhere none; "
                             "device anywhere none; notes 0; reserved 0");
    assert_true(plan.update_is_compute);

    machine_begin(&machine); /* from eight cores on, one is left */
    machine_node(&machine, 0, 64, "0-7");
    /* no drive: no pool */
    plan_of(&machine, &asked, 30, 10, "compute 1-7 x 7; io 0-7 x 0; reserved 1");
    asked.compute.threads = 8; /* a count that was asked for is what is given */
    plan_of(&machine, &asked, 30, 10, "compute 0-7 x 8");
    asked.compute.threads = 5;
    plan_of(&machine, &asked, 30, 10, "compute 0-7 x 5");
    asked.compute.threads = 9;
    asked.update.threads = 2;
    plan = plan_of(&machine, &asked, 30, 10, "compute 0-7 x 9; update 0-7 x 2; notes 1");
    assert_false(plan.update_is_compute);
    assert_non_null(strstr(plan.notes[0], "device.threads is 9"));
}

static void one_core(void **state)
{
    topology machine;
    machine_begin(&machine);
    machine_node(&machine, 0, 2, "0");
    core_request asked = request(true);
    plan_of(&machine, &asked, 1, 1, "compute 0 x 1; io 0 x 0");
    asked.io.cores = "0"; /* is not taken away from computing */
    plan_of(&machine, &asked, 1, 1, "compute 0 x 1");
    asked.device_is_cpu = false;
    plan_of(&machine, &asked, 1, 0, "update 0 x 1; compute 0 x 1");
}

static void hyperthreads(void **state)
{
    topology machine;
    machine_begin(&machine);
    machine_node(&machine, 0, 64, "0-11");
    machine_smt(&machine, 6);
    core_request asked = request(true);
    plan_of(&machine, &asked, 8, 8, "compute 0-5 x 6; io 0-11 x 0");
    asked.compute.threads = 7;
    plan_of(&machine, &asked, 8, 8, "compute 0-11 x 7; notes 0");
    asked.compute.threads = 0;
    asked.compute.cores = "2,3,8,9"; /* two physical cores with both their threads */
    plan_of(&machine, &asked, 8, 8, "compute 2-3,8-9 x 2");
    asked.compute.cores = "";
    core_set_remove(&machine.allowed, 0); /* of this physical core only the other thread is ours */
    plan_of(&machine, &asked, 8, 8, "compute 1-6 x 6");

    machine_begin(&machine);
    machine_node(&machine, 0, 64, "0-31");
    machine_smt(&machine, 16);
    machine_drive(&machine, 0);
    plan_of(&machine, &asked, 8, 8, "compute 1-15 x 15");
    asked.io.cores = "30,31"; /* threads of the physical cores 14 and 15 */
    asked.io.threads = 100;
    plan_of(&machine, &asked, 8, 8, "compute 0-13 x 14; io 30-31 x 64");
    asked.io.cores = "0-31"; /* nothing would stay: nothing is taken */
    plan_of(&machine, &asked, 8, 8, "compute 0-15 x 16");
}

static void two_sockets_gpu_on_second(void **state)
{
    topology machine;
    machine_begin(&machine);
    machine_node(&machine, 0, 256, "0-15,32-47");
    machine_node(&machine, 1, 256, "16-31,48-63");
    machine_smt(&machine, 32);
    machine.device_node = 1;
    machine_drive(&machine, 0);
    machine_drive(&machine, 1);
    core_request asked = request(false);
    core_plan plan = plan_of(&machine, &asked, 200, 0,
                             "host bind 1; update 17-31 x 15; compute 16-31,48-63 x 1; "
                             "io 16-31,48-63 x 8; notes 0");
    assert_set(&plan.host.touch_cores, "16-31,48-63");
    asked.update.threads = 20; /* larger than the socket's memory: the other socket helps */
    plan_of(&machine, &asked, 200, 0, "update 0-31 x 20; host bind 1");
    asked.update.threads = 0;
    plan = plan_of(&machine, &asked, 300, 0, "host interleave 0-1; notes 1");
    assert_non_null(strstr(plan.notes[0], "300.00 GiB"));
    assert_non_null(strstr(plan.notes[0], "node 1"));

    core_set second = machine.nodes[1].cores; /* no core of the GPU's socket is ours */
    core_set_minus(&machine.allowed, &machine.allowed, &second);
    plan = plan_of(&machine, &asked, 200, 0, "host bind 1; update 1-15 x 15; io 0-15,32-47 x 8");
    assert_non_null(strstr(plan.notes[0], "the GPU is on NUMA node 1"));

    core_set_or(&machine.allowed, &machine.allowed, &second);
    machine.device_node = -1; /* not known: both sockets */
    plan_of(&machine, &asked, 200, 0, "host interleave 0-1; update 1-31 x 31");
}

static void two_sockets_without_gpu(void **state)
{
    topology machine;
    machine_begin(&machine);
    machine_node(&machine, 0, 64, "0-7");
    machine_node(&machine, 1, 64, "8-15");
    core_request asked = request(true);
    plan_of(&machine, &asked, 40, 20,
            "compute 1-15 x 15; host interleave 0-1; device interleave 0-1");
    machine_drive(&machine, 1); /* the core left over is near the drive */
    plan_of(&machine, &asked, 40, 20, "compute 0-7,9-15 x 15");
    asked.compute.threads = 8; /* one socket is enough: that of the drive */
    plan_of(&machine, &asked, 40, 20, "compute 8-15 x 8; host bind 1");
    asked.compute.threads = 0;
    machine.quota_cores = 3; /* CPU time for three, on any cores */
    plan_of(&machine, &asked, 40, 20, "compute 8-15 x 3");
    machine.quota_cores = 0;
    machine.nodes[0].available_bytes = 8 * GIB; /* equal shares do not fit: fill what there is */
    plan_of(&machine, &asked, 40, 20, "host bind 0-1");
    asked.compute.cores = "0-3";
    plan_of(&machine, &asked, 4, 2, "compute 0-3 x 4; host bind 0; io 0-7 x 4");
    machine.memory_is_set_by_user = true; /* numactl --membind: not ours to change */
    plan_of(&machine, &asked, 4, 2, "host anywhere none");
    machine.memory_is_set_by_user = false;
    asked.update.cores = "8-9";
    core_plan plan = plan_of(&machine, &asked, 4, 2, "update 8-9 x 2");
    assert_false(plan.update_is_compute);
    core_set_minus(&machine.allowed, &machine.allowed, &machine.nodes[0].cores);
    asked = request(true); /* numactl --cpunodebind=1: the memory follows */
    plan_of(&machine, &asked, 4, 2, "compute 9-15 x 7; host bind 1");
}

static void four_nodes_gpu_on_third(void **state)
{
    topology machine;
    machine_begin(&machine);
    machine_node(&machine, 0, 64, "0-15");
    machine_node(&machine, 1, 64, "16-31");
    machine_node(&machine, 2, 64, "32-47");
    machine_node(&machine, 3, 64, "48-63");
    for (uint32_t a = 0; a < 4; a++)
        for (uint32_t b = 0; b < a; b++)
            machine_distance(&machine, a, b, a / 2 == b / 2 ? 12 : 14);
    machine.device_node = 2;
    core_request asked = request(false);
    plan_of(&machine, &asked, 50, 0, "host bind 2; update 33-47 x 15");
    /* 3 is nearer than 0 and 1 */
    plan_of(&machine, &asked, 100, 0, "host interleave 2-3; notes 1");
    plan_of(&machine, &asked, 150, 0, "host interleave 0,2-3");
    /* arena_init refuses it */
    core_plan plan = plan_of(&machine, &asked, 1000, 0, "");
    assert_int_equal(core_set_count(&plan.host.nodes), 4);

    machine.nodes[2].memory_bytes = machine.nodes[2].available_bytes = 0;
    machine.nodes[3].memory_bytes = machine.nodes[3].available_bytes = 0;
    machine_distance(&machine, 1, 2, 13); /* two nodes without memory: the nearest that has some */
    plan = plan_of(&machine, &asked, 50, 0, "host bind 1; update 33-47 x 15");
    assert_non_null(strstr(plan.notes[0], "has no memory"));
    assert_int_equal(plan.note_count, 1);
    asked.device_is_cpu = true; /* all cores, memory on the two that have it */
    plan_of(&machine, &asked, 50, 20, "compute 1-63 x 63; host interleave 0-1");
    machine.nodes[0].memory_is_allowed = false; /* cpuset.mems */
    /* one place is left: nothing to choose */
    plan_of(&machine, &asked, 50, 0, "host anywhere none");
}

static void control_group(void **state)
{
    topology machine;
    machine_begin(&machine);
    machine_node(&machine, 0, 16, "0-7");
    machine.allowed = set_of("3,5");
    core_request asked = request(true);
    plan_of(&machine, &asked, 4, 4, "compute 3,5 x 2; io 3,5 x 0");
    asked.compute.threads = 4;
    core_plan plan = plan_of(&machine, &asked, 4, 4, "compute 3,5 x 4");
    assert_non_null(strstr(plan.notes[0], "2 cores (3,5)"));
    machine.allowed = set_of("0-7");
    asked.compute.threads = 0;
    machine.quota_cores = 8; /* a quota of all: the count is its, none is left over */
    plan_of(&machine, &asked, 4, 4, "compute 0-7 x 8");
    machine.quota_cores = 12;
    plan_of(&machine, &asked, 4, 4, "compute 1-7 x 7");
}

static void memory_without_cores(void **state)
{
    topology machine;
    machine_begin(&machine);
    machine_node(&machine, 0, 64, "0-3");
    machine_node(&machine, 1, 256, "");
    machine_distance(&machine, 0, 1, 50);
    core_request asked = request(true);
    plan_of(&machine, &asked, 30, 20, "compute 0-3 x 4; host bind 0");
    /* the fast node first, slow memory for the rest */
    core_plan plan = plan_of(&machine, &asked, 100, 20, "host bind 0-1");
    assert_set(&plan.host.touch_cores, "0-3");
    assert_non_null(strstr(plan.notes[0], "order of distance"));
}

static void numbers_with_holes(void **state)
{
    topology machine;
    machine_begin(
        &machine); /* POWER9 with its GPUs' memory as node 255; core 9 and 80-83 offline */
    machine_node(&machine, 0, 128, "0-8,10-15");
    machine_node(&machine, 8, 128, "84-95");
    machine_node(&machine, 255, 16, "");
    machine_distance(&machine, 0, 1, 40);
    machine_distance(&machine, 0, 2, 80);
    machine_distance(&machine, 1, 2, 80);
    machine.device_node = 8;
    core_request asked = request(false);
    plan_of(&machine, &asked, 100, 0, "host bind 8; update 85-95 x 11");
    plan_of(&machine, &asked, 200, 0, "host interleave 0,8");
    plan_of(&machine, &asked, 250, 0, "host bind 0,8,255");
    machine.device_node = 3; /* what the driver says is not there: as if not known */
    plan_of(&machine, &asked, 100, 0, "host interleave 0,8");
}

static void bad_sets(void **state)
{
    topology machine;
    machine_begin(&machine);
    machine_node(&machine, 0, 64, "0-7");
    machine.allowed = set_of("0-5");
    static const struct {
        const char *cores, *why;
    } bad[] = {
        {"8", "core 8 does not exist or is offline"},
        {"0-9", "cores 8-9 do not exist or are offline"},
        {"5,6", "core 6 may not be used"},
        {"1023", "does not exist"},
        {"1024", "numbers must be below 1024"},
        {"99999999999999999999", "numbers must be below 1024"},
        {" ", "names no core"},
        {"a", "a number was expected before \"a\""},
        {"3-", "a number was expected at its end"},
        {"3-1", "the range 3-1 runs backwards"},
        {"1,,2", "a number was expected before \",2\""},
        {"1,", "a number was expected at its end"},
        {"1 2", "a comma was expected before \"2\""},
        {"-1", "a number was expected before \"-1\""},
        {"0x3", "a comma was expected before \"x3\""},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        core_request asked = request(true);
        core_ask *asks[3] = {&asked.compute, &asked.update, &asked.io};
        static const char *const keys[3] = {"device.cores is \"", "update.cores is \"",
                                            "io.cores is \""};
        asks[i % 3]->cores = bad[i].cores;
        core_plan plan;
        assert_int_equal(topology_place(&machine, &asked, &plan), ERR_CONFIG);
        printf("  %s\n", err_text());
        assert_ptr_equal(strstr(err_text(), keys[i % 3]), err_text());
        assert_non_null(strstr(err_text(), bad[i].why));
        assert_non_null(strstr(err_text(), "0-5"));
        assert_non_null(strstr(err_text(), bad[i].cores));
    }
    core_request asked = request(true);
    asked.update.threads = 70000;
    core_plan plan;
    assert_error(topology_place(&machine, &asked, &plan), ERR_CONFIG, "update.threads is 70000");
    asked.update.threads = 0;
    asked.compute.cores = " 0 - 2 , 2,5\n"; /* blanks and repeats are harmless */
    assert_int_equal(topology_place(&machine, &asked, &plan), 0);
    assert_group(&plan.compute, "0-2,5", 4);
}

static void texts_of_sets(void **state)
{
    static const char *const same[] = {"0", "0-7,16", "63-64", "0,2,4,6", "1023", "0-1023"};
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        core_set set = set_of(same[i]);
        assert_set(&set, same[i]);
    }
    core_set every_other = {0}, back;
    for (int c = 0; c < CORE_SET_MAX; c += 2)
        core_set_add(&every_other, c);
    assert_int_equal(core_set_count(&every_other), CORE_SET_MAX / 2);
    char text[CORE_SET_TEXT_BYTES];
    assert_true(strlen(core_set_format(&every_other, text)) < CORE_SET_TEXT_BYTES);
    assert_string_equal(text + strlen(text) - 4, ",...");
    uint64_t seed = 20261121;
    printf("  seed %llu\n", (unsigned long long)seed);
    srand((unsigned)seed);
    for (int round = 0; round < 200; round++) {
        core_set set = {0};
        uint32_t count = 0;
        for (int i = 0; i < 12; i++) {
            int c = rand() % CORE_SET_MAX;
            count += !core_set_has(&set, c);
            core_set_add(&set, c);
        }
        assert_int_equal(core_set_count(&set), count);
        assert_int_equal(core_set_parse(core_set_format(&set, text), &back), 0);
        assert_true(core_set_equals(&set, &back));
        uint32_t seen = 0;
        for (int c = core_set_next(&set, 0); c >= 0; c = core_set_next(&set, c + 1))
            seen += core_set_has(&set, c);
        assert_int_equal(seen, count);
    }
    assert_false(core_set_has(&every_other, -1) || core_set_has(&every_other, CORE_SET_MAX));
}

/* On any machine a plan has cores to run on, all allowed, and memory that may be used; its thread
 * counts do not depend on how much memory is free. */
static void any_machine(void **state)
{
    unsigned seed = 7;
    printf("  seed %u\n", seed);
    srand(seed);
    for (int round = 0; round < 3000; round++) {
        topology machine;
        machine_begin(&machine);
        int node_count = 1 + rand() % 6, core = 0;
        for (int n = 0; n < node_count; n++) {
            char cores[32] = "";
            int count = n && rand() % 4 == 0 ? 0 : 1 + rand() % 12;
            if (count)
                snprintf(cores, sizeof cores, "%d-%d", core, core + count - 1);
            core += count;
            machine_node(&machine, n * (1 + rand() % 2 * 3) + n, n && rand() % 4 == 0 ? 0 : 8,
                         cores);
            machine.nodes[n].memory_is_allowed = n == 0 || rand() % 5;
            for (int i = 0; i < n; i++)
                machine_distance(&machine, (uint32_t)n, (uint32_t)i, (uint8_t)(11 + rand() % 30));
        }
        for (uint32_t n = 1; n < machine.node_count; n++) /* ids ascend */
            if (machine.nodes[n].id <= machine.nodes[n - 1].id)
                machine.nodes[n].id = machine.nodes[n - 1].id + 1;
        for (int c = 1; c < core; c++)
            if (rand() % 4 == 0)
                core_set_remove(&machine.allowed, c);
        machine.device_node = rand() % 2 ? machine.nodes[rand() % node_count].id : -1;
        machine.quota_cores = rand() % 3 ? 0 : (uint32_t)(1 + rand() % 16);
        for (int d = rand() % 4; d > 0; d--)
            machine_drive(&machine, machine.nodes[rand() % node_count].id);
        core_request asked = request(rand() % 2);
        asked.compute.threads = rand() % 2 ? 0 : (uint64_t)(rand() % 40);
        asked.update.threads = rand() % 2 ? 0 : (uint64_t)(rand() % 40);
        core_plan plan;
        assert_int_equal(topology_place(&machine, &asked, &plan), 0);
        topology_place_memory(&machine, (uint64_t)(rand() % 40) * GIB, 0, &plan);
        const core_group *groups[3] = {&plan.compute, &plan.update, &plan.io};
        for (int g = 0; g < 3; g++) {
            core_set outside;
            core_set_minus(&outside, &groups[g]->cores, &machine.allowed);
            assert_int_equal(core_set_count(&outside), 0);
            assert_true(core_set_count(&groups[g]->cores) > 0);
            assert_true(g == 2 || groups[g]->thread_count > 0);
        }
        assert_true(asked.compute.threads == 0 || !asked.device_is_cpu ||
                    plan.compute.thread_count == asked.compute.threads);
        assert_true((plan.host.spread == ARENA_ANYWHERE) == !core_set_count(&plan.host.nodes));
        for (uint32_t n = 0; n < machine.node_count; n++)
            assert_true(!core_set_has(&plan.host.nodes, machine.nodes[n].id) ||
                        (machine.nodes[n].memory_bytes && machine.nodes[n].memory_is_allowed));
        for (uint32_t n = 0; n < machine.node_count; n++)
            machine.nodes[n].available_bytes = (uint64_t)(rand() % 8) * GIB;
        core_plan other;
        assert_int_equal(topology_place(&machine, &asked, &other), 0);
        assert_int_equal(other.compute.thread_count, plan.compute.thread_count);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_socket),
        cmocka_unit_test(one_core),
        cmocka_unit_test(hyperthreads),
        cmocka_unit_test(two_sockets_gpu_on_second),
        cmocka_unit_test(two_sockets_without_gpu),
        cmocka_unit_test(four_nodes_gpu_on_third),
        cmocka_unit_test(control_group),
        cmocka_unit_test(memory_without_cores),
        cmocka_unit_test(numbers_with_holes),
        cmocka_unit_test(bad_sets),
        cmocka_unit_test(texts_of_sets),
        cmocka_unit_test(any_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
