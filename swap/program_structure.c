/* The structure of a program: what each buffer and each op must be by itself. See
 * program_internal.h. Any thread; allocates nothing. */
#include "base/size.h"
#include "base/tile.h"
#include "swap/program_internal.h"

/* The requirements of a kind of op for its lane and operands. */
struct kind_rule {
    uint8_t lane;
    uint8_t or_compute;     /* may also be on LANE_COMPUTE, with all operands in device memory */
    uint8_t is_copy;        /* exactly SOURCE (read) and TARGET (written), of equal size */
    uint8_t source, target; /* arenas of the two, for copies */
    /* all operands in host memory, or all in device memory; otherwise, and always on the compute
     * lane, all in device memory */
    uint8_t host_allowed;
    uint32_t roles_required; /* bit per enum operand_role */
};

#define ROLE_BIT(role) (UINT32_C(1) << (role))

static const struct kind_rule kind_rules[OP_KIND_COUNT] = {
    [OP_READ] = {LANE_READ, 0, 1, TIER_NVME, TIER_HOST, 0, 0},
    [OP_WRITE] = {LANE_WRITE, 0, 1, TIER_HOST, TIER_NVME, 0, 0},
    [OP_H2D] = {LANE_H2D, 0, 1, TIER_HOST, TIER_DEVICE, 0, 0},
    [OP_D2H] = {LANE_D2H, 0, 1, TIER_DEVICE, TIER_HOST, 0, 0},
    [OP_ALL_GATHER] = {LANE_COMM, 0, 0, 0, 0, 0, ROLE_BIT(ROLE_SOURCE) | ROLE_BIT(ROLE_TARGET)},
    [OP_REDUCE_SCATTER] = {LANE_COMM, 0, 0, 0, 0, 0, ROLE_BIT(ROLE_SOURCE) | ROLE_BIT(ROLE_TARGET)},
    [OP_UNITE_HITS] = {LANE_COMM, 0, 0, 0, 0, 0, ROLE_BIT(ROLE_HITS) | ROLE_BIT(ROLE_WORKSPACE)},
    [OP_FORWARD] = {LANE_COMPUTE, 0, 0, 0, 0, 0, 0},
    [OP_RECOMPUTE] = {LANE_COMPUTE, 0, 0, 0, 0, 0, ROLE_BIT(ROLE_SAVED)},
    [OP_BACKWARD] = {LANE_COMPUTE, 0, 0, 0, 0, 0, 0},
    [OP_GRAD_ADD] = {LANE_COMPUTE, 0, 0, 0, 0, 0, ROLE_BIT(ROLE_SOURCE) | ROLE_BIT(ROLE_TARGET)},
    [OP_GRAD_CLOSE] = {LANE_COMPUTE, 0, 0, 0, 0, 0, 0},
    [OP_NORM_PART] = {LANE_COMPUTE, 0, 0, 0, 0, 0, ROLE_BIT(ROLE_NORM_SUMS)},
    [OP_NORM] = {LANE_COMPUTE, 0, 0, 0, 0, 0, 0},
    [OP_UPDATE] = {LANE_UPDATE, 1, 0, 0, 0, 1, ROLE_BIT(ROLE_STATE)},
    [OP_INIT] = {LANE_UPDATE, 0, 0, 0, 0, 1, ROLE_BIT(ROLE_STATE)},
    [OP_WORKING_COPY] = {LANE_UPDATE, 1, 0, 0, 0, 1, ROLE_BIT(ROLE_STATE) | ROLE_BIT(ROLE_TARGET)},
    [OP_COMMIT] = {LANE_COMMIT, 0, 0, 0, 0, 0, 0},
    [OP_DIRECTION] = {LANE_UPDATE, 0, 0, 0, 0, 1,
                      ROLE_BIT(ROLE_STATE) | ROLE_BIT(ROLE_SOURCE) | ROLE_BIT(ROLE_TARGET)},
    [OP_ORTHOGONALIZE] = {LANE_UPDATE, 0, 0, 0, 0, 1,
                          ROLE_BIT(ROLE_TARGET) | ROLE_BIT(ROLE_WORKSPACE)},
    [OP_DISPATCH] = {LANE_COMM, 0, 0, 0, 0, 0, ROLE_BIT(ROLE_SOURCE) | ROLE_BIT(ROLE_TARGET)},
    [OP_RETURN] = {LANE_COMM, 0, 0, 0, 0, 0, ROLE_BIT(ROLE_SOURCE) | ROLE_BIT(ROLE_TARGET)},
};

