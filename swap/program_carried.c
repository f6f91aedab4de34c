/* The proof for buffers that pass from one program to the next: each carried buffer by itself, and
 * the seam between two programs. See program.h. Any thread; scratch is freed on return. */
#include <errno.h>

#include "base/mem.h"
#include "base/size.h"
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

int swapi_check_carried(const swapi_check *check)
{
    const program *prog = check->prog;
    bool any = false;
    for (uint64_t b = 0; b < prog->buffer_count; b++) {
        if (prog->buffers[b].carried)
            TRY(check_carried_buffer(check, b));
        any = any || (prog->buffers[b].carried & CARRIED_OUT);
    }
    if (!any)
        return 0;
    uint32_t *last_write = mem_alloc(prog->buffer_count, sizeof *last_write, "program check");
    if (!last_write)
        return -ENOMEM;
    for (uint32_t i = 0; i < prog->op_count; i++)
        for (uint32_t k = 0; k < prog->ops[i].operand_count; k++)
            if (prog->ops[i].operands[k].access & ACCESS_WRITE)
                last_write[prog->ops[i].operands[k].buffer_idx] = i + 1;
    int rc = 0;
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

static bool is_same_place(const buffer *out, const buffer *in)
{
    return (out->carried & CARRIED_OUT) && out->arena == in->arena && out->unit == in->unit &&
           out->tile == in->tile && out->state_kind == in->state_kind &&
           out->offset_bytes == in->offset_bytes && out->size_bytes == in->size_bytes;
}

/* A buffer that is carried through has no use. */
static bool is_same_content(const struct first_use *out, const struct first_use *in)
{
    return !out->item || !in->item ||
           (out->part->size_bytes == in->part->size_bytes &&
            out->item->elem_begin == in->item->elem_begin &&
            out->item->elem_count == in->item->elem_count);
}

/* Both programs mostly list their carried buffers in one order, so the search for the next one
 * begins after the last. */
static int match_seam(const program *from, const struct first_use *from_uses, const program *to,
                      const struct first_use *to_uses)
{
    uint64_t at = 0;
    for (uint64_t b = to->home_count; b < to->buffer_count; b++) {
        const buffer *in = &to->buffers[b];
        if (!(in->carried & CARRIED_IN))
            continue;
        uint64_t tried = 0;
        while (tried < from->buffer_count && !is_same_place(&from->buffers[at], in)) {
            at = at + 1 < from->buffer_count ? at + 1 : 0;
            tried++;
        }
        if (tried < from->buffer_count && is_same_content(&from_uses[at], &to_uses[b]))
            continue;
        return err_set(ERR_INTERNAL,
                       "program: buffer %llu (tile %u of unit %u, %s) is carried into the %s "
                       "program, but the %s program does not leave it at byte %llu of the host",
                       (unsigned long long)b, in->tile, in->unit,
                       in->state_kind == STATE_GRADS ? "gradient" : "optimizer state",
                       program_kind_name(to->kind), program_kind_name(from->kind),
                       (unsigned long long)in->offset_bytes);
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
        rc = match_seam(from, from_uses, to, to_uses);
    }
    mem_free(from_uses);
    mem_free(to_uses);
    return rc;
}
