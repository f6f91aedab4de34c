/* Our fused attention on a GPU against the definition in double: forward and backward, odd
 * lengths, head dimensions, strides and addresses, grouped heads, windows, soft caps, both
 * directions, documents, fp32, bf16 and fp16; that
 * nothing outside a row's heads is read or written; that addresses and repetition touch no bit;
 * extreme scores, NaN, refusals; and, on a real GPU alone, long sequences and tensors of more
 * than 2^31 elements. */
#include <math.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/size.h"
#include "tests/cuda/gpu_fixture.h"
#include "tests/kernels/attention_truth.h"
#include "tests/unit.h"

/* The last `pad` elements of each packed row are unused; `sharpness` scales the scores. */
struct shape {
    uint64_t batch, tokens, heads, kv_heads, head_dim, pad;
    float sharpness;
};

/* A kind of attention. Zeros mean plain causal attention. */
struct kind {
    uint64_t window;
    uint64_t document; /* tokens of the longest document; 0: no documents */
    float soft_cap;
    bool is_bidirectional;
    float dropout;
    uint64_t value_dim; /* 0: head_dim */
};

/* Masks of step 7 for sequences from 30 on. */
static const uint32_t counter[2] = {7, 30};

/* One case on the host and on the GPU. Arrays on the GPU begin `shift` elements after an aligned
 * address and end at the end of the last row's heads. */
struct rig {
    gpu_fixture *gpu;
    attention_case truth;
    size_t elem_bytes;
    uint64_t rows, shift, out_count, lse_count;
    float *qkv, *output_grad, *output, *lse, *grads;
    char *gpu_qkv, *gpu_output_grad, *gpu_output, *gpu_grads;
    float *gpu_lse;
    int32_t *begins, *gpu_begins; /* NULL: no documents */
    uint32_t *gpu_counter;        /* NULL: no dropout */
    void *scratch;
    kernel_attention *attention;
};

static enum dtype type_under_test;

static float *new_floats(uint64_t count)
{
    float *values = mem_alloc(count, sizeof *values, "attention test");
    assert_non_null(values);
    return values;
}

static float *new_normals(struct rig *rig, uint64_t count, uint64_t stream)
{
    float *values = new_floats(count);
    rng_normals(rig->gpu->seed, stream, 0, count, values);
    gpu_round(values, rig->truth.desc.type, count);
    return values;
}

/* ---- memory ---- */

static char *new_tensor(struct rig *rig, uint64_t count)
{
    char *base = gpu_alloc(rig->gpu, (count + rig->shift) * rig->elem_bytes);
    return base + rig->shift * rig->elem_bytes;
}

static void free_tensor(struct rig *rig, char *tensor)
{
    gpu_free(rig->gpu, tensor - rig->shift * rig->elem_bytes);
}

static uint64_t qkv_span(const struct rig *rig)
{
    return (rig->rows - 1) * rig->truth.desc.qkv_stride + rig->truth.packed_elems;
}

/* Rows so far apart that the gaps are not worth carrying to and fro. */
static bool is_sparse(const struct rig *rig)
{
    return rig->truth.desc.qkv_stride > 64 * rig->truth.packed_elems;
}

/* Packed rows to the GPU; the gaps hold NaN. */
static void upload_rows(struct rig *rig, char *target, const float *source)
{
    uint64_t stride = rig->truth.desc.qkv_stride, packed = rig->truth.packed_elems;
    uint64_t span = is_sparse(rig) ? packed : qkv_span(rig);
    char *image = mem_alloc(span, rig->elem_bytes, "attention test");
    assert_non_null(image);
    memset(image, 0xff, span * rig->elem_bytes);
    for (uint64_t row = 0; row < rig->rows; row++) {
        char *place = is_sparse(rig) ? image : image + row * stride * rig->elem_bytes;
        gpu_narrow(source + row * packed, place, rig->truth.desc.type, packed);
        if (is_sparse(rig))
            gpu_upload(rig->gpu, target + row * stride * rig->elem_bytes, image,
                       packed * rig->elem_bytes);
    }
    if (!is_sparse(rig))
        gpu_upload(rig->gpu, target, image, span * rig->elem_bytes);
    mem_free(image);
}

