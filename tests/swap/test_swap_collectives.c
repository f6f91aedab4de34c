/* Collectives in a program: each broken rule is found, what they move is counted, the executor runs
 * them in their order, and paranoid mode sees through them. Runs once plain and once in paranoid
 * mode. */
#include <errno.h>

#include "base/tile.h"
#include "tests/swap/swap_rig.h"
#include "tests/unit.h"

/* Three ranks: bytes of a rank's part and of the whole, for a unit of 3 * 4096 elements or for 4
 * norm blocks. */
enum {
    WORLD = 3,
    PART = SHARD_ELEMS_STEP * 2, /* 16-bit elements */
    WHOLE = WORLD * PART,
    PART32 = SHARD_ELEMS_STEP * 4,
    WHOLE32 = WORLD * PART32,
    SUMS = 4 * 8,
    SPACE = 65536,
};

enum {
    B_SUMS,
    B_GATHERED,
    B_ORDERED,
    B_RESTED,
    B_ACCUMULATOR,
    B_REDUCED,
    B_SCRATCH,
    B_CLOSED,
    B_PARAMS
};

enum { BACKWARD, REDUCE, ADD, CLOSE, GATHER_SUMS, NORM, GATHER, FORWARD };

/* A gradient is reduced, added to the sum that rests and closed, and the norm is taken. Then its
 * shards are gathered again, if they are applied. */
static void build_step(program *out)
{
    builder b;
    builder_init(&b, PROGRAM_STEADY, 3 * SPACE, 0, 0);
    b.prog.world = WORLD;
    builder_home(&b, TIER_DEVICE, 0, SUMS);
    builder_home(&b, TIER_DEVICE, 4096, WORLD * SUMS);
    builder_home(&b, TIER_DEVICE, 8192, WORLD * SUMS);
    builder_home(&b, TIER_DEVICE, 2 * SPACE + PART32 + WHOLE, PART32);
    builder_transient(&b, TIER_DEVICE, SPACE, WHOLE32);
    builder_transient(&b, TIER_DEVICE, 2 * SPACE, PART32);
    builder_transient(&b, TIER_DEVICE, 2 * SPACE + PART32, WHOLE);
    builder_transient(&b, TIER_DEVICE, 16384, PART);
    builder_transient(&b, TIER_DEVICE, SPACE, WHOLE); /* where the accumulator was */

    builder_op(&b, OP_BACKWARD);
    builder_use(&b, ROLE_GRADS0, ACCESS_WRITE, B_ACCUMULATOR, 0, WHOLE32);
    builder_op(&b, OP_REDUCE_SCATTER);
    b.prog.ops[REDUCE].state_kind = STATE_GRADS;
    b.prog.ops[REDUCE].demand.comm_bytes = (WORLD - 1) * PART;
    builder_use(&b, ROLE_SOURCE, ACCESS_READ, B_ACCUMULATOR, 0, WHOLE32);
    builder_use(&b, ROLE_TARGET, ACCESS_WRITE, B_REDUCED, 0, PART32);
    builder_use(&b, ROLE_WORKSPACE, ACCESS_WRITE, B_SCRATCH, 0, WHOLE);
    builder_dep(&b, BACKWARD);
    builder_op(&b, OP_GRAD_ADD);
    b.prog.ops[ADD].elem_count = PART32 / 4;
    builder_use(&b, ROLE_SOURCE, ACCESS_READ, B_RESTED, 0, PART32);
    builder_use(&b, ROLE_TARGET, ACCESS_UPDATE, B_REDUCED, 0, PART32);
    builder_dep(&b, REDUCE);
    builder_op(&b, OP_GRAD_CLOSE);
    builder_use(&b, ROLE_GRADS0, ACCESS_READ, B_REDUCED, 0, PART32);
    builder_use(&b, ROLE_TARGET, ACCESS_WRITE, B_CLOSED, 0, PART);
    builder_use(&b, ROLE_NORM_SUMS, ACCESS_WRITE, B_SUMS, 0, SUMS);
    builder_op(&b, OP_ALL_GATHER);
    b.prog.ops[GATHER_SUMS].demand.comm_bytes = (WORLD - 1) * SUMS;
    builder_use(&b, ROLE_SOURCE, ACCESS_READ, B_SUMS, 0, SUMS);
    builder_use(&b, ROLE_TARGET, ACCESS_WRITE, B_GATHERED, 0, WORLD * SUMS);
    builder_dep(&b, CLOSE);
    builder_op(&b, OP_NORM);
    builder_use(&b, ROLE_NORM_SUMS, ACCESS_READ, B_GATHERED, 0, WORLD * SUMS);
    builder_use(&b, ROLE_TARGET, ACCESS_WRITE, B_ORDERED, 0, WORLD * SUMS);
    builder_dep(&b, GATHER_SUMS);
    builder_op(&b, OP_ALL_GATHER);
    b.prog.ops[GATHER].state_kind = STATE_GRADS;
    b.prog.ops[GATHER].if_applied = 1;
    b.prog.ops[GATHER].demand.comm_bytes = (WORLD - 1) * PART;
    builder_use(&b, ROLE_SOURCE, ACCESS_READ, B_CLOSED, 0, PART);
    builder_use(&b, ROLE_TARGET, ACCESS_WRITE, B_PARAMS, 0, WHOLE);
    builder_dep(&b, NORM);
    builder_op(&b, OP_FORWARD);
    b.prog.ops[FORWARD].if_applied = 1;
    builder_use(&b, ROLE_PARAMS0, ACCESS_READ, B_PARAMS, 0, WHOLE);
    builder_use(&b, ROLE_OUTPUT, ACCESS_WRITE, B_ORDERED, 0, WORLD * SUMS);
    builder_dep(&b, GATHER);
    builder_finish(&b, out);
}

