/* program_check: the structure of a program, then the proofs of program_access.c and program_space.c.
 *
 * Knows nothing of how programs are compiled. Called by src/plan's tests and before every run, on any
 * thread; allocates scratch and frees it. Every failure is ERR_INTERNAL: a compiler must not produce
 * such a program, so its text names ops, buffers and bytes for the bug report. */
#include "swap/program.h"

#include <errno.h>

#include "base/mem.h"
#include "base/size.h"
#include "base/tile.h"
#include "swap/program_internal.h"

/* What a kind of op demands of its lane and its operands. */
struct kind_rule {
    uint8_t lane;
    uint8_t or_compute;      /* LANE_COMPUTE too, with all operands in device memory */
    uint8_t is_copy;         /* exactly SOURCE (read) and TARGET (written), of equal size */
    uint8_t source, target;  /* arenas of the two, for copies */
    uint8_t host_allowed;    /* all operands in one arena, host or device; else (and on the compute
                                lane) all in device */
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
    [OP_FORWARD] = {LANE_COMPUTE, 0, 0, 0, 0, 0, 0},
    [OP_RECOMPUTE] = {LANE_COMPUTE, 0, 0, 0, 0, 0, ROLE_BIT(ROLE_SAVED)},
    [OP_BACKWARD] = {LANE_COMPUTE, 0, 0, 0, 0, 0, 0},
    [OP_GRAD_CLOSE] = {LANE_COMPUTE, 0, 0, 0, 0, 0, 0},
    [OP_NORM_PART] = {LANE_COMPUTE, 0, 0, 0, 0, 0, ROLE_BIT(ROLE_NORM_SUMS)},
    [OP_NORM] = {LANE_COMPUTE, 0, 0, 0, 0, 0, 0},
    [OP_UPDATE] = {LANE_UPDATE, 1, 0, 0, 0, 1, ROLE_BIT(ROLE_STATE) | ROLE_BIT(ROLE_SOURCE)},
    [OP_INIT] = {LANE_UPDATE, 0, 0, 0, 0, 1, ROLE_BIT(ROLE_STATE)},
    [OP_WORKING_COPY] = {LANE_UPDATE, 1, 0, 0, 0, 1, ROLE_BIT(ROLE_STATE) | ROLE_BIT(ROLE_TARGET)},
    [OP_COMMIT] = {LANE_COMMIT, 0, 0, 0, 0, 0, 0},
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
                       (unsigned long long)item->offset_bytes,
                       tier_name((enum tier)item->arena), (unsigned long long)budget);
    if (item->is_home && (item->producer != PROGRAM_NONE || item->last_reader != PROGRAM_NONE))
        return err_set(ERR_INTERNAL,
                       "program: buffer %llu is a home but names a producer or reader",
                       (unsigned long long)b);
    return 0;
}

int swapi_operand_error(const program *prog, uint32_t op_idx, uint32_t k, const char *problem)
{
    char text[SWAPI_OP_TEXT_BYTES];
    const operand *part = &prog->ops[op_idx].operands[k];
    return err_set(ERR_INTERNAL, "program: %s, operand %u (buffer %u, %llu bytes at %llu): %s",
                   swapi_op_text(prog, op_idx, text), k, part->buffer_idx,
                   (unsigned long long)part->size_bytes, (unsigned long long)part->offset_bytes,
                   problem);
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
        return swapi_operand_error(prog, op_idx, k, "direct I/O takes multiples of 4096 bytes");
    int64_t residue = required_residue(item, part);
    if (home->arena != TIER_NVME && residue >= 0 &&
        address % TILE_PERIOD_BYTES != (uint64_t)residue) {
        char text[SWAPI_OP_TEXT_BYTES];
        return err_set(
            ERR_INTERNAL,
            "program: %s, operand %u (buffer %u): %s address %llu is %llu modulo %d, but "
            "must be %lld (base/tile.h)",
            swapi_op_text(prog, op_idx, text), k, part->buffer_idx,
            tier_name((enum tier)home->arena), (unsigned long long)address,
            (unsigned long long)(address % TILE_PERIOD_BYTES), (int)TILE_PERIOD_BYTES,
            (long long)residue);
    }
    return 0;
}

