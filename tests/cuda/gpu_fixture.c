/* The GPU of a test, real or simulated: calls of CUDA's runtime alone. */
#include <cuda_runtime_api.h>
#include <inttypes.h>
#include <math.h>

#include "base/mem.h"
#include "tests/cuda/gpu_fixture.h"
#include "tests/unit.h"

enum { EXIT_SKIP = 77, CANARY_BYTES = 4096, ALIGNMENT = 256 };

static const uint64_t default_seed = 20264;

/* A block on a GPU is followed by canary bytes; under simulation by a page that may not be
 * touched. */
struct gpu_block {
    void *memory;
    uint64_t bytes, canary_bytes;
    struct gpu_block *next;
};

static void expect_success(cudaError_t error, const char *what)
{
    if (error != cudaSuccess)
        fail_msg("%s: %s (%s)", what, cudaGetErrorName(error), cudaGetErrorString(error));
}

static _Noreturn void skip_all(const char *reason)
{
    printf("skipped: %s\n", reason);
    fflush(stdout);
    exit(EXIT_SKIP);
}

gpu_fixture *gpu_begin(void)
{
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess)
        skip_all(cudaGetErrorString(error));
    if (count == 0)
        skip_all("no GPU is visible");
    gpu_fixture *gpu = mem_alloc(1, sizeof *gpu, "gpu fixture");
    assert_non_null(gpu);
#ifdef SLUICE_SIMULATED_GPU
    gpu->is_simulated = true;
#endif
    const char *seed = getenv("SLUICE_TEST_SEED");
    gpu->seed = seed ? strtoull(seed, NULL, 0) : default_seed;
    assert_ok(cudai_context_fill(&gpu->context, 0));
    size_t free_bytes, total_bytes;
    expect_success(cudaMemGetInfo(&free_bytes, &total_bytes), "asking for the GPU's memory");
    gpu->total_bytes = total_bytes;
    cudaStream_t stream;
    expect_success(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
    gpu->stream = stream;
    printf("gpu test: seed %" PRIu64 "\n", gpu->seed);
    return gpu;
}

static void check_canary(const struct gpu_block *block)
{
    static unsigned char canary[CANARY_BYTES + ALIGNMENT];
    const unsigned char *end = (const unsigned char *)block->memory + block->bytes;
    assert_true(block->canary_bytes <= sizeof canary);
    expect_success(cudaMemcpy(canary, end, block->canary_bytes, cudaMemcpyDeviceToHost),
                   "reading what follows a block");
    for (uint64_t i = 0; i < block->canary_bytes; i++) {
        if (canary[i] != 0xff)
            fail_msg("byte %" PRIu64 " beyond the end of a block of %" PRIu64
                     " bytes was overwritten with 0x%02x",
                     i, block->bytes, canary[i]);
    }
}

static void free_block(struct gpu_block *block)
{
    if (block->canary_bytes > 0)
        check_canary(block);
    expect_success(cudaFree(block->memory), "freeing GPU memory");
    mem_free(block);
}

void gpu_end(gpu_fixture *gpu)
{
    gpu_sync(gpu);
    while (gpu->blocks) {
        struct gpu_block *block = gpu->blocks;
        gpu->blocks = block->next;
        free_block(block);
    }
    expect_success(cudaStreamDestroy(gpu->stream), "destroying a stream");
    expect_success(cudaGetLastError(), "an error that nobody took");
    mem_free(gpu);
}

void *gpu_alloc(gpu_fixture *gpu, uint64_t bytes)
{
    struct gpu_block *block = mem_alloc(1, sizeof *block, "gpu block");
    assert_non_null(block);
    block->bytes = bytes;
    if (!gpu->is_simulated) /* up to the alignment and one piece more */
        block->canary_bytes = CANARY_BYTES + (ALIGNMENT - bytes % ALIGNMENT) % ALIGNMENT;
    uint64_t all_bytes = bytes + block->canary_bytes;
    expect_success(cudaMalloc(&block->memory, all_bytes > 0 ? all_bytes : 1),
                   "allocating GPU memory");
    expect_success(cudaMemset(block->memory, 0xff, all_bytes), "filling GPU memory");
    expect_success(cudaDeviceSynchronize(), "filling GPU memory");
    block->next = gpu->blocks;
    gpu->blocks = block;
    return block->memory;
}

void *gpu_alloc_copy(gpu_fixture *gpu, const void *host, uint64_t bytes)
{
    void *memory = gpu_alloc(gpu, bytes);
    gpu_upload(gpu, memory, host, bytes);
    return memory;
}