static_assert(ROLE_COUNT <= 32, "a role is a bit of roles_required");

static int check_header(const program *prog)
{
    if ((unsigned)prog->kind >= PROGRAM_KIND_COUNT)
        return err_set(ERR_INTERNAL, "program: kind %d does not exist", (int)prog->kind);
    if (prog->op_count >= PROGRAM_NONE || prog->dep_count >= PROGRAM_NONE ||
        prog->buffer_count >= PROGRAM_NONE / 2 || prog->home_count > prog->buffer_count)
        return err_set(ERR_INTERNAL,
                       "program: %llu ops, %llu dependencies, %llu buffers (%llu homes) are out of "
                       "range",
                       (unsigned long long)prog->op_count, (unsigned long long)prog->dep_count,
                       (unsigned long long)prog->buffer_count,
                       (unsigned long long)prog->home_count);
    return 0;
}

static int check_buffer(const program *prog, uint64_t b)
{
    const buffer *item = &prog->buffers[b];
    if (item->arena >= TIER_COUNT)
        return err_set(ERR_INTERNAL, "program: buffer %llu lies in arena %u, which does not exist",
                       (unsigned long long)b, item->arena);
    if ((item->is_home != 0) != (b < prog->home_count))
        return err_set(ERR_INTERNAL,
                       "program: buffer %llu is a %s, but the first %llu buffers are the homes",
                       (unsigned long long)b, item->is_home ? "home" : "transient",
                       (unsigned long long)prog->home_count);
    uint64_t budget = prog->budget_bytes[item->arena];
    if (item->size_bytes == 0 || item->size_bytes > budget ||
        item->offset_bytes > budget - item->size_bytes)
        return err_set(ERR_INTERNAL,
                       "program: buffer %llu, %llu bytes at offset %llu, does not lie in the %s "
                       "arena's budget of %llu bytes",
                       (unsigned long long)b, (unsigned long long)item->size_bytes,
                       (unsigned long long)item->offset_bytes, tier_name((enum tier)item->arena),
                       (unsigned long long)budget);
    if (item->is_home && (item->producer != PROGRAM_NONE || item->last_reader != PROGRAM_NONE))
        return err_set(ERR_INTERNAL,
                       "program: buffer %llu is a home but names a producer or reader",
                       (unsigned long long)b);
    return 0;
}

static int operand_error(const program *prog, uint32_t op_idx, uint32_t k, const char *problem)
{
    const operand *part = &prog->ops[op_idx].operands[k];
    return swapi_op_error(prog, op_idx, ", operand %u (buffer %u, %llu bytes at %llu): %s", k,
                          part->buffer_idx, (unsigned long long)part->size_bytes,
                          (unsigned long long)part->offset_bytes, problem);
}

/* The residue that the operand's address must have modulo TILE_PERIOD_BYTES, or -1 for any. */
static int64_t required_residue(const op *item, const operand *part)
{
    if (part->role == ROLE_STATE)
        return TILE_RESIDUE_STATE;
    if (item->kind == OP_UPDATE && part->role == ROLE_SOURCE)
        return TILE_RESIDUE_GRADS;
    bool makes_copy =
        item->kind == OP_UPDATE || item->kind == OP_INIT || item->kind == OP_WORKING_COPY;
    if (makes_copy && part->role == ROLE_TARGET)
        return TILE_RESIDUE_PARAMS;
    return -1;
}

