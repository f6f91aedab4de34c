/* Fetches of experts that depend on what a router found out: those of units that are not hit are
 * skipped, under any timing, and all results are those of serial execution. On fake lanes, once
 * plain, once in paranoid mode. And the programs that program_check refuses. */
#include "base/mem.h"
#include "swap/program_internal.h"
#include "tests/swap/swap_rig.h"
#include "tests/unit.h"

/* Homes: the units' params on nvme, boundaries on the device, hits on the host. */
enum { BLOCKS = 2, UNITS = 3, ROUNDS = 2, SLOTS = 2, BLOCK = 4096, HOST_BYTES = BLOCK * 3 };

static bool meet(const program *prog, const operand *a, const operand *b)
{
    const buffer *x = &prog->buffers[a->buffer_idx], *y = &prog->buffers[b->buffer_idx];
    uint64_t p = x->offset_bytes + a->offset_bytes, q = y->offset_bytes + b->offset_bytes;
    return x->arena == y->arena && p < q + b->size_bytes && q < p + a->size_bytes &&
           (a->buffer_idx != b->buffer_idx || ((a->access | b->access) & ACCESS_WRITE));
}

/* The latest op depends on all ops before it that it may not overtake. */
static void add_deps(builder *b)
{
    const program *prog = &b->prog;
    const op *item = &prog->ops[prog->op_count - 1];
    for (uint32_t i = 0; i + 1 < prog->op_count; i++) {
        bool meets = false;
        for (uint32_t k = 0; k < item->operand_count; k++)
            for (uint32_t m = 0; m < prog->ops[i].operand_count; m++)
                meets |= meet(prog, &prog->ops[i].operands[m], &item->operands[k]);
        if (meets)
            builder_dep(b, i);
    }
}

struct homes {
    uint32_t params, boundary, hits;
};

static void add_router(builder *b, const struct homes *at, uint32_t block)
{
    builder_op(b, OP_FORWARD);
    builder_use(b, ROLE_INPUT, ACCESS_READ, at->boundary, 0, 256);
    builder_use(b, ROLE_HITS, ACCESS_WRITE, at->hits, (uint64_t)block * UNITS, UNITS);
    add_deps(b);
}

/* nvme -> host -> device, and the pass that takes it, all of them by the unit's hit. */
static void add_unit(builder *b, const struct homes *at, uint32_t unit, enum op_kind pass)
{
    uint64_t slot = b->prog.op_count / 3 % SLOTS;
    uint32_t host = builder_transient(b, TIER_HOST, BLOCK * (1 + slot), BLOCK);
    uint32_t device = builder_transient(b, TIER_DEVICE, BLOCK * (1 + slot), BLOCK);
    builder_op(b, OP_READ);
    builder_use(b, ROLE_SOURCE, ACCESS_READ, at->params, (uint64_t)unit * BLOCK, BLOCK);
    builder_use(b, ROLE_TARGET, ACCESS_WRITE, host, 0, BLOCK);
    builder_use(b, ROLE_HITS, ACCESS_READ, at->hits, unit, 1);
    add_deps(b);
    builder_op(b, OP_H2D);
    builder_use(b, ROLE_SOURCE, ACCESS_READ, host, 0, BLOCK);
    builder_use(b, ROLE_TARGET, ACCESS_WRITE, device, 0, BLOCK);
    builder_use(b, ROLE_HITS, ACCESS_READ, at->hits, unit, 1);
    add_deps(b);
    builder_op(b, pass);
    builder_use(b, ROLE_PARAMS0, ACCESS_READ, device, 0, BLOCK);
    builder_use(b, ROLE_INPUT, ACCESS_UPDATE, at->boundary, 0, 256);
    builder_use(b, ROLE_HITS, ACCESS_READ, at->hits, unit, 1);
    add_deps(b);
}