void gpu_free(gpu_fixture *gpu, void *memory)
{
    if (!memory)
        return;
    gpu_sync(gpu);
    for (struct gpu_block **link = &gpu->blocks; *link; link = &(*link)->next) {
        struct gpu_block *block = *link;
        if (block->memory == memory) {
            *link = block->next;
            free_block(block);
            return;
        }
    }
    fail_msg("gpu_free of memory that gpu_alloc did not give");
}

void gpu_upload(gpu_fixture *gpu, void *target, const void *host, uint64_t bytes)
{
    gpu_sync(gpu);
    expect_success(cudaMemcpy(target, host, bytes, cudaMemcpyHostToDevice), "copying to the GPU");
    expect_success(cudaDeviceSynchronize(), "copying to the GPU");
}

void gpu_download(gpu_fixture *gpu, void *host, const void *source, uint64_t bytes)
{
    gpu_sync(gpu);
    expect_success(cudaMemcpy(host, source, bytes, cudaMemcpyDeviceToHost), "copying from the GPU");
}

void gpu_fill(gpu_fixture *gpu, void *target, uint8_t value, uint64_t bytes)
{
    gpu_sync(gpu);
    expect_success(cudaMemset(target, value, bytes), "filling GPU memory");
    expect_success(cudaDeviceSynchronize(), "filling GPU memory");
}

void gpu_sync(gpu_fixture *gpu)
{
    expect_success(cudaDeviceSynchronize(), "waiting for the GPU");
}

/* --- on the host --- */

void gpu_random_fill(float *values, uint64_t count, uint64_t seed, float low, float high)
{
    uint64_t state = seed;
    for (uint64_t i = 0; i < count; i++) { /* splitmix64 */
        state += 0x9e3779b97f4a7c15u;
        uint64_t z = state;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        z ^= z >> 31;
        values[i] = low + (high - low) * ((float)(z >> 40) * 0x1p-24f);
    }
}

void gpu_narrow(const float *source, void *target, enum dtype type, uint64_t count)
{
    dtype_convert(source, DTYPE_FP32, target, type, count);
}

void gpu_widen(const void *source, enum dtype type, float *target, uint64_t count)
{
    dtype_convert(source, type, target, DTYPE_FP32, count);
}

static void *host_elems(uint64_t count, enum dtype type)
{
    void *elems = mem_alloc(count, dtype_bytes(type), "gpu test values");
    assert_non_null(elems);
    return elems;
}

void gpu_round(float *values, enum dtype type, uint64_t count)
{
    void *elems = host_elems(count, type);
    gpu_narrow(values, elems, type, count);
    gpu_widen(elems, type, values, count);
    mem_free(elems);
}

void *gpu_alloc_values(gpu_fixture *gpu, const float *values, enum dtype type, uint64_t count)
{
    void *elems = host_elems(count, type);
    gpu_narrow(values, elems, type, count);
    void *memory = gpu_alloc_copy(gpu, elems, count * dtype_bytes(type));
    mem_free(elems);
    return memory;
}

void gpu_download_values(gpu_fixture *gpu, float *values, const void *source, enum dtype type,
                         uint64_t count)
{
    void *elems = host_elems(count, type);
    gpu_download(gpu, elems, source, count * dtype_bytes(type));
    gpu_widen(elems, type, values, count);
    mem_free(elems);
}

static bool is_close(double got, double want, double absolute, double relative)
{
    if (isnan(want) || isnan(got))
        return isnan(want) && isnan(got);
    if (isinf(want) || isinf(got))
        return want == got;
    return fabs(got - want) <= absolute + relative * fabs(want);
}

void gpu_expect_close(const char *name, const float *got, const float *want, uint64_t count,
                      double absolute, double relative)
{
    uint64_t bad_count = 0, first = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (!is_close(got[i], want[i], absolute, relative) && bad_count++ == 0)
            first = i;
    }
    if (bad_count > 0)
        fail_msg("%s: %" PRIu64 " of %" PRIu64 " are wrong, the first at %" PRIu64
                 ": got %.9g, want %.9g (off by %.3g, allowed %.3g)",
                 name, bad_count, count, first, (double)got[first], (double)want[first],
                 fabs((double)got[first] - (double)want[first]),
                 absolute + relative * fabs((double)want[first]));
}

void gpu_expect_same(const char *name, const void *got, const void *want, uint64_t count,
                     size_t elem_bytes)
{
    const unsigned char *a = got, *b = want;
    for (uint64_t i = 0; i < count * elem_bytes; i++) {
        if (a[i] != b[i])
            fail_msg("%s: element %" PRIu64 " of %" PRIu64 " differs in its byte %" PRIu64
                     ": got 0x%02x, want 0x%02x",
                     name, i / elem_bytes, count, i % elem_bytes, a[i], b[i]);
    }
}
