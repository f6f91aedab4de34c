// Adam on packed state: 16-bit or 8-bit moments, a split master. The bits are those that the head
// of kernels/cpu/optimizer/adam_state.c defines; update_adam.cu lists the conditions for this.
//
// A warp updates a block of 256 elements, which share a scale. Each lane has eight of them: in two
// packs of four if pointers are aligned to packs, otherwise one by one. So a warp's accesses are
// contiguous. A scale comes from the largest magnitude in the warp. Lane 0 writes it after every
// lane has used the old one, since the new one depends on all their results. Formats are branches
// that all threads take in the same way: the pass is bound by memory, and there would be about a
// hundred kernels for all combinations of formats. All loads of a block come before its stores; no
// pointer is __restrict__.
#include "kernels/cuda/update/update_adam.cuh"

enum { BLOCK_ELEMS = TILE_SCALE_ELEMS };

// --- codes and random bits -----------------------------------------------------------------------

static __device__ __forceinline__ uint32_t random_bits(const adami_rounding &rounding, uint64_t i)
{
    uint32_t x = rounding.elem + static_cast<uint32_t>(i) + rounding.first;
    x = (x ^ x >> 16) * ADAMI_MIX_FIRST;
    x = (x ^ x >> 15 ^ rounding.second) * ADAMI_MIX_SECOND;
    return x ^ x >> 16;
}

static __device__ __forceinline__ uint32_t magnitude_of(float value)
{
    return __float_as_uint(value) & 0x7fffffffu;
}

// The differences between m's and v's codes.
struct code_kind {
    bool is_signed;
    uint32_t base, top, scale;
};

static __device__ __forceinline__ code_kind code_kind_of(bool is_signed)
{
    if (is_signed)
        return code_kind{true, ADAMI_CODE_M_BASE, ADAMI_CODE_M_TOP, ADAMI_CODE_M_SCALE};
    return code_kind{false, ADAMI_CODE_V_BASE, ADAMI_CODE_V_TOP, ADAMI_CODE_V_SCALE};
}

static __device__ __forceinline__ float decode(const code_kind &kind, uint32_t code, float scale)
{
    uint32_t shifted = ((code & kind.top) << ADAMI_CODE_SHIFT) + kind.base;
    float value = __fmul_rn(__fsub_rn(__uint_as_float(shifted), __uint_as_float(kind.base)), scale);
    bool is_negative = kind.is_signed && (code & ADAMI_CODE_SIGN);
    return __uint_as_float(__float_as_uint(value) ^ (is_negative ? 0x80000000u : 0u));
}

static __device__ __forceinline__ uint32_t encode(const code_kind &kind, float value, float inverse,
                                                  uint32_t random16)
{
    uint32_t magnitude = magnitude_of(value);
    float scaled = __fmaf_rn(__uint_as_float(magnitude), inverse, __uint_as_float(kind.base));
    uint32_t code = (__float_as_uint(scaled) + (random16 << 4 | 8u)) >> ADAMI_CODE_SHIFT;
    code -= kind.base >> ADAMI_CODE_SHIFT;
    if (code > kind.top)
        code = kind.top;
    if (kind.is_signed)
        return code | (__float_as_uint(value) >> 24 & ADAMI_CODE_SIGN);
    return code == 0 && magnitude != 0 ? 1 : code;
}

static __device__ __forceinline__ float block_scale(const code_kind &kind, uint32_t largest)
{
    if (largest < ADAMI_CODE_LARGEST_MIN)
        return 0.0f;
    float scale = __fmul_rn(__uint_as_float(largest), __uint_as_float(kind.scale));
    return __float_as_uint(scale) < 0x7f800000u ? scale : __uint_as_float(ADAMI_QUIET_NAN_BITS);
}

static __device__ __forceinline__ uint8_t *codes_at(void *stream, uint64_t i)
{
    return static_cast<uint8_t *>(stream) + i / TILE_CODE_BLOCK_ELEMS * TILE_CODE_BLOCK_BYTES +
           i % TILE_CODE_BLOCK_ELEMS;
}

static __device__ __forceinline__ float *scale_at(void *stream, uint64_t i)
{
    uint8_t *codes = codes_at(stream, i / TILE_CODE_BLOCK_ELEMS * TILE_CODE_BLOCK_ELEMS);
    return reinterpret_cast<float *>(codes + TILE_CODE_BLOCK_ELEMS) +
           i % TILE_CODE_BLOCK_ELEMS / TILE_SCALE_ELEMS;
}

// --- packs ---------------------------------------------------------------------------------------

