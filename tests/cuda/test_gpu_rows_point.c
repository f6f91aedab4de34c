/* The pointwise row ops of the CUDA backend (activations, rotary positions, dropout, sums,
 * conversions) against the reference backend, one group of ops per instance (the program's
 * argument). */
#include "tests/cuda/gpu_rows_cases.h"

#include "tests/kernels/heads_cases.h"

/* ---- activations ---- */

/* variant / 4: the kind; bit 0: input_grad over input; bit 1: inputs up to the hundreds, where the
 * sigmoids are 0 or 1. The absolute tolerance is for the reference's form with tanh. */
static void activation_case(struct run *run, const struct shape *shape)
{
    enum dtype type = shape->type;
    enum activation_kind kind = (enum activation_kind)(shape->variant / 4);
    bool in_place = shape->variant & 1;
    uint64_t count = shape->rows * shape->channels;
    uint64_t in_count = activation_is_gated(kind) ? 2 * count : count;
    float scale = shape->variant & 2 ? 60.0f : 2.0f;
    void *input = draw(run, type, in_count, 1, scale);
    activation_args args = {.kind = kind,
                            .type = type,
                            .rows = shape->rows,
                            .features = shape->channels,
                            .alpha = 1.702f,
                            .limit = 1.5f,
                            .input = input};
    args.output = block(run, type, count);
    args.output_grad = draw(run, type, count, 2, 1.0f);
    args.input_grad = in_place ? input : block(run, type, in_count);
    assert_int_equal(run->ops->activation_forward(run->context, run->stream, &args), 0);
    emit(run, type, args.output, count, 4e-6f);
    assert_int_equal(run->ops->activation_backward(run->context, run->stream, &args), 0);
    emit(run, type, args.input_grad, in_count, 4e-6f * scale);
}

static void activation(void **state)
{
    (void)state;
    static const uint64_t shapes[][2] = {{1, 1},  {3, 7},    {65, 63},  {33, 64},
                                         {4, 65}, {3, 1000}, {2, 4099}, {2, 4096}};
    CHECK_SHAPES("activation", activation_case, shapes, 4 * ACTIVATION_KIND_COUNT);
}

