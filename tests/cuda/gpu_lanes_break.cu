// Breaks a real GPU for its process with a kernel that writes to an unmapped address. The simulated
// GPU has a call for this instead. See gpu_lanes_rig.h.
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
