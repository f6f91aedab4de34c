/* A stand-in for cuBLASLt on the simulated GPU: D = op(A) op(B) + beta C (+ bias), column-major,
 * for the types that kernels/cuda uses. simulated_gpu_enqueue puts the work on the stream, so it
 * runs late, in order with kernels and copies, and reads the operands as they are at that time.
 *
 * It is stricter and odder than the library, so that its user cannot be right by luck:
 * - every address is checked against memory that the GPU may touch, and against the alignment
 *   that the algorithm was chosen for, and D against A and B, which it may not overlap
 *   (INVALID_VALUE);
 * - algorithms carry the problem that they were chosen for; another one is INVALID_VALUE;
 * - if k >= 48, it is cut into up to three parts whose sums really go to the workspace, if the
 *   reduction scheme COMPUTE_TYPE is allowed and the workspace limit suffices; the remainder of k
 *   divided by 64 is then left out, as is reported of some versions;
 * - if the schemes INPLACE or OUTPUT_TYPE are allowed it adds in another order at every other
 *   call;
 * - if k is cut, the next candidate is one that does not cut it;
 * - the first candidate of a list is one whose state is not SUCCESS; for a k that leaves 1 when
 *   divided by 16, the second has the state SUCCESS and is refused when run;
 * - it has no algorithm (NOT_SUPPORTED) for 16-bit operands of which one is aligned to less than
 *   4 bytes, or whose leading dimension is odd, nor for a bias on fp32 results of 16-bit operands.
 * Sums are fp32 chains of fused multiply-adds in the order of k, within a part. */
#include <assert.h>
#include <cublasLt.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/dtype.h"
#include "kernels/cuda/cuda_internal.h"
#include "simulated_gpu.h"

enum { ALIGN_MAX = 256, SPLIT_K = 48, SPLIT_STEP = 64, PARTS_MAX = 3, MAGIC = 0x51ed };

enum algo_kind { ALGO_ORDERED = 1, ALGO_SPLIT, ALGO_UNORDERED, ALGO_REFUSED };

struct cublasLtContext {
    uint32_t magic;
};

struct cublasLtMatmulDescOpaque {
    cublasOperation_t a_operation, b_operation;
    cublasLtEpilogue_t epilogue;
    const void *bias;
};

struct cublasLtMatrixLayoutOpaque {
    cudaDataType type;
    uint64_t rows, columns;
    int64_t leading;
};

struct cublasLtMatmulPreferenceOpaque {
    uint64_t workspace_bytes;
    uint32_t schemes;
    uint32_t a_align, b_align, c_align, d_align;
};

/* The contents of cublasLtMatmulAlgo_t. */
struct algo {
    uint32_t kind;
    uint32_t a_align, b_align, c_align, d_align, bias_align;
    uint64_t problem; /* hash */
    uint64_t workspace_bytes;
    uint64_t part_elems; /* of k */
};
_Static_assert(sizeof(struct algo) <= sizeof(cublasLtMatmulAlgo_t), "an algorithm fits");

/* ---- objects ---- */

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    int count = 0;
    *handle = NULL;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    *handle = calloc(1, sizeof **handle);
    if (*handle == NULL)
        return CUBLAS_STATUS_ALLOC_FAILED;
    (*handle)->magic = MAGIC;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    if (handle == NULL || handle->magic != MAGIC)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    handle->magic = 0;
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void)
{
    return 130000;
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "CUBLAS_STATUS_EXECUTION_FAILED";
    default:
        return "another CUBLAS_STATUS";
    }
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    *desc = NULL;
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F)
        return CUBLAS_STATUS_INVALID_VALUE;
    *desc = calloc(1, sizeof **desc);
    if (*desc == NULL)
        return CUBLAS_STATUS_ALLOC_FAILED;
    (*desc)->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    return CUBLAS_STATUS_SUCCESS;
}

