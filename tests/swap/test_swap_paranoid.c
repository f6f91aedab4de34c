/* Paranoid mode: one canary for each thing that it must catch, and what a correct op sees. Random
 * correct programs in paranoid mode are the executor's own tests, run with the argument
 * "paranoid". */
#include <errno.h>
#include <math.h>

#include "base/mem.h"
#include "base/tile.h"
#include "tests/swap/swap_rig.h"
#include "tests/unit.h"

enum { DEVICE = 4 * TILE_PERIOD_BYTES, HOST = 65536, SPAN = 512 };

/* Buffers of the bench's program: three homes and a transient on the device, one home on the
 * host. */
enum { BUFFER_A, BUFFER_B, BUFFER_SHARED, BUFFER_HOST, BUFFER_TEMP };

/* A program of one op per test, and what its callback saw. */
struct bench {
    builder build;
    program prog;
    fixture_arenas arenas;
    paranoid *checked;
    int (*act)(struct bench *self, const program *prog, const op *item);
    uintptr_t seen[64]; /* addresses of the first operand, call by call */
    uint32_t calls;
    unsigned char kept[64]; /* bytes that the callback read */
};
typedef struct bench bench;

static unsigned char *at(bench *self, const program *prog, const operand *part)
{
    return lane_operand_address(self->arenas.base[prog->buffers[part->buffer_idx].arena], prog,
                                part);
}

static unsigned char *role_at(bench *self, const program *prog, const op *item,
                              enum operand_role role)
{
    return at(self, prog, op_operand(item, role));
}

static int act(void *user, const program *prog, const op *item)
{
    bench *self = user;
    assert_ptr_equal(prog->ops, self->prog.ops);
    assert_true(item >= prog->ops && item < prog->ops + prog->op_count);
    self->seen[self->calls++ % 64] = (uintptr_t)at(self, prog, &item->operands[0]);
    return self->act ? self->act(self, prog, item) : 0;
}

static void bench_init(bench *self, enum op_kind kind)
{
    memset(self, 0, sizeof *self);
    builder_init(&self->build, PROGRAM_STEADY, DEVICE, HOST, HOST);
    builder_home(&self->build, TIER_DEVICE, 4096, 4096);
    builder_home(&self->build, TIER_DEVICE, 8192, 4096);
    builder_home(&self->build, TIER_DEVICE, 12288, 4096);
    builder_home(&self->build, TIER_HOST, 0, 4096);
    builder_transient(&self->build, TIER_DEVICE, TILE_PERIOD_BYTES, 4096);
    builder_op(&self->build, kind);
}

/* After the op has its operands. */
static void bench_start(bench *self)
{
    builder_finish(&self->build, &self->prog);
    fixture_arenas_init(&self->arenas, &self->prog, 5);
    const program *programs = &self->prog;
    paranoid_config config = {.programs = &programs, .program_count = 1, .run = act, .user = self};
    for (int kind = 0; kind < LANE_COUNT; kind++)
        config.serves[kind] = true;
    config.arena_base[TIER_DEVICE] = self->arenas.base[TIER_DEVICE];
    config.arena_base[TIER_HOST] = self->arenas.base[TIER_HOST];
    assert_int_equal(paranoid_create(&config, &self->checked), 0);
}

static void bench_fini(bench *self)
{
    paranoid_destroy(self->checked);
    fixture_arenas_fini(&self->arenas);
    program_fini(&self->prog);
}

static int bench_run(bench *self)
{
    return paranoid_run(self->checked, &self->prog, &self->prog.ops[0]);
}

/* The op is refused for the given reason, and memory is unchanged. */
static void must_be_caught(bench *self, const char *reason)
{
    fixture_arenas before;
    fixture_arenas_init(&before, &self->prog, 5);
    assert_int_equal(bench_run(self), ERR_INTERNAL);
    if (!strstr(err_text(), reason) || !strstr(err_text(), "paranoid mode: forward of unit 0"))
        fail_msg("\"%s\" does not say \"%s\"", err_text(), reason);
    assert_true(fixture_arenas_equal(&self->arenas, &before));
    fixture_arenas_fini(&before);
    bench_fini(self);
}

/* INPUT: 512 bytes of A from 256 on, read; OUTPUT: 512 of B from 1024 on, written. */
static void bench_forward(bench *self)
{
    bench_init(self, OP_FORWARD);
    builder_use(&self->build, ROLE_INPUT, ACCESS_READ, BUFFER_A, 256, SPAN);
    builder_use(&self->build, ROLE_OUTPUT, ACCESS_WRITE, BUFFER_B, 1024, SPAN);
    bench_start(self);
}

