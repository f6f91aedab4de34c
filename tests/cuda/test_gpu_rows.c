/* The dense row ops of the CUDA backend against the reference backend, one group of ops per
 * instance (the program's argument).
 *
 * Each case draws inputs from a seed, runs an op and emits its outputs widened to fp32. It runs on
 * the reference; on the GPU; and on the GPU with every array one element behind an aligned address,
 * which takes the paths of single elements and must give the first run's bits. Results are compared
 * with the reference within a tolerance: one unit of rounding of the output's type, since the fp32
 * arithmetic before it may tip a tie, plus a stated absolute part for what cancels. Where the
 * arithmetic is exact the tolerance is 0. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "tests/cuda/gpu_fixture.h"

enum { BLOCKS_MAX = 32 };

static const enum dtype all_types[] = {DTYPE_FP32, DTYPE_BF16, DTYPE_FP16};
enum { TYPE_COUNT = sizeof all_types / sizeof *all_types };

static const kernel_ops gpu_rows = {
    .name = "cuda rows",
    .norm_forward = cudai_norm_forward,
    .norm_grad_scratch_bytes = cudai_norm_grad_scratch_bytes,
    .norm_backward = cudai_norm_backward,
    .head_norm_forward = cudai_head_norm_forward,
    .head_norm_grad_scratch_bytes = cudai_head_norm_grad_scratch_bytes,
    .head_norm_backward = cudai_head_norm_backward,
    .rope_table = cudai_rope_table,
    .rope = cudai_rope,
    .activation_forward = cudai_activation_forward,
    .activation_backward = cudai_activation_backward,
    .add = cudai_add,
    .scale_rows = cudai_scale_rows,
    .bias_backward = cudai_bias_backward,
    .bias_backward_scratch_bytes = cudai_bias_backward_scratch_bytes,
    .zero = cudai_zero,
    .convert = cudai_convert,
};

struct shape {
    enum dtype type;
    uint64_t rows, channels;
    int variant; /* bits, as each case says */
};

/* One run of a case: its memory, freed at the end, and what it emitted. */
struct run {
    const kernel_ops *ops;
    gpu_fixture *gpu; /* NULL: the reference, on the host */
    kernel_context *context;
    void *stream;
    uint64_t seed;
    uint64_t shift; /* distance of each array's beginning from an aligned address, in elements */
    void *blocks[BLOCKS_MAX];
    int block_count;
    float *values, *slack; /* [count]; slack: the tolerance of each value */
    uint64_t count;
};

/* Memory of the run's backend with `bytes` bytes from `shift_bytes` on; `host` NULL: not filled. */
static void *place(struct run *run, const void *host, uint64_t bytes, uint64_t shift_bytes)
{
    assert_true(run->block_count < BLOCKS_MAX);
    void *memory = run->gpu ? gpu_alloc(run->gpu, bytes + shift_bytes)
                            : mem_alloc(bytes + shift_bytes, 1, "test");
    assert_non_null(memory);
    run->blocks[run->block_count++] = memory;
    char *data = (char *)memory + shift_bytes;
    if (host && run->gpu)
        gpu_upload(run->gpu, data, host, bytes);
    else if (host)
        memcpy(data, host, bytes);
    return data;
}

static void *block(struct run *run, enum dtype type, uint64_t count)
{
    return place(run, NULL, count * dtype_bytes(type), run->shift * dtype_bytes(type));
}

static void *scratch(struct run *run, uint64_t bytes)
{
    return place(run, NULL, bytes, 0);
}

static void *draw_at_least(struct run *run, enum dtype type, uint64_t count, uint64_t stream,
                           float scale, float least)
{
    float *x = mem_alloc(count, sizeof *x, "test");
    assert_non_null(x);
    for (uint64_t i = 0; i < count; i++) {
        x[i] = scale * rng_normal(run->seed, stream, i);
        x[i] = least > 0.0f ? least + fabsf(x[i]) : x[i];
    }
    void *data = x;
    if (type != DTYPE_FP32) {
        data = mem_alloc(count, dtype_bytes(type), "test");
        assert_non_null(data);
        gpu_narrow(x, data, type, count);
    }
    void *placed = place(run, data, count * dtype_bytes(type), run->shift * dtype_bytes(type));
    if (data != x)
        mem_free(data);
    mem_free(x);
    return placed;
}

/* count normal numbers times `scale`, rounded to type. */
static void *draw(struct run *run, enum dtype type, uint64_t count, uint64_t stream, float scale)
{
    return draw_at_least(run, type, count, stream, scale, 0.0f);
}