static int check_alignment(const program *prog, uint32_t op_idx, uint32_t k)
{
    const op *item = &prog->ops[op_idx];
    const operand *part = &item->operands[k];
    const buffer *home = &prog->buffers[part->buffer_idx];
    uint64_t address = home->offset_bytes + part->offset_bytes;
    bool is_io = item->kind == OP_READ || item->kind == OP_WRITE;
    if ((is_io || home->arena == TIER_NVME) &&
        (address % TILE_BLOCK_BYTES != 0 || part->size_bytes % TILE_BLOCK_BYTES != 0))
        return operand_error(prog, op_idx, k, "direct I/O takes multiples of 4096 bytes");
    int64_t residue = required_residue(item, part);
    if (home->arena != TIER_NVME && residue >= 0 &&
        address % TILE_PERIOD_BYTES != (uint64_t)residue)
        return swapi_op_error(prog, op_idx,
                              ", operand %u (buffer %u): %s address %llu is %llu modulo %d, but "
                              "must be %lld (base/tile.h)",
                              k, part->buffer_idx, tier_name((enum tier)home->arena),
                              (unsigned long long)address,
                              (unsigned long long)(address % TILE_PERIOD_BYTES),
                              (int)TILE_PERIOD_BYTES, (long long)residue);
    return 0;
}

/* Checks the operand by which hits become known, or on which the op depends. */
static int check_hits(const program *prog, uint32_t op_idx, uint32_t k)
{
    const op *item = &prog->ops[op_idx];
    const operand *part = &item->operands[k];
    const buffer *home = &prog->buffers[part->buffer_idx];
    bool is_pass =
        item->kind == OP_FORWARD || item->kind == OP_RECOMPUTE || item->kind == OP_BACKWARD;
    if (!home->is_home || home->arena != TIER_HOST)
        return operand_error(prog, op_idx, k, "hits lie in a home in host memory");
    bool unites = item->kind == OP_UNITE_HITS;
    bool may_write = unites ? part->access == ACCESS_UPDATE : item->kind == OP_FORWARD;
    if (part->access == ACCESS_READ ? part->size_bytes != 1 : !may_write)
        return operand_error(prog, op_idx, k,
                             "an op reads the hit of one unit, and only a forward writes hits, or "
                             "what unites them");
    if (unites && part->access == ACCESS_READ)
        return operand_error(prog, op_idx, k, "hits are united in place");
    if (!is_pass && !unites && !swapi_condition(item))
        return operand_error(prog, op_idx, k, "this kind of op depends on no hit");
    return 0;
}

static int check_operand(const program *prog, uint32_t op_idx, uint32_t k)
{
    const op *item = &prog->ops[op_idx];
    const operand *part = &item->operands[k];
    const struct kind_rule *rule = &kind_rules[item->kind];
    if (part->buffer_idx >= prog->buffer_count)
        return operand_error(prog, op_idx, k, "the buffer does not exist");
    if (part->role >= ROLE_COUNT)
        return operand_error(prog, op_idx, k, "the role does not exist");
    if (part->access < ACCESS_READ || part->access > ACCESS_UPDATE)
        return operand_error(prog, op_idx, k, "the access is neither read, write nor both");
    const buffer *home = &prog->buffers[part->buffer_idx];
    if (part->size_bytes == 0 || part->size_bytes > home->size_bytes ||
        part->offset_bytes > home->size_bytes - part->size_bytes)
        return operand_error(prog, op_idx, k, "out of the bounds of the buffer");
    if (part->role == ROLE_HITS)
        return check_hits(prog, op_idx, k);
    uint8_t arena = TIER_DEVICE;
    if (rule->is_copy) {
        bool is_source = part->role == ROLE_SOURCE && part->access == ACCESS_READ;
        bool is_target = part->role == ROLE_TARGET && part->access == ACCESS_WRITE;
        if (!is_source && !is_target)
            return operand_error(prog, op_idx, k, "a copy reads SOURCE, writes TARGET, no more");
        arena = is_source ? rule->source : rule->target;
    } else if (rule->host_allowed && item->lane != LANE_COMPUTE) {
        arena = prog->buffers[item->operands[0].buffer_idx].arena;
        if (arena == TIER_NVME)
            return operand_error(prog, op_idx, k, "computing needs memory, not nvme");
        if (part->role == ROLE_LENT || part->role == ROLE_NORM_SUMS)
            arena = TIER_DEVICE;
    }
    if (home->arena != arena)
        return operand_error(prog, op_idx, k, "the buffer lies in the wrong arena for this op");
    return check_alignment(prog, op_idx, k);
}

