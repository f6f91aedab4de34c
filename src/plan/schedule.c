/* From serial order to a program: an event-driven simulation with memory.
 *
 *   at each event   complete ops -> free their last buffers
 *                   reserve buffers, in serial order of first use, while the arenas have room
 *                   start, per lane in serial order, the next op whose dependencies are complete and
 *                   whose buffers are reserved; some ops are a queue of their own in their lane
 *                   (enum plani_queue)
 *                   share the machine among what runs (share.c); advance to the next completion
 *
 * Memory that state homed on the device is saved through is reserved but a little ahead of the saves: the
 * link is faster than the drives, and would fill the host with all of that state. Nothing else waits for
 * those saves that does not need what they hold: neither for its memory nor for its turn on the lane.
 *
 * A buffer's place is the lowest address that fits (space.c). Where it takes over the bytes of an
 * earlier buffer, the last uses of that one become dependencies of its first uses. The program's order
 * is the order of simulated starts. Heap scratch, freed on return. */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"
#include "base/tile.h"
#include "plan/plan_internal.h"

/* Memory for what every run of the program has, and for what only runs have that commit. */
enum { QUEUE_ALWAYS, QUEUE_SAVES, QUEUES };

/* An arena: its memory, and the transients that wait for a place in it. */
struct arena_state {
    struct plani_space space; /* transients live in [end of the homes, budget) */
    uint64_t floor_bytes, budget_bytes;
    uint64_t peak_bytes;
    uint32_t peak_buffer;
    uint32_t *queue; /* transients of this arena by first use, those of saves behind all others */
    struct {
        uint64_t next, end; /* in queue */
    } waiting[QUEUES];
};

enum op_state { OP_WAITING, OP_RUNNING, OP_COMPLETE };

struct sim_op {
    struct plani_share share;
    double done;                     /* 0..1 */
    double start, end;               /* seconds */
    uint32_t missing;                /* dependencies not complete */
    uint32_t unreserved;             /* buffers first used here and not reserved yet */
    uint32_t edge_begin, edge_count; /* data dependencies in builder.edges */
    uint8_t state;
};

struct sim {
    plani_builder *b;
    struct sim_op *ops;
    uint32_t *lane_ops[LANE_COUNT][PLANI_QUEUES]; /* op indices in serial order */
    uint64_t lane_count[LANE_COUNT][PLANI_QUEUES], lane_next[LANE_COUNT][PLANI_QUEUES];
    uint32_t running[LANE_COUNT];
    uint32_t running_count;
    uint32_t *uses_left; /* [buffer_count] transients: users not complete */
    uint32_t *out_edges; /* successors by op, CSR */
    uint64_t *out_begin;
    struct arena_state arenas[ARENA_COUNT];
    struct plani_caps caps;
    uint64_t data_edge_count;
    uint64_t oldest;      /* first op not complete, serial; commits do not count */
    uint64_t oldest_save; /* first op not complete that only runs which commit have */
    uint64_t complete_count;
    uint64_t lookahead_ops;
    double now;
};

/* ---- memory --------------------------------------------------------------------------------- */

/* Ops of `users` that no other op of it follows by dependency or lane order. */
static bool is_last_use(const struct sim *s, const struct plani_buffer *held, uint32_t position)
{
    uint32_t idx = held->users[position];
    for (uint32_t j = position + 1; j < held->user_count; j++) {
        uint32_t other = held->users[j];
        if (plani_in_one_order(s->b->job, &s->b->ops[idx], &s->b->ops[other]))
            return false;
        const struct sim_op *o = &s->ops[other];
        for (uint32_t e = 0; e < o->edge_count; e++)
            if (s->b->edges[o->edge_begin + e].from == idx)
                return false;
    }
    return true;
}