/* `absolute` below 0: exact. */
static void emit(struct run *run, enum dtype type, const void *data, uint64_t count, float absolute)
{
    static const float unit[] = {
        [DTYPE_FP32] = 4e-6f, [DTYPE_BF16] = 0x1p-7f, [DTYPE_FP16] = 0x1p-10f};
    run->values = mem_resize(run->values, run->count + count, sizeof(float), "test");
    run->slack = mem_resize(run->slack, run->count + count, sizeof(float), "test");
    assert_true(run->values && run->slack);
    float *values = run->values + run->count;
    if (run->gpu)
        gpu_download_values(run->gpu, values, data, type, count);
    else
        gpu_widen(data, type, values, count);
    for (uint64_t i = 0; i < count; i++)
        run->slack[run->count + i] =
            absolute < 0.0f ? 0.0f : absolute + unit[type] * fabsf(values[i]);
    run->count += count;
}

typedef void (*case_fn)(struct run *run, const struct shape *shape);

static struct run run_case(case_fn body, const struct shape *shape, gpu_fixture *gpu, bool on_gpu,
                           uint64_t shift)
{
    struct run run = {.ops = on_gpu ? &gpu_rows : &kernels_reference,
                      .gpu = on_gpu ? gpu : NULL,
                      .context = on_gpu ? &gpu->context : NULL,
                      .stream = on_gpu ? gpu->stream : NULL,
                      .seed = gpu->seed,
                      .shift = shift};
    body(&run, shape);
    for (int i = 0; i < run.block_count; i++)
        if (on_gpu)
            gpu_free(gpu, run.blocks[i]);
        else
            mem_free(run.blocks[i]);
    return run;
}

static void free_values(struct run *run)
{
    mem_free(run->values);
    mem_free(run->slack);
}

static void check_case(gpu_fixture *gpu, const char *name, case_fn body, const struct shape *shape)
{
    char text[160];
    snprintf(text, sizeof text, "%s %s rows %llu channels %llu variant %d", name,
             dtype_name(shape->type), (unsigned long long)shape->rows,
             (unsigned long long)shape->channels, shape->variant);
    struct run expected = run_case(body, shape, gpu, false, 0);
    struct run got = run_case(body, shape, gpu, true, 0);
    struct run shifted = run_case(body, shape, gpu, true, 1);
    assert_int_equal(got.count, expected.count);
    for (uint64_t i = 0; i < got.count; i++)
        if (!(fabsf(got.values[i] - expected.values[i]) <= expected.slack[i]) &&
            got.values[i] != expected.values[i])
            fail_msg("%s: value %llu is %.9g, not %.9g", text, (unsigned long long)i,
                     (double)got.values[i], (double)expected.values[i]);
    assert_int_equal(shifted.count, expected.count);
    if (memcmp(shifted.values, got.values, got.count * sizeof(float)) != 0)
        fail_msg("%s: other bits where arrays are not aligned", text);
    free_values(&expected);
    free_values(&got);
    free_values(&shifted);
}

static void check_shapes(const char *name, case_fn body, const uint64_t (*shapes)[2],
                         size_t shape_count, int variants)
{
    gpu_fixture *gpu = gpu_begin();
    for (size_t t = 0; t < TYPE_COUNT; t++)
        for (size_t s = 0; s < shape_count; s++)
            for (int variant = 0; variant < variants; variant++) {
                struct shape shape = {all_types[t], shapes[s][0], shapes[s][1], variant};
                check_case(gpu, name, body, &shape);
            }
    gpu_end(gpu);
}