static unsigned char *real(bench *self, uint32_t buffer_idx)
{
    const buffer *held = &self->prog.buffers[buffer_idx];
    return self->arenas.base[held->arena] + held->offset_bytes;
}

/* --- what a correct op sees ------------------------------------------------------------------- */

static int copy_input(bench *self, const program *prog, const op *item)
{
    memcpy(role_at(self, prog, item, ROLE_OUTPUT), role_at(self, prog, item, ROLE_INPUT), SPAN);
    return 0;
}

static void a_correct_op_is_undisturbed(void **state)
{
    bench b;
    bench_forward(&b);
    b.act = copy_input;
    fixture_arenas expected;
    fixture_arenas_init(&expected, &b.prog, 5);
    memcpy(expected.base[TIER_DEVICE] + 8192 + 1024, expected.base[TIER_DEVICE] + 4096 + 256, SPAN);
    mem_stats before, after;
    mem_get_stats(&before);
    for (int i = 0; i < 40; i++)
        assert_int_equal(bench_run(&b), 0);
    mem_get_stats(&after);
    assert_int_equal(after.call_count, before.call_count);
    assert_true(fixture_arenas_equal(&b.arenas, &expected));
    for (int i = 0; i < 40; i++) {
        uintptr_t original = (uintptr_t)real(&b, BUFFER_A) + 256;
        assert_int_equal((b.seen[i] - original) % TILE_PERIOD_BYTES, 0);
        assert_int_not_equal(b.seen[i], original);
        for (int k = i - 1; k >= 0 && k > i - 13; k--)
            assert_int_not_equal(b.seen[i], b.seen[k]);
    }
    fixture_arenas_fini(&expected);
    bench_fini(&b);
}

static int fail_after_writing(bench *self, const program *prog, const op *item)
{
    memset(role_at(self, prog, item, ROLE_OUTPUT), 1, SPAN);
    return err_set(-EDOM, "a negative root");
}

static void a_failed_op_changes_nothing(void **state)
{
    bench b;
    bench_forward(&b);
    b.act = fail_after_writing;
    fixture_arenas before;
    fixture_arenas_init(&before, &b.prog, 5);
    assert_int_equal(bench_run(&b), -EDOM);
    assert_string_equal(err_text(), "a negative root");
    assert_true(fixture_arenas_equal(&b.arenas, &before));
    fixture_arenas_fini(&before);
    bench_fini(&b);
}

static int add_one(bench *self, const program *prog, const op *item)
{
    unsigned char *bytes = role_at(self, prog, item, ROLE_TARGET);
    const unsigned char *from = role_at(self, prog, item, ROLE_GRADS0);
    for (int i = 0; i < SPAN; i++)
        bytes[i] = (unsigned char)(from[i] + 1);
    return 0;
}

/* A gradient closed in place: read as one operand and written as another over the same bytes, and
 * half of it as a third. */
static void operands_may_overlap(void **state)
{
    bench b;
    bench_init(&b, OP_GRAD_CLOSE);
    builder_use(&b.build, ROLE_GRADS0, ACCESS_READ, BUFFER_SHARED, 64, SPAN);
    builder_use(&b.build, ROLE_TARGET, ACCESS_WRITE, BUFFER_SHARED, 64, SPAN);
    builder_use(&b.build, ROLE_SAVED, ACCESS_WRITE, BUFFER_SHARED, 64 + SPAN / 2, SPAN);
    bench_start(&b);
    b.act = add_one;
    fixture_arenas expected;
    fixture_arenas_init(&expected, &b.prog, 5);
    unsigned char *bytes = expected.base[TIER_DEVICE] + 12288 + 64;
    for (int i = 0; i < SPAN; i++)
        bytes[i]++;
    memset(bytes + SPAN, 0xff, SPAN / 2); /* declared as written, but it was not */
    assert_int_equal(bench_run(&b), 0);
    assert_true(fixture_arenas_equal(&b.arenas, &expected));
    fixture_arenas_fini(&expected);
    bench_fini(&b);
}

/* --- reads that were not declared ------------------------------------------------------------- */

