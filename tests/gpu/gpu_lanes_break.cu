// Work that only kernels do to a real GPU: one writes to an unmapped address, which breaks the GPU
// for its process, and one runs until it is let go. The simulated GPU does both by other means. See
// gpu_lanes_rig.h.
#include <cuda_runtime.h>
#include <stdint.h>

static __global__ void write_nowhere(uintptr_t address)
{
    *reinterpret_cast<volatile int *>(address) = 1;
}

extern "C" int gpu_rig_break(void *stream)
{
    write_nowhere<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(64);
    return static_cast<int>(cudaGetLastError());
}

static __global__ void wait_for_release(volatile int *flags)
{
    flags[0] = 1;
    __threadfence_system();
    while (flags[1] == 0)
        __nanosleep(1000);
}

extern "C" int gpu_rig_hold(void *stream, int *flags)
{
    wait_for_release<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(flags);
    return static_cast<int>(cudaGetLastError());
}