/* The gradients' rows back, with the gaps, which must be as gpu_alloc left them. */
static void download_rows(struct rig *rig, float *target, const char *source)
{
    uint64_t stride = rig->truth.desc.qkv_stride, packed = rig->truth.packed_elems;
    uint64_t span = is_sparse(rig) ? packed : qkv_span(rig);
    char *image = mem_alloc(span, rig->elem_bytes, "attention test");
    assert_non_null(image);
    if (!is_sparse(rig))
        gpu_download(rig->gpu, image, source, span * rig->elem_bytes);
    for (uint64_t row = 0; row < rig->rows; row++) {
        char *place = is_sparse(rig) ? image : image + row * stride * rig->elem_bytes;
        if (is_sparse(rig))
            gpu_download(rig->gpu, image, source + row * stride * rig->elem_bytes,
                         packed * rig->elem_bytes);
        gpu_widen(place, rig->truth.desc.type, target + row * packed, packed);
        for (uint64_t i = packed * rig->elem_bytes;
             !is_sparse(rig) && row + 1 < rig->rows && i < stride * rig->elem_bytes; i++)
            assert_int_equal((unsigned char)place[i], 0xff);
    }
    mem_free(image);
}

/* Heads of v have value_dim elements. */
static void rig_init_values(struct rig *rig, gpu_fixture *gpu, const struct shape *shape,
                            uint64_t value_dim, enum dtype type, uint64_t shift)
{
    *rig = (struct rig){.gpu = gpu, .shift = shift, .elem_bytes = dtype_bytes(type)};
    uint64_t packed =
        (shape->heads + shape->kv_heads) * shape->head_dim + shape->kv_heads * value_dim;
    rig->truth.packed_elems = packed;
    rig->truth.desc = (attention_desc){.batch = shape->batch,
                                       .tokens = shape->tokens,
                                       .heads = shape->heads,
                                       .kv_heads = shape->kv_heads,
                                       .head_dim = shape->head_dim,
                                       .value_dim = value_dim,
                                       .qkv_stride = packed + shape->pad,
                                       .type = type,
                                       .scale = shape->sharpness / sqrtf((float)shape->head_dim)};
    rig->rows = shape->batch * shape->tokens;
    rig->out_count = rig->rows * shape->heads * value_dim;
    rig->lse_count = rig->rows * shape->heads;
    rig->qkv = new_normals(rig, rig->rows * packed, 1);
    rig->output_grad = new_normals(rig, rig->out_count, 2);
    rig->output = new_floats(rig->out_count);
    rig->lse = new_floats(rig->lse_count);
    rig->grads = new_floats(rig->rows * packed);
    rig->truth.qkv = rig->qkv;
    rig->truth.output_grad = rig->output_grad;
    rig->truth.output = rig->output;
    rig->truth.lse = rig->lse;
    rig->truth.grads = rig->grads;
    rig->gpu_qkv = new_tensor(rig, qkv_span(rig));
    rig->gpu_grads = new_tensor(rig, qkv_span(rig));
    rig->gpu_output = new_tensor(rig, rig->out_count);
    rig->gpu_output_grad = new_tensor(rig, rig->out_count);
    rig->gpu_lse = gpu_alloc(gpu, rig->lse_count * sizeof(float));
}

static void rig_init(struct rig *rig, gpu_fixture *gpu, const struct shape *shape, enum dtype type,
                     uint64_t shift)
{
    rig_init_values(rig, gpu, shape, shape->head_dim, type, shift);
}

/* Changes what the queries see, before the first run. */
static void rig_set_kind(struct rig *rig, const struct kind *kind)
{
    attention_desc *desc = &rig->truth.desc;
    desc->window = kind->window;
    desc->soft_cap = kind->soft_cap;
    desc->is_bidirectional = kind->is_bidirectional;
    desc->dropout = kind->dropout;
    if (kind->dropout > 0) {
        rig->truth.masks = (attention_dropout){rig->gpu->seed, 9, counter};
        rig->gpu_counter = gpu_alloc(rig->gpu, sizeof counter);
        gpu_upload(rig->gpu, rig->gpu_counter, counter, sizeof counter);
    }
    if (!kind->document)
        return;
    rig->begins = truth_documents(desc->batch, desc->tokens, kind->document, rig->gpu->seed);
    rig->truth.begins = rig->begins;
    rig->gpu_begins = gpu_alloc(rig->gpu, rig->rows * sizeof *rig->begins);
    gpu_upload(rig->gpu, rig->gpu_begins, rig->begins, rig->rows * sizeof *rig->begins);
}

