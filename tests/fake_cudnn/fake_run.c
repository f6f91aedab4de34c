/* Operation graphs by the meaning of their operations: fp64 arithmetic, each result rounded to its
 * tensor's type. Tensors that exist inside a kernel alone are dense here, whatever their strides
 * say; those in memory lie where their strides put them. */
#include "fake_cudnn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"

enum { TENSORS_MAX = 64 };

struct tensor {
    const fake_descriptor *descriptor;
    int64_t uid, dims[4], strides[4];
    int type;
    bool is_virtual;
    double *values; /* virtual: dense, NaN until written; else NULL */
    void *memory;
};

struct run {
    struct tensor tensors[TENSORS_MAX];
    int tensor_count;
    const fake_descriptor *pack;
};

static bool fail(const char *what)
{
    fprintf(stderr, "fake cuDNN: %s\n", what);
    return false;
}

static int64_t elems(const struct tensor *tensor)
{
    return tensor->dims[0] * tensor->dims[1] * tensor->dims[2] * tensor->dims[3];
}

/* The tensor of a descriptor, made at its first use. NULL if it has no address, or if another
 * tensor has its number. */
static struct tensor *tensor_of(struct run *run, const fake_descriptor *descriptor)
{
    for (int i = 0; i < run->tensor_count; i++)
        if (run->tensors[i].descriptor == descriptor)
            return &run->tensors[i];
    struct tensor *tensor = &run->tensors[run->tensor_count];
    int64_t count = 0;
    *tensor = (struct tensor){
        .descriptor = descriptor,
        .uid = fake_int64(descriptor, CUDNN_ATTR_TENSOR_UNIQUE_ID, -1),
        .type = fake_enum(descriptor, CUDNN_ATTR_TENSOR_DATA_TYPE),
        .is_virtual = *(const bool *)fake_values(descriptor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, NULL)};
    memcpy(tensor->dims, fake_values(descriptor, CUDNN_ATTR_TENSOR_DIMENSIONS, &count),
           sizeof tensor->dims);
    memcpy(tensor->strides, fake_values(descriptor, CUDNN_ATTR_TENSOR_STRIDES, &count),
           sizeof tensor->strides);
    for (int i = 0; i < run->tensor_count; i++)
        if (run->tensors[i].uid == tensor->uid) {
            fail("two tensors of one number");
            return NULL;
        }
    if (tensor->is_virtual) {
        tensor->values = malloc((size_t)elems(tensor) * sizeof *tensor->values);
        for (int64_t i = 0; i < elems(tensor); i++)
            tensor->values[i] = NAN;
    } else {
        const int64_t *uids = fake_values(run->pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, &count);
        void *const *addresses =
            fake_values(run->pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, NULL);
        for (int64_t i = 0; i < count; i++)
            if (uids[i] == tensor->uid)
                tensor->memory = addresses[i];
        if (tensor->memory == NULL) {
            fail("a tensor without an address");
            return NULL;
        }
    }
    run->tensor_count++;
    return tensor;
}

static int64_t place(const struct tensor *tensor, const int64_t at[4])
{
    if (tensor->is_virtual)
        return ((at[0] * tensor->dims[1] + at[1]) * tensor->dims[2] + at[2]) * tensor->dims[3] +
               at[3];
    return at[0] * tensor->strides[0] + at[1] * tensor->strides[1] + at[2] * tensor->strides[2] +
           at[3] * tensor->strides[3];
}

/* The element at `at`; dimensions of 1 are broadcast. */
static double get(const struct tensor *tensor, const int64_t at[4])
{
    int64_t here[4];
    for (int i = 0; i < 4; i++)
        here[i] = tensor->dims[i] == 1 ? 0 : at[i];
    int64_t idx = place(tensor, here);
    if (tensor->is_virtual)
        return tensor->values[idx];
    if (tensor->type == CUDNN_DATA_BFLOAT16)
        return fp32_from_bf16(((const uint16_t *)tensor->memory)[idx]);
    if (tensor->type == CUDNN_DATA_HALF)
        return fp32_from_fp16(((const uint16_t *)tensor->memory)[idx]);
    return ((const float *)tensor->memory)[idx];
}

