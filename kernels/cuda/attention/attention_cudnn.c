/* cuDNN's fused attention, as cuda_internal.h declares it: causal or bidirectional, grouped query
 * heads, packed projections, bf16 and fp16.
 *
 * The graphs state the plain mathematics: S = scale Q K^T masked, P = softmax(S), O = P V, and its
 * derivatives. cuDNN recognizes attention by its pattern, so the operations and their order must be
 * exactly these; it has no engine for other forms. It then runs them as one kernel that never holds
 * S or P in memory. K is given as its transpose [B,G,D,T], and in the backward pass V too. The
 * statistics that cuDNN writes are max + log(sum(exp(S - max))), with the natural logarithm. This
 * is our lse.
 *
 * Determinism. The fast backward kernels add fp32 parts of dQ from many blocks by atomics, in any
 * order, and cuDNN does NOT mark those engines as nondeterministic. Two ways are intended to be
 * deterministic, and only these are used:
 *   parted   dQ without an fp32 accumulator: cuDNN writes dS to its workspace, T x T elements of 16
 *            bits per head, and multiplies it by K in a separate kernel. We run it over parts of
 *            batch and heads that fit workspace_bytes_max. Compute capability 8 and 9.
 *   ordered  from 9.25 on, Hopper's engine 6 with STAGES = 4: blocks add to the fp32 accumulator in
 *            a fixed order. It is slower, but its workspace grows only linearly with T. It is used
 *            if T is too long for the parts.
 * The machine code confirms this: with cuDNN 9.19 and 9.28 the fast kernels contain fp32 atomics
 * (RED.F32 on sm_80, UTMAREDG.ADD on sm_90). The parted ones contain none except the integer
 * counter of sm_90's scheduler. If several query heads share a key/value head, cuDNN rounds each
 * head's part of dK and dV to 16 bits before it adds them.
 *
 * A plan depends on the shape, the scale, the GPU and the library. Nothing here allocates after a
 * plan is made; cudnn_graph.c describes what cuDNN allocates. All calls come from the context's
 * thread. */
#include "kernels/cuda/attention/cudnn_internal.h"

#include <assert.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/attention_range.h"

enum uid {
    UID_Q = 1,
    UID_K,
    UID_V,
    UID_OUTPUT,
    UID_LSE,
    UID_SCALE,
    UID_MASK,
    UID_ONE,
    UID_OUTPUT_GRAD,
    UID_Q_GRAD,
    UID_K_GRAD,
    UID_V_GRAD,
    UID_ROW_SUM,
    UID_Q_GRAD_SUM,
};

struct cudai_cudnn_plan {
    attention_desc desc;
    cudai_cudnn_graph forward, backward;
    float scale, mask, one; /* cuDNN's host side reads these at each run */

    /* The backward pass runs once for each part: part_batch sequences, part_kv_heads key/value
     * heads, and the query heads that read them. */
    uint64_t part_batch, part_kv_heads;
    bool is_ordered;
    size_t row_sum_bytes; /* [part_batch, part heads, T] fp32: sum over D of dO * O */
    size_t q_sum_bytes;   /* [B, H, T, D] fp32 of one part if is_ordered, else 0 */
};

/* --- shapes --- */

/* The shapes of one graph. It covers `batch` sequences and `kv_heads` key/value heads of the desc.
 * Several sequences are possible only with all heads. */
struct shapes {
    cudnnDataType_t type;
    bool is_grouped;             /* H > G */
    bool is_bidirectional;       /* there is no mask */
    cudai_cudnn_shape q, kv;     /* [b, h or g, T, D] in packed rows */
    cudai_cudnn_shape kv_turned; /* [b, g, D, T], the same memory */
    cudai_cudnn_shape output;    /* [b, h, T, D] in rows of H*D */
    /* [b, h, T, 1] contiguous; also lse, for which cuDNN before 9.26 requires this */
    cudai_cudnn_shape row;
    cudai_cudnn_shape head;         /* [b, h, T, D] contiguous */
    cudai_cudnn_shape product;      /* [b, h, T, D], a token's heads side by side: dO * O */
    cudai_cudnn_shape score;        /* [b, h, T, T] */
    cudai_cudnn_shape score_turned; /* its transpose */
};