static int check_operand(const program *prog, uint32_t op_idx, uint32_t k)
{
    const op *item = &prog->ops[op_idx];
    const operand *part = &item->operands[k];
    const struct kind_rule *rule = &kind_rules[item->kind];
    if (part->buffer_idx >= prog->buffer_count)
        return swapi_operand_error(prog, op_idx, k, "the buffer does not exist");
    if (part->role >= ROLE_COUNT)
        return swapi_operand_error(prog, op_idx, k, "the role does not exist");
    if (part->access < ACCESS_READ || part->access > ACCESS_UPDATE)
        return swapi_operand_error(prog, op_idx, k, "the access is neither read, write nor both");
    const buffer *home = &prog->buffers[part->buffer_idx];
    if (part->size_bytes == 0 || part->size_bytes > home->size_bytes ||
        part->offset_bytes > home->size_bytes - part->size_bytes)
        return swapi_operand_error(prog, op_idx, k, "out of the bounds of the buffer");
    uint8_t arena = TIER_DEVICE;
    if (rule->is_copy) {
        bool is_source = part->role == ROLE_SOURCE && part->access == ACCESS_READ;
        bool is_target = part->role == ROLE_TARGET && part->access == ACCESS_WRITE;
        if (!is_source && !is_target)
            return swapi_operand_error(prog, op_idx, k,
                                       "a copy reads SOURCE, writes TARGET, no more");
        arena = is_source ? rule->source : rule->target;
    } else if (rule->host_allowed && item->lane != LANE_COMPUTE) {
        arena = prog->buffers[item->operands[0].buffer_idx].arena;
        if (arena == TIER_NVME)
            return swapi_operand_error(prog, op_idx, k, "computing needs memory, not nvme");
    }
    if (home->arena != arena)
        return swapi_operand_error(prog, op_idx, k,
                                   "the buffer lies in the wrong arena for this op");
    return check_alignment(prog, op_idx, k);
}

/* Which place of optimizer state an op reads or writes goes by what it says of itself (swap/places.h): one
 * that does not say that it moves such state, or of which elements, would go to the address as it stands,
 * whatever the last commit names there, and no commit would wait for it. */
static int check_state(const program *prog, uint32_t op_idx)
{
    const op *item = &prog->ops[op_idx];
    for (uint32_t k = 0; k < item->operand_count; k++) {
        const buffer *home = &prog->buffers[item->operands[k].buffer_idx];
        bool is_state = home->state_kind == STATE_OPTIMIZER || home->is_committed;
        if (home->arena == TIER_NVME && is_state &&
            (item->state_kind != home->state_kind || item->elem_count == 0))
            return swapi_operand_error(
                prog, op_idx, k,
                "holds optimizer state, but the op is not said to move elements "
                "of it");
    }
    return 0;
}

/* A read goes behind a write before it, or a write behind a read, and neither twice over. */
static int check_behind(const program *prog, uint32_t op_idx, const char *text)
{
    const op *item = &prog->ops[op_idx];
    if (item->behind == PROGRAM_NONE)
        return 0;
    if (item->behind >= op_idx)
        return err_set(ERR_INTERNAL, "program: %s goes behind op %u, which is not before it", text,
                       item->behind);
    uint8_t other = prog->ops[item->behind].lane;
    if (!(item->lane == LANE_READ && other == LANE_WRITE) &&
        !(item->lane == LANE_WRITE && other == LANE_READ))
        return err_set(
            ERR_INTERNAL,
            "program: %s goes behind op %u, but only reads and writes go behind each other", text,
            item->behind);
    if (op_depends_on(prog, op_idx, item->behind))
        return err_set(ERR_INTERNAL, "program: %s goes behind op %u and depends on it", text,
                       item->behind);
    return 0;
}

