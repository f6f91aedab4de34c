/* Attention of the CPU backend against the definition in double: forward and backward, odd lengths,
 * grouped heads, windows, soft caps, both directions, documents, fp32, bf16 and fp16, in the
 * instruction set of the process; and the promise that threads, addresses and other documents do
 * not touch a bit. */
#include <math.h>
#include <pthread.h>

#include "base/mem.h"
#include "base/rng.h"
#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/cpu_internal.h"
#include "kernels/ops.h"
#include "tests/kernels/attention_truth.h"
#include "tests/kernels/kernels_isa.h"
#include "tests/unit.h"

enum { SEED = 21, PAD = 5 }; /* PAD elements at the end of each packed row belong to nobody */

static enum cpu_isa tested_isa;
static bool without_amx; /* the products' way where the tiles' way could run */

struct shape {
    uint64_t batch, tokens, heads, kv_heads, head_dim;
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

static const struct kind causal;

/* Masks of step 7 for sequences from 30 on. */
static const uint32_t counter[2] = {7, 30};
static const attention_dropout masks = {SEED, 9, counter};

/* Packed rows q | k | v | pad, their gradients alike; all in the working type. */
struct tensors {
    attention_desc desc;
    size_t elem_bytes, shift_bytes;
    uint64_t qkv_count, out_count, lse_count;
    char *qkv, *grads, *output, *output_grad;
    float *lse;
    int32_t *begins; /* NULL: no documents */
};

static kernel_context *new_context(int threads, bool native)
{
    kernel_context_config config = {.thread_count = threads};
    kernel_context *context;
    assert_int_equal(kernels_cpu.context_create(&config, &context), 0);
    context->has_amx = context->has_amx && !without_amx;
    if (!native)
        context->has_bf16_products = false;
    return context;
}

static void *new_block(uint64_t bytes)
{
    void *block = mem_alloc(bytes, 1, "test tensor");
    assert_non_null(block);
    return block;
}

static void fill_random(void *data, enum dtype type, uint64_t count, uint64_t stream)
{
    float *values = new_block(count * sizeof *values);
    rng_normals(SEED, stream, 0, count, values);
    dtype_convert(values, DTYPE_FP32, data, type, count);
    mem_free(values);
}

/* `shift` elements of misalignment for every tensor. */
static void tensors_init(struct tensors *t, const struct shape *shape, const struct kind *kind,
                         enum dtype type, uint64_t shift)
{
    uint64_t value_dim = kind->value_dim ? kind->value_dim : shape->head_dim;
    uint64_t packed =
        (shape->heads + shape->kv_heads) * shape->head_dim + shape->kv_heads * value_dim + PAD;
    t->desc = (attention_desc){.batch = shape->batch,
                               .tokens = shape->tokens,
                               .heads = shape->heads,
                               .kv_heads = shape->kv_heads,
                               .head_dim = shape->head_dim,
                               .value_dim = kind->value_dim,
                               .qkv_stride = packed,
                               .type = type,
                               .scale = 1.0f / sqrtf((float)shape->head_dim),
                               .soft_cap = kind->soft_cap,
                               .window = kind->window,
                               .is_bidirectional = kind->is_bidirectional,
                               .dropout = kind->dropout};
    if (kind->document)
        t->begins = truth_documents(shape->batch, shape->tokens, kind->document, SEED);
    else
        t->begins = NULL;
    t->elem_bytes = dtype_bytes(type);
    t->shift_bytes = shift * t->elem_bytes;
    t->qkv_count = shape->batch * shape->tokens * packed;
    t->out_count = shape->batch * shape->tokens * shape->heads * value_dim;
    t->lse_count = shape->batch * shape->heads * shape->tokens;
    t->qkv = (char *)new_block((t->qkv_count + shift) * t->elem_bytes) + t->shift_bytes;
    t->grads = (char *)new_block((t->qkv_count + shift) * t->elem_bytes) + t->shift_bytes;
    t->output = (char *)new_block((t->out_count + shift) * t->elem_bytes) + t->shift_bytes;
    t->output_grad = (char *)new_block((t->out_count + shift) * t->elem_bytes) + t->shift_bytes;
    t->lse = new_block(t->lse_count * sizeof *t->lse);
    fill_random(t->qkv, type, t->qkv_count, 1);
    fill_random(t->output_grad, type, t->out_count, 2);
    memset(t->grads, 0x3b, t->qkv_count * t->elem_bytes);
}

static void tensors_fini(struct tensors *t)
{
    mem_free(t->qkv - t->shift_bytes);
    mem_free(t->grads - t->shift_bytes);
    mem_free(t->output - t->shift_bytes);
    mem_free(t->output_grad - t->shift_bytes);
    mem_free(t->lse);
    mem_free(t->begins);
}

static int forward(kernel_attention *attention, struct tensors *t, void *scratch)
{
    size_t k = t->desc.heads * t->desc.head_dim * t->elem_bytes;
    size_t v = k + t->desc.kv_heads * t->desc.head_dim * t->elem_bytes;
    return kernels_cpu.attention_forward(attention, NULL, t->qkv, t->qkv + k, t->qkv + v, t->output,
                                         t->lse, scratch);
}

static int backward(kernel_attention *attention, struct tensors *t, void *scratch)
{
    size_t k = t->desc.heads * t->desc.head_dim * t->elem_bytes;
    size_t v = k + t->desc.kv_heads * t->desc.head_dim * t->elem_bytes;
    return kernels_cpu.attention_backward(attention, NULL, t->qkv, t->qkv + k, t->qkv + v,
                                          t->output, t->lse, t->output_grad, t->grads, t->grads + k,
                                          t->grads + v, scratch);
}

/* Forward and backward with scratch full of NaN; neither may allocate. */
static void run_both(kernel_context *context, struct tensors *t)
{
    kernel_attention *attention;
    assert_int_equal(kernels_cpu.attention_create(context, &t->desc, &attention), 0);
    kernels_cpu.attention_set_documents(attention, t->begins);
    kernels_cpu.attention_set_dropout(attention, &masks);
    size_t forward_bytes = kernels_cpu.attention_forward_scratch_bytes(attention);
    size_t backward_bytes = kernels_cpu.attention_backward_scratch_bytes(attention);
    void *forward_scratch = new_block(forward_bytes), *backward_scratch = new_block(backward_bytes);
    memset(forward_scratch, 0xff, forward_bytes);
    memset(backward_scratch, 0xff, backward_bytes);
    mem_stats before, after;
    mem_get_stats(&before);
    assert_int_equal(forward(attention, t, forward_scratch), 0);
    assert_int_equal(backward(attention, t, backward_scratch), 0);
    mem_get_stats(&after);
    assert_int_equal(after.call_count, before.call_count);
    mem_free(forward_scratch);
    mem_free(backward_scratch);
    kernels_cpu.attention_destroy(attention);
}

/* ---- against the definition ---- */

/* `rows` rows of `columns` values that lie `stride` elements apart, side by side as fp32. */
static float *widened(const void *data, enum dtype type, uint64_t rows, uint64_t columns,
                      uint64_t stride)
{
    float *values = new_block(rows * columns * sizeof *values);
    for (uint64_t row = 0; row < rows; row++)
        dtype_convert((const char *)data + row * stride * dtype_bytes(type), type,
                      values + row * columns, DTYPE_FP32, columns);
    return values;
}

/* The pads of the gradient rows keep their bytes. */
static void check_pads(const struct tensors *t)
{
    uint64_t used = t->desc.qkv_stride - PAD;
    for (uint64_t row = 0; row < t->desc.batch * t->desc.tokens; row++)
        for (size_t i = 0; i < PAD * t->elem_bytes; i++)
            assert_int_equal(t->grads[(row * t->desc.qkv_stride + used) * t->elem_bytes + i], 0x3b);
}

static void check_shape(kernel_context *context, const struct shape *shape, const struct kind *kind,
                        enum dtype type)
{
    struct tensors t;
    tensors_init(&t, shape, kind, type, 0);
    run_both(context, &t);
    uint64_t rows = shape->batch * shape->tokens, packed = t.desc.qkv_stride - PAD;
    uint64_t width = t.out_count / rows;
    float *qkv = widened(t.qkv, type, rows, packed, t.desc.qkv_stride);
    float *grads = widened(t.grads, type, rows, packed, t.desc.qkv_stride);
    float *output = widened(t.output, type, rows, width, width);
    float *output_grad = widened(t.output_grad, type, rows, width, width);
    attention_case truth = {.desc = t.desc,
                            .packed_elems = packed,
                            .qkv = qkv,
                            .output_grad = output_grad,
                            .output = output,
                            .lse = t.lse,
                            .grads = grads,
                            .begins = t.begins,
                            .masks = masks};
    truth.desc.value_dim = width / shape->heads;
    for (uint64_t b = 0; b < shape->batch; b++)
        for (uint64_t row = 0; row < shape->tokens; row++) {
            for (uint64_t h = 0; h < shape->heads; h++)
                truth_check_query(&truth, b, h, row);
            for (uint64_t g = 0; g < shape->kv_heads; g++)
                truth_check_key(&truth, b, g, row);
        }
    check_pads(&t);
    mem_free(qkv);
    mem_free(grads);
    mem_free(output);
    mem_free(output_grad);
    tensors_fini(&t);
}

static void check_type(enum dtype type, bool native)
{
    static const struct shape shapes[] = {
        {1, 1, 1, 1, 1},     {3, 1, 2, 1, 8},     {3, 7, 4, 2, 25},    {1, 64, 2, 2, 64},
        {1, 65, 6, 3, 100},  {3, 200, 2, 1, 25},  {1, 200, 1, 1, 128}, {1, 513, 2, 1, 64},
        {1, 130, 1, 1, 256}, {1, 1100, 1, 1, 16}, {1, 451, 2, 1, 36},
    };
    static const struct {
        struct shape shape;
        struct kind kind;
    } others[] = {
        {{1, 200, 2, 1, 36}, {.window = 1}},
        {{1, 700, 2, 1, 64}, {.window = 100}},
        {{2, 130, 2, 2, 25}, {.window = 130}},
        {{1, 1100, 1, 1, 16}, {.window = 37}},
        {{1, 70, 1, 1, 8}, {.document = 1}},
        {{2, 300, 4, 2, 64}, {.document = 40}},
        {{1, 1300, 1, 1, 32}, {.document = 900}},
        {{1, 1153, 1, 1, 16}, {.document = 30}},
        {{2, 200, 2, 1, 64}, {.soft_cap = 2}},
        {{1, 65, 2, 1, 24}, {.is_bidirectional = true}},
        {{1, 1100, 1, 1, 16}, {.is_bidirectional = true}},
        {{1, 1100, 1, 1, 16}, {.document = 300, .is_bidirectional = true}},
        {{2, 451, 2, 1, 36}, {.document = 90, .soft_cap = 3, .is_bidirectional = true}},
        {{1, 700, 2, 1, 64}, {.window = 65, .document = 120, .soft_cap = 1.5f}},
        {{2, 203, 4, 2, 64}, {.dropout = 0.1f}},
        {{1, 1100, 1, 1, 16}, {.dropout = 0.5f}},
        {{1, 1153, 2, 1, 36}, {.document = 300, .soft_cap = 2, .dropout = 0.25f}},
        {{1, 451, 2, 1, 36}, {.is_bidirectional = true, .dropout = 0.9f}},
        {{1, 200, 2, 2, 192}, {.value_dim = 128}},
        {{2, 130, 4, 2, 24}, {.dropout = 0.25f, .value_dim = 16}},
        {{1, 1100, 2, 1, 20}, {.soft_cap = 2, .value_dim = 44}},
        {{2, 77, 2, 1, 25}, {.window = 33, .document = 40, .value_dim = 7}},
        {{1, 65, 1, 1, 16}, {.is_bidirectional = true, .value_dim = 256}},
    };
    kernel_context *context = new_context(2, native);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        check_shape(context, &shapes[i], &causal, type);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        check_shape(context, &others[i].shape, &others[i].kind, type);
    kernels_cpu.context_destroy(context);
}

static void matches_definition_fp32(void **state)
{
    check_type(DTYPE_FP32, true);
}

static void matches_definition_bf16(void **state)
{
    check_type(DTYPE_BF16, true);
}

/* Where a CPU lacks what a way does without, it has gone that way before. */
static void skip_unless(bool amx)
{
    kernel_context *context = new_context(1, true);
    bool has = amx ? context->has_amx : context->has_bf16_products;
    kernels_cpu.context_destroy(context);
    if (!has)
        skip();
}

static void matches_definition_bf16_without_amx(void **state)
{
    skip_unless(true);
    without_amx = true;
    check_type(DTYPE_BF16, true);
    without_amx = false;
}

static void matches_definition_bf16_widened(void **state)
{
    skip_unless(false);
    check_type(DTYPE_BF16, false);
}

static void matches_definition_fp16(void **state)
{
    check_type(DTYPE_FP16, true);
}

/* ---- bits ---- */

struct other_thread {
    kernel_context *context;
    struct tensors *tensors;
};

static void *run_other_thread(void *user)
{
    struct other_thread *job = user;
    run_both(job->context, job->tensors);
    return NULL;
}

static void assert_same_bits(const struct tensors *a, const struct tensors *b)
{
    assert_memory_equal(a->output, b->output, a->out_count * a->elem_bytes);
    assert_memory_equal(a->lse, b->lse, a->lse_count * sizeof *a->lse);
    assert_memory_equal(a->grads, b->grads, a->qkv_count * a->elem_bytes);
}

static void threads_and_addresses_keep_bits(void **state)
{
    /* The number of query blocks that share a prepared key block depends on the threads: here 5 or
     * 6 on one thread, and 1 or 2 on three. */
    static const struct shape shapes[] = {
        {2, 200, 6, 2, 25}, {1, 700, 4, 4, 64}, {1, 1300, 4, 2, 16}};
    static const struct kind kinds[] = {{.value_dim = 40},
                                        {.window = 70, .document = 130},
                                        {.document = 300, .is_bidirectional = true},
                                        {.dropout = 0.3f}};
    enum { KINDS = sizeof kinds / sizeof *kinds };
    for (size_t i = 0; i < KINDS * sizeof shapes / sizeof *shapes; i++)
        for (int type = 0; type < DTYPE_COUNT; type++) {
            struct tensors first;
            tensors_init(&first, &shapes[i / KINDS], &kinds[i % KINDS], (enum dtype)type, 0);
            kernel_context *context = new_context(1, true);
            run_both(context, &first);
            kernels_cpu.context_destroy(context);
            for (int threads = 1; threads <= 3; threads++) {
                struct tensors again;
                tensors_init(&again, &shapes[i / KINDS], &kinds[i % KINDS], (enum dtype)type,
                             (uint64_t)threads - 1);
                context = new_context(threads, true);
                struct other_thread job = {context, &again};
                pthread_t thread;
                assert_int_equal(pthread_create(&thread, NULL, run_other_thread, &job), 0);
                assert_int_equal(pthread_join(thread, NULL), 0);
                assert_same_bits(&first, &again);
                kernels_cpu.context_destroy(context);
                tensors_fini(&again);
            }
            tensors_fini(&first);
        }
}

/* A document keeps its bits if all other documents get other numbers. */
static void other_documents_keep_bits(void **state)
{
    static const struct shape shape = {1, 700, 4, 2, 64};
    static const struct kind kinds[] = {{.document = 200},
                                        {.document = 90, .soft_cap = 5, .window = 40},
                                        {.document = 200, .is_bidirectional = true}};
    uint64_t width = shape.heads * shape.head_dim;
    kernel_context *context = new_context(2, true);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (enum dtype type = 0; type < DTYPE_COUNT; type++) {
            struct tensors a, b;
            tensors_init(&a, &shape, &kinds[i], type, 0);
            tensors_init(&b, &shape, &kinds[i], type, 0);
            int32_t kept = a.begins[shape.tokens / 2];
            uint64_t packed_bytes = a.desc.qkv_stride * a.elem_bytes;
            uint64_t width_bytes = width * a.elem_bytes;
            for (uint64_t row = 0; row < shape.tokens; row++)
                if (a.begins[row] != kept) {
                    fill_random(b.qkv + row * packed_bytes, type, a.desc.qkv_stride, 10 + row);
                    fill_random(b.output_grad + row * width_bytes, type, width, 10 + row);
                }
            run_both(context, &a);
            run_both(context, &b);
            for (uint64_t row = 0; row < shape.tokens; row++) {
                const char *output = a.output + row * width_bytes;
                const char *grads = a.grads + row * packed_bytes;
                bool is_kept = a.begins[row] == kept;
                assert_int_equal(memcmp(output, b.output + row * width_bytes, width_bytes) == 0,
                                 is_kept);
                assert_int_equal(memcmp(grads, b.grads + row * packed_bytes, packed_bytes) == 0,
                                 is_kept);
            }
            tensors_fini(&a);
            tensors_fini(&b);
        }
    kernels_cpu.context_destroy(context);
}

/* Large scores must not overflow, and the first key of the first row takes everything. */
static void large_scores_stay_finite(void **state)
{
    struct shape shape = {1, 600, 1, 1, 8};
    struct tensors t;
    tensors_init(&t, &shape, &causal, DTYPE_FP32, 0);
    float *qkv = (float *)t.qkv;
    for (uint64_t i = 0; i < t.qkv_count; i++)
        qkv[i] *= 1e4f;
    kernel_context *context = new_context(2, true);
    run_both(context, &t);
    for (uint64_t i = 0; i < t.out_count; i++)
        assert_true(isfinite(((float *)t.output)[i]));
    for (uint64_t i = 0; i < 8; i++)
        assert_true(((float *)t.output)[i] == qkv[16 + i]);
    kernels_cpu.context_destroy(context);
    tensors_fini(&t);
}

static void nan_is_not_hidden(void **state)
{
    struct shape shape = {1, 100, 1, 1, 8};
    struct tensors t;
    tensors_init(&t, &shape, &causal, DTYPE_FP32, 0);
    ((float *)t.qkv)[70 * t.desc.qkv_stride] = NAN; /* q of row 70 */
    kernel_context *context = new_context(2, true);
    run_both(context, &t);
    assert_true(isnan(((float *)t.output)[70 * 8]));
    assert_false(isnan(((float *)t.output)[69 * 8]));
    assert_false(isnan(((float *)t.output)[71 * 8]));
    assert_true(isnan(((float *)t.grads)[70 * t.desc.qkv_stride]));
    kernels_cpu.context_destroy(context);
    tensors_fini(&t);
}

/* Every 251st float between -87.3 and 88 within 2 ulp of the true exponential. */
static void exponential_is_accurate(void **state)
{
    const attention_rows *rows = cpui_attention_rows(tested_isa);
    static const uint32_t signs[] = {0, 0x80000000u};
    double worst = 0;
    for (int s = 0; s < 2; s++) {
        float limit = s ? 87.3f : 88.0f;
        for (uint32_t bits = 0; fp32_from_bits(bits) < limit; bits += 2511) {
            float x = fp32_from_bits(bits | signs[s]), got;
            rows->exponential(&x, &got, 1);
            double true_value = exp((double)x);
            double ulp = nextafterf((float)true_value, INFINITY) - (float)true_value;
            worst = fmax(worst, fabs((double)got - true_value) / ulp);
        }
    }
    print_message("%s: worst error of the exponential %.3f ulp\n", rows->name, worst);
    assert_true(worst <= 2.0);
    float special[] = {-INFINITY, -200.0f, NAN, 0.0f}, result[4];
    rows->exponential(special, result, 4);
    assert_true(result[0] == 0.0f && result[1] == 0.0f && isnan(result[2]) && result[3] == 1.0f);
}

static void refusals(void **state)
{
    kernel_context *context = new_context(1, true);
    kernel_attention *attention;
    attention_desc good = {.batch = 1,
                           .tokens = 4,
                           .heads = 4,
                           .kv_heads = 2,
                           .head_dim = 8,
                           .qkv_stride = 64,
                           .type = DTYPE_FP32,
                           .scale = 1.0f};
    attention_desc desc = good;
    desc.tokens = 0;
    assert_int_equal(kernels_cpu.attention_create(context, &desc, &attention), ERR_BACKEND);
    desc = good;
    desc.kv_heads = 3;
    assert_int_equal(kernels_cpu.attention_create(context, &desc, &attention), ERR_BACKEND);
    desc = good;
    desc.head_dim = 257;
    assert_int_equal(kernels_cpu.attention_create(context, &desc, &attention), ERR_BACKEND);
    desc = good;
    desc.qkv_stride = 31;
    assert_int_equal(kernels_cpu.attention_create(context, &desc, &attention), ERR_BACKEND);
    assert_null(attention);
    assert_non_null(strstr(err_text(), "stride=31"));
    desc = good;
    desc.value_dim = 33; /* two heads of v have no room in rows of 64 */
    assert_error(kernels_cpu.attention_create(context, &desc, &attention), ERR_BACKEND, "E=33");
    desc = good;
    desc.window = 3;
    desc.is_bidirectional = true;
    assert_int_equal(kernels_cpu.attention_create(context, &desc, &attention), ERR_BACKEND);
    desc = good;
    desc.soft_cap = NAN;
    assert_int_equal(kernels_cpu.attention_create(context, &desc, &attention), ERR_BACKEND);
    kernels_cpu.context_destroy(context);
}

int main(void)
{
    int rc = isa_of_test(&tested_isa);
    if (rc != 0)
        return rc;
    printf("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exponential_is_accurate),
        cmocka_unit_test(matches_definition_fp32),
        cmocka_unit_test(matches_definition_bf16),
        cmocka_unit_test(matches_definition_bf16_without_amx),
        cmocka_unit_test(matches_definition_bf16_widened),
        cmocka_unit_test(matches_definition_fp16),
        cmocka_unit_test(threads_and_addresses_keep_bits),
        cmocka_unit_test(other_documents_keep_bits),
        cmocka_unit_test(large_scores_stay_finite),
        cmocka_unit_test(nan_is_not_hidden),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
