/* cuDNN's attention on a GPU. Small and odd shapes agree with the reference, every run of a shape
 * that fills the GPU gives the same bits, parts agree with the whole, and attention.c, which checks
 * cuDNN against our own kernels, accepts it. On the simulated GPU, cuDNN must be absent
 * and the backend must say why. Exits with 77 if there is no GPU or no suitable cuDNN. */
#include <cuda_runtime_api.h>
#include <math.h>

#include "base/mem.h"
#include "base/size.h"
#include "tests/cuda/gpu_fixture.h"
#include "tests/unit.h"

struct shape {
    uint64_t batch, tokens, heads, kv_heads, head_dim;
    enum dtype type;
};

/* q, k and v are rows of one tensor, and so are their gradients. Host values are fp32, rounded to
 * the type. */
struct tensors {
    attention_desc desc;
    uint64_t qkv_count, output_count, lse_count;
    float *qkv, *output_grad;
};

static float *new_values(uint64_t count, uint64_t seed)
{
    float *values = mem_alloc(count, sizeof *values, "test values");
    assert_non_null(values);
    if (seed != 0)
        gpu_random_fill(values, count, seed, -2.0f, 2.0f);
    return values;
}

static struct tensors new_tensors(const gpu_fixture *gpu, const struct shape *shape)
{
    uint64_t stride = (shape->heads + 2 * shape->kv_heads) * shape->head_dim + 8;
    uint64_t rows = shape->batch * shape->tokens;
    struct tensors t = {.desc = {.batch = shape->batch,
                                 .tokens = shape->tokens,
                                 .heads = shape->heads,
                                 .kv_heads = shape->kv_heads,
                                 .head_dim = shape->head_dim,
                                 .qkv_stride = stride,
                                 .type = shape->type,
                                 .scale = 1.0f / sqrtf((float)shape->head_dim)},
                        .qkv_count = rows * stride,
                        .output_count = rows * shape->heads * shape->head_dim,
                        .lse_count = rows * shape->heads};
    t.qkv = new_values(t.qkv_count, gpu->seed + 1);
    t.output_grad = new_values(t.output_count, gpu->seed + 2);
    gpu_round(t.qkv, shape->type, t.qkv_count);
    gpu_round(t.output_grad, shape->type, t.output_count);
    return t;
}

static void free_tensors(struct tensors *t)
{
    mem_free(t->qkv);
    mem_free(t->output_grad);
}

/* The results of one run, on the host. */
struct results {
    float *output, *lse, *grads;
};

static void free_results(struct results *results)
{
    mem_free(results->output);
    mem_free(results->lse);
    mem_free(results->grads);
}

static struct results new_results(const struct tensors *t)
{
    return (struct results){new_values(t->output_count, 0), new_values(t->lse_count, 0),
                            new_values(t->qkv_count, 0)};
}

/* Memory of the GPU for one run. */
struct device_tensors {
    char *qkv, *grads, *output, *output_grad;
    float *lse;
};

static struct device_tensors upload(gpu_fixture *gpu, const struct tensors *t)
{
    return (struct device_tensors){
        .qkv = gpu_alloc_values(gpu, t->qkv, t->desc.type, t->qkv_count),
        .grads = gpu_alloc(gpu, t->qkv_count * 2),
        .output = gpu_alloc(gpu, t->output_count * 2),
        .output_grad = gpu_alloc_values(gpu, t->output_grad, t->desc.type, t->output_count),
        .lse = gpu_alloc(gpu, t->lse_count * 4),
    };
}

static void free_device(gpu_fixture *gpu, struct device_tensors *d)
{
    gpu_free(gpu, d->qkv);
    gpu_free(gpu, d->grads);
    gpu_free(gpu, d->output);
    gpu_free(gpu, d->output_grad);
    gpu_free(gpu, d->lse);
}