static int check_op(const program *prog, uint32_t op_idx)
{
    const op *item = &prog->ops[op_idx];
    char text[SWAPI_OP_TEXT_BYTES];
    if (item->kind >= OP_KIND_COUNT)
        return err_set(ERR_INTERNAL, "program: op %u has kind %u, which does not exist", op_idx,
                       item->kind);
    const struct kind_rule *rule = &kind_rules[item->kind];
    swapi_op_text(prog, op_idx, text);
    bool is_gpu_work = rule->or_compute && item->lane == LANE_COMPUTE;
    if (item->lane != rule->lane && !is_gpu_work)
        return err_set(ERR_INTERNAL, "program: %s is on lane %s but belongs on %s", text,
                       lane_kind_name((enum lane_kind)item->lane),
                       lane_kind_name((enum lane_kind)rule->lane));
    if (item->operand_count > OP_OPERANDS_MAX)
        return err_set(ERR_INTERNAL, "program: %s has %u operands, more than %d", text,
                       item->operand_count, (int)OP_OPERANDS_MAX);
    if (item->kind == OP_COMMIT && item->operand_count > 0)
        return err_set(ERR_INTERNAL, "program: %s has %u operands, but a commit has none", text,
                       item->operand_count);
    if (item->dep_begin > prog->dep_count || item->dep_count > prog->dep_count - item->dep_begin)
        return err_set(ERR_INTERNAL, "program: %s: dependencies %u to %llu of %llu", text,
                       item->dep_begin, (unsigned long long)item->dep_begin + item->dep_count,
                       (unsigned long long)prog->dep_count);
    for (uint32_t k = 0; k < item->dep_count; k++)
        if (prog->deps[item->dep_begin + k] >= op_idx)
            return err_set(ERR_INTERNAL, "program: %s depends on op %u, which is not before it",
                           text, prog->deps[item->dep_begin + k]);
    TRY(check_behind(prog, op_idx, text));
    uint32_t roles = 0;
    for (uint32_t k = 0; k < item->operand_count; k++) {
        TRY(check_operand(prog, op_idx, k));
        if (roles & ROLE_BIT(item->operands[k].role))
            return swapi_operand_error(prog, op_idx, k, "an operand before it has the same role");
        roles |= ROLE_BIT(item->operands[k].role);
    }
    uint32_t required =
        rule->is_copy ? ROLE_BIT(ROLE_SOURCE) | ROLE_BIT(ROLE_TARGET) : rule->roles_required;
    if ((roles & required) != required)
        return err_set(ERR_INTERNAL, "program: %s lacks an operand: has roles %#x, needs %#x", text,
                       roles, required);
    if (rule->is_copy &&
        op_operand(item, ROLE_SOURCE)->size_bytes != op_operand(item, ROLE_TARGET)->size_bytes)
        return err_set(ERR_INTERNAL, "program: %s copies %llu bytes to %llu", text,
                       (unsigned long long)op_operand(item, ROLE_SOURCE)->size_bytes,
                       (unsigned long long)op_operand(item, ROLE_TARGET)->size_bytes);
    TRY(swapi_check_collective(prog, op_idx));
    TRY(swapi_check_norm(prog, op_idx));
    return check_state(prog, op_idx);
}

/* Sorts all operands by buffer, keeping the issue order (a counting sort). */
static int list_uses(swapi_check *check)
{
    const program *prog = check->prog;
    uint64_t use_count = 0;
    check->use_begin = mem_alloc(prog->buffer_count + 2, sizeof *check->use_begin, "program check");
    if (!check->use_begin)
        return -ENOMEM;
    for (uint64_t i = 0; i < prog->op_count; i++)
        for (uint32_t k = 0; k < prog->ops[i].operand_count; k++, use_count++)
            check->use_begin[prog->ops[i].operands[k].buffer_idx + 2]++;
    check->uses = mem_alloc(use_count, sizeof *check->uses, "program check");
    if (!check->uses)
        return -ENOMEM;
    for (uint64_t b = 0; b < prog->buffer_count; b++)
        check->use_begin[b + 2] += check->use_begin[b + 1];
    for (uint64_t i = 0; i < prog->op_count; i++)
        for (uint32_t k = 0; k < prog->ops[i].operand_count; k++) {
            uint32_t b = prog->ops[i].operands[k].buffer_idx;
            check->uses[check->use_begin[b + 1]++] = (swapi_use){(uint32_t)i, k};
        }
    return 0;
}

