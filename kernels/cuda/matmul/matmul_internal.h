/* cuBLASLt's handle and its entry points, which are found at run time. */
#ifndef SLUICE_KERNELS_CUDA_MATMUL_INTERNAL_H
#define SLUICE_KERNELS_CUDA_MATMUL_INTERNAL_H

#include <cublasLt.h>

#include "kernels/cuda/cuda_internal.h"
#include "kernels/matmul_desc.h"

/* The entry points of cuBLASLt. Their signatures, and the enums used here, are the same in 12.4 and
 * 13.1. */
struct cudai_cublas_api {
    typeof(cublasLtCreate) *create;
    typeof(cublasLtDestroy) *destroy;
    typeof(cublasLtGetVersion) *get_version;
    typeof(cublasLtGetStatusString) *status_string;
    typeof(cublasLtMatmulDescCreate) *desc_create;
    typeof(cublasLtMatmulDescSetAttribute) *desc_set;
    typeof(cublasLtMatmulDescDestroy) *desc_destroy;
    typeof(cublasLtMatrixLayoutCreate) *layout_create;
    typeof(cublasLtMatrixLayoutDestroy) *layout_destroy;
    typeof(cublasLtMatmulPreferenceCreate) *preference_create;
    typeof(cublasLtMatmulPreferenceSetAttribute) *preference_set;
    typeof(cublasLtMatmulPreferenceDestroy) *preference_destroy;
    typeof(cublasLtMatmulAlgoGetHeuristic) *get_heuristic;
    typeof(cublasLtMatmul) *matmul;
};

struct cudai_cublas {
    struct cudai_cublas_api api;
    cublasLtHandle_t handle;
    char version[64];
};

enum { CUDAI_MATRIX_ALIGN_BYTES = 256 }; /* of every matrix and of scratch: cuBLASLt requires it */

struct kernel_matmul {
    kernel_context *context;
    matmul_desc desc;
    bool is_plain;     /* every call uses our own kernel */
    bool begins_bias;  /* C is first filled with the bias, and the product is added to it */
    bool has_reported; /* a call with less aligned operands has been logged */
    /* the alignments for which the algorithm was chosen */
    uint32_t a_align_bytes, b_align_bytes, c_align_bytes;
    size_t scratch_bytes;
    cublasLtMatmulDesc_t operation;              /* NULL if is_plain; also the layouts */
    cublasLtMatrixLayout_t left, right, product; /* cuBLASLt's A, B, C = D: our B, A, C */
    cublasLtMatmulAlgo_t algo;
};

/* ERR_BACKEND with the shape, `what` and the library's word for the status. */
int cudai_product_failed(const kernel_matmul *product, const char *what, cublasStatus_t status);

/* Returns from the calling function if cuBLASLt refused. */
#define TRY_CUBLAS(product, what, call)                                                            \
    do {                                                                                           \
        cublasStatus_t try_status_ = (call);                                                       \
        if (try_status_ != CUBLAS_STATUS_SUCCESS)                                                  \
            return cudai_product_failed(product, what, try_status_);                               \
    } while (0)

/* Enqueues the product with its present algorithm. */
cublasStatus_t cudai_product_run(const kernel_matmul *product, void *stream, const void *a,
                                 const void *b, void *c, void *scratch);
cublasStatus_t cudai_product_set_bias(const kernel_matmul *product, const void *bias);

/* Chooses the algorithm and the bytes of its workspace (matmul_choice.c). *is_found is false if
 * cuBLASLt has none that runs. Allocates and waits. */
int cudai_product_choose(kernel_matmul *product, bool *is_found) MUST_CHECK;

#endif
