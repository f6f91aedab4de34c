/* Which attention a shape gets: a library's only where it agreed with our own kernels.
 *
 * The library is made up here: its plan runs our own kernels, exactly, or by way of fp32 (as far
 * from ours as a correct library is), or with one of the defects that the check is there to find.
 * On the simulated GPU alone, since the real backend brings its own cudai_cudnn_*. */
#include <cuda_runtime_api.h>

#include "base/mem.h"
#include "base/size.h"
#include "simulated_gpu.h"
#include "tests/cuda/gpu_fixture.h"
#include "tests/unit.h"

enum behaviour {
    EXACT,          /* our own kernels' bits */
    OTHER_ROUNDING, /* fp32 throughout, rounded at the end */
    REFUSES,        /* takes no shape, and leaves a pending CUDA error */
    BREAKS,         /* takes every shape and fails when it runs, as before */
    OUT_OF_MEMORY,  /* an error that is no refusal */
    WRONG_SCALE,    /* scores a fifth too large */
    WRONG_LSE,      /* in base 2 */
    WRONG_HEADS,    /* all query heads read key/value head 0 */
    LEAVES_DK,      /* does not write dK of the last row */
    UNSTABLE,       /* a second backward pass differs in its last bits */
};

struct cudai_cudnn_plan {
    kernel_context *context;
    attention_desc desc;
    int backward_count;
};

static enum behaviour behaviour;
static int plans_live, plans_made, forward_count;
static attention_desc last_desc; /* of the plan made last */

/* From so many tokens on its plans go another way. */
enum { LONG_TOKENS = 1 << 23 };

/* ---- the library ---- */

int cudai_cudnn_create(kernel_context *context)
{
    context->cudnn = NULL;
    return 0;
}

void cudai_cudnn_destroy(kernel_context *context)
{
    context->cudnn = NULL;
}

const char *cudai_cudnn_version(const kernel_context *context)
{
    return "a made-up library";
}

/* Leaves a pending CUDA error, like a library that got no memory. */
static void leave_cuda_error(void)
{
    void *memory = NULL;
    assert_int_equal(cudaMalloc(&memory, (size_t)1 << 50), cudaErrorMemoryAllocation);
}

int cudai_cudnn_plan_create(kernel_context *context, const attention_desc *desc,
                            cudai_cudnn_plan **plan)
{
    *plan = NULL;
    if (behaviour == REFUSES) {
        leave_cuda_error();
        return err_set(ERR_BACKEND, "odd shapes are not for us");
    }
    if (behaviour == OUT_OF_MEMORY)
        return err_set(-12, "no memory for a plan");
    *plan = mem_alloc(1, sizeof **plan, "made-up plan");
    assert_non_null(*plan);
    (*plan)->context = context;
    (*plan)->desc = last_desc = *desc;
    if (behaviour == WRONG_SCALE)
        (*plan)->desc.scale *= 1.2f;
    if (behaviour == WRONG_HEADS)
        (*plan)->desc.kv_heads = 1;
    plans_live++;
    plans_made++;
    return 0;
}

void cudai_cudnn_plan_destroy(cudai_cudnn_plan *plan)
{
    plans_live--;
    mem_free(plan);
}

const char *cudai_cudnn_plan_way(const cudai_cudnn_plan *plan)
{
    return plan->desc.tokens < LONG_TOKENS ? "parted" : "ordered";
}

size_t cudai_cudnn_plan_forward_scratch_bytes(const cudai_cudnn_plan *plan)
{
    return 64;
}

size_t cudai_cudnn_plan_backward_scratch_bytes(const cudai_cudnn_plan *plan)
{
    return cudai_own_attention_scratch_bytes(&plan->desc) + 64;
}

/* Device elements of the desc's type, as fp32 in new device memory, and back. */
static float *widened(const attention_desc *desc, const void *source, uint64_t count)
{
    void *image = mem_alloc(count, 2, "made-up plan");
    float *values = mem_alloc(count, sizeof *values, "made-up plan");
    void *target = NULL;
    assert_true(image && values);
    assert_int_equal(cudaMemcpy(image, source, 2 * count, cudaMemcpyDeviceToHost), cudaSuccess);
    gpu_widen(image, desc->type, values, count);
    assert_int_equal(cudaMalloc(&target, 4 * count), cudaSuccess);
    assert_int_equal(cudaMemcpy(target, values, 4 * count, cudaMemcpyHostToDevice), cudaSuccess);
    mem_free(values);
    mem_free(image);
    return target;
}

