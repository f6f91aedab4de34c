/* program_check: commits and writes of state name each other, and what is skipped under a condition
 * is read only under the same. */
#include "tests/swap/small_step.h"
#include "tests/unit.h"

/* Tile i goes from its piece of a host home to nvme; two commits in between:
 *
 *   0: write tile 0   1: write tile 1   2: commit   3: write tile 0   4: write tile 2   5: commit
 *
 * 6: a write of params, which no commit is concerned with. */
enum { FIRST_COMMIT = 2, SECOND_COMMIT = 5, PARAMS_WRITE = 6 };

static void build_commits(program *out)
{
    static const uint8_t tiles[] = {0, 1, 0, 0, 2, 0, 3};
    builder b;
    builder_init(&b, PROGRAM_SAVE, 0, 4 * PIECE, 4 * PIECE);
    uint32_t nvme = builder_home(&b, TIER_NVME, 0, 4 * PIECE);
    uint32_t host = builder_home(&b, TIER_HOST, 0, 4 * PIECE);
    for (uint32_t i = 0; i < sizeof tiles; i++) {
        bool is_commit = i == FIRST_COMMIT || i == SECOND_COMMIT;
        builder_op(&b, is_commit ? OP_COMMIT : OP_WRITE);
        op *item = &b.prog.ops[i];
        if (!is_commit) {
            item->state_kind = i == PARAMS_WRITE ? STATE_PARAMS : STATE_OPTIMIZER;
            builder_use(&b, ROLE_SOURCE, ACCESS_READ, host, (uint64_t)tiles[i] * PIECE, PIECE);
            builder_use(&b, ROLE_TARGET, ACCESS_WRITE, nvme, (uint64_t)tiles[i] * PIECE, PIECE);
        }
        bool is_after = i == 3 || i == 4;
        if (is_after)
            builder_dep(&b, FIRST_COMMIT);
        if (i == 3)
            builder_dep(&b, 0); /* which wrote the same tile */
        for (uint32_t dep = 0; is_commit && dep < i; dep++)
            if (dep != FIRST_COMMIT) {
                builder_dep(&b, dep);
                builder_dep(&b, dep); /* a dependency named twice is one */
            }
    }
    builder_finish(&b, out);
}

/* Without op op_idx's dependency on `dep`, as often as it is named. */
static void lose_dep(program *prog, uint32_t op_idx, uint32_t dep)
{
    op *item = &prog->ops[op_idx];
    for (uint32_t k = item->dep_count; k-- > 0;)
        if (prog->deps[item->dep_begin + k] == dep)
            program_drop_dep(prog, op_idx, k);
}

static void commits_and_writes_name_each_other(void **state)
{
    static const struct {
        uint32_t op_idx, dep;
        const char *commit, *write;
    } lost[] = {
        {FIRST_COMMIT, 0, "commit of unit 2 (op 2)", "write of unit 0 (op 0)"},
        {FIRST_COMMIT, 1, "commit of unit 2 (op 2)", "write of unit 1 (op 1)"},
        {4, FIRST_COMMIT, "commit of unit 2 (op 2)", "write of unit 4 (op 4)"},
        {SECOND_COMMIT, 1, "commit of unit 5 (op 5)", "write of unit 1 (op 1)"},
        {SECOND_COMMIT, 4, "commit of unit 5 (op 5)", "write of unit 4 (op 4)"},
    };
    program prog;
    build_commits(&prog);
    assert_ok(program_check(&prog));
    program_fini(&prog);
    for (size_t i = 0; i < sizeof lost / sizeof *lost; i++) {
        build_commits(&prog);
        lose_dep(&prog, lost[i].op_idx, lost[i].dep);
        assert_int_equal(program_check(&prog), ERR_INTERNAL);
        if (!strstr(err_text(), lost[i].commit) || !strstr(err_text(), lost[i].write) ||
            !strstr(err_text(), "neither names the other"))
            fail_msg("%d: \"%s\"", (int)i, err_text());
        uint32_t write = lost[i].op_idx == 4 ? 4 : lost[i].dep;
        prog.ops[write].state_kind = STATE_GRADS; /* which no commit is concerned with */
        assert_int_equal(program_check(&prog), 0);
        program_fini(&prog);
    }
    /* A way around over other ops is not enough: the two name each other. */
    build_commits(&prog);
    lose_dep(&prog, SECOND_COMMIT, 0); /* the commit still comes after op 3, which overwrites it */
    assert_int_equal(program_check(&prog), ERR_INTERNAL);
    program_fini(&prog);
    build_commits(&prog);
    prog.ops[FIRST_COMMIT].operands[0] = prog.ops[0].operands[0];
    prog.ops[FIRST_COMMIT].operand_count = 1;
    assert_error(program_check(&prog), ERR_INTERNAL, "a commit has none");
    prog.ops[FIRST_COMMIT].operand_count = 0;
    prog.ops[FIRST_COMMIT].lane = LANE_COMPUTE;
    assert_error(program_check(&prog), ERR_INTERNAL, "belongs on commit");
    program_fini(&prog);
}

