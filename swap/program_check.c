/* program_check: first the structure of a program (program_structure.c), then what its ops require
 * of each other: lifetimes, conditions and commits here, order and bytes in program_access.c and
 * program_space.c.
 *
 * It knows nothing of how programs are compiled. It runs before every run and in tests, on any
 * thread; it allocates scratch and frees it. Every failure is ERR_INTERNAL: a compiler must not
 * produce such a program, so the text names ops, buffers and bytes for the bug report. */
#include "swap/program.h"

#include <errno.h>

#include "base/mem.h"
#include "swap/program_internal.h"

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

/* Checks that a commit that runs finds everything it depends on written: no write of state is
 * skipped unless the commit is skipped too. */
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

int program_check(const program *prog)
{
    TRY(swapi_check_structure(prog));
    TRY(check_commits(prog));

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
