/* See swap_fixture.h: programs that are built by hand. Aborts where a test asks for the impossible.
 */
#include "tests/swap/swap_fixture.h"
#include "base/mem.h"
#include "tests/unit.h"

void must(bool good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "test fixture: %s does not hold\n", what);
    abort();
}

static void *grown(void *block, uint64_t count, uint64_t *capacity, size_t elem_bytes)
{
    if (count < *capacity)
        return block;
    *capacity = *capacity ? 2 * *capacity : 64;
    block = mem_resize(block, *capacity, elem_bytes, "test program");
    must(block != NULL, "block != NULL");
    return block;
}

void builder_init(builder *self, enum program_kind kind, uint64_t device_bytes, uint64_t host_bytes,
                  uint64_t nvme_bytes)
{
    memset(self, 0, sizeof *self);
    self->prog.kind = kind;
    self->prog.budget_bytes[TIER_DEVICE] = device_bytes;
    self->prog.budget_bytes[TIER_HOST] = host_bytes;
    self->prog.budget_bytes[TIER_NVME] = nvme_bytes;
}

uint32_t builder_transient(builder *self, enum tier arena, uint64_t offset, uint64_t size_bytes)
{
    program *prog = &self->prog;
    prog->buffers =
        grown(prog->buffers, prog->buffer_count, &self->buffer_capacity, sizeof *prog->buffers);
    prog->buffers[prog->buffer_count] = (buffer){
        .arena = (uint8_t)arena,
        .state_kind = STATE_KIND_COUNT,
        .unit = PROGRAM_NONE,
        .offset_bytes = offset,
        .size_bytes = size_bytes,
        .producer = PROGRAM_NONE,
        .last_reader = PROGRAM_NONE,
    };
    return (uint32_t)prog->buffer_count++;
}

uint32_t builder_home(builder *self, enum tier arena, uint64_t offset, uint64_t size_bytes)
{
    must(self->prog.home_count == self->prog.buffer_count,
         "self->prog.home_count == self->prog.buffer_count");
    uint32_t idx = builder_transient(self, arena, offset, size_bytes);
    self->prog.buffers[idx].is_home = 1;
    self->prog.home_count++;
    return idx;
}

uint32_t builder_op(builder *self, enum op_kind kind)
{
    static const uint8_t lanes[OP_KIND_COUNT] = {
        [OP_READ] = LANE_READ,
        [OP_WRITE] = LANE_WRITE,
        [OP_H2D] = LANE_H2D,
        [OP_D2H] = LANE_D2H,
        [OP_ALL_GATHER] = LANE_COMM,
        [OP_UNITE_HITS] = LANE_COMM,
        [OP_REDUCE_SCATTER] = LANE_COMM,
        [OP_FORWARD] = LANE_COMPUTE,
        [OP_RECOMPUTE] = LANE_COMPUTE,
        [OP_BACKWARD] = LANE_COMPUTE,
        [OP_GRAD_CLOSE] = LANE_COMPUTE,
        [OP_NORM] = LANE_COMPUTE,
        [OP_UPDATE] = LANE_UPDATE,
        [OP_INIT] = LANE_UPDATE,
        [OP_WORKING_COPY] = LANE_UPDATE,
        [OP_COMMIT] = LANE_COMMIT,
        [OP_NORM_PART] = LANE_COMPUTE,
        [OP_GRAD_ADD] = LANE_COMPUTE,
        [OP_DIRECTION] = LANE_UPDATE,
        [OP_ORTHOGONALIZE] = LANE_UPDATE,
        [OP_DISPATCH] = LANE_COMM,
        [OP_RETURN] = LANE_COMM,
    };
    program *prog = &self->prog;
    prog->ops = grown(prog->ops, prog->op_count, &self->op_capacity, sizeof *prog->ops);
    op *item = &prog->ops[prog->op_count];
    memset(item, 0, sizeof *item);
    item->kind = (uint8_t)kind;
    item->lane = lanes[kind];
    item->unit = (uint32_t)(prog->op_count % 7);
    item->stage = PROGRAM_NONE;
    item->micro_batch = PROGRAM_NONE;
    item->tile = item->behind = PROGRAM_NONE;
    item->state_kind = PROGRAM_NONE;
    item->dep_begin = (uint32_t)prog->dep_count;
    return (uint32_t)prog->op_count++;
}

