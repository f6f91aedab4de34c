/* The attention ops of the table: our own fused kernels (attention_own.c), or cuDNN's.
 *
 * cuDNN is faster for the shapes that it takes, and its results differ from ours by rounding. It is
 * used only after a check. When an attention is created, both run forward and backward on random
 * operands of this shape, and the results are compared on the GPU. The library's backward pass runs
 * twice and must give the same bits. So a defect of a library cannot change a loss silently: if
 * cuDNN refuses or disagrees, our own kernels are used and the log says why. In both cases the log
 * has one line with the choice and its reason. The choice depends on the GPU, the library and the
 * shape. It decides bits, so the context's description, which is part of a run's fingerprint, names
 * every choice that was made.
 *
 * The check needs GPU memory in addition to the caller's, during creation only: at most
 * CHECK_BYTES_MAX and the library's scratch. If the shape itself needs more, a smaller plan that
 * works in the same way is checked instead: one sequence, then fewer heads, then fewer tokens. If
 * even that memory is not free, our own kernels are used, with a warning. A later run with more
 * memory may choose cuDNN. It then refuses to continue from this run's files instead of continuing
 * with different bits.
 *
 * fp32 operands, and calls with documents or dropout, always use our own kernels. The forward and
 * backward calls only enqueue. */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "kernels/cuda/attention/attention_launch.h"
#include "kernels/cuda/cuda_internal.h"

#define CHECK_BYTES_MAX GIB

struct kernel_attention {
    kernel_context *context;
    attention_desc desc;
    const int32_t *begins;   /* see attention_set_documents */
    attention_dropout masks; /* counter NULL: nothing is dropped */
    cudai_cudnn_plan *plan;  /* NULL: our own kernels */
};

enum { REASON_BYTES = 512 };

/* ---- the memory of a check ---- */

/* Operands and two sets of results on the GPU: [0] ours, [1] the library's. */
struct trial {
    attention_desc desc;
    cudai_cudnn_plan *plan;
    cudaStream_t stream;
    char *base;
    uint64_t qkv_bytes, out_bytes, lse_bytes;
    const char *q, *k, *v;
    char *qkv, *output_grad, *output[2], *grads[2];
    float *lse[2];
    void *scratch;
    cudai_difference *parts;
};

/* Computes the distances of k and v from q in bytes. They share q's rows if these have room;
 * otherwise they follow one after the other. */
static void kv_offsets(const attention_desc *desc, uint64_t *k, uint64_t *v, uint64_t *bytes)
{
    uint64_t elem = dtype_bytes(desc->type), dim = desc->head_dim;
    uint64_t tensor = desc->batch * desc->tokens * desc->qkv_stride * elem;
    bool is_packed = desc->qkv_stride >= (desc->heads + 2 * desc->kv_heads) * dim;
    *k = is_packed ? desc->heads * dim * elem : size_round_up(tensor, 256);
    *v = is_packed ? *k + desc->kv_heads * dim * elem : 2 * *k;
    *bytes = is_packed ? tensor : 3 * *k;
}

/* Returns the next part of the trial's memory. With a NULL base it only counts bytes. */
static void *take(char *base, uint64_t *used, uint64_t bytes)
{
    char *part = base ? base + *used : NULL;
    *used += size_round_up(bytes, 256);
    return part;
}

/* Places the trial's tensors from `base` on and returns their bytes. */
static uint64_t trial_layout(struct trial *trial, char *base)
{
    const attention_desc *desc = &trial->desc;
    uint64_t k, v, used = 0, scratch = cudai_own_attention_scratch_bytes(desc);
    kv_offsets(desc, &k, &v, &trial->qkv_bytes);
    trial->out_bytes =
        desc->batch * desc->tokens * desc->heads * desc->head_dim * dtype_bytes(desc->type);
    trial->lse_bytes = desc->batch * desc->heads * desc->tokens * sizeof(float);
    if (trial->plan) {
        scratch = size_max(scratch, cudai_cudnn_plan_forward_scratch_bytes(trial->plan));
        scratch = size_max(scratch, cudai_cudnn_plan_backward_scratch_bytes(trial->plan));
    }
    trial->base = base;
    trial->qkv = take(base, &used, trial->qkv_bytes);
    trial->q = trial->qkv;
    trial->k = base ? trial->qkv + k : NULL;
    trial->v = base ? trial->qkv + v : NULL;
    trial->output_grad = take(base, &used, trial->out_bytes);
    for (int side = 0; side < 2; side++) {
        trial->output[side] = take(base, &used, trial->out_bytes);
        trial->grads[side] = take(base, &used, trial->qkv_bytes);
        trial->lse[side] = take(base, &used, trial->lse_bytes);
    }
    trial->scratch = take(base, &used, scratch);
    trial->parts = take(base, &used, CUDAI_COMPARE_BLOCKS * sizeof *trial->parts);
    return used;
}

