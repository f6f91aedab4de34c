/* The matrix products of the ops table on a GPU: cuBLASLt with one algorithm per shape, and our own
 * plain kernel for products that cuBLASLt refuses.
 *
 * Layout. Our matrices are row-major. cuBLASLt's default, for which its kernels are best known, is
 * column-major. A row-major matrix [rows, columns] with row stride s has the same bytes as the
 * column-major matrix [columns, rows] with leading dimension s, its transpose. So C = op(A) op(B)
 * is requested as
 *     C^T[n, m] = op(B)^T[n, k] * op(A)^T[k, m]:
 *                    stored by us            column-major            operation
 *   cuBLASLt's A     B [k, n]                [n, k]                  none
 *                    B [n, k] b_transposed   [k, n]                  transpose
 *   cuBLASLt's B     A [m, k]                [k, m]                  none
 *                    A [k, m] a_transposed   [m, k]                  transpose
 *   cuBLASLt's C = D C [m, n]                [n, m]
 * The library's bias epilogue adds a vector along the rows of D, so it adds our bias[n].
 *
 * Numbers. 16-bit operands are multiplied exactly and added in fp32. fp32 operands are multiplied
 * as fp32 (CUBLAS_COMPUTE_32F), not as TF32: TF32's 11 bits would differ from the CPU backend by
 * 2^-11, and a job that asks for fp32 asks for its precision. If k is split among blocks, the
 * partial sums are fp32 in the workspace, and a second pass adds them in a fixed order (reduction
 * scheme COMPUTE_TYPE). Schemes that add into C in the order in which blocks finish are not
 * allowed. So a product's bits depend only on the shape, cuBLASLt's version and the kind of GPU. k
 * is split only if it is a multiple of every kernel's step: versions 12 and 13 are reported to
 * leave out the remainder of k otherwise, for odd shapes, also on H100.
 *
 * Alignment. An algorithm is chosen for the alignment that the model guarantees for its operands,
 * and each call checks it. Matrices begin on multiples of 256 bytes. An operand may begin further
 * inside a matrix:
 *   - at a row of a matrix with dense rows (a chunk of logits): at a multiple of the stride;
 *   - at a column of a wider matrix, or at an element of a single row (column blocks of a unit in
 *     parts, the logits of one row): at a multiple of 16 elements, as src/model/parts.c cuts,
 *     except for units of very few rows.
 * So the alignment is the largest power of two that divides the stride in bytes, limited to 256 for
 * dense rows and to 16 otherwise, since vector accesses and tensor maps need no more. A call with a
 * smaller alignment runs the plain kernel and logs this once; its result is also correct. The
 * choice depends on where in its matrix an operand begins, and so on the model, never on the
 * matrix's own address.
 *
 * Memory. Creation asks cuBLASLt for algorithms and tries them on temporary memory until one runs.
 * So the library loads its kernels before memory is sealed. A call neither allocates nor
 * synchronizes; the workspace is the op's scratch. All calls come from the context's thread. */
#include <cuda_runtime_api.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "kernels/cuda/matmul_internal.h"

enum {
    /* of every matrix and of scratch; cuBLASLt requires it for a workspace */
    MATRIX_ALIGN_BYTES = 256,
    OFFSET_ALIGN_BYTES = 16, /* of columns in a wider matrix; of a bias */
    ALGO_COUNT = 8,          /* limit of candidates; they come best first by cuBLASLt's estimate */
    /* k is split only if it is a multiple of this; no kernel's step in k is longer */
    SPLIT_STEP = 128,
    SHAPE_TEXT_BYTES = 160,
};

/* The workspace that NVIDIA's manual recommends for cuBLAS (cublasSetWorkspace): 32 MiB from Hopper
 * on, for its split-k and stream-k kernels, and 4 MiB before. */
#define WORKSPACE_BYTES_SM90 ((uint64_t)32 << 20)
#define WORKSPACE_BYTES      ((uint64_t)4 << 20)