static void rig_fini(struct rig *rig)
{
    if (rig->begins)
        gpu_free(rig->gpu, rig->gpu_begins);
    if (rig->gpu_counter)
        gpu_free(rig->gpu, rig->gpu_counter);
    mem_free(rig->begins);
    cudai_attention_destroy(rig->attention);
    gpu_free(rig->gpu, rig->scratch);
    gpu_free(rig->gpu, rig->gpu_lse);
    free_tensor(rig, rig->gpu_output_grad);
    free_tensor(rig, rig->gpu_output);
    free_tensor(rig, rig->gpu_grads);
    free_tensor(rig, rig->gpu_qkv);
    mem_free(rig->grads);
    mem_free(rig->lse);
    mem_free(rig->output);
    mem_free(rig->output_grad);
    mem_free(rig->qkv);
}

/* Uploads, runs both passes and downloads. The passes may not allocate. */
static void rig_run(struct rig *rig)
{
    gpu_fixture *gpu = rig->gpu;
    enum dtype type = rig->truth.desc.type;
    const attention_desc *desc = &rig->truth.desc;
    uint64_t k = desc->heads * desc->head_dim * rig->elem_bytes;
    uint64_t v = k + desc->kv_heads * desc->head_dim * rig->elem_bytes;
    upload_rows(rig, rig->gpu_qkv, rig->qkv);
    char *image = mem_alloc(rig->out_count, rig->elem_bytes, "attention test");
    assert_non_null(image);
    gpu_narrow(rig->output_grad, image, type, rig->out_count);
    gpu_upload(gpu, rig->gpu_output_grad, image, rig->out_count * rig->elem_bytes);
    if (!rig->attention) {
        assert_int_equal(cudai_attention_create(&gpu->context, desc, &rig->attention), 0);
        cudai_attention_set_documents(rig->attention, rig->gpu_begins);
        attention_dropout masks = rig->truth.masks;
        masks.counter = rig->gpu_counter;
        cudai_attention_set_dropout(rig->attention, rig->gpu_counter ? &masks : NULL);
        assert_int_equal(cudai_attention_forward_scratch_bytes(rig->attention), 0);
        rig->scratch = gpu_alloc(gpu, cudai_attention_backward_scratch_bytes(rig->attention));
    }
    mem_stats before, after;
    mem_get_stats(&before);
    assert_int_equal(cudai_attention_forward(rig->attention, gpu->stream, rig->gpu_qkv,
                                             rig->gpu_qkv + k, rig->gpu_qkv + v, rig->gpu_output,
                                             rig->gpu_lse, NULL),
                     0);
    assert_int_equal(cudai_attention_backward(rig->attention, gpu->stream, rig->gpu_qkv,
                                              rig->gpu_qkv + k, rig->gpu_qkv + v, rig->gpu_output,
                                              rig->gpu_lse, rig->gpu_output_grad, rig->gpu_grads,
                                              rig->gpu_grads + k, rig->gpu_grads + v, rig->scratch),
                     0);
    mem_get_stats(&after);
    assert_int_equal(after.call_count, before.call_count);
    gpu_download(gpu, image, rig->gpu_output, rig->out_count * rig->elem_bytes);
    gpu_widen(image, type, rig->output, rig->out_count);
    gpu_download(gpu, rig->lse, rig->gpu_lse, rig->lse_count * sizeof(float));
    download_rows(rig, rig->grads, rig->gpu_grads);
    mem_free(image);
}

/* ---- against the definition ---- */

/* Row `idx` of those checked: all of a short sequence, else the ends and a few between. */
enum { SAMPLES = 12 };

static uint64_t checked_rows(uint64_t tokens)
{
    return tokens <= 256 ? tokens : SAMPLES;
}

static uint64_t checked_row(uint64_t tokens, uint64_t idx)
{
    if (tokens <= 256)
        return idx;
    return idx < 2 ? idx * (tokens - 1) : rng_below(99, tokens, idx, tokens);
}