/* Producers and last readers of transients are what their uses say. */
static int check_lifetimes(const swapi_check *check)
{
    const program *prog = check->prog;
    for (uint64_t b = prog->home_count; b < prog->buffer_count; b++) {
        const buffer *item = &prog->buffers[b];
        uint32_t producer = PROGRAM_NONE, last_reader = PROGRAM_NONE;
        for (uint64_t i = check->use_begin[b]; i < check->use_begin[b + 1]; i++) {
            const swapi_use *use = &check->uses[i];
            const operand *part = &prog->ops[use->op_idx].operands[use->operand_idx];
            if (producer == PROGRAM_NONE && (part->access & ACCESS_WRITE))
                producer = use->op_idx;
            last_reader = use->op_idx;
        }
        if (last_reader == PROGRAM_NONE)
            return err_set(ERR_INTERNAL, "program: buffer %llu is a transient that no op uses",
                           (unsigned long long)b);
        if (item->producer != producer || item->last_reader != last_reader)
            return err_set(
                ERR_INTERNAL,
                "program: buffer %llu says it lives from op %u to op %u, but its uses are "
                "from op %u to op %u",
                (unsigned long long)b, item->producer, item->last_reader, producer, last_reader);
    }
    return 0;
}

/* A reason for which ops are skipped, and how it is told. */
struct condition {
    const char *when; /* "... leaves unwritten where ..." */
    bool (*holds_for)(const op *item);
    uint64_t first_skipped; /* ops before this one run in any case */
};

static bool is_if_applied(const op *item)
{
    return item->if_applied != 0;
}

static bool is_if_commits(const op *item)
{
    return item->if_commits != 0;
}

/* What an op of this condition writes to the transient, and leaves unwritten where it is skipped, is read
 * by ops of this condition alone. */
static int check_condition_of(const swapi_check *check, const struct condition *rule, uint64_t b)
{
    const program *prog = check->prog;
    uint32_t writer = PROGRAM_NONE;
    for (uint64_t i = check->use_begin[b]; i < check->use_begin[b + 1]; i++) {
        const swapi_use *use = &check->uses[i];
        const op *item = &prog->ops[use->op_idx];
        uint8_t access = item->operands[use->operand_idx].access;
        char text[SWAPI_OP_TEXT_BYTES], writer_text[SWAPI_OP_TEXT_BYTES];
        if (writer != PROGRAM_NONE && (access & ACCESS_READ) && !rule->holds_for(item))
            return err_set(ERR_INTERNAL,
                           "program: %s runs in any case, but reads buffer %llu, which %s "
                           "leaves unwritten where %s",
                           swapi_op_text(prog, use->op_idx, text), (unsigned long long)b,
                           swapi_op_text(prog, writer, writer_text), rule->when);
        bool is_skipped = rule->holds_for(item) && use->op_idx >= rule->first_skipped;
        if ((access & ACCESS_WRITE) && is_skipped && writer == PROGRAM_NONE)
            writer = use->op_idx;
    }
    return 0;
}

/* Where an OP_NORM of the program decides, the if_applied ops before it are not skipped
 * (swap/executor.h). */
static int check_conditions(const swapi_check *check)
{
    const program *prog = check->prog;
    uint64_t norm = 0;
    while (norm < prog->op_count && prog->ops[norm].kind != OP_NORM)
        norm++;
    const struct condition applied = {"the update is skipped", is_if_applied,
                                      norm + 1 < prog->op_count ? norm + 1 : 0};
    const struct condition commits = {"the run does not commit", is_if_commits, 0};
    for (uint64_t b = prog->home_count; b < prog->buffer_count; b++) {
        TRY(check_condition_of(check, &applied, b));
        TRY(check_condition_of(check, &commits, b));
    }
    return 0;
}

/* True where the op changes what a commit makes durable: a write of optimizer state, or of params that are
 * part of it, to nvme. */
static bool is_state_write(const program *prog, const op *item)
{
    if (item->kind != OP_WRITE)
        return false;
    const buffer *home = &prog->buffers[op_operand(item, ROLE_TARGET)->buffer_idx];
    return home->arena == TIER_NVME && (item->state_kind == STATE_OPTIMIZER || home->is_committed);
}

/* Counts, for each op, the commits that it names as a dependency and those that name it. `named_by` is
 * scratch; both are [op_count] and zero. */