/* ---- running and comparing ---- */

/* Returns the standard deviation of the operands. Scores then have one of 3, so that a few keys
 * dominate each row, and rows far from the beginning do not average everything away. */
static float amplitude(const attention_desc *desc)
{
    float value = sqrtf(3.0f / (desc->scale * sqrtf((float)desc->head_dim)));
    return fminf(fmaxf(value, 0.0625f), 16.0f);
}

/* Fills the operands with random numbers and the results with NaN, so that unwritten results are
 * found. */
static int trial_fill(const struct trial *trial)
{
    const attention_desc *desc = &trial->desc;
    uint64_t elem = dtype_bytes(desc->type);
    TRY(cudai_check(cudai_attention_fill_launch(desc->type, trial->qkv, trial->qkv_bytes / elem,
                                                amplitude(desc), 1, trial->stream),
                    "filling the attention's check"));
    TRY(cudai_check(cudai_attention_fill_launch(desc->type, trial->output_grad,
                                                trial->out_bytes / elem, 1.0f, 2, trial->stream),
                    "filling the attention's check"));
    for (int side = 0; side < 2; side++) {
        TRY(cudai_check(cudaMemsetAsync(trial->output[side], 0xff, trial->out_bytes, trial->stream),
                        "filling the attention's check"));
        TRY(cudai_check(cudaMemsetAsync(trial->grads[side], 0xff, trial->qkv_bytes, trial->stream),
                        "filling the attention's check"));
        TRY(cudai_check(cudaMemsetAsync(trial->lse[side], 0xff, trial->lse_bytes, trial->stream),
                        "filling the attention's check"));
    }
    return 0;
}

static int run_ours(const kernel_context *context, const struct trial *trial)
{
    uint64_t k = (uint64_t)(trial->k - trial->q), v = (uint64_t)(trial->v - trial->q);
    char *grads = trial->grads[0];
    TRY(cudai_own_attention_forward(context, &trial->desc, NULL, NULL, trial->stream, trial->q,
                                    trial->k, trial->v, trial->output[0], trial->lse[0]));
    return cudai_own_attention_backward(context, &trial->desc, NULL, NULL, trial->stream, trial->q,
                                        trial->k, trial->v, trial->output[0], trial->lse[0],
                                        trial->output_grad, grads, grads + k, grads + v,
                                        trial->scratch);
}

static int run_theirs_backward(const struct trial *trial, char *grads)
{
    uint64_t k = (uint64_t)(trial->k - trial->q), v = (uint64_t)(trial->v - trial->q);
    return cudai_cudnn_backward(trial->plan, trial->stream, trial->q, trial->k, trial->v,
                                trial->output[1], trial->lse[1], trial->output_grad, grads,
                                grads + k, grads + v, trial->scratch);
}

