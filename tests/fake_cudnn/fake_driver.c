/* A CUDA driver that has no GPU and loads any module: libcuda.so.1 for test_cudnn_plans.c. cuDNN
 * makes plans for a GPU that is described to it, but it loads the machine code that it compiled
 * before it reports a plan as made. Here loading succeeds and does nothing. Every call that needs a
 * GPU fails in the same way as in the toolkit's own stub library. cuDNN looks all these names up
 * before it uses any. */
#include <stdio.h>
#include <string.h>

enum { SUCCESS = 0, STUB_LIBRARY = 34, DRIVER_VERSION = 13000 };

/* The names of the kernels that were loaded, each followed by a space. */
char fake_driver_kernels[4096];

int cuLibraryLoadData(void **library, const void *code, void *jit_options, void *jit_values,
                      unsigned jit_count, void *options, void *values, unsigned count);
int cuLibraryUnload(void *library);
int cuLibraryGetKernel(void **kernel, void *library, const char *name);
int cuKernelSetAttribute(int attribute, int value, void *kernel, int device);
int cuKernelGetFunction(void **function, void *kernel);
int cuFuncSetAttribute(void *function, int attribute, int value);
int cuDriverGetVersion(int *version);

static char a_library, a_kernel, a_function;

int cuLibraryLoadData(void **library, const void *code, void *jit_options, void *jit_values,
                      unsigned jit_count, void *options, void *values, unsigned count)
{
    *library = &a_library;
    return SUCCESS;
}

int cuLibraryUnload(void *library)
{
    return SUCCESS;
}

int cuLibraryGetKernel(void **kernel, void *library, const char *name)
{
    size_t used = strlen(fake_driver_kernels);
    snprintf(fake_driver_kernels + used, sizeof fake_driver_kernels - used, "%s ", name);
    *kernel = &a_kernel;
    return SUCCESS;
}

int cuKernelSetAttribute(int attribute, int value, void *kernel, int device)
{
    return SUCCESS;
}

int cuKernelGetFunction(void **function, void *kernel)
{
    *function = &a_function;
    return SUCCESS;
}

int cuFuncSetAttribute(void *function, int attribute, int value)
{
    return SUCCESS;
}

int cuDriverGetVersion(int *version)
{
    *version = DRIVER_VERSION;
    return SUCCESS;
}

#define NEEDS_A_GPU(name)                                                                          \
    int name(void);                                                                                \
    int name(void)                                                                                 \
    {                                                                                              \
        return STUB_LIBRARY;                                                                       \
    }

/* clang-format off */
NEEDS_A_GPU(cuCtxGetCurrent) NEEDS_A_GPU(cuCtxGetDevice) NEEDS_A_GPU(cuCtxGetLimit)
NEEDS_A_GPU(cuCtxPopCurrent) NEEDS_A_GPU(cuCtxPushCurrent) NEEDS_A_GPU(cuDeviceGet)
NEEDS_A_GPU(cuDeviceGetAttribute) NEEDS_A_GPU(cuDeviceGetCount)
NEEDS_A_GPU(cuDevicePrimaryCtxRelease) NEEDS_A_GPU(cuDevicePrimaryCtxReset)
NEEDS_A_GPU(cuDevicePrimaryCtxRetain) NEEDS_A_GPU(cuFuncGetAttribute) NEEDS_A_GPU(cuGetErrorName)
NEEDS_A_GPU(cuGetErrorString) NEEDS_A_GPU(cuInit) NEEDS_A_GPU(cuKernelGetAttribute)
NEEDS_A_GPU(cuLaunchCooperativeKernel) NEEDS_A_GPU(cuLaunchKernel) NEEDS_A_GPU(cuLaunchKernelEx)
NEEDS_A_GPU(cuLibraryLoadFromFile) NEEDS_A_GPU(cuLinkAddData) NEEDS_A_GPU(cuLinkAddData_v2)
NEEDS_A_GPU(cuLinkAddFile_v2) NEEDS_A_GPU(cuLinkComplete) NEEDS_A_GPU(cuLinkCreate)
NEEDS_A_GPU(cuLinkCreate_v2) NEEDS_A_GPU(cuLinkDestroy) NEEDS_A_GPU(cuMemcpyDtoH_v2)
NEEDS_A_GPU(cuModuleGetFunction) NEEDS_A_GPU(cuModuleGetGlobal_v2) NEEDS_A_GPU(cuModuleLoadData)
NEEDS_A_GPU(cuModuleLoadDataEx) NEEDS_A_GPU(cuModuleLoadFatBinary) NEEDS_A_GPU(cuModuleUnload)
NEEDS_A_GPU(cuOccupancyMaxActiveBlocksPerMultiprocessor)
NEEDS_A_GPU(cuOccupancyMaxPotentialClusterSize) NEEDS_A_GPU(cuStreamGetCtx)
NEEDS_A_GPU(cuStreamSynchronize) NEEDS_A_GPU(cuTensorMapEncodeIm2col)
NEEDS_A_GPU(cuTensorMapEncodeTiled)