/* Forward and backward of `desc` at key/value head `head` of the memory, with scratch of NaN. */
static void run(gpu_fixture *gpu, const struct tensors *t, const attention_desc *desc,
                const struct device_tensors *d, uint64_t head)
{
    uint64_t group = t->desc.heads / t->desc.kv_heads, dim = t->desc.head_dim;
    uint64_t q = head * group * dim * 2, k = (t->desc.heads + head) * dim * 2;
    uint64_t v = k + t->desc.kv_heads * dim * 2;
    cudai_cudnn_plan *plan;
    assert_ok(cudai_cudnn_plan_create(&gpu->context, desc, &plan));
    void *scratch = gpu_alloc(gpu, cudai_cudnn_plan_forward_scratch_bytes(plan));
    void *back_scratch = gpu_alloc(gpu, cudai_cudnn_plan_backward_scratch_bytes(plan));
    if (cudai_cudnn_forward(plan, gpu->stream, d->qkv + q, d->qkv + k, d->qkv + v, d->output,
                            d->lse, scratch) < 0 ||
        cudai_cudnn_backward(plan, gpu->stream, d->qkv + q, d->qkv + k, d->qkv + v, d->output,
                             d->lse, d->output_grad, d->grads + q, d->grads + k, d->grads + v,
                             back_scratch) < 0)
        fail_msg("%s", err_text());
    gpu_free(gpu, scratch);
    gpu_free(gpu, back_scratch);
    cudai_cudnn_plan_destroy(plan);
}

static struct results run_cudnn(gpu_fixture *gpu, const struct tensors *t)
{
    struct device_tensors d = upload(gpu, t);
    struct results results = new_results(t);
    run(gpu, t, &t->desc, &d, 0);
    gpu_download_values(gpu, results.output, d.output, t->desc.type, t->output_count);
    gpu_download_values(gpu, results.grads, d.grads, t->desc.type, t->qkv_count);
    gpu_download(gpu, results.lse, d.lse, t->lse_count * sizeof(float));
    free_device(gpu, &d);
    return results;
}

/* The reference in fp32 tensors with sums in fp64, of the same rounded inputs. */
static struct results run_reference(const struct tensors *t)
{
    const kernel_ops *ops = &kernels_reference;
    attention_desc desc = t->desc;
    struct results results = new_results(t);
    uint64_t k = desc.heads * desc.head_dim, v = k + desc.kv_heads * desc.head_dim;
    kernel_attention *attention;
    desc.type = DTYPE_FP32;
    memset(results.grads, 0xff, t->qkv_count * sizeof(float)); /* as the GPU's padding */
    assert_int_equal(ops->attention_create(NULL, &desc, &attention), 0);
    void *scratch = mem_alloc(ops->attention_forward_scratch_bytes(attention) +
                                  ops->attention_backward_scratch_bytes(attention),
                              1, "test scratch");
    assert_non_null(scratch);
    assert_int_equal(ops->attention_forward(attention, NULL, t->qkv, t->qkv + k, t->qkv + v,
                                            results.output, results.lse, scratch),
                     0);
    assert_int_equal(ops->attention_backward(attention, NULL, t->qkv, t->qkv + k, t->qkv + v,
                                             results.output, results.lse, t->output_grad,
                                             results.grads, results.grads + k, results.grads + v,
                                             scratch),
                     0);
    ops->attention_destroy(attention);
    mem_free(scratch);
    return results;
}

/* Skips the program unless cuDNN is there; on the simulated GPU checks that it is not. */
static gpu_fixture *begin(void)
{
    gpu_fixture *gpu = gpu_begin();
    assert_ok(cudai_cudnn_create(&gpu->context));
    if (gpu->is_simulated) {
        attention_desc desc = {.batch = 1,
                               .tokens = 1,
                               .heads = 1,
                               .kv_heads = 1,
                               .head_dim = 8,
                               .qkv_stride = 24,
                               .type = DTYPE_BF16,
                               .scale = 1.0f};
        cudai_cudnn_plan *plan;
        assert_null(gpu->context.cudnn);
        assert_null(cudai_cudnn_version(&gpu->context));
        assert_non_null(strstr(gpu->context.cudnn_absence, "simulated"));
        assert_int_equal(cudai_cudnn_plan_create(&gpu->context, &desc, &plan), ERR_BACKEND);
        assert_null(plan);
        cudai_cudnn_destroy(&gpu->context);
        gpu_end(gpu);
        return NULL;
    }
    if (gpu->context.cudnn == NULL || gpu->context.compute_major < 8 ||
        gpu->context.compute_major > 9) {
        printf("skipped: %s\n", gpu->context.cudnn == NULL
                                    ? gpu->context.cudnn_absence
                                    : "cuDNN's attention is used on compute capability 8 and 9");
        exit(77);
    }
    printf("%s\n", cudai_cudnn_version(&gpu->context));
    return gpu;
}

