/* Places: which bytes each transient gets, and what must be over before it may use them.
 *
 * A walk through the serial order, one op at a time: at each op buffers are reserved in the order
 * of their first use, as far ahead as the arena has room (or `lookahead_ops`), and given back
 * after their last use. A buffer's place is the lowest address that fits (space.c). Where it takes
 * over the bytes of an earlier buffer, the last uses of that one become dependencies of its first
 * uses.
 *
 *   serial order   ..., op 40, op 41, ...
 *                  A's last use | B is reserved and gets A's bytes
 *                  B's first use, op 57, waits for op 40, but not for op 56
 *
 * Nothing here depends on time. Every dependency goes forward in the serial order, so no order of
 * ops that keeps them deadlocks, and the earliest op that is not complete never waits for memory.
 * Where even the op at hand finds no place, because what was reserved ahead has left none large
 * enough, the arena is walked again with a shorter lookahead. With a lookahead of 1 it needs what
 * the serial order needs.
 *
 * Buffers that are carried from program to program have given places (carry.c). Those carried in
 * have them from the start. Those carried out wait until their place is free, and nothing waits for
 * them. The carried region is free by the first op that fills it: only transients whose uses all
 * end before that op may lie there, and they lie elsewhere if there is room.
 *
 *   uses end before the first fill    beside the region, or else in it
 *   other transients                  beside the region
 *
 * State homed in memory is saved through transients. The link is faster than the drives and would
 * fill the host with all of that state, so their memory is reserved only a little ahead of the
 * saves. Nothing else waits for it in the queue. Heap scratch, freed on return. */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "plan/simulate/simulate_internal.h"

/* Memory that every run of the program uses; memory that only committing runs use; and what is
 * carried out. */
enum { QUEUE_ALWAYS, QUEUE_SAVES, QUEUE_CARRIED, QUEUES };

struct listed { /* a buffer's last uses in `last_uses`; count 0: they are not listed yet */
    uint64_t begin;
    uint32_t count;
};

struct list { /* transients by first use: those from `next` on have no place yet */
    uint64_t next, begin, end;
};

/* One arena: its memory, and the transients that wait for a place in it. */
struct walk {
    plani_builder *b;
    const struct plani_graph *graph;
    struct plani_first_use *sorted; /* of all transients that are used */
    /* In `sorted`, by arena; the last list has those that are carried in. */
    struct list lists[TIER_COUNT][QUEUES + 1], *waiting;
    int arena;
    uint64_t floor_bytes, budget_bytes, peak_bytes;
    uint32_t floor_buffer, peak_buffer;
    struct plani_space space; /* transients live in [end of the homes, budget) */
    uint64_t carried_end;     /* of the carried region, which begins at the floor; 0: none */
    uint64_t first_fill;      /* the first op that uses what is carried out */
    uint32_t *uses_left;      /* [buffer_count] of the arena's transients: users ahead */
    uint32_t *uses;           /* the arena's transients that ops use, op by op */
    uint64_t *use_begin;      /* [op_count + 2] where those of op i begin in `uses` */
    uint32_t *marks;          /* [2 * op_count] scratch of outer_uses */
    uint32_t *first_uses;     /* [op_count] of the buffer fresh_idx */
    uint32_t fresh_idx, first_count;
    uint32_t *last_uses; /* of the buffers whose bytes others took over, one list after the other */
    uint64_t last_count;
    struct listed *listed; /* [buffer_count] */
    uint32_t stamp;
    uint64_t at;      /* the op at hand */
    uint64_t at_save; /* the first op from there on that only committing runs have */
    uint64_t lookahead_ops;
    uint64_t reach_ops; /* the farthest from the op at hand that a transient got its place */
    bool is_stuck;      /* the next transients have no place until something is released */
    bool only_fits;     /* places are looked for alone: nothing becomes a dependency */
};

/* Writes into `list` the buffer's last uses (or its first): those that no other of its uses follows
 * (precedes), by dependency or on the compute lane. Returns how many. */
static uint32_t outer_uses(struct walk *w, const struct plani_buffer *item, bool last,
                           uint32_t *list)
{
    uint32_t *member = w->marks, *inner = w->marks + w->b->op_count;
    uint32_t stamp = ++w->stamp, chained = PROGRAM_NONE, count = 0;
    for (uint32_t i = 0; i < item->user_count; i++)
        member[item->users[i]] = stamp;
    for (uint32_t i = 0; i < item->user_count; i++) {
        uint32_t user = item->users[i];
        for (uint64_t e = w->graph->in_begin[user]; e < w->graph->in_begin[user + 1]; e++)
            if (member[w->b->edges[e].from] == stamp)
                inner[last ? w->b->edges[e].from : user] = stamp;
        if (!w->b->briefs[user].is_chained)
            continue;
        if (chained != PROGRAM_NONE)
            inner[last ? chained : user] = stamp;
        if (last || chained == PROGRAM_NONE)
            chained = user;
    }
    for (uint32_t i = 0; i < item->user_count; i++)
        if (inner[item->users[i]] != stamp)
            list[count++] = item->users[i];
    return count;
}