static bool is_first_use(const struct sim *s, const struct plani_buffer *fresh, uint32_t position)
{
    uint32_t idx = fresh->users[position];
    const struct sim_op *o = &s->ops[idx];
    for (uint32_t j = 0; j < position; j++) {
        uint32_t other = fresh->users[j];
        if (plani_in_one_order(s->b->job, &s->b->ops[idx], &s->b->ops[other]))
            return false;
        for (uint32_t e = 0; e < o->edge_count; e++)
            if (s->b->edges[o->edge_begin + e].from == other)
                return false;
    }
    return true;
}

/* All last uses of `held` before all first uses of `fresh`, which takes over bytes of it. */
static int order_buffers(void *context, uint32_t held_idx, uint32_t fresh_idx)
{
    struct sim *s = context;
    const struct plani_buffer *held = &s->b->buffers[held_idx];
    const struct plani_buffer *fresh = &s->b->buffers[fresh_idx];
    for (uint32_t i = held->user_count; i-- > 0;) {
        if (!is_last_use(s, held, i))
            continue;
        for (uint32_t j = 0; j < fresh->user_count; j++)
            if (is_first_use(s, fresh, j) &&
                !plani_in_one_order(s->b->job, &s->b->ops[held->users[i]],
                                    &s->b->ops[fresh->users[j]]))
                TRY(plani_add_edge(s->b, held->users[i], fresh->users[j]));
    }
    return 0;
}

static bool is_waited_for(const struct arena_state *arena, int queue)
{
    return arena->waiting[queue].next < arena->waiting[queue].end;
}

static void release(struct sim *s, uint32_t buffer_idx)
{
    const buffer *freed = &s->b->buffers[buffer_idx].base;
    struct arena_state *arena = &s->arenas[freed->arena];
    if (is_waited_for(arena, QUEUE_ALWAYS) || is_waited_for(arena, QUEUE_SAVES))
        plani_space_release(&arena->space, freed->offset_bytes);
}

/* The op that uses the next transient of a queue first. */
static uint32_t next_user(const struct sim *s, const struct arena_state *arena, int queue)
{
    return s->b->buffers[arena->queue[arena->waiting[queue].next]].users[0];
}

/* Gives the next transient of a queue its place; 1: done, 0: there is none now. */
static int reserve_next(struct sim *s, struct arena_state *arena, int queue)
{
    uint32_t idx = arena->queue[arena->waiting[queue].next];
    struct plani_buffer *fresh = &s->b->buffers[idx];
    uint64_t offset;
    if (fresh->users[0] != s->oldest && !plani_caps_allow(&s->caps, idx))
        return 0;
    TRY(plani_space_find(&arena->space, fresh->base.size_bytes, fresh->residue, &offset));
    if (offset == UINT64_MAX)
        return 0;
    uint64_t end = offset + fresh->base.size_bytes;
    TRY(plani_space_take(&arena->space, offset, end, idx, order_buffers, s));
    fresh->base.offset_bytes = offset;
    plani_caps_take(&s->caps, idx);
    if (end > arena->peak_bytes) {
        arena->peak_bytes = end;
        arena->peak_buffer = idx;
    }
    s->ops[fresh->users[0]].unreserved--;
    arena->waiting[queue].next++;
    return 1;
}

/* Reserves what it can in one arena: in serial order, but that nothing waits for a save which is too far
 * ahead of those that have their memory. They give it back before anything needs them, and to saves first:
 * so what went past cannot keep a save from its memory for good. */
static int reserve(struct sim *s, struct arena_state *arena)
{
    bool open = true;
    while (open) {
        int queue = is_waited_for(arena, QUEUE_ALWAYS) ? QUEUE_ALWAYS : QUEUE_SAVES;
        if (!is_waited_for(arena, queue))
            break;
        if (is_waited_for(arena, QUEUE_SAVES) &&
            next_user(s, arena, QUEUE_SAVES) < s->oldest_save + PLANI_LOOKAHEAD_OF_SAVES &&
            next_user(s, arena, QUEUE_SAVES) <= next_user(s, arena, queue))
            queue = QUEUE_SAVES;
        uint32_t first_user = next_user(s, arena, queue);
        if (s->lookahead_ops && first_user >= s->oldest + s->lookahead_ops)
            break;
        if (queue == QUEUE_SAVES && first_user >= s->oldest_save + PLANI_LOOKAHEAD_OF_SAVES)
            break;
        int rc = reserve_next(s, arena, queue);
        if (rc < 0)
            return rc;
        open = rc == 1;
    }
    return 0;
}