/* Compares tensors of `rows` rows on the GPU and adds up the parts here. */
static int measure(const struct trial *trial, enum dtype type, const void *ours, const void *theirs,
                   uint64_t rows, uint64_t columns, uint64_t stride, cudai_difference *total)
{
    cudai_difference parts[CUDAI_COMPARE_BLOCKS];
    TRY(cudai_check(cudai_attention_compare_launch(type, ours, theirs, rows, columns, stride,
                                                   trial->parts, trial->stream),
                    "comparing attentions"));
    TRY(cudai_check(
        cudaMemcpyAsync(parts, trial->parts, sizeof parts, cudaMemcpyDeviceToHost, trial->stream),
        "comparing attentions"));
    TRY(cudai_check(cudaStreamSynchronize(trial->stream), "comparing attentions"));
    *total = (cudai_difference){0};
    for (int i = 0; i < CUDAI_COMPARE_BLOCKS; i++) {
        total->error_squares += parts[i].error_squares;
        total->value_squares += parts[i].value_squares;
        total->error_max = fmax(total->error_max, parts[i].error_max);
        total->value_max = fmax(total->value_max, parts[i].value_max);
    }
    return 0;
}

/* Both sides round P, dS and the results to the 16-bit type. We round before the scale and cuDNN
 * after it, at different running maxima, and cuDNN also rounds each query head's part of dK and dV.
 * So the sides differ by a few roundings of numbers near 1.
 *
 * The limits come from a computation on a CPU for up to 8192 tokens, heads of 64 and 128, and
 * groups of up to 8. There the root mean square of the differences was at most 2 steps (relative to
 * that of the values), and the largest at most 3.3 steps (relative to the largest value). With a
 * scale that is wrong by 2% both were 9 steps or more. The lower bound of 1 is for gradients that
 * are pure rounding, as for one token. */
static bool is_close(const cudai_difference *difference, enum dtype type, double count)
{
    double step = type == DTYPE_BF16 ? 0x1p-9 : 0x1p-12;
    double value = fmax(sqrt(difference->value_squares / count), 1.0);
    return sqrt(difference->error_squares / count) <= 8 * step * value &&
           difference->error_max <= 32 * step * fmax(difference->value_max, 1.0);
}

/* lse is fp32 on both sides: a sum of up to T terms with approximate exponentials. */
static bool is_lse_close(const cudai_difference *difference)
{
    return difference->error_max <= 1e-4 * (1.0 + difference->value_max);
}

/* Returns 1 if the sides agree, 0 if not, with the place in `reason`; negative if CUDA failed. */
static int compare_sides(const struct trial *trial, char reason[REASON_BYTES])
{
    const attention_desc *desc = &trial->desc;
    uint64_t rows = desc->batch * desc->tokens, dim = desc->head_dim;
    uint64_t k = (uint64_t)(trial->k - trial->q), v = (uint64_t)(trial->v - trial->q);
    const struct {
        const char *name, *ours, *theirs;
        uint64_t columns, stride;
    } tensors[] = {
        {"output", trial->output[0], trial->output[1], desc->heads * dim, desc->heads * dim},
        {"dQ", trial->grads[0], trial->grads[1], desc->heads * dim, desc->qkv_stride},
        {"dK", trial->grads[0] + k, trial->grads[1] + k, desc->kv_heads * dim, desc->qkv_stride},
        {"dV", trial->grads[0] + v, trial->grads[1] + v, desc->kv_heads * dim, desc->qkv_stride},
    };
    cudai_difference found;
    TRY(measure(trial, DTYPE_FP32, trial->lse[0], trial->lse[1], rows, desc->heads, desc->heads,
                &found));
    if (!is_lse_close(&found)) {
        snprintf(reason, REASON_BYTES, "its lse differs from ours by %.3g of %.3g", found.error_max,
                 found.value_max);
        return 0;
    }
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        TRY(measure(trial, desc->type, tensors[i].ours, tensors[i].theirs, rows, tensors[i].columns,
                    tensors[i].stride, &found));
        if (!is_close(&found, desc->type, (double)rows * (double)tensors[i].columns)) {
            snprintf(reason, REASON_BYTES,
                     "its %s differs from ours by up to %.3g where values reach %.3g",
                     tensors[i].name, found.error_max, found.value_max);
            return 0;
        }
    }
    return 1;
}

/* Returns 1 if a second backward pass of the library gives the same bits as the first. Overwrites
 * our gradients. */