/* Where the buffer's last uses are listed. Many smaller ones may take over the bytes of a large
 * one. */
static struct listed list_last_uses(struct walk *w, uint32_t idx)
{
    struct listed *found = &w->listed[idx];
    if (found->count == 0) {
        found->begin = w->last_count;
        found->count = outer_uses(w, &w->b->buffers[idx], true, w->last_uses + found->begin);
        w->last_count += found->count;
    }
    return *found;
}

/* Orders all last uses of `held` before all first uses of `fresh`, which takes over bytes of it. */
static int order_buffers(void *context, uint32_t held_idx, uint32_t fresh_idx)
{
    struct walk *w = context;
    const struct listed before = list_last_uses(w, held_idx);
    if (fresh_idx != w->fresh_idx) {
        w->first_count = outer_uses(w, &w->b->buffers[fresh_idx], false, w->first_uses);
        w->fresh_idx = fresh_idx;
    }
    for (uint64_t i = before.begin; i < before.begin + before.count; i++)
        for (uint32_t j = 0; j < w->first_count; j++)
            if (!plani_in_one_order(w->b, w->last_uses[i], w->first_uses[j]))
                TRY(plani_add_edge(w->b, w->last_uses[i], w->first_uses[j]));
    return 0;
}

static bool is_waited_for(const struct walk *w, int queue)
{
    return w->waiting[queue].next < w->waiting[queue].end;
}

/* The op that uses the next transient of a queue first. */
static uint32_t next_user(const struct walk *w, int queue)
{
    return w->sorted[w->waiting[queue].next].op_idx;
}

/* Finds a place for a transient; UINT64_MAX: there is none now. */
static int find_place(struct walk *w, const struct plani_buffer *fresh, uint64_t *offset)
{
    uint64_t bytes = fresh->base.size_bytes;
    if (fresh->base.carried) {
        bool is_free = plani_space_is_free(&w->space, fresh->base.offset_bytes,
                                           fresh->base.offset_bytes + bytes);
        *offset = is_free ? fresh->base.offset_bytes : UINT64_MAX;
        return 0;
    }
    TRY(plani_space_find(&w->space, bytes, fresh->residue, w->carried_end, offset));
    if (*offset == UINT64_MAX && w->carried_end > 0 &&
        fresh->users[fresh->user_count - 1] < w->first_fill)
        return plani_space_find(&w->space, bytes, fresh->residue, 0, offset);
    return 0;
}

/* Gives a transient its place; 1: done, 0: there is none now. */
static int reserve_one(struct walk *w, uint32_t idx)
{
    struct plani_buffer *fresh = &w->b->buffers[idx];
    uint64_t offset;
    TRY(find_place(w, fresh, &offset));
    if (offset == UINT64_MAX)
        return 0;
    uint64_t end = offset + fresh->base.size_bytes;
    TRY(plani_space_take(&w->space, offset, end, idx, w->only_fits ? NULL : order_buffers, w));
    assert(offset >= w->floor_bytes && end <= w->budget_bytes);
    fresh->base.offset_bytes = offset;
    w->uses_left[idx] = fresh->user_count;
    if (end > w->peak_bytes) {
        w->peak_bytes = end;
        w->peak_buffer = idx;
    }
    return 1;
}

/* The same for the next one of a queue. */
static int reserve_next(struct walk *w, int queue)
{
    const struct plani_first_use next = w->sorted[w->waiting[queue].next];
    int rc = reserve_one(w, next.buffer_idx);
    if (rc > 0) {
        w->reach_ops = size_max(w->reach_ops, next.op_idx - size_min(w->at, next.op_idx));
        w->waiting[queue].next++;
    }
    return rc;
}

/* True if the next transient of the queue is used beyond the lookahead. */
static bool is_beyond(const struct walk *w, int queue)
{
    return w->lookahead_ops && next_user(w, queue) >= w->at + w->lookahead_ops;
}

