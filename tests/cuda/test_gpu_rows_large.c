/* The dense row ops on arrays of more than 2^31 elements, one group of ops per instance (the
 * program's argument); on the simulated GPU the arrays are small, which checks the test itself.
 *
 * Inputs are zero but for their last rows, which hold random numbers; these rows of the outputs,
 * and the zero row before them, are compared with the reference backend on those rows alone. An
 * index that is cut to 32 bits writes or reads elsewhere: it gives wrong values here, or touches
 * the guards. */
#include <math.h>

#include "base/mem.h"
#include "base/rng.h"
#include "tests/cuda/gpu_fixture.h"
#include "tests/unit.h"

enum { TAIL = 5, CHANNELS = 4096 }; /* rows compared, the first of them zero; as a model has them */

static const uint64_t channels = CHANNELS;
static const enum dtype type = DTYPE_BF16;

/* Elements that each large array exceeds. */
static uint64_t bulk_of(const gpu_fixture *gpu)
{
    return UINT64_C(1) << (gpu->is_simulated ? 16 : 31);
}

static uint64_t rows_of(const gpu_fixture *gpu)
{
    return bulk_of(gpu) / CHANNELS + 37;
}

/* Skips the test where the GPU's memory is too small for it. */
static void require_memory(gpu_fixture *gpu, uint64_t bytes)
{
    if (gpu->total_bytes > bytes + (gpu->is_simulated ? 0 : UINT64_C(2) << 30))
        return;
    gpu_end(gpu);
    printf("skipped: the GPU holds less than %.1f GiB\n", (double)bytes / 0x1p30 + 2.0);
    exit(77);
}

/* Host memory of a test, freed by finish. */
static void *rooms[32];
static size_t room_count;

static void *host_room(uint64_t count, size_t elem_bytes)
{
    assert_true(room_count < sizeof rooms / sizeof *rooms);
    void *room = mem_alloc(count, elem_bytes, "test");
    assert_non_null(room);
    rooms[room_count++] = room;
    return room;
}

static void finish(gpu_fixture *gpu)
{
    while (room_count > 0)
        mem_free(rooms[--room_count]);
    gpu_end(gpu);
}

/* The last TAIL rows of an array, on the host: zero, then random. */
static void *draw_tail(uint64_t width, uint64_t stream, uint64_t seed)
{
    uint64_t count = TAIL * width;
    float *x = host_room(count, sizeof *x);
    void *tail = host_room(count, dtype_bytes(type));
    rng_normals(seed, stream, width, count - width, x + width);
    gpu_narrow(x, tail, type, count);
    return tail;
}

static char *tail_of(void *array, uint64_t row_count, uint64_t width)
{
    return (char *)array + (row_count - TAIL) * width * dtype_bytes(type);
}

/* Zeros on the GPU, ended by the tail. */
static void *place(gpu_fixture *gpu, uint64_t row_count, uint64_t width, const void *tail)
{
    uint64_t bytes = row_count * width * dtype_bytes(type);
    void *array = gpu_alloc(gpu, bytes);
    assert_int_equal(cudai_zero(&gpu->context, gpu->stream, array, bytes), 0);
    gpu_upload(gpu, tail_of(array, row_count, width), tail, TAIL * width * dtype_bytes(type));
    return array;
}

/* The last TAIL rows of a GPU array against those on the host. */
static void expect_tail(gpu_fixture *gpu, const char *name, void *array, uint64_t row_count,
                        uint64_t width, const void *want, double absolute)
{
    uint64_t count = TAIL * width;
    float *values = host_room(2 * count, sizeof *values);
    gpu_download_values(gpu, values, tail_of(array, row_count, width), type, count);
    gpu_widen(want, type, values + count, count);
    gpu_expect_close(name, values, values + count, count, absolute, 0x1p-7);
}

static void norm_forward_part(gpu_fixture *gpu, norm_args args, const void *tail_input)
{
    norm_args want = args;
    uint64_t rows = args.rows;
    want.rows = TAIL;
    want.input = tail_input;
    want.residual = tail_input;
    want.weight = tail_of(draw_tail(channels, 7, gpu->seed), TAIL, channels) + channels * 2;
    want.sum = host_room(TAIL * channels, 2);
    want.output = host_room(TAIL * channels, 2);
    want.rstd = host_room(TAIL, sizeof(float));
    assert_int_equal(kernels_reference.norm_forward(NULL, NULL, &want), 0);
    args.weight = gpu_alloc_copy(gpu, want.weight, channels * 2);
    args.rstd = gpu_alloc(gpu, rows * sizeof(float));
    assert_int_equal(cudai_norm_forward(&gpu->context, gpu->stream, &args), 0);
    expect_tail(gpu, "sum", args.sum, rows, channels, want.sum, 0.0);
    expect_tail(gpu, "output", args.output, rows, channels, want.output, 1e-5);
    float rstd[TAIL];
    gpu_download(gpu, rstd, args.rstd + rows - TAIL, sizeof rstd);
    gpu_expect_close("rstd", rstd, want.rstd, TAIL, 0.0, 1e-5);
}

