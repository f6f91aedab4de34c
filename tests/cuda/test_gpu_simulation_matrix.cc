// The simulated GPU's matrix instructions and asynchronous copies, against plain loops. Fragments
// of A and B are loaded by ldmatrix from row-major memory, as kernels load them, and also element
// by element by the tables of the PTX ISA. Both must agree.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

extern "C" {
#include <cmocka.h>
}

#include "kernels/cuda/device.cuh"
#include "tests/simulated_gpu/simulated_gpu.h"

enum { M = 16, N = 8, K = 16 };

struct operands {
    uint16_t a[M * K];        // [m][k]
    uint16_t b[K * N];        // [k][n]
    uint16_t b_turned[N * K]; // [n][k]
    float c[M * N];
};

static __device__ uint32_t pair_of(uint16_t low, uint16_t high)
{
    return static_cast<uint32_t>(high) << 16 | low;
}

enum way { BY_TABLE, BY_LDMATRIX, BY_LDMATRIX_TRANS };

// A: 8 x 8 matrices (rows 0-7, k 0-7), (rows 8-15, k 0-7), (rows 0-7, k 8-15), (rows 8-15, k 8-15).
static __device__ void load_a(const uint16_t *a, way how, uint32_t registers[4])
{
    unsigned lane = threadIdx.x % 32, group = lane / 4, member = lane % 4;
    if (how != BY_TABLE) {
        simulated_ldmatrix_x4(registers, a + lane % 16 * K + lane / 16 * 8);
        return;
    }
    for (unsigned i = 0; i < 8; i += 2) { /* elements a0 .. a7 */
        unsigned row = i < 2 || (i >= 4 && i < 6) ? group : group + 8;
        unsigned column = member * 2 + (i >= 4 ? 8 : 0);
        registers[i / 2] = pair_of(a[row * K + column], a[row * K + column + 1]);
    }
}

static __device__ void load_b(const uint16_t *b, const uint16_t *b_turned, way how,
                              uint32_t registers[2])
{
    unsigned lane = threadIdx.x % 32, group = lane / 4, member = lane % 4;
    if (how == BY_LDMATRIX) {
        simulated_ldmatrix_x2(registers, b_turned + lane % 8 * K + lane / 8 % 2 * 8);
        return;
    }
    if (how == BY_LDMATRIX_TRANS) {
        simulated_ldmatrix_x2_trans(registers, b + lane % 16 * N);
        return;
    }
    for (unsigned i = 0; i < 4; i += 2) { /* elements b0 .. b3 */
        unsigned row = member * 2 + (i >= 2 ? 8 : 0);
        registers[i / 2] = pair_of(b[row * N + group], b[(row + 1) * N + group]);
    }
}

static __global__ void multiply(const operands *in, float *d, way how, bool is_bf16)
{
    __shared__ __align__(16) operands local;
    for (unsigned i = threadIdx.x; i < M * K; i += 32)
        local.a[i] = in->a[i];
    for (unsigned i = threadIdx.x; i < K * N; i += 32) {
        local.b[i] = in->b[i];
        local.b_turned[i] = in->b_turned[i];
    }
    __syncthreads();
    uint32_t a[4], b[2];
    load_a(local.a, how, a);
    load_b(local.b, local.b_turned, how, b);
    unsigned group = threadIdx.x / 4, member = threadIdx.x % 4;
    float c[4], result[4];
    for (unsigned i = 0; i < 4; i++) {
        unsigned row = i < 2 ? group : group + 8, column = member * 2 + i % 2;
        c[i] = in->c[row * N + column];
    }
    simulated_mma_m16n8k16(result, a, b, c, is_bf16);
    for (unsigned i = 0; i < 4; i++) {
        unsigned row = i < 2 ? group : group + 8, column = member * 2 + i % 2;
        d[row * N + column] = result[i];
    }
}

static void fill_operands(operands *values, bool is_bf16, float *a, float *b)
{
    uint32_t state = 12345;
    for (int i = 0; i < M * K + K * N; i++) {
        state = state * 1664525u + 1013904223u;
        float value = static_cast<float>(static_cast<int>(state >> 24) - 128) / 8.0f; /* exact */
        uint16_t bits = is_bf16 ? bf16_from_fp32(value) : fp16_from_fp32(value);
        float kept = is_bf16 ? fp32_from_bf16(bits) : fp32_from_fp16(bits);
        assert_true(kept == value);
        if (i < M * K) {
            a[i] = value;
            values->a[i] = bits;
        } else {
            int j = i - M * K;
            b[j] = value;
            values->b[j] = bits;
            values->b_turned[j % N * K + j / N] = bits;
        }
    }
    for (int i = 0; i < M * N; i++)
        values->c[i] = static_cast<float>(i);
}