/* Reserves what is carried out and used before `until`, as far as its place is free. */
static int reserve_carried(struct walk *w, uint64_t until)
{
    int rc = 1;
    while (rc > 0 && is_waited_for(w, QUEUE_CARRIED) && !is_beyond(w, QUEUE_CARRIED) &&
           next_user(w, QUEUE_CARRIED) <= until)
        rc = reserve_next(w, QUEUE_CARRIED);
    return rc < 0 ? rc : 0;
}

/* Reserves all it can, in serial order; but no transient waits for the transient of a save that is
 * too far ahead of the saves that have their memory. */
static int reserve(struct walk *w)
{
    uint64_t saves_end = w->at_save + plani_saves_ahead(w->b);
    for (;;) {
        int queue = is_waited_for(w, QUEUE_ALWAYS) ? QUEUE_ALWAYS : QUEUE_SAVES;
        TRY(reserve_carried(w, is_waited_for(w, queue) ? next_user(w, queue) : UINT64_MAX));
        if (!is_waited_for(w, queue))
            return 0;
        if (is_waited_for(w, QUEUE_SAVES) && next_user(w, QUEUE_SAVES) < saves_end &&
            next_user(w, QUEUE_SAVES) <= next_user(w, queue))
            queue = QUEUE_SAVES;
        if (is_beyond(w, queue) || (queue == QUEUE_SAVES && next_user(w, queue) >= saves_end))
            return 0;
        int rc = reserve_next(w, queue);
        w->is_stuck = rc == 0 && !is_waited_for(w, QUEUE_SAVES);
        if (rc <= 0)
            return rc;
    }
}

static void release(struct walk *w, const buffer *item)
{
    w->is_stuck = false;
    plani_space_release(&w->space, item->offset_bytes, item->offset_bytes + item->size_bytes);
}

static int no_memory_for(const plani_builder *b, uint64_t op_idx)
{
    return err_set(ERR_NO_FIT, "no memory for op %llu of %llu", (unsigned long long)op_idx,
                   (unsigned long long)b->op_count);
}

/* Leaves the op at hand: what it used last becomes free. ERR_NO_FIT where a buffer had no place. */
static int leave(struct walk *w)
{
    for (uint64_t i = w->use_begin[w->at]; i < w->use_begin[w->at + 1]; i++) {
        uint32_t used = w->uses[i];
        if (w->uses_left[used] == 0)
            return no_memory_for(w->b, w->at);
        bool is_over =
            --w->uses_left[used] == 0 && !(w->b->buffers[used].base.carried & CARRIED_OUT);
        if (is_over && (is_waited_for(w, QUEUE_ALWAYS) || is_waited_for(w, QUEUE_SAVES) ||
                        is_waited_for(w, QUEUE_CARRIED)))
            release(w, &w->b->buffers[used].base);
    }
    return 0;
}

static int walk_ops(struct walk *w)
{
    const plani_builder *b = w->b;
    for (w->at = w->at_save = 0; w->at < b->op_count; w->at++) {
        while (w->at_save < b->op_count &&
               (w->at_save < w->at || !b->briefs[w->at_save].if_commits))
            w->at_save++;
        /* Places change only where something is released, which no op does that uses nothing here;
         * but saves may begin to go first. */
        bool uses_any = w->use_begin[w->at] < w->use_begin[w->at + 1];
        if (!w->is_stuck && (uses_any || is_waited_for(w, QUEUE_SAVES)))
            TRY(reserve(w));
        TRY(leave(w));
        if (w->at % PLANI_OPS_OF_A_NOTE == 0)
            plani_note_work(b->job, NULL, 0);
    }
    return 0;
}

/* Gives what is carried into the program, or through it, its place. */
static int place_carried_in(struct walk *w)
{
    const plani_builder *b = w->b;
    for (uint64_t i = b->home_count; i < b->buffer_count && w->carried_end > 0; i++) {
        const buffer *item = &b->buffers[i].base;
        if (item->arena != w->arena || !(item->carried & CARRIED_IN))
            continue;
        int rc = reserve_one(w, (uint32_t)i);
        if (rc <= 0)
            return rc < 0 ? rc : err_set(ERR_NO_FIT, "no memory for what is carried in");
    }
    return 0;
}

/* Walks the arena with the lookahead. */
static int walk_with(struct walk *w, uint64_t lookahead_ops)
{
    plani_space_init(&w->space, w->floor_bytes, w->budget_bytes);
    for (int queue = 0; queue < QUEUES; queue++)
        w->waiting[queue].next = w->waiting[queue].begin;
    w->lookahead_ops = lookahead_ops;
    w->reach_ops = 0;
    w->is_stuck = false;
    w->peak_bytes = w->floor_bytes;
    w->peak_buffer = w->floor_buffer;
    memset(w->uses_left, 0, (w->b->buffer_count + 1) * sizeof *w->uses_left);
    int rc = place_carried_in(w);
    if (rc == 0)
        rc = walk_ops(w);
    plani_space_fini(&w->space);
    return rc;
}