/* --- single faults ---------------------------------------------------------------------------- */

static void fewer_ranks(program *p)
{
    p->world = 2;
}
static void one_rank(program *p)
{
    p->world = 0;
}
static void gather_too_small(program *p)
{
    p->ops[GATHER].operands[1].size_bytes -= PART;
}
static void gather_no_multiple(program *p)
{
    p->ops[GATHER].operands[1].size_bytes -= 1;
}
static void part_too_large(program *p)
{
    p->ops[GATHER].operands[0].size_bytes /= 2;
}
static void reduce_of_parts(program *p)
{
    p->ops[REDUCE].operands[0].size_bytes = PART32;
}
static void reduce_to_halves(program *p)
{
    p->ops[REDUCE].operands[1].size_bytes = PART;
}
static void cut_blocks(program *p)
{
    p->ops[GATHER].operands[0].size_bytes -= 256;
    p->ops[GATHER].operands[1].size_bytes -= WORLD * 256;
}
static void cut_reduced_blocks(program *p)
{
    p->ops[REDUCE].operands[0].size_bytes /= 2;
    p->ops[REDUCE].operands[1].size_bytes /= 2;
}
static void sums_as_state(program *p)
{
    p->ops[GATHER_SUMS].state_kind = STATE_GRADS;
}
static void half_a_sum(program *p)
{
    p->ops[GATHER_SUMS].operands[0].size_bytes -= 4;
    p->ops[GATHER_SUMS].operands[1].size_bytes -= WORLD * 4;
}
static void odd_address(program *p)
{
    p->buffers[B_CLOSED].offset_bytes += 4;
}
static void source_written(program *p)
{
    p->ops[REDUCE].operands[0].access = ACCESS_UPDATE;
}
static void target_read(program *p)
{
    p->ops[GATHER].operands[1].access = ACCESS_UPDATE;
}
static void gather_with_workspace(program *p)
{
    op *item = &p->ops[GATHER_SUMS];
    item->operands[item->operand_count++] =
        (operand){.buffer_idx = B_SCRATCH, .role = ROLE_WORKSPACE, .access = 2, .size_bytes = 64};
}
static void workspace_read(program *p)
{
    p->ops[REDUCE].operands[2].access = ACCESS_READ;
}
static void other_operand(program *p)
{
    p->ops[REDUCE].operands[2].role = ROLE_SAVED;
}
static void in_place(program *p)
{
    p->ops[GATHER].operands[0].buffer_idx = B_PARAMS;
}
static void scratch_in_source(program *p)
{
    operand *part = &p->ops[REDUCE].operands[2];
    part->buffer_idx = B_ACCUMULATOR, part->offset_bytes = WHOLE32 - WHOLE;
}
static void no_target(program *p)
{
    p->ops[GATHER_SUMS].operand_count = 1;
}
static void source_on_host(program *p)
{
    p->buffers[B_CLOSED].arena = TIER_HOST, p->budget_bytes[TIER_HOST] = SPACE;
    p->peak_bytes[TIER_HOST] = 16384 + PART, p->peak_buffer[TIER_HOST] = B_CLOSED;
}
static void another_lane(program *p)
{
    p->ops[GATHER].lane = LANE_COMPUTE;
}
static void only_of_a_commit(program *p)
{
    p->ops[GATHER].if_commits = p->ops[FORWARD].if_commits = 1;
}
static void reader_runs_in_any_case(program *p)
{
    p->ops[FORWARD].if_applied = 0;
}
static void norm_of_one(program *p)
{
    p->ops[NORM].operand_count = 1;
}
static void norm_of_some(program *p)
{
    p->ops[NORM].operands[0].size_bytes -= 8;
    p->ops[NORM].operands[1].size_bytes -= 8;
}
static void norm_to_fewer(program *p)
{
    p->ops[NORM].operands[1].size_bytes = SUMS;
}
static void norm_changes_sums(program *p)
{
    p->ops[NORM].operands[0].access = ACCESS_UPDATE;
}
static void norm_without_an_end(program *p)
{
    p->ops[NORM].kind = OP_NORM_PART, p->ops[NORM].tile = 0;
}
static void norm_begins_late(program *p)
{
    p->ops[NORM].kind = OP_NORM_PART, p->ops[NORM].tile = 1;
}
static void part_of_one(program *p)
{
    norm_without_an_end(p);
    norm_of_one(p);
}
static void reduce_before_its_gradient(program *p)
{
    program_drop_dep(p, REDUCE, 0);
}
static void add_before_it_is_reduced(program *p)
{
    program_drop_dep(p, ADD, 0);
}
static void add_of_less(program *p)
{
    p->ops[ADD].operands[0].size_bytes /= 2;
}
static void add_of_other_elems(program *p)
{
    p->ops[ADD].elem_count -= 64;
}
static void add_forgets_the_sum(program *p)
{
    p->ops[ADD].operands[1].access = ACCESS_WRITE;
}
static void add_changes_both(program *p)
{
    p->ops[ADD].operands[0].access = ACCESS_UPDATE;
}
static void norm_before_its_sums(program *p)
{
    program_drop_dep(p, NORM, 0);
}
static void gather_too_late(program *p)
{
    program_drop_dep(p, FORWARD, 0);
}
static void gather_before_its_part(program *p)
{
    program_drop_dep(p, GATHER_SUMS, 0);
}

