/* The norms and column sums of the CUDA backend against the reference backend, one group of ops per
 * instance (the program's argument). */
#include "tests/cuda/gpu_rows_cases.h"

/* ---- norms ---- */

/* The parameters of a norm, by two bits: a weight (and a bias); one that adds 1; no bias; none that
 * is no weight of an RMSNorm either. */
struct norm_form {
    bool has_weight, adds_one, has_bias;
};

static struct norm_form form_of(bool layer, int bits)
{
    return (struct norm_form){.has_weight = layer ? bits != 3 : bits < 2,
                              .adds_one = bits == 1 || bits == 2,
                              .has_bias = layer && bits < 2};
}

/* variant bit 0: RMSNorm; bit 1: with residual; bits 2-3: the form of the parameters. */
static void norm_forward_case(struct run *run, const struct shape *shape)
{
    enum dtype type = shape->type;
    uint64_t count = shape->rows * shape->channels;
    bool layer = !(shape->variant & 1), residual = shape->variant & 2;
    struct norm_form form = form_of(layer, shape->variant >> 2);
    norm_args args = {.kind = layer ? NORM_LAYER : NORM_RMS,
                      .type = type,
                      .rows = shape->rows,
                      .channels = shape->channels,
                      .adds_one = form.adds_one,
                      .epsilon = 1e-5f};
    args.input = draw(run, type, count, 1, 2.0f);
    args.residual = residual ? draw(run, type, count, 2, 1.0f) : NULL;
    args.sum = residual ? block(run, type, count) : NULL;
    args.weight = form.has_weight ? draw(run, type, shape->channels, 3, 1.0f) : NULL;
    args.bias = form.has_bias ? draw(run, type, shape->channels, 4, 1.0f) : NULL;
    args.output = block(run, type, count);
    args.mean = layer ? block(run, DTYPE_FP32, shape->rows) : NULL;
    args.rstd = block(run, DTYPE_FP32, shape->rows);
    assert_int_equal(run->ops->norm_forward(run->context, run->stream, &args), 0);
    emit(run, type, args.output, count, 4e-6f);
    emit(run, DTYPE_FP32, args.rstd, shape->rows, 0.0f);
    if (layer)
        emit(run, DTYPE_FP32, args.mean, shape->rows, 1e-6f);
    if (residual)
        emit(run, type, args.sum, count, -1.0f);
}

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
    (void)state;
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

/* variant bit 0: RMSNorm; bits 1-2: no residual gradient, one, input_grad over output_grad,
 * input_grad over residual_grad; bits 3-4: the form of the parameters.
 * The absolute tolerance covers rstd up to 316 (one channel) times
 * 2^-24. */
static void norm_backward_case(struct run *run, const struct shape *shape)
{
    enum dtype type = shape->type;
    uint64_t count = shape->rows * shape->channels;
    bool layer = !(shape->variant & 1);
    int place_of_grad = shape->variant >> 1 & 3;
    struct norm_form form = form_of(layer, shape->variant >> 3);
    norm_grad_args args = {.kind = layer ? NORM_LAYER : NORM_RMS,
                           .type = type,
                           .rows = shape->rows,
                           .channels = shape->channels,
                           .adds_one = form.adds_one};
    void *dy = draw(run, type, count, 4, 1.0f);
    void *skip = draw(run, type, count, 5, 1.0f);
    args.input = draw(run, type, count, 1, 2.0f);
    args.weight = form.has_weight ? draw(run, type, shape->channels, 2, 1.0f) : NULL;
    args.mean = layer ? draw(run, DTYPE_FP32, shape->rows, 3, 0.5f) : NULL;
    args.rstd = draw_at_least(run, DTYPE_FP32, shape->rows, 6, 0.5f, 0.1f);
    args.output_grad = dy;
    args.residual_grad = place_of_grad == 0 ? NULL : skip;
    args.input_grad = place_of_grad == 2 ? dy : place_of_grad == 3 ? skip : block(run, type, count);
    args.weight_grad = form.has_weight ? draw(run, DTYPE_FP32, shape->channels, 7, 1.0f) : NULL;
    args.bias_grad = form.has_bias ? draw(run, DTYPE_FP32, shape->channels, 8, 1.0f) : NULL;
    args.scratch =
        scratch(run, run->ops->norm_grad_scratch_bytes(run->context, shape->rows, shape->channels));
    assert_int_equal(run->ops->norm_backward(run->context, run->stream, &args), 0);
    emit(run, type, args.input_grad, count, 1e-4f);
    if (form.has_weight)
        emit(run, DTYPE_FP32, args.weight_grad, shape->channels, 3e-5f);
    if (form.has_bias)
        emit(run, DTYPE_FP32, args.bias_grad, shape->channels, 1e-5f);
}

