/* Buffers that pass from one program to the next: program_check accepts them and names each single
 * fault, program_check_seam finds programs that do not fit together, and the executor keeps them in
 * paranoid mode, where nothing else but homes survives. */
#include "base/tile.h"
#include "swap/executor.h"
#include "tests/swap/fake_lane.h"
#include "tests/swap/swap_fixture.h"
#include "tests/unit.h"

enum { STATE_BYTES = 8192, GRAD_BYTES = 4096, HOST_BYTES = 4 * 65536 };
enum { UNIT = 3, TILE = 1, ELEMS = 2048 };

/* Buffers of all three programs: the homes, then what is carried, then others. */
enum { B_OPTIMIZER, B_PARAMS, B_CLOSED, B_STATE, B_GRAD, B_OTHER };

static void begin(builder *b, enum program_kind kind, uint8_t carried)
{
    builder_init(b, kind, HOST_BYTES, HOST_BYTES, 2 * STATE_BYTES);
    builder_home(b, TIER_NVME, 0, 2 * STATE_BYTES);
    builder_home(b, TIER_HOST, TILE_RESIDUE_PARAMS, GRAD_BYTES);
    builder_home(b, TIER_DEVICE, 0, GRAD_BYTES);
    builder_transient(b, TIER_HOST, 65536, STATE_BYTES);
    builder_transient(b, TIER_HOST, 65536 + TILE_RESIDUE_GRADS, GRAD_BYTES);
    buffer *buffers = b->prog.buffers;
    buffers[B_OPTIMIZER].state_kind = buffers[B_STATE].state_kind = STATE_OPTIMIZER;
    buffers[B_GRAD].state_kind = STATE_GRADS;
    for (int i = B_STATE; i <= B_GRAD; i++) {
        buffers[i].carried = carried;
        buffers[i].unit = UNIT;
        buffers[i].tile = TILE;
    }
}

static uint32_t tile_op(builder *b, enum op_kind kind, uint32_t state_kind)
{
    uint32_t idx = builder_op(b, kind);
    b->prog.ops[idx].unit = UNIT;
    b->prog.ops[idx].tile = TILE;
    b->prog.ops[idx].elem_begin = TILE * ELEMS;
    b->prog.ops[idx].elem_count = ELEMS;
    b->prog.ops[idx].state_kind = state_kind;
    return idx;
}

enum { FILL_STATE, FILL_GRAD, FILL_OTHER, FILL_COUNT };

/* Reads a tile and takes its gradient off the device, both for the next program; and reads the tile
 * for itself. */
static void build_fill(program *out)
{
    builder b;
    begin(&b, PROGRAM_FIRST, CARRIED_OUT);
    builder_transient(&b, TIER_HOST, 2 * 65536, STATE_BYTES);
    tile_op(&b, OP_READ, STATE_OPTIMIZER);
    builder_use(&b, ROLE_SOURCE, ACCESS_READ, B_OPTIMIZER, STATE_BYTES, STATE_BYTES);
    builder_use(&b, ROLE_TARGET, ACCESS_WRITE, B_STATE, 0, STATE_BYTES);
    tile_op(&b, OP_D2H, STATE_GRADS);
    builder_use(&b, ROLE_SOURCE, ACCESS_READ, B_CLOSED, 0, GRAD_BYTES);
    builder_use(&b, ROLE_TARGET, ACCESS_WRITE, B_GRAD, 0, GRAD_BYTES);
    tile_op(&b, OP_READ, STATE_OPTIMIZER);
    builder_use(&b, ROLE_SOURCE, ACCESS_READ, B_OPTIMIZER, STATE_BYTES, STATE_BYTES);
    builder_use(&b, ROLE_TARGET, ACCESS_WRITE, B_OTHER, 0, STATE_BYTES);
    builder_finish(&b, out);
}