static const struct program_fault faults[] = {
    FAULT(fewer_ranks, "reduce_scatter of unit 1 (op 1): 16384 bytes of each of 2 ranks are not "
                       "49152 bytes of all"),
    FAULT(one_rank, "of each of 1 ranks are not 49152 bytes of all"),
    FAULT(gather_too_small, "8192 bytes of each of 3 ranks are not 16384 bytes of all"),
    FAULT(gather_no_multiple, "are not 24575 bytes of all"),
    FAULT(part_too_large, "4096 bytes of each of 3 ranks are not 24576"),
    FAULT(reduce_of_parts, "are not 16384 bytes of all"),
    FAULT(reduce_to_halves, "8192 bytes of each of 3 ranks are not 49152"),
    FAULT(cut_blocks, "7936 bytes of each rank are no multiple of 8192"),
    FAULT(cut_reduced_blocks, "8192 bytes of each rank are no multiple of 16384"),
    FAULT(sums_as_state, "32 bytes of each rank are no multiple of 8192"),
    FAULT(half_a_sum, "28 bytes of each rank are no multiple of 8"),
    FAULT(odd_address, "multiples of 8 bytes"),
    FAULT(source_written, "a collective reads SOURCE"),
    FAULT(target_read, "a collective reads SOURCE"),
    FAULT(gather_with_workspace, "a collective reads SOURCE"),
    FAULT(workspace_read, "a collective reads SOURCE"),
    FAULT(other_operand, "a collective reads SOURCE"),
    FAULT(in_place, "overlaps another operand"),
    FAULT(scratch_in_source, "overlaps another operand"),
    FAULT(no_target, "lacks an operand"),
    FAULT(source_on_host, "wrong arena"),
    FAULT(another_lane, "belongs on comm"),
    FAULT(only_of_a_commit, "runs only where the step commits"),
    FAULT(reader_runs_in_any_case, "leaves unwritten where the update is skipped"),
    FAULT(norm_of_one, "of 3 ranks it takes NORM_SUMS and TARGET"),
    FAULT(norm_of_some, "not the same number for each of 3 ranks"),
    FAULT(norm_to_fewer, "96 bytes of sums as gathered and 32 by block"),
    FAULT(norm_changes_sums, "reads NORM_SUMS and writes TARGET"),
    FAULT(norm_without_an_end, "no norm comes after norm_part"),
    FAULT(norm_begins_late, "is part 1 of the norm, but part 0 is due"),
    FAULT(part_of_one, "of 3 ranks it takes NORM_SUMS and TARGET"),
    FAULT(reduce_before_its_gradient, "nothing orders them"),
    FAULT(add_before_it_is_reduced, "nothing orders them"),
    FAULT(add_of_less, "adds 8192 bytes to 16384, and 4096 elements are named"),
    FAULT(add_of_other_elems, "and 4032 elements are named"),
    FAULT(add_forgets_the_sum, "reads SOURCE and updates TARGET"),
    FAULT(add_changes_both, "reads SOURCE and updates TARGET"),
    FAULT(norm_before_its_sums, "nothing orders them"),
    FAULT(gather_too_late, "nothing orders them"),
    FAULT(gather_before_its_part, "nothing orders them"),
};

