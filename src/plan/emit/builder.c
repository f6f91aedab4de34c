/* The builder: ops in serial order, with the data dependencies that follow from the bytes they
 * touch. One thread; heap memory, freed by plani_builder_fini. Failures stick in b->error, so that
 * emitting code reads straight. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"
#include "base/tile.h"
#include "plan/emit/emit_internal.h"

enum { FEWEST = 1024 };

/* Grows an array to hold one more element; 0 or -ENOMEM. */
static int grow(void **array, uint64_t count, uint64_t *capacity, size_t elem_bytes,
                const char *tag)
{
    if (count < *capacity)
        return 0;
    uint64_t wanted = *capacity ? *capacity * 2 : FEWEST;
    void *fresh = mem_resize(*array, wanted, elem_bytes, tag);
    if (!fresh)
        return -ENOMEM;
    *array = fresh;
    *capacity = wanted;
    return 0;
}

/* Programs index ops, buffers and dependencies with 32 bits; PROGRAM_NONE stands for none. */
static int check_index(const plani_builder *b, uint64_t count, const char *what)
{
    if (count < PROGRAM_NONE - 1)
        return 0;
    return err_set(ERR_CONFIG,
                   "a program of %" PRIu64 " ops and more has over %" PRIu64
                   " %s, more than 32 bits count: lower gradient_accumulation_steps (now %" PRIu32
                   ") or raise schedule.tile_elems (now %" PRIu64 ")",
                   b->op_count, count, what, b->job->micro_batch_count, b->set->tile_elems);
}

int plani_builder_begin(plani_builder *b, const plan_job *job, const plan_set *set,
                        const plani_layout *layout, uint32_t held_stages)
{
    plani_builder_end(b);
    b->job = job;
    b->set = set;
    b->held_stages = held_stages;
    b->commit_op = PROGRAM_NONE;
    b->carried_in = b->carried_out = PROGRAM_NONE;
    if (b->buffer_capacity < layout->count + 1) {
        uint64_t wanted = layout->count + FEWEST;
        void *fresh = mem_alloc(wanted, sizeof *b->buffers, "plan buffers");
        if (!fresh)
            return -ENOMEM;
        mem_free(b->buffers);
        b->buffers = fresh;
        b->buffer_capacity = wanted;
    }
    for (uint64_t i = 0; i < layout->count; i++)
        b->buffers[i] =
            (struct plani_buffer){.base = layout->buffers[i], .residue = layout->residues[i]};
    b->buffer_count = b->home_count = layout->count;
    memcpy(b->home_bytes, layout->end_bytes, sizeof b->home_bytes);
    memset(b->room_bytes, 0xff, sizeof b->room_bytes);
    return 0;
}

void plani_builder_limit(plani_builder *b, const uint64_t room_bytes[TIER_COUNT])
{
    memcpy(b->room_bytes, room_bytes, sizeof b->room_bytes);
}

void plani_builder_end(plani_builder *b)
{
    plani_pool_fini(&b->lists);
    mem_free(b->begun_tiles);
    plani_graph_destroy(b->graph);
    memset(b, 0, offsetof(plani_builder, ops));
}

void plani_builder_fini(plani_builder *b)
{
    plani_builder_end(b);
    mem_free(b->ops);
    mem_free(b->briefs);
    mem_free(b->buffers);
    mem_free(b->edges);
    mem_free(b->first_uses);
    *b = (plani_builder){0};
}

uint32_t plani_transient(plani_builder *b, enum tier arena, uint64_t size_bytes, uint64_t residue,
                         enum state_kind kind, uint32_t unit)
{
    if (b->error < 0)
        return 0;
    b->error = check_index(b, b->buffer_count, "buffers");
    if (b->error < 0)
        return 0;
    b->error = grow((void **)&b->buffers, b->buffer_count, &b->buffer_capacity, sizeof *b->buffers,
                    "plan buffers");
    if (b->error < 0)
        return 0;
    struct plani_buffer *fresh = &b->buffers[b->buffer_count];
    memset(fresh, 0, sizeof *fresh);
    fresh->base.arena = (uint8_t)arena;
    fresh->base.state_kind = (uint8_t)kind;
    fresh->base.unit = unit;
    fresh->base.size_bytes = size_round_up(size_bytes, TILE_BLOCK_BYTES);
    fresh->base.producer = PROGRAM_NONE;
    fresh->base.last_reader = PROGRAM_NONE;
    fresh->residue = residue;
    return (uint32_t)b->buffer_count++;
}