static void narrow_and_free(const attention_desc *desc, float *source, void *target, uint64_t count)
{
    void *image = mem_alloc(count, 2, "made-up plan");
    float *values = mem_alloc(count, sizeof *values, "made-up plan");
    assert_true(image && values);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    assert_int_equal(cudaMemcpy(values, source, 4 * count, cudaMemcpyDeviceToHost), cudaSuccess);
    gpu_narrow(values, image, desc->type, count);
    assert_int_equal(cudaMemcpy(target, image, 2 * count, cudaMemcpyHostToDevice), cudaSuccess);
    assert_int_equal(cudaFree(source), cudaSuccess);
    mem_free(values);
    mem_free(image);
}

/* Elements from the first of a tensor in the packed rows of q, k and v to its last row's last. */
static uint64_t span(const attention_desc *desc, uint64_t heads)
{
    return (desc->batch * desc->tokens - 1) * desc->qkv_stride + heads * desc->head_dim;
}

static uint64_t out_count(const attention_desc *desc)
{
    return desc->batch * desc->tokens * desc->heads * desc->head_dim;
}

static int wide_forward(cudai_cudnn_plan *plan, void *stream, const void *q, const void *k,
                        const void *v, void *output, float *lse)
{
    attention_desc wide = plan->desc;
    const attention_desc *desc = &plan->desc;
    wide.type = DTYPE_FP32;
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    float *wide_q = widened(desc, q, span(desc, desc->heads));
    float *wide_k = widened(desc, k, span(desc, desc->kv_heads));
    float *wide_v = widened(desc, v, span(desc, desc->kv_heads));
    float *wide_output = widened(desc, output, out_count(desc));
    TRY(cudai_own_attention_check(plan->context, &wide));
    TRY(cudai_own_attention_forward(plan->context, &wide, NULL, NULL, stream, wide_q, wide_k,
                                    wide_v, wide_output, lse));
    narrow_and_free(desc, wide_output, output, out_count(desc));
    assert_int_equal(cudaFree(wide_q), cudaSuccess);
    assert_int_equal(cudaFree(wide_k), cudaSuccess);
    assert_int_equal(cudaFree(wide_v), cudaSuccess);
    return 0;
}

static int wide_backward(cudai_cudnn_plan *plan, void *stream, const void *const inputs[5],
                         const float *lse, void *const grads[3], void *scratch)
{
    attention_desc wide = plan->desc;
    const attention_desc *desc = &plan->desc;
    uint64_t q_span = span(desc, desc->heads), kv_span = span(desc, desc->kv_heads);
    const uint64_t counts[5] = {q_span, kv_span, kv_span, out_count(desc), out_count(desc)};
    float *in[5], *out[3];
    wide.type = DTYPE_FP32;
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    for (int i = 0; i < 5; i++)
        in[i] = widened(desc, inputs[i], counts[i]);
    for (int i = 0; i < 3; i++)
        out[i] = widened(desc, grads[i], counts[i]);
    TRY(cudai_own_attention_backward(plan->context, &wide, NULL, NULL, stream, in[0], in[1], in[2],
                                     in[3], lse, in[4], out[0], out[1], out[2], scratch));
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    for (int i = 0; i < 3; i++) { /* the columns of one tensor alone; the others' are between */
        attention_desc row = *desc;
        uint64_t elems = i == 0 ? desc->heads * desc->head_dim : desc->kv_heads * desc->head_dim;
        for (uint64_t r = 0; r < desc->batch * desc->tokens; r++) {
            float *part = NULL;
            void *copy = NULL;
            assert_int_equal(cudaMalloc(&copy, 4 * elems), cudaSuccess);
            part = copy;
            assert_int_equal(cudaMemcpy(part, out[i] + r * desc->qkv_stride, 4 * elems,
                                        cudaMemcpyDeviceToDevice),
                             cudaSuccess);
            narrow_and_free(&row, part, (char *)grads[i] + 2 * r * desc->qkv_stride, elems);
        }
        assert_int_equal(cudaFree(out[i]), cudaSuccess);
    }
    for (int i = 0; i < 5; i++)
        assert_int_equal(cudaFree(in[i]), cudaSuccess);
    return 0;
}