static void put(struct tensor *tensor, const int64_t at[4], double value)
{
    int64_t idx = place(tensor, at);
    float rounded = (float)value;
    if (tensor->type == CUDNN_DATA_BFLOAT16) {
        uint16_t bits = bf16_from_fp32(rounded);
        if (!tensor->is_virtual)
            ((uint16_t *)tensor->memory)[idx] = bits;
        rounded = fp32_from_bf16(bits);
    } else if (tensor->type == CUDNN_DATA_HALF) {
        uint16_t bits = fp16_from_fp32(rounded);
        if (!tensor->is_virtual)
            ((uint16_t *)tensor->memory)[idx] = bits;
        rounded = fp32_from_fp16(bits);
    } else if (!tensor->is_virtual) {
        ((float *)tensor->memory)[idx] = rounded;
    }
    if (tensor->is_virtual)
        tensor->values[idx] = rounded;
}

/* Steps `at` through dims; false after the last. */
static bool step(int64_t at[4], const int64_t dims[4])
{
    for (int i = 3; i >= 0; i--) {
        if (++at[i] < dims[i])
            return true;
        at[i] = 0;
    }
    return false;
}

/* --- operations ------------------------------------------------------------------------------- */

static double apply(int mode, double x, double b, double t)
{
    switch (mode) {
    case CUDNN_POINTWISE_ADD:
        return x + b;
    case CUDNN_POINTWISE_SUB:
        return x - b;
    case CUDNN_POINTWISE_MUL:
        return x * b;
    case CUDNN_POINTWISE_DIV:
        return x / b;
    case CUDNN_POINTWISE_EXP:
        return exp(x);
    case CUDNN_POINTWISE_LOG:
        return log(x);
    case CUDNN_POINTWISE_IDENTITY:
        return x;
    case CUDNN_POINTWISE_CMP_GE:
        return x >= b;
    case CUDNN_POINTWISE_BINARY_SELECT:
        return t != 0 ? x : b;
    default:
        fail("an unknown pointwise mode");
        return NAN;
    }
}