template <typename T, int N>
static __device__ __forceinline__ void widen_pack(const void *source, uint64_t at, float *out)
{
    cudai_pack<T, N> pack = cudai_load<T, N>(static_cast<const T *>(source) + at);
    for (int n = 0; n < N; n++)
        out[n] = cudai_widen(pack.item[n]);
}

template <int N>
static __device__ __forceinline__ void load_typed(const void *source, enum dtype type, uint64_t at,
                                                  float *out)
{
    CUDAI_BY_TYPE(type, T, widen_pack<T, N>(source, at, out));
}

template <int N>
static __device__ __forceinline__ void load_moment(void *stream, enum tile_format format,
                                                   bool is_signed, uint64_t at, float *out)
{
    if (format == TILE_FP32) {
        widen_pack<float, N>(stream, at, out);
    } else if (format == TILE_BF16) {
        widen_pack<cudai_bf16, N>(stream, at, out);
    } else {
        cudai_pack<uint8_t, N> codes = cudai_load<uint8_t, N>(codes_at(stream, at));
        float scale = *scale_at(stream, at);
        for (int n = 0; n < N; n++)
            out[n] = decode(code_kind_of(is_signed), codes.item[n], scale);
    }
}

template <int N>
static __device__ __forceinline__ void load_master(const cudai_packed_tile &tile, uint64_t at,
                                                   float *out)
{
    if (tile.formats[0] != TILE_LOW16) {
        widen_pack<float, N>(tile.streams[0], at, out);
        return;
    }
    auto low = cudai_load<uint16_t, N>(static_cast<const uint16_t *>(tile.streams[0]) + at);
    auto copy = cudai_load<uint16_t, N>(static_cast<const uint16_t *>(tile.params) + at);
    for (int n = 0; n < N; n++) { // as master_join: low bits from 0x8000 on count as negative
        uint32_t lower = low.item[n];
        lower |= lower & 0x8000u ? 0xffff0000u : 0u;
        out[n] = __uint_as_float((static_cast<uint32_t>(copy.item[n]) << 16) + lower);
    }
}

template <int N>
static __device__ __forceinline__ void store_master(const cudai_packed_tile &tile, uint64_t at,
                                                    const float *value)
{
    if (tile.formats[0] == TILE_LOW16) {
        cudai_pack<uint16_t, N> low;
        for (int n = 0; n < N; n++)
            low.item[n] = static_cast<uint16_t>(__float_as_uint(value[n]));
        cudai_store(static_cast<uint16_t *>(tile.streams[0]) + at, low);
    } else {
        cudai_pack<float, N> master;
        for (int n = 0; n < N; n++)
            master.item[n] = value[n];
        cudai_store(static_cast<float *>(tile.streams[0]) + at, master);
    }
    CUDAI_BY_TYPE(tile.param_type, P, cudai_pack<P, N> copy;
                  for (int n = 0; n < N; n++) copy.item[n] = copy_of<P>(value[n]);
                  cudai_store(static_cast<P *>(tile.params) + at, copy));
}

// random16: 16 random bits for each element.
template <int N>
static __device__ __forceinline__ void
store_moment(void *stream, enum tile_format format, bool is_signed, uint64_t at, const float *value,
             float scale, float inverse, const uint32_t *random16)
{
    if (format == TILE_FP32) {
        cudai_pack<float, N> pack;
        for (int n = 0; n < N; n++)
            pack.item[n] = value[n];
        cudai_store(static_cast<float *>(stream) + at, pack);
    } else if (format == TILE_BF16) {
        cudai_pack<uint16_t, N> pack;
        for (int n = 0; n < N; n++)
            pack.item[n] = static_cast<uint16_t>((__float_as_uint(value[n]) + random16[n]) >> 16);
        cudai_store(static_cast<uint16_t *>(stream) + at, pack);
    } else {
        cudai_pack<uint8_t, N> codes;
        for (int n = 0; n < N; n++)
            codes.item[n] = static_cast<uint8_t>(
                scale > 0.0f ? encode(code_kind_of(is_signed), value[n], inverse, random16[n])
                             : 0u);
        cudai_store(codes_at(stream, at), codes);
    }
}

// --- a block of a warp ---------------------------------------------------------------------------

// Computes the scale of a block from every lane's largest magnitude. Every lane gets it; lane 0
// writes it.
static __device__ __forceinline__ float close_scale(void *stream, bool is_signed, uint64_t block,
                                                    uint32_t largest)
{
    for (int step = CUDAI_WARP / 2; step > 0; step /= 2) {
        uint32_t other = __shfl_xor_sync(0xffffffffu, largest, step);
        largest = other > largest ? other : largest;
    }
    float scale = block_scale(code_kind_of(is_signed), largest);
    if (threadIdx.x % CUDAI_WARP == 0)
        *scale_at(stream, block) = scale;
    return scale;
}

