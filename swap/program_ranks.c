/* What program_check demands of the ops that several ranks do together: collectives, and the norm of all
 * ranks' sums. On any thread; allocates nothing. */
#include "base/tile.h"
#include "swap/program_internal.h"

static uint64_t world_of(const program *prog)
{
    return prog->world ? prog->world : 1;
}

static bool is_collective(const op *item)
{
    return item->kind == OP_ALL_GATHER || item->kind == OP_REDUCE_SCATTER;
}

/* Bytes of which a rank's part is a multiple: whole blocks of elements of the smallest dtype that it may
 * have, but for the norm's sums, which are no state. */
static uint64_t part_step_bytes(const op *item)
{
    if (item->kind == OP_REDUCE_SCATTER)
        return SHARD_ELEMS_STEP * sizeof(float);
    if (item->state_kind == PROGRAM_NONE)
        return sizeof(double);
    return SHARD_ELEMS_STEP * sizeof(uint16_t);
}

/* The operands of a collective: SOURCE read, TARGET written, and WORKSPACE where a reduce-scatter has one. */
static int check_collective_operands(const program *prog, uint32_t op_idx)
{
    const op *item = &prog->ops[op_idx];
    for (uint32_t k = 0; k < item->operand_count; k++) {
        const operand *part = &item->operands[k];
        bool is_right = (part->role == ROLE_SOURCE && part->access == ACCESS_READ) ||
                        (part->role == ROLE_TARGET && part->access == ACCESS_WRITE) ||
                        (part->role == ROLE_WORKSPACE && (part->access & ACCESS_WRITE) &&
                         item->kind == OP_REDUCE_SCATTER);
        if (!is_right)
            return swapi_operand_error(
                prog, op_idx, k,
                "a collective reads SOURCE and writes TARGET, a reduce-scatter "
                "WORKSPACE too, no more");
        if ((prog->buffers[part->buffer_idx].offset_bytes + part->offset_bytes) % sizeof(double))
            return swapi_operand_error(prog, op_idx, k, "a collective takes multiples of 8 bytes");
        for (uint32_t other = 0; other < k; other++) {
            const operand *near = &item->operands[other];
            if (near->buffer_idx == part->buffer_idx &&
                near->offset_bytes < part->offset_bytes + part->size_bytes &&
                part->offset_bytes < near->offset_bytes + near->size_bytes)
                return swapi_operand_error(
                    prog, op_idx, k, "overlaps another operand, which a collective's may not");
        }
    }
    return 0;
}

/* What a rank has of a collective is the same part of the whole on each, and runs where it runs on all. */
int swapi_check_collective(const program *prog, uint32_t op_idx)
{
    const op *item = &prog->ops[op_idx];
    if (!is_collective(item))
        return 0;
    char text[SWAPI_OP_TEXT_BYTES];
    TRY(check_collective_operands(prog, op_idx));
    bool gathers = item->kind == OP_ALL_GATHER;
    uint64_t part = op_operand(item, gathers ? ROLE_SOURCE : ROLE_TARGET)->size_bytes;
    uint64_t whole = op_operand(item, gathers ? ROLE_TARGET : ROLE_SOURCE)->size_bytes;
    uint64_t world = world_of(prog);
    if (whole % world != 0 || whole / world != part)
        return err_set(ERR_INTERNAL,
                       "program: %s: %llu bytes of each of %llu ranks are not %llu bytes of all",
                       swapi_op_text(prog, op_idx, text), (unsigned long long)part,
                       (unsigned long long)world, (unsigned long long)whole);
    uint64_t step = part_step_bytes(item);
    if (part % step != 0)
        return err_set(ERR_INTERNAL, "program: %s: %llu bytes of each rank are no multiple of %llu",
                       swapi_op_text(prog, op_idx, text), (unsigned long long)part,
                       (unsigned long long)step);
    if (item->if_commits)
        return err_set(ERR_INTERNAL,
                       "program: %s runs only where the step commits, but no collective may depend "
                       "on that",
                       swapi_op_text(prog, op_idx, text));
    return 0;
}

/* Of several ranks the norm is that of all ranks' sums, put in the order of the model's blocks. */
int swapi_check_norm(const program *prog, uint32_t op_idx)
{
    const op *item = &prog->ops[op_idx];
    char text[SWAPI_OP_TEXT_BYTES];
    if (item->kind == OP_NORM_PART && world_of(prog) == 1)
        return err_set(ERR_INTERNAL, "program: %s, but one rank's norm has no parts",
                       swapi_op_text(prog, op_idx, text));
    if ((item->kind != OP_NORM && item->kind != OP_NORM_PART) || world_of(prog) == 1)
        return 0;
    const operand *gathered = op_operand(item, ROLE_NORM_SUMS);
    const operand *ordered = op_operand(item, ROLE_TARGET);
    if (!gathered || !ordered)
        return err_set(ERR_INTERNAL,
                       "program: %s lacks an operand: of %llu ranks it takes NORM_SUMS and TARGET",
                       swapi_op_text(prog, op_idx, text), (unsigned long long)world_of(prog));
    if (gathered->access != ACCESS_READ || ordered->access != ACCESS_WRITE)
        return err_set(ERR_INTERNAL, "program: %s reads NORM_SUMS and writes TARGET, no more",
                       swapi_op_text(prog, op_idx, text));
    if (gathered->size_bytes != ordered->size_bytes ||
        gathered->size_bytes % (world_of(prog) * sizeof(double)) != 0)
        return err_set(ERR_INTERNAL,
                       "program: %s: %llu bytes of sums as gathered and %llu by block are not the "
                       "same number for each of %llu ranks",
                       swapi_op_text(prog, op_idx, text), (unsigned long long)gathered->size_bytes,
                       (unsigned long long)ordered->size_bytes, (unsigned long long)world_of(prog));
    return 0;
}

/* Parts of a norm are counted from 0, and an OP_NORM is the last of them. */
int swapi_check_norm_parts(const program *prog)
{
    uint32_t due = 0, latest = PROGRAM_NONE;
    char text[SWAPI_OP_TEXT_BYTES];
    for (uint32_t i = 0; i < prog->op_count; i++) {
        const op *item = &prog->ops[i];
        bool is_last = item->kind == OP_NORM && due > 0;
        if ((item->kind == OP_NORM_PART || is_last) && item->tile != due)
            return err_set(ERR_INTERNAL, "program: %s is part %u of the norm, but part %u is due",
                           swapi_op_text(prog, i, text), item->tile, due);
        if (item->kind == OP_NORM_PART)
            due++, latest = i;
        if (item->kind == OP_NORM)
            due = 0;
    }
    if (due > 0)
        return err_set(ERR_INTERNAL, "program: no norm comes after %s",
                       swapi_op_text(prog, latest, text));
    return 0;
}
