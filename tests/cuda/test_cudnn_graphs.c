/* cuDNN's attention on a stand-in for cuDNN that runs operation graphs by their meaning on the host
 * (fake_cudnn/): that the graphs compute attention and its gradients, with every stride, address,
 * part and byte of scratch right; which engines are taken; what is refused and why; and that
 * nothing leaks. No GPU and no cuDNN are needed, only its header. */
#include <errno.h>
#include <math.h>

#include "base/mem.h"
#include "base/rng.h"
#include "kernels/cuda/attention/cudnn_internal.h"
#include "tests/fake_cudnn/fake_cudnn.h"
#include "tests/unit.h"

enum { SEED = 77, PAD = 8, GUARD_BYTES = 256, GUARD = 0x5a };

struct shape {
    uint64_t batch, tokens, heads, kv_heads, head_dim;
};

static kernel_context new_context(int compute_major)
{
    kernel_context context = {.compute_major = compute_major};
    assert_ok(cudai_cudnn_create(&context));
    return context;
}

static void reset(void)
{
    fake_cudnn = (struct fake_cudnn){.config_count = 1, .workspace_bytes = 1000};
}

static attention_desc desc_of(const struct shape *shape, enum dtype type)
{
    return (attention_desc){.batch = shape->batch,
                            .tokens = shape->tokens,
                            .heads = shape->heads,
                            .kv_heads = shape->kv_heads,
                            .head_dim = shape->head_dim,
                            .qkv_stride =
                                (shape->heads + 2 * shape->kv_heads) * shape->head_dim + PAD,
                            .type = type,
                            .scale = 1.3f / sqrtf((float)shape->head_dim)};
}

/* --- one attention, on the stand-in and on the reference -------------------------------------- */

/* Memory with a guard at its end. */
struct block {
    char *data;
    uint64_t bytes;
};

static struct block new_block(uint64_t bytes)
{
    struct block block = {mem_alloc(bytes + GUARD_BYTES, 1, "test tensor"), bytes};
    assert_non_null(block.data);
    memset(block.data, 0xff, bytes); /* NaN */
    memset(block.data + bytes, GUARD, GUARD_BYTES);
    return block;
}

static void free_block(struct block *block)
{
    for (uint64_t i = 0; i < GUARD_BYTES; i++)
        assert_int_equal(block->data[block->bytes + i], GUARD);
    mem_free(block->data);
}

struct tensors {
    attention_desc desc;
    uint64_t qkv_count, output_count, lse_count;
    struct block qkv, grads, output, output_grad, lse;
};

static void fill_random(struct block *block, enum dtype type, uint64_t count, uint64_t stream)
{
    for (uint64_t i = 0; i < count; i++) {
        float value = rng_normal(SEED, stream, i);
        dtype_convert(&value, DTYPE_FP32, block->data + i * 2, type, 1);
    }
}

static struct tensors new_tensors(const attention_desc *desc)
{
    uint64_t rows = desc->batch * desc->tokens;
    struct tensors t = {.desc = *desc,
                        .qkv_count = rows * desc->qkv_stride,
                        .output_count = rows * desc->heads * desc->head_dim,
                        .lse_count = rows * desc->heads};
    t.qkv = new_block(t.qkv_count * 2);
    t.grads = new_block(t.qkv_count * 2);
    t.output = new_block(t.output_count * 2);
    t.output_grad = new_block(t.output_count * 2);
    t.lse = new_block(t.lse_count * 4);
    fill_random(&t.qkv, desc->type, t.qkv_count, 1);
    fill_random(&t.output_grad, desc->type, t.output_count, 2);
    return t;
}

static void free_tensors(struct tensors *t)
{
    free_block(&t->qkv);
    free_block(&t->grads);
    free_block(&t->output);
    free_block(&t->output_grad);
    free_block(&t->lse);
}

static uint64_t k_bytes(const struct tensors *t)
{
    return t->desc.heads * t->desc.head_dim * 2;
}

static uint64_t v_bytes(const struct tensors *t)
{
    return k_bytes(t) + t->desc.kv_heads * t->desc.head_dim * 2;
}

