// Our own matrix product, for products that cuBLASLt refuses and as a reference for tests of
// cuBLASLt.
//
// A block of 256 threads computes a tile of 64 x 64 elements of C. It walks k in steps of 16: the
// pieces [64, 16] of op(A) and [16, 64] of op(B) are widened to fp32 in shared memory. Then each
// thread adds 16 products to each of its 4 x 4 elements, in the order of k. Outside of the matrices
// the pieces are zero. Global accesses move single elements; neighbouring threads access
// neighbouring elements, so any stride and any alignment works. It is slow for this reason and
// because it uses no tensor cores. Important shapes use cuBLASLt; matmul_ops.c logs if they do
// not.
//
// Thread t has rows t / 16 + {0, 16, 32, 48} and columns t % 16 + {0, 16, 32, 48} of the tile: a
// half warp writes 16 neighbours of C, and reads 16 neighbours of the B piece and one element of
// the A piece. Static shared memory: 2 * 16 * 65 * 4 = 8320 bytes. No state, no synchronization
// with the host.
#include "kernels/cuda/device.cuh"

extern "C" {
#include "kernels/cuda/cuda_internal.h"
}

enum {
    TILE = 64,
    DEPTH = 16, // step in k
    SIDE = 4,   // rows and columns of a thread
    THREADS = (TILE / SIDE) * (TILE / SIDE),
    PIECES = TILE * DEPTH / THREADS, // elements of a piece that each thread loads
    PITCH = TILE + 1,                // so the columns of a piece use all banks
};

// Limit of blocks per launch. With more tiles a block computes several.
static const uint64_t BLOCKS_MAX = 1 << 30;

struct plain_shape {
    uint64_t m, n, k, a_stride, b_stride, c_stride;
    bool a_transposed, b_transposed, accumulates;
};

// Fills piece[depth][side] with `source` widened to fp32, for side in [side_begin, +64) and depth
// in [depth_begin, +16), and with zeros beyond the counts. is_side_major: the depth is contiguous
// in memory.
template <typename T>
static __device__ __forceinline__ void
load_piece(float (*piece)[PITCH], const T *source, uint64_t stride, bool is_side_major,
           uint64_t side_begin, uint64_t side_count, uint64_t depth_begin, uint64_t depth_count)
{
    for (unsigned i = 0; i < PIECES; i++) {
        unsigned idx = threadIdx.x + i * THREADS;
        unsigned side = is_side_major ? idx / DEPTH : idx % TILE;
        unsigned depth = is_side_major ? idx % DEPTH : idx / TILE;
        uint64_t at_side = side_begin + side, at_depth = depth_begin + depth;
        float value = 0.0f;
        if (at_side < side_count && at_depth < depth_count)
            value = cudai_widen(is_side_major ? source[at_side * stride + at_depth]
                                              : source[at_depth * stride + at_side]);
        piece[depth][side] = value;
    }
}

template <typename T, typename R>
static __global__ void __launch_bounds__(THREADS)
    plain_product(plain_shape shape, const T *a, const T *b, const T *bias, R *c)
{
    __shared__ float a_piece[DEPTH][PITCH], b_piece[DEPTH][PITCH];
    unsigned row_in_tile = threadIdx.x / (TILE / SIDE),
             column_in_tile = threadIdx.x % (TILE / SIDE);
    uint64_t column_tiles = (shape.n + TILE - 1) / TILE;
    uint64_t tiles = (shape.m + TILE - 1) / TILE * column_tiles;
    for (uint64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        uint64_t row_begin = tile / column_tiles * TILE;
        uint64_t column_begin = tile % column_tiles * TILE;
        float sums[SIDE][SIDE] = {};
        for (uint64_t depth = 0; depth < shape.k; depth += DEPTH) {
            load_piece(a_piece, a, shape.a_stride, !shape.a_transposed, row_begin, shape.m, depth,
                       shape.k);
            load_piece(b_piece, b, shape.b_stride, shape.b_transposed, column_begin, shape.n, depth,
                       shape.k);
            __syncthreads();
            for (unsigned l = 0; l < DEPTH; l++) {
                float left[SIDE], right[SIDE];
                for (unsigned i = 0; i < SIDE; i++) {
                    left[i] = a_piece[l][row_in_tile + i * (TILE / SIDE)];
                    right[i] = b_piece[l][column_in_tile + i * (TILE / SIDE)];
                }
                for (unsigned i = 0; i < SIDE; i++)
                    for (unsigned j = 0; j < SIDE; j++)
                        sums[i][j] = __fmaf_rn(left[i], right[j], sums[i][j]);
            }
            __syncthreads(); // before the pieces are filled again
        }
        for (unsigned i = 0; i < SIDE; i++)
            for (unsigned j = 0; j < SIDE; j++) {
                uint64_t row = row_begin + row_in_tile + i * (TILE / SIDE);
                uint64_t column = column_begin + column_in_tile + j * (TILE / SIDE);
                if (row >= shape.m || column >= shape.n)
                    continue;
                R *target = c + row * shape.c_stride + column;
                float value = sums[i][j];
                if (bias != nullptr)
                    value = __fadd_rn(value, cudai_widen(bias[column]));
                if (shape.accumulates)
                    value = __fadd_rn(value, cudai_widen(*target));
                *target = cudai_narrow<R>(value);
            }
    }
}

template <typename T, typename R>
static cudaError_t launch(const matmul_desc *desc, void *stream, const void *a, const void *b,
                          const void *bias, void *c)
{
    plain_shape shape = {desc->m,
                         desc->n,
                         desc->k,
                         desc->a_stride,
                         desc->b_stride,
                         desc->c_stride,
                         desc->a_transposed,
                         desc->b_transposed,
                         desc->accumulate};
    uint64_t tiles = (desc->m + TILE - 1) / TILE * ((desc->n + TILE - 1) / TILE);
    unsigned blocks = static_cast<unsigned>(tiles < BLOCKS_MAX ? tiles : BLOCKS_MAX);
    return cudai_launch(
        plain_product<T, R>, dim3(blocks), dim3(THREADS), 0, static_cast<cudaStream_t>(stream),
        shape, static_cast<const T *>(a), static_cast<const T *>(b),
        static_cast<const T *>(desc->has_bias ? bias : nullptr), static_cast<R *>(c));
}

extern "C" int cudai_matmul_plain_launch(const matmul_desc *desc, void *stream, const void *a,
                                         const void *b, const void *bias, void *c)
{
    if (desc->c_type == DTYPE_FP32)
        CUDAI_BY_TYPE(desc->ab_type, T, return launch<T, float>(desc, stream, a, b, bias, c));
    CUDAI_BY_TYPE(desc->ab_type, T, return launch<T, T>(desc, stream, a, b, bias, c));
    return cudaErrorInvalidValue;
}