static void end(gpu_fixture *gpu)
{
    cudai_cudnn_destroy(&gpu->context);
    gpu_end(gpu);
}

/* P, dS and the parts of dK and dV of each query head are rounded to 16 bits on the way. */
static void test_reference(void **state)
{
    static const struct shape shapes[] = {
        {2, 128, 3, 3, 64, DTYPE_BF16}, {1, 256, 4, 1, 128, DTYPE_FP16},
        {3, 384, 6, 2, 80, DTYPE_BF16}, {2, 128, 8, 8, 128, DTYPE_FP16},
        {2, 128, 25, 5, 8, DTYPE_FP16},
    };
    gpu_fixture *gpu = begin();
    if (gpu == NULL)
        return;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct tensors t = new_tensors(gpu, &shapes[i]);
        struct results got = run_cudnn(gpu, &t), want = run_reference(&t);
        double tolerance = shapes[i].type == DTYPE_BF16 ? 0.03 : 0.004;
        gpu_expect_close("output", got.output, want.output, t.output_count, tolerance, tolerance);
        gpu_expect_close("lse", got.lse, want.lse, t.lse_count, 1e-4, 1e-4);
        gpu_expect_close("gradients", got.grads, want.grads, t.qkv_count, tolerance, tolerance);
        free_results(&got);
        free_results(&want);
        free_tensors(&t);
    }
    end(gpu);
}

/* Odd lengths: refused by old versions, right in the others. */
static void test_odd(void **state)
{
    static const struct shape shapes[] = {{2, 77, 6, 2, 64, DTYPE_BF16},
                                          {1, 300, 5, 5, 40, DTYPE_FP16}};
    gpu_fixture *gpu = begin();
    if (gpu == NULL)
        return;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct tensors t = new_tensors(gpu, &shapes[i]);
        double tolerance = shapes[i].type == DTYPE_BF16 ? 0.03 : 0.004;
        cudai_cudnn_plan *plan;
        if (cudai_cudnn_plan_create(&gpu->context, &t.desc, &plan) < 0) {
            printf("%s\n", err_text());
        } else {
            cudai_cudnn_plan_destroy(plan);
            struct results got = run_cudnn(gpu, &t), want = run_reference(&t);
            gpu_expect_close("output", got.output, want.output, t.output_count, tolerance,
                             tolerance);
            gpu_expect_close("gradients", got.grads, want.grads, t.qkv_count, tolerance, tolerance);
            free_results(&got);
            free_results(&want);
        }
        free_tensors(&t);
    }
    end(gpu);
}

/* Many blocks, several parts. Every run gives the same bits. The last group of heads alone, which
 * is one part at other addresses, agrees with the whole. */
