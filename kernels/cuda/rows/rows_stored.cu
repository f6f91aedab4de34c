// Stored formats (kernels/ops_stored.h): codes and scales to elements. A thread takes a pack of 16
// bytes of the target, whose elements share a scale, or single elements where a pack does not fit.
// Both compute an element by the same _rn arithmetic, in the order that ops_stored.h writes.
#include "kernels/cuda/rows/rows_launch.h"
#include "kernels/cuda/rows/rows_map.cuh"

extern "C" {
#include "kernels/stored_codes.h"
}

static __device__ const float nf4_values[16] = STORED_NF4_VALUES;
static __device__ const float fp4_values[16] = STORED_FP4_VALUES;
static __device__ const float e2m1_values[16] = STORED_E2M1_VALUES;
static __device__ const float dynamic_values[128] = STORED_DYNAMIC_VALUES;

static __device__ __forceinline__ float e4m3_value(unsigned code)
{
    uint32_t finite = __float_as_uint(__fmul_rn(__uint_as_float((code & 0x7fu) << 20), 0x1p120f));
    finite |= (code & 0x7fu) == 0x7fu ? 0x7fc00000u : 0u;
    return __uint_as_float(finite | (code & 0x80u) << 24);
}

// The value of the element with number i of a pack, whose codes begin at `bytes`.
static __device__ __forceinline__ float code_value(enum stored_code code, const uint8_t *bytes,
                                                   int i)
{
    if (code == STORED_CODE_DYNAMIC)
        return stored_dynamic(dynamic_values, bytes[i]);
    if (code == STORED_CODE_INT8)
        return static_cast<float>(static_cast<int8_t>(bytes[i]));
    if (code == STORED_CODE_E4M3)
        return e4m3_value(bytes[i]);
    unsigned byte = bytes[i / 2], upper = byte >> 4, lower = byte & 15u;
    if (code == STORED_CODE_E2M1)
        return e2m1_values[i % 2 == 0 ? lower : upper];
    unsigned place = i % 2 == 0 ? upper : lower;
    return code == STORED_CODE_NF4 ? nf4_values[place] : fp4_values[place];
}

static __device__ __forceinline__ float scale_value(const stored_layout &layout, const void *scales,
                                                    uint64_t idx)
{
    if (layout.scale == STORED_SCALE_FP32)
        return static_cast<const float *>(scales)[idx];
    if (layout.scale == STORED_SCALE_E8M0)
        return __uint_as_float(stored_e8m0_bits(static_cast<const uint8_t *>(scales)[idx]));
    struct stored_double parts = stored_double_of(scales, layout.scale_count);
    float group = parts.absmax[idx / STORED_DOUBLE_GROUP];
    return __fadd_rn(__fmul_rn(stored_dynamic(dynamic_values, parts.codes[idx]), group),
                     *parts.offset);
}

// Elements [at, at + V), which share a scale. `at` is a multiple of V, or, with V = 1, any.
template <typename T, int V>
static __device__ __forceinline__ void expand_pack(const stored_expand_args &args,
                                                   const stored_layout &layout, uint64_t at)
{
    const uint8_t *codes = static_cast<const uint8_t *>(args.codes);
    const bool is_half = layout.code >= STORED_CODE_NF4; // stored_code_is_half_byte is of hosts
    uint64_t line = at / layout.line_elems, run = at % layout.line_elems / layout.run_elems;
    float scale =
        scale_value(layout, args.scales, line / layout.lines_per_scale * layout.line_runs + run);
    uint8_t bytes[V];
    cudai_pack<T, V> y;
    if constexpr (V == 1) {
        bytes[0] = codes[is_half ? at / 2 : at];
    } else if (is_half) {
        cudai_pack<uint8_t, V / 2> from = cudai_load<uint8_t, V / 2>(codes + at / 2);
#pragma unroll
        for (int i = 0; i < V / 2; i++)
            bytes[i] = from.item[i];
    } else {
        cudai_pack<uint8_t, V> from = cudai_load<uint8_t, V>(codes + at);
#pragma unroll
        for (int i = 0; i < V; i++)
            bytes[i] = from.item[i];
    }
    if (V == 1 && is_half && at % 2 == 1) // as if it were the first one of its byte
        bytes[0] = static_cast<uint8_t>(bytes[0] << 4 | bytes[0] >> 4);
#pragma unroll
    for (int i = 0; i < V; i++) {
        float value = __fmul_rn(code_value(layout.code, bytes, i), scale);
        if (layout.code == STORED_CODE_INT8)
            value = __fmul_rn(value, static_cast<float>(1.0 / 127.0));
        y.item[i] = cudai_narrow<T>(value);
    }
    cudai_store<T, V>(static_cast<T *>(args.target) + at, y);
}

template <typename T, int V>
static __global__ void __launch_bounds__(point_threads)
    stored_expand_kernel(stored_expand_args args, stored_layout layout)
{
    const uint64_t count = args.rows * args.columns, step = cudai_thread_count();
    for (uint64_t i = cudai_thread_idx(); i < count / V; i += step)
        expand_pack<T, V>(args, layout, i * V);
    for (uint64_t i = count / V * V + cudai_thread_idx(); i < count; i += step)
        expand_pack<T, 1>(args, layout, i);
}

template <typename T>
static cudaError_t launch_expand(cudaStream_t stream, int sm_count, const stored_expand_args &args,
                                 const stored_layout &layout)
{
    constexpr int V = rows_pack_elems<T>;
    const uint64_t count = args.rows * args.columns;
    const bool is_packed =
        layout.run_elems % V == 0 && (layout.lines == 1 || layout.line_elems % V == 0) &&
        rows_are_aligned(rows_pack_bytes, args.target) && rows_are_aligned(V, args.codes);
    dim3 grid(cudai_blocks(is_packed ? (count + V - 1) / V : count, point_threads, sm_count));
    return cudai_launch(is_packed ? stored_expand_kernel<T, V> : stored_expand_kernel<T, 1>, grid,
                        dim3(point_threads), 0, stream, args, layout);
}

extern "C" int cudai_launch_stored_expand(void *stream, int sm_count,
                                          const stored_expand_args *args,
                                          const stored_layout *layout)
{
    CUDAI_BY_TYPE(
        args->type, T,
        return launch_expand<T>(static_cast<cudaStream_t>(stream), sm_count, *args, *layout));
}