/* Updates the tile and writes it home; then another buffer takes its bytes. */
static void build_use(program *out)
{
    builder b;
    begin(&b, PROGRAM_FLUSH, CARRIED_IN);
    builder_transient(&b, TIER_HOST, 65536, STATE_BYTES);
    tile_op(&b, OP_UPDATE, PROGRAM_NONE);
    builder_use(&b, ROLE_STATE, ACCESS_UPDATE, B_STATE, 0, STATE_BYTES);
    builder_use(&b, ROLE_SOURCE, ACCESS_READ, B_GRAD, 0, GRAD_BYTES);
    builder_use(&b, ROLE_TARGET, ACCESS_WRITE, B_PARAMS, 0, GRAD_BYTES);
    tile_op(&b, OP_WRITE, STATE_OPTIMIZER);
    builder_use(&b, ROLE_SOURCE, ACCESS_READ, B_STATE, 0, STATE_BYTES);
    builder_use(&b, ROLE_TARGET, ACCESS_WRITE, B_OPTIMIZER, STATE_BYTES, STATE_BYTES);
    builder_dep(&b, 0);
    tile_op(&b, OP_READ, STATE_OPTIMIZER);
    builder_use(&b, ROLE_SOURCE, ACCESS_READ, B_OPTIMIZER, 0, STATE_BYTES);
    builder_use(&b, ROLE_TARGET, ACCESS_WRITE, B_OTHER, 0, STATE_BYTES);
    builder_dep(&b, 1);
    builder_finish(&b, out);
}

/* Keeps off it. */
static void build_pass(program *out)
{
    builder b;
    begin(&b, PROGRAM_SAVE, CARRIED_THROUGH);
    builder_transient(&b, TIER_HOST, 2 * 65536, STATE_BYTES);
    tile_op(&b, OP_READ, STATE_OPTIMIZER);
    builder_use(&b, ROLE_SOURCE, ACCESS_READ, B_OPTIMIZER, STATE_BYTES, STATE_BYTES);
    builder_use(&b, ROLE_TARGET, ACCESS_WRITE, B_OTHER, 0, STATE_BYTES);
    builder_finish(&b, out);
}

static void must_pass(const program *prog)
{
    assert_ok(program_check(prog));
}

static void good_programs_fit_together(void **state)
{
    program fill, use, pass;
    build_fill(&fill);
    build_use(&use);
    build_pass(&pass);
    must_pass(&fill);
    must_pass(&use);
    must_pass(&pass);
    assert_int_equal(program_check_seam(&fill, &use), 0);
    assert_int_equal(program_check_seam(&fill, &pass), 0);
    assert_int_equal(program_check_seam(&pass, &use), 0);
    assert_int_equal(program_check_seam(&use, &fill), 0);
    assert_error(program_check_seam(&use, &use), ERR_INTERNAL,
                 "the flush program does not leave it");
    assert_error(program_check_seam(&fill, &fill), ERR_INTERNAL,
                 "the first program does not take it");
    uint64_t hash = program_hash(&fill);
    fill.buffers[B_STATE].carried = 0;
    assert_true(program_hash(&fill) != hash);
    program_fini(&fill);
    program_fini(&use);
    program_fini(&pass);
}

/* ---- faults of one program ---- */

static void move_to_device(program *prog)
{
    prog->buffers[B_STATE].arena = TIER_DEVICE;
    prog->peak_bytes[TIER_DEVICE] = 65536 + STATE_BYTES;
    prog->peak_buffer[TIER_DEVICE] = B_STATE;
}

static void carry_home(program *prog)
{
    prog->buffers[B_PARAMS].carried = CARRIED_IN;
}

static void carry_otherwise(program *prog)
{
    prog->buffers[B_STATE].carried = CARRIED_THROUGH + 1;
}

static void hold_params(program *prog)
{
    prog->buffers[B_GRAD].state_kind = STATE_PARAMS;
}

static void name_other_tile(program *prog)
{
    prog->buffers[B_GRAD].tile++;
}

static void name_other_unit(program *prog)
{
    prog->ops[FILL_STATE].unit++;
}

static void write_where_applied(program *prog)
{
    prog->ops[FILL_STATE].if_applied = 1;
}

static void write_where_committed(program *prog)
{
    prog->ops[FILL_GRAD].if_commits = 1;
}

static void write_in_part(program *prog)
{
    for (int k = 0; k < 2; k++)
        prog->ops[1].operands[k].size_bytes = STATE_BYTES / 2;
}

static void write_at_an_offset(program *prog)
{
    for (int k = 0; k < 2; k++)
        prog->ops[FILL_STATE].operands[k].size_bytes = STATE_BYTES / 2;
    prog->ops[FILL_STATE].operands[1].offset_bytes = STATE_BYTES / 2;
}

static void write_fewer_elems(program *prog)
{
    prog->ops[1].elem_count--;
}

static void use_carried_through(program *prog)
{
    prog->buffers[B_STATE].carried = CARRIED_THROUGH;
}

