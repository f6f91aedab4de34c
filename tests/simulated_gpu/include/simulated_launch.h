// Launching kernels on the simulated GPU, and what stands beside inline PTX in kernels/cuda: matrix
// instructions, asynchronous copies to shared memory, half precision.
#ifndef SIMULATED_LAUNCH_H
#define SIMULATED_LAUNCH_H

#include <tuple>
#include <type_traits>

#include "cuda_runtime.h"

// --- launching ---------------------------------------------------------------------------------

// A kernel with its arguments, made at the launch and freed when its run is over.
struct simulated_call {
    const void *kernel;
    dim3 grid, block;
    size_t shared_bytes;
    void (*run)(simulated_call *call);     // one thread of the kernel
    void (*destroy)(simulated_call *call); // frees
    const void *pointers[32]; // the arguments that are pointers: checked before the run
    int pointer_count;
};

template <typename... P> struct simulated_call_of : simulated_call {
    void (*function)(P...);
    std::tuple<typename std::remove_cv<P>::type...> arguments;

    simulated_call_of(void (*kernel_function)(P...), P... values)
        : function(kernel_function), arguments(values...)
    {
    }
};

template <typename T> static inline void simulated_note_argument(simulated_call *, const T &)
{
}

template <typename T>
static inline void simulated_note_argument(simulated_call *call, T *const &value)
{
    if (call->pointer_count < 32)
        call->pointers[call->pointer_count++] =
            const_cast<const void *>(static_cast<const volatile void *>(value));
}

// Checks the launch as CUDA does and puts it on the stream; destroys the call in any case.
cudaError_t simulated_enqueue_call(cudaStream_t stream, simulated_call *call);

template <typename... P>
static inline cudaError_t simulated_launch(void (*kernel)(P...), dim3 grid, dim3 block,
                                           size_t shared_bytes, cudaStream_t stream, P... arguments)
{
    typedef simulated_call_of<P...> made;
    made *call = new made(kernel, arguments...);
    call->kernel = reinterpret_cast<const void *>(kernel);
    call->grid = grid;
    call->block = block;
    call->shared_bytes = shared_bytes;
    call->run = [](simulated_call *self) {
        made *own = static_cast<made *>(self);
        std::apply(own->function, own->arguments);
    };
    call->destroy = [](simulated_call *self) { delete static_cast<made *>(self); };
    call->pointer_count = 0;
    int noted[] = {0, (simulated_note_argument(call, arguments), 0)...};
    (void)noted;
    return simulated_enqueue_call(stream, call);
}

// This block's dynamic shared memory: as many bytes as launched, before a page that may not be
// touched.
void *simulated_dynamic_shared();

// --- half precision ----------------------------------------------------------------------------

float simulated_widen_fp16(uint16_t half);
uint16_t simulated_narrow_fp16(float value);

// --- matrix instructions, by the fragment layouts of the PTX ISA ---------------------------------

// mma.sync.aligned.m16n8k16.row.col.f32.{f16,bf16}.{f16,bf16}.f32: d = a * b + c over the warp, all
// 32 lanes. fp32 sums in the order of k; a GPU's order and rounding are its own.
void simulated_mma_m16n8k16(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4],
                            bool is_bf16, const char *file = __builtin_FILE(),
                            int line = __builtin_LINE());

// ldmatrix.sync.aligned.m8n8.{x2,x4}[.trans].shared.b16: lane i gives the address of 8 elements,
// row i % 8 of matrix i / 8 (lanes beyond the last matrix give nothing); 16-byte aligned.
void simulated_ldmatrix_x2(uint32_t registers[2], const void *row,
                           const char *file = __builtin_FILE(), int line = __builtin_LINE());
void simulated_ldmatrix_x2_trans(uint32_t registers[2], const void *row,
                                 const char *file = __builtin_FILE(), int line = __builtin_LINE());
void simulated_ldmatrix_x4(uint32_t registers[4], const void *row,
                           const char *file = __builtin_FILE(), int line = __builtin_LINE());
void simulated_ldmatrix_x4_trans(uint32_t registers[4], const void *row,
                                 const char *file = __builtin_FILE(), int line = __builtin_LINE());

// --- cp.async ----------------------------------------------------------------------------------

// cp.async.{ca,cg}.shared.global [target], [source], bytes, source_bytes: bytes is 4, 8 or 16, both
// addresses are aligned to it; beyond source_bytes the target gets zeros. The copy happens when its
// group is waited for, no sooner: what reads without waiting sees what was there before.
void simulated_cp_async(void *target, const void *source, int bytes, int source_bytes);
void simulated_cp_async_commit();
// Waits until at most `groups` of this thread's newest committed groups are pending.
void simulated_cp_async_wait(int groups);
void simulated_cp_async_wait_all(); // cp.async.wait_all: also what was not committed

#endif