static cudai_cudnn_shape shape_of(int64_t b, int64_t h, int64_t rows, int64_t columns,
                                  int64_t b_stride, int64_t h_stride, int64_t row_stride,
                                  int64_t column_stride)
{
    return (cudai_cudnn_shape){{b, h, rows, columns},
                               {b_stride, h_stride, row_stride, column_stride}};
}

static struct shapes shapes_of(const attention_desc *desc, uint64_t batch, uint64_t kv_heads)
{
    int64_t b = (int64_t)batch, t = (int64_t)desc->tokens, d = (int64_t)desc->head_dim;
    int64_t g = (int64_t)kv_heads, h = g * (int64_t)(desc->heads / desc->kv_heads);
    int64_t stride = (int64_t)desc->qkv_stride, all = (int64_t)desc->heads;
    assert(batch == 1 || kv_heads == desc->kv_heads);
    return (struct shapes){
        .type = desc->type == DTYPE_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF,
        .is_grouped = desc->heads != desc->kv_heads,
        .is_bidirectional = desc->is_bidirectional,
        .q = shape_of(b, h, t, d, t * stride, d, stride, 1),
        .kv = shape_of(b, g, t, d, t * stride, d, stride, 1),
        .kv_turned = shape_of(b, g, d, t, t * stride, d, 1, stride),
        .output = shape_of(b, h, t, d, t * all * d, d, all * d, 1),
        .row = shape_of(b, h, t, 1, h * t, t, 1, 1),
        .head = shape_of(b, h, t, d, h * t * d, t * d, d, 1),
        .product = shape_of(b, h, t, d, h * t * d, t * d, h * d, 1),
        .score = shape_of(b, h, t, t, h * t * t, t * t, t, 1),
        .score_turned = shape_of(b, h, t, t, h * t * t, t * t, 1, t),
    };
}

/* Refuses a shape that cuDNN's fused attention does not take, or that has more elements than all
 * its engines can index. */
static int check_shape(const cudai_cudnn *api, const attention_desc *desc)
{
    const uint64_t elems_max = INT32_MAX; /* some engines cannot index more */
    uint64_t version = api->version_number;
    uint64_t row_elems = desc->heads * desc->head_dim;
    uint64_t head_dim_max = api->compute_major == 9 ? 256 : 128; /* limit of the backward pass */
    if (desc->kv_heads == 0 || desc->heads % desc->kv_heads != 0)
        return err_set(-EINVAL, "%llu query heads cannot share %llu key/value heads",
                       (unsigned long long)desc->heads, (unsigned long long)desc->kv_heads);
    if (desc->window || desc->soft_cap != 0.0f)
        return err_set(ERR_BACKEND, "cuDNN's attention is not used with a window or a soft cap");
    if (attention_value_dim(desc) != desc->head_dim)
        return err_set(ERR_BACKEND, "cuDNN's attention is not used if heads of v have other sizes "
                                    "than those of q and k");
    if (desc->type == DTYPE_FP32)
        return err_set(ERR_BACKEND, "cuDNN's attention takes bf16 and fp16, not fp32");
    if (desc->head_dim % 8 != 0 || desc->head_dim > head_dim_max || desc->qkv_stride % 8 != 0)
        return err_set(ERR_BACKEND,
                       "cuDNN's attention takes head dimensions and row strides of multiples of 8, "
                       "and heads of at most %llu elements, not %llu in rows of %llu",
                       (unsigned long long)head_dim_max, (unsigned long long)desc->head_dim,
                       (unsigned long long)desc->qkv_stride);
    uint64_t row_max = desc->qkv_stride > row_elems ? desc->qkv_stride : row_elems;
    if (row_max == 0 || desc->tokens == 0 || desc->batch == 0)
        return err_set(ERR_BACKEND, "cuDNN does not take an empty attention");
    if (desc->batch > elems_max / row_max / desc->tokens)
        return err_set(ERR_BACKEND, "cuDNN's attention is not used for more than 2^31 elements");
    /* Shapes and versions that NVIDIA's own frontend refuses or works around. */
    if (desc->tokens == 1)
        return err_set(ERR_BACKEND,
                       "cuDNN's backward attention is not used for sequences of one token");
    if (version == 91000 || version == 91001)
        return err_set(ERR_BACKEND, "the forward attention of %s has known errors", api->version);
    /* On Hopper, in versions up to at least 9.30, rows after the last one that fill up a tile may
     * enter exp(0 - lse). This gives NaN gradients, but only if some lse is below -88, which our
     * check cannot produce. */
    if ((version <= 91500 || api->compute_major == 9) && desc->tokens % 128 != 0)
        return err_set(ERR_BACKEND,
                       "the backward attention of %s has errors if the tokens (%llu) are not a "
                       "multiple of 128",
                       api->version, (unsigned long long)desc->tokens);
    if (api->compute_major != 8 && api->compute_major != 9)
        return err_set(ERR_BACKEND,
                       "no deterministic backward attention of cuDNN is known for GPUs of compute "
                       "capability %d",
                       api->compute_major);
    return 0;
}