/* No op uses B_OTHER any more, as if it was carried through. */
static void drop_other(program *prog)
{
    buffer *other = &prog->buffers[B_OTHER];
    other->carried = CARRIED_THROUGH;
    other->state_kind = STATE_OPTIMIZER;
    other->unit = UNIT;
    other->tile = TILE + 1;
    other->producer = other->last_reader = PROGRAM_NONE;
}

static void write_twice(program *prog)
{
    prog->ops[FILL_OTHER].operands[1].buffer_idx = B_STATE;
    prog->buffers[B_STATE].last_reader = FILL_OTHER;
    drop_other(prog);
}

/* The op becomes a write of the home, from that byte on, of what lies in B_PARAMS. */
static void write_home(program *prog, uint32_t op_idx, uint64_t begin)
{
    op *item = &prog->ops[op_idx];
    item->kind = OP_WRITE;
    item->lane = LANE_WRITE;
    item->operands[0] = (operand){B_PARAMS, ROLE_SOURCE, ACCESS_READ, 0, 0, GRAD_BYTES};
    item->operands[1] = (operand){B_OPTIMIZER, ROLE_TARGET, ACCESS_WRITE, 0, begin, GRAD_BYTES};
}

static void write_home_after(program *prog)
{
    write_home(prog, FILL_OTHER, STATE_BYTES + GRAD_BYTES);
    drop_other(prog);
}

/* These bytes belong to another tile, so this is no fault. */
static void write_other_home_after(program *prog)
{
    write_home(prog, FILL_OTHER, STATE_BYTES - GRAD_BYTES);
    drop_other(prog);
}

static void write_home_of_through(program *prog)
{
    write_home(prog, 0, STATE_BYTES);
    drop_other(prog);
}

static void write_home_before_use(program *prog)
{
    program_drop_dep(prog, 1, 0);
    op update = prog->ops[0];
    prog->ops[0] = prog->ops[1];
    prog->ops[1] = update;
    write_home(prog, 0, STATE_BYTES);
    prog->buffers[B_STATE].producer = prog->buffers[B_STATE].last_reader = 1;
    prog->buffers[B_GRAD].last_reader = 1;
}

static void take_bytes_of_out(program *prog)
{
    prog->buffers[B_OTHER].offset_bytes = prog->buffers[B_STATE].offset_bytes;
    prog->peak_bytes[TIER_HOST] = 65536 + TILE_RESIDUE_GRADS + GRAD_BYTES;
    prog->peak_buffer[TIER_HOST] = B_GRAD;
}

static void read_without_write(program *prog)
{
    prog->buffers[B_STATE].carried = 0;
}

static void share_bytes_of_in(program *prog)
{
    prog->buffers[B_OTHER].carried = CARRIED_IN;
    prog->buffers[B_OTHER].state_kind = STATE_OPTIMIZER;
    prog->buffers[B_OTHER].unit = UNIT;
    prog->buffers[B_OTHER].tile = TILE;
}

static void take_bytes_early(program *prog)
{
    program_drop_dep(prog, 2, 0);
}

struct fault {
    void (*build)(program *out);
    void (*make)(program *prog);
    const char *text;
};

static void each_fault_is_named(void **state)
{
    static const struct fault faults[] = {
        {build_pass, move_to_device, "only transients in host memory"},
        {build_fill, carry_home, "only transients in host memory"},
        {build_fill, carry_otherwise, "only transients in host memory"},
        {build_fill, hold_params, "neither optimizer state nor a gradient"},
        {build_fill, name_other_tile, "does not work on its tile"},
        {build_fill, name_other_unit, "does not work on its tile"},
        {build_fill, write_where_applied, "what writes it may be skipped"},
        {build_fill, write_where_committed, "what writes it may be skipped"},
        {build_use, write_in_part, "another part of it"},
        {build_fill, write_at_an_offset, "another part of it"},
        {build_use, write_fewer_elems, "does not work on its tile"},
        {build_fill, write_twice, "is not written once"},
        {build_pass, write_home_of_through, "before the first use"},
        {build_use, write_home_before_use, "before the first use"},
        {build_fill, use_carried_through, "carried through, but an op uses it"},
        {build_fill, write_home_after, "its home is written after it was read"},
        {build_fill, take_bytes_of_out, "is carried out of the program"},
        {build_use, read_without_write, "which no op before it has written"},
        {build_use, share_bytes_of_in, "is carried into the program"},
        {build_use, take_bytes_early, "nothing orders"},
        {build_pass, take_bytes_of_out, "is carried out of the program"},
    };
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        program prog;
        faults[i].build(&prog);
        faults[i].make(&prog);
        int rc = program_check(&prog);
        if (rc != ERR_INTERNAL || !strstr(err_text(), faults[i].text))
            fail_msg("fault %zu: code %d, \"%s\" lacks \"%s\"", i, rc, rc < 0 ? err_text() : "",
                     faults[i].text);
        program_fini(&prog);
    }
    program prog;
    build_fill(&prog);
    write_other_home_after(&prog);
    must_pass(&prog);
    program_fini(&prog);
}