int cudai_cudnn_forward(cudai_cudnn_plan *plan, void *stream, const void *q, const void *k,
                        const void *v, void *output, float *lse, void *scratch)
{
    forward_count++;
    if (behaviour == BREAKS) {
        leave_cuda_error();
        return err_set(ERR_BACKEND, "broken");
    }
    if (behaviour == OTHER_ROUNDING)
        return wide_forward(plan, stream, q, k, v, output, lse);
    TRY(cudai_own_attention_forward(plan->context, &plan->desc, NULL, NULL, stream, q, k, v, output,
                                    lse));
    if (behaviour != WRONG_LSE)
        return 0;
    uint64_t count = plan->desc.batch * plan->desc.heads * plan->desc.tokens;
    float *values = mem_alloc(count, sizeof *values, "made-up plan");
    assert_non_null(values);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    assert_int_equal(cudaMemcpy(values, lse, 4 * count, cudaMemcpyDeviceToHost), cudaSuccess);
    for (uint64_t i = 0; i < count; i++)
        values[i] *= 1.442695f;
    assert_int_equal(cudaMemcpy(lse, values, 4 * count, cudaMemcpyHostToDevice), cudaSuccess);
    mem_free(values);
    return 0;
}

int cudai_cudnn_backward(cudai_cudnn_plan *plan, void *stream, const void *q, const void *k,
                         const void *v, const void *output, const float *lse,
                         const void *output_grad, void *q_grad, void *k_grad, void *v_grad,
                         void *scratch)
{
    attention_desc desc = plan->desc;
    if (behaviour == OTHER_ROUNDING)
        return wide_backward(plan, stream, (const void *const[]){q, k, v, output, output_grad}, lse,
                             (void *const[]){q_grad, k_grad, v_grad}, scratch);
    if (behaviour == UNSTABLE && plan->backward_count++ > 0)
        desc.scale *= 1.0005f;
    TRY(cudai_own_attention_backward(plan->context, &desc, NULL, NULL, stream, q, k, v, output, lse,
                                     output_grad, q_grad, k_grad, v_grad, scratch));
    if (behaviour == LEAVES_DK) {
        uint64_t row = desc.batch * desc.tokens - 1;
        assert_int_equal(cudaMemsetAsync((char *)k_grad + 2 * row * desc.qkv_stride, 0xff,
                                         2 * desc.head_dim, stream),
                         cudaSuccess);
    }
    return 0;
}

/* ---- the tests ---- */

static const attention_desc shape = {.batch = 2,
                                     .tokens = 70,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .head_dim = 32,
                                     .qkv_stride = 256,
                                     .type = DTYPE_BF16,
                                     .scale = 0.17677669f};

/* Creates under `how` and returns whether the library's plan is used; nothing may be left over. */
static bool is_chosen(const attention_desc *desc, enum behaviour how)
{
    gpu_fixture *gpu = gpu_begin();
    gpu->context.cudnn = (struct cudai_cudnn *)&behaviour; /* any address: it is there */
    behaviour = how;
    plans_live = plans_made = forward_count = 0;
    kernel_attention *attention;
    assert_int_equal(cudai_attention_create(&gpu->context, desc, &attention), 0);
    bool is_used = cudai_attention_forward_scratch_bytes(attention) > 0;
    const char *choice = is_used ? ", attention: a made-up library parted" : ", attention: ours";
    assert_string_equal(gpu->context.description, choice);
    assert_int_equal(plans_live, is_used);
    cudai_attention_destroy(attention);
    assert_int_equal(plans_live, 0);
    gpu_end(gpu);
    return is_used;
}

static void a_plan_that_agrees_is_used(void **state)
{
    attention_desc desc = shape;
    assert_true(is_chosen(&desc, EXACT));
    assert_int_equal(plans_made, 1);
    assert_int_equal(forward_count, 1);
    for (int type = DTYPE_BF16; type <= DTYPE_FP16; type++) {
        desc.type = (enum dtype)type;
        assert_true(is_chosen(&desc, OTHER_ROUNDING));
    }
    desc.qkv_stride = 128; /* q, k and v that are not packed into one row */
    assert_true(is_chosen(&desc, EXACT));
    desc.tokens = 1; /* dQ and dK are nothing but rounding */
    assert_true(is_chosen(&desc, OTHER_ROUNDING));
}