/* --- the graphs --- */

/* Helpers for both graphs. */
static cudnnBackendDescriptor_t virtual_tensor(cudai_cudnn_graph *graph,
                                               const cudai_cudnn_shape *shape, cudnnDataType_t type)
{
    return cudai_cudnn_tensor(graph, shape, type, 0);
}

/* Returns a new fp32 tensor of `shape` that holds mode(x, b). */
static cudnnBackendDescriptor_t pointwise(cudai_cudnn_graph *graph, cudnnPointwiseMode_t mode,
                                          const cudai_cudnn_shape *shape,
                                          cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t b)
{
    cudnnBackendDescriptor_t y = virtual_tensor(graph, shape, CUDNN_DATA_FLOAT);
    cudai_cudnn_pointwise(graph, mode, CUDNN_DATA_FLOAT, x, b, NULL, y);
    return y;
}

/* Returns x where the query sees the key, and the mask's value elsewhere. */
static cudnnBackendDescriptor_t masked(cudai_cudnn_graph *graph, const struct shapes *shapes,
                                       cudnnBackendDescriptor_t x)
{
    if (shapes->is_bidirectional)
        return x;
    const cudai_cudnn_shape *score = &shapes->score;
    cudnnBackendDescriptor_t row = virtual_tensor(graph, score, CUDNN_DATA_INT32);
    cudnnBackendDescriptor_t column = virtual_tensor(graph, score, CUDNN_DATA_INT32);
    cudnnBackendDescriptor_t is_seen = virtual_tensor(graph, score, CUDNN_DATA_BOOLEAN);
    cudnnBackendDescriptor_t y = virtual_tensor(graph, score, CUDNN_DATA_FLOAT);
    cudnnBackendDescriptor_t mask = cudai_cudnn_scalar(graph, UID_MASK);
    cudai_cudnn_index(graph, 2, x, row);
    cudai_cudnn_index(graph, 3, x, column);
    cudai_cudnn_pointwise(graph, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, row, column, NULL,
                          is_seen);
    cudai_cudnn_pointwise(graph, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, x, mask, is_seen,
                          y);
    return y;
}

static void make_forward(cudai_cudnn_graph *graph, const struct shapes *shapes)
{
    const cudai_cudnn_shape *score = &shapes->score, *row = &shapes->row;
    cudnnBackendDescriptor_t q = cudai_cudnn_tensor(graph, &shapes->q, shapes->type, UID_Q);
    cudnnBackendDescriptor_t k = cudai_cudnn_tensor(graph, &shapes->kv_turned, shapes->type, UID_K);
    cudnnBackendDescriptor_t v = cudai_cudnn_tensor(graph, &shapes->kv, shapes->type, UID_V);
    cudnnBackendDescriptor_t scale = cudai_cudnn_scalar(graph, UID_SCALE);
    cudnnBackendDescriptor_t lse = cudai_cudnn_tensor(graph, row, CUDNN_DATA_FLOAT, UID_LSE);
    cudnnBackendDescriptor_t output =
        cudai_cudnn_tensor(graph, &shapes->output, shapes->type, UID_OUTPUT);

    cudnnBackendDescriptor_t s = virtual_tensor(graph, score, CUDNN_DATA_FLOAT);
    cudai_cudnn_matmul(graph, q, k, s);
    s = pointwise(graph, CUDNN_POINTWISE_MUL, score, s, scale);
    s = masked(graph, shapes, s);
    cudnnBackendDescriptor_t largest = virtual_tensor(graph, row, CUDNN_DATA_FLOAT);
    cudai_cudnn_reduce(graph, CUDNN_REDUCE_TENSOR_MAX, s, largest);
    s = pointwise(graph, CUDNN_POINTWISE_SUB, score, s, largest);
    s = pointwise(graph, CUDNN_POINTWISE_EXP, score, s, NULL);
    cudnnBackendDescriptor_t sum = virtual_tensor(graph, row, CUDNN_DATA_FLOAT);
    cudai_cudnn_reduce(graph, CUDNN_REDUCE_TENSOR_ADD, s, sum);
    cudnnBackendDescriptor_t log_sum = pointwise(graph, CUDNN_POINTWISE_LOG, row, sum, NULL);
    cudai_cudnn_pointwise(graph, CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, largest, log_sum, NULL,
                          lse);
    cudnnBackendDescriptor_t p = virtual_tensor(graph, score, shapes->type);
    cudai_cudnn_pointwise(graph, CUDNN_POINTWISE_DIV, CUDNN_DATA_FLOAT, s, sum, NULL, p);
    cudai_cudnn_matmul(graph, p, v, output);
}

