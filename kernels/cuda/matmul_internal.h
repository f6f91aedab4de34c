/* cuBLASLt's handle and its entry points, which are found at run time. */
#ifndef SLUICE_KERNELS_CUDA_MATMUL_INTERNAL_H
#define SLUICE_KERNELS_CUDA_MATMUL_INTERNAL_H

#include <cublasLt.h>

#include "kernels/cuda/cuda_internal.h"

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

#endif