static int compare_repeated(const struct trial *trial, char reason[REASON_BYTES])
{
    const attention_desc *desc = &trial->desc;
    uint64_t k = (uint64_t)(trial->k - trial->q), v = (uint64_t)(trial->v - trial->q);
    uint64_t offsets[3] = {0, k, v};
    uint64_t heads[3] = {desc->heads, desc->kv_heads, desc->kv_heads};
    TRY(run_theirs_backward(trial, trial->grads[0]));
    for (int i = 0; i < 3; i++) {
        cudai_difference found;
        TRY(measure(trial, desc->type, trial->grads[0] + offsets[i], trial->grads[1] + offsets[i],
                    desc->batch * desc->tokens, heads[i] * desc->head_dim, desc->qkv_stride,
                    &found));
        if (found.error_max != 0.0) {
            snprintf(reason, REASON_BYTES, "its backward pass is not deterministic");
            return 0;
        }
    }
    return 1;
}

/* Returns 1 if the plan agrees with our kernels, 0 if not, with the reason; negative if our own
 * side failed. A failure of the library is such a reason; if it broke the GPU, our next call
 * fails. */
static int trial_run(const kernel_context *context, const struct trial *trial,
                     char reason[REASON_BYTES])
{
    TRY(trial_fill(trial));
    TRY(run_ours(context, trial));
    int rc = cudai_cudnn_forward(trial->plan, trial->stream, trial->q, trial->k, trial->v,
                                 trial->output[1], trial->lse[1], trial->scratch);
    if (rc >= 0)
        rc = run_theirs_backward(trial, trial->grads[1]);
    if (rc < 0) {
        /* clears the library's error, so that none of our calls reports it */
        (void)cudaGetLastError();
        snprintf(reason, REASON_BYTES, "it failed: %s", err_text());
        TRY(cudai_check(cudaStreamSynchronize(trial->stream), "checking cuDNN's attention"));
        return 0;
    }
    rc = compare_sides(trial, reason);
    return rc == 1 ? compare_repeated(trial, reason) : rc;
}

/* ---- the choice ---- */

static bool is_too_large(struct trial *trial)
{
    return trial_layout(trial, NULL) > CHECK_BYTES_MAX;
}

/* Returns a shape whose check fits: the desc itself, else one sequence of it, else with fewer heads
 * (in rows of their own), and only then with fewer tokens. The number of tokens comes last because
 * it decides most about how a library computes. */
static attention_desc trial_desc(const attention_desc *desc)
{
    struct trial trial = {.desc = *desc};
    attention_desc *tried = &trial.desc;
    uint64_t group = desc->heads / desc->kv_heads;
    if (is_too_large(&trial))
        tried->batch = 1;
    while (tried->kv_heads > 1 && is_too_large(&trial)) {
        tried->kv_heads = size_div_up(tried->kv_heads, 2);
        tried->heads = group * tried->kv_heads;
        tried->qkv_stride = (tried->heads + 2 * tried->kv_heads) * desc->head_dim;
    }
    while (tried->tokens > 1 && is_too_large(&trial))
        tried->tokens = size_div_up(tried->tokens, 2);
    return *tried;
}

/* Runs the check of `plan` in temporary memory. Returns the same values as trial_run. */
static int plan_check(kernel_context *context, const attention_desc *desc, cudai_cudnn_plan *plan,
                      char reason[REASON_BYTES])
{
    /* Uses the default stream, since a library's handle remembers its last stream, which must stay
     * valid. */
    struct trial trial = {.desc = *desc, .plan = plan, .stream = NULL};
    uint64_t bytes = trial_layout(&trial, NULL);
    void *base = NULL;
    if (cudaMalloc(&base, bytes) != cudaSuccess) {
        (void)cudaGetLastError(); /* clears the error of the allocation */
        snprintf(
            reason, REASON_BYTES,
            "its check needs %llu MiB of GPU memory, which are not free; with more free memory "
            "a run may choose cuDNN, whose bits differ, and refuse to continue from this one",
            (unsigned long long)size_div_up(bytes, MIB));
        return 0;
    }
    trial_layout(&trial, base);
    int rc = trial_run(context, &trial, reason);
    err_record first;
    err_save(&first, rc);
    int ended = cudai_check(cudaStreamSynchronize(trial.stream), "the attention's check");
    if (rc >= 0 && ended < 0)
        rc = ended;
    else if (rc < 0)
        (void)err_restore(&first);
    (void)cudaFree(base);
    return rc;
}