/* grad [b,g,T,D] = x^T rows, summed over each group of query heads. There is one product per query
 * head, then a sum over the heads that share a key/value head. */
static void make_kv_grad(cudai_cudnn_graph *graph, const struct shapes *shapes,
                         cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t rows,
                         enum uid grad_uid)
{
    cudnnBackendDescriptor_t turned = virtual_tensor(graph, &shapes->score_turned, shapes->type);
    cudnnBackendDescriptor_t grad =
        cudai_cudnn_tensor(graph, &shapes->kv, shapes->type, (int64_t)grad_uid);
    cudai_cudnn_reshape(graph, x, turned);
    if (!shapes->is_grouped) {
        cudai_cudnn_matmul(graph, turned, rows, grad);
        return;
    }
    cudnnBackendDescriptor_t by_head = virtual_tensor(graph, &shapes->head, shapes->type);
    cudai_cudnn_matmul(graph, turned, rows, by_head);
    cudai_cudnn_reduce(graph, CUDNN_REDUCE_TENSOR_ADD, by_head, grad);
}

static void make_backward(cudai_cudnn_graph *graph, const struct shapes *shapes, bool is_ordered)
{
    const cudai_cudnn_shape *score = &shapes->score, *row = &shapes->row;
    cudnnDataType_t type = shapes->type;
    cudnnBackendDescriptor_t q = cudai_cudnn_tensor(graph, &shapes->q, type, UID_Q);
    cudnnBackendDescriptor_t k = cudai_cudnn_tensor(graph, &shapes->kv_turned, type, UID_K);
    cudnnBackendDescriptor_t v = cudai_cudnn_tensor(graph, &shapes->kv_turned, type, UID_V);
    cudnnBackendDescriptor_t output = cudai_cudnn_tensor(graph, &shapes->output, type, UID_OUTPUT);
    cudnnBackendDescriptor_t output_grad =
        cudai_cudnn_tensor(graph, &shapes->output, type, UID_OUTPUT_GRAD);
    cudnnBackendDescriptor_t q_grad = cudai_cudnn_tensor(graph, &shapes->q, type, UID_Q_GRAD);
    cudnnBackendDescriptor_t lse = cudai_cudnn_tensor(graph, row, CUDNN_DATA_FLOAT, UID_LSE);
    cudnnBackendDescriptor_t row_sum =
        cudai_cudnn_tensor(graph, row, CUDNN_DATA_FLOAT, UID_ROW_SUM);
    cudnnBackendDescriptor_t scale = cudai_cudnn_scalar(graph, UID_SCALE);
    cudnnBackendDescriptor_t one = cudai_cudnn_scalar(graph, UID_ONE);

    /* row_sum = sum over D of dO * O; the factor of one stands at dropout's place in the pattern */
    cudnnBackendDescriptor_t product =
        pointwise(graph, CUDNN_POINTWISE_MUL, &shapes->product, output_grad, output);
    cudnnBackendDescriptor_t sum = virtual_tensor(graph, row, CUDNN_DATA_FLOAT);
    cudai_cudnn_reduce(graph, CUDNN_REDUCE_TENSOR_ADD, product, sum);
    cudai_cudnn_pointwise(graph, CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, sum, one, NULL, row_sum);

    /* P = exp(scale Q K^T - lse), masked; dV = P^T dO */
    cudnnBackendDescriptor_t p = virtual_tensor(graph, score, CUDNN_DATA_FLOAT);
    cudai_cudnn_matmul(graph, q, k, p);
    p = pointwise(graph, CUDNN_POINTWISE_MUL, score, p, scale);
    p = pointwise(graph, CUDNN_POINTWISE_SUB, score, p, lse);
    p = masked(graph, shapes, p);
    p = pointwise(graph, CUDNN_POINTWISE_EXP, score, p, NULL);
    make_kv_grad(graph, shapes, p, output_grad, UID_V_GRAD);

    /* dS = scale (dO V^T - row_sum) P; dK = dS^T Q */
    cudnnBackendDescriptor_t ds = virtual_tensor(graph, score, CUDNN_DATA_FLOAT);
    cudai_cudnn_matmul(graph, output_grad, v, ds);
    ds = pointwise(graph, CUDNN_POINTWISE_SUB, score, ds, row_sum);
    ds = pointwise(graph, CUDNN_POINTWISE_MUL, score, ds, p);
    ds = pointwise(graph, CUDNN_POINTWISE_MUL, score, ds, scale);
    make_kv_grad(graph, shapes, ds, q, UID_K_GRAD);

    /* dQ = dS K */
    cudnnBackendDescriptor_t k_rows = virtual_tensor(graph, &shapes->kv, type);
    cudai_cudnn_reshape(graph, k, k_rows);
    if (!is_ordered) {
        cudai_cudnn_matmul(graph, ds, k_rows, q_grad);
        return;
    }
    cudnnBackendDescriptor_t q_sum =
        cudai_cudnn_tensor(graph, &shapes->head, CUDNN_DATA_FLOAT, UID_Q_GRAD_SUM);
    cudai_cudnn_matmul(graph, ds, k_rows, q_sum);
    cudai_cudnn_pointwise(graph, CUDNN_POINTWISE_IDENTITY, CUDNN_DATA_FLOAT, q_sum, NULL, NULL,
                          q_grad);
}

