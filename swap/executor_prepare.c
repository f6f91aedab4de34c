/* The tables by which the executor walks a program: dependents of each op, ops of each lane, and
 * for conditional ops the norm that decides. Made once at creation, then read only; allocates
 * through base/mem. See executor_internal.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "swap/executor_internal.h"
#include "swap/program_internal.h"

static const char tag[] = "executor";

void swapi_prepared_fini(swapi_prepared *self)
{
    mem_free(self->next_begin);
    mem_free(self->next);
    mem_free(self->lane_ops);
    mem_free(self->norms);
    mem_free(self->routers);
    mem_free(self->kept);
    memset(self, 0, sizeof *self);
}

/* program_check proves the rest that the loop relies on. */
static int check_lanes(const executor *self, const program *prog)
{
    for (uint64_t i = 0; i < prog->op_count; i++)
        if (!self->lanes[prog->ops[i].lane])
            return err_set(ERR_INTERNAL,
                           "executor: op %llu of the %s program needs lane %s, which was not given",
                           (unsigned long long)i, program_kind_name(prog->kind),
                           lane_kind_name((enum lane_kind)prog->ops[i].lane));
    return 0;
}

/* Fills the tables by two counting sorts: dependents by the op that they depend on, ops by lane. */
static int sort_ops(const program *prog, swapi_prepared *out)
{
    uint64_t count = prog->op_count, edge_count = 0;
    for (uint64_t i = 0; i < count; i++)
        edge_count += prog->ops[i].dep_count + (prog->ops[i].behind != PROGRAM_NONE);
    out->next_begin = mem_alloc(count + 2, sizeof *out->next_begin, tag);
    out->next = mem_alloc(edge_count, sizeof *out->next, tag);
    out->lane_ops = mem_alloc(count, sizeof *out->lane_ops, tag);
    if (!out->next_begin || !out->next || !out->lane_ops)
        return -ENOMEM;
    uint64_t lane_at[LANE_COUNT] = {0};
    for (uint64_t i = 0; i < count; i++) {
        const op *item = &prog->ops[i];
        lane_at[item->lane]++;
        for (uint32_t k = 0; k < item->dep_count; k++)
            out->next_begin[prog->deps[item->dep_begin + k] + 2]++;
        if (item->behind != PROGRAM_NONE)
            out->next_begin[(uint64_t)item->behind + 2]++;
    }
    for (int kind = 0; kind < LANE_COUNT; kind++) {
        out->lane_begin[kind + 1] = out->lane_begin[kind] + lane_at[kind];
        lane_at[kind] = out->lane_begin[kind];
    }
    for (uint64_t i = 0; i < count; i++)
        out->next_begin[i + 2] += out->next_begin[i + 1];
    for (uint64_t i = 0; i < count; i++) {
        const op *item = &prog->ops[i];
        out->lane_ops[lane_at[item->lane]++] = (uint32_t)i;
        for (uint32_t k = 0; k < item->dep_count; k++)
            out->next[out->next_begin[prog->deps[item->dep_begin + k] + 1]++] = (uint32_t)i;
        if (item->behind != PROGRAM_NONE)
            out->next[out->next_begin[(uint64_t)item->behind + 1]++] = (uint32_t)i;
    }
    return 0;
}

/* --- conditional ops -------------------------------------------------------------------------- */

/* The norm that `first` is or comes after; PROGRAM_NONE: none. */
static uint32_t norm_through(const program *prog, const uint32_t *norms, uint32_t first)
{
    return prog->ops[first].kind == OP_NORM ? first : norms[first];
}

/* The later one of two norms. Norms are on one chain, so the earlier one is complete by then. */
static uint32_t later_norm(uint32_t a, uint32_t b)
{
    return a == PROGRAM_NONE || (b != PROGRAM_NONE && b > a) ? b : a;
}

void swapi_find_norms(const program *prog, uint32_t *norms)
{
    uint32_t last_of_lane[LANE_COUNT];
    for (int kind = 0; kind < LANE_COUNT; kind++)
        last_of_lane[kind] = PROGRAM_NONE;
    for (uint32_t i = 0; i < prog->op_count; i++) {
        const op *item = &prog->ops[i];
        uint32_t norm = PROGRAM_NONE;
        if (swapi_lane_is_chain(item->lane) && last_of_lane[item->lane] != PROGRAM_NONE)
            norm = norm_through(prog, norms, last_of_lane[item->lane]);
        last_of_lane[item->lane] = i;
        for (uint32_t k = 0; k < item->dep_count; k++) {
            uint32_t dep = prog->deps[item->dep_begin + k];
            if (dep < i)
                norm = later_norm(norm, norm_through(prog, norms, dep));
        }
        norms[i] = norm;
    }
}

