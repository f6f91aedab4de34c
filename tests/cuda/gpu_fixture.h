/* Shared by the tests of the CUDA backend: a GPU (a real one, or the simulated one, as the program
 * was linked), guarded memory on it, and comparisons. It calls CUDA's runtime alone, so that the
 * same test runs on both. The function sluice_gpu_test (simulated_gpu.cmake) registers
 * test_gpu_*.c.
 *
 *   static void test_add(void **state)
 *   {
 *       gpu_fixture *gpu = gpu_begin();
 *       float *a = gpu_alloc(gpu, bytes);
 *       gpu_upload(gpu, a, host, bytes);
 *       assert_int_equal(cudai_add(&gpu->context, gpu->stream, ...), 0);
 *       gpu_download(gpu, got, a, bytes);
 *       gpu_expect_close("sum", got, want, count, 1e-6, 1e-5);
 *       gpu_end(gpu);
 *   }
 *
 * A thread has one fixture at a time. A failure in here fails the running cmocka test. If there
 * is no GPU, the program ends with status 77 and prints the reason. */
#ifndef SLUICE_TESTS_GPU_FIXTURE_H
#define SLUICE_TESTS_GPU_FIXTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "kernels/cuda/cuda_internal.h"

struct gpu_block; /* one allocation, with its guard */

struct gpu_fixture {
    kernel_context context; /* filled by cudai_context_fill: no cuBLASLt, no cuDNN */
    void *stream;           /* a cudaStream_t that does not wait for the default stream */
    bool is_simulated;
    uint64_t seed;        /* SLUICE_TEST_SEED, or a fixed one; printed by gpu_begin */
    uint64_t total_bytes; /* of the GPU's memory */
    struct gpu_block *blocks;
};
typedef struct gpu_fixture gpu_fixture;

/* Chooses GPU 0. Exits with 77 and the reason where there is none. Never NULL. */
gpu_fixture *gpu_begin(void);
/* Waits, frees what is left (checking its guards), and checks that no CUDA error is pending. */
void gpu_end(gpu_fixture *gpu);

/* Allocates device memory, aligned to 256 bytes and filled with 0xff (NaN). bytes 0 is allowed. A
 * write beyond its end is found as follows. On a GPU, gpu_free or gpu_end finds it. Under
 * simulation it ends the program at once, because the next page may not be touched; the few bytes
 * before that page are compared when the memory is freed. */
void *gpu_alloc(gpu_fixture *gpu, uint64_t bytes);
/* gpu_alloc and gpu_upload. */
void *gpu_alloc_copy(gpu_fixture *gpu, const void *host, uint64_t bytes);
void gpu_free(gpu_fixture *gpu, void *memory); /* waits for all work; NULL allowed */

/* Both wait for all work of all streams first and return when the bytes are there. */
void gpu_upload(gpu_fixture *gpu, void *target, const void *host, uint64_t bytes);
void gpu_download(gpu_fixture *gpu, void *host, const void *source, uint64_t bytes);
void gpu_fill(gpu_fixture *gpu, void *target, uint8_t value, uint64_t bytes);

/* Waits for everything; fails the test on an error of CUDA. */
void gpu_sync(gpu_fixture *gpu);

/* --- on the host --- */

/* count uniform numbers in [low, high); the same for the same seed on every machine. */
void gpu_random_fill(float *values, uint64_t count, uint64_t seed, float low, float high);

/* Host arrays to and from elements of `type`, rounded to nearest even. */
void gpu_narrow(const float *source, void *target, enum dtype type, uint64_t count);
void gpu_widen(const void *source, enum dtype type, float *target, uint64_t count);
/* Rounds values in place to what `type` can hold. */
void gpu_round(float *values, enum dtype type, uint64_t count);

/* Device elements of `type`: uploads fp32 host values narrowed, downloads them widened. */
void *gpu_alloc_values(gpu_fixture *gpu, const float *values, enum dtype type, uint64_t count);
void gpu_download_values(gpu_fixture *gpu, float *values, const void *source, enum dtype type,
                         uint64_t count);

/* Fails the test unless |got - want| <= absolute + relative * |want| for every element. Equal
 * infinities agree, and NaN agrees with NaN alone. The message names the first bad index and says
 * how many are bad. */
void gpu_expect_close(const char *name, const float *got, const float *want, uint64_t count,
                      double absolute, double relative);
/* Fails the test, naming the first byte that differs and its element, unless the bytes are
 * equal. */
void gpu_expect_same(const char *name, const void *got, const void *want, uint64_t count,
                     size_t elem_bytes);

#endif