/* --- plans --- */

static uint64_t round_up(uint64_t value, uint64_t step)
{
    return (value + step - 1) / step * step;
}

/* Chooses the largest part of [B, G] that fits the workspace: whole sequences, or key/value heads
 * of one sequence. Returns false if even one key/value head with its query heads is too large. */
static bool choose_part(cudai_cudnn_plan *plan, uint64_t bytes_max)
{
    const attention_desc *desc = &plan->desc;
    uint64_t group = desc->heads / desc->kv_heads;
    uint64_t head_bytes = desc->tokens * desc->head_dim * 2, bytes = 0;
    if (plan->is_ordered)
        bytes += group * head_bytes * 2; /* dQ's accumulator, fp32 */
    else
        bytes += group * round_up(desc->tokens, 64) * round_up(desc->tokens, 128) * 2; /* dS */
    if (group > 1)
        bytes += 2 * group * head_bytes; /* dK and dV of each query head */
    uint64_t fitting = bytes_max / bytes, kv_heads = desc->kv_heads, batch = 1;
    if (fitting >= kv_heads) {
        batch = fitting / kv_heads < desc->batch ? fitting / kv_heads : desc->batch;
        while (desc->batch % batch != 0)
            batch--;
    } else {
        kv_heads = fitting;
        while (kv_heads > 0 && desc->kv_heads % kv_heads != 0)
            kv_heads--;
    }
    plan->part_batch = batch;
    plan->part_kv_heads = kv_heads;
    return kv_heads > 0;
}

/* Makes the plan of one part, by the heuristics or with `choice`. */
static int plan_backward(cudai_cudnn_plan *plan, const cudai_cudnn *api, bool is_ordered,
                         const cudai_cudnn_choice *choice)
{
    plan->is_ordered = is_ordered;
    if (!choose_part(plan, api->workspace_bytes_max))
        return err_set(ERR_BACKEND,
                       "one head of %llu tokens needs more than %llu MiB of cuDNN's workspace",
                       (unsigned long long)plan->desc.tokens,
                       (unsigned long long)(api->workspace_bytes_max >> 20));
    struct shapes shapes = shapes_of(&plan->desc, plan->part_batch, plan->part_kv_heads);
    cudai_cudnn_graph_init(&plan->backward, api);
    make_backward(&plan->backward, &shapes, is_ordered);
    /* Allows twice the computed size, for cuDNN's small extras and its rounding if T is short. */
    int rc = cudai_cudnn_graph_plan(&plan->backward, choice, 2 * api->workspace_bytes_max);
    if (rc < 0)
        cudai_cudnn_graph_fini(&plan->backward);
    return rc;
}