/* If a norm of the program decides, conditional ops before it always run. So they may not write a
 * home. */
static int check_ahead(const swapi_prepared *out)
{
    const program *prog = out->prog;
    for (uint32_t i = 0; out->decides && i < prog->op_count; i++) {
        const op *item = &prog->ops[i];
        if (!item->if_applied || out->norms[i] != PROGRAM_NONE)
            continue;
        for (uint32_t k = 0; k < item->operand_count; k++) {
            const operand *part = &item->operands[k];
            char text[SWAPI_OP_TEXT_BYTES];
            if ((part->access & ACCESS_WRITE) && prog->buffers[part->buffer_idx].is_home)
                return err_set(ERR_INTERNAL,
                               "executor: %s is conditional and writes a home (buffer %u), but "
                               "nothing orders it after the norm that decides",
                               swapi_op_text(prog, i, text), part->buffer_idx);
        }
    }
    return 0;
}

static int prepare_conditions(swapi_prepared *out)
{
    bool conditional = false;
    for (uint64_t i = 0; i < out->prog->op_count; i++)
        conditional |= out->prog->ops[i].if_applied != 0;
    if (!conditional)
        return 0;
    out->norms = mem_alloc(out->prog->op_count, sizeof *out->norms, tag);
    if (!out->norms)
        return -ENOMEM;
    swapi_find_norms(out->prog, out->norms);
    for (uint64_t i = 0; i < out->prog->op_count; i++)
        out->decides |= out->prog->ops[i].if_applied && out->norms[i] != PROGRAM_NONE;
    return check_ahead(out);
}

static int prepare_hits(const executor *self, swapi_prepared *out)
{
    const program *prog = out->prog;
    bool conditional = false;
    for (uint64_t i = 0; i < prog->op_count; i++)
        conditional |= swapi_condition(&prog->ops[i]) != NULL;
    if (!conditional)
        return 0;
    if (!self->arena_base[TIER_HOST])
        return err_set(ERR_INTERNAL,
                       "executor: the %s program depends on hits in host memory, "
                       "which was not given",
                       program_kind_name(prog->kind));
    out->routers = mem_alloc(prog->op_count, sizeof *out->routers, tag);
    if (!out->routers)
        return -ENOMEM;
    TRY(swapi_find_hits(prog, out->routers));
    for (uint64_t i = 0; i < prog->op_count; i++) {
        uint32_t writer = out->routers[i];
        bool is_united = writer != PROGRAM_NONE && prog->ops[writer].kind == OP_UNITE_HITS;
        if (!swapi_condition(&prog->ops[i]) && !is_united)
            out->routers[i] = PROGRAM_NONE;
    }
    return 0;
}

/* --- contents at the start, for paranoid mode ------------------------------------------------- */

static int compare_kept(const void *left, const void *right)
{
    const swapi_kept *a = left, *b = right;
    if (a->arena != b->arena)
        return a->arena < b->arena ? -1 : 1;
    return (a->begin > b->begin) - (a->begin < b->begin);
}

static int list_kept(swapi_prepared *out)
{
    const program *prog = out->prog;
    uint64_t count = 0;
    for (uint64_t b = 0; b < prog->buffer_count; b++)
        count += prog->buffers[b].is_home || (prog->buffers[b].carried & CARRIED_IN);
    out->kept = mem_alloc(count, sizeof *out->kept, tag);
    if (!out->kept)
        return -ENOMEM;
    for (uint64_t b = 0; b < prog->buffer_count; b++) {
        const buffer *item = &prog->buffers[b];
        if (item->arena != TIER_NVME && (item->is_home || (item->carried & CARRIED_IN)))
            out->kept[out->kept_count++] = (swapi_kept){item->arena, item->offset_bytes,
                                                        item->offset_bytes + item->size_bytes};
    }
    qsort(out->kept, out->kept_count, sizeof *out->kept, compare_kept);
    return 0;
}

int swapi_prepare(const executor *self, const program *prog, swapi_prepared *out)
{
    TRY(check_lanes(self, prog));
    out->prog = prog;
    int rc = sort_ops(prog, out);
    if (rc == 0)
        rc = prepare_conditions(out);
    if (rc == 0)
        rc = prepare_hits(self, out);
    if (rc == 0 && self->paranoid)
        rc = list_kept(out);
    if (rc < 0)
        swapi_prepared_fini(out);
    return rc;
}
