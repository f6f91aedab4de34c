/* The pointwise row ops of the CUDA backend (activations, rotary positions, dropout, sums,
 * conversions) against the reference backend, one group of ops per instance (the program's
 * argument). */
#include "tests/cuda/gpu_rows_cases.h"

#include "tests/kernels/row_ops_cases.h"

/* ---- activations ---- */

static void activation(void **state)
{
    static const uint64_t shapes[][2] = {{1, 1},  {3, 7},    {65, 63},  {33, 64},
                                         {4, 65}, {3, 1000}, {2, 4099}, {2, 4096}};
    CHECK_SHAPES("activation", activation_case, shapes, 4 * ACTIVATION_KIND_COUNT);
}

/* Infinities and NaN of fp32: the limits where there are any, NaN for NaN. */
static void activation_limits(void **state)
{
    enum { COUNT = 4 };
    gpu_fixture *gpu = gpu_begin();
    const float x[COUNT] = {NAN, 1e30f, -1e30f, INFINITY}, ones[COUNT] = {1.0f, 1.0f, 1.0f, 1.0f};
    float y[COUNT], dx[COUNT];
    void *input = gpu_alloc_values(gpu, x, DTYPE_FP32, COUNT);
    activation_args args = {
        .kind = ACTIVATION_GELU, .type = DTYPE_FP32, .rows = 1, .features = COUNT, .input = input};
    args.output = gpu_alloc(gpu, sizeof y);
    args.output_grad = gpu_alloc_values(gpu, ones, DTYPE_FP32, COUNT);
    args.input_grad = gpu_alloc(gpu, sizeof dx);
    assert_int_equal(cudai_activation_forward(&gpu->context, gpu->stream, &args), 0);
    assert_int_equal(cudai_activation_backward(&gpu->context, gpu->stream, &args), 0);
    gpu_download(gpu, y, args.output, sizeof y);
    gpu_download(gpu, dx, args.input_grad, sizeof dx);
    assert_true(isnan(y[0]) && y[1] == 1e30f && y[2] == 0.0f && isinf(y[3]));
    assert_true(isnan(dx[0]) && dx[1] == 1.0f && fabsf(dx[2]) < 1e-30f && dx[3] == 1.0f);
    gpu_end(gpu);
}

/* ---- rotary positions ---- */

static void rope(void **state)
{
    static const uint64_t shapes[][2] = {{65, 1},  {18, 3}, {67, 8}, {14, 8},
                                         {35, 32}, {3, 64}, {4, 64}, {2, 600}};
    CHECK_SHAPES("rope", rope_case, shapes, 32);
}

/* ---- element to element ---- */

/* Converts to the type all_types[variant], with subnormals and overflows of fp16. */
static void convert_case(struct run *run, const struct shape *shape)
{
    enum dtype to = all_types[shape->variant];
    uint64_t count = shape->rows * shape->channels;
    void *small = draw(run, shape->type, count, 1, 1e-6f),
         *large = draw(run, shape->type, count, 2, 4e4f);
    void *out = block(run, to, count);
    assert_int_equal(
        run->ops->convert(run->context, run->stream, small, shape->type, out, to, count), 0);
    emit(run, to, out, count, -1.0f);
    assert_int_equal(
        run->ops->convert(run->context, run->stream, large, shape->type, out, to, count), 0);
    emit(run, to, out, count, -1.0f);
    if (to == shape->type) /* in place: nothing changes */
        assert_int_equal(run->ops->convert(run->context, run->stream, out, to, out, to, count), 0);
    emit(run, to, out, count, -1.0f);
}

/* All but the last three bytes, which keep their values. */
static void zero_case(struct run *run, const struct shape *shape)
{
    uint64_t count = shape->rows * shape->channels;
    float *data = draw(run, DTYPE_FP32, count, 1, 1.0f);
    assert_int_equal(run->ops->zero(run->context, run->stream, data, count * 4 - 3), 0);
    emit(run, DTYPE_FP32, data, count, -1.0f);
}

static const uint64_t point_shapes[][2] = {{1, 1},  {1, 3},   {3, 7},    {1, 63},
                                           {1, 64}, {13, 65}, {3, 1000}, {1, 4099}};

