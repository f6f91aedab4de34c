/* See gpu_lanes_rig.h. */
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/size.h"
#include "tests/gpu/gpu_lanes_rig.h"
#include "tests/unit.h"

#ifdef SLUICE_SIMULATED_GPU
#include "tests/simulated_gpu/simulated_gpu.h"
#endif

enum {
    OWNER_GPU = 1,
    OWNER_READ,
    OWNER_WRITE,
    OWNER_UPDATE,
    OWNER_COMM,
    ARENA_BYTES = 1 << 20, /* at least what the fixture's programs use */
};

/* --- ops of the GPU --------------------------------------------------------------------------- */

/* The two things that an op does, on a stream or on the spot. */
struct work {
    device *gpu; /* NULL: on the spot */
    device_stream *stream;
    unsigned char *device_base;
};
typedef struct work work;

static int work_fill(const work *self, unsigned char *target, uint8_t value, uint64_t size_bytes)
{
    if (self->gpu)
        return device_fill(self->gpu, self->stream, target, value, size_bytes);
    memset(target, value, size_bytes);
    return 0;
}

static int work_copy(const work *self, unsigned char *target, const unsigned char *source,
                     uint64_t size_bytes)
{
    if (target < source + size_bytes && source < target + size_bytes)
        return 0; /* operands of one buffer may overlap, copies may not */
    if (self->gpu)
        return device_copy(self->gpu, self->stream, target, source, size_bytes, DEVICE_WITHIN);
    memcpy(target, source, size_bytes);
    return 0;
}

/* Marks what is written with the op, then brings a piece of each operand read into each one
 * written. */
static int work_op(const work *self, const program *prog, const op *item)
{
    uint8_t mark = (uint8_t)(37 * (item - prog->ops) + 11);
    for (uint32_t w = 0; w < item->operand_count; w++) {
        const operand *to = &item->operands[w];
        unsigned char *target = lane_operand_address(self->device_base, prog, to);
        uint64_t marked = to->access == ACCESS_WRITE ? to->size_bytes : 8;
        if (!(to->access & ACCESS_WRITE))
            continue;
        if (to->access == ACCESS_UPDATE)
            TRY(work_copy(self, target, target + to->size_bytes / 2, to->size_bytes / 2));
        TRY(work_fill(self, target, (uint8_t)(mark + w), marked));
        for (uint32_t r = 0; r < item->operand_count; r++) {
            const operand *from = &item->operands[r];
            uint64_t piece = size_min(from->size_bytes, to->size_bytes) - 16;
            if (r != w && (from->access & ACCESS_READ))
                TRY(work_copy(self, target + 8 + 8 * (r % 2),
                              lane_operand_address(self->device_base, prog, from), piece));
        }
    }
    return 0;
}

/* --- the rig ---------------------------------------------------------------------------------- */

#ifdef SLUICE_SIMULATED_GPU
int gpu_rig_break(void *stream)
{
    simulated_gpu_inject_fault(SIMULATED_FAULT_ANY, 0);
    return 0;
}

static void wait_for_release(void *user)
{
    atomic_int *flags = user;
    atomic_store(&flags[0], 1);
    while (atomic_load(&flags[1]) == 0)
        usleep(1000);
}

int gpu_rig_hold(void *stream, atomic_int *flags)
{
    return (int)cudaLaunchHostFunc(stream, wait_for_release, flags);
}
#endif

static int enqueue_op(void *user, const program *prog, const op *item, void *stream)
{
    gpu_rig *self = user;
    work on_stream = {self->gpu, stream, self->device_base};
    if (item - prog->ops == self->break_idx && gpu_rig_break(stream) != 0)
        return err_set(ERR_BACKEND, "the kernel that breaks the GPU was not launched");
    if (item - prog->ops == self->fail_enqueue_idx) {
        TRY(work_op(&on_stream, prog, item)); /* a part of the op is enqueued when it fails */
        return err_set(-EIO, "the kernel was refused");
    }
    return work_op(&on_stream, prog, item);
}

