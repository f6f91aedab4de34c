/* The proof for buffers that pass from one program to the next: each carried buffer by itself, and
 * the seam between two programs. See program.h. Any thread; scratch is freed on return. */
#include <errno.h>
#include <stdlib.h>

#include "base/mem.h"
#include "swap/program_internal.h"

static int carried_error(uint64_t b, const char *problem)
{
    return err_set(ERR_INTERNAL, "program: carried buffer %llu: %s", (unsigned long long)b,
                   problem);
}

static const op *op_of(const swapi_check *check, uint64_t use)
{
    return &check->prog->ops[check->uses[use].op_idx];
}

static const operand *operand_of(const swapi_check *check, uint64_t use)
{
    return &op_of(check, use)->operands[check->uses[use].operand_idx];
}

static int check_carried_buffer(const swapi_check *check, uint64_t b)
{
    const buffer *item = &check->prog->buffers[b];
    if (item->is_home || item->arena != TIER_HOST || item->carried > CARRIED_THROUGH)
        return carried_error(b, "only transients in host memory are carried");
    if (item->state_kind != STATE_OPTIMIZER && item->state_kind != STATE_GRADS)
        return carried_error(b, "holds neither optimizer state nor a gradient");
    uint64_t begin = check->use_begin[b], end = check->use_begin[b + 1], writes = 0;
    if (item->carried == CARRIED_THROUGH)
        return begin < end ? carried_error(b, "is carried through, but an op uses it") : 0;
    for (uint64_t i = begin; i < end; i++) {
        const op *user = op_of(check, i);
        const operand *part = operand_of(check, i);
        if (user->unit != item->unit || user->tile != item->tile ||
            user->elem_count != op_of(check, begin)->elem_count)
            return carried_error(b, "an op uses it that does not work on its tile");
        if (part->offset_bytes != 0 || part->size_bytes != operand_of(check, begin)->size_bytes)
            return carried_error(b, "an op uses another part of it than the first one");
        if (!(part->access & ACCESS_WRITE))
            continue;
        writes++;
        if ((item->carried & CARRIED_OUT) && (user->if_applied || user->if_commits))
            return carried_error(b, "is carried out, but what writes it may be skipped");
    }
    if ((item->carried & CARRIED_OUT) && writes != 1)
        return carried_error(b, "is carried out, but is not written once");
    return 0;
}

/* The operand that a buffer which is carried out is read from, and the op; NULL: not from a
 * home. */
static const operand *source_of(const swapi_check *check, uint64_t b, uint32_t *read)
{
    const program *prog = check->prog;
    *read = check->uses[check->use_begin[b]].op_idx;
    const op *maker = &prog->ops[*read];
    const operand *source = maker->kind == OP_READ ? op_operand(maker, ROLE_SOURCE) : NULL;
    return source && prog->buffers[source->buffer_idx].is_home ? source : NULL;
}

/* Checks that no op writes the bytes of a home after they were read from it. Most homes have no
 * write at all after the first such read, so `last_write` [buffer_count], an op's index + 1, mostly
 * answers. */
static int check_source(const swapi_check *check, uint64_t b, const uint32_t *last_write)
{
    uint32_t read;
    const operand *source = source_of(check, b, &read);
    if (!source || last_write[source->buffer_idx] <= read)
        return 0;
    for (uint64_t i = check->use_begin[source->buffer_idx + 1];
         i > check->use_begin[source->buffer_idx] && check->uses[i - 1].op_idx > read; i--) {
        const operand *part = operand_of(check, i - 1);
        if ((part->access & ACCESS_WRITE) &&
            part->offset_bytes < source->offset_bytes + source->size_bytes &&
            source->offset_bytes < part->offset_bytes + part->size_bytes)
            return carried_error(b, "its home is written after it was read");
    }
    return 0;
}

/* ---- homes of what is carried in ---- */

/* A buffer that is carried into the program: its tile, and the op that uses it first. */
struct arrival {
    uint64_t unit_and_tile;
    uint32_t state_kind, first_use; /* op_count: no op uses it */
};

static int compare_arrivals(const void *left, const void *right)
{
    const struct arrival *a = left, *b = right;
    if (a->unit_and_tile != b->unit_and_tile)
        return a->unit_and_tile < b->unit_and_tile ? -1 : 1;
    return (a->state_kind > b->state_kind) - (a->state_kind < b->state_kind);
}

static struct arrival arrival_of(uint32_t unit, uint32_t tile, uint32_t kind, uint64_t first_use)
{
    return (struct arrival){(uint64_t)unit << 32 | tile, kind, (uint32_t)first_use};
}

/* The home that the op writes, or NULL. */
static const buffer *written_home(const program *prog, const op *item)
{
    const operand *target = item->kind == OP_WRITE ? op_operand(item, ROLE_TARGET) : NULL;
    const buffer *home = target ? &prog->buffers[target->buffer_idx] : NULL;
    return home && home->is_home ? home : NULL;
}

/* Checks that no op writes a tile's home before the first use of what is carried in of that tile.
 * The content would be older than its home. */