/* Makes a plan. If the library refuses the shape, *plan is NULL and `reason` says why. */
static int plan_ask(kernel_context *context, const attention_desc *desc, cudai_cudnn_plan **plan,
                    const char *what, char reason[REASON_BYTES])
{
    int rc = cudai_cudnn_plan_create(context, desc, plan);
    if (rc != ERR_BACKEND)
        return rc;
    (void)cudaGetLastError(); /* clears the library's error, so that none of our calls reports it */
    snprintf(reason, REASON_BYTES, "%s: %s", what, err_text());
    return 0;
}

/* As plan_check, but checks a smaller plan if the shape itself is too large. */
static int plan_agrees(kernel_context *context, const attention_desc *desc, cudai_cudnn_plan *plan,
                       char reason[REASON_BYTES])
{
    attention_desc tried = trial_desc(desc);
    if (tried.batch == desc->batch && tried.heads == desc->heads && tried.tokens == desc->tokens)
        return plan_check(context, desc, plan, reason);
    cudai_cudnn_plan *smaller;
    TRY(plan_ask(context, &tried, &smaller, "it refuses the smaller shape for its check", reason));
    if (!smaller)
        return 0;
    const char *way = cudai_cudnn_plan_way(plan), *tried_way = cudai_cudnn_plan_way(smaller);
    int rc = 0;
    if (strcmp(way, tried_way) == 0)
        rc = plan_check(context, &tried, smaller, reason);
    else
        snprintf(reason, REASON_BYTES,
                 "its backward pass is %s, but %s for the smaller shape of its check", way,
                 tried_way);
    cudai_cudnn_plan_destroy(smaller);
    return rc;
}

/* ---- description and log ---- */

/* Adds the choice to the context's description, once. The buffer is large enough for all
 * choices. */
static void describe_choice(kernel_context *context, const char *choice)
{
    char item[96];
    size_t length = strlen(context->description);
    int added = snprintf(item, sizeof item, ", attention: %s", choice);
    assert(added > 0 && (size_t)added < sizeof item);
    for (const char *at = context->description; (at = strstr(at, item)) != NULL; at += added)
        if (at[added] == '\0' || at[added] == ',')
            return;
    assert(length + (size_t)added < sizeof context->description);
    (void)snprintf(context->description + length, sizeof context->description - length, "%s", item);
}

/* Logs one line per shape and choice. The same line is not repeated. */
static void log_choice(enum log_level level, const attention_desc *desc, const char *which,
                       const char *reason)
{
    static _Thread_local char last[REASON_BYTES + 256];
    char line[sizeof last];
    snprintf(line, sizeof line, "attention B=%llu T=%llu H=%llu G=%llu D=%llu %s: %s: %s",
             (unsigned long long)desc->batch, (unsigned long long)desc->tokens,
             (unsigned long long)desc->heads, (unsigned long long)desc->kv_heads,
             (unsigned long long)desc->head_dim, dtype_name(desc->type), which, reason);
    if (strcmp(line, last) == 0)
        return;
    memcpy(last, line, sizeof last);
    log_line(level, "%s", line);
}

/* Sets *plan to the library's plan if it takes the shape and agrees with us; otherwise sets it to
 * NULL and gives the reason. */
static int find_plan(kernel_context *context, const attention_desc *desc, cudai_cudnn_plan **plan,
                     enum log_level *level, char reason[REASON_BYTES])
{
    *plan = NULL;
    *level = LOG_INFO;
    if (desc->type == DTYPE_FP32 || !context->cudnn) {
        const char *absence = context->cudnn_absence ? context->cudnn_absence : "no cuDNN";
        snprintf(reason, REASON_BYTES, "%s",
                 desc->type == DTYPE_FP32 ? "the operands are fp32" : absence);
        return 0;
    }
    cudai_cudnn_plan *asked;
    TRY(plan_ask(context, desc, &asked, "cuDNN refuses the shape", reason));
    if (!asked)
        return 0;
    char text[REASON_BYTES] = "";
    int rc = plan_agrees(context, desc, asked, text);
    if (rc == 1) {
        *plan = asked;
        return 0;
    }
    cudai_cudnn_plan_destroy(asked);
    *level = LOG_WARN;
    (void)snprintf(reason, REASON_BYTES, "cuDNN is not used: %.*s", REASON_BYTES - 32, text);
    return rc;
}

