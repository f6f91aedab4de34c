/* The program's small functions: release, names, look-up, hash. Pure; any thread. Only program_fini
 * and swapi_find_hits use the heap. */
#include "swap/program.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <xxhash.h>

#include "base/mem.h"
#include "base/size.h"
#include "base/text.h"
#include "swap/program_internal.h"

void program_fini(program *prog)
{
    if (!prog)
        return;
    mem_free(prog->ops);
    mem_free(prog->deps);
    mem_free(prog->buffers);
    memset(prog, 0, sizeof *prog);
}

const operand *op_operand(const op *item, enum operand_role role)
{
    for (uint32_t i = 0; i < item->operand_count; i++)
        if (item->operands[i].role == role)
            return &item->operands[i];
    return NULL;
}

bool op_depends_on(const program *prog, uint32_t op_idx, uint32_t dep_idx)
{
    assert(op_idx < prog->op_count);
    const op *item = &prog->ops[op_idx];
    for (uint32_t k = 0; k < item->dep_count; k++)
        if (prog->deps[item->dep_begin + k] == dep_idx)
            return true;
    return false;
}

uint64_t op_moved_bytes(const op *item)
{
    switch ((enum op_kind)item->kind) {
    case OP_READ:
    case OP_WRITE:
    case OP_H2D:
    case OP_D2H: {
        const operand *target = op_operand(item, ROLE_TARGET);
        return target ? target->size_bytes : 0;
    }
    case OP_ALL_GATHER:
    case OP_REDUCE_SCATTER:
    case OP_UNITE_HITS:
    case OP_DISPATCH:
    case OP_RETURN:
        return item->demand.comm_bytes;
    default:
        return 0;
    }
}

/* Little-endian words of one op or buffer, so that the hash depends on no padding and no byte
 * order. */
struct canonical {
    uint8_t bytes[(18 + 4 * OP_OPERANDS_MAX) * 8];
    size_t count;
};

static void canonical_put(struct canonical *out, uint64_t value)
{
    assert(out->count + 8 <= sizeof out->bytes);
    for (int i = 0; i < 8; i++)
        out->bytes[out->count++] = (uint8_t)(value >> (8 * i));
}

static uint64_t canonical_hash(struct canonical *words, uint64_t hash)
{
    hash = XXH3_64bits_withSeed(words->bytes, words->count, hash);
    words->count = 0;
    return hash;
}

static uint64_t hash_op(const program *prog, const op *item, uint64_t hash)
{
    struct canonical words = {.count = 0};
    canonical_put(&words, item->kind);
    canonical_put(&words, item->lane);
    canonical_put(&words, item->operand_count);
    canonical_put(&words, item->fresh_grads);
    canonical_put(&words, item->unit);
    canonical_put(&words,
                  (uint64_t)item->step << 16 | (uint64_t)item->if_commits << 8 | item->if_applied);
    canonical_put(&words, item->stage);
    canonical_put(&words, item->pass);
    canonical_put(&words, item->micro_batch);
    canonical_put(&words, item->tile);
    canonical_put(&words, item->state_kind);
    canonical_put(&words, item->dep_count);
    canonical_put(&words, item->behind);
    canonical_put(&words, item->elem_begin);
    canonical_put(&words, item->elem_count);
    uint32_t operand_count =
        item->operand_count < OP_OPERANDS_MAX ? item->operand_count : OP_OPERANDS_MAX;
    for (uint32_t i = 0; i < operand_count; i++) {
        const operand *part = &item->operands[i];
        canonical_put(&words, part->buffer_idx);
        canonical_put(&words, (uint64_t)part->role << 8 | part->access);
        canonical_put(&words, part->offset_bytes);
        canonical_put(&words, part->size_bytes);
    }
    hash = canonical_hash(&words, hash);
    for (uint32_t i = 0; i < item->dep_count; i++) {
        canonical_put(&words, prog->deps[item->dep_begin + i]);
        if (words.count + 8 > sizeof words.bytes)
            hash = canonical_hash(&words, hash);
    }
    return canonical_hash(&words, hash);
}

uint64_t program_hash(const program *prog)
{
    struct canonical words = {.count = 0};
    canonical_put(&words, prog->kind);
    canonical_put(&words, prog->world ? prog->world : 1);
    canonical_put(&words, prog->op_count);
    canonical_put(&words, prog->buffer_count);
    canonical_put(&words, prog->home_count);
    uint64_t hash = canonical_hash(&words, 0);
    for (uint64_t i = 0; i < prog->op_count; i++)
        hash = hash_op(prog, &prog->ops[i], hash);
    for (uint64_t i = 0; i < prog->buffer_count; i++) {
        const buffer *item = &prog->buffers[i];
        canonical_put(&words, item->arena);
        canonical_put(&words, item->is_home != 0);
        canonical_put(&words, item->state_kind);
        canonical_put(&words, item->unit);
        canonical_put(&words, (uint64_t)item->tile << 8 | item->carried);
        canonical_put(&words, item->offset_bytes);
        canonical_put(&words, item->size_bytes);
        hash = canonical_hash(&words, hash);
    }
    return hash;
}

