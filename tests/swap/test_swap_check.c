/* program_check: accepts what is right, names each single fault, and agrees with a slow checker
 * that looks at all pairs. Also the program's names, hash and sizes. Commits and conditions are in
 * test_swap_check_commits.c. */
#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/tile.h"
#include "tests/swap/small_step.h"
#include "tests/unit.h"

static void accepts_the_step(void **state)
{
    program prog;
    build_step(&prog);
    assert_ok(program_check(&prog));
    program_fini(&prog);
    assert_null(prog.ops);
    assert_int_equal(prog.op_count, 0);

    program empty = {.kind = PROGRAM_FLUSH,
                     .peak_buffer = {PROGRAM_NONE, PROGRAM_NONE, PROGRAM_NONE}};
    assert_int_equal(program_check(&empty), 0);
}

/* --- single faults ---------------------------------------------------------------------------- */

static void drop_update_after_read(program *p)
{
    program_drop_dep(p, 1, 0);
}
static void drop_write_after_update(program *p)
{
    program_drop_dep(p, 2, 0);
}
static void drop_h2d_after_update(program *p)
{
    program_drop_dep(p, 3, 0);
}
static void drop_forward_after_h2d(program *p)
{
    program_drop_dep(p, 4, 0);
}
static void drop_d2h_after_close(program *p)
{
    program_drop_dep(p, 7, 0);
}
static void drop_host_reuse(program *p)
{
    program_drop_dep(p, 8, 0);
}
static void drop_device_reuse(program *p)
{
    program_drop_dep(p, 10, 1);
}
static void weaken_host_reuse(program *p)
{
    p->deps[p->ops[8].dep_begin] = 1;
}
static void weaken_device_reuse(program *p)
{
    p->deps[p->ops[10].dep_begin + 1] = 4;
}
static void dep_on_itself(program *p)
{
    p->deps[p->ops[4].dep_begin] = 4;
}
static void dep_forward(program *p)
{
    p->deps[p->ops[4].dep_begin] = 6;
}
static void behind_later(program *p)
{
    p->ops[2].behind = 8;
}
static void behind_its_like(program *p)
{
    p->ops[8].behind = 0;
}
static void behind_another_lane(program *p)
{
    p->ops[8].behind = 4;
}
static void behind_a_dependency(program *p)
{
    p->ops[8].behind = 2;
}
static void dep_list_outside(program *p)
{
    p->ops[11].dep_begin = (uint32_t)p->dep_count;
}
static void overlap_transients(program *p)
{
    p->buffers[B_OUTPUT].offset_bytes -= 256;
}
static void overlap_homes(program *p)
{
    p->buffers[B_GRADS].size_bytes += 8192;
}
static void overlap_home_transient(program *p)
{
    p->buffers[B_TILE1].offset_bytes = 65536;
}
static void operand_outside(program *p)
{
    p->ops[4].operands[1].offset_bytes = 256;
}
static void operand_size_wraps(program *p)
{
    p->ops[4].operands[1].size_bytes = UINT64_MAX - 100;
}
static void operand_empty(program *p)
{
    p->ops[4].operands[1].size_bytes = 0;
}
static void operand_no_buffer(program *p)
{
    p->ops[4].operands[1].buffer_idx = 99;
}
static void operand_no_access(program *p)
{
    p->ops[4].operands[1].access = 0;
}
static void operand_no_role(program *p)
{
    p->ops[4].operands[1].role = ROLE_COUNT;
}
static void operand_role_twice(program *p)
{
    p->ops[4].operands[1].role = ROLE_PARAMS0;
}
static void source_written(program *p)
{
    p->ops[3].operands[0].access = ACCESS_UPDATE;
}
static void copy_unequal(program *p)
{
    p->ops[3].operands[0].size_bytes -= 256;
}
static void source_missing(program *p)
{
    p->ops[1].operand_count = 1;
}
static void lent_to_a_forward(program *p)
{
    p->ops[4].operands[0].role = ROLE_LENT;
}
static void wrong_arena(program *p)
{
    p->ops[4].operands[0].buffer_idx = B_PARAMS;
}
static void read_reversed(program *p)
{
    p->ops[0].kind = OP_WRITE, p->ops[0].lane = LANE_WRITE;
}
static void update_across_arenas(program *p)
{
    p->ops[1].operands[2].buffer_idx = B_WHOLE0;
}
static void buffer_no_arena(program *p)
{
    p->buffers[B_SCRATCH].arena = TIER_COUNT;
}
static void beyond_budget(program *p)
{
    p->budget_bytes[TIER_DEVICE] -= 4096;
}
static void size_wraps(program *p)
{
    p->buffers[B_SCRATCH].size_bytes = UINT64_MAX - 512;
}
static void wrong_peak(program *p)
{
    p->peak_bytes[TIER_HOST] -= 1;
}
static void wrong_peak_buffer(program *p)
{
    p->peak_buffer[TIER_DEVICE] = B_CLOSED;
}
static void wrong_producer(program *p)
{
    p->buffers[B_TILE0].producer = 1;
}
static void wrong_last_reader(program *p)
{
    p->buffers[B_WHOLE0].last_reader = 4;
}
static void home_with_producer(program *p)
{
    p->buffers[B_GRADS].producer = 7;
}
static void home_not_first(program *p)
{
    p->buffers[B_CLOSED].is_home = 1;
}
static void read_before_write(program *p)
{
    p->ops[5].fresh_grads = 0;
}
static void read_unwritten_part(program *p)
{
    p->ops[4].operands[1].size_bytes = 1024;
}
static void wrong_lane(program *p)
{
    p->ops[6].lane = LANE_UPDATE;
}
static void no_kind(program *p)
{
    p->ops[6].kind = OP_KIND_COUNT;
}
static void too_many_operands(program *p)
{
    p->ops[6].operand_count = OP_OPERANDS_MAX + 1;
}
static void state_residue(program *p)
{
    p->ops[9].operands[0].offset_bytes = 4096, p->ops[9].operands[0].size_bytes = 4096;
}
static void grads_residue(program *p)
{
    p->buffers[B_GRADS].offset_bytes = 49152 - 4096;
}
static void params_residue(program *p)
{
    p->ops[9].operands[1].offset_bytes = 65536 - 256;
}
static void nvme_misaligned(program *p)
{
    p->buffers[B_OPTIMIZER].offset_bytes += 512;
}
static void nvme_odd_size(program *p)
{
    p->ops[0].operands[0].size_bytes = 8191, p->ops[0].operands[1].size_bytes = 8191;
}
static void reader_not_conditional(program *p)
{
    p->ops[0].if_applied = 1; /* the update reads what it brings */
}