/* The place of optimizer state that an op reads or writes follows from what the op declares
 * (swap/place_table.h). An op that does not declare that it moves such state, or which elements,
 * would use the address itself, whatever the last commit names there; and no commit would wait for
 * it. */
static int check_state(const program *prog, uint32_t op_idx)
{
    const op *item = &prog->ops[op_idx];
    for (uint32_t k = 0; k < item->operand_count; k++) {
        const buffer *home = &prog->buffers[item->operands[k].buffer_idx];
        bool is_state = home->state_kind == STATE_OPTIMIZER || home->is_committed;
        if (home->arena == TIER_NVME && is_state &&
            (item->state_kind != home->state_kind || item->elem_count == 0))
            return operand_error(prog, op_idx, k,
                                 "holds optimizer state, but the op is not said to move elements "
                                 "of it");
    }
    return 0;
}

/* Checks op.behind: a read goes behind an earlier write, or a write behind an earlier read, and
 * never behind a dependency. */
static int check_behind(const program *prog, uint32_t op_idx)
{
    const op *item = &prog->ops[op_idx];
    if (item->behind == PROGRAM_NONE)
        return 0;
    if (item->behind >= op_idx)
        return swapi_op_error(prog, op_idx, " goes behind op %u, which is not before it",
                              item->behind);
    uint8_t other = prog->ops[item->behind].lane;
    if (!(item->lane == LANE_READ && other == LANE_WRITE) &&
        !(item->lane == LANE_WRITE && other == LANE_READ))
        return swapi_op_error(prog, op_idx,
                              " goes behind op %u, but only reads and writes go behind each other",
                              item->behind);
    if (op_depends_on(prog, op_idx, item->behind))
        return swapi_op_error(prog, op_idx, " goes behind op %u and depends on it", item->behind);
    return 0;
}

/* ---- what ranks do together: collectives, and the norm of all ranks' sums ---- */

static uint64_t world_of(const program *prog)
{
    return prog->world ? prog->world : 1;
}

static bool is_collective(const op *item)
{
    return item->kind == OP_ALL_GATHER || item->kind == OP_REDUCE_SCATTER;
}

/* The bytes of which a rank's part is a multiple: whole blocks of elements of the smallest possible
 * dtype, except for the norm's sums, which are no state. */
static uint64_t part_step_bytes(const op *item)
{
    if (item->kind == OP_REDUCE_SCATTER)
        return SHARD_ELEMS_STEP * sizeof(float);
    if (item->state_kind == PROGRAM_NONE)
        return sizeof(double);
    return SHARD_ELEMS_STEP * sizeof(uint16_t);
}

/* Checks the operands of a collective: SOURCE is read, TARGET is written, and a reduce-scatter may
 * have WORKSPACE. */
