// The simulated GPU's properties, and CUDA's errors as text.
#include <stdio.h>
#include <stdlib.h>

#include "internal.h"

namespace simulated
{

static uint64_t environment_number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

static settings read_settings()
{
    settings read;
    const char *absent = getenv("SLUICE_SIMULATED_GPU_ABSENT");
    read.seed = environment_number("SLUICE_SIMULATED_GPU_SEED", 1);
    read.total_bytes = environment_number("SLUICE_SIMULATED_GPU_TOTAL_MB", 2048) << 20;
    read.delay_us_max =
        static_cast<uint32_t>(environment_number("SLUICE_SIMULATED_GPU_DELAY_US", 100));
    read.sm_count = static_cast<int>(environment_number("SLUICE_SIMULATED_GPU_SMS", 4));
    read.bus_idx = static_cast<int>(environment_number("SLUICE_SIMULATED_GPU_BUS", 0x17)) & 0xff;
    read.is_absent = absent && *absent;
    return read;
}

settings &get_settings()
{
    static settings present = read_settings();
    return present;
}

struct error_text {
    cudaError_t error;
    const char *name, *text;
};

#define ERROR_TEXT(name, text)                                                                     \
    {                                                                                              \
        name, #name, text                                                                          \
    }

static const error_text error_texts[] = {
    ERROR_TEXT(cudaSuccess, "no error"),
    ERROR_TEXT(cudaErrorInvalidValue, "invalid argument"),
    ERROR_TEXT(cudaErrorMemoryAllocation, "out of memory"),
    ERROR_TEXT(cudaErrorInitializationError, "initialization error"),
    ERROR_TEXT(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    ERROR_TEXT(cudaErrorInvalidPitchValue, "invalid pitch argument"),
    ERROR_TEXT(cudaErrorInvalidSymbol, "invalid device symbol"),
    ERROR_TEXT(cudaErrorInvalidDevicePointer, "invalid device pointer"),
    ERROR_TEXT(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    ERROR_TEXT(cudaErrorInsufficientDriver,
               "CUDA driver version is insufficient for CUDA runtime version"),
    ERROR_TEXT(cudaErrorInvalidDeviceFunction, "invalid device function"),
    ERROR_TEXT(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    ERROR_TEXT(cudaErrorInvalidDevice, "invalid device ordinal"),
    ERROR_TEXT(cudaErrorNoKernelImageForDevice,
               "no kernel image is available for execution on the device"),
    ERROR_TEXT(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    ERROR_TEXT(cudaErrorNotReady, "device not ready"),
    ERROR_TEXT(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    ERROR_TEXT(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
    ERROR_TEXT(cudaErrorHostMemoryAlreadyRegistered,
               "part or all of the requested memory range is already mapped"),
    ERROR_TEXT(cudaErrorHostMemoryNotRegistered,
               "pointer does not correspond to a registered memory region"),
    ERROR_TEXT(cudaErrorMisalignedAddress, "misaligned address"),
    ERROR_TEXT(cudaErrorLaunchFailure, "unspecified launch failure"),
    ERROR_TEXT(cudaErrorNotPermitted, "operation not permitted"),
    ERROR_TEXT(cudaErrorNotSupported, "operation not supported"),
    ERROR_TEXT(cudaErrorStreamCaptureUnsupported,
               "operation not permitted when stream is capturing"),
    ERROR_TEXT(cudaErrorStreamCaptureInvalidated,
               "operation failed due to a previous error during capture"),
    ERROR_TEXT(cudaErrorUnknown, "unknown error"),
};

static const error_text *find_error(cudaError_t error)
{
    static const error_text unknown = {cudaErrorUnknown, "unrecognized error code",
                                       "unrecognized error code"};
    for (const error_text &entry : error_texts)
        if (entry.error == error)
            return &entry;
    return &unknown;
}

static cudaError_t check_device(int device_idx)
{
    if (get_settings().is_absent)
        return report(cudaErrorNoDevice);
    return device_idx == 0 ? cudaSuccess : report(cudaErrorInvalidDevice);
}

} // namespace simulated

using namespace simulated;

extern "C" {

const char *cudaGetErrorName(cudaError_t error)
{
    return find_error(error)->name;
}

const char *cudaGetErrorString(cudaError_t error)
{
    return find_error(error)->text;
}

cudaError_t cudaGetDeviceCount(int *count_found)
{
    *count_found = 0;
    if (get_settings().is_absent)
        return report(cudaErrorNoDevice);
    *count_found = 1;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device_idx)
{
    cudaError_t error = check_device(device_idx);
    return error != cudaSuccess ? error : enter();
}

/* How a host thread waits is no matter here. */
cudaError_t cudaSetDeviceFlags(unsigned)
{
    return enter();
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device_idx)
{
    cudaError_t error = check_device(device_idx);
    if (error != cudaSuccess)
        return error;
    *properties = cudaDeviceProp();
    snprintf(properties->name, sizeof properties->name, "Simulated GPU");
    properties->totalGlobalMem = get_settings().total_bytes;
    properties->sharedMemPerBlock = SHARED_BYTES_DEFAULT;
    properties->regsPerBlock = 65536;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = BLOCK_THREADS_MAX;
    properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
    properties->maxThreadsDim[2] = 64;
    properties->maxGridSize[0] = INT32_MAX;
    properties->maxGridSize[1] = properties->maxGridSize[2] = GRID_YZ_MAX;
    properties->major = 9;
    properties->multiProcessorCount = get_settings().sm_count;
    properties->canMapHostMemory = properties->concurrentKernels = 1;
    properties->pciBusID = get_settings().bus_idx;
    properties->asyncEngineCount = 3;
    properties->unifiedAddressing = 1;
    properties->memoryBusWidth = 5120;
    properties->l2CacheSize = 50 << 20;
    properties->maxThreadsPerMultiProcessor = 2048;
    properties->sharedMemPerMultiprocessor = SHARED_BYTES_OPTIN + 1024;
    properties->sharedMemPerBlockOptin = SHARED_BYTES_OPTIN;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr which, int device_idx)
{
    static const struct {
        cudaDeviceAttr which;
        int value;
    } values[] = {
        {cudaDevAttrMaxThreadsPerBlock, BLOCK_THREADS_MAX},
        {cudaDevAttrMaxBlockDimX, 1024},
        {cudaDevAttrMaxBlockDimY, 1024},
        {cudaDevAttrMaxBlockDimZ, 64},
        {cudaDevAttrMaxGridDimX, INT32_MAX},
        {cudaDevAttrMaxGridDimY, GRID_YZ_MAX},
        {cudaDevAttrMaxGridDimZ, GRID_YZ_MAX},
        {cudaDevAttrMaxSharedMemoryPerBlock, SHARED_BYTES_DEFAULT},
        {cudaDevAttrWarpSize, 32},
        {cudaDevAttrMaxRegistersPerBlock, 65536},
        {cudaDevAttrClockRate, 1980000},
        {cudaDevAttrIntegrated, 0},
        {cudaDevAttrCanMapHostMemory, 1},
        {cudaDevAttrComputeMode, 0},
        {cudaDevAttrConcurrentKernels, 1},
        {cudaDevAttrPciDeviceId, 0},
        {cudaDevAttrPciDomainId, 0},
        {cudaDevAttrMemoryClockRate, 2619000},
        {cudaDevAttrGlobalMemoryBusWidth, 5120},
        {cudaDevAttrL2CacheSize, 50 << 20},
        {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
        {cudaDevAttrAsyncEngineCount, 3},
        {cudaDevAttrUnifiedAddressing, 1},
        {cudaDevAttrComputeCapabilityMajor, 9},
        {cudaDevAttrComputeCapabilityMinor, 0},
        {cudaDevAttrMaxSharedMemoryPerMultiprocessor, SHARED_BYTES_OPTIN + 1024},
        {cudaDevAttrPageableMemoryAccess, 0},
        {cudaDevAttrCanUseHostPointerForRegisteredMem, 1},
        {cudaDevAttrCooperativeLaunch, 1},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, SHARED_BYTES_OPTIN},
        {cudaDevAttrHostRegisterSupported, 1},
        {cudaDevAttrReservedSharedMemoryPerBlock, 1024},
        {cudaDevAttrHostNumaId, 0},
    };
    cudaError_t error = check_device(device_idx);
    if (error != cudaSuccess)
        return error;
    if (which == cudaDevAttrMultiProcessorCount || which == cudaDevAttrPciBusId) {
        const settings &present = get_settings();
        *value = which == cudaDevAttrPciBusId ? present.bus_idx : present.sm_count;
        return cudaSuccess;
    }
    for (const auto &entry : values) {
        if (entry.which == which) {
            *value = entry.value;
            return cudaSuccess;
        }
    }
    return report(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int text_bytes, int device_idx)
{
    cudaError_t error = check_device(device_idx);
    if (error != cudaSuccess)
        return error;
    int length = snprintf(text, text_bytes, "0000:%02x:00.0", get_settings().bus_idx);
    return length < text_bytes ? cudaSuccess : report(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return enter();
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = get_settings().is_absent ? 0 : CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

// --- controls ------------------------------------------------------------------------------------

void simulated_gpu_set_total_bytes(uint64_t bytes)
{
    get_settings().total_bytes = bytes;
}

void simulated_gpu_set_seed(uint64_t seed)
{
    get_settings().seed = seed;
}

void simulated_gpu_set_absent(int is_absent)
{
    get_settings().is_absent = is_absent != 0;
}
}