static void reader_not_of_the_commit(program *p)
{
    p->ops[0].if_commits = 1; /* the same, of an op that is skipped for another reason */
    p->ops[1].if_applied = p->ops[2].if_applied = 1;
}

static void transient_unused(program *p)
{
    p->ops[4].operand_count = 2, p->ops[5].operand_count = 3;
}

static const struct program_fault faults[] = {
    FAULT(drop_update_after_read, "nothing orders them"),
    FAULT(drop_write_after_update, "nothing orders them"),
    FAULT(drop_h2d_after_update, "nothing orders them"),
    FAULT(
        drop_forward_after_h2d, /* what kept the D2H behind the update ran through this edge */
        "update of unit 1 (op 1) reads and d2h of unit 0 (op 7) writes bytes 0 to 4096 of buffer 1 "
        "(host, home) and nothing orders them"),
    FAULT(drop_d2h_after_close, "nothing orders them"),
    FAULT(drop_host_reuse, "buffers 3 and 4 share bytes 0 to 8192 of the host arena"),
    FAULT(drop_device_reuse, "buffers 5 and 6 share bytes 0 to 4096 of the device arena"),
    FAULT(weaken_host_reuse, "buffers 3 and 4 share"),
    FAULT(weaken_device_reuse, "nothing orders backward of unit 5 (op 5), which uses the first"),
    FAULT(dep_on_itself, "not before it"),
    FAULT(dep_forward, "depends on op 6"),
    FAULT(behind_later, "goes behind op 8, which is not before it"),
    FAULT(behind_its_like, "only reads and writes go behind each other"),
    FAULT(behind_another_lane, "only reads and writes go behind each other"),
    FAULT(behind_a_dependency, "goes behind op 2 and depends on it"),
    FAULT(dep_list_outside, "dependencies"),
    FAULT(overlap_transients, "share bytes 3840 to 4096 of the device arena"),
    FAULT(overlap_homes, "a home is live all the time"),
    FAULT(overlap_home_transient, "a home is live all the time"),
    FAULT(operand_outside, "out of the bounds"),
    FAULT(operand_size_wraps, "out of the bounds"),
    FAULT(operand_empty, "out of the bounds"),
    FAULT(operand_no_buffer, "does not exist"),
    FAULT(operand_no_access, "neither read, write nor both"),
    FAULT(operand_no_role, "role does not exist"),
    FAULT(operand_role_twice, "same role"),
    FAULT(source_written, "a copy reads SOURCE"),
    FAULT(copy_unequal, "copies 3840 bytes to 4096"),
    FAULT(source_missing, "either SOURCE, or LENT"),
    FAULT(lent_to_a_forward, "LENT, which is of backwards and updates"),
    FAULT(wrong_arena, "wrong arena"),
    FAULT(read_reversed, "wrong arena"),
    FAULT(update_across_arenas, "wrong arena"),
    FAULT(buffer_no_arena, "arena 3, which does not exist"),
    FAULT(beyond_budget, "budget of 16384 bytes"),
    FAULT(size_wraps, "budget"),
    FAULT(wrong_peak, "peak"),
    FAULT(wrong_peak_buffer, "highest"),
    FAULT(wrong_producer, "lives from op 1 to op 2"),
    FAULT(wrong_last_reader, "its uses are from op 3 to op 5"),
    FAULT(home_with_producer, "names a producer"),
    FAULT(home_not_first, "the homes"),
    FAULT(read_before_write, "no op before it has written"),
    FAULT(read_unwritten_part, "reads bytes 1024 to 2048 of buffer 7"),
    FAULT(wrong_lane, "belongs on compute"),
    FAULT(no_kind, "does not exist"),
    FAULT(too_many_operands, "operands"),
    FAULT(state_residue, "modulo 65536, but must be 0"),
    FAULT(grads_residue, "modulo 65536, but must be 49152"),
    FAULT(params_residue, "modulo 65536, but must be 57344"),
    FAULT(nvme_misaligned, "multiples of 4096"),
    FAULT(nvme_odd_size, "multiples of 4096"),
    FAULT(transient_unused, "no op uses"),
    FAULT(reader_not_conditional, "leaves unwritten where the update is skipped"),
    FAULT(reader_not_of_the_commit, "update of unit 1 (op 1) runs in any case, but reads buffer 3, "
                                    "which read of unit 0 (op 0) leaves unwritten where the run "
                                    "does not commit"),
};