/* ---- simulation ------------------------------------------------------------------------------ */

static int queue_of(const op *item)
{
    return item->if_commits ? QUEUE_SAVES : QUEUE_ALWAYS;
}

static int compare_by_first_user(const void *left, const void *right, void *context)
{
    const plani_builder *b = context;
    uint32_t a = *(const uint32_t *)left, c = *(const uint32_t *)right;
    uint32_t first_a = b->buffers[a].users[0], first_c = b->buffers[c].users[0];
    int queue_a = queue_of(&b->ops[first_a]), queue_c = queue_of(&b->ops[first_c]);
    if (queue_a != queue_c)
        return queue_a < queue_c ? -1 : 1;
    if (first_a != first_c)
        return first_a < first_c ? -1 : 1;
    return a < c ? -1 : a > c;
}

static int sim_buffers(struct sim *s, const uint64_t budget_bytes[ARENA_COUNT])
{
    plani_builder *b = s->b;
    s->uses_left = mem_alloc(b->buffer_count, sizeof *s->uses_left, "plan uses");
    if (!s->uses_left)
        return -ENOMEM;
    for (int a = 0; a < ARENA_COUNT; a++) {
        struct arena_state *arena = &s->arenas[a];
        arena->budget_bytes = budget_bytes[a];
        arena->peak_buffer = PROGRAM_NONE;
        arena->queue = mem_alloc(b->buffer_count, sizeof *arena->queue, "plan reserve queue");
        if (!arena->queue)
            return -ENOMEM;
    }
    for (uint64_t i = 0; i < b->buffer_count; i++) {
        struct plani_buffer *item = &b->buffers[i];
        struct arena_state *arena = &s->arenas[item->base.arena];
        if (i < b->home_count) {
            uint64_t end = item->base.offset_bytes + item->base.size_bytes;
            if (end > arena->floor_bytes) {
                arena->floor_bytes = arena->peak_bytes = end;
                arena->peak_buffer = (uint32_t)i;
            }
        } else {
            assert(item->user_count > 0);
            int queue = queue_of(&b->ops[item->users[0]]);
            arena->queue[arena->waiting[QUEUE_SAVES].end++] = (uint32_t)i;
            arena->waiting[QUEUE_ALWAYS].end += queue == QUEUE_ALWAYS;
            s->uses_left[i] = item->user_count;
            s->ops[item->users[0]].unreserved++;
        }
    }
    for (int a = 0; a < ARENA_COUNT; a++) {
        struct arena_state *arena = &s->arenas[a];
        qsort_r(arena->queue, arena->waiting[QUEUE_SAVES].end, sizeof(uint32_t),
                compare_by_first_user, b);
        arena->waiting[QUEUE_SAVES].next = arena->waiting[QUEUE_ALWAYS].end;
        plani_space_init(&arena->space, arena->floor_bytes, arena->budget_bytes);
    }
    return 0;
}