uint64_t program_united_bytes(uint64_t unit_count, uint64_t world)
{
    return (world + 1) * size_round_up(unit_count, 8);
}

int swapi_find_hits(const program *prog, uint32_t *writers)
{
    uint64_t unit_count = 0;
    for (uint64_t i = 0; i < prog->op_count; i++) {
        const operand *hits = op_operand(&prog->ops[i], ROLE_HITS);
        writers[i] = PROGRAM_NONE;
        if (hits)
            unit_count = size_max(unit_count, hits->offset_bytes + hits->size_bytes);
    }
    if (unit_count == 0)
        return 0;
    uint32_t *latest = mem_alloc(unit_count, sizeof *latest, "hits of a program");
    if (!latest)
        return -ENOMEM;
    for (uint64_t u = 0; u < unit_count; u++)
        latest[u] = PROGRAM_NONE;
    for (uint32_t i = 0; i < prog->op_count; i++) {
        const operand *hits = op_operand(&prog->ops[i], ROLE_HITS);
        if (hits && hits->access == ACCESS_READ)
            writers[i] = latest[hits->offset_bytes];
        for (uint64_t u = 0; hits && hits->access != ACCESS_READ && u < hits->size_bytes; u++)
            latest[hits->offset_bytes + u] = i;
    }
    mem_free(latest);
    return 0;
}

char *swapi_op_text(const program *prog, uint32_t op_idx, char text[SWAPI_OP_TEXT_BYTES])
{
    const op *item = &prog->ops[op_idx];
    snprintf(text, SWAPI_OP_TEXT_BYTES, "%s", op_kind_name((enum op_kind)item->kind));
    if (item->unit != PROGRAM_NONE)
        text_add(text, SWAPI_OP_TEXT_BYTES, " of unit %u", item->unit);
    if (item->tile != PROGRAM_NONE)
        text_add(text, SWAPI_OP_TEXT_BYTES, ", tile %u", item->tile);
    if (item->micro_batch != PROGRAM_NONE)
        text_add(text, SWAPI_OP_TEXT_BYTES, ", micro-batch %u", item->micro_batch);
    text_add(text, SWAPI_OP_TEXT_BYTES, " (op %u)", op_idx);
    return text;
}

int swapi_op_error(const program *prog, uint32_t op_idx, const char *format, ...)
{
    char text[SWAPI_OP_TEXT_BYTES], rest[ERR_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(rest, sizeof rest, format, args);
    va_end(args);
    return err_set(ERR_INTERNAL, "program: %s%s", swapi_op_text(prog, op_idx, text), rest);
}

/* An entry of a name table. A value outside of it gives "unknown", so a damaged program can be
 * printed. */
static const char *name_at(const char *const *names, unsigned count, unsigned value)
{
    return value < count ? names[value] : "unknown";
}

const char *program_kind_name(enum program_kind kind)
{
    static const char *const names[PROGRAM_KIND_COUNT] = {
        [PROGRAM_INIT] = "init",   [PROGRAM_FIRST] = "first", [PROGRAM_STEADY] = "steady",
        [PROGRAM_FLUSH] = "flush", [PROGRAM_EVAL] = "eval",   [PROGRAM_SAVE] = "save",
        [PROGRAM_LOAD] = "load",
    };
    return name_at(names, PROGRAM_KIND_COUNT, kind);
}

const char *lane_kind_name(enum lane_kind kind)
{
    static const char *const names[LANE_COUNT] = {
        [LANE_READ] = "read",     [LANE_WRITE] = "write",   [LANE_H2D] = "h2d",
        [LANE_D2H] = "d2h",       [LANE_COMM] = "comm",     [LANE_COMPUTE] = "compute",
        [LANE_UPDATE] = "update", [LANE_COMMIT] = "commit",
    };
    return name_at(names, LANE_COUNT, kind);
}

const char *op_kind_name(enum op_kind kind)
{
    static const char *const names[OP_KIND_COUNT] = {
        [OP_READ] = "read",
        [OP_WRITE] = "write",
        [OP_H2D] = "h2d",
        [OP_D2H] = "d2h",
        [OP_ALL_GATHER] = "all_gather",
        [OP_REDUCE_SCATTER] = "reduce_scatter",
        [OP_UNITE_HITS] = "unite_hits",
        [OP_FORWARD] = "forward",
        [OP_RECOMPUTE] = "recompute",
        [OP_BACKWARD] = "backward",
        [OP_GRAD_ADD] = "grad_add",
        [OP_GRAD_CLOSE] = "grad_close",
        [OP_NORM_PART] = "norm_part",
        [OP_NORM] = "norm",
        [OP_UPDATE] = "update",
        [OP_INIT] = "init",
        [OP_WORKING_COPY] = "working_copy",
        [OP_COMMIT] = "commit",
        [OP_DIRECTION] = "direction",
        [OP_ORTHOGONALIZE] = "orthogonalize",
        [OP_DISPATCH] = "dispatch",
        [OP_RETURN] = "return",
    };
    return name_at(names, OP_KIND_COUNT, kind);
}