static void rig_check(const struct rig *rig)
{
    const attention_desc *desc = &rig->truth.desc;
    for (uint64_t b = 0; b < desc->batch; b++)
        for (uint64_t i = 0; i < checked_rows(desc->tokens); i++) {
            uint64_t row = checked_row(desc->tokens, i);
            for (uint64_t h = 0; h < desc->heads; h++)
                truth_check_query(&rig->truth, b, h, row);
            for (uint64_t g = 0; g < desc->kv_heads; g++)
                truth_check_key(&rig->truth, b, g, row);
        }
}

static void check_kind(gpu_fixture *gpu, const struct shape *shape, const struct kind *kind,
                       enum dtype type)
{
    struct rig rig;
    rig_init_values(&rig, gpu, shape, kind->value_dim ? kind->value_dim : shape->head_dim, type, 0);
    rig_set_kind(&rig, kind);
    rig_run(&rig);
    rig_check(&rig);
    rig_fini(&rig);
}

static void check_shape(gpu_fixture *gpu, const struct shape *shape, enum dtype type)
{
    static const struct kind causal;
    check_kind(gpu, shape, &causal, type);
}

/* Every kernel of the 16-bit types pads D to 32, 64, 96, 128, 192 or 256, that of fp32 to 64, 128,
 * 256. */
static const struct shape shapes[] = {
    {1, 1, 1, 1, 1, 0, 1},    {3, 7, 2, 1, 8, 0, 1},     {1, 65, 2, 2, 16, 1, 1},
    {1, 64, 4, 1, 24, 8, 2},  {1, 130, 2, 1, 64, 0, 1},  {1, 200, 1, 1, 32, 0, 0.25f},
    {1, 65, 1, 1, 80, 3, 1},  {1, 37, 4, 2, 25, 0, 1},   {1, 130, 1, 1, 128, 0, 1},
    {1, 70, 1, 1, 160, 8, 1}, {1, 65, 2, 1, 256, 24, 1}, {2, 3, 1, 1, 255, 0, 1},
    {2, 9, 2, 1, 20, 0, 1},
};

static void matches_definition(void **state)
{
    gpu_fixture *gpu = gpu_begin();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        check_shape(gpu, &shapes[i], type_under_test);
    gpu_end(gpu);
}

static const struct kind kinds[] = {
    {.window = 1},
    {.window = 50},
    {.window = 1000},
    {.document = 1},
    {.document = 60},
    {.soft_cap = 2},
    {.is_bidirectional = true},
    {.document = 60, .is_bidirectional = true},
    {.window = 33, .document = 90, .soft_cap = 1.5f},
    {.dropout = 0.1f},
    {.document = 60, .soft_cap = 2, .is_bidirectional = true, .dropout = 0.5f},
    {.value_dim = 24},
    {.document = 60, .dropout = 0.25f, .value_dim = 130},
    {.window = 33, .value_dim = 7},
};

static void matches_definition_of_each_kind(void **state)
{
    static const struct shape some[] = {
        {2, 150, 2, 1, 64, 0, 1}, {1, 200, 1, 1, 128, 0, 1}, {1, 135, 2, 1, 200, 8, 1}};
    static const struct shape long_one = {2, 3001, 8, 2, 128, 0, 1};
    gpu_fixture *gpu = gpu_begin();
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        for (size_t j = 0; j < sizeof some / sizeof *some; j++)
            check_kind(gpu, &some[j], &kinds[i], type_under_test);
        if (!gpu->is_simulated)
            check_kind(gpu, &long_one, &kinds[i], type_under_test);
    }
    gpu_end(gpu);
}

static void matches_definition_of_long_sequences(void **state)
{
    static const struct shape long_shapes[] = {
        {1, 4096, 8, 2, 128, 0, 1},  {2, 5001, 4, 4, 64, 0, 1},  {1, 4097, 2, 1, 256, 0, 1},
        {1, 3000, 25, 25, 64, 0, 1}, {1, 2049, 3, 1, 100, 5, 1}, {1, 2500, 2, 2, 192, 0, 1},
        {1, 2500, 2, 2, 96, 0, 1},   {70000, 2, 1, 1, 32, 0, 1}, {5, 300, 64, 8, 80, 0, 2},
    };
    gpu_fixture *gpu = gpu_begin();
    if (gpu->is_simulated)
        print_message("long sequences: on a real GPU only\n");
    else
        for (size_t i = 0; i < sizeof long_shapes / sizeof *long_shapes; i++)
            check_shape(gpu, &long_shapes[i], type_under_test);
    gpu_end(gpu);
}