static void run_reference(struct tensors *t)
{
    kernel_attention *attention;
    uint64_t k = k_bytes(t), v = v_bytes(t);
    assert_int_equal(kernels_reference.attention_create(NULL, &t->desc, &attention), 0);
    struct block scratch = new_block(kernels_reference.attention_backward_scratch_bytes(attention) +
                                     kernels_reference.attention_forward_scratch_bytes(attention));
    assert_int_equal(kernels_reference.attention_forward(
                         attention, NULL, t->qkv.data, t->qkv.data + k, t->qkv.data + v,
                         t->output.data, (float *)t->lse.data, scratch.data),
                     0);
    assert_int_equal(kernels_reference.attention_backward(
                         attention, NULL, t->qkv.data, t->qkv.data + k, t->qkv.data + v,
                         t->output.data, (float *)t->lse.data, t->output_grad.data, t->grads.data,
                         t->grads.data + k, t->grads.data + v, scratch.data),
                     0);
    kernels_reference.attention_destroy(attention);
    free_block(&scratch);
}

static int run_backward(cudai_cudnn_plan *plan, struct tensors *t, void *scratch)
{
    uint64_t k = k_bytes(t), v = v_bytes(t);
    return cudai_cudnn_backward(plan, &fake_cudnn, t->qkv.data, t->qkv.data + k, t->qkv.data + v,
                                t->output.data, (float *)t->lse.data, t->output_grad.data,
                                t->grads.data, t->grads.data + k, t->grads.data + v, scratch);
}

/* Forward and backward, each with scratch of exactly what it asks for. */
static void run_fake(cudai_cudnn_plan *plan, struct tensors *t)
{
    uint64_t k = k_bytes(t), v = v_bytes(t);
    struct block scratch = new_block(cudai_cudnn_plan_forward_scratch_bytes(plan));
    struct block back_scratch = new_block(cudai_cudnn_plan_backward_scratch_bytes(plan));
    mem_stats before, after;
    mem_get_stats(&before);
    assert_ok(cudai_cudnn_forward(plan, &fake_cudnn, t->qkv.data, t->qkv.data + k, t->qkv.data + v,
                                  t->output.data, (float *)t->lse.data, scratch.data));
    assert_int_equal(run_backward(plan, t, back_scratch.data), 0);
    mem_get_stats(&after);
    assert_int_equal(after.call_count, before.call_count);
    assert_ptr_equal(fake_cudnn.stream, &fake_cudnn);
    free_block(&scratch);
    free_block(&back_scratch);
}

static void expect_close(const char *name, const struct block *got, const struct block *want,
                         enum dtype type, uint64_t count, double tolerance)
{
    for (uint64_t i = 0; i < count; i++) {
        float a, b;
        dtype_convert(got->data + i * dtype_bytes(type), type, &a, DTYPE_FP32, 1);
        dtype_convert(want->data + i * dtype_bytes(type), type, &b, DTYPE_FP32, 1);
        if (isnan(a) && isnan(b)) /* the padding of rows, written by neither */
            continue;
        if (!(fabs((double)a - b) <= tolerance * (1 + fabs(b))))
            fail_msg("%s[%llu] is %g, not %g", name, (unsigned long long)i, a, b);
    }
}

/* P and dS are rounded to 16 bits on the way, as is each query head's part of dK and dV: errors of
 * a few units of rounding of values of about 1, added over the tokens. */
static void check_desc(kernel_context *context, const attention_desc *desc, int part_count)
{
    struct tensors got = new_tensors(desc), want = new_tensors(desc);
    enum dtype type = desc->type;
    double tolerance = type == DTYPE_BF16 ? 0.03 : 0.004;
    cudai_cudnn_plan *plan;
    assert_ok(cudai_cudnn_plan_create(context, desc, &plan));
    assert_string_equal(cudai_cudnn_plan_way(plan),
                        fake_cudnn.planned_engine_idx >= FAKE_ENGINE_CHOSEN ? "ordered" : "parted");
    fake_cudnn.run_count = 0;
    run_fake(plan, &got);
    assert_int_equal(fake_cudnn.run_count, 1 + part_count);
    run_reference(&want);
    expect_close("output", &got.output, &want.output, type, got.output_count, tolerance);
    expect_close("lse", &got.lse, &want.lse, DTYPE_FP32, got.lse_count, 1e-5);
    expect_close("gradient", &got.grads, &want.grads, type, got.qkv_count, tolerance);
    cudai_cudnn_plan_destroy(plan);
    free_tensors(&got);
    free_tensors(&want);
}