/* Lists by op the transients of the arena that it uses. */
static void fill_uses(struct walk *w)
{
    const plani_builder *b = w->b;
    uint64_t *begin = w->use_begin;
    const uint64_t first = w->waiting[0].begin, last = w->waiting[QUEUES].end;
    memset(begin, 0, (b->op_count + 2) * sizeof *begin);
    for (uint64_t i = first; i < last; i++) {
        const struct plani_buffer *item = &b->buffers[w->sorted[i].buffer_idx];
        for (uint32_t u = 0; u < item->user_count; u++)
            begin[item->users[u] + 2]++;
    }
    for (uint64_t i = 0; i <= b->op_count; i++)
        begin[i + 1] += begin[i];
    for (uint64_t i = first; i < last; i++) {
        const struct plani_buffer *item = &b->buffers[w->sorted[i].buffer_idx];
        for (uint32_t u = 0; u < item->user_count; u++)
            w->uses[begin[item->users[u] + 1]++] = w->sorted[i].buffer_idx;
    }
}

/* Walks the arena with the longest lookahead of the ladder that fits. */
static int walk_arena(struct walk *w, uint64_t lookahead_most)
{
    plani_builder *b = w->b;
    const uint64_t edge_count = b->edge_count;
    uint64_t lookahead = lookahead_most ? lookahead_most : size_min(2 * b->op_count, 8192);
    fill_uses(w);
    int rc = walk_with(w, lookahead_most);
    if (rc != ERR_NO_FIT || lookahead_most == 1)
        return rc;
    b->edge_count = edge_count;
    uint64_t reach = w->reach_ops; /* any longer lookahead fails in the same way */
    const bool only_fits = w->only_fits;
    w->only_fits = true;  /* dependencies are made once, when it is known what fits */
    rc = walk_with(w, 1); /* where the serial order does not fit, no longer lookahead does */
    bool is_sought = rc == 0;
    while (is_sought && lookahead > 1) {
        lookahead = lookahead > 8 ? lookahead / 2 : lookahead - 1;
        if (lookahead > reach)
            continue;
        rc = walk_with(w, lookahead);
        is_sought = rc == ERR_NO_FIT;
        reach = w->reach_ops;
    }
    w->only_fits = only_fits;
    return rc == 0 && !only_fits ? walk_with(w, lookahead) : rc;
}

int plani_check_room(const plani_builder *b, const uint64_t budget_bytes[TIER_COUNT])
{
    uint64_t live[TIER_COUNT] = {0}, stride = b->op_count + 2;
    uint64_t *more = mem_alloc(TIER_COUNT * stride, sizeof *more, "plan room");
    if (!more)
        return -ENOMEM;
    for (uint64_t i = 0; i < b->home_count; i++) {
        const buffer *item = &b->buffers[i].base;
        live[item->arena] = size_max(live[item->arena], item->offset_bytes + item->size_bytes);
    }
    for (uint64_t i = b->home_count; i < b->buffer_count; i++) {
        const struct plani_buffer *item = &b->buffers[i];
        assert(item->user_count > 0 || item->base.carried);
        if (item->user_count == 0)
            continue;
        uint64_t *of_arena = more + item->base.arena * stride;
        of_arena[item->users[0]] += item->base.size_bytes;
        of_arena[item->users[item->user_count - 1] + 1] -= item->base.size_bytes; /* may wrap */
    }
    int rc = 0;
    for (int a = 0; a < TIER_COUNT && rc == 0; a++)
        for (uint64_t i = 0; i < b->op_count && rc == 0; i++) {
            live[a] += more[a * stride + i];
            if (live[a] > budget_bytes[a])
                rc = no_memory_for(b, i);
        }
    mem_free(more);
    return rc;
}

/* The list that the transient belongs to. */
static struct list *list_of(struct walk *w, const struct plani_first_use *first)
{
    const buffer *item = &w->b->buffers[first->buffer_idx].base;
    int queue = w->b->briefs[first->op_idx].if_commits ? QUEUE_SAVES : QUEUE_ALWAYS;
    if (item->carried) /* what is carried in has its place from the start */
        queue = item->carried & CARRIED_IN ? QUEUES : QUEUE_CARRIED;
    return &w->lists[item->arena][queue];
}

