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
 * The library's bias epilogue adds a vector along the rows of D, so it adds our bias[n]. Its bias
 * has C's type, and ours has the operands'. Where these differ (the logits of BERT), our own kernel
 * first fills C with the bias, as a product over no k, and the library adds the product.
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
#include "kernels/cuda/matmul/matmul_internal.h"

enum { OFFSET_ALIGN_BYTES = 16 }; /* of columns in a wider matrix; of a bias */

int cudai_product_failed(const kernel_matmul *product, const char *what, cublasStatus_t status)
{
    char text[MATMUL_TEXT_BYTES];
    (void)cudaGetLastError(); /* otherwise the next call would report it again */
    return err_set(ERR_BACKEND, "%s: %s says %s", matmul_text(&product->desc, text), what,
                   product->context->cublas->api.status_string(status));
}

/* See "Alignment" at the head of this file. */
static uint32_t align_bytes_of(uint64_t rows, uint64_t columns, uint64_t stride, enum dtype type)
{
    uint64_t stride_bytes = stride * dtype_bytes(type);
    uint64_t divisor = stride_bytes & (~stride_bytes + 1); /* its lowest bit */
    bool is_dense = stride == columns && rows > 1;
    return (uint32_t)size_min(divisor, is_dense ? CUDAI_MATRIX_ALIGN_BYTES : OFFSET_ALIGN_BYTES);
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
    if (!desc->has_bias || product->begins_bias)
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
               api->layout_create(&product->left, operands, matmul_b_columns(desc),
                                  matmul_b_rows(desc), (int64_t)desc->b_stride));
    TRY_CUBLAS(product, "cublasLtMatrixLayoutCreate of A",
               api->layout_create(&product->right, operands, matmul_a_columns(desc),
                                  matmul_a_rows(desc), (int64_t)desc->a_stride));
    TRY_CUBLAS(product, "cublasLtMatrixLayoutCreate of C",
               api->layout_create(&product->product, cuda_type(desc->c_type), desc->n, desc->m,
                                  (int64_t)desc->c_stride));
    return 0;
}

cublasStatus_t cudai_product_run(const kernel_matmul *product, void *stream, const void *a,
                                 const void *b, void *c, void *scratch)
{
    const struct cudai_cublas *cublas = product->context->cublas;
    bool adds = product->desc.accumulate || product->begins_bias;
    const float alpha = 1.0f, beta = adds ? 1.0f : 0.0f;
    return cublas->api.matmul(cublas->handle, product->operation, &alpha, b, product->left, a,
                              product->right, &beta, c, product->product, c, product->product,
                              &product->algo, scratch, product->scratch_bytes, stream);
}

cublasStatus_t cudai_product_set_bias(const kernel_matmul *product, const void *bias)
{
    if (!product->desc.has_bias || product->begins_bias)
        return CUBLAS_STATUS_SUCCESS;
    return product->context->cublas->api.desc_set(
        product->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
}

/* Prepares the product for cuBLASLt. *is_found is false if it has no algorithm. */
static int prepare(kernel_matmul *product, bool *is_found)
{
    const matmul_desc *desc = &product->desc;
    *is_found = false;
    product->begins_bias = desc->has_bias && desc->c_type != desc->ab_type;
    product->a_align_bytes =
        align_bytes_of(matmul_a_rows(desc), matmul_a_columns(desc), desc->a_stride, desc->ab_type);
    product->b_align_bytes =
        align_bytes_of(matmul_b_rows(desc), matmul_b_columns(desc), desc->b_stride, desc->ab_type);
    product->c_align_bytes = align_bytes_of(desc->m, desc->n, desc->c_stride, desc->c_type);
    TRY(set_operation(product));
    TRY(set_layouts(product));
    return cudai_product_choose(product, is_found);
}

int cudai_matmul_create(kernel_context *context, const matmul_desc *desc, kernel_matmul **out)
{
    *out = NULL;
    TRY(matmul_check(desc));
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
        char text[MATMUL_TEXT_BYTES];
        product->is_plain = true;
        product->scratch_bytes = 0;
        log_warn("%s has no algorithm for the %s with strides %llu, %llu, %llu: our own kernel "
                 "runs it, many times slower",
                 context->cublas->version, matmul_text(desc, text),
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
    char text[MATMUL_TEXT_BYTES];
    if (operand == NULL)
        return err_set(ERR_BACKEND, "%s: %s is NULL", matmul_text(&product->desc, text), name);
    if (!is_aligned(operand, dtype_bytes(type)))
        return err_set(ERR_BACKEND, "%s: %s lies at %p, which is not aligned to %s elements",
                       matmul_text(&product->desc, text), name, operand, dtype_name(type));
    return 0;
}

static int check_scratch(const kernel_matmul *product, const void *scratch)
{
    char text[MATMUL_TEXT_BYTES];
    if (product->scratch_bytes > 0 &&
        (scratch == NULL || !is_aligned(scratch, CUDAI_MATRIX_ALIGN_BYTES)))
        return err_set(ERR_BACKEND,
                       "%s: its scratch of %zu bytes lies at %p, but must lie on a "
                       "multiple of %d bytes",
                       matmul_text(&product->desc, text), product->scratch_bytes, scratch,
                       CUDAI_MATRIX_ALIGN_BYTES);
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
        char text[MATMUL_TEXT_BYTES];
        if (!product->has_reported)
            log_warn("%s: %s is not aligned to %u bytes: our own kernel runs it, many times slower",
                     matmul_text(&product->desc, text), operands[i].name, operands[i].align_bytes);
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
    if (product->begins_bias) {
        matmul_desc fill = *desc;
        fill.k = 0;
        TRY(cudai_check(cudai_matmul_plain_launch(&fill, stream, a, b, bias, c),
                        "the bias of a matrix product"));
    }
    TRY_CUBLAS(product, "cublasLtMatmulDescSetAttribute of the bias",
               cudai_product_set_bias(product, bias));
    TRY_CUBLAS(product, "cublasLtMatmul", cudai_product_run(product, stream, a, b, c, scratch));
    return 0;
}