struct kernel_matmul {
    const kernel_context *context;
    matmul_desc desc;
    bool is_plain;     /* every call uses our own kernel */
    bool has_reported; /* a call with less aligned operands has been logged */
    /* the alignments for which the algorithm was chosen */
    uint32_t a_align_bytes, b_align_bytes, c_align_bytes;
    size_t scratch_bytes;
    cublasLtMatmulDesc_t operation;              /* NULL if is_plain; also the layouts */
    cublasLtMatrixLayout_t left, right, product; /* cuBLASLt's A, B, C = D: our B, A, C */
    cublasLtMatmulAlgo_t algo;
};

/* ---- checks and texts ---- */

static const char *shape_text(const matmul_desc *desc, char text[SHAPE_TEXT_BYTES])
{
    snprintf(text, SHAPE_TEXT_BYTES, "matrix product m=%llu n=%llu k=%llu%s%s of %s into %s%s%s",
             (unsigned long long)desc->m, (unsigned long long)desc->n, (unsigned long long)desc->k,
             desc->a_transposed ? " A^T" : "", desc->b_transposed ? " B^T" : "",
             dtype_name(desc->ab_type), dtype_name(desc->c_type), desc->has_bias ? " + bias" : "",
             desc->accumulate ? " accumulated" : "");
    return text;
}

static uint64_t a_rows(const matmul_desc *desc)
{
    return desc->a_transposed ? desc->k : desc->m;
}

static uint64_t a_columns(const matmul_desc *desc)
{
    return desc->a_transposed ? desc->m : desc->k;
}

static uint64_t b_rows(const matmul_desc *desc)
{
    return desc->b_transposed ? desc->n : desc->k;
}

static uint64_t b_columns(const matmul_desc *desc)
{
    return desc->b_transposed ? desc->k : desc->n;
}

static int check_desc(const matmul_desc *desc)
{
    char text[SHAPE_TEXT_BYTES];
    if (desc->m == 0 || desc->n == 0 || desc->k == 0)
        return err_set(ERR_BACKEND, "%s is empty", shape_text(desc, text));
    if (desc->a_stride < a_columns(desc) || desc->b_stride < b_columns(desc) ||
        desc->c_stride < desc->n)
        return err_set(
            ERR_BACKEND,
            "%s: strides %llu, %llu, %llu of A, B, C are shorter than their rows of %llu, "
            "%llu, %llu",
            shape_text(desc, text), (unsigned long long)desc->a_stride,
            (unsigned long long)desc->b_stride, (unsigned long long)desc->c_stride,
            (unsigned long long)a_columns(desc), (unsigned long long)b_columns(desc),
            (unsigned long long)desc->n);
    if (desc->c_type != DTYPE_FP32 && (desc->c_type != desc->ab_type || desc->accumulate))
        return err_set(ERR_BACKEND, "%s: C is fp32, or of the operands' type and not accumulated",
                       shape_text(desc, text));
    uint64_t rows_max = size_max(desc->m, size_max(desc->n, desc->k)), elems, bytes;
    uint64_t stride_max = size_max(desc->a_stride, size_max(desc->b_stride, desc->c_stride));
    TRY(size_mul(rows_max, stride_max, &elems));
    return size_mul(elems, 8, &bytes); /* so all offsets in bytes fit signed 64 bits */
}

static int failed(const kernel_matmul *product, const char *what, cublasStatus_t status)
{
    char text[SHAPE_TEXT_BYTES];
    (void)cudaGetLastError(); /* otherwise the next call would report it again */
    return err_set(ERR_BACKEND, "%s: %s says %s", shape_text(&product->desc, text), what,
                   product->context->cublas->api.status_string(status));
}

/* Returns from the calling function if cuBLASLt refused. */
#define TRY_CUBLAS(product, what, call)                                                            \
    do {                                                                                           \
        cublasStatus_t try_status_ = (call);                                                       \
        if (try_status_ != CUBLAS_STATUS_SUCCESS)                                                  \
            return failed(product, what, try_status_);                                             \
    } while (0)