static bool all_nan(const unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i + 8 <= count; i += 8) {
        double wide;
        float single[2];
        uint16_t half[4];
        memcpy(&wide, bytes + i, 8);
        memcpy(single, bytes + i, 8);
        memcpy(half, bytes + i, 8);
        if (!isnan(wide) || !isnan(single[0]) || !isnan(single[1]))
            return false;
        for (int k = 0; k < 4; k++) /* bf16: 8 bits of exponent, fp16: 5 */
            if ((half[k] & 0x7f80) != 0x7f80 || !(half[k] & 0x7f) || (half[k] & 0x7c00) != 0x7c00 ||
                !(half[k] & 0x3ff))
                return false;
    }
    return true;
}

static int read_around(bench *self, const program *prog, const op *item)
{
    const unsigned char *input = role_at(self, prog, item, ROLE_INPUT);
    const unsigned char *output = role_at(self, prog, item, ROLE_OUTPUT);
    memcpy(self->kept, input + SPAN, 16);    /* beyond the operand, in the same buffer */
    memcpy(self->kept + 16, input - 16, 16); /* before it */
    memcpy(self->kept + 32, output, 16);     /* what is only written */
    operand other = {.buffer_idx = BUFFER_SHARED, .offset_bytes = 32, .size_bytes = 16};
    memcpy(self->kept + 48, at(self, prog, &other), 16); /* a buffer that is not the op's */
    return 0;
}

static void undeclared_reads_get_nan(void **state)
{
    bench b;
    bench_forward(&b);
    b.act = read_around;
    assert_int_equal(bench_run(&b), 0);
    for (int i = 0; i < 64; i += 16)
        if (!all_nan(b.kept + i, 16))
            fail_msg("read %d did not give NaN", i / 16);
    assert_true(all_nan(real(&b, BUFFER_B) + 1024, SPAN)); /* nothing was written: NaN goes on */
    assert_false(all_nan(real(&b, BUFFER_B) + 1024 - 16, 16));
    assert_false(all_nan(real(&b, BUFFER_B) + 1024 + SPAN, 16));
    bench_fini(&b);
}

static int accumulate(bench *self, const program *prog, const op *item)
{
    float *grads = (float *)(void *)role_at(self, prog, item, ROLE_GRADS0);
    for (int i = 0; i < SPAN / 4; i++)
        grads[i] += 1.0f; /* forgets to zero it first */
    return 0;
}

static void an_accumulator_must_be_zeroed(void **state)
{
    for (int first = 0; first < 2; first++) {
        bench b;
        bench_init(&b, OP_BACKWARD);
        builder_use(&b.build, ROLE_GRADS0, ACCESS_UPDATE, BUFFER_A, 0, SPAN);
        bench_start(&b);
        b.prog.ops[0].fresh_grads = (uint8_t)first;
        b.act = accumulate;
        memset(real(&b, BUFFER_A), 0, SPAN);
        assert_int_equal(bench_run(&b), 0);
        assert_int_equal(all_nan(real(&b, BUFFER_A), SPAN), first);
        bench_fini(&b);
    }
}

static int use_workspace(bench *self, const program *prog, const op *item)
{
    unsigned char *scratch = role_at(self, prog, item, ROLE_WORKSPACE);
    memcpy(self->kept, scratch, 16); /* what the op before left */
    memset(scratch, 3, SPAN);
    return 0;
}

/* Whatever its access says: nothing comes in by it and nothing goes out. */
static void a_workspace_carries_nothing(void **state)
{
    static const enum operand_access accesses[] = {ACCESS_WRITE, ACCESS_UPDATE};
    for (int i = 0; i < 2; i++) {
        bench b;
        bench_init(&b, OP_FORWARD);
        builder_use(&b.build, ROLE_WORKSPACE, accesses[i], BUFFER_A, 0, SPAN);
        bench_start(&b);
        b.act = use_workspace;
        assert_int_equal(bench_run(&b), 0);
        assert_true(all_nan(b.kept, 16));
        assert_true(all_nan(real(&b, BUFFER_A), SPAN));
        assert_false(all_nan(real(&b, BUFFER_A) + SPAN, 16));
        bench_fini(&b);
    }
}

static int keep_address(bench *self, const program *prog, const op *item)
{
    unsigned char *now = role_at(self, prog, item, ROLE_INPUT);
    if (self->calls > 1) /* as a library would that remembers the memory of its last call */
        memcpy(self->kept, (const void *)self->seen[0], 16);
    else
        memcpy(self->kept, now, 16);
    return copy_input(self, prog, item);
}