/* Rounds of a forward, whose routers find out the hits, and a backward, which knows them. */
static void make_program(program *out)
{
    builder b;
    struct homes at;
    builder_init(&b, PROGRAM_STEADY, HOST_BYTES, HOST_BYTES, BLOCKS * UNITS * BLOCK);
    at.params = builder_home(&b, TIER_NVME, 0, BLOCKS * UNITS * BLOCK);
    at.boundary = builder_home(&b, TIER_DEVICE, 0, BLOCK);
    at.hits = builder_home(&b, TIER_HOST, 0, BLOCK);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t block = 0; block < BLOCKS; block++) {
            add_router(&b, &at, block);
            for (uint32_t u = 0; u < UNITS; u++)
                add_unit(&b, &at, block * UNITS + u, OP_FORWARD);
        }
        for (uint32_t u = BLOCKS * UNITS; u-- > 0;)
            add_unit(&b, &at, u, OP_BACKWARD);
    }
    builder_finish(&b, out);
}

struct expected {
    uint64_t skipped[LANE_COUNT], spared_bytes;
};

/* Executes the ops in order, without the fetches of units that are not hit. These are noted in
 * skipped[op_count]. */
static struct expected run_serial(fixture_arenas *arenas, const program *prog, bool *skipped)
{
    struct expected sum = {{0}, 0};
    for (uint32_t i = 0; i < prog->op_count; i++) {
        const op *item = &prog->ops[i];
        const operand *hit = swapi_condition(item);
        skipped[i] = hit && arenas->base[TIER_HOST][hit->offset_bytes] == 0;
        if (skipped[i]) {
            sum.skipped[item->lane]++;
            sum.spared_bytes += op_moved_bytes(item);
            continue;
        }
        assert_int_equal(fixture_execute(arenas, prog, item), 0);
    }
    return sum;
}

static void what_is_not_hit_does_not_move(void **state)
{
    uint64_t skipped = 0, ran = 0;
    program prog;
    make_program(&prog);
    assert_ok(program_check(&prog));
    for (uint64_t seed = 0; seed < 60; seed++) {
        rig r;
        fixture_arenas serial;
        rig_init(&r, &prog,
                 &(rig_config){.seed = seed,
                               .threaded = seed % 4 == 3,
                               .busy_one_in = seed % 3 == 0 ? 4 : 0,
                               .fail_op_idx = PROGRAM_NONE});
        fixture_arenas_init(&serial, &prog, seed);
        r.watch.skipped = r.skipped = mem_alloc(prog.op_count, sizeof *r.skipped, "test");
        assert_non_null(r.skipped);
        for (uint64_t step = 1; step <= 2; step++) {
            run_totals totals;
            uint64_t spared_bytes = 0;
            rig_forget_run(&r);
            struct expected wanted = run_serial(&serial, &prog, r.skipped);
            if (executor_run(r.exec, &prog, step, &totals) != 0)
                fail_msg("seed %llu: %s", (unsigned long long)seed, err_text());
            if (!rig_matches(&r, &serial))
                fail_msg("seed %llu: memory differs", (unsigned long long)seed);
            rig_check_discipline(&r, seed);
            for (int kind = 0; kind < LANE_COUNT; kind++) {
                assert_int_equal(totals.lanes[kind].skipped_count, wanted.skipped[kind]);
                spared_bytes += totals.lanes[kind].spared_bytes;
                skipped += totals.lanes[kind].skipped_count;
            }
            assert_int_equal(spared_bytes, wanted.spared_bytes);
            ran += totals.lanes[LANE_H2D].op_count;
            assert_int_equal(totals.lanes[LANE_H2D].bytes, BLOCK * totals.lanes[LANE_H2D].op_count);
        }
        fixture_arenas_fini(&serial);
        rig_fini(&r);
    }
    printf("%llu fetches skipped, %llu copies made\n", (unsigned long long)skipped,
           (unsigned long long)ran);
    assert_true(skipped > 500 && ran > 500);
    program_fini(&prog);
}

/* ---- refusals ---- */

