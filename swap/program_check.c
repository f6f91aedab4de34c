/* program_check: first the structure of a program (program_structure.c), then what its ops require
 * of each other: lifetimes, conditions, commits and order here, bytes in program_access.c and
 * program_space.c.
 *
 * It knows nothing of how programs are compiled. It runs before every run and in tests, on any
 * thread; it allocates scratch and frees it. Every failure is ERR_INTERNAL: a compiler must not
 * produce such a program, so the text names ops, buffers and bytes for the bug report. */
#include "swap/program.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "swap/program_internal.h"

static int compare_u64(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

uint64_t swapi_sort_distinct(uint64_t *values, uint64_t count)
{
    uint64_t kept = 0;
    qsort(values, count, sizeof *values, compare_u64);
    for (uint64_t i = 0; i < count; i++)
        if (kept == 0 || values[i] != values[kept - 1])
            values[kept++] = values[i];
    return kept;
}

uint64_t swapi_last_upto(const uint64_t *values, uint64_t count, uint64_t most)
{
    uint64_t low = 0, high = count;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (values[middle] <= most)
            low = middle;
        else
            high = middle;
    }
    return low;
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

/* Checks that producers and last readers of transients match their uses. */
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
        if (last_reader == PROGRAM_NONE && item->carried != CARRIED_THROUGH)
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

/* A reason for skipping ops, and its wording. */
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

/* Checks that only ops of this condition read what an op of this condition writes to the transient,
 * since a skipped op leaves it unwritten. */
static int check_condition_of(const swapi_check *check, const struct condition *rule, uint64_t b)
{
    const program *prog = check->prog;
    uint32_t writer = PROGRAM_NONE;
    for (uint64_t i = check->use_begin[b]; i < check->use_begin[b + 1]; i++) {
        const swapi_use *use = &check->uses[i];
        const op *item = &prog->ops[use->op_idx];
        uint8_t access = item->operands[use->operand_idx].access;
        char writer_text[SWAPI_OP_TEXT_BYTES];
        if (writer != PROGRAM_NONE && (access & ACCESS_READ) && !rule->holds_for(item))
            return swapi_op_error(
                prog, use->op_idx,
                " runs in any case, but reads buffer %llu, which %s leaves unwritten where %s",
                (unsigned long long)b, swapi_op_text(prog, writer, writer_text), rule->when);
        bool is_skipped = rule->holds_for(item) && use->op_idx >= rule->first_skipped;
        if ((access & ACCESS_WRITE) && is_skipped && writer == PROGRAM_NONE)
            writer = use->op_idx;
    }
    return 0;
}

/* If an OP_NORM of the program decides, the if_applied ops before it are not skipped
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

/* Checks one use of a transient against the first transfer that writes it only if a unit is hit. */
static int check_hit_use(const swapi_check *check, const uint32_t *writers, uint32_t writer,
                         const swapi_use *use, uint64_t b)
{
    const program *prog = check->prog;
    const op *item = &prog->ops[use->op_idx];
    const operand *own = op_operand(item, ROLE_HITS);
    const operand *hit = swapi_condition(&prog->ops[writer]);
    bool reads = item->operands[use->operand_idx].access & ACCESS_READ;
    char writer_text[SWAPI_OP_TEXT_BYTES];
    if (!reads ||
        (own && own->offset_bytes == hit->offset_bytes && writers[use->op_idx] == writers[writer]))
        return 0;
    return swapi_op_error(prog, use->op_idx,
                          " reads buffer %llu, which %s leaves unwritten where its unit is not "
                          "hit, but does not depend on the same hit",
                          (unsigned long long)b, swapi_op_text(prog, writer, writer_text));
}

static int check_hit_buffers(const swapi_check *check, const uint32_t *writers)
{
    const program *prog = check->prog;
    for (uint64_t b = prog->home_count; b < prog->buffer_count; b++) {
        uint32_t writer = PROGRAM_NONE;
        for (uint64_t i = check->use_begin[b]; i < check->use_begin[b + 1]; i++) {
            const swapi_use *use = &check->uses[i];
            const op *item = &prog->ops[use->op_idx];
            if (writer != PROGRAM_NONE)
                TRY(check_hit_use(check, writers, writer, use, b));
            else if ((item->operands[use->operand_idx].access & ACCESS_WRITE) &&
                     swapi_condition(item))
                writer = use->op_idx;
        }
    }
    return 0;
}

/* Checks that each op that depends on a hit comes after its router, and that all ops that read what
 * is fetched for a hit depend on the same hit. */
static int check_hits(const swapi_check *check)
{
    const program *prog = check->prog;
    uint32_t *writers = mem_alloc(prog->op_count, sizeof *writers, "program check");
    uint32_t home = PROGRAM_NONE;
    int rc = writers ? swapi_find_hits(prog, writers) : -ENOMEM;
    for (uint32_t i = 0; i < prog->op_count && rc == 0; i++) {
        const operand *hits = op_operand(&prog->ops[i], ROLE_HITS);
        if (!hits)
            continue;
        home = home == PROGRAM_NONE ? hits->buffer_idx : home;
        if (hits->buffer_idx != home)
            rc = swapi_op_error(prog, i, " has hits in buffer %u, others in buffer %u",
                                hits->buffer_idx, home);
        else if (hits->access == ACCESS_READ && writers[i] == PROGRAM_NONE)
            rc = swapi_op_error(prog, i, " depends on a hit, but nothing before it finds that out");
        else if (prog->ops[i].kind == OP_ALL_GATHER && prog->ops[writers[i]].kind != OP_UNITE_HITS)
            rc = swapi_op_error(prog, i,
                                " depends on a hit that ranks have not united, so that some of "
                                "them may wait for others");
    }
    if (rc == 0 && home != PROGRAM_NONE)
        rc = check_hit_buffers(check, writers);
    mem_free(writers);
    return rc;
}

/* True if the op changes what a commit makes durable: it writes optimizer state, or params that
 * belong to it, to nvme. */
static bool is_state_write(const program *prog, const op *item)
{
    if (item->kind != OP_WRITE)
        return false;
    const buffer *home = &prog->buffers[op_operand(item, ROLE_TARGET)->buffer_idx];
    return home->arena == TIER_NVME && (item->state_kind == STATE_OPTIMIZER || home->is_committed);
}

/* Counts, for each op, the commits that it names as a dependency and those that name it. `named_by`
 * is scratch; both are [op_count] and zero. */
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
    char text[SWAPI_OP_TEXT_BYTES];
    uint32_t commit = 0;
    while (prog->ops[commit].kind != OP_COMMIT || op_depends_on(prog, commit, write) ||
           op_depends_on(prog, write, commit))
        commit++;
    return swapi_op_error(prog, commit,
                          " and %s: neither names the other as a dependency, so the commit may "
                          "meet optimizer state that is being written",
                          swapi_op_text(prog, write, text));
}