/* Infinities and NaN of fp32: the limits where there are any, NaN for NaN. */
static void activation_limits(void **state)
{
    (void)state;
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

/* `channels` pairs are rotated in each of 3 heads, with some elements between the last head and the
 * next row, which must not change: 5, or 16 (variant bit 4) so that packs are possible. variant bit
 * 0: inverse; bit 1: interleaved; bit 2: 8 more elements in each head; bit 3: documents of 7
 * tokens. */
static void rope_case(struct run *run, const struct shape *shape)
{
    uint64_t rotated = 2 * shape->channels, dim = rotated + (shape->variant & 4 ? 8 : 0);
    uint64_t stride = 3 * dim + (shape->variant & 16 ? 16 : 5), count = shape->rows * stride;
    uint64_t batch = shape->rows % 5 == 0 ? 5 : 1, tokens = shape->rows / batch;
    double factors[2 * 600];
    assert_true(shape->rows <= 128 && shape->channels <= 600);
    for (uint64_t i = 0; i < 2 * shape->channels; i++)
        factors[i] = 1.0 + 0.25 * (double)i;
    int32_t begins[128];
    for (uint64_t row = 0; row < shape->rows; row++)
        begins[row] = (int32_t)(row % tokens / 7 * 7);
    rope_args args = {.type = shape->type,
                      .batch = batch,
                      .tokens = tokens,
                      .heads = 3,
                      .head_dim = dim,
                      .stride = stride,
                      .rotated = dim == rotated ? 0 : rotated,
                      .interleaved = shape->variant & 2,
                      .begins = shape->variant & 8 ? place(run, begins, shape->rows * 4, 0) : NULL,
                      .inverse = shape->variant & 1};
    float *table = block(run, DTYPE_FP32, tokens * rotated);
    args.data = draw(run, shape->type, count, 1, 1.0f);
    args.table = table;
    /* By the number of rows, each way to stretch frequencies; of LLAMA3 waves of all three
     * kinds. */
    rope_table_args made = {.table = table,
                            .tokens = tokens,
                            .head_dim = rotated,
                            .theta = 10000.0,
                            .scaling = (enum rope_scaling)(shape->rows % ROPE_SCALING_COUNT),
                            .factor = 8,
                            .low_freq_factor = 1,
                            .high_freq_factor = 4,
                            .original_positions = 40,
                            .short_factors = factors,
                            .long_factors = factors + shape->channels};
    assert_int_equal(run->ops->rope_table(run->context, run->stream, &made), 0);
    assert_int_equal(run->ops->rope(run->context, run->stream, &args), 0);
    emit(run, DTYPE_FP32, table, tokens * rotated, 0.0f);
    emit(run, shape->type, args.data, count, 1e-6f);
}

static void rope(void **state)
{
    (void)state;
    static const uint64_t shapes[][2] = {{65, 1},  {18, 3}, {67, 8}, {14, 8},
                                         {35, 32}, {3, 64}, {4, 64}, {2, 600}};
    CHECK_SHAPES("rope", rope_case, shapes, 32);
}

/* ---- element to element ---- */

/* variant: sum over a fresh array, over a, over b. */
static void add_case(struct run *run, const struct shape *shape)
{
    uint64_t count = shape->rows * shape->channels;
    void *a = draw(run, shape->type, count, 1, 1.0f), *b = draw(run, shape->type, count, 2, 1.0f);
    void *fresh = block(run, shape->type, count);
    void *out = shape->variant == 0 ? fresh : shape->variant == 1 ? a : b;
    assert_int_equal(run->ops->add(run->context, run->stream, shape->type, count, a, b, out), 0);
    emit(run, shape->type, out, count, -1.0f);
}

/* Rows that lie apart, by different strides. variant bit 0: they are added; bit 1: in place.
 * variant 4: they are added to a third array. */
static void scale_case(struct run *run, const struct shape *shape)
{
    bool in_place = shape->variant == 2;
    uint64_t apart = shape->channels + 3, wide = shape->channels + 8;
    scale_rows_args args = {.type = shape->type,
                            .rows = shape->rows,
                            .columns = shape->channels,
                            .scale = 1.375f,
                            .accumulates = shape->variant & 1,
                            .source_stride = shape->variant % 4 < 2 ? apart : wide,
                            .target_stride = wide};
    void *source = draw(run, shape->type, shape->rows * args.source_stride, 1, 1.0f);
    void *target = draw(run, shape->type, shape->rows * wide, 2, 1.0f);
    args.source = in_place ? target : source;
    args.target = target;
    if (shape->variant == 4)
        args.addend = draw(run, shape->type, shape->rows * wide, 3, 1.0f);
    assert_int_equal(run->ops->scale_rows(run->context, run->stream, &args), 0);
    emit(run, shape->type, target, shape->rows * wide, -1.0f);
}

/* Rows of 3 sequences, columns [4, 4 + channels) of wider rows, in rows that lie apart. variant bit
 * 0: in place; bit 1: odd places, which exclude packs. */
static void dropout_case(struct run *run, const struct shape *shape)
{
    static const uint32_t counter[2] = {7, 0xfffffffe};
    uint64_t odd = shape->variant & 2 ? 1 : 0, stride = shape->channels + (odd ? 5 : 16);
    dropout_args args = {.type = shape->type,
                         .rows = shape->rows,
                         .columns = shape->channels,
                         .stride = stride,
                         .probability = 0.3f,
                         .seed = run->seed,
                         .site = 3 << 16 | 5,
                         .counter = place(run, counter, sizeof counter, 0),
                         .tokens = shape->rows / 2 + 1,
                         .row_begin = shape->rows / 3,
                         .column_begin = 4 + odd,
                         .width = shape->channels + 12 + odd};
    void *source = draw(run, shape->type, shape->rows * stride, 1, 1.0f);
    void *target = draw(run, shape->type, shape->rows * stride, 2, 1.0f);
    args.source = source;
    args.target = shape->variant & 1 ? source : target;
    assert_int_equal(run->ops->dropout(run->context, run->stream, &args), 0);
    emit(run, shape->type, args.target, shape->rows * stride, -1.0f);
}

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
    (void)state;
    CHECK_SHAPES("add", add_case, point_shapes, 3);
    CHECK_SHAPES("scale rows", scale_case, point_shapes, 5);
    CHECK_SHAPES("dropout", dropout_case, point_shapes, 4);
    CHECK_SHAPES("convert", convert_case, point_shapes, TYPE_COUNT);
    CHECK_SHAPES("zero", zero_case, point_shapes, 1);
}

/* Counts of 0 launch nothing, which CUDA would refuse. */
static void heads_sinks(void **state)
{
    (void)state;
    static const uint64_t shapes[][2] = {{1, 1}, {3, 7}, {33, 64}, {5, 130}};
    CHECK_SHAPES("sinks", sinks_case, shapes, 2);
}

static void heads_joined(void **state)
{
    (void)state;
    static const uint64_t shapes[][2] = {{1, 1}, {3, 7}, {9, 128}};
    CHECK_SHAPES("heads", heads_case, shapes, 5);
}

static void point_nothing(void **state)
{
    (void)state;
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