/* The input gradient lies over the output gradient. */
static void norm_backward_part(gpu_fixture *gpu, uint64_t rows, const void *input, void *tail)
{
    void *tail_grad = draw_tail(channels, 2, gpu->seed);
    float ones[TAIL], *sums = host_room(2 * channels, sizeof *sums), *got = sums + channels;
    for (int i = 0; i < TAIL; i++)
        ones[i] = 1.0f;
    norm_grad_args want = {.kind = NORM_RMS,
                           .type = type,
                           .rows = TAIL,
                           .channels = channels,
                           .input = tail,
                           .weight = tail_of(tail, TAIL, channels) + channels * 2,
                           .rstd = ones,
                           .output_grad = tail_grad,
                           .input_grad = host_room(TAIL * channels, 2),
                           .weight_grad = sums,
                           .scratch = host_room(2 * channels, sizeof(double))};
    assert_int_equal(kernels_reference.norm_backward(NULL, NULL, &want), 0);
    norm_grad_args args = want;
    float *rstd = gpu_alloc(gpu, rows * sizeof(float));
    gpu_fill(gpu, rstd, 0, rows * sizeof(float));
    gpu_upload(gpu, rstd + rows - TAIL, ones, sizeof ones);
    args.rows = rows;
    args.input = input;
    args.weight = gpu_alloc_copy(gpu, want.weight, channels * 2);
    args.rstd = rstd;
    args.output_grad = args.input_grad = place(gpu, rows, channels, tail_grad);
    args.weight_grad = gpu_alloc(gpu, channels * sizeof(float));
    gpu_fill(gpu, args.weight_grad, 0, channels * sizeof(float));
    args.scratch = gpu_alloc(gpu, cudai_norm_grad_scratch_bytes(&gpu->context, rows, channels));
    assert_int_equal(cudai_norm_backward(&gpu->context, gpu->stream, &args), 0);
    expect_tail(gpu, "input_grad", args.input_grad, rows, channels, want.input_grad, 1e-4);
    gpu_download(gpu, got, args.weight_grad, channels * sizeof *got);
    gpu_expect_close("weight_grad", got, sums, channels, 1e-4, 1e-5);
}

static void norm(void **state)
{
    gpu_fixture *gpu = gpu_begin();
    uint64_t rows = rows_of(gpu);
    require_memory(gpu, 3 * rows * channels * 2);
    void *tail = draw_tail(channels, 1, gpu->seed);
    void *input = place(gpu, rows, channels, tail);
    norm_args forward = {.kind = NORM_RMS,
                         .type = type,
                         .rows = rows,
                         .channels = channels,
                         .epsilon = 1e-5f,
                         .input = input,
                         .residual = input,
                         .sum = gpu_alloc(gpu, rows * channels * 2),
                         .output = gpu_alloc(gpu, rows * channels * 2)};
    norm_forward_part(gpu, forward, tail);
    gpu_free(gpu, forward.sum);
    gpu_free(gpu, forward.output);
    norm_backward_part(gpu, rows, input, tail);
    finish(gpu);
}

static void sums(void **state)
{
    gpu_fixture *gpu = gpu_begin();
    uint64_t rows = rows_of(gpu);
    require_memory(gpu, rows * channels * 2);
    void *tail = draw_tail(channels, 1, gpu->seed), *dy = place(gpu, rows, channels, tail);
    float *want = host_room(2 * channels, sizeof *want), *got = want + channels;
    float *grad = gpu_alloc(gpu, channels * sizeof *grad);
    void *scratch =
        gpu_alloc(gpu, cudai_bias_backward_scratch_bytes(&gpu->context, rows, channels));
    gpu_fill(gpu, grad, 0, channels * sizeof *grad);
    assert_int_equal(kernels_reference.bias_backward(NULL, NULL, type, TAIL, channels, channels,
                                                     tail, want, NULL),
                     0);
    assert_int_equal(cudai_bias_backward(&gpu->context, gpu->stream, type, rows, channels, channels,
                                         dy, grad, scratch),
                     0);
    gpu_download(gpu, got, grad, channels * sizeof *got);
    gpu_expect_close("bias_grad", got, want, channels, 1e-5, 1e-5);
    finish(gpu);
}