/* Checks that a commit that runs finds everything it depends on written: no write of state is
 * skipped unless the commit is skipped too. */
static int check_whole_commit(const program *prog, uint32_t commit)
{
    const op *item = &prog->ops[commit];
    char text[SWAPI_OP_TEXT_BYTES];
    for (uint32_t k = 0; k < item->dep_count; k++) {
        uint32_t dep = prog->deps[item->dep_begin + k];
        if (prog->ops[dep].if_commits && !item->if_commits && is_state_write(prog, &prog->ops[dep]))
            return swapi_op_error(prog, commit,
                                  " runs in any case, but %s, which it makes durable, does not",
                                  swapi_op_text(prog, dep, text));
    }
    return 0;
}

/* Checks that every write of optimizer state and every commit are ordered by a direct
 * dependency. */
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

/* ---- happens-before between ops: exact, and in constant time in all cases but one ----
 *
 * The ops of a chain lane are totally ordered. So the ops of that lane that come before a given op
 * are a prefix, and those that come after it are a suffix: one number per lane and op each (a
 * vector clock, forward and backward). A path from a to b through any op w of chain L exists iff
 * earliest[a][L] <= w <= latest[b][L] for some w, that is iff earliest[a][L] <= latest[b][L]. All
 * other paths run over ops of the read and write lanes only. They are short (a write, then the read
 * that takes its space), and a backward search over those dependencies finds them. Memory is 56
 * bytes per op. */

static void merge_latest(uint32_t *into, const uint32_t *from)
{
    for (int lane = 0; lane < SWAPI_CHAIN_LANES; lane++)
        if (from[lane] > into[lane])
            into[lane] = from[lane];
}

static void merge_earliest(uint32_t *into, const uint32_t *from)
{
    for (int lane = 0; lane < SWAPI_CHAIN_LANES; lane++)
        if (from[lane] < into[lane])
            into[lane] = from[lane];
}

/* In issue order: merges what precedes the dependencies and the lane's previous op. */
static void fill_latest(swapi_order *self)
{
    const program *prog = self->prog;
    uint32_t before[LANE_COUNT];
    memset(before, 0xff, sizeof before);
    for (uint32_t i = 0; i < prog->op_count; i++) {
        const op *item = &prog->ops[i];
        uint32_t *row = &self->latest[(uint64_t)i * SWAPI_CHAIN_LANES];
        for (uint32_t k = 0; k < item->dep_count; k++) {
            uint64_t dep = prog->deps[item->dep_begin + k];
            merge_latest(row, &self->latest[dep * SWAPI_CHAIN_LANES]);
        }
        if (!swapi_lane_is_chain(item->lane))
            continue;
        if (before[item->lane] != PROGRAM_NONE)
            merge_latest(row, &self->latest[(uint64_t)before[item->lane] * SWAPI_CHAIN_LANES]);
        before[item->lane] = i;
        row[item->lane - LANE_H2D] = i + 1;
    }
}