/* Offsets of rows beyond 2^31 elements: rows far apart. */
static void indices_are_wide(void **state)
{
    static const struct shape wide = {1, 4100, 2, 1, 64, 600000, 1};
    gpu_fixture *gpu = gpu_begin();
    uint64_t bytes = 2 * wide.tokens * wide.pad * dtype_bytes(type_under_test);
    if (gpu->is_simulated || gpu->total_bytes < bytes + 4 * GIB)
        print_message("tensors of over 2^31 elements: on a real GPU with %d GiB only\n",
                      (int)(bytes / GIB) + 4);
    else
        check_shape(gpu, &wide, type_under_test);
    gpu_end(gpu);
}

/* ---- bits ---- */

static void addresses_and_repetition_keep_bits(void **state)
{
    static const struct shape some[] = {
        {1, 90, 2, 1, 64, 8, 1}, {2, 33, 1, 1, 24, 0, 1}, {1, 40, 1, 1, 200, 8, 1}};
    gpu_fixture *gpu = gpu_begin();
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        struct rig first, shifted;
        rig_init(&first, gpu, &some[i], type_under_test, 0);
        rig_run(&first);
        rig_init(&shifted, gpu, &some[i], type_under_test, 1); /* the path of single elements */
        for (int run = 0; run < 2; run++) {
            uint64_t packed = first.rows * first.truth.packed_elems;
            rig_run(&shifted);
            gpu_expect_same("output", shifted.output, first.output, first.out_count, 4);
            gpu_expect_same("lse", shifted.lse, first.lse, first.lse_count, 4);
            gpu_expect_same("gradients", shifted.grads, first.grads, packed, 4);
        }
        rig_fini(&shifted);
        rig_fini(&first);
    }
    gpu_end(gpu);
}

/* A row's bits depend neither on later rows nor on their number. */
static void later_rows_keep_bits(void **state)
{
    static const struct shape whole = {1, 150, 1, 1, 64, 0, 1}, part = {1, 71, 1, 1, 64, 0, 1};
    gpu_fixture *gpu = gpu_begin();
    struct rig longer, shorter;
    rig_init(&longer, gpu, &whole, type_under_test, 0);
    rig_init(&shorter, gpu, &part, type_under_test, 0);
    rig_run(&longer);
    rig_run(&shorter);
    gpu_expect_same("output", shorter.output, longer.output, shorter.out_count, 4);
    gpu_expect_same("lse", shorter.lse, longer.lse, shorter.lse_count, 4);
    rig_fini(&shorter);
    rig_fini(&longer);
    gpu_end(gpu);
}

/* ---- numbers that are not ordinary ---- */

/* Scores in the thousands: one key takes nearly everything, and nothing overflows. */
static void large_scores_stay_exact(void **state)
{
    static const struct shape sharp = {1, 100, 2, 1, 64, 0, 400};
    gpu_fixture *gpu = gpu_begin();
    check_shape(gpu, &sharp, type_under_test);
    gpu_end(gpu);
}

/* The first key has nearly all the weight in every row, and the largest score never changes. Steps
 * over the other keys, however many, must leave the sum as it is. */
static void many_steps_keep_the_sum(void **state)
{
    static const struct shape shape = {1, 1400, 1, 1, 8, 0, 2.8284271f}; /* a scale of 1 */
    gpu_fixture *gpu = gpu_begin();
    struct rig rig;
    rig_init(&rig, gpu, &shape, type_under_test, 0);
    for (uint64_t row = 0; row < shape.tokens; row++) {
        float *q = rig.qkv + row * rig.truth.packed_elems, *k = q + shape.head_dim;
        memset(q, 0, 2 * shape.head_dim * sizeof *q);
        q[0] = 1.0f + (float)(row % 64) / 64.0f;
        k[0] = row == 0 ? 47.0f : 0.0f;
    }
    rig_run(&rig);
    for (uint64_t row = 1000; row < shape.tokens; row++) {
        float q = rig.qkv[row * rig.truth.packed_elems];
        double lse = 47.0 * (double)q * (double)rig.truth.desc.scale;
        double limit = 2 * 0x1p-24 * 128; /* two units of the last place of any of these */
        if (!(fabs((double)rig.lse[row] - lse) <= limit))
            fail_msg("lse of row %d is %.9g, not %.9g", (int)row, (double)rig.lse[row], lse);
    }
    rig_fini(&rig);
    gpu_end(gpu);
}