static void norm_backward(void **state)
{
    (void)state;
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

static void bias_case(struct run *run, const struct shape *shape)
{
    uint64_t stride = shape->channels + shape->channels % 5;
    void *dy = draw(run, shape->type, shape->rows * stride, 1, 1.0f);
    float *grad = draw(run, DTYPE_FP32, shape->channels, 2, 1.0f);
    void *room = scratch(
        run, run->ops->bias_backward_scratch_bytes(run->context, shape->rows, shape->channels));
    assert_int_equal(run->ops->bias_backward(run->context, run->stream, shape->type, shape->rows,
                                             shape->channels, stride, dy, grad, room),
                     0);
    emit(run, DTYPE_FP32, grad, shape->channels, 1e-6f * sqrtf((float)shape->rows));
}

static void sums(void **state)
{
    (void)state;
    static const uint64_t shapes[][2] = {{1, 1},   {9, 7},    {64, 63},  {65, 64},  {200, 65},
                                         {3, 256}, {5, 1000}, {70, 257}, {2, 4099}, {17000, 3}};
    CHECK_SHAPES("bias backward", bias_case, shapes, 1);
}

/* ---- norms of heads ---- */

/* Heads of `channels` elements, 3 of them (1 if it is wide) in a row of some more, which must not
 * change: 5, or 16 (variant bit 0) so that packs are possible. variant bit 1: LayerNorm; bit 2: the
 * weight adds 1; bit 3: each head has its own. */
static void head_norm_case(struct run *run, const struct shape *shape)
{
    enum dtype type = shape->type;
    uint64_t dim = shape->channels, heads = dim > 256 ? 1 : 3;
    uint64_t stride = heads * dim + (shape->variant & 1 ? 16 : 5);
    uint64_t count = shape->rows * stride, all = shape->rows * heads;
    bool layer = shape->variant & 2, per_head = shape->variant & 8;
    uint64_t weights = per_head ? heads * dim : dim;
    head_norm_args args = {.type = type,
                           .rows = shape->rows,
                           .heads = heads,
                           .head_dim = dim,
                           .stride = stride,
                           .is_layer = layer,
                           .adds_one = shape->variant & 4,
                           .weight_per_head = per_head,
                           .epsilon = 1e-5f};
    args.weight = draw(run, type, weights, 1, 1.0f);
    args.data = draw(run, type, count, 2, 2.0f);
    args.before = block(run, type, all * dim);
    args.mean = layer ? block(run, DTYPE_FP32, all) : NULL;
    args.rstd = block(run, DTYPE_FP32, all);
    assert_int_equal(run->ops->head_norm_forward(run->context, run->stream, &args), 0);
    emit(run, type, args.data, count, 4e-6f);
    emit(run, type, args.before, all * dim, -1.0f);
    emit(run, DTYPE_FP32, args.rstd, all, 1e-6f);
    if (layer)
        emit(run, DTYPE_FP32, args.mean, all, 1e-6f);
    args.data = draw(run, type, count, 3, 1.0f);
    args.weight_grad = draw(run, DTYPE_FP32, weights, 4, 1.0f);
    args.scratch = scratch(run, run->ops->head_norm_grad_scratch_bytes(
                                    run->context, shape->rows, per_head ? 1 : heads, weights));
    assert_int_equal(run->ops->head_norm_backward(run->context, run->stream, &args), 0);
    emit(run, type, args.data, count, 1e-4f);
    emit(run, DTYPE_FP32, args.weight_grad, weights, 3e-5f + 4e-6f * (float)all);
}

static void head_norm(void **state)
{
    (void)state;
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