static void check_case(kernel_context *context, const struct shape *shape, enum dtype type,
                       int part_count)
{
    attention_desc desc = desc_of(shape, type);
    check_desc(context, &desc, part_count);
}

static void test_shapes(void **state)
{
    static const struct shape shapes[] = {
        {1, 2, 1, 1, 8}, {2, 7, 3, 3, 8}, {3, 12, 4, 2, 16}, {2, 19, 6, 1, 24}, {1, 33, 2, 2, 40},
    };
    reset();
    kernel_context context = new_context(8);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        check_case(&context, &shapes[i], DTYPE_BF16, 1);
        check_case(&context, &shapes[i], DTYPE_FP16, 1);
        attention_desc desc = desc_of(&shapes[i], DTYPE_FP16);
        desc.is_bidirectional = true;
        check_desc(&context, &desc, 1);
    }
    fake_cudnn.workspace_bytes = 0; /* no scratch is asked for, none is given */
    check_case(&context, &shapes[1], DTYPE_FP16, 1);
    cudai_cudnn_destroy(&context);
    assert_null(fake_cudnn.last_stream); /* the stream of the runs may be gone before the handle */
    assert_int_equal(fake_cudnn.live_descriptor_count, 0);
    assert_int_equal(fake_cudnn.live_handle_count, 0);
}

/* For up to 64 tokens, dS takes 64 * 128 * 2 bytes for each head. A part that fits the limit holds
 * whole sequences if possible, else key/value heads, in a number that divides their total. */
static void test_parts(void **state)
{
    static const struct shape shape = {4, 9, 6, 6, 8}, grouped = {3, 10, 12, 6, 8};
    uint64_t head_bytes = 64 * 128 * 2, grouped_bytes = 2 * head_bytes + 2 * 2 * 10 * 8 * 2;
    reset();
    kernel_context context = new_context(8);
    struct cudai_cudnn *cudnn = context.cudnn;
    cudnn->workspace_bytes_max = 24 * head_bytes;
    check_case(&context, &shape, DTYPE_FP16, 1);
    cudnn->workspace_bytes_max = 24 * head_bytes - 1; /* 3 sequences fit, 2 divide */
    check_case(&context, &shape, DTYPE_FP16, 2);
    cudnn->workspace_bytes_max = 6 * head_bytes;
    check_case(&context, &shape, DTYPE_FP16, 4);
    cudnn->workspace_bytes_max = 5 * head_bytes; /* 5 heads fit, 3 divide */
    check_case(&context, &shape, DTYPE_FP16, 8);
    cudnn->workspace_bytes_max = head_bytes;
    check_case(&context, &shape, DTYPE_BF16, 24);
    cudnn->workspace_bytes_max = 3 * grouped_bytes;
    check_case(&context, &grouped, DTYPE_FP16, 6);
    cudnn->workspace_bytes_max = 3 * grouped_bytes - 1;
    check_case(&context, &grouped, DTYPE_BF16, 9);
    cudai_cudnn_destroy(&context);
    assert_int_equal(fake_cudnn.live_descriptor_count, 0);
}

/* Where one head's dS is too large, the ordered accumulator: from 9.25, on Hopper alone. */
static void test_ordered(void **state)
{
    static const struct shape shape = {2, 128, 6, 2, 16};
    attention_desc desc = desc_of(&shape, DTYPE_FP16);
    cudai_cudnn_plan *plan;
    reset();
    fake_cudnn.version = 92500;
    kernel_context context = new_context(9);
    context.cudnn->workspace_bytes_max = 3 * 128 * 16 * 8;
    check_case(&context, &shape, DTYPE_FP16, 4);
    check_case(&context, &shape, DTYPE_BF16, 4);
    assert_int_equal(fake_cudnn.planned_engine_idx, 100 + FAKE_ENGINE_CHOSEN);
    context.cudnn->workspace_bytes_max = 2 * 3 * 128 * 16 * 8;
    check_case(&context, &shape, DTYPE_BF16, 2);
    context.cudnn->workspace_bytes_max = 3 * 128 * 16 * 8 - 1;
    assert_int_equal(cudai_cudnn_plan_create(&context, &desc, &plan), ERR_BACKEND);
    context.cudnn->workspace_bytes_max = 3 * 128 * 16 * 8;
    context.cudnn->compute_major = 8;
    assert_int_equal(cudai_cudnn_plan_create(&context, &desc, &plan), ERR_BACKEND);
    context.cudnn->compute_major = 9;
    context.cudnn->version_number = 92400;
    assert_int_equal(cudai_cudnn_plan_create(&context, &desc, &plan), ERR_BACKEND);
    assert_null(plan);
    cudai_cudnn_destroy(&context);
    assert_int_equal(fake_cudnn.live_descriptor_count, 0);
}

