/* The CUDA backend's read_back: rows of device memory come to the host end to end, and a watch ends
 * the wait for a stream that hangs. */
#include <cuda_runtime_api.h>
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>

#include "base/error.h"
#include "tests/cuda/gpu_fixture.h"
#include "tests/unit.h"

#ifdef SLUICE_SIMULATED_GPU
#include "tests/simulated_gpu/simulated_gpu.h"
#endif

enum { ROWS = 5, COLUMNS = 7, STRIDE = 48, CALLS = 5 };

struct rig {
    gpu_fixture *gpu;
    int32_t *source; /* [ROWS, STRIDE] */
    int32_t got[ROWS * COLUMNS];
    atomic_int calls, is_held;
    bool ends; /* the watch ends the wait; else it lets the stream go */
};

static int watch(void *user)
{
    struct rig *self = user;
    if (atomic_fetch_add(&self->calls, 1) + 1 < CALLS)
        return 0;
    if (self->ends)
        return err_set(-ECANCELED, "a rank is gone");
    atomic_store(&self->is_held, 0);
    return 0;
}

static void hold(void *user)
{
    struct rig *self = user;
    while (atomic_load(&self->is_held))
        sched_yield();
}

static struct rig begin(void)
{
    struct rig self = {.gpu = gpu_begin()};
    int32_t values[ROWS * STRIDE];
    for (int i = 0; i < ROWS * STRIDE; i++)
        values[i] = 3 * i;
    self.source = gpu_alloc_copy(self.gpu, values, sizeof values);
    assert_int_equal(cudaHostAlloc(&self.gpu->context.numbers, KERNEL_READ_BACK_BYTES, 0), 0);
    self.gpu->context.watch = watch;
    return self;
}

static int read_rows(struct rig *self)
{
    kernel_context *context = &self->gpu->context;
    const read_back_args args = {.source = self->source,
                                 .target = self->got,
                                 .rows = ROWS,
                                 .row_bytes = COLUMNS * sizeof(int32_t),
                                 .stride_bytes = STRIDE * sizeof(int32_t)};
    memset(self->got, 0xff, sizeof self->got);
    context->watch_user = self;
    return cudai_read_back(context, self->gpu->stream, &args);
}

static void expect_rows(const struct rig *self)
{
    for (int row = 0; row < ROWS; row++)
        for (int i = 0; i < COLUMNS; i++)
            assert_int_equal(self->got[row * COLUMNS + i], 3 * (row * STRIDE + i));
}

static void end(struct rig *self)
{
    gpu_sync(self->gpu);
    assert_int_equal(cudaFreeHost(self->gpu->context.numbers), 0);
    gpu_end(self->gpu);
}

static void rows_come_end_to_end(void **state)
{
    struct rig self = begin();
    self.gpu->context.watch = NULL;
    assert_int_equal(read_rows(&self), 0);
    expect_rows(&self);
    /* The work before it on the stream has been done. */
    enum { LATE_BYTES = 2 * sizeof(int32_t) };
    int32_t *late = gpu_alloc(self.gpu, LATE_BYTES);
    const read_back_args one = {
        .source = late, .target = self.got, .rows = 1, .row_bytes = LATE_BYTES};
    assert_int_equal(cudai_zero(&self.gpu->context, self.gpu->stream, late, LATE_BYTES), 0);
    assert_int_equal(cudai_read_back(&self.gpu->context, self.gpu->stream, &one), 0);
    assert_true(self.got[0] == 0 && self.got[1] == 0 && self.got[2] == 3 * 2);
    end(&self);
}

/* CUDA's own copy of rows refuses such a stride. */
static void rows_may_be_more_than_2_gib_apart(void **state)
{
    enum { ROW_BYTES = 2 * sizeof(int32_t) };
    const uint64_t stride = (UINT64_C(1) << 31) + 256, bytes = stride + ROW_BYTES;
    const int32_t first[2] = {5, 6}, second[2] = {7, 8};
    struct rig self = begin();
    self.gpu->context.watch = NULL;
    char *far = NULL;
#ifdef SLUICE_SIMULATED_GPU
    simulated_gpu_set_total_bytes(2 * bytes);
#endif
    assert_int_equal(cudaMalloc((void **)&far, bytes), 0);
    assert_int_equal(cudaMemcpy(far, first, ROW_BYTES, cudaMemcpyHostToDevice), 0);
    assert_int_equal(cudaMemcpy(far + stride, second, ROW_BYTES, cudaMemcpyHostToDevice), 0);
    const read_back_args args = {.source = far,
                                 .target = self.got,
                                 .rows = 2,
                                 .row_bytes = ROW_BYTES,
                                 .stride_bytes = stride};
    assert_int_equal(cudai_read_back(&self.gpu->context, self.gpu->stream, &args), 0);
    assert_true(self.got[0] == 5 && self.got[1] == 6 && self.got[2] == 7 && self.got[3] == 8);
    assert_int_equal(cudaFree(far), 0);
    end(&self);
}

static void a_watch_is_called_while_it_waits(void **state)
{
    struct rig self = begin();
    atomic_store(&self.is_held, 1);
    assert_int_equal(cudaLaunchHostFunc(self.gpu->stream, hold, &self), 0);
    assert_int_equal(read_rows(&self), 0);
    assert_true(atomic_load(&self.calls) >= CALLS);
    expect_rows(&self);
    end(&self);
}

static void a_watch_ends_the_wait(void **state)
{
    struct rig self = begin();
    self.ends = true;
    atomic_store(&self.is_held, 1);
    assert_int_equal(cudaLaunchHostFunc(self.gpu->stream, hold, &self), 0);
    assert_int_equal(read_rows(&self), -ECANCELED);
    assert_string_equal(err_text(), "a rank is gone");
    assert_int_equal(atomic_load(&self.calls), CALLS);
    atomic_store(&self.is_held, 0);
    end(&self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_come_end_to_end),
        cmocka_unit_test(rows_may_be_more_than_2_gib_apart),
        cmocka_unit_test(a_watch_is_called_while_it_waits),
        cmocka_unit_test(a_watch_ends_the_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