/* Uses "parted" if the parts fit, else "ordered" if the library supports it; see the file head. */
static int plan_deterministic_backward(cudai_cudnn_plan *plan, const cudai_cudnn *api)
{
    static const cudai_cudnn_choice ordered = {
        .engine_idx = 6, /* Hopper's fused backward, blocks of 64 x 64 */
        .knob_count = 6,
        .knobs = {{CUDNN_KNOB_TYPE_TILE_M, 2},
                  {CUDNN_KNOB_TYPE_TILE_N, 1},
                  {CUDNN_KNOB_TYPE_KERNEL_CFG, 2},
                  {CUDNN_KNOB_TYPE_STREAM_K, 0},
                  {CUDNN_KNOB_TYPE_TILE_CGA_M, 0},
                  {CUDNN_KNOB_TYPE_STAGES, 4}},
    };
    int rc = plan_backward(plan, api, false, NULL);
    if (rc < 0 && api->version_number >= 92500 && api->compute_major == 9)
        rc = plan_backward(plan, api, true, &ordered);
    return rc;
}

int cudai_cudnn_plan_make(const cudai_cudnn *api, const attention_desc *desc,
                          cudai_cudnn_plan **plan)
{
    *plan = NULL;
    TRY(check_shape(api, desc));
    cudai_cudnn_plan *made = mem_alloc(1, sizeof *made, "cudnn plan");
    if (made == NULL)
        return -ENOMEM;
    made->desc = *desc;
    made->scale = desc->scale;
    made->one = 1.0f;
    /* before 9.10 cuDNN did not support an infinity in the mask */
    made->mask = api->version_number < 91000 ? -FLT_MAX : -INFINITY;

    struct shapes shapes = shapes_of(desc, desc->batch, desc->kv_heads);
    cudai_cudnn_graph_init(&made->forward, api);
    make_forward(&made->forward, &shapes);
    int rc = cudai_cudnn_graph_plan(&made->forward, NULL, api->workspace_bytes_max);
    if (rc == 0)
        rc = plan_deterministic_backward(made, api);
    if (rc < 0) {
        cudai_cudnn_plan_destroy(made);
        return rc;
    }
    uint64_t heads = made->part_kv_heads * (desc->heads / desc->kv_heads);
    uint64_t rows = made->part_batch * heads * desc->tokens;
    made->row_sum_bytes = round_up(rows * sizeof(float), 256);
    made->q_sum_bytes = made->is_ordered ? round_up(rows * desc->head_dim * sizeof(float), 256) : 0;
    *plan = made;
    return 0;
}

int cudai_cudnn_plan_create(kernel_context *context, const attention_desc *desc,
                            cudai_cudnn_plan **plan)
{
    *plan = NULL;
    if (context->cudnn == NULL)
        return err_set(ERR_BACKEND, "no cuDNN attention: %s", context->cudnn_absence);
    return cudai_cudnn_plan_make(context->cudnn, desc, plan);
}

void cudai_cudnn_plan_destroy(cudai_cudnn_plan *plan)
{
    if (plan == NULL)
        return;
    cudai_cudnn_graph_fini(&plan->forward);
    cudai_cudnn_graph_fini(&plan->backward);
    mem_free(plan);
}

const char *cudai_cudnn_plan_way(const cudai_cudnn_plan *plan)
{
    return plan->is_ordered ? "ordered" : "parted";
}

size_t cudai_cudnn_plan_forward_scratch_bytes(const cudai_cudnn_plan *plan)
{
    return round_up(plan->forward.workspace_bytes, 256);
}

size_t cudai_cudnn_plan_backward_scratch_bytes(const cudai_cudnn_plan *plan)
{
    return plan->row_sum_bytes + plan->q_sum_bytes + round_up(plan->backward.workspace_bytes, 256);
}

/* --- running --- */

/* The arguments of one run. cuDNN's types have no const, so operands that it only reads are
 * cast. */
struct args {
    int64_t uids[CUDAI_CUDNN_ARGS_MAX];
    void *addresses[CUDAI_CUDNN_ARGS_MAX];
    int count;
};