/* See "Alignment" at the head of this file. */
static uint32_t align_bytes_of(uint64_t rows, uint64_t columns, uint64_t stride, enum dtype type)
{
    uint64_t stride_bytes = stride * dtype_bytes(type);
    uint64_t divisor = stride_bytes & (~stride_bytes + 1); /* its lowest bit */
    bool is_dense = stride == columns && rows > 1;
    return (uint32_t)size_min(divisor, is_dense ? MATRIX_ALIGN_BYTES : OFFSET_ALIGN_BYTES);
}

static bool is_aligned(const void *operand, uint64_t align_bytes)
{
    return (uintptr_t)operand % align_bytes == 0;
}

/* ---- creation ---- */

static cudaDataType cuda_type(enum dtype type)
{
    return type == DTYPE_FP32 ? CUDA_R_32F : type == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

static int set_operation(kernel_matmul *product)
{
    const struct cudai_cublas_api *api = &product->context->cublas->api;
    const matmul_desc *desc = &product->desc;
    int32_t left = desc->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    int32_t right = desc->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    TRY_CUBLAS(product, "cublasLtMatmulDescCreate",
               api->desc_create(&product->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    TRY_CUBLAS(product, "cublasLtMatmulDescSetAttribute of transposition",
               api->desc_set(product->operation, CUBLASLT_MATMUL_DESC_TRANSA, &left, sizeof left));
    TRY_CUBLAS(
        product, "cublasLtMatmulDescSetAttribute of transposition",
        api->desc_set(product->operation, CUBLASLT_MATMUL_DESC_TRANSB, &right, sizeof right));
    if (!desc->has_bias)
        return 0;
    uint32_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    /* No memory yet: cuBLASLt looks only at the alignment of this address when it chooses an
     * algorithm. */
    const void *bias = (const void *)(uintptr_t)OFFSET_ALIGN_BYTES;
    TRY_CUBLAS(product, "cublasLtMatmulDescSetAttribute of the epilogue",
               api->desc_set(product->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                             sizeof epilogue));
    TRY_CUBLAS(
        product, "cublasLtMatmulDescSetAttribute of the bias",
        api->desc_set(product->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
    return 0;
}

static int set_layouts(kernel_matmul *product)
{
    const struct cudai_cublas_api *api = &product->context->cublas->api;
    const matmul_desc *desc = &product->desc;
    cudaDataType operands = cuda_type(desc->ab_type);
    TRY_CUBLAS(product, "cublasLtMatrixLayoutCreate of B",
               api->layout_create(&product->left, operands, b_columns(desc), b_rows(desc),
                                  (int64_t)desc->b_stride));
    TRY_CUBLAS(product, "cublasLtMatrixLayoutCreate of A",
               api->layout_create(&product->right, operands, a_columns(desc), a_rows(desc),
                                  (int64_t)desc->a_stride));
    TRY_CUBLAS(product, "cublasLtMatrixLayoutCreate of C",
               api->layout_create(&product->product, cuda_type(desc->c_type), desc->n, desc->m,
                                  (int64_t)desc->c_stride));
    return 0;
}

static int set_preference(const kernel_matmul *product, cublasLtMatmulPreference_t preference)
{
    uint64_t workspace_bytes =
        product->context->compute_major >= 9 ? WORKSPACE_BYTES_SM90 : WORKSPACE_BYTES;
    /* Either k is not split, or a second pass adds the partial sums in fp32 and in order. */
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE;
    if (product->desc.k % SPLIT_STEP == 0)
        schemes |= CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    uint32_t left = product->b_align_bytes, right = product->a_align_bytes;
    uint32_t result = product->c_align_bytes;
    const struct preference {
        cublasLtMatmulPreferenceAttributes_t which;
        const void *value;
        size_t bytes;
    } wanted[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes, sizeof workspace_bytes},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &left, sizeof left},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &right, sizeof right},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &result, sizeof result},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &result, sizeof result},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        TRY_CUBLAS(product, "cublasLtMatmulPreferenceSetAttribute",
                   product->context->cublas->api.preference_set(preference, wanted[i].which,
                                                                wanted[i].value, wanted[i].bytes));
    return 0;
}

/* Asks for the candidates. *count is 0 if cuBLASLt has none. */
static int find_algorithms(const kernel_matmul *product, cublasLtMatmulHeuristicResult_t *found,
                           int *count)
{
    const struct cudai_cublas_api *api = &product->context->cublas->api;
    cublasLtMatmulPreference_t preference;
    *count = 0;
    TRY_CUBLAS(product, "cublasLtMatmulPreferenceCreate", api->preference_create(&preference));
    int rc = set_preference(product, preference);
    if (rc == 0) {
        cublasStatus_t status = api->get_heuristic(
            product->context->cublas->handle, product->operation, product->left, product->right,
            product->product, product->product, preference, ALGO_COUNT, found, count);
        if (status == CUBLAS_STATUS_NOT_SUPPORTED)
            *count = 0;
        else if (status != CUBLAS_STATUS_SUCCESS)
            rc = failed(product, "cublasLtMatmulAlgoGetHeuristic", status);
    }
    (void)api->preference_destroy(preference);
    return rc;
}

static cublasStatus_t run_cublas(const kernel_matmul *product, void *stream, const void *a,
                                 const void *b, void *c, void *scratch)
{
    const struct cudai_cublas *cublas = product->context->cublas;
    const float alpha = 1.0f, beta = product->desc.accumulate ? 1.0f : 0.0f;
    return cublas->api.matmul(cublas->handle, product->operation, &alpha, b, product->left, a,
                              product->right, &beta, c, product->product, c, product->product,
                              &product->algo, scratch, product->scratch_bytes, stream);
}

static cublasStatus_t set_bias(const kernel_matmul *product, const void *bias)
{
    if (!product->desc.has_bias)
        return CUBLAS_STATUS_SUCCESS;
    return product->context->cublas->api.desc_set(
        product->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
}

/* Returns the bytes from the first element of a matrix to the end of its last. */
static uint64_t span_bytes(uint64_t rows, uint64_t columns, uint64_t stride, enum dtype type)
{
    return ((rows - 1) * stride + columns) * dtype_bytes(type);
}

/* Temporary memory of the first run. A, B and the bias all lie at 0, since inputs may overlap. C
 * lies apart, as the library requires, followed by the workspace. */
struct trial_layout {
    uint64_t c, workspace, total_bytes;
};

static struct trial_layout lay_trial(const matmul_desc *desc, uint64_t workspace_bytes)
{
    uint64_t a = span_bytes(a_rows(desc), a_columns(desc), desc->a_stride, desc->ab_type);
    uint64_t b = span_bytes(b_rows(desc), b_columns(desc), desc->b_stride, desc->ab_type);
    uint64_t c = span_bytes(desc->m, desc->n, desc->c_stride, desc->c_type);
    struct trial_layout at = {.c = size_round_up(size_max(a, b), MATRIX_ALIGN_BYTES)};
    at.workspace = at.c + size_round_up(c, MATRIX_ALIGN_BYTES);
    at.total_bytes = at.workspace + workspace_bytes;
    return at;
}

/* True if cuBLASLt refused to run a candidate, false if running it failed. */
static bool is_refusal(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
           status == CUBLAS_STATUS_ARCH_MISMATCH;
}

/* Takes the first candidate that runs on `memory` (zeros, placed as `at` says). If memory is NULL,
 * takes the first candidate without a run. *is_found is false if there is none. */
static int take_algorithm(kernel_matmul *product, const cublasLtMatmulHeuristicResult_t *found,
                          int count, char *memory, const struct trial_layout *at, bool *is_found)
{
    *is_found = false;
    if (memory != NULL)
        TRY_CUBLAS(product, "cublasLtMatmulDescSetAttribute of the bias",
                   set_bias(product, memory));
    for (int i = 0; i < count && !*is_found; i++) {
        if (found[i].state != CUBLAS_STATUS_SUCCESS)
            continue;
        product->algo = found[i].algo;
        product->scratch_bytes = found[i].workspaceSize;
        cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
        if (memory != NULL)
            status =
                run_cublas(product, NULL, memory, memory, memory + at->c, memory + at->workspace);
        *is_found = status == CUBLAS_STATUS_SUCCESS;
        if (!*is_found && !is_refusal(status))
            return failed(product, "cublasLtMatmul", status);
    }
    return memory == NULL ? 0
                          : cudai_check(cudaStreamSynchronize(NULL), "the first matrix product");
}

static int choose_algorithm(kernel_matmul *product, bool *is_found)
{
    cublasLtMatmulHeuristicResult_t found[ALGO_COUNT];
    int count;
    *is_found = false;
    TRY(find_algorithms(product, found, &count));
    uint64_t workspace_bytes = 0;
    for (int i = 0; i < count; i++)
        if (found[i].state == CUBLAS_STATUS_SUCCESS)
            workspace_bytes = size_max(workspace_bytes, found[i].workspaceSize);
    struct trial_layout at = lay_trial(&product->desc, workspace_bytes);
    void *memory = NULL;
    int cuda = count > 0 ? cudaMalloc(&memory, at.total_bytes) : cudaSuccess;
    if (cuda == cudaErrorMemoryAllocation) {
        char text[SHAPE_TEXT_BYTES], size[SIZE_TEXT_BYTES];
        (void)cudaGetLastError();
        memory = NULL;
        log_info("%s: a trial run needs %s of GPU memory, which are not free; its kernels load at "
                 "the first step",
                 shape_text(&product->desc, text), size_format(at.total_bytes, size));
    } else {
        TRY(cudai_check(cuda, "memory for the first matrix product"));
    }
    int rc = 0;
    if (memory != NULL)
        rc = cudai_check(cudaMemsetAsync(memory, 0, at.total_bytes, NULL),
                         "zeros for a matrix product");
    if (rc == 0)
        rc = take_algorithm(product, found, count, memory, &at, is_found);
    if (memory == NULL)
        return rc;
    cuda = cudaFree(memory);
    if (rc == 0) /* otherwise the first error stays */
        rc = cudai_check(cuda, "freeing the first matrix product's memory");
    return rc;
}

/* Prepares the product for cuBLASLt. *is_found is false if it has no algorithm. */
static int prepare(kernel_matmul *product, bool *is_found)
{
    const matmul_desc *desc = &product->desc;
    *is_found = false;
    if (desc->has_bias && desc->c_type != desc->ab_type)
        return 0; /* the epilogue's bias has C's type, but ours has the operands' type */
    product->a_align_bytes =
        align_bytes_of(a_rows(desc), a_columns(desc), desc->a_stride, desc->ab_type);
    product->b_align_bytes =
        align_bytes_of(b_rows(desc), b_columns(desc), desc->b_stride, desc->ab_type);
    product->c_align_bytes = align_bytes_of(desc->m, desc->n, desc->c_stride, desc->c_type);
    TRY(set_operation(product));
    TRY(set_layouts(product));
    return choose_algorithm(product, is_found);
}

int cudai_matmul_create(kernel_context *context, const matmul_desc *desc, kernel_matmul **out)
{
    *out = NULL;
    TRY(check_desc(desc));
    kernel_matmul *product = mem_alloc(1, sizeof *product, "cuda product");
    if (product == NULL)
        return -ENOMEM;
    product->context = context;
    product->desc = *desc;
    bool is_found;
    int rc = prepare(product, &is_found);
    if (rc < 0) {
        cudai_matmul_destroy(product);
        return rc;
    }
    if (!is_found) {
        char text[SHAPE_TEXT_BYTES];
        product->is_plain = true;
        product->scratch_bytes = 0;
        log_warn("%s has no algorithm for the %s with strides %llu, %llu, %llu: our own kernel "
                 "runs it, many times slower",
                 context->cublas->version, shape_text(desc, text),
                 (unsigned long long)desc->a_stride, (unsigned long long)desc->b_stride,
                 (unsigned long long)desc->c_stride);
    }
    *out = product;
    return 0;
}

void cudai_matmul_destroy(kernel_matmul *product)
{
    if (product == NULL)
        return;
    const struct cudai_cublas_api *api = &product->context->cublas->api;
    if (product->product != NULL)
        (void)api->layout_destroy(product->product);
    if (product->right != NULL)
        (void)api->layout_destroy(product->right);
    if (product->left != NULL)
        (void)api->layout_destroy(product->left);
    if (product->operation != NULL)
        (void)api->desc_destroy(product->operation);
    mem_free(product);
}

size_t cudai_matmul_scratch_bytes(const kernel_matmul *product)
{
    return product->scratch_bytes;
}

/* ---- calls ---- */

static int check_operand(const kernel_matmul *product, const char *name, const void *operand,
                         enum dtype type)
{
    char text[SHAPE_TEXT_BYTES];
    if (operand == NULL)
        return err_set(ERR_BACKEND, "%s: %s is NULL", shape_text(&product->desc, text), name);
    if (!is_aligned(operand, dtype_bytes(type)))
        return err_set(ERR_BACKEND, "%s: %s lies at %p, which is not aligned to %s elements",
                       shape_text(&product->desc, text), name, operand, dtype_name(type));
    return 0;
}

static int check_scratch(const kernel_matmul *product, const void *scratch)
{
    char text[SHAPE_TEXT_BYTES];
    if (product->scratch_bytes > 0 && (scratch == NULL || !is_aligned(scratch, MATRIX_ALIGN_BYTES)))
        return err_set(ERR_BACKEND,
                       "%s: its scratch of %zu bytes lies at %p, but must lie on a "
                       "multiple of %d bytes",
                       shape_text(&product->desc, text), product->scratch_bytes, scratch,
                       MATRIX_ALIGN_BYTES);
    return 0;
}

/* True if the operands have the alignment for which the algorithm was chosen. Otherwise logs it
 * once. */
static bool are_aligned(kernel_matmul *product, const void *a, const void *b, const void *bias,
                        const void *c)
{
    const struct operand {
        const char *name;
        const void *at;
        uint32_t align_bytes;
    } operands[] = {{"A", a, product->a_align_bytes},
                    {"B", b, product->b_align_bytes},
                    {"C", c, product->c_align_bytes},
                    {"bias", product->desc.has_bias ? bias : NULL, OFFSET_ALIGN_BYTES}};
    for (size_t i = 0; i < sizeof operands / sizeof operands[0]; i++) {
        if (is_aligned(operands[i].at, operands[i].align_bytes))
            continue;
        char text[SHAPE_TEXT_BYTES];
        if (!product->has_reported)
            log_warn("%s: %s is not aligned to %u bytes: our own kernel runs it, many times slower",
                     shape_text(&product->desc, text), operands[i].name, operands[i].align_bytes);
        product->has_reported = true;
        return false;
    }
    return true;
}

int cudai_matmul(kernel_matmul *product, void *stream, const void *a, const void *b,
                 const void *bias, void *c, void *scratch)
{
    const matmul_desc *desc = &product->desc;
    TRY(check_operand(product, "A", a, desc->ab_type));
    TRY(check_operand(product, "B", b, desc->ab_type));
    TRY(check_operand(product, "C", c, desc->c_type));
    if (desc->has_bias)
        TRY(check_operand(product, "the bias", bias, desc->ab_type));
    if (product->is_plain || !are_aligned(product, a, b, bias, c))
        return cudai_check(cudai_matmul_plain_launch(desc, stream, a, b, bias, c),
                           "the plain matrix product");
    TRY(check_scratch(product, scratch));
    TRY_CUBLAS(product, "cublasLtMatmulDescSetAttribute of the bias", set_bias(product, bias));
    TRY_CUBLAS(product, "cublasLtMatmul", run_cublas(product, stream, a, b, c, scratch));
    return 0;
}