static int finish_op(void *user, const program *prog, const op *item)
{
    gpu_rig *self = user;
    self->finished[item - prog->ops]++;
    self->late_finishes += self->has_failed;
    if (item->kind == OP_NORM)
        self->arenas.is_skipped = self->arenas.norm_skips;
    if (item - prog->ops != self->fail_finish_idx)
        return 0;
    self->has_failed = true;
    return err_set(-EIO, "the result is bad");
}

static lane *make_worker(gpu_rig *self, const char *name, uint32_t owner)
{
    lane_worker_config config = {
        .name = name, .run = fixture_execute, .user = &self->arenas, .owner = owner, .depth = 3};
    lane *made;
    assert_ok(lane_worker_create(&config, &made));
    return made;
}

lane_stream_config gpu_rig_config(gpu_rig *self)
{
    return (lane_stream_config){
        .gpu = self->gpu,
        .serves = {[LANE_H2D] = true, [LANE_D2H] = true, [LANE_COMM] = true, [LANE_COMPUTE] = true},
        .arena_base = {self->device_base, self->pinned},
        .enqueue = enqueue_op,
        .finish = finish_op,
        .user = self,
        .is_timed = !self->is_untimed,
        .owner = OWNER_GPU,
        .depth = self->depth,
    };
}

/* A comm lane on the host: what it does on the GPU is complete when it returns. */
static int comm_run(void *user, const program *prog, const op *item)
{
    gpu_rig *self = user;
    work on_stream = {self->gpu, self->comm_stream, self->device_base};
    TRY(work_op(&on_stream, prog, item));
    return device_synchronize(self->gpu, self->comm_stream);
}

static int comm_start(void *user)
{
    return device_attach(((gpu_rig *)user)->gpu);
}

void gpu_rig_init_staged(gpu_rig *self, uint32_t depth)
{
    gpu_rig_init(self, depth);
    assert_ok(device_stream_create(self->gpu, true, &self->comm_stream));
    lane_worker_config config = {.name = "comm",
                                 .run = comm_run,
                                 .start_thread = comm_start,
                                 .user = self,
                                 .owner = OWNER_COMM,
                                 .depth = depth};
    assert_ok(lane_worker_create(&config, &self->lanes[LANE_COMM]));
}

static void init(gpu_rig *self, uint32_t depth, bool is_timed)
{
    memset(self, 0, sizeof *self);
    self->depth = depth;
    self->is_untimed = !is_timed;
    self->break_idx = self->fail_enqueue_idx = self->fail_finish_idx = PROGRAM_NONE;
    assert_ok(device_open(0, &self->gpu));
    assert_ok(device_reserve(self->gpu, ARENA_BYTES, &self->device_base));
    self->pinned =
        mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(self->pinned != MAP_FAILED);
    assert_ok(device_pin(self->gpu, self->pinned, ARENA_BYTES));
    lane_stream_config config = gpu_rig_config(self);
    assert_ok(lane_stream_create(&config, &self->lanes[LANE_H2D]));
    self->lanes[LANE_D2H] = self->lanes[LANE_COMM] = self->lanes[LANE_COMPUTE] =
        self->lanes[LANE_H2D];
    self->lanes[LANE_READ] = make_worker(self, "read", OWNER_READ);
    self->lanes[LANE_WRITE] = make_worker(self, "write", OWNER_WRITE);
    self->lanes[LANE_UPDATE] = make_worker(self, "update", OWNER_UPDATE);
    assert_ok(trace_init(&self->ring, GPU_RIG_EVENTS));
}

void gpu_rig_init(gpu_rig *self, uint32_t depth)
{
    init(self, depth, true);
}

bool gpu_rig_may_replay(void *user, const program *prog, const op *item)
{
    return (item - prog->ops) % 5 != 0;
}

void gpu_rig_init_prepared(gpu_rig *self, uint32_t depth, bool is_timed,
                           const program *const *programs, uint32_t count, uint64_t graph_bytes)
{
    lane_stream_graphs graphs = {.may_replay = gpu_rig_may_replay, .bytes_max = graph_bytes};
    init(self, depth, is_timed);
    assert_ok(lane_stream_prepare(self->lanes[LANE_H2D], programs, count, &graphs));
}