static void add_arg(struct args *args, enum uid uid, const void *address)
{
    assert(args->count < CUDAI_CUDNN_ARGS_MAX);
    args->uids[args->count] = uid;
    args->addresses[args->count++] = (void *)(uintptr_t)address;
}

/* The plans promise their engines addresses that are multiples of 16 bytes. */
static int check_alignment(const struct args *args)
{
    for (int i = 0; i < args->count; i++) {
        bool is_fp32 = args->uids[i] == UID_LSE || args->uids[i] == UID_SCALE ||
                       args->uids[i] == UID_MASK || args->uids[i] == UID_ONE;
        if ((uintptr_t)args->addresses[i] % (is_fp32 ? 4 : 16) != 0)
            return err_set(-EINVAL, "cuDNN's attention: argument %d at %p is not aligned",
                           (int)args->uids[i], args->addresses[i]);
    }
    return 0;
}

int cudai_cudnn_forward(cudai_cudnn_plan *plan, void *stream, const void *q, const void *k,
                        const void *v, void *output, float *lse, void *scratch)
{
    struct args args = {.count = 0};
    add_arg(&args, UID_Q, q);
    add_arg(&args, UID_K, k);
    add_arg(&args, UID_V, v);
    add_arg(&args, UID_OUTPUT, output);
    add_arg(&args, UID_LSE, lse);
    add_arg(&args, UID_SCALE, &plan->scale);
    if (!plan->desc.is_bidirectional)
        add_arg(&args, UID_MASK, &plan->mask);
    TRY(check_alignment(&args));
    return cudai_cudnn_graph_run(&plan->forward, stream, args.uids, args.addresses, args.count,
                                 plan->forward.workspace_bytes > 0 ? scratch : NULL);
}

/* Returns `base` moved by `elems` elements of 16 bits. */
static const void *at(const void *base, uint64_t elems)
{
    return (const char *)base + elems * 2;
}

int cudai_cudnn_backward(cudai_cudnn_plan *plan, void *stream, const void *q, const void *k,
                         const void *v, const void *output, const float *lse,
                         const void *output_grad, void *q_grad, void *k_grad, void *v_grad,
                         void *scratch)
{
    const attention_desc *desc = &plan->desc;
    uint64_t group = desc->heads / desc->kv_heads, dim = desc->head_dim;
    char *row_sum = scratch, *q_sum = row_sum + plan->row_sum_bytes;
    char *workspace = q_sum + plan->q_sum_bytes;
    for (uint64_t b = 0; b < desc->batch; b += plan->part_batch) {
        for (uint64_t g = 0; g < desc->kv_heads; g += plan->part_kv_heads) {
            struct args args = {.count = 0};
            uint64_t row = b * desc->tokens, h = g * group;
            uint64_t q_at = row * desc->qkv_stride + h * dim;
            uint64_t kv_at = row * desc->qkv_stride + g * dim;
            uint64_t output_at = (row * desc->heads + h) * dim;
            add_arg(&args, UID_Q, at(q, q_at));
            add_arg(&args, UID_K, at(k, kv_at));
            add_arg(&args, UID_V, at(v, kv_at));
            add_arg(&args, UID_OUTPUT, at(output, output_at));
            add_arg(&args, UID_OUTPUT_GRAD, at(output_grad, output_at));
            add_arg(&args, UID_LSE, lse + (b * desc->heads + h) * desc->tokens);
            add_arg(&args, UID_Q_GRAD, at(q_grad, q_at));
            add_arg(&args, UID_K_GRAD, at(k_grad, kv_at));
            add_arg(&args, UID_V_GRAD, at(v_grad, kv_at));
            add_arg(&args, UID_ROW_SUM, row_sum);
            if (plan->is_ordered)
                add_arg(&args, UID_Q_GRAD_SUM, q_sum);
            add_arg(&args, UID_SCALE, &plan->scale);
            if (!desc->is_bidirectional)
                add_arg(&args, UID_MASK, &plan->mask);
            add_arg(&args, UID_ONE, &plan->one);
            TRY(check_alignment(&args));
            TRY(cudai_cudnn_graph_run(&plan->backward, stream, args.uids, args.addresses,
                                      args.count,
                                      plan->backward.workspace_bytes > 0 ? workspace : NULL));
        }
    }
    return 0;
}