static int sim_init(struct sim *s, plani_builder *b, const uint64_t budget_bytes[ARENA_COUNT],
                    uint64_t lookahead_ops)
{
    memset(s, 0, sizeof *s);
    s->b = b;
    s->lookahead_ops = lookahead_ops;
    s->data_edge_count = b->edge_count;
    TRY(plani_caps_init(&s->caps, b));
    s->ops = mem_alloc(b->op_count, sizeof *s->ops, "plan simulation");
    s->out_begin = mem_alloc(b->op_count + 1, sizeof *s->out_begin, "plan successors");
    s->out_edges = mem_alloc(b->edge_count, sizeof *s->out_edges, "plan successors");
    if (!s->ops || !s->out_begin || !s->out_edges)
        return -ENOMEM;
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        s->running[lane] = PROGRAM_NONE;
        for (int queue = 0; queue < PLANI_QUEUES; queue++) {
            s->lane_ops[lane][queue] = mem_alloc(b->op_count, sizeof(uint32_t), "plan lanes");
            if (!s->lane_ops[lane][queue])
                return -ENOMEM;
        }
    }
    for (uint64_t i = 0; i < b->op_count; i++) {
        plani_demand(&b->job->machine, &b->ops[i].demand, &s->ops[i].share);
        uint8_t lane = b->ops[i].lane;
        enum plani_queue queue = plani_queue_of(b->job, &b->ops[i]);
        s->lane_ops[lane][queue][s->lane_count[lane][queue]++] = (uint32_t)i;
    }
    for (uint64_t e = 0; e < b->edge_count; e++) {
        struct sim_op *to = &s->ops[b->edges[e].to];
        if (to->edge_count++ == 0)
            to->edge_begin = (uint32_t)e;
        to->missing++;
        s->out_begin[b->edges[e].from + 1]++;
    }
    for (uint64_t i = 0; i < b->op_count; i++)
        s->out_begin[i + 1] += s->out_begin[i];
    uint64_t *cursor = mem_alloc(b->op_count, sizeof *cursor, "plan successors");
    if (!cursor)
        return -ENOMEM;
    for (uint64_t e = 0; e < b->edge_count; e++) {
        uint32_t from = b->edges[e].from;
        s->out_edges[s->out_begin[from] + cursor[from]++] = b->edges[e].to;
    }
    mem_free(cursor);
    return sim_buffers(s, budget_bytes);
}

static void sim_fini(struct sim *s)
{
    mem_free(s->ops);
    mem_free(s->out_begin);
    mem_free(s->out_edges);
    mem_free(s->uses_left);
    plani_caps_fini(&s->caps);
    for (int lane = 0; lane < LANE_COUNT; lane++)
        for (int queue = 0; queue < PLANI_QUEUES; queue++)
            mem_free(s->lane_ops[lane][queue]);
    for (int a = 0; a < ARENA_COUNT; a++) {
        plani_space_fini(&s->arenas[a].space);
        mem_free(s->arenas[a].queue);
    }
}

/* A commit holds no memory, so nothing that is behind it waits for it to have some. */
static void skip_complete(struct sim *s)
{
    while (s->oldest < s->b->op_count &&
           (s->ops[s->oldest].state == OP_COMPLETE || s->b->ops[s->oldest].kind == OP_COMMIT))
        s->oldest++;
    while (s->oldest_save < s->b->op_count &&
           (s->ops[s->oldest_save].state == OP_COMPLETE || !s->b->ops[s->oldest_save].if_commits ||
            s->b->ops[s->oldest_save].kind == OP_COMMIT))
        s->oldest_save++;
}

static void complete(struct sim *s, uint32_t idx)
{
    struct sim_op *o = &s->ops[idx];
    o->state = OP_COMPLETE;
    s->complete_count++;
    o->end = s->now;
    s->running[s->b->ops[idx].lane] = PROGRAM_NONE;
    for (uint64_t e = s->out_begin[idx]; e < s->out_begin[idx + 1]; e++)
        s->ops[s->out_edges[e]].missing--;
    const op *item = &s->b->ops[idx];
    for (uint32_t i = 0; i < item->operand_count; i++) {
        uint32_t used = item->operands[i].buffer_idx;
        bool repeated = used < s->b->home_count;
        for (uint32_t j = 0; j < i; j++)
            repeated = repeated || item->operands[j].buffer_idx == used;
        if (!repeated && --s->uses_left[used] == 0) {
            release(s, used);
            plani_caps_give(&s->caps, used);
        }
    }
    skip_complete(s);
}