static int check_collective_operands(const program *prog, uint32_t op_idx)
{
    const op *item = &prog->ops[op_idx];
    for (uint32_t k = 0; k < item->operand_count; k++) {
        const operand *part = &item->operands[k];
        bool is_right = (part->role == ROLE_SOURCE && part->access == ACCESS_READ) ||
                        (part->role == ROLE_TARGET && part->access == ACCESS_WRITE) ||
                        (part->role == ROLE_HITS && item->kind == OP_ALL_GATHER) ||
                        (part->role == ROLE_WORKSPACE && (part->access & ACCESS_WRITE) &&
                         item->kind == OP_REDUCE_SCATTER);
        if (!is_right)
            return operand_error(prog, op_idx, k,
                                 "a collective reads SOURCE and writes TARGET, a reduce-scatter "
                                 "WORKSPACE too, no more");
        if (part->role == ROLE_HITS)
            continue;
        if ((prog->buffers[part->buffer_idx].offset_bytes + part->offset_bytes) % sizeof(double))
            return operand_error(prog, op_idx, k, "a collective takes multiples of 8 bytes");
        for (uint32_t other = 0; other < k; other++) {
            const operand *near = &item->operands[other];
            if (near->buffer_idx == part->buffer_idx &&
                near->offset_bytes < part->offset_bytes + part->size_bytes &&
                part->offset_bytes < near->offset_bytes + near->size_bytes)
                return operand_error(prog, op_idx, k,
                                     "overlaps another operand, which a collective's may not");
        }
    }
    return 0;
}

/* Checks a collective: each rank has an equal part of the whole, and it runs on all ranks or on
 * none. */
static int check_collective(const program *prog, uint32_t op_idx)
{
    const op *item = &prog->ops[op_idx];
    if (!is_collective(item))
        return 0;
    TRY(check_collective_operands(prog, op_idx));
    bool gathers = item->kind == OP_ALL_GATHER;
    uint64_t part = op_operand(item, gathers ? ROLE_SOURCE : ROLE_TARGET)->size_bytes;
    uint64_t whole = op_operand(item, gathers ? ROLE_TARGET : ROLE_SOURCE)->size_bytes;
    uint64_t world = world_of(prog);
    if (whole % world != 0 || whole / world != part)
        return swapi_op_error(
            prog, op_idx, ": %llu bytes of each of %llu ranks are not %llu bytes of all",
            (unsigned long long)part, (unsigned long long)world, (unsigned long long)whole);
    uint64_t step = part_step_bytes(item);
    if (part % step != 0)
        return swapi_op_error(prog, op_idx, ": %llu bytes of each rank are no multiple of %llu",
                              (unsigned long long)part, (unsigned long long)step);
    if (item->if_commits)
        return swapi_op_error(
            prog, op_idx,
            " runs only where the step commits, but no collective may depend on that");
    return 0;
}

/* Checks that ranks that unite their hits have room for them, and do so in any case. */
static int check_unite_hits(const program *prog, uint32_t op_idx)
{
    const op *item = &prog->ops[op_idx];
    if (item->kind != OP_UNITE_HITS)
        return 0;
    const operand *work = op_operand(item, ROLE_WORKSPACE);
    uint64_t hits = op_operand(item, ROLE_HITS)->size_bytes, world = world_of(prog);
    uint64_t at = prog->buffers[work->buffer_idx].offset_bytes + work->offset_bytes;
    if (work->size_bytes < program_united_bytes(hits, world) || at % sizeof(double) != 0)
        return swapi_op_error(prog, op_idx,
                              " has %llu bytes of workspace at %llu, but hits of %llu units and "
                              "%llu ranks need %llu, in multiples of 8",
                              (unsigned long long)work->size_bytes, (unsigned long long)at,
                              (unsigned long long)hits, (unsigned long long)world,
                              (unsigned long long)program_united_bytes(hits, world));
    if (item->operand_count != 2 || item->if_commits || item->if_applied)
        return swapi_op_error(prog, op_idx, " takes HITS and WORKSPACE, without a condition");
    return 0;
}