/* Against the issue order: an op's followers go to its dependencies and to the lane's previous op.
 * An op's row is final when the walk reaches it. */
static void fill_earliest(swapi_order *self)
{
    const program *prog = self->prog;
    uint32_t after[LANE_COUNT];
    memset(after, 0xff, sizeof after);
    memset(self->earliest, 0xff, prog->op_count * SWAPI_CHAIN_LANES * sizeof *self->earliest);
    for (uint64_t i = prog->op_count; i-- > 0;) {
        const op *item = &prog->ops[i];
        uint32_t *row = &self->earliest[i * SWAPI_CHAIN_LANES];
        if (swapi_lane_is_chain(item->lane)) {
            if (after[item->lane] != PROGRAM_NONE)
                merge_earliest(row,
                               &self->earliest[(uint64_t)after[item->lane] * SWAPI_CHAIN_LANES]);
            after[item->lane] = (uint32_t)i;
            row[item->lane - LANE_H2D] = (uint32_t)i;
        }
        for (uint32_t k = 0; k < item->dep_count; k++) {
            uint64_t dep = prog->deps[item->dep_begin + k];
            merge_earliest(&self->earliest[dep * SWAPI_CHAIN_LANES], row);
        }
    }
}

static void order_fini(swapi_order *self)
{
    mem_free(self->latest);
    mem_free(self->earliest);
    mem_free(self->seen);
    mem_free(self->stack);
    memset(self, 0, sizeof *self);
}

static int order_init(swapi_order *self, const program *prog)
{
    uint64_t row_bytes = SWAPI_CHAIN_LANES * sizeof *self->latest;
    memset(self, 0, sizeof *self);
    self->prog = prog;
    self->latest = mem_alloc(prog->op_count, row_bytes, "program order");
    self->earliest = mem_alloc(prog->op_count, row_bytes, "program order");
    self->seen = mem_alloc(prog->op_count, sizeof *self->seen, "program order");
    self->stack = mem_alloc(prog->op_count, sizeof *self->stack, "program order");
    if (!self->latest || !self->earliest || !self->seen || !self->stack) {
        order_fini(self);
        return err_prefix(-ENOMEM, "checking a program of %llu ops",
                          (unsigned long long)prog->op_count);
    }
    fill_latest(self);
    fill_earliest(self);
    return 0;
}

/* True if there is a path over read and write ops only. Searches backward from `second`, never
 * below `first`. */
static bool path_off_chains(swapi_order *self, uint32_t first, uint32_t second)
{
    const program *prog = self->prog;
    if (++self->stamp == 0) {
        memset(self->seen, 0, prog->op_count * sizeof *self->seen);
        self->stamp = 1;
    }
    uint64_t depth = 0;
    self->stack[depth++] = second;
    while (depth > 0) {
        const op *item = &prog->ops[self->stack[--depth]];
        for (uint32_t k = 0; k < item->dep_count; k++) {
            uint32_t dep = prog->deps[item->dep_begin + k];
            if (dep == first)
                return true;
            if (dep < first || swapi_lane_is_chain(prog->ops[dep].lane) ||
                self->seen[dep] == self->stamp)
                continue;
            self->seen[dep] = self->stamp;
            self->stack[depth++] = dep;
        }
    }
    return false;
}

bool swapi_order_before(swapi_order *self, uint32_t first, uint32_t second)
{
    assert(first < second);
    const uint32_t *after = &self->earliest[(uint64_t)first * SWAPI_CHAIN_LANES];
    const uint32_t *before = &self->latest[(uint64_t)second * SWAPI_CHAIN_LANES];
    for (int lane = 0; lane < SWAPI_CHAIN_LANES; lane++)
        if (before[lane] != 0 && after[lane] < before[lane])
            return true;
    if (swapi_lane_is_chain(self->prog->ops[first].lane) ||
        swapi_lane_is_chain(self->prog->ops[second].lane))
        return false;
    return path_off_chains(self, first, second);
}

/* ---- the whole ---- */

int program_check(const program *prog)
{
    TRY(swapi_check_structure(prog));
    TRY(check_commits(prog));

    int rc = 0;
    swapi_check check = {.prog = prog};
    TRY_GOTO(rc, list_uses(&check), done);
    TRY_GOTO(rc, check_lifetimes(&check), done);
    TRY_GOTO(rc, check_conditions(&check), done);
    TRY_GOTO(rc, check_hits(&check), done);
    TRY_GOTO(rc, swapi_check_carried(&check), done);
    TRY_GOTO(rc, order_init(&check.order, prog), done);
    TRY_GOTO(rc, swapi_check_accesses(&check), done);
    TRY_GOTO(rc, swapi_check_space(&check), done);
done:
    order_fini(&check.order);
    mem_free(check.uses);
    mem_free(check.use_begin);
    return rc;
}