// Updates `left` elements from `block` on; `left` is BLOCK_ELEMS if N is not 1. The whole warp must
// call it.
template <int N>
static __device__ __forceinline__ void
update_block(const adam_rule &rule, const cudai_packed_tile &tile, uint64_t block, uint64_t left)
{
    enum { PACKS = BLOCK_ELEMS / CUDAI_WARP / N };
    float weight[PACKS][N], grad[PACKS][N], m[PACKS][N], v[PACKS][N];
    uint32_t largest_m = 0, largest_v = 0;
    uint64_t lane = threadIdx.x % CUDAI_WARP;
    for (int p = 0; p < PACKS; p++) {
        uint64_t within = (p * CUDAI_WARP + lane) * N, at = block + within;
        if (within >= left)
            continue;
        load_typed<N>(tile.grads, tile.grad_type, at, grad[p]);
        load_master<N>(tile, at, weight[p]);
        load_moment<N>(tile.streams[1], tile.formats[1], true, at, m[p]);
        load_moment<N>(tile.streams[2], tile.formats[2], false, at, v[p]);
    }
    for (int p = 0; p < PACKS; p++) {
        if ((p * CUDAI_WARP + lane) * N >= left)
            continue;
        for (int n = 0; n < N; n++) {
            float state[2] = {m[p][n], v[p][n]};
            weight[p][n] = rule.update(grad[p][n], weight[p][n], state);
            m[p][n] = state[0];
            v[p][n] = state[1];
            uint32_t magnitude_m = magnitude_of(state[0]), magnitude_v = magnitude_of(state[1]);
            largest_m = magnitude_m > largest_m ? magnitude_m : largest_m;
            largest_v = magnitude_v > largest_v ? magnitude_v : largest_v;
        }
    }
    float scale_m = 0.0f, scale_v = 0.0f;
    if (tile.formats[1] == TILE_INT8)
        scale_m = close_scale(tile.streams[1], true, block, largest_m);
    if (tile.formats[2] == TILE_INT8)
        scale_v = close_scale(tile.streams[2], false, block, largest_v);
    float inverse_m = __fdiv_rn(1.0f, scale_m), inverse_v = __fdiv_rn(1.0f, scale_v);
    for (int p = 0; p < PACKS; p++) {
        uint64_t within = (p * CUDAI_WARP + lane) * N, at = block + within;
        if (within >= left)
            continue;
        uint32_t random_m[N], random_v[N];
        for (int n = 0; n < N; n++) {
            uint32_t bits = random_bits(tile.rounding, at + n);
            random_m[n] = bits & 0xffffu;
            random_v[n] = bits >> 16;
        }
        store_moment<N>(tile.streams[1], tile.formats[1], true, at, m[p], scale_m, inverse_m,
                        random_m);
        store_moment<N>(tile.streams[2], tile.formats[2], false, at, v[p], scale_v, inverse_v,
                        random_v);
        store_master<N>(tile, at, weight[p]);
    }
}

// Any grid of one dimension whose blocks are whole warps. N is 1 if a pointer is not aligned to a
// pack.
template <int N>
static __global__ void __launch_bounds__(UPDATE_THREADS)
    packed_kernel(const adam_rule rule, const cudai_packed_tile tile)
{
    uint64_t stride = cudai_thread_count() / CUDAI_WARP * BLOCK_ELEMS;
    uint64_t block = cudai_thread_idx() / CUDAI_WARP * BLOCK_ELEMS;
    for (; block < tile.count; block += stride) {
        uint64_t left = tile.count - block;
        if (left >= BLOCK_ELEMS)
            update_block<N>(rule, tile, block, BLOCK_ELEMS);
        else
            update_block<1>(rule, tile, block, left);
    }
}

extern "C" int cudai_launch_adam_packed(const kernel_context *context, void *stream,
                                        const cudai_packed_tile *tile, const adami_scalars *scalars)
{
    cudaStream_t queue = static_cast<cudaStream_t>(stream);
    uint64_t threads = size_div_up(tile->count, BLOCK_ELEMS) * CUDAI_WARP;
    unsigned blocks = cudai_blocks(threads, UPDATE_THREADS, context->sm_count);
    adam_rule rule{*scalars};
    if (tile->is_wide)
        return cudai_launch(packed_kernel<CUDAI_UPDATE_PACK>, dim3(blocks), dim3(UPDATE_THREADS), 0,
                            queue, rule, *tile);
    return cudai_launch(packed_kernel<1>, dim3(blocks), dim3(UPDATE_THREADS), 0, queue, rule,
                        *tile);
}
