/* The norms and column sums of the CUDA backend against the reference backend, one group of ops per
 * instance (the program's argument). */
#include "tests/cuda/gpu_rows_cases.h"

#include "tests/kernels/row_ops_cases.h"

/* ---- norms ---- */

/* A mean far from 0 against the spread: one pass of sums of squares would fail here. */
static void norm_far_mean_case(struct run *run, const struct shape *shape)
{
    uint64_t count = shape->rows * shape->channels;
    norm_args args = {.kind = NORM_LAYER,
                      .type = DTYPE_FP32,
                      .rows = shape->rows,
                      .channels = shape->channels,
                      .epsilon = 1e-5f};
    args.input = draw_at_least(run, DTYPE_FP32, count, 1, 1.0f, 4096.0f);
    args.weight = draw(run, DTYPE_FP32, shape->channels, 3, 1.0f);
    args.bias = draw(run, DTYPE_FP32, shape->channels, 4, 1.0f);
    args.output = block(run, DTYPE_FP32, count);
    args.mean = block(run, DTYPE_FP32, shape->rows);
    args.rstd = block(run, DTYPE_FP32, shape->rows);
    assert_int_equal(run->ops->norm_forward(run->context, run->stream, &args), 0);
    emit(run, DTYPE_FP32, args.output, count, 1e-2f); /* the mean's last place is 2^-11 */
    emit(run, DTYPE_FP32, args.rstd, shape->rows, 1e-5f);
    emit(run, DTYPE_FP32, args.mean, shape->rows, 0.0f);
}

/* The widths where another kernel takes over: 32, 64, 128, 256, 512, 1024, 4096 packs, and one
 * beyond. */
static void norm_forward(void **state)
{
    static const uint64_t shapes[][2] = {{1, 1},    {11, 7},   {3, 63},   {9, 64},   {5, 65},
                                         {3, 255},  {2, 257},  {3, 512},  {2, 1000}, {2, 1024},
                                         {1, 1025}, {2, 2048}, {1, 4096}, {2, 4099}, {1, 8192}};
    CHECK_SHAPES("norm forward", norm_forward_case, shapes, 16);
    gpu_fixture *gpu = gpu_begin();
    static const struct shape wide[] = {{DTYPE_BF16, 1, 8200, 3},  {DTYPE_BF16, 2, 16384, 2},
                                        {DTYPE_BF16, 1, 32768, 3}, {DTYPE_BF16, 2, 32776, 2},
                                        {DTYPE_FP32, 1, 16384, 3}, {DTYPE_FP32, 2, 16391, 2},
                                        {DTYPE_FP16, 1, 32776, 0}};
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        check_case(gpu, "norm forward", norm_forward_case, &wide[i]);
    check_case(gpu, "far mean", norm_far_mean_case, &(struct shape){DTYPE_FP32, 3, 1000, 0});
    check_case(gpu, "far mean", norm_far_mean_case, &(struct shape){DTYPE_FP32, 2, 4096, 0});
    gpu_end(gpu);
}

static void norm_backward(void **state)
{
    static const uint64_t shapes[][2] = {{1, 1},  {35, 7},   {3, 63},   {17, 64},
                                         {5, 65}, {2, 1000}, {2, 2048}, {3, 4099}};
    CHECK_SHAPES("norm backward", norm_backward_case, shapes, 32);
    gpu_fixture *gpu = gpu_begin();
    static const struct shape more[] = {{DTYPE_FP32, 700, 3, 4},   {DTYPE_BF16, 1100, 16, 7},
                                        {DTYPE_BF16, 18, 8192, 6}, {DTYPE_BF16, 18, 8200, 4},
                                        {DTYPE_BF16, 2, 8193, 7},  {DTYPE_FP32, 17, 4096, 5},
                                        {DTYPE_FP32, 19, 4100, 6}, {DTYPE_FP16, 2, 8200, 5}};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        check_case(gpu, "norm backward", norm_backward_case, &more[i]);
    gpu_end(gpu);
}

/* ---- sums of columns ---- */

static void sums(void **state)
{
    static const uint64_t shapes[][2] = {{1, 1},   {9, 7},    {64, 63},  {65, 64},  {200, 65},
                                         {3, 256}, {5, 1000}, {70, 257}, {2, 4099}, {17000, 3}};
    CHECK_SHAPES("bias backward", bias_case, shapes, 1);
}

/* ---- norms of heads ---- */

static void head_norm(void **state)
{
    static const uint64_t shapes[][2] = {{1, 2},   {9, 6},    {70, 16},  {33, 64}, {5, 80},
                                         {64, 96}, {50, 128}, {17, 192}, {9, 250}, {4, 256},
                                         {3, 512}, {2, 1001}, {2, 4112}};
    CHECK_SHAPES("norms of heads", head_norm_case, shapes, 16);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norm_forward),
        cmocka_unit_test(norm_backward),
        cmocka_unit_test(head_norm),
        cmocka_unit_test(sums),
    };
    if (!rows_filter(argc, argv, "norm_forward|norm_backward|head_norm|sums"))
        return 2;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