/* The queue of the lane whose next op can start, of several the one that is first in serial order; or -1. */
static int ready_queue(const struct sim *s, int lane)
{
    int found = -1;
    uint32_t first = 0;
    for (int queue = 0; queue < PLANI_QUEUES; queue++) {
        if (s->lane_next[lane][queue] == s->lane_count[lane][queue])
            continue;
        uint32_t idx = s->lane_ops[lane][queue][s->lane_next[lane][queue]];
        if (s->ops[idx].missing > 0 || s->ops[idx].unreserved > 0 || (found >= 0 && first < idx))
            continue;
        found = queue;
        first = idx;
    }
    return found;
}

/* Starts what can start; returns how many. */
static int start_ready(struct sim *s)
{
    int started = 0;
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        int queue = s->running[lane] == PROGRAM_NONE ? ready_queue(s, lane) : -1;
        if (queue < 0)
            continue;
        uint32_t idx = s->lane_ops[lane][queue][s->lane_next[lane][queue]++];
        s->ops[idx].state = OP_RUNNING;
        s->ops[idx].start = s->now;
        s->running[lane] = idx;
        plani_caps_start(&s->caps, idx);
        started++;
    }
    return started;
}

/* Advances to the next completion. */
static void advance(struct sim *s)
{
    struct plani_share *shares[LANE_COUNT];
    uint32_t indices[LANE_COUNT], count = 0;
    for (int lane = 0; lane < LANE_COUNT; lane++)
        if (s->running[lane] != PROGRAM_NONE) {
            indices[count] = s->running[lane];
            shares[count++] = &s->ops[s->running[lane]].share;
        }
    plani_share_rates(shares, count);
    double step = INFINITY;
    for (uint32_t i = 0; i < count; i++)
        step = fmin(step, (1.0 - s->ops[indices[i]].done) / shares[i]->rate);
    s->now += step;
    for (uint32_t i = 0; i < count; i++) {
        struct sim_op *o = &s->ops[indices[i]];
        o->done += step * o->share.rate;
        if (o->done >= 1.0 - 1e-9)
            complete(s, indices[i]);
    }
}

static int simulate(struct sim *s)
{
    skip_complete(s);
    while (s->complete_count < s->b->op_count) {
        for (int a = 0; a < ARENA_COUNT; a++)
            TRY(reserve(s, &s->arenas[a]));
        start_ready(s);
        bool runs = false;
        for (int lane = 0; lane < LANE_COUNT; lane++)
            runs = runs || s->running[lane] != PROGRAM_NONE;
        if (!runs)
            return err_set(ERR_NO_FIT, "no memory for op %llu of %llu",
                           (unsigned long long)s->oldest, (unsigned long long)s->b->op_count);
        advance(s);
    }
    return 0;
}

/* ---- the program ----------------------------------------------------------------------------- */

static int compare_by_start(const void *left, const void *right, void *context)
{
    const struct sim_op *ops = context;
    uint32_t a = *(const uint32_t *)left, c = *(const uint32_t *)right;
    if (ops[a].start != ops[c].start)
        return ops[a].start < ops[c].start ? -1 : 1;
    return a < c ? -1 : a > c;
}

static int compare_indices(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, c = *(const uint32_t *)right;
    return a < c ? -1 : a > c;
}

/* Dependencies by op, ascending, each once; `place` says where an op of the serial order went. */
static int fill_deps(const plani_builder *b, const uint32_t *place, program *out)
{
    uint64_t *end = mem_alloc(b->op_count + 1, sizeof *end, "program dependencies");
    if (!end)
        return -ENOMEM;
    for (uint64_t e = 0; e < b->edge_count; e++)
        end[place[b->edges[e].to] + 1]++;
    for (uint64_t i = 0; i < b->op_count; i++)
        end[i + 1] += end[i];
    for (uint64_t e = 0; e < b->edge_count;
         e++) /* end[i] runs from the first to the last of op i */
        out->deps[end[place[b->edges[e].to]]++] = place[b->edges[e].from];
    uint64_t first = 0;
    for (uint64_t i = 0; i < b->op_count; i++) {
        op *item = &out->ops[i];
        qsort(out->deps + first, end[i] - first, sizeof *out->deps, compare_indices);
        item->dep_begin = (uint32_t)out->dep_count;
        for (; first < end[i]; first++)
            if (item->dep_count == 0 || out->deps[out->dep_count - 1] != out->deps[first]) {
                assert(out->deps[first] < i);
                out->deps[out->dep_count++] = out->deps[first];
                item->dep_count++;
            }
    }
    mem_free(end);
    return 0;
}