static void names_each_fault(void **state)
{
    program_check_faults(build_step, faults, sizeof faults / sizeof *faults);
}

/* --- experts of other ranks ------------------------------------------------------------------ */

enum { SEND, DISPATCH, EXPERTS, RETURN, COMBINE };
enum { B_SAVED, B_SENT, B_RECEIVED };

/* A forward pass whose experts belong to ranks. */
static void build_exchange(program *out)
{
    static const uint8_t steps[] = {STEP_SEND, STEP_WHOLE, STEP_EXPERTS, STEP_WHOLE, STEP_COMBINE};
    builder b;
    builder_init(&b, PROGRAM_EVAL, 4 * SPACE, 0, 0);
    b.prog.world = WORLD;
    builder_home(&b, TIER_DEVICE, 0, PART);
    builder_transient(&b, TIER_DEVICE, SPACE, WHOLE);
    builder_transient(&b, TIER_DEVICE, 2 * SPACE, WHOLE);
    builder_op(&b, OP_FORWARD);
    builder_use(&b, ROLE_SAVED, ACCESS_READ, B_SAVED, 0, PART);
    builder_use(&b, ROLE_SENT, ACCESS_WRITE, B_SENT, 0, WHOLE);
    builder_op(&b, OP_DISPATCH);
    builder_use(&b, ROLE_SOURCE, ACCESS_READ, B_SENT, 0, WHOLE);
    builder_use(&b, ROLE_TARGET, ACCESS_WRITE, B_RECEIVED, 0, WHOLE);
    builder_dep(&b, SEND);
    builder_op(&b, OP_FORWARD);
    builder_use(&b, ROLE_RECEIVED, ACCESS_UPDATE, B_RECEIVED, 0, WHOLE);
    builder_dep(&b, DISPATCH);
    builder_op(&b, OP_RETURN);
    builder_use(&b, ROLE_SOURCE, ACCESS_READ, B_RECEIVED, 0, WHOLE);
    builder_use(&b, ROLE_TARGET, ACCESS_UPDATE, B_SENT, 0, WHOLE);
    builder_dep(&b, EXPERTS);
    builder_op(&b, OP_FORWARD);
    builder_use(&b, ROLE_SENT, ACCESS_READ, B_SENT, 0, WHOLE);
    builder_use(&b, ROLE_SAVED, ACCESS_UPDATE, B_SAVED, 0, PART);
    builder_dep(&b, RETURN);
    for (int i = SEND; i <= COMBINE; i++)
        b.prog.ops[i].step = steps[i];
    builder_finish(&b, out);
}