static void nan_is_not_hidden(void **state)
{
    static const struct shape shape = {1, 100, 1, 1, 16, 0, 1};
    gpu_fixture *gpu = gpu_begin();
    struct rig rig;
    rig_init(&rig, gpu, &shape, type_under_test, 0);
    rig.qkv[70 * rig.truth.packed_elems] = NAN; /* q of row 70 */
    rig_run(&rig);
    for (uint64_t row = 69; row < 72; row++) {
        assert_int_equal(isnan(rig.output[row * 16]) != 0, row == 70);
        assert_int_equal(isnan(rig.grads[row * rig.truth.packed_elems]) != 0, row == 70);
    }
    assert_true(isnan(rig.lse[70]));
    for (uint64_t row = 0; row <= 70; row++) /* dK of the keys that it sees */
        assert_true(isnan(rig.grads[row * rig.truth.packed_elems + 16]));
    rig_fini(&rig);
    gpu_end(gpu);
}

/* ---- refusals ---- */

static void expect_refused(gpu_fixture *gpu, const attention_desc *desc, const char *text)
{
    kernel_attention *attention;
    assert_int_equal(cudai_attention_create(&gpu->context, desc, &attention), ERR_BACKEND);
    assert_null(attention);
    assert_non_null(strstr(err_text(), text));
}

static void refusals(void **state)
{
    gpu_fixture *gpu = gpu_begin();
    const attention_desc good = {.batch = 1,
                                 .tokens = 4,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .head_dim = 8,
                                 .qkv_stride = 64,
                                 .type = type_under_test,
                                 .scale = 1.0f};
    attention_desc desc = good;
    desc.tokens = 0;
    expect_refused(gpu, &desc, "T=0");
    desc = good;
    desc.kv_heads = 3;
    expect_refused(gpu, &desc, "G=3");
    desc = good;
    desc.head_dim = 257;
    desc.qkv_stride = 4000;
    expect_refused(gpu, &desc, "D=257");
    desc = good;
    desc.qkv_stride = 31;
    expect_refused(gpu, &desc, "stride=31");
    desc = good;
    desc.value_dim = 33;
    expect_refused(gpu, &desc, "E=33");
    desc = good;
    desc.scale = 0.0f;
    expect_refused(gpu, &desc, "scale");
    desc = good;
    desc.soft_cap = -1.0f;
    expect_refused(gpu, &desc, "soft cap");
    desc = good;
    desc.window = 2;
    desc.is_bidirectional = true;
    expect_refused(gpu, &desc, "window");
    desc = good;
    desc.tokens = (uint64_t)1 << 29;
    desc.heads = desc.kv_heads = 256;
    desc.qkv_stride = 6144;
    expect_refused(gpu, &desc, "tiles");
    uint64_t shared_bytes_max = gpu->context.shared_bytes_max;
    gpu->context.shared_bytes_max = 4096;
    desc = good;
    expect_refused(gpu, &desc, "shared memory");
    gpu->context.shared_bytes_max = 99 * KIB; /* of sm_86: every head dimension fits */
    for (desc.head_dim = 1; desc.head_dim <= 256; desc.head_dim++) {
        desc.qkv_stride = 8 * desc.head_dim;
        assert_ok(cudai_own_attention_check(&gpu->context, &desc));
    }
    gpu->context.shared_bytes_max = shared_bytes_max;
    gpu_end(gpu);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "bf16";
    while (type_under_test < DTYPE_COUNT && strcmp(name, dtype_name(type_under_test)) != 0)
        type_under_test++;
    if (type_under_test == DTYPE_COUNT)
        return 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_definition),
        cmocka_unit_test(matches_definition_of_each_kind),
        cmocka_unit_test(addresses_and_repetition_keep_bits),
        cmocka_unit_test(later_rows_keep_bits),
        cmocka_unit_test(large_scores_stay_exact),
        cmocka_unit_test(many_steps_keep_the_sum),
        cmocka_unit_test(nan_is_not_hidden),
        cmocka_unit_test(refusals),
        cmocka_unit_test(matches_definition_of_long_sequences),
        cmocka_unit_test(indices_are_wide),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