static int check_arrivals(const swapi_check *check, struct arrival *arrivals)
{
    const program *prog = check->prog;
    uint64_t count = 0;
    for (uint64_t b = prog->home_count; b < prog->buffer_count; b++) {
        const buffer *in = &prog->buffers[b];
        uint64_t begin = check->use_begin[b];
        bool is_used = begin < check->use_begin[b + 1];
        if (in->carried & CARRIED_IN)
            arrivals[count++] = arrival_of(in->unit, in->tile, in->state_kind,
                                           is_used ? check->uses[begin].op_idx : prog->op_count);
    }
    if (count > 0)
        qsort(arrivals, count, sizeof *arrivals, compare_arrivals);
    for (uint32_t i = 0; i < prog->op_count && count > 0; i++) {
        const op *item = &prog->ops[i];
        const buffer *home = written_home(prog, item);
        if (!home)
            continue;
        const struct arrival wanted = arrival_of(item->unit, item->tile, home->state_kind, 0);
        const struct arrival *found =
            bsearch(&wanted, arrivals, count, sizeof *arrivals, compare_arrivals);
        if (found && i < found->first_use)
            return err_set(ERR_INTERNAL,
                           "program: op %u writes the home of tile %u of unit %u before the first "
                           "use of what is carried in of that tile",
                           i, item->tile, item->unit);
    }
    return 0;
}

int swapi_check_carried(const swapi_check *check)
{
    const program *prog = check->prog;
    bool any = false;
    for (uint64_t b = 0; b < prog->buffer_count; b++) {
        if (prog->buffers[b].carried)
            TRY(check_carried_buffer(check, b));
        any = any || prog->buffers[b].carried;
    }
    if (!any)
        return 0;
    struct arrival *arrivals = mem_alloc(prog->buffer_count, sizeof *arrivals, "program check");
    if (!arrivals)
        return -ENOMEM;
    int rc = check_arrivals(check, arrivals);
    mem_free(arrivals);
    TRY(rc);
    uint32_t *last_write = mem_alloc(prog->buffer_count, sizeof *last_write, "program check");
    if (!last_write)
        return -ENOMEM;
    for (uint32_t i = 0; i < prog->op_count; i++)
        for (uint32_t k = 0; k < prog->ops[i].operand_count; k++)
            if (prog->ops[i].operands[k].access & ACCESS_WRITE)
                last_write[prog->ops[i].operands[k].buffer_idx] = i + 1;
    for (uint64_t b = prog->home_count; b < prog->buffer_count && rc == 0; b++)
        if (prog->buffers[b].carried == CARRIED_OUT)
            rc = check_source(check, b, last_write);
    mem_free(last_write);
    return rc;
}

/* ---- the seam ---- */

/* For each buffer the operand that uses it first, and its op. */
struct first_use {
    const op *item;
    const operand *part;
};

static void find_first_uses(const program *prog, struct first_use *uses)
{
    for (uint64_t i = prog->op_count; i-- > 0;)
        for (uint32_t k = 0; k < prog->ops[i].operand_count; k++)
            uses[prog->ops[i].operands[k].buffer_idx] =
                (struct first_use){&prog->ops[i], &prog->ops[i].operands[k]};
}

static bool is_same_place(const buffer *a, const buffer *b)
{
    return a->unit == b->unit && a->tile == b->tile && a->state_kind == b->state_kind &&
           a->offset_bytes == b->offset_bytes && a->size_bytes == b->size_bytes;
}

/* A buffer that is carried through has no use. */
static bool is_same_content(const struct first_use *a, const struct first_use *b)
{
    return !a->item || !b->item ||
           (a->part->size_bytes == b->part->size_bytes &&
            a->item->elem_begin == b->item->elem_begin &&
            a->item->elem_count == b->item->elem_count);
}

/* A program at the seam, and which of its buffers pass it: CARRIED_OUT or CARRIED_IN. */
struct side {
    const program *prog;
    const struct first_use *uses;
    uint8_t carried;
};

/* Finds for each buffer that passes the seam on one side the one on the other side. Both programs
 * mostly list their carried buffers in one order, so the search for the next one begins after the
 * last. */
static int match_seam(const struct side *one, const struct side *other)
{
    const program *prog = one->prog;
    const uint64_t count = other->prog->buffer_count;
    uint64_t at = 0;
    for (uint64_t b = prog->home_count; b < prog->buffer_count; b++) {
        const buffer *item = &prog->buffers[b];
        if (!(item->carried & one->carried))
            continue;
        uint64_t tried = 0;
        while (tried < count && !((other->prog->buffers[at].carried & other->carried) &&
                                  is_same_place(&other->prog->buffers[at], item))) {
            at = at + 1 < count ? at + 1 : 0;
            tried++;
        }
        if (tried < count && is_same_content(&other->uses[at], &one->uses[b]))
            continue;
        bool is_in = one->carried == CARRIED_IN;
        return err_set(ERR_INTERNAL,
                       "program: buffer %llu (tile %u of unit %u, %s) is carried %s the %s "
                       "program, but the %s program does not %s it at byte %llu of the host",
                       (unsigned long long)b, item->tile, item->unit,
                       item->state_kind == STATE_GRADS ? "gradient" : "optimizer state",
                       is_in ? "into" : "out of", program_kind_name(prog->kind),
                       program_kind_name(other->prog->kind), is_in ? "leave" : "take",
                       (unsigned long long)item->offset_bytes);
    }
    return 0;
}

int program_check_seam(const program *from, const program *to)
{
    struct first_use *from_uses = mem_alloc(from->buffer_count, sizeof *from_uses, "program check");
    struct first_use *to_uses = mem_alloc(to->buffer_count, sizeof *to_uses, "program check");
    int rc = from_uses && to_uses ? 0 : -ENOMEM;
    if (rc == 0) {
        find_first_uses(from, from_uses);
        find_first_uses(to, to_uses);
        const struct side left = {from, from_uses, CARRIED_OUT}, right = {to, to_uses, CARRIED_IN};
        rc = match_seam(&right, &left);
        rc = rc == 0 ? match_seam(&left, &right) : rc;
    }
    mem_free(from_uses);
    mem_free(to_uses);
    return rc;
}