static void point(void **state)
{
    CHECK_SHAPES("add", add_case, point_shapes, 3);
    CHECK_SHAPES("scale rows", scale_case, point_shapes, 4);
    CHECK_SHAPES("dropout", dropout_case, point_shapes, 2);
    CHECK_SHAPES("convert", convert_case, point_shapes, TYPE_COUNT);
    CHECK_SHAPES("zero", zero_case, point_shapes, 1);
}

/* Counts of 0 launch nothing, which CUDA would refuse. */
static void heads_sinks(void **state)
{
    static const uint64_t shapes[][2] = {{1, 1}, {3, 7}, {33, 64}, {5, 130}};
    CHECK_SHAPES("sinks", sinks_case, shapes, 2);
}

static void heads_joined(void **state)
{
    static const uint64_t shapes[][2] = {{1, 1}, {3, 7}, {9, 128}};
    CHECK_SHAPES("heads", heads_case, shapes, 5);
}

static void point_nothing(void **state)
{
    gpu_fixture *gpu = gpu_begin();
    kernel_context *context = &gpu->context;
    norm_args forward = {.kind = NORM_RMS, .channels = 8};
    norm_grad_args backward = {.kind = NORM_RMS, .channels = 8};
    activation_args act = {.features = 8};
    rope_args turn = {.tokens = 4, .heads = 1, .head_dim = 8};
    assert_int_equal(cudai_norm_forward(context, gpu->stream, &forward), 0);
    assert_int_equal(cudai_norm_backward(context, gpu->stream, &backward), 0);
    assert_int_equal(cudai_norm_grad_scratch_bytes(context, 0, 8), 0);
    assert_int_equal(
        cudai_bias_backward(context, gpu->stream, DTYPE_BF16, 0, 8, 8, NULL, NULL, NULL), 0);
    assert_int_equal(cudai_activation_forward(context, gpu->stream, &act), 0);
    assert_int_equal(cudai_activation_backward(context, gpu->stream, &act), 0);
    assert_int_equal(cudai_rope(context, gpu->stream, &turn), 0);
    rope_table_args no_table = {.head_dim = 8, .theta = 1e4};
    assert_int_equal(cudai_rope_table(context, gpu->stream, &no_table), 0);
    head_norm_args no_heads = {.head_dim = 8, .heads = 1};
    assert_int_equal(cudai_head_norm_forward(context, gpu->stream, &no_heads), 0);
    assert_int_equal(cudai_head_norm_backward(context, gpu->stream, &no_heads), 0);
    dropout_args no_rows = {.columns = 8, .tokens = 1};
    assert_int_equal(cudai_dropout(context, gpu->stream, &no_rows), 0);
    attention_sinks_args no_tokens = {.batch = 1, .heads = 1, .value_dim = 8};
    assert_int_equal(cudai_attention_sinks(context, gpu->stream, &no_tokens), 0);
    assert_int_equal(cudai_attention_sinks_backward(context, gpu->stream, &no_tokens), 0);
    heads_join_args no_join = {.heads = 1, .own = 8, .value = 8};
    assert_int_equal(cudai_heads_join(context, gpu->stream, &no_join), 0);
    assert_int_equal(cudai_heads_split(context, gpu->stream, &no_join), 0);
    assert_int_equal(cudai_add(context, gpu->stream, DTYPE_FP32, 0, NULL, NULL, NULL), 0);
    assert_int_equal(cudai_zero(context, gpu->stream, NULL, 0), 0);
    assert_int_equal(cudai_convert(context, gpu->stream, NULL, DTYPE_FP32, NULL, DTYPE_BF16, 0), 0);
    gpu_end(gpu);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(activation),    cmocka_unit_test(activation_limits),
        cmocka_unit_test(rope),          cmocka_unit_test(point),
        cmocka_unit_test(point_nothing), cmocka_unit_test(heads_sinks),
        cmocka_unit_test(heads_joined),
    };
    if (!rows_filter(argc, argv, "activation|rope|point|heads"))
        return 2;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