static bool run_pointwise(struct run *run, const fake_descriptor *op)
{
    const fake_descriptor *b_descriptor = fake_child(op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
    const fake_descriptor *t_descriptor = fake_child(op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
    const fake_descriptor *how = fake_child(op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    struct tensor *x = tensor_of(run, fake_child(op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC));
    struct tensor *b = b_descriptor != NULL ? tensor_of(run, b_descriptor) : NULL;
    struct tensor *t = t_descriptor != NULL ? tensor_of(run, t_descriptor) : NULL;
    struct tensor *y = tensor_of(run, fake_child(op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
    int mode = fake_enum(how, CUDNN_ATTR_POINTWISE_MODE);
    int64_t axis = fake_int64(how, CUDNN_ATTR_POINTWISE_AXIS, -1), at[4] = {0};
    if (x == NULL || y == NULL)
        return false;
    for (int i = 0; i < 4; i++)
        if (x->dims[i] != y->dims[i] || (b != NULL && b->dims[i] != 1 && b->dims[i] != x->dims[i]))
            return fail("a pointwise operation of different shapes");
    do
        put(y, at,
            mode == CUDNN_POINTWISE_GEN_INDEX
                ? (double)at[axis]
                : apply(mode, get(x, at), b != NULL ? get(b, at) : 0, t != NULL ? get(t, at) : 0));
    while (step(at, y->dims));
    return true;
}

/* c [b, h, m, n] = a [b, h, m, k] b [b, g, k, n]; head i of a takes head i / (h / g) of b. */
static bool run_matmul(struct run *run, const fake_descriptor *op)
{
    struct tensor *a = tensor_of(run, fake_child(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC));
    struct tensor *b = tensor_of(run, fake_child(op, CUDNN_ATTR_OPERATION_MATMUL_BDESC));
    struct tensor *c = tensor_of(run, fake_child(op, CUDNN_ATTR_OPERATION_MATMUL_CDESC));
    int64_t at[4] = {0};
    if (a == NULL || b == NULL || c == NULL)
        return false;
    if (a->dims[3] != b->dims[2] || a->dims[2] != c->dims[2] || b->dims[3] != c->dims[3] ||
        a->dims[0] != b->dims[0] || a->dims[0] != c->dims[0] || a->dims[1] != c->dims[1] ||
        a->dims[1] % b->dims[1] != 0)
        return fail("a matrix product of shapes that do not fit");
    do {
        double sum = 0;
        for (int64_t k = 0; k < a->dims[3]; k++) {
            int64_t a_at[4] = {at[0], at[1], at[2], k};
            int64_t b_at[4] = {at[0], at[1] / (a->dims[1] / b->dims[1]), k, at[3]};
            sum += get(a, a_at) * get(b, b_at);
        }
        put(c, at, sum);
    } while (step(at, c->dims));
    return true;
}

/* Each element of y from a box of x: dims of x over dims of y. */
static bool run_reduction(struct run *run, const fake_descriptor *op)
{
    struct tensor *x = tensor_of(run, fake_child(op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC));
    struct tensor *y = tensor_of(run, fake_child(op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC));
    const fake_descriptor *how = fake_child(op, CUDNN_ATTR_OPERATION_REDUCTION_DESC);
    bool is_max = fake_enum(how, CUDNN_ATTR_REDUCTION_OPERATOR) == CUDNN_REDUCE_TENSOR_MAX;
    int64_t at[4] = {0}, box[4];
    if (x == NULL || y == NULL)
        return false;
    for (int i = 0; i < 4; i++) {
        if (x->dims[i] % y->dims[i] != 0)
            return fail("a reduction of shapes that do not fit");
        box[i] = x->dims[i] / y->dims[i];
    }
    do {
        int64_t in[4] = {0};
        double result = is_max ? -INFINITY : 0;
        do {
            int64_t x_at[4];
            for (int i = 0; i < 4; i++)
                x_at[i] = at[i] * box[i] + in[i];
            double value = get(x, x_at);
            result = !is_max ? result + value : value > result ? value : result;
        } while (step(in, box));
        put(y, at, result);
    } while (step(at, y->dims));
    return true;
}

/* The index in x of the element whose offset from the beginning is `offset`, by x's strides. */
static bool index_of(const struct tensor *x, int64_t offset, int64_t at[4])
{
    bool is_done[4] = {false};
    for (int round = 0; round < 4; round++) {
        int largest = -1;
        for (int i = 0; i < 4; i++)
            if (!is_done[i] && (largest < 0 || x->strides[i] > x->strides[largest] ||
                                (x->strides[i] == x->strides[largest] && x->dims[i] > 1)))
                largest = i;
        is_done[largest] = true;
        at[largest] = x->dims[largest] == 1 ? 0 : offset / x->strides[largest];
        offset -= at[largest] * x->strides[largest];
        if (at[largest] >= x->dims[largest])
            return false;
    }
    return offset == 0;
}

/* Another view of the same memory. */
static bool run_reshape(struct run *run, const fake_descriptor *op)
{
    struct tensor *x = tensor_of(run, fake_child(op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC));
    struct tensor *y = tensor_of(run, fake_child(op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC));
    int64_t at[4] = {0}, x_at[4];
    if (x == NULL || y == NULL)
        return false;
    if (elems(x) != elems(y))
        return fail("a reshape that adds or drops elements");
    do {
        int64_t offset = 0;
        for (int i = 0; i < 4; i++)
            offset += at[i] * y->strides[i];
        if (!index_of(x, offset, x_at))
            return fail("a reshape to other memory");
        put(y, at, get(x, x_at));
    } while (step(at, y->dims));
    return true;
}

static bool run_op(struct run *run, const fake_descriptor *op)
{
    switch ((int)op->type) {
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        return run_pointwise(run, op);
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        return run_matmul(run, op);
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        return run_reduction(run, op);
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
        return run_reshape(run, op);
    default:
        return fail("an unknown operation");
    }
}

bool fake_run(const fake_descriptor *graph, const fake_descriptor *pack)
{
    struct run run = {.tensor_count = 0, .pack = pack};
    int64_t count = 0;
    fake_descriptor *const *ops = fake_values(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, &count);
    void *workspace = *(void *const *)fake_values(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, NULL);
    bool is_good = true;
    for (int64_t i = 0; i < count && is_good; i++) {
        is_good = run_op(&run, ops[i]);
        if (fake_cudnn.workspace_bytes > 0) /* nothing else may lie there */
            memset(workspace, 0xff, fake_cudnn.workspace_bytes);
    }
    for (int i = 0; i < run.tensor_count; i++)
        free(run.tensors[i].values);
    return is_good;
}