/* ---- faults of a seam ---- */

static void each_fault_of_a_seam_is_found(void **state)
{
    for (int fault = 0; fault < 10; fault++) {
        program fill, use;
        build_fill(&fill);
        build_use(&use);
        buffer *in = &use.buffers[B_STATE];
        in->offset_bytes += fault == 0 ? 65536 : 0;
        in->size_bytes += fault == 1 ? 4096 : 0;
        in->unit += fault == 2;
        in->tile += fault == 3;
        in->state_kind = fault == 4 ? STATE_GRADS : in->state_kind;
        use.ops[0].elem_begin += fault == 5 ? ELEMS : 0;
        use.ops[0].operands[0].size_bytes -= fault == 6 ? 4096 : 0;
        use.ops[0].elem_count -= fault == 7;
        fill.buffers[B_STATE].carried = fault == 8 ? 0 : CARRIED_OUT;
        in->carried = fault == 9 ? 0 : CARRIED_IN; /* its content would be lost */
        assert_error(program_check_seam(&fill, &use), ERR_INTERNAL, "buffer 3 (tile");
        program_fini(&fill);
        program_fini(&use);
    }
}

/* ---- the executor ---- */

static const unsigned char *at(const fixture_arenas *arenas, const program *prog, uint32_t idx)
{
    return arenas->base[prog->buffers[idx].arena] + prog->buffers[idx].offset_bytes;
}

static bool is_poisoned(const unsigned char *bytes, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        if (bytes[i] != 0xff)
            return false;
    return true;
}

static void the_executor_keeps_what_is_carried(void **state)
{
    program programs[3];
    build_fill(&programs[0]);
    build_pass(&programs[1]);
    build_use(&programs[2]);
    const program *all[] = {&programs[0], &programs[1], &programs[2]};
    fixture_arenas serial, arenas;
    fixture_arenas_init(&serial, &programs[0], 5);
    fixture_arenas_init(&arenas, &programs[0], 5);
    executor_config config = {.programs = all, .program_count = 3, .paranoid = true};
    memcpy(config.arena_base, arenas.base, sizeof config.arena_base);
    for (int kind = 0; kind < LANE_COUNT; kind++) {
        fake_lane_config one = {.seed = 7,
                                .depth = 4,
                                .in_order = kind >= LANE_H2D,
                                .owner = (uint32_t)kind + 1,
                                .fail_op_idx = PROGRAM_NONE,
                                .run = fixture_execute,
                                .user = &arenas};
        config.lanes[kind] = fake_lane_create(&one);
    }
    executor *exec;
    assert_int_equal(executor_create(&config, &exec), 0);
    for (int i = 0; i < 3; i++) {
        assert_ok(executor_run(exec, all[i], 1, NULL));
        fixture_execute_all(&serial, all[i]);
        if (i == 2)
            break;
        for (uint32_t b = B_STATE; b <= B_GRAD; b++)
            assert_memory_equal(at(&arenas, all[i], b), at(&serial, all[i], b),
                                all[i]->buffers[b].size_bytes);
        assert_true(is_poisoned(at(&arenas, all[i], B_OTHER), STATE_BYTES));
    }
    assert_true(fixture_homes_equal(all[2], &arenas, &serial));
    assert_true(is_poisoned(at(&arenas, all[2], B_STATE), STATE_BYTES));
    executor_destroy(exec);
    for (int kind = 0; kind < LANE_COUNT; kind++)
        config.lanes[kind]->ops->destroy(config.lanes[kind]);
    fixture_arenas_fini(&arenas);
    fixture_arenas_fini(&serial);
    for (int i = 0; i < 3; i++)
        program_fini(&programs[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_programs_fit_together),
        cmocka_unit_test(each_fault_is_named),
        cmocka_unit_test(each_fault_of_a_seam_is_found),
        cmocka_unit_test(the_executor_keeps_what_is_carried),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