/* A new op is cleared up to its operands. */
static_assert(offsetof(op, operands) + sizeof(((op *)0)->operands) == sizeof(op), "operands last");

uint32_t plani_op(plani_builder *b, enum op_kind kind, enum lane_kind lane)
{
    if (b->error < 0)
        return 0;
    b->error = check_index(b, b->op_count, "ops");
    if (b->error < 0)
        return 0;
    b->error = grow((void **)&b->ops, b->op_count, &b->op_capacity, sizeof *b->ops, "plan ops");
    if (b->error >= 0)
        b->error = grow((void **)&b->briefs, b->op_count, &b->brief_capacity, sizeof *b->briefs,
                        "plan ops");
    if (b->error < 0)
        return 0;
    if (b->op_count % PLANI_OPS_OF_A_NOTE == PLANI_OPS_OF_A_NOTE - 1)
        plani_note_work(b->job, NULL, PLANI_OPS_OF_A_NOTE);
    op *fresh = &b->ops[b->op_count];
    memset(fresh, 0, offsetof(op, operands));
    memcpy(b->op_bytes, b->home_bytes, sizeof b->op_bytes);
    fresh->kind = (uint8_t)kind;
    fresh->lane = (uint8_t)lane;
    fresh->unit = fresh->stage = fresh->micro_batch = fresh->tile = PROGRAM_NONE;
    fresh->state_kind = fresh->behind = PROGRAM_NONE;
    fresh->if_applied = b->if_applied;
    fresh->if_commits = b->if_commits;
    bool follows_reduce = kind == OP_GRAD_ADD || kind == OP_GRAD_CLOSE || kind == OP_UPDATE;
    b->briefs[b->op_count] =
        (struct plani_brief){.kind = (uint8_t)kind,
                             .lane = (uint8_t)lane,
                             .if_commits = b->if_commits,
                             .is_chained = lane == LANE_COMPUTE && !b->if_commits &&
                                           !(plani_world(b->job) > 1 && follows_reduce)};
    return (uint32_t)b->op_count++;
}

int plani_add_edge(plani_builder *b, uint32_t from, uint32_t to)
{
    TRY(check_index(b, b->edge_count, "dependencies"));
    TRY(grow((void **)&b->edges, b->edge_count, &b->edge_capacity, sizeof *b->edges, "plan edges"));
    b->edges[b->edge_count++] = (struct plani_edge){from, to};
    return 0;
}

void plani_depend(plani_builder *b, uint32_t op_idx, uint32_t on_op_idx)
{
    if (b->error < 0 || on_op_idx == PROGRAM_NONE || on_op_idx == op_idx)
        return;
    assert(on_op_idx < op_idx && (uint64_t)op_idx + 1 == b->op_count); /* the newest op's alone */
    if (plani_in_one_order(b, op_idx, on_op_idx))
        return; /* the lane's own order says it */
    /* Known, or said by the lane's order and an earlier op's edge: of the passes of all
     * micro-batches, which wait for the same copies, only the first has edges from them. */
    uint32_t earlier = b->briefs[on_op_idx].dependent;
    if (earlier == op_idx || (earlier > 0 && plani_in_one_order(b, op_idx, earlier)))
        return;
    b->briefs[on_op_idx].dependent = op_idx;
    b->error = plani_add_edge(b, on_op_idx, op_idx);
}

static uint32_t size_class(const struct plani_access *item)
{
    uint64_t bytes = item->end - item->begin;
    return bytes ? 63 - (uint32_t)__builtin_clzll(bytes) : 0;
}

/* The free elements of the list lie at recent_gap, where the list changed last: tiles come in order
 * within a unit, but units do not, and a list of all tiles of a large model is long. */