static void a_kept_address_gives_nan(void **state)
{
    bench b;
    bench_forward(&b);
    b.act = keep_address;
    assert_int_equal(bench_run(&b), 0);
    assert_false(all_nan(b.kept, 16));
    assert_int_equal(bench_run(&b), 0);
    assert_true(all_nan(b.kept, 16));
    bench_fini(&b);
}

/* --- writes that were not declared ------------------------------------------------------------ */

static int write_input(bench *self, const program *prog, const op *item)
{
    role_at(self, prog, item, ROLE_INPUT)[7] ^= 1;
    return copy_input(self, prog, item);
}

static int write_behind(bench *self, const program *prog, const op *item)
{
    role_at(self, prog, item, ROLE_OUTPUT)[SPAN + 3] = 0xff;
    role_at(self, prog, item, ROLE_OUTPUT)[SPAN + 2] = 0xff;
    return 0;
}

static int write_before(bench *self, const program *prog, const op *item)
{
    role_at(self, prog, item, ROLE_INPUT)[-5] = 0;
    return 0;
}

static int write_elsewhere(bench *self, const program *prog, const op *item)
{
    (void)item;
    operand other = {.buffer_idx = BUFFER_TEMP, .offset_bytes = 100, .size_bytes = 16};
    at(self, prog, &other)[0] = 1;
    return 0;
}

static int write_gap(bench *self, const program *prog, const op *item)
{
    role_at(self, prog, item, ROLE_INPUT)[SPAN + 8] = 1;
    return 0;
}

