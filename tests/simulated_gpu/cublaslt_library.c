/* kernels/cuda/library.c for tests against the simulated GPU: cuBLASLt is the stand-in of
 * cublaslt.c, every other library is absent. With SLUICE_SIMULATED_NO_LIBRARIES in the environment
 * all libraries are absent. */
#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda_internal.h"

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
