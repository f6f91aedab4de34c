/* Loads cuBLASLt at run time: the newest installed version whose handle can be created. The program
 * is not linked against it and also starts without it.
 *
 * Called by the context's thread while the context is created and destroyed. Creation also runs the
 * plain product of matmul_plain.cu once, so that CUDA loads its kernels before memory is sealed. */
#include <cuda_runtime_api.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cuda/matmul/matmul_internal.h"

enum { PLAIN_WARM_BYTES = 1024 };

static const struct symbol {
    const char *name;
    size_t offset; /* in struct cudai_cublas_api */
} symbols[] = {
    {"cublasLtCreate", offsetof(struct cudai_cublas_api, create)},
    {"cublasLtDestroy", offsetof(struct cudai_cublas_api, destroy)},
    {"cublasLtGetVersion", offsetof(struct cudai_cublas_api, get_version)},
    {"cublasLtGetStatusString", offsetof(struct cudai_cublas_api, status_string)},
    {"cublasLtMatmulDescCreate", offsetof(struct cudai_cublas_api, desc_create)},
    {"cublasLtMatmulDescSetAttribute", offsetof(struct cudai_cublas_api, desc_set)},
    {"cublasLtMatmulDescDestroy", offsetof(struct cudai_cublas_api, desc_destroy)},
    {"cublasLtMatrixLayoutCreate", offsetof(struct cudai_cublas_api, layout_create)},
    {"cublasLtMatrixLayoutDestroy", offsetof(struct cudai_cublas_api, layout_destroy)},
    {"cublasLtMatmulPreferenceCreate", offsetof(struct cudai_cublas_api, preference_create)},
    {"cublasLtMatmulPreferenceSetAttribute", offsetof(struct cudai_cublas_api, preference_set)},
    {"cublasLtMatmulPreferenceDestroy", offsetof(struct cudai_cublas_api, preference_destroy)},
    {"cublasLtMatmulAlgoGetHeuristic", offsetof(struct cudai_cublas_api, get_heuristic)},
    {"cublasLtMatmul", offsetof(struct cudai_cublas_api, matmul)},
};

/* Opens one version of the library. Returns false, with the reason in `why`, if it cannot be
 * used. */
static bool open_version(struct cudai_cublas *cublas, const char *soname, char *why,
                         size_t why_bytes)
{
    const char *sonames[] = {soname, NULL};
    void *library = cudai_library_open(sonames, why, why_bytes);
    if (library == NULL)
        return false;
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        void *symbol = cudai_library_symbol(library, symbols[i].name);
        if (symbol == NULL) {
            snprintf(why, why_bytes, "%s has no %s", soname, symbols[i].name);
            return false;
        }
        memcpy((char *)&cublas->api + symbols[i].offset, &symbol, sizeof symbol);
    }
    cublasStatus_t status = cublas->api.create(&cublas->handle);
    if (status == CUBLAS_STATUS_SUCCESS)
        return true;
    cublas->handle = NULL;
    (void)cudaGetLastError();
    snprintf(why, why_bytes, "%s: cublasLtCreate says %s; is the driver new enough for it?", soname,
             cublas->api.status_string(status));
    return false;
}

static int open_library(struct cudai_cublas *cublas)
{
    static const char *const sonames[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
    enum { COUNT = sizeof sonames / sizeof sonames[0] };
    char why[COUNT][256];
    for (int i = 0; i < COUNT; i++)
        if (open_version(cublas, sonames[i], why[i], sizeof why[i])) {
            size_t version = cublas->api.get_version();
            snprintf(cublas->version, sizeof cublas->version, "cuBLASLt %zu.%zu.%zu",
                     version / 10000, version / 100 % 100, version % 100);
            return 0;
        }
    return err_set(ERR_BACKEND,
                   "the CUDA backend needs cuBLASLt of CUDA 12 or 13, and neither can be used (%s; "
                   "%s): install the toolkit's package libcublas, put its directory into "
                   "LD_LIBRARY_PATH or the toolkit's into CUDA_HOME, or set device.backend to "
                   "\"cpu\"",
                   why[0], why[1]);
}

/* Runs each instance of the plain kernel once, on one element, so that CUDA loads it. */
static int warm_plain(void)
{
    static const enum dtype types[][2] = {{DTYPE_FP32, DTYPE_FP32},
                                          {DTYPE_BF16, DTYPE_FP32},
                                          {DTYPE_BF16, DTYPE_BF16},
                                          {DTYPE_FP16, DTYPE_FP32},
                                          {DTYPE_FP16, DTYPE_FP16}};
    void *memory = NULL;
    int cuda = cudaMalloc(&memory, PLAIN_WARM_BYTES);
    TRY(cudai_check(cuda, "memory for the first product"));
    for (size_t i = 0; i < sizeof types / sizeof types[0] && cuda == cudaSuccess; i++) {
        matmul_desc one = {.m = 1, .n = 1, .k = 1, .a_stride = 1, .b_stride = 1, .c_stride = 1};
        one.ab_type = types[i][0];
        one.c_type = types[i][1];
        cuda = cudai_matmul_plain_launch(&one, NULL, memory, memory, NULL, memory);
    }
    if (cuda == cudaSuccess)
        cuda = cudaStreamSynchronize(NULL);
    int freed = cudaFree(memory);
    TRY(cudai_check(cuda, "the plain matrix product"));
    return cudai_check(freed, "freeing the first product's memory");
}

int cudai_cublas_create(kernel_context *context)
{
    struct cudai_cublas *cublas = mem_alloc(1, sizeof *cublas, "cuda cublas");
    if (cublas == NULL)
        return -ENOMEM;
    context->cublas = cublas;
    int rc = open_library(cublas);
    if (rc == 0)
        rc = warm_plain();
    if (rc < 0)
        cudai_cublas_destroy(context);
    return rc;
}

void cudai_cublas_destroy(kernel_context *context)
{
    struct cudai_cublas *cublas = context->cublas;
    if (cublas == NULL)
        return;
    if (cublas->handle != NULL)
        (void)cublas->api.destroy(cublas->handle); /* a failure has no consequence here */
    mem_free(cublas);
    context->cublas = NULL;
}

const char *cudai_cublas_version(const kernel_context *context)
{
    return context->cublas->version;
}
