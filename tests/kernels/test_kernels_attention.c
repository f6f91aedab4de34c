/* Attention of the CPU backend against a reference in double written out here: forward and
 * backward, odd lengths, grouped heads, fp32, bf16 and fp16, in the instruction set of the process;
 * and the promise that threads and addresses do not touch a bit. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/size.h"
#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/cpu_internal.h"
#include "kernels/ops.h"
#include "tests/kernels/kernels_isa.h"

enum { SEED = 21, PAD = 5 }; /* PAD elements at the end of each packed row belong to nobody */

static enum cpu_isa tested_isa;
static bool without_amx; /* the products' way where the tiles' way could run */

struct shape {
    uint64_t batch, tokens, heads, kv_heads, head_dim;
};

/* Packed rows q | k | v | pad, their gradients alike; all in the working type. */
struct tensors {
    attention_desc desc;
    size_t elem_bytes, shift_bytes;
    uint64_t qkv_count, out_count, lse_count;
    char *qkv, *grads, *output, *output_grad;
    float *lse;
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
    for (uint64_t i = 0; i < count; i++) {
        float value = rng_normal(SEED, stream, i);
        dtype_convert(&value, DTYPE_FP32, (char *)data + i * dtype_bytes(type), type, 1);
    }
}

/* `shift` elements of misalignment for every tensor. */
static void tensors_init(struct tensors *t, const struct shape *shape, enum dtype type,
                         uint64_t shift)
{
    uint64_t packed = (shape->heads + 2 * shape->kv_heads) * shape->head_dim + PAD;
    t->desc = (attention_desc){.batch = shape->batch,
                               .tokens = shape->tokens,
                               .heads = shape->heads,
                               .kv_heads = shape->kv_heads,
                               .head_dim = shape->head_dim,
                               .qkv_stride = packed,
                               .type = type,
                               .scale = 1.0f / sqrtf((float)shape->head_dim)};
    t->elem_bytes = dtype_bytes(type);
    t->shift_bytes = shift * t->elem_bytes;
    t->qkv_count = shape->batch * shape->tokens * packed;
    t->out_count = shape->batch * shape->tokens * shape->heads * shape->head_dim;
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

/* ---- the reference ---- */

static double *new_doubles(uint64_t count)
{
    return new_block(count * sizeof(double));
}

static double *widened(const void *data, enum dtype type, uint64_t count)
{
    double *values = new_doubles(count);
    for (uint64_t i = 0; i < count; i++) {
        float value;
        dtype_convert((const char *)data + i * dtype_bytes(type), type, &value, DTYPE_FP32, 1);
        values[i] = (double)value;
    }
    return values;
}

/* The true values and, for each, the sums of magnitudes that bound the error: `rounded` of what is
 * rounded to the working type before a product, `summed` of what fp32 sums hold. */
struct truth {
    double *value, *rounded, *summed;
};

static void truth_init(struct truth *truth, uint64_t count)
{
    truth->value = new_doubles(count);
    truth->rounded = new_doubles(count);
    truth->summed = new_doubles(count);
}

static void truth_fini(struct truth *truth)
{
    mem_free(truth->value);
    mem_free(truth->rounded);
    mem_free(truth->summed);
}

static void truth_add(struct truth *truth, uint64_t at, double factor, double factor_magnitude,
                      double operand)
{
    truth->value[at] += factor * operand;
    truth->rounded[at] += fabs(factor * operand);
    truth->summed[at] += factor_magnitude * fabs(operand);
}

/* One query row of one head: probabilities, output, and this row's part of all gradients. The
 * output that enters delta is the rounded one, as in the contract. */
static void reference_row(const struct tensors *t, const double *qkv, const double *kernel_output,
                          const double *output_grad, uint64_t b, uint64_t h, uint64_t row,
                          double *probs, struct truth *output, struct truth *grads, double *lse)
{
    const attention_desc *d = &t->desc;
    uint64_t dim = d->head_dim, stride = d->qkv_stride, kv_head = h / (d->heads / d->kv_heads);
    uint64_t k0 = b * d->tokens * stride + (d->heads + kv_head) * dim;
    uint64_t v0 = k0 + d->kv_heads * dim;
    uint64_t q0 = (b * d->tokens + row) * stride + h * dim;
    uint64_t o0 = ((b * d->tokens + row) * d->heads + h) * dim;
    double largest = -INFINITY, sum = 0, delta = 0, delta_magnitude = 0;
    for (uint64_t s = 0; s <= row; s++) {
        probs[s] = 0;
        for (uint64_t i = 0; i < dim; i++)
            probs[s] += qkv[q0 + i] * qkv[k0 + s * stride + i];
        probs[s] *= (double)d->scale;
        largest = fmax(largest, probs[s]);
    }
    for (uint64_t s = 0; s <= row; s++)
        sum += probs[s] = exp(probs[s] - largest);
    *lse = largest + log(sum);
    for (uint64_t i = 0; i < dim; i++) {
        delta += output_grad[o0 + i] * kernel_output[o0 + i];
        delta_magnitude += fabs(output_grad[o0 + i] * kernel_output[o0 + i]);
    }
    for (uint64_t s = 0; s <= row; s++) {
        double p = probs[s] / sum, grad = 0, magnitude = 0;
        for (uint64_t i = 0; i < dim; i++) {
            double v = qkv[v0 + s * stride + i];
            truth_add(output, o0 + i, p, p, v);
            truth_add(grads, v0 + s * stride + i, p, p, output_grad[o0 + i]);
            grad += output_grad[o0 + i] * v;
            magnitude += fabs(output_grad[o0 + i] * v);
        }
        grad = p * (grad - delta) * (double)d->scale;
        magnitude = p * (magnitude + delta_magnitude) * (double)d->scale;
        for (uint64_t i = 0; i < dim; i++) {
            truth_add(grads, q0 + i, grad, magnitude, qkv[k0 + s * stride + i]);
            truth_add(grads, k0 + s * stride + i, grad, magnitude, qkv[q0 + i]);
        }
    }
}

/* An element is right when its error is below: half an ulp of the working type on every rounded
 * factor and on the result, plus fp32 noise: sums over D and T and the score's error inside exp. */
static void compare(const struct tensors *t, const char *what, const char *got,
                    const struct truth *truth, uint64_t count)
{
    enum dtype type = t->desc.type;
    double roundoff = type == DTYPE_FP32 ? 0x1p-24 : type == DTYPE_BF16 ? 0x1p-8 : 0x1p-11;
    double noise = 0x1p-24 * (64 + 2 * (double)t->desc.head_dim + 0.5 * (double)t->desc.tokens);
    double *values = widened(got, type, count);
    for (uint64_t i = 0; i < count; i++) {
        double limit = 1.02 * roundoff * (truth->rounded[i] + fabs(truth->value[i])) +
                       noise * truth->summed[i] + (type == DTYPE_FP16 ? 1e-5 : 1e-30);
        if (!(fabs(values[i] - truth->value[i]) <= limit)) {
            print_error("%s %s B=%d T=%d H=%d G=%d D=%d element %d: %g, expected %g within %g\n",
                        dtype_name(type), what, (int)t->desc.batch, (int)t->desc.tokens,
                        (int)t->desc.heads, (int)t->desc.kv_heads, (int)t->desc.head_dim, (int)i,
                        values[i], truth->value[i], limit);
            fail();
        }
    }
    mem_free(values);
}

/* The pads of the gradient rows keep their bytes; their truth is made equal to what is there. */
static void check_pads(const struct tensors *t)
{
    uint64_t used = t->desc.qkv_stride - PAD;
    for (uint64_t row = 0; row < t->desc.batch * t->desc.tokens; row++)
        for (size_t i = 0; i < PAD * t->elem_bytes; i++)
            assert_int_equal(t->grads[(row * t->desc.qkv_stride + used) * t->elem_bytes + i], 0x3b);
}

static void check_shape(kernel_context *context, const struct shape *shape, enum dtype type)
{
    struct tensors t;
    tensors_init(&t, shape, type, 0);
    run_both(context, &t);
    struct truth output, grads;
    truth_init(&output, t.out_count);
    truth_init(&grads, t.qkv_count);
    double *qkv = widened(t.qkv, type, t.qkv_count);
    double *kernel_output = widened(t.output, type, t.out_count);
    double *output_grad = widened(t.output_grad, type, t.out_count);
    double *probs = new_doubles(shape->tokens);
    for (uint64_t b = 0; b < shape->batch; b++)
        for (uint64_t h = 0; h < shape->heads; h++)
            for (uint64_t row = 0; row < shape->tokens; row++) {
                double lse;
                reference_row(&t, qkv, kernel_output, output_grad, b, h, row, probs, &output,
                              &grads, &lse);
                double got = (double)t.lse[(b * shape->heads + h) * shape->tokens + row];
                assert_true(fabs(got - lse) <= 1e-5 * (1 + fabs(lse)));
            }
    compare(&t, "output", t.output, &output, t.out_count);
    check_pads(&t);
    for (uint64_t row = 0; row < shape->batch * shape->tokens; row++)
        memset(t.grads + ((row + 1) * t.desc.qkv_stride - PAD) * t.elem_bytes, 0,
               PAD * t.elem_bytes);
    compare(&t, "gradient", t.grads, &grads, t.qkv_count);
    mem_free(probs);
    mem_free(output_grad);
    mem_free(kernel_output);
    mem_free(qkv);
    truth_fini(&grads);
    truth_fini(&output);
    tensors_fini(&t);
}

static void check_type(enum dtype type, bool native)
{
    static const struct shape shapes[] = {
        {1, 1, 1, 1, 1},     {3, 1, 2, 1, 8},     {3, 7, 4, 2, 25},    {1, 64, 2, 2, 64},
        {1, 65, 6, 3, 100},  {3, 200, 2, 1, 25},  {1, 200, 1, 1, 128}, {1, 513, 2, 1, 64},
        {1, 130, 1, 1, 256}, {1, 1100, 1, 1, 16}, {1, 451, 2, 1, 36},
    };
    kernel_context *context = new_context(2, native);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        check_shape(context, &shapes[i], type);
    kernels_cpu.context_destroy(context);
}

static void matches_reference_fp32(void **state)
{
    (void)state;
    check_type(DTYPE_FP32, true);
}

static void matches_reference_bf16(void **state)
{
    (void)state;
    check_type(DTYPE_BF16, true);
}

static void matches_reference_bf16_without_amx(void **state)
{
    (void)state;
    without_amx = true;
    check_type(DTYPE_BF16, true);
    without_amx = false;
}

static void matches_reference_bf16_widened(void **state)
{
    (void)state;
    check_type(DTYPE_BF16, false);
}

static void matches_reference_fp16(void **state)
{
    (void)state;
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
    (void)state;
    static const struct shape shapes[] = {{2, 200, 6, 2, 25}, {1, 700, 4, 4, 64}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int type = 0; type < DTYPE_COUNT; type++) {
            struct tensors first;
            tensors_init(&first, &shapes[i], (enum dtype)type, 0);
            kernel_context *context = new_context(1, true);
            run_both(context, &first);
            kernels_cpu.context_destroy(context);
            for (int threads = 1; threads <= 3; threads++) {
                struct tensors again;
                tensors_init(&again, &shapes[i], (enum dtype)type, (uint64_t)threads - 1);
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

/* Large scores must not overflow, and the first key of the first row takes everything. */
static void large_scores_stay_finite(void **state)
{
    (void)state;
    struct shape shape = {1, 600, 1, 1, 8};
    struct tensors t;
    tensors_init(&t, &shape, DTYPE_FP32, 0);
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
    (void)state;
    struct shape shape = {1, 100, 1, 1, 8};
    struct tensors t;
    tensors_init(&t, &shape, DTYPE_FP32, 0);
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
    (void)state;
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
    (void)state;
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
        cmocka_unit_test(matches_reference_fp32),
        cmocka_unit_test(matches_reference_bf16),
        cmocka_unit_test(matches_reference_bf16_without_amx),
        cmocka_unit_test(matches_reference_bf16_widened),
        cmocka_unit_test(matches_reference_fp16),
        cmocka_unit_test(threads_and_addresses_keep_bits),
        cmocka_unit_test(large_scores_stay_finite),
        cmocka_unit_test(nan_is_not_hidden),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
