/* How many calls of CUDA's driver a training step takes. Needs no GPU.
 *
 *   driver_calls JOB MACHINE [RANKS]
 *
 * Plans the job for a machine with GPUs that is described (a file or a member of
 * configs/clusters.json; RANKS: 1) and walks the program of a step. It prints one line for each way
 * to enqueue it:
 *
 *   every op      each op by itself, between two timed events, and followed by a host function
 *   traced        host functions only where the host waits, and a graph for each op that is always
 *                 the same (run.trace)
 *   not traced    events only where another stream or the host waits, and graphs of several ops
 *
 * A call of a kernel op counts as one launch; some launch two kernels. A part of one kernel is
 * launched without a graph, by as many calls. Waits are those at most: none is made for an op that
 * is known to be complete. Collectives count as one call. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "config/config.h"
#include "config/machine.h"
#include "engine/engine.h"
#include "model/costs.h"
#include "setup/setup.h"
#include "swap/stream_plan.h"

static bool may_replay(void *user, const program *prog, const op *item)
{
    return engine_may_replay(user, prog, item);
}

/* Calls of an op's own work. */
static uint64_t op_calls(const struct setup *setup, const op *item)
{
    enum phase phase;
    model_costs costs;
    switch ((enum op_kind)item->kind) {
    case OP_FORWARD:
        phase = PHASE_FORWARD;
        break;
    case OP_RECOMPUTE:
        phase = PHASE_RECOMPUTE;
        break;
    case OP_BACKWARD:
        phase = PHASE_BACKWARD;
        break;
    default:
        return 1;
    }
    model_pass_costs(setup->net, phase, item->stage, item->pass, &costs);
    return costs.call_count > 0 ? costs.call_count : 1;
}

struct way {
    const char *name;
    bool has_graphs, is_timed, reports_all;
};

/* Without a plan: for each op that it depends on, a stream waits for each other stream. */
static uint64_t plain_waits(const program *prog, const bool *serves)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < prog->op_count; i++) {
        const op *item = &prog->ops[i];
        bool waits[LANE_COUNT] = {false};
        for (uint32_t k = 0; serves[item->lane] && k < item->dep_count; k++)
            waits[prog->ops[prog->deps[item->dep_begin + k]].lane] = true;
        for (int kind = 0; kind < LANE_COUNT; kind++)
            count += waits[kind] && serves[kind] && kind != item->lane;
    }
    return count;
}

static int count_way(const struct setup *setup, const bool *serves, const struct way *way)
{
    const program *prog = &setup->set.programs[PROGRAM_STEADY];
    stream_plan_config config = {.serves = serves,
                                 .may_replay = way->has_graphs ? may_replay : NULL,
                                 .user = (void *)(uintptr_t)setup,
                                 .only_single = way->is_timed};
    stream_plan plan;
    stream_calls calls;
    uint64_t works = 0;
    TRY(stream_plan_init(&plan, prog, &config));
    for (uint32_t i = 0; i < prog->op_count; i++) {
        const op *item = &prog->ops[i];
        if (serves[item->lane] && plan.segment_of[i] == PROGRAM_NONE)
            works += op_calls(setup, item);
    }
    stream_plan_count(&plan, serves, way->reports_all ? 1 : ENGINE_GPU_DEPTH, way->is_timed,
                      &calls);
    if (way->reports_all)
        calls.waits = plain_waits(prog, serves) + calls.host_functions;
    uint64_t all =
        works + calls.graph_launches + calls.records + calls.waits + calls.host_functions;
    printf("%-12s %10" PRIu64 " %10" PRIu64 " %10" PRIu64 " %10" PRIu64 " %10" PRIu64 " %10" PRIu64
           "\n",
           way->name, works, calls.graph_launches, calls.records, calls.waits, calls.host_functions,
           all);
    stream_plan_fini(&plan);
    return 0;
}

static int count_calls(const char *job_path, const char *machine_path, uint32_t ranks)
{
    static const struct way ways[] = {{"every op", false, true, true},
                                      {"traced", true, true, false},
                                      {"not traced", true, false, false}};
    static machine on;
    job *asked;
    struct setup *setup = NULL;
    TRY(machine_read(machine_path, &on));
    TRY(job_read(job_path, NULL, NULL, 0, ranks, &asked));
    struct setup_options options = {
        .machine = &on, .is_described = true, .local_world = on.ranks_per_host};
    int rc = setup_create(asked, &options, &setup);
    if (rc == 0) {
        bool serves[LANE_COUNT] = {
            [LANE_H2D] = true, [LANE_D2H] = true, [LANE_COMPUTE] = true, [LANE_COMM] = ranks > 1};
        const program *prog = &setup->set.programs[PROGRAM_STEADY];
        uint64_t ops = 0;
        for (uint64_t i = 0; i < prog->op_count; i++)
            ops += serves[prog->ops[i].lane];
        printf("%s on %s, %u rank%s: %" PRIu64 " ops on the GPU's lanes\n"
               "%-12s %10s %10s %10s %10s %10s %10s\n",
               job_path, machine_path, ranks, ranks == 1 ? "" : "s", ops, "calls a step",
               "launches", "graphs", "records", "waits", "functions", "all");
        for (size_t i = 0; i < sizeof ways / sizeof ways[0] && rc == 0; i++)
            rc = count_way(setup, serves, &ways[i]);
    }
    setup_destroy(setup);
    job_destroy(asked);
    return rc;
}

int main(int argc, char **argv)
{
    if (argc < 3 || argc > 4) {
        fprintf(stderr, "use: driver_calls JOB MACHINE [RANKS]\n");
        return 2;
    }
    uint32_t ranks = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 1;
    if (count_calls(argv[1], argv[2], ranks) == 0)
        return 0;
    fprintf(stderr, "driver_calls: %s\n", err_text());
    return 1;
}