static void activation_of(enum activation_kind kind, uint64_t features)
{
    gpu_fixture *gpu = gpu_begin();
    uint64_t width = kind == ACTIVATION_SWIGLU ? 2 * features : features;
    uint64_t row_count = bulk_of(gpu) / width + 9;
    require_memory(gpu, row_count * (width + features) * 2);
    void *tail = draw_tail(width, 1, gpu->seed), *tail_grad = draw_tail(features, 2, gpu->seed);
    activation_args want = {.kind = kind,
                            .type = type,
                            .rows = TAIL,
                            .features = features,
                            .input = tail,
                            .output = host_room(TAIL * features, 2),
                            .output_grad = tail_grad,
                            .input_grad = host_room(TAIL * width, 2)};
    assert_int_equal(kernels_reference.activation_forward(NULL, NULL, &want), 0);
    assert_int_equal(kernels_reference.activation_backward(NULL, NULL, &want), 0);
    activation_args args = want;
    args.rows = row_count;
    args.input = args.input_grad = place(gpu, row_count, width, tail);
    args.output = gpu_alloc(gpu, row_count * features * 2);
    assert_int_equal(cudai_activation_forward(&gpu->context, gpu->stream, &args), 0);
    expect_tail(gpu, "output", args.output, row_count, features, want.output, 1e-5);
    gpu_upload(gpu, tail_of(args.output, row_count, features), tail_grad, TAIL * features * 2);
    args.output_grad = args.output;
    assert_int_equal(cudai_activation_backward(&gpu->context, gpu->stream, &args), 0);
    expect_tail(gpu, "input_grad", args.input_grad, row_count, width, want.input_grad, 1e-5);
    finish(gpu);
}

/* Includes rows past the 65535 blocks of grid.y, and an odd length, which is handled element by
 * element. */
static void activation(void **state)
{
    activation_of(ACTIVATION_GELU, 4096);
    activation_of(ACTIVATION_SWIGLU, 14336);
    activation_of(ACTIVATION_SWIGLU, 7);
}

static void rope(void **state)
{
    enum { TOKENS = 64, HEADS = 40, DIM = 128, STRIDE = 6144 };
    gpu_fixture *gpu = gpu_begin();
    uint64_t batch = bulk_of(gpu) / (TOKENS * STRIDE) + 2, row_count = batch * TOKENS;
    require_memory(gpu, row_count * STRIDE * 2);
    void *tail = draw_tail(STRIDE, 1, gpu->seed);
    float *table = host_room(TOKENS * DIM, sizeof *table);
    rope_table_args made = {.table = table, .tokens = TOKENS, .head_dim = DIM, .theta = 5e5};
    assert_int_equal(kernels_reference.rope_table(NULL, NULL, &made), 0);
    rope_args args = {.type = type,
                      .batch = batch,
                      .tokens = TOKENS,
                      .heads = HEADS,
                      .head_dim = DIM,
                      .stride = STRIDE,
                      .data = place(gpu, row_count, STRIDE, tail),
                      .table = gpu_alloc_copy(gpu, table, TOKENS * DIM * sizeof *table)};
    assert_int_equal(cudai_rope(&gpu->context, gpu->stream, &args), 0);
    rope_args want = args;
    want.batch = 1;
    want.tokens = TAIL;
    want.data = tail;
    want.table = table + (size_t)(TOKENS - TAIL) * DIM;
    assert_int_equal(kernels_reference.rope(NULL, NULL, &want), 0);
    expect_tail(gpu, "turned", args.data, row_count, STRIDE, tail, 1e-6);
    finish(gpu);
}

static void point(void **state)
{
    gpu_fixture *gpu = gpu_begin();
    uint64_t rows = rows_of(gpu), count = rows * channels;
    require_memory(gpu, count * 6);
    void *tail = draw_tail(channels, 1, gpu->seed), *array = place(gpu, rows, channels, tail);
    float *wide = gpu_alloc(gpu, count * sizeof *wide);
    float *got = host_room(2 * TAIL * channels, sizeof *got), *want = got + TAIL * channels;
    gpu_widen(tail, type, want, TAIL * channels);
    assert_int_equal(
        cudai_convert(&gpu->context, gpu->stream, array, type, wide, DTYPE_FP32, count), 0);
    assert_int_equal(cudai_add(&gpu->context, gpu->stream, DTYPE_FP32, count, wide, wide, wide), 0);
    gpu_download(gpu, got, wide + count - TAIL * channels, TAIL * channels * sizeof *got);
    for (uint64_t i = 0; i < TAIL * channels; i++)
        want[i] *= 2.0f;
    gpu_expect_same("doubled", got, want, TAIL * channels, sizeof *got);
    gpu_download(gpu, got, wide, sizeof *got);
    assert_true(got[0] == 0.0f);
    assert_int_equal(cudai_zero(&gpu->context, gpu->stream, wide, count * sizeof *wide - 4), 0);
    gpu_download(gpu, got, wide + count - 2, 2 * sizeof *got);
    assert_true(got[0] == 0.0f && got[1] == want[TAIL * channels - 1]);
    finish(gpu);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norm), cmocka_unit_test(sums),  cmocka_unit_test(activation),
        cmocka_unit_test(rope), cmocka_unit_test(point),
    };
    if (argc != 2) {
        fprintf(stderr, "usage: %s norm|sums|activation|rope|point\n", argv[0]);
        return 2;
    }
    cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