/* Checks the ops of experts that ranks own: the exchange of rows, and the steps of their passes. */
static int check_exchange(const program *prog, uint32_t op_idx)
{
    const op *item = &prog->ops[op_idx];
    bool exchanges = item->kind == OP_DISPATCH || item->kind == OP_RETURN;
    bool is_pass = item->kind == OP_FORWARD || item->kind == OP_BACKWARD;
    bool has_rows = op_operand(item, ROLE_SENT) || op_operand(item, ROLE_RECEIVED);
    if (!is_pass && (item->step != STEP_WHOLE || has_rows))
        return swapi_op_error(prog, op_idx, " has a step or rows of a pass, and is none");
    if (has_rows != (item->step != STEP_WHOLE))
        return swapi_op_error(prog, op_idx, " has step %u, but %s SENT or RECEIVED", item->step,
                              has_rows ? "has" : "lacks");
    if (!exchanges)
        return 0;
    uint8_t access = item->kind == OP_DISPATCH ? ACCESS_WRITE : ACCESS_UPDATE;
    const operand *source = op_operand(item, ROLE_SOURCE), *target = op_operand(item, ROLE_TARGET);
    if (item->operand_count != 2 || source->access != ACCESS_READ || target->access != access ||
        item->if_commits || item->if_applied)
        return swapi_op_error(prog, op_idx, " reads SOURCE and %s TARGET, no more, and in any case",
                              item->kind == OP_DISPATCH ? "writes" : "updates");
    return 0;
}

/* Checks the norm of several ranks: it takes the sums of all ranks and puts them in the order of
 * the model's blocks. */
static int check_norm(const program *prog, uint32_t op_idx)
{
    const op *item = &prog->ops[op_idx];
    if (item->kind == OP_NORM_PART && world_of(prog) == 1)
        return swapi_op_error(prog, op_idx, ", but one rank's norm has no parts");
    if ((item->kind != OP_NORM && item->kind != OP_NORM_PART) || world_of(prog) == 1)
        return 0;
    const operand *gathered = op_operand(item, ROLE_NORM_SUMS);
    const operand *ordered = op_operand(item, ROLE_TARGET);
    if (!gathered || !ordered)
        return swapi_op_error(prog, op_idx,
                              " lacks an operand: of %llu ranks it takes NORM_SUMS and TARGET",
                              (unsigned long long)world_of(prog));
    if (gathered->access != ACCESS_READ || ordered->access != ACCESS_WRITE)
        return swapi_op_error(prog, op_idx, " reads NORM_SUMS and writes TARGET, no more");
    if (gathered->size_bytes != ordered->size_bytes ||
        gathered->size_bytes % (world_of(prog) * sizeof(double)) != 0)
        return swapi_op_error(prog, op_idx,
                              ": %llu bytes of sums as gathered and %llu by block are not the same "
                              "number for each of %llu ranks",
                              (unsigned long long)gathered->size_bytes,
                              (unsigned long long)ordered->size_bytes,
                              (unsigned long long)world_of(prog));
    return 0;
}

/* Checks an update's gradient, and that no other op but a backward has to do with lent ones. */
static int check_lent(const program *prog, uint32_t op_idx)
{
    const op *item = &prog->ops[op_idx];
    const operand *lent = op_operand(item, ROLE_LENT), *sums = op_operand(item, ROLE_NORM_SUMS);
    if (lent && item->kind != OP_BACKWARD && item->kind != OP_UPDATE)
        return swapi_op_error(prog, op_idx, " has LENT, which is of backwards and updates");
    if (lent && (lent->access != (item->kind == OP_UPDATE ? ACCESS_READ : ACCESS_WRITE) ||
                 !prog->buffers[lent->buffer_idx].is_home))
        return swapi_op_error(prog, op_idx,
                              ": LENT lies in a home, a backward writes it, an update reads it");
    if (item->kind != OP_UPDATE)
        return 0;
    uint64_t sums_bytes = item->elem_count / SHARD_ELEMS_STEP * sizeof(double);
    if (!lent == !op_operand(item, ROLE_SOURCE) || !lent != !sums ||
        (sums && (sums->access != ACCESS_WRITE || sums->size_bytes != sums_bytes)))
        return swapi_op_error(prog, op_idx,
                              " has either SOURCE, or LENT and NORM_SUMS of its tile");
    return 0;
}