static void test_bits(void **state)
{
    static const struct shape shape = {2, 4096, 32, 8, 128, DTYPE_BF16};
    const uint64_t last = shape.kv_heads - 1, group = shape.heads / shape.kv_heads;
    gpu_fixture *gpu = begin();
    if (gpu == NULL)
        return;
    struct tensors t = new_tensors(gpu, &shape);
    struct results first = run_cudnn(gpu, &t);
    for (int i = 0; i < 4; i++) {
        struct results again = run_cudnn(gpu, &t);
        gpu_expect_same("output", again.output, first.output, t.output_count, 4);
        gpu_expect_same("lse", again.lse, first.lse, t.lse_count, 4);
        gpu_expect_same("gradients", again.grads, first.grads, t.qkv_count, 4);
        free_results(&again);
    }

    /* the group's outputs and their gradients are contiguous where it is alone */
    struct tensors alone = t;
    uint64_t rows = shape.batch * shape.tokens, width = group * shape.head_dim;
    uint64_t stride = t.desc.qkv_stride, row_width = shape.heads * shape.head_dim;
    alone.output_count = rows * width;
    alone.lse_count = rows * group;
    alone.output_grad = new_values(alone.output_count, 0);
    for (uint64_t row = 0; row < rows; row++)
        memcpy(alone.output_grad + row * width, t.output_grad + row * row_width + last * width,
               width * sizeof(float));
    attention_desc desc = t.desc;
    desc.heads = group;
    desc.kv_heads = 1;
    struct device_tensors d = upload(gpu, &alone);
    struct results part = new_results(&alone);
    run(gpu, &alone, &desc, &d, last);
    gpu_download_values(gpu, part.grads, d.grads, desc.type, alone.qkv_count);
    const uint64_t begins[] = {last * width, row_width + last * shape.head_dim,
                               row_width + (shape.kv_heads + last) * shape.head_dim};
    for (int i = 0; i < 3; i++)
        for (uint64_t row = 0; row < rows; row += 61)
            gpu_expect_close("a group alone", part.grads + row * stride + begins[i],
                             first.grads + row * stride + begins[i],
                             i == 0 ? width : shape.head_dim, 0.01, 0.01);
    free_device(gpu, &d);
    free_results(&part);
    mem_free(alone.output_grad);
    free_results(&first);
    free_tensors(&t);
    end(gpu);
}

/* Free bytes of the GPU, when nothing runs. */
static uint64_t free_bytes(gpu_fixture *gpu)
{
    size_t now, total;
    gpu_sync(gpu);
    assert_int_equal(cudaMemGetInfo(&now, &total), cudaSuccess);
    return now;
}

/* Correct kernels are not refused. For every shape for which cuDNN makes a plan, the check of
 * attention.c against our own kernels passes, also by way of a smaller shape; the description names
 * cuDNN's version and plan, and the memory is freed. */
static void test_chosen(void **state)
{
    static const struct shape shapes[] = {
        {2, 4096, 32, 8, 128, DTYPE_BF16},  {4, 2048, 25, 25, 64, DTYPE_FP16},
        {3, 1000, 6, 2, 80, DTYPE_FP16},    {1, 256, 4, 4, 256, DTYPE_BF16},
        {16, 4096, 64, 8, 128, DTYPE_BF16}, {1, 32768, 32, 32, 128, DTYPE_BF16},
    };
    gpu_fixture *gpu = begin();
    if (gpu == NULL)
        return;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const struct shape *s = &shapes[i];
        attention_desc desc = {.batch = s->batch,
                               .tokens = s->tokens,
                               .heads = s->heads,
                               .kv_heads = s->kv_heads,
                               .head_dim = s->head_dim,
                               .qkv_stride = (s->heads + 2 * s->kv_heads) * s->head_dim,
                               .type = s->type,
                               .scale = 1.0f / sqrtf((float)s->head_dim)};
        cudai_cudnn_plan *plan;
        char expected[96] = ", attention: ours";
        int rc = cudai_cudnn_plan_create(&gpu->context, &desc, &plan);
        if (rc < 0) {
            assert_int_equal(rc, ERR_BACKEND);
            printf("%s\n", err_text());
        } else {
            snprintf(expected, sizeof expected, ", attention: %s %s",
                     cudai_cudnn_version(&gpu->context), cudai_cudnn_plan_way(plan));
            cudai_cudnn_plan_destroy(plan);
        }
        uint64_t before = 0;
        for (int round = 0; round < (i == 0 ? 2 : 1); round++) { /* the first loads kernels */
            kernel_attention *attention;
            before = free_bytes(gpu);
            gpu->context.description[0] = '\0';
            assert_ok(cudai_attention_create(&gpu->context, &desc, &attention));
            assert_string_equal(gpu->context.description, expected);
            cudai_attention_destroy(attention);
        }
        assert_true(i > 0 || free_bytes(gpu) + 64 * MIB >= before);
    }
    end(gpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_odd),
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_chosen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