static void a_defect_is_found(void **state)
{
    for (int type = DTYPE_BF16; type <= DTYPE_FP16; type++) {
        attention_desc desc = shape;
        desc.type = (enum dtype)type;
        for (int how = WRONG_SCALE; how <= UNSTABLE; how++) {
            print_message("defect %d\n", how);
            assert_false(is_chosen(&desc, (enum behaviour)how));
            assert_int_equal(plans_made, 1);
        }
    }
    assert_false(is_chosen(&shape, BREAKS));
}

static void a_refusal_is_answered_by_our_kernels(void **state)
{
    assert_false(is_chosen(&shape, REFUSES));
    attention_desc desc = shape;
    desc.type = DTYPE_FP32;
    assert_false(is_chosen(&desc, EXACT));
    assert_int_equal(plans_made, 0);
}

static void other_errors_are_errors(void **state)
{
    gpu_fixture *gpu = gpu_begin();
    gpu->context.cudnn = (struct cudai_cudnn *)&behaviour;
    behaviour = OUT_OF_MEMORY;
    kernel_attention *attention;
    assert_int_equal(cudai_attention_create(&gpu->context, &shape, &attention), -12);
    assert_null(attention);
    gpu_end(gpu);
}

/* Shapes whose check would take more than 1 GiB are checked in part, at their length as long as
 * there are heads to leave out, and only where the part goes the shape's way. */
static void large_shapes_are_checked_in_part(void **state)
{
    attention_desc desc = shape;
    desc.batch = 1 << 20;
    assert_true(is_chosen(&desc, EXACT));
    assert_int_equal(plans_made, 2);
    assert_int_equal(last_desc.batch, 1);
    assert_int_equal(last_desc.tokens, desc.tokens);
    assert_int_equal(last_desc.heads, desc.heads);
    assert_int_equal(last_desc.qkv_stride, desc.qkv_stride);
    desc.batch = 1;
    desc.tokens = 130;
    desc.qkv_stride = 4 << 20;
    assert_true(is_chosen(&desc, EXACT));
    assert_int_equal(plans_made, 2);
    assert_int_equal(last_desc.tokens, desc.tokens);
    assert_int_equal(last_desc.kv_heads, 1);
    assert_int_equal(last_desc.heads, 2);
    assert_int_equal(last_desc.qkv_stride, 4 * desc.head_dim);
    assert_false(is_chosen(&desc, WRONG_SCALE));
    desc.qkv_stride = 256;
    desc.tokens = LONG_TOKENS;
    assert_false(is_chosen(&desc, EXACT));
    assert_int_equal(plans_made, 2);
    assert_true(last_desc.tokens < LONG_TOKENS);
    assert_int_equal(forward_count, 0);
}

static void without_memory_ours_are_used(void **state)
{
    simulated_gpu_set_total_bytes(64 * KIB);
    assert_false(is_chosen(&shape, EXACT));
    assert_int_equal(plans_made, 1);
    assert_int_equal(forward_count, 0);
    simulated_gpu_set_total_bytes(2048 * MIB);
    assert_true(is_chosen(&shape, EXACT));
}

/* The description of a context names each choice once, in the order in which they were first
 * made. */
static void choices_are_described(void **state)
{
    gpu_fixture *gpu = gpu_begin();
    gpu->context.cudnn = (struct cudai_cudnn *)&behaviour;
    snprintf(gpu->context.description, sizeof gpu->context.description, "cuda: simulated");
    static const enum behaviour order[] = {EXACT, REFUSES, EXACT, WRONG_LSE, OTHER_ROUNDING};
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        kernel_attention *attention;
        behaviour = order[i];
        assert_int_equal(cudai_attention_create(&gpu->context, &shape, &attention), 0);
        cudai_attention_destroy(attention);
    }
    assert_string_equal(gpu->context.description,
                        "cuda: simulated, attention: a made-up library parted, attention: ours");
    gpu_end(gpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_that_agrees_is_used),
        cmocka_unit_test(a_defect_is_found),
        cmocka_unit_test(a_refusal_is_answered_by_our_kernels),
        cmocka_unit_test(other_errors_are_errors),
        cmocka_unit_test(large_shapes_are_checked_in_part),
        cmocka_unit_test(without_memory_ours_are_used),
        cmocka_unit_test(choices_are_described),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