static struct plani_access *recent_at(const struct plani_buffer *target, uint32_t idx)
{
    uint32_t free_count = target->recent_capacity - target->recent_count;
    return &target->recent[idx < target->recent_gap ? idx : idx + free_count];
}

static void move_gap(struct plani_buffer *target, uint32_t to)
{
    uint32_t gap = target->recent_gap, end = target->recent_capacity - target->recent_count;
    struct plani_access *list = target->recent;
    if (to == gap)
        return;
    if (to < gap)
        memmove(list + to + end, list + to, (gap - to) * sizeof *list);
    else
        memmove(list + gap, list + gap + end, (to - gap) * sizeof *list);
    target->recent_gap = to;
}

/* True if the recorded access comes before all of the class that begin at `begin` or above. */
static bool is_before(const struct plani_buffer *target, uint32_t idx, uint32_t class,
                      uint64_t begin)
{
    const struct plani_access *item = recent_at(target, idx);
    uint32_t found = size_class(item);
    return found < class || (found == class && item->begin < begin);
}

/* The first recorded access of the class, or of a later one, that begins at `begin` or above.
 * Searches by steps that get larger from `near` on, then by halves. */
static uint32_t recent_from(const struct plani_buffer *target, uint32_t class, uint64_t begin,
                            uint32_t near)
{
    uint32_t low = 0, high = target->recent_count;
    near = (uint32_t)size_min(near, high);
    if (near < high && is_before(target, near, class, begin)) {
        low = near + 1;
        for (uint32_t step = 1; step <= high - low; step *= 2) {
            if (!is_before(target, low + step - 1, class, begin)) {
                high = low + step - 1;
                break;
            }
            low += step;
        }
    } else {
        high = near;
        for (uint32_t step = 1; step <= high; step *= 2) {
            if (is_before(target, high - step, class, begin)) {
                low = high - step + 1;
                break;
            }
            high -= step;
        }
    }
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (is_before(target, middle, class, begin))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The new access depends on an overlapping one where either writes. True when the older one is to
 * be forgotten: a write covers it, or a later read on the same in-order lane stands for it. */
static bool meet(plani_builder *b, const struct plani_access *fresh,
                 const struct plani_access *item)
{
    bool overlaps = item->begin < fresh->end && fresh->begin < item->end;
    if (overlaps && item->op_idx != fresh->op_idx && (fresh->writes || item->writes))
        plani_depend(b, fresh->op_idx, item->op_idx);
    bool covered = fresh->begin <= item->begin && item->end <= fresh->end;
    if (fresh->writes)
        return covered;
    return covered && !item->writes && plani_in_one_order(b, item->op_idx, fresh->op_idx);
}

static void put_access(struct plani_buffer *target, uint32_t begin, uint32_t end,
                       const struct plani_access *fresh)
{
    for (; end > begin && recent_at(target, end - 1)->begin > fresh->begin; end--)
        *recent_at(target, end) = *recent_at(target, end - 1);
    *recent_at(target, end) = *fresh;
}

/* Records the access and adds what it depends on. Accesses are sorted by size class, then begin:
 * those of one class that overlap the new one begin less than twice the class's size before it, so
 * a unit's many tiles are not looked at again for each of them. */
static void note_access(plani_builder *b, struct plani_buffer *target, struct plani_access fresh)
{
    if (target->recent_count == target->recent_capacity) {
        target->recent_gap = target->recent_count;
        b->error = plani_pool_grow(&b->lists, (void **)&target->recent, &target->recent_capacity,
                                   sizeof *target->recent);
        if (b->error < 0)
            return;
    }
    uint32_t own = size_class(&fresh);
    bool placed = false;
    if (target->recent_count == 1) { /* most transients are used as a whole, by one op at a time */
        struct plani_access *only = recent_at(target, 0);
        if (only->begin == fresh.begin && only->end == fresh.end && meet(b, &fresh, only)) {
            *only = fresh;
            return;
        }
    }
    for (uint64_t open = target->recent_classes; open; open &= open - 1) {
        uint32_t class = (uint32_t)__builtin_ctzll(open);
        uint64_t reach = UINT64_C(2) << class;
        uint32_t first = recent_from(target, class, fresh.begin > reach ? fresh.begin - reach : 0,
                                     class == own ? target->recent_hint : 0);
        uint32_t kept = first, i = first;
        if (class == own)
            target->recent_hint = first;
        for (; i < target->recent_count; i++) {
            const struct plani_access *item = recent_at(target, i);
            if (item->begin >= fresh.end || size_class(item) != class)
                break;
            if (!meet(b, &fresh, item))
                *recent_at(target, kept++) = *item;
        }
        if (kept == i)
            continue;
        if (class == own) { /* takes the place of a forgotten one */
            put_access(target, first, kept++, &fresh);
            placed = true;
        }
        if (kept == i)
            continue;
        move_gap(target, kept);
        target->recent_count -= i - kept;
    }
    if (placed)
        return;
    uint32_t at = recent_from(target, own, fresh.begin, target->recent_hint);
    move_gap(target, at);
    target->recent[at] = fresh;
    target->recent_gap++;
    target->recent_count++;
    target->recent_classes |= UINT64_C(1) << own;
}

/* Lists a transient that the newest op is the first to use. */
static int list_first_use(plani_builder *b, uint32_t op_idx, uint32_t buffer_idx)
{
    TRY(grow((void **)&b->first_uses, b->first_use_count, &b->first_use_capacity,
             sizeof *b->first_uses, "plan first uses"));
    struct plani_first_use *at = &b->first_uses[b->first_use_count++];
    assert((uint64_t)op_idx + 1 == b->op_count);
    for (; at > b->first_uses && at[-1].op_idx == op_idx && at[-1].buffer_idx > buffer_idx; at--)
        *at = at[-1];
    *at = (struct plani_first_use){buffer_idx, op_idx};
    return 0;
}

/* Lists the newest op among the users of a transient, which does not list it yet. */
static int list_user(plani_builder *b, uint32_t op_idx, uint32_t buffer_idx)
{
    struct plani_buffer *used = &b->buffers[buffer_idx];
    if (used->user_count == 0)
        TRY(list_first_use(b, op_idx, buffer_idx));
    if (used->user_count == used->user_capacity)
        TRY(plani_pool_grow(&b->lists, (void **)&used->users, &used->user_capacity,
                            sizeof *used->users));
    used->users[used->user_count++] = op_idx;
    b->use_count++;
    return 0;
}

void plani_use_bytes(plani_builder *b, uint32_t op_idx, uint32_t buffer_idx, uint64_t offset_bytes,
                     uint64_t size_bytes, enum operand_role role, enum operand_access access)
{
    if (b->error < 0)
        return;
    op *item = &b->ops[op_idx];
    assert(op_idx < b->op_count && buffer_idx < b->buffer_count);
    assert(item->operand_count < OP_OPERANDS_MAX);
    struct plani_buffer *used = &b->buffers[buffer_idx];
    assert(offset_bytes + size_bytes <= used->base.size_bytes);
    item->operands[item->operand_count++] = (operand){.buffer_idx = buffer_idx,
                                                      .role = (uint8_t)role,
                                                      .access = (uint8_t)access,
                                                      .offset_bytes = offset_bytes,
                                                      .size_bytes = size_bytes};
    note_access(b, used,
                (struct plani_access){.op_idx = op_idx,
                                      .writes = (access & ACCESS_WRITE) != 0,
                                      .begin = offset_bytes,
                                      .end = offset_bytes + size_bytes});
    if (b->error < 0 || buffer_idx < b->home_count)
        return;
    if (used->user_count > 0 && used->users[used->user_count - 1] == op_idx)
        return;
    b->error = list_user(b, op_idx, buffer_idx);
    if (b->error < 0)
        return;
    uint64_t *bytes = &b->op_bytes[used->base.arena];
    *bytes += used->base.size_bytes;
    if (*bytes > b->room_bytes[used->base.arena])
        b->error = err_set(ERR_NO_FIT, "no memory for op %" PRIu32, op_idx);
}