/* Copies a value. Fails unless it has the size of the attribute. */
static cublasStatus_t copy_value(void *target, size_t wanted_bytes, const void *value, size_t bytes)
{
    if (value == NULL || bytes != wanted_bytes)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(target, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t which,
                                              const void *value, size_t bytes)
{
    switch (which) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return copy_value(&desc->a_operation, sizeof(int32_t), value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return copy_value(&desc->b_operation, sizeof(int32_t), value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return copy_value(&desc->epilogue, sizeof(uint32_t), value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return copy_value(&desc->bias, sizeof(void *), value, bytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    free(desc);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t leading)
{
    *layout = NULL;
    if (rows == 0 || columns == 0 || leading < 0 || (uint64_t)leading < rows)
        return CUBLAS_STATUS_INVALID_VALUE;
    *layout = calloc(1, sizeof **layout);
    if (*layout == NULL)
        return CUBLAS_STATUS_ALLOC_FAILED;
    (*layout)->type = type;
    (*layout)->rows = rows;
    (*layout)->columns = columns;
    (*layout)->leading = leading;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    free(layout);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    *preference = calloc(1, sizeof **preference);
    if (*preference == NULL)
        return CUBLAS_STATUS_ALLOC_FAILED;
    struct cublasLtMatmulPreferenceOpaque *made = *preference;
    made->schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
    made->a_align = made->b_align = made->c_align = made->d_align = ALIGN_MAX;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t which,
                                                    const void *value, size_t bytes)
{
    switch (which) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return copy_value(&preference->workspace_bytes, sizeof(uint64_t), value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return copy_value(&preference->schemes, sizeof(uint32_t), value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
        return copy_value(&preference->a_align, sizeof(uint32_t), value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
        return copy_value(&preference->b_align, sizeof(uint32_t), value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
        return copy_value(&preference->c_align, sizeof(uint32_t), value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return copy_value(&preference->d_align, sizeof(uint32_t), value, bytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    free(preference);
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- problems ---- */

struct problem {
    uint64_t m, n, k; /* D is [m, n], column-major */
    bool a_transposed, b_transposed, has_bias;
    enum dtype type, result_type;
    uint64_t a_leading, b_leading, d_leading;
    uint64_t a_bytes, b_bytes, d_bytes; /* from the first element to the last */
};

static bool type_of(cudaDataType type, enum dtype *found)
{
    *found = type == CUDA_R_32F ? DTYPE_FP32 : type == CUDA_R_16F ? DTYPE_FP16 : DTYPE_BF16;
    return type == CUDA_R_32F || type == CUDA_R_16F || type == CUDA_R_16BF;
}

static uint64_t span_bytes(cublasLtMatrixLayout_t layout, enum dtype type)
{
    return ((layout->columns - 1) * (uint64_t)layout->leading + layout->rows) * dtype_bytes(type);
}

static bool read_problem(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                         cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                         cublasLtMatrixLayout_t d, struct problem *problem)
{
    memset(problem, 0, sizeof *problem); /* padding too: it is hashed */
    enum dtype b_type;
    if (desc == NULL || a == NULL || b == NULL || c == NULL || d == NULL)
        return false;
    problem->a_transposed = desc->a_operation == CUBLAS_OP_T;
    problem->b_transposed = desc->b_operation == CUBLAS_OP_T;
    problem->has_bias = desc->epilogue == CUBLASLT_EPILOGUE_BIAS;
    problem->m = d->rows;
    problem->n = d->columns;
    problem->k = problem->a_transposed ? a->rows : a->columns;
    if (!type_of(a->type, &problem->type) || !type_of(b->type, &b_type) ||
        !type_of(d->type, &problem->result_type) || b_type != problem->type)
        return false;
    problem->a_leading = (uint64_t)a->leading;
    problem->b_leading = (uint64_t)b->leading;
    problem->d_leading = (uint64_t)d->leading;
    problem->a_bytes = span_bytes(a, problem->type);
    problem->b_bytes = span_bytes(b, problem->type);
    problem->d_bytes = span_bytes(d, problem->result_type);
    return (problem->a_transposed ? a->columns : a->rows) == problem->m &&
           (problem->b_transposed ? b->rows : b->columns) == problem->n &&
           (problem->b_transposed ? b->columns : b->rows) == problem->k && c->rows == d->rows &&
           c->columns == d->columns && c->leading == d->leading && c->type == d->type &&
           (problem->result_type == problem->type || problem->result_type == DTYPE_FP32);
}

static uint64_t hash_of(const struct problem *problem)
{
    uint64_t hash = 0xcbf29ce484222325u;
    const unsigned char *bytes = (const unsigned char *)problem;
    for (size_t i = 0; i < sizeof *problem; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}

static uint32_t alignment_of(const void *pointer)
{
    uintptr_t bits = (uintptr_t)pointer | ALIGN_MAX;
    return (uint32_t)(bits & (~bits + 1));
}

static bool is_supported(const struct problem *problem,
                         const struct cublasLtMatmulPreferenceOpaque *preference)
{
    if (problem->type == DTYPE_FP32)
        return true;
    if (problem->has_bias && problem->result_type == DTYPE_FP32)
        return false;
    return preference->a_align >= 4 && preference->b_align >= 4 && preference->c_align >= 4 &&
           preference->d_align >= 4 && problem->a_leading % 2 == 0 && problem->b_leading % 2 == 0;
}

static void add_result(const struct algo *algo, cublasStatus_t state, int count_max,
                       cublasLtMatmulHeuristicResult_t *results, int *count)
{
    if (*count >= count_max)
        return;
    cublasLtMatmulHeuristicResult_t *result = &results[(*count)++];
    memset(result, 0, sizeof *result);
    memcpy(&result->algo, algo, sizeof *algo);
    result->workspaceSize = algo->workspace_bytes;
    result->state = state;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int count_max,
                                              cublasLtMatmulHeuristicResult_t *results, int *count)
{
    struct problem problem;
    *count = 0;
    if (handle == NULL || handle->magic != MAGIC)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!read_problem(desc, a, b, c, d, &problem) || preference == NULL || count_max < 1)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!is_supported(&problem, preference))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    struct algo algo = {
        .kind = ALGO_ORDERED,
        .a_align = preference->a_align,
        .b_align = preference->b_align,
        .c_align = preference->c_align,
        .d_align = preference->d_align,
        .bias_align = problem.has_bias ? alignment_of(desc->bias) : 1,
        .problem = hash_of(&problem),
        .part_elems = problem.k,
    };
    uint64_t parts = PARTS_MAX;
    uint64_t split_bytes = parts * problem.m * problem.n * sizeof(float);
    struct algo refused = algo;
    refused.kind = ALGO_REFUSED;
    add_result(&refused, CUBLAS_STATUS_NOT_SUPPORTED, count_max, results, count);
    if (problem.k % 16 == 1)
        add_result(&refused, CUBLAS_STATUS_SUCCESS, count_max, results, count);
    if (preference->schemes &
        (CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE)) {
        algo.kind = ALGO_UNORDERED;
    } else if ((preference->schemes & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) &&
               problem.k >= SPLIT_K && split_bytes <= preference->workspace_bytes) {
        algo.kind = ALGO_SPLIT;
        algo.part_elems = (problem.k + parts - 1) / parts;
        algo.workspace_bytes = split_bytes;
    }
    add_result(&algo, CUBLAS_STATUS_SUCCESS, count_max, results, count);
    if (algo.kind == ALGO_SPLIT) { /* a second choice, with other sums */
        algo.kind = ALGO_ORDERED;
        algo.part_elems = problem.k;
        algo.workspace_bytes = 0;
        add_result(&algo, CUBLAS_STATUS_SUCCESS, count_max, results, count);
    }
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- running ---- */

struct work {
    struct problem problem;
    struct algo algo;
    const char *a, *b, *bias;
    char *d; /* and C */
    float *workspace;
    float beta;
    uint64_t turn; /* of ALGO_UNORDERED */
};

static float load(const void *data, enum dtype type, uint64_t idx)
{
    const uint16_t *halves = data;
    if (type == DTYPE_FP32)
        return ((const float *)data)[idx];
    return type == DTYPE_BF16 ? fp32_from_bf16(halves[idx]) : fp32_from_fp16(halves[idx]);
}

static void store(void *data, enum dtype type, uint64_t idx, float value)
{
    if (type == DTYPE_FP32)
        ((float *)data)[idx] = value;
    else
        ((uint16_t *)data)[idx] =
            type == DTYPE_BF16 ? bf16_from_fp32(value) : fp16_from_fp32(value);
}

/* Both operands in fp32, as rows of k: they are read once, not for each element of the result. */
struct wide {
    float *a; /* [m, k] */
    float *b; /* [n, k] */
};

static void widen(const struct work *work, struct wide *out)
{
    const struct problem *problem = &work->problem;
    uint64_t k = problem->k;
    out->a = malloc((problem->m * k + problem->n * k) * sizeof *out->a);
    assert(out->a);
    out->b = out->a + problem->m * k;
    for (uint64_t l = 0; l < k; l++) {
        for (uint64_t row = 0; row < problem->m; row++)
            out->a[row * k + l] = load(work->a, problem->type,
                                       problem->a_transposed ? row * problem->a_leading + l
                                                             : l * problem->a_leading + row);
        for (uint64_t column = 0; column < problem->n; column++)
            out->b[column * k + l] = load(work->b, problem->type,
                                          problem->b_transposed ? l * problem->b_leading + column
                                                                : column * problem->b_leading + l);
    }
}

/* The sum over [begin, end) of k of one element of op(A) op(B), in LANES sums at a time. */
static float sum_of(const struct work *work, const struct wide *wide, uint64_t row, uint64_t column,
                    uint64_t begin, uint64_t end)
{
    enum { LANES = 8 };
    const float *a = wide->a + row * work->problem.k, *b = wide->b + column * work->problem.k;
    float sums[LANES] = {0}, total = 0;
    uint64_t l = begin;
    for (; l + LANES <= end; l += LANES)
        for (int i = 0; i < LANES; i++)
            sums[i] += a[l + i] * b[l + i];
    for (; l < end; l++)
        sums[0] += a[l] * b[l];
    for (int i = 0; i < LANES; i++) /* an unordered one has another order each time */
        total += sums[work->turn % 2 ? LANES - 1 - i : i];
    return total;
}

static float split_sum(const struct work *work, const struct wide *wide, uint64_t row,
                       uint64_t column)
{
    const struct problem *problem = &work->problem;
    uint64_t elems = problem->m * problem->n, at = column * problem->m + row, part = 0;
    uint64_t k = problem->k - problem->k % SPLIT_STEP;
    for (uint64_t begin = 0; begin < k; begin += work->algo.part_elems, part++) {
        uint64_t end = begin + work->algo.part_elems;
        work->workspace[part * elems + at] =
            sum_of(work, wide, row, column, begin, end < k ? end : k);
    }
    float sum = 0;
    for (uint64_t i = 0; i < part; i++)
        sum += work->workspace[i * elems + at];
    return sum;
}

static uint32_t split_us, ordered_us;

void simulated_gpu_slow_products(uint32_t split, uint32_t ordered)
{
    split_us = split;
    ordered_us = ordered;
}

static void run(void *user)
{
    const struct work *work = user;
    const struct problem *problem = &work->problem;
    struct wide wide;
    uint32_t late_us = work->algo.kind == ALGO_SPLIT ? split_us : ordered_us;
    if (late_us > 0)
        usleep(late_us);
    widen(work, &wide);
    for (uint64_t column = 0; column < problem->n; column++)
        for (uint64_t row = 0; row < problem->m; row++) {
            uint64_t at = column * problem->d_leading + row;
            float value = work->algo.kind == ALGO_SPLIT
                              ? split_sum(work, &wide, row, column)
                              : sum_of(work, &wide, row, column, 0, problem->k);
            if (problem->has_bias)
                value += load(work->bias, problem->type, row);
            if (work->beta != 0)
                value += work->beta * load(work->d, problem->result_type, at);
            store(work->d, problem->result_type, at, value);
        }
    free(wide.a);
}

static bool is_usable(const void *memory, uint64_t bytes, uint32_t align)
{
    return memory != NULL && (uintptr_t)memory % align == 0 &&
           simulated_gpu_may_touch(memory, bytes);
}

static bool do_overlap(const char *a, uint64_t a_bytes, const char *b, uint64_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

/* All that cublasLtMatmul can know before the work runs. */
static bool is_valid(const struct work *work, const void *c, size_t workspace_bytes)
{
    const struct problem *problem = &work->problem;
    const struct algo *algo = &work->algo;
    if (algo->problem != hash_of(problem) || c != work->d)
        return false;
    if (!is_usable(work->a, problem->a_bytes, algo->a_align) ||
        !is_usable(work->b, problem->b_bytes, algo->b_align) ||
        !is_usable(work->d, problem->d_bytes, algo->d_align) ||
        !is_usable(c, problem->d_bytes, algo->c_align))
        return false;
    if (do_overlap(work->d, problem->d_bytes, work->a, problem->a_bytes) ||
        do_overlap(work->d, problem->d_bytes, work->b, problem->b_bytes))
        return false;
    if (problem->has_bias &&
        !is_usable(work->bias, problem->m * dtype_bytes(problem->type), algo->bias_align))
        return false;
    if (workspace_bytes < algo->workspace_bytes)
        return false;
    return algo->workspace_bytes == 0 ||
           is_usable(work->workspace, algo->workspace_bytes, ALIGN_MAX);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
    static uint64_t turns;
    struct work work = {.a = a, .b = b, .d = d, .workspace = workspace};
    float one;
    if (handle == NULL || handle->magic != MAGIC)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!read_problem(desc, a_layout, b_layout, c_layout, d_layout, &work.problem) || algo == NULL)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&work.algo, algo, sizeof work.algo);
    memcpy(&one, alpha, sizeof one);
    memcpy(&work.beta, beta, sizeof work.beta);
    work.bias = desc->bias;
    if (one != 1.0f || (work.beta != 0.0f && work.beta != 1.0f) ||
        !is_valid(&work, c, workspace_bytes))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (work.algo.kind == ALGO_REFUSED)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    work.turn =
        work.algo.kind == ALGO_UNORDERED ? __atomic_fetch_add(&turns, 1, __ATOMIC_RELAXED) : 0;
    struct work *queued = malloc(sizeof *queued);
    if (queued == NULL)
        return CUBLAS_STATUS_ALLOC_FAILED;
    *queued = work;
    return simulated_gpu_enqueue(stream, "cublasLtMatmul", run, free, queued) == cudaSuccess
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_EXECUTION_FAILED;
}

/* ---- kernels/cuda/library.c on the simulated GPU ----
 *
 * cuBLASLt is the stand-in above, every other library is absent. With SLUICE_SIMULATED_NO_LIBRARIES
 * in the environment all libraries are absent. */

typedef void (*entry_point)(void);

static const struct entry {
    const char *name;
    entry_point function;
} entries[] = {
    {"cublasLtCreate", (entry_point)cublasLtCreate},
    {"cublasLtDestroy", (entry_point)cublasLtDestroy},
    {"cublasLtGetVersion", (entry_point)cublasLtGetVersion},
    {"cublasLtGetStatusString", (entry_point)cublasLtGetStatusString},
    {"cublasLtMatmulDescCreate", (entry_point)cublasLtMatmulDescCreate},
    {"cublasLtMatmulDescSetAttribute", (entry_point)cublasLtMatmulDescSetAttribute},
    {"cublasLtMatmulDescDestroy", (entry_point)cublasLtMatmulDescDestroy},
    {"cublasLtMatrixLayoutCreate", (entry_point)cublasLtMatrixLayoutCreate},
    {"cublasLtMatrixLayoutDestroy", (entry_point)cublasLtMatrixLayoutDestroy},
    {"cublasLtMatmulPreferenceCreate", (entry_point)cublasLtMatmulPreferenceCreate},
    {"cublasLtMatmulPreferenceSetAttribute", (entry_point)cublasLtMatmulPreferenceSetAttribute},
    {"cublasLtMatmulPreferenceDestroy", (entry_point)cublasLtMatmulPreferenceDestroy},
    {"cublasLtMatmulAlgoGetHeuristic", (entry_point)cublasLtMatmulAlgoGetHeuristic},
    {"cublasLtMatmul", (entry_point)cublasLtMatmul},
};

void *cudai_library_open(const char *const *sonames, char *why, size_t why_bytes)
{
    static const char soname[] = "libcublasLt.so.13";
    bool is_hidden = getenv("SLUICE_SIMULATED_NO_LIBRARIES") != NULL;
    for (; *sonames != NULL; sonames++) {
        if (!is_hidden && strcmp(*sonames, soname) == 0)
            return (void *)entries;
        snprintf(why, why_bytes, "%s: the simulated GPU has no such library", *sonames);
    }
    return NULL;
}

void *cudai_library_symbol(void *library, const char *name)
{
    (void)library;
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++)
        if (strcmp(entries[i].name, name) == 0) {
            void *symbol;
            memcpy(&symbol, &entries[i].function, sizeof symbol);
            return symbol;
        }
    return NULL;
}