static void count_commits(const program *prog, uint32_t *counts, uint32_t *named_by)
{
    for (uint32_t i = 0; i < prog->op_count; i++) {
        const op *item = &prog->ops[i];
        for (uint32_t k = 0; k < item->dep_count; k++) {
            uint32_t dep = prog->deps[item->dep_begin + k];
            bool is_again = named_by[dep] == i + 1; /* the list has it twice */
            named_by[dep] = i + 1;
            if (is_again)
                continue;
            counts[i] += prog->ops[dep].kind == OP_COMMIT;
            counts[dep] += item->kind == OP_COMMIT;
        }
    }
}

static int unordered_commit(const program *prog, uint32_t write)
{
    char text[SWAPI_OP_TEXT_BYTES], commit_text[SWAPI_OP_TEXT_BYTES];
    uint32_t commit = 0;
    while (prog->ops[commit].kind != OP_COMMIT || op_depends_on(prog, commit, write) ||
           op_depends_on(prog, write, commit))
        commit++;
    return err_set(ERR_INTERNAL,
                   "program: %s and %s: neither names the other as a dependency, so the commit "
                   "may meet optimizer state that is being written",
                   swapi_op_text(prog, commit, commit_text), swapi_op_text(prog, write, text));
}

/* A commit that runs finds all that it comes after written: no write of state is left out without it. */
static int check_whole_commit(const program *prog, uint32_t commit)
{
    const op *item = &prog->ops[commit];
    char text[SWAPI_OP_TEXT_BYTES], commit_text[SWAPI_OP_TEXT_BYTES];
    for (uint32_t k = 0; k < item->dep_count; k++) {
        uint32_t dep = prog->deps[item->dep_begin + k];
        if (prog->ops[dep].if_commits && !item->if_commits && is_state_write(prog, &prog->ops[dep]))
            return err_set(ERR_INTERNAL,
                           "program: %s runs in any case, but %s, which it makes durable, does not",
                           swapi_op_text(prog, commit, commit_text),
                           swapi_op_text(prog, dep, text));
    }
    return 0;
}

/* Every write of optimizer state and every commit are ordered by a dependency of one on the other. */
static int check_commits(const program *prog)
{
    uint32_t commit_count = 0;
    for (uint64_t i = 0; i < prog->op_count; i++)
        commit_count += prog->ops[i].kind == OP_COMMIT;
    if (commit_count == 0)
        return 0;
    uint32_t *counts = mem_alloc(prog->op_count, sizeof *counts, "program check");
    uint32_t *named_by = mem_alloc(prog->op_count, sizeof *named_by, "program check");
    int rc = counts && named_by ? 0 : -ENOMEM;
    if (rc == 0)
        count_commits(prog, counts, named_by);
    for (uint32_t i = 0; i < prog->op_count && rc == 0; i++)
        if (is_state_write(prog, &prog->ops[i]) && counts[i] != commit_count)
            rc = unordered_commit(prog, i);
        else if (prog->ops[i].kind == OP_COMMIT)
            rc = check_whole_commit(prog, i);
    mem_free(counts);
    mem_free(named_by);
    return rc;
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

int program_check(const program *prog)
{
    TRY(check_header(prog));
    for (uint64_t b = 0; b < prog->buffer_count; b++)
        TRY(check_buffer(prog, b));
    for (uint64_t i = 0; i < prog->op_count; i++)
        TRY(check_op(prog, (uint32_t)i));
    TRY(check_peaks(prog));
    TRY(check_commits(prog));
    TRY(swapi_check_norm_parts(prog));

    int rc = 0;
    swapi_check check = {.prog = prog};
    TRY_GOTO(rc, list_uses(&check), done);
    TRY_GOTO(rc, check_lifetimes(&check), done);
    TRY_GOTO(rc, check_conditions(&check), done);
    TRY_GOTO(rc, swapi_order_init(&check.order, prog), done);
    TRY_GOTO(rc, swapi_check_accesses(&check), done);
    TRY_GOTO(rc, swapi_check_space(&check), done);
done:
    swapi_order_fini(&check.order);
    mem_free(check.uses);
    mem_free(check.use_begin);
    return rc;
}