/* --- engines ---------------------------------------------------------------------------------- */

static void test_engines(void **state)
{
    static const struct shape shape = {1, 8, 2, 2, 8};
    attention_desc desc = desc_of(&shape, DTYPE_BF16);
    cudai_cudnn_plan *plan;
    reset();
    kernel_context context = new_context(8);
    fake_cudnn.refused_config_count = 2;
    fake_cudnn.unsound_config_count = 1;
    fake_cudnn.config_count = 5;
    assert_ok(cudai_cudnn_plan_create(&context, &desc, &plan));
    assert_int_equal(fake_cudnn.planned_engine_idx, 103);
    cudai_cudnn_plan_destroy(plan);
    fake_cudnn.config_count = 3; /* two that do not finalize, one that is nondeterministic */
    assert_error(cudai_cudnn_plan_create(&context, &desc, &plan), ERR_BACKEND, "not deterministic");
    fake_cudnn.config_count = 2;
    assert_error(cudai_cudnn_plan_create(&context, &desc, &plan), ERR_BACKEND,
                 "this configuration is refused");
    fake_cudnn.config_count = 0;
    assert_error(cudai_cudnn_plan_create(&context, &desc, &plan), ERR_BACKEND, "no engine");
    assert_null(plan);
    fake_cudnn.refused_config_count = fake_cudnn.unsound_config_count = 0;
    fake_cudnn.config_count = 1;
    fake_cudnn.workspace_bytes = context.cudnn->workspace_bytes_max + 1; /* of the forward */
    assert_error(cudai_cudnn_plan_create(&context, &desc, &plan), ERR_BACKEND, "workspace");
    cudai_cudnn_destroy(&context);
    assert_int_equal(fake_cudnn.live_descriptor_count, 0);
}

static void test_run_errors(void **state)
{
    static const struct shape shape = {2, 8, 4, 4, 8};
    attention_desc desc = desc_of(&shape, DTYPE_BF16);
    struct tensors t = new_tensors(&desc);
    cudai_cudnn_plan *plan;
    reset();
    kernel_context context = new_context(8);
    context.cudnn->workspace_bytes_max = 4 * 64 * 128 * 2;
    assert_ok(cudai_cudnn_plan_create(&context, &desc, &plan));
    struct block scratch = new_block(cudai_cudnn_plan_backward_scratch_bytes(plan));
    int live = fake_cudnn.live_descriptor_count;
    fake_cudnn.fail_run = 2; /* the backward's second part */
    assert_error(run_backward(plan, &t, scratch.data), ERR_BACKEND, "this run fails");
    assert_int_equal(fake_cudnn.live_descriptor_count, live);
    assert_int_equal(cudai_cudnn_forward(plan, NULL, t.qkv.data + 2, t.qkv.data, t.qkv.data,
                                         t.output.data, (float *)t.lse.data, scratch.data),
                     -EINVAL);
    assert_int_equal(fake_cudnn.run_count, 2);
    cudai_cudnn_plan_destroy(plan);
    cudai_cudnn_plan_destroy(NULL);
    cudai_cudnn_destroy(&context);
    assert_int_equal(fake_cudnn.live_descriptor_count, 0);
    free_block(&scratch);
    free_tensors(&t);
}

/* --- refusals --------------------------------------------------------------------------------- */