static void fill_buffers(const struct sim *s, program *out)
{
    for (uint64_t i = 0; i < out->buffer_count; i++)
        out->buffers[i] = s->b->buffers[i].base;
    for (uint64_t i = 0; i < out->op_count; i++) {
        const op *item = &out->ops[i];
        for (uint32_t j = 0; j < item->operand_count; j++) {
            buffer *used = &out->buffers[item->operands[j].buffer_idx];
            if (used->is_home)
                continue;
            if (used->producer == PROGRAM_NONE)
                used->producer = (uint32_t)i;
            used->last_reader = (uint32_t)i;
        }
    }
}

/* What the simulation says of the program as a whole. */
static void fill_figures(const struct sim *s, enum program_kind kind, program *out)
{
    out->kind = kind;
    out->world = plani_world(s->b->job);
    out->predicted_ns = (uint64_t)llround(s->now * 1e9);
    for (int a = 0; a < ARENA_COUNT; a++) {
        out->budget_bytes[a] = s->arenas[a].budget_bytes;
        out->peak_bytes[a] = s->arenas[a].peak_bytes;
        out->peak_buffer[a] = s->arenas[a].peak_buffer;
    }
}

static int fill_program(const struct sim *s, program *out)
{
    const plani_builder *b = s->b;
    out->op_count = b->op_count;
    out->buffer_count = b->buffer_count;
    out->home_count = b->home_count;
    out->ops = mem_alloc(b->op_count, sizeof *out->ops, "program ops");
    out->buffers = mem_alloc(b->buffer_count, sizeof *out->buffers, "program buffers");
    out->deps = mem_alloc(b->edge_count, sizeof *out->deps, "program dependencies");
    uint32_t *order = mem_alloc(b->op_count, sizeof *order, "program order");
    uint32_t *place = mem_alloc(b->op_count, sizeof *place, "program order");
    int rc = out->ops && out->buffers && out->deps && order && place ? 0 : -ENOMEM;
    for (uint64_t i = 0; rc == 0 && i < b->op_count; i++)
        order[i] = (uint32_t)i;
    if (rc == 0) {
        qsort_r(order, b->op_count, sizeof *order, compare_by_start, s->ops);
        for (uint64_t i = 0; i < b->op_count; i++)
            place[order[i]] = (uint32_t)i;
    }
    for (uint64_t i = 0; rc == 0 && i < b->op_count; i++) {
        op *item = &out->ops[i];
        *item = b->ops[order[i]];
        item->predicted_start_ns = (uint64_t)llround(s->ops[order[i]].start * 1e9);
        item->predicted_end_ns = (uint64_t)llround(s->ops[order[i]].end * 1e9);
        out->lane_bytes[item->lane] += op_moved_bytes(item);
        out->lane_busy_ns[item->lane] += item->predicted_end_ns - item->predicted_start_ns;
    }
    if (rc == 0)
        rc = fill_deps(b, place, out);
    if (rc == 0)
        fill_buffers(s, out);
    mem_free(order);
    mem_free(place);
    return rc;
}

int plani_schedule(plani_builder *b, enum program_kind kind,
                   const uint64_t budget_bytes[ARENA_COUNT], uint64_t lookahead_ops, bool whole,
                   program *out)
{
    memset(out, 0, sizeof *out);
    struct sim s;
    int rc = sim_init(&s, b, budget_bytes, lookahead_ops);
    if (rc == 0)
        rc = simulate(&s);
    if (rc == 0 && whole)
        rc = fill_program(&s, out);
    if (rc == 0)
        fill_figures(&s, kind, out);
    else
        program_fini(out);
    b->edge_count = s.data_edge_count; /* a next try starts from the data dependencies */
    sim_fini(&s);
    return rc;
}
