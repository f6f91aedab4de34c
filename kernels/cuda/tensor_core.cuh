// The matrix instructions of a warp (m16n8k16 in bf16 or fp16 with fp32 sums), the loads for them
// (ldmatrix, cp.async) and the conversions around them, as inline PTX. With SLUICE_SIMULATED_GPU
// they are functions of tests/simulated_gpu. For sm_80 and later.
//
// Fragments, as in the PTX manual: g = lane / 4, t = lane % 4. A register holds two 16-bit
// elements; the lower column (for B: the lower row) is in the lower half.
//   A [16 rows, 16 k]   a0: row g, k 2t..   a1: row g+8, k 2t..   a2: row g, k 2t+8..
//                       a3: row g+8, k 2t+8..
//   B [16 k, 8 columns] b0: k 2t.., column g   b1: k 2t+8.., column g
//   C [16 rows, 8 columns] fp32   c0, c1: row g, columns 2t, 2t+1   c2, c3: row g+8
// So two neighbouring C blocks, rounded and packed in pairs, are an A fragment of the next product.
//
// All lanes of a warp must call these functions together, except the copies, which are per thread.
#ifndef SLUICE_KERNELS_CUDA_TENSOR_CORE_H
#define SLUICE_KERNELS_CUDA_TENSOR_CORE_H

#include <type_traits>

#include "kernels/cuda/device.cuh"

// d += a b. T is the 16-bit type of a and b.
template <typename T>
static __device__ __forceinline__ void cudai_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                                 uint32_t b1)
{
#ifdef SLUICE_SIMULATED_GPU
    const uint32_t b[2] = {b0, b1};
    const float c[4] = {d[0], d[1], d[2], d[3]};
    simulated_mma_m16n8k16(d, a, b, c, std::is_same<T, cudai_bf16>::value);
#else
    if constexpr (std::is_same<T, cudai_bf16>::value)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// Load four 8x8 blocks of 16-bit elements from shared memory. Lane l passes the address (aligned to
// 16 bytes) of row l % 8 of block l / 8. From each block it gets elements 2(l % 4) and 2(l % 4) + 1
// of row l / 4; transposed: these rows of column l / 4.
static __device__ __forceinline__ void cudai_load_matrix(uint32_t (&r)[4], const void *row)
{
#ifdef SLUICE_SIMULATED_GPU
    simulated_ldmatrix_x4(r, row);
#else
    uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
#endif
}

static __device__ __forceinline__ void cudai_load_transposed(uint32_t (&r)[4], const void *row)
{
#ifdef SLUICE_SIMULATED_GPU
    simulated_ldmatrix_x4_trans(r, row);
#else
    uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
#endif
}

// Starts a copy of BYTES (4 or 16) from global to shared memory; both are aligned to BYTES. If
// `is_there` is false, zeros are written and `source` is not read. The copy is visible to this
// thread after cudai_copy_wait, and to the block after a barrier that follows it.
template <int BYTES>
static __device__ __forceinline__ void cudai_copy_async(void *target, const void *source,
                                                        bool is_there)
{
    static_assert(BYTES == 4 || BYTES == 16, "what cp.async copies here");
#ifdef SLUICE_SIMULATED_GPU
    simulated_cp_async(target, source, BYTES, is_there ? BYTES : 0);
#else
    uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(target));
    int bytes = is_there ? BYTES : 0;
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(source),
                     "r"(bytes)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(source),
                     "r"(bytes)
                     : "memory");
#endif
}

// cudai_copy_commit closes a group of copies. cudai_copy_wait waits until at most the latest
// PENDING groups of this thread are in flight.
static __device__ __forceinline__ void cudai_copy_commit()
{
#ifdef SLUICE_SIMULATED_GPU
    simulated_cp_async_commit();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int PENDING> static __device__ __forceinline__ void cudai_copy_wait()
{
#ifdef SLUICE_SIMULATED_GPU
    simulated_cp_async_wait(PENDING);
#else
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

// Rounds two values to nearest even and packs them, the first in the lower half.
template <typename T>
static __device__ __forceinline__ uint32_t cudai_pack_pair(float low, float high)
{
#ifdef SLUICE_SIMULATED_GPU
    return static_cast<uint32_t>(cudai_narrow<T>(low).bits) |
           static_cast<uint32_t>(cudai_narrow<T>(high).bits) << 16;
#else
    uint32_t pair;
    if constexpr (std::is_same<T, cudai_bf16>::value)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#endif
}

// Returns 2^x with an error of about 2 units in the last place; results below 2^-126 are 0.
static __device__ __forceinline__ float cudai_exp2(float x)
{
#ifdef SLUICE_SIMULATED_GPU
    return exp2f(x);
#else
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
#endif
}

#endif