static void names_each_fault(void **state)
{
    program_check_faults(build_step, faults, sizeof faults / sizeof *faults);
}

/* --- against the slow checker ----------------------------------------------------------------- */

static void agrees_with_all_pairs(void **state)
{
    enum { PROGRAMS = 60, DROPS = 12 };
    uint64_t accepted = 0, refused = 0;
    for (uint64_t seed = 1; seed <= PROGRAMS; seed++) {
        program prog;
        random_program(seed, 40 + (uint32_t)(seed % 5) * 25, &prog);
        if (program_check(&prog) != 0)
            fail_msg("seed %llu: %s", (unsigned long long)seed, err_text());
        assert_true(oracle_accepts(&prog));
        for (uint64_t k = 0; k < DROPS; k++) {
            program broken;
            program_copy(&broken, &prog);
            uint32_t op_idx;
            uint64_t tries = 0;
            do
                op_idx = (uint32_t)rng_below(seed, 100 + k, tries++, prog.op_count);
            while (prog.ops[op_idx].dep_count == 0);
            program_drop_dep(&broken, op_idx,
                             (uint32_t)rng_below(seed, 200 + k, 0, prog.ops[op_idx].dep_count));
            bool expected = oracle_accepts(&broken);
            int rc = program_check(&broken);
            if ((rc == 0) != expected)
                fail_msg(
                    "seed %llu, op %u without a dependency: all pairs say %d, the check says %d "
                    "(%s)",
                    (unsigned long long)seed, op_idx, expected, rc, err_text());
            accepted += expected;
            refused += !expected;
            program_fini(&broken);
        }
        program_fini(&prog);
    }
    printf("seeds 1 to %d: %llu mutants right, %llu wrong, all judged alike\n", PROGRAMS,
           (unsigned long long)accepted, (unsigned long long)refused);
    assert_true(accepted > 0 && refused > 100); /* the mutants were of both kinds */
}