/* A write of state that is not said to be one would go past the table of places and past the
 * commits. */
static void state_is_moved_as_state(void **state)
{
    program prog;
    build_commits(&prog);
    prog.buffers[0].state_kind = STATE_OPTIMIZER; /* the home on nvme */
    prog.ops[PARAMS_WRITE].state_kind = STATE_OPTIMIZER;
    prog.op_count--; /* nothing of params there */
    for (uint32_t i = 0; i < prog.op_count; i++)
        prog.ops[i].elem_count = 1024;
    assert_ok(program_check(&prog));
    prog.ops[4].elem_count = 0;
    assert_error(program_check(&prog), ERR_INTERNAL, "write of unit 4 (op 4), operand 1");
    assert_non_null(strstr(err_text(), "is not said to move elements"));
    prog.ops[4].elem_count = 1024;
    for (int kind = 0; kind <= STATE_KIND_COUNT; kind++) {
        prog.ops[4].state_kind = (uint32_t)kind;
        assert_int_equal(program_check(&prog), kind == STATE_OPTIMIZER ? 0 : ERR_INTERNAL);
    }
    prog.op_count++;
    program_fini(&prog);
}

static void a_commit_has_all_its_writes(void **state)
{
    program prog;
    build_commits(&prog);
    prog.ops[1].if_commits = 1;
    assert_error(program_check(&prog), ERR_INTERNAL,
                 "commit of unit 2 (op 2) runs in any case, but write of "
                 "unit 1 (op 1), which it makes durable, does not");
    prog.ops[FIRST_COMMIT].if_commits = 1;
    assert_int_equal(program_check(&prog), ERR_INTERNAL); /* the second one */
    prog.ops[SECOND_COMMIT].if_commits = 1;
    assert_ok(program_check(&prog));
    program_fini(&prog);
}

/* Bytes written under one condition may be read under both, but not vice versa. */
static void conditions_go_together(void **state)
{
    enum { NONE, APPLIED, COMMITS, BOTH };
    for (unsigned writer = NONE; writer <= BOTH; writer++)
        for (unsigned reader = NONE; reader <= BOTH; reader++) {
            program prog;
            build_step(&prog);
            for (uint32_t i = 0; i < 3; i++) { /* read ─► update ─► write */
                unsigned condition = i == 0 ? writer : reader;
                prog.ops[i].if_applied = condition & APPLIED;
                prog.ops[i].if_commits = condition >> 1;
            }
            int expected = (writer & ~reader) == 0 ? 0 : ERR_INTERNAL;
            if (program_check(&prog) != expected)
                fail_msg("writer %u, reader %u: %s", writer, reader, err_text());
            program_fini(&prog);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commits_and_writes_name_each_other),
        cmocka_unit_test(state_is_moved_as_state),
        cmocka_unit_test(a_commit_has_all_its_writes),
        cmocka_unit_test(conditions_go_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