void gpu_rig_fini(gpu_rig *self)
{
    for (int kind = 0; kind < LANE_COUNT; kind++)
        if (kind <= LANE_H2D || kind == LANE_UPDATE)
            self->lanes[kind]->ops->destroy(self->lanes[kind]);
    if (self->comm_stream)
        self->lanes[LANE_COMM]->ops->destroy(self->lanes[LANE_COMM]);
    trace_fini(&self->ring);
    device_close(self->gpu);
    munmap(self->pinned, ARENA_BYTES);
}

static void move_arena(gpu_rig *self, enum device_direction direction, uint64_t size_bytes)
{
    unsigned char *host = self->arenas.base[TIER_DEVICE];
    device_stream *stream = lane_stream_of(self->lanes[LANE_H2D], LANE_COMPUTE);
    void *target = direction == DEVICE_FROM_HOST ? self->device_base : host;
    void *source = direction == DEVICE_FROM_HOST ? host : self->device_base;
    assert_ok(device_copy(self->gpu, stream, target, source, size_bytes, direction));
    assert_ok(device_synchronize(self->gpu, NULL));
}

/* Content for the program's arenas, drawn from the seed. */
void gpu_rig_load(gpu_rig *self, const program *prog, uint64_t seed)
{
    assert_true(prog->op_count <= GPU_RIG_OPS_MAX);
    fixture_arenas_init(&self->arenas, prog, seed);
    assert_true(self->arenas.size_bytes[TIER_HOST] <= ARENA_BYTES &&
                self->arenas.size_bytes[TIER_DEVICE] <= ARENA_BYTES);
    memcpy(self->pinned, self->arenas.base[TIER_HOST], self->arenas.size_bytes[TIER_HOST]);
    mem_free(self->arenas.base[TIER_HOST]);
    self->arenas.base[TIER_HOST] = self->pinned;
    move_arena(self, DEVICE_FROM_HOST, self->arenas.size_bytes[TIER_DEVICE]);
    memset(self->finished, 0, sizeof self->finished);
}

/* Are the arenas those of serial execution? */
bool gpu_rig_matches(gpu_rig *self, const fixture_arenas *serial)
{
    move_arena(self, DEVICE_TO_HOST, self->arenas.size_bytes[TIER_DEVICE]);
    return fixture_arenas_equal(&self->arenas, serial);
}

void gpu_rig_unload(gpu_rig *self)
{
    self->arenas.base[TIER_HOST] = NULL;
    fixture_arenas_fini(&self->arenas);
}

executor *gpu_rig_executor(gpu_rig *self, const program *const *programs, uint32_t count)
{
    executor_config config = {.programs = programs,
                              .program_count = count,
                              .ring = &self->ring,
                              .is_skipped = &self->arenas.is_skipped};
    memcpy(config.lanes, self->lanes, sizeof config.lanes);
    executor *exec;
    assert_ok(executor_create(&config, &exec));
    return exec;
}

void gpu_rig_execute_serially(fixture_arenas *arenas, const program *prog, bool skipped)
{
    work on_spot = {.device_base = arenas->base[TIER_DEVICE]};
    for (uint32_t i = 0; i < prog->op_count; i++) {
        const op *item = &prog->ops[i];
        if (skipped && fixture_skips(prog, i))
            continue;
        if (item->lane == LANE_COMM || item->lane == LANE_COMPUTE)
            assert_int_equal(work_op(&on_spot, prog, item), 0);
        else
            (void)fixture_execute(arenas, prog, item);
    }
}

void gpu_rig_copies_program(uint32_t count, program *out)
{
    builder b;
    builder_init(&b, PROGRAM_STEADY, 65536, 65536, 4096);
    uint32_t target = builder_home(&b, TIER_DEVICE, 0, 65536);
    uint32_t source = builder_home(&b, TIER_HOST, 0, 65536);
    for (uint32_t i = 0; i < count; i++) {
        builder_op(&b, OP_H2D);
        builder_use(&b, ROLE_SOURCE, ACCESS_READ, source, 4096 * i, 4096);
        builder_use(&b, ROLE_TARGET, ACCESS_WRITE, target, 4096 * i, 4096);
    }
    builder_finish(&b, out);
}