static void expect_refused(const program *good, void (*spoil)(program *), const char *word)
{
    program bad;
    program_copy(&bad, good);
    spoil(&bad);
    assert_int_equal(program_check(&bad), ERR_INTERNAL);
    if (!strstr(err_text(), word))
        fail_msg("'%s' does not mention '%s'", err_text(), word);
    program_fini(&bad);
}

/* The first ops are a router, and read, copy and pass of unit 0. */
enum { ROUTER, READ, COPY, PASS };

static operand *hit_of(program *prog, uint32_t op_idx)
{
    return &prog->ops[op_idx].operands[prog->ops[op_idx].operand_count - 1];
}

static void forget_router(program *prog)
{
    program_drop_dep(prog, READ, 0);
}

static void pass_without_hit(program *prog)
{
    prog->ops[PASS].operand_count--;
}

static void pass_of_other_unit(program *prog)
{
    hit_of(prog, PASS)->offset_bytes = 1;
}

static void copy_in_any_case(program *prog)
{
    prog->ops[COPY].operand_count--;
}

/* The second round's router finds hits out anew before the last fetch is used. */
static void hits_change_on_the_way(program *prog)
{
    hit_of(prog, ROUTER)->access = ACCESS_READ;
    hit_of(prog, ROUTER)->size_bytes = 1;
}

static void two_hits_at_once(program *prog)
{
    hit_of(prog, READ)->size_bytes = 2;
}

static void hits_on_the_device(program *prog)
{
    hit_of(prog, ROUTER)->buffer_idx = 1;
}

static void update_of_hits(program *prog)
{
    hit_of(prog, PASS)->access = ACCESS_UPDATE;
    prog->ops[PASS].kind = OP_BACKWARD;
}

static void wrong_programs_are_refused(void **state)
{
    program good;
    make_program(&good);
    expect_refused(&good, forget_router, "order");
    expect_refused(&good, pass_without_hit, "does not depend on the same hit");
    expect_refused(&good, pass_of_other_unit, "does not depend on the same hit");
    expect_refused(&good, copy_in_any_case, "does not depend on the same hit");
    expect_refused(&good, hits_change_on_the_way, "nothing before it finds that out");
    expect_refused(&good, two_hits_at_once, "the hit of one unit");
    expect_refused(&good, hits_on_the_device, "hits lie in a home in host memory");
    expect_refused(&good, update_of_hits, "only a forward writes hits");
    program_fini(&good);
}

/* The params of a unit are fetched for a pass of the first round and used after the next router:
 * they may be missing although the unit is hit then. */
static void a_fetch_is_of_its_round(void **state)
{
    program prog;
    builder b;
    struct homes at;
    builder_init(&b, PROGRAM_STEADY, HOST_BYTES, HOST_BYTES, UNITS * BLOCK);
    at.params = builder_home(&b, TIER_NVME, 0, UNITS * BLOCK);
    at.boundary = builder_home(&b, TIER_DEVICE, 0, BLOCK);
    at.hits = builder_home(&b, TIER_HOST, 0, BLOCK);
    add_router(&b, &at, 0);
    add_unit(&b, &at, 0, OP_FORWARD);
    add_router(&b, &at, 0);
    const operand params = b.prog.ops[PASS].operands[0];
    builder_op(&b, OP_FORWARD);
    builder_use(&b, ROLE_PARAMS0, ACCESS_READ, params.buffer_idx, 0, BLOCK);
    builder_use(&b, ROLE_INPUT, ACCESS_UPDATE, at.boundary, 0, 256);
    builder_use(&b, ROLE_HITS, ACCESS_READ, at.hits, 0, 1);
    add_deps(&b);
    builder_finish(&b, &prog);
    assert_error(program_check(&prog), ERR_INTERNAL, "does not depend on the same hit");
    program_fini(&prog);
}

/* ---- several ranks ---- */

enum { RANKS = 2, PART = 8192, WORKSPACE_BYTES = (RANKS + 1) * 8 };
enum { TELL, UNITE, GATHER, USE };