/* Checks an addition to a sum: it changes TARGET alone, and SOURCE is as large. */
static int check_grad_add(const program *prog, uint32_t op_idx)
{
    const op *item = &prog->ops[op_idx];
    if (item->kind != OP_GRAD_ADD)
        return 0;
    const operand *source = op_operand(item, ROLE_SOURCE), *target = op_operand(item, ROLE_TARGET);
    if (source->access != ACCESS_READ || target->access != ACCESS_UPDATE ||
        item->operand_count != 2)
        return swapi_op_error(prog, op_idx, " reads SOURCE and updates TARGET, no more");
    if (source->size_bytes != target->size_bytes ||
        source->size_bytes != item->elem_count * sizeof(float))
        return swapi_op_error(prog, op_idx, " adds %llu bytes to %llu, and %llu elements are named",
                              (unsigned long long)source->size_bytes,
                              (unsigned long long)target->size_bytes,
                              (unsigned long long)item->elem_count);
    return 0;
}

/* Checks that the parts of a norm are counted from 0 and that an OP_NORM is the last. */
static int check_norm_parts(const program *prog)
{
    uint32_t due = 0, latest = PROGRAM_NONE;
    char text[SWAPI_OP_TEXT_BYTES];
    for (uint32_t i = 0; i < prog->op_count; i++) {
        const op *item = &prog->ops[i];
        bool is_last = item->kind == OP_NORM && due > 0;
        if ((item->kind == OP_NORM_PART || is_last) && item->tile != due)
            return swapi_op_error(prog, i, " is part %u of the norm, but part %u is due",
                                  item->tile, due);
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

/* ---- one op ---- */

static int check_op(const program *prog, uint32_t op_idx)
{
    const op *item = &prog->ops[op_idx];
    if (item->kind >= OP_KIND_COUNT)
        return err_set(ERR_INTERNAL, "program: op %u has kind %u, which does not exist", op_idx,
                       item->kind);
    const struct kind_rule *rule = &kind_rules[item->kind];
    bool is_gpu_work = rule->or_compute && item->lane == LANE_COMPUTE;
    if (item->lane != rule->lane && !is_gpu_work)
        return swapi_op_error(prog, op_idx, " is on lane %s but belongs on %s",
                              lane_kind_name((enum lane_kind)item->lane),
                              lane_kind_name((enum lane_kind)rule->lane));
    if (item->operand_count > OP_OPERANDS_MAX)
        return swapi_op_error(prog, op_idx, " has %u operands, more than %d", item->operand_count,
                              (int)OP_OPERANDS_MAX);
    if (item->kind == OP_COMMIT && item->operand_count > 0)
        return swapi_op_error(prog, op_idx, " has %u operands, but a commit has none",
                              item->operand_count);
    if (item->dep_begin > prog->dep_count || item->dep_count > prog->dep_count - item->dep_begin)
        return swapi_op_error(prog, op_idx, ": dependencies %u to %llu of %llu", item->dep_begin,
                              (unsigned long long)item->dep_begin + item->dep_count,
                              (unsigned long long)prog->dep_count);
    for (uint32_t k = 0; k < item->dep_count; k++)
        if (prog->deps[item->dep_begin + k] >= op_idx)
            return swapi_op_error(prog, op_idx, " depends on op %u, which is not before it",
                                  prog->deps[item->dep_begin + k]);
    TRY(check_behind(prog, op_idx));
    uint32_t roles = 0;
    for (uint32_t k = 0; k < item->operand_count; k++) {
        TRY(check_operand(prog, op_idx, k));
        if (roles & ROLE_BIT(item->operands[k].role))
            return operand_error(prog, op_idx, k, "an operand before it has the same role");
        roles |= ROLE_BIT(item->operands[k].role);
    }
    uint32_t required =
        rule->is_copy ? ROLE_BIT(ROLE_SOURCE) | ROLE_BIT(ROLE_TARGET) : rule->roles_required;
    if ((roles & required) != required)
        return swapi_op_error(prog, op_idx, " lacks an operand: has roles %#x, needs %#x", roles,
                              required);
    if (rule->is_copy &&
        op_operand(item, ROLE_SOURCE)->size_bytes != op_operand(item, ROLE_TARGET)->size_bytes)
        return swapi_op_error(prog, op_idx, " copies %llu bytes to %llu",
                              (unsigned long long)op_operand(item, ROLE_SOURCE)->size_bytes,
                              (unsigned long long)op_operand(item, ROLE_TARGET)->size_bytes);
    TRY(check_collective(prog, op_idx));
    TRY(check_unite_hits(prog, op_idx));
    TRY(check_exchange(prog, op_idx));
    TRY(check_norm(prog, op_idx));
    TRY(check_grad_add(prog, op_idx));
    TRY(check_lent(prog, op_idx));
    return check_state(prog, op_idx);
}

static int check_peaks(const program *prog)
{
    uint64_t peaks[TIER_COUNT] = {0};
    for (uint64_t b = 0; b < prog->buffer_count; b++) {
        const buffer *item = &prog->buffers[b];
        peaks[item->arena] = size_max(peaks[item->arena], item->offset_bytes + item->size_bytes);
    }
    for (int a = 0; a < TIER_COUNT; a++) {
        const char *name = tier_name((enum tier)a);
        uint32_t reaches = prog->peak_buffer[a];
        if (prog->peak_bytes[a] != peaks[a])
            return err_set(ERR_INTERNAL,
                           "program: the %s arena's peak is %llu bytes, but the program says %llu",
                           name, (unsigned long long)peaks[a],
                           (unsigned long long)prog->peak_bytes[a]);
        if (peaks[a] == 0 && reaches == PROGRAM_NONE)
            continue;
        const buffer *item = reaches < prog->buffer_count ? &prog->buffers[reaches] : NULL;
        if (!item || item->arena != a || item->offset_bytes + item->size_bytes != peaks[a])
            return err_set(
                ERR_INTERNAL,
                "program: buffer %u is named as the %s arena's highest, but does not end at "
                "its peak of %llu bytes",
                reaches, name, (unsigned long long)peaks[a]);
    }
    return 0;
}

/* Checks that backwards lend in the two halves of the home by turns, and that an update reads the
 * addresses of its own unit: the last backward before it that wrote to the same half is one of that
 * unit. */
static int check_lenders(const program *prog)
{
    const op *lenders[2] = {NULL, NULL}; /* by half, the last one */
    uint32_t home = PROGRAM_NONE;
    uint64_t last_half = 2; /* none yet */
    char text[SWAPI_OP_TEXT_BYTES];
    for (uint32_t i = 0; i < prog->op_count; i++) {
        const op *item = &prog->ops[i];
        const operand *lent = op_operand(item, ROLE_LENT);
        if (!lent)
            continue;
        uint64_t half = lent->offset_bytes / lent->size_bytes;
        home = home == PROGRAM_NONE ? lent->buffer_idx : home;
        if (lent->buffer_idx != home || half > 1 || lent->offset_bytes % lent->size_bytes != 0 ||
            prog->buffers[home].size_bytes / 2 != lent->size_bytes)
            return err_set(ERR_INTERNAL, "program: LENT of %s is not one half of the only home",
                           swapi_op_text(prog, i, text));
        if (item->kind == OP_BACKWARD) {
            if (half == last_half)
                return swapi_op_error(prog, i, " lends in the half of the one before");
            last_half = half;
            lenders[half] = item;
        } else if (!lenders[half] || lenders[half]->unit != item->unit)
            return swapi_op_error(prog, i,
                                  " reads addresses that no backward of its unit wrote last");
    }
    return 0;
}

int swapi_check_structure(const program *prog)
{
    TRY(check_header(prog));
    for (uint64_t b = 0; b < prog->buffer_count; b++)
        TRY(check_buffer(prog, b));
    for (uint64_t i = 0; i < prog->op_count; i++)
        TRY(check_op(prog, (uint32_t)i));
    TRY(check_peaks(prog));
    TRY(check_lenders(prog));
    return check_norm_parts(prog);
}