static void test_mma(void **)
{
    const way ways[] = {BY_TABLE, BY_LDMATRIX, BY_LDMATRIX_TRANS};
    for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
        operands values, *memory;
        float a[M * K], b[K * N], *d, got[M * N];
        fill_operands(&values, is_bf16, a, b);
        assert_int_equal(cudaMalloc(&memory, sizeof values), cudaSuccess);
        assert_int_equal(cudaMalloc(&d, sizeof got), cudaSuccess);
        assert_int_equal(cudaMemcpy(memory, &values, sizeof values, cudaMemcpyHostToDevice), 0);
        for (way how : ways) {
            assert_int_equal(cudaMemset(d, 0xff, sizeof got), cudaSuccess);
            assert_int_equal(cudai_launch(multiply, 1, 32, 0, NULL, memory, d, how, is_bf16), 0);
            assert_int_equal(cudaMemcpy(got, d, sizeof got, cudaMemcpyDeviceToHost), cudaSuccess);
            for (int i = 0; i < M * N; i++) {
                float want = values.c[i];
                for (int k = 0; k < K; k++)
                    want += a[i / N * K + k] * b[k * N + i % N]; /* exact in fp32 */
                assert_true(got[i] == want);
            }
        }
        cudaFree(memory);
        cudaFree(d);
    }
}

// --- cp.async ------------------------------------------------------------------------------------

enum { STAGES = 3, PIECE = 4 };

// Pieces go through STAGES buffers. Before reading, the kernel waits for all groups but the newest
// `pending` ones.
static __global__ void stream_pieces(const int *source, int *target, int piece_count, int pending)
{
    __shared__ __align__(16) int stages[STAGES][32 * PIECE];
    int own = static_cast<int>(threadIdx.x) * PIECE;
    for (int i = 0; i < piece_count + STAGES - 1; i++) {
        if (i < piece_count)
            simulated_cp_async(&stages[i % STAGES][own], source + i * 32 * PIECE + own, 16, 16);
        simulated_cp_async_commit();
        int read = i - (STAGES - 1);
        if (read < 0)
            continue;
        simulated_cp_async_wait(pending);
        __syncthreads();
        int mirror = 32 * PIECE - 1 - own;
        for (int j = 0; j < PIECE; j++)
            target[read * 32 * PIECE + own + j] = stages[read % STAGES][mirror - j];
        __syncthreads();
    }
}

static int count_wrong_pieces(int pending)
{
    enum { PIECES = 7, COUNT = PIECES * 32 * PIECE };
    int host[COUNT], got[COUNT], *source, *target, wrong = 0;
    for (int i = 0; i < COUNT; i++)
        host[i] = i;
    assert_int_equal(cudaMalloc(&source, sizeof host), cudaSuccess);
    assert_int_equal(cudaMalloc(&target, sizeof host), cudaSuccess);
    assert_int_equal(cudaMemcpy(source, host, sizeof host, cudaMemcpyHostToDevice), cudaSuccess);
    assert_int_equal(cudai_launch(stream_pieces, 1, 32, 0, NULL, source, target, PIECES, pending),
                     0);
    assert_int_equal(cudaMemcpy(got, target, sizeof got, cudaMemcpyDeviceToHost), cudaSuccess);
    for (int i = 0; i < COUNT; i++)
        wrong += got[i] != i / (32 * PIECE) * 32 * PIECE + 32 * PIECE - 1 - i % (32 * PIECE);
    cudaFree(source);
    cudaFree(target);
    return wrong;
}

static void test_async_copies(void **)
{
    assert_int_equal(count_wrong_pieces(STAGES - 1), 0);
    assert_int_equal(count_wrong_pieces(0), 0);
    assert_true(count_wrong_pieces(STAGES) > 0); /* one group too few is waited for */
}

static __global__ void fill_rest(const int *source, int *target)
{
    __shared__ __align__(16) int local[32 * 4];
    int own = static_cast<int>(threadIdx.x) * 4;
    int source_bytes = static_cast<int>(threadIdx.x) % 17;
    simulated_cp_async(&local[own], source + own, 16, source_bytes);
    simulated_cp_async_wait_all();
    for (int i = 0; i < 4; i++)
        target[own + i] = local[own + i];
}

static void test_async_copies_fill(void **)
{
    enum { COUNT = 128 };
    int host[COUNT], got[COUNT], *source, *target;
    memset(host, 0x5a, sizeof host);
    assert_int_equal(cudaMalloc(&source, sizeof host), cudaSuccess);
    assert_int_equal(cudaMalloc(&target, sizeof host), cudaSuccess);
    assert_int_equal(cudaMemcpy(source, host, sizeof host, cudaMemcpyHostToDevice), cudaSuccess);
    assert_int_equal(cudai_launch(fill_rest, 1, 32, 0, NULL, source, target), 0);
    assert_int_equal(cudaMemcpy(got, target, sizeof got, cudaMemcpyDeviceToHost), cudaSuccess);
    const unsigned char *bytes = reinterpret_cast<const unsigned char *>(got);
    for (int i = 0; i < COUNT * 4; i++)
        assert_int_equal(bytes[i], i % 16 < i / 16 % 17 ? 0x5a : 0);
    cudaFree(source);
    cudaFree(target);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mma),
        cmocka_unit_test(test_async_copies),
        cmocka_unit_test(test_async_copies_fill),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