/* Sets attention->plan if cuDNN is used. Logs the choice and its reason. */
static int choose(kernel_attention *attention)
{
    kernel_context *context = attention->context;
    const attention_desc *desc = &attention->desc;
    enum log_level level;
    char reason[REASON_BYTES], choice[64];
    TRY(find_plan(context, desc, &attention->plan, &level, reason));
    if (!attention->plan) {
        log_choice(level, desc, "our own kernels", reason);
        describe_choice(context, "ours");
        return 0;
    }
    snprintf(choice, sizeof choice, "%s %s", cudai_cudnn_version(context),
             cudai_cudnn_plan_way(attention->plan));
    log_choice(level, desc, choice, "it agrees with our own kernels");
    describe_choice(context, choice);
    return 0;
}

/* ---- the ops of the table ---- */

int cudai_attention_create(kernel_context *context, const attention_desc *desc,
                           kernel_attention **out)
{
    *out = NULL;
    TRY(cudai_own_attention_check(context, desc));
    kernel_attention *attention = mem_alloc(1, sizeof *attention, "attention");
    if (!attention)
        return -ENOMEM;
    attention->context = context;
    attention->desc = *desc;
    int rc = choose(attention);
    if (rc < 0) {
        mem_free(attention);
        return rc;
    }
    *out = attention;
    return 0;
}

void cudai_attention_destroy(kernel_attention *attention)
{
    if (!attention)
        return;
    if (attention->plan)
        cudai_cudnn_plan_destroy(attention->plan);
    mem_free(attention);
}

void cudai_attention_set_documents(kernel_attention *attention, const int32_t *begins)
{
    attention->begins = begins;
}

void cudai_attention_set_dropout(kernel_attention *attention, const attention_dropout *masks)
{
    attention->masks = masks ? *masks : (attention_dropout){0};
}

/* Documents lie elsewhere in each call, and cuDNN's plans know nothing of them, nor of our
 * masks. */
static bool is_by_cudnn(const kernel_attention *attention)
{
    bool drops = attention->desc.dropout > 0.0f && attention->masks.counter;
    return attention->plan && !attention->begins && !drops;
}

size_t cudai_attention_forward_scratch_bytes(const kernel_attention *attention)
{
    return attention->plan ? cudai_cudnn_plan_forward_scratch_bytes(attention->plan) : 0;
}

size_t cudai_attention_backward_scratch_bytes(const kernel_attention *attention)
{
    size_t ours = cudai_own_attention_scratch_bytes(&attention->desc);
    if (!attention->plan)
        return ours;
    return size_max(ours, cudai_cudnn_plan_backward_scratch_bytes(attention->plan));
}

int cudai_attention_forward(kernel_attention *attention, void *stream, const void *q, const void *k,
                            const void *v, void *output, float *lse, void *scratch)
{
    if (is_by_cudnn(attention))
        return cudai_cudnn_forward(attention->plan, stream, q, k, v, output, lse, scratch);
    return cudai_own_attention_forward(attention->context, &attention->desc, attention->begins,
                                       &attention->masks, stream, q, k, v, output, lse);
}

int cudai_attention_backward(kernel_attention *attention, void *stream, const void *q,
                             const void *k, const void *v, const void *output, const float *lse,
                             const void *output_grad, void *q_grad, void *k_grad, void *v_grad,
                             void *scratch)
{
    if (is_by_cudnn(attention))
        return cudai_cudnn_backward(attention->plan, stream, q, k, v, output, lse, output_grad,
                                    q_grad, k_grad, v_grad, scratch);
    return cudai_own_attention_backward(attention->context, &attention->desc, attention->begins,
                                        &attention->masks, stream, q, k, v, output, lse,
                                        output_grad, q_grad, k_grad, v_grad, scratch);
}