/* Lists all transients that are used, by arena, then by queue, then by first use, then by index. */
static void sort_transients(struct walk *w)
{
    const plani_builder *b = w->b;
    uint64_t count = 0;
    for (uint64_t i = 0; i < b->first_use_count; i++)
        list_of(w, &b->first_uses[i])->end++; /* counts for now */
    for (int a = 0; a < TIER_COUNT; a++)
        for (int queue = 0; queue <= QUEUES; queue++) {
            struct list *list = &w->lists[a][queue];
            list->begin = count;
            count += list->end;
            list->end = list->begin;
        }
    for (uint64_t i = 0; i < count; i++)
        w->sorted[list_of(w, &b->first_uses[i])->end++] = b->first_uses[i];
}

static int walk_init(struct walk *w)
{
    const plani_builder *b = w->b;
    w->use_begin = mem_alloc(b->op_count + 2, sizeof *w->use_begin, "plan uses");
    w->uses = mem_alloc(b->use_count + 1, sizeof *w->uses, "plan uses");
    w->uses_left = mem_alloc(b->buffer_count + 1, sizeof *w->uses_left, "plan uses");
    w->marks = mem_alloc(2 * b->op_count + 1, sizeof *w->marks, "plan reserve");
    w->first_uses = mem_alloc(b->op_count + 1, sizeof *w->first_uses, "plan reserve");
    w->last_uses = mem_alloc(b->use_count + 1, sizeof *w->last_uses, "plan reserve");
    w->listed = mem_alloc(b->buffer_count + 1, sizeof *w->listed, "plan reserve");
    w->sorted = mem_alloc(b->first_use_count + 1, sizeof *w->sorted, "plan reserve queue");
    if (!w->uses_left || !w->marks || !w->first_uses || !w->last_uses || !w->listed || !w->sorted ||
        !w->use_begin || !w->uses)
        return -ENOMEM;
    sort_transients(w);
    return 0;
}

/* The carried region of the arena, and when it is filled first: never by a program that uses it
 * only; always in one that keeps off it. */
static void find_carried(struct walk *w)
{
    const plani_builder *b = w->b;
    w->first_fill = UINT64_MAX;
    for (uint64_t i = b->home_count; i < b->buffer_count && b->set->carried_count > 0; i++) {
        const struct plani_buffer *item = &b->buffers[i];
        if (!item->base.carried || item->base.arena != w->arena)
            continue;
        w->carried_end = b->set->carried_end;
        if (item->base.carried == CARRIED_THROUGH)
            w->first_fill = 0;
        else if (item->base.carried & CARRIED_OUT)
            w->first_fill = size_min(w->first_fill, item->users[0]);
    }
}

static void begin_arena(struct walk *w, int arena)
{
    const plani_builder *b = w->b;
    w->arena = arena;
    w->waiting = w->lists[arena];
    w->floor_bytes = 0;
    w->floor_buffer = PROGRAM_NONE;
    w->carried_end = w->first_fill = 0;
    for (uint64_t i = 0; i < b->home_count; i++) {
        const buffer *item = &b->buffers[i].base;
        uint64_t end = item->offset_bytes + item->size_bytes;
        if (item->arena == arena && end > w->floor_bytes) {
            w->floor_bytes = end;
            w->floor_buffer = (uint32_t)i;
        }
    }
    find_carried(w);
}

int plani_reserve(plani_builder *b, const struct plani_graph *graph,
                  const uint64_t budget_bytes[TIER_COUNT], const uint64_t lookahead_ops[TIER_COUNT],
                  bool only_fits, struct plani_peaks *peaks)
{
    struct walk w = {.b = b, .graph = graph, .only_fits = only_fits, .fresh_idx = PROGRAM_NONE};
    int rc = walk_init(&w);
    for (int a = 0; a < TIER_COUNT && rc == 0; a++) {
        begin_arena(&w, a);
        w.budget_bytes = budget_bytes[a];
        w.peak_bytes = w.floor_bytes;
        w.peak_buffer = w.floor_buffer;
        if (w.floor_bytes > w.budget_bytes)
            rc = err_set(ERR_NO_FIT, "homes do not fit");
        else if (w.waiting[0].begin < w.waiting[QUEUES - 1].end || w.carried_end > 0)
            rc = walk_arena(&w, lookahead_ops[a]);
        peaks->bytes[a] = w.peak_bytes;
        peaks->buffer[a] = w.peak_buffer;
    }
    mem_free(w.uses_left);
    mem_free(w.use_begin);
    mem_free(w.uses);
    mem_free(w.marks);
    mem_free(w.first_uses);
    mem_free(w.last_uses);
    mem_free(w.listed);
    mem_free(w.sorted);
    return rc;
}
