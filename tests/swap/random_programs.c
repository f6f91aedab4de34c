/* See swap_fixture.h: the slow checker over all pairs of ops, and random programs. Aborts where a
 * test asks for the impossible. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/size.h"
#include "tests/swap/swap_fixture.h"

enum { STEP = 256, BLOCK = 4096 };

/* --- pairs ------------------------------------------------------------------------------------ */

static bool ranges_meet(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

/* Do two operands forbid that their ops run in either order: the same bytes of a buffer with a
 * write, or two buffers that share space? */
static bool operands_conflict(const program *prog, const operand *a, const operand *b)
{
    if (a->buffer_idx == b->buffer_idx)
        return ((a->access | b->access) & ACCESS_WRITE) &&
               ranges_meet(a->offset_bytes, a->size_bytes, b->offset_bytes, b->size_bytes);
    const buffer *x = &prog->buffers[a->buffer_idx], *y = &prog->buffers[b->buffer_idx];
    return x->arena == y->arena &&
           ranges_meet(x->offset_bytes, x->size_bytes, y->offset_bytes, y->size_bytes);
}

static bool ops_conflict(const program *prog, uint32_t i, uint32_t j)
{
    const op *a = &prog->ops[i], *b = &prog->ops[j];
    for (uint32_t k = 0; k < a->operand_count; k++)
        for (uint32_t m = 0; m < b->operand_count; m++)
            if (operands_conflict(prog, &a->operands[k], &b->operands[m]))
                return true;
    return false;
}

/* reach[i * words ..]: bit j set iff op j comes before op i. */
static void add_before(uint64_t *reach, uint64_t words, uint32_t i, uint32_t j)
{
    for (uint64_t w = 0; w < words; w++)
        reach[i * words + w] |= reach[j * words + w];
    reach[i * words + j / 64] |= (uint64_t)1 << (j % 64);
}

static bool is_before(const uint64_t *reach, uint64_t words, uint32_t j, uint32_t i)
{
    return reach[i * words + j / 64] >> (j % 64) & 1;
}

static void add_lane_order(const program *prog, uint64_t *reach, uint64_t words, uint32_t i)
{
    uint8_t kind = prog->ops[i].lane;
    if (kind == LANE_READ || kind == LANE_WRITE)
        return;
    for (uint32_t j = i; j-- > 0;)
        if (prog->ops[j].lane == kind) {
            add_before(reach, words, i, j);
            return;
        }
}

bool oracle_accepts(const program *prog)
{
    uint32_t count = (uint32_t)prog->op_count;
    uint64_t words = size_div_up(count, 64);
    uint64_t *reach = mem_alloc(count * words, sizeof *reach, "test oracle");
    must(reach != NULL, "reach != NULL");
    bool good = true;
    for (uint32_t i = 0; i < count; i++) {
        add_lane_order(prog, reach, words, i);
        for (uint32_t k = 0; k < prog->ops[i].dep_count; k++)
            add_before(reach, words, i, prog->deps[prog->ops[i].dep_begin + k]);
        for (uint32_t j = 0; j < i; j++)
            if (ops_conflict(prog, i, j) && !is_before(reach, words, j, i))
                good = false;
    }
    mem_free(reach);
    return good;
}

/* --- random programs -------------------------------------------------------------------------- */

enum {
    DEVICE_BYTES = 64 * STEP * 4,
    HOST_BYTES = 65536 + 24 * BLOCK,
    NVME_BYTES = 16 * BLOCK,
    LIVE_MAX = 6,
};

/* A buffer that the generator may use; of a transient only the first `filled` bytes are written. */
struct live_buffer {
    uint32_t idx;
    uint64_t filled;
};

struct generator {
    builder build;
    uint64_t seed, draws;
    uint32_t op_count;
    struct live_buffer live[TIER_COUNT][LIVE_MAX + 2];
    uint32_t live_count[TIER_COUNT];
    uint32_t home_count[TIER_COUNT]; /* the first of live, never dropped */
    uint32_t state, grads, params;   /* homes of the update ops */
    bool conditional;                /* with an OP_NORM, op `norm`, and conditional ops */
    uint32_t norm;                   /* the last op, or (it decides) one in the middle */
    uint64_t condition_draws;
    bool committing; /* with ops of a commit */
    /* [buffers] 1: a transient that an op of a skipped update would leave unwritten; 2: one that an
     * op of a commit would; 3: both */
    uint8_t *tainted;
};
typedef struct generator generator;

static uint64_t draw(generator *self, uint64_t bound)
{
    return rng_below(self->seed, 11, self->draws++, bound);
}

static uint64_t arena_step(enum tier arena)
{
    return arena == TIER_DEVICE ? STEP : BLOCK;
}

static bool space_is_free(const generator *self, enum tier arena, uint64_t offset,
                          uint64_t size_bytes)
{
    const program *prog = &self->build.prog;
    for (uint64_t b = 0; b < prog->home_count; b++)
        if (prog->buffers[b].arena == arena &&
            ranges_meet(offset, size_bytes, prog->buffers[b].offset_bytes,
                        prog->buffers[b].size_bytes))
            return false;
    const op *item = &prog->ops[prog->op_count - 1]; /* what it uses already stays until its end */
    for (uint32_t k = 0; k < item->operand_count; k++) {
        const buffer *used = &prog->buffers[item->operands[k].buffer_idx];
        if (used->arena == arena &&
            ranges_meet(offset, size_bytes, used->offset_bytes, used->size_bytes))
            return false;
    }
    for (uint32_t i = 0; i < self->live_count[arena]; i++) {
        const buffer *live = &prog->buffers[self->live[arena][i].idx];
        if (ranges_meet(offset, size_bytes, live->offset_bytes, live->size_bytes))
            return false;
    }
    return true;
}

/* A new transient at a random free place, or NULL when none was found in a few tries. */
static struct live_buffer *new_transient(generator *self, enum tier arena)
{
    uint64_t step = arena_step(arena);
    if (arena == TIER_NVME)
        return NULL;
    if (self->live_count[arena] == LIVE_MAX + 2) {
        uint32_t first = self->home_count[arena];
        uint32_t gone = first + (uint32_t)draw(self, self->live_count[arena] - first);
        self->live[arena][gone] = self->live[arena][--self->live_count[arena]];
    }
    for (int tries = 0; tries < 20; tries++) {
        uint64_t size_bytes = step * (1 + draw(self, 6));
        uint64_t budget = self->build.prog.budget_bytes[arena];
        uint64_t offset = step * draw(self, (budget - size_bytes) / step + 1);
        if (!space_is_free(self, arena, offset, size_bytes))
            continue;
        struct live_buffer *item = &self->live[arena][self->live_count[arena]++];
        *item = (struct live_buffer){builder_transient(&self->build, arena, offset, size_bytes), 0};
        return item;
    }
    return NULL;
}

/* Adds an operand that writes up to max_bytes; returns the bytes. */
static uint64_t use_written(generator *self, enum operand_role role, enum tier arena,
                            uint64_t max_bytes)
{
    uint64_t step = arena_step(arena);
    struct live_buffer *item = NULL;
    if (draw(self, 2) == 0)
        item = new_transient(self, arena);
    if (!item)
        item = &self->live[arena][draw(self, self->live_count[arena])];
    uint64_t size_bytes = self->build.prog.buffers[item->idx].size_bytes;
    uint64_t begin = step * draw(self, size_min(item->filled, size_bytes - step) / step + 1);
    uint64_t bytes = step * (1 + draw(self, size_min(max_bytes, size_bytes - begin) / step));
    builder_use(&self->build, role, ACCESS_WRITE, item->idx, begin, bytes);
    item->filled = size_max(item->filled, begin + bytes);
    return bytes;
}

/* Adds an operand of written bytes, exactly `bytes` of them if not 0; returns the bytes. */
static uint64_t use_read(generator *self, enum operand_role role, enum operand_access access,
                         enum tier arena, uint64_t bytes)
{
    uint64_t step = arena_step(arena);
    struct live_buffer *item = &self->live[arena][draw(self, self->live_count[arena])];
    if (item->filled == 0 || item->filled < bytes)
        item = &self->live[arena][0]; /* a home, large enough for all */
    if (bytes == 0)
        bytes = step * (1 + draw(self, item->filled / step));
    uint64_t begin = step * draw(self, (item->filled - bytes) / step + 1);
    builder_use(&self->build, role, access, item->idx, begin, bytes);
    return bytes;
}

static void random_copy(generator *self, enum op_kind kind, enum tier source, enum tier target)
{
    builder_op(&self->build, kind);
    uint64_t bytes = use_written(self, ROLE_TARGET, target, 6 * BLOCK);
    if (bytes % arena_step(source) == 0) {
        use_read(self, ROLE_SOURCE, ACCESS_READ, source, bytes);
        return;
    }
    /* From host in device steps: only homes hold such pieces. */
    builder_use(&self->build, ROLE_SOURCE, ACCESS_READ, self->live[source][0].idx,
                STEP * draw(self, 8), bytes);
}

static void random_update(generator *self)
{
    builder_op(&self->build, draw(self, 3) ? OP_UPDATE : OP_WORKING_COPY);
    bool update = self->build.prog.ops[self->build.prog.op_count - 1].kind == OP_UPDATE;
    builder_use(&self->build, ROLE_STATE, update ? ACCESS_UPDATE : ACCESS_READ, self->state, 0,
                STEP * (1 + draw(self, 32)));
    if (update)
        builder_use(&self->build, ROLE_SOURCE, ACCESS_READ, self->grads, 0,
                    STEP * (1 + draw(self, 16)));
    builder_use(&self->build, ROLE_TARGET, ACCESS_WRITE, self->params, 0,
                STEP * (1 + draw(self, 16)));
}

/* Makes a collective of one rank, on bytes that are no state, so of any size. It never reads what
 * an op of a commit writes, since that op may be skipped, nor does it overlap itself. */
static void random_gather(generator *self)
{
    enum { BYTES_MAX = 11 * STEP }; /* three times that fit in the home */
    const program *prog = &self->build.prog;
    builder_op(&self->build, OP_ALL_GATHER);
    uint64_t bytes = use_written(self, ROLE_TARGET, TIER_DEVICE, BYTES_MAX);
    const operand target = prog->ops[prog->op_count - 1].operands[0];
    uint32_t home = self->live[TIER_DEVICE][0].idx;
    struct live_buffer from = self->live[TIER_DEVICE][draw(self, self->live_count[TIER_DEVICE])];
    uint64_t begin = 0;
    bool fits = from.idx != target.buffer_idx && from.filled >= bytes;
    if (!fits || (self->tainted && (self->tainted[from.idx] & 2))) {
        from.idx = home;
        if (target.buffer_idx == home && target.offset_bytes < bytes)
            begin = target.offset_bytes + bytes;
    }
    builder_use(&self->build, ROLE_SOURCE, ACCESS_READ, from.idx, begin, bytes);
}

static void random_compute(generator *self)
{
    switch (draw(self, 4)) {
    case 0:
        random_gather(self);
        break;
    case 1:
        builder_op(&self->build, OP_BACKWARD);
        use_read(self, ROLE_GRADS0, ACCESS_UPDATE, TIER_DEVICE, 0);
        use_read(self, ROLE_OUTPUT_GRAD, ACCESS_READ, TIER_DEVICE, 0);
        break;
    default:
        builder_op(&self->build, OP_FORWARD);
        use_read(self, ROLE_PARAMS0, ACCESS_READ, TIER_DEVICE, 0);
        use_read(self, ROLE_INPUT, ACCESS_READ, TIER_DEVICE, 0);
        use_written(self, ROLE_OUTPUT, TIER_DEVICE, DEVICE_BYTES);
        break;
    }
}

static void random_op(generator *self)
{
    switch (draw(self, 8)) {
    case 0:
        random_copy(self, OP_READ, TIER_NVME, TIER_HOST);
        break;
    case 1:
        random_copy(self, OP_WRITE, TIER_HOST, TIER_NVME);
        break;
    case 2:
    case 3:
        random_copy(self, OP_H2D, TIER_HOST, TIER_DEVICE);
        break;
    case 4:
        builder_op(&self->build, OP_D2H);
        use_written(self, ROLE_TARGET, TIER_HOST, 2 * BLOCK);
        use_read(self, ROLE_SOURCE, ACCESS_READ, TIER_DEVICE,
                 self->build.prog.ops[self->build.prog.op_count - 1].operands[0].size_bytes);
        break;
    case 5:
        random_update(self);
        break;
    default:
        random_compute(self);
        break;
    }
}

/* The latest op's needed dependencies, nearest first; those that others imply mostly not. */
static void add_needed_deps(generator *self, uint64_t *reach, uint64_t words)
{
    const program *prog = &self->build.prog;
    uint32_t i = (uint32_t)prog->op_count - 1;
    add_lane_order(prog, reach, words, i);
    for (uint32_t j = i; j-- > 0;) {
        bool implied = is_before(reach, words, j, i);
        if (!ops_conflict(prog, i, j) || (implied && draw(self, 8) != 0))
            continue;
        builder_dep(&self->build, j);
        add_before(reach, words, i, j);
    }
}

/* --- conditional ops -------------------------------------------------------------------------- */

/* Draws of their own, so that a seed gives the same ops with and without conditions. */
static uint64_t draw_condition(generator *self, uint64_t bound)
{
    return rng_below(self->seed, 12, self->condition_draws++, bound);
}

static bool is_transfer_ahead(const program *prog, const op *item)
{
    bool is_copy = item->kind == OP_READ || item->kind == OP_H2D || item->kind == OP_D2H;
    const operand *target = op_operand(item, ROLE_TARGET);
    return is_copy && !prog->buffers[target->buffer_idx].is_home;
}

/* Decides whether the latest op is conditional. One that reads what a skipped op would not have
 * written must be; else the draw says. Where the norm decides, only transfers may come before
 * it. */
static void draw_if_applied(generator *self)
{
    program *prog = &self->build.prog;
    uint32_t i = (uint32_t)prog->op_count - 1;
    op *item = &prog->ops[i];
    bool decides = self->norm + 1 < self->op_count;
    if (i == self->norm)
        return;
    if (decides && i < self->norm) {
        item->if_applied = is_transfer_ahead(prog, item) && draw_condition(self, 2) == 0;
        return; /* it runs in any case */
    }
    item->if_applied = draw_condition(self, 4) == 0;
    for (uint32_t k = 0; k < item->operand_count; k++)
        if ((item->operands[k].access & ACCESS_READ) &&
            (self->tainted[item->operands[k].buffer_idx] & 1))
            item->if_applied = 1;
    for (uint32_t k = 0; k < item->operand_count && item->if_applied; k++) {
        uint32_t buffer_idx = item->operands[k].buffer_idx;
        if ((item->operands[k].access & ACCESS_WRITE) && !prog->buffers[buffer_idx].is_home)
            self->tainted[buffer_idx] |= 1;
    }
}

/* Decides whether the latest op is one of a commit; the same, but any op may be. */
static void draw_if_commits(generator *self)
{
    program *prog = &self->build.prog;
    op *item = &prog->ops[prog->op_count - 1];
    if (prog->op_count - 1 == self->norm)
        return;
    item->if_commits = draw_condition(self, 5) == 0 && item->lane != LANE_COMM;
    for (uint32_t k = 0; k < item->operand_count; k++)
        if ((item->operands[k].access & ACCESS_READ) &&
            (self->tainted[item->operands[k].buffer_idx] & 2))
            item->if_commits = 1;
    for (uint32_t k = 0; k < item->operand_count && item->if_commits; k++) {
        uint32_t buffer_idx = item->operands[k].buffer_idx;
        if ((item->operands[k].access & ACCESS_WRITE) && !prog->buffers[buffer_idx].is_home)
            self->tainted[buffer_idx] |= 2;
    }
}

/* A commit has no operands: only dependencies order it. */
static bool is_turn_of_commit(const generator *self, uint32_t i)
{
    return self->committing && i != self->norm && i % 16 == 9;
}

/* The latest op names a commit before it here and there, and a commit ops before it. */
static void add_commit_deps(generator *self, uint64_t *reach, uint64_t words)
{
    const program *prog = &self->build.prog;
    uint32_t i = (uint32_t)prog->op_count - 1;
    bool is_commit = prog->ops[i].kind == OP_COMMIT;
    for (uint32_t j = i; j-- > 0;) {
        if ((!is_commit && prog->ops[j].kind != OP_COMMIT) || draw_condition(self, 4) != 0)
            continue;
        builder_dep(&self->build, j);
        add_before(reach, words, i, j);
    }
}

/* Where the norm decides, a conditional op comes after it: mostly by a dependency, or by others. */
static void add_norm_dep(generator *self, uint64_t *reach, uint64_t words)
{
    uint32_t i = (uint32_t)self->build.prog.op_count - 1;
    if (!self->build.prog.ops[i].if_applied || i <= self->norm)
        return;
    if (is_before(reach, words, self->norm, i) && draw_condition(self, 2) != 0)
        return;
    builder_dep(&self->build, self->norm);
    add_before(reach, words, i, self->norm);
}

static void random_norm(generator *self)
{
    builder_op(&self->build, OP_NORM);
    builder_use(&self->build, ROLE_NORM_SUMS, ACCESS_READ, self->live[TIER_DEVICE][0].idx, 0,
                8 * STEP);
}

bool fixture_skips(const program *prog, uint32_t op_idx)
{
    uint32_t norm = 0;
    while (norm < prog->op_count && prog->ops[norm].kind != OP_NORM)
        norm++;
    bool decides = norm + 1 < prog->op_count;
    return prog->ops[op_idx].if_applied && (!decides || op_idx > norm);
}

bool fixture_runs(const program *prog, uint32_t op_idx, bool skipped, bool commits)
{
    return (commits || !prog->ops[op_idx].if_commits) && !(skipped && fixture_skips(prog, op_idx));
}

/* Half of the reads and writes go behind one of the latest two of the other direction. */
static void add_behinds(uint64_t seed, program *prog)
{
    uint32_t latest[2][2] = {{PROGRAM_NONE, PROGRAM_NONE}, {PROGRAM_NONE, PROGRAM_NONE}};
    static_assert(LANE_READ == 0 && LANE_WRITE == 1, "lanes index `latest`");
    for (uint32_t i = 0; i < prog->op_count; i++) {
        op *item = &prog->ops[i];
        if (item->lane > LANE_WRITE)
            continue;
        uint32_t other = latest[!item->lane][rng_below(seed, 13, 2 * (uint64_t)i, 2)];
        if (other != PROGRAM_NONE && !op_depends_on(prog, i, other) &&
            rng_below(seed, 13, 2 * (uint64_t)i + 1, 2) == 0)
            item->behind = other;
        latest[item->lane][1] = latest[item->lane][0];
        latest[item->lane][0] = i;
    }
}

static void add_home(generator *self, enum tier arena, uint64_t offset, uint64_t size_bytes)
{
    uint32_t idx = builder_home(&self->build, arena, offset, size_bytes);
    self->live[arena][self->live_count[arena]++] = (struct live_buffer){idx, size_bytes};
    self->home_count[arena]++;
}

static void generate(generator from, program *out)
{
    generator self = from;
    uint32_t op_count = self.op_count;
    uint64_t words = size_div_up(op_count, 64);
    uint64_t *reach = mem_alloc(op_count * words, sizeof *reach, "test program");
    must(reach != NULL, "reach != NULL");
    builder_init(&self.build, PROGRAM_STEADY, DEVICE_BYTES, HOST_BYTES, NVME_BYTES);
    add_home(&self, TIER_NVME, 0, NVME_BYTES);
    add_home(&self, TIER_DEVICE, 0, 34 * STEP);
    add_home(&self, TIER_HOST, 2 * BLOCK, 8 * BLOCK);
    self.state = builder_home(&self.build, TIER_HOST, 0, 2 * BLOCK);
    self.grads = builder_home(&self.build, TIER_HOST, 49152, BLOCK);
    self.params = builder_home(&self.build, TIER_HOST, 57344, BLOCK);
    for (uint32_t i = 0; i < op_count; i++) {
        if (self.conditional && i == self.norm)
            random_norm(&self);
        else if (is_turn_of_commit(&self, i))
            builder_op(&self.build, OP_COMMIT);
        else
            random_op(&self);
        if (self.conditional)
            draw_if_applied(&self);
        if (self.committing)
            draw_if_commits(&self);
        add_needed_deps(&self, reach, words);
        if (self.committing)
            add_commit_deps(&self, reach, words);
        if (self.conditional)
            add_norm_dep(&self, reach, words);
    }
    mem_free(reach);
    builder_finish(&self.build, out);
    add_behinds(self.seed, out);
}

void random_program(uint64_t seed, uint32_t op_count, program *out)
{
    generate((generator){.seed = seed, .op_count = op_count}, out);
}

static void generate_conditional(generator from, bool decides, program *out)
{
    generator self = from;
    uint32_t op_count = self.op_count;
    self.conditional = true;
    self.norm = decides ? op_count / 3 : op_count - 1;
    self.tainted = mem_alloc(2 * op_count + 16, 1, "test program");
    must(self.tainted != NULL, "self.tainted != NULL");
    generate(self, out);
    mem_free(self.tainted);
}

void random_conditional_program(uint64_t seed, uint32_t op_count, bool decides, program *out)
{
    generate_conditional((generator){.seed = seed, .op_count = op_count}, decides, out);
}

void random_committing_program(uint64_t seed, uint32_t op_count, bool decides, program *out)
{
    generator self = {.seed = seed, .op_count = op_count, .committing = true};
    generate_conditional(self, decides, out);
}