static void undeclared_writes_are_caught(void **state)
{
    static const struct {
        int (*act)(bench *, const program *, const op *);
        const char *reason;
    } cases[] = {
        {write_input, "wrote to the read-only operand input, byte 263 (buffer 0, device, a home"},
        {write_behind, "wrote beyond the end of operand output, byte 1538 (buffer 1"},
        {write_before, "wrote 5 bytes before the start of operand input, byte 256 (buffer 0"},
        {write_elsewhere, "wrote byte 100 of a buffer that is none of its operands'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bench b;
        bench_forward(&b);
        b.act = cases[i].act;
        must_be_caught(&b, cases[i].reason);
    }
    bench b;
    bench_init(&b, OP_FORWARD);
    builder_use(&b.build, ROLE_INPUT, ACCESS_READ, BUFFER_SHARED, 0, SPAN);
    builder_use(&b.build, ROLE_OUTPUT, ACCESS_WRITE, BUFFER_SHARED, 2 * SPAN, SPAN);
    bench_start(&b);
    b.act = write_gap;
    must_be_caught(&b, "wrote beyond the end of operand input, byte 520 (buffer 2");
}

/* --- the rest of the contract ----------------------------------------------------------------- */

static void unfit_ops(void **state)
{
    bench b;
    bench_forward(&b);
    b.prog.ops[0].operands[0].size_bytes = DEVICE * 100; /* not what creation saw */
    assert_error(bench_run(&b), ERR_INTERNAL, "was not made for this op");
    paranoid *checked;
    assert_int_equal(paranoid_create(&(paranoid_config){0}, &checked), -EINVAL);
    assert_null(checked);
    paranoid_destroy(NULL);
    bench_fini(&b);

    /* An operand in an arena without a base: the op runs on the real program. */
    builder_init(&b.build, PROGRAM_STEADY, 4096, 4096, 4096);
    uint32_t slab = builder_home(&b.build, TIER_NVME, 0, 4096);
    builder_op(&b.build, OP_WRITE);
    builder_use(&b.build, ROLE_TARGET, ACCESS_WRITE, slab, 0, 4096);
    bench_start(&b);
    b.act = NULL;
    b.calls = 0;
    assert_int_equal(bench_run(&b), 0);
    assert_int_equal(b.seen[0], (uintptr_t)b.arenas.base[TIER_NVME]);
    bench_fini(&b);
}

/* --- the executor's part ---------------------------------------------------------------------- */

/* Looks at real memory behind the program's back, as an op with a forgotten operand would. */
struct spy {
    fixture_arenas arenas;
    unsigned char kept[4][16];
    uint64_t watched; /* device offset */
};
typedef struct spy spy;

static int run_spy(void *user, const program *prog, const op *item)
{
    spy *self = user;
    uint32_t i = (uint32_t)(item - prog->ops);
    if (i < 4)
        memcpy(self->kept[i], self->arenas.base[TIER_DEVICE] + self->watched, 16);
    return fixture_execute(&self->arenas, prog, item);
}

static int run_short_read(void *user, const program *prog, const op *item)
{
    spy *self = user;
    const operand *target = op_operand(item, ROLE_TARGET);
    memset(self->arenas.base[TIER_HOST] + prog->buffers[target->buffer_idx].offset_bytes, 1, 16);
    return 0; /* and says that all of it came */
}

/* read -> host home; forward 1 writes the transient, forward 2 reads it, forward 3 only comes
 * after. */
static void build_release(program *out)
{
    builder b;
    builder_init(&b, PROGRAM_STEADY, DEVICE, HOST, HOST);
    uint32_t slab = builder_home(&b, TIER_NVME, 0, 4096);
    uint32_t home = builder_home(&b, TIER_DEVICE, 4096, 4096);
    uint32_t host = builder_home(&b, TIER_HOST, 0, 4096);
    uint32_t temp = builder_transient(&b, TIER_DEVICE, 8192, SPAN);
    builder_op(&b, OP_READ);
    builder_use(&b, ROLE_SOURCE, ACCESS_READ, slab, 0, 4096);
    builder_use(&b, ROLE_TARGET, ACCESS_WRITE, host, 0, 4096);
    builder_op(&b, OP_FORWARD);
    builder_use(&b, ROLE_INPUT, ACCESS_READ, home, 0, SPAN);
    builder_use(&b, ROLE_OUTPUT, ACCESS_WRITE, temp, 0, SPAN);
    builder_op(&b, OP_FORWARD);
    builder_use(&b, ROLE_INPUT, ACCESS_READ, temp, 0, SPAN);
    builder_use(&b, ROLE_OUTPUT, ACCESS_WRITE, home, 0, SPAN);
    builder_dep(&b, 1);
    builder_op(&b, OP_FORWARD);
    builder_use(&b, ROLE_INPUT, ACCESS_READ, home, 0, SPAN);
    builder_use(&b, ROLE_OUTPUT, ACCESS_WRITE, home, SPAN, SPAN);
    builder_finish(&b, out);
}

static void nothing_outlives_its_users(void **state)
{
    for (int mode = 0; mode < 2; mode++) {
        program prog;
        build_release(&prog);
        assert_int_equal(program_check(&prog), 0);
        spy seen = {.watched = 8192};
        fixture_arenas_init(&seen.arenas, &prog, 9);
        const program *programs = &prog;
        executor_config config = {.programs = &programs, .program_count = 1, .paranoid = mode};
        memcpy(config.arena_base, seen.arenas.base, sizeof config.arena_base);
        lane_worker_config cores = {
            .run = run_spy, .user = &seen, .owner = 1, .depth = 4, .priority_lane = LANE_COMPUTE};
        assert_int_equal(lane_worker_create(&cores, &config.lanes[LANE_COMPUTE]), 0);
        cores.run = run_short_read;
        cores.owner = 2;
        assert_int_equal(lane_worker_create(&cores, &config.lanes[LANE_READ]), 0);
        executor *exec;
        assert_int_equal(executor_create(&config, &exec), 0);
        assert_int_equal(executor_run(exec, &prog, 1, NULL), 0);
        assert_int_equal(all_nan(seen.kept[1], 16), mode); /* before its first writer */
        assert_false(all_nan(seen.kept[2], 16));           /* between writer and reader */
        assert_int_equal(all_nan(seen.kept[3], 16), mode); /* after its last reader */
        assert_int_equal(all_nan(seen.arenas.base[TIER_HOST] + 16, 4096 - 16), mode);
        assert_false(all_nan(seen.arenas.base[TIER_HOST], 16));
        assert_false(all_nan(seen.arenas.base[TIER_DEVICE] + 4096, 4096)); /* a home */
        executor_destroy(exec);
        config.lanes[LANE_COMPUTE]->ops->destroy(config.lanes[LANE_COMPUTE]);
        config.lanes[LANE_READ]->ops->destroy(config.lanes[LANE_READ]);
        fixture_arenas_fini(&seen.arenas);
        program_fini(&prog);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_correct_op_is_undisturbed),
        cmocka_unit_test(a_failed_op_changes_nothing),
        cmocka_unit_test(operands_may_overlap),
        cmocka_unit_test(undeclared_reads_get_nan),
        cmocka_unit_test(an_accumulator_must_be_zeroed),
        cmocka_unit_test(a_workspace_carries_nothing),
        cmocka_unit_test(a_kept_address_gives_nan),
        cmocka_unit_test(undeclared_writes_are_caught),
        cmocka_unit_test(unfit_ops),
        cmocka_unit_test(nothing_outlives_its_users),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
