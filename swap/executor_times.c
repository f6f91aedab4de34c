/* Times and counters of a run: what each lane did, and which lane the cores waited for. Called by
 * executor.c on its thread. */
#include <string.h>

#include "base/log.h"
#include "base/size.h"
#include "swap/executor_internal.h"
#include "swap/program_internal.h"

/* Idle time of the cores below this is the hand-over between two ops, not a wait for a lane. */
enum { STALL_NS_MIN = 2000 };

/* True for lanes whose idle time counts as waiting: the worker that computes, and updates if that
 * worker makes them too. A separate worker for updates naturally waits for reads; only computing
 * that waits for it counts. */
static bool is_cores_lane(const executor *self, uint8_t kind)
{
    return kind == LANE_COMPUTE ||
           (kind == LANE_UPDATE &&
            (!self->lanes[LANE_COMPUTE] || swapi_same_worker(self, LANE_COMPUTE, LANE_UPDATE)));
}

/* The lane whose op ended last within the cores' idle time before `request`: that is what they
 * waited for. LANE_COUNT if only their own work ended in that time. A GPU's copies share the lane
 * object with computing, but waiting for them counts. */
static uint8_t find_stall_lane(const executor *self, const lane_request *request, uint64_t stall_ns)
{
    const program *prog = self->now->prog;
    const op *item = request->item;
    uint64_t idle_since_ns = request->start_ns - stall_ns;
    uint64_t latest_ns = idle_since_ns;
    uint8_t stall_lane = LANE_COUNT;
    for (uint32_t k = 0; k < item->dep_count; k++) {
        uint32_t dep = prog->deps[item->dep_begin + k];
        uint8_t dep_lane = prog->ops[dep].lane;
        if (self->states[dep] != SWAPI_DONE || is_cores_lane(self, dep_lane) ||
            self->requests[dep].end_ns <= latest_ns)
            continue;
        latest_ns = self->requests[dep].end_ns;
        stall_lane = dep_lane;
    }
    return stall_lane;
}

static uint16_t event_part(const op *item)
{
    uint32_t part = item->micro_batch != PROGRAM_NONE ? item->micro_batch : item->tile;
    return part < UINT16_MAX ? (uint16_t)part : UINT16_MAX;
}

void swapi_record_done(executor *self, const lane_request *request)
{
    const op *item = request->item;
    uint64_t bytes = op_moved_bytes(item);
    uint64_t stall_ns = 0;
    uint8_t stall_lane = LANE_COUNT;
    self->totals[item->lane].op_count++;
    self->totals[item->lane].bytes += bytes;
    if (is_cores_lane(self, item->lane)) {
        /* The worker may have been idle since before this run, which is no wait for a lane. */
        uint64_t in_run_ns =
            request->start_ns > self->run_start_ns ? request->start_ns - self->run_start_ns : 0;
        stall_ns = size_min(request->wait_ns, in_run_ns);
        if (stall_ns >= STALL_NS_MIN)
            stall_lane = find_stall_lane(self, request, stall_ns);
        if (stall_lane != LANE_COUNT)
            self->totals[stall_lane].stall_ns += stall_ns;
        self->cores_end_ns = size_max(self->cores_end_ns, request->end_ns);
    }
    if (self->last_op_idx == PROGRAM_NONE ||
        request->end_ns > self->requests[self->last_op_idx].end_ns)
        self->last_op_idx = request->op_idx;
    if (!self->ring)
        return;
    trace_event event = {
        .start_ns = request->start_ns,
        .end_ns = request->end_ns,
        .bytes = bytes,
        .step = self->step,
        .op_idx = request->op_idx,
        .unit = item->unit,
        .micro_batch_or_tile = event_part(item),
        .lane = item->lane,
        .kind = item->kind,
        .program = (uint8_t)self->now->prog->kind,
        .stall_lane = stall_lane,
        .stall_is_hand_over = stall_ns > 0 && stall_lane == LANE_COUNT,
        .stall_ns = stall_ns,
        .paused_ns = request->paused_ns,
    };
    trace_record(self->ring, &event);
}

/* The length of the union of the intervals of the lane's ops, without their pauses. They are nearly
 * sorted by start, because an op can only overtake those in flight with it. So an insertion sort
 * costs ops times depth. */
static uint64_t lane_busy_ns(executor *self, int kind)
{
    const swapi_prepared *now = self->now;
    const lane_request *requests = self->requests;
    uint64_t count = 0;
    for (uint64_t i = now->lane_begin[kind]; i < now->lane_begin[kind + 1]; i++)
        if (self->states[now->lane_ops[i]] == SWAPI_DONE) /* not skipped */
            self->order[count++] = now->lane_ops[i];
    for (uint64_t i = 1; i < count; i++) {
        uint32_t moved = self->order[i];
        uint64_t at = i;
        for (; at > 0 && requests[self->order[at - 1]].start_ns > requests[moved].start_ns; at--)
            self->order[at] = self->order[at - 1];
        self->order[at] = moved;
    }
    uint64_t busy_ns = 0, covered_ns = 0;
    for (uint64_t i = 0; i < count; i++) {
        const lane_request *request = &requests[self->order[i]];
        uint64_t from_ns = size_max(request->start_ns, covered_ns);
        if (request->end_ns > from_ns)
            busy_ns += request->end_ns - from_ns - request->paused_ns;
        covered_ns = size_max(covered_ns, request->end_ns);
    }
    return busy_ns;
}

void swapi_finish_totals(executor *self, run_totals *totals)
{
    totals->start_ns = self->run_start_ns;
    totals->end_ns = clock_ns();
    for (int kind = 0; kind < LANE_COUNT; kind++)
        self->totals[kind].busy_ns = lane_busy_ns(self, kind);
    if (self->last_op_idx != PROGRAM_NONE) {
        /* After their last op the cores wait for the op that ends the run. */
        const lane_request *last = &self->requests[self->last_op_idx];
        uint64_t idle_since_ns = size_max(self->cores_end_ns, self->run_start_ns);
        if (last->end_ns > idle_since_ns + STALL_NS_MIN)
            self->totals[last->item->lane].stall_ns += last->end_ns - idle_since_ns;
    }
    memcpy(totals->lanes, self->totals, sizeof totals->lanes);
}