/* --- size ------------------------------------------------------------------------------------- */

/* Tiles through `slots` slots of host memory: read, update, write; 100 000 ops and more. */
static void build_stream(uint32_t tile_count, uint32_t slots, program *out)
{
    builder b;
    enum { PITCH = 65536 };
    builder_init(&b, PROGRAM_FLUSH, 0, (uint64_t)(slots + tile_count) * PITCH,
                 (uint64_t)tile_count * TILE);
    uint32_t optimizer = builder_home(&b, TIER_NVME, 0, (uint64_t)tile_count * TILE);
    uint64_t rest = (uint64_t)slots * PITCH;
    uint32_t grads = builder_home(&b, TIER_HOST, rest + TILE_RESIDUE_GRADS, PIECE);
    uint32_t params = builder_home(&b, TIER_HOST, rest + TILE_RESIDUE_PARAMS,
                                   (uint64_t)(tile_count - 1) * PITCH + PIECE);
    for (uint32_t i = 0; i < tile_count; i++) {
        uint32_t tile = builder_transient(&b, TIER_HOST, (uint64_t)(i % slots) * PITCH, TILE);
        builder_op(&b, OP_READ);
        builder_use(&b, ROLE_SOURCE, ACCESS_READ, optimizer, (uint64_t)i * TILE, TILE);
        builder_use(&b, ROLE_TARGET, ACCESS_WRITE, tile, 0, TILE);
        if (i >= slots)
            builder_dep(&b, 3 * (i - slots) + 2);
        builder_op(&b, OP_UPDATE);
        builder_use(&b, ROLE_STATE, ACCESS_UPDATE, tile, 0, TILE);
        builder_use(&b, ROLE_SOURCE, ACCESS_READ, grads, 0, PIECE);
        builder_use(&b, ROLE_TARGET, ACCESS_WRITE, params, (uint64_t)i * PITCH, PIECE);
        builder_dep(&b, 3 * i);
        builder_op(&b, OP_WRITE);
        builder_use(&b, ROLE_SOURCE, ACCESS_READ, tile, 0, TILE);
        builder_use(&b, ROLE_TARGET, ACCESS_WRITE, optimizer, (uint64_t)i * TILE, TILE);
        builder_dep(&b, 3 * i + 1);
    }
    builder_finish(&b, out);
}

static void checks_large_programs(void **state)
{
    enum { TILES = 40000, SLOTS = 8 };
    program prog;
    build_stream(TILES, SLOTS, &prog);
    uint64_t start_ns = clock_ns();
    assert_int_equal(program_check(&prog), 0);
    printf("%llu ops checked in %.1f ms\n", (unsigned long long)prog.op_count,
           (double)(clock_ns() - start_ns) / 1e6);
    uint32_t late = 3 * (TILES - 5);
    program_drop_dep(&prog, late, 0); /* the read no longer waits for its slot */
    assert_int_equal(program_check(&prog), ERR_INTERNAL);
    program_fini(&prog);
}