void builder_use(builder *self, enum operand_role role, enum operand_access access,
                 uint32_t buffer_idx, uint64_t offset, uint64_t size_bytes)
{
    op *item = &self->prog.ops[self->prog.op_count - 1];
    must(item->operand_count < OP_OPERANDS_MAX, "item->operand_count < OP_OPERANDS_MAX");
    item->operands[item->operand_count++] = (operand){
        .buffer_idx = buffer_idx,
        .role = (uint8_t)role,
        .access = (uint8_t)access,
        .offset_bytes = offset,
        .size_bytes = size_bytes,
    };
}

void builder_dep(builder *self, uint32_t op_idx)
{
    program *prog = &self->prog;
    prog->deps = grown(prog->deps, prog->dep_count, &self->dep_capacity, sizeof *prog->deps);
    prog->deps[prog->dep_count++] = op_idx;
    prog->ops[prog->op_count - 1].dep_count++;
}

void builder_finish(builder *self, program *out)
{
    program *prog = &self->prog;
    for (uint32_t i = 0; i < prog->op_count; i++)
        for (uint32_t k = 0; k < prog->ops[i].operand_count; k++) {
            const operand *part = &prog->ops[i].operands[k];
            buffer *item = &prog->buffers[part->buffer_idx];
            if (item->is_home)
                continue;
            if (item->producer == PROGRAM_NONE && (part->access & ACCESS_WRITE))
                item->producer = i;
            item->last_reader = i;
        }
    for (int a = 0; a < TIER_COUNT; a++)
        prog->peak_buffer[a] = PROGRAM_NONE;
    for (uint32_t b = 0; b < prog->buffer_count; b++) {
        const buffer *item = &prog->buffers[b];
        if (item->offset_bytes + item->size_bytes <= prog->peak_bytes[item->arena])
            continue;
        prog->peak_bytes[item->arena] = item->offset_bytes + item->size_bytes;
        prog->peak_buffer[item->arena] = b;
    }
    *out = *prog;
    memset(self, 0, sizeof *self);
}

void program_drop_dep(program *prog, uint32_t op_idx, uint32_t k)
{
    op *item = &prog->ops[op_idx];
    uint32_t *deps = &prog->deps[item->dep_begin];
    must(k < item->dep_count, "k < item->dep_count");
    deps[k] = deps[--item->dep_count];
}

void program_copy(program *out, const program *from)
{
    *out = *from;
    out->ops = mem_alloc(from->op_count, sizeof *out->ops, "test program");
    out->deps = mem_alloc(from->dep_count, sizeof *out->deps, "test program");
    out->buffers = mem_alloc(from->buffer_count, sizeof *out->buffers, "test program");
    must(out->ops && out->deps && out->buffers, "out->ops && out->deps && out->buffers");
    memcpy(out->ops, from->ops, from->op_count * sizeof *out->ops);
    if (from->dep_count > 0)
        memcpy(out->deps, from->deps, from->dep_count * sizeof *out->deps);
    memcpy(out->buffers, from->buffers, from->buffer_count * sizeof *out->buffers);
}

void program_check_faults(void (*build)(program *out), const struct program_fault *list,
                          size_t count)
{
    program prog;
    build(&prog);
    assert_ok(program_check(&prog));
    program_fini(&prog);
    uint64_t missed = 0;
    for (size_t i = 0; i < count; i++) {
        build(&prog);
        list[i].apply(&prog);
        int rc = program_check(&prog);
        if (rc != ERR_INTERNAL || !strstr(err_text(), list[i].text)) {
            printf("%s: code %d, text \"%s\"\n", list[i].name, rc, rc < 0 ? err_text() : "");
            missed++;
        }
        program_fini(&prog);
    }
    assert_int_equal(missed, 0);
}