static void step_without_rows(program *p)
{
    p->ops[EXPERTS].operands[0].role = ROLE_SAVED;
}
static void rows_without_step(program *p)
{
    p->ops[SEND].step = STEP_WHOLE;
}
static void step_of_no_pass(program *p)
{
    p->ops[RETURN].step = STEP_COMBINE;
}
static void return_of_a_commit(program *p)
{
    p->ops[RETURN].if_commits = 1;
}
static void return_anew(program *p)
{
    p->ops[RETURN].operands[1].access = ACCESS_WRITE;
}
static void results_before_the_experts(program *p)
{
    p->deps[p->ops[RETURN].dep_begin] = DISPATCH;
}

static const struct program_fault exchange_faults[] = {
    FAULT(step_without_rows, "has step 2, but lacks SENT or RECEIVED"),
    FAULT(rows_without_step, "has step 0, but has SENT or RECEIVED"),
    FAULT(step_of_no_pass, "has a step or rows of a pass, and is none"),
    FAULT(return_of_a_commit, "reads SOURCE and updates TARGET, no more, and in any case"),
    FAULT(return_anew, "reads SOURCE and updates TARGET, no more, and in any case"),
    FAULT(results_before_the_experts, "nothing orders them"),
};

static void names_each_fault_of_an_exchange(void **state)
{
    program_check_faults(build_exchange, exchange_faults,
                         sizeof exchange_faults / sizeof *exchange_faults);
}

/* --- what one rank has ------------------------------------------------------------------------ */

/* World 0 acts as 1: a gather of one rank is a copy, and its norm needs no other sums. */
static void one_rank_is_no_special_case(void **state)
{
    for (uint32_t world = 0; world <= 1; world++) {
        program prog;
        build_step(&prog);
        prog.world = world;
        prog.ops[REDUCE].operands[0].size_bytes = PART32;
        prog.ops[GATHER_SUMS].operands[1].size_bytes = SUMS;
        prog.ops[GATHER].operands[1].size_bytes = PART;
        prog.ops[FORWARD].operands[0].size_bytes = PART;
        prog.ops[NORM].operand_count = 1;
        if (program_check(&prog) != 0)
            fail_msg("world %u: %s", world, err_text());
        norm_without_an_end(&prog);
        assert_error(program_check(&prog), ERR_INTERNAL, "one rank's norm has no parts");
        program_fini(&prog);
    }
}

static void the_hash_holds_the_world(void **state)
{
    program prog;
    build_step(&prog);
    uint64_t hash = program_hash(&prog);
    prog.world = WORLD + 1;
    assert_true(program_hash(&prog) != hash);
    prog.world = 1;
    uint64_t of_one = program_hash(&prog);
    assert_true(of_one != hash);
    prog.world = 0;
    assert_true(program_hash(&prog) == of_one);
    prog.world = WORLD;
    prog.ops[GATHER].demand.comm_bytes++;
    assert_true(program_hash(&prog) == hash);
    program_fini(&prog);
}

/* --- running them ----------------------------------------------------------------------------- */

/* A collective moves what this rank sends, whatever it writes; one that is skipped moves
 * nothing. */
static void totals_count_what_is_sent(void **state)
{
    for (uint64_t seed = 1; seed <= 24; seed++) {
        program prog;
        build_step(&prog);
        assert_int_equal(op_moved_bytes(&prog.ops[REDUCE]), (WORLD - 1) * PART);
        bool skips = seed % 2;
        rig_config config = {
            .seed = seed, .threaded = seed % 3 == 0, .skip = skips, .fail_op_idx = PROGRAM_NONE};
        rig r;
        rig_init(&r, &prog, &config);
        r.arenas.norm_skips = skips;
        fixture_arenas serial;
        fixture_arenas_init(&serial, &prog, seed);
        fixture_execute_unless(&serial, &prog, skips);
        run_totals totals;
        if (executor_run(r.exec, &prog, 1, &totals) != 0)
            fail_msg("seed %llu: %s", (unsigned long long)seed, err_text());
        assert_true(rig_matches(&r, &serial));
        rig_check_discipline(&r, seed);
        const lane_totals *comm_lane = &totals.lanes[LANE_COMM];
        assert_int_equal(comm_lane->op_count, skips ? 2 : 3);
        assert_int_equal(comm_lane->skipped_count, skips);
        uint64_t sent = (WORLD - 1) * (PART + SUMS + (skips ? 0 : PART));
        assert_int_equal(comm_lane->bytes, sent);
        fixture_arenas_fini(&serial);
        rig_fini(&r);
        program_fini(&prog);
    }
}