static void expect_refusal(const attention_desc *desc, int compute_major, uint64_t version,
                           const char *reason)
{
    cudai_cudnn_plan *plan;
    reset();
    fake_cudnn.version = version;
    kernel_context context = new_context(compute_major);
    int rc = cudai_cudnn_plan_create(&context, desc, &plan);
    if (reason == NULL) {
        assert_int_equal(rc, 0);
        cudai_cudnn_plan_destroy(plan);
    } else {
        assert_int_equal(rc, ERR_BACKEND);
        assert_null(plan);
        if (strstr(err_text(), reason) == NULL)
            fail_msg("\"%s\" does not say \"%s\"", err_text(), reason);
    }
    cudai_cudnn_destroy(&context);
    assert_int_equal(fake_cudnn.live_descriptor_count, 0);
}

static void test_refused_shapes(void **state)
{
    static const struct shape base = {2, 256, 4, 2, 64};
    attention_desc desc = desc_of(&base, DTYPE_BF16), other = desc;
    expect_refusal(&desc, 9, 91900, NULL);
    expect_refusal(&desc, 8, 91900, NULL);
    expect_refusal(&desc, 10, 91900, "capability 10");
    expect_refusal(&desc, 9, 91000, "known errors");
    expect_refusal(&desc, 9, 91001, "known errors");
    expect_refusal(&desc, 9, 91002, NULL);
    other.tokens = 1;
    expect_refusal(&other, 9, 92500, "one token");
    other.tokens = 100;
    expect_refusal(&other, 8, 91500, "multiple of 128");
    expect_refusal(&other, 8, 91501, NULL);
    expect_refusal(&other, 9, 93000, "multiple of 128");
    other.tokens = 192;
    expect_refusal(&other, 9, 93000, "multiple of 128");
    other = desc;
    other.type = DTYPE_FP32;
    expect_refusal(&other, 9, 91900, "fp32");
    other = desc;
    other.window = 100;
    expect_refusal(&other, 9, 91900, "window");
    other = desc;
    other.soft_cap = 50.0f;
    expect_refusal(&other, 9, 91900, "soft cap");
    other = desc;
    other.head_dim = 60;
    expect_refusal(&other, 9, 91900, "multiples of 8");
    other = desc;
    other.qkv_stride += 4;
    expect_refusal(&other, 9, 91900, "multiples of 8");
    struct shape wide = base;
    wide.head_dim = 256;
    other = desc_of(&wide, DTYPE_BF16);
    expect_refusal(&other, 9, 91900, NULL);
    expect_refusal(&other, 8, 91900, "at most 128");
    other = desc;
    other.batch = 1u << 20;
    expect_refusal(&other, 9, 91900, "2^31");
    other = desc;
    other.batch = 0;
    expect_refusal(&other, 9, 91900, "empty");
    other = desc;
    other.tokens = 1u << 18; /* one head's dS would be 128 GiB */
    other.batch = 1;
    expect_refusal(&other, 9, 91900, "workspace");
}

static void expect_absence(const char *reason)
{
    static const struct shape shape = {1, 8, 2, 2, 8};
    attention_desc desc = desc_of(&shape, DTYPE_BF16);
    cudai_cudnn_plan *plan;
    kernel_context context = new_context(9);
    assert_null(context.cudnn);
    assert_null(cudai_cudnn_version(&context));
    assert_non_null(strstr(context.cudnn_absence, reason));
    assert_error(cudai_cudnn_plan_create(&context, &desc, &plan), ERR_BACKEND, reason);
    assert_null(plan);
    cudai_cudnn_destroy(&context);
}

static void test_absence(void **state)
{
    reset();
    fake_cudnn.is_absent = true;
    expect_absence("hidden by the test");
    reset();
    fake_cudnn.version = 90501;
    expect_absence("cuDNN 9.5.1 is too old");
    reset();
    fake_cudnn.missing = "cudnnBackendExecute";
    expect_absence("has no cudnnBackendExecute");
    reset();
    fake_cudnn.fails_to_create = true;
    expect_absence("the driver is too old");
    reset();
    kernel_context context = new_context(8);
    assert_string_equal(cudai_cudnn_version(&context), "cuDNN 9.19.0");
    assert_null(context.cudnn_absence);
    cudai_cudnn_destroy(&context);
    assert_int_equal(fake_cudnn.live_handle_count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),     cmocka_unit_test(test_parts),
        cmocka_unit_test(test_ordered),    cmocka_unit_test(test_engines),
        cmocka_unit_test(test_run_errors), cmocka_unit_test(test_refused_shapes),
        cmocka_unit_test(test_absence),
    };
    printf("seed %d\n", SEED);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