#define CHECK_SHAPES(name, body, shapes, variants)                                                 \
    check_shapes(name, body, shapes, sizeof(shapes) / sizeof *(shapes), variants)

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
    void *dy = draw(run, shape->type, shape->rows * shape->channels, 1, 1.0f);
    float *grad = draw(run, DTYPE_FP32, shape->channels, 2, 1.0f);
    void *room = scratch(
        run, run->ops->bias_backward_scratch_bytes(run->context, shape->rows, shape->channels));
    assert_int_equal(run->ops->bias_backward(run->context, run->stream, shape->type, shape->rows,
                                             shape->channels, dy, grad, room),
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

/* ---- rotary positions ---- */

/* `channels` pairs a head, 3 heads, `slack` elements between the last head and the next row, which
 * must not change: 5, or 16 (variant bit 1) so that packs are possible. variant bit 0: inverse. */
static void rope_case(struct run *run, const struct shape *shape)
{
    uint64_t slack = shape->variant & 2 ? 16 : 5;
    uint64_t dim = 2 * shape->channels, stride = 3 * dim + slack, count = shape->rows * stride;
    uint64_t batch = shape->rows % 5 == 0 ? 5 : 1, tokens = shape->rows / batch;
    rope_args args = {.type = shape->type,
                      .batch = batch,
                      .tokens = tokens,
                      .heads = 3,
                      .head_dim = dim,
                      .stride = stride,
                      .inverse = shape->variant & 1};
    float *table = block(run, DTYPE_FP32, tokens * dim);
    args.data = draw(run, shape->type, count, 1, 1.0f);
    args.table = table;
    /* By the number of rows, each way to stretch frequencies; of LLAMA3 waves of all three
     * kinds. */
    rope_table_args made = {.table = table,
                            .tokens = tokens,
                            .head_dim = dim,
                            .theta = 10000.0,
                            .scaling = (enum rope_scaling)(shape->rows % 3),
                            .factor = 8,
                            .low_freq_factor = 1,
                            .high_freq_factor = 4,
                            .original_positions = 100};
    assert_int_equal(run->ops->rope_table(run->context, run->stream, &made), 0);
    assert_int_equal(run->ops->rope(run->context, run->stream, &args), 0);
    emit(run, DTYPE_FP32, table, tokens * dim, 0.0f);
    emit(run, shape->type, args.data, count, 1e-6f);
}

static void rope(void **state)
{
    (void)state;
    static const uint64_t shapes[][2] = {{65, 1}, {7, 3}, {65, 8}, {35, 32}, {3, 64}, {2, 600}};
    CHECK_SHAPES("rope", rope_case, shapes, 4);
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

/* Rows that lie apart, by different strides. variant bit 0: they are added; bit 1: in place. */
static void scale_case(struct run *run, const struct shape *shape)
{
    bool in_place = shape->variant == 2;
    uint64_t apart = shape->channels + 3, wide = shape->channels + 8;
    scale_rows_args args = {.type = shape->type,
                            .rows = shape->rows,
                            .columns = shape->channels,
                            .scale = 1.375f,
                            .accumulates = shape->variant & 1,
                            .source_stride = shape->variant < 2 ? apart : wide,
                            .target_stride = wide};
    void *source = draw(run, shape->type, shape->rows * args.source_stride, 1, 1.0f);
    void *target = draw(run, shape->type, shape->rows * wide, 2, 1.0f);
    args.source = in_place ? target : source;
    args.target = target;
    assert_int_equal(run->ops->scale_rows(run->context, run->stream, &args), 0);
    emit(run, shape->type, target, shape->rows * wide, -1.0f);
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
    CHECK_SHAPES("scale rows", scale_case, point_shapes, 4);
    CHECK_SHAPES("convert", convert_case, point_shapes, TYPE_COUNT);
    CHECK_SHAPES("zero", zero_case, point_shapes, 1);
}

/* Counts of 0 launch nothing, which CUDA would refuse. */
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
    assert_int_equal(cudai_bias_backward(context, gpu->stream, DTYPE_BF16, 0, 8, NULL, NULL, NULL),
                     0);
    assert_int_equal(cudai_activation_forward(context, gpu->stream, &act), 0);
    assert_int_equal(cudai_activation_backward(context, gpu->stream, &act), 0);
    assert_int_equal(cudai_rope(context, gpu->stream, &turn), 0);
    rope_table_args no_table = {.head_dim = 8, .theta = 1e4};
    assert_int_equal(cudai_rope_table(context, gpu->stream, &no_table), 0);
    head_norm_args no_heads = {.head_dim = 8, .heads = 1};
    assert_int_equal(cudai_head_norm_forward(context, gpu->stream, &no_heads), 0);
    assert_int_equal(cudai_head_norm_backward(context, gpu->stream, &no_heads), 0);
    assert_int_equal(cudai_add(context, gpu->stream, DTYPE_FP32, 0, NULL, NULL, NULL), 0);
    assert_int_equal(cudai_zero(context, gpu->stream, NULL, 0), 0);
    assert_int_equal(cudai_convert(context, gpu->stream, NULL, DTYPE_FP32, NULL, DTYPE_BF16, 0), 0);
    gpu_end(gpu);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norm_forward),  cmocka_unit_test(norm_backward),
        cmocka_unit_test(head_norm),     cmocka_unit_test(sums),
        cmocka_unit_test(activation),    cmocka_unit_test(activation_limits),
        cmocka_unit_test(rope),          cmocka_unit_test(point),
        cmocka_unit_test(point_nothing),
    };
    char filter[64];
    if (argc != 2) {
        fprintf(stderr, "usage: %s norm_forward|norm_backward|sums|activation|rope|point\n",
                argv[0]);
        return 2;
    }
    snprintf(filter, sizeof filter, "%s*", argv[1]);
    cmocka_set_test_filter(filter);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