/* A backward lends the gradients of unit 0 in one half of a home; an update reads it. */
static void lent_gradients_are_of_their_unit(void **state)
{
    enum { LENT, SUMS, TILES, NEW, HALF = 2048 };
    builder b;
    program prog;
    builder_init(&b, PROGRAM_STEADY, 4 * TILE_PERIOD_BYTES, 4096, 4096);
    builder_home(&b, TIER_DEVICE, 0, 2 * HALF);
    builder_home(&b, TIER_DEVICE, 4096, 4096);
    builder_home(&b, TIER_DEVICE, TILE_PERIOD_BYTES, TILE);
    builder_home(&b, TIER_DEVICE, TILE_PERIOD_BYTES + TILE_RESIDUE_PARAMS, PIECE);
    builder_op(&b, OP_BACKWARD);
    builder_use(&b, ROLE_LENT, ACCESS_WRITE, LENT, HALF, HALF);
    builder_op(&b, OP_UPDATE);
    builder_use(&b, ROLE_STATE, ACCESS_UPDATE, TILES, 0, TILE);
    builder_use(&b, ROLE_LENT, ACCESS_READ, LENT, HALF, HALF);
    builder_use(&b, ROLE_TARGET, ACCESS_WRITE, NEW, 0, PIECE);
    builder_use(&b, ROLE_NORM_SUMS, ACCESS_WRITE, SUMS, 0, sizeof(double));
    builder_dep(&b, 0);
    builder_finish(&b, &prog);
    prog.ops[0].unit = prog.ops[1].unit = 0;
    prog.ops[1].elem_count = SHARD_ELEMS_STEP;
    if (program_check(&prog) != 0)
        fail_msg("%s", err_text());
    prog.ops[0].unit = 1;
    assert_int_equal(program_check(&prog), ERR_INTERNAL);
    assert_non_null(strstr(err_text(), "no backward of its unit wrote last"));
    prog.ops[0].unit = 0;
    prog.ops[1].operands[1].offset_bytes = 0; /* the other half */
    assert_int_equal(program_check(&prog), ERR_INTERNAL);
    assert_non_null(strstr(err_text(), "no backward of its unit wrote last"));
    program_fini(&prog);
}

/* Each backward that lends uses the other half than the one before it. */
static void backwards_lend_by_turns(void **state)
{
    enum { HALF = 2048 };
    builder b;
    program prog;
    builder_init(&b, PROGRAM_STEADY, 4096, 4096, 4096);
    builder_home(&b, TIER_DEVICE, 0, 2 * HALF);
    for (uint32_t i = 0; i < 3; i++) {
        builder_op(&b, OP_BACKWARD);
        builder_use(&b, ROLE_LENT, ACCESS_WRITE, 0, i % 2 * HALF, HALF);
        if (i > 0)
            builder_dep(&b, i - 1);
    }
    builder_finish(&b, &prog);
    assert_ok(program_check(&prog));
    prog.ops[2].operands[0].offset_bytes = HALF;
    assert_error(program_check(&prog), ERR_INTERNAL, "lends in the half of the one before");
    program_fini(&prog);
}

/* --- the small functions ---------------------------------------------------------------------- */