/* A router, hits of all ranks, and the gather and the pass of unit 1, which depend on them. */
static void make_gathers(program *out)
{
    builder b;
    struct homes at;
    builder_init(&b, PROGRAM_STEADY, 8 * PART, HOST_BYTES, 0);
    b.prog.world = RANKS;
    at.params = builder_home(&b, TIER_DEVICE, 0, PART);
    at.boundary = builder_home(&b, TIER_DEVICE, PART, BLOCK);
    at.hits = builder_home(&b, TIER_HOST, 0, BLOCK);
    uint32_t whole = builder_transient(&b, TIER_DEVICE, 2 * PART, RANKS * PART);
    uint32_t workspace = builder_transient(&b, TIER_DEVICE, 5 * PART, WORKSPACE_BYTES);
    add_router(&b, &at, 0);
    builder_op(&b, OP_UNITE_HITS);
    builder_use(&b, ROLE_WORKSPACE, ACCESS_WRITE, workspace, 0, WORKSPACE_BYTES);
    builder_use(&b, ROLE_HITS, ACCESS_UPDATE, at.hits, 0, UNITS);
    add_deps(&b);
    builder_op(&b, OP_ALL_GATHER);
    b.prog.ops[GATHER].state_kind = STATE_PARAMS;
    builder_use(&b, ROLE_SOURCE, ACCESS_READ, at.params, 0, PART);
    builder_use(&b, ROLE_TARGET, ACCESS_WRITE, whole, 0, RANKS * PART);
    builder_use(&b, ROLE_HITS, ACCESS_READ, at.hits, 1, 1);
    add_deps(&b);
    builder_op(&b, OP_FORWARD);
    builder_use(&b, ROLE_PARAMS0, ACCESS_READ, whole, 0, RANKS * PART);
    builder_use(&b, ROLE_HITS, ACCESS_READ, at.hits, 1, 1);
    add_deps(&b);
    builder_finish(&b, out);
}

static void own_hits_alone(program *prog)
{
    hit_of(prog, UNITE)->size_bytes = 1; /* of unit 0 */
}

static void little_workspace(program *prog)
{
    prog->ops[UNITE].operands[0].size_bytes -= 8;
}

static void hits_begun_anew(program *prog)
{
    hit_of(prog, UNITE)->access = ACCESS_WRITE;
}

static void unite_if_applied(program *prog)
{
    prog->ops[UNITE].if_applied = 1;
}

static void gather_in_any_case(program *prog)
{
    prog->ops[USE].operand_count--;
}

static void ranks_gather_what_is_hit_on_one(void **state)
{
    program good;
    make_gathers(&good);
    assert_ok(program_check(&good));
    assert_ptr_equal(swapi_condition(&good.ops[GATHER]), hit_of(&good, GATHER));
    expect_refused(&good, own_hits_alone, "ranks have not united");
    expect_refused(&good, little_workspace, "2 ranks need 24");
    expect_refused(&good, hits_begun_anew, "only a forward writes hits, or what unites them");
    expect_refused(&good, unite_if_applied, "without a condition");
    expect_refused(&good, gather_in_any_case, "does not depend on the same hit");
    program_fini(&good);
}

static void hits_need_host_memory(void **state)
{
    program prog;
    rig r;
    executor *exec;
    make_program(&prog);
    rig_init(&r, &prog, &(rig_config){.seed = 1, .fail_op_idx = PROGRAM_NONE});
    const program *programs = &prog;
    executor_config config = {.programs = &programs, .program_count = 1};
    memcpy(config.lanes, r.lanes, sizeof config.lanes);
    assert_error(executor_create(&config, &exec), ERR_INTERNAL, "hits in host memory");
    rig_fini(&r);
    program_fini(&prog);
}

int main(int argc, char **argv)
{
    rig_mode_from(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_hit_does_not_move),
        cmocka_unit_test(wrong_programs_are_refused),
        cmocka_unit_test(a_fetch_is_of_its_round),
        cmocka_unit_test(ranks_gather_what_is_hit_on_one),
        cmocka_unit_test(hits_need_host_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