/* --- paranoid mode ---------------------------------------------------------------------------- */

enum act { ACT_RIGHT, ACT_WRITES_SOURCE, ACT_WRITES_BEYOND, ACT_FORGETS_A_RANK, ACT_READS_TARGET };

struct exchange {
    fixture_arenas arenas;
    enum act act;
};

/* A gather in which all ranks have this rank's data. */
static int exchange_run(void *user, const program *prog, const op *item)
{
    struct exchange *self = user;
    unsigned char *base = self->arenas.base[TIER_DEVICE];
    unsigned char *source = lane_operand_address(base, prog, op_operand(item, ROLE_SOURCE));
    unsigned char *target = lane_operand_address(base, prog, op_operand(item, ROLE_TARGET));
    assert_int_equal(prog->world, WORLD);
    if (self->act == ACT_READS_TARGET)
        for (int i = 0; i < WHOLE; i++)
            assert_int_equal(target[i], 0xff);
    for (int rank = 0; rank < WORLD - (self->act == ACT_FORGETS_A_RANK); rank++)
        memcpy(target + rank * PART, source, PART);
    if (self->act == ACT_WRITES_SOURCE)
        source[17]++;
    if (self->act == ACT_WRITES_BEYOND)
        target[WHOLE]++;
    return 0;
}

static void paranoid_mode_sees_collectives(void **state)
{
    program prog;
    build_step(&prog);
    static const char *const caught[] = {
        [ACT_WRITES_SOURCE] = "wrote to the read-only operand source, byte 17",
        [ACT_WRITES_BEYOND] = "wrote beyond the end of operand target, byte 24576",
    };
    for (int act = ACT_RIGHT; act <= ACT_READS_TARGET; act++) {
        struct exchange self = {.act = (enum act)act};
        fixture_arenas_init(&self.arenas, &prog, 5);
        const program *programs = &prog;
        paranoid_config config = {.programs = &programs,
                                  .program_count = 1,
                                  .serves = {[LANE_COMM] = true},
                                  .arena_base = {[TIER_DEVICE] = self.arenas.base[TIER_DEVICE]},
                                  .run = exchange_run,
                                  .user = &self};
        paranoid *checked;
        assert_int_equal(paranoid_create(&config, &checked), 0);
        int rc = paranoid_run(checked, &prog, &prog.ops[GATHER]);
        const unsigned char *base = self.arenas.base[TIER_DEVICE];
        const unsigned char *source = base + prog.buffers[B_CLOSED].offset_bytes;
        const unsigned char *last = base + prog.buffers[B_PARAMS].offset_bytes + WHOLE - PART;
        bool is_caught = act == ACT_WRITES_SOURCE || act == ACT_WRITES_BEYOND;
        assert_int_equal(rc, is_caught ? ERR_INTERNAL : 0);
        if (is_caught)
            assert_non_null(strstr(err_text(), caught[act]));
        for (int i = 0; i < PART && !is_caught; i++)
            assert_int_equal(last[i], act == ACT_FORGETS_A_RANK ? 0xff : source[i]);
        paranoid_destroy(checked);
        fixture_arenas_fini(&self.arenas);
    }
    program_fini(&prog);
}

int main(int argc, char **argv)
{
    rig_mode_from(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_each_fault),
        cmocka_unit_test(names_each_fault_of_an_exchange),
        cmocka_unit_test(one_rank_is_no_special_case),
        cmocka_unit_test(the_hash_holds_the_world),
        cmocka_unit_test(totals_count_what_is_sent),
        cmocka_unit_test(paranoid_mode_sees_collectives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