static void hash_sees_each_field(void **state)
{
    program a, b;
    build_step(&a);
    build_step(&b);
    memset(&b.ops[3].operands[9], 0xee, sizeof b.ops[3].operands[9]); /* unused: not part of it */
    b.ops[3].predicted_end_ns = 5;
    uint64_t hash = program_hash(&a);
    assert_true(hash == program_hash(&b));
    uint64_t seen[14];
    size_t count = 0;
    b.ops[3].operands[0].offset_bytes += 1;
    seen[count++] = program_hash(&b);
    b.ops[3].operands[0].offset_bytes -= 1;
    b.ops[3].operands[1].access = ACCESS_UPDATE;
    seen[count++] = program_hash(&b);
    b.ops[3].operands[1].access = ACCESS_WRITE;
    uint32_t *const fields[] = {&b.ops[3].unit, &b.ops[3].pass, &b.ops[3].tile, &b.ops[3].behind};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        *fields[i] += 1;
        seen[count++] = program_hash(&b);
        *fields[i] -= 1;
    }
    b.ops[3].elem_count += 1;
    seen[count++] = program_hash(&b);
    b.ops[3].elem_count -= 1;
    b.ops[3].if_applied = 1;
    seen[count++] = program_hash(&b);
    b.ops[3].if_applied = 0;
    b.ops[3].if_commits = 1;
    seen[count++] = program_hash(&b);
    b.ops[3].if_commits = 0;
    b.deps[b.ops[10].dep_begin] += 1;
    seen[count++] = program_hash(&b);
    b.deps[b.ops[10].dep_begin] -= 1;
    b.buffers[B_TILE1].offset_bytes += 65536;
    seen[count++] = program_hash(&b);
    b.buffers[B_TILE1].offset_bytes -= 65536;
    b.kind = PROGRAM_FIRST;
    seen[count++] = program_hash(&b);
    b.kind = PROGRAM_STEADY;
    b.ops[3].lane = LANE_D2H;
    seen[count++] = program_hash(&b);
    b.ops[3].lane = LANE_H2D;
    b.op_count -= 1;
    seen[count++] = program_hash(&b);
    b.op_count += 1;
    assert_true(hash == program_hash(&b));
    for (size_t i = 0; i < count; i++) {
        assert_true(seen[i] != hash);
        for (size_t k = 0; k < i; k++)
            assert_true(seen[i] != seen[k]);
    }
    program_fini(&a);
    program_fini(&b);
}

static void sizes_and_names(void **state)
{
    program prog;
    build_step(&prog);
    assert_int_equal(op_moved_bytes(&prog.ops[0]), TILE);
    assert_int_equal(op_moved_bytes(&prog.ops[3]), PIECE);
    assert_int_equal(op_moved_bytes(&prog.ops[1]), 0); /* has a TARGET, but computes */
    assert_ptr_equal(op_operand(&prog.ops[1], ROLE_TARGET), &prog.ops[1].operands[2]);
    assert_null(op_operand(&prog.ops[1], ROLE_LOSSES));
    program_fini(&prog);
    assert_string_equal(op_kind_name(OP_REDUCE_SCATTER), "reduce_scatter");
    assert_string_equal(lane_kind_name(LANE_H2D), "h2d");
    assert_string_equal(op_kind_name(OP_COMMIT), "commit");
    assert_string_equal(lane_kind_name(LANE_COMMIT), "commit");
    assert_string_equal(tier_name(TIER_NVME), "nvme");
    assert_string_equal(state_kind_name(STATE_OPTIMIZER), "optimizer");
    assert_string_equal(program_kind_name(PROGRAM_LOAD), "load");
    for (int i = 0; i < OP_KIND_COUNT; i++)
        assert_non_null(op_kind_name((enum op_kind)i));
    assert_string_equal(lane_kind_name(LANE_COUNT), "unknown");
}

static void check_leaves_nothing(void **state)
{
    mem_stats before, after;
    mem_get_stats(&before);
    program prog;
    random_program(77, 120, &prog);
    assert_int_equal(program_check(&prog), 0);
    for (uint32_t i = 0; i < prog.op_count; i++)
        prog.ops[i].dep_count = 0;
    assert_int_equal(program_check(&prog), ERR_INTERNAL);
    program_fini(&prog);
    mem_get_stats(&after);
    assert_int_equal(after.live_bytes, before.live_bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepts_the_step),
        cmocka_unit_test(names_each_fault),
        cmocka_unit_test(agrees_with_all_pairs),
        cmocka_unit_test(checks_large_programs),
        cmocka_unit_test(hash_sees_each_field),
        cmocka_unit_test(sizes_and_names),
        cmocka_unit_test(check_leaves_nothing),
        cmocka_unit_test(lent_gradients_are_of_their_unit),
        cmocka_unit_test(backwards_lend_by_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
